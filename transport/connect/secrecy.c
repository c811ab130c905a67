#include "transport/connect/secrecy.h"

#include "common/base/log.h"

#include <stdlib.h>
#include <string.h>

#define VARIABLE "GRAFT_CONTROL_ENCRYPTION"

static const char *const names[] = {"off", "on", "required"};

const char *gr_secrecy_name(uint32_t secrecy)
{
    return secrecy < GR_ARRAY_LEN(names) ? names[secrecy] : "?";
}

void gr_secrecy_use(int wanted)
{
    setenv(VARIABLE, gr_secrecy_name((uint32_t)wanted), 1);
}

enum gr_status gr_secrecy_wanted(uint32_t *out)
{
    const char *text = getenv(VARIABLE);
    *out = GR_SECRECY_ON;
    for (uint32_t i = 0; text != NULL && i < GR_ARRAY_LEN(names); i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = i;
            return GR_OK;
        }
    }
    if (text == NULL) {
        return GR_OK;
    }
    log_error(VARIABLE " (--control-encryption) is `%s'; it is on, off or required", text);
    return GR_EINVAL;
}

#include "common/base/device.h"

#include "common/base/log.h"
#include "common/base/parse.h"

#include <string.h>

#define DEVICE_MAX 255 /* the largest N of cuda:N */

enum gr_status gr_device_placed(const char *what, int device)
{
    if (device == GR_DEVICE_LOCAL) {
        log_error("%s cuda:local: only `graft launch' knows which GPU of its host a rank has; take cuda:N", what);
        return GR_EINVAL;
    }
    return GR_OK;
}

enum gr_status gr_device_parse(const char *what, const char *text, int *device_out)
{
    int64_t n = 0;
    if (strcmp(text, "cpu") == 0) {
        *device_out = GR_DEVICE_CPU;
        return GR_OK;
    }
    if (strcmp(text, "cuda:local") == 0) {
        *device_out = GR_DEVICE_LOCAL;
        return GR_OK;
    }
    if (strncmp(text, "cuda:", 5) != 0 || !gr_parse_int(text + 5, 0, DEVICE_MAX, &n)) {
        log_error("%s: `%s' is not cpu, cuda:N (N from 0 to %d) or cuda:local", what, text, DEVICE_MAX);
        return GR_EINVAL;
    }
    *device_out = (int)n;
    return GR_OK;
}

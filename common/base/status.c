#include "common/base/status.h"

#include "common/base/log.h"

#include <stdlib.h>

const char *gr_status_text(enum gr_status st)
{
    switch (st) {
#define X(name, value, text) \
    case name:               \
        return text;
        GR_STATUS_LIST(X)
#undef X
    }
    return "unknown status";
}

void gr_assert_failed(const char *cond, const char *file, int line)
{
    log_error("internal error: %s:%d: assertion `%s' failed", file, line, cond);
    abort();
}

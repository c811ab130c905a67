#include "orchestrator/http/request_names.h"

#include <string.h>

#define HEX "0123456789abcdef" /* capitals are none, says the standard */
#define TRACE_LEN (GR_TRACE_ID_MAX - 1)
#define PARENT_LEN 16
#define HEADER_LEN (2 + 1 + TRACE_LEN + 1 + PARENT_LEN + 1 + 2) /* version-trace-parent-flags */

bool gr_request_id_is_good(const char *text)
{
    static const char known[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~:/+=@";
    const size_t n = strlen(text);
    return n > 0 && n < GR_REQUEST_ID_MAX && strspn(text, known) == n;
}

/* n hex digits, and then one of `after'; an id of zeros alone is none. */
static bool is_field(const char *p, size_t n, const char *after, bool may_be_zero)
{
    return strspn(p, HEX) == n && strchr(after, p[n]) != NULL && (may_be_zero || strspn(p, "0") < n);
}

bool gr_trace_parent_read(const char *header, char out[GR_TRACE_ID_MAX])
{
    const char *const trace = header + 3, *const parent = trace + TRACE_LEN + 1, *const flags = parent + PARENT_LEN + 1;
    if (strlen(header) < HEADER_LEN || !is_field(header, 2, "-", true) || strncmp(header, "ff", 2) == 0 ||
        !is_field(trace, TRACE_LEN, "-", false) || !is_field(parent, PARENT_LEN, "-", false)) {
        return false;
    }
    const bool may_go_on = strncmp(header, "00", 2) != 0; /* of a later version: what follows is not known here */
    const char end = flags[2];
    if (strspn(flags, HEX) != 2 || !(end == '\0' || (may_go_on && end == '-'))) {
        return false;
    }
    memcpy(out, trace, TRACE_LEN);
    out[TRACE_LEN] = '\0';
    return true;
}

#include "orchestrator/cli/text_out.h"

#include "common/base/utf8.h"

#include <stdio.h>
#include <unistd.h>

static bool write_all(const char *text, size_t len)
{
    return fwrite(text, 1, len, stdout) == len;
}

/* One character that is not to be obeyed, or bytes that are none. */
static bool write_spelled(const char *text, size_t len)
{
    char spelled[32];
    return write_all(spelled, gr_utf8_show(text, len, spelled, sizeof(spelled)));
}

static bool write_to_terminal(const char *text, size_t len)
{
    bool good = true;
    for (size_t i = 0, n; good && i < len; i += n) {
        n = gr_utf8_n_plain(text + i, len - i);
        if (n > 0) {
            good = write_all(text + i, n);
        } else {
            (void)gr_utf8_next((const uint8_t *)text + i, len - i, &n);
            good = write_spelled(text + i, n);
        }
    }
    return good;
}

bool gr_text_out(const char *text, size_t len)
{
    const bool good = isatty(STDOUT_FILENO) ? write_to_terminal(text, len) : write_all(text, len);
    return good && fflush(stdout) == 0;
}

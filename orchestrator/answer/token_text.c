#include "orchestrator/answer/token_text.h"

#include "common/base/utf8.h"

#include <string.h>

size_t gr_token_text(const char *bytes, size_t n, char text[GR_TOKEN_TEXT_MAX])
{
    size_t n_text = 0, one = 0;
    GR_ASSERT(n <= GR_TOKEN_BYTES_MAX);
    for (size_t i = 0; i < n; i += one) {
        const bool whole = gr_utf8_next((const uint8_t *)bytes + i, n - i, &one) == GR_UTF8_CHAR;
        one = whole ? one : 1;
        memcpy(text + n_text, whole ? bytes + i : "\xef\xbf\xbd", whole ? one : 3);
        n_text += whole ? one : 3;
    }
    return n_text;
}

#include "orchestrator/http/http_counts.h"

#include "common/base/status.h"

static const struct {
    int status;
    const char *name;
} codes[GR_HTTP_CODES] = {{200, "200"}, {204, "204"}, {400, "400"}, {401, "401"}, {403, "403"}, {404, "404"},
                          {405, "405"}, {408, "408"}, {409, "409"}, {410, "410"}, {411, "411"}, {413, "413"},
                          {414, "414"}, {415, "415"}, {422, "422"}, {429, "429"}, {431, "431"}, {500, "500"},
                          {503, "503"}, {0, "none"},  {-1, "other"}};

const char *gr_http_code_name(int i)
{
    return codes[i].name;
}

void gr_http_count(struct gr_http_counts *c, int path, int http_status)
{
    int i = 0;
    while (i < GR_HTTP_CODES - 1 && codes[i].status != http_status) {
        i++;
    }
    GR_ASSERT(path >= 0 && path < GR_HTTP_PATHS);
    c->n[path][i]++;
}

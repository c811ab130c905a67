/* In builds without libcurl. */
#include "bench/serve/client.h"
#include "common/base/log.h"

enum gr_status gr_client_open(const struct gr_client_config *config, struct gr_client **out)
{
    (void)config;
    *out = NULL;
    log_error("this build has no HTTP client: it was built without libcurl (Debian: libcurl4-gnutls-dev)");
    return GR_EUNSUPPORTED;
}

void gr_client_close(struct gr_client *c)
{
    (void)c;
}

enum gr_status gr_client_get(struct gr_client *c, const char *path, char **text_out,
                             char why[static GR_ANSWER_SAID_MAX])
{
    (void)c;
    (void)path;
    *text_out = NULL;
    why[0] = '\0';
    return GR_EUNSUPPORTED;
}

enum gr_status gr_client_load(struct gr_client *c, const struct gr_load *load, struct gr_answer *answer,
                              struct gr_gaps *gaps, uint64_t *duration_ns_out)
{
    (void)c;
    (void)load;
    (void)answer;
    (void)gaps;
    *duration_ns_out = 0;
    return GR_EUNSUPPORTED;
}

#include "transport/verbs.h"

static struct gr_verbs_options configured = GR_VERBS_OPTIONS_DEFAULT;

void gr_verbs_configure(const struct gr_verbs_options *options)
{
    configured = *options;
}

const struct gr_verbs_options *gr_verbs_configured(void)
{
    return &configured;
}

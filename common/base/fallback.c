#include "common/base/fallback.h"

#include "common/base/log.h"
#include "common/base/session_id.h"
#include "common/base/status.h"

#include <inttypes.h>
#include <stdio.h>

static const struct {
    const char *name, *topic, *why, *instead;
} reasons[GR_N_FALLBACK] = {[GR_FALLBACK_NONE] = {"NONE", "", "", ""},
#define X(name, topic, why, instead) [GR_FALLBACK_##name] = {#name, topic, why, instead},
                            GR_FALLBACK_LIST(X)
#undef X
};

const char *gr_fallback_name(enum gr_fallback reason)
{
    return reasons[reason].name;
}

bool gr_is_told(uint32_t n)
{
    while (n > 1 && n % 10 == 0) {
        n /= 10;
    }
    return n == 1;
}

static void spell_subject(uint64_t session, uint32_t round, char *out, size_t cap)
{
    if (session == 0) {
        snprintf(out, cap, "%s", "");
    } else if (round == 0) {
        snprintf(out, cap, "session %" GR_SESSION_ID_PRI ": ", session);
    } else {
        snprintf(out, cap, "session %" GR_SESSION_ID_PRI " round %u: ", session, round);
    }
}

void gr_fall_back(struct gr_fallbacks *f, enum gr_fallback reason, uint64_t session, uint32_t round, const char *detail)
{
    char subject[64], times[48] = "";
    GR_ASSERT(reason > GR_FALLBACK_NONE && reason < GR_N_FALLBACK);
    f->n[reason] += f->n[reason] < UINT32_MAX;
    f->n_untold += f->n_untold < UINT32_MAX;
    if (!gr_is_told(f->n[reason])) {
        return;
    }
    if (f->n[reason] > 1) {
        snprintf(times, sizeof(times), " (%u times by now)", f->n[reason]);
    }
    spell_subject(session, round, subject, sizeof(subject));
    log_warn("[%s][fallback] %s%s%s%s; %s%s", reasons[reason].topic, subject, reasons[reason].why,
             detail != NULL ? ": " : "", detail != NULL ? detail : "", reasons[reason].instead, times);
}

#include "orchestrator/http/event_id.h"

#include "common/base/session_id.h"

void gr_event_id_spell(const struct gr_event_id *id, char out[GR_EVENT_ID_MAX])
{
    snprintf(out, GR_EVENT_ID_MAX, "%" GR_SESSION_ID_PRI "-%u-%u", id->session, id->epoch, id->position);
}

/* Digits up to `end'. */
static bool read_number(const char *text, char end, uint32_t *out)
{
    const size_t n = strspn(text, "0123456789");
    if (n < 1 || n > 10 || text[n] != end) {
        return false;
    }
    const unsigned long long number = strtoull(text, NULL, 10);
    if (number <= UINT32_MAX) {
        *out = (uint32_t)number;
    }
    return number <= UINT32_MAX;
}

bool gr_event_id_read(const char *text, struct gr_event_id *out)
{
    char session[GR_SESSION_ID_DIGITS + 1];
    struct gr_event_id id;
    if (strnlen(text, GR_EVENT_ID_MAX) == GR_EVENT_ID_MAX || strlen(text) < sizeof(session)) {
        return false;
    }
    memcpy(session, text, GR_SESSION_ID_DIGITS);
    session[GR_SESSION_ID_DIGITS] = '\0';
    const char *epoch = text + sizeof(session), *position = strchr(epoch, '-');
    const bool is_one = text[GR_SESSION_ID_DIGITS] == '-' && gr_session_id_read(session, &id.session) &&
                        position != NULL && read_number(epoch, '-', &id.epoch) &&
                        read_number(position + 1, '\0', &id.position);
    if (is_one) {
        *out = id;
    }
    return is_one;
}

bool gr_position_read(const char *text, uint32_t *out)
{
    return read_number(text, '\0', out);
}

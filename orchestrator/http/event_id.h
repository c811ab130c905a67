/* Names of a stream's events, SESSION-EPOCH-POSITION, and positions as requests give them. The position is how many of
 * the answer's tokens have been told with this event; [DONE] has the one after the last. Pure. */
#ifndef GR_ORCHESTRATOR_HTTP_EVENT_ID_H
#define GR_ORCHESTRATOR_HTTP_EVENT_ID_H

#include <stdbool.h>
#include <stdint.h>

#define GR_EVENT_ID_MAX 40 /* with its NUL */

struct gr_event_id {
    uint64_t session;
    uint32_t epoch, position;
};

void gr_event_id_spell(const struct gr_event_id *id, char out[GR_EVENT_ID_MAX]);
/* False: it is none. */
bool gr_event_id_read(const char *text, struct gr_event_id *out);
/* A number of digits alone. False: it is none, or too large for any position. */
bool gr_position_read(const char *text, uint32_t *out);

#endif

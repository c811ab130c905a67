/* A link between rank 0 and another rank: JSON objects with their length in front (u32 little-endian) over a socket
 * whose peer has proven the key. Each object has a "type":
 *
 *   hello   of a rank (table.h), the first thing that it says; "group" of one that leads others, where they find it
 *   no      its answer where it is refused: "why", and "other_job" true where another job is met
 *   go      all are here and agree: "port" of the orchestrator, "device" for a rank that wanted a GPU,
 *           "group" for one that is a target with others: where it finds who leads them
 *   up      the rank's worker has joined
 *   failed  it cannot: "status"
 *   signal  the rank was asked to end, by signal "number"; "again" true where that was so before
 *   end     the job is over, or this rank's part in it: "status"; "up" false where it never came up; of a job
 *           "within_ms", what is left of --grace
 */
#ifndef GR_ORCHESTRATOR_LAUNCH_LINK_H
#define GR_ORCHESTRATOR_LAUNCH_LINK_H

#include "common/base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define GR_LINK_BYTES_MAX (256u << 10) /* of an object */

struct gr_link {
    int fd; /* -1: none; owned */
    uint8_t *buffer;
    size_t n; /* bytes that have come of the next object */
};

/* fd: taken, also after an error. */
GR_NODISCARD enum gr_status gr_link_open(struct gr_link *l, int fd);
void gr_link_close(struct gr_link *l);
static inline bool gr_link_is_open(const struct gr_link *l)
{
    return l->fd >= 0 && l->buffer != NULL;
}
/* j: stolen. Waits 2 s at most for room. GR_ECLOSED, GR_ETIMEDOUT, GR_ELIMIT (logged): not
 * sent; the link is to be closed. */
GR_NODISCARD enum gr_status gr_link_send(struct gr_link *l, json_t *j);
/* What has come so far. GR_AGAIN: not a whole object yet. GR_ECLOSED; GR_EPROTO: no object, or too long (logged). */
GR_NODISCARD enum gr_status gr_link_recv(struct gr_link *l, json_t **out);
/* Its type, "" without one. */
const char *gr_link_type(const json_t *j);
/* A number of it from least to most; `missing` where there is none, or one beyond them. */
int gr_link_int(const json_t *j, const char *key, int least, int most, int missing);

#endif

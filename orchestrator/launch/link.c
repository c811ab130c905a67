#include "orchestrator/launch/link.h"

#include "common/base/log.h"
#include "transport/net.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SEND_MS 2000

enum gr_status gr_link_open(struct gr_link *l, int fd)
{
    *l = (struct gr_link){.fd = fd, .buffer = malloc(4 + GR_LINK_BYTES_MAX)};
    if (l->buffer == NULL) {
        log_error("no memory for a link to another rank");
        gr_link_close(l);
        return GR_ENOMEM;
    }
    gr_sock_tune(fd);
    return GR_OK;
}

void gr_link_close(struct gr_link *l)
{
    if (l->fd >= 0) {
        close(l->fd);
    }
    free(l->buffer);
    *l = (struct gr_link){.fd = -1};
}

enum gr_status gr_link_send(struct gr_link *l, json_t *j)
{
    char *text = j != NULL ? json_dumps(j, JSON_COMPACT) : NULL;
    const size_t n = text != NULL ? strlen(text) : 0;
    enum gr_status st = GR_ENOMEM;
    json_decref(j);
    if (text != NULL && n <= GR_LINK_BYTES_MAX && gr_link_is_open(l)) {
        const uint8_t head[4] = {(uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), (uint8_t)(n >> 24)};
        st = gr_sock_write_peer(l->fd, head, sizeof(head), gr_deadline_ns(SEND_MS), "rendezvous");
        if (st == GR_OK) {
            st = gr_sock_write_peer(l->fd, text, n, gr_deadline_ns(SEND_MS), "rendezvous");
        }
    } else if (n > GR_LINK_BYTES_MAX) {
        log_error(
            "rendezvous: this rank has %zu bytes to say, %u are the most: is a variable GRAFT_* or NCCL_* so long?", n,
            GR_LINK_BYTES_MAX);
        st = GR_ELIMIT;
    } else if (text != NULL) {
        st = GR_ECLOSED;
    }
    free(text);
    return st;
}

static size_t wanted_bytes(const struct gr_link *l)
{
    const uint8_t *p = l->buffer;
    return l->n < 4 ? 4 : 4 + ((size_t)p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24);
}

static enum gr_status read_some(struct gr_link *l, size_t want)
{
    while (l->n < want) {
        const ssize_t got = recv(l->fd, l->buffer + l->n, want - l->n, MSG_DONTWAIT);
        if (got > 0) {
            l->n += (size_t)got;
        } else if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            return GR_AGAIN;
        } else {
            return GR_ECLOSED;
        }
    }
    return GR_OK;
}

enum gr_status gr_link_recv(struct gr_link *l, json_t **out)
{
    GR_TRY(read_some(l, 4));
    const size_t want = wanted_bytes(l);
    if (want > 4 + GR_LINK_BYTES_MAX) {
        log_error("rendezvous: a record of %zu bytes; is the peer `graft launch'?", want - 4);
        return GR_EPROTO;
    }
    GR_TRY(read_some(l, want));
    l->n = 0;
    *out = json_loadb((const char *)l->buffer + 4, want - 4, 0, NULL);
    if (!json_is_object(*out)) {
        json_decref(*out);
        log_error("rendezvous: a record that is no JSON object; is the peer `graft launch'?");
        return GR_EPROTO;
    }
    return GR_OK;
}

const char *gr_link_type(const json_t *j)
{
    const char *type = json_string_value(json_object_get(j, "type"));
    return type != NULL ? type : "";
}

int gr_link_int(const json_t *j, const char *key, int least, int most, int missing)
{
    const json_t *n = json_object_get(j, key);
    const json_int_t value = json_is_integer(n) ? json_integer_value(n) : missing;
    return value >= least && value <= most ? (int)value : missing;
}

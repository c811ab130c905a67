#include "orchestrator/launch/where.h"

#include "common/base/address.h"
#include "common/base/log.h"
#include "transport/connect/reach.h"
#include "transport/own.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

/* Ports that follow from a job's name: below those that the kernel hands out (32768 ..). */
#define PORT_FIRST 15000
#define PORT_COUNT 10000

/* ---- the choice ---- */

/* Several ports, as the first may be somebody else's; who answers there must prove the key and be of this job. */
static void derive(const char *host, const char *job, struct gr_where *out)
{
    const unsigned low = out->port_first != 0 ? out->port_first : PORT_FIRST;
    const unsigned n_port = out->port_first != 0 ? out->port_last - out->port_first + 1u : PORT_COUNT;
    const unsigned n = GR_MIN(n_port, (unsigned)GR_WHERE_PORTS);
    const unsigned first = low + (unsigned)(XXH3_64bits(job, strlen(job)) % (n_port - n + 1));
    for (unsigned i = 0; i < n; i++) {
        snprintf(out->address[i], sizeof(out->address[i]), strchr(host, ':') != NULL ? "[%.255s]:%u" : "%.255s:%u",
                 host, first + i);
    }
    out->n_address = (int)n;
}

enum gr_status gr_where_ports(const char *ports, struct gr_where *out)
{
    struct gr_address a = {0};
    char text[64], held[256];
    snprintf(out->ports, sizeof(out->ports), "0");
    if (ports == NULL) {
        return GR_OK;
    }
    snprintf(text, sizeof(text), ":%.48s", ports);
    gr_log_hold(held, sizeof(held)); /* the line below says it in the option's words */
    const enum gr_status st = strlen(ports) < sizeof(out->ports) ? gr_address_parse("--ports", text, 0, &a) : GR_EINVAL;
    gr_log_hold(NULL, 0);
    if (st != GR_OK || a.host[0] != '\0' || a.port == 0) {
        log_error("--ports: `%s' is not LOW-HIGH with ports from 1 to %d", ports, GR_PORT_MAX);
        return GR_EINVAL;
    }
    out->port_first = a.port;
    out->port_last = a.port_last;
    snprintf(out->ports, sizeof(out->ports), "%s", ports);
    return GR_OK;
}

/* A folder that only this user's processes of this host see. */
static void own_folder(struct gr_where *out)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    if (runtime != NULL && runtime[0] == '/' && access(runtime, W_OK) == 0) {
        snprintf(out->dir, sizeof(out->dir), "%.4000s/graft", runtime);
    } else {
        snprintf(out->dir, sizeof(out->dir), "/tmp/graft-%u", (unsigned)geteuid());
    }
}

static enum gr_status refuse(const struct gr_who *w, bool with_key)
{
    if (!with_key) {
        log_error(
            "rank %d on host %s: the ranks are on several hosts and share no key; give all of them GRAFT_KEY_FILE "
            "(srun exports it, mpirun -x GRAFT_KEY_FILE), or --job-dir DIR, a folder that all of them see",
            w->rank, w->host);
    } else {
        log_error("rank %d on host %s: the ranks are on several hosts, and %s does not say where rank 0 is; give "
                  "--rendezvous HOST:PORT, or --job-dir DIR, a folder that all of them see",
                  w->rank, w->host, gr_ranks_name(w->source));
    }
    return GR_EINVAL;
}

enum gr_status gr_where_choose(const struct gr_options *o, const struct gr_who *w, bool with_key, char *const *env,
                               struct gr_where *out)
{
    const char *master = w->source == GR_RANKS_TORCHRUN ? gr_env_get(env, "MASTER_ADDR") : NULL;
    out->one_host = w->one_host;
    out->by = gr_channel_named(o->rendezvous);
    if (out->by != GR_CHANNEL_NOT) {
        return gr_channel_check(out->by, w, env);
    }
    if (o->job_dir != NULL) {
        snprintf(out->dir, sizeof(out->dir), "%s", o->job_dir);
        return GR_OK;
    }
    if (o->rendezvous != NULL && with_key) {
        snprintf(out->address[0], sizeof(out->address[0]), "%s", o->rendezvous);
        out->n_address = 1;
        out->named = true;
        return GR_OK;
    }
    if (o->rendezvous != NULL) {
        log_error("rank %d on host %s: --rendezvous needs a key that all ranks hold: GRAFT_KEY_FILE, or --job-dir DIR "
                  "instead",
                  w->rank, w->host);
        return GR_EINVAL;
    }
    if (w->one_host) {
        own_folder(out);
        return GR_OK;
    }
    if (!with_key || (w->first[0] == '\0' && master == NULL)) {
        return refuse(w, with_key);
    }
    derive(master != NULL ? master : w->first, w->job, out);
    return GR_OK;
}

bool gr_where_is_told(const struct gr_where *w)
{
    return w->dir[0] != '\0' || w->by != GR_CHANNEL_NOT;
}

const char *gr_where_text(const struct gr_where *w)
{
    return w->by != GR_CHANNEL_NOT ? gr_channel_name(w->by) : w->dir[0] != '\0' ? w->dir : w->address[0];
}

/* ---- listening ---- */

static enum gr_status listen_at(unsigned port, struct gr_listening *out)
{
    char address[16], unheard[256] = "";
    snprintf(address, sizeof(address), ":%u", port);
    *out = (struct gr_listening){.n = 1};
    gr_log_hold(unheard, sizeof(unheard)); /* another attempt may replace it; else the caller says it in its words */
    const enum gr_status st = gr_tcp_listen(address, &out->fd[0], out->bound);
    gr_log_hold(NULL, 0);
    return st;
}

static void take_list(const char *list, struct gr_job_note *note)
{
    char item[300];
    size_t at = 0;
    note->n_address = 0;
    while (note->n_address < GR_JOB_ADDRESS_MAX && gr_address_next(list, &at, item)) {
        snprintf(note->address[note->n_address++], sizeof(note->address[0]), "%.63s", item);
    }
}

static enum gr_status listen_told(const struct gr_where *w, struct gr_listening *out, struct gr_job_note *note)
{
    char address[32], list[GR_REACH_BYTES];
    const bool here = w->one_host && !gr_own_is_told();
    snprintf(address, sizeof(address), "%s:%s", here ? "127.0.0.1" : "", w->ports);
    GR_TRY(gr_tcp_listen_own(address, out));
    gr_reach_list(out, -1, list);
    take_list(list, note);
    if (!w->one_host && gr_reach_is_local(list)) {
        log_warn("this host has no address by which other hosts reach it, unless a bridge is one: ranks of other hosts "
                 "will not find rank 0 at %s; --interface NAME or --rendezvous HOST:PORT says where",
                 list);
    }
    return GR_OK;
}

/* The others go to the address that was named, whichever interface has it. */
static enum gr_status listen_named(const char *address, struct gr_listening *out)
{
    struct gr_address a;
    GR_TRY(gr_address_parse("--rendezvous", address, 1, &a));
    if (gr_reach_host_is_loopback(a.host)) {
        return gr_tcp_listen_own(address, out);
    }
    if (listen_at(a.port, out) != GR_OK) {
        log_error("--rendezvous %s: cannot listen on port %u: it is in use (`ss -ltnp sport = %u' tells by whom)",
                  address, a.port, a.port);
        return GR_EIO;
    }
    return GR_OK;
}

enum gr_status gr_where_listen(const struct gr_where *w, const struct gr_who *who, struct gr_listening *out,
                               struct gr_job_note *note)
{
    struct gr_address a;
    if (gr_where_is_told(w)) {
        return listen_told(w, out, note);
    }
    if (w->named) {
        return listen_named(w->address[0], out);
    }
    if (who->first[0] != '\0' && strcmp(who->first, who->host) != 0) {
        log_error("rank 0 is on host %s, and the others look for it on the step's first node, %s; give --rendezvous "
                  "HOST:PORT, or --job-dir DIR",
                  who->host, who->first);
        return GR_EINVAL;
    }
    for (int i = 0; i < w->n_address; i++) {
        GR_TRY(gr_address_parse("rendezvous", w->address[i], 1, &a));
        if (listen_at(a.port, out) == GR_OK) {
            return GR_OK;
        }
    }
    log_error("ports %s and the %d after it are all in use; give --rendezvous HOST:PORT", w->address[0],
              w->n_address - 1);
    return GR_EIO;
}

/* ---- where the job's listeners are ---- */

void gr_where_control(const struct gr_where *w, const char *control, const struct gr_listening *met,
                      char out[GR_WHERE_CONTROL_BYTES])
{
    const char *from = control != NULL ? control : met->bound;
    const char *colon = gr_address_port_of(from);
    const bool any = control != NULL ? control[0] == '*' : gr_own_is_told();
    const bool chosen = control != NULL && strcmp(colon, ":0") != 0; /* a port of its own goes before --ports */
    snprintf(out, GR_WHERE_CONTROL_BYTES, "%.*s:%s", any ? 0 : (int)(colon - from), from,
             chosen ? colon + 1 : w->ports);
}

/* host:port of one end of a connection; peer: the other end, else ours. */
static void end_text(int fd, bool peer, const char *port, char out[64])
{
    char end[64];
    if (peer) {
        gr_sock_peer_text(fd, end);
    } else {
        gr_sock_own_text(fd, end);
    }
    snprintf(out, 64, "%.*s:%s", (int)GR_MIN((size_t)(gr_address_port_of(end) - end), (size_t)46), end, port);
}

void gr_where_peer(int fd, int port, char text_out[64])
{
    char text[16];
    snprintf(text, sizeof(text), "%d", port);
    end_text(fd, true, text, text_out);
}

void gr_where_own(const struct gr_where *w, int fd, char text_out[64])
{
    if (gr_own_is_told()) {
        snprintf(text_out, 64, ":%s", w->ports);
    } else {
        end_text(fd, false, w->ports, text_out);
    }
}

#include "orchestrator/launch/where.h"

#include "common/base/address.h"
#include "common/base/log.h"
#include "transport/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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

/* ---- listening ---- */

static bool is_loopback(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0;
}

/* Both families where the host has both. */
static enum gr_status listen_any(const char *ports, int *fd_out, char bound_out[64])
{
    char address[32], first[256] = "";
    snprintf(address, sizeof(address), "[::]:%s", ports);
    gr_log_hold(first, sizeof(first)); /* a host without IPv6, or a port that another attempt will replace */
    enum gr_status st = gr_tcp_listen(address, fd_out, bound_out);
    if (st != GR_OK) {
        snprintf(address, sizeof(address), "0.0.0.0:%s", ports);
        st = gr_tcp_listen(address, fd_out, bound_out);
    }
    gr_log_hold(NULL, 0);
    return st;
}

/* Bridges of this host: their addresses are the same on every host, and reach none. */
static bool is_bridge(const char *name)
{
    static const char *const starts[] = {"docker", "virbr", "br-", "veth", "cni", "flannel", "lxc"};
    for (size_t i = 0; i < GR_ARRAY_LEN(starts); i++) {
        if (strncmp(name, starts[i], strlen(starts[i])) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_link_local(const struct sockaddr *sa)
{
    if (sa->sa_family == AF_INET) {
        return (ntohl(((const struct sockaddr_in *)(const void *)sa)->sin_addr.s_addr) >> 16) == 0xa9fe;
    }
    return IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr);
}

static void address_text(const struct sockaddr *sa, int port, char text_out[64])
{
    char host[INET6_ADDRSTRLEN] = "";
    if (sa->sa_family == AF_INET) {
        (void)inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)sa)->sin_addr, host, sizeof(host));
    } else {
        (void)inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr, host, sizeof(host));
    }
    const char *plain = strncmp(host, "::ffff:", 7) == 0 && strchr(host, '.') != NULL ? host + 7 : host;
    snprintf(text_out, 64, strchr(plain, ':') != NULL ? "[%s]:%d" : "%s:%d", plain, port);
}

static void list_addresses(int port, bool with_v6, struct gr_job_note *note)
{
    struct ifaddrs *all = NULL;
    note->n_address = 0;
    if (getifaddrs(&all) != 0) {
        all = NULL;
    }
    for (const struct ifaddrs *a = all; a != NULL && note->n_address < GR_JOB_ADDRESS_MAX; a = a->ifa_next) {
        const int family = a->ifa_addr != NULL ? a->ifa_addr->sa_family : AF_UNSPEC;
        const bool usable = (family == AF_INET || (family == AF_INET6 && with_v6)) && (a->ifa_flags & IFF_UP) != 0 &&
                            (a->ifa_flags & IFF_LOOPBACK) == 0 && !is_bridge(a->ifa_name);
        if (usable && !is_link_local(a->ifa_addr)) {
            address_text(a->ifa_addr, port, note->address[note->n_address++]);
        }
    }
    freeifaddrs(all);
    if (note->n_address == 0) { /* this host is alone: only its own processes can come */
        snprintf(note->address[note->n_address++], sizeof(note->address[0]), "127.0.0.1:%d", port);
    }
}

static enum gr_status listen_at(unsigned port, int *fd_out, char bound_out[64])
{
    char text[16];
    snprintf(text, sizeof(text), "%u", port);
    return listen_any(text, fd_out, bound_out);
}

static enum gr_status listen_told(const struct gr_where *w, int *fd_out, char bound_out[64], struct gr_job_note *note)
{
    struct gr_address a;
    char local[32];
    if (w->one_host) {
        snprintf(local, sizeof(local), "127.0.0.1:%s", w->ports);
        GR_TRY(gr_tcp_listen(local, fd_out, bound_out));
        snprintf(note->address[0], sizeof(note->address[0]), "%s", bound_out);
        note->n_address = 1;
        return GR_OK;
    }
    if (listen_any(w->ports, fd_out, bound_out) != GR_OK) {
        log_error("cannot listen at any address of this host, port %s (0: any): %s", w->ports, strerror(errno));
        return GR_EIO;
    }
    GR_TRY(gr_address_parse("rendezvous", bound_out, 1, &a));
    list_addresses(a.port, strchr(a.host, ':') != NULL, note);
    return GR_OK;
}

static enum gr_status listen_named(const char *address, int *fd_out, char bound_out[64])
{
    struct gr_address a;
    GR_TRY(gr_address_parse("--rendezvous", address, 1, &a));
    if (is_loopback(a.host)) {
        return gr_tcp_listen(address, fd_out, bound_out);
    }
    if (listen_at(a.port, fd_out, bound_out) != GR_OK) {
        log_error("--rendezvous %s: cannot listen on port %u: it is in use (`ss -ltnp sport = %u' tells by whom)",
                  address, a.port, a.port);
        return GR_EIO;
    }
    return GR_OK;
}

enum gr_status gr_where_listen(const struct gr_where *w, const struct gr_who *who, int *fd_out, char bound_out[64],
                               struct gr_job_note *note)
{
    struct gr_address a;
    if (w->dir[0] != '\0') {
        return listen_told(w, fd_out, bound_out, note);
    }
    if (w->named) {
        return listen_named(w->address[0], fd_out, bound_out);
    }
    if (who->first[0] != '\0' && strcmp(who->first, who->host) != 0) {
        log_error("rank 0 is on host %s, and the others look for it on the step's first node, %s; give --rendezvous "
                  "HOST:PORT, or --job-dir DIR",
                  who->host, who->first);
        return GR_EINVAL;
    }
    for (int i = 0; i < w->n_address; i++) {
        GR_TRY(gr_address_parse("rendezvous", w->address[i], 1, &a));
        if (listen_at(a.port, fd_out, bound_out) == GR_OK) {
            return GR_OK;
        }
    }
    log_error("ports %s and the %d after it are all in use; give --rendezvous HOST:PORT", w->address[0],
              w->n_address - 1);
    return GR_EIO;
}

void gr_where_end(int fd, bool peer, int port, char text_out[64])
{
    struct sockaddr_storage sa = {.ss_family = AF_INET};
    socklen_t len = sizeof(sa);
    if ((peer ? getpeername(fd, (struct sockaddr *)&sa, &len) : getsockname(fd, (struct sockaddr *)&sa, &len)) != 0) {
        snprintf(text_out, 64, "127.0.0.1:%d", port);
        return;
    }
    address_text((const struct sockaddr *)&sa, port, text_out);
}

void gr_where_own(const struct gr_where *w, int fd, char text_out[64])
{
    char end[64];
    gr_where_end(fd, false, 0, end);
    snprintf(text_out, 64, "%.*s:%s", (int)GR_MIN((size_t)(strrchr(end, ':') - end), (size_t)46), end, w->ports);
}

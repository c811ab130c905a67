/* Sockets that listen, and addresses as text. */
#include "transport/net.h"

#include "common/base/address.h"
#include "common/base/log.h"
#include "transport/own.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Connections that may wait to be accepted while the loop is at other work: key-holders wait among strangers. */
#define LISTEN_BACKLOG 1024

/* ---- text ---- */

static void plain_ipv4(struct sockaddr_storage *a)
{
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)a;
    if (a->ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) {
        return;
    }
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = six->sin6_port};
    memcpy(&four.sin_addr, six->sin6_addr.s6_addr + 12, 4);
    memset(a, 0, sizeof(*a));
    memcpy(a, &four, sizeof(four));
}

static void spell(const struct sockaddr_storage *from, char host[48], char port[8])
{
    struct sockaddr_storage a = *from;
    plain_ipv4(&a);
    const socklen_t len = a.ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    snprintf(host, 48, "?");
    snprintf(port, 8, "?");
    if (a.ss_family == AF_INET || a.ss_family == AF_INET6) {
        (void)getnameinfo((struct sockaddr *)&a, len, host, 48, port, 8, NI_NUMERICHOST | NI_NUMERICSERV);
    }
}

void gr_sockaddr_text(const struct sockaddr_storage *a, char out[64])
{
    char host[48], port[8];
    spell(a, host, port);
    snprintf(out, 64, strchr(host, ':') != NULL ? "[%s]:%s" : "%s:%s", host, port);
}

void gr_sockaddr_host(const struct sockaddr_storage *a, char out[64])
{
    char host[48], port[8];
    spell(a, host, port);
    snprintf(out, 64, "%s", host);
}

void gr_sock_own_text(int fd, char out[64])
{
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof(a);
    (void)getsockname(fd, (struct sockaddr *)&a, &len);
    gr_sockaddr_text(&a, out);
}

void gr_sock_peer_text(int fd, char out[64])
{
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof(a);
    (void)getpeername(fd, (struct sockaddr *)&a, &len);
    gr_sockaddr_text(&a, out);
}

/* ---- listening ---- */

static bool is_any(const struct gr_address *a)
{
    return a->host[0] == '\0' || strcmp(a->host, "*") == 0;
}

/* 0 or an errno. An IPv6 socket at any address takes IPv4 as well. */
static int listen_at(int family, const struct sockaddr *sa, socklen_t len, int *fd_out)
{
    const int on = 1, off = 0;
    const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return errno;
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (family == AF_INET6) {
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    }
    if (bind(fd, sa, len) < 0 || listen(fd, LISTEN_BACKLOG) < 0) {
        const int err = errno;
        close(fd);
        return err;
    }
    *fd_out = fd;
    return 0;
}

/* Both families where the kernel has both. */
static int listen_any(uint16_t port, int *fd_out)
{
    const struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_any};
    const struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = INADDR_ANY};
    const int err = listen_at(AF_INET6, (const struct sockaddr *)&six, sizeof(six), fd_out);
    if (err != EAFNOSUPPORT && err != EADDRNOTAVAIL) {
        return err;
    }
    return listen_at(AF_INET, (const struct sockaddr *)&four, sizeof(four), fd_out);
}

static int listen_list(const struct addrinfo *list, uint16_t port, int *fd_out)
{
    int err = EADDRNOTAVAIL;
    for (const struct addrinfo *a = list; a != NULL && err != 0; a = a->ai_next) {
        struct sockaddr_storage sa = {0};
        memcpy(&sa, a->ai_addr, a->ai_addrlen);
        if (a->ai_family == AF_INET6) {
            ((struct sockaddr_in6 *)&sa)->sin6_port = htons(port);
        } else {
            ((struct sockaddr_in *)&sa)->sin_port = htons(port);
        }
        err = listen_at(a->ai_family, (struct sockaddr *)&sa, a->ai_addrlen, fd_out);
    }
    return err;
}

static enum gr_status listen_failed(const char *address, const struct gr_address *a, int err)
{
    if (err == EADDRINUSE && a->port != a->port_last) {
        log_error("cannot listen on %s: none of these ports is free: `ss -ltn' lists those in use", address);
    } else if (err == EADDRINUSE) {
        log_error("cannot listen on %s: port in use, perhaps by another job or an earlier one: `ss -ltnp sport = :%u' "
                  "tells by whom; stop it or choose another port (0: any; FIRST-LAST: a free one of these)",
                  address, a->port);
    } else {
        log_error("cannot listen on %s: %s", address, strerror(err));
    }
    return GR_EIO;
}

static enum gr_status resolve_own(const char *address, const struct gr_address *a, struct addrinfo **list_out)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    const int err = getaddrinfo(a->host, NULL, &hints, list_out);
    if (err != 0) {
        log_error("cannot resolve `%s': %s", address, gai_strerror(err));
        return GR_ENOTFOUND;
    }
    return GR_OK;
}

enum gr_status gr_tcp_listen(const char *address, int *fd_out, char bound_out[64])
{
    struct gr_address a;
    struct addrinfo *list = NULL;
    int fd = -1, err = EADDRINUSE;
    GR_TRY(gr_address_parse("cannot listen", address, 0, &a));
    if (!is_any(&a)) {
        GR_TRY(resolve_own(address, &a, &list));
    }
    for (uint32_t port = a.port; port <= a.port_last && err == EADDRINUSE; port++) {
        err = list == NULL ? listen_any((uint16_t)port, &fd) : listen_list(list, (uint16_t)port, &fd);
    }
    if (list != NULL) {
        freeaddrinfo(list);
    }
    if (err != 0) {
        return listen_failed(address, &a, err);
    }
    gr_sock_own_text(fd, bound_out);
    *fd_out = fd;
    return GR_OK;
}

/* ---- several addresses, one port ---- */

#define PORT_TRIES 16 /* ports of the system's choice that another address may have taken */

static uint16_t port_of(int fd)
{
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof(sa);
    (void)getsockname(fd, (struct sockaddr *)&sa, &len);
    return ntohs(sa.ss_family == AF_INET ? ((const struct sockaddr_in *)&sa)->sin_port
                                         : ((const struct sockaddr_in6 *)&sa)->sin6_port);
}

void gr_listening_close(struct gr_listening *l)
{
    for (int i = 0; i < l->n; i++) {
        close(l->fd[i]);
    }
    l->n = 0;
}

/* 0 or an errno. */
static int listen_each(const struct gr_interface_chosen *c, uint16_t port, struct gr_listening *out)
{
    for (int i = 0; i < c->n; i++) {
        struct sockaddr_storage sa;
        const socklen_t len = gr_ip_sockaddr(&c->at[i].ip, port, &sa);
        const int err = listen_at(sa.ss_family, (const struct sockaddr *)&sa, len, &out->fd[i]);
        if (err != 0) {
            gr_listening_close(out);
            return err;
        }
        out->n++;
        port = port_of(out->fd[i]);
    }
    return 0;
}

static enum gr_status listen_chosen(const char *address, const struct gr_address *a, struct gr_listening *out)
{
    struct gr_interface_chosen c;
    char text[GR_INTERFACE_LINE], where[GR_INTERFACE_LINE + 320];
    int err = EADDRINUSE;
    GR_TRY(gr_own_choose(&c));
    for (int i = 0; a->port == 0 && i < PORT_TRIES && err == EADDRINUSE; i++) {
        err = listen_each(&c, 0, out);
    }
    for (uint32_t port = a->port; port != 0 && port <= a->port_last && err == EADDRINUSE; port++) {
        err = listen_each(&c, (uint16_t)port, out);
    }
    gr_interface_text(&c, text);
    snprintf(where, sizeof(where), "%s of %s", address, text);
    return err == 0 ? GR_OK : listen_failed(where, a, err);
}

enum gr_status gr_tcp_listen_own(const char *address, struct gr_listening *out)
{
    struct gr_address a;
    *out = (struct gr_listening){.n = 0};
    GR_TRY(gr_address_parse("cannot listen", address, 0, &a));
    if (gr_own_is_told() && is_any(&a)) {
        GR_TRY(listen_chosen(address, &a, out));
        gr_sock_own_text(out->fd[0], out->bound);
        return GR_OK;
    }
    GR_TRY(gr_tcp_listen(address, &out->fd[0], out->bound));
    out->n = 1;
    return GR_OK;
}

enum gr_status gr_tcp_accept(int listen_fd, int *fd_out)
{
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) {
        /* The one who connected is gone again, or nobody is there (non-blocking listener). */
        if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED || errno == EPROTO) {
            return GR_AGAIN;
        }
        return GR_EIO;
    }
    gr_sock_tune(fd);
    *fd_out = fd;
    return GR_OK;
}

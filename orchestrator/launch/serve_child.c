#include "orchestrator/launch/serve_child.h"

#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/process/child_args.h"
#include "common/process/program.h"
#include "transport/connect/reach.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct gr_child_rule rule = {.restart = {.pause_max_ns = 5 * GR_S}, .status_0_ends = true};

/* write_fd_out: the orchestrator inherits it. */
static enum gr_status open_ready(struct gr_serve_child *s, int *write_fd_out)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) {
        log_error("pipe: %s", strerror(errno));
        return GR_EIO;
    }
    s->ready_fd = fds[0];
    *write_fd_out = fds[1];
    (void)fcntl(fds[0], F_SETFL, O_NONBLOCK);
    (void)fcntl(fds[1], F_SETFD, 0);
    return GR_OK;
}

/* What `graft serve' takes of what was asked for; the rest is the workers'. It is told of the model where the job is to
 * have an endpoint. */
static bool is_for_serve(const struct gr_options *o, const struct gr_option *r)
{
    const ptrdiff_t id = r - gr_option_rows;
    if (id == GR_OPTION_model) { /* one [NAME=]PATH of those that it can serve */
        return o->http != NULL;
    }
    if (o->http == NULL && id == GR_OPTION_http) {
        return false;
    }
    return gr_option_is_for(r, GR_CMD_SERVE) && gr_option_is_for(r, GR_CMD_LAUNCH) &&
           (r->refused & GR_WITHOUT_SPAWN) == 0 && r->kind != GR_KIND_WORKERS && id != GR_OPTION_control &&
           id != GR_OPTION_config && id != GR_OPTION_key_file;
}

static void add_option(struct gr_worker_line *l, const struct gr_options *o, const struct gr_option *r)
{
    const char *value = gr_option_text(&o->values, r, l->value[l->n]);
    char *name = l->name[l->n];
    if (value == NULL) {
        return;
    }
    snprintf(name, sizeof(l->name[0]), "--%s", r->name);
    if (r->kind == GR_KIND_FLAG) {
        gr_child_args_add_flag(&l->args, name, strcmp(value, "true") == 0);
    } else {
        gr_child_args_add(&l->args, name, value);
    }
    l->n++;
}

void gr_serve_child_line(struct gr_job *j, const char *control, struct gr_worker_line *line)
{
    line->n = 0;
    gr_child_args_begin(&line->args, gr_program_sibling("graft"));
    gr_child_args_add_flag(&line->args, "serve", true);
    gr_child_args_add(&line->args, "--control", control);
    for (int i = 0; i < GR_N_OPTION; i++) {
        if (j->o.values.source[i] != GR_FROM_DEFAULT && is_for_serve(&j->o, &gr_option_rows[i])) {
            add_option(line, &j->o, &gr_option_rows[i]);
        }
    }
}

enum gr_status gr_serve_child_start(struct gr_job *j, struct gr_serve_child *s)
{
    static struct gr_worker_line line;
    char ready[32];
    int write_fd = -1;
    GR_TRY(open_ready(s, &write_fd));
    snprintf(ready, sizeof(ready), "/dev/fd/%d", write_fd);
    gr_serve_child_line(j, s->control, &line);
    gr_child_args_add(&line.args, "--ready-file", ready);
    gr_options_clear_environment();
    return gr_children_start(&j->children, "orchestrator", line.args.argv, &rule, &j->child);
}

/* host:port of s->control with the port that it has. */
static void with_port(const struct gr_serve_child *s, char *text, size_t text_bytes)
{
    const int host_len = (int)(gr_address_port_of(s->control) - s->control);
    snprintf(text, text_bytes, "%.*s:%d", host_len, s->control, s->port);
}

/* Without a host it listens at --interface, and not on loopback. */
static void find_connect(struct gr_serve_child *s)
{
    if (s->control[0] == ':') {
        snprintf(s->connect, sizeof(s->connect), "%.*s", (int)GR_MIN(strcspn(s->reach, ","), sizeof(s->connect) - 1),
                 s->reach);
    } else if (gr_reach_is_any(s->control)) {
        snprintf(s->connect, sizeof(s->connect), "127.0.0.1:%d", s->port);
    } else {
        with_port(s, s->connect, sizeof(s->connect));
    }
}

static void keep_port(struct gr_job *j, const struct gr_serve_child *s)
{
    struct gr_child *k = &j->children.child[j->child];
    char address[GR_WHERE_CONTROL_BYTES];
    with_port(s, address, sizeof(address));
    for (int i = 0; k->argv[i] != NULL; i++) {
        char *copy = strcmp(k->argv[i], s->control) == 0 ? strdup(address) : NULL;
        if (copy != NULL) {
            free(k->argv[i]);
            k->argv[i] = copy;
            return;
        }
    }
}

bool gr_serve_child_is_ready(struct gr_job *j, struct gr_serve_child *s)
{
    char text[GR_REACH_BYTES];
    int64_t port = 0;
    const ssize_t n = read(s->ready_fd, text, sizeof(text) - 1);
    if (n <= 0 || s->port != 0) {
        return false;
    }
    text[n] = '\0';
    text[strcspn(text, "\n")] = '\0';
    const char *colon = gr_address_port_of(text); /* of several addresses all have one port */
    if (colon == NULL || !gr_parse_int(colon + 1, 1, GR_PORT_MAX, &port)) {
        log_error("the orchestrator's address, `%.200s', has no port", text);
        return false;
    }
    s->port = (int)port;
    snprintf(s->reach, sizeof(s->reach), "%s", text);
    find_connect(s);
    keep_port(j, s);
    return true;
}

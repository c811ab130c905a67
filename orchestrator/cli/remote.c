#include "orchestrator/cli/remote.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/out_guard.h"
#include "common/process/program.h"
#include "transport/connect/cluster.h"
#include "transport/connect/secrecy.h"
#include "transport/connect/control.h"
#include "transport/connect/greet.h"
#include "transport/net.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define HELLO_TIMEOUT_MS 10000  /* for the connection and the proof of the key */
#define ANSWER_TIMEOUT_MS 30000 /* for the answer to one message */
#define HEARTBEAT_MS 5000       /* of silence, after which who waits for ever asks whether anybody is there */
#define HEARTBEATS 3            /* questions that may stay without an answer */

enum gr_status gr_remote_key(const struct gr_options *o, uint8_t key_out[GR_KEY_BYTES])
{
    const char *variable = getenv("GRAFT_KEY");
    const bool from_yaml =
        o->key_file != NULL && !gr_option_from_cli(o, GR_OPTION_key_file) && getenv("GRAFT_KEY_FILE") == NULL;
    if (o->key_file != NULL && !(from_yaml && variable != NULL && variable[0] != '\0')) {
        return gr_key_from_file(o->key_file, key_out);
    }
    const enum gr_status st = gr_key_from_env(key_out);
    if (st == GR_ENOTFOUND) {
        log_error("no shared key: make one with `graft serve --make-key F', then give all sides --key-file F, "
                  "GRAFT_KEY_FILE=F or orchestrator.key_file");
    }
    return st;
}

static enum gr_status describe(const struct gr_options *o, struct gr_hello *out)
{
    gr_hello_for_messages(GR_ROLE_CLIENT, out);
    out->secrecy = (uint32_t)o->control_encryption;
    return gr_cluster_name(false, out->cluster);
}

static int watch_signals(void)
{
    const sigset_t set = gr_program_endings();
    sigprocmask(SIG_BLOCK, &set, NULL);
    if (gr_out_guard(&set) != GR_OK) {
        return -1;
    }
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

enum gr_status gr_remote_open(const struct gr_options *o, struct gr_remote_patience p, struct gr_remote *out)
{
    struct gr_remote r = {.address = o->connect != NULL ? o->connect : o->control, .signal_fd = -1};
    uint8_t key[GR_KEY_BYTES];
    int fd = -1;
    gr_cluster_use(o->cluster);
    gr_secrecy_use(o->control_encryption);
    GR_TRY(gr_remote_key(o, key)); /* before anybody is called */
    struct gr_hello self, peer;
    GR_TRY(describe(o, &self));
    const struct gr_greeting g = {
        .address = r.address, .self = &self, .key = key, .timeout_ms = HELLO_TIMEOUT_MS, .within_ms = p.within_ms};
    GR_TRY(gr_greet_as_client(&g, p.listen_ms, &fd, &peer));
    const enum gr_status st = gr_control_create(fd, &peer.keys, &r.control);
    if (st != GR_OK) {
        close(fd);
        return st;
    }
    r.signal_fd = watch_signals();
    if (r.signal_fd < 0) {
        log_error("signalfd: %s", strerror(errno));
        gr_control_destroy(r.control);
        return GR_EIO;
    }
    *out = r;
    return GR_OK;
}

void gr_remote_close(struct gr_remote *r)
{
    gr_control_destroy(r->control);
    if (r->signal_fd >= 0) {
        close(r->signal_fd);
    }
    *r = (struct gr_remote){.signal_fd = -1};
}

int gr_remote_status(const struct gr_remote *r, enum gr_status st)
{
    if (st == GR_ECANCELED) {
        log_error("interrupted");
        return GR_EXIT_SIGNAL + r->signal_number;
    }
    return st == GR_OK ? 0 : 1; /* what the far end does not like is no usage error */
}

/* how: in which way it is gone. */
static enum gr_status gone(struct gr_remote *r, const char *how)
{
    const bool in_turn = r->turns[0] != '\0';
    log_error("the orchestrator at %s %s%s%s%s", r->address, how, in_turn ? "; the turn was in session " : "", r->turns,
              in_turn ? ", whose answer `graft session show ID --text' shows where a journal has kept it" : "");
    r->gone = true;
    return GR_ECLOSED;
}

enum gr_status gr_remote_send(struct gr_remote *r, const struct gr_msg *m)
{
    const enum gr_status st = gr_control_send(r->control, m);
    if (st == GR_ECLOSED || (st == GR_OK && gr_control_flush(r->control) == GR_ECLOSED)) {
        return gone(r, "is gone");
    }
    return st;
}

/* Who waits for ever asks now and then whether anybody is there, who answers at once. */
static enum gr_status recv_for_ever(struct gr_remote *r, struct gr_msg *out)
{
    for (int n_asked = 0;; n_asked++) {
        const enum gr_status st = gr_remote_recv(r, HEARTBEAT_MS, out);
        if (st != GR_AGAIN) {
            return st;
        }
        if (n_asked == HEARTBEATS) {
            char how[96];
            snprintf(how, sizeof(how), "has not answered for %d s: it hangs, or the way to it is cut",
                     (HEARTBEATS + 1) * HEARTBEAT_MS / 1000);
            return gone(r, how);
        }
        GR_TRY(gr_remote_send(r, &(struct gr_msg){.type = GR_MSG_PING}));
    }
}

enum gr_status gr_remote_recv(struct gr_remote *r, int timeout_ms, struct gr_msg *out)
{
    if (timeout_ms < 0) {
        return recv_for_ever(r, out);
    }
    const enum gr_status st = gr_remote_recv_until_end(r, timeout_ms, out);
    return st == GR_ECLOSED ? gone(r, "is gone") : st;
}

enum gr_status gr_remote_recv_until_end(struct gr_remote *r, int timeout_ms, struct gr_msg *out)
{
    const uint64_t end_ns = gr_clock_ns() + (uint64_t)timeout_ms * GR_MS;
    for (;;) {
        const enum gr_status st = gr_control_recv(r->control, out);
        if (st != GR_AGAIN) {
            return st;
        }
        if (gr_control_flush(r->control) == GR_ECLOSED) {
            return GR_ECLOSED;
        }
        const uint64_t now_ns = gr_clock_ns();
        if (now_ns >= end_ns) {
            return GR_AGAIN;
        }
        struct pollfd fds[2] = {{.fd = gr_control_fd(r->control), .events = gr_control_events(r->control)},
                                {.fd = r->signal_fd, .events = POLLIN}};
        (void)poll(fds, 2, (int)((end_ns - now_ns) / GR_MS) + 1);
        struct signalfd_siginfo info;
        if ((fds[1].revents & POLLIN) != 0 && read(r->signal_fd, &info, sizeof(info)) > 0) {
            r->signal_number = (int)info.ssi_signo;
            gr_out_hurry(r->signal_number);
            return GR_ECANCELED;
        }
    }
}

enum gr_status gr_remote_ask(struct gr_remote *r, const struct gr_msg *m, enum gr_msg_type want, struct gr_msg *out)
{
    struct gr_msg answer;
    GR_TRY(gr_remote_send(r, m));
    enum gr_status st = gr_remote_recv(r, ANSWER_TIMEOUT_MS, &answer);
    if (st != GR_OK) {
        if (st == GR_AGAIN) {
            log_error("the orchestrator at %s has not answered %s within %d s", r->address, gr_msg_name(m->type),
                      ANSWER_TIMEOUT_MS / 1000);
        }
        return st == GR_AGAIN ? GR_ETIMEDOUT : st;
    }
    if (answer.type == want) {
        *out = answer;
        return GR_OK;
    }
    if (answer.type == GR_MSG_ERROR) {
        log_error("%s", answer.error.text);
        st = GR_EINVAL;
    } else {
        log_error("the orchestrator at %s answered %s with %s", r->address, gr_msg_name(m->type),
                  gr_msg_name(answer.type));
        st = GR_EPROTO;
    }
    gr_msg_finish(&answer);
    return st;
}

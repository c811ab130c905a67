/* A rank other than 0: finds rank 0, says hello, runs its worker, and ends with the job. */
#include "orchestrator/launch/job.h"

#include "common/base/clock.h"
#include "common/base/device.h"
#include "common/base/log.h"
#include "common/process/given_listener.h"
#include "common/process/program.h"
#include "orchestrator/launch/link.h"
#include "transport/connect/reach.h"
#include "transport/net.h"
#include "transport/pause.h"

#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CONNECT_MS 2000     /* one attempt at one address; at most an eighth of --grace, as no signal is heard in it */
#define HELLO_MS 5000       /* HELLO, proof; at most a quarter of --grace */
#define TELL_NS (30 * GR_S) /* between lines about a rank 0 that is not found */
#define PAUSE_MS_MIN 50u    /* between attempts to find rank 0 */
#define PAUSE_MS_MAX 1000u
#define REFUSED_MAX 5        /* refused attempts in a row to find rank 0 again: its process is gone */
#define AWAY_NS (600 * GR_S) /* so long rank 0 may be out of reach while the worker goes on */
#define UNFIT_NS (10 * GR_S) /* so long a rank that cannot work looks for rank 0, to say so */
#define WORD_NS (3 * GR_S)   /* so long one that was told to end looks for it, to hand the signal on */
#define TWIN_NS (2 * GR_S)   /* so long a process that is rank 0, too, has time to say so */
#define SERVED_OUT_MS 2000   /* after the job's end: the worker is told by the orchestrator, too */
#define END_MS 8000          /* so long a worker may take to end, unless --grace leaves it less */

static const struct gr_child_rule rule = {.restart = {.pause_max_ns = 30 * GR_S}, .status_0_ends = true};

struct follow {
    struct gr_job *j;
    struct gr_link link;
    json_t *hello;
    int user_fd;
    int group_fd;               /* who leads a group: where the others of it come; its worker inherits it. -1: none */
    char group_bound[64];       /* its address */
    char group[GR_REACH_BYTES]; /* the same as others are told, or were told */
    bool asked, again;          /* a signal asked this rank to end; a second one */
    bool handed_on;             /* rank 0 was told of it */
    bool alone;                 /* rank 0 cannot be told: this rank's worker ends without the others */
    int signal_number;          /* of the first signal */
    uint64_t word_end_ns;       /* until then rank 0 is looked for to tell it of the signal; 0: for its job */
    bool told_up, up, ended, child_done;
    int status;         /* of this process, once it is over */
    uint64_t signal_ns; /* when a signal asked for the first time; 0: none has */
    uint64_t stop_ns;   /* when the worker is told to end by a signal; UINT64_MAX: not */
    uint64_t end_ns;    /* when --grace is over, which began with a signal here or at rank 0; UINT64_MAX: it has not */
    uint64_t away_ns;   /* since when rank 0 is out of reach; 0: it is not */
    int n_refused;
    bool is_twin; /* rank 0, which looks for another one: its signals are not read here */
};

/* ---- signals ---- */

/* Rank 0 ends the job in order. A worker that runs while rank 0 is out of reach ends alone; before it runs, this rank
 * looks for rank 0 (tell_signal()). */
static void hand_signal_on(struct follow *f, int signal_number)
{
    const bool told =
        gr_link_is_open(&f->link) && gr_link_send(&f->link, json_pack("{s:s, s:i, s:b}", "type", "signal", "number",
                                                                      signal_number, "again", f->again)) == GR_OK;
    f->handed_on = f->handed_on || told;
    f->alone = f->alone || (!told && f->j->child >= 0);
}

/* --grace is all the time there is, also where rank 0 does not say the end. */
static void bound_end(struct follow *f)
{
    const uint64_t grace_ns = (uint64_t)f->j->o.grace;
    f->end_ns = GR_MIN(f->end_ns, f->signal_ns + grace_ns);
    f->stop_ns = GR_MIN(f->stop_ns, f->end_ns - GR_MIN(grace_ns, END_MS * GR_MS) / 4);
}

/* How long the worker may take to end by itself; a rest is kept to see it killed. */
static int end_ms(const struct follow *f)
{
    return f->again ? 0 : GR_MIN(END_MS, gr_ms_left(f->end_ns, gr_clock_ns()) / 4 * 3);
}

static void take_signals(struct follow *f)
{
    int signal_number = 0, index = -1;
    const enum gr_child_event e = gr_children_poll(&f->j->children, &signal_number, &index);
    const int handed_on = gr_job_user_signal(&signal_number);
    if (handed_on != 0) {
        gr_children_signal(&f->j->children, handed_on);
    }
    if (signal_number != 0) {
        f->again = gr_job_signal_again(&f->signal_ns, gr_clock_ns()) || f->again;
        f->signal_number = f->asked ? f->signal_number : signal_number;
        f->asked = true;
        hand_signal_on(f, signal_number);
        bound_end(f);
    }
    if (e == GR_CHILD_ENDED || e == GR_CHILD_GIVEN_UP) {
        f->child_done = true;
        const int status = f->j->children.child[index].exit_status;
        f->status = e == GR_CHILD_ENDED ? status : GR_MAX(status, 1);
    }
}

/* Is looking for rank 0 over? */
static bool is_called_off(const struct follow *f)
{
    return f->again || f->alone || (f->asked && f->j->child < 0 && gr_clock_ns() >= f->word_end_ns);
}

/* Between attempts: is there a signal to be read, or something that was read before? */
static bool is_disturbed(const struct follow *f)
{
    struct pollfd p = {.fd = f->j->children.signal_fd, .events = POLLIN};
    return !f->is_twin && (is_called_off(f) || poll(&p, 1, 0) > 0);
}

/* ---- the group that this rank leads ---- */

/* Our end of the link, or any address where that is for this host alone. */
static void where_others_come(const struct follow *f, int fd, char out[64])
{
    gr_where_own(&f->j->where, fd, out);
    if (gr_reach_is_loopback(out)) {
        snprintf(out, 64, "*:%s", f->j->where.ports);
    }
}

/* The listener outlives the workers, so that its port is told once. */
static enum gr_status announce_group(struct follow *f, int fd)
{
    const struct gr_launch_rank *own = &f->j->roles.rank[f->j->who.rank];
    char address[64];
    if (own->group == 0 || own->member > 0) {
        return GR_OK;
    }
    if (f->group_fd < 0) {
        where_others_come(f, fd, address);
        GR_TRY(gr_tcp_listen(address, &f->group_fd, f->group_bound));
    }
    struct gr_listening at = {.fd = {f->group_fd}, .n = 1};
    snprintf(at.bound, sizeof(at.bound), "%s", f->group_bound);
    gr_reach_list(&at, fd, f->group);
    return json_object_set_new(f->hello, "group", json_string(f->group)) == 0 ? GR_OK : GR_ENOMEM;
}

/* ---- one attempt ---- */

/* Of an attempt, in which no signal is heard: a part of --grace, or a tenth of most_ms where that part is very short.
 * An attempt to hand a signal on does not last longer than that may take. */
static int bounded_ms(const struct follow *f, int most_ms, int part)
{
    const int grace_ms = (int)GR_MIN(f->j->o.grace / (int64_t)GR_MS, (int64_t)INT32_MAX);
    const int ms = GR_MIN(most_ms, GR_MAX(grace_ms / part, most_ms / 10));
    return GR_MAX(f->word_end_ns != 0 ? GR_MIN(ms, gr_ms_left(f->word_end_ns, gr_clock_ns())) : ms, 1);
}

/* GR_OK: connected and proven. GR_EIO: nobody listens there. */
static enum gr_status try_address(struct follow *f, const char *address, const uint8_t *key)
{
    struct gr_hello self, peer;
    int fd = -1;
    GR_TRY(gr_tcp_connect(address, bounded_ms(f, CONNECT_MS, 8), &fd));
    gr_job_self(f->j, GR_ROLE_RANK, &self);
    enum gr_status st = gr_hello_exchange(fd, &self, key, bounded_ms(f, HELLO_MS, 4), &peer);
    if (st != GR_OK) {
        close(fd);
        return st;
    }
    GR_TRY(gr_link_open(&f->link, fd));
    st = announce_group(f, fd);
    st = st != GR_OK ? st : gr_link_send(&f->link, json_incref(f->hello));
    if (st != GR_OK) {
        gr_link_close(&f->link);
    }
    return st;
}

static enum gr_status try_note(struct follow *f, const struct gr_job_note *note)
{
    enum gr_status st = GR_ENOTFOUND;
    if (!note->has_key && !f->j->with_key) {
        log_error("rank 0 was given a key, and this rank was not");
        return GR_EAUTH;
    }
    for (int i = 0; i < note->n_address && st != GR_OK; i++) {
        st = is_disturbed(f) ? GR_ECANCELED : try_address(f, note->address[i], note->has_key ? note->key : f->j->key);
        if (st == GR_ECANCELED) {
            return st;
        }
    }
    if (st == GR_OK && note->has_key) {
        memcpy(f->j->key, note->key, sizeof(f->j->key)); /* the worker's, too */
    }
    return st;
}

/* GR_EUNSUPPORTED: it will never bring rank 0's note. */
static enum gr_status try_channel(struct follow *f)
{
    GR_TRY(gr_channel_hear(&f->j->channel, &f->j->who));
    const enum gr_status st = try_note(f, &f->j->channel.note);
    return st == GR_EAUTH && !f->j->channel.note.has_key && !f->j->with_key ? GR_EUNSUPPORTED : st;
}

/* Every place once. GR_ENOTFOUND: no place is known yet. GR_ECANCELED: a signal came first. */
static enum gr_status try_all(struct follow *f)
{
    static struct gr_job_note notes[GR_JOB_NOTE_MAX];
    const struct gr_where *w = &f->j->where;
    enum gr_status st = GR_ENOTFOUND;
    if (w->by != GR_CHANNEL_NOT) {
        return try_channel(f);
    }
    if (w->dir[0] == '\0') {
        for (int i = 0; i < w->n_address && st != GR_OK && st != GR_ECANCELED; i++) {
            st = is_disturbed(f) ? GR_ECANCELED : try_address(f, w->address[i], f->j->key);
        }
        return st;
    }
    const int n = gr_job_dir_read(w->dir, f->j->who.job, notes);
    for (int i = 0; i < n && st != GR_OK && st != GR_ECANCELED; i++) {
        st = try_note(f, &notes[i]);
    }
    return st;
}

static void rest(struct follow *f, int ms)
{
    struct pollfd p[] = {{.fd = f->j->children.signal_fd, .events = POLLIN},
                         {.fd = f->user_fd, .events = POLLIN},
                         {.fd = f->j->channel.fd, .events = POLLIN}};
    (void)poll(p, GR_ARRAY_LEN(p), ms);
    take_signals(f);
}

static void say_waiting(const struct follow *f, enum gr_log_level level, uint64_t since_ns, const char *why)
{
    gr_log_line(level, "rank %d on host %s has not found rank 0 for %d s, at %s%s%s%s", f->j->who.rank, f->j->who.host,
                (int)((gr_clock_ns() - since_ns) / GR_S), gr_where_text(&f->j->where), why[0] != '\0' ? ": " : "", why,
                level == GR_LOG_ERROR ? "; ending" : "");
}

/* Until somebody has proven the key. An address that is named belongs to this job, so that another key is a mistake;
 * elsewhere it may be another job's, which goes away. */
static enum gr_status find_lead(struct follow *f, uint64_t end_ns)
{
    const uint64_t begin_ns = gr_clock_ns();
    uint64_t tell_ns = begin_ns + TELL_NS;
    for (uint32_t n = 0;; n++) {
        char why[400] = "";
        gr_log_hold(why, sizeof(why));
        const enum gr_status st = try_all(f);
        gr_log_hold(NULL, 0);
        if (st == GR_OK) {
            return st;
        }
        if (st == GR_EUNSUPPORTED || ((st == GR_EAUTH || st == GR_EMISMATCH) && f->j->where.named)) {
            log_error("rank %d on host %s: rank 0 at %s: %s", f->j->who.rank, f->j->who.host,
                      gr_where_text(&f->j->where), why);
            return st;
        }
        if (gr_clock_ns() >= end_ns) {
            say_waiting(f, GR_LOG_ERROR, begin_ns, why);
            return GR_ETIMEDOUT;
        }
        if (gr_clock_ns() >= tell_ns) {
            say_waiting(f, GR_LOG_WARN, begin_ns, why);
            tell_ns += TELL_NS;
        }
        rest(f, (int)gr_pause_ms(n, PAUSE_MS_MIN, PAUSE_MS_MAX));
        if (is_called_off(f)) {
            return GR_ECANCELED;
        }
    }
}

/* ---- the answer ---- */

static enum gr_status refused(struct follow *f, const json_t *answer)
{
    const char *why = json_string_value(json_object_get(answer, "why"));
    gr_link_close(&f->link);
    if (json_is_true(json_object_get(answer, "other_job"))) {
        return GR_AGAIN;
    }
    log_error("rank %d on host %s: rank 0 says: %s", f->j->who.rank, f->j->who.host, why != NULL ? why : "no");
    return GR_EMISMATCH;
}

/* Two processes that both take themselves for rank 0 would each wait for ranks that the other one has. */
enum gr_status gr_job_meet_twin(struct gr_job *j)
{
    struct follow f = {.j = j, .link = {.fd = -1}, .user_fd = -1, .group_fd = -1, .is_twin = true};
    const uint64_t end_ns = gr_clock_ns() + TWIN_NS;
    char unheard[400];
    json_t *answer = NULL;
    if (j->where.named || j->where.by != GR_CHANNEL_NOT) {
        return GR_OK; /* it cannot listen at that port as well; a launcher has one rank 0 */
    }
    f.hello = gr_launch_hello(&j->who, &j->self, json_incref(j->facts));
    gr_log_hold(unheard, sizeof(unheard)); /* mostly nobody is there */
    enum gr_status st = f.hello != NULL ? try_all(&f) : GR_ENOMEM;
    while (st == GR_OK && (st = gr_link_recv(&f.link, &answer)) == GR_AGAIN && gr_clock_ns() < end_ns) {
        struct pollfd p = {.fd = f.link.fd, .events = POLLIN};
        (void)poll(&p, 1, 100);
        st = GR_OK;
    }
    gr_log_hold(NULL, 0);
    st = st == GR_OK && strcmp(gr_link_type(answer), "no") == 0 ? refused(&f, answer) : GR_OK;
    json_decref(answer);
    json_decref(f.hello);
    gr_link_close(&f.link);
    return st == GR_EMISMATCH ? st : GR_OK;
}

/* GR_AGAIN: rank 0 went away, or is another job's. */
static enum gr_status await_go(struct follow *f, uint64_t end_ns, json_t **go_out)
{
    for (;;) {
        struct pollfd p[] = {{.fd = f->link.fd, .events = POLLIN}, {.fd = f->j->children.signal_fd, .events = POLLIN}};
        (void)poll(p, GR_ARRAY_LEN(p), 1000);
        take_signals(f);
        if (f->asked) {
            return GR_ECANCELED;
        }
        json_t *answer = NULL;
        const enum gr_status st = gr_link_recv(&f->link, &answer);
        if (st == GR_OK && strcmp(gr_link_type(answer), "go") == 0) {
            *go_out = answer;
            return GR_OK;
        }
        const bool over = st == GR_OK && strcmp(gr_link_type(answer), "end") == 0;
        const enum gr_status what = over ? GR_ECANCELED : st == GR_OK ? refused(f, answer) : st;
        json_decref(answer);
        if (st == GR_OK || st == GR_EPROTO) {
            return what;
        }
        if (st == GR_ECLOSED) {
            gr_link_close(&f->link);
            return GR_AGAIN;
        }
        if (gr_clock_ns() >= end_ns) {
            log_error("rank %d on host %s: rank 0 has not said go in time", f->j->who.rank, f->j->who.host);
            return GR_ETIMEDOUT;
        }
    }
}

static enum gr_status meet(struct follow *f, uint64_t end_ns, json_t **go_out)
{
    for (;;) {
        GR_TRY(find_lead(f, end_ns));
        const enum gr_status st = await_go(f, end_ns, go_out);
        if (st != GR_AGAIN) {
            return st;
        }
        rest(f, PAUSE_MS_MAX);
    }
}

/* ---- the worker ---- */

static enum gr_status start_worker(struct follow *f, const json_t *go)
{
    struct gr_job *j = f->j;
    char join[64], listen[64], key_hex[2 * GR_KEY_BYTES + 1];
    static struct gr_worker_line line;
    const char *group = json_string_value(json_object_get(go, "group"));
    const char *lead = json_string_value(json_object_get(go, "at"));
    gr_where_peer(f->link.fd, gr_link_int(go, "port", 0, 65535, 0), join);
    gr_where_own(&j->where, f->link.fd, listen);
    if (group != NULL) {
        where_others_come(f, f->link.fd, listen); /* higher ranks of its group, which may be on other hosts */
    }
    const struct gr_job_places at = {.join = lead != NULL ? lead : join,
                                     .listen = listen,
                                     .group = group != NULL ? group : f->group,
                                     .device = gr_link_int(go, "device", 0, INT16_MAX, GR_DEVICE_LOCAL)};
    sodium_bin2hex(key_hex, sizeof(key_hex), j->key, sizeof(j->key));
    memcpy(j->children.key_hex, key_hex, sizeof(j->children.key_hex));
    GR_TRY(gr_job_line(j, &at, &line));
    if (f->group_fd >= 0) {
        gr_listener_give(f->group_fd);
    }
    gr_child_args_add_flag(&line.args, "--supervise", true);
    gr_options_clear_environment();
    char name[32];
    snprintf(name, sizeof(name), "%s worker", gr_launch_role_name(j->roles.rank[j->who.rank].role));
    return gr_children_start(&j->children, name, line.args.argv, &rule, &j->child);
}

static void say_up(struct follow *f)
{
    f->up = f->up || gr_children_joined(&f->j->children, f->j->child);
    if (f->up && !f->told_up && gr_link_is_open(&f->link)) {
        f->told_up = gr_link_send(&f->link, json_pack("{s:s}", "type", "up")) == GR_OK;
    }
}

/* ---- until the end ---- */

static void end_with(struct follow *f, int status)
{
    if (!f->ended) {
        f->ended = true;
        f->status = status;
        const uint64_t now_ns = gr_clock_ns();
        const int served_out_ms = GR_MIN(SERVED_OUT_MS, gr_ms_left(f->end_ns, now_ns) / 3);
        f->stop_ns = GR_MIN(f->stop_ns, now_ns + (uint64_t)served_out_ms * GR_MS);
    }
}

static void lose_lead(struct follow *f)
{
    gr_link_close(&f->link);
    f->told_up = false;
    if (f->away_ns == 0) {
        f->away_ns = gr_clock_ns();
        f->n_refused = 0;
    }
}

/* why: of the last attempt to reach it, with its address. */
static void give_up_lead(struct follow *f, const char *why)
{
    log_error("rank %d on host %s: rank 0 is gone; ending (%s)", f->j->who.rank, f->j->who.host, why);
    end_with(f, 1);
}

/* One attempt. The process of rank 0 is gone where its host refuses again and again; a host that is out of reach may
 * come back. */
static void seek_lead(struct follow *f)
{
    char why[400] = "";
    gr_log_hold(why, sizeof(why));
    const enum gr_status st = try_all(f);
    gr_log_hold(NULL, 0);
    if (st == GR_OK) {
        f->away_ns = 0;
        return;
    }
    gr_link_close(&f->link);
    if (st == GR_ECANCELED) {
        return;
    }
    f->n_refused = st == GR_ETIMEDOUT ? 0 : f->n_refused + 1;
    if (f->n_refused >= REFUSED_MAX || gr_clock_ns() > f->away_ns + AWAY_NS) {
        give_up_lead(f, why);
    }
}

static void hear_lead(struct follow *f)
{
    json_t *m = NULL;
    const enum gr_status st = gr_link_recv(&f->link, &m);
    if (st == GR_AGAIN) {
        return;
    }
    if (st != GR_OK) {
        lose_lead(f);
        return;
    }
    if (strcmp(gr_link_type(m), "end") == 0) {
        const bool came_up = !json_is_false(json_object_get(m, "up"));
        const int within_ms = gr_link_int(m, "within_ms", 0, INT32_MAX, -1);
        f->end_ns = within_ms >= 0 ? GR_MIN(f->end_ns, gr_clock_ns() + (uint64_t)within_ms * GR_MS) : f->end_ns;
        end_with(f, came_up && (f->up || f->asked) ? 0 : 1);
    } else if (strcmp(gr_link_type(m), "no") == 0) {
        (void)refused(f, m);
        end_with(f, 1);
    }
    json_decref(m);
}

/* m: stolen. */
static void tell_lead(struct follow *f, json_t *m)
{
    if (gr_link_send(&f->link, m) != GR_OK) {
        log_info("rank 0 is gone as well");
    }
}

static void tell_failed(struct follow *f, int status)
{
    tell_lead(f, json_pack("{s:s, s:i}", "type", "failed", "status", status));
}

/* The orchestrator told the worker to end, and ends itself; rank 0 may not take this rank for lost meanwhile. */
static void tell_done(struct follow *f)
{
    tell_lead(f, json_pack("{s:s}", "type", "done"));
}

static int wait_ms(const struct follow *f)
{
    const int restart_ms = gr_children_restart(&f->j->children, gr_clock_ns());
    const int most = f->away_ns != 0 || f->stop_ns != UINT64_MAX ? 200 : 1000;
    return restart_ms >= 0 ? GR_MIN(restart_ms, most) : most;
}

static void wait_for_news(struct follow *f)
{
    const struct gr_child *k = &f->j->children.child[f->j->child];
    struct pollfd p[] = {{.fd = f->j->children.signal_fd, .events = POLLIN},
                         {.fd = f->user_fd, .events = POLLIN},
                         {.fd = f->link.fd, .events = POLLIN},
                         {.fd = f->up ? -1 : k->joined_fd, .events = POLLIN}};
    (void)poll(p, GR_ARRAY_LEN(p), wait_ms(f));
    take_signals(f);
    say_up(f);
    if (gr_link_is_open(&f->link)) {
        hear_lead(f);
    } else if (f->away_ns != 0 && !f->ended) {
        seek_lead(f);
    }
}

static void run(struct follow *f)
{
    while (!f->child_done && !f->again && !f->alone && gr_clock_ns() < f->stop_ns) {
        wait_for_news(f);
    }
    if (!f->child_done || !gr_link_is_open(&f->link)) {
        return;
    }
    if (f->status == 0) {
        tell_done(f);
    } else {
        log_error("rank %d on host %s: its %s cannot run (status %d); its own line says why", f->j->who.rank,
                  f->j->who.host, f->j->children.child[f->j->child].name, f->status);
        tell_failed(f, f->status);
    }
}

/* Rank 0 would wait for this rank until --start-within is over. */
static enum gr_status end_unfit(struct follow *f)
{
    const enum gr_status why = f->j->unfit;
    if (find_lead(f, gr_clock_ns() + UNFIT_NS) == GR_OK) {
        tell_failed(f, gr_program_refused(why));
    }
    return why;
}

/* A signal came before this rank had met rank 0, which would wait for it until --start-within is over. Nobody is told
 * where rank 0 was signalled as well and has ended. */
static void tell_signal(struct follow *f)
{
    if (gr_link_is_open(&f->link)) {
        hand_signal_on(f, f->signal_number);
    }
    if (f->handed_on) {
        return;
    }
    gr_link_close(&f->link);
    f->word_end_ns = gr_clock_ns() + GR_MIN(WORD_NS, (uint64_t)f->j->o.grace / 2);
    if (find_lead(f, UINT64_MAX) == GR_OK) {
        hand_signal_on(f, f->signal_number);
    }
}

static enum gr_status work(struct follow *f, uint64_t end_ns)
{
    json_t *go = NULL;
    enum gr_status st = meet(f, end_ns, &go);
    if (st == GR_ECANCELED && f->asked && !f->again && !f->handed_on) {
        tell_signal(f);
    }
    GR_TRY(st);
    st = start_worker(f, go);
    json_decref(go);
    GR_TRY(st);
    run(f);
    gr_children_signal(&f->j->children, SIGTERM);
    return GR_OK;
}

static enum gr_status open_channel(struct gr_job *j)
{
    return j->where.by == GR_CHANNEL_NOT
               ? GR_OK
               : gr_channel_start(&j->channel, j->where.by, &j->who, j->env, j->o.start_within, NULL);
}

int gr_job_follow(struct gr_job *j)
{
    struct follow f = {.j = j, .link = {.fd = -1}, .stop_ns = UINT64_MAX, .user_fd = -1, .group_fd = -1};
    f.end_ns = UINT64_MAX;
    const uint64_t end_ns = gr_clock_ns() + (uint64_t)j->o.start_within + 5 * GR_S; /* rank 0 says it first */
    f.hello = gr_launch_hello(&j->who, &j->self, j->facts);
    enum gr_status st = f.hello == NULL ? GR_ENOMEM : gr_job_user_signals(&f.user_fd);
    st = st == GR_OK ? gr_children_init(&j->children, NULL) : st;
    st = st == GR_OK ? open_channel(j) : st;
    if (st == GR_OK) {
        st = j->unfit == GR_OK ? work(&f, end_ns) : end_unfit(&f);
    }
    gr_children_finish(&j->children, end_ms(&f));
    gr_link_close(&f.link);
    if (f.group_fd >= 0) {
        close(f.group_fd);
    }
    gr_channel_end(&j->channel);
    json_decref(f.hello);
    return st != GR_OK                     ? gr_program_refused(st == GR_EMISMATCH ? GR_EIO : st)
           : (f.again || f.alone) && !f.up ? 1
                                           : f.status;
}

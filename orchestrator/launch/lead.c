/* Rank 0: the rendezvous, the orchestrator as a child, the command, and the end of the job. */
#include "orchestrator/launch/job.h"

#include "common/base/clock.h"
#include "common/base/device.h"
#include "common/base/log.h"
#include "common/process/program.h"
#include "orchestrator/launch/command.h"
#include "orchestrator/launch/layout.h"
#include "orchestrator/launch/link.h"
#include "orchestrator/launch/serve_child.h"
#include "transport/connect/gate.h"
#include "transport/own.h"

#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define STRANGERS 64          /* links whose hello has not come yet */
#define HELLO_NS (10 * GR_S)  /* so long they may take */
#define LEAVE_NS (5 * GR_S)   /* the other ranks, once they know that the job is over */
#define LATE_NS (3 * GR_S)    /* of a job that ends before all have come: for those who are on their way */
#define TAIL_NS (4 * GR_S)    /* of --grace, for those who have not ended by then */
#define ORPHAN_NS (10 * GR_S) /* the orchestrator, once the last target has ended in order */
#define TWIN_NS (GR_S / 4)    /* between looks for another rank 0 in the job's folder */
#define N_OWN 6               /* descriptors that are polled beside links */

struct stranger {
    struct gr_link link;
    uint64_t since_ns;
};

struct lead {
    struct gr_job *j;
    struct gr_launch_table table;
    struct gr_link *link; /* of each rank */
    struct stranger stranger[STRANGERS];
    struct gr_gate *gate;
    struct gr_hello self;
    struct gr_job_note note;
    struct pollfd *polled;
    struct gr_serve_child serve;
    char key_hex[2 * GR_KEY_BYTES + 1];
    int wake_fd, user_fd;
    bool gone;     /* the others were told to go */
    bool up;       /* all roles have come up */
    bool ending;   /* the job ends: the orchestrator finishes its turns */
    bool served;   /* the orchestrator has ended */
    bool told_end; /* the others were told of the end */
    bool at_once;  /* a second signal came: nothing is waited for */
    pid_t command; /* 0: does not run */
    int status;    /* of the job, once it ends */
    uint64_t begin_ns, signal_ns, end_ns, leave_ns;
    uint64_t late_ns;   /* until then those who come are told that the job has ended; 0: nobody is waited for */
    uint64_t twin_ns;   /* when another rank 0 is looked for again */
    uint64_t orphan_ns; /* when a job without a target ends; 0: it has one */
};

/* ---- the end ---- */

/* Does the orchestrator run? It does not while it waits to be started again. */
static bool serves(const struct lead *d)
{
    return d->j->child >= 0 && d->j->children.child[d->j->child].pid != 0;
}

/* --grace begins with the first reason to end, and is all the time there is. */
static void bound_end(struct lead *d)
{
    d->end_ns = d->end_ns != 0 ? d->end_ns : gr_clock_ns() + (uint64_t)d->j->o.grace;
}

/* What is kept of it to tell the others, and to kill who is still there. */
static uint64_t tail_ns(const struct lead *d)
{
    return GR_MIN(TAIL_NS, (uint64_t)d->j->o.grace / 2);
}

/* The first reason counts. The orchestrator lets its turns finish and tells the workers; the others hear of the end
 * when it is through. What lies in the job's folder, a key perhaps, goes first: a launcher that ends its job may kill
 * this rank any moment (mpirun does when another one has ended). It stays for those who are on their way (end_early()).
 */
static void end_job(struct lead *d, int status)
{
    if (d->ending) {
        return;
    }
    d->ending = true;
    d->status = status;
    if (d->late_ns == 0) {
        gr_job_dir_remove(&d->note);
    }
    bound_end(d);
    d->served = d->served || !serves(d);
    if (!d->served) {
        gr_children_signal(&d->j->children, SIGTERM);
    }
    if (d->command > 0) {
        kill(d->command, SIGTERM);
    }
}

static bool all_were_heard(const struct lead *d)
{
    for (int i = 0; i < d->j->roles.n; i++) {
        if (!d->table.rank[i].heard) {
            return false;
        }
    }
    return true;
}

/* Ends a job some of whose ranks may be on their way: each would look for rank 0 until --start-within is over. */
static void end_early(struct lead *d, int status)
{
    if (!d->ending && !d->up && !all_were_heard(d)) {
        d->late_ns = gr_clock_ns() + LATE_NS;
    }
    end_job(d, status);
}

/* A rank whose job ends is told how much of --grace is left; the end of its group alone has no such limit. */
static void send_end(struct lead *d, int rank, int status)
{
    if (!gr_link_is_open(&d->link[rank])) {
        return;
    }
    json_t *m = json_pack("{s:s, s:i, s:b}", "type", "end", "status", status, "up", d->up);
    if (m != NULL && d->end_ns != 0) {
        (void)json_object_set_new(m, "within_ms", json_integer(gr_ms_left(d->end_ns, gr_clock_ns())));
    }
    if (gr_link_send(&d->link[rank], m) != GR_OK) {
        gr_link_close(&d->link[rank]);
    }
}

static void tell_end(struct lead *d)
{
    d->told_end = true;
    d->leave_ns = GR_MIN(gr_clock_ns() + LEAVE_NS, d->end_ns - tail_ns(d) / 2);
    for (int i = 0; i < d->j->roles.n; i++) {
        send_end(d, i, d->status);
    }
}

static void interrupt(struct lead *d, int number)
{
    const bool again = gr_job_signal_again(&d->signal_ns, gr_clock_ns());
    d->at_once = d->at_once || again;
    if (d->command > 0 && !again) {
        kill(d->command, number); /* its end is the job's; its status, too */
        bound_end(d);
        return;
    }
    end_early(d, d->command > 0 || !d->up ? GR_EXIT_SIGNAL + number : 0);
}

/* ---- hello ---- */

static void send_no(struct gr_link *l, const char *why, bool other_job)
{
    if (gr_link_send(l, json_pack("{s:s, s:s, s:b}", "type", "no", "why", why, "other_job", other_job)) != GR_OK) {
        log_info("who was refused did not wait for it");
    }
    gr_link_close(l);
}

/* at: where the orchestrator is, if it is not at the address by which rank 0 was found. */
static void send_go(struct lead *d, int rank)
{
    char group[256];
    const bool elsewhere = gr_own_is_told() || !gr_reach_is_any(d->serve.control);
    const char *at = elsewhere ? d->serve.reach : NULL;
    json_t *go = json_pack("{s:s, s:i, s:i, s:s*}", "type", "go", "port", d->serve.port, "device",
                           d->table.rank[rank].device, "at", at);
    if (go != NULL && gr_launch_table_group(&d->table, rank, group)) {
        (void)json_object_set_new(go, "group", json_string(group));
    }
    if (gr_link_send(&d->link[rank], go) != GR_OK) {
        gr_link_close(&d->link[rank]);
    }
}

/* One that comes again while the job runs is told to go at once. */
static void admit(struct lead *d, int rank, struct gr_link *l)
{
    const struct gr_launch_entry *e = &d->table.rank[rank];
    if (gr_link_is_open(&d->link[rank])) {
        gr_link_close(&d->link[rank]);
    }
    d->link[rank] = *l;
    *l = (struct gr_link){.fd = -1};
    log_info("rank %d on host %s has said hello", rank, e->host);
    if (d->gone) {
        send_go(d, rank);
    }
}

static void greet(struct lead *d, struct gr_link *l, json_t *hello)
{
    char why[512];
    int rank = -1;
    const enum gr_status st = gr_launch_table_hello(&d->table, hello, &rank, why);
    if (st == GR_OK && d->late_ns != 0) {
        send_no(l, "the job has ended before it began, and rank 0 has said why", false);
        return;
    }
    if (st == GR_OK) {
        admit(d, rank, l);
        return;
    }
    send_no(l, why, st == GR_ENOTFOUND);
    if (st != GR_EMISMATCH || d->gone) {
        return;
    }
    /* A job that has not begun cannot begin like this; the table has said why. */
    if (rank == 0) {
        end_job(d, 1); /* ranks that are on their way may be the other rank 0's */
    } else {
        end_early(d, 1);
    }
}

static void hear_stranger(struct lead *d, struct stranger *s, uint64_t now_ns)
{
    json_t *m = NULL;
    const enum gr_status st = gr_link_recv(&s->link, &m);
    if (st == GR_OK) {
        greet(d, &s->link, m);
        json_decref(m);
    } else if (st != GR_AGAIN || now_ns > s->since_ns + HELLO_NS) {
        gr_link_close(&s->link);
    }
}

static void take_arrivals(struct lead *d, uint64_t now_ns)
{
    struct gr_arrival a;
    uint64_t count;
    (void)!read(d->wake_fd, &count, sizeof(count));
    gr_gate_accept(d->gate, now_ns);
    while (gr_gate_take(d->gate, &a)) {
        int i = 0;
        while (i < STRANGERS && gr_link_is_open(&d->stranger[i].link)) {
            i++;
        }
        if (i == STRANGERS) {
            close(a.fd); /* it comes again */
        } else if (gr_link_open(&d->stranger[i].link, a.fd) == GR_OK) {
            d->stranger[i].since_ns = now_ns;
        }
    }
}

/* ---- the ranks ---- */

/* Of all the ranks that it is. */
static bool target_is_up(const struct lead *d, int leader)
{
    for (int i = 0; i < d->j->roles.n; i++) {
        if (gr_roles_leader(&d->j->roles, i) == leader && d->table.rank[i].state != GR_LAUNCH_UP) {
            return false;
        }
    }
    return true;
}

static bool other_target(const struct lead *d, int rank)
{
    const int own = gr_roles_leader(&d->j->roles, rank);
    for (int i = 0; i < d->j->roles.n; i++) {
        const bool leads = d->j->roles.rank[i].role == GR_LAUNCH_TARGET && gr_roles_leader(&d->j->roles, i) == i;
        if (leads && i != own && target_is_up(d, i)) {
            return true;
        }
    }
    return false;
}

/* Without this rank the others of its target would wait for it. */
static void end_group_of(struct lead *d, int rank)
{
    for (int i = 0; i < d->j->roles.n; i++) {
        if (i != rank && gr_roles_leader(&d->j->roles, i) == gr_roles_leader(&d->j->roles, rank)) {
            send_end(d, i, 0);
        }
    }
}

static void no_target(struct lead *d)
{
    log_error("no target is left; ending");
    end_job(d, 1);
}

/* What a rank's end means is its role's to say: a job goes on without a drafter, and with another target. */
static void lose_rank(struct lead *d, int rank, const char *how)
{
    struct gr_launch_entry *e = &d->table.rank[rank];
    const enum gr_launch_role role = d->j->roles.rank[rank].role;
    const bool was_up = e->state == GR_LAUNCH_UP;
    gr_link_close(&d->link[rank]);
    e->state = GR_LAUNCH_ABSENT;
    if (d->ending) {
        return;
    }
    log_warn("rank %d (%s) on host %s %s%s", rank, gr_launch_role_name(role), e->host, how,
             !d->up                    ? ""
             : role == GR_LAUNCH_DRAFT ? "; the job goes on without it"
                                       : "");
    if (d->up && was_up && role == GR_LAUNCH_TARGET && !other_target(d, rank)) {
        no_target(d);
    } else if (d->up && d->j->roles.rank[rank].group > 0) {
        end_group_of(d, rank);
    }
}

/* Workers end in order where the orchestrator does, mostly a moment before it; its own end tells the job's status. */
static void see_off(struct lead *d, int rank)
{
    if (!d->up) {
        lose_rank(d, rank, "has ended before the job began");
        end_early(d, 1); /* nobody takes its place */
        return;
    }
    gr_link_close(&d->link[rank]);
    d->table.rank[rank].state = GR_LAUNCH_ABSENT;
    if (d->j->roles.rank[rank].role == GR_LAUNCH_TARGET && !other_target(d, rank)) {
        d->orphan_ns = gr_clock_ns() + ORPHAN_NS;
    }
    end_group_of(d, rank);
}

static void hear_rank(struct lead *d, int rank)
{
    json_t *m = NULL;
    const enum gr_status st = gr_link_recv(&d->link[rank], &m);
    const char *type = st == GR_OK ? gr_link_type(m) : "";
    if (st == GR_AGAIN) {
        return;
    }
    if (st != GR_OK) {
        lose_rank(d, rank, "is gone");
    } else if (strcmp(type, "up") == 0) {
        d->table.rank[rank].state = GR_LAUNCH_UP;
        d->orphan_ns = d->j->roles.rank[rank].role == GR_LAUNCH_TARGET ? 0 : d->orphan_ns;
    } else if (strcmp(type, "done") == 0) {
        see_off(d, rank);
    } else if (strcmp(type, "signal") == 0) {
        const bool again = json_is_true(json_object_get(m, "again")); /* that rank was told twice; several were once */
        if (d->signal_ns == 0 || again) {
            interrupt(d, gr_link_int(m, "number", 1, SIGRTMAX, SIGTERM));
        }
    } else if (strcmp(type, "failed") == 0) {
        lose_rank(d, rank, "cannot run its worker");
        if (!d->up) {
            end_early(d, gr_link_int(m, "status", 1, 255, 1));
        }
    }
    json_decref(m);
}

/* ---- the orchestrator ---- */

static void take_ready(struct lead *d)
{
    if (gr_serve_child_is_ready(d->j, &d->serve)) {
        d->table.rank[0].state = GR_LAUNCH_UP;
    }
}

static void watch_children(struct lead *d)
{
    int number = 0, index = -1;
    const enum gr_child_event e = gr_children_poll(&d->j->children, &number, &index);
    const int handed_on = gr_job_user_signal(&number);
    if (handed_on != 0 && d->command > 0) {
        kill(d->command, handed_on); /* the orchestrator would drain, and the job end without its command's word */
    } else if (handed_on != 0) {
        gr_children_signal(&d->j->children, handed_on);
    }
    if (number != 0) {
        interrupt(d, number);
    }
    if (e == GR_CHILD_ENDED || e == GR_CHILD_GIVEN_UP || (e == GR_CHILD_RESTARTED && d->ending)) {
        const int status = e == GR_CHILD_GIVEN_UP ? GR_MAX(d->j->children.child[index].exit_status, 1) : d->up ? 0 : 1;
        d->served = true;
        if (d->command > 0 && status == 0) { /* it was told to end, by the command perhaps, which may have more to do */
            bound_end(d);
        } else {
            end_early(d, status);
        }
    }
}

/* ---- the channel ---- */

/* What its helper says before all are here: a job whose note is not published cannot begin. Later nobody needs it. */
static void watch_channel(struct lead *d)
{
    char why[700] = "";
    if (d->j->channel.fd < 0) {
        return;
    }
    gr_log_hold(why, sizeof(why));
    const enum gr_status st = gr_channel_hear(&d->j->channel, &d->j->who);
    gr_log_hold(NULL, 0);
    if (st == GR_EUNSUPPORTED && !d->gone) {
        log_error("rank 0 on host %s: %s", d->j->who.host, why);
        end_job(d, 1);
    }
}

/* Of a library that hangs: it may be why others are missing. */
static void say_channel(struct lead *d)
{
    const struct gr_channel *c = &d->j->channel;
    if (c->helper > 0 && !d->gone) {
        log_warn("--rendezvous at rank 0: %s has not come back%s%s", c->call, c->library, c->of_launcher);
    }
}

/* ---- the command ---- */

static void start_command(struct lead *d)
{
    const struct gr_job *j = d->j;
    if (gr_command_start(&j->o.command, j->env, d->serve.connect, d->key_hex, &d->command) != GR_OK) {
        end_job(d, 1);
    }
}

static void watch_command(struct lead *d)
{
    const int status = d->command > 0 ? gr_command_ended(d->command) : -1;
    if (status >= 0) {
        d->command = 0;
        end_job(d, status);
    }
}

/* ---- the beginning ---- */

static bool has_twin(struct lead *d)
{
    if (gr_job_met_late_twin(d->j, &d->note)) {
        end_job(d, 1);
    }
    d->twin_ns = gr_clock_ns() + TWIN_NS;
    return d->ending;
}

/* Loopback by --control is for this machine alone, and its ranks are known only now. */
static bool is_out_of_reach(struct lead *d)
{
    const int rank = gr_reach_is_local(d->serve.reach) ? gr_launch_table_elsewhere(&d->table) : 0;
    if (gr_job_control(d->j) == NULL || rank == 0) {
        return false;
    }
    log_error("--control %s: rank %d on host %s does not reach the orchestrator at %s, which is loopback of host %s; "
              "give --control :PORT, or an address of that host",
              d->j->o.control, rank, d->table.rank[rank].host, d->serve.reach, d->j->who.host);
    end_job(d, 1);
    return true;
}

static void go_on(struct lead *d)
{
    if (!d->gone && d->serve.port != 0 && gr_launch_table_missing(&d->table, GR_LAUNCH_HERE) == 0) {
        if (has_twin(d) || is_out_of_reach(d)) {
            return;
        }
        if (gr_launch_table_place(&d->table, d->j->o.share_gpu) != GR_OK) {
            end_job(d, 1);
            return;
        }
        d->gone = true;
        for (int i = 1; i < d->j->roles.n; i++) {
            send_go(d, i);
        }
    }
    if (d->gone && !d->up && gr_launch_table_missing(&d->table, GR_LAUNCH_UP) == 0) {
        d->up = true;
        dprintf(STDERR_FILENO, "graft launch: all %d roles are up after %.1f s, the orchestrator at port %d\n",
                d->j->roles.n, (double)(gr_clock_ns() - d->begin_ns) / 1e9, d->serve.port);
        if (d->j->o.command.n > 0) {
            start_command(d);
        }
    }
}

static void look_at_clock(struct lead *d, uint64_t now_ns)
{
    char who[GR_LAUNCH_WAIT_BYTES];
    if (d->up || d->ending) {
        return;
    }
    const enum gr_launch_wait wait = gr_launch_table_wait(&d->table, d->gone ? GR_LAUNCH_UP : GR_LAUNCH_HERE, now_ns,
                                                          (uint64_t)d->j->o.start_within, who);
    if (wait == GR_LAUNCH_QUIET) {
        return;
    }
    say_channel(d);
    if (wait == GR_LAUNCH_TELL) {
        log_warn("%s", who);
        return;
    }
    log_error("%s (--start-within); ending", who);
    for (int i = 1; i < d->j->roles.n; i++) {
        if (gr_link_is_open(&d->link[i]) && !d->gone) {
            send_no(&d->link[i], who, false);
        }
    }
    end_job(d, 1);
}

/* ---- the loop ---- */

static int fill_polled(struct lead *d, uint64_t now_ns)
{
    struct pollfd *p = d->polled;
    int n = 0;
    p[n++] = (struct pollfd){.fd = d->j->children.signal_fd, .events = POLLIN};
    p[n++] = (struct pollfd){.fd = d->user_fd, .events = POLLIN};
    p[n++] = (struct pollfd){.fd = d->wake_fd, .events = POLLIN};
    p[n++] = (struct pollfd){.fd = gr_gate_poll_fd(d->gate, now_ns), .events = POLLIN};
    p[n++] = (struct pollfd){.fd = d->serve.ready_fd, .events = POLLIN};
    p[n++] = (struct pollfd){.fd = d->j->channel.fd, .events = POLLIN};
    for (int i = 0; i < STRANGERS; i++) {
        p[n++] = (struct pollfd){.fd = d->stranger[i].link.fd, .events = POLLIN};
    }
    for (int i = 0; i < d->j->roles.n; i++) {
        p[n++] = (struct pollfd){.fd = d->link[i].fd, .events = POLLIN};
    }
    return n;
}

static void turn(struct lead *d)
{
    const int restart_ms = d->ending ? -1 : gr_children_restart(&d->j->children, gr_clock_ns());
    const int most_ms = d->signal_ns != 0 || d->ending ? 100 : 500;
    const int n = fill_polled(d, gr_clock_ns());
    (void)poll(d->polled, (nfds_t)n, restart_ms >= 0 ? GR_MIN(restart_ms, most_ms) : most_ms);
    const uint64_t now_ns = gr_clock_ns();
    take_ready(d);
    take_arrivals(d, now_ns);
    for (int i = 0; i < STRANGERS; i++) {
        if (gr_link_is_open(&d->stranger[i].link)) {
            hear_stranger(d, &d->stranger[i], now_ns);
        }
    }
    for (int i = 0; i < d->j->roles.n; i++) {
        if (gr_link_is_open(&d->link[i])) {
            hear_rank(d, i);
        }
    }
    watch_children(d);
    watch_command(d);
    watch_channel(d);
    look_at_clock(d, now_ns);
    if (!d->ending && (d->gone || now_ns < d->twin_ns || !has_twin(d))) {
        go_on(d);
    }
}

static bool any_link(const struct lead *d)
{
    for (int i = 0; i < d->j->roles.n; i++) {
        if (gr_link_is_open(&d->link[i])) {
            return true;
        }
    }
    return false;
}

static bool is_over(struct lead *d)
{
    const uint64_t now_ns = gr_clock_ns();
    const bool late = d->end_ns != 0 && now_ns > d->end_ns - tail_ns(d);
    if (late && !d->ending) { /* the command did not heed its signal */
        end_job(d, GR_EXIT_SIGNAL + SIGTERM);
    }
    if (d->orphan_ns != 0 && now_ns > d->orphan_ns && !d->ending && !d->served) {
        no_target(d);
    }
    if (!d->ending) {
        return false;
    }
    if (!d->told_end && (d->served || late || d->at_once)) {
        tell_end(d);
    }
    const bool awaits = !late && now_ns < d->late_ns && !all_were_heard(d);
    return d->at_once || (d->told_end && !awaits && (!any_link(d) || now_ns > d->leave_ns));
}

static void run(struct lead *d)
{
    while (!is_over(d)) {
        turn(d);
    }
    if (!d->told_end) {
        tell_end(d);
    }
    if (d->command > 0) {
        kill(d->command, SIGKILL);
    }
    /* A launcher's own status tells of other things: `mpirun --enable-recovery' says 0 whatever a rank says. */
    dprintf(STDERR_FILENO, "graft launch: the job ended with status %d\n", d->status);
}

/* ---- start and finish ---- */

static enum gr_status make_key(struct lead *d)
{
    struct gr_job *j = d->j;
    if (!j->with_key) {
        GR_TRY(gr_key_random(j->key, d->key_hex));
        memcpy(d->note.key, j->key, sizeof(j->key));
        d->note.has_key = true;
    }
    sodium_bin2hex(d->key_hex, sizeof(d->key_hex), j->key, sizeof(j->key));
    return GR_OK;
}

static enum gr_status open_gate(struct lead *d, struct gr_listening *at)
{
    const struct gr_gate_config c = {.at = *at,
                                     .wake_fd = d->wake_fd,
                                     .self = &d->self,
                                     .key = d->j->key,
                                     .timeout_ms = GR_ACCEPT_TIMEOUT_MS,
                                     .forced = -1};
    return gr_gate_create(&c, &d->gate);
}

static enum gr_status listen_for_ranks(struct lead *d)
{
    const struct gr_where *w = &d->j->where;
    struct gr_listening at;
    GR_TRY(gr_where_listen(w, &d->j->who, &at, &d->note));
    GR_TRY(open_gate(d, &at));
    GR_TRY(gr_job_meet_early_twin(d->j, at.bound));
    gr_where_control(w, gr_job_control(d->j), &at, d->serve.control);
    if (w->by != GR_CHANNEL_NOT) {
        return gr_channel_start(&d->j->channel, w->by, &d->j->who, d->j->env, d->j->o.start_within, &d->note);
    }
    return w->dir[0] != '\0' ? gr_job_dir_write(w->dir, d->j->who.job, &d->note) : GR_OK;
}

/* Slurm's variables are of this step only where they are the ones that tell our rank. */
static void expect_hosts(struct lead *d)
{
    struct gr_layout layout;
    char node[80];
    if (d->j->who.source != GR_RANKS_SLURM) {
        return;
    }
    gr_layout_read(d->j->env, &layout);
    for (int i = 1; i < d->j->roles.n; i++) {
        if (gr_layout_node(&layout, i, node, sizeof(node))) {
            gr_launch_table_expect(&d->table, i, node);
        }
    }
}

static enum gr_status allocate(struct lead *d)
{
    const size_t n = (size_t)d->j->roles.n;
    d->link = calloc(n, sizeof(*d->link));
    d->polled = calloc(N_OWN + STRANGERS + n, sizeof(*d->polled));
    if (d->link == NULL || d->polled == NULL) {
        log_error("no memory for the links to all ranks");
        return GR_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        d->link[i].fd = -1;
    }
    for (int i = 0; i < STRANGERS; i++) {
        d->stranger[i].link.fd = -1;
    }
    GR_TRY(gr_launch_table_create(&d->j->roles, d->j->who.job, d->begin_ns, &d->table));
    expect_hosts(d);
    return GR_OK;
}

static enum gr_status greet_self(struct lead *d)
{
    char why[512];
    int rank;
    json_t *hello = gr_launch_hello(&d->j->who, &d->j->self, d->j->facts);
    const enum gr_status st = hello != NULL ? gr_launch_table_hello(&d->table, hello, &rank, why) : GR_ENOMEM;
    json_decref(hello);
    return st;
}

static enum gr_status start(struct lead *d)
{
    GR_TRY(allocate(d));
    GR_TRY(gr_job_meet_twin(d->j));
    GR_TRY(greet_self(d));
    GR_TRY(make_key(d));
    GR_TRY(gr_job_user_signals(&d->user_fd));
    d->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (d->wake_fd < 0) {
        log_error("eventfd: %s", strerror(errno));
        return GR_EIO;
    }
    gr_job_self(d->j, GR_ROLE_LEAD, &d->self);
    GR_TRY(gr_children_init(&d->j->children, d->key_hex));
    GR_TRY(listen_for_ranks(d));
    return gr_serve_child_start(d->j, &d->serve);
}

static void finish(struct lead *d)
{
    gr_job_dir_remove(&d->note);
    gr_channel_end(&d->j->channel);
    for (int i = 0; d->link != NULL && i < d->j->roles.n; i++) {
        gr_link_close(&d->link[i]);
    }
    for (int i = 0; d->link != NULL && i < STRANGERS; i++) {
        gr_link_close(&d->stranger[i].link);
    }
    gr_children_signal(&d->j->children, SIGTERM);
    gr_children_finish(&d->j->children, d->at_once ? 0 : (int)(tail_ns(d) / 2 / GR_MS));
    if (d->gate != NULL) {
        gr_gate_destroy(d->gate);
    }
    gr_launch_table_destroy(&d->table);
    free(d->link);
    free(d->polled);
}

int gr_job_lead(struct gr_job *j)
{
    static struct lead d;
    d = (struct lead){.j = j, .begin_ns = gr_clock_ns(), .wake_fd = -1, .serve = {.ready_fd = -1}, .user_fd = -1};
    const enum gr_status st = start(&d);
    if (st == GR_OK) {
        run(&d);
    }
    finish(&d);
    return st != GR_OK ? gr_program_refused(st) : d.status;
}

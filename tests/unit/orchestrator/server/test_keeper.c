/* A desk whose sessions are journalled: nothing leaves before its record is durable, what a process had is there in the
 * next one, and a disk that fails is told of. */
#include "common/base/clock.h"
#include "orchestrator/ledger/ledger.h"
#include "orchestrator/server/keeper.h"
#include "tests/unit/journal_world.h"
#include "tests/unit/orch_world.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#define N_CLIENT 3
#define OVER_NS (10 * GR_S)
#define ANSWER "{\"id\":\"a\"}" /* what tells it again */

static struct {
    int n_msg[N_CLIENT][GR_N_MSG];
    int n_lost[N_CLIENT];
    uint32_t finish, n_token; /* of the last FINISHED, as is cut */
    bool cut, journal_failed;
    char text[GR_MSG_TEXT_MAX]; /* of the last ERROR */
} told;

/* The disk stands still while it is held, and may fail after that. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool held, fails;
    int n_sync; /* that have begun */
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static int sync_when_let(void *ctx, int fd)
{
    pthread_mutex_lock(&disk.lock);
    disk.n_sync++;
    pthread_cond_broadcast(&disk.changed);
    while (disk.held) {
        pthread_cond_wait(&disk.changed, &disk.lock);
    }
    const bool fails = disk.fails;
    pthread_mutex_unlock(&disk.lock);
    if (fails) {
        errno = EIO;
        return -1;
    }
    return gr_journal_system_files.sync_data(ctx, fd);
}

static void set_disk(bool held, bool fails)
{
    pthread_mutex_lock(&disk.lock);
    disk.held = held;
    disk.fails = fails;
    pthread_cond_broadcast(&disk.changed);
    pthread_mutex_unlock(&disk.lock);
}

static int n_sync(void)
{
    pthread_mutex_lock(&disk.lock);
    const int n = disk.n_sync;
    pthread_mutex_unlock(&disk.lock);
    return n;
}

/* The journal's thread stands at the disk that is held: what is noted from now on waits. */
static void wait_for_sync_after(int n)
{
    pthread_mutex_lock(&disk.lock);
    while (disk.n_sync == n) {
        pthread_cond_wait(&disk.changed, &disk.lock);
    }
    pthread_mutex_unlock(&disk.lock);
}

static void to_client(void *ctx, uint32_t client, const struct gr_msg *m)
{
    (void)ctx;
    assert_true(client < N_CLIENT);
    told.n_msg[client][m->type]++;
    if (m->type == GR_MSG_FINISHED) {
        told.finish = m->finished.finish;
        told.n_token = m->finished.n_token;
        told.cut = m->finished.cut;
    } else if (m->type == GR_MSG_ERROR) {
        memcpy(told.text, m->error.text, sizeof(told.text));
    } else if (m->type == GR_MSG_LISTED) {
        told.journal_failed = m->listed.journal_failed;
    }
}

struct place {
    char path[64];
    struct gr_journal_files files;
    uint32_t segment_bytes;
    struct world *w;
    struct gr_keeper *k;
};

static void lost(void *ctx, uint32_t client, const char *why)
{
    const struct place *p = ctx;
    told.n_lost[client]++;
    gr_desk_fail_client(p->w->desk, client, why);
}

static void send_by_keeper(void *ctx, uint32_t client, const struct gr_msg *m)
{
    gr_keeper_send(((struct place *)ctx)->k, client, m);
}

static void on_placed(void *ctx, uint64_t session, void *user)
{
    gr_desk_on_placed(((struct world *)ctx)->desk, session, user);
}

/* A process begins. */
static void start(struct place *p)
{
    const struct gr_keeper_config c = {.path = p->path,
                                       .files = &p->files,
                                       .segment_bytes = p->segment_bytes,
                                       .over_ns = OVER_NS,
                                       .n_client = N_CLIENT,
                                       .ctx = p,
                                       .send = to_client,
                                       .lost = lost};
    memset(&told, 0, sizeof(told));
    assert_int_equal(gr_keeper_create(&c, &p->k), GR_OK);
    p->w = make_with(NULL, on_placed);
    const struct gr_desk_io io = {.ctx = p, .send = send_by_keeper, .keeper = gr_keeper_serve(p->k, p->w->orch)};
    assert_int_equal(
        gr_desk_create(p->w->orch, &(struct gr_desk_clients){N_CLIENT, N_CLIENT, N_CLIENT}, &io, &p->w->desk), GR_OK);
    gr_keeper_restore(p->k, p->w->desk, p->w->now_ns);
}

/* It ends; killed: nothing is told or written any more, but what is on its way. */
static void end(struct place *p)
{
    destroy(p->w);
    assert_int_equal(gr_keeper_destroy(p->k, UINT64_MAX), GR_OK);
}

static int make_place(void **state)
{
    static struct place p;
    p = (struct place){.files = gr_journal_system_files};
    p.files.sync_data = sync_when_let;
    journal_make_folder("keeper", p.path);
    set_disk(false, false);
    *state = &p;
    return 0;
}

static int remove_place(void **state)
{
    journal_remove_folder(((struct place *)*state)->path);
    return 0;
}

static void ask(struct place *p, uint32_t client, const struct gr_msg *m)
{
    assert_int_equal(gr_desk_on_msg(p->w->desk, client, m, p->w->now_ns), GR_OK);
}

static void ask_open(struct place *p, uint32_t client, bool keep_open)
{
    int32_t prompt[] = {1, 2, 3};
    int32_t segments[] = {0, 3};
    static char answer[] = ANSWER;
    ask(p, client,
        &(struct gr_msg){
            .type = GR_MSG_OPEN,
            .open = {.ids = {prompt, 3},
                     .segments = {segments, 2},
                     .answer = {.p = answer, .n = sizeof(answer) - 1},
                     .wishes = {.turn = {.max_tokens = 9}, .sampling = {.top_p = 1.0}, .keep_open = keep_open}}});
}

/* What is durable is told. */
static void flush(struct place *p)
{
    assert_int_equal(gr_keeper_flush(p->k, p->w->now_ns, UINT64_MAX), GR_OK);
}

static struct gr_msg read_text(struct place *p, uint64_t session)
{
    struct gr_msg m = {.type = GR_MSG_TEXT, .session = session};
    const struct gr_desk_keeper k = gr_keeper_serve(p->k, p->w->orch);
    assert_null(k.read(k.ctx, session, &m));
    return m;
}

static uint64_t begin(struct place *p, bool keep_open)
{
    join_target(p->w);
    ask_open(p, 0, keep_open);
    take_open(p->w);
    opened(p->w);
    return p->w->session;
}

/* ---- tests ---- */

static void test_nothing_overtakes_the_disk(void **state)
{
    struct place *p = *state;
    start(p);
    assert_int_equal(gr_keeper_waits_since(p->k), 0);
    const uint64_t before_ns = gr_clock_ns();
    set_disk(true, false);
    (void)begin(p, true);
    const uint64_t since_ns = gr_keeper_waits_since(p->k);
    assert_true(since_ns >= before_ns && since_ns <= gr_clock_ns());
    commit(p->w, 10, 3, GR_FINISH_NONE);
    ask(p, 1, &(struct gr_msg){.type = GR_MSG_PING});
    (void)gr_keeper_run(p->k, p->w->now_ns);
    assert_int_equal(told.n_msg[1][GR_MSG_PONG], 1); /* others wait for nobody */
    assert_int_equal(told.n_msg[0][GR_MSG_OPENED] + told.n_msg[0][GR_MSG_COMMIT], 0);
    assert_int_equal(gr_keeper_waits_since(p->k), since_ns); /* the oldest is the same */
    set_disk(false, false);
    flush(p);
    assert_true(told.n_msg[0][GR_MSG_OPENED] == 1 && told.n_msg[0][GR_MSG_COMMIT] == 1);
    set_disk(true, false);
    commit(p->w, 13, 1, GR_FINISH_NONE); /* tokens wait for no disk */
    assert_int_equal(told.n_msg[0][GR_MSG_COMMIT], 2);
    commit(p->w, 14, 1, GR_FINISH_STOP); /* ends do */
    assert_int_equal(told.n_msg[0][GR_MSG_FINISHED], 0);
    set_disk(false, false);
    flush(p);
    assert_true(told.n_msg[0][GR_MSG_FINISHED] == 1 && told.finish == GR_FINISH_STOP);
    assert_true(gr_keeper_waits_since(p->k) == 0 && !gr_keeper_has_failed(p->k));
    end(p);
}

static void test_a_turn_goes_on(void **state)
{
    struct place *p = *state;
    start(p);
    const uint64_t id = begin(p, true);
    commit(p->w, 10, 3, GR_FINISH_NONE);
    end(p);
    start(p);
    assert_int_equal(state_of(p->w, id), GR_SESSION_WAITING);
    join_target(p->w);
    assert_int_equal(gr_orch_step(p->w->orch, p->w->now_ns) > 0, 1);
    take_open(p->w); /* what was told is computed again */
    assert_true(p->w->session == id && p->w->len == 3 && p->w->epoch == 2);
    opened(p->w);
    commit(p->w, 10, 3, GR_FINISH_STOP);
    assert_int_equal(state_of(p->w, id), GR_SESSION_IDLE);
    end(p);
    start(p);
    const struct gr_msg text = read_text(p, id);
    assert_true(text.read_text.ids.n == 6 && text.read_text.ids.p[5] == 12 && text.read_text.turn_len == 3);
    assert_true(text.read_text.finish == GR_FINISH_STOP && !text.read_text.in_turn);
    end(p);
}

static void test_appended_and_cut(void **state)
{
    struct place *p = *state;
    int32_t ids[] = {4, 5};
    start(p);
    const uint64_t id = begin(p, true);
    commit(p->w, 10, 3, GR_FINISH_STOP);
    ask(p, 1,
        &(struct gr_msg){
            .type = GR_MSG_APPEND, .session = id, .append = {.ids = {ids, 2}, .wishes = {.max_tokens = 9}}});
    take_append(p->w, p->w->len, 2);
    opened(p->w);
    commit(p->w, 20, 4, GR_FINISH_NONE);
    ask(p, 1,
        &(struct gr_msg){.type = GR_MSG_TRUNCATE, .session = id, .truncate = {.turn = 2, .keep_len = 3 + 3 + 2 + 1}});
    flush(p);
    assert_true(told.n_msg[1][GR_MSG_FINISHED] == 1 && told.finish == GR_FINISH_STOP);
    end(p);
    start(p);
    const struct gr_msg text = read_text(p, id);
    assert_true(text.read_text.turn == 2 && text.read_text.turn_len == 8 && text.read_text.ids.n == 9);
    assert_int_equal(text.read_text.ids.p[8], 20);
    end(p);
}

/* A client stops an answer that is over by then, and gone from the machine: it has heard of no end yet, so that the
 * stop is the end that it is told, and the next process tells the same. */
static void test_a_stop_after_the_end(void **state)
{
    struct place *p = *state;
    start(p);
    set_disk(true, false);
    const uint64_t id = begin(p, false);
    commit(p->w, 10, 3, GR_FINISH_LENGTH);
    say(p->w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = id});
    assert_int_equal(gr_orch_n_session(p->w->orch), 0);
    struct gr_msg m = {.type = GR_MSG_TRUNCATE, .session = id, .truncate = {.turn = 1, .keep_len = 3 + 1}};
    ask(p, 0, &m);
    set_disk(false, false);
    flush(p);
    assert_true(told.n_msg[0][GR_MSG_FINISHED] == 2 && told.finish == GR_FINISH_STOP && told.cut && told.n_token == 4);
    m.truncate.turn = 2; /* it has no such turn: nothing is cut */
    ask(p, 1, &m);
    m.truncate.keep_len = 3;
    ask(p, 1, &m);
    flush(p);
    end(p);
    start(p);
    const struct gr_msg text = read_text(p, id);
    assert_true(text.read_text.ids.n == 4 && text.read_text.finish == GR_FINISH_STOP && !text.read_text.in_turn);
    end(p);
}

/* The same where the disk takes nothing more: that is no end. */
static void test_a_stop_that_is_not_written(void **state)
{
    struct place *p = *state;
    start(p);
    const uint64_t id = begin(p, false);
    commit(p->w, 10, 3, GR_FINISH_LENGTH);
    say(p->w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = id});
    flush(p);
    assert_true(told.n_msg[0][GR_MSG_FINISHED] == 1 && told.finish == GR_FINISH_LENGTH);
    set_disk(false, true);
    ask_open(p, 1, false);
    flush(p);
    ask(p, 0, &(struct gr_msg){.type = GR_MSG_TRUNCATE, .session = id, .truncate = {.turn = 1, .keep_len = 3 + 1}});
    assert_true(told.n_msg[0][GR_MSG_FINISHED] == 2 && told.finish == GR_FINISH_ERROR);
    end(p);
    set_disk(false, false);
    start(p);
    const struct gr_msg text = read_text(p, id);
    assert_true(text.read_text.ids.n == 6 && text.read_text.finish == GR_FINISH_LENGTH);
    end(p);
}

static void test_an_answer_is_read_until_its_time_is_over(void **state)
{
    struct place *p = *state;
    start(p);
    const uint64_t id = begin(p, false);
    commit(p->w, 10, 3, GR_FINISH_STOP);
    say(p->w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = id});
    assert_int_equal(gr_orch_n_session(p->w->orch), 0);
    assert_int_equal(gr_keeper_run(p->k, p->w->now_ns), p->w->now_ns + OVER_NS);
    ask(p, 1, &(struct gr_msg){.type = GR_MSG_READ, .session = id});
    flush(p);
    assert_int_equal(told.n_msg[1][GR_MSG_TEXT], 1);
    end(p);
    start(p);
    assert_int_equal(read_text(p, id).read_text.ids.n, 6);
    assert_int_equal(gr_keeper_run(p->k, p->w->now_ns + OVER_NS), UINT64_MAX);
    ask(p, 1, &(struct gr_msg){.type = GR_MSG_READ, .session = id});
    flush(p);
    assert_int_equal(told.n_msg[1][GR_MSG_ERROR], 1);
    end(p);
    start(p);
    const struct gr_desk_keeper k = gr_keeper_serve(p->k, p->w->orch);
    struct gr_msg m;
    assert_non_null(k.read(k.ctx, id, &m));
    end(p);
}

/* A session that only the journal knows comes and goes, with so long a text. */
static void pass_by(struct place *p, uint64_t session)
{
    enum { N_TOKEN = 400 };
    static int32_t prompt[N_TOKEN];
    int32_t segments[] = {0, N_TOKEN};
    const struct gr_desk_keeper k = gr_keeper_serve(p->k, p->w->orch);
    const struct gr_msg open = {.type = GR_MSG_OPEN,
                                .session = session,
                                .open = {.epoch = 1,
                                         .ids = {prompt, N_TOKEN},
                                         .segments = {segments, 2},
                                         .wishes = {.turn = {.max_tokens = 9}, .sampling = {.top_p = 1.0}}}};
    assert_true(k.note(k.ctx, &open));
    assert_true(k.note(k.ctx, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = session}));
}

/* The journal's first segment is there no more: what was needed of it was written anew. */
static bool is_compacted(const struct place *p)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%016x.segment", p->path, 1);
    return access(path, F_OK) != 0;
}

static void assert_answer(const struct place *p, uint64_t id, bool in_turn, uint32_t n_ids)
{
    struct gr_kept_answer a;
    assert_true(gr_keeper_answer(p->k, id, &a));
    assert_true(a.session == id && a.in_turn == in_turn && a.turn_len == 3 && a.n_ids == n_ids);
    assert_int_equal(a.ids[0], 1);
    assert_string_equal(a.note, ANSWER);
}

/* Who comes back after a compaction finds an answer that is over, and one that goes on, as they were. */
static void test_answers_are_read_after_a_compaction(void **state)
{
    struct place *p = *state;
    p->segment_bytes = 32 << 10;
    start(p);
    const uint64_t over = begin(p, false);
    commit(p->w, 10, 3, GR_FINISH_LENGTH);
    expect(p->w, TARGET, GR_MSG_CLOSE);
    say(p->w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = over});
    ask_open(p, 1, false);
    take_open(p->w);
    opened(p->w);
    const uint64_t on = p->w->session;
    commit(p->w, 10, 2, GR_FINISH_NONE);
    p->w->now_ns += 2 * GR_S; /* tokens of turns that go on are noted */
    flush(p);
    for (uint64_t i = 0; !is_compacted(p); i++) {
        assert_true(i < 10000);
        pass_by(p, 1000 + i);
        flush(p);
    }
    assert_answer(p, over, false, 6);
    assert_answer(p, on, true, 5);
    end(p);
    start(p);
    assert_answer(p, over, false, 6);
    assert_answer(p, on, true, 5);
    assert_int_equal(state_of(p->w, on), GR_SESSION_WAITING);
    end(p);
}

static void test_a_closed_session_is_gone(void **state)
{
    struct place *p = *state;
    start(p);
    const uint64_t id = begin(p, true);
    set_disk(true, false);
    ask(p, 1, &(struct gr_msg){.type = GR_MSG_CLOSE, .session = id});
    say(p->w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = id});
    assert_int_equal(told.n_msg[0][GR_MSG_FINISHED] + told.n_msg[1][GR_MSG_CLOSED], 0);
    set_disk(false, false);
    flush(p);
    assert_true(told.n_msg[0][GR_MSG_FINISHED] == 1 && told.finish == GR_FINISH_CLOSED);
    assert_int_equal(told.n_msg[1][GR_MSG_CLOSED], 1);
    end(p);
    start(p);
    assert_int_equal(gr_orch_n_session(p->w->orch), 0);
    end(p);
}

static void test_a_disk_that_fails(void **state)
{
    struct place *p = *state;
    start(p);
    const uint64_t id = begin(p, true);
    commit(p->w, 10, 3, GR_FINISH_NONE);
    flush(p);
    set_disk(true, true);
    ask_open(p, 1, true); /* on its way when the disk fails */
    set_disk(false, true);
    flush(p);
    assert_true(told.n_lost[1] == 1 && told.n_lost[0] == 0 && told.n_msg[1][GR_MSG_OPENED] == 0);
    assert_true(gr_keeper_has_failed(p->k) && gr_keeper_waits_since(p->k) == 0); /* for ever */
    assert_int_equal(told.n_msg[1][GR_MSG_ERROR], 1);
    assert_non_null(strstr(told.text, "journal"));
    ask_open(p, 2, true);
    assert_true(told.n_msg[2][GR_MSG_ERROR] == 1 && told.n_msg[2][GR_MSG_OPENED] == 0);
    ask(p, 2, &(struct gr_msg){.type = GR_MSG_LIST});
    assert_true(told.n_msg[2][GR_MSG_LISTED] == 1 && told.journal_failed);
    commit(p->w, 13, 1, GR_FINISH_STOP); /* what cannot be written is not told as an end */
    assert_true(told.n_msg[0][GR_MSG_FINISHED] == 1 && told.finish == GR_FINISH_ERROR);
    end(p);
    set_disk(false, false);
    start(p);
    assert_int_equal(state_of(p->w, id), GR_SESSION_WAITING); /* the other one may be there or not */
    end(p);
}

/* The opening was taken, and what belongs to it no more: the error that waits for the opening is told all the same. */
static void test_an_error_waits_for_a_disk_that_fails(void **state)
{
    struct place *p = *state;
    int32_t prompt[] = {1}, segments[] = {0, 1};
    start(p);
    const struct gr_desk_keeper k = gr_keeper_serve(p->k, p->w->orch);
    set_disk(true, true);
    assert_true(
        k.note(k.ctx, &(struct gr_msg){.type = GR_MSG_OPEN,
                                       .session = 1000,
                                       .open = {.epoch = 1,
                                                .ids = {prompt, 1},
                                                .segments = {segments, 2},
                                                .wishes = {.turn = {.max_tokens = 9}, .sampling = {.top_p = 1.0}}}}));
    k.hold(k.ctx, 2);
    gr_keeper_send(p->k, 2, &(struct gr_msg){.type = GR_MSG_ERROR, .error = {.code = -GR_EIO, .text = "as it is"}});
    assert_int_equal(told.n_msg[2][GR_MSG_ERROR], 0);
    set_disk(false, true);
    flush(p);
    assert_int_equal(told.n_msg[2][GR_MSG_ERROR], 1);
    assert_string_equal(told.text, "as it is");
    end(p);
}

/* The record that fails is that of an end: the client, with which the desk has done, is told an error in its place. */
static void test_an_end_that_is_not_written(void **state)
{
    struct place *p = *state;
    start(p);
    (void)begin(p, true);
    commit(p->w, 10, 3, GR_FINISH_NONE);
    flush(p);
    set_disk(true, true);
    commit(p->w, 13, 1, GR_FINISH_STOP);
    assert_int_equal(told.n_msg[0][GR_MSG_FINISHED], 0);
    set_disk(false, true);
    flush(p);
    assert_int_equal(told.n_msg[0][GR_MSG_FINISHED], 1);
    assert_int_equal(told.finish, GR_FINISH_ERROR);
    end(p);
}

/* ---- a disk that does not keep up ---- */

/* Openings of sessions that only the journal knows, n_byte of them, or as much as it takes: first with long prompts and
 * then with shorter ones, and closings in the end, than which no record is shorter. */
static void fill_journal(struct place *p, size_t n_byte)
{
    enum { N_LONG = 400000, ID_BYTES = 5 };
    const struct gr_desk_keeper k = gr_keeper_serve(p->k, p->w->orch);
    int32_t *prompt = malloc(N_LONG * sizeof(*prompt));
    uint64_t session = 1000;
    size_t sent = 0;
    const int n_before = n_sync();
    assert_non_null(prompt);
    assert_true(
        k.note(k.ctx, &(struct gr_msg){.type = GR_MSG_OPEN,
                                       .session = session++,
                                       .open = {.epoch = 1,
                                                .ids = {(int32_t[]){1}, 1},
                                                .segments = {(int32_t[]){0, 1}, 2},
                                                .wishes = {.turn = {.max_tokens = 9}, .sampling = {.top_p = 1.0}}}}));
    wait_for_sync_after(n_before);
    for (uint32_t i = 0; i < N_LONG; i++) {
        prompt[i] = 100000; /* as many bytes as ID_BYTES in a message */
    }
    for (uint32_t n = N_LONG; n > 0 && sent < n_byte; n /= 10) {
        int32_t segments[] = {0, (int32_t)n};
        const struct gr_msg_open open = {.epoch = 1,
                                         .ids = {prompt, n},
                                         .segments = {segments, 2},
                                         .wishes = {.turn = {.max_tokens = 9}, .sampling = {.top_p = 1.0}}};
        bool taken = true;
        while (taken && sent < n_byte) {
            taken = k.note(k.ctx, &(struct gr_msg){.type = GR_MSG_OPEN, .session = session++, .open = open});
            sent += taken ? (size_t)ID_BYTES * n : 0;
        }
    }
    for (uint64_t i = 1000; sent < n_byte; i++) {
        assert_true(i < session);
        if (!k.note(k.ctx, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = i})) {
            break;
        }
    }
    free(prompt);
}

/* Tokens of a turn that goes on are left out where the disk is behind: nothing is lost by that, and the turn's end is
 * written and told as ever. */
static void test_tokens_wait_for_a_slow_disk(void **state)
{
    struct place *p = *state;
    start(p);
    const uint64_t id = begin(p, true);
    flush(p);
    set_disk(true, false);
    fill_journal(p, 40u << 20); /* more than half of what may wait, and not all */
    commit(p->w, 10, 3, GR_FINISH_NONE);
    for (int i = 0; i < 5; i++) {
        p->w->now_ns += 2 * GR_S;
        (void)gr_keeper_run(p->k, p->w->now_ns);
    }
    assert_int_equal(told.n_msg[0][GR_MSG_COMMIT], 1);
    commit(p->w, 13, 1, GR_FINISH_STOP);
    assert_int_equal(told.n_msg[0][GR_MSG_FINISHED], 0);
    set_disk(false, false);
    flush(p);
    assert_true(told.n_msg[0][GR_MSG_FINISHED] == 1 && told.finish == GR_FINISH_STOP);
    assert_int_equal(read_text(p, id).read_text.ids.n, 7);
    end(p);
}

/* Where nothing more may wait for the disk an end is told as an error, and not as one: the next process has the turn go
 * on. Meanwhile nobody is told of a text that it would not tell. */
static void test_an_end_for_which_there_is_no_room(void **state)
{
    struct place *p = *state;
    struct gr_msg m = {.type = GR_MSG_READ};
    start(p);
    const uint64_t id = begin(p, true);
    flush(p);
    set_disk(true, false);
    fill_journal(p, SIZE_MAX);
    commit(p->w, 10, 3, GR_FINISH_NONE);
    commit(p->w, 13, 1, GR_FINISH_STOP);
    set_disk(false, false);
    flush(p);
    assert_true(told.n_msg[0][GR_MSG_FINISHED] == 1 && told.finish == GR_FINISH_ERROR);
    m.session = id;
    ask(p, 1, &m);
    flush(p);
    assert_int_equal(told.n_msg[1][GR_MSG_TEXT], 0);
    assert_non_null(strstr(told.text, "as it was before"));
    end(p);
    start(p);
    assert_int_equal(state_of(p->w, id), GR_SESSION_WAITING);
    end(p);
}

/* The next process goes on with the turn, so a stop cannot be told. */
static void test_a_stop_of_an_end_for_which_there_is_no_room(void **state)
{
    struct place *p = *state;
    start(p);
    const uint64_t id = begin(p, false);
    flush(p);
    set_disk(true, false);
    fill_journal(p, SIZE_MAX);
    commit(p->w, 10, 3, GR_FINISH_LENGTH);
    say(p->w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = id});
    set_disk(false, false);
    flush(p);
    assert_true(told.n_msg[0][GR_MSG_FINISHED] == 1 && told.finish == GR_FINISH_ERROR);
    ask(p, 0, &(struct gr_msg){.type = GR_MSG_TRUNCATE, .session = id, .truncate = {.turn = 1, .keep_len = 3 + 1}});
    flush(p);
    assert_int_equal(told.n_msg[0][GR_MSG_FINISHED], 2);
    assert_true(told.cut && told.finish == GR_FINISH_ERROR);
    end(p);
}

/* What a disk did not take before it failed is not read either. */
static void test_nothing_is_read_that_was_not_written(void **state)
{
    struct place *p = *state;
    struct gr_msg m = {.type = GR_MSG_READ};
    start(p);
    const uint64_t id = begin(p, true);
    commit(p->w, 10, 3, GR_FINISH_NONE);
    flush(p);
    set_disk(true, true);
    commit(p->w, 13, 1, GR_FINISH_STOP); /* on its way when the disk fails */
    set_disk(false, true);
    flush(p);
    m.session = id;
    ask(p, 1, &m);
    assert_true(told.n_msg[1][GR_MSG_TEXT] == 0 && told.n_msg[1][GR_MSG_ERROR] == 1);
    assert_non_null(strstr(told.text, "as it was before"));
    end(p);
}

/* A disk that hangs is not waited for without end: one line says of what, and nobody is told of it. */
static void test_a_disk_that_hangs(void **state)
{
    struct place *p = *state;
    start(p);
    (void)begin(p, true);
    flush(p);
    set_disk(true, false);
    commit(p->w, 10, 1, GR_FINISH_STOP);
    const int n_line = log_count_n;
    assert_int_equal(gr_keeper_flush(p->k, p->w->now_ns, gr_clock_ns() + 20 * GR_MS), GR_ETIMEDOUT);
    assert_int_equal(told.n_msg[0][GR_MSG_FINISHED], 0);
    assert_non_null(strstr(log_count_last, "has not synced records"));
    destroy(p->w);
    assert_int_equal(gr_keeper_destroy(p->k, gr_clock_ns() + 20 * GR_MS), GR_ETIMEDOUT);
    assert_int_equal(log_count_n, n_line + 1);
    set_disk(false, false); /* what the thread was at it does to its end, and lets go of the folder */
    for (;;) {
        const struct gr_keeper_config c = {.path = p->path, .files = &p->files, .n_client = N_CLIENT};
        if (gr_keeper_create(&c, &p->k) == GR_OK) {
            break;
        }
        (void)poll(NULL, 0, 5);
    }
    assert_int_equal(gr_keeper_destroy(p->k, UINT64_MAX), GR_OK);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, make_place, remove_place)
    const struct CMUnitTest tests[] = {
        TEST(nothing_overtakes_the_disk),
        TEST(a_turn_goes_on),
        TEST(appended_and_cut),
        TEST(a_stop_after_the_end),
        TEST(a_stop_that_is_not_written),
        TEST(an_answer_is_read_until_its_time_is_over),
        TEST(answers_are_read_after_a_compaction),
        TEST(a_closed_session_is_gone),
        TEST(a_disk_that_fails),
        TEST(an_error_waits_for_a_disk_that_fails),
        TEST(an_end_that_is_not_written),
        TEST(tokens_wait_for_a_slow_disk),
        TEST(an_end_for_which_there_is_no_room),
        TEST(a_stop_of_an_end_for_which_there_is_no_room),
        TEST(nothing_is_read_that_was_not_written),
        TEST(a_disk_that_hangs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

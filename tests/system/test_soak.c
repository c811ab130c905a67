/* Many sessions through the real programs for a long time, at most 16 at once: they come at random moments, with random
 * lengths, sampling and trees; some have several turns, some are stopped early, some closed in the middle of a turn.
 * Idle ones are evicted and decoding ones pre-empted, as the KV pool holds half of what could be asked of it. Then:
 *   - every text is that of the same session when it is played again alone and plainly;
 *   - the resident memory of all three processes has not grown after the first half;
 *   - every KV block is free and no session left, by the workers' own PONG.
 *
 * A script is a function of (seed, number), so that it need not be kept. Time is counted in tokens, not in seconds.
 * GRAFT_TEST_TOKENS=N: tokens in all (default 6000). GRAFT_TEST_SEED=N: other sessions. */
#include "bench/pair.h"
#include "common/base/clock.h"
#include "common/rules/hash.h"
#include "common/base/parse.h"

#include <inttypes.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <sodium.h>
#include <cmocka.h>

#define N_AT_ONCE 16
#define N_CTX 512
#define N_BLOCK (N_AT_ONCE / 2 * N_CTX / 16)
#define N_TURN_MAX 4
#define N_IDS_MAX 160   /* of a turn's prompt */
#define N_TOKEN_MAX 120 /* generated in a turn; GR_TREE_MAX more may be asked for */
#define FILL_LEN (N_BLOCK * 16 / N_AT_ONCE)
#define FILL_TOKENS 24
#define STALL_NS (120 * GR_S)
#define LET_GO_NS (10 * GR_S)
#define N_CHECK 20 /* memory is read so often */
#define EOS 4089

/* ---- scripts ---- */

struct turn {
    uint32_t n_ids, max_tokens;
    uint32_t stop_at; /* stopped by the client after so many tokens; 0: not */
    uint32_t pause;   /* tokens of all sessions before the turn begins; 0: at once, from within on_done */
    int32_t ids[N_IDS_MAX];
};

struct script {
    struct gr_session_request request; /* without the prompt */
    struct turn turn[N_TURN_MAX];
    int n_turn;
    uint32_t close_at; /* closed in the last turn after so many tokens; 0: not */
};

static int32_t text[4096]; /* where prompts are cut from */
static uint32_t n_text;
static uint64_t seed = 1;

static uint32_t draw(uint64_t *state, uint32_t n) /* 0 .. n - 1 */
{
    *state += 0x9E3779B97F4A7C15ull;
    return (uint32_t)((gr_mix64(*state) >> 32) % n);
}

static void draw_ids(uint64_t *state, struct turn *t, uint32_t n)
{
    const uint32_t at = draw(state, n_text - n);
    t->n_ids = n;
    memcpy(t->ids, text + at, n * sizeof(*t->ids));
}

static void draw_turn(uint64_t *state, struct turn *t, bool first)
{
    const uint32_t n_ids = first && draw(state, 4) == 0 ? 60 + draw(state, N_IDS_MAX - 60) : 1 + draw(state, 30);
    t->max_tokens = 1 + (draw(state, 3) == 0 ? draw(state, N_TOKEN_MAX) : draw(state, 40));
    t->stop_at = t->max_tokens > 2 && draw(state, 4) == 0 ? 1 + draw(state, t->max_tokens - 1) : 0;
    t->pause = draw(state, 3) == 0 ? 0 : draw(state, 400);
    draw_ids(state, t, n_ids);
}

static void draw_request(uint64_t *state, struct gr_session_request *q)
{
    static const float temperatures[] = {0.0f, 0.0f, 0.7f, 1.3f};
    static const uint32_t nodes[] = {1, 4, 16, 63};
    *q = (struct gr_session_request){.wishes = {.sampling = {.temperature = temperatures[draw(state, 4)],
                                                             .top_p = draw(state, 3) == 0 ? 0.9f : 1.0f,
                                                             .top_k = draw(state, 3) == 0 ? 50 : 0,
                                                             .min_p = draw(state, 4) == 0 ? 0.02f : 0.0f,
                                                             .seed = draw(state, 1000)},
                                                .want_draft = draw(state, 8) != 0,
                                                .draft_depth = 1 + draw(state, 8),
                                                .draft_top_k = 1 + draw(state, 10),
                                                .n_node = nodes[draw(state, 4)],
                                                .auto_tree = draw(state, 3) == 0,
                                                .tree_shape = draw(state, 5) == 0 ? GR_SHAPE_CHAIN : GR_SHAPE_DYNAMIC,
                                                .draft_ahead = draw(state, 2) == 0 ? GR_AHEAD_ON : GR_AHEAD_AUTO,
                                                .turn = {.want_trace = draw(state, 10) == 0}}};
    if (draw(state, 3) == 0) {
        q->wishes.turn.stop_ids.id[q->wishes.turn.stop_ids.n++] = EOS;
    }
}

static struct script draw_script(uint32_t number)
{
    uint64_t state = gr_mix64(seed * 1000003u + number);
    struct script s = {0};
    draw_request(&state, &s.request);
    s.n_turn = draw(&state, 2) == 0 ? 1 : 1 + (int)draw(&state, N_TURN_MAX);
    uint32_t len = 0;
    for (int i = 0; i < s.n_turn; i++) {
        draw_turn(&state, &s.turn[i], i == 0);
        len += s.turn[i].n_ids + s.turn[i].max_tokens;
        if (len >= N_CTX) {
            s.n_turn = i; /* the first fits always */
        }
    }
    s.request.wishes.keep_open = s.n_turn > 1 || draw(&state, 4) == 0;
    struct turn *last = &s.turn[s.n_turn - 1];
    if (last->stop_at == 0 && last->max_tokens > 2 && draw(&state, 6) == 0) {
        s.close_at = 1 + draw(&state, last->max_tokens - 1);
    }
    return s;
}

/* Tokens of a turn that count: those past a stop or a close may come or not. */
static uint32_t turn_limit(const struct script *s, int turn)
{
    const struct turn *t = &s->turn[turn];
    const uint32_t close_at = turn == s->n_turn - 1 ? s->close_at : 0;
    return t->stop_at > 0 ? t->stop_at : close_at > 0 ? close_at : t->max_tokens;
}

/* ---- playing them ---- */

struct player {
    bool active, in_turn, closing;
    uint32_t number;
    uint64_t id;
    int turn;      /* that runs or comes next */
    uint32_t n;    /* tokens of the turn */
    uint64_t wake; /* of n_token, for the next turn */
    int32_t token[N_TURN_MAX][N_TOKEN_MAX];
    uint32_t n_token[N_TURN_MAX];
    struct script script;
};

struct record {  /* of a script that was played */
    uint64_t at; /* in store[] */
    uint32_t n_token[N_TURN_MAX];
    bool done;
};

static struct soak {
    struct gr_pair pair;
    struct player player[N_AT_ONCE];
    struct record *record;
    int32_t *store;
    uint64_t n_store, n_store_max, n_limit, n_token;
    uint32_t n_script, n_record_max;
    bool plain; /* playing again, for comparison */
    uint64_t progress_ns;
    uint64_t n_accepted, n_reopen, n_stopped, n_closed, n_turn;
    uint64_t rss_kib[N_CHECK + 1][3], at[N_CHECK + 1];
    int n_check;
    struct gr_msg pong[2];
    int n_pong;
} k;

static struct gr_orch *orch(void)
{
    return gr_hub_orch(k.pair.hub);
}

static struct player *player_of(uint64_t session)
{
    for (int i = 0; i < N_AT_ONCE; i++) {
        if (k.player[i].active && k.player[i].id == session) {
            return &k.player[i];
        }
    }
    return NULL;
}

static void begin_turn(struct player *p)
{
    const struct script *s = &p->script;
    const struct turn *t = &s->turn[p->turn];
    p->in_turn = true;
    p->n = 0;
    k.n_turn++;
    if (p->turn > 0) {
        struct gr_turn_request q = {.keep_len = UINT32_MAX,
                                    .ids = t->ids,
                                    .n_ids = t->n_ids,
                                    .wishes = {.max_tokens = t->max_tokens,
                                               .stop_ids = {.n = s->request.wishes.turn.stop_ids.n},
                                               .want_trace = s->request.wishes.turn.want_trace}};
        memcpy(q.wishes.stop_ids.id, s->request.wishes.turn.stop_ids.id, sizeof(q.wishes.stop_ids.id));
        assert_int_equal(gr_orch_append(orch(), p->id, &q, gr_clock_ns()), GR_OK);
        return;
    }
    struct gr_session_request q = s->request;
    q.prompt = t->ids;
    q.n_prompt = t->n_ids;
    q.wishes.turn.max_tokens = t->max_tokens;
    q.wishes.want_draft = q.wishes.want_draft && !k.plain;
    assert_int_equal(gr_orch_submit(orch(), &q, gr_clock_ns(), &p->id), GR_OK);
}

static void start(struct player *p, uint32_t number)
{
    *p = (struct player){.active = true, .number = number, .script = draw_script(number)};
    begin_turn(p);
}

static void on_tokens(void *ctx, uint64_t session, void *user, const int32_t *id, uint32_t n)
{
    struct player *p = player_of(session);
    (void)ctx;
    (void)user;
    assert_non_null(p);
    const uint32_t limit = turn_limit(&p->script, p->turn);
    for (uint32_t i = 0; i < n && p->n_token[p->turn] < limit; i++) {
        p->token[p->turn][p->n_token[p->turn]++] = id[i];
    }
    p->n += n;
    k.n_token += n;
    k.progress_ns = gr_clock_ns();
    const bool last = p->turn == p->script.n_turn - 1;
    if (p->script.turn[p->turn].stop_at > 0 && p->n >= limit) {
        k.n_stopped++;
        assert_int_equal(gr_orch_stop(orch(), session, 0, limit, GR_FINISH_STOP), GR_OK);
    } else if (last && p->script.close_at > 0 && p->n >= limit && !p->closing) {
        p->closing = true;
        k.n_closed++;
        assert_int_equal(gr_orch_close(orch(), session), GR_OK);
    }
}

static void compare(const struct player *p)
{
    const struct record *r = &k.record[p->number];
    const int32_t *want = k.store + r->at;
    for (int t = 0; t < p->script.n_turn; t++) {
        for (uint32_t i = 0; i < r->n_token[t] || i < p->n_token[t]; i++) {
            if (i >= r->n_token[t] || i >= p->n_token[t] || want[i] != p->token[t][i]) {
                fail_msg("seed %" PRIu64
                         " session %u turn %d: token %u is not that of plain decoding (%u tokens, %u plainly)",
                         seed, p->number, t, i, r->n_token[t], p->n_token[t]);
            }
        }
        want += r->n_token[t];
    }
}

static void over(struct player *p)
{
    struct record *r = &k.record[p->number];
    p->active = false;
    if (k.plain) {
        compare(p);
        return;
    }
    r->at = k.n_store;
    r->done = true;
    for (int t = 0; t < p->script.n_turn; t++) {
        assert_true(k.n_store + p->n_token[t] <= k.n_store_max);
        memcpy(k.store + k.n_store, p->token[t], p->n_token[t] * sizeof(int32_t));
        r->n_token[t] = p->n_token[t];
        k.n_store += p->n_token[t];
    }
}

static void on_done(void *ctx, uint64_t session, void *user, enum gr_finish finish, const char *why)
{
    struct player *p = player_of(session);
    const struct gr_session_metrics *m = gr_orch_metrics(orch(), session);
    (void)ctx;
    (void)user;
    assert_non_null(p);
    if (finish == GR_FINISH_ERROR) {
        fail_msg("seed %" PRIu64 " session %u turn %d: %s", seed, p->number, p->turn, why);
    }
    p->in_turn = false;
    p->turn++;
    k.progress_ns = gr_clock_ns();
    if (!p->script.request.wishes.keep_open || p->closing || p->turn == p->script.n_turn) {
        k.n_accepted += m->num_accepted_tokens;
        k.n_reopen += m->reopens;
    }
    if (!p->script.request.wishes.keep_open) {
        over(p);
    } else if (p->turn < p->script.n_turn && p->script.turn[p->turn].pause == 0) {
        begin_turn(p);
    } else {
        p->wake = k.n_token + (p->turn < p->script.n_turn ? p->script.turn[p->turn].pause : 0);
    }
}

static void on_closed(void *ctx, uint64_t session, void *user, const char *why)
{
    struct player *p = player_of(session);
    (void)ctx;
    (void)user;
    if (p == NULL) {
        return; /* of those that filled the pools */
    }
    if (!p->closing) {
        fail_msg("seed %" PRIu64 " session %u: closed, but not by its client: %s", seed, p->number, why);
    }
    k.progress_ns = gr_clock_ns();
    over(p);
}

static void on_pong(void *ctx, uint32_t worker, uint64_t cookie, uint64_t rtt_ns, const struct gr_msg *m)
{
    (void)ctx;
    (void)cookie;
    (void)rtt_ns;
    k.pong[(int)worker == gr_pair_worker(&k.pair, GR_WORKER_TARGET) ? GR_WORKER_TARGET : GR_WORKER_DRAFT] = *m;
    k.n_pong++;
}

/* Idle sessions whose time has come go on, or are closed. */
static void wake(bool all)
{
    for (int i = 0; i < N_AT_ONCE; i++) {
        struct player *p = &k.player[i];
        if (!p->active || p->in_turn || p->closing || (!all && k.n_token < p->wake)) {
            continue;
        }
        if (p->turn < p->script.n_turn) {
            begin_turn(p);
        } else {
            p->closing = true;
            assert_int_equal(gr_orch_close(orch(), p->id), GR_OK);
        }
    }
}

static struct player *free_player(void)
{
    for (int i = 0; i < N_AT_ONCE; i++) {
        if (!k.player[i].active) {
            return &k.player[i];
        }
    }
    return NULL;
}

static int n_busy(bool count_idle)
{
    int n = 0;
    for (int i = 0; i < N_AT_ONCE; i++) {
        n += k.player[i].active && (count_idle || k.player[i].in_turn || k.player[i].closing);
    }
    return n;
}

static void pump(void)
{
    assert_int_equal(gr_pair_pump(&k.pair), GR_OK);
    if (gr_clock_ns() - k.progress_ns > STALL_NS) {
        fail_msg("seed %" PRIu64 ": nothing has come for %d s, %d sessions are in a turn", seed, (int)(STALL_NS / GR_S),
                 n_busy(false));
    }
}

/* ---- memory ---- */

static uint64_t rss_kib(pid_t pid)
{
    char path[64], line[256];
    unsigned long kib = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f) != NULL && sscanf(line, "VmRSS: %lu kB", &kib) != 1) {
    }
    fclose(f);
    assert_true(kib > 0);
    return kib;
}

static void check_memory(void)
{
    if (k.n_token * N_CHECK < k.n_limit * (uint64_t)(k.n_check + 1) || k.n_check == N_CHECK) {
        return;
    }
    uint64_t *now = k.rss_kib[k.n_check];
    now[0] = rss_kib(getpid());
    now[1] = rss_kib(k.pair.children.child[k.pair.target].pid);
    now[2] = rss_kib(k.pair.children.child[k.pair.draft].pid);
    k.at[k.n_check++] = k.n_token;
}

/* A session in every slot, large trees, and all blocks of the target's pool: memory that was there from the start but
 * is touched for the first time is not growth. */
static void fill_pools(void)
{
    for (int i = 0; i < N_AT_ONCE; i++) {
        struct player *p = &k.player[i];
        int32_t ids[FILL_LEN];
        *p = (struct player){.active = true,
                             .number = UINT32_MAX,
                             .in_turn = true,
                             .script = {.n_turn = 1, .turn = {{.max_tokens = FILL_TOKENS}}}};
        for (int n = 0; n < FILL_LEN; n++) {
            ids[n] = text[((uint32_t)n + (uint32_t)i * 31) % n_text];
        }
        p->script.request = (struct gr_session_request){.prompt = ids,
                                                        .n_prompt = FILL_LEN - FILL_TOKENS,
                                                        .wishes = {.turn = {.max_tokens = FILL_TOKENS},
                                                                   .keep_open = true,
                                                                   .sampling = {.top_p = 1.0f},
                                                                   .want_draft = true,
                                                                   .n_node = 63,
                                                                   .draft_depth = 8,
                                                                   .draft_top_k = 10}};
        assert_int_equal(gr_orch_submit(orch(), &p->script.request, gr_clock_ns(), &p->id), GR_OK);
    }
    while (n_busy(false) > 0) {
        pump();
    }
    for (int i = 0; i < N_AT_ONCE; i++) {
        k.player[i].active = false;
    }
    assert_int_equal(gr_orch_purge(orch()), N_AT_ONCE);
}

/* ---- the tests ---- */

static void test_sessions_come_and_go(void **state)
{
    uint64_t chance = gr_mix64(seed);
    uint64_t next = 0;
    (void)state;
    k.progress_ns = gr_clock_ns();
    fill_pools();
    k.n_token = k.n_turn = 0;
    const uint64_t begin_ns = gr_clock_ns();
    while (k.n_token < k.n_limit || n_busy(true) > 0) {
        const bool more = k.n_token < k.n_limit;
        struct player *p = more && (k.n_token >= next || n_busy(false) == 0) ? free_player() : NULL;
        if (p != NULL) {
            assert_true(k.n_script < k.n_record_max);
            start(p, k.n_script++);
            next = k.n_token + (draw(&chance, 4) == 0 ? 0 : draw(&chance, 40)); /* now and then several at once */
            continue;
        }
        wake(!more || n_busy(false) == 0);
        if (n_busy(true) > 0) {
            pump();
        }
        check_memory();
    }
    while (k.n_check < N_CHECK) { /* the last ones may have been reached together */
        check_memory();
    }
    printf(
        "# GRAFT_TEST_SEED=%" PRIu64 ": %u sessions, %" PRIu64 " turns, %" PRIu64 " tokens (%" PRIu64 " accepted from "
        "trees) in %.1f s, %" PRIu64 " turns stopped, %" PRIu64 " sessions closed in a turn, %" PRIu64 " re-opened\n",
        seed, k.n_script, k.n_turn, k.n_token, k.n_accepted, 1e-9 * (double)(gr_clock_ns() - begin_ns), k.n_stopped,
        k.n_closed, k.n_reopen);
    assert_true(k.n_accepted > 0 && k.n_stopped > 0 && k.n_turn > k.n_script);
}

static void test_memory_is_flat(void **state)
{
    static const char *const names[] = {"orchestrator", "target", "draft"};
    (void)state;
    assert_int_equal(k.n_check, N_CHECK);
    /* In the first half, blocks of the KV pools are touched that never were before: what is in use at once has a record
     * now and then. */
    const int first = N_CHECK / 2 - 1;
    for (int w = 0; w < 3; w++) {
        const uint64_t base = k.rss_kib[first][w];
        uint64_t most = 0;
        for (int i = first; i < N_CHECK; i++) {
            most = GR_MAX(most, k.rss_kib[i][w]);
        }
        printf("# %s: %" PRIu64 " KiB after %" PRIu64 " tokens, %" PRIu64 " at most later, %" PRIu64 " at the end\n",
               names[w], base, k.at[first], most, k.rss_kib[N_CHECK - 1][w]);
        if (GR_SANITIZED == 0 && most > base + base / 50 + 1024) { /* sanitizers keep what is freed */
            fail_msg("the memory of the %s grew from %" PRIu64 " to %" PRIu64 " KiB", names[w], base, most);
        }
    }
}

static void ask_worker(enum gr_worker_role role)
{
    const int worker = gr_pair_worker(&k.pair, role);
    const int n = k.n_pong;
    assert_int_equal(gr_orch_ping(orch(), (uint32_t)worker, 1, gr_clock_ns()), GR_OK);
    while (k.n_pong == n) {
        pump();
    }
}

/* A drafter lets go of a session when the job that it is in is over: it is asked again for a while. */
static void test_nothing_is_left(void **state)
{
    (void)state;
    assert_int_equal(gr_orch_n_session(orch()), 0);
    for (int role = GR_WORKER_TARGET; role <= GR_WORKER_DRAFT; role++) {
        const struct gr_msg *m = &k.pong[role];
        const uint64_t end_ns = gr_clock_ns() + LET_GO_NS;
        k.progress_ns = gr_clock_ns();
        do {
            ask_worker((enum gr_worker_role)role);
        } while (m->pong.n_session > 0 && gr_clock_ns() < end_ns);
        assert_int_equal(m->pong.n_session, 0);
        assert_true(m->pong.n_block > 0);
        assert_int_equal(m->pong.n_free_block, m->pong.n_block);
    }
    assert_int_equal(k.pong[GR_WORKER_TARGET].pong.n_block, N_BLOCK);
}

/* One at a time, so that nothing else is in its passes. */
static void test_texts_are_plain(void **state)
{
    (void)state;
    const uint64_t begin_ns = gr_clock_ns();
    k.plain = true;
    k.progress_ns = begin_ns;
    for (uint32_t i = 0; i < k.n_script; i++) {
        assert_true(k.record[i].done);
        start(&k.player[0], i);
        while (n_busy(true) > 0) {
            wake(true);
            pump();
        }
    }
    printf("# %" PRIu64 " tokens alone and plainly in %.1f s\n", k.n_store, 1e-9 * (double)(gr_clock_ns() - begin_ns));
}

/* ---- life ---- */

static int load_text(void)
{
    json_error_t error;
    json_t *root = json_load_file(GR_SOURCE_ROOT "/tests/golden/demo-greedy.json", 0, &error);
    json_t *cases = json_object_get(root, "cases");
    static const char *const keys[] = {"prompt_ids", "greedy_ids"};
    for (size_t i = 0; i < 2 * json_array_size(cases); i++) {
        json_t *ids = json_object_get(json_array_get(cases, i / 2), keys[i % 2]);
        for (size_t n = 0; n < json_array_size(ids) && n_text < GR_ARRAY_LEN(text); n++) {
            text[n_text++] = (int32_t)json_integer_value(json_array_get(ids, n));
        }
    }
    json_decref(root);
    return n_text > N_CTX ? 0 : -1;
}

static int number_from(const char *name, int64_t min, uint64_t *value)
{
    int64_t v = 0;
    const char *s = getenv(name);
    if (s != NULL && !gr_parse_int(s, min, INT32_MAX, &v)) {
        printf("# %s=%s: a whole number from %" PRId64 " is wanted\n", name, s, min);
        return -1;
    }
    *value = s != NULL ? (uint64_t)v : *value;
    return 0;
}

static int setup(void **state)
{
    (void)state;
    k.n_limit = 6000;
    if (load_text() != 0 || sodium_init() < 0 || number_from("GRAFT_TEST_TOKENS", 200, &k.n_limit) != 0 ||
        number_from("GRAFT_TEST_SEED", 0, &seed) != 0) {
        return -1;
    }
    k.n_store_max = k.n_limit + N_AT_ONCE * N_TURN_MAX * N_TOKEN_MAX;
    k.n_record_max = (uint32_t)k.n_limit + N_AT_ONCE;
    k.store = malloc(k.n_store_max * sizeof(*k.store));
    k.record = malloc(k.n_record_max * sizeof(*k.record));
    if (k.store == NULL || k.record == NULL) {
        return -1;
    }
    memset(k.store, 0xff, k.n_store_max * sizeof(*k.store)); /* touched now: it is no growth later */
    memset(k.record, 0, k.n_record_max * sizeof(*k.record));
    const struct gr_pair_config c = {
        .target = GR_SOURCE_ROOT "/models/demo/target",
        .draft = GR_SOURCE_ROOT "/models/demo/draft",
        .target_program = GR_BUILD_ROOT "/graft-target",
        .draft_program = GR_BUILD_ROOT "/graft-draft",
        .transport = "",
        .n_session = N_AT_ONCE,
        .n_ctx_max = N_CTX,
        .n_block = N_BLOCK,
        .io = {.on_tokens = on_tokens, .on_done = on_done, .on_closed = on_closed, .on_pong = on_pong}};
    return gr_pair_start(&k.pair, &c) == GR_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    gr_pair_stop(&k.pair);
    free(k.store);
    free(k.record);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sessions_come_and_go),
        cmocka_unit_test(test_memory_is_flat),
        cmocka_unit_test(test_nothing_is_left),
        cmocka_unit_test(test_texts_are_plain),
    };
    /* The workers inherit it. A huge page, touched at one byte, is 2 MiB of growth, more than a leak here has. */
    (void)prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    return cmocka_run_group_tests(tests, setup, teardown);
}

/* Partial passes and refreshes through the verifier, on the demo pair after a prompt of 1.1k tokens: a session driven
 * by hand. What everything is compared with is plain decoding, one token a pass, by a verifier that knows of no
 * views. */
#include "model/llama.h"
#include "model/tokenizer/tokenizer.h"
#include "target_worker/compute/verifier.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    N_MAX = 1536, /* tokens of a session */
    N_BLOCK = N_MAX / 16,
    N_SESSION = 2,
    N_NEW = 160, /* tokens compared */
    N_BUF = 64,  /* missing tokens, and a tree */
    CHUNK = 256,
    LEVELS = 5
};

struct session {
    int slot;
    struct gr_kv_table table;
    int32_t block[N_BLOCK];
    int32_t token[N_MAX];
    int32_t len, kv_len, final_len; /* committed, with full KV, judged */
    int32_t dense_from;
    struct gr_sampling sampling;
    uint16_t *feature; /* (N_MAX, width), the newest of each position */
    int n_judged, n_mismatch, n_partial, n_refresh, n_correction;
};

static struct {
    struct gr_lm *lm;
    struct gr_verifier *verifier;
    int width;
    int32_t prompt[N_MAX];
    int32_t n_prompt;
    struct session want[2]; /* plain decoding: greedy, and at temperature 0.8 */
    uint64_t random;
} w;

static int draw(int n)
{
    w.random = w.random * 6364136223846793005u + 1442695040888963407u;
    return (int)((w.random >> 33) % (uint64_t)n);
}

/* ---- a session ---- */

static void session_init(struct session *s, int slot, const struct session *as)
{
    uint16_t *feature = s->feature;
    memset(s, 0, sizeof(*s));
    s->feature = feature != NULL ? feature : malloc((size_t)N_MAX * (size_t)w.width * sizeof(uint16_t));
    s->slot = slot;
    s->dense_from = GR_VIEW_NONE;
    s->sampling = (struct gr_sampling){.top_p = 1.0f, .seed = 7};
    if (as != NULL) {
        s->sampling = as->sampling;
    }
    for (int i = 0; i < N_BLOCK; i++) {
        s->block[i] = slot * N_BLOCK + (i * 35 + 3) % N_BLOCK; /* 35 and 96 share no factor */
    }
    s->table = (struct gr_kv_table){.block = s->block, .n_block = N_BLOCK, .n_block_max = N_BLOCK};
    memcpy(s->token, w.prompt, (size_t)w.n_prompt * sizeof(int32_t));
    s->len = w.n_prompt;
}

static struct gr_pass_seq seq_of(struct session *s, enum gr_pass_kind kind)
{
    struct gr_pass_seq q = {.session = s->slot,
                            .kind = kind,
                            .pos0 = s->len - 1,
                            .n_row = 1,
                            .table = &s->table,
                            .tail = s->token[s->len - 1],
                            .sampling = s->sampling,
                            .want_features = true,
                            .stop = {.n_new_max = N_MAX},
                            .corrupt_at = -1};
    q.token = &s->token[s->len - 1];
    for (int b = 0; b < GR_SCRATCH_BLOCKS; b++) {
        q.scratch_block[b] = w.lm->n_pool_block + s->slot * GR_SCRATCH_BLOCKS + b;
    }
    return q;
}

static void run(struct gr_pass_seq *q, int n)
{
    struct gr_pass pass = {.n_seq = n, .n_seq_max = N_SESSION, .seq = q};
    gr_verifier_run(w.verifier, &pass);
    assert_int_equal(pass.status, GR_OK);
}

static void keep_features(struct session *s, const struct gr_pass_seq *q)
{
    const int32_t first = q->pos0 - q->n_chain;
    for (int i = 0; i < q->n_feature; i++) {
        memcpy(s->feature + (size_t)(first + i) * (size_t)w.width, q->feature[i], (size_t)w.width * sizeof(uint16_t));
    }
}

static void commit(struct session *s, int32_t token)
{
    assert_true(s->len < N_MAX);
    s->token[s->len++] = token;
}

/* What the state machine does with a verdict. */
static void apply(struct session *s, const struct gr_pass_seq *q)
{
    const int32_t first = q->pos0 - q->n_chain;
    keep_features(s, q);
    s->dense_from = q->dense_from;
    s->n_judged += q->correction >= 0 ? q->n_chain_ok + 1 : q->n_chain;
    s->n_mismatch += q->correction >= 0 ? 1 : q->n_chain - q->n_chain_ok;
    s->n_partial += q->partial;
    s->n_refresh += q->refresh_view;
    if (q->correction >= 0) {
        assert_int_equal(q->walk.n_path, 0);
        assert_int_equal(q->walk.bonus, q->correction);
        assert_int_equal(q->n_feature, q->n_chain_ok + 1);
        s->n_correction++;
        s->len = first + q->n_chain_ok + 1;
        commit(s, q->correction);
    } else if (!q->judge_only) {
        for (int i = 0; i < q->walk.n_path; i++) {
            commit(s, q->tree.token[q->walk.node[i]]);
        }
        commit(s, q->walk.bonus);
        assert_int_equal(q->n_feature, q->n_chain + 1 + q->walk.n_path);
    }
    if (!q->partial) {
        s->kv_len = s->len - 1;
        s->final_len = s->len;
    }
}

static void prefill(struct session *s)
{
    for (int32_t at = 0; at < w.n_prompt; at += CHUNK) {
        struct gr_pass_seq q = seq_of(s, GR_PASS_PREFILL);
        q.pos0 = at;
        q.n_row = GR_MIN(CHUNK, w.n_prompt - at);
        q.token = w.prompt + at;
        q.want_pick = at + q.n_row == w.n_prompt;
        run(&q, 1);
        keep_features(s, &q);
        if (q.want_pick) {
            s->kv_len = s->len;
            commit(s, q.walk.bonus);
            s->final_len = s->len;
        }
    }
}

/* A tree from what plain decoding says comes next: on each level the right token and a wrong one, and from some level
 * on no right one. (Where the session's text has left that of plain decoding, all are guesses.) */
static void draft(const struct session *s, const struct session *want, struct gr_token_tree *t)
{
    int parent = -1;
    const int n_right = draw(LEVELS + 1);
    t->n = 0;
    for (int i = 0; i < LEVELS; i++) {
        const int32_t right = want->token[s->len + i];
        const int32_t tokens[2] = {(right + 1 + i) % w.lm->n_vocab, right};
        for (int k = 0; k < (i < n_right ? 2 : 1); k++) {
            t->token[t->n] = tokens[k];
            t->parent[t->n++] = (int16_t)parent;
        }
        parent = t->n - 1;
    }
}

static struct gr_pass_seq tree_seq(struct session *s, const struct session *want)
{
    struct gr_pass_seq q = seq_of(s, GR_PASS_TREE);
    draft(s, want, &q.tree);
    q.n_row = q.tree.n + 1;
    return q;
}

static void make_refresh(struct session *s, struct gr_pass_seq *q, struct gr_kv_budget budget, bool exact)
{
    q->refresh_view = true;
    q->exact = exact;
    q->view_budget = budget;
    q->n_chain = s->len - 1 - s->kv_len;
    q->chain_token = &s->token[s->kv_len];
}

/* ---- the world ---- */

static int load_prompt(void)
{
    static char text[3840]; /* the file's beginning: 70 blocks, of which a little view has four */
    struct gr_tokenizer *tok = NULL;
    FILE *f = fopen(GR_SOURCE_ROOT "/tests/golden/long-prompt.txt", "rb");
    if (f == NULL || gr_tokenizer_load(GR_SOURCE_ROOT "/models/demo/target", &tok) != GR_OK) {
        return -1;
    }
    const size_t n = fread(text, 1, sizeof(text), f);
    size_t n_id = 0;
    fclose(f);
    const enum gr_status st = gr_tokenizer_encode(tok, text, n, true, w.prompt, N_MAX - N_NEW - 128, &n_id);
    gr_tokenizer_destroy(tok);
    w.n_prompt = (int32_t)n_id;
    return st == GR_OK && n_id > 1100 ? 0 : -1;
}

static int setup(void **state)
{
    (void)state;
    const struct gr_llama_config c = {.dir = GR_SOURCE_ROOT "/models/demo/target",
                                      .n_thread = 2,
                                      .n_ctx_max = N_MAX,
                                      .n_row_max = CHUNK + 128,
                                      .n_out_max = N_SESSION * GR_TREE_MAX + 128,
                                      .n_pool_block = N_SESSION * N_BLOCK,
                                      .n_scratch_block = N_SESSION * GR_SCRATCH_BLOCKS,
                                      .head_dir = GR_SOURCE_ROOT "/models/demo/eagle3"};
    if (load_prompt() != 0 || gr_llama_create(&c, NULL, NULL, &w.lm) != GR_OK ||
        gr_verifier_create(w.lm, N_SESSION, &w.verifier) != GR_OK) {
        return -1;
    }
    w.width = gr_lm_ship_width(w.lm);
    for (int k = 0; k < 2; k++) {
        struct session *s = &w.want[k];
        session_init(s, k, NULL);
        s->sampling.temperature = k == 0 ? 0.0f : 0.8f;
        prefill(s);
        while (s->len < w.n_prompt + N_NEW + 64) {
            struct gr_pass_seq q = seq_of(s, GR_PASS_ROOT);
            run(&q, 1);
            apply(s, &q);
            if (s->dense_from != 0) { /* untouched: the model has no views */
                return -1;
            }
        }
    }
    gr_verifier_destroy(w.verifier);
    const struct gr_kv_budget most = {.n_sink = 2, .n_retrieval = N_BLOCK, .n_window = 8};
    return gr_lm_view_create(w.lm, &most, N_SESSION) == GR_OK &&
                   gr_verifier_create(w.lm, N_SESSION, &w.verifier) == GR_OK
               ? 0
               : -1;
}

static int teardown(void **state)
{
    (void)state;
    gr_verifier_destroy(w.verifier);
    gr_lm_view_destroy(w.lm);
    const bool gone = w.lm->view == NULL && w.lm->n_view == 0;
    gr_lm_destroy(w.lm);
    free(w.want[0].feature);
    free(w.want[1].feature);
    return gone ? 0 : -1;
}

static void assert_text(const struct session *s, const struct session *want, int32_t len)
{
    assert_true(len <= s->len && len <= want->len);
    for (int32_t i = 0; i < len; i++) {
        assert_int_equal(s->token[i], want->token[i]);
    }
}

static void assert_features(const struct session *s, const struct session *want, int32_t len)
{
    assert_memory_equal(s->feature, want->feature, (size_t)len * (size_t)w.width * sizeof(uint16_t));
}

static const struct gr_kv_budget everything = {.n_sink = 2, .n_retrieval = N_BLOCK, .n_window = 8};
static const struct gr_kv_budget little = {.n_sink = 1, .n_retrieval = 2, .n_window = 1};

/* ---- tests ---- */

/* A view that leaves nothing out: each partial round is the round of plain decoding, features included. */
static void test_everything(void **state)
{
    (void)state;
    static struct session s;
    for (int k = 0; k < 2; k++) {
        session_init(&s, 0, &w.want[k]);
        prefill(&s);
        for (int round = 0; s.len < w.n_prompt + N_NEW; round++) {
            const bool root = round % 5 == 3;
            struct gr_pass_seq q = root ? seq_of(&s, GR_PASS_ROOT) : tree_seq(&s, &w.want[k]);
            if (round % 7 == 0) {
                make_refresh(&s, &q, everything, round % 2 == 0);
            } else {
                q.partial = true;
            }
            run(&q, 1);
            assert_int_equal(q.correction, -1);
            assert_int_equal(q.n_chain_ok, q.n_chain);
            apply(&s, &q);
            assert_text(&s, &w.want[k], s.len);
            assert_features(&s, &w.want[k], s.len - 1);
        }
        assert_true(s.n_partial > 10 && s.n_judged > 20);
    }
    free(s.feature);
    s.feature = NULL;
}

/* One round of a session that keeps the rules: a refresh when the buffer is full, and now and then, else partial. */
static struct gr_pass_seq next_round(struct session *s, const struct session *want, struct gr_kv_budget b, bool exact)
{
    struct gr_pass_seq q = draw(6) == 0 ? seq_of(s, GR_PASS_ROOT) : tree_seq(s, want);
    const bool full = s->len - 1 - s->kv_len + q.n_row + LEVELS > N_BUF;
    if (s->dense_from == GR_VIEW_NONE || full || draw(12) == 0) {
        make_refresh(s, &q, b, exact);
    } else {
        q.partial = true;
    }
    return q;
}

/* exact, a small view: what is final is plain decoding's, and so is every feature after full KV. */
static void test_exact(void **state)
{
    (void)state;
    static struct session s;
    for (int k = 0; k < 2; k++) {
        session_init(&s, 1, &w.want[k]);
        prefill(&s);
        while (s.final_len < w.n_prompt + N_NEW && s.len < w.n_prompt + N_NEW + 48) {
            struct gr_pass_seq q = next_round(&s, &w.want[k], little, true);
            run(&q, 1);
            apply(&s, &q);
            assert_text(&s, &w.want[k], s.final_len);
            assert_features(&s, &w.want[k], s.kv_len);
        }
        print_message("# %s, 3 blocks and the window: %d partial rounds, %d refreshes, %d of %d judged tokens "
                      "corrected\n",
                      k == 0 ? "greedy" : "temperature 0.8", s.n_partial, s.n_refresh, s.n_correction, s.n_judged);
        assert_true(s.n_partial > 5 && s.n_refresh > 2);
        assert_true(s.final_len > w.n_prompt + N_NEW / 2);
        assert_true(s.n_correction > 0); /* else the view saw everything that mattered, and nothing was tested */
    }
    free(s.feature);
    s.feature = NULL;
}

/* lossy: what was emitted stays, KV and features become those of full verification of that text, and mismatches are
 * counted. The text is replayed in full, as plain decoding would have seen it. */
static void test_lossy(void **state)
{
    (void)state;
    static struct session s, full;
    session_init(&s, 0, &w.want[1]);
    prefill(&s);
    while (s.len < w.n_prompt + N_NEW - 40) {
        struct gr_pass_seq q = next_round(&s, &w.want[1], little, false);
        const int32_t before = s.len;
        run(&q, 1);
        assert_int_equal(q.correction, -1);
        apply(&s, &q);
        assert_true(s.len > before);
    }
    session_init(&full, 1, &w.want[1]);
    prefill(&full);
    int n_other = 0; /* picks of full verification that are not in the text */
    while (full.len < s.len) {
        struct gr_pass_seq q = seq_of(&full, GR_PASS_ROOT);
        run(&q, 1);
        n_other += q.walk.bonus != s.token[full.len] && full.len <= s.kv_len;
        q.walk.bonus = s.token[full.len];
        apply(&full, &q);
    }
    assert_features(&s, &full, s.kv_len);
    print_message("# lossy: %d of %d judged tokens are not what full verification says\n", s.n_mismatch, s.n_judged);
    assert_int_equal(s.n_mismatch, n_other);
    assert_true(s.n_mismatch > 0);
    free(s.feature);
    free(full.feature);
    s.feature = full.feature = NULL;
}

/* Partial rounds until `n` tokens are missing at least, under a view of everything; the corrupt-th one is falsified. */
static void run_partial(struct session *s, const struct session *want, int n, int corrupt)
{
    struct gr_pass_seq q = tree_seq(s, want);
    make_refresh(s, &q, everything, true);
    run(&q, 1);
    apply(s, &q);
    for (int round = 0; s->len - 1 - s->kv_len < n; round++) {
        q = tree_seq(s, want);
        q.partial = true;
        q.corrupt_at = round == corrupt ? 0 : -1;
        run(&q, 1);
        apply(s, &q);
    }
}

/* The token that the hook falsified is found where it stands, put right, and everything after it is gone. */
static void test_forced_mismatch(void **state)
{
    (void)state;
    static struct session s;
    for (int corrupt = 0; corrupt < 4; corrupt++) {
        const struct session *want = &w.want[corrupt % 2];
        session_init(&s, 0, want);
        prefill(&s);
        run_partial(&s, want, 20, corrupt);
        int32_t wrong = 0;
        while (s.token[wrong] == want->token[wrong]) {
            wrong++;
        }
        assert_true(wrong > s.kv_len && wrong < s.len);
        struct gr_pass_seq q = tree_seq(&s, want);
        make_refresh(&s, &q, everything, false);
        const struct gr_pass_seq lossy = q;
        run(&q, 1); /* lossy first: it says the same and changes nothing of the text */
        assert_int_equal(q.correction, -1);
        assert_int_equal(q.n_chain_ok, q.n_chain - 1);
        q = lossy;
        q.exact = true;
        const int32_t first = q.pos0 - q.n_chain;
        run(&q, 1);
        assert_int_equal(q.n_chain_ok, wrong - 1 - first);
        assert_int_equal(q.correction, want->token[wrong]);
        assert_true(q.dense_from >= 0 && q.dense_from <= wrong);
        apply(&s, &q);
        assert_int_equal(s.len, wrong + 1);
        run_partial(&s, want, 30, -1); /* and it goes on from there */
        assert_text(&s, want, s.len);
        assert_features(&s, want, s.len - 1);
    }
    free(s.feature);
    s.feature = NULL;
}

/* The last committed token judged by itself, when it is right and when it is not; a stop is seen as one. */
static void test_judge_only(void **state)
{
    (void)state;
    static struct session s;
    for (int last_wrong = 0; last_wrong < 2; last_wrong++) {
        const struct session *want = &w.want[1];
        session_init(&s, 1, want);
        prefill(&s);
        run_partial(&s, want, 17, -1);
        if (last_wrong) {
            struct gr_pass_seq q = seq_of(&s, GR_PASS_ROOT);
            q.partial = true;
            q.corrupt_at = 0;
            run(&q, 1);
            apply(&s, &q);
        }
        const int32_t len = s.len;
        struct gr_pass_seq q = seq_of(&s, GR_PASS_ROOT);
        make_refresh(&s, &q, everything, true);
        q.judge_only = true;
        q.n_row = 0;
        q.token = NULL;
        q.stop.ids.n = 1;
        q.stop.ids.id[0] = want->token[len - 1];
        run(&q, 1);
        assert_int_equal(q.n_chain_ok, q.n_chain - last_wrong);
        assert_int_equal(q.correction, last_wrong ? want->token[len - 1] : -1);
        assert_int_equal(q.walk.finish, last_wrong ? GR_FINISH_STOP : GR_FINISH_NONE);
        apply(&s, &q);
        assert_int_equal(s.len, len);
        assert_int_equal(s.kv_len, len - 1);
        run_partial(&s, want, 10, -1);
        assert_text(&s, want, s.len);
        assert_features(&s, want, s.len - 1);
    }
    free(s.feature);
    s.feature = NULL;
}

/* Two sessions in one pass, one partial while the other refreshes: each as it is by itself. */
static void test_ragged(void **state)
{
    (void)state;
    static struct session alone[2], both[2];
    const uint64_t random = w.random;
    int32_t len[2][200];
    int n_round[2] = {0};
    for (int k = 0; k < 2; k++) {
        w.random = random + (uint64_t)k;
        session_init(&alone[k], k, &w.want[k]);
        prefill(&alone[k]);
        while (n_round[k] < 40) {
            struct gr_pass_seq q = next_round(&alone[k], &w.want[k], little, true);
            run(&q, 1);
            apply(&alone[k], &q);
            len[k][n_round[k]++] = alone[k].len;
        }
    }
    uint64_t own[2] = {random, random + 1};
    int n_mixed = 0;
    for (int k = 0; k < 2; k++) {
        session_init(&both[k], k, &w.want[k]);
        prefill(&both[k]);
    }
    for (int round = 0; round < 40; round++) {
        struct gr_pass_seq q[2];
        for (int k = 0; k < 2; k++) {
            w.random = own[k];
            q[k] = next_round(&both[k], &w.want[k], little, true);
            own[k] = w.random;
        }
        run(q, 2);
        n_mixed += q[0].partial != q[1].partial;
        for (int k = 0; k < 2; k++) {
            apply(&both[k], &q[k]);
            assert_int_equal(both[k].len, len[k][round]);
        }
    }
    assert_true(n_mixed > 1);
    for (int k = 0; k < 2; k++) {
        assert_text(&both[k], &alone[k], both[k].len);
        assert_features(&both[k], &alone[k], both[k].len - 1);
        free(alone[k].feature);
        free(both[k].feature);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything),      cmocka_unit_test(test_exact),      cmocka_unit_test(test_lossy),
        cmocka_unit_test(test_forced_mismatch), cmocka_unit_test(test_judge_only), cmocka_unit_test(test_ragged),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

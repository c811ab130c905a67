/* For tests of control messages: the schema of docs/protocol.md, written down a second time, and messages made by hand
 * from it, also wrong ones. Include it in one .c file of a program. */
#ifndef GR_TESTS_MSG_SCHEMA_H
#define GR_TESTS_MSG_SCHEMA_H

#include "common/rules/hash.h"
#include "common/protocol/msg.h"
#include "tests/quiet_log.h"

#include <math.h>
#include <msgpack.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum kind { U32, U64, F64, STR, IDS, FLOATS };

/* All keys, in the order that they go out. limit: the largest value, capacity, or count. */
static const struct field {
    const char *name;
    enum kind kind;
    uint64_t limit;
} field[] = {
    {"session", U64, 0},
    {"incarnation", U64, 0},
    {"epoch", U32, UINT32_MAX},
    {"round", U32, UINT32_MAX},
    {"role", U32, 3},
    {"pid", U32, UINT32_MAX},
    {"n_vocab", U32, 1 << 22},
    {"n_ctx_max", U32, 1 << 24},
    {"n_block", U32, 1 << 28},
    {"n_free_block", U32, 1 << 28},
    {"n_session", U32, 1 << 16},
    {"model_fingerprint", U64, 0},
    {"tokenizer_fingerprint", U64, 0},
    {"address", STR, 256},
    {"numerics_id", STR, 96},
    {"host", STR, 64},
    {"peer", STR, 64},
    {"trace_id", STR, 33},
    {"model", STR, 128},
    {"answer", STR, 16384},
    {"seat", STR, 64},
    {"number", U64, 0},
    {"ids", IDS, 1 << 20},
    {"segments", IDS, 4096},
    {"stop_ids", IDS, 64},
    {"max_tokens", U32, 1 << 24},
    {"min_tokens", U32, 1 << 24},
    {"n_logprob", U32, 21},
    {"timeout_ns", U64, 0},
    {"want_draft", U32, 1},
    {"want_trace", U32, 1},
    {"single_token", U32, 1},
    {"temperature", F64, 0},
    {"min_p", F64, 0},
    {"top_p", F64, 0},
    {"top_k", U32, 1 << 22},
    {"seed", U64, 0},
    {"transport", STR, 16},
    {"tree_shape", U32, 1},
    {"draft_depth", U32, 63},
    {"draft_top_k", U32, 64},
    {"n_node", U32, 63},
    {"auto_tree", U32, 1},
    {"draft_ahead", U32, 1},
    {"keep_len", U32, UINT32_MAX},
    {"final_len", U32, UINT32_MAX},
    {"finish", U32, 4},
    {"verdict_kind", U32, 2},
    {"n_draft", U32, 63},
    {"n_accepted", U32, 63},
    {"cache_hit", U32, 1},
    {"usable_len", U32, UINT32_MAX},
    {"hash", U64, 0},
    {"gap", F64, 0},
    {"wait_ns", U64, 0},
    {"verify_ns", U64, 0},
    {"host_ns", U64, 0},
    {"draft_ns", U64, 0},
    {"n_row", U32, UINT32_MAX},
    {"n_cached", U32, UINT32_MAX},
    {"n_late", U32, UINT32_MAX},
    {"n_desync", U32, UINT32_MAX},
    {"n_fallback", U32, UINT32_MAX},
    {"n_reroot", U32, UINT32_MAX},
    {"n_feature_gap", U32, UINT32_MAX},
    {"ahead", U32, 2},
    {"tree_ids", IDS, 63},
    {"tree_parents", IDS, 63},
    {"path", IDS, 63},
    {"n_round", U64, 0},
    {"n_ahead", U64, 0},
    {"n_hit", U64, 0},
    {"n_first", U64, 0},
    {"n_first_hit", U64, 0},
    {"n_alarm", U64, 0},
    {"wire_bytes", U64, 0},
    {"wire_tokens", U64, 0},
    {"first_expected", F64, 0},
    {"auto_ahead", U32, 1},
    {"keep_open", U32, 1},
    {"queues", U32, 1},
    {"priority", U32, UINT32_MAX},
    {"place", U32, 1 << 17},
    {"n_waiting", U32, 1 << 17},
    {"state", U32, 7},
    {"n_token", U32, UINT32_MAX},
    {"shares_prefixes", U32, 1},
    {"n_prefix_query", U64, 0},
    {"n_prefix_hit", U64, 0},
    {"n_prefix_evicted", U64, 0},
    {"n_orphan", U32, UINT32_MAX},
    {"worker", U32, 1 << 16},
    {"target", U32, 1 << 16},
    {"drafter", U32, 1 << 16},
    {"n_worker", U32, 1 << 16},
    {"n_active", U32, 1 << 16},
    {"n_slot", U32, 1 << 16},
    {"draining", U32, 1},
    {"leaving", U32, 1},
    {"standing", U32, 2},
    {"undo", U32, 1},
    {"n_reopen", U32, UINT32_MAX},
    {"idle_ns", U64, 0},
    {"n_tree", U64, 0},
    {"n_drafted", U64, 0},
    {"n_hit_token", U64, 0},
    {"rtt_ns", U64, 0},
    {"turn", U32, UINT32_MAX},
    {"cut", U32, 1},
    {"undrafted", STR, 256},
    {"ended", U32, 1},
    {"salt", STR, 65},
    {"specpv", U32, 3},
    {"pv_sink", U32, 65536},
    {"pv_retrieval", U32, 65536},
    {"pv_window", U32, 65536},
    {"pv_buffer", U32, 256},
    {"pv_threshold", U32, 1 << 24},
    {"pv_interval", U32, 1 << 24},
    {"pv_provisional", U32, 256},
    {"pv_fraction", F64, 0},
    {"repetition_penalty", F64, 0},
    {"frequency_penalty", F64, 0},
    {"presence_penalty", F64, 0},
    {"banned_ids", IDS, 300},
    {"biased_ids", IDS, 300},
    {"biases", FLOATS, 300},
    {"bad_words", IDS, 1024},
    {"n_judged", U32, 256},
    {"n_mismatch", U32, 256},
    {"logprob_from", U32, UINT32_MAX},
    {"logprobs", FLOATS, 6720},
    {"logprob_ids", IDS, 6720},
    {"n_partial", U64, 0},
    {"n_refresh", U64, 0},
    {"n_checked", U64, 0},
    {"n_drifted", U64, 0},
    {"code", U32, UINT32_MAX},
    {"text", STR, 256},
    {"host_id", STR, 48},
    {"gpu", STR, 32},
    {"rank", U32, 7},
    {"n_rank", U32, 8},
    {"version", STR, 64},
    {"runs", STR, 256},
    {"turn_base", U32, UINT32_MAX},
    {"turn_len", U32, UINT32_MAX},
    {"in_turn", U32, 1},
};
#define N_FIELD ((int)GR_ARRAY_LEN(field))

static const struct schema {
    enum gr_msg_type type;
    const char *name, *required, *optional;
} schema[] = {
    {GR_MSG_JOIN, "JOIN", " role pid incarnation n_vocab n_ctx_max address numerics_id ",
     " n_block n_session model_fingerprint tokenizer_fingerprint host model seat number "},
    {GR_MSG_JOINED, "JOINED", " number ", " "},
    {GR_MSG_OPEN, "OPEN", " session epoch ids segments max_tokens temperature min_p top_p top_k seed ",
     " stop_ids want_draft want_trace single_token auto_tree n_node keep_open queues priority transport tree_shape "
     "draft_depth "
     "draft_top_k draft_ahead auto_ahead tokenizer_fingerprint trace_id model answer specpv pv_sink pv_retrieval "
     "pv_window "
     "pv_buffer "
     "pv_threshold pv_interval pv_provisional pv_fraction min_tokens n_logprob repetition_penalty frequency_penalty "
     "presence_penalty banned_ids biased_ids biases bad_words timeout_ns salt "},
    {GR_MSG_OPENED, "OPENED", " session epoch cache_hit usable_len ", " specpv turn "},
    {GR_MSG_CLOSE, "CLOSE", " session ", " "},
    {GR_MSG_CLOSED, "CLOSED", " session ", " "},
    {GR_MSG_COMMIT, "COMMIT",
     " session epoch round keep_len final_len ids hash finish verdict_kind n_draft n_accepted ",
     " gap wait_ns draft_ns verify_ns host_ns n_row n_cached n_late n_desync n_fallback n_reroot ahead tree_ids "
     "tree_parents path "
     "n_judged n_mismatch logprob_from logprobs logprob_ids "},
    {GR_MSG_PROGRESS, "PROGRESS", " session usable_len ", " "},
    {GR_MSG_APPEND, "APPEND", " session epoch keep_len hash ids max_tokens ",
     " stop_ids want_trace min_tokens n_logprob timeout_ns "},
    {GR_MSG_TRUNCATE, "TRUNCATE", " session epoch keep_len ", " turn "},
    {GR_MSG_EVICTED, "EVICTED", " session ", " "},
    {GR_MSG_ATTACH, "ATTACH",
     " session epoch address temperature min_p top_p top_k seed tree_shape draft_depth draft_top_k n_node ",
     " transport auto_tree draft_ahead banned_ids biased_ids biases incarnation "},
    {GR_MSG_ATTACHED, "ATTACHED", " session epoch transport ", " n_fallback "},
    {GR_MSG_DETACH, "DETACH", " session ", " "},
    {GR_MSG_DRAFT_STATS, "DRAFT_STATS", " session n_round draft_ns host_ns ",
     " n_ahead n_hit n_first n_first_hit n_alarm wire_bytes wire_tokens first_expected "},
    {GR_MSG_DRAFT_TROUBLE, "DRAFT_TROUBLE", " session ", " n_desync n_fallback n_feature_gap "},
    {GR_MSG_PING, "PING", " ", " worker "},
    {GR_MSG_PONG, "PONG", " n_session n_vocab ",
     " n_block n_free_block pid worker rtt_ns n_turn round_ns more_ns first_ns "
     "shares_prefixes n_prefix_query n_prefix_hit n_prefix_evicted n_orphan "},
    {GR_MSG_ERROR, "ERROR", " session code text ", " ended "},
    {GR_MSG_DRAIN, "DRAIN", " ", " "},
    {GR_MSG_DRAIN_WORKER, "DRAIN_WORKER", " worker ", " undo n_session "},
    {GR_MSG_FINISHED, "FINISHED", " session epoch finish text n_token ", " n_fallback n_reopen cut undrafted "},
    {GR_MSG_REFRESH, "REFRESH", " session ", " "},
    {GR_MSG_REFRESHED, "REFRESHED", " n_session ", " "},
    {GR_MSG_QUEUED, "QUEUED", " session place n_waiting ", " "},
    {GR_MSG_PURGE, "PURGE", " ", " "},
    {GR_MSG_PURGED, "PURGED", " n_session ", " "},
    {GR_MSG_LIST, "LIST", " ", " "},
    {GR_MSG_SESSION, "SESSION",
     " session epoch state keep_open n_token n_round n_tree n_drafted n_hit_token idle_ns target drafter ",
     " specpv n_partial n_refresh n_checked n_drifted place wait_ns verify_ns host_ns draft_ns "},
    {GR_MSG_WORKER, "WORKER", " worker role pid address n_session n_vocab n_ctx_max rtt_ns numerics_id ",
     " model_fingerprint tokenizer_fingerprint host peer model n_active n_slot draining leaving standing number "
     "seat "},
    {GR_MSG_LISTED, "LISTED", " n_session n_worker ", " journal_failed "},
    {GR_MSG_MEMBER, "MEMBER", " incarnation host rank n_rank version runs ", " address host_id gpu "},
    {GR_MSG_KEPT, "KEPT", " session epoch turn turn_base turn_len ", " model_fingerprint numerics_id "},
    {GR_MSG_READ, "READ", " session ", " "},
    {GR_MSG_TEXT, "TEXT", " session epoch turn turn_len ids ", " in_turn finish text "},
};
#define N_TYPE ((int)GR_ARRAY_LEN(schema))

static inline bool has(const char *list, const char *name)
{
    char padded[64];
    snprintf(padded, sizeof(padded), " %s ", name);
    return strstr(list, padded) != NULL;
}

static inline bool in_schema(const struct schema *s, const struct field *f)
{
    return has(s->required, f->name) || has(s->optional, f->name);
}

static uint64_t rng_state = 77;

static inline uint64_t draw(uint64_t n)
{
    rng_state = gr_mix64(rng_state + GR_HASH_GOLDEN);
    return rng_state % n;
}

/* ---- hand-made messages ---- */

static msgpack_sbuffer sb;
static msgpack_packer pk;

static inline void put_str(const char *s)
{
    msgpack_pack_str(&pk, strlen(s));
    msgpack_pack_str_body(&pk, s, strlen(s));
}

static inline void put_good(const struct field *f)
{
    put_str(f->name);
    switch (f->kind) {
    case U32:
    case U64:
        msgpack_pack_uint64(&pk, 1);
        break;
    case F64:
        msgpack_pack_double(&pk, 0.5);
        break;
    case STR:
        put_str("x");
        break;
    case FLOATS:
        msgpack_pack_array(&pk, 1);
        msgpack_pack_float(&pk, -0.5f);
        break;
    default:
        msgpack_pack_array(&pk, 1);
        msgpack_pack_int(&pk, -3);
        break;
    }
}

/* A value of another type; n_way of them for each kind. */
#define N_WRONG 9
static inline void put_wrong(const struct field *f, int way)
{
    put_str(f->name);
    switch (way) {
    case 0:
        msgpack_pack_nil(&pk);
        return;
    case 1:
        msgpack_pack_true(&pk);
        return;
    case 2:
        msgpack_pack_map(&pk, 0);
        return;
    case 3:
        msgpack_pack_bin(&pk, 1);
        msgpack_pack_bin_body(&pk, "x", 1);
        return;
    case 4: /* a list that holds a list, a string, a number with a point */
        msgpack_pack_array(&pk, 1);
        msgpack_pack_array(&pk, 0);
        return;
    case 5:
        msgpack_pack_array(&pk, 1);
        if (f->kind == IDS) {
            msgpack_pack_double(&pk, 1.0);
        } else {
            msgpack_pack_int(&pk, 1);
        }
        return;
    case 6:
        if (f->kind == U32 || f->kind == U64) {
            msgpack_pack_int(&pk, -1);
        } else {
            msgpack_pack_int(&pk, 1);
        }
        return;
    case 7:
        if (f->kind == STR) {
            msgpack_pack_double(&pk, 1.0);
        } else {
            put_str("1");
        }
        return;
    default:
        if (f->kind == F64) {
            msgpack_pack_double(&pk, NAN);
        } else if (f->kind == FLOATS) {
            msgpack_pack_array(&pk, 1);
            msgpack_pack_double(&pk, NAN);
        } else if (f->kind == IDS) {
            msgpack_pack_array(&pk, 1);
            msgpack_pack_uint64(&pk, 1ull << 31); /* past a 32-bit integer */
        } else {
            msgpack_pack_double(&pk, 1.0);
        }
        return;
    }
}

enum change { GOOD, WITHOUT, TWICE, WRONG, FOREIGN, NO_TYPE, TYPE_TWICE, ONLY_REQUIRED };

/* The message of schema s with all its fields, changed at field `which`. */
static inline void build(const struct schema *s, enum change change, int which, int way)
{
    msgpack_sbuffer_clear(&sb);
    int n = change == NO_TYPE ? 0 : 1;
    for (int i = 0; i < N_FIELD; i++) {
        const bool mine = change == ONLY_REQUIRED ? has(s->required, field[i].name) : in_schema(s, &field[i]);
        n += (mine && !(change == WITHOUT && i == which)) || (change == FOREIGN && i == which);
    }
    n += change == TWICE || change == TYPE_TWICE;
    msgpack_pack_map(&pk, (size_t)n);
    for (int i = 0; i < (change == NO_TYPE ? 0 : change == TYPE_TWICE ? 2 : 1); i++) {
        put_str("t");
        put_str(s->name);
    }
    for (int i = 0; i < N_FIELD; i++) {
        const bool mine = change == ONLY_REQUIRED ? has(s->required, field[i].name) : in_schema(s, &field[i]);
        if (change == WRONG && i == which) {
            put_wrong(&field[i], way);
        } else if ((mine && !(change == WITHOUT && i == which)) || (change == FOREIGN && i == which)) {
            put_good(&field[i]);
        }
        if (change == TWICE && i == which) {
            put_good(&field[i]);
        }
    }
}

/* Decodes a copy that ends where the bytes end; a refusal says one line and leaves the output alone. */
static inline enum gr_status decode(const void *bytes, size_t len)
{
    uint8_t *copy = malloc(len > 0 ? len : 1);
    assert_non_null(copy);
    memcpy(copy, bytes, len);
    struct gr_msg m;
    memset(&m, 0xee, sizeof(m));
    const int before = log_count_n;
    const enum gr_status st = gr_msg_decode(copy, len, &m);
    assert_int_equal(log_count_n - before, st == GR_OK ? 0 : 1);
    if (st == GR_OK) {
        gr_msg_finish(&m);
    } else {
        assert_int_equal(st, GR_EFORMAT);
        assert_int_equal(*(unsigned char *)&m, 0xee);
    }
    free(copy);
    return st;
}

static inline enum gr_status decode_built(void)
{
    return decode(sb.data, sb.size);
}

static inline int setup(void **state)
{
    (void)state;
    msgpack_sbuffer_init(&sb);
    msgpack_packer_init(&pk, &sb, msgpack_sbuffer_write);
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    msgpack_sbuffer_destroy(&sb);
    return 0;
}

#endif

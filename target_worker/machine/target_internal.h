/* Shared by the files of the target's state machine; nobody else includes it. */
#ifndef GR_TARGET_WORKER_MACHINE_TARGET_INTERNAL_H
#define GR_TARGET_WORKER_MACHINE_TARGET_INTERNAL_H

#include "common/base/fallback.h"
#include "common/rules/prefix.h"
#include "target_worker/policy/outlook.h"
#include "target_worker/policy/spec_mode.h"
#include "target_worker/policy/specpv.h"
#include "target_worker/machine/target.h"

enum session_state { SESSION_FREE, SESSION_QUEUED, SESSION_PREFILL, SESSION_DECODE, SESSION_IDLE };

/* What a token of the transcript is: a kind of OPEN's segments. It decides which kernels compute the token's KV, since
 * those of prompt chunks and those of decoding may give other bits. */
enum token_kind { TOKEN_PROMPT = 0, TOKEN_GENERATED = 1, TOKEN_APPENDED = 2 };

/* A DRAFT's tree, followed along the tokens that were committed since its base. A late tree can be verified below the
 * node that they lead to, and a probe is judged by how far they lead. */
struct walked_tree {
    bool valid;
    uint32_t round, base_len;
    uint64_t arrived_ns;
    uint64_t draft_ns; /* time that the drafter took for it; 0: it did not tell */
    uint32_t ahead;    /* as in COMMIT */
    int32_t at_len;    /* tokens that the tree has been followed along */
    int16_t root;      /* the node of the last committed token; -1: the tail of the base */
    struct gr_token_tree tree;
};

/* An APPEND that came while the pass that a TRUNCATE ends was still running. Its ids lie in gr_target.held_ids. */
struct held_append {
    bool valid;
    struct gr_msg_append append;
    int32_t cut_at;     /* TRUNCATE has stopped its turn, too, before it began, at this length; -1: none has */
    uint32_t n_refused; /* OPENs and APPENDs that came after it: answers keep their order */
};

/* The parts of a session. Each is written by one file, which is named here; all may read it. */

/* target_kv.c: the KV that stands. Tokens from len to the tail have partial KV only: it was computed under a view
 * (target_specpv.c). */
struct kv_state {
    struct gr_kv_table table;
    int32_t len;       /* tokens with full KV */
    bool forked;       /* the first blocks hold what others have computed, and no rows have run since */
    int32_t final_len; /* tokens that the user may see; fewer than the prefix under exact SpecPV only */
};

/* target_link.c: what the drafter knows, and what is between it and the session. */
struct link {
    bool attached, ever_attached;
    uint32_t peer;    /* the connection; attached only */
    int32_t told_len; /* tokens that the drafter has been told; after a roll-back, where it has to go back to */
    bool owes_delta;  /* a DELTA from told_len on waits to be sent */
    bool warm;        /* a tree of this attachment has come: the drafter has its prefix, and its caches */
    bool asked;       /* a tree was asked for and has not come */
    uint32_t asked_round;
    uint64_t asked_ns;
    uint64_t silent_ns;   /* the first ask since the drafter's last sign of life; 0: none */
    uint32_t fence_round; /* DRAFTs of earlier rounds are dropped silently */
    uint32_t used_round;  /* newest round whose DRAFT entered a pass; a copy of it is a replay */
};

/* target_next.c: the round that comes next. */
struct next_round {
    uint32_t round; /* its number; 0: prefill */
    enum gr_spec_mode mode;
    int32_t n_want;
    enum gr_fallback reason; /* why it has no tree, said once */
    uint64_t deadline_ns;    /* from here on the pass goes without a tree */
    uint32_t begun_round;    /* the round that give_up_ns is of */
    uint64_t give_up_ns;     /* deadline_ns is never later, however often the drafter begins anew in this round */
    uint64_t verdict_ns;     /* when the last round ended */
};

/* target_flight.c: the pass that the session is in, or was in last. */
struct in_flight {
    bool in_pass;
    uint8_t node_of_row[GR_NODE_MAX]; /* pass tree node -> node of the DRAFT */
    uint32_t draft_round;             /* GR_WIRE_ROOT_ONLY: no tree */
    bool waited, clean, reroot;
    bool resync;                /* the drafter began anew meanwhile: it may not know the pass's tree */
    uint64_t wait_ns, draft_ns; /* for the tree; of it the drafter's own time */
    uint32_t ahead;             /* as in COMMIT */
};

/* target_features.c: which features are kept, and how far the drafter has them. */
struct feature_state {
    int32_t first, end;    /* positions whose features are kept in gr_target.feature */
    int32_t n_kept;        /* positions after them whose captured states the verifier keeps */
    bool fusing;           /* a pass on its way fuses the states of n_kept */
    bool taken_by_drafter; /* the drafter runs a head */
    int32_t context;       /* positions that the drafter's head looks back; 0: all */
    int32_t sent;          /* features before it are at the drafter, or on their way */
    int32_t taken;         /* the drafter needs none before it any more */
    int32_t stored;        /* whole blocks before it have been looked at, to be stored with the prefix cache's */
    int32_t again;         /* the drafter holds outdated features before it: they are sent again */
};

/* target_turn.c: where the session stands in its turn. */
struct turn {
    int32_t prefill_end;     /* PREFILL: tokens that are to get KV */
    bool pick_due;           /* PREFILL: its last row ends a prompt, whose pick is the first token */
    int32_t len_max;         /* the prefix may not pass it: the turn's max_tokens, or the context */
    int32_t n_taken;         /* tokens whose KV is of the prefix cache */
    int32_t n_cached;        /* tokens that had KV when the turn's first rows ran; -1: none have run */
    int32_t len_min;         /* no token before this position ends the turn: its min_tokens */
    int32_t cut_at;          /* TRUNCATE came during a pass: cut to this when it is done; -1: none */
    struct held_append held; /* the APPEND that begins after the cut; only with cut_at */
    uint64_t last_used_ns;   /* when the session became idle */
};

/* target_view.c: SpecPV. */
struct session_specpv {
    enum gr_specpv_mode mode;     /* OFF, LOSSY or EXACT */
    bool automatic;               /* `auto` was asked for: exact where it gains, else full */
    struct gr_specpv_trial trial; /* what cycles have gained, with automatic */
    struct gr_specpv_params params;
    struct gr_specpv_drift drift;
    int32_t dense_from; /* first position that all rows see under the verifier's view; GR_VIEW_NONE: there is no view */
    uint32_t n_partial; /* rounds since the last refresh */
    bool asked;         /* a client has asked for a refresh */
    enum gr_finish end_due;         /* how the text ends if its last token, which is provisional, stands */
    struct gr_specpv_decision next; /* how the round is verified whose pass is being filled, or is on its way */
    uint32_t n_pass;                /* partial passes, counted for test_corrupt */
};

/* What rounds cost and bring, apart for rounds alone and for those that share passes with other sessions'. Its
 * functions (policy/spec_mode.h) write it. */
struct economy {
    struct gr_spec_econ alone, shared;
};

/* target_state.c: what went wrong since the last COMMIT, and in all. */
struct tally {
    uint32_t n_late, n_desync, n_reroot;
    uint32_t n_desync_all;
};

struct session {
    enum session_state state; /* target_turn.c */
    uint64_t id;
    uint32_t epoch;
    uint64_t arrival; /* order of admission: the youngest is pre-empted first */
    bool closing, has_room, lacks_room;
    struct gr_wishes wishes;
    bool with_draft;         /* a drafter is wished for, or has come all the same */
    struct gr_prefix prefix; /* the committed tokens; the last one is the tail */
    uint8_t *kind;           /* owned, (n_ctx_max): enum token_kind of each */
    struct kv_state kv;
    struct turn turn;
    struct link link;
    struct next_round next;
    struct in_flight flight;
    struct feature_state features;
    struct session_specpv specpv;
    struct walked_tree draft; /* for the next pass; target_walk.c */
    struct walked_tree probe; /* being judged */
    int32_t n_fault;
    struct economy econ;
    bool shares_pass; /* the next round shares its pass with other sessions': target_econ() */
    int32_t econ_len; /* the context's length when econ's times were last fitted to it */
    double wire_ns;   /* moving average of a tree's latency less the drafter's own time */
    struct gr_cost cost_told;
    int cost_decode;  /* sessions that decoded together when the prices were told */
    bool was_root;    /* econ.alone.is_root at the last round, for the log */
    bool paused;      /* the COMMIT queue is full */
    uint64_t host_ns; /* time of the round that was neither waiting for the drafter nor the forward pass */
    struct tally tally;
    struct gr_fallbacks fallbacks;
};

#define GR_GROUP_CLASSES 8 /* 2, 3-4, 5-8, ... 129 and more sessions */

/* The sessions that decode; n_cold: of them those with automatic trees whose drafter still prepares their prefix. */
struct decoding {
    int n, n_cold;
};

struct gr_target {
    struct gr_target_config config;
    struct gr_target_io io;
    struct gr_kv_pool pool;
    struct gr_kv_cache prefix_cache; /* target_prefix.c; without entries where it is off */
    struct {
        uint64_t n_query, n_hit, n_evicted;
    } prefix_told;           /* target_prefix.c: what PONGs have told of the cache so far */
    uint32_t n_orphan;       /* sessions that were let go since the last PONG, which tells it */
    struct session *session; /* owned, (n_session_max) */
    int32_t *held_ids;       /* owned, (n_session_max, n_ctx_max) */
    uint16_t *feature;       /* owned, (n_session_max, feature_keep, feature_width) bf16: of position p at p % keep; in
                                config.far, if that is not NULL */
    uint16_t *block_feature; /* owned, (n_pool_block, 16, feature_width) bf16, as `feature' is: of the prefix cache's
                                blocks that are marked; NULL: they have none */
    bool rows_on_their_way;  /* copies between places of far memory have not ended */
    struct gr_pass pass;
    struct gr_pass_load pass_load;
    int32_t pass_prefill_rows;
    bool draining; /* it takes no OPEN and no APPEND any more */
    bool pass_in_flight;
    bool pass_rests;        /* target_drafters_rest() when the pass was filled */
    bool pass_beside_draft; /* the drafter worked when it began */
    int next_slot;          /* where the next pass starts looking, for fairness */
    uint64_t n_arrival;
    double prefill_credit_ns; /* time of the decoding sessions that prompt chunks may still take */
    struct gr_cost_table cost;
    struct economy econ;                          /* all sessions' averages, which a new session begins with */
    struct gr_spec_group group[GR_GROUP_CLASSES]; /* by how many sessions decode together: 2, 3-4, 5-8, ... */
    uint64_t idle_ns;                             /* when the last pass ended; a pass could have begun since */
    uint64_t pass_end_ns; /* when the last pass that only decoded ended; 0: there was a break since */
    struct {
        bool is_on;
        struct decoding others;  /* all but s */
        const struct session *s; /* NULL: none yet */
    } settling;                  /* target_price.c */
    struct gr_target_counters counters;
};

/* Deadlines that may pass without the tree that was asked for; then the drafter is taken for gone. */
#define GR_SILENT_DEADLINES 3

/* What the files below offer each other. They stand on each other in this order: none calls one that comes after it. */

/* ---- the parts: target_kv.c ---- */
/* Tokens past len are gone. */
void target_kv_cut(struct gr_target *t, struct session *s, int32_t len);
/* A turn begins: all tokens may be seen, and the tail has no KV. */
void target_kv_begin_turn(struct gr_target *t, struct session *s);
/* What has no KV begins with the first n_block blocks of `from`, which has the same tokens there. */
void target_kv_fork(struct gr_target *t, struct session *s, const struct session *from, int32_t n_block);
/* What has no KV goes on with n_block more blocks, which the table has taken from the prefix cache. */
void target_kv_taken(struct session *s, int32_t n_block);
/* Pre-empted: the blocks are others' now. */
void target_kv_release(struct gr_target *t, struct session *s);
/* Rows of a pass follow. True: they are the first of a fork. */
bool target_kv_rows_run(struct session *s);
/* A chunk of the prompt has its KV, and what was copied before it. */
void target_kv_add(struct session *s, int32_t n_row);
/* All but the tail has full KV, and all may be seen. */
void target_kv_complete(struct session *s);
void target_kv_show_all(struct session *s);

/* ---- target_link.c ---- */
/* A RESYNC has come: the drafter holds the first told_len tokens. */
void target_link_attach(struct link *l, uint32_t peer, int32_t told_len, uint32_t fence_round);
void target_link_lose(struct link *l);
/* A drafter that has not come yet is not waited for any more. */
void target_link_expect_none(struct link *l);
void target_link_ask(struct link *l, uint32_t round, uint64_t now_ns);
void target_link_answered(struct link *l);
void target_link_heard(struct link *l);
void target_link_forget_asked(struct link *l);
void target_link_warm(struct link *l);
/* A DELTA is owed or not; never to a drafter that is not attached. */
void target_link_owe(struct link *l, bool delta);
void target_link_tell(struct link *l, int32_t len);
void target_link_forget_from(struct link *l, int32_t len);
void target_link_fence(struct link *l, uint32_t round);
void target_link_use(struct link *l, uint32_t round);

/* ---- target_next.c ---- */
void target_next_root(struct next_round *n, enum gr_spec_mode mode, uint64_t now_ns);
/* silence_ns: after its begin a round waits no longer than this, however often its drafter begins anew. */
void target_next_decide(struct next_round *n, const struct gr_spec_decision *d, uint64_t wait_ns, uint64_t silence_ns,
                        uint64_t now_ns);
void target_next_number(struct next_round *n);
/* Decoding begins after a prompt. */
void target_next_resume(struct next_round *n);
void target_next_want_none(struct next_round *n);
/* The tree is asked for only now: the wait begins anew. */
void target_next_asked_late(struct next_round *n, uint64_t now_ns);
void target_next_probe_sent(struct next_round *n);

/* ---- target_flight.c ---- */
void target_flight_start(struct gr_target *t);
void target_flight_ended(struct gr_target *t, uint64_t now_ns);
/* wait_ns: for the tree, before the pass. */
void target_flight_begin(struct in_flight *f, bool waited, bool clean, uint64_t wait_ns);
void target_flight_take_tree(struct in_flight *f, const struct walked_tree *w);
void target_flight_resync(struct in_flight *f);
void target_flight_land(struct in_flight *f);

/* ---- target_turn.c ---- */
void target_turn_begin(struct session *s, int32_t len_max, int32_t len_min);
void target_turn_preempt(struct session *s);
void target_turn_prefill(struct session *s);
/* It has taken n tokens from the prefix cache. */
void target_turn_taken(struct session *s, int32_t n);
/* Rows of the turn are to run from pos on. True: they are its first. */
bool target_turn_read(struct session *s, int32_t pos);
void target_turn_decode(struct session *s);
void target_turn_idle(struct session *s, uint64_t now_ns);
void target_turn_hold(struct session *s, const struct held_append *held);
void target_turn_forget_held(struct session *s);
/* A pass is on its way: this turn, or the one that is held, is cut when it is done. */
void target_turn_cut_later(struct session *s, int32_t len);
void target_turn_cut_done(struct session *s);

/* ---- target_view.c ---- */
void target_view_drop(struct session_specpv *pv);
void target_view_cut(struct session_specpv *pv, int32_t kv_len);
void target_view_ask(struct session_specpv *pv);
void target_view_full(struct session_specpv *pv);
void target_view_take(struct session_specpv *pv, int32_t dense_from, int32_t kv_len);
void target_view_partial(struct session_specpv *pv, enum gr_finish finish);

/* ---- target_rows.c ---- */
GR_NODISCARD enum gr_status target_rows_create(struct gr_target *t);
void target_rows_destroy(struct gr_target *t);
/* n_row rows one after the other, on both sides; wherever they are. */
void target_rows_copy(struct gr_target *t, void *to, const void *from, int32_t n_row);
/* Before what was copied may be written over. */
void target_rows_wait(struct gr_target *t);

/* ---- target_features.c ---- */
bool target_wants_features(const struct gr_target *t, const struct session *s);
/* What a pass of rows from q->pos0 on is to do about features. can_wait: nobody wants those of its rows soon. */
void target_plan_features(struct gr_target *t, struct session *s, struct gr_pass_seq *q, bool can_wait);
/* Captured states that were kept are wanted now: a pass that fuses them begins. False: none are. */
bool target_start_fuse_pass(struct gr_target *t);
void target_finish_fuse_pass(struct gr_target *t);
/* What the pass has brought, once its rows count as committed. */
void target_keep_features(struct gr_target *t, struct session *s, const struct gr_pass_seq *q);
void target_cut_features(struct session *s, int32_t len);
/* A fork begins with the tokens [0, len) of `from`: the features that are kept of them are its, too. */
void target_fork_features(struct gr_target *t, struct session *s, const struct session *from, int32_t len);
/* The first kv.len tokens are in blocks of the prefix cache: the session's features go on with those that are there. */
void target_take_features(struct gr_target *t, struct session *s);
/* Whole blocks of the prefix cache, the session's first n_block, get the features that it has of them. */
void target_store_features(struct gr_target *t, struct session *s, int32_t n_block);
/* What stays when the session is opened anew. */
struct feature_state target_kept_features(const struct session *s);
/* A RESYNC says where the drafter stands; peer_len is set. */
void target_restart_features(struct session *s, uint32_t feature_len, uint32_t feature_context);
void target_features_taken(struct session *s, const struct gr_frame_header *h);
/* The drafter cannot grow a tree on the committed prefix: the feature of its tail's row is not there. */
bool target_lacks_features(const struct session *s);
/* Sends what is due, rounds before prompts, as far as credit goes. False: this step has done its share, and more could
 * go out now. */
bool target_send_features(struct gr_target *t);

/* ---- target_walk.c: a DRAFT's tree along what was committed since ---- */
void target_walk_forget(struct walked_tree *w);
/* Follows the tokens committed since w->at_len; false: they leave the tree (it is then no longer valid). */
bool target_walk_tree(const struct session *s, struct walked_tree *w);
/* Nodes below the root that may still be committed, at most n_max; node_of[i]: node i's number in the DRAFT. */
void target_subtree(const struct walked_tree *w, int32_t depth_max, int32_t n_max, struct gr_token_tree *to,
                    uint8_t node_of[GR_NODE_MAX]);
bool target_has_children(const struct walked_tree *w); /* of the root */

/* ---- target_state.c: a session is found, cut, freed ---- */
/* Memory of a slot, once for all sessions that come. */
enum gr_status target_init_session(struct session *s, const struct gr_target_config *c);
void target_finish_session(struct session *s);
struct session *target_find(struct gr_target *t, uint64_t id);
/* Answers an OPEN or an APPEND. */
void target_send_error(struct gr_target *t, uint64_t session, enum gr_status code, const char *text);
/* This thread's lines are about it from now on (gr_log_about). */
void target_log_about(const struct session *s);
/* Less is done than was asked for: told and counted. detail may be NULL. */
void target_fall_back(struct gr_target *t, struct session *s, enum gr_fallback reason, const char *detail);
/* Trees that were drafted on tokens that are gone, or by a drafter that is, or asked for, count no more. */
void target_forget_trees(struct session *s);
/* A probe that was asked for is judged by nobody. */
void target_forget_probe_sent(struct session *s);
/* A probe that has come is judged by nobody. */
void target_forget_probe(struct session *s);
void target_append_token(struct session *s, int32_t token, enum token_kind kind);
/* Troubles that the next COMMIT tells; _told(): it has told them. */
void target_note_late(struct gr_target *t, struct session *s);
void target_note_desync(struct gr_target *t, struct session *s);
void target_note_reroot(struct gr_target *t, struct session *s);
void target_tally_told(struct session *s);
/* The drafter of this session is gone or unusable: root-only from here on. */
void target_drop_drafter(struct gr_target *t, struct session *s, enum gr_fallback reason);
/* Forgets tokens past len: KV, trees, what the drafter was told. */
void target_cut(struct gr_target *t, struct session *s, int32_t len);
/* Tokens past final_len are forgotten. */
void target_drop_provisional(struct gr_target *t, struct session *s);
/* The turn is over: KV stays, the reservation does not. */
void target_go_idle(struct gr_target *t, struct session *s, uint64_t now_ns);
/* Its blocks and its slot are free, and nobody is told. */
void target_clear_slot(struct gr_target *t, struct session *s);
/* Closed, as it was asked for. */
void target_free_session(struct gr_target *t, struct session *s);
/* It cannot go on, and is gone. */
void target_fail_session(struct gr_target *t, struct session *s, enum gr_status code, const char *text);
static inline int32_t target_n_missing(const struct session *s)
{
    return s->prefix.len - 1 - s->kv.len;
}
/* Missing tokens that the round decided on begins with. */
static inline int32_t target_n_chain(const struct session *s)
{
    const enum gr_specpv_round round = s->specpv.next.round;
    return round == GR_SPECPV_ROUND_REFRESH || round == GR_SPECPV_ROUND_JUDGE ? target_n_missing(s) : 0;
}
/* Rows of the tree that has come, at most. */
int32_t target_tree_rows_max(const struct session *s);
/* Rows of a decode pass; of the missing tokens a judgement has only those. */
int32_t target_decode_rows(const struct session *s);
/* Tokens whose cells the session holds between passes. */
static inline int32_t target_held_len(const struct session *s)
{
    return s->state == SESSION_DECODE ? s->prefix.len - 1 : s->kv.len;
}
static inline int32_t target_n_new_left(const struct session *s)
{
    return s->turn.len_max - s->prefix.len;
}

/* ---- target_price.c: what a pass costs, and in whose company ---- */
/* What rows of the round decided on attend to. */
struct gr_attended target_specpv_context(const struct session *s);
struct decoding target_decoding(const struct gr_target *t);
/* What a pass has brought is settled session by session, and each asks how many decode: between begin and end they are
 * not counted anew. next: from here on it is s whose state may change, and that of no other. */
void target_settle_begin(struct gr_target *t);
void target_settle_next(struct gr_target *t, const struct session *s);
void target_settle_end(struct gr_target *t);
/* Sessions in a turn: queued, reading a prompt or decoding. */
int target_in_turn(const struct gr_target *t);
/* By the sessions that decode; zeroes: not known. */
struct gr_outlook target_outlook(const struct gr_target *t);
/* A drafter has been asked for a tree that has not come: it is at work. */
bool target_is_drafting(const struct gr_target *t);
/* The group that n sessions which decode together are judged by; NULL: one is alone. */
struct gr_spec_group *target_group(struct gr_target *t, int n);
/* Trees have been of no use to as many sessions as are in a turn: those whose trees are sized by cost let their
 * drafters rest. */
bool target_drafters_rest(struct gr_target *t);
/* What rounds of the kind that comes next cost and bring. */
static inline struct gr_spec_econ *target_econ(struct session *s)
{
    return s->shares_pass ? &s->econ.shared : &s->econ.alone;
}
/* What a pass costs with this session's n_row rows and the other decoding sessions' usual ones. */
double target_pass_ns(const struct gr_target *t, const struct session *s, int32_t n_row);
/* The same, as a multiple of what it costs with one row of this session. */
double target_pass_ratio(const struct gr_target *t, const struct session *s, int32_t n_row);
/* What a pass costs that has these n_row rows alone. */
double target_alone_ns(const struct gr_target *t, int32_t n_row, struct gr_attended context);

/* ---- target_specpv.c ---- */
/* Sets up SpecPV by the session's wishes, once its prompt is there. */
void target_specpv_open(struct gr_target *t, struct session *s);
void target_refresh(struct gr_target *t, uint64_t id);
/* Decides how the next round is verified: specpv.next. n_level: of its tree. */
void target_specpv_decide(const struct gr_target *t, struct session *s, int32_t n_row, int32_t n_level);
/* Fills what the pass is told of it. none: a pass in which nothing of SpecPV runs. */
void target_specpv_fill_none(struct gr_pass_seq *q);
void target_specpv_fill(struct gr_target *t, struct session *s, struct gr_pass_seq *q);
/* Is what came back about chain rows in order? */
bool target_specpv_is_sound(const struct session *s, const struct gr_pass_seq *q);
/* Missing tokens were judged: counts, and takes back those that do not stand. Returns how many tokens of the base
 * do. */
int32_t target_specpv_settle(struct gr_target *t, struct session *s, const struct gr_pass_seq *q);
/* The round's tokens are appended: kv_len, final_len and the view follow. finish: what the walk or judgement says; an
 * end that is not judged becomes end_due. Returns what is final of it. */
enum gr_finish target_specpv_commit(struct gr_target *t, struct session *s, const struct gr_pass_seq *q,
                                    enum gr_finish finish);
uint8_t target_specpv_kind(const struct gr_pass_seq *q);
/* Tokens that a pass has judged with full KV, and those of them whose pick was another. */
struct judged {
    int32_t n_checked, n_mismatch;
};
struct judged target_specpv_judged(const struct gr_pass_seq *q);
/* Full verification from here on; why: said and counted. */
void target_specpv_off(struct gr_target *t, struct session *s, enum gr_fallback reason, const char *detail);
/* The mode that the session has, for OPENED: not the one that was asked for. */
enum gr_specpv_mode target_specpv_shown(const struct session *s);

/* ---- target_say.c: frames out ---- */
/* The prices that were told were another drafter's: this one is told anew. */
void target_forget_cost(struct session *s);
void target_send_cost(struct gr_target *t, struct session *s);
/* my_len: committed tokens of the session; 0: there is none. */
void target_send_desync(struct gr_target *t, uint32_t peer, const struct gr_frame_header *about,
                        enum gr_desync_reason reason, uint32_t my_len);
/* A tree is wanted for the round that comes, and has not been asked for. */
bool target_asks(const struct session *s);
/* h.flags: GR_FRAME_MORE where its drafter will be told of other sessions of the same pass. */
void target_send_verdict(struct gr_target *t, struct session *s, const struct gr_frame_header *h,
                         const struct gr_verdict *v, uint64_t now_ns);
/* more_follow: its drafter will be told of other sessions of the same pass. */
void target_send_deltas(struct gr_target *t, struct session *s, bool more_follow, uint64_t now_ns);

/* ---- target_round.c: the round that comes next ---- */
/* Decides what the next round is, and until when it waits. */
void target_begin_round(struct gr_target *t, struct session *s, uint64_t now_ns);
/* The next round waits for nothing and wants no tree. */
void target_begin_root(struct session *s, uint64_t now_ns);
/* A prompt has been computed, and its context taught what it costs: the round prices follow. */
void target_reprice(struct gr_target *t, struct session *s);
/* Fits econ's times to the context as it is. */
void target_reprice_from(struct session *s);
/* The prefix has its KV: the session decodes, and asks for a tree when one is wanted. */
void target_resume(struct gr_target *t, struct session *s, bool more_follow, uint64_t now_ns);
bool target_waits(const struct session *s, uint64_t now_ns);
void target_note_silence(struct gr_target *t, struct session *s, uint64_t now_ns);
void target_judge_probe(struct gr_target *t, struct session *s);

/* ---- target_hear.c: frames in (gr_target_on_frame) ---- */

/* ---- target_prefix.c: KV that other sessions have computed ---- */
GR_NODISCARD enum gr_status target_prefix_create(struct gr_target *t);
void target_prefix_destroy(struct gr_target *t);
/* Before the first rows of a turn: the session holds what blocks there are of its prompt. Returns how many it holds by
 * that: it goes on after them (target_prefix_taken), or lets go of them again (target_prefix_return). */
int32_t target_prefix_take(struct gr_target *t, struct session *s);
void target_prefix_taken(struct gr_target *t, struct session *s, int32_t n_block);
void target_prefix_return(struct gr_target *t, struct session *s);
/* The first rows of a turn are to run: what was looked up counts. */
void target_prefix_count(struct gr_target *t, const struct session *s);
/* What of it the orchestrator is told in a PONG. */
void target_prefix_tell(struct gr_target *t, struct gr_msg_pong *m);
/* A pass is done: the whole blocks of its sessions are others' to take. */
void target_prefix_publish_pass(struct gr_target *t);
/* A turn is cut at len: whole blocks of this session with tokens after it are nobody's to take any more. */
void target_prefix_forget(struct gr_target *t, const struct session *s, int32_t len);
/* No session holds a block: the cache keeps none either. */
void target_prefix_give_up(struct gr_target *t);
/* Reserves blocks for n_token tokens, idle ones of the prefix cache included. False: there are not so many. */
bool target_reserve(struct gr_target *t, struct session *s, int32_t n_token);

/* ---- target_room.c: KV blocks ---- */
/* An idle session is forgotten: its blocks or its slot are needed. False: none is idle. */
bool target_evict_idle(struct gr_target *t, const struct session *not_this);
/* Blocks for n_token tokens: evicts idle sessions, then pre-empts younger ones. False: not now. */
bool target_make_room(struct gr_target *t, struct session *s, int32_t n_token);
void target_admit_queued(struct gr_target *t, uint64_t now_ns);

/* ---- target_session.c: what the orchestrator asks ---- */
void target_open(struct gr_target *t, uint64_t id, const struct gr_msg_open *m);
void target_append(struct gr_target *t, uint64_t id, const struct gr_msg_append *m, uint64_t now_ns);
void target_truncate(struct gr_target *t, uint64_t id, const struct gr_msg_truncate *m, uint64_t now_ns);
void target_close(struct gr_target *t, uint64_t id);
/* The pass that a TRUNCATE came in is done: its round does not count, and the APPEND that was held begins. */
void target_end_cut_turn(struct gr_target *t, struct session *s, bool more_follow, uint64_t now_ns);

/* ---- target_fork.c: a session that begins with the tokens of another ---- */
/* Tokens in whole blocks that it will share with that one, and that need no blocks of its own. */
int32_t target_fork_saves(struct gr_target *t, const struct session *s);
/* It waits: the other computes KV that it can share. */
bool target_fork_waits(struct gr_target *t, const struct session *s);
/* Between passes: shares what whole blocks there are. */
void target_fork_blocks(struct gr_target *t, struct session *s);
/* KV of the n tokens after those that have some, in cells from `from` on. */
struct fork_part {
    int32_t n, from;
};
/* Its first rows are those before `end`: what is to be copied before they run. */
struct fork_part target_fork_part(struct gr_target *t, const struct session *s, int32_t end);

/* ---- target_gather.c: who is ready for a pass, and until when it waits for the others ---- */
struct gathering {
    bool decoding, ready, waiting, prefill;
    uint64_t wake_ns; /* the earliest deadline of those that wait for their trees */
    uint64_t go_ns;   /* when those that are ready stop waiting for the others */
};
struct gathering target_gather(const struct gr_target *t, uint64_t now_ns);

/* ---- target_fill.c: the rows of a pass ---- */
uint64_t target_start_pass(struct gr_target *t, uint64_t now_ns);

/* What a COMMIT tells of the pass's log-probabilities, borrowed. */
static inline void target_tell_logprobs(const struct gr_pass_seq *q, struct gr_msg_commit *m)
{
    const uint32_t n = (uint32_t)q->n_logprob_token;
    if (n > 0) {
        m->logprob_from = (uint32_t)q->logprob_from;
        m->logprobs = (struct gr_msg_floats){.p = q->logprob, .n = n * (uint32_t)q->n_logprob};
        m->logprob_ids = (struct gr_msg_ids){.p = q->logprob_id, .n = n * (uint32_t)(q->n_logprob - 1)};
    }
}

/* ---- target_not_finite.c: a row on the walk whose logits are not finite (q->odd_pos) ---- */
void target_not_finite(struct gr_target *t, struct session *s, const struct gr_pass_seq *q, uint64_t now_ns);

/* ---- target_verdict.c: a pass is done (gr_target_on_pass_done); target.c: the door ---- */

#endif

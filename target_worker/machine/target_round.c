/* What a session's next round is: its mode, how long it waits, and when it asks for a tree. */
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "target_worker/machine/target_internal.h"

#include <inttypes.h>

/* ---- the decision ---- */

/* A drafter is attached, or it is wished for and has not been given up. */
static bool expects_drafter(const struct session *s)
{
    return s->with_draft && (s->link.attached || !s->link.ever_attached);
}

static void tell_reason(struct gr_target *t, struct session *s, enum gr_fallback reason)
{
    if (reason != GR_FALLBACK_NONE && reason != s->next.reason) {
        target_fall_back(t, s, reason, NULL);
    }
}

/* The tokens that the limit leaves bound the length of a path, not the number of nodes: a wide tree finds more of them.
 * Levels that are too deep are cut when the tree enters its pass (target_subtree). 0: a pass without a tree brings all
 * that may come, or the drafter cannot grow one on this prefix yet. */
static int32_t n_node_max(const struct session *s)
{
    const bool none = target_n_new_left(s) <= 1 || (s->link.attached && target_lacks_features(s));
    return none ? 0 : (int32_t)s->wishes.n_node;
}

void target_begin_root(struct session *s, uint64_t now_ns)
{
    target_next_root(&s->next, s->with_draft ? GR_SPEC_ROOT : GR_SPEC_PLAIN, now_ns);
}

/* A probe that was sent while the session was alone says nothing about passes that it shares, and the other way round:
 * it is forgotten, and the next one is judged. */
static void note_sharing(struct session *s, bool shares_pass)
{
    if (s->shares_pass != shares_pass) {
        target_forget_probe(s);
        s->shares_pass = shares_pass;
    }
}

/* Only a session that is alone decides about its trees; of those that decode together the group does. */
static void log_wanted(struct session *s)
{
    const struct gr_spec_econ *e = &s->econ.alone;
    if (s->wishes.auto_tree && s->was_root != e->is_root) {
        s->was_root = e->is_root;
        log_debug("session %" GR_SESSION_ID_PRI
                  " round %u: trees %s: %.2f tokens in %.0f us, without %.0f us; latency %.0f us, next probe "
                  "in %u rounds",
                  s->id, s->next.round, e->is_root ? "given up" : "wanted again", e->tree_tokens, e->tree_ns / 1e3,
                  e->root_ns / 1e3, e->latency_ns / 1e3, e->until_probe);
    }
}

void target_begin_round(struct gr_target *t, struct session *s, uint64_t now_ns)
{
    if (s->specpv.end_due != GR_FINISH_NONE) {
        target_begin_root(s, now_ns); /* the next pass only judges whether the text ends here */
        return;
    }
    const struct decoding all = target_decoding(t);
    note_sharing(s, all.n > 1);
    const struct gr_spec_input in = {.want_draft = s->with_draft,
                                     .single_token = s->wishes.single_token,
                                     .has_drafter = expects_drafter(s),
                                     .n_fault = s->n_fault,
                                     .n_node_max = n_node_max(s),
                                     .automatic = s->wishes.auto_tree,
                                     .may_rest = t->config.feature_width > 0,
                                     .group = target_group(t, all.n),
                                     .n_group = all.n,
                                     .n_cold = all.n_cold,
                                     .warm = s->link.warm,
                                     .asked = s->link.asked,
                                     .econ = target_econ(s)};
    const struct gr_spec_decision d = gr_spec_mode_decide(&in);
    const double limit_ns = (double)t->config.round_deadline_ns;
    double wait_ns = 0.0;
    log_wanted(s);
    tell_reason(t, s, d.reason);
    if (d.mode == GR_SPEC_TREE && s->wishes.auto_tree) {
        wait_ns = gr_spec_econ_patience_ns(target_econ(s), limit_ns);
    } else if (d.mode == GR_SPEC_TREE) {
        wait_ns = gr_spec_fixed_patience_ns(target_econ(s), s->link.warm, s->link.silent_ns != 0, limit_ns);
    }
    target_next_decide(&s->next, &d, (uint64_t)wait_ns, GR_SILENT_DEADLINES * t->config.round_deadline_ns, now_ns);
}

void target_reprice_from(struct session *s)
{
    s->econ_len = s->prefix.len;
}

void target_reprice(struct gr_target *t, struct session *s)
{
    const double now_ns = target_alone_ns(t, 1, gr_attends_all(s->prefix.len));
    const double then_ns = target_alone_ns(t, 1, gr_attends_all(s->econ_len));
    /* A guess that no round has put right may rest on a table that had not seen any context when the session was
     * opened: it is replaced, not scaled. */
    const double guess_ns = s->econ.alone.n_clean == 0 ? s->econ.alone.root_ns : then_ns;
    if (guess_ns > 0.0 && then_ns > 0.0 && now_ns > 0.0) {
        gr_spec_econ_rescale(&s->econ.alone, now_ns / guess_ns);
        gr_spec_econ_rescale(&s->econ.shared, now_ns / then_ns);
    }
    target_reprice_from(s);
}

void target_resume(struct gr_target *t, struct session *s, bool more_follow, uint64_t now_ns)
{
    target_turn_decode(s);
    target_next_resume(&s->next);
    target_reprice(t, s);
    target_begin_round(t, s, now_ns);
    target_link_owe(&s->link, s->link.owes_delta || target_asks(s));
    target_send_deltas(t, s, more_follow, now_ns);
}

bool target_waits(const struct session *s, uint64_t now_ns)
{
    return s->next.mode == GR_SPEC_TREE && expects_drafter(s) && !s->draft.valid && now_ns < s->next.deadline_ns;
}

void target_note_silence(struct gr_target *t, struct session *s, uint64_t now_ns)
{
    if (s->link.attached && s->link.silent_ns != 0 &&
        now_ns - s->link.silent_ns >= GR_SILENT_DEADLINES * t->config.round_deadline_ns) {
        target_drop_drafter(t, s, GR_FALLBACK_DRAFTER_SILENT);
    }
}

/* ---- trees out of time ---- */

/* Nobody waited for this tree: what would it have brought? Its path is followed as tokens are committed. */
void target_judge_probe(struct gr_target *t, struct session *s)
{
    struct walked_tree *w = &s->probe;
    if (!w->valid || (target_walk_tree(s, w) && target_has_children(w))) {
        return;
    }
    target_walk_forget(w);
    gr_spec_econ_probed(target_econ(s), w->at_len - (int32_t)w->base_len, target_pass_ratio(t, s, 1 + w->tree.n));
}

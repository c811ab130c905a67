/* Frames out: VERDICT, DELTA, DESYNC, COST (FEATURES: target_features.c). Decisions D-035, D-047, D-073. */
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "target_worker/machine/target_internal.h"

#include <inttypes.h>
#include <string.h>

void target_send_desync(struct gr_target *t, uint32_t peer, const struct gr_frame_header *about,
                        enum gr_desync_reason reason, uint32_t my_len)
{
    const struct gr_frame_header h = {.session = about->session,
                                      .epoch = about->epoch,
                                      .round = about->round,
                                      .base_len = about->base_len,
                                      .prefix_hash = about->prefix_hash};
    uint8_t *out = t->io.frame_begin(t->io.ctx, peer, GR_FRAME_SMALL, GR_WIRE_HEADER_BYTES + 8);
    if (out != NULL) {
        size_t n = gr_wire_encode_desync(&h, reason, my_len, out, GR_WIRE_HEADER_BYTES + 8);
        t->io.frame_end(t->io.ctx, peer, (uint32_t)n);
    }
}

/* Sessions whose trees are sized by cost are told the same prices, and choose alike: a node that pays for one is one
 * that all will have, and each row holds up all. */
struct company {
    struct gr_pass_load others; /* rows of sessions that do not choose */
    struct {
        int n;
        int32_t n_token; /* tokens of all their contexts */
    } alike[2];          /* sessions under full attention, and those under a view */
};

static void add_company(struct company *c, const struct session *s, bool chooses)
{
    const struct gr_attended context = target_specpv_context(s);
    const bool has_trees = s->link.attached && !s->wishes.single_token && s->n_fault == 0;
    if (chooses || (has_trees && s->wishes.auto_tree)) {
        c->alike[context.view].n++;
        c->alike[context.view].n_token += context.n_token;
    } else {
        gr_pass_load_add(&c->others, has_trees ? 1 + (int32_t)s->wishes.n_node : 1, context);
    }
}

/* A pass in which those that choose have n_row rows each. */
static struct gr_pass_load load_of_all(const struct company *c, int32_t n_row)
{
    struct gr_pass_load load = c->others;
    for (int v = 0; v < 2; v++) {
        if (c->alike[v].n > 0) {
            gr_pass_load_add(&load, n_row, (struct gr_attended){.n_token = c->alike[v].n_token, .view = v});
            load.n_row += (c->alike[v].n - 1) * n_row;
        }
    }
    return load;
}

/* A price has moved by more than an eighth: the list is worth telling again. */
static bool moved(const struct gr_cost *a, const struct gr_cost *b)
{
    for (uint32_t i = 0; i < GR_MIN(a->n_point, b->n_point); i++) {
        const int64_t d = (int64_t)a->pass_ns[i] - (int64_t)b->pass_ns[i];
        if (llabs(d) * 8 > (int64_t)b->pass_ns[i]) {
            return true;
        }
    }
    return a->n_point != b->n_point || memcmp(a->n_row, b->n_row, sizeof(a->n_row)) != 0;
}

void target_send_cost(struct gr_target *t, struct session *s)
{
    if (!s->link.attached || !s->wishes.auto_tree) {
        return;
    }
    struct gr_pass_load load[GR_COST_POINT_MAX];
    int32_t n_row[GR_COST_POINT_MAX];
    struct company company = {0};
    struct gr_cost cost;
    for (int i = 0; i < t->config.n_session_max; i++) {
        const struct session *o = &t->session[i];
        if (o == s || o->state == SESSION_DECODE) {
            add_company(&company, o, o == s);
        }
    }
    const int n_point = gr_cost_list_rows(company.others.n_row, company.alike[0].n + company.alike[1].n, n_row);
    for (int i = 0; i < n_point; i++) {
        load[i] = load_of_all(&company, n_row[i]);
    }
    gr_cost_table_list(&t->cost, n_point, n_row, load, target_econ(s)->overhead_ns + s->wire_ns, &cost);
    s->cost_decode = target_decoding(t).n;
    if (!moved(&s->cost_told, &cost)) {
        return;
    }
    const struct gr_frame_header h = {.session = s->id, .epoch = s->epoch, .round = s->next.round};
    const uint32_t bytes = GR_WIRE_HEADER_BYTES + GR_WIRE_COST_BYTES(cost.n_point);
    uint8_t *out = t->io.frame_begin(t->io.ctx, s->link.peer, GR_FRAME_SMALL, bytes);
    if (out != NULL) { /* else another round tells */
        const size_t n = gr_wire_encode_cost(&h, &cost, out, bytes);
        t->io.frame_end(t->io.ctx, s->link.peer, (uint32_t)n);
        s->cost_told = cost;
        log_debug("session %" GR_SESSION_ID_PRI
                  " round %u: COST told: overhead %u us, 1 row %u, 2 rows %u, 3 rows %u, 4 rows %u, 64 rows %u",
                  s->id, s->next.round, cost.overhead_ns / 1000, cost.pass_ns[0] / 1000, cost.pass_ns[1] / 1000,
                  cost.pass_ns[2] / 1000, cost.pass_ns[3] / 1000, cost.pass_ns[cost.n_point - 1] / 1000);
    }
}

void target_forget_cost(struct session *s)
{
    s->cost_told.n_point = 0;
}

static void note_asked(struct gr_target *t, struct session *s, uint64_t now_ns)
{
    target_link_ask(&s->link, s->next.round, now_ns);
    if (s->next.mode == GR_SPEC_PROBE) {
        gr_spec_econ_probe_sent(target_econ(s));
        t->counters.n_probe++;
        target_next_probe_sent(&s->next);
    }
}

bool target_asks(const struct session *s)
{
    return s->state == SESSION_DECODE && !s->flight.in_pass && s->next.n_want > 0 && !s->draft.valid &&
           !(s->link.asked && s->link.asked_round == s->next.round);
}

/* Sends what the drafter is owed, as far as credit goes; the rest follows in a later step. */
void target_send_deltas(struct gr_target *t, struct session *s, bool more_follow, uint64_t now_ns)
{
    while (s->link.owes_delta && s->link.attached) {
        const uint32_t at = (uint32_t)s->link.told_len;
        const uint32_t n = GR_MIN((uint32_t)s->prefix.len - at, GR_DELTA_ID_MAX);
        const uint32_t end = at + n;
        const bool last = end == (uint32_t)s->prefix.len;
        const bool asks = last && target_asks(s);
        const unsigned flags = (last ? GR_DELTA_LAST : 0u) |
                               (asks ? GR_DELTA_DRAFT | GR_DELTA_WANT(s->next.n_want) : 0u) |
                               (more_follow ? GR_FRAME_MORE : 0u);
        const struct gr_frame_header h = {.session = s->id,
                                          .epoch = s->epoch,
                                          .round = s->next.round,
                                          .base_len = end,
                                          .prefix_hash = s->prefix.hash[end],
                                          .flags = (uint16_t)flags};
        const uint32_t bytes = GR_WIRE_HEADER_BYTES + 8 + 4 * n;
        if (asks && s->cost_told.n_point == 0) {
            target_send_cost(t, s);
        }
        uint8_t *out = t->io.frame_begin(t->io.ctx, s->link.peer, GR_FRAME_SMALL, bytes);
        if (out == NULL) {
            return;
        }
        const size_t n_bytes = gr_wire_encode_delta(&h, at, &s->prefix.token[at], n, out, bytes);
        t->io.frame_end(t->io.ctx, s->link.peer, (uint32_t)n_bytes);
        target_link_tell(&s->link, (int32_t)end);
        target_link_owe(&s->link, !last);
        if (asks) {
            note_asked(t, s, now_ns);
        }
        if (asks && s->next.mode == GR_SPEC_TREE) {
            target_next_asked_late(&s->next, now_ns);
        }
    }
    target_link_owe(&s->link, s->link.owes_delta);
}

void target_send_verdict(struct gr_target *t, struct session *s, const struct gr_frame_header *h,
                         const struct gr_verdict *v, uint64_t now_ns)
{
    const int32_t told_len = s->link.told_len;
    target_link_forget_from(&s->link, (int32_t)v->keep_len); /* after a roll-back a DELTA would begin there */
    if (!s->link.attached || s->link.owes_delta) {
        return; /* nobody listens, or the tokens go with the DELTA that is under way */
    }
    if (told_len != (int32_t)h->base_len || (s->flight.resync && v->n_path > 0)) {
        /* It was left out of earlier rounds, or does not know the nodes: a DELTA says it all. */
        target_link_owe(&s->link, target_asks(s));
        target_send_deltas(t, s, (h->flags & GR_FRAME_MORE) != 0, now_ns);
        return;
    }
    const bool silent = v->n_want == 0 && v->draft_round == GR_WIRE_ROOT_ONLY && v->finish == GR_FINISH_NONE;
    if (silent) {
        return; /* K = 0: the drafter rests */
    }
    const uint32_t bytes = GR_WIRE_HEADER_BYTES + GR_WIRE_VERDICT_BYTES(v->n_path);
    uint8_t *out = t->io.frame_begin(t->io.ctx, s->link.peer, GR_FRAME_SMALL, bytes);
    if (out == NULL) {
        target_link_owe(&s->link, true); /* the drafter does not keep up; the tokens follow as a DELTA when it does */
        return;
    }
    const size_t n = gr_wire_encode_verdict(h, v, out, bytes);
    t->io.frame_end(t->io.ctx, s->link.peer, (uint32_t)n);
    target_link_tell(&s->link, s->prefix.len);
    if (v->n_want > 0) {
        note_asked(t, s, now_ns);
    }
}

/* The models of a fleet: which names stand for which, and the one that a session has. A model is known by its
 * fingerprint; targets give it its names. A name stays known while its targets are away, so that who names no model is
 * not served by another one meanwhile; it is forgotten when its targets have left in order. */
#include "common/base/log.h"
#include "orchestrator/machine/orch_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Its place; -1: nobody has given this name. */
static int place_of_name(const struct gr_orch *o, const char *name)
{
    for (int i = 0; i < o->models.n; i++) {
        if (strcmp(o->models.name[i].text, name) == 0) {
            return i;
        }
    }
    return -1;
}

static struct orch_name *find_name(struct gr_orch *o, const char *name)
{
    const int i = place_of_name(o, name);
    return i >= 0 ? &o->models.name[i] : NULL;
}

static bool runs(const struct worker *w, uint64_t fingerprint)
{
    return w->joined && w->info.role == GR_WORKER_TARGET && w->info.model_fingerprint == fingerprint;
}

/* The number of a target that runs it, from 1; 0: none does. name NULL: under any. */
static uint32_t target_of(const struct gr_orch *o, uint64_t fingerprint, const char *name)
{
    for (uint32_t i = 0; i < (uint32_t)o->n_worker_max; i++) {
        const struct worker *w = &o->worker[i];
        if (runs(w, fingerprint) && (name == NULL || strcmp(w->info.model, name) == 0)) {
            return i + 1;
        }
    }
    return 0;
}

static bool has_sessions(const struct gr_orch *o, uint64_t fingerprint)
{
    bool has = false;
    for (int i = 0; i < o->n_place; i++) {
        const struct session *s = orch_at(o, i);
        has = has || (s->state != GR_SESSION_FREE && s->model.bound && s->model.fingerprint == fingerprint);
    }
    return has;
}

/* ---- targets come and go ---- */

bool orch_model_is_taken(struct gr_orch *o, const struct gr_worker_info *info, char text[GR_MSG_TEXT_MAX])
{
    const struct orch_name *n = find_name(o, info->model);
    if (n == NULL || !gr_orch_differ(n->fingerprint, info->model_fingerprint)) {
        return false;
    }
    const uint32_t target = target_of(o, n->fingerprint, n->text);
    if (target == 0 && !has_sessions(o, n->fingerprint)) {
        return false; /* it is another model's from now on */
    }
    char whose[48] = "of open sessions (`graft session purge')";
    if (target > 0) {
        snprintf(whose, sizeof(whose), "of target worker %u", target);
    }
    snprintf(text, GR_MSG_TEXT_MAX,
             "model `%.48s' of this target has fingerprint %016" PRIx64 ", that %s of this name %016" PRIx64
             ": another --served-model-name is needed",
             info->model, info->model_fingerprint, whose, n->fingerprint);
    return true;
}

/* One that no worker and no session needs; NULL: all are needed. */
static struct orch_name *unused_name(struct gr_orch *o)
{
    for (int i = 0; i < o->models.n; i++) {
        struct orch_name *n = &o->models.name[i];
        if (target_of(o, n->fingerprint, n->text) == 0 && !has_sessions(o, n->fingerprint)) {
            return n;
        }
    }
    return NULL;
}

void orch_model_join(struct gr_orch *o, const struct gr_worker_info *info)
{
    struct orch_name *n = find_name(o, info->model);
    if (n == NULL) {
        n = o->models.n < GR_ORCH_WORKER_MAX ? &o->models.name[o->models.n++] : unused_name(o);
    }
    if (n == NULL) {
        log_warn("model `%s' has more names than are kept: no request can name it so", info->model);
        return;
    }
    *n = (struct orch_name){.fingerprint = info->model_fingerprint, .tokenizer = info->tokenizer_fingerprint};
    snprintf(n->text, sizeof(n->text), "%s", info->model);
}

void orch_model_leave(struct gr_orch *o, const struct gr_worker_info *info)
{
    if (info->role != GR_WORKER_TARGET || target_of(o, info->model_fingerprint, NULL) > 0) {
        return;
    }
    for (int i = 0; i < o->models.n; i++) {
        struct orch_name *n = &o->models.name[i];
        n->has_left = n->has_left || n->fingerprint == info->model_fingerprint;
    }
}

bool gr_orch_model(const struct gr_orch *o, const char *name, uint64_t *fingerprint_out)
{
    const int i = place_of_name(o, name);
    *fingerprint_out = i >= 0 ? o->models.name[i].fingerprint : 0;
    return i >= 0 && !o->models.name[i].has_left;
}

/* ---- which one a session has ---- */

/* What may be meant by a request that names none. */
static bool is_candidate(const struct orch_name *n, uint64_t tokenizer)
{
    return !n->has_left && !gr_orch_differ(n->tokenizer, tokenizer);
}

/* The candidates' model; *n_out: how many models they are of. */
static const struct orch_name *only_candidate(const struct gr_orch *o, uint64_t tokenizer, int *n_out)
{
    const struct orch_name *only = NULL;
    *n_out = 0;
    for (int i = 0; i < o->models.n; i++) {
        const struct orch_name *n = &o->models.name[i];
        if (is_candidate(n, tokenizer) && (only == NULL || n->fingerprint != only->fingerprint)) {
            only = only == NULL ? n : only;
            ++*n_out;
        }
    }
    return only;
}

static void list_names(const struct gr_orch *o, char *text, size_t cap)
{
    size_t at = strlen(text);
    const char *before = "";
    for (int i = 0; i < o->models.n && at < cap; i++) {
        const struct orch_name *n = &o->models.name[i];
        if (!n->has_left) {
            at += (size_t)snprintf(text + at, cap - at, "%s`%s'%s", before, n->text,
                                   target_of(o, n->fingerprint, NULL) == 0 ? " (away)" : "");
            before = ", ";
        }
    }
}

static enum gr_status choose_named(struct gr_orch *o, const char *name, uint64_t *out, char text[GR_MSG_TEXT_MAX])
{
    const struct orch_name *n = find_name(o, name);
    if (n != NULL) {
        *out = n->fingerprint;
        return GR_OK;
    }
    if (o->models.n == 0) {
        return GR_AGAIN;
    }
    snprintf(text, GR_MSG_TEXT_MAX, "there is no model `%.64s' here, but: ", name);
    list_names(o, text, GR_MSG_TEXT_MAX);
    return GR_ENOTFOUND;
}

enum gr_status orch_model_choose(struct gr_orch *o, const char *name, uint64_t tokenizer, uint64_t *out,
                                 char text[GR_MSG_TEXT_MAX])
{
    int n = 0;
    text[0] = '\0';
    if (name != NULL && name[0] != '\0') {
        return choose_named(o, name, out, text);
    }
    const struct orch_name *only = only_candidate(o, tokenizer, &n);
    if (n == 0) { /* where there is one model at all, who opens the session tells that it is another tokenizer's */
        only = only_candidate(o, 0, &n);
    }
    if (n == 1) {
        *out = only->fingerprint;
        return GR_OK;
    }
    if (n == 0) {
        return GR_AGAIN;
    }
    snprintf(text, GR_MSG_TEXT_MAX, "several models are here, say which by --served-model-name: ");
    list_names(o, text, GR_MSG_TEXT_MAX);
    return GR_EINVAL;
}

void orch_model_wish(struct session *s, const char *name)
{
    snprintf(s->model.wish, sizeof(s->model.wish), "%s", name != NULL ? name : "");
}

void orch_model_restore(struct session *s, const char *name, uint64_t fingerprint)
{
    orch_model_wish(s, name);
    s->model.fingerprint = fingerprint;
    s->model.bound = fingerprint != 0;
}

enum gr_status orch_model_bind(struct gr_orch *o, struct session *s, char text[GR_MSG_TEXT_MAX])
{
    if (s->model.bound) {
        return GR_OK;
    }
    const enum gr_status st =
        orch_model_choose(o, s->model.wish, s->request.tokenizer_fingerprint, &s->model.fingerprint, text);
    s->model.bound = st == GR_OK;
    return st;
}

bool orch_model_is(const struct session *s, const struct gr_worker_info *target)
{
    return s->model.bound && !gr_orch_differ(s->model.fingerprint, target->model_fingerprint);
}

void orch_model_name(const struct gr_orch *o, const struct session *s, char text[GR_MODEL_NAME_MAX])
{
    snprintf(text, GR_MODEL_NAME_MAX, "%s", s->model.wish);
    for (int i = 0; s->model.bound && text[0] == '\0' && i < o->models.n; i++) {
        const struct orch_name *n = &o->models.name[i];
        if (n->fingerprint == s->model.fingerprint) {
            snprintf(text, GR_MODEL_NAME_MAX, "%s", n->text);
        }
    }
}

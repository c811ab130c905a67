#include "bench/sweep/line.h"

#include "bench/paths.h"
#include "common/base/device.h"
#include "common/process/program.h"
#include "common/process/shell_words.h"

#include <stdarg.h>
#include <stdint.h>
#include <string.h>

void gr_line_begin(struct gr_line *l, const char *program)
{
    l->n_text = 0;
    snprintf(l->program, sizeof(l->program), "%s", gr_program_sibling(program));
    gr_child_args_begin(&l->args, l->program);
}

const char *gr_line_keep(struct gr_line *l, const char *fmt, ...)
{
    GR_ASSERT(l->n_text < GR_LINE_TEXT_MAX);
    char *to = l->text[l->n_text++];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(to, sizeof(l->text[0]), fmt, ap);
    va_end(ap);
    return to;
}

void gr_line_words(struct gr_line *l, const char *text)
{
    char *save = NULL;
    char *copy = (char *)(uintptr_t)gr_line_keep(l, "%s", text != NULL ? text : "");
    for (char *w = strtok_r(copy, " ", &save); w != NULL; w = strtok_r(NULL, " ", &save)) {
        gr_child_args_add_flag(&l->args, w, true);
    }
}

const char *gr_line_devices(struct gr_line *l, const struct gr_sweep *s, int first, int n)
{
    const struct gr_devices *d = &s->o.devices;
    char text[256] = "";
    if (d->device[0] == GR_DEVICE_CPU) {
        return "cpu";
    }
    for (int i = 0; i < n; i++) {
        const size_t at = strlen(text);
        snprintf(text + at, sizeof(text) - at, "%scuda:%d", i > 0 ? "," : "", (int)d->device[first + i]);
    }
    return gr_line_keep(l, "%s", text);
}

static bool on_gpu(const struct gr_sweep *s)
{
    return s->o.devices.device[0] != GR_DEVICE_CPU;
}

/* What targets and drafters are told alike. */
static void add_common(struct gr_line *l, const struct gr_sweep *s, const char *join)
{
    struct gr_child_args *a = &l->args;
    gr_child_args_add(a, "--join", join);
    gr_child_args_add_number(a, "--sessions", s->n_slot);
    gr_child_args_add_number(a, "--max-model-len", s->n_ctx_max);
    gr_child_args_add(a, "--geometry", s->o.geometry);
    if (s->site.device_cpu > 0) {
        gr_child_args_add_number(a, "--threads", s->site.device_cpu);
    }
    if (on_gpu(s)) {
        gr_child_args_add(a, "--tuned", s->o.tuned);
        gr_child_args_add_flag(a, "--require-tuned", s->o.require_tuned);
    }
    if (gr_bench_is_given(&s->o, GR_BENCH_OPTION_draft_context)) {
        gr_child_args_add_number(a, "--draft-context", s->o.draft_context);
    }
    gr_line_words(l, s->o.worker_options);
}

void gr_line_target(struct gr_line *l, const struct gr_sweep *s, const struct gr_sweep_life *life,
                    const struct gr_place *place, const char *join)
{
    struct gr_child_args *a = &l->args;
    const struct gr_fleet *f = life->fleet;
    const bool colocated = f->whole && !life->bare;
    gr_line_begin(l, "graft-target");
    gr_child_args_add(a, "--model", s->model);
    gr_child_args_add(a, "--device", gr_line_devices(l, s, place->device, f->tp));
    if (f->tp > 1) {
        gr_child_args_add_number(a, "--tensor-parallel-size", f->tp);
    }
    add_common(l, s, join);
    gr_child_args_add(a, "--head", s->draft_is_head && !life->bare ? s->draft : NULL);
    if (colocated) {
        gr_child_args_add(a, "--colocate-draft", s->draft);
        gr_child_args_add(a, "--draft-device", gr_line_devices(l, s, place->device, 1));
    } else if (!f->whole) {
        gr_child_args_add(a, "--transport", gr_bench_choice(&s->o, GR_BENCH_OPTION_transport));
    }
    if (colocated && s->site.device_cpu > 0) {
        gr_child_args_add_number(a, "--draft-threads", s->site.device_cpu);
    }
}

void gr_line_draft(struct gr_line *l, const struct gr_sweep *s, const struct gr_place *place, const char *join)
{
    struct gr_child_args *a = &l->args;
    gr_line_begin(l, "graft-draft");
    gr_child_args_add(a, "--model", s->draft);
    gr_child_args_add(a, "--device", gr_line_devices(l, s, place->device, 1));
    add_common(l, s, join);
    gr_child_args_add(a, "--target", s->draft_is_head ? s->model : NULL);
    gr_child_args_add(a, "--transport", gr_bench_choice(&s->o, GR_BENCH_OPTION_transport));
}

/* What this command line says and the clients take as well. */
static void hand_on(struct gr_line *l, const struct gr_sweep *s)
{
    for (int i = 0; i < GR_BENCH_N_OPTION; i++) {
        const struct gr_option *r = gr_bench_option((enum gr_bench_option_id)i);
        const bool both = gr_option_is_for(r, GR_BENCH_CLIENTS) && gr_option_is_for(r, GR_BENCH_SWEEP);
        char number[GR_OPTION_TEXT_MAX];
        const char *value = gr_option_text(&s->o.values, r, number);
        if (both && value != NULL && gr_bench_is_given(&s->o, (enum gr_bench_option_id)i) && r->kind != GR_KIND_FLAG &&
            i != GR_BENCH_OPTION_format && i != GR_BENCH_OPTION_model) {
            gr_child_args_add(&l->args, gr_line_keep(l, "--%s", r->name),
                              value == number ? gr_line_keep(l, "%s", number) : value);
        }
    }
}

void gr_line_clients(struct gr_line *l, const struct gr_sweep *s, const struct gr_sweep_life *life, const char *connect)
{
    const struct gr_fleet *f = life->fleet;
    char sessions[256] = "";
    for (int i = 0; i < life->sessions.n; i++) {
        const size_t at = strlen(sessions);
        snprintf(sessions + at, sizeof(sessions) - at, "%s%d", i > 0 ? "," : "", (int)life->sessions.value[i]);
    }
    gr_line_begin(l, "graft-bench");
    gr_child_args_add_flag(&l->args, "clients", true);
    gr_child_args_add(&l->args, "--connect", connect);
    gr_child_args_add(&l->args, "--model", s->model);
    gr_child_args_add_number(&l->args, "--targets", f->n_target);
    gr_child_args_add_number(&l->args, "--drafters", life->bare ? 0 : f->whole ? f->n_target : f->n_draft);
    gr_child_args_add(&l->args, "--sessions", gr_line_keep(l, "%s", sessions));
    gr_child_args_add(&l->args, "--modes",
                      life->plain && life->trees ? "plain,trees"
                      : life->plain              ? "plain"
                                                 : "trees");
    hand_on(l, s);
    gr_child_args_add(&l->args, "--format", "jsonl");
}

void gr_words_print(const char *const *word, FILE *out)
{
    gr_shell_words_print(word, out);
    fputc('\n', out);
}

/* What a generation shows on the way: progress, text, trees. */
#include "common/base/log.h"
#include "common/base/out_guard.h"
#include "orchestrator/cli/generate_internal.h"
#include "orchestrator/cli/text_out.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the progress line ---- */

void gr_generation_progress(struct gr_generation *g, const char *fmt, uint64_t a, uint64_t b)
{
    if (isatty(STDERR_FILENO) && !g->o->trace) {
        fputs("\r\033[K", stderr);
        fprintf(stderr, fmt, a, b);
        fflush(stderr);
        g->progress_shown = true;
    }
}

void generation_clear_progress(struct gr_generation *g)
{
    if (g->progress_shown) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
        g->progress_shown = false;
    }
}

void gr_generation_fail(struct gr_generation *g, const char *text)
{
    if (text != NULL && text[0] != '\0') {
        generation_clear_progress(g);
        log_error("%s", text);
    }
    g->failed = true;
}

/* ---- text and trees ---- */

FILE *generation_trace_to(struct gr_generation *g)
{
    if (g->held.f == NULL && !g->o->json && !g->silent && isatty(STDOUT_FILENO) && isatty(STDERR_FILENO)) {
        g->held.f = open_memstream(&g->held.text, &g->held.len);
    }
    return g->held.f != NULL ? g->held.f : stderr;
}

void generation_show_held(struct gr_generation *g)
{
    if (g->held.f == NULL) {
        return;
    }
    if (fclose(g->held.f) == 0) {
        fwrite(g->held.text, 1, g->held.len, stderr);
    }
    free(g->held.text);
    g->held.f = NULL;
    g->held.text = NULL;
    g->held.len = 0;
}

/* False: it cannot be written; where nobody reads it any more that is no error to tell, and what a signal has cut is
 * ended by who reads signals. */
static bool write_out(struct gr_generation *g, const char *text, size_t len)
{
    if (len == 0 || gr_text_out(text, len)) {
        return true;
    }
    if (gr_out_cut_by() != 0) {
        return false;
    }
    g->pipe_closed = errno == EPIPE;
    gr_generation_fail(g, g->pipe_closed ? "" : "cannot write to standard output");
    return false;
}

/* Trees go where a line of the text ends, if one does. */
static bool write_around_trees(struct gr_generation *g, const char *text, size_t len)
{
    const char *line_end = memrchr(text, '\n', len);
    const size_t n = line_end != NULL ? (size_t)(line_end - text) + 1 : 0;
    if (!write_out(g, text, n)) {
        return false;
    }
    if (n > 0) {
        generation_show_held(g);
    }
    return write_out(g, text + n, len - n);
}

bool gr_generation_lacks_rdma(const struct gr_generation *g)
{
    return g->plan.require_rdma && g->plan.wishes.want_draft && strcmp(g->metrics.transport, "verbs") != 0;
}

bool generation_show_text(struct gr_generation *g)
{
    size_t len = 0;
    if (gr_generation_lacks_rdma(g) || g->waits) {
        return true;
    }
    const char *text = gr_text_stream_take(&g->turn.stream, &len);
    if (g->o->json || g->silent || len == 0) {
        return true;
    }
    if (isatty(STDOUT_FILENO)) {
        generation_clear_progress(g);
    }
    return write_around_trees(g, text, len);
}

bool generation_has_open_line(const struct gr_generation *g)
{
    return g->turn.stream.len > 0 && g->turn.stream.text[g->turn.stream.len - 1] != '\n';
}

void generation_show_heading(struct gr_generation *g, const char *before)
{
    char line[64];
    const int n =
        snprintf(line, sizeof(line), "%s==> answer %u <==\n", before, (unsigned)g->plan.wishes.sampling.choice);
    if (g->n_answer > 1 && !g->o->json && !g->silent) {
        (void)write_out(g, line, (size_t)n);
    }
}

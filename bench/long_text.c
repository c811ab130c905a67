#include "bench/long_text.h"

#include "bench/graft_run.h"
#include "common/base/log.h"
#include "model/tokenizer/tokenizer_of_model.h"

#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX (16u << 20) /* bytes of all texts together */

/* Texts one after another, a blank line between. */
struct joined {
    char *text; /* owned */
    size_t len;
};

static enum gr_status append(struct joined *j, const char *text, size_t len)
{
    if (len > TEXT_MAX - j->len) {
        log_error("the texts are longer than %u bytes", TEXT_MAX);
        return GR_ELIMIT;
    }
    char *more = realloc(j->text, j->len + len + 2);
    if (more == NULL) {
        log_error("out of memory for %zu bytes of text", j->len + len);
        return GR_ENOMEM;
    }
    j->text = more;
    memcpy(more + j->len, text, len);
    memcpy(more + j->len + len, "\n\n", 2);
    j->len += len + 2;
    return GR_OK;
}

static enum gr_status append_file(struct joined *j, const char *path)
{
    static char buffer[1 << 20];
    FILE *f = fopen(path, "re");
    if (f == NULL) {
        log_error("%s: %s", path, strerror(errno));
        return GR_EIO;
    }
    const size_t n = fread(buffer, 1, sizeof(buffer), f);
    const bool whole = !ferror(f) && n < sizeof(buffer);
    fclose(f);
    if (!whole) {
        log_error("%s: cannot be read, or is larger than %zu bytes", path, sizeof(buffer) - 1);
        return GR_EIO;
    }
    return append(j, buffer, n);
}

static enum gr_status append_pattern(struct joined *j, const char *pattern)
{
    glob_t g = {0};
    enum gr_status st = glob(pattern, 0, NULL, &g) == 0 ? GR_OK : GR_ENOTFOUND;
    if (st != GR_OK) {
        log_error("--text %s: no such files; run it in the source folder, or give --prompts", pattern);
    }
    for (size_t i = 0; i < g.gl_pathc && st == GR_OK; i++) {
        st = append_file(j, g.gl_pathv[i]);
    }
    globfree(&g);
    return st;
}

static enum gr_status append_prompts(struct joined *j, const char *path, const char *kind)
{
    const char *prompt[GR_BENCH_PROMPT_MAX];
    const int n = gr_bench_load_prompts(path, kind, prompt);
    for (int i = 0; i < n; i++) {
        GR_TRY(append(j, prompt[i], strlen(prompt[i])));
    }
    return n > 0 ? GR_OK : GR_EFORMAT;
}

static enum gr_status encode(const char *model, const struct joined *j, struct gr_long_text *out)
{
    struct gr_tokenizer *tok = NULL;
    size_t n = 0;
    GR_TRY(gr_tokenizer_of_model_required(model, &tok));
    const size_t cap = gr_tokenizer_encode_bound(tok, j->len);
    struct gr_long_text t = {.id = malloc((cap + 1) * sizeof(*t.id)), .bos = gr_tokenizer_bos_id(tok)};
    enum gr_status st = t.id == NULL ? GR_ENOMEM : gr_tokenizer_encode(tok, j->text, j->len, false, t.id, cap, &n);
    gr_tokenizer_destroy(tok);
    t.n = (int32_t)n;
    if (st != GR_OK) {
        log_error("%zu bytes of text cannot be encoded", j->len);
        free(t.id);
        return st;
    }
    *out = t;
    return GR_OK;
}

enum gr_status gr_long_text_load(const char *model, const char *prompts, const char *kind, const char *pattern,
                                 struct gr_long_text *out)
{
    struct joined j = {0};
    enum gr_status st = prompts != NULL ? append_prompts(&j, prompts, kind) : append_pattern(&j, pattern);
    if (st == GR_OK) {
        st = encode(model, &j, out);
    }
    free(j.text);
    return st;
}

void gr_long_text_free(struct gr_long_text *t)
{
    free(t->id);
    t->id = NULL;
}

enum gr_status gr_long_text_window(const struct gr_long_text *t, int i, int n_window, int32_t n_id, int32_t *id_out)
{
    const int32_t n_bos = t->bos >= 0;
    const int32_t n = n_id - n_bos;
    if (n > t->n) {
        log_error("a context of %d tokens was asked for, the texts have %d: give longer ones with --prompts", n_id,
                  t->n);
        return GR_ELIMIT;
    }
    const int32_t begin = n_window > 1 ? (int32_t)((int64_t)(t->n - n) * i / (n_window - 1)) : 0;
    if (n_bos > 0) {
        id_out[0] = t->bos;
    }
    memcpy(id_out + n_bos, t->id + begin, (size_t)n * sizeof(*id_out));
    return GR_OK;
}

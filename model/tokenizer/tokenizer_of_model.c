#include "model/tokenizer/tokenizer_of_model.h"

#include <limits.h>
#include <unistd.h>

#include "common/base/log.h"
#include "model/files/gguf_model.h"
#include "model/files/json_util.h"
#include "model/files/model_path.h"
#include "model/tokenizer/tokenizer_parts.h"

static enum gr_status of_folder(const char *path, struct gr_tokenizer **out)
{
    char file[PATH_MAX];
    GR_TRY(gr_path_join(file, sizeof(file), path, "tokenizer.json"));
    return access(file, F_OK) == 0 ? gr_tokenizer_load(path, out) : GR_OK;
}

enum gr_status gr_tokenizer_of_files(const char *path, const struct gr_gguf *gguf, struct gr_tokenizer **out)
{
    *out = NULL;
    if (gguf == NULL) {
        GR_TRY(of_folder(path, out));
    } else if (gr_gguf_has_tokenizer(gguf)) {
        GR_TRY(gr_tokenizer_from_metadata(path, gguf, out));
    }
    if (*out == NULL) {
        log_info("%s: has no " GR_TOKENIZER_PLACES ": token ids only", path);
    }
    return GR_OK;
}

enum gr_status gr_tokenizer_of_model(const char *path, struct gr_tokenizer **out)
{
    enum gr_model_kind kind = GR_MODEL_FOLDER;
    struct gr_tensors *ts = NULL;
    *out = NULL;
    GR_TRY(gr_model_path_kind(path, &kind));
    GR_TRY(kind == GR_MODEL_GGUF ? gr_gguf_model_open(path, NULL, &ts) : GR_OK);
    const enum gr_status st = gr_tokenizer_of_files(path, ts != NULL ? gr_gguf_model_metadata(ts) : NULL, out);
    gr_tensors_close(ts);
    return st;
}

enum gr_status gr_tokenizer_of_model_required(const char *path, struct gr_tokenizer **out)
{
    GR_TRY(gr_tokenizer_of_model(path, out));
    if (*out == NULL) {
        log_error("%s: has no " GR_TOKENIZER_PLACES ", which text needs", path);
        return GR_ENOTFOUND;
    }
    return GR_OK;
}

enum gr_status gr_tokenizer_of_worker(const char *path, uint64_t *fingerprint_out, int32_t *n_token_out)
{
    struct gr_tokenizer *tok = NULL;
    char unused[8] = "";
    gr_log_hold(unused, sizeof(unused));
    const enum gr_status st = gr_tokenizer_of_model(path, &tok);
    gr_log_hold(NULL, 0);
    GR_TRY(st != GR_OK ? gr_tokenizer_of_model(path, &tok) : GR_OK); /* what is wrong is told, by the same once more */
    *fingerprint_out = gr_tokenizer_fingerprint_or_0(tok);
    *n_token_out = gr_tokenizer_n_vocab_or_all(tok);
    gr_tokenizer_destroy(tok);
    return GR_OK;
}

#include "model/tokenizer/tokenizer_of_model.h"

#include "common/base/log.h"
#include "model/files/model_path.h"

enum gr_status gr_tokenizer_of_model(const char *path, struct gr_tokenizer **out)
{
    bool there = false;
    *out = NULL;
    GR_TRY(gr_model_path_has_tokenizer(path, &there));
    if (!there) {
        log_info("%s: no tokenizer that is read (a folder's tokenizer.json): token ids only", path);
        return GR_OK;
    }
    return gr_tokenizer_load(path, out);
}

/* What a load asks for: bodies of requests as JSON texts, made of the prompts of a file, or of random token ids. */
#ifndef GR_BENCH_SERVE_BODIES_H
#define GR_BENCH_SERVE_BODIES_H

#include "bench/options/options.h"
#include "common/base/status.h"

struct gr_bodies {
    char **body; /* owned, (n), owned */
    int n;
};

/* o: of `serve'; model: its name in requests. At most as many bodies as there are requests: a file with fewer prompts
 * is gone through in turn. GR_EINVAL, GR_EIO, GR_EFORMAT, GR_ENOTFOUND: logged. On failure, too, gr_bodies_free()
 * frees what there is. */
GR_NODISCARD enum gr_status gr_bodies_make(const struct gr_bench_options *o, const char *model, struct gr_bodies *out);
void gr_bodies_free(struct gr_bodies *b);

#endif

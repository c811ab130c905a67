/* The inner values of an EAGLE-3 head for a prompt, as a .safetensors file, and two such files compared stage by stage:
 * how a head is held against another implementation of it. Tensors, f32, one row a position t of the prompt:
 *   captured         what enters the captured layers of the target, side by side
 *   fc_out           the fused feature
 *   attn_input       normed embedding of token t + 1, normed feature (2H)
 *   attn_out         o_proj's output, before the residual
 *   ffn_out          down_proj's output, before the residual
 *   hidden           what is fed back
 *   pre_head_hidden  what lm_head is given
 *   logits           over the draft vocabulary
 * and ids (i32): the prompt and the target's own next token. */
#ifndef GR_BENCH_STAGE_DUMP_H
#define GR_BENCH_STAGE_DUMP_H

#include "bench/table.h"
#include "model/load/expand.h"

struct gr_bench_dump {
    const char *file, *ids; /* ids: "264,68,198" */
    const char *model, *head, *isa;
    const struct gr_geometry *geometry; /* NULL: as in the folders; else H is the large one */
    int n_thread;
};

/* Both return the exit status. */
int gr_bench_dump(const struct gr_bench_dump *o);
/* Prints, for every stage of both files: relative error |a - b| / |b|, cosine, the lowest cosine of a row, the largest
 * difference. 1: files that cannot be compared (another prompt, other shapes, no stage in common). */
int gr_bench_compare(const char *file, const char *reference, enum gr_table_format format);

#endif

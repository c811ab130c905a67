/* Weights from a model folder's files (loader.h) into the memory of a GPU, in the form of its kernels. As in the files:
 * read by the team into pinned memory, copied and packed by the device, two pieces on their way at a time. Expanded
 * (expand.h): only the small tensors are copied, the device makes the large ones' rows and packs them. Start only. */
#ifndef GR_MODEL_CUDA_WEIGHTS_H
#define GR_MODEL_CUDA_WEIGHTS_H

#include "model/cuda/device.h"
#include "model/load/loader.h"
#include "model/load/shapes.h"

struct gr_cuda_weights {
    struct gr_cuda_device *device;        /* borrowed */
    const struct gr_loader *loader;       /* borrowed; files may be changed between calls */
    const struct gr_model_shapes *shapes; /* borrowed: how matrices are cut */
    struct gr_cuda_piece {
        uint16_t *host, *plain; /* pinned, and on the device */
        cudaEvent_t done;       /* its last copy has run: it may be filled again */
    } piece[2];                 /* expanded: the first one's plain alone */
    int next;
    uint16_t *from; /* expanded: the small tensor, on the device; owned, grows */
    size_t from_bytes;
    uint64_t bytes;  /* loaded */
    uint64_t copied; /* of them, what came from the host */
};

/* A matrix of the device's: (n_out, n_in) packed (kernels/cuda/linear/linear.h). */
struct gr_cuda_matrix {
    void *packed;
    int n_out, n_in;
    struct gr_cuda_cut cut;
    struct gr_cuda_cut whole_cut; /* of the model that is not shared out; cut, where that is so */
    struct gr_segments segments;  /* of its sums; zeros: the order is the cut's */
};

/* loader->progress is told. Takes staging memory, which finish gives back. loader->expand stays as it
 * is until then. */
GR_NODISCARD enum gr_status gr_cuda_weights_begin(struct gr_cuda_weights *w, struct gr_cuda_device *device,
                                                  const struct gr_loader *loader, const struct gr_model_shapes *shapes);
/* Waits until everything is there. Also after an error. */
GR_NODISCARD enum gr_status gr_cuda_weights_finish(struct gr_cuda_weights *w);

/* Takes the memory of a matrix, which is one of the model's shapes; rows are put in by the calls below. */
GR_NODISCARD enum gr_status gr_cuda_matrix_take(struct gr_cuda_weights *w, int n_out, int n_in,
                                                struct gr_cuda_matrix *out);
/* The same of what a rank has of such a matrix. Some of its rows: as many parts as all of them have, so that bits are
 * the same; some of its columns, whose sums have segments: in any cut. */
GR_NODISCARD enum gr_status gr_cuda_matrix_take_rows(struct gr_cuda_weights *w, int n_out, int n_in, int n_row,
                                                     struct gr_cuda_matrix *out);
GR_NODISCARD enum gr_status gr_cuda_matrix_take_columns(struct gr_cuda_weights *w, int n_out, int n_in, int n_col,
                                                        struct gr_segments segments, struct gr_cuda_matrix *out);
/* What becomes of a part of the tensor (n_out, n_in): row part.row + i is row row0 + i * step of a matrix. head_dim:
 * the part is whole heads, as GR_CUDA_OUT_HEADS wants queries and keys (kernels/cuda/linear/linear.h); 0: it is not. */
struct gr_cuda_rows {
    const char *name;
    int n_out, n_in;
    struct gr_part part;
    int row0, step, head_dim;
};
GR_NODISCARD enum gr_status gr_cuda_rows_load(struct gr_cuda_weights *w, const struct gr_cuda_rows *r,
                                              const struct gr_cuda_matrix *m);
/* The tensor's rows become those of m. */
GR_NODISCARD enum gr_status gr_cuda_matrix_load(struct gr_cuda_weights *w, const char *name, int n_row,
                                                const struct gr_cuda_matrix *m);
/* bf16 (n_row, n) as it is. */
GR_NODISCARD enum gr_status gr_cuda_table_load(struct gr_cuda_weights *w, const char *name, int n_row, int n,
                                               uint16_t **out);
/* (n) as f32. */
GR_NODISCARD enum gr_status gr_cuda_vector_load(struct gr_cuda_weights *w, const char *name, int n, float **out);
/* Values [part->row, part->row + part->n_row) of (n_all), to where there is room for them. */
GR_NODISCARD enum gr_status gr_cuda_vector_part_load(struct gr_cuda_weights *w, const char *name, int n_all,
                                                     const struct gr_part *part, float *to);

#endif

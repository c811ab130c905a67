/* For the readers of files alone (safetensors.c, gguf_model.c): how the tensors of files become one gr_tensors. */
#ifndef GR_MODEL_FILES_TENSORS_INTERNAL_H
#define GR_MODEL_FILES_TENSORS_INTERNAL_H

#include <stdbool.h>

#include "model/files/str_table.h"
#include "model/files/tensors.h"

/* Every log line about a file has to fit beside its path. */
#define GR_SHAPE_TEXT_BYTES (GR_TENSOR_N_DIM_MAX * 21 + 3)
void gr_shape_text(int n_dim, const int64_t *shape, char text[GR_SHAPE_TEXT_BYTES]);

struct gr_tensor_file {
    char *path; /* owned; for messages */
    char *file; /* points into path: name inside the folder */
    void *map;  /* owned; NULL: borrowed memory */
    const uint8_t *bytes;
    size_t len;
    void *header; /* owned: the tensors' names live in it */
    void (*header_free)(void *header);
    size_t data_at; /* where the tensors' data starts */
};

struct gr_tensors {
    const char *shapes_from; /* static text: what says which shapes there should be */
    /* The name that a tensor has in the files, for messages; NULL: files have the names of the model's own folder. */
    void (*name_in_file)(const char *name, char *out, size_t cap);
    struct gr_tensor_file *files; /* [n_file] */
    size_t n_file;
    struct gr_tensor *tensors; /* [n_tensor], sorted by name */
    uint32_t *file_of;         /* [n_tensor] */
    bool *used;                /* [n_tensor] */
    size_t n_tensor;
    struct gr_str_table by_name;
};

/* A tensor with its file and place, before and during the sort. */
struct gr_tensor_entry {
    struct gr_tensor tensor;
    uint64_t begin, end; /* in the file's data */
    uint32_t file;
};

struct gr_tensor_list {
    struct gr_tensor_entry *items; /* owned by who fills it */
    size_t n, cap;
};

#define GR_SHOWN_NAME_BYTES 320
const char *gr_tensors_shown(const struct gr_tensors *ts, const char *name, char shown[GR_SHOWN_NAME_BYTES]);
GR_NODISCARD enum gr_status gr_tensors_create(const char *what, size_t n_file, struct gr_tensors **out);
GR_NODISCARD enum gr_status gr_tensor_list_reserve(struct gr_tensor_list *list, size_t n_more);
/* dir NULL: file is the whole path, or stands for borrowed memory. */
GR_NODISCARD enum gr_status gr_tensor_file_set_path(struct gr_tensor_file *f, const char *dir, const char *file);
/* Maps the file at its path: at least 8 bytes. */
GR_NODISCARD enum gr_status gr_tensor_file_map(struct gr_tensor_file *f);
GR_NODISCARD enum gr_status gr_tensor_check_name(const struct gr_tensor_file *f, const char *name, size_t len);
/* Bytes that dtype and shape ask for; false on overflow, or where rows are no whole blocks. */
bool gr_tensor_bytes(const struct gr_tensor *t, uint64_t *out);
int gr_tensor_by_place(const void *a, const void *b); /* qsort of gr_tensor_entry */
/* From the collected entries to the sorted arrays and the name table. */
GR_NODISCARD enum gr_status gr_tensors_finish(struct gr_tensors *ts, struct gr_tensor_list *list);

#endif

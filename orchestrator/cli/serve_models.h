/* The models that `graft serve' serves, as --model [NAME=]PATH names them. */
#ifndef GR_ORCHESTRATOR_CLI_SERVE_MODELS_H
#define GR_ORCHESTRATOR_CLI_SERVE_MODELS_H

#include "common/options/options.h"
#include "common/protocol/msg.h"

struct gr_serve_model {
    char name[GR_MODEL_NAME_MAX]; /* "": the only one, which nobody has named */
    const char *path;             /* borrowed */
};

struct gr_serve_models {
    struct gr_serve_model model[GR_SERVED_MODEL_MAX];
    int n;
};

/* NAME is what stands before the first `='; a path that has one begins with `/' or `.'. Of several models each has a
 * name, without NAME= the one that its targets give it by default. A single one becomes o->model, and its name
 * o->served_model_name, for the workers that are started with --spawn; several, which --spawn cannot start, become
 * neither. GR_EINVAL (logged): a name that is empty, too long, no UTF-8 or given twice, no path, an option that is for
 * one model beside several. o borrows names from out. */
GR_NODISCARD enum gr_status gr_serve_models_read(struct gr_options *o, struct gr_serve_models *out);

#endif

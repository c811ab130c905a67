/* What all ranks of a job must have alike: version, roles, options, variables, the files of the models. Start only. */
#ifndef GR_ORCHESTRATOR_LAUNCH_FACTS_H
#define GR_ORCHESTRATOR_LAUNCH_FACTS_H

#include "common/options/options.h"
#include "orchestrator/launch/roles.h"

#include <jansson.h>

/* name -> text; "files of --model" where this host has them. env: of the process. NULL: no memory. */
json_t *gr_launch_facts(const struct gr_options *o, const struct gr_roles *roles, char *const *env);
/* What tells the files of a model from others without reading their weights: config.json and the names and sizes of the
 * weights' files, or a .gguf file's size and first bytes. False: there is nothing readable. */
bool gr_launch_files(const char *path, char text_out[32]);

#endif

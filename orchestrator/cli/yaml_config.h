/* The YAML configuration file: sections of scalar keys, each the twin of an option (docs/options.md lists them). Parsed
 * by libyaml; an unknown section or key, a key given twice, or a value out of range is an error with
 * file:line:column. */
#ifndef GR_ORCHESTRATOR_CLI_YAML_CONFIG_H
#define GR_ORCHESTRATOR_CLI_YAML_CONFIG_H

#include "common/options/options.h"

#define GR_YAML_BYTES_MAX (256u << 10) /* bytes of a file, at most: libyaml takes the square of some things */
#define GR_YAML_DEPTH_MAX 32           /* of its lists and maps in each other */

struct gr_yaml_config; /* owns the document that option strings point into */

/* Applies the file at rank GR_FROM_YAML. *config_out must outlive the options. GR_EINVAL, GR_EFORMAT: what it says is
 * wrong; others: it could not be read. */
GR_NODISCARD enum gr_status gr_yaml_config_load(const char *path, struct gr_option_values *v,
                                                struct gr_yaml_config **config_out);
/* Everything that sets options: the command line, the environment and the file that --config names; --help is answered.
 * Exit status to leave with at once, or -1: go on. *config_out: NULL or to be destroyed after the options' last use. */
int gr_options_load(struct gr_options *o, int argc, char **argv, struct gr_yaml_config **config_out);
void gr_yaml_config_destroy(struct gr_yaml_config *config);

#endif

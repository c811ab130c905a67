#include "orchestrator/cli/verbs.h"

#include "common/base/log.h"
#include "common/base/suggest.h"
#include "common/process/program.h"
#include "orchestrator/cli/report.h"
#include "orchestrator/cli/yaml_config.h"

#include <stdio.h>
#include <string.h>

static int run_verb(const struct gr_verb *v, struct gr_options *o)
{
    struct gr_remote r;
    if (v->ask == NULL) {
        return v->turn(o);
    }
    const enum gr_status st = gr_remote_open(o, (struct gr_remote_patience){0}, &r);
    if (st != GR_OK) {
        return gr_report_failure(o, gr_program_refused(st));
    }
    const int status = v->ask(&r, o);
    gr_remote_close(&r);
    return gr_report_failure(o, status);
}

static const struct gr_verb *find_verb(const struct gr_verbs *verbs, const char *name)
{
    for (size_t i = 0; i < verbs->n; i++) {
        if (strcmp(verbs->verb[i].name, name) == 0) {
            return &verbs->verb[i];
        }
    }
    return NULL;
}

static int unknown_verb(const struct gr_verbs *verbs, const char *word)
{
    struct gr_suggest near = {.word = word, .len = strlen(word)};
    char meant[96];
    if (word[0] == '\0') {
        log_error("graft %s: %s is wanted; see graft %s --help", verbs->command, verbs->text, verbs->command);
        return 2;
    }
    for (size_t i = 0; i < verbs->n; i++) {
        gr_suggest_offer(&near, verbs->verb[i].name);
    }
    gr_suggest_text(&near, "", meant, sizeof(meant));
    log_error("graft %s: %s is wanted, not `%s'%s; see graft %s --help", verbs->command, verbs->text, word, meant,
              verbs->command);
    return 2;
}

static const struct gr_option_command *entry_of(const struct gr_verbs *verbs, const struct gr_verb *v)
{
    return gr_option_command_find(&gr_option_table, "graft", v != NULL ? v->word : verbs->command);
}

int gr_verbs_run(const struct gr_verbs *verbs, int argc, char **argv)
{
    struct gr_options o;
    struct gr_yaml_config *yaml = NULL;
    const struct gr_verb *v = argc > 1 ? find_verb(verbs, argv[1]) : NULL;
    if (v == NULL && (argc < 2 || argv[1][0] != '-')) {
        return unknown_verb(verbs, argc > 1 ? argv[1] : "");
    }
    gr_options_default(&o, v != NULL ? v->command : verbs->help);
    o.values.called = entry_of(verbs, v);
    const int skip = v != NULL ? 1 : 0;
    int status = gr_options_load(&o, argc - skip, argv + skip, &yaml);
    if (status < 0) {
        status = v != NULL ? run_verb(v, &o) : unknown_verb(verbs, ""); /* options alone ask for nothing */
    }
    gr_yaml_config_destroy(yaml);
    return status;
}

/* `graft run`: one turn from prompt to text, or several answers to it at a time. With workers of its own (local.h) it
 * starts them, streams, and cleans up whatever happens; with --connect it asks a running orchestrator (connect.h). */
#include "common/base/log.h"
#include "orchestrator/cli/answers.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/connect.h"
#include "orchestrator/cli/local.h"
#include "orchestrator/cli/report.h"
#include "orchestrator/cli/yaml_config.h"

static int run_local(struct gr_options *o)
{
    struct gr_plan plan;
    struct gr_local local;
    struct gr_answers *a = gr_answers_create(o);
    if (a == NULL) {
        return 1;
    }
    enum gr_status st = gr_plan_local(o, &plan);
    if (st == GR_OK) {
        st = gr_answers_prepare(a, o, &plan);
    }
    if (st != GR_OK) {
        return gr_answers_refuse(a, st);
    }
    st = gr_local_start(&local, o, &plan, a->at[0]);
    if (st == GR_OK) {
        gr_local_turns(&local, a->at, a->n);
    }
    gr_local_stop(&local);
    a->g[0].failed = a->g[0].failed || st != GR_OK;
    const int status = gr_answers_report(a);
    gr_answers_destroy(a);
    return status;
}

int gr_command_run(int argc, char **argv)
{
    struct gr_options o;
    struct gr_yaml_config *yaml = NULL;
    gr_options_default(&o, GR_CMD_RUN);
    int status = gr_options_load(&o, argc, argv, &yaml);
    if (status < 0 && o.connect == NULL && (o.session != 0 || o.keep)) {
        log_error("--session and --keep need --connect HOST:PORT: sessions live in a running orchestrator");
        status = gr_report_failure(&o, 2);
    }
    if (status < 0) {
        status = o.connect != NULL ? gr_connect_run(&o) : run_local(&o);
    }
    gr_yaml_config_destroy(yaml);
    return status;
}

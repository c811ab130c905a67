#include "orchestrator/http/job.h"

#include "common/base/log.h"

#include <stdlib.h>

struct gr_job *gr_job_create(struct gr_stream *stream)
{
    struct gr_job *j = calloc(1, sizeof(*j));
    if (j == NULL) {
        log_error("out of memory for a request");
        return NULL;
    }
    gr_stream_hold(stream);
    j->stream = stream;
    return j;
}

void gr_job_destroy(struct gr_job *j)
{
    if (j == NULL) {
        return;
    }
    for (int i = 0; i < j->n_answer; i++) {
        gr_turn_text_finish(&j->answer[i].turn_text);
    }
    free(j->answer);
    gr_ask_finish(&j->ask);
    gr_api_request_finish(&j->request);
    gr_stream_drop(j->stream);
    free(j);
}

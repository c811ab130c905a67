/* How many answers are on their way to clients. When the library is stopped it closes every connection, also one whose
 * answer has not been sent whole. So whoever stops it waits here first. Any thread. */
#ifndef GR_ORCHESTRATOR_HTTP_ANSWERING_H
#define GR_ORCHESTRATOR_HTTP_ANSWERING_H

#include <pthread.h>

struct gr_answering {
    pthread_mutex_t lock;
    pthread_cond_t none; /* n is 0 */
    int n;
};

void gr_answering_init(struct gr_answering *a);
void gr_answering_finish(struct gr_answering *a);
void gr_answering_begin(struct gr_answering *a);
void gr_answering_end(struct gr_answering *a);
/* Waits until there is none, for `seconds' at most. Returns how many are left. */
int gr_answering_wait(struct gr_answering *a, int seconds);

#endif

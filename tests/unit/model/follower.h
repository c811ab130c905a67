/* A rank other than 0 of a model that ranks share out, on a thread of its own. For tests. */
#ifndef GR_TESTS_FOLLOWER_H
#define GR_TESTS_FOLLOWER_H

#include "model/llama.h"

struct follower {
    struct gr_llama_config config;
    enum gr_status st;
};

/* arg: a struct follower, whose status it leaves there when rank 0 has ended the group. */
static inline void *follow(void *arg)
{
    struct follower *f = (struct follower *)arg;
    struct gr_lm *lm = NULL;
    f->st = gr_llama_create(&f->config, NULL, NULL, &lm);
    if (f->st == GR_OK) {
        f->st = gr_llama_follow(lm);
        gr_lm_destroy(lm);
    }
    return NULL;
}

#endif

/* What SpecPV is asked to do: the mode of a session and its parameters, as requests, options and the target's policy
 * share them (docs/specpv.md). Header only. */
#ifndef GR_COMMON_PROTOCOL_SPECPV_H
#define GR_COMMON_PROTOCOL_SPECPV_H

#include "common/rules/kv_block.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum gr_specpv_mode {
    GR_SPECPV_OFF,   /* full verification */
    GR_SPECPV_LOSSY, /* what the view accepts stands */
    GR_SPECPV_EXACT, /* what the view accepts is provisional until full KV has judged it: the text is full
                        verification's */
    GR_SPECPV_AUTO,  /* exact where the cost table says that it gains, else full verification */
};

/* What a target has unless its options say otherwise. */
#define GR_SPECPV_N_SINK 2        /* blocks at the start of a context */
#define GR_SPECPV_N_RETRIEVAL 256 /* blocks that are chosen by their scores */
#define GR_SPECPV_N_WINDOW 8      /* blocks at the end of a context */
#define GR_SPECPV_N_BUFFER 128    /* tokens that may lack full KV */
#define GR_SPECPV_BUFFER_MAX 256
#define GR_SPECPV_BLOCKS_MAX 65536 /* blocks of sink, retrieval or window, at most */
#define GR_SPECPV_THRESHOLD 4096   /* tokens; shorter contexts are verified in full */
#define GR_SPECPV_INTERVAL 32      /* partial rounds to the next refresh at most */

/* Zero: as the target's options say; a fraction of 0 is off. */
struct gr_specpv_params {
    uint32_t n_sink, n_retrieval, n_window; /* blocks of the view */
    uint32_t n_buffer;                      /* tokens that may lack full KV */
    uint32_t threshold;                     /* context must be longer */
    uint32_t interval;                      /* partial rounds to the next refresh at most */
    uint32_t max_provisional;               /* exact: tokens that may wait for their judgement; 0: as the buffer goes */
    double refresh_fraction;                /* refresh when so much of retrieval + window has come since */
};

/* "?": no such mode. */
static inline const char *gr_specpv_mode_name(uint32_t mode)
{
    static const char *const names[] = {"off", "lossy", "exact", "auto"};
    return mode <= GR_SPECPV_AUTO ? names[mode] : "?";
}

#endif

/* What a worker's death by a signal probably means, for the person who reads the line. */
#ifndef GR_COMMON_PROCESS_SIGNAL_HINT_H
#define GR_COMMON_PROCESS_SIGNAL_HINT_H

/* Static text; looks at this process's own limits, which its children inherit. Never NULL. */
const char *gr_signal_hint(int signal_number);

#endif

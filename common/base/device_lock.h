/* One worker at a time measures the free memory of a GPU and takes its share: a lock between the processes of a host.
 * The kernel gives it back when its holder ends. */
#ifndef GR_COMMON_BASE_DEVICE_LOCK_H
#define GR_COMMON_BASE_DEVICE_LOCK_H

#include "common/base/status.h"

#include <stdbool.h>

/* All zero: not held. */
struct gr_device_lock {
    bool held;
    int fd;
};

/* Waits for whoever has it. file: a path that all of them name; it is made where it is not there, and stays: who
 * removed it would let two have it. what: whose lock it is, for messages. Where the file cannot be had a warning says
 * so, and the caller goes on without. */
void gr_device_lock_take(struct gr_device_lock *l, const char *file, const char *what);
/* Not held: nothing happens. */
void gr_device_lock_give(struct gr_device_lock *l);

#endif

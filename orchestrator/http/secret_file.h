/* Files that an operator names and that are read whole: keys, certificates. */
#ifndef GR_ORCHESTRATOR_HTTP_SECRET_FILE_H
#define GR_ORCHESTRATOR_HTTP_SECRET_FILE_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stddef.h>

#define GR_SECRET_FILE_MAX (1u << 20) /* bytes */

struct gr_secret_text {
    char *text; /* owned, ends with a NUL; NULL: there is none */
    size_t len;
};

/* what: the option that names it. secret: it is refused where others may read it, by ssh's rule: a file of one's own
 * is its owner's alone, one of somebody else (root's, which a group may read) not everybody's. GR_EIO, GR_EINVAL: in
 * one line, logged. */
GR_NODISCARD enum gr_status gr_secret_file_read(const char *what, const char *path, bool secret,
                                                struct gr_secret_text *out);
/* Its bytes are overwritten. */
void gr_secret_text_finish(struct gr_secret_text *t);

#endif

/* A file that graft reads because a user has named it, or because it lies in a folder that a user has named: a FIFO
 * under its name holds nobody up. */
#ifndef GR_COMMON_BASE_IN_FILE_H
#define GR_COMMON_BASE_IN_FILE_H

#include <stdio.h>
#include <sys/types.h>

#define GR_IN_FILE_MS 5000 /* how long a FIFO is waited for: `<(command)' of a shell is one */

/* Opens it for reading; a FIFO without a writer, too. -1: errno says why. */
int gr_in_file_open(const char *path);
/* The same as a stream, for files that are read as such: a FIFO that nobody has written into is an empty one. */
FILE *gr_in_file_stream(const char *path);
/* All of it, up to cap bytes. -1: gr_in_file_error() says why. */
ssize_t gr_in_file_read(int fd, char *to, size_t cap);
/* The text of an errno of the above. */
const char *gr_in_file_error(int error);

#endif

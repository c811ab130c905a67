/* Keys of the endpoint's users. Of each only its digest is kept (BLAKE2b, 32 bytes), by which what it asked for can be
 * told from what others asked for; the digest of a key is the same in every process. Pure, but for gr_api_keys_read().
 *
 * A file has one key a line, and after it, if anything, a name for people; "#" begins a comment line. A key is what
 * may stand behind "Bearer": letters, digits and -._~+/= */
#ifndef GR_ORCHESTRATOR_HTTP_API_KEYS_H
#define GR_ORCHESTRATOR_HTTP_API_KEYS_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GR_API_KEYS_MAX 1024     /* keys of a file */
#define GR_API_KEY_BYTES_MAX 512 /* of a key */
#define GR_API_KEY_NAME_MAX 64   /* of its name, its NUL included */
#define GR_API_OWNER_BYTES 32

/* Whose a request is: the digest of its key. All zero: no keys are asked for. */
struct gr_api_owner {
    uint8_t digest[GR_API_OWNER_BYTES];
};

struct gr_api_keys;

/* what: the option and file, for a message. GR_EINVAL (logged, by line): a key that cannot be, two alike, or none. */
GR_NODISCARD enum gr_status gr_api_keys_parse(const char *what, const char *text, size_t len, struct gr_api_keys **out);
/* The same of a file, which others must not be able to read. */
GR_NODISCARD enum gr_status gr_api_keys_read(const char *path, struct gr_api_keys **out);
void gr_api_keys_destroy(struct gr_api_keys *k); /* NULL is legal */
int gr_api_keys_count(const struct gr_api_keys *k);
/* Is this one of them? Takes as long whichever it is, or none. */
bool gr_api_keys_find(const struct gr_api_keys *k, const char *key, size_t len, struct gr_api_owner *out);
/* The key in the value of an Authorization header; NULL: it is of another kind. */
const char *gr_api_bearer(const char *authorization, size_t *len_out);

#endif

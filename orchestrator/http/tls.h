/* The endpoint's certificate and its key, as GnuTLS asks for them at each handshake; so that files that have changed
 * are served to whoever comes next, and nobody who is there is cut off. GnuTLS' question has no context: there is one
 * certificate a process. */
#ifndef GR_ORCHESTRATOR_HTTP_TLS_H
#define GR_ORCHESTRATOR_HTTP_TLS_H

#include "common/base/status.h"

#include <gnutls/abstract.h>
#include <stdint.h>

/* Which versions are spoken, in GnuTLS' words. */
#define GR_TLS_PRIORITIES "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"

/* Reads both, in PEM; they replace those that were there. cert: the server's, then those that vouch for it. GR_EIO,
 * GR_EINVAL (logged): they cannot be read, are none, or do not belong together; what was there stays. */
GR_NODISCARD enum gr_status gr_tls_load(const char *cert, const char *key);
void gr_tls_forget(void);
/* When the server's certificate ends, in seconds of Unix time; 0: none was read. Any thread. */
int64_t gr_tls_end_s(void);
/* gnutls_certificate_retrieve_function3. Any thread. */
int gr_tls_retrieve(gnutls_session_t session, const struct gnutls_cert_retr_st *info, gnutls_pcert_st **certs,
                    unsigned *n_cert, gnutls_ocsp_data_st **ocsp, unsigned *n_ocsp, gnutls_privkey_t *key,
                    unsigned *flags);

#endif

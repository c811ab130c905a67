#include "orchestrator/http/tls.h"

#include "common/base/log.h"
#include "orchestrator/http/secret_file.h"

#include <pthread.h>
#include <string.h>

#define CHAIN_MAX 16u /* certificates in the file */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of pair */
static struct pair {
    struct gr_secret_text cert, key;
    int64_t end_s; /* of the server's certificate */
} pair;

static gnutls_datum_t datum_of(const struct gr_secret_text *t)
{
    return (gnutls_datum_t){.data = (unsigned char *)t->text, .size = (unsigned)t->len};
}

/* As GnuTLS has them; *certs from its own memory, for it to free. */
static int import_certs(const struct gr_secret_text *t, gnutls_pcert_st **certs, unsigned *n)
{
    const gnutls_datum_t data = datum_of(t);
    gnutls_pcert_st *list = gnutls_calloc(CHAIN_MAX, sizeof(*list));
    *n = CHAIN_MAX;
    const int st = list != NULL ? gnutls_pcert_list_import_x509_raw(list, n, &data, GNUTLS_X509_FMT_PEM, 0)
                                : GNUTLS_E_MEMORY_ERROR;
    if (st != GNUTLS_E_SUCCESS) {
        gnutls_free(list);
        *n = 0;
        return st;
    }
    *certs = list;
    return st;
}

static int import_key(const struct gr_secret_text *t, gnutls_privkey_t *key)
{
    const gnutls_datum_t data = datum_of(t);
    int st = gnutls_privkey_init(key);
    if (st == GNUTLS_E_SUCCESS) {
        st = gnutls_privkey_import_x509_raw(*key, &data, GNUTLS_X509_FMT_PEM, NULL, 0);
        if (st != GNUTLS_E_SUCCESS) {
            gnutls_privkey_deinit(*key);
        }
    }
    return st;
}

static void free_certs(gnutls_pcert_st *certs, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        gnutls_pcert_deinit(&certs[i]);
    }
    gnutls_free(certs);
}

/* ---- what is wrong with them ---- */

static int read_end(gnutls_pcert_st *cert, int64_t *end_s_out)
{
    gnutls_x509_crt_t x;
    const int st = gnutls_pcert_export_x509(cert, &x);
    if (st != GNUTLS_E_SUCCESS) {
        return st;
    }
    const time_t end_s = gnutls_x509_crt_get_expiration_time(x);
    gnutls_x509_crt_deinit(x);
    if (end_s == (time_t)-1) {
        return GNUTLS_E_CERTIFICATE_ERROR;
    }
    *end_s_out = (int64_t)end_s;
    return GNUTLS_E_SUCCESS;
}

static int try_certs(struct pair *p)
{
    gnutls_pcert_st *certs = NULL;
    unsigned n = 0;
    int st = import_certs(&p->cert, &certs, &n);
    if (st == GNUTLS_E_SUCCESS) {
        st = read_end(&certs[0], &p->end_s);
        free_certs(certs, n);
    }
    return st;
}

static int try_key(const struct pair *p)
{
    gnutls_privkey_t key;
    const int st = import_key(&p->key, &key);
    if (st == GNUTLS_E_SUCCESS) {
        gnutls_privkey_deinit(key);
    }
    return st;
}

static int try_both(const struct pair *p)
{
    gnutls_certificate_credentials_t both;
    const gnutls_datum_t cert = datum_of(&p->cert), key = datum_of(&p->key);
    int st = gnutls_certificate_allocate_credentials(&both);
    if (st == GNUTLS_E_SUCCESS) {
        st = gnutls_certificate_set_x509_key_mem(both, &cert, &key, GNUTLS_X509_FMT_PEM);
        gnutls_certificate_free_credentials(both);
    }
    return st < 0 ? st : GNUTLS_E_SUCCESS;
}

static enum gr_status check(struct pair *p, const char *cert, const char *key)
{
    int st = try_certs(p);
    if (st != GNUTLS_E_SUCCESS) {
        log_error("--tls-cert %s: no certificates in PEM: %s", cert, gnutls_strerror(st));
        return GR_EINVAL;
    }
    st = try_key(p);
    if (st != GNUTLS_E_SUCCESS) {
        log_error("--tls-key %s: no private key in PEM without a password: %s", key, gnutls_strerror(st));
        return GR_EINVAL;
    }
    st = try_both(p);
    if (st != GNUTLS_E_SUCCESS) {
        log_error("--tls-key %s does not belong to the first certificate of --tls-cert %s: %s", key, cert,
                  gnutls_strerror(st));
        return GR_EINVAL;
    }
    return GR_OK;
}

/* ---- what is served ---- */

static void finish(struct pair *p)
{
    gr_secret_text_finish(&p->cert);
    gr_secret_text_finish(&p->key);
    p->end_s = 0;
}

static enum gr_status read_pair(struct pair *p, const char *cert, const char *key)
{
    GR_TRY(gr_secret_file_read("--tls-cert", cert, false, &p->cert));
    GR_TRY(gr_secret_file_read("--tls-key", key, true, &p->key));
    return check(p, cert, key);
}

enum gr_status gr_tls_load(const char *cert, const char *key)
{
    struct pair next = {0};
    const enum gr_status st = read_pair(&next, cert, key);
    if (st == GR_OK) {
        pthread_mutex_lock(&lock);
        const struct pair last = pair;
        pair = next;
        pthread_mutex_unlock(&lock);
        next = last;
    }
    finish(&next);
    return st;
}

void gr_tls_forget(void)
{
    pthread_mutex_lock(&lock);
    finish(&pair);
    pthread_mutex_unlock(&lock);
}

int64_t gr_tls_end_s(void)
{
    pthread_mutex_lock(&lock);
    const int64_t end_s = pair.end_s;
    pthread_mutex_unlock(&lock);
    return end_s;
}

int gr_tls_retrieve(gnutls_session_t session, const struct gnutls_cert_retr_st *info, gnutls_pcert_st **certs,
                    unsigned *n_cert, gnutls_ocsp_data_st **ocsp, unsigned *n_ocsp, gnutls_privkey_t *key,
                    unsigned *flags)
{
    (void)session, (void)info;
    pthread_mutex_lock(&lock);
    int st = import_certs(&pair.cert, certs, n_cert);
    if (st == GNUTLS_E_SUCCESS) {
        st = import_key(&pair.key, key);
        if (st != GNUTLS_E_SUCCESS) {
            free_certs(*certs, *n_cert);
        }
    }
    pthread_mutex_unlock(&lock);
    *ocsp = NULL;
    *n_ocsp = 0;
    *flags = GNUTLS_CERT_RETR_DEINIT_ALL; /* GnuTLS frees both after the handshake */
    return st == GNUTLS_E_SUCCESS ? 0 : -1;
}

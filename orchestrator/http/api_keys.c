#include "orchestrator/http/api_keys.h"

#include "common/base/log.h"
#include "orchestrator/http/secret_file.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHORT_KEY 16 /* characters; a key of fewer can be guessed */
#define BLANKS " \t\r"

struct entry {
    struct gr_api_owner owner;
    int line;
};

struct gr_api_keys {
    int n;
    struct entry entry[GR_API_KEYS_MAX];
};

static struct gr_api_owner digest_of(const char *key, size_t len)
{
    struct gr_api_owner o;
    crypto_generichash(o.digest, sizeof(o.digest), (const uint8_t *)key, len, NULL, 0);
    return o;
}

static bool is_key_character(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("-._~+/=", c) != NULL);
}

/* A line without the blanks around it: a key, and a name if it has one. */
struct key_line {
    const char *what; /* the file */
    int number;
    const char *key, *name;
    size_t key_len, name_len;
};

static size_t count_of(const char *text, size_t len, const char *set, bool in_set)
{
    size_t n = 0;
    while (n < len && (text[n] != '\0' && strchr(set, text[n]) != NULL) == in_set) {
        n++;
    }
    return n;
}

static struct key_line split_line(const char *text, size_t len)
{
    const size_t before = count_of(text, len, BLANKS, true);
    while (len > before && strchr(BLANKS, text[len - 1]) != NULL && text[len - 1] != '\0') {
        len--;
    }
    struct key_line l = {.key = text + before};
    l.key_len = count_of(l.key, len - before, BLANKS, false);
    const size_t after = before + l.key_len;
    const size_t gap = count_of(text + after, len - after, BLANKS, true);
    l.name = text + after + gap;
    l.name_len = len - after - gap;
    return l;
}

static enum gr_status check_line(const struct key_line *l)
{
    if (l->key_len > GR_API_KEY_BYTES_MAX || l->name_len >= GR_API_KEY_NAME_MAX) {
        log_error("%s line %d: a key has at most %d characters, its name %d", l->what, l->number, GR_API_KEY_BYTES_MAX,
                  GR_API_KEY_NAME_MAX - 1);
        return GR_EINVAL;
    }
    for (size_t i = 0; i < l->key_len; i++) {
        if (!is_key_character(l->key[i])) {
            log_error("%s line %d: character %zu of the key cannot stand in a key; letters, digits and -._~+/= can",
                      l->what, l->number, i + 1);
            return GR_EINVAL;
        }
    }
    if (l->key_len < SHORT_KEY) {
        log_warn("%s line %d: a key of %zu characters can be guessed; `openssl rand -hex 24' makes a good one", l->what,
                 l->number, l->key_len);
    }
    return GR_OK;
}

static enum gr_status add_key(struct gr_api_keys *k, const struct key_line *l)
{
    const struct gr_api_owner owner = digest_of(l->key, l->key_len);
    for (int i = 0; i < k->n; i++) {
        if (sodium_memcmp(&k->entry[i].owner, &owner, sizeof(owner)) == 0) {
            log_error("%s line %d: this key stands in line %d already", l->what, l->number, k->entry[i].line);
            return GR_EINVAL;
        }
    }
    if (k->n == GR_API_KEYS_MAX) {
        log_error("%s line %d: at most %d keys are taken", l->what, l->number, GR_API_KEYS_MAX);
        return GR_EINVAL;
    }
    k->entry[k->n++] = (struct entry){.owner = owner, .line = l->number};
    return GR_OK;
}

static enum gr_status take_lines(struct gr_api_keys *k, const char *what, const char *text, size_t len)
{
    int number = 0;
    for (size_t at = 0; at < len;) {
        const char *end = memchr(text + at, '\n', len - at);
        const size_t n = end != NULL ? (size_t)(end - text) - at : len - at;
        struct key_line l = split_line(text + at, n);
        l.what = what;
        l.number = ++number;
        at += n + 1;
        if (l.key_len > 0 && l.key[0] != '#') {
            GR_TRY(check_line(&l));
            GR_TRY(add_key(k, &l));
        }
    }
    if (k->n == 0) {
        log_error("%s has no key; `openssl rand -hex 24' makes one", what);
        return GR_EINVAL;
    }
    return GR_OK;
}

enum gr_status gr_api_keys_parse(const char *what, const char *text, size_t len, struct gr_api_keys **out)
{
    struct gr_api_keys *k = calloc(1, sizeof(*k));
    if (k == NULL) {
        log_error("out of memory for keys");
        return GR_ENOMEM;
    }
    const enum gr_status st = take_lines(k, what, text, len);
    if (st != GR_OK) {
        gr_api_keys_destroy(k);
        return st;
    }
    *out = k;
    return GR_OK;
}

enum gr_status gr_api_keys_read(const char *path, struct gr_api_keys **out)
{
    char what[320];
    struct gr_secret_text t;
    GR_TRY(gr_secret_file_read("--api-key-file", path, true, &t));
    snprintf(what, sizeof(what), "--api-key-file %.280s", path);
    const enum gr_status st = gr_api_keys_parse(what, t.text, t.len, out);
    gr_secret_text_finish(&t);
    return st;
}

void gr_api_keys_destroy(struct gr_api_keys *k)
{
    free(k);
}

int gr_api_keys_count(const struct gr_api_keys *k)
{
    return k->n;
}

bool gr_api_keys_find(const struct gr_api_keys *k, const char *key, size_t len, struct gr_api_owner *out)
{
    const struct gr_api_owner asked = digest_of(key, len);
    int n_same = 0;
    for (int i = 0; i < k->n; i++) {
        n_same += sodium_memcmp(&k->entry[i].owner, &asked, sizeof(asked)) == 0;
    }
    *out = n_same > 0 ? asked : (struct gr_api_owner){{0}};
    return n_same > 0;
}

const char *gr_api_bearer(const char *authorization, size_t *len_out)
{
    static const char kind[] = "Bearer ";
    if (authorization == NULL || strncasecmp(authorization, kind, sizeof(kind) - 1) != 0) {
        return NULL;
    }
    const struct key_line l = split_line(authorization + sizeof(kind) - 1, strlen(authorization) - (sizeof(kind) - 1));
    *len_out = l.key_len;
    return l.key_len > 0 && l.name_len == 0 ? l.key : NULL;
}

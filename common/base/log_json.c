#include "common/base/log_json.h"

#include "common/base/session_id.h"

#include <jansson.h>
#include <stdio.h>

/* "2026-01-31T12:34:56.789Z" */
static void spell_time(const struct timespec *at, char *out, size_t cap)
{
    struct tm t;
    if (gmtime_r(&at->tv_sec, &t) == NULL) {
        out[0] = '\0';
        return;
    }
    const size_t n = strftime(out, cap, "%Y-%m-%dT%H:%M:%S", &t);
    snprintf(out + n, cap - n, ".%03dZ", (int)(at->tv_nsec / 1000000));
}

static void put_number(json_t *o, const char *key, uint64_t value)
{
    if (value != 0) {
        (void)json_object_set_new(o, key, json_integer((json_int_t)value));
    }
}

size_t gr_log_json_spell(const struct gr_log_json *l, char *out, size_t cap)
{
    char at[40];
    spell_time(&l->at, at, sizeof(at));
    json_t *o = json_pack("{s:s, s:s, s:s, s:i, s:s*, s:s*}", "time", at, "level", l->level, "process", l->process,
                          "pid", l->pid, "host", l->host, "rank", l->rank);
    if (o == NULL) {
        return 0;
    }
    put_number(o, "worker", l->about->worker);
    if (l->about->session != 0) {
        char id[GR_SESSION_ID_DIGITS + 1];
        gr_session_id_spell(l->about->session, id);
        (void)json_object_set_new(o, "session", json_string(id));
    }
    put_number(o, "epoch", l->about->epoch);
    put_number(o, "round", l->about->round);
    if (l->about->trace_id[0] != '\0') {
        (void)json_object_set_new(o, "trace_id", json_string(l->about->trace_id));
    }
    (void)json_object_set_new(o, "message", json_string(l->message));
    const size_t n = json_dumpb(o, out, cap - 1, JSON_COMPACT);
    json_decref(o);
    if (n == 0 || n > cap - 1) {
        return 0;
    }
    out[n] = '\n';
    return n + 1;
}

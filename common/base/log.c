#include "common/base/log.h"

#include "common/base/log_json.h"
#include "common/base/out_guard.h"
#include "common/base/status.h"
#include "common/base/utf8.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES_MAX 1000 /* bytes of a line's text; the rest is cut off */

static const char *log_role = "graft";
static bool log_placed; /* lines of text have time and place */
static char log_host[64];
static const char *log_rank; /* NULL: no launcher has given one */
static atomic_bool log_as_json;
static _Thread_local struct gr_log_subject about;
static atomic_int log_level = GR_LOG_WARN;
static atomic_uint log_topics;
static _Thread_local char last_error[LINE_BYTES_MAX];
static atomic_bool log_hushed;

static const char *const level_keys[] = {"error", "warn", "info", "debug"};

static unsigned parse_topics(const char *text)
{
    static const struct {
        const char *name;
        unsigned bit;
    } names[] = {{"round", GR_TOPIC_ROUND}, {"kv", GR_TOPIC_KV}, {"metrics", GR_TOPIC_METRICS}};
    unsigned bits = 0;
    for (const char *p = text; *p != '\0';) {
        size_t n = strcspn(p, ",");
        bool known = false;
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
            if (strlen(names[i].name) == n && memcmp(names[i].name, p, n) == 0) {
                bits |= names[i].bit;
                known = true;
            }
        }
        if (!known && n > 0) {
            log_warn("GRAFT_DEBUG: unknown topic `%.*s'; known: round, kv, metrics", (int)n, p);
        }
        p += n + (p[n] == ',');
    }
    return bits;
}

/* The innermost launcher's first: mpirun and torchrun start their processes inside a step of Slurm, whose variables say
 * which daemon that was. RANK alone is too common a name. */
static const char *rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};
    const char *value = getenv("LOCAL_RANK") != NULL && getenv("WORLD_SIZE") != NULL ? getenv("RANK") : NULL;
    for (size_t i = 0; i < GR_ARRAY_LEN(names) && value == NULL; i++) {
        value = getenv(names[i]);
    }
    return value != NULL && strlen(value) < 12 && strspn(value, "0123456789") == strlen(value) ? value : NULL;
}

/* Its own name in full form is of no use to who reads lines of a cluster. */
static void find_place(void)
{
    char host[80] = "?";
    (void)gethostname(host, sizeof(host) - 1);
    host[strcspn(host, ".")] = '\0';
    (void)gr_utf8_show(host, strlen(host), log_host, sizeof(log_host));
    log_rank = rank();
}

void gr_log_init(const char *role)
{
    log_role = role;
    find_place();
    const char *level = getenv("GRAFT_LOG");
    if (level != NULL && !gr_log_set_level_by_name(level)) {
        log_warn("GRAFT_LOG: unknown level `%s'; known: error, warn, info, debug", level);
    }
    const char *format = getenv("GRAFT_LOG_FORMAT");
    if (format != NULL && !gr_log_set_format_by_name(format)) {
        log_warn("GRAFT_LOG_FORMAT: unknown format `%s'; known: text, json", format);
    }
    const char *topics = getenv("GRAFT_DEBUG");
    if (topics != NULL) {
        atomic_store(&log_topics, parse_topics(topics));
    }
}

bool gr_log_set_level_by_name(const char *name)
{
    for (int i = 0; i < (int)(sizeof(level_keys) / sizeof(level_keys[0])); i++) {
        if (strcmp(name, level_keys[i]) == 0) {
            gr_log_set_level((enum gr_log_level)i);
            return true;
        }
    }
    return false;
}

bool gr_log_set_format_by_name(const char *name)
{
    const bool json = strcmp(name, "json") == 0;
    if (json || strcmp(name, "text") == 0) {
        atomic_store(&log_as_json, json);
        return true;
    }
    return false;
}

void gr_log_about(const struct gr_log_subject *subject)
{
    about = subject != NULL ? *subject : (struct gr_log_subject){0};
}

struct gr_log_subject gr_log_subject_now(void)
{
    return about;
}

void gr_log_set_level(enum gr_log_level level)
{
    atomic_store(&log_level, (int)level);
}

void gr_log_hush(bool hushed)
{
    atomic_store(&log_hushed, hushed);
}

bool gr_log_enabled(enum gr_log_level level)
{
    return !atomic_load_explicit(&log_hushed, memory_order_relaxed) &&
           (int)level <= atomic_load_explicit(&log_level, memory_order_relaxed);
}

bool gr_log_topic(enum gr_log_topic topic)
{
    return (atomic_load_explicit(&log_topics, memory_order_relaxed) & (unsigned)topic) != 0;
}

/* What a user has given may be in a line: it stays one line, and UTF-8. */
static void format(const char *fmt, va_list ap, char *out, size_t cap)
{
    char raw[LINE_BYTES_MAX];
    const int n = vsnprintf(raw, sizeof(raw), fmt, ap);
    (void)gr_utf8_show(raw, n < 0 ? 0 : GR_MIN((size_t)n, sizeof(raw) - 1), out, cap);
}

void gr_log_place(void)
{
    log_placed = true;
}

/* "12:34:56.789 HOST/RANK ", or nothing. */
static void spell_place(const struct timespec *now, char *out, size_t cap)
{
    struct tm t;
    out[0] = '\0';
    if (!log_placed || localtime_r(&now->tv_sec, &t) == NULL) {
        return;
    }
    const size_t n = strftime(out, 16, "%H:%M:%S", &t);
    snprintf(out + n, cap - n, ".%03d %s%s%s ", (int)(now->tv_nsec / 1000000), log_host, log_rank != NULL ? "/" : "",
             log_rank != NULL ? log_rank : "");
}

static size_t spell_text(const struct timespec *now, const char *kind, const char *text, char *line, size_t cap)
{
    char place[sizeof(log_host) + 40];
    spell_place(now, place, sizeof(place));
    const bool traced = about.trace_id[0] != '\0';
    const int n = snprintf(line, cap, "%s%s: %s%s%s%s%s\n", place, log_role, kind, text, traced ? " (trace " : "",
                           about.trace_id, traced ? ")" : "");
    return GR_MIN((size_t)n, cap - 1);
}

static size_t spell_json(const struct timespec *now, const char *level, const char *text, char *line, size_t cap)
{
    return gr_log_json_spell(&(struct gr_log_json){.at = *now,
                                                   .level = level,
                                                   .process = log_role,
                                                   .host = log_host,
                                                   .rank = log_rank,
                                                   .message = text,
                                                   .pid = getpid(),
                                                   .about = &about},
                             line, cap);
}

/* One write per line, so that lines of several processes do not mix. */
static void write_line(const char *level, const char *kind, const char *text)
{
    char line[4 * LINE_BYTES_MAX];
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_REALTIME, &now);
    const size_t n = atomic_load(&log_as_json) ? spell_json(&now, level, text, line, sizeof(line))
                                               : spell_text(&now, kind, text, line, sizeof(line));
    const enum gr_status st = gr_out_write(STDERR_FILENO, line, n);
    (void)st; /* there is nowhere to tell it */
}

const char *gr_log_last_error(void)
{
    return last_error;
}

#define HOLD_MAX 4 /* holds inside one another */

struct hold {
    char *line;
    size_t size;
};

static _Thread_local struct hold hold[HOLD_MAX];
static _Thread_local int n_hold;

void gr_log_hold(char *line, size_t size)
{
    if (line == NULL) {
        n_hold -= n_hold > 0;
        return;
    }
    if (n_hold < HOLD_MAX) { /* beyond, the last of these keeps the lines */
        hold[n_hold] = (struct hold){.line = line, .size = size};
    }
    n_hold++;
}

/* Whether somebody keeps the line. */
static bool keep(const char *text)
{
    if (n_hold == 0) {
        return false;
    }
    const struct hold *h = &hold[GR_MIN(n_hold, HOLD_MAX) - 1];
    if (h->line[0] == '\0') {
        snprintf(h->line, h->size, "%s", text);
    }
    return true;
}

void gr_log_line(enum gr_log_level level, const char *fmt, ...)
{
    static const char *const kinds[] = {"error: ", "warning: ", "info: ", "debug: "};
    char text[LINE_BYTES_MAX];
    if (!gr_log_enabled(level)) {
        return;
    }
    va_list ap;
    va_start(ap, fmt);
    format(fmt, ap, text, sizeof(text));
    va_end(ap);
    if (level <= GR_LOG_WARN && keep(text)) {
        return;
    }
    if (level == GR_LOG_ERROR) {
        memcpy(last_error, text, sizeof(text));
    }
    write_line(level_keys[level], kinds[level], text);
}

void gr_log_notice(const char *fmt, ...)
{
    char text[LINE_BYTES_MAX];
    if (!gr_log_enabled(GR_LOG_WARN)) {
        return;
    }
    va_list ap;
    va_start(ap, fmt);
    format(fmt, ap, text, sizeof(text));
    va_end(ap);
    write_line("notice", "", text);
}

void gr_log_topic_line(enum gr_log_topic topic, const char *fmt, ...)
{
    if (!gr_log_topic(topic)) {
        return;
    }
    char text[LINE_BYTES_MAX];
    va_list ap;
    va_start(ap, fmt);
    format(fmt, ap, text, sizeof(text));
    va_end(ap);
    write_line("debug", "", text);
}

/* Logging to standard error: one line a call, with level, role and process id. Any thread may call.
 * GRAFT_LOG=error|warn|info|debug sets the level (default warn; workers started by a launcher: info).
 * GRAFT_LOG_FORMAT=json makes a JSON object of each line (text by default).
 * GRAFT_DEBUG=round,kv,metrics switches topic lines on. */
#ifndef GR_COMMON_BASE_LOG_H
#define GR_COMMON_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gr_log_level { GR_LOG_ERROR, GR_LOG_WARN, GR_LOG_INFO, GR_LOG_DEBUG };
enum gr_log_topic { GR_TOPIC_ROUND = 1, GR_TOPIC_KV = 2, GR_TOPIC_METRICS = 4 };

/* role: static string put in front of every line ("graft", "target", "draft"). Reads the environment. */
void gr_log_init(const char *role);
/* From now on each line begins with the time of day and this host's name, and after that its rank where a launcher has
 * given one: for processes whose lines are read together with those of others. Before the first thread. */
void gr_log_place(void);
void gr_log_set_level(enum gr_log_level level);
/* "error", "warn", "info", "debug"; false: none of them, and nothing has changed. */
bool gr_log_set_level_by_name(const char *name);
/* "text", "json"; false: neither, and nothing has changed. */
bool gr_log_set_format_by_name(const char *name);
#define GR_LOG_TRACE_MAX 33 /* bytes of a trace's id, its NUL included */

/* Zeroes and an empty text: not known. */
struct gr_log_subject {
    uint32_t worker; /* its number, from 1 */
    uint64_t session;
    uint32_t epoch, round;
    char trace_id[GR_LOG_TRACE_MAX]; /* of the session's request: lines of text end with it, too */
};
/* What this thread's lines are about from now on, for keys of JSON lines. NULL: nothing. */
void gr_log_about(const struct gr_log_subject *subject);
/* What they are about, for who says one line about something else in between. */
struct gr_log_subject gr_log_subject_now(void);
/* While it is hushed nothing is logged, whatever the level: for a program whose parent has told already what it would
 * say. */
void gr_log_hush(bool hushed);
bool gr_log_enabled(enum gr_log_level level);
bool gr_log_topic(enum gr_log_topic topic);
/* A topic's line, whatever the level; nothing when the topic is off. */
void gr_log_topic_line(enum gr_log_topic topic, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void gr_log_line(enum gr_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A line that is no warning and is seen wherever warnings are. */
void gr_log_notice(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* What this thread's last line of level error says, without role and level; "" before there is one. */
const char *gr_log_last_error(void);
/* Until it is called with NULL, this thread's errors and warnings are not written: the first one is kept as text, and
 * the caller says what becomes of it. line: empty, of size bytes. A hold may stand inside another one, which holds
 * again when the inner one has ended; 4 at most. */
void gr_log_hold(char *line, size_t size);

#define log_error(...) gr_log_line(GR_LOG_ERROR, __VA_ARGS__)
#define log_warn(...) gr_log_line(GR_LOG_WARN, __VA_ARGS__)
#define log_info(...) gr_log_line(GR_LOG_INFO, __VA_ARGS__)
#define log_debug(...)                              \
    do {                                            \
        if (gr_log_enabled(GR_LOG_DEBUG)) {         \
            gr_log_line(GR_LOG_DEBUG, __VA_ARGS__); \
        }                                           \
    } while (0)

#endif

/* Any lines as what the door looks at: a path, a method, and the values of Host, Content-Type, Content-Length,
 * Authorization, X-Request-Id and traceparent, in that order; a line that is missing is a header that is. Who is let in
 * has a right to it, and who is not gets a short error. What follows the eighth line is read as a file of keys. */
#include "orchestrator/http/door.h"
#include "orchestrator/http/event_id.h"
#include "orchestrator/http/once.h"
#include "orchestrator/http/request_names.h"
#include "tests/fuzz/http_checks.h"

#define N_LINE 8
#define LINE_MAX_BYTES 9000 /* more than a path may have */
#define KEY "sk-0123456789abcdef"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char lines[N_LINE][LINE_MAX_BYTES];

/* Texts as a library of HTTP hands them over: without NUL and line ends. Returns what was not taken. */
static size_t split(const uint8_t *data, size_t size, const char *line[N_LINE])
{
    size_t at = 0;
    for (int i = 0; i < N_LINE; i++) {
        const uint8_t *end = at < size ? memchr(data + at, '\n', size - at) : NULL;
        line[i] = end != NULL ? lines[i] : NULL;
        const size_t n = end != NULL ? (size_t)(end - data) - at : 0;
        memcpy(lines[i], data + at, GR_MIN(n, LINE_MAX_BYTES - 1u));
        lines[i][GR_MIN(n, LINE_MAX_BYTES - 1u)] = '\0';
        at += end != NULL ? n + 1 : 0;
    }
    return size - at;
}

static void check_names(const char *id, const char *trace)
{
    char out[GR_TRACE_ID_MAX];
    GR_ASSERT(id == NULL || !gr_request_id_is_good(id) ||
              (strlen(id) < GR_REQUEST_ID_MAX && strpbrk(id, " \r\n\t\"<") == NULL));
    GR_ASSERT(trace == NULL || !gr_trace_parent_read(trace, out) || strspn(out, "0123456789abcdef") == 32);
}

/* A path that names a session, and the seventh line as an event's id and as an Idempotency-Key. */
static void check_returns(const char *path, const char *text)
{
    uint64_t session = 0;
    struct gr_event_id id, again;
    char spelled[GR_EVENT_ID_MAX];
    GR_ASSERT(!gr_page_session(path, &session) || session != 0);
    if (text != NULL && gr_event_id_read(text, &id)) {
        gr_event_id_spell(&id, spelled);
        GR_ASSERT(gr_event_id_read(spelled, &again) && again.session == id.session && again.epoch == id.epoch &&
                  again.position == id.position);
    }
    GR_ASSERT(text == NULL || !gr_once_key_is_good(text) || strlen(text) <= GR_ONCE_KEY_MAX);
}

static void check_let_in(const struct gr_door *d, const struct gr_visit *v)
{
    GR_ASSERT(v->page != NULL && strlen(v->path) <= GR_HTTP_PATH_MAX);
    GR_ASSERT(v->host == NULL || gr_door_knows_host(d, v->host));
    GR_ASSERT(v->page->open || (v->authorization != NULL && strstr(v->authorization, KEY) != NULL));
    GR_ASSERT(!v->page->post || gr_type_is_json(v->type));
}

static void read_keys(const uint8_t *data, size_t size)
{
    struct gr_api_keys *keys;
    if (gr_api_keys_parse("F", (const char *)data, size, &keys) == GR_OK) {
        GR_ASSERT(gr_api_keys_count(keys) >= 1 && gr_api_keys_count(keys) <= GR_API_KEYS_MAX);
        gr_api_keys_destroy(keys);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct gr_api_keys *keys;
    static const char *const names[] = {"llm.example"};
    const char *line[N_LINE];
    struct gr_admission a;
    if (keys == NULL && gr_api_keys_parse("F", KEY, strlen(KEY), &keys) != GR_OK) {
        abort();
    }
    const size_t rest = split(data, size, line);
    read_keys(data + size - rest, rest);
    if (line[0] == NULL || line[1] == NULL) {
        return 0;
    }
    const struct gr_door d = {.on_loopback = true, .host = names, .n_host = 1, .keys = keys};
    const struct gr_visit v = {.page = gr_page_find(line[0]),
                               .path = line[0],
                               .method = line[1],
                               .host = line[2],
                               .type = line[3],
                               .length = line[4],
                               .authorization = line[5],
                               .n_authorization = line[5] != NULL,
                               .head_bytes = size};
    check_names(line[6], line[7]);
    check_returns(line[0], line[6]);
    (void)gr_header_is_odd(line[0]);
    gr_door_ask(&d, &v, &a);
    if (a.error.http_status == 0) {
        check_let_in(&d, &v);
    } else {
        check_refusal(&a.error);
    }
    return 0;
}

/* The kinds of options: from a text to a value, with the message that says what would be allowed, and back. */
#include "common/options/option.h"

#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/device.h"
#include "common/base/in_file.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/base/session_id.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#define ITEM_MAX 64 /* bytes of one value of a list */

/* ---- what would be allowed ---- */

static void join_choices(const struct gr_option *option, char *out, size_t cap)
{
    size_t n = 0;
    for (int i = 0; option->choices[i] != NULL && n < cap; i++) {
        n += (size_t)snprintf(out + n, cap - n, "%s%s", i > 0 ? ", " : "", option->choices[i]);
    }
}

/* In a sentence: "`x' is not ...". */
static void describe(const struct gr_option *r, char out[static 320])
{
    const char *kilo = r->kilo ? " (4k: 4096)" : "";
    char choices[256];
    switch (r->kind) {
    case GR_KIND_FLAG:
        snprintf(out, 320, "true or false");
        break;
    case GR_KIND_CHOICE:
    case GR_KIND_CHOICES:
        join_choices(r, choices, sizeof(choices));
        snprintf(out, 320, "one of %s", choices);
        break;
    case GR_KIND_INT:
        snprintf(out, 320, "a whole number from %.0f to %.0f%s", r->min, r->max, kilo);
        break;
    case GR_KIND_INT_OR_0:
        snprintf(out, 320, "0 or a whole number from %.0f to %.0f", r->min, r->max);
        break;
    case GR_KIND_AUTO:
        snprintf(out, 320, "auto or a whole number from %.0f to %.0f", r->min, r->max);
        break;
    case GR_KIND_COUNTS:
        snprintf(out, 320, "%sa whole number from %.0f to %.0f%s", r->or_auto ? "auto or " : "", r->min, r->max, kilo);
        break;
    case GR_KIND_NUMBER:
        snprintf(out, 320, "a number from %g to %g", r->min, r->max);
        break;
    case GR_KIND_SHARE:
        snprintf(out, 320, GR_SHARE_RANGE);
        break;
    case GR_KIND_DURATION:
        snprintf(out, 320, "a time from %.0f %s to %.0f %s, as 500ms, 2s or a plain number of %s", r->min, r->unit,
                 r->max, r->unit, r->unit);
        break;
    case GR_KIND_SESSION:
        snprintf(out, 320, GR_SESSION_ID_WORDS);
        break;
    case GR_KIND_IDS:
        snprintf(out, 320, "a token id from 0 to %.0f (several: 7,11)", r->max);
        break;
    case GR_KIND_MAP:
        snprintf(out, 320, "ID=NUMBER, the number from %g to %g%s (several: 7=1,11=-1)", r->min, r->max,
                 r->or_ban ? ", or ban" : "");
        break;
    default:
        snprintf(out, 320, "allowed");
    }
}

/* item: the part of the value that is wrong. */
static enum gr_status bad_item(const struct gr_option *option, const char *what, const char *value, const char *item)
{
    char range[320];
    const char *why = option->why != NULL ? option->why : "";
    const char *colon = option->why != NULL ? ": " : "";
    describe(option, range);
    if (strcmp(item, value) == 0) {
        log_error("%s: `%s' is not %s%s%s", what, value, range, colon, why);
    } else {
        log_error("%s: `%s' in `%s' is not %s%s%s", what, item, value, range, colon, why);
    }
    return GR_EINVAL;
}

static enum gr_status bad_value(const struct gr_option *option, const char *what, const char *value)
{
    return bad_item(option, what, value, value);
}

static enum gr_status too_many(const char *what, int most)
{
    log_error("%s: more than %d values", what, most);
    return GR_EINVAL;
}

static int most_of(const struct gr_option *option, int cap)
{
    return option->most > 0 ? GR_MIN(option->most, cap) : cap;
}

/* ---- single values ---- */

/* Its place among the choices, or -1. */
static int find_choice(const struct gr_option *option, const char *value)
{
    for (int i = 0; option->choices[i] != NULL; i++) {
        if (strcmp(option->choices[i], value) == 0) {
            return i;
        }
    }
    return -1;
}

static bool parse_flag(const char *value, bool *out)
{
    static const char *const words[] = {"false", "true", "0", "1"};
    for (size_t i = 0; i < GR_ARRAY_LEN(words); i++) {
        if (strcmp(value, words[i]) == 0) {
            *out = i % 2 == 1;
            return true;
        }
    }
    return false;
}

/* A whole number; with k after it, where the row has that, so many times 1024. */
static bool parse_count(const struct gr_option *option, const char *value, int64_t *out)
{
    const int64_t min = (int64_t)option->min, max = (int64_t)option->max;
    const size_t len = strlen(value);
    char number[24];
    int64_t n = 0;
    if (!option->kilo || len < 2 || len >= sizeof(number) || value[len - 1] != 'k') {
        return gr_parse_int(value, min, max, out);
    }
    snprintf(number, sizeof(number), "%.*s", (int)len - 1, value);
    if (!gr_parse_int(number, 0, max / 1024, &n) || n * 1024 < min) {
        return false;
    }
    *out = n * 1024;
    return true;
}

static bool parse_auto(const struct gr_option *option, const char *value, int64_t *out)
{
    if (strcmp(value, "auto") == 0) {
        *out = GR_AUTO;
        return true;
    }
    return parse_count(option, value, out);
}

static const struct {
    const char *name;
    int64_t ns;
} units[] = {{"h", 3600 * (int64_t)GR_S},
             {"m", 60 * (int64_t)GR_S},
             {"s", (int64_t)GR_S},
             {"ms", (int64_t)GR_MS},
             {"us", 1000},
             {"ns", 1}};

/* 0: there is no such unit. */
static int64_t unit_ns(const char *name)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(units); i++) {
        if (strcmp(units[i].name, name) == 0) {
            return units[i].ns;
        }
    }
    return 0;
}

static bool parse_duration(const struct gr_option *option, const char *value, int64_t *out)
{
    const size_t len = strspn(value, "0123456789");
    const int64_t ns = unit_ns(value[len] != '\0' ? value + len : option->unit);
    const double of_unit = (double)unit_ns(option->unit);
    char number[24];
    int64_t n = 0;
    if (ns == 0 || len == 0 || len >= sizeof(number)) {
        return false;
    }
    snprintf(number, sizeof(number), "%.*s", (int)len, value);
    if (!gr_parse_int(number, 0, INT64_MAX / ns, &n) || (double)(n * ns) < option->min * of_unit ||
        (double)(n * ns) > option->max * of_unit) {
        return false;
    }
    *out = n * ns;
    return true;
}

static bool parse_number(const struct gr_option *option, const char *value, void *slot)
{
    switch (option->kind) {
    case GR_KIND_INT:
        return parse_count(option, value, slot);
    case GR_KIND_INT_OR_0:
        return gr_parse_int_or_0(value, (int64_t)option->min, (int64_t)option->max, slot);
    case GR_KIND_AUTO:
        return parse_auto(option, value, slot);
    case GR_KIND_NUMBER:
        return gr_parse_number(value, option->min, option->max, slot);
    case GR_KIND_SHARE:
        return gr_parse_share(value, slot);
    case GR_KIND_DURATION:
        return parse_duration(option, value, slot);
    default:
        return parse_flag(value, slot);
    }
}

static enum gr_status take_text(const struct gr_option *option, const char *what, const char *value, const char **out)
{
    if (option->path != GR_PATH_NONE && value[0] == '\0') {
        log_error("%s is empty: the path of a %s is wanted", what, option->path == GR_PATH_FILE ? "file" : "folder");
        return GR_EINVAL;
    }
    *out = value;
    return GR_OK;
}

static enum gr_status take_choice(const struct gr_option *option, const char *what, const char *value, int *out)
{
    const int i = find_choice(option, value);
    if (i < 0) {
        return bad_value(option, what, value);
    }
    *out = i;
    return GR_OK;
}

static enum gr_status take_address(const struct gr_option *option, const char *what, const char *value,
                                   const char **out)
{
    struct gr_address unused;
    if (option->choices != NULL && find_choice(option, value) >= 0) {
        *out = value;
        return GR_OK;
    }
    const bool off = option->kind == GR_KIND_ADDRESS_OR_OFF && strcmp(value, "off") == 0;
    if (!off) {
        GR_TRY(option->min > 0 ? gr_address_check_peer(what, value) : gr_address_parse(what, value, 0, &unused));
    }
    *out = off ? NULL : value;
    return GR_OK;
}

/* ---- secrets ---- */

static enum gr_status keep_secret(const char *what, const char *text, size_t len, struct gr_option_secret *out)
{
    while (len > 0 && isspace((unsigned char)text[len - 1])) {
        len--;
    }
    if (len == 0 || len >= sizeof(out->text)) {
        log_error("%s: a secret has 1 to %d bytes", what, GR_OPTION_SECRET_MAX - 1);
        return GR_EINVAL;
    }
    *out = (struct gr_option_secret){{0}};
    memcpy(out->text, text, len);
    return GR_OK;
}

static enum gr_status read_secret(const char *what, const char *path, struct gr_option_secret *out)
{
    char text[GR_OPTION_SECRET_MAX + 1];
    const int fd = gr_in_file_open(path);
    const ssize_t n = fd >= 0 ? gr_in_file_read(fd, text, sizeof(text)) : -1;
    const int error = errno;
    if (fd >= 0) {
        close(fd);
    }
    if (n < 0) {
        log_error("%s: %s: %s", what, path, gr_in_file_error(error));
        return GR_EIO;
    }
    return keep_secret(what, text, (size_t)n, out);
}

/* ---- lists ---- */

static enum gr_status add_word(const struct gr_option *option, const char *what, const char *value,
                               struct gr_option_words *words)
{
    const int most = most_of(option, GR_OPTION_WORDS_MAX);
    if (words->n == most) {
        return too_many(what, most);
    }
    words->word[words->n++] = value;
    return GR_OK;
}

static enum gr_status add_id(const struct gr_option *option, const char *item, struct gr_option_ids *ids)
{
    int64_t id = 0;
    if (!isdigit((unsigned char)item[0]) || !gr_parse_int(item, 0, (int64_t)option->max, &id)) {
        return GR_EINVAL;
    }
    if (ids->n == most_of(option, GR_OPTION_IDS_MAX)) {
        return GR_ELIMIT;
    }
    ids->id[ids->n++] = (int32_t)id;
    return GR_OK;
}

static bool parse_bias(const struct gr_option *option, const char *text, double *out)
{
    if (option->or_ban && strcmp(text, "ban") == 0) {
        *out = -INFINITY;
        return true;
    }
    return gr_parse_number(text, option->min, option->max, out);
}

static enum gr_status add_pair(const struct gr_option *option, const char *item, struct gr_option_map *map)
{
    char key[ITEM_MAX];
    const size_t len = strcspn(item, "=");
    int64_t id = 0;
    double value = 0.0;
    snprintf(key, sizeof(key), "%.*s", (int)len, item);
    if (item[len] != '=' || !isdigit((unsigned char)item[0]) || !gr_parse_int(key, 0, INT32_MAX, &id) ||
        !parse_bias(option, item + len + 1, &value)) {
        return GR_EINVAL;
    }
    if (map->n == most_of(option, GR_OPTION_MAP_MAX)) {
        return GR_ELIMIT;
    }
    map->key[map->n] = id;
    map->value[map->n++] = value;
    return GR_OK;
}

static bool parse_item(const struct gr_option *option, const char *item, int64_t *out)
{
    if (option->kind == GR_KIND_CHOICES) {
        *out = find_choice(option, item);
        return *out >= 0;
    }
    return option->or_auto ? parse_auto(option, item, out) : parse_count(option, item, out);
}

static enum gr_status add_device(const struct gr_option *option, const char *what, const char *item,
                                 struct gr_devices *d)
{
    int device = 0;
    if (gr_device_parse(what, item, &device) != GR_OK) {
        return GR_ECANCELED; /* it has been told */
    }
    if (d->n == most_of(option, GR_DEVICES_MAX)) {
        return GR_ELIMIT;
    }
    d->device[d->n++] = device;
    return GR_OK;
}

static enum gr_status add_value(const struct gr_option *option, const char *item, struct gr_option_list *list)
{
    int64_t value = 0;
    if (!parse_item(option, item, &value)) {
        return GR_EINVAL;
    }
    if (list->n == most_of(option, GR_OPTION_LIST_MAX)) {
        return GR_ELIMIT;
    }
    list->value[list->n++] = value;
    return GR_OK;
}

static enum gr_status add_item(const struct gr_option *option, const char *what, const char *item, void *slot)
{
    switch (option->kind) {
    case GR_KIND_IDS:
        return add_id(option, item, slot);
    case GR_KIND_MAP:
        return add_pair(option, item, slot);
    case GR_KIND_DEVICES:
        return add_device(option, what, item, slot);
    default:
        return add_value(option, item, slot);
    }
}

static int cap_of(const struct gr_option *option)
{
    return option->kind == GR_KIND_IDS       ? GR_OPTION_IDS_MAX
           : option->kind == GR_KIND_MAP     ? GR_OPTION_MAP_MAX
           : option->kind == GR_KIND_DEVICES ? GR_DEVICES_MAX
                                             : GR_OPTION_LIST_MAX;
}

/* Each part of the value between commas. */
static enum gr_status add_items(const struct gr_option *option, const char *what, const char *value, void *slot)
{
    for (const char *at = value; at != NULL;) {
        const size_t len = strcspn(at, ",");
        char item[ITEM_MAX];
        snprintf(item, sizeof(item), "%.*s", (int)GR_MIN(len, sizeof(item)), at);
        const enum gr_status st = len < sizeof(item) ? add_item(option, what, item, slot) : GR_EINVAL;
        if (st == GR_EINVAL) {
            return bad_item(option, what, value, item);
        }
        if (st == GR_ELIMIT) {
            return too_many(what, most_of(option, cap_of(option)));
        }
        if (st != GR_OK) {
            return GR_EINVAL;
        }
        at = at[len] == ',' ? at + len + 1 : NULL;
    }
    return GR_OK;
}

/* ---- any kind ---- */

static enum gr_status store(struct gr_option_values *v, const struct gr_option *option, const char *what,
                            const char *value)
{
    void *slot = (char *)v + option->at;
    switch (option->kind) {
    case GR_KIND_TEXT:
        return take_text(option, what, value, slot);
    case GR_KIND_CHOICE:
        return take_choice(option, what, value, slot);
    case GR_KIND_ADDRESS:
    case GR_KIND_ADDRESS_OR_OFF:
        return take_address(option, what, value, slot);
    case GR_KIND_SESSION:
        return gr_session_id_read(value, slot) ? GR_OK : bad_value(option, what, value);
    case GR_KIND_DEVICE:
        return gr_device_parse(what, value, slot);
    case GR_KIND_SECRET:
        return read_secret(what, value, slot);
    case GR_KIND_REST:
        log_error("%s is what follows `--' on the command line", what);
        return GR_EINVAL;
    case GR_KIND_WORKERS:
        log_error("%s is a list of items with count, host and device", what);
        return GR_EINVAL;
    case GR_KIND_WORDS:
        return add_word(option, what, value, slot);
    case GR_KIND_IDS:
    case GR_KIND_CHOICES:
    case GR_KIND_COUNTS:
    case GR_KIND_DEVICES:
    case GR_KIND_MAP:
        return add_items(option, what, value, slot);
    default:
        return parse_number(option, value, slot) ? GR_OK : bad_value(option, what, value);
    }
}

bool gr_option_is_list(const struct gr_option *option)
{
    return option->kind >= GR_KIND_WORDS;
}

/* What a lower source has listed does not count beside what a higher one lists; and most lists come as a whole. */
static void begin_list(struct gr_option_values *v, const struct gr_option *option, bool higher, bool again)
{
    char *slot = (char *)v + option->at;
    switch (option->kind) {
    case GR_KIND_WORDS:
        ((struct gr_option_words *)(void *)slot)->n *= !higher;
        break;
    case GR_KIND_IDS:
        ((struct gr_option_ids *)(void *)slot)->n *= !higher;
        break;
    case GR_KIND_MAP:
        ((struct gr_option_map *)(void *)slot)->n *= !higher && !again;
        break;
    case GR_KIND_CHOICES:
    case GR_KIND_COUNTS:
        ((struct gr_option_list *)(void *)slot)->n *= !higher && !again;
        break;
    case GR_KIND_DEVICES:
        ((struct gr_devices *)(void *)slot)->n *= !higher && !again;
        break;
    default:
        break;
    }
}

/* A list of the YAML file comes value by value; elsewhere a value is a whole list. */
enum gr_status gr_option_set(struct gr_option_values *v, const struct gr_option *option, const char *what,
                             const char *value, enum gr_option_source source)
{
    uint8_t *by = &v->source[option - v->table->row];
    if (source < *by) {
        return GR_OK; /* something that ranks higher has set it */
    }
    begin_list(v, option, source > *by, source != GR_FROM_YAML);
    *by = (uint8_t)source;
    return store(v, option, what, value);
}

enum gr_status gr_option_set_secret(struct gr_option_values *v, const struct gr_option *option, const char *what,
                                    const char *text, enum gr_option_source source)
{
    uint8_t *by = &v->source[option - v->table->row];
    if (source < *by) {
        return GR_OK;
    }
    *by = (uint8_t)source;
    return keep_secret(what, text, strlen(text), (void *)((char *)v + option->at));
}

/* ---- workers ---- */

const char *const gr_option_worker_keys[] = {"count", "host", "hosts", "device", "tp", NULL};

enum gr_status gr_option_add_worker(struct gr_option_values *v, const struct gr_option *option, const char *what,
                                    struct gr_option_worker **out)
{
    struct gr_option_workers *list = (void *)((char *)v + option->at);
    if (list->n == GR_OPTION_WORKERS_MAX) {
        (void)too_many(what, GR_OPTION_WORKERS_MAX);
        return GR_ELIMIT;
    }
    v->source[option - v->table->row] = GR_FROM_YAML;
    *out = &list->item[list->n++];
    **out = (struct gr_option_worker){.count = 1};
    return GR_OK;
}

enum gr_status gr_option_set_worker(struct gr_option_worker *w, const char *key, const char *what, const char *value)
{
    static const struct gr_option count = {.kind = GR_KIND_INT, .min = 1, .max = 1024};
    if (strcmp(key, "count") == 0) {
        return parse_number(&count, value, &w->count) ? GR_OK : bad_value(&count, what, value);
    }
    if (strcmp(key, "tp") == 0) {
        const bool good = gr_parse_int(value, 1, 8, &w->tp) && (w->tp & (w->tp - 1)) == 0;
        if (!good) {
            log_error("%s: `%s' is not 1, 2, 4 or 8", what, value);
        }
        return good ? GR_OK : GR_EINVAL;
    }
    if (strcmp(key, "host") == 0) {
        w->host = value;
        return GR_OK;
    }
    if (strcmp(key, "hosts") == 0) {
        w->hosts = value;
        return GR_OK;
    }
    if (strcmp(key, "device") == 0) {
        static const struct gr_option devices = {.kind = GR_KIND_DEVICES};
        w->devices.n = 0;
        return add_items(&devices, what, value, &w->devices);
    }
    return GR_ENOTFOUND;
}

/* ---- back to a text ---- */

/* In the largest unit that says it in whole numbers. */
static const char *duration_text(int64_t ns, char text[static 64])
{
    for (size_t i = 2; i < GR_ARRAY_LEN(units); i++) { /* from seconds on */
        if (ns % units[i].ns == 0) {
            snprintf(text, 64, "%" PRId64 "%s", ns / units[i].ns, units[i].name);
            return text;
        }
    }
    return text;
}

static const char *devices_text(const struct gr_devices *d, char text[static GR_OPTION_TEXT_MAX])
{
    gr_devices_text(d, text, GR_OPTION_TEXT_MAX);
    return text;
}

const char *gr_option_text(const struct gr_option_values *v, const struct gr_option *option,
                           char text[static GR_OPTION_TEXT_MAX])
{
    const void *slot = (const char *)v + option->at;
    switch (option->kind) {
    case GR_KIND_FLAG:
        return *(const bool *)slot ? "true" : "false";
    case GR_KIND_TEXT:
    case GR_KIND_ADDRESS:
    case GR_KIND_ADDRESS_OR_OFF:
        return *(const char *const *)slot;
    case GR_KIND_CHOICE:
        return *(const int *)slot != GR_UNSET ? option->choices[*(const int *)slot] : NULL;
    case GR_KIND_AUTO:
        if (*(const int64_t *)slot == GR_AUTO) {
            return "auto";
        }
        /* fall through */
    case GR_KIND_INT:
    case GR_KIND_INT_OR_0:
        snprintf(text, 64, "%" PRId64, *(const int64_t *)slot);
        return text;
    case GR_KIND_NUMBER:
    case GR_KIND_SHARE:
        snprintf(text, 64, "%.17g", *(const double *)slot);
        return text;
    case GR_KIND_DURATION:
        return duration_text(*(const int64_t *)slot, text);
    case GR_KIND_SESSION:
        gr_session_id_spell(*(const uint64_t *)slot, text);
        return text;
    case GR_KIND_DEVICE:
        return devices_text(&(struct gr_devices){.device = {*(const int *)slot}, .n = 1}, text);
    case GR_KIND_DEVICES:
        return devices_text(slot, text);
    default:
        return NULL; /* no worker is handed another list */
    }
}

void gr_option_range(const struct gr_option *r, char out[static 160])
{
    out[0] = '\0';
    switch (r->kind) {
    case GR_KIND_CHOICE:
    case GR_KIND_CHOICES:
        join_choices(r, out, 160);
        break;
    case GR_KIND_INT:
        snprintf(out, 160, "%.0f .. %.0f", r->min, r->max);
        break;
    case GR_KIND_INT_OR_0:
        snprintf(out, 160, "0, %.0f .. %.0f", r->min, r->max);
        break;
    case GR_KIND_AUTO:
        snprintf(out, 160, "auto, %.0f .. %.0f", r->min, r->max);
        break;
    case GR_KIND_COUNTS:
        snprintf(out, 160, "each %s%.0f .. %.0f", r->or_auto ? "auto, " : "", r->min, r->max);
        break;
    case GR_KIND_NUMBER:
    case GR_KIND_MAP:
        snprintf(out, 160, "%s%s%g .. %g", r->kind == GR_KIND_MAP ? "each " : "", r->or_ban ? "ban, " : "", r->min,
                 r->max);
        break;
    case GR_KIND_SHARE:
        snprintf(out, 160, "off, above 0 and below 1");
        break;
    case GR_KIND_DURATION:
        snprintf(out, 160, "%.0f .. %.0f %s", r->min, r->max, r->unit);
        break;
    case GR_KIND_ADDRESS:
    case GR_KIND_ADDRESS_OR_OFF:
        if (r->choices != NULL) {
            join_choices(r, out, 120);
        }
        snprintf(out + strlen(out), 40, "%s%sport %.0f .. 65535", r->choices != NULL ? ", " : "",
                 r->kind == GR_KIND_ADDRESS ? "" : "off, ", r->min);
        break;
    case GR_KIND_SESSION:
        snprintf(out, 160, "%d hexadecimal digits", GR_SESSION_ID_DIGITS);
        break;
    case GR_KIND_DEVICE:
    case GR_KIND_DEVICES:
        snprintf(out, 160, "cpu, cuda:N");
        break;
    case GR_KIND_IDS:
        snprintf(out, 160, "ids 0 .. %.0f", r->max);
        break;
    default:
        break;
    }
}

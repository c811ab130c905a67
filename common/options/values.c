/* The kinds of options: from a text to a value, with the message that says what would be allowed, and back. */
#include "common/options/options.h"

#include "common/base/address.h"
#include "common/base/device.h"
#include "common/base/log.h"
#include "common/base/parse.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>

static enum gr_status bad_value(const struct gr_option *option, const char *what, const char *value)
{
    const char *colon = option->why != NULL ? ": " : "";
    const char *why = option->why != NULL ? option->why : "";
    switch (option->kind) {
    case GR_KIND_INT:
        log_error("%s: `%s' is not a whole number from %.0f to %.0f%s%s", what, value, option->min, option->max, colon,
                  why);
        break;
    case GR_KIND_INT_OR_0:
        log_error("%s: `%s' is not 0 or a whole number from %.0f to %.0f", what, value, option->min, option->max);
        break;
    case GR_KIND_AUTO:
        log_error("%s: `%s' is not auto or a whole number from %.0f to %.0f", what, value, option->min, option->max);
        break;
    case GR_KIND_NUMBER:
        log_error("%s: `%s' is not a number from %g to %g", what, value, option->min, option->max);
        break;
    case GR_KIND_SHARE:
        log_error("%s: `%s' is not " GR_SHARE_RANGE, what, value);
        break;
    case GR_KIND_CHOICE:
        log_error("%s: `%s' is not one of %s", what, value, option->choices);
        break;
    case GR_KIND_FLAG:
        log_error("%s: `%s' is not true or false", what, value);
        break;
    case GR_KIND_IDS:
        log_error("%s: `%s' is not a list of token ids as 7,11", what, value);
        break;
    default:
        log_error("%s: `%s' is not allowed", what, value);
    }
    return GR_EINVAL;
}

/* choices: with a comma and a blank between. */
static bool is_choice(const char *choices, const char *value)
{
    const size_t len = strlen(value);
    for (const char *at = choices; at != NULL;) {
        const size_t n = strcspn(at, ",");
        if (n == len && memcmp(at, value, n) == 0) {
            return true;
        }
        at = at[n] == ',' ? at + n + 2 : NULL;
    }
    return false;
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

static bool parse_auto(const struct gr_option *option, const char *value, int64_t *out)
{
    if (strcmp(value, "auto") == 0) {
        *out = GR_AUTO;
        return true;
    }
    return gr_parse_int(value, (int64_t)option->min, (int64_t)option->max, out);
}

static enum gr_status add_word(const struct gr_option *option, const char *what, const char *value,
                               struct gr_option_words *words)
{
    if (words->n == (int)option->max) {
        log_error("%s: at most %.0f stop strings", what, option->max);
        return GR_EINVAL;
    }
    words->word[words->n++] = value;
    return GR_OK;
}

/* One id or several with commas between them. */
static enum gr_status add_ids(const struct gr_option *option, const char *what, const char *value,
                              struct gr_option_ids *ids)
{
    for (const char *at = value; at != NULL;) {
        const size_t len = strcspn(at, ",");
        char number[24] = "";
        int64_t id = 0;
        if (len < sizeof(number)) {
            memcpy(number, at, len);
        }
        if (!isdigit((unsigned char)number[0]) || !gr_parse_int(number, 0, (int64_t)option->max, &id)) {
            return bad_value(option, what, value);
        }
        if (ids->n == GR_STOP_ID_MAX) {
            log_error("%s: at most %d token ids", what, GR_STOP_ID_MAX);
            return GR_EINVAL;
        }
        ids->id[ids->n++] = (int32_t)id;
        at = at[len] == ',' ? at + len + 1 : NULL;
    }
    return GR_OK;
}

static bool parse_number(const struct gr_option *option, const char *value, void *slot)
{
    const int64_t min = (int64_t)option->min;
    const int64_t max = (int64_t)option->max;
    switch (option->kind) {
    case GR_KIND_INT:
        return gr_parse_int(value, min, max, slot);
    case GR_KIND_INT_OR_0:
        return gr_parse_int_or_0(value, min, max, slot);
    case GR_KIND_AUTO:
        return parse_auto(option, value, slot);
    case GR_KIND_NUMBER:
        return gr_parse_number(value, option->min, option->max, slot);
    case GR_KIND_SHARE:
        return gr_parse_share(value, slot);
    default:
        return parse_flag(value, slot);
    }
}

static enum gr_status store(struct gr_options *o, const struct gr_option *option, const char *what, const char *value)
{
    void *slot = (char *)o + option->at;
    struct gr_address address;
    int device = 0;
    switch (option->kind) {
    case GR_KIND_WORDS:
        return add_word(option, what, value, slot);
    case GR_KIND_IDS:
        return add_ids(option, what, value, slot);
    case GR_KIND_ADDRESS:
        GR_TRY(gr_address_parse(what, value, (unsigned)option->min, &address));
        break;
    case GR_KIND_DEVICE:
        GR_TRY(gr_device_parse(what, value, &device));
        break;
    case GR_KIND_CHOICE:
        if (!is_choice(option->choices, value)) {
            return bad_value(option, what, value);
        }
        break;
    case GR_KIND_TEXT:
        break;
    default:
        return parse_number(option, value, slot) ? GR_OK : bad_value(option, what, value);
    }
    *(const char **)slot = value;
    return GR_OK;
}

/* What a lower source has listed does not count beside what a higher one lists. */
static void begin_list(struct gr_options *o, const struct gr_option *option)
{
    char *slot = (char *)o + option->at;
    if (option->kind == GR_KIND_WORDS) {
        ((struct gr_option_words *)(void *)slot)->n = 0;
    } else if (option->kind == GR_KIND_IDS) {
        ((struct gr_option_ids *)(void *)slot)->n = 0;
    }
}

enum gr_status gr_option_set(struct gr_options *o, const struct gr_option *option, const char *what, const char *value,
                             enum gr_option_source source)
{
    uint8_t *by = &o->source[option - gr_option_table];
    if (source < *by) {
        return GR_OK; /* something that ranks higher has set it */
    }
    if (source > *by) {
        begin_list(o, option);
    }
    *by = (uint8_t)source;
    return store(o, option, what, value);
}

const char *gr_option_text(const struct gr_options *o, const struct gr_option *option, char text[static 64])
{
    const void *slot = (const char *)o + option->at;
    switch (option->kind) {
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
    case GR_KIND_FLAG:
        return *(const bool *)slot ? "true" : "false";
    case GR_KIND_WORDS:
    case GR_KIND_IDS:
        return NULL; /* no worker is handed a list */
    default:
        return *(const char *const *)slot;
    }
}

/* For tests and fuzzers: a tokenizer.json made in code. 256 byte tokens (id = byte), a few merges,
 * two added tokens, Llama 3's regex, a BOS template. */
#ifndef GR_TESTS_MINI_TOKENIZER_H
#define GR_TESTS_MINI_TOKENIZER_H

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "common/base/status.h"

/* The character of the byte-level alphabet that stands for a byte, as UTF-8. */
static inline const char *mini_byte_char(int byte)
{
    static char text[4];
    int c = byte, next = 256;
    for (int b = 0; b <= byte; b++) {
        int printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        c = printable ? b : next++;
    }
    if (c < 0x80) {
        snprintf(text, sizeof(text), "%c", c);
    } else {
        snprintf(text, sizeof(text), "%c%c", 0xC0 | c >> 6, 0x80 | (c & 0x3F));
    }
    return text;
}

/* New reference. */
static inline json_t *mini_tokenizer(void)
{
    static const char text[] =
        "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"normalizer\":null,"
        "\"added_tokens\":["
        "{\"id\":300,\"content\":\"<bos>\",\"special\":true,\"normalized\":false},"
        "{\"id\":301,\"content\":\"<tool>\",\"special\":false,\"normalized\":false}],"
        "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
        "\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{"
        "L}+|"
        "\\\\p{N}{1,3}| "
        "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|"
        "\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","
        "\"add_prefix_space\":false,\"use_regex\":false}]},"
        "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
        "\"<bos>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],"
        "\"special_tokens\":{\"<bos>\":{\"id\":\"<bos>\",\"ids\":[300],\"tokens\":[\"<bos>\"]}}},"
        "\"decoder\":{\"type\":\"ByteLevel\"},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"ab\":256,\"abc\":257,\"bc\":258,\"aa\":259},"
        "\"merges\":[\"b c\",[\"a\",\"b\"],\"a bc\",\"a a\"]}}";
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    GR_ASSERT(root != NULL);
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    for (int b = 0; b < 256; b++) {
        GR_ASSERT(json_object_set_new(vocab, mini_byte_char(b), json_integer(b)) == 0);
    }
    return root;
}

/* Sets the value at a path such as "model.dropout" or "added_tokens.0.id"; literal NULL deletes it.
 */
static inline void json_patch_at(json_t *root, const char *path, const char *literal)
{
    char part[64];
    json_t *obj = root;
    for (;;) {
        size_t n = strcspn(path, ".");
        GR_ASSERT(n < sizeof(part));
        memcpy(part, path, n);
        part[n] = '\0';
        if (path[n] == '\0') {
            break;
        }
        obj = json_is_array(obj) ? json_array_get(obj, (size_t)(part[0] - '0')) : json_object_get(obj, part);
        GR_ASSERT(obj != NULL);
        path += n + 1;
    }
    if (literal == NULL) {
        GR_ASSERT(json_object_del(obj, part) == 0);
        return;
    }
    json_t *value = json_loads(literal, JSON_DECODE_ANY, NULL);
    GR_ASSERT(value != NULL);
    if (json_is_array(obj)) {
        size_t i = (size_t)(part[0] - '0');
        GR_ASSERT((i < json_array_size(obj) ? json_array_set_new(obj, i, value) : json_array_append_new(obj, value)) ==
                  0);
    } else {
        GR_ASSERT(json_object_set_new(obj, part, value) == 0);
    }
}

#endif

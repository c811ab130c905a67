/* A value of JSON as text. Header only. */
#ifndef GR_ORCHESTRATOR_HTTP_JSON_TEXT_H
#define GR_ORCHESTRATOR_HTTP_JSON_TEXT_H

#include <jansson.h>

/* root: taken. Owned by the caller (free); NULL: root is, or out of memory. */
static inline char *gr_json_text(json_t *root)
{
    char *text = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}

#endif

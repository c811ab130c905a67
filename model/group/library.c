#include "model/group/library.h"

#include "common/base/log.h"
#include "model/group/agree.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* "4: ACTIVE" */
static bool is_active(const char *folder, const char *card, const char *port)
{
    char path[PATH_MAX], state[32] = "";
    snprintf(path, sizeof(path), "%s/%s/ports/%s/state", folder, card, port);
    FILE *f = fopen(path, "re");
    if (f != NULL) {
        state[fread(state, 1, sizeof(state) - 1, f)] = '\0';
        fclose(f);
    }
    return strstr(state, "ACTIVE") != NULL;
}

static bool has_active_port(const char *folder, const char *card)
{
    char path[PATH_MAX];
    bool found = false;
    snprintf(path, sizeof(path), "%s/%s/ports", folder, card);
    DIR *ports = opendir(path);
    for (const struct dirent *e; ports != NULL && (e = readdir(ports)) != NULL;) {
        found = found || (e->d_name[0] != '.' && is_active(folder, card, e->d_name));
    }
    if (ports != NULL) {
        closedir(ports);
    }
    return found;
}

static void list_cards(const char *folder, char *out, size_t cap)
{
    struct dirent **entry = NULL;
    const int n = scandir(folder, &entry, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        const size_t at = strlen(out);
        if (entry[i]->d_name[0] != '.' && has_active_port(folder, entry[i]->d_name)) {
            snprintf(out + at, cap - at, "%s%s", at > 0 ? "," : "", entry[i]->d_name);
        }
        free(entry[i]);
    }
    free(entry);
}

/* By hand: which cards NCCL takes is no longer what the host has. */
static bool cards_are_named(void)
{
    const char *off = getenv("NCCL_IB_DISABLE");
    return getenv("NCCL_IB_HCA") != NULL || (off != NULL && strcmp(off, "0") != 0);
}

void gr_group_library_fill(const char *folder, const char *version, struct gr_group_library *out)
{
    memset(out, 0, sizeof(*out));
    (void)gethostname(out->host, sizeof(out->host) - 1);
    snprintf(out->version, sizeof(out->version), "%s", version);
    if (!cards_are_named()) {
        list_cards(folder, out->cards, sizeof(out->cards));
    }
}

static const char *or_none(const char *cards)
{
    return cards[0] != '\0' ? cards : "none";
}

static enum gr_status compare(const struct gr_group *g, const struct gr_group_library *own,
                              const struct gr_group_library *first)
{
    if (strcmp(own->version, first->version) != 0) {
        log_error("tensor-parallel rank %d on host %s has NCCL %s, and rank 0 on host %s NCCL %s: one version is "
                  "needed on all hosts of a group (which libnccl.so.2 does LD_LIBRARY_PATH lead to?)",
                  g->rank, own->host, own->version, first->host, first->version);
        return GR_EMISMATCH;
    }
    if (strcmp(own->cards, first->cards) != 0) {
        log_error("tensor-parallel rank %d on host %s sees the RDMA cards %s, and rank 0 on host %s %s: let both see "
                  "the same, or name those that NCCL is to take on each host, NCCL_IB_HCA (NCCL_IB_DISABLE=1: none)",
                  g->rank, own->host, or_none(own->cards), first->host, or_none(first->cards));
        return GR_EMISMATCH;
    }
    return GR_OK;
}

enum gr_status gr_group_library_same(struct gr_group *g, const struct gr_group_library *own)
{
    struct gr_group_library first = *own;
    GR_TRY(gr_group_broadcast_patiently(g, &first, sizeof(first)));
    return gr_group_all_ok(g, compare(g, own, &first));
}

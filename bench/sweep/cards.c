#include "bench/sweep/cards.h"

#include "common/base/status.h"

#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_CARD_MAX 64

/* The few calls of the driver that are made; all return 0 where all is well. */
struct driver {
    int (*init)(unsigned flags);
    int (*version)(int *version);
    int (*count)(int *n);
    int (*get)(int *device, int ordinal);
    int (*name)(char *text, int len, int device);
    int (*pci)(char *text, int len, int device);
};

static bool find(void *library, const char *name, void *function_out)
{
    void *found = dlsym(library, name);
    memcpy(function_out, &found, sizeof(found)); /* C has no cast from data to functions */
    return found != NULL;
}

static bool open_driver(struct driver *d)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return library != NULL && find(library, "cuInit", &d->init) && find(library, "cuDriverGetVersion", &d->version) &&
           find(library, "cuDeviceGetCount", &d->count) && find(library, "cuDeviceGet", &d->get) &&
           find(library, "cuDeviceGetName", &d->name) && find(library, "cuDeviceGetPCIBusId", &d->pci) &&
           d->init(0) == 0;
}

/* The first line of a file, without its end; empty: it cannot be read. */
static void first_line(const char *path, char *out, size_t cap)
{
    FILE *f = fopen(path, "re");
    out[0] = '\0';
    if (f != NULL) {
        if (fgets(out, (int)cap, f) == NULL) {
            out[0] = '\0';
        }
        fclose(f);
    }
    out[strcspn(out, "\r\n")] = '\0';
}

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue ..." */
static void kernel_module(char *out, size_t cap)
{
    char line[256];
    first_line("/proc/driver/nvidia/version", line, sizeof(line));
    for (const char *p = line; *p != '\0'; p++) {
        int end = 0;
        if (p > line && p[-1] == ' ' && isdigit((unsigned char)*p) && sscanf(p, "%*[0-9].%*[0-9.]%n", &end) == 0 &&
            end > 0) {
            snprintf(out, cap, "%.*s", GR_MIN(end, 100), p);
            return;
        }
    }
    snprintf(out, cap, "%.100s", line);
}

json_t *gr_about_cards(void)
{
    struct driver d = {.init = NULL};
    json_t *cards = json_array();
    char cuda[32] = "", module[128] = "";
    int n = 0, version = 0, device = 0;
    if (open_driver(&d) && d.version(&version) == 0 && d.count(&n) == 0) {
        snprintf(cuda, sizeof(cuda), "%d.%d", version / 1000, version % 1000 / 10);
        kernel_module(module, sizeof(module));
    }
    for (int i = 0; i < n && i < N_CARD_MAX; i++) {
        char name[128], pci[32], text[192];
        if (d.get(&device, i) == 0 && d.name(name, sizeof(name), device) == 0 && d.pci(pci, sizeof(pci), device) == 0) {
            snprintf(text, sizeof(text), "%d: %s (%s)", i, name, pci);
            json_array_append_new(cards, json_string(text));
        }
    }
    return json_pack("{s:o, s:s, s:s}", "cards", cards, "driver", module, "cuda", cuda);
}

/* ---- network cards ---- */

static void add_rdma(json_t *list, const char *name)
{
    char path[512], state[64], rate[64], text[400];
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/state", name);
    first_line(path, state, sizeof(state));
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/rate", name);
    first_line(path, rate, sizeof(rate));
    if (strstr(state, "ACTIVE") != NULL) {
        snprintf(text, sizeof(text), "%s %s", name, rate);
        json_array_append_new(list, json_string(text));
    }
}

static void add_interface(json_t *list, const char *name)
{
    char path[512], state[64], speed[64], text[400];
    snprintf(path, sizeof(path), "/sys/class/net/%s/operstate", name);
    first_line(path, state, sizeof(state));
    snprintf(path, sizeof(path), "/sys/class/net/%s/speed", name);
    first_line(path, speed, sizeof(speed));
    if (strcmp(state, "up") == 0) {
        const bool known = isdigit((unsigned char)speed[0]) != 0;
        snprintf(text, sizeof(text), "%s%s%s%s", name, known ? " " : "", known ? speed : "", known ? " Mb/s" : "");
        json_array_append_new(list, json_string(text));
    }
}

static void add_all(json_t *list, const char *folder, void (*add)(json_t *list, const char *name))
{
    struct dirent **entry = NULL;
    const int n = scandir(folder, &entry, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        if (entry[i]->d_name[0] != '.') {
            add(list, entry[i]->d_name);
        }
        free(entry[i]);
    }
    free(entry);
}

json_t *gr_about_nics(void)
{
    json_t *list = json_array();
    add_all(list, "/sys/class/infiniband", add_rdma);
    add_all(list, "/sys/class/net", add_interface);
    return list;
}

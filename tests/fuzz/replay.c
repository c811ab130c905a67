/* Stands in for libFuzzer where the compiler has none: gives the target every file of the corpus folders, each of its
 * prefixes, and each file with one byte changed. Arguments: corpus folders. */
#include "common/base/status.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX (1 << 20)
#define N_CHANGE_MAX 4000 /* of one file; larger files are sampled */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* On memory of its own, so that a sanitizer sees its end. */
static void give(const uint8_t *bytes, size_t n)
{
    uint8_t *copy = malloc(n > 0 ? n : 1);
    GR_ASSERT(copy != NULL);
    memcpy(copy, bytes, n);
    (void)LLVMFuzzerTestOneInput(copy, n);
    free(copy);
}

static void give_variants(uint8_t *bytes, size_t n)
{
    const size_t step = 1 + n / N_CHANGE_MAX;
    give(bytes, n);
    for (size_t i = 0; i < n; i += step) {
        give(bytes, i);
    }
    for (size_t i = 0; i < n; i += step) {
        const uint8_t was = bytes[i];
        static const uint8_t change[] = {0x01, 0x80, 0xff};
        bytes[i] = was ^ change[i % 3];
        give(bytes, n);
        bytes[i] = was;
    }
}

static int replay_folder(const char *folder)
{
    static uint8_t bytes[FILE_MAX];
    int n_file = 0;
    DIR *dir = opendir(folder);
    if (dir == NULL) {
        fprintf(stderr, "cannot open the corpus folder %s\n", folder);
        return -1;
    }
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        char path[4096];
        snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "rb");
        if (f == NULL) {
            continue;
        }
        const size_t n = fread(bytes, 1, sizeof(bytes), f);
        fclose(f);
        give_variants(bytes, n);
        n_file++;
    }
    closedir(dir);
    return n_file;
}

int main(int argc, char **argv)
{
    give((const uint8_t *)"", 0);
    for (int i = 1; i < argc; i++) {
        const int n = replay_folder(argv[i]);
        if (n < 1) {
            fprintf(stderr, "%s: no corpus files\n", argv[i]);
            return 1;
        }
        printf("%s: %d files\n", argv[i], n);
    }
    return 0;
}

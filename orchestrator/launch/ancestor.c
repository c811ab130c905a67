#include "orchestrator/launch/ancestor.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A process that is another user's does not show its environment: it was not started by this launcher. */
static bool has_variable(int pid, const char *variable)
{
    char path[64], *entry = NULL;
    size_t room = 0;
    const size_t len = strlen(variable);
    bool found = false;
    snprintf(path, sizeof(path), "/proc/%d/environ", pid);
    FILE *f = fopen(path, "re");
    while (f != NULL && !found && getdelim(&entry, &room, '\0', f) > 0) {
        found = strncmp(entry, variable, len) == 0 && entry[len] == '=';
    }
    free(entry);
    if (f != NULL) {
        fclose(f);
    }
    return found;
}

/* 1: it is not known. */
static int parent_of(int pid)
{
    char path[64], text[512] = "";
    int parent = 1;
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    FILE *f = fopen(path, "re");
    const size_t n = f != NULL ? fread(text, 1, sizeof(text) - 1, f) : 0;
    text[n] = '\0';
    const char *name_end = strrchr(text, ')'); /* a program's name may have brackets and blanks */
    if (name_end == NULL || sscanf(name_end + 1, " %*c %d", &parent) != 1) {
        parent = 1;
    }
    if (f != NULL) {
        fclose(f);
    }
    return parent;
}

int gr_ancestor_without(const char *variable)
{
    int pid = getppid();
    while (pid > 1 && has_variable(pid, variable)) {
        pid = parent_of(pid);
    }
    return pid > 1 ? pid : 1;
}

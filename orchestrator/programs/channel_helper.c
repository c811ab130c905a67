#include "orchestrator/programs/channel_helper.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_socket(int fd)
{
    struct stat sb;
    return fstat(fd, &sb) == 0 && S_ISSOCK(sb.st_mode);
}

bool channel_begin(int argc, char **argv, struct channel_task *out)
{
    if (argc != 4 || !is_socket(GR_CHANNEL_FD)) {
        fprintf(stderr, "%s: it is started by `graft launch --rendezvous pmix' or `mpi' alone\n", argv[0]);
        return false;
    }
    *out = (struct channel_task){.rank = atoi(argv[1]), .size = atoi(argv[2]), .seconds = atoi(argv[3])};
    return dup2(STDERR_FILENO, STDOUT_FILENO) >= 0;
}

void channel_say(enum gr_channel_word word, const char *text)
{
    char packet[GR_CHANNEL_BYTES_MAX];
    const int n = snprintf(packet, sizeof(packet), "%c%s", (char)word, text);
    const size_t sent = n < (int)sizeof(packet) ? (size_t)n : sizeof(packet) - 1;
    (void)!send(GR_CHANNEL_FD, packet, sent, MSG_NOSIGNAL); /* who is gone needs no word */
}

int channel_refuse(const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    channel_say(GR_CHANNEL_ERROR, text);
    return 1;
}

bool channel_hear_note(char note_out[GR_CHANNEL_BYTES_MAX])
{
    char packet[GR_CHANNEL_BYTES_MAX];
    const ssize_t n = recv(GR_CHANNEL_FD, packet, sizeof(packet) - 1, 0);
    if (n < 1 || packet[0] != GR_CHANNEL_NOTE) {
        return false;
    }
    packet[n] = '\0';
    strcpy(note_out, packet + 1);
    return true;
}

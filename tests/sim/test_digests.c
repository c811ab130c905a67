/* The net under every change that should change nothing: a digest of everything that the three machines sent (each
 * frame, each control message, with its virtual time) for some hundred seeds of the simulation, compared to the
 * recorded one.
 *
 *   test_digests FILE             compares with FILE
 *   test_digests --far FILE       the same with features kept in far memory, which changes nothing
 *   test_digests --record FILE    writes FILE anew: tools/record_digests; the commit that does so says why
 *   test_digests --list SEED      prints one line for each thing sent, so that two builds can be compared by diff
 *
 * Times are sums of doubles, so the digests hold for one compiler and no sanitizer. */
#include "common/rules/hash.h"
#include "common/protocol/msg.h"
#include "common/protocol/wire.h"
#include "tests/sim/sim_plan.h"
#include "tests/transport/test_far.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_SEED 400

struct digest {
    uint64_t hash;
    uint32_t n_frame, n_msg;
    bool list;
};

static void mix(uint64_t *hash, uint64_t value)
{
    *hash = gr_mix64(*hash ^ (value + 1) * GR_HASH_GOLDEN);
}

static void list_sent(const struct sim_sent *sent, uint64_t hash)
{
    struct gr_msg m;
    struct gr_frame_header h;
    printf("%" PRIu64 " to %c ", sent->now_ns, sent->to);
    if (sent->is_frame && gr_wire_decode_header(sent->bytes, sent->len, &h) == GR_OK) {
        printf("frame %u session %" PRIu64 " epoch %u round %u base %u", h.type, h.session, h.epoch, h.round,
               h.base_len);
    } else if (!sent->is_frame && gr_msg_decode(sent->bytes, sent->len, &m) == GR_OK) {
        printf("%s session %" PRIu64, gr_msg_name(m.type), m.session);
        gr_msg_finish(&m);
    }
    printf(", %zu bytes %016" PRIx64 "\n", sent->len, hash);
}

static void on_sent(void *arg, const struct sim_sent *sent)
{
    struct digest *d = arg;
    uint64_t hash = 0;
    for (size_t i = 0; i < sent->len; i++) {
        mix(&hash, sent->bytes[i]);
    }
    mix(&d->hash, sent->now_ns);
    mix(&d->hash, (uint64_t)sent->to << 1 | sent->is_frame);
    mix(&d->hash, sent->len);
    mix(&d->hash, hash);
    d->n_frame += sent->is_frame;
    d->n_msg += !sent->is_frame;
    if (d->list) {
        list_sent(sent, hash);
    }
}

static bool in_far_memory;

static struct digest digest_of(uint64_t seed, bool list)
{
    static struct sim_plan p;
    static struct test_far far, draft_far;
    struct digest d = {.list = list};
    sim_draw_plan(seed, &p);
    p.sim.on_sent = on_sent;
    p.sim.sent_arg = &d;
    test_far_init(&far, "far:0", true);
    test_far_init(&draft_far, "far:1", true);
    if (in_far_memory) {
        p.sim.far = &far.memory;
        p.sim.draft_far = &draft_far.memory;
        p.draft_toy.far_at = sim_plan_far_at = test_far_at;
    }
    struct sim *s = sim_from_plan(&p);
    const bool ended = sim_run(s, SIM_PLAN_LIMIT_NS);
    GR_ASSERT(ended);
    sim_destroy(s);
    GR_ASSERT(far.n_taken == 0 && draft_far.n_taken == 0);
    return d;
}

static int record(const char *path)
{
    FILE *f = fopen(path, "w");
    if (f == NULL) {
        perror(path);
        return 1;
    }
    fprintf(f, "# seed, digest of all that was sent, frames, control messages; written by tools/record_digests\n");
    for (uint64_t seed = 1; seed <= N_SEED; seed++) {
        const struct digest d = digest_of(seed, false);
        fprintf(f, "%" PRIu64 " %016" PRIx64 " %u %u\n", seed, d.hash, d.n_frame, d.n_msg);
    }
    return fclose(f) == 0 ? 0 : 1;
}

/* True: they are the same. */
static bool compare_line(const char *line)
{
    uint64_t seed = 0;
    struct digest want = {0};
    if (sscanf(line, "%" SCNu64 " %" SCNx64 " %u %u", &seed, &want.hash, &want.n_frame, &want.n_msg) != 4) {
        printf("# unreadable: %s", line);
        return false;
    }
    const struct digest got = digest_of(seed, false);
    const bool same = got.hash == want.hash && got.n_frame == want.n_frame && got.n_msg == want.n_msg;
    if (!same) {
        printf("# seed %" PRIu64 ": %u frames and %u messages, digest %016" PRIx64 "; recorded are %u, %u, %016" PRIx64
               "\n",
               seed, got.n_frame, got.n_msg, got.hash, want.n_frame, want.n_msg, want.hash);
    }
    return same;
}

static int compare(const char *path)
{
    char line[256];
    int n = 0;
    int n_other = 0;
    FILE *f = fopen(path, "r");
    if (f == NULL) {
        perror(path);
        return 1;
    }
    while (fgets(line, sizeof(line), f) != NULL) {
        if (line[0] != '#') {
            n++;
            n_other += !compare_line(line);
        }
    }
    fclose(f);
    if (n_other > 0) {
        printf("# compare `test_digests --list SEED` of two builds; where the difference is wanted: "
               "tools/record_digests\n");
    }
    const bool ok = n == N_SEED && n_other == 0;
    printf("1..1\n%sok 1 - %d seeds send what was recorded, %d send something else\n", ok ? "" : "not ", n - n_other,
           n_other);
    return ok ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--record") == 0) {
        return record(argv[2]);
    }
    if (argc == 3 && strcmp(argv[1], "--list") == 0) {
        digest_of(strtoull(argv[2], NULL, 10), true);
        return 0;
    }
    in_far_memory = argc == 3 && strcmp(argv[1], "--far") == 0;
    if (argc != 2 && !in_far_memory) {
        fprintf(stderr, "usage: test_digests [--far] FILE | --record FILE | --list SEED\n");
        return 2;
    }
    return compare(argv[argc - 1]);
}

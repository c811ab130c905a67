/* Bodies of bulk frames in far memory, over devices in memory: which way is taken and what is said of the others, and
 * that nothing is read before it is there. */
#include "tests/transport/test_far.h"
#include "tests/transport/verbs_pair.h"

#include "common/base/log.h"
#include "transport/verbs/verbs_conn.h"
#include "transport/worker/worker_far.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct test_far far[2];

static int set_up(void **state)
{
    (void)verbs_set_up(state);
    test_far_init(&far[0], "far:0", true);
    test_far_init(&far[1], "far:1", true);
    for (int i = 0; i < 2; i++) {
        pair_verbs[i].far = &far[i].memory;
    }
    gr_log_set_level(GR_LOG_INFO);
    return 0;
}

static int nothing_left(void **state)
{
    gr_log_set_level(GR_LOG_WARN);
    (void)verbs_nothing_left(state);
    assert_int_equal(far[0].n_taken, 0);
    assert_int_equal(far[1].n_taken, 0);
    return 0;
}

static int n_descriptor(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d) != NULL) {
        n++;
    }
    closedir(d);
    return n;
}

static enum gr_far_path path_of(struct gr_conn *c)
{
    struct gr_verbs_stats s;
    assert_true(gr_verbs_stats(c, &s));
    return s.far_path;
}

static void expect_words(const char *text, const char *const *word)
{
    for (int i = 0; word[i] != NULL; i++) {
        if (strstr(text, word[i]) == NULL) {
            fail_msg("`%s' is not in: %s", word[i], text);
        }
    }
}

/* A pair whose first end takes this path and says these words about it. */
static void expect_path(enum gr_far_path path, const char *const *word)
{
    struct pair p;
    char text[16384];
    CAPTURE_STDERR(text, sizeof(text), open_pair(&p));
    assert_int_equal(path_of(p.conn[0]), path);
    assert_int_equal(p.conn[0]->far != NULL, path != GR_FAR_STAGING);
    expect_words(text, word);
    exchange(&p);
    pair_close(&p);
}
#define EXPECT_PATH(path, ...) expect_path(path, (const char *const[]){__VA_ARGS__, NULL})

/* ---- which way ---- */

static void test_dmabuf(void **state)
{
    (void)state;
    fake_knobs.dmabuf_errno = 0;
    fake_knobs.peer_memory = true; /* would work as well */
    const int n_before = n_descriptor();
    struct pair p;
    open_pair(&p);
    assert_int_equal(fake_counts().n_dmabuf, 4); /* slots and inbox of both */
    pair_close(&p);
    gr_verbs_forget_peers();
    assert_int_equal(n_descriptor(), n_before);
    EXPECT_PATH(GR_FAR_DMABUF, "fake0 reads and writes memory of far:0 by dma-buf",
                "rows of bulk frames in far:0 by dma-buf");
}

/* As kernels and drivers refuse it in the field. */
static void test_peer_memory(void **state)
{
    (void)state;
    static const int refusals[] = {EOPNOTSUPP, EINVAL, 524 /* ENOTSUPP */, EFAULT, ENOMEM};
    fake_knobs.peer_memory = true;
    for (size_t i = 0; i < GR_ARRAY_LEN(refusals); i++) {
        char why[64]; /* what strerror() returns for a number without a name is its own until the next call */
        snprintf(why, sizeof(why), "%s", strerror(refusals[i]));
        fake_knobs.dmabuf_errno = refusals[i];
        EXPECT_PATH(GR_FAR_PEER_MEMORY, "far:0 by peer memory; not by dma-buf: the device or its driver takes none",
                    why);
    }
    far[0].export_errno = ENOTSUP;
    fake_knobs.dmabuf_errno = 0;
    EXPECT_PATH(GR_FAR_PEER_MEMORY, "not by dma-buf: far:0 exports none");
}

static void test_staging(void **state)
{
    (void)state;
    EXPECT_PATH(GR_FAR_STAGING, "fake0 does not reach memory of far:0: bulk frames are staged",
                "dma-buf: the device or its driver takes none", "nvidia_peermem is not loaded (Bad address)",
                "rows of bulk frames in the host's memory");
    assert_int_equal(far[0].n_wait, 0);
    fake_knobs.peer_memory = true;
    far[0].memory.unfit = "nobody may";
    EXPECT_PATH(GR_FAR_STAGING, "dma-buf: nobody may", "peer memory: nobody may");
}

static void test_required(void **state)
{
    (void)state;
    pair_verbs[1].require_far = true;
    expect_no_pair("fake1 cannot reach memory of far:1, which --require-gpudirect asks for");
    expect_no_pair("modprobe");
    expect_no_pair("--ib-hca");
    expect_no_pair("IOMMU");
    fake_knobs.peer_memory = true;
    EXPECT_PATH(GR_FAR_PEER_MEMORY, "far:1 by peer memory");
    pair_verbs[0].two_sided = true; /* of the other end, which is told */
    expect_no_pair("--verbs-mode one_sided");
}

/* Whatever is the registration that does not fit any more: a pair, or none and nothing left of it. */
static void test_no_room(void **state)
{
    (void)state;
    int n_open = 0;
    fake_knobs.dmabuf_errno = 0;
    for (size_t max = 0; max < 1600u << 10; max += 50u << 10) {
        struct pair p;
        char text[16384];
        bool open = false;
        fake_knobs.locked_max = max;
        CAPTURE_STDERR(text, sizeof(text), open = pair_try_verbs(&p, &limits_default));
        if (open) {
            n_open++;
            exchange(&p);
            pair_close(&p);
        } else {
            expect_words(text, (const char *const[]){"annot", "memory", NULL});
        }
        gr_verbs_forget_peers();
        assert_int_equal(fake_counts().n_mr, 0);
    }
    assert_in_range(n_open, 1, 31);
}

/* Before there is a connection. */
static void test_try(void **state)
{
    (void)state;
    static const struct {
        int dmabuf_errno;
        bool peer_memory;
        enum gr_far_path path;
    } ways[] = {{0, false, GR_FAR_DMABUF}, {EINVAL, true, GR_FAR_PEER_MEMORY}, {EINVAL, false, GR_FAR_STAGING}};
    for (size_t i = 0; i < GR_ARRAY_LEN(ways); i++) {
        enum gr_far_path path = GR_FAR_NONE;
        fake_knobs.dmabuf_errno = ways[i].dmabuf_errno;
        fake_knobs.peer_memory = ways[i].peer_memory;
        assert_int_equal(gr_verbs_try_far(&pair_verbs[1], &path), GR_OK);
        assert_int_equal(path, ways[i].path);
        assert_int_equal(fake_counts().n_mr + fake_counts().n_context + far[1].n_taken, 0);
    }
    enum gr_far_path path = GR_FAR_NONE;
    pair_verbs[1].require_far = true;
    assert_int_equal(gr_verbs_try_far(&pair_verbs[1], &path), GR_EIO);
    fake_knobs.n_device = 0;
    assert_int_equal(gr_verbs_try_far(&pair_verbs[1], &path), GR_ENOTFOUND);
}

static int n_open;

static enum gr_status open_gpu(int device, const struct gr_far_memory **out)
{
    assert_int_equal(device, 1);
    n_open++;
    *out = &far[1].memory;
    return GR_OK;
}

static void close_gpu(const struct gr_far_memory *memory)
{
    assert_ptr_equal(memory, &far[1].memory);
    n_open--;
}

/* What a worker's wish comes to, a target's or a drafter's, and that nothing is left open of one that is not met. */
static void test_worker_wish(void **state)
{
    (void)state;
    const struct gr_verbs_options before = *gr_verbs_configured();
    static const struct {
        const char *why_not;
        bool required, disabled, peer_memory;
        int n_device;
        enum gr_status want;
        bool direct;
    } rows[] = {
        {NULL, false, false, true, 2, GR_OK, true},
        {NULL, true, false, true, 2, GR_OK, true},
        {NULL, false, false, false, 2, GR_OK, false},
        {NULL, true, false, false, 2, GR_EUNSUPPORTED, false},
        {NULL, false, true, true, 2, GR_OK, false},
        {"--transport names another transport than verbs", false, false, true, 2, GR_OK, false},
        {"--transport names another transport than verbs", true, false, true, 2, GR_EINVAL, false},
        {NULL, false, false, true, 0, GR_OK, false},
        {NULL, true, false, true, 0, GR_EUNSUPPORTED, false},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(rows); i++) {
        const struct gr_worker_far_wish wish = {.why_not = rows[i].why_not,
                                                .device = 1,
                                                .required = rows[i].required,
                                                .disabled = rows[i].disabled,
                                                .open = open_gpu,
                                                .close = close_gpu};
        const struct gr_far_memory *out = &far[0].memory;
        struct gr_verbs_options v = pair_verbs[1];
        v.far = NULL;
        gr_verbs_configure(&v);
        fake_knobs.peer_memory = rows[i].peer_memory;
        fake_knobs.n_device = rows[i].n_device;
        assert_int_equal(gr_worker_far_open(&wish, &out), rows[i].want);
        assert_ptr_equal(out, rows[i].direct ? &far[1].memory : NULL);
        assert_ptr_equal(gr_verbs_configured()->far, out); /* connections have it, or nobody */
        assert_int_equal(n_open, rows[i].direct);
        gr_worker_far_close(out, close_gpu);
        assert_null(gr_verbs_configured()->far);
        assert_int_equal(n_open, 0);
    }
    gr_verbs_configure(&before);
}

/* ---- frames ---- */

static void test_one_end(void **state)
{
    (void)state;
    fake_knobs.peer_memory = true;
    for (int i = 0; i < 2; i++) {
        struct pair p;
        pair_verbs[i].far = NULL;
        open_pair(&p);
        assert_null(p.conn[i]->far);
        assert_ptr_equal(p.conn[1 - i]->far, &far[1 - i].memory);
        assert_true(gr_verbs_downcast(p.conn[i])->mode.apart);
        exchange(&p);
        pair_close(&p);
        pair_verbs[i].far = &far[i].memory;
    }
}

/* Sent from far memory, received by way of the host's. */
static void test_two_sided(void **state)
{
    (void)state;
    struct pair p;
    fake_knobs.peer_memory = true;
    pair_verbs[0].two_sided = true;
    open_pair(&p);
    assert_ptr_equal(p.conn[0]->far, &far[0].memory);
    assert_false(gr_verbs_downcast(p.conn[0])->mode.apart);
    exchange(&p);
    assert_int_equal(far[0].n_arrived, 0); /* no device wrote there */
    pair_close(&p);
}

/* One wait before a body is sent, one before its slot is the peer's again; one look at what has arrived a frame. */
static void test_waits(void **state)
{
    (void)state;
    struct pair p;
    fake_knobs.peer_memory = true;
    open_pair(&p);
    for (int i = 1; i <= 20; i++) {
        send_filled(p.conn[0], GR_FRAME_BULK, 3000, (uint32_t)i);
        assert_int_equal(far[0].n_copy, 0); /* send() has waited: what is posted is there */
        expect_filled(p.conn[0], p.conn[1], GR_FRAME_BULK, 3000, (uint32_t)i);
        assert_int_equal(far[0].n_wait, i);
        assert_int_equal(far[1].n_wait, i);
        assert_int_equal(far[1].n_arrived, i);
    }
    send_filled(p.conn[0], GR_FRAME_SMALL, 3000, 1);
    expect_filled(p.conn[0], p.conn[1], GR_FRAME_SMALL, 3000, 1);
    assert_int_equal(far[0].n_wait, 20);
    pair_close(&p);
}

/* Of a head and of less than one, on devices that inline nothing, and those that inline all of a head. */
static void test_short_frames(void **state)
{
    (void)state;
    fake_knobs.peer_memory = true;
    for (uint32_t max = 0; max <= 512; max += 256) {
        struct pair p;
        fake_knobs.inline_max = max;
        open_pair(&p);
        for (uint32_t bytes = 0; bytes < 200; bytes++) {
            send_filled(p.conn[0], GR_FRAME_BULK, bytes, bytes);
            expect_filled(p.conn[0], p.conn[1], GR_FRAME_BULK, bytes, bytes);
        }
        pair_close(&p);
    }
}

static void test_memory_is_kept(void **state)
{
    (void)state;
    struct pair p;
    fake_knobs.peer_memory = true;
    open_pair(&p);
    const struct gr_verbs_bodies before = gr_verbs_downcast(p.conn[0])->memory->bodies;
    const uint32_t key = before.in_mr->rkey;
    drop(&p, 1);
    expect_end(p.conn[0], GR_ECLOSED, NULL);
    drop(&p, 0);
    open_pair(&p);
    const struct gr_verbs_bodies *after = &gr_verbs_downcast(p.conn[0])->memory->bodies;
    assert_ptr_equal(after->base, before.base);
    assert_ptr_equal(after->out_mr, before.out_mr);
    assert_int_not_equal(after->in_mr->rkey, key); /* the old one writes nothing */
    exchange(&p);
    pair_close(&p);
}

/* ---- what goes wrong ---- */

static void test_spoilt_length(void **state)
{
    (void)state;
    fake_knobs.peer_memory = true;
    for (int bit = 0; bit < 8; bit++) {
        struct pair p;
        open_pair(&p);
        fake_knobs.spoil_head = (uint8_t)(1u << bit);
        send_filled(p.conn[0], GR_FRAME_BULK, 1000, 1);
        (void)!gr_conn_flush(p.conn[0]);
        fake_knobs.spoil_head = 0;
        gr_log_set_level(GR_LOG_WARN);
        expect_end(p.conn[1], GR_EPROTO, "wrong length");
        pair_close(&p);
    }
}

static void test_memory_fails(void **state)
{
    (void)state;
    struct pair p;
    fake_knobs.peer_memory = true;
    open_pair(&p);
    send_filled(p.conn[0], GR_FRAME_BULK, 1000, 1);
    far[1].fails = true;
    assert_int_equal(gr_conn_flush(p.conn[0]), GR_OK);
    struct gr_frame f;
    char text[4096];
    enum gr_status st;
    CAPTURE_STDERR(text, sizeof(text), {
        while ((st = recv_wait(NULL, p.conn[1], &f)) == GR_OK) {
            gr_conn_release(p.conn[1], &f);
        }
    });
    assert_int_equal(st, GR_ECLOSED);
    assert_non_null(strstr(text, "the memory that holds its frames failed"));
    pair_close(&p);
}

int main(void)
{
    gr_log_init("test_verbs_far");
#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, nothing_left)
    const struct CMUnitTest tests[] = {
        CASE(test_dmabuf),       CASE(test_peer_memory),  CASE(test_staging),        CASE(test_required),
        CASE(test_no_room),      CASE(test_try),          CASE(test_one_end),        CASE(test_two_sided),
        CASE(test_waits),        CASE(test_short_frames), CASE(test_memory_is_kept), CASE(test_spoilt_length),
        CASE(test_memory_fails), CASE(test_worker_wish),
    };
    return cmocka_run_group_tests_name("verbs far", tests, NULL, NULL);
}

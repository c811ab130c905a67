/* The verbs transport on devices in memory that fail on command. */
#include "tests/transport/verbs_pair.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "transport/verbs/nearest.h"
#include "transport/verbs/verbs_conn.h"

#include <errno.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* ---- devices ---- */

static void test_choice(void **state)
{
    (void)state;
    struct gr_verbs_device d;
    struct gr_verbs_options o = {.gid_index = -1};
    assert_int_equal(gr_verbs_device_choose(&fake_verbs, &o, &d), GR_OK);
    assert_string_equal(d.name, "fake0");
    assert_int_equal(d.gid_index, 2); /* RoCE v2 on IPv4, not link-local, not v1 */
    assert_string_equal(d.addr_text, "10.9.0.1");
    assert_int_equal(d.mtu_bytes, 1024);
    setenv("NCCL_IB_HCA", "^fake0", 1);
    assert_int_equal(gr_verbs_device_choose(&fake_verbs, &o, &d), GR_OK);
    assert_string_equal(d.name, "fake1");
    setenv("NCCL_IB_GID_INDEX", "1", 1);
    assert_int_equal(gr_verbs_device_choose(&fake_verbs, &o, &d), GR_OK);
    assert_int_equal(d.gid_index, 1);
    o.hca = "fake0:1"; /* our own option goes first */
    o.gid_index = 2;
    assert_int_equal(gr_verbs_device_choose(&fake_verbs, &o, &d), GR_OK);
    assert_string_equal(d.name, "fake0");
    assert_int_equal(d.gid_index, 2);
}

static void expect_none(const struct gr_verbs_options *o, const char *word)
{
    struct gr_verbs_device d;
    char text[2048];
    enum gr_status st;
    CAPTURE_STDERR(text, sizeof(text), st = gr_verbs_device_choose(&fake_verbs, o, &d));
    assert_int_equal(st, GR_ENOTFOUND);
    if (strstr(text, word) == NULL) {
        fail_msg("`%s' is not in: %s", word, text);
    }
}

static void expect_index(const char *name, int gid_index, const char *address)
{
    struct gr_verbs_device d;
    const struct gr_verbs_options o = {.hca = name, .gid_index = -1};
    assert_int_equal(gr_verbs_device_choose(&fake_verbs, &o, &d), GR_OK);
    assert_string_equal(d.name, name);
    assert_int_equal(d.gid_index, gid_index);
    assert_string_equal(d.addr_text, address);
}

/* Tables of addresses that differ between the two ends, and such that have nothing better than IPv6. */
static void test_gid_tables(void **state)
{
    (void)state;
    struct pair p;
    fake_knobs.gids[0] = FAKE_GIDS_SHIFTED;
    expect_index("fake0", 4, "10.9.0.1");
    expect_index("fake1", 2, "10.9.0.2");
    open_pair(&p); /* each by an index of its own */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(gr_verbs_downcast(p.conn[i])->memory->device.gid_index, i == 0 ? 4 : 2);
    }
    exchange(&p);
    pair_close(&p);
    struct gr_verbs_options o = {.hca = "fake0", .gid_index = 1}; /* an entry without an address */
    expect_none(&o, "the RDMA device `fake0' has no address at GID index 1");

    fake_knobs.gids[0] = FAKE_GIDS_V6;
    expect_index("fake0", 2, "fd09::1");
    expect_no_pair("the peer's device is at an address of IPv");
    struct gr_verbs_device d;
    o = (struct gr_verbs_options){.gid_index = -1};
    assert_int_equal(gr_verbs_device_choose(&fake_verbs, &o, &d), GR_OK);
    assert_string_equal(d.name, "fake1"); /* IPv4 goes first */
    fake_knobs.gids[1] = FAKE_GIDS_V6;
    open_pair(&p);
    assert_string_equal(gr_verbs_downcast(p.conn[1])->memory->device.addr_text, "fd09::2");
    exchange(&p);
    pair_close(&p);
}

static void test_link_local_is_not_taken(void **state)
{
    (void)state;
    struct gr_verbs_device d;
    struct gr_verbs_options o = {.gid_index = -1};
    fake_knobs.gids[0] = FAKE_GIDS_LINK_LOCAL;
    assert_int_equal(gr_verbs_device_choose(&fake_verbs, &o, &d), GR_OK);
    assert_string_equal(d.name, "fake1");
    fake_knobs.gids[1] = FAKE_GIDS_LINK_LOCAL;
    expect_none(&o, "the RDMA device `any' has no address that can be routed; there is fake0 fake1");
    expect_no_pair("the RDMA device `fake0' has no address that can be routed");
    o.gid_index = 1; /* who asks for one gets it */
    assert_int_equal(gr_verbs_device_choose(&fake_verbs, &o, &d), GR_OK);
    assert_string_equal(d.addr_text, "fe80::1");
}

/* As a container sees its host's devices: their addresses are those of interfaces that it does not have. */
static void test_other_network_namespace(void **state)
{
    (void)state;
    const unsigned no_such = 0x7fffff00;
    char name[IF_NAMESIZE], text[2048];
    struct gr_verbs_device d = {.name = "none"};
    struct gr_verbs_options o = {.gid_index = -1};
    assert_null(if_indextoname(no_such, name));
    fake_knobs.ifindex[0] = no_such;
    fake_knobs.ifindex[1] = if_nametoindex("lo");
    for (o.gid_index = -1; o.gid_index <= 2; o.gid_index += 3) { /* also where an index is asked for */
        enum gr_status st;
        CAPTURE_STDERR(text, sizeof(text), st = gr_verbs_device_choose(&fake_verbs, &o, &d));
        assert_int_equal(st, GR_OK);
        assert_string_equal(d.name, "fake1");
        assert_non_null(strstr(text, "RDMA device fake0 is passed over: its addresses are those of interface "
                                     "2147483392, which is in another network namespace"));
        assert_null(strchr(strchr(text, '\n') + 1, '\n')); /* one line */
    }
    expect_no_pair("no address of the RDMA device `fake0' is one of this network namespace");
    fake_knobs.ifindex[1] = no_such;
    o.gid_index = -1;
    expect_none(&o, "no address of the RDMA device `any' is one of this network namespace; there is fake0 fake1");
}

/* As a map has it: the GPU and fake1 on one PCI root, fake0 on another. */
static const struct gr_near_map near_map = {
    .n_gpu = 1,
    .n_card = 2,
    .gpu = {{.pci = {.bus = 0x17}, .n_step = 2, .step = {{GR_NEAR_MACHINE, 1}, {GR_NEAR_ROOT, 2}}}},
    .card = {{.name = "fake0", .n_step = 2, .step = {{GR_NEAR_MACHINE, 1}, {GR_NEAR_ROOT, 3}}},
             {.name = "fake1", .n_step = 2, .step = {{GR_NEAR_MACHINE, 1}, {GR_NEAR_ROOT, 2}}}},
};

static void expect_choice(const struct gr_verbs_options *o, const char *name, const char *word)
{
    struct gr_verbs_device d = {.name = "none"};
    char text[2048];
    enum gr_status st;
    CAPTURE_STDERR(text, sizeof(text), st = gr_verbs_device_choose(&fake_verbs, o, &d));
    assert_int_equal(st, GR_OK);
    assert_string_equal(d.name, name);
    if (strstr(text, word) == NULL) {
        fail_msg("`%s' is not in: %s", word, text);
    }
}

static void test_nearest_to_the_gpu(void **state)
{
    (void)state;
    struct gr_verbs_options o = {.gid_index = -1, .map = &near_map, .gpu_pci = "0000:17:00.0"};
    gr_log_set_level(GR_LOG_INFO);
    expect_choice(&o, "fake1", "fake1 is on one PCI root with the GPU at 0000:17:00.0; of 2 devices 1 is as near");
    o.hca = "fake0"; /* who names one means it */
    expect_choice(&o, "fake0", "fake0 is across processors with the GPU");
    o.hca = NULL;
    o.gpu_pci = "0000:18:00.0";
    expect_choice(&o, "fake0",
                  "fake0, the first of 2 devices: where they and the GPU at 0000:18:00.0 are is not known");
    o.gpu_pci = NULL;
    expect_choice(&o, "fake0", "");
    o.gpu_pci = "0000:17:00.0";
    fake_knobs.port_down = true; /* fake0's */
    expect_choice(&o, "fake1", "of 1 devices 1 is as near");
    gr_log_set_level(GR_LOG_WARN);
}

/* An address of docker0 is every host's. */
static void test_bridge_is_not_taken(void **state)
{
    (void)state;
    if (unshare(CLONE_NEWNET) != 0 || system("ip link add br9 type bridge 2>/dev/null") != 0) {
        skip();
    }
    struct gr_verbs_device d;
    struct gr_verbs_options o = {.gid_index = -1};
    fake_knobs.ifindex[0] = if_nametoindex("br9");
    assert_int_equal(gr_verbs_device_choose(&fake_verbs, &o, &d), GR_OK);
    assert_string_equal(d.name, "fake1");
    setenv("NCCL_SOCKET_IFNAME", "br9", 1); /* unless it is asked for */
    fake_knobs.ifindex[1] = if_nametoindex("lo");
    assert_int_equal(gr_verbs_device_choose(&fake_verbs, &o, &d), GR_OK);
    assert_string_equal(d.name, "fake0");
    unsetenv("NCCL_SOCKET_IFNAME");
    o.hca = "fake0";
    assert_int_equal(gr_verbs_device_choose(&fake_verbs, &o, &d), GR_OK);
}

static void test_lists(void **state)
{
    (void)state;
    assert_true(gr_verbs_list_allows(NULL, "mlx5_0", 1));
    assert_true(gr_verbs_list_allows("mlx5", "mlx5_0", 1));
    assert_false(gr_verbs_list_allows("=mlx5", "mlx5_0", 1));
    assert_true(gr_verbs_list_allows("=mlx5_1,mlx5_0:1", "mlx5_0", 1));
    assert_false(gr_verbs_list_allows("=mlx5_1,mlx5_0:2", "mlx5_0", 1));
    static const char *const no_port[] = {"=mlx5_0:1x", "=mlx5_0:",    "=mlx5_0:x",
                                          "=mlx5_0:-1", "=mlx5_0:257", "=mlx5_0:00000001"};
    for (size_t i = 0; i < sizeof(no_port) / sizeof(no_port[0]); i++) {
        assert_false(gr_verbs_list_allows(no_port[i], "mlx5_0", 1));
    }
    assert_false(gr_verbs_list_allows("^mlx5_0", "mlx5_0", 1));
    assert_true(gr_verbs_list_allows("^=mlx5", "mlx5_0", 1));
}

static void expect_no_device(const struct gr_verbs_options *o, const char *word)
{
    char text[2048];
    enum gr_status st;
    CAPTURE_STDERR(text, sizeof(text), st = gr_verbs_check(o));
    assert_int_equal(st, GR_ENOTFOUND);
    if (strstr(text, word) == NULL) {
        fail_msg("`%s' is not in: %s", word, text);
    }
}

static void test_no_device(void **state)
{
    (void)state;
    struct gr_verbs_options o = {.gid_index = -1, .lib = &fake_verbs, .hca = "mlx5_9"};
    expect_no_device(&o, "no RDMA device `mlx5_9'; there is fake0 fake1");
    o.hca = "fake0";
    o.gid_index = 7;
    expect_no_device(&o, "GID index 7");
    fake_knobs.port_down = true;
    expect_no_device(&o, "no port");
    fake_knobs.n_device = 0;
    expect_no_device(&o, "no RDMA device");
    expect_no_pair("no RDMA device");
}

/* ---- opening ---- */

static void test_inline_is_halved(void **state)
{
    (void)state;
    for (uint32_t max = 512; max > 0; max /= 8) {
        struct pair p;
        struct gr_verbs_stats s;
        fake_knobs.inline_max = max;
        open_pair(&p);
        exchange(&p);
        assert_true(gr_verbs_stats(p.conn[0], &s));
        assert_int_equal(s.inline_bytes, max);
        assert_int_equal(s.n_inline > 0, max >= 8);
        pair_close(&p);
    }
}

static void test_two_sided(void **state)
{
    (void)state;
    struct pair p;
    pair_verbs[1].two_sided = true; /* one of the two is enough */
    open_pair(&p);
    for (int i = 0; i < 2; i++) {
        assert_null(gr_verbs_downcast(p.conn[i])->memory->inbox_mr);
    }
    exchange(&p);
    pair_close(&p);
    pair_verbs[1].two_sided = false;
    fake_set_iwarp(true);
    open_pair(&p);
    assert_true(gr_verbs_downcast(p.conn[0])->mode.two_sided);
    exchange(&p);
    pair_close(&p);
}

static void test_ack_timeout(void **state)
{
    (void)state;
    for (uint8_t timeout = 0; timeout <= 20; timeout += 20) {
        struct pair p;
        pair_verbs[0].ack_timeout = pair_verbs[1].ack_timeout = timeout;
        open_pair(&p);
        assert_int_equal(fake_counts().ack_timeout, timeout > 0 ? timeout : 14);
        pair_close(&p);
    }
    pair_verbs[0].ack_timeout = pair_verbs[1].ack_timeout = 0;
}

static void test_memory_is_refused(void **state)
{
    (void)state;
    fake_knobs.locked_max = 0;
    expect_no_pair("RLIMIT_MEMLOCK");
    fake_knobs.locked_max = 1200u << 10; /* one end and a half */
    expect_no_pair("cannot");
}

static void test_private_data_is_spoilt(void **state)
{
    (void)state;
    fake_knobs.spoil_private_at = 20;
    expect_no_pair("wrong nonce");
    fake_knobs.spoil_private_at = 4;
    expect_no_pair("another version");
    fake_knobs.spoil_private_at = 1;
    expect_no_pair("is not ours");
}

static void test_default_limits_fit(void **state)
{
    (void)state;
    /* 8B geometry, fused rows of bf16: 8 MiB of locked memory are the usual limit. */
    const struct gr_conn_limits limits = {
        .small_bytes_max = 4200, .bulk_bytes_max = 32 * 8192 + 64, .n_small_slot = 64, .n_bulk_slot = 8};
    for (int two_sided = 0; two_sided < 2; two_sided++) {
        struct gr_verbs_layout l;
        const struct gr_verbs_mode mode = {.two_sided = two_sided != 0};
        gr_verbs_layout_init(&l, &limits, mode);
        assert_true(l.local_bytes + l.inbox_bytes < 7u << 20);
        assert_int_equal(gr_verbs_bulk_slots_within(&limits, mode, 7u << 20), 8);
        const uint16_t n = gr_verbs_bulk_slots_within(&limits, mode, 2u << 20);
        assert_in_range(n, 1, 7);
    }
}

/* ---- while it runs ---- */

static void test_signals_and_doorbells(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p);
    const int before = fake_counts().n_doorbell;
    for (uint32_t i = 0; i < 8; i++) {
        send_filled(p.conn[0], GR_FRAME_SMALL, 40, i);
    }
    assert_int_equal(gr_conn_flush(p.conn[0]), GR_OK);
    assert_int_equal(fake_counts().n_doorbell, before + 1); /* eight frames, one doorbell */
    for (uint32_t i = 0; i < 8; i++) {
        expect_filled(NULL, p.conn[1], GR_FRAME_SMALL, 40, i);
    }
    for (uint32_t i = 0; i < 3000; i++) {
        struct gr_frame f;
        assert_int_equal(acquire_wait(p.conn[0], GR_FRAME_SMALL, 40, &f), GR_OK);
        fill(f.data, 40, i);
        assert_int_equal(gr_conn_send(p.conn[0], &f, 40), GR_OK);
        expect_filled(p.conn[0], p.conn[1], GR_FRAME_SMALL, 40, i);
    }
    assert_in_range(fake_counts().n_unsignalled_max, 1, 4); /* some are not signalled, never half of the slots */
    pair_close(&p);
}

/* Memory is registered for a connection, never for a frame. */
static void test_traffic_registers_nothing(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p);
    exchange(&p);
    const struct fake_counts before = fake_counts();
    for (uint32_t i = 0; i < 100000; i++) {
        const enum gr_frame_class class = i % 16 == 0 ? GR_FRAME_BULK : GR_FRAME_SMALL;
        const int from = (int)(i / 4 % 2);
        struct gr_frame f;
        assert_int_equal(acquire_wait(p.conn[from], class, 40, &f), GR_OK);
        fill(f.data, 40, i);
        assert_int_equal(gr_conn_send(p.conn[from], &f, 40), GR_OK);
        expect_filled(p.conn[from], p.conn[1 - from], class, 40, i);
    }
    assert_int_equal(fake_counts().n_register, before.n_register);
    assert_int_equal(fake_counts().n_mr, before.n_mr);
    pair_close(&p);
}

static void test_failures(void **state)
{
    (void)state;
    struct pair p;
    struct gr_frame f;

    open_pair(&p);
    fake_knobs.swallow = true;
    send_filled(p.conn[0], GR_FRAME_SMALL, 10, 1);
    (void)!gr_conn_flush(p.conn[0]);
    expect_end(p.conn[0], GR_ECLOSED, "does not answer");
    assert_int_equal(gr_conn_acquire(p.conn[0], GR_FRAME_SMALL, 1, &f), GR_ECLOSED);
    fake_knobs.swallow = false;
    pair_close(&p);

    open_pair(&p);
    gr_verbs_downcast(p.conn[0])->remote_key++;
    send_filled(p.conn[0], GR_FRAME_BULK, 10, 1);
    (void)!gr_conn_flush(p.conn[0]);
    expect_end(p.conn[0], GR_ECLOSED, "bug");
    expect_end(p.conn[1], GR_ECLOSED, NULL);
    pair_close(&p);

    open_pair(&p);
    fake_knobs.refuse_send_errno = EINVAL;
    send_filled(p.conn[0], GR_FRAME_SMALL, 10, 1);
    char text[1024];
    enum gr_status st;
    CAPTURE_STDERR(text, sizeof(text), st = gr_conn_flush(p.conn[0]));
    assert_int_equal(st, GR_ECLOSED);
    assert_non_null(strstr(text, "refused a send"));
    fake_knobs.refuse_send_errno = 0;
    pair_close(&p);
}

static void test_device_events(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p);
    fake_port_event(0, IBV_EVENT_GID_CHANGE); /* is nothing */
    exchange(&p);
    fake_port_event(0, IBV_EVENT_PORT_ERR);
    expect_end(p.conn[0], GR_ECLOSED, "port went down");
    pair_close(&p);

    open_pair(&p);
    fake_remove_device(0);
    expect_end(p.conn[0], GR_ECLOSED, "was removed");
    drop(&p, 0);
    expect_end(p.conn[1], GR_ECLOSED, NULL);
    pair_close(&p);
}

/* While its port is down a queue pair is not given up, whoever ends the connection and whatever is heard first. */
static void test_port_down_at_the_end(void **state)
{
    (void)state;
    for (int first = 0; first < 2; first++) {
        struct pair p;
        open_pair(&p);
        fake_knobs.port_down = true; /* and its event is still on its way */
        drop(&p, first);
        if (first == 1) {
            expect_end(p.conn[0], GR_ECLOSED, NULL);
        }
        pair_close(&p);
        assert_int_equal(fake_counts().n_qp, 1);
        fake_knobs.port_down = false;
        const uint64_t deadline_ns = gr_clock_ns() + (uint64_t)WAIT_MS * GR_MS;
        while (fake_counts().n_qp > 0 && gr_clock_ns() < deadline_ns) {
            (void)poll(NULL, 0, 10);
        }
        assert_int_equal(fake_counts().n_qp, 0);
    }
}

/* A connection that broke leaves its slab for the same peer; its key is another one. */
static void test_memory_is_kept(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p);
    struct gr_verbs_memory *memory = gr_verbs_downcast(p.conn[0])->memory;
    const uint32_t key = memory->inbox_mr->rkey;
    const int n_register = fake_counts().n_register;
    drop(&p, 1);
    expect_end(p.conn[0], GR_ECLOSED, NULL);
    drop(&p, 0);
    open_pair(&p);
    assert_ptr_equal(gr_verbs_downcast(p.conn[0])->memory, memory);
    assert_int_not_equal(memory->inbox_mr->rkey, key);
    assert_int_equal(fake_counts().n_register, n_register + 3); /* this inbox; the other end's slots and inbox */
    exchange(&p);
    drop(&p, 1);
    expect_end(p.conn[0], GR_ECLOSED, NULL);
    drop(&p, 0);
    fake_remove_device(0);
    open_pair(&p); /* what was kept is gone with its device */
    exchange(&p);
    pair_close(&p);
}

/* ---- a peer that breaks the rules ---- */

static void expect_thrown_out(struct pair *p, const char *word)
{
    (void)!gr_conn_flush(p->conn[0]);
    expect_end(p->conn[1], GR_EPROTO, word);
    pair_close(p);
}

static void test_breaches(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p);
    gr_verbs_downcast(p.conn[0])->send_sequence++;
    send_filled(p.conn[0], GR_FRAME_SMALL, 10, 1);
    expect_thrown_out(&p, "wrong sequence number");

    open_pair(&p);
    gr_verbs_downcast(p.conn[0])->n_owed[GR_FRAME_BULK] = 1;
    send_filled(p.conn[0], GR_FRAME_SMALL, 10, 1);
    expect_thrown_out(&p, "more credits returned");

    open_pair(&p);
    gr_verbs_downcast(p.conn[0])->n_owed_record = 3;
    send_filled(p.conn[0], GR_FRAME_SMALL, 10, 1);
    expect_thrown_out(&p, "more credit records");

    open_pair(&p);
    gr_verbs_downcast(p.conn[0])->n_credit[GR_FRAME_SMALL]++;
    for (uint32_t i = 0; i < 9; i++) {
        send_filled(p.conn[0], GR_FRAME_SMALL, 10, i);
    }
    assert_int_equal(gr_conn_flush(p.conn[0]), GR_OK);
    for (uint32_t i = 0; i < 8; i++) {
        struct gr_frame f;
        assert_int_equal(gr_conn_recv(p.conn[1], &f), GR_OK); /* held: no credit for a ninth */
    }
    expect_thrown_out(&p, NULL);

    open_pair(&p);
    assert_int_equal(write(gr_verbs_downcast(p.conn[0])->fd, "x", 1), 1);
    expect_thrown_out(&p, "unexpected byte");
}

/* ---- headers ---- */

static void test_immediate_data(void **state)
{
    (void)state;
    static const struct gr_verbs_header headers[] = {
        {0},
        {.class = GR_VERBS_CREDIT, .n_credit = {256, 64}, .n_credit_record = 4, .sequence = 2047},
        {.class = GR_FRAME_BULK, .n_credit = {1, 2}, .n_credit_record = 3, .sequence = 5, .bytes = 77},
        {.class = GR_FRAME_SMALL, .n_credit = {511, 127}, .n_credit_record = 7, .sequence = 2048 + 1024},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(headers); i++) {
        struct gr_verbs_header out;
        assert_true(gr_verbs_imm_decode(gr_verbs_imm_encode(&headers[i]), headers[i].bytes, &out));
        assert_int_equal(out.class, headers[i].class);
        assert_int_equal(out.n_credit[0], headers[i].n_credit[0]);
        assert_int_equal(out.n_credit[1], headers[i].n_credit[1]);
        assert_int_equal(out.n_credit_record, headers[i].n_credit_record);
        assert_int_equal(out.sequence, headers[i].sequence % 2048);
        assert_int_equal(out.bytes, headers[i].bytes);
    }
    struct gr_verbs_header out;
    assert_false(gr_verbs_imm_decode(3, 0, &out));
}

/* Bits of the layout in docs/protocol.md. */
static void test_spoilt_immediate_data(void **state)
{
    (void)state;
    static const struct {
        uint32_t bits;
        enum gr_frame_class class;
        const char *word;
    } spoils[] = {
        {3, GR_FRAME_SMALL, "malformed header"}, /* class 3 */
        {1, GR_FRAME_SMALL, "malformed header"}, /* a bulk frame by SEND */
        {2, GR_FRAME_SMALL, "credit record with a payload"},
        {1, GR_FRAME_BULK, "malformed header"}, /* a small frame by WRITE */
        {3, GR_FRAME_BULK, "malformed header"}, /* credits by WRITE */
        {1u << 2, GR_FRAME_SMALL, "wrong sequence"},
        {1u << 12, GR_FRAME_BULK, "wrong sequence"},
        {1u << 15, GR_FRAME_SMALL, "more credit records"}, /* 4 */
        {1u << 22, GR_FRAME_SMALL, "more credits"},        /* 64 of bulk */
        {1u << 31, GR_FRAME_BULK, "more credits"},         /* 256 of small */
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(spoils); i++) {
        struct pair p;
        open_pair(&p);
        fake_knobs.spoil_imm = spoils[i].bits;
        send_filled(p.conn[0], spoils[i].class, 10, 1);
        expect_thrown_out(&p, spoils[i].word);
        fake_knobs.spoil_imm = 0;
    }
    for (int class = 0; class < GR_N_FRAME_CLASS; class ++) {
        struct pair p;
        open_pair(&p);
        fake_knobs.lose_imm = true;
        send_filled(p.conn[0], (enum gr_frame_class) class, 10, 1);
        expect_thrown_out(&p, "malformed header");
        fake_knobs.lose_imm = false;
    }
}

/* As soft RoCE does it now and then: decision D-095. */
static void test_record_of_a_wrong_length(void **state)
{
    (void)state;
    for (int class = 0; class < GR_N_FRAME_CLASS; class ++) {
        struct pair p;
        pair_verbs[0].two_sided = true;
        open_pair(&p);
        fake_knobs.stretch = 1024;
        send_filled(p.conn[0], (enum gr_frame_class) class, 10, 1);
        expect_thrown_out(&p, "wrong length");
        fake_knobs.stretch = 0;
        pair_verbs[0].two_sided = false;
    }
}

/* Whatever the bits, the frame comes as it was sent or the peer is thrown out. */
static void test_random_immediate_data(void **state)
{
    (void)state;
    uint32_t x = 2463534242u, n_survived = 0;
    for (int i = 0; i < 300; i++) {
        struct pair p;
        struct gr_frame f;
        open_pair(&p);
        send_filled(p.conn[1], GR_FRAME_SMALL, 10, 1); /* credits that could come back */
        expect_filled(p.conn[1], p.conn[0], GR_FRAME_SMALL, 10, 1);
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        fake_knobs.spoil_imm = i % 2 == 0 ? x : 1u << (x % 32);
        send_filled(p.conn[0], i % 3 == 0 ? GR_FRAME_BULK : GR_FRAME_SMALL, 100, 7);
        (void)!gr_conn_flush(p.conn[0]);
        fake_knobs.spoil_imm = 0;
        char text[4096];
        enum gr_status st;
        CAPTURE_STDERR(text, sizeof(text), st = recv_wait(NULL, p.conn[1], &f));
        if (st == GR_OK) {
            n_survived++;
            assert_true(is_filled(f.data, f.bytes, 7) && f.bytes == 100);
            gr_conn_release(p.conn[1], &f);
        } else {
            assert_int_equal(st, GR_EPROTO);
        }
        pair_close(&p);
    }
    assert_in_range(n_survived, 0, 30); /* a credit less was returned: the sender's loss */
}

static void expect_more_credit_records_than_there_are(bool two_sided)
{
    struct pair p;
    pair_verbs[0].two_sided = two_sided;
    open_pair(&p);
    for (uint32_t i = 0; i < GR_VERBS_N_CREDIT + 1; i++) {
        gr_verbs_downcast(p.conn[0])->n_credit_record = 0; /* as if they had been acknowledged */
        assert_int_equal(gr_verbs_push_credit(gr_verbs_downcast(p.conn[0]), 0), GR_OK);
        gr_verbs_downcast(p.conn[0])->n_credit_record_of[GR_FRAME_SMALL] = 0;
    }
    expect_thrown_out(&p, "before others were acknowledged");
    pair_verbs[0].two_sided = false;
}

static void test_too_many_credit_records(void **state)
{
    (void)state;
    expect_more_credit_records_than_there_are(false);
    expect_more_credit_records_than_there_are(true);
}

int main(void)
{
    gr_log_init("test_verbs_fake");
#define CASE(f) cmocka_unit_test_setup_teardown(f, verbs_set_up, verbs_nothing_left)
    const struct CMUnitTest tests[] = {
        CASE(test_choice),
        CASE(test_gid_tables),
        CASE(test_link_local_is_not_taken),
        CASE(test_other_network_namespace),
        CASE(test_nearest_to_the_gpu),
        CASE(test_lists),
        CASE(test_no_device),
        CASE(test_inline_is_halved),
        CASE(test_two_sided),
        CASE(test_ack_timeout),
        CASE(test_memory_is_refused),
        CASE(test_private_data_is_spoilt),
        CASE(test_default_limits_fit),
        CASE(test_signals_and_doorbells),
        CASE(test_traffic_registers_nothing),
        CASE(test_failures),
        CASE(test_device_events),
        CASE(test_port_down_at_the_end),
        CASE(test_memory_is_kept),
        CASE(test_breaches),
        CASE(test_immediate_data),
        CASE(test_spoilt_immediate_data),
        CASE(test_record_of_a_wrong_length),
        CASE(test_random_immediate_data),
        CASE(test_too_many_credit_records),
        CASE(test_bridge_is_not_taken), /* last: it leaves the network */
    };
    return cmocka_run_group_tests_name("verbs fake", tests, NULL, NULL);
}

#include "tests/transport/verbs_pair.h"

#include "transport/verbs/verbs_conn.h"

#include <stdlib.h>
#include <string.h>

int verbs_set_up(void **state)
{
    (void)state;
    fake_reset();
    unsetenv("NCCL_IB_HCA");
    unsetenv("NCCL_IB_GID_INDEX");
    unsetenv("NCCL_SOCKET_IFNAME");
    pair_verbs[0] = (struct gr_verbs_options){.hca = "fake0", .gid_index = -1, .lib = &fake_verbs};
    pair_verbs[1] = (struct gr_verbs_options){.hca = "fake1", .gid_index = -1, .lib = &fake_verbs};
    return 0;
}

int verbs_nothing_left(void **state)
{
    (void)state;
    gr_verbs_forget_peers();
    const struct fake_counts c = fake_counts();
    assert_int_equal(c.n_context, 0);
    assert_int_equal(c.n_pd, 0);
    assert_int_equal(c.n_mr, 0);
    assert_int_equal(c.n_channel, 0);
    assert_int_equal(c.n_comp, 0);
    assert_int_equal(c.n_cq, 0);
    assert_int_equal(c.n_id, 0);
    assert_int_equal(c.n_qp, 0);
    assert_int_equal(c.n_rnr, 0);
    return 0;
}

void open_pair(struct pair *p)
{
    pair_open(p, GR_TRANSPORT_VERBS, &limits_default);
}

void expect_no_pair(const char *word)
{
    struct pair p = {0};
    enum gr_status st[2];
    char text[8192];
    make_unix_sockets(p.fd);
    CAPTURE_STDERR(text, sizeof(text), pair_open_verbs(&p, &limits_default, st));
    if (strstr(text, word) == NULL) {
        fail_msg("`%s' is not in: %s", word, text);
    }
    for (int i = 0; i < 2; i++) {
        uint8_t byte = (uint8_t)(i + 1), got = 0;
        assert_int_equal(st[i], GR_EUNSUPPORTED);
        assert_int_equal(write(p.fd[i], &byte, 1), 1);
        assert_int_equal(read(p.fd[1 - i], &got, 1), 1);
        assert_int_equal(got, byte);
    }
    close(p.fd[0]);
    close(p.fd[1]);
}

void exchange(struct pair *p)
{
    for (uint32_t i = 0; i < 40; i++) {
        for (int side = 0; side < 2; side++) {
            send_filled(p->conn[side], GR_FRAME_SMALL, 8 * i, i);
            send_filled(p->conn[side], GR_FRAME_BULK, 65536 - i, i);
            expect_filled(p->conn[side], p->conn[1 - side], GR_FRAME_SMALL, 8 * i, i);
            expect_filled(p->conn[side], p->conn[1 - side], GR_FRAME_BULK, 65536 - i, i);
        }
    }
}

void expect_end(struct gr_conn *c, enum gr_status expected, const char *word)
{
    struct gr_frame f;
    char text[4096];
    enum gr_status st;
    CAPTURE_STDERR(text, sizeof(text), st = recv_wait(NULL, c, &f));
    assert_int_equal(st, expected);
    if (word != NULL && strstr(text, word) == NULL) {
        fail_msg("`%s' is not in: %s", word, text);
    }
    if (word != NULL) {
        assert_null(strchr(strchr(text, '\n') + 1, '\n')); /* one line, what follows from it is silent */
    }
}

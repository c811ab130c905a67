/* What is journalled by one process is what the next one finds, and what a disk refuses is not told as kept. */
#include "common/rules/hash.h"
#include "orchestrator/ledger/scribe.h"
#include "tests/quiet_log.h"
#include "tests/unit/journal_world.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#define ID 0xbeef00000001u
#define N_PROMPT 6
#define N_ANSWER 4

static int make_folder(void **state)
{
    static char path[64];
    journal_make_folder("scribe", path);
    *state = path;
    return 0;
}

static int remove_folder(void **state)
{
    journal_remove_folder(*state);
    return 0;
}

static struct gr_scribe *start(const char *path, const struct gr_journal_files *files)
{
    struct gr_scribe *s = NULL;
    assert_int_equal(gr_scribe_create(path, files, 0, &s), GR_OK);
    return s;
}

static void finish(struct gr_scribe *s)
{
    assert_int_equal(gr_scribe_destroy(s, UINT64_MAX), GR_OK);
}

static const struct gr_ledger_session *find(const struct gr_scribe *s, uint64_t session)
{
    return gr_ledger_find(gr_scribe_ledger(s), session);
}

/* ---- what happens to a session ---- */

static enum gr_status note_open(struct gr_scribe *s, uint64_t session)
{
    int32_t prompt[N_PROMPT] = {1, 2, 3, 4, 5, (int32_t)(session % 1000)}, segment[] = {GR_SEGMENT_PROMPT, N_PROMPT};
    struct gr_msg m = {.type = GR_MSG_OPEN,
                       .session = session,
                       .open = {.epoch = 1,
                                .ids = {.p = prompt, .n = N_PROMPT},
                                .segments = {.p = segment, .n = 2},
                                .wishes = {.keep_open = true, .sampling = {.top_p = 1.0f, .seed = session}}}};
    m.open.wishes.turn.max_tokens = 100;
    return gr_scribe_note(s, &m, NULL);
}

static enum gr_status note_answer(struct gr_scribe *s, uint64_t session, uint64_t *seq_out)
{
    int32_t answer[N_ANSWER] = {9, 8, 7, 6};
    const struct gr_ledger_session *before = find(s, session);
    struct gr_msg m = {.type = GR_MSG_COMMIT,
                       .session = session,
                       .commit = {.ids = {.p = answer, .n = N_ANSWER}, .keep_len = before->text.len}};
    m.commit.final_len = m.commit.keep_len + N_ANSWER;
    m.commit.hash = before->text.hash;
    for (int i = 0; i < N_ANSWER; i++) {
        m.commit.hash = gr_hash_extend(m.commit.hash, answer[i]);
    }
    return gr_scribe_note(s, &m, seq_out);
}

static enum gr_status note_end(struct gr_scribe *s, uint64_t session, uint64_t *seq_out)
{
    const struct gr_msg m = {.type = GR_MSG_FINISHED,
                             .session = session,
                             .finished = {.epoch = 1, .finish = GR_FINISH_STOP, .n_token = find(s, session)->text.len}};
    return gr_scribe_note(s, &m, seq_out);
}

static enum gr_status note_closed(struct gr_scribe *s, uint64_t session)
{
    return gr_scribe_note(s, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = session}, NULL);
}

/* ---- tests ---- */

/* One answered, one in its turn, one closed. */
static void live(struct gr_scribe *s)
{
    for (uint64_t i = 0; i < 3; i++) {
        assert_int_equal(note_open(s, ID + i), GR_OK);
    }
    assert_int_equal(note_answer(s, ID, NULL), GR_OK);
    assert_int_equal(note_answer(s, ID + 1, NULL), GR_OK);
    assert_int_equal(note_end(s, ID, NULL), GR_OK);
    assert_int_equal(note_closed(s, ID + 2), GR_OK);
}

static void check_lives(const struct gr_scribe *s)
{
    const struct gr_ledger_session *a = find(s, ID), *b = find(s, ID + 1);
    assert_int_equal(gr_ledger_n(gr_scribe_ledger(s)), 2);
    assert_true(a->state == GR_LEDGER_IDLE && a->text.len == N_PROMPT + N_ANSWER && a->n_record == 3);
    assert_true(b->state == GR_LEDGER_TURN && b->text.len == N_PROMPT + N_ANSWER && b->n_record == 2);
    assert_int_equal(gr_ledger_tokens_left(b), 100 - N_ANSWER);
    assert_int_equal(b->wishes.sampling.seed, ID + 1);
}

static void test_lives(void **state)
{
    struct gr_scribe *s = start(*state, NULL);
    live(s);
    check_lives(s);
    finish(s);
    s = start(*state, NULL);
    check_lives(s);
    assert_int_equal(note_end(s, ID + 1, NULL), GR_OK); /* it goes on with the numbers that it had */
    assert_int_equal(note_closed(s, ID), GR_OK);
    finish(s);
    s = start(*state, NULL);
    assert_int_equal(gr_ledger_n(gr_scribe_ledger(s)), 1);
    assert_int_equal(find(s, ID + 1)->state, GR_LEDGER_IDLE);
    assert_int_equal(find(s, ID + 1)->n_record, 3);
    finish(s);
}

static enum gr_status count_end(void *ctx, const struct gr_record *r)
{
    if ((r->kind & GR_RECORD_ENDS) != 0) {
        assert_int_equal(r->session, ID + 2);
        ++*(int *)ctx;
    }
    return GR_OK;
}

/* The journal is told which record is a session's last, so that it can be compacted. */
static void test_the_last_record_says_so(void **state)
{
    struct gr_scribe *s = start(*state, NULL);
    struct gr_journal *j = NULL;
    int n = 0;
    live(s);
    finish(s);
    const struct gr_journal_config c = {.path = *state, .ctx = &n, .on_record = count_end};
    assert_int_equal(gr_journal_open(&c, &j), GR_OK);
    gr_journal_close(j);
    assert_int_equal(n, 1);
}

/* ---- the machine of the next process ---- */

static void send_nothing(void *ctx, uint32_t worker, const struct gr_msg *m)
{
    (void)ctx;
    (void)worker;
    fail_msg("%s without a worker", gr_msg_name(m->type));
}

static void check_restored(struct gr_orch *o, const struct gr_ledger_session *s, enum gr_session_state state)
{
    struct gr_restored_session r;
    struct gr_session_info info;
    assert_true(gr_ledger_fill_restored(s, &r));
    assert_int_equal(gr_orch_restore(o, &r, 1), GR_OK);
    assert_true(gr_orch_session_info(o, s->id, 1, &info));
    assert_true(info.state == state && info.n_token == s->text.len && info.turn == s->turn);
    assert_true(info.turn_len == s->turn_len && info.keep_open);
    assert_true(info.epoch == s->epoch + (state == GR_SESSION_WAITING));
}

static void test_restart(void **state)
{
    const struct gr_orch_io io = {.send = send_nothing};
    struct gr_orch *o = NULL;
    struct gr_scribe *s = start(*state, NULL);
    live(s);
    finish(s);
    s = start(*state, NULL);
    assert_int_equal(gr_orch_create(&io, &o), GR_OK);
    check_restored(o, find(s, ID), GR_SESSION_IDLE);
    check_restored(o, find(s, ID + 1), GR_SESSION_WAITING);
    assert_true(!gr_ledger_goes_on(find(s, ID)) && gr_ledger_goes_on(find(s, ID + 1)));
    gr_orch_destroy(o);
    finish(s);
}

static void test_misfit(void **state)
{
    struct gr_scribe *s = start(*state, NULL);
    assert_int_equal(note_closed(s, ID), GR_EINVAL);
    assert_int_equal(note_open(s, ID), GR_OK);
    assert_int_equal(note_open(s, ID), GR_EINVAL);
    finish(s);
    s = start(*state, NULL); /* nothing of the misfits was written */
    assert_true(find(s, ID)->state == GR_LEDGER_TURN && find(s, ID)->n_record == 1);
    finish(s);
}

/* ---- a disk that fails ---- */

static atomic_bool is_full;

static ssize_t write_or_fail(void *ctx, int fd, const void *p, size_t n)
{
    if (is_full) {
        errno = ENOSPC;
        return -1;
    }
    return gr_journal_system_files.write(ctx, fd, p, n);
}

static void test_full_disk(void **state)
{
    struct gr_journal_files files = gr_journal_system_files;
    files.write = write_or_fail;
    is_full = false;
    struct gr_scribe *s = start(*state, &files);
    uint64_t seq = 0;
    assert_int_equal(note_open(s, ID), GR_OK);
    assert_int_equal(note_answer(s, ID, &seq), GR_OK);
    journal_wait_for(gr_scribe_journal(s), seq);
    is_full = true;
    assert_int_equal(note_answer(s, ID, &seq), GR_OK); /* on its way, and nobody may be told of it */
    journal_wait_for(gr_scribe_journal(s), seq);
    assert_true(gr_journal_has_failed(gr_scribe_journal(s)) && gr_journal_synced(gr_scribe_journal(s)) < seq);
    assert_int_equal(note_open(s, ID + 1), GR_EIO);
    assert_null(find(s, ID + 1));
    const uint64_t hash = find(s, ID)->text.hash;
    assert_int_equal(note_answer(s, ID, NULL), GR_EIO); /* tokens that can be noted later, or computed again */
    assert_true(find(s, ID)->state == GR_LEDGER_TURN && find(s, ID)->text.len == N_PROMPT + 2 * N_ANSWER);
    assert_true(find(s, ID)->text.hash == hash);
    assert_int_equal(note_end(s, ID, NULL), GR_EIO); /* an end cannot */
    assert_true(find(s, ID)->state == GR_LEDGER_DAMAGED && find(s, ID)->unwritten);
    finish(s);
    s = start(*state, NULL);
    assert_int_equal(gr_ledger_n(gr_scribe_ledger(s)), 1);
    assert_true(find(s, ID)->state == GR_LEDGER_TURN && find(s, ID)->text.len == N_PROMPT + N_ANSWER);
    finish(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lives, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_the_last_record_says_so, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_restart, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_misfit, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_full_disk, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Files that a user names for output: whatever stands there. */
#include "common/base/log.h"
#include "common/base/out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <cmocka.h>

static char folder[64];

static const char *in_folder(const char *name)
{
    static char path[4][256];
    static int i;
    i = (i + 1) % 4;
    snprintf(path[i], sizeof(path[i]), "%s/%s", folder, name);
    return path[i];
}

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/graft-out-XXXXXX");
    gr_log_set_level(GR_LOG_ERROR);
    umask(022);
    return mkdtemp(folder) == NULL;
}

static int teardown(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command);
}

static void put(const char *path, const char *text, mode_t mode)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static void holds(const char *path, const char *want)
{
    char text[256] = "";
    const int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(read(fd, text, sizeof(text) - 1), (ssize_t)strlen(want));
    close(fd);
    assert_string_equal(text, want);
}

static mode_t mode_of(const char *path)
{
    struct stat st;
    assert_int_equal(lstat(path, &st), 0);
    return st.st_mode;
}

static int n_files(void)
{
    char command[128], text[16] = "";
    snprintf(command, sizeof(command), "ls -A %s | wc -l", folder);
    FILE *f = popen(command, "r");
    assert_non_null(fgets(text, sizeof(text), f));
    pclose(f);
    return atoi(text);
}

static enum gr_status write_to(const char *path, const char *text, struct gr_out_place *place)
{
    struct gr_out_file o;
    GR_TRY(gr_out_file_open("--test", path, 0644, false, &o));
    return gr_out_file_close(&o, fputs(text, o.f) >= 0, place);
}

static void test_regular(void **state)
{
    (void)state;
    const char *path = in_folder("file");
    struct gr_out_file o;
    assert_int_equal(write_to(path, "new\n", NULL), GR_OK);
    holds(path, "new\n");
    assert_int_equal(mode_of(path), S_IFREG | 0644);
    chmod(path, 0640);
    assert_int_equal(gr_out_file_open("--test", path, 0644, false, &o), GR_OK);
    fputs("half", o.f);
    holds(path, "new\n"); /* whole or not at all */
    gr_out_file_drop(&o);
    holds(path, "new\n");
    assert_int_equal(gr_out_file_open("--test", path, 0644, false, &o), GR_OK);
    assert_int_equal(gr_out_file_close(&o, false, NULL), GR_EIO);
    holds(path, "new\n");
    assert_int_equal(write_to(path, "newer\n", NULL), GR_OK);
    holds(path, "newer\n");
    assert_int_equal(mode_of(path), S_IFREG | 0640);
    assert_int_equal(gr_out_file_open("--test", path, 0600, true, &o), GR_EIO); /* a key is not replaced */
    holds(path, "newer\n");
    const char *key = in_folder("key");
    assert_int_equal(gr_out_file_open("--test", key, 0600, true, &o), GR_OK);
    put(key, "another's", 0600); /* that came meanwhile */
    assert_int_equal(gr_out_file_close(&o, true, NULL), GR_EIO);
    holds(key, "another's");
    assert_int_equal(n_files(), 2);
}

static void test_links(void **state)
{
    (void)state;
    put(in_folder("real"), "old", 0600);
    assert_int_equal(mkdir(in_folder("sub"), 0755), 0);
    assert_int_equal(symlink("real", in_folder("link")), 0);
    assert_int_equal(symlink("../link", in_folder("sub/chain")), 0);
    assert_int_equal(symlink("sub/nothing", in_folder("dangling")), 0);
    assert_int_equal(symlink("loop2", in_folder("loop1")), 0);
    assert_int_equal(symlink("loop1", in_folder("loop2")), 0);
    assert_int_equal(write_to(in_folder("sub/chain"), "by a chain", NULL), GR_OK);
    holds(in_folder("real"), "by a chain");
    assert_true(S_ISLNK(mode_of(in_folder("link"))) && S_ISLNK(mode_of(in_folder("sub/chain"))));
    assert_int_equal(mode_of(in_folder("real")), S_IFREG | 0600);
    assert_int_equal(write_to(in_folder("dangling"), "made", NULL), GR_OK);
    assert_true(S_ISLNK(mode_of(in_folder("dangling"))));
    holds(in_folder("sub/nothing"), "made");
    assert_int_equal(write_to(in_folder("loop1"), "never", NULL), GR_EIO);
    assert_true(S_ISLNK(mode_of(in_folder("loop1"))));
}

static void test_fifo(void **state)
{
    (void)state;
    const char *path = in_folder("fifo");
    char text[16] = "";
    assert_int_equal(mkfifo(path, 0600), 0);
    struct gr_out_file o;
    assert_int_equal(gr_out_file_try("--test", path, 0644, false, &o), GR_AGAIN);
    assert_int_equal(write_to(path, "nobody", NULL), GR_EIO); /* and does not wait */
    const int fd = open(path, O_RDONLY | O_NONBLOCK);
    assert_true(fd >= 0);
    struct gr_out_place place;
    assert_int_equal(symlink("fifo", in_folder("to-fifo")), 0);
    assert_int_equal(write_to(in_folder("to-fifo"), "read me", &place), GR_OK);
    assert_int_equal(read(fd, text, sizeof(text)), 7);
    assert_string_equal(text, "read me");
    close(fd);
    assert_true(S_ISFIFO(mode_of(path)));
    gr_out_place_remove(&place); /* it was not put there */
    assert_true(S_ISFIFO(mode_of(path)));
    assert_int_equal(n_files(), 2);
}

static void test_device(void **state)
{
    (void)state;
    const char *path = in_folder("null");
    if (mknod(path, S_IFCHR | 0666, makedev(1, 3)) != 0) {
        print_message("# skipped: mknod: %s\n", strerror(errno));
        skip();
    }
    if (access(path, W_OK) != 0 || open(path, O_WRONLY) < 0) {
        print_message("# skipped: devices cannot be opened here: %s\n", strerror(errno));
        skip();
    }
    struct gr_out_place place;
    assert_int_equal(write_to(path, "gone", &place), GR_OK);
    assert_true(S_ISCHR(mode_of(path)));
    gr_out_place_remove(&place);
    assert_true(S_ISCHR(mode_of(path)));
    assert_int_equal(n_files(), 1);
}

static void test_own_files(void **state)
{
    (void)state;
    char name[64], text[32] = "";
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    snprintf(name, sizeof(name), "/dev/fd/%d", fds[1]);
    assert_int_equal(write_to(name, "through a pipe", NULL), GR_OK);
    assert_int_equal(read(fds[0], text, sizeof(text)), 14);
    assert_string_equal(text, "through a pipe");
    const int fd =
        open(in_folder("log"), O_RDWR | O_CREAT, 0600); /* a shell's redirection: it goes on being this file */
    assert_int_equal(write(fd, "before ", 7), 7);
    snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    assert_int_equal(write_to(name, "after", NULL), GR_OK);
    holds(in_folder("log"), "before after");
    assert_int_equal(write_to("/dev/fd/987", "never", NULL), GR_EIO);
    close(fd);
}

static void test_what_cannot_be(void **state)
{
    (void)state;
    char long_name[PATH_MAX + 8];
    memset(long_name, 'x', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = '\0';
    assert_int_equal(write_to(folder, "never", NULL), GR_EIO);
    assert_int_equal(write_to(in_folder("no/such/folder"), "never", NULL), GR_EIO);
    assert_int_equal(write_to(long_name, "never", NULL), GR_EIO);
    assert_int_equal(write_to("", "never", NULL), GR_EIO);
    put(in_folder("plain"), "", 0600);
    assert_int_equal(write_to(in_folder("plain/below"), "never", NULL), GR_EIO);
    assert_int_equal(n_files(), 1);
    if (geteuid() != 0) {
        assert_int_equal(chmod(folder, 0555), 0);
        assert_int_equal(write_to(in_folder("new"), "never", NULL), GR_EIO);
        assert_int_equal(chmod(folder, 0755), 0);
    }
}

/* Only the file that was put there is taken away. */
static void test_remove(void **state)
{
    (void)state;
    struct gr_out_place place, none = {0};
    const char *path = in_folder("ready");
    gr_out_place_remove(&none);
    assert_int_equal(write_to(path, "address", &place), GR_OK);
    gr_out_place_remove(&place);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(write_to(path, "address", &place), GR_OK);
    put(in_folder("other"), "another server's", 0600);
    assert_int_equal(rename(in_folder("other"), path), 0);
    gr_out_place_remove(&place);
    holds(path, "another server's");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(write_to(path, "address", &place), GR_OK);
    assert_int_equal(unlink(path), 0);
    put(path, "another server's", 0600); /* perhaps with the old one's inode */
    gr_out_place_remove(&place);
    holds(path, "another server's");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_regular, setup, teardown),
        cmocka_unit_test_setup_teardown(test_links, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fifo, setup, teardown),
        cmocka_unit_test_setup_teardown(test_device, setup, teardown),
        cmocka_unit_test_setup_teardown(test_own_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_cannot_be, setup, teardown),
        cmocka_unit_test_setup_teardown(test_remove, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

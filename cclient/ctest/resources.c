/* resources.c - a full tmpfs, limits of the process, signals. */
#include "check.h"

#include <sys/time.h>

static char small[100]; /* a tmpfs of 16 MiB */

static bool mount_small(const char *options)
{
    snprintf(small, sizeof small, "%s/small", scratch);
    mkdir(small, 0700);
    return mount("tmpfs", small, "tmpfs", 0, options) == 0;
}

static void unmount_small(void) { umount2(small, MNT_DETACH); }

#define IN_SMALL(...)                                                                                                  \
    (struct stoc_options)                                                                                              \
    { .struct_bytes = sizeof(struct stoc_options), .client_records = 16, .directory = small, __VA_ARGS__ }

TEST(a_full_tmpfs)
{
    if (!mount_small("size=16m"))
        SKIP("no permission to mount a tmpfs (root is needed)");
    struct stoc_options o = IN_SMALL(.samples = 1000, .sample_bytes = 100000);
    stoc_cache *c = NULL;
    EQUAL(stoc_create("big", &o, &c, &error), STOC_EMEMORY);
    CHECK(strstr(error.message, small) && strstr(error.message, "16.0 MiB") && strstr(error.message, "headroom"));
    o.reserve = 1;
    EQUAL(stoc_create("big", &o, &c, &error), STOC_EMEMORY);
    EQUAL(rmdir(small) == 0 ? 0 : errno, EBUSY); /* no file stays, but it is mounted */
    o = IN_SMALL(.samples = 1000, .slots = 100, .sample_bytes = 100000);
    REQUIRE(stoc_create("lazy", &o, &c, &error) == 0);
    for (int i = 0; i < 41; i++) /* up to the end of a block of 2 MiB, which may have been allocated at once */
        EQUAL(put(c, i, 100000, 1, 0), STOC_STORED);
    /* The first cache is promised what it may still fill. A second one of that size does not fit,
     * although the space is still free. */
    stoc_cache *d = NULL;
    EQUAL(stoc_create("second", &o, &d, &error), STOC_EMEMORY);
    CHECK(strstr(error.message, "1 other caches") != NULL);
    /* Another program fills the tmpfs to the last page. */
    char path[200];
    snprintf(path, sizeof path, "%s/filler", small);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    static char zeros[4096];
    while (write(fd, zeros, sizeof zeros) > 0)
        ;
    EQUAL(errno, ENOSPC);
    struct stoc_claim k;
    for (int i = 41; i < 44; i++)
        EQUAL(put(c, i, 100000, 1, 0), STOC_FULL);
    EQUAL(stoc_claim(c, 44, 100000, 0, &k), STOC_FULL);
    EQUAL(put(c, 3, 100000, 2, STOC_OVERWRITE), STOC_STORED); /* its pages exist */
    for (int i = 0; i < 41; i++)
        EQUAL(holds(c, i, 100000, i == 3 ? 2 : 1), 1);
    stoc_cache *other = NULL; /* attaching, registering and clearing need no new page */
    REQUIRE(stoc_open(path_in_scratch("small/lazy"), 0, NULL, &other, &error) == 0);
    EQUAL(holds(other, 43, 100000, 1), 0);
    struct stoc_stats s = stats_of(other);
    EQUAL(s.full, 4);
    EQUAL(s.aborted, 4);
    EQUAL(s.ready, 41);
    check_quiet(other);
    o = IN_SMALL(.samples = 1, .sample_bytes = 8);
    EQUAL(stoc_create("none", &o, &d, &error), STOC_EMEMORY);
    close(fd);
    unlink(path);
    EQUAL(put(c, 43, 100000, 1, 0), STOC_STORED); /* there is space again */
    close_quiet(c);
    stoc_close(other);
    unmount_small();
}

/* What a replaced segment of another version had counts as free. */
TEST(replaced_in_a_small_tmpfs)
{
    if (!mount_small("size=16m"))
        SKIP("no permission to mount a tmpfs (root is needed)");
    struct stoc_options o = IN_SMALL(.samples = 9, .sample_bytes = 1 << 20, .reserve = 1);
    stoc_cache *c = NULL;
    unsigned char version = STOC_LAYOUT_VERSION + 1;
    for (int size = 9; size <= 64; size += 55) { /* 64 do not fit */
        o.samples = 9;
        REQUIRE(stoc_create("old", &o, &c, &error) == 0);
        stoc_close(c);
        int fd = open(path_in_scratch("small/old"), O_WRONLY);
        REQUIRE(pwrite(fd, &version, 1, STOC_HEADER_VERSION) == 1);
        close(fd);
        o.samples = (uint64_t)size;
        EQUAL(stoc_create("old", &o, &c, &error), size == 9 ? 0 : STOC_EMEMORY);
        if (size == 9) {
            stoc_close(c);
            EQUAL(stoc_unlink(path_in_scratch("small/old"), &error), 0);
        }
    }
    CHECK(strstr(error.message, "the old segment, of another version, is removed"));
    CHECK(strstr(error.message, "16.0 MiB free"));
    unmount_small();
}

TEST(a_full_tmpfs_and_an_arena)
{
    if (!mount_small("size=16m"))
        SKIP("no permission to mount a tmpfs (root is needed)");
    struct stoc_options o = IN_SMALL(.samples = 1000, .variable = 1, .limit_bytes = 12 << 20);
    stoc_cache *c = NULL;
    REQUIRE(stoc_create("arena", &o, &c, &error) == 0);
    char path[200];
    snprintf(path, sizeof path, "%s/filler", small);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    EQUAL(posix_fallocate(fd, 0, 8 << 20), 0);
    int stored = 0, full = 0;
    for (int i = 0; i < 90; i++) {
        int result = put(c, i, 100000, 1, 0);
        stored += result == STOC_STORED;
        full += result == STOC_FULL;
    }
    CHECK(stored > 40 && full > 10 && stored + full == 90);
    close(fd);
    unlink(path);
    for (int i = 0; i < 90; i++) { /* samples of failed sets kept their extents */
        bool there = holds(c, i, 100000, 1) == 1;
        EQUAL(put(c, i, 100000, 1, 0), there ? STOC_EXISTS : STOC_STORED);
    }
    EQUAL(stats_of(c).arena_lost_bytes, 0);
    close_quiet(c);
    unmount_small();
}

TEST(a_read_only_mount)
{
    if (!mount_small("size=16m"))
        SKIP("no permission to mount a tmpfs (root is needed)");
    stoc_cache *c = NULL, *d = NULL;
    struct stoc_options o = IN_SMALL(.samples = 10, .sample_bytes = 1000);
    REQUIRE(stoc_create("here", &o, &c, &error) == 0);
    EQUAL(put(c, 1, 1000, 1, 0), STOC_STORED);
    stoc_close(c);
    REQUIRE(mount(NULL, small, NULL, MS_REMOUNT | MS_RDONLY, "size=16m") == 0);
    EQUAL(stoc_create("there", &o, &d, &error), STOC_EPERM);
    REQUIRE(stoc_open(path_in_scratch("small/here"), 0, NULL, &d, &error) == 0);
    EQUAL(holds(d, 1, 1000, 1), 1);
    EQUAL(put(d, 2, 1000, 1, 0), STOC_EREADONLY);
    stoc_close(d);
    unmount_small();
}

TEST(limits_of_the_process)
{
    stoc_cache *c = NULL;
    stoc_close(make("limited", OPTIONS(.samples = 100, .sample_bytes = 100000)));
    IN_GOOD_CHILD({
        struct rlimit files = {.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
        struct stoc_options o = OPTIONS(.samples = 100, .sample_bytes = 100000);
        setrlimit(RLIMIT_FSIZE, &files);
        EQUAL(stoc_create(NULL, &o, &c, &error), STOC_EMEMORY);
        CHECK(strstr(error.message, "RLIMIT_FSIZE") && strstr(error.message, "1048576"));
        EQUAL(stoc_open(path_in_scratch("limited"), 0, NULL, &c, &error), STOC_EMEMORY);
        CHECK(strstr(error.message, "read-only") != NULL);
        EQUAL(stoc_open(path_in_scratch("limited"), STOC_OPEN_READ_ONLY, NULL, &c, &error), 0);
        EQUAL(holds(c, 1, 100000, 1), 0);
        stoc_close(c);
    });
    IN_GOOD_CHILD({
        struct rlimit space = {.rlim_cur = 64 << 20, .rlim_max = 64 << 20};
        struct stoc_options o = OPTIONS(.samples = 100, .sample_bytes = 10 << 20);
        setrlimit(RLIMIT_AS, &space);
        EQUAL(stoc_create(NULL, &o, &c, &error), STOC_EMEMORY);
        CHECK(error.os_error == ENOMEM);
    });
    IN_GOOD_CHILD({
        struct rlimit files;
        int highest = open("/dev/null", O_RDONLY);
        for (int free_numbers = 0; free_numbers < 5; free_numbers++) {
            files.rlim_cur = files.rlim_max = (rlim_t)(highest + 1 + free_numbers);
            if (setrlimit(RLIMIT_NOFILE, &(struct rlimit){.rlim_cur = files.rlim_cur, .rlim_max = 1024}) != 0)
                _exit(98);
            int code = stoc_open(path_in_scratch("limited"), 0, NULL, &c, &error);
            if (code == 0)
                stoc_close(c);
            else
                EQUAL(code, STOC_ESYSTEM);
            EQUAL(code == 0 ? 0 : error.os_error, code == 0 ? 0 : EMFILE);
            CHECK(free_numbers < 2 || code == 0);
            int next = dup(highest); /* no descriptor stays open */
            CHECK(next == -1 || next == highest + 1);
            close(next);
        }
    });
}

static volatile sig_atomic_t alarms;
static void on_alarm(int number)
{
    (void)number;
    alarms = alarms + 1;
}

static uint64_t progressed;
static void on_progress(void *context, uint64_t done_bytes, uint64_t total)
{
    CHECK(context == &progressed && done_bytes > progressed && done_bytes <= total);
    progressed = done_bytes;
}

/* A timer fires every millisecond while 300 MiB are reserved. */
TEST(a_storm_of_signals)
{
    struct sigaction action = {.sa_handler = on_alarm}; /* no SA_RESTART */
    struct itimerval often = {.it_interval = {.tv_usec = 1000}, .it_value = {.tv_usec = 1000}}, never = {0};
    sigaction(SIGALRM, &action, NULL);
    progressed = 0;
    setitimer(ITIMER_REAL, &often, NULL);
    stoc_cache *c = make(NULL, OPTIONS(.samples = 300, .sample_bytes = 1 << 20, .reserve = 1, .progress = on_progress,
                                       .context = &progressed));
    for (int i = 0; i < 300; i += 10)
        EQUAL(put(c, i, 1 << 20, 1, 0), STOC_STORED);
    setitimer(ITIMER_REAL, &never, NULL);
    CHECK(alarms > 10);
    EQUAL(progressed, 300 << 20);
    CHECK(stats_of(c).allocated_bytes >= 300 << 20);
    close_quiet(c);
}

/* Creating a gigabyte takes milliseconds, because it touches nothing of the payload. Also with a
 * large index. */
TEST(creating_is_quick)
{
    clock_t began = clock();
    stoc_cache *c = make(NULL, OPTIONS(.samples = 7133, .sample_bytes = 150528));
    double ms = 1e3 * (double)(clock() - began) / CLOCKS_PER_SEC;
    printf("  1 GiB in %.2f ms of processor time\n", ms);
    CHECK(ms < 50); /* the requirement is 5, but this machine may be busy */
    CHECK(stats_of(c).allocated_bytes < 4 << 20);
    stoc_close(c);
}

void tear_down(void) { unmount_small(); }

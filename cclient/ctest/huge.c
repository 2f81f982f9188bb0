/* huge.c - huge pages: blocks get them while they are filled, every process maps them, and only
 * speed depends on them. The library is compiled into this program. */
#define _GNU_SOURCE 1
#include <sys/mman.h>
#include <time.h>

/* blocks that the library asked for, and blocks that the kernel made huge; it refuses some if
 * memory is in fragments */
static int asked, given;

static int counted_madvise(void *at, size_t length, int advice)
{
    int result = madvise(at, length, advice);
    asked += advice == 25; /* MADV_COLLAPSE */
    given += advice == 25 && result == 0;
    return result;
}

/* A clock that stands still: no block is late on a busy machine, and a refusal causes no pause. */
static int standing_clock(clockid_t clock, struct timespec *t)
{
    if (clock != CLOCK_MONOTONIC)
        return clock_gettime(clock, t);
    *t = (struct timespec){.tv_sec = 1000000};
    return 0;
}

#define madvise(at, length, advice) counted_madvise(at, length, advice)
#define clock_gettime(clock, t) standing_clock(clock, t)
#include "../stocached.c"
#undef madvise
#undef clock_gettime

#include "check.h"

#include <sys/prctl.h>

enum {
    SAMPLE = 100000,
    SAMPLES = 200,
    BLOCKS = SAMPLES * SAMPLE / (2 << 20) /* whole ones */,
    MANY = 300000 /* samples: their index is three blocks */
};

/* Bytes of our map that huge pages map. */
static uint64_t mapped_huge(const void *map)
{
    char line[300];
    unsigned long long first, kilobytes, sum = 0;
    bool here = false;
    FILE *f = fopen("/proc/self/smaps", "r");
    REQUIRE(f != NULL);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%llx-", &first) == 1 && strchr(line, '-') && !strstr(line, "kB"))
            here = first == (uintptr_t)map;
        else if (here && (sscanf(line, "ShmemPmdMapped: %llu", &kilobytes) == 1 ||
                          sscanf(line, "FilePmdMapped: %llu", &kilobytes) == 1))
            sum += kilobytes * 1024;
    }
    fclose(f);
    return sum;
}

/* Skips the test unless this kernel gives huge pages. Asks without the library. */
static void need_huge_pages(void)
{
    char text[64] = "";
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    bool allowed = f && fgets(text, sizeof text, f) && !strstr(text, "[never]"), given = false;
    if (f)
        fclose(f);
    int fd = memfd_create("probe", 0);
    unsigned char *room = mmap(NULL, 4 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(fd >= 0 && ftruncate(fd, 2 << 20) == 0 && room != MAP_FAILED);
    unsigned char *map = mmap((void *)(((uintptr_t)room + (2 << 20) - 1) & ~(uintptr_t)((2 << 20) - 1)), 2 << 20,
                              PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    REQUIRE(map != MAP_FAILED);
    map[0] = 1;
    given = madvise(map, 2 << 20, 25) == 0;
    munmap(room, 4 << 20);
    close(fd);
    if (!allowed || !given)
        SKIP("this kernel gives no huge pages to shared memory (Linux 6.1 and transparent_hugepage are needed)");
}

static void put_all(stoc_cache *c, bool backwards)
{
    for (int i = 0; i < SAMPLES; i++)
        EQUAL(put(c, backwards ? SAMPLES - 1 - i : i, SAMPLE, 1, 0), STOC_STORED);
}

static void check_all(stoc_cache *c)
{
    for (int i = 0; i < SAMPLES; i++)
        EQUAL(holds(c, i, SAMPLE, 1), 1);
}

/* The library asks once for each block, and the kernel maps what it gave. */
static void check_blocks(const stoc_cache *c, int blocks)
{
    EQUAL(asked, blocks);
    EQUAL(mapped_huge(c->payload) >> 21, given);
}

static void check_filled(struct stoc_options options, const char *name, bool backwards, int blocks)
{
    need_huge_pages();
    stoc_cache *c = make(name, options);
    asked = given = 0;
    put_all(c, backwards);
    check_all(c);
    check_blocks(c, blocks);
    close_quiet(c);
}

TEST(filled_in_order)
{
    check_filled(OPTIONS(.samples = SAMPLES, .sample_bytes = SAMPLE), NULL, false, BLOCKS);
}
TEST(of_a_named_cache)
{
    check_filled(OPTIONS(.samples = SAMPLES, .sample_bytes = SAMPLE), "named", true, BLOCKS);
}
TEST(reserved_pages)
{
    check_filled(OPTIONS(.samples = SAMPLES, .sample_bytes = SAMPLE, .reserve = 1), NULL, false, BLOCKS);
}
TEST(of_an_arena)
{
    check_filled(OPTIONS(.samples = SAMPLES, .variable = 1, .limit_bytes = 24 << 20), NULL, false, BLOCKS + 1);
}
/* Ends of slots take a block more. */
TEST(of_chains)
{
    check_filled(OPTIONS(.samples = SAMPLES, .variable = 1, .limit_bytes = 24 << 20, .policy = STOC_POLICY_LRU), NULL,
                 false, BLOCKS + 2);
}
/* Each block becomes huge with the sample in which it begins. Some of the block's other samples are
 * stored before. */
TEST(with_a_slot_each)
{
    check_filled(OPTIONS(.samples = SAMPLES, .sample_bytes = SAMPLE, .policy = STOC_POLICY_FIRST_INDICES), NULL, true, BLOCKS);
}

TEST(samples_larger_than_a_block)
{
    need_huge_pages();
    enum { LARGE = 5 << 20, N = 4 };
    static unsigned char bytes[LARGE];
    stoc_cache *c = make(NULL, OPTIONS(.samples = N, .sample_bytes = LARGE));
    asked = given = 0;
    for (uint64_t i = 0; i < N; i++) {
        fill(bytes, LARGE, i, 1);
        EQUAL(stoc_set(c, (int64_t)i, bytes, LARGE, 0), STOC_STORED);
    }
    for (uint64_t i = 0; i < N; i++) {
        const void *data = NULL;
        size_t length = 0;
        EQUAL(stoc_view(c, (int64_t)i, &data, &length), STOC_HIT);
        fill(bytes, LARGE, i, 1);
        CHECK(length == LARGE && memcmp(data, bytes, LARGE) == 0);
    }
    check_blocks(c, N * LARGE / (2 << 20));
    stoc_close(c);
}

/* A large index: huge from its creation, also in a process that attaches. A small one is not, however many clients there
 * may be. */
TEST(the_control_part)
{
    need_huge_pages();
    asked = given = 0;
    stoc_close(make("small", OPTIONS(.samples = 1000, .slots = 10, .sample_bytes = 100)));
    EQUAL(asked, 0);
    stoc_cache *c = make("index", OPTIONS(.samples = MANY, .slots = 10, .sample_bytes = 100)),
               *other = join("index", 0);
    for (int i = 0; i < MANY; i += 1000) {
        EQUAL(holds(c, i, 100, 1), 0);
        EQUAL(holds(other, i, 100, 1), 0);
    }
    CHECK(asked == (int)(c->control_bytes >> 21) || given < asked); /* it stops at the first refusal */
    EQUAL(mapped_huge(c->control) >> 21, given);
    EQUAL(mapped_huge(other->control) >> 21, given);
    stoc_close(other);
    stoc_close(c);
}

TEST(in_another_process)
{
    need_huge_pages();
    stoc_cache *c = make("shared", OPTIONS(.samples = SAMPLES, .sample_bytes = SAMPLE));
    asked = given = 0;
    put_all(c, false);
    IN_GOOD_CHILD({
        stoc_cache *other = join("shared", STOC_OPEN_READ_ONLY);
        check_all(other);
        check_blocks(other, BLOCKS);
    });
    stoc_close(c);
}

/* The kernel refuses: pages are small, and all results are the same. */
TEST(refused)
{
    IN_GOOD_CHILD({
        REQUIRE(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0);
        stoc_cache *c = make(NULL, OPTIONS(.samples = SAMPLES, .sample_bytes = SAMPLE));
        put_all(c, false);
        check_all(c);
        EQUAL(mapped_huge(c->payload), 0);
        CHECK(c->huge_after != 0);
        close_quiet(c);
    });
}

/* After a refusal the library does not ask for a while; later blocks become huge again. */
TEST(a_pause)
{
    need_huge_pages();
    stoc_cache *c = make(NULL, OPTIONS(.samples = SAMPLES, .sample_bytes = SAMPLE));
    asked = given = 0;
    c->huge_after = now_ns() + UINT64_C(3600000000000);
    for (int i = 0; i < SAMPLES / 2; i++)
        EQUAL(put(c, i, SAMPLE, 1, 0), STOC_STORED);
    c->huge_after = now_ns();
    for (int i = SAMPLES / 2; i < SAMPLES; i++)
        EQUAL(put(c, i, SAMPLE, 1, 0), STOC_STORED);
    check_all(c);
    /* blocks that begin in the second half */
    check_blocks(c, BLOCKS - (SAMPLES / 2 * SAMPLE + (2 << 20) - 1) / (2 << 20));
    stoc_close(c);
}

/* A tmpfs without space for a block: the library uses small pages up to the last one. */
TEST(no_room_for_a_block)
{
    char small[100];
    snprintf(small, sizeof small, "%s/small", scratch);
    mkdir(small, 0700);
    if (mount("tmpfs", small, "tmpfs", 0, "size=16m") != 0)
        SKIP("no permission to mount a tmpfs (root is needed)");
    stoc_cache *c = make("lazy", OPTIONS(.samples = 100, .sample_bytes = SAMPLE, .directory = small));
    for (int i = 0; i < 41; i++) /* to the end of the second block */
        EQUAL(put(c, i, SAMPLE, 1, 0), STOC_STORED);
    char path[200];
    snprintf(path, sizeof path, "%s/filler", small);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    EQUAL(posix_fallocate(fd, 0, (9 << 20) + (1 << 19)), 0); /* half a MiB is left */
    int stored = 0;
    for (int i = 41; i < 50; i++)
        stored += put(c, i, SAMPLE, 1, 0) == STOC_STORED;
    EQUAL(stored, 6); /* as many as half a MiB and the rest of the second block hold */
    CHECK(c->huge_after != 0); /* asked and refused */
    for (int i = 0; i < 47; i++)
        EQUAL(holds(c, i, SAMPLE, 1), 1);
    check_quiet(c);
    close(fd);
    stoc_close(c);
    umount2(small, MNT_DETACH);
}

static int maps(void)
{
    int lines = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    REQUIRE(f != NULL);
    for (int ch; (ch = fgetc(f)) != EOF;)
        lines += ch == '\n';
    fclose(f);
    return lines;
}

TEST(maps_are_aligned_and_leave_nothing)
{
    maps();
    int before = maps(), fd = memfd_create("x", 0);
    REQUIRE(fd >= 0 && ftruncate(fd, 64 << 20) == 0);
    for (uint64_t length = 4096; length < 40 << 20; length = length * 3 + 4096) {
        void *map = map_file(fd, 2 << 20, length, PROT_READ);
        REQUIRE(map != MAP_FAILED);
        CHECK(length < 2 << 20 || (uintptr_t)map % (2 << 20) == 0);
        EQUAL(maps(), before + 1);
        munmap(map, length);
        EQUAL(maps(), before);
        CHECK(map_file(-1, 0, length, PROT_READ) == MAP_FAILED && errno == EBADF);
        EQUAL(maps(), before);
    }
    close(fd);
}

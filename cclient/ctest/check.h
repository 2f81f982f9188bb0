/*
 * check.h - what the test programs share: check macros, a temporary directory on a tmpfs, and code
 * that reads a segment without the library.
 *
 * A program runs its tests in the order of its file. Its last line is "name: N passed, M failed, K skipped". Every skip
 * gives its reason.
 */
#ifndef STOCACHED_CHECK_H
#define STOCACHED_CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "../stocached.h"
#include "../stocached_layout.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int passed, failed, skipped, failures; /* failures: of the current test */
static jmp_buf give_up;
__attribute__((unused)) static struct stoc_error error; /* what the last call that has details said */
static char scratch[64]; /* a directory on a tmpfs, removed at the end */

#define COMPLAIN(...)                                                                                                  \
    (printf("%s:%d: ", __FILE__, __LINE__), printf(__VA_ARGS__), printf("\n"), fflush(stdout), failures++)

/* Whether this program looks for races of threads: then it leaves out tests of one thread, which other programs have. */
#ifdef __SANITIZE_THREAD__
#define FOR_RACES 1
#else
#define FOR_RACES 0
#endif

/* Whether it looks for wrong reads and writes: then it has tests of damaged bytes, in which a sanitizer sees the most. */
#ifdef __has_feature /* clang before 22 does not define the other */
#if __has_feature(address_sanitizer) && !defined __SANITIZE_ADDRESS__
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define FOR_MEMORY 1
#else
#define FOR_MEMORY 0
#endif

#define HANGS 300 /* seconds after which SIGALRM ends a test, also on a busy machine */

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define CHECK(condition) ((condition) ? (void)0 : (void)COMPLAIN("not so: %s", #condition))
#define REQUIRE(condition) ((condition) ? (void)0 : (COMPLAIN("not so: %s", #condition), longjmp(give_up, 1)))
#define EQUAL(a, b)                                                                                        \
    do {                                                                                                   \
        long long left_ = (long long)(a), right_ = (long long)(b);                                         \
        if (left_ != right_)                                                                               \
            COMPLAIN("%s is %lld, %s is %lld", #a, left_, #b, right_);                                     \
    } while (0)
#define SKIP(reason)                            \
    do {                                        \
        printf("SKIPPED [1] %s: %s\n", __func__, reason); \
        longjmp(give_up, 2);                    \
    } while (0)

/* TEST(name) { ... } is a test, and TEST_IF(condition, name) one that only some programs run. */
struct listed {
    const char *name;
    void (*test)(void);
    int line;
};
static struct listed tests[64];
static size_t test_count;
#define TEST_IF(condition, name)                                         \
    static void name(void);                                              \
    __attribute__((constructor)) static void list_##name(void)           \
    {                                                                    \
        if (condition)                                                   \
            tests[test_count++] = (struct listed){#name, name, __LINE__}; \
    }                                                                    \
    static void name(void)
#define TEST(name) TEST_IF(true, name)

/* What a program does before its tests, and after them. Most have neither. */
__attribute__((weak)) void set_up(void);
__attribute__((weak)) void tear_down(void);

static void run(const struct listed *t)
{
    failures = 0;
    int how = setjmp(give_up);
    alarm(HANGS);
    if (how == 0)
        t->test();
    alarm(0);
    if (how == 2)
        skipped++;
    else if (failures)
        failed++;
    else
        passed++;
    printf("%s %s\n", how == 2 ? "skip" : failures ? "FAIL" : "ok  ", t->name);
    fflush(stdout);
}

static int by_line(const void *a, const void *b)
{
    return ((const struct listed *)a)->line - ((const struct listed *)b)->line;
}

int main(int argc, char **argv)
{
    (void)argc;
    char command[128];
    setvbuf(stdout, NULL, _IOLBF, 0); /* forked children must not print our lines again */
    snprintf(scratch, sizeof scratch, "/dev/shm/stoctest-XXXXXX");
    if (!mkdtemp(scratch)) {
        perror(scratch);
        return 2;
    }
    if (set_up)
        set_up();
    qsort(tests, test_count, sizeof *tests, by_line); /* compilers list them in any order */
    for (size_t k = 0; k < test_count; k++)
        run(&tests[k]);
    if (tear_down)
        tear_down();
    snprintf(command, sizeof command, "rm -rf %s", scratch);
    if (system(command) != 0) {
        printf("FAIL %s\n", command); /* a process that a test has left may still write there */
        failed++;
    }
    const char *slash = strrchr(argv[0], '/');
    printf("%s: %d passed, %d failed, %d skipped\n", slash ? slash + 1 : argv[0], passed, failed, skipped);
    return failed ? 1 : 0;
}

/* How many files a directory has. */
__attribute__((unused)) static int files_in(const char *directory)
{
    int n = 0;
    DIR *d = opendir(directory);
    REQUIRE(d != NULL);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

__attribute__((unused)) static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Starts threads that all run this. */
__attribute__((unused)) static void start_threads(pthread_t *threads, int n, void *(*run)(void *), void *context)
{
    for (int k = 0; k < n; k++)
        REQUIRE(pthread_create(&threads[k], NULL, run, context) == 0);
}

/* Waits for the end of threads. Returns the sum of their numbers. */
__attribute__((unused)) static intptr_t join_threads(const pthread_t *threads, int n)
{
    intptr_t sum = 0;
    for (int k = 0; k < n; k++) {
        void *number = NULL;
        pthread_join(threads[k], &number);
        sum += (intptr_t)number;
    }
    return sum;
}

/* CRC-32C, byte by byte, from a table that is computed bit by bit. The tables and instructions of the library must agree
 * with it. */
__attribute__((unused)) static uint32_t crc32c(const unsigned char *p, size_t n)
{
    static uint32_t of_byte[256];
    uint32_t crc = ~0u;
    for (uint32_t byte = 0; byte < 256 && !of_byte[255]; byte++) {
        uint32_t rest = byte;
        for (int k = 0; k < 8; k++)
            rest = rest >> 1 ^ (rest & 1 ? 0x82f63b78u : 0);
        of_byte[byte] = rest;
    }
    while (n--)
        crc = crc >> 8 ^ of_byte[(crc ^ *p++) & 255];
    return ~crc;
}

/* ------------------------------------------------------------ caches */

#define OPTIONS(...)                                                                                                   \
    (struct stoc_options) { .struct_bytes = sizeof(struct stoc_options), .client_records = 16, __VA_ARGS__ }

__attribute__((unused)) static struct stoc_info info_of(const stoc_cache *c)
{
    struct stoc_info info = {.struct_bytes = sizeof info};
    REQUIRE(stoc_info(c, &info) == 0);
    return info;
}

__attribute__((unused)) static stoc_cache *make(const char *name, struct stoc_options options)
{
    struct stoc_error own; /* threads may use it */
    stoc_cache *c;
    if (name && !options.directory)
        options.directory = scratch;
    if (stoc_create(name, &options, &c, &own) != 0) {
        COMPLAIN("create %s: %d %s", name ? name : "(unnamed)", own.code, own.message);
        longjmp(give_up, 1);
    }
    return c;
}

__attribute__((unused)) static const char *path_in_scratch(const char *name)
{
    static char paths[4][200];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", scratch, name);
    return path;
}

__attribute__((unused)) static stoc_cache *join(const char *name, unsigned flags)
{
    struct stoc_error own;
    stoc_cache *c;
    if (stoc_open(path_in_scratch(name), flags, NULL, &c, &own) != 0) {
        COMPLAIN("open %s: %d %s", name, own.code, own.message);
        longjmp(give_up, 1);
    }
    return c;
}

/* Another client of the same cache, in this process. */
__attribute__((unused)) static stoc_cache *join_fd(stoc_cache *c)
{
    struct stoc_error own;
    stoc_cache *other;
    struct stoc_info info = info_of(c);
    if (stoc_open_fd(info.fd, 0, info.uuid, &other, &own) != 0) {
        COMPLAIN("open_fd: %d %s", own.code, own.message);
        longjmp(give_up, 1);
    }
    return other;
}

__attribute__((unused)) static struct stoc_stats stats_of(stoc_cache *c)
{
    struct stoc_stats stats = {.struct_bytes = sizeof stats};
    EQUAL(stoc_stats(c, &stats), 0);
    return stats;
}

/* The bytes of version v of sample i: every byte depends on both. */
__attribute__((unused)) static void fill(unsigned char *bytes, size_t n, uint64_t i, uint64_t v)
{
    uint64_t x = i * UINT64_C(0x9e3779b97f4a7c15) + v * UINT64_C(0xc2b2ae3d27d4eb4f) + 1;
    for (size_t k = 0; k < n; k++) {
        if (k % 8 == 0) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        }
        bytes[k] = (unsigned char)(x >> (k % 8 * 8));
    }
}

__attribute__((unused)) static bool filled(const unsigned char *bytes, size_t n, uint64_t i, uint64_t v)
{
    unsigned char want[n + 1]; /* no malloc: sanitizers leave its locks held in children of threads */
    fill(want, n, i, v);
    return memcmp(bytes, want, n) == 0;
}

__attribute__((unused)) static int put(stoc_cache *c, int64_t i, size_t n, uint64_t v, unsigned flags)
{
    unsigned char bytes[n + 1];
    fill(bytes, n, (uint64_t)i, v);
    return stoc_set(c, i, bytes, n, flags);
}

/* 1: sample i is READY and holds version v. 0: a miss. -1: any other result. */
__attribute__((unused)) static int holds(stoc_cache *c, int64_t i, size_t n, uint64_t v)
{
    unsigned char bytes[n + 1];
    size_t length = 0;
    int result = stoc_get(c, i, bytes, n, &length);
    if (result == STOC_HIT && (length != n || !filled(bytes, n, (uint64_t)i, v)))
        result = -1;
    return result < 0 ? -1 : result;
}

/* ------------------------------------------------------------ the segment itself, by offsets */

/* Our own map of the control part, which lets a test change words. */
__attribute__((unused)) static unsigned char *control_of(stoc_cache *c)
{
    struct stoc_info info = info_of(c);
    void *map = mmap(NULL, info.payload_offset, PROT_READ | PROT_WRITE, MAP_SHARED, info.fd, 0);
    REQUIRE(map != MAP_FAILED);
    return map;
}

__attribute__((unused)) static _Atomic uint64_t *word_in(unsigned char *control, uint64_t offset)
{
    return (_Atomic uint64_t *)(void *)(control + offset);
}

__attribute__((unused)) static uint64_t header64(const unsigned char *control, uint64_t offset)
{
    uint64_t value;
    memcpy(&value, control + offset, 8);
    return value;
}

/* Gives a header page the checksum of what a test has made of it. */
__attribute__((unused)) static void sign(unsigned char *page)
{
    memset(page + STOC_HEADER_CRC, 0, 4);
    uint32_t crc = crc32c(page, STOC_HEADER_BYTES);
    memcpy(page + STOC_HEADER_CRC, &crc, 4);
}

__attribute__((unused)) static _Atomic uint64_t *index_in(unsigned char *control, uint64_t sample)
{
    return word_in(control, header64(control, STOC_HEADER_INDEX_OFFSET) + sample * STOC_INDEX_RECORD_BYTES);
}

/* Checks the chains of an arena that evicts: each slot that is taken belongs to one READY sample, and
 * searches find every other one. */
__attribute__((unused)) static void check_chains(unsigned char *control, const struct stoc_info *info)
{
    uint64_t slot_table = header64(control, STOC_HEADER_SLOT_TABLE_OFFSET),
             groups = header64(control, STOC_HEADER_GROUPS_OFFSET), taken = 0, linked = 0;
    for (uint64_t i = 0; i < info->samples; i++) {
        uint64_t w = *index_in(control, i), length = *(index_in(control, i) + 1) & UINT32_MAX, slots = 0;
        for (uint64_t s = w >> STOC_FIXED_PLACE_SHIFT; s != 0 && slots <= info->slots; slots++) {
            REQUIRE(s <= info->slots);
            uint64_t link = *word_in(control, slot_table + (s - 1) * 8);
            EQUAL(link >> 33, i + 1);
            s = link & UINT32_MAX;
        }
        linked += slots;
        if ((w & 7) == STOC_WORD_READY)
            EQUAL(slots, length ? (length + info->slot_stride - 1) / info->slot_stride : 1);
        else
            EQUAL(slots, 0);
    }
    for (uint64_t s = 0; s < info->slots; s++) {
        uint64_t from = *word_in(control, groups + s / STOC_GROUP_SLOTS * 8) & UINT32_MAX;
        if (*word_in(control, slot_table + s * 8) >> 33)
            taken++;
        else
            CHECK(s % STOC_GROUP_SLOTS >= from);
    }
    EQUAL(taken, linked);
}

/* Checks what must hold while no client is inside an operation and dead clients are reclaimed. No
 * entry is in use, no word is WRITING, and the slot table agrees with the index. */
__attribute__((unused)) static void check_quiet(stoc_cache *c)
{
    struct stoc_info info = info_of(c);
    unsigned char *control = control_of(c);
    uint64_t slot_table = header64(control, STOC_HEADER_SLOT_TABLE_OFFSET), ready = 0, taken = 0;
    bool chains = info.variable && slot_table, extents = info.variable && !slot_table;
    for (uint64_t r = 0; r < info.client_records; r++)
        for (uint64_t e = 0; e < 2 * STOC_CLAIMS_PER_CLIENT; e++)
            if (*word_in(control, STOC_CLIENTS_OFFSET + r * STOC_CLIENT_RECORD_BYTES + STOC_CLIENT_CLAIMS + 8 * e) != 0)
                COMPLAIN("record %" PRIu64 " has claim word %" PRIu64 " in use", r, e);
    for (uint64_t i = 0; i < info.samples; i++) {
        uint64_t w = *index_in(control, i), state = w & 7,
                 place = w >> (extents ? STOC_ARENA_PLACE_SHIFT : STOC_FIXED_PLACE_SHIFT);
        CHECK(state == STOC_WORD_EMPTY || state == STOC_WORD_READY);
        CHECK((w >> 3 & 4095) == 0); /* owner */
        ready += state == STOC_WORD_READY;
        if (!extents)
            CHECK((state == STOC_WORD_READY) == (place != 0));
        if (slot_table && !chains && place)
            EQUAL(*word_in(control, slot_table + (place - 1) * 8), i + 1);
        if (extents && place) /* no two extents overlap */
            for (uint64_t j = 0; j < i; j++) {
                uint64_t other = *index_in(control, j) >> STOC_ARENA_PLACE_SHIFT;
                uint64_t mine_units = ((*(index_in(control, i) + 1) & UINT32_MAX) + 63) / 64,
                         its_units = ((*(index_in(control, j) + 1) & UINT32_MAX) + 63) / 64;
                if (other && place < other + (its_units ? its_units : 1) &&
                    other < place + (mine_units ? mine_units : 1))
                    COMPLAIN("samples %" PRIu64 " and %" PRIu64 " share units", i, j);
            }
    }
    if (chains) {
        check_chains(control, &info);
    } else if (slot_table) {
        for (uint64_t s = 0; s < info.slots; s++)
            taken += *word_in(control, slot_table + s * 8) != 0;
        EQUAL(taken, ready);
        if (taken < info.slots) { /* no free slot lies below the cursor */
            uint64_t from = *word_in(control, STOC_FREE_FROM_OFFSET) & UINT32_MAX;
            for (uint64_t s = 0; s < from; s++)
                CHECK(*word_in(control, slot_table + s * 8) != 0);
        }
    }
    EQUAL(*word_in(control, STOC_PHASE_OFFSET) & 7, 0);
    uint64_t checked;
    int64_t bad = -1;
    EQUAL(stoc_verify(c, 0, info.samples, &checked, &bad), 0);
    EQUAL(checked, ready);
    munmap(control, info.payload_offset);
}

__attribute__((unused)) static void close_quiet(stoc_cache *c)
{
    check_quiet(c);
    stoc_close(c);
}

/* Runs body in a child, waits, and returns its wait status. A failed check in the child makes its
 * exit status other than 0. */
#define IN_CHILD(...)                                \
    __extension__({                                  \
        int status_ = -1;                            \
        pid_t child_ = fork();                       \
        if (child_ == 0) {                           \
            failures = 0;                            \
            if (setjmp(give_up) == 0) {              \
                __VA_ARGS__;                         \
            }                                        \
            fflush(stdout);                          \
            _exit(failures ? 99 : 0);                \
        }                                            \
        while (waitpid(child_, &status_, 0) < 0 && errno == EINTR) \
            ;                                        \
        status_;                                     \
    })

/* The same for a child that must end well. */
#define IN_GOOD_CHILD(...)                \
    do {                                  \
        int end_ = IN_CHILD(__VA_ARGS__); \
        EQUAL(end_, 0);                   \
    } while (0)

#endif

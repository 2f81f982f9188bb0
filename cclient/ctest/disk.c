/* disk.c - a segment on a disk that processes share: kills, losses of power, disks that fail or are full. The library
 * is compiled into this program, with fault points, and its reads and writes go through functions that may fail. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include <stdint.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/vfs.h>
#include <unistd.h>

static int watched_statfs(const char *folder, struct statfs *fs);
static ssize_t watched_pread(int fd, void *data, size_t n, off_t at);
static ssize_t watched_pwrite(int fd, const void *data, size_t n, off_t at);
#define STOC_FAULT_POINTS 1
#define statfs(folder, fs) watched_statfs(folder, fs)
#define pread watched_pread
#define pwrite watched_pwrite
#include "../stocached.c"
#undef statfs
#undef pread
#undef pwrite
#undef MIN

#include "check.h"

#define THREADS "/proc/self/task"

enum { SAMPLES = 64, BYTES = 3000, MOST_BYTES = 4000, CHILDREN = 3 };

/* What the disk does. Children of this program share it. */
struct stand_in {
    _Atomic int read_error, write_error; /* errno, or 0 */
    _Atomic uint64_t stored[SAMPLES];    /* the children have stored this sample */
    _Atomic uint64_t loads, steps, stop;
    _Atomic int hold, held;             /* writes wait while it is 1; how many did */
    _Atomic int log_writes;
    _Atomic uint64_t logged;
    struct written {
        _Atomic uint32_t whole; /* 1: the data is there */
        uint32_t length;
        uint64_t at;
        unsigned char data[8192];
    } log[4096];
};
static struct stand_in *disk;
static char path[128];

static bool is_watched(int fd)
{
    struct stat ours, there;
    return fstat(fd, &ours) == 0 && stat(path, &there) == 0 && ours.st_ino == there.st_ino;
}

static uint32_t file_system; /* the file system that folders are said to be on; 0: their own */

static int watched_statfs(const char *folder, struct statfs *fs)
{
    int code = statfs(folder, fs);
    if (file_system)
        fs->f_type = (__typeof__(fs->f_type))file_system;
    return code;
}

static ssize_t watched_pread(int fd, void *data, size_t n, off_t at)
{
    if (disk && disk->read_error && is_watched(fd)) {
        errno = disk->read_error;
        return -1;
    }
    return pread(fd, data, n, at);
}

static ssize_t watched_pwrite(int fd, const void *data, size_t n, off_t at)
{
    if (disk && disk->hold && is_watched(fd)) {
        atomic_fetch_add(&disk->held, 1);
        while (disk->hold)
            sched_yield();
    }
    if (disk && disk->write_error && is_watched(fd)) {
        errno = disk->write_error;
        return -1;
    }
    if (disk && disk->log_writes && is_watched(fd)) {
        uint64_t k = atomic_fetch_add(&disk->logged, 1);
        if (k < sizeof disk->log / sizeof *disk->log && n <= sizeof disk->log->data) {
            disk->log[k].length = (uint32_t)n;
            disk->log[k].at = (uint64_t)at;
            memcpy(disk->log[k].data, data, n);
            atomic_store(&disk->log[k].whole, 1);
        }
    }
    return pwrite(fd, data, n, at);
}

/* ------------------------------------------------------------ helpers */

#pragma GCC diagnostic ignored "-Woverride-init" /* options of a test replace those that all have */

#define DISK_OPTIONS(...)                                                                                            \
    (struct stoc_options) { .struct_bytes = sizeof(struct stoc_options), .samples = SAMPLES,                         \
                            .limit_bytes = UINT64_C(8) << 20, .fingerprint = "test", __VA_ARGS__ }
#define FIXED DISK_OPTIONS(.sample_bytes = BYTES)
#define VARIABLE DISK_OPTIONS(.sample_bytes = MOST_BYTES, .variable = 1)
/* a file with 30 slots */
#define SMALL(p) DISK_OPTIONS(.sample_bytes = BYTES, .policy = p, .limit_bytes = (UINT64_C(2) << 20) + 30 * BYTES + 4096)

static stoc_cache *open_disk(struct stoc_options options)
{
    stoc_cache *c;
    if (stoc_disk_open(path, &options, &c, &error) != 0) {
        COMPLAIN("open %s: %d %s", path, error.code, error.message);
        longjmp(give_up, 1);
    }
    return c;
}

static size_t length(int64_t i, bool variable) { return variable ? (size_t)(i * 61 % MOST_BYTES) : BYTES; }

static int put_one(stoc_cache *c, int64_t i, bool variable) { return put(c, i, length(i, variable), 1, 0); }

static int put_later(stoc_cache *c, int64_t i, bool variable)
{
    unsigned char bytes[MOST_BYTES + 1];
    size_t n = length(i, variable);
    fill(bytes, n, (uint64_t)i, 1);
    struct iovec parts[2] = {{bytes, n / 3}, {bytes + n / 3, n - n / 3}};
    return stoc_set_later(c, i, parts, 2);
}

static int has(stoc_cache *c, int64_t i, bool variable) { return holds(c, i, length(i, variable), 1); }

/* Hits; complains about wrong bytes. */
static int count_hits(stoc_cache *c, bool variable)
{
    int hits = 0;
    for (int64_t i = 0; i < SAMPLES; i++) {
        int found = has(c, i, variable);
        if (found < 0)
            COMPLAIN("sample %ld has wrong bytes", i);
        hits += found == 1;
    }
    return hits;
}

/* How many control parts of the file there are; removes them if asked to, as a restart does. */
static int controls(bool remove_them)
{
    char directory[64], begin[64];
    struct stat st;
    int n = 0;
    snprintf(directory, sizeof directory, "/dev/shm/stocached-%u/disk", (unsigned)geteuid());
    DIR *d = opendir(directory);
    if (!d || stat(path, &st) != 0) {
        if (d)
            closedir(d);
        return 0;
    }
    snprintf(begin, sizeof begin, "%lu-%lu-", st.st_dev, st.st_ino);
    for (struct dirent *e; (e = readdir(d));)
        if (strncmp(e->d_name, begin, strlen(begin)) == 0) {
            n++;
            if (remove_them)
                unlinkat(dirfd(d), e->d_name, 0);
        }
    closedir(d);
    return n;
}

static void new_file(void)
{
    static int number;
    snprintf(path, sizeof path, "%s/samples-%d.tier", scratch, number++);
    disk->read_error = disk->write_error = disk->hold = disk->held = disk->log_writes = 0;
    disk->loads = disk->steps = disk->stop = disk->logged = 0;
    for (int64_t i = 0; i < SAMPLES; i++)
        disk->stored[i] = 0;
}

static void end_file(void)
{
    controls(true);
    unlink(path);
}

static stoc_cache *new_disk(struct stoc_options options)
{
    new_file();
    return open_disk(options);
}

static void end_disk(stoc_cache *c)
{
    stoc_close(c);
    end_file();
}

/* sched_yield would take a processor from the children. */
static void wait_for_steps(uint64_t until)
{
    while (disk->steps < until)
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

static pid_t child(void (*act)(void *), void *argument)
{
    pid_t pid = fork();
    if (pid == 0) {
        failures = 0;
        if (setjmp(give_up) == 0)
            act(argument);
        fflush(stdout);
        _exit(failures ? 99 : 0);
    }
    return pid;
}

static int ended(pid_t pid)
{
    int status = -1;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}

/* ------------------------------------------------------------ tests */

TEST(lasts)
{
    for (int variable = 0; variable < 2; variable++) {
        stoc_cache *c = new_disk(variable ? VARIABLE : FIXED);
        EQUAL(count_hits(c, variable), 0);
        for (int64_t i = 0; i < SAMPLES; i++)
            EQUAL(put_one(c, i, variable), STOC_STORED);
        EQUAL(put_one(c, 3, variable), STOC_EXISTS);
        EQUAL(count_hits(c, variable), SAMPLES);
        EQUAL(controls(false), 1);
        stoc_close(c);
        EQUAL(controls(false), 0); /* the last user has removed it */
        c = open_disk(variable ? VARIABLE : FIXED);
        EQUAL(count_hits(c, variable), SAMPLES);
        struct stoc_stats stats = stats_of(c);
        EQUAL(stats.hits, SAMPLES);
        EQUAL(stats.stored, 0); /* counters are those of the control part */
        EQUAL(stats.ready, SAMPLES);
        EQUAL(stoc_verify(c, 0, SAMPLES, NULL, NULL), 0);
        EQUAL(put(c, 3, length(3, variable), 2, STOC_OVERWRITE), STOC_STORED);
        EQUAL(holds(c, 3, length(3, variable), 2), 1);
        EQUAL(stoc_clear(c, 1000), 0);
        stoc_close(c);
        c = open_disk(variable ? VARIABLE : FIXED);
        EQUAL(count_hits(c, variable), 0);
        end_disk(c);
    }
}

/* Copies of single samples only. */
TEST(copies_only)
{
    unsigned char bytes[BYTES];
    const void *view;
    size_t n;
    uint8_t hit;
    int64_t index = 1;
    uint64_t lengths;
    char text[300];
    struct stoc_info info = {.struct_bytes = sizeof info};
    stoc_cache *c = new_disk(FIXED);
    EQUAL(put_one(c, 1, false), STOC_STORED);
    EQUAL(stoc_view(c, 1, &view, &n), STOC_EINVAL);
    EQUAL(stoc_locate(c, 1, &view, &n), STOC_EINVAL);
    EQUAL(stoc_view(c, 1, &view, NULL), STOC_EINVAL);
    stoc_explain(c, STOC_EINVAL, 1, 0, text, sizeof text);
    CHECK(strstr(text, "on a disk"));
    EQUAL(stoc_view_slot(c, 1), STOC_EINVAL - 1);
    EQUAL(stoc_gather(c, &index, 1, -1, bytes, BYTES, &hit, 1), STOC_EINVAL);
    stoc_explain(c, STOC_EINVAL, 1, 0, text, sizeof text);
    CHECK(strstr(text, "on a disk") && strstr(text, "stoc_get"));
    EQUAL(stoc_lengths(c, &index, 1, &lengths), 1);
    EQUAL(lengths, BYTES);
    EQUAL(stoc_state(c, 1), STOC_STATE_READY);
    EQUAL(stoc_get(c, 1, bytes, 10, &n), STOC_ESCHEMA);
    EQUAL(n, BYTES);
    EQUAL(stoc_info(c, &info), 0);
    EQUAL(info.fd, -1);
    CHECK(!info.payload && strcmp(info.path, path) == 0);
    struct stoc_claim k; /* in pieces, the last one first */
    fill(bytes, BYTES, 2, 1);
    EQUAL(stoc_claim(c, 2, BYTES, 0, &k), STOC_STORED);
    EQUAL(stoc_write(&k, 1000, bytes + 1000, BYTES - 1000), STOC_STORED);
    EQUAL(stoc_write(&k, 0, bytes, 1000), STOC_STORED);
    EQUAL(stoc_publish(&k), STOC_STORED);
    EQUAL(has(c, 2, false), 1);
    end_disk(c);
}

static void refuses(const char *what, const char *where, struct stoc_options options, int code)
{
    stoc_cache *c;
    EQUAL(stoc_disk_open(where, &options, &c, &error), code);
    CHECK(!c);
    if (!strstr(error.message, what))
        COMPLAIN("%s: not in: %s", what, error.message);
}

TEST(bad_input)
{
    new_file();
    refuses("path", NULL, FIXED, STOC_EINVAL);
    refuses("path", "", FIXED, STOC_EINVAL);
    refuses("limit_bytes", path, DISK_OPTIONS(.sample_bytes = BYTES, .limit_bytes = 0), STOC_EINVAL);
    refuses("more than the size of 1000", path, DISK_OPTIONS(.sample_bytes = BYTES, .limit_bytes = 1000), STOC_EMEMORY);
    refuses("fingerprint", path, DISK_OPTIONS(.sample_bytes = BYTES, .fingerprint = NULL), STOC_EINVAL);
    refuses("fingerprint", path, DISK_OPTIONS(.sample_bytes = BYTES, .fingerprint = ""), STOC_EINVAL);
    refuses("directory", path, DISK_OPTIONS(.sample_bytes = BYTES, .directory = "/dev/shm"), STOC_EINVAL);
    refuses("policy", path, DISK_OPTIONS(.sample_bytes = BYTES, .policy = STOC_POLICY_COST), STOC_EINVAL);
    refuses("first-come", path, DISK_OPTIONS(.sample_bytes = 9, .variable = 1, .policy = STOC_POLICY_LRU), STOC_EINVAL);
    refuses("samples", path, DISK_OPTIONS(.sample_bytes = BYTES, .samples = 0), STOC_EINVAL);
    refuses("does not exist", "/dev/shm/none-of-ours/a.tier", FIXED, STOC_ENOENT);
    refuses("no regular file", scratch, FIXED, STOC_EPERM);
    refuses("free", path, DISK_OPTIONS(.sample_bytes = 1 << 20, .samples = 1 << 30, .limit_bytes = UINT64_C(1) << 46),
            STOC_EMEMORY);
    /* a file of the user stays as it is */
    FILE *f = fopen(path, "w");
    REQUIRE(f && fputs("the data of someone else", f) >= 0 && fclose(f) == 0);
    refuses("stays as it is", path, FIXED, STOC_EFORMAT);
    CHECK(access(path, F_OK) == 0);
    unlink(path);
    refuses("", path, (struct stoc_options){.struct_bytes = 7}, STOC_EINVAL);
    CHECK(access(path, F_OK) != 0); /* no call left a file */
    EQUAL(IN_CHILD(REQUIRE(chmod(scratch, 0500) == 0 && (geteuid() != 0 || setuid(65534) == 0));
                   refuses("permission denied", path, FIXED, STOC_EPERM)),
          0);
    REQUIRE(chmod(scratch, 0700) == 0);
}

/* Another dataset, or other settings: made again if no process uses the file. */
/* A network file system is refused, for a file that is there too, and nothing is made in it. */
TEST(on_a_network)
{
    static const struct {
        uint32_t number;
        const char *name;
    } all[] = {STOC_NETWORK_FILE_SYSTEMS};
    char where[64];
    new_file();
    for (int there = 0; there < 2; there++) {
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
            file_system = all[k].number;
            snprintf(where, sizeof where, "is on a network file system (%s)", all[k].name);
            refuses(where, path, FIXED, STOC_EINVAL);
            EQUAL(access(path, F_OK), there - 1);
        }
        file_system = 0;
        stoc_close(open_disk(FIXED));
    }
    end_file();
}

/* A file that is removed, replaced, truncated or overwritten under a handle is told, and no sample of it is wrong. */
TEST(taken_away)
{
    static const char *const all[] = {"removed", "replaced", "truncated", "overwritten"};
    for (int k = 0; k < 4; k++) {
        char where[256];
        stoc_cache *c = new_disk(FIXED);
        EQUAL(put_one(c, 1, false), STOC_STORED);
        EQUAL(stoc_disk_look(c, &error), 0);
        snprintf(where, sizeof where, "%s.other", path);
        int fd = open(k == 1 ? where : path, O_RDWR | O_CREAT, 0600);
        CHECK(fd >= 0);
        if (k == 0)
            unlink(path);
        if (k == 1)
            EQUAL(rename(where, path), 0);
        if (k == 2)
            EQUAL(ftruncate(fd, 5000), 0);
        if (k == 3)
            EQUAL(pwrite(fd, "xxxxxxxx", 8, 2000), 8); /* in the header */
        close(fd);
        EQUAL(stoc_disk_look(c, &error), STOC_EFORMAT);
        snprintf(where, sizeof where, "another program has %s %s", all[k], path);
        EQUAL(strcmp(error.message, where), 0);
        EQUAL(count_hits(c, false), k != 2);
        end_disk(c);
    }
}

TEST(other_settings)
{
    stoc_cache *c = new_disk(FIXED);
    EQUAL(put_one(c, 1, false), STOC_STORED);
    struct stoc_options other = FIXED;
    other.fingerprint = "another";
    refuses("another dataset", path, other, STOC_EFINGERPRINT);
    refuses("use it", path, other, STOC_EFINGERPRINT);
    refuses("other settings", path, DISK_OPTIONS(.sample_bytes = BYTES, .limit_bytes = UINT64_C(9) << 20), STOC_EFORMAT);
    EQUAL(has(c, 1, false), 1);
    stoc_close(c);
    c = open_disk(other);
    EQUAL(count_hits(c, false), 0);
    EQUAL(put_one(c, 1, false), STOC_STORED);
    stoc_close(c);
    c = open_disk(FIXED);
    EQUAL(count_hits(c, false), 0);
    stoc_close(c);
    int fd = open(path, O_WRONLY); /* its header was lost */
    static const char zeros[4096];
    EQUAL(pwrite(fd, zeros, sizeof zeros, 0), sizeof zeros);
    close(fd);
    c = open_disk(FIXED);
    EQUAL(put_one(c, 1, false), STOC_STORED);
    end_disk(c);
}

static void has_it_alone(void *argument)
{
    int fd = open(path, O_RDWR), *ready = argument;
    struct flock lock = {.l_type = F_WRLCK, .l_len = 1};
    EQUAL(fcntl(fd, F_OFD_SETLK, &lock), 0);
    EQUAL(write(ready[1], "x", 1), 1);
    pause();
}

/* A server has the file, or processes that see another /dev/shm. */
TEST(others_have_it)
{
    int ready[2];
    char byte;
    stoc_cache *c = new_disk(FIXED);
    EQUAL(put_one(c, 1, false), STOC_STORED);
    stoc_close(c);
    REQUIRE(pipe(ready) == 0);
    pid_t server = child(has_it_alone, ready);
    EQUAL(read(ready[0], &byte, 1), 1);
    refuses("has it for itself", path, FIXED, STOC_EEXIST);
    kill(server, SIGKILL);
    ended(server);
    c = open_disk(FIXED);
    EQUAL(has(c, 1, false), 1);
    EQUAL(controls(true), 1);
    char who[40];
    snprintf(who, sizeof who, "process %d (", getpid());
    refuses(who, path, FIXED, STOC_EEXIST);
    refuses("does not see", path, FIXED, STOC_EEXIST);
    EQUAL(has(c, 1, false), 1);
    stoc_close(c);
    close(ready[0]), close(ready[1]);
    end_file();
}

struct job {
    int number;
    bool variable;
    struct stoc_options options;
    bool later; /* in the background */
};

/* Loads what the file lacks, each sample once: by claims, as a program does that shares loads. */
static void load_all(void *argument)
{
    const struct job *job = argument;
    stoc_cache *c = open_disk(job->options);
    for (int64_t k = 0; k < SAMPLES; k++) {
        int64_t i = (k * 7 + job->number * 13) % SAMPLES;
        size_t n = length(i, job->variable);
        unsigned char bytes[MOST_BYTES];
        struct stoc_claim claim;
        if (has(c, i, job->variable) == 1)
            continue;
        int result = stoc_claim(c, i, n, STOC_WAIT, &claim);
        if (result == STOC_STORED) {
            atomic_fetch_add(&disk->loads, 1);
            fill(bytes, n, (uint64_t)i, 1);
            EQUAL(stoc_write(&claim, 0, bytes, n), STOC_STORED);
            EQUAL(stoc_publish(&claim), STOC_STORED);
        } else {
            EQUAL(result, STOC_EXISTS);
        }
        EQUAL(has(c, i, job->variable), 1);
    }
    stoc_close(c);
}

TEST(shared_by_processes)
{
    for (int variable = 0; variable < 2; variable++) {
        new_file();
        for (int round = 0; round < 2; round++) {
            pid_t pids[CHILDREN];
            for (int k = 0; k < CHILDREN; k++)
                pids[k] = child(load_all, &(struct job){k, variable, variable ? VARIABLE : FIXED, false});
            for (int k = 0; k < CHILDREN; k++)
                EQUAL(ended(pids[k]), 0);
            EQUAL(disk->loads, SAMPLES); /* also after all processes have ended */
            EQUAL(controls(false), 0);
        }
        end_file();
    }
}

/* Stores what the file lacks, and notes what it has stored. */
static void store_all(void *argument)
{
    const struct job *job = argument;
    stoc_cache *c = open_disk(job->options);
    for (int round = 0; round < (disk->stop ? 1 : 400); round++)
        for (int64_t k = 0; k < SAMPLES; k++) {
            int64_t i = (k * 11 + job->number * 5) % SAMPLES;
            int found = has(c, i, job->variable);
            if (found < 0)
                COMPLAIN("sample %ld has wrong bytes", i);
            if (found == 0 && job->later)
                put_later(c, i, job->variable);
            else if (found == 0 && put_one(c, i, job->variable) == STOC_STORED)
                atomic_store(&disk->stored[i], 1);
            atomic_fetch_add(&disk->steps, 1);
        }
    stoc_close(c);
}

/* What must hold after kills: what was stored is there, nothing is damaged, and every slot can be used. */
static void check_after_kill(const char *when, struct stoc_options options, bool variable, bool evicts)
{
    stoc_cache *c = open_disk(options);
    struct stoc_info info = info_of(c);
    int hits = count_hits(c, variable);
    for (int64_t i = 0; i < SAMPLES && !evicts; i++)
        if (disk->stored[i] && has(c, i, variable) != 1)
            COMPLAIN("%s: sample %ld is lost", when, i);
    struct stoc_stats stats = stats_of(c);
    EQUAL(stats.corrupt, 0);
    EQUAL(stats.ready, hits);
    for (int64_t i = 0; i < SAMPLES; i++)
        put_one(c, i, variable);
    int after = count_hits(c, variable), most = variable ? SAMPLES : (int)MIN(info.slots, SAMPLES);
    if (after != most)
        COMPLAIN("%s: %d hits of %d", when, after, most);
    stoc_close(c);
}

static void *store_in_thread(void *argument)
{
    stoc_cache *c = argument;
    for (int round = 0; round < 20; round++)
        for (int64_t i = 0; i < SAMPLES; i++)
            if (has(c, i, false) == 0)
                put_one(c, i, false);
    return NULL;
}

/* Threads of one handle, while evictions move slots. */
TEST(threads_of_a_handle)
{
    pthread_t threads[4];
    stoc_cache *c = new_disk(SMALL(STOC_POLICY_LRU));
    start_threads(threads, 4, store_in_thread, c);
    join_threads(threads, 4);
    struct stoc_stats stats = stats_of(c);
    EQUAL(stats.lost, 0);
    EQUAL(count_hits(c, false), 30);
    EQUAL(stoc_verify(c, 0, SAMPLES, NULL, NULL), 0);
    stoc_close(c);
    c = open_disk(SMALL(STOC_POLICY_LRU));
    EQUAL(count_hits(c, false), 30);
    end_disk(c);
}

/* ------------------------------------------------------------ writes in the background */

TEST(written_later)
{
    for (int variable = 0; variable < 2; variable++) {
        stoc_cache *c = new_disk(variable ? VARIABLE : FIXED);
        for (int64_t i = 0; i < SAMPLES; i++)
            EQUAL(put_later(c, i, variable), STOC_STORED);
        EQUAL(stoc_flush(c, 60000), 0);
        EQUAL(count_hits(c, variable), SAMPLES);
        EQUAL(put_later(c, 3, variable), STOC_EXISTS);
        EQUAL(stats_of(c).exists, 1);
        EQUAL(stoc_clear(c, 10000), STOC_STORED);
        for (int64_t i = 0; i < SAMPLES; i++)
            EQUAL(put_later(c, i, variable), STOC_STORED);
        stoc_close(c); /* writes them */
        c = open_disk(variable ? VARIABLE : FIXED);
        EQUAL(count_hits(c, variable), SAMPLES);
        EQUAL(put_later(c, SAMPLES, variable), STOC_EINDEX);
        EQUAL(stoc_set_later(c, 1, &(struct iovec){"x", MOST_BYTES + 1}, 1), STOC_ESCHEMA);
        EQUAL(stoc_set_later(c, 1, NULL, 1), STOC_EINVAL);
        end_disk(c);
    }
    EQUAL(stoc_set_later(NULL, 0, NULL, 0), STOC_ECLOSED);
    EQUAL(stoc_flush(NULL, 0), STOC_ECLOSED);
    EQUAL(stoc_disk_look(NULL, NULL), STOC_ECLOSED);
    stoc_cache *memory = make(NULL, OPTIONS(.samples = SAMPLES, .sample_bytes = BYTES));
    EQUAL(put_later(memory, 1, false), STOC_EINVAL);
    EQUAL(stoc_flush(memory, 0), 0);
    stoc_close(memory);
    stoc_cache *c = new_disk(SMALL(STOC_POLICY_FIRST_COME));
    for (int64_t i = 0; i < 30; i++)
        EQUAL(put_one(c, i, false), STOC_STORED);
    EQUAL(put_later(c, 40, false), STOC_FULL); /* without a copy */
    end_disk(c);
}

static void hold_writes(stoc_cache *c)
{
    disk->held = 0;
    disk->hold = 1;
    EQUAL(put_later(c, 0, false), STOC_STORED);
    while (!disk->held)
        sched_yield();
}

/* A disk that takes no byte holds up no put, and takes no more memory than the limit. */
TEST(slow_disk)
{
    stoc_cache *c = new_disk(FIXED);
    c->disk->queue.limit = 20 * (BYTES + sizeof(struct waiting));
    hold_writes(c);
    for (int64_t i = 1; i < 20; i++)
        EQUAL(put_later(c, i, false), STOC_STORED);
    for (int64_t i = 20; i < SAMPLES; i++)
        EQUAL(put_later(c, i, false), STOC_BUSY);
    EQUAL(stats_of(c).busy, SAMPLES - 20);
    EQUAL(stoc_flush(c, 1), STOC_ETIMEOUT);
    EQUAL(count_hits(c, false), 0);
    disk->hold = 0;
    EQUAL(stoc_flush(c, 60000), 0);
    EQUAL(count_hits(c, false), 20);
    c->disk->queue.limit = 10; /* less than a sample */
    EQUAL(put_later(c, 20, false), STOC_STORED);
    EQUAL(stoc_flush(c, 60000), 0);
    EQUAL(count_hits(c, false), 21);
    end_disk(c);
}

static void *clear_in_thread(void *argument)
{
    EQUAL(stoc_clear(argument, 60000), STOC_STORED);
    return NULL;
}

/* What was put before a clear does not come after it. */
TEST(cleared_before_the_write)
{
    pthread_t clearer;
    for (int other = 0; other < 2; other++) { /* the clear is by another handle */
        new_file();
        stoc_cache *c = open_disk(FIXED), *clears = other ? open_disk(FIXED) : c;
        hold_writes(c);
        for (int64_t i = 1; i < SAMPLES; i++)
            EQUAL(put_later(c, i, false), STOC_STORED);
        REQUIRE(pthread_create(&clearer, NULL, clear_in_thread, clears) == 0);
        while (!phase_clearing(load(phase_word(c))))
            sched_yield();
        disk->hold = 0;
        pthread_join(clearer, NULL);
        EQUAL(stoc_flush(c, 60000), 0);
        EQUAL(count_hits(c, false), 0);
        EQUAL(put_later(c, 5, false), STOC_STORED);
        EQUAL(stoc_flush(c, 60000), 0);
        EQUAL(count_hits(c, false), 1);
        if (other)
            stoc_close(clears);
        end_disk(c);
    }
}

static void puts_its_own(void *argument)
{
    stoc_cache *c = argument;
    EQUAL(stoc_flush(c, 0), 0); /* what waits is the parent's */
    disk->hold = 0;
    EQUAL(put_later(c, 40, false), STOC_STORED);
    EQUAL(stoc_flush(c, 60000), 0);
    EQUAL(has(c, 40, false), 1);
    stoc_close(c);
}

static void does_nothing(void *argument) { (void)argument; }

TEST_IF(!FOR_RACES, forks_with_a_queue)
{
    stoc_cache *c = new_disk(FIXED);
    int before = files_in(THREADS);
    hold_writes(c);
    for (int64_t i = 1; i < 30; i++)
        EQUAL(put_later(c, i, false), STOC_STORED);
    EQUAL(ended(child(puts_its_own, c)), 0);
    EQUAL(stoc_flush(c, 60000), 0);
    EQUAL(count_hits(c, false), 31);
    EQUAL(ended(child(does_nothing, c)), 0); /* a fork ends an idle writer; a sanitizer's thread stays */
    CHECK(files_in(THREADS) <= before);
    EQUAL(put_later(c, 50, false), STOC_STORED);
    stoc_close(c);
    c = open_disk(FIXED);
    EQUAL(count_hits(c, false), 32);
    end_disk(c);
}

static void *put_in_thread(void *argument)
{
    stoc_cache *c = argument;
    for (int round = 0; round < 20; round++)
        for (int64_t i = 0; i < SAMPLES; i++)
            put_later(c, i, false);
    return NULL;
}

/* Puts of several threads, while others fork and clear. */
TEST(puts_in_threads)
{
    pthread_t threads[3];
    stoc_cache *c = new_disk(SMALL(STOC_POLICY_LRU));
    start_threads(threads, 3, put_in_thread, c);
    for (int k = 0; k < 10; k++) {
        if (!FOR_RACES)
            EQUAL(ended(child(does_nothing, c)), 0);
        stoc_clear(c, 10000);
    }
    join_threads(threads, 3);
    for (int64_t i = 0; i < SAMPLES; i++)
        put_later(c, i, false);
    EQUAL(stoc_flush(c, 60000), 0);
    EQUAL(count_hits(c, false), 30);
    EQUAL(stats_of(c).lost, 0);
    end_disk(c);
}

TEST_IF(!FOR_RACES, killed_at_each_step)
{
    static const char *const points[] = {
        "disk.opening",  "disk.session",  "disk.named",    "register.locked", "register.done", "claim.entry",
        "claim.phase",   "claim.word",    "slot.intent",   "slot.taken",      "slot.named",    "extent.intent",
        "extent.taken",  "extent.named",  "write.half",    "write.done",      "publish.meta",  "publish.word",
        "persist.record", "publish.entry", "evict.listed", "evict.retired",  "evict.moved",   "evict.emptied",
        "evict.unlisted", "later.write", "disk.leaving", "disk.written",  "disk.left"};
    for (int kind = 0; kind < 4; kind++) /* 3: in the background */
        for (size_t p = 0; p < sizeof points / sizeof *points; p++) {
            bool variable = kind == 1, evicts = kind == 2;
            struct job job = {0, variable, variable ? VARIABLE : evicts ? SMALL(STOC_POLICY_FIFO) : FIXED, kind == 3};
            bool extent = strncmp(points[p], "extent", 6) == 0, slot = strncmp(points[p], "slot", 4) == 0;
            if ((kind != 3 && strcmp(points[p], "later.write") == 0) || (extent && !variable) || (slot && variable) || (strncmp(points[p], "evict", 5) == 0 && !evicts))
                continue;
            char fault[64], when[80];
            bool once = strncmp(points[p], "disk", 4) == 0 || strncmp(points[p], "register", 8) == 0;
            snprintf(fault, sizeof fault, "%s@%d=kill", points[p], once ? 1 : 7);
            snprintf(when, sizeof when, "kind %d, %s", kind, points[p]);
            new_file();
            disk->stop = 1; /* one round */
            setenv("STOCACHED_FAULT", fault, 1);
            pid_t pid = child(store_all, &job);
            int status = ended(pid);
            unsetenv("STOCACHED_FAULT");
            if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
                COMPLAIN("%s: the child ended with %#x", when, status);
            check_after_kill(when, job.options, variable, evicts);
            EQUAL(controls(false), 0);
            end_file();
        }
}

TEST_IF(!FOR_RACES, killed_at_random)
{
    unsigned seed = 1;
    for (int kind = 0; kind < 3; kind++) {
        bool variable = kind == 1, evicts = kind == 2;
        struct stoc_options options = variable ? VARIABLE : evicts ? SMALL(STOC_POLICY_RANDOM) : FIXED;
        new_file();
        for (int round = 0; round < 8; round++) {
            pid_t pids[CHILDREN];
            uint64_t steps = disk->steps;
            struct job jobs[CHILDREN];
            for (int k = 0; k < CHILDREN; k++) {
                jobs[k] = (struct job){k + round, variable, options, k % 2};
                pids[k] = child(store_all, &jobs[k]);
            }
            uint64_t until = steps + 1 + (uint64_t)rand_r(&seed) % 200;
            wait_for_steps(until);
            for (int k = 0; k < CHILDREN; k++) {
                kill(pids[k], SIGKILL);
                ended(pids[k]);
            }
            if (round % 2)
                check_after_kill("random kill", options, variable, evicts);
        }
        end_file();
    }
}

/* ------------------------------------------------------------ losses of power */

/* The file as it may be after a loss of power: of the writes since the last one some are lost, some are torn, and they
 * came in any order. */
static void lose_power(unsigned *seed)
{
    char next[160];
    unsigned char *bytes = malloc(16 << 20);
    int fd = open(path, O_RDONLY);
    /* what the file held before these writes */
    char before[160];
    snprintf(before, sizeof before, "%s.durable", path);
    int from = open(before, O_RDONLY);
    ssize_t n = read(from, bytes, 16 << 20);
    REQUIRE(n > 0);
    uint64_t logged = MIN(disk->logged, sizeof disk->log / sizeof *disk->log);
    for (uint64_t k = 0; k < logged; k++) { /* a random order */
        uint64_t other = (uint64_t)rand_r(seed) % logged;
        struct written *w = &disk->log[rand_r(seed) % 2 ? k : other];
        if (!w->whole || rand_r(seed) % 4 == 0)
            continue;
        size_t length = rand_r(seed) % 4 ? w->length : (size_t)rand_r(seed) % (w->length + 1);
        if (w->at + length <= (uint64_t)n)
            memcpy(bytes + w->at, w->data, length);
    }
    controls(true); /* /dev/shm is empty after it */
    snprintf(next, sizeof next, "%s.next", path);
    int to = open(next, O_RDWR | O_CREAT | O_TRUNC, 0600);
    REQUIRE(to >= 0 && write(to, bytes, (size_t)n) == n && rename(next, path) == 0);
    int durable = open(before, O_WRONLY | O_TRUNC);
    REQUIRE(write(durable, bytes, (size_t)n) == n);
    close(fd), close(from), close(to), close(durable);
    free(bytes);
}

static void copy_file(const char *from, const char *to)
{
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    struct stat file;
    REQUIRE(in >= 0 && out >= 0 && fstat(in, &file) == 0 && file.st_size > 0);
    for (ssize_t n; file.st_size > 0; file.st_size -= n)
        REQUIRE((n = sendfile(out, in, NULL, (size_t)file.st_size)) > 0);
    close(in), close(out);
}

TEST_IF(FOR_MEMORY, power_losses)
{
    unsigned seed = 7;
    for (int kind = 0; kind < 3; kind++) {
        bool variable = kind == 1, evicts = kind == 2;
        struct stoc_options options = variable ? VARIABLE : evicts ? SMALL(STOC_POLICY_FIFO) : FIXED;
        if (!evicts)
            options.limit_bytes = UINT64_C(3) << 20; /* the whole file is copied four times in a round */
        char durable[160];
        uint64_t torn = 0;
        int served = 0, rounds = 25;
#ifdef __SANITIZE_ADDRESS__ /* it is three times as slow */
        rounds = evicts ? 25 : 12;
#endif
        new_file();
        stoc_close(open_disk(options));
        snprintf(durable, sizeof durable, "%s.durable", path);
        copy_file(path, durable);
        for (int round = 0; round < rounds; round++) {
            pid_t pids[2];
            struct job jobs[2];
            for (uint64_t k = 0; k < MIN(disk->logged, sizeof disk->log / sizeof *disk->log); k++)
                atomic_store(&disk->log[k].whole, 0);
            disk->logged = 0;
            disk->log_writes = 1;
            for (int k = 0; k < 2; k++) {
                jobs[k] = (struct job){k + round, variable, options, false};
                pids[k] = child(store_all, &jobs[k]);
            }
            uint64_t until = disk->steps + 30 + (uint64_t)rand_r(&seed) % 100;
            wait_for_steps(until);
            for (int k = 0; k < 2; k++) {
                kill(pids[k], SIGKILL);
                ended(pids[k]);
            }
            disk->log_writes = 0;
            lose_power(&seed);
            stoc_cache *c = open_disk(options);
            served += count_hits(c, variable); /* complains about wrong bytes */
            torn += stats_of(c).corrupt;
            EQUAL(stoc_verify(c, 0, SAMPLES, NULL, NULL), 0); /* those are gone */
            stoc_close(c);
            copy_file(path, durable);
            if (round % 8 == 7) { /* not all of them for ever */
                c = open_disk(options);
                EQUAL(stoc_clear(c, 1000), 0);
                stoc_close(c);
                copy_file(path, durable);
            }
        }
        printf("  kind %d: %d hits after losses of power, %lu torn samples were noticed\n", kind, served, torn);
        CHECK(served > (evicts ? 0 : 100) && torn > 0);
        unlink(durable);
        end_file();
    }
}

/* Bytes that changed on the disk are a miss, once. */
TEST_IF(!FOR_RACES, changed_bytes)
{
    for (int variable = 0; variable < 2; variable++) {
        stoc_cache *c = new_disk(variable ? VARIABLE : FIXED);
        for (int64_t i = 0; i < SAMPLES; i++)
            EQUAL(put_one(c, i, variable), STOC_STORED);
        struct stoc_info info = info_of(c);
        int fd = open(path, O_RDWR);
        unsigned char byte;
        REQUIRE(pread(fd, &byte, 1, (off_t)info.payload_offset + 64 + 5) == 1);
        byte ^= 1;
        REQUIRE(pwrite(fd, &byte, 1, (off_t)info.payload_offset + 64 + 5) == 1);
        int64_t bad = -1;
        EQUAL(stoc_verify(c, 0, SAMPLES, NULL, &bad), 1);
        EQUAL(has(c, bad, variable), 0);
        EQUAL(stoc_state(c, bad), STOC_STATE_EMPTY);
        EQUAL(stats_of(c).corrupt, 2);
        EQUAL(put_one(c, bad, variable), STOC_STORED);
        EQUAL(count_hits(c, variable), SAMPLES);
        if (!variable) { /* two samples with one place */
            uint64_t record[2];
            stoc_close(c);
            unsigned char header[4096];
            REQUIRE(pread(fd, header, sizeof header, 0) == sizeof header);
            uint64_t index = header64(header, STOC_HEADER_INDEX_OFFSET);
            REQUIRE(pread(fd, record, 16, (off_t)(index + 16 * 4)) == 16);
            REQUIRE(pwrite(fd, record, 16, (off_t)(index + 16 * 9)) == 16);
            record[0] |= UINT64_MAX << 40; /* a place outside of the payload */
            REQUIRE(pwrite(fd, record, 16, (off_t)(index + 16 * 10)) == 16);
            c = open_disk(FIXED);
            EQUAL(count_hits(c, false), SAMPLES - 3);
            EQUAL(has(c, 4, false), 0);
            for (int64_t i = 0; i < SAMPLES; i++)
                put_one(c, i, false);
            EQUAL(count_hits(c, false), SAMPLES);
        }
        close(fd);
        end_disk(c);
    }
}

/* A record of which only the first word came, without its checksum: it looks like an empty sample. */
TEST_IF(!FOR_RACES, half_a_record)
{
    unsigned char header[4096];
    uint64_t record[2] = {0}, zero = 0;
    stoc_cache *c = new_disk(VARIABLE);
    EQUAL(put_one(c, 20, true), STOC_STORED);
    stoc_close(c);
    int fd = open(path, O_RDWR);
    REQUIRE(pread(fd, header, sizeof header, 0) == sizeof header);
    off_t at = (off_t)header64(header, STOC_HEADER_INDEX_OFFSET) + 16 * 20,
          sum = (off_t)header64(header, STOC_HEADER_SUMS_OFFSET) + 8 * 20;
    REQUIRE(pread(fd, record, 8, at) == 8 && record[0] != 0);
    REQUIRE(pwrite(fd, record, 16, at) == 16 && pwrite(fd, &zero, 8, sum) == 8);
    close(fd);
    c = open_disk(VARIABLE);
    EQUAL(has(c, 20, true), 0);
    EQUAL(put_one(c, 20, true), STOC_STORED);
    EQUAL(has(c, 20, true), 1);
    end_disk(c);
}

/* ------------------------------------------------------------ disks that fail */

TEST_IF(!FOR_RACES, fails)
{
    stoc_cache *c = new_disk(FIXED);
    for (int64_t i = 0; i < SAMPLES / 2; i++)
        EQUAL(put_one(c, i, false), STOC_STORED);
    disk->read_error = EIO;
    EQUAL(has(c, 1, false), 0);
    EQUAL(c->disk->pause, FIRST_PAUSE_NS);
    struct stoc_stats stats = {.struct_bytes = sizeof stats};
    EQUAL(stoc_stats(c, &stats), 0);
    EQUAL(stats.passed, 1);
    uint64_t until = c->disk->out_until;
    CHECK(until != 0);
    disk->read_error = 0;
    EQUAL(has(c, 1, false), 0); /* it is left out */
    EQUAL(put_one(c, 40, false), STOC_FULL);
    EQUAL(c->disk->out_until, until);
    c->disk->out_until = 1; /* the pause is over */
    disk->read_error = EIO;
    EQUAL(has(c, 1, false), 0);
    EQUAL(c->disk->pause, 2 * FIRST_PAUSE_NS); /* a try that fails */
    c->disk->out_until = 1;
    disk->read_error = 0;
    EQUAL(has(c, 1, false), 1);
    c->disk->back_at = now_ns() - FORGIVEN_NS;
    disk->read_error = EIO;
    EQUAL(has(c, 1, false), 0);
    EQUAL(c->disk->pause, FIRST_PAUSE_NS); /* a failure long after the last one */
    c->disk->out_until = 1;
    disk->read_error = 0;
    EQUAL(has(c, 1, false), 1);
    disk->read_error = EIO;
    EQUAL(has(c, 1, false), 0);
    EQUAL(c->disk->pause, 2 * FIRST_PAUSE_NS); /* a short time after it */
    disk_failed(c); /* another call that has begun before */
    EQUAL(c->disk->pause, 2 * FIRST_PAUSE_NS);
    disk->read_error = 0;
    c->disk->out_until = 1;
    EQUAL(has(c, SAMPLES - 1, false), 0); /* a miss reads nothing: it neither closes the breaker nor delays others */
    EQUAL(has(c, 1, false), 1);
    EQUAL(c->disk->out_until, 0);
    EQUAL(count_hits(c, false), SAMPLES / 2);

    disk->write_error = EIO;
    EQUAL(put_one(c, 40, false), STOC_FULL);
    CHECK(c->disk->out_until != 0);
    EQUAL(has(c, 1, false), 0);
    c->disk->out_until = 1;
    disk->write_error = 0;
    EQUAL(put_one(c, 40, false), STOC_STORED);

    disk->write_error = ENOSPC; /* hits go on */
    EQUAL(put_one(c, 41, false), STOC_FULL);
    CHECK(c->disk->full_until != 0);
    EQUAL(count_hits(c, false), SAMPLES / 2 + 1);
    disk->write_error = 0;
    EQUAL(put_one(c, 41, false), STOC_FULL);
    c->disk->full_until = 0;
    EQUAL(put_one(c, 41, false), STOC_STORED);
    EQUAL(count_hits(c, false), SAMPLES / 2 + 2);
    stoc_close(c);
    c = open_disk(FIXED);
    EQUAL(count_hits(c, false), SAMPLES / 2 + 2);
    end_disk(c);
}

static void below_a_limit(void *argument)
{
    stoc_cache *c = argument;
    struct rlimit limit = {(UINT64_C(2) << 20) + 4 * BYTES, RLIM_INFINITY};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    signal(SIGXFSZ, SIG_DFL);
    int stored = 0, full = 0;
    for (int64_t i = 0; i < SAMPLES; i++) {
        int result = put_one(c, i, false);
        stored += result == STOC_STORED;
        full += result == STOC_FULL;
        c->disk->full_until = 0;
    }
    EQUAL(stored, 4);
    EQUAL(full, SAMPLES - 4);
    EQUAL(count_hits(c, false), 4);
    new_file(); /* a new file would be too large */
    refuses("RLIMIT_FSIZE", path, FIXED, STOC_EMEMORY);
}

/* A limit on the size of files is no signal. */
TEST_IF(!FOR_RACES, file_size_limit)
{
    stoc_cache *c = new_disk(FIXED);
    EQUAL(ended(child(below_a_limit, c)), 0);
    EQUAL(count_hits(c, false), 4);
    end_disk(c);
}

/* A file system that becomes full: a small tmpfs. */
TEST_IF(!FOR_RACES, full_file_system)
{
    char where[100], other[200];
    snprintf(where, sizeof where, "%s/full", scratch);
    REQUIRE(mkdir(where, 0700) == 0);
    if (mount("stocached", where, "tmpfs", 0, "size=9m") != 0)
        SKIP("no right to mount a tmpfs");
    new_file();
    snprintf(path, sizeof path, "%s/a.tier", where);
    stoc_cache *c = open_disk(DISK_OPTIONS(.sample_bytes = 1 << 16, .limit_bytes = UINT64_C(7) << 20));
    snprintf(other, sizeof other, "dd if=/dev/zero of=%s/b bs=1M count=6 2>/dev/null", where);
    if (system(other) != 0)
        COMPLAIN("dd failed");
    int stored = 0;
    for (int64_t i = 0; i < SAMPLES; i++) {
        int result = put(c, i, 1 << 16, 1, 0);
        CHECK(result == STOC_STORED || result == STOC_FULL);
        stored += result == STOC_STORED;
        c->disk->full_until = 0;
    }
    CHECK(stored > 0 && stored < SAMPLES);
    for (int64_t i = 0; i < SAMPLES; i++)
        CHECK(holds(c, i, 1 << 16, 1) >= 0);
    EQUAL(stats_of(c).ready, stored);
    stoc_close(c);
    c = open_disk(DISK_OPTIONS(.sample_bytes = 1 << 16, .limit_bytes = UINT64_C(7) << 20));
    int hits = 0;
    for (int64_t i = 0; i < SAMPLES; i++)
        hits += holds(c, i, 1 << 16, 1);
    EQUAL(hits, stored);
    end_disk(c);
    EQUAL(umount(where), 0);
}

/* Samples of several calls, the last one short; and a sample of no bytes. */
TEST_IF(!FOR_RACES, large_samples)
{
    enum { LARGE = 3 * 1024 * 1024 + 77 };
    unsigned char *bytes = malloc(LARGE), *back = malloc(LARGE);
    size_t n;
    stoc_cache *c = new_disk(DISK_OPTIONS(.samples = 4, .sample_bytes = LARGE, .variable = 1, .limit_bytes = UINT64_C(20) << 20));
    for (int64_t i = 0; i < 3; i++) {
        fill(bytes, LARGE, (uint64_t)i, 1);
        EQUAL(stoc_set(c, i, bytes, i ? LARGE : 0, 0), STOC_STORED);
    }
    for (int64_t i = 0; i < 3; i++) {
        fill(bytes, LARGE, (uint64_t)i, 1);
        EQUAL(stoc_get(c, i, back, LARGE, &n), STOC_HIT);
        CHECK(n == (i ? LARGE : 0) && memcmp(bytes, back, n) == 0);
    }
    stoc_close(c);
    free(bytes), free(back);
    end_file();
}

/* ------------------------------------------------------------ fork */

static int go[2];

static void uses_it(void *argument)
{
    stoc_cache *c = argument;
    EQUAL(count_hits(c, false), 1);
    EQUAL(put_one(c, 2, false), STOC_STORED);
    EQUAL(stats_of(c).clients_live, 2);
    stoc_close(c);
}

static void uses_it_late(void *argument)
{
    stoc_cache *c = argument;
    char byte;
    EQUAL(read(go[0], &byte, 1), 1);
    EQUAL(count_hits(c, false), 0);
    EQUAL(put_one(c, 5, false), STOC_FULL);
    stoc_close(c);
}

static void uses_it_and_stays(void *argument)
{
    stoc_cache *c = argument;
    char byte;
    EQUAL(has(c, 1, false), 1);
    EQUAL(read(go[0], &byte, 1), 1);
    EQUAL(put_one(c, 3, false), STOC_STORED);
    EQUAL(count_hits(c, false), 3);
    stoc_close(c);
}

TEST_IF(!FOR_RACES, forked_children)
{
    new_file();
    REQUIRE(pipe(go) == 0);
    stoc_cache *c = open_disk(FIXED);
    EQUAL(put_one(c, 1, false), STOC_STORED);
    EQUAL(ended(child(uses_it, c)), 0);
    EQUAL(count_hits(c, false), 2);
    /* the parent leaves before the first call of the child */
    pid_t late = child(uses_it_late, c);
    stoc_close(c);
    EQUAL(controls(false), 0);
    c = open_disk(FIXED); /* another control part */
    EQUAL(write(go[1], "x", 1), 1);
    EQUAL(ended(late), 0);
    EQUAL(count_hits(c, false), 2);
    /* and after it: then the child is the last user */
    pid_t stays = child(uses_it_and_stays, c);
    while (stats_of(c).clients_live < 2)
        sched_yield();
    stoc_close(c);
    EQUAL(controls(false), 1);
    EQUAL(write(go[1], "x", 1), 1);
    EQUAL(ended(stays), 0);
    EQUAL(controls(false), 0);
    c = open_disk(FIXED);
    EQUAL(count_hits(c, false), 3);
    stoc_close(c);
    close(go[0]), close(go[1]);
    end_file();
}

/* The server of a file, and a process that was alone, make old control parts useless. */
TEST_IF(!FOR_RACES, old_control_part)
{
    new_file();
    struct job job = {0, false, FIXED, false};
    disk->stop = 1;
    setenv("STOCACHED_FAULT", "publish.entry@9=kill", 1);
    ended(child(store_all, &job));
    unsetenv("STOCACHED_FAULT");
    EQUAL(controls(false), 1);
    unsigned char session[16] = {1, 2, 3};
    int fd = open(path, O_RDWR); /* what a server does first */
    REQUIRE(pwrite(fd, session, sizeof session, STOC_DISK_SESSION) == sizeof session);
    close(fd);
    stoc_cache *c = open_disk(FIXED);
    EQUAL(controls(false), 2); /* the old one is of no use, and no program opens it */
    EQUAL(count_hits(c, false), 9);
    EQUAL(stats_of(c).stored, 0); /* so this one is new */
    end_disk(c);
}

void set_up(void)
{
    disk = mmap(NULL, sizeof *disk, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

/*
 * Makes the files of a folder come at a rate, for all processes together: LD_PRELOAD=slow_reads.so.
 *
 * SLOW_READS names a file of 4 KiB that all processes map. It begins with the bytes a second (0: no limit), and the time
 * when the source has sent all earlier bytes; then comes the folder, with a NUL. A read waits until its bytes are there.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 65536 }; /* descriptors */

static struct source {
    uint64_t rate, free_at; /* nanoseconds */
    char folder[];
} *source;
static uint8_t slow[MOST]; /* descriptors of files in the folder */
static int (*next_open)(const char *, int, ...), (*next_open64)(const char *, int, ...);
static ssize_t (*next_read)(int, void *, size_t);

__attribute__((constructor)) static void begin(void)
{
    next_open = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    next_open64 = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
    next_read = (ssize_t(*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    const char *path = getenv("SLOW_READS");
    int fd = path ? next_open(path, O_RDWR) : -1;
    if (fd < 0)
        return;
    void *mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    source = mapped == MAP_FAILED ? NULL : mapped;
    close(fd);
}

static int noted(int fd, const char *path)
{
    if (fd >= 0 && fd < MOST)
        slow[fd] = source && !strncmp(path, source->folder, strlen(source->folder));
    return fd;
}

#define OPEN(name, next)                          \
    int name(const char *path, int flags, ...)    \
    {                                             \
        va_list more;                             \
        va_start(more, flags);                    \
        int mode = va_arg(more, int);             \
        va_end(more);                             \
        return noted(next(path, flags, mode), path); \
    }
OPEN(open, next_open)
OPEN(open64, next_open64)

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

ssize_t read(int fd, void *to, size_t n)
{
    ssize_t got = next_read(fd, to, n);
    if (got <= 0 || fd < 0 || fd >= MOST || !slow[fd])
        return got;
    uint64_t rate = __atomic_load_n(&source->rate, __ATOMIC_RELAXED);
    if (!rate)
        return got;
    uint64_t old = __atomic_load_n(&source->free_at, __ATOMIC_RELAXED), free_at, start = now();
    do
        free_at = (old > start ? old : start) + (uint64_t)got * 1000000000u / rate;
    while (!__atomic_compare_exchange_n(&source->free_at, &old, free_at, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    struct timespec until = {(time_t)(free_at / 1000000000u), (long)(free_at % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL)) {
    }
    return got;
}

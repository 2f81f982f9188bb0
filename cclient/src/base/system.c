/*
 * system.c - system calls whose glibc wrappers are newer than 2.17, and loops around calls that
 * return early.
 */
#include "base.h"

/* fstat and lstat bind GLIBC_2.33. The system call fills in the same struct on 64-bit systems. */
INTERNAL int stat_fd(int fd, struct stat *st) { return (int)syscall(SYS_newfstatat, fd, "", st, AT_EMPTY_PATH); }

INTERNAL int stat_path(const char *path, struct stat *st)
{
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}

/* Makes a memfd that is not executable, if the kernel has the flag (6.3): some kernels are set to
 * refuse memfds without it. */
INTERNAL int memfd(const char *name)
{
    int fd = (int)syscall(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING | 8u /* MFD_NOEXEC_SEAL */);
    return fd >= 0 || errno != EINVAL ? fd : (int)syscall(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

INTERNAL uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

INTERNAL uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

INTERNAL void sleep_ns(uint64_t ns)
{
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    nanosleep(&t, NULL);
}

/* For words that processes share. */
INTERNAL long futex_wait(_Atomic uint32_t *word, uint32_t value, uint32_t timeout_ms)
{
    struct timespec t = {.tv_sec = timeout_ms / 1000, .tv_nsec = (long)(timeout_ms % 1000) * 1000000};
    return syscall(SYS_futex, word, FUTEX_WAIT, value, &t, NULL, 0);
}
INTERNAL void futex_wake(_Atomic uint32_t *word, int most)
{
    syscall(SYS_futex, word, FUTEX_WAKE, most, NULL, NULL, 0);
}

INTERNAL int random_bytes(void *data, size_t length)
{
#ifdef SYS_getrandom
    if (syscall(SYS_getrandom, data, length, 0) == (long)length)
        return 0;
#endif
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, data, length);
    close(fd);
    return n == (ssize_t)length ? 0 : -1;
}

/* The most that this process may write into one file: RLIMIT_FSIZE. */
INTERNAL uint64_t most_file_bytes(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur : UINT64_MAX;
}

/* Reads exactly length bytes, or fewer if the file ends. Returns how many, or -1. */
INTERNAL int64_t pread_all(int fd, void *data, size_t length, uint64_t offset)
{
    size_t done = 0;
    while (done < length) {
        ssize_t n = pread(fd, (char *)data + done, length - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        done += (size_t)n;
    }
    return (int64_t)done;
}

/* Writes all bytes: 0, or -1 with errno. After a short write it goes on: the next write sets
 * errno. */
INTERNAL int pwrite_all(int fd, const void *data, size_t length, uint64_t offset)
{
    size_t done = 0;
    while (done < length) {
        ssize_t n = pwrite(fd, (const char *)data + done, length - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            if (n == 0)
                errno = ENOSPC;
            return -1;
        }
        done += (size_t)n;
    }
    return 0;
}

/*
 * Allocates the pages of a range: 0, or -1 with errno. Works in steps, because a signal makes the
 * kernel undo a call. grant (NULL: no limit) returns how many more bytes it may take. It asks at
 * the beginning, each time that these are used up, and at the end. 0 before the end stops it with
 * ECANCELED.
 */
INTERNAL int allocate(int fd, uint64_t offset, uint64_t length,
                      uint64_t (*grant)(void *context, uint64_t done, uint64_t total), void *context)
{
    uint64_t step = ALLOCATE_STEP, granted = grant ? 0 : length;
    for (uint64_t done = 0;;) {
        if (grant && (granted == 0 || done == length) && (granted = grant(context, done, length)) == 0 &&
            done < length) {
            errno = ECANCELED;
            return -1;
        }
        if (done == length)
            return 0;
        uint64_t n = MIN(MIN(step, granted), length - done);
        if (fallocate(fd, 0, (off_t)(offset + done), (off_t)n) != 0) {
            if (errno == EINTR) {
                /* otherwise a timer that fires more often than a step takes would keep us here */
                step = MAX(step / 2, MIB);
                continue;
            }
            return -1;
        }
        done += n, granted -= n;
    }
}

/* Reads a small text file, such as one of /proc. NUL-terminates. Returns its length or -1. */
INTERNAL int64_t read_text(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    size_t done = 0;
    while (done < size - 1) {
        ssize_t n = read(fd, text + done, size - 1 - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    close(fd);
    text[done] = 0;
    return (int64_t)done;
}

/* Parses an unsigned decimal number, and stops at the first other byte. UINT64_MAX on overflow.
 * (strtoull binds a new symbol where C23 is the default.) */
INTERNAL uint64_t parse_number(const char **at)
{
    uint64_t n = 0;
    for (; **at >= '0' && **at <= '9'; (*at)++) {
        uint64_t digit = (uint64_t)(**at - '0');
        if (n > (UINT64_MAX - digit) / 10)
            n = UINT64_MAX;
        else
            n = n * 10 + digit;
    }
    return n;
}

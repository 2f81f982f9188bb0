/*
 * base.h - what every part may use: fault points, errors, system calls, checksums, memory
 * copies, random numbers.
 *
 * Includes internal.h. Knows nothing of segments.
 */
#ifndef STOCACHED_BASE_H
#define STOCACHED_BASE_H

#include "../internal.h"
#include "processor.h"

/* fault.c */
#ifdef STOC_FAULT_POINTS
INTERNAL void fault_at(const char *point);
#define STOC_FAULT(point) fault_at(point)
#else
#define STOC_FAULT(point) ((void)0)
#endif

/* error.c */
INTERNAL size_t character(const unsigned char *text, size_t n, uint32_t *point);
INTERNAL void make_printable(char *text, size_t n);
__attribute__((format(printf, 4, 5))) INTERNAL int fail(struct stoc_error *error, int code, int os_error,
                                                        const char *format, ...);
/* EINVAL if a struct of the caller is not as long as this library knows it. type: its name without stoc_. what: several of
 * it. before: the message begins with it. */
INTERNAL int check_struct(uint64_t struct_bytes, size_t known, const char *type, const char *what, const char *before,
                          struct stoc_error *error);
INTERNAL void no_error(struct stoc_error *error);
/* Clears error and *out, a pointer to what a call opens. EINVAL: out is NULL, or what it opens it from. */
INTERNAL int begin_open(void *out, const char *what, const void *from, const char *missing, struct stoc_error *error);
INTERNAL int invalid(int why);
INTERNAL int fail_system(struct stoc_error *error, const char *what, const char *path);
INTERNAL const char *size_text(uint64_t bytes, char *text);

/* system.c */
#ifndef SYS_memfd_create
#define SYS_memfd_create (__x86_64__ ? 319 : 279)
#endif
#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 1u
#define MFD_ALLOW_SEALING 2u
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_SEAL_SEAL 1
#define F_SEAL_SHRINK 2
#define F_SEAL_GROW 4
#endif
#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif
#ifndef O_TMPFILE
#define O_TMPFILE (020000000 | O_DIRECTORY)
#endif
#ifndef AT_EMPTY_PATH
#define AT_EMPTY_PATH 0x1000
#endif
#ifndef TMPFS_MAGIC
#define TMPFS_MAGIC 0x01021994
#endif

INTERNAL int stat_fd(int fd, struct stat *st);
INTERNAL int stat_path(const char *path, struct stat *st);
INTERNAL int memfd(const char *name);
INTERNAL uint64_t clock_ns(clockid_t clock);
INTERNAL uint64_t now_ns(void);
INTERNAL void sleep_ns(uint64_t ns);
INTERNAL long futex_wait(_Atomic uint32_t *word, uint32_t value, uint32_t timeout_ms);
INTERNAL void futex_wake(_Atomic uint32_t *word, int most);
INTERNAL int random_bytes(void *data, size_t length);
INTERNAL uint64_t most_file_bytes(void);
INTERNAL int64_t pread_all(int fd, void *data, size_t length, uint64_t offset);
INTERNAL int pwrite_all(int fd, const void *data, size_t length, uint64_t offset);

#define ALLOCATE_STEP (64 * MIB) /* about 25 ms: short against timers, long against a system call */
INTERNAL int allocate(int fd, uint64_t offset, uint64_t length,
                      uint64_t (*grant)(void *context, uint64_t done, uint64_t total), void *context);
INTERNAL int64_t read_text(const char *path, char *text, size_t size);
INTERNAL uint64_t parse_number(const char **at);

/* crc.c */
typedef uint32_t crc_function(uint32_t crc, const void *data, size_t length);
INTERNAL crc_function *crc_choose(void);

/* copy.c */
typedef void copy_function(void *dst, const void *src, size_t n);
INTERNAL void copy_plain(void *dst, const void *src, size_t n);

/* Random numbers: splitmix64 is mix(seed + (n + 1) * GOLDEN). */
#define GOLDEN UINT64_C(0x9E3779B97F4A7C15)
__extension__ typedef unsigned __int128 wide;

static inline uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

/* The bucket of a sample: docs/spec/order.md, "Nodes". */
#define BUCKETS (STOC_KEPT_BYTES * 8)
static inline uint64_t bucket_of(uint64_t index) { return mix(index + GOLDEN) % BUCKETS; }

/* A number below n, of 64 random bits. */
static inline uint64_t below(uint64_t x, uint64_t n) { return (uint64_t)((wide)x * n >> 64); }

#endif

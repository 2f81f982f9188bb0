/*
 * huge_pages.c - huge pages: blocks of 2 MiB that processors map by one entry, so that a random read seldom waits for page tables, and no process has page tables to fill.
 *
 * tmpfs gives them by its mount option huge=, which /dev/shm is mounted without; but since Linux 6.1 a process that maps a file may ask for each block (MADV_COLLAPSE), whatever the mount
 * and /sys/kernel/mm/transparent_hugepage/shmem_enabled say, unless that is `deny`. docs/spec/segment.md, Huge pages, has what it is worth.
 * All of this is speed alone: where the kernel refuses, pages are small and everything else is the same.
 */
#include "protocol.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define HUGE_BYTES (2 * MIB)               /* of amd64, and of arm64 with pages of 4 KiB; elsewhere the kernel finds nothing to do */
#define HUGE_SLOW_NS UINT64_C(20000000)    /* a block that took longer was assembled from fragments */
#define HUGE_PAUSE 50                      /* after a refusal or a slow block, wait this many times as long as it took: asking costs at most 2 % of the time */
/* Whether the system's administrator has huge pages at all. One who set `never` means us, too, although the kernel would do what we ask. */
INTERNAL bool huge_pages_allowed(void)
{
    char text[64];
    return read_text("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text) > 0 && !strstr(text, "[never]");
}

/* Maps a part of a file at an address that huge pages of the file can be mapped at. MAP_FAILED with errno as mmap. offset: a multiple of HUGE_BYTES. */
INTERNAL void *map_file(int fd, uint64_t offset, uint64_t length, int protection)
{
    uint64_t bytes = ROUND_UP(length, (uint64_t)sysconf(_SC_PAGESIZE)), room = bytes + HUGE_BYTES;
    if (bytes < HUGE_BYTES)
        return mmap(NULL, length, protection, MAP_SHARED, fd, (off_t)offset);
    unsigned char *first = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (first == MAP_FAILED)
        return MAP_FAILED;
    munlock(first, room); /* or it counts against RLIMIT_MEMLOCK beside what takes its place */
    unsigned char *at = first + (-(uintptr_t)first & (HUGE_BYTES - 1));
    void *map = mmap(at, length, protection, MAP_SHARED | MAP_FIXED, fd, (off_t)offset);
    int number = errno;
    if (map == MAP_FAILED) {
        munmap(first, room);
    } else {
        if (at != first)
            munmap(first, (size_t)(at - first));
        munmap(at + bytes, (size_t)(first + HUGE_BYTES - at));
    }
    errno = number;
    return map;
}

/*
 * Maps the payload, for reading. It is no part of core dumps, and not locked in a program that locks its memory (mlockall): both would take all pages of the cache, and a dump would write
 * them as well. A map that is readable while it is locked would be filled at once.
 */
INTERNAL void *map_payload(int fd, uint64_t offset, uint64_t length)
{
    void *map = map_file(fd, offset, length, PROT_NONE);
    if (map == MAP_FAILED)
        return MAP_FAILED;
    munlock(map, length); /* that the one or the other cannot be done changes nothing else */
    madvise(map, length, MADV_DONTDUMP);
    if (mprotect(map, length, PROT_READ) == 0)
        return map;
    int number = errno;
    munmap(map, length);
    errno = number;
    return MAP_FAILED;
}

/*
 * Makes a block of a file huge, one that has small pages or none: true, or false where the kernel refuses. Its errno does not tell a kernel that never does it from a tmpfs that has no
 * room left. It wants a block to have a page at least.
 */
static bool make_huge(int fd, uint64_t offset, const void *block)
{
    return fallocate(fd, 0, (off_t)offset, 4096) == 0 && madvise((void *)(uintptr_t)block, HUGE_BYTES, MADV_COLLAPSE) == 0;
}

/* The first pages of a file, before anybody has it; those that come out small, or not at all, are for `allocate`. */
INTERNAL void begin_huge(int fd, uint64_t length)
{
    if (length < 2 * HUGE_BYTES || !huge_pages_allowed()) /* one block: a few hundred pages, which the processor keeps in mind */
        return;
    int number = errno;
    void *map = map_file(fd, 0, length, PROT_READ | PROT_WRITE);
    if (map != MAP_FAILED) {
        uint64_t start = now_ns();
        for (uint64_t at = 0; at + HUGE_BYTES <= length; at += HUGE_BYTES)
            if (!make_huge(fd, at, (unsigned char *)map + at) || now_ns() - start > HUGE_SLOW_NS * (1 + at / HUGE_BYTES))
                break;
        munmap(map, length); /* a multiple of blocks */
    }
    errno = number;
}

/*
 * Called for each place in the payload that a fill has just taken, before it writes: blocks that begin in it become huge. Places are taken one after the other, so that is once for
 * each block, while it is (nearly) empty; where they are not, as with first-indices, what is there is copied. record: of our own, which draws their memory.
 */
INTERNAL void take_huge(stoc_cache *c, uint32_t record, uint64_t offset, uint64_t length)
{
    uint64_t block = ROUND_UP(offset, HUGE_BYTES), end = MIN(offset + length, c->payload_bytes);
    if (LIKELY(block >= end))
        return;
    int number = errno;
    for (; block < end && block + HUGE_BYTES <= c->payload_bytes; block += HUGE_BYTES) {
        uint64_t start = now_ns();
        if (start < atomic_load_explicit(&c->huge_after, memory_order_relaxed))
            break;
        bool drawn = draw(c, record, HUGE_BYTES), made = drawn && make_huge(c->fd, c->payload_offset + block, c->payload + block);
        if (drawn)
            settle(c, record, HUGE_BYTES);
        uint64_t after = now_ns();
        if (!made || after - start > HUGE_SLOW_NS)
            atomic_store_explicit(&c->huge_after, after + (after - start) * HUGE_PAUSE, memory_order_relaxed);
    }
    errno = number;
}

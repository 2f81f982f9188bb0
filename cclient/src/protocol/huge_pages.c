/*
 * huge_pages.c - huge pages: blocks of 2 MiB that processors map with one entry. A random read then
 * seldom waits for page tables, and processes fill no page tables.
 *
 * tmpfs has a mount option for them (huge=), which /dev/shm lacks. Since Linux 6.1 a process may
 * ask for single blocks of a mapped file (MADV_COLLAPSE), unless
 * /sys/kernel/mm/transparent_hugepage/shmem_enabled is `deny`. docs/spec/segment.md, Huge pages,
 * has measurements. They only make reads faster. If the kernel refuses, pages are small, and
 * nothing else changes.
 */
#include "protocol.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* of amd64, and of arm64 with pages of 4 KiB; elsewhere MADV_COLLAPSE does nothing */
#define HUGE_BYTES (2 * MIB)
#define HUGE_SLOW_NS UINT64_C(20000000)    /* the kernel assembles a slower block from fragments */
/* after a refusal or a slow block, wait this many times as long as it took: at most 2 % of the time
 * goes to asking */
#define HUGE_PAUSE 50
/* Whether the administrator allows huge pages. `never` applies to us too, although the kernel would
 * obey MADV_COLLAPSE. */
INTERNAL bool huge_pages_allowed(void)
{
    char text[64];
    return read_text("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text) > 0 && !strstr(text, "[never]");
}

/* Maps a part of a file at an address that suits huge pages. MAP_FAILED with errno as mmap. offset:
 * a multiple of HUGE_BYTES. */
INTERNAL void *map_file(int fd, uint64_t offset, uint64_t length, int protection)
{
    uint64_t bytes = ROUND_UP(length, (uint64_t)sysconf(_SC_PAGESIZE)), room = bytes + HUGE_BYTES;
    if (bytes < HUGE_BYTES)
        return mmap(NULL, length, protection, MAP_SHARED, fd, (off_t)offset);
    unsigned char *first = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (first == MAP_FAILED)
        return MAP_FAILED;
    munlock(first, room); /* otherwise it counts against RLIMIT_MEMLOCK, together with the map that replaces it */
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
 * Maps the payload for reading. Core dumps leave it out, and mlockall does not lock it: both would
 * allocate all pages of the cache, and a dump would write them as well. mprotect comes after
 * munlock, because the kernel fills a readable map at once while it is locked.
 */
INTERNAL void *map_payload(int fd, uint64_t offset, uint64_t length)
{
    void *map = map_file(fd, offset, length, PROT_NONE);
    if (map == MAP_FAILED)
        return MAP_FAILED;
    munlock(map, length); /* if one of the two fails, nothing else changes */
    madvise(map, length, MADV_DONTDUMP);
    if (mprotect(map, length, PROT_READ) == 0)
        return map;
    int number = errno;
    munmap(map, length);
    errno = number;
    return MAP_FAILED;
}

/*
 * Makes a block of a file huge that has small pages or none. false if the kernel refuses; its errno
 * does not tell a kernel without support from a full tmpfs. The kernel requires at least one page
 * in the block.
 */
static bool make_huge(int fd, uint64_t offset, const void *block)
{
    return fallocate(fd, 0, (off_t)offset, 4096) == 0 &&
           madvise((void *)(uintptr_t)block, HUGE_BYTES, MADV_COLLAPSE) == 0;
}

/* Makes the first pages of a file huge, before other processes have it. `allocate` makes the
 * rest. The tables begin at `tables`. */
INTERNAL void begin_huge(int fd, uint64_t length, uint64_t tables)
{
    /* for less the processor holds the few hundred small pages too; few client records are in use */
    if (length - tables < HUGE_BYTES || !huge_pages_allowed())
        return;
    int number = errno;
    void *map = map_file(fd, 0, length, PROT_READ | PROT_WRITE);
    if (map != MAP_FAILED) {
        uint64_t start = now_ns();
        for (uint64_t at = 0; at + HUGE_BYTES <= length; at += HUGE_BYTES)
            if (!make_huge(fd, at, (unsigned char *)map + at) ||
                now_ns() - start > HUGE_SLOW_NS * (1 + at / HUGE_BYTES))
                break;
        munmap(map, length); /* a multiple of blocks */
    }
    errno = number;
}

/*
 * A fill calls it for each new place in the payload, before it writes. Blocks that begin in the
 * place become huge. Places mostly follow each other, so each block is (nearly) empty at its call.
 * If they do not, as with first-indices, the kernel copies the block. record: our own, which draws
 * the memory.
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
        bool drawn = draw(c, record, HUGE_BYTES),
             made = drawn && make_huge(c->fd, c->payload_offset + block, c->payload + block);
        if (drawn)
            settle(c, record, HUGE_BYTES);
        uint64_t after = now_ns();
        if (!made || after - start > HUGE_SLOW_NS)
            atomic_store_explicit(&c->huge_after, after + (after - start) * HUGE_PAUSE, memory_order_relaxed);
    }
    errno = number;
}

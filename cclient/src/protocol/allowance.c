/*
 * allowance.c - the memory that all clients of a cache may fill before one of them checks again.
 * docs/spec/protocol.md, Memory; the same as shm/memory/allowance.go.
 */
#include "protocol.h"

/* How much of the usable memory clients may take before one of them checks again. */
INTERNAL uint64_t grant_of(uint64_t usable) { return MIN(usable / STOC_GRANT_DIVISOR, STOC_GRANT_MAX); }

/* The largest number of bytes of pages that a place of this length may take, at any offset. */
INTERNAL uint64_t pages_of(uint64_t length)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return ROUND_UP(length, page) + page;
}

/* A number for the processes whose memory is charged to the same cgroups as ours, seen from the
 * same namespace. root is "" except in tests. */
static uint32_t group_of_process(const char *root)
{
    char text[8192 + 24], path[1024];
    struct stat st;
    int64_t n = read_below(root, "/proc/self/cgroup", text, 8192);
    size_t length = n > 0 ? (size_t)n : 0;
    snprintf(path, sizeof path, "%s/proc/self/ns/cgroup", root);
    if (syscall(SYS_newfstatat, AT_FDCWD, path, &st, 0) == 0)
        length += (size_t)snprintf(text + length, 24, "%lu", st.st_ino);
    return stoc_crc32c(0, text, length);
}

/* Ends a draw: its bytes are pages now, or never will be. */
INTERNAL void settle(stoc_cache *c, uint32_t record, uint64_t n) { atomic_fetch_sub(drawn_word(c, record), n); }

/* What live clients have drawn and not yet settled, without n bytes of this client. */
static uint64_t drawn_by_others(const stoc_cache *c, uint32_t record, uint64_t n)
{
    uint64_t sum = load(drawn_word(c, record)) - n;
    for (uint32_t r = 0, high = records_used(c); r < high; r++) {
        uint64_t drawn = load(drawn_word(c, r));
        if (drawn && r != record && record_alive(c, r))
            sum += drawn;
    }
    return sum;
}

/* Asks the kernel for the free memory, and grants a part of it to all clients of the group, less n
 * bytes for us. 1: granted. 0: another client has changed the word. -1: memory is short. Takes about 100
 * us. */
static int check_memory(stoc_cache *c, uint32_t record, uint64_t n)
{
    uint32_t group = group_of_process("");
    stoc_word *word = grant_word(c, group);
    uint64_t before = load(word), others = drawn_by_others(c, record, n);
    struct room r;
    atomic_store_explicit(&c->memory_group, group, memory_order_relaxed);
    if (tightest_room("", NULL, &r)) {
        uint64_t usable = room_usable(&r), left = usable - MIN(usable, others);
        if (n > left / STOC_FILL_DIVISOR)
            return -1;
        if (!cas(word, before, grant_pack(MAX(grant_of(left), n) - n, grant_checks(before) + 1, group)))
            return 0;
    } /* otherwise free memory is unknown, and every fill may go on */
    atomic_store_explicit(&c->memory_left, (int64_t)STOC_GRANT_MAX, memory_order_relaxed);
    return 1;
}

/* Asks for n bytes of new pages; n is a multiple of GRANT_UNIT. true: the caller settles them
 * later. false: memory is short. docs/spec/protocol.md, Memory. */
INTERNAL bool draw(stoc_cache *c, uint32_t record, uint64_t n)
{
    /* before the allowance falls, so that a check sees these bytes in one of the two */
    atomic_fetch_add(drawn_word(c, record), n);
    for (bool check = atomic_fetch_sub_explicit(&c->memory_left, (int64_t)n, memory_order_relaxed) < (int64_t)n;;) {
        uint32_t group = atomic_load_explicit(&c->memory_group, memory_order_relaxed);
        stoc_word *word = grant_word(c, group);
        uint64_t g = load(word);
        if (check || grant_group(g) != group || grant_left(g) < n) {
            int granted = check_memory(c, record, n);
            if (granted < 0)
                settle(c, record, n);
            if (granted != 0)
                return granted > 0;
            check = false; /* another client has checked or drawn */
        } else if (cas(word, g, g - n / GRANT_UNIT)) {
            return true;
        }
    }
}

int64_t stoc_spare(stoc_cache *c)
{
    struct room r;
    if (!c)
        return STOC_ECLOSED;
    uint32_t owner = atomic_load(&c->owner);
    uint64_t drawn = owner ? drawn_by_others(c, owner - 1, 0) : 0;
    if (!tightest_room("", NULL, &r))
        return STOC_ESYSTEM;
    uint64_t usable = room_usable(&r);
    return (int64_t)MIN(usable - MIN(usable, drawn), INT64_MAX);
}

int stoc_hold(stoc_cache *c, uint64_t bytes)
{
    uint32_t owner;
    int code = c ? require_owner(c, &owner) : STOC_ECLOSED;
    if (code < 0)
        return code;
    uint64_t before = atomic_exchange(&c->held, bytes);
    atomic_fetch_add(drawn_word(c, owner - 1), bytes - before);
    for (uint32_t k = 0; k < STOC_ALLOWANCE_WORDS && bytes > before; k++) {
        /* an earlier grant did not count these bytes, so end it */
        uint64_t g = load(grant_word(c, k));
        while (!cas(grant_word(c, k), g, grant_pack(0, grant_checks(g) + 1, grant_group(g))))
            g = load(grant_word(c, k));
    }
    return 0;
}

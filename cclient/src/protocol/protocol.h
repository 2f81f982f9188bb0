/*
 * protocol.h - what clients do to a segment: create and open, register, claim and publish, read,
 * clear, reclaim, inspect.
 *
 * docs/spec/protocol.md is normative. Includes segment and tasks. Knows nothing of servers.
 */
#ifndef STOCACHED_PROTOCOL_H
#define STOCACHED_PROTOCOL_H

#include "../segment/segment.h"
#include "../tasks/tasks.h"

/* client.c */
INTERNAL_DATA pthread_mutex_t handles_lock;
INTERNAL_DATA struct link *dialling;

INTERNAL void reset_link(struct link *l);
INTERNAL void handle_list_add(stoc_cache *c);
INTERNAL void handle_list_remove(stoc_cache *c);
INTERNAL int lock_byte(int fd, short type, uint64_t at);
INTERNAL int lock_record(stoc_cache *c, uint32_t record);
INTERNAL void unlock_record(stoc_cache *c, uint32_t record);
INTERNAL bool record_alive(const stoc_cache *c, uint32_t record);
INTERNAL void close_locks(_Atomic int *lock_fd);
INTERNAL bool open_locks(int file, _Atomic int *lock_fd);
INTERNAL int open_lock_description(stoc_cache *c, struct stoc_error *error);
INTERNAL int register_client(stoc_cache *c, bool by_name, struct stoc_error *error);
INTERNAL stoc_word *counters_slow(stoc_cache *c);
INTERNAL int corrupt(stoc_cache *c);

/* Flags of a handle that one thread holds at a time, for microseconds. A forked child finds them
 * clear. */
static inline bool flag_try(_Atomic uint32_t *flag) { return atomic_exchange(flag, 1) == 0; }
static inline void flag_release(_Atomic uint32_t *flag) { atomic_store(flag, 0); }
static inline void flag_take(_Atomic uint32_t *flag)
{
    while (!flag_try(flag))
        sched_yield();
}

static inline stoc_word *counters_of(stoc_cache *c)
{
    stoc_word *counters = atomic_load_explicit(&c->counters, memory_order_acquire);
    return LIKELY(counters != NULL) ? counters : counters_slow(c);
}

static inline void count(stoc_cache *c, enum stoc_counter which, uint64_t n) { add_to(counters_of(c), which, n); }

/* For all writes: the owner number, or an error below 0. */
static inline int require_owner(stoc_cache *c, uint32_t *owner)
{
    *owner = atomic_load_explicit(&c->owner, memory_order_acquire);
    if (LIKELY(*owner != 0))
        return 0;
    int code = register_client(c, false, NULL);
    *owner = atomic_load(&c->owner);
    return code;
}

/* reclaim.c */
INTERNAL uint64_t intent_for(const stoc_cache *c, uint32_t record, uint32_t entry, uint64_t sample);
INTERNAL uint64_t reclaim_record(stoc_cache *c, uint32_t record, stoc_word *counters, enum stoc_counter which);
INTERNAL int64_t reclaim_if_dead(stoc_cache *c, uint32_t record);

/* policy.c */
/* What a set knows about the sample of a slot that it looks at, or about its own. */
struct candidate {
    uint64_t sample, size;
    uint8_t cost, reference; /* reference: of the slot */
};

/* One search for a slot in a full cache. Each look takes a number of the hand, while some are left. */
struct search {
    const struct policy *policy;
    struct candidate newcomer, victim;
    uint64_t spread, slot; /* slot: of the victim */
    uint32_t worth;
    unsigned left;
};

INTERNAL struct policy make_policy(uint32_t code, uint64_t slots, bool chains, const unsigned char uuid[16]);
INTERNAL uint64_t policy_random(uint64_t seed, uint64_t n);
INTERNAL struct search begin_search(const struct policy *p, struct candidate newcomer, uint64_t spread);
INTERNAL uint64_t search_slot(const struct search *s, uint64_t number);
INTERNAL uint8_t search_look(struct search *s, uint64_t number, uint64_t slot, const struct candidate *c);
INTERNAL bool search_ends(const struct search *s);
INTERNAL uint8_t policy_hit(const struct policy *p, uint64_t sample, uint64_t now, uint8_t reference);
INTERNAL uint8_t policy_placed(const struct policy *p, uint64_t now);
INTERNAL uint64_t spread_of(uint64_t word);
INTERNAL uint8_t policy_loaded(uint8_t cost, uint64_t nanoseconds, uint64_t draw, uint64_t *spread);

/* evict.c */
INTERNAL uint64_t cost_nanoseconds(uint8_t cost);
INTERNAL uint8_t believed(uint8_t cost, uint64_t spread);
INTERNAL void mark_placed(stoc_cache *c, uint64_t slot);
enum { SAME = -1 }; /* a reference byte that stays as it is */
INTERNAL int left_by_hit(const stoc_cache *c, uint64_t sample, uint64_t w);
INTERNAL void leave(const stoc_cache *c, uint64_t w, int reference);
INTERNAL void store_cost(stoc_cache *c, uint64_t sample, uint64_t length, uint64_t nanoseconds);
INTERNAL int evict(struct stoc_claim *k, uint32_t record);
INTERNAL uint64_t replaced_of(const stoc_cache *c, uint64_t reads, uint64_t evicted);
INTERNAL void end_eviction(stoc_cache *c, uint32_t record, uint32_t entry, stoc_word *counters);

/* write.c */
INTERNAL void drop_sample(stoc_cache *c, uint64_t i);
INTERNAL void write_later(void *cache, const struct waiting *w);
INTERNAL bool is_left_out(const stoc_cache *c, uint64_t i);
INTERNAL uint32_t take_entry(stoc_cache *c, uint32_t record, uint64_t sample);
INTERNAL void drop_entry(stoc_cache *c, uint32_t record, uint32_t entry);
INTERNAL int lost(struct stoc_claim *k);
INTERNAL int abort_claim(struct stoc_claim *k, int result);
INTERNAL bool name_place(struct stoc_claim *k, uint64_t place);
INTERNAL bool draw_claim(struct stoc_claim *k, uint32_t record);
INTERNAL int begin_at(struct stoc_claim *k, uint32_t record, uint64_t each, uint64_t bytes);

/* space_slots.c, space_arena.c, space_chains.c */
/* Of stoc_claim.open. DRAWN: drawn_for(length) bytes are drawn and not settled. MEMORY: those of a new
 * place are drawn, or exist already. SHORT: there is no memory for them. */
enum { OPEN = 1, DRAWN = 2, MEMORY = 4, SHORT = 8 };

enum { TAKE = 0, KEEP = 1 };

/* How the samples of a cache lie in its payload. A hit does not ask it: locate and copy_chain are faster. */
struct space {
    bool draws; /* memory for a new place before the claim */
    /* Whether an EMPTY or READY sample keeps its place for the next length bytes: KEEP or TAKE. ECORRUPT: the place is
     * not possible, and no client may write to it. */
    int (*keeps)(const stoc_cache *c, uint64_t w, uint64_t meta, uint64_t length);
    /* Whether a sample that is claimed now still has the place that keeps saw with this meta. */
    bool (*still)(const stoc_cache *c, uint64_t sample, uint64_t meta);
    /* Whether no place for length bytes is left, as far as that is known without a search. */
    bool (*full)(const stoc_cache *c, uint64_t length);
    /* Gives a claimed sample its place, unless it keeps one: STORED. After another result the claim has ended. */
    int (*take)(struct stoc_claim *k, uint32_t record);
    /* In a cache that evicts. Takes for a claim a slot that was free with this entry of the slot table, if there is
     * memory for it. */
    bool (*take_seen)(struct stoc_claim *k, uint32_t record, uint64_t slot, uint64_t entry);
    /* Makes a victim EMPTY: STORED. FULL: it has changed since the search. BUSY: no claim entry is free. ECORRUPT: words
     * changed that only this client may change. */
    int (*retire)(struct stoc_claim *k, uint32_t record, uint64_t victim, uint64_t slot);
    /* Frees the place of a claim that is given up. Returns the place that the EMPTY sample keeps. */
    uint64_t (*free)(struct stoc_claim *k);
    /* The same for the claim of a dead client, which a record lists in an entry. */
    uint64_t (*free_dead)(stoc_cache *c, uint32_t record, uint32_t entry, uint64_t sample, uint64_t w);
    /* Frees all places of a cache without claims. */
    void (*clear)(stoc_cache *c);
};

INTERNAL_DATA const struct space slot_space, arena_space, chain_space;
INTERNAL int keeps_slot(const stoc_cache *c, uint64_t w, uint64_t meta, uint64_t length);
INTERNAL bool is_same(const stoc_cache *c, uint64_t sample, uint64_t meta);
INTERNAL uint64_t run_of(const struct stoc_claim *k, uint64_t at, uint64_t n, uint64_t *offset);
INTERNAL void mark_pages(const struct stoc_claim *k);
INTERNAL bool copy_chain(const stoc_cache *c, uint64_t w, void *dst, uint64_t length);
INTERNAL uint64_t chain_bytes(const stoc_cache *c);

/* clear.c */
INTERNAL int finish_clear(stoc_cache *c, uint64_t phase, uint32_t owner, uint64_t deadline, uint64_t give_up);
INTERNAL bool adopt_clear(stoc_cache *c, uint64_t phase, uint32_t owner, uint64_t timeout_ns);

/* allowance.c */
INTERNAL uint64_t grant_of(uint64_t usable);
INTERNAL uint64_t pages_of(uint64_t length);
INTERNAL void settle(stoc_cache *c, uint32_t record, uint64_t n);
INTERNAL bool draw(stoc_cache *c, uint32_t record, uint64_t n);

/* huge_pages.c */
#define HUGE_NEVER UINT64_MAX
INTERNAL bool huge_pages_allowed(void);
INTERNAL void *map_file(int fd, uint64_t offset, uint64_t length, int protection);
INTERNAL void *map_payload(int fd, uint64_t offset, uint64_t length);
INTERNAL void begin_huge(int fd, uint64_t length, uint64_t tables);
INTERNAL void take_huge(stoc_cache *c, uint32_t record, uint64_t offset, uint64_t length);

/* open.c */
INTERNAL stoc_cache *new_handle(unsigned open_flags, struct stoc_error *error);
INTERNAL void free_handle(stoc_cache *c);
INTERNAL int attach(stoc_cache *c, const struct header *h, struct stoc_error *error);
INTERNAL int check_open(unsigned flags, stoc_cache **out, struct stoc_error *error);
INTERNAL int end_open(stoc_cache *c, int code, stoc_cache **out); /* frees the handle after an error */
INTERNAL int unlink_same(const char *path, int fd, struct stoc_error *error);

/* disk.c */
#define LEAVING_NS UINT64_C(5000000000)  /* how long a close waits for the writes of its queue, and to leave the file */
#define QUEUE_BYTES (64 * MIB)           /* bytes of the samples that a handle writes in the background */
INTERNAL int disk_join(stoc_cache *c, struct stoc_error *error);
INTERNAL void disk_leave(stoc_cache *c);
INTERNAL bool disk_accepts(stoc_cache *c);
INTERNAL bool disk_may_accept(stoc_cache *c);
INTERNAL void disk_failed(stoc_cache *c);
INTERNAL int disk_write(stoc_cache *c, const void *data, size_t length, uint64_t offset);
INTERNAL int disk_get(stoc_cache *c, uint64_t i, void *dst, uint64_t capacity, size_t *length, bool counted);
INTERNAL bool disk_crc(const stoc_cache *c, uint64_t offset, uint64_t length, uint32_t *crc);
INTERNAL void persist(stoc_cache *c, uint64_t sample);
INTERNAL void persist_all(stoc_cache *c);
static inline int payload_fd(const stoc_cache *c) { return c->disk ? c->disk->fd : c->fd; }

/* options.c */
INTERNAL int plan(const char *name, const struct stoc_options *o, struct header *h, struct stoc_error *error);
INTERNAL int take_options(const struct stoc_options *options, struct stoc_options *known, struct stoc_error *error);

/* inspect.c: a counter of all clients; their claims now */
INTERNAL uint64_t counted(const stoc_cache *c, enum stoc_counter which);
INTERNAL unsigned claims_listed(const stoc_cache *c);

/* read.c */
#define BAD_INDEX(c, index) UNLIKELY((uint64_t)(index) >= (c)->samples) /* negative indices become huge */
#define WHOLE UINT64_MAX

struct batch {
    stoc_cache *cache;
    const int64_t *indices;
    size_t n, step; /* rows, and how many a thread takes at a time */
    unsigned char *dst;
    uint64_t stride, skip, want; /* rows of one size */
    const uint64_t *offsets, *lengths; /* packed rows */
    void *const *field_dst;            /* rows by field: the destination of each field; NULL skips it */
    const size_t *field_stride;
    uint8_t *hit;
    _Atomic size_t next;
    _Atomic uint64_t hits, retried, corrupt;
};

INTERNAL int copy_sample(const stoc_cache *c, uint64_t i, uint64_t skip, uint64_t want, void *dst, uint64_t capacity,
                         uint64_t *length, copy_function *copy, uint64_t *retried);
INTERNAL int find(const stoc_cache *c, uint64_t i, uint64_t *offset, uint64_t *length);
INTERNAL int64_t gather(struct batch *b, uint64_t bytes, unsigned threads);
INTERNAL int check_indices(const stoc_cache *c, const int64_t *indices, size_t n);

#endif

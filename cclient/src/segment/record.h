/*
 * record.h - typed access to the mapped control part. Callers check indices, once per operation.
 *
 * Loads are acquire, stores release, read-modify-writes sequentially consistent. A line that
 * differs says so and gives the reason.
 */
#ifndef STOCACHED_RECORD_H
#define STOCACHED_RECORD_H

#include "../internal.h"

/* RETIRING: the sample loses its slot to another one; only in a cache that evicts. */
enum { EMPTY = STOC_WORD_EMPTY, WRITING = STOC_WORD_WRITING, READY = STOC_WORD_READY, RETIRING = STOC_WORD_RETIRING };

#define OWNER_SHIFT STOC_WORD_STATE_BITS
#define GENERATION_SHIFT (STOC_WORD_STATE_BITS + STOC_WORD_OWNER_BITS)
#define STATE_MASK ((UINT64_C(1) << STOC_WORD_STATE_BITS) - 1)
#define OWNER_MASK ((UINT64_C(1) << STOC_WORD_OWNER_BITS) - 1)
#define INTENT_UNIT_BITS 36
#define INTENT_UNIT_MASK ((UINT64_C(1) << INTENT_UNIT_BITS) - 1)

static inline uint64_t load(const stoc_word *w)
{
    return atomic_load_explicit((stoc_word *)(uintptr_t)w, memory_order_acquire);
}
static inline void store(stoc_word *w, uint64_t value) { atomic_store_explicit(w, value, memory_order_release); }
static inline bool cas(stoc_word *w, uint64_t from, uint64_t to)
{
    return atomic_compare_exchange_strong(w, &from, to);
}

static inline stoc_word *word_at(const stoc_cache *c, uint64_t offset)
{
    return (stoc_word *)(void *)(c->control + offset);
}

static inline stoc_word *index_word(const stoc_cache *c, uint64_t sample) { return c->index + 2 * sample; }
static inline stoc_word *meta_word(const stoc_cache *c, uint64_t sample) { return c->index + 2 * sample + 1; }
static inline stoc_word *sum_word(const stoc_cache *c, uint64_t sample) { return c->sums + sample; }
static inline stoc_word *slot_word(const stoc_cache *c, uint64_t slot) { return c->slot_table + slot; }
static inline stoc_word *group_word(const stoc_cache *c, uint64_t group) { return c->groups + group; }
static inline stoc_word *phase_word(const stoc_cache *c) { return word_at(c, STOC_PHASE_OFFSET); }
static inline stoc_word *free_from_word(const stoc_cache *c) { return word_at(c, STOC_FREE_FROM_OFFSET); }
static inline stoc_word *arena_next_word(const stoc_cache *c) { return word_at(c, STOC_ARENA_NEXT_OFFSET); }
static inline stoc_word *spread_word(const stoc_cache *c) { return word_at(c, STOC_SPREAD_OFFSET); }
static inline const stoc_word *below_word(const stoc_cache *c) { return word_at(c, STOC_BELOW_OFFSET); }
static inline stoc_word *lap_word(const stoc_cache *c, unsigned k) { return word_at(c, STOC_LAP_OFFSET + 8 * k); }
static inline stoc_word *hand_word(const stoc_cache *c) { return word_at(c, STOC_HAND_OFFSET); }
static inline stoc_word *clients_high_word(const stoc_cache *c) { return word_at(c, STOC_CLIENTS_HIGH_OFFSET); }

static inline uint64_t record_offset(uint32_t record)
{
    return STOC_CLIENTS_OFFSET + (uint64_t)record * STOC_CLIENT_RECORD_BYTES;
}
static inline stoc_word *record_word(const stoc_cache *c, uint32_t record, uint64_t at)
{
    return word_at(c, record_offset(record) + at);
}
static inline stoc_word *entry_word(const stoc_cache *c, uint32_t record, uint32_t entry)
{
    return record_word(c, record, STOC_CLIENT_CLAIMS + entry * STOC_CLAIM_BYTES);
}
static inline stoc_word *intent_word(const stoc_cache *c, uint32_t record, uint32_t entry)
{
    return entry_word(c, record, entry) + 1;
}
/* Of a claim entry: sample + 1 of the sample that gives up its slot; 0: none. */
static inline stoc_word *victim_word(const stoc_cache *c, uint32_t record, uint32_t entry)
{
    return record_word(c, record, STOC_CLIENT_VICTIMS + 8 * entry);
}
static inline stoc_word *drawn_word(const stoc_cache *c, uint32_t record)
{
    return record_word(c, record, STOC_CLIENT_DRAWN);
}
static inline stoc_word *grant_word(const stoc_cache *c, uint32_t group)
{
    return word_at(c, STOC_ALLOWANCE_OFFSET + group % STOC_ALLOWANCE_WORDS * STOC_CONTROL_LINE_BYTES);
}
static inline stoc_word *record_counters(const stoc_cache *c, uint32_t record)
{
    return record_word(c, record, STOC_CLIENT_COUNTERS);
}

/* An index word: state 3, owner 12, generation, place. */
static inline unsigned state_of(uint64_t w) { return (unsigned)(w & STATE_MASK); }
static inline uint32_t owner_of(uint64_t w) { return (uint32_t)(w >> OWNER_SHIFT & OWNER_MASK); }
static inline uint64_t generation_of(const stoc_cache *c, uint64_t w)
{
    return w >> GENERATION_SHIFT & c->generation_mask;
}
static inline uint64_t place_of(const stoc_cache *c, uint64_t w) { return w >> c->place_shift; }
static inline uint64_t pack(const stoc_cache *c, unsigned state, uint32_t owner, uint64_t generation, uint64_t place)
{
    return state | (uint64_t)owner << OWNER_SHIFT | (generation & c->generation_mask) << GENERATION_SHIFT |
           place << c->place_shift;
}

/* Meta: content 32 (the length in a variable-size cache, else the checksum), fills 24, cost 8. */
#define FILLS_SHIFT 32
#define FILLS_MASK ((UINT64_C(1) << 24) - 1)
static inline uint64_t meta_with(uint64_t meta, uint32_t content) { return (meta & ~(uint64_t)UINT32_MAX) | content; }
static inline uint64_t meta_published(uint64_t meta, uint32_t content)
{
    uint64_t fills = ((meta >> FILLS_SHIFT) + 1) & FILLS_MASK;
    return (meta & ~(FILLS_MASK << FILLS_SHIFT | UINT32_MAX)) | fills << FILLS_SHIFT | content;
}
#define COST_SHIFT 56
static inline uint8_t cost_of(uint64_t meta) { return (uint8_t)(meta >> COST_SHIFT); }
static inline uint64_t meta_with_cost(uint64_t meta, uint8_t cost)
{
    return (meta & ~(UINT64_C(0xff) << COST_SHIFT)) | (uint64_t)cost << COST_SHIFT;
}
/* Stores the length of an extent. Only the client that has claimed the sample, or reclaims it, may
 * do so. */
static inline void set_length(const stoc_cache *c, uint64_t sample, uint64_t length)
{
    store(meta_word(c, sample), meta_with(load(meta_word(c, sample)), (uint32_t)length));
}

static inline uint64_t length_of(const stoc_cache *c, uint64_t meta)
{
    return c->variable ? meta & UINT32_MAX : c->sample_bytes;
}
static inline uint32_t crc_of(const stoc_cache *c, uint64_t sample, uint64_t meta)
{
    return (uint32_t)(c->variable ? load(sum_word(c, sample)) : meta);
}

static inline uint64_t units_for(uint64_t length)
{
    return length ? (length + STOC_UNIT_BYTES - 1) / STOC_UNIT_BYTES : 1;
}
static inline uint64_t arena_units(const stoc_cache *c) { return c->payload_bytes / STOC_UNIT_BYTES; }

/* How many slots a sample of this length takes, with chains. */
static inline uint64_t slots_for(const stoc_cache *c, uint64_t length)
{
    return length ? (length + c->slot_stride - 1) / c->slot_stride : 1;
}

static inline uint64_t group_count(const stoc_cache *c) { return (c->slots + STOC_GROUP_SLOTS - 1) / STOC_GROUP_SLOTS; }

/* An entry of the slot table with chains: next 32 (slot + 1; 0 after the last one), pages 1 (all pages of
 * the slot exist), sample + 1 31 (0: the slot is free). */
#define LINK_PAGES (UINT64_C(1) << 32)
static inline uint64_t link_sample(uint64_t l) { return l >> 33; }
static inline uint64_t link_next(uint64_t l) { return l & UINT32_MAX; }
static inline uint64_t link_pack(uint64_t sample, uint64_t next, uint64_t l)
{
    return next | (l & LINK_PAGES) | sample << 33; /* with the pages bit of l */
}

/* free_from, of all slots or of a group: from 32, seq 32. */
static inline uint64_t free_from_of(uint64_t f) { return f & UINT32_MAX; }
static inline uint64_t free_from_next(uint64_t f, uint64_t from) { return ((f >> 32) + 1) << 32 | from; }
static inline uint64_t free_from_at(uint64_t f, uint64_t from) { return f >> 32 << 32 | from; }

/* The phase word: state 3 (0 OPEN, 1 CLEARING), owner 12 (0 with CLEARING: abandoned), epoch 49. */
static inline bool phase_clearing(uint64_t p) { return (p & STATE_MASK) != 0; }
static inline uint64_t phase_epoch(uint64_t p) { return p >> GENERATION_SHIFT; }
static inline uint64_t phase_open(uint64_t epoch) { return epoch << GENERATION_SHIFT; }
static inline uint64_t phase_clearing_by(uint32_t owner, uint64_t epoch)
{
    return 1u | (uint64_t)owner << OWNER_SHIFT | epoch << GENERATION_SHIFT;
}

/* arena_next: owner 12 of the last client that allocated, then the first unit never allocated. */
static inline uint64_t arena_pack(uint32_t owner, uint64_t unit)
{
    return (uint64_t)owner << OWNER_SHIFT | unit << STOC_ARENA_PLACE_SHIFT;
}
static inline uint64_t arena_unit(uint64_t a) { return a >> STOC_ARENA_PLACE_SHIFT; }

/* A word of the allowance: left 16 in units of 4,096 bytes, checks 16, group 32. */
#define GRANT_UNIT 4096
static inline uint64_t grant_pack(uint64_t bytes, uint64_t checks, uint32_t group)
{
    return bytes / GRANT_UNIT | (checks & UINT16_MAX) << 16 | (uint64_t)group << 32;
}
static inline uint64_t grant_left(uint64_t g) { return (g & UINT16_MAX) * GRANT_UNIT; }
static inline uint64_t grant_checks(uint64_t g) { return g >> 16 & UINT16_MAX; }
static inline uint32_t grant_group(uint64_t g) { return (uint32_t)(g >> 32); }

/* The stripe of the calling thread. Threads have different stacks, far apart. */
static inline stoc_word *stripe_of(stoc_word *counters)
{
    char here;
    uint64_t stack = (uint64_t)(uintptr_t)&here;
    return counters + ((stack >> 16) * UINT64_C(0x9e3779b97f4a7c15) >> 62) * STOC_COUNTERS_PER_STRIPE;
}

/* Counters are statistics: relaxed but atomic. */
static inline void add_to(stoc_word *counters, enum stoc_counter which, uint64_t n)
{
    atomic_fetch_add_explicit(stripe_of(counters) + which, n, memory_order_relaxed);
}

/* A counter of all stripes of a client. */
static inline uint64_t sum_of(const stoc_word *counters, enum stoc_counter which)
{
    uint64_t sum = 0;
    for (unsigned stripe = 0; stripe < STOC_COUNTER_STRIPES; stripe++)
        sum += load(counters + stripe * STOC_COUNTERS_PER_STRIPE + which);
    return sum;
}

/* How many client records may have been used. */
static inline uint32_t records_used(const stoc_cache *c)
{
    return (uint32_t)MIN(atomic_load(clients_high_word(c)), c->client_records);
}

/* Where a sample lies, according to words that were READY: offset in the payload and length,
 * both inside the payload. With chains it is the offset of the slot at the head. false: the place is
 * not possible, or the words belong to different versions. */
static inline bool locate(const stoc_cache *c, uint64_t w, uint64_t meta, uint64_t *offset, uint64_t *length)
{
    uint64_t place = place_of(c, w) - 1; /* place 0 wraps around and is too large */
    *length = length_of(c, meta);
    if (LIKELY(!c->variable)) {
        *offset = place * c->slot_stride;
        return place < c->slots;
    }
    if (c->chains) {
        *offset = place * c->slot_stride;
        return place < c->slots && *length <= c->sample_bytes && *length <= c->payload_bytes;
    }
    if (place >= arena_units(c) || *length > c->sample_bytes)
        return false;
    *offset = place * STOC_UNIT_BYTES;
    return *length <= c->payload_bytes - *offset;
}

/* Ends a copy or read that began by loading w and then meta. Returns whether the sample stayed the
 * same. docs/spec/protocol.md, Memory order, says why word comes first. */
static inline bool unchanged(stoc_word *record, uint64_t w, uint64_t meta)
{
    atomic_thread_fence(memory_order_acquire); /* load-load: the copy reads its bytes before the words are read again */
    return LIKELY(load(record) == w && atomic_load_explicit(record + 1, memory_order_relaxed) == meta);
}

#endif

/*
 * evict.c - a slot goes to another sample. docs/spec/eviction.md.
 */
#include "protocol.h"

static uint8_t reference_of(const stoc_cache *c, uint64_t slot)
{
    return c->references ? atomic_load_explicit(&c->references[slot], memory_order_relaxed) : 0;
}

/* Stores a reference byte only if it differs: readers of other processes share its line. */
static void set_reference(const stoc_cache *c, uint64_t slot, uint8_t old, uint8_t value)
{
    if (c->references && value != old)
        atomic_store_explicit(&c->references[slot], value, memory_order_relaxed);
}

/* The reference byte of a sample that has just got its slot. */
INTERNAL void mark_placed(stoc_cache *c, uint64_t slot)
{
    if (c->references)
        set_reference(c, slot, reference_of(c, slot), policy_placed(&c->rule, load(hand_word(c))));
}

/* The reference byte that a hit of a sample leaves behind, or SAME. It is found before the sample is copied: then the
 * processor waits for the byte and for the sample at the same time. */
INTERNAL int left_by_hit(const stoc_cache *c, uint64_t sample, uint64_t w)
{
    /* a hit loads no shared word that its policy does not need */
    uint64_t now = c->policy == STOC_POLICY_CLOCK ? 0 : load(hand_word(c));
    uint8_t old = reference_of(c, place_of(c, w) - 1), left = policy_hit(&c->rule, sample, now, old);
    return left == old ? SAME : left;
}

/* Stores what a hit leaves behind, if it is not SAME. */
INTERNAL void leave(const stoc_cache *c, uint64_t w, int reference)
{
    if (UNLIKELY(reference != SAME))
        atomic_store_explicit(&c->references[place_of(c, w) - 1], (uint8_t)reference, memory_order_relaxed);
}

/* Stores in the meta of a claimed sample that a load took so long. In an arena that evicts also its length: so the
 * cost of a byte is known, even if the sample gets no slots. */
INTERNAL void store_cost(stoc_cache *c, uint64_t sample, uint64_t length, uint64_t nanoseconds)
{
    count(c, STOC_COUNTER_LOAD_NS, nanoseconds);
    uint64_t meta = load(meta_word(c, sample)), spread = spread_of(load(spread_word(c)));
    uint64_t draw = policy_random(c->rule.seed, atomic_fetch_add(&c->loads, 1) + 1);
    uint8_t cost = policy_loaded(cost_of(meta), nanoseconds, draw, &spread);
    store(spread_word(c), spread); /* an update that is lost does no harm */
    if (c->chains)
        meta = (meta & ~(uint64_t)UINT32_MAX) | length;
    store(meta_word(c, sample), meta_with_cost(meta, cost));
}

enum { LAP_READS, LAP_EVICTED, LAP_REPLACED };

enum { LAP_SEARCHES = 64 }; /* after so many searches for a victim a client looks whether the lap is over */

/* A number of samples. Counters that a stray write has changed may give one above 63 bits. */
static uint64_t whole(double x) { return x < 0x1p63 ? (uint64_t)(x + 0.5) : UINT64_MAX; }

/* Evictions since a lap began, for as many reads as there are samples. */
static uint64_t replaced_since(const stoc_cache *c, uint64_t begin, uint64_t reads, uint64_t evicted)
{
    double part = (double)c->samples / (double)MAX(reads - MIN(begin, reads), 1);
    return whole((double)(evicted - MIN(load(lap_word(c, LAP_EVICTED)), evicted)) * part);
}

/* How many samples went for others in the last lap: those of this lap so far, and for the rest of it as many as in the
 * lap before. The numbers are those of all clients, since the creation. */
INTERNAL uint64_t replaced_of(const stoc_cache *c, uint64_t reads, uint64_t evicted)
{
    uint64_t begin = load(lap_word(c, LAP_READS)), n = c->samples;
    if (reads >= begin + n)
        return replaced_since(c, begin, reads, evicted);
    double rest = (double)(n - (reads - MIN(begin, reads))) / (double)n;
    return evicted - MIN(load(lap_word(c, LAP_EVICTED)), evicted) +
           whole((double)load(lap_word(c, LAP_REPLACED)) * rest);
}

/* Begins a new lap if one is over. */
static void end_lap(stoc_cache *c)
{
    if ((atomic_fetch_add(&c->searches, 1) + 1) % LAP_SEARCHES != 0)
        return;
    uint64_t reads = counted(c, STOC_COUNTER_HITS) + counted(c, STOC_COUNTER_MISSES);
    uint64_t evicted = counted(c, STOC_COUNTER_EVICTED);
    uint64_t begin = load(lap_word(c, LAP_READS));
    if (reads < begin + c->samples || !cas(lap_word(c, LAP_READS), begin, reads))
        return;
    store(lap_word(c, LAP_REPLACED), replaced_since(c, begin, reads, evicted));
    store(lap_word(c, LAP_EVICTED), evicted);
}

enum { SEARCHES = 4 }; /* searches of one set, when other clients take its victims */
enum { NUMBERS_PER_SEARCH = 1 << 16 }; /* numbers of the hand, at most */

/*
 * Has the policy choose a sample that goes for the claim's, and lets it go. STORED: that, and in a cache of one size
 * k->offset is its slot + 1; or the claim took a slot that the search found free. FULL: the policy lets no sample go.
 * BUSY: no claim entry is free. ECORRUPT.
 */
INTERNAL int evict(struct stoc_claim *k, uint32_t record)
{
    stoc_cache *c = k->cache;
    end_lap(c);
    bool heads = c->chains && (c->policy == STOC_POLICY_FIFO || c->policy == STOC_POLICY_CLOCK);
    struct candidate newcomer = {.sample = k->sample, .size = k->length,
                                 .cost = cost_of(load(meta_word(c, k->sample)))};
    for (int tries = 0; tries < SEARCHES; tries++) {
        struct search search = begin_search(&c->rule, newcomer, spread_of(load(spread_word(c))));
        for (int left = NUMBERS_PER_SEARCH; search.left > 0 && left > 0; left--) {
            uint64_t number = atomic_fetch_add(hand_word(c), 1), s = search_slot(&search, number);
            uint64_t l = load(slot_word(c, s)), listed = c->chains ? link_sample(l) : l;
            if (listed > c->samples)
                return corrupt(c);
            if (listed == 0) { /* it was freed, and no cursor may ever say so: who freed it may be dead */
                if (c->space->take_seen(k, record, s, l))
                    return STOC_STORED;
                search.left--;
                continue;
            }
            if (listed == k->sample + 1 || (heads && link_next(l) != 0))
                continue; /* no look */
            uint64_t w = load(index_word(c, listed - 1)), head = place_of(c, w) - 1;
            if (state_of(w) != READY || (c->chains ? head >= c->slots : head != s)) {
                search.left--; /* others fill or evict it, or it came back in another slot */
                continue;
            }
            uint64_t meta = load(meta_word(c, listed - 1));
            struct candidate held = {.sample = listed - 1, .size = c->chains ? length_of(c, meta) : k->length,
                                     .cost = cost_of(meta), .reference = reference_of(c, head)};
            set_reference(c, head, held.reference, search_look(&search, number, head, &held));
        }
        if (!search_ends(&search))
            return STOC_FULL;
        int result = c->space->retire(k, record, search.victim.sample, search.slot);
        if (result != STOC_FULL)
            return result;
    }
    return STOC_FULL;
}

/* Ends an eviction of a dead client. The victim is READY again if the slot is still its own, else
 * EMPTY. */
INTERNAL void end_eviction(stoc_cache *c, uint32_t record, uint32_t entry, stoc_word *counters)
{
    uint64_t listed = load(victim_word(c, record, entry));
    if (listed > c->samples)
        add_to(counters, STOC_COUNTER_CORRUPT, 1);
    if (listed == 0 || listed > c->samples)
        return;
    uint64_t w = load(index_word(c, listed - 1)), place = place_of(c, w);
    if (state_of(w) != RETIRING || owner_of(w) != record + 1 || place == 0 || place > c->slots)
        return;
    bool kept = load(slot_word(c, place - 1)) == listed;
    uint64_t to = kept ? pack(c, READY, 0, generation_of(c, w), place) : pack(c, EMPTY, 0, generation_of(c, w) + 1, 0);
    if (cas(index_word(c, listed - 1), w, to))
        STOC_FAULT("reclaim.victim");
    persist(c, listed - 1);
}

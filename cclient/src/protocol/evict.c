/*
 * evict.c - a slot goes to another sample. docs/spec/eviction.md.
 */
#include "protocol.h"

INTERNAL uint8_t reference_of(const stoc_cache *c, uint64_t slot)
{
    return c->references ? atomic_load_explicit(&c->references[slot], memory_order_relaxed) : 0;
}

/* Stores a reference byte only if it differs: readers of other processes share its line. */
INTERNAL void set_reference(const stoc_cache *c, uint64_t slot, uint8_t old, uint8_t value)
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
INTERNAL void end_lap(stoc_cache *c)
{
    if ((atomic_fetch_add(&c->searches, 1) + 1) % LAP_SEARCHES != 0)
        return;
    uint64_t reads = 0, evicted = 0, high = MIN(load(clients_high_word(c)), c->client_records);
    for (uint32_t record = 0; record < high; record++)
        for (unsigned stripe = 0; stripe < STOC_COUNTER_STRIPES; stripe++) {
            const stoc_word *counters = record_counters(c, record) + stripe * STOC_COUNTERS_PER_STRIPE;
            reads += load(counters + STOC_COUNTER_HITS) + load(counters + STOC_COUNTER_MISSES);
            evicted += load(counters + STOC_COUNTER_EVICTED);
        }
    uint64_t begin = load(lap_word(c, LAP_READS));
    if (reads < begin + c->samples || !cas(lap_word(c, LAP_READS), begin, reads))
        return;
    store(lap_word(c, LAP_REPLACED), replaced_since(c, begin, reads, evicted));
    store(lap_word(c, LAP_EVICTED), evicted);
}

enum { RETIRED = 1, CHANGED = 0 };

/* Evicts the victim from a slot, which is the claim's then: RETIRED. CHANGED: the victim is another
 * client's now. ECORRUPT: words changed that only this client may change. */
static int retire(struct stoc_claim *k, uint32_t record, uint64_t victim, uint64_t slot)
{
    stoc_cache *c = k->cache;
    stoc_word *list = victim_word(c, record, k->entry), *word = index_word(c, victim);
    uint64_t w = load(word);
    if (state_of(w) != READY || place_of(c, w) != slot + 1)
        return CHANGED;
    store(intent_word(c, record, k->entry), slot + 1);
    store(list, victim + 1);
    STOC_FAULT("evict.listed");
    uint64_t retiring = pack(c, RETIRING, record + 1, generation_of(c, w) + 1, slot + 1);
    if (!cas(word, w, retiring)) {
        store(list, 0);
        STOC_FAULT("evict.unlisted");
        return CHANGED;
    }
    STOC_FAULT("evict.retired");
    /* only the owner of RETIRING changes the entry and the word */
    bool moved = cas(slot_word(c, slot), victim + 1, k->sample + 1);
    if (moved)
        STOC_FAULT("evict.moved");
    bool emptied = cas(word, retiring, pack(c, EMPTY, 0, generation_of(c, retiring) + 1, 0));
    if (emptied)
        STOC_FAULT("evict.emptied");
    persist(c, victim);
    store(list, 0);
    STOC_FAULT("evict.unlisted");
    if (!moved || !emptied) {
        free_slot(c, slot, k->sample, "abort.slot", "abort.cursor"); /* the word does not name it: abort does not */
        return corrupt(c);
    }
    count(c, STOC_COUNTER_EVICTED, 1);
    k->offset = slot + 1;
    return RETIRED;
}

/*
 * Takes the slot of another sample for the claim. STORED: the slot table names the claim's sample;
 * k->offset is slot + 1. FULL: the policy lets no sample go. ECORRUPT.
 */
INTERNAL int evict(struct stoc_claim *k, uint32_t record)
{
    stoc_cache *c = k->cache;
    end_lap(c);
    struct candidate newcomer = {.sample = k->sample, .size = k->length,
                                 .cost = cost_of(load(meta_word(c, k->sample)))};
    for (int tries = 0; tries < SEARCHES; tries++) {
        struct search search = begin_search(&c->rule, newcomer, spread_of(load(spread_word(c))));
        while (search.left > 0) {
            uint64_t number = atomic_fetch_add(hand_word(c), 1), s = search_slot(&search, number);
            uint64_t listed = load(slot_word(c, s));
            if (listed > c->samples)
                return corrupt(c);
            if (listed == 0) { /* it was freed, and free_from may never say so: who freed it may be dead */
                if (draw_claim(k, record) && try_free_slot(k, record, s))
                    return STOC_STORED;
                search.left--;
                continue;
            }
            uint64_t w = load(index_word(c, listed - 1));
            if (state_of(w) != READY || place_of(c, w) != s + 1 || listed == k->sample + 1) {
                search.left--; /* others fill or evict it, or it came back in another slot */
                continue;
            }
            struct candidate held = {.sample = listed - 1, .size = k->length, .reference = reference_of(c, s),
                                     .cost = cost_of(load(meta_word(c, listed - 1)))};
            set_reference(c, s, held.reference, search_look(&search, number, s, &held));
        }
        if (!search_ends(&search))
            return STOC_FULL;
        int result = retire(k, record, search.victim.sample, search.slot);
        if (result != CHANGED)
            return result == RETIRED ? STOC_STORED : result;
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

/*
 * evict.c - a slot goes to another sample. docs/spec/eviction.md.
 */
#include "protocol.h"

enum { TRIES = 64 }; /* slots that one set looks at: samples that others fill or evict are no victims */

/*
 * Takes the slot of another sample for the claim. STORED: the slot table names the claim's sample;
 * the intent says which slot. FULL: there is no victim. ECORRUPT: words changed that only this
 * client may change. is_short: there is no memory for the pages of a slot that is free.
 */
INTERNAL int evict(struct stoc_claim *k, uint32_t record, bool is_short)
{
    stoc_cache *c = k->cache;
    stoc_word *list = victim_word(c, record, k->entry);
    for (uint64_t tries = MIN(c->slots, TRIES); tries > 0; tries--) {
        uint64_t s = atomic_fetch_add(hand_word(c), 1) % c->slots, listed = load(slot_word(c, s));
        if (listed == 0) { /* it was freed, and free_from may never say so: who freed it may be dead */
            is_short = is_short || !draw_claim(k, record);
            if (!is_short && try_free_slot(k, record, s))
                return STOC_STORED;
            continue;
        }
        if (listed == k->sample + 1) /* a dead client's, not reclaimed yet */
            continue;
        if (listed > c->samples)
            return corrupt(c);
        stoc_word *word = index_word(c, listed - 1);
        uint64_t w = load(word);
        if (state_of(w) != READY || place_of(c, w) != s + 1)
            continue; /* others fill or evict it, or it came back in another slot */
        store(intent_word(c, record, k->entry), s + 1);
        store(list, listed);
        STOC_FAULT("evict.listed");
        uint64_t retiring = pack(c, RETIRING, record + 1, generation_of(c, w) + 1, s + 1);
        if (!cas(word, w, retiring)) {
            store(list, 0);
            STOC_FAULT("evict.unlisted");
            continue;
        }
        STOC_FAULT("evict.retired");
        /* only the owner of RETIRING changes the entry and the word */
        bool moved = cas(slot_word(c, s), listed, k->sample + 1);
        if (moved)
            STOC_FAULT("evict.moved");
        bool emptied = cas(word, retiring, pack(c, EMPTY, 0, generation_of(c, retiring) + 1, 0));
        if (emptied)
            STOC_FAULT("evict.emptied");
        store(list, 0);
        STOC_FAULT("evict.unlisted");
        if (!moved || !emptied)
            return corrupt(c);
        count(c, STOC_COUNTER_EVICTED, 1);
        return STOC_STORED;
    }
    return STOC_FULL;
}

/* Ends an eviction of a dead client. The victim is READY again if the slot is still its own, else
 * EMPTY. */
INTERNAL void end_eviction(stoc_cache *c, uint32_t record, uint32_t entry)
{
    uint64_t listed = load(victim_word(c, record, entry));
    if (listed == 0 || listed > c->samples)
        return;
    uint64_t w = load(index_word(c, listed - 1)), place = place_of(c, w);
    if (state_of(w) != RETIRING || owner_of(w) != record + 1 || place == 0 || place > c->slots)
        return;
    bool kept = load(slot_word(c, place - 1)) == listed;
    uint64_t to = kept ? pack(c, READY, 0, generation_of(c, w), place) : pack(c, EMPTY, 0, generation_of(c, w) + 1, 0);
    if (cas(index_word(c, listed - 1), w, to))
        STOC_FAULT("reclaim.victim");
}

/*
 * space_arena.c - each sample has one extent of its own size, from the end of the arena, and keeps it until a
 * clear, also while it is EMPTY.
 */
#include "protocol.h"

/* meta belongs to the word if the CAS from the word succeeds, because it changes only while a sample is WRITING. */
static int keeps_extent(const stoc_cache *c, uint64_t w, uint64_t meta, uint64_t length)
{
    uint64_t place = place_of(c, w), units = units_for(length_of(c, meta));
    if (place == 0)
        return state_of(w) == EMPTY ? TAKE : STOC_ECORRUPT;
    if (place > arena_units(c) || units > arena_units(c) - (place - 1))
        return STOC_ECORRUPT;
    return units_for(length) <= units ? KEEP : TAKE;
}

/* false: the word has its old value again, but its extent has changed. */
static bool is_same_extent(const stoc_cache *c, uint64_t sample, uint64_t meta)
{
    return load(meta_word(c, sample)) == meta;
}

static bool arena_full(const stoc_cache *c, uint64_t length)
{
    return arena_unit(load(arena_next_word(c))) + units_for(length) > arena_units(c);
}

/* Takes a new extent for the claim: STORED, FULL (the claim is aborted), ELOST. One thread of a
 * handle at a time, see the protocol. */
static int take_new_extent(struct stoc_claim *k, uint32_t record)
{
    stoc_cache *c = k->cache;
    uint64_t units = units_for(k->length);
    int result = STOC_STORED;
    flag_take(&c->allocating);
    for (;;) {
        uint64_t a = load(arena_next_word(c)), unit = arena_unit(a);
        if (unit + units > arena_units(c)) {
            result = STOC_FULL;
            break;
        }
        store(intent_word(c, record, k->entry), unit | units << INTENT_UNIT_BITS);
        STOC_FAULT("extent.intent");
        if (!cas(arena_next_word(c), a, arena_pack(record + 1, unit + units)))
            continue;
        STOC_FAULT("extent.taken");
        set_length(c, k->sample, k->length);
        if (name_place(k, unit + 1))
            STOC_FAULT("extent.named");
        else
            result = STOC_ELOST;
        break;
    }
    if (result != STOC_STORED)
        store(intent_word(c, record, k->entry), 0);
    flag_release(&c->allocating);
    return result == STOC_FULL ? abort_claim(k, STOC_FULL) : result == STOC_ELOST ? lost(k) : STOC_STORED;
}

static int take_extent(struct stoc_claim *k, uint32_t record)
{
    int result = place_of(k->cache, k->word) ? STOC_STORED : take_new_extent(k, record);
    return result == STOC_STORED ? begin_at(k, record, STOC_UNIT_BYTES, k->length) : result;
}

static uint64_t keep_extent(struct stoc_claim *k) { return place_of(k->cache, k->word); }

/* The extent that a dead claim had allocated but not yet named, as unit + 1. Stores its length in
 * meta. 0: there is none, or it cannot be known. */
static uint64_t unnamed_extent(stoc_cache *c, uint32_t record, uint64_t sample)
{
    for (uint32_t k = 0; k < STOC_CLAIMS_PER_CLIENT; k++) {
        uint64_t intent = intent_for(c, record, k, sample), unit = intent & INTENT_UNIT_MASK,
                 units = intent >> INTENT_UNIT_BITS;
        uint64_t next = load(arena_next_word(c));
        if (units && owner_of(next) == record + 1 && arena_unit(next) == unit + units &&
            unit + units <= arena_units(c)) {
            set_length(c, sample, MIN(units * STOC_UNIT_BYTES, UINT32_MAX));
            return unit + 1;
        }
    }
    return 0;
}

static uint64_t extent_of_dead(stoc_cache *c, uint32_t record, uint32_t entry, uint64_t sample, uint64_t w)
{
    (void)entry;
    return place_of(c, w) ? place_of(c, w) : unnamed_extent(c, record, sample);
}

/* The end of the arena is on the control page, with the other cursors. */
static void clear_arena(stoc_cache *c) { (void)c; }

INTERNAL const struct space arena_space = {
    .draws = true,
    .keeps = keeps_extent,
    .still = is_same_extent,
    .full = arena_full,
    .take = take_extent,
    .free = keep_extent,
    .free_dead = extent_of_dead,
    .clear = clear_arena,
};

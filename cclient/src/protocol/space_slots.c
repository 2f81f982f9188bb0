/*
 * space_slots.c - each sample has one slot. All samples have the same size.
 *
 * With first-indices a sample has the slot of its own number, and needs no table. Else the slot table says
 * which sample has which slot.
 */
#include "protocol.h"

INTERNAL int keeps_slot(const stoc_cache *c, uint64_t w, uint64_t meta, uint64_t length)
{
    (void)meta, (void)length;
    uint64_t place = place_of(c, w);
    if (place == 0)
        return state_of(w) == EMPTY ? TAKE : STOC_ECORRUPT;
    return place <= c->slots && state_of(w) == READY ? KEEP : STOC_ECORRUPT;
}

INTERNAL bool is_same(const stoc_cache *c, uint64_t sample, uint64_t meta)
{
    (void)c, (void)sample, (void)meta;
    return true;
}

static bool slots_full(const stoc_cache *c, uint64_t length)
{
    (void)length;
    return c->slot_table && free_from_of(load(free_from_word(c))) >= c->slots;
}

/* Takes one slot, if it is still free. The word does not name it yet. */
static bool try_free_slot(struct stoc_claim *k, uint32_t record, uint64_t slot)
{
    store(intent_word(k->cache, record, k->entry), slot + 1);
    STOC_FAULT("slot.intent");
    if (!cas(slot_word(k->cache, slot), 0, k->sample + 1))
        return false;
    STOC_FAULT("slot.taken");
    k->offset = slot + 1;
    return true;
}

/* Takes the first free slot that it finds: STORED, and k->offset is slot + 1; FULL. */
static int take_free_slot(struct stoc_claim *k, uint32_t record)
{
    stoc_cache *c = k->cache;
    uint64_t f = load(free_from_word(c));
    for (uint64_t s = free_from_of(f); s < c->slots; s++)
        if (load(slot_word(c, s)) == 0 && try_free_slot(k, record, s)) {
            /* from the word that we read: a slot that was freed since has changed seq, and a search
             * still finds it */
            cas(free_from_word(c), f, free_from_at(f, s + 1));
            return STOC_STORED;
        }
    cas(free_from_word(c), f, free_from_at(f, c->slots));
    return STOC_FULL;
}

/* Takes a free slot for the claim. If none is free, or memory for it is short, a cache that evicts
 * takes the slot of another sample. STORED; FULL and ECORRUPT (the claim is aborted); ELOST. */
static int take_table_slot(struct stoc_claim *k, uint32_t record)
{
    int result = k->open & MEMORY ? take_free_slot(k, record) : STOC_FULL;
    if (result == STOC_FULL && k->cache->evicts) {
        result = evict(k, record);
        k->open &= ~(uint32_t)MEMORY; /* no huge pages: a victim's slot has its pages */
    }
    if (result != STOC_STORED)
        return abort_claim(k, result);
    if (!name_place(k, k->offset)) /* not the intent: other programs may have changed that */
        return lost(k);
    STOC_FAULT("slot.named");
    mark_placed(k->cache, place_of(k->cache, k->word) - 1);
    return STOC_STORED;
}

static int take_slot(struct stoc_claim *k, uint32_t record)
{
    stoc_cache *c = k->cache;
    int result = place_of(c, k->word) ? STOC_STORED : take_table_slot(k, record);
    return result == STOC_STORED ? begin_at(k, record, c->slot_stride, c->slot_stride) : result;
}

/*
 * Frees a slot that a claim on the sample may hold. The cursor moves even if the slot was free
 * already. The client that freed it may have died before it moved the cursor, and no search finds a
 * slot below the cursor.
 */
static void free_slot(stoc_cache *c, uint64_t slot, uint64_t sample, const char *slot_point, const char *cursor_point)
{
    (void)slot_point, (void)cursor_point;
    if (slot >= c->slots)
        return;
    if (cas(slot_word(c, slot), sample + 1, 0))
        STOC_FAULT(slot_point);
    for (;;) {
        uint64_t f = load(free_from_word(c));
        if (cas(free_from_word(c), f, free_from_next(f, MIN(free_from_of(f), slot))))
            break;
    }
    STOC_FAULT(cursor_point);
}

static uint64_t free_own_slot(struct stoc_claim *k)
{
    uint64_t place = place_of(k->cache, k->word);
    if (k->cache->slot_table && place)
        free_slot(k->cache, place - 1, k->sample, "abort.slot", "abort.cursor");
    return 0;
}

/* Of every entry that names the sample: two threads of the dead client may have listed it. */
static uint64_t free_slots_of_dead(stoc_cache *c, uint32_t record, uint32_t entry, uint64_t sample, uint64_t w)
{
    (void)entry;
    if (!c->slot_table)
        return 0;
    if (place_of(c, w))
        free_slot(c, place_of(c, w) - 1, sample, "reclaim.slot", "reclaim.cursor");
    for (uint32_t k = 0; k < STOC_CLAIMS_PER_CLIENT; k++) {
        uint64_t intent = intent_for(c, record, k, sample);
        if (intent && intent != place_of(c, w))
            free_slot(c, intent - 1, sample, "reclaim.slot", "reclaim.cursor");
    }
    return 0;
}

static void clear_slots(stoc_cache *c)
{
    for (uint64_t s = 0; c->slot_table && s < c->slots; s++)
        if (load(slot_word(c, s)) != 0)
            store(slot_word(c, s), 0);
}

static bool take_seen_slot(struct stoc_claim *k, uint32_t record, uint64_t slot, uint64_t entry)
{
    (void)entry;
    return draw_claim(k, record) && try_free_slot(k, record, slot);
}

/* Evicts the victim from its slot, which is the claim's then. */
static int retire_slot(struct stoc_claim *k, uint32_t record, uint64_t victim, uint64_t slot)
{
    stoc_cache *c = k->cache;
    stoc_word *list = victim_word(c, record, k->entry), *word = index_word(c, victim);
    uint64_t w = load(word);
    if (state_of(w) != READY || place_of(c, w) != slot + 1)
        return STOC_FULL;
    store(intent_word(c, record, k->entry), slot + 1);
    store(list, victim + 1);
    STOC_FAULT("evict.listed");
    uint64_t retiring = pack(c, RETIRING, record + 1, generation_of(c, w) + 1, slot + 1);
    if (!cas(word, w, retiring)) {
        store(list, 0);
        STOC_FAULT("evict.unlisted");
        return STOC_FULL;
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
    return STOC_STORED;
}

INTERNAL const struct space slot_space = {
    .draws = true,
    .keeps = keeps_slot,
    .still = is_same,
    .full = slots_full,
    .take = take_slot,
    .take_seen = take_seen_slot,
    .retire = retire_slot,
    .free = free_own_slot,
    .free_dead = free_slots_of_dead,
    .clear = clear_slots,
};

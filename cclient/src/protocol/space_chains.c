/*
 * space_chains.c - samples of an arena that evicts lie in chains of slots. docs/spec/arena-eviction.md.
 *
 * A chain begins with the slot that has the sample's last bytes. stoc_claim.offset is the slot + 1 at the
 * head of the claim's chain; 0: it has no slot.
 */
#include "protocol.h"

static uint64_t chain_intent(uint64_t candidate, uint64_t rest) { return candidate | rest << 32; }

/* Lists the slots of a claimed sample, the first bytes first, if there are n of them. Returns how many there are: -1 if
 * the chain has a slot of another sample. It follows the chain once, so that the slots are those that it has checked. */
static int64_t read_chain(const struct stoc_claim *k, uint32_t *slots, uint64_t n)
{
    const stoc_cache *c = k->cache;
    uint64_t has = 0;
    for (uint64_t s = k->offset; s != 0; has++) {
        uint64_t l = s <= c->slots && has < c->slots ? load(slot_word(c, s - 1)) : 0;
        if (link_sample(l) != k->sample + 1)
            return -1;
        if (has < n)
            slots[n - 1 - has] = (uint32_t)(s - 1);
        s = link_next(l);
    }
    return (int64_t)has;
}

/* Takes one slot, if it is still free. The word does not name it yet: the intent does, with the rest of
 * the chain. */
static bool try_link(struct stoc_claim *k, uint32_t record, uint64_t s, uint64_t l)
{
    stoc_cache *c = k->cache;
    store(intent_word(c, record, k->entry), chain_intent(s + 1, k->offset));
    STOC_FAULT("slot.intent");
    if (!cas(slot_word(c, s), l, link_pack(k->sample + 1, k->offset, l)))
        return false;
    STOC_FAULT("slot.taken");
    k->offset = s + 1;
    return true;
}

/* Takes any free slot, and puts it in front of the chain. Begins where this handle took or freed a slot
 * last. */
static bool take_any_link(struct stoc_claim *k, uint32_t record)
{
    stoc_cache *c = k->cache;
    uint64_t groups = group_count(c), first = atomic_load_explicit(&c->group, memory_order_relaxed);
    for (uint64_t n = 0; n < groups; n++) {
        uint64_t g = (first + n) % groups, base = g * STOC_GROUP_SLOTS, end = MIN(STOC_GROUP_SLOTS, c->slots - base);
        stoc_word *word = group_word(c, g);
        uint64_t f = load(word);
        bool skipped = false; /* a free slot without pages, while memory is short */
        for (uint64_t s = free_from_of(f); s < end; s++) {
            uint64_t l = load(slot_word(c, base + s));
            if (link_sample(l) != 0)
                continue;
            if (!(l & LINK_PAGES) && !draw_claim(k, record)) {
                skipped = true;
                continue;
            }
            if (!try_link(k, record, base + s, l))
                continue;
            if (!skipped)
                cas(word, f, free_from_at(f, s + 1)); /* one try, as in take_free_slot */
            atomic_store_explicit(&c->group, g, memory_order_relaxed);
            return true;
        }
        if (!skipped && free_from_of(f) < end)
            cas(word, f, free_from_at(f, end));
    }
    return false;
}

/* Tells searches that a slot was freed. */
static void lower_group(stoc_cache *c, uint64_t slot, const char *cursor_point)
{
    (void)cursor_point;
    stoc_word *word = group_word(c, slot / STOC_GROUP_SLOTS);
    for (;;) {
        uint64_t f = load(word);
        if (cas(word, f, free_from_next(f, MIN(free_from_of(f), slot % STOC_GROUP_SLOTS))))
            break;
    }
    STOC_FAULT(cursor_point);
    atomic_store_explicit(&c->group, slot / STOC_GROUP_SLOTS, memory_order_relaxed);
}

/* Frees the slots of a sample from head on, as far as they are the sample's. The intent says where the
 * rest begins before a slot is free: then its entry may name another chain. */
static void free_chain(stoc_cache *c, uint64_t sample, uint64_t head, stoc_word *intent, const char *slot_point,
                       const char *cursor_point)
{
    (void)slot_point;
    while (head != 0 && head <= c->slots) {
        uint64_t l = load(slot_word(c, head - 1));
        if (link_sample(l) != sample + 1)
            return;
        store(intent, chain_intent(head, link_next(l)));
        if (cas(slot_word(c, head - 1), l, link_pack(0, 0, l)))
            STOC_FAULT(slot_point);
        lower_group(c, head - 1, cursor_point);
        head = link_next(l);
    }
}

/* Frees all slots of a claimed sample. */
static uint64_t free_own_chain(struct stoc_claim *k)
{
    free_chain(k->cache, k->sample, k->offset, intent_word(k->cache, owner_of(k->word) - 1, k->entry), "abort.slot",
               "abort.cursor");
    k->offset = 0;
    return 0;
}

/* Frees the chain of a dead claim: what the intents of all entries that list the sample name, and what
 * the word names. */
static uint64_t free_chains_of_dead(stoc_cache *c, uint32_t record, uint32_t entry, uint64_t sample, uint64_t w)
{
    for (uint32_t e = 0; e < STOC_CLAIMS_PER_CLIENT; e++) {
        stoc_word *intent = intent_word(c, record, e);
        uint64_t candidate = load(intent) & UINT32_MAX, rest = load(intent) >> 32;
        if (load(entry_word(c, record, e)) != sample + 1 || candidate == 0 || candidate > c->slots)
            continue;
        if (link_sample(load(slot_word(c, candidate - 1))) == sample + 1) {
            free_chain(c, sample, candidate, intent, "reclaim.slot", "reclaim.cursor");
        } else { /* the client that freed it may have died before it moved the group's word */
            lower_group(c, candidate - 1, "reclaim.cursor");
            free_chain(c, sample, rest, intent, "reclaim.slot", "reclaim.cursor");
        }
    }
    free_chain(c, sample, place_of(c, w), intent_word(c, record, entry), "reclaim.slot", "reclaim.cursor");
    return 0;
}

/* Makes a READY sample EMPTY, as an overwrite does that is aborted. The phase need not be OPEN: a clear waits for the
 * entry of the newcomer, which is listed all the time. */
static int remove_sample(struct stoc_claim *k, uint32_t record, uint64_t victim, uint64_t slot)
{
    (void)slot;
    stoc_cache *c = k->cache;
    stoc_word *word = index_word(c, victim);
    uint32_t entry = take_entry(c, record, victim);
    if (entry == STOC_CLAIMS_PER_CLIENT)
        return STOC_BUSY;
    STOC_FAULT("evict.listed");
    uint64_t w = load(word), ours = pack(c, WRITING, record + 1, generation_of(c, w) + 1, place_of(c, w));
    if (state_of(w) != READY || !cas(word, w, ours)) {
        drop_entry(c, record, entry);
        STOC_FAULT("evict.unlisted");
        return STOC_FULL;
    }
    STOC_FAULT("evict.retired");
    free_chain(c, victim, place_of(c, w), intent_word(c, record, entry), "abort.slot", "abort.cursor");
    bool emptied = cas(word, ours, pack(c, EMPTY, 0, generation_of(c, ours) + 1, 0));
    if (emptied)
        STOC_FAULT("evict.emptied");
    drop_entry(c, record, entry);
    STOC_FAULT("evict.unlisted");
    if (!emptied)
        return corrupt(c);
    count(c, STOC_COUNTER_EVICTED, 1);
    return STOC_STORED;
}

static bool take_seen_link(struct stoc_claim *k, uint32_t record, uint64_t slot, uint64_t entry)
{
    return ((entry & LINK_PAGES) || draw_claim(k, record)) && try_link(k, record, slot, entry);
}

/* Takes the slots of a claimed sample: STORED, ELOST. After FULL, BUSY, ECORRUPT and ESYSTEM the claim is
 * aborted. An overwrite keeps its slots if it needs as many. */
static int take_chain(struct stoc_claim *k, uint32_t record)
{
    stoc_cache *c = k->cache;
    uint64_t n = slots_for(c, k->length), taken = 0, victims = 0, head = 0;
    k->offset = place_of(c, k->word);
    uint32_t *slots = malloc(n * sizeof *slots);
    if (!slots)
        return abort_claim(k, STOC_ESYSTEM);
    atomic_store(&c->taken[k->entry], slots); /* end_claim frees it */
    int64_t has = read_chain(k, slots, n);
    if (has < 0)
        return abort_claim(k, corrupt(c));
    if ((uint64_t)has == n)
        return STOC_STORED;
    if (has > 0)
        free_own_chain(k);
    while (taken < n) {
        int result = STOC_STORED;
        if (!take_any_link(k, record))
            result = ++victims <= 2 * n + 16 ? evict(k, record) : STOC_FULL;
        if (result != STOC_STORED)
            return abort_claim(k, result);
        if (k->offset != head) {
            head = k->offset;
            slots[taken++] = (uint32_t)(head - 1);
        }
    }
    if (!name_place(k, head))
        return lost(k);
    STOC_FAULT("slot.named");
    mark_placed(c, head - 1);
    for (uint64_t j = 0; j < n; j++)
        if (!(load(slot_word(c, slots[j])) & LINK_PAGES))
            take_huge(c, record, slots[j] * c->slot_stride, c->slot_stride);
    return STOC_STORED;
}

/* Where the bytes of a claim from at on lie in the payload: at most n, side by side. */
INTERNAL uint64_t run_of(const struct stoc_claim *k, uint64_t at, uint64_t n, uint64_t *offset)
{
    const stoc_cache *c = k->cache;
    *offset = k->offset + at;
    if (!c->chains)
        return n;
    const uint32_t *slots = atomic_load(&c->taken[k->entry]);
    uint64_t first = at / c->slot_stride, end = first + 1;
    while (end * c->slot_stride < at + n && slots[end] == slots[end - 1] + 1)
        end++;
    *offset = slots[first] * c->slot_stride + at % c->slot_stride;
    return MIN(n, end * c->slot_stride - at);
}

/* Notes in the slots of a claim which of them have all their pages now. */
INTERNAL void mark_pages(const struct stoc_claim *k)
{
    const stoc_cache *c = k->cache;
    const uint32_t *slots = atomic_load(&c->taken[k->entry]);
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), n = slots_for(c, k->length);
    for (uint64_t j = 0; j < n; j++) {
        stoc_word *entry = slot_word(c, slots[j]);
        uint64_t l = load(entry), written = MIN(k->length - j * c->slot_stride, c->slot_stride);
        if (!(l & LINK_PAGES) && ROUND_UP(written, page) >= c->slot_stride)
            store(entry, l | LINK_PAGES);
    }
}

/* Copies a sample, the last slot first. false: the chain is no chain of a sample of this length, perhaps
 * because the sample has changed. Stays inside the payload whatever the slot table says. */
INTERNAL bool copy_chain(const stoc_cache *c, uint64_t w, void *dst, uint64_t length)
{
    uint64_t place = place_of(c, w), stride = c->slot_stride;
    for (uint64_t k = slots_for(c, length); k > 0;) {
        uint64_t high = place, low = place; /* slots side by side */
        for (;;) {
            if (low - 1 >= c->slots)
                return false;
            place = link_next(load(slot_word(c, low - 1)));
            k--;
            if (k == 0 || place != low - 1 || place == 0)
                break;
            low = place;
        }
        uint64_t from = k * stride, to = MIN(from + (high - low + 1) * stride, length);
        copy_plain((unsigned char *)dst + from, c->payload + (low - 1) * stride, to - from);
    }
    return place == 0;
}

/* Bytes of the slots that are taken. */
INTERNAL uint64_t chain_bytes(const stoc_cache *c)
{
    uint64_t taken = 0;
    for (uint64_t s = 0; s < c->slots; s++)
        taken += link_sample(load(slot_word(c, s))) != 0;
    return taken * c->slot_stride;
}

/* Only a search can tell. */
static bool chains_full(const stoc_cache *c, uint64_t length)
{
    (void)c, (void)length;
    return false;
}

static void clear_chains(stoc_cache *c)
{
    for (uint64_t s = 0; s < c->slots; s++) {
        uint64_t l = load(slot_word(c, s)), freed = link_pack(0, 0, l);
        if (l != freed)
            store(slot_word(c, s), freed);
    }
    for (uint64_t g = 0; g < group_count(c); g++)
        store(group_word(c, g), free_from_next(load(group_word(c, g)), 0));
}

INTERNAL const struct space chain_space = {
    .draws = false, /* but when it takes the first slot without pages */
    .keeps = keeps_slot,
    .still = is_same,
    .full = chains_full,
    .take = take_chain,
    .take_seen = take_seen_link,
    .retire = remove_sample,
    .free = free_own_chain,
    .free_dead = free_chains_of_dead,
    .clear = clear_chains,
};

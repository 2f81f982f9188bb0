/*
 * reclaim.c - claims of dead clients. docs/spec/protocol.md, Reclaim the claims of record r.
 */
#include "protocol.h"

/* The intent of entry number k of the record, if that entry names the sample; otherwise 0. */
INTERNAL uint64_t intent_for(const stoc_cache *c, uint32_t record, uint32_t entry, uint64_t sample)
{
    return load(entry_word(c, record, entry)) == sample + 1 ? load(intent_word(c, record, entry)) : 0;
}

/* Empties the sample if the dead owner of the record was writing it: 1, else 0. Safe to repeat: it
 * frees the slot first and changes the word last. */
static unsigned reclaim_sample(stoc_cache *c, uint32_t record, uint32_t entry, uint64_t sample)
{
    uint64_t w = load(index_word(c, sample));
    if (state_of(w) != WRITING || owner_of(w) != record + 1)
        return 0;
    uint64_t kept = c->space->free_dead(c, record, entry, sample, w);
    if (!cas(index_word(c, sample), w, pack(c, EMPTY, 0, generation_of(c, w) + 1, kept)))
        return 0; /* another client or program has changed the word */
    STOC_FAULT("reclaim.word");
    persist(c, sample);
    return 1;
}

/*
 * Reclaims every claim that the record lists. Counts them as recovered, or as aborted if its own
 * client closes. The caller holds the record's lock, so no thread of its owner runs the protocol.
 * Returns how many.
 */
INTERNAL uint64_t reclaim_record(stoc_cache *c, uint32_t record, stoc_word *counters, enum stoc_counter which)
{
    uint64_t taken = 0;
    for (uint32_t k = 0; k < STOC_CLAIMS_PER_CLIENT; k++) {
        uint64_t listed = load(entry_word(c, record, k));
        if (listed == 0) {
            if (load(intent_word(c, record, k)) != 0) /* should never happen, but our own claims rely on 0 */
                store(intent_word(c, record, k), 0);
            continue;
        }
        if (c->last_state == RETIRING)
            end_eviction(c, record, k, counters);
        if (listed <= c->samples)
            taken += reclaim_sample(c, record, k, listed - 1);
        else
            add_to(counters, STOC_COUNTER_CORRUPT, 1);
        store(intent_word(c, record, k), 0);
        if (c->last_state == RETIRING)
            store(victim_word(c, record, k), 0);
        store(entry_word(c, record, k), 0);
        STOC_FAULT("reclaim.entry");
    }
    if (taken)
        add_to(counters, which, taken);
    return taken;
}

/* Whether the record lists a claim. Callers ask before they try its lock. */
static bool lists_claims(const stoc_cache *c, uint32_t record)
{
    for (uint32_t k = 0; k < STOC_CLAIMS_PER_CLIENT; k++)
        if (load(entry_word(c, record, k)) != 0)
            return true;
    return false;
}

/*
 * Reclaims the claims of a record if its owner is dead: how many, or -1 if it lives or is this
 * client. The caller holds c->probing.
 */
static int64_t probe_record(stoc_cache *c, uint32_t record)
{
    if (record >= c->client_records || record + 1 == atomic_load(&c->owner) || lock_record(c, record) != 1)
        return -1;
    int64_t taken = (int64_t)reclaim_record(c, record, counters_of(c), STOC_COUNTER_RECOVERED);
    unlock_record(c, record);
    return taken;
}

/* The same for callers without c->probing. Returns -1 also if another thread of this handle has
 * it. */
INTERNAL int64_t reclaim_if_dead(stoc_cache *c, uint32_t record)
{
    if (!flag_try(&c->probing))
        return -1;
    int64_t taken = probe_record(c, record);
    flag_release(&c->probing);
    return taken;
}

int64_t stoc_recover(stoc_cache *c)
{
    uint32_t owner;
    int code = c ? require_owner(c, &owner) : STOC_ECLOSED;
    if (code < 0)
        return code;
    int64_t sum = 0;
    flag_take(&c->probing);
    for (uint32_t record = 0, high = records_used(c); record < high; record++) {
        int64_t taken = lists_claims(c, record) ? probe_record(c, record) : 0;
        if (taken > 0)
            sum += taken;
    }
    flag_release(&c->probing);
    return sum;
}

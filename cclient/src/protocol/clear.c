/*
 * clear.c - empties the cache in a phase in which no client claims. docs/spec/protocol.md, Clear.
 */
#include "protocol.h"

/* Waits until it has seen every entry of every record as 0 once. Returns 0, or the number of claims
 * that are left at the deadline. */
static uint64_t drain_claims(stoc_cache *c, uint32_t owner, uint64_t deadline)
{
    bool registering = atomic_load(&c->owner) == 0; /* then this thread holds c->probing */
    for (uint32_t record = 0, high = records_used(c); record < high; record++) {
        for (uint32_t k = 0; k < STOC_CLAIMS_PER_CLIENT; k++) {
            for (unsigned round = 0; atomic_load(entry_word(c, record, k)) != 0; round++) {
                /* sequentially consistent, as in claim.entry and claim.phase */
                if (record + 1 != owner && round % 16 == 0 && (registering || flag_try(&c->probing))) {
                    bool dead = lock_record(c, record) == 1;
                    if (dead) {
                        reclaim_record(c, record, record_counters(c, owner - 1), STOC_COUNTER_RECOVERED);
                        unlock_record(c, record);
                    }
                    if (!registering)
                        flag_release(&c->probing);
                    if (dead)
                        continue;
                }
                if (now_ns() >= deadline)
                    return MAX(claims_listed(c), 1);
                sleep_ns(round < 20 ? 50000 : 1000000);
            }
        }
    }
    return 0;
}

/*
 * Steps 2 to 4 of a clear. phase is our phase word: CLEARING with this owner. Returns 0 when the
 * cache is empty and open. Otherwise returns the number of claims left at the deadline, and stores
 * give_up as the phase. give_up is OPEN if this client began the clear. It is CLEARING by owner 0
 * if this client took the clear over: the dead client may have emptied a part, and a cache that is
 * half cleared must not open.
 */
INTERNAL int finish_clear(stoc_cache *c, uint64_t phase, uint32_t owner, uint64_t deadline, uint64_t give_up)
{
    uint64_t in_the_way = drain_claims(c, owner, deadline);
    if (in_the_way) {
        cas(phase_word(c), phase, give_up);
        return (int)MIN(in_the_way, INT_MAX);
    }
    STOC_FAULT("clear.drained");
    for (uint64_t i = 0; i < c->samples; i++) {
        for (uint64_t w = load(index_word(c, i)); state_of(w) != EMPTY || place_of(c, w) != 0;
             w = load(index_word(c, i))) {
            if (cas(index_word(c, i), w, pack(c, EMPTY, 0, generation_of(c, w) + 1, 0))) {
                STOC_FAULT("clear.index");
                break;
            }
        }
    }
    c->space->clear(c);
    for (uint64_t i = 0; c->lengths && i < c->samples; i++)
        store(&c->lengths[i], 0);
    store(free_from_word(c), free_from_next(load(free_from_word(c)), 0));
    store(arena_next_word(c), 0);
    persist_all(c);
    STOC_FAULT("clear.cursors");
    if (cas(phase_word(c), phase, phase_open(phase_epoch(phase) + 1)))
        STOC_FAULT("clear.open");
    return 0;
}

/*
 * Takes the clear of a dead client over, if the phase word is still phase. 1: taken. 0: the phase
 * has changed. -1: the clearer lives, or another thread of this handle probes it. While it
 * changes the word it holds the lock on the dead client's record: no new client may get its number
 * while the phase word names it.
 */
static int take_over_clear(stoc_cache *c, uint64_t phase, uint32_t owner)
{
    uint64_t ours = phase_clearing_by(owner, phase_epoch(phase));
    uint32_t clearer = owner_of(phase);
    /* Owner 0, or our own number: the last owner of the number died in the clear. No thread of this
     * handle runs it, because we hold c->clearing. */
    if (clearer == 0 || clearer == owner)
        return cas(phase_word(c), phase, ours);
    if (clearer > c->client_records || !flag_try(&c->probing))
        return -1;
    int taken = -1;
    if (lock_record(c, clearer - 1) == 1) {
        taken = cas(phase_word(c), phase, ours);
        unlock_record(c, clearer - 1);
    }
    flag_release(&c->probing);
    return taken;
}

/*
 * Finishes the clear that phase names, if its clearer is dead. true: the caller loads the phase
 * again. false: the clearer lives, or live clients had claims until the timeout.
 */
INTERNAL bool adopt_clear(stoc_cache *c, uint64_t phase, uint32_t owner, uint64_t timeout_ns)
{
    if (!flag_try(&c->clearing))
        return false; /* another thread of this handle clears */
    int taken = take_over_clear(c, phase, owner);
    bool again = taken == 0;
    if (taken == 1) {
        STOC_FAULT("clear.phase");
        again = finish_clear(c, phase_clearing_by(owner, phase_epoch(phase)), owner, now_ns() + timeout_ns,
                             phase_clearing_by(0, phase_epoch(phase))) == 0;
    }
    flag_release(&c->clearing);
    return again;
}

int stoc_clear(stoc_cache *c, unsigned timeout_ms)
{
    uint32_t owner;
    int code = c ? require_owner(c, &owner) : STOC_ECLOSED;
    if (code < 0)
        return code;
    uint64_t deadline = now_ns() + (uint64_t)timeout_ms * 1000000u, phase;
    while (phase_clearing(phase = load(phase_word(c)))) {
        if (owner_of(phase) > c->client_records)
            return corrupt(c);
        if (!adopt_clear(c, phase, owner, 0))
            return STOC_BUSY;
    }
    if (!flag_try(&c->clearing))
        return STOC_BUSY;
    uint64_t ours = phase_clearing_by(owner, phase_epoch(phase));
    code = STOC_BUSY;
    if (cas(phase_word(c), phase, ours)) {
        STOC_FAULT("clear.phase");
        code = finish_clear(c, ours, owner, deadline, phase) == 0 ? 0 : STOC_ETIMEOUT;
    }
    flag_release(&c->clearing);
    return code;
}

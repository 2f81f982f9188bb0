/*
 * clear.c - emptying the cache: a phase of its own, in which nobody claims. docs/protocol.md, Clear.
 */

/* Waits until every entry of every record was seen 0 once: 0, or how many claims were in the way at the deadline. */
static uint64_t drain_claims(stoc_cache *c, uint32_t owner, uint64_t deadline)
{
    bool registering = atomic_load(&c->owner) == 0; /* then this thread holds c->probing */
    uint32_t high = (uint32_t)MIN(atomic_load(clients_high_word(c)), c->client_records);
    for (uint32_t record = 0; record < high; record++) {
        for (uint32_t k = 0; k < STOC_CLAIMS_PER_CLIENT; k++) {
            for (unsigned round = 0; atomic_load(entry_word(c, record, k)) != 0; round++) { /* sequentially consistent: against claim.entry, claim.phase */
                if (record + 1 != owner && round % 16 == 0 && (registering || flag_try(&c->probing))) {
                    bool dead = lock_record(c, record) == 1;
                    if (dead) {
                        take_back(c, record, registering ? record_counters(c, owner - 1) : counters_of(c));
                        unlock_record(c, record);
                    }
                    if (!registering)
                        flag_release(&c->probing);
                    if (dead)
                        continue;
                }
                if (now_ns() >= deadline) {
                    uint64_t in_the_way = 0;
                    for (uint32_t r = 0; r < high; r++)
                        for (uint32_t e = 0; e < STOC_CLAIMS_PER_CLIENT; e++)
                            in_the_way += atomic_load(entry_word(c, r, e)) != 0;
                    return MAX(in_the_way, 1);
                }
                sleep_ns(round < 20 ? 50000 : 1000000);
            }
        }
    }
    return 0;
}

/*
 * Steps 2 to 4 of a clear whose phase word is ours: CLEARING of owner. 0: done, the cache is empty and open. Else how many claims were in the way at the deadline; the
 * cache is open again and as full as before.
 */
static int finish_clear(stoc_cache *c, uint64_t phase, uint32_t owner, uint64_t deadline)
{
    uint64_t in_the_way = drain_claims(c, owner, deadline);
    if (in_the_way) {
        cas(phase_word(c), phase, phase_pack(0, phase_epoch(phase)));
        return (int)MIN(in_the_way, INT_MAX);
    }
    STOC_FAULT("clear.drained");
    for (uint64_t i = 0; i < c->samples; i++) {
        for (uint64_t w = load(index_word(c, i)); state_of(w) != EMPTY || place_of(c, w) != 0; w = load(index_word(c, i))) {
            if (cas(index_word(c, i), w, pack(c, EMPTY, 0, generation_of(c, w) + 1, 0))) {
                STOC_FAULT("clear.index");
                break;
            }
        }
    }
    if (c->slot_table) {
        for (uint64_t s = 0; s < c->slots; s++)
            if (load(slot_word(c, s)) != 0)
                store(slot_word(c, s), 0);
    }
    store(free_from_word(c), ((load(free_from_word(c)) >> 32) + 1) << 32);
    store(arena_next_word(c), 0);
    STOC_FAULT("clear.cursors");
    cas(phase_word(c), phase, phase_pack(0, phase_epoch(phase) + 1));
    STOC_FAULT("clear.open");
    return 0;
}

/*
 * Makes the clear of a dead client ours: the new phase word, or 0 if its clearer lives or somebody else was faster. With the dead one's record locked meanwhile: its number
 * must not be given out before the phase word has stopped naming it.
 */
static uint64_t take_over_clear(stoc_cache *c, uint64_t phase, uint32_t owner)
{
    uint32_t record = owner_of(phase) - 1;
    if (record >= c->client_records || record + 1 == owner || !flag_try(&c->probing))
        return 0;
    uint64_t ours = phase_pack(owner, phase_epoch(phase));
    bool taken = false;
    if (lock_record(c, record) == 1) {
        taken = cas(phase_word(c), phase, ours);
        unlock_record(c, record);
    }
    flag_release(&c->probing);
    if (taken)
        STOC_FAULT("clear.phase");
    return taken ? ours : 0;
}

/* Called by a claimant that met CLEARING: finishes the clear of a dead client. true: look again. false: a clear is under way. */
static bool help_clear(stoc_cache *c, uint32_t owner)
{
    if (!flag_try(&c->clearing))
        return false; /* another thread of this handle is at it */
    uint64_t phase = load(phase_word(c));
    bool again = !phase_clearing(phase);
    if (!again) {
        uint64_t ours = owner_of(phase) == owner ? phase : take_over_clear(c, phase, owner);
        if (ours) {
            finish_clear(c, ours, owner, now_ns() + INHERITED_CLEAR_NS);
            again = true;
        }
    }
    flag_release(&c->clearing);
    return again;
}

int stoc_clear(stoc_cache *c, unsigned timeout_ms)
{
    uint32_t owner;
    if (!c)
        return STOC_ECLOSED;
    int code = require_owner(c, &owner);
    if (code < 0)
        return code;
    if (!flag_try(&c->clearing))
        return STOC_BUSY;
    uint64_t deadline = now_ns() + (uint64_t)timeout_ms * 1000000u, ours = 0;
    while (!ours) {
        uint64_t phase = load(phase_word(c));
        if (!phase_clearing(phase)) {
            if (cas(phase_word(c), phase, phase_pack(owner, phase_epoch(phase)))) {
                ours = phase_pack(owner, phase_epoch(phase));
                STOC_FAULT("clear.phase");
            }
        } else if (owner_of(phase) == owner) {
            ours = phase;
        } else if ((ours = take_over_clear(c, phase, owner)) == 0 && load(phase_word(c)) == phase) {
            break;
        }
    }
    code = !ours ? STOC_BUSY : finish_clear(c, ours, owner, deadline) != 0 ? STOC_ETIMEOUT : 0;
    flag_release(&c->clearing);
    return code;
}

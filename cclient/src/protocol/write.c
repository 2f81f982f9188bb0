/*
 * write.c - set, claim, write, publish, abort. docs/spec/protocol.md, Set.
 */
#include "protocol.h"

/*
 * Bytes that we write, and then checksum while they are in the second-level cache. Measured in one
 * run against one bare pwrite, for 150,528 bytes and 8 MiB: 1.10 and 1.10 times its time. The
 * checksum first: 1.15 and 1.20. Pieces of 64 KiB: 1.16 and 1.18.
 */
#define PIECE (256 * 1024)

/* What a fill draws for a new place: with chains, each slot takes whole pages. */
static uint64_t drawn_for(const stoc_cache *c, uint64_t length)
{
    return pages_of(c->chains ? slots_for(c, length) * MAX(c->slot_stride, (uint64_t)sysconf(_SC_PAGESIZE)) : length);
}

/* Settles the draw of a fill that takes no more memory. */
static void settle_claim(struct stoc_claim *k)
{
    if (k->open & DRAWN)
        settle(k->cache, owner_of(k->word) - 1, drawn_for(k->cache, k->length));
    k->open &= ~(uint32_t)DRAWN;
}

/* Lists a sample that we are about to claim. Returns the entry; STOC_CLAIMS_PER_CLIENT: all are in use. The handle notes
 * which entries it uses: no two claims of it share one, whatever other programs write into the record. */
INTERNAL uint32_t take_entry(stoc_cache *c, uint32_t record, uint64_t sample)
{
    for (uint32_t entry = 0; entry < STOC_CLAIMS_PER_CLIENT; entry++) {
        uint32_t bit = UINT32_C(1) << entry;
        if (load(entry_word(c, record, entry)) != 0 || atomic_fetch_or(&c->entries, bit) & bit)
            continue;
        if (cas(entry_word(c, record, entry), 0, sample + 1))
            return entry;
        atomic_fetch_and(&c->entries, ~bit);
    }
    return STOC_CLAIMS_PER_CLIENT;
}

/* Frees a claim entry: the intent first, so that a free entry never has one. */
INTERNAL void drop_entry(stoc_cache *c, uint32_t record, uint32_t entry)
{
    store(intent_word(c, record, entry), 0);
    store(entry_word(c, record, entry), 0);
    atomic_fetch_and(&c->entries, ~(UINT32_C(1) << entry));
}

/* The last step of every claim: the record lists it no more. */
static void end_claim(struct stoc_claim *k)
{
    settle_claim(k);
    free(atomic_exchange(&k->cache->taken[k->entry], NULL));
    drop_entry(k->cache, owner_of(k->word) - 1, k->entry);
    k->open = 0;
}

/* Ends a claim whose word another process has changed: ELOST. Leaves its place alone, because that
 * process may have given it to another sample. */
INTERNAL int lost(struct stoc_claim *k)
{
    count(k->cache, STOC_COUNTER_LOST, 1);
    end_claim(k);
    return STOC_ELOST;
}

/* Aborts a claim: its slots become free, an extent stays with the sample. Returns result, or ELOST.
 * Keeps errno. */
INTERNAL int abort_claim(struct stoc_claim *k, int result)
{
    stoc_cache *c = k->cache;
    int number = errno;
    if (load(index_word(c, k->sample)) != k->word)
        return lost(k);
    uint64_t kept = c->space->free(k);
    if (!cas(index_word(c, k->sample), k->word, pack(c, EMPTY, 0, generation_of(c, k->word) + 1, kept)))
        return lost(k);
    STOC_FAULT("abort.word");
    persist(c, k->sample);
    end_claim(k);
    STOC_FAULT("abort.entry");
    count(c, STOC_COUNTER_ABORTED, 1);
    errno = number;
    return result;
}

/* Aborts the claim after a failed write. ENOSPC and EDQUOT mean FULL, all other errors ESYSTEM. On a disk
 * each error means FULL. */
static int write_failed(struct stoc_claim *k)
{
    if (k->cache->disk)
        return abort_claim(k, STOC_FULL);
    return abort_claim(k, errno == ENOSPC || errno == EDQUOT ? STOC_FULL : STOC_ESYSTEM);
}

/* Adds a place to the claimed word with one CAS. */
INTERNAL bool name_place(struct stoc_claim *k, uint64_t place)
{
    stoc_cache *c = k->cache;
    uint64_t named = pack(c, WRITING, owner_of(k->word), generation_of(c, k->word), place);
    if (!cas(index_word(c, k->sample), k->word, named))
        return false;
    k->word = named;
    return true;
}

/* Says where the bytes of a claim lie, whose places are `each` bytes apart. A place whose memory was drawn is new,
 * and its bytes may get huge pages. */
INTERNAL int begin_at(struct stoc_claim *k, uint32_t record, uint64_t each, uint64_t bytes)
{
    k->offset = (place_of(k->cache, k->word) - 1) * each;
    if ((k->open & MEMORY) && !k->cache->disk)
        take_huge(k->cache, record, k->offset, bytes);
    return STOC_STORED;
}

/* Draws memory for a new place of the claim, once. A reserved cache has it already. */
INTERNAL bool draw_claim(struct stoc_claim *k, uint32_t record)
{
    if (k->open & (MEMORY | SHORT))
        return k->open & MEMORY;
    if ((k->cache->flags & STOC_FLAG_RESERVED) || k->cache->disk)
        k->open |= MEMORY;
    else
        k->open |= draw(k->cache, record, drawn_for(k->cache, k->length)) ? MEMORY | DRAWN : SHORT;
    return k->open & MEMORY;
}

/* Whether stoc_keep leaves a sample out. */
INTERNAL bool is_left_out(const stoc_cache *c, uint64_t i)
{
    if (!atomic_load_explicit(&c->keeps, memory_order_acquire))
        return false;
    uint64_t bucket = bucket_of(i);
    return !(atomic_load_explicit(&c->kept[bucket / 8], memory_order_relaxed) >> bucket % 8 & 1);
}

int stoc_keep(stoc_cache *c, const uint8_t *kept)
{
    if (!c)
        return STOC_ECLOSED;
    if (c->read_only)
        return STOC_EREADONLY;
    for (uint64_t k = 0; kept && k < STOC_KEPT_BYTES; k++)
        atomic_store_explicit(&c->kept[k], kept[k], memory_order_relaxed);
    atomic_store_explicit(&c->keeps, kept != NULL, memory_order_release);
    return 0;
}

/* Steps 1 to 5 of a set: STORED (k is open), EXISTS, BUSY, FULL, OUT or an error. Counts only
 * failures inside. */
static int begin(stoc_cache *c, uint64_t i, uint64_t length, bool overwrite, uint64_t nanoseconds, struct stoc_claim *k)
{
    uint32_t owner;
    int code = require_owner(c, &owner);
    if (code < 0)
        return code;
    uint32_t record = owner - 1;
    bool first_indices = !c->variable && !c->slot_table;
    if (first_indices && i >= c->slots)
        return STOC_OUT;
again:;
    uint64_t w = load(index_word(c, i)), meta = load(meta_word(c, i));
    bool owned = state_of(w) == WRITING || state_of(w) == RETIRING;
    if (state_of(w) > c->last_state || (owned && (owner_of(w) == 0 || owner_of(w) > c->client_records)))
        return corrupt(c);
    if (state_of(w) == READY && !overwrite)
        return STOC_EXISTS;
    if (state_of(w) != READY && is_left_out(c, i))
        return STOC_OUT;
    if (owned) {
        if (reclaim_if_dead(c, owner_of(w) - 1) < 0)
            return STOC_BUSY;
        /* a dead owner whose record does not list the claim: no correct client does that */
        if (load(index_word(c, i)) == w)
            return corrupt(c);
        goto again;
    }
    if (c->chains && slots_for(c, length) > c->slots)
        return STOC_FULL;
    int placed = c->space->keeps(c, w, meta, length);
    if (placed < 0) {
        if (load(index_word(c, i)) != w) /* meta belonged to another word */
            goto again;
        return corrupt(c);
    }
    bool fits = placed == KEEP;
    /* Full, unless a dead client left its clear unfinished: then the claim below finishes that
     * clear. */
    bool full = !fits && c->space->full(c, length);
    if (full && !c->evicts && !phase_clearing(load(phase_word(c)))) {
        if (load(index_word(c, i)) != w) /* this sample may have got the last place */
            goto again;
        return STOC_FULL;
    }

    uint32_t entry = take_entry(c, record, i);
    if (entry == STOC_CLAIMS_PER_CLIENT)
        return STOC_BUSY;
    STOC_FAULT("claim.entry");
    /* sequentially consistent: a clear changes it before it reads the entries */
    uint64_t phase = atomic_load(phase_word(c));
    STOC_FAULT("claim.phase");
    if (phase_clearing(phase)) {
        drop_entry(c, record, entry);
        if (owner_of(phase) > c->client_records)
            return corrupt(c);
        if (adopt_clear(c, phase, owner, ADOPT_AT_CLAIM_NS))
            goto again;
        return STOC_BUSY;
    }
    /* a place that the sample keeps has its pages, and so has the slot of a victim */
    struct stoc_claim claim = {.cache = c, .length = length};
    if (!fits && c->space->draws && !(full && c->evicts) && !draw_claim(&claim, record) && !c->evicts) {
        drop_entry(c, record, entry);
        return STOC_FULL;
    }
    uint64_t generation = generation_of(c, w) + (state_of(w) == READY);
    uint64_t claimed = pack(c, WRITING, owner, generation, first_indices ? i + 1 : fits ? place_of(c, w) : 0);
    if (!cas(index_word(c, i), w, claimed)) {
        if (claim.open & DRAWN)
            settle(c, record, drawn_for(c, length));
        drop_entry(c, record, entry);
        if (state_of(load(index_word(c, i))) == READY)
            goto again;
        return STOC_BUSY;
    }
    STOC_FAULT("claim.word");
    *k = (struct stoc_claim){.cache = c, .sample = i, .word = claimed, .length = length, .entry = entry,
                             .generation = atomic_load_explicit(&c->fork_generation, memory_order_relaxed),
                             .open = OPEN | claim.open};
    if (fits && !c->space->still(c, i, meta))
        return abort_claim(k, STOC_BUSY);
    if (nanoseconds)
        store_cost(c, i, length, nanoseconds);
    return c->space->take(k, record);
}

/* Step 6: writes bytes of a claim from at on, and continues *crc. STORED. FULL and ESYSTEM end the
 * claim. */
static int write_bytes(struct stoc_claim *k, uint64_t at, const void *data, size_t length, uint32_t *crc)
{
    stoc_cache *c = k->cache;
    const unsigned char *p = data;
    while (length) {
        size_t n = MIN(length, PIECE);
#ifdef STOC_FAULT_POINTS
        if (at < (k->length + 1) / 2)
            n = MIN(n, (k->length + 1) / 2 - at);
#endif
        for (uint64_t done = 0, offset, run; done < n; done += run) {
            run = run_of(k, at + done, n - done, &offset);
            if (c->disk ? disk_write(c, p + done, run, c->payload_offset + offset)
                        : pwrite_all(c->fd, p + done, run, c->payload_offset + offset))
                return write_failed(k);
        }
        if (crc)
            *crc = c->crc(*crc, p, n);
        p += n, at += n, length -= n;
        if (at == (k->length + 1) / 2)
            STOC_FAULT("write.half");
    }
    return STOC_STORED;
}

/* Step 7: STORED, ELOST. */
static int publish(struct stoc_claim *k, uint32_t crc)
{
    stoc_cache *c = k->cache;
    stoc_word *meta = meta_word(c, k->sample);
    if (c->chains)
        mark_pages(k);
    if (c->variable)
        store(sum_word(c, k->sample), crc);
    store(meta, meta_published(load(meta), c->variable ? (uint32_t)k->length : crc));
    STOC_FAULT("publish.meta");
    if (!cas(index_word(c, k->sample), k->word, pack(c, READY, 0, generation_of(c, k->word), place_of(c, k->word))))
        return lost(k); /* the CAS releases payload and meta to readers that load the word */
    STOC_FAULT("publish.word");
    persist(c, k->sample);
    end_claim(k);
    STOC_FAULT("publish.entry");
    stoc_word *counters = counters_of(c);
    add_to(counters, STOC_COUNTER_STORED, 1);
    add_to(counters, STOC_COUNTER_STORED_BYTES, k->length);
    return STOC_STORED;
}

/* Checks index, size and flags before any other step. */
static int check_set(const stoc_cache *c, int64_t index, uint64_t length, unsigned flags)
{
    if (!c)
        return STOC_ECLOSED;
    if (c->read_only)
        return STOC_EREADONLY;
    if (BAD_INDEX(c, index))
        return STOC_EINDEX;
    if (flags & ~(STOC_OVERWRITE | STOC_WAIT))
        return invalid(ENOSYS);
    return (c->variable ? length > c->sample_bytes : length != c->sample_bytes) ? STOC_ESCHEMA : 0;
}

/* Empties a READY sample of a disk whose bytes are wrong. */
INTERNAL void drop_sample(stoc_cache *c, uint64_t i)
{
    struct stoc_claim k;
    uint64_t length = length_of(c, load(meta_word(c, i)));
    if (state_of(load(index_word(c, i))) == READY && length <= c->sample_bytes &&
        begin(c, i, length, true, 0, &k) == STOC_STORED)
        abort_claim(&k, 0);
}

/* Counts EXISTS, BUSY, FULL or OUT. Returns the result. */
static int count_result(stoc_cache *c, int result)
{
    static const enum stoc_counter counters[] = {[STOC_EXISTS] = STOC_COUNTER_EXISTS, [STOC_BUSY] = STOC_COUNTER_BUSY,
                                                 [STOC_FULL] = STOC_COUNTER_FULL, [STOC_OUT] = STOC_COUNTER_OUT};
    if (result > STOC_STORED)
        count(c, counters[result], 1);
    return result;
}

/* Calls begin, repeats it while BUSY if the caller waits, and counts the result. */
static int begin_counted(stoc_cache *c, uint64_t i, uint64_t length, unsigned flags, uint64_t nanoseconds,
                         struct stoc_claim *k)
{
    int result = c->disk && !disk_accepts(c) ? STOC_FULL : begin(c, i, length, flags & STOC_OVERWRITE, nanoseconds, k);
    if (result == STOC_BUSY && (flags & STOC_WAIT)) {
        uint64_t deadline = now_ns() + WAIT_NS, pause = 20000;
        do {
            sleep_ns(pause);
            pause = MIN(pause * 2, 2000000);
            result = begin(c, i, length, flags & STOC_OVERWRITE, nanoseconds, k);
        } while (result == STOC_BUSY && now_ns() < deadline);
    }
    return count_result(c, result);
}

/* Checks the arguments of a set, and adds up its bytes. */
static int check_parts(const stoc_cache *c, int64_t index, const struct iovec *parts, int count_of_parts, unsigned flags,
                       uint64_t *length)
{
    *length = 0;
    if (count_of_parts < 0 || (count_of_parts > 0 && !parts))
        return invalid(count_of_parts < 0 ? 0 : EFAULT);
    for (int part = 0; part < count_of_parts; part++) {
        if (parts[part].iov_len && !parts[part].iov_base)
            return invalid(EFAULT);
        *length = parts[part].iov_len > UINT64_MAX - *length ? UINT64_MAX : *length + parts[part].iov_len;
    }
    return check_set(c, index, *length, flags);
}

#define ANY_EPOCH UINT64_MAX

/* stoc_set_loaded, unless the cache was cleared after this epoch: then OUT. */
static int set_in_epoch(stoc_cache *c, int64_t index, const struct iovec *parts, int count_of_parts, unsigned flags,
                        uint64_t nanoseconds, uint64_t epoch)
{
    struct stoc_claim k;
    uint64_t length, at = 0;
    uint32_t crc = 0;
    int result = nanoseconds > INT64_MAX ? invalid(ERANGE) : check_parts(c, index, parts, count_of_parts, flags, &length);
    if (result < 0 || (result = begin_counted(c, (uint64_t)index, length, flags, nanoseconds, &k)) != STOC_STORED)
        return result;
    /* a clear that begins from now on waits for this claim */
    if (epoch != ANY_EPOCH && phase_epoch(load(phase_word(c))) != epoch)
        return abort_claim(&k, STOC_OUT);
    for (int part = 0; part < count_of_parts; at += parts[part++].iov_len) {
        result = write_bytes(&k, at, parts[part].iov_base, parts[part].iov_len, &crc);
        if (result != STOC_STORED)
            return count_result(c, result);
    }
    STOC_FAULT("write.done");
    return publish(&k, crc);
}

int stoc_set_loaded(stoc_cache *c, int64_t index, const struct iovec *parts, int count_of_parts, unsigned flags,
                    uint64_t nanoseconds)
{
    return set_in_epoch(c, index, parts, count_of_parts, flags, nanoseconds, ANY_EPOCH);
}

int stoc_setv(stoc_cache *c, int64_t index, const struct iovec *parts, int count_of_parts, unsigned flags)
{
    return stoc_set_loaded(c, index, parts, count_of_parts, flags, 0);
}

int stoc_set(stoc_cache *c, int64_t index, const void *data, size_t length, unsigned flags)
{
    struct iovec whole = {.iov_base = (void *)(uintptr_t)data, .iov_len = length};
    return stoc_set_loaded(c, index, &whole, 1, flags, 0);
}

/* ------------------------------------------------------------ in the background */

/* Writes a sample of the queue of a disk. */
INTERNAL void write_later(void *cache, const struct waiting *w)
{
    struct iovec whole = {.iov_base = (void *)(uintptr_t)w->data, .iov_len = w->length};
    STOC_FAULT("later.write");
    set_in_epoch(cache, w->index, &whole, 1, 0, 0, w->epoch);
}

int stoc_set_later(stoc_cache *c, int64_t index, const struct iovec *parts, int count_of_parts)
{
    uint64_t length;
    int result = check_parts(c, index, parts, count_of_parts, 0, &length);
    if (result < 0)
        return result;
    if (!c->disk)
        return invalid(EOPNOTSUPP);
    if (state_of(load(index_word(c, (uint64_t)index))) == READY)
        result = STOC_EXISTS;
    else if (is_left_out(c, (uint64_t)index))
        result = STOC_OUT;
    else if (!disk_may_accept(c) || (!c->evicts && c->space->full(c, length)))
        result = STOC_FULL;
    else if (!put_in_queue(&c->disk->queue, index, phase_epoch(load(phase_word(c))), parts, count_of_parts, length))
        result = STOC_BUSY;
    return count_result(c, result);
}

int stoc_flush(stoc_cache *c, unsigned timeout_ms)
{
    if (!c)
        return STOC_ECLOSED;
    return !c->disk || flush_queue(&c->disk->queue, now_ns() + (uint64_t)timeout_ms * 1000000u) ? 0 : STOC_ETIMEOUT;
}

/* ------------------------------------------------------------ in pieces */

#define OUT_OF_ORDER UINT64_MAX /* stoc_claim.written: stoc_publish computes the checksum from the slot */

int stoc_claim(stoc_cache *c, int64_t index, size_t length, unsigned flags, struct stoc_claim *k)
{
    if (!k)
        return invalid(EFAULT);
    memset(k, 0, sizeof *k);
    int result = check_set(c, index, length, flags);
    if (result < 0 || (result = begin_counted(c, (uint64_t)index, length, flags, 0, k)) != STOC_STORED)
        return result;
    /* Allocate now, so that bytes never written are no hole: they are 0, or what the place held before. */
    for (uint64_t at = 0, offset, run; at < length && !c->disk; at += run) {
        run = run_of(k, at, length - at, &offset);
        if (allocate(c->fd, c->payload_offset + offset, run, NULL, NULL) != 0)
            return count_result(c, write_failed(k));
    }
    settle_claim(k);
    return STOC_STORED;
}

/* EINVAL: the claim is not open. ELOST: it was opened before a fork, so it belongs to the
 * parent. */
static int check_claim(const struct stoc_claim *k)
{
    if (!k || !k->open || !k->cache)
        return invalid(k ? EBADF : EFAULT);
    return k->generation == atomic_load(&k->cache->fork_generation) ? 0 : STOC_ELOST;
}

int stoc_write(struct stoc_claim *k, uint64_t offset, const void *data, size_t length)
{
    int code = check_claim(k);
    if (code < 0)
        return code;
    if (offset > k->length || length > k->length - offset)
        return STOC_ESCHEMA;
    if (length && !data)
        return invalid(EFAULT);
    bool in_order = k->written == offset;
    code = write_bytes(k, offset, data, length, in_order ? &k->crc : NULL);
    k->written = in_order ? offset + length : OUT_OF_ORDER;
    return code;
}

int stoc_publish(struct stoc_claim *k) { return stoc_publish_loaded(k, 0); }

int stoc_publish_loaded(struct stoc_claim *k, uint64_t nanoseconds)
{
    int code = nanoseconds > INT64_MAX ? invalid(ERANGE) : check_claim(k);
    if (code < 0)
        return code;
    STOC_FAULT("write.done");
    if (nanoseconds)
        store_cost(k->cache, k->sample, k->length, nanoseconds);
    if (k->written != k->length && k->cache->disk) {
        if (!disk_crc(k->cache, k->offset, k->length, &k->crc))
            return disk_failed(k->cache), write_failed(k);
    } else if (k->written != k->length) {
        k->crc = 0;
        for (uint64_t at = 0, offset, run; at < k->length; at += run) { /* stoc_claim has allocated its pages */
            run = run_of(k, at, k->length - at, &offset);
            k->crc = k->cache->crc(k->crc, k->cache->payload + offset, run);
        }
    }
    return publish(k, k->crc);
}

int stoc_abort(struct stoc_claim *k)
{
    return check_claim(k) == 0 ? abort_claim(k, 0) : 0;
}

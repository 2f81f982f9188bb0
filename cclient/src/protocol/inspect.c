/*
 * inspect.c - info, states, stats, verify, explain. Nothing here changes a sample.
 */
#include "protocol.h"

int stoc_info(const stoc_cache *c, struct stoc_info *info)
{
    if (!c)
        return STOC_ECLOSED;
    if (!info || info->struct_bytes != sizeof *info)
        return invalid(info ? 0 : EFAULT);
    struct stoc_info all = {.struct_bytes = sizeof all, .samples = c->samples, .slots = c->slots,
                            .sample_bytes = c->sample_bytes, .slot_stride = c->slot_stride,
                            .segment_bytes = c->segment_bytes, .payload_offset = c->payload_offset,
                            .payload_bytes = c->payload_bytes, .limit_bytes = c->limit_bytes,
                            .created_ns = c->created_ns, .client_records = c->client_records,
                            .field_count = c->field_count, .variable = c->variable, .policy = c->policy,
                            .unlink_last = (c->flags & STOC_FLAG_UNLINK_LAST) != 0,
                            .reserved_pages = (c->flags & STOC_FLAG_RESERVED) != 0, .read_only = c->read_only,
                            .layout_version = STOC_LAYOUT_VERSION, .fd = c->disk ? -1 : c->fd,
                            .payload = c->payload, .programs = (c->flags & STOC_FLAG_PROGRAMS) != 0, .lengths = c->lengths != NULL,
                            .below = load(below_word(c))};
    memcpy(all.uuid, c->uuid, sizeof all.uuid);
    memcpy(all.name, c->name, sizeof c->name);
    memcpy(all.fingerprint, c->fingerprint, sizeof c->fingerprint);
    memcpy(all.path, c->path, sizeof c->path);
    memcpy(all.decode, c->decode, sizeof c->decode);
    *info = all;
    return 0;
}

int stoc_field(const stoc_cache *c, uint32_t k, struct stoc_field *field)
{
    if (!c)
        return STOC_ECLOSED;
    if (!field || k >= c->field_count)
        return invalid(field ? 0 : EFAULT);
    *field = c->fields[k];
    return 0;
}

/* out: memory for what a call tells of n samples; any other for a call without such. */
static int check_range(const stoc_cache *c, uint64_t first, uint64_t n, const void *out)
{
    if (!c)
        return STOC_ECLOSED;
    if (n && !out)
        return invalid(EFAULT);
    return first <= c->samples && n <= c->samples - first ? 0 : STOC_EINDEX;
}

/* OUT is computed, never stored. */
static int state_at(const stoc_cache *c, uint64_t i)
{
    unsigned state = state_of(load(index_word(c, i)));
    if (state == EMPTY)
        return !c->variable && !c->slot_table && i >= c->slots ? STOC_STATE_OUT : STOC_STATE_EMPTY;
    if (state > c->last_state)
        return STOC_STATE_CORRUPT;
    return state == RETIRING ? STOC_STATE_WRITING : (int)state; /* it will be EMPTY, or READY again */
}

int stoc_state(const stoc_cache *c, int64_t index)
{
    if (!c)
        return STOC_ECLOSED;
    return BAD_INDEX(c, index) ? STOC_EINDEX : state_at(c, (uint64_t)index);
}

int stoc_states(const stoc_cache *c, uint64_t first, uint64_t n, uint8_t *states)
{
    int code = check_range(c, first, n, states);
    if (code < 0)
        return code;
    for (uint64_t k = 0; k < n; k++)
        states[k] = (uint8_t)state_at(c, first + k);
    return 0;
}

int stoc_costs(const stoc_cache *c, uint64_t first, uint64_t n, uint64_t *nanoseconds)
{
    int code = check_range(c, first, n, nanoseconds);
    if (code < 0)
        return code;
    uint64_t spread = spread_of(load(spread_word(c)));
    for (uint64_t k = 0; k < n; k++)
        nanoseconds[k] = cost_nanoseconds(believed(cost_of(load(meta_word(c, first + k))), spread));
    return 0;
}

int stoc_learn_length(stoc_cache *c, int64_t index, uint64_t items)
{
    if (!c)
        return STOC_ECLOSED;
    if (BAD_INDEX(c, index))
        return STOC_EINDEX;
    if (!c->lengths || items > STOC_MAX_ITEMS)
        return invalid(0);
    if (c->read_only)
        return STOC_EREADONLY;
    stoc_word *word = &c->lengths[index];
    if (load(word) == items + 1)
        return STOC_EXISTS; /* so a hit leaves the line shared */
    store(word, items + 1);
    return STOC_STORED;
}

int stoc_learned_lengths(const stoc_cache *c, uint64_t first, uint64_t n, uint64_t *lengths)
{
    int code = check_range(c, first, n, lengths);
    if (code < 0)
        return code;
    if (!c->lengths)
        return invalid(0);
    for (uint64_t k = 0; k < n; k++) {
        uint64_t word = load(&c->lengths[first + k]);
        lengths[k] = word > STOC_MAX_ITEMS + 1 ? 0 : word;
    }
    return 0;
}

int stoc_peek(stoc_cache *c, int64_t index, void *dst, size_t capacity)
{
    if (!c)
        return STOC_ECLOSED;
    if (BAD_INDEX(c, index))
        return STOC_EINDEX;
    if (c->variable)
        return STOC_ESCHEMA;
    if (!dst)
        return invalid(EFAULT);
    if (capacity < c->sample_bytes)
        return STOC_ESCHEMA;
    uint64_t offset = (uint64_t)index * c->slot_stride, bytes;
    uint64_t w = load(index_word(c, (uint64_t)index)), meta = load(meta_word(c, (uint64_t)index));
    if (c->slot_table) {
        int found = find(c, (uint64_t)index, &offset, &bytes);
        if (found != STOC_HIT)
            return found;
    } else if ((uint64_t)index >= c->slots) {
        return STOC_MISS;
    }
    int64_t n = pread_all(payload_fd(c), dst, c->sample_bytes, c->payload_offset + offset);
    if (n < 0)
        return STOC_ESYSTEM;
    if (c->evicts && !unchanged(index_word(c, (uint64_t)index), w, meta))
        return STOC_MISS; /* the slot may be another sample's now */
    return (uint64_t)n == c->sample_bytes ? STOC_HIT : STOC_EFORMAT; /* shorter: the file was truncated */
}

enum { VERIFIED = 1, BAD = 2 };

struct copy {
    unsigned char *bytes;
    uint64_t room;
};

/* The bytes of a READY sample: in the payload, or with chains and on a disk in the copy. NULL: its place is not possible,
 * or there is no memory for the copy (*code is EMEMORY then). */
static const unsigned char *bytes_of(const stoc_cache *c, uint64_t w, uint64_t meta, uint64_t *length,
                                     struct copy *copy, int *code)
{
    uint64_t offset;
    if (!locate(c, w, meta, &offset, length))
        return NULL;
    if (!c->chains && !c->disk)
        return c->payload + offset;
    if (*length >= copy->room) {
        unsigned char *more = realloc(copy->bytes, *length + 1);
        if (!more) {
            *code = STOC_EMEMORY;
            return NULL;
        }
        *copy = (struct copy){more, *length + 1};
    }
    if (c->disk)
        return pread_all(payload_fd(c), copy->bytes, *length, c->payload_offset + offset) == (int64_t)*length ? copy->bytes
                                                                                                          : NULL;
    return copy_chain(c, w, copy->bytes, *length) ? copy->bytes : NULL;
}

/* A set of flags. VERIFIED: the sample was READY. BAD: its words or its bytes are wrong. Or EMEMORY. */
static int verify_sample(const stoc_cache *c, uint64_t i, struct copy *copy)
{
    for (int tries = 0; tries < MAX_COPIES; tries++) {
        uint64_t w = load(index_word(c, i)), meta = load(meta_word(c, i)), length;
        if (state_of(w) != READY)
            return state_of(w) > c->last_state ? BAD : 0;
        uint32_t crc = crc_of(c, i, meta);
        int code = 0;
        const unsigned char *bytes = bytes_of(c, w, meta, &length, copy, &code);
        bool bad = !bytes || c->crc(0, bytes, length) != crc;
        if (code < 0)
            return code;
        if (unchanged(index_word(c, i), w, meta))
            return bad ? VERIFIED | BAD : VERIFIED;
    }
    return 0; /* it keeps changing, so it was never READY long enough to check */
}

int64_t stoc_verify(stoc_cache *c, uint64_t first, uint64_t n, uint64_t *checked, int64_t *bad)
{
    int code = check_range(c, first, n, c);
    if (code < 0)
        return code;
    uint64_t seen = 0;
    int64_t corrupt = 0;
    int result = 0;
    struct copy copy = {NULL, 0};
    for (uint64_t i = first; i < first + n && (result = verify_sample(c, i, &copy)) >= 0; i++) {
        seen += (result & VERIFIED) != 0;
        if ((result & BAD) && corrupt++ == 0 && bad)
            *bad = (int64_t)i;
    }
    free(copy.bytes);
    if (corrupt)
        count(c, STOC_COUNTER_CORRUPT, (uint64_t)corrupt);
    if (result < 0)
        return result;
    if (checked)
        *checked = seen;
    return corrupt;
}

void stoc_count_passed(stoc_cache *c, uint64_t n)
{
    if (c)
        count(c, STOC_COUNTER_PASSED, n);
}

INTERNAL uint64_t counted(const stoc_cache *c, enum stoc_counter which)
{
    uint64_t sum = 0;
    for (uint32_t record = 0, high = records_used(c); record < high; record++)
        sum += sum_of(record_counters(c, record), which);
    return sum;
}

int stoc_changes(const stoc_cache *c, uint64_t *clears, uint64_t *stored)
{
    if (!c)
        return STOC_ECLOSED;
    if (!clears || !stored)
        return invalid(EFAULT);
    *clears = phase_epoch(load(phase_word(c)));
    *stored = counted(c, STOC_COUNTER_STORED);
    return 0;
}

/* Everything but struct_bytes: 0, or ESYSTEM. */
static int fill_stats(stoc_cache *c, struct stoc_stats *stats)
{
    stats->evicted = counted(c, STOC_COUNTER_EVICTED);
    stats->hits = counted(c, STOC_COUNTER_HITS);
    stats->misses = counted(c, STOC_COUNTER_MISSES);
    stats->stored = counted(c, STOC_COUNTER_STORED);
    stats->exists = counted(c, STOC_COUNTER_EXISTS);
    stats->busy = counted(c, STOC_COUNTER_BUSY);
    stats->full = counted(c, STOC_COUNTER_FULL);
    stats->out = counted(c, STOC_COUNTER_OUT);
    stats->stored_bytes = counted(c, STOC_COUNTER_STORED_BYTES);
    stats->recovered = counted(c, STOC_COUNTER_RECOVERED);
    stats->aborted = counted(c, STOC_COUNTER_ABORTED);
    stats->lost = counted(c, STOC_COUNTER_LOST);
    stats->retried = counted(c, STOC_COUNTER_RETRIED);
    stats->corrupt = counted(c, STOC_COUNTER_CORRUPT);
    stats->passed = counted(c, STOC_COUNTER_PASSED);
    for (uint32_t record = 0, high = records_used(c); record < high; record++) {
        if (record_alive(c, record))
            stats->clients_live++;
        else
            stats->clients_ended++;
    }
    uint64_t named = 0;
    for (uint64_t i = 0; i < c->samples; i++) {
        uint64_t w = load(index_word(c, i)), length = length_of(c, load(meta_word(c, i)));
        if (state_of(w) == READY) {
            stats->ready++;
            stats->ready_bytes += length;
        }
        if (c->variable && !c->chains && place_of(c, w))
            named += units_for(length) * STOC_UNIT_BYTES;
    }
    if (c->chains) {
        stats->arena_next_bytes = chain_bytes(c);
        stats->arena_lost_bytes = stats->arena_next_bytes - MIN(stats->ready_bytes, stats->arena_next_bytes);
        stats->arena_free_bytes = c->payload_bytes - stats->arena_next_bytes;
    } else if (c->variable) {
        stats->arena_next_bytes = arena_unit(load(arena_next_word(c))) * STOC_UNIT_BYTES;
        stats->arena_lost_bytes = stats->arena_next_bytes > named ? stats->arena_next_bytes - named : 0;
    }
    struct stat st;
    if (stat_fd(payload_fd(c), &st) != 0)
        return STOC_ESYSTEM;
    stats->allocated_bytes = (uint64_t)st.st_blocks * 512;
    stats->clears = phase_epoch(load(phase_word(c)));
    stats->replaced = replaced_of(c, stats->hits + stats->misses, stats->evicted);
    return 0;
}

int stoc_stats(stoc_cache *c, struct stoc_stats *stats)
{
    if (!c)
        return STOC_ECLOSED;
    if (!stats || stats->struct_bytes != sizeof *stats)
        return invalid(stats ? 0 : EFAULT);
    struct stoc_stats now = {.struct_bytes = sizeof now};
    int code = fill_stats(c, &now);
    *stats = now;
    return code;
}

INTERNAL unsigned claims_listed(const stoc_cache *c)
{
    unsigned claims = 0;
    for (uint32_t record = 0, high = records_used(c); record < high; record++)
        for (uint32_t entry = 0; entry < STOC_CLAIMS_PER_CLIENT; entry++)
            claims += load(entry_word(c, record, entry)) != 0;
    return claims;
}

/* Says which argument was not valid: what invalid() left in errno. */
static int explain_invalid(const stoc_cache *c, int why, int64_t i, const char *name, char *buffer, size_t size)
{
    switch (why) {
    case EFAULT:
        return snprintf(buffer, size, "a call for sample %ld of %s got NULL for a pointer that it needs", i, name);
    case EOPNOTSUPP:
        return snprintf(buffer, size, "sample %ld of %s: %s", i, name,
                        c->disk     ? "this cache lies on a disk, and gives out copies of single samples only; use "
                                      "stoc_get"
                        : c->evicts ? "this cache evicts, and so gives out no views; use stoc_get or stoc_gather"
                                    : "only disk caches have sets in the background; use stoc_set");
    case ENOSYS:
        return snprintf(buffer, size, "a set of sample %ld of %s got a flag that is neither STOC_OVERWRITE nor STOC_WAIT",
                        i, name);
    case ERANGE:
        return snprintf(buffer, size, "the load of sample %ld of %s took more than %ld ns; give 0 if it is unknown", i,
                        name, INT64_MAX);
    case EBADF:
        return snprintf(buffer, size, "the claim of sample %ld of %s is not open; claim the sample again", i, name);
    default:
        return snprintf(buffer, size, "an argument of a call for sample %ld of %s is not valid", i, name);
    }
}

/* What a code of a call for a sample means, with the numbers. why: what the call left in errno. */
static int explain(const stoc_cache *c, int code, int why, int64_t index, uint64_t bytes, const char *name, char *buffer,
                   size_t size)
{
    switch (code) {
    case STOC_STORED:
    case STOC_EXISTS:
        return snprintf(buffer, size, "sample %ld of %s: %s", index, name, stoc_strerror(code));
    case STOC_BUSY:
        return snprintf(buffer, size,
                        "sample %ld of %s: another client is filling it, a clear is under way, or this handle has %lu "
                        "claims open; use your own copy, or wait (STOC_WAIT)",
                        index, name, STOC_CLAIMS_PER_CLIENT);
    case STOC_FULL:
        if (c->chains)
            return snprintf(buffer, size,
                            "sample %ld of %lu bytes does not fit into %s: it takes %lu of %lu slots of %lu bytes, and "
                            "the policy gave it too few, or memory is short; make a cache of a larger size, or clear "
                            "it",
                            index, bytes, name, slots_for(c, bytes), c->slots, c->slot_stride);
        if (c->variable)
            return snprintf(buffer, size,
                            "sample %ld of %lu bytes does not fit into %s: %lu of %lu bytes of its arena are taken, or "
                            "memory is short; make a cache of a larger size, or clear it",
                            index, bytes, name, arena_unit(load(arena_next_word(c))) * STOC_UNIT_BYTES,
                            c->payload_bytes);
        return snprintf(buffer, size,
                        "no free slot for sample %ld in %s: all of its %lu slots of %lu bytes are taken, or memory is "
                        "short; make a cache of a larger size, or clear it",
                        index, name, c->slots, c->sample_bytes);
    case STOC_OUT:
        if (atomic_load(&c->keeps))
            return snprintf(buffer, size,
                            "sample %ld is not stored in %s: this handle keeps only some samples, and this is none of "
                            "them; another node keeps it",
                            index, name);
        return snprintf(buffer, size,
                        "sample %ld has no slot in %s: first-indices gives its %lu slots to the samples below; create "
                        "it first-come, or with more slots",
                        index, name, c->slots);
    case STOC_EINDEX:
        return snprintf(buffer, size, "sample index %ld is not in 0..%lu (%s has %lu samples)", index, c->samples - 1,
                        name, c->samples);
    case STOC_ESCHEMA:
        if (c->variable)
            return snprintf(buffer, size,
                            "%lu bytes for sample %ld of %s: a sample has at most %lu; store less, or create the cache "
                            "with larger sample_bytes",
                            bytes, index, name, c->sample_bytes);
        return snprintf(buffer, size,
                        "%lu bytes for sample %ld of %s: a sample has exactly %lu; pass a buffer of that size", bytes,
                        index, name, c->sample_bytes);
    case STOC_EREADONLY:
        return snprintf(buffer, size, "%s is attached for reading only; attach it for writing", name);
    case STOC_ECLOSED:
        return snprintf(buffer, size, "the cache is closed; attach again");
    case STOC_ECLIENTS:
        return snprintf(buffer, size,
                        "all %u client records of %s are held by live clients; end some, or create the cache with more "
                        "client records (at most %lu)",
                        c->client_records, name, STOC_MAX_CLIENT_RECORDS);
    case STOC_ETIMEOUT:
        return snprintf(buffer, size,
                        "%s was not cleared: %u claims of live clients are in the way; publish or abort them, wait "
                        "longer, or end those clients",
                        name, claims_listed(c));
    case STOC_ESYSTEM:
        return snprintf(buffer, size, "a system call for sample %ld of %s failed: %s", index, name, strerror(why));
    case STOC_ELOST:
        return snprintf(buffer, size,
                        "the claim of sample %ld of %s was no longer ours: it was made before a fork, or another "
                        "program changed the cache; set it again",
                        index, name);
    case STOC_ECORRUPT:
        return snprintf(buffer, size,
                        "sample %ld of %s has an index word that is not possible; run `stocached verify`, then clear "
                        "the cache",
                        index, name);
    case STOC_EINVAL:
        return explain_invalid(c, why, index, name, buffer, size);
    default:
        return snprintf(buffer, size, "%s (sample %ld of %s, %lu bytes)", stoc_strerror(code), index, name, bytes);
    }
}

size_t stoc_explain(const stoc_cache *c, int code, int64_t index, uint64_t bytes, char *buffer, size_t size)
{
    int number = errno;
    const char *name = !c ? "the cache" : c->name[0] ? c->name : c->disk ? c->path : "the cache without a name";
    if (!buffer || size == 0)
        return 0;
    int n = c || code == STOC_ECLOSED ? explain(c, code, number, index, bytes, name, buffer, size)
                                      : snprintf(buffer, size, "%s", stoc_strerror(code));
    return MIN((size_t)MAX(n, 0), size - 1);
}

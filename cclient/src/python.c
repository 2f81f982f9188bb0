/*
 * python.c - calls that garbage-collected callers with arrays need: a view as a row number, batches by field, and a payload map that outlives its handle.
 */

int64_t stoc_view_slot(stoc_cache *c, int64_t index)
{
    int64_t offset = stoc_view_offset(c, index);
    return LIKELY(offset >= 0) ? (int64_t)((uint64_t)offset / c->slot_stride) : offset;
}

/* A batch whose fields go to one array each. */
struct field_batch {
    stoc_cache *cache;
    const int64_t *indices;
    size_t n, step;
    void *const *dst; /* of each field, NULL: not wanted */
    const size_t *row_stride;
    uint8_t *hit;
    _Atomic size_t next;
    _Atomic uint64_t hits, retried, corrupt;
};

/* What copy_sample is given as the destination of row k: it copies nothing but through copy_fields, which takes it apart again. */
struct field_row {
    const struct field_batch *batch;
    size_t k;
};

static void copy_fields(void *dst, const void *src, size_t n)
{
    const struct field_row *row = dst;
    const struct field_batch *b = row->batch;
    (void)n;
    for (uint32_t f = 0; f < b->cache->field_count; f++) {
        const struct stoc_field *field = &b->cache->fields[f];
        if (b->dst[f])
            copy_plain((unsigned char *)b->dst[f] + row->k * b->row_stride[f], (const unsigned char *)src + field->offset, field->bytes);
    }
}

static void *gather_field_rows(void *context)
{
    struct field_batch *b = context;
    stoc_cache *c = b->cache;
    uint64_t hits = 0, retried = 0, corrupt = 0;
    for (;;) {
        size_t from = atomic_fetch_add_explicit(&b->next, b->step, memory_order_relaxed);
        if (from >= b->n)
            break;
        size_t to = MIN(from + b->step, b->n);
        for (size_t k = from; k < to; k++) {
            struct field_row row = {b, k};
            int result = copy_sample(c, (uint64_t)b->indices[k], 0, c->sample_bytes, &row, c->sample_bytes, NULL, copy_fields, &retried);
            hits += result == STOC_HIT;
            corrupt += result < 0;
            if (b->hit)
                b->hit[k] = result == STOC_HIT;
        }
    }
    atomic_fetch_add_explicit(&b->hits, hits, memory_order_relaxed);
    atomic_fetch_add_explicit(&b->retried, retried, memory_order_relaxed);
    atomic_fetch_add_explicit(&b->corrupt, corrupt, memory_order_relaxed);
    return NULL;
}

int64_t stoc_gather_fields(stoc_cache *c, const int64_t *indices, size_t n, void *const *dst, const size_t *row_stride, uint8_t *hit, unsigned threads)
{
    if (!c)
        return STOC_ECLOSED;
    if (c->variable)
        return STOC_ESCHEMA;
    if (!dst || !row_stride)
        return STOC_EINVAL;
    uint64_t wanted = 0;
    for (uint32_t f = 0; f < c->field_count; f++) {
        if (dst[f] && row_stride[f] < c->fields[f].bytes)
            return STOC_ESCHEMA;
        wanted += dst[f] ? c->fields[f].bytes : 0;
    }
    int code = check_indices(c, indices, n);
    if (code < 0 || n == 0)
        return code;
    stoc_word *counters = counters_of(c);
    uint64_t bytes = n * wanted;
    threads = (unsigned)MIN(MIN((uint64_t)threads, MAX_THREADS), MAX(bytes / BYTES_PER_THREAD, 1));
    threads = (unsigned)MAX(MIN((uint64_t)threads, n), 1);
    struct field_batch b = {.cache = c, .indices = indices, .n = n, .dst = dst, .row_stride = row_stride, .hit = hit};
    b.step = threads == 1 ? n : MAX(n / (threads * 8), 1);
    run_threads(threads, gather_field_rows, &b);
    uint64_t hits = atomic_load(&b.hits), corrupt = atomic_load(&b.corrupt);
    add_to(counters, STOC_COUNTER_HITS, hits);
    add_to(counters, STOC_COUNTER_MISSES, corrupt ? 0 : n - hits);
    add_to(counters, STOC_COUNTER_RETRIED, atomic_load(&b.retried));
    add_to(counters, STOC_COUNTER_CORRUPT, corrupt);
    return corrupt ? STOC_ECORRUPT : (int64_t)hits;
}

void stoc_close_keep_payload(stoc_cache *c)
{
    if (c)
        c->payload = NULL; /* closing reads no payload, and unmaps what the handle still has */
    close_handle(c, false);
}

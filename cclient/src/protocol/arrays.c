/*
 * arrays.c - calls for garbage-collected callers with arrays: a sample as a row number, a set with
 * few arguments, batches by field, and a payload map that outlives its handle.
 */
#include "protocol.h"

int64_t stoc_locate_slot(const stoc_cache *c, int64_t index)
{
    const void *data = NULL;
    size_t length;
    if (c && c->variable)
        return STOC_ESCHEMA - 1;
    int result = stoc_locate(c, index, &data, &length);
    if (result != STOC_HIT)
        return (int64_t)result - 1;
    return ((const unsigned char *)data - c->payload) / (int64_t)c->slot_stride;
}

int stoc_put(stoc_cache *c, int64_t index, const void *data)
{
    if (!c)
        return STOC_ECLOSED;
    return c->variable ? STOC_ESCHEMA : stoc_set(c, index, data, c->sample_bytes, 0);
}

int64_t stoc_gather_fields(stoc_cache *c, const int64_t *indices, size_t n, void *const *dst, const size_t *row_stride,
                           uint8_t *hit, unsigned threads)
{
    if (!c)
        return STOC_ECLOSED;
    if (c->variable)
        return STOC_ESCHEMA;
    if (!dst || !row_stride)
        return invalid(EFAULT);
    uint64_t wanted = 0;
    for (uint32_t f = 0; f < c->field_count; f++) {
        if (dst[f] && row_stride[f] < c->fields[f].bytes)
            return STOC_ESCHEMA;
        wanted += dst[f] ? c->fields[f].bytes : 0;
    }
    int code = check_indices(c, indices, n);
    if (code < 0 || n == 0)
        return code;
    struct batch b = {.cache = c, .indices = indices, .n = n, .want = c->sample_bytes, .field_dst = dst,
                      .field_stride = row_stride, .hit = hit};
    return gather(&b, n * wanted, threads);
}

void stoc_close_keep_payload(stoc_cache *c)
{
    if (c)
        c->payload = NULL; /* stoc_close reads no payload, and unmaps only what the handle still has */
    stoc_close(c);
}

/*
 * geometry.c - where each region of a segment lies. The same function as shm.NewGeometry.
 */
#include "segment.h"

/* The offset of a region after *end, which becomes the end of the region. */
static uint64_t region(uint64_t *end, uint64_t bytes)
{
    uint64_t offset = ROUND_UP(*end, STOC_REGION_ALIGN);
    *end = offset + bytes;
    return offset;
}

INTERNAL bool geometry_of(uint32_t flags, uint32_t policy, uint64_t samples, uint64_t slots, uint64_t stride,
                          uint32_t client_records, uint64_t payload_bytes, struct geometry *g, char *why)
{
    *g = (struct geometry){.samples = samples, .slots = slots, .slot_stride = stride, .payload_bytes = payload_bytes,
                           .client_records = client_records, .flags = flags, .policy = policy};
    if (samples < 1 || samples > STOC_MAX_SAMPLES)
        return refuse(why, "samples %lu is not in 1..%lu", samples, STOC_MAX_SAMPLES);
    if (client_records < 1 || client_records > STOC_MAX_CLIENT_RECORDS)
        return refuse(why, "client records %u is not in 1..%lu", client_records, STOC_MAX_CLIENT_RECORDS);
    if (stride < 1 || stride > STOC_MAX_SAMPLE_BYTES + 16)
        return refuse(why, "slot stride %lu is not in 1..%lu", stride, STOC_MAX_SAMPLE_BYTES + 16);
    bool variable = flags & STOC_FLAG_VARIABLE, chains = has_chains(flags, policy);
    if (policy != STOC_POLICY_FIRST_COME && !policy_evicts(policy) && (policy != STOC_POLICY_FIRST_INDICES || variable))
        return refuse(why, "policy %u of a segment with the flags %#x", policy, flags);
    if ((flags & STOC_FLAG_LENGTHS) && !variable)
        return refuse(why, "lengths in a segment with the flags %#x: only variable-size ones have them", flags);
    if (chains) {
        if (samples > STOC_MAX_CHAIN_SAMPLES)
            return refuse(why, "samples %lu of an arena that evicts are not in 1..%lu", samples,
                          STOC_MAX_CHAIN_SAMPLES);
        if (slots < 1 || slots > STOC_MAX_SLOTS)
            return refuse(why, "slots %lu are not in 1..%lu", slots, STOC_MAX_SLOTS);
        if (stride < STOC_UNIT_BYTES || stride > STOC_MAX_CHAIN_STRIDE || (stride & (stride - 1)))
            return refuse(why, "slot stride %lu is not a power of two in %lu..%lu", stride, STOC_UNIT_BYTES,
                          STOC_MAX_CHAIN_STRIDE);
        g->payload_bytes = slots * stride; /* below 2^53 */
        if (g->payload_bytes > STOC_MAX_ARENA_BYTES - STOC_UNIT_BYTES)
            return refuse(why, "arena of %lu bytes is larger than %lu", g->payload_bytes,
                          STOC_MAX_ARENA_BYTES - STOC_UNIT_BYTES);
    } else if (variable) {
        if (slots != 0 || stride != STOC_UNIT_BYTES)
            return refuse(why, "a variable-size segment with slots %lu, stride %lu: want 0, %lu", slots, stride,
                          STOC_UNIT_BYTES);
        if (payload_bytes < STOC_UNIT_BYTES || payload_bytes % STOC_UNIT_BYTES ||
            payload_bytes > STOC_MAX_ARENA_BYTES - STOC_UNIT_BYTES)
            return refuse(why, "arena of %lu bytes is not a multiple of %lu in %lu..%lu", payload_bytes,
                          STOC_UNIT_BYTES, STOC_UNIT_BYTES, STOC_MAX_ARENA_BYTES - STOC_UNIT_BYTES);
    } else {
        if (slots < 1 || slots > STOC_MAX_SLOTS || slots > samples)
            return refuse(why, "slots %lu is not in 1..%lu (samples)", slots, MIN(samples, STOC_MAX_SLOTS));
        if (slots > (UINT64_C(1) << 56) / stride)
            return refuse(why, "%lu slots of %lu bytes are more than 2^56 bytes", slots, stride);
        g->payload_bytes = slots * stride;
    }
    uint64_t end = STOC_CLIENTS_OFFSET + client_records * STOC_CLIENT_RECORD_BYTES;
    g->index_offset = region(&end, samples * STOC_INDEX_RECORD_BYTES);
    if (variable)
        g->sums_offset = region(&end, samples * STOC_SUM_RECORD_BYTES);
    if (flags & STOC_FLAG_LENGTHS)
        g->lengths_offset = region(&end, samples * STOC_LENGTH_BYTES);
    if (chains || (!variable && policy != STOC_POLICY_FIRST_INDICES))
        g->slot_table_offset = region(&end, slots * STOC_SLOT_RECORD_BYTES);
    if (policy_references(policy))
        g->reference_offset = region(&end, ROUND_UP(slots, 8));
    if (chains)
        g->groups_offset = region(&end, (slots + STOC_GROUP_SLOTS - 1) / STOC_GROUP_SLOTS * STOC_GROUP_RECORD_BYTES);
    g->payload_offset = ROUND_UP(end, STOC_PAYLOAD_ALIGN);
    g->segment_bytes = ROUND_UP(g->payload_offset + g->payload_bytes, STOC_REGION_ALIGN);
    return true;
}

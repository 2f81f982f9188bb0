/*
 * geometry.c - where each region of a segment lies. The same function as shm.NewGeometry.
 */
#include "segment.h"

INTERNAL bool geometry_of(uint32_t flags, uint32_t policy, uint64_t samples, uint64_t slots, uint64_t stride,
                          uint32_t client_records, uint64_t payload_bytes, struct geometry *g, char *why)
{
    *g = (struct geometry){.samples = samples, .slots = slots, .slot_stride = stride, .payload_bytes = payload_bytes,
                           .client_records = client_records, .flags = flags, .policy = policy};
    if (samples < 1 || samples > STOC_MAX_SAMPLES)
        return snprintf(why, 256, "samples %llu is not in 1..%llu", (unsigned long long)samples,
                        (unsigned long long)STOC_MAX_SAMPLES),
               false;
    if (client_records < 1 || client_records > STOC_MAX_CLIENT_RECORDS)
        return snprintf(why, 256, "client records %u is not in 1..%d", client_records, (int)STOC_MAX_CLIENT_RECORDS),
               false;
    if (stride < 1 || stride > STOC_MAX_SAMPLE_BYTES + 16)
        return snprintf(why, 256, "slot stride %llu is not in 1..%llu", (unsigned long long)stride,
                        (unsigned long long)STOC_MAX_SAMPLE_BYTES + 16),
               false;
    bool variable = flags & STOC_FLAG_VARIABLE, chains = has_chains(flags, policy);
    if (policy != STOC_POLICY_FIRST_COME && !policy_evicts(policy) && (policy != STOC_POLICY_FIRST_INDICES || variable))
        return snprintf(why, 256, "policy %u of a segment with the flags %#x", policy, flags), false;
    if ((flags & STOC_FLAG_LENGTHS) && !variable)
        return snprintf(why, 256, "lengths in a segment with the flags %#x: only variable-size ones have them", flags), false;
    if (chains) {
        if (samples > STOC_MAX_CHAIN_SAMPLES)
            return snprintf(why, 256, "samples %llu of an arena that evicts are not in 1..%llu",
                            (unsigned long long)samples, (unsigned long long)STOC_MAX_CHAIN_SAMPLES),
                   false;
        if (slots < 1 || slots > STOC_MAX_SLOTS)
            return snprintf(why, 256, "slots %llu are not in 1..%llu", (unsigned long long)slots,
                            (unsigned long long)STOC_MAX_SLOTS),
                   false;
        if (stride < STOC_UNIT_BYTES || stride > STOC_MAX_CHAIN_STRIDE || (stride & (stride - 1)))
            return snprintf(why, 256, "slot stride %llu is not a power of two in %d..%d", (unsigned long long)stride,
                            (int)STOC_UNIT_BYTES, (int)STOC_MAX_CHAIN_STRIDE),
                   false;
        g->payload_bytes = slots * stride; /* below 2^53 */
        if (g->payload_bytes > STOC_MAX_ARENA_BYTES - STOC_UNIT_BYTES)
            return snprintf(why, 256, "arena of %llu bytes is larger than %llu", (unsigned long long)g->payload_bytes,
                            (unsigned long long)(STOC_MAX_ARENA_BYTES - STOC_UNIT_BYTES)),
                   false;
    } else if (variable) {
        if (slots != 0 || stride != STOC_UNIT_BYTES)
            return snprintf(why, 256, "a variable-size segment with slots %llu, stride %llu: want 0, %d",
                            (unsigned long long)slots, (unsigned long long)stride, (int)STOC_UNIT_BYTES),
                   false;
        if (payload_bytes < STOC_UNIT_BYTES || payload_bytes % STOC_UNIT_BYTES ||
            payload_bytes > STOC_MAX_ARENA_BYTES - STOC_UNIT_BYTES)
            return snprintf(why, 256, "arena of %llu bytes is not a multiple of %d in %d..%llu",
                            (unsigned long long)payload_bytes, (int)STOC_UNIT_BYTES, (int)STOC_UNIT_BYTES,
                            (unsigned long long)(STOC_MAX_ARENA_BYTES - STOC_UNIT_BYTES)),
                   false;
    } else {
        if (slots < 1 || slots > STOC_MAX_SLOTS || slots > samples)
            return snprintf(why, 256, "slots %llu is not in 1..%llu (samples)", (unsigned long long)slots,
                            (unsigned long long)MIN(samples, STOC_MAX_SLOTS)),
                   false;
        if (slots > (UINT64_C(1) << 56) / stride)
            return snprintf(why, 256, "%llu slots of %llu bytes are more than 2^56 bytes", (unsigned long long)slots,
                            (unsigned long long)stride),
                   false;
        g->payload_bytes = slots * stride;
    }
    g->index_offset = ROUND_UP(STOC_CLIENTS_OFFSET + client_records * STOC_CLIENT_RECORD_BYTES, STOC_REGION_ALIGN);
    uint64_t end = g->index_offset + samples * STOC_INDEX_RECORD_BYTES;
    if (variable) {
        g->sums_offset = ROUND_UP(end, STOC_REGION_ALIGN);
        end = g->sums_offset + samples * STOC_SUM_RECORD_BYTES;
    }
    if (flags & STOC_FLAG_LENGTHS) {
        g->lengths_offset = ROUND_UP(end, STOC_REGION_ALIGN);
        end = g->lengths_offset + samples * STOC_LENGTH_BYTES;
    }
    if (chains || (!variable && policy != STOC_POLICY_FIRST_INDICES)) {
        g->slot_table_offset = ROUND_UP(end, STOC_REGION_ALIGN);
        end = g->slot_table_offset + slots * STOC_SLOT_RECORD_BYTES;
    }
    if (policy_references(policy)) {
        g->reference_offset = ROUND_UP(end, STOC_REGION_ALIGN);
        end = ROUND_UP(g->reference_offset + slots, 8);
    }
    if (chains) {
        g->groups_offset = ROUND_UP(end, STOC_REGION_ALIGN);
        end = g->groups_offset + (slots + STOC_GROUP_SLOTS - 1) / STOC_GROUP_SLOTS * STOC_GROUP_RECORD_BYTES;
    }
    g->payload_offset = ROUND_UP(end, STOC_PAYLOAD_ALIGN);
    g->segment_bytes = ROUND_UP(g->payload_offset + g->payload_bytes, STOC_REGION_ALIGN);
    return true;
}

/* chains.c - variable-size caches that evict: samples lie in chains of slots. */
#include "check.h"

enum { N = 20, SLOTS = 64, STRIDE = 256, ARENA = SLOTS * STRIDE };

static struct stoc_options options(uint32_t policy)
{
    return OPTIONS(.samples = N, .variable = 1, .limit_bytes = (2 << 20) + ARENA, .slot_bytes = STRIDE,
                   .policy = policy);
}

TEST(lengths_of_buffers)
{
    stoc_cache *c = make(NULL, options(STOC_POLICY_LRU));
    unsigned char bytes[ARENA + 1];
    size_t length = 0;
    EQUAL(put(c, 1, 1000, 1, 0), STOC_STORED);
    EQUAL(stoc_get(c, 1, bytes, 999, &length), STOC_ESCHEMA);
    EQUAL(length, 1000);
    EQUAL(stoc_get(c, 2, bytes, sizeof bytes, &length), STOC_MISS);
    EQUAL(stoc_get(c, N, bytes, sizeof bytes, &length), STOC_EINDEX);
    char text[512];
    EQUAL(stoc_set(c, 2, bytes, ARENA + 1, 0), STOC_FULL); /* more than all slots */
    CHECK(stoc_explain(c, STOC_FULL, 2, ARENA + 1, text, sizeof text) > 0);
    CHECK(strstr(text, "65 of 64 slots of 256 bytes"));
    EQUAL(holds(c, 1, 1000, 1), 1);
    EQUAL(stats_of(c).full, 1);
    EQUAL(stats_of(c).evicted, 0);
    close_quiet(c);
}

/* No view and no slot to look at: its bytes would become those of another sample. */
TEST(no_views)
{
    stoc_cache *c = make(NULL, options(STOC_POLICY_RANDOM));
    unsigned char bytes[STRIDE];
    const void *data = bytes;
    size_t length = 7;
    EQUAL(put(c, 1, 100, 1, 0), STOC_STORED);
    EQUAL(stoc_view(c, 1, &data, &length), STOC_EINVAL);
    char text[400];
    stoc_explain(c, STOC_EINVAL, 1, 0, text, sizeof text);
    CHECK(strstr(text, "evicts") && strstr(text, "stoc_get"));
    struct iovec part = {bytes, sizeof bytes};
    EQUAL(stoc_set_loaded(c, 2, &part, 1, 0, (uint64_t)INT64_MAX + 1), STOC_EINVAL);
    stoc_explain(c, STOC_EINVAL, 2, sizeof bytes, text, sizeof text);
    CHECK(strstr(text, "the load of sample 2 of the cache without a name took more than 9223372036854775807 ns"));
    EQUAL(stoc_state(c, 2), STOC_STATE_EMPTY);
    EQUAL(stoc_locate(c, 1, &data, &length), STOC_EINVAL);
    CHECK(data == bytes && length == 7);
    EQUAL(stoc_view_slot(c, 1), STOC_ESCHEMA - 1);
    EQUAL(stoc_locate_slot(c, 1), STOC_ESCHEMA - 1);
    EQUAL(stoc_peek(c, 1, bytes, sizeof bytes), STOC_ESCHEMA);
    EQUAL(stoc_put(c, 1, bytes), STOC_ESCHEMA);
    int64_t index = 1;
    EQUAL(stoc_gather(c, &index, 1, -1, bytes, sizeof bytes, NULL, 1), STOC_ESCHEMA);
    stoc_close(c);
}

/* Each policy that evicts stores any sample while others go, and no copy is wrong. With cost only dear
 * samples make cheap ones go. */
TEST(samples_go)
{
    for (uint32_t policy = STOC_POLICY_COST; policy <= STOC_POLICY_LFU; policy++) {
        stoc_cache *c = make(NULL, options(policy)), *other = join_fd(c);
        uint64_t versions[N] = {0}, x = 88172645463325252u + policy;
        size_t lengths[N] = {0};
        for (uint64_t turn = 1; turn <= 4000; turn++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            int64_t i = (int64_t)(x % N);
            if (x >> 40 & 1) {
                if (holds(other, i, lengths[i], versions[i]) < 0)
                    COMPLAIN("policy %u, turn %d: sample %d has other bytes", policy, (int)turn, (int)i);
                continue;
            }
            size_t length = (x >> 20) % 3000;
            unsigned char bytes[3000];
            fill(bytes, length, (uint64_t)i, turn);
            struct iovec parts[] = {{bytes, length / 3}, {bytes + length / 3, length - length / 3}};
            int result = stoc_set_loaded(c, i, parts, 2, turn % 2 ? STOC_OVERWRITE : 0, 1000 + (x >> 32) % 100000000);
            CHECK(result == STOC_STORED || result == STOC_EXISTS ||
                  (result == STOC_FULL && policy == STOC_POLICY_COST));
            if (result == STOC_STORED)
                versions[i] = turn, lengths[i] = length;
        }
        struct stoc_stats s = stats_of(c);
        CHECK(s.evicted > 0 && s.hits > 0 && s.corrupt == 0 && s.lost == 0);
        check_quiet(c);
        EQUAL(stoc_clear(c, 1000), 0);
        check_quiet(c);
        EQUAL(stats_of(c).arena_next_bytes, 0);
        EQUAL(put(c, 1, ARENA, 1, 0), STOC_STORED);
        EQUAL(holds(other, 1, ARENA, 1), 1);
        stoc_close(other);
        stoc_close(c);
    }
}

/* Two claims that each hold half of the arena: neither waits for the other. (With random, all looks of a search may
 * find the claim, and then no sample goes.) */
TEST(no_deadlock)
{
    stoc_cache *c = make(NULL, options(STOC_POLICY_FIFO));
    struct stoc_claim k;
    EQUAL(stoc_claim(c, 1, ARENA / 2, 0, &k), STOC_STORED);
    EQUAL(put(c, 2, ARENA / 2, 1, 0), STOC_STORED);
    EQUAL(put(c, 3, ARENA / 2 + 1, 1, 0), STOC_FULL); /* it evicts sample 2, and that is not enough */
    EQUAL(stoc_state(c, 2), STOC_STATE_EMPTY);
    EQUAL(put(c, 3, ARENA / 2, 1, 0), STOC_STORED);
    EQUAL(stoc_publish(&k), STOC_STORED);
    close_quiet(c);
}

/* Words of the slot table that are impossible are reported, and lead nowhere outside the payload. */
TEST(corrupt_chains)
{
    for (int kind = 0; kind < 4; kind++) {
        stoc_cache *c = make(NULL, options(STOC_POLICY_FIFO));
        unsigned char bytes[60000], *control = control_of(c);
        size_t length;
        EQUAL(put(c, 1, 1000, 1, 0), STOC_STORED);
        struct stoc_info info = info_of(c);
        uint64_t head = *index_in(control, 1) >> STOC_FIXED_PLACE_SHIFT;
        _Atomic uint64_t *entry =
            word_in(control, header64(control, STOC_HEADER_SLOT_TABLE_OFFSET) + (head - 1) * STOC_SLOT_RECORD_BYTES);
        if (kind == 0)
            *entry = UINT64_C(2) << 33 | UINT32_MAX; /* a slot outside */
        else if (kind == 1)
            *entry = UINT64_C(2) << 33 | head; /* a chain without end */
        else
            *(index_in(control, 1) + 1) = kind == 2 ? 60000 : 8000; /* a chain that is too short */
        EQUAL(stoc_get(c, 1, bytes, sizeof bytes, &length), STOC_ECORRUPT);
        int64_t bad = -1;
        EQUAL(stoc_verify(c, 0, N, NULL, &bad), 1);
        EQUAL(bad, 1);
        int result = put(c, 1, 2000, 2, STOC_OVERWRITE);
        CHECK(result == STOC_ECORRUPT || result == STOC_STORED);
        munmap(control, info.payload_offset);
        stoc_close(c);
    }
}

/* A sample that gets no slots has its cost and its length in meta, so the cost of a byte is known. */
TEST(the_length_beside_the_cost)
{
    stoc_cache *c = make(NULL, options(STOC_POLICY_COST));
    unsigned char bytes[ARENA], *control = control_of(c);
    struct stoc_claim k;
    struct stoc_info info = info_of(c);
    fill(bytes, sizeof bytes, 1, 1);
    struct iovec dear = {bytes, ARENA}, cheap = {bytes, 1234};
    EQUAL(stoc_set_loaded(c, 1, &dear, 1, 0, 1000000000), STOC_STORED);
    EQUAL(stoc_set_loaded(c, 1, &dear, 1, STOC_OVERWRITE, 1000000000), STOC_STORED); /* one load might be a stall */
    EQUAL(stoc_set_loaded(c, 2, &cheap, 1, 0, 1), STOC_FULL);
    EQUAL(*(index_in(control, 2) + 1) & UINT32_MAX, 1234);
    EQUAL(*(index_in(control, 1) + 1) & UINT32_MAX, ARENA);
    EQUAL(stoc_claim(c, 1, 300, STOC_OVERWRITE, &k), STOC_STORED);
    EQUAL(stoc_publish_loaded(&k, 2000000000), STOC_STORED);
    EQUAL(*(index_in(control, 1) + 1) & UINT32_MAX, 300);
    munmap(control, info.payload_offset);
    close_quiet(c);
}

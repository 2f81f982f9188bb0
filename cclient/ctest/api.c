/* api.c - every call with valid and invalid arguments. */
#include "check.h"

enum { N = 100, BYTES = 300 };

static stoc_cache *small(void) { return make(NULL, OPTIONS(.samples = N, .slots = 10, .sample_bytes = BYTES)); }

TEST(a_sample_comes_back)
{
    stoc_cache *c = small();
    unsigned char bytes[BYTES];
    size_t length = 7;
    const void *data = bytes;
    EQUAL(stoc_get(c, 5, bytes, sizeof bytes, &length), STOC_MISS);
    EQUAL(stoc_view(c, 5, &data, &length), STOC_MISS);
    CHECK(length == 7 && data == bytes); /* unchanged */
    EQUAL(put(c, 5, BYTES, 1, 0), STOC_STORED);
    EQUAL(stoc_put(c, 5, bytes), STOC_EXISTS);
    EQUAL(holds(c, 5, BYTES, 1), 1);
    EQUAL(stoc_view(c, 5, &data, &length), STOC_HIT);
    CHECK(length == BYTES && filled(data, BYTES, 5, 1));
    struct stoc_info info = info_of(c);
    EQUAL(stoc_view_slot(c, 5) * (int64_t)info.slot_stride, (const char *)data - (const char *)info.payload);
    EQUAL(stoc_view_slot(c, 6), -1);
    const void *seen = NULL;
    length = 7;
    EQUAL(stoc_locate(c, 6, &seen, &length), STOC_MISS);
    EQUAL(stoc_copy(c, 6, bytes, sizeof bytes, &length), STOC_MISS);
    CHECK(!seen && length == 7);
    EQUAL(stoc_copy(c, 5, bytes, 1, &length), STOC_ESCHEMA);
    EQUAL(stoc_copy(c, 5, bytes, sizeof bytes, &length), STOC_HIT);
    CHECK(length == BYTES && filled(bytes, BYTES, 5, 1));
    EQUAL(stoc_locate(c, 5, &seen, &length), STOC_HIT); /* none of these calls counts, see below */
    CHECK(seen == data && length == BYTES);
    EQUAL(stoc_locate_slot(c, 5), 0);
    EQUAL(stoc_locate_slot(c, 6), -1);
    EQUAL(put(c, 5, BYTES, 3, STOC_OVERWRITE), STOC_STORED);
    EQUAL(holds(c, 5, BYTES, 3), 1);
    struct stoc_stats s = stats_of(c);
    EQUAL(s.hits, 4);
    EQUAL(s.misses, 3);
    EQUAL(s.stored, 2);
    EQUAL(s.exists, 1);
    EQUAL(s.stored_bytes, 2 * BYTES);
    EQUAL(s.ready, 1);
    EQUAL(s.ready_bytes, BYTES);
    EQUAL(s.clients_live, 1);
    close_quiet(c);
}

TEST(clears_and_sets_are_counted)
{
    stoc_cache *c = small();
    uint64_t clears = 0, stored = 0;
    EQUAL(put(c, 3, BYTES, 1, 0), STOC_STORED);
    EQUAL(put(c, 3, BYTES, 2, STOC_OVERWRITE), STOC_STORED);
    EQUAL(stoc_clear(c, 1000), 0);
    EQUAL(stoc_changes(c, &clears, &stored), 0);
    EQUAL(clears, 1);
    EQUAL(stored, 2); /* an overwrite too */
    EQUAL(stored, stats_of(c).stored);
    EQUAL(stoc_changes(c, &clears, NULL), STOC_EINVAL);
    EQUAL(stoc_changes(NULL, &clears, &stored), STOC_ECLOSED);
    stoc_close(c);
}

TEST(first_indices_have_their_slots)
{
    stoc_cache *c = make(NULL, OPTIONS(.samples = N, .slots = 10, .sample_bytes = BYTES, .policy = STOC_POLICY_FIRST_INDICES));
    EQUAL(put(c, 9, BYTES, 1, 0), STOC_STORED);
    EQUAL(stoc_view_slot(c, 9), 9);
    stoc_close(c);
}

/* Calls that want samples of one size. ../conform compares all others with Go's. */
TEST(samples_of_any_size)
{
    stoc_cache *c = make(NULL, OPTIONS(.samples = N, .variable = 1, .limit_bytes = 4 << 20, .sample_bytes = 100000));
    static unsigned char out[50000];
    int64_t index = 3;
    size_t needed = 0;
    EQUAL(put(c, 3, sizeof out, 1, 0), STOC_STORED);
    EQUAL(holds(c, 3, sizeof out, 1), 1);
    EQUAL(stoc_gather(c, &index, 1, -1, out, sizeof out, NULL, 1), STOC_ESCHEMA);
    EQUAL(stoc_view_slot(c, 3), STOC_ESCHEMA - 1);
    EQUAL(stoc_put(c, 3, out), STOC_ESCHEMA);
    EQUAL(stoc_locate_slot(c, 3), STOC_ESCHEMA - 1);
    EQUAL(stoc_get(c, 3, out, 100, &needed), STOC_ESCHEMA);
    EQUAL(needed, sizeof out);
    close_quiet(c);
}

TEST(a_sample_has_fields)
{
    struct stoc_field fields[] = {{.name = "flag", .dtype = STOC_BOOL},
                                  {.name = "image", .dtype = STOC_FLOAT32, .ndim = 2, .dims = {3, 5}},
                                  {.name = "label", .dtype = STOC_INT64}};
    stoc_cache *c = make(NULL, OPTIONS(.samples = N, .fields = fields, .field_count = 3));
    struct stoc_field f;
    EQUAL(stoc_field(c, 1, &f), 0);
    CHECK(f.offset == 4 && f.bytes == 60 && f.ndim == 2 && strcmp(f.name, "image") == 0);
    EQUAL(stoc_field(c, 3, &f), STOC_EINVAL);
    char flag = 1, zero[8] = {0};
    float image[15] = {1.5f};
    int64_t label = 42;
    struct iovec parts[] = {{&flag, 1}, {zero, 3}, {image, 60}, {&label, 8}};
    EQUAL(stoc_setv(c, 7, parts, 4, 0), STOC_STORED);
    int64_t indices[] = {7, 8, 7}, labels[3] = {-1, -1, -1};
    uint8_t hit[3];
    float images[45] = {0};
    void *dst[] = {NULL, images, labels};
    size_t strides[] = {0, 60, 8};
    EQUAL(stoc_gather_fields(c, indices, 3, dst, strides, hit, 1), 2);
    CHECK(images[0] == 1.5f && images[15] == 0 && images[30] == 1.5f);
    CHECK(labels[0] == 42 && labels[1] == -1 && labels[2] == 42 && hit[0] == 1 && hit[1] == 0);
    close_quiet(c);
}

TEST(batches_and_threads)
{
    enum { ROWS = 256, BIG = 150528 };
    stoc_cache *c = make(NULL, OPTIONS(.samples = ROWS, .sample_bytes = BIG));
    for (int i = 0; i < ROWS; i += 2)
        EQUAL(put(c, i, BIG, 1, 0), STOC_STORED);
    int64_t indices[ROWS];
    uint8_t hit[ROWS];
    for (int i = 0; i < ROWS; i++)
        indices[i] = (i * 37) % ROWS;
    size_t stride = BIG + 3; /* rows begin at any byte */
    unsigned char *out = malloc(ROWS * stride + 64);
    for (unsigned threads = 0; threads < 5; threads++) {
        memset(out, 0xee, ROWS * stride + 64);
        EQUAL(stoc_gather(c, indices, ROWS, -1, out, stride, hit, threads), ROWS / 2);
        int wrong = 0;
        for (int k = 0; k < ROWS; k++) {
            unsigned char *row = out + (size_t)k * stride;
            bool even = indices[k] % 2 == 0;
            wrong += hit[k] != even ||
                     (even ? !filled(row, BIG, (uint64_t)indices[k], 1) : row[0] != 0xee || row[BIG - 1] != 0xee);
            wrong += row[BIG] != 0xee || row[BIG + 2] != 0xee; /* nothing between the rows */
        }
        EQUAL(wrong, 0);
    }
    struct stoc_stats s = stats_of(c);
    EQUAL(s.hits, 5 * ROWS / 2);
    EQUAL(s.misses, 5 * ROWS / 2);
    EQUAL(stoc_gather(c, indices, 0, -1, NULL, BIG, NULL, 1), 0);
    /* here too, only the exact length is a hit */
    uint64_t at[3] = {0, BIG, 2 * BIG}, lengths[3] = {BIG, BIG + 1, BIG - 1};
    int64_t same[3] = {2, 4, 6};
    out[BIG] = 0x77;
    EQUAL(stoc_gather_packed(c, same, 3, out, at, lengths, hit, 1), 1);
    CHECK(hit[0] && !hit[1] && !hit[2] && out[BIG] == 0x77 && filled(out, BIG, 2, 1));
    indices[200] = ROWS;
    out[0] = 0x11;
    EQUAL(stoc_gather(c, indices, ROWS, -1, out, stride, NULL, 1), STOC_EINDEX);
    EQUAL(out[0], 0x11); /* the call checks indices first */
    indices[200] = -1;
    EQUAL(stoc_gather(c, indices, ROWS, -1, out, stride, NULL, 1), STOC_EINDEX);
    free(out);
    stoc_close(c);
}

/* The cost that a fill in pieces tells when it publishes, to a cache of any policy. */
static void loads_in_pieces_of(int policy)
{
    stoc_cache *c = make(NULL, OPTIONS(.samples = N, .slots = 10, .sample_bytes = BYTES, .policy = policy));
    unsigned char bytes[BYTES] = {0};
    struct stoc_claim k;
    uint64_t costs[2];
    for (int64_t i = 0; i < 2; i++) {
        EQUAL(stoc_claim(c, i, BYTES, 0, &k), STOC_STORED);
        EQUAL(stoc_write(&k, 0, bytes, BYTES), STOC_STORED);
        EQUAL(stoc_publish_loaded(&k, UINT64_MAX), STOC_EINVAL);
        EQUAL(stoc_publish_loaded(&k, i ? 8000000 : 0), STOC_STORED);
        EQUAL(stoc_publish_loaded(&k, 1), STOC_EINVAL);
    }
    EQUAL(stoc_costs(c, 0, 2, costs), 0);
    EQUAL(costs[0], 0);
    CHECK(costs[1] > 7000000 && costs[1] < 9000000);
    EQUAL(stoc_state(c, 1), STOC_STATE_READY);
    stoc_close(c);
}

TEST(loads_in_pieces)
{
    for (int policy = STOC_POLICY_FIRST_COME; policy <= STOC_POLICY_PLANNED; policy++)
        loads_in_pieces_of(policy);
}

/* At most 32 claims at once, which close aborts. ../conform compares pieces in any order with Go's. */
TEST(many_claims)
{
    struct stoc_claim many[40];
    stoc_cache *wide = make(NULL, OPTIONS(.samples = 40, .sample_bytes = 8));
    for (int i = 0; i < 40; i++)
        EQUAL(stoc_claim(wide, i, 8, 0, &many[i]), i < 32 ? STOC_STORED : STOC_BUSY);
    EQUAL(stoc_clear(wide, 50), STOC_ETIMEOUT);
    char text[200];
    stoc_explain(wide, STOC_ETIMEOUT, 0, 0, text, sizeof text);
    if (!strstr(text, "32 claims"))
        COMPLAIN("no number of claims in: %s", text);
    EQUAL(stats_of(wide).clears, 0);
    EQUAL(stoc_publish(&many[0]), STOC_STORED);
    EQUAL(stoc_publish(&many[0]), STOC_EINVAL);
    EQUAL(stoc_write(&many[0], 0, "", 1), STOC_EINVAL);
    EQUAL(stoc_abort(&many[0]), 0);
    EQUAL(stoc_claim(wide, 39, 8, 0, &many[39]), STOC_STORED);
    stoc_cache *other = join_fd(wide);
    stoc_close(wide); /* aborts what is open */
    EQUAL(stats_of(other).ready, 1);
    EQUAL(stats_of(other).aborted, 32);
    EQUAL(put(other, 39, 8, 1, 0), STOC_STORED);
    for (int i = 0; i < 32; i++)
        EQUAL(stoc_claim(other, i, 8, STOC_OVERWRITE, &many[i]), STOC_STORED);
    for (int i = 0; i < 31; i++)
        EQUAL(stoc_abort(&many[i]), 0);
    EQUAL(stoc_clear(other, 1), STOC_ETIMEOUT); /* the claim in the last entry is in the way as well */
    EQUAL(stoc_abort(&many[31]), 0);
    close_quiet(other);
}

TEST(bad_arguments)
{
    stoc_cache *c = small();
    unsigned char bytes[BYTES + 1] = {0};
    const void *data;
    size_t length;
    static const int64_t outside[] = {-1, N, N + 1, INT64_MIN, INT64_MAX};
    for (size_t k = 0; k < sizeof outside / sizeof *outside; k++) {
        EQUAL(stoc_get(c, outside[k], bytes, BYTES, &length), STOC_EINDEX);
        EQUAL(stoc_view(c, outside[k], &data, &length), STOC_EINDEX);
        EQUAL(stoc_view_slot(c, outside[k]), STOC_EINDEX - 1);
        EQUAL(stoc_locate(c, outside[k], &data, &length), STOC_EINDEX);
        EQUAL(stoc_copy(c, outside[k], bytes, BYTES, &length), STOC_EINDEX);
        EQUAL(stoc_locate_slot(c, outside[k]), STOC_EINDEX - 1);
        EQUAL(stoc_set(c, outside[k], bytes, BYTES, 0), STOC_EINDEX);
        EQUAL(stoc_put(c, outside[k], bytes), STOC_EINDEX);
        EQUAL(stoc_state(c, outside[k]), STOC_EINDEX);
        EQUAL(stoc_peek(c, outside[k], bytes, BYTES), STOC_EINDEX);
        struct stoc_claim claim;
        EQUAL(stoc_claim(c, outside[k], BYTES, 0, &claim), STOC_EINDEX);
        EQUAL(stoc_lengths(c, &outside[k], 1, &(uint64_t){0}), STOC_EINDEX);
    }
    EQUAL(stoc_set(c, 1, bytes, BYTES - 1, 0), STOC_ESCHEMA);
    EQUAL(stoc_set(c, 1, bytes, BYTES + 1, 0), STOC_ESCHEMA);
    EQUAL(stoc_set(c, 1, bytes, 0, 0), STOC_ESCHEMA);
    EQUAL(stoc_set(c, 1, NULL, BYTES, 0), STOC_EINVAL);
    EQUAL(stoc_set(c, 1, bytes, BYTES, 4), STOC_EINVAL);
    EQUAL(stoc_setv(c, 1, NULL, 1, 0), STOC_EINVAL);
    EQUAL(stoc_setv(c, 1, NULL, -1, 0), STOC_EINVAL);
    struct iovec whole = {bytes, BYTES};
    EQUAL(stoc_set_loaded(c, 1, &whole, 1, 0, (uint64_t)-1), STOC_EINVAL);
    EQUAL(stoc_claim(c, 1, BYTES, 0, NULL), STOC_EINVAL);
    EQUAL(stoc_view(c, 1, NULL, &length), STOC_EINVAL);
    EQUAL(stoc_get(c, 1, NULL, BYTES, &length), STOC_EINVAL);
    EQUAL(stoc_gather(c, NULL, 1, -1, bytes, BYTES, NULL, 1), STOC_EINVAL);
    EQUAL(stoc_gather(c, &(int64_t){1}, 1, -1, NULL, BYTES, NULL, 1), STOC_EINVAL);
    EQUAL(stoc_states(c, 50, 51, bytes), STOC_EINDEX);
    EQUAL(stoc_states(c, UINT64_MAX, 2, bytes), STOC_EINDEX);
    EQUAL(stoc_verify(c, 50, 51, NULL, NULL), STOC_EINDEX);
    EQUAL(stoc_peek(c, 1, bytes, BYTES - 1), STOC_ESCHEMA);
    EQUAL(stoc_info(c, &(struct stoc_info){.struct_bytes = 8}), STOC_EINVAL);
    EQUAL(stoc_stats(c, &(struct stoc_stats){.struct_bytes = 8}), STOC_EINVAL);
    struct stoc_stats s = stats_of(c);
    EQUAL(s.ready + s.hits + s.misses + s.stored + s.busy + s.full, 0); /* the calls did nothing and counted nothing */
    close_quiet(c);
    stoc_close(NULL);
    EQUAL(stoc_get(NULL, 0, bytes, 1, NULL), STOC_ECLOSED);
    EQUAL(stoc_set(NULL, 0, bytes, 1, 0), STOC_ECLOSED);
    EQUAL(stoc_clear(NULL, 0), STOC_ECLOSED);
    EQUAL(stoc_view_slot(NULL, 0), STOC_ECLOSED - 1);
    EQUAL(stoc_locate_slot(NULL, 0), STOC_ECLOSED - 1);
    EQUAL(stoc_put(NULL, 0, ""), STOC_ECLOSED);
    EQUAL(stoc_locate(NULL, 0, NULL, NULL), STOC_ECLOSED);
}

/* What other languages cannot give, and where a cache cannot be: ../../shm/testdata/options.json and ../conform have
 * the other options. */
TEST(bad_options)
{
    struct {
        const char *name;
        struct stoc_options o;
        int code;
    } table[] = {
        {NULL, OPTIONS(.samples = 5, .sample_bytes = 8, .open_flags = STOC_OPEN_READ_ONLY), STOC_EINVAL},
        {NULL, OPTIONS(.samples = 5, .sample_bytes = 8, .lengths = 1), STOC_EINVAL},
        {NULL, OPTIONS(.samples = 5, .limit_bytes = 8 << 20, .variable = 1, .lengths = 2), STOC_EINVAL},
        {"", OPTIONS(.samples = 5, .sample_bytes = 8), STOC_EINVAL},
        {"..", OPTIONS(.samples = 5, .sample_bytes = 8), STOC_EINVAL},
        {"x", OPTIONS(.samples = 5, .sample_bytes = 8, .directory = "/dev/shm/there-is-no-such-directory"),
         STOC_EINVAL},
        {"x", OPTIONS(.samples = 5, .sample_bytes = 8, .directory = "/proc"), STOC_EINVAL},
        {"x", OPTIONS(.samples = 5, .sample_bytes = 8, .directory = "/dev/null"), STOC_EPERM},
        /* more than the machine's memory */
        {NULL, OPTIONS(.samples = 1 << 20, .sample_bytes = 1 << 30), STOC_EMEMORY},
    };
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        stoc_cache *c = (stoc_cache *)&failures;
        int code = stoc_create(table[k].name, &table[k].o, &c, &error);
        if (code != table[k].code || c != NULL || error.code != code || !error.message[0])
            COMPLAIN("options %zu: code %d, want %d: %s", k, code, table[k].code, error.message);
    }
    stoc_cache *c;
    struct stoc_options o = OPTIONS(.samples = 5, .sample_bytes = 8);
    EQUAL(stoc_create(NULL, NULL, &c, &error), STOC_EINVAL);
    EQUAL(stoc_create(NULL, &o, NULL, &error), STOC_EINVAL);
    EQUAL(stoc_create(NULL, &o, NULL, NULL), STOC_EINVAL);
    o.struct_bytes = 8;
    EQUAL(stoc_create(NULL, &o, &c, &error), STOC_EINVAL);
}

TEST(names)
{
    stoc_cache *c = make("first",
                         OPTIONS(.samples = 5, .sample_bytes = 8, .fingerprint = "cats v1", .limit_bytes = 4 << 20)),
               *d = NULL;
    struct stoc_options o = OPTIONS(.samples = 5, .sample_bytes = 8, .directory = scratch);
    EQUAL(stoc_create("first", &o, &d, &error), STOC_EEXIST);
    CHECK(strstr(error.message, "policy") == NULL);
    o.policy = STOC_POLICY_LRU;
    EQUAL(stoc_create("first", &o, &d, &error), STOC_EEXIST);
    CHECK(strstr(error.message,
                 "exists with the policy first-come, and lru was asked for; attach to it, take another name"));
    EQUAL(stoc_open(path_in_scratch("none"), 0, NULL, &d, &error), STOC_ENOENT);
    EQUAL(stoc_open(path_in_scratch("first"), 0, "dogs", &d, &error), STOC_EFINGERPRINT);
    EQUAL(stoc_open("stoc-test-no-such-name", 0, NULL, &d, &error), STOC_ENOENT);
    EQUAL(stoc_open("", 0, NULL, &d, &error), STOC_EINVAL);
    EQUAL(stoc_open(NULL, 0, NULL, &d, &error), STOC_EINVAL);
    EQUAL(stoc_open(".hidden", 0, NULL, &d, &error), STOC_EINVAL);
    EQUAL(stoc_open(path_in_scratch("first"), 8, NULL, &d, &error), STOC_EINVAL);
    CHECK(d == NULL);
    REQUIRE(stoc_open(path_in_scratch("first"), 0, "cats v1", &d, &error) == 0);
    struct stoc_info info = info_of(d);
    CHECK(info.decode[0] == 0);
    struct stoc_info other = {.struct_bytes = offsetof(struct stoc_info, decode), .decode = "not touched"};
    CHECK(stoc_info(c, &other) == STOC_EINVAL && strcmp(other.decode, "not touched") == 0);
    CHECK(strcmp(info.name, "first") == 0 && strcmp(info.fingerprint, "cats v1") == 0 &&
          strcmp(info.path, path_in_scratch("first")) == 0);
    EQUAL(info.limit_bytes, 4 << 20);
    EQUAL(put(c, 1, 8, 1, 0), STOC_STORED);
    EQUAL(holds(d, 1, 8, 1), 1);
    EQUAL(stoc_unlink(path_in_scratch("first"), &error), 0);
    EQUAL(stoc_unlink(path_in_scratch("first"), &error), STOC_ENOENT);
    EQUAL(put(d, 2, 8, 1, 0), STOC_STORED); /* an attached client goes on */
    EQUAL(holds(c, 2, 8, 1), 1);
    stoc_close(c);
    stoc_close(d);

    c = make("goes", OPTIONS(.samples = 5, .sample_bytes = 8, .unlink_last = 1));
    d = join("goes", 0);
    stoc_close(c);
    EQUAL(access(path_in_scratch("goes"), F_OK), 0);
    stoc_close(d);
    EQUAL(access(path_in_scratch("goes"), F_OK), -1);
    c = make("goes", OPTIONS(.samples = 5, .sample_bytes = 8, .unlink_last = 1));
    REQUIRE(stoc_info(c, &info) == 0);
    REQUIRE(stoc_open_fd(info.fd, 0, info.uuid, &d, &error) == 0); /* the last user may have attached by descriptor */
    stoc_close(c);
    stoc_close(d);
    EQUAL(access(path_in_scratch("goes"), F_OK), -1);
    c = make("stays", OPTIONS(.samples = 5, .sample_bytes = 8));
    stoc_close(c);
    EQUAL(access(path_in_scratch("stays"), F_OK), 0);
}

TEST(descriptors)
{
    stoc_cache *c = small(), *d = NULL;
    struct stoc_info info = info_of(c);
    CHECK(info.path[0] == 0 && info.fd >= 0);
    EQUAL(fcntl(info.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    EQUAL(ftruncate(info.fd, 4096), -1); /* sealed */
    EQUAL(stoc_open_fd(-1, 0, NULL, &d, &error), STOC_EINVAL);
    EQUAL(stoc_open_fd(9999, 0, NULL, &d, &error), STOC_EINVAL);
    unsigned char other[16] = {1};
    EQUAL(stoc_open_fd(info.fd, 0, other, &d, &error), STOC_EFORMAT);
    REQUIRE(stoc_open_fd(info.fd, 0, info.uuid, &d, &error) == 0);
    EQUAL(put(d, 1, BYTES, 1, 0), STOC_STORED);
    EQUAL(holds(c, 1, BYTES, 1), 1);
    stoc_close(d);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), info.fd);
    REQUIRE(stoc_open(path, 0, NULL, &d, &error) == 0);
    EQUAL(holds(d, 1, BYTES, 1), 1);
    stoc_close(d);
    int read_only = open(path, O_RDONLY), append = open(path, O_RDWR | O_APPEND);
    REQUIRE(stoc_open_fd(read_only, 0, NULL, &d, &error) == 0);
    EQUAL(put(d, 2, BYTES, 1, 0), STOC_EREADONLY);
    stoc_count_passed(d, 1);
    EQUAL(stats_of(d).passed, 0); /* not counted */
    stoc_close(d);
    EQUAL(stoc_open_fd(append, 0, NULL, &d, &error), STOC_EINVAL);
    close(read_only);
    close(append);
    stoc_close(c);
}

TEST(the_client_table_is_full)
{
    stoc_cache *c = make(NULL, OPTIONS(.samples = 5, .sample_bytes = 8)), *others[16], *d;
    for (int k = 1; k < 16; k++)
        others[k] = join_fd(c);
    struct stoc_info info = info_of(c);
    EQUAL(stoc_open_fd(info.fd, 0, NULL, &d, &error), STOC_ECLIENTS);
    CHECK(strstr(error.message, "16") != NULL);
    EQUAL(stats_of(c).clients_live, 16);
    stoc_close(others[7]);
    REQUIRE(stoc_open_fd(info.fd, 0, NULL, &d, &error) == 0);
    stoc_close(d);
    for (int k = 1; k < 16; k++)
        if (k != 7)
            stoc_close(others[k]);
    struct stoc_stats s = stats_of(c);
    EQUAL(s.clients_live, 1);
    EQUAL(s.clients_ended, 15);
    stoc_close(c);
}

TEST(views_may_outlive_the_handle)
{
    stoc_cache *c = small();
    const void *data = NULL;
    size_t length;
    EQUAL(put(c, 1, BYTES, 1, 0), STOC_STORED);
    EQUAL(stoc_view(c, 1, &data, &length), STOC_HIT);
    stoc_close_keep_payload(c);
    CHECK(data && filled(data, BYTES, 1, 1));
}

TEST(verify_finds_foreign_bytes)
{
    stoc_cache *c = small();
    for (int i = 0; i < 5; i++)
        EQUAL(put(c, i, BYTES, 1, 0), STOC_STORED);
    struct stoc_info info = info_of(c);
    int64_t offset = stoc_view_slot(c, 3) * (int64_t)info.slot_stride, bad = -1;
    EQUAL(pwrite(info.fd, "?", 1, (off_t)(info.payload_offset + (uint64_t)offset + 77)), 1);
    uint64_t checked = 0;
    EQUAL(stoc_verify(c, 0, N, &checked, &bad), 1);
    EQUAL(checked, 5);
    EQUAL(bad, 3);
    EQUAL(stats_of(c).corrupt, 1);
    stoc_close(c);
}

/* Generations wrap around, from just below the limit and in several states. */
TEST(generations_wrap)
{
    for (int variable = 0; variable < 2; variable++) {
        stoc_cache *c = variable ? make(NULL, OPTIONS(.samples = 2, .variable = 1, .limit_bytes = 4 << 20))
                                 : make(NULL, OPTIONS(.samples = 2, .sample_bytes = 64));
        unsigned char *control = control_of(c);
        uint64_t limit = variable ? 1 << 13 : 1 << 17;
        *index_in(control, 0) = (limit - 2) << 15;
        for (uint64_t round = 0; round < 6; round++) {
            EQUAL(put(c, 0, 64, round, STOC_OVERWRITE), STOC_STORED);
            EQUAL(holds(c, 0, 64, round), 1);
            EQUAL(*index_in(control, 0) >> 15 & (limit - 1), (limit - 2 + round) % limit);
            EQUAL(*index_in(control, 0) >> (variable ? 28 : 32), 1); /* the carry does not reach the place */
        }
        *index_in(control, 0) = (*index_in(control, 0) & ~((limit - 1) << 15)) | (limit - 1) << 15;
        EQUAL(stoc_clear(c, 1000), 0);
        EQUAL(*index_in(control, 0), 0);
        *word_in(control, STOC_FREE_FROM_OFFSET) = (uint64_t)UINT32_MAX << 32; /* seq wraps too */
        EQUAL(put(c, 0, 64, 9, 0), STOC_STORED);
        EQUAL(stoc_clear(c, 1000), 0);
        if (!variable)
            EQUAL(*word_in(control, STOC_FREE_FROM_OFFSET), 0);
        close_quiet(c);
    }
}

/* A word changes during a claim: publish returns an error and counts it. */
TEST(a_lost_claim_does_not_publish)
{
    stoc_cache *c = small();
    unsigned char *control = control_of(c), bytes[BYTES] = {0};
    struct stoc_claim k;
    EQUAL(stoc_claim(c, 1, BYTES, 0, &k), STOC_STORED);
    *index_in(control, 1) = UINT64_C(9) << 15; /* EMPTY(9) */
    EQUAL(stoc_write(&k, 0, bytes, BYTES), STOC_STORED);
    EQUAL(stoc_publish(&k), STOC_ELOST);
    EQUAL(*index_in(control, 1), UINT64_C(9) << 15);
    EQUAL(stoc_claim(c, 2, BYTES, 0, &k), STOC_STORED);
    *index_in(control, 2) = 0;
    EQUAL(stoc_abort(&k), STOC_ELOST);
    struct stoc_stats s = stats_of(c);
    EQUAL(s.lost, 2);
    EQUAL(s.stored, 0);
    EQUAL(stoc_clear(c, 100), 0); /* no entry stays listed */
    close_quiet(c);
}

/* A handle that keeps some samples stores no others; another handle of the cache does. */
TEST(a_handle_keeps_some_samples)
{
    stoc_cache *c = small();
    uint8_t none[STOC_KEPT_BYTES] = {0}, all[STOC_KEPT_BYTES];
    char text[400];
    struct stoc_claim claim;
    memset(all, 255, sizeof all);
    EQUAL(put(c, 1, BYTES, 1, 0), STOC_STORED);
    EQUAL(stoc_keep(c, none), 0);
    EQUAL(put(c, 1, BYTES, 1, 0), STOC_EXISTS);
    EQUAL(put(c, 1, BYTES, 2, STOC_OVERWRITE), STOC_STORED); /* it has a place already */
    EQUAL(put(c, 2, BYTES, 1, 0), STOC_OUT);
    EQUAL(stoc_claim(c, 2, BYTES, 0, &claim), STOC_OUT);
    EQUAL(stats_of(c).out, 2);
    stoc_explain(c, STOC_OUT, 2, BYTES, text, sizeof text);
    CHECK(strstr(text, "keeps only some samples") != NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(put(c, 2, BYTES, 1, 0) == STOC_OUT ? 0 : 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    EQUAL(stoc_keep(c, all), 0);
    EQUAL(put(c, 2, BYTES, 1, 0), STOC_STORED);
    EQUAL(stoc_keep(c, none), 0);
    EQUAL(stoc_keep(c, NULL), 0);
    EQUAL(put(c, 3, BYTES, 1, 0), STOC_STORED);
    EQUAL(stoc_keep(NULL, NULL), STOC_ECLOSED);
    close_quiet(c);
}

/* An EINVAL has one reason, and stoc_explain says it. */
TEST(reasons_of_bad_arguments)
{
    stoc_cache *c = small();
    unsigned char bytes[BYTES] = {0};
    const void *data;
    struct stoc_claim k = {0};
    struct iovec part = {bytes, BYTES}, nothing = {NULL, BYTES};
    struct stoc_info info = {.struct_bytes = 7};
    char text[400];
#define SAYS(call, why)                                                                                                \
    do {                                                                                                               \
        EQUAL(call, STOC_EINVAL);                                                                                      \
        stoc_explain(c, STOC_EINVAL, 3, 0, text, sizeof text);                                                         \
        if (!strstr(text, why) || strstr(text, "sample 3 of ") == NULL)                                                \
            COMPLAIN("no \"%s\" in: %s", why, text);                                                                   \
    } while (0)
    SAYS(stoc_set(c, 3, NULL, BYTES, 0), "NULL");
    SAYS(stoc_setv(c, 3, &nothing, 1, 0), "NULL");
    SAYS(stoc_get(c, 3, NULL, BYTES, NULL), "NULL");
    SAYS(stoc_view(c, 3, &data, NULL), "NULL");
    SAYS(stoc_setv(c, 3, &part, -1, 0), "an argument of a call");
    SAYS(stoc_set(c, 3, bytes, BYTES, 64), "a flag that is neither STOC_OVERWRITE nor STOC_WAIT");
    SAYS(stoc_set_loaded(c, 3, &part, 1, 0, UINT64_MAX), "took more than 9223372036854775807 ns; give 0");
    SAYS(stoc_set_later(c, 3, &part, 1), "only disk caches have sets in the background; use stoc_set");
    SAYS(stoc_claim(c, 3, BYTES, 0, NULL), "NULL");
    SAYS(stoc_publish(&k), "is not open; claim the sample again");
    SAYS(stoc_info(c, &info), "an argument of a call");
    SAYS(stoc_info(c, NULL), "NULL");
    stoc_close(c);
}

TEST(messages_have_numbers)
{
    stoc_cache *c = small();
    char text[400];
    struct {
        int code;
        const char *words[3];
    } table[] = {
        {STOC_EINDEX, {"123", "99"}}, {STOC_ESCHEMA, {"77", "300"}}, {STOC_FULL, {"10", "clear"}},
        {STOC_BUSY, {"123", "wait"}}, {STOC_EREADONLY, {"writing"}}, {STOC_ECLIENTS, {"16"}},
        {STOC_ELOST, {"123"}},        {STOC_ECORRUPT, {"verify"}},   {STOC_ECLOSED, {"attach"}},
        {STOC_OUT, {"first-come"}},   {STOC_ETIMEOUT, {"longer"}},
    };
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        size_t n = stoc_explain(c, table[k].code, 123, 77, text, sizeof text);
        EQUAL(n, strlen(text));
        for (int w = 0; w < 3 && table[k].words[w]; w++)
            if (!strstr(text, table[k].words[w]))
                COMPLAIN("%d: no \"%s\" in: %s", table[k].code, table[k].words[w], text);
    }
    for (int code = -30; code < 10; code++) { /* any code, any buffer size */
        EQUAL(stoc_explain(c, code, -5, 0, text, 10), strlen(text));
        EQUAL(stoc_explain(NULL, code, -5, 0, text, sizeof text), strlen(text));
        CHECK(stoc_strerror(code)[0] != 0);
    }
    EQUAL(stoc_explain(c, STOC_EINDEX, 1, 1, NULL, 0), 0);
    EQUAL(stoc_abi_version(), STOC_ABI_VERSION);
    CHECK(stoc_version()[0] == '0');
    stoc_close(c);
}

TEST(pages_taken_at_creation)
{
    struct stoc_options o = OPTIONS(.samples = 100, .sample_bytes = 1 << 20, .reserve = 1);
    stoc_cache *c = make(NULL, o);
    CHECK(stats_of(c).allocated_bytes >= 100 << 20);
    stoc_close(c);
    c = make(NULL, OPTIONS(.samples = 100, .sample_bytes = 1 << 20));
    CHECK(stats_of(c).allocated_bytes < 3 << 20);
    EQUAL(put(c, 50, 1 << 20, 1, 0), STOC_STORED);
    CHECK(stats_of(c).allocated_bytes < 5 << 20);
    stoc_close(c);
}

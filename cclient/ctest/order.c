/*
 * order.c - the order of an epoch: the vectors of Go, which has the tests of what must hold for every order, and what
 * is refused.
 */
#include "check.h"


static stoc_epoch *open_epoch(struct stoc_order order, uint64_t number)
{
    stoc_epoch *e = NULL;
    order.struct_bytes = sizeof order;
    if (stoc_epoch_open(&order, number, &e, &error) != 0)
        COMPLAIN("%s", error.message);
    REQUIRE(e != NULL);
    return e;
}

/* Checks the end of a line of vectors: digest and indices at some positions, of the n indices that
 * fill returns. */
static void check_indices(const char *line, uint64_t n,
                          int64_t (*fill)(void *context, int64_t *indices, size_t n, uint64_t first), void *context)
{
    uint64_t digest, sum = 0, k;
    int64_t index;
    int at = 0;
    size_t first = MIN(n, 20000);
    int64_t *all = malloc((first + 1) * sizeof *all);
    REQUIRE(all && sscanf(line, " %" SCNu64 "%n", &digest, &at) == 1);
    EQUAL(fill(context, all, first, 0), first);
    for (size_t i = 0; i < first; i++)
        sum += (i + 1) * ((uint64_t)all[i] + 1);
    if (sum != digest)
        COMPLAIN("digest %" PRIu64 ", want %" PRIu64 "; indices %s", sum, digest, line);
    for (line += at; sscanf(line, " %" SCNu64 "=%" SCNd64 "%n", &k, &index, &at) == 2; line += at) {
        int64_t filled[2] = {-1, -1};
        EQUAL(fill(context, filled, 2, k), MIN(n - k, 2));
        EQUAL(filled[0], index);
    }
    free(all);
}

static int64_t fill_epoch(void *context, int64_t *indices, size_t n, uint64_t first)
{
    int64_t filled = stoc_epoch_fill(context, indices, n, first, 1);
    for (int64_t k = 0; k < filled && n <= 2; k++)
        EQUAL(stoc_epoch_at(context, first + (uint64_t)k), indices[k]);
    return filled;
}

struct part {
    stoc_epoch *epoch;
    struct stoc_shard shard;
};

static int64_t fill_part(void *context, int64_t *indices, size_t n, uint64_t first)
{
    struct part *p = context;
    return stoc_epoch_fill_shard(p->epoch, &p->shard, indices, n, first);
}

static void order_line(const char *line)
{
    struct stoc_order o = {0};
    uint64_t number, position;
    int64_t index;
    int n = 0;
    REQUIRE(sscanf(line, "%" SCNu32 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 ":%n", &o.kind,
                   &o.samples, &o.seed, &o.window, &o.block, &number, &n) == 6 &&
            n > 0);
    stoc_epoch *e = open_epoch(o, number);
    EQUAL(stoc_epoch_length(e), o.samples);
    for (line += n; sscanf(line, " %" SCNu64 "=%" SCNd64 "%n", &position, &index, &n) == 2; line += n) {
        int64_t filled = -1;
        EQUAL(stoc_epoch_at(e, position), index);
        EQUAL(stoc_epoch_position(e, index), position);
        EQUAL(stoc_epoch_fill(e, &filled, 1, position, 1), 1);
        EQUAL(filled, index);
    }
    stoc_epoch_close(e);
}

static void shard_line(const char *line)
{
    struct stoc_order o = {0};
    struct part p = {.shard = {.struct_bytes = sizeof p.shard}};
    uint64_t number, samples, real;
    int n = 0;
    REQUIRE(sscanf(line,
                   "%" SCNu32 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64
                   " %" SCNu64 " %" SCNu32 ": %" SCNu64 " %" SCNu64 "%n",
                   &o.kind, &o.samples, &o.seed, &o.window, &o.block, &number, &p.shard.rank, &p.shard.ranks,
                   &p.shard.from, &p.shard.ends, &samples, &real, &n) == 12);
    p.epoch = open_epoch(o, number);
    EQUAL(stoc_epoch_shard(p.epoch, &p.shard, &error), 0);
    EQUAL(p.shard.samples, samples);
    EQUAL(p.shard.real, real);
    check_indices(line + n, samples, fill_part, &p);
    stoc_epoch_close(p.epoch);
}

static double pattern(int number, uint64_t i)
{
    switch (number) {
    case 0:
        return 1;
    case 1:
        return (double)((i + 1) % 7);
    case 2: {
        double w = 1;
        for (uint64_t k = 0; k < i % 70; k++)
            w /= 2;
        return w;
    }
    case 3:
        i = (i ^ i >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
        i = (i ^ i >> 27) * UINT64_C(0x94D049BB133111EB);
        return (double)((i ^ i >> 31) >> 11) / 9007199254740992.0;
    case 4:
        return 5e-324 * (double)((i + 1) % 3);
    default:
        return i ? 1 : 1.7e308;
    }
}

static void weighted_line(const char *line)
{
    uint64_t samples, seed, draws, number, positions;
    int how, n = 0;
    REQUIRE(sscanf(line, "%" SCNu64 " %" SCNu64 " %" SCNu64 " %d %" SCNu64 ": %" SCNu64 "%n", &samples, &seed, &draws,
                   &how, &number, &positions, &n) == 6);
    double *weights = malloc(samples * sizeof *weights);
    for (uint64_t i = 0; i < samples; i++)
        weights[i] = pattern(how, i);
    stoc_weights *w = NULL;
    stoc_epoch *e = NULL;
    EQUAL(stoc_weights_open(weights, samples, &w, &error), 0);
    free(weights);
    EQUAL(stoc_epoch_open_weighted(w, draws, seed, number, &e, &error), 0);
    stoc_weights_close(w); /* the epoch keeps it alive */
    EQUAL(stoc_epoch_length(e), positions);
    EQUAL(stoc_epoch_position(e, 0), STOC_EUNSUPPORTED);
    check_indices(line + n, positions, fill_epoch, e);
    stoc_epoch_close(e);
}

static void mixed_line(const char *line)
{
    struct stoc_order orders[100] = {{0}};
    uint64_t ratios[100], number, positions;
    struct stoc_mix mix = {.struct_bytes = sizeof mix, .orders = orders, .ratios = ratios};
    int n = 0;
    REQUIRE(sscanf(line, "%" SCNu64 " %" SCNu32 " %" SCNu64 " %" SCNu64 " %" SCNu64 "%n", &mix.seed, &mix.stop,
                   &mix.length, &number, &mix.datasets, &n) == 5 &&
            mix.datasets <= 100);
    line += n;
    for (uint64_t d = 0; d < mix.datasets; d++, line += n) {
        struct stoc_order *o = &orders[d];
        REQUIRE(sscanf(line, " %" SCNu32 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 "%n", &o->kind,
                       &o->samples, &o->seed, &o->window, &o->block, &ratios[d], &n) == 6);
        o->struct_bytes = sizeof *o;
    }
    REQUIRE(sscanf(line, ": %" SCNu64 "%n", &positions, &n) == 1);
    stoc_epoch *e = NULL;
    if (stoc_epoch_open_mixed(&mix, number, &e, &error) != 0)
        COMPLAIN("%s", error.message);
    REQUIRE(e != NULL);
    EQUAL(stoc_epoch_length(e), positions);
    EQUAL(stoc_epoch_position(e, 0), STOC_EUNSUPPORTED);
    EQUAL(stoc_epoch_at(e, positions), STOC_EINDEX);
    check_indices(line + n, positions, fill_epoch, e);
    stoc_epoch_close(e);
}

struct dealt {
    stoc_epoch *epoch;
    stoc_owners *owners;
    struct stoc_deal deal;
};

/* The samples of all batches, one batch after the other. */
static int64_t fill_dealt(void *context, int64_t *indices, size_t n, uint64_t first)
{
    struct dealt *d = context;
    uint64_t all = d->deal.batch * d->deal.ranks, filled = 0;
    int64_t *batch = malloc(all * sizeof *batch);
    for (uint64_t g = first / all, skip = first % all; g < d->deal.batches && filled < n; g++, skip = 0) {
        int64_t got = stoc_epoch_fill_deal(d->epoch, d->owners, &d->deal, g, batch, all);
        REQUIRE(got > 0);
        for (uint64_t k = skip; k < (uint64_t)got && filled < n; k++)
            indices[filled++] = batch[k];
    }
    free(batch);
    return (int64_t)filled;
}

static void deal_line(const char *line)
{
    struct stoc_order o = {0};
    struct dealt d = {.deal = {.struct_bytes = sizeof d.deal}};
    char names[20][16];
    const char *pointers[20];
    uint64_t number, ranks[20], capacities[20], samples, batches, digest, quota, kept;
    struct stoc_nodes nodes = {.struct_bytes = sizeof nodes, .ranks = ranks, .capacities = capacities};
    int n = 0;
    REQUIRE(sscanf(line,
                   "%" SCNu32 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64
                   " %" SCNu32 " %" SCNu64 "%n",
                   &o.kind, &o.samples, &o.seed, &o.window, &o.block, &number, &d.deal.batch, &d.deal.from,
                   &d.deal.ends, &nodes.count, &n) == 10 &&
            nodes.count <= 20);
    line += n;
    for (uint64_t i = 0; i < nodes.count; i++, line += n) {
        REQUIRE(sscanf(line, " %15s %" SCNu64 " %" SCNu64 "%n", names[i], &ranks[i], &capacities[i], &n) == 3);
        pointers[i] = names[i];
        nodes.names = strcmp(names[i], "-") ? pointers : NULL;
    }
    REQUIRE(sscanf(line, ": %" SCNu64 " %" SCNu64 " %" SCNu64 "%n", &samples, &batches, &digest, &n) == 3);
    line += n;
    d.epoch = open_epoch(o, number);
    if (stoc_owners_open(&nodes, o.samples, &d.owners, &error) != 0 ||
        stoc_epoch_deal(d.epoch, d.owners, &d.deal, &error) != 0)
        COMPLAIN("%s", error.message);
    EQUAL(d.deal.samples, samples);
    EQUAL(d.deal.batches, batches);
    EQUAL(d.deal.digest, digest);
    for (uint64_t i = 0; i < nodes.count; i++, line += n) {
        uint8_t set[STOC_KEPT_BYTES];
        uint64_t sum = 0;
        REQUIRE(sscanf(line, " %" SCNu64 " %" SCNu64 "%n", &quota, &kept, &n) == 2);
        EQUAL(stoc_owners_quota(d.owners, i), quota);
        EQUAL(stoc_owners_keep(d.owners, i, capacities[i], set), 0);
        for (uint64_t k = 0; k < 8 * STOC_KEPT_BYTES; k++)
            sum += (set[k / 8] >> k % 8 & 1) * (k + 1);
        EQUAL(sum, kept);
    }
    check_indices(line, samples * d.deal.ranks, fill_dealt, &d);
    stoc_epoch_close(d.epoch);
    stoc_owners_close(d.owners);
}

/* Who owns a sample is who a deal gives it to, while no node has too many. */
TEST(owners)
{
    const uint64_t ranks[] = {1, 1};
    struct stoc_nodes nodes = {.struct_bytes = sizeof nodes, .count = 2, .ranks = ranks};
    stoc_owners *o = NULL;
    stoc_epoch *e = open_epoch((struct stoc_order){.samples = 1000, .kind = STOC_ORDER_SHUFFLED}, 0);
    struct stoc_deal d = {.struct_bytes = sizeof d, .batch = 100, .ends = STOC_ENDS_DROP};
    int64_t batch[200];
    int64_t owner[200];
    EQUAL(stoc_owners_open(&nodes, 1000, &o, &error), 0);
    EQUAL(stoc_owners_quota(o, 0) + stoc_owners_quota(o, 1), 65536);
    EQUAL(stoc_epoch_deal(e, o, &d, &error), 0);
    EQUAL(stoc_epoch_fill_deal(e, o, &d, 0, batch, 200), 200);
    EQUAL(stoc_owners_find(o, batch, owner, 200), 0);
    int others[2] = {0};
    for (int k = 0; k < 200; k++)
        others[k / 100] += owner[k] != k / 100;
    CHECK(others[0] == 0 || others[1] == 0); /* one node has a surplus, or none has */
    CHECK(others[0] + others[1] < 40);

    EQUAL(stoc_epoch_fill_deal(e, o, &d, 5, batch, 200), STOC_EINVAL);
    EQUAL(stoc_epoch_fill_deal(e, o, &d, 0, batch, 199), STOC_EINVAL);
    EQUAL(stoc_epoch_fill_deal(NULL, o, &d, 0, batch, 200), STOC_ECLOSED);
    EQUAL(stoc_owners_quota(o, 2), STOC_EINVAL);
    EQUAL(stoc_owners_quota(NULL, 0), STOC_ECLOSED);
    EQUAL(stoc_owners_find(o, NULL, owner, 1), STOC_EINVAL);
    EQUAL(stoc_owners_keep(o, 0, 0, NULL), STOC_EINVAL);
    static const struct {
        struct stoc_deal deal;
        const char *says;
    } bad[] = {
        {{.struct_bytes = 8, .batch = 1, .ends = 1}, "struct_bytes: 8"},
        {{.struct_bytes = sizeof d, .ends = 1}, "batch: 0 samples"},
        {{.struct_bytes = sizeof d, .batch = 1, .from = 1001, .ends = 1}, "from: 1001 is after"},
        {{.struct_bytes = sizeof d, .batch = 1}, "give STOC_ENDS_PAD or STOC_ENDS_DROP"},
        {{.struct_bytes = sizeof d, .batch = 1, .ends = 1, .reserved = 1}, "reserved is 1"},
    };
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        d = bad[k].deal;
        EQUAL(stoc_epoch_deal(e, o, &d, &error), STOC_EINVAL);
        CHECK(strstr(error.message, bad[k].says) != NULL);
    }
    stoc_owners_close(o);
    stoc_owners_close(NULL);

    char large[257];
    memset(large, 'x', 256);
    large[256] = 0;
    const char *same[] = {"a", "a"}, *empty[] = {"a", ""}, *wide[] = {"a", large};
    const uint64_t none[] = {1, 0};
    const struct {
        struct stoc_nodes nodes;
        uint64_t samples;
        const char *says;
    } refused[] = {
        {{8, 2, NULL, ranks, NULL}, 9, "struct_bytes: 8"},      {{sizeof nodes, 0, NULL, ranks, NULL}, 9, "0 nodes"},
        {{sizeof nodes, 2, NULL, NULL, NULL}, 9, "their ranks"}, {{sizeof nodes, 2, NULL, ranks, NULL}, 0, "0 samples"},
        {{sizeof nodes, 2, same, ranks, NULL}, 9, "same name"}, {{sizeof nodes, 2, empty, ranks, NULL}, 9, "of 0 bytes"},
        {{sizeof nodes, 2, wide, ranks, NULL}, 9, "of 256 bytes"}, {{sizeof nodes, 2, NULL, none, NULL}, 9, "0 ranks"},
    };
    for (size_t k = 0; k < sizeof refused / sizeof *refused; k++) {
        EQUAL(stoc_owners_open(&refused[k].nodes, refused[k].samples, &o, &error), STOC_EINVAL);
        CHECK(o == NULL && strstr(error.message, refused[k].says) != NULL);
    }
    stoc_epoch_close(e);
}

TEST(vectors)
{
    static const struct {
        const char *word;
        void (*line)(const char *);
    } kinds[] = {{"shard ", shard_line}, {"weighted ", weighted_line}, {"mixed ", mixed_line}, {"deal ", deal_line}, {"", order_line}};
    FILE *f = fopen("../order/testdata/order.txt", "r");
    char line[8192];
    int lines[5] = {0};
    REQUIRE(f != NULL);
    while (fgets(line, sizeof line, f) && failures <= 20) {
        size_t k = 0;
        if (line[0] == '#')
            continue;
        while (strncmp(line, kinds[k].word, strlen(kinds[k].word)) != 0)
            k++;
        kinds[k].line(line + strlen(kinds[k].word));
        lines[k]++;
    }
    fclose(f);
    CHECK(lines[0] == 147 && lines[1] == 41 && lines[2] == 24 && lines[3] == 20 && lines[4] == 180);
}

TEST(huge)
{
    static const struct stoc_order orders[] = {
        {.samples = STOC_MAX_SAMPLES, .kind = STOC_ORDER_SHUFFLED},
        {.samples = STOC_MAX_SAMPLES - 1, .kind = STOC_ORDER_WINDOWS, .window = UINT64_MAX},
        {.samples = 1000000000, .kind = STOC_ORDER_BLOCKS, .block = 4096, .window = 16},
        {.samples = STOC_MAX_SAMPLES, .kind = STOC_ORDER_BLOCKS, .block = UINT64_MAX, .window = UINT64_MAX},
        {.samples = 1281167, .kind = STOC_ORDER_SHUFFLED},
        {.samples = (1 << 30) + 1, .kind = STOC_ORDER_SHUFFLED},
    };
    for (size_t o = 0; o < sizeof orders / sizeof *orders; o++) {
        stoc_epoch *e = open_epoch(orders[o], UINT64_MAX);
        for (uint64_t k = 0; k < 2000; k++) {
            uint64_t position = k * UINT64_C(0x9E3779B97F4A7C15) % orders[o].samples;
            int64_t i = stoc_epoch_at(e, position);
            CHECK(i >= 0 && (uint64_t)i < orders[o].samples && stoc_epoch_position(e, i) == (int64_t)position);
        }
        EQUAL(stoc_epoch_at(e, orders[o].samples), STOC_EINDEX);
        EQUAL(stoc_epoch_position(e, (int64_t)orders[o].samples), STOC_EINDEX);
        EQUAL(stoc_epoch_position(e, -1), STOC_EINDEX);
        int64_t two[2];
        EQUAL(stoc_epoch_fill(e, two, 2, orders[o].samples - 1, UINT64_MAX), 1);
        EQUAL(stoc_epoch_fill(e, two, 2, UINT64_MAX, 1), 0);
        EQUAL(stoc_epoch_fill(e, two, 2, 0, 0), STOC_EINVAL);
        EQUAL(stoc_epoch_fill(e, NULL, 2, 0, 1), STOC_EINVAL);
        stoc_epoch_close(e);
    }
    stoc_epoch_close(NULL);
    EQUAL(stoc_epoch_at(NULL, 0), STOC_ECLOSED);
}

TEST(what_cannot_be)
{
    static const struct {
        struct stoc_order order;
        const char *want;
    } cases[] = {
        {{.struct_bytes = 8}, "struct_bytes: 8"},
        {{.samples = 0}, "samples: 0"},
        {{.samples = STOC_MAX_SAMPLES + 1}, "samples: 1099511627777"},
        {{.samples = 1, .kind = 4}, "kind: 4"},
        {{.samples = 1, .reserved = 4}, "reserved is 4"},
        {{.samples = 1, .kind = STOC_ORDER_WINDOWS}, "window: 0"},
        {{.samples = 1, .window = 1}, "window: 1"},
        {{.samples = 1, .kind = STOC_ORDER_BLOCKS, .window = 1}, "block: 0"},
        {{.samples = 1, .kind = STOC_ORDER_WINDOWS, .window = 1, .block = 2}, "block: 2"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct stoc_order o = cases[k].order;
        stoc_epoch *e;
        if (!o.struct_bytes)
            o.struct_bytes = sizeof o;
        EQUAL(stoc_epoch_open(&o, 0, &e, &error), STOC_EINVAL);
        CHECK(e == NULL && strstr(error.message, cases[k].want));
    }
    stoc_epoch *e;
    EQUAL(stoc_epoch_open(NULL, 0, &e, &error), STOC_EINVAL);
    EQUAL(stoc_epoch_open(&cases[0].order, 0, NULL, &error), STOC_EINVAL);
}

TEST(shards_that_cannot_be)
{
    stoc_epoch *e = open_epoch((struct stoc_order){.samples = 5}, 0);
    static const struct {
        struct stoc_shard shard;
        const char *want;
    } cases[] = {
        {{.struct_bytes = 8, .ranks = 1}, "struct_bytes: 8"},
        {{.ranks = 0}, "rank: 0 of 0"},
        {{.ranks = 2, .rank = 2}, "rank: 2 of 2"},
        {{.ranks = UINT64_MAX}, "rank: 0 of 18446744073709551615"},
        {{.ranks = 1, .from = 6}, "from: 6"},
        {{.ranks = 1, .ends = 3}, "ends: 3"},
        {{.ranks = 1, .reserved = 1}, "reserved is 1"},
    };
    int64_t index;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct stoc_shard s = cases[k].shard;
        if (!s.struct_bytes)
            s.struct_bytes = sizeof s;
        EQUAL(stoc_epoch_shard(e, &s, &error), STOC_EINVAL);
        CHECK(strstr(error.message, cases[k].want));
    }
    struct stoc_shard s = {.struct_bytes = sizeof s, .ranks = 1};
    EQUAL(stoc_epoch_shard(NULL, &s, &error), STOC_ECLOSED);
    EQUAL(stoc_epoch_shard(e, NULL, NULL), STOC_EINVAL);
    EQUAL(stoc_epoch_fill_shard(e, &s, &index, 1, 0), 0); /* stoc_epoch_shard has not filled it in */
    EQUAL(stoc_epoch_shard(e, &s, NULL), 0);
    EQUAL(stoc_epoch_fill_shard(e, &s, &index, 1, 4), 1);
    EQUAL(stoc_epoch_fill_shard(e, &s, &index, 1, UINT64_MAX), 0);
    EQUAL(stoc_epoch_fill_shard(e, &s, NULL, 1, 0), STOC_EINVAL);
    EQUAL(stoc_epoch_fill_shard(e, NULL, &index, 1, 0), STOC_EINVAL);
    EQUAL(stoc_epoch_fill_shard(NULL, &s, &index, 1, 0), STOC_ECLOSED);
    s.samples = UINT64_MAX; /* whatever the shard has, fill stays within the epoch */
    EQUAL(stoc_epoch_fill_shard(e, &s, &index, 1, 0), STOC_EINVAL);
    s.samples = STOC_MAX_SAMPLES;
    s.ranks = UINT64_MAX;
    EQUAL(stoc_epoch_fill_shard(e, &s, &index, 1, 12345), 1);
    CHECK(index >= 0 && index < 5);
    EQUAL(stoc_epoch_length(NULL), STOC_ECLOSED);
    stoc_epoch_close(e);
}

TEST(weights_that_cannot_be)
{
    static const struct {
        double weights[3];
        uint64_t n;
        const char *want;
    } cases[] = {
        {{0}, 0, "weights: 0 are not in 1.."},
        {{0, 0, 0}, 3, "all 3 are 0"},
        {{1, -1, 1}, 3, "weight 1 is -1"},
        {{1, 1, __builtin_nan("")}, 3, "weight 2 is nan"},
        {{__builtin_inf()}, 1, "weight 0 is inf"},
        {{-__builtin_inf()}, 1, "weight 0 is -inf"},
        {{1}, STOC_MAX_SAMPLES + 1, "weights: 1099511627777"},
    };
    stoc_weights *w;
    stoc_epoch *e;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        EQUAL(stoc_weights_open(cases[k].weights, cases[k].n, &w, &error), STOC_EINVAL);
        CHECK(w == NULL && strstr(error.message, cases[k].want));
    }
    EQUAL(stoc_weights_open(NULL, 1, &w, &error), STOC_EINVAL);
    EQUAL(stoc_weights_open(cases[3].weights, 2, NULL, &error), STOC_EINVAL);
    EQUAL(stoc_weights_open(cases[3].weights, 2, &w, &error), 0);
    EQUAL(stoc_epoch_open_weighted(w, STOC_MAX_SAMPLES + 1, 0, 0, &e, &error), STOC_EINVAL);
    CHECK(e == NULL && strstr(error.message, "draws: 1099511627777"));
    EQUAL(stoc_epoch_open_weighted(NULL, 1, 0, 0, &e, &error), STOC_EINVAL);
    EQUAL(stoc_epoch_open_weighted(w, 1, 0, 0, NULL, &error), STOC_EINVAL);
    stoc_weights_close(w);
}

TEST(mixes_that_cannot_be)
{
    struct stoc_order good = {.struct_bytes = sizeof good, .samples = 10}, bad = {.struct_bytes = sizeof bad},
                      half = {.struct_bytes = sizeof half, .samples = STOC_MAX_SAMPLES / 2 + 1};
    struct stoc_order most = {.struct_bytes = sizeof most, .samples = STOC_MAX_SAMPLES - 10};
    const struct {
        struct stoc_order orders[2];
        uint64_t ratios[2];
        struct stoc_mix mix;
        const char *want;
    } cases[] = {
        {{good}, {1}, {.struct_bytes = 8, .datasets = 1}, "struct_bytes: 8"},
        {{good}, {1}, {.datasets = 0}, "datasets: 0"},
        {{good}, {1}, {.datasets = 65537}, "datasets: 65537"},
        {{good, bad}, {1, 1}, {.datasets = 2}, "dataset 1: samples: 0"},
        {{good, good}, {1, 0}, {.datasets = 2}, "ratio 0 of dataset 1"},
        {{good, good}, {1 << 30, 1 << 30}, {.datasets = 2}, "ratio 1073741824 of dataset 1"},
        {{good, good}, {UINT64_MAX, 2}, {.datasets = 2}, "ratio 18446744073709551615 of dataset 0"},
        {{half, half}, {1, 1}, {.datasets = 2}, "1099511627778 samples in all"},
        {{good}, {1}, {.datasets = 1, .stop = 3}, "stop: 3"},
        {{good}, {1}, {.datasets = 1, .reserved = 3}, "reserved is 3"},
        {{good}, {1}, {.datasets = 1, .length = 3}, "length: 3"},
        {{good}, {1}, {.datasets = 1, .stop = STOC_MIX_LENGTH}, "length: 0"},
        {{good, most}, {1 << 29, 1}, {.datasets = 2, .stop = STOC_MIX_ALL}, "until all datasets have been read"},
    };
    stoc_epoch *e;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct stoc_mix mix = cases[k].mix;
        mix.struct_bytes = mix.struct_bytes ? mix.struct_bytes : sizeof mix;
        mix.orders = cases[k].orders;
        mix.ratios = cases[k].ratios;
        EQUAL(stoc_epoch_open_mixed(&mix, 0, &e, &error), STOC_EINVAL);
        if (e || !strstr(error.message, cases[k].want))
            COMPLAIN("%s, want %s", error.message, cases[k].want);
    }
    EQUAL(stoc_epoch_open_mixed(NULL, 0, &e, &error), STOC_EINVAL);
    EQUAL(stoc_epoch_open_mixed(&cases[0].mix, 0, NULL, &error), STOC_EINVAL);
}

/*
 * order.c - the order of an epoch: the vectors that Go is tested with as well, and what must hold of every order.
 */
#include "check.h"

static struct stoc_error error;

static stoc_epoch *open_epoch(struct stoc_order order, uint64_t number)
{
    stoc_epoch *e = NULL;
    order.struct_bytes = sizeof order;
    if (stoc_epoch_open(&order, number, &e, &error) != 0)
        COMPLAIN("%s", error.message);
    REQUIRE(e != NULL);
    return e;
}

static void vectors(void)
{
    FILE *f = fopen("../loader/testdata/order.txt", "r");
    char line[1024];
    int orders = 0, positions = 0;
    REQUIRE(f != NULL);
    while (fgets(line, sizeof line, f)) {
        struct stoc_order o = {0};
        uint64_t number, position;
        int64_t index;
        int n = 0;
        if (line[0] == '#')
            continue;
        REQUIRE(sscanf(line, "%" SCNu32 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 ":%n", &o.kind, &o.samples, &o.seed, &o.window, &o.block, &number, &n) == 6 && n > 0);
        stoc_epoch *e = open_epoch(o, number);
        orders++;
        for (char *at = line + n; sscanf(at, " %" SCNu64 "=%" SCNd64 "%n", &position, &index, &n) == 2; at += n) {
            int64_t filled = -1;
            EQUAL(stoc_epoch_at(e, position), index);
            EQUAL(stoc_epoch_position(e, index), position);
            EQUAL(stoc_epoch_fill(e, &filled, 1, position, 1), 1);
            EQUAL(filled, index);
            positions++;
        }
        stoc_epoch_close(e);
        if (failures > 20)
            break;
    }
    fclose(f);
    CHECK(orders == 180 && positions > 800);
}

/* Every sample once; position is the inverse of at; fill gives what at gives, in any step. */
static void check_order(struct stoc_order o)
{
    stoc_epoch *e = open_epoch(o, 3);
    size_t n = o.samples;
    int64_t *all = calloc(n + 1, sizeof *all);
    uint8_t *seen = calloc(n, 1);
    EQUAL(stoc_epoch_fill(e, all, n + 1, 0, 1), n);
    for (size_t k = 0; k < n; k++) {
        int64_t i = stoc_epoch_at(e, k);
        if (i < 0 || (uint64_t)i >= n || seen[i] || i != all[k] || stoc_epoch_position(e, i) != (int64_t)k) {
            COMPLAIN("kind %u, %zu samples, window %" PRIu64 ", block %" PRIu64 ": position %zu has %" PRId64, o.kind, n, o.window, o.block, k, i);
            break;
        }
        seen[i] = 1;
    }
    int64_t third[4];
    int64_t got = stoc_epoch_fill(e, third, 4, 1, 3);
    EQUAL(got, n < 2 ? 0 : MIN((n - 2) / 3 + 1, 4));
    for (int64_t k = 0; k < got; k++)
        EQUAL(third[k], all[1 + 3 * k]);
    free(all);
    free(seen);
    stoc_epoch_close(e);
}

static void every_sample_once(void)
{
    static const uint64_t sizes[] = {1, 2, 7, 64, 256, 257, 1000, 4099}, windows[] = {1, 3, 16, 300, 5000}, blocks[] = {1, 2, 10, 33, 999, 5000};
    for (size_t a = 0; a < sizeof sizes / 8; a++) {
        check_order((struct stoc_order){.samples = sizes[a], .seed = 5});
        check_order((struct stoc_order){.samples = sizes[a], .seed = 5, .kind = STOC_ORDER_SHUFFLED});
        for (size_t b = 0; b < sizeof windows / 8; b++) {
            check_order((struct stoc_order){.samples = sizes[a], .seed = 5, .kind = STOC_ORDER_WINDOWS, .window = windows[b]});
            for (size_t c = 0; c < sizeof blocks / 8; c++)
                check_order((struct stoc_order){.samples = sizes[a], .seed = 5, .kind = STOC_ORDER_BLOCKS, .window = windows[b], .block = blocks[c]});
        }
    }
}

static void huge(void)
{
    static const struct stoc_order orders[] = {
        {.samples = STOC_MAX_SAMPLES, .kind = STOC_ORDER_SHUFFLED}, {.samples = STOC_MAX_SAMPLES - 1, .kind = STOC_ORDER_WINDOWS, .window = UINT64_MAX},
        {.samples = 1000000000, .kind = STOC_ORDER_BLOCKS, .block = 4096, .window = 16}, {.samples = STOC_MAX_SAMPLES, .kind = STOC_ORDER_BLOCKS, .block = UINT64_MAX, .window = UINT64_MAX},
        {.samples = 1281167, .kind = STOC_ORDER_SHUFFLED}, {.samples = (1 << 30) + 1, .kind = STOC_ORDER_SHUFFLED},
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

static void what_cannot_be(void)
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

int main(int argc, char **argv)
{
    (void)argc;
    begin_tests();
    RUN(vectors);
    RUN(every_sample_once);
    RUN(huge);
    RUN(what_cannot_be);
    return end_tests(argv[0]);
}

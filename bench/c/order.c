/*
 * order.c - the order of an epoch: the first index, an index among many, and memory, of datasets of three sizes.
 */
#include "bench.h"

#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BATCH = 256 };

static const struct {
    const char *name;
    uint64_t samples;
} datasets[] = {{"1,281,167", 1281167}, {"2^30+1", (UINT64_C(1) << 30) + 1}, {"1e9", 1000000000}};

/* One way to make indices. */
struct way {
    struct stoc_order order; /* of a plain epoch */
    double *weights;         /* or of one with weights */
    uint64_t mixed;          /* or samples of each of three datasets */
    stoc_epoch *epoch;
    uint64_t batches;
    volatile int64_t sum; /* so that the compiler keeps the work */
};

static stoc_epoch *open_way(const struct way *w)
{
    struct stoc_error error = {0};
    stoc_epoch *e = NULL;
    if (w->weights) {
        stoc_weights *weights;
        if (stoc_weights_open(w->weights, w->order.samples, &weights, &error) == 0) {
            stoc_epoch_open_weighted(weights, 0, 1, 1, &e, &error);
            stoc_weights_close(weights);
        }
    } else if (w->mixed) {
        struct stoc_order orders[3] = {w->order, w->order, w->order};
        uint64_t ratios[3] = {7, 2, 1};
        for (int k = 0; k < 3; k++)
            orders[k].samples = w->mixed;
        struct stoc_mix mix = {.struct_bytes = sizeof mix, .datasets = 3, .orders = orders, .ratios = ratios};
        stoc_epoch_open_mixed(&mix, 1, &e, &error);
    } else {
        stoc_epoch_open(&w->order, 1, &e, &error);
    }
    if (!e)
        DIE("epoch: %s", error.message);
    return e;
}

/* From nothing to the first index. */
static void run_first(void *context)
{
    struct way *w = context;
    for (uint64_t k = 0; k < w->batches; k++) {
        stoc_epoch *e = open_way(w);
        int64_t index = stoc_epoch_at(e, 0);
        CHECK(index >= 0);
        w->sum += index;
        stoc_epoch_close(e);
    }
}

static void open_for_run(void *context)
{
    struct way *w = context;
    w->epoch = open_way(w);
}

static void close_after_run(void *context)
{
    struct way *w = context;
    stoc_epoch_close(w->epoch);
}

/* Batches of neighbours at places all over the epoch. */
static void run_fill(void *context)
{
    struct way *w = context;
    int64_t batch[BATCH], sum = 0;
    uint64_t last = (uint64_t)stoc_epoch_length(w->epoch) - BATCH;
    for (uint64_t k = 0; k < w->batches; k++) {
        CHECK(stoc_epoch_fill(w->epoch, batch, BATCH, k * last / w->batches, 1) == BATCH);
        sum += batch[k % BATCH];
    }
    w->sum = sum;
}

static void run_at(void *context)
{
    struct way *w = context;
    int64_t sum = 0;
    uint64_t last = (uint64_t)stoc_epoch_length(w->epoch) - BATCH;
    for (uint64_t k = 0; k < w->batches; k++)
        for (uint64_t i = 0; i < BATCH; i++)
            sum += stoc_epoch_at(w->epoch, k * last / w->batches + i);
    w->sum = sum;
}

/* Peak memory in MB of a child that opens an epoch and makes indices. */
static double memory_of(struct way *w)
{
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        open_for_run(w);
        run_fill(w);
        _exit(0);
    }
    int status;
    struct rusage u;
    CHECK(wait4(child, &status, 0, &u) == child && status == 0);
    return (double)u.ru_maxrss / 1024;
}

void orders(int is_quick)
{
    const uint64_t batches = is_quick ? 20 : 4000;
    enum { SIZES = sizeof datasets / sizeof *datasets };
    const struct stoc_order plain = {.struct_bytes = sizeof plain, .kind = STOC_ORDER_SHUFFLED, .seed = 1};
    printf("{\"case\":\"order/memory\",\"subjects\":[");
    for (int d = -1; d < SIZES; d++) { /* first of all, while this program is small */
        struct way w = {.order = plain, .batches = batches};
        w.order.samples = d < 0 ? 1000 : datasets[d].samples;
        printf("%s{\"name\":\"%s\",\"unit\":\"MB\",\"samples\":1,\"value\":[", d < 0 ? "" : ",",
               d < 0 ? "1,000" : datasets[d].name);
        for (int run = 0; run < runs; run++)
            printf("%s%.6g", run ? "," : "", memory_of(&w));
        printf("]}");
    }
    printf("]}\n");
    for (int d = 0; d < SIZES; d++) {
        const struct size size = {.name = datasets[d].name};
        struct way ways[6];
        for (int k = 0; k < 6; k++) {
            ways[k] = (struct way){.order = plain, .batches = batches};
            ways[k].order.samples = datasets[d].samples;
        }
        ways[0].batches = 1000;
        alternate("order/first", &size,
                  (struct subject[]){{"open, first index", ways[0].batches, NULL, run_first, NULL, &ways[0]}}, 1);
        ways[2].order.kind = STOC_ORDER_WINDOWS;
        ways[2].order.window = 10000;
        ways[3].order.kind = STOC_ORDER_BLOCKS;
        ways[3].order.block = 256;
        ways[3].order.window = 16;
        ways[4].mixed = datasets[d].samples / 3;
        struct subject subjects[6] = {
            {"shuffled", 0, open_for_run, run_fill, close_after_run, &ways[0]},
            {"shuffled, one by one", 0, open_for_run, run_at, close_after_run, &ways[1]},
            {"windows", 0, open_for_run, run_fill, close_after_run, &ways[2]},
            {"blocks", 0, open_for_run, run_fill, close_after_run, &ways[3]},
            {"mix of three", 0, open_for_run, run_fill, close_after_run, &ways[4]},
            {"weights", 0, open_for_run, run_fill, close_after_run, &ways[5]},
        };
        ways[0].batches = batches;
        for (int k = 0; k < 6; k++)
            subjects[k].samples = batches * BATCH;
        if (d == 0) { /* 16 bytes a sample: of one dataset only */
            ways[5].weights = malloc(datasets[d].samples * sizeof(double));
            CHECK(ways[5].weights);
            for (uint64_t k = 0; k < datasets[d].samples; k++)
                ways[5].weights[k] = (double)(k % 1000 + 1);
        }
        alternate("order/index", &size, subjects, d == 0 ? 6 : 5);
        free(ways[5].weights);
    }
}

/*
 * micro.c - times of the C library, and beside each the least that must be done. It prints lines as
 * `go test -bench` does, so that benchstat compares them.
 *
 *   micro FOLDER [quick]
 *
 * FOLDER is on a tmpfs.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "loops.h"
#include "stocached.h"

/* A benchmark with an error measures nothing, so it ends the program. */
#define CHECK(ok) ((ok) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #ok), exit(1)))

static struct size {
    const char *name;
    size_t bytes, samples, batch, views;
} sizes[] = {{"image", 150528, 1024, 256, 1000000}, {"small", 3072, 65536, 256, 1000000}};

static const char *folder;
static double began;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void start(void) { began = now(); }

static void stop(const char *what, const char *size, const char *way, size_t n, size_t bytes)
{
    double ns = (now() - began) / (double)n;
    printf("BenchmarkC/%s/size=%s/way=%s \t%zu\t%.2f ns/op", what, size, way, n, ns);
    if (bytes)
        printf("\t%.2f MB/s", (double)bytes / ns * 1e3);
    putchar('\n');
}

static int64_t *shuffled(size_t n)
{
    int64_t *order = malloc(n * sizeof *order);
    CHECK(order);
    for (size_t k = 0; k < n; k++)
        order[k] = (int64_t)k;
    srandom(1);
    for (size_t k = n; k > 1; k--) {
        size_t other = (size_t)random() % k;
        int64_t kept = order[k - 1];
        order[k - 1] = order[other];
        order[other] = kept;
    }
    return order;
}

static stoc_cache *create(const struct size *z)
{
    struct stoc_options o = {.struct_bytes = sizeof o, .samples = z->samples, .sample_bytes = z->bytes,
                             .directory = folder};
    struct stoc_error error = {0};
    stoc_cache *cache = NULL;
    if (stoc_create("bench", &o, &cache, &error) != 0) {
        fprintf(stderr, "create: %s\n", error.message);
        exit(1);
    }
    return cache;
}

static void drop(stoc_cache *cache)
{
    struct stoc_error error = {0};
    char path[4096];
    snprintf(path, sizeof path, "%s/bench", folder);
    CHECK(stoc_unlink(path, &error) == 0);
    stoc_close(cache);
}

/* Sets of new samples, with their checksums, beside pwrites of the same bytes into a new file. */
static stoc_cache *stores(const struct size *z, unsigned char *sample)
{
    int fd = open(folder, O_TMPFILE | O_RDWR, 0600);
    CHECK(fd >= 0);
    start();
    for (size_t k = 0; k < z->samples; k++)
        CHECK(pwrite(fd, sample, z->bytes, (off_t)(k * z->bytes)) == (ssize_t)z->bytes);
    stop("set", z->name, "pwrite", z->samples, z->bytes);
    close(fd);
    stoc_cache *cache = create(z);
    start();
    for (size_t k = 0; k < z->samples; k++)
        CHECK(stoc_set(cache, (int64_t)k, sample, z->bytes, 0) == STOC_STORED);
    stop("set", z->name, "stocached", z->samples, z->bytes);
    return cache;
}

static void views(const struct size *z, stoc_cache *cache, const int64_t *order)
{
    const void *data;
    size_t length;
    for (int turn = 0; turn < 2; turn++) { /* the first one maps pages and fills caches */
        start();
        for (size_t k = 0; k < z->views; k++)
            CHECK(stoc_view(cache, order[k % z->samples], &data, &length) == STOC_HIT);
    }
    stop("view", z->name, "stocached", z->views, 0);
    start();
    for (size_t k = 0; k < z->views; k++)
        CHECK(stoc_view_slot(cache, order[k % z->samples]) >= 0);
    stop("view-slot", z->name, "stocached", z->views, 0);
}

/* Batches, beside a memcpy of each sample from the pages of the cache. */
static void gathers(const struct size *z, stoc_cache *cache, const int64_t *order)
{
    const void *payload, *last;
    size_t length;
    CHECK(stoc_view(cache, 0, &payload, &length) == STOC_HIT);
    CHECK(stoc_view(cache, (int64_t)z->samples - 1, &last, &length) == STOC_HIT);
    size_t stride = ((size_t)((const char *)last - (const char *)payload)) / (z->samples - 1);
    CHECK(stride == z->bytes); /* sample i lies in slot i */
    unsigned char *out = malloc(z->batch * z->bytes);
    uint8_t *hit = malloc(z->batch);
    CHECK(out && hit);
    memset(out, 1, z->batch * z->bytes);
    size_t n = z->samples / z->batch;
    for (unsigned threads = 1; threads <= 2; threads++) {
        const char *what = threads == 1 ? "gather" : "gather-2-threads";
        for (int turn = 0; turn < 2; turn++) {
            start();
            for (size_t k = 0; k < n; k++)
                CHECK(stoc_gather(cache, order + k * z->batch, z->batch, -1, out, z->bytes, hit, threads) ==
                      (int64_t)z->batch);
        }
        stop(what, z->name, "stocached", n, z->batch * z->bytes);
        start();
        for (size_t k = 0; k < n; k++)
            (threads == 1 ? loop_gather : loop_gather_2)(out, payload, order + k * z->batch, z->batch, z->bytes);
        stop(what, z->name, "memcpy", n, z->batch * z->bytes);
    }
    start();
    for (size_t k = 0; k < z->samples; k++)
        CHECK(stoc_get(cache, order[k], out, z->bytes, &length) == STOC_HIT);
    stop("get", z->name, "stocached", z->samples, z->bytes);
    start();
    for (size_t k = 0; k < z->samples; k++)
        memcpy(out, (const char *)payload + (size_t)order[k] * z->bytes, z->bytes);
    stop("get", z->name, "memcpy", z->samples, z->bytes);
    free(out);
    free(hit);
}

/* Indices of an epoch: the first one, and batches all over it. */
static void orders(int quick)
{
    static const struct {
        const char *name;
        enum stoc_order_kind kind;
    } kinds[] = {{"shuffled", STOC_ORDER_SHUFFLED}, {"windows", STOC_ORDER_WINDOWS}, {"blocks", STOC_ORDER_BLOCKS}};
    enum { BATCH = 256 };
    const uint64_t batches = quick ? 20 : 4000;
    int64_t batch[BATCH];
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct stoc_order o = {.struct_bytes = sizeof o, .kind = kinds[k].kind, .seed = 1, .samples = 1000000000};
        if (o.kind != STOC_ORDER_SHUFFLED)
            o.window = o.kind == STOC_ORDER_WINDOWS ? 10000 : 16;
        if (o.kind == STOC_ORDER_BLOCKS)
            o.block = 256;
        struct stoc_error error = {0};
        stoc_epoch *e = NULL;
        start();
        CHECK(stoc_epoch_open(&o, 1, &e, &error) == 0 && stoc_epoch_at(e, 0) >= 0);
        stop("first-index", "1e9", kinds[k].name, 1, 0);
        uint64_t last = (uint64_t)stoc_epoch_length(e) - BATCH;
        start();
        for (uint64_t n = 0; n < batches; n++)
            CHECK(stoc_epoch_fill(e, batch, BATCH, n * last / batches, 1) == BATCH);
        stop("index", "1e9", kinds[k].name, batches * BATCH, 0);
        stoc_epoch_close(e);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: micro FOLDER [quick]\n");
        return 2;
    }
    folder = argv[1];
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        struct size *z = &sizes[k];
        if (argc > 2)
            z->samples /= 4, z->views /= 1000;
        unsigned char *sample = malloc(z->bytes);
        CHECK(sample);
        memset(sample, 7, z->bytes);
        int64_t *order = shuffled(z->samples);
        stoc_cache *cache = stores(z, sample);
        views(z, cache, order);
        gathers(z, cache, order);
        drop(cache);
        free(order);
        free(sample);
    }
    orders(argc > 2);
    return 0;
}

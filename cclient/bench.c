/*
 * bench.c - the C library beside plain C loops over the same bytes. Medians of alternating runs (ours, theirs, ours, ...), with processor time beside wall time.
 *
 *     bench [--samples 4096] [--bytes 150528] [--runs 9] [--json]
 */
#define _GNU_SOURCE 1
#include "stocached.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MOST_RUNS = 99, BATCH = 256, BUFFERS = 4 }; /* buffers: what is stored was decoded a moment ago, so it is in the second-level cache */

static uint64_t samples = 4096, bytes = 150528;
static int runs = 9;
static bool json;

static stoc_cache *cache;
static struct stoc_info info = {.struct_bytes = sizeof info};
static int64_t *order;        /* every sample once, at random */
static unsigned char *batch;  /* BATCH rows */
static unsigned char *sources; /* BUFFERS samples to store */
static volatile uint64_t sink;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, ascending);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* A case: what is done once a run, ours and theirs (NULL: nothing to compare with), and how many units that is. before runs untimed. */
struct contest {
    const char *name, *unit;
    double units;
    void (*before)(void), (*ours)(void), (*theirs)(void);
    double least; /* what theirs / ours must reach; 0: nothing */
};

static void compete(const struct contest *c)
{
    double ours[MOST_RUNS], theirs[MOST_RUNS], ours_cpu[MOST_RUNS], theirs_cpu[MOST_RUNS], ratio[MOST_RUNS];
    for (int run = -1; run < runs; run++) { /* the first pair warms up */
        int k = run < 0 ? 0 : run;
        for (int turn = 0; turn < 2; turn++) {
            bool mine = (turn + run) % 2 == 0;
            if (!mine && !c->theirs)
                continue;
            if (c->before)
                c->before();
            double wall = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
            (mine ? c->ours : c->theirs)();
            wall = (seconds(CLOCK_MONOTONIC) - wall) / c->units;
            cpu = (seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu) / c->units;
            *(mine ? &ours[k] : &theirs[k]) = wall;
            *(mine ? &ours_cpu[k] : &theirs_cpu[k]) = cpu;
        }
        if (c->theirs)
            ratio[k] = theirs[k] / ours[k];
    }
    double o = median(ours, runs), oc = median(ours_cpu, runs), t = 0, tc = 0, r = 0;
    if (c->theirs) {
        t = median(theirs, runs);
        tc = median(theirs_cpu, runs);
        r = median(ratio, runs);
    }
    double scale = o < 1e-6 ? 1e9 : 1e6;
    const char *unit = o < 1e-6 ? "ns" : "us";
    if (json) {
        printf("{\"case\": \"%s\", \"unit\": \"%s\", \"bytes\": %llu, \"runs\": %d, \"seconds\": %.4g, \"cpu_seconds\": %.4g", c->name, c->unit, (unsigned long long)bytes, runs, o, oc);
        if (c->theirs)
            printf(", \"plain_seconds\": %.4g, \"plain_cpu_seconds\": %.4g, \"plain_over_ours\": %.3f", t, tc, r);
        printf("}\n");
        return;
    }
    printf("%-34s %9.2f %s a %-6s cpu %9.2f", c->name, o * scale, unit, c->unit, oc * scale);
    if (c->theirs)
        printf("   plain C %9.2f cpu %9.2f   ratio %.2f", t * scale, tc * scale, r);
    if (c->least > 0)
        printf("   (least %.2f)%s", c->least, r < c->least ? " <-- below" : "");
    printf("\n");
}

/* ------------------------------------------------------------------------------------------------ reading */

enum { VIEWS = 1 << 20 };

static void views(void)
{
    uint64_t sum = 0;
    for (size_t k = 0; k < VIEWS; k++) {
        const void *data = NULL;
        size_t length = 0;
        if (stoc_view(cache, order[k % samples], &data, &length) != STOC_HIT)
            exit(1);
        sum += length + (uintptr_t)data;
    }
    sink = sum;
}

static void view_offsets(void)
{
    uint64_t sum = 0;
    for (size_t k = 0; k < VIEWS; k++)
        sum += (uint64_t)stoc_view_offset(cache, order[k % samples]);
    sink = sum;
}

static void misses(void)
{
    uint64_t sum = 0;
    for (size_t k = 0; k < VIEWS; k++)
        sum += (uint64_t)stoc_view_offset(cache, (int64_t)samples);
    sink = sum;
}

static void gets(void)
{
    for (uint64_t k = 0; k < samples; k++)
        if (stoc_get(cache, order[k], batch, bytes, NULL) != STOC_HIT)
            exit(1);
}

static const unsigned char *slot_of(int64_t sample) { return (const unsigned char *)info.payload + (uint64_t)sample * info.slot_stride; }

static void plain_gets(void)
{
    for (uint64_t k = 0; k < samples; k++)
        memcpy(batch, slot_of(order[k]), bytes);
}

static void gathers(unsigned threads)
{
    static uint8_t hit[BATCH];
    for (uint64_t k = 0; k + BATCH <= samples; k += BATCH)
        if (stoc_gather(cache, order + k, BATCH, -1, batch, bytes, hit, threads) != BATCH)
            exit(1);
}
static void gathers_1(void) { gathers(1); }
static void gathers_2(void) { gathers(2); }

static void plain_gathers_1(void)
{
    for (uint64_t k = 0; k + BATCH <= samples; k += BATCH)
        for (uint64_t row = 0; row < BATCH; row++)
            memcpy(batch + row * bytes, slot_of(order[k + row]), bytes);
}

struct half {
    uint64_t k, from, to;
};

static void *plain_half(void *arg)
{
    const struct half *h = arg;
    for (uint64_t row = h->from; row < h->to; row++)
        memcpy(batch + row * bytes, slot_of(order[h->k + row]), bytes);
    return NULL;
}

static void plain_gathers_2(void)
{
    for (uint64_t k = 0; k + BATCH <= samples; k += BATCH) {
        pthread_t other;
        struct half mine = {k, 0, BATCH / 2}, its = {k, BATCH / 2, BATCH};
        if (pthread_create(&other, NULL, plain_half, &its) != 0)
            exit(1);
        plain_half(&mine);
        pthread_join(other, NULL);
    }
}

/* ------------------------------------------------------------------------------------------------ writing */

static stoc_cache *fresh;
static int bare = -1;
static uint64_t writes;
static bool reserved;

static void new_targets(void)
{
    struct stoc_options o = {.struct_bytes = sizeof o, .samples = writes, .sample_bytes = bytes, .reserve = reserved, .assign = STOC_FIRST_INDICES};
    struct stoc_error e;
    if (fresh)
        stoc_close(fresh);
    if (bare >= 0)
        close(bare);
    if (stoc_create(NULL, &o, &fresh, &e) != 0) {
        fprintf(stderr, "%s\n", e.message);
        exit(1);
    }
    bare = (int)syscall(SYS_memfd_create, "bare", 1u);
    if (bare < 0 || ftruncate(bare, (off_t)(writes * bytes)) != 0 || (reserved && fallocate(bare, 0, 0, (off_t)(writes * bytes)) != 0))
        die("memfd");
}

static void set_all(void)
{
    for (uint64_t k = 0; k < writes; k++)
        if (stoc_set(fresh, (int64_t)k, sources + k % BUFFERS * bytes, bytes, 0) != STOC_STORED)
            exit(1);
}

static void pwrite_all(void)
{
    for (uint64_t k = 0; k < writes; k++)
        if (pwrite(bare, sources + k % BUFFERS * bytes, bytes, (off_t)(k * bytes)) != (ssize_t)bytes)
            die("pwrite");
}

static stoc_cache *created;
static void create_gib(void)
{
    struct stoc_options o = {.struct_bytes = sizeof o, .samples = (UINT64_C(1) << 30) / bytes, .sample_bytes = bytes};
    if (stoc_create(NULL, &o, &created, NULL) != 0)
        exit(1);
}
static void close_created(void)
{
    stoc_close(created);
    created = NULL;
}

int main(int argc, char **argv)
{
    for (int k = 1; k < argc; k++) {
        if (strcmp(argv[k], "--json") == 0)
            json = true;
        else if (strcmp(argv[k], "--samples") == 0 && k + 1 < argc)
            samples = strtoull(argv[++k], NULL, 10);
        else if (strcmp(argv[k], "--bytes") == 0 && k + 1 < argc)
            bytes = strtoull(argv[++k], NULL, 10);
        else if (strcmp(argv[k], "--runs") == 0 && k + 1 < argc)
            runs = atoi(argv[++k]);
        else
            samples = 0;
    }
    if (samples < BATCH || bytes < 1 || runs < 1 || runs > MOST_RUNS) {
        fprintf(stderr, "usage: %s [--samples %d.. ] [--bytes N] [--runs 1..%d] [--json]\n", argv[0], BATCH, MOST_RUNS);
        return 2;
    }
    sources = malloc(BUFFERS * bytes);
    batch = aligned_alloc(4096, (BATCH * bytes + 4095) / 4096 * 4096);
    order = malloc(samples * sizeof *order);
    if (!sources || !batch || !order)
        die("memory");
    for (uint64_t k = 0; k < BUFFERS * bytes; k++)
        sources[k] = (unsigned char)(k * 2654435761u >> 13);
    memset(batch, 1, BATCH * bytes);
    uint64_t x = 88172645463325252u;
    for (uint64_t k = 0; k < samples; k++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        uint64_t j = x % (k + 1);
        order[k] = order[j];
        order[j] = (int64_t)k;
    }
    struct stoc_options o = {.struct_bytes = sizeof o, .samples = samples + 1, .slots = samples, .sample_bytes = bytes, .assign = STOC_FIRST_INDICES};
    struct stoc_error e;
    if (stoc_create(NULL, &o, &cache, &e) != 0 || stoc_info(cache, &info) != 0) {
        fprintf(stderr, "%s\n", e.message);
        return 1;
    }
    for (uint64_t k = 0; k < samples; k++)
        if (stoc_set(cache, (int64_t)k, sources + k % BUFFERS * bytes, bytes, 0) != STOC_STORED)
            return 1;
    plain_gets(); /* maps every page once */
    if (!json)
        printf("%llu samples of %llu bytes, medians of %d alternating runs; ratio: plain C / ours, above 1 is faster than plain C\n", (unsigned long long)samples, (unsigned long long)bytes, runs);

    double whole = (double)(samples / BATCH * BATCH);
    struct contest reading[] = {
        {"view, counted", "call", VIEWS, NULL, views, NULL, 0},
        {"view_offset, counted", "call", VIEWS, NULL, view_offsets, NULL, 0},
        {"miss, counted", "call", VIEWS, NULL, misses, NULL, 0},
        {"get / memcpy", "sample", (double)samples, NULL, gets, plain_gets, 0.9},
        {"gather of 256, 1 thread / loop", "sample", whole, NULL, gathers_1, plain_gathers_1, 0.9},
        {"gather of 256, 2 threads / loop", "sample", whole, NULL, gathers_2, plain_gathers_2, 0.9},
        {"gather, 2 threads / gather, 1", "sample", whole, NULL, gathers_2, gathers_1, 0},
        {"loop, 2 threads / loop, 1", "sample", whole, NULL, plain_gathers_2, plain_gathers_1, 0},
    };
    for (size_t k = 0; k < sizeof reading / sizeof *reading; k++)
        compete(&reading[k]);
    writes = samples / 8 < 64 ? 64 : samples / 8;
    struct contest writing[] = {{"set / pwrite, new pages", "sample", (double)writes, new_targets, set_all, pwrite_all, 1 / 1.2},
                                {"set / pwrite, reserved pages", "sample", (double)writes, new_targets, set_all, pwrite_all, 1 / 1.2}};
    compete(&writing[0]);
    reserved = true;
    compete(&writing[1]);
    struct contest creating = {"create 1 GiB", "cache", 1, close_created, create_gib, NULL, 0};
    compete(&creating);
    stoc_close(created);
    stoc_close(fresh);
    stoc_close(cache);
    return 0;
}

/*
 * beside.c - what a hit takes in a cache that evicts, beside one in a first-come cache of the same process.
 *
 * Each run makes both caches, the one first or the other in turn, and hits each slot eight times, because first hits
 * write reference bytes. Then turns of 200 hits alternate. A run is the median ratio of its turns; the table has
 * medians of runs, with the least and the greatest but one. Arguments: bytes, runs, turns.
 */
#include "stocached.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CALLS = 200, MOST = 1000 };
static const char *const policies[] = {"first-come", "first-indices", "cost", "random",  "clock",
                                       "fifo",       "lru",           "lfu",  "planned"};
static unsigned char *data;
static size_t bytes, slots;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void fail(const char *what)
{
    fprintf(stderr, "beside: %s\n", what);
    exit(1);
}

static stoc_cache *full(uint32_t policy)
{
    struct stoc_options o = {.struct_bytes = sizeof o, .samples = slots, .sample_bytes = bytes, .policy = policy};
    struct stoc_error error;
    stoc_cache *cache;
    if (stoc_create(NULL, &o, &cache, &error))
        fail(error.message);
    for (size_t k = 0; k < slots; k++)
        if (stoc_set(cache, (int64_t)k, data, bytes, 0) != STOC_STORED)
            fail("no slot");
    return cache;
}

/* Nanoseconds of a hit. */
static double turn(stoc_cache *cache, size_t first, size_t calls)
{
    double start = now();
    for (size_t n = first; n < first + calls; n++) {
        size_t got;
        if (stoc_get(cache, (int64_t)(n * 7919 % slots), data, bytes, &got) != STOC_HIT)
            fail("no hit");
    }
    return (now() - start) / (double)calls;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double *sorted(double *x, size_t n)
{
    qsort(x, n, sizeof *x, ascending);
    return x;
}

int main(int argc, char **argv)
{
    bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : 3072;
    size_t runs = argc > 2 ? strtoull(argv[2], NULL, 10) : 21, turns = argc > 3 ? strtoull(argv[3], NULL, 10) : 300;
    if (!bytes || runs < 3 || runs > MOST || !turns || turns > MOST)
        fail("give bytes, 3 to 1000 runs and 1 to 1000 turns");
    slots = (64 << 20) / bytes / 4;
    data = calloc(1, bytes);
    printf("| policy | ns, first-come | ns | ratio | second least and greatest run |\n|---|--:|--:|--:|--:|\n");
    for (uint32_t policy = STOC_POLICY_COST; policy <= STOC_POLICY_PLANNED; policy++) {
        static double theirs[MOST], ours[MOST], ratios[MOST], a[MOST], b[MOST], c[MOST];
        for (size_t run = 0; run < runs; run++) {
            stoc_cache *first = full(run % 2 ? policy : STOC_POLICY_FIRST_COME);
            stoc_cache *second = full(run % 2 ? STOC_POLICY_FIRST_COME : policy);
            stoc_cache *plain = run % 2 ? second : first, *evicts = run % 2 ? first : second;
            turn(evicts, 0, 8 * slots);
            turn(plain, 0, 8 * slots);
            for (size_t k = 0; k < turns; k++) {
                if (k % 2)
                    b[k] = turn(evicts, k * CALLS, CALLS);
                a[k] = turn(plain, k * CALLS, CALLS);
                if (k % 2 == 0)
                    b[k] = turn(evicts, k * CALLS, CALLS);
                c[k] = b[k] / a[k];
            }
            theirs[run] = sorted(a, turns)[turns / 2];
            ours[run] = sorted(b, turns)[turns / 2];
            ratios[run] = sorted(c, turns)[turns / 2];
            stoc_close(first);
            stoc_close(second);
        }
        sorted(ratios, runs);
        printf("| %s | %.0f | %.0f | %.3f | %.2f to %.2f |\n", policies[policy], sorted(theirs, runs)[runs / 2],
               sorted(ours, runs)[runs / 2], ratios[runs / 2], ratios[1], ratios[runs - 2]);
        fflush(stdout);
    }
    free(data);
}

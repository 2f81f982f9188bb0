/*
 * worker.c - the worker process that ../measure/process.go describes: hits.
 */
#define _GNU_SOURCE
#include "bench.h"

#include <inttypes.h>
#include <sched.h>
#include <time.h>

static int64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static stoc_cache *open_cache(const char *path)
{
    stoc_cache *cache;
    struct stoc_error error = {0};
    if (stoc_open(path, 0, NULL, &cache, &error) < 0)
        DIE("open: %s", error.message);
    return cache;
}

static void ready(void)
{
    puts("ready");
    fflush(stdout);
}

int hits_worker(const char *path, int core, uint64_t seed)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    CHECK(sched_setaffinity(0, sizeof cores, &cores) == 0);
    stoc_cache *cache = open_cache(path);
    struct stoc_info info = {.struct_bytes = sizeof info};
    CHECK(stoc_info(cache, &info) == 0);
    int64_t *order = random_order(info.samples, seed);
    ready();
    int64_t start, window;
    while (scanf(" go %" SCNd64 " %" SCNd64, &start, &window) == 2) {
        while (clock_ns(CLOCK_MONOTONIC) < start) {
        }
        int64_t before = clock_ns(CLOCK_THREAD_CPUTIME_ID), views = 0;
        for (size_t at = 0; views == 0 || clock_ns(CLOCK_MONOTONIC) < start + window; views += 256)
            for (int k = 0; k < 256; k++) {
                if (stoc_view_offset(cache, order[at]) < 0)
                    DIE("sample %lld is not there", (long long)order[at]);
                if (++at == info.samples)
                    at = 0;
            }
        printf("%" PRId64 " %" PRId64 " %" PRId64 "\n", views, clock_ns(CLOCK_MONOTONIC) - start,
               clock_ns(CLOCK_THREAD_CPUTIME_ID) - before);
        fflush(stdout);
    }
    free(order);
    stoc_close(cache);
    return 0;
}

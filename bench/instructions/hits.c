/*
 * hits.c - hits of caches with each policy, between the marks of step.c.
 */
#include "stocached.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 64, TIMES = 101 };
static const char *const policies[] = {"first-come", "first-indices", "cost", "random",  "clock",
                                       "fifo",       "lru",           "lfu",  "planned"};

int main(int argc, char **argv)
{
    size_t bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : 64, got;
    unsigned char *data = calloc(1, bytes);
    printf("nothing: ");
    fflush(stdout);
    for (int k = 0; k < TIMES; k++) {
        raise(SIGUSR2);
        raise(SIGUSR2);
    }
    raise(SIGUSR1);
    for (uint32_t policy = 0; policy <= STOC_POLICY_LFU; policy++) {
        struct stoc_options o = {.struct_bytes = sizeof o, .samples = SLOTS, .sample_bytes = bytes, .policy = policy};
        struct stoc_error error;
        stoc_cache *cache;
        if (stoc_create(NULL, &o, &cache, &error))
            return fprintf(stderr, "%s\n", error.message), 1;
        for (int64_t k = 0; k < SLOTS; k++)
            if (stoc_set(cache, k, data, bytes, 0) != STOC_STORED)
                return fprintf(stderr, "no slot\n"), 1;
        for (int64_t k = 0; k < 20 * SLOTS; k++) /* reference bytes as after many hits */
            stoc_get(cache, k % SLOTS, data, bytes, &got);
        printf("C, %zu bytes, %s: ", bytes, policies[policy]);
        fflush(stdout);
        for (int64_t k = 0; k < TIMES; k++) {
            raise(SIGUSR2);
            int result = stoc_get(cache, k % SLOTS, data, bytes, &got);
            raise(SIGUSR2);
            if (result != STOC_HIT)
                return fprintf(stderr, "no hit\n"), 1;
        }
        raise(SIGUSR1);
        stoc_close(cache);
    }
    free(data);
}

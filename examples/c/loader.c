/*
 * loader.c - one cache for several worker processes. Each worker reads its share of the dataset in
 * random order, stores what it misses, and uses what others have stored.
 *
 *     cc loader.c $(pkg-config --cflags --libs stocached) -o loader
 *     ./loader [samples [workers [epochs]]]
 *
 * The dataset is artificial (a sample takes a millisecond to "load"). The cache holds three
 * quarters of it, so a quarter of the loads remains from the second epoch on.
 */
#include "stocached.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SAMPLE_BYTES = 3 * 64 * 64 };

/* Stands for reading and decoding a file. */
static void load(int64_t i, unsigned char *sample)
{
    struct timespec millisecond = {.tv_nsec = 1000000};
    nanosleep(&millisecond, NULL);
    memset(sample, (int)(i % 251), SAMPLE_BYTES);
}

/* A worker of an epoch: every workers-th sample of a shuffled order. Exit status 0: all samples
 * were right. */
static int work(stoc_cache *cache, int64_t samples, int worker, int workers, int epoch)
{
    unsigned char sample[SAMPLE_BYTES];
    for (int64_t k = worker; k < samples; k += workers) {
        int64_t i = (k * 7919 + epoch * 104729) % samples; /* 7919 is a prime: each sample once */
        int result = stoc_get(cache, i, sample, sizeof sample, NULL);
        if (result == STOC_MISS) {
            load(i, sample);
            /* BUSY, EXISTS and FULL are fine: we have our copy */
            result = stoc_set(cache, i, sample, sizeof sample, 0);
        }
        if (result < 0) {
            char text[256];
            stoc_explain(cache, result, i, sizeof sample, text, sizeof text);
            fprintf(stderr, "worker %d: %s\n", worker, text);
            return 1;
        }
        if (sample[0] != i % 251 || sample[SAMPLE_BYTES - 1] != i % 251) {
            fprintf(stderr, "worker %d: sample %lld is wrong\n", worker, (long long)i);
            return 1;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    int64_t samples = argc > 1 ? atoll(argv[1]) : 2000;
    int workers = argc > 2 ? atoi(argv[2]) : 4, epochs = argc > 3 ? atoi(argv[3]) : 3, bad = 0;
    if (samples < 4 || workers < 1 || epochs < 1) {
        fprintf(stderr, "usage: %s [samples [workers [epochs]]]\n", argv[0]);
        return 2;
    }
    struct stoc_options options = {.struct_bytes = sizeof options, .samples = (uint64_t)samples,
                                   .slots = (uint64_t)samples * 3 / 4, .sample_bytes = SAMPLE_BYTES};
    struct stoc_error error;
    stoc_cache *cache;
    if (stoc_create(NULL, &options, &cache, &error) != 0) { /* a cache without a name ends with its last process */
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    uint64_t hits = 0, misses = 0;
    for (int epoch = 0; epoch < epochs; epoch++) {
        for (int worker = 0; worker < workers; worker++)
            if (fork() == 0)
                /* the handle works in the child, which becomes a client of its own */
                _exit(work(cache, samples, worker, workers, epoch));
        for (int worker = 0, status; worker < workers; worker++) {
            if (wait(&status) < 0 || status != 0)
                bad = 1;
        }
        struct stoc_stats stats = {.struct_bytes = sizeof stats};
        if (stoc_stats(cache, &stats) != 0)
            return 1;
        printf("epoch %d: %llu of %lld samples from the cache, %llu loaded; %llu of %llu slots filled\n", epoch + 1,
               (unsigned long long)(stats.hits - hits), (long long)samples, (unsigned long long)(stats.misses - misses),
               (unsigned long long)stats.ready, (unsigned long long)options.slots);
        if (epoch > 0 && stats.hits - hits != options.slots)
            bad = 1;
        hits = stats.hits;
        misses = stats.misses;
    }
    stoc_close(cache);
    return bad;
}

/*
 * fetch.c - reads every sample of a served cache once, in batches and in a shuffled order, and prints
 * counts, time and checksum. It tells the server the order, for caches with the policy planned.
 *
 *     cc fetch.c $(pkg-config --cflags --libs stocached) -o fetch
 *     ./fetch NAME SEED [BATCH]
 *
 * Samples in the cache are copied out of shared memory. For all others of a batch, the program asks
 * the server once. It counts samples that fail, and names the first ones.
 */
#define _POSIX_C_SOURCE 200809L
#include "stocached.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint32_t crc_table[256];

static void make_crc_table(void)
{
    for (uint32_t k = 0; k < 256; k++) {
        crc_table[k] = k;
        for (int bit = 0; bit < 8; bit++)
            crc_table[k] = crc_table[k] >> 1 ^ (crc_table[k] & 1 ? 0x82f63b78u : 0); /* CRC-32C, reflected */
    }
}

static uint32_t crc32c(const void *data, size_t n)
{
    const unsigned char *p = data;
    uint32_t crc = ~0u;
    while (n--)
        crc = crc >> 8 ^ crc_table[(crc ^ *p++) & 0xff];
    return ~crc;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    struct stoc_error error;
    struct stoc_info info = {.struct_bytes = sizeof info};
    struct stoc_fetch_options options = {.struct_bytes = sizeof options, .timeout_ms = 60000};
    stoc_cache *cache;
    if (argc < 3) {
        fprintf(stderr, "usage: %s NAME SEED [BATCH]\n", argv[0]);
        return 2;
    }
    size_t batch = argc > 3 ? strtoul(argv[3], NULL, 10) : 32;
    if (batch < 1) {
        fprintf(stderr, "a batch of %s samples\n", argv[3]);
        return 2;
    }
    if (stoc_dial(argv[1], NULL, 0, NULL, &cache, &error) != 0 || stoc_info(cache, &info) != 0) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    struct stoc_order order = {.struct_bytes = sizeof order, .samples = info.samples, .kind = STOC_ORDER_SHUFFLED,
                               .seed = strtoull(argv[2], NULL, 10)};
    struct stoc_shard all = {.struct_bytes = sizeof all, .ranks = 1};
    stoc_epoch *epoch;
    if (stoc_epoch_open(&order, 0, &epoch, &error) != 0 ||
        stoc_announce(cache, &order, 0, &all, batch, options.timeout_ms, &error) < 0) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    int64_t *indices = malloc(batch * sizeof *indices);
    void **data = calloc(batch, sizeof *data);
    uint64_t *lengths = calloc(batch, sizeof *lengths);
    /* rows for samples of one size, used for every batch */
    unsigned char *rows = malloc(info.variable ? 1 : batch * info.sample_bytes);
    uint8_t *hit = malloc(batch);
    if (!indices || !data || !lengths || !rows || !hit) {
        fprintf(stderr, "no memory for %zu samples\n", batch);
        return 1;
    }
    make_crc_table();

    uint64_t samples = 0, failed = 0, bytes = 0, hits = 0;
    uint32_t crc = 0;
    double waited = 0;
    for (uint64_t from = 0; from < info.samples; from += batch) {
        size_t n = (size_t)stoc_epoch_fill(epoch, indices, batch, from, 1);
        for (size_t k = 0; k < n; k++)
            hits += stoc_state(cache, indices[k]) == STOC_STATE_READY;
        double began = seconds();
        int64_t had = info.variable
                          ? stoc_fetch_each(cache, indices, n, data, lengths, &options, &error)
                          : stoc_fetch(cache, indices, n, rows, info.sample_bytes, hit, &options, &error);
        waited += seconds() - began;
        if (had < 0) {
            fprintf(stderr, "%s\n", error.message);
            return 1;
        }
        for (uint64_t k = 0; k < options.failed && failed + k < 5; k++)
            fprintf(stderr, "sample %" PRId64 ": %s\n", options.failures[k].index, options.failures[k].message);
        failed += options.failed;
        for (size_t k = 0; k < n; k++) {
            if (info.variable ? !data[k] : !hit[k])
                continue;
            uint64_t length = info.variable ? lengths[k] : info.sample_bytes;
            samples++;
            bytes += length;
            crc ^= crc32c(info.variable ? data[k] : rows + k * info.sample_bytes, length);
        }
        stoc_fetch_end(&options, data, n);
    }
    printf("samples=%" PRIu64 " hits=%" PRIu64 " failed=%" PRIu64 " bytes=%" PRIu64 " crc=%08" PRIx32 " seconds=%.3f\n",
           samples, hits, failed, bytes, crc, waited);
    stoc_epoch_close(epoch);
    free(indices);
    free(data);
    free(lengths);
    free(rows);
    free(hit);
    stoc_close(cache);
    return failed ? 1 : 0;
}

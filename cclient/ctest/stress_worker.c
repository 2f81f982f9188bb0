/*
 * stress_worker.c - the worker in C of the kill stress. internal/verify/stress/doc.go is its
 * contract: command line, operations, payload, exit statuses.
 *
 *     stress_worker <cache> <samples> <seconds> <seed>
 *     stress_worker --test-vector
 */
#include "stocached.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { HEADER_BYTES = 32, BATCH = 8, EXIT_TORN = 3, EXIT_ERROR = 4 };

static const uint64_t golden = UINT64_C(0x9e3779b97f4a7c15);

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static uint64_t rotated(uint64_t x, int by) { return x << by | x >> (64 - by); }

static uint64_t check_of(uint64_t sample, uint64_t sequence, uint64_t writer, uint64_t length)
{
    return mix((sample ^ rotated(sequence, 21) ^ rotated(writer, 42) ^ length) + golden);
}

/* Fills in the words after the header; the last word may be cut. */
static void stream(unsigned char *bytes, size_t length, uint64_t state)
{
    for (size_t at = HEADER_BYTES; at < length; at += 8) {
        state += golden;
        uint64_t word = mix(state);
        memcpy(bytes + at, &word, length - at < 8 ? length - at : 8);
    }
}

static void payload(unsigned char *bytes, size_t length, uint64_t sample, uint64_t sequence, uint64_t writer)
{
    uint64_t header[4] = {sample, sequence, writer, check_of(sample, sequence, writer, length)};
    memcpy(bytes, header, sizeof header);
    stream(bytes, length, header[3]);
}

/* Ends the process if no writer wrote these bytes as this sample. */
static void verify(const unsigned char *bytes, size_t length, uint64_t sample, unsigned char *room)
{
    uint64_t header[4] = {0};
    if (length >= HEADER_BYTES) {
        memcpy(header, bytes, sizeof header);
        memcpy(room, header, sizeof header);
        stream(room, length, header[3]);
        if (header[0] == sample && header[3] == check_of(sample, header[1], header[2], length) &&
            memcmp(bytes, room, length) == 0)
            return;
    }
    size_t at = 0;
    while (length >= HEADER_BYTES && at < length && bytes[at] == room[at])
        at++;
    fprintf(stderr,
            "TORN sample %" PRIu64 " holds sample %" PRIu64 " (sequence %" PRIu64 " of writer %" PRIu64
            ", %zu bytes), wrong from byte %zu on\n",
            sample, header[0], header[1], header[2], length, at);
    exit(EXIT_TORN);
}

struct worker {
    stoc_cache *cache;
    uint64_t random, sequence, writer, samples, sample_bytes;
    bool variable;
    unsigned char *data, *batch, *room;
};

static uint64_t random_below(struct worker *w, uint64_t n)
{
    w->random += golden;
    return mix(w->random) % n;
}

/* Ends the process on an unexpected error. */
static int expect(struct worker *w, int result, const char *what, uint64_t sample, uint64_t bytes)
{
    if (result >= 0)
        return result;
    if (result == STOC_ECLIENTS)
        exit(0);
    char text[512];
    stoc_explain(w->cache, result, (int64_t)sample, bytes, text, sizeof text);
    fprintf(stderr, "ERROR %s of sample %" PRIu64 ": %d %s\n", what, sample, result, text);
    exit(EXIT_ERROR);
}

/* Writes this writer's next payload to w->data. Returns its length. */
static size_t next(struct worker *w, uint64_t sample)
{
    size_t length = w->variable ? HEADER_BYTES + random_below(w, w->sample_bytes - HEADER_BYTES + 1) : w->sample_bytes;
    payload(w->data, length, sample, ++w->sequence, w->writer);
    return length;
}

/* What a load of a sample costs at this moment, in nanoseconds. */
static uint64_t cost(uint64_t sample)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return UINT64_C(1000) << (sample + (uint64_t)now.tv_sec * 4 + (uint64_t)now.tv_nsec / 250000000) % 12;
}

static bool get(struct worker *w, uint64_t sample)
{
    size_t length = 0;
    if (expect(w, stoc_get(w->cache, (int64_t)sample, w->batch, w->sample_bytes, &length), "get", sample,
               w->sample_bytes) != STOC_HIT)
        return false;
    verify(w->batch, length, sample, w->room);
    return true;
}

static void set(struct worker *w, uint64_t sample, unsigned flags)
{
    struct iovec part = {w->data, next(w, sample)};
    expect(w, stoc_set_loaded(w->cache, (int64_t)sample, &part, 1, flags, cost(sample)), "set", sample, part.iov_len);
}

static void gather(struct worker *w, uint64_t first)
{
    int64_t indices[BATCH];
    uint8_t hit[BATCH];
    for (uint64_t k = 0; k < BATCH; k++)
        indices[k] = (int64_t)((first + k) % w->samples);
    if (w->variable) {
        for (int k = 0; k < BATCH; k++)
            get(w, (uint64_t)indices[k]);
        return;
    }
    expect(w, (int)stoc_gather(w->cache, indices, BATCH, -1, w->batch, w->sample_bytes, hit, 1), "gather", first,
           w->sample_bytes);
    for (uint64_t k = 0; k < BATCH; k++)
        if (hit[k])
            verify(w->batch + k * w->sample_bytes, w->sample_bytes, (uint64_t)indices[k], w->room);
}

static void pieces(struct worker *w, uint64_t sample)
{
    struct stoc_claim claim;
    size_t length = next(w, sample), half = length / 2;
    if (expect(w, stoc_claim(w->cache, (int64_t)sample, length, 0, &claim), "claim", sample, length) != STOC_STORED)
        return;
    if (expect(w, stoc_write(&claim, 0, w->data, half), "write", sample, length) != STOC_STORED ||
        expect(w, stoc_write(&claim, half, w->data + half, length - half), "write", sample, length) != STOC_STORED)
        return; /* FULL, and the claim is aborted */
    if (w->sequence % 2 == 0)
        expect(w, stoc_abort(&claim), "abort", sample, length);
    else
        expect(w, stoc_publish_loaded(&claim, cost(sample)), "publish", sample, length);
}

static void turn(struct worker *w)
{
    uint64_t sample = random_below(w, w->samples), kind = random_below(w, 16);
    if (kind < 9) {
        if (!get(w, sample))
            set(w, sample, 0);
    } else if (kind < 13) {
        set(w, sample, STOC_OVERWRITE);
    } else if (kind < 15) {
        gather(w, sample);
    } else {
        pieces(w, sample);
    }
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int test_vector(void)
{
    static const unsigned char want[45] = {5,    0,    0,    0,    0,    0,    0,    0,    7,    0,    0,    0,
                                           0,    0,    0,    0,    0xd2, 4,    0,    0,    0,    0,    0,    0,
                                           0,    0xb7, 0x76, 0x15, 0xdf, 0x6f, 0xea, 0xcf, 0xf6, 0xbb, 0x85, 0x47,
                                           0x94, 0xae, 0xff, 0xf9, 0x89, 0x8e, 0xe1, 0x95, 0x16};
    unsigned char bytes[45], room[45];
    payload(bytes, sizeof bytes, 5, 7, 1234);
    if (memcmp(bytes, want, sizeof want) != 0) {
        fprintf(stderr, "the payload is not that of the contract\n");
        return 1;
    }
    verify(bytes, sizeof bytes, 5, room);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--test-vector") == 0)
        return test_vector();
    if (argc != 5) {
        fprintf(stderr, "usage: %s <cache> <samples> <seconds> <seed>\n", argv[0]);
        return 2;
    }
    struct worker w = {
        .samples = strtoull(argv[2], NULL, 10), .random = strtoull(argv[4], NULL, 10), .writer = (uint64_t)getpid()};
    int64_t end = now_ms() + (int64_t)(strtod(argv[3], NULL) * 1000);
    struct stoc_error error;
    struct stoc_info info = {.struct_bytes = sizeof info};
    int code = stoc_open(argv[1], 0, NULL, &w.cache, &error);
    if (code == STOC_ECLIENTS)
        return 0;
    if (code != 0 || stoc_info(w.cache, &info) != 0 || w.samples < 1 || w.samples > info.samples ||
        info.sample_bytes < HEADER_BYTES) {
        fprintf(stderr, "ERROR %d %s (or %" PRIu64 " samples of %" PRIu64 " bytes do not suit the cache)\n", code,
                code ? error.message : "", w.samples, info.sample_bytes);
        return EXIT_ERROR;
    }
    w.sample_bytes = info.sample_bytes;
    w.variable = info.variable;
    w.data = malloc(w.sample_bytes);
    w.room = malloc(w.sample_bytes);
    w.batch = malloc(BATCH * w.sample_bytes);
    if (!w.data || !w.room || !w.batch) {
        fprintf(stderr, "ERROR no memory for %d samples of %" PRIu64 " bytes\n", BATCH + 2, w.sample_bytes);
        return EXIT_ERROR;
    }
    while (now_ms() < end)
        turn(&w);
    stoc_close(w.cache);
    return 0;
}

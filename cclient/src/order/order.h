/*
 * order.h - the order of an epoch: permutations, weights, mixes, shards, nodes.
 *
 * docs/spec/order.md is normative. Includes base. Knows nothing of caches.
 */
#ifndef STOCACHED_ORDER_H
#define STOCACHED_ORDER_H

#include "../base/base.h"

/* order.c */
#define ORDER_ROUNDS 10
#define ORDER_SMALLEST 257 /* the least n that uses rounds; smaller ones use a shuffled table */

enum { OF_SAMPLES, OF_BLOCKS, OF_WINDOW, OF_DRAWS, OF_NODE, OF_DATASET };

/* A keyed permutation of 0..n-1. */
struct permutation {
    uint64_t n, a, b;
    double inverse; /* 1/b, for a division by multiplication */
    uint64_t keys[ORDER_ROUNDS];
    uint8_t table[ORDER_SMALLEST - 1], places[ORDER_SMALLEST - 1]; /* for a small n: by position, and by index */
};

#define WINDOW_BLOCKS 64 /* kept block numbers of a window, so that most samples take one permutation instead of two */
#define UNKNOWN UINT64_MAX

/* A part of an epoch whose samples are shuffled among each other. */
struct window {
    uint64_t number, first, samples; /* first: position */
    /* position in the window, in the order of blocks, of the samples that the last block lacks.
     * Equal to samples if that block is in another window */
    uint64_t short_at;
    struct permutation shuffle;
    uint64_t blocks[WINDOW_BLOCKS]; /* numbers of its first blocks, once computed; UNKNOWN before */
};

/* The order of one epoch of one dataset. */
struct plain {
    struct stoc_order order;
    uint64_t number;
    /* samples of a block (1 for windows of samples), number of blocks, blocks of a window */
    uint64_t block, blocks, window;
    uint64_t missing, short_block;  /* samples that the last block lacks, and its position */
    struct permutation whole;       /* permutes the samples, or the blocks */
};

INTERNAL uint64_t chain(uint64_t seed, const uint64_t *words, size_t n);
#define CHAIN(seed, ...)                                                                                               \
    chain(seed, (const uint64_t[]){__VA_ARGS__}, sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

INTERNAL void permutation_run(const struct permutation *p, uint64_t x, uint64_t step, int64_t *out, size_t n);
INTERNAL int check_order(const struct stoc_order *order, const char *what, struct stoc_error *error);
INTERNAL void plain_begin(struct plain *e, const struct stoc_order *order, uint64_t number);
INTERNAL uint64_t plain_at(const struct plain *e, uint64_t position, struct window *w);
INTERNAL uint64_t plain_position(const struct plain *e, uint64_t index);

/* mix.c */
struct mixture;
#define MIX_SLOTS 8
/* The datasets asked last: few, so that memory does not grow with the number of datasets. */
struct mix_memory {
    struct {
        bool made;
        uint32_t dataset;
        struct plain plain;
        struct window window;
    } slots[MIX_SLOTS];
};

INTERNAL int check_mix(const struct stoc_mix *mix, struct stoc_error *error);
INTERNAL void mixture_close(struct mixture *m);
INTERNAL struct mixture *mixture_open(const struct stoc_mix *mix, uint64_t number);
INTERNAL uint64_t mixture_begin(struct mixture *m, const struct stoc_mix *mix);
INTERNAL uint64_t mixture_at(const struct mixture *m, uint64_t position, struct mix_memory *memory);

/* epoch.c */
INTERNAL uint64_t epoch_number(const struct stoc_epoch *e);

/* weights.c */
/* A bucket of the table: its own sample or the other one. */
struct bucket {
    uint64_t threshold; /* for the random number: below it the bucket's own sample comes */
    uint64_t alias;
};

struct stoc_weights {
    atomic_uint_fast64_t users; /* the program and its epochs; the last one frees it */
    uint64_t samples;
    struct bucket buckets[];
};

INTERNAL uint64_t draw_at(const struct stoc_weights *t, uint64_t key, uint64_t position);

#endif

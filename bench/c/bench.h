/*
 * bench.h - functions that all C benchmarks use. They print one measurement in each line, as JSON:
 * see ../report/measurement.go.
 */
#ifndef BENCH_H
#define BENCH_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "loops.h"
#include "stocached.h"

/* Ends the program with the numbers, because a benchmark with an error measures nothing. */
#define DIE(...) (fprintf(stderr, "bench: " __VA_ARGS__), fputc('\n', stderr), exit(1))
#define CHECK(ok) ((ok) ? (void)0 : DIE("%s:%d: %s", __FILE__, __LINE__, #ok))

/* A kind of sample; the numbers are those of ../measure/size.go. */
struct size {
    const char *name;
    size_t bytes, samples, reads, views, sets, batch;
};

/* One way to do the work. setup and clean are not timed and may be NULL. */
struct subject {
    const char *name;
    size_t samples; /* in a run */
    void (*setup)(void *context);
    void (*run)(void *context);
    void (*clean)(void *context);
    void *context;
};

enum { MAX_SUBJECTS = 8, MAX_RUNS = 99 };

extern int runs;               /* of every subject */
extern const char *directory;  /* on a tmpfs; only this run uses it */

/* Runs n subjects in turn, a round to warm up first, and prints what they took. size may be NULL. */
void alternate(const char *name, const struct size *size, const struct subject *subjects, int n);

stoc_cache *create_cache(const char *name, const struct size *size, size_t slots, int reserve);
void remove_cache(stoc_cache *cache, const char *name);

/* Samples to store: several, and few enough for the processor's cache. */
struct data {
    size_t n;
    unsigned char *samples[16];
};
struct data make_data(size_t bytes);

int64_t *random_order(size_t n, uint64_t seed); /* the caller frees it */

void reads(const struct size *size, const char *view_case, int only_views);
void stores(const struct size *size);
void create(void);
void attach(const char *path);
void orders(int is_quick);
int hits_worker(const char *path, int core, uint64_t seed);

#endif

/*
 * loops.h - bare loops, with which the benchmarks compare batches. They copy rows of an array with
 * memcpy, check nothing and count nothing.
 */
#ifndef LOOPS_H
#define LOOPS_H

#include <stddef.h>
#include <stdint.h>

/* Row indices[k] of rows, each of bytes, to dst + k * bytes. */
void loop_gather(void *dst, const void *rows, const int64_t *indices, size_t n, size_t bytes);

/* The same with two threads, each with half of the batch. The call starts one of them. */
void loop_gather_2(void *dst, const void *rows, const int64_t *indices, size_t n, size_t bytes);

/* Keeps this thread busy for so long of its processor time, even if other programs run. */
void loop_work(int64_t nanoseconds);

#endif

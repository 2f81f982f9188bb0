/*
 * loops.h - the bare loops that batches are compared with: memcpy of the rows of an array. They check and count nothing.
 */
#ifndef LOOPS_H
#define LOOPS_H

#include <stddef.h>
#include <stdint.h>

/* Row indices[k] of rows, each of bytes, to dst + k * bytes. */
void loop_gather(void *dst, const void *rows, const int64_t *indices, size_t n, size_t bytes);

/* The same by two threads, one of them made for it: the halves of the batch. */
void loop_gather_2(void *dst, const void *rows, const int64_t *indices, size_t n, size_t bytes);

/* The least that a counted lookup in a table in memory takes: loads the word of sample i, one of every 16 bytes, and
 * adds 1 to counter. */
uint64_t loop_look(const uint64_t *table, int64_t i, uint64_t *counter);

/* Keeps a core busy for so long by the clock: a training step on the processor. */
void loop_busy(int64_t nanoseconds);

/* Does so much work: uses so much processor time of this thread, also on a busy machine. */
void loop_work(int64_t nanoseconds);

#endif

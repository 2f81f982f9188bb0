/*
 * tasks.h - work for several threads and processes: a thread pool for batches, writes in the background, and the
 * task queue of the loader (docs/spec/workers.md).
 *
 * Includes base. Knows nothing of segments.
 */
#ifndef STOCACHED_TASKS_H
#define STOCACHED_TASKS_H

#include "../base/base.h"

#define BYTES_PER_THREAD (256 * 1024)  /* waking a thread and waiting for it takes about as long as copying this much */

INTERNAL void run_threads(struct thread_pool *pool, unsigned threads, void (*work)(void *), void *context);
INTERNAL bool stop_threads(struct thread_pool *pool);
INTERNAL void forget_pool(struct thread_pool *pool);
/* write_queue.c */
INTERNAL void begin_queue(struct write_queue *q, uint64_t limit, void (*write)(void *, const struct waiting *),
                          void *context);
INTERNAL bool put_in_queue(struct write_queue *q, int64_t index, uint64_t epoch, const struct iovec *parts, int count,
                           uint64_t length);
INTERNAL bool flush_queue(struct write_queue *q, uint64_t deadline);
INTERNAL void end_queue(struct write_queue *q, uint64_t deadline);
INTERNAL void fork_queue(struct write_queue *q);
INTERNAL void fork_queue_parent(struct write_queue *q);
INTERNAL void fork_queue_child(struct write_queue *q);
/* task_queue.c: a worker tells when it began a task that it holds, how long its random part took, and how long it
 * waited for its source and for a processor. */
INTERNAL void tell_task_times(void *queue, uint64_t position, uint64_t began_ns, uint64_t augment_ns,
                              uint64_t waited_ns, uint64_t delayed_ns);

#endif

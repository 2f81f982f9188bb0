/*
 * tasks.h - work for several threads and processes: a thread pool for batches, and the task queue
 * of the loader (docs/spec/workers.md).
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
/* task_queue.c: a worker tells when it began a task that it holds, and how long its random part took. */
INTERNAL void tell_task_times(void *board, uint64_t position, uint64_t began_ns, uint64_t augment_ns,
                              uint64_t waited_ns);

#endif

/*
 * write_queue.c - samples that one thread writes in the background, in the order of their puts. The thread starts
 * with a put, and ends after a moment without work, at the end of the queue, and before a fork.
 *
 * The lock is held for a few instructions, and across a fork: so a child finds a queue that is whole, and forgets it.
 */
#include "tasks.h"

#ifndef WRITER_STAYS_MS
#define WRITER_STAYS_MS 100 /* how long a thread without work waits for more */
#endif

INTERNAL void begin_queue(struct write_queue *q, uint64_t limit, void (*write)(void *, const struct waiting *),
                          void *context)
{
    *q = (struct write_queue){.limit = limit, .write = write, .context = context, .last = &q->first};
    pthread_mutex_init(&q->lock, NULL);
}

/* Writes what waits, until the deadline or until the queue is told to leave. The caller holds the lock. */
static void write_waiting(struct write_queue *q, uint64_t deadline)
{
    while (q->first && !q->leave && now_ns() < deadline) {
        struct waiting *w = q->writing = q->first;
        q->first = w->next;
        if (!q->first)
            q->last = &q->first;
        pthread_mutex_unlock(&q->lock);
        q->write(q->context, w);
        pthread_mutex_lock(&q->lock);
        q->writing = NULL; /* before it is freed: a forked child frees what this names */
        uint64_t size = sizeof *w + w->capacity;
        q->bytes -= size;
        if (q->bytes + q->spare_bytes + size <= q->limit) {
            w->next = q->spare;
            q->spare = w;
            q->spare_bytes += size;
            continue;
        }
        pthread_mutex_unlock(&q->lock);
        free(w);
        pthread_mutex_lock(&q->lock);
    }
}

static void free_list(struct waiting *w)
{
    for (struct waiting *next; w; w = next) {
        next = w->next;
        free(w);
    }
}

static void free_spare(struct write_queue *q)
{
    free_list(q->spare);
    q->spare = NULL;
    q->spare_bytes = 0;
}

static void *write_on(void *context)
{
    struct write_queue *q = context;
    pthread_mutex_lock(&q->lock);
    while (!q->leave) {
        write_waiting(q, UINT64_MAX);
        if (q->leave)
            break;
        uint32_t seen = atomic_load(&q->posted);
        q->idle = true;
        pthread_mutex_unlock(&q->lock);
        bool over = futex_wait(&q->posted, seen, WRITER_STAYS_MS) != 0 && errno == ETIMEDOUT;
        pthread_mutex_lock(&q->lock);
        q->idle = false;
        if (over && !q->first)
            break;
    }
    q->running = false;
    free_spare(q);
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

/* Has a thread write what waits. Without one the caller writes it. The caller holds the lock. */
static void start_writer(struct write_queue *q)
{
    if (q->running || q->leave || !q->first)
        return;
    if (q->started)
        pthread_join(q->thread, NULL); /* it has given up the lock for the last time */
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before); /* no signal handler of the program runs in it */
    q->running = q->started = pthread_create(&q->thread, NULL, write_on, q) == 0;
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (!q->running)
        write_waiting(q, UINT64_MAX);
}

/* Ends the thread after the sample that it writes. The caller holds the lock, which is free for a while. */
static void stop_writer(struct write_queue *q)
{
    while (q->leave) { /* another thread does so */
        pthread_mutex_unlock(&q->lock);
        sleep_ns(50000);
        pthread_mutex_lock(&q->lock);
    }
    q->leave = true;
    atomic_fetch_add(&q->posted, 1);
    futex_wake(&q->posted, 1);
    pthread_mutex_unlock(&q->lock);
    if (q->started)
        pthread_join(q->thread, NULL);
    pthread_mutex_lock(&q->lock);
    q->started = q->leave = false;
}

/* Copies a sample into the queue. false: it is full, or there is no memory. An empty queue takes a sample of any
 * size. */
INTERNAL bool put_in_queue(struct write_queue *q, int64_t index, uint64_t epoch, const struct iovec *parts, int count,
                           uint64_t length)
{
    struct waiting *w = NULL;
    uint64_t need = sizeof *w + length, at = 0;
    pthread_mutex_lock(&q->lock);
    bool fits = q->bytes == 0 || q->bytes + need <= q->limit;
    q->bytes += fits ? need : 0;
    if (fits && q->spare && q->spare->capacity >= length) {
        w = q->spare;
        q->spare = w->next;
        q->spare_bytes -= sizeof *w + w->capacity;
        q->bytes += w->capacity - length;
    } else if (fits && q->bytes + q->spare_bytes > q->limit) {
        free_spare(q);
    }
    pthread_mutex_unlock(&q->lock);
    if (!fits)
        return false;
    uint64_t capacity = w ? w->capacity : length;
    if (!w && !(w = malloc(need))) {
        pthread_mutex_lock(&q->lock);
        q->bytes -= need;
        pthread_mutex_unlock(&q->lock);
        return false;
    }
    *w = (struct waiting){.index = index, .epoch = epoch, .length = length, .capacity = capacity};
    for (int k = 0; k < count; at += parts[k++].iov_len)
        if (parts[k].iov_len)
            memcpy(w->data + at, parts[k].iov_base, parts[k].iov_len);
    pthread_mutex_lock(&q->lock);
    *q->last = w;
    q->last = &w->next;
    atomic_fetch_add(&q->posted, 1);
    start_writer(q);
    bool sleeps = q->idle;
    pthread_mutex_unlock(&q->lock);
    if (sleeps)
        futex_wake(&q->posted, 1);
    return true;
}

/* Waits until all samples are written. false: not by the deadline. */
INTERNAL bool flush_queue(struct write_queue *q, uint64_t deadline)
{
    for (uint64_t pause = 50000;; pause = MIN(2 * pause, 2000000)) {
        pthread_mutex_lock(&q->lock);
        bool empty = q->bytes == 0;
        pthread_mutex_unlock(&q->lock);
        if (empty || now_ns() >= deadline)
            return empty;
        sleep_ns(pause);
    }
}

static void free_waiting(struct write_queue *q)
{
    free_list(q->first);
    free_spare(q);
    q->first = NULL;
    q->last = &q->first;
}

/* Writes what waits until the deadline, drops the rest, and ends the thread. */
INTERNAL void end_queue(struct write_queue *q, uint64_t deadline)
{
    pthread_mutex_lock(&q->lock);
    stop_writer(q);
    write_waiting(q, deadline);
    free_waiting(q);
    pthread_mutex_unlock(&q->lock);
}

/* Before a fork: ends a thread without work, because Python would warn of it. The lock is held from now on. */
INTERNAL void fork_queue(struct write_queue *q)
{
    pthread_mutex_lock(&q->lock);
    if (q->running ? q->idle && !q->first : q->started)
        stop_writer(q);
}

INTERNAL void fork_queue_parent(struct write_queue *q)
{
    start_writer(q); /* for samples that came while it ended */
    pthread_mutex_unlock(&q->lock);
}

/* The samples are the parent's to write. */
INTERNAL void fork_queue_child(struct write_queue *q)
{
    free_waiting(q);
    free(q->writing);
    begin_queue(q, q->limit, q->write, q->context);
}

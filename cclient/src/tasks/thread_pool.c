/*
 * thread_pool.c - threads that help a caller with a batch. They wait a moment for the next batch:
 * starting a thread takes 30 to 40 us, waking one 6 to 10. Measured in one run, 256 rows of 3,072
 * bytes: 198 us alone, 152 with a new thread, 112 with a waiting one.
 *
 * Each handle has its own pool. If a second thread finds the pool busy, it does its batch alone.
 * Helpers end after a moment without work, when the handle closes, and before a fork, because
 * Python would warn that the process has threads.
 */
#include "tasks.h"

/* These functions have new versions since GLIBC 2.34, where libpthread moved into libc. The old
 * versions still exist and do the same. */
#if defined(__GLIBC__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#if defined(__x86_64__)
__asm__(".symver pthread_create,pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_join,pthread_join@GLIBC_2.2.5");
__asm__(".symver pthread_detach,pthread_detach@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver pthread_create,pthread_create@GLIBC_2.17");
__asm__(".symver pthread_join,pthread_join@GLIBC_2.17");
__asm__(".symver pthread_detach,pthread_detach@GLIBC_2.17");
#endif
#endif

#ifndef STAY_MS
#define STAY_MS 10                     /* how long an idle helper waits for the next batch */
#endif
#define SPIN_NS UINT64_C(20000)        /* how long the caller spins before it sleeps until the last helper ends */

/* States of a helper. The thread that holds the pool changes ABSENT to WORKING, and STAYING to
 * WORKING or LEAVING. The helper makes all other changes. */
enum { ABSENT = 0, STAYING = 1, WORKING = 2, LEAVING = 3 };

static void *help(void *context)
{
    struct helper *h = context;
    struct thread_pool *pool = h->pool;
    for (;;) {
        pool->work(pool->context);
        atomic_store_explicit(&h->state, STAYING, memory_order_relaxed);
        if (atomic_fetch_sub_explicit(&pool->working, 1, memory_order_acq_rel) == 1)
            futex_wake(&pool->working, 1);
        uint32_t state;
        while ((state = atomic_load_explicit(&h->state, memory_order_acquire)) == STAYING) {
            if (futex_wait(&h->state, STAYING, STAY_MS) == 0 || errno != ETIMEDOUT)
                continue;
            if (atomic_compare_exchange_strong_explicit(&h->state, &state, ABSENT, memory_order_acq_rel,
                                                        memory_order_acquire))
                return NULL;
        }
        if (state == LEAVING)
            return NULL;
    }
}

static void join_helper(struct helper *h)
{
    if (h->started)
        pthread_join(h->thread, NULL);
    h->started = false;
}

/* Makes a helper join the work of the pool. false: no thread could be made. */
static bool start_helper(struct thread_pool *pool, struct helper *h)
{
    uint32_t staying = STAYING;
    atomic_fetch_add_explicit(&pool->working, 1, memory_order_relaxed);
    if (atomic_compare_exchange_strong_explicit(&h->state, &staying, WORKING, memory_order_release,
                                                memory_order_relaxed)) {
        futex_wake(&h->state, 1);
        return true;
    }
    join_helper(h);
    h->pool = pool;
    atomic_store_explicit(&h->state, WORKING, memory_order_relaxed);
    h->started = pthread_create(&h->thread, NULL, help, h) == 0;
    if (!h->started) {
        atomic_store_explicit(&h->state, ABSENT, memory_order_relaxed);
        atomic_fetch_sub_explicit(&pool->working, 1, memory_order_relaxed);
    }
    return h->started;
}

/*
 * Runs work(context) in the calling thread and in up to threads - 1 helpers, and returns when all
 * have ended. Helpers block all signals, so that no signal handler of the program runs in them.
 * There are fewer helpers if threads cannot be made, and none if another thread holds the pool.
 */
INTERNAL void run_threads(struct thread_pool *pool, unsigned threads, void (*work)(void *), void *context)
{
    if (threads < 2 || atomic_exchange_explicit(&pool->taken, 1, memory_order_acquire) != 0) {
        work(context);
        return;
    }
    sigset_t all, before;
    pool->work = work;
    pool->context = context;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before); /* signals of this thread only, on Linux; pthread_sigmask binds GLIBC 2.32 */
    for (unsigned k = 0; k < MIN(threads, MAX_THREADS) - 1 && start_helper(pool, &pool->helpers[k]); k++)
        ;
    sigprocmask(SIG_SETMASK, &before, NULL);
    work(context);
    uint32_t working;
    for (uint64_t end = now_ns() + SPIN_NS;
         (working = atomic_load_explicit(&pool->working, memory_order_acquire)) != 0;)
        if (now_ns() > end)
            futex_wait(&pool->working, working, 1000);
    atomic_store_explicit(&pool->taken, 0, memory_order_release);
}

/* Ends all helpers, and waits for them. false: another thread holds the pool, and they work. */
INTERNAL bool stop_threads(struct thread_pool *pool)
{
    if (atomic_exchange_explicit(&pool->taken, 1, memory_order_acquire) != 0)
        return false;
    for (unsigned k = 0; k < MAX_THREADS - 1; k++) {
        uint32_t staying = STAYING;
        if (atomic_compare_exchange_strong_explicit(&pool->helpers[k].state, &staying, LEAVING, memory_order_release,
                                                    memory_order_relaxed))
            futex_wake(&pool->helpers[k].state, 1);
    }
    for (unsigned k = 0; k < MAX_THREADS - 1; k++) {
        join_helper(&pool->helpers[k]);
        atomic_store_explicit(&pool->helpers[k].state, ABSENT, memory_order_relaxed);
    }
    atomic_store_explicit(&pool->taken, 0, memory_order_release);
    return true;
}

/* In a forked child: its threads belong to the parent. */
INTERNAL void forget_pool(struct thread_pool *pool) { memset(pool, 0, sizeof *pool); }

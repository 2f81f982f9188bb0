/*
 * thread_pool.c - threads that help a caller with a batch. They stay for a moment, as the next batch mostly comes soon: starting one takes 30 to 40 us, waking one 6 to 10. Measured in one run, 256 rows
 * of 3,072 bytes: 198 us alone, 152 with one that is started, 112 with one that is woken.
 *
 * A handle has its own, so there is nothing to share out. Whoever finds them busy, another thread of the program, does its batch alone. They leave after a moment without work, with the handle, and before
 * a fork, which would have to tell of threads otherwise (Python does).
 */
#include "tasks.h"

/* pthread_create and pthread_join got new versions in GLIBC 2.34, where libpthread went into libc; the old ones are still there and the same. */
#if defined(__GLIBC__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#if defined(__x86_64__)
__asm__(".symver pthread_create,pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_join,pthread_join@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver pthread_create,pthread_create@GLIBC_2.17");
__asm__(".symver pthread_join,pthread_join@GLIBC_2.17");
#endif
#endif

#ifndef STAY_MS
#define STAY_MS 10                     /* that a helper waits for work: long against the time between batches that matters, short for whoever counts threads */
#endif
#define SPIN_NS UINT64_C(20000)        /* that the caller watches for the last helper before it sleeps: about a turn */
enum { ABSENT = 0, STAYING = 1, WORKING = 2, LEAVING = 3 }; /* of a helper. ABSENT to WORKING, and STAYING to WORKING or LEAVING, by whoever has the crew; the others by itself */

static void *help(void *context)
{
    struct helper *h = context;
    struct crew *crew = h->crew;
    for (;;) {
        crew->work(crew->context);
        atomic_store_explicit(&h->state, STAYING, memory_order_relaxed);
        if (atomic_fetch_sub_explicit(&crew->working, 1, memory_order_acq_rel) == 1)
            futex_wake(&crew->working, 1);
        uint32_t state;
        while ((state = atomic_load_explicit(&h->state, memory_order_acquire)) == STAYING) {
            if (futex_wait(&h->state, STAYING, STAY_MS) == 0 || errno != ETIMEDOUT)
                continue;
            if (atomic_compare_exchange_strong_explicit(&h->state, &state, ABSENT, memory_order_acq_rel, memory_order_acquire))
                return NULL;
        }
        if (state == LEAVING)
            return NULL;
    }
}

static void collect(struct helper *h)
{
    if (h->started)
        pthread_join(h->thread, NULL);
    h->started = false;
}

/* Has a helper work on what the crew is at. False: there is none and none can be made. */
static bool engage(struct crew *crew, struct helper *h)
{
    uint32_t staying = STAYING;
    atomic_fetch_add_explicit(&crew->working, 1, memory_order_relaxed);
    if (atomic_compare_exchange_strong_explicit(&h->state, &staying, WORKING, memory_order_release, memory_order_relaxed)) {
        futex_wake(&h->state, 1);
        return true;
    }
    collect(h);
    h->crew = crew;
    atomic_store_explicit(&h->state, WORKING, memory_order_relaxed);
    h->started = pthread_create(&h->thread, NULL, help, h) == 0;
    if (!h->started) {
        atomic_store_explicit(&h->state, ABSENT, memory_order_relaxed);
        atomic_fetch_sub_explicit(&crew->working, 1, memory_order_relaxed);
    }
    return h->started;
}

/*
 * Runs work(context) in the calling thread and in up to threads - 1 others, and returns when all have. The others block every signal: a handler of the program must
 * not find itself on a thread it does not know. Fewer run where threads cannot be made, and none where another thread has the crew.
 */
INTERNAL void run_threads(struct crew *crew, unsigned threads, void (*work)(void *), void *context)
{
    if (threads < 2 || atomic_exchange_explicit(&crew->taken, 1, memory_order_acquire) != 0) {
        work(context);
        return;
    }
    sigset_t all, before;
    crew->work = work;
    crew->context = context;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before); /* of this thread only, on Linux; pthread_sigmask binds GLIBC 2.32 */
    for (unsigned k = 0; k < MIN(threads, MAX_THREADS) - 1 && engage(crew, &crew->helpers[k]); k++)
        ;
    sigprocmask(SIG_SETMASK, &before, NULL);
    work(context);
    uint32_t working;
    for (uint64_t end = now_ns() + SPIN_NS; (working = atomic_load_explicit(&crew->working, memory_order_acquire)) != 0;)
        if (now_ns() > end)
            futex_wait(&crew->working, working, 1000);
    atomic_store_explicit(&crew->taken, 0, memory_order_release);
}

/* Has all helpers leave, and waits for that. False: somebody has the crew, and they work. */
INTERNAL bool dismiss(struct crew *crew)
{
    if (atomic_exchange_explicit(&crew->taken, 1, memory_order_acquire) != 0)
        return false;
    for (unsigned k = 0; k < MAX_THREADS - 1; k++) {
        uint32_t staying = STAYING;
        if (atomic_compare_exchange_strong_explicit(&crew->helpers[k].state, &staying, LEAVING, memory_order_release, memory_order_relaxed))
            futex_wake(&crew->helpers[k].state, 1);
    }
    for (unsigned k = 0; k < MAX_THREADS - 1; k++) {
        collect(&crew->helpers[k]);
        atomic_store_explicit(&crew->helpers[k].state, ABSENT, memory_order_relaxed);
    }
    atomic_store_explicit(&crew->taken, 0, memory_order_release);
    return true;
}

/* In a forked child: its threads are the parent's. */
INTERNAL void forget_crew(struct crew *crew) { memset(crew, 0, sizeof *crew); }

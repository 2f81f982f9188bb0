/*
 * worker.c - a worker of a loader without an interpreter: it takes tasks, reads the cache, and calls
 * functions that make samples and rows.
 */
#include "worker.h"

enum { MOST_TASKS = 32 }; /* tasks to take together */
#define TOGETHER_NS 1000000 /* the most that tasks taken together may take, so that other workers get some */
#define QUICK_NS 50000 /* who took less time hardly waited for a processor, and asking takes 1 us */
#define SCHEDSTAT "/proc/thread-self/schedstat"

/* Nanoseconds in which this thread was runnable and did not run. */
static uint64_t delay_ns(struct stoc_work *w)
{
    char text[64];
    if (!w->schedule)
        w->schedule = open(SCHEDSTAT, O_RDONLY | O_CLOEXEC) + 1; /* 0: this kernel has none, or no descriptor is free */
    int64_t n = w->schedule ? pread(w->schedule - 1, text, sizeof text - 1, 0) : 0;
    if (n <= 0)
        return 0;
    text[n] = 0;
    const char *at = strchr(text, ' '); /* the first number is the time on a processor */
    return at ? parse_number(&(const char *){at + 1}) : 0;
}

/* What a thread has used so far. */
struct usage {
    uint64_t at, delay, cpu; /* time; of it, runnable without a processor; on a processor */
};

/* The numbers are of one moment: a thread often loses its processor when it asks for its processor time. Then this asks
 * again. */
static struct usage usage_now(struct stoc_work *w)
{
    struct timespec t = {0};
    struct usage u = {0};
    for (int tries = 0; tries < 4; tries++) {
        u.at = now_ns();
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        u.cpu = (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
        u.delay = delay_ns(w);
        if (now_ns() - u.at < QUICK_NS)
            break;
    }
    return u;
}

/* How long this thread has worked since `at`: without its delays, whose sum was *delay_ns then, and which it sets. */
static uint64_t worked_since(struct stoc_work *w, uint64_t at, uint64_t *delay)
{
    uint64_t took = now_ns() - at, before = *delay;
    if (took >= QUICK_NS)
        *delay = delay_ns(w);
    return took - MIN(*delay - before, took);
}

/* Makes the copy as large as a sample. */
static bool make_room(struct stoc_work *w, uint64_t bytes)
{
    free(w->copy);
    w->copy_bytes = ROUND_UP(MAX(bytes, 1), 4096);
    w->copy = aligned_alloc(64, w->copy_bytes);
    if (!w->copy)
        w->copy_bytes = 0;
    return w->copy != NULL;
}

/* Makes the row from a copy of a hit. HIT, MISS, an error below 0, or FULL: finish did not make it. */
static int finish_copy(struct stoc_work *w, const struct stoc_task *task, void *buffer, uint64_t *retried)
{
    for (;;) {
        uint64_t bytes = 0;
        int result = copy_sample(w->cache, (uint64_t)task->index, WHOLE, UINT64_MAX, w->copy, w->copy_bytes, &bytes,
                                 copy_plain, retried);
        if (result == STOC_HIT)
            return w->finish(w->context, task->argument, w->copy, bytes, buffer, task->row) ? STOC_FULL : STOC_HIT;
        if (result != STOC_ESCHEMA)
            return result;
        if (!make_room(w, bytes))
            return STOC_EMEMORY;
    }
}

/* Makes the row from the bytes in the cache. If they have changed during the call, it makes the row again. Results as
 * of finish_copy. */
static int finish_in_place(struct stoc_work *w, const struct stoc_task *task, void *buffer, uint64_t *retried)
{
    const stoc_cache *c = w->cache;
    stoc_word *record = index_word(c, (uint64_t)task->index);
    for (int tries = 0; tries < MAX_COPIES; tries++) {
        uint64_t word = load(record), offset, bytes;
        if (state_of(word) != READY)
            return state_of(word) > c->last_state ? STOC_ECORRUPT : STOC_MISS;
        uint64_t meta = load(record + 1);
        int code = STOC_ECORRUPT;
        if (locate(c, word, meta, &offset, &bytes))
            code = w->finish(w->context, task->argument, c->payload + offset, bytes, buffer, task->row) ? STOC_FULL
                                                                                                        : STOC_HIT;
        if (unchanged(record, word, meta)) {
            if (c->references && code == STOC_HIT)
                leave(c, word, left_by_hit(c, (uint64_t)task->index, word));
            return code;
        }
        ++*retried;
    }
    return STOC_MISS;
}

/* Puts the sample's index into a task. False: there is no such index. */
static bool find_index(const struct stoc_work *w, struct stoc_task *task)
{
    if (w->indices) {
        if ((uint64_t)task->index >= w->index_count)
            return false;
        task->index = w->indices[task->index];
    }
    return !w->cache || !BAD_INDEX(w->cache, task->index);
}

/* Whether disk and memory should hold different samples: the disk has no room for all of them, and what the cache in
 * memory takes stays there. docs/spec/tiers.md */
static bool are_apart(const stoc_cache *memory, const stoc_cache *disk)
{
    return memory && disk && !disk->variable && disk->slots < disk->samples &&
           (!memory->evicts || memory->policy == STOC_POLICY_COST);
}

/* Reads a sample from the disk cache into the copy. */
static bool take_from_disk(struct stoc_work *w, int64_t index, const void **sample, size_t *bytes)
{
    stoc_cache *disk = w->disk;
    for (int tries = 0; disk && tries < MAX_COPIES; tries++) {
        int result = stoc_get(disk, index, w->copy, w->copy_bytes, bytes);
        *sample = w->copy;
        if (result != STOC_ESCHEMA || !make_room(w, *bytes))
            return result == STOC_HIT;
    }
    return false;
}

/* Makes a sample, or takes it from the disk cache, and its row, and stores the sample. Returns whether it did.
 * *waited_ns: how long the load waited for its source. *delay: delays of this thread so far. A sample without a row is
 * not stored: the caller, who makes the row, would find a hit. */
static bool load_and_finish(struct stoc_work *w, const struct stoc_task *task, void *buffer, uint64_t *finish_ns,
                            uint64_t *waited_ns, uint64_t *delay)
{
    stoc_cache *c = w->cache;
    struct usage began = usage_now(w);
    struct iovec part;
    const void *sample = NULL;
    bool from_disk = take_from_disk(w, task->index, &sample, &part.iov_len);
    if (!from_disk && w->load(w->context, task->index, &sample, &part.iov_len))
        return false;
    struct usage loaded = usage_now(w);
    uint64_t took = loaded.at - began.at, cost = took - MIN(loaded.delay - began.delay, took);
    *delay = loaded.delay;
    if (w->finish(w->context, task->argument, sample, part.iov_len, buffer, task->row))
        return false;
    *finish_ns = worked_since(w, loaded.at, delay);
    *waited_ns = MAX(cost - MIN(loaded.cpu - began.cpu, cost), 1);
    part.iov_base = (void *)(uintptr_t)sample;
    cost = from_disk ? 0 : MAX(cost, 1); /* a copy from the disk is no load */
    bool apart = are_apart(c, w->disk);
    int kept = STOC_FULL;
    if (c && !c->read_only && !(from_disk && apart) &&
        (kept = stoc_set_loaded(c, task->index, &part, 1, 0, cost)) < 0)
        return false;
    if (w->disk && !from_disk && !(apart && (kept == STOC_STORED || kept == STOC_EXISTS)))
        stoc_set_later(w->disk, task->index, &part, 1); /* a disk that takes nothing is no error */
    if (c)
        count(c, STOC_COUNTER_MISSES, 1);
    *delay = delay_ns(w);
    return true;
}

/* Does a task, or returns false: it comes back. Counts a hit or a miss only of a task that it did. *delay: delays of
 * this thread so far. */
static bool do_task(struct stoc_work *w, struct stoc_task *task, uint64_t began, uint64_t *delay)
{
    void *buffer = task->buffer < w->buffer_count ? w->buffers[task->buffer] : NULL;
    struct stoc_task asked = *task; /* with the index of the sample */
    if (task->kind != w->kind || !buffer || !find_index(w, &asked))
        return false;
    uint64_t finish_ns = 0, waited_ns = 0, retried = 0, before = *delay;
    int found = STOC_MISS;
    if (w->cache)
        found = w->copies || w->cache->chains ? finish_copy(w, &asked, buffer, &retried)
                                              : finish_in_place(w, &asked, buffer, &retried);
    if (retried)
        count(w->cache, STOC_COUNTER_RETRIED, retried);
    if (found == STOC_HIT) {
        count(w->cache, STOC_COUNTER_HITS, 1);
        finish_ns = worked_since(w, began, delay);
    } else if (found != STOC_MISS || !w->load || !load_and_finish(w, &asked, buffer, &finish_ns, &waited_ns, delay))
        return false;
    task->result = found == STOC_HIT ? w->hit : w->loaded;
    task->overflow_offset = task->overflow_bytes = 0;
    tell_task_times(w->queue, task->position, began, finish_ns, waited_ns, *delay - before);
    return true;
}

/* Does tasks that were taken together, and answers them. Returns how many come back, at the begin of `tasks`. */
static uint32_t do_tasks(struct stoc_work *w, struct stoc_task *tasks, uint32_t n)
{
    uint32_t back = 0, done = 0;
    struct stoc_task answers[MOST_TASKS];
    uint64_t start = now_ns(), began = start, delay = delay_ns(w);
    for (uint32_t k = 0; k < n; k++) {
        if (do_task(w, &tasks[k], began, &delay))
            answers[done++] = tasks[k];
        else {
            tasks[back++] = tasks[k];
            delay = delay_ns(w);
        }
        began = now_ns();
    }
    if (done)
        stoc_queue_done(w->queue, w->worker, answers, done); /* a task that is not this worker's any more is ignored */
    uint64_t pace = (began - start) / n + 1;
    w->pace_ns = w->pace_ns ? (w->pace_ns + pace) / 2 : pace;
    return back;
}

int stoc_work(struct stoc_work *w, uint32_t timeout_ms, struct stoc_task *tasks, uint32_t n)
{
    if (!w || w->struct_bytes != sizeof *w || (w->cache && w->cache->disk) || !w->finish || (w->buffer_count && !w->buffers) ||
        !tasks || !n)
        return invalid(0);
    uint64_t end = now_ns() + UINT64_C(1000000) * timeout_ms;
    for (uint64_t now = 0; now < end; now = now_ns()) {
        uint64_t left_ms = now ? (end - now) / 1000000 : timeout_ms;
        uint64_t pace = w->pace_ns ? w->pace_ns : TOGETHER_NS;
        uint32_t most = (uint32_t)MIN(MIN(n, MOST_TASKS), MAX(TOGETHER_NS / pace, 1));
        int got = stoc_queue_take(w->queue, w->worker, (uint32_t)left_ms, tasks, most);
        if (got <= 0)
            return got;
        uint32_t back = do_tasks(w, tasks, (uint32_t)got);
        if (back)
            return (int)back;
    }
    return 0;
}

void stoc_work_end(struct stoc_work *w)
{
    if (!w)
        return;
    if (w->schedule)
        close(w->schedule - 1);
    free(w->copy);
    w->schedule = 0;
    w->copy = NULL;
    w->copy_bytes = 0;
}

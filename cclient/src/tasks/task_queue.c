/*
 * task_queue.c - a task queue in shared memory. One parent posts tasks. Workers take and answer
 * them, and may be killed at any instruction. docs/spec/workers.md.
 */
#include "tasks.h"

#define QUEUE_MAGIC UINT64_C(0x31647262636f7473) /* "stocbrd1" */
#define QUEUE_HEADER 4096
#define QUEUE_MOST (UINT32_C(1) << 20) /* tasks */
#define QUEUE_PAGE 4096                /* the overflow file is handed out in pages of this size */
#define QUEUE_ALIGN 64                 /* and a place of it in these; the first has the counter */

enum { TASK_EMPTY, TASK_POSTED, TASK_TAKEN, TASK_DONE };

struct task_queue {
    uint64_t magic, capacity;
    _Alignas(64) _Atomic uint64_t tail;
    _Alignas(64) _Atomic uint64_t head;
    _Alignas(64) _Atomic uint32_t wakeup;
    _Atomic uint32_t sleepers, stopped, finished, waiting;
    _Alignas(64) _Atomic uint64_t overflow;
};

struct entry {
    _Atomic uint64_t word;
    _Atomic uint32_t left, only;
    uint64_t first;
    int64_t index;
    uint32_t row, buffer, kind;
    _Atomic uint32_t alone;
    uint64_t argument, lent;
    _Alignas(64) int32_t result;
    uint32_t worker;
    uint64_t overflow_offset, overflow_bytes, began_ns, ended_ns, augment_ns, waited_ns, delayed_ns;
};

_Static_assert(sizeof(struct entry) == STOC_QUEUE_TASK_BYTES, "docs/spec/workers.md gives the offsets of a task");
_Static_assert(offsetof(struct entry, result) == STOC_QUEUE_ANSWER_OFFSET,
               "docs/spec/workers.md gives the offset of the answer");
_Static_assert(sizeof(struct task_queue) <= QUEUE_HEADER, "the tasks begin after the header");

static inline struct entry *entry_at(struct task_queue *q, uint64_t position)
{
    return (struct entry *)(void *)((char *)q + QUEUE_HEADER) + (position & (q->capacity - 1));
}

/* state 8, worker 16, lap 40 */
static inline uint64_t task_word(const struct task_queue *q, uint64_t position, uint32_t worker, unsigned state)
{
    return state | (uint64_t)(worker & UINT16_MAX) << 8 | position / q->capacity << 24;
}
static inline unsigned task_state(uint64_t word) { return (unsigned)(word & UINT8_MAX); }

static struct task_queue *queue_of(void *memory)
{
    struct task_queue *q = memory;
    return q && (uintptr_t)memory % 64 == 0 && q->magic == QUEUE_MAGIC ? q : NULL;
}

static uint64_t capacity_for(uint32_t tasks)
{
    uint64_t capacity = 16;
    while (capacity < tasks)
        capacity *= 2;
    return capacity;
}

size_t stoc_queue_bytes(uint32_t tasks)
{
    return tasks && tasks <= QUEUE_MOST ? QUEUE_HEADER + (size_t)capacity_for(tasks) * sizeof(struct entry) : 0;
}

int stoc_queue_init(void *memory, uint32_t tasks)
{
    struct task_queue *q = memory;
    if (!q || !stoc_queue_bytes(tasks) || (uintptr_t)memory % 64)
        return STOC_EINVAL;
    q->capacity = capacity_for(tasks);
    q->magic = QUEUE_MAGIC;
    return 0;
}

/* Finds n free entries that follow each other, and sets *first. Skips the end of the array if it is
 * too short. */
static bool find_room(struct task_queue *q, uint64_t tail, size_t n, uint64_t *first)
{
    uint64_t rest = q->capacity - (tail & (q->capacity - 1));
    *first = n <= rest ? tail : tail + rest;
    for (uint64_t p = tail; p < *first + n; p++)
        if (task_state(atomic_load_explicit(&entry_at(q, p)->word, memory_order_relaxed)) != TASK_EMPTY)
            return false;
    return true;
}

/* Finds room for a batch of n tasks. Returns 0, EINVAL or EMEMORY. */
static int begin_push(struct task_queue *q, size_t n, uint64_t *first)
{
    if (!q || !n || n > q->capacity / 2)
        return STOC_EINVAL;
    return find_room(q, atomic_load_explicit(&q->tail, memory_order_relaxed), n, first) ? 0 : STOC_EMEMORY;
}

/* Writes task k of the batch of n tasks at `first`. */
static void write_task(struct task_queue *q, uint64_t first, size_t k, size_t n, const struct stoc_task *task)
{
    struct entry *e = entry_at(q, first + k);
    e->first = first;
    e->index = task->index;
    e->row = task->row;
    e->buffer = task->buffer;
    e->kind = task->kind;
    e->argument = task->argument;
    e->lent = task->overflow_offset;
    e->began_ns = e->augment_ns = e->waited_ns = e->delayed_ns = 0;
    atomic_store_explicit(&e->alone, 0, memory_order_relaxed);
    atomic_store_explicit(&e->left, k ? 0 : (uint32_t)n, memory_order_relaxed);
    atomic_store_explicit(&e->only, task->only, memory_order_relaxed);
}

/* Lets workers take the tasks of a batch. A worker may read past `tail` and take the first task at once, so the whole
 * batch has been written. */
static int64_t end_push(struct task_queue *q, uint64_t first, size_t n, uint32_t only)
{
    for (size_t k = 0; k < n; k++)
        atomic_store_explicit(&entry_at(q, first + k)->word, task_word(q, first + k, 0, TASK_POSTED),
                              memory_order_release);
    atomic_store(&q->tail, first + n);
    atomic_fetch_add(&q->wakeup, 1);
    if (atomic_load(&q->sleepers))
        /* any sleeping worker may be the one that the tasks name */
        futex_wake(&q->wakeup, only || n > INT_MAX ? INT_MAX : (int)n);
    return (int64_t)first;
}

int64_t stoc_queue_push(void *memory, const struct stoc_task *tasks, size_t n)
{
    struct task_queue *q = queue_of(memory);
    uint64_t first;
    int code = begin_push(q, n, &first);
    if (code)
        return code;
    for (size_t k = 0; k < n; k++)
        write_task(q, first, k, n, &tasks[k]);
    return end_push(q, first, n, tasks[0].only);
}

int64_t stoc_queue_push_samples(void *memory, const struct stoc_task *as, const int64_t *indices, const int64_t *rows,
                                size_t n, const uint64_t *seed)
{
    struct task_queue *q = queue_of(memory);
    uint64_t first;
    int code = as && indices ? begin_push(q, n, &first) : STOC_EINVAL;
    if (code)
        return code;
    struct stoc_task task = *as;
    for (size_t k = 0; k < n; k++) {
        task.row = rows ? (uint32_t)rows[k] : (uint32_t)k;
        task.index = indices[task.row];
        if (seed)
            task.argument = mix((*seed ^ (uint64_t)task.index) + GOLDEN);
        write_task(q, first, k, n, &task);
    }
    return end_push(q, first, n, as->only);
}

enum claim { CLAIM_GONE, CLAIM_NOT_OURS, CLAIM_OURS };

/* Takes the task of a position. more: only if it belongs to the same batch as the position before
 * it, and no worker died while doing it. */
static enum claim claim_at(struct task_queue *q, uint32_t worker, uint64_t position, bool more, struct stoc_task *task)
{
    struct entry *e = entry_at(q, position);
    uint64_t posted = task_word(q, position, 0, TASK_POSTED);
    if (atomic_load_explicit(&e->word, memory_order_acquire) != posted)
        return CLAIM_GONE;
    uint32_t only = atomic_load_explicit(&e->only, memory_order_relaxed);
    if (only && only != worker + 1)
        return CLAIM_NOT_OURS;
    /* `left` is above 0 only in the first task of a batch, at least while that task is posted. */
    if (more &&
        (atomic_load_explicit(&e->left, memory_order_relaxed) || atomic_load_explicit(&e->alone, memory_order_relaxed)))
        return CLAIM_NOT_OURS;
    if (!atomic_compare_exchange_strong(&e->word, &posted, task_word(q, position, worker, TASK_TAKEN)))
        return CLAIM_GONE;
    STOC_FAULT("task_queue.taken");
    *task = (struct stoc_task){.position = position, .first = e->first, .index = e->index, .row = e->row,
                               .buffer = e->buffer, .kind = e->kind, .argument = e->argument,
                               .overflow_offset = e->lent};
    return CLAIM_OURS;
}

/* Takes the next task for a worker, and up to n - 1 that follow it directly. Returns how many. */
static uint32_t claim_tasks(struct task_queue *q, uint32_t worker, struct stoc_task *tasks, uint32_t n)
{
    bool all_taken = true; /* every task before this one is taken, so `head` may move */
    uint32_t got = 0;
    for (uint64_t position = atomic_load(&q->head); got < n && position < atomic_load(&q->tail); position++) {
        uint64_t head = position;
        enum claim claim = claim_at(q, worker, position, got > 0, &tasks[got]);
        if (claim == CLAIM_OURS && !got++) {
            struct entry *e = entry_at(q, position);
            e->began_ns = now_ns();
            n = atomic_load_explicit(&e->alone, memory_order_relaxed) ? 1 : n;
        } else if (claim != CLAIM_OURS && got)
            break;
        all_taken = all_taken && claim != CLAIM_NOT_OURS;
        if (all_taken)
            atomic_compare_exchange_strong(&q->head, &head, position + 1);
    }
    return got;
}

int stoc_queue_take(void *memory, uint32_t worker, uint32_t timeout_ms, struct stoc_task *tasks, uint32_t n)
{
    struct task_queue *q = queue_of(memory);
    if (!q || worker > UINT16_MAX || !tasks || !n || n > QUEUE_MOST)
        return STOC_EINVAL;
    if (atomic_load(&q->stopped))
        return STOC_ECLOSED;
    uint32_t got = claim_tasks(q, worker, tasks, n);
    if (got)
        return (int)got;
    uint32_t wakeup = atomic_load(&q->wakeup);
    atomic_fetch_add(&q->sleepers, 1);
    got = claim_tasks(q, worker, tasks, n);
    if (!got && !atomic_load(&q->stopped)) {
        STOC_FAULT("task_queue.sleep");
        futex_wait(&q->wakeup, wakeup, timeout_ms);
    }
    atomic_fetch_sub(&q->sleepers, 1);
    if (!got && atomic_load(&q->stopped))
        return STOC_ECLOSED;
    return (int)(got ? got : claim_tasks(q, worker, tasks, n));
}

INTERNAL void tell_task_times(void *queue, uint64_t position, uint64_t began_ns, uint64_t augment_ns,
                              uint64_t waited_ns, uint64_t delayed_ns)
{
    struct entry *e = entry_at(queue, position);
    e->began_ns = began_ns;
    e->augment_ns = augment_ns;
    e->waited_ns = waited_ns;
    e->delayed_ns = delayed_ns;
}

static int answer_task(struct task_queue *q, uint32_t worker, const struct stoc_task *task, uint64_t ended_ns)
{
    struct entry *e = entry_at(q, task->position), *first = entry_at(q, task->first);
    uint64_t taken = task_word(q, task->position, worker, TASK_TAKEN);
    if (atomic_load(&e->word) != taken)
        return STOC_ELOST;
    e->result = task->result;
    e->worker = worker;
    e->overflow_offset = task->overflow_offset;
    e->overflow_bytes = task->overflow_bytes;
    e->began_ns = e->began_ns ? e->began_ns : ended_ns;
    e->ended_ns = ended_ns;
    STOC_FAULT("task_queue.answer");
    if (!atomic_compare_exchange_strong(&e->word, &taken, task_word(q, task->position, worker, TASK_DONE)))
        return STOC_ELOST;
    STOC_FAULT("task_queue.done");
    if (atomic_fetch_sub(&first->left, 1) == 1) {
        atomic_fetch_add(&q->finished, 1);
        if (atomic_load(&q->waiting))
            futex_wake(&q->finished, INT_MAX);
    }
    return 0;
}

int stoc_queue_done(void *memory, uint32_t worker, const struct stoc_task *tasks, uint32_t n)
{
    struct task_queue *q = queue_of(memory);
    if (!q || !tasks || !n)
        return STOC_EINVAL;
    uint64_t now = now_ns();
    int code = 0;
    for (uint32_t k = 0; k < n; k++) {
        /* this worker's time, or that of a worker that has the task now: both are valid */
        uint64_t next = k + 1 < n ? entry_at(q, tasks[k + 1].position)->began_ns : 0;
        int answered = answer_task(q, worker, &tasks[k], next ? next : now);
        code = answered ? answered : code;
    }
    return code;
}

/* Returns how many of the tasks have no answer. Moves `head` back to the first posted task if
 * `head` has passed it. */
static uint32_t count_undone(struct task_queue *q, uint64_t first, uint32_t n)
{
    uint32_t undone = 0;
    uint64_t passed = UINT64_MAX;
    for (uint64_t p = first; p < first + n; p++) {
        unsigned state = task_state(atomic_load_explicit(&entry_at(q, p)->word, memory_order_acquire));
        undone += state != TASK_DONE;
        if (state == TASK_POSTED && p < passed)
            passed = p;
    }
    uint64_t head = atomic_load(&q->head);
    while (passed < head && !atomic_compare_exchange_weak(&q->head, &head, passed))
        ;
    if (passed < head) {
        atomic_fetch_add(&q->wakeup, 1);
        if (atomic_load(&q->sleepers))
            futex_wake(&q->wakeup, INT_MAX);
    }
    return undone;
}

/* Returns the first batch whose tasks all have answers; `count` if there is none. */
static size_t find_finished(struct task_queue *q, const struct stoc_batch *batches, size_t count)
{
    for (size_t k = 0; k < count; k++)
        if (!count_undone(q, batches[k].first, (uint32_t)batches[k].tasks))
            return k;
    return count;
}

int64_t stoc_queue_wait(void *memory, const struct stoc_batch *batches, size_t count, uint32_t timeout_ms)
{
    struct task_queue *q = queue_of(memory);
    if (!q || !batches || !count || count > q->capacity)
        return STOC_EINVAL;
    for (size_t k = 0; k < count; k++)
        if (!batches[k].tasks || batches[k].tasks > q->capacity)
            return STOC_EINVAL;
    uint64_t end = now_ns() + UINT64_C(1000000) * timeout_ms;
    for (;;) {
        uint32_t finished = atomic_load(&q->finished);
        size_t found = find_finished(q, batches, count);
        uint64_t now = timeout_ms ? now_ns() : end;
        if (found < count || now >= end)
            return (int64_t)found;
        atomic_store(&q->waiting, 1);
        long woken = futex_wait(&q->finished, finished, (uint32_t)((end - now) / 1000000 + 1));
        bool signalled = woken && errno == EINTR;
        atomic_store(&q->waiting, 0);
        if (signalled)
            return (int64_t)find_finished(q, batches, count);
    }
}

int stoc_queue_release(void *memory, uint64_t first, uint32_t n)
{
    struct task_queue *q = queue_of(memory);
    if (!q || n > q->capacity)
        return STOC_EINVAL;
    for (uint64_t p = first; p < first + n; p++)
        if (task_state(atomic_load(&entry_at(q, p)->word)) != TASK_DONE)
            return STOC_BUSY;
    for (uint64_t p = first; p < first + n; p++)
        atomic_store_explicit(&entry_at(q, p)->word, task_word(q, p, 0, TASK_EMPTY), memory_order_release);
    return 0;
}

int64_t stoc_queue_collect(void *memory, uint64_t first, uint32_t n, int32_t hit, struct stoc_collected *sums)
{
    struct task_queue *q = queue_of(memory);
    if (!q || n > q->capacity || !sums)
        return STOC_EINVAL;
    *sums = (struct stoc_collected){0};
    int64_t others = 0;
    for (uint64_t p = first; p < first + n; p++) {
        const struct entry *e = entry_at(q, p);
        if (task_state(atomic_load_explicit(&e->word, memory_order_acquire)) != TASK_DONE)
            return STOC_BUSY;
        uint64_t took = e->ended_ns - e->began_ns;
        uint64_t augment = MIN(e->augment_ns, took);
        sums->load_ns += took;
        sums->augment_ns += augment;
        sums->hit_ns += e->result >= hit ? took - augment : 0;
        if (e->waited_ns) {
            sums->waited_ns += e->waited_ns;
            sums->measured_ns += took - MIN(e->augment_ns + e->delayed_ns, took);
        }
        sums->hits += e->result == hit;
        others += e->result && e->result != hit;
    }
    int code = others ? 0 : stoc_queue_release(memory, first, n);
    return code ? code : others;
}

int64_t stoc_queue_cancel(void *memory, uint64_t first, uint32_t n)
{
    struct task_queue *q = queue_of(memory);
    int64_t taken = 0;
    if (!q || n > q->capacity)
        return STOC_EINVAL;
    for (uint64_t p = first; p < first + n; p++) {
        struct entry *e = entry_at(q, p);
        uint64_t posted = task_word(q, p, 0, TASK_POSTED);
        if (atomic_compare_exchange_strong(&e->word, &posted, task_word(q, p, 0, TASK_DONE))) {
            e->result = STOC_TASK_CANCELLED; /* only the parent reads the answer, and this is the parent */
            e->overflow_bytes = 0;
            atomic_fetch_sub(&entry_at(q, e->first)->left, 1);
        } else if (task_state(posted) == TASK_TAKEN)
            taken++;
    }
    return taken;
}

int64_t stoc_queue_held(void *memory, uint32_t worker, uint64_t *positions, size_t n)
{
    struct task_queue *q = queue_of(memory);
    size_t found = 0;
    if (!q || (n && !positions))
        return STOC_EINVAL;
    uint64_t tail = atomic_load(&q->tail), p = tail > q->capacity ? tail - q->capacity : 0;
    for (; p < tail; p++)
        if (atomic_load(&entry_at(q, p)->word) == task_word(q, p, worker, TASK_TAKEN)) {
            if (found < n)
                positions[found] = p;
            found++;
        }
    return (int64_t)found;
}

int stoc_queue_repost(void *memory, uint32_t worker, uint64_t position)
{
    struct task_queue *q = queue_of(memory);
    if (!q)
        return STOC_EINVAL;
    struct entry *e = entry_at(q, position);
    uint64_t taken = task_word(q, position, worker, TASK_TAKEN);
    if (atomic_load(&e->word) != taken)
        return STOC_ELOST;
    e->began_ns = e->augment_ns = e->waited_ns = e->delayed_ns = 0;
    atomic_store_explicit(&e->alone, 1, memory_order_relaxed);
    if (!atomic_compare_exchange_strong(&e->word, &taken, task_word(q, position, 0, TASK_POSTED)))
        return STOC_ELOST;
    count_undone(q, position, 1);
    return 0;
}

void stoc_queue_stop(void *memory)
{
    struct task_queue *q = queue_of(memory);
    if (!q)
        return;
    atomic_store(&q->stopped, 1);
    atomic_fetch_add(&q->wakeup, 1);
    futex_wake(&q->wakeup, INT_MAX);
}

int64_t stoc_queue_overflow(void *memory, uint64_t bytes)
{
    struct task_queue *q = queue_of(memory);
    if (!q || bytes > INT64_MAX / 4)
        return STOC_EINVAL;
    return (int64_t)atomic_fetch_add(&q->overflow, (bytes + QUEUE_PAGE - 1) / QUEUE_PAGE * QUEUE_PAGE);
}

int64_t stoc_queue_reserve(void *place, uint64_t size, uint64_t bytes)
{
    _Atomic uint64_t *given = place; /* bytes after the counter's */
    if (!place || (uintptr_t)place % QUEUE_ALIGN || size < QUEUE_ALIGN)
        return STOC_EINVAL;
    uint64_t most = size - QUEUE_ALIGN, at = atomic_load(given), next;
    do {
        if (at > most || bytes > most - at)
            return STOC_EMEMORY;
        next = at + (bytes + QUEUE_ALIGN - 1) / QUEUE_ALIGN * QUEUE_ALIGN;
    } while (!atomic_compare_exchange_weak(given, &at, next));
    return (int64_t)(QUEUE_ALIGN + at);
}

void stoc_queue_copy(void *row, const void *sample, size_t bytes) { copy_plain(row, sample, bytes); }

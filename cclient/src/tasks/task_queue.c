/*
 * task_queue.c - tasks in shared memory: one parent posts them, workers take and answer them, and may be killed at any instruction. docs/loader.md.
 */
#include "tasks.h"

#define BOARD_MAGIC UINT64_C(0x31647262636f7473) /* "stocbrd1" */
#define BOARD_HEADER 4096
#define BOARD_MOST (UINT32_C(1) << 20) /* tasks */
#define BOARD_PAGE 4096                /* what the spill is given away in */

enum { TASK_EMPTY, TASK_POSTED, TASK_TAKEN, TASK_DONE };

struct board {
    uint64_t magic, capacity;
    _Alignas(64) _Atomic uint64_t tail;
    _Alignas(64) _Atomic uint64_t head;
    _Alignas(64) _Atomic uint32_t bell;
    _Atomic uint32_t sleepers, stopped, finished, waiting;
    _Alignas(64) _Atomic uint64_t spill;
};

struct entry {
    _Atomic uint64_t word;
    _Atomic uint32_t left, only;
    uint64_t first;
    int64_t index;
    uint32_t row, buffer, kind;
    _Atomic uint32_t alone;
    uint64_t argument;
    _Alignas(64) int32_t result;
    uint32_t worker;
    uint64_t spill_offset, spill_bytes, began_ns, ended_ns, augment_ns;
};

_Static_assert(sizeof(struct entry) == STOC_BOARD_TASK_BYTES, "docs/loader.md says where a task's parts lie");
_Static_assert(offsetof(struct entry, result) == STOC_BOARD_ANSWER_OFFSET, "docs/loader.md says where a task's answer lies");
_Static_assert(sizeof(struct board) <= BOARD_HEADER, "the tasks begin behind the header");

static inline struct entry *entry_at(struct board *b, uint64_t position)
{
    return (struct entry *)(void *)((char *)b + BOARD_HEADER) + (position & (b->capacity - 1));
}

/* state 8, worker 16, lap 40 */
static inline uint64_t task_word(const struct board *b, uint64_t position, uint32_t worker, unsigned state)
{
    return state | (uint64_t)(worker & UINT16_MAX) << 8 | position / b->capacity << 24;
}
static inline unsigned task_state(uint64_t word) { return (unsigned)(word & UINT8_MAX); }

static uint64_t monotonic_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static struct board *board_of(void *memory)
{
    struct board *b = memory;
    return b && (uintptr_t)memory % 64 == 0 && b->magic == BOARD_MAGIC ? b : NULL;
}

static uint64_t capacity_for(uint32_t tasks)
{
    uint64_t capacity = 16;
    while (capacity < tasks)
        capacity *= 2;
    return capacity;
}

size_t stoc_board_bytes(uint32_t tasks)
{
    return tasks && tasks <= BOARD_MOST ? BOARD_HEADER + (size_t)capacity_for(tasks) * sizeof(struct entry) : 0;
}

int stoc_board_init(void *memory, uint32_t tasks)
{
    struct board *b = memory;
    if (!b || !stoc_board_bytes(tasks) || (uintptr_t)memory % 64)
        return STOC_EINVAL;
    b->capacity = capacity_for(tasks);
    b->magic = BOARD_MAGIC;
    return 0;
}

/* Room for n tasks side by side from *first on, behind what the end of the array leaves too short. */
static bool board_room(struct board *b, uint64_t tail, size_t n, uint64_t *first)
{
    uint64_t rest = b->capacity - (tail & (b->capacity - 1));
    *first = n <= rest ? tail : tail + rest;
    for (uint64_t p = tail; p < *first + n; p++)
        if (task_state(atomic_load_explicit(&entry_at(b, p)->word, memory_order_relaxed)) != TASK_EMPTY)
            return false;
    return true;
}

int64_t stoc_board_push(void *memory, const struct stoc_task *tasks, size_t n)
{
    struct board *b = board_of(memory);
    uint64_t first;
    if (!b || !n || n > b->capacity / 2)
        return STOC_EINVAL;
    uint64_t tail = atomic_load_explicit(&b->tail, memory_order_relaxed);
    if (!board_room(b, tail, n, &first))
        return STOC_EMEMORY;
    for (size_t k = 0; k < n; k++) {
        struct entry *e = entry_at(b, first + k);
        e->first = first;
        e->index = tasks[k].index;
        e->row = tasks[k].row;
        e->buffer = tasks[k].buffer;
        e->kind = tasks[k].kind;
        e->argument = tasks[k].argument;
        e->began_ns = e->augment_ns = 0;
        atomic_store_explicit(&e->alone, 0, memory_order_relaxed);
        atomic_store_explicit(&e->left, k ? 0 : (uint32_t)n, memory_order_relaxed);
        atomic_store_explicit(&e->only, tasks[k].only, memory_order_relaxed);
    }
    for (size_t k = 0; k < n; k++) /* a worker that is ahead of `tail` may take the first as soon as it is posted: all of the batch stands by then */
        atomic_store_explicit(&entry_at(b, first + k)->word, task_word(b, first + k, 0, TASK_POSTED), memory_order_release);
    atomic_store(&b->tail, first + n);
    atomic_fetch_add(&b->bell, 1);
    if (atomic_load(&b->sleepers))
        futex_wake(&b->bell, tasks[0].only || n > INT_MAX ? INT_MAX : (int)n); /* the one that is meant may be any of them */
    return (int64_t)first;
}

enum claim { CLAIM_GONE, CLAIM_NOT_OURS, CLAIM_OURS };

/* Takes the task of a position. more: only one of the batch of the position before, that nobody has died of. */
static enum claim board_claim_at(struct board *b, uint32_t worker, uint64_t position, bool more, struct stoc_task *task)
{
    struct entry *e = entry_at(b, position);
    uint64_t posted = task_word(b, position, 0, TASK_POSTED);
    if (atomic_load_explicit(&e->word, memory_order_acquire) != posted)
        return CLAIM_GONE;
    uint32_t only = atomic_load_explicit(&e->only, memory_order_relaxed);
    if (only && only != worker + 1)
        return CLAIM_NOT_OURS;
    /* Only the first of a batch has something left, and it has as long as it is posted itself. */
    if (more && (atomic_load_explicit(&e->left, memory_order_relaxed) || atomic_load_explicit(&e->alone, memory_order_relaxed)))
        return CLAIM_NOT_OURS;
    if (!atomic_compare_exchange_strong(&e->word, &posted, task_word(b, position, worker, TASK_TAKEN)))
        return CLAIM_GONE;
    STOC_FAULT("board.taken");
    *task = (struct stoc_task){.position = position, .first = e->first, .index = e->index, .row = e->row, .buffer = e->buffer, .kind = e->kind, .argument = e->argument};
    return CLAIM_OURS;
}

/* The next task for a worker, and those right behind it, n at most; how many. */
static uint32_t board_claim(struct board *b, uint32_t worker, struct stoc_task *tasks, uint32_t n)
{
    bool behind = true; /* all of those before this one are taken: `head` may be moved */
    uint32_t got = 0;
    for (uint64_t position = atomic_load(&b->head); got < n && position < atomic_load(&b->tail); position++) {
        uint64_t head = position;
        enum claim claim = board_claim_at(b, worker, position, got > 0, &tasks[got]);
        if (claim == CLAIM_OURS && !got++) {
            struct entry *e = entry_at(b, position);
            e->began_ns = monotonic_ns();
            n = atomic_load_explicit(&e->alone, memory_order_relaxed) ? 1 : n;
        } else if (claim != CLAIM_OURS && got)
            break;
        behind = behind && claim != CLAIM_NOT_OURS;
        if (behind)
            atomic_compare_exchange_strong(&b->head, &head, position + 1);
    }
    return got;
}

int stoc_board_take(void *memory, uint32_t worker, uint32_t timeout_ms, struct stoc_task *tasks, uint32_t n)
{
    struct board *b = board_of(memory);
    if (!b || worker > UINT16_MAX || !tasks || !n || n > BOARD_MOST)
        return STOC_EINVAL;
    if (atomic_load(&b->stopped))
        return STOC_ECLOSED;
    uint32_t got = board_claim(b, worker, tasks, n);
    if (got)
        return (int)got;
    uint32_t bell = atomic_load(&b->bell);
    atomic_fetch_add(&b->sleepers, 1);
    got = board_claim(b, worker, tasks, n);
    if (!got && !atomic_load(&b->stopped)) {
        STOC_FAULT("board.sleep");
        futex_wait(&b->bell, bell, timeout_ms);
    }
    atomic_fetch_sub(&b->sleepers, 1);
    if (!got && atomic_load(&b->stopped))
        return STOC_ECLOSED;
    return (int)(got ? got : board_claim(b, worker, tasks, n));
}

static int board_answer(struct board *b, uint32_t worker, const struct stoc_task *task, uint64_t ended_ns)
{
    struct entry *e = entry_at(b, task->position), *first = entry_at(b, task->first);
    uint64_t taken = task_word(b, task->position, worker, TASK_TAKEN);
    if (atomic_load(&e->word) != taken)
        return STOC_ELOST;
    e->result = task->result;
    e->worker = worker;
    e->spill_offset = task->spill_offset;
    e->spill_bytes = task->spill_bytes;
    e->began_ns = e->began_ns ? e->began_ns : ended_ns;
    e->ended_ns = ended_ns;
    STOC_FAULT("board.answer");
    if (!atomic_compare_exchange_strong(&e->word, &taken, task_word(b, task->position, worker, TASK_DONE)))
        return STOC_ELOST;
    STOC_FAULT("board.done");
    if (atomic_fetch_sub(&first->left, 1) == 1) {
        atomic_fetch_add(&b->finished, 1);
        if (atomic_load(&b->waiting))
            futex_wake(&b->finished, INT_MAX);
    }
    return 0;
}

int stoc_board_done(void *memory, uint32_t worker, const struct stoc_task *tasks, uint32_t n)
{
    struct board *b = board_of(memory);
    if (!b || !tasks || !n)
        return STOC_EINVAL;
    uint64_t now = monotonic_ns();
    int code = 0;
    for (uint32_t k = 0; k < n; k++) {
        uint64_t next = k + 1 < n ? entry_at(b, tasks[k + 1].position)->began_ns : 0; /* ours, or of somebody who has it now: a time in any case */
        int answered = board_answer(b, worker, &tasks[k], next ? next : now);
        code = answered ? answered : code;
    }
    return code;
}

/* How many of the tasks have no answer. Moves `head` back to the first that waits behind it. */
static uint32_t board_undone(struct board *b, uint64_t first, uint32_t n)
{
    uint32_t undone = 0;
    uint64_t behind = UINT64_MAX;
    for (uint64_t p = first; p < first + n; p++) {
        unsigned state = task_state(atomic_load_explicit(&entry_at(b, p)->word, memory_order_acquire));
        undone += state != TASK_DONE;
        if (state == TASK_POSTED && p < behind)
            behind = p;
    }
    uint64_t head = atomic_load(&b->head);
    while (behind < head && !atomic_compare_exchange_weak(&b->head, &head, behind))
        ;
    if (behind < head) {
        atomic_fetch_add(&b->bell, 1);
        if (atomic_load(&b->sleepers))
            futex_wake(&b->bell, INT_MAX);
    }
    return undone;
}

/* The first of the batches that all have answers; `count`: none. */
static size_t board_finished(struct board *b, const struct stoc_batch *batches, size_t count)
{
    for (size_t k = 0; k < count; k++)
        if (!board_undone(b, batches[k].first, (uint32_t)batches[k].tasks))
            return k;
    return count;
}

int64_t stoc_board_wait(void *memory, const struct stoc_batch *batches, size_t count, uint32_t timeout_ms)
{
    struct board *b = board_of(memory);
    if (!b || !batches || !count || count > b->capacity)
        return STOC_EINVAL;
    for (size_t k = 0; k < count; k++)
        if (!batches[k].tasks || batches[k].tasks > b->capacity)
            return STOC_EINVAL;
    uint32_t finished = atomic_load(&b->finished);
    size_t found = board_finished(b, batches, count);
    if (found < count || !timeout_ms)
        return (int64_t)found;
    atomic_store(&b->waiting, 1);
    futex_wait(&b->finished, finished, timeout_ms);
    atomic_store(&b->waiting, 0);
    return (int64_t)board_finished(b, batches, count);
}

int stoc_board_release(void *memory, uint64_t first, uint32_t n)
{
    struct board *b = board_of(memory);
    if (!b || n > b->capacity)
        return STOC_EINVAL;
    for (uint64_t p = first; p < first + n; p++)
        if (task_state(atomic_load(&entry_at(b, p)->word)) != TASK_DONE)
            return STOC_BUSY;
    for (uint64_t p = first; p < first + n; p++)
        atomic_store_explicit(&entry_at(b, p)->word, task_word(b, p, 0, TASK_EMPTY), memory_order_release);
    return 0;
}

int64_t stoc_board_cancel(void *memory, uint64_t first, uint32_t n)
{
    struct board *b = board_of(memory);
    int64_t taken = 0;
    if (!b || n > b->capacity)
        return STOC_EINVAL;
    for (uint64_t p = first; p < first + n; p++) {
        struct entry *e = entry_at(b, p);
        uint64_t posted = task_word(b, p, 0, TASK_POSTED);
        if (atomic_compare_exchange_strong(&e->word, &posted, task_word(b, p, 0, TASK_DONE))) {
            e->result = STOC_TASK_CANCELLED; /* only the parent reads it, and that is us */
            e->spill_bytes = 0;
            atomic_fetch_sub(&entry_at(b, e->first)->left, 1);
        } else if (task_state(posted) == TASK_TAKEN)
            taken++;
    }
    return taken;
}

int64_t stoc_board_held(void *memory, uint32_t worker, uint64_t *positions, size_t n)
{
    struct board *b = board_of(memory);
    size_t found = 0;
    if (!b || (n && !positions))
        return STOC_EINVAL;
    uint64_t tail = atomic_load(&b->tail), p = tail > b->capacity ? tail - b->capacity : 0;
    for (; p < tail; p++)
        if (atomic_load(&entry_at(b, p)->word) == task_word(b, p, worker, TASK_TAKEN)) {
            if (found < n)
                positions[found] = p;
            found++;
        }
    return (int64_t)found;
}

int stoc_board_repost(void *memory, uint32_t worker, uint64_t position)
{
    struct board *b = board_of(memory);
    if (!b)
        return STOC_EINVAL;
    struct entry *e = entry_at(b, position);
    uint64_t taken = task_word(b, position, worker, TASK_TAKEN);
    if (atomic_load(&e->word) != taken)
        return STOC_ELOST;
    e->began_ns = e->augment_ns = 0;
    atomic_store_explicit(&e->alone, 1, memory_order_relaxed);
    if (!atomic_compare_exchange_strong(&e->word, &taken, task_word(b, position, 0, TASK_POSTED)))
        return STOC_ELOST;
    board_undone(b, position, 1);
    return 0;
}

void stoc_board_stop(void *memory)
{
    struct board *b = board_of(memory);
    if (!b)
        return;
    atomic_store(&b->stopped, 1);
    atomic_fetch_add(&b->bell, 1);
    futex_wake(&b->bell, INT_MAX);
}

int64_t stoc_board_spill(void *memory, uint64_t bytes)
{
    struct board *b = board_of(memory);
    if (!b || bytes > INT64_MAX / 4)
        return STOC_EINVAL;
    return (int64_t)atomic_fetch_add(&b->spill, (bytes + BOARD_PAGE - 1) / BOARD_PAGE * BOARD_PAGE);
}

void stoc_board_copy(void *row, const void *sample, size_t bytes) { copy_plain(row, sample, bytes); }

/*
 * task_queue.c - tasks in shared memory. Workers do each task exactly once, whichever worker is
 * killed at whatever time.
 */
#include "check.h"

#ifdef STOC_FAULT_POINTS /* the program with fault points has tests of its own */
#define PLAIN_TEST(name) TEST_IF(false, name)
#else
#define PLAIN_TEST(name) TEST(name)
#endif

#define ANSWER(b, p)                                                                                                   \
    ((struct answer *)(void *)((char *)(b) + 4096 + ((p) % capacity) * STOC_QUEUE_TASK_BYTES +                         \
                               STOC_QUEUE_ANSWER_OFFSET))

struct answer {
    int32_t result;
    uint32_t worker;
    uint64_t overflow_offset, overflow_bytes, began_ns, ended_ns, augment_ns, waited_ns, delayed_ns;
};

static uint64_t capacity;

static void *new_queue(uint32_t tasks, size_t more)
{
    size_t bytes = stoc_queue_bytes(tasks);
    REQUIRE(bytes > 4096);
    capacity = (bytes - 4096) / STOC_QUEUE_TASK_BYTES;
    void *b = mmap(NULL, bytes + more, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(b != MAP_FAILED);
    REQUIRE(stoc_queue_init(b, tasks) == 0);
    return b;
}

static void drop_queue(void *b, size_t more) { munmap(b, 4096 + capacity * STOC_QUEUE_TASK_BYTES + more); }

static int64_t post(void *b, int64_t index, size_t n)
{
    struct stoc_task tasks[512] = {{0}};
    for (size_t k = 0; k < n; k++)
        tasks[k] = (struct stoc_task){
            .index = index + (int64_t)k, .row = (uint32_t)k, .buffer = 7, .kind = 3, .argument = 1000 + k,
            .overflow_offset = 5000 + k};
    return stoc_queue_push(b, tasks, n);
}

/* Number of unfinished batches of one: 1 or 0. */
static int64_t wait_for(void *b, int64_t first, uint64_t n, uint32_t timeout_ms)
{
    struct stoc_batch batch = {(uint64_t)first, n};
    int64_t found = stoc_queue_wait(b, &batch, 1, timeout_ms);
    CHECK(found >= 0 && found <= 1);
    return found;
}

PLAIN_TEST(one_by_one)
{
    void *b = new_queue(16, 0);
    struct stoc_task task;
    EQUAL(stoc_queue_take(b, 0, 0, &task, 1), 0);
    EQUAL(post(b, 50, 3), 0);
    EQUAL(wait_for(b, 0, 3, 0), 1);
    for (int k = 0; k < 3; k++) {
        EQUAL(stoc_queue_take(b, 4, 1000, &task, 1), 1);
        EQUAL(task.position, k);
        EQUAL(task.first, 0);
        EQUAL(task.index, 50 + k);
        EQUAL(task.row, k);
        EQUAL(task.buffer, 7);
        EQUAL(task.kind, 3);
        EQUAL(task.argument, 1000 + k);
        EQUAL(stoc_queue_release(b, 0, 3), STOC_BUSY);
        task.result = 10 + k, task.overflow_offset = 4096, task.overflow_bytes = 9;
        EQUAL(stoc_queue_done(b, 4, &task, 1), 0);
        EQUAL(stoc_queue_done(b, 4, &task, 1), STOC_ELOST);
        EQUAL(ANSWER(b, k)->result, 10 + k);
        EQUAL(ANSWER(b, k)->worker, 4);
        EQUAL(ANSWER(b, k)->overflow_bytes, 9);
        CHECK(ANSWER(b, k)->began_ns <= ANSWER(b, k)->ended_ns && ANSWER(b, k)->began_ns > 0);
    }
    EQUAL(wait_for(b, 0, 3, 1000), 0);
    EQUAL(stoc_queue_release(b, 0, 3), 0);
    EQUAL(stoc_queue_take(b, 4, 0, &task, 1), 0);
    drop_queue(b, 0);
}

PLAIN_TEST(batches_lie_side_by_side)
{
    void *b = new_queue(16, 0);
    struct stoc_task task;
    EQUAL(post(b, 0, 8), 0);
    EQUAL(post(b, 0, 6), 8);
    EQUAL(post(b, 0, 3), STOC_EMEMORY); /* only 2 entries are free before the end, and those after it are in use */
    EQUAL(post(b, 0, 2), 14);
    for (int k = 0; k < 16; k++) {
        EQUAL(stoc_queue_take(b, 1, 0, &task, 1), 1);
        EQUAL(task.position, k);
        EQUAL(stoc_queue_done(b, 1, &task, 1), 0);
    }
    EQUAL(post(b, 0, 1), STOC_EMEMORY);
    EQUAL(stoc_queue_release(b, 0, 8), 0);
    EQUAL(stoc_queue_release(b, 8, 6), 0);
    EQUAL(stoc_queue_release(b, 14, 2), 0);
    EQUAL(post(b, 0, 7), 16);
    EQUAL(post(b, 0, 8), 23);
    for (int k = 0; k < 15; k++) {
        EQUAL(stoc_queue_take(b, 1, 0, &task, 1), 1);
        EQUAL(stoc_queue_done(b, 1, &task, 1), 0);
    }
    EQUAL(stoc_queue_release(b, 16, 7), 0);
    EQUAL(stoc_queue_release(b, 23, 8), 0);
    EQUAL(post(b, 0, 5), 32); /* one entry is free before the end */
    EQUAL(post(b, 0, 8), 37);
    EQUAL(stoc_queue_take(b, 1, 0, &task, 1), 1);
    EQUAL(task.position, 32);
    drop_queue(b, 0);
}

/* All lengths near the steps of the copy, and all offsets in a cache line. Bytes next to it do not
 * change. */
PLAIN_TEST(copied)
{
    enum { MOST = 4096 + 400, ROOM = MOST + 256 };
    static unsigned char from[ROOM], to[ROOM];
    for (size_t k = 0; k < ROOM; k++)
        from[k] = (unsigned char)(k * 31 % 255);
    for (size_t bytes = 0; bytes <= MOST; bytes += bytes < 4000 && bytes > 300 ? 333 : 1)
        for (size_t place = 0; place < 64; place += 7) {
            memset(to, 255, sizeof to);
            stoc_queue_copy(to + 64 + place, from + 64 - place, bytes);
            EQUAL(memcmp(to + 64 + place, from + 64 - place, bytes), 0);
            for (size_t k = 0; k < 64 + place; k++)
                EQUAL(to[k], 255);
            for (size_t k = 64 + place + bytes; k < MIN(ROOM, 64 + place + bytes + 128); k++)
                EQUAL(to[k], 255);
        }
}

/* The seed of a sample: docs/spec/workers.md, Samples of a batch. */
static uint64_t seed_of(uint64_t epoch, int64_t index)
{
    uint64_t x = (epoch ^ (uint64_t)index) + UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

PLAIN_TEST(samples_of_a_batch)
{
    void *b = new_queue(16, 0);
    int64_t indices[] = {100, -1, INT64_C(1) << 40, 7, 9}, rows[] = {0, 2, 4};
    uint64_t seed = 12345;
    struct stoc_task as = {.kind = 3, .buffer = 7, .argument = 5, .overflow_offset = UINT64_C(1) << 40}, tasks[8];
    EQUAL(stoc_queue_push_samples(b, &as, indices, rows, 3, &seed), 0);
    EQUAL(stoc_queue_push_samples(b, &as, indices, NULL, 5, NULL), 3);
    EQUAL(stoc_queue_push_samples(b, &as, indices, rows, 0, NULL), STOC_EINVAL);
    EQUAL(stoc_queue_push_samples(b, &as, indices, rows, 9, NULL), STOC_EINVAL);
    EQUAL(stoc_queue_push_samples(b, &as, NULL, rows, 3, NULL), STOC_EINVAL);
    EQUAL(stoc_queue_push_samples(b, NULL, indices, rows, 3, NULL), STOC_EINVAL);
    EQUAL(stoc_queue_push_samples(b, &as, indices, NULL, 5, NULL), 8);
    EQUAL(stoc_queue_push_samples(b, &as, indices, NULL, 5, NULL), STOC_EMEMORY);
    EQUAL(stoc_queue_take(b, 1, 1000, tasks, 8), 3);
    for (int k = 0; k < 3; k++) {
        EQUAL(tasks[k].first, 0);
        EQUAL(tasks[k].kind, 3);
        EQUAL(tasks[k].buffer, 7);
        EQUAL(tasks[k].overflow_offset, UINT64_C(1) << 40);
        EQUAL(tasks[k].row, rows[k]);
        EQUAL(tasks[k].index, indices[rows[k]]);
        EQUAL(tasks[k].argument, seed_of(seed, indices[rows[k]]));
        tasks[k].result = k == 1 ? 16 : 0;
    }
    struct stoc_collected sums;
    EQUAL(stoc_queue_collect(b, 0, 3, 16, &sums), STOC_BUSY);
    EQUAL(stoc_queue_done(b, 1, tasks, 3), 0);
    uint64_t ns = 0;
    for (int k = 0; k < 3; k++) {
        ANSWER(b, k)->ended_ns += 100;
        ns += ANSWER(b, k)->ended_ns - ANSWER(b, k)->began_ns;
    }
    ANSWER(b, 0)->waited_ns = ANSWER(b, 2)->waited_ns = 7; /* answer 1 does not know it */
    ANSWER(b, 0)->augment_ns = 20;
    ANSWER(b, 1)->augment_ns = 10;
    ANSWER(b, 0)->delayed_ns = 30;
    ANSWER(b, 2)->delayed_ns = UINT64_MAX / 2; /* a kernel's counter may be wrong */
    EQUAL(stoc_queue_collect(b, 0, 3, 16, &sums), 0);
    EQUAL(sums.load_ns, ns);
    EQUAL(sums.waited_ns, 2 * 7);
    EQUAL(sums.measured_ns, ANSWER(b, 0)->ended_ns - ANSWER(b, 0)->began_ns - 20 - 30);
    EQUAL(sums.hits, 1);
    EQUAL(sums.augment_ns, 20 + 10);
    EQUAL(sums.hit_ns, ANSWER(b, 1)->ended_ns - ANSWER(b, 1)->began_ns - 10);
    EQUAL(stoc_queue_release(b, 0, 3), STOC_BUSY); /* they are released */
    EQUAL(stoc_queue_take(b, 1, 1000, tasks, 8), 5);
    for (int k = 0; k < 5; k++) {
        EQUAL(tasks[k].row, k);
        EQUAL(tasks[k].index, indices[k]);
        EQUAL(tasks[k].argument, 5);
        tasks[k].result = k;
    }
    EQUAL(stoc_queue_done(b, 1, tasks, 5), 0);
    EQUAL(stoc_queue_collect(b, 3, 5, 4, &sums), 3);
    EQUAL(sums.hits, 1);
    EQUAL(ANSWER(b, 3 + 2)->result, 2);
    EQUAL(stoc_queue_release(b, 3, 5), 0); /* they were not */
    EQUAL(stoc_queue_collect(b, 3, 17, 4, &sums), STOC_EINVAL);
    EQUAL(stoc_queue_collect(b, 3, 5, 4, NULL), STOC_EINVAL);
    drop_queue(b, 0);
}

PLAIN_TEST(refused)
{
    void *b = new_queue(16, 0);
    struct stoc_task task = {0};
    struct stoc_batch none = {0};
    _Alignas(64) char no_queue[512] = {0};
    EQUAL(stoc_queue_bytes(0), 0);
    EQUAL(stoc_queue_bytes(UINT32_C(1) << 21), 0);
    EQUAL(stoc_queue_init(NULL, 16), STOC_EINVAL);
    EQUAL(stoc_queue_init((char *)b + 8, 16), STOC_EINVAL);
    EQUAL(stoc_queue_push(no_queue, &task, 1), STOC_EINVAL);
    EQUAL(stoc_queue_push(b, &task, 0), STOC_EINVAL);
    EQUAL(stoc_queue_push(b, &task, 9), STOC_EINVAL);
    EQUAL(stoc_queue_take(NULL, 0, 0, &task, 1), STOC_EINVAL);
    EQUAL(stoc_queue_take(b, 65536, 0, &task, 1), STOC_EINVAL);
    EQUAL(stoc_queue_wait(b, NULL, 1, 0), STOC_EINVAL);
    EQUAL(stoc_queue_wait(b, &none, 1, 0), STOC_EINVAL);
    EQUAL(stoc_queue_overflow(b, UINT64_MAX), STOC_EINVAL);
    EQUAL(stoc_queue_overflow(b, 1), 0);
    EQUAL(stoc_queue_overflow(b, 4096), 4096);
    EQUAL(stoc_queue_overflow(b, 4097), 8192);
    EQUAL(stoc_queue_overflow(b, 1), 16384);
    stoc_queue_stop(b);
    EQUAL(stoc_queue_take(b, 0, 1000, &task, 1), STOC_ECLOSED);
    drop_queue(b, 0);
}

PLAIN_TEST(reserved_in_a_place)
{
    _Alignas(64) uint64_t place[16] = {0};
    static const struct {
        uint64_t bytes;
        int64_t offset;
    } cases[] = {{1, 64},      {64, 128},          {65, 192}, {257, STOC_EMEMORY}, {UINT64_MAX, STOC_EMEMORY},
                 {255, 320}, {1, STOC_EMEMORY}, {0, 576}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        EQUAL(stoc_queue_reserve(place, 576, cases[k].bytes), cases[k].offset);
    EQUAL(place[0], 512);
    place[0] = UINT64_MAX - 1; /* a process that went wrong leaves this */
    EQUAL(stoc_queue_reserve(place, 576, 1), STOC_EMEMORY);
    place[0] = 0;
    EQUAL(stoc_queue_reserve(place, 576, 512), 64);
    EQUAL(stoc_queue_reserve(place, 63, 0), STOC_EINVAL);
    EQUAL(stoc_queue_reserve(&place[1], 576, 0), STOC_EINVAL);
    EQUAL(stoc_queue_reserve(NULL, 576, 0), STOC_EINVAL);
}

PLAIN_TEST(cancelled)
{
    void *b = new_queue(16, 0);
    struct stoc_task task;
    EQUAL(post(b, 0, 4), 0);
    EQUAL(stoc_queue_take(b, 0, 0, &task, 1), 1);
    EQUAL(stoc_queue_cancel(b, 0, 4), 1);
    EQUAL(wait_for(b, 0, 4, 0), 1);
    EQUAL(stoc_queue_done(b, 0, &task, 1), 0);
    EQUAL(wait_for(b, 0, 4, 1000), 0);
    for (int k = 1; k < 4; k++)
        EQUAL(ANSWER(b, k)->result, STOC_TASK_CANCELLED);
    EQUAL(stoc_queue_release(b, 0, 4), 0);
    EQUAL(stoc_queue_take(b, 0, 0, &task, 1), 0);
    EQUAL(post(b, 100, 2), 4);
    EQUAL(stoc_queue_take(b, 0, 0, &task, 1), 1);
    EQUAL(task.index, 100);
    drop_queue(b, 0);
}

PLAIN_TEST(posted_again)
{
    void *b = new_queue(16, 0);
    struct stoc_task mine, other;
    uint64_t held[4];
    EQUAL(post(b, 0, 4), 0);
    EQUAL(stoc_queue_take(b, 3, 0, &mine, 1), 1);
    for (int k = 1; k < 4; k++) {
        EQUAL(stoc_queue_take(b, 5, 0, &other, 1), 1);
        EQUAL(stoc_queue_done(b, 5, &other, 1), 0);
    }
    ANSWER(b, 0)->overflow_offset = 77;
    EQUAL(stoc_queue_held(b, 3, held, 4), 1);
    EQUAL(held[0], 0);
    EQUAL(stoc_queue_held(b, 5, held, 4), 0);
    EQUAL(stoc_queue_held(b, 3, NULL, 0), 1);
    EQUAL(stoc_queue_repost(b, 5, 0), STOC_ELOST);
    EQUAL(stoc_queue_repost(b, 3, 0), 0);
    EQUAL(stoc_queue_done(b, 3, &mine, 1), STOC_ELOST);
    EQUAL(stoc_queue_take(b, 5, 0, &other, 1), 1);
    EQUAL(other.position, 0);
    EQUAL(other.index, 0);
    EQUAL(other.overflow_offset, 5000); /* though the answer has another, and the dead worker may have written it */
    EQUAL(stoc_queue_done(b, 5, &other, 1), 0);
    EQUAL(wait_for(b, 0, 4, 0), 0);
    drop_queue(b, 0);
}

PLAIN_TEST(for_one_worker_alone)
{
    void *b = new_queue(16, 0);
    struct stoc_task task, for_two = {.index = 2, .only = 3}, for_none = {.index = 0, .only = 1};
    struct stoc_batch both[2] = {{0, 1}, {1, 1}};
    EQUAL(stoc_queue_push(b, &for_two, 1), 0);
    EQUAL(stoc_queue_push(b, &for_none, 1), 1);
    EQUAL(post(b, 50, 1), 2);
    EQUAL(stoc_queue_take(b, 0, 0, &task, 1), 1);
    EQUAL(task.position, 1);
    EQUAL(stoc_queue_wait(b, both, 2, 0), 2);
    EQUAL(stoc_queue_done(b, 0, &task, 1), 0);
    EQUAL(stoc_queue_wait(b, both, 2, 1000), 1);
    EQUAL(stoc_queue_take(b, 0, 0, &task, 1), 1);
    EQUAL(task.position, 2);
    EQUAL(stoc_queue_take(b, 0, 0, &task, 1), 0);
    EQUAL(stoc_queue_take(b, 2, 0, &task, 1), 1);
    EQUAL(task.position, 0);
    EQUAL(stoc_queue_done(b, 2, &task, 1), 0);
    EQUAL(stoc_queue_wait(b, both, 2, 1000), 0);
    drop_queue(b, 0);
}

PLAIN_TEST(several_at_once)
{
    void *b = new_queue(16, 0);
    struct stoc_task tasks[8] = {{0}};
    uint64_t held[8];
    EQUAL(stoc_queue_take(b, 1, 0, tasks, 0), STOC_EINVAL);
    EQUAL(stoc_queue_done(b, 1, tasks, 0), STOC_EINVAL);
    EQUAL(post(b, 0, 5), 0);
    EQUAL(post(b, 50, 3), 5);
    EQUAL(stoc_queue_take(b, 1, 0, tasks, 3), 3);
    EQUAL(stoc_queue_take(b, 2, 0, tasks + 3, 4), 2); /* none of the next batch */
    for (int k = 0; k < 5; k++) {
        EQUAL(tasks[k].position, k);
        EQUAL(tasks[k].index, k);
        EQUAL(tasks[k].argument, 1000 + k);
        tasks[k].result = 10 + k;
    }
    CHECK(ANSWER(b, 0)->began_ns > 0);
    EQUAL(ANSWER(b, 1)->began_ns, 0);
    ANSWER(b, 1)->began_ns = ANSWER(b, 0)->began_ns + 7;
    EQUAL(stoc_queue_done(b, 1, tasks, 3), 0);
    EQUAL(ANSWER(b, 0)->ended_ns, ANSWER(b, 1)->began_ns); /* as far as the worker stored when it began each task */
    CHECK(ANSWER(b, 1)->ended_ns > ANSWER(b, 1)->began_ns);
    EQUAL(ANSWER(b, 2)->began_ns, ANSWER(b, 2)->ended_ns);
    for (int k = 0; k < 5; k++)
        ANSWER(b, k)->augment_ns = ANSWER(b, k)->waited_ns = ANSWER(b, k)->delayed_ns = 5; /* as workers do */
    EQUAL(stoc_queue_held(b, 2, held, 8), 2);
    EQUAL(stoc_queue_repost(b, 2, held[0]), 0);
    EQUAL(stoc_queue_done(b, 2, tasks + 3, 2), STOC_ELOST);
    EQUAL(ANSWER(b, 4)->result, 14); /* the other task is answered */
    EQUAL(ANSWER(b, 3)->augment_ns, 0);
    EQUAL(ANSWER(b, 3)->waited_ns, 0);
    EQUAL(ANSWER(b, 3)->delayed_ns, 0);
    EQUAL(ANSWER(b, 4)->augment_ns, 5);
    EQUAL(wait_for(b, 0, 5, 0), 1);
    EQUAL(stoc_queue_take(b, 1, 0, tasks, 8), 1); /* a worker may have died of this task, so it is taken alone, */
    EQUAL(tasks[0].position, 3);
    EQUAL(stoc_queue_done(b, 1, tasks, 1), 0);
    EQUAL(wait_for(b, 0, 5, 0), 0);
    EQUAL(stoc_queue_take(b, 1, 0, tasks, 8), 3);
    for (int k = 5; k < 8; k++)
        EQUAL(stoc_queue_repost(b, 1, (uint64_t)k), 0);
    for (int k = 0; k < 3; k++) {
        EQUAL(stoc_queue_take(b, 1, 0, tasks, 8), 1); /* and not after others either */
        EQUAL(tasks[0].index, 50 + k);
        CHECK(ANSWER(b, 5 + k)->began_ns > 0);
        EQUAL(stoc_queue_done(b, 1, tasks, 1), 0);
    }
    EQUAL(stoc_queue_release(b, 0, 5), 0);
    EQUAL(stoc_queue_release(b, 5, 3), 0);
    EQUAL(post(b, 90, 8), 8);
    EQUAL(post(b, 98, 3), 16); /* in entries whose earlier tasks were to be taken alone */
    for (int k = 0; k < 3; k++)
        EQUAL(ANSWER(b, 16 + k)->augment_ns + ANSWER(b, 16 + k)->waited_ns + ANSWER(b, 16 + k)->delayed_ns, 0);
    EQUAL(stoc_queue_take(b, 1, 0, tasks, 8), 8);
    EQUAL(stoc_queue_done(b, 1, tasks, 8), 0);
    EQUAL(stoc_queue_take(b, 1, 0, tasks, 8), 3);
    EQUAL(tasks[2].index, 100);
    drop_queue(b, 0);
}

/* ------------------------------------------------------------ many at once */

enum { BATCH = 32, AHEAD = 4, WORKERS = 4, RUN_LENGTH = 7 };

struct crowd {
    void *queue;
    _Atomic uint32_t *times; /* by index: how often a worker did it */
    _Atomic uint32_t number;
};

static void work(struct crowd *crowd, uint32_t worker)
{
    struct stoc_task tasks[RUN_LENGTH];
    for (uint32_t most = 1;; most = most % RUN_LENGTH + 1) {
        int got = stoc_queue_take(crowd->queue, worker, 1000, tasks, most);
        if (got == STOC_ECLOSED)
            return;
        if (got < 1)
            continue;
        CHECK(got <= (int)most);
        for (int k = 0; k < got; k++) {
            CHECK(tasks[k].first == tasks[0].first && tasks[k].position == tasks[0].position + (uint64_t)k);
            tasks[k].result = (int32_t)(tasks[k].index * 3);
        }
        if (stoc_queue_done(crowd->queue, worker, tasks, (uint32_t)got) == 0)
            for (int k = 0; k < got; k++)
                atomic_fetch_add(&crowd->times[tasks[k].index], 1);
    }
}

static void *worker_thread(void *arg)
{
    struct crowd *crowd = arg;
    work(crowd, atomic_fetch_add(&crowd->number, 1));
    return NULL;
}

static void check_batch(void *b, int64_t first, int64_t index)
{
    for (int k = 0; k < BATCH; k++)
        EQUAL(ANSWER(b, (uint64_t)(first + k))->result, (index + k) * 3);
    EQUAL(stoc_queue_release(b, (uint64_t)first, BATCH), 0);
}

PLAIN_TEST(threads_share_every_batch)
{
    enum { BATCHES = 600 };
    struct crowd crowd = {.queue = new_queue(BATCH * AHEAD * 2, 0)};
    int64_t posted[BATCHES];
    pthread_t threads[WORKERS];
    crowd.times = calloc(BATCHES * BATCH, sizeof *crowd.times);
    start_threads(threads, WORKERS, worker_thread, &crowd);
    for (int at = 0, next = 0; at < BATCHES; at++) {
        for (; next < BATCHES && next < at + AHEAD; next++)
            REQUIRE((posted[next] = post(crowd.queue, next * BATCH, BATCH)) >= 0);
        while (wait_for(crowd.queue, posted[at], BATCH, 50) > 0)
            ;
        check_batch(crowd.queue, posted[at], at * BATCH);
    }
    stoc_queue_stop(crowd.queue);
    join_threads(threads, WORKERS);
    for (int k = 0; k < BATCHES * BATCH; k++)
        EQUAL(crowd.times[k], 1);
    free((void *)crowd.times);
    drop_queue(crowd.queue, 0);
}

static pid_t start_worker(struct crowd *crowd, uint32_t worker, const char *fault)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (fault)
            setenv("STOCACHED_FAULT", fault, 1);
        work(crowd, worker);
        _exit(0);
    }
    REQUIRE(pid > 0);
    return pid;
}

/* The parent's part: replaces dead workers, and reposts their tasks. */
static int bury(struct crowd *crowd, pid_t *pids)
{
    int dead = 0;
    for (uint32_t w = 0; w < WORKERS; w++) {
        uint64_t held[BATCH];
        if (waitpid(pids[w], NULL, WNOHANG) != pids[w])
            continue;
        int64_t n = stoc_queue_held(crowd->queue, w, held, BATCH);
        CHECK(n >= 0 && n <= RUN_LENGTH);
        for (int64_t k = 0; k < n; k++)
            EQUAL(stoc_queue_repost(crowd->queue, w, held[k]), 0);
        pids[w] = start_worker(crowd, w, NULL);
        dead++;
    }
    return dead;
}

/* Processes do batches while they are killed one after the other: at the point `fault`, or at any
 * moment. Returns how many died. */
static int run_killed(int batches, const char *fault)
{
    size_t more = (size_t)batches * BATCH * sizeof(uint32_t);
    struct crowd crowd = {.queue = new_queue(BATCH * AHEAD * 2, more)};
    int64_t posted[512];
    pid_t pids[WORKERS];
    int dead = 0;
    unsigned random = 1;
    crowd.times = (_Atomic uint32_t *)(void *)((char *)crowd.queue + 4096 + capacity * STOC_QUEUE_TASK_BYTES);
    for (uint32_t w = 0; w < WORKERS; w++)
        pids[w] = start_worker(&crowd, w, fault);
    for (int at = 0, next = 0; at < batches; at++) {
        for (; next < batches && next < at + AHEAD; next++)
            REQUIRE((posted[next] = post(crowd.queue, next * BATCH, BATCH)) >= 0);
        if (!fault) {
            random = random * 1103515245u + 12345u;
            kill(pids[random >> 16 & (WORKERS - 1)], SIGKILL);
        }
        for (int turns = 0; wait_for(crowd.queue, posted[at], BATCH, 5) > 0; turns++) {
            dead += bury(&crowd, pids);
            REQUIRE(turns < 20000);
        }
        check_batch(crowd.queue, posted[at], at * BATCH);
    }
    for (int turns = 0; fault && dead == 0 && turns < 20000; turns++) {
        /* workers without tasks sleep; on a busy machine some do so late */
        usleep(1000);
        dead += bury(&crowd, pids);
    }
    stoc_queue_stop(crowd.queue);
    for (uint32_t w = 0; w < WORKERS; w++) {
        int status = 0;
        waitpid(pids[w], &status, 0);
        dead += WIFSIGNALED(status);
    }
    for (int k = 0; k < batches * BATCH; k++)
        CHECK(crowd.times[k] <= 1); /* 0: killed after its answer and before it counted */
    drop_queue(crowd.queue, more);
    return dead;
}

PLAIN_TEST(workers_killed_at_random) { CHECK(run_killed(300, NULL) > 100); }

#ifdef STOC_FAULT_POINTS
void stoc_fault_set_hook(void (*hook)(const char *point));

static void *posted_to;

static void post_before_sleep(const char *point)
{
    if (posted_to && strcmp(point, "task_queue.sleep") == 0) {
        void *b = posted_to;
        posted_to = NULL;
        EQUAL(post(b, 1, 1), 0);
    }
}

/* A task that comes after a worker's last look, and before it sleeps. */
TEST(no_wakeup_is_lost)
{
    struct stoc_task task;
    void *b = posted_to = new_queue(16, 0);
    double began = seconds();
    stoc_fault_set_hook(post_before_sleep);
    EQUAL(stoc_queue_take(b, 0, 20000, &task, 1), 1);
    stoc_fault_set_hook(NULL);
    CHECK(seconds() - began < 19); /* the wait itself ends after 20 s */
    drop_queue(b, 0);
}

TEST(workers_killed_at_every_point)
{
    static const char *const points[] = {"task_queue.taken=kill",  "task_queue.taken@3=kill",  "task_queue.sleep=kill",
                                         "task_queue.answer=kill", "task_queue.answer@5=kill", "task_queue.done=kill",
                                         "task_queue.done@2=kill"};
    for (size_t k = 0; k < sizeof points / sizeof *points; k++)
        CHECK(run_killed(20, points[k]) >= 1);
}
#endif

static void *answer_one(void *b)
{
    struct timespec t = {.tv_nsec = 20 * 1000 * 1000};
    struct stoc_task task;
    EQUAL(stoc_queue_take(b, 0, 20000, &task, 1), 1);
    nanosleep(&t, NULL);
    EQUAL(stoc_queue_done(b, 0, &task, 1), 0);
    return NULL;
}

PLAIN_TEST(tasks_and_answers_wake_those_who_sleep)
{
    void *b = new_queue(16, 0);
    struct timespec t = {.tv_nsec = 20 * 1000 * 1000};
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, answer_one, b) == 0);
    nanosleep(&t, NULL);
    double began = seconds();
    EQUAL(post(b, 1, 1), 0);
    EQUAL(wait_for(b, 0, 1, 20000), 0);
    pthread_join(thread, NULL);
    CHECK(seconds() - began < 19); /* the wait itself ends after 20 s */
    drop_queue(b, 0);
}

struct waiter {
    void *queue;
    struct stoc_batch batch;
    int64_t found;
    atomic_bool returned;
};

static void *wait_long(void *argument)
{
    struct waiter *w = argument;
    w->found = stoc_queue_wait(w->queue, &w->batch, 1, 60000);
    atomic_store(&w->returned, true);
    return NULL;
}

PLAIN_TEST(a_wait_is_for_its_own_batch)
{
    struct waiter w = {.queue = new_queue(64, 0), .batch = {0, 1}};
    const _Atomic uint32_t *waiting = (const void *)((const char *)w.queue + 208);
    struct stoc_task own, task;
    pthread_t thread;
    EQUAL(post(w.queue, 1, 1), 0);
    EQUAL(stoc_queue_take(w.queue, 0, 0, &own, 1), 1);
    REQUIRE(pthread_create(&thread, NULL, wait_long, &w) == 0);
    for (int k = 1; k <= 20; k++) { /* other batches get their answers while it sleeps */
        EQUAL(post(w.queue, 1, 1), k);
        EQUAL(stoc_queue_take(w.queue, 0, 0, &task, 1), 1);
        while (!atomic_load(waiting) && !atomic_load(&w.returned))
            sched_yield();
        EQUAL(stoc_queue_done(w.queue, 0, &task, 1), 0);
    }
    EQUAL(stoc_queue_done(w.queue, 0, &own, 1), 0);
    pthread_join(thread, NULL);
    EQUAL(w.found, 0);
    drop_queue(w.queue, 0);
}

PLAIN_TEST(stop_wakes_those_who_sleep)
{
    struct timespec t = {.tv_nsec = 20 * 1000 * 1000};
    bool at_once = false; /* and not only at the next look, after a second */
    for (int tries = 0; tries < 10 && !at_once; tries++) {
        struct crowd crowd = {.queue = new_queue(16, 0)};
        pthread_t thread;
        REQUIRE(pthread_create(&thread, NULL, worker_thread, &crowd) == 0);
        nanosleep(&t, NULL);
        double began = seconds();
        stoc_queue_stop(crowd.queue);
        pthread_join(thread, NULL);
        at_once = seconds() - began < 0.9;
        drop_queue(crowd.queue, 0);
    }
    CHECK(at_once);
}

/*
 * worker.c - stoc_work: tasks done by functions of the caller, from the cache to the row of a batch. Each task is done
 * exactly once, by C or by the caller, while other clients change the cache.
 */
#include "check.h"

enum { SAMPLES = 64, BYTES = 512, ROWS = SAMPLES, QUEUE = 256 };
enum { LOADED = 0, HIT = 16, BY_CALLER = 7, SAMPLE_KIND = 0 };

/* A sample: all bytes are its number and version. */
struct row {
    uint64_t argument, bytes;
    unsigned char first, last, mixed;
};

struct test {
    stoc_cache *cache;
    void *queue;
    struct row rows[2][ROWS]; /* two buffers */
    void *buffers[2];
    atomic_int loads, finishes;
    atomic_int on_finish;              /* calls of during_finish that are left */
    void (*during_finish)(struct test *); /* runs in the middle of finish: another client */
    int refuse_load, refuse_finish;    /* the index whose load, and the first byte whose row fails; -1: none */
};

struct context { /* what a worker is given */
    struct test *test;
    struct stoc_work work;
    unsigned char sample[2 * BYTES];
};

/* Those of a test with one worker, and the tasks that came back. */
static struct test test;
static struct context worker;
static struct stoc_task back[SAMPLES];

static unsigned char byte_of(int64_t index, int version) { return (unsigned char)(index * 3 + version); }
static size_t bytes_of(const struct stoc_info *info, int64_t index)
{
    return info->variable ? BYTES + (size_t)index % BYTES : BYTES;
}

static int load(void *context, int64_t index, const void **sample, size_t *bytes)
{
    struct context *c = context;
    struct stoc_info info = {.struct_bytes = sizeof info};
    if (c->test->cache)
        stoc_info(c->test->cache, &info);
    atomic_fetch_add(&c->test->loads, 1);
    if (index == c->test->refuse_load)
        return -1;
    *bytes = bytes_of(&info, index);
    memset(c->sample, byte_of(index, 0), *bytes);
    *sample = c->sample;
    return 0;
}

static int finish(void *context, uint64_t argument, const void *sample, size_t bytes, void *buffer, uint32_t row)
{
    struct test *t = ((struct context *)context)->test;
    const unsigned char *p = sample;
    struct row made = {argument, bytes, p[0], 0, 0};
    atomic_fetch_add(&t->finishes, 1);
    if (made.first == t->refuse_finish)
        return 5;
    if (t->during_finish && atomic_fetch_sub(&t->on_finish, 1) > 0)
        t->during_finish(t);
    made.last = p[bytes - 1];
    for (size_t k = 0; k < bytes; k++)
        made.mixed |= p[k] != made.first;
    ((struct row *)buffer)[row] = made;
    return 0;
}

static void begin_queue(struct test *t, stoc_cache *cache)
{
    memset(t, 0, sizeof *t);
    t->cache = cache;
    t->refuse_load = t->refuse_finish = -1;
    size_t bytes = stoc_queue_bytes(QUEUE);
    t->queue = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(t->queue != MAP_FAILED && stoc_queue_init(t->queue, QUEUE) == 0);
    for (int k = 0; k < 2; k++)
        t->buffers[k] = t->rows[k];
}

static void end_queue(struct test *t)
{
    munmap(t->queue, stoc_queue_bytes(QUEUE));
    stoc_close(t->cache);
}

static void begin_worker(struct context *c, struct test *t, uint32_t number)
{
    memset(c, 0, sizeof *c);
    c->test = t;
    c->work = (struct stoc_work){.struct_bytes = sizeof c->work, .queue = t->queue, .cache = t->cache, .context = c,
                                 .load = load, .finish = finish, .buffers = t->buffers, .buffer_count = 2,
                                 .worker = number, .kind = SAMPLE_KIND, .loaded = LOADED, .hit = HIT};
}

static void begin(stoc_cache *cache, uint32_t number)
{
    begin_queue(&test, cache);
    begin_worker(&worker, &test, number);
}

static void end(void)
{
    stoc_work_end(&worker.work);
    end_queue(&test);
}

static stoc_cache *make_cache(uint32_t policy, uint64_t slots, bool variable)
{
    struct stoc_options o = {.struct_bytes = sizeof o, .samples = SAMPLES, .policy = policy, .variable = variable,
                             .sample_bytes = variable ? 2 * BYTES : BYTES};
    if (variable) {
        o.limit_bytes = (8u << 20) + slots * 2 * BYTES;
        o.slot_bytes = policy == STOC_POLICY_FIRST_COME ? 0 : 256;
    } else
        o.slots = slots;
    stoc_cache *c;
    if (stoc_create(NULL, &o, &c, &error)) {
        COMPLAIN("%s", error.message);
        longjmp(give_up, 1);
    }
    return c;
}

/* Posts tasks for samples first to first + n - 1, each into the row of its number. */
static uint64_t post(struct test *t, int64_t first, size_t n, uint32_t buffer, uint32_t kind)
{
    struct stoc_task tasks[SAMPLES] = {{0}};
    for (size_t k = 0; k < n; k++)
        tasks[k] = (struct stoc_task){.index = first + (int64_t)k, .row = (uint32_t)(first + (int64_t)k),
                                      .buffer = buffer, .kind = kind, .argument = 1000 + (uint64_t)first + k};
    int64_t at = stoc_queue_push(t->queue, tasks, n);
    REQUIRE(at >= 0);
    return (uint64_t)at;
}

static int result_of(struct test *t, uint64_t position)
{
    const char *entry = (const char *)t->queue + 4096 + position % QUEUE * STOC_QUEUE_TASK_BYTES;
    return *(const int32_t *)(const void *)(entry + STOC_QUEUE_ANSWER_OFFSET);
}

/* The times at the end of an answer. */
enum { BEGAN, ENDED, AUGMENT, WAITED, DELAYED };
static const uint64_t *times_of(struct test *t, uint64_t position)
{
    const char *entry = (const char *)t->queue + 4096 + position % QUEUE * STOC_QUEUE_TASK_BYTES;
    return (const uint64_t *)(const void *)(entry + 88);
}

static bool finished(struct test *t, uint64_t first, uint64_t n)
{
    struct stoc_batch batch = {first, n};
    return stoc_queue_wait(t->queue, &batch, 1, 0) == 0;
}

static void check_row(struct test *t, int64_t index, uint32_t buffer, int version)
{
    const struct row *r = &t->rows[buffer][index];
    EQUAL(r->argument, 1000 + index);
    EQUAL(r->first, byte_of(index, version));
    EQUAL(r->last, byte_of(index, version));
    EQUAL(r->mixed, 0);
}

static bool some_are_posted(struct test *t)
{
    enum { POSTED = 1 };
    for (size_t k = 0; k < QUEUE; k++)
        if (((const unsigned char *)t->queue)[4096 + k * STOC_QUEUE_TASK_BYTES] == POSTED)
            return true;
    return false;
}

/* Does all tasks in this thread. Returns how many came back. */
static int work(void)
{
    int count = 0, got;
    do {
        got = stoc_work(&worker.work, 1, back + count, SAMPLES - (uint32_t)count);
        CHECK(got >= 0);
        count += got;
    } while (some_are_posted(&test));
    return count;
}

static int known(const uint64_t *costs, int n)
{
    int sum = 0;
    for (int k = 0; k < n; k++)
        sum += costs[k] > 0;
    return sum;
}

static void misses_then_hits_of(uint32_t policy, bool variable, uint32_t copies)
{
    begin(make_cache(policy, SAMPLES, variable), 3);
    worker.work.copies = copies;
    for (int turn = 0; turn < 2; turn++) {
        uint64_t first = post(&test, 0, SAMPLES, (uint32_t)turn, SAMPLE_KIND);
        EQUAL(work(), 0);
        CHECK(finished(&test, first, SAMPLES));
        uint64_t augmented = 0; /* ns of all: one may take less than the clock tells */
        for (int k = 0; k < SAMPLES; k++) {
            check_row(&test, k, (uint32_t)turn, 0);
            EQUAL(result_of(&test, first + (uint64_t)k), turn ? HIT : LOADED);
            augmented += times_of(&test, first + (uint64_t)k)[AUGMENT];
            CHECK((times_of(&test, first + (uint64_t)k)[WAITED] > 0) == !turn); /* a hit does not load */
        }
        CHECK(augmented > 0);
        EQUAL(stoc_queue_release(test.queue, first, SAMPLES), 0);
    }
    EQUAL(atomic_load(&test.loads), SAMPLES);
    struct stoc_stats s = stats_of(test.cache);
    EQUAL(s.hits, SAMPLES);
    EQUAL(s.misses, SAMPLES);
    EQUAL(s.stored, SAMPLES);
    uint64_t costs[SAMPLES]; /* the times of loads, with any policy; unknown if one was far longer than the others */
    EQUAL(stoc_costs(test.cache, 0, SAMPLES, costs), 0);
    CHECK(known(costs, SAMPLES) > SAMPLES / 2);
    end();
}

TEST(misses_then_hits)
{
    for (uint32_t copies = 0; copies < 2; copies++) {
        misses_then_hits_of(STOC_POLICY_FIRST_COME, false, copies);
        misses_then_hits_of(STOC_POLICY_COST, false, copies);
        misses_then_hits_of(STOC_POLICY_CLOCK, false, copies);
        misses_then_hits_of(STOC_POLICY_FIRST_COME, true, copies);
        misses_then_hits_of(STOC_POLICY_COST, true, copies);
    }
}

static uint64_t ns_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

enum { SLOW_NS = 20000000 };

/* Sample 0 waits for its source, sample 1 computes. */
static int slow_load(void *context, int64_t index, const void **sample, size_t *bytes)
{
    if (index == 0)
        nanosleep(&(struct timespec){.tv_nsec = SLOW_NS}, NULL);
    else
        for (uint64_t end = ns_of(CLOCK_THREAD_CPUTIME_ID) + SLOW_NS; ns_of(CLOCK_THREAD_CPUTIME_ID) < end;)
            ;
    return load(context, index, sample, bytes);
}

TEST(waits_of_loads)
{
    begin(make_cache(STOC_POLICY_FIRST_COME, SAMPLES, false), 0);
    worker.work.load = slow_load;
    uint64_t first = post(&test, 0, 2, 0, SAMPLE_KIND);
    EQUAL(work(), 0);
    CHECK(times_of(&test, first)[WAITED] >= SLOW_NS * 9 / 10);
    CHECK(times_of(&test, first + 1)[WAITED] < times_of(&test, first)[WAITED]); /* a busy machine adds to both */
    end();
}

TEST(without_a_cache)
{
    begin(NULL, 0);
    for (int turn = 0; turn < 2; turn++) {
        uint64_t first = post(&test, 0, SAMPLES, 0, SAMPLE_KIND);
        EQUAL(work(), 0);
        EQUAL(result_of(&test, first + 9), LOADED);
        EQUAL(stoc_queue_release(test.queue, first, SAMPLES), 0);
    }
    EQUAL(atomic_load(&test.loads), 2 * SAMPLES);
    end();
}

/* Opens the disk cache of a worker. */
static void open_disk(struct context *c, const struct stoc_options *o)
{
    if (stoc_disk_open(path_in_scratch("worker.tier"), o, &c->work.disk, &error)) {
        COMPLAIN("%s", error.message);
        longjmp(give_up, 1);
    }
}

/* Reads all samples once. Then the disk cache has those that it takes. */
static void read_epoch_over_disk(void)
{
    uint64_t first = post(&test, 0, SAMPLES, 0, SAMPLE_KIND);
    EQUAL(work(), 0);
    CHECK(finished(&test, first, SAMPLES));
    for (int k = 0; k < SAMPLES; k++)
        check_row(&test, k, 0, 0);
    EQUAL(stoc_queue_release(test.queue, first, SAMPLES), 0);
    EQUAL(stoc_flush(worker.work.disk, 60000), 0);
}

/* What the cache in memory misses comes from a disk cache, also in a later program. */
static void a_disk_behind(bool variable)
{
    struct stoc_options o = {.struct_bytes = sizeof o, .samples = SAMPLES, .variable = variable, .fingerprint = "test",
                             .sample_bytes = variable ? 2 * BYTES : BYTES, .limit_bytes = UINT64_C(16) << 20};
    for (int turn = 0; turn < 2; turn++) {
        /* the cache in memory has room for a part */
        begin(make_cache(variable ? STOC_POLICY_FIRST_COME : STOC_POLICY_COST, SAMPLES / 4, variable), 3);
        open_disk(&worker, &o);
        for (int epoch = 0; epoch < 2; epoch++)
            read_epoch_over_disk();
        EQUAL(atomic_load(&test.loads), turn ? 0 : SAMPLES);
        struct stoc_stats disk = stats_of(worker.work.disk), memory = stats_of(test.cache);
        EQUAL(disk.stored, turn ? 0 : SAMPLES);
        EQUAL(disk.hits, memory.misses - (turn ? 0 : SAMPLES));
        CHECK(memory.hits > 0 && (disk.hits > 0 || (variable && !turn))); /* this arena holds all samples */
        if (!variable && turn) { /* a copy from the disk is no load */
            uint64_t costs[SAMPLES];
            EQUAL(stoc_costs(test.cache, 0, SAMPLES, costs), 0);
            for (int k = 0; k < SAMPLES; k++)
                EQUAL(costs[k], 0);
        }
        worker.work.cache = worker.work.disk;
        EQUAL(stoc_work(&worker.work, 1, back, 2), STOC_EINVAL);
        stoc_close(worker.work.disk);
        end();
    }
    unlink(path_in_scratch("worker.tier"));
}

/* A disk without room for all samples holds others than the cache in memory, also in a later program. */
static void a_small_disk_behind(uint32_t policy)
{
    struct stoc_options o = {.struct_bytes = sizeof o, .samples = SAMPLES, .fingerprint = "test", .sample_bytes = BYTES,
                             .limit_bytes = (UINT64_C(2) << 20) + SAMPLES / 2 * (uint64_t)BYTES};
    for (int turn = 0; turn < 2; turn++) {
        begin(make_cache(policy, SAMPLES / 4, false), 3);
        open_disk(&worker, &o);
        struct stoc_info disk = {.struct_bytes = sizeof disk}, memory = {.struct_bytes = sizeof memory};
        REQUIRE(stoc_info(worker.work.disk, &disk) == 0 && stoc_info(test.cache, &memory) == 0);
        REQUIRE(disk.slots > SAMPLES / 4 && disk.slots + memory.slots < SAMPLES);
        read_epoch_over_disk();
        uint64_t before = (uint64_t)atomic_load(&test.loads);
        read_epoch_over_disk();
        /* With the policy cost, a sample that took longer than others to load may take a slot in memory. Then the disk
           does not get it, and its victim is loaded again. */
        uint64_t loads = (uint64_t)atomic_load(&test.loads) - before, rest = SAMPLES - disk.slots - memory.slots;
        CHECK(rest <= loads && loads <= rest + stats_of(test.cache).evicted);
        stoc_close(worker.work.disk);
        end();
    }
    unlink(path_in_scratch("worker.tier"));
}

TEST(disks_behind)
{
    a_disk_behind(false);
    a_disk_behind(true);
    a_small_disk_behind(STOC_POLICY_FIRST_COME);
    a_small_disk_behind(STOC_POLICY_COST);
}

/* The worker still holds tasks that come back. The code that does them counts them. */
TEST(what_comes_back)
{
    begin(make_cache(STOC_POLICY_FIRST_COME, SAMPLES, false), 1);
    test.refuse_load = 11;
    test.refuse_finish = byte_of(20, 0);
    test.buffers[1] = NULL;
    uint64_t samples = post(&test, 0, 32, 0, SAMPLE_KIND), kind = post(&test, 32, 4, 0, 9);
    uint64_t unknown = post(&test, 36, 4, 1, SAMPLE_KIND), beyond = post(&test, 40, 4, 2, SAMPLE_KIND);
    uint64_t outside = post(&test, SAMPLES, 1, 0, SAMPLE_KIND);
    int count = work(), expected[] = {11, 20, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, SAMPLES};
    EQUAL(count, 15);
    for (int k = 0; k < count && k < 15; k++)
        EQUAL(back[k].index, expected[k]);
    CHECK(!finished(&test, samples, 32));
    struct stoc_stats s = stats_of(test.cache);
    EQUAL(s.hits + s.misses, 30);
    EQUAL(s.stored, 30); /* not that of 20: the caller, who makes its row, would find a hit */
    for (int k = 0; k < count; k++)
        back[k].result = BY_CALLER;
    EQUAL(stoc_queue_done(test.queue, 1, back, (uint32_t)count), 0);
    CHECK(finished(&test, samples, 32) && finished(&test, kind, 4) && finished(&test, unknown, 4));
    CHECK(finished(&test, beyond, 4) && finished(&test, outside, 1));
    EQUAL(result_of(&test, samples + 11), BY_CALLER);
    EQUAL(result_of(&test, samples + 12), LOADED);
    worker.work.load = NULL; /* then misses come back, and hits do not */
    post(&test, 11, 2, 0, SAMPLE_KIND);
    EQUAL(work(), 1);
    EQUAL(back[0].index, 11);
    end();
}

TEST(indices_of_a_part_of_the_cache)
{
    enum { PART = 8 };
    int64_t indices[PART] = {40, 7, SAMPLES - 1, 7, 0, SAMPLES, -1, 3};
    begin(make_cache(STOC_POLICY_FIRST_COME, SAMPLES, false), 1);
    worker.work.indices = indices;
    worker.work.index_count = PART;
    for (int turn = 0; turn < 2; turn++) {
        post(&test, 0, PART + 2, 0, SAMPLE_KIND);
        int count = work(), expected[] = {5, 6, PART, PART + 1}; /* no samples of the cache, no indices */
        EQUAL(count, 4);
        for (int k = 0; k < count && k < 4; k++)
            EQUAL(back[k].index, expected[k]);
        for (int k = 0; k < PART; k++) {
            if (k == 5 || k == 6)
                continue;
            EQUAL(test.rows[0][k].first, byte_of(indices[k], 0));
            EQUAL(test.rows[0][k].argument, 1000 + k);
            EQUAL(stoc_state(test.cache, indices[k]), STOC_STATE_READY);
        }
    }
    EQUAL(atomic_load(&test.loads), 5); /* the second 7 is a hit */
    struct stoc_stats s = stats_of(test.cache);
    EQUAL(s.ready, 5);
    EQUAL(s.hits, 7);
    worker.work.indices = NULL; /* an index is that of its sample */
    post(&test, 40, 1, 0, SAMPLE_KIND);
    EQUAL(work(), 0);
    check_row(&test, 40, 0, 0);
    end();
}

/* Other clients in the middle of a row. */

static void overwrite(struct test *t)
{
    unsigned char sample[BYTES];
    memset(sample, byte_of(5, 1), sizeof sample);
    EQUAL(stoc_set(t->cache, 5, sample, sizeof sample, STOC_OVERWRITE), STOC_STORED);
}

static void clear(struct test *t) { EQUAL(stoc_clear(t->cache, 1000), 0); }

static void take_its_slot(struct test *t)
{
    unsigned char sample[BYTES];
    for (int64_t k = 6; stoc_state(t->cache, 5) == STOC_STATE_READY && k < SAMPLES; k++) {
        memset(sample, byte_of(k, 0), sizeof sample);
        stoc_set(t->cache, k, sample, sizeof sample, 0);
    }
}

static void changed_by(uint32_t policy, uint64_t slots, void (*other)(struct test *), int version, int result)
{
    begin(make_cache(policy, slots, false), 1);
    unsigned char sample[BYTES];
    memset(sample, byte_of(5, 0), sizeof sample);
    EQUAL(stoc_set(test.cache, 5, sample, sizeof sample, 0), STOC_STORED);
    test.during_finish = other;
    atomic_store(&test.on_finish, 1);
    uint64_t first = post(&test, 5, 1, 0, SAMPLE_KIND);
    EQUAL(work(), 0);
    check_row(&test, 5, 0, version);
    EQUAL(result_of(&test, first), result);
    EQUAL(atomic_load(&test.finishes), 2);
    CHECK(stats_of(test.cache).retried > 0);
    end();
}

TEST(rows_whose_sample_changes_are_made_again)
{
    changed_by(STOC_POLICY_FIRST_COME, SAMPLES, overwrite, 1, HIT);
    changed_by(STOC_POLICY_FIRST_COME, SAMPLES, clear, 0, LOADED);
    changed_by(STOC_POLICY_RANDOM, 2, take_its_slot, 0, LOADED);
    changed_by(STOC_POLICY_FIFO, 2, overwrite, 1, HIT);
}

/* copies: another client may do what it likes, the row is of the bytes at the begin. */
TEST(a_copy_does_not_change)
{
    begin(make_cache(STOC_POLICY_FIRST_COME, SAMPLES, false), 1);
    worker.work.copies = 1;
    unsigned char sample[BYTES];
    memset(sample, byte_of(5, 0), sizeof sample);
    EQUAL(stoc_set(test.cache, 5, sample, sizeof sample, 0), STOC_STORED);
    test.during_finish = overwrite;
    atomic_store(&test.on_finish, 1);
    post(&test, 5, 1, 0, SAMPLE_KIND);
    EQUAL(work(), 0);
    check_row(&test, 5, 0, 0);
    EQUAL(atomic_load(&test.finishes), 1);
    end();
}

static void *run_worker(void *context)
{
    struct context *c = context;
    struct stoc_task tasks[8];
    int got;
    while ((got = stoc_work(&c->work, 50, tasks, 8)) >= 0) {
        for (int k = 0; k < got; k++)
            tasks[k].result = BY_CALLER;
        if (got)
            EQUAL(stoc_queue_done(c->test->queue, c->work.worker, tasks, (uint32_t)got), 0);
    }
    EQUAL(got, STOC_ECLOSED);
    return NULL;
}

/* Four threads, a cache that evicts, and a client that clears and overwrites. */
TEST(threads_share_a_queue)
{
    enum { WORKERS = 4, BATCHES = 300 };
    static struct test t;
    static struct context contexts[WORKERS];
    pthread_t threads[WORKERS];
    begin_queue(&t, make_cache(STOC_POLICY_RANDOM, SAMPLES / 4, false));
    t.refuse_load = 33;
    for (uint32_t k = 0; k < WORKERS; k++) {
        begin_worker(&contexts[k], &t, k);
        REQUIRE(pthread_create(&threads[k], NULL, run_worker, &contexts[k]) == 0);
    }
    uint64_t hits = 0;
    for (int batch = 0; batch < BATCHES; batch++) {
        uint64_t first = post(&t, 0, SAMPLES, (uint32_t)batch % 2, SAMPLE_KIND);
        if (batch % 10 == 3)
            clear(&t);
        struct stoc_batch wanted = {first, SAMPLES};
        time_t until = time(NULL) + 60;
        while (stoc_queue_wait(t.queue, &wanted, 1, 100))
            REQUIRE(time(NULL) < until);
        for (int k = 0; k < SAMPLES; k++) {
            int result = result_of(&t, first + (uint64_t)k);
            CHECK(result == (k == 33 ? BY_CALLER : result == HIT ? HIT : LOADED));
            hits += result == HIT;
            if (k != 33)
                check_row(&t, k, (uint32_t)batch % 2, 0);
        }
        memset(t.rows[batch % 2], 0xff, sizeof t.rows[0]);
        EQUAL(stoc_queue_release(t.queue, first, SAMPLES), 0);
    }
    stoc_queue_stop(t.queue);
    for (uint32_t k = 0; k < WORKERS; k++) {
        pthread_join(threads[k], NULL);
        stoc_work_end(&contexts[k].work);
    }
    CHECK(hits > 0);
    struct stoc_stats s = stats_of(t.cache);
    EQUAL(s.hits, hits);
    EQUAL(s.hits + s.misses, BATCHES * (SAMPLES - 1));
    end_queue(&t);
}

enum { STOPPED_AT = 40, COMPUTES_MS = 50, FINISHES_MS = 20, BUSY = 5 };

/* A load of 1 ms. The first one and that of STOPPED_AT also stop the process. */
static int stopping_load(void *context, int64_t index, const void **sample, size_t *bytes)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (index == 0 || index == STOPPED_AT)
        raise(SIGSTOP);
    return load(context, index, sample, bytes);
}

/* A process that is stopped in the middle of a load makes no sample the costliest one: it says nothing until another
 * load confirms it. */
TEST(a_stop_in_a_load)
{
    uint64_t costs[SAMPLES];
    unsigned char sample[BYTES];
    int status;
    begin(make_cache(STOC_POLICY_COST, SAMPLES, false), 1);
    worker.work.load = stopping_load;
    post(&test, 0, SAMPLES, 0, SAMPLE_KIND);
    pid_t child = fork();
    if (child == 0)
        _exit(work() == 0 ? 0 : 1);
    for (int stops = 0; stops < 2; stops++) {
        REQUIRE(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
        nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
        REQUIRE(kill(child, SIGCONT) == 0);
    }
    REQUIRE(waitpid(child, &status, 0) == child);
    EQUAL(status, 0);
    EQUAL(stoc_costs(test.cache, 0, SAMPLES, costs), 0);
    CHECK(costs[0] == 0 && costs[STOPPED_AT] == 0 && known(costs, SAMPLES) > SAMPLES / 2);
    memset(sample, byte_of(STOPPED_AT, 0), sizeof sample);
    struct iovec part = {sample, sizeof sample};
    EQUAL(stoc_set_loaded(test.cache, STOPPED_AT, &part, 1, STOC_OVERWRITE, 1000000), STOC_STORED);
    EQUAL(stoc_costs(test.cache, STOPPED_AT, 1, costs), 0);
    CHECK(costs[0] > 0 && costs[0] < 3000000);
    end();
}

static double thread_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

static void compute(double ms)
{
    for (double until = thread_ms() + ms; thread_ms() < until;)
        ;
}

static int computing_load(void *context, int64_t index, const void **sample, size_t *bytes)
{
    compute(COMPUTES_MS);
    return load(context, index, sample, bytes);
}

static int computing_finish(void *context, uint64_t argument, const void *sample, size_t bytes, void *buffer,
                            uint32_t row)
{
    compute(FINISHES_MS);
    return finish(context, argument, sample, bytes, buffer, row);
}

/* Processes that share the processors make no sample costlier, and no task longer: a worker waits for a processor. */
TEST_IF(!FOR_RACES && !FOR_MEMORY, a_busy_machine) /* it measures time */
{
    enum { MOST = 512 };
    static const double computed[2] = {COMPUTES_MS + FINISHES_MS, FINISHES_MS}; /* ms of a load, and of a hit */
    uint64_t costs[BUSY];
    pid_t others[MOST];
    uint64_t first[2];
    int n = (int)MIN(2 * sysconf(_SC_NPROCESSORS_ONLN), MOST), dear = 0;
    begin(make_cache(STOC_POLICY_COST, SAMPLES, false), 1);
    worker.work.load = computing_load;
    worker.work.finish = computing_finish;
    for (int k = 0; k < n; k++)
        if ((others[k] = fork()) == 0) {
            for (time_t until = time(NULL) + 60; time(NULL) < until && getppid() != 1;)
                ;
            _exit(0);
        }
    double began = seconds();
    for (int turn = 0; turn < 2; turn++) {
        first[turn] = post(&test, 0, BUSY, 0, SAMPLE_KIND);
        EQUAL(work(), 0);
    }
    double took = 1e3 * (seconds() - began) / BUSY;
    for (int k = 0; k < n; k++) {
        kill(others[k], SIGKILL);
        waitpid(others[k], NULL, 0);
    }
    EQUAL(stoc_costs(test.cache, 0, BUSY, costs), 0);
    for (int k = 0; k < BUSY; k++) {
        CHECK(costs[k] > COMPUTES_MS * UINT64_C(600000)); /* costs are steps of 19 %, and the kernel rounds delays */
        dear += costs[k] > COMPUTES_MS * UINT64_C(1500000);
    }
    CHECK(dear <= BUSY / 2);
    for (int turn = 0; turn < 2; turn++) {
        int long_tasks = 0, long_finishes = 0;
        for (int k = 0; k < BUSY; k++) {
            const uint64_t *of = times_of(&test, first[turn] + (uint64_t)k);
            double worked = 1e-6 * (double)(of[ENDED] - of[BEGAN] - of[DELAYED]), finished = 1e-6 * (double)of[AUGMENT];
            CHECK(worked > 0.9 * computed[turn] && finished > 0.9 * FINISHES_MS);
            long_tasks += worked > 1.5 * computed[turn];
            long_finishes += finished > 1.5 * FINISHES_MS;
        }
        CHECK(long_tasks <= BUSY / 2 && long_finishes <= BUSY / 2);
    }
    if (took < 2 * (computed[0] + computed[1]))
        printf("%.0f ms for work of %.0f ms: this machine was too idle for this test\n", took,
               computed[0] + computed[1]);
    end();
}

TEST(arguments_that_are_wrong)
{
    begin(make_cache(STOC_POLICY_FIRST_COME, SAMPLES, false), 0);
    EQUAL(stoc_work(NULL, 0, back, 1), STOC_EINVAL);
    EQUAL(stoc_work(&worker.work, 1, NULL, 1), STOC_EINVAL);
    EQUAL(stoc_work(&worker.work, 1, back, 0), STOC_EINVAL);
    EQUAL(stoc_work(&worker.work, 1, back, 2), 0);
    worker.work.finish = NULL;
    EQUAL(stoc_work(&worker.work, 1, back, 2), STOC_EINVAL);
    worker.work.finish = finish;
    worker.work.struct_bytes--;
    EQUAL(stoc_work(&worker.work, 1, back, 2), STOC_EINVAL);
    worker.work.struct_bytes += 2;
    EQUAL(stoc_work(&worker.work, 1, back, 2), STOC_EINVAL);
    worker.work.struct_bytes--;
    worker.work.queue = back;
    EQUAL(stoc_work(&worker.work, 1, back, 2), STOC_EINVAL);
    worker.work.queue = test.queue;
    stoc_queue_stop(test.queue);
    EQUAL(stoc_work(&worker.work, 1, back, 2), STOC_ECLOSED);
    stoc_work_end(&worker.work);
    stoc_work_end(NULL);
    end(); /* and again */
}

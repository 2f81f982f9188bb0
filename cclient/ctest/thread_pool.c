/* thread_pool.c - threads that help with a batch: they work correctly, wait for a moment, end, and
 * disturb no other thread. */
#include "check.h"

#define THREADS "/proc/self/task"

enum { ROWS = 16, BYTES = 65536, HELPED = 4 };

/* Threads of a sanitizer, and the program's own. */
static int others;

static bool until_threads(int count)
{
    for (int k = 0; k < 10000 && files_in(THREADS) != count; k++)
        usleep(1000);
    return files_in(THREADS) == count;
}

static stoc_cache *full_cache(void)
{
    stoc_cache *c = make(NULL, OPTIONS(.samples = ROWS, .sample_bytes = BYTES));
    for (int i = 0; i < ROWS; i++)
        EQUAL(put(c, i, BYTES, 1, 0), STOC_STORED);
    return c;
}

/* Gathers a batch in a random order with this many threads. */
static void gather(stoc_cache *c, unsigned threads, uint64_t seed, unsigned char *batch)
{
    int64_t indices[ROWS];
    uint8_t hit[ROWS];
    for (int k = 0; k < ROWS; k++)
        indices[k] = (int64_t)((uint64_t)k * (2 * seed + 1) % ROWS); /* odd: a permutation */
    memset(batch, 0, ROWS * (size_t)BYTES);
    EQUAL(stoc_gather(c, indices, ROWS, -1, batch, BYTES, hit, threads), ROWS);
    for (int k = 0; k < ROWS; k++)
        if (!hit[k] || !filled(batch + (size_t)k * BYTES, BYTES, (uint64_t)indices[k], 1))
            COMPLAIN("row %d of a batch by %u threads is wrong", k, threads);
}

/* If no thread can be made, the caller does all work. This test is the first, because later ones
 * could reuse stacks of threads that ended. */
TEST_IF(!FOR_RACES && !FOR_MEMORY, no_thread_can_be_made) /* sanitizers need address space themselves */
{
    stoc_cache *c = full_cache();
    unsigned char *batch = malloc((size_t)ROWS * BYTES);
    IN_GOOD_CHILD({
        struct rlimit space = {.rlim_cur = 1 << 20, .rlim_max = RLIM_INFINITY}; /* bytes: no space for a stack */
        REQUIRE(setrlimit(RLIMIT_AS, &space) == 0);
        gather(c, HELPED, 3, batch);
        EQUAL(files_in(THREADS), 1);
    });
    free(batch);
    stoc_close(c);
}

static void *nothing(void *context) { return context; }

TEST(helpers_stay_and_leave)
{
    pthread_t first; /* it makes a sanitizer start its own threads */
    REQUIRE(pthread_create(&first, NULL, nothing, NULL) == 0 && pthread_join(first, NULL) == 0);
    usleep(100000);
    others = files_in(THREADS) - 1;
    stoc_cache *c = full_cache();
    unsigned char *batch = malloc((size_t)ROWS * BYTES);
    for (uint64_t round = 0; round < 3; round++) {
        bool stayed = false; /* on a busy machine they may have left before we count them */
        for (int tries = 0; tries < 100 && !stayed; tries++) {
            gather(c, HELPED, round, batch);
            int64_t one = 0;
            EQUAL(stoc_gather(c, &one, 1, -1, batch, BYTES, NULL, HELPED), 1); /* too little work for helpers */
            int64_t all[ROWS] = {0};
            EQUAL(stoc_gather(c, all, ROWS, -1, batch, BYTES, NULL, HELPED), ROWS);
            stayed = files_in(THREADS) == others + HELPED;
        }
        CHECK(stayed);
        CHECK(until_threads(others + 1)); /* without a signal to do so */
    }
    free(batch);
    stoc_close(c);
}

/* Pauses as long as helpers wait, so that some calls come while they end. The number of threads
 * changes too. */
TEST(called_while_they_leave)
{
    stoc_cache *c = full_cache();
    unsigned char *batch = malloc((size_t)ROWS * BYTES);
    for (uint64_t round = 0; round < 50; round++) {
        gather(c, 2 + (unsigned)(round % 3), round, batch);
        usleep((useconds_t)(9000 + round % 40 * 50));
    }
    free(batch);
    stoc_close(c);
}

static atomic_bool stop;

static void *gather_on(void *context)
{
    unsigned char *batch = malloc((size_t)ROWS * BYTES);
    for (uint64_t round = 0; !stop; round++)
        gather(context, 3, round, batch);
    free(batch);
    return NULL;
}

TEST(one_pool_and_many_callers)
{
    stoc_cache *c = full_cache();
    pthread_t callers[3];
    stop = false;
    start_threads(callers, 3, gather_on, c);
    usleep(500000);
    stop = true;
    join_threads(callers, 3);
    EQUAL(stats_of(c).misses, 0);
    stoc_close(c);
    CHECK(until_threads(others + 1));
}

TEST(they_leave_with_the_handle)
{
    unsigned char *batch = malloc((size_t)ROWS * BYTES);
    for (uint64_t round = 0; round < 20; round++) {
        stoc_cache *c = full_cache();
        gather(c, HELPED, round, batch);
        stoc_close(c); /* frees the memory that they wait on */
        CHECK(until_threads(others + 1));
    }
    free(batch);
}

static volatile sig_atomic_t handled;
static void on_signal(int number)
{
    (void)number;
    handled = 1;
}

/* Signal handlers of the program never run in helpers. */
TEST(they_take_no_signals)
{
    struct sigaction action = {.sa_handler = on_signal}, before;
    sigset_t mine, pending;
    stoc_cache *c = full_cache();
    unsigned char *batch = malloc((size_t)ROWS * BYTES);
    sigaction(SIGUSR1, &action, &before);
    sigemptyset(&mine);
    sigaddset(&mine, SIGUSR1);
    for (int k = 0; k < 20; k++) {
        gather(c, HELPED, 1, batch);
        sigprocmask(SIG_BLOCK, &mine, NULL);
        handled = 0;
        kill(getpid(), SIGUSR1);
        usleep(1000);
        CHECK(!handled);
        EQUAL(sigpending(&pending), 0);
        CHECK(sigismember(&pending, SIGUSR1));
        sigprocmask(SIG_UNBLOCK, &mine, NULL);
        CHECK(handled);
    }
    sigaction(SIGUSR1, &before, NULL);
    free(batch);
    stoc_close(c);
}

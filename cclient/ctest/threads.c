/* threads.c - many threads on one handle and on two handles, with all operations at once. Also run
 * under the thread sanitizer. */
#include "check.h"

#include <sched.h>

enum { N = 48, BYTES = 6000, THREADS = 4, ROUNDS = 20000 };

static stoc_cache *handles[2];
static atomic_bool stop;
static atomic_int errors, done[8];
static bool variable, evicts;

static size_t length_for(uint64_t v) { return variable ? (size_t)(v * 977 % BYTES) : BYTES; }

/* Bytes whose first 8 bytes give the version; all others follow from it. */
static void stamp(unsigned char *bytes, size_t n, uint64_t i, uint64_t v)
{
    fill(bytes, n, i, v);
    if (n >= 8)
        memcpy(bytes, &v, 8);
}

static void check_bytes(const unsigned char *bytes, size_t n, uint64_t i)
{
    unsigned char want[BYTES];
    uint64_t v = 0;
    if (n < 8)
        return;
    memcpy(&v, bytes, 8);
    stamp(want, n, i, v);
    if (memcmp(bytes, want, n) != 0) {
        COMPLAIN("sample %d is torn", (int)i);
        atomic_fetch_add(&errors, 1);
    }
}

static int allowed(int result, int line)
{
    if (result < 0) {
        COMPLAIN("line %d: %d", line, result);
        atomic_fetch_add(&errors, 1);
    }
    return result;
}
#define ALLOWED(call) allowed((int)(call), __LINE__)

static void *worker(void *arg)
{
    uint64_t me = (uint64_t)(uintptr_t)arg, x = me * 7919 + 1;
    stoc_cache *c = handles[me % 2];
    unsigned char bytes[BYTES], *batch = malloc(8 * BYTES);
    for (uint64_t turn = 0; !atomic_load(&stop); turn++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        int64_t i = (int64_t)(x % N);
        uint64_t v = x;
        size_t n = length_for(v), length = 0;
        struct stoc_claim k;
        int kind = (int)(x >> 32 & 7);
        switch (kind) {
        case 0: case 1:
            if (ALLOWED(stoc_get(c, i, bytes, BYTES, &length)) == STOC_HIT)
                check_bytes(bytes, length, (uint64_t)i);
            break;
        case 2: case 3:
            stamp(bytes, n, (uint64_t)i, v);
            ALLOWED(stoc_set(c, i, bytes, n, kind == 2 ? STOC_OVERWRITE : 0));
            break;
        case 4:
            stamp(bytes, n, (uint64_t)i, v);
            if (ALLOWED(stoc_claim(c, i, n, 0, &k)) == STOC_STORED) {
                ALLOWED(stoc_write(&k, n / 2, bytes + n / 2, n - n / 2));
                ALLOWED(stoc_write(&k, 0, bytes, n / 2));
                ALLOWED(turn % 3 ? stoc_publish(&k) : stoc_abort(&k));
            }
            break;
        case 5: {
            int64_t indices[8];
            uint8_t hit[8];
            uint64_t lengths[8], offsets[8];
            for (int r = 0; r < 8; r++) {
                indices[r] = (i + r * 5) % N;
                offsets[r] = (uint64_t)r * BYTES;
            }
            if (variable) {
                ALLOWED(stoc_lengths(c, indices, 8, lengths));
                ALLOWED(stoc_gather_packed(c, indices, 8, batch, offsets, lengths, hit, 2));
            } else {
                ALLOWED(stoc_gather(c, indices, 8, -1, batch, BYTES, hit, 2));
            }
            for (int r = 0; r < 8; r++)
                if (hit[r])
                    check_bytes(batch + (size_t)r * BYTES, variable ? lengths[r] : BYTES, (uint64_t)indices[r]);
            break;
        }
        case 6: {
            const void *data;
            if (!evicts)
                ALLOWED(stoc_view(c, i, &data, &length));
            ALLOWED(stoc_state(c, i));
            ALLOWED(stoc_recover(c));
            break;
        }
        case 7: {
            struct stoc_stats stats = {.struct_bytes = sizeof stats};
            if (turn % 16 == 0)
                ALLOWED(stoc_stats(c, &stats));
            if (turn % 64 == 0 && me == 0) {
                int result = stoc_clear(c, 20);
                if (result != STOC_ETIMEOUT)
                    ALLOWED(result);
            }
            ALLOWED(stoc_verify(c, (uint64_t)i, 1, NULL, NULL) == 0 ? 0 : -1);
            break;
        }
        }
        atomic_fetch_add(&done[kind], 1);
    }
    free(batch);
    return NULL;
}

TEST(everything_at_once)
{
    const struct stoc_options kinds[] = {
        OPTIONS(.samples = N, .slots = N / 2, .sample_bytes = BYTES),
        OPTIONS(.samples = N, .variable = 1, .limit_bytes = 8 << 20, .sample_bytes = BYTES),
        OPTIONS(.samples = N, .variable = 1, .limit_bytes = (2 << 20) + (64 << 10), .sample_bytes = BYTES,
                .policy = STOC_POLICY_LRU),
    };
    for (int v = 0; v < 3; v++) {
        variable = kinds[v].variable;
        evicts = kinds[v].policy != STOC_POLICY_FIRST_COME;
        handles[0] = make(NULL, kinds[v]);
        handles[1] = join_fd(handles[0]);
        pthread_t threads[THREADS];
        stop = false;
        errors = 0;
        for (int k = 0; k < 8; k++)
            done[k] = 0;
        for (int k = 0; k < THREADS; k++)
            REQUIRE(pthread_create(&threads[k], NULL, worker, (void *)(uintptr_t)k) == 0);
        usleep(500000);
        /* on a busy machine some operations come late */
        for (int more = 0, k = 0; k < 8 && more < 60000; k += done[k] > 10, more++)
            usleep(done[k] > 10 ? 0 : 1000);
        struct stoc_stats s = stats_of(handles[0]);
        for (int more = 0; more < 60000 && !(s.stored && s.hits && (s.evicted || !evicts)); more++) {
            usleep(1000);
            s = stats_of(handles[0]);
        }
        stop = true;
        join_threads(threads, THREADS);
        EQUAL(errors, 0);
        for (int k = 0; k < 8; k++)
            CHECK(done[k] > 10);
        s = stats_of(handles[0]);
        EQUAL(s.lost, 0);
        EQUAL(s.corrupt, 0);
        EQUAL(s.recovered, 0);
        CHECK(s.stored > 0 && s.hits > 0 && (s.evicted > 0) == evicts);
        printf("  %lu stored, %lu hits, %lu retried, %lu clears\n", s.stored, s.hits, s.retried, s.clears);
        close_quiet(handles[0]);
        stoc_close(handles[1]);
    }
}

/* A sample that never changes: its view stays the same while others change. */
static void *view_for_ever(void *arg)
{
    stoc_cache *c = arg;
    while (!atomic_load(&stop)) {
        const void *data = NULL;
        size_t length = 0;
        if (stoc_view(c, 7, &data, &length) != STOC_HIT || length != BYTES || !filled(data, BYTES, 7, 1))
            atomic_fetch_add(&errors, 1);
    }
    return NULL;
}

TEST(counts_are_exact)
{
    stoc_cache *c = make(NULL, OPTIONS(.samples = N, .sample_bytes = BYTES));
    pthread_t threads[THREADS];
    stop = false;
    errors = 0;
    EQUAL(put(c, 7, BYTES, 1, 0), STOC_STORED);
    start_threads(threads, THREADS, view_for_ever, c);
    uint64_t sets = 0;
    for (int64_t i = 8; i < N; i++, sets++)
        EQUAL(put(c, i, BYTES, 1, 0), STOC_STORED);
    usleep(100000);
    stop = true;
    join_threads(threads, THREADS);
    EQUAL(errors, 0);
    EQUAL(stats_of(c).stored, sets + 1);
    EQUAL(stats_of(c).misses, 0);
    uint64_t before = stats_of(c).hits;
    for (int k = 0; k < 1000; k++)
        EQUAL(holds(c, 7, BYTES, 1), 1);
    EQUAL(stats_of(c).hits, before + 1000);
    stoc_close(c);
}

/* Threads race to store the same samples: each is stored once. */
static void *store_all(void *arg)
{
    stoc_cache *c = handles[(uintptr_t)arg % 2];
    int stored = 0;
    for (int64_t i = 0; i < N; i++)
        stored += put(c, i, BYTES, (uint64_t)(uintptr_t)arg, STOC_WAIT) == STOC_STORED;
    return (void *)(intptr_t)stored;
}

TEST(one_of_many_stores)
{
    handles[0] = make(NULL, OPTIONS(.samples = N, .sample_bytes = BYTES));
    handles[1] = join_fd(handles[0]);
    pthread_t threads[THREADS];
    for (int k = 0; k < THREADS; k++)
        REQUIRE(pthread_create(&threads[k], NULL, store_all, (void *)(uintptr_t)k) == 0);
    EQUAL(join_threads(threads, THREADS), N);
    EQUAL(stats_of(handles[0]).exists, (THREADS - 1) * N); /* threads that waited saw it stored */
    close_quiet(handles[0]);
    stoc_close(handles[1]);
}

static atomic_int arrived;

/* Both threads go on at the same moment. They spin, so that neither must be woken. After a while
 * they yield, for machines with one processor. */
static void meet(int before)
{
    atomic_fetch_add(&arrived, 1);
    for (int spins = 0; atomic_load(&arrived) < before + 2; spins++)
        if (spins > 1000)
            sched_yield();
}

/* Two threads set the only sample of a cache with one place, many times. Returns how often it was
 * stored. */
static void *take_the_last_place(void *arg)
{
    intptr_t stored = 0;
    for (int round = 0; round < ROUNDS; round++) {
        meet(4 * round);
        int result = put(arg, 0, 100, 1, 0);
        if (result == STOC_STORED)
            stored++;
        else if (result != STOC_EXISTS && result != STOC_BUSY && atomic_fetch_add(&errors, 1) == 0)
            COMPLAIN("round %d: %d", round, result);
        meet(4 * round + 2);
        if (arg == handles[0] && stoc_clear(arg, 10000) != STOC_STORED)
            atomic_fetch_add(&errors, 1);
    }
    return (void *)stored;
}

/* A set finds that another set has just taken the last place for the same sample. It returns that,
 * and not FULL. */
TEST(full_means_that_it_does_not_fit)
{
    handles[0] = make(NULL, OPTIONS(.samples = 1, .sample_bytes = 100));
    handles[1] = join_fd(handles[0]);
    errors = arrived = 0;
    pthread_t threads[2];
    for (int k = 0; k < 2; k++)
        REQUIRE(pthread_create(&threads[k], NULL, take_the_last_place, handles[k]) == 0);
    EQUAL(join_threads(threads, 2), ROUNDS);
    EQUAL(errors, 0);
    stoc_close(handles[1]);
    stoc_close(handles[0]);
}

enum { HOT = 3, LARGE = 120 << 10 }; /* large enough that an overwrite happens during a copy */

static void *overwriter(void *arg)
{
    stoc_cache *c = arg;
    unsigned char *bytes = malloc(LARGE);
    for (unsigned v = 0; !atomic_load(&stop); v++) {
        size_t n = variable ? LARGE - v * 977 % 50000 : LARGE;
        memset(bytes, (int)(v & 255), n); /* all bytes of a version are equal */
        ALLOWED(stoc_set(c, v % HOT, bytes, n, STOC_OVERWRITE));
    }
    free(bytes);
    return NULL;
}

TEST(copies_are_never_torn)
{
    const struct stoc_options kinds[] = {
        OPTIONS(.samples = HOT, .sample_bytes = LARGE),
        OPTIONS(.samples = HOT, .variable = 1, .limit_bytes = 64 << 20, .sample_bytes = LARGE),
        OPTIONS(.samples = HOT, .variable = 1, .limit_bytes = (2 << 20) + (320 << 10), .slot_bytes = 8 << 10,
                .sample_bytes = LARGE, .policy = STOC_POLICY_FIFO), /* chains of slots, with room for two samples */
    };
    unsigned char *bytes = malloc(LARGE);
    for (int k = 0; k < 3; k++) {
        pthread_t threads[2];
        variable = kinds[k].variable;
        handles[0] = make(NULL, kinds[k]);
        handles[1] = join_fd(handles[0]);
        stop = false;
        errors = 0;
        for (int w = 0; w < 2; w++)
            REQUIRE(pthread_create(&threads[w], NULL, overwriter, handles[w]) == 0);
        double end = seconds() + 60;
        uint64_t hits = 0;
        for (int64_t turn = 0; !errors && (!hits || stats_of(handles[0]).retried < 3) && seconds() < end; turn++) {
            size_t length = 0; /* one miss may count all 3: on a busy machine the first read did */
            if (ALLOWED(stoc_get(handles[1], turn % HOT, bytes, LARGE, &length)) != STOC_HIT)
                continue;
            hits++;
            if (memcmp(bytes, bytes + 1, length - 1) != 0) {
                COMPLAIN("kind %d: a copy of sample %d is torn", k, (int)(turn % HOT));
                errors++;
            }
        }
        stop = true;
        join_threads(threads, 2);
        EQUAL(errors, 0);
        struct stoc_stats s = stats_of(handles[0]);
        CHECK(hits > 0);
        EQUAL(s.lost, 0);
        EQUAL(s.corrupt, 0);
        printf("  %lu hits, %lu retried, %lu stored\n", hits, s.retried, s.stored);
        close_quiet(handles[0]);
        stoc_close(handles[1]);
    }
    free(bytes);
}

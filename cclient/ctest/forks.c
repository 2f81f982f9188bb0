/* forks.c - clients that fork. Each process is a client of its own: no process completes, keeps
 * alive or takes over the claims of another. */
#include "check.h"

enum { N = 64, BYTES = 20000 };

static stoc_cache *cache_for_forks(void) { return make(NULL, OPTIONS(.samples = N, .sample_bytes = BYTES)); }

static void wait_for(pid_t child, bool killed)
{
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    if (killed ? !WIFSIGNALED(status) : status != 0)
        COMPLAIN("child %d ended with status %#x", (int)child, (unsigned)status);
}

static void tell(int pipe_end)
{
    if (write(pipe_end, "x", 1) != 1)
        _exit(96);
}

static void hear(int pipe_end)
{
    char byte;
    if (read(pipe_end, &byte, 1) != 1)
        COMPLAIN("no process wrote");
}

static atomic_bool stop;
static atomic_int sets, errors;

static void *set_for_ever(void *arg)
{
    stoc_cache *c = arg;
    for (uint64_t v = 0; !atomic_load(&stop); v++) {
        int64_t i = (int64_t)(v * 7 % N);
        int result = put(c, i, BYTES, v, v % 3 ? STOC_OVERWRITE : 0);
        atomic_fetch_add(result < 0 ? &errors : &sets, 1);
        if (v % 16 == 0 && stoc_verify(c, (uint64_t)i, 1, NULL, NULL) != 0)
            atomic_fetch_add(&errors, 1);
    }
    return NULL;
}

TEST(forks_while_threads_set)
{
    stoc_cache *c = cache_for_forks();
    pthread_t threads[3];
    stop = false;
    start_threads(threads, 3, set_for_ever, c);
    for (int k = 0; k < 60; k++) {
        pid_t child = fork();
        if (child == 0) {
            for (int64_t i = 0; i < 20; i++) {
                unsigned char bytes[BYTES];
                size_t length;
                if (stoc_get(c, i, bytes, BYTES, &length) < 0 ||
                    put(c, (i * 13 + k) % N, BYTES, (uint64_t)k, STOC_OVERWRITE) < 0)
                    _exit(1);
            }
            if (k % 3 == 0)
                kill(getpid(), SIGKILL);
            if (k % 3 == 1)
                stoc_close(c);
            _exit(0);
        }
        wait_for(child, k % 3 == 0);
    }
    stop = true;
    join_threads(threads, 3);
    CHECK(atomic_load(&sets) > 100);
    EQUAL(atomic_load(&errors), 0);
    EQUAL(stats_of(c).lost, 0);
    EQUAL(stats_of(c).clients_live, 1);
    stoc_recover(c);
    close_quiet(c);
}

/* The parent dies with an open claim. Its child inherited all descriptors, does nothing and lives.
 * The claim is reclaimed at once. */
TEST(the_parent_dies_first)
{
    stoc_cache *c = cache_for_forks();
    int ready[2], go[2];
    REQUIRE(pipe(ready) == 0 && pipe(go) == 0);
    pid_t parent = fork();
    if (parent == 0) {
        struct stoc_claim k;
        if (stoc_claim(c, 5, BYTES, 0, &k) != STOC_STORED)
            _exit(1);
        if (fork() == 0) {
            tell(ready[1]);
            char byte;
            if (read(go[0], &byte, 1) != 1) /* idle, with all inherited descriptors */
                _exit(1);
            tell(stoc_claim(c, 6, BYTES, 0, &k) == STOC_STORED ? ready[1] : -1);
            pause();
        }
        pause();
    }
    hear(ready[0]);
    EQUAL(put(c, 5, BYTES, 1, 0), STOC_BUSY); /* the parent lives */
    kill(parent, SIGKILL);
    wait_for(parent, true);
    EQUAL(put(c, 5, BYTES, 1, 0), STOC_STORED);
    tell(go[1]);
    hear(ready[0]);
    EQUAL(put(c, 6, BYTES, 1, 0), STOC_BUSY); /* the child is a client of its own, and lives */
    EQUAL(stats_of(c).recovered, 1);
    EQUAL(stats_of(c).clients_live, 2);
    /* The child has no parent now, so read its pid from its record. */
    unsigned char *control = control_of(c);
    pid_t child = 0;
    for (uint64_t r = 1; r < 16; r++)
        if (*word_in(control, STOC_CLIENTS_OFFSET + r * STOC_CLIENT_RECORD_BYTES + STOC_CLIENT_CLAIMS) != 0)
            child = (pid_t)(*word_in(control, STOC_CLIENTS_OFFSET + r * STOC_CLIENT_RECORD_BYTES + STOC_CLIENT_PID) &
                            UINT32_MAX);
    REQUIRE(child > 1);
    kill(child, SIGKILL);
    for (int k = 0; k < 200 && put(c, 6, BYTES, 1, 0) == STOC_BUSY; k++)
        usleep(5000);
    EQUAL(holds(c, 6, BYTES, 1), 1);
    close_quiet(c);
    close(ready[0]), close(ready[1]), close(go[0]), close(go[1]);
}

/* A child starts, counts, sets and ends while its parent has open claims. They stay with the
 * parent. */
TEST(the_child_dies_first)
{
    stoc_cache *c = cache_for_forks(), *other = join_fd(c);
    unsigned char bytes[BYTES];
    struct stoc_claim k, kept;
    fill(bytes, BYTES, 5, 1);
    EQUAL(stoc_claim(c, 5, BYTES, 0, &k), STOC_STORED);
    EQUAL(stoc_write(&k, 0, bytes, BYTES / 2), STOC_STORED);
    kept = k;
    for (int how = 0; how < 3; how++) {
        pid_t child = fork();
        if (child == 0) {
            failures = 0;
            EQUAL(put(c, 5, BYTES, 2, 0), STOC_BUSY); /* the parent lives, whatever the child inherited */
            EQUAL(stoc_recover(c), 0);
            EQUAL(stoc_write(&k, 0, bytes, 1), STOC_ELOST);
            EQUAL(stoc_publish(&k), STOC_ELOST);
            EQUAL(stoc_abort(&k), 0);
            EQUAL(put(c, 10 + how, BYTES, 3, 0), STOC_STORED);
            EQUAL(stoc_clear(c, 10), STOC_ETIMEOUT);
            if (how == 0)
                stoc_close(c);
            if (how == 1)
                kill(getpid(), SIGKILL);
            _exit(failures ? 99 : 0);
        }
        wait_for(child, how == 1);
        CHECK(memcmp(&k, &kept, sizeof k) == 0);
        EQUAL(put(other, 5, BYTES, 2, 0), STOC_BUSY);
        EQUAL(stoc_recover(other), 0);
    }
    EQUAL(stoc_write(&k, BYTES / 2, bytes + BYTES / 2, BYTES - BYTES / 2), STOC_STORED);
    EQUAL(stoc_publish(&k), STOC_STORED);
    EQUAL(holds(other, 5, BYTES, 1), 1);
    for (int how = 0; how < 3; how++)
        EQUAL(holds(c, 10 + how, BYTES, 3), 1);
    EQUAL(stats_of(c).lost, 0);
    close_quiet(c);
    stoc_close(other);
}

/* A program that a client starts by fork and exec does not keep the client alive. */
TEST(an_executed_program_keeps_no_client_alive)
{
    stoc_cache *c = cache_for_forks();
    int ready[2];
    REQUIRE(pipe(ready) == 0);
    pid_t parent = fork();
    if (parent == 0) {
        struct stoc_claim k;
        stoc_claim(c, 5, BYTES, 0, &k);
        pid_t child = fork();
        if (child == 0) {
            execlp("sleep", "sleep", "2", (char *)NULL);
            _exit(1);
        }
        char path[64], name[64] = "";
        snprintf(path, sizeof path, "/proc/%d/comm", (int)child);
        for (int k2 = 0; k2 < 1000 && strncmp(name, "sleep", 5) != 0; k2++) {
            FILE *f = fopen(path, "r");
            if (f) {
                if (!fgets(name, sizeof name, f))
                    name[0] = 0;
                fclose(f);
            }
            usleep(1000);
        }
        tell(ready[1]);
        pause();
    }
    hear(ready[0]);
    kill(parent, SIGKILL);
    wait_for(parent, true);
    EQUAL(put(c, 5, BYTES, 1, 0), STOC_STORED);
    stoc_close(c);
    close(ready[0]), close(ready[1]);
}

/* Many children use the cache and end without closing it. The table of 16 records never fills, and
 * every sample is stored once. */
TEST(many_children)
{
    stoc_cache *c = cache_for_forks();
    for (int round = 0; round < 20; round++) {
        pid_t children[12];
        EQUAL(stoc_clear(c, 1000), 0);
        for (int k = 0; k < 12; k++) {
            if ((children[k] = fork()) == 0) {
                int result = 0;
                for (int i = 0; i < N && result >= 0; i++)
                    result = put(c, (i + k * 5) % N, BYTES, (uint64_t)round, 0); /* the first child stores it */
                _exit(result < 0);
            }
        }
        for (int k = 0; k < 12; k++)
            wait_for(children[k], false);
        for (int i = 0; i < N; i++)
            EQUAL(holds(c, i, BYTES, (uint64_t)round), 1);
    }
    struct stoc_stats s = stats_of(c);
    EQUAL(s.stored, 20 * N);
    EQUAL(s.lost, 0);
    EQUAL(s.exists + s.busy, 20 * 11 * N);
    CHECK(s.clients_live + s.clients_ended <= 13);
    close_quiet(c);
}

static void *one_get(void *c)
{
    holds(c, 1, BYTES, 1);
    return put(c, 40, BYTES, 1, 0) < 0 ? c : NULL;
}

/* Several threads of a child make its first counted calls at once: it becomes one client. A child
 * of that child is another client. */
TEST(children_register_once)
{
    stoc_cache *c = cache_for_forks();
    for (int round = 0; round < 10; round++) {
        IN_GOOD_CHILD({
            pthread_t threads[8];
            start_threads(threads, 8, one_get, c);
            EQUAL(join_threads(threads, 8), 0);
            EQUAL(stats_of(c).clients_live, 2);
            int inner = IN_CHILD(holds(c, 1, BYTES, 1); EQUAL(stats_of(c).clients_live, 3);
                                 int third = IN_CHILD(holds(c, 1, BYTES, 1); EQUAL(stats_of(c).clients_live, 4));
                                 EQUAL(third, 0));
            EQUAL(inner, 0);
        });
    }
    struct stoc_stats s = stats_of(c);
    EQUAL(s.clients_live, 1);
    EQUAL(s.clients_ended, 3);
    EQUAL(s.misses, 10 * (8 + 2));
    stoc_close(c);
}

/* No record is left for a child: it reads without counting, and a set returns an error. */
TEST(a_full_table_only_stops_sets)
{
    stoc_cache *c = make(NULL, OPTIONS(.samples = N, .sample_bytes = BYTES)), *others[15];
    EQUAL(put(c, 1, BYTES, 1, 0), STOC_STORED);
    for (int k = 0; k < 15; k++)
        others[k] = join_fd(c);
    uint64_t hits = stats_of(c).hits;
    IN_GOOD_CHILD({
        EQUAL(holds(c, 1, BYTES, 1), 1);
        EQUAL(put(c, 2, BYTES, 1, 0), STOC_ECLIENTS);
        EQUAL(holds(c, 1, BYTES, 1), 1);
    });
    EQUAL(stats_of(c).hits, hits);
    stoc_close(others[3]);
    IN_GOOD_CHILD(EQUAL(put(c, 2, BYTES, 1, 0), STOC_STORED));
    for (int k = 0; k < 15; k++)
        if (k != 3)
            stoc_close(others[k]);
    close_quiet(c);
}

TEST(read_only_children)
{
    stoc_cache *c = make("read-only", OPTIONS(.samples = N, .sample_bytes = BYTES)), *r;
    EQUAL(put(c, 1, BYTES, 1, 0), STOC_STORED);
    REQUIRE(stoc_open(path_in_scratch("read-only"), STOC_OPEN_READ_ONLY, NULL, &r, &error) == 0);
    IN_GOOD_CHILD(EQUAL(holds(r, 1, BYTES, 1), 1); EQUAL(put(r, 2, BYTES, 1, 0), STOC_EREADONLY));
    EQUAL(stats_of(c).clients_live, 1);
    stoc_close(r);
    stoc_close(c);
}

/* With unlink_last the last process removes the file, even a child that never counted. */
TEST(the_last_child_unlinks)
{
    stoc_cache *c = make("last", OPTIONS(.samples = N, .sample_bytes = BYTES, .unlink_last = 1));
    int go[2];
    REQUIRE(pipe(go) == 0);
    pid_t child = fork();
    if (child == 0) {
        holds(c, 1, BYTES, 1);
        tell(go[1]);
        char byte;
        while (access(path_in_scratch("told"), F_OK) != 0)
            usleep(1000);
        (void)byte;
        stoc_close(c);
        _exit(0);
    }
    hear(go[0]);
    stoc_close(c);
    EQUAL(access(path_in_scratch("last"), F_OK), 0); /* the child uses it */
    close(open(path_in_scratch("told"), O_CREAT | O_WRONLY, 0600));
    wait_for(child, false);
    EQUAL(access(path_in_scratch("last"), F_OK), -1);
    close(go[0]), close(go[1]);
}

/* Other threads open and close handles while we fork: each child closes every lock description that
 * it inherits. */
static void *open_and_close(void *arg)
{
    while (!atomic_load(&stop)) {
        stoc_cache *other;
        struct stoc_info info = {.struct_bytes = sizeof info};
        if (stoc_info(arg, &info) != 0 || stoc_open_fd(info.fd, 0, NULL, &other, NULL) != 0)
            atomic_fetch_add(&errors, 1);
        else
            stoc_close(other);
    }
    return NULL;
}

TEST(forks_while_others_open)
{
    stoc_cache *c = cache_for_forks();
    pthread_t thread;
    pid_t children[40];
    stop = false;
    errors = 0;
    int ready[2];
    REQUIRE(pipe(ready) == 0);
    REQUIRE(pthread_create(&thread, NULL, open_and_close, c) == 0);
    for (int k = 0; k < 40; k++) {
        usleep(500);
        if ((children[k] = fork()) == 0) {
            tell(ready[1]); /* the child handler has run */
            pause();
            _exit(0);
        }
    }
    stop = true;
    pthread_join(thread, NULL);
    for (int k = 0; k < 40; k++)
        hear(ready[0]);
    EQUAL(atomic_load(&errors), 0);
    EQUAL(stats_of(c).clients_live, 1); /* 40 children live and hold no lock */
    for (int k = 0; k < 40; k++) {
        kill(children[k], SIGKILL);
        wait_for(children[k], true);
    }
    stoc_close(c);
    close(ready[0]), close(ready[1]);
}

static atomic_bool enough;

static void *gather_on(void *context)
{
    enum { ROWS = 16, BYTES = 65536 };
    int64_t indices[ROWS];
    unsigned char *batch = malloc((size_t)ROWS * BYTES);
    for (int k = 0; k < ROWS; k++)
        indices[k] = ROWS - 1 - k;
    do {
        EQUAL(stoc_gather(context, indices, ROWS, -1, batch, BYTES, NULL, 3), ROWS);
        for (int k = 0; k < ROWS; k++)
            if (!filled(batch + (size_t)k * BYTES, BYTES, (uint64_t)indices[k], 1))
                COMPLAIN("row %d is wrong", k);
    } while (!enough);
    free(batch);
    return NULL;
}

/* Number of threads of this process that sleep, without those that end. */
static int sleeping_threads(void)
{
    int count = 0;
    DIR *d = opendir("/proc/self/task");
    REQUIRE(d != NULL);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char path[300], text[200] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/stat", e->d_name);
        FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (!f)
            continue;
        const char *name_ends = fgets(text, sizeof text, f) ? strrchr(text, ')') : NULL;
        count += name_ends && name_ends[2] == 'S';
        fclose(f);
    }
    closedir(d);
    return count;
}

#ifdef __SANITIZE_ADDRESS__
#define THREADS_OF_A_CHILD 1 /* the sanitizer keeps locks that a new thread needs, if the parent was making a thread */
#else
#define THREADS_OF_A_CHILD 3
#endif

/* Helpers of a batch that wait end before a fork, and a child has its own. */
TEST(forks_after_batches)
{
    enum { ROWS = 16, BYTES = 65536 };
    stoc_cache *c = make(NULL, OPTIONS(.samples = ROWS, .sample_bytes = BYTES));
    for (int i = 0; i < ROWS; i++)
        EQUAL(put(c, i, BYTES, 1, 0), STOC_STORED);
    enough = true;
    for (int k = 0; k < 50; k++) {
        gather_on(c);
        int status;
        pid_t child = fork();
        if (child == 0) {
            failures = 0;
            alarm(HANGS);
            gather_on(c);
            stoc_close(c);
            _exit(failures ? 99 : 0);
        }
        EQUAL(sleeping_threads(), 0); /* Python warns of forks with threads, and has no reason to here */
        REQUIRE(waitpid(child, &status, 0) == child);
        EQUAL(status, 0);
    }
    /* Helpers that work for another thread do not end, and the child does not wait for them. */
    pthread_t other;
    enough = false;
    REQUIRE(pthread_create(&other, NULL, gather_on, c) == 0);
    for (int k = 0; k < 50; k++) {
        IN_GOOD_CHILD({
            alarm(HANGS);
            enough = true;
            int64_t one[ROWS] = {0};
            static unsigned char batch[ROWS * BYTES]; /* no malloc: the other thread may have held its lock */
            EQUAL(stoc_gather(c, one, ROWS, -1, batch, BYTES, NULL, THREADS_OF_A_CHILD), ROWS);
            EQUAL(stoc_gather(c, one, ROWS, -1, batch, BYTES, NULL, THREADS_OF_A_CHILD), ROWS);
        });
    }
    enough = true;
    pthread_join(other, NULL);
    stoc_close(c);
}

/*
 * faults.c - a client is killed at every step of the protocol, and another goes on at once. Also
 * steps of two clients in a chosen order. Linked with the library that has fault points.
 */
#include "check.h"

void stoc_fault_set_hook(void (*hook)(const char *point));

enum kind { FIRST_COME, FIRST_INDICES, ARENA, KINDS };
enum { SAMPLES = 8, SLOTS = 4, BYTES = 5000, GROWN = 7000 };

static const char *const kind_names[] = {"first-come", "first-indices", "arena"};

static stoc_cache *cache_of(enum kind kind)
{
    struct stoc_options o = OPTIONS(.samples = SAMPLES);
    if (kind == ARENA) {
        o.variable = 1;
        o.sample_bytes = 10000;
        o.limit_bytes = (2 << 20) + (64 << 10);
    } else {
        o.sample_bytes = BYTES;
        o.slots = SLOTS;
        o.policy = kind == FIRST_COME ? STOC_POLICY_FIRST_COME : STOC_POLICY_FIRST_INDICES;
    }
    stoc_cache *c = make(NULL, o);
    EQUAL(put(c, 0, BYTES, 1, 0), STOC_STORED);
    EQUAL(put(c, 1, BYTES, 1, 0), STOC_STORED);
    return c;
}

enum operation { SET, OVERWRITE, GROW, ABORT, ABORT_OVERWRITE, PIECES, CLEAR, OPERATIONS };
static const char *const operation_names[] = {"set",    "overwrite", "grow", "abort", "abort an overwrite",
                                              "pieces", "clear"};

static const char *const points_of[OPERATIONS][24] = {
    [SET] = {"register.locked", "register.done", "claim.entry", "claim.phase", "claim.word", "slot.intent",
             "slot.taken", "slot.named", "extent.intent", "extent.taken", "extent.named", "write.half", "write.done",
             "publish.meta", "publish.word", "publish.entry"},
    [OVERWRITE] = {"claim.entry", "claim.phase", "claim.word", "write.half", "write.done", "publish.meta",
                   "publish.word", "publish.entry"},
    [GROW] = {"claim.entry", "claim.phase", "claim.word", "extent.intent", "extent.taken", "extent.named", "write.half",
              "write.done", "publish.meta", "publish.word", "publish.entry"},
    [ABORT] = {"claim.word", "slot.named", "extent.named", "abort.slot", "abort.cursor", "abort.word", "abort.entry"},
    [ABORT_OVERWRITE] = {"claim.word", "abort.slot", "abort.cursor", "abort.word", "abort.entry"},
    [PIECES] = {"claim.word", "write.half", "write.done", "publish.meta", "publish.word", "publish.entry"},
    [CLEAR] = {"clear.phase", "clear.drained", "clear.index", "clear.cursors", "clear.open"},
};

/* Whether a kind of cache passes the point. */
static bool passes(enum kind kind, enum operation operation, const char *point)
{
    if (operation == GROW && kind != ARENA)
        return false;
    if (strncmp(point, "slot.", 5) == 0 || strcmp(point, "abort.slot") == 0 || strcmp(point, "abort.cursor") == 0)
        return kind == FIRST_COME;
    if (strncmp(point, "extent.", 7) == 0)
        return kind == ARENA;
    return true;
}

static int64_t target_of(enum operation operation)
{
    return operation == OVERWRITE || operation == GROW || operation == ABORT_OVERWRITE ? 1 : 2;
}
static size_t length_of(enum operation operation) { return operation == GROW ? GROWN : BYTES; }

static void perform(stoc_cache *c, enum operation operation)
{
    unsigned char bytes[BYTES];
    struct stoc_claim k;
    switch (operation) {
    case SET: put(c, 2, BYTES, 7, 0); break;
    case OVERWRITE: put(c, 1, BYTES, 7, STOC_OVERWRITE); break;
    case GROW: put(c, 1, GROWN, 7, STOC_OVERWRITE); break;
    case ABORT:
        stoc_claim(c, 2, BYTES, 0, &k);
        stoc_abort(&k);
        break;
    case ABORT_OVERWRITE:
        stoc_claim(c, 1, BYTES, STOC_OVERWRITE, &k);
        stoc_abort(&k);
        break;
    case PIECES:
        fill(bytes, BYTES, 2, 7);
        stoc_claim(c, 2, BYTES, 0, &k);
        stoc_write(&k, 0, bytes, BYTES / 2);
        stoc_write(&k, BYTES / 2, bytes + BYTES / 2, BYTES - BYTES / 2);
        stoc_publish(&k);
        break;
    case CLEAR: stoc_clear(c, 1000); break;
    case OPERATIONS: break;
    }
}

/* Runs an operation in a child that dies at a point. The test fails if the child never reaches
 * it. */
static void die_at(stoc_cache *c, enum kind kind, enum operation operation, const char *point)
{
    char order[64];
    snprintf(order, sizeof order, "%s=kill", point);
    int status = IN_CHILD(setenv("STOCACHED_FAULT", order, 1); perform(c, operation));
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        COMPLAIN("%s, %s: no process died at %s (status %#x)", kind_names[kind], operation_names[operation], point,
                 (unsigned)status);
}

/* No space is lost: the cache stores as many samples as it has capacity for. */
static void fill_up(stoc_cache *c, enum kind kind, const char *what)
{
    int ready = 0;
    for (int i = 0; i < SAMPLES; i++) {
        int result = put(c, i, BYTES, 3, 0);
        ready += result == STOC_STORED || result == STOC_EXISTS;
    }
    int want = kind == ARENA ? SAMPLES : SLOTS;
    if (ready != want)
        COMPLAIN("%s, %s: %d samples fit, not %d", kind_names[kind], what, ready, want);
    check_quiet(c);
}

/* by_new 0: an old client goes on. 1: a new client does, which gets the dead one's number. */
TEST(killed_at_every_step)
{
    int deaths = 0;
    for (enum kind kind = 0; kind < KINDS; kind++)
        for (enum operation operation = 0; operation < CLEAR; operation++)
            for (const char *const *point = points_of[operation]; *point; point++)
                for (int by_new = 0; by_new < 2; by_new++) {
                    if (!passes(kind, operation, *point))
                        continue;
                    char what[100];
                    snprintf(what, sizeof what, "%s killed at %s, then a%s client", operation_names[operation], *point,
                             by_new ? " new" : "n old");
                    int before = failures;
                    stoc_cache *c = cache_of(kind);
                    die_at(c, kind, operation, *point);
                    deaths++;
                    stoc_cache *next = by_new ? join_fd(c) : c;
                    int64_t target = target_of(operation);
                    size_t length = length_of(operation);
                    bool published = strcmp(*point, "publish.word") == 0 || strcmp(*point, "publish.entry") == 0;
                    bool untouched = target == 1 &&
                                     (strcmp(*point, "claim.entry") == 0 || strcmp(*point, "claim.phase") == 0);
                    /* at once, never BUSY */
                    EQUAL(put(next, target, length, 9, 0), published || untouched ? STOC_EXISTS : STOC_STORED);
                    EQUAL(holds(next, target, untouched ? BYTES : length, published ? 7 : untouched ? 1 : 9), 1);
                    EQUAL(holds(next, 0, BYTES, 1), 1); /* other samples are unchanged */
                    EQUAL(holds(next, 1, target == 1 && !untouched ? length : BYTES,
                                target == 1 ? (published   ? 7
                                               : untouched ? 1
                                                           : 9)
                                            : 1),
                          1);
                    stoc_recover(next);
                    check_quiet(next);
                    fill_up(next, kind, what);
                    if (next != c)
                        stoc_close(next);
                    stoc_close(c);
                    if (failures > before)
                        printf("  in: %s, %s\n", kind_names[kind], what);
                }
    printf("  %d deaths\n", deaths);
}

TEST(killed_while_clearing)
{
    for (enum kind kind = 0; kind < KINDS; kind++)
        for (const char *const *point = points_of[CLEAR]; *point; point++)
            for (int by_new = 0; by_new < 3; by_new++) {
                stoc_cache *c = cache_of(kind);
                for (int i = 3; i < SAMPLES; i++) /* full: a set must still read the phase */
                    put(c, i, kind == ARENA ? 10000 : BYTES, 1, 0);
                if (kind == ARENA)
                    /* drops an extent, and takes the rest of the arena */
                    EQUAL(put(c, 1, 5100, 1, STOC_OVERWRITE), STOC_STORED);
                if (kind != FIRST_INDICES)
                    EQUAL(put(c, 2, BYTES, 1, 0), STOC_FULL);
                die_at(c, kind, CLEAR, *point);
                stoc_cache *next = by_new ? join_fd(c) : c;
                if (by_new == 2) { /* a second clear instead of a set */
                    EQUAL(stoc_clear(next, 1000), 0);
                    EQUAL(stats_of(next).clears, 2);
                }
                EQUAL(put(next, 2, BYTES, 9, 0), STOC_STORED);
                EQUAL(stoc_state(next, 0), STOC_STATE_EMPTY); /* either client finished the clear */
                EQUAL(stoc_state(next, 1), STOC_STATE_EMPTY);
                EQUAL(stats_of(next).ready, 1);
                check_quiet(next);
                fill_up(next, kind, *point);
                if (next != c)
                    stoc_close(next);
                stoc_close(c);
            }
}

/* Client A dies in the middle of a fill. Client B, which was attached before, dies while it
 * reclaims. Then all others go on. */
TEST(killed_while_taking_back)
{
    static const char *const points[] = {"reclaim.slot", "reclaim.cursor", "reclaim.word", "reclaim.entry"};
    static const char *const deaths[] = {"slot.taken",   "slot.named", "extent.taken",
                                         "extent.named", "write.half", "claim.word"};
    for (enum kind kind = 0; kind < KINDS; kind++)
        for (size_t p = 0; p < 4; p++)
            for (size_t d = 0; d < 6; d++)
                for (int by_new = 0; by_new < 2; by_new++) {
                    if (!passes(kind, SET, deaths[d]) ||
                        (p < 2 && (kind != FIRST_COME || strcmp(deaths[d], "claim.word") == 0)))
                        continue;
                    stoc_cache *c = cache_of(kind);
                    int start[2], go[2];
                    char order[64], byte = 0;
                    REQUIRE(pipe(start) == 0 && pipe(go) == 0);
                    snprintf(order, sizeof order, "%s=kill", points[p]);
                    pid_t b = fork();
                    if (b == 0) {
                        holds(c, 0, BYTES, 1); /* counted, so B is a client now */
                        if (write(start[1], "b", 1) != 1 || read(go[0], &byte, 1) != 1)
                            _exit(98);
                        setenv("STOCACHED_FAULT", order, 1);
                        put(c, 2, BYTES, 8, 0);
                        _exit(0);
                    }
                    REQUIRE(read(start[0], &byte, 1) == 1);
                    die_at(c, kind, SET, deaths[d]);
                    EQUAL(write(go[1], "g", 1), 1);
                    int status;
                    REQUIRE(waitpid(b, &status, 0) == b);
                    if (!WIFSIGNALED(status))
                        COMPLAIN("%s: B did not die at %s after %s (status %#x)", kind_names[kind], points[p],
                                 deaths[d], (unsigned)status);
                    stoc_cache *next = by_new ? join_fd(c) : c;
                    EQUAL(put(next, 2, BYTES, 9, 0), STOC_STORED);
                    EQUAL(holds(next, 2, BYTES, 9), 1);
                    EQUAL(holds(next, 0, BYTES, 1), 1);
                    stoc_recover(next);
                    check_quiet(next);
                    fill_up(next, kind, points[p]);
                    if (next != c)
                        stoc_close(next);
                    stoc_close(c);
                    close(start[0]), close(start[1]), close(go[0]), close(go[1]);
                }
}

/* A stopped writer is alive. No client takes its sample, all others go on, and it publishes
 * later. */
TEST(a_stopped_writer_keeps_its_claim)
{
    for (enum kind kind = 0; kind < KINDS; kind++) {
        stoc_cache *c = cache_of(kind), *other = join_fd(c);
        pid_t child = fork();
        if (child == 0) {
            setenv("STOCACHED_FAULT", "write.half=stop", 1);
            _exit(put(c, 2, BYTES, 7, 0) == STOC_STORED ? 0 : 1);
        }
        int status;
        REQUIRE(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
        EQUAL(put(c, 2, BYTES, 8, 0), STOC_BUSY);
        EQUAL(put(other, 2, BYTES, 8, STOC_OVERWRITE), STOC_BUSY);
        EQUAL(stoc_recover(c), 0);
        EQUAL(stoc_clear(c, 30), STOC_ETIMEOUT);
        EQUAL(stoc_state(c, 2), STOC_STATE_WRITING);
        EQUAL(holds(c, 2, BYTES, 7), 0);
        EQUAL(put(c, 3, BYTES, 1, 0), STOC_STORED);
        stoc_cache *late = join_fd(c); /* registering takes nothing from it either */
        stoc_close(late);
        EQUAL(stoc_state(c, 2), STOC_STATE_WRITING);
        kill(child, SIGCONT);
        REQUIRE(waitpid(child, &status, 0) == child);
        EQUAL(status, 0);
        EQUAL(holds(other, 2, BYTES, 7), 1);
        EQUAL(holds(other, 0, BYTES, 1), 1);
        close_quiet(c);
        stoc_close(other);
    }
}

/* A stopped clearer is alive: no client takes its phase over. */
TEST(a_stopped_clearer_is_not_replaced)
{
    stoc_cache *c = cache_of(FIRST_COME);
    pid_t child = fork();
    if (child == 0) {
        setenv("STOCACHED_FAULT", "clear.index=stop", 1);
        _exit(stoc_clear(c, 1000) == 0 ? 0 : 1);
    }
    int status;
    REQUIRE(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
    EQUAL(put(c, 3, BYTES, 1, 0), STOC_BUSY);
    EQUAL(stoc_clear(c, 10), STOC_BUSY);
    EQUAL(holds(c, 0, BYTES, 1), 0); /* this sample is cleared already, the next one is not */
    EQUAL(holds(c, 1, BYTES, 1), 1);
    kill(child, SIGKILL);
    REQUIRE(waitpid(child, &status, 0) == child);
    EQUAL(put(c, 3, BYTES, 1, 0), STOC_STORED);
    EQUAL(stats_of(c).ready, 1);
    EQUAL(stats_of(c).clears, 1);
    close_quiet(c);
}

/* ------------------------------------------------------------ steps by hook: internal/verify/model replays others */

/* Two threads of one client list the same sample, and the thread that fails to claim it listed it
 * first. Then the client dies. The slot that was taken, but not yet named, is found. */
static atomic_int listed;
static _Thread_local int role;

static void list_then_die(const char *point)
{
    if (role == 1 && strcmp(point, "claim.entry") == 0) {
        atomic_store(&listed, 1);
        for (;;)
            pause();
    }
    if (role == 2 && (strcmp(point, "slot.taken") == 0 || strcmp(point, "extent.taken") == 0))
        kill(getpid(), SIGKILL);
}

static void *list_only(void *c)
{
    role = 1;
    put(c, 2, BYTES, 6, 0);
    return NULL;
}

TEST(two_threads_list_one_sample)
{
    for (enum kind kind = 0; kind < KINDS; kind++) {
        if (kind == FIRST_INDICES)
            continue;
        stoc_cache *c = cache_of(kind);
        int status = IN_CHILD({
            pthread_t thread;
            stoc_fault_set_hook(list_then_die);
            if (pthread_create(&thread, NULL, list_only, c) != 0)
                _exit(97);
            while (!atomic_load(&listed))
                usleep(100);
            role = 2;
            put(c, 2, BYTES, 7, 0);
        });
        CHECK(WIFSIGNALED(status));
        EQUAL(stoc_recover(c), 1);
        check_quiet(c);
        if (kind == ARENA)
            EQUAL(stats_of(c).arena_lost_bytes, 0); /* the extent still belongs to the sample */
        fill_up(c, kind, "two threads listed one sample");
        stoc_close(c);
    }
}

/* Many threads of one client allocate when it dies: no two samples share an extent. */
static void *set_one(void *arg)
{
    stoc_cache *c = arg;
    static atomic_int next = 2;
    put(c, atomic_fetch_add(&next, 1), 2000, 7, 0);
    return NULL;
}

TEST(threads_allocate_when_they_die)
{
    for (int pass = 1; pass <= 5; pass++)
        for (int point = 0; point < 3; point++) {
            static const char *const points[] = {"extent.intent", "extent.taken", "extent.named"};
            stoc_cache *c = cache_of(ARENA);
            char order[64];
            snprintf(order, sizeof order, "%s@%d=kill", points[point], pass);
            int status = IN_CHILD({
                pthread_t threads[6];
                setenv("STOCACHED_FAULT", order, 1);
                start_threads(threads, 6, set_one, c);
                join_threads(threads, 6);
            });
            CHECK(WIFSIGNALED(status));
            stoc_recover(c);
            check_quiet(c);
            EQUAL(holds(c, 0, BYTES, 1), 1);
            fill_up(c, ARENA, points[point]);
            stoc_close(c);
        }
}

/* One thread of a client stops at a point of its fill. Another fills a second sample as far as it
 * can. Then the client dies. Each intent is found for its own sample. */
static const char *stands_at;

static void stand_still(const char *point)
{
    if (role == 1 && strcmp(point, stands_at) == 0) {
        atomic_store(&listed, 1);
        for (;;)
            pause();
    }
    if (role == 2 && strcmp(point, "extent.taken") == 0 && strcmp(stands_at, "claim.word") == 0)
        kill(getpid(), SIGKILL);
}

static void *set_third(void *c)
{
    role = 2;
    put(c, 3, BYTES, 7, 0);
    atomic_store(&listed, 2);
    return NULL;
}

TEST(intents_are_not_mixed_up)
{
    static const char *const points[] = {"extent.intent", "claim.word"};
    for (int p = 0; p < 2; p++) {
        stoc_cache *c = cache_of(ARENA);
        int status = IN_CHILD({
            pthread_t one, two;
            stands_at = points[p];
            stoc_fault_set_hook(stand_still);
            if (pthread_create(&one, NULL, list_only, c) != 0)
                _exit(97);
            while (!atomic_load(&listed))
                usleep(100);
            if (pthread_create(&two, NULL, set_third, c) != 0)
                _exit(97);
            for (int k = 0; k < 100 && atomic_load(&listed) != 2; k++)
                usleep(1000); /* it waits for the first thread, which never goes on */
            kill(getpid(), SIGKILL);
        });
        CHECK(WIFSIGNALED(status));
        EQUAL(stoc_recover(c), 2);
        check_quiet(c);
        EQUAL(holds(c, 0, BYTES, 1), 1);
        fill_up(c, ARENA, points[p]);
        stoc_close(c);
    }
}

/* A new client gets the number of a dead client that was clearing. It finishes the clear, and the
 * phase does not name it for ever. */
TEST(a_dead_clearers_number_is_reused)
{
    stoc_cache *c = cache_of(FIRST_COME);
    unsigned char *control = control_of(c);
    die_at(c, FIRST_COME, CLEAR, "clear.index");
    EQUAL(*word_in(control, STOC_PHASE_OFFSET), 1 | 2 << 3);
    stoc_cache *next = join_fd(c);
    EQUAL(*word_in(control, STOC_PHASE_OFFSET), UINT64_C(1) << 15); /* OPEN(1) */
    EQUAL(stats_of(next).ready, 0);
    stoc_close(next);

    /* With a live claim in the way, the clear has no owner until a client claims. */
    struct stoc_claim k;
    EQUAL(stoc_claim(c, 3, BYTES, 0, &k), STOC_STORED);
    *word_in(control, STOC_PHASE_OFFSET) = 1 | 2 << 3 | UINT64_C(1) << 15; /* as if client 2 had died while clearing */
    next = join_fd(c);
    EQUAL(*word_in(control, STOC_PHASE_OFFSET), 1 | UINT64_C(1) << 15); /* CLEARING(1) by owner 0 */
    EQUAL(put(next, 4, BYTES, 1, 0), STOC_BUSY);
    EQUAL(stoc_publish(&k), STOC_STORED);
    EQUAL(put(next, 4, BYTES, 1, 0), STOC_STORED);
    EQUAL(stats_of(next).ready, 1); /* the clear is finished: sample 3 is gone */
    EQUAL(stats_of(next).clears, 2);
    close_quiet(next);
    stoc_close(c);
}

/* A view during an overwrite shows one version or the other. Place and length belong together,
 * although they are in two words. */
static stoc_cache *overwriter;
static size_t overwrite_bytes;

static void overwrite_once(const char *point)
{
    stoc_cache *by = overwriter;
    if (by && strcmp(point, "find.word") == 0) {
        overwriter = NULL;
        EQUAL(put(by, 1, overwrite_bytes, 2, STOC_OVERWRITE), STOC_STORED);
    }
}

TEST(a_view_across_an_overwrite)
{
    static const size_t sizes[] = {BYTES, 100}; /* a longer one elsewhere, a shorter one in its place */
    for (int k = 0; k < 2; k++) {
        stoc_cache *c = make(NULL, OPTIONS(.samples = 4, .variable = 1, .limit_bytes = 8 << 20)), *other = join_fd(c);
        EQUAL(put(c, 1, 200, 1, 0), STOC_STORED);
        EQUAL(put(c, 2, BYTES, 1, 0), STOC_STORED);
        const void *data = NULL;
        size_t length = 0;
        overwriter = other, overwrite_bytes = sizes[k];
        stoc_fault_set_hook(overwrite_once);
        EQUAL(stoc_view(c, 1, &data, &length), STOC_HIT);
        stoc_fault_set_hook(NULL);
        CHECK(!overwriter);
        EQUAL(length, sizes[k]);
        CHECK(data && filled(data, sizes[k], 1, 2));
        stoc_close(other);
        stoc_close(c);
    }
}

/* Between the two loads of a claim the word returns to its old value, but with another length. That
 * happens after exactly one wrap of the generation with a clear in it; this test forces it. The
 * claim is aborted. */
static unsigned char *forced;

static void force_meta(const char *point)
{
    if (forced && strcmp(point, "claim.entry") == 0) {
        _Atomic uint64_t *meta = index_in(forced, 1) + 1;
        /* another sample has the space after its two units by now */
        *meta = (*meta & ~UINT64_C(0xffffffff)) + (UINT64_C(1) << 32) + 100;
        munmap(forced, 4096);
        forced = NULL;
    }
}

TEST(an_extent_kept_for_another_length)
{
    stoc_cache *c = cache_of(ARENA);
    forced = control_of(c);
    stoc_fault_set_hook(force_meta);
    EQUAL(put(c, 1, BYTES, 2, STOC_OVERWRITE), STOC_BUSY);
    stoc_fault_set_hook(NULL);
    CHECK(!forced);
    EQUAL(holds(c, 1, BYTES, 2), 0);
    EQUAL(put(c, 1, 100, 2, 0), STOC_STORED);
    EQUAL(holds(c, 1, 100, 2), 1);
    EQUAL(holds(c, 0, BYTES, 1), 1);
    close_quiet(c);
}

/* A child does one thing to an arena that evicts, and dies at a point. */
static void die_in_a_chain(stoc_cache *c, const char *what, const char *point)
{
    char order[64];
    snprintf(order, sizeof order, "%s=kill", point);
    int status = IN_CHILD({
        setenv("STOCACHED_FAULT", order, 1);
        if (strcmp(what, "set") == 0)
            put(c, 7, 1900, 7, 0); /* eight slots: evicts two samples */
        else if (strcmp(what, "clear") == 0)
            stoc_clear(c, 1000);
        else
            stoc_recover(c);
    });
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        COMPLAIN("%s: no process died at %s (status %#x)", what, point, (unsigned)status);
}

/* reclaims: what another client does, which dies at the second point; NULL: there is none. */
static void killed_in_this_chain(const char *first, const char *reclaims, const char *second)
{
    stoc_cache *c = make(NULL, OPTIONS(.samples = 12, .variable = 1, .slot_bytes = 256, .policy = STOC_POLICY_FIFO,
                                       .limit_bytes = (2 << 20) + 16 * 256));
    for (int i = 0; i < 4; i++) /* four slots each */
        EQUAL(put(c, i, 1000, 1, 0), STOC_STORED);
    die_in_a_chain(c, "set", first);
    if (reclaims)
        die_in_a_chain(c, reclaims, second);
    stoc_recover(c);
    bool cleared = reclaims && strcmp(reclaims, "clear") == 0;
    if (cleared) /* the next claimant finishes it */
        EQUAL(put(c, 0, 1000, 1, 0), STOC_STORED);
    check_quiet(c);
    EQUAL(holds(c, 7, 1900, 7), strcmp(first, "publish.word") == 0 || strcmp(first, "publish.entry") == 0);
    CHECK(stats_of(c).ready >= 2 || cleared);
    for (int i = 0; i < 12; i++)
        EQUAL(put(c, i, 1000, 1, 0) > STOC_EXISTS, 0);
    EQUAL(stats_of(c).ready, 4);
    close_quiet(c);
}

/* A kill at any step of a set that evicts from chains loses at most the victims and no slot. A kill while
 * the claims are reclaimed changes nothing. */
TEST(killed_in_a_chain)
{
    static const char *const points[] = {
        "claim.entry",   "claim.phase",      "claim.word",   "evict.listed", "evict.listed@2", "evict.retired",
        "abort.slot",    "abort.slot@3",     "abort.slot@6", "abort.cursor", "abort.cursor@4", "evict.emptied",
        "evict.emptied@2", "evict.unlisted", "evict.unlisted@2", "slot.intent", "slot.intent@5", "slot.taken",
        "slot.taken@8",  "slot.named",       "write.half",   "write.done",   "publish.meta",   "publish.word",
        "publish.entry"};
    static const char *const firsts[] = {"abort.slot@2", "evict.retired@2", "slot.intent@5", "slot.taken@7",
                                         "slot.named"};
    static const char *const seconds[] = {"reclaim.slot", "reclaim.slot@2", "reclaim.cursor", "reclaim.cursor@2",
                                          "reclaim.word", "reclaim.entry"};
    static const char *const reclaims[] = {"set", "recover", "clear"};
    for (size_t k = 0; k < sizeof points / sizeof *points; k++)
        killed_in_this_chain(points[k], NULL, NULL);
    for (size_t r = 0; r < 3; r++)
        for (size_t k = 0; k < sizeof firsts / sizeof *firsts; k++)
            for (size_t n = 0; n < sizeof seconds / sizeof *seconds; n++) {
                int before = failures;
                killed_in_this_chain(firsts[k], reclaims[r], seconds[n]);
                if (failures > before)
                    printf("  in: %s, %s at %s\n", firsts[k], reclaims[r], seconds[n]);
            }
}

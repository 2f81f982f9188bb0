/*
 * memory.c - memory that is promised, drawn, mapped, dumped and locked. Also copies that take so
 * long that generations wrap around. The library is compiled into this program.
 */
#include "../stocached.c"

#include "check.h"

enum { M = 1 << 20 };

/* ------------------------------------------------------------ the allowance */

static uint64_t grant_here(const stoc_cache *c) { return load(grant_word(c, group_of_process(""))); }

static uint64_t checks(const stoc_cache *c) { return grant_checks(grant_here(c)); }

static uint32_t record_of(const stoc_cache *c) { return atomic_load(&c->owner) - 1; }

static int put_large(stoc_cache *c, int64_t i, size_t n, unsigned flags)
{
    unsigned char *bytes = calloc(1, n);
    REQUIRE(bytes != NULL);
    int result = stoc_set(c, i, bytes, n, flags);
    free(bytes);
    return result;
}

/* Clients draw from what one of them was granted. Each checks memory after at most 64 MiB of its
 * own, and has nothing drawn at the end. */
TEST(clients_share_an_allowance)
{
    stoc_cache *c = make(NULL, OPTIONS(.samples = 400, .sample_bytes = M)), *other = join_fd(c);
    atomic_store(&c->huge_after, HUGE_NEVER), atomic_store(&other->huge_after, HUGE_NEVER);
    EQUAL(put_large(c, 0, M, 0), STOC_STORED);
    EQUAL(checks(c), 1); /* each client checks first */
    uint64_t left = grant_left(grant_here(c));
    CHECK(left > 16 * M && left <= STOC_GRANT_MAX - (M + 4096));
    EQUAL(put_large(other, 1, M, 0), STOC_STORED);
    EQUAL(checks(c), 2);
    left = grant_left(grant_here(c));
    EQUAL(put_large(c, 2, M, 0), STOC_STORED);
    EQUAL(grant_left(grant_here(c)), left - (M + 4096));
    EQUAL(put_large(c, 2, M, STOC_OVERWRITE), STOC_STORED); /* its pages exist */
    EQUAL(grant_left(grant_here(c)), left - (M + 4096));
    for (int i = 3; i < 131; i++)
        EQUAL(put_large(i % 2 ? c : other, i, M, 0), STOC_STORED);
    CHECK(checks(c) >= 4 && checks(c) <= 10);
    EQUAL(load(drawn_word(c, record_of(c))), 0);
    EQUAL(load(drawn_word(c, record_of(other))), 0);
    close_quiet(c);
    stoc_close(other);
}

/* Bytes that a live client has drawn count as taken. Those of a dead client do not. */
TEST(fills_under_way_count)
{
    stoc_cache *c = make(NULL, OPTIONS(.samples = 100, .sample_bytes = M)), *other = join_fd(c);
    uint32_t busy = record_of(other);
    store(drawn_word(c, busy), UINT64_C(1) << 60);
    for (int i = 0; i < 3; i++)
        EQUAL(put_large(c, i, M, 0), STOC_FULL);
    struct stoc_claim k;
    EQUAL(stoc_claim(c, 0, M, 0, &k), STOC_FULL);
    EQUAL(load(drawn_word(c, record_of(c))), 0);
    EQUAL(load(entry_word(c, record_of(c), 0)), 0);
    EQUAL(stats_of(c).full, 4);
    store(drawn_word(c, busy + 1), UINT64_C(1) << 60); /* no live client has this number */
    store(clients_high_word(c), busy + 2);
    store(drawn_word(c, busy), 0);
    EQUAL(put_large(c, 0, M, 0), STOC_STORED); /* fills go on at once */
    EQUAL(stoc_claim(c, 1, M, 0, &k), STOC_STORED);
    EQUAL(load(drawn_word(c, record_of(c))), 0); /* a claim has its pages */
    EQUAL(stoc_abort(&k), 0);
    stoc_cache *third = join_fd(c);
    EQUAL(record_of(third), busy + 1);
    EQUAL(load(drawn_word(c, busy + 1)), 0);
    stoc_close(third);
    stoc_close(other);
    close_quiet(c);
}

/* Without memory a set takes no slot that was never filled. It evicts, and takes slots that have pages. */
TEST(chains_without_memory)
{
    stoc_cache *c = make(NULL, OPTIONS(.samples = 20, .variable = 1, .limit_bytes = (2 << 20) + 64 * 4096,
                                       .slot_bytes = 4096, .policy = STOC_POLICY_FIFO)),
               *other = join_fd(c);
    for (int i = 0; i < 8; i++) /* half of the slots */
        EQUAL(put(c, i, 4 * 4096, 1, 0), STOC_STORED);
    uint64_t before = stats_of(c).allocated_bytes;
    store(drawn_word(c, record_of(other)), UINT64_C(1) << 60);
    atomic_store(&c->memory_left, 0);
    for (int i = 8; i < 20; i++) {
        EQUAL(put(c, i, 3 * 4096, 1, 0), STOC_STORED);
        EQUAL(holds(c, i, 3 * 4096, 1), 1);
    }
    CHECK(stats_of(c).allocated_bytes <= before);
    CHECK(stats_of(c).evicted > 0);
    EQUAL(put(c, 0, 40 * 4096, 1, 0), STOC_FULL); /* more than all slots that have pages */
    EQUAL(load(drawn_word(c, record_of(c))), 0);
    store(drawn_word(c, record_of(other)), 0);
    EQUAL(put(c, 0, 64 * 4096, 1, 0), STOC_STORED);
    EQUAL(load(drawn_word(c, record_of(c))), 0);
    close_quiet(c);
    stoc_close(other);
}

/* Slots whose pages exist draw nothing from the allowance: not for samples that fill less of them, not after a
 * claim that is aborted, and not after those. */
TEST(chains_draw_once)
{
    enum { STRIDE = 16384, SLOTS = 32 };
    stoc_cache *c = make(NULL, OPTIONS(.samples = 10, .variable = 1, .limit_bytes = (2 << 20) + SLOTS * STRIDE,
                                       .slot_bytes = STRIDE, .policy = STOC_POLICY_FIFO));
    atomic_store(&c->huge_after, HUGE_NEVER);
    uint64_t left = UINT64_MAX;
    for (int turn = 0; turn < 4; turn++) { /* whole slots, a byte in each sample's last slot, whole slots again */
        for (int i = 0; i < 8; i++) {
            uint64_t before = grant_left(grant_here(c));
            EQUAL(put(c, i, (size_t)(turn % 2 ? 2 * STRIDE + 1 : 4 * STRIDE), turn, STOC_OVERWRITE), STOC_STORED);
            if (turn == 0 && i > 0)
                EQUAL(grant_left(grant_here(c)), before - 4 * STRIDE - 4096);
        }
        if (turn == 0)
            left = grant_left(grant_here(c));
        EQUAL(grant_left(grant_here(c)), left);
    }
    struct stoc_claim k;
    EQUAL(stoc_claim(c, 8, SLOTS * STRIDE, 0, &k), STOC_STORED);
    EQUAL(stoc_abort(&k), 0);
    EQUAL(stats_of(c).arena_next_bytes, 0);
    EQUAL(put(c, 9, SLOTS * STRIDE, 1, 0), STOC_STORED);
    EQUAL(grant_left(grant_here(c)), left);
    close_quiet(c);
}

/* A grant for another group is not for us. */
TEST(a_grant_is_for_one_group)
{
    stoc_cache *c = make(NULL, OPTIONS(.samples = 10, .sample_bytes = 4096));
    uint32_t ours = group_of_process("");
    store(grant_word(c, ours), grant_pack(STOC_GRANT_MAX, 5, ours + (uint32_t)STOC_ALLOWANCE_WORDS));
    atomic_store(&c->memory_left, (int64_t)STOC_GRANT_MAX); /* as if it had checked already */
    atomic_store(&c->memory_group, ours);
    EQUAL(put(c, 0, 4096, 1, 0), STOC_STORED);
    EQUAL(grant_group(grant_here(c)), ours);
    EQUAL(checks(c), 6);
    EQUAL(put(c, 1, 4096, 1, 0), STOC_STORED);
    EQUAL(checks(c), 6);
    IN_GOOD_CHILD({ /* it may be in another cgroup, so it checks itself */
        EQUAL(put(c, 2, 4096, 1, 0), STOC_STORED);
        EQUAL(checks(c), 7);
    });
    stoc_close(c);
}

/* No client fills memory that a client holds, not even from an earlier grant. */
TEST(memory_that_is_held)
{
    stoc_cache *c = make(NULL, OPTIONS(.samples = 10, .sample_bytes = M)), *other = join_fd(c);
    EQUAL(put_large(c, 0, M, 0), STOC_STORED);
    CHECK(grant_left(grant_here(c)) > 0);
    int64_t spare = stoc_spare(c);
    CHECK(spare > 0);
    EQUAL(stoc_hold(c, UINT64_C(1) << 60), 0);
    EQUAL(load(drawn_word(c, record_of(c))), UINT64_C(1) << 60);
    EQUAL(grant_left(grant_here(c)), 0);
    EQUAL(stoc_spare(c), 0);
    EQUAL(put_large(c, 1, M, 0), STOC_FULL);
    EQUAL(put_large(other, 1, M, 0), STOC_FULL);
    EQUAL(stoc_hold(c, M), 0); /* less than before */
    EQUAL(put_large(other, 1, M, 0), STOC_STORED);
    EQUAL(put_large(c, 2, M, 0), STOC_STORED);
    EQUAL(load(drawn_word(c, record_of(c))), M);
    IN_GOOD_CHILD({
        EQUAL(put_large(c, 3, M, 0), STOC_STORED); /* a child holds nothing */
        EQUAL(load(drawn_word(c, record_of(c))), 0);
    });
    EQUAL(stoc_hold(c, 0), 0);
    EQUAL(load(drawn_word(c, record_of(c))), 0);
    EQUAL(stoc_hold(other, UINT64_C(1) << 60), 0);
    EQUAL(put_large(c, 4, M, 0), STOC_FULL);
    stoc_close(other); /* a closed handle holds nothing */
    EQUAL(put_large(c, 4, M, 0), STOC_STORED);
    EQUAL(stoc_hold(NULL, 0), STOC_ECLOSED);
    EQUAL(stoc_spare(NULL), STOC_ECLOSED);
    close_quiet(c);
}

/* ------------------------------------------------------------ promises */

static uint64_t memory_left(void)
{
    struct promises others = {.n = 0};
    struct room r;
    char directory[64];
    default_directory(directory, sizeof directory);
    add_named(&others, directory, true);
    add_attached(&others);
    REQUIRE(tightest_room("", &others, &r));
    free(others.list);
    return room_usable(&r);
}

/* Each cache takes two fifths of the memory: the third or an earlier one is refused. With and without a name, in this
 * process and another. A fifth is left for tests beside this one. */
TEST(memory_is_promised_once)
{
    stoc_cache *made[4] = {NULL};
    uint64_t part = memory_left() / 5 * 2;
    int n = 0, code = 0;
    for (; n < 4 && code == 0; n += code == 0) {
        struct stoc_options o = OPTIONS(.samples = 1 << 20, .slots = part >> 20, .sample_bytes = M,
                                        .directory = n == 1 ? scratch : NULL);
        code = stoc_create(n == 1 ? "promised" : NULL, &o, &made[n], &error);
        if (code != 0) {
            EQUAL(code, STOC_EMEMORY);
            CHECK(strstr(error.message, "other caches have yet to fill") != NULL);
        }
    }
    CHECK(code != 0);
    CHECK(n > 0 || memory_left() < part); /* unless other programs have taken it */
    if (n > 0) {
        IN_GOOD_CHILD({
            struct stoc_options o = OPTIONS(.samples = 1 << 20, .slots = (part >> 20) * 5 / 2, .sample_bytes = M);
            stoc_cache *c;
            EQUAL(stoc_create(NULL, &o, &c, &error), STOC_EMEMORY);
        });
    }
    while (n > 0)
        stoc_close(made[--n]);
}

/* Any user may make a link in /dev/shm: it leads to no promise. A link that the program names
 * does. */
TEST(promises_follow_no_link)
{
    char elsewhere[] = "/dev/shm/test-elsewhere-XXXXXX", link[64], path[128];
    REQUIRE(mkdtemp(elsewhere) != NULL);
    snprintf(link, sizeof link, "/dev/shm/stocached-test-link-%d", (int)getpid());
    REQUIRE(symlink(elsewhere, link) == 0);
    stoc_cache *c = make("half-empty", OPTIONS(.samples = 1000, .sample_bytes = 10000, .directory = elsewhere));
    struct stat st;
    snprintf(path, sizeof path, "%s/half-empty", elsewhere);
    REQUIRE(stat(path, &st) == 0);
    for (int named = 0; named < 2; named++) {
        struct promises found = {.n = 0};
        add_named(&found, named ? link : "/dev/shm", true);
        CHECK((promise_of(&found, st.st_dev, st.st_ino) != NULL) == (named == 1));
        free(found.list);
    }
    stoc_close(c);
    unlink(path);
    unlink(link);
    CHECK(rmdir(elsewhere) == 0);
}

/* Calls that read, of this process. */
static uint64_t reads(void)
{
    char text[512];
    REQUIRE(read_below("", "/proc/self/io", text, sizeof text) > 0);
    return number_of(text, "syscr:");
}

/* A create opens no other cache while there is room by their sizes, and all before it refuses. */
TEST(creates_beside_many)
{
    enum { MANY = 100 };
    char name[32];
    uint64_t first = 0, last = 0;
    for (int k = 0; k <= MANY; k++) {
        snprintf(name, sizeof name, "many-%d", k);
        uint64_t before = reads();
        stoc_close(make(name, OPTIONS(.samples = 4, .sample_bytes = 4, .directory = scratch)));
        last = reads() - before;
        first = k == 0 ? last : first;
    }
    CHECK(last < first + MANY / 2);
    for (int k = 0; k < 3; k++) { /* files that are no caches; the sum of their sizes has no place in 64 bits */
        snprintf(name, sizeof name, "no-cache-%d", k);
        int fd = open(path_in_scratch(name), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        REQUIRE(fd >= 0 && ftruncate(fd, INT64_MAX) == 0);
        close(fd);
    }
    stoc_close(make("beside", OPTIONS(.samples = 4, .sample_bytes = 4, .directory = scratch)));
    for (int k = 0; k < 3; k++) {
        snprintf(name, sizeof name, "no-cache-%d", k);
        unlink(path_in_scratch(name));
    }
}

TEST(locks_of_the_kernel)
{
    struct listed_lock lock;
    CHECK(parse_lock("1: OFDLCK ADVISORY  READ -1 00:01:82147 4096 4096\n", &lock) && lock.pid == 0 &&
          lock.dev == makedev(0, 1) && lock.ino == 82147);
    CHECK(parse_lock("12: FLOCK  ADVISORY  READ 1234 fe:0a:5 0 EOF\n", &lock) && lock.pid == 1234 &&
          lock.dev == makedev(0xfe, 10) && lock.ino == 5);
    CHECK(!parse_lock("12: -> FLOCK  ADVISORY  READ 1234 fe:0a:5 0 EOF\n", &lock) &&
          !parse_lock("1: FLOCK  ADVISORY  WRITE 1 00:01:82147 0 EOF\n", &lock));
    CHECK(!parse_lock("6: OFDLCK ADVISORY  WRITE -1 00:01:82147 8192 8192\n", &lock) &&
          !parse_lock("8: OFDLCK ADVISORY  READ -1 00:01:9 4096 4097\n", &lock));
    CHECK(!parse_lock("10: POSIX  ADVISORY  READ 79 00:19:3 4096 4096\n", &lock) && !parse_lock("", &lock) &&
          !parse_lock("garbage\n", &lock));
}

TEST(cgroups_that_are_shared)
{
    static const struct {
        const char *ours, *theirs;
        int depth;
    } table[] = {{"/a/b", "/a/b", 2},  {"/a/b", "/a/b/c", 2}, {"/a/b", "/a/bb", 1},
                 {"/a/bb", "/a/b", 1}, {"/a/b", "/other", 0}, {"/a/b", "/", 0},
                 {"/", "/a", 0},       {"/a/b", "/a", 1},     {"/abc", "/ab", 0}};
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        EQUAL(depth_shared(table[k].ours, table[k].theirs), table[k].depth);
        struct promise list[] = {{.bytes = 7, .shared = {-1, -1, depth_shared(table[k].ours, table[k].theirs)}},
                                 {.bytes = 1, .shared = {-1, -1, -1}}};
        struct promises others = {.list = list, .n = 2};
        for (int depth = 0; depth < 4; depth++) {
            struct room r = {.promised = 0};
            keep_promises(&others, 2, depth, &r);
            EQUAL(r.promised, depth <= table[k].depth ? 7 : 0);
        }
        struct room machine = {.promised = 0};
        keep_promises(&others, 0, 0, &machine);
        EQUAL(machine.promised, 8);
        EQUAL(machine.caches, 2);
    }
}

/* ------------------------------------------------------------ maps */

/* Whether a map that begins at `at` has a flag in /proc/self/smaps. */
static bool has_flag(const void *at, const char *flag)
{
    char line[500], want[8];
    unsigned long long first;
    bool here = false, found = false;
    FILE *f = fopen("/proc/self/smaps", "r");
    REQUIRE(f != NULL);
    snprintf(want, sizeof want, " %s ", flag);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%llx-", &first) == 1 && strchr(line, '-') && !strstr(line, "kB"))
            here = first == (uintptr_t)at;
        else if (here && strncmp(line, "VmFlags:", 8) == 0)
            found = strstr(line, want) != NULL;
    }
    fclose(f);
    return found;
}

TEST(payload_is_not_dumped)
{
    for (size_t size = 4096; size <= 8 * M; size *= 2048) {
        stoc_cache *c = make("dumped", OPTIONS(.samples = 1, .sample_bytes = size)),
                   *reader = join("dumped", STOC_OPEN_READ_ONLY);
        CHECK(has_flag(c->payload, "dd") && has_flag(reader->payload, "dd"));
        CHECK(!has_flag(c->control, "dd") && !has_flag(reader->control, "dd"));
        CHECK(has_flag(c->payload, "rd") && !has_flag(c->payload, "wr"));
        stoc_close(reader);
        stoc_close(c);
        unlink(path_in_scratch("dumped"));
    }
}

/* A program locks all its memory, also future maps (mlockall). The cache is not locked, and reads
 * and fills work. */
TEST(locked_memory)
{
    int status = IN_CHILD({
        if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0)
            SKIP("mlockall is not allowed (RLIMIT_MEMLOCK)");
        stoc_cache *c = make("locked", OPTIONS(.samples = 1024, .sample_bytes = M)), *other = join("locked", 0);
        CHECK(stats_of(c).allocated_bytes < 8 * M);
        CHECK(!has_flag(c->payload, "lo") && !has_flag(other->payload, "lo"));
        for (int i = 0; i < 3; i++)
            EQUAL(put_large(c, i, M, 0), STOC_STORED);
        const void *data;
        size_t length;
        EQUAL(stoc_view(other, 2, &data, &length), STOC_HIT);
        EQUAL(length, M);
        EQUAL(*((const unsigned char *)data + M - 1), 0);
        CHECK(stats_of(c).allocated_bytes < 16 * M);
        close_quiet(c);
        stoc_close(other);
        munlockall();
    });
    unlink(path_in_scratch("locked"));
    EQUAL(status, 0);
}

/* RLIMIT_MEMLOCK is below the size of the control part: a clear error. */
TEST(too_little_may_be_locked)
{
    if (geteuid() != 0)
        SKIP("root is needed to become another user");
    IN_GOOD_CHILD({
        struct rlimit little = {64 << 10, 64 << 10};
        struct stoc_options o = OPTIONS(.samples = 10, .sample_bytes = M);
        stoc_cache *c;
        REQUIRE(setrlimit(RLIMIT_MEMLOCK, &little) == 0 && setuid(65534) == 0 && mlockall(MCL_FUTURE) == 0);
        EQUAL(stoc_create(NULL, &o, &c, &error), STOC_EMEMORY);
        if (!strstr(error.message, "RLIMIT_MEMLOCK"))
            COMPLAIN("%s", error.message);
    });
}

/* ------------------------------------------------------------ a copy that lasts */

enum { SIZE = 4096, A = 1, B = 2 };

static stoc_cache *writer;
static uint64_t changes; /* number of changes that the copy waits for; 0: none */

/*
 * Copies one half and waits while the sample is overwritten with B and A in turn, one time
 * less than a full wrap of its generation. Then copies the other half, which is B's, and waits for
 * the last overwrite, with A.
 */
static void copy_with_a_break(void *dst, const void *src, size_t n)
{
    memcpy(dst, src, n / 2);
    for (uint64_t k = 1; k < changes; k++)
        REQUIRE(put(writer, 0, SIZE, k % 2 ? B : A, STOC_OVERWRITE) == STOC_STORED);
    memcpy((char *)dst + n / 2, (const char *)src + n / 2, n - n / 2);
    if (changes)
        REQUIRE(put(writer, 0, SIZE, A, STOC_OVERWRITE) == STOC_STORED);
    changes = 0;
}

/* The generation wraps exactly once while a copy waits, in both kinds of cache. The library drops
 * the copy, and the next one is whole. */
TEST(a_copy_while_the_generation_wraps)
{
    for (int variable = 0; variable < 2; variable++) {
        writer = variable ? make(NULL, OPTIONS(.samples = 1, .variable = 1, .limit_bytes = 4 * M, .sample_bytes = SIZE))
                          : make(NULL, OPTIONS(.samples = 1, .sample_bytes = SIZE));
        EQUAL(writer->generation_mask + 1, variable ? 8192 : 131072);
        EQUAL(put(writer, 0, SIZE, A, 0), STOC_STORED);
        stoc_cache *reader = join_fd(writer);
        unsigned char bytes[SIZE];
        uint64_t length = 0, retried = 0, before = load(index_word(reader, 0));
        changes = writer->generation_mask + 1;
        EQUAL(copy_sample(reader, 0, WHOLE, ANY_LENGTH, bytes, SIZE, &length, copy_with_a_break, &retried), STOC_HIT);
        EQUAL(load(index_word(reader, 0)), before); /* the same word as before */
        EQUAL(retried, 1);
        CHECK(length == SIZE && filled(bytes, SIZE, 0, A));
        close_quiet(writer);
        stoc_close(reader);
    }
}

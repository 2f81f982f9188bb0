/* hostile.c - stray writes to a segment: no word of it, whatever becomes of it, ends a process, keeps a call for ever,
 * or leads out of the segment. Words are overwritten in turn, so a new field is tried as well. The
 * library is compiled into this program, which so reaches the words of each kind of cache. */
#include "../stocached.c"
#undef MIN

#include "check.h"

enum { N = 16, BYTES = 1000, RECORDS = 4, VALUES = 34, THREADS = 3, ROUNDS = 400 };

struct kind {
    const char *name;
    uint32_t policy, variable, slots;
    bool disk;
};

static const struct kind kinds[] = {
    {"first-come", STOC_POLICY_FIRST_COME, 0, 8, false}, {"first-indices", STOC_POLICY_FIRST_INDICES, 0, 8, false},
    {"arena", STOC_POLICY_FIRST_COME, 1, 0, false},      {"cost", STOC_POLICY_COST, 0, 8, false},
    {"random", STOC_POLICY_RANDOM, 0, 8, false},         {"clock", STOC_POLICY_CLOCK, 0, 8, false},
    {"fifo", STOC_POLICY_FIFO, 0, 8, false},             {"lru", STOC_POLICY_LRU, 0, 8, false},
    {"lfu", STOC_POLICY_LFU, 0, 8, false},               {"planned", STOC_POLICY_PLANNED, 0, 8, false},
    {"chains cost", STOC_POLICY_COST, 1, 0, false},      {"chains random", STOC_POLICY_RANDOM, 1, 0, false},
    {"chains clock", STOC_POLICY_CLOCK, 1, 0, false},    {"chains fifo", STOC_POLICY_FIFO, 1, 0, false},
    {"chains lru", STOC_POLICY_LRU, 1, 0, false},        {"chains lfu", STOC_POLICY_LFU, 1, 0, false},
    {"disk", STOC_POLICY_FIRST_COME, 0, 0, true},        {"disk lru", STOC_POLICY_LRU, 0, 0, true},
    {"disk arena", STOC_POLICY_FIRST_COME, 1, 0, true},
};

static uint64_t seed;

static uint64_t random_of(uint64_t *state) { return *state = mix(*state + GOLDEN); }

static stoc_cache *create_kind(const struct kind *kind)
{
    static int made;
    struct stoc_options o = OPTIONS(.samples = N, .slots = kind->slots, .sample_bytes = BYTES, .policy = kind->policy,
                                    .variable = kind->variable);
    o.client_records = kind->disk ? 0 : RECORDS;
    bool chains = kind->variable && kind->policy != STOC_POLICY_FIRST_COME;
    o.limit_bytes = chains ? (2u << 20) + 32 * 256 : kind->slots ? 0 : 3u << 20;
    o.slot_bytes = chains ? 256 : 0;
    o.lengths = kind->variable && !kind->disk && kind->policy % 2 == 0; /* in half of the variable-size kinds */
    if (!kind->disk)
        return make(NULL, o);
    stoc_cache *c = NULL;
    char file[128];
    snprintf(file, sizeof file, "%s/disk%d", scratch, made++);
    o.fingerprint = "hostile";
    if (stoc_disk_open(file, &o, &c, &error) < 0) {
        COMPLAIN("%s: %s", kind->name, error.message);
        longjmp(give_up, 1);
    }
    return c;
}

/* The offsets of all words between header and payload. Returns how many. */
static size_t list_words(const stoc_cache *c, uint64_t *all)
{
    const struct {
        const void *from;
        uint64_t bytes;
    } parts[] = {
        {c->control + STOC_CONTROL_OFFSET, STOC_CONTROL_BYTES},
        {c->control + STOC_CLIENTS_OFFSET, (uint64_t)MIN(3u, c->client_records) * STOC_CLIENT_RECORD_BYTES},
        {(const void *)(uintptr_t)c->index, N * STOC_INDEX_RECORD_BYTES},
        {(const void *)(uintptr_t)c->sums, N * STOC_SUM_RECORD_BYTES},
        {(const void *)(uintptr_t)c->lengths, N * STOC_LENGTH_BYTES},
        {(const void *)(uintptr_t)c->slot_table, c->slots * STOC_SLOT_RECORD_BYTES},
        {(const void *)(uintptr_t)c->references, c->slots},
        {(const void *)(uintptr_t)c->groups, c->groups ? group_count(c) * STOC_GROUP_RECORD_BYTES : 0},
    };
    size_t n = 0;
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++)
        for (uint64_t at = 0; parts[p].from && at < parts[p].bytes; at += 8)
            all[n++] = (uint64_t)((const unsigned char *)parts[p].from - c->control) + at;
    return n;
}

/* Values for a word that had one: bounds, parts of the word that are 0, 1 or all ones, and any bits. */
static void list_values(uint64_t was, uint64_t *state, uint64_t *values)
{
    static const uint64_t bounds[] = {N, 8, 32, 4096, BYTES};
    size_t n = 0;
    uint64_t first[] = {0, 1, UINT64_MAX, UINT64_C(1) << 63, was + 1, was - 1, was ^ UINT64_C(1) << random_of(state) % 64,
                        random_of(state)};
    for (size_t k = 0; k < sizeof first / sizeof *first; k++)
        values[n++] = first[k];
    for (int shift = 0; shift < 64; shift += 16) {
        uint64_t part = UINT64_C(0xffff) << shift;
        values[n++] = was & ~part;
        values[n++] = was | part;
        values[n++] = (was & ~part) | UINT64_C(1) << shift;
        values[n++] = (was & ~part) | (random_of(state) & part);
    }
    for (size_t k = 0; k < sizeof bounds / sizeof *bounds; k++) {
        values[n++] = bounds[k] + random_of(state) % 2;
        values[n++] = (bounds[k] + random_of(state) % 2) << 32 | (was & UINT32_MAX);
    }
    EQUAL(n, VALUES);
}

/* Calls what a program may call, once. */
static void everything(stoc_cache *c, uint64_t *state)
{
    const int64_t samples = (int64_t)MIN((uint64_t)N, c->samples);
    const size_t most = MIN(c->sample_bytes, (uint64_t)1 << 20);
    unsigned char *bytes = calloc(1, most + 1);
    int64_t i = (int64_t)(random_of(state) % (uint64_t)samples), three[] = {i, 0, samples - 1};
    size_t size = c->variable ? 1 + random_of(state) % most : most, length = 0;
    uint64_t lengths[3], offsets[3], numbers[N], checked, total = 0;
    const void *view;
    uint8_t states[N];
    if (stoc_get(c, i, bytes, size, &length) == STOC_ESCHEMA && length > c->sample_bytes)
        COMPLAIN("sample %d wants memory for %zu bytes", (int)i, length);
    if (stoc_view(c, i, &view, &length) == STOC_HIT)
        stoc_crc32c(0, view, length);
    if (stoc_locate(c, i, &view, &length) == STOC_HIT)
        stoc_crc32c(0, view, length);
    unsigned char *rows = malloc(3 * most);
    if (!c->variable)
        stoc_gather(c, three, 3, -1, rows, most, NULL, 1);
    else if (stoc_lengths(c, three, 3, lengths) >= 0) {
        for (int k = 0; k < 3; k++) {
            offsets[k] = total;
            if (lengths[k] != UINT64_MAX && lengths[k] > c->sample_bytes)
                COMPLAIN("a length of %lu", lengths[k]);
            total += lengths[k] == UINT64_MAX ? 0 : lengths[k];
        }
        free(rows);
        rows = malloc(total + 1);
        stoc_gather_packed(c, three, 3, rows, offsets, lengths, NULL, 1);
    }
    free(rows);
    stoc_peek(c, i, bytes, most);
    struct iovec part = {bytes, size};
    stoc_set_loaded(c, i, &part, 1, random_of(state) % 2 ? STOC_OVERWRITE : 0, random_of(state) % 1000000);
    for (int publish = 0; publish < 2; publish++) {
        struct stoc_claim k;
        if (stoc_claim(c, (i + 1) % samples, size, STOC_OVERWRITE, &k) != STOC_STORED)
            continue;
        if (stoc_write(&k, 0, bytes, size) < 0)
            continue;
        if (publish)
            stoc_publish_loaded(&k, 1000);
        else
            stoc_abort(&k);
    }
    stoc_verify(c, 0, samples, &checked, NULL);
    stoc_states(c, 0, samples, states);
    stoc_costs(c, 0, samples, numbers);
    stoc_learn_length(c, i, random_of(state));
    if (stoc_learned_lengths(c, 0, samples, numbers) == 0)
        for (int64_t k = 0; k < samples; k++)
            CHECK(numbers[k] <= STOC_MAX_ITEMS + 1);
    stoc_learn_length(c, i, random_of(state) % 100);
    stats_of(c);
    stoc_recover(c);
    if (random_of(state) % 4 == 0) { /* both read files of the kernel, also in the next fill */
        stoc_hold(c, random_of(state) % 2 << 20);
        stoc_spare(c);
    }
    if (random_of(state) % 8 == 0)
        stoc_clear(c, 1);
    char text[512];
    for (int code = STOC_EINVAL - 20; code <= STOC_OUT; code++)
        stoc_explain(c, code, i, size, text, sizeof text);
    free(bytes);
}

/* What no call may change. */
static void check_outside(const stoc_cache *c, const unsigned char *header)
{
    struct stat st;
    CHECK(memcmp(c->control, header, STOC_HEADER_BYTES) == 0);
    if (!c->disk && fstat(c->fd, &st) == 0)
        EQUAL(st.st_size, c->segment_bytes);
}

static void try_words(const struct kind *kind)
{
    stoc_cache *c = create_kind(kind);
    uint64_t state = seed, values[VALUES];
    unsigned char header[STOC_HEADER_BYTES];
    memcpy(header, c->control, sizeof header);
    for (int k = 0; k < 4; k++)
        everything(c, &state);
    uint64_t *all = malloc(c->payload_offset), *rest = malloc(c->payload_offset);
    size_t n = list_words(c, all);
    for (size_t k = 0; k < n; k++)
        rest[k] = load(word_at(c, all[k]));
    for (size_t k = random_of(&state) % 2; k < n && !failures; k += 2) { /* every other word, and others in each run */
        list_values(rest[k], &state, values);
        for (int v = 0; v < 1 + (rest[k] != 0) && !failures; v++) { /* one of all values, another one in each run */
            uint64_t value = values[random_of(&state) % VALUES];
            stoc_cache *other = kind->disk ? NULL : join_fd(c);
            store(word_at(c, all[k]), value);
            everything(c, &state);
            if (other)
                everything(other, &state);
            stoc_close(other);
            check_outside(c, header);
            if (failures)
                COMPLAIN("%s: word %lu became %#lx", kind->name, all[k], value);
            for (size_t j = 0; j < n; j++)
                store(word_at(c, all[j]), rest[j]);
        }
    }
    free(all);
    free(rest);
    stoc_close(c);
}

TEST(words_at_rest)
{
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        try_words(&kinds[k]);
}

static _Atomic int stop_working;
static stoc_cache *worked_on;

static void *work_for_ever(void *argument)
{
    uint64_t state = seed + (uintptr_t)argument;
    while (!atomic_load(&stop_working)) {
        stoc_cache *own = worked_on->disk ? NULL : join_fd(worked_on);
        for (int k = 0; k < 10; k++) {
            everything(worked_on, &state);
            if (own)
                everything(own, &state);
        }
        stoc_close(own);
    }
    return NULL;
}

/* Words change while threads read and write. */
TEST(words_under_way)
{
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        stoc_cache *c = worked_on = create_kind(&kinds[kind]);
        uint64_t state = seed + 77, values[VALUES];
        unsigned char header[STOC_HEADER_BYTES];
        memcpy(header, c->control, sizeof header);
        uint64_t *all = malloc(c->payload_offset);
        size_t n = list_words(c, all);
        pthread_t threads[THREADS];
        atomic_store(&stop_working, 0);
        for (uintptr_t k = 0; k < THREADS; k++)
            REQUIRE(pthread_create(&threads[k], NULL, work_for_ever, (void *)(k + 1)) == 0);
        for (int round = 0; round < ROUNDS; round++) {
            stoc_word *word = word_at(c, all[random_of(&state) % n]);
            list_values(load(word), &state, values);
            store(word, values[random_of(&state) % VALUES]);
            if (random_of(&state) % 50 == 0) { /* at times a cache in which clients do more than fail */
                for (size_t k = 0; k < n; k++)
                    store(word_at(c, all[k]), 0);
                sleep_ns(1000000);
            }
        }
        atomic_store(&stop_working, 1);
        join_threads(threads, THREADS);
        check_outside(c, header);
        if (failures)
            COMPLAIN("%s", kinds[kind].name);
        free(all);
        stoc_close(c);
    }
}

/* ------------------------------------------------------------ the header */

/* Gives a header the offsets and sizes that follow from its other numbers, as a writer that lies would. The size of the
 * file; 0: there is none, or it is larger than a test wants. */
static uint64_t lay_out(unsigned char *page)
{
    struct geometry g;
    char why[256];
    if (!geometry_of(get32(page, STOC_HEADER_FLAGS), get32(page, STOC_HEADER_POLICY), get64(page, STOC_HEADER_SAMPLES),
                     get64(page, STOC_HEADER_SLOTS), get64(page, STOC_HEADER_SLOT_STRIDE),
                     get32(page, STOC_HEADER_CLIENT_RECORDS), get64(page, STOC_HEADER_PAYLOAD_BYTES), &g, why) ||
        g.segment_bytes > 64u << 20)
        return 0;
    put64(page, STOC_HEADER_SEGMENT_BYTES, g.segment_bytes);
    put64(page, STOC_HEADER_INDEX_OFFSET, g.index_offset);
    put64(page, STOC_HEADER_SUMS_OFFSET, g.sums_offset);
    put64(page, STOC_HEADER_LENGTHS_OFFSET, g.lengths_offset);
    put64(page, STOC_HEADER_SLOT_TABLE_OFFSET, g.slot_table_offset);
    put64(page, STOC_HEADER_REFERENCE_OFFSET, g.reference_offset);
    put64(page, STOC_HEADER_GROUPS_OFFSET, g.groups_offset);
    put64(page, STOC_HEADER_PAYLOAD_OFFSET, g.payload_offset);
    put64(page, STOC_HEADER_PAYLOAD_BYTES, g.payload_bytes);
    return g.segment_bytes;
}

/* Calls everything on a file with such a header and the rest of another one, if attach accepts it. */
static bool try_header(const unsigned char *page, const stoc_cache *from, uint64_t size, uint64_t *state)
{
    stoc_cache *c;
    int fd = memfd_create("stoctest", MFD_CLOEXEC);
    REQUIRE(fd >= 0);
    EQUAL(pwrite(fd, page, STOC_HEADER_BYTES, 0), STOC_HEADER_BYTES);
    EQUAL(ftruncate(fd, (off_t)size), 0);
    int code = stoc_open_fd(fd, STOC_OPEN_READ_ONLY, NULL, &c, &error);
    if (code == 0) {
        uint64_t rest = MIN(from->control_bytes, size) - STOC_HEADER_BYTES;
        stoc_close(c);
        EQUAL(pwrite(fd, from->control + STOC_HEADER_BYTES, rest, STOC_HEADER_BYTES), rest);
        code = stoc_open_fd(fd, 0, NULL, &c, &error);
    }
    close(fd);
    if (code != 0) {
        if (code != STOC_EFORMAT && code != STOC_EVERSION && code != STOC_ECORRUPT && code != STOC_ECLIENTS)
            COMPLAIN("%d: %s", code, error.message);
        return false;
    }
    for (int k = 0; k < 2; k++)
        everything(c, state);
    check_outside(c, page);
    stoc_close(c);
    return true;
}

/* A header with a valid checksum, whatever its fields say: attach refuses it, or the cache is one that works. Each word is
 * overwritten in turn, alone and with all numbers that follow from it. */
TEST(headers)
{
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        if (kinds[kind].disk)
            continue; /* their header is checked by the same code */
        stoc_cache *c = create_kind(&kinds[kind]);
        uint64_t state = seed + 99, values[VALUES];
        int accepted = 0;
        for (int k = 0; k < 4; k++)
            everything(c, &state);
        for (size_t at = 0; at < STOC_HEADER_BYTES && !failures; at += 8) {
            bool numbers = at < STOC_HEADER_FINGERPRINT || (at >= STOC_HEADER_FIELDS && at < STOC_HEADER_FIELDS + STOC_FIELD_BYTES);
            list_values(get64(c->control, at), &state, values);
            for (int v = 0; v < 1 && !failures; v++) /* one of all values, another one in each run */
                for (int how = 0; how < (numbers ? 3 : 1); how++) { /* alone, laid out, laid out in the same file */
                    unsigned char page[STOC_HEADER_BYTES];
                    uint64_t size = c->segment_bytes, value = values[random_of(&state) % VALUES];
                    memcpy(page, c->control, sizeof page);
                    put64(page, at, value);
                    if (how > 0 && (size = lay_out(page)) == 0)
                        continue;
                    put32(page, STOC_HEADER_CRC, header_crc(page));
                    accepted += try_header(page, c, how == 2 ? c->segment_bytes : size, &state);
                    if (failures)
                        COMPLAIN("%s: word %zu of the header became %#lx, %d", kinds[kind].name, at, value, how);
                }
        }
        CHECK(accepted > 0); /* uuid and time may have any value */
        stoc_close(c);
    }
}

/* ------------------------------------------------------------ texts of the kernel */

static void write_below(const char *root, const char *path, const char *text, size_t n)
{
    char full[200];
    snprintf(full, sizeof full, "%s%s", root, path);
    FILE *f = fopen(full, "w");
    REQUIRE(f != NULL);
    EQUAL(fwrite(text, 1, n, f), n);
    fclose(f);
}

/* A file about memory may say anything, and end anywhere: the call returns at most what the machine has. */
TEST(texts_of_the_kernel)
{
    enum { LONG = 100000, GIB = 1 << 30 };
    static const char meminfo[] = "MemTotal: 4194304 kB\nMemAvailable: 3145728 kB\n",
                      mounts[] = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    static const struct {
        const char *path, *text;
    } files[] = {{"/proc/meminfo", meminfo}, {"/proc/self/mountinfo", mounts}, {"/proc/self/cgroup", "0::/j\n"},
                 {"/sys/fs/cgroup/j/memory.max", "3221225472\n"}, {"/sys/fs/cgroup/j/memory.high", "max\n"},
                 {"/sys/fs/cgroup/j/memory.current", "1073741824\n"},
                 {"/sys/fs/cgroup/j/memory.stat", "active_file 4096\ninactive_file 4096\n"}};
    static const char *const texts[] = {
        "", "\n", " ", ":", "::", "0::", "0::\n", "0::/", "0::j\n", "0::/../..\n", "0::/j//k///\n", "4:memory", "4:memory:/j\n",
        "max", "-1\n", "0\n", "x\n", "18446744073709551615\n", "99999999999999999999999\n", "1e9\n", "0x10\n",
        "MemTotal:\nMemAvailable:\n", "MemTotal: -5 kB\nMemAvailable: 99 kB\n", "active_file", "active_file -1\n",
        "active_file 18446744073709551615\ninactive_file 18446744073709551615\n", " - ", "a b c d - cgroup2 x\n",
        "30 23 0:26 \\777\\400\\ \\04 - cgroup2 cgroup2 rw\n", "30 23 0:26 / \\000 rw - cgroup2 c rw\n",
        "30 23 0:26 /j /sys/fs/cgroup - cgroup2 cgroup2 rw"};
    static char many[LONG];
    char root[100], command[300];
    struct room r;
    struct hierarchy found[MOST_HIERARCHIES];
    uint64_t state = seed;
    const size_t count = sizeof files / sizeof *files, plain = sizeof texts / sizeof *texts;
    snprintf(root, sizeof root, "%s/root", scratch);
    snprintf(command, sizeof command, "mkdir -p %s/proc/self %s/sys/fs/cgroup/j", root, root);
    EQUAL(system(command), 0);
    for (size_t k = 0; k < count; k++)
        write_below(root, files[k].path, files[k].text, strlen(files[k].text));
    REQUIRE(tightest_room(root, NULL, &r));
    EQUAL(r.available, 2ull * GIB + 8192);
    for (size_t k = 0; k < count; k++) {
        size_t whole = strlen(files[k].text), tries = plain + 6 + whole + 200;
        for (size_t v = 0; v < tries; v++) {
            const char *text = many;
            size_t n = whole;
            if (v < plain) {
                text = texts[v], n = strlen(text);
            } else if (v < plain + 6) { /* one byte without an end; a path of 9,999 levels; a path without an end */
                static const char *const heads[] = {"", "", "0::/", "0::", "30 23 0:26 /", "30 23 0:26 / /"};
                memset(many, "9a/"[v % 3], n = LONG);
                memcpy(many, heads[v - plain], strlen(heads[v - plain]));
            } else {
                memcpy(many, files[k].text, whole);
                if (v < plain + 6 + whole)
                    n = v - plain - 6; /* cut */
                else
                    many[random_of(&state) % whole] = (char)random_of(&state);
            }
            write_below(root, files[k].path, text, n);
            group_of_process(root);
            CHECK(find_hierarchies(root, found) <= MOST_HIERARCHIES);
            if (tightest_room(root, NULL, &r) && k > 0)
                CHECK(room_usable(&r) <= 3ull * GIB);
        }
        write_below(root, files[k].path, files[k].text, whole);
    }
    /* more than 2^64 bytes are no few bytes */
    static const char huge[] = "MemTotal: 18014398509481985 kB\nMemAvailable: 18014398509481985 kB\n";
    write_below(root, "/proc/meminfo", huge, strlen(huge));
    write_below(root, "/proc/self/cgroup", "", 0);
    CHECK(tightest_room(root, NULL, &r) && room_usable(&r) > UINT64_C(1) << 60);
}

void set_up(void)
{
    const char *set = getenv("STOCACHED_TEST_SEED");
    seed = set ? strtoull(set, NULL, 0) : now_ns();
    printf("STOCACHED_TEST_SEED=%lu\n", seed);
}

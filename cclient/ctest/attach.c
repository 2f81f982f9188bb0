/* attach.c - damaged headers, damaged words and other files where a cache should be. The library
 * believes none of them, and never crashes. */
#include "check.h"

enum { N = 24, BYTES = 200 };

/* CRC-32C bit by bit. The test has its own, so that it can sign headers that it has changed. */
static void sign(unsigned char *page)
{
    static const unsigned char zero[4];
    memcpy(page + STOC_HEADER_CRC, zero, 4);
    uint32_t crc = crc32c(page, STOC_HEADER_BYTES);
    memcpy(page + STOC_HEADER_CRC, &crc, 4);
}

/* A generator with a seed, so that a failure can be repeated. */
static uint64_t state = 1;
static uint64_t any(void)
{
    uint64_t z = state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static const char *const kinds[] = {"first-come", "first-indices", "variable", "fields", "chains"};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* Caches to damage, with some samples, named after their kind. */
static stoc_cache *specimen(int kind)
{
    struct stoc_field fields[] = {{.name = "image", .dtype = STOC_FLOAT32, .ndim = 2, .dims = {3, 5}},
                                  {.name = "label", .dtype = STOC_INT64}};
    struct stoc_options o = OPTIONS(.samples = N, .fingerprint = "specimen");
    o.client_records = 4;
    if (kind == 2 || kind == 4) {
        o.variable = 1;
        o.limit_bytes = 4 << 20;
        o.sample_bytes = 5000;
        if (kind == 4)
            o.limit_bytes = (2 << 20) + 4096, o.slot_bytes = 64, o.policy = STOC_POLICY_CLOCK;
    } else if (kind == 3) {
        o.fields = fields;
        o.field_count = 2;
    } else {
        o.sample_bytes = BYTES;
        o.slots = 12;
        o.policy = kind == 1 ? STOC_POLICY_FIRST_INDICES : STOC_POLICY_FIRST_COME;
    }
    stoc_cache *c = make(kinds[kind], o);
    struct stoc_info info = {.struct_bytes = sizeof info};
    REQUIRE(stoc_info(c, &info) == 0);
    for (int i = 0; i < 6; i++)
        EQUAL(put(c, i, info.variable ? (size_t)i * 100 : info.sample_bytes, 1, 0), STOC_STORED);
    return c;
}

/* Makes every call at least once. Only memory errors matter, not results. */
static void exercise(stoc_cache *c)
{
    static unsigned char room[1 << 16];
    struct stoc_info info = {.struct_bytes = sizeof info};
    REQUIRE(stoc_info(c, &info) == 0);
    struct stoc_stats stats = {.struct_bytes = sizeof stats};
    uint64_t n = info.samples < N ? info.samples : N;
    int64_t indices[N];
    uint64_t lengths[N], offsets[N];
    uint8_t states[N], hit[N];
    char text[300];
    volatile unsigned char sum = 0;
    for (uint64_t i = 0; i < n; i++) {
        const void *data = NULL;
        size_t length = 0;
        indices[i] = (int64_t)i;
        stoc_get(c, (int64_t)i, room, sizeof room, &length);
        if (stoc_view(c, (int64_t)i, &data, &length) == STOC_HIT)
            for (size_t k = 0; k < length; k += 61)
                sum += ((const unsigned char *)data)[k];
        stoc_view_offset(c, (int64_t)i);
        if (info.sample_bytes <= sizeof room)
            stoc_peek(c, (int64_t)i, room, sizeof room);
        stoc_explain(c, STOC_FULL, (int64_t)i, 1, text, sizeof text);
    }
    stoc_states(c, 0, n, states);
    stoc_lengths(c, indices, n, lengths);
    uint64_t at = 0;
    for (uint64_t i = 0; i < n; i++) {
        offsets[i] = at;
        at += lengths[i] == UINT64_MAX || lengths[i] > 2000 ? 0 : lengths[i];
        if (lengths[i] > 2000)
            lengths[i] = 2000;
    }
    if (at + 2000 < sizeof room)
        stoc_gather_packed(c, indices, n, room, offsets, lengths, hit, 1);
    if (info.sample_bytes * n <= sizeof room)
        stoc_gather(c, indices, n, -1, room, info.sample_bytes, hit, 1);
    if (info.samples <= 1000) {
        stoc_verify(c, 0, info.samples, NULL, NULL);
        stoc_stats(c, &stats);
    }
    for (uint64_t i = 0; i < n && info.sample_bytes <= sizeof room; i += 5) {
        struct stoc_claim k;
        size_t length = info.variable ? (size_t)(i * 40 % (info.sample_bytes + 1)) : info.sample_bytes;
        stoc_set(c, (int64_t)i, room, length, i % 2 ? STOC_OVERWRITE : 0);
        if (stoc_claim(c, (int64_t)(i + 1) % (int64_t)n, length, 0, &k) == STOC_STORED) {
            stoc_write(&k, 0, room, length / 2);
            i % 2 ? stoc_publish(&k) : stoc_abort(&k);
        }
    }
    stoc_recover(c);
    if (info.samples <= 1000)
        stoc_clear(c, 2);
}

struct file {
    int fd;
    unsigned char page[STOC_HEADER_BYTES];
    off_t size;
    const char *path;
};

static struct file open_specimen(int kind)
{
    struct file f = {.path = path_in_scratch(kinds[kind])};
    f.fd = open(f.path, O_RDWR);
    REQUIRE(f.fd >= 0 && pread(f.fd, f.page, sizeof f.page, 0) == STOC_HEADER_BYTES);
    f.size = lseek(f.fd, 0, SEEK_END);
    return f;
}

/* Tries to attach, and uses the cache if that works. */
static int try_it(const char *path)
{
    struct stoc_error e = {0};
    stoc_cache *c;
    alarm(100); /* no segment, however damaged, makes a call hang: the signal ends this program */
    int code = stoc_open(path, 0, NULL, &c, &e);
    if (code == 0) {
        exercise(c);
        stoc_close(c);
    } else if (!e.message[0] || e.code != code) {
        COMPLAIN("code %d without a message", code);
    }
    alarm(0);
    return code;
}

static void every_byte_of_the_header(void)
{
    static const unsigned char changes[] = {0x01, 0x80, 0xff};
    for (int kind = 0; kind < KINDS; kind++) {
        stoc_close(specimen(kind));
        struct file f = open_specimen(kind);
        int accepted = 0;
        for (size_t at = 0; at < STOC_HEADER_BYTES; at++)
            for (int k = 0; k < 3; k++) {
                unsigned char page[STOC_HEADER_BYTES];
                memcpy(page, f.page, sizeof page);
                page[at] ^= changes[k];
                REQUIRE(pwrite(f.fd, page, sizeof page, 0) == STOC_HEADER_BYTES);
                int code = try_it(f.path);
                if (code != STOC_EFORMAT && code != STOC_EVERSION)
                    COMPLAIN("%s, byte %d ^ %#x: code %d", kinds[kind], (int)at, changes[k], code);
                if (k != 1 && kind != 0)
                    continue;
                sign(page); /* now with a correct checksum */
                REQUIRE(pwrite(f.fd, page, sizeof page, 0) == STOC_HEADER_BYTES);
                code = try_it(f.path);
                bool free_bytes = (at >= STOC_HEADER_UUID && at < STOC_HEADER_FLAGS) ||
                                  (at >= STOC_HEADER_LIMIT_BYTES && at < STOC_HEADER_LIMIT_BYTES + 8) ||
                                  (at >= STOC_HEADER_CRC && at < STOC_HEADER_CRC + 4);
                if (code == 0)
                    accepted++;
                else if (code != STOC_EFORMAT && code != STOC_EVERSION)
                    COMPLAIN("%s, byte %d ^ %#x, signed: code %d", kinds[kind], (int)at, changes[k], code);
                if (free_bytes && code != 0)
                    COMPLAIN("%s, byte %d ^ %#x, signed: code %d, but any value is fine there", kinds[kind], (int)at,
                             changes[k], code);
                REQUIRE(lseek(f.fd, 0, SEEK_END) == f.size); /* the size of the file never changes */
            }
        CHECK(accepted >= 36); /* uuid, time, uid, limit, and some letters of names */
        close(f.fd);
        unlink(f.path);
    }
}

static void every_length(void)
{
    for (int kind = 0; kind < KINDS; kind++) {
        if (kind == 3)
            continue; /* as first-come */
        stoc_close(specimen(kind));
        struct file f = open_specimen(kind);
        for (off_t n = 0; n <= f.size + 8192; n += n < 9000 ? 1 : n < f.size - 9000 ? 40961 : 17) {
            if (n == f.size)
                continue;
            REQUIRE(ftruncate(f.fd, n) == 0);
            if (n <= (off_t)STOC_HEADER_BYTES)
                EQUAL(pwrite(f.fd, f.page, (size_t)n, 0), n);
            else
                REQUIRE(pwrite(f.fd, f.page, sizeof f.page, 0) == STOC_HEADER_BYTES);
            int code = try_it(f.path);
            if (code != STOC_EFORMAT)
                COMPLAIN("%s with %lld of %lld bytes: code %d", kinds[kind], (long long)n, (long long)f.size, code);
        }
        close(f.fd);
        unlink(f.path);
    }
}

static uint64_t interesting(void)
{
    static const uint64_t values[] = {
        0, 1, 2, 7, 8, 63, 64, 255, 4095, 4096, 65535, UINT32_MAX - 1, UINT32_MAX, UINT64_C(1) << 32, UINT64_C(1) << 36,
        UINT64_C(1) << 40, UINT64_C(1) << 56, INT64_MAX, UINT64_MAX - 4095, UINT64_MAX};
    uint64_t k = any() % 32;
    return k < sizeof values / sizeof *values ? values[k] : k < 26 ? any() : any() % 100000;
}

static void random_headers(void)
{
    int tried = 0, accepted = 0;
    state = getenv("STOC_SEED") ? strtoull(getenv("STOC_SEED"), NULL, 0) : (uint64_t)time(NULL);
    uint64_t seed = state;
    for (int kind = 0; kind < KINDS; kind++)
        stoc_close(specimen(kind));
    for (double end = seconds() + 1.5; seconds() < end; tried++) {
        int kind = tried % KINDS;
        struct file f = open_specimen(kind);
        unsigned char page[STOC_HEADER_BYTES];
        memcpy(page, f.page, sizeof page);
        for (uint64_t n = 1 + any() % 4; n; n--) {
            uint64_t at = any() % 3 ? 24 + any() % 16 * 8
                                    : STOC_HEADER_FIELDS + any() % 3 * STOC_FIELD_BYTES + any() % 16 * 8,
                     value = interesting(), width = UINT64_C(1) << any() % 4;
            memcpy(page + at + (width < 8 ? any() % (8 / width) * width : 0), &value, width);
        }
        /* otherwise a client that attaches removes the file, as it should */
        page[STOC_HEADER_FLAGS] &= (unsigned char)~STOC_FLAG_UNLINK_LAST;
        sign(page);
        REQUIRE(pwrite(f.fd, page, sizeof page, 0) == STOC_HEADER_BYTES);
        int before = failures;
        if (try_it(f.path) == 0)
            accepted++;
        REQUIRE(lseek(f.fd, 0, SEEK_END) == f.size);
        REQUIRE(pwrite(f.fd, f.page, sizeof page, 0) == STOC_HEADER_BYTES);
        close(f.fd);
        if (failures > before) {
            COMPLAIN("seed %llu, try %d", (unsigned long long)seed, tried);
            break;
        }
    }
    printf("  seed %llu: %d headers, %d of them attached to\n", (unsigned long long)seed, tried, accepted);
    CHECK(tried > 100);
    for (int kind = 0; kind < KINDS; kind++)
        unlink(path_in_scratch(kinds[kind]));
}

/* Words, entries and cursors hold random values. Calls may fail and count, but never read or write
 * outside the payload, and never hang. */
static void random_words(void)
{
    int tried = 0;
    uint64_t seed = state = getenv("STOC_SEED") ? strtoull(getenv("STOC_SEED"), NULL, 0) : (uint64_t)time(NULL);
    for (double end = seconds() + 2.5; seconds() < end || tried <= 8; tried++) {
        int kind = tried % KINDS;
        stoc_cache *c = specimen(kind);
        unsigned char *control = control_of(c), header[STOC_HEADER_BYTES];
        struct stoc_info info = {.struct_bytes = sizeof info};
        REQUIRE(stoc_info(c, &info) == 0);
        memcpy(header, control, sizeof header);
        uint64_t index = header64(control, STOC_HEADER_INDEX_OFFSET);
        for (uint64_t n = 1 + any() % 30; n; n--) {
            uint64_t at;
            switch (any() % 4) {
            /* a clear blocked by corrupt entries costs 100 ms for each set */
            case 0: {
                static const uint64_t words[] = {STOC_PHASE_OFFSET, STOC_FREE_FROM_OFFSET, STOC_ARENA_NEXT_OFFSET,
                                                 STOC_CLIENTS_HIGH_OFFSET};
                at = words[any() % 16 ? 1 + any() % 3 : 0];
                break;
            }
            case 1:
                at = STOC_CLIENTS_OFFSET + any() % 4 * STOC_CLIENT_RECORD_BYTES + STOC_CLIENT_CLAIMS + any() % 64 * 8;
                break;
            default:
                at = index + any() % (kind == 4 ? 2560 : info.payload_offset - index < 4096 ? 512 : N * 2 + 600) * 8;
                if (at >= info.payload_offset)
                    at = index;
                break;
            }
            uint64_t value = interesting();
            if (any() % 2)
                value = any() % 4 | (any() % 6) << 3 |
                        (any() % 40) << (kind == 2 ? STOC_ARENA_PLACE_SHIFT : STOC_FIXED_PLACE_SHIFT);
            if (kind == 4 && any() % 2) /* a link */
                value = any() % 70 | (any() % (N + 3)) << 33;
            *word_in(control, at) = value;
        }
        int before = failures;
        exercise(c);
        stoc_cache *other = NULL;
        if (stoc_open_fd(info.fd, 0, NULL, &other, NULL) == 0) {
            exercise(other);
            stoc_close(other);
        }
        CHECK(memcmp(header, control, sizeof header) == 0);
        CHECK(lseek(info.fd, 0, SEEK_END) == (off_t)info.segment_bytes);
        munmap(control, info.payload_offset);
        stoc_close(c);
        unlink(path_in_scratch(kinds[kind]));
        if (failures > before) {
            COMPLAIN("seed %llu, try %d", (unsigned long long)seed, tried);
            break;
        }
    }
    printf("  seed %llu: %d caches\n", (unsigned long long)seed, tried);
}

static void versions(void)
{
    stoc_close(specimen(0));
    struct file f = open_specimen(0);
    struct {
        uint64_t at;
        unsigned char value;
        int code;
        const char *word;
        uint64_t also; /* a byte that is not 0; 0: none */
    } table[] = {
        {STOC_HEADER_VERSION, 2, STOC_EVERSION, "layout 2, this build reads 1;", 0},
        {STOC_HEADER_VERSION, 0, STOC_EVERSION, "layout 0, this build reads 1;", 0},
        {STOC_HEADER_VERSION, 1, STOC_EFORMAT, "byte 512", STOC_HEADER_DECODE + STOC_DECODE_BYTES},
        {STOC_HEADER_VERSION, 1, STOC_EFORMAT, "byte 511", STOC_HEADER_DECODE + STOC_DECODE_BYTES - 1},
        {STOC_HEADER_VERSION, 1, 0, NULL, STOC_HEADER_DECODE},
        {STOC_HEADER_SIGNATURE, 0x77, STOC_EVERSION, "signature", 0},
        {STOC_HEADER_ENDIAN_MARK, 1, STOC_EVERSION, "byte order", 0},
        {STOC_HEADER_MAGIC, 'X', STOC_EFORMAT, "STOCACHE", 0},
    };
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        unsigned char page[STOC_HEADER_BYTES];
        struct stoc_error e = {0};
        stoc_cache *c;
        memcpy(page, f.page, sizeof page);
        page[table[k].at] = table[k].value;
        if (table[k].also)
            page[table[k].also] = 'c';
        sign(page);
        REQUIRE(pwrite(f.fd, page, sizeof page, 0) == STOC_HEADER_BYTES);
        EQUAL(stoc_open(f.path, 0, NULL, &c, &e), table[k].code);
        if (table[k].code != 0) {
            CHECK(strstr(e.message, table[k].word) != NULL);
            continue;
        }
        struct stoc_info info = {.struct_bytes = sizeof info};
        CHECK(stoc_info(c, &info) == 0);
        CHECK(strcmp(info.decode, table[k].also == STOC_HEADER_DECODE ? "c" : "") == 0);
        stoc_close(c);
    }
    close(f.fd);
    unlink(f.path);
}

/* A creator replaces a segment of another version that no process uses, and names the users of one in use. */
static void other_version_replaced(void)
{
    struct stoc_options o = OPTIONS(.samples = 5, .sample_bytes = 8, .directory = scratch);
    struct stoc_error e = {0};
    char user[32];
    stoc_cache *old = make("old", o), *c = NULL;
    unsigned char version = STOC_LAYOUT_VERSION + 1;
    int fd = open(path_in_scratch("old"), O_WRONLY);
    REQUIRE(pwrite(fd, &version, 1, STOC_HEADER_VERSION) == 1);
    close(fd);
    snprintf(user, sizeof user, "processes %d (", (int)getpid());
    EQUAL(stoc_create("old", &o, &c, &e), STOC_EVERSION);
    CHECK(strstr(e.message, "layout 2,") && strstr(e.message, user) && strstr(e.message, "end them"));
    stoc_close(old);
    EQUAL(stoc_create("old", &o, &c, &e), 0);
    EQUAL(stoc_create("old", &o, &old, &e), STOC_EEXIST);
    stoc_close(c);
    EQUAL(stoc_unlink(path_in_scratch("old"), &e), 0);
}

static void other_files(void)
{
    struct stoc_error e;
    stoc_cache *c = NULL;
    stoc_close(make("real", OPTIONS(.samples = 5, .sample_bytes = 8)));
    REQUIRE(mkdir(path_in_scratch("directory"), 0700) == 0);
    REQUIRE(mkfifo(path_in_scratch("fifo"), 0600) == 0);
    REQUIRE(symlink("real", path_in_scratch("link")) == 0);
    REQUIRE(symlink("nowhere", path_in_scratch("dangling")) == 0);
    close(open(path_in_scratch("empty"), O_CREAT | O_WRONLY, 0600));
    int fd = open(path_in_scratch("text"), O_CREAT | O_WRONLY, 0600);
    for (int k = 0; k < 2000; k++)
        EQUAL(write(fd, "hello\n", 6), 6);
    close(fd);
    struct {
        const char *name;
        int open, unlink;
    } table[] = {
        {"directory", STOC_EPERM, STOC_EPERM},    {"fifo", STOC_EPERM, STOC_EPERM},
        {"link", STOC_EPERM, STOC_EPERM},         {"dangling", STOC_EPERM, STOC_EPERM},
        {"empty", STOC_EFORMAT, STOC_EPERM},      {"text", STOC_EFORMAT, STOC_EPERM},
        {"text/below", STOC_ENOENT, STOC_ENOENT},
    };
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        const char *path = path_in_scratch(table[k].name);
        struct stat before, after;
        bool there = lstat(path, &before) == 0;
        if (stoc_open(path, 0, NULL, &c, &e) != table[k].open || c != NULL)
            COMPLAIN("open %s: %d %s", table[k].name, e.code, e.message);
        if (stoc_unlink(path, &e) != table[k].unlink)
            COMPLAIN("unlink %s: %d %s", table[k].name, e.code, e.message);
        if (there && (lstat(path, &after) != 0 || before.st_ino != after.st_ino || before.st_size != after.st_size))
            COMPLAIN("%s is not what it was", table[k].name);
        struct stoc_options o = OPTIONS(.samples = 5, .sample_bytes = 8, .directory = scratch);
        if (there)
            EQUAL(stoc_create(table[k].name, &o, &c, &e), STOC_EEXIST);
    }
    EQUAL(stoc_open("/dev/null", 0, NULL, &c, &e), STOC_EPERM);
    EQUAL(stoc_open_fd(open("/dev/null", O_RDWR), 0, NULL, &c, &e), STOC_EPERM);
    EQUAL(stoc_unlink("/dev/null", &e), STOC_EPERM);
    EQUAL(access("/dev/null", F_OK), 0);
}

static void foreign_owners(void)
{
    if (geteuid() != 0)
        SKIP("only root can make a file of another user");
    struct stoc_error e;
    stoc_cache *c = NULL;
    stoc_close(make("foreign", OPTIONS(.samples = 5, .sample_bytes = 8)));
    REQUIRE(chown(path_in_scratch("foreign"), 12345, 12345) == 0);
    EQUAL(stoc_open(path_in_scratch("foreign"), 0, NULL, &c, &e), STOC_EPERM);
    CHECK(strstr(e.message, "12345") != NULL);
    EQUAL(stoc_unlink(path_in_scratch("foreign"), &e), STOC_EPERM);
    EQUAL(access(path_in_scratch("foreign"), F_OK), 0);
    /* As another user: without write permission the handle is read-only; without read permission
     * EPERM. */
    stoc_close(make("readable", OPTIONS(.samples = 5, .sample_bytes = 8)));
    REQUIRE(chmod(scratch, 0755) == 0);
    int status = IN_CHILD({
        REQUIRE(chown(path_in_scratch("readable"), 12345, 12345) == 0 && chmod(path_in_scratch("readable"), 0400) == 0);
        REQUIRE(setuid(12345) == 0);
        EQUAL(stoc_open(path_in_scratch("readable"), 0, NULL, &c, &e), 0);
        EQUAL(put(c, 1, 8, 1, 0), STOC_EREADONLY);
        EQUAL(holds(c, 1, 8, 1), 0);
        stoc_close(c);
        REQUIRE(chmod(path_in_scratch("readable"), 0) == 0);
        EQUAL(stoc_open(path_in_scratch("readable"), 0, NULL, &c, &e), STOC_EPERM);
    });
    EQUAL(status, 0);
}

/* Another user has put a symbolic link in place of this user's default directory. Neither a name
 * nor a path follows it. */
static void link_in_place_of_the_default_directory(void)
{
    if (geteuid() != 0)
        SKIP("only root can become another user");
    struct stoc_error e;
    stoc_cache *c = NULL;
    char link[64], path[80];
    snprintf(link, sizeof link, "/dev/shm/stocached-%u", 54323u);
    snprintf(path, sizeof path, "%s/mine", link);
    stoc_close(make("mine", OPTIONS(.samples = 5, .sample_bytes = 8)));
    REQUIRE(chown(scratch, 54323, 54323) == 0 && chown(path_in_scratch("mine"), 54323, 54323) == 0);
    unlink(link);
    REQUIRE(symlink(scratch, link) == 0 && lchown(link, 65534, 65534) == 0);
    int status = IN_CHILD({
        REQUIRE(setgid(54323) == 0 && setuid(54323) == 0);
        for (int k = 0; k < 2; k++) {
            const char *where = k ? path : "mine";
            EQUAL(stoc_open(where, 0, NULL, &c, &e), STOC_EPERM);
            CHECK(strstr(e.message, "symbolic link"));
            EQUAL(stoc_unlink(where, &e), STOC_EPERM);
        }
        EQUAL(stoc_open(path_in_scratch("mine"), 0, NULL, &c, &e), 0);
        stoc_close(c);
    });
    EQUAL(status, 0);
    unlink(link);
    EQUAL(chown(scratch, 0, 0), 0);
}

/* The segment that Go wrote. shm/testdata/golden.json says what it contains. */
static void the_golden_segment(void)
{
    const char *source = "../shm/testdata/golden.seg.gz";
    char command[300];
    if (access(source, R_OK) != 0)
        SKIP("../shm/testdata/golden.seg.gz is not there (run from cclient/ of the source tree)");
    snprintf(command, sizeof command, "gzip -dc %s > %s", source, path_in_scratch("golden"));
    REQUIRE(system(command) == 0);
    stoc_cache *c = join("golden", 0);
    struct stoc_info info = {.struct_bytes = sizeof info};
    struct stoc_field f;
    REQUIRE(stoc_info(c, &info) == 0);
    EQUAL(info.samples, 8);
    EQUAL(info.slots, 5);
    EQUAL(info.sample_bytes, 16);
    EQUAL(info.client_records, 2);
    EQUAL(info.limit_bytes, 4194304);
    EQUAL(info.created_ns, INT64_C(1700000000123456789));
    EQUAL(info.segment_bytes, 2101248);
    CHECK(info.uuid[0] == 0x5a && info.uuid[15] == 0xa5 && strcmp(info.name, "golden") == 0 &&
          strcmp(info.fingerprint, "golden fingerprint") == 0);
    CHECK(stoc_field(c, 0, &f) == 0 && strcmp(f.name, "image") == 0 && f.dtype == STOC_UINT8 && f.ndim == 2 &&
          f.dims[0] == 2 && f.dims[1] == 3 && f.bytes == 6);
    CHECK(stoc_field(c, 1, &f) == 0 && strcmp(f.name, "label") == 0 && f.dtype == STOC_INT64 && f.ndim == 0 &&
          f.offset == 8);
    struct stoc_stats s = stats_of(c);
    EQUAL(s.aborted, 300);
    EQUAL(s.busy, 150);
    EQUAL(s.corrupt, 390);
    EQUAL(s.exists, 120);
    EQUAL(s.full, 180);
    EQUAL(s.hits, 30);
    EQUAL(s.lost, 330);
    EQUAL(s.misses, 60);
    EQUAL(s.out, 210);
    EQUAL(s.passed, 420);
    EQUAL(s.recovered, 270);
    EQUAL(s.retried, 360);
    EQUAL(s.stored, 90);
    EQUAL(s.stored_bytes, 240);
    EQUAL(s.clears, 2);
    EQUAL(s.ready, 3);
    static const int states[] = {2, 0, 0, 2, 1, 0, 0, 2};
    for (int i = 0; i < 8; i++)
        EQUAL(stoc_state(c, i), states[i]);
    static const struct { int64_t i; unsigned char bytes[16]; } samples[] = {
        {0, {0, 1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80}},
        {3, {0x1e, 0x1f, 0x20, 0x21, 0x22, 0x23, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0x80}},
        {7, {0x46, 0x47, 0x48, 0x49, 0x4a, 0x4b, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0x80}},
    };
    for (int k = 0; k < 3; k++) {
        unsigned char bytes[16];
        EQUAL(stoc_get(c, samples[k].i, bytes, 16, NULL), STOC_HIT);
        CHECK(memcmp(bytes, samples[k].bytes, 16) == 0);
    }
    EQUAL(stoc_verify(c, 0, 8, NULL, NULL), 0);
    EQUAL(put(c, 4, 16, 1, 0), STOC_STORED); /* its writer is dead */
    EQUAL(stats_of(c).recovered, 271);
    EQUAL(put(c, 7, 16, 1, STOC_OVERWRITE), STOC_STORED); /* generation 131,071 + 1 */
    EQUAL(put(c, 1, 16, 1, 0), STOC_STORED);
    EQUAL(put(c, 2, 16, 1, 0), STOC_FULL);
    check_quiet(c);
    stoc_close(c);
}

int main(int argc, char **argv)
{
    (void)argc;
    begin_tests();
    RUN(every_byte_of_the_header);
    RUN(every_length);
    RUN(random_headers);
    RUN(random_words);
    RUN(versions);
    RUN(other_version_replaced);
    RUN(other_files);
    RUN(foreign_owners);
    RUN(link_in_place_of_the_default_directory);
    RUN(the_golden_segment);
    return end_tests(argv[0]);
}

/* attach.c - headers of other versions, other files where a cache should be, and files of other users. hostile.c
 * damages each word of a header, and ../conform each byte. */
#include "check.h"

TEST(versions)
{
    const char *path = path_in_scratch("versions");
    unsigned char whole[STOC_HEADER_BYTES];
    stoc_close(make("versions", OPTIONS(.samples = 24, .sample_bytes = 200)));
    int fd = open(path, O_RDWR);
    REQUIRE(pread(fd, whole, sizeof whole, 0) == STOC_HEADER_BYTES);
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
        {STOC_HEADER_LENGTHS_OFFSET + 1, 0x10, STOC_EFORMAT, "byte 177", 0},
        {STOC_HEADER_FLAGS, STOC_FLAG_NAMED | STOC_FLAG_LENGTHS, STOC_EFORMAT, "only variable-size ones have them", 0},
        {STOC_HEADER_FLAGS, STOC_FLAG_NAMED | (STOC_FLAGS_KNOWN + 1), STOC_EFORMAT, "unknown flags 0x40", 0},
        {STOC_HEADER_SIGNATURE, 0x77, STOC_EVERSION, "signature", 0},
        {STOC_HEADER_ENDIAN_MARK, 1, STOC_EVERSION, "byte order", 0},
        {STOC_HEADER_MAGIC, 'X', STOC_EFORMAT, "STOCACHE", 0},
    };
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        unsigned char page[STOC_HEADER_BYTES];
        stoc_cache *c;
        memcpy(page, whole, sizeof page);
        page[table[k].at] = table[k].value;
        if (table[k].also)
            page[table[k].also] = 'c';
        sign(page);
        REQUIRE(pwrite(fd, page, sizeof page, 0) == STOC_HEADER_BYTES);
        EQUAL(stoc_open(path, 0, NULL, &c, &error), table[k].code);
        if (table[k].code != 0) {
            CHECK(strstr(error.message, table[k].word) != NULL);
            continue;
        }
        struct stoc_info info = {.struct_bytes = sizeof info};
        CHECK(stoc_info(c, &info) == 0);
        CHECK(strcmp(info.decode, table[k].also == STOC_HEADER_DECODE ? "c" : "") == 0);
        stoc_close(c);
    }
    close(fd);
    unlink(path);
}

/* A creator replaces a segment of another version that no process uses, and names the users of one in use. */
TEST(other_version_replaced)
{
    struct stoc_options o = OPTIONS(.samples = 5, .sample_bytes = 8, .directory = scratch);
    char user[32];
    stoc_cache *old = make("old", o), *c = NULL;
    unsigned char version = STOC_LAYOUT_VERSION + 1;
    int fd = open(path_in_scratch("old"), O_WRONLY);
    REQUIRE(pwrite(fd, &version, 1, STOC_HEADER_VERSION) == 1);
    close(fd);
    snprintf(user, sizeof user, "processes %d (", (int)getpid());
    EQUAL(stoc_create("old", &o, &c, &error), STOC_EVERSION);
    CHECK(strstr(error.message, "layout 2,") && strstr(error.message, user) && strstr(error.message, "end them"));
    stoc_close(old);
    EQUAL(stoc_create("old", &o, &c, &error), 0);
    CHECK(error.code == 0 && strstr(error.message, "layout 2,") &&
          strstr(error.message, "an empty cache has replaced it"));
    EQUAL(stoc_create("old", &o, &old, &error), STOC_EEXIST);
    stoc_close(c);
    EQUAL(stoc_unlink(path_in_scratch("old"), &error), 0);
}

TEST(other_files)
{
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
        if (stoc_open(path, 0, NULL, &c, &error) != table[k].open || c != NULL)
            COMPLAIN("open %s: %d %s", table[k].name, error.code, error.message);
        if (stoc_unlink(path, &error) != table[k].unlink)
            COMPLAIN("unlink %s: %d %s", table[k].name, error.code, error.message);
        if (there && (lstat(path, &after) != 0 || before.st_ino != after.st_ino || before.st_size != after.st_size))
            COMPLAIN("%s is not what it was", table[k].name);
        struct stoc_options o = OPTIONS(.samples = 5, .sample_bytes = 8, .directory = scratch);
        if (there)
            EQUAL(stoc_create(table[k].name, &o, &c, &error), STOC_EEXIST);
    }
    EQUAL(stoc_open("/dev/null", 0, NULL, &c, &error), STOC_EPERM);
    EQUAL(stoc_open_fd(open("/dev/null", O_RDWR), 0, NULL, &c, &error), STOC_EPERM);
    EQUAL(stoc_unlink("/dev/null", &error), STOC_EPERM);
    EQUAL(access("/dev/null", F_OK), 0);
}

TEST(foreign_owners)
{
    if (geteuid() != 0)
        SKIP("only root can make a file of another user");
    stoc_cache *c = NULL;
    stoc_close(make("foreign", OPTIONS(.samples = 5, .sample_bytes = 8)));
    REQUIRE(chown(path_in_scratch("foreign"), 12345, 12345) == 0);
    EQUAL(stoc_open(path_in_scratch("foreign"), 0, NULL, &c, &error), STOC_EPERM);
    CHECK(strstr(error.message, "12345") != NULL);
    EQUAL(stoc_unlink(path_in_scratch("foreign"), &error), STOC_EPERM);
    EQUAL(access(path_in_scratch("foreign"), F_OK), 0);
    /* As another user: without write permission the handle is read-only; without read permission
     * EPERM. */
    stoc_close(make("readable", OPTIONS(.samples = 5, .sample_bytes = 8)));
    REQUIRE(chmod(scratch, 0755) == 0);
    IN_GOOD_CHILD({
        REQUIRE(chown(path_in_scratch("readable"), 12345, 12345) == 0 && chmod(path_in_scratch("readable"), 0400) == 0);
        REQUIRE(setuid(12345) == 0);
        EQUAL(stoc_open(path_in_scratch("readable"), 0, NULL, &c, &error), 0);
        EQUAL(put(c, 1, 8, 1, 0), STOC_EREADONLY);
        EQUAL(holds(c, 1, 8, 1), 0);
        stoc_close(c);
        REQUIRE(chmod(path_in_scratch("readable"), 0) == 0);
        EQUAL(stoc_open(path_in_scratch("readable"), 0, NULL, &c, &error), STOC_EPERM);
    });
}

/* Another user has put a symbolic link in place of this user's default directory. Neither a name
 * nor a path follows it. */
TEST(link_in_place_of_the_default_directory)
{
    if (geteuid() != 0)
        SKIP("only root can become another user");
    stoc_cache *c = NULL;
    char link[64], path[80];
    snprintf(link, sizeof link, "/dev/shm/stocached-%u", 54323u);
    snprintf(path, sizeof path, "%s/mine", link);
    stoc_close(make("mine", OPTIONS(.samples = 5, .sample_bytes = 8)));
    REQUIRE(chown(scratch, 54323, 54323) == 0 && chown(path_in_scratch("mine"), 54323, 54323) == 0);
    unlink(link);
    REQUIRE(symlink(scratch, link) == 0 && lchown(link, 65534, 65534) == 0);
    IN_GOOD_CHILD({
        REQUIRE(setgid(54323) == 0 && setuid(54323) == 0);
        for (int k = 0; k < 2; k++) {
            const char *where = k ? path : "mine";
            EQUAL(stoc_open(where, 0, NULL, &c, &error), STOC_EPERM);
            CHECK(strstr(error.message, "symbolic link"));
            EQUAL(stoc_unlink(where, &error), STOC_EPERM);
        }
        EQUAL(stoc_open(path_in_scratch("mine"), 0, NULL, &c, &error), 0);
        stoc_close(c);
    });
    unlink(link);
    EQUAL(chown(scratch, 0, 0), 0);
}

/* The segment that Go wrote. shm/testdata/golden.json says what it contains. ../conform compares all counters. */
TEST(the_golden_segment)
{
    const char *source = "../shm/testdata/golden.seg.gz";
    char command[300];
    if (access(source, R_OK) != 0)
        SKIP("../shm/testdata/golden.seg.gz is not there (run from cclient/ of the source tree)");
    snprintf(command, sizeof command, "gzip -dc %s > %s", source, path_in_scratch("golden"));
    REQUIRE(system(command) == 0);
    stoc_cache *c = join("golden", 0);
    struct stoc_field f;
    struct stoc_info info = info_of(c);
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
    close_quiet(c);
}

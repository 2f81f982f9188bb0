/* unit.c - parts of the library alone: checksum, helpers, memory limits, names. The library
 * is compiled into this program. */
#define STAY_MS 0 /* helpers end as soon as they have worked, so that some calls come while they end */
#include "../stocached.c"

#include "check.h"

TEST(checksums)
{
    enum { MOST = 60000 };
    unsigned char *bytes = malloc(MOST + 16);
    fill(bytes, MOST + 16, 1, 1);
    crc_function *functions[2] = {crc_portable, crc_choose()};
    printf("  %s\n", functions[1] == crc_portable ? "no hardware checksum on this machine: the table only"
                                                  : "hardware checksum and table");
    for (int f = 0; f < 2; f++) {
        EQUAL(functions[f](0, "123456789", 9), 0xe3069283);
        EQUAL(functions[f](0, bytes, 0), 0);
        for (size_t n = 0; n < MOST; n += n < 2000 ? 1 : 977)
            for (size_t at = 0; at < 16; at += n < 2000 ? 5 : 3) {
                uint32_t want = crc32c(bytes + at, n);
                if (functions[f](0, bytes + at, n) != want)
                    COMPLAIN("function %d, %zu bytes at %zu", f, n, at);
                size_t cut = n / 3; /* in pieces */
                if (functions[f](functions[f](0, bytes + at, cut), bytes + at + cut, n - cut) != want)
                    COMPLAIN("function %d, %zu + %zu bytes at %zu", f, cut, n - cut, at);
                if (n > 6000)
                    break;
            }
    }
    free(bytes);
}

TEST(places)
{
    enum { MOST = 300 };
    static unsigned char bytes[MOST + 40];
    static uint64_t found[MOST];
    EQUAL(stoc_find_byte(NULL, 0, '\n', NULL), 0);
    for (int every = 1; every < 70; every++) {
        for (size_t k = 0; k < sizeof bytes; k++)
            bytes[k] = k % (size_t)every ? 0x8a : '\n'; /* 0x8a: a line break but for its highest bit */
        for (size_t n = 0; n < MOST; n += 7)
            for (size_t at = 0; at < 40; at += 3) {
                size_t count = stoc_find_byte(bytes + at, n, '\n', found), want = 0;
                for (size_t k = 0; k < n; k++)
                    if (bytes[at + k] == '\n' && (want >= count || found[want++] != k))
                        COMPLAIN("every %d, %zu bytes at %zu: place %zu is missing", every, n, at, k);
                EQUAL(count, want);
            }
    }
}

static _Atomic int worked;
static void work_once(void *context)
{
    CHECK(context == &worked);
    atomic_fetch_add(&worked, 1);
}

/* A helper that is called while it ends works, or another one does. Each requested helper works
 * once, and the caller never waits for one that has ended. */
TEST(helpers_that_leave)
{
    enum { ROUNDS = 20000 };
    static struct thread_pool pool;
    uint64_t x = 1;
    for (int k = 0; k < ROUNDS; k++) {
        worked = 0;
        run_threads(&pool, 3, work_once, &worked);
        if (worked != 3)
            COMPLAIN("round %d: %d of 3 worked", k, worked);
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        for (uint64_t end = now_ns() + x % 12000; now_ns() < end;)
            ;
    }
    CHECK(stop_threads(&pool));
}

static void put_file(const char *root, const char *name, const char *text)
{
    char path[400], *slash;
    snprintf(path, sizeof path, "%s%s", root, name);
    for (slash = strchr(path + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *f = fopen(path, "w");
    REQUIRE(f != NULL);
    fputs(text, f);
    fclose(f);
}

#define G (UINT64_C(1) << 30)

/* Files with the text of the kernel, and the tightest limit that follows from them. */
TEST(memory_limits)
{
    struct {
        const char *name;
        const char *files[20];
        uint64_t total, available;
        const char *what;
    } table[] = {
        {"machine alone",
         {"/proc/meminfo", "MemTotal:       8388608 kB\nMemFree: 1 kB\nMemAvailable:    4194304 kB\n"},
         8 * G,
         4 * G,
         "machine"},
        {"v2",
         {"/proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 50331648 kB\n", "/proc/self/cgroup", "0::/job/a\n",
          "/proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
          "/sys/fs/cgroup/job/a/memory.max", "max\n", "/sys/fs/cgroup/job/a/memory.current", "1000000\n",
          "/sys/fs/cgroup/job/memory.max", "4294967296\n", "/sys/fs/cgroup/job/memory.current", "3221225472\n",
          "/sys/fs/cgroup/job/memory.stat", "anon 1\nactive_file 536870912\ninactive_file 536870912\nshmem 7\n"},
         4 * G,
         2 * G,
         "cgroup /job (memory.max)"},
        {"v2, high",
         {"/proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 50331648 kB\n", "/proc/self/cgroup", "0::/\n",
          "/proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "/sys/fs/cgroup/memory.max",
          "8589934592\n", "/sys/fs/cgroup/memory.high", "4294967296\n", "/sys/fs/cgroup/memory.current",
          "1073741824\n"},
         4 * G,
         3 * G,
         "memory.high"},
        {"v1 in a container",
         {"/proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 50331648 kB\n", "/proc/self/cgroup",
          "9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/\n", "/proc/self/mountinfo",
          "31 20 0:27 /docker/abc /sys/fs/cgroup/mem\\040ory rw - cgroup cgroup rw,memory\n",
          "/sys/fs/cgroup/mem ory/memory.limit_in_bytes", "2147483648\n",
          "/sys/fs/cgroup/mem ory/memory.usage_in_bytes", "1610612736\n", "/sys/fs/cgroup/mem ory/memory.stat",
          "total_active_file 0\ntotal_inactive_file 536870912\n"},
         2 * G,
         G,
         "cgroup / (memory.limit_in_bytes)"},
        {"v1 without a limit",
         {"/proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n", "/proc/self/cgroup", "4:memory:/x/y\n",
          "/proc/self/mountinfo", "31 20 0:27 / /cg rw - cgroup cgroup rw,memory\n", "/cg/x/y/memory.limit_in_bytes",
          "9223372036854771712\n", "/cg/x/y/memory.usage_in_bytes", "1\n"},
         8 * G,
         4 * G,
         "machine"},
        {"outside of the mount",
         {"/proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n", "/proc/self/cgroup",
          "0::/../elsewhere\n", "/proc/self/mountinfo", "31 20 0:27 / /cg rw - cgroup2 cgroup2 rw\n", "/cg/memory.max",
          "1073741824\n", "/cg/memory.current", "2147483648\n"},
         G,
         0,
         "cgroup / (memory.max)"},
    };
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        char root[200];
        struct room r;
        snprintf(root, sizeof root, "%s/root%zu", scratch, k);
        REQUIRE(mkdir(root, 0700) == 0);
        for (int f = 0; table[k].files[f]; f += 2)
            put_file(root, table[k].files[f], table[k].files[f + 1]);
        REQUIRE(tightest_room(root, NULL, &r));
        if (r.total != table[k].total || r.available != table[k].available || !strstr(r.what, table[k].what))
            COMPLAIN("%s: %s has %lu of %lu", table[k].name, r.what, r.available, r.total);
    }
    struct room r;
    CHECK(!tightest_room("/nowhere", NULL, &r));
    REQUIRE(tightest_room("", NULL, &r)); /* this machine */
    CHECK(r.total >= r.available && r.available > 0 && r.what[0]);
    printf("  here: %s has %lu of %lu MiB\n", r.what, r.available >> 20, r.total >> 20);
    struct room small = {.total = G, .available = 200 * MIB}, middle = {.total = 4 * G, .available = 300 * MIB},
                large = {.total = 64 * G, .available = 2 * G}, gone = {.total = G, .available = 100 * MIB};
    EQUAL(room_floor(&small), 128 * MIB);
    EQUAL(room_usable(&small), 72 * MIB);
    EQUAL(room_floor(&middle), 256 * MIB);
    EQUAL(room_floor(&large), G);
    EQUAL(room_usable(&gone), 0);
}

TEST(names_and_texts)
{
    CHECK(name_valid("a") && name_valid("imagenet-v1.2_x") && !name_valid("") && !name_valid("-a") &&
          !name_valid("a/b") && !name_valid("\xc3\xa4"));
    CHECK(is_utf8("", 0) && is_utf8("\xc3\xa4", 2) && !is_utf8("\xc3", 1) && !is_utf8("\xed\xa0\x80", 3) &&
          !is_utf8("\xc0\x80", 2) && is_utf8("\xf0\x9f\x98\x80", 4) && !is_utf8("\xf4\x90\x80\x80", 4));
    CHECK(!is_utf8("\xe0\x80\x80", 3) && !is_utf8("a\0b", 3) && is_utf8("\xe2\x82\xac", 3));
    char text[32];
    CHECK(strcmp(size_text(1, text), "1 B") == 0 && strcmp(size_text(1536, text), "1.5 KiB") == 0 &&
          strcmp(size_text(UINT64_MAX, text), "16.0 EiB") == 0);
    CHECK(is_proc_fd("/proc/12/fd/3") && is_proc_fd("/proc/self/fd/3") && !is_proc_fd("/proc/12/fd/") &&
          !is_proc_fd("/proc/12/fd/3/4") && !is_proc_fd("/tmp/proc/1/fd/2"));
    const char *digits = "18446744073709551615x", *over = "99999999999999999999";
    CHECK(parse_number(&digits) == UINT64_MAX && *digits == 'x' && parse_number(&over) == UINT64_MAX);
}

/* Text from outside cannot control a terminal, and stays readable. */
TEST(printable_texts)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"a/b c.jpg", "a/b c.jpg"},
        {"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80 \xe4\xb8\xad", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80 \xe4\xb8\xad"},
        {"\x1b]0;x\a\n\r\t\x7f", "?]0;x?????"},
        {"a\xc2\x9b"
         "31m",
         "a??31m"}, /* a control character of two bytes */
        {"\x9b"
         "31m\xff\xc3",
         "?31m??"}, /* not UTF-8 */
        {"\xe2\x80\xae"
         "x\xe2\x81\xa6\xd8\x9c",
         "???x?????"}, /* reverses the direction of the line */
        /* an overlong form, a surrogate, a number after the last character */
        {"\xc0\x9b\xe0\x80\x9b\xed\xa0\x80\xf4\x90\x80\x80", "????????????"},
        {"", ""}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        fail(&error, STOC_EREMOTE, 0, "%s", cases[k].text);
        CHECK(strcmp(error.message, cases[k].want) == 0);
    }
}

/* The same numbers as shm.NewGeometry, at the limits of the format and above them. ../conform compares those of caches
 * that fit. */
TEST(geometries)
{
    struct geometry g;
    char why[256];
    const uint32_t chains = STOC_FLAG_VARIABLE;
    CHECK(geometry_of(0, STOC_POLICY_FIRST_COME, UINT64_C(1) << 40, UINT64_C(4294967294), 1 << 24, 4095, 0, &g, why));
    CHECK(g.payload_offset > UINT64_C(1) << 44 && g.segment_bytes > g.payload_offset);
    CHECK(!geometry_of(0, STOC_POLICY_FIRST_COME, UINT64_C(1) << 40, UINT64_C(4294967294), 1 << 25, 4095, 0, &g, why));
    CHECK(geometry_of(STOC_FLAG_VARIABLE, STOC_POLICY_FIRST_COME, 5, 0, 64, 2, STOC_MAX_ARENA_BYTES - 64, &g, why) &&
          !geometry_of(STOC_FLAG_VARIABLE, STOC_POLICY_FIRST_COME, 5, 0, 64, 2, STOC_MAX_ARENA_BYTES, &g, why));
    CHECK(!geometry_of(STOC_FLAG_VARIABLE, STOC_POLICY_FIRST_COME, 5, 0, 64, 2, 100, &g, why) &&
          !geometry_of(STOC_FLAG_VARIABLE, STOC_POLICY_FIRST_COME, 5, 0, 64, 2, 0, &g, why) &&
          !geometry_of(STOC_FLAG_VARIABLE, STOC_POLICY_FIRST_COME, 5, 1, 64, 2, 64, &g, why));
    CHECK(geometry_of(chains, STOC_POLICY_COST, STOC_MAX_CHAIN_SAMPLES, STOC_MAX_SLOTS, 512, 2, 0, &g, why) &&
          g.groups_offset - g.slot_table_offset >= 8 * STOC_MAX_SLOTS && g.reference_offset == 0);
    CHECK(!geometry_of(chains, STOC_POLICY_COST, STOC_MAX_CHAIN_SAMPLES + 1, 1, 64, 2, 0, &g, why) &&
          !geometry_of(chains, STOC_POLICY_COST, 5, STOC_MAX_SLOTS + 1, 64, 2, 0, &g, why) &&
          !geometry_of(chains, STOC_POLICY_COST, 5, STOC_MAX_SLOTS, 2048, 2, 0, &g, why));
}

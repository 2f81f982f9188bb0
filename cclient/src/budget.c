/*
 * budget.c - what memory there is, before a segment is created and while it fills. docs/segment.md, Memory; the same numbers as shm/budget.go and shm/memory.go.
 */

#define UNLIMITED UINT64_MAX
#define PROC_TEXT (64 * 1024) /* of /proc/self/mountinfo and its kind; what is behind it is not seen */

/* One limit on memory and what is left below it, in bytes. */
struct room {
    char what[192]; /* for people: "the machine (MemAvailable)", "cgroup /a/b (memory.max)" */
    uint64_t total, available;
};

/* What nobody may fill up. Clients look every 64 MiB, so less than twice that would let one pass it unseen; and past a cgroup's limit a write is not refused: the process is killed. */
static uint64_t room_floor(const struct room *r) { return MIN(MAX(r->total / STOC_FLOOR_DIVISOR, STOC_FLOOR_MIN), STOC_FLOOR_MAX); }

static uint64_t room_usable(const struct room *r)
{
    uint64_t least = room_floor(r);
    return r->available < least ? 0 : r->available - least;
}

/* Reads root + path; -1 when it is missing or forbidden, which is no limit. */
static int64_t read_below(const char *root, const char *path, char *text, size_t size)
{
    char full[1024];
    if (snprintf(full, sizeof full, "%s%s", root, path) >= (int)sizeof full)
        return -1;
    return read_text(full, text, size);
}

/* The number behind a key at the start of a line; UNLIMITED: not there. */
static uint64_t number_of(const char *text, const char *key)
{
    size_t n = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, n) == 0 && (line[n] == ' ' || line[n] == '\t')) {
            const char *at = line + n + strspn(line + n, " \t");
            return *at >= '0' && *at <= '9' ? parse_number(&at) : UNLIMITED;
        }
    }
    return UNLIMITED;
}

/* A file of one number; UNLIMITED for "max", a missing file, and anything else. */
static uint64_t number_in(const char *root, const char *directory, const char *name)
{
    char path[900], text[64];
    if (snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path || read_below(root, path, text, sizeof text) <= 0)
        return UNLIMITED;
    const char *at = text;
    return *at >= '0' && *at <= '9' ? parse_number(&at) : UNLIMITED;
}

/* One level of a cgroup; false when it sets no limit. Active and inactive file cache can be dropped and count as available; pages of tmpfs do not, they are what fills it. */
static bool cgroup_room(const char *root, const char *mount, const char *group, bool v2, struct room *r)
{
    /* Above memory.high a process is not killed but slowed down without bound: a limit as well. */
    static const char *const v1_limits[] = {"memory.limit_in_bytes", NULL}, *const v2_limits[] = {"memory.max", "memory.high", NULL};
    char directory[800], text[8192];
    if (snprintf(directory, sizeof directory, "%s%s", mount, strcmp(group, "/") == 0 ? "" : group) >= (int)sizeof directory)
        return false;
    r->total = UNLIMITED;
    for (const char *const *name = v2 ? v2_limits : v1_limits; *name; name++) {
        uint64_t limit = number_in(root, directory, *name);
        if (limit < r->total) {
            r->total = limit;
            snprintf(r->what, sizeof r->what, "cgroup %.120s (%s)", group, *name);
        }
    }
    uint64_t used = number_in(root, directory, v2 ? "memory.current" : "memory.usage_in_bytes");
    if (r->total >= UINT64_C(1) << 62 || used == UNLIMITED) /* v1 writes no limit as the largest multiple of a page */
        return false;
    char path[900];
    if (snprintf(path, sizeof path, "%s/memory.stat", directory) < (int)sizeof path && read_below(root, path, text, sizeof text) > 0) {
        static const char *const v1_keys[] = {"total_active_file", "total_inactive_file"}, *const v2_keys[] = {"active_file", "inactive_file"};
        for (int k = 0; k < 2; k++) {
            uint64_t n = number_of(text, v2 ? v2_keys[k] : v1_keys[k]);
            used -= n == UNLIMITED ? 0 : MIN(used, n);
        }
    }
    r->available = r->total - MIN(r->total, used);
    return true;
}

static void keep_tightest(struct room *least, const struct room *r)
{
    if (room_usable(r) < room_usable(least))
        *least = *r;
}

/* Every level from the group up to the topmost that can be seen. */
static void cgroup_rooms(const char *root, const char *mount, char *group, bool v2, struct room *least)
{
    for (;;) {
        struct room r;
        if (cgroup_room(root, mount, group, v2, &r))
            keep_tightest(least, &r);
        if (strcmp(group, "/") == 0)
            return;
        char *slash = strrchr(group, '/');
        slash[slash == group] = 0;
    }
}

/* A comma-separated list has an item. */
static bool list_has(const char *list, const char *item)
{
    size_t n = strlen(item);
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, item, n) == 0 && (at[n] == 0 || at[n] == ','))
            return true;
    }
    return false;
}

/* Undoes mountinfo's \040 for space, tab, newline and backslash, in place. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *at = text; *at; to++) {
        if (at[0] == '\\' && at[1] >= '0' && at[1] <= '3' && at[2] >= '0' && at[2] <= '7' && at[3] >= '0' && at[3] <= '7') {
            *to = (char)((at[1] - '0') * 64 + (at[2] - '0') * 8 + (at[3] - '0'));
            at += 4;
        } else {
            *to = *at++;
        }
    }
    *to = 0;
}

/* A cgroup's path below the group that is mounted; "/" when it lies outside, as in a container whose /proc shows the host's paths. Group is at least 512 bytes. */
static void group_below(const char *own, const char *mounted, char *group)
{
    size_t n = strlen(mounted);
    if (strcmp(mounted, "/") != 0) {
        if (strncmp(own, mounted, n) != 0 || (own[n] != 0 && own[n] != '/'))
            own = "/";
        else
            own += n;
    }
    if (strstr(own, "..") || own[0] != '/') /* above the root of the cgroup namespace */
        own = "/";
    snprintf(group, 512, "%s", own);
    for (n = strlen(group); n > 1 && group[n - 1] == '/'; n--)
        group[n - 1] = 0;
}

/* The limit with the least that may be filled: the machine's, or a cgroup's from our own upwards (v1 and v2). root is "" except in tests. false: /proc/meminfo cannot be read. */
static bool tightest_room(const char *root, struct room *least)
{
    char small[8192];
    if (read_below(root, "/proc/meminfo", small, sizeof small) <= 0)
        return false;
    uint64_t total = number_of(small, "MemTotal:"), available = number_of(small, "MemAvailable:");
    if (total == UNLIMITED || available == UNLIMITED)
        return false;
    *least = (struct room){.what = "the machine (MemAvailable)", .total = total << 10, .available = available << 10};

    char v1[512] = "", v2[512] = "";
    if (read_below(root, "/proc/self/cgroup", small, sizeof small) <= 0)
        return true;
    for (char *line = small, *next; line && *line; line = next) { /* 4:memory:/path or 0::/path */
        if ((next = strchr(line, '\n')) != NULL)
            *next++ = 0;
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *controllers++ = 0;
        *path++ = 0;
        if (strcmp(line, "0") == 0 && !controllers[0])
            snprintf(v2, sizeof v2, "%s", path);
        else if (list_has(controllers, "memory"))
            snprintf(v1, sizeof v1, "%s", path);
    }
    char *mounts = malloc(PROC_TEXT);
    if (!mounts)
        return true;
    if (read_below(root, "/proc/self/mountinfo", mounts, PROC_TEXT) > 0) {
        for (char *line = mounts, *next; line && *line; line = next) { /* 36 35 98:0 /root /mount options optional... - type source superoptions */
            char mounted[512], mount[512], type[64], super[512], group[512];
            if ((next = strchr(line, '\n')) != NULL)
                *next++ = 0;
            char *after = strstr(line, " - ");
            if (!after || sscanf(line, "%*s %*s %*s %511s %511s", mounted, mount) != 2 || sscanf(after + 3, "%63s %*s %511s", type, super) != 2)
                continue;
            bool is_v2 = strcmp(type, "cgroup2") == 0 && v2[0], is_v1 = strcmp(type, "cgroup") == 0 && v1[0] && list_has(super, "memory");
            if (!is_v1 && !is_v2)
                continue;
            unescape(mounted);
            unescape(mount);
            group_below(is_v2 ? v2 : v1, mounted, group);
            cgroup_rooms(root, mount, group, is_v2, least);
        }
    }
    free(mounts);
    return true;
}

/* ------------------------------------------------------------------------------------------------ the tmpfs */

struct promise {
    uint64_t bytes;
    unsigned caches;
};

/* What the caches in a directory have yet to fill: lazy caches leave the free space unchanged. */
static void add_promises(const char *directory, struct promise *sum)
{
    DIR *d = opendir(directory);
    if (!d)
        return;
    for (struct dirent *entry; (entry = readdir(d)) != NULL;) {
        char path[OWN_PATH_BYTES];
        unsigned char page[STOC_HEADER_BYTES];
        struct header h;
        struct stat st;
        if (snprintf(path, sizeof path, "%s/%s", directory, entry->d_name) >= (int)sizeof path || stat_path(path, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid())
            continue;
        int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0)
            continue;
        if (pread_all(fd, page, sizeof page, 0) == (int64_t)sizeof page && stat_fd(fd, &st) == 0 && header_decode(page, (uint64_t)st.st_size, path, &h, NULL) == 0) {
            uint64_t allocated = (uint64_t)st.st_blocks * 512;
            if (h.g.segment_bytes > allocated) {
                sum->bytes += h.g.segment_bytes - allocated;
                sum->caches++;
            }
        }
        close(fd);
    }
    closedir(d);
}

/* Of the caches in a directory, and in every stocached-* directory at the top of its tmpfs that we may read (other users' are 0700, and remain unknown). */
static struct promise promised(const char *directory)
{
    struct promise sum = {0, 0};
    struct stat here, above;
    char top[OWN_PATH_BYTES], path[OWN_PATH_BYTES];
    bool seen = false;
    snprintf(top, sizeof top, "%s", directory);
    if (syscall(SYS_newfstatat, AT_FDCWD, directory, &here, 0) == 0 && top[0] == '/') {
        for (;;) { /* climb to the topmost directory of the same file system */
            char *slash = strrchr(top, '/');
            snprintf(path, sizeof path, "%.*s", slash == top ? 1 : (int)(slash - top), top);
            if (strcmp(path, top) == 0 || syscall(SYS_newfstatat, AT_FDCWD, path, &above, 0) != 0 || above.st_dev != here.st_dev)
                break;
            memcpy(top, path, sizeof top);
        }
    }
    DIR *d = opendir(top);
    if (d) {
        for (struct dirent *entry; (entry = readdir(d)) != NULL;) {
            if (strncmp(entry->d_name, "stocached-", 10) != 0 ||
                snprintf(path, sizeof path, "%s/%s", strcmp(top, "/") == 0 ? "" : top, entry->d_name) >= (int)sizeof path)
                continue;
            seen |= strcmp(path, directory) == 0;
            add_promises(path, &sum);
        }
        closedir(d);
    }
    if (!seen)
        add_promises(directory, &sum);
    return sum;
}

/*
 * Refuses a segment that memory has no room for: EMEMORY, with the numbers and what to do. fs and directory describe the tmpfs of a named cache; a memfd (NULL) knows no such
 * limit. Nothing is reserved: two creators at the same moment can both pass, and the fills of the second are then refused as FULL.
 */
static int check_budget(uint64_t need, const struct statfs *fs, const char *directory, struct stoc_error *error)
{
    char a[32], b[32], e[32], f[32], g[32], h[32];
    if (fs && fs->f_blocks != 0) { /* size=0: no limit */
        struct promise others = promised(directory);
        uint64_t size = (uint64_t)fs->f_blocks * (uint64_t)fs->f_bsize, available = (uint64_t)fs->f_bavail * (uint64_t)fs->f_bsize;
        uint64_t headroom = MIN(size / STOC_HEADROOM_DIVISOR, STOC_HEADROOM_MAX), left = available - MIN(available, headroom);
        left -= MIN(left, others.bytes);
        if (need > left)
            return fail(error, STOC_EMEMORY, 0,
                        "the cache needs %s (%llu bytes); the tmpfs of %s has %s free of %s, less %s of headroom for data loaders, less %s that %u other caches have yet to fill, leaves %s; "
                        "give a smaller limit, remove caches (stocached gc, stocached rm NAME), enlarge it (mount -o remount,size=...), or leave out the name: an unnamed cache is not bound to it",
                        size_text(need, a), (unsigned long long)need, directory, size_text(available, b), size_text(size, e), size_text(headroom, f), size_text(others.bytes, g), others.caches,
                        size_text(left, h));
    }
    struct room r;
    if (!tightest_room("", &r))
        return fail(error, STOC_ESYSTEM, errno, "/proc/meminfo has no MemTotal or MemAvailable (Linux 3.14 and /proc are needed)");
    if (need > room_usable(&r))
        return fail(error, STOC_EMEMORY, 0, "the cache needs %s (%llu bytes); %s has %s available of %s, less a floor of %s, leaves %s; give a smaller limit, or more memory to %s", size_text(need, a),
                    (unsigned long long)need, r.what, size_text(r.available, b), size_text(r.total, e), size_text(room_floor(&r), f), size_text(room_usable(&r), g), r.what);
    return 0;
}

/* Whether the machine or a cgroup of ours is at or below its floor. About 100 microseconds. */
static bool below_floor(struct room *r) { return tightest_room("", r) && room_usable(r) == 0; }

/* Asked before a fill that takes new pages: whether memory is short. Looks every 64 MiB of such fills, and every time while it is short. */
static bool memory_short(stoc_cache *c, uint64_t length)
{
    if ((c->flags & STOC_FLAG_RESERVED) || atomic_fetch_sub_explicit(&c->memory_left, (int64_t)length, memory_order_relaxed) >= (int64_t)length)
        return false;
    struct room r;
    if (below_floor(&r))
        return true;
    atomic_store_explicit(&c->memory_left, (int64_t)STOC_MEMORY_CHECK_BYTES, memory_order_relaxed);
    return false;
}

/*
 * memory.c - the free memory of the machine and of our cgroups. docs/spec/segment.md, Memory; the
 * same numbers as shm/memory/limits.go.
 */
#include "segment.h"

#define UNLIMITED UINT64_MAX
#define PROC_TEXT (64 * 1024) /* bytes read of /proc/self/mountinfo and similar files; the rest is not read */

/*
 * Memory that no client may fill. It is for other memory of the processes, which grows between two
 * checks, and for caches that do not see each other's grants. Above a cgroup's limit the kernel
 * does not refuse a write: it kills the process.
 */
INTERNAL uint64_t room_floor(const struct room *r)
{
    return MIN(MAX(r->total / STOC_FLOOR_DIVISOR, STOC_FLOOR_MIN), STOC_FLOOR_MAX);
}

INTERNAL uint64_t room_usable(const struct room *r)
{
    uint64_t taken = room_floor(r) + r->promised;
    return r->available < taken ? 0 : r->available - taken;
}

/* Reads root + path. -1 if the file is missing or forbidden, which means no limit. */
INTERNAL int64_t read_below(const char *root, const char *path, char *text, size_t size)
{
    char full[1024];
    if (snprintf(full, sizeof full, "%s%s", root, path) >= (int)sizeof full)
        return -1;
    return read_text(full, text, size);
}

/* The number after a key at the start of a line; UNLIMITED if the key is missing. */
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

/* The number in a file; UNLIMITED for "max", a missing file, and other text. */
static uint64_t number_in(const char *root, const char *directory, const char *name)
{
    char path[900], text[64];
    if (snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path ||
        read_below(root, path, text, sizeof text) <= 0)
        return UNLIMITED;
    const char *at = text;
    return *at >= '0' && *at <= '9' ? parse_number(&at) : UNLIMITED;
}

/* One level of a cgroup; false if it sets no limit. Active and inactive file cache counts as
 * available, because the kernel can drop it. Pages of tmpfs do not. */
static bool cgroup_room(const char *root, const char *mount, const char *group, bool v2, struct room *r)
{
    /* Above memory.high the kernel slows a process down without bound, so it is a limit too. */
    static const char *const v1_limits[] = {"memory.limit_in_bytes", NULL}, *const v2_limits[] = {"memory.max",
                                                                                                  "memory.high", NULL};
    char directory[800], text[8192];
    if (snprintf(directory, sizeof directory, "%s%s", mount, strcmp(group, "/") == 0 ? "" : group) >=
        (int)sizeof directory)
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
    if (r->total >= UINT64_C(1) << 62 || used == UNLIMITED) /* v1 writes the largest multiple of a page for no limit */
        return false;
    char path[900];
    if (snprintf(path, sizeof path, "%s/memory.stat", directory) < (int)sizeof path &&
        read_below(root, path, text, sizeof text) > 0) {
        static const char *const v1_keys[] = {"total_active_file", "total_inactive_file"}, *const v2_keys[] = {
                                                                                               "active_file",
                                                                                               "inactive_file"};
        for (int k = 0; k < 2; k++) {
            uint64_t n = number_of(text, v2 ? v2_keys[k] : v1_keys[k]);
            used -= n == UNLIMITED ? 0 : MIN(used, n);
        }
    }
    r->available = r->total - MIN(r->total, used);
    return true;
}

/* Subtracts promises from a limit. The machine's limit (version 0) counts all caches, a cgroup's
 * limit those with a client in it. */
INTERNAL void keep_promises(const struct promises *others, int version, int depth, struct room *r)
{
    for (size_t k = 0; others && k < others->n; k++)
        if (others->list[k].bytes > 0 && (version == 0 || others->list[k].shared[version] >= depth)) {
            r->promised += MIN(others->list[k].bytes, UINT64_MAX / 2 - r->promised);
            r->caches++;
        }
}

static void keep_tightest(struct room *least, const struct room *r)
{
    if (room_usable(r) < room_usable(least))
        *least = *r;
}

/* Number of names in a cgroup path. */
static int depth_of(const char *group)
{
    int depth = 0;
    for (const char *at = group; *at; at++)
        depth += *at == '/' && at[1] && at[1] != '/';
    return depth;
}

/* All levels from the group up to the topmost visible one. */
static void cgroup_rooms(const char *root, const char *mount, char *group, int version, const struct promises *others,
                         struct room *least)
{
    for (;;) {
        struct room r = {.promised = 0};
        if (cgroup_room(root, mount, group, version == 2, &r)) {
            keep_promises(others, version, depth_of(group), &r);
            keep_tightest(least, &r);
        }
        if (strcmp(group, "/") == 0)
            return;
        char *slash = strrchr(group, '/');
        slash[slash == group] = 0;
    }
}

/* Whether a comma-separated list has the item. */
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

/* Decodes the octal escapes of mountinfo (\040 for a space, also tab, newline and backslash) in
 * place. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *at = text; *at; to++) {
        if (at[0] == '\\' && at[1] >= '0' && at[1] <= '3' && at[2] >= '0' && at[2] <= '7' && at[3] >= '0' &&
            at[3] <= '7') {
            *to = (char)((at[1] - '0') * 64 + (at[2] - '0') * 8 + (at[3] - '0'));
            at += 4;
        } else {
            *to = *at++;
        }
    }
    *to = 0;
}

/* A cgroup's path below the mounted group. "/" if it lies outside, as in a container whose /proc
 * shows the host's paths. group has at least 512 bytes. */
INTERNAL void group_below(const char *own, const char *mounted, char *group)
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

/* The cgroups that are charged for a process's memory, by version; "": none. */
INTERNAL void memory_groups(const char *root, const char *pid, char groups[3][512])
{
    char path[64], text[8192];
    memset(groups, 0, 3 * sizeof groups[0]);
    snprintf(path, sizeof path, "/proc/%s/cgroup", pid);
    if (read_below(root, path, text, sizeof text) <= 0)
        return;
    for (char *line = text, *next; line && *line; line = next) { /* 4:memory:/path or 0::/path */
        if ((next = strchr(line, '\n')) != NULL)
            *next++ = 0;
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *controllers++ = 0;
        *group++ = 0;
        if (strcmp(line, "0") == 0 && !controllers[0])
            snprintf(groups[2], 512, "%s", group);
        else if (list_has(controllers, "memory"))
            snprintf(groups[1], 512, "%s", group);
    }
}

INTERNAL size_t find_hierarchies(const char *root, struct hierarchy found[MOST_HIERARCHIES])
{
    char groups[3][512], *mounts = malloc(PROC_TEXT);
    size_t n = 0;
    memory_groups(root, "self", groups);
    if (mounts && read_below(root, "/proc/self/mountinfo", mounts, PROC_TEXT) > 0) {
        for (char *line = mounts, *next; line && *line && n < MOST_HIERARCHIES; line = next) {
            /* 36 35 98:0 /root /mount options optional... - type source superoptions */
            struct hierarchy *h = &found[n];
            char type[64], super[512];
            if ((next = strchr(line, '\n')) != NULL)
                *next++ = 0;
            char *after = strstr(line, " - ");
            if (!after || sscanf(line, "%*s %*s %*s %511s %511s", h->root, h->mount) != 2 ||
                sscanf(after + 3, "%63s %*s %511s", type, super) != 2)
                continue;
            h->version = strcmp(type, "cgroup2") == 0                               ? 2
                         : strcmp(type, "cgroup") == 0 && list_has(super, "memory") ? 1
                                                                                    : 0;
            if (h->version == 0 || !groups[h->version][0])
                continue;
            unescape(h->root);
            unescape(h->mount);
            group_below(groups[h->version], h->root, h->group);
            n++;
        }
    }
    free(mounts);
    return n;
}

/* The limit that leaves the least to fill: the machine's, or that of a cgroup from our own upwards
 * (v1 and v2). root is "" except in tests. others: their promises do not count as free; NULL: none.
 * false: /proc/meminfo is not readable. */
INTERNAL bool tightest_room(const char *root, const struct promises *others, struct room *least)
{
    char text[8192], group[512];
    struct hierarchy hierarchies[MOST_HIERARCHIES];
    if (read_below(root, "/proc/meminfo", text, sizeof text) <= 0)
        return false;
    uint64_t total = number_of(text, "MemTotal:"), available = number_of(text, "MemAvailable:");
    if (total == UNLIMITED || available == UNLIMITED)
        return false;
    *least = (struct room){.what = "the machine (MemAvailable)", .total = MIN(total, UNLIMITED >> 10) << 10,
                           .available = MIN(available, UNLIMITED >> 10) << 10};
    keep_promises(others, 0, 0, least);
    for (size_t k = 0, n = find_hierarchies(root, hierarchies); k < n; k++) {
        memcpy(group, hierarchies[k].group, sizeof group);
        cgroup_rooms(root, hierarchies[k].mount, group, hierarchies[k].version, others, least);
    }
    return true;
}

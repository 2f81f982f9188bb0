/*
 * promise.c - what other caches may still fill, and whether a new one fits beside them.
 * docs/spec/segment.md, Memory; the same as shm/promise.go, shm/room.go and shm/memory.
 */
#include "segment.h"

static int compare_promises(const void *one, const void *two)
{
    const struct promise *a = one, *b = two;
    if (a->dev != b->dev)
        return a->dev < b->dev ? -1 : 1;
    return a->ino < b->ino ? -1 : a->ino > b->ino;
}

/* Sorts what was added, so that promise_of finds it. A file with several names counts once. */
static void settle_promises(struct promises *p)
{
    size_t n = 0;
    if (p->n == p->settled)
        return;
    qsort(p->list, p->n, sizeof *p->list, compare_promises);
    for (size_t k = 0; k < p->n; k++)
        if (k == 0 || compare_promises(&p->list[k], &p->list[n - 1]) != 0)
            p->list[n++] = p->list[k];
    p->n = p->settled = n;
}

/* The promise of a file among those that are settled. */
static struct promise *promise_of(const struct promises *p, dev_t dev, ino_t ino)
{
    struct promise like = {.dev = dev, .ino = ino};
    return p->settled ? bsearch(&like, p->list, p->settled, sizeof like, compare_promises) : NULL;
}

static void add_file(struct promises *p, const struct stat *st)
{
    if (p->n == p->room) {
        struct promise *list = realloc(p->list, (2 * p->room + 64) * sizeof *list);
        if (!list)
            return;
        p->list = list;
        p->room = 2 * p->room + 64;
    }
    uint64_t bytes = (uint64_t)st->st_size, allocated = (uint64_t)st->st_blocks * 512;
    p->list[p->n++] = (struct promise){.dev = st->st_dev, .ino = st->st_ino, .bytes = bytes - MIN(bytes, allocated),
                                       .shared = {-1, -1, -1}};
}

/* Adds the file at a path, if it is a cache of ours. Unless like is NULL, it must be that file. */
static void add_cache(struct promises *p, const char *path, const struct stat *like)
{
    unsigned char page[STOC_HEADER_BYTES];
    struct header h;
    struct stat st;
    int fd;
    bool read_only = true;
    if (open_file(path, &fd, &read_only, NULL) < 0)
        return;
    if (pread_all(fd, page, sizeof page, 0) == (int64_t)sizeof page && stat_fd(fd, &st) == 0 &&
        (!like || (st.st_dev == like->st_dev && st.st_ino == like->st_ino)) &&
        header_decode(page, (uint64_t)st.st_size, path, &h, NULL) == 0)
        add_file(p, &st);
    close(fd);
}

static void add_directory(struct promises *p, const char *directory, bool exact)
{
    DIR *d = opendir(directory);
    if (!d)
        return;
    for (struct dirent *entry; (entry = readdir(d)) != NULL;) {
        char path[OWN_PATH_BYTES];
        struct stat st;
        if (entry->d_type != DT_REG)
            continue;
        if (exact && snprintf(path, sizeof path, "%s/%s", directory, entry->d_name) < (int)sizeof path)
            add_cache(p, path, NULL);
        if (!exact && syscall(SYS_newfstatat, dirfd(d), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            check_file(&st, "", NULL) == 0)
            add_file(p, &st);
    }
    closedir(d);
}

/* Adds the caches in a directory, and in each readable stocached-* directory at the top of its
 * tmpfs. Those of other users have mode 0700 and remain unknown. Unless exact, each file there
 * counts as a cache, so that none is opened: never too little. */
static void add_named(struct promises *p, const char *directory, bool exact)
{
    struct stat here, above;
    char top[OWN_PATH_BYTES], path[OWN_PATH_BYTES];
    bool seen = false;
    snprintf(top, sizeof top, "%s", directory);
    if (syscall(SYS_newfstatat, AT_FDCWD, directory, &here, 0) == 0 && top[0] == '/') {
        for (;;) { /* climb to the topmost directory of the same file system */
            char *slash = strrchr(top, '/');
            snprintf(path, sizeof path, "%.*s", slash == top ? 1 : (int)(slash - top), top);
            if (strcmp(path, top) == 0 || syscall(SYS_newfstatat, AT_FDCWD, path, &above, 0) != 0 ||
                above.st_dev != here.st_dev)
                break;
            memcpy(top, path, sizeof top);
        }
    }
    DIR *d = opendir(top);
    if (d) {
        for (struct dirent *entry; (entry = readdir(d)) != NULL;) {
            /* any user may make a symbolic link there */
            if (entry->d_type != DT_DIR || strncmp(entry->d_name, "stocached-", 10) != 0 ||
                snprintf(path, sizeof path, "%s/%s", strcmp(top, "/") == 0 ? "" : top, entry->d_name) >=
                    (int)sizeof path)
                continue;
            seen |= strcmp(path, directory) == 0;
            add_directory(p, path, exact);
        }
        closedir(d);
    }
    if (!seen)
        add_directory(p, directory, exact);
    settle_promises(p);
}

/* Number of names at the start of two cgroup paths that are equal. */
static int depth_shared(const char *ours, const char *theirs)
{
    int depth = 0;
    for (; *ours && *ours == *theirs; ours++, theirs++)
        depth += *ours == '/' && ours[1] && ours[1] != '/';
    bool name_ends = (!*ours || *ours == '/') && (!*theirs || *theirs == '/');
    return name_ends || depth == 0 ? depth : depth - 1; /* the last names only start alike */
}

/* Depth of the cgroups that a process shares with this one, by version; -1: none. */
static void groups_shared(int pid, const struct hierarchy *hierarchies, size_t n, int shared[3])
{
    char groups[3][512], number[16], theirs[512];
    snprintf(number, sizeof number, "%d", pid);
    memory_groups("", number, groups);
    shared[0] = shared[1] = shared[2] = -1;
    for (size_t k = 0; k < n; k++) {
        const struct hierarchy *h = &hierarchies[k];
        if (!groups[h->version][0])
            continue;
        group_below(groups[h->version], h->root, theirs);
        shared[h->version] = MAX(shared[h->version], depth_shared(h->group, theirs));
    }
}

/* A lock in the kernel's list. */
struct listed_lock {
    dev_t dev;
    ino_t ino;
    int pid; /* 0: the users lock of a cache, for which the list names no process */
    bool found;
};

/* 1: OFDLCK ADVISORY READ -1 00:01:82147 4096 4096, or 2: FLOCK ADVISORY READ 1234 00:01:82147 0
 * EOF. Other lines: false. */
static bool parse_lock(const char *line, struct listed_lock *lock)
{
    char kind[16], mode[16], from[24], to[24];
    unsigned major_number, minor_number;
    unsigned long ino;
    if (sscanf(line, "%*s %15s %*s %15s %d %x:%x:%lu %23s %23s", kind, mode, &lock->pid, &major_number, &minor_number,
               &ino, from, to) != 8 ||
        strcmp(mode, "READ") != 0)
        return false;
    lock->dev = makedev(major_number, minor_number);
    lock->ino = (ino_t)ino;
    if (strcmp(kind, "FLOCK") == 0)
        return lock->pid > 0;
    const char *at = from;
    lock->pid = 0;
    return strcmp(kind, "OFDLCK") == 0 && strcmp(from, to) == 0 && parse_number(&at) == STOC_USERS_LOCK_BYTE;
}

/* By process, then by file. The users locks (process 0) come first. */
static int compare_locks(const void *one, const void *two)
{
    const struct listed_lock *a = one, *b = two;
    if (a->pid != b->pid)
        return a->pid < b->pid ? -1 : 1;
    if (a->dev != b->dev)
        return a->dev < b->dev ? -1 : 1;
    return a->ino < b->ino ? -1 : a->ino > b->ino;
}

static struct listed_lock *find_lock(struct listed_lock *locks, size_t n, struct listed_lock like)
{
    return bsearch(&like, locks, n, sizeof like, compare_locks);
}

/* The kernel's list of locks, sorted and without duplicates. The caller frees it. NULL: none. */
static struct listed_lock *list_locks(size_t *n)
{
    struct listed_lock *locks = NULL;
    size_t count = 0, room = 0;
    char line[256];
    FILE *f = fopen("/proc/locks", "re");
    while (f && fgets(line, sizeof line, f)) {
        if (count == room) {
            struct listed_lock *more = realloc(locks, (room = 2 * room + 64) * sizeof *more);
            if (!more)
                break;
            locks = more;
        }
        count += parse_lock(line, &locks[count]);
    }
    if (f)
        fclose(f);
    *n = 0;
    if (count > 0)
        qsort(locks, count, sizeof *locks, compare_locks);
    for (size_t k = 0; k < count; k++)
        if (k == 0 || compare_locks(&locks[k], &locks[*n - 1]) != 0)
            locks[(*n)++] = locks[k];
    return locks;
}

/* Lists the processes that have a file with a users lock, as far as the kernel's list of locks names them: for errors. */
INTERNAL const char *users_of(int fd, char *text, size_t size)
{
    enum { MOST = 8 };
    struct stat st;
    size_t n, at = 0, users = 0;
    if (stat_fd(fd, &st) != 0)
        return "processes";
    struct listed_lock *locks = list_locks(&n);
    text[0] = 0;
    for (size_t k = 0; k < n; k++) {
        char path[64], name[64] = "";
        if (locks[k].pid == 0 || locks[k].dev != st.st_dev || locks[k].ino != st.st_ino || ++users > MOST)
            continue;
        snprintf(path, sizeof path, "/proc/%d/comm", locks[k].pid);
        read_text(path, name, sizeof name); /* it may have ended */
        name[strcspn(name, "\n")] = 0;
        at += (size_t)snprintf(text + at, size - at, "%s%d (%s)", at ? ", " : "processes ", locks[k].pid, name);
    }
    free(locks);
    if (users > MOST)
        snprintf(text + at, size - at, ", %zu more", users - MOST);
    return users ? text : "processes in other containers";
}

/* Adds unknown caches through the descriptors of a process that is their client. locks: the locks
 * of one process. */
static void add_open(struct promises *p, struct listed_lock *locks, size_t n)
{
    char directory[64], path[340];
    struct stat st;
    size_t missing = 0;
    for (size_t k = 0; k < n; k++)
        missing += !(locks[k].found = promise_of(p, locks[k].dev, locks[k].ino) != NULL);
    snprintf(directory, sizeof directory, "/proc/%d/fd", locks->pid);
    DIR *d = missing > 0 ? opendir(directory) : NULL; /* another user's process, or one that has ended */
    if (!d)
        return;
    for (struct dirent *entry; missing > 0 && (entry = readdir(d)) != NULL;) {
        struct listed_lock *lock = NULL;
        if (syscall(SYS_newfstatat, dirfd(d), entry->d_name, &st, 0) == 0)
            lock = find_lock(locks, n, (struct listed_lock){.pid = locks->pid, .dev = st.st_dev, .ino = st.st_ino});
        if (!lock || lock->found)
            continue;
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        add_cache(p, path, &st);
        lock->found = true;
        missing--;
    }
    closedir(d);
    settle_promises(p);
}

/*
 * Adds the caches, named or not, whose clients are processes of this user. Notes which cgroups are
 * charged for these processes: docs/spec/segment.md, Locks on the file. It opens each such process
 * once. Clients in other pid namespaces, and processes that it may not inspect, are not counted.
 */
static void add_attached(struct promises *p)
{
    struct hierarchy hierarchies[MOST_HIERARCHIES];
    size_t n, used = 0, groups = find_hierarchies("", hierarchies);
    struct listed_lock *locks = list_locks(&n);
    while (used < n && locks[used].pid == 0)
        used++;
    for (size_t from = used, to; from < n; from = to) { /* the locks of one process */
        size_t caches = from;
        for (to = from; to < n && locks[to].pid == locks[from].pid; to++)
            /* otherwise another program's lock */
            if (find_lock(locks, used, (struct listed_lock){.dev = locks[to].dev, .ino = locks[to].ino}))
                locks[caches++] = locks[to];
        add_open(p, &locks[from], caches - from);
        int shared[3] = {-1, -1, -1};
        bool known = false;
        for (size_t k = from; k < caches; k++) {
            struct promise *one = promise_of(p, locks[k].dev, locks[k].ino);
            if (one && !known)
                groups_shared(locks[from].pid, hierarchies, groups, shared);
            known |= one != NULL;
            for (int version = 0; one && version < 3; version++)
                one->shared[version] = MAX(one->shared[version], shared[version]);
        }
    }
    free(locks);
}

static int check_room(uint64_t need, const struct statfs *fs, const char *directory, bool exact,
                      struct stoc_error *error)
{
    char a[32], b[32], d[32], e[32], f[32], g[32], ours[64];
    struct promises others = {.n = 0};
    struct room r = {.promised = 0}, tmpfs = {.promised = 0};
    int code = 0;
    default_directory(ours, sizeof ours);
    if (fs) {
        add_named(&others, directory, exact);
        keep_promises(&others, 0, 0, &tmpfs);
    }
    if (!fs || strcmp(directory, ours) != 0)
        add_named(&others, ours, exact);
    add_attached(&others);
    if (fs && fs->f_blocks != 0) { /* size=0: no limit */
        uint64_t size = (uint64_t)fs->f_blocks * (uint64_t)fs->f_bsize,
                 available = (uint64_t)fs->f_bavail * (uint64_t)fs->f_bsize;
        uint64_t headroom = MIN(size / STOC_HEADROOM_DIVISOR, STOC_HEADROOM_MAX),
                 left = available - MIN(available, headroom);
        left -= MIN(left, tmpfs.promised);
        if (need > left)
            code = fail(error, STOC_EMEMORY, 0,
                        "the cache needs %s (%lu bytes); the tmpfs of %s has %s free of %s, less %s of headroom for "
                        "data loaders, less %s that %u other caches have yet to fill, leaves %s; give a smaller limit, "
                        "remove caches (stocached gc, stocached rm NAME), enlarge it (mount -o remount,size=...), or "
                        "leave out the name: an unnamed cache is not bound to it",
                        size_text(need, a), need, directory, size_text(available, b), size_text(size, d),
                        size_text(headroom, e), size_text(tmpfs.promised, f), tmpfs.caches, size_text(left, g));
    }
    if (code == 0 && !tightest_room("", &others, &r))
        code = fail(error, STOC_ESYSTEM, errno,
                    "/proc/meminfo has no MemTotal or MemAvailable (Linux 3.14 and /proc are needed)");
    if (code == 0 && need > room_usable(&r))
        code = fail(error, STOC_EMEMORY, 0,
                    "the cache needs %s (%lu bytes); %s has %s available of %s, less a floor of %s, less %s that %u "
                    "other caches have yet to fill, leaves %s; give a smaller limit, remove caches (stocached gc, "
                    "stocached rm NAME, or end the processes of those without a name), or give it more memory",
                    size_text(need, a), need, r.what, size_text(r.available, b), size_text(r.total, d),
                    size_text(room_floor(&r), e), size_text(r.promised, f), r.caches, size_text(room_usable(&r), g));
    free(others.list);
    return code;
}

/*
 * Refuses a segment that does not fit into memory: EMEMORY, with the numbers and the next step. fs
 * and directory describe the tmpfs of a named cache; a memfd (NULL) has no such limit. The check
 * reserves nothing. Two creators may pass at the same moment; the fills of the second are then
 * FULL. Files are opened only before a refusal: a create takes a stat for each other cache.
 */
INTERNAL int check_budget(uint64_t need, const struct statfs *fs, const char *directory, struct stoc_error *error)
{
    return check_room(need, fs, directory, false, NULL) == 0 ? 0 : check_room(need, fs, directory, true, error);
}

/*
 * create.c - creates a segment, with or without a name. docs/spec/segment.md, Create.
 */
#include "protocol.h"

static const char *const policies[] = {"first-come", "first-indices", "cost", "random",  "clock",
                                       "fifo",       "lru",           "lfu",  "planned"};

/* The error of a system call that failed while making the file. Reads errno. */
static int create_error(const char *what, const struct geometry *g, struct stoc_error *error)
{
    switch (errno) {
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EFBIG:
        return fail(error, STOC_EMEMORY, errno,
                    "%s: no space; the segment has %lu bytes, %lu of them taken at once; give a smaller limit, "
                    "remove caches (stocached gc), or enlarge the tmpfs",
                    what, g->segment_bytes, g->payload_offset);
    case EACCES:
    case EPERM:
    case EROFS:
        return fail(error, STOC_EPERM, errno, "%s: permission denied, or read-only; use another directory", what);
    case EOPNOTSUPP:
    case EISDIR:
    case ENOSYS:
        return fail(error, STOC_EUNSUPPORTED, errno, "%s: not supported here; Linux 3.17 with tmpfs is needed", what);
    default:
        return fail_system(error, what, "of the cache");
    }
}

struct reserving {
    const struct stoc_options *options;
    struct room room; /* the limit that left too little */
};

/* Other programs may take memory between two steps. Checks before each step, because the kernel
 * kills instead of refusing. */
static uint64_t grant_to_reserve(void *context, uint64_t done, uint64_t total)
{
    struct reserving *r = context;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (r->options->progress && done > 0)
        r->options->progress(r->options->context, done, total);
    if (done == total)
        return 0;
    return tightest_room("", NULL, &r->room) ? grant_of(room_usable(&r->room)) / page * page : ALLOCATE_STEP;
}

/* Allocates pages for the control part, because a hole there raises SIGBUS on a full tmpfs.
 * Allocates the payload if it is reserved. Writes the header. The file has no name yet. */
static int fill_new_file(int fd, const struct header *h, const struct stoc_options *o, struct stoc_error *error)
{
    const struct geometry *g = &h->g;
    struct reserving r = {.options = o};
    unsigned char page[STOC_HEADER_BYTES];
    char have[32], all[32], least[32];
    header_encode(h, page);
    if (fchmod(fd, 0600) != 0)
        return create_error("chmod", g, error);
    if (ftruncate(fd, (off_t)g->segment_bytes) != 0)
        return create_error("size the file", g, error);
    begin_huge(fd, g->payload_offset, g->index_offset);
    if (allocate(fd, 0, g->payload_offset, NULL, NULL) != 0)
        return create_error("take the pages of the control part", g, error);
    if (o->reserve &&
        allocate(fd, g->payload_offset, g->segment_bytes - g->payload_offset, grant_to_reserve, &r) != 0) {
        if (errno != ECANCELED)
            return create_error("reserve the payload", g, error);
        return fail(error, STOC_EMEMORY, 0,
                    "reserve the payload: %s has %s available of %s, at or below the floor of %s; give a smaller "
                    "limit, or leave out reserve",
                    r.room.what, size_text(r.room.available, have), size_text(r.room.total, all),
                    size_text(room_floor(&r.room), least));
    }
    return pwrite_all(fd, page, sizeof page, 0) != 0 ? create_error("write the header", g, error) : 0;
}

/* Reads the header of the file at a path. EFORMAT, EVERSION. */
static int header_at(const char *path, int fd, struct header *h, struct stoc_error *error)
{
    unsigned char page[STOC_HEADER_BYTES];
    struct stat st;
    if (stat_fd(fd, &st) != 0 || pread_all(fd, page, sizeof page, 0) != (int64_t)sizeof page)
        return STOC_EFORMAT;
    return header_decode(page, (uint64_t)st.st_size, path, h, error);
}

/* Names both policies if they differ: a program that attaches then gets a cache that it did not ask for. */
static int exists_error(const stoc_cache *c, uint32_t policy, struct stoc_error *error)
{
    struct header there;
    char differ[100] = "";
    bool read_only = true;
    int fd = -1;
    if (open_file(c->path, &fd, &read_only, NULL) == 0 && header_at(c->path, fd, &there, NULL) == 0 &&
        there.g.policy != policy)
        snprintf(differ, sizeof differ, " with the policy %s, and %s was asked for", policies[there.g.policy],
                 policies[policy]);
    if (fd >= 0)
        close(fd);
    return fail(error, STOC_EEXIST, EEXIST,
                "%s exists%s; attach to it, take another name, or remove it first (stocached rm)", c->path, differ);
}

/* Removes a segment of another version that no process uses from the path of a new one: docs/spec/segment.md, What
 * every version keeps. error tells of it; 1: it has removed one. EEXIST for any other file there; EVERSION with the users. */
static int make_way(const stoc_cache *c, uint32_t policy, struct stoc_error *error)
{
    struct header there;
    struct stat st;
    struct stoc_error other;
    char users[512];
    bool read_only = false;
    int fd, code, alone;
    if (stat_path(c->path, &st) != 0) /* linkat decides; this check only saves work */
        return 0;
    if (open_file(c->path, &fd, &read_only, NULL) < 0)
        return exists_error(c, policy, error);
    if (header_at(c->path, fd, &there, &other) != STOC_EVERSION)
        code = exists_error(c, policy, error);
    else if ((alone = lock_byte(fd, F_WRLCK, STOC_USERS_LOCK_BYTE)) < 0)
        code = fail_system(error, "lock", c->path);
    else if (alone) {
        if ((code = unlink_same(c->path, fd, error)) == 0) {
            fail(error, 0, 0, "%s; no process used it, so an empty cache has replaced it", other.message);
            code = 1;
        }
    } else
        code = fail(error, STOC_EVERSION, 0, "%s; %s use it: end them, and it is replaced", other.message,
                    users_of(fd, users, sizeof users));
    close(fd);
    if (code != STOC_ENOENT)
        return code;
    no_error(error); /* another process has removed it */
    return 0;
}

static int create_named(stoc_cache *c, const struct header *h, const struct stoc_options *o, const char *directory,
                        int directory_fd, struct stoc_error *error)
{
    char own[64];
    struct statfs fs;
    int code, removed;
    if (fstatfs(directory_fd, &fs) != 0)
        return fail_system(error, "statfs", directory);
    /* a disk file system would write pages back, and its locks and maps may differ */
    if ((uint32_t)fs.f_type != TMPFS_MAGIC)
        return fail(error, STOC_EINVAL, 0,
                    "dir: %s is on a file system of type %#x, not on a tmpfs; leave it out (/dev/shm), or mount "
                    "one there",
                    directory, (unsigned)fs.f_type);
    if ((removed = make_way(c, h->g.policy, error)) < 0)
        return removed;
    if (fstatfs(directory_fd, &fs) != 0) /* again: a replaced segment has freed its memory */
        return fail_system(error, "statfs", directory);
    if ((code = check_budget(h->g.segment_bytes, &fs, directory, error)) < 0) {
        if (removed && error)
            snprintf(strchr(error->message, 0), sizeof error->message - strlen(error->message),
                     "; the old segment, of another version, is removed");
        return code;
    }
    c->fd = openat(directory_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (c->fd < 0)
        return create_error("make a file in the directory", &h->g, error);
    if ((code = fill_new_file(c->fd, h, o, error)) < 0 || (code = attach(c, h, error)) < 0)
        return code;
    /* register before the file has a name: with unlink_last no other process can then be the last
     * user before us */
    handle_list_add(c);
    if ((code = register_client(c, false, error)) == 0) {
        snprintf(own, sizeof own, "/proc/self/fd/%d", c->fd);
        if (linkat(AT_FDCWD, own, directory_fd, h->name, AT_SYMLINK_FOLLOW) == 0)
            return 0;
        code = errno == EEXIST ? exists_error(c, h->g.policy, error) : create_error("name the file", &h->g, error);
    }
    handle_list_remove(c);
    return code;
}

static int create_unnamed(stoc_cache *c, const struct header *h, const struct stoc_options *o, struct stoc_error *error)
{
    char name[64];
    int code = check_budget(h->g.segment_bytes, NULL, NULL, error);
    if (code < 0)
        return code;
    /* `stocached ls` finds it by this name in /proc */
    snprintf(name, sizeof name, "stocached:%02x%02x%02x%02x", h->uuid[0], h->uuid[1], h->uuid[2], h->uuid[3]);
    c->fd = memfd(name);
    if (c->fd < 0)
        return create_error("make a memfd", &h->g, error);
    if ((code = fill_new_file(c->fd, h, o, error)) < 0)
        return code;
    /* from now on no process can truncate it while others read */
    if (fcntl(c->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return create_error("seal the memfd", &h->g, error);
    if ((code = attach(c, h, error)) < 0)
        return code;
    handle_list_add(c);
    if ((code = register_client(c, false, error)) < 0)
        handle_list_remove(c);
    return code;
}

/* Stores the path of the new cache in c->path. */
static int create_in_directory(stoc_cache *c, const struct header *h, const struct stoc_options *o,
                               struct stoc_error *error)
{
    char directory[OWN_PATH_BYTES];
    int fd, code;
    if (o->directory) {
        size_t n = strnlen(o->directory, OWN_PATH_BYTES);
        if (n == 0 || n + 102 > OWN_PATH_BYTES)
            return fail(error, STOC_EINVAL, 0, "dir: its path has %zu bytes, not 1 to %d", n,
                        OWN_PATH_BYTES - 102);
        while (n > 1 && o->directory[n - 1] == '/')
            n--;
        snprintf(directory, sizeof directory, "%.*s", (int)n, o->directory);
    } else {
        default_directory(directory, sizeof directory);
    }
    if (snprintf(c->path, sizeof c->path, "%s/%s", directory, h->name) >= (int)sizeof c->path)
        return fail(error, STOC_EINVAL, 0, "dir: the path is longer than %d bytes", OWN_PATH_BYTES - 1);
    code = open_directory(directory, true, &fd, error);
    if (code == STOC_ENOENT)
        return fail(error, STOC_EINVAL, ENOENT, "dir: %s does not exist; make it, or mount a tmpfs there",
                    directory);
    if (code < 0)
        return code;
    code = create_named(c, h, o, directory, fd, error);
    close(fd);
    return code;
}

int stoc_create(const char *name, const struct stoc_options *options, stoc_cache **out, struct stoc_error *error)
{
    int code = check_open(0, out, error);
    struct header h;
    struct stoc_options known;
    if (code < 0 || (code = take_options(options, &known, error)) < 0)
        return code;
    options = &known;
    if ((code = plan(name, options, &h, error)) < 0)
        return code;
    if ((code = check_file_size("the cache", "takes", h.g.segment_bytes, "", error)) < 0)
        return code;
    stoc_cache *c = new_handle(options->open_flags, error);
    if (!c)
        return STOC_EMEMORY;
    h.created_ns = (int64_t)clock_ns(CLOCK_REALTIME);
    if (random_bytes(h.uuid, sizeof h.uuid) != 0)
        code = fail_system(error, "read", "/dev/urandom");
    else
        code = name ? create_in_directory(c, &h, options, error) : create_unnamed(c, &h, options, error);
    return end_open(c, code, out);
}

/*
 * open.c - opens a segment, closes it, unlinks it. docs/spec/segment.md, Attach.
 */
#include "protocol.h"

static void unmap(stoc_cache *c)
{
    if (c->control)
        munmap(c->control, c->control_bytes);
    if (c->payload)
        munmap((void *)(uintptr_t)c->payload, c->payload_bytes);
}

INTERNAL stoc_cache *new_handle(unsigned open_flags, struct stoc_error *error)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 128, sizeof(stoc_cache)) != 0) {
        fail(error, STOC_EMEMORY, ENOMEM, "no memory for a handle of %zu bytes", sizeof(stoc_cache));
        return NULL;
    }
    stoc_cache *c = memory;
    memset(c, 0, sizeof *c);
    c->fd = -1;
    atomic_store(&c->lock_fd, -1);
    c->kind = open_flags & STOC_OPEN_KIND_PYTHON ? STOC_KIND_PYTHON : STOC_KIND_C;
    c->read_only = open_flags & STOC_OPEN_READ_ONLY;
    c->crc = crc_choose();
    return c;
}

/* Frees a handle that is not on the list. */
INTERNAL void free_handle(stoc_cache *c)
{
    unmap(c);
    if (c->fd >= 0)
        close(c->fd);
    if (c->disk) {
        if (c->disk->fd >= 0)
            close(c->disk->fd);
        free(c->disk);
    }
    for (struct link *l = c->links, *next; l; l = next) {
        next = l->next;
        free(l);
    }
    for (int k = 0; k < (int)STOC_CLAIMS_PER_CLIENT; k++)
        free(atomic_load(&c->taken[k]));
    free(c);
}

/* Copies the header's values to the handle, and maps the file of c->fd. A payload on a disk is not mapped. */
INTERNAL int attach(stoc_cache *c, const struct header *h, struct stoc_error *error)
{
    const struct geometry *g = &h->g;
    const char *path = c->path[0] ? c->path : "the cache";
    c->samples = g->samples;
    c->slots = g->slots;
    c->slot_stride = g->slot_stride;
    c->sample_bytes = h->sample_bytes;
    c->payload_bytes = g->payload_bytes;
    c->control_bytes = c->payload_offset = g->payload_offset;
    c->segment_bytes = g->segment_bytes;
    c->limit_bytes = h->limit_bytes;
    c->created_ns = h->created_ns;
    c->client_records = g->client_records;
    c->flags = g->flags;
    c->variable = g->flags & STOC_FLAG_VARIABLE;
    c->policy = g->policy;
    c->evicts = policy_evicts(g->policy);
    c->chains = has_chains(g->flags, g->policy);
    c->last_state = c->evicts && !c->chains ? RETIRING : READY;
    c->space = c->chains ? &chain_space : c->variable ? &arena_space : &slot_space;
    c->view_slots = c->evicts || c->disk ? 0 : g->slots;
    c->rule = make_policy(g->policy, g->slots, c->chains, h->uuid);
    c->place_shift = c->variable && !c->chains ? STOC_ARENA_PLACE_SHIFT : STOC_FIXED_PLACE_SHIFT;
    c->generation_mask = (UINT64_C(1) << (c->place_shift - GENERATION_SHIFT)) - 1;
    c->field_count = h->field_count;
    memcpy(c->fields, h->fields, sizeof c->fields);
    memcpy(c->uuid, h->uuid, sizeof c->uuid);
    memcpy(c->name, h->name, sizeof c->name);
    memcpy(c->served, h->name, sizeof c->served);
    memcpy(c->fingerprint, h->fingerprint, sizeof c->fingerprint);
    memcpy(c->decode, h->decode, sizeof c->decode);

    if (!c->read_only && !c->disk &&
        check_file_size(path, "has", g->segment_bytes, ", or attach read-only", error) < 0)
        return STOC_EMEMORY;
    void *control = map_file(c->fd, 0, c->control_bytes, c->read_only ? PROT_READ : PROT_READ | PROT_WRITE);
    if (control == MAP_FAILED)
        goto no_map;
    c->control = control;
    if (!c->disk) {
        void *payload = map_payload(c->fd, c->payload_offset, c->payload_bytes);
        if (payload == MAP_FAILED)
            goto no_map;
        c->payload = payload;
    }
    c->index = word_at(c, g->index_offset);
    c->sums = g->sums_offset ? word_at(c, g->sums_offset) : NULL;
    c->lengths = g->lengths_offset ? word_at(c, g->lengths_offset) : NULL;
    c->groups = g->groups_offset ? word_at(c, g->groups_offset) : NULL;
    c->slot_table = g->slot_table_offset ? word_at(c, g->slot_table_offset) : NULL;
    c->references = g->reference_offset && !c->read_only ? (_Atomic unsigned char *)(c->control + g->reference_offset)
                                                         : NULL;
    atomic_store(&c->counters, c->read_only ? c->sink : NULL);
    atomic_store(&c->huge_after, c->read_only || c->disk || !huge_pages_allowed() ? HUGE_NEVER : 0);
    return 0;
no_map:
    if (errno == ENOMEM)
        return fail(error, STOC_EMEMORY, ENOMEM,
                    "no address space to map the %lu bytes of %s; raise the limit (ulimit -v)", g->segment_bytes, path);
    if (errno == EAGAIN)
        return fail(error, STOC_EMEMORY, EAGAIN,
                    "this process locks its memory (mlockall) and may not lock the %lu bytes of %s (RLIMIT_MEMLOCK); "
                    "raise the limit (ulimit -l)",
                    g->segment_bytes, path);
    return fail_system(error, "map", path);
}

/* Checks the file of c->fd and attaches. */
static int attach_file(stoc_cache *c, const char *fingerprint, const unsigned char *uuid, bool by_name,
                       struct stoc_error *error)
{
    const char *path = c->path[0] ? c->path : "the descriptor's file";
    unsigned char page[STOC_HEADER_BYTES];
    struct header h;
    struct stat st;
    if (stat_fd(c->fd, &st) != 0)
        return fail_system(error, "stat", path);
    int64_t n = pread_all(c->fd, page, sizeof page, 0);
    if (n < 0)
        return fail_system(error, "read the header of", path);
    if (n < (int64_t)sizeof page)
        return fail(error, STOC_EFORMAT, 0, "%s has %ld bytes, a header has %lu: no segment, or truncated", path,
                    n, STOC_HEADER_BYTES);
    int code = header_decode(page, (uint64_t)st.st_size, path, &h, error);
    if (code < 0)
        return code;
    if (uuid && memcmp(uuid, h.uuid, 16) != 0)
        return fail(error, STOC_EFORMAT, 0, "%s is not the segment that you asked for (its uuid differs); attach again",
                    path);
    if (fingerprint && fingerprint[0] && strcmp(fingerprint, h.fingerprint) != 0)
        return fail(error, STOC_EFINGERPRINT, 0,
                    "%s holds \"%s\", not \"%.64s\"; use another name, or remove it (stocached rm %s)", path,
                    h.fingerprint, fingerprint, h.name);
    code = attach(c, &h, error);
    if (code < 0)
        return code;
    handle_list_add(c);
    if (!c->read_only && (code = register_client(c, by_name && (c->flags & STOC_FLAG_NAMED), error)) < 0) {
        if (code == STOC_EREADONLY) { /* no lock description is possible, but reading works */
            c->read_only = true;
            c->references = NULL;
            atomic_store(&c->counters, c->sink);
            no_error(error);
            return 0;
        }
        handle_list_remove(c);
    }
    return code;
}

/* Finds the path of a named cache that was opened by descriptor, if it still has its name. info and
 * unlink_last use it. */
static void find_path(stoc_cache *c)
{
    char own[64];
    struct stat ours, named;
    memset(c->path, 0, sizeof c->path);
    if (!(c->flags & STOC_FLAG_NAMED))
        return;
    snprintf(own, sizeof own, "/proc/self/fd/%d", c->fd);
    /* The creator opened its descriptor before the file had a name, so only the directory is
     * reliable. */
    char *slash = readlink(own, c->path, sizeof c->path - STOC_NAME_BYTES - 1) > 0 ? strrchr(c->path, '/') : NULL;
    if (slash)
        snprintf(slash + 1, STOC_NAME_BYTES, "%s", c->name);
    if (!slash || stat_fd(c->fd, &ours) != 0 || stat_path(c->path, &named) != 0 || named.st_ino != ours.st_ino ||
        named.st_dev != ours.st_dev)
        memset(c->path, 0, sizeof c->path);
}

INTERNAL int end_open(stoc_cache *c, int code, stoc_cache **out)
{
    if (code < 0)
        free_handle(c);
    else
        *out = c;
    return code;
}

INTERNAL int check_open(unsigned flags, stoc_cache **out, struct stoc_error *error)
{
    int code = begin_open(out, "handle", "", "", error);
    if (code == 0 && flags & ~(STOC_OPEN_READ_ONLY | STOC_OPEN_KIND_PYTHON))
        return fail(error, STOC_EINVAL, 0, "unknown flags %#x", flags);
    return code;
}

int stoc_open(const char *name_or_path, unsigned flags, const char *fingerprint, stoc_cache **out,
              struct stoc_error *error)
{
    int code = check_open(flags, out, error);
    char path[OWN_PATH_BYTES];
    if (code < 0 || (code = path_of(name_or_path, path, error)) < 0)
        return code;
    stoc_cache *c = new_handle(flags, error);
    if (!c)
        return STOC_EMEMORY;
    bool process = is_proc_fd(path);
    memcpy(c->path, path, sizeof path);
    code = open_file(path, &c->fd, &c->read_only, error);
    if (code == 0)
        code = attach_file(c, fingerprint, NULL, !process, error);
    if (code == 0 && process)
        find_path(c);
    return end_open(c, code, out);
}

int stoc_open_fd(int fd, unsigned flags, const unsigned char *uuid, stoc_cache **out, struct stoc_error *error)
{
    int code = check_open(flags, out, error);
    struct stat st;
    if (code < 0)
        return code;
    int mode = fd < 0 ? -1 : fcntl(fd, F_GETFL);
    if (mode < 0)
        return fail(error, STOC_EINVAL, EBADF, "%d is no open descriptor", fd);
    if ((mode & (O_PATH | O_APPEND)) || (mode & O_ACCMODE) == O_WRONLY)
        return fail(error, STOC_EINVAL, 0,
                    "descriptor %d has the flags %#o: open it O_RDWR or O_RDONLY, without O_PATH and O_APPEND (which "
                    "would move every write to the end)",
                    fd, (unsigned)mode);
    if (stat_fd(fd, &st) != 0)
        return fail_system(error, "stat", "the descriptor");
    if ((code = check_file(&st, "the descriptor's file", error)) < 0)
        return code;
    stoc_cache *c = new_handle(flags | ((mode & O_ACCMODE) == O_RDONLY ? STOC_OPEN_READ_ONLY : 0), error);
    if (!c)
        return STOC_EMEMORY;
    c->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    code = c->fd < 0 ? fail_system(error, "duplicate", "the descriptor") : attach_file(c, NULL, uuid, false, error);
    if (code == 0)
        find_path(c);
    return end_open(c, code, out);
}

/* ------------------------------------------------------------ close, unlink */

/* Removes a path if it names the file of fd. ENOENT: it names another one, or none. */
INTERNAL int unlink_same(const char *path, int fd, struct stoc_error *error)
{
    struct stat here, there;
    if (stat_fd(fd, &here) != 0 || stat_path(path, &there) != 0)
        return open_error(path, error);
    if (here.st_ino != there.st_ino || here.st_dev != there.st_dev)
        return fail(error, STOC_ENOENT, 0, "%s is another file by now", path);
    return unlink(path) == 0 ? 0 : open_error(path, error);
}

/* Removes the name of an unlink_last cache if no other client uses it. The lock description is
 * open. */
static void unlink_if_last(stoc_cache *c)
{
    if (c->path[0] && lock_byte(atomic_load(&c->lock_fd), F_WRLCK, STOC_USERS_LOCK_BYTE) == 1)
        unlink_same(c->path, c->fd, NULL);
}

void stoc_close(stoc_cache *c)
{
    if (!c)
        return;
    stop_threads(&c->pool);
    if (c->disk)
        end_queue(&c->disk->queue, now_ns() + LEAVING_NS);
    uint32_t owner = atomic_load(&c->owner);
    if (owner) {
        uint32_t record = owner - 1;
        /* our own claims: this client holds the record's lock */
        reclaim_record(c, record, record_counters(c, record), STOC_COUNTER_ABORTED);
        store(drawn_word(c, record), 0);
        store(record_word(c, record, STOC_CLIENT_PID), (uint64_t)c->kind << 32);
    }
    if (c->disk)
        disk_leave(c);
    if ((c->flags & STOC_FLAG_UNLINK_LAST) && !c->read_only) {
        if (atomic_load(&c->lock_fd) < 0) /* a forked child that never registered may be the last user too */
            open_lock_description(c, NULL);
        if (atomic_load(&c->lock_fd) >= 0)
            unlink_if_last(c);
    }
    handle_list_remove(c);
    free_handle(c);
}

int stoc_unlink(const char *name_or_path, struct stoc_error *error)
{
    char path[OWN_PATH_BYTES];
    unsigned char magic[8];
    bool read_only = false;
    int fd;
    no_error(error);
    int code = path_of(name_or_path, path, error);
    if (code < 0 || (code = open_file(path, &fd, &read_only, error)) < 0)
        return code;
    int64_t n = pread_all(fd, magic, sizeof magic, STOC_HEADER_MAGIC);
    /* A damaged segment may go. Files that are not caches stay. */
    if (n != sizeof magic || memcmp(magic, STOC_MAGIC, sizeof magic) != 0)
        code = fail(error, STOC_EPERM, 0, "%s does not begin with %s: no segment, and nothing else is removed", path,
                    STOC_MAGIC);
    /* A server that starts now waits for this lock, and then finds the name gone. */
    else if (!read_only && lock_byte(fd, F_WRLCK, STOC_SERVER_LOCK_BYTE) == 0)
        code = fail(error, STOC_EPERM, 0,
                    "%s belongs to a server, which would go on to give it out: take the cache out of the server's "
                    "configuration, and run stocached reload, which removes it",
                    path);
    else
        code = unlink_same(path, fd, error);
    close(fd);
    return code;
}

/*
 * segment.c - create, open, close, unlink.
 */

static void unmap(stoc_cache *c)
{
    if (c->control)
        munmap(c->control, c->control_bytes);
    if (c->payload)
        munmap((void *)(uintptr_t)c->payload, c->payload_bytes);
}

static stoc_cache *new_handle(struct stoc_error *error)
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
    c->kind = STOC_KIND_C;
    c->crc = crc_choose();
    return c;
}

/* Frees a handle that is not on the list (any more). */
static void free_handle(stoc_cache *c, bool keep_maps)
{
    if (!keep_maps)
        unmap(c);
    if (c->fd >= 0)
        close(c->fd);
    for (struct link *l = c->links, *next; l; l = next) {
        next = l->next;
        free(l);
    }
    free(c);
}

/* What the header says becomes the handle's; maps the file behind c->fd. */
static int attach(stoc_cache *c, const struct header *h, struct stoc_error *error)
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
    c->place_shift = c->variable ? STOC_ARENA_PLACE_SHIFT : STOC_FIXED_PLACE_SHIFT;
    c->generation_mask = (UINT64_C(1) << (c->place_shift - GENERATION_SHIFT)) - 1;
    c->layout_minor = h->minor;
    c->field_count = h->field_count;
    memcpy(c->fields, h->fields, sizeof c->fields);
    memcpy(c->uuid, h->uuid, sizeof c->uuid);
    memcpy(c->name, h->name, sizeof c->name);
    memcpy(c->served, h->name, sizeof c->served);
    memcpy(c->fingerprint, h->fingerprint, sizeof c->fingerprint);

    struct rlimit limit;
    if (!c->read_only && getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < g->segment_bytes)
        return fail(error, STOC_EMEMORY, EFBIG, "%s has %llu bytes, this process may write files of %llu at most (RLIMIT_FSIZE); raise it (ulimit -f), or attach read-only", path,
                    (unsigned long long)g->segment_bytes, (unsigned long long)limit.rlim_cur);
    void *control = map_file(c->fd, 0, c->control_bytes, c->read_only ? PROT_READ : PROT_READ | PROT_WRITE);
    if (control == MAP_FAILED)
        goto no_map;
    c->control = control;
    void *payload = map_payload(c->fd, c->payload_offset, c->payload_bytes);
    if (payload == MAP_FAILED)
        goto no_map;
    c->payload = payload;
    c->index = word_at(c, g->index_offset);
    c->sums = g->sums_offset ? word_at(c, g->sums_offset) : NULL;
    c->slot_table = g->slot_table_offset ? word_at(c, g->slot_table_offset) : NULL;
    atomic_store(&c->counters, c->read_only ? c->sink : NULL);
    atomic_store(&c->huge_after, c->read_only || !huge_pages_allowed() ? HUGE_NEVER : 0);
    return 0;
no_map:
    if (errno == ENOMEM)
        return fail(error, STOC_EMEMORY, ENOMEM, "no address space to map the %llu bytes of %s; raise the limit (ulimit -v)", (unsigned long long)g->segment_bytes, path);
    if (errno == EAGAIN)
        return fail(error, STOC_EMEMORY, EAGAIN, "this process locks its memory (mlockall) and may not lock the %llu bytes of %s (RLIMIT_MEMLOCK); raise the limit (ulimit -l)",
                    (unsigned long long)g->segment_bytes, path);
    return fail_system(error, "map", path);
}

/* Checks the file behind c->fd and attaches. */
static int attach_file(stoc_cache *c, const char *fingerprint, const unsigned char *uuid, bool by_name, struct stoc_error *error)
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
        return fail(error, STOC_EFORMAT, 0, "%s has %lld bytes, a header has %d: no segment, or truncated", path, (long long)n, (int)STOC_HEADER_BYTES);
    int code = header_decode(page, (uint64_t)st.st_size, path, &h, error);
    if (code < 0)
        return code;
    if (uuid && memcmp(uuid, h.uuid, 16) != 0)
        return fail(error, STOC_EFORMAT, 0, "%s is another segment than the one asked for (its uuid differs); attach anew", path);
    if (fingerprint && fingerprint[0] && strcmp(fingerprint, h.fingerprint) != 0)
        return fail(error, STOC_EFINGERPRINT, 0, "%s holds \"%s\", not \"%.64s\"; use another name, or remove it (stocached rm %s)", path, h.fingerprint, fingerprint, h.name);
    code = attach(c, &h, error);
    if (code < 0)
        return code;
    handle_list_add(c);
    if (!c->read_only && (code = register_client(c, by_name && (c->flags & STOC_FLAG_NAMED), error)) < 0) {
        if (code == STOC_EREADONLY) { /* no lock description to be had: reading works */
            c->read_only = true;
            atomic_store(&c->counters, c->sink);
            no_error(error);
            return 0;
        }
        handle_list_remove(c);
    }
    return code;
}

/* Where a named cache lies that was opened by descriptor, if it still has its name: for info, and for unlink_last. */
static void find_path(stoc_cache *c)
{
    char own[64];
    struct stat ours, named;
    memset(c->path, 0, sizeof c->path);
    if (!(c->flags & STOC_FLAG_NAMED))
        return;
    snprintf(own, sizeof own, "/proc/self/fd/%d", c->fd);
    /* The creator's descriptor was opened before the file had a name, so only the directory can be believed. */
    char *slash = readlink(own, c->path, sizeof c->path - STOC_NAME_BYTES - 1) > 0 ? strrchr(c->path, '/') : NULL;
    if (slash)
        snprintf(slash + 1, STOC_NAME_BYTES, "%s", c->name);
    if (!slash || stat_fd(c->fd, &ours) != 0 || stat_path(c->path, &named) != 0 || named.st_ino != ours.st_ino || named.st_dev != ours.st_dev)
        memset(c->path, 0, sizeof c->path);
}

static int check_open(unsigned flags, stoc_cache **out, struct stoc_error *error)
{
    no_error(error);
    if (!out)
        return fail(error, STOC_EINVAL, 0, "no place for the handle: out is NULL");
    *out = NULL;
    if (flags & ~(STOC_OPEN_READ_ONLY | STOC_OPEN_KIND_PYTHON))
        return fail(error, STOC_EINVAL, 0, "unknown flags %#x", flags);
    return 0;
}

int stoc_open(const char *name_or_path, unsigned flags, const char *fingerprint, stoc_cache **out, struct stoc_error *error)
{
    int code = check_open(flags, out, error);
    char path[OWN_PATH_BYTES];
    if (code < 0 || (code = path_of(name_or_path, path, error)) < 0)
        return code;
    stoc_cache *c = new_handle(error);
    if (!c)
        return STOC_EMEMORY;
    c->read_only = flags & STOC_OPEN_READ_ONLY;
    if (flags & STOC_OPEN_KIND_PYTHON)
        c->kind = STOC_KIND_PYTHON;
    bool process = is_proc_fd(path);
    memcpy(c->path, path, sizeof path);
    code = open_file(path, &c->fd, &c->read_only, error);
    if (code == 0)
        code = attach_file(c, fingerprint, NULL, !process, error);
    if (code < 0) {
        free_handle(c, false);
        return code;
    }
    if (process)
        find_path(c);
    *out = c;
    return 0;
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
        return fail(error, STOC_EINVAL, 0, "descriptor %d has the flags %#o: open it O_RDWR or O_RDONLY, without O_PATH and O_APPEND (which would move every write to the end)", fd, (unsigned)mode);
    if (stat_fd(fd, &st) != 0)
        return fail_system(error, "stat", "the descriptor");
    if ((code = check_file(&st, "the descriptor's file", error)) < 0)
        return code;
    stoc_cache *c = new_handle(error);
    if (!c)
        return STOC_EMEMORY;
    c->read_only = (flags & STOC_OPEN_READ_ONLY) || (mode & O_ACCMODE) == O_RDONLY;
    if (flags & STOC_OPEN_KIND_PYTHON)
        c->kind = STOC_KIND_PYTHON;
    c->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    code = c->fd < 0 ? fail_system(error, "duplicate", "the descriptor") : attach_file(c, NULL, uuid, false, error);
    if (code < 0) {
        free_handle(c, false);
        return code;
    }
    find_path(c);
    *out = c;
    return 0;
}

/* ------------------------------------------------------------------------------------------------ create */

/* Complaints about options, each naming the option. Fills in the header but for uuid and time. */
static int plan(const char *name, const struct stoc_options *o, struct header *h, struct stoc_error *error)
{
    char why[256];
    memset(h, 0, sizeof *h);
    if (name && !name_valid(name))
        return fail(error, STOC_EINVAL, 0, "name: \"%.120s\" is not 1 to 100 of [A-Za-z0-9._-] with an alphanumeric first", name);
    if (!name && o->directory)
        return fail(error, STOC_EINVAL, 0, "directory: a cache without a name has none; give it a name");
    if (!name && o->unlink_last)
        return fail(error, STOC_EINVAL, 0, "unlink_last: a cache without a name always goes with its last process; leave it out or give a name");
    if (o->samples < 1 || o->samples > STOC_MAX_SAMPLES)
        return fail(error, STOC_EINVAL, 0, "samples: %llu is not in 1..%llu", (unsigned long long)o->samples, (unsigned long long)STOC_MAX_SAMPLES);
    if (o->client_records > STOC_MAX_CLIENT_RECORDS)
        return fail(error, STOC_EINVAL, 0, "client_records: %u is more than %d", o->client_records, (int)STOC_MAX_CLIENT_RECORDS);
    if (o->assign != STOC_FIRST_COME && o->assign != STOC_FIRST_INDICES)
        return fail(error, STOC_EINVAL, 0, "assign: %u is neither first-come (0) nor first-indices (1)", o->assign);
    if (o->variable > 1 || o->reserve > 1 || o->unlink_last > 1)
        return fail(error, STOC_EINVAL, 0, "variable, reserve, unlink_last: %u, %u, %u are not all 0 or 1", o->variable, o->reserve, o->unlink_last);
    if (o->fingerprint && (strnlen(o->fingerprint, STOC_FINGERPRINT_BYTES + 1) > STOC_FINGERPRINT_BYTES || !is_utf8(o->fingerprint, strlen(o->fingerprint))))
        return fail(error, STOC_EINVAL, 0, "fingerprint: it is not UTF-8 of at most %d bytes; hash it", (int)STOC_FINGERPRINT_BYTES);
    if (o->sample_bytes > STOC_MAX_SAMPLE_BYTES)
        return fail(error, STOC_EINVAL, 0, "sample_bytes: %llu is more than %llu", (unsigned long long)o->sample_bytes, (unsigned long long)STOC_MAX_SAMPLE_BYTES);
    if (o->slots > STOC_MAX_SLOTS || o->slots > o->samples)
        return fail(error, STOC_EINVAL, 0, "slots: %llu is more than %llu (samples)", (unsigned long long)o->slots, (unsigned long long)MIN(o->samples, STOC_MAX_SLOTS));
    if (o->variable && o->limit_bytes == 0)
        return fail(error, STOC_EINVAL, 0, "limit_bytes: a variable-size cache needs one, such as 8 GiB");
    if (o->variable && o->slots != 0)
        return fail(error, STOC_EINVAL, 0, "slots: %llu: a variable-size cache has none; give limit_bytes", (unsigned long long)o->slots);
    if (o->variable && o->assign != STOC_FIRST_COME)
        return fail(error, STOC_EINVAL, 0, "assign: first-indices needs samples of one size");
    if (!o->variable && !o->fields && o->sample_bytes == 0)
        return fail(error, STOC_EINVAL, 0, "sample_bytes: give them, or fields, or make the cache variable-size");

    h->major = STOC_LAYOUT_MAJOR;
    h->minor = STOC_LAYOUT_MINOR;
    h->creator_uid = (uint32_t)geteuid();
    h->limit_bytes = o->limit_bytes;
    h->sample_bytes = o->sample_bytes;
    if (name)
        snprintf(h->name, sizeof h->name, "%s", name);
    if (o->fingerprint)
        snprintf(h->fingerprint, sizeof h->fingerprint, "%s", o->fingerprint);
    h->field_count = 1;
    if (o->fields) {
        if (o->field_count < 1 || o->field_count > STOC_MAX_FIELDS)
            return fail(error, STOC_EINVAL, 0, "fields: %u are not in 1..%d", o->field_count, (int)STOC_MAX_FIELDS);
        h->field_count = o->field_count;
        memcpy(h->fields, o->fields, o->field_count * sizeof *o->fields);
    } else {
        h->fields[0] = (struct stoc_field){.name = "data", .dtype = STOC_UINT8, .ndim = 1, .dims = {o->variable ? STOC_VARIABLE_DIM : o->sample_bytes}};
    }
    for (uint32_t k = 0; k < h->field_count; k++) { /* what the caller leaves undefined must not get into the header */
        struct stoc_field *f = &h->fields[k];
        size_t n = strnlen(f->name, sizeof f->name);
        memset(f->name + n, 0, sizeof f->name - n);
        f->reserved = 0;
        for (unsigned d = f->ndim; d < STOC_MAX_DIMS; d++)
            f->dims[d] = 0;
    }
    uint64_t sample_bytes, stride;
    if (!schema_lay_out(h->fields, h->field_count, o->variable, &sample_bytes, &stride, why))
        return fail(error, STOC_EINVAL, 0, "fields: %s", why);
    if (!o->variable && o->sample_bytes != 0 && o->sample_bytes != sample_bytes)
        return fail(error, STOC_EINVAL, 0, "sample_bytes: %llu, but the fields make %llu; leave it out", (unsigned long long)o->sample_bytes, (unsigned long long)sample_bytes);

    uint32_t flags = (o->variable ? STOC_FLAG_VARIABLE : 0) | (o->unlink_last ? STOC_FLAG_UNLINK_LAST : 0) |
                     (o->reserve ? STOC_FLAG_RESERVED : 0) | (name ? STOC_FLAG_NAMED : 0);
    uint32_t records = o->client_records ? o->client_records : (uint32_t)STOC_DEFAULT_CLIENT_RECORDS;
    if (o->variable) {
        uint64_t smallest = units_for(sample_bytes) * STOC_UNIT_BYTES;
        if (h->sample_bytes == 0)
            h->sample_bytes = STOC_MAX_SAMPLE_BYTES;
        if (h->sample_bytes < sample_bytes)
            return fail(error, STOC_EINVAL, 0, "sample_bytes: %llu, but the smallest sample of these fields has %llu; leave it out, or raise it", (unsigned long long)h->sample_bytes,
                        (unsigned long long)sample_bytes);
        if (!geometry_of(flags, o->assign, o->samples, 0, STOC_UNIT_BYTES, records, smallest, &h->g, why))
            return fail(error, STOC_EINVAL, 0, "%s", why);
        if (o->limit_bytes < h->g.segment_bytes)
            return fail(error, STOC_EMEMORY, 0, "an arena for the smallest of %llu samples (%llu bytes) makes a segment of %llu bytes, over the limit of %llu; raise the limit to that at least",
                        (unsigned long long)o->samples, (unsigned long long)smallest, (unsigned long long)h->g.segment_bytes, (unsigned long long)o->limit_bytes);
        uint64_t payload = (o->limit_bytes - h->g.payload_offset) / STOC_REGION_ALIGN * STOC_REGION_ALIGN;
        payload = MIN(payload, STOC_MAX_ARENA_BYTES - STOC_UNIT_BYTES);
        if (!geometry_of(flags, o->assign, o->samples, 0, STOC_UNIT_BYTES, records, payload, &h->g, why))
            return fail(error, STOC_EINVAL, 0, "%s", why);
        return 0;
    }
    h->sample_bytes = sample_bytes;
    uint64_t slots = o->slots ? o->slots : MIN(o->samples, STOC_MAX_SLOTS), wanted = o->slots ? o->slots : 1;
    if (o->slots == 0 && o->limit_bytes != 0) { /* the most whose segment stays within the limit; a geometry outside the format is larger than any limit */
        uint64_t low = 0, high = slots;
        while (low < high) {
            uint64_t middle = low + (high - low + 1) / 2;
            if (geometry_of(flags, o->assign, o->samples, middle, stride, records, 0, &h->g, why) && h->g.segment_bytes <= o->limit_bytes)
                low = middle;
            else
                high = middle - 1;
        }
        slots = low;
    }
    bool fits = slots > 0 && geometry_of(flags, o->assign, o->samples, slots, stride, records, 0, &h->g, why);
    if (o->limit_bytes != 0 && (!fits || h->g.segment_bytes > o->limit_bytes)) {
        if (!geometry_of(flags, o->assign, o->samples, wanted, stride, records, 0, &h->g, why))
            return fail(error, STOC_EINVAL, 0, "%s", why);
        return fail(error, STOC_EMEMORY, 0, "%llu slots of %llu bytes for %llu samples make a segment of %llu bytes, over the limit of %llu; raise the limit to that at least",
                    (unsigned long long)wanted, (unsigned long long)stride, (unsigned long long)o->samples, (unsigned long long)h->g.segment_bytes, (unsigned long long)o->limit_bytes);
    }
    if (!fits)
        return fail(error, STOC_EINVAL, 0, "%s", why);
    return 0;
}

/* What went wrong while a file was made: errno. */
static int create_error(const char *what, const struct geometry *g, struct stoc_error *error)
{
    switch (errno) {
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EFBIG:
        return fail(error, STOC_EMEMORY, errno, "%s: no room; the segment has %llu bytes, %llu of them taken at once; give a smaller limit, remove caches (stocached gc), or enlarge the tmpfs", what,
                    (unsigned long long)g->segment_bytes, (unsigned long long)g->payload_offset);
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
    struct room room; /* that became short */
};

/* Others take memory meanwhile: look before each step, or the kernel kills instead of refusing. */
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

/* Pages for the control part, because a hole there would be a SIGBUS on a full tmpfs, and for the payload if it is reserved; the header. The file has no name yet. */
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
    begin_huge(fd, g->payload_offset);
    if (allocate(fd, 0, g->payload_offset, NULL, NULL) != 0)
        return create_error("take the pages of the control part", g, error);
    if (o->reserve && allocate(fd, g->payload_offset, g->segment_bytes - g->payload_offset, grant_to_reserve, &r) != 0) {
        if (errno != ECANCELED)
            return create_error("reserve the payload", g, error);
        return fail(error, STOC_EMEMORY, 0, "reserve the payload: %s has %s available of %s, at or below the floor of %s; give a smaller limit, or leave out reserve", r.room.what,
                    size_text(r.room.available, have), size_text(r.room.total, all), size_text(room_floor(&r.room), least));
    }
    return pwrite_all(fd, page, sizeof page, 0) != 0 ? create_error("write the header", g, error) : 0;
}

static int exists_error(const stoc_cache *c, struct stoc_error *error)
{
    return fail(error, STOC_EEXIST, EEXIST, "%s exists; attach to it, take another name, or remove it first (stocached rm)", c->path);
}

static int create_named(stoc_cache *c, const struct header *h, const struct stoc_options *o, const char *directory, int directory_fd, struct stoc_error *error)
{
    char own[64];
    struct statfs fs;
    struct stat st;
    int code;
    if (fstatfs(directory_fd, &fs) != 0)
        return fail_system(error, "statfs", directory);
    if ((uint32_t)fs.f_type != TMPFS_MAGIC) /* pages of a disk file system would be written back, and its locks and maps may be anything */
        return fail(error, STOC_EINVAL, 0, "directory: %s is on a file system of type %#x, not on a tmpfs; leave it out (/dev/shm), or mount one there", directory, (unsigned)fs.f_type);
    if (stat_path(c->path, &st) == 0) /* linkat decides; looking first saves the work */
        return exists_error(c, error);
    if ((code = check_budget(h->g.segment_bytes, &fs, directory, error)) < 0)
        return code;
    c->fd = openat(directory_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (c->fd < 0)
        return create_error("make a file in the directory", &h->g, error);
    if ((code = fill_new_file(c->fd, h, o, error)) < 0 || (code = attach(c, h, error)) < 0)
        return code;
    handle_list_add(c); /* registered before it has a name, so that with unlink_last nobody is the last user before us */
    if ((code = register_client(c, false, error)) == 0) {
        snprintf(own, sizeof own, "/proc/self/fd/%d", c->fd);
        if (linkat(AT_FDCWD, own, directory_fd, h->name, AT_SYMLINK_FOLLOW) == 0)
            return 0;
        code = errno == EEXIST ? exists_error(c, error) : create_error("name the file", &h->g, error);
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
    snprintf(name, sizeof name, "stocached:%02x%02x%02x%02x", h->uuid[0], h->uuid[1], h->uuid[2], h->uuid[3]); /* `stocached ls` finds it by this name, through /proc */
    c->fd = memfd(name);
    if (c->fd < 0)
        return create_error("make a memfd", &h->g, error);
    if ((code = fill_new_file(c->fd, h, o, error)) < 0)
        return code;
    if (fcntl(c->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) /* nobody can truncate it under its readers any more */
        return create_error("seal the memfd", &h->g, error);
    if ((code = attach(c, h, error)) < 0)
        return code;
    handle_list_add(c);
    if ((code = register_client(c, false, error)) < 0)
        handle_list_remove(c);
    return code;
}

/* The path of a new cache goes to c->path. */
static int create_in_directory(stoc_cache *c, const struct header *h, const struct stoc_options *o, struct stoc_error *error)
{
    char directory[OWN_PATH_BYTES];
    int fd, code;
    if (o->directory) {
        size_t n = strnlen(o->directory, OWN_PATH_BYTES);
        if (n == 0 || n + 102 > OWN_PATH_BYTES)
            return fail(error, STOC_EINVAL, 0, "directory: its path has %zu bytes, not 1 to %d", n, OWN_PATH_BYTES - 102);
        while (n > 1 && o->directory[n - 1] == '/')
            n--;
        snprintf(directory, sizeof directory, "%.*s", (int)n, o->directory);
    } else {
        default_directory(directory, sizeof directory);
    }
    if (snprintf(c->path, sizeof c->path, "%s/%s", directory, h->name) >= (int)sizeof c->path)
        return fail(error, STOC_EINVAL, 0, "directory: the path is longer than %d bytes", OWN_PATH_BYTES - 1);
    code = open_directory(directory, true, &fd, error);
    if (code == STOC_ENOENT)
        return fail(error, STOC_EINVAL, ENOENT, "directory: %s does not exist; make it, or mount a tmpfs there", directory);
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
    if (code < 0)
        return code;
    if (!options)
        return fail(error, STOC_EINVAL, 0, "no options given");
    if (options->struct_bytes != sizeof *options)
        return fail(error, STOC_EINVAL, 0, "struct_bytes: %llu, this library's options have %zu; set it to sizeof(struct stoc_options) and use the header of this version",
                    (unsigned long long)options->struct_bytes, sizeof *options);
    if (options->open_flags & ~STOC_OPEN_KIND_PYTHON || options->reserved)
        return fail(error, STOC_EINVAL, 0, "open_flags: %#x and reserved: %#x; set them to 0", options->open_flags, options->reserved);
    if ((code = plan(name, options, &h, error)) < 0)
        return code;
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < h.g.segment_bytes)
        return fail(error, STOC_EMEMORY, EFBIG, "the cache takes %llu bytes, this process may write files of %llu at most (RLIMIT_FSIZE); raise it (ulimit -f)",
                    (unsigned long long)h.g.segment_bytes, (unsigned long long)limit.rlim_cur);
    stoc_cache *c = new_handle(error);
    if (!c)
        return STOC_EMEMORY;
    if (options->open_flags & STOC_OPEN_KIND_PYTHON)
        c->kind = STOC_KIND_PYTHON;
    h.created_ns = (int64_t)clock_ns(CLOCK_REALTIME);
    if (random_bytes(h.uuid, sizeof h.uuid) != 0)
        code = fail_system(error, "read", "/dev/urandom");
    else
        code = name ? create_in_directory(c, &h, options, error) : create_unnamed(c, &h, options, error);
    if (code < 0) {
        free_handle(c, false);
        return code;
    }
    *out = c;
    return 0;
}

/* ------------------------------------------------------------------------------------------------ close, unlink */

/* Removes the name of an unlink_last cache if nobody else uses it. The lock description is open. */
static void unlink_if_last(stoc_cache *c)
{
    struct stat ours, theirs;
    if (!c->path[0] || lock_byte(atomic_load(&c->lock_fd), F_WRLCK, STOC_USERS_LOCK_BYTE) != 1)
        return;
    if (stat_fd(c->fd, &ours) == 0 && stat_path(c->path, &theirs) == 0 && ours.st_ino == theirs.st_ino && ours.st_dev == theirs.st_dev)
        unlink(c->path);
}

static void close_handle(stoc_cache *c, bool keep_maps)
{
    if (!c)
        return;
    dismiss(&c->crew);
    uint32_t owner = atomic_load(&c->owner);
    if (owner) {
        uint32_t record = owner - 1;
        take_back(c, record, record_counters(c, record), STOC_COUNTER_ABORTED); /* our own: nobody else has the record's lock */
        store(drawn_word(c, record), 0);
        store(record_word(c, record, STOC_CLIENT_PID), (uint64_t)c->kind << 32);
    }
    if ((c->flags & STOC_FLAG_UNLINK_LAST) && !c->read_only) {
        if (atomic_load(&c->lock_fd) < 0) /* a forked child that never counted: it may be the last all the same */
            open_lock_description(c, NULL);
        if (atomic_load(&c->lock_fd) >= 0)
            unlink_if_last(c);
    }
    handle_list_remove(c);
    free_handle(c, keep_maps);
}

void stoc_close(stoc_cache *c) { close_handle(c, false); }

void stoc_close_keep_maps(stoc_cache *c) { close_handle(c, true); }

int stoc_unlink(const char *name_or_path, struct stoc_error *error)
{
    char path[OWN_PATH_BYTES];
    struct stat here, there;
    unsigned char magic[8];
    bool read_only = true;
    int fd;
    no_error(error);
    int code = path_of(name_or_path, path, error);
    if (code < 0 || (code = open_file(path, &fd, &read_only, error)) < 0)
        return code;
    int64_t n = pread_all(fd, magic, sizeof magic, STOC_HEADER_MAGIC);
    /* A damaged segment may go, another file never: nothing but caches is ever removed. */
    if (n != sizeof magic || memcmp(magic, STOC_MAGIC, sizeof magic) != 0)
        code = fail(error, STOC_EPERM, 0, "%s does not begin with %s: no segment, and nothing else is removed", path, STOC_MAGIC);
    else if (stat_fd(fd, &here) != 0 || stat_path(path, &there) != 0)
        code = open_error(path, error);
    else if (here.st_ino != there.st_ino || here.st_dev != there.st_dev)
        code = fail(error, STOC_ENOENT, 0, "%s is another file by now", path);
    else if (unlink(path) != 0)
        code = open_error(path, error);
    close(fd);
    return code;
}

/*
 * create.c - creates a segment, with or without a name. docs/spec/segment.md, Create.
 */
#include "protocol.h"

static const char *const policies[] = {"first-come", "first-indices", "cost", "random",  "clock",
                                       "fifo",       "lru",           "lfu",  "planned"};

/* The largest number of slots within the limit; a geometry outside the format counts as too large. */
static uint64_t most_slots(const struct stoc_options *o, uint32_t flags, uint32_t records, uint64_t stride,
                           uint64_t most)
{
    struct geometry g;
    char why[256];
    uint64_t low = 0, high = most;
    while (low < high) {
        uint64_t middle = low + (high - low + 1) / 2;
        if (geometry_of(flags, o->policy, o->samples, middle, stride, records, 0, &g, why) &&
            g.segment_bytes <= o->limit_bytes)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Bytes as MiB, rounded down. */
static void mebibytes(char text[32], uint64_t bytes)
{
    uint64_t hundredths = bytes / (1 << 20) * 100 + (bytes % (1 << 20) * 100 >> 20);
    snprintf(text, 32, "%llu.%02llu MiB", (unsigned long long)(hundredths / 100), (unsigned long long)(hundredths % 100));
}

/* The same, rounded up. */
static void mebibytes_up(char text[32], uint64_t bytes) { mebibytes(text, bytes + ((1 << 20) + 99) / 100 - 1); }

/* The error of a size that is less than what is needed. next is the next step. */
static int too_small(uint64_t limit, uint64_t need, const char *needs, const char *next, struct stoc_error *error)
{
    char needed[32], shown[32];
    mebibytes_up(needed, need);
    if (limit < 1 << 20)
        snprintf(shown, sizeof shown, "%llu bytes", (unsigned long long)limit);
    else
        mebibytes(shown, limit);
    return fail(error, STOC_EMEMORY, 0, "%s %s, more than the size of %s; %s%s", needs, needed, shown, next,
                limit < 1 << 20 ? ". A size without a unit is bytes" : "");
}

/* The next step for a cache whose samples have their own sizes each. */
static const char more_for_samples[] = "give that much, and as many bytes more as the samples have that it is to hold";

/* Which sizes hold all samples, half of them and one. */
static void advise_size(char text[200], const struct stoc_options *o, uint32_t flags, uint32_t records, uint64_t stride)
{
    uint64_t all = MIN(o->samples, STOC_MAX_SLOTS), slots[] = {all, (all + 1) / 2, 1};
    static const char *const what[] = {"hold all samples", "half of them", "one"};
    char shown[32], why[256];
    struct geometry g;
    size_t n = 0;
    for (int k = 0; k < 3; k++) {
        if (!geometry_of(flags, o->policy, o->samples, slots[k], stride, records, 0, &g, why))
            continue;
        mebibytes_up(shown, g.segment_bytes);
        n += (size_t)snprintf(text + n, 200 - n, "%s%s %s", n ? ", " : "", shown, what[k]);
    }
}

/* An arena that evicts: as many slots as the limit allows. Their size is the largest with 8 slots for each
 * sample, if the caller gives none: docs/spec/arena-eviction.md, The segment. */
static int plan_chains(const struct stoc_options *o, uint32_t flags, uint32_t records, struct geometry *g,
                       struct stoc_error *error)
{
    char why[256];
    uint64_t stride = o->slot_bytes ? o->slot_bytes : STOC_MAX_CHAIN_STRIDE, slots;
    for (;; stride /= 2) {
        if (!geometry_of(flags, o->policy, o->samples, 1, stride, records, 0, g, why))
            return fail(error, STOC_EINVAL, 0, "%s", why);
        slots = most_slots(o, flags, records, stride, MIN(o->limit_bytes / stride, STOC_MAX_SLOTS));
        if (o->slot_bytes || stride == STOC_UNIT_BYTES || slots >= 8 * o->samples)
            break;
    }
    if (slots == 0) {
        snprintf(why, sizeof why, "one slot of %llu bytes for %llu samples needs", (unsigned long long)stride,
                 (unsigned long long)o->samples);
        return too_small(o->limit_bytes, g->segment_bytes, why, more_for_samples, error);
    }
    geometry_of(flags, o->policy, o->samples, slots, stride, records, 0, g, why);
    return 0;
}

/* Checks the options; each error names its option. Fills in the header except uuid and time. */
INTERNAL int plan(const char *name, const struct stoc_options *o, struct header *h, struct stoc_error *error)
{
    char why[256];
    memset(h, 0, sizeof *h);
    if (name && !name_valid(name))
        return fail(error, STOC_EINVAL, 0,
                    "name: \"%.120s\" is not 1 to 100 of [A-Za-z0-9._-] with an alphanumeric first", name);
    if (!name && o->directory)
        return fail(error, STOC_EINVAL, 0, "directory: a cache without a name has none; give it a name");
    if (!name && o->unlink_last)
        return fail(
            error, STOC_EINVAL, 0,
            "unlink_last: a cache without a name always goes with its last process; leave it out or give a name");
    if (o->samples < 1 || o->samples > STOC_MAX_SAMPLES)
        return fail(error, STOC_EINVAL, 0, "samples: %llu is not in 1..%llu", (unsigned long long)o->samples,
                    (unsigned long long)STOC_MAX_SAMPLES);
    if (o->client_records > STOC_MAX_CLIENT_RECORDS)
        return fail(error, STOC_EINVAL, 0, "client_records: %u is more than %d", o->client_records,
                    (int)STOC_MAX_CLIENT_RECORDS);
    if (o->policy > STOC_POLICY_PLANNED)
        return fail(error, STOC_EINVAL, 0, "policy: %u is not one of 0 to %d", o->policy, STOC_POLICY_PLANNED);
    if (o->variable > 1 || o->reserve > 1 || o->unlink_last > 1)
        return fail(error, STOC_EINVAL, 0, "variable, reserve, unlink_last: %u, %u, %u are not all 0 or 1", o->variable,
                    o->reserve, o->unlink_last);
    if (o->fingerprint && (strnlen(o->fingerprint, STOC_FINGERPRINT_BYTES + 1) > STOC_FINGERPRINT_BYTES ||
                           !is_utf8(o->fingerprint, strlen(o->fingerprint))))
        return fail(error, STOC_EINVAL, 0, "fingerprint: it is not UTF-8 of at most %d bytes; hash it",
                    (int)STOC_FINGERPRINT_BYTES);
    if (o->sample_bytes > STOC_MAX_SAMPLE_BYTES)
        return fail(error, STOC_EINVAL, 0, "sample_bytes: %llu is more than %llu", (unsigned long long)o->sample_bytes,
                    (unsigned long long)STOC_MAX_SAMPLE_BYTES);
    if (o->slots > STOC_MAX_SLOTS || o->slots > o->samples)
        return fail(error, STOC_EINVAL, 0, "slots: %llu is more than %llu (samples)", (unsigned long long)o->slots,
                    (unsigned long long)MIN(o->samples, STOC_MAX_SLOTS));
    if (o->variable && o->limit_bytes == 0)
        return fail(error, STOC_EINVAL, 0, "limit_bytes: a variable-size cache needs one, such as 8 GiB");
    if (o->variable && o->slots != 0)
        return fail(error, STOC_EINVAL, 0, "slots: %llu: a variable-size cache has none; give limit_bytes",
                    (unsigned long long)o->slots);
    if (o->variable && o->policy == STOC_POLICY_FIRST_INDICES)
        return fail(error, STOC_EINVAL, 0, "policy: %s needs samples of one size", policies[o->policy]);
    if (o->slot_bytes && !(o->variable && policy_evicts(o->policy)))
        return fail(error, STOC_EINVAL, 0, "slot_bytes: %llu: only of a variable-size cache that evicts",
                    (unsigned long long)o->slot_bytes);
    if (o->slot_bytes && (o->slot_bytes < STOC_UNIT_BYTES || o->slot_bytes > STOC_MAX_CHAIN_STRIDE ||
                          (o->slot_bytes & (o->slot_bytes - 1))))
        return fail(error, STOC_EINVAL, 0,
                    "slot_bytes: %llu is not a power of two from %d to %d; 0 is a size that suits the samples",
                    (unsigned long long)o->slot_bytes, (int)STOC_UNIT_BYTES, (int)STOC_MAX_CHAIN_STRIDE);
    if (!o->variable && !o->fields && o->sample_bytes == 0)
        return fail(error, STOC_EINVAL, 0, "sample_bytes: give them, or fields, or make the cache variable-size");

    h->version = STOC_LAYOUT_VERSION;
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
        h->fields[0] = (struct stoc_field){.name = "data", .dtype = STOC_UINT8, .ndim = 1,
                                           .dims = {o->variable ? STOC_VARIABLE_DIM : o->sample_bytes}};
    }
    for (uint32_t k = 0; k < h->field_count; k++) {
        /* bytes that the caller leaves undefined must not reach the header */
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
        return fail(error, STOC_EINVAL, 0, "sample_bytes: %llu, but the fields make %llu; leave it out",
                    (unsigned long long)o->sample_bytes, (unsigned long long)sample_bytes);

    uint32_t flags = (o->variable ? STOC_FLAG_VARIABLE : 0) | (o->unlink_last ? STOC_FLAG_UNLINK_LAST : 0) |
                     (o->reserve ? STOC_FLAG_RESERVED : 0) | (name ? STOC_FLAG_NAMED : 0);
    uint32_t records = o->client_records ? o->client_records : (uint32_t)STOC_DEFAULT_CLIENT_RECORDS;
    if (o->variable) {
        uint64_t smallest = units_for(sample_bytes) * STOC_UNIT_BYTES;
        if (h->sample_bytes == 0)
            h->sample_bytes = STOC_MAX_SAMPLE_BYTES;
        if (h->sample_bytes < sample_bytes)
            return fail(
                error, STOC_EINVAL, 0,
                "sample_bytes: %llu, but the smallest sample of these fields has %llu; leave it out, or raise it",
                (unsigned long long)h->sample_bytes, (unsigned long long)sample_bytes);
        if (policy_evicts(o->policy))
            return plan_chains(o, flags, records, &h->g, error);
        if (!geometry_of(flags, o->policy, o->samples, 0, STOC_UNIT_BYTES, records, smallest, &h->g, why))
            return fail(error, STOC_EINVAL, 0, "%s", why);
        if (o->limit_bytes < h->g.segment_bytes) {
            snprintf(why, sizeof why, "the smallest of %llu samples (%llu bytes) needs", (unsigned long long)o->samples,
                     (unsigned long long)smallest);
            return too_small(o->limit_bytes, h->g.segment_bytes, why, more_for_samples, error);
        }
        uint64_t payload = (o->limit_bytes - h->g.payload_offset) / STOC_REGION_ALIGN * STOC_REGION_ALIGN;
        payload = MIN(payload, STOC_MAX_ARENA_BYTES - STOC_UNIT_BYTES);
        if (!geometry_of(flags, o->policy, o->samples, 0, STOC_UNIT_BYTES, records, payload, &h->g, why))
            return fail(error, STOC_EINVAL, 0, "%s", why);
        return 0;
    }
    h->sample_bytes = sample_bytes;
    uint64_t slots = o->slots ? o->slots : MIN(o->samples, STOC_MAX_SLOTS), wanted = o->slots ? o->slots : 1;
    if (o->slots == 0 && o->limit_bytes != 0)
        slots = most_slots(o, flags, records, stride, slots);
    bool fits = slots > 0 && geometry_of(flags, o->policy, o->samples, slots, stride, records, 0, &h->g, why);
    if (o->limit_bytes != 0 && (!fits || h->g.segment_bytes > o->limit_bytes)) {
        if (!geometry_of(flags, o->policy, o->samples, wanted, stride, records, 0, &h->g, why))
            return fail(error, STOC_EINVAL, 0, "%s", why);
        if (o->slots) {
            snprintf(why, sizeof why, "%llu slots of %llu bytes for %llu samples need", (unsigned long long)wanted,
                     (unsigned long long)stride, (unsigned long long)o->samples);
            return too_small(o->limit_bytes, h->g.segment_bytes, why, "give that much, or fewer slots", error);
        }
        char advice[200] = "";
        advise_size(advice, o, flags, records, stride);
        snprintf(why, sizeof why, "one slot of %llu bytes for %llu samples needs", (unsigned long long)stride,
                 (unsigned long long)o->samples);
        return too_small(o->limit_bytes, h->g.segment_bytes, why, advice, error);
    }
    if (!fits)
        return fail(error, STOC_EINVAL, 0, "%s", why);
    return 0;
}

/* The error of a system call that failed while making the file. Reads errno. */
static int create_error(const char *what, const struct geometry *g, struct stoc_error *error)
{
    switch (errno) {
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EFBIG:
        return fail(error, STOC_EMEMORY, errno,
                    "%s: no space; the segment has %llu bytes, %llu of them taken at once; give a smaller limit, "
                    "remove caches (stocached gc), or enlarge the tmpfs",
                    what, (unsigned long long)g->segment_bytes, (unsigned long long)g->payload_offset);
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
    begin_huge(fd, g->payload_offset);
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
 * every version keeps. EEXIST for any other file there; EVERSION with the users. */
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
    else if (alone)
        code = unlink_same(c->path, fd, error);
    else
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
    int code;
    if (fstatfs(directory_fd, &fs) != 0)
        return fail_system(error, "statfs", directory);
    /* a disk file system would write pages back, and its locks and maps may differ */
    if ((uint32_t)fs.f_type != TMPFS_MAGIC)
        return fail(error, STOC_EINVAL, 0,
                    "directory: %s is on a file system of type %#x, not on a tmpfs; leave it out (/dev/shm), or mount "
                    "one there",
                    directory, (unsigned)fs.f_type);
    if ((code = make_way(c, h->g.policy, error)) < 0 ||
        (code = check_budget(h->g.segment_bytes, &fs, directory, error)) < 0)
        return code;
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
            return fail(error, STOC_EINVAL, 0, "directory: its path has %zu bytes, not 1 to %d", n,
                        OWN_PATH_BYTES - 102);
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
        return fail(error, STOC_EINVAL, ENOENT, "directory: %s does not exist; make it, or mount a tmpfs there",
                    directory);
    if (code < 0)
        return code;
    code = create_named(c, h, o, directory, fd, error);
    close(fd);
    return code;
}

/* Copies the options, if they are of this version. */
INTERNAL int take_options(const struct stoc_options *options, struct stoc_options *known, struct stoc_error *error)
{
    memset(known, 0, sizeof *known);
    if (!options)
        return fail(error, STOC_EINVAL, 0, "no options given");
    if (check_struct(options->struct_bytes, sizeof *options, "options", "options", "", error) < 0)
        return STOC_EINVAL;
    *known = *options;
    if (known->open_flags & ~STOC_OPEN_KIND_PYTHON || known->reserved)
        return fail(error, STOC_EINVAL, 0, "open_flags: %#x and reserved: %#x; set them to 0", known->open_flags,
                    known->reserved);
    return 0;
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
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < h.g.segment_bytes)
        return fail(error, STOC_EMEMORY, EFBIG,
                    "the cache takes %llu bytes, this process may write files of %llu at most (RLIMIT_FSIZE); raise it "
                    "(ulimit -f)",
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

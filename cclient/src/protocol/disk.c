/*
 * disk.c - a segment in an ordinary file, which processes share without a server. The file is never mapped; its
 * control part lies in memory. docs/spec/segment.md, On a disk.
 */
#include "protocol.h"

enum { FILE_LOCK = 0, OPENING_LOCK = 1 }; /* bytes of the file */

#define OPENING_NS UINT64_C(60000000000) /* limits the wait for others that open the file, and read its index */
#define ENDING_NS UINT64_C(1000000000)   /* limits the wait for the end of others whose control part is gone */
#define FIRST_PAUSE_NS UINT64_C(250000000)
#define LAST_PAUSE_NS UINT64_C(15000000000)
#define FORGIVEN_NS UINT64_C(10000000000) /* after so long without a failure the pauses begin again */
#define FULL_PAUSE_NS UINT64_C(1000000000)
#define INDEX_STEP MIB
enum {
    AGAIN = 1, /* the path or the control part is another one by now: open it again */
    UNSEEN,    /* others use the file, and their control part is not there */
};

/* ------------------------------------------------------------ failures */

/* Leaves the disk out for a while: longer if it failed a short time ago, or if a try has failed. */
INTERNAL void disk_failed(stoc_cache *c)
{
    struct disk *d = c->disk;
    uint64_t now = now_ns(), pause = atomic_load(&d->pause);
    stoc_word *counters = atomic_load(&c->counters); /* not counters_of: it may be under way */
    if (counters)
        add_to(counters, STOC_COUNTER_PASSED, 1);
    bool trial = atomic_exchange(&d->tried, false);
    if (!trial && now < atomic_load(&d->out_until))
        return; /* another call has failed at the same time */
    bool again = trial || (pause && now - MIN(atomic_load(&d->back_at), now) < FORGIVEN_NS);
    pause = again ? MIN(2 * pause, LAST_PAUSE_NS) : FIRST_PAUSE_NS;
    atomic_store(&d->pause, pause);
    atomic_store(&d->out_until, now + pause);
}

/* Whether a call may use the disk. After a pause one call may, and the others wait for its end. */
static bool disk_works(stoc_cache *c)
{
    struct disk *d = c->disk;
    uint64_t until = atomic_load_explicit(&d->out_until, memory_order_relaxed);
    if (LIKELY(until == 0))
        return true;
    uint64_t now = now_ns();
    if (now < until || !atomic_compare_exchange_strong(&d->out_until, &until, now + atomic_load(&d->pause)))
        return false;
    atomic_store(&d->tried, true);
    return true;
}

/* A call has read or written. */
static void disk_answered(struct disk *d)
{
    if (LIKELY(atomic_load_explicit(&d->out_until, memory_order_relaxed) == 0))
        return;
    atomic_store(&d->tried, false);
    atomic_store(&d->back_at, now_ns());
    atomic_store(&d->out_until, 0);
}

/* A call that may use the disk has neither read nor written: the next call tries a disk that is left out. */
static void disk_not_tried(struct disk *d)
{
    if (UNLIKELY(atomic_load_explicit(&d->out_until, memory_order_relaxed) != 0) && atomic_exchange(&d->tried, false))
        atomic_store(&d->out_until, 1);
}

/* Whether the handle is a client of the file. A forked child becomes one here. */
static bool uses(stoc_cache *c)
{
    uint32_t owner;
    struct disk *d = c->disk;
    if (LIKELY(atomic_load_explicit(&c->owner, memory_order_acquire) != 0))
        return true;
    if (atomic_load(&d->left))
        return false;
    int code = require_owner(c, &owner);
    if (code == STOC_ENOENT)
        atomic_store(&d->left, true);
    else if (code < 0)
        disk_failed(c);
    return code == 0;
}

/* Whether the disk takes samples now. */
INTERNAL bool disk_accepts(stoc_cache *c)
{
    uint64_t full = atomic_load_explicit(&c->disk->full_until, memory_order_relaxed);
    return (full == 0 || now_ns() >= full) && disk_works(c) && uses(c);
}

/* Whether it is worth to queue a sample. It takes no turn of a disk that is left out. */
INTERNAL bool disk_may_accept(stoc_cache *c)
{
    uint64_t now = now_ns(), out = atomic_load(&c->disk->out_until), full = atomic_load(&c->disk->full_until);
    return now >= out && now >= full && uses(c);
}

/* Writes to the file: 0, or -1 with errno. Leaves the disk out after a failure, and stops sets if it is full. */
INTERNAL int disk_write(stoc_cache *c, const void *data, size_t length, uint64_t offset)
{
    bool over = offset + length > most_file_bytes(); /* a write beyond it raises SIGXFSZ */
    if (over)
        errno = EFBIG;
    if (!over && pwrite_all(c->disk->fd, data, length, offset) == 0) {
        disk_answered(c->disk);
        return 0;
    }
    int number = errno;
    if (number == ENOSPC || number == EDQUOT || number == EFBIG)
        atomic_store(&c->disk->full_until, now_ns() + FULL_PAUSE_NS);
    else
        disk_failed(c);
    errno = number;
    return -1;
}

/* ------------------------------------------------------------ the index in the file */

/* Writes the index record of a sample to the file. If that fails, hits are lost after the next start. */
INTERNAL void persist(stoc_cache *c, uint64_t sample)
{
    const struct disk *d = c->disk;
    if (LIKELY(!d))
        return;
    if (c->variable) {
        uint64_t sum = load(sum_word(c, sample));
        if (disk_write(c, &sum, sizeof sum, d->sums_offset + sample * STOC_SUM_RECORD_BYTES) != 0)
            return;
    }
    uint64_t record[2] = {load(index_word(c, sample)), load(meta_word(c, sample))};
    disk_write(c, record, sizeof record, d->index_offset + sample * STOC_INDEX_RECORD_BYTES);
    STOC_FAULT("persist.record");
}

/* Writes a region of the control part, which other processes may change, to the file. */
static void persist_region(stoc_cache *c, const stoc_word *from, uint64_t words, uint64_t offset)
{
    uint64_t part[512];
    for (uint64_t at = 0, n; at < words; at += n) {
        n = MIN(words - at, sizeof part / sizeof *part);
        for (uint64_t k = 0; k < n; k++)
            part[k] = load(from + at + k);
        if (disk_write(c, part, n * sizeof *part, offset + at * sizeof *part) != 0)
            return;
    }
}

/* Writes the whole index to the file. */
INTERNAL void persist_all(stoc_cache *c)
{
    if (!c->disk)
        return;
    persist_region(c, c->index, 2 * c->samples, c->disk->index_offset);
    if (c->variable)
        persist_region(c, c->sums, c->samples, c->disk->sums_offset);
}

/* Reads a region of the file into the control part, before other processes have it. */
static int read_region(const stoc_cache *c, unsigned char *to, uint64_t length, uint64_t offset, struct stoc_error *error)
{
    for (uint64_t at = 0, n; at < length; at += n) {
        n = MIN(length - at, INDEX_STEP);
        int64_t got = pread_all(c->disk->fd, to + at, n, offset + at);
        if (got < 0)
            return fail_system(error, "read the index of", c->path);
        memset(to + at + got, 0, n - (uint64_t)got); /* the file was truncated */
    }
    return 0;
}

/* Units [first, end) of an arena that a sample has. */
struct extent {
    uint64_t first, end, sample;
};

static int by_place(const void *a, const void *b)
{
    const struct extent *x = a, *y = b;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return x->sample < y->sample ? -1 : x->sample > y->sample;
}

/* Drops samples whose extents overlap, and sets where the arena goes on. */
static void keep_extents(stoc_cache *c, struct extent *all, size_t n)
{
    struct extent last = {0, 0, 0};
    if (n)
        qsort(all, n, sizeof *all, by_place);
    for (size_t k = 0; k < n; k++) {
        if (k > 0 && all[k].first < last.end) {
            store(index_word(c, all[k].sample), 0);
            store(index_word(c, last.sample), 0);
        }
        if (all[k].end > last.end)
            last = all[k];
    }
    store(arena_next_word(c), arena_pack(0, last.end));
}

/* Makes index, slot table and cursors of a new control part from the index in the file. Only samples that are READY
 * with a possible place of their own stay. Of two samples with one place neither stays. */
static int read_index(stoc_cache *c, const struct geometry *g, struct stoc_error *error)
{
    int code = read_region(c, c->control + g->index_offset, c->samples * STOC_INDEX_RECORD_BYTES,
                           c->disk->index_offset, error);
    if (code == 0 && c->variable)
        code = read_region(c, c->control + g->sums_offset, c->samples * STOC_SUM_RECORD_BYTES, c->disk->sums_offset,
                           error);
    struct extent *extents = NULL;
    size_t n = 0;
    if (code == 0 && c->variable && !(extents = malloc(c->samples * sizeof *extents)))
        code = fail(error, STOC_EMEMORY, ENOMEM, "no memory to read the index of %s", c->path);
    if (code < 0)
        return code;
    for (uint64_t i = 0; i < c->samples; i++) {
        uint64_t w = load(index_word(c, i)), offset, length, place = place_of(c, w);
        uint64_t meta = load(meta_word(c, i));
        /* fills 0: half of a record; an empty sample has the checksum of zeros */
        bool published = state_of(w) == READY && (meta >> FILLS_SHIFT & FILLS_MASK) != 0;
        if (!published || !locate(c, w, meta, &offset, &length)) {
            store(index_word(c, i), 0);
        } else if (c->variable) {
            extents[n++] = (struct extent){place - 1, place - 1 + units_for(length), i};
        } else {
            uint64_t other = load(slot_word(c, place - 1));
            if (other) {
                store(index_word(c, other - 1), 0);
                store(index_word(c, i), 0);
            } else {
                store(slot_word(c, place - 1), i + 1);
            }
        }
    }
    for (uint64_t s = 0; !c->variable && s < c->slots; s++) {
        uint64_t holder = load(slot_word(c, s));
        if (holder && place_of(c, load(index_word(c, holder - 1))) != s + 1)
            store(slot_word(c, s), 0);
    }
    if (c->variable)
        keep_extents(c, extents, n);
    free(extents);
    return 0;
}

/* ------------------------------------------------------------ reads */

/* The checksum of bytes in the file. false: they cannot be read. */
INTERNAL bool disk_crc(const stoc_cache *c, uint64_t offset, uint64_t length, uint32_t *crc)
{
    unsigned char part[16384];
    *crc = 0;
    for (uint64_t at = 0, n; at < length; at += n) {
        n = MIN(length - at, sizeof part);
        int64_t got = pread_all(c->disk->fd, part, n, c->payload_offset + offset + at);
        if (got < 0)
            return false;
        memset(part + got, 0, n - (uint64_t)got); /* a hole at the end of the file */
        *crc = c->crc(*crc, part, n);
    }
    return true;
}

/* Copies a sample, if it does not change during the copy and has its checksum. HIT, MISS, ESCHEMA as stoc_get. */
static int copy_from_disk(stoc_cache *c, uint64_t i, void *dst, uint64_t capacity, uint64_t *length)
{
    stoc_word *record = index_word(c, i);
    for (int tries = 0; tries < MAX_COPIES; tries++) {
        uint64_t w = load(record), meta = load(record + 1), offset = 0;
        if (state_of(w) != READY) {
            disk_not_tried(c->disk);
            return STOC_MISS;
        }
        bool placed = locate(c, w, meta, &offset, length), fits = *length <= capacity;
        uint32_t crc = crc_of(c, i, meta);
        int64_t got = placed && fits ? pread_all(c->disk->fd, dst, *length, c->payload_offset + offset) : 0;
        if (got < 0) {
            disk_failed(c);
            return STOC_MISS;
        }
        if (placed && fits)
            disk_answered(c->disk);
        if (!unchanged(record, w, meta)) {
            count(c, STOC_COUNTER_RETRIED, placed && fits);
            continue;
        }
        if (placed && !fits)
            return STOC_ESCHEMA;
        if (!placed || (uint64_t)got != *length || c->crc(0, dst, *length) != crc) {
            /* torn by a loss of power, or changed on the disk */
            count(c, STOC_COUNTER_CORRUPT, 1);
            drop_sample(c, i);
            return STOC_MISS;
        }
        if (c->references)
            leave(c, w, left_by_hit(c, i, w));
        return STOC_HIT;
    }
    return STOC_MISS;
}

/* stoc_get of a segment on a disk, or stoc_copy: HIT, MISS, ESCHEMA. */
INTERNAL int disk_get(stoc_cache *c, uint64_t i, void *dst, uint64_t capacity, size_t *length, bool counted)
{
    uint64_t bytes = 0;
    int result = disk_works(c) && uses(c) ? copy_from_disk(c, i, dst, capacity, &bytes) : STOC_MISS;
    if (length && result != STOC_MISS)
        *length = bytes;
    if (counted && result != STOC_ESCHEMA)
        count(c, result == STOC_HIT ? STOC_COUNTER_HITS : STOC_COUNTER_MISSES, 1);
    return result;
}

/* ------------------------------------------------------------ the locks of the file */

/* Opens the description that has the locks on the file. */
static int open_file_locks(stoc_cache *c, struct stoc_error *error)
{
    return open_locks(c->disk->fd, &c->disk->lock_fd) ? 0
                                                      : fail_system(error, "open a lock description of", c->path);
}

/* Locks the byte that a process holds while it opens or leaves the file. false: others had it all the time. */
static bool lock_opening(stoc_cache *c, uint64_t patience)
{
    uint64_t deadline = now_ns() + patience, pause = 100000;
    while (lock_byte(atomic_load(&c->disk->lock_fd), F_WRLCK, OPENING_LOCK) != 1) {
        if (now_ns() > deadline)
            return false;
        sleep_ns(pause);
        pause = MIN(2 * pause, 5000000);
    }
    return true;
}

static void unlock_opening(stoc_cache *c) { lock_byte(atomic_load(&c->disk->lock_fd), F_UNLCK, OPENING_LOCK); }

/* Who made the control part of the file, for people. */
static const char *maker_of(const stoc_cache *c, char text[128])
{
    static const char *const kinds[] = {"a program", "Go", "C", "Python", "a server"};
    unsigned char made[STOC_DISK_SESSION_BYTES];
    snprintf(text, 128, "a process");
    if (pread_all(c->disk->fd, made, sizeof made, STOC_DISK_SESSION) == (int64_t)sizeof made) {
        uint32_t pid = get32(made, STOC_DISK_PID), kind = get32(made, STOC_DISK_KIND);
        if (pid)
            snprintf(text, 128, "process %u (%.*s, %s)", (unsigned)pid, (int)STOC_CLIENT_LABEL_BYTES - 1,
                     (const char *)made + STOC_DISK_LABEL, kinds[kind <= STOC_KIND_SERVER ? kind : 0]);
    }
    return text;
}

/* A forked child becomes a user of the file. ENOENT: its parent was the last user, and has left. */
INTERNAL int disk_join(stoc_cache *c, struct stoc_error *error)
{
    struct disk *d = c->disk;
    unsigned char session[16];
    if (atomic_load(&d->lock_fd) >= 0)
        return 0;
    int code = open_file_locks(c, error);
    if (code < 0)
        return code;
    int64_t n = pread_all(c->disk->fd, session, sizeof session, STOC_DISK_SESSION);
    if (n < 0)
        code = fail_system(error, "read the session of", c->path);
    else if (lock_byte(atomic_load(&d->lock_fd), F_RDLCK, FILE_LOCK) == 1 && n == (int64_t)sizeof session &&
             memcmp(session, d->session, sizeof session) == 0)
        return 0;
    close_locks(&d->lock_fd);
    if (code < 0)
        return code;
    return fail(error, STOC_ENOENT, 0, "%s: the parent of this process has closed it; open it again", c->path);
}

/* The last user writes the index, and removes the control part. */
INTERNAL void disk_leave(stoc_cache *c)
{
    struct disk *d = c->disk;
    if (atomic_load(&d->lock_fd) < 0 || atomic_load(&c->owner) == 0 || !lock_opening(c, LEAVING_NS))
        return;
    STOC_FAULT("disk.leaving");
    if (lock_byte(atomic_load(&d->lock_fd), F_WRLCK, FILE_LOCK) == 1) {
        persist_all(c);
        STOC_FAULT("disk.written");
        unlink(d->control_path);
        STOC_FAULT("disk.left");
    }
}

/* ------------------------------------------------------------ open */

/* Names the folder of the file, and looks at its file system. EINVAL: it is one of a network, which may hang. */
static int look_at_folder(const stoc_cache *c, char directory[OWN_PATH_BYTES], uint64_t *free_bytes,
                          struct stoc_error *error)
{
    static const struct {
        uint32_t number;
        const char *name;
    } networks[] = {STOC_NETWORK_FILE_SYSTEMS};
    struct statfs fs;
    const char *slash = strrchr(c->path, '/');
    int n = slash ? (int)(slash - c->path) : 0;
    snprintf(directory, OWN_PATH_BYTES, "%.*s", slash ? MAX(n, 1) : 1, slash ? c->path : ".");
    if (statfs(directory, &fs) != 0) {
        if (errno == ENOENT || errno == ENOTDIR)
            return fail(error, STOC_ENOENT, errno, "the folder %s does not exist; make it, on a local disk", directory);
        return fail_system(error, "look at the folder", directory);
    }
    for (size_t k = 0; k < sizeof networks / sizeof *networks; k++)
        if ((uint32_t)fs.f_type == networks[k].number)
            return fail(error, STOC_EINVAL, 0,
                        "the folder %s is on a network file system (%s), which may hang; give a folder on a local disk",
                        directory, networks[k].name);
    *free_bytes = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
    return 0;
}

/* Makes the file with its header, and links its name last. AGAIN: another process was faster. */
static int make_file(stoc_cache *c, struct header *h, const char *directory, uint64_t free_bytes,
                     struct stoc_error *error)
{
    char name[OWN_PATH_BYTES + 40], free_text[32], need[32];
    unsigned char page[STOC_HEADER_BYTES], random[8];
    if (free_bytes < h->g.segment_bytes)
        return fail(error, STOC_EMEMORY, 0,
                    "%s: the file needs %s (%lu bytes), and its file system has %s free; give a smaller limit, or free "
                    "some",
                    c->path, size_text(h->g.segment_bytes, need), h->g.segment_bytes, size_text(free_bytes, free_text));
    int code = check_file_size(c->path, "takes", h->g.segment_bytes, "", error);
    if (code < 0)
        return code;
    if (random_bytes(h->uuid, sizeof h->uuid) != 0 || random_bytes(random, sizeof random) != 0)
        return fail_system(error, "read", "/dev/urandom");
    h->created_ns = (int64_t)clock_ns(CLOCK_REALTIME);
    header_encode(h, page);
    snprintf(name, sizeof name, "%s/.stocached-%016lx", directory, get64(random, 0));
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && (errno == EACCES || errno == EROFS || errno == EPERM))
        return fail(error, STOC_EPERM, errno, "the folder %s: permission denied, or read-only; give another one",
                    directory);
    if (fd < 0)
        return fail_system(error, "make a file in", directory);
    /* pages for the index, so that changes of it do not fail for space; some file systems cannot */
    if (ftruncate(fd, (off_t)h->g.segment_bytes) != 0 ||
        (allocate(fd, 0, h->g.payload_offset, NULL, NULL) != 0 && errno != EOPNOTSUPP) ||
        pwrite_all(fd, page, sizeof page, 0) != 0 || fsync(fd) != 0)
        code = errno == ENOSPC || errno == EDQUOT
                   ? fail(error, STOC_EMEMORY, errno, "%s: no space for its index of %lu bytes", c->path,
                          h->g.payload_offset)
                   : fail_system(error, "make", c->path);
    else if (link(name, c->path) != 0)
        code = errno == EEXIST ? AGAIN : fail_system(error, "name", c->path);
    unlink(name);
    if (code == 0)
        c->disk->fd = fd;
    else
        close(fd);
    return code;
}

/* Opens the file, or makes it. AGAIN: try again. */
static int open_disk_file(stoc_cache *c, struct header *want, struct stoc_error *error)
{
    char directory[OWN_PATH_BYTES];
    uint64_t free_bytes = 0;
    struct stat st;
    int code = look_at_folder(c, directory, &free_bytes, error);
    if (code < 0)
        return code;
    c->disk->fd = open(c->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (c->disk->fd < 0 && errno == ENOENT)
        return make_file(c, want, directory, free_bytes, error);
    if (c->disk->fd < 0 && (errno == EACCES || errno == EROFS || errno == EPERM))
        return fail(error, STOC_EPERM, errno, "%s: permission denied, or read-only; give another folder", c->path);
    if (c->disk->fd < 0 && (errno == ELOOP || errno == EISDIR))
        return fail(error, STOC_EPERM, errno, "%s is no regular file; remove it, or give another folder", c->path);
    if (c->disk->fd < 0)
        return fail_system(error, "open", c->path);
    return stat_fd(c->disk->fd, &st) != 0 ? fail_system(error, "stat", c->path) : check_file(&st, c->path, error);
}

/* Whether the path still names the open file. */
static bool is_at_path(const stoc_cache *c)
{
    struct stat ours, there;
    return stat_fd(c->disk->fd, &ours) == 0 && stat_path(c->path, &there) == 0 && ours.st_ino == there.st_ino &&
           ours.st_dev == there.st_dev;
}

int stoc_disk_look(stoc_cache *c, struct stoc_error *error)
{
    unsigned char page[STOC_HEADER_BYTES];
    struct stat st;
    const char *did = NULL;
    if (!c)
        return fail(error, STOC_ECLOSED, 0, "the cache is closed");
    if (!c->disk)
        return fail(error, STOC_EINVAL, 0, "this is no disk cache");
    if (stat_path(c->path, &st) != 0) {
        if (errno != ENOENT)
            return fail_system(error, "stat", c->path);
        did = "removed";
    } else if (!is_at_path(c)) {
        did = "replaced";
    } else if ((uint64_t)st.st_size < c->segment_bytes) {
        did = "truncated";
    } else if (pread_all(c->disk->fd, page, sizeof page, 0) != (int64_t)sizeof page) {
        return fail_system(error, "read the header of", c->path);
    } else if (memcmp(page, c->disk->header, sizeof page) != 0) {
        did = "overwritten";
    }
    return did ? fail(error, STOC_EFORMAT, 0, "another program has %s %s", did, c->path) : 0;
}

/* Compares the header of the file with the wanted one, and completes *want from it. EFORMAT, EVERSION, EFINGERPRINT:
 * it is another one. *ours: the file may be removed. */
static int check_header(const stoc_cache *c, struct header *want, bool *ours, struct stoc_error *error)
{
    static const unsigned char zero[8];
    unsigned char page[STOC_HEADER_BYTES], wanted[STOC_HEADER_BYTES];
    struct header h;
    struct stat st;
    *ours = false;
    if (stat_fd(c->disk->fd, &st) != 0)
        return fail_system(error, "stat", c->path);
    int64_t n = pread_all(c->disk->fd, page, sizeof page, 0);
    if (n < 0)
        return fail_system(error, "read the header of", c->path);
    memset(page + n, 0, sizeof page - (size_t)n);
    *ours = memcmp(page, STOC_MAGIC, 8) == 0 || memcmp(page, zero, 8) == 0; /* zeros: its header was lost */
    if (!*ours)
        return fail(error, STOC_EFORMAT, 0, "%s is no disk cache, and stays as it is; give another path", c->path);
    int code = header_decode(page, (uint64_t)st.st_size, c->path, &h, error);
    if (code < 0)
        return code;
    if (strcmp(h.fingerprint, want->fingerprint) != 0)
        return fail(error, STOC_EFINGERPRINT, 0, "%s has samples of another dataset (\"%s\", not \"%s\")", c->path,
                    h.fingerprint, want->fingerprint);
    memcpy(want->uuid, h.uuid, sizeof want->uuid);
    want->created_ns = h.created_ns;
    want->creator_uid = h.creator_uid;
    header_encode(want, wanted);
    return memcmp(page, wanted, sizeof page) == 0
               ? 0
               : fail(error, STOC_EFORMAT, 0, "%s was made with other settings, or for other samples", c->path);
}

/* The header of the control part of a session. */
static int control_header(const struct header *file, const unsigned char session[16], struct header *control,
                          struct stoc_error *error)
{
    char why[256];
    const struct geometry *g = &file->g;
    *control = *file;
    memcpy(control->uuid, session, 16);
    return geometry_of(g->flags, g->policy, g->samples, g->slots, g->slot_stride, STOC_DEFAULT_CLIENT_RECORDS,
                       g->payload_bytes, &control->g, why)
               ? 0
               : fail(error, STOC_EINVAL, 0, "%s", why);
}

/* Opens the folder of control parts, and makes it. */
static int open_controls(int *fd, char directory[64], struct stoc_error *error)
{
    default_directory(directory, 64);
    int parent, code = open_directory(directory, true, &parent, error);
    if (code < 0)
        return code;
    size_t n = strlen(directory);
    snprintf(directory + n, 64 - n, "/disk");
    if (mkdirat(parent, "disk", 0700) != 0 && errno != EEXIST)
        code = fail_system(error, "make the directory", directory);
    else if ((*fd = openat(parent, "disk", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)) < 0)
        code = fail_system(error, "open the directory", directory);
    close(parent);
    return code;
}

/* Sets the path of the control part for the session of the handle. */
static int name_control(stoc_cache *c, const char *directory, struct stoc_error *error)
{
    struct disk *d = c->disk;
    struct stat st;
    if (stat_fd(d->fd, &st) != 0)
        return fail_system(error, "stat", c->path);
    int n = snprintf(d->control_path, sizeof d->control_path, "%s/%lu-%lu-", directory, st.st_dev, st.st_ino);
    for (int k = 0; k < 16; k++)
        n += snprintf(d->control_path + n, sizeof d->control_path - (size_t)n, "%02x", d->session[k]);
    return 0;
}

/* Attaches to the control part of the file's session: 0. ENOENT: there is none. EFORMAT: it is damaged. */
static int attach_control(stoc_cache *c, const struct header *file, const char *directory, struct stoc_error *error)
{
    struct disk *d = c->disk;
    unsigned char page[STOC_HEADER_BYTES], wanted[STOC_HEADER_BYTES];
    struct header control;
    struct stat st;
    if (pread_all(d->fd, d->session, sizeof d->session, STOC_DISK_SESSION) != (int64_t)sizeof d->session)
        return fail(error, STOC_ENOENT, 0, "%s has no session", c->path);
    int code = name_control(c, directory, error);
    if (code == 0)
        code = control_header(file, d->session, &control, error);
    if (code < 0)
        return code;
    c->fd = open(d->control_path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (c->fd < 0)
        return errno == ENOENT ? fail(error, STOC_ENOENT, errno, "%s: no control part", d->control_path)
                               : fail_system(error, "open", d->control_path);
    header_encode(&control, wanted);
    if (stat_fd(c->fd, &st) != 0 || check_file(&st, d->control_path, NULL) < 0 ||
        (uint64_t)st.st_size != control.g.payload_offset ||
        pread_all(c->fd, page, sizeof page, 0) != (int64_t)sizeof page || memcmp(page, wanted, sizeof page) != 0)
        return fail(error, STOC_EFORMAT, 0, "%s is not the control part of %s; remove it", d->control_path, c->path);
    return attach(c, &control, error);
}

/* Makes the control part of a new session from the file. The handle is the only user. */
static int make_control(stoc_cache *c, const struct header *file, int directory_fd, const char *directory,
                        struct stoc_error *error)
{
    struct disk *d = c->disk;
    unsigned char page[STOC_HEADER_BYTES], made[STOC_DISK_SESSION_BYTES] = {0};
    char own[64];
    struct header control;
    struct statfs fs;
    int code;
    if (random_bytes(d->session, sizeof d->session) != 0)
        return fail_system(error, "read", "/dev/urandom");
    if ((code = name_control(c, directory, error)) < 0 ||
        (code = control_header(file, d->session, &control, error)) < 0)
        return code;
    uint64_t bytes = control.g.payload_offset;
    if (fstatfs(directory_fd, &fs) != 0)
        return fail_system(error, "statfs", directory);
    if ((code = check_budget(bytes, &fs, directory, error)) < 0)
        return code;
    header_encode(&control, page);
    c->fd = openat(directory_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (c->fd < 0 || fchmod(c->fd, 0600) != 0 || ftruncate(c->fd, (off_t)bytes) != 0 ||
        allocate(c->fd, 0, bytes, NULL, NULL) != 0 || pwrite_all(c->fd, page, sizeof page, 0) != 0)
        return errno == ENOSPC || errno == ENOMEM || errno == EFBIG
                   ? fail(error, STOC_EMEMORY, errno, "no space for the control part of %s, %lu bytes in %s", c->path,
                          bytes, directory)
                   : fail_system(error, "make a control part in", directory);
    if ((code = attach(c, &control, error)) < 0 || (code = read_index(c, &control.g, error)) < 0)
        return code;
    memcpy(made, d->session, sizeof d->session);
    put32(made, STOC_DISK_PID, (uint32_t)getpid());
    put32(made, STOC_DISK_KIND, c->kind);
    snprintf((char *)made + STOC_DISK_LABEL, STOC_CLIENT_LABEL_BYTES, "%s", program_invocation_short_name);
    if (disk_write(c, made, sizeof made, STOC_DISK_SESSION) != 0)
        return fail_system(error, "write the session of", c->path);
    STOC_FAULT("disk.session");
    snprintf(own, sizeof own, "/proc/self/fd/%d", c->fd);
    if (linkat(AT_FDCWD, own, AT_FDCWD, d->control_path, AT_SYMLINK_FOLLOW) != 0)
        return fail_system(error, "name", d->control_path);
    STOC_FAULT("disk.named");
    return 0;
}

/* The handle is the only user of the file. AGAIN: the file was removed. */
static int begin_alone(stoc_cache *c, struct header *want, int directory_fd, const char *directory,
                       struct stoc_error *error)
{
    bool ours;
    int code = check_header(c, want, &ours, error);
    if (code == STOC_EFORMAT || code == STOC_EVERSION || code == STOC_EFINGERPRINT) {
        if (!ours)
            return code;
        return unlink(c->path) == 0 || errno == ENOENT ? AGAIN : fail_system(error, "remove", c->path);
    }
    if (code < 0)
        return code;
    code = attach_control(c, want, directory, error);
    if (code == STOC_EFORMAT)
        unlink(c->disk->control_path);
    if (code == STOC_EFORMAT || code == STOC_ENOENT) {
        if (c->fd >= 0)
            close(c->fd);
        c->fd = -1;
        code = make_control(c, want, directory_fd, directory, error);
    }
    if (code == 0 && lock_byte(atomic_load(&c->disk->lock_fd), F_RDLCK, FILE_LOCK) != 1)
        code = fail_system(error, "share", c->path);
    return code;
}

/* Others share the file. UNSEEN: error says so. */
static int join_others(stoc_cache *c, struct header *want, const char *directory, struct stoc_error *error)
{
    bool ours;
    char who[128];
    struct stoc_error why;
    int code = check_header(c, want, &ours, &why);
    if (code == STOC_EFORMAT || code == STOC_EVERSION || code == STOC_EFINGERPRINT)
        return fail(error, code, 0, "%.240s, and %s and perhaps others use it; end them, or give another folder", why.message,
                    maker_of(c, who));
    if (code == 0)
        code = attach_control(c, want, directory, &why);
    if (code == STOC_ENOENT) {
        fail(error, STOC_EEXIST, 0,
             "%s: %s and perhaps others use it, and this process does not see their control part %.120s; share "
             "/dev/shm with them, or give another folder",
             c->path, maker_of(c, who), c->disk->control_path);
        return UNSEEN;
    }
    if (code < 0 && error)
        *error = why;
    return code;
}

/* Opens the file and becomes a user of it. AGAIN: try again. UNSEEN: try again for a while. */
static int begin_use(stoc_cache *c, struct header *want, struct stoc_error *error)
{
    char directory[64], who[128];
    int directory_fd = -1, code = open_disk_file(c, want, error);
    if (code != 0 || (code = open_file_locks(c, error)) < 0 || (code = open_controls(&directory_fd, directory, error)) < 0)
        return code;
    if (!lock_opening(c, OPENING_NS)) {
        code = fail(error, STOC_ETIMEOUT, 0, "%s: another process has been opening it for %d seconds", c->path,
                    (int)(OPENING_NS / 1000000000u));
    } else if (!is_at_path(c)) {
        code = AGAIN;
    } else {
        STOC_FAULT("disk.opening");
        if (lock_byte(atomic_load(&c->disk->lock_fd), F_WRLCK, FILE_LOCK) == 1)
            code = begin_alone(c, want, directory_fd, directory, error);
        else if (lock_byte(atomic_load(&c->disk->lock_fd), F_RDLCK, FILE_LOCK) == 1)
            code = join_others(c, want, directory, error);
        else
            code = fail(error, STOC_EEXIST, 0, "%s: %s has it for itself; end it, or give another folder", c->path,
                        maker_of(c, who));
        if (code == 0 && (code = register_client(c, true, error)) == STOC_ENOENT)
            code = AGAIN; /* a tool has removed the control part */
        if (code == 0)
            stoc_recover(c);
        unlock_opening(c);
    }
    close(directory_fd);
    return code;
}

/* Closes what a failed begin_use has opened. */
static void end_use(stoc_cache *c)
{
    close_locks(&c->disk->lock_fd);
    if (c->control)
        munmap(c->control, c->control_bytes);
    c->control = NULL;
    if (c->fd >= 0)
        close(c->fd);
    if (c->disk->fd >= 0)
        close(c->disk->fd);
    c->fd = c->disk->fd = -1;
}

static int check_options(const char *path, const struct stoc_options *o, struct stoc_error *error)
{
    if (!path || !path[0] || strlen(path) >= OWN_PATH_BYTES)
        return fail(error, STOC_EINVAL, 0, "path: give the path of a file, of at most %d bytes", OWN_PATH_BYTES - 1);
    if (o->limit_bytes == 0)
        return fail(error, STOC_EINVAL, 0, "limit_bytes: give the most that the file may take, such as 200 GiB");
    if (!o->fingerprint || !o->fingerprint[0])
        return fail(error, STOC_EINVAL, 0,
                    "fingerprint: a disk cache outlives its programs, so it needs one that names dataset and transform");
    if (o->directory || o->unlink_last || o->reserve || o->client_records || o->slot_bytes || o->lengths)
        return fail(error, STOC_EINVAL, 0,
                    "directory, unlink_last, reserve, client_records, slot_bytes, lengths: set them to 0 for a disk cache");
    if (o->policy == STOC_POLICY_FIRST_INDICES || o->policy == STOC_POLICY_COST || o->policy == STOC_POLICY_PLANNED)
        return fail(error, STOC_EINVAL, 0,
                    "policy: %u; a disk cache has first-come, random, clock, fifo, lru or lfu", o->policy);
    if (o->variable && policy_evicts(o->policy))
        return fail(error, STOC_EINVAL, 0, "policy: on a disk, samples that differ in size need first-come");
    return 0;
}

int stoc_disk_open(const char *path, const struct stoc_options *options, stoc_cache **out, struct stoc_error *error)
{
    struct header want;
    struct stoc_options known;
    int code = check_open(0, out, error);
    if (code < 0 || (code = take_options(options, &known, error)) < 0 || (code = check_options(path, &known, error)) < 0)
        return code;
    known.client_records = 1; /* the file has one record */
    if ((code = plan(NULL, &known, &want, error)) < 0)
        return code;
    stoc_cache *c = new_handle(known.open_flags, error);
    if (!c)
        return STOC_EMEMORY;
    if (!(c->disk = calloc(1, sizeof *c->disk))) {
        free_handle(c);
        return fail(error, STOC_EMEMORY, ENOMEM, "no memory for a handle");
    }
    c->disk->fd = -1;
    atomic_store(&c->disk->lock_fd, -1);
    begin_queue(&c->disk->queue, QUEUE_BYTES, write_later, c);
    c->disk->index_offset = want.g.index_offset;
    c->disk->sums_offset = want.g.sums_offset;
    snprintf(c->path, sizeof c->path, "%s", path);
    handle_list_add(c); /* before it opens descriptions that a forked child must close */
    for (uint64_t began = now_ns(); (code = begin_use(c, &want, error)) != 0; end_use(c)) {
        uint64_t passed = now_ns() - began;
        /* The kernel may have closed the control part of a process that ends, and not its file yet. A tool may remove
         * the control part then. */
        if (code == UNSEEN && passed < ENDING_NS)
            sleep_ns(2000000);
        else if (code != AGAIN || passed > OPENING_NS)
            break;
    }
    if (code != 0) {
        handle_list_remove(c);
        end_use(c);
        free_handle(c);
        if (code == UNSEEN)
            return STOC_EEXIST;
        return code < 0 ? code
                        : fail(error, STOC_EEXIST, 0, "%s: other processes make and replace it all the time", path);
    }
    header_encode(&want, c->disk->header);
    c->payload_offset = want.g.payload_offset;
    c->segment_bytes = want.g.segment_bytes;
    *out = c;
    return 0;
}

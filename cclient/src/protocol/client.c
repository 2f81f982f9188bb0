/*
 * client.c - the handle as a client: lock description, owner number, fork. docs/spec/protocol.md,
 * Who is alive.
 *
 * handles_lock protects the list of handles. A thread also holds it while it opens a lock
 * description or a connection, records it in its handle, or closes it. fork takes it (the prepare
 * handler takes it, both sides release it). So a child finds every inherited description and
 * connection in the lists, and closes it. No thread holds it across another system call, except to
 * join helpers and idle writers before a fork. So none of them takes it. A handle is a client before its queue has samples.
 */
#include "protocol.h"

INTERNAL pthread_mutex_t handles_lock = PTHREAD_MUTEX_INITIALIZER;
static stoc_cache *handles;
INTERNAL struct link *dialling; /* connections that no handle has yet */

/* Closes a connection, even one that a call uses. The caller holds handles_lock. */
INTERNAL void reset_link(struct link *l)
{
    if (l->fd >= 0)
        close(l->fd);
    if (l->descriptor >= 0)
        close(l->descriptor);
    l->fd = l->descriptor = -1;
    l->from = l->to = 0;
    l->announced = 0;
}

/* Closes a lock description, which ends all its locks. The caller holds handles_lock, unless it closes a handle. */
static void end_locks(_Atomic int *lock_fd)
{
    int fd = atomic_exchange(lock_fd, -1);
    if (fd >= 0)
        close(fd);
}

static void end_locks_of(stoc_cache *c)
{
    end_locks(&c->lock_fd);
    if (c->disk)
        end_locks(&c->disk->lock_fd);
}

INTERNAL void close_locks(_Atomic int *lock_fd)
{
    pthread_mutex_lock(&handles_lock);
    end_locks(lock_fd);
    pthread_mutex_unlock(&handles_lock);
}

/* Opens a lock description: the same file, through a descriptor that no other code uses. false: errno. */
INTERNAL bool open_locks(int file, _Atomic int *lock_fd)
{
    char own[64];
    snprintf(own, sizeof own, "/proc/self/fd/%d", file);
    pthread_mutex_lock(&handles_lock);
    int fd = open(own, O_RDWR | O_CLOEXEC), number = errno;
    if (fd >= 0)
        atomic_store(lock_fd, fd);
    pthread_mutex_unlock(&handles_lock);
    errno = number;
    return fd >= 0;
}

static void fork_prepare(void)
{
    pthread_mutex_lock(&handles_lock);
    for (stoc_cache *c = handles; c; c = c->next) {
        stop_threads(&c->pool); /* it skips a pool that works for another thread; the child forgets that pool */
        if (c->disk)
            fork_queue(&c->disk->queue);
    }
}

static void fork_parent(void)
{
    for (stoc_cache *c = handles; c; c = c->next)
        if (c->disk)
            fork_queue_parent(&c->disk->queue);
    pthread_mutex_unlock(&handles_lock);
}

/* A child is not a client yet. It must not keep its parent alive, and must not probe through its
 * parent's locks. */
static void fork_child(void)
{
    for (stoc_cache *c = handles; c; c = c->next) {
        end_locks_of(c);
        atomic_store_explicit(&c->owner, 0, memory_order_relaxed);
        atomic_store_explicit(&c->counters, c->read_only ? c->sink : NULL, memory_order_relaxed);
        atomic_fetch_add_explicit(&c->fork_generation, 1, memory_order_relaxed);
        atomic_store_explicit(&c->probing, 0, memory_order_relaxed);
        atomic_store_explicit(&c->allocating, 0, memory_order_relaxed);
        atomic_store_explicit(&c->clearing, 0, memory_order_relaxed);
        atomic_store_explicit(&c->memory_left, 0, memory_order_relaxed);
        atomic_store_explicit(&c->held, 0, memory_order_relaxed);
        atomic_store_explicit(&c->entries, 0, memory_order_relaxed);
        forget_pool(&c->pool);
        if (c->disk)
            fork_queue_child(&c->disk->queue);
        c->plan_number = 0; /* the parent reads on */
        for (struct link *l = c->links; l; l = l->next) {
            reset_link(l);
            l->busy = false;
        }
    }
    for (struct link *l = dialling; l; l = l->next)
        reset_link(l);
    dialling = NULL; /* their threads belong to the parent */
    pthread_mutex_unlock(&handles_lock);
}

__attribute__((constructor)) static void install_fork_handlers(void)
{
    pthread_atfork(fork_prepare, fork_parent, fork_child);
}

INTERNAL void handle_list_add(stoc_cache *c)
{
    pthread_mutex_lock(&handles_lock);
    c->next = handles;
    if (handles)
        handles->previous = c;
    handles = c;
    pthread_mutex_unlock(&handles_lock);
}

/* Removes the handle from the list. Closes its connections, and its lock description, which ends
 * all its locks. */
INTERNAL void handle_list_remove(stoc_cache *c)
{
    pthread_mutex_lock(&handles_lock);
    end_locks_of(c);
    for (struct link *l = c->links; l; l = l->next)
        reset_link(l);
    if (c->previous)
        c->previous->next = c->next;
    else
        handles = c->next;
    if (c->next)
        c->next->previous = c->previous;
    pthread_mutex_unlock(&handles_lock);
}

/* 1: the lock is ours now. 0: another description holds it. -1: errno. */
INTERNAL int lock_byte(int fd, short type, uint64_t at)
{
    for (;;) {
        struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)at, .l_len = 1};
        if (fcntl(fd, F_OFD_SETLK, &lock) == 0)
            return 1;
        if (errno == EAGAIN || errno == EACCES)
            return 0;
        if (errno != EINTR)
            return -1;
    }
}

/* Record locks. The caller holds c->probing, so that no other thread locks through the same
 * description. */
INTERNAL int lock_record(stoc_cache *c, uint32_t record)
{
    return lock_byte(atomic_load(&c->lock_fd), F_WRLCK, record_offset(record));
}
INTERNAL void unlock_record(stoc_cache *c, uint32_t record)
{
    lock_byte(atomic_load(&c->lock_fd), F_UNLCK, record_offset(record));
}

/* Whether another description holds the lock of the record. The call asks through the data
 * descriptor, which holds no locks, so our own client counts too. */
INTERNAL bool record_alive(const stoc_cache *c, uint32_t record)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)record_offset(record), .l_len = 1};
    while (fcntl(c->fd, F_OFD_GETLK, &lock) != 0)
        if (errno != EINTR)
            return false;
    return lock.l_type != F_UNLCK;
}

INTERNAL int open_lock_description(stoc_cache *c, struct stoc_error *error)
{
    char own[64];
    snprintf(own, sizeof own, "/proc/self/fd/%d", c->fd);
    if (open_locks(c->fd, &c->lock_fd))
        return 0;
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM)
        return fail_system(error, "open a lock description of", c->path[0] ? c->path : own);
    return fail(error, STOC_EREADONLY, errno,
                "a client needs a lock description of its own, but %s cannot be opened for writing (errno %d); mount "
                "/proc, or attach read-only",
                own, errno);
}

/* limits the wait for a last user that holds the exclusive lock and has not exited: microseconds,
 * unless it was stopped */
#define LEAVE_NS UINT64_C(5000000000)

/* Takes the shared users lock. by_name: ENOENT if the file has lost its name. It checks the name
 * after it has the lock, because a last user removes the name while it holds the lock
 * exclusively. */
static int join_users(stoc_cache *c, bool by_name, struct stoc_error *error)
{
    int fd = atomic_load(&c->lock_fd);
    flock(fd, LOCK_SH | LOCK_NB); /* only so that /proc/locks names this process; no code depends on it */
    for (uint64_t deadline = now_ns() + LEAVE_NS;; sleep_ns(1000000)) {
        int got = lock_byte(fd, F_RDLCK, STOC_USERS_LOCK_BYTE);
        if (got < 0)
            return fail_system(error, "lock the users byte of", c->path);
        if (by_name) {
            struct stat st;
            if (stat_fd(fd, &st) != 0)
                return fail_system(error, "stat", c->path);
            if (st.st_nlink == 0)
                return fail(error, STOC_ENOENT, 0,
                            "%s: its last user removed it while it was being opened; create it again", c->path);
        }
        if (got)
            return 0;
        if (now_ns() > deadline)
            return fail(error, STOC_ETIMEOUT, 0,
                        "%s: the last user has held the users lock for %d seconds: it was stopped while leaving; "
                        "continue or end it",
                        c->path, (int)(LEAVE_NS / 1000000000u));
    }
}

/* "pid (name) state ppid ...": the 22nd field, counted from the last parenthesis, because a name
 * may contain parentheses. */
static uint64_t start_ticks(void)
{
    char text[1024];
    if (read_text("/proc/self/stat", text, sizeof text) <= 0)
        return 0;
    const char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++)
        if ((at = strchr(at + 1, ' ')) == NULL)
            return 0;
    if (!at)
        return 0;
    at++;
    return parse_number(&at);
}

/* Writes the identity that people read. No code decides by it. */
static void write_identity(stoc_cache *c, uint32_t record)
{
    char target[64], label[STOC_CLIENT_LABEL_BYTES] = "";
    ssize_t n = readlink("/proc/self/ns/pid", target, sizeof target - 1);
    uint64_t pid_namespace = 0;
    if (n > 0) {
        target[n] = 0;
        const char *at = strchr(target, '[');
        if (at) {
            at++;
            pid_namespace = parse_number(&at);
        }
    }
    snprintf(label, sizeof label, "%s", program_invocation_short_name);
    store(record_word(c, record, STOC_CLIENT_PID_NAMESPACE), pid_namespace);
    store(record_word(c, record, STOC_CLIENT_START_TICKS), start_ticks());
    store(record_word(c, record, STOC_CLIENT_REGISTERED), clock_ns(CLOCK_REALTIME));
    for (unsigned k = 0; k < STOC_CLIENT_LABEL_BYTES; k += 8) {
        uint64_t part;
        memcpy(&part, label + k, 8);
        store(record_word(c, record, STOC_CLIENT_LABEL + k), part);
    }
    store(record_word(c, record, STOC_CLIENT_PID), (uint32_t)getpid() | (uint64_t)c->kind << 32);
}

/* The body of register_client. The caller holds c->probing and has opened a lock description. */
static int register_locked(stoc_cache *c, struct stoc_error *error)
{
    uint32_t record = 0;
    for (; record < c->client_records; record++) {
        int got = lock_record(c, record);
        if (got < 0)
            return fail_system(error, "lock a client record of", c->path);
        if (got)
            break;
    }
    if (record == c->client_records)
        return fail(error, STOC_ECLIENTS, 0,
                    "all %u client records of %s are held by live clients; end some, or create the cache with more "
                    "client records (at most %lu)",
                    c->client_records, c->path[0] ? c->path : "the cache", STOC_MAX_CLIENT_RECORDS);
    STOC_FAULT("register.locked");
    for (uint64_t high = load(clients_high_word(c));
         high < record + 1u && !cas(clients_high_word(c), high, record + 1u);)
        high = load(clients_high_word(c));
    /* Before all other writes: from now on the number means another client. */
    reclaim_record(c, record, record_counters(c, record), STOC_COUNTER_RECOVERED);
    uint64_t phase = load(phase_word(c));
    if (phase_clearing(phase) && owner_of(phase) == record + 1) {
        STOC_FAULT("clear.phase");
        finish_clear(c, phase, record + 1, now_ns() + ADOPT_AT_REGISTER_NS, phase_clearing_by(0, phase_epoch(phase)));
    }
    write_identity(c, record);
    store(drawn_word(c, record), 0);
    atomic_fetch_add(record_word(c, record, STOC_CLIENT_REGISTRATIONS), 1);
    STOC_FAULT("register.done");
    atomic_store(&c->counters, record_counters(c, record));
    atomic_store(&c->owner, record + 1);
    return 0;
}

/* Makes the handle a client if it is none: at open, and at the first counted call of a forked
 * child. EREADONLY, ECLIENTS, ENOENT (by_name), ESYSTEM. */
INTERNAL int register_client(stoc_cache *c, bool by_name, struct stoc_error *error)
{
    if (c->read_only)
        return fail(error, STOC_EREADONLY, 0, "%s is attached for reading only; attach it for writing",
                    c->path[0] ? c->path : "the cache");
    flag_take(&c->probing);
    int code = 0;
    if (atomic_load(&c->owner) == 0) {
        by_name |= c->disk != NULL; /* a control part without its name is none */
        code = c->disk ? disk_join(c, error) : 0;
        if (code == 0)
            code = open_lock_description(c, error);
        if (code == 0 && ((code = join_users(c, by_name, error)) != 0 || (code = register_locked(c, error)) != 0))
            close_locks(&c->lock_fd);
    }
    flag_release(&c->probing);
    return code;
}

/* The counters of this client; registers first if needed. Reads work without a record: if the
 * client table is full, hits are not counted. */
INTERNAL stoc_word *counters_slow(stoc_cache *c)
{
    stoc_word *none = NULL;
    if (register_client(c, false, NULL) != 0)
        atomic_compare_exchange_strong(&c->counters, &none, c->sink);
    return atomic_load(&c->counters);
}

/* Counts and reports a corrupt word. */
INTERNAL int corrupt(stoc_cache *c)
{
    count(c, STOC_COUNTER_CORRUPT, 1);
    return STOC_ECORRUPT;
}


/*
 * timed_file.c - reads and writes of a file on a disk that may hang. Each takes a bounded time: docs/spec/tiers.md,
 * A disk cache without a server.
 *
 * No system call ends a read that hangs in the kernel. So threads of the file make the calls, each with memory of its
 * own, and a caller that gives up leaves its thread behind. While one is left behind, no other call begins. So there
 * are never more of them than calls at one time, and none that returns late writes over a newer one.
 *
 * The lock is held for a few instructions, and across a fork. In the child the threads do not exist, and it forgets
 * them.
 */
#include "tasks.h"

#ifndef FILE_THREAD_STAYS_MS
#define FILE_THREAD_STAYS_MS 100 /* how long a thread without a call waits for one */
#endif
#define BYTES_PER_SECOND (16 * MIB) /* what a disk must give beyond the timeout: large samples take longer */
#define CALL_BYTES MIB              /* the most of one call, so of the memory of a thread */

/* States of a thread. The word also has the number of its last call, so that a caller knows whether the state is that of
 * its own. */
enum {
    FILE_GONE,     /* there is no thread */
    FILE_IDLE,     /* the thread waits for a call */
    FILE_TAKEN,    /* a caller prepares one */
    FILE_CALLS,    /* the thread makes it */
    FILE_RETURNED, /* the caller takes the result */
    FILE_GIVEN_UP, /* the thread makes a call for which nobody waits */
    FILE_ENDED,    /* the thread must be joined */
    FILE_STATES = 8,
};

static uint32_t state_of_thread(const struct file_thread *t) { return atomic_load(&t->state) % FILE_STATES; }

static void set_state(struct file_thread *t, uint32_t state)
{
    atomic_store(&t->state, atomic_load(&t->state) / FILE_STATES * FILE_STATES + state);
}

static void post_call(struct file_thread *t)
{
    atomic_fetch_add(&t->posted, 1);
    futex_wake(&t->posted, 1);
}

/* A number of bytes, or -1 with errno. */
static int64_t call_file(int fd, bool writes, void *data, size_t length, uint64_t offset)
{
    ssize_t n;
    do
        n = writes ? pwrite(fd, data, length, (off_t)offset) : pread(fd, data, length, (off_t)offset);
    while (n < 0 && errno == EINTR);
    return n;
}

static void make_call(struct file_thread *t)
{
    STOC_FAULT(t->writes ? "disk.write" : "disk.read");
    t->result = call_file(t->file->fd, t->writes, t->data, t->length, t->offset);
    t->error = errno;
}

static void free_threads(struct timed_file *f)
{
    for (struct file_thread *t = f->threads, *next; t; t = next) {
        next = t->next;
        free(t->data);
        free(t);
    }
    f->threads = NULL;
}

static void free_timed_file(struct timed_file *f)
{
    close(f->fd);
    free_threads(f);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

/* Makes the call that a caller has posted, unless it was given up already. The lock is held, and free during the call. */
static void serve_call(struct timed_file *f, struct file_thread *t)
{
    if (state_of_thread(t) == FILE_CALLS) {
        pthread_mutex_unlock(&f->lock);
        make_call(t);
        pthread_mutex_lock(&f->lock);
    }
    if (state_of_thread(t) == FILE_GIVEN_UP) {
        f->late--;
        set_state(t, FILE_IDLE);
        return;
    }
    set_state(t, FILE_RETURNED);
    pthread_mutex_unlock(&f->lock);
    futex_wake(&t->state, 1);
    pthread_mutex_lock(&f->lock);
}

static void *make_calls(void *thread)
{
    struct file_thread *t = thread;
    struct timed_file *f = t->file;
    pthread_mutex_lock(&f->lock);
    for (bool over = false;;) {
        uint32_t seen = atomic_load(&t->posted), state = state_of_thread(t);
        if (state == FILE_CALLS || state == FILE_GIVEN_UP) {
            serve_call(f, t);
            over = false;
            continue;
        }
        if (state == FILE_IDLE && (over || f->leave || f->closed))
            break;
        pthread_mutex_unlock(&f->lock);
        over = futex_wait(&t->posted, seen, FILE_THREAD_STAYS_MS) != 0 && errno == ETIMEDOUT;
        pthread_mutex_lock(&f->lock);
    }
    set_state(t, FILE_ENDED);
    free(t->data);
    t->data = NULL;
    t->capacity = 0;
    bool last = f->closed && f->late == 0;
    pthread_mutex_unlock(&f->lock);
    if (last)
        free_timed_file(f);
    return NULL;
}

static bool start_file_thread(struct file_thread *t)
{
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before); /* no signal handler of the program runs in it */
    bool started = pthread_create(&t->thread, NULL, make_calls, t) == 0;
    sigprocmask(SIG_SETMASK, &before, NULL);
    return started;
}

/* Joins a thread that has ended: it has given up the lock for the last time. */
static void join_ended(struct file_thread *t)
{
    if (state_of_thread(t) == FILE_ENDED) {
        pthread_join(t->thread, NULL);
        set_state(t, FILE_GONE);
    }
}

static bool has_room(struct file_thread *t, size_t length)
{
    if (t->capacity >= length)
        return true;
    free(t->data);
    t->data = malloc(length);
    t->capacity = t->data ? length : 0;
    return t->data != NULL;
}

/* A thread for a call, with memory. NULL: there is none. The caller holds the lock. */
static struct file_thread *take_file_thread(struct timed_file *f, size_t length)
{
    struct file_thread *t, *gone = NULL;
    for (t = f->threads; t && state_of_thread(t) != FILE_IDLE; t = t->next) {
        join_ended(t);
        if (state_of_thread(t) == FILE_GONE)
            gone = t;
    }
    if (!t && !(t = gone)) {
        if (!(t = calloc(1, sizeof *t)))
            return NULL;
        t->file = f;
        t->next = f->threads;
        f->threads = t;
    }
    bool fresh = state_of_thread(t) == FILE_GONE;
    if (!has_room(t, length))
        return NULL;
    atomic_store(&t->state, (atomic_load(&t->state) / FILE_STATES + 1) * FILE_STATES + FILE_TAKEN);
    if (!fresh || start_file_thread(t))
        return t;
    set_state(t, FILE_GONE);
    return NULL;
}

/* Gives up all calls. The caller holds the lock. */
static void give_up_calls(struct timed_file *f)
{
    for (struct file_thread *t = f->threads; t; t = t->next)
        if (state_of_thread(t) == FILE_CALLS) {
            f->late++;
            set_state(t, FILE_GIVEN_UP);
            futex_wake(&t->state, 1);
        }
}

/* Has a thread make a call, and waits for it: a number of bytes, or -1 with errno. ETIMEDOUT: the disk hangs. */
static int64_t call_in_time(struct timed_file *f, bool writes, unsigned char *data, size_t length, uint64_t offset,
                            uint64_t deadline)
{
    pthread_mutex_lock(&f->lock);
    while (f->leave) { /* before a fork */
        pthread_mutex_unlock(&f->lock);
        sleep_ns(50000);
        pthread_mutex_lock(&f->lock);
    }
    struct file_thread *t = f->late ? NULL : take_file_thread(f, length);
    if (!t) {
        bool hangs = f->late > 0;
        pthread_mutex_unlock(&f->lock);
        errno = ETIMEDOUT;
        return hangs ? -1 : call_file(f->fd, writes, data, length, offset);
    }
    uint32_t own = atomic_load(&t->state) / FILE_STATES * FILE_STATES;
    pthread_mutex_unlock(&f->lock);
    if (writes)
        memcpy(t->data, data, length);
    t->writes = writes;
    t->offset = offset;
    t->length = length;
    pthread_mutex_lock(&f->lock);
    bool begins = f->late == 0; /* else another call was given up in between */
    set_state(t, begins ? FILE_CALLS : FILE_IDLE);
    pthread_mutex_unlock(&f->lock);
    if (begins)
        post_call(t);
    for (uint64_t now; begins && atomic_load(&t->state) == own + FILE_CALLS && (now = now_ns()) < deadline;)
        futex_wait(&t->state, own + FILE_CALLS, (uint32_t)MIN((deadline - now) / 1000000 + 1, 1000));
    pthread_mutex_lock(&f->lock);
    uint32_t state = atomic_load(&t->state);
    if (begins && state == own + FILE_CALLS)
        give_up_calls(f);
    pthread_mutex_unlock(&f->lock);
    int64_t result = -1;
    int number = ETIMEDOUT;
    if (state == own + FILE_RETURNED) {
        result = t->result, number = t->error;
        if (!writes && result > 0)
            memcpy(data, t->data, (size_t)result);
        pthread_mutex_lock(&f->lock);
        set_state(t, FILE_IDLE);
        pthread_mutex_unlock(&f->lock);
    }
    errno = number;
    return result;
}

static uint64_t deadline_for(const struct timed_file *f, size_t length)
{
    return now_ns() + f->timeout_ns + (uint64_t)length * 1000000000u / BYTES_PER_SECOND;
}

/* NULL: no memory. It owns the descriptor. */
INTERNAL struct timed_file *new_timed_file(int fd, uint64_t timeout_ns)
{
    struct timed_file *f = calloc(1, sizeof *f);
    if (f) {
        f->fd = fd;
        f->timeout_ns = timeout_ns;
        pthread_mutex_init(&f->lock, NULL);
    }
    return f;
}

/* pread_all. What the page cache has needs neither a thread nor a copy. */
INTERNAL int64_t read_in_time(struct timed_file *f, void *data, size_t length, uint64_t offset)
{
    unsigned char *to = data;
    uint64_t deadline = 0;
    size_t done = 0;
    while (done < length) {
        int64_t n = -1;
        if (!atomic_load_explicit(&f->no_peeks, memory_order_relaxed)) {
            n = peek(f->fd, to + done, length - done, offset + done);
            if (n < 0 && (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL || errno == EPERM))
                atomic_store(&f->no_peeks, true);
        }
        if (n <= 0) {
            if (!deadline)
                deadline = deadline_for(f, length);
            n = call_in_time(f, false, to + done, MIN(length - done, CALL_BYTES), offset + done, deadline);
        }
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        done += (size_t)n;
    }
    return (int64_t)done;
}

/* pwrite_all. */
INTERNAL int write_in_time(struct timed_file *f, const void *data, size_t length, uint64_t offset)
{
    unsigned char *from = (unsigned char *)(uintptr_t)data;
    uint64_t deadline = deadline_for(f, length);
    for (size_t done = 0; done < length;) {
        int64_t n = call_in_time(f, true, from + done, MIN(length - done, CALL_BYTES), offset + done, deadline);
        if (n <= 0) {
            if (n == 0)
                errno = ENOSPC;
            return -1;
        }
        done += (size_t)n;
    }
    return 0;
}

/* Ends threads without a call. Returns with the lock. */
static void end_idle_threads(struct timed_file *f)
{
    pthread_mutex_lock(&f->lock);
    while (f->leave) { /* another thread does so */
        pthread_mutex_unlock(&f->lock);
        sleep_ns(50000);
        pthread_mutex_lock(&f->lock);
    }
    f->leave = true;
    for (bool again = true; again;) {
        again = false; /* until a pass under the lock finds none: a call that was given up may return in between */
        for (struct file_thread *t = f->threads; t; t = t->next) {
            join_ended(t);
            if (state_of_thread(t) != FILE_IDLE)
                continue;
            again = true;
            pthread_mutex_unlock(&f->lock);
            post_call(t);
            sched_yield();
            pthread_mutex_lock(&f->lock);
        }
    }
    f->leave = false;
}

/* No call is under way but those that were given up. The last of them closes the file. */
INTERNAL void close_timed_file(struct timed_file *f)
{
    end_idle_threads(f);
    f->closed = true;
    bool late = f->late > 0;
    for (struct file_thread *t = f->threads; t; t = t->next)
        if (state_of_thread(t) == FILE_GIVEN_UP)
            pthread_detach(t->thread);
    pthread_mutex_unlock(&f->lock);
    if (!late)
        free_timed_file(f);
}

/* Before a fork: ends threads without a call, because Python would warn of them. The lock is held from now on. */
INTERNAL void fork_timed_file(struct timed_file *f) { end_idle_threads(f); }

INTERNAL void fork_timed_file_parent(struct timed_file *f) { pthread_mutex_unlock(&f->lock); }

/* The threads are the parent's. */
INTERNAL void fork_timed_file_child(struct timed_file *f)
{
    free_threads(f);
    f->late = 0;
    pthread_mutex_init(&f->lock, NULL);
}

/*
 * fetch.c - stoc_fetch and its kind against a peer that follows a script: what it sends, when it
 * hangs up, and what must not be believed. Against the real server see ../conform.
 */
#include "check.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

enum { HELLO = 1, WELCOME, ATTACH, ATTACHED, FETCH, SAMPLE, FETCHED, PREFETCH, PREFETCHED, CANCEL, ERROR, ANNOUNCE,
       ANNOUNCED, OFFER, OFFERED };
enum { SAMPLES = 64, BYTES = 1000 };

/* ------------------------------------------------------------ the peer */

/* What the peer does with one FETCH or PREFETCH. */
struct request {
    int fd, type;
    uint32_t flags;
    uint64_t number;
    size_t n;
    int64_t indices[SAMPLES * 4];
    unsigned connection; /* number of the connection */
};

static struct peer {
    stoc_cache *cache; /* the cache that it fills */
    void (*answer)(struct request *r); /* NULL: serve */
    void (*greet)(int fd); /* NULL: like a server */
    uint32_t max_indices;
    int listener;
    pthread_t thread;
    _Atomic unsigned connections, ended, requests;
    _Atomic size_t largest;
    _Atomic unsigned sending; /* requests with the flag SEND */
    _Atomic unsigned unstored; /* requests with the flag UNSTORED */
    void (*_Atomic heard)(struct request *r); /* answers an ANNOUNCE; NULL: it uses the plan */
    _Atomic unsigned plans;   /* frames of ANNOUNCE */
    unsigned char plan[96];   /* the last one; under plan_lock */
} peer;
static pthread_mutex_t plan_lock = PTHREAD_MUTEX_INITIALIZER;

static bool receive(int fd, void *data, size_t n) { return n == 0 || recv(fd, data, n, MSG_WAITALL) == (ssize_t)n; }

static void transmit(int fd, const void *data, size_t n)
{
    while (n > 0) {
        ssize_t sent = send(fd, data, n, MSG_NOSIGNAL);
        if (sent <= 0)
            return; /* the client has closed the connection, as some tests require */
        data = (const char *)data + sent;
        n -= (size_t)sent;
    }
}

/* What becomes of one connection: of all that the peer sends there. `sweep` sets it while there is no connection. */
static struct {
    enum { AS_IT_IS, ONE_BYTE, NEW_LENGTH, CUT } how;
    size_t at;       /* the byte that changes, or the first one that does not come; a frame for NEW_LENGTH */
    uint32_t value;  /* the byte's value, or the length of the body */
    _Atomic bool on; /* for the next connection */
    size_t sent, frames;
    struct {
        size_t from, bytes;
        int type;
        unsigned char head[80]; /* its first bytes */
    } frame[8]; /* those of the last connection AS_IT_IS */
} spoil;
static _Thread_local bool spoils; /* the connection of this thread */
enum { SPARE = 16 };              /* bytes behind a frame, for one that gets longer */

/* Spoils a frame. Returns how many bytes to send. */
static size_t spoilt(unsigned char *frame, size_t n)
{
    if (!spoils)
        return n;
    size_t from = spoil.sent, number = spoil.frames++, end = spoil.sent += n;
    switch (spoil.how) {
    case AS_IT_IS:
        CHECK(number < sizeof spoil.frame / sizeof *spoil.frame);
        spoil.frame[number].from = from, spoil.frame[number].bytes = n, spoil.frame[number].type = frame[4];
        memcpy(spoil.frame[number].head, frame, MIN(n, sizeof spoil.frame[number].head));
        break;
    case ONE_BYTE:
        if (spoil.at >= from && spoil.at < end)
            frame[spoil.at - from] = (unsigned char)spoil.value;
        break;
    case NEW_LENGTH:
        if (number != spoil.at)
            break;
        memset(frame + n, 0x5a, SPARE);
        memcpy(frame, &spoil.value, 4);
        return 16 + spoil.value;
    case CUT:
        return spoil.at <= from ? 0 : MIN(n, spoil.at - from);
    }
    return n;
}

static size_t frame_of(unsigned char *out, uint32_t length, uint16_t type, uint16_t reserved, uint64_t request,
                       const void *body)
{
    memcpy(out, &length, 4);
    memcpy(out + 4, &type, 2);
    memcpy(out + 6, &reserved, 2);
    memcpy(out + 8, &request, 8);
    if (length && body)
        memcpy(out + 16, body, length);
    return 16 + length;
}

static void reply(int fd, uint16_t type, uint64_t request, const void *body, uint32_t length)
{
    unsigned char frame[16 + length + SPARE];
    transmit(fd, frame, spoilt(frame, frame_of(frame, length, type, 0, request, body)));
}

/* Sends a frame with descriptors. */
static void reply_with(int fd, uint16_t type, uint64_t request, const void *body, uint32_t length,
                       const int *descriptors, size_t n)
{
    unsigned char frame[16 + length + SPARE];
    char control[CMSG_SPACE(8 * sizeof(int))];
    struct iovec part = {.iov_base = frame, .iov_len = spoilt(frame, frame_of(frame, length, type, 0, request, body))};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(n * sizeof(int))};
    memset(control, 0, sizeof control);
    struct cmsghdr *h = CMSG_FIRSTHDR(&message);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(n * sizeof(int));
    memcpy(CMSG_DATA(h), descriptors, n * sizeof(int));
    ssize_t sent = part.iov_len ? sendmsg(fd, &message, MSG_NOSIGNAL) : 0;
    CHECK(sent == (ssize_t)part.iov_len || errno == EPIPE); /* a client whose time was up has gone */
}

enum { VERSION = 1 }; /* the protocol's */

static void welcome(int fd, uint16_t version, uint32_t max_indices)
{
    unsigned char body[24] = {0};
    memcpy(body, &version, 2);
    memcpy(body + 4, &max_indices, 4);
    reply(fd, WELCOME, 1, body, sizeof body);
}

static void attached(int fd, unsigned descriptors, bool other)
{
    unsigned char body[24] = {7}; /* number of the cache on this connection */
    int fresh[4];
    struct stoc_info info = info_of(peer.cache);
    memcpy(body + 8, info.uuid, 16);
    body[8] ^= other;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", info.fd); /* the file may have no name */
    for (unsigned k = 0; k < descriptors; k++)
        fresh[k] = open(path, O_RDWR | O_CLOEXEC);
    if (descriptors)
        reply_with(fd, ATTACHED, 2, body, sizeof body, fresh, descriptors);
    else
        reply(fd, ATTACHED, 2, body, sizeof body);
    for (unsigned k = 0; k < descriptors; k++)
        close(fresh[k]);
}

/* Reads HELLO and ATTACH, which must follow docs/spec/control.md. */
static bool introduced(int fd)
{
    unsigned char header[16], body[256];
    uint32_t length;
    uint64_t request;
    if (!receive(fd, header, 16))
        return false;
    memcpy(&length, header, 4);
    memcpy(&request, header + 8, 8);
    CHECK(header[4] == HELLO && length >= 8 && length <= 8 + 63 && request == 1 && receive(fd, body, length));
    CHECK(memcmp(body, "STOC\1\0\2\0", 8) == 0);
    CHECK(receive(fd, header, 16));
    memcpy(&length, header, 4);
    memcpy(&request, header + 8, 8);
    CHECK(header[4] == ATTACH && length == 6 && request == 2 && receive(fd, body, length) &&
          memcmp(body, "served", 6) == 0);
    return true;
}

static void say_failed(struct request *r, const uint32_t *positions, const uint16_t *codes, uint32_t n,
                       const char *text)
{
    unsigned char body[8 + n * (8 + strlen(text)) + 1], *at = body + 8;
    uint16_t length = (uint16_t)strlen(text);
    memset(body, 0, 8);
    memcpy(body, &n, 4);
    for (uint32_t k = 0; k < n; k++) {
        memcpy(at, &positions[k], 4);
        memcpy(at + 4, &codes[k], 2);
        memcpy(at + 6, &length, 2);
        memcpy(at + 8, text, length);
        at += 8 + length;
    }
    reply(r->fd, FETCHED, r->number, body, (uint32_t)(at - body));
}

static void send_sample(struct request *r, uint32_t position, size_t n)
{
    unsigned char body[8 + n];
    memset(body, 0, 8);
    memcpy(body, &position, 4);
    fill(body + 8, n, (uint64_t)r->indices[position % r->n], 1);
    reply(r->fd, SAMPLE, r->number, body, (uint32_t)sizeof body);
}

/* Stores every requested sample. */
static void serve(struct request *r)
{
    uint32_t queued[2] = {(uint32_t)r->n, 0};
    if (r->type == PREFETCH) {
        reply(r->fd, PREFETCHED, r->number, queued, 8);
        return;
    }
    for (size_t k = 0; k < r->n; k++)
        put(peer.cache, r->indices[k], BYTES, 1, STOC_WAIT);
    say_failed(r, NULL, NULL, 0, "");
}

static void answer_plan(struct request *r, uint32_t used)
{
    uint32_t body[2] = {used, 0};
    reply(r->fd, ANNOUNCED, r->number, body, sizeof body);
}

/* Reads a plan, which the peer keeps, and answers it. */
static bool hear_plan(struct request *r, uint32_t length)
{
    unsigned char body[sizeof peer.plan];
    CHECK(length == sizeof body);
    if (length != sizeof body || !receive(r->fd, body, length))
        return false;
    pthread_mutex_lock(&plan_lock);
    memcpy(peer.plan, body, sizeof body);
    pthread_mutex_unlock(&plan_lock);
    atomic_fetch_add(&peer.plans, 1);
    void (*heard)(struct request *) = atomic_load(&peer.heard);
    if (heard)
        heard(r);
    else
        answer_plan(r, 1);
    return true;
}

#define IS_CUT "it is cut"

static bool hear_offer(struct request *r, uint32_t length)
{
    unsigned char body[16 + BYTES];
    uint32_t taken[2] = {1, 0};
    bool damaged = length == 16 + sizeof IS_CUT - 1;
    CHECK(damaged || length == sizeof body);
    if ((!damaged && length != sizeof body) || !receive(r->fd, body, length))
        return false;
    reply(r->fd, OFFERED, r->number, taken, sizeof taken);
    return true;
}

static void *converse(void *argument)
{
    struct request r = {.fd = (int)(intptr_t)argument, .connection = atomic_fetch_add(&peer.connections, 1) + 1};
    unsigned char header[16];
    spoils = atomic_exchange(&spoil.on, false);
    if (peer.greet) {
        if (introduced(r.fd))
            peer.greet(r.fd);
    } else if (introduced(r.fd)) {
        welcome(r.fd, VERSION, peer.max_indices);
        attached(r.fd, 1, false);
    }
    while (receive(r.fd, header, 16)) {
        uint32_t length, head[2];
        memcpy(&length, header, 4);
        memcpy(&r.number, header + 8, 8);
        r.type = header[4];
        if (r.type == ANNOUNCE || r.type == OFFER) {
            int fd = r.fd;
            if ((r.type == OFFER ? hear_offer : hear_plan)(&r, length) && r.fd >= 0 && !spoils)
                continue;
            shutdown(fd, SHUT_RDWR);
            r.fd = fd;
            break;
        }
        r.n = (length - 8) / 8;
        if ((r.type != FETCH && r.type != PREFETCH) || r.n > sizeof r.indices / 8 || !receive(r.fd, head, 8) ||
            !receive(r.fd, r.indices, r.n * 8)) {
            COMPLAIN("a request of type %d with %u bytes", r.type, length);
            break;
        }
        r.flags = head[1];
        uint32_t how = r.flags & ~8u;
        CHECK((head[0] == 7 || spoils) && (how == 0 || ((how == 2 || how == 4 || r.flags == 16) && r.type == FETCH)));
        CHECK(how == r.flags || r.type == FETCH);
        atomic_fetch_add(&peer.sending, r.flags == 2);
        atomic_fetch_add(&peer.unstored, r.flags == 4);
        atomic_fetch_add(&peer.requests, 1);
        if (r.n > atomic_load(&peer.largest))
            atomic_store(&peer.largest, r.n);
        int fd = r.fd;
        (peer.answer ? peer.answer : serve)(&r);
        if (spoils)
            r.fd = -1; /* the client may wait for more than comes */
        if (r.fd < 0) { /* the peer closes the connection */
            shutdown(fd, SHUT_RDWR);
            r.fd = fd;
            break;
        }
    }
    close(r.fd);
    atomic_fetch_add(&peer.ended, 1);
    return NULL;
}

static void *listen_for(void *unused)
{
    (void)unused;
    for (;;) {
        int fd = accept4(peer.listener, NULL, NULL, SOCK_CLOEXEC);
        pthread_t thread;
        if (fd < 0)
            return NULL;
        if (pthread_create(&thread, NULL, converse, (void *)(intptr_t)fd) == 0)
            pthread_detach(thread);
    }
}

static void begin_peer(stoc_cache *c, void (*answer)(struct request *), void (*greet)(int))
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memset(&peer, 0, sizeof peer);
    peer.cache = join_fd(c);
    peer.answer = answer;
    peer.greet = greet;
    peer.max_indices = 65536;
    snprintf(address.sun_path, sizeof address.sun_path, "%s/data.sock", scratch);
    unlink(address.sun_path);
    peer.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(bind(peer.listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(peer.listener, 64) == 0);
    REQUIRE(pthread_create(&peer.thread, NULL, listen_for, NULL) == 0);
}

/* Closes the client's last handle, and waits for the end of all connections. */
static void end_peer(stoc_cache *client)
{
    stoc_close(client);
    shutdown(peer.listener, SHUT_RDWR);
    pthread_join(peer.thread, NULL);
    close(peer.listener);
    for (int k = 0; k < 5000 && atomic_load(&peer.ended) != atomic_load(&peer.connections); k++)
        usleep(1000);
    EQUAL(atomic_load(&peer.ended), atomic_load(&peer.connections)); /* no connection stays open */
    stoc_close(peer.cache);
    char path[100];
    snprintf(path, sizeof path, "%s/data.sock", scratch);
    unlink(path);
}

/* ------------------------------------------------------------ helpers */

static stoc_cache *served(void)
{
    unlink(path_in_scratch("served"));
    return make("served", OPTIONS(.samples = SAMPLES, .sample_bytes = BYTES));
}

static stoc_cache *served_variable(void)
{
    unlink(path_in_scratch("served"));
    return make("served", OPTIONS(.samples = SAMPLES, .variable = 1, .limit_bytes = 8 << 20, .sample_bytes = BYTES));
}

/* A cache of a peer that answers and greets so. */
static stoc_cache *served_by(void (*answer)(struct request *), void (*greet)(int))
{
    stoc_cache *c = served();
    begin_peer(c, answer, greet);
    return c;
}

static int open_sockets(void)
{
    char path[64], target[16];
    int n = 0;
    for (int fd = 0; fd < 256; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        n += readlink(path, target, sizeof target) > 7 && memcmp(target, "socket:", 7) == 0;
    }
    return n;
}

static unsigned char rows[SAMPLES][BYTES];
static uint8_t hit[SAMPLES];

static int64_t fetch(stoc_cache *c, const int64_t *indices, size_t n, struct stoc_fetch_options *o)
{
    memset(rows, 0xee, sizeof rows);
    memset(hit, 0xee, sizeof hit);
    return stoc_fetch(c, indices, n, rows, BYTES, hit, o, &error);
}

#define WITHIN(ms, ...)                                                                                                \
    (struct stoc_fetch_options) { .struct_bytes = sizeof(struct stoc_fetch_options), .timeout_ms = ms, __VA_ARGS__ }

static const int64_t forty[] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19,
                                20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39};

static bool row_is(size_t k, int64_t index) { return filled(rows[k], BYTES, (uint64_t)index, 1); }

/* ------------------------------------------------------------ tests */

TEST(hits_need_no_server)
{
    stoc_cache *c = served();
    int64_t indices[] = {3, 1, 3};
    put(c, 1, BYTES, 1, 0);
    put(c, 3, BYTES, 1, 0);
    EQUAL(fetch(c, indices, 3, NULL), 3);
    CHECK(row_is(0, 3) && row_is(1, 1) && row_is(2, 3) && hit[0] == 1 && hit[1] == 1 && hit[2] == 1);
    EQUAL(stoc_fetch(c, indices, 3, rows, BYTES, NULL, NULL, NULL), 3);
    EQUAL(fetch(c, indices, 0, NULL), 0);

    indices[1] = 2;
    double began = seconds();
    struct stoc_fetch_options o = WITHIN(100);
    EQUAL(fetch(c, indices, 3, &o), STOC_ENOSERVER);
    CHECK(seconds() - began >= 0.1 && seconds() - began < 60);
    CHECK(row_is(0, 3) && row_is(2, 3) && hit[0] == 1 && hit[1] == 0 && hit[2] == 1);
    CHECK(error.code == STOC_ENOSERVER && strstr(error.message, "stocached serve -c") &&
          strstr(error.message, scratch));
    EQUAL(o.failed, 0);
    EQUAL(stoc_prefetch(c, indices, 3, &o, &error), STOC_ENOSERVER);
    EQUAL(stats_of(c).misses, 1);
    stoc_close(c);
}

/* Stores sample 4, sends 5, fails for 6, and stores the rest. */
static void serve_all_ways(struct request *r)
{
    for (size_t k = 0; k < r->n; k++) {
        if (r->indices[k] == 5)
            send_sample(r, (uint32_t)k, BYTES);
        else if (r->indices[k] != 6)
            put(peer.cache, r->indices[k], BYTES, 1, 0);
    }
    uint32_t failed_at[SAMPLES], n = 0;
    uint16_t codes[SAMPLES];
    for (size_t k = r->n; k-- > 0;) /* from last to first: the client sorts */
        if (r->indices[k] == 6) {
            codes[n] = STOC_REMOTE_READ;
            failed_at[n++] = (uint32_t)k;
        }
    say_failed(r, failed_at, codes, n, "six\n\033[2J.jpg: no such file");
}

TEST(stored_sent_and_failed)
{
    stoc_cache *c = served_by(serve_all_ways, NULL);
    int64_t indices[] = {6, 3, 4, 5, 6, 5, 0};
    struct stoc_fetch_options o = WITHIN(10000);
    put(c, 3, BYTES, 1, 0);
    EQUAL(fetch(c, indices, 7, &o), 5);
    for (size_t k = 0; k < 7; k++) {
        EQUAL(hit[k], indices[k] != 6);
        CHECK(indices[k] == 6 || row_is(k, indices[k]));
    }
    EQUAL(o.failed, 2);
    REQUIRE(o.failures != NULL);
    CHECK(o.failures[0].position == 0 && o.failures[1].position == 4 && o.failures[0].index == 6 &&
          o.failures[1].code == STOC_REMOTE_READ);
    CHECK(strcmp(o.failures[1].message, "six??[2J.jpg: no such file") == 0);
    CHECK(error.code == STOC_EREMOTE && strstr(error.message, "2 of 7") && strstr(error.message, "six??[2J.jpg"));
    stoc_fetch_end(&o, NULL, 0);
    CHECK(o.failures == NULL && o.failed == 0);
    struct stoc_stats s = stats_of(c);
    EQUAL(s.hits, 1); /* sample 3: samples that the server brought are not counted again */
    EQUAL(s.misses, 6);

    o.flags = STOC_FETCH_UNCOUNTED;
    memset(hit, 0, sizeof hit);
    hit[1] = 1; /* a row that the caller has stays unchanged */
    memset(rows, 0xee, sizeof rows);
    EQUAL(stoc_fetch(c, indices, 7, rows, BYTES, hit, &o, &error), 5);
    CHECK(rows[1][0] == 0xee && row_is(2, 4) && row_is(3, 5) && hit[1] == 1 && hit[2] == 1 && hit[0] == 0);
    s = stats_of(c);
    EQUAL(s.hits, 1);
    EQUAL(s.misses, 6);
    stoc_fetch_end(&o, NULL, 0);
    EQUAL(stoc_fetch(c, indices, 7, rows, BYTES, NULL, NULL, NULL), 5); /* the caller asks for no details */
    EQUAL(stoc_prefetch(c, indices, 7, NULL, &error), STOC_EREMOTE); /* this peer answers every request with FETCHED */
    end_peer(c);
}

TEST(any_size)
{
    stoc_cache *c = served_variable();
    int64_t indices[] = {6, 3, 4, 5};
    void *data[4];
    uint64_t lengths[4];
    struct stoc_fetch_options o = WITHIN(10000);
    put(c, 3, 17, 1, 0);
    begin_peer(c, serve_all_ways, NULL);
    EQUAL(stoc_fetch_each(c, indices, 4, data, lengths, &o, &error), 3);
    CHECK(data[0] == NULL && lengths[0] == 0 && o.failed == 1);
    CHECK(data[1] && lengths[1] == 17 && filled(data[1], 17, 3, 1));
    CHECK(data[2] && lengths[2] == BYTES && filled(data[2], BYTES, 4, 1));
    CHECK(data[3] && lengths[3] == BYTES && filled(data[3], BYTES, 5, 1));
    stoc_fetch_end(&o, data, 4);
    CHECK(data[1] == NULL && data[3] == NULL);
    EQUAL(stats_of(c).hits, 1);
    EQUAL(stats_of(c).misses, 3);
    put(c, 9, 0, 1, 0); /* a sample of 0 bytes is a sample */
    int64_t nine = 9;
    EQUAL(stoc_fetch_each(c, &nine, 1, data, lengths, NULL, &error), 1);
    CHECK(data[0] && lengths[0] == 0);
    stoc_fetch_end(NULL, data, 1);
    EQUAL(stoc_fetch(c, &nine, 1, rows, BYTES, NULL, NULL, &error), STOC_ESCHEMA);
    end_peer(c);
}

TEST(bad_arguments)
{
    stoc_cache *c = served(), *unnamed = make(NULL, OPTIONS(.samples = 4, .sample_bytes = 8));
    int64_t indices[] = {0, SAMPLES, -1};
    void *data[1];
    uint64_t lengths[1];
    struct stoc_fetch_options o = WITHIN(50), small = {.struct_bytes = 8};
    EQUAL(fetch(c, indices, 3, NULL), STOC_EINDEX);
    CHECK(strstr(error.message, "index 64 at position 1"));
    EQUAL(fetch(c, NULL, 3, NULL), STOC_EINVAL);
    EQUAL(fetch(c, indices, 1, &small), STOC_EINVAL);
    EQUAL(stoc_fetch(c, indices, 1, NULL, BYTES, NULL, NULL, &error), STOC_EINVAL);
    EQUAL(stoc_fetch(c, indices, 1, rows, BYTES - 1, NULL, NULL, &error), STOC_ESCHEMA);
    EQUAL(stoc_fetch(NULL, indices, 1, rows, BYTES, NULL, NULL, &error), STOC_ECLOSED);
    EQUAL(stoc_fetch_each(c, indices, 1, NULL, lengths, NULL, &error), STOC_EINVAL);
    EQUAL(stoc_fetch_each(c, indices, 1, data, NULL, NULL, &error), STOC_EINVAL);
    EQUAL(stoc_prefetch(c, indices, 2, NULL, &error), STOC_EINDEX);
    o.flags = 8;
    EQUAL(fetch(c, indices, 1, &o), STOC_EINVAL);
    o.flags = 0;
    EQUAL(stoc_fetch(unnamed, indices, 1, rows, BYTES, NULL, &o, &error), STOC_EINVAL);
    CHECK(strstr(error.message, "without a name"));
    stoc_cache *none;
    EQUAL(stoc_dial("no/name", NULL, 0, &WITHIN(50), &none, &error), STOC_EINVAL);
    EQUAL(stoc_dial("served", NULL, 0, &WITHIN(50), NULL, &error), STOC_EINVAL);
    EQUAL(stoc_dial("served", NULL, 0, &small, &none, &error), STOC_EINVAL);
    EQUAL(stoc_dial("served", NULL, 0, &WITHIN(50), &none, &error), STOC_ENOSERVER);
    char deep[200];
    snprintf(deep, sizeof deep, "/tmp/%0150d", 1);
    EQUAL(stoc_dial("served", deep, 0, &WITHIN(50), &none, &error), STOC_EINVAL);
    CHECK(strstr(error.message, "shorter"));
    stoc_close(c);
    stoc_close(unnamed);
}

/* The wrong answer of the peer in garbled(). */
static int lie;

static void lie_once(struct request *r)
{
    unsigned char out[4096] = {0};
    uint32_t one = 1;
    int fds[2] = {0, 1};
    if (r->connection > 1) { /* the second connection has a correct peer */
        serve(r);
        return;
    }
    switch (lie) {
    case 0: transmit(r->fd, out, frame_of(out, 8, 99, 0, r->number, NULL)); break;                 /* an unknown type */
    case 1: transmit(r->fd, out, frame_of(out, 8, FETCHED, 1, r->number, NULL)); break;            /* reserved */
    /* 4 GiB of failures */
    case 2: frame_of(out, 0, FETCHED, 0, r->number, NULL), memset(out, 0xff, 4), transmit(r->fd, out, 16); break;
    case 3: send_sample(r, 0, BYTES - 1); break;
    case 4: send_sample(r, 0, BYTES + 1); break;
    case 5: send_sample(r, (uint32_t)r->n, BYTES); break;                                          /* position */
    case 6: send_sample(r, 0, BYTES), send_sample(r, 0, BYTES); break;                             /* twice */
    case 7: reply(r->fd, SAMPLE, r->number, out, 7); break;
    case 8: reply(r->fd, FETCHED, r->number, out, 7); break;
    /* one byte too many */
    case 9: reply(r->fd, FETCHED, r->number, out, 9); break;
    /* ends inside a failure */
    case 10: memcpy(out, &one, 4), reply(r->fd, FETCHED, r->number, out, 15); break;
    /* ends inside a text */
    case 11: memcpy(out, &one, 4), out[14] = 200, reply(r->fd, FETCHED, r->number, out, 16 + 10); break;
    case 12: memcpy(out, &one, 4), out[8] = 200, reply(r->fd, FETCHED, r->number, out, 16); break; /* position */
    /* one position twice */
    case 13: out[0] = 2, out[12] = out[20] = 7, reply(r->fd, FETCHED, r->number, out, 24); break;
    case 14: reply(r->fd, FETCHED, r->number + 1, out, 8); break;
    case 15: reply(r->fd, ERROR, r->number, out, 3); break;
    case 16: reply(r->fd, ERROR, r->number, out, 2000); break;
    case 17: reply(r->fd, PREFETCHED, r->number, out, 8); break;
    case 18: out[0] = 5, reply(r->fd, ERROR, r->number, out, 4); break;                            /* LIMIT */
    case 19: memset(out, 0xff, sizeof out), transmit(r->fd, out, sizeof out); break;
    /* with descriptors that the client did not request */
    case 20: reply_with(r->fd, FETCHED, r->number + 7, out, 8, fds, 2); break;
    default: CHECK(false);
    }
}

TEST(garbled)
{
    int descriptors = files_in("/proc/self/fd");
    for (lie = 0; lie <= 20; lie++) {
        stoc_cache *c = served_by(lie_once, NULL);
        int64_t indices[] = {1, 2};
        struct stoc_fetch_options o = WITHIN(10000);
        int64_t code = fetch(c, indices, 2, &o);
        if (code != STOC_EREMOTE || error.code != STOC_EREMOTE || !error.message[0] || o.failures)
            COMPLAIN("lie %d: %ld, \"%s\"", lie, code, error.message);
        for (size_t k = 0; k < 2; k++)
            CHECK(hit[k] == 0 || row_is(k, indices[k]));
        EQUAL(fetch(c, indices, 2, &o), 2); /* on a new connection */
        CHECK(row_is(0, 1) && row_is(1, 2));
        end_peer(c);
    }
    EQUAL(files_in("/proc/self/fd"), descriptors);
}

static int greeting;

static void greet_badly(int fd)
{
    static const char *const texts[] = {"\3\0\0\0this server\t belongs to user id 7",
                                        "\4\0\0\0this server has no cache", "\2\0\0\0this server speaks version 2"};
    switch (greeting) {
    case 0: welcome(fd, VERSION + 1, 100); break;
    case 1: welcome(fd, 1, 0); break;
    case 2: welcome(fd, 1, UINT32_MAX); break;
    case 3: welcome(fd, 1, 100), attached(fd, 0, false); break; /* no descriptor */
    case 4: welcome(fd, 1, 100), attached(fd, 3, true); break;  /* another segment, and too many descriptors */
    case 5: reply(fd, ATTACHED, 1, texts, 8); break;
    case 6: reply(fd, WELCOME, 1, texts, 23); break;
    default: {
        const char *text = texts[greeting - 7];
        reply(fd, ERROR, 0, text, (uint32_t)(4 + strlen(text + 4)));
    }
    }
}

TEST(bad_greetings)
{
    static const int want[] = {STOC_EVERSION, STOC_EREMOTE, STOC_EREMOTE, STOC_EREMOTE, STOC_EREPLACED,
                               STOC_EREMOTE,  STOC_EREMOTE, STOC_EPERM,   STOC_ENOENT,  STOC_EVERSION};
    int descriptors = files_in("/proc/self/fd");
    for (greeting = 0; greeting < 10; greeting++) {
        stoc_cache *c = served_by(NULL, greet_badly), *other;
        int64_t index = 1;
        struct stoc_fetch_options o = WITHIN(60000);
        EQUAL(fetch(c, &index, 1, &o), want[greeting]);
        EQUAL(error.code, want[greeting]);
        CHECK(greeting != 7 || strstr(error.message, "this server? belongs"));
        /* a new handle has no old uuid to compare, so the uuid in the answer is wrong */
        EQUAL(stoc_dial("served", scratch, 0, &WITHIN(60000), &other, &error),
              greeting == 4 ? STOC_EFORMAT : want[greeting]);
        CHECK(other == NULL);
        end_peer(c);
    }
    EQUAL(files_in("/proc/self/fd"), descriptors);
}

/* Sends a frame byte by byte, with pauses: the client must still read it. */
static void dribble(struct request *r)
{
    unsigned char frames[2 * (16 + 8 + BYTES)] = {0}, body[8 + BYTES] = {0};
    fill(body + 8, BYTES, (uint64_t)r->indices[0], 1);
    size_t n = frame_of(frames, sizeof body, SAMPLE, 0, r->number, body);
    memset(body, 0, 8);
    n += frame_of(frames + n, 8, FETCHED, 0, r->number, body);
    for (size_t k = 0; k < n; k++) {
        transmit(r->fd, frames + k, 1);
        if (k % 100 == 0)
            usleep(1000);
    }
}

TEST(frames_in_pieces)
{
    stoc_cache *c = served_by(dribble, NULL);
    int64_t index = 11;
    EQUAL(fetch(c, &index, 1, NULL), 1);
    CHECK(row_is(0, 11));
    end_peer(c);
}

/* Sends single bytes for ever: the pauses are short, and the frame never ends. */
static void dribble_for_ever(struct request *r)
{
    unsigned char frame[16 + 8 + BYTES] = {0}, body[8 + BYTES] = {0};
    frame_of(frame, sizeof body, SAMPLE, 0, r->number, body);
    for (size_t k = 0; k < sizeof frame; k++) {
        if (send(r->fd, frame + k, 1, MSG_NOSIGNAL) != 1)
            return;
        usleep(10000);
    }
}

static int asked, interrupt_after;
static int interrupted(void *context) { return ++*(int *)context >= interrupt_after; }

TEST(dribbling_is_no_answer)
{
    stoc_cache *c = served_by(dribble_for_ever, NULL);
    int64_t index = 11;
    struct stoc_fetch_options o = WITHIN(300);
    double began = seconds();
    EQUAL(fetch(c, &index, 1, &o), STOC_ETIMEOUT);
    CHECK(seconds() - began >= 0.3 && seconds() - began < 60);
    o = WITHIN(0, .interrupted = interrupted, .context = &asked);
    asked = 0, interrupt_after = 2;
    began = seconds();
    EQUAL(fetch(c, &index, 1, &o), STOC_EINTERRUPTED); /* interrupted is called each second */
    CHECK(seconds() - began >= 1.9 && seconds() - began < 60);
    end_peer(c);
}

static unsigned hang_ups;

static void hang_up_first(struct request *r)
{
    if (r->connection > hang_ups) {
        serve(r);
        return;
    }
    if (r->n > 1)
        send_sample(r, 1, BYTES); /* samples that came stay valid */
    if (r->connection % 2) { /* like a server that ends */
        uint32_t position = 0;
        uint16_t code = STOC_REMOTE_CLOSING;
        say_failed(r, &position, &code, 1, "the server is ending");
    }
    r->fd = -1;
}

TEST(servers_that_end)
{
    for (hang_ups = 1; hang_ups <= 6; hang_ups++) {
        stoc_cache *c = served_by(hang_up_first, NULL);
        int64_t indices[] = {21, 22};
        struct stoc_fetch_options o = WITHIN(60000);
        if (hang_ups < 5) { /* the first connection has brought a sample */
            EQUAL(fetch(c, indices, 2, &o), 2);
            CHECK(row_is(0, 21) && row_is(1, 22));
            CHECK(error.code == 0 && !error.message[0]); /* all samples came in the end */
        } else {
            EQUAL(fetch(c, indices, 2, &o), STOC_ENOSERVER);
            CHECK(hit[0] == 0 && hit[1] == 1 && row_is(1, 22));
            EQUAL(fetch(c, indices, 1, &o), 1); /* the server is back */
        }
        end_peer(c);
    }
}

enum { ENDING = 6 };

/* Answers when each of several connections has sent a request, and closes them. */
static void end_together(struct request *r)
{
    if (r->connection <= ENDING)
        while (atomic_load(&peer.requests) < ENDING)
            usleep(1000);
    serve(r);
    if (r->connection <= ENDING)
        r->fd = -1;
}

static void *fetch_one(void *context)
{
    static _Atomic int64_t next;
    int64_t index = atomic_fetch_add(&next, 1) % ENDING;
    unsigned char row[BYTES];
    struct stoc_fetch_options o = WITHIN(10000);
    EQUAL(stoc_fetch(context, &index, 1, row, BYTES, NULL, &o, NULL), 1);
    return NULL;
}

/* All connections to a server that has ended count as one break of a call. */
TEST(connections_of_a_server_that_ended)
{
    for (int prefetch = 0; prefetch < 2; prefetch++) {
        stoc_cache *c = served_by(end_together, NULL);
        pthread_t threads[ENDING];
        int64_t indices[] = {40, 41};
        start_threads(threads, ENDING, fetch_one, c);
        join_threads(threads, ENDING);
        EQUAL(atomic_load(&peer.connections), ENDING);
        while (atomic_load(&peer.ended) < ENDING)
            usleep(1000);
        EQUAL(prefetch ? stoc_prefetch(c, indices, 2, NULL, &error) : fetch(c, indices, 2, NULL), 2);
        EQUAL(atomic_load(&peer.connections), ENDING + 1);
        end_peer(c);
    }
}

/* The peer answers that it stored a sample, but the index has an impossible word. */
static void store_nonsense(struct request *r)
{
    *index_in(control_of(peer.cache), (uint64_t)r->indices[0]) = STOC_WORD_READY;
    say_failed(r, NULL, NULL, 0, "");
}

TEST(an_index_that_cannot_be)
{
    for (int variable = 0; variable < 2; variable++) {
        stoc_cache *c = variable ? served_variable() : served();
        int64_t index = 1;
        void *data;
        uint64_t length;
        struct stoc_fetch_options o = WITHIN(10000);
        begin_peer(c, store_nonsense, NULL);
        EQUAL(variable ? stoc_fetch_each(c, &index, 1, &data, &length, &o, &error) : fetch(c, &index, 1, &o),
              STOC_ECORRUPT);
        CHECK(error.code == STOC_ECORRUPT && strstr(error.message, "corrupt"));
        end_peer(c);
    }
}

static void *begin_late(void *c)
{
    usleep(500000);
    begin_peer(c, NULL, NULL);
    return NULL;
}

TEST(waits_for_a_server)
{
    stoc_cache *c = served();
    int64_t indices[] = {1, 2};
    struct stoc_fetch_options o = WITHIN(60000);
    pthread_t late;
    REQUIRE(pthread_create(&late, NULL, begin_late, c) == 0);
    EQUAL(fetch(c, indices, 2, &o), 2);
    pthread_join(late, NULL);
    end_peer(c);
}

static void never(struct request *r)
{
    struct pollfd one = {.fd = r->fd, .events = POLLIN};
    CHECK(poll(&one, 1, 20000) == 1); /* the client gives up: the peer reads only the end of the connection */
}

static void on_alarm(int signal_number) { (void)signal_number; }

TEST(timeouts_and_signals)
{
    stoc_cache *c = served_by(never, NULL);
    int64_t index = 1;
    struct stoc_fetch_options o = WITHIN(200);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART}, before;
    struct itimerval every = {.it_interval = {.tv_usec = 20000}, .it_value = {.tv_usec = 20000}}, off = {0};
    double began = seconds();
    EQUAL(fetch(c, &index, 1, &o), STOC_ETIMEOUT);
    CHECK(seconds() - began >= 0.2 && seconds() - began < 60);
    EQUAL(stoc_prefetch(c, &index, 1, &o, &error), STOC_ETIMEOUT);

    sigaction(SIGALRM, &action, &before);
    setitimer(ITIMER_REAL, &every, NULL);
    began = seconds();
    EQUAL(fetch(c, &index, 1, &o), STOC_ETIMEOUT); /* signals alone end no call */
    CHECK(seconds() - began >= 0.2);
    setitimer(ITIMER_REAL, &off, NULL);

    o = WITHIN(0, .interrupted = interrupted, .context = &asked);
    asked = 0, interrupt_after = 2;
    began = seconds();
    EQUAL(fetch(c, &index, 1, &o), STOC_EINTERRUPTED); /* interrupted is called each second, without a signal */
    CHECK(seconds() - began >= 1.9 && seconds() - began < 60);
    EQUAL(asked, 2);
    struct itimerval once = {.it_value = {.tv_usec = 300000}};
    bool at_once = false; /* interrupted is called after a signal, and not only each second */
    for (int tries = 0; tries < 10 && !at_once; tries++) {
        asked = 0, interrupt_after = 1;
        began = seconds();
        setitimer(ITIMER_REAL, &once, NULL);
        EQUAL(fetch(c, &index, 1, &o), STOC_EINTERRUPTED);
        CHECK(seconds() - began >= 0.3);
        at_once = seconds() - began < 0.95;
    }
    CHECK(at_once);
    sigaction(SIGALRM, &before, NULL);
    end_peer(c);
}

static _Atomic int deaf_to;

/* Greets, and then reads nothing. */
static void be_deaf(int fd)
{
    welcome(fd, 1, 65536);
    attached(fd, 1, false);
    while (atomic_load(&deaf_to))
        usleep(1000);
    char rest[4096];
    while (recv(fd, rest, sizeof rest, 0) > 0) /* data in the socket is no request of this test */
        ;
}

TEST(requests_that_no_thread_takes)
{
    stoc_cache *c = served_by(NULL, be_deaf);
    size_t n = 65536; /* half a MiB: more than a socket buffer takes */
    int64_t *indices = calloc(n, sizeof *indices);
    struct stoc_fetch_options o = WITHIN(300);
    atomic_store(&deaf_to, 1);
    double began = seconds();
    EQUAL(stoc_prefetch(c, indices, n, &o, &error), STOC_ETIMEOUT);
    CHECK(seconds() - began >= 0.3 && seconds() - began < 60);
    o = WITHIN(0, .interrupted = interrupted, .context = &asked);
    asked = 0, interrupt_after = 2;
    began = seconds();
    EQUAL(stoc_prefetch(c, indices, n, &o, &error), STOC_EINTERRUPTED);
    CHECK(seconds() - began >= 1.9 && seconds() - began < 60);
    atomic_store(&deaf_to, 0);
    free(indices);
    end_peer(c);
}

TEST(small_requests)
{
    stoc_cache *c = served_by(NULL, NULL);
    peer.max_indices = 7;
    put(c, 3, BYTES, 1, 0);
    EQUAL(fetch(c, forty, 40, NULL), 40);
    for (size_t k = 0; k < 40; k++)
        CHECK(row_is(k, (int64_t)k));
    EQUAL(atomic_load(&peer.requests), 6); /* 39 samples, 7 at a time */
    EQUAL(atomic_load(&peer.largest), 7);
    EQUAL(atomic_load(&peer.connections), 1);
    int64_t others[20];
    for (int k = 0; k < 20; k++)
        others[k] = 40 + k;
    EQUAL(stoc_prefetch(c, others, 20, NULL, &error), 20);
    EQUAL(atomic_load(&peer.requests), 9);
    end_peer(c);
}

static void store_nothing(struct request *r) { say_failed(r, NULL, NULL, 0, ""); }

TEST(leaves_at_once)
{
    stoc_cache *c = served_by(store_nothing, NULL);
    int64_t index = 1;
    struct stoc_fetch_options o = WITHIN(60000);
    EQUAL(fetch(c, &index, 1, &o), 0);
    EQUAL(atomic_load(&peer.requests), 3);
    REQUIRE(o.failed == 1);
    CHECK(o.failures[0].code == STOC_REMOTE_INTERNAL && strstr(o.failures[0].message, "clears"));
    stoc_fetch_end(&o, NULL, 0);
    end_peer(c);
}

/* Says that all samples were stored, of which some are gone by now. With SEND it sends all. */
static void lose_some(struct request *r)
{
    for (size_t k = 0; k < r->n; k++) {
        if (r->flags == 2)
            send_sample(r, (uint32_t)k, BYTES);
        else if (r->indices[k] % 3 == 0)
            put(peer.cache, r->indices[k], BYTES, 1, STOC_WAIT);
    }
    say_failed(r, NULL, NULL, 0, "");
}

/* A sample that is gone when the client copies it comes as bytes in the second round. */
TEST(gone_before_the_copy)
{
    stoc_cache *c = served();
    begin_peer(c, lose_some, NULL);
    EQUAL(fetch(c, forty, 40, NULL), 40);
    EQUAL(atomic_load(&peer.requests), 2);
    EQUAL(atomic_load(&peer.sending), 1);
    for (size_t k = 0; k < 40; k++)
        CHECK(row_is(k, (int64_t)k));
    end_peer(c);
    /* Requests of 7: each of those that are gone is asked for again before other samples. */
    c = served();
    begin_peer(c, lose_some, NULL);
    peer.max_indices = 7;
    EQUAL(fetch(c, forty, 40, NULL), 40);
    EQUAL(atomic_load(&peer.requests), 12);
    EQUAL(atomic_load(&peer.sending), 6);
    end_peer(c);
}

/* Sends samples that it need not store, and stores the others. */
static void serve_some(struct request *r)
{
    for (size_t k = 0; k < r->n; k++) {
        if (r->flags == 4)
            send_sample(r, (uint32_t)k, BYTES);
        else
            put(peer.cache, r->indices[k], BYTES, 1, STOC_WAIT);
    }
    say_failed(r, NULL, NULL, 0, "");
}

/* A handle that keeps some samples asks for the others as UNSTORED, and prefetches none of them. */
TEST(samples_that_are_not_kept)
{
    stoc_cache *c = served_by(serve_some, NULL);
    const uint64_t ranks[] = {1, 1};
    struct stoc_nodes nodes = {.struct_bytes = sizeof nodes, .count = 2, .ranks = ranks};
    stoc_owners *owners = NULL;
    uint8_t kept[STOC_KEPT_BYTES];
    struct stoc_info info = info_of(c);
    uint64_t samples = info.samples;
    EQUAL(stoc_owners_open(&nodes, samples, &owners, NULL), 0);
    EQUAL(stoc_owners_keep(owners, 0, samples / 2, kept), 0);
    stoc_owners_close(owners);
    EQUAL(stoc_keep(c, kept), 0);
    EQUAL(fetch(c, forty, 40, NULL), 40);
    EQUAL(atomic_load(&peer.requests), 2);
    EQUAL(atomic_load(&peer.unstored), 1);
    unsigned stored = 0;
    for (size_t k = 0; k < 40; k++) {
        CHECK(row_is(k, (int64_t)k));
        stored += stoc_state(c, (int64_t)k) == STOC_STATE_READY;
    }
    CHECK(stored > 5 && stored < 35);
    end_peer(c);
}

/* Sample 1 is for the caller to load. Another program loads samples 2 and 3, and has them after some requests. */
static void some_are_loaded(struct request *r)
{
    uint32_t positions[SAMPLES], n = 0;
    uint16_t codes[SAMPLES];
    CHECK((r->flags & 8) != 0);
    for (size_t k = 0; k < r->n; k++) {
        int64_t i = r->indices[k];
        bool elsewhere = (i == 2 || i == 3) && atomic_load(&peer.requests) < 5;
        if (i == 1 || elsewhere) {
            positions[n] = (uint32_t)k;
            codes[n++] = i == 1 ? STOC_REMOTE_LOAD : STOC_REMOTE_LOADING;
        } else {
            put(peer.cache, i, BYTES, 1, STOC_WAIT);
        }
    }
    say_failed(r, positions, codes, n, "not there");
}

/* A caller that has samples to load does not wait for others, who may wait for it. Without any, it waits. */
TEST(samples_that_programs_load)
{
    int64_t indices[] = {0, 1, 2, 3, 4};
    stoc_cache *c = served_by(some_are_loaded, NULL);
    struct stoc_fetch_options o = WITHIN(60000);
    o.flags = STOC_FETCH_LOADS;
    EQUAL(fetch(c, indices, 5, &o), 2);
    EQUAL(atomic_load(&peer.requests), 1);
    EQUAL(o.failed, 3);
    EQUAL(o.failures[0].code, STOC_REMOTE_LOAD);
    EQUAL(o.failures[1].code, STOC_REMOTE_LOADING);
    EQUAL(o.failures[2].index, 3);
    stoc_fetch_end(&o, NULL, 0);
    EQUAL(fetch(c, indices + 2, 2, &o), 2);
    CHECK(atomic_load(&peer.requests) >= 5);
    CHECK(row_is(0, 2) && row_is(1, 3));
    /* until the time is up */
    atomic_store(&peer.requests, 0);
    indices[0] = 2;
    EQUAL(stoc_clear(peer.cache, 5000), STOC_STORED);
    peer.answer = some_are_loaded;
    o.timeout_ms = 1;
    int64_t had = fetch(c, indices, 1, &o);
    CHECK(had == STOC_ETIMEOUT || had == 1 || (had == 0 && o.failures[0].code == STOC_REMOTE_LOADING));
    stoc_fetch_end(&o, NULL, 0);
    EQUAL(stoc_offer(NULL, 1, NULL, 0, 100, &error), STOC_ECLOSED);
    end_peer(c);
}

static void send_a_file(struct request *r)
{
    CHECK(r->flags == 16 && r->n == 1);
    send_sample(r, 0, BYTES + 1000);
    say_failed(r, NULL, NULL, 0, "");
}

/* A file may be longer than a sample. It comes each time, also if the cache has the sample, and counts nothing. */
TEST(files_of_samples)
{
    int64_t index = 1;
    void *data = NULL;
    uint64_t length = 0;
    stoc_cache *c = served_by(send_a_file, NULL);
    struct stoc_fetch_options o = WITHIN(60000, .flags = STOC_FETCH_FILES);
    put(c, 1, BYTES, 1, 0);
    EQUAL(stoc_fetch_each(c, &index, 1, &data, &length, &o, &error), 1);
    EQUAL(length, BYTES + 1000);
    stoc_fetch_end(&o, &data, 1);
    EQUAL(fetch(c, &index, 1, &o), STOC_ESCHEMA);
    o.flags |= STOC_FETCH_LOADS;
    EQUAL(stoc_fetch_each(c, &index, 1, &data, &length, &o, &error), STOC_EINVAL);
    EQUAL(stoc_offer_damaged(c, 1, IS_CUT, 60000, &error), 0);
    EQUAL(stoc_offer_damaged(c, 1, NULL, 60000, &error), STOC_EINVAL);
    EQUAL(stoc_offer_damaged(c, SAMPLES, IS_CUT, 60000, &error), STOC_EINDEX);
    EQUAL(stoc_offer_damaged(NULL, 1, IS_CUT, 60000, &error), STOC_ECLOSED);
    end_peer(c);
}

/* In a cache that evicts, a request for more than a quarter of the slots has all samples sent at
 * once. */
TEST(more_than_a_cache_keeps)
{
    unlink(path_in_scratch("served"));
    stoc_cache *c = make("served", OPTIONS(.samples = SAMPLES, .slots = 16, .sample_bytes = BYTES,
                                           .policy = STOC_POLICY_RANDOM));
    begin_peer(c, lose_some, NULL);
    EQUAL(fetch(c, forty, 40, NULL), 40);
    EQUAL(atomic_load(&peer.requests), 1);
    EQUAL(atomic_load(&peer.sending), 1);
    for (size_t k = 0; k < 40; k++)
        CHECK(row_is(k, (int64_t)k));
    EQUAL(fetch(c, forty, 4, NULL), 4);
    EQUAL(atomic_load(&peer.requests), 3); /* few: they may be there still */
    EQUAL(atomic_load(&peer.sending), 2);
    end_peer(c);
}

TEST(children_have_their_own)
{
    stoc_cache *c = served_by(NULL, NULL);
    int64_t indices[] = {1, 2, 3};
    EQUAL(fetch(c, indices, 1, NULL), 1);
    int before = open_sockets();
    for (int k = 0; k < 3; k++) {
        IN_GOOD_CHILD({
            EQUAL(open_sockets(), before - 1); /* without its parent's connection */
            EQUAL(fetch(c, indices, 2 + k % 2, NULL), 2 + k % 2);
            CHECK(row_is(0, 1) && row_is(1, 2));
            stoc_close(c);
        });
        while (atomic_load(&peer.ended) + 1 < atomic_load(&peer.connections))
            usleep(1000); /* the peer's end of the connection is a socket too */
    }
    EQUAL(fetch(c, indices, 3, NULL), 3); /* the parent continues with its own connection */
    EQUAL(atomic_load(&peer.connections), 3); /* the parent's, and those of the two children that asked for samples */
    end_peer(c);
}

static void *wait_for_ever(void *context)
{
    int64_t index = 50;
    unsigned char row[BYTES];
    struct stoc_fetch_options o = WITHIN(3000);
    EQUAL(stoc_fetch(context, &index, 1, row, BYTES, NULL, &o, NULL), STOC_ETIMEOUT);
    return NULL;
}

static void all_but_fifty(struct request *r)
{
    if (r->indices[0] == 50)
        never(r);
    else
        serve(r);
}

TEST(child_of_a_busy_parent)
{
    stoc_cache *c = served_by(all_but_fifty, NULL);
    int64_t index = 2;
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, wait_for_ever, c) == 0);
    while (atomic_load(&peer.requests) == 0)
        usleep(1000);
    IN_GOOD_CHILD({
        struct stoc_fetch_options o = WITHIN(2000);
        /* not on the connection that its parent's thread waits on */
        EQUAL(stoc_fetch(c, &index, 1, rows, BYTES, NULL, &o, &error), 1);
        stoc_close(c);
    });
    pthread_join(thread, NULL);
    end_peer(c);
}

static void *fetch_shuffled(void *context)
{
    unsigned char (*own)[BYTES] = malloc(SAMPLES * BYTES);
    int64_t indices[SAMPLES];
    struct stoc_fetch_options o = WITHIN(20000);
    for (int turn = 0; turn < 20; turn++) {
        size_t n = 0;
        for (int k = turn % 3; k < SAMPLES; k += 3)
            indices[n++] = k;
        EQUAL(stoc_fetch(context, indices, n, own, BYTES, NULL, &o, NULL), n);
        for (size_t k = 0; k < n; k++)
            CHECK(filled(own[k], BYTES, (uint64_t)indices[k], 1));
    }
    free(own);
    return NULL;
}

/* Sends nothing until the client has closed. */
static void keep_silent(int fd)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    CHECK(poll(&one, 1, 20000) == 1);
}

static void *dial_in_vain(void *unused)
{
    stoc_cache *other;
    (void)unused;
    EQUAL(stoc_dial("served", scratch, 0, &WITHIN(1500), &other, NULL), STOC_ETIMEOUT);
    return NULL;
}

TEST(child_of_a_dialling_parent)
{
    stoc_cache *c = served_by(NULL, keep_silent);
    pthread_t thread;
    int before = open_sockets();
    REQUIRE(pthread_create(&thread, NULL, dial_in_vain, NULL) == 0);
    while (atomic_load(&peer.connections) == 0)
        usleep(1000);
    IN_GOOD_CHILD({ EQUAL(open_sockets(), before + 1); }); /* the peer's end, not that of the parent's thread */
    pthread_join(thread, NULL);
    end_peer(c);
}

TEST(interrupted_dial)
{
    stoc_cache *c = served_by(NULL, keep_silent), *none;
    asked = 0, interrupt_after = 2;
    EQUAL(stoc_dial("served", scratch, 0, &WITHIN(0, .interrupted = interrupted, .context = &asked), &none, &error),
          STOC_EINTERRUPTED); /* interrupted is called each second */
    CHECK(none == NULL && asked == 2);
    end_peer(c);
}

TEST(no_descriptor_left)
{
    stoc_cache *c = served_by(NULL, NULL);
    for (int dial = 0; dial < 2; dial++) {
        IN_GOOD_CHILD({
            stoc_cache *other;
            int64_t index = 1;
            struct stoc_fetch_options o = WITHIN(2000);
            struct rlimit before;
            EQUAL(fetch(c, &index, 0, NULL), 0);
            stoc_recover(c); /* registered: it has a descriptor of its own */
            int next = dup(0);
            REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
            close(next);
            /* one more, for the connection */
            struct rlimit few = {.rlim_cur = (rlim_t)next + 1, .rlim_max = before.rlim_max};
            REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
            EQUAL(dial ? stoc_dial("served", NULL, 0, &WITHIN(2000), &other, &error) : fetch(c, &index, 1, &o), STOC_ESYSTEM);
            CHECK(error.code == STOC_ESYSTEM && error.os_error == EMFILE);
            REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
            EQUAL(fetch(c, &index, 1, NULL), 1);
            stoc_close(c);
        });
    }
    end_peer(c);
}

TEST(many_threads)
{
    stoc_cache *c = served_by(NULL, NULL);
    pthread_t threads[8];
    start_threads(threads, 8, fetch_shuffled, c);
    join_threads(threads, 8);
    CHECK(atomic_load(&peer.connections) >= 1 && atomic_load(&peer.connections) <= 8);
    end_peer(c);
}

TEST(dialled)
{
    stoc_cache *c = served_by(NULL, NULL), *other;
    int64_t index = 5;
    char folder[100];
    /* the environment names no server any more, but the handle remembers it */
    snprintf(folder, sizeof folder, "%s/elsewhere", scratch);
    setenv("STOCACHED_SOCKETS_DIR", folder, 1);
    EQUAL(stoc_dial("served", scratch, 0, &WITHIN(60000), &other, &error), 0);
    setenv("STOCACHED_SOCKETS_DIR", scratch, 1);
    REQUIRE(other != NULL);
    setenv("STOCACHED_SOCKETS_DIR", folder, 1);
    EQUAL(fetch(other, &index, 1, NULL), 1);
    CHECK(row_is(0, 5));
    EQUAL(atomic_load(&peer.connections), 1);
    IN_CHILD({
        index = 6;
        EQUAL(fetch(other, &index, 1, NULL), 1);
        stoc_close(other);
    });
    EQUAL(atomic_load(&peer.connections), 2);
    setenv("STOCACHED_SOCKETS_DIR", scratch, 1);
    stoc_close(other);
    EQUAL(stoc_dial("served", NULL, STOC_OPEN_READ_ONLY, &WITHIN(60000), &other, &error), 0);
    struct stoc_info info = info_of(other);
    CHECK(info.read_only == 1);
    index = 7;
    EQUAL(fetch(other, &index, 1, NULL), 1); /* a read-only client may ask too */
    stoc_close(other);
    end_peer(c);
}

/* A process of user 65534 that listens on data.sock in a directory, and accepts one connection
 * after the other. It counts received bytes in *got. */
static pid_t impostor(const char *folder, _Atomic long *got)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/data.sock", folder);
    unlink(address.sun_path);
    int ready[2];
    REQUIRE(pipe(ready) == 0);
    pid_t child = fork();
    if (child == 0) {
        int listener = socket(AF_UNIX, SOCK_STREAM, 0);
        char bytes[1000];
        if (setgid(65534) != 0 || setuid(65534) != 0 ||
            bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || chmod(address.sun_path, 0777) != 0 ||
            listen(listener, 64) != 0)
            _exit(99);
        if (write(ready[1], "!", 1) != 1)
            _exit(99);
        for (;;) {
            int fd = accept(listener, NULL, NULL);
            for (ssize_t n; (n = recv(fd, bytes, sizeof bytes, 0)) > 0;)
                atomic_fetch_add(got, n);
            close(fd);
        }
    }
    close(ready[1]);
    char one;
    REQUIRE(read(ready[0], &one, 1) == 1);
    close(ready[0]);
    return child;
}

/* The client sends nothing to a server of another user, and uses no directory where another user
 * may put a socket. */
TEST(servers_of_others)
{
    if (geteuid() != 0)
        SKIP("only root can become another user");
    const struct {
        uid_t owner;
        mode_t mode;
        bool named, link;
        const char *says;
    } cases[] = {{65534, 0755, true, false, "belongs to user id 65534"},
                 {65534, 0755, false, false, "belongs to user id 65534"},
                 {0, 0755, true, false, "user id 65534 listens on"},
                 {0, 0755, false, false, "user id 65534 listens on"},
                 {0, 0777, true, false, "has mode 0777"},
                 {0, 0755, false, true, "is no folder"}};
    _Atomic long *got = mmap(NULL, sizeof *got, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(got != MAP_FAILED);
    stoc_cache *c = served(), *other;
    char base[70], folder[80], place[90];
    snprintf(base, sizeof base, "%s/run", scratch);
    snprintf(folder, sizeof folder, "%s/stocached", base);
    EQUAL(chmod(scratch, 0711), 0);
    EQUAL(mkdir(base, 0755), 0);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        snprintf(place, sizeof place, "%s%s", folder, cases[k].link ? "-elsewhere" : "");
        EQUAL(mkdir(place, 0777), 0);
        EQUAL(chmod(place, 0777), 0);
        CHECK(!cases[k].link || symlink(place, folder) == 0);
        atomic_store(got, 0);
        pid_t child = impostor(place, got);
        EQUAL(chown(place, cases[k].owner, 0), 0);
        EQUAL(chmod(place, cases[k].mode), 0);
        setenv("XDG_RUNTIME_DIR", base, 1);
        setenv("STOCACHED_SOCKETS_DIR", cases[k].named ? folder : "", 1);
        int64_t index = 5;
        EQUAL(stoc_dial("served", NULL, 0, &WITHIN(60000), &other, &error), STOC_EPERM);
        CHECK(strstr(error.message, cases[k].says) && strstr(error.message, folder));
        if (cases[k].named)
            EQUAL(stoc_dial("served", folder, 0, &WITHIN(60000), &other, &error), STOC_EPERM);
        EQUAL(fetch(c, &index, 1, NULL), STOC_EPERM);
        CHECK(strstr(error.message, cases[k].says));
        EQUAL(stoc_prefetch(c, &index, 1, NULL, &error), STOC_EPERM);
        /* The process accepts connections in order: when it has this byte, it has seen all earlier
         * ones. */
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        snprintf(address.sun_path, sizeof address.sun_path, "%s/data.sock", place);
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        REQUIRE(connect(fd, (struct sockaddr *)&address, sizeof address) == 0 && send(fd, "!", 1, 0) == 1);
        for (int wait = 0; wait < 10000 && atomic_load(got) == 0; wait++)
            usleep(1000);
        EQUAL(atomic_load(got), 1);
        close(fd);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        unlink(address.sun_path);
        rmdir(place);
        unlink(folder);
    }
    unsetenv("XDG_RUNTIME_DIR");
    setenv("STOCACHED_SOCKETS_DIR", scratch, 1);
    EQUAL(chmod(scratch, 0700), 0);
    munmap((void *)got, sizeof *got);
    stoc_close(c);
}

TEST(without_a_name)
{
    stoc_cache *c = make(NULL, OPTIONS(.samples = SAMPLES, .sample_bytes = BYTES)), *other;
    int64_t index = 5;
    begin_peer(c, NULL, NULL);
    stoc_close(c);
    EQUAL(stoc_dial("served", NULL, 0, &WITHIN(60000), &other, &error), 0);
    REQUIRE(other != NULL);
    EQUAL(fetch(other, &index, 1, NULL), 1);
    IN_CHILD({ /* the child connects again, by the name of the server's cache */
        index = 6;
        EQUAL(fetch(other, &index, 1, NULL), 1);
        CHECK(row_is(0, 6));
        stoc_close(other);
    });
    EQUAL(stats_of(other).clients_live, 2);
    end_peer(other);
}

/* ------------------------------------------------------------ plans */

static const struct stoc_order in_order = {.struct_bytes = sizeof in_order, .samples = SAMPLES, .seed = 77,
                                           .kind = STOC_ORDER_SHUFFLED};
static const struct stoc_shard alone = {.struct_bytes = sizeof alone, .from = 5, .rank = 1, .ranks = 3};

static int announce(stoc_cache *c, uint64_t epoch)
{
    return stoc_announce(c, &in_order, epoch, &alone, 16, 5000, &error);
}

static uint64_t plan_word(size_t at, size_t width)
{
    uint64_t n = 0;
    pthread_mutex_lock(&plan_lock);
    memcpy(&n, peer.plan + at, width);
    pthread_mutex_unlock(&plan_lock);
    return n;
}

static unsigned plans(void) { return atomic_load(&peer.plans); }

static void used_nowhere(struct request *r) { answer_plan(r, 0); }

TEST(announced)
{
    stoc_cache *c = served_by(NULL, NULL);
    int64_t indices[] = {1, 2, 3};
    EQUAL(fetch(c, indices, 3, NULL), 3); /* three misses */
    EQUAL(announce(c, 4), 1);
    const struct {
        size_t at, width;
        uint64_t want;
    } fields[] = {{0, 4, 7},  {4, 4, 1},  {8, 4, STOC_ORDER_SHUFFLED}, {12, 4, 0}, {16, 8, 77},
                  {24, 8, 0}, {32, 8, 0}, {40, 8, 4},                  {48, 8, 5}, {56, 8, 1},
                  {64, 8, 3}, {72, 8, SAMPLES}, {80, 8, 3}, {88, 4, 16}, {92, 4, 0}};
    for (size_t k = 0; k < sizeof fields / sizeof *fields; k++)
        if (plan_word(fields[k].at, fields[k].width) != fields[k].want)
            COMPLAIN("the plan has %lu at %zu", plan_word(fields[k].at, fields[k].width), fields[k].at);
    EQUAL(fetch(c, indices, 3, NULL), 3);
    EQUAL(announce(c, 5), 1); /* another plan, on the same connection */
    EQUAL(plan_word(40, 8), 5);
    EQUAL(plan_word(80, 8), 6);
    EQUAL(stoc_announce(c, NULL, 0, NULL, 0, 5000, &error), 1); /* it reads no plan any more */
    EQUAL(plan_word(92, 4), 1);
    EQUAL(plan_word(4, 4), 1);
    EQUAL(plans(), 3);
    atomic_store(&peer.heard, used_nowhere);
    EQUAL(announce(c, 6), 0);
    EQUAL(atomic_load(&peer.connections), 1);
    end_peer(c);
}

static void say_invalid(struct request *r)
{
    unsigned char body[4 + 5] = {STOC_REMOTE_INVALID, 0, 0, 0, 'w', 'r', 'o', 'n', 'g'};
    reply(r->fd, ERROR, r->number, body, sizeof body);
}

static void say_nonsense(struct request *r) { reply(r->fd, ANNOUNCED, r->number + 1, (uint32_t[2]){1}, 8); }

TEST(plans_that_cannot_be)
{
    stoc_cache *c = served_by(NULL, NULL), *reader;
    struct stoc_order order = in_order;
    struct stoc_shard shard = alone;
    EQUAL(stoc_announce(NULL, &order, 0, &shard, 1, 0, &error), STOC_ECLOSED);
    EQUAL(stoc_announce(c, &order, 0, NULL, 1, 0, &error), STOC_EINVAL);
    shard.struct_bytes--;
    EQUAL(stoc_announce(c, &order, 0, &shard, 1, 0, &error), STOC_EINVAL);
    shard.struct_bytes++, order.struct_bytes++;
    EQUAL(stoc_announce(c, &order, 0, &shard, 1, 0, &error), STOC_EINVAL);
    CHECK(error.code == STOC_EINVAL && strstr(error.message, "struct_bytes"));
    EQUAL(stoc_announce(c, &order, 0, &shard, 1, 0, NULL), STOC_EINVAL); /* the caller asks for no details */
    EQUAL(stoc_open(path_in_scratch("served"), STOC_OPEN_READ_ONLY, NULL, &reader, &error), 0);
    EQUAL(announce(reader, 0), STOC_EREADONLY);
    stoc_close(reader);
    EQUAL(atomic_load(&peer.connections), 0);

    /* The server refuses it. The connection stays, and the next one does not announce it again. */
    int64_t index = 1;
    atomic_store(&peer.heard, say_invalid);
    EQUAL(announce(c, 0), STOC_EINVAL);
    CHECK(error.code == STOC_EINVAL && strstr(error.message, "INVALID: wrong"));
    EQUAL(fetch(c, &index, 1, NULL), 1);
    EQUAL(atomic_load(&peer.connections), 1);
    EQUAL(plans(), 1);
    atomic_store(&peer.heard, say_nonsense);
    EQUAL(announce(c, 0), STOC_EREMOTE);
    end_peer(c);
    c = make(NULL, OPTIONS(.samples = SAMPLES, .sample_bytes = BYTES));
    EQUAL(announce(c, 0), STOC_EINVAL); /* it has no server */
    stoc_close(c);
}

static void hang_up_at_three(struct request *r)
{
    if (r->indices[0] == 3)
        r->fd = -1;
    else
        serve(r);
}

/* The next connection announces the same plan, before it asks for samples. So the server knows from the
 * counters of the segment how far the job is. */
TEST(the_next_server_hears_of_the_plan)
{
    stoc_cache *c = served();
    int64_t indices[] = {1, 2, 3};
    begin_peer(c, hang_up_at_three, NULL);
    EQUAL(announce(c, 9), 1);
    EQUAL(fetch(c, indices, 2, NULL), 2);
    struct stoc_fetch_options o = WITHIN(10000);
    EQUAL(fetch(c, indices + 2, 1, &o), STOC_ENOSERVER);
    EQUAL(plan_word(40, 8), 9);
    EQUAL(plan_word(80, 8), 0); /* reads before the plan: unchanged */
    EQUAL(plans(), atomic_load(&peer.connections)); /* on each of the connections */
    stoc_announce(c, NULL, 0, NULL, 0, 5000, &error);
    unsigned before = plans();
    EQUAL(fetch(c, indices + 2, 1, &o), STOC_ENOSERVER);
    EQUAL(plans(), before); /* the job is over */
    end_peer(NULL);

    /* A plan that found no server, and one that a server did not answer, are announced later too. */
    EQUAL(stoc_announce(c, &in_order, 3, &alone, 16, 50, &error), STOC_ENOSERVER);
    begin_peer(c, NULL, NULL);
    EQUAL(fetch(c, indices + 2, 1, NULL), 1);
    EQUAL(plans(), 1);
    EQUAL(plan_word(40, 8), 3);
    atomic_store(&peer.heard, never);
    EQUAL(stoc_announce(c, &in_order, 4, &alone, 16, 50, &error), STOC_ETIMEOUT);
    atomic_store(&peer.heard, NULL);
    indices[0] = 11;
    EQUAL(fetch(c, indices, 1, NULL), 1);
    EQUAL(plans(), 3);
    EQUAL(plan_word(40, 8), 4);
    end_peer(c);
}

static int tell(stoc_cache *c, uint64_t reads) { return stoc_announce_reads(c, reads, 5000, &error); }

/* A handle whose samples other processes read says itself how far its job is. A connection that breaks, and a
 * server that begins, hear the last number. */
TEST(reads_that_are_told)
{
    stoc_cache *c = served();
    int64_t indices[] = {1, 2, 3};
    begin_peer(c, hang_up_at_three, NULL);
    EQUAL(stoc_announce_reads(NULL, 1, 0, &error), STOC_ECLOSED);
    EQUAL(tell(c, 1), 0); /* there is no plan */
    EQUAL(plans(), 0);
    EQUAL(announce(c, 4), 1);
    EQUAL(tell(c, 0), 1);
    EQUAL(tell(c, 70), 1);
    EQUAL(plans(), 3);
    EQUAL(plan_word(40, 8), 4);
    EQUAL(plan_word(80, 8), 70);
    EQUAL(plan_word(92, 4), 2);
    EQUAL(atomic_load(&peer.connections), 1);
    struct stoc_fetch_options o = WITHIN(10000);
    EQUAL(fetch(c, indices + 2, 1, &o), STOC_ENOSERVER);
    EQUAL(plans(), 3 + atomic_load(&peer.connections) - 1);
    EQUAL(plan_word(80, 8), 70);
    EQUAL(announce(c, 5), 1); /* the next plan goes by the counters again */
    EQUAL(plan_word(92, 4), 0);
    EQUAL(stoc_announce(c, NULL, 0, NULL, 0, 5000, &error), 1);
    unsigned before = plans();
    EQUAL(tell(c, 9), 0);
    EQUAL(fetch(c, indices + 2, 1, &o), STOC_ENOSERVER);
    EQUAL(plans(), before);
    end_peer(NULL);

    /* No server runs: the next one hears of it. */
    EQUAL(stoc_announce(c, &in_order, 6, &alone, 16, 50, &error), STOC_ENOSERVER);
    EQUAL(stoc_announce_reads(c, 11, 50, &error), STOC_ENOSERVER);
    begin_peer(c, NULL, NULL);
    EQUAL(fetch(c, indices, 1, NULL), 1);
    EQUAL(plans(), 1);
    EQUAL(plan_word(40, 8), 6);
    EQUAL(plan_word(80, 8), 11);
    end_peer(c);
}

/* A child has no plan until it announces one, with its own owner number and on its own connection. The
 * parent's connection and plan stay. */
TEST(plans_of_children)
{
    stoc_cache *c = served_by(NULL, NULL);
    int64_t indices[] = {21, 22, 23};
    EQUAL(announce(c, 1), 1);
    uint64_t owner = plan_word(4, 4);
    IN_GOOD_CHILD({
        EQUAL(fetch(c, indices, 1, NULL), 1);
        stoc_close(c);
    });
    EQUAL(atomic_load(&peer.connections), 2);
    EQUAL(plans(), 1);
    IN_GOOD_CHILD({
        EQUAL(announce(c, 2), 1);
        EQUAL(fetch(c, indices + 1, 1, NULL), 1);
        stoc_close(c);
    });
    EQUAL(plans(), 2);
    EQUAL(plan_word(40, 8), 2);
    CHECK(plan_word(4, 4) != owner && plan_word(4, 4) != 0);
    EQUAL(atomic_load(&peer.connections), 3);
    EQUAL(fetch(c, indices + 2, 1, NULL), 1);
    EQUAL(announce(c, 3), 1);
    EQUAL(plan_word(4, 4), owner);
    EQUAL(plans(), 3);
    EQUAL(atomic_load(&peer.connections), 3);
    end_peer(c);
}

/* Of several connections of a handle, one announces. When it ends, another one does. */
TEST(one_connection_announces)
{
    stoc_cache *c = served_by(all_but_fifty, NULL);
    int64_t index = 2;
    pthread_t thread;
    EQUAL(announce(c, 1), 1);
    REQUIRE(pthread_create(&thread, NULL, wait_for_ever, c) == 0);
    while (atomic_load(&peer.requests) == 0)
        usleep(1000);
    EQUAL(fetch(c, &index, 1, NULL), 1); /* on a second connection */
    EQUAL(atomic_load(&peer.connections), 2);
    EQUAL(plans(), 1);
    pthread_join(thread, NULL); /* its time is up, and the connection that announced has ended */
    index = 3;
    EQUAL(fetch(c, &index, 1, NULL), 1);
    EQUAL(plans(), 2);
    end_peer(c);
}

/* ------------------------------------------------------------ answers that are spoilt */

/* Ensure that no byte and no length that a server sends, whatever becomes of it, ends the process, keeps a call for ever,
 * or is taken for a sample; and that the next call works, with a server that is well. */

static const int64_t two[] = {1, 2};

static void greet_well(int fd)
{
    welcome(fd, VERSION, peer.max_indices);
    attached(fd, 1, false);
    if (spoils)
        shutdown(fd, SHUT_WR); /* a client that waits for more sees the end */
}

static void send_both(struct request *r)
{
    for (uint32_t k = 0; k < r->n; k++)
        send_sample(r, k, BYTES);
    say_failed(r, NULL, NULL, 0, "");
}

static void fail_both(struct request *r)
{
    const uint32_t positions[] = {0, 1};
    const uint16_t codes[] = {STOC_REMOTE_READ, STOC_REMOTE_BAD};
    say_failed(r, positions, codes, MIN(2u, (uint32_t)r->n), "no such file");
}

static void leave_both(struct request *r)
{
    const uint32_t positions[] = {0, 1};
    const uint16_t codes[] = {STOC_REMOTE_LOAD, STOC_REMOTE_LOADING};
    say_failed(r, positions, codes, MIN(2u, (uint32_t)r->n), "");
}

static void refuse(struct request *r) { reply(r->fd, ERROR, r->number, "\16\0\0\0not that", 12); }

static void (*spoilt_answer)(struct request *r);

static void answer_spoilt(struct request *r)
{
    (spoils && spoilt_answer ? spoilt_answer : r->flags == 16 ? send_both : serve)(r);
}

/* The calls return 0 or more if all went well. `unsure`: the place of a sample in the batch may be wrong. */

static int64_t fetch_with(stoc_cache *c, unsigned flags, bool unsure)
{
    struct stoc_fetch_options o = WITHIN(60000, .flags = flags);
    int64_t code = fetch(c, two, 2, &o);
    for (size_t k = 0; k < 2 && !unsure; k++)
        CHECK(hit[k] == 0 || (code < 0 && hit[k] == 0xee) || row_is(k, two[k]));
    for (uint64_t k = 0; k < o.failed; k++)
        CHECK(o.failures[k].position < 2 && strnlen(o.failures[k].message, 1004) < 1004);
    stoc_fetch_end(&o, NULL, 0);
    return code < 0 || code == 2 ? code : STOC_EREMOTE;
}

static int64_t fetch_spoilt(stoc_cache *c, bool unsure) { return fetch_with(c, 0, unsure); }
static int64_t loads_spoilt(stoc_cache *c, bool unsure) { return fetch_with(c, STOC_FETCH_LOADS, unsure); }

static int64_t each_with(stoc_cache *c, unsigned flags)
{
    struct stoc_fetch_options o = WITHIN(60000, .flags = flags);
    void *data[2] = {NULL, NULL};
    uint64_t lengths[2] = {0, 0};
    int64_t code = stoc_fetch_each(c, two, 2, data, lengths, &o, &error);
    for (size_t k = 0; k < 2 && code >= 0; k++)
        if (data[k])
            stoc_crc32c(0, data[k], lengths[k]); /* reads all of it */
    stoc_fetch_end(&o, data, 2);
    return code < 0 || code == 2 ? code : STOC_EREMOTE;
}

static int64_t each_spoilt(stoc_cache *c, bool unsure) { return (void)unsure, each_with(c, 0); }
static int64_t files_spoilt(stoc_cache *c, bool unsure) { return (void)unsure, each_with(c, STOC_FETCH_FILES); }

static int64_t damaged_spoilt(stoc_cache *c, bool unsure)
{
    (void)unsure;
    return stoc_offer_damaged(c, 1, IS_CUT, 60000, &error);
}

static int64_t prefetch_spoilt(stoc_cache *c, bool unsure)
{
    (void)unsure;
    return stoc_prefetch(c, two, 2, &WITHIN(60000), &error);
}

static int64_t announce_spoilt(stoc_cache *c, bool unsure)
{
    static uint64_t epoch;
    (void)unsure;
    return stoc_announce(c, &in_order, ++epoch, &alone, 16, 60000, &error);
}

static int64_t offer_spoilt(stoc_cache *c, bool unsure)
{
    unsigned char bytes[BYTES] = {0};
    struct iovec part = {.iov_base = bytes, .iov_len = sizeof bytes};
    (void)unsure;
    return stoc_offer(c, 1, &part, 1, 60000, &error);
}

static int64_t dial_spoilt(stoc_cache *c, bool unsure)
{
    stoc_cache *other = NULL;
    (void)c, (void)unsure;
    int code = stoc_dial("served", scratch, 0, &WITHIN(60000), &other, &error);
    CHECK((code == 0) == (other != NULL));
    stoc_close(other);
    return code;
}

static const struct {
    const char *name;
    int64_t (*call)(stoc_cache *c, bool unsure);
    void (*answer)(struct request *r); /* NULL: serve */
    bool greets, variable;             /* spoils what a new connection gets */
} sweeps[] = {
    {"dial", dial_spoilt, NULL, true, false},
    {"the connection of a fetch", fetch_spoilt, NULL, true, false},
    {"samples that were stored", fetch_spoilt, NULL, false, false},
    {"samples that were sent", fetch_spoilt, send_both, false, false},
    {"samples of any size that were sent", each_spoilt, send_both, false, true},
    {"samples that failed", fetch_spoilt, fail_both, false, false},
    {"samples that programs load", loads_spoilt, leave_both, false, false},
    {"error", fetch_spoilt, refuse, false, false},
    {"prefetch", prefetch_spoilt, NULL, false, false},
    {"error of a prefetch", prefetch_spoilt, refuse, false, false},
    {"announce", announce_spoilt, NULL, false, false},
    {"offer", offer_spoilt, NULL, false, false},
    {"offer of a damaged file", damaged_spoilt, NULL, false, false},
    {"files", files_spoilt, send_both, false, false},
};

/* The caches of these tests come from programs, so that stoc_offer asks the server. */
static void come_from_programs(void)
{
    unsigned char page[STOC_HEADER_BYTES];
    int fd = open(path_in_scratch("served"), O_RDWR | O_CLOEXEC);
    REQUIRE(pread(fd, page, sizeof page, 0) == sizeof page);
    page[STOC_HEADER_FLAGS] |= STOC_FLAG_PROGRAMS;
    sign(page);
    REQUIRE(pwrite(fd, page, sizeof page, 0) == sizeof page);
    close(fd);
}

/* Calls with the next connection spoilt so, and then with a good one. */
static void try_spoilt(size_t s, int how, size_t at, uint32_t value, bool unsure)
{
    stoc_cache *c = join("served", 0);
    int before = failures;
    spoil.how = how, spoil.at = at, spoil.value = value, spoil.sent = spoil.frames = 0;
    atomic_store(&spoil.on, true);
    int64_t code = sweeps[s].call(c, unsure);
    CHECK(code >= 0 || (code != STOC_ETIMEOUT && (!error.code || error.message[0])));
    CHECK(!atomic_exchange(&spoil.on, false));
    if (how != AS_IT_IS)
        CHECK(sweeps[s].call(c, false) >= 0);
    stoc_close(c);
    while (atomic_load(&peer.ended) != atomic_load(&peer.connections))
        usleep(100); /* the peer may still store a sample */
    EQUAL(stoc_clear(peer.cache, 60000), STOC_STORED);
    if (failures > before)
        COMPLAIN("%s: way %d, place %zu, value %u: %ld, \"%s\"", sweeps[s].name, how, at, value, code, error.message);
}

/* All values of a byte, or two of about ten. */
static void spoil_byte(size_t s, size_t at, unsigned char was, bool all, bool unsure)
{
    unsigned values[10] = {0, 0xff};
    for (unsigned k = 0; k < 8; k++)
        values[2 + k] = was ^ 1u << k;
    for (unsigned k = 0; k < (all ? 256u : 2u); k++)
        try_spoilt(s, ONE_BYTE, at, all ? k : values[(unsigned)rand() % 10], unsure);
}

TEST_IF(FOR_MEMORY, spoilt_answers)
{
    const char *set = getenv("STOCACHED_TEST_HOSTILE");
    bool all = set && strcmp(set, "all") == 0;
    int descriptors = files_in("/proc/self/fd");
    srand((unsigned)time(NULL));
    for (size_t s = 0; s < sizeof sweeps / sizeof *sweeps && !failures; s++) {
        stoc_cache *c = sweeps[s].variable ? served_variable() : served();
        come_from_programs();
        spoilt_answer = sweeps[s].answer;
        begin_peer(c, answer_spoilt, sweeps[s].greets ? greet_well : NULL);
        alarm(4 * HANGS);
        try_spoilt(s, AS_IT_IS, 0, 0, false);
        size_t frames = spoil.frames;
        for (size_t k = sweeps[s].greets ? 0 : 2; k < frames && !failures; k++) {
            size_t from = spoil.frame[k].from, body = spoil.frame[k].bytes - 16;
            bool sample = spoil.frame[k].type == SAMPLE; /* any bytes are a sample */
            for (size_t at = 0; at < 16 + (sample ? 8 : body) && !failures; at++) {
                spoil_byte(s, from + at, spoil.frame[k].head[at], all, sample && at >= 16);
                try_spoilt(s, CUT, from + at, 0, false);
            }
            for (uint32_t length = 0; length <= body + SPARE && !failures; length += length == 48 && sample ? BYTES - 48 : 1)
                if (length != body)
                    try_spoilt(s, NEW_LENGTH, k, length, false);
        }
        end_peer(c);
    }
    EQUAL(files_in("/proc/self/fd"), descriptors);
}

void set_up(void)
{
    setenv("STOCACHED_SOCKETS_DIR", scratch, 1);
}

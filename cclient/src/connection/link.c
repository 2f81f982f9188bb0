/*
 * link.c - connections to a server: docs/spec/control.md. Each call has its own connection. The
 * handle keeps idle ones for later calls. A forked child closes the inherited ones
 * (protocol/client.c) and connects again.
 */
#include "connection.h"

#define CONTROL_VERSION 1 /* both sides refuse any other */
#define MAX_SERVER_BODY (UINT32_C(4) << 20) /* the most bytes of all frames except SAMPLE */
#define MAX_LABEL 63
#define MAX_INDICES 65536

/* How long to wait for a server that is away, such as one that restarts, unless the caller sets a timeout. Go and
 * Python wait as long */
#define FIND_SERVER_NS (UINT64_C(60) * 1000000000)
#define ASK_MS 1000                         /* ask the caller at least this often whether to go on */
#define FIND_PAUSE_MS 20                    /* between two tries */

INTERNAL struct deadline deadline_of(uint32_t timeout_ms, struct stoc_error *error)
{
    uint64_t ns = timeout_ms * UINT64_C(1000000), now = now_ns();
    return (struct deadline){.at = timeout_ms ? now + ns : UINT64_MAX, .window = timeout_ms ? ns : FIND_SERVER_NS,
                             .asked = now, .error = error};
}

/* Checks the struct. NULL is right too. */
INTERNAL int check_fetch_options(const struct stoc_fetch_options *o, struct stoc_error *error)
{
    return o ? check_struct(o->struct_bytes, sizeof *o, "fetch_options", "options", "", error) : 0;
}

INTERNAL struct deadline deadline_of_options(const struct stoc_fetch_options *o, struct stoc_error *error)
{
    struct deadline p = deadline_of(o ? o->timeout_ms : 0, error);
    p.interrupted = o ? o->interrupted : NULL;
    p.context = o ? o->context : NULL;
    return p;
}

/* Whether a call goes on: 0, ETIMEOUT, EINTERRUPTED. Callers ask before each system call, because a
 * server that sends single bytes never makes the call wait. It asks the caller if `ask`, and
 * each time that ASK_MS have passed. */
static int go_on(struct deadline *p, uint64_t until, bool ask)
{
    uint64_t now = now_ns();
    if (p->interrupted && (ask || now - p->asked >= ASK_MS * UINT64_C(1000000))) {
        p->asked = now;
        if (p->interrupted(p->context))
            return fail(p->error, STOC_EINTERRUPTED, EINTR, "interrupted while waiting for the server; call again");
    }
    if (now >= until)
        return fail(p->error, STOC_ETIMEOUT, 0,
                    "the server has not answered in time; it is busy or stopped (stocached health)");
    return 0;
}

/* Waits for events of fd until `until`. 0, ETIMEOUT, EINTERRUPTED, ESYSTEM. With fd -1 it only
 * sleeps, and returns ETIMEOUT. */
INTERNAL int wait_for(int fd, short events, uint64_t until, struct deadline *p)
{
    for (;;) {
        uint64_t now = now_ns();
        uint64_t ms = until == UINT64_MAX ? ASK_MS : until > now ? MIN((until - now + 999999) / 1000000, ASK_MS) : 0;
        struct pollfd one = {.fd = fd, .events = events};
        int n = poll(&one, 1, (int)ms);
        if (n > 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return fail_system(p->error, "wait for", "the server");
        int code = go_on(p, until, true); /* a signal may have come outside poll, or to another thread */
        if (code < 0)
            return code;
    }
}

/* ------------------------------------------------------------ bytes */

/* Writes and reads numbers like the segment's header: header.c. */
INTERNAL void put_header(unsigned char *frame, size_t length, enum frame_type type, uint64_t request)
{
    put32(frame, 0, (uint32_t)length);
    put16(frame, 4, (uint16_t)type);
    put16(frame, 6, 0);
    put64(frame, 8, request);
}

INTERNAL int send_all(struct link *l, const unsigned char *data, size_t n, struct deadline *p)
{
    while (n > 0) {
        int code = go_on(p, p->at, false);
        if (code < 0)
            return code;
        ssize_t sent = send(l->fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            data += sent;
            n -= (size_t)sent;
        } else if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
            if ((code = wait_for(l->fd, POLLOUT, p->at, p)) < 0)
                return code;
        } else {
            return BROKEN;
        }
    }
    return 0;
}

/* Receives bytes. If a descriptor is allowed, the link keeps the first one and closes all
 * others. */
static ssize_t receive_some(struct link *l, void *data, size_t n, bool descriptor)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct iovec part = {.iov_base = data, .iov_len = n};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (!descriptor)
        return recv(l->fd, data, n, MSG_DONTWAIT); /* the kernel closes descriptors that we do not ask for */
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    pthread_mutex_lock(&handles_lock); /* a fork sees the descriptor in its link or not at all */
    ssize_t got = recvmsg(l->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    for (struct cmsghdr *h = got < 0 ? NULL : CMSG_FIRSTHDR(&message); h; h = CMSG_NXTHDR(&message, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t k = 0; k < (h->cmsg_len - CMSG_LEN(0)) / sizeof(int); k++) {
            int fd;
            memcpy(&fd, CMSG_DATA(h) + k * sizeof fd, sizeof fd);
            if (l->descriptor < 0)
                l->descriptor = fd;
            else
                close(fd);
        }
    }
    pthread_mutex_unlock(&handles_lock);
    if (got >= 0 && message.msg_flags & MSG_CTRUNC)
        l->no_number = true;
    return got;
}

/* Reads exactly n bytes. */
INTERNAL int receive_all(struct link *l, void *data, size_t n, bool descriptor, struct deadline *p)
{
    unsigned char *at = data;
    while (n > 0) {
        size_t have = MIN(n, l->to - l->from);
        if (have) {
            memcpy(at, l->buffer + l->from, have);
            l->from += have;
            at += have;
            n -= have;
            continue;
        }
        int code = go_on(p, p->at, false);
        if (code < 0)
            return code;
        bool straight = n >= sizeof l->buffer; /* large samples go directly to their destination */
        ssize_t got = receive_some(l, straight ? at : l->buffer, straight ? n : sizeof l->buffer, descriptor);
        if (got > 0 && straight) {
            at += got;
            n -= (size_t)got;
        } else if (got > 0) {
            l->from = 0;
            l->to = (size_t)got;
        } else if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            if ((code = wait_for(l->fd, POLLIN, p->at, p)) < 0)
                return code;
        } else {
            return BROKEN;
        }
    }
    return 0;
}

/* The error of a peer that breaks the protocol. */
__attribute__((format(printf, 2, 3))) INTERNAL int garbled(struct stoc_error *error, const char *format, ...)
{
    char what[200];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return fail(
        error, STOC_EREMOTE, 0,
        "what the server sent is not the protocol of the data socket: %s; use server and library of one release", what);
}

INTERNAL int receive_frame(struct link *l, struct frame *f, bool descriptor, struct deadline *p)
{
    unsigned char header[FRAME_BYTES];
    int code = receive_all(l, header, sizeof header, descriptor, p);
    if (code < 0)
        return code;
    f->length = get32(header, 0);
    unsigned type = get16(header, 4);
    f->type = (enum frame_type)type;
    f->request = get64(header, 8);
    if (get16(header, 6) != 0)
        return garbled(p->error, "a reserved field of %u", get16(header, 6));
    if (type < FRAME_HELLO || type > FRAME_OFFERED)
        return garbled(p->error, "a frame of type %u", type);
    if (type != FRAME_SAMPLE && f->length > MAX_SERVER_BODY)
        return garbled(p->error, "a frame of type %u with %u bytes", type, f->length);
    return 0;
}

/* Reads the body of an ERROR frame, and turns it into one of our errors. */
INTERNAL int receive_error(struct link *l, const struct frame *f, struct deadline *p)
{
    static const struct {
        uint16_t remote;
        int16_t code;
        const char *name;
    } table[] = {{1, STOC_EREMOTE, "PROTOCOL"}, {2, STOC_EVERSION, "VERSION"}, {3, STOC_EPERM, "DENIED"},
                 {4, STOC_ENOENT, "NOT_FOUND"}, {5, STOC_EREMOTE, "LIMIT"},    {6, STOC_EINDEX, "INDEX"},
                 {12, BROKEN, "CLOSING"},      {14, STOC_EINVAL, "INVALID"}};
    unsigned char body[4 + MAX_TEXT];
    if (f->length < 4 || f->length > sizeof body)
        return garbled(p->error, "an ERROR of %u bytes", f->length);
    int code = receive_all(l, body, f->length, false, p);
    if (code < 0)
        return code;
    uint16_t remote = get16(body, 0);
    for (size_t k = 0; k < sizeof table / sizeof *table; k++)
        if (table[k].remote == remote)
            return fail(p->error, table[k].code, 0, "the server says %s: %.*s", table[k].name, (int)f->length - 4,
                        (const char *)body + 4);
    return fail(p->error, STOC_EREMOTE, 0, "the server says (code %u): %.*s", remote, (int)f->length - 4,
                (const char *)body + 4);
}

/* ------------------------------------------------------------ connect */

/* The address of the data socket. *named: the user has set the directory. 0, or EINVAL if the path
 * does not fit into an address. */
static int socket_address(const char *dir, struct sockaddr_un *address, bool *named, struct stoc_error *error)
{
    char own[OWN_PATH_BYTES];
    const char *set = getenv("STOCACHED_SOCKETS_DIR"), *run = getenv("XDG_RUNTIME_DIR");
    if (!dir || !dir[0])
        dir = set;
    *named = dir && dir[0];
    if (!*named) {
        if (run && run[0] == '/')
            snprintf(own, sizeof own, "%s/stocached", run);
        else
            snprintf(own, sizeof own, "/tmp/stocached-%u", (unsigned)getuid());
        dir = own;
    }
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    int n = snprintf(address->sun_path, sizeof address->sun_path, "%s/data.sock", dir);
    if (n < 0 || (size_t)n >= sizeof address->sun_path)
        return fail(error, STOC_EINVAL, 0,
                    "the path of the socket, %.300s/data.sock, has more than the %zu bytes of an address; put the "
                    "sockets (sockets.dir, STOCACHED_SOCKETS_DIR) into a shorter one",
                    dir, sizeof address->sun_path - 1);
    return 0;
}

INTERNAL void hang_up(struct link *l)
{
    pthread_mutex_lock(&handles_lock);
    reset_link(l);
    pthread_mutex_unlock(&handles_lock);
}

static void drop_descriptor(struct link *l)
{
    pthread_mutex_lock(&handles_lock);
    if (l->descriptor >= 0)
        close(l->descriptor);
    l->descriptor = -1;
    pthread_mutex_unlock(&handles_lock);
}

/* Adds an unconnected link to a list. NULL: no memory. */
static struct link *new_link(struct link **list, struct stoc_error *error)
{
    struct link *l = calloc(1, sizeof *l);
    if (!l) {
        fail(error, STOC_EMEMORY, ENOMEM, "no memory for a connection of %zu bytes", sizeof *l);
        return NULL;
    }
    l->fd = l->descriptor = -1;
    l->busy = true;
    pthread_mutex_lock(&handles_lock);
    l->next = *list;
    *list = l;
    pthread_mutex_unlock(&handles_lock);
    return l;
}

/* Whether only this user and root can put a socket into the directory of the sockets. EPERM.
 * BROKEN: the directory does not exist. */
static int check_folder(const struct sockaddr_un *address, bool named, struct stoc_error *error)
{
    char folder[sizeof address->sun_path];
    struct stat st;
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(address->sun_path, '/') - address->sun_path),
             address->sun_path);
    /* The default directory may lie in /tmp, where every user may make a symbolic link. */
    if (syscall(SYS_newfstatat, AT_FDCWD, folder[0] ? folder : "/", &st, named ? 0 : AT_SYMLINK_NOFOLLOW) != 0)
        return errno == EACCES ? fail(error, STOC_EPERM, EACCES,
                                      "look at %s: permission denied; the server is another user's", folder)
                               : BROKEN;
    if (!S_ISDIR(st.st_mode))
        return fail(error, STOC_EPERM, 0, "%s is no folder; set STOCACHED_SOCKETS_DIR to the folder of your server",
                    folder);
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return fail(error, STOC_EPERM, 0,
                    "the folder of the sockets, %s, belongs to user id %u, and you are %u; set STOCACHED_SOCKETS_DIR "
                    "to the folder of your server",
                    folder, (unsigned)st.st_uid, (unsigned)geteuid());
    if (st.st_mode & 022)
        return fail(error, STOC_EPERM, 0,
                    "the folder of the sockets, %s, has mode %04o, so that other users may put sockets there; chmod "
                    "go-w it, or set STOCACHED_SOCKETS_DIR to the folder of your server",
                    folder, (unsigned)st.st_mode & 0777);
    return 0;
}

/* Whether this user or root listens at the other end. EPERM, ESYSTEM. */
static int check_server(int fd, const struct sockaddr_un *address, struct stoc_error *error)
{
    struct ucred peer;
    socklen_t n = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) != 0)
        return fail_system(error, "ask who listens on", address->sun_path);
    if (peer.uid != geteuid() && peer.uid != 0)
        return fail(error, STOC_EPERM, 0, "user id %u listens on %s, and you are %u; nothing was sent there",
                    (unsigned)peer.uid, address->sun_path, (unsigned)geteuid());
    return 0;
}

/* Tries once to connect to a server, and sends nothing. BROKEN: no server listens now. */
static int call_server(struct link *l, const struct sockaddr_un *address, bool named, struct deadline *p)
{
    int code = check_folder(address, named, p->error);
    if (code < 0)
        return code;
    pthread_mutex_lock(&handles_lock); /* a fork sees the descriptor in its link or not at all */
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    pthread_mutex_unlock(&handles_lock);
    if (l->fd < 0)
        return fail_system(p->error, "make a socket for", address->sun_path);
    if (connect(l->fd, (const struct sockaddr *)address, sizeof *address) == 0)
        return check_server(l->fd, address, p->error);
    switch (errno) {
    case ENOENT:
    case ENOTDIR:
    case ECONNREFUSED:
    case EAGAIN: /* its queue of connections is full */
    case EINTR:
        return BROKEN;
    case EACCES:
    case EPERM:
        return fail(p->error, STOC_EPERM, errno, "connect to %s: permission denied; the server is another user's",
                    address->sun_path);
    default:
        return fail_system(p->error, "connect to", address->sun_path);
    }
}

/* Sends HELLO and ATTACH together, and reads WELCOME and ATTACHED. The link keeps the descriptor of
 * the segment. */
static int introduce(struct link *l, const char *name, unsigned kind, unsigned char uuid[16], struct deadline *p)
{
    unsigned char frames[2 * FRAME_BYTES + 8 + MAX_LABEL + STOC_NAME_BYTES], body[24], *at;
    struct frame f;
    size_t label = strnlen(program_invocation_short_name, MAX_LABEL), length = strlen(name);
    put_header(frames, 8 + label, FRAME_HELLO, 1);
    memcpy(frames + FRAME_BYTES, "STOC", 4);
    put16(frames, FRAME_BYTES + 4, CONTROL_VERSION);
    put16(frames, FRAME_BYTES + 6, (uint16_t)kind);
    memcpy(frames + FRAME_BYTES + 8, program_invocation_short_name, label);
    at = frames + FRAME_BYTES + 8 + label;
    put_header(at, length, FRAME_ATTACH, 2);
    memcpy(at + FRAME_BYTES, name, length);
    int code = send_all(l, frames, (size_t)(at + FRAME_BYTES + length - frames), p);
    if (code == BROKEN)
        code = 0; /* the server may have sent a reason before it closed: DENIED */
    static const enum frame_type answers[] = {FRAME_WELCOME, FRAME_ATTACHED};
    for (size_t k = 0; code == 0 && k < 2; k++) {
        if ((code = receive_frame(l, &f, true, p)) < 0)
            return code;
        if (f.type == FRAME_ERROR)
            return receive_error(l, &f, p);
        if (f.type != answers[k] || f.length != sizeof body || f.request != k + 1)
            return garbled(p->error, "a frame of type %d, %u bytes, request %lu, in answer to HELLO and ATTACH",
                           (int)f.type, f.length, f.request);
        if ((code = receive_all(l, body, sizeof body, true, p)) < 0)
            return code;
        if (k == 0 && get16(body, 0) != CONTROL_VERSION)
            return fail(p->error, STOC_EVERSION, 0,
                        "the server speaks version %u of the data socket's protocol, this library %d; use server and "
                        "library of one release",
                        get16(body, 0), CONTROL_VERSION);
        if (k == 0 && ((l->max_indices = get32(body, 4)) == 0 || l->max_indices > MAX_INDICES))
            return garbled(p->error, "%u indices a request", l->max_indices);
    }
    if (code < 0)
        return code;
    if (l->descriptor < 0 && l->no_number) {
        errno = EMFILE;
        return fail_system(p->error, "receive the descriptor of", name);
    }
    if (l->descriptor < 0)
        return garbled(p->error, "no descriptor came with ATTACHED");
    l->cache = get32(body, 0);
    memcpy(uuid, body + 8, 16);
    return 0;
}

/* Connects and attaches. Waits for a server that is away as long as the deadline allows. On
 * success the link holds the descriptor until drop_descriptor. ENOSERVER, and the errors of
 * receive_error. */
static int connect_link(struct link *l, const char *dir, const char *name, unsigned kind, unsigned char uuid[16],
                        struct deadline *p)
{
    struct sockaddr_un address;
    bool named;
    int code = socket_address(dir, &address, &named, p->error);
    if (code < 0)
        return code;
    uint64_t now = now_ns(), until = MIN(p->at, now + MIN(p->window, UINT64_MAX - now));
    struct deadline bounded = *p;
    bounded.at = until;
    for (;;) {
        l->request = 2;
        l->no_number = false;
        code = call_server(l, &address, named, &bounded);
        if (code == 0)
            code = introduce(l, name, kind, uuid, &bounded);
        if (code == 0)
            return 0;
        hang_up(l);
        if (code != BROKEN)
            return code;
        now = now_ns();
        if (now >= until)
            return fail(p->error, STOC_ENOSERVER, 0,
                        "no server on %s; start it with: stocached serve -c config.yaml (or set STOCACHED_SOCKETS_DIR "
                        "to where it listens)",
                        address.sun_path);
        if ((code = wait_for(-1, 0, MIN(until, now + FIND_PAUSE_MS * UINT64_C(1000000)), &bounded)) != STOC_ETIMEOUT)
            return code;
        no_error(p->error);
    }
}

/* ------------------------------------------------------------ the connections of a handle */

/* Closes all idle connections. One connection has ended, so the server has probably gone, and later
 * calls must not use the others. */
INTERNAL void drop_idle(stoc_cache *c)
{
    pthread_mutex_lock(&handles_lock);
    for (struct link *l = c->links; l; l = l->next)
        if (!l->busy)
            reset_link(l);
    pthread_mutex_unlock(&handles_lock);
}

INTERNAL void give_link(struct link *l)
{
    pthread_mutex_lock(&handles_lock);
    l->busy = false;
    pthread_mutex_unlock(&handles_lock);
}

/* Takes a connection for one call, and makes one if needed. give_link returns it. */
INTERNAL int take_link(stoc_cache *c, struct link **out, struct deadline *p)
{
    *out = NULL;
    if (!c->served[0])
        return fail(p->error, STOC_EINVAL, 0,
                    "a cache without a name that was not dialled has no server; dial it by the name that its server "
                    "gives it, or fill it yourself");
    struct link *l = NULL;
    pthread_mutex_lock(&handles_lock);
    for (struct link *idle = c->links; idle; idle = idle->next)
        if (!idle->busy && (!l || l->fd < 0))
            l = idle;
    if (l)
        l->busy = true;
    pthread_mutex_unlock(&handles_lock);
    if (!l && !(l = new_link(&c->links, p->error)))
        return STOC_EMEMORY;
    if (l->fd < 0) {
        unsigned char uuid[16];
        int code = connect_link(l, c->sockets_dir, c->served, c->kind, uuid, p);
        if (code == 0) {
            drop_descriptor(l); /* the segment is attached already */
            if (memcmp(uuid, c->uuid, sizeof uuid) != 0) {
                hang_up(l);
                code = fail(p->error, STOC_EREPLACED, 0,
                            "the server has replaced the cache %s, because its source or its configuration has "
                            "changed; close this handle and attach again",
                            c->served);
            }
        }
        if (code < 0) {
            give_link(l);
            return code;
        }
    }
    announce_again(c, l, p);
    *out = l;
    return 0;
}

int stoc_dial(const char *name, const char *sockets_dir, unsigned flags, const struct stoc_fetch_options *options,
              stoc_cache **out, struct stoc_error *error)
{
    int code = check_open(flags, out, error);
    unsigned char uuid[16];
    if (code == 0)
        code = check_fetch_options(options, error);
    if (code < 0)
        return code;
    if (!name || !name_valid(name))
        return fail(error, STOC_EINVAL, 0,
                    "name: \"%.120s\" is not 1 to 100 of [A-Za-z0-9._-] with an alphanumeric first", name ? name : "");
    if (sockets_dir && strlen(sockets_dir) >= sizeof((*out)->sockets_dir))
        return fail(error, STOC_EINVAL, 0, "sockets_dir: its path has %zu bytes, more than %zu", strlen(sockets_dir),
                    sizeof((*out)->sockets_dir) - 1);
    struct link *l = new_link(&dialling, error);
    if (!l)
        return STOC_EMEMORY;
    struct deadline p = deadline_of_options(options, error);
    code = connect_link(l, sockets_dir, name, flags & STOC_OPEN_KIND_PYTHON ? STOC_KIND_PYTHON : STOC_KIND_C, uuid, &p);
    if (code == 0) {
        code = stoc_open_fd(l->descriptor, flags, uuid, out, error);
        drop_descriptor(l);
    }
    if (code < 0)
        hang_up(l);
    pthread_mutex_lock(&handles_lock); /* now it belongs to the handle, or to no handle */
    struct link **at = &dialling;
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    l->next = NULL;
    l->busy = false;
    if (code == 0) {
        snprintf((*out)->served, sizeof((*out)->served), "%s", name);
        if (sockets_dir)
            memcpy((*out)->sockets_dir, sockets_dir, strlen(sockets_dir));
        (*out)->links = l;
    }
    pthread_mutex_unlock(&handles_lock);
    if (code < 0)
        free(l);
    return code;
}

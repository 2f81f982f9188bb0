/*
 * stocached-decode: decodes and resizes pictures for a server, one at a time. It has four lanes. Each has
 * a socket and shared memory. While this process works on a picture of one lane, the server writes the
 * next pictures into the other lanes. docs/spec/decode.md has the frames; source/decode/helper.go is the
 * server's side.
 *
 * Pictures may be hostile. So this process opens nothing and starts nothing: a filter of system calls ends it if it
 * tries. A limit bounds its memory, and an alarm the time of a picture.
 *
 * It ends when the server closes the socket or dies. It ignores the signals of a terminal or of a service
 * manager, because it must not end before the server has its pictures.
 */
#define _GNU_SOURCE
#include "stocached_image.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <jpeglib.h> /* needs stdio.h */

enum {
    LANES = 4,
    SOCKET = 3,          /* descriptor of the first lane; the next is its memory, then the other lanes follow */
    MAGIC = 0x44435453,  /* "STCD" */
    FRAMES = 6,          /* changes when frames, the pixels of a picture, or the files that it takes change */
    MOST_SECONDS = 90,   /* for one picture: longer than the server waits, if it still lives */
    KEPT = 4 << 20       /* bytes of memory that are kept for the next picture */
};

struct request {
    uint64_t memory;        /* bytes of the shared memory */
    uint64_t input, result; /* bytes of the file, which lies at 0; where the pixels go */
    uint64_t most;          /* bytes that decoding may take besides */
    uint64_t max_pixels;
    uint32_t width, height; /* the size of the pixels */
    uint32_t fit, layout;
};

struct answer {
    int32_t code; /* enum stoc_image_code; in the first frame MAGIC */
    uint32_t frames;
    uint64_t nanoseconds; /* processor time for this picture; in the first frame LANES */
    char message[240];
};

_Static_assert(sizeof(struct request) == 56, "the server has the same size");
_Static_assert(sizeof(struct answer) == 256, "the server has the same size");

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#ifdef LIBJPEG_TURBO_VERSION
#define DECODER "libjpeg-turbo " TEXT(LIBJPEG_TURBO_VERSION)
#else
#define DECODER "libjpeg " TEXT(JPEG_LIB_VERSION)
#endif

static struct lane {
    int socket, memory;
    uint8_t *bytes; /* maps memory */
    uint64_t size;
} lanes[LANES];

static bool map(struct lane *l, uint64_t size)
{
    if (size == l->size)
        return true;
    if (l->bytes)
        munmap(l->bytes, l->size);
    l->size = 0;
    l->bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, l->memory, 0);
    if (l->bytes == MAP_FAILED) {
        l->bytes = NULL;
        return false;
    }
    l->size = size;
    return true;
}

static int refuse(struct answer *a, int code, const char *message)
{
    snprintf(a->message, sizeof a->message, "%s", message);
    return code;
}

/* Bytes of private memory of this process, of which the kernel counts what RLIMIT_DATA limits. */
static int statm = -1;
static uint64_t data_bytes(void)
{
    char text[128];
    ssize_t n = pread(statm, text, sizeof text - 1, 0);
    if (n <= 0)
        return 0;
    text[n] = 0;
    char *at = text;
    for (int k = 0; k < 5; k++) /* size, resident, shared, text and lib come before it */
        strtoull(at, &at, 10);
    return strtoull(at, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t data_at_start;

/* Limits what this process may take besides what it had at the start. */
static void limit(uint64_t bytes)
{
    struct rlimit l;
    getrlimit(RLIMIT_DATA, &l);
    l.rlim_cur = data_at_start + bytes < l.rlim_max ? data_at_start + bytes : l.rlim_max;
    setrlimit(RLIMIT_DATA, &l);
}

/* Gives all memory of the last pictures back. */
static bool renew(stoc_image_worker **w)
{
    stoc_image_worker_free(*w);
    *w = NULL;
    malloc_trim(0);
    limit(KEPT);
    return (*w = stoc_image_worker_new()) != NULL;
}

static int decode(stoc_image_worker **w, struct lane *l, const struct request *r, struct answer *a)
{
    if (!map(l, r->memory))
        return refuse(a, STOC_IMAGE_EMEMORY, "the shared memory cannot be mapped");
    if (r->input > r->memory || r->result > r->memory || r->result < r->input)
        return refuse(a, STOC_IMAGE_EINVAL, "input and result are not in the shared memory");
    struct stoc_image_decode how = {.width = r->width, .height = r->height, .fit = (uint8_t)r->fit,
                                    .layout = (uint8_t)r->layout, .max_pixels = r->max_pixels};
    int code;
    for (int again = 0;; again++) { /* what an earlier picture left may be in the way */
        limit(r->most);
        code = stoc_image_decode(*w, l->bytes, r->input, &how, l->bytes + r->result, r->memory - r->result);
        if (code != STOC_IMAGE_EMEMORY || again)
            return code;
        if (!renew(w))
            return refuse(a, STOC_IMAGE_EMEMORY, "no memory is left");
    }
}

/* Allows the system calls of main's loop and of malloc. Any other one ends the process. */
static bool filter(void)
{
#ifdef __SANITIZE_ADDRESS__
    return true; /* its reports open files */
#endif
#if defined __x86_64__
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined __aarch64__
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif
#ifdef ARCHITECTURE
#define ALLOW(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(recvfrom), ALLOW(sendto), ALLOW(ppoll), ALLOW(pread64), ALLOW(write), ALLOW(writev),
        ALLOW(mmap), ALLOW(munmap), ALLOW(mremap), ALLOW(mprotect), ALLOW(madvise), ALLOW(brk),
        ALLOW(setitimer), ALLOW(clock_gettime), ALLOW(setrlimit), ALLOW(prlimit64), ALLOW(futex),
        ALLOW(rt_sigprocmask), ALLOW(rt_sigreturn), ALLOW(restart_syscall), ALLOW(getpid), ALLOW(gettid),
        ALLOW(tgkill), ALLOW(exit_group),
#ifdef __x86_64__ /* arm64 has the newer calls alone */
        ALLOW(poll), ALLOW(alarm),
#endif
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
#else
    return false;
#endif
}

static uint64_t used(void)
{
    struct timespec t = {0, 0};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static bool say(const struct lane *l, const struct answer *a)
{
    return send(l->socket, a, sizeof *a, MSG_NOSIGNAL) == (ssize_t)sizeof *a;
}

/* Waits for a request, and looks first at the lane after the last one. false: the server has ended; *wrong says
 * whether something else happened. */
static bool next(struct request *r, int *lane, bool *wrong)
{
    struct pollfd all[LANES];
    for (;;) {
        for (int k = 1; k <= LANES; k++) {
            int at = (*lane + k) % LANES;
            ssize_t n = recv(lanes[at].socket, r, sizeof *r, MSG_DONTWAIT);
            if (n == (ssize_t)sizeof *r) {
                *lane = at;
                return true;
            }
            if (n >= 0 || (errno != EAGAIN && errno != EINTR)) {
                *wrong = n != 0;
                return false;
            }
            all[at] = (struct pollfd){.fd = lanes[at].socket, .events = POLLIN};
        }
        alarm(0);
        poll(all, LANES, -1);
    }
}

static bool begin(void)
{
    for (int k = 0; k < LANES; k++) {
        int type = 0;
        lanes[k] = (struct lane){SOCKET + 2 * k, SOCKET + 2 * k + 1, NULL, 0};
        if (getsockopt(lanes[k].socket, SOL_SOCKET, SO_TYPE, &type, &(socklen_t){sizeof type}) ||
            type != SOCK_SEQPACKET)
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--version") == 0)
        return printf("stocached-decode, frames %d, " DECODER "\n", FRAMES) < 0;
    if (argc != 1 || !begin()) {
        fputs("stocached-decode decodes pictures for `stocached serve`, which starts it.\n", stderr);
        return 2;
    }
    int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE};
    for (size_t k = 0; k < sizeof ignored / sizeof *ignored; k++)
        signal(ignored[k], SIG_IGN);
    signal(SIGALRM, SIG_DFL); /* a server may have ignored it */
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    stoc_image_worker *w = stoc_image_worker_new();
    struct answer a = {MAGIC, FRAMES, LANES, ""};
    uint64_t pixels = w ? stoc_image_pixels(w) : 0;
    if (!pixels)
        return 1;
    statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    data_at_start = data_bytes();
    if (!data_at_start) {
        fputs("stocached-decode cannot read /proc/self/statm, which its limit of memory needs\n", stderr);
        return 1;
    }
    snprintf(a.message, sizeof a.message, DECODER "%s, pixels %016llx",
             filter() ? "" : " without a filter of system calls", (unsigned long long)pixels);
    if (!say(&lanes[0], &a))
        return 1;
    struct request r;
    int lane = LANES - 1;
    bool wrong = false;
    while (next(&r, &lane, &wrong)) {
        memset(&a, 0, sizeof a);
        uint64_t before = used();
        alarm(MOST_SECONDS); /* the server may have died, and a decoder may hang */
        a.frames = FRAMES;
        a.code = decode(&w, &lanes[lane], &r, &a);
        if (a.code && !a.message[0])
            snprintf(a.message, sizeof a.message, "%s", stoc_image_message(w));
        if ((!w || data_bytes() > data_at_start + KEPT) && !renew(&w))
            return 1;
        a.nanoseconds = used() - before;
        if (!say(&lanes[lane], &a))
            return 1;
    }
    return wrong;
}

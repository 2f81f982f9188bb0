/*
 * stocached-decode: decodes and resizes pictures for a server, one at a time. It has four lanes. Each has
 * a socket and shared memory. While this process works on a picture of one lane, the server writes the
 * next pictures into the other lanes. docs/spec/decode.md has the frames; source/decode/helper.go is the
 * server's side.
 *
 * It ends when the server closes the socket or dies. It ignores the signals of a terminal or of a service
 * manager, because it must not end before the server has its pictures.
 */
#define _GNU_SOURCE
#include "stocached_image.h"

#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <jpeglib.h> /* needs stdio.h */

enum {
    LANES = 4,
    SOCKET = 3,          /* descriptor of the first lane; the next is its memory, then the other lanes follow */
    MAGIC = 0x44435453,  /* "STCD" */
    FRAMES = 4,          /* changes when frames, the pixels of a picture, or the files that it takes change */
    MOST_SECONDS = 90,   /* for one picture: longer than the server waits, if it still lives */
    DECODE = 1,
    RESIZE = 2
};

struct request {
    uint32_t operation;
    uint32_t release;      /* 1: give memory back to the system after this picture */
    uint64_t memory;       /* bytes of the shared memory */
    uint64_t input, result; /* bytes of the input, which lies at 0; where the result goes */
    uint64_t max_pixels;
    uint32_t width, height; /* size of the result */
    uint32_t picture_width, picture_height; /* RESIZE, as the next four: of the input, three planes */
    uint32_t resized_width, resized_height, window_x, window_y;
    uint32_t fit, layout;
};

struct answer {
    int32_t code; /* enum stoc_image_code; in the first frame MAGIC */
    uint32_t frames;
    uint64_t nanoseconds; /* processor time for this picture; in the first frame LANES */
    char message[240];
};

_Static_assert(sizeof(struct request) == 80, "the server has the same size");
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

static int decode(stoc_image_worker *w, struct lane *l, const struct request *r, struct answer *a)
{
    if (!map(l, r->memory))
        return refuse(a, STOC_IMAGE_EMEMORY, "the shared memory cannot be mapped");
    if (r->input > r->memory || r->result > r->memory || r->result < r->input)
        return refuse(a, STOC_IMAGE_EINVAL, "input and result are not in the shared memory");
    uint8_t *to = l->bytes + r->result;
    size_t space = r->memory - r->result;
    if (r->operation == DECODE) {
        struct stoc_image_decode how = {.width = r->width, .height = r->height, .fit = (uint8_t)r->fit,
                                        .layout = (uint8_t)r->layout, .max_pixels = r->max_pixels};
        return stoc_image_decode(w, l->bytes, r->input, &how, to, space);
    }
    if (r->operation != RESIZE || (uint64_t)r->picture_width * r->picture_height > r->input / 3)
        return refuse(a, STOC_IMAGE_EINVAL, "an unknown operation, or a picture that is not in its input");
    struct stoc_image_picture picture = {l->bytes, r->picture_width, r->picture_height, 3, STOC_IMAGE_CHW};
    struct stoc_image_augment how = {
        .box_width = r->picture_width, .box_height = r->picture_height, .resized_width = r->resized_width,
        .resized_height = r->resized_height, .window_x = r->window_x, .window_y = r->window_y, .width = r->width,
        .height = r->height, .dtype = STOC_IMAGE_UINT8, .layout = (uint8_t)r->layout};
    return stoc_image_augment(w, &picture, &how, to, space);
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
    uint64_t pixels = stoc_image_jpeg_pixels(w);
    if (!pixels)
        return 1;
    snprintf(a.message, sizeof a.message, DECODER ", pixels %016llx", (unsigned long long)pixels);
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
        a.code = decode(w, &lanes[lane], &r, &a);
        if (a.code && !a.message[0])
            snprintf(a.message, sizeof a.message, "%s", stoc_image_message(w));
        if (r.release) {
            stoc_image_worker_free(w);
            malloc_trim(0);
            if (!(w = stoc_image_worker_new()))
                return 1;
        }
        a.nanoseconds = used() - before;
        if (!say(&lanes[lane], &a))
            return 1;
    }
    return wrong;
}

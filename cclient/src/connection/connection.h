/*
 * connection.h - connections to a server, and the samples that it sends.
 *
 * docs/spec/control.md is normative. Includes protocol.
 */
#ifndef STOCACHED_CONNECTION_H
#define STOCACHED_CONNECTION_H

#include "../protocol/protocol.h"

/* link.c */
enum frame_type {
    FRAME_HELLO = 1,
    FRAME_WELCOME,
    FRAME_ATTACH,
    FRAME_ATTACHED,
    FRAME_FETCH,
    FRAME_SAMPLE,
    FRAME_FETCHED,
    FRAME_PREFETCH,
    FRAME_PREFETCHED,
    FRAME_CANCEL,
    FRAME_ERROR,
    FRAME_ANNOUNCE,
    FRAME_ANNOUNCED,
    FRAME_OFFER,
    FRAME_OFFERED
};

/* Flags of FETCH: send all samples, also those that are READY; as that, and store none; the caller loads what no program
 * has; send files. */
enum { FETCH_SEND = 2, FETCH_UNSTORED = 4, FETCH_LOADS = 8, FETCH_FILE = 16 };

#define FRAME_BYTES 16                 /* bytes of a frame's header */
#define MAX_TEXT 1000                  /* bytes of the text of an ERROR */
#define PLAN_BYTES 96                  /* bytes of the body of ANNOUNCE */
/* the connection ended, as when a server goes away: the request may succeed on a new one. Never
 * leaves the library */
#define BROKEN (-1000)

/* How long a call waits, and what ends it early. */
struct deadline {
    uint64_t at;       /* end of the call, by now_ns; UINT64_MAX: none */
    uint64_t window;   /* how long to wait for a server that is away */
    int (*interrupted)(void *context);
    void *context;
    uint64_t asked; /* time of the last call of interrupted */
    struct stoc_error *error;
};

struct frame {
    uint32_t length;
    enum frame_type type;
    uint64_t request;
};

INTERNAL struct deadline deadline_of(uint32_t timeout_ms, struct stoc_error *error);
INTERNAL int check_fetch_options(const struct stoc_fetch_options *o, struct stoc_error *error);
INTERNAL struct deadline deadline_of_options(const struct stoc_fetch_options *o, struct stoc_error *error);
INTERNAL void put_header(unsigned char *frame, size_t length, enum frame_type type, uint64_t request);
INTERNAL int wait_for(int fd, short events, uint64_t until, struct deadline *p);
INTERNAL int send_all(struct link *l, const unsigned char *data, size_t n, struct deadline *p);
INTERNAL int receive_all(struct link *l, void *data, size_t n, bool descriptor, struct deadline *p);
__attribute__((format(printf, 2, 3))) INTERNAL int garbled(struct stoc_error *error, const char *format, ...);
INTERNAL int receive_frame(struct link *l, struct frame *f, bool descriptor, struct deadline *p);
INTERNAL int receive_error(struct link *l, const struct frame *f, struct deadline *p);
INTERNAL void hang_up(struct link *l);
INTERNAL void drop_idle(stoc_cache *c);
INTERNAL void give_link(struct link *l);
INTERNAL int take_link(stoc_cache *c, struct link **out, struct deadline *p);

/* announce.c */
INTERNAL void announce_again(stoc_cache *c, struct link *l, struct deadline *p);

#endif

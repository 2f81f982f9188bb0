/*
 * announce.c - tells the server what this handle reads from now on. docs/spec/control.md, ANNOUNCE.
 *
 * The handle keeps the frame. The plan lives as long as a connection that has announced it, so
 * take_link announces it again if there is no such connection.
 */
#include "connection.h"

enum { WITHDRAW = 1, TOLD = 2, ANNOUNCE_BREAKS = 4 };
enum { READS_AT = 80, FLAGS_AT = 92 }; /* in a plan */

/* Sends an ANNOUNCE, and reads the answer: whether the server uses the plan, or an error. *refused: it is that of an
 * ERROR, after which the connection goes on. */
static int ask_to_announce(struct link *l, const unsigned char plan[PLAN_BYTES], struct deadline *p, bool *refused)
{
    unsigned char frame[FRAME_BYTES + PLAN_BYTES], body[8];
    struct frame f;
    put_header(frame, PLAN_BYTES, FRAME_ANNOUNCE, ++l->request);
    memcpy(frame + FRAME_BYTES, plan, PLAN_BYTES);
    put32(frame, FRAME_BYTES, l->cache);
    int code = send_all(l, frame, sizeof frame, p);
    if (code == 0)
        code = receive_frame(l, &f, false, p);
    if (code < 0)
        return code;
    if (f.type == FRAME_ERROR) {
        code = receive_error(l, &f, p);
        *refused = f.length >= 4 && f.length <= 4 + MAX_TEXT && (code == STOC_EREMOTE || code == STOC_EINVAL);
        return code;
    }
    if (f.type != FRAME_ANNOUNCED || f.length != sizeof body || f.request != l->request)
        return garbled(p->error, "a frame of type %d, %u bytes, in answer to ANNOUNCE", (int)f.type, f.length);
    code = receive_all(l, body, sizeof body, false, p);
    return code < 0 ? code : get32(body, 0) == 1;
}

/* As ask_to_announce. A connection on which an answer may still be, or a part of one, ends: its next use makes another. */
static int announce_on(struct link *l, const unsigned char plan[PLAN_BYTES], struct deadline *p)
{
    bool refused = false;
    int code = ask_to_announce(l, plan, p, &refused);
    if (code < 0 && !refused)
        shutdown(l->fd, SHUT_RDWR);
    return code;
}

/* Announces the plan of the handle on a connection, unless one has announced it. An error of the
 * connection is that of its next use. */
INTERNAL void announce_again(stoc_cache *c, struct link *l, struct deadline *p)
{
    unsigned char plan[PLAN_BYTES];
    struct stoc_error ignored;
    struct deadline quiet = *p;
    quiet.error = &ignored;
    pthread_mutex_lock(&handles_lock);
    uint64_t number = c->plan_number;
    for (const struct link *other = c->links; other; other = other->next)
        if (other->fd >= 0 && other->announced == number)
            number = 0;
    memcpy(plan, c->plan, sizeof plan);
    if (number)
        l->announced = number;
    pthread_mutex_unlock(&handles_lock);
    if (number)
        announce_on(l, plan, &quiet);
}

static void keep_plan(stoc_cache *c, const unsigned char plan[PLAN_BYTES], uint64_t number, struct link *l)
{
    pthread_mutex_lock(&handles_lock);
    memcpy(c->plan, plan, PLAN_BYTES);
    c->plan_number = number;
    if (l)
        l->announced = number;
    pthread_mutex_unlock(&handles_lock);
}

/* Sends a plan, and keeps it for the connections to come. number: 0 if there is nothing to announce again. */
static int send_plan(stoc_cache *c, const unsigned char plan[PLAN_BYTES], uint64_t number, struct deadline *p)
{
    keep_plan(c, plan, 0, NULL); /* take_link announces nothing in between */
    for (int breaks = 1;; breaks++) {
        struct link *l;
        int code = take_link(c, &l, p);
        if (code < 0) {
            keep_plan(c, plan, number, NULL); /* the next connection announces it */
            return code;
        }
        code = announce_on(l, plan, p);
        if (code >= 0)
            keep_plan(c, plan, number, l);
        else if (code != STOC_EINVAL && code != STOC_EREMOTE)
            hang_up(l);
        if (code == STOC_ETIMEOUT || code == STOC_EINTERRUPTED)
            keep_plan(c, plan, number, NULL);
        give_link(l);
        if (code != BROKEN)
            return code;
        drop_idle(c);
        if (breaks == ANNOUNCE_BREAKS) {
            keep_plan(c, plan, number, NULL);
            return fail(p->error, STOC_ENOSERVER, 0, "the server of %s ended the connection %d times", c->served,
                        breaks);
        }
        no_error(p->error);
    }
}

int stoc_announce(stoc_cache *c, const struct stoc_order *order, uint64_t epoch, const struct stoc_shard *shard,
                  size_t batch, unsigned timeout_ms, struct stoc_error *error)
{
    unsigned char plan[PLAN_BYTES] = {0};
    uint32_t owner;
    no_error(error);
    if (!c)
        return fail(error, STOC_ECLOSED, 0, "the cache is closed");
    if (order && (order->struct_bytes != sizeof *order || !shard || shard->struct_bytes != sizeof *shard))
        return fail(error, STOC_EINVAL, 0, "struct_bytes: of order or shard; set them to the sizes of these structs");
    if (c->read_only)
        return fail(error, STOC_EREADONLY, 0,
                    "the reads of a read-only handle are not counted, so the server cannot follow them");
    int code = require_owner(c, &owner);
    if (code < 0)
        return fail(error, code, 0, "%s", stoc_strerror(code));
    put32(plan, 4, owner);
    if (order) {
        const stoc_word *counters = counters_of(c);
        uint64_t reads = sum_of(counters, STOC_COUNTER_HITS) + sum_of(counters, STOC_COUNTER_MISSES);
        const uint64_t words[] = {order->seed, order->window, order->block,   epoch, shard->from,
                                  shard->rank, shard->ranks,  order->samples, reads};
        put32(plan, 8, order->kind);
        put32(plan, 12, shard->ends);
        for (size_t k = 0; k < sizeof words / sizeof *words; k++)
            put64(plan, 16 + 8 * k, words[k]);
        put32(plan, 88, (uint32_t)MIN(MAX(batch, 1), UINT32_MAX));
    } else {
        put32(plan, FLAGS_AT, WITHDRAW);
    }
    uint64_t number = order ? atomic_fetch_add(&c->plans, 1) + 1 : 0;
    struct deadline p = deadline_of(timeout_ms, error);
    return send_plan(c, plan, number, &p);
}

int stoc_announce_reads(stoc_cache *c, uint64_t reads, unsigned timeout_ms, struct stoc_error *error)
{
    unsigned char plan[PLAN_BYTES];
    no_error(error);
    if (!c)
        return fail(error, STOC_ECLOSED, 0, "the cache is closed");
    pthread_mutex_lock(&handles_lock);
    bool planned = c->plan_number != 0;
    memcpy(plan, c->plan, sizeof plan);
    pthread_mutex_unlock(&handles_lock);
    if (!planned)
        return 0;
    put64(plan, READS_AT, reads);
    put32(plan, FLAGS_AT, TOLD);
    struct deadline p = deadline_of(timeout_ms, error);
    return send_plan(c, plan, atomic_fetch_add(&c->plans, 1) + 1, &p);
}

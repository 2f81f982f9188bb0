/*
 * fetch.c - samples from a server: one call asks for all missing samples, and waits.
 */
#include "connection.h"

#define FETCH_TRIES 3  /* how often to ask for a sample that is gone each time; the second time its bytes are sent */
/* A FETCH of more samples than this part of those that fit into a cache that evicts has them sent at once. A
 * sample of a chain takes about 32 slots. */
#define LOST_FROM 4
#define FETCH_BREAKS 4 /* how many connections may end in a call without one sample between them */

/* How a caller waits for the loads of others: pauses between two looks, each 1.5 times the one before, and the longest
 * wait. After that it loads the samples itself. */
#define FIRST_LOOK_NS UINT64_C(2000000)
#define LONGEST_LOOK_NS UINT64_C(100000000)
#define LOOK_FOR_NS UINT64_C(60000000000)

/* values of wanted.hit while a call runs; those above HAD become 0 at the end. LOADED_ELSEWHERE: another program or
 * machine loads it */
enum { NOT_HAD = 0, HAD = 1, NOT_TO_BE_HAD = 2, LOADED_ELSEWHERE = 3 };

struct missing {
    size_t position; /* in the indices of the call */
    uint8_t tries;
};

/* One call of stoc_fetch or stoc_fetch_each. */
struct wanted {
    stoc_cache *cache;
    const int64_t *indices;
    size_t n;
    unsigned char *dst; /* rows of stride bytes; NULL: samples of any size, each in its own memory */
    size_t stride;
    void **data;
    uint64_t *lengths;
    uint8_t *hit;
    struct missing *missing;
    size_t missing_count;
    struct stoc_failure *failures;
    size_t failed, failed_capacity;
    bool loads, files;         /* STOC_FETCH_LOADS, STOC_FETCH_FILES */
    size_t to_load, elsewhere; /* failures that the caller loads; samples that others load */
    struct deadline deadline;
};

static int no_memory(struct stoc_error *error, size_t bytes)
{
    return fail(error, STOC_EMEMORY, ENOMEM, "no memory for %zu bytes", bytes);
}

/* Where a sample of this length goes. NULL: the length is wrong, or there is no memory (*code). */
static void *destination(struct wanted *w, size_t k, uint64_t length, int *code)
{
    const stoc_cache *c = w->cache;
    if (w->dst ? length != c->sample_bytes : !w->files && length > c->sample_bytes) {
        *code = garbled(w->deadline.error, "sample %ld with %lu bytes, of a cache whose samples have %lu%s",
                        w->indices[k], length, c->sample_bytes, w->dst ? "" : " at most");
        return NULL;
    }
    if (w->dst)
        return w->dst + k * w->stride;
    free(w->data[k]);
    w->data[k] = malloc(MAX(length, 1));
    w->lengths[k] = length;
    if (!w->data[k])
        *code = no_memory(w->deadline.error, length);
    return w->data[k];
}

static void forget_place(struct wanted *w, size_t k)
{
    if (w->dst)
        return;
    free(w->data[k]);
    w->data[k] = NULL;
    w->lengths[k] = 0;
}

static int corrupt_sample(struct wanted *w, size_t k)
{
    corrupt(w->cache);
    return fail(w->deadline.error, STOC_ECORRUPT, 0, "sample %ld: %s; run stocached verify", w->indices[k],
                stoc_strerror(STOC_ECORRUPT));
}

/* Copies a sample that is in the cache now, and counts nothing: HIT, MISS, ECORRUPT, EMEMORY. */
static int copy_wanted(struct wanted *w, size_t k)
{
    stoc_cache *c = w->cache;
    uint64_t sample = (uint64_t)w->indices[k], offset, length, retried = 0;
    int result = STOC_MISS, code = 0;
    for (int tries = 0; tries < MAX_COPIES && result == STOC_MISS; tries++) {
        if ((result = find(c, sample, &offset, &length)) != STOC_HIT)
            break;
        void *dst = destination(w, k, length, &code);
        if (!dst)
            return code == STOC_EREMOTE ? corrupt_sample(w, k) : code;
        result = copy_sample(c, sample, w->dst ? 0 : WHOLE, length, dst, length, NULL, copy_plain, &retried);
    }
    if (retried)
        count(c, STOC_COUNTER_RETRIED, retried);
    if (result == STOC_HIT) {
        w->hit[k] = HAD;
        return result;
    }
    forget_place(w, k);
    return result < 0 ? corrupt_sample(w, k) : result;
}

static int mark_failed(struct wanted *w, size_t k, int remote, const char *text, size_t length)
{
    if (w->failed == w->failed_capacity) {
        size_t more = MAX(w->failed_capacity * 2, 16);
        struct stoc_failure *grown = realloc(w->failures, more * sizeof *grown);
        if (!grown)
            return no_memory(w->deadline.error, more * sizeof *grown);
        w->failures = grown;
        w->failed_capacity = more;
    }
    struct stoc_failure *f = &w->failures[w->failed++];
    memset(f, 0, sizeof *f);
    f->position = k;
    f->index = w->indices[k];
    f->code = remote;
    length = MIN(length, sizeof f->message - 1);
    memcpy(f->message, text, length);
    make_printable(f->message, length);
    w->hit[k] = NOT_TO_BE_HAD;
    return 0;
}

/* ------------------------------------------------------------ requests */

/* Sends FETCH or PREFETCH for the first m missing samples (NULL: for the indices). */
static int send_request(struct link *l, enum frame_type type, uint32_t flags, const int64_t *indices,
                        const struct missing *missing, size_t m, struct deadline *p)
{
    size_t body = 8 + m * 8;
    unsigned char *frame = malloc(FRAME_BYTES + body);
    if (!frame)
        return no_memory(p->error, FRAME_BYTES + body);
    put_header(frame, body, type, ++l->request);
    put32(frame, FRAME_BYTES, l->cache);
    put32(frame, FRAME_BYTES + 4, flags);
    for (size_t k = 0; k < m; k++)
        put64(frame, FRAME_BYTES + 8 + k * 8, (uint64_t)indices[missing ? missing[k].position : k]);
    int code = send_all(l, frame, FRAME_BYTES + body, p);
    free(frame);
    STOC_FAULT("fetch.sent");
    return code;
}

/* Receives the next frame of this request. An ERROR frame becomes its error. */
static int receive_answer(struct link *l, struct frame *f, struct deadline *p)
{
    int code = receive_frame(l, f, false, p);
    if (code < 0)
        return code;
    if (f->type == FRAME_ERROR)
        return receive_error(l, f, p);
    if (f->request != l->request)
        return garbled(p->error, "an answer to request %lu, while %lu is under way", f->request, l->request);
    return 0;
}

/* Receives the number that answers a PREFETCH or an OFFER, or an error. */
static int64_t receive_number(struct link *l, enum frame_type type, const char *asked, struct deadline *p)
{
    struct frame f;
    unsigned char body[8];
    int code = receive_answer(l, &f, p);
    if (code < 0)
        return code;
    if (f.type != type || f.length != sizeof body)
        return garbled(p->error, "a frame of type %d, %u bytes, in answer to %s", (int)f.type, f.length, asked);
    code = receive_all(l, body, sizeof body, false, p);
    return code < 0 ? code : (int64_t)get32(body, 0);
}

static int take_sample(struct wanted *w, struct link *l, const struct frame *f, size_t m)
{
    unsigned char head[8];
    if (f->length < sizeof head)
        return garbled(w->deadline.error, "a SAMPLE of %u bytes", f->length);
    int code = receive_all(l, head, sizeof head, false, &w->deadline);
    if (code < 0)
        return code;
    uint32_t position = get32(head, 0);
    if (position >= m)
        return garbled(w->deadline.error, "a sample for position %u of %zu", position, m);
    size_t k = w->missing[position].position;
    if (w->hit[k] != NOT_HAD)
        return garbled(w->deadline.error, "position %u twice", position);
    void *dst = destination(w, k, f->length - sizeof head, &code);
    if (!dst)
        return code;
    STOC_FAULT("fetch.sample");
    code = receive_all(l, dst, f->length - sizeof head, false, &w->deadline);
    if (code < 0)
        forget_place(w, k);
    else
        w->hit[k] = HAD;
    return code;
}

/* The end of a request: the samples that failed. The next server reads those that this one skipped
 * because it ends: BROKEN. */
static int take_failures(struct wanted *w, const unsigned char *body, size_t length, size_t m)
{
    struct stoc_error *error = w->deadline.error;
    bool closing = false;
    if (length < 8)
        return garbled(error, "a FETCHED of %zu bytes", length);
    uint32_t n = get32(body, 0);
    size_t at = 8;
    for (uint32_t i = 0; i < n; i++) {
        if (length - at < 8)
            return garbled(error, "a FETCHED that ends within failure %u of %u", i, n);
        uint32_t position = get32(body, at);
        uint16_t remote = get16(body, at + 4), text = get16(body, at + 6);
        at += 8;
        if (length - at < text || position >= m)
            return garbled(error, "failure %u is of position %u of %zu, with %u bytes of text", i, position, m, text);
        size_t k = w->missing[position].position;
        if (w->hit[k] != NOT_HAD)
            return garbled(error, "position %u twice", position);
        if (remote == STOC_REMOTE_CLOSING) {
            closing = true;
            fail(error, BROKEN, 0, "%.*s", (int)text, (const char *)body + at);
        } else if (remote == STOC_REMOTE_LOADING && w->loads) {
            w->hit[k] = LOADED_ELSEWHERE;
            w->elsewhere++;
        } else {
            w->to_load += remote == STOC_REMOTE_LOAD;
            int code = mark_failed(w, k, remote, (const char *)body + at, text);
            if (code < 0)
                return code;
        }
        at += text;
    }
    if (at != length)
        return garbled(error, "a FETCHED with %zu bytes too many", length - at);
    return closing ? BROKEN : 0;
}

/* Whether the server need not store a missing sample, because stoc_keep leaves it out. */
static bool is_unstored(const struct wanted *w, size_t m)
{
    return is_left_out(w->cache, (uint64_t)w->indices[w->missing[m].position]);
}

/* Asks for the first m missing samples, and waits for the answer. Samples that came stay valid,
 * also if it returns an error. */
static int fetch_part(struct wanted *w, struct link *l, size_t m)
{
    uint64_t fit = w->cache->chains ? w->cache->slots / 32 : w->cache->slots;
    bool send = w->missing[0].tries > 0 || (w->cache->evicts && m > fit / LOST_FROM);
    uint32_t flags = w->files ? FETCH_FILE : is_unstored(w, 0) ? FETCH_UNSTORED : send ? FETCH_SEND : 0;
    if (w->loads)
        flags |= FETCH_LOADS;
    int code = send_request(l, FRAME_FETCH, flags, w->indices, w->missing, m, &w->deadline);
    for (struct frame f; code == 0;) {
        if ((code = receive_answer(l, &f, &w->deadline)) < 0)
            break;
        if (f.type == FRAME_SAMPLE) {
            code = take_sample(w, l, &f, m);
            continue;
        }
        if (f.type != FRAME_FETCHED)
            return garbled(w->deadline.error, "a frame of type %d in answer to FETCH", (int)f.type);
        unsigned char small[512], *body = f.length <= sizeof small ? small : malloc(f.length);
        if (!body)
            return no_memory(w->deadline.error, f.length);
        if ((code = receive_all(l, body, f.length, false, &w->deadline)) == 0)
            code = take_failures(w, body, f.length, m);
        if (body != small)
            free(body);
        break;
    }
    STOC_FAULT("fetch.answered");
    if (code < 0)
        return code;
    for (size_t i = 0; i < m; i++) {
        /* a sample that neither came nor failed was in the cache; an eviction or a clear may have removed it */
        struct missing *one = &w->missing[i];
        if (w->hit[one->position] != NOT_HAD)
            continue;
        if (w->files)
            return garbled(w->deadline.error, "a FETCHED without the file of sample %ld", w->indices[one->position]);
        if ((code = copy_wanted(w, one->position)) < 0)
            return code;
        if (code == STOC_MISS && ++one->tries == FETCH_TRIES) {
            static const char why[] =
                "it was brought several times and has left the cache each time: another program clears it";
            if ((code = mark_failed(w, one->position, STOC_REMOTE_INTERNAL, why, sizeof why - 1)) < 0)
                return code;
        }
    }
    return 0;
}

/* Gives a connection back after a request with this result. BROKEN: ask again, on another one. breaks: how many have
 * ended in the call. */
static int64_t end_request(stoc_cache *c, struct link *l, int64_t result, int *breaks, struct deadline *p)
{
    if (result < 0)
        hang_up(l); /* which cancels the request */
    give_link(l);
    if (result != BROKEN)
        return result;
    drop_idle(c);
    if (++*breaks < FETCH_BREAKS)
        return BROKEN;
    return fail(p->error, STOC_ENOSERVER, 0,
                "the server of %s ended the connection %d times during this call; see its log, or start it: stocached "
                "serve -c config.yaml",
                c->served, FETCH_BREAKS);
}

/* The missing samples of the next request: as many as the server allows, and either those that were
 * gone, which are in front, or others, of which those that need not be stored are at the end. */
static size_t next_part(const struct wanted *w, const struct link *l)
{
    size_t most = MIN(w->missing_count, l->max_indices), m = 1;
    while (m < most && (w->missing[m].tries > 0) == (w->missing[0].tries > 0) &&
           is_unstored(w, m) == is_unstored(w, 0))
        m++;
    return m;
}

/* Fetches all missing samples, in requests as large as the server allows. */
static int fetch_missing(struct wanted *w)
{
    for (int breaks = 0;;) {
        size_t left = 0;
        for (size_t i = 0; i < w->missing_count; i++)
            if (w->hit[w->missing[i].position] == NOT_HAD)
                w->missing[left++] = w->missing[i];
        if (left < w->missing_count)
            breaks = 0;
        if ((w->missing_count = left) == 0) {
            no_error(w->deadline.error); /* its connection ended after it had sent all samples */
            return 0;
        }
        struct link *l;
        int code = take_link(w->cache, &l, &w->deadline);
        if (code < 0)
            return code;
        code = (int)end_request(w->cache, l, fetch_part(w, l, next_part(w, l)), &breaks, &w->deadline);
        if (code < 0 && code != BROKEN)
            return code;
    }
}

/* Lists the samples of the call that have this value in hit; those that need not be stored are at the end. */
static void list_missing(struct wanted *w, uint8_t value, size_t count)
{
    size_t first = 0, end = count;
    for (size_t k = 0; k < w->n; k++)
        if (w->hit[k] == value) {
            w->hit[k] = NOT_HAD;
            w->missing[is_left_out(w->cache, (uint64_t)w->indices[k]) ? --end : first++] = (struct missing){.position = k};
        }
    w->missing_count = count;
}

/* Samples that others load become failures with a code. */
static int fail_elsewhere(struct wanted *w, int remote, const char *text)
{
    for (size_t k = 0; k < w->n; k++)
        if (w->hit[k] == LOADED_ELSEWHERE) {
            int code = mark_failed(w, k, remote, text, strlen(text));
            if (code < 0)
                return code;
        }
    return 0;
}

/* As fetch_missing. Waits for samples that others load, unless the caller has some to load itself: others may wait for
 * these. */
static int fetch_or_wait(struct wanted *w)
{
    uint64_t end = now_ns() + LOOK_FOR_NS;
    for (uint64_t pause = FIRST_LOOK_NS;; pause = MIN(pause + pause / 2, LONGEST_LOOK_NS)) {
        int code = fetch_missing(w);
        if (code < 0 || w->elsewhere == 0)
            return code;
        if (w->to_load)
            return fail_elsewhere(w, STOC_REMOTE_LOADING, "another program or machine loads it; ask again");
        /* A server may take a pause of the longest kind for its answer. */
        if (now_ns() + 2 * LONGEST_LOOK_NS >= w->deadline.at)
            return fail_elsewhere(w, STOC_REMOTE_LOADING, "another program or machine still loads it; ask again");
        if (now_ns() >= end)
            return fail_elsewhere(w, STOC_REMOTE_LOAD, "another program has not loaded it in a minute; load it yourself");
        code = wait_for(-1, 0, MIN(now_ns() + pause, w->deadline.at), &w->deadline);
        if (code != STOC_ETIMEOUT)
            return code;
        no_error(w->deadline.error);
        list_missing(w, LOADED_ELSEWHERE, w->elsewhere);
        w->elsewhere = 0;
    }
}

static int by_position(const void *a, const void *b)
{
    uint64_t left = ((const struct stoc_failure *)a)->position, right = ((const struct stoc_failure *)b)->position;
    return left < right ? -1 : left > right;
}

/* Fetches the samples that hit does not have. Returns how many samples the call got, or an
 * error. */
static int64_t finish_fetch(struct wanted *w, struct stoc_fetch_options *options)
{
    int64_t had = 0;
    int code = 0;
    for (size_t k = 0; k < w->n; k++)
        w->missing_count += w->hit[k] == NOT_HAD;
    if (w->missing_count) {
        w->missing = calloc(w->missing_count, sizeof *w->missing);
        if (!w->missing)
            code = no_memory(w->deadline.error, w->missing_count * sizeof *w->missing);
        if (code == 0) {
            list_missing(w, NOT_HAD, w->missing_count);
            code = fetch_or_wait(w);
        }
        free(w->missing);
    }
    for (size_t k = 0; k < w->n; k++) {
        w->hit[k] = w->hit[k] == HAD;
        had += w->hit[k];
    }
    if (code == 0 && w->failed) {
        qsort(w->failures, w->failed, sizeof *w->failures, by_position);
        fail(w->deadline.error, STOC_EREMOTE, 0, "%zu of %zu samples could not be had; the first is %ld: %.400s",
             w->failed, w->n, w->failures[0].index, w->failures[0].message);
    }
    if (code == 0 && options) {
        options->failed = w->failed;
        options->failures = w->failures;
    } else {
        free(w->failures);
    }
    return code < 0 ? code : had;
}

static const struct stoc_fetch_options default_fetch = {.struct_bytes = sizeof default_fetch};

/* Checks the arguments that both calls share, and clears the results in options. */
static int begin_fetch(stoc_cache *c, const int64_t *indices, size_t n, struct stoc_fetch_options *options,
                       struct stoc_error *error)
{
    no_error(error);
    if (!c)
        return fail(error, STOC_ECLOSED, 0, "the cache is closed");
    int code = check_fetch_options(options, error);
    if (code < 0)
        return code;
    if (options) {
        options->failed = 0;
        options->failures = NULL;
        if ((options->flags & ~(STOC_FETCH_UNCOUNTED | STOC_FETCH_LOADS | STOC_FETCH_FILES)) || options->reserved ||
            ((options->flags & STOC_FETCH_LOADS) && (options->flags & STOC_FETCH_FILES)))
            return fail(error, STOC_EINVAL, 0, "flags: %#x and reserved: %u; unknown ones must be 0", options->flags,
                        options->reserved);
    }
    code = check_indices(c, indices, n);
    if (code == STOC_EINDEX)
        for (size_t k = 0; k < n; k++)
            if ((uint64_t)indices[k] >= c->samples)
                return fail(error, code, 0, "index %ld at position %zu is not in 0..%lu", indices[k], k,
                            c->samples - 1);
    return code < 0 ? fail(error, code, 0, "indices: NULL, but n is %zu", n) : 0;
}

int64_t stoc_fetch(stoc_cache *c, const int64_t *indices, size_t n, void *dst, size_t row_stride, uint8_t *hit,
                   struct stoc_fetch_options *options, struct stoc_error *error)
{
    const struct stoc_fetch_options *o = options ? options : &default_fetch;
    int code = begin_fetch(c, indices, n, options, error);
    if (code < 0)
        return code;
    if (c->variable || (o->flags & STOC_FETCH_FILES))
        return fail(error, STOC_ESCHEMA, 0, "%s differ in size; use stoc_fetch_each",
                    c->variable ? "samples of this cache" : "files");
    if (n && !dst)
        return fail(error, STOC_EINVAL, 0, "dst: NULL");
    if (row_stride < c->sample_bytes)
        return fail(error, STOC_ESCHEMA, 0, "row_stride: %zu is less than the %lu bytes of a sample", row_stride,
                    c->sample_bytes);
    uint8_t *own = hit ? NULL : calloc(MAX(n, 1), 1);
    if (!hit && !own)
        return no_memory(error, n);
    struct wanted w = {.cache = c, .indices = indices, .n = n, .dst = dst, .stride = row_stride,
                       .hit = hit ? hit : own, .loads = (o->flags & STOC_FETCH_LOADS) != 0,
                       .deadline = deadline_of_options(o, error)};
    int64_t had = 0;
    if (!(o->flags & STOC_FETCH_UNCOUNTED)) {
        had = stoc_gather(c, indices, n, -1, dst, row_stride, w.hit, o->threads);
    } else {
        for (size_t k = 0; k < n && had >= 0; k++) {
            code = w.hit[k] ? STOC_HIT : copy_wanted(&w, k); /* rows that the caller has stay unchanged */
            w.hit[k] = code == STOC_HIT ? HAD : NOT_HAD;
            had = code < 0 ? code : had + code;
        }
    }
    if (had < 0)
        fail(error, (int)had, 0, "%s", stoc_strerror((int)had));
    else if ((size_t)had < n)
        had = finish_fetch(&w, options);
    free(own);
    return had;
}

int64_t stoc_fetch_each(stoc_cache *c, const int64_t *indices, size_t n, void **data, uint64_t *lengths,
                        struct stoc_fetch_options *options, struct stoc_error *error)
{
    const struct stoc_fetch_options *o = options ? options : &default_fetch;
    int code = begin_fetch(c, indices, n, options, error);
    if (code < 0)
        return code;
    if (n && (!data || !lengths))
        return fail(error, STOC_EINVAL, 0, "%s: NULL", data ? "lengths" : "data");
    for (size_t k = 0; k < n; k++) {
        data[k] = NULL;
        lengths[k] = 0;
    }
    uint8_t *hit = calloc(MAX(n, 1), 1);
    if (!hit)
        return no_memory(error, n);
    struct wanted w = {.cache = c, .indices = indices, .n = n, .data = data, .lengths = lengths, .hit = hit,
                       .loads = (o->flags & STOC_FETCH_LOADS) != 0, .files = (o->flags & STOC_FETCH_FILES) != 0,
                       .deadline = deadline_of_options(o, error)};
    int64_t had = 0;
    for (size_t k = 0; k < n && had >= 0 && !w.files; k++)
        had = (code = copy_wanted(&w, k)) < 0 ? code : had + code;
    if (had < 0) {
        if (code != STOC_EMEMORY)
            fail(error, code, 0, "%s", stoc_strerror(code));
    } else {
        if (!(o->flags & (STOC_FETCH_UNCOUNTED | STOC_FETCH_FILES))) {
            count(c, STOC_COUNTER_HITS, (uint64_t)had);
            count(c, STOC_COUNTER_MISSES, n - (uint64_t)had);
        }
        if ((size_t)had < n)
            had = finish_fetch(&w, options);
    }
    if (had < 0)
        stoc_fetch_end(NULL, data, n);
    free(hit);
    return had;
}

void stoc_fetch_end(struct stoc_fetch_options *options, void **data, size_t n)
{
    if (options) {
        free(options->failures);
        options->failures = NULL;
        options->failed = 0;
    }
    for (size_t k = 0; data && k < n; k++) {
        free(data[k]);
        data[k] = NULL;
    }
}

/* Sends one PREFETCH. Returns how many samples the server queued, or an error. */
static int64_t prefetch_part(struct link *l, const int64_t *indices, size_t m, struct deadline *p)
{
    int code = send_request(l, FRAME_PREFETCH, 0, indices, NULL, m, p);
    return code < 0 ? code : receive_number(l, FRAME_PREFETCHED, "PREFETCH", p);
}

static int64_t prefetch_all(stoc_cache *c, const int64_t *indices, size_t n, struct deadline p, struct stoc_error *error)
{
    int code;
    int64_t queued = 0;
    for (int breaks = 0; n > 0;) {
        struct link *l;
        if ((code = take_link(c, &l, &p)) < 0)
            return code;
        size_t m = MIN(n, l->max_indices);
        int64_t got = end_request(c, l, prefetch_part(l, indices, m, &p), &breaks, &p);
        if (got == BROKEN)
            continue;
        if (got < 0)
            return got;
        no_error(error);
        queued += got;
        indices += m;
        n -= m;
    }
    return queued;
}

int64_t stoc_prefetch(stoc_cache *c, const int64_t *indices, size_t n, struct stoc_fetch_options *options,
                      struct stoc_error *error)
{
    int code = begin_fetch(c, indices, n, options, error);
    if (code < 0)
        return code;
    struct deadline p = deadline_of_options(options, error);
    if (!atomic_load(&c->keeps))
        return prefetch_all(c, indices, n, p, error);
    int64_t *kept = malloc(MAX(n, 1) * sizeof *kept);
    size_t m = 0;
    if (!kept)
        return no_memory(error, n * sizeof *kept);
    for (size_t k = 0; k < n; k++)
        if (!is_left_out(c, (uint64_t)indices[k]))
            kept[m++] = indices[k];
    int64_t queued = prefetch_all(c, kept, m, p, error);
    free(kept);
    return queued;
}

/* Flags of OFFER. */
enum { OFFER_FAILED = 1, OFFER_DAMAGED = 2 };

/* Sends one OFFER. Returns whether a tier takes the sample, or an error. */
static int offer_on(struct link *l, int64_t index, uint32_t flags, const struct iovec *parts, int count, size_t length,
                    struct deadline *p)
{
    unsigned char head[FRAME_BYTES + 16];
    put_header(head, 16 + length, FRAME_OFFER, ++l->request);
    put32(head, FRAME_BYTES, l->cache);
    put32(head, FRAME_BYTES + 4, flags);
    put64(head, FRAME_BYTES + 8, (uint64_t)index);
    int code = send_all(l, head, sizeof head, p);
    for (int k = 0; k < count && code == 0; k++)
        code = send_all(l, parts[k].iov_base, parts[k].iov_len, p);
    int64_t taken = code < 0 ? code : receive_number(l, FRAME_OFFERED, "OFFER", p);
    return taken < 0 ? (int)taken : taken == 1;
}

/* Sends an OFFER on any connection. */
static int offer(stoc_cache *c, int64_t index, uint32_t flags, const struct iovec *parts, int count, size_t length,
                 unsigned timeout_ms, struct stoc_error *error)
{
    struct deadline p = deadline_of(timeout_ms, error);
    for (int breaks = 0;;) {
        struct link *l;
        int code = take_link(c, &l, &p);
        if (code < 0)
            return code;
        code = (int)end_request(c, l, offer_on(l, index, flags, parts, count, length, &p), &breaks, &p);
        if (code != BROKEN)
            return code;
    }
}

int stoc_offer(stoc_cache *c, int64_t index, const struct iovec *parts, int count, unsigned timeout_ms,
               struct stoc_error *error)
{
    size_t length = 0;
    no_error(error);
    if (!c)
        return fail(error, STOC_ECLOSED, 0, "the cache is closed");
    if (count < 0 || (count && !parts))
        return fail(error, STOC_EINVAL, 0, "parts: %s, with count %d", parts ? "set" : "NULL", count);
    if ((uint64_t)index >= c->samples)
        return fail(error, STOC_EINDEX, 0, "index %ld is not in 0..%lu", index, c->samples - 1);
    for (int k = 0; k < count; k++)
        length += parts[k].iov_len;
    if (count && (c->variable ? length > c->sample_bytes : length != c->sample_bytes))
        return fail(error, STOC_ESCHEMA, 0, "sample %ld has %zu bytes, those of the cache have %lu%s", index,
                    length, c->sample_bytes, c->variable ? " at most" : "");
    return offer(c, index, count ? 0 : OFFER_FAILED, parts, count, length, timeout_ms, error);
}

int stoc_offer_damaged(stoc_cache *c, int64_t index, const char *reason, unsigned timeout_ms, struct stoc_error *error)
{
    no_error(error);
    if (!c)
        return fail(error, STOC_ECLOSED, 0, "the cache is closed");
    if (!reason)
        return fail(error, STOC_EINVAL, 0, "reason: NULL");
    if ((uint64_t)index >= c->samples)
        return fail(error, STOC_EINDEX, 0, "index %ld is not in 0..%lu", index, c->samples - 1);
    struct iovec text = {.iov_base = (void *)(uintptr_t)reason, .iov_len = strnlen(reason, MAX_TEXT)};
    int code = offer(c, index, OFFER_DAMAGED, &text, 1, text.iov_len, timeout_ms, error);
    return code < 0 ? code : 0;
}

/*
 * reads.c - compares view, get and gather with bare copies of the same bytes in the same order.
 */
#include "bench.h"

#include <string.h>
#include <sys/mman.h>

struct reader {
    const struct size *size;
    stoc_cache *cache;
    const unsigned char *payload; /* of a cache in which sample i lies in slot i */
    int64_t *order;
    size_t at; /* in the order: runs read different samples if there are more than a run reads */
    uint64_t *table; /* two words a sample, as an index has them: of bare lookups */
    unsigned char *out;
    uint8_t *hit;
};

static void forward(void *context)
{
    struct reader *r = context;
    r->at = r->at + 2 * r->size->reads <= r->size->samples ? r->at + r->size->reads : 0;
}

static void run_view(void *context)
{
    struct reader *r = context;
    for (size_t done = 0; done < r->size->views;)
        for (size_t k = 0; k < r->size->samples && done < r->size->views; k++, done++) {
            const void *data;
            size_t length;
            if (stoc_view(r->cache, r->order[k], &data, &length) != STOC_HIT)
                DIE("sample %lld is not there", (long long)r->order[k]);
        }
}

static void run_view_offset(void *context)
{
    struct reader *r = context;
    for (size_t done = 0; done < r->size->views;)
        for (size_t k = 0; k < r->size->samples && done < r->size->views; k++, done++)
            if (stoc_view_offset(r->cache, r->order[k]) < 0)
                DIE("sample %lld is not there", (long long)r->order[k]);
}

static void run_look(void *context)
{
    struct reader *r = context;
    static _Alignas(128) uint64_t counter;
    for (size_t done = 0; done < r->size->views;)
        for (size_t k = 0; k < r->size->samples && done < r->size->views; k++, done++)
            if (loop_look(r->table, r->order[k], &counter) == 0)
                DIE("word %lld is 0", (long long)r->order[k]);
}

static void run_get(void *context)
{
    struct reader *r = context;
    for (size_t k = r->at; k < r->at + r->size->reads; k++) {
        size_t length;
        if (stoc_get(r->cache, r->order[k], r->out, r->size->bytes, &length) != STOC_HIT)
            DIE("sample %lld is not there", (long long)r->order[k]);
    }
}

static void run_memcpy(void *context)
{
    struct reader *r = context;
    for (size_t k = r->at; k < r->at + r->size->reads; k++)
        memcpy(r->out, r->payload + (size_t)r->order[k] * r->size->bytes, r->size->bytes);
}

static void gather(struct reader *r, unsigned threads)
{
    const struct size *z = r->size;
    for (size_t k = r->at; k + z->batch <= r->at + z->reads; k += z->batch)
        if (stoc_gather(r->cache, r->order + k, z->batch, -1, r->out, z->bytes, r->hit, threads) != (int64_t)z->batch)
            DIE("a sample of a batch is not there");
}

static void run_gather(void *context) { gather(context, 1); }
static void run_gather_2(void *context) { gather(context, 2); }

static void run_loop(void *context)
{
    struct reader *r = context;
    const struct size *z = r->size;
    for (size_t k = r->at; k + z->batch <= r->at + z->reads; k += z->batch)
        loop_gather(r->out, r->payload, r->order + k, z->batch, z->bytes);
}

static void run_loop_2(void *context)
{
    struct reader *r = context;
    const struct size *z = r->size;
    for (size_t k = r->at; k + z->batch <= r->at + z->reads; k += z->batch)
        loop_gather_2(r->out, r->payload, r->order + k, z->batch, z->bytes);
}

void reads(const struct size *z, const char *view_case, int only_views)
{
    stoc_cache *cache = create_cache("reads", z, 0, 0);
    struct data data = make_data(z->bytes);
    for (size_t i = 0; i < z->samples; i++)
        CHECK(stoc_set(cache, (int64_t)i, data.samples[i % data.n], z->bytes, 0) == STOC_STORED);
    struct stoc_info info = {.struct_bytes = sizeof info};
    CHECK(stoc_info(cache, &info) == 0 && info.slot_stride == z->bytes);
    struct reader r = {z, cache, info.payload, random_order(z->samples, 1), 0, NULL,
                       malloc(z->batch * z->bytes), malloc(z->batch)};
    size_t table_bytes = 2 * z->samples * sizeof *r.table;
    /* Shared: pages as an index has them, not huge ones. */
    r.table = mmap(NULL, table_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(r.table != MAP_FAILED && r.out && r.hit);
    memset(r.table, 1, table_bytes);
    /* sample i in slot i */
    CHECK(stoc_view_offset(cache, (int64_t)z->samples - 1) == (int64_t)((z->samples - 1) * z->bytes));
    memset(r.out, 1, z->batch * z->bytes);
    for (size_t at = 0; at < z->samples * z->bytes; at += 4096) /* map all pages */
        r.out[0] ^= r.payload[at];

    alternate(view_case, z,
              (struct subject[]){{"stoc_view", z->views, NULL, run_view, NULL, &r},
                                 {"stoc_view_offset", z->views, NULL, run_view_offset, NULL, &r},
                                 {"bare lookup, counted", z->views, NULL, run_look, NULL, &r}},
              3);
    if (only_views)
        goto end;
    alternate("c/get", z,
              (struct subject[]){{"stoc_get", z->reads, forward, run_get, NULL, &r},
                                 {"memcpy", z->reads, forward, run_memcpy, NULL, &r}},
              2);
    alternate("c/gather", z,
              (struct subject[]){{"gather", z->reads, forward, run_gather, NULL, &r},
                                 {"memcpy loop", z->reads, forward, run_loop, NULL, &r},
                                 {"gather 2 threads", z->reads, forward, run_gather_2, NULL, &r},
                                 {"memcpy loop 2 threads", z->reads, forward, run_loop_2, NULL, &r}},
              4);
end:
    remove_cache(cache, "reads");
    for (size_t k = 0; k < data.n; k++)
        free(data.samples[k]);
    munmap(r.table, table_bytes);
    free(r.order);
    free(r.out);
    free(r.hit);
}

/*
 * lifecycle.c - creating a cache of 1 GiB with room for images, and attaching to one of very many samples.
 */
#include "bench.h"

static stoc_cache *cache;

static void run_create(void *context)
{
    (void)context;
    struct stoc_error error = {0};
    const uint64_t gib = 1 << 30;
    struct stoc_options options = {.struct_bytes = sizeof options, .samples = gib / 150528,
                                   .limit_bytes = gib, .sample_bytes = 150528, .directory = directory};
    if (stoc_create("create", &options, &cache, &error) < 0)
        DIE("create: %s", error.message);
}

static void drop(void *context)
{
    (void)context;
    remove_cache(cache, "create");
}

void create(void)
{
    alternate("c/create", NULL, (struct subject[]){{"stoc_create", 1, NULL, run_create, drop, NULL}}, 1);
}

static void run_open(void *context)
{
    struct stoc_error error = {0};
    if (stoc_open(context, 0, NULL, &cache, &error) < 0)
        DIE("open: %s", error.message);
    CHECK(stoc_view_offset(cache, 0) == -1); /* a miss; work that is left to the first use counts too */
}

static void drop_handle(void *context)
{
    (void)context;
    stoc_close(cache);
}

void attach(const char *path)
{
    alternate("c/attach", NULL,
              (struct subject[]){{"stoc_open", 1, NULL, run_open, drop_handle, (void *)(uintptr_t)path}}, 1);
}

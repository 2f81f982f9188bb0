/*
 * stores.c - compares set, checksum included, with a bare pwrite of the same bytes at the same offsets
 * of a tmpfs file of the same size. Every run has a new cache and a new file, because a page is new
 * only once, and a reserved page is unwritten only once.
 */
#define _GNU_SOURCE
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

struct writer {
    const struct size *size;
    struct data data;
    int reserve;
    stoc_cache *cache;
    int fd;
};

static void make_cache(void *context)
{
    struct writer *w = context;
    w->cache = create_cache("store", w->size, w->size->sets, w->reserve);
}

static void run_set(void *context)
{
    struct writer *w = context;
    for (size_t k = 0; k < w->size->sets; k++)
        CHECK(stoc_set(w->cache, (int64_t)k, w->data.samples[k % w->data.n], w->size->bytes, 0) == STOC_STORED);
}

static void drop_cache(void *context)
{
    struct writer *w = context;
    remove_cache(w->cache, "store");
}

static void make_file(void *context)
{
    struct writer *w = context;
    w->fd = open(directory, O_TMPFILE | O_RDWR, 0600);
    off_t size = (off_t)(w->size->sets * w->size->bytes), step = 64 << 20;
    CHECK(w->fd >= 0 && ftruncate(w->fd, size) == 0);
    for (off_t at = 0; w->reserve && at < size; at += step)
        while (fallocate(w->fd, 0, at, size - at < step ? size - at : step) != 0)
            CHECK(errno == EINTR);
}

static void run_pwrite(void *context)
{
    struct writer *w = context;
    for (size_t k = 0; k < w->size->sets; k++)
        CHECK(pwrite(w->fd, w->data.samples[k % w->data.n], w->size->bytes, (off_t)(k * w->size->bytes)) ==
              (ssize_t)w->size->bytes);
}

static void drop_file(void *context)
{
    struct writer *w = context;
    CHECK(close(w->fd) == 0);
}

void stores(const struct size *z)
{
    struct writer w = {.size = z, .data = make_data(z->bytes)};
    const struct subject subjects[] = {{"set", z->sets, make_cache, run_set, drop_cache, &w},
                                       {"pwrite", z->sets, make_file, run_pwrite, drop_file, &w}};
    alternate("c/set-new", z, subjects, 2);
    w.reserve = 1;
    alternate("c/set-reserved", z, subjects, 2);
    for (size_t k = 0; k < w.data.n; k++)
        free(w.data.samples[k]);
}

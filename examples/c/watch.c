/*
 * watch.c - prints the numbers of a cache once a second. It attaches read-only, so the cache does
 * not count it and no client notices it.
 *
 *     cc watch.c $(pkg-config --cflags --libs stocached) -o watch
 *     ./watch NAME-OR-PATH [seconds]
 *     ./watch --self-test
 */
#include "stocached.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int print(stoc_cache *cache, const struct stoc_stats *before, struct stoc_stats *now)
{
    struct stoc_info info = {.struct_bytes = sizeof info};
    now->struct_bytes = sizeof *now;
    if (stoc_info(cache, &info) != 0 || stoc_stats(cache, now) != 0)
        return 1;
    uint64_t hits = now->hits - before->hits, asked = hits + now->misses - before->misses;
    printf("%s: %llu of %llu samples cached (%.1f %%), %llu asked for, %.1f %% of them hits, %llu clients\n",
           info.name[0] ? info.name : "(no name)", (unsigned long long)now->ready, (unsigned long long)info.samples,
           100.0 * (double)now->ready / (double)info.samples, (unsigned long long)asked,
           asked ? 100.0 * (double)hits / (double)asked : 0.0, (unsigned long long)now->clients_live);
    return 0;
}

/* Reads a cache with 3 samples, 1 hit and 1 miss through a second, read-only handle. */
static int self_test(void)
{
    struct stoc_options options = {.struct_bytes = sizeof options, .samples = 12, .sample_bytes = 5};
    struct stoc_info info = {.struct_bytes = sizeof info};
    struct stoc_stats none = {0}, now;
    char bytes[5];
    stoc_cache *cache, *reader;
    if (stoc_create(NULL, &options, &cache, NULL) != 0 || stoc_info(cache, &info) != 0 ||
        stoc_open_fd(info.fd, STOC_OPEN_READ_ONLY, info.uuid, &reader, NULL) != 0)
        return 1;
    for (int i = 0; i < 3; i++)
        if (stoc_set(cache, i, "12345", 5, 0) != STOC_STORED)
            return 1;
    stoc_get(cache, 1, bytes, sizeof bytes, NULL);
    stoc_get(cache, 9, bytes, sizeof bytes, NULL);
    int bad = print(reader, &none, &now) || now.ready != 3 || now.hits != 1 || now.misses != 1 || now.clients_live != 1;
    stoc_close(reader);
    stoc_close(cache);
    return bad;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--self-test") == 0)
        return self_test();
    if (argc < 2) {
        fprintf(stderr, "usage: %s NAME-OR-PATH [seconds]\n", argv[0]);
        return 2;
    }
    struct stoc_error error;
    struct stoc_stats before = {0}, now;
    stoc_cache *cache;
    if (stoc_open(argv[1], STOC_OPEN_READ_ONLY, NULL, &cache, &error) != 0) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    for (int seconds = argc > 2 ? atoi(argv[2]) : 1; seconds > 0; seconds--) {
        if (print(cache, &before, &now) != 0)
            return 1;
        before = now;
        if (seconds > 1)
            sleep(1);
    }
    stoc_close(cache);
    return 0;
}

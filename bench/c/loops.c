#include "loops.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

void loop_gather(void *dst, const void *rows, const int64_t *indices, size_t n, size_t bytes)
{
    for (size_t k = 0; k < n; k++)
        memcpy((char *)dst + k * bytes, (const char *)rows + (size_t)indices[k] * bytes, bytes);
}

struct half {
    void *dst;
    const void *rows;
    const int64_t *indices;
    size_t n, bytes;
};

static void *gather_half(void *context)
{
    const struct half *h = context;
    loop_gather(h->dst, h->rows, h->indices, h->n, h->bytes);
    return NULL;
}

void loop_gather_2(void *dst, const void *rows, const int64_t *indices, size_t n, size_t bytes)
{
    size_t first = n / 2;
    struct half other = {(char *)dst + first * bytes, rows, indices + first, n - first, bytes};
    pthread_t thread;
    if (pthread_create(&thread, NULL, gather_half, &other) != 0) {
        loop_gather(dst, rows, indices, n, bytes);
        return;
    }
    loop_gather(dst, rows, indices, first, bytes);
    pthread_join(thread, NULL);
}

void loop_work(int64_t nanoseconds)
{
    struct timespec t;
    int64_t end = 0;
    do {
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        int64_t now = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
        if (!end)
            end = now + nanoseconds;
        nanoseconds = end - now;
    } while (nanoseconds > 0);
}

/* For the tests of source/decode, and for bench/measure:
 *
 * pixels FILE WIDTH HEIGHT FIT LAYOUT             writes what stoc_image_decode makes of a file.
 * pixels FILE WIDTH HEIGHT FIT LAYOUT THREADS N   decodes it N times on so many threads. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "stocached_image.h"

static char file[1 << 20];
static size_t bytes;
static struct stoc_image_decode how;
static atomic_int left, failed;

static void *decode(void *to)
{
    size_t n = (size_t)3 * how.width * how.height;
    uint8_t *made = malloc(n);
    stoc_image_worker *worker = stoc_image_worker_new();
    while (atomic_fetch_sub(&left, 1) > 0)
        if (!made || stoc_image_decode(worker, file, bytes, &how, made, n) ||
            (to && fwrite(made, 1, n, to) != n))
            atomic_store(&failed, 1);
    stoc_image_worker_free(worker);
    free(made);
    return NULL;
}

int main(int argc, char **argv)
{
    FILE *from = argc == 6 || argc == 8 ? fopen(argv[1], "rb") : NULL;
    int threads = argc == 8 ? atoi(argv[6]) : 1;
    pthread_t all[64];
    if (!from || threads > 64)
        return 2;
    bytes = fread(file, 1, sizeof file, from);
    how = (struct stoc_image_decode){.width = (uint32_t)atoi(argv[2]), .height = (uint32_t)atoi(argv[3]),
                                     .fit = (uint8_t)atoi(argv[4]), .layout = (uint8_t)atoi(argv[5])};
    left = argc == 8 ? atoi(argv[7]) : 1;
    for (int k = 0; k < threads; k++)
        if (pthread_create(&all[k], NULL, decode, argc == 8 ? NULL : stdout))
            return 1;
    for (int k = 0; k < threads; k++)
        pthread_join(all[k], NULL);
    return failed;
}

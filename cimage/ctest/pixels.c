/* For the tests of source/decode, and for bench/measure:
 *
 * pixels FILE WIDTH HEIGHT FIT LAYOUT               writes what stoc_image_decode makes of a file.
 * pixels FILE WIDTH HEIGHT FIT LAYOUT THREADS N     decodes it N times on so many threads.
 * pixels LIST WIDTH HEIGHT FIT LAYOUT THREADS N TO  reads N files, whose names are the lines of LIST, decodes them, and
 *                                                   writes their pixels to the file TO, one after the other. TO "":
 *                                                   writes nothing. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "stocached_image.h"

enum { MOST = 1 << 20 }; /* bytes of a file */

static char file[MOST], **names;
static size_t bytes;
static struct stoc_image_decode how;
static atomic_int next, failed;
static int count = 1, to = -1;

static size_t read_file(const char *name, char *into)
{
    int from = open(name, O_RDONLY | O_CLOEXEC);
    ssize_t n = read(from, into, MOST);
    close(from);
    return n < 0 ? 0 : (size_t)n;
}

static void *decode(void *out)
{
    size_t n = (size_t)3 * how.width * how.height;
    uint8_t *made = malloc(n);
    char *own = malloc(MOST);
    stoc_image_worker *worker = stoc_image_worker_new();
    for (int k = atomic_fetch_add(&next, 1); k < count; k = atomic_fetch_add(&next, 1)) {
        size_t size = names && own ? read_file(names[k], own) : bytes;
        if (!made || !own || stoc_image_decode(worker, names ? own : file, size, &how, made, n) ||
            (out && fwrite(made, 1, n, out) != n) ||
            (to >= 0 && pwrite(to, made, n, (off_t)(n * (size_t)k)) != (ssize_t)n))
            atomic_store(&failed, 1);
    }
    stoc_image_worker_free(worker);
    free(made);
    free(own);
    return NULL;
}

/* Reads the names of the files. */
static int read_list(FILE *from)
{
    names = calloc((size_t)count, sizeof *names);
    for (int k = 0; names && k < count; k++) {
        size_t size = 0;
        ssize_t n = getline(&names[k], &size, from);
        if (n < 2)
            return 0;
        names[k][n - 1] = 0;
    }
    return names != NULL;
}

int main(int argc, char **argv)
{
    FILE *from = argc == 6 || argc == 8 || argc == 9 ? fopen(argv[1], "rb") : NULL;
    int threads = argc > 6 ? atoi(argv[6]) : 1;
    pthread_t all[64];
    if (!from || threads > 64)
        return 2;
    count = argc > 6 ? atoi(argv[7]) : 1;
    if (argc < 9)
        bytes = fread(file, 1, sizeof file, from);
    else if (!read_list(from) || (*argv[8] && (to = open(argv[8], O_RDWR | O_CREAT | O_CLOEXEC, 0600)) < 0))
        return 2;
    how = (struct stoc_image_decode){.width = (uint32_t)atoi(argv[2]), .height = (uint32_t)atoi(argv[3]),
                                     .fit = (uint8_t)atoi(argv[4]), .layout = (uint8_t)atoi(argv[5])};
    for (int k = 0; k < threads; k++)
        if (pthread_create(&all[k], NULL, decode, argc > 6 ? NULL : stdout))
            return 1;
    for (int k = 0; k < threads; k++)
        pthread_join(all[k], NULL);
    return failed;
}

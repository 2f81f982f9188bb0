/* disk.c - hits of a disk cache beside bare preads and checksums of the same file: disk FOLDER [runs] [cold].
 *
 *     make -C cclient && cc -O2 -std=gnu11 -Icclient -o build/c/bench-disk bench/c/programs/disk.c -Lbuild -lstocached
 *     LD_LIBRARY_PATH=build build/c/bench-disk FOLDER
 *
 * 4,000 samples of 110 KiB in random orders, all of them once a run. Runs alternate. */
#define _GNU_SOURCE 1
#include "stocached.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SAMPLES = 4000, BYTES = 110 * 1024, MOST_RUNS = 99 };

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    return values[n / 2];
}

int main(int argc, char **argv)
{
    static unsigned char sample[BYTES];
    static int64_t order[SAMPLES];
    static double took[2][MOST_RUNS], cpu[2][MOST_RUNS], ratio[MOST_RUNS];
    int runs = argc > 2 ? atoi(argv[2]) : 9, cold = argc > 3;
    char path[500];
    struct stoc_options o = {.struct_bytes = sizeof o, .samples = SAMPLES, .sample_bytes = BYTES, .fingerprint = "bench",
                             .limit_bytes = (uint64_t)SAMPLES * BYTES + (64 << 20)};
    struct stoc_info info = {.struct_bytes = sizeof info};
    struct stoc_error error;
    stoc_cache *disk;
    if (argc < 2 || runs < 1 || runs > MOST_RUNS)
        return fprintf(stderr, "disk FOLDER [runs, 1 to %d] [cold]\n", MOST_RUNS), 2;
    snprintf(path, sizeof path, "%s/bench-disk.tier", argv[1]);
    if (stoc_disk_open(path, &o, &disk, &error) < 0 || stoc_info(disk, &info) < 0)
        return fprintf(stderr, "%s\n", error.message), 1;
    for (int64_t i = 0; i < SAMPLES; i++) { /* in order: sample i has slot i */
        memset(sample, (int)i, BYTES);
        if (stoc_set(disk, i, sample, BYTES, 0) != STOC_STORED)
            return fprintf(stderr, "sample %lld was not stored\n", (long long)i), 1;
        order[i] = i;
    }
    int fd = open(path, O_RDONLY);
    fsync(fd);
    uint32_t sum = 0;
    for (int run = 0; run < 2 * runs; run++) {
        int bare = (run + run / 2) % 2; /* who is first changes */
        for (int k = SAMPLES - 1; k > 0; k--) {
            int other = rand() % (k + 1);
            int64_t i = order[k];
            order[k] = order[other], order[other] = i;
        }
        if (cold)
            posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        double began = now(CLOCK_MONOTONIC), used = now(CLOCK_PROCESS_CPUTIME_ID);
        for (int k = 0; k < SAMPLES; k++) {
            if (!bare) {
                if (stoc_get(disk, order[k], sample, BYTES, NULL) != STOC_HIT)
                    return fprintf(stderr, "a miss\n"), 1;
            } else {
                off_t at = (off_t)(info.payload_offset + (uint64_t)order[k] * info.slot_stride);
                if (pread(fd, sample, BYTES, at) != BYTES)
                    return perror("pread"), 1;
                sum += stoc_crc32c(0, sample, BYTES);
            }
        }
        took[bare][run / 2] = now(CLOCK_MONOTONIC) - began;
        cpu[bare][run / 2] = now(CLOCK_PROCESS_CPUTIME_ID) - used;
    }
    for (int k = 0; k < runs; k++)
        ratio[k] = took[0][k] / took[1][k];
    double mega = (double)SAMPLES * BYTES / 1e6, each = 1e6 / SAMPLES, middle = median(ratio, runs);
    printf("| C | %s | %d | %.0f | %.0f | %.1f | %.1f | %.3f (%.3f to %.3f) |\n", cold ? "cold" : "warm", runs,
           mega / median(took[1], runs), mega / median(took[0], runs), median(cpu[1], runs) * each,
           median(cpu[0], runs) * each, middle, ratio[0], ratio[runs - 1]);
    close(fd);
    stoc_close(disk);
    unlink(path);
    return sum == 1; /* the compiler must compute it */
}

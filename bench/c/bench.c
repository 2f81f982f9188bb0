/*
 * bench.c - measures the C library:
 *
 *   bench samples RUNS FOLDER [quick]
 *   bench views RUNS FOLDER [quick]      in the program that is linked statically
 *   bench lifecycle RUNS FOLDER HUGE
 *   bench orders RUNS FOLDER [quick]
 *   bench hits PATH CORE SEED            as a worker
 *
 * FOLDER is a folder on a tmpfs that only this run uses. HUGE is the path of a cache of very many
 * samples, to which the program attaches.
 */
#include "bench.h"

#include <string.h>

static const struct size full[] = {
    {"image", 150528, 4096, 2048, 1000000, 2048, 256},
    {"small", 3072, 1000000, 65536, 1000000, 65536, 256},
    {"large", 8 << 20, 64, 64, 1000000, 64, 8},
};
static const struct size quick[] = {
    {"image", 150528, 128, 128, 2000, 64, 32},
    {"small", 3072, 10000, 2000, 2000, 2000, 256},
    {"large", 8 << 20, 4, 4, 2000, 4, 2},
};

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "hits") == 0)
        return hits_worker(argv[2], atoi(argv[3]), strtoull(argv[4], NULL, 10));
    if (argc < 4)
        DIE("usage: bench samples|views|orders RUNS FOLDER [quick] | lifecycle RUNS FOLDER HUGE | hits PATH CORE SEED");
    runs = atoi(argv[2]);
    directory = argv[3];
    CHECK(runs >= 1);
    if (argc == 5 && strcmp(argv[1], "lifecycle") == 0) {
        create();
        attach(argv[4]);
        return 0;
    }
    if (strcmp(argv[1], "orders") == 0) {
        orders(argc > 4);
        return 0;
    }
    for (int k = 0; k < 3; k++) {
        const struct size *size = argc > 4 ? &quick[k] : &full[k];
        if (strcmp(argv[1], "views") == 0) {
            reads(size, "c/view-static", 1);
            continue;
        }
        reads(size, "c/view", 0);
        stores(size);
    }
    return 0;
}

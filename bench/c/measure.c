/* measure.c - what all C benchmarks use: runs in turn, caches, samples. */
#include "bench.h"

#include <sys/resource.h>
#include <time.h>

int runs;
const char *directory;

static double wall_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

struct usage {
    double wall, cpu, faults;
};

static struct usage usage_now(void)
{
    struct rusage u;
    CHECK(getrusage(RUSAGE_SELF, &u) == 0);
    double seconds = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec);
    double microseconds = (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
    return (struct usage){wall_now(), seconds + microseconds / 1e6, (double)u.ru_minflt};
}

static struct usage once(const struct subject *s)
{
    if (s->setup)
        s->setup(s->context);
    struct usage before = usage_now();
    s->run(s->context);
    struct usage after = usage_now();
    if (s->clean)
        s->clean(s->context);
    double n = (double)s->samples;
    return (struct usage){(after.wall - before.wall) / n, (after.cpu - before.cpu) / n,
                          (after.faults - before.faults) / n};
}

static void print_list(const char *name, const struct usage *all, size_t offset)
{
    printf(",\"%s\":[", name);
    for (int k = 0; k < runs; k++)
        printf("%s%.9g", k ? "," : "", *(const double *)((const char *)&all[k] + offset));
    printf("]");
}

void alternate(const char *name, const struct size *size, const struct subject *subjects, int n)
{
    static struct usage all[MAX_SUBJECTS][MAX_RUNS];
    CHECK(n <= MAX_SUBJECTS && runs <= MAX_RUNS);
    for (int round = -1; round < runs; round++)
        for (int k = 0; k < n; k++) {
            /* Every other round goes backwards, so that a drift of the machine affects all alike. */
            int which = round % 2 ? n - 1 - k : k;
            struct usage u = once(&subjects[which]);
            if (round >= 0)
                all[which][round] = u;
        }
    printf("{\"case\":\"%s\"", name);
    if (size)
        printf(",\"size\":\"%s\"", size->name);
    printf(",\"subjects\":[");
    for (int k = 0; k < n; k++) {
        printf("%s{\"name\":\"%s\",\"samples\":%zu", k ? "," : "", subjects[k].name, subjects[k].samples);
        print_list("value", all[k], offsetof(struct usage, wall));
        print_list("cpu", all[k], offsetof(struct usage, cpu));
        print_list("faults", all[k], offsetof(struct usage, faults));
        printf("}");
    }
    printf("]}\n");
    fflush(stdout);
}

stoc_cache *create_cache(const char *name, const struct size *size, size_t slots, int reserve)
{
    struct stoc_error error = {0};
    struct stoc_options options = {.struct_bytes = sizeof options, .samples = size->samples, .slots = slots,
                                   .sample_bytes = size->bytes, .reserve = reserve != 0, .directory = directory};
    stoc_cache *cache;
    if (stoc_create(name, &options, &cache, &error) < 0)
        DIE("create: %s", error.message);
    return cache;
}

void remove_cache(stoc_cache *cache, const char *name)
{
    char path[4096];
    struct stoc_error error = {0};
    snprintf(path, sizeof path, "%s/%s", directory, name);
    if (stoc_unlink(path, &error) < 0)
        DIE("unlink: %s", error.message);
    stoc_close(cache);
}

static uint64_t next_random(uint64_t *state) /* xorshift64* */
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717u;
}

struct data make_data(size_t bytes)
{
    struct data d = {.n = (4 << 20) / bytes};
    d.n = d.n < 1 ? 1 : d.n > 16 ? 16 : d.n;
    uint64_t state = 1;
    for (size_t k = 0; k < d.n; k++) {
        d.samples[k] = malloc(bytes);
        CHECK(d.samples[k]);
        for (size_t i = 0; i < bytes; i++)
            d.samples[k][i] = (unsigned char)(next_random(&state) >> 56);
    }
    return d;
}

int64_t *random_order(size_t n, uint64_t seed)
{
    int64_t *order = malloc(n * sizeof *order);
    CHECK(order);
    uint64_t state = seed * 2 + 1;
    for (size_t k = 0; k < n; k++) {
        size_t j = next_random(&state) % (k + 1);
        order[k] = order[j];
        order[j] = (int64_t)k;
    }
    return order;
}

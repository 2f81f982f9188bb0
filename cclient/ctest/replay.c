/*
 * replay.c - runs one schedule of internal/verify/model on the C library, and prints every word of
 * the segment after each move.
 *
 * internal/verify/model/replay_c_test.go builds and drives it, and compares the output. Compiled
 * together with the library, with -DSTOC_FAULT_POINTS. It reads lines from standard input:
 *
 *   cache <first-come|first-indices|fifo|clock|lru|lfu|cost|planned|arena|chains> <samples> <places> <records> <bytes of a place>
 *         <limit in bytes>                 (on one line)
 *   client <joined|late|reader>            clients in their order; the first operation of a late
 *                                          client is register
 *   thread <client> <operation> ...        threads in their order. An operation is register, clear,
 *   setup <operation> ...                  clear-now, recover, get:<sample>, or
 *                                          set|overwrite|abort:<sample>:<value>:<number of places>:<ns of its load>
 *   run <thread> <event>                   runs it to its next fault point, or to the end of its
 *                                          operation. If that is not the event, the program ends
 *   die <client>                           stops its threads for ever, and closes all its descriptors
 *
 * After setup, run and die it prints the event ("ready", "at <point>", "end <result>", "dead") and a
 * line of words in hexadecimal: seed, spread, phase, free_from (with chains that of the first group), arena_next,
 * clients_high, hand; word and meta of each sample; the checksum of each sample of an arena; the slot
 * table of a cache that has one; the reference bytes of the slots with clock, lru and lfu;
 * sample, intent and victim of each claim entry; the payload's bytes. One thread runs at a time.
 */
#define _GNU_SOURCE 1
#include "../stocached.h"
#include "../stocached_layout.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

void stoc_fault_set_hook(void (*hook)(const char *point));

enum { CLIENTS = 4, THREADS = 4, OPERATIONS = 8, DESCRIPTORS = 1024, TIMEOUT_S = 20 };

struct operation {
    char name[16];
    unsigned sample, value, places;
    uint64_t nanoseconds;
};

struct actor {
    int client, count, at_work; /* at_work: number of the current operation */
    bool started;
    struct operation operations[OPERATIONS];
    char event[64];
    sem_t resume;
    pthread_t thread;
};

static bool variable, chains, references;
static uint32_t policy;
static unsigned samples, places, records;
static size_t place_bytes;
static stoc_cache *clients[CLIENTS];
static bool readers[CLIENTS];
static int client_count, actor_count;
static struct actor actors[THREADS];
static signed char owner_of_fd[DESCRIPTORS]; /* client + 1; 0: not yet assigned, -1: the program's */
static int segment;                          /* our own descriptor */
static const unsigned char *map;             /* all of it */
static sem_t stopped;
static _Thread_local struct actor *self;

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
    fflush(stdout);
    _exit(1);
}

/* New descriptors belong to the client. */
static void claim_descriptors(int owner)
{
    for (int fd = 0; fd < DESCRIPTORS; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            owner_of_fd[fd] = 0;
        else if (owner_of_fd[fd] == 0)
            owner_of_fd[fd] = (signed char)owner;
}

static void stand(const char *event)
{
    snprintf(self->event, sizeof self->event, "%s", event);
    sem_post(&stopped);
    while (sem_wait(&self->resume) != 0)
        ;
}

static void at_point(const char *point)
{
    char event[64];
    if (!self)
        return;
    snprintf(event, sizeof event, "at %s", point);
    stand(event);
}

static const char *result_name(int result)
{
    static const char *const names[] = {"STORED", "EXISTS", "BUSY", "FULL", "OUT"};
    static char text[32];
    if (result >= 0 && result <= STOC_OUT)
        return names[result];
    snprintf(text, sizeof text, "error %d", result);
    return text;
}

/* NULL: all records are in use. */
static stoc_cache *join(void)
{
    struct stoc_error error;
    stoc_cache *c = NULL;
    int code = stoc_open_fd(segment, 0, NULL, &c, &error);
    if (code != 0 && code != STOC_ECLIENTS)
        fail("open: %s", error.message);
    return c;
}

/* Runs an operation. event gets its result. */
static void perform(int client, const struct operation *o, char event[64])
{
    stoc_cache *c = clients[readers[client] ? 0 : client];
    const char *result = "DONE";
    size_t length = o->places * place_bytes, got = 0;
    unsigned char *bytes = malloc(places * place_bytes);
    int code = 0;
    if (!bytes)
        fail("no memory");
    memset(bytes, (int)o->value, length);
    if (strcmp(o->name, "register") == 0) {
        if (!(clients[client] = join()))
            result = "ECLIENTS";
    } else if (strcmp(o->name, "set") == 0) {
        struct iovec part = {bytes, length};
        result = result_name(stoc_set_loaded(c, o->sample, &part, 1, 0, o->nanoseconds));
    } else if (strcmp(o->name, "overwrite") == 0) {
        result = result_name(stoc_set(c, o->sample, bytes, length, STOC_OVERWRITE));
    } else if (strcmp(o->name, "abort") == 0) {
        struct stoc_claim claim;
        result = result_name(code = stoc_claim(c, o->sample, length, 0, &claim));
        if (code == STOC_STORED)
            result = (code = stoc_abort(&claim)) == 0 ? "ABORTED" : result_name(code);
    } else if (strcmp(o->name, "get") == 0) {
        code = stoc_get(c, o->sample, bytes, places * place_bytes, &got);
        result = code == STOC_HIT ? "HIT" : code == STOC_MISS ? "MISS" : result_name(code);
        for (size_t k = 1; k < got && code == STOC_HIT; k++)
            if (bytes[k] != bytes[0])
                fail("get of sample %u: torn at byte %zu: %u after %u", o->sample, k, bytes[k], bytes[0]);
    } else if (strncmp(o->name, "clear", 5) == 0) {
        code = stoc_clear(c, strcmp(o->name, "clear") == 0 ? 60000 : 0);
        result = code == 0 ? "DONE" : code == STOC_ETIMEOUT ? "TIMEOUT" : result_name(code);
    } else if (strcmp(o->name, "recover") == 0) {
        int64_t claims = stoc_recover(c);
        if (claims < 0)
            result = result_name((int)claims);
    } else {
        fail("no operation %s", o->name);
    }
    snprintf(event, 64, "end %s", result);
    if (strcmp(result, "HIT") == 0)
        snprintf(event, 64, "end HIT %u", bytes[0]);
    free(bytes);
}

static void *act(void *argument)
{
    char event[64];
    self = argument;
    for (; self->at_work < self->count; self->at_work++) {
        perform(self->client, &self->operations[self->at_work], event);
        stand(event);
        if (strcmp(event, "end ECLIENTS") == 0)
            break;
    }
    return NULL;
}

static void run(struct actor *a)
{
    struct timespec until;
    if (!a->started) {
        a->started = true;
        if (pthread_create(&a->thread, NULL, act, a) != 0)
            fail("no thread");
    } else {
        sem_post(&a->resume);
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += TIMEOUT_S;
    if (sem_timedwait(&stopped, &until) != 0)
        fail("no fault point and no end within %d s", TIMEOUT_S);
    claim_descriptors(a->client + 1);
}

/* all threads stand still */
static uint64_t word_at(uint64_t offset) { return *(const uint64_t *)(const void *)(map + offset); }

static void tell(const char *event)
{
    uint64_t index = word_at(STOC_HEADER_INDEX_OFFSET), table = word_at(STOC_HEADER_SLOT_TABLE_OFFSET),
             payload = word_at(STOC_HEADER_PAYLOAD_OFFSET);
    printf("%s\n%" PRIx64 " %" PRIx64 " %" PRIx64 " %" PRIx64 " %" PRIx64 " %" PRIx64 " %" PRIx64, event,
           word_at(STOC_HEADER_UUID), word_at(STOC_SPREAD_OFFSET), word_at(STOC_PHASE_OFFSET),
           word_at(chains ? word_at(STOC_HEADER_GROUPS_OFFSET) : STOC_FREE_FROM_OFFSET),
           word_at(STOC_ARENA_NEXT_OFFSET), word_at(STOC_CLIENTS_HIGH_OFFSET),
           word_at(STOC_HAND_OFFSET));
    for (unsigned i = 0; i < samples; i++)
        printf(" %" PRIx64 " %" PRIx64, word_at(index + 16 * i), word_at(index + 16 * i + 8));
    for (unsigned i = 0; i < samples && variable; i++)
        printf(" %" PRIx64, word_at(word_at(STOC_HEADER_SUMS_OFFSET) + STOC_SUM_RECORD_BYTES * i));
    for (unsigned s = 0; s < places && (chains || !variable) && policy != STOC_POLICY_FIRST_INDICES; s++)
        printf(" %" PRIx64, word_at(table + 8 * s));
    for (unsigned s = 0; s < places && references; s++)
        printf(" %x", map[word_at(STOC_HEADER_REFERENCE_OFFSET) + s]);
    for (unsigned r = 0; r < records; r++)
        for (unsigned k = 0; k < STOC_CLAIMS_PER_CLIENT; k++) {
            uint64_t record = STOC_CLIENTS_OFFSET + STOC_CLIENT_RECORD_BYTES * (uint64_t)r,
                     claim = record + STOC_CLIENT_CLAIMS + STOC_CLAIM_BYTES * k;
            printf(" %" PRIx64 " %" PRIx64 " %" PRIx64, word_at(claim), word_at(claim + 8),
                   word_at(record + STOC_CLIENT_VICTIMS + 8 * k));
        }
    printf(" ");
    for (size_t k = 0; k < places * place_bytes; k++)
        printf("%02x", map[payload + k]);
    printf("\n");
}

static uint32_t policy_of(const char *kind)
{
    static const struct {
        const char *kind;
        uint32_t policy;
    } all[] = {{"first-indices", STOC_POLICY_FIRST_INDICES}, {"fifo", STOC_POLICY_FIFO}, {"chains", STOC_POLICY_FIFO},
               {"clock", STOC_POLICY_CLOCK},                 {"lru", STOC_POLICY_LRU},
               {"lfu", STOC_POLICY_LFU},                     {"cost", STOC_POLICY_COST},
               {"planned", STOC_POLICY_PLANNED}};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        if (strcmp(kind, all[k].kind) == 0)
            return all[k].policy;
    return STOC_POLICY_FIRST_COME;
}

static void create(uint64_t limit)
{
    struct stoc_options options = {.struct_bytes = sizeof options, .samples = samples, .client_records = records};
    struct stoc_error error;
    struct stoc_info info = {.struct_bytes = sizeof info};
    if (variable)
        options.variable = 1, options.limit_bytes = limit, options.slot_bytes = chains ? place_bytes : 0;
    else
        options.slots = places, options.sample_bytes = place_bytes;
    options.policy = policy;
    if (stoc_create(NULL, &options, &clients[0], &error) != 0 || stoc_info(clients[0], &info) != 0)
        fail("create: %s", error.message);
    claim_descriptors(1);
    segment = fcntl(info.fd, F_DUPFD_CLOEXEC, 0);
    claim_descriptors(-1);
    void *all = mmap(NULL, info.segment_bytes, PROT_READ, MAP_SHARED, segment, 0);
    if (all == MAP_FAILED)
        fail("cannot map the segment");
    map = all;
}

static struct operation parse(const char *text)
{
    struct operation o = {.places = 1};
    if (sscanf(text, "%15[^:]:%u:%u:%u:%" SCNu64, o.name, &o.sample, &o.value, &o.places, &o.nanoseconds) < 1)
        fail("no operation: %s", text);
    return o;
}

int main(void)
{
    static char line[4096];
    sem_init(&stopped, 0, 0);
    claim_descriptors(-1);
    while (fgets(line, sizeof line, stdin)) {
        char *rest = NULL, *verb = strtok_r(line, " \n", &rest), *word = strtok_r(NULL, " \n", &rest);
        if (!verb || !word)
            fail("a line without words");
        if (strcmp(verb, "cache") == 0) {
            unsigned long long limit;
            chains = strcmp(word, "chains") == 0, variable = chains || strcmp(word, "arena") == 0;
            policy = policy_of(word);
            references = policy == STOC_POLICY_CLOCK || policy == STOC_POLICY_LRU || policy == STOC_POLICY_LFU;
            if (sscanf(rest, "%u %u %u %zu %llu", &samples, &places, &records, &place_bytes, &limit) != 5)
                fail("cache: %s", rest);
            create(limit);
        } else if (strcmp(verb, "client") == 0) {
            if (client_count == CLIENTS)
                fail("too many clients");
            readers[client_count] = strcmp(word, "reader") == 0;
            if (client_count > 0 && strcmp(word, "joined") == 0) {
                clients[client_count] = join();
                claim_descriptors(client_count + 1);
            }
            client_count++;
        } else if (strcmp(verb, "thread") == 0) {
            if (actor_count == THREADS)
                fail("too many threads");
            struct actor *a = &actors[actor_count++];
            a->client = atoi(word);
            sem_init(&a->resume, 0, 0);
            while ((word = strtok_r(NULL, " \n", &rest)) && a->count < OPERATIONS)
                a->operations[a->count++] = parse(word);
        } else if (strcmp(verb, "setup") == 0) {
            for (; word && strcmp(word, "-") != 0; word = strtok_r(NULL, " \n", &rest)) {
                char event[64];
                struct operation o = parse(word);
                perform(0, &o, event);
            }
            stoc_fault_set_hook(at_point);
            tell("ready");
        } else if (strcmp(verb, "run") == 0) {
            struct actor *a = &actors[atoi(word)];
            rest[strcspn(rest, "\n")] = 0;
            run(a);
            tell(a->event);
            if (strcmp(a->event, rest) != 0)
                break;
        } else if (strcmp(verb, "die") == 0) {
            for (int fd = 0; fd < DESCRIPTORS; fd++)
                if (owner_of_fd[fd] == atoi(word) + 1) {
                    close(fd);
                    owner_of_fd[fd] = 0;
                }
            tell("dead");
        } else {
            fail("no line %s", verb);
        }
    }
    fflush(stdout);
    _exit(0); /* threads stand in the middle of operations */
}

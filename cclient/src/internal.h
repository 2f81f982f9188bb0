/*
 * internal.h - what the parts of stocached.c share: the handle and small helpers.
 */
#ifndef STOCACHED_INTERNAL_H
#define STOCACHED_INTERNAL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* F_OFD_SETLK, O_TMPFILE, fallocate, memfd seals */
#endif

#include "../stocached.h"
#include "../stocached_layout.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/types.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define STOC_PRODUCT_VERSION "0.1.0"

/* A word of the segment: 64 bits, aligned. All accesses are atomic and of full width. */
typedef _Atomic uint64_t stoc_word;

_Static_assert(sizeof(void *) == 8 && sizeof(size_t) == 8 && sizeof(off_t) == 8,
               "stocached needs a 64-bit system: segments are mapped whole");
_Static_assert(sizeof(stoc_word) == 8 && _Alignof(stoc_word) == 8, "a word of the segment is 8 aligned bytes");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_LONG_LOCK_FREE == 2,
               "words are shared between processes: locks inside atomics would not be");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the segment is little-endian");

/* Functions that parts share. stocached.c unites all parts, so they are static there. An editor
 * that opens one part alone sees functions of other files. */
#ifdef STOC_ONE_UNIT
#define INTERNAL static
#define INTERNAL_DATA static
#else
#define INTERNAL
#define INTERNAL_DATA extern
#endif

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

#define ROUND_UP(n, align) (((n) + (align) - 1) / (align) * (align))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

#define MIB (UINT64_C(1) << 20)

/* copies of a sample that changes during each copy; after that it is a miss */
#define MAX_COPIES 16
#define WAIT_NS (UINT64_C(60) * 1000000000) /* how long STOC_WAIT waits */
/* how long a claim tries to finish the clear of a dead client while live claims block it */
#define ADOPT_AT_CLAIM_NS UINT64_C(100000000)
#define ADOPT_AT_REGISTER_NS UINT64_C(1000000000) /* the same for a new client that got the dead client's number */
#define OWN_PATH_BYTES 512

/* Where the regions of a segment lie. It follows from the first seven members: geometry_of. */
struct geometry {
    uint64_t samples, slots, slot_stride, payload_bytes;
    uint32_t client_records, flags, policy;
    uint64_t index_offset, sums_offset, lengths_offset, slot_table_offset, reference_offset, groups_offset, payload_offset,
        segment_bytes;
};

/* A connection to a server. */
struct link {
    struct link *next;
    int fd;         /* -1: not connected */
    int descriptor; /* received over it and not yet used; -1: none */
    bool busy;      /* a call uses this link; fd, descriptor and busy change under handles_lock */
    bool no_number; /* a descriptor came, but this process had no free descriptor number */
    /* from the server: number of the cache on this connection, largest number of indices in a
     * request */
    uint32_t cache, max_indices;
    uint64_t request;            /* number of the last request */
    uint64_t announced;          /* number of the plan that it has announced; 0: none */
    size_t from, to;             /* received and not yet read: buffer[from..to) */
    unsigned char buffer[8192];
};

enum { MAX_THREADS = 64 }; /* threads of a batch, the caller's included */

struct helper {
    _Atomic uint32_t state;
    bool started; /* thread must be joined */
    struct thread_pool *pool;
    pthread_t thread;
};

/* Threads that help with batches of one handle. */
struct thread_pool {
    _Atomic uint32_t taken;   /* 1: a thread holds the pool, and all members below except the atomic ones */
    _Atomic uint32_t working; /* helpers that have not finished */
    void (*work)(void *context);
    void *context;
    struct helper helpers[MAX_THREADS - 1];
};

/* How a cache that evicts chooses a victim: protocol/policy.c. */
struct policy {
    uint32_t code;   /* code of the header */
    unsigned shift;  /* shift of the ticks of lru */
    uint64_t slots, seed;
};

/* A sample that waits for its write. */
struct waiting {
    struct waiting *next;
    int64_t index;
    uint64_t epoch; /* epoch of the cache: how often it was cleared before the put */
    uint64_t length, capacity;
    unsigned char data[];
};

/* Samples that one thread writes in the background: tasks/write_queue.c. */
struct write_queue {
    pthread_mutex_t lock; /* protects the members below but `posted` */
    struct waiting *first, **last;
    struct waiting *writing; /* what the thread writes now */
    struct waiting *spare;   /* memory for the next ones: its pages are there */
    uint64_t bytes, spare_bytes, limit; /* bytes of samples that wait, and of spare memory, with headers; the most of both */
    void (*write)(void *context, const struct waiting *w);
    void *context;
    pthread_t thread;
    bool started; /* the thread must be joined */
    bool running; /* it looks at the queue again */
    bool idle;    /* it sleeps on `posted` */
    bool leave;   /* it ends after its sample */
    _Atomic uint32_t posted;
};

/* The file of a segment on a disk, whose control part lies in memory: protocol/disk.c. */
struct disk {
    int fd;
    _Atomic int lock_fd; /* the description with the locks on the file; -1: none, as in a forked child */
    uint64_t index_offset, sums_offset; /* in the file */
    unsigned char header[STOC_HEADER_BYTES]; /* the file's when it was opened */
    unsigned char session[16];
    char control_path[OWN_PATH_BYTES];
    _Atomic bool left;          /* a forked child whose parent has left the file: it has no control part */
    _Atomic uint64_t out_until; /* as now_ns: until then the disk is left out; 0: it works */
    _Atomic uint64_t pause;     /* pause of the last time that it was left out */
    _Atomic bool tried;         /* one call tries it after a pause */
    _Atomic uint64_t back_at;   /* when it worked again */
    _Atomic uint64_t full_until;
    struct write_queue queue; /* queue of stoc_set_later */
};

/*
 * A handle: one lock description, one owner number, one client. Immutable after open, except the
 * atomic members. Those of one process are reset in a forked child (protocol/client.c).
 */
struct stoc_cache {
    /* what a hit reads, in two cache lines */
    stoc_word *index; /* two words a sample */
    const unsigned char *payload;
    uint64_t samples, slots, slot_stride, sample_bytes, payload_bytes;
    uint64_t view_slots; /* slots that views may show: all, or none in a cache that evicts */
    _Atomic(stoc_word *) counters; /* in our client record, or the sink if hits are not counted; NULL: register first */

    stoc_word *slot_table; /* NULL with first-indices, and in an arena without chains */
    stoc_word *groups;     /* groups of slots; NULL without chains */
    stoc_word *sums;       /* NULL unless variable-size */
    stoc_word *lengths;    /* lengths of samples that are lists; NULL: the cache has none */
    unsigned char *control;
    uint64_t control_bytes, segment_bytes, payload_offset, limit_bytes;
    int64_t created_ns;
    uint32_t client_records, flags, policy, place_shift, field_count, kind;
    uint64_t generation_mask;
    bool variable, read_only;
    const struct space *space; /* how samples lie in the payload */
    bool chains;         /* samples lie in chains of slots: variable, with a policy that evicts */
    bool evicts;         /* a set into a full cache may give the slot of another sample to its own */
    struct policy rule;  /* rule of a cache that evicts */
    _Atomic unsigned char *references; /* a byte a slot, which hits change; NULL: none, or read-only */
    unsigned last_state; /* states above it are corrupt */
    uint32_t (*crc)(uint32_t crc, const void *data, size_t length);
    int fd; /* data descriptor: pread, pwrite, fallocate and the maps */
    struct disk *disk; /* NULL: the payload lies in the same file, and is mapped */

    /* of this process: see fork_child */
    _Atomic int lock_fd;            /* the lock description; -1: none */
    _Atomic uint32_t owner;         /* record + 1; 0: not registered */
    _Atomic uint32_t fork_generation; /* claims of another generation belong to the parent */
    _Atomic uint32_t probing;       /* 1: a thread of this handle registers, probes or reclaims */
    _Atomic uint32_t allocating;    /* 1: a thread of this handle is between extent.intent and extent.named */
    _Atomic uint32_t clearing;      /* 1: a thread of this handle runs a clear */
    _Atomic int64_t memory_left;    /* bytes that this client may draw before it checks memory itself */
    _Atomic uint32_t memory_group;  /* group of this process, at its last check */
    _Atomic uint32_t entries;       /* a bit for each claim entry that a claim of this handle uses */
    _Atomic uint64_t held;          /* by stoc_hold, in bytes */
    _Atomic bool keeps;             /* only the buckets of `kept` */
    _Atomic uint8_t kept[STOC_KEPT_BYTES];
    _Atomic uint64_t loads;         /* loads whose time this handle was told */
    _Atomic uint64_t searches;      /* for a victim, of this handle */
    _Atomic uint64_t group;         /* with chains: the group where this handle took or freed a slot last */
    /* with chains: the slots of each open claim, the first bytes first; atomic, because another thread may fork */
    _Atomic(uint32_t *) taken[STOC_CLAIMS_PER_CLIENT];
    _Atomic uint64_t huge_after;    /* next time to try huge pages, as now_ns; HUGE_NEVER: never */
    struct thread_pool pool;
    _Atomic uint64_t plans;         /* plans that this handle has announced */
    uint64_t plan_number;           /* number of the plan, under handles_lock; 0: there is none to announce */
    unsigned char plan[96];         /* the body of ANNOUNCE */
    struct link *links;             /* to the server, under handles_lock; no link leaves the list before close */

    struct stoc_cache *next, *previous; /* list of handles, under handles_lock */
    unsigned char uuid[16];
    char name[STOC_NAME_BYTES], fingerprint[STOC_FINGERPRINT_BYTES + 1], path[OWN_PATH_BYTES];
    char decode[STOC_DECODE_BYTES + 1];
    /* the server's name for it: the name in the header, or the one it was dialled by */
    char served[STOC_NAME_BYTES];
    char sockets_dir[OWN_PATH_BYTES]; /* folder of the server that it was dialled from; "": the default directory */
    struct stoc_field fields[STOC_MAX_FIELDS];
    /* counters of handles that are not counted */
    _Alignas(128) stoc_word sink[STOC_COUNTER_STRIPES * STOC_COUNTERS_PER_STRIPE];
};

_Static_assert(sizeof(struct stoc_field) == STOC_FIELD_BYTES, "a field is its record in the header");
_Static_assert(offsetof(struct stoc_field, dtype) == STOC_FIELD_DTYPE &&
                   offsetof(struct stoc_field, ndim) == STOC_FIELD_NDIM,
               "field layout");
_Static_assert(offsetof(struct stoc_field, offset) == STOC_FIELD_OFFSET &&
                   offsetof(struct stoc_field, bytes) == STOC_FIELD_SIZE,
               "field layout");
_Static_assert(offsetof(struct stoc_field, dims) == STOC_FIELD_DIMS &&
                   sizeof(((struct stoc_field *)0)->name) == STOC_FIELD_NAME_BYTES,
               "field layout");
_Static_assert(STOC_CLAIMS_PER_CLIENT == 32, "stoc_cache.entries has a bit for each");
_Static_assert(STOC_HEADER_FIELDS + STOC_MAX_FIELDS * STOC_FIELD_BYTES == STOC_HEADER_BYTES, "fields end the header");
_Static_assert(STOC_CLIENT_CLAIMS + STOC_CLAIMS_PER_CLIENT * STOC_CLAIM_BYTES <= STOC_CLIENT_COUNTERS,
               "claims lie before the counters");
_Static_assert(STOC_CLIENT_COUNTERS + STOC_COUNTER_STRIPES * STOC_COUNTER_STRIPE_BYTES <= STOC_CLIENT_RECORD_BYTES,
               "counters lie in the record");
_Static_assert(STOC_COUNTER_COUNT <= STOC_COUNTERS_PER_STRIPE &&
                   STOC_COUNTERS_PER_STRIPE * 8 == STOC_COUNTER_STRIPE_BYTES,
               "a stripe is its counters");
_Static_assert(STOC_WORD_STATE_BITS == 3 && STOC_WORD_OWNER_BITS == 12, "record.h");

#endif

/*
 * stocached.h - the C ABI of stocached: one cache of training samples in shared memory for all processes of a machine.
 *
 * This file is the contract. docs/spec/segment.md and docs/spec/protocol.md say how it is kept.
 *
 * CAVEATS, before anything else
 *  - A VIEW (stoc_view) is memory of the cache, mapped read-only: writing to it is a SIGSEGV. It stays valid until stoc_close of its
 *    handle. Its bytes are final unless somebody clears the cache or overwrites the sample; then it may show old bytes, new bytes or
 *    a mix. Copies (stoc_get, stoc_gather) are checked after copying and are never torn.
 *  - FORK: handles work in forked children. A child is a client of its own from its first counted call on; claims in progress
 *    stay the parent's. Do not use a handle in a child made by a raw clone(2) that runs no pthread_atfork handlers.
 *  - THREADS: every function may be called by any number of threads on one handle, except stoc_close, which MUST be the last call on it.
 *    A struct stoc_claim belongs to one thread at a time. At most 32 claims of one handle are open at once; more are answered BUSY.
 *  - Nothing waits unless it is asked to (STOC_WAIT, stoc_clear, and what asks a server: stoc_dial, stoc_fetch, stoc_fetch_each, stoc_prefetch).
 *  - SIGXFSZ: a process whose RLIMIT_FSIZE is below the segment's size is refused at open (read-only is fine).
 *  - Somebody who truncates the file under a mapping kills its readers with SIGBUS; caches without a name are sealed against it.
 *
 * RESULTS AND ERRORS. Functions return int or int64_t: 0 and above is a result, below is an error from enum stoc_code. Numbers are stable. A handle that is NULL is a
 * closed one: ECLOSED. Every read may also return ECORRUPT, and every write EREADONLY, ECLIENTS (a forked child, when the client table is full), ESYSTEM (see errno) and ECORRUPT.
 * Functions off the hot path fill in a struct stoc_error (NULL is accepted) whose message has the numbers and the next step;
 * for the others stoc_explain() writes that message afterwards.
 */
#ifndef STOCACHED_H
#define STOCACHED_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STOC_API __attribute__((visibility("default")))

/* Bumped when a function or a struct of this file changes incompatibly; also the soname. */
#define STOC_ABI_VERSION 1u

enum stoc_code {
    /* results of stoc_set, stoc_setv, stoc_claim */
    STOC_STORED = 0, /* stored, or claimed: go on */
    STOC_EXISTS = 1, /* the sample is READY already; nothing was done */
    STOC_BUSY = 2,   /* another client is filling it, a clear is under way, or 32 claims are open; nothing was done */
    STOC_FULL = 3,   /* no free slot, no arena space, or memory is short; nothing was done */
    STOC_OUT = 4,    /* the sample can have no slot (assign first-indices); nothing was done */
    /* results of stoc_get, stoc_view */
    STOC_MISS = 0,
    STOC_HIT = 1,

    STOC_EINVAL = -1,       /* an argument makes no sense */
    STOC_EINDEX = -2,       /* sample index below 0 or not below the number of samples */
    STOC_ESCHEMA = -3,      /* wrong size, dtype, shape or field for this cache */
    STOC_ENOENT = -4,       /* no such cache */
    STOC_EEXIST = -5,       /* a cache of that name exists */
    STOC_EFORMAT = -6,      /* the file is no segment, or its header does not verify */
    STOC_EVERSION = -7,     /* a segment of another layout version or build */
    STOC_EFINGERPRINT = -8, /* the cache holds another dataset or transform */
    STOC_EMEMORY = -9,      /* it does not fit: tmpfs, cgroup or machine */
    STOC_EPERM = -10,       /* not ours: owner, mode, or kind of file */
    STOC_EREADONLY = -11,   /* this handle may read only */
    STOC_ECLOSED = -12,     /* the handle is closed */
    STOC_ECLIENTS = -13,    /* the client table is full of live clients */
    STOC_ETIMEOUT = -14,    /* waited long enough */
    STOC_ESYSTEM = -15,     /* a system call failed; see os_error */
    STOC_ELOST = -16,       /* the claim was no longer ours when it was published */
    STOC_ECORRUPT = -17,    /* a word, length or checksum of the cache cannot be */
    STOC_EUNSUPPORTED = -18, /* not on this system */

    /* of calls that ask a server */
    STOC_ENOSERVER = -19,    /* there is none to reach, or it went away */
    STOC_EREPLACED = -20,    /* the server has another cache of this name by now: its source has changed. Close and attach anew */
    STOC_EREMOTE = -21,      /* the server refused; the message says why */
    STOC_EINTERRUPTED = -22  /* options.interrupted said so. Nothing is lost: call again */
};

struct stoc_error {
    int code;     /* enum stoc_code, 0: none */
    int os_error; /* errno of the system call that failed, or 0 */
    char message[504];
};

/* Item types of fields. Same numbers as in the segment's header. */
enum stoc_dtype {
    STOC_BYTES = 0, STOC_BOOL = 1, STOC_UINT8 = 2, STOC_INT8 = 3, STOC_UINT16 = 4, STOC_INT16 = 5, STOC_UINT32 = 6, STOC_INT32 = 7,
    STOC_UINT64 = 8, STOC_INT64 = 9, STOC_FLOAT16 = 10, STOC_BFLOAT16 = 11, STOC_FLOAT32 = 12, STOC_FLOAT64 = 13, STOC_COMPLEX64 = 14, STOC_COMPLEX128 = 15
};

#define STOC_VARIABLE_DIM UINT64_MAX

/* A named part of a sample. The caller of stoc_create fills in name, dtype, ndim, dims; offset and bytes are computed. 128 bytes. */
struct stoc_field {
    char name[40];
    uint16_t dtype; /* enum stoc_dtype */
    uint16_t ndim;  /* 0..8 */
    uint32_t reserved;
    uint64_t offset; /* in the sample; 0 in a variable-size cache */
    uint64_t bytes;  /* 0 in a variable-size cache */
    uint64_t dims[8];
};

/* How the samples of a fixed-size cache get their slots. */
enum stoc_assign { STOC_FIRST_COME = 0, STOC_FIRST_INDICES = 1 };

struct stoc_options {
    uint64_t struct_bytes; /* sizeof(struct stoc_options): lets later versions add members */
    uint64_t samples;      /* of the dataset; required */
    uint64_t limit_bytes;  /* the segment never exceeds it. 0: room for every sample (fixed size only) */
    uint64_t slots;        /* fixed size: exactly so many; 0: as many as the limit holds, at most samples */
    uint64_t sample_bytes; /* without fields: bytes of a sample (one field "data" of uint8). variable: the largest accepted, 0: 4 GiB - 1 */
    const struct stoc_field *fields; /* NULL: see sample_bytes */
    uint32_t field_count;
    uint32_t assign;         /* enum stoc_assign */
    uint32_t variable;       /* 1: samples differ in size and lie in an arena; needs limit_bytes */
    uint32_t reserve;        /* 1: take all pages now */
    uint32_t unlink_last;    /* 1: the named cache goes with its last user; 0: it stays until it is removed */
    uint32_t client_records; /* clients at a time; 0: 1024 */
    const char *directory;   /* NULL: /dev/shm/stocached-<uid>; else a directory on a tmpfs */
    const char *fingerprint; /* NULL: none; at most 64 bytes */
    void (*progress)(void *context, uint64_t done, uint64_t total); /* NULL: none; called while reserving, every 64 MiB */
    void *context;
    uint32_t open_flags;     /* 0, or STOC_OPEN_KIND_PYTHON: of the creator's own handle */
    uint32_t reserved;       /* 0 */
};

#define STOC_OPEN_READ_ONLY 1u   /* attach for reading though writing would be allowed; reads are not counted */
#define STOC_OPEN_KIND_PYTHON 2u /* shown by `stocached inspect` */

typedef struct stoc_cache stoc_cache; /* a handle: one attached client */

/* ------------------------------------------------------------------------------------------------ versions, texts */

STOC_API uint32_t stoc_abi_version(void);
STOC_API const char *stoc_version(void);      /* of the product, such as "0.1.0" */
STOC_API const char *stoc_strerror(int code); /* one short line; never NULL */

/* CRC-32C (Castagnoli) of bytes that follow on those whose checksum is crc; 0 for the first. What the segment and block files are checked with. */
STOC_API uint32_t stoc_crc32c(uint32_t crc, const void *data, size_t length);

/* Writes the message for an error (or result) of a hot-path call: numbers of this cache, this index and this size, and the next step.
 * Always NUL-terminates; returns the length. */
STOC_API size_t stoc_explain(const stoc_cache *cache, int code, int64_t index, uint64_t bytes, char *buffer, size_t size);

/* ------------------------------------------------------------------------------------------------ create, open, close */

/* Creates a cache and attaches to it. name NULL: a sealed memfd, gone with its last process. Names: 1 to 100 of [A-Za-z0-9._-], first one alphanumeric.
 * EINVAL (options), EEXIST, EMEMORY (with the numbers), EPERM, ESYSTEM. On failure *out is NULL and nothing is left behind. */
STOC_API int stoc_create(const char *name, const struct stoc_options *options, stoc_cache **out, struct stoc_error *error);

/* Attaches by name (no '/') or by path. Without permission to write it attaches read-only by itself.
 * fingerprint NULL: not checked. ENOENT, EFORMAT, EVERSION, EFINGERPRINT, EPERM, ESYSTEM. */
STOC_API int stoc_open(const char *name_or_path, unsigned flags, const char *fingerprint, stoc_cache **out, struct stoc_error *error);
/* The same from a descriptor, which stays the caller's. uuid (16 bytes) NULL: not checked, else EFORMAT when it differs. */
STOC_API int stoc_open_fd(int fd, unsigned flags, const unsigned char *uuid, stoc_cache **out, struct stoc_error *error);

/* Aborts the handle's open claims, unmaps, frees. NULL is a harmless no-op. Views of this handle are invalid afterwards. */
STOC_API void stoc_close(stoc_cache *cache);

/* Takes over unmapping: closes the handle but leaves its maps in place for ever, for callers whose views may outlive it. */
STOC_API void stoc_close_keep_maps(stoc_cache *cache);

/* Removes a named cache. Processes that are attached keep it. ENOENT, EPERM (not a segment of ours), ESYSTEM. */
STOC_API int stoc_unlink(const char *name_or_path, struct stoc_error *error);

struct stoc_info {
    uint64_t struct_bytes; /* set by the caller */
    uint64_t samples, slots, sample_bytes, slot_stride, segment_bytes, payload_offset, payload_bytes, limit_bytes;
    int64_t created_ns;
    uint32_t client_records, field_count, variable, assign, unlink_last, reserved_pages, read_only, layout_major, layout_minor;
    int32_t fd; /* the data descriptor: map it, pass it on, but do not write to it or close it */
    unsigned char uuid[16];
    char name[128], fingerprint[65], path[512]; /* path "" for a memfd */
    const void *payload; /* the read-only map, payload_bytes long; NULL if empty */
};
STOC_API int stoc_info(const stoc_cache *cache, struct stoc_info *info);
STOC_API int stoc_field(const stoc_cache *cache, uint32_t k, struct stoc_field *field); /* EINVAL if k is not below field_count */

/* ------------------------------------------------------------------------------------------------ read */

/* Copies a sample. HIT: *length bytes are in dst. MISS: nothing was written. ESCHEMA: capacity is too small, *length says what is needed. EINDEX. */
STOC_API int stoc_get(stoc_cache *cache, int64_t index, void *dst, size_t capacity, size_t *length);

/* HIT: *data points to *length bytes of the cache, see VIEW above. MISS: both untouched. */
STOC_API int stoc_view(stoc_cache *cache, int64_t index, const void **data, size_t *length);

/* The same, but not counted as a hit or miss. */
STOC_API int stoc_locate(const stoc_cache *cache, int64_t index, const void **data, size_t *length);

/* stoc_view for the fastest callers, counted alike: offset of the sample in the payload map, -1 on a miss, EINDEX and others are below -1
 * (error code minus 1). Fixed-size caches only. */
STOC_API int64_t stoc_view_offset(stoc_cache *cache, int64_t index);

/* Indices of a batch are the caller's, and MUST NOT change during the call: they are checked first and read again later.
 *
 * Copies n samples of a fixed-size cache, row k to dst + k * row_stride, rows of misses are left alone; hit[k] = 1 or 0. With field >= 0 only that
 * field of each (row_stride >= its bytes). threads: at most so many, fewer when it does not pay; 0 and 1: the caller's only. The
 * others are the handle's: they take no signals, stay for 10 ms in case another batch comes, and leave with the handle and before a fork; of two batches of one handle at the same time, one is done by
 * its caller alone. Returns the number of hits, or EINDEX (nothing was
 * copied: indices are checked first), ESCHEMA. hit MAY be NULL. */
STOC_API int64_t stoc_gather(stoc_cache *cache, const int64_t *indices, size_t n, int field, void *dst, size_t row_stride, uint8_t *hit, unsigned threads);

/* Lengths of n samples as they are now: lengths[k] = bytes, or UINT64_MAX for a miss. Not counted. Returns the number of hits. */
STOC_API int64_t stoc_lengths(stoc_cache *cache, const int64_t *indices, size_t n, uint64_t *lengths);

/* Any sizes, packed: row k goes to dst + offsets[k] if it is READY and its length is exactly lengths[k]; else hit[k] = 0. */
STOC_API int64_t stoc_gather_packed(stoc_cache *cache, const int64_t *indices, size_t n, void *dst, const uint64_t *offsets, const uint64_t *lengths, uint8_t *hit, unsigned threads);

enum stoc_state_of { STOC_STATE_EMPTY = 0, STOC_STATE_WRITING = 1, STOC_STATE_READY = 2, STOC_STATE_OUT = 3, STOC_STATE_CORRUPT = 4 };
STOC_API int stoc_state(const stoc_cache *cache, int64_t index);                                        /* not counted */
STOC_API int stoc_states(const stoc_cache *cache, uint64_t first, uint64_t n, uint8_t *states);         /* not counted */

/* Bytes of a slot whatever its state, zeros where nothing was ever written; reads with pread, so holes stay holes. Fixed size, and first-indices or READY
 * only (MISS otherwise). Not counted, not checked for tearing. */
STOC_API int stoc_peek(stoc_cache *cache, int64_t index, void *dst, size_t capacity);

/* ------------------------------------------------------------------------------------------------ write */

#define STOC_OVERWRITE 1u /* replace a READY sample instead of EXISTS */
#define STOC_WAIT 2u      /* wait while BUSY, polling, up to a minute; then BUSY */

/* Stores a sample if nobody has: STORED, EXISTS, BUSY, FULL, OUT, or an error; see enum stoc_code. data is copied. Fixed size: length MUST be sample_bytes (ESCHEMA). */
STOC_API int stoc_set(stoc_cache *cache, int64_t index, const void *data, size_t length, unsigned flags);
STOC_API int stoc_setv(stoc_cache *cache, int64_t index, const struct iovec *parts, int count, unsigned flags);

/* A fill in pieces. stoc_claim (STORED: claimed) -> stoc_write any number of times -> stoc_publish (STORED) or stoc_abort. Parts never written are zeros or what the slot
 * held before. The struct is the caller's; its members are private. */
struct stoc_claim {
    stoc_cache *cache;
    uint64_t sample, word, offset, length, written;
    uint32_t entry, crc, generation, open;
};
STOC_API int stoc_claim(stoc_cache *cache, int64_t index, size_t length, unsigned flags, struct stoc_claim *claim);
STOC_API int stoc_write(struct stoc_claim *claim, uint64_t offset, const void *data, size_t length); /* ESCHEMA past the end; FULL ends the claim */
STOC_API int stoc_publish(struct stoc_claim *claim);                                                 /* STORED, ELOST */
STOC_API int stoc_abort(struct stoc_claim *claim);                                                   /* ELOST; a claim that is not open: no-op */

/* Empties the cache: no claim is honoured until it ends, open ones are waited for (ETIMEOUT after timeout_ms), those of the dead taken back. BUSY: another clear is under way. */
STOC_API int stoc_clear(stoc_cache *cache, unsigned timeout_ms);

/*
 * Memory of the program's own, beside the cache. Fills stop at a floor (FULL) so that the kernel kills nobody; what the program takes for itself after that is not seen in time. stoc_hold has
 * the fills of all clients leave so many bytes free for this client from now on, instead of what it held before; 0: none. To be lowered as the program takes them. stoc_spare: bytes
 * that may be taken now, under the tightest limit of this process, less the floor and what all clients hold or are about to fill.
 */
STOC_API int64_t stoc_spare(stoc_cache *cache);
STOC_API int stoc_hold(stoc_cache *cache, uint64_t bytes);

/* Takes back what dead clients left claimed; returns how many claims. Sets do that by themselves where they meet one. */
STOC_API int64_t stoc_recover(stoc_cache *cache);

/* ------------------------------------------------------------------------------------------------ have a server fill it
 *
 * `stocached serve` reads samples from a source, each once for all processes. docs/spec/control.md is what is spoken with it; docs/guides/server.md is about the server.
 *
 * A handle that is asked to fetch finds the server by itself: data.sock in $STOCACHED_SOCKETS_DIR, else $XDG_RUNTIME_DIR/stocached, else /tmp/stocached-<uid>; it asks for the
 * cache by its name, and makes sure that the server means the very same segment (else EREPLACED). There are no threads behind it. A call has a connection of its own, taken from
 * those that the handle keeps open; it connects anew when the server was away, and a forked child always does. stoc_close closes them.
 *
 * What is there already is found without the server: a fetch of nothing but hits is a gather, whether there is a server or not. Counted as hits and misses is
 * what was there when the call began; what the server then brings is not counted again.
 */

/* Why a sample could not be had, as the server says it. Same numbers as in docs/spec/control.md. */
enum stoc_remote {
    STOC_REMOTE_INDEX = 6,      /* no such sample */
    STOC_REMOTE_READ = 7,       /* the source could not read it; the message says what and which file */
    STOC_REMOTE_CHANGED = 8,    /* the source is not the one that the cache was filled from */
    STOC_REMOTE_DAMAGED = 9,    /* the source's data of this sample cannot be */
    STOC_REMOTE_NO_SLOT = 10,   /* it has no slot, and was not to be sent */
    STOC_REMOTE_CANCELLED = 11,
    STOC_REMOTE_CLOSING = 12,   /* the server is ending, or removes this cache */
    STOC_REMOTE_INTERNAL = 13   /* the server's own failure */
};

/* One sample that could not be had. 1024 bytes. */
struct stoc_failure {
    uint64_t position; /* in the indices of the call */
    int64_t index;
    int32_t code; /* enum stoc_remote */
    char message[1004];
};

/* The caller has looked already, by stoc_gather or its like, and was counted: count neither hits nor misses. stoc_fetch leaves rows alone for which hit says 1 (unless it is NULL). */
#define STOC_FETCH_UNCOUNTED 1u

struct stoc_fetch_options {
    uint64_t struct_bytes; /* sizeof(struct stoc_fetch_options) */
    uint32_t timeout_ms;   /* for the whole call, in which a server that is away is waited for. 0: 2 seconds for a server to be there, no bound on its answer */
    uint32_t threads;      /* of the gather of what is there, as for stoc_gather */
    uint32_t flags;        /* STOC_FETCH_... */
    uint32_t reserved;     /* 0 */
    /* NULL: signals are handled and waiting goes on. Else asked after a signal and at least each second while the call waits: not 0 ends it with EINTERRUPTED. It MUST NOT use the handle */
    int (*interrupted)(void *context);
    void *context;
    /* results; stoc_fetch_end frees them */
    uint64_t failed;                /* samples that could not be had */
    struct stoc_failure *failures;  /* each of them, in the order of positions; NULL: none */
};

/*
 * Copies n samples of a fixed-size cache, row k to dst + k * row_stride (row_stride >= sample_bytes): those that are there are gathered, as stoc_gather does, and the server is asked
 * once for all others. Samples for which the cache has no room come through the socket. Returns how many were had: n, or less when the source failed for some; then options->failures says
 * for each of them why, and error is the first of them (EREMOTE). hit[k] = 1 or 0 (hit MAY be NULL); rows that were not had are left alone or hold anything.
 * options MAY be NULL. Below 0: ENOSERVER with the command that starts one, EREPLACED, ETIMEOUT, EREMOTE, EINTERRUPTED (of the rows only those with hit[k] = 1 can be used), EINDEX, ESCHEMA, EINVAL,
 * EMEMORY.
 */
STOC_API int64_t stoc_fetch(stoc_cache *cache, const int64_t *indices, size_t n, void *dst, size_t row_stride, uint8_t *hit, struct stoc_fetch_options *options, struct stoc_error *error);

/* The same for samples of any size: data[k] becomes memory with lengths[k] bytes of sample indices[k], or NULL (lengths[k] = 0) where it was not had. stoc_fetch_end frees all of data. On an
 * error below 0 all of them are NULL. */
STOC_API int64_t stoc_fetch_each(stoc_cache *cache, const int64_t *indices, size_t n, void **data, uint64_t *lengths, struct stoc_fetch_options *options, struct stoc_error *error);

/* Frees failures of options, and data[0..n-1]; sets them to NULL. Either may be NULL. */
STOC_API void stoc_fetch_end(struct stoc_fetch_options *options, void **data, size_t n);

/* Asks the server to read samples when it has nothing better to do. Returns how many it queued: those that are not there, and that it had room for. Errors as stoc_fetch. */
STOC_API int64_t stoc_prefetch(stoc_cache *cache, const int64_t *indices, size_t n, struct stoc_fetch_options *options, struct stoc_error *error);

/* Attaches to a cache through its server, which passes the segment: for caches that this process cannot see by name (another mount namespace, another folder). sockets_dir NULL: as above;
 * the handle remembers it. flags as for stoc_open. timeout_ms as in the options. ENOSERVER, ENOENT (the server has no such cache), and errors of stoc_open. */
STOC_API int stoc_dial(const char *name, const char *sockets_dir, unsigned flags, unsigned timeout_ms, stoc_cache **out, struct stoc_error *error);

/* ------------------------------------------------------------------------------------------------ the order of an epoch
 *
 * In which order samples are read, as a function of a position: docs/spec/order.md. It takes no memory that grows with the dataset (but weights do), and is the same in Go, and in every version
 * of this library. No cache is needed.
 */

enum stoc_order_kind {
    STOC_ORDER_SEQUENTIAL = 0, /* 0, 1, 2, ... */
    STOC_ORDER_SHUFFLED = 1,   /* any sample anywhere */
    STOC_ORDER_WINDOWS = 2,    /* from first to last, `window` samples at a time, each such window shuffled */
    STOC_ORDER_BLOCKS = 3      /* blocks of `block` samples are shuffled, and then the samples within `window` blocks at a time */
};

struct stoc_order {
    uint64_t struct_bytes; /* sizeof(struct stoc_order) */
    uint64_t samples;      /* of the dataset, 1 to 2^40 */
    uint64_t seed;
    uint64_t window, block; /* see the kinds; 0 where they have none */
    uint32_t kind;          /* enum stoc_order_kind */
    uint32_t reserved;      /* 0 */
};

typedef struct stoc_epoch stoc_epoch; /* the order of one epoch. Immutable: any number of threads may ask it, and forked children */

/* EINVAL, naming what cannot be; EMEMORY. Takes microseconds. */
STOC_API int stoc_epoch_open(const struct stoc_order *order, uint64_t epoch, stoc_epoch **out, struct stoc_error *error);
STOC_API void stoc_epoch_close(stoc_epoch *epoch); /* NULL is a harmless no-op */

/* Samples drawn with replacement, each as often as its weight says: finite, not below 0, one of them above. The table takes 16 bytes a sample, and 0.1 us a sample to make; weights
 * itself is not kept. Immutable. EINVAL, naming the weight; EMEMORY. An epoch keeps the table alive: it may be closed (NULL is a no-op) before its epochs are. */
typedef struct stoc_weights stoc_weights;
STOC_API int stoc_weights_open(const double *weights, uint64_t n, stoc_weights **out, struct stoc_error *error);
STOC_API void stoc_weights_close(stoc_weights *weights);

/* draws: positions of the epoch, at most 2^40; 0: as many as samples. */
STOC_API int stoc_epoch_open_weighted(stoc_weights *weights, uint64_t draws, uint64_t seed, uint64_t epoch, stoc_epoch **out, struct stoc_error *error);

/* Where an epoch of a mix ends. */
enum stoc_mix_stop {
    STOC_MIX_FIRST = 0, /* when one dataset was read to its end: no sample comes twice */
    STOC_MIX_ALL = 1,   /* when every one was: those too small for their ratio begin anew, in another order, as often as it takes */
    STOC_MIX_LENGTH = 2 /* at `length`; each dataset goes on in the next epoch where it was */
};

/* Samples of several datasets by ratio. An index is that of the concatenated datasets: the index in the dataset plus the samples of all datasets before it. */
struct stoc_mix {
    uint64_t struct_bytes;           /* sizeof(struct stoc_mix) */
    uint64_t datasets;               /* 1 to 65536 */
    const struct stoc_order *orders; /* one for each; all of them together have at most 2^40 samples */
    const uint64_t *ratios;          /* one for each, from 1 on, their sum below 2^31: 7 and 3 for 70 and 30 percent */
    uint64_t seed;                   /* says whose turn it is, with the ratios */
    uint64_t length;                 /* STOC_MIX_LENGTH: positions of an epoch, 1 to 2^40. Else 0 */
    uint32_t stop;                   /* enum stoc_mix_stop */
    uint32_t reserved;               /* 0 */
};

/* Nothing of mix is kept. Takes time and about 100 bytes for each dataset, whatever its samples. EINVAL, naming what cannot be; EMEMORY. */
STOC_API int stoc_epoch_open_mixed(const struct stoc_mix *mix, uint64_t epoch, stoc_epoch **out, struct stoc_error *error);

/* How many positions there are: samples, draws, or what a mix stops at. */
STOC_API int64_t stoc_epoch_length(const stoc_epoch *epoch);

/* The sample at a position, and the position of a sample. EINDEX; EUNSUPPORTED for the position of a sample in an epoch with weights or of a mix, where it may stand in several or in none.
 * For many positions of windows, blocks and mixes stoc_epoch_fill is faster. */
STOC_API int64_t stoc_epoch_at(const stoc_epoch *epoch, uint64_t position);
STOC_API int64_t stoc_epoch_position(const stoc_epoch *epoch, int64_t index);

/* Writes the samples at positions first, first + step, ... to indices, at most n and as long as there are any; step >= 1. Returns how many; EINVAL. */
STOC_API int64_t stoc_epoch_fill(const stoc_epoch *epoch, int64_t *indices, size_t n, uint64_t first, uint64_t step);

/* What becomes of the samples that do not divide by the number of ranks. */
enum stoc_ends {
    STOC_ENDS_UNEVEN = 0, /* some ranks get one more */
    STOC_ENDS_PAD = 1,    /* those with one less begin again: what comes twice is not real */
    STOC_ENDS_DROP = 2    /* the last ones are left out */
};

/* What one rank reads of what is left of an epoch from a position on: each ranks-th sample, from the rank-th on. When each rank has read k samples, the epoch is read up to from + k * ranks (or to
 * its end): with that, any other number of ranks may go on. */
struct stoc_shard {
    uint64_t struct_bytes; /* sizeof(struct stoc_shard) */
    uint64_t rank, ranks;
    uint64_t from;         /* at most the length of the epoch */
    uint32_t ends;         /* enum stoc_ends */
    uint32_t reserved;     /* 0 */
    uint64_t samples, real; /* written by stoc_epoch_shard: how many this rank reads, and how many of them nobody else does */
};

/* Checks a shard and fills in samples and real. EINVAL, naming what cannot be. */
STOC_API int stoc_epoch_shard(const stoc_epoch *epoch, struct stoc_shard *shard, struct stoc_error *error);

/* Writes the samples of a shard from its first-th on to indices, at most n and as long as there are any. Returns how many; EINVAL. */
STOC_API int64_t stoc_epoch_fill_shard(const stoc_epoch *epoch, const struct stoc_shard *shard, int64_t *indices, size_t n, uint64_t first);

/* ------------------------------------------------------------------------------------------------ tasks for workers
 *
 * A board in memory that one parent and its workers (processes or threads) share: the parent posts tasks, workers take and answer them. No locks; anybody but the parent may be
 * killed at any time. docs/spec/workers.md. Functions of the parent MUST NOT be called by two threads at once. The memory is the caller's; it MUST begin at a multiple of 64 and be zero before init.
 * Answers are read in place: the task of position p lies at 4096 + (p mod capacity) * STOC_BOARD_TASK_BYTES, its answer STOC_BOARD_ANSWER_OFFSET further on, where struct stoc_task says.
 */

#define STOC_BOARD_TASK_BYTES 128
#define STOC_BOARD_ANSWER_OFFSET 64
#define STOC_TASK_CANCELLED (-1) /* the only result that the library gives; all others are the caller's */

struct stoc_task {
    uint64_t position, first; /* its own, and that of the first task of its batch; set by the library */
    int64_t index;            /* these are the caller's: what is to be done */
    uint32_t row, buffer, kind;
    uint32_t only; /* 0: for any worker; else for worker only - 1. All tasks of a batch alike */
    uint64_t argument;
    int32_t result; /* the answer, by the worker */
    uint32_t worker;
    uint64_t spill_offset, spill_bytes;
};

/* Of a board with room for so many tasks at a time (1 to 2^20; rounded up to a power of two); 0: not possible. */
STOC_API size_t stoc_board_bytes(uint32_t tasks);
STOC_API int stoc_board_init(void *memory, uint32_t tasks);

/* Parent. Posts the n tasks of a batch, n at most half of the board. Returns the position of the first, or EMEMORY: no room before others are released. */
STOC_API int64_t stoc_board_push(void *memory, const struct stoc_task *tasks, size_t n);

/* Worker (0 to 65535, each number by one at a time). How many tasks were taken: the next one and those right behind it, n (1 to 2^20) at most and of one batch; 0: none in so many milliseconds, or
 * a signal came; ECLOSED: the board was stopped. One that was posted anew is taken alone. Of several the worker MAY store when it begins each but the first (CLOCK_MONOTONIC, began_ns of the answer
 * in its place): that is also the end of the one before, and if it is killed, the last of those begun is the one it was at. Of each it MAY store how long a part of the work took (augment_ns). */
STOC_API int stoc_board_take(void *memory, uint32_t worker, uint32_t timeout_ms, struct stoc_task *tasks, uint32_t n);
/* Worker. Answers tasks that it took, with result and spill of each. ELOST: one of them is not this worker's any more; the others are answered. */
STOC_API int stoc_board_done(void *memory, uint32_t worker, const struct stoc_task *tasks, uint32_t n);

struct stoc_batch {
    uint64_t first; /* as push returned it */
    uint64_t tasks;
};
/* Parent. The number of the first of these batches whose tasks all have answers, after waiting at most so long for there to be one; `count`: none. May come back earlier. */
STOC_API int64_t stoc_board_wait(void *memory, const struct stoc_batch *batches, size_t count, uint32_t timeout_ms);
/* Parent. The answers have been read. BUSY: one of them is still missing. */
STOC_API int stoc_board_release(void *memory, uint64_t first, uint32_t n);
/* Parent. Answers those that nobody has taken with STOC_TASK_CANCELLED. Returns how many are being worked on. */
STOC_API int64_t stoc_board_cancel(void *memory, uint64_t first, uint32_t n);
/* Parent, about a worker that is dead. How many tasks it held, and the first n of them; each is to be posted anew (ELOST: it is not that worker's). */
STOC_API int64_t stoc_board_held(void *memory, uint32_t worker, uint64_t *positions, size_t n);
STOC_API int stoc_board_repost(void *memory, uint32_t worker, uint64_t position);

/* Anybody. Every take returns ECLOSED from now on. */
STOC_API void stoc_board_stop(void *memory);

/* Anybody. So many bytes of a file of the caller's that nobody else is given: their offset, a multiple of 4096. */
STOC_API int64_t stoc_board_spill(void *memory, uint64_t bytes);

/* Anybody. memcpy of a sample to its row of a batch: rows are in no processor cache, so it fetches ahead what it writes to. The two must not overlap. */
STOC_API void stoc_board_copy(void *row, const void *sample, size_t bytes);

/* ------------------------------------------------------------------------------------------------ look */

/* Compares READY samples first..first+n-1 with their checksums. Returns how many are corrupt; *bad (may be NULL) is the first of them. Not counted as hits. */
STOC_API int64_t stoc_verify(stoc_cache *cache, uint64_t first, uint64_t n, uint64_t *checked, int64_t *bad);

struct stoc_stats {
    uint64_t struct_bytes; /* set by the caller */
    uint64_t hits, misses, stored, exists, busy, full, out, stored_bytes, recovered, aborted, lost, retried, corrupt, passed;
    uint64_t ready;         /* samples READY, counted by a pass over the index */
    uint64_t ready_bytes;   /* their bytes */
    uint64_t arena_next_bytes, arena_lost_bytes; /* variable size */
    uint64_t clients_live, clients_dead;         /* dead: records of past clients, claims left or not */
    uint64_t allocated_bytes;                    /* pages the file has */
    uint64_t clears;
};
STOC_API int stoc_stats(stoc_cache *cache, struct stoc_stats *stats);

/* Adds to the counter "passed": samples outside the schema that a wrapper let through uncached. */
STOC_API void stoc_count_passed(stoc_cache *cache, uint64_t n);

/* ------------------------------------------------------------------------------------------------ for callers with arrays and a garbage collector */

/* stoc_view_offset in slots: the row of the sample in an array over the payload with slot_stride bytes a row. */
STOC_API int64_t stoc_view_slot(stoc_cache *cache, int64_t index);
STOC_API int64_t stoc_locate_slot(const stoc_cache *cache, int64_t index); /* the same, but not counted */

/* stoc_set with length sample_bytes and without flags: ctypes takes half a microsecond for each argument. Fixed-size caches only, else ESCHEMA. */
STOC_API int stoc_put(stoc_cache *cache, int64_t index, const void *data);

/* stoc_gather with one destination a field: field f of sample indices[k] goes to dst[f] + k * row_stride[f]; dst[f] NULL: it is not wanted. A sample is copied
 * under one check, so its fields belong together. dst and row_stride have field_count entries. Returns the number of hits, or EINDEX, ESCHEMA. */
STOC_API int64_t stoc_gather_fields(stoc_cache *cache, const int64_t *indices, size_t n, void *const *dst, const size_t *row_stride, uint8_t *hit, unsigned threads);

/* Closes the handle but leaves the payload's map (info.payload, payload_bytes rounded up to a page), which the caller MUST munmap when its last view is gone. */
STOC_API void stoc_close_keep_payload(stoc_cache *cache);

#ifdef __cplusplus
}
#endif
#endif

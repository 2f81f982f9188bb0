/*
 * stocached.h - the C interface of stocached: a cache of training samples in shared memory, for all
 * processes of a machine.
 *
 * This file is the contract. docs/spec/segment.md and docs/spec/protocol.md say how the library
 * keeps it.
 *
 * CAVEATS
 * - VIEWS: a view (stoc_view) points into the memory of the cache. That memory is mapped read-only:
 *   a write to it raises SIGSEGV. A view stays valid until stoc_close of its handle. Its bytes
 *   change only if a client clears the cache or overwrites the sample. It may then show old bytes,
 *   new bytes or a mix. A cache that evicts gives out no views: stoc_view, stoc_locate and
 *   their like return EINVAL. Copies (stoc_get, stoc_gather) are checked after copying and never
 *   mix two versions.
 * - FORK: handles work in forked children. A child becomes a client of its own at its first counted
 *   call. Open claims stay with the parent. Do not use a handle in a child of a raw clone(2), which
 *   runs no pthread_atfork handlers.
 * - THREADS: any number of threads may call any function on one handle. The exception is
 *   stoc_close: it MUST be the last call on the handle. Only one thread at a time may use a struct
 *   stoc_claim. A handle may have 32 claims open at once. Further claims return BUSY.
 * - WAITING: only these calls wait: calls with STOC_WAIT, stoc_clear, stoc_flush, stoc_close of a disk
 *   cache, and the calls that ask a server (stoc_dial, stoc_fetch, stoc_fetch_each, stoc_prefetch).
 * - SIGXFSZ: create and open return EMEMORY if RLIMIT_FSIZE of the process is below the size of the
 *   segment. A read-only open is allowed.
 * - SIGBUS: if another program truncates the file of a cache, its readers die with SIGBUS. Caches
 *   without a name are sealed against that.
 *
 * RESULTS AND ERRORS. Functions return int or int64_t. 0 and above is a result. Below 0 is an error
 * of enum stoc_code. The numbers are stable. NULL as a handle returns ECLOSED. Every read may also
 * return ECORRUPT. Every write may also return EREADONLY, ESYSTEM (see errno), ECORRUPT, and, in a
 * forked child, ECLIENTS if the client table is full.
 *
 * Functions off the hot path fill in a struct stoc_error (NULL is accepted). Its message has the
 * numbers and the next step. For the other functions, stoc_explain() writes that message
 * afterwards. It reads errno for ESYSTEM and EINVAL, so call it before anything that may change errno.
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

/* Changes when a function or a struct of this file changes incompatibly. It is also the number in
 * the soname. */
#define STOC_ABI_VERSION 1u

enum stoc_code {
    /* Results of stoc_set, stoc_setv, stoc_claim. In a variable-size cache that evicts, FULL and BUSY may come
     * after other samples have gone, and also the old version of this one. */
    STOC_STORED = 0, /* stored or claimed */
    STOC_EXISTS = 1, /* the sample is READY already; the call did nothing */
    STOC_BUSY = 2,   /* another client fills it, a clear runs, or 32 claims are open; the call did nothing */
    STOC_FULL = 3,   /* no free slot, no arena space, or too little memory; the call did nothing */
    /* the sample can have no slot (policy first-indices, or stoc_keep leaves it out); the call did nothing */
    STOC_OUT = 4,
    /* results of stoc_get, stoc_view */
    STOC_MISS = 0,
    STOC_HIT = 1,

    STOC_EINVAL = -1,       /* an argument is not valid */
    STOC_EINDEX = -2,       /* the sample index is below 0, or not below the number of samples */
    STOC_ESCHEMA = -3,      /* wrong size, dtype, shape or field for this cache */
    STOC_ENOENT = -4,       /* no such cache */
    STOC_EEXIST = -5,       /* a cache of that name exists */
    STOC_EFORMAT = -6,      /* the file is not a segment, or its header fails a check */
    STOC_EVERSION = -7,     /* a segment of another layout version or build */
    STOC_EFINGERPRINT = -8, /* the cache holds another dataset or transform */
    STOC_EMEMORY = -9,      /* too little space: tmpfs, cgroup or machine */
    STOC_EPERM = -10,       /* the file has another owner, a wrong mode, or a wrong type */
    STOC_EREADONLY = -11,   /* this handle is read-only */
    STOC_ECLOSED = -12,     /* the handle is closed */
    STOC_ECLIENTS = -13,    /* the client table is full of live clients */
    STOC_ETIMEOUT = -14,    /* the deadline has passed */
    STOC_ESYSTEM = -15,     /* a system call failed; see os_error */
    STOC_ELOST = -16,       /* the claim was not ours any more when it was published */
    STOC_ECORRUPT = -17,    /* a word, length or checksum of the cache is not possible */
    STOC_EUNSUPPORTED = -18, /* not available on this system */

    /* errors of calls that ask a server */
    STOC_ENOSERVER = -19,    /* the call reached no server, or the server went away */
    /* the server has replaced this cache, because its source has changed. Close and attach again */
    STOC_EREPLACED = -20,
    STOC_EREMOTE = -21,      /* the server refused; the message gives the reason */
    STOC_EINTERRUPTED = -22  /* options.interrupted asked for it. Nothing is lost: call again */
};

struct stoc_error {
    int code;     /* enum stoc_code, or 0 for none */
    int os_error; /* errno of the system call that failed, or 0 */
    char message[504];
};

/* Item types of fields. The header of a segment has the same numbers. */
enum stoc_dtype {
    STOC_BYTES = 0, STOC_BOOL = 1, STOC_UINT8 = 2, STOC_INT8 = 3, STOC_UINT16 = 4, STOC_INT16 = 5, STOC_UINT32 = 6,
    STOC_INT32 = 7, STOC_UINT64 = 8, STOC_INT64 = 9, STOC_FLOAT16 = 10, STOC_BFLOAT16 = 11, STOC_FLOAT32 = 12,
    STOC_FLOAT64 = 13, STOC_COMPLEX64 = 14, STOC_COMPLEX128 = 15
};

#define STOC_VARIABLE_DIM UINT64_MAX

/* A named part of a sample. The caller of stoc_create fills in name, dtype, ndim and dims. The
 * library computes offset and bytes. 128 bytes. */
struct stoc_field {
    char name[40];
    uint16_t dtype; /* enum stoc_dtype */
    uint16_t ndim;  /* 0..8 */
    uint32_t reserved;
    uint64_t offset; /* in the sample; 0 in a variable-size cache */
    uint64_t bytes;  /* 0 in a variable-size cache */
    uint64_t dims[8];
};

/* Which samples a cache keeps; docs/spec/policies.md has the rules. */
enum stoc_policy {
    STOC_POLICY_FIRST_COME = 0,    /* each sample that is set, while slots are free */
    STOC_POLICY_FIRST_INDICES = 1, /* sample i < slots has slot i; other samples have no slot. Fixed size only */
    /* In a full cache these give the space of one sample to another. Such a cache gives out no views. */
    STOC_POLICY_COST = 2,   /* keeps the samples whose loads take longest; see stoc_set_loaded */
    STOC_POLICY_RANDOM = 3, /* any sample goes */
    STOC_POLICY_CLOCK = 4,  /* a sample without a recent hit goes */
    STOC_POLICY_FIFO = 5,   /* the oldest sample goes */
    STOC_POLICY_LRU = 6,    /* among some samples, the one whose last hit is longest ago goes */
    STOC_POLICY_LFU = 7,    /* among some samples, the one with the fewest hits goes */
    /* Of some samples, the one goes that jobs read last. Only a server evicts from such a cache. */
    STOC_POLICY_PLANNED = 8
};

/* docs/spec/options.md has the ranges. Errors name options as it does: size, clients, dir, unlink. */
struct stoc_options {
    uint64_t struct_bytes; /* sizeof(struct stoc_options) */
    uint64_t samples;      /* number of samples of the dataset; required */
    uint64_t limit_bytes;  /* the largest size of the segment. 0: space for every sample (fixed size only) */
    uint64_t slots;        /* fixed size: the exact number of slots. 0: as many as the limit allows, at most samples */
    /* without fields: bytes of a sample (one field "data" of uint8). Variable size: the largest
     * sample accepted; 0: 4 GiB - 1 */
    uint64_t sample_bytes;
    const struct stoc_field *fields; /* NULL: see sample_bytes */
    uint32_t field_count;
    uint32_t policy;         /* enum stoc_policy */
    /* 1: samples differ in size and lie in an arena, with a policy that evicts in slots; needs limit_bytes */
    uint32_t variable;
    uint32_t reserve;        /* 1: allocate all pages now */
    uint32_t unlink_last;    /* 1: the last user removes the named cache; 0: it stays until a call removes it */
    uint32_t client_records; /* how many clients may be attached at once; 0: 1024 */
    const char *directory;   /* NULL: /dev/shm/stocached-<uid>; else a directory on a tmpfs */
    const char *fingerprint; /* NULL: none; at most 64 bytes */
    /* NULL: none; called every 64 MiB while reserving */
    void (*progress)(void *context, uint64_t done, uint64_t total);
    void *context;
    uint32_t open_flags;     /* for the creator's own handle: 0 or STOC_OPEN_KIND_PYTHON */
    uint32_t lengths;        /* 1: samples are lists, and the cache remembers how many items each has; variable size only */
    /* variable size with a policy that evicts: bytes of a slot. 0: the largest with 8 slots for each sample */
    uint64_t slot_bytes;
};

#define STOC_OPEN_READ_ONLY 1u   /* attach read-only even if writing is allowed; reads are not counted */
#define STOC_OPEN_KIND_PYTHON 2u /* `stocached inspect` shows it */

typedef struct stoc_cache stoc_cache; /* a handle: one attached client */

/* ------------------------------------------------------------ versions, texts */

STOC_API uint32_t stoc_abi_version(void);
STOC_API const char *stoc_version(void);      /* version of the product, such as "0.1.0" */
STOC_API const char *stoc_strerror(int code); /* one short line; never NULL */

/* CRC-32C (Castagnoli). crc is the checksum of the bytes before data, 0 if there are none. Segments
 * and block files use this checksum. */
STOC_API uint32_t stoc_crc32c(uint32_t crc, const void *data, size_t length);

/* Finds a byte, such as the line breaks of a text. places takes its offsets in data, in order, and has
 * room for `length` of them. Returns how many there are. */
STOC_API size_t stoc_find_byte(const void *data, size_t length, int byte, uint64_t *places);

/* Writes the message for an error or a result of a hot-path call: the numbers of this cache, index
 * and size, and the next step. Always NUL-terminates. Returns the length. */
STOC_API size_t stoc_explain(const stoc_cache *cache, int code, int64_t index, uint64_t bytes, char *buffer,
                             size_t size);

/* ------------------------------------------------------------ create, open, close */

/* Creates a cache and attaches to it. name NULL: a sealed memfd, which ends with its last process.
 * A name has 1 to 100 characters of [A-Za-z0-9._-]; the first is alphanumeric. A segment of another
 * version that no process uses is replaced, and error->message then says so; else it is empty. EINVAL
 * (options), EEXIST, EVERSION (processes use a segment of another version), EMEMORY (with the numbers),
 * EPERM, ESYSTEM. On failure *out is NULL, and no file of it stays. */
STOC_API int stoc_create(const char *name, const struct stoc_options *options, stoc_cache **out,
                         struct stoc_error *error);

/* Attaches by name (no '/') or by path. If the process may not write, the handle is read-only.
 * fingerprint NULL: not checked. ENOENT, EFORMAT, EVERSION, EFINGERPRINT, EPERM, ESYSTEM. */
STOC_API int stoc_open(const char *name_or_path, unsigned flags, const char *fingerprint, stoc_cache **out,
                       struct stoc_error *error);
/* Attaches to the file of a descriptor. The caller keeps the descriptor. uuid (16 bytes) NULL: not
 * checked, else EFORMAT if it differs. */
STOC_API int stoc_open_fd(int fd, unsigned flags, const unsigned char *uuid, stoc_cache **out,
                          struct stoc_error *error);

/* Opens a cache in the file `path` on a local disk, or makes it. Processes share it without a server, at the same time
 * and one after the other: docs/spec/tiers.md, A disk cache without a server. The samples survive the programs and a
 * restart of the machine. A cache in memory in front of it is the caller's.
 *
 * The handle is one for stoc_get, stoc_set and their like, stoc_claim, stoc_lengths, stoc_state(s), stoc_clear,
 * stoc_recover, stoc_stats, stoc_verify and stoc_info, whose fd is -1. It gives out no views and no gathers: EINVAL.
 * Each stoc_get compares the checksum of the sample. If it is wrong, the sample is a miss, counted as corrupt, and
 * removed. A disk that fails is no error of a sample: for a while reads are misses, and sets FULL. Calls wait for a disk
 * that hangs. A forked child may use the handle as long as its parent has it open.
 *
 * options: limit_bytes is the most that the file may take; fingerprint is required. directory, reserve, unlink_last,
 * client_records, slot_bytes and lengths are 0. The policy is FIRST_COME, RANDOM, CLOCK, FIFO, LRU or LFU; with variable size
 * FIRST_COME. A file with another fingerprint or other options is made again if no process uses it.
 *
 * It waits for at most 60 seconds while other processes open the file. EINVAL: a folder on a network file system is one;
 * ENOENT: no such folder; EMEMORY: the file
 * system or /dev/shm has too little space, with the numbers; EPERM: folder or file may not be written; EEXIST: a server
 * has the file, or processes with another /dev/shm; EFINGERPRINT, EFORMAT, EVERSION: processes use the file with
 * another fingerprint or other options, or the file is no disk cache; ETIMEOUT, ECLIENTS, ESYSTEM. */
STOC_API int stoc_disk_open(const char *path, const struct stoc_options *options, stoc_cache **out,
                            struct stoc_error *error);

/* Whether the path still names the file of a disk cache, whole and with its header: 0. EFORMAT, with the error's text:
 * another program has removed, replaced, truncated or overwritten it. Then what is stored is lost when the programs end
 * that have the file. Nothing else notices that: close the handle and open the path again. ESYSTEM; EINVAL: no disk cache. */
STOC_API int stoc_disk_look(stoc_cache *cache, struct stoc_error *error);

/* Aborts the open claims of the handle, unmaps and frees it. Views of this handle become invalid.
 * NULL is accepted. */
STOC_API void stoc_close(stoc_cache *cache);

/* Removes a named cache. Attached processes keep it. ENOENT, EPERM (not a segment of this user),
 * ESYSTEM. */
STOC_API int stoc_unlink(const char *name_or_path, struct stoc_error *error);

struct stoc_info {
    uint64_t struct_bytes; /* sizeof(struct stoc_info), set by the caller */
    uint64_t samples, slots, sample_bytes, slot_stride, segment_bytes, payload_offset, payload_bytes, limit_bytes;
    int64_t created_ns;
    uint32_t client_records, field_count, variable, policy, unlink_last, reserved_pages, read_only,
        layout_version;
    int32_t fd; /* the data descriptor: you may map it and pass it on; do not write to it or close it */
    unsigned char uuid[16];
    char name[128], fingerprint[65], path[512]; /* path is "" for a memfd */
    const void *payload; /* the read-only map, payload_bytes long; NULL if empty */
    /* "": samples are as they lie. Else the first field has the bytes of picture files, and this says how to decode
     * them (docs/spec/stores.md) */
    char decode[136];
    /* 1: its samples come from programs, and its server knows which other programs have: STOC_FETCH_LOADS */
    uint32_t programs;
    uint32_t lengths; /* 1: made with the option lengths */
    /* how many samples the disk below a served cache holds, with copies of those in memory; 0: none, or samples differ
     * in size */
    uint64_t below;
};
STOC_API int stoc_info(const stoc_cache *cache, struct stoc_info *info);
/* EINVAL if k is not below field_count */
STOC_API int stoc_field(const stoc_cache *cache, uint32_t k, struct stoc_field *field);

/* ------------------------------------------------------------ read */

/* Copies a sample. HIT: dst has *length bytes. MISS: nothing was written. ESCHEMA: capacity is too
 * small, and *length is the size needed. EINDEX. */
STOC_API int stoc_get(stoc_cache *cache, int64_t index, void *dst, size_t capacity, size_t *length);

/* Like stoc_get, but counts neither a hit nor a miss: for a second look after a miss that was counted. For the policy,
 * and for the count of corrupt samples, it is a read like any other. */
STOC_API int stoc_copy(stoc_cache *cache, int64_t index, void *dst, size_t capacity, size_t *length);

/* HIT: *data points to *length bytes of the cache, see VIEWS above. MISS: both stay unchanged. */
STOC_API int stoc_view(stoc_cache *cache, int64_t index, const void **data, size_t *length);

/* Like stoc_view, but counts neither a hit nor a miss. */
STOC_API int stoc_locate(const stoc_cache *cache, int64_t index, const void **data, size_t *length);

/* The caller owns the indices of a batch, and MUST NOT change them during the call: the call checks
 * them first and reads them again later.
 *
 * Copies n samples of a fixed-size cache, row k to dst + k * row_stride. Rows of misses stay
 * unchanged. hit[k] = 1 or 0; hit MAY be NULL. field >= 0: copies only that field of each sample;
 * row_stride must be at least its size. Returns the number of hits, EINDEX (nothing was copied) or
 * ESCHEMA.
 *
 * threads: the largest number of threads; the call uses fewer if more would not be faster. 0 and 1:
 * only the caller's thread. The other threads belong to the handle. They block all signals, wait
 * 10 ms for the next batch, and end with the handle and before a fork. If two batches of a handle
 * run at once, one of them uses only its caller's thread. */
STOC_API int64_t stoc_gather(stoc_cache *cache, const int64_t *indices, size_t n, int field, void *dst,
                             size_t row_stride, uint8_t *hit, unsigned threads);

/* The present lengths of n samples: lengths[k] = bytes, or UINT64_MAX for a miss. Not counted.
 * Returns the number of hits. */
STOC_API int64_t stoc_lengths(stoc_cache *cache, const int64_t *indices, size_t n, uint64_t *lengths);

/* Copies samples of any size: row k goes to dst + offsets[k] if the sample is READY and has exactly
 * lengths[k] bytes; otherwise hit[k] = 0. */
STOC_API int64_t stoc_gather_packed(stoc_cache *cache, const int64_t *indices, size_t n, void *dst,
                                    const uint64_t *offsets, const uint64_t *lengths, uint8_t *hit, unsigned threads);

enum stoc_state_of {
    STOC_STATE_EMPTY = 0,
    STOC_STATE_WRITING = 1,
    STOC_STATE_READY = 2,
    STOC_STATE_OUT = 3,
    STOC_STATE_CORRUPT = 4
};
/* The state of a sample, and those of samples first..first+n-1: enum stoc_state_of. Not counted. */
STOC_API int stoc_state(const stoc_cache *cache, int64_t index);
STOC_API int stoc_states(const stoc_cache *cache, uint64_t first, uint64_t n, uint8_t *states);

/* What the loads of samples first..first+n-1 take, in nanoseconds, to about 19 %; 0: unknown, as it was never told
 * (stoc_set_loaded), or its one load took far longer than those of others. Also of samples that are not in the cache
 * any more. */
STOC_API int stoc_costs(const stoc_cache *cache, uint64_t first, uint64_t n, uint64_t *nanoseconds);

/* Remembers that a sample, which is a list, has so many items, whether or not the cache holds it. Clients that read equal
 * lists store equal numbers; a clear forgets them. STORED, or EXISTS if the cache knows it. EINVAL: the cache was made
 * without lengths, or there are more than 2^32 - 1 items. EINDEX, EREADONLY. */
STOC_API int stoc_learn_length(stoc_cache *cache, int64_t index, uint64_t items);
/* What the cache knows of samples first..first+n-1: items + 1, or 0 if it does not know. EINVAL: the cache was made
 * without lengths. EINDEX. */
STOC_API int stoc_learned_lengths(const stoc_cache *cache, uint64_t first, uint64_t n, uint64_t *lengths);

/* Copies the bytes of a slot in any state; bytes never written are 0. Reads with pread, so that
 * holes stay holes. Fixed size only. Without first-indices a sample that is not READY is a
 * MISS. Not counted, and the copy may mix two versions. */
STOC_API int stoc_peek(stoc_cache *cache, int64_t index, void *dst, size_t capacity);

/* ------------------------------------------------------------ write */

#define STOC_OVERWRITE 1u /* replace a READY sample, instead of EXISTS */
#define STOC_WAIT 2u      /* while BUSY, poll for up to a minute; then return BUSY */

/* Stores a sample if the cache does not have it: STORED, EXISTS, BUSY, FULL, OUT or an error. data
 * is copied. Fixed size: length MUST be sample_bytes (else ESCHEMA). */
STOC_API int stoc_set(stoc_cache *cache, int64_t index, const void *data, size_t length, unsigned flags);
/* stoc_set of a sample that consists of the parts, one after the other. */
STOC_API int stoc_setv(stoc_cache *cache, int64_t index, const struct iovec *parts, int count, unsigned flags);
/* stoc_setv of a sample whose load took so many nanoseconds; 0: unknown. A cache with STOC_POLICY_COST
 * keeps the samples that cost most; others keep the time for `stocached advise`. EINVAL: above INT64_MAX. */
STOC_API int stoc_set_loaded(stoc_cache *cache, int64_t index, const struct iovec *parts, int count, unsigned flags,
                             uint64_t nanoseconds);

/* stoc_setv of a disk cache (stoc_disk_open) in the background: the sample is copied, and a thread of the handle writes
 * it. STORED: it waits for its write, and reads miss it until then. BUSY: 64 MiB of samples wait already, because the
 * disk is slow; the sample is counted as busy. EXISTS, FULL, OUT. A clear drops what waits. stoc_close writes what waits,
 * for at most 5 seconds; a process that ends without it loses that. A forked child does not write what its parent put.
 * EINVAL: a cache in memory. The thread blocks all signals, and ends after a moment without work. */
STOC_API int stoc_set_later(stoc_cache *cache, int64_t index, const struct iovec *parts, int count);
/* Waits until no sample of stoc_set_later waits for its write: 0. ETIMEOUT. */
STOC_API int stoc_flush(stoc_cache *cache, unsigned timeout_ms);

/* A fill in pieces: stoc_claim (STORED: claimed), then stoc_write any number of times, then
 * stoc_publish (STORED) or stoc_abort. Bytes never written are 0, or what the slot held before. The
 * caller owns the struct. Its members are private. EINVAL: the claim is not open. */
struct stoc_claim {
    stoc_cache *cache;
    uint64_t sample, word, offset, length, written;
    uint32_t entry, crc, generation, open;
};
STOC_API int stoc_claim(stoc_cache *cache, int64_t index, size_t length, unsigned flags, struct stoc_claim *claim);
/* ESCHEMA: past the end. FULL ends the claim */
STOC_API int stoc_write(struct stoc_claim *claim, uint64_t offset, const void *data, size_t length);
/* STORED, ELOST */
STOC_API int stoc_publish(struct stoc_claim *claim);
/* stoc_publish of a sample whose load took so many nanoseconds, as in stoc_set_loaded. EINVAL, which
 * leaves the claim open */
STOC_API int stoc_publish_loaded(struct stoc_claim *claim, uint64_t nanoseconds);
/* ELOST. Does nothing if the claim is not open */
STOC_API int stoc_abort(struct stoc_claim *claim);

/* The samples of a set of buckets: bucket b is bit b % 8 of byte b / 8. */
#define STOC_KEPT_BYTES 8192
/* From now on this handle stores only samples whose buckets are in a set, such as those of stoc_owners_keep: OUT for
 * others, unless the cache has them. A server stores no others for fetches of this handle, and gets no prefetches of
 * them. kept: STOC_KEPT_BYTES, which are copied; NULL: all samples again, as in
 * a new handle. Forked children inherit it. A set in another thread at the same time may use either. EREADONLY. */
STOC_API int stoc_keep(stoc_cache *cache, const uint8_t *kept);

/* Empties the cache. No client may claim a sample while the clear runs. The call waits for open
 * claims (ETIMEOUT after timeout_ms) and reclaims those of dead clients. BUSY: another clear
 * runs. */
STOC_API int stoc_clear(stoc_cache *cache, unsigned timeout_ms);

/*
 * The program's own memory. Fills stop at a floor (FULL), so that the kernel kills no process. They
 * notice too late what the program allocates after that.
 *
 * stoc_hold makes the fills of all clients leave this many bytes free for this client. The number
 * replaces the one held before; 0: none. Lower it as the program allocates the bytes.
 *
 * stoc_spare returns the bytes that the program may allocate now. It takes the tightest limit of
 * this process, and subtracts the floor and what all clients hold or are about to fill.
 */
STOC_API int64_t stoc_spare(stoc_cache *cache);
STOC_API int stoc_hold(stoc_cache *cache, uint64_t bytes);

/* Reclaims all claims of dead clients and returns how many. A set does so for the claim that it
 * meets. */
STOC_API int64_t stoc_recover(stoc_cache *cache);

/* ------------------------------------------------------------ served caches
 *
 * `stocached serve` reads samples from a source, each once for all processes. docs/spec/control.md
 * describes the protocol, docs/guides/server.md the server.
 *
 * A handle that fetches finds the server by itself. The socket is data.sock in
 * $STOCACHED_SOCKETS_DIR, else in $XDG_RUNTIME_DIR/stocached, else in /tmp/stocached-<uid>. The
 * handle asks for the cache by its name, and checks that the server has the same segment (else
 * EREPLACED). It starts no threads. Each call uses a connection of its own; the handle keeps idle
 * connections open. The handle connects again if the server was away, and always in a forked child.
 * stoc_close closes the connections.
 *
 * Samples that are in the cache need no server: a fetch of hits alone is a gather. The call counts
 * hits and misses once, when it begins. Samples that the server then brings are not counted again.
 */

/* Why a fetch failed for a sample, as the server says it. docs/spec/control.md has the same
 * numbers. */
enum stoc_remote {
    STOC_REMOTE_INDEX = 6,      /* no such sample */
    STOC_REMOTE_READ = 7,       /* the source could not read it; the message gives the reason and the file */
    STOC_REMOTE_CHANGED = 8,    /* the source has changed since it filled the cache */
    STOC_REMOTE_DAMAGED = 9,    /* the source's data of this sample is damaged */
    STOC_REMOTE_NO_SLOT = 10,   /* it has no slot, and the client did not ask for its bytes */
    STOC_REMOTE_CANCELLED = 11,
    STOC_REMOTE_CLOSING = 12,   /* the server ends, or removes this cache */
    STOC_REMOTE_INTERNAL = 13,  /* an internal error of the server */
    STOC_REMOTE_INVALID = 14,   /* an announced order that is none of this cache; only stoc_announce meets it */
    STOC_REMOTE_BAD = 15,       /* its file does not decode; the message gives the file and the reason */
    STOC_REMOTE_LOAD = 16,      /* no program has loaded or decoded it: the caller does, see STOC_FETCH_LOADS */
    STOC_REMOTE_LOADING = 17,   /* another program or machine loads it: ask again */
    STOC_REMOTE_NO_MEMORY = 18, /* there is a slot, and no memory for it; the client did not ask for its bytes */
    STOC_REMOTE_KIND = 19       /* the server does not decode its file, whose format the message names */
};

/* One sample that a fetch could not get. 1024 bytes. */
struct stoc_failure {
    uint64_t position; /* in the indices of the call */
    int64_t index;
    int32_t code; /* enum stoc_remote */
    char message[1004];
};

/* Count neither hits nor misses, because the caller has probed the cache before (with stoc_gather,
 * say). stoc_fetch leaves rows unchanged if hit says 1 (unless hit is NULL). */
#define STOC_FETCH_UNCOUNTED 1u

/* For caches whose samples come from programs (stoc_info: programs), and for callers that decode files of formats that
 * the server does not decode. The caller loads the samples that fail with STOC_REMOTE_LOAD, stores them (stoc_set), and MUST end each load with stoc_offer; the end of the process does so too.
 * Other programs and machines wait for it, for a minute at most. A call waits for samples that others load. But if it
 * has samples to load, it does not: samples that others load fail with STOC_REMOTE_LOADING, and the caller asks for
 * them again after its own loads. Without this flag, samples that no program has loaded fail with STOC_REMOTE_LOAD, and
 * no program waits.
 *
 * A caller that decodes gets the file by STOC_FETCH_FILES. It does not store the picture: stoc_offer does. If the file is
 * damaged, it calls stoc_offer_damaged. Without this flag, such samples fail with STOC_REMOTE_KIND. */
#define STOC_FETCH_LOADS 2u

/* For stoc_fetch_each, and not with STOC_FETCH_LOADS: asks for the files of pictures that a server decodes, and counts
 * nothing. 128 bytes before each say how to decode it: docs/spec/control.md, Files of other formats. */
#define STOC_FETCH_FILES 4u

struct stoc_fetch_options {
    uint64_t struct_bytes; /* sizeof(struct stoc_fetch_options) */
    /* for the whole call, including the wait for a server that is away. 0: wait 60 seconds for a
     * server, and without limit for its answer */
    uint32_t timeout_ms;
    uint32_t threads;      /* threads of the gather, as in stoc_gather */
    uint32_t flags;        /* STOC_FETCH_... */
    uint32_t reserved;     /* 0 */
    /* NULL: the call continues to wait after a signal. Else the call asks it after a signal, and at
     * least once a second while it waits. A result other than 0 ends the call with EINTERRUPTED.
     * The function MUST NOT use the handle. */
    int (*interrupted)(void *context);
    void *context;
    /* results; stoc_fetch_end frees them */
    uint64_t failed;                /* how many samples the fetch could not get */
    struct stoc_failure *failures;  /* one for each of them, by position; NULL: none */
};

/*
 * Copies n samples of a fixed-size cache, row k to dst + k * row_stride (row_stride >=
 * sample_bytes). The call gathers the hits like stoc_gather, and asks the server once for all
 * others. Samples that get no slot come through the socket. hit[k] = 1 or 0; hit MAY be NULL. A row
 * whose hit is 0 stays unchanged or holds anything. options MAY be NULL.
 *
 * Returns how many samples it got: n, or fewer if the source failed for some. Then
 * options->failures gives the reason for each of them, and error has the first (EREMOTE).
 *
 * Errors: ENOSERVER with the command that starts one, EREPLACED, ETIMEOUT, EREMOTE, EINTERRUPTED
 * (only rows with hit[k] = 1 are valid), EINDEX, ESCHEMA, EINVAL, EMEMORY.
 */
STOC_API int64_t stoc_fetch(stoc_cache *cache, const int64_t *indices, size_t n, void *dst, size_t row_stride,
                            uint8_t *hit, struct stoc_fetch_options *options, struct stoc_error *error);

/* Like stoc_fetch, for samples of any size. data[k] becomes memory with the lengths[k] bytes of
 * sample indices[k]. It is NULL (and lengths[k] is 0) if the fetch could not get the sample.
 * stoc_fetch_end frees all of data. On an error all of data is NULL. */
STOC_API int64_t stoc_fetch_each(stoc_cache *cache, const int64_t *indices, size_t n, void **data, uint64_t *lengths,
                                 struct stoc_fetch_options *options, struct stoc_error *error);

/* Frees failures of options, and data[0..n-1], and sets them to NULL. Either may be NULL. */
STOC_API void stoc_fetch_end(struct stoc_fetch_options *options, void **data, size_t n);

/* Asks the server to read samples when it is idle. Returns how many it queued: those that are not
 * in the cache, as far as its queue has space. Errors as stoc_fetch. */
STOC_API int64_t stoc_prefetch(stoc_cache *cache, const int64_t *indices, size_t n, struct stoc_fetch_options *options,
                               struct stoc_error *error);

/* Offers a sample that the caller has loaded to other machines, and one that it has decoded also to the cache: its parts, one after the other, have sample_bytes,
 * or at most so many in a variable-size cache.
 * count 0: the load of the sample has failed, and another program may load it. 1: a tier takes the sample. 0: none does.
 * EINVAL also for a cache whose samples a server reads from a source and does not decode, EINDEX, ESCHEMA, and the
 * connection's errors of stoc_fetch. timeout_ms as in stoc_fetch_options. */
STOC_API int stoc_offer(stoc_cache *cache, int64_t index, const struct iovec *parts, int count, unsigned timeout_ms,
                        struct stoc_error *error);

/* Ends the load of a sample whose file the caller was to decode, and found damaged. Other clients get the reason. Returns
 * 0, or an error as stoc_offer. */
STOC_API int stoc_offer_damaged(stoc_cache *cache, int64_t index, const char *reason, unsigned timeout_ms,
                                struct stoc_error *error);

/* Attaches to a cache through its server, which passes the segment. Use it for caches that this
 * process cannot open by name (another mount namespace or directory). sockets_dir NULL: as above;
 * the handle remembers it. flags as for stoc_open. Of the options (NULL: 0 each), timeout_ms and
 * interrupted count: a timeout of 0 waits 60 seconds for the server and its answer. ENOSERVER, ETIMEOUT, EINTERRUPTED,
 * ENOENT (the server has no such cache), and the errors of stoc_open. */
STOC_API int stoc_dial(const char *name, const char *sockets_dir, unsigned flags,
                       const struct stoc_fetch_options *options, stoc_cache **out,
                       struct stoc_error *error);

/* ------------------------------------------------------------ the order of an epoch
 *
 * An order is a function from a position to a sample: docs/spec/order.md. Its memory does not grow
 * with the dataset (except weights). Go and all versions of this library have the same orders. They
 * need no cache.
 */

enum stoc_order_kind {
    STOC_ORDER_SEQUENTIAL = 0, /* 0, 1, 2, ... */
    STOC_ORDER_SHUFFLED = 1,   /* any sample at any position */
    STOC_ORDER_WINDOWS = 2,    /* windows of `window` samples, from first to last; each window is shuffled */
    /* blocks of `block` samples are shuffled, then the samples within `window` blocks at a time */
    STOC_ORDER_BLOCKS = 3
};

struct stoc_order {
    uint64_t struct_bytes; /* sizeof(struct stoc_order) */
    uint64_t samples;      /* samples of the dataset, 1 to 2^40 */
    uint64_t seed;
    uint64_t window, block; /* see the kinds; 0 for kinds without them */
    uint32_t kind;          /* enum stoc_order_kind */
    uint32_t reserved;      /* 0 */
};

typedef struct stoc_epoch stoc_epoch; /* the order of one epoch. Immutable: threads and forked children may share it */

/* EINVAL, naming the member that is wrong; EMEMORY. Takes microseconds. */
STOC_API int stoc_epoch_open(const struct stoc_order *order, uint64_t epoch, stoc_epoch **out,
                             struct stoc_error *error);
STOC_API void stoc_epoch_close(stoc_epoch *epoch); /* NULL is accepted */

/* Samples drawn with replacement, each as often as its weight says. Weights are finite and not
 * below 0; at least one is above 0. The table takes 16 bytes and 0.1 us a sample. The library does
 * not keep weights. The table is immutable. EINVAL, naming the weight; EMEMORY. An epoch keeps the
 * table alive: the program may close it before its epochs. NULL is accepted. */
typedef struct stoc_weights stoc_weights;
STOC_API int stoc_weights_open(const double *weights, uint64_t n, stoc_weights **out, struct stoc_error *error);
STOC_API void stoc_weights_close(stoc_weights *weights);

/* draws: positions of the epoch, at most 2^40; 0: the number of samples. */
STOC_API int stoc_epoch_open_weighted(stoc_weights *weights, uint64_t draws, uint64_t seed, uint64_t epoch,
                                      stoc_epoch **out, struct stoc_error *error);

/* Where an epoch of a mix ends. */
enum stoc_mix_stop {
    STOC_MIX_FIRST = 0, /* where one dataset would begin again: no sample repeats */
    /* when all have been read: datasets too small for their ratio start again, in another order, as
     * often as needed */
    STOC_MIX_ALL = 1,
    STOC_MIX_LENGTH = 2 /* at `length`; the next epoch continues each dataset where it was */
};

/* Samples of several datasets by ratio. Indices are those of the concatenated datasets: the index
 * in a dataset plus the samples of all datasets before it. */
struct stoc_mix {
    uint64_t struct_bytes;           /* sizeof(struct stoc_mix) */
    uint64_t datasets;               /* 1 to 65536 */
    const struct stoc_order *orders; /* one for each dataset; together they have at most 2^40 samples */
    /* one for each, from 1 on; their sum is below 2^31. 7 and 3 give 70 and 30 percent */
    const uint64_t *ratios;
    uint64_t seed;                   /* with the ratios, it decides which dataset comes at a position */
    uint64_t length;                 /* STOC_MIX_LENGTH: positions of an epoch, 1 to 2^40; otherwise 0 */
    uint32_t stop;                   /* enum stoc_mix_stop */
    uint32_t reserved;               /* 0 */
};

/* The library keeps nothing of mix. Time and memory (about 100 bytes) grow with the number of
 * datasets, not of samples. EINVAL, naming the member that is wrong; EMEMORY. */
STOC_API int stoc_epoch_open_mixed(const struct stoc_mix *mix, uint64_t epoch, stoc_epoch **out,
                                   struct stoc_error *error);

/* The number of positions: samples, draws, or where a mix stops. */
STOC_API int64_t stoc_epoch_length(const stoc_epoch *epoch);

/* The sample at a position, and the position of a sample. EINDEX. EUNSUPPORTED for the position of
 * a sample with weights or in a mix: it may have several positions or none. For many positions of
 * windows, blocks and mixes stoc_epoch_fill is faster. */
STOC_API int64_t stoc_epoch_at(const stoc_epoch *epoch, uint64_t position);
STOC_API int64_t stoc_epoch_position(const stoc_epoch *epoch, int64_t index);

/* Writes the samples at positions first, first + step, ... to indices: at most n, and up to the end
 * of the epoch. step >= 1. Returns how many; EINVAL. */
STOC_API int64_t stoc_epoch_fill(const stoc_epoch *epoch, int64_t *indices, size_t n, uint64_t first, uint64_t step);

/* What happens if the ranks do not divide the number of samples. */
enum stoc_ends {
    STOC_ENDS_UNEVEN = 0, /* some ranks get one more sample */
    STOC_ENDS_PAD = 1,    /* ranks with one less repeat samples from the epoch's start; these are not real */
    STOC_ENDS_DROP = 2    /* the last samples are left out */
};

/* The samples of one rank from position `from` on: every ranks-th, starting with number rank. When
 * each rank has read k samples, the epoch is read up to from + k * ranks (or its end). Any other
 * number of ranks may continue from there. */
struct stoc_shard {
    uint64_t struct_bytes; /* sizeof(struct stoc_shard) */
    uint64_t rank, ranks;
    uint64_t from;         /* at most the length of the epoch */
    uint32_t ends;         /* enum stoc_ends */
    uint32_t reserved;     /* 0 */
    /* stoc_epoch_shard writes them: how many samples this rank reads, and how many of these no
     * other rank reads */
    uint64_t samples, real;
};

/* Checks a shard, and fills in samples and real. EINVAL, naming the member that is wrong. */
STOC_API int stoc_epoch_shard(const stoc_epoch *epoch, struct stoc_shard *shard, struct stoc_error *error);

/* Writes the samples of a shard, from number first on, to indices: at most n, and up to the end of
 * the shard. Returns how many; EINVAL. */
STOC_API int64_t stoc_epoch_fill_shard(const stoc_epoch *epoch, const struct stoc_shard *shard, int64_t *indices,
                                       size_t n, uint64_t first);

/* The nodes of a job, in the order of their ranks: docs/spec/order.md, "Nodes". */
struct stoc_nodes {
    uint64_t struct_bytes; /* sizeof(struct stoc_nodes) */
    uint64_t count;
    const char *const *names;   /* names of 1 to 255 bytes, each unlike all others. NULL: their numbers */
    const uint64_t *ranks;      /* ranks of the job on each node, at least 1 */
    const uint64_t *capacities; /* samples that the cache of each node holds. NULL, or one is 0: not known */
};

typedef struct stoc_owners stoc_owners; /* which node owns a sample. Immutable: threads and forked children may share it */

/* EINVAL, EMEMORY. Takes about 0.1 s for 64 nodes, 1 MiB while it runs, and 260 KiB after. */
STOC_API int stoc_owners_open(const struct stoc_nodes *nodes, uint64_t samples, stoc_owners **out,
                              struct stoc_error *error);
STOC_API void stoc_owners_close(stoc_owners *owners); /* NULL is accepted */
STOC_API int64_t stoc_owners_quota(const stoc_owners *owners, uint64_t node); /* buckets of 65536. EINVAL */
/* Writes the node that owns each of n samples; -1: none does. EINVAL. */
STOC_API int stoc_owners_find(const stoc_owners *owners, const int64_t *indices, int64_t *nodes, size_t n);

/* Writes the buckets that the cache of a node keeps: those that the node owns, and copies of others if it has
 * room for more. capacity: samples that the cache holds; 0: not known, it keeps all. For stoc_keep. EINVAL, EMEMORY. */
STOC_API int stoc_owners_keep(const stoc_owners *owners, uint64_t node, uint64_t capacity, uint8_t *kept);

/* How global batches are dealt to the ranks of nodes, from position `from` on. */
struct stoc_deal {
    uint64_t struct_bytes; /* sizeof(struct stoc_deal) */
    uint64_t batch;        /* samples of a rank in a batch */
    uint64_t from;         /* at most the length of the epoch */
    uint32_t ends;         /* STOC_ENDS_PAD or STOC_ENDS_DROP */
    uint32_t reserved;     /* 0 */
    /* stoc_epoch_deal writes them: ranks of all nodes; samples of each rank; global batches, of which the last may have
     * fewer samples; a number that differs, except by chance, if one setting does */
    uint64_t ranks, samples, batches, digest;
};

/* Checks a deal, and fills in its last members. EINVAL, naming the member that is wrong; EMEMORY. */
STOC_API int stoc_epoch_deal(const stoc_epoch *epoch, const stoc_owners *owners, struct stoc_deal *deal,
                             struct stoc_error *error);

/* Writes the samples of a global batch to indices, rank after rank, each as many as the others. n: room in indices, for
 * batch * ranks samples. Returns how many; EINVAL, EMEMORY. */
STOC_API int64_t stoc_epoch_fill_deal(const stoc_epoch *epoch, const stoc_owners *owners, const struct stoc_deal *deal,
                                      uint64_t batch, int64_t *indices, size_t n);

/* Tells the server of the cache what this handle reads from now on: the shard of an epoch from
 * shard->from on, `batch` samples at a time, and then the next epochs. It replaces what the handle
 * announced before; order NULL: the handle reads no plan any more. A cache with STOC_POLICY_PLANNED
 * keeps what all jobs read soonest, and the server reads it ahead. Each counted hit and miss of the
 * handle counts as a read of the plan. shard->samples and real are not used.
 *
 * 1: the cache has this policy. 0: it has another one. After a timeout or the end of a connection, or
 * when another server takes over, the next call of the handle to the server announces the plan by itself. A forked child has no plan. EINVAL for an order that is none of this
 * cache, EREADONLY, and the connection's errors of stoc_fetch. timeout_ms as in stoc_fetch_options. */
STOC_API int stoc_announce(stoc_cache *cache, const struct stoc_order *order, uint64_t epoch,
                           const struct stoc_shard *shard, size_t batch, unsigned timeout_ms, struct stoc_error *error);

/* Tells the server how many reads the job of this handle has made of the plan that it announced last.
 * For a job whose samples other processes read, such as workers: they have handles and counters of
 * their own. From the first call on, the server goes by these numbers until the next plan. Call it
 * after every few batches; each call waits for one answer of the server. Two threads MUST NOT call it or
 * stoc_announce for one handle at the same time.
 *
 * 1: as stoc_announce. 0: as stoc_announce, or the handle has announced no plan. Errors and timeout_ms
 * as stoc_announce. */
STOC_API int stoc_announce_reads(stoc_cache *cache, uint64_t reads, unsigned timeout_ms, struct stoc_error *error);

/* ------------------------------------------------------------ tasks for workers
 *
 * A task queue in memory that a parent shares with its workers (processes or threads). The parent
 * posts tasks; workers take and answer them. There are no locks: any process but the parent may be
 * killed at any time. docs/spec/workers.md. Two threads MUST NOT call functions of the parent at once.
 *
 * The caller owns the memory. It MUST begin at a multiple of 64 and be zero before init. The caller
 * reads answers in place: the task of position p lies at 4096 + (p mod capacity) *
 * STOC_QUEUE_TASK_BYTES. Its answer lies STOC_QUEUE_ANSWER_OFFSET further on, with the members of
 * struct stoc_task from result on.
 */

#define STOC_QUEUE_TASK_BYTES 128
#define STOC_QUEUE_ANSWER_OFFSET 64
#define STOC_TASK_CANCELLED (-1) /* the only result that the library sets; the caller defines all others */

struct stoc_task {
    uint64_t position, first; /* position of this task, and of the first task of its batch; the library sets them */
    int64_t index;            /* for the caller: what to do */
    uint32_t row, buffer, kind;
    uint32_t only; /* 0: any worker may take it; else only worker `only - 1`. 0 for all tasks of a batch, or for none */
    uint64_t argument;
    int32_t result; /* the answer, set by the worker */
    uint32_t worker;
    uint64_t overflow_offset, overflow_bytes; /* a taken task has the overflow_offset that it was pushed with */
};

/* Bytes of a queue for this many tasks at a time (1 to 2^20, rounded up to a power of two). 0: the
 * number is not allowed. */
STOC_API size_t stoc_queue_bytes(uint32_t tasks);
STOC_API int stoc_queue_init(void *memory, uint32_t tasks);

/* Parent. Posts the n tasks of a batch, n at most half of the queue. Returns the position of the
 * first. EMEMORY: the queue is full until a release. */
STOC_API int64_t stoc_queue_push(void *memory, const struct stoc_task *tasks, size_t n);
/* Parent. The same for n samples of a batch: task k is like *as, its row is rows[k] (NULL: k), and its index is
 * indices[row]. seed: of an epoch; argument is the seed of the sample then (docs/spec/workers.md, Samples of a
 * batch). NULL: argument is that of *as. */
STOC_API int64_t stoc_queue_push_samples(void *memory, const struct stoc_task *as, const int64_t *indices,
                                         const int64_t *rows, size_t n, const uint64_t *seed);

/* Worker (0 to 65535; one process or thread per number). Takes the next task and up to n - 1 of the
 * same batch that follow it directly; n is 1 to 2^20. It takes a reposted task alone. Returns how
 * many. 0: none came in timeout_ms, or a signal came. ECLOSED: the queue was stopped.
 *
 * For each task but the first the worker MAY store when it begins (began_ns of the answer in its
 * place, CLOCK_MONOTONIC). That time also ends the task before. If the worker is killed, it was at
 * the last task that has this time. For each task it MAY store how long a part of the work took
 * (augment_ns), how long the rest of it waited, at least 1 (waited_ns), and how long it was runnable
 * without a processor, which is in neither of these (delayed_ns). */
STOC_API int stoc_queue_take(void *memory, uint32_t worker, uint32_t timeout_ms, struct stoc_task *tasks, uint32_t n);
/* Worker. Answers tasks that it took: result, worker and overflow of each. ELOST: this worker does not
 * hold one of them any more. The others are answered. */
STOC_API int stoc_queue_done(void *memory, uint32_t worker, const struct stoc_task *tasks, uint32_t n);

struct stoc_batch {
    uint64_t first; /* the result of push */
    uint64_t tasks;
};
/* Parent. Waits at most timeout_ms until all tasks of one of these batches have answers. Returns
 * the number of the first such batch, or `count` if there is none. It returns early for a signal. */
STOC_API int64_t stoc_queue_wait(void *memory, const struct stoc_batch *batches, size_t count, uint32_t timeout_ms);
/* Parent. Frees tasks whose answers the parent has read. BUSY: one of them has no answer yet. */
STOC_API int stoc_queue_release(void *memory, uint64_t first, uint32_t n);
struct stoc_collected {
    uint64_t load_ns; /* the sum of ended_ns - began_ns */
    uint64_t hits;    /* tasks with the result `hit` */
    uint64_t waited_ns, measured_ns; /* waits of tasks whose waits are known, and their work without augment_ns
                                      and delayed_ns */
    uint64_t augment_ns, hit_ns; /* the sum of augment_ns, and the rest of tasks whose result is `hit` or more */
};
/* Parent. Sums up the answers to the n tasks of a batch. Returns how many have a result other than 0 and `hit`. If none
 * has, it also releases the tasks. BUSY: one of them has no answer yet. */
STOC_API int64_t stoc_queue_collect(void *memory, uint64_t first, uint32_t n, int32_t hit,
                                    struct stoc_collected *sums);
/* Parent. Answers with STOC_TASK_CANCELLED the tasks that no worker has taken. Returns how many
 * tasks workers still hold. */
STOC_API int64_t stoc_queue_cancel(void *memory, uint64_t first, uint32_t n);
/* Parent, about a dead worker. Returns how many tasks it held, and writes the positions of the
 * first n. The parent MUST repost each of them (ELOST: that worker does not hold it). */
STOC_API int64_t stoc_queue_held(void *memory, uint32_t worker, uint64_t *positions, size_t n);
STOC_API int stoc_queue_repost(void *memory, uint32_t worker, uint64_t position);

/* Any process. Every take returns ECLOSED from now on. */
STOC_API void stoc_queue_stop(void *memory);

/* Any process. Reserves bytes in a file of the caller. Returns their offset, a multiple of 4096. No
 * other call gets the same bytes. */
STOC_API int64_t stoc_queue_overflow(void *memory, uint64_t bytes);
/* Any process. The same in a place of `size` bytes, at a multiple of 64. It begins with a counter, which is 0 at first.
 * Returns the offset in the place, a multiple of 64. EMEMORY: the place has no room for them. */
STOC_API int64_t stoc_queue_reserve(void *place, uint64_t size, uint64_t bytes);

/* Any process. Copies a sample to its row of a batch. It prefetches what it writes to, because rows
 * are in no processor cache. The two must not overlap. */
STOC_API void stoc_queue_copy(void *row, const void *sample, size_t bytes);

/* ------------------------------------------------------------ tasks without an interpreter
 *
 * stoc_work takes tasks of a task queue and does them with two functions of the caller. It finds the
 * sample in the cache, or calls `load` and stores what that made. Then `finish` makes the row of the
 * batch. What it cannot do comes back to the caller, who does it in another way. So the threads of a
 * loader need their interpreter only for errors and for odd samples. docs/spec/workers.md.
 *
 * The struct belongs to one thread. libstocached_image has a load and a finish for pictures.
 */

struct stoc_work {
    uint64_t struct_bytes; /* sizeof(struct stoc_work) */
    void *queue;
    stoc_cache *cache; /* NULL: none. It MUST stay open during the call */
    void *context;     /* context of load and finish */
    /* Makes a sample: sets *sample and *bytes, whose memory stays as it is until the next load of this
     * context. NULL: misses come back. Any result but 0: the task comes back */
    int (*load)(void *context, int64_t index, const void **sample, size_t *bytes);
    /* Makes row `row` in a buffer, from a sample. argument: of the task. Any result but 0: the task comes
     * back */
    int (*finish)(void *context, uint64_t argument, const void *sample, size_t bytes, void *buffer, uint32_t row);
    void **buffers; /* by the number in a task; NULL: not known yet, and its tasks come back */
    uint32_t buffer_count;
    uint32_t worker;    /* as for stoc_queue_take */
    uint32_t kind;      /* kind of tasks to do; others come back */
    int32_t loaded, hit; /* results of tasks: `load` made the sample; it was in the cache */
    /* 1: `finish` gets a copy of a hit, whose bytes do not change. 0: it may get the bytes in the cache. If these
     * change during the call, its row is made again */
    uint32_t copies;
    /* private; 0 before the first call */
    int32_t schedule;
    uint32_t reserved;
    uint64_t pace_ns, copy_bytes;
    void *copy;
    /* of stoc_disk_open; NULL: none. What `cache` misses may come from it, as a sample of `load` does, and what `load`
     * made is stored in it too, as by stoc_set_later. A disk without room for all samples gets those that `cache` does
     * not keep (docs/spec/tiers.md) */
    stoc_cache *disk;
    /* The sample of the cache and of `load` for each index of a task, of index_count; another index comes back.
     * NULL: the same */
    const int64_t *indices;
    uint64_t index_count;
};

/* Does tasks for about timeout_ms. Returns how many tasks came back, as in stoc_queue_take: at most n,
 * in `tasks`. The caller answers them with stoc_queue_done. 0: the time is over, or a signal came.
 * ECLOSED: the queue was stopped. EINVAL. */
STOC_API int stoc_work(struct stoc_work *work, uint32_t timeout_ms, struct stoc_task *tasks, uint32_t n);
/* Frees what calls of stoc_work have allocated. */
STOC_API void stoc_work_end(struct stoc_work *work);

/* ------------------------------------------------------------ inspect */

/* Compares READY samples first..first+n-1 with their checksums. Returns how many are corrupt. *bad
 * (may be NULL) is the first of them. Not counted as hits. EMEMORY: there is no memory for a copy, which
 * a variable-size cache that evicts needs. */
STOC_API int64_t stoc_verify(stoc_cache *cache, uint64_t first, uint64_t n, uint64_t *checked, int64_t *bad);

struct stoc_stats {
    uint64_t struct_bytes; /* sizeof(struct stoc_stats), set by the caller */
    uint64_t hits, misses, stored, exists, busy, full, out, stored_bytes, recovered, aborted, lost, retried, corrupt,
        passed;
    uint64_t ready;         /* number of READY samples, from a scan of the index */
    uint64_t ready_bytes;   /* their bytes */
    /* variable size only: allocated so far, and of these bytes those that no sample has any more. In a cache that
     * evicts: in slots that are taken now, and of these unused ends of slots, and slots that are being filled */
    uint64_t arena_next_bytes, arena_lost_bytes;
    uint64_t clients_live, clients_ended;        /* ended: records of past clients, with or without claims */
    uint64_t allocated_bytes;                    /* pages of the file */
    uint64_t clears;
    uint64_t evicted;       /* samples that went for others */
    /* in free slots of a variable-size cache that evicts */
    uint64_t arena_free_bytes;
    /* of the evicted, those of the last epoch: about as many reads as there are samples */
    uint64_t replaced;
};
STOC_API int stoc_stats(stoc_cache *cache, struct stoc_stats *stats);

/* The members `clears` and `stored` of stoc_stats, without its scan of the index. If both are as before, each sample
 * that was READY then has the same bytes, or has gone. EINVAL, ECLOSED. */
STOC_API int stoc_changes(const stoc_cache *cache, uint64_t *clears, uint64_t *stored);

/* Adds n to the counter "passed": samples outside the schema that a wrapper did not store. */
STOC_API void stoc_count_passed(stoc_cache *cache, uint64_t n);

/* ------------------------------------------------------------ for arrays */

/* Like stoc_view, for the fastest callers. Returns the slot: the row of the sample in an array over the payload with
 * slot_stride bytes a row; -1 on a miss, and error codes minus 1 (EINDEX is STOC_EINDEX - 1). Fixed-size caches only. */
STOC_API int64_t stoc_view_slot(stoc_cache *cache, int64_t index);
STOC_API int64_t stoc_locate_slot(const stoc_cache *cache, int64_t index); /* not counted */

/* stoc_set with length sample_bytes and no flags, because ctypes takes half a microsecond for each
 * argument. Fixed-size caches only, else ESCHEMA. */
STOC_API int stoc_put(stoc_cache *cache, int64_t index, const void *data);

/* stoc_gather with one destination for each field: field f of sample indices[k] goes to dst[f] + k
 * * row_stride[f]. dst[f] NULL skips the field. dst and row_stride have field_count entries. One
 * check covers all fields of a sample, so they belong to one version. Returns the number of hits,
 * EINDEX or ESCHEMA. */
STOC_API int64_t stoc_gather_fields(stoc_cache *cache, const int64_t *indices, size_t n, void *const *dst,
                                    const size_t *row_stride, uint8_t *hit, unsigned threads);

/* Closes the handle and keeps the map of the payload (info.payload, payload_bytes rounded up to a
 * page). The caller MUST munmap it when its last view is gone. */
STOC_API void stoc_close_keep_payload(stoc_cache *cache);

#ifdef __cplusplus
}
#endif
#endif

"""Generated from cclient/stocached.h by go generate ./internal/ctypes; do not edit.

Constants, structs and functions of the C library, under their names there without stoc_."""

from __future__ import annotations

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    c_char,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_ubyte,
    c_uint,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)

from ._library import IoVec, bind, check_abi, holding, releasing

ABI_VERSION = 1
VARIABLE_DIM = 2**64 - 1
OPEN_READ_ONLY = 1
OPEN_KIND_PYTHON = 2
OVERWRITE = 1
WAIT = 2
KEPT_BYTES = 8192
FETCH_UNCOUNTED = 1
FETCH_LOADS = 2
FETCH_FILES = 4
QUEUE_TASK_BYTES = 128
QUEUE_ANSWER_OFFSET = 64
TASK_CANCELLED = -1

check_abi(holding, "stoc_abi_version", ABI_VERSION)

# enum stoc_code
STORED = 0
EXISTS = 1
BUSY = 2
FULL = 3
OUT = 4
MISS = 0
HIT = 1
EINVAL = -1
EINDEX = -2
ESCHEMA = -3
ENOENT = -4
EEXIST = -5
EFORMAT = -6
EVERSION = -7
EFINGERPRINT = -8
EMEMORY = -9
EPERM = -10
EREADONLY = -11
ECLOSED = -12
ECLIENTS = -13
ETIMEOUT = -14
ESYSTEM = -15
ELOST = -16
ECORRUPT = -17
EUNSUPPORTED = -18
ENOSERVER = -19
EREPLACED = -20
EREMOTE = -21
EINTERRUPTED = -22

# enum stoc_dtype
BYTES = 0
BOOL = 1
UINT8 = 2
INT8 = 3
UINT16 = 4
INT16 = 5
UINT32 = 6
INT32 = 7
UINT64 = 8
INT64 = 9
FLOAT16 = 10
BFLOAT16 = 11
FLOAT32 = 12
FLOAT64 = 13
COMPLEX64 = 14
COMPLEX128 = 15

# enum stoc_policy
POLICY_FIRST_COME = 0
POLICY_FIRST_INDICES = 1
POLICY_COST = 2
POLICY_RANDOM = 3
POLICY_CLOCK = 4
POLICY_FIFO = 5
POLICY_LRU = 6
POLICY_LFU = 7
POLICY_PLANNED = 8

# enum stoc_state_of
STATE_EMPTY = 0
STATE_WRITING = 1
STATE_READY = 2
STATE_OUT = 3
STATE_CORRUPT = 4

# enum stoc_remote
REMOTE_INDEX = 6
REMOTE_READ = 7
REMOTE_CHANGED = 8
REMOTE_DAMAGED = 9
REMOTE_NO_SLOT = 10
REMOTE_CANCELLED = 11
REMOTE_CLOSING = 12
REMOTE_INTERNAL = 13
REMOTE_INVALID = 14
REMOTE_BAD = 15
REMOTE_LOAD = 16
REMOTE_LOADING = 17
REMOTE_NO_MEMORY = 18
REMOTE_KIND = 19

# enum stoc_order_kind
ORDER_SEQUENTIAL = 0
ORDER_SHUFFLED = 1
ORDER_WINDOWS = 2
ORDER_BLOCKS = 3

# enum stoc_mix_stop
MIX_FIRST = 0
MIX_ALL = 1
MIX_LENGTH = 2

# enum stoc_ends
ENDS_UNEVEN = 0
ENDS_PAD = 1
ENDS_DROP = 2


class Error(ctypes.Structure):
    """struct stoc_error"""

    _fields_ = [
        ("code", c_int),
        ("os_error", c_int),
        ("message", c_char * 504),
    ]


class Field(ctypes.Structure):
    """struct stoc_field"""

    _fields_ = [
        ("name", c_char * 40),
        ("dtype", c_uint16),
        ("ndim", c_uint16),
        ("reserved", c_uint32),
        ("offset", c_uint64),
        ("bytes", c_uint64),
        ("dims", c_uint64 * 8),
    ]


Progress = CFUNCTYPE(None, c_void_p, c_uint64, c_uint64)


class Options(ctypes.Structure):
    """struct stoc_options"""

    _fields_ = [
        ("struct_bytes", c_uint64),
        ("samples", c_uint64),
        ("limit_bytes", c_uint64),
        ("slots", c_uint64),
        ("sample_bytes", c_uint64),
        ("fields", POINTER(Field)),
        ("field_count", c_uint32),
        ("policy", c_uint32),
        ("variable", c_uint32),
        ("reserve", c_uint32),
        ("unlink_last", c_uint32),
        ("client_records", c_uint32),
        ("directory", c_char_p),
        ("fingerprint", c_char_p),
        ("progress", Progress),
        ("context", c_void_p),
        ("open_flags", c_uint32),
        ("lengths", c_uint32),
        ("slot_bytes", c_uint64),
    ]


class Cache(c_void_p):
    """A handle: a pointer object of its own, which keeps what hangs on it alive during a call."""


class Info(ctypes.Structure):
    """struct stoc_info"""

    _fields_ = [
        ("struct_bytes", c_uint64),
        ("samples", c_uint64),
        ("slots", c_uint64),
        ("sample_bytes", c_uint64),
        ("slot_stride", c_uint64),
        ("segment_bytes", c_uint64),
        ("payload_offset", c_uint64),
        ("payload_bytes", c_uint64),
        ("limit_bytes", c_uint64),
        ("created_ns", c_int64),
        ("client_records", c_uint32),
        ("field_count", c_uint32),
        ("variable", c_uint32),
        ("policy", c_uint32),
        ("unlink_last", c_uint32),
        ("reserved_pages", c_uint32),
        ("read_only", c_uint32),
        ("layout_version", c_uint32),
        ("fd", c_int32),
        ("uuid", c_ubyte * 16),
        ("name", c_char * 128),
        ("fingerprint", c_char * 65),
        ("path", c_char * 512),
        ("payload", c_void_p),
        ("decode", c_char * 136),
        ("programs", c_uint32),
        ("lengths", c_uint32),
        ("below", c_uint64),
    ]


class Claim(ctypes.Structure):
    """struct stoc_claim"""

    _fields_ = [
        ("cache", Cache),
        ("sample", c_uint64),
        ("word", c_uint64),
        ("offset", c_uint64),
        ("length", c_uint64),
        ("written", c_uint64),
        ("entry", c_uint32),
        ("crc", c_uint32),
        ("generation", c_uint32),
        ("open", c_uint32),
    ]


class Failure(ctypes.Structure):
    """struct stoc_failure"""

    _fields_ = [
        ("position", c_uint64),
        ("index", c_int64),
        ("code", c_int32),
        ("message", c_char * 1004),
    ]


Interrupted = CFUNCTYPE(c_int, c_void_p)


class FetchOptions(ctypes.Structure):
    """struct stoc_fetch_options"""

    _fields_ = [
        ("struct_bytes", c_uint64),
        ("timeout_ms", c_uint32),
        ("threads", c_uint32),
        ("flags", c_uint32),
        ("reserved", c_uint32),
        ("interrupted", Interrupted),
        ("context", c_void_p),
        ("failed", c_uint64),
        ("failures", POINTER(Failure)),
    ]


class Order(ctypes.Structure):
    """struct stoc_order"""

    _fields_ = [
        ("struct_bytes", c_uint64),
        ("samples", c_uint64),
        ("seed", c_uint64),
        ("window", c_uint64),
        ("block", c_uint64),
        ("kind", c_uint32),
        ("reserved", c_uint32),
    ]


class Epoch(c_void_p):
    """A handle: a pointer object of its own, which keeps what hangs on it alive during a call."""


class Weights(c_void_p):
    """A handle: a pointer object of its own, which keeps what hangs on it alive during a call."""


class Mix(ctypes.Structure):
    """struct stoc_mix"""

    _fields_ = [
        ("struct_bytes", c_uint64),
        ("datasets", c_uint64),
        ("orders", POINTER(Order)),
        ("ratios", POINTER(c_uint64)),
        ("seed", c_uint64),
        ("length", c_uint64),
        ("stop", c_uint32),
        ("reserved", c_uint32),
    ]


class Shard(ctypes.Structure):
    """struct stoc_shard"""

    _fields_ = [
        ("struct_bytes", c_uint64),
        ("rank", c_uint64),
        ("ranks", c_uint64),
        ("from", c_uint64),
        ("ends", c_uint32),
        ("reserved", c_uint32),
        ("samples", c_uint64),
        ("real", c_uint64),
    ]


class Nodes(ctypes.Structure):
    """struct stoc_nodes"""

    _fields_ = [
        ("struct_bytes", c_uint64),
        ("count", c_uint64),
        ("names", POINTER(c_char_p)),
        ("ranks", POINTER(c_uint64)),
        ("capacities", POINTER(c_uint64)),
    ]


class Owners(c_void_p):
    """A handle: a pointer object of its own, which keeps what hangs on it alive during a call."""


class Deal(ctypes.Structure):
    """struct stoc_deal"""

    _fields_ = [
        ("struct_bytes", c_uint64),
        ("batch", c_uint64),
        ("from", c_uint64),
        ("ends", c_uint32),
        ("reserved", c_uint32),
        ("ranks", c_uint64),
        ("samples", c_uint64),
        ("batches", c_uint64),
        ("digest", c_uint64),
    ]


class Task(ctypes.Structure):
    """struct stoc_task"""

    _fields_ = [
        ("position", c_uint64),
        ("first", c_uint64),
        ("index", c_int64),
        ("row", c_uint32),
        ("buffer", c_uint32),
        ("kind", c_uint32),
        ("only", c_uint32),
        ("argument", c_uint64),
        ("result", c_int32),
        ("worker", c_uint32),
        ("overflow_offset", c_uint64),
        ("overflow_bytes", c_uint64),
    ]


class Batch(ctypes.Structure):
    """struct stoc_batch"""

    _fields_ = [
        ("first", c_uint64),
        ("tasks", c_uint64),
    ]


class Collected(ctypes.Structure):
    """struct stoc_collected"""

    _fields_ = [
        ("load_ns", c_uint64),
        ("hits", c_uint64),
        ("waited_ns", c_uint64),
        ("measured_ns", c_uint64),
        ("augment_ns", c_uint64),
        ("hit_ns", c_uint64),
    ]


Load = CFUNCTYPE(c_int, c_void_p, c_int64, POINTER(c_void_p), POINTER(c_size_t))
Finish = CFUNCTYPE(c_int, c_void_p, c_uint64, c_void_p, c_size_t, c_void_p, c_uint32)


class Work(ctypes.Structure):
    """struct stoc_work"""

    _fields_ = [
        ("struct_bytes", c_uint64),
        ("queue", c_void_p),
        ("cache", Cache),
        ("context", c_void_p),
        ("load", Load),
        ("finish", Finish),
        ("buffers", POINTER(c_void_p)),
        ("buffer_count", c_uint32),
        ("worker", c_uint32),
        ("kind", c_uint32),
        ("loaded", c_int32),
        ("hit", c_int32),
        ("copies", c_uint32),
        ("schedule", c_int32),
        ("reserved", c_uint32),
        ("pace_ns", c_uint64),
        ("copy_bytes", c_uint64),
        ("copy", c_void_p),
        ("disk", Cache),
        ("indices", POINTER(c_int64)),
        ("index_count", c_uint64),
    ]


class Stats(ctypes.Structure):
    """struct stoc_stats"""

    _fields_ = [
        ("struct_bytes", c_uint64),
        ("hits", c_uint64),
        ("misses", c_uint64),
        ("stored", c_uint64),
        ("exists", c_uint64),
        ("busy", c_uint64),
        ("full", c_uint64),
        ("out", c_uint64),
        ("stored_bytes", c_uint64),
        ("recovered", c_uint64),
        ("aborted", c_uint64),
        ("lost", c_uint64),
        ("retried", c_uint64),
        ("corrupt", c_uint64),
        ("passed", c_uint64),
        ("ready", c_uint64),
        ("ready_bytes", c_uint64),
        ("arena_next_bytes", c_uint64),
        ("arena_lost_bytes", c_uint64),
        ("clients_live", c_uint64),
        ("clients_ended", c_uint64),
        ("allocated_bytes", c_uint64),
        ("clears", c_uint64),
        ("evicted", c_uint64),
        ("arena_free_bytes", c_uint64),
        ("replaced", c_uint64),
    ]


# uint32_t stoc_abi_version(void);
abi_version = bind(holding, "stoc_abi_version", c_uint32)

# const char *stoc_version(void);
version = bind(holding, "stoc_version", c_char_p)

# const char *stoc_strerror(int code);
strerror = bind(holding, "stoc_strerror", c_char_p, c_int)

# uint32_t stoc_crc32c(uint32_t crc, const void *data, size_t length);
crc32c = bind(releasing, "stoc_crc32c", c_uint32, c_uint32, c_void_p, c_size_t)

# size_t stoc_find_byte(const void *data, size_t length, int byte, uint64_t *places);
find_byte = bind(releasing, "stoc_find_byte", c_size_t, c_void_p, c_size_t, c_int, POINTER(c_uint64))

# size_t stoc_explain(const stoc_cache *cache, int code, int64_t index, uint64_t bytes, char *buffer, size_t size);
explain = bind(holding, "stoc_explain", c_size_t, Cache, c_int, c_int64, c_uint64, c_char_p, c_size_t)

# int stoc_create(const char *name, const struct stoc_options *options, stoc_cache **out, struct stoc_error *error);
create = bind(releasing, "stoc_create", c_int, c_char_p, POINTER(Options), POINTER(Cache), POINTER(Error))

# int stoc_open(const char *name_or_path, unsigned flags, const char *fingerprint, stoc_cache **out, struct stoc_error *error);
open = bind(releasing, "stoc_open", c_int, c_char_p, c_uint, c_char_p, POINTER(Cache), POINTER(Error))

# int stoc_open_fd(int fd, unsigned flags, const unsigned char *uuid, stoc_cache **out, struct stoc_error *error);
open_fd = bind(releasing, "stoc_open_fd", c_int, c_int, c_uint, c_char_p, POINTER(Cache), POINTER(Error))

# int stoc_disk_open(const char *path, const struct stoc_options *options, stoc_cache **out, struct stoc_error *error);
disk_open = bind(releasing, "stoc_disk_open", c_int, c_char_p, POINTER(Options), POINTER(Cache), POINTER(Error))

# void stoc_close(stoc_cache *cache);
close = bind(holding, "stoc_close", None, Cache)

# void stoc_close_keep_maps(stoc_cache *cache);
close_keep_maps = bind(holding, "stoc_close_keep_maps", None, Cache)

# int stoc_unlink(const char *name_or_path, struct stoc_error *error);
unlink = bind(releasing, "stoc_unlink", c_int, c_char_p, POINTER(Error))

# int stoc_info(const stoc_cache *cache, struct stoc_info *info);
info = bind(holding, "stoc_info", c_int, Cache, POINTER(Info))

# int stoc_field(const stoc_cache *cache, uint32_t k, struct stoc_field *field);
field = bind(holding, "stoc_field", c_int, Cache, c_uint32, POINTER(Field))

# int stoc_get(stoc_cache *cache, int64_t index, void *dst, size_t capacity, size_t *length);
get = bind(releasing, "stoc_get", c_int, Cache, c_int64, c_void_p, c_size_t, c_void_p)

# int stoc_copy(stoc_cache *cache, int64_t index, void *dst, size_t capacity, size_t *length);
copy = bind(releasing, "stoc_copy", c_int, Cache, c_int64, c_void_p, c_size_t, c_void_p)

# int stoc_view(stoc_cache *cache, int64_t index, const void **data, size_t *length);
view = bind(holding, "stoc_view", c_int, Cache, c_int64, POINTER(c_void_p), POINTER(c_size_t))

# int stoc_locate(const stoc_cache *cache, int64_t index, const void **data, size_t *length);
locate = bind(holding, "stoc_locate", c_int, Cache, c_int64, POINTER(c_void_p), POINTER(c_size_t))

# int64_t stoc_view_offset(stoc_cache *cache, int64_t index);
view_offset = bind(holding, "stoc_view_offset", c_int64, Cache, c_int64)

# int64_t stoc_gather(stoc_cache *cache, const int64_t *indices, size_t n, int field, void *dst, size_t row_stride, uint8_t *hit, unsigned threads);
gather = bind(
    releasing,
    "stoc_gather",
    c_int64,
    Cache,
    c_void_p,
    c_size_t,
    c_int,
    c_void_p,
    c_size_t,
    c_void_p,
    c_uint,
)

# int64_t stoc_lengths(stoc_cache *cache, const int64_t *indices, size_t n, uint64_t *lengths);
lengths = bind(releasing, "stoc_lengths", c_int64, Cache, c_void_p, c_size_t, c_void_p)

# int64_t stoc_gather_packed(stoc_cache *cache, const int64_t *indices, size_t n, void *dst, const uint64_t *offsets, const uint64_t *lengths,
#                            uint8_t *hit, unsigned threads);
gather_packed = bind(
    releasing,
    "stoc_gather_packed",
    c_int64,
    Cache,
    c_void_p,
    c_size_t,
    c_void_p,
    c_void_p,
    c_void_p,
    c_void_p,
    c_uint,
)

# int stoc_state(const stoc_cache *cache, int64_t index);
state = bind(holding, "stoc_state", c_int, Cache, c_int64)

# int stoc_states(const stoc_cache *cache, uint64_t first, uint64_t n, uint8_t *states);
states = bind(releasing, "stoc_states", c_int, Cache, c_uint64, c_uint64, c_void_p)

# int stoc_costs(const stoc_cache *cache, uint64_t first, uint64_t n, uint64_t *nanoseconds);
costs = bind(releasing, "stoc_costs", c_int, Cache, c_uint64, c_uint64, c_void_p)

# int stoc_learn_length(stoc_cache *cache, int64_t index, uint64_t items);
learn_length = bind(holding, "stoc_learn_length", c_int, Cache, c_int64, c_uint64)

# int stoc_learned_lengths(const stoc_cache *cache, uint64_t first, uint64_t n, uint64_t *lengths);
learned_lengths = bind(releasing, "stoc_learned_lengths", c_int, Cache, c_uint64, c_uint64, c_void_p)

# int stoc_peek(stoc_cache *cache, int64_t index, void *dst, size_t capacity);
peek = bind(releasing, "stoc_peek", c_int, Cache, c_int64, c_void_p, c_size_t)

# int stoc_set(stoc_cache *cache, int64_t index, const void *data, size_t length, unsigned flags);
set = bind(releasing, "stoc_set", c_int, Cache, c_int64, c_void_p, c_size_t, c_uint)

# int stoc_setv(stoc_cache *cache, int64_t index, const struct iovec *parts, int count, unsigned flags);
setv = bind(releasing, "stoc_setv", c_int, Cache, c_int64, POINTER(IoVec), c_int, c_uint)

# int stoc_set_loaded(stoc_cache *cache, int64_t index, const struct iovec *parts, int count, unsigned flags, uint64_t nanoseconds);
set_loaded = bind(releasing, "stoc_set_loaded", c_int, Cache, c_int64, POINTER(IoVec), c_int, c_uint, c_uint64)

# int stoc_set_later(stoc_cache *cache, int64_t index, const struct iovec *parts, int count);
set_later = bind(releasing, "stoc_set_later", c_int, Cache, c_int64, POINTER(IoVec), c_int)

# int stoc_flush(stoc_cache *cache, unsigned timeout_ms);
flush = bind(releasing, "stoc_flush", c_int, Cache, c_uint)

# int stoc_claim(stoc_cache *cache, int64_t index, size_t length, unsigned flags, struct stoc_claim *claim);
claim = bind(releasing, "stoc_claim", c_int, Cache, c_int64, c_size_t, c_uint, POINTER(Claim))

# int stoc_write(struct stoc_claim *claim, uint64_t offset, const void *data, size_t length);
write = bind(releasing, "stoc_write", c_int, POINTER(Claim), c_uint64, c_void_p, c_size_t)

# int stoc_publish(struct stoc_claim *claim);
publish = bind(releasing, "stoc_publish", c_int, POINTER(Claim))

# int stoc_publish_loaded(struct stoc_claim *claim, uint64_t nanoseconds);
publish_loaded = bind(releasing, "stoc_publish_loaded", c_int, POINTER(Claim), c_uint64)

# int stoc_abort(struct stoc_claim *claim);
abort = bind(releasing, "stoc_abort", c_int, POINTER(Claim))

# int stoc_keep(stoc_cache *cache, const uint8_t *kept);
keep = bind(releasing, "stoc_keep", c_int, Cache, POINTER(c_uint8))

# int stoc_clear(stoc_cache *cache, unsigned timeout_ms);
clear = bind(releasing, "stoc_clear", c_int, Cache, c_uint)

# int64_t stoc_spare(stoc_cache *cache);
spare = bind(releasing, "stoc_spare", c_int64, Cache)

# int stoc_hold(stoc_cache *cache, uint64_t bytes);
hold = bind(holding, "stoc_hold", c_int, Cache, c_uint64)

# int64_t stoc_recover(stoc_cache *cache);
recover = bind(releasing, "stoc_recover", c_int64, Cache)

# int64_t stoc_fetch(stoc_cache *cache, const int64_t *indices, size_t n, void *dst, size_t row_stride, uint8_t *hit,
#                    struct stoc_fetch_options *options, struct stoc_error *error);
fetch = bind(
    releasing,
    "stoc_fetch",
    c_int64,
    Cache,
    c_void_p,
    c_size_t,
    c_void_p,
    c_size_t,
    c_void_p,
    POINTER(FetchOptions),
    POINTER(Error),
)

# int64_t stoc_fetch_each(stoc_cache *cache, const int64_t *indices, size_t n, void **data, uint64_t *lengths, struct stoc_fetch_options *options,
#                         struct stoc_error *error);
fetch_each = bind(
    releasing,
    "stoc_fetch_each",
    c_int64,
    Cache,
    c_void_p,
    c_size_t,
    c_void_p,
    c_void_p,
    POINTER(FetchOptions),
    POINTER(Error),
)

# void stoc_fetch_end(struct stoc_fetch_options *options, void **data, size_t n);
fetch_end = bind(holding, "stoc_fetch_end", None, POINTER(FetchOptions), c_void_p, c_size_t)

# int64_t stoc_prefetch(stoc_cache *cache, const int64_t *indices, size_t n, struct stoc_fetch_options *options, struct stoc_error *error);
prefetch = bind(releasing, "stoc_prefetch", c_int64, Cache, c_void_p, c_size_t, POINTER(FetchOptions), POINTER(Error))

# int stoc_offer(stoc_cache *cache, int64_t index, const struct iovec *parts, int count, unsigned timeout_ms, struct stoc_error *error);
offer = bind(releasing, "stoc_offer", c_int, Cache, c_int64, POINTER(IoVec), c_int, c_uint, POINTER(Error))

# int stoc_offer_damaged(stoc_cache *cache, int64_t index, const char *reason, unsigned timeout_ms, struct stoc_error *error);
offer_damaged = bind(releasing, "stoc_offer_damaged", c_int, Cache, c_int64, c_char_p, c_uint, POINTER(Error))

# int stoc_dial(const char *name, const char *sockets_dir, unsigned flags, const struct stoc_fetch_options *options, stoc_cache **out,
#               struct stoc_error *error);
dial = bind(
    releasing,
    "stoc_dial",
    c_int,
    c_char_p,
    c_char_p,
    c_uint,
    POINTER(FetchOptions),
    POINTER(Cache),
    POINTER(Error),
)

# int stoc_epoch_open(const struct stoc_order *order, uint64_t epoch, stoc_epoch **out, struct stoc_error *error);
epoch_open = bind(holding, "stoc_epoch_open", c_int, POINTER(Order), c_uint64, POINTER(Epoch), POINTER(Error))

# void stoc_epoch_close(stoc_epoch *epoch);
epoch_close = bind(holding, "stoc_epoch_close", None, Epoch)

# int stoc_weights_open(const double *weights, uint64_t n, stoc_weights **out, struct stoc_error *error);
weights_open = bind(releasing, "stoc_weights_open", c_int, c_void_p, c_uint64, POINTER(Weights), POINTER(Error))

# void stoc_weights_close(stoc_weights *weights);
weights_close = bind(holding, "stoc_weights_close", None, Weights)

# int stoc_epoch_open_weighted(stoc_weights *weights, uint64_t draws, uint64_t seed, uint64_t epoch, stoc_epoch **out, struct stoc_error *error);
epoch_open_weighted = bind(
    holding,
    "stoc_epoch_open_weighted",
    c_int,
    Weights,
    c_uint64,
    c_uint64,
    c_uint64,
    POINTER(Epoch),
    POINTER(Error),
)

# int stoc_epoch_open_mixed(const struct stoc_mix *mix, uint64_t epoch, stoc_epoch **out, struct stoc_error *error);
epoch_open_mixed = bind(
    holding,
    "stoc_epoch_open_mixed",
    c_int,
    POINTER(Mix),
    c_uint64,
    POINTER(Epoch),
    POINTER(Error),
)

# int64_t stoc_epoch_length(const stoc_epoch *epoch);
epoch_length = bind(holding, "stoc_epoch_length", c_int64, Epoch)

# int64_t stoc_epoch_at(const stoc_epoch *epoch, uint64_t position);
epoch_at = bind(holding, "stoc_epoch_at", c_int64, Epoch, c_uint64)

# int64_t stoc_epoch_position(const stoc_epoch *epoch, int64_t index);
epoch_position = bind(holding, "stoc_epoch_position", c_int64, Epoch, c_int64)

# int64_t stoc_epoch_fill(const stoc_epoch *epoch, int64_t *indices, size_t n, uint64_t first, uint64_t step);
epoch_fill = bind(releasing, "stoc_epoch_fill", c_int64, Epoch, c_void_p, c_size_t, c_uint64, c_uint64)

# int stoc_epoch_shard(const stoc_epoch *epoch, struct stoc_shard *shard, struct stoc_error *error);
epoch_shard = bind(holding, "stoc_epoch_shard", c_int, Epoch, POINTER(Shard), POINTER(Error))

# int64_t stoc_epoch_fill_shard(const stoc_epoch *epoch, const struct stoc_shard *shard, int64_t *indices, size_t n, uint64_t first);
epoch_fill_shard = bind(
    releasing,
    "stoc_epoch_fill_shard",
    c_int64,
    Epoch,
    POINTER(Shard),
    c_void_p,
    c_size_t,
    c_uint64,
)

# int stoc_owners_open(const struct stoc_nodes *nodes, uint64_t samples, stoc_owners **out, struct stoc_error *error);
owners_open = bind(releasing, "stoc_owners_open", c_int, POINTER(Nodes), c_uint64, POINTER(Owners), POINTER(Error))

# void stoc_owners_close(stoc_owners *owners);
owners_close = bind(releasing, "stoc_owners_close", None, Owners)

# int64_t stoc_owners_quota(const stoc_owners *owners, uint64_t node);
owners_quota = bind(releasing, "stoc_owners_quota", c_int64, Owners, c_uint64)

# int stoc_owners_find(const stoc_owners *owners, const int64_t *indices, int64_t *nodes, size_t n);
owners_find = bind(releasing, "stoc_owners_find", c_int, Owners, c_void_p, POINTER(c_int64), c_size_t)

# int stoc_owners_keep(const stoc_owners *owners, uint64_t node, uint64_t capacity, uint8_t *kept);
owners_keep = bind(releasing, "stoc_owners_keep", c_int, Owners, c_uint64, c_uint64, POINTER(c_uint8))

# int stoc_epoch_deal(const stoc_epoch *epoch, const stoc_owners *owners, struct stoc_deal *deal, struct stoc_error *error);
epoch_deal = bind(releasing, "stoc_epoch_deal", c_int, Epoch, Owners, POINTER(Deal), POINTER(Error))

# int64_t stoc_epoch_fill_deal(const stoc_epoch *epoch, const stoc_owners *owners, const struct stoc_deal *deal, uint64_t batch, int64_t *indices,
#                              size_t n);
epoch_fill_deal = bind(
    releasing,
    "stoc_epoch_fill_deal",
    c_int64,
    Epoch,
    Owners,
    POINTER(Deal),
    c_uint64,
    c_void_p,
    c_size_t,
)

# int stoc_announce(stoc_cache *cache, const struct stoc_order *order, uint64_t epoch, const struct stoc_shard *shard, size_t batch,
#                   unsigned timeout_ms, struct stoc_error *error);
announce = bind(
    releasing,
    "stoc_announce",
    c_int,
    Cache,
    POINTER(Order),
    c_uint64,
    POINTER(Shard),
    c_size_t,
    c_uint,
    POINTER(Error),
)

# int stoc_announce_reads(stoc_cache *cache, uint64_t reads, unsigned timeout_ms, struct stoc_error *error);
announce_reads = bind(releasing, "stoc_announce_reads", c_int, Cache, c_uint64, c_uint, POINTER(Error))

# size_t stoc_queue_bytes(uint32_t tasks);
queue_bytes = bind(holding, "stoc_queue_bytes", c_size_t, c_uint32)

# int stoc_queue_init(void *memory, uint32_t tasks);
queue_init = bind(holding, "stoc_queue_init", c_int, c_void_p, c_uint32)

# int64_t stoc_queue_push(void *memory, const struct stoc_task *tasks, size_t n);
queue_push = bind(holding, "stoc_queue_push", c_int64, c_void_p, c_void_p, c_size_t)

# int64_t stoc_queue_push_samples(void *memory, const struct stoc_task *as, const int64_t *indices, const int64_t *rows, size_t n,
#                                 const uint64_t *seed);
queue_push_samples = bind(
    releasing,
    "stoc_queue_push_samples",
    c_int64,
    c_void_p,
    POINTER(Task),
    c_void_p,
    c_void_p,
    c_size_t,
    POINTER(c_uint64),
)

# int stoc_queue_take(void *memory, uint32_t worker, uint32_t timeout_ms, struct stoc_task *tasks, uint32_t n);
queue_take = bind(holding, "stoc_queue_take", c_int, c_void_p, c_uint32, c_uint32, POINTER(Task), c_uint32)

# int stoc_queue_done(void *memory, uint32_t worker, const struct stoc_task *tasks, uint32_t n);
queue_done = bind(holding, "stoc_queue_done", c_int, c_void_p, c_uint32, POINTER(Task), c_uint32)

# int64_t stoc_queue_wait(void *memory, const struct stoc_batch *batches, size_t count, uint32_t timeout_ms);
queue_wait = bind(releasing, "stoc_queue_wait", c_int64, c_void_p, POINTER(Batch), c_size_t, c_uint32)

# int stoc_queue_release(void *memory, uint64_t first, uint32_t n);
queue_release = bind(holding, "stoc_queue_release", c_int, c_void_p, c_uint64, c_uint32)

# int64_t stoc_queue_collect(void *memory, uint64_t first, uint32_t n, int32_t hit, struct stoc_collected *sums);
queue_collect = bind(
    releasing,
    "stoc_queue_collect",
    c_int64,
    c_void_p,
    c_uint64,
    c_uint32,
    c_int32,
    POINTER(Collected),
)

# int64_t stoc_queue_cancel(void *memory, uint64_t first, uint32_t n);
queue_cancel = bind(holding, "stoc_queue_cancel", c_int64, c_void_p, c_uint64, c_uint32)

# int64_t stoc_queue_held(void *memory, uint32_t worker, uint64_t *positions, size_t n);
queue_held = bind(holding, "stoc_queue_held", c_int64, c_void_p, c_uint32, c_void_p, c_size_t)

# int stoc_queue_repost(void *memory, uint32_t worker, uint64_t position);
queue_repost = bind(holding, "stoc_queue_repost", c_int, c_void_p, c_uint32, c_uint64)

# void stoc_queue_stop(void *memory);
queue_stop = bind(holding, "stoc_queue_stop", None, c_void_p)

# int64_t stoc_queue_overflow(void *memory, uint64_t bytes);
queue_overflow = bind(holding, "stoc_queue_overflow", c_int64, c_void_p, c_uint64)

# void stoc_queue_copy(void *row, const void *sample, size_t bytes);
queue_copy = bind(releasing, "stoc_queue_copy", None, c_void_p, c_void_p, c_size_t)

# int stoc_work(struct stoc_work *work, uint32_t timeout_ms, struct stoc_task *tasks, uint32_t n);
work = bind(releasing, "stoc_work", c_int, POINTER(Work), c_uint32, POINTER(Task), c_uint32)

# void stoc_work_end(struct stoc_work *work);
work_end = bind(releasing, "stoc_work_end", None, POINTER(Work))

# int64_t stoc_verify(stoc_cache *cache, uint64_t first, uint64_t n, uint64_t *checked, int64_t *bad);
verify = bind(releasing, "stoc_verify", c_int64, Cache, c_uint64, c_uint64, POINTER(c_uint64), POINTER(c_int64))

# int stoc_stats(stoc_cache *cache, struct stoc_stats *stats);
stats = bind(releasing, "stoc_stats", c_int, Cache, POINTER(Stats))

# int stoc_changes(const stoc_cache *cache, uint64_t *clears, uint64_t *stored);
changes = bind(releasing, "stoc_changes", c_int, Cache, POINTER(c_uint64), POINTER(c_uint64))

# void stoc_count_passed(stoc_cache *cache, uint64_t n);
count_passed = bind(holding, "stoc_count_passed", None, Cache, c_uint64)

# int64_t stoc_view_slot(stoc_cache *cache, int64_t index);
view_slot = bind(holding, "stoc_view_slot", c_int64, Cache, c_int64)

# int64_t stoc_locate_slot(const stoc_cache *cache, int64_t index);
locate_slot = bind(holding, "stoc_locate_slot", c_int64, Cache, c_int64)

# int stoc_put(stoc_cache *cache, int64_t index, const void *data);
put = bind(releasing, "stoc_put", c_int, Cache, c_int64, c_void_p)

# int64_t stoc_gather_fields(stoc_cache *cache, const int64_t *indices, size_t n, void *const *dst, const size_t *row_stride, uint8_t *hit,
#                            unsigned threads);
gather_fields = bind(
    releasing,
    "stoc_gather_fields",
    c_int64,
    Cache,
    c_void_p,
    c_size_t,
    POINTER(c_void_p),
    POINTER(c_size_t),
    c_void_p,
    c_uint,
)

# void stoc_close_keep_payload(stoc_cache *cache);
close_keep_payload = bind(holding, "stoc_close_keep_payload", None, Cache)

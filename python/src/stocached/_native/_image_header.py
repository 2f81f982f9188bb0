"""Generated from cimage/stocached_image.h by go generate ./internal/ctypes; do not edit.

Constants, structs and functions of the C library, under their names there without stoc_image_."""

from __future__ import annotations

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)

from ._image_library import bind, check_abi, holding, releasing

ABI_VERSION = 1
MAX_SIDE = 65500
MAX_PIXELS = 178956970

check_abi(holding, "stoc_image_abi_version", ABI_VERSION)

# enum stoc_image_code
OK = 0
EINVAL = -1
EFORMAT = -2
EUNSUPPORTED = -3
ETOOLARGE = -4
EMEMORY = -5
ESYSTEM = -6
EKIND = -7

# enum stoc_image_layout
CHW = 0
HWC = 1

# enum stoc_image_filter
BILINEAR = 0
BICUBIC = 1

# enum stoc_image_dtype
UINT8 = 0
FLOAT32 = 1
FLOAT16 = 2
BFLOAT16 = 3

# enum stoc_image_fit
STRETCH = 0
CROP = 1
PAD = 2

# enum stoc_image_adjustment
NO_ADJUSTMENT = 0
BRIGHTNESS = 1
CONTRAST = 2
SATURATION = 3
HUE = 4

# enum stoc_image_erase
NO_ERASE = 0
ERASE_VALUE = 1
ERASE_RANDOM = 2

# enum stoc_image_step_kind
RESIZE = 1
CENTER_CROP = 2
RANDOM_RESIZED_CROP = 3
RANDOM_CROP = 4
RANDOM_FLIP = 5
COLOR_JITTER = 6
RANDOM_ERASING = 7
TO_DTYPE = 8
NORMALIZE = 9

# enum stoc_image_label_kind
LABEL_KNOWN = 0
LABEL_TEXT = 1
LABEL_JSON = 2


class Worker(c_void_p):
    """A handle: a pointer object of its own, which keeps what hangs on it alive during a call."""


class Info(ctypes.Structure):
    """struct stoc_image_info"""

    _fields_ = [
        ("width", c_uint32),
        ("height", c_uint32),
        ("orientation", c_uint32),
        ("components", c_uint32),
        ("progressive", c_uint32),
    ]


class Decode(ctypes.Structure):
    """struct stoc_image_decode"""

    _fields_ = [
        ("width", c_uint32),
        ("height", c_uint32),
        ("short_side", c_uint32),
        ("fit", c_uint8),
        ("filter", c_uint8),
        ("layout", c_uint8),
        ("fast", c_uint8),
        ("fill", c_uint8 * 3),
        ("reserved", c_uint8),
        ("max_pixels", c_uint64),
    ]


class Target(ctypes.Structure):
    """struct stoc_image_target"""

    _fields_ = [
        ("resized_width", c_uint32),
        ("resized_height", c_uint32),
        ("window_x", c_uint32),
        ("window_y", c_uint32),
        ("width", c_uint32),
        ("height", c_uint32),
        ("x", c_uint32),
        ("y", c_uint32),
    ]


class Picture(ctypes.Structure):
    """struct stoc_image_picture"""

    _fields_ = [
        ("pixels", c_void_p),
        ("width", c_uint32),
        ("height", c_uint32),
        ("channels", c_uint32),
        ("layout", c_uint32),
    ]


class Augment(ctypes.Structure):
    """struct stoc_image_augment"""

    _fields_ = [
        ("box_x", c_int32),
        ("box_y", c_int32),
        ("box_width", c_uint32),
        ("box_height", c_uint32),
        ("resized_width", c_uint32),
        ("resized_height", c_uint32),
        ("window_x", c_uint32),
        ("window_y", c_uint32),
        ("width", c_uint32),
        ("height", c_uint32),
        ("filter", c_uint8),
        ("flip", c_uint8),
        ("fill", c_uint8 * 3),
        ("erase", c_uint8),
        ("dtype", c_uint8),
        ("layout", c_uint8),
        ("adjust", c_uint8 * 4),
        ("factor", c_double * 4),
        ("divisor", c_float),
        ("mean", c_float * 3),
        ("std", c_float * 3),
        ("erase_x", c_uint32),
        ("erase_y", c_uint32),
        ("erase_width", c_uint32),
        ("erase_height", c_uint32),
        ("erase_value", c_float * 3),
        ("reserved", c_uint32),
        ("erase_seed", c_uint64),
        ("max_pixels", c_uint64),
    ]


class Step(ctypes.Structure):
    """struct stoc_image_step"""

    _fields_ = [
        ("kind", c_uint32),
        ("filter", c_uint32),
        ("height", c_uint32),
        ("width", c_uint32),
        ("integers", c_int32 * 8),
        ("numbers", c_double * 8),
        ("stage", c_uint64),
    ]


Draw = CFUNCTYPE(c_double, c_void_p, c_uint64)


class Request(ctypes.Structure):
    """struct stoc_image_request"""

    _fields_ = [
        ("width", c_uint32),
        ("height", c_uint32),
        ("channels", c_uint32),
        ("layout", c_uint8),
        ("dtype", c_uint8),
        ("reserved", c_uint16),
        ("max_pixels", c_uint64),
        ("step_count", c_uint32),
        ("steps", POINTER(Step)),
        ("draw", Draw),
        ("context", c_void_p),
        ("seed", c_uint64),
    ]


class Place(ctypes.Structure):
    """struct stoc_image_place"""

    _fields_ = [
        ("at", c_int64),
        ("label", c_int64),
        ("bytes", c_uint32),
        ("label_bytes", c_uint32),
        ("file", c_uint32),
        ("label_kind", c_uint32),
    ]


class Stamp(ctypes.Structure):
    """struct stoc_image_stamp"""

    _fields_ = [
        ("bytes", c_int64),
        ("modified_ns", c_int64),
    ]


class Pipeline(ctypes.Structure):
    """struct stoc_image_pipeline"""

    _fields_ = [
        ("struct_bytes", c_uint64),
        ("paths", c_char_p),
        ("path_at", POINTER(c_uint64)),
        ("stamps", POINTER(Stamp)),
        ("descriptors", POINTER(c_int32)),
        ("places", POINTER(Place)),
        ("files", c_uint64),
        ("samples", c_uint64),
        ("decode", Decode),
        ("encoded", c_uint32),
        ("labelled", c_uint32),
        ("extents", c_uint32),
        ("picture_width", c_uint32),
        ("picture_height", c_uint32),
        ("sample_bytes", c_uint64),
        ("picture_at", c_uint64),
        ("label_at", c_uint64),
        ("row_shape", c_uint32 * 3),
        ("row_dtype", c_uint32),
        ("row_at", c_uint64),
        ("row_label_at", c_uint64),
        ("step_count", c_uint32),
        ("before_count", c_uint32),
        ("steps", POINTER(Step)),
    ]


# uint32_t stoc_image_abi_version(void);
abi_version = bind(holding, "stoc_image_abi_version", c_uint32)

# stoc_image_worker *stoc_image_worker_new(void);
worker_new = bind(holding, "stoc_image_worker_new", Worker)

# void stoc_image_worker_free(stoc_image_worker *worker);
worker_free = bind(holding, "stoc_image_worker_free", None, Worker)

# const char *stoc_image_message(const stoc_image_worker *worker);
message = bind(holding, "stoc_image_message", c_char_p, Worker)

# int stoc_image_read_info(stoc_image_worker *worker, const void *file, size_t bytes, struct stoc_image_info *info);
read_info = bind(releasing, "stoc_image_read_info", c_int, Worker, c_void_p, c_size_t, POINTER(Info))

# int stoc_image_decode(stoc_image_worker *worker, const void *file, size_t bytes, const struct stoc_image_decode *how, uint8_t *dst,
#                       size_t dst_bytes);
decode = bind(releasing, "stoc_image_decode", c_int, Worker, c_void_p, c_size_t, POINTER(Decode), c_void_p, c_size_t)

# uint64_t stoc_image_pixels(stoc_image_worker *worker);
pixels = bind(releasing, "stoc_image_pixels", c_uint64, Worker)

# int64_t stoc_image_inflate(const void *data, size_t bytes, void *dst, size_t dst_bytes);
inflate = bind(releasing, "stoc_image_inflate", c_int64, c_void_p, c_size_t, c_void_p, c_size_t)

# int stoc_image_target(stoc_image_worker *worker, uint32_t width, uint32_t height, const struct stoc_image_decode *how,
#                       struct stoc_image_target *target);
target = bind(holding, "stoc_image_target", c_int, Worker, c_uint32, c_uint32, POINTER(Decode), POINTER(Target))

# int stoc_image_augment(stoc_image_worker *worker, const struct stoc_image_picture *picture, const struct stoc_image_augment *how, void *dst,
#                        size_t dst_bytes);
augment = bind(releasing, "stoc_image_augment", c_int, Worker, POINTER(Picture), POINTER(Augment), c_void_p, c_size_t)

# int stoc_image_augment_file(stoc_image_worker *worker, const void *file, size_t bytes, const struct stoc_image_decode *decode,
#                             const struct stoc_image_augment *how, void *dst, size_t dst_bytes);
augment_file = bind(
    releasing,
    "stoc_image_augment_file",
    c_int,
    Worker,
    c_void_p,
    c_size_t,
    POINTER(Decode),
    POINTER(Augment),
    c_void_p,
    c_size_t,
)

# int stoc_image_plan(stoc_image_worker *worker, const struct stoc_image_request *request, struct stoc_image_augment *passes, uint32_t *count);
plan = bind(holding, "stoc_image_plan", c_int, Worker, POINTER(Request), POINTER(Augment), POINTER(c_uint32))

# int stoc_image_follow(stoc_image_worker *worker, const struct stoc_image_pipeline *pipeline);
follow = bind(releasing, "stoc_image_follow", c_int, Worker, POINTER(Pipeline))

# int stoc_image_load(void *worker, int64_t index, const void **sample, size_t *bytes);
load = bind(releasing, "stoc_image_load", c_int, c_void_p, c_int64, POINTER(c_void_p), POINTER(c_size_t))

# int stoc_image_finish(void *worker, uint64_t seed, const void *sample, size_t bytes, void *buffer, uint32_t row);
finish = bind(releasing, "stoc_image_finish", c_int, c_void_p, c_uint64, c_void_p, c_size_t, c_void_p, c_uint32)

# int stoc_image_vectors(const stoc_image_worker *worker);
vectors = bind(holding, "stoc_image_vectors", c_int, Worker)

# void stoc_image_use_vectors(stoc_image_worker *worker, int most);
use_vectors = bind(holding, "stoc_image_use_vectors", None, Worker, c_int)

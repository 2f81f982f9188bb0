/*
 * stocached_image.h - from the bytes of a picture to a row of a batch, without Python.
 *
 * Two functions do the work. stoc_image_decode makes a uint8 picture of a given size from a JPEG,
 * PNG or WebP file. stoc_image_augment makes a row of a batch from a uint8 picture, in one call: crop, resize,
 * flip, colour, erase, normalise. stoc_image_plan says which calls of it make random steps, one
 * after the other. docs/spec/image.md has the definitions and the arithmetic.
 *
 * - THREADS: a worker is the memory and the decoder of one thread. Only one thread at a time may
 *   use it. Different threads use different workers. There is no other state.
 * - FORK: a worker works in a forked child, if no call used it during the fork.
 * - PIXELS that another process changes during a call (a slot of a cache) give a wrong picture, and
 *   nothing worse. The bytes of a FILE must not change during a call: copy them out of the cache
 *   and check the copy first.
 * - Results have the same bits on every processor, with and without vector instructions.
 *
 * RESULTS. 0: done. Below 0: an error of enum stoc_image_code. stoc_image_message then says what
 * was wrong.
 */
#ifndef STOCACHED_IMAGE_H
#define STOCACHED_IMAGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STOC_IMAGE_API __attribute__((visibility("default")))

/* Changes when a function or a struct of this file changes incompatibly. It is also the number in
 * the soname. */
#define STOC_IMAGE_ABI_VERSION 1u

#define STOC_IMAGE_MAX_SIDE 65500       /* pixels of a picture's side, as libjpeg's */
#define STOC_IMAGE_MAX_PIXELS 178956970 /* a picture's, if max_pixels is 0; as Pillow */

enum stoc_image_code {
    STOC_IMAGE_OK = 0,
    STOC_IMAGE_EINVAL = -1,       /* an argument is not valid */
    STOC_IMAGE_EFORMAT = -2,      /* the file is broken or cut off */
    STOC_IMAGE_EUNSUPPORTED = -3, /* a JPEG of a kind that libjpeg-turbo does not decode to colours; any file, if the
                                     library was built without decoders (make CODECS=0); what stoc_image_load and
                                     stoc_image_finish leave to the caller */
    STOC_IMAGE_ETOOLARGE = -4,    /* more pixels than max_pixels, 100 scans, or 64 MiB of texts of a PNG file */
    STOC_IMAGE_EMEMORY = -5,      /* too little memory */
    STOC_IMAGE_ESYSTEM = -6,      /* a file cannot be read */
    STOC_IMAGE_EKIND = -7         /* by its first bytes, the file is neither JPEG nor PNG nor WebP */
};

enum stoc_image_layout {
    STOC_IMAGE_CHW = 0, /* channel, row, column: torch's order */
    STOC_IMAGE_HWC = 1  /* row, column, channel: Pillow's and OpenCV's order */
};

enum stoc_image_filter { /* antialiased, as Pillow's filters of these names */
    STOC_IMAGE_BILINEAR = 0,
    STOC_IMAGE_BICUBIC = 1
};

enum stoc_image_dtype {
    STOC_IMAGE_UINT8 = 0,
    STOC_IMAGE_FLOAT32 = 1,
    STOC_IMAGE_FLOAT16 = 2,
    STOC_IMAGE_BFLOAT16 = 3
};

/* STOC_IMAGE_ABI_VERSION of the library. */
STOC_IMAGE_API uint32_t stoc_image_abi_version(void);

/* The memory and the decoder of one thread. */
typedef struct stoc_image_worker stoc_image_worker;

/* Returns a new worker, or NULL if there is too little memory. */
STOC_IMAGE_API stoc_image_worker *stoc_image_worker_new(void);
/* Frees a worker. NULL is accepted. */
STOC_IMAGE_API void stoc_image_worker_free(stoc_image_worker *worker);
/* What the last failed call of this worker says; valid until its next call. */
STOC_IMAGE_API const char *stoc_image_message(const stoc_image_worker *worker);

/* ---------------------------------------------------------------------------------- decode */

struct stoc_image_info {
    uint32_t width, height;  /* as the picture is shown: after the EXIF orientation */
    uint32_t orientation;    /* 1 to 8, of EXIF or XMP; 1 if the file has none */
    uint32_t components;     /* in the file, without alpha: 1 grey, 3 colours, 4 CMYK */
    uint32_t progressive;    /* 1: progressive or interlaced; else 0 */
};

/* Reads the headers of a file. Errors: EINVAL: an argument is NULL; EFORMAT, EUNSUPPORTED, EMEMORY, EKIND. */
STOC_IMAGE_API int stoc_image_read_info(stoc_image_worker *worker, const void *file, size_t bytes,
                                        struct stoc_image_info *info);

enum stoc_image_fit {
    STOC_IMAGE_STRETCH = 0, /* width and height are changed independently */
    STOC_IMAGE_CROP = 1,    /* the short side becomes short_side, then the centre is cut out */
    STOC_IMAGE_PAD = 2      /* the whole picture, in the centre, with fill around it */
};

struct stoc_image_decode {
    uint32_t width, height; /* size of the result, 1 to 65,500 */
    uint32_t short_side;    /* with CROP: at least so many pixels that width x height is inside; 0: the fewest */
    uint8_t fit;            /* enum stoc_image_fit */
    uint8_t filter;         /* enum stoc_image_filter */
    uint8_t layout;         /* enum stoc_image_layout */
    uint8_t fast;           /* 1: that of JPEG may scale by 1/2, 1/4 or 1/8 first; docs/spec/image.md has the error */
    uint8_t fill[3];        /* with PAD: red, green, blue */
    uint8_t reserved;       /* 0 */
    uint64_t max_pixels;    /* limit of the file, and of each picture made of it; 0: 178,956,970, as Pillow */
};

/* Decodes a file into 3 x height x width bytes of red, green and blue at dst. dst_bytes is the
 * size of dst. Grey and CMYK files become red, green and blue, alpha is dropped, the orientation is applied.
 * After an error, dst has any bytes. Errors: all of enum stoc_image_code but ESYSTEM. */
STOC_IMAGE_API int stoc_image_decode(stoc_image_worker *worker, const void *file, size_t bytes,
                                     const struct stoc_image_decode *how, uint8_t *dst, size_t dst_bytes);

/* Which pixels the decoders make, as a number: versions of libjpeg-turbo and libwebp that round, sample up or smooth
 * differently give another one. 0: the library was built without decoders (make CODECS=0), or memory is short. It
 * decodes small files of each kind, in less than 1 ms. */
STOC_IMAGE_API uint64_t stoc_image_pixels(stoc_image_worker *worker);

/* Unpacks a member of a zip archive, deflate without a header, into exactly dst_bytes. Returns their CRC-32. Errors:
 * EFORMAT, also if it has more bytes or fewer; EMEMORY; EUNSUPPORTED: no decoders (make CODECS=0). */
STOC_IMAGE_API int64_t stoc_image_inflate(const void *data, size_t bytes, void *dst, size_t dst_bytes);

struct stoc_image_target {
    uint32_t resized_width, resized_height;     /* size of the whole picture */
    uint32_t window_x, window_y, width, height; /* the part of that which the result has */
    uint32_t x, y;                              /* where this part begins in the result; not 0 with PAD only */
};

/* Says where a picture of width x height goes, for a program that decodes other formats, or that needs memory for a
 * result. With 0 x 0 in how, the result is all of the picture; then short_side is that of the result, or 0, and fit
 * means nothing. Errors: EINVAL; ETOOLARGE. */
STOC_IMAGE_API int stoc_image_target(stoc_image_worker *worker, uint32_t width, uint32_t height,
                                     const struct stoc_image_decode *how, struct stoc_image_target *target);

/* --------------------------------------------------------------------------------- augment */

struct stoc_image_picture {
    const void *pixels; /* uint8 */
    uint32_t width, height; /* 1 to 65,500 */
    uint32_t channels;      /* 1 or 3 */
    uint32_t layout;        /* enum stoc_image_layout */
};

enum stoc_image_adjustment {
    STOC_IMAGE_NO_ADJUSTMENT = 0,
    STOC_IMAGE_BRIGHTNESS = 1,
    STOC_IMAGE_CONTRAST = 2,
    STOC_IMAGE_SATURATION = 3,
    STOC_IMAGE_HUE = 4
};

enum stoc_image_erase { STOC_IMAGE_NO_ERASE = 0, STOC_IMAGE_ERASE_VALUE = 1, STOC_IMAGE_ERASE_RANDOM = 2 };

struct stoc_image_augment {
    /* 1. A box of the picture becomes resized_width x resized_height. A box that reaches outside of
     * the picture must not be resized; what is outside is fill. */
    int32_t box_x, box_y;
    uint32_t box_width, box_height;
    uint32_t resized_width, resized_height;
    /* 2. Of that, a window of width x height. The window must be inside. */
    uint32_t window_x, window_y;
    uint32_t width, height;
    uint8_t filter;      /* enum stoc_image_filter */
    uint8_t flip;        /* 3. 1: mirrored, left and right exchanged */
    uint8_t fill[3];
    uint8_t erase;       /* enum stoc_image_erase */
    uint8_t dtype;       /* enum stoc_image_dtype, of the result */
    uint8_t layout;      /* enum stoc_image_layout, of the result */
    /* 4. Adjustments of colours (enum stoc_image_adjustment) in this order, with a factor each, as
     * torchvision's adjust_brightness, and so on. Factors are 0 or more, and below 1e6; that of hue is
     * -0.5 to 0.5. Grey pictures have neither saturation nor hue. */
    uint8_t adjust[4];
    double factor[4];
    /* 5. ((value / divisor) - mean) / std, for all dtypes but UINT8. divisor is 255 or 1; mean and std are
     * finite, and std is not 0. */
    float divisor;
    float mean[3], std[3];
    /* 6. A box of the result has these values, or standard normal ones that depend on seed. RANDOM is
     * not for UINT8, whose values are 0 or more and below 256; a fraction is cut off. */
    uint32_t erase_x, erase_y, erase_width, erase_height;
    float erase_value[3];
    uint32_t reserved; /* 0 */
    uint64_t erase_seed;
    uint64_t max_pixels; /* limit of the result, and of what a resize keeps between its passes; 0: 178,956,970 */
};

/* Makes a row of a batch: channels x height x width items of dtype at dst, which has dst_bytes
 * bytes. Errors: EINVAL: an argument is NULL, dst is too small, or a member has a value that its comment
 * excludes; ETOOLARGE; EMEMORY. */
STOC_IMAGE_API int stoc_image_augment(stoc_image_worker *worker, const struct stoc_image_picture *picture,
                                      const struct stoc_image_augment *how, void *dst, size_t dst_bytes);

/* stoc_image_augment of what stoc_image_decode makes of a file, with the same bits. With width 0 in decode, that is as
 * with 0 x 0 in stoc_image_target; then only the box is decoded, and damage outside of it may stay unseen. Errors:
 * those of both. */
STOC_IMAGE_API int stoc_image_augment_file(stoc_image_worker *worker, const void *file, size_t bytes,
                                           const struct stoc_image_decode *decode,
                                           const struct stoc_image_augment *how, void *dst, size_t dst_bytes);

/* ----------------------------------------------------------------------------------- plans */

/* Steps with torchvision's meaning. */
enum stoc_image_step_kind {
    STOC_IMAGE_RESIZE = 1,             /* height, width; or width 0: height is the short side, integers[0] the most of
                                          the long side or 0 */
    STOC_IMAGE_CENTER_CROP = 2,        /* height, width */
    STOC_IMAGE_RANDOM_RESIZED_CROP = 3, /* height, width; numbers: scale from, to; ratio from, to */
    STOC_IMAGE_RANDOM_CROP = 4,        /* height, width; integers: padding left, top, right, bottom; 1: pad if needed;
                                          fill of three channels */
    STOC_IMAGE_RANDOM_FLIP = 5,        /* numbers: probability */
    STOC_IMAGE_COLOR_JITTER = 6,       /* integers[k]: 1 if enum stoc_image_adjustment k + 1 is drawn; numbers[2 * k],
                                          [2 * k + 1]: from, to */
    STOC_IMAGE_RANDOM_ERASING = 7,     /* numbers: probability; scale from, to; ratio from, to; three values;
                                          integers[0]: 1 for normal numbers in place of values */
    STOC_IMAGE_TO_DTYPE = 8,           /* integers: enum stoc_image_dtype; 1: divided by 255 */
    STOC_IMAGE_NORMALIZE = 9           /* numbers: three means, three standard deviations; integers: how many of each
                                          the user gave, which a picture of fewer channels does not take */
};

struct stoc_image_step {
    uint32_t kind;   /* enum stoc_image_step_kind */
    uint32_t filter; /* enum stoc_image_filter, of steps that resize */
    uint32_t height, width;
    int32_t integers[8];
    double numbers[8];
    uint64_t stage; /* which numbers it draws, if several stages have their own; else 0 */
};

/* A picture, and the steps for it. */
struct stoc_image_request {
    uint32_t width, height; /* size of the picture, 1 to 2^30 */
    uint32_t channels;      /* 1 or 3 */
    uint8_t layout;         /* enum stoc_image_layout */
    uint8_t dtype;          /* enum stoc_image_dtype */
    uint16_t reserved;      /* 0 */
    uint64_t max_pixels;    /* limit of each picture that a step makes; 0: 178,956,970 */
    uint32_t step_count;    /* at most 1,000,000 */
    const struct stoc_image_step *steps;
    /* Gives the next random number of a stage, from 0 up to 1; any other number counts as 0. NULL: the numbers are those
     * of seed (docs/spec/image.md, Random numbers). It must not call this worker. */
    double (*draw)(void *context, uint64_t stage);
    void *context;
    uint64_t seed;
};

/* Plans steps as few passes over a picture: struct stoc_image_augment number 0 to *count - 1, each of the result of the
 * one before it. passes has room for 2 * step_count + 1. stoc_image_augment does those over uint8; those over floats are
 * for the caller, who changes no sides then. Errors: EINVAL: an argument is NULL, or a member has a value that its
 * comment excludes. EUNSUPPORTED: a step does not fit the picture; the message says why. ETOOLARGE: a step makes a
 * larger picture than max_pixels, or a side above 65,500. After an error, passes has any bytes, and numbers may have
 * been drawn. */
STOC_IMAGE_API int stoc_image_plan(stoc_image_worker *worker, const struct stoc_image_request *request,
                                   struct stoc_image_augment *passes, uint32_t *count);

/* ---------------------------------------------------------------------------------- pipelines
 *
 * What a worker of a loader does with a sample, from the file to the row of a batch:
 *
 *     read the file - decode - steps - (the cache) - random steps - row
 *
 * stoc_image_load does what comes before the cache, and stoc_image_finish what comes after it. They are the
 * functions that stoc_work of stocached.h calls. Each leaves to the caller what it cannot do: a file of another
 * format, a broken file, steps that need a second pass over floats. docs/spec/image.md, Pipelines.
 */

enum stoc_image_label_kind {
    STOC_IMAGE_LABEL_KNOWN = 0,
    STOC_IMAGE_LABEL_TEXT = 1, /* a whole number in the file, as Python's int reads it */
    STOC_IMAGE_LABEL_JSON = 2  /* the same, as Python's json.loads reads it */
};

/* Where a sample lies: in a file of its own, or inside a larger one, such as a tar file. */
struct stoc_image_place {
    int64_t at;           /* the first byte of the picture in the file; -1: the picture is the whole file */
    int64_t label;        /* LABEL_KNOWN: the label; else the first byte of its text in the file */
    uint32_t bytes;       /* length of the picture */
    uint32_t label_bytes; /* length of the label's text */
    uint32_t file;        /* number of the file */
    uint32_t label_kind;  /* enum stoc_image_label_kind */
};

/* What a file was when its samples were listed. */
struct stoc_image_stamp {
    int64_t bytes, modified_ns;
};

struct stoc_image_pipeline {
    uint64_t struct_bytes; /* sizeof(struct stoc_image_pipeline) */
    /* files: the path of file f is at paths + path_at[f] and ends with a NUL */
    const char *paths;
    const uint64_t *path_at;
    const struct stoc_image_stamp *stamps; /* a file with another one is an error; NULL: files may change */
    /* 1 + the descriptor of each file that is open, else 0. Workers open files that have several samples, and change
     * these numbers by atomic operations; the caller closes them when no worker follows the pipeline. NULL: no file
     * stays open */
    int32_t *descriptors;
    const struct stoc_image_place *places; /* places of samples */
    uint64_t files, samples;
    struct stoc_image_decode decode; /* width 0: all of the picture; then short_side may be 0 */
    uint32_t encoded; /* 1: the cache has the bytes of files, and stoc_image_finish decodes them */
    uint32_t labelled; /* 1: a sample is a picture and a label; 0: a picture */
    uint32_t extents; /* 1: a sample has the form of a variable-size cache (docs/spec/segment.md, Fields); 0: fixed */
    uint32_t picture_width, picture_height; /* size that samples must have; 0: any, with extents */
    uint64_t sample_bytes, picture_at, label_at; /* fixed: of a sample, and where picture and label lie in it */
    /* shape of the row's picture, in its order of dimensions. Row r begins in the buffer at row_at + r * its bytes,
     * and its label at row_label_at + 8 * r */
    uint32_t row_shape[3];
    uint32_t row_dtype; /* enum stoc_image_dtype */
    uint64_t row_at, row_label_at;
    uint32_t step_count;
    /* so many of the first steps come before the cache: only STOC_IMAGE_RESIZE and STOC_IMAGE_CENTER_CROP, of samples
     * that are not encoded */
    uint32_t before_count;
    const struct stoc_image_step *steps;
};

/* Makes this worker follow a pipeline, which the caller keeps and does not change until the worker is freed or follows
 * another one. Any number of workers may follow one pipeline. Errors: EINVAL, ETOOLARGE. */
STOC_IMAGE_API int stoc_image_follow(stoc_image_worker *worker, const struct stoc_image_pipeline *pipeline);

/* Makes sample `index`: *sample and *bytes are valid until the next call of this worker. Errors: EINVAL: the worker
 * follows no pipeline, an argument is NULL, no such sample or place exists, or the pipeline's decode has a value that
 * struct stoc_image_decode excludes. EFORMAT: the file is broken or cut off, or a file of several samples ends in
 * the middle of this one. EKIND. EUNSUPPORTED: that of enum stoc_image_code, or the picture has another size
 * than samples must have, or the label is no whole number of an int64_t. ETOOLARGE: the picture, or one that
 * a step makes of it, has more than max_pixels, with its short_side too, or a side above 65,500; or, with encoded, the
 * file has 4 GiB or more. EMEMORY. ESYSTEM: the file cannot be read, or has changed. */
STOC_IMAGE_API int stoc_image_load(void *worker, int64_t index, const void **sample, size_t *bytes);

/* Makes row `row` of a buffer from a sample. seed: of the random numbers. The pixels may change during the call, as
 * those of a cache do; encoded samples must not. Errors: EINVAL: the worker follows no pipeline, an argument is NULL,
 * or a step has a value that struct stoc_image_augment excludes. EUNSUPPORTED: the steps need a pass over floats, or
 * one does not fit the picture (a crop that is larger, a random box that rounds to no pixels), or the sample has
 * another form than the pipeline says, or the row another shape. ETOOLARGE: a step makes a larger picture than
 * max_pixels, which is 178,956,970 without encoded. EMEMORY. With encoded, those of stoc_image_decode too. */
STOC_IMAGE_API int stoc_image_finish(void *worker, uint64_t seed, const void *sample, size_t bytes, void *buffer,
                                     uint32_t row);

/* The vector instructions that a worker uses, of those of this processor: 0: none; 1: AVX2 and FMA; 2: AVX-512 with
 * VNNI, too. */
STOC_IMAGE_API int stoc_image_vectors(const stoc_image_worker *worker);
/* For tests: the worker uses these at most. All give the same bits. */
STOC_IMAGE_API void stoc_image_use_vectors(stoc_image_worker *worker, int most);

#ifdef __cplusplus
}
#endif
#endif

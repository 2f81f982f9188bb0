/* What the parts of the library share. Each part is one file. They stand here from the ground up: a part calls those
 * above it in this file. */
#ifndef IMAGE_H
#define IMAGE_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../stocached_image.h"

enum {
    BAND = 32,            /* rows of a picture that are resized together */
    MAX_SIDE = STOC_IMAGE_MAX_SIDE,
    MAX_SCANS = 100,      /* limit of scans of a progressive file */
    MIN_STREAM = 1 << 18 /* bytes of a result that the processor's cache would not keep until they are read */
};

/* Memory that grows and is used again. */
struct buffer {
    uint8_t *bytes;
    size_t size;
};

/* Weights of one direction: result k is the sum over t of values[k * taps + t] * source[first[k] + t],
 * rounded, divided by 2^shift. taps is even. The last of them may lie after the source, with weight 0. */
struct weights {
    uint32_t count, taps, shift;
    uint32_t low, high; /* sources low to high - 1 are needed */
    bool identity;      /* result k is source low + k */
    uint32_t *first;
    int16_t *values;
    struct buffer memory;
    uint32_t made_of[7]; /* the arguments of make_weights; the first is 0 after other changes */
};

/* One resize: source rows go in, in bands, and rows of channel planes come out. */
struct resize {
    struct weights across, down;
    uint32_t channels;
    size_t stride;        /* bytes of a row of middle: columns of the result, a multiple of BAND */
    struct buffer middle; /* channels planes of rows low to high of down; columns of the result */
    struct buffer turned, summed; /* a band in columns: of the source, of the result */
    /* For a picture that is transposed after the resize, so it is resized down first. Otherwise `collected` and `weighed`
     * are not used. */
    bool down_first, reversed; /* reversed: row k of the result is the last but k of the picture */
    struct buffer collected;   /* rows of the source from row `first` on, which results may still need */
    struct buffer weighed;     /* a band of rows that are resized down; pixels of channels bytes */
    uint32_t first, end, done; /* rows collected: first to end - 1; rows resized */
};

/* The values of results for each value of a pixel. */
struct table {
    float divisor, mean[3], std[3];
    uint8_t dtype;
    bool made, exact; /* exact: arithmetic gives the bits of the table */
    float values[3][256];
    uint16_t halves[3][256];
};

struct stoc_image_worker {
    int vectors; /* as stoc_image_vectors */
    struct resize resize;
    struct buffer rows, picture, row;
    struct buffer text, joined, inflated; /* parts of a file that is being decoded */
    struct table table;
    const struct stoc_image_pipeline *pipeline;
    struct buffer file, sample, decoded; /* buffers of a pipeline */
    struct buffer passes[2];             /* results of all passes over a picture but the last one, in turn */
    char message[256];
};

/* memory.c: memory that grows, and messages, of a worker that may be NULL. */
bool reserve(struct buffer *b, size_t bytes);
bool extend(struct buffer *b, size_t kept, size_t bytes); /* keeps the first bytes */
void release(struct buffer *b);
int fail(stoc_image_worker *w, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

static inline int no_memory(stoc_image_worker *w, size_t bytes)
{
    return fail(w, STOC_IMAGE_EMEMORY, "too little memory for %zu bytes", bytes);
}

/* random.c: numpy.random.PCG64, or numbers of the caller's */
struct random {
    __extension__ unsigned __int128 state, increment;
    double (*draw)(void *context, uint64_t stage); /* NULL: PCG64 */
    void *context;
    uint64_t stage;
};
struct random random_of(uint64_t seed, uint64_t stage);
double draw(struct random *r); /* from 0 up to 1 */
double draw_between(struct random *r, double low, double high);
uint32_t draw_below(struct random *r, uint32_t n);

/* orientation.c: 1 to 8; 0 if the data has none. EXIF data may begin with its name. */
uint32_t exif_orientation(const uint8_t *exif, size_t bytes);
uint32_t xmp_orientation(const uint8_t *xmp, size_t bytes);

/* target.c: which sides a picture gets, and which part of it a decode takes. */
void short_and_long(uint32_t *width, uint32_t *height, uint32_t side, uint32_t longest);
/* ETOOLARGE if a picture has more pixels than max_pixels, or a side above MAX_SIDE. what: its name in the message. */
int check_pixels(stoc_image_worker *w, const char *what, uint64_t width, uint64_t height, uint64_t max_pixels);
int check_decode(stoc_image_worker *w, const struct stoc_image_decode *how);
/* Gives how the sides of the whole picture, or of one with its short side. */
int whole_of(stoc_image_worker *w, uint32_t width, uint32_t height, struct stoc_image_decode *how);
/* how and the sides must be valid */
int target_of(stoc_image_worker *w, uint32_t width, uint32_t height, const struct stoc_image_decode *how,
              struct stoc_image_target *target);

/* weights.c: count results from from on, of a resize to out. The sources are a side of whole pixels, or what a decoder
 * has made of it: a pixel of each parts pixels, and one of the rest. flip: in reverse order. */
bool make_weights(struct weights *w, uint32_t whole, uint32_t parts, uint32_t out, uint32_t from, uint32_t count,
                  int filter, bool flip);

/* Moves all sources by so many. */
void move_weights(struct weights *w, uint32_t by);

/* vectors.c: the loops over bytes, each in C and with vector instructions. */
typedef void transpose_in_function(uint8_t *dst, const uint8_t *const rows[BAND], size_t from, size_t columns);
typedef void transpose_out_function(uint8_t *dst, size_t stride, const uint8_t *src, size_t columns);
typedef void weigh_function(uint8_t *dst, const uint8_t *src, size_t step, const int16_t *weights, uint32_t taps,
                            uint32_t shift, size_t n);
typedef void weigh_columns_function(uint8_t *dst, size_t plane, const uint8_t *src, const struct weights *weights,
                                    uint32_t channels);
typedef void paeth_function(uint8_t *row, const uint8_t *above, size_t n, size_t pixel);
typedef void interleave_function(uint8_t *dst, const uint8_t *const rows[3], size_t n);
struct loops {
    transpose_in_function *transpose_in;   /* BAND rows into columns of BAND bytes */
    transpose_out_function *transpose_out; /* columns of BAND bytes into BAND rows */
    weigh_function *weigh;                 /* weighted sums of rows; n is a multiple of BAND */
    /* results of a band: column k of channel c goes to dst + c * plane + k * BAND. Sources are columns from low on, of
     * channels columns each. */
    weigh_columns_function *weigh_columns;
    interleave_function *interleave;       /* rows of three planes into n pixels of three bytes */
    paeth_function *paeth;                 /* NULL: libpng does as well. Undoes PNG's filter Paeth in a row of n bytes, of
                                            * pixels of 3 or 4 bytes. It may read one byte more. */
    /* value / divisor - mean, divided by std, for n values. streams: past the processor's cache, until end_stream */
    void (*normalise)(float *dst, const uint8_t *src, size_t n, float divisor, float mean, float std, bool streams);
};
void end_stream(void);
const struct loops *loops_of(const stoc_image_worker *w);
int most_vectors(void); /* the widest that this processor has */

/* resize.c */
/* As check_pixels. Call it when the weights are made; down_first: as of resize_begin. */
int check_middle(stoc_image_worker *w, uint64_t max_pixels, bool down_first);
/* down_first: first down and then across, where both change. reversed: as in struct resize. */
int resize_begin(stoc_image_worker *w, uint32_t channels, bool down_first, bool reversed);
/* n rows of a picture from row y on, which begin at column 0. HWC: channels bytes a pixel. Otherwise
 * one plane. */
void resize_band(stoc_image_worker *w, const uint8_t *const rows[BAND], uint32_t n, uint32_t y, bool hwc,
                 uint32_t plane);
/* Row k of the result, for a channel. dst has resize.stride bytes and is used, or not. */
const uint8_t *resize_row(stoc_image_worker *w, uint32_t channel, uint32_t k, uint8_t *dst);
void resize_free(struct resize *r);

/* adjust.c: colours of a picture of 1 or 3 planes. */
void adjust(uint8_t *planes, size_t plane_bytes, uint32_t channels, size_t stride, uint32_t width, uint32_t height,
            const struct stoc_image_augment *how);

/* output.c */
void make_table(stoc_image_worker *w, const struct stoc_image_augment *how);
size_t bytes_of(int dtype);
void put_row(stoc_image_worker *w, const uint8_t *const rows[3], uint32_t channels, uint32_t y,
             const struct stoc_image_augment *how, void *dst);
void erase(const struct stoc_image_augment *how, uint32_t channels, void *dst);

/* decode.c: a window of the picture that is resized to window->resized_width x resized_height, into a result of
 * how->width x how->height, which is the window's size. NULL: as stoc_image_decode. The arguments must be valid. */
int decode_window(stoc_image_worker *w, const void *file, size_t bytes, const struct stoc_image_decode *how,
                  const struct stoc_image_target *window, uint8_t *dst);

/* An orientation as a transposition of the file's picture, after which columns and rows are reversed. */
struct turn {
    bool transpose, flip_x, flip_y; /* flips of the file's columns and rows */
};

/* The decode of one file. */
struct job {
    stoc_image_worker *worker;
    const uint8_t *file;
    size_t bytes;
    const struct stoc_image_decode *how;
    const struct stoc_image_target *window; /* as that of decode_window */
    uint8_t *dst;
    uint32_t width, height; /* the size of the file's picture */
    uint32_t scale;         /* the decoder divides its sides by 1, 2, 4 or 8 */
    struct turn turn;
    struct stoc_image_target target;
};
/* Checks the sides of the file's picture, and says where it goes. Call it before memory is taken for the picture. */
int begin_job(struct job *j, uint32_t width, uint32_t height, uint32_t orientation);
/* Weights from what the decoder makes to the target: rows down.low to down.high - 1 go into resize_band. If columns stay
 * as they are, a pixel is three columns of one plane: its bytes are copied. */
int plan_job(struct job *j, uint32_t decoded_width);
/* Writes the rows of the resize to the result. */
int finish_job(const struct job *j);
/* The result, if its bytes are those of the file's picture; otherwise NULL. The decoder writes there, and is done. */
uint8_t *whole_result(const struct job *j);
/* plan_job, resize_band and finish_job, for a decoder that has the whole picture in memory: red, green and blue. */
int show_picture(struct job *j, const uint8_t *pixels);

/* jpeg.c, png.c, webp.c: a format. */
struct format {
    const char *kind; /* the kind of its files, in kinds.h */
    int (*read_info)(stoc_image_worker *w, const uint8_t *file, size_t bytes, struct stoc_image_info *info); /* not turned */
    int (*decode)(struct job *j);
};
extern const struct format jpeg_format, png_format, webp_format;
extern const struct format *const formats[]; /* codecs.c; the last is NULL */

/* files.c: the bytes of a picture in the buffer that they were read into, and the label. */
struct found {
    size_t at, bytes;
    int64_t label;
};
/* Reads a sample to found->at bytes after the begin of the buffer, or later. */
int read_sample(stoc_image_worker *w, uint64_t index, struct buffer *b, struct found *found);

/* pass.c: a pass over a picture that is waiting to be done, with the steps so far. */
struct pass {
    struct stoc_image_picture picture; /* pixels NULL: of an encoded picture that is not decoded yet */
    struct stoc_image_augment how;
    const uint8_t *file;      /* bytes of an encoded picture */
    uint64_t file_bytes;
    struct stoc_image_decode decode; /* how to decode it: its width and height */
    bool boxes; /* boxes of it are boxes of the file: no part of the picture is cut off or padded */
};

/* A pass over the picture of a file, which is not decoded yet. */
int first_of_file(stoc_image_worker *w, const uint8_t *file, uint64_t bytes, const struct stoc_image_decode *how,
                  struct pass *pass);
/* Decodes the picture before its first pass: all of it, or only the box that the pass uses. */
int decode_for(stoc_image_worker *w, struct pass *pass);
/* Does the pass that waits, after so many steps, of a picture that may not be decoded yet. */
int last_pass(stoc_image_worker *w, uint32_t steps, struct pass *pass, uint8_t *dst, size_t bytes);

/* steps.c: does steps from up to stop - 1 of a pipeline but those of the last pass, which waits then. An error: a step
 * does not fit the picture, a pass would need a picture of floats, or it failed. */
int do_steps(stoc_image_worker *w, uint32_t from, uint32_t stop, uint64_t seed, struct pass *pass);
int check_steps(stoc_image_worker *w, const struct stoc_image_pipeline *p);

#endif

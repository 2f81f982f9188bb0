/* What a worker of a loader does with a sample: before the cache stoc_image_load, after it stoc_image_finish. */
#define _POSIX_C_SOURCE 200809L /* pread, O_CLOEXEC */
#include "image.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    FIELD_HEADER = 40,   /* bytes of an extent header for each field: u64 bytes, eight u32 dimensions */
    ALIGN = 64,          /* of fields */
    FIRST_READ = 1 << 16,
    MOST_BETWEEN = 16384 /* bytes between a picture and its label that are read, so that one read has both */
};

static size_t padded(size_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

/* Bytes of the header of samples with extents. One field of one dimension has none. */
static size_t header_of(const struct stoc_image_pipeline *p)
{
    return p->labelled ? padded(2 * FIELD_HEADER) : p->encoded ? 0 : padded(FIELD_HEADER);
}

/* Bytes of a sample with extents whose picture or file has so many. */
static size_t extents_of(const struct stoc_image_pipeline *p, size_t bytes)
{
    size_t header = header_of(p);
    return header ? header + padded(bytes) + (p->labelled ? ALIGN : 0) : bytes;
}

int stoc_image_follow(stoc_image_worker *w, const struct stoc_image_pipeline *p)
{
    if (!w)
        return STOC_IMAGE_EINVAL;
    if (!p || p->struct_bytes < sizeof *p)
        return fail(w, STOC_IMAGE_EINVAL, "pipeline is NULL or too short");
    if (p->samples && (!p->paths || !p->path_at || !p->places))
        return fail(w, STOC_IMAGE_EINVAL, "paths, path_at or places is NULL");
    if (!p->extents) {
        size_t picture = (size_t)3 * p->picture_width * p->picture_height;
        if (!picture || p->encoded)
            return fail(w, STOC_IMAGE_EINVAL, "fixed samples have a width and a height, and are not encoded");
        if (p->picture_at + picture > p->sample_bytes ||
            (p->labelled && p->label_at + sizeof(int64_t) > p->sample_bytes))
            return fail(w, STOC_IMAGE_EINVAL, "picture and label do not fit into %llu bytes",
                        (unsigned long long)p->sample_bytes);
    }
    if (p->row_dtype > STOC_IMAGE_BFLOAT16 || (p->decode.width == 0) != (p->decode.height == 0))
        return fail(w, STOC_IMAGE_EINVAL, "row_dtype %u, decode %u x %u", p->row_dtype, p->decode.width, p->decode.height);
    int code = check_steps(w, p);
    if (code)
        return code;
    w->pipeline = p;
    release(&w->sample); /* it may have bytes between other fields */
    return STOC_IMAGE_OK;
}

/* ---------------------------------------------------------------------------------- files */

/* As reserve, and keeps the first bytes. */
static bool extend(struct buffer *b, size_t kept, size_t bytes)
{
    struct buffer fresh = {0};
    if (bytes <= b->size)
        return true;
    if (!reserve(&fresh, bytes))
        return false;
    if (b->size)
        memcpy(fresh.bytes, b->bytes, kept < b->size ? kept : b->size);
    release(b);
    *b = fresh;
    return true;
}

/* Reads n bytes from an offset, or up to the end of the file. at -1: from where the descriptor is, as of a pipe.
 * Returns how many; below 0: errno is set. */
static ssize_t read_from(int fd, uint8_t *dst, size_t n, int64_t at)
{
    size_t done = 0;
    while (done < n) {
        ssize_t got = at < 0 ? read(fd, dst + done, n - done) : pread(fd, dst + done, n - done, (off_t)at + (off_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? got : (ssize_t)done;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

/* The bytes of a picture in the buffer that they were read into, and the label. */
struct found {
    size_t at, bytes;
    int64_t label;
};

/* Reads a whole file to found->at bytes after the begin of the buffer. */
static int read_whole(stoc_image_worker *w, int fd, struct buffer *b, struct found *found)
{
    struct stat about;
    if (fstat(fd, &about) < 0)
        return STOC_IMAGE_ESYSTEM;
    size_t want = (size_t)about.st_size + 1; /* one more shows the end of the file; the size of a pipe is 0 */
    for (want = want < FIRST_READ ? FIRST_READ : want;; want *= 2) {
        if (!extend(b, found->at + found->bytes, found->at + want))
            return no_memory(w, want);
        ssize_t got = read_from(fd, b->bytes + found->at + found->bytes, want - found->bytes, -1);
        if (got < 0)
            return STOC_IMAGE_ESYSTEM;
        found->bytes += (size_t)got;
        if (found->bytes < want)
            return STOC_IMAGE_OK;
    }
}

static bool is_space(uint8_t c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* A whole number. False: Python reads the text. */
static bool parse_label(const uint8_t *text, size_t n, uint32_t kind, int64_t *label)
{
    while (n && is_space(text[n - 1]))
        n--;
    for (; n && is_space(*text); n--)
        text++;
    bool json = kind == STOC_IMAGE_LABEL_JSON, minus = n && *text == '-';
    if (minus || (n && *text == '+' && !json)) {
        text++;
        n--;
    }
    if (!n || (json && n > 1 && *text == '0'))
        return false;
    uint64_t value = 0, most = (uint64_t)INT64_MAX + minus;
    for (; n; n--, text++) {
        unsigned digit = *text - (unsigned)'0';
        if (digit > 9 || value > (most - digit) / 10)
            return false;
        value = 10 * value + digit;
    }
    *label = minus ? (int64_t)-value : (int64_t)value;
    return true;
}

/* Reads the part of a file that has a picture, and the label's text: both at once if they lie close together. */
static int read_part(stoc_image_worker *w, int fd, const struct stoc_image_place *place, struct buffer *b,
                     struct found *found)
{
    bool text = w->pipeline->labelled && place->label_kind != STOC_IMAGE_LABEL_KNOWN;
    if (place->at < 0 || place->at > INT64_MAX - UINT32_MAX ||
        (text && (place->label < 0 || place->label > INT64_MAX - UINT32_MAX)))
        return fail(w, STOC_IMAGE_EINVAL, "a sample lies at no place of a file");
    int64_t first = place->at, last = first + place->bytes;
    size_t before = found->at, apart = 0; /* apart: bytes of the text, if they are read for themselves */
    if (text) {
        int64_t label_end = place->label + place->label_bytes, begin = first < place->label ? first : place->label;
        int64_t end = last > label_end ? last : label_end;
        if (end - begin - place->bytes - place->label_bytes <= MOST_BETWEEN) {
            first = begin;
            last = end;
        } else
            apart = place->label_bytes;
    }
    size_t n = (size_t)(last - first);
    if (!reserve(b, before + n + apart))
        return no_memory(w, n + apart);
    uint8_t *bytes = b->bytes + before;
    ssize_t got = read_from(fd, bytes, n, first), more = 0;
    if (got < 0 || (apart && (more = read_from(fd, bytes + n, apart, place->label)) < 0))
        return STOC_IMAGE_ESYSTEM;
    if ((size_t)got < n || (size_t)more < apart)
        return fail(w, STOC_IMAGE_EFORMAT, "the file ends in the middle of a sample");
    if (text && !parse_label(bytes + (apart ? n : (size_t)(place->label - first)), place->label_bytes,
                             place->label_kind, &found->label))
        return fail(w, STOC_IMAGE_EUNSUPPORTED, "the label is no whole number");
    found->at = before + (size_t)(place->at - first);
    found->bytes = place->bytes;
    return STOC_IMAGE_OK;
}

static bool has_changed(int fd, const struct stoc_image_stamp *stamp)
{
    struct stat about;
    return fstat(fd, &about) < 0 || about.st_size != stamp->bytes ||
           about.st_mtim.tv_sec * INT64_C(1000000000) + about.st_mtim.tv_nsec != stamp->modified_ns;
}

/* Reads a sample to found->at bytes after the begin of the buffer, or later. */
static int read_sample(stoc_image_worker *w, uint64_t index, struct buffer *b, struct found *found)
{
    const struct stoc_image_pipeline *p = w->pipeline;
    const struct stoc_image_place *place = &p->places[index];
    if (place->file >= p->files)
        return fail(w, STOC_IMAGE_EINVAL, "there is no file %u", place->file);
    const char *path = p->paths + p->path_at[place->file];
    int32_t *held = p->descriptors && place->at != -1 ? &p->descriptors[place->file] : NULL;
    int fd = held ? __atomic_load_n(held, __ATOMIC_ACQUIRE) - 1 : -1;
    bool opened = fd < 0;
    if (opened && (fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return fail(w, STOC_IMAGE_ESYSTEM, "%s: %s", path, strerror(errno));
    found->label = place->label;
    found->bytes = 0;
    w->message[0] = 0;
    int code = place->at == -1 ? read_whole(w, fd, b, found) : read_part(w, fd, place, b, found);
    if (code == STOC_IMAGE_ESYSTEM && !w->message[0])
        fail(w, code, "%s: %s", path, strerror(errno));
    /* We check after the read, so that we use no bytes that another program wrote during it. */
    if (!code && p->stamps && has_changed(fd, &p->stamps[place->file]))
        code = fail(w, STOC_IMAGE_ESYSTEM, "%s has changed", path);
    int32_t none = 0;
    bool keep = opened && !code && held &&
                __atomic_compare_exchange_n(held, &none, fd + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    if (opened && !keep)
        close(fd);
    return code;
}

/* ---------------------------------------------------------------------------------- samples */

/* Width and height of the decoded picture of a file. */
static int sides_of(stoc_image_worker *w, const void *file, size_t bytes, struct stoc_image_decode *how)
{
    if (how->width)
        return STOC_IMAGE_OK;
    struct stoc_image_info info;
    int code = stoc_image_read_info(w, file, bytes, &info);
    if (code)
        return code;
    uint64_t most = how->max_pixels ? how->max_pixels : DEFAULT_PIXELS;
    if ((uint64_t)info.width * info.height > most)
        return fail(w, STOC_IMAGE_ETOOLARGE, "the picture is %u x %u", info.width, info.height);
    how->width = info.width;
    how->height = info.height;
    if (how->short_side)
        short_and_long(&how->width, &how->height, how->short_side, 0);
    how->fit = STOC_IMAGE_STRETCH;
    how->short_side = 0;
    if (how->width > MAX_SIDE || how->height > MAX_SIDE || (uint64_t)how->width * how->height > most)
        return fail(w, STOC_IMAGE_ETOOLARGE, "the result is %u x %u", how->width, how->height);
    return STOC_IMAGE_OK;
}

static void put_field(uint8_t *header, uint64_t bytes, uint32_t dimensions, const uint32_t *shape)
{
    memset(header, 0, FIELD_HEADER);
    memcpy(header, &bytes, sizeof bytes);
    memcpy(header + sizeof bytes, shape, dimensions * sizeof *shape);
}

/* The header and the label of a sample with extents, whose picture or file has so many bytes. */
static void put_extents(const struct stoc_image_pipeline *p, uint8_t *sample, uint64_t bytes, uint32_t dimensions,
                        const uint32_t *shape, int64_t label)
{
    size_t header = header_of(p), end = header + bytes, size = extents_of(p, bytes);
    memset(sample, 0, header);
    memset(sample + end, 0, size - end);
    if (header)
        put_field(sample, bytes, dimensions, shape);
    if (p->labelled) {
        put_field(sample + FIELD_HEADER, sizeof label, 0, shape);
        memcpy(sample + size - ALIGN, &label, sizeof label);
    }
}

static int load_encoded(stoc_image_worker *w, uint64_t index, size_t *bytes)
{
    const struct stoc_image_pipeline *p = w->pipeline;
    size_t header = header_of(p);
    struct found found = {.at = header};
    int code = read_sample(w, index, &w->sample, &found);
    if (code)
        return code;
    if (found.bytes > UINT32_MAX)
        return fail(w, STOC_IMAGE_ETOOLARGE, "the file has %zu bytes", found.bytes);
    *bytes = extents_of(p, found.bytes);
    if (!extend(&w->sample, found.at + found.bytes, *bytes))
        return no_memory(w, *bytes);
    if (found.at != header)
        memmove(w->sample.bytes + header, w->sample.bytes + found.at, found.bytes);
    put_extents(p, w->sample.bytes, found.bytes, 1, (uint32_t[]){(uint32_t)found.bytes}, found.label);
    return STOC_IMAGE_OK;
}

static bool is_jpeg(const uint8_t *file, size_t bytes) { return bytes >= 2 && file[0] == 0xff && file[1] == 0xd8; }

/* The picture of a file that is not decoded yet, for the first pass over it. */
static int first_of_file(stoc_image_worker *w, const uint8_t *file, uint64_t bytes, struct pass *pass)
{
    if (!is_jpeg(file, bytes))
        return fail(w, STOC_IMAGE_EFORMAT, "no JPEG file");
    pass->file = file;
    pass->file_bytes = bytes;
    pass->decode = w->pipeline->decode;
    int code = sides_of(w, file, bytes, &pass->decode);
    pass->picture = (struct stoc_image_picture){NULL, pass->decode.width, pass->decode.height, 3, pass->decode.layout};
    return code;
}

/* Whether the steps use less than the whole picture. */
static bool uses_a_box(const struct stoc_image_augment *a, uint32_t width, uint32_t height)
{
    return a->box_x >= 0 && a->box_y >= 0 && (uint64_t)a->box_x + a->box_width <= width &&
           (uint64_t)a->box_y + a->box_height <= height && (a->box_width < width || a->box_height < height);
}

int decode_for(stoc_image_worker *w, struct pass *pass)
{
    struct stoc_image_decode how = pass->decode;
    struct stoc_image_augment *a = &pass->how;
    struct stoc_image_target box = {how.width, how.height, (uint32_t)a->box_x, (uint32_t)a->box_y,
                                    a->box_width, a->box_height, 0, 0};
    /* if a part of the picture is cut off or padded, boxes are no boxes of the file */
    bool boxed = w->pipeline->decode.width == 0 && uses_a_box(a, how.width, how.height);
    if (boxed) {
        pass->picture.width = how.width = box.width;
        pass->picture.height = how.height = box.height;
        a->box_x = a->box_y = 0;
    }
    size_t bytes = (size_t)3 * how.width * how.height;
    if (!reserve(&w->decoded, bytes))
        return no_memory(w, bytes);
    pass->picture.pixels = w->decoded.bytes;
    return boxed ? decode_window(w, pass->file, pass->file_bytes, &how, &box, w->decoded.bytes)
                 : stoc_image_decode(w, pass->file, pass->file_bytes, &how, w->decoded.bytes, bytes);
}

/* Does the pass that waits, after so many steps, of a picture that may not be decoded yet. */
static int last_pass(stoc_image_worker *w, uint32_t steps, struct pass *pass, uint8_t *dst, size_t bytes)
{
    if (!steps && !pass->picture.pixels)
        return stoc_image_decode(w, pass->file, pass->file_bytes, &pass->decode, dst, bytes);
    if (!steps) {
        memcpy(dst, pass->picture.pixels, bytes);
        return STOC_IMAGE_OK;
    }
    int code = pass->picture.pixels ? STOC_IMAGE_OK : decode_for(w, pass);
    return code ? code : stoc_image_augment(w, &pass->picture, &pass->how, dst, bytes);
}

static int load_decoded(stoc_image_worker *w, uint64_t index, size_t *bytes)
{
    const struct stoc_image_pipeline *p = w->pipeline;
    struct pass pass = {0};
    struct found found = {0};
    int code = read_sample(w, index, &w->file, &found);
    if (code || (code = first_of_file(w, w->file.bytes + found.at, found.bytes, &pass)) ||
        (code = do_steps(w, 0, p->before_count, 0, &pass)))
        return code;
    uint32_t width = pass.how.width, height = pass.how.height;
    if ((p->picture_width && width != p->picture_width) || (p->picture_height && height != p->picture_height) ||
        width > MAX_SIDE || height > MAX_SIDE)
        return fail(w, STOC_IMAGE_EUNSUPPORTED, "the picture is %u x %u, not %u x %u", width, height, p->picture_width,
                    p->picture_height);
    size_t picture = (size_t)3 * width * height;
    size_t size = p->extents ? extents_of(p, picture) : p->sample_bytes;
    size_t at = p->extents ? header_of(p) : p->picture_at;
    bool fresh = size > w->sample.size;
    if (!reserve(&w->sample, size))
        return no_memory(w, size);
    if (fresh && !p->extents)
        memset(w->sample.bytes, 0, size); /* bytes between fields are 0 */
    if ((code = last_pass(w, p->before_count, &pass, w->sample.bytes + at, picture)))
        return code;
    bool hwc = pass.decode.layout == STOC_IMAGE_HWC;
    uint32_t shape[] = {hwc ? height : 3, hwc ? width : height, hwc ? 3 : width};
    if (p->extents)
        put_extents(p, w->sample.bytes, picture, 3, shape, found.label);
    else if (p->labelled)
        memcpy(w->sample.bytes + p->label_at, &found.label, sizeof found.label);
    *bytes = size;
    return STOC_IMAGE_OK;
}

int stoc_image_load(void *worker, int64_t index, const void **sample, size_t *bytes)
{
    stoc_image_worker *w = worker;
    if (!w)
        return STOC_IMAGE_EINVAL;
    if (!w->pipeline || !sample || !bytes || index < 0 || (uint64_t)index >= w->pipeline->samples)
        return fail(w, STOC_IMAGE_EINVAL, "no pipeline, an argument is NULL, or there is no sample %lld",
                    (long long)index);
    int code = w->pipeline->encoded ? load_encoded(w, (uint64_t)index, bytes) : load_decoded(w, (uint64_t)index, bytes);
    *sample = w->sample.bytes;
    return code;
}

/* ---------------------------------------------------------------------------------- rows */

/* A sample: its picture or the bytes of its file, and its label. */
struct parts {
    const uint8_t *data;
    uint64_t bytes;
    uint32_t shape[3];
    int64_t label;
};

/* Reads a sample. All numbers are read once: those of a cache may change. */
static bool parts_of(const struct stoc_image_pipeline *p, const uint8_t *sample, size_t bytes, struct parts *parts)
{
    if (!p->extents) {
        if (bytes != p->sample_bytes)
            return false;
        bool hwc = p->decode.layout == STOC_IMAGE_HWC;
        uint32_t width = p->picture_width, height = p->picture_height;
        *parts = (struct parts){sample + p->picture_at, (uint64_t)3 * width * height,
                                {hwc ? height : 3, hwc ? width : height, hwc ? 3 : width}, 0};
        if (p->labelled)
            memcpy(&parts->label, sample + p->label_at, sizeof parts->label);
        return true;
    }
    size_t header = header_of(p);
    if (bytes < header)
        return false;
    *parts = (struct parts){sample + header, bytes, {0}, 0};
    if (header) {
        memcpy(&parts->bytes, sample, sizeof parts->bytes);
        memcpy(parts->shape, sample + sizeof parts->bytes, sizeof parts->shape);
    }
    if (parts->bytes > bytes || extents_of(p, parts->bytes) != bytes)
        return false;
    if (p->labelled)
        memcpy(&parts->label, sample + bytes - ALIGN, sizeof parts->label);
    return true;
}

/* The picture of its parts, by the rule of Python's Plan: channels come last if there are 1 or 3. */
static bool picture_of(const struct parts *parts, struct stoc_image_picture *picture)
{
    const uint32_t *s = parts->shape;
    bool hwc = s[2] == 1 || s[2] == 3;
    *picture = hwc ? (struct stoc_image_picture){parts->data, s[1], s[0], s[2], STOC_IMAGE_HWC}
                   : (struct stoc_image_picture){parts->data, s[2], s[1], s[0], STOC_IMAGE_CHW};
    return picture->channels == 3 && picture->width >= 1 && picture->width <= MAX_SIDE && picture->height >= 1 &&
           picture->height <= MAX_SIDE && parts->bytes == (uint64_t)3 * picture->width * picture->height;
}

/* The picture of a sample before its first pass. */
static int first_pass(stoc_image_worker *w, const struct parts *parts, struct pass *pass)
{
    if (!w->pipeline->encoded)
        return picture_of(parts, &pass->picture) ? STOC_IMAGE_OK
                                                 : fail(w, STOC_IMAGE_EUNSUPPORTED, "a sample has no such picture");
    return first_of_file(w, parts->data, parts->bytes, pass);
}

int stoc_image_finish(void *worker, uint64_t seed, const void *sample, size_t bytes, void *buffer, uint32_t row)
{
    stoc_image_worker *w = worker;
    if (!w)
        return STOC_IMAGE_EINVAL;
    const struct stoc_image_pipeline *p = w->pipeline;
    if (!p || !sample || !buffer)
        return fail(w, STOC_IMAGE_EINVAL, "no pipeline, or an argument is NULL");
    struct parts parts;
    if (!parts_of(p, sample, bytes, &parts))
        return fail(w, STOC_IMAGE_EUNSUPPORTED, "a sample of %zu bytes has another form", bytes);
    struct pass pass = {0};
    struct stoc_image_augment *how = &pass.how;
    int code = first_pass(w, &parts, &pass);
    if (code || (code = do_steps(w, p->before_count, p->step_count, seed, &pass)))
        return code;
    const uint32_t *s = p->row_shape;
    bool hwc = how->layout == STOC_IMAGE_HWC;
    if (how->dtype != p->row_dtype || s[0] != (hwc ? how->height : 3) || s[1] != (hwc ? how->width : how->height) ||
        s[2] != (hwc ? 3 : how->width))
        return fail(w, STOC_IMAGE_EUNSUPPORTED, "the row has another shape or dtype");
    size_t row_bytes = (size_t)3 * how->width * how->height * bytes_of(how->dtype);
    uint8_t *dst = (uint8_t *)buffer + p->row_at + row * row_bytes;
    if ((code = last_pass(w, p->step_count - p->before_count, &pass, dst, row_bytes)))
        return code;
    if (p->labelled)
        memcpy((uint8_t *)buffer + p->row_label_at + row * sizeof parts.label, &parts.label, sizeof parts.label);
    return STOC_IMAGE_OK;
}

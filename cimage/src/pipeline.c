/* What a worker of a loader does with a sample: before the cache stoc_image_load, after it stoc_image_finish. */
#include "image.h"

enum {
    FIELD_HEADER = 40, /* bytes of an extent header for each field: u64 bytes, eight u32 dimensions */
    ALIGN = 64         /* alignment of fields */
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
    if (!w || !p || p->struct_bytes != sizeof *p)
        return fail(w, STOC_IMAGE_EINVAL, "pipeline is NULL, or of another version");
    if (p->samples && (!p->paths || !p->path_at || !p->places))
        return fail(w, STOC_IMAGE_EINVAL, "paths, path_at or places is NULL");
    if (!p->extents) {
        size_t picture = (size_t)3 * p->picture_width * p->picture_height;
        if (!picture || p->encoded)
            return fail(w, STOC_IMAGE_EINVAL, "fixed samples have a width and a height, and are not encoded");
        int code = check_pixels(w, "the picture of a sample", p->picture_width, p->picture_height, p->decode.max_pixels);
        if (code)
            return code;
        if (p->picture_at + picture > p->sample_bytes ||
            (p->labelled && p->label_at + sizeof(int64_t) > p->sample_bytes))
            return fail(w, STOC_IMAGE_EINVAL, "picture and label do not fit into %lu bytes", p->sample_bytes);
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

/* ---------------------------------------------------------------------------------- samples */

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

static int load_decoded(stoc_image_worker *w, uint64_t index, size_t *bytes)
{
    const struct stoc_image_pipeline *p = w->pipeline;
    struct pass pass = {0};
    struct found found = {0};
    int code = read_sample(w, index, &w->file, &found);
    if (code || (code = first_of_file(w, w->file.bytes + found.at, found.bytes, &p->decode, &pass)) ||
        (code = do_steps(w, 0, p->before_count, 0, &pass)))
        return code;
    uint32_t width = pass.how.width, height = pass.how.height;
    if ((p->picture_width && width != p->picture_width) || (p->picture_height && height != p->picture_height))
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
    if (!w || !w->pipeline || !sample || !bytes || index < 0 || (uint64_t)index >= w->pipeline->samples)
        return fail(w, STOC_IMAGE_EINVAL, "no pipeline, an argument is NULL, or there is no sample %ld", index);
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
    return first_of_file(w, parts->data, parts->bytes, &w->pipeline->decode, pass);
}

int stoc_image_finish(void *worker, uint64_t seed, const void *sample, size_t bytes, void *buffer, uint32_t row)
{
    stoc_image_worker *w = worker;
    const struct stoc_image_pipeline *p = w ? w->pipeline : NULL;
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

/* WebP files, by libwebp. Of an animation, it decodes the first frame, on a canvas that is black elsewhere. */
#include "image.h"

#include <webp/decode.h>
#include <webp/demux.h>

/* A file, and its first frame. */
struct opened {
    WebPDemuxer *demuxer;
    WebPIterator frame;
    uint32_t width, height, orientation;
};

/* The orientation in the first chunk of a name; 0: none. */
static uint32_t orientation_in(const struct opened *o, const char *chunk, uint32_t (*read)(const uint8_t *, size_t))
{
    WebPChunkIterator found;
    uint32_t orientation = 0;
    if (WebPDemuxGetChunk(o->demuxer, chunk, 1, &found)) {
        orientation = read(found.chunk.bytes, found.chunk.size);
        WebPDemuxReleaseChunkIterator(&found);
    }
    return orientation;
}

static void close_file(struct opened *o)
{
    if (!o->demuxer)
        return;
    WebPDemuxReleaseIterator(&o->frame);
    WebPDemuxDelete(o->demuxer);
}

static int open_file(stoc_image_worker *w, const uint8_t *file, size_t bytes, struct opened *o)
{
    WebPData data = {file, bytes};
    *o = (struct opened){.demuxer = WebPDemux(&data)};
    if (!o->demuxer || !WebPDemuxGetFrame(o->demuxer, 1, &o->frame))
        return fail(w, STOC_IMAGE_EFORMAT, "the WebP file is cut off or damaged");
    o->width = WebPDemuxGetI(o->demuxer, WEBP_FF_CANVAS_WIDTH);
    o->height = WebPDemuxGetI(o->demuxer, WEBP_FF_CANVAS_HEIGHT);
    o->orientation = orientation_in(o, "EXIF", exif_orientation);
    if (!o->orientation)
        o->orientation = orientation_in(o, "XMP ", xmp_orientation);
    if (!o->orientation)
        o->orientation = 1;
    return STOC_IMAGE_OK;
}

static int read_info(stoc_image_worker *w, const uint8_t *file, size_t bytes, struct stoc_image_info *info)
{
    struct opened o;
    int code = open_file(w, file, bytes, &o);
    *info = (struct stoc_image_info){o.width, o.height, o.orientation, 3, 0};
    close_file(&o);
    return code;
}

/* Decodes the frame, and says where the picture lies. */
static int decode_frame(const struct job *j, const struct opened *o, uint8_t **picture)
{
    stoc_image_worker *w = j->worker;
    size_t stride = (size_t)3 * o->width, bytes = stride * o->height;
    const WebPIterator *f = &o->frame;
    uint32_t x = (uint32_t)f->x_offset, y = (uint32_t)f->y_offset;
    WebPDecoderConfig config;
    *picture = whole_result(j);
    if (!*picture && !reserve(&w->picture, bytes))
        return no_memory(w, bytes);
    *picture = *picture ? *picture : w->picture.bytes;
    if (!WebPInitDecoderConfig(&config))
        return fail(w, STOC_IMAGE_EUNSUPPORTED, "another version of libwebp than the one of its headers");
    if ((uint32_t)f->width < o->width || (uint32_t)f->height < o->height)
        memset(*picture, 0, bytes);
    size_t first = y * stride + 3 * x;
    config.output.colorspace = MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA = (WebPRGBABuffer){*picture + first, (int)stride, bytes - first};
    VP8StatusCode said = WebPDecode(f->fragment.bytes, f->fragment.size, &config);
    WebPFreeDecBuffer(&config.output);
    if (said == VP8_STATUS_OUT_OF_MEMORY)
        return fail(w, STOC_IMAGE_EMEMORY, "too little memory for libwebp");
    return said ? fail(w, STOC_IMAGE_EFORMAT, "the WebP file is cut off or damaged: status %d of libwebp", said)
                : STOC_IMAGE_OK;
}

static int decode(struct job *j)
{
    struct opened o;
    uint8_t *picture;
    int code = open_file(j->worker, j->file, j->bytes, &o);
    if (!code && !(code = begin_job(j, o.width, o.height, o.orientation)) && !(code = decode_frame(j, &o, &picture)) &&
        picture != j->dst)
        code = show_picture(j, picture);
    close_file(&o);
    return code;
}

const struct format webp_format = {"WebP", read_info, decode};

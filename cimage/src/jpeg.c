/* JPEG files, by libjpeg-turbo, a band of rows at a time. */
#include "image.h"

#include <setjmp.h>
#include <stdio.h>

#include <jerror.h>
#include <jpeglib.h>

/* A decoder, and how it ends after an error. */
struct decoder {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    jmp_buf failed;
    stoc_image_worker *worker;
    int code;
    bool whole; /* the file ends with an end marker */
    bool ended; /* the decoder asked for bytes after the last one */
    bool lost;  /* the decoder missed bits of the picture */
};

static struct decoder *decoder_of(j_common_ptr jpeg) { return jpeg->client_data; }

static void stop(struct decoder *d, int code)
{
    d->code = code;
    longjmp(d->failed, 1);
}

static void on_error(j_common_ptr jpeg)
{
    struct decoder *d = decoder_of(jpeg);
    char text[JMSG_LENGTH_MAX];
    d->errors.format_message(jpeg, text);
    int what = d->errors.msg_code;
    bool memory = what == JERR_OUT_OF_MEMORY || what == JERR_WIDTH_OVERFLOW;
    bool kind = what == JERR_CONVERSION_NOTIMPL || what == JERR_BAD_PRECISION || what == JERR_SOF_UNSUPPORTED ||
                what == JERR_ARITH_NOTIMPL || what == JERR_CCIR601_NOTIMPL;
    int code = memory ? STOC_IMAGE_EMEMORY : kind ? STOC_IMAGE_EUNSUPPORTED : STOC_IMAGE_EFORMAT;
    stop(d, fail(d->worker, code, "libjpeg: %s", text));
}

/* Warnings: libjpeg goes on. Only a file that is cut off is an error here. */
static void on_message(j_common_ptr jpeg, int level)
{
    struct decoder *d = decoder_of(jpeg);
    if (level < 0 && d->errors.msg_code == JWRN_HIT_MARKER)
        d->lost = true;
}

static void on_scan(j_common_ptr jpeg)
{
    struct decoder *d = decoder_of(jpeg);
    if (d->jpeg.input_scan_number > MAX_SCANS)
        stop(d, fail(d->worker, STOC_IMAGE_ETOOLARGE, "the file has more than %d scans", MAX_SCANS));
}

static void no_source(j_decompress_ptr jpeg) { (void)jpeg; }

/* After the last byte, the decoder reads an end-of-image marker. */
static boolean no_more_bytes(j_decompress_ptr jpeg)
{
    static const JOCTET end[] = {0xff, JPEG_EOI};
    decoder_of((j_common_ptr)jpeg)->ended = true;
    jpeg->src->next_input_byte = end;
    jpeg->src->bytes_in_buffer = sizeof end;
    return TRUE;
}

static void skip_bytes(j_decompress_ptr jpeg, long n)
{
    struct jpeg_source_mgr *s = jpeg->src;
    if (n <= 0)
        return;
    if ((size_t)n > s->bytes_in_buffer) {
        no_more_bytes(jpeg);
        return;
    }
    s->next_input_byte += n;
    s->bytes_in_buffer -= (size_t)n;
}

/* Whether a file's last bytes are an end marker, which has zeros after it in some files. */
static bool ends_with_marker(const uint8_t *file, size_t bytes)
{
    while (bytes > 2 && file[bytes - 1] == 0)
        bytes--;
    return bytes > 2 && file[bytes - 2] == 0xff && file[bytes - 1] == JPEG_EOI;
}

/* Reads the headers. Call it after setjmp. */
static void begin(struct decoder *d, const void *file, size_t bytes)
{
    d->whole = ends_with_marker(file, bytes);
    jpeg_create_decompress(&d->jpeg); /* leaves err and client_data */
    d->source = (struct jpeg_source_mgr){file,          bytes,      no_source, no_more_bytes, skip_bytes,
                                         jpeg_resync_to_restart, no_source};
    d->jpeg.src = &d->source;
    d->progress.progress_monitor = on_scan;
    d->jpeg.progress = &d->progress;
    jpeg_save_markers(&d->jpeg, JPEG_APP0 + 1, 0xffff);
    jpeg_read_header(&d->jpeg, TRUE);
}

static void prepare(struct decoder *d, stoc_image_worker *w)
{
    memset(d, 0, sizeof *d);
    d->worker = w;
    d->jpeg.client_data = d;
    d->jpeg.err = jpeg_std_error(&d->errors);
    d->errors.error_exit = on_error;
    d->errors.emit_message = on_message;
}

/* EXIF data may lie in several markers. The last marker with XMP counts. Call it after setjmp. */
static uint32_t orientation(struct decoder *d)
{
    static const char exif[] = "Exif\0", xmp[] = "http://ns.adobe.com/xap/1.0/";
    struct buffer *joined = &d->worker->text;
    size_t bytes = 0;
    uint32_t of_xmp = 0;
    for (jpeg_saved_marker_ptr m = d->jpeg.marker_list; m; m = m->next) {
        if (m->marker != JPEG_APP0 + 1)
            continue;
        if (m->data_length >= sizeof xmp && !memcmp(m->data, xmp, sizeof xmp))
            of_xmp = xmp_orientation(m->data + sizeof xmp, m->data_length - sizeof xmp);
        if (m->data_length <= sizeof exif || memcmp(m->data, exif, sizeof exif))
            continue;
        size_t more = m->data_length - sizeof exif;
        if (!extend(joined, bytes, bytes + more))
            stop(d, no_memory(d->worker, bytes + more));
        memcpy(joined->bytes + bytes, m->data + sizeof exif, more);
        bytes += more;
    }
    uint32_t of_exif = bytes ? exif_orientation(joined->bytes, bytes) : 0;
    return of_exif ? of_exif : of_xmp ? of_xmp : 1;
}

static int read_info(stoc_image_worker *w, const uint8_t *file, size_t bytes, struct stoc_image_info *info)
{
    struct decoder d;
    prepare(&d, w);
    if (setjmp(d.failed) == 0) {
        begin(&d, file, bytes);
        *info = (struct stoc_image_info){d.jpeg.image_width, d.jpeg.image_height, orientation(&d),
                                         (uint32_t)d.jpeg.num_components, (uint32_t)d.jpeg.progressive_mode};
    }
    jpeg_destroy_decompress(&d.jpeg);
    return d.code;
}

/* Pillow's conversion. It takes all files as Adobe's, which hold the inks inverted. */
static void from_cmyk(uint8_t *row, size_t pixels)
{
    for (size_t x = 0; x < pixels; x++) {
        uint32_t light = row[4 * x + 3]; /* the light that black leaves */
        for (size_t c = 0; c < 3; c++) {
            uint32_t ink = 255u - row[4 * x + c], n = ink * light + 128;
            row[3 * x + c] = (uint8_t)(light - ((n + (n >> 8)) >> 8));
        }
    }
}

/* Chooses the least scale of libjpeg that leaves at least the resized size. */
static void choose_scale(struct decoder *d, const struct stoc_image_target *t, bool transpose)
{
    uint32_t across = transpose ? t->resized_height : t->resized_width;
    uint32_t down = transpose ? t->resized_width : t->resized_height;
    d->jpeg.scale_num = 1;
    d->jpeg.scale_denom = 8;
    while (d->jpeg.scale_denom > 1 && (d->jpeg.image_width / d->jpeg.scale_denom < across ||
                                       d->jpeg.image_height / d->jpeg.scale_denom < down))
        d->jpeg.scale_denom /= 2;
}

/* Reads up to n rows, after row y. Call it after setjmp. */
static uint32_t read_some(struct decoder *d, JSAMPROW *rows, uint32_t n, uint32_t y)
{
    uint32_t got = jpeg_read_scanlines(&d->jpeg, rows, n);
    if (got == 0)
        stop(d, fail(d->worker, STOC_IMAGE_EFORMAT, "libjpeg gave no row after row %u of %u", y, d->jpeg.output_height));
    return got;
}

/* Reads the rows that the weights need into the resize. Call it after setjmp. */
static void read_rows(struct decoder *d)
{
    stoc_image_worker *w = d->worker;
    struct jpeg_decompress_struct *jpeg = &d->jpeg;
    const struct weights *across = &w->resize.across, *down = &w->resize.down;
    uint32_t low = across->low, high = across->high;
    if (w->resize.channels == 1)
        low /= 3, high /= 3;
    size_t components = jpeg->out_color_space == JCS_CMYK ? 4 : 3, stride = jpeg->output_width * components;
    uint32_t unit_x = (uint32_t)(jpeg->max_h_samp_factor * DCTSIZE), unit_y = (uint32_t)(jpeg->max_v_samp_factor * DCTSIZE);
    bool cuts = !jpeg->progressive_mode && jpeg->scale_denom == 1; /* a progressive file is decoded as a whole */
    JDIMENSION left = 0, width = jpeg->output_width;
    if (!reserve(&w->rows, stride * BAND))
        stop(d, fail(w, STOC_IMAGE_EMEMORY, "too little memory for %d rows of %zu bytes", BAND, stride));
    jpeg_start_decompress(jpeg);
    if (cuts && (low >= 2 * unit_x || high + 2 * unit_x <= width)) {
        /* One unit more on each side, because upsampling at an edge gives other pixels. */
        left = low > unit_x ? low - unit_x : 0;
        JDIMENSION right = high + unit_x < width ? high + unit_x : width;
        width = right - left;
        jpeg_crop_scanline(jpeg, &left, &width);
    }
    uint32_t y = 0;
    if (cuts && down->low >= 2 * unit_y) /* libjpeg keeps the rows that upsampling needs */
        y = jpeg_skip_scanlines(jpeg, (down->low / unit_y - 1) * unit_y);
    const uint8_t *rows[BAND];
    uint32_t n = 0;
    while (y < down->high) {
        JSAMPROW next[BAND];
        for (uint32_t k = 0; k < BAND - n; k++)
            next[k] = w->rows.bytes + (n + k) * stride + left * components;
        uint32_t got = read_some(d, next, y < down->low ? 1 : BAND - n, y);
        y += got;
        if (y <= down->low)
            continue; /* a row before the first that is needed: the next one takes its place */
        for (uint32_t k = n; k < n + got; k++) {
            rows[k] = w->rows.bytes + k * stride;
            if (components == 4)
                from_cmyk(w->rows.bytes + k * stride, width + left);
        }
        n += got;
        if (n == BAND || y >= down->high) {
            resize_band(w, rows, n, y - n, true, 0);
            n = 0;
        }
    }
    JSAMPROW row = w->rows.bytes;
    while (!d->whole && y < jpeg->output_height) /* are there bits for the rows that nobody needs? */
        y += read_some(d, &row, 1, y);
    if (d->lost || d->ended)
        stop(d, fail(w, STOC_IMAGE_EFORMAT, "the file is cut off%s", d->lost ? " or damaged: bits of the picture are missing"
                                                                             : ": its end is missing"));
}

/* Call it after setjmp. */
static void decode_into(struct decoder *d, struct job *j)
{
    stoc_image_worker *w = d->worker;
    struct jpeg_decompress_struct *jpeg = &d->jpeg;
    begin(d, j->file, j->bytes);
    if (jpeg->num_components != 1 && jpeg->num_components != 3 && jpeg->num_components != 4)
        stop(d, fail(w, STOC_IMAGE_EUNSUPPORTED, "the file has %d components", jpeg->num_components));
    int code = begin_job(j, jpeg->image_width, jpeg->image_height, orientation(d));
    if (code)
        stop(d, code);
    jpeg->out_color_space = jpeg->num_components == 4 ? JCS_CMYK : JCS_RGB;
    jpeg->dct_method = JDCT_ISLOW;
    if (j->how->fast)
        choose_scale(d, &j->target, j->turn.transpose);
    jpeg_calc_output_dimensions(jpeg);
    j->scale = jpeg->scale_denom;
    if ((code = plan_job(j, jpeg->output_width)))
        stop(d, code);
    read_rows(d);
    if ((code = finish_job(j)))
        stop(d, code);
}

static int decode(struct job *j)
{
    struct decoder d;
    prepare(&d, j->worker);
    if (setjmp(d.failed) == 0)
        decode_into(&d, j);
    jpeg_destroy_decompress(&d.jpeg);
    return d.code;
}

const struct format jpeg_format = {"JPEG", read_info, decode};

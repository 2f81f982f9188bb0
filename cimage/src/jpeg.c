/* stoc_image_decode: JPEG files, by libjpeg-turbo, a band of rows at a time. */
#include "image.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

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

static uint32_t orientation(const struct decoder *d)
{
    for (jpeg_saved_marker_ptr m = d->jpeg.marker_list; m; m = m->next) {
        uint32_t o = m->marker == JPEG_APP0 + 1 ? orientation_of(m->data, m->data_length) : 1;
        if (o != 1)
            return o;
    }
    return 1;
}

int stoc_image_read_info(stoc_image_worker *w, const void *file, size_t bytes, struct stoc_image_info *info)
{
    if (!w)
        return STOC_IMAGE_EINVAL;
    if (!file || !info)
        return fail(w, STOC_IMAGE_EINVAL, "an argument is NULL");
    struct decoder d;
    prepare(&d, w);
    if (setjmp(d.failed) == 0) {
        begin(&d, file, bytes);
        uint32_t o = orientation(&d);
        *info = (struct stoc_image_info){o > 4 ? d.jpeg.image_height : d.jpeg.image_width,
                                         o > 4 ? d.jpeg.image_width : d.jpeg.image_height, o,
                                         (uint32_t)d.jpeg.num_components, (uint32_t)d.jpeg.progressive_mode};
    }
    jpeg_destroy_decompress(&d.jpeg);
    return d.code;
}

/* The orientation as a transposition of the file's picture, after which columns and rows are reversed. */
struct turn {
    bool transpose, flip_x, flip_y; /* flips of the file's columns and rows */
};

static struct turn turn_of(uint32_t orientation)
{
    static const struct turn turns[] = {{0, 0, 0}, {0, 1, 0}, {0, 1, 1}, {0, 0, 1},
                                        {1, 0, 0}, {1, 0, 1}, {1, 1, 1}, {1, 1, 0}};
    return turns[orientation - 1];
}

/* Of a side of the file's picture, which the decoder may scale. With flip, results are those of it in reverse order. */
static bool weights_of(struct weights *w, uint32_t side, const struct decoder *d, uint32_t out, uint32_t from,
                       uint32_t count, int filter, bool flip)
{
    return make_weights(w, side, d->jpeg.scale_denom, out, flip ? out - from - count : from, count, filter, flip);
}

/* Weights from what the decoder makes of the file's picture to the target. If columns stay as they are, a pixel is
 * three columns of one plane: its bytes are copied. */
static int plan(struct decoder *d, const struct stoc_image_target *t, struct turn turn,
                const struct stoc_image_decode *how)
{
    int filter = how->filter;
    stoc_image_worker *w = d->worker;
    struct weights *across = &w->resize.across, *down = &w->resize.down;
    uint32_t wide = d->jpeg.image_width, high = d->jpeg.image_height;
    bool made;
    if (turn.transpose)
        made = weights_of(across, wide, d, t->resized_height, t->window_y, t->height, filter, turn.flip_x) &&
               weights_of(down, high, d, t->resized_width, t->window_x, t->width, filter, turn.flip_y);
    else
        made = weights_of(across, wide, d, t->resized_width, t->window_x, t->width, filter, turn.flip_x) &&
               weights_of(down, high, d, t->resized_height, t->window_y, t->height, filter, turn.flip_y);
    int code = made ? check_middle(w, how->max_pixels) : fail(w, STOC_IMAGE_EMEMORY, "too little memory for weights");
    if (code)
        return code;
    bool copies = across->identity && how->layout == STOC_IMAGE_HWC && !turn.transpose;
    if (copies) {
        wide = 3 * d->jpeg.output_width;
        made = make_weights(across, wide, 1, wide, 3 * t->window_x, 3 * t->width, filter, false);
    }
    return made ? resize_begin(w, copies ? 1 : 3) : fail(w, STOC_IMAGE_EMEMORY, "too little memory for weights");
}

/* Pillow's conversion. Adobe's files hold the inks inverted. */
static void from_cmyk(uint8_t *row, size_t pixels, bool inverted)
{
    for (size_t x = 0; x < pixels; x++) {
        uint32_t light = inverted ? row[4 * x + 3] : 255u - row[4 * x + 3]; /* light that black leaves */
        for (size_t c = 0; c < 3; c++) {
            uint32_t ink = inverted ? 255u - row[4 * x + c] : row[4 * x + c], n = ink * light + 128;
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
                from_cmyk(w->rows.bytes + k * stride, width + left, jpeg->saw_Adobe_marker);
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
    if (d->lost || (d->ended && (jpeg_has_multiple_scans(jpeg) || jpeg->arith_code)))
        stop(d, fail(w, STOC_IMAGE_EFORMAT, "the file is cut off or damaged: bits of the picture are missing"));
}

/* Writes the rows of the resize to the result. */
static int write_rows(stoc_image_worker *w, const struct stoc_image_target *t, bool transpose,
                      const struct stoc_image_decode *how, uint8_t *dst)
{
    const struct resize *r = &w->resize;
    size_t width = how->width, plane = width * how->height;
    if (!reserve(&w->row, 3 * r->stride))
        return fail(w, STOC_IMAGE_EMEMORY, "too little memory for rows of %zu bytes", r->stride);
    bool chw = how->layout == STOC_IMAGE_CHW;
    if (how->fit == STOC_IMAGE_PAD)
        for (size_t c = 0; c < 3; c++)
            for (size_t k = 0; k < plane; k++)
                dst[chw ? c * plane + k : 3 * k + c] = how->fill[c];
    size_t pixel = chw ? 1 : 3, row_step = width * pixel;
    size_t along = transpose ? row_step : r->channels == 1 ? 1 : pixel, beside = transpose ? pixel : row_step; /* steps between the resize's rows */
    if (!chw && !transpose && r->channels == 3) {
        uint8_t *to = dst + t->y * row_step + t->x * pixel;
        for (uint32_t k = 0; k < r->down.count; k++, to += row_step) {
            const uint8_t *rows[3];
            for (uint32_t c = 0; c < 3; c++)
                rows[c] = resize_row(w, c, k, w->row.bytes + c * r->stride);
            loops_of(w)->interleave(to, rows, r->across.count);
        }
        return STOC_IMAGE_OK;
    }
    for (uint32_t c = 0; c < r->channels; c++) {
        uint8_t *to = dst + c * (chw ? plane : 1) + t->y * row_step + t->x * pixel;
        for (uint32_t k = 0; k < r->down.count; k++, to += beside) {
            uint8_t *place = along == 1 && r->across.count == r->stride ? to : w->row.bytes;
            const uint8_t *row = resize_row(w, c, k, place);
            if (row == to)
                continue;
            if (along == 1)
                memcpy(to, row, r->across.count);
            else
                for (uint32_t x = 0; x < r->across.count; x++)
                    to[x * along] = row[x];
        }
    }
    return STOC_IMAGE_OK;
}

/* window: where the result lies in the picture; NULL: as how says. Call it after setjmp. */
static void decode(struct decoder *d, const void *file, size_t bytes, const struct stoc_image_decode *how,
                   const struct stoc_image_target *window, uint8_t *dst)
{
    stoc_image_worker *w = d->worker;
    struct jpeg_decompress_struct *jpeg = &d->jpeg;
    begin(d, file, bytes);
    int code = check_pixels(w, "the picture", jpeg->image_width, jpeg->image_height, how->max_pixels);
    if (code)
        stop(d, code);
    if (jpeg->num_components != 1 && jpeg->num_components != 3 && jpeg->num_components != 4)
        stop(d, fail(w, STOC_IMAGE_EUNSUPPORTED, "the file has %d components", jpeg->num_components));
    struct turn turn = turn_of(orientation(d));
    struct stoc_image_target target;
    if (window)
        target = *window;
    else if ((code = target_of(w, turn.transpose ? jpeg->image_height : jpeg->image_width,
                               turn.transpose ? jpeg->image_width : jpeg->image_height, how, &target)))
        stop(d, code);
    jpeg->out_color_space = jpeg->num_components == 4 ? JCS_CMYK : JCS_RGB;
    jpeg->dct_method = JDCT_ISLOW;
    if (how->fast)
        choose_scale(d, &target, turn.transpose);
    jpeg_calc_output_dimensions(jpeg);
    if ((code = plan(d, &target, turn, how)))
        stop(d, code);
    read_rows(d);
    if ((code = write_rows(w, &target, turn.transpose, how, dst)))
        stop(d, code);
}

int decode_window(stoc_image_worker *w, const void *file, size_t bytes, const struct stoc_image_decode *how,
                  const struct stoc_image_target *window, uint8_t *dst)
{
    struct decoder d;
    prepare(&d, w);
    if (setjmp(d.failed) == 0)
        decode(&d, file, bytes, how, window, dst);
    jpeg_destroy_decompress(&d.jpeg);
    return d.code;
}

int stoc_image_decode(stoc_image_worker *w, const void *file, size_t bytes, const struct stoc_image_decode *how,
                      uint8_t *dst, size_t dst_bytes)
{
    if (!w)
        return STOC_IMAGE_EINVAL;
    if (!file || !how || !dst)
        return fail(w, STOC_IMAGE_EINVAL, "an argument is NULL");
    int code = check_decode(w, how);
    if (code)
        return code;
    size_t need = (size_t)3 * how->width * how->height;
    if (dst_bytes < need)
        return fail(w, STOC_IMAGE_EINVAL, "dst has %zu bytes; %zu are needed", dst_bytes, need);
    return decode_window(w, file, bytes, how, NULL, dst);
}

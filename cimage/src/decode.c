/* The decode of a file: its format, and what all formats share, from the rows of the file's picture to the result. */
#include "image.h"

/* The kind of a picture by its first bytes; NULL: no known kind. */
static const char *kind_of(const uint8_t *file, size_t bytes)
{
#define KIND(name, begin) {name, begin, sizeof begin - 1},
    static const struct {
        const char *name, *begin; /* a ? stands for any byte */
        size_t bytes;
    } kinds[] = {
#include "kinds.h"
    };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        size_t same = 0;
        while (same < kinds[k].bytes && same < bytes &&
               (kinds[k].begin[same] == '?' || (uint8_t)kinds[k].begin[same] == file[same]))
            same++;
        if (same == kinds[k].bytes)
            return kinds[k].name;
    }
    return NULL;
}

/* NULL: the library decodes no such file. */
static const struct format *format_of(stoc_image_worker *w, const uint8_t *file, size_t bytes, int *code)
{
    const char *kind = kind_of(file, bytes);
    for (const struct format *const *f = formats; kind && *f; f++)
        if (!strcmp((*f)->kind, kind))
            return *f;
    if (!formats[0])
        *code = fail(w, STOC_IMAGE_EUNSUPPORTED, "this library was built without libjpeg-turbo, libpng and libwebp");
    else if (!kind)
        *code = fail(w, STOC_IMAGE_EKIND, "not a JPEG, PNG or WebP file");
    else
        *code = fail(w, STOC_IMAGE_EKIND, "%s %s file, not a JPEG, PNG or WebP file", strchr("AI", *kind) ? "an" : "a", kind);
    return NULL;
}

int stoc_image_read_info(stoc_image_worker *w, const void *file, size_t bytes, struct stoc_image_info *info)
{
    if (!w || !file || !info)
        return fail(w, STOC_IMAGE_EINVAL, "an argument is NULL");
    int code = STOC_IMAGE_OK;
    const struct format *format = format_of(w, file, bytes, &code);
    if (!format || (code = format->read_info(w, file, bytes, info)))
        return code;
    if (info->orientation > 4) {
        uint32_t width = info->width;
        info->width = info->height;
        info->height = width;
    }
    return STOC_IMAGE_OK;
}

int decode_window(stoc_image_worker *w, const void *file, size_t bytes, const struct stoc_image_decode *how,
                  const struct stoc_image_target *window, uint8_t *dst)
{
    int code = STOC_IMAGE_OK;
    const struct format *format = format_of(w, file, bytes, &code);
    struct job job = {.worker = w, .file = file, .bytes = bytes, .how = how, .window = window, .dst = dst, .scale = 1};
    return format ? format->decode(&job) : code;
}

int stoc_image_decode(stoc_image_worker *w, const void *file, size_t bytes, const struct stoc_image_decode *how,
                      uint8_t *dst, size_t dst_bytes)
{
    if (!w || !file || !how || !dst)
        return fail(w, STOC_IMAGE_EINVAL, "an argument is NULL");
    int code = check_decode(w, how);
    if (code)
        return code;
    size_t need = (size_t)3 * how->width * how->height;
    if (dst_bytes < need)
        return fail(w, STOC_IMAGE_EINVAL, "dst has %zu bytes; %zu are needed", dst_bytes, need);
    return decode_window(w, file, bytes, how, NULL, dst);
}

/* ---------------------------------------------------------------------------------- for the formats */

static struct turn turn_of(uint32_t orientation)
{
    static const struct turn turns[] = {{0, 0, 0}, {0, 1, 0}, {0, 1, 1}, {0, 0, 1},
                                        {1, 0, 0}, {1, 0, 1}, {1, 1, 1}, {1, 1, 0}};
    return turns[orientation - 1];
}

int begin_job(struct job *j, uint32_t width, uint32_t height, uint32_t orientation)
{
    int code = check_pixels(j->worker, "the picture", width, height, j->how->max_pixels);
    if (code)
        return code;
    j->width = width;
    j->height = height;
    j->turn = turn_of(orientation);
    if (!j->window)
        return target_of(j->worker, j->turn.transpose ? height : width, j->turn.transpose ? width : height, j->how,
                         &j->target);
    j->target = *j->window;
    return STOC_IMAGE_OK;
}

/* Of a side of the file's picture, which the decoder may scale. from_end: the window counts from the end of the side. flip:
 * results are in reverse order. */
static bool weights_of(struct weights *w, uint32_t side, const struct job *j, uint32_t out, uint32_t from,
                       uint32_t count, bool from_end, bool flip)
{
    return make_weights(w, side, j->scale, out, from_end ? out - from - count : from, count, j->how->filter, flip);
}

int plan_job(struct job *j, uint32_t decoded_width)
{
    stoc_image_worker *w = j->worker;
    const struct stoc_image_target *t = &j->target;
    struct turn turn = j->turn;
    struct weights *across = &w->resize.across, *down = &w->resize.down;
    bool made;
    if (turn.transpose)
        made = weights_of(across, j->width, j, t->resized_height, t->window_y, t->height, turn.flip_x, turn.flip_x) &&
               weights_of(down, j->height, j, t->resized_width, t->window_x, t->width, turn.flip_y, false);
    else
        made = weights_of(across, j->width, j, t->resized_width, t->window_x, t->width, turn.flip_x, turn.flip_x) &&
               weights_of(down, j->height, j, t->resized_height, t->window_y, t->height, turn.flip_y, false);
    int code = made ? check_middle(w, j->how->max_pixels, turn.transpose)
                    : fail(w, STOC_IMAGE_EMEMORY, "too little memory for weights");
    if (code)
        return code;
    bool copies = across->identity && j->how->layout == STOC_IMAGE_HWC && !turn.transpose;
    if (copies) {
        uint32_t wide = 3 * decoded_width;
        made = make_weights(across, wide, 1, wide, 3 * t->window_x, 3 * t->width, j->how->filter, false);
    }
    return made ? resize_begin(w, copies ? 1 : 3, turn.transpose, turn.flip_y)
                : fail(w, STOC_IMAGE_EMEMORY, "too little memory for weights");
}

int finish_job(const struct job *j)
{
    stoc_image_worker *w = j->worker;
    const struct resize *r = &w->resize;
    const struct stoc_image_decode *how = j->how;
    const struct stoc_image_target *t = &j->target;
    uint8_t *dst = j->dst;
    bool transpose = j->turn.transpose;
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

uint8_t *whole_result(const struct job *j)
{
    const struct stoc_image_target *t = &j->target;
    bool turned = j->turn.transpose || j->turn.flip_x || j->turn.flip_y;
    bool resized = t->resized_width != j->width || t->resized_height != j->height;
    bool part = j->how->width != j->width || j->how->height != j->height; /* or there is a fill around it */
    return turned || resized || part || j->how->layout != STOC_IMAGE_HWC ? NULL : j->dst;
}

int show_picture(struct job *j, const uint8_t *pixels)
{
    stoc_image_worker *w = j->worker;
    int code = plan_job(j, j->width);
    if (code)
        return code;
    const uint8_t *rows[BAND];
    for (uint32_t y = w->resize.down.low, n; y < w->resize.down.high; y += n) {
        for (n = 0; n < BAND && y + n < w->resize.down.high; n++)
            rows[n] = pixels + (size_t)3 * j->width * (y + n);
        resize_band(w, rows, n, y, true, 0);
    }
    return finish_job(j);
}

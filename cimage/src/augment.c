/* stoc_image_augment: from a uint8 picture to a row of a batch. */
#include "image.h"

/* The part of the window that is inside the picture, in columns and rows of the window. */
struct inside {
    uint32_t x, y, width, height;
};

static int check_picture(stoc_image_worker *w, const struct stoc_image_picture *p)
{
    if (!p || !p->pixels)
        return fail(w, STOC_IMAGE_EINVAL, "there is no picture");
    if (p->width < 1 || p->height < 1 || p->width > MAX_SIDE || p->height > MAX_SIDE)
        return fail(w, STOC_IMAGE_EINVAL, "the picture is %u x %u; sides are 1 to %d", p->width, p->height, MAX_SIDE);
    if ((p->channels != 1 && p->channels != 3) || p->layout > STOC_IMAGE_HWC)
        return fail(w, STOC_IMAGE_EINVAL, "the picture has %u channels in layout %u; it must have 1 or 3, CHW or HWC",
                    p->channels, p->layout);
    return STOC_IMAGE_OK;
}

static int check_boxes(stoc_image_worker *w, const struct stoc_image_picture *p, const struct stoc_image_augment *a)
{
    uint32_t sides[] = {a->box_width, a->box_height, a->resized_width, a->resized_height, a->width, a->height};
    for (size_t k = 0; k < sizeof sides / sizeof *sides; k++)
        if (sides[k] < 1 || sides[k] > MAX_SIDE)
            return fail(w, STOC_IMAGE_EINVAL, "a side of a box has %u pixels; 1 to %d are allowed", sides[k], MAX_SIDE);
    int code = check_pixels(w, "the result", a->width, a->height, a->max_pixels);
    if (code)
        return code;
    if (a->window_x > a->resized_width || a->width > a->resized_width - a->window_x ||
        a->window_y > a->resized_height || a->height > a->resized_height - a->window_y)
        return fail(w, STOC_IMAGE_EINVAL, "the window of %u x %u at %u, %u is not inside %u x %u", a->width, a->height,
                    a->window_x, a->window_y, a->resized_width, a->resized_height);
    bool outside = a->box_x < 0 || a->box_y < 0 || (int64_t)a->box_x + a->box_width > p->width ||
                   (int64_t)a->box_y + a->box_height > p->height;
    if (outside && (a->box_width != a->resized_width || a->box_height != a->resized_height))
        return fail(w, STOC_IMAGE_EINVAL, "the box of %u x %u at %d, %d is not inside %u x %u, so it cannot be resized",
                    a->box_width, a->box_height, a->box_x, a->box_y, p->width, p->height);
    if (a->erase && (a->erase_x > a->width || a->erase_width > a->width - a->erase_x || a->erase_y > a->height ||
                     a->erase_height > a->height - a->erase_y))
        return fail(w, STOC_IMAGE_EINVAL, "the erased box of %u x %u at %u, %u is not inside %u x %u", a->erase_width,
                    a->erase_height, a->erase_x, a->erase_y, a->width, a->height);
    return STOC_IMAGE_OK;
}

static int check_values(stoc_image_worker *w, uint32_t channels, const struct stoc_image_augment *a)
{
    if (a->filter > STOC_IMAGE_BICUBIC || a->dtype > STOC_IMAGE_BFLOAT16 || a->layout > STOC_IMAGE_HWC ||
        a->erase > STOC_IMAGE_ERASE_RANDOM || a->flip > 1 || a->reserved)
        return fail(w, STOC_IMAGE_EINVAL, "filter, dtype, layout, erase, flip: an unknown value");
    for (int k = 0; k < 4; k++) {
        double f = a->factor[k];
        bool hue = a->adjust[k] == STOC_IMAGE_HUE;
        if (a->adjust[k] > STOC_IMAGE_HUE || (a->adjust[k] && !(hue ? f >= -0.5 && f <= 0.5 : f >= 0 && f < 1e6)))
            return fail(w, STOC_IMAGE_EINVAL,
                        "adjustment %u with factor %g: factors are 0 or more and below 1e6, of hue -0.5 to 0.5",
                        a->adjust[k], f);
    }
    if (a->dtype == STOC_IMAGE_UINT8 && a->erase == STOC_IMAGE_ERASE_RANDOM)
        return fail(w, STOC_IMAGE_EINVAL, "uint8 pictures cannot be erased with normal numbers");
    for (uint32_t c = 0; c < channels; c++) {
        if (a->dtype != STOC_IMAGE_UINT8 && (!isfinite(a->mean[c]) || !isfinite(a->std[c]) || a->std[c] == 0))
            return fail(w, STOC_IMAGE_EINVAL, "mean %g and std %g of channel %u: both are finite, and std is not 0",
                        (double)a->mean[c], (double)a->std[c], c);
        if (a->dtype == STOC_IMAGE_UINT8 && a->erase && !(a->erase_value[c] >= 0 && a->erase_value[c] < 256))
            return fail(w, STOC_IMAGE_EINVAL, "erase value %g is no uint8: 0 or more, and below 256",
                        (double)a->erase_value[c]);
    }
    if (a->dtype != STOC_IMAGE_UINT8 && a->divisor != 1 && a->divisor != 255)
        return fail(w, STOC_IMAGE_EINVAL, "divisor %g: it must be 1 or 255", (double)a->divisor);
    return STOC_IMAGE_OK;
}

/* Cuts a range of a window to what is inside n pixels; from is the window's place in the picture. */
static void cut(int64_t from, uint32_t count, uint32_t n, uint32_t *begin, uint32_t *length)
{
    int64_t first = from < 0 ? -from : 0, last = from + count > n ? n - from : count;
    *begin = (uint32_t)(first < last ? first : 0);
    *length = (uint32_t)(first < last ? last - first : 0);
}

/* The weights of both directions, and what of the window is inside. */
static int plan(stoc_image_worker *w, const struct stoc_image_picture *p, const struct stoc_image_augment *a,
                struct inside *in)
{
    struct weights *across = &w->resize.across, *down = &w->resize.down;
    *in = (struct inside){0, 0, a->width, a->height};
    bool made;
    if (a->box_width == a->resized_width && a->box_height == a->resized_height) {
        int64_t x = (int64_t)a->box_x + a->window_x, y = (int64_t)a->box_y + a->window_y;
        cut(x, a->width, p->width, &in->x, &in->width);
        cut(y, a->height, p->height, &in->y, &in->height);
        if (in->width == 0 || in->height == 0) {
            *in = (struct inside){0, 0, 0, 0};
            return STOC_IMAGE_OK;
        }
        made = make_weights(across, p->width, 1, p->width, (uint32_t)(x + in->x), in->width, a->filter, a->flip) &&
               make_weights(down, p->height, 1, p->height, (uint32_t)(y + in->y), in->height, a->filter, false);
        if (a->flip)
            in->x = a->width - in->x - in->width;
    } else {
        made = make_weights(across, a->box_width, 1, a->resized_width, a->window_x, a->width, a->filter, a->flip) &&
               make_weights(down, a->box_height, 1, a->resized_height, a->window_y, a->height, a->filter, false);
        if (made) {
            move_weights(across, (uint32_t)a->box_x);
            move_weights(down, (uint32_t)a->box_y);
        }
    }
    if (!made)
        return fail(w, STOC_IMAGE_EMEMORY, "too little memory for weights");
    int code = check_middle(w, a->max_pixels, false);
    return code ? code : resize_begin(w, p->channels, false, false);
}

static void read_picture(stoc_image_worker *w, const struct stoc_image_picture *p)
{
    const struct weights *down = &w->resize.down;
    bool hwc = p->layout == STOC_IMAGE_HWC;
    size_t row_bytes = (size_t)p->width * (hwc ? p->channels : 1);
    for (uint32_t plane = 0; plane < (hwc ? 1 : p->channels); plane++)
        for (uint32_t y = down->low; y < down->high; y += BAND) {
            const uint8_t *rows[BAND];
            uint32_t n = down->high - y < BAND ? down->high - y : BAND;
            for (uint32_t k = 0; k < n; k++)
                rows[k] = (const uint8_t *)p->pixels + ((size_t)plane * p->height + y + k) * row_bytes;
            resize_band(w, rows, n, y, hwc, plane);
        }
}

int stoc_image_augment(stoc_image_worker *w, const struct stoc_image_picture *p, const struct stoc_image_augment *a,
                       void *dst, size_t dst_bytes)
{
    if (!w || !a || !dst)
        return fail(w, STOC_IMAGE_EINVAL, "an argument is NULL");
    struct inside in;
    int code = check_picture(w, p);
    if (code || (code = check_boxes(w, p, a)) || (code = check_values(w, p->channels, a)))
        return code;
    size_t need = (size_t)p->channels * a->width * a->height * bytes_of(a->dtype);
    if (dst_bytes < need)
        return fail(w, STOC_IMAGE_EINVAL, "dst has %zu bytes; %zu are needed", dst_bytes, need);
    if ((code = plan(w, p, a, &in)))
        return code;
    bool whole = in.width == a->width, adjusts = a->adjust[0] || a->adjust[1] || a->adjust[2] || a->adjust[3];
    size_t stride = ((size_t)a->width + 2 * BAND - 1) / BAND * BAND, plane = adjusts ? stride * a->height : stride;
    if (!reserve(&w->picture, plane * p->channels) || !reserve(&w->row, stride))
        return no_memory(w, plane * p->channels);
    if (in.height)
        read_picture(w, p);
    make_table(w, a);
    for (uint32_t y = 0; y < a->height; y++) {
        const uint8_t *rows[3];
        for (uint32_t c = 0; c < p->channels; c++) {
            uint8_t *own = w->picture.bytes + c * plane + (adjusts ? y * stride : 0);
            bool inside = in.height && y >= in.y && y - in.y < in.height;
            rows[c] = own;
            if (!inside || !whole)
                memset(own, a->fill[c], a->width);
            if (!inside)
                continue;
            const uint8_t *row = resize_row(w, c, y - in.y, whole ? own : w->row.bytes);
            if (!adjusts && whole)
                rows[c] = row;
            else if (row != own)
                memcpy(own + in.x, row, in.width);
        }
        if (!adjusts)
            put_row(w, rows, p->channels, y, a, dst);
    }
    if (adjusts) {
        adjust(w->picture.bytes, plane, p->channels, stride, a->width, a->height, a);
        for (uint32_t y = 0; y < a->height; y++) {
            const uint8_t *rows[3];
            for (uint32_t c = 0; c < p->channels; c++)
                rows[c] = w->picture.bytes + c * plane + y * stride;
            put_row(w, rows, p->channels, y, a, dst);
        }
    }
    end_stream();
    erase(a, p->channels, dst);
    return STOC_IMAGE_OK;
}

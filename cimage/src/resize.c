/* Resizes a picture of bytes: first across, 32 rows at a time, then down. Across, a band is transposed,
 * so that both directions are weighted sums of rows (docs/spec/image.md, Resize). */
#include "image.h"

#include <string.h>

static size_t rounded(size_t n) { return (n + BAND - 1) / BAND * BAND; }

static uint8_t *middle_row(const struct resize *r, uint32_t channel, uint32_t y)
{
    size_t rows = r->down.high - r->down.low + r->down.taps + BAND;
    return r->middle.bytes + (channel * rows + (y - r->down.low)) * r->stride;
}

int check_middle(stoc_image_worker *w, uint64_t max_pixels)
{
    const struct resize *r = &w->resize;
    return check_pixels(w, "the picture between the two passes of a resize", r->across.count,
                        r->down.high - r->down.low, max_pixels);
}

int resize_begin(stoc_image_worker *w, uint32_t channels)
{
    struct resize *r = &w->resize;
    r->channels = channels;
    r->stride = rounded(r->across.count);
    size_t columns = (size_t)(r->across.high - r->across.low + r->across.taps) * channels;
    size_t rows = r->down.high - r->down.low + r->down.taps + BAND;
    if (!reserve(&r->turned, columns * BAND) || !reserve(&r->summed, r->stride * channels * BAND) ||
        !reserve(&r->middle, channels * rows * r->stride))
        return fail(w, STOC_IMAGE_EMEMORY, "too little memory for %zu rows of %zu bytes", channels * rows, r->stride);
    return STOC_IMAGE_OK;
}

/* The columns of a band as they are. */
static void copy_band(struct resize *r, const uint8_t *const rows[BAND], uint32_t n, uint32_t y, bool hwc,
                      uint32_t plane)
{
    uint32_t from = r->across.low, count = r->across.count, channels = hwc ? r->channels : 1;
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t c = 0; c < channels; c++) {
            uint8_t *dst = middle_row(r, plane + c, y + k);
            const uint8_t *src = rows[k] + (size_t)from * channels + c;
            if (channels == 1)
                memcpy(dst, src, count);
            else
                for (uint32_t x = 0; x < count; x++)
                    dst[x] = src[(size_t)x * channels];
        }
}

void resize_band(stoc_image_worker *w, const uint8_t *const rows[BAND], uint32_t n, uint32_t y, bool hwc,
                 uint32_t plane)
{
    struct resize *r = &w->resize;
    const struct weights *across = &r->across;
    if (across->identity) {
        copy_band(r, rows, n, y, hwc, plane);
        return;
    }
    const struct loops *loops = loops_of(w);
    const uint8_t *all[BAND];
    for (uint32_t k = 0; k < BAND; k++)
        all[k] = rows[k < n ? k : n - 1];
    uint32_t channels = hwc ? r->channels : 1;
    loops->transpose_in(r->turned.bytes, all, (size_t)across->low * channels,
                        (size_t)(across->high - across->low) * channels);
    loops->weigh_columns(r->summed.bytes, r->stride * BAND, r->turned.bytes, across, channels);
    for (uint32_t c = 0; c < channels; c++)
        loops->transpose_out(middle_row(r, plane + c, y), r->stride, r->summed.bytes + c * r->stride * BAND,
                             across->count);
}

const uint8_t *resize_row(stoc_image_worker *w, uint32_t channel, uint32_t k, uint8_t *dst)
{
    struct resize *r = &w->resize;
    const uint8_t *src = middle_row(r, channel, r->down.first[k]);
    if (r->down.identity)
        return src;
    loops_of(w)->weigh(dst, src, r->stride, r->down.values + (size_t)k * r->down.taps, r->down.taps, r->down.shift,
                       r->stride);
    return dst;
}

void resize_free(struct resize *r)
{
    release(&r->across.memory);
    release(&r->down.memory);
    release(&r->middle);
    release(&r->turned);
    release(&r->summed);
}

/* Resizes a picture of bytes: first across, 32 rows at a time, then down. Across, a band is transposed,
 * so that both directions are weighted sums of rows (docs/spec/image.md, Resize). A picture that is transposed afterwards
 * is resized down first, so that the result is that of the transposed picture. */
#include "image.h"

static size_t rounded(size_t n) { return (n + BAND - 1) / BAND * BAND; }

static size_t middle_rows(const struct resize *r)
{
    return (r->down_first ? r->down.count : r->down.high - r->down.low + r->down.taps) + BAND;
}

static uint8_t *middle_row(const struct resize *r, uint32_t channel, uint32_t y)
{
    size_t rows = middle_rows(r);
    return r->middle.bytes + (channel * rows + (y - (r->down_first ? 0 : r->down.low))) * r->stride;
}

int check_middle(stoc_image_worker *w, uint64_t max_pixels, bool down_first)
{
    const struct weights *across = &w->resize.across, *down = &w->resize.down;
    return check_pixels(w, "the picture between the two passes of a resize",
                        down_first ? down->count : across->count,
                        down_first ? across->high - across->low : down->high - down->low, max_pixels);
}

static size_t row_bytes(const struct resize *r)
{
    return rounded((size_t)(r->across.high - r->across.low) * r->channels);
}

/* Rows that are collected at most: those that a result still waits for, and bands. */
static size_t most_collected(const struct resize *r)
{
    size_t rows = r->down.high - r->down.low, most = (size_t)r->down.taps + 2 * BAND;
    return rows < most ? rows : most;
}

/* Bytes of them, and of rows after them with the weight 0. */
static size_t collected_bytes(const struct resize *r) { return (most_collected(r) + r->down.taps) * row_bytes(r); }

int resize_begin(stoc_image_worker *w, uint32_t channels, bool down_first, bool reversed)
{
    struct resize *r = &w->resize;
    r->channels = channels;
    r->reversed = reversed;
    r->down_first = down_first && !r->across.identity && !r->down.identity;
    r->first = r->end = r->down.low;
    r->done = 0;
    r->stride = rounded(r->across.count);
    size_t columns = (size_t)(r->across.high - r->across.low + r->across.taps) * channels;
    size_t rows = middle_rows(r);
    if (r->down_first && (!reserve(&r->collected, collected_bytes(r)) || !reserve(&r->weighed, BAND * row_bytes(r))))
        return no_memory(w, collected_bytes(r));
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

/* Resizes rows of a picture across, into rows from y on of the middle. from: the first column of the rows. */
static void resize_across(stoc_image_worker *w, const uint8_t *const rows[BAND], uint32_t n, uint32_t y, bool hwc,
                          uint32_t plane, uint32_t from)
{
    struct resize *r = &w->resize;
    const struct weights *across = &r->across;
    const struct loops *loops = loops_of(w);
    const uint8_t *all[BAND];
    for (uint32_t k = 0; k < BAND; k++)
        all[k] = rows[k < n ? k : n - 1];
    uint32_t channels = hwc ? r->channels : 1;
    loops->transpose_in(r->turned.bytes, all, (size_t)(across->low - from) * channels,
                        (size_t)(across->high - across->low) * channels);
    loops->weigh_columns(r->summed.bytes, r->stride * BAND, r->turned.bytes, across, channels);
    for (uint32_t c = 0; c < channels; c++)
        loops->transpose_out(middle_row(r, plane + c, y), r->stride, r->summed.bytes + c * r->stride * BAND,
                             across->count);
}

/* Resizes down what was collected: all rows of the result whose sources are there. */
static void resize_down(stoc_image_worker *w)
{
    struct resize *r = &w->resize;
    const struct weights *down = &r->down;
    size_t stride = row_bytes(r);
    while (r->done < down->count) {
        const uint8_t *band[BAND];
        uint32_t n = 0;
        for (uint32_t k = r->done; n < BAND && k < down->count; n++, k++) {
            if (r->end < down->high && down->first[k] + down->taps > r->end)
                break;
            band[n] = r->weighed.bytes + n * stride;
            loops_of(w)->weigh(r->weighed.bytes + n * stride, r->collected.bytes + (down->first[k] - r->first) * stride,
                               stride, down->values + (size_t)k * down->taps, down->taps, down->shift, stride);
        }
        if (!n)
            return;
        resize_across(w, band, n, r->done, true, 0, r->across.low);
        r->done += n;
    }
}

/* Keeps rows that results need, one band after the other, and makes those results. */
static void collect(stoc_image_worker *w, const uint8_t *const rows[BAND], uint32_t n)
{
    struct resize *r = &w->resize;
    size_t stride = row_bytes(r);
    if (r->end + n - r->first > most_collected(r)) { /* results that are done need the first ones */
        uint32_t gone = r->down.first[r->done] - r->first;
        memmove(r->collected.bytes, r->collected.bytes + gone * stride, (r->end - r->first - gone) * stride);
        r->first += gone;
    }
    for (uint32_t k = 0; k < n; k++)
        memcpy(r->collected.bytes + (r->end + k - r->first) * stride, rows[k] + (size_t)r->across.low * r->channels,
               (size_t)(r->across.high - r->across.low) * r->channels);
    r->end += n;
    resize_down(w);
}

void resize_band(stoc_image_worker *w, const uint8_t *const rows[BAND], uint32_t n, uint32_t y, bool hwc,
                 uint32_t plane)
{
    struct resize *r = &w->resize;
    if (r->down_first)
        collect(w, rows, n);
    else if (r->across.identity)
        copy_band(r, rows, n, y, hwc, plane);
    else
        resize_across(w, rows, n, y, hwc, plane, 0);
}

const uint8_t *resize_row(stoc_image_worker *w, uint32_t channel, uint32_t k, uint8_t *dst)
{
    struct resize *r = &w->resize;
    k = r->reversed ? r->down.count - 1 - k : k;
    const uint8_t *src = middle_row(r, channel, r->down_first ? k : r->down.first[k]);
    if (r->down.identity || r->down_first)
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
    release(&r->collected);
    release(&r->weighed);
}

/* Rows of the result: normalisation, dtype, layout, and the erased box. */
#include "image.h"

size_t bytes_of(int dtype)
{
    return dtype == STOC_IMAGE_UINT8 ? 1 : dtype == STOC_IMAGE_FLOAT32 ? 4 : 2;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Rounded to nearest, ties to even. */
static uint16_t bfloat16_of(float x)
{
    uint32_t bits = bits_of(x);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40); /* not a number */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Rounded to nearest, ties to even. */
static uint16_t float16_of(float x)
{
    uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x47800000)
        return (uint16_t)(sign | 0x7c00); /* 65,536 and above is infinite */
    if (magnitude < 0x38800000) /* below 2^-14: the result has units of 2^-24 */
        return (uint16_t)(sign | (uint32_t)lrintf(fabsf(x) * 16777216.0f));
    return (uint16_t)(sign | ((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13));
}

static uint16_t half_of(int dtype, float x) { return dtype == STOC_IMAGE_FLOAT16 ? float16_of(x) : bfloat16_of(x); }

void make_table(stoc_image_worker *w, const struct stoc_image_augment *how)
{
    struct table *t = &w->table;
    if (how->dtype == STOC_IMAGE_UINT8 ||
        (t->made && t->dtype == how->dtype && t->divisor == how->divisor &&
         !memcmp(t->mean, how->mean, sizeof t->mean) && !memcmp(t->std, how->std, sizeof t->std)))
        return;
    t->divisor = how->divisor;
    t->dtype = how->dtype;
    memcpy(t->mean, how->mean, sizeof t->mean);
    memcpy(t->std, how->std, sizeof t->std);
    uint8_t all[256];
    for (int v = 0; v < 256; v++)
        all[v] = (uint8_t)v;
    t->exact = loops_of(w)->normalise && how->dtype == STOC_IMAGE_FLOAT32;
    for (int c = 0; c < 3; c++) {
        for (int v = 0; v < 256; v++) {
            t->values[c][v] = ((float)v / t->divisor - t->mean[c]) / t->std[c];
            t->halves[c][v] = half_of(t->dtype, t->values[c][v]);
        }
        float computed[256];
        if (t->exact) {
            loops_of(w)->normalise(computed, all, 256, t->divisor, t->mean[c], t->std[c], false);
            t->exact = !memcmp(computed, t->values[c], sizeof computed);
        }
    }
    t->made = true;
}

void put_row(stoc_image_worker *w, const uint8_t *const rows[3], uint32_t channels, uint32_t y,
             const struct stoc_image_augment *how, void *dst)
{
    const struct table *t = &w->table;
    size_t width = how->width, plane = width * how->height;
    bool chw = how->layout == STOC_IMAGE_CHW || channels == 1;
    if (how->dtype == STOC_IMAGE_UINT8 && !chw) {
        loops_of(w)->interleave((uint8_t *)dst + y * width * 3, rows, width);
        return;
    }
    for (uint32_t c = 0; c < channels; c++) {
        size_t at = chw ? c * plane + y * width : y * width * channels + c, step = chw ? 1 : channels, x = 0;
        const uint8_t *row = rows[c];
        if (how->dtype == STOC_IMAGE_UINT8) {
            memcpy((uint8_t *)dst + at, row, width);
        } else if (how->dtype == STOC_IMAGE_FLOAT32) {
            float *to = (float *)dst + at;
            if (step == 1 && t->exact) {
                bool streams = channels * plane * sizeof *to >= MIN_STREAM;
                loops_of(w)->normalise(to, row, width, t->divisor, t->mean[c], t->std[c], streams);
                x = width / 8 * 8;
            }
            for (; x < width; x++)
                to[x * step] = t->values[c][row[x]];
        } else {
            uint16_t *to = (uint16_t *)dst + at;
            for (; x < width; x++)
                to[x * step] = t->halves[c][row[x]];
        }
    }
}

/* splitmix64 */
static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* A standard normal number, by Box and Muller. */
static float normal(uint64_t *state)
{
    double u = (double)((next(state) >> 11) + 1) * 0x1p-53, v = (double)(next(state) >> 11) * 0x1p-53;
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

void erase(const struct stoc_image_augment *how, uint32_t channels, void *dst)
{
    if (how->erase == STOC_IMAGE_NO_ERASE)
        return;
    bool chw = how->layout == STOC_IMAGE_CHW;
    uint64_t state = how->erase_seed;
    for (uint32_t c = 0; c < channels; c++)
        for (uint32_t y = how->erase_y; y < how->erase_y + how->erase_height; y++)
            for (uint32_t x = how->erase_x; x < how->erase_x + how->erase_width; x++) {
                size_t at = chw ? ((size_t)c * how->height + y) * how->width + x
                                : ((size_t)y * how->width + x) * channels + c;
                float value = how->erase == STOC_IMAGE_ERASE_RANDOM ? normal(&state) : how->erase_value[c];
                if (how->dtype == STOC_IMAGE_UINT8)
                    ((uint8_t *)dst)[at] = (uint8_t)value;
                else if (how->dtype == STOC_IMAGE_FLOAT32)
                    ((float *)dst)[at] = value;
                else
                    ((uint16_t *)dst)[at] = half_of(how->dtype, value);
            }
}

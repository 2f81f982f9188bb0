/* Adjustments of colours, with torchvision's arithmetic for uint8 tensors: its operations in float32, in its order, each
 * rounded (docs/spec/image.md, Adjustments). */
#include "image.h"

/* These forms, without calls of libm, become vector code. Numbers that are cast are not negative, so a cast
 * rounds down. */
static float least_of(float x, float y) { return x < y ? x : y; }
static float most_of(float x, float y) { return x > y ? x : y; }
static uint8_t byte_of(float x) { return (uint8_t)(int32_t)least_of(most_of(x, 0), 255); }

/* x y + z, rounded once, as torch adds a multiple. The product and the sum are exact in double precision, or nearly so. */
static float add_times(float x, float y, float z) { return (float)((double)x * y + z); }

/* Of a pixel; rounded down, as torchvision's rgb_to_grayscale. */
static float grey(float r, float g, float b)
{
    return (float)(int32_t)add_times(b, 0.114f, add_times(g, 0.587f, r * 0.2989f));
}

/* factor x value + rest x other. If plain arithmetic rounds all values alike, it does the work. */
static void blend(uint8_t *row, uint32_t width, const uint8_t table[256], bool plain, float factor, float other)
{
    if (plain)
        for (uint32_t x = 0; x < width; x++)
            row[x] = byte_of(row[x] * factor + other);
    else
        for (uint32_t x = 0; x < width; x++)
            row[x] = table[row[x]];
}

/* The results of blend. Returns whether factor x value + other, rounded twice, gives the same. */
static bool make_blend(uint8_t table[256], float factor, float rest, float other)
{
    bool plain = true;
    for (int v = 0; v < 256; v++) {
        table[v] = byte_of(add_times(rest, other, (float)v * factor));
        plain &= table[v] == byte_of((float)v * factor + rest * other);
    }
    return plain;
}

static void saturate(uint8_t *r, uint8_t *g, uint8_t *b, uint32_t width, float factor, float rest)
{
    for (uint32_t x = 0; x < width; x++) {
        float other = grey(r[x], g[x], b[x]);
        r[x] = byte_of(add_times(rest, other, r[x] * factor));
        g[x] = byte_of(add_times(rest, other, g[x] * factor));
        b[x] = byte_of(add_times(rest, other, b[x] * factor));
    }
}

static float unit_of(float x) { return least_of(most_of(x, 0), 1); }

/* Of red, the sector of whose hue is 0 to 6; of green, 4 sectors later, and of blue, 2 later. 255.999 is torchvision's. */
static uint8_t channel(float sector, float v, float q, float p, float t)
{
    sector -= sector >= 6 ? 6.0f : 0.0f;
    float ends = sector < 4 ? p : sector < 5 ? t : v, begins = sector < 1 ? v : q;
    return (uint8_t)(int32_t)((sector < 2 ? begins : ends) * 255.999f);
}

/* Adds turn to the hue: RGB to HSV and back. */
static void turn_hue(uint8_t *red, uint8_t *green, uint8_t *blue, uint32_t width, float turn)
{
    const float unit = (float)(1 / 255.0), sixth = (float)(1 / 6.0);
    for (uint32_t x = 0; x < width; x++) {
        float r = red[x] * unit, g = green[x] * unit, b = blue[x] * unit;
        float v = most_of(r, most_of(g, b)), range = v - least_of(r, least_of(g, b));
        bool is_red = v == r, is_green = v == g;
        /* the next two channels after the largest one */
        float next = is_green ? b : r, after = is_green ? r : g, sixths = is_green ? 2.0f : 4.0f;
        next = is_red ? g : next, after = is_red ? b : after, sixths = is_red ? 0.0f : sixths;
        float divisor = range == 0 ? 1 : range, s = range / (range == 0 ? 1 : v);
        float h = (sixths + (v - after) / divisor - (v - next) / divisor) * sixth + 1;
        h -= h >= 1 ? 1.0f : 0.0f;
        h += turn;
        h += h < 0 ? 1.0f : 0.0f;
        h -= h >= 1 ? 1.0f : 0.0f;
        h *= 6;
        float sector = (float)(int32_t)h, f = h - sector, part = s * f, rest = 1 - s;
        float q = unit_of((1 - part) * v), t = unit_of((part + rest) * v), p = unit_of(rest * v);
        red[x] = channel(sector, v, q, p, t);
        green[x] = channel(sector + 4, v, q, p, t);
        blue[x] = channel(sector + 2, v, q, p, t);
    }
}

/* The mean of the grey picture. */
static float mean_of(const uint8_t *planes, size_t plane_bytes, uint32_t channels, size_t stride, uint32_t width,
                     uint32_t height)
{
    uint64_t sum = 0;
    for (uint32_t y = 0; y < height; y++) {
        const uint8_t *r = planes + y * stride, *g = r + plane_bytes, *b = g + plane_bytes;
        uint32_t row = 0; /* at most 65,500 x 255 */
        for (uint32_t x = 0; x < width; x++)
            row += channels == 1 ? r[x] : (uint32_t)grey(r[x], g[x], b[x]);
        sum += row;
    }
    return (float)((double)sum / ((double)width * height));
}

void adjust(uint8_t *planes, size_t plane_bytes, uint32_t channels, size_t stride, uint32_t width, uint32_t height,
            const struct stoc_image_augment *how)
{
    for (int k = 0; k < 4; k++) {
        int what = how->adjust[k];
        float factor = (float)how->factor[k], rest = (float)(1 - how->factor[k]), other = 0;
        uint8_t table[256];
        bool plain = true;
        if (what == STOC_IMAGE_CONTRAST) {
            float mean = mean_of(planes, plane_bytes, channels, stride, width, height);
            plain = make_blend(table, factor, rest, mean);
            other = rest * mean;
        }
        for (uint32_t y = 0; y < height && what; y++) {
            uint8_t *r = planes + y * stride, *g = r + plane_bytes, *b = g + plane_bytes;
            if (what == STOC_IMAGE_SATURATION && channels == 3)
                saturate(r, g, b, width, factor, rest);
            else if (what == STOC_IMAGE_HUE && channels == 3)
                turn_hue(r, g, b, width, factor);
            else if (what == STOC_IMAGE_BRIGHTNESS || what == STOC_IMAGE_CONTRAST)
                for (uint32_t c = 0; c < channels; c++)
                    blend(r + c * plane_bytes, width, table, plain, factor, other);
        }
    }
}

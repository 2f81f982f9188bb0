/* Adjustments of colours, with torchvision's arithmetic for uint8 (docs/spec/image.md, Adjustments). */
#include "image.h"

#include <math.h>

static uint8_t byte_of(float x) { return (uint8_t)(x < 0 ? 0 : x > 255 ? 255 : x); }

/* Of a pixel; rounded down, as torchvision's rgb_to_grayscale. */
static float grey(float r, float g, float b) { return floorf(r * 0.2989f + g * 0.587f + b * 0.114f); }

/* factor x value + (1 - factor) x other */
static void blend(uint8_t *row, uint32_t width, float factor, float other)
{
    for (uint32_t x = 0; x < width; x++)
        row[x] = byte_of(row[x] * factor + other);
}

static void saturate(uint8_t *r, uint8_t *g, uint8_t *b, uint32_t width, float factor)
{
    for (uint32_t x = 0; x < width; x++) {
        float other = (1 - factor) * grey(r[x], g[x], b[x]);
        r[x] = byte_of(r[x] * factor + other);
        g[x] = byte_of(g[x] * factor + other);
        b[x] = byte_of(b[x] * factor + other);
    }
}

/* Adds turn to the hue: RGB to HSV and back (Foley and van Dam), as torchvision's adjust_hue. */
static void turn_hue(uint8_t *red, uint8_t *green, uint8_t *blue, uint32_t width, float turn)
{
    for (uint32_t x = 0; x < width; x++) {
        float r = red[x] / 255.0f, g = green[x] / 255.0f, b = blue[x] / 255.0f;
        float most = fmaxf(r, fmaxf(g, b)), least = fminf(r, fminf(g, b)), range = most - least;
        if (range == 0)
            continue; /* grey has no hue */
        float saturation = range / most, hue;
        if (most == r)
            hue = (g - b) / range;
        else if (most == g)
            hue = 2 + (b - r) / range;
        else
            hue = 4 + (r - g) / range;
        hue = hue / 6 + turn;
        hue -= floorf(hue);
        float sixth = floorf(hue * 6), part = hue * 6 - sixth;
        float p = most * (1 - saturation), q = most * (1 - saturation * part);
        float t = most * (1 - saturation * (1 - part));
        switch ((int)sixth % 6) {
        case 0: r = most, g = t, b = p; break;
        case 1: r = q, g = most, b = p; break;
        case 2: r = p, g = most, b = t; break;
        case 3: r = p, g = q, b = most; break;
        case 4: r = t, g = p, b = most; break;
        default: r = most, g = p, b = q; break;
        }
        red[x] = byte_of(r * 255.999f);
        green[x] = byte_of(g * 255.999f);
        blue[x] = byte_of(b * 255.999f);
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
        float factor = how->factor[k], other = 0;
        if (what == STOC_IMAGE_CONTRAST)
            other = (1 - factor) * mean_of(planes, plane_bytes, channels, stride, width, height);
        for (uint32_t y = 0; y < height && what; y++) {
            uint8_t *r = planes + y * stride, *g = r + plane_bytes, *b = g + plane_bytes;
            if (what == STOC_IMAGE_SATURATION && channels == 3)
                saturate(r, g, b, width, factor);
            else if (what == STOC_IMAGE_HUE && channels == 3)
                turn_hue(r, g, b, width, factor);
            else if (what == STOC_IMAGE_BRIGHTNESS || what == STOC_IMAGE_CONTRAST)
                for (uint32_t c = 0; c < channels; c++)
                    blend(r + c * plane_bytes, width, factor, other);
        }
    }
}

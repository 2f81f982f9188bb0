/* Adjustments of colours, with torchvision's arithmetic for uint8 (docs/spec/image.md, Adjustments). */
#include "image.h"

/* These forms, without calls of libm, become vector code. Numbers that are cast are not negative, so a cast
 * rounds down. */
static float least_of(float x, float y) { return x < y ? x : y; }
static float most_of(float x, float y) { return x > y ? x : y; }
static uint8_t byte_of(float x) { return (uint8_t)(int32_t)least_of(most_of(x, 0), 255); }

/* Of a pixel; rounded down, as torchvision's rgb_to_grayscale. */
static float grey(float r, float g, float b) { return (float)(int32_t)(r * 0.2989f + g * 0.587f + b * 0.114f); }

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

/* How far a channel lies below the largest one, as a part of their range. n: 5 for red, 3 for green, 1 for blue; sixths:
 * 6 x hue, from 0 up to 6 (formula of "HSL and HSV", Wikipedia). */
static float below_most(float n, float sixths)
{
    float k = n + sixths;
    k -= k >= 6 ? 6.0f : 0.0f;
    return most_of(0, least_of(1, least_of(k, 4 - k)));
}

/* Adds turn to the hue: RGB to HSV and back. Value and range are those of the channels, times 255. */
static void turn_hue(uint8_t *red, uint8_t *green, uint8_t *blue, uint32_t width, float turn)
{
    const float unit = 255.999f / 255; /* torchvision's, of 0 to 1 to bytes */
    for (uint32_t x = 0; x < width; x++) {
        float r = red[x], g = green[x], b = blue[x];
        float most = most_of(r, most_of(g, b)), range = most - least_of(r, least_of(g, b));
        bool is_red = most == r, is_green = most == g;
        float ahead = is_red ? g - b : is_green ? b - r : r - g;
        float sixths = (is_red ? 0.0f : is_green ? 2.0f : 4.0f) + ahead / most_of(range, 1) + 6 * turn + 6;
        sixths -= sixths >= 6 ? 6.0f : 0.0f; /* it was 2 to 14 */
        sixths -= sixths >= 6 ? 6.0f : 0.0f;
        red[x] = byte_of((most - range * below_most(5, sixths)) * unit);
        green[x] = byte_of((most - range * below_most(3, sixths)) * unit);
        blue[x] = byte_of((most - range * below_most(1, sixths)) * unit);
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

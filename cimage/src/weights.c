/* The weights of an antialiased resize, as Pillow computes them: docs/spec/image.md. */
#include "image.h"

static double bilinear(double x)
{
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

static double bicubic(double x) /* a = -0.5 */
{
    x = fabs(x);
    if (x < 1)
        return (1.5 * x - 2.5) * x * x + 1;
    return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

static bool allocate(struct weights *w, uint32_t count, uint32_t taps)
{
    size_t doubles = (size_t)count * taps * sizeof(double);
    if (!reserve(&w->memory, doubles + (size_t)count * sizeof *w->first + (size_t)count * taps * sizeof *w->values))
        return false;
    w->first = (uint32_t *)(void *)(w->memory.bytes + doubles);
    w->values = (int16_t *)(void *)(w->first + count);
    w->count = count;
    w->taps = taps;
    return true;
}

/* Result k is source from + k; with flip, source from + count - 1 - k. */
static bool make_identity(struct weights *w, uint32_t from, uint32_t count, bool flip)
{
    if (!allocate(w, count, 2))
        return false;
    for (uint32_t k = 0; k < count; k++) {
        w->first[k] = flip ? from + count - 1 - k : from + k;
        w->values[2 * k] = 1 << 14;
        w->values[2 * k + 1] = 0;
    }
    w->shift = 14;
    w->low = from;
    w->high = from + count;
    w->identity = !flip;
    return true;
}

/* The sources first to last - 1 of a result, as Pillow rounds them. */
static void sources(uint32_t in, double center, double support, uint32_t *first, uint32_t *last)
{
    double begin = center - support + 0.5, end = center + support + 0.5;
    *first = begin > 0 ? (uint32_t)begin : 0;
    *last = end < in ? (uint32_t)end : in;
}

static bool make(struct weights *w, uint32_t whole, uint32_t parts, uint32_t out, uint32_t from, uint32_t count,
                 int filter, bool flip)
{
    uint32_t in = (whole + parts - 1) / parts;
    if (in == out)
        return make_identity(w, from, count, flip);
    double scale = (double)whole / parts / out, width = scale > 1 ? scale : 1, inverse = 1 / width;
    double support = (filter == STOC_IMAGE_BICUBIC ? 2 : 1) * width;
    uint32_t taps = 2, first, last;
    for (uint32_t k = 0; k < count; k++) {
        sources(in, (from + k + 0.5) * scale, support, &first, &last);
        taps = last - first > taps ? last - first : taps;
    }
    taps += taps % 2;
    if (!allocate(w, count, taps))
        return false;
    double *sums = (double *)(void *)w->memory.bytes;
    memset(sums, 0, (size_t)count * taps * sizeof *sums);
    w->low = UINT32_MAX;
    w->high = 0;
    for (uint32_t k = 0; k < count; k++) {
        double center = (from + (flip ? count - 1 - k : k) + 0.5) * scale, sum = 0;
        sources(in, center, support, &first, &last);
        double *values = sums + (size_t)k * taps;
        for (uint32_t t = 0; t < last - first; t++) {
            double x = (first + t - center + 0.5) * inverse;
            sum += values[t] = filter == STOC_IMAGE_BICUBIC ? bicubic(x) : bilinear(x);
        }
        sum = 1 / sum;
        for (uint32_t t = 0; t < last - first; t++)
            values[t] *= sum;
        w->first[k] = first;
        if (first < w->low)
            w->low = first;
        if (last > w->high)
            w->high = last;
    }
    /* Weights are below 2 / width, so that an int16_t holds them. The shift must not depend on the window. */
    w->shift = 14;
    while (w->shift < 21 && width >= 1u << (w->shift - 13))
        w->shift++;
    for (size_t k = 0; k < (size_t)count * taps; k++)
        w->values[k] = (int16_t)lrint(sums[k] * (1u << w->shift));
    w->identity = false;
    return true;
}

bool make_weights(struct weights *w, uint32_t whole, uint32_t parts, uint32_t out, uint32_t from, uint32_t count,
                  int filter, bool flip)
{
    const uint32_t made_of[] = {whole, parts, out, from, count, (uint32_t)filter, flip};
    if (memcmp(w->made_of, made_of, sizeof made_of) == 0)
        return true; /* pictures often have the size of the one before */
    w->made_of[0] = 0;
    if (!make(w, whole, parts, out, from, count, filter, flip))
        return false;
    memcpy(w->made_of, made_of, sizeof made_of);
    return true;
}

void move_weights(struct weights *w, uint32_t by)
{
    for (uint32_t k = 0; k < w->count; k++)
        w->first[k] += by;
    w->made_of[0] = by ? 0 : w->made_of[0];
    w->low += by;
    w->high += by;
}

/* Which sides a picture gets, and which part of it a decode takes (docs/spec/image.md, Decode). */
#include "image.h"

#include <stdio.h>

/* As Python's round((a - b) / 2). */
static uint32_t middle(uint32_t a, uint32_t b) { return (uint32_t)lrint((a - b) / 2.0); }

static uint32_t scaled(uint32_t side, uint32_t to, uint32_t from)
{
    uint64_t n = (uint64_t)side * to / from;
    return n < 1 ? 1 : n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
}

/* As torchvision's Resize: the short side becomes so long, and the long side at most `longest`, if that is not 0. */
void short_and_long(uint32_t *width, uint32_t *height, uint32_t side, uint32_t longest)
{
    bool upright = *width <= *height;
    uint64_t most = upright ? *height : *width, least = upright ? *width : *height, into = (uint64_t)side * most / least;
    uint64_t other = side;
    into = into < 1 ? 1 : into > UINT32_MAX ? UINT32_MAX : into;
    if (longest && into > longest) {
        other = (uint64_t)longest * side / into;
        other = other < 1 ? 1 : other;
        into = longest;
    }
    *width = (uint32_t)(upright ? other : into);
    *height = (uint32_t)(upright ? into : other);
}

int target_of(stoc_image_worker *worker, uint32_t width, uint32_t height, const struct stoc_image_decode *how,
              struct stoc_image_target *target)
{
    uint32_t w = how->width, h = how->height;
    if (how->fit == STOC_IMAGE_STRETCH) {
        *target = (struct stoc_image_target){w, h, 0, 0, w, h, 0, 0};
        return STOC_IMAGE_OK;
    }
    if (how->fit == STOC_IMAGE_PAD) { /* the side that limits, then the other in proportion */
        bool by_width = (uint64_t)width * h >= (uint64_t)height * w;
        uint32_t rw = by_width ? w : scaled(width, h, height), rh = by_width ? scaled(height, w, width) : h;
        *target = (struct stoc_image_target){rw, rh, 0, 0, rw, rh, middle(w, rw), middle(h, rh)};
        return STOC_IMAGE_OK;
    }
    uint32_t side = how->short_side ? how->short_side : w < h ? w : h, rw, rh;
    for (;; side++) {
        rw = width;
        rh = height;
        short_and_long(&rw, &rh, side, 0);
        if (rw >= w && rh >= h)
            break;
        if (how->short_side)
            return fail(worker, STOC_IMAGE_EINVAL, "short_side %u makes the picture %u x %u, smaller than %u x %u",
                        side, rw, rh, w, h);
    }
    *target = (struct stoc_image_target){rw, rh, middle(rw, w), middle(rh, h), w, h, 0, 0};
    return STOC_IMAGE_OK;
}

static int check_sides(stoc_image_worker *w, uint32_t width, uint32_t height)
{
    if (width < 1 || height < 1 || width > MAX_SIDE || height > MAX_SIDE)
        return fail(w, STOC_IMAGE_EINVAL, "width %u, height %u: sides are 1 to %d", width, height, MAX_SIDE);
    return STOC_IMAGE_OK;
}

int check_pixels(stoc_image_worker *w, const char *what, uint64_t width, uint64_t height, uint64_t max_pixels)
{
    uint64_t most = max_pixels ? max_pixels : STOC_IMAGE_MAX_PIXELS;
    if (width > MAX_SIDE || height > MAX_SIDE)
        return fail(w, STOC_IMAGE_ETOOLARGE, "%s is %lu x %lu; sides are at most %d", what, width, height, MAX_SIDE);
    if (width * height > most)
        return fail(w, STOC_IMAGE_ETOOLARGE, "%s is %lu x %lu: %lu pixels; max_pixels is %lu", what, width, height,
                    width * height, most);
    return STOC_IMAGE_OK;
}

int whole_of(stoc_image_worker *w, uint32_t width, uint32_t height, struct stoc_image_decode *how)
{
    int code = check_pixels(w, "the picture", width, height, how->max_pixels);
    if (code)
        return code;
    how->width = width;
    how->height = height;
    how->fit = STOC_IMAGE_STRETCH;
    if (!how->short_side || !width || !height)
        return STOC_IMAGE_OK;
    char what[96];
    snprintf(what, sizeof what, "the picture of %u x %u with short_side=%u", width, height, how->short_side);
    short_and_long(&how->width, &how->height, how->short_side, 0);
    how->short_side = 0;
    return check_pixels(w, what, how->width, how->height, how->max_pixels);
}

int check_decode(stoc_image_worker *w, const struct stoc_image_decode *how)
{
    int code = check_sides(w, how->width, how->height);
    if (code || (code = check_pixels(w, "the result", how->width, how->height, how->max_pixels)))
        return code;
    if (how->fit > STOC_IMAGE_PAD || how->filter > STOC_IMAGE_BICUBIC || how->layout > STOC_IMAGE_HWC || how->fast > 1 ||
        how->reserved)
        return fail(w, STOC_IMAGE_EINVAL, "fit, filter, layout, fast: an unknown value");
    if (how->short_side && how->fit != STOC_IMAGE_CROP)
        return fail(w, STOC_IMAGE_EINVAL, "short_side is of fit CROP only");
    if (how->short_side > MAX_SIDE)
        return fail(w, STOC_IMAGE_EINVAL, "short_side %u: at most %d", how->short_side, MAX_SIDE);
    return check_pixels(w, "the least picture of short_side", how->short_side, how->short_side, how->max_pixels);
}

int stoc_image_target(stoc_image_worker *w, uint32_t width, uint32_t height, const struct stoc_image_decode *how,
                      struct stoc_image_target *target)
{
    if (!w || !how || !target)
        return fail(w, STOC_IMAGE_EINVAL, "an argument is NULL");
    struct stoc_image_decode own = *how;
    int code = own.width || own.height ? STOC_IMAGE_OK : whole_of(w, width, height, &own);
    if (code || (code = check_sides(w, width, height)) || (code = check_decode(w, &own)))
        return code;
    return target_of(w, width, height, &own, target);
}

/* Steps, and how they become as few passes over a picture as possible (docs/spec/image.md, Plans). */
#include "image.h"

enum { TRIES = 10 /* torchvision's tries, until a random box fits */, CHANNELS = 3 };

/* What the steps do to a picture. */
struct plan {
    stoc_image_worker *worker;
    struct pass *pass;
    struct stoc_image_augment *how; /* the caller's options of the pass */
    struct stoc_image_augment *planned; /* where passes go that are not done here; NULL: they are done */
    uint32_t passes;                /* passes done or planned */
    uint32_t channels;
    uint8_t dtype;                  /* type of the picture */
    uint64_t max_pixels;            /* limit of each picture that a step makes */
    int code;                       /* error of a pass that failed, or of a step that does not fit */
    bool waits;                     /* the steps so far change the picture */
    bool normalised;
};

/* No step is in the pass now. */
static void begin(struct plan *p)
{
    const struct stoc_image_picture *picture = &p->pass->picture;
    uint32_t width = picture->width, height = picture->height;
    *p->how = (struct stoc_image_augment){
        .box_width = width, .box_height = height, .resized_width = width, .resized_height = height, .width = width,
        .height = height, .dtype = p->dtype, .layout = (uint8_t)picture->layout, .divisor = 1, .std = {1, 1, 1},
        .max_pixels = p->max_pixels};
    p->waits = p->normalised = false;
}

/* A step does not fit the picture: returns false. */
#define MISFIT(p, ...) ((p)->code = fail((p)->worker, STOC_IMAGE_EUNSUPPORTED, __VA_ARGS__), false)

/* Does a pass over a uint8 picture into memory of the worker. */
static bool do_pass(struct plan *p)
{
    struct pass *pass = p->pass;
    if (p->how->dtype != STOC_IMAGE_UINT8)
        return MISFIT(p, "the steps need a pass over floats");
    if (!pass->picture.pixels && (p->code = decode_for(p->worker, pass)))
        return false;
    struct buffer *to = &p->worker->passes[p->passes % 2];
    size_t bytes = (size_t)p->channels * p->how->width * p->how->height;
    if (!reserve(to, bytes)) {
        p->code = no_memory(p->worker, bytes);
        return false;
    }
    if ((p->code = stoc_image_augment(p->worker, &pass->picture, p->how, to->bytes, bytes)))
        return false;
    pass->picture.pixels = to->bytes;
    return true;
}

/* Ends the pass, whose result is the picture of the next one. */
static bool run(struct plan *p)
{
    struct pass *pass = p->pass;
    if (!p->waits)
        return true;
    if (p->planned)
        p->planned[p->passes] = *p->how;
    else if (!do_pass(p))
        return false;
    p->passes++;
    p->dtype = p->how->dtype;
    pass->picture.width = p->how->width;
    pass->picture.height = p->how->height;
    begin(p);
    return true;
}

struct box {
    int32_t x, y;
    uint32_t width, height;
};

/* Whether a step may make a picture of these sides, even if no pass keeps all of it. */
static bool may_be(struct plan *p, uint32_t width, uint32_t height)
{
    p->code = check_pixels(p->worker, "the picture of a step", width, height, p->max_pixels);
    return !p->code;
}

static bool resizes(const struct stoc_image_augment *a)
{
    return a->box_width != a->resized_width || a->box_height != a->resized_height;
}

/* Whether boxes may still come: in a pass they come before all else. */
static bool takes_boxes(const struct plan *p)
{
    const struct stoc_image_augment *a = p->how;
    return !a->flip && !a->adjust[0] && !a->erase && a->dtype == p->dtype && !p->normalised;
}

static bool reaches_outside(int64_t x, int64_t y, uint32_t width, uint32_t height, uint32_t columns, uint32_t rows)
{
    return x < 0 || y < 0 || x + width > columns || y + height > rows;
}

static bool crop(struct plan *p, struct box b, const int32_t *fill)
{
    struct stoc_image_augment *a = p->how;
    /* With an extreme ratio, a side of a random box rounds to 0. A decoder does not look at boxes that it gets. */
    if (b.width < 1 || b.height < 1)
        return MISFIT(p, "a side of a box has 0 pixels; 1 to %d are allowed", MAX_SIDE);
    bool outside = reaches_outside(b.x, b.y, b.width, b.height, a->width, a->height);
    if (!outside && b.width == a->width && b.height == a->height)
        return true;
    if (!may_be(p, b.width, b.height) || ((!takes_boxes(p) || (outside && p->waits)) && !run(p)))
        return false;
    for (int c = 0; outside && c < CHANNELS; c++)
        a->fill[c] = fill ? (uint8_t)fill[c] : 0;
    if (resizes(a)) {
        a->window_x += (uint32_t)b.x;
        a->window_y += (uint32_t)b.y;
    } else {
        a->box_x += b.x;
        a->box_y += b.y;
        a->box_width = a->resized_width = b.width;
        a->box_height = a->resized_height = b.height;
    }
    a->width = b.width;
    a->height = b.height;
    return p->waits = true;
}

static bool resize(struct plan *p, uint32_t width, uint32_t height, uint32_t filter)
{
    struct stoc_image_augment *a = p->how;
    if (width == a->width && height == a->height)
        return true;
    if (a->dtype != STOC_IMAGE_UINT8)
        return MISFIT(p, "only uint8 pictures can be resized: put the step before ToDtype");
    if (!may_be(p, width, height))
        return false;
    const struct stoc_image_picture *picture = &p->pass->picture;
    if ((!takes_boxes(p) || resizes(a) ||
         reaches_outside(a->box_x, a->box_y, a->box_width, a->box_height, picture->width, picture->height)) &&
        !run(p))
        return false;
    a->resized_width = a->width = width;
    a->resized_height = a->height = height;
    a->filter = (uint8_t)filter;
    return p->waits = true;
}

/* As Python's round, of a side or less. Numbers that are too large for a side stay so. */
static int64_t rounded(double x) { return llrint(fmin(x, 1e12)); }

static bool resize_step(struct plan *p, const struct stoc_image_step *s)
{
    uint32_t width = s->width, height = s->height;
    if (width == 0) {
        width = p->how->width;
        height = p->how->height;
        short_and_long(&width, &height, s->height, (uint32_t)s->integers[0]);
    }
    return resize(p, width, height, s->filter);
}

static int32_t middle(uint32_t side, uint32_t cropped)
{
    return side >= cropped ? (int32_t)rounded((side - cropped) / 2.0) : -(int32_t)((cropped - side) / 2);
}

static bool center_crop(struct plan *p, const struct stoc_image_step *s)
{
    struct box b = {middle(p->how->width, s->width), middle(p->how->height, s->height), s->width, s->height};
    return crop(p, b, NULL);
}

/* Two sides of a box: scale is its part of an area, ratio the first side by the second. */
static void draw_sides(struct random *r, double area, const double *scale, const double *ratio, int64_t *first,
                       int64_t *second)
{
    double part = area * draw_between(r, scale[0], scale[1]);
    double aspect = exp(draw_between(r, log(ratio[0]), log(ratio[1])));
    *first = rounded(sqrt(part * aspect));
    *second = rounded(sqrt(part / aspect));
}

/* The box of torchvision's RandomResizedCrop.get_params. */
static struct box draw_resized_crop(struct random *r, uint32_t width, uint32_t height, const double *numbers)
{
    for (int tries = 0; tries < TRIES; tries++) {
        int64_t w, h;
        draw_sides(r, (double)((uint64_t)width * height), numbers, numbers + 2, &w, &h);
        if (0 < w && w <= width && 0 < h && h <= height) {
            uint32_t y = draw_below(r, height - (uint32_t)h + 1);
            return (struct box){(int32_t)draw_below(r, width - (uint32_t)w + 1), (int32_t)y, (uint32_t)w, (uint32_t)h};
        }
    }
    double least = numbers[2] < numbers[3] ? numbers[2] : numbers[3];
    double most = numbers[2] < numbers[3] ? numbers[3] : numbers[2];
    int64_t w = width, h = height;
    if ((double)width / height < least)
        h = rounded(width / least);
    else if ((double)width / height > most)
        w = rounded(height * most);
    return (struct box){(int32_t)((width - w) / 2), (int32_t)((height - h) / 2), (uint32_t)w, (uint32_t)h};
}

static bool random_resized_crop(struct plan *p, const struct stoc_image_step *s, struct random *r)
{
    struct box b = draw_resized_crop(r, p->how->width, p->how->height, s->numbers);
    return crop(p, b, NULL) && resize(p, s->width, s->height, s->filter);
}

static bool random_crop(struct plan *p, const struct stoc_image_step *s, struct random *r)
{
    int64_t left = s->integers[0], top = s->integers[1];
    int64_t width = p->how->width + left + s->integers[2], height = p->how->height + top + s->integers[3];
    if (s->integers[4]) { /* pads if needed */
        int64_t wider = s->width > width ? s->width - width : 0, higher = s->height > height ? s->height - height : 0;
        left += wider;
        width += 2 * wider;
        top += higher;
        height += 2 * higher;
    }
    if (s->width > width || s->height > height)
        return MISFIT(p, "RandomCrop of %u x %u is larger than the picture: %ld x %ld", s->height, s->width,
                      height, width);
    int32_t y = (int32_t)(draw_below(r, (uint32_t)(height - s->height + 1)) - top);
    int32_t x = (int32_t)(draw_below(r, (uint32_t)(width - s->width + 1)) - left);
    return crop(p, (struct box){x, y, s->width, s->height}, s->integers + 5);
}

static bool random_flip(struct plan *p, const struct stoc_image_step *s, struct random *r)
{
    if (draw(r) >= s->numbers[0])
        return true;
    if (p->how->erase && !run(p))
        return false;
    p->how->flip ^= 1;
    return p->waits = true;
}

static bool color_jitter(struct plan *p, const struct stoc_image_step *s, struct random *r)
{
    struct stoc_image_augment *a = p->how;
    uint32_t order[4] = {0, 1, 2, 3}, count = 0;
    double factors[4];
    for (uint32_t k = 3; k > 0; k--) { /* Fisher and Yates */
        uint32_t other = draw_below(r, k + 1), kept = order[k];
        order[k] = order[other];
        order[other] = kept;
    }
    for (uint32_t k = 0; k < 4; k++)
        if (s->integers[k])
            factors[k] = draw_between(r, s->numbers[2 * k], s->numbers[2 * k + 1]);
    if (a->dtype != STOC_IMAGE_UINT8)
        return MISFIT(p, "only the colours of uint8 pictures can be adjusted: put the step before ToDtype");
    if ((a->adjust[0] || a->erase) && !run(p))
        return false;
    for (uint32_t k = 0; k < 4; k++)
        if (s->integers[order[k]]) {
            a->adjust[count] = (uint8_t)(STOC_IMAGE_BRIGHTNESS + order[k]);
            a->factor[count++] = factors[order[k]];
            p->waits = true;
        }
    return true;
}

/* The box of torchvision's RandomErasing.get_params. */
static bool draw_erased_box(struct random *r, uint32_t width, uint32_t height, const double *numbers, struct box *b)
{
    for (int tries = 0; tries < TRIES; tries++) {
        int64_t w, h;
        draw_sides(r, (double)((uint64_t)width * height), numbers, numbers + 2, &h, &w);
        if (w < width && h < height) { /* a side may be 0: then nothing is erased */
            b->width = (uint32_t)w;
            b->height = (uint32_t)h;
            b->y = (int32_t)draw_below(r, height - b->height + 1);
            b->x = (int32_t)draw_below(r, width - b->width + 1);
            return true;
        }
    }
    return false;
}

static bool random_erasing(struct plan *p, const struct stoc_image_step *s, struct random *r)
{
    struct stoc_image_augment *a = p->how;
    struct box b;
    if (draw(r) >= s->numbers[0] || !draw_erased_box(r, a->width, a->height, s->numbers + 1, &b))
        return true;
    uint64_t seed = (uint64_t)(draw(r) * 0x1p53);
    if (a->erase && !run(p))
        return false;
    a->erase_seed = seed;
    a->erase = s->integers[0] ? STOC_IMAGE_ERASE_RANDOM : STOC_IMAGE_ERASE_VALUE;
    a->erase_x = (uint32_t)b.x;
    a->erase_y = (uint32_t)b.y;
    a->erase_width = b.width;
    a->erase_height = b.height;
    for (int c = 0; c < CHANNELS && !s->integers[0]; c++)
        a->erase_value[c] = (float)s->numbers[5 + c];
    return p->waits = true;
}

static bool to_dtype(struct plan *p, const struct stoc_image_step *s)
{
    struct stoc_image_augment *a = p->how;
    if (a->dtype == s->integers[0])
        return true;
    if ((a->dtype != STOC_IMAGE_UINT8 && a->dtype != STOC_IMAGE_FLOAT32) || s->integers[0] == STOC_IMAGE_UINT8)
        return MISFIT(p, "ToDtype makes float32, float16 or bfloat16 of uint8, and float16 or bfloat16 of float32");
    if (a->erase && !run(p))
        return false;
    if (a->dtype == STOC_IMAGE_UINT8)
        a->divisor = s->integers[1] ? 255 : 1;
    a->dtype = (uint8_t)s->integers[0];
    return p->waits = true;
}

static bool normalize(struct plan *p, const struct stoc_image_step *s)
{
    struct stoc_image_augment *a = p->how;
    static const char *const names[] = {"mean", "std"};
    bool halves = a->dtype == STOC_IMAGE_FLOAT16;
    if (a->dtype != STOC_IMAGE_FLOAT32 && !halves)
        return MISFIT(p, "Normalize needs a picture of float32 or float16: put ToDtype('float32', scale=True) first");
    for (int k = 0; k < 2; k++)
        if (s->integers[k] > (int32_t)p->channels)
            return MISFIT(p, "%s has %d values; the picture has %u channels", names[k], s->integers[k], p->channels);
    if ((a->erase || p->normalised || (p->waits && halves)) && !run(p))
        return false;
    for (int c = 0; c < CHANNELS; c++) {
        a->mean[c] = (float)s->numbers[c];
        a->std[c] = (float)s->numbers[CHANNELS + c];
    }
    return p->normalised = p->waits = true;
}

static bool do_step(struct plan *p, const struct stoc_image_step *s, struct random *r)
{
    switch (s->kind) {
    case STOC_IMAGE_RESIZE: return resize_step(p, s);
    case STOC_IMAGE_CENTER_CROP: return center_crop(p, s);
    case STOC_IMAGE_RANDOM_RESIZED_CROP: return random_resized_crop(p, s, r);
    case STOC_IMAGE_RANDOM_CROP: return random_crop(p, s, r);
    case STOC_IMAGE_RANDOM_FLIP: return random_flip(p, s, r);
    case STOC_IMAGE_COLOR_JITTER: return color_jitter(p, s, r);
    case STOC_IMAGE_RANDOM_ERASING: return random_erasing(p, s, r);
    case STOC_IMAGE_TO_DTYPE: return to_dtype(p, s);
    case STOC_IMAGE_NORMALIZE: return normalize(p, s);
    default: return MISFIT(p, "kind %u", s->kind);
    }
}

int check_steps(stoc_image_worker *w, const struct stoc_image_pipeline *p)
{
    if (p->step_count && !p->steps)
        return fail(w, STOC_IMAGE_EINVAL, "steps is NULL");
    if (p->before_count > p->step_count || (p->before_count && p->encoded))
        return fail(w, STOC_IMAGE_EINVAL, "%u of %u steps come before the cache", p->before_count, p->step_count);
    for (uint32_t k = 0; k < p->step_count; k++) {
        const struct stoc_image_step *s = &p->steps[k];
        if (s->kind < STOC_IMAGE_RESIZE || s->kind > STOC_IMAGE_NORMALIZE || s->filter > STOC_IMAGE_BICUBIC)
            return fail(w, STOC_IMAGE_EINVAL, "step %u: kind %u, filter %u: an unknown value", k, s->kind, s->filter);
        if (k < p->before_count && s->kind != STOC_IMAGE_RESIZE && s->kind != STOC_IMAGE_CENTER_CROP)
            return fail(w, STOC_IMAGE_EINVAL, "step %u: kind %u cannot come before the cache", k, s->kind);
        if (s->kind <= STOC_IMAGE_RANDOM_CROP && (s->height < 1 || (s->width < 1 && s->kind != STOC_IMAGE_RESIZE)))
            return fail(w, STOC_IMAGE_EINVAL, "step %u: %u x %u pixels", k, s->height, s->width);
    }
    return STOC_IMAGE_OK;
}

static bool plan_steps(struct plan *p, const struct stoc_image_step *steps, uint32_t from, uint32_t stop,
                       const struct stoc_image_request *numbers)
{
    struct random r = {0};
    begin(p);
    for (uint32_t k = from; k < stop; k++) {
        if (k == from || steps[k].stage != r.stage) {
            r = random_of(numbers->seed, steps[k].stage);
            r.draw = numbers->draw;
            r.context = numbers->context;
        }
        if (!do_step(p, &steps[k], &r))
            return false;
    }
    return true;
}

int do_steps(stoc_image_worker *w, uint32_t from, uint32_t stop, uint64_t seed, struct pass *pass)
{
    /* As in Python: that of the decoder, if these steps come after it, else of the cache's pictures. */
    struct plan plan = {.worker = w, .pass = pass, .how = &pass->how, .channels = CHANNELS,
                        .max_pixels = pass->file ? pass->decode.max_pixels : 0};
    const struct stoc_image_request numbers = {.seed = seed};
    return plan_steps(&plan, w->pipeline->steps, from, stop, &numbers) ? STOC_IMAGE_OK : plan.code;
}

int stoc_image_plan(stoc_image_worker *w, const struct stoc_image_request *q, struct stoc_image_augment *passes,
                    uint32_t *count)
{
    enum { MOST_SIDE = 1 << 30, MOST_STEPS = 1000000 };
    if (!w || !q || !passes || !count)
        return fail(w, STOC_IMAGE_EINVAL, "an argument is NULL");
    if (q->width < 1 || q->width > MOST_SIDE || q->height < 1 || q->height > MOST_SIDE ||
        (q->channels != 1 && q->channels != CHANNELS) || q->layout > STOC_IMAGE_HWC || q->dtype > STOC_IMAGE_BFLOAT16 ||
        q->reserved || q->step_count > MOST_STEPS)
        return fail(w, STOC_IMAGE_EINVAL, "a picture of %u x %u, %u channels, layout %u, dtype %u, or %u steps", q->width,
                    q->height, q->channels, q->layout, q->dtype, q->step_count);
    int code = check_steps(w, &(struct stoc_image_pipeline){.steps = q->steps, .step_count = q->step_count});
    if (code)
        return code;
    struct pass pass = {.picture = {NULL, q->width, q->height, q->channels, q->layout}};
    struct plan plan = {.worker = w, .pass = &pass, .how = &pass.how, .planned = passes, .channels = q->channels,
                        .dtype = q->dtype, .max_pixels = q->max_pixels};
    if (!plan_steps(&plan, q->steps, 0, q->step_count, q))
        return plan.code;
    run(&plan); /* only adds the last pass */
    *count = plan.passes;
    return STOC_IMAGE_OK;
}

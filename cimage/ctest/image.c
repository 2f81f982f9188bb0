/*
 * image.c - the library for pictures: what holds for every picture, files that are damaged, arguments
 * that are wrong. python/tests/image compares its pictures with those of Pillow and torchvision.
 */
#include "files.h"

static stoc_image_worker *worker;

static struct stoc_image_decode to(uint32_t width, uint32_t height)
{
    return (struct stoc_image_decode){.width = width, .height = height, .layout = STOC_IMAGE_HWC};
}

static int decode(const struct file *f, size_t size, struct stoc_image_decode how, uint8_t *dst)
{
    return stoc_image_decode(worker, f->bytes, size, &how, dst, (size_t)3 * how.width * how.height);
}

/* How a file whose picture is known must be decoded, whole and in parts. */
static void parts_are_those_of_the_whole(void)
{
    static const int sampling[][2] = {{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}};
    for (int kind = 0; kind < MANY_SCANS; kind++)
        for (size_t s = 0; s < sizeof sampling / sizeof *sampling; s++) {
            uint32_t width = 300 + below(200), height = 300 + below(200);
            struct file f = make_file((int)width, (int)height, kind, sampling[s][0], sampling[s][1]);
            uint8_t *whole = malloc((size_t)3 * width * height);
            EQUAL(decode(&f, f.size, to(width, height), whole), 0);
            for (int k = 0; k < 8; k++) { /* the centre of the picture in its own size */
                uint32_t w = 1 + below(width), h = 1 + below(height);
                uint8_t *part = guarded((size_t)3 * w * h);
                struct stoc_image_decode how = to(w, h);
                how.fit = STOC_IMAGE_CROP;
                how.short_side = MIN(width, height);
                EQUAL(decode(&f, f.size, how, part), 0);
                uint32_t x = (uint32_t)lrint((width - w) / 2.0), y = (uint32_t)lrint((height - h) / 2.0);
                for (uint32_t row = 0; row < h; row++)
                    if (memcmp(part + (size_t)row * w * 3, whole + ((size_t)(y + row) * width + x) * 3, w * 3)) {
                        COMPLAIN("kind %d, %d x %d: %u x %u at %u, %u of %u x %u differs in row %u", kind,
                                 sampling[s][0], sampling[s][1], w, h, x, y, width, height, row);
                        break;
                    }
                release(part, (size_t)3 * w * h);
            }
            free(whole);
            free(f.bytes);
        }
}

static bool known(int code) { return code <= 0 && code >= STOC_IMAGE_EMEMORY; }

/* A file that ends early is an error, if the rest has bits of the picture. */
static void files_that_are_cut_off(void)
{
    for (int kind = 0; kind < KINDS - 1; kind++) {
        struct file f = make_file(61, 47, kind, 2, 2);
        uint8_t whole[61 * 47 * 3], part[61 * 47 * 3];
        EQUAL(decode(&f, f.size, to(61, 47), whole), 0);
        for (size_t n = 0; n < f.size; n++) {
            unsigned char *cut = malloc(n ? n : 1);
            memcpy(cut, f.bytes, n);
            struct file c = {cut, n};
            int code = decode(&c, n, to(61, 47), part);
            if (!known(code) || (code == 0 && memcmp(part, whole, sizeof whole) != 0))
                COMPLAIN("kind %d, the first %zu of %lu bytes: %d", kind, n, f.size, code);
            if (code < 0 && !*stoc_image_message(worker))
                COMPLAIN("kind %d, the first %zu bytes: no message", kind, n);
            free(cut);
        }
        free(f.bytes);
    }
}

/* Damaged files give errors or pictures. The sanitizer and the guards see what else happens. */
static void files_that_are_damaged(void)
{
    const char *set = getenv("STOCACHED_TEST_FILES");
    int rounds = set ? atoi(set) : 4000, pictures = 0;
    for (int k = 0; k < rounds; k++) {
        uint32_t width = 1 + below(120), height = 1 + below(120);
        struct file f = make_file((int)width, (int)height, (int)below(KINDS), 1 + (int)below(2), 1 + (int)below(2));
        for (uint32_t changes = 1 + below(6); changes--;) {
            size_t at = below(2) ? below((uint32_t)f.size) : below(MIN((uint32_t)f.size, 700)); /* often a header */
            f.bytes[at] = below(3) ? (unsigned char)draw() : f.bytes[at] ^ (unsigned char)(1u << below(8));
        }
        size_t size = below(4) ? f.size : below((uint32_t)f.size);
        struct stoc_image_decode how = to(1 + below(80), 1 + below(80));
        how.fit = (uint8_t)below(3);
        how.fast = (uint8_t)below(2);
        how.layout = (uint8_t)below(2);
        how.max_pixels = 4000000;
        uint8_t *dst = guarded((size_t)3 * how.width * how.height);
        int code = decode(&f, size, how, dst);
        if (!known(code))
            COMPLAIN("round %d: %d", k, code);
        pictures += code == 0;
        release(dst, (size_t)3 * how.width * how.height);
        free(f.bytes);
    }
    CHECK(pictures > 0 && pictures < rounds);
}

/* A file that claims a size that it has not is refused before memory is taken for it. */
static void bombs(void)
{
    for (int kind = 0; kind < 2; kind++) {
        struct file f = make_file(16, 16, kind, 2, 2);
        for (size_t k = 2; k + 9 < f.size; k++)
            if (f.bytes[k] == 0xff && (f.bytes[k + 1] == 0xc0 || f.bytes[k + 1] == 0xc2)) {
                memcpy(f.bytes + k + 5, "\xff\xdc\xff\xdc", 4); /* 65,500 x 65,500 */
                break;
            }
        struct stoc_image_info info;
        EQUAL(stoc_image_read_info(worker, f.bytes, f.size, &info), 0);
        EQUAL(info.width, 65500);
        uint8_t dst[3 * 8 * 8];
        struct rusage before, after;
        getrusage(RUSAGE_SELF, &before);
        EQUAL(decode(&f, f.size, to(8, 8), dst), STOC_IMAGE_ETOOLARGE);
        getrusage(RUSAGE_SELF, &after);
        CHECK(strstr(stoc_image_message(worker), "65500 x 65500"));
        CHECK(after.ru_maxrss - before.ru_maxrss < 1024); /* KiB */
        free(f.bytes);
    }
    struct file f = make_file(64, 64, MANY_SCANS, 1, 1);
    uint8_t dst[3 * 8 * 8];
    EQUAL(decode(&f, f.size, to(8, 8), dst), STOC_IMAGE_ETOOLARGE);
    CHECK(strstr(stoc_image_message(worker), "scans"));
    free(f.bytes);
}

static void files_that_are_no_jpeg(void)
{
    static const struct {
        const char *bytes, *want;
        size_t size;
    } cases[] = {{"", "", 0},
                 {"\x89PNG\r\n\x1a\n", "Not a JPEG file", 8},
                 {"\xff\xd8\xff\xd9", "", 4},
                 {"hello", "Not a JPEG file", 5}};
    uint8_t dst[3 * 8 * 8];
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct file f = {(unsigned char *)cases[k].bytes, cases[k].size};
        struct stoc_image_info info;
        EQUAL(stoc_image_read_info(worker, f.bytes, f.size, &info), STOC_IMAGE_EFORMAT);
        EQUAL(decode(&f, f.size, to(8, 8), dst), STOC_IMAGE_EFORMAT);
        if (!strstr(stoc_image_message(worker), cases[k].want) || !*stoc_image_message(worker))
            COMPLAIN("file %zu: %s", k, stoc_image_message(worker));
    }
}

/* ------------------------------------------------------------ augment */

static struct stoc_image_augment whole_of(const struct stoc_image_picture *p, uint32_t width, uint32_t height)
{
    struct stoc_image_augment how = {.box_width = p->width, .box_height = p->height, .resized_width = width,
                                     .resized_height = height, .width = width, .height = height, .divisor = 255};
    for (int c = 0; c < 3; c++)
        how.std[c] = 1;
    return how;
}

static float random_float(float low, float high) { return low + (high - low) * (float)below(1 << 20) / (1 << 20); }

/* Any augmentation that is allowed. */
static struct stoc_image_augment any(const struct stoc_image_picture *p)
{
    struct stoc_image_augment how = whole_of(p, 1 + below(70), 1 + below(70));
    how.box_width = 1 + below(p->width);
    how.box_height = 1 + below(p->height);
    how.box_x = (int32_t)below(p->width - how.box_width + 1);
    how.box_y = (int32_t)below(p->height - how.box_height + 1);
    if (below(3) == 0) { /* not resized: it may reach outside */
        how.resized_width = how.box_width = 1 + below(2 * p->width);
        how.resized_height = how.box_height = 1 + below(2 * p->height);
        how.box_x = (int32_t)below(2 * p->width) - (int32_t)p->width;
        how.box_y = (int32_t)below(2 * p->height) - (int32_t)p->height;
    }
    how.width = 1 + below(how.resized_width);
    how.height = 1 + below(how.resized_height);
    how.window_x = below(how.resized_width - how.width + 1);
    how.window_y = below(how.resized_height - how.height + 1);
    how.filter = (uint8_t)below(2);
    how.flip = (uint8_t)below(2);
    how.dtype = (uint8_t)below(4);
    how.layout = (uint8_t)below(2);
    how.fill[0] = 7, how.fill[1] = 8, how.fill[2] = 9;
    if (below(2))
        for (int k = 0; k < 4; k++) {
            how.adjust[k] = (uint8_t)below(5);
            how.factor[k] = how.adjust[k] == STOC_IMAGE_HUE ? random_float(-0.5f, 0.5f) : random_float(0, 2);
        }
    how.divisor = below(2) ? 255 : 1;
    for (int c = 0; c < 3; c++) {
        how.mean[c] = random_float(0, 1);
        how.std[c] = random_float(0.1f, 1);
        how.erase_value[c] = (float)below(256);
    }
    how.erase = (uint8_t)below(how.dtype ? 3 : 2);
    how.erase_width = below(how.width + 1);
    how.erase_height = below(how.height + 1);
    how.erase_x = below(how.width - how.erase_width + 1);
    how.erase_y = below(how.height - how.erase_height + 1);
    how.erase_seed = draw();
    return how;
}

static size_t size_of(const struct stoc_image_picture *p, const struct stoc_image_augment *how)
{
    static const size_t bytes[] = {1, 4, 2, 2};
    return bytes[how->dtype] * p->channels * how->width * how->height;
}

/* A picture of random bytes in guarded memory. */
static struct stoc_image_picture picture(uint32_t width, uint32_t height, uint32_t channels, uint32_t layout)
{
    size_t n = (size_t)width * height * channels;
    uint8_t *pixels = guarded(n);
    for (size_t k = 0; k < n; k++)
        pixels[k] = (uint8_t)draw();
    return (struct stoc_image_picture){pixels, width, height, channels, layout};
}

static void release_picture(const struct stoc_image_picture *p)
{
    release((uint8_t *)(uintptr_t)p->pixels, (size_t)p->width * p->height * p->channels);
}

static void vectors_and_plain_code_agree(void)
{
    if (!stoc_image_vectors(worker))
        SKIP("this processor has no AVX2");
    for (int k = 0; k < 1500; k++) {
        struct stoc_image_picture p = picture(1 + below(90), 1 + below(90), below(4) ? 3 : 1, below(2));
        struct stoc_image_augment how = any(&p);
        size_t n = size_of(&p, &how);
        uint8_t *one = guarded(n), *two = guarded(n);
        EQUAL(stoc_image_augment(worker, &p, &how, one, n), 0);
        stoc_image_use_vectors(worker, 0);
        EQUAL(stoc_image_augment(worker, &p, &how, two, n), 0);
        stoc_image_use_vectors(worker, 1);
        if (memcmp(one, two, n) != 0)
            COMPLAIN("round %d: %u x %u x %u, layout %u, dtype %u, filter %u", k, p.channels, p.height, p.width,
                     p.layout, how.dtype, how.filter);
        release(one, n);
        release(two, n);
        release_picture(&p);
    }
}

static void layouts_agree(void)
{
    for (int k = 0; k < 300; k++) {
        uint32_t w = 1 + below(60), h = 1 + below(60);
        struct stoc_image_picture hwc = picture(w, h, 3, STOC_IMAGE_HWC), chw = picture(w, h, 3, STOC_IMAGE_CHW);
        for (size_t at = 0; at < (size_t)w * h; at++)
            for (size_t c = 0; c < 3; c++)
                ((uint8_t *)(uintptr_t)chw.pixels)[c * w * h + at] = ((const uint8_t *)hwc.pixels)[3 * at + c];
        struct stoc_image_augment how = any(&hwc);
        how.dtype = STOC_IMAGE_UINT8;
        how.erase = how.erase ? STOC_IMAGE_ERASE_VALUE : 0;
        size_t n = size_of(&hwc, &how), plane = n / 3;
        uint8_t *rows = malloc(n), *planes = malloc(n), *same = malloc(n);
        how.layout = STOC_IMAGE_HWC;
        EQUAL(stoc_image_augment(worker, &hwc, &how, rows, n), 0);
        EQUAL(stoc_image_augment(worker, &chw, &how, same, n), 0);
        how.layout = STOC_IMAGE_CHW;
        EQUAL(stoc_image_augment(worker, &hwc, &how, planes, n), 0);
        CHECK(memcmp(rows, same, n) == 0);
        for (size_t at = 0; at < n; at++)
            if (rows[at / plane + at % plane * 3] != planes[at]) {
                COMPLAIN("round %d: value %zu differs", k, at);
                break;
            }
        free(rows), free(planes), free(same);
        release_picture(&hwc);
        release_picture(&chw);
    }
}

/* A picture of one value keeps it in every size, and two flips are none. */
static void what_a_resize_keeps(void)
{
    for (int k = 0; k < 400; k++) {
        struct stoc_image_picture p = picture(1 + below(300), 1 + below(300), 3, below(2));
        uint8_t value = (uint8_t)(below(4) ? draw() : 255), *pixels = (uint8_t *)(uintptr_t)p.pixels;
        memset(pixels, value, (size_t)3 * p.width * p.height);
        struct stoc_image_augment how = whole_of(&p, 1 + below(300), 1 + below(300));
        how.filter = (uint8_t)below(2);
        size_t n = size_of(&p, &how);
        uint8_t *dst = malloc(n);
        EQUAL(stoc_image_augment(worker, &p, &how, dst, n), 0);
        for (size_t at = 0; at < n; at++)
            if (dst[at] != value) {
                COMPLAIN("%u x %u to %u x %u: %d became %d", p.width, p.height, how.width, how.height, value, dst[at]);
                break;
            }
        free(dst);
        release_picture(&p);
    }
}

static void *use_a_worker(void *context)
{
    stoc_image_worker *own = stoc_image_worker_new();
    uint8_t first[3 * 40 * 40], again[3 * 40 * 40];
    const struct stoc_image_picture *p = context;
    struct stoc_image_augment how = whole_of(p, 40, 40);
    long wrong = own == NULL || stoc_image_augment(own, p, &how, first, sizeof first) != 0;
    for (int k = 0; k < 200 && !wrong; k++)
        wrong = stoc_image_augment(own, p, &how, again, sizeof again) != 0 || memcmp(first, again, sizeof first) != 0;
    stoc_image_worker_free(own);
    return (void *)wrong;
}

static void threads_have_their_own_workers(void)
{
    struct stoc_image_picture p = picture(83, 71, 3, STOC_IMAGE_HWC);
    pthread_t threads[6];
    for (int k = 0; k < 6; k++)
        REQUIRE(pthread_create(&threads[k], NULL, use_a_worker, &p) == 0);
    for (int k = 0; k < 6; k++) {
        void *wrong;
        pthread_join(threads[k], &wrong);
        CHECK(!wrong);
    }
    release_picture(&p);
}

static void where_a_picture_goes(void)
{
    struct { uint32_t width, height, fit, short_side; struct stoc_image_target target; } cases[] = {
        {50, 40, STOC_IMAGE_STRETCH, 0, {20, 10, 0, 0, 20, 10, 0, 0}},
        {50, 40, STOC_IMAGE_CROP, 0, {20, 16, 0, 3, 20, 10, 0, 0}},
        {40, 50, STOC_IMAGE_CROP, 0, {20, 25, 0, 8, 20, 10, 0, 0}},
        {500, 40, STOC_IMAGE_CROP, 0, {125, 10, 52, 0, 20, 10, 0, 0}},
        {500, 40, STOC_IMAGE_CROP, 30, {375, 30, 178, 10, 20, 10, 0, 0}},
        {50, 40, STOC_IMAGE_PAD, 0, {12, 10, 0, 0, 12, 10, 4, 0}},
        {50, 5, STOC_IMAGE_PAD, 0, {20, 2, 0, 0, 20, 2, 0, 4}},
        {65500, 1, STOC_IMAGE_PAD, 0, {20, 1, 0, 0, 20, 1, 0, 4}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct stoc_image_decode how = to(20, 10);
        how.fit = (uint8_t)cases[k].fit;
        how.short_side = cases[k].short_side;
        struct stoc_image_target target;
        EQUAL(stoc_image_target(worker, cases[k].width, cases[k].height, &how, &target), 0);
        if (memcmp(&target, &cases[k].target, sizeof target))
            COMPLAIN("case %zu: %u x %u, window %u, %u, %u x %u at %u, %u", k, target.resized_width,
                     target.resized_height, target.window_x, target.window_y, target.width, target.height, target.x,
                     target.y);
    }
}

static void arguments_that_are_wrong(void)
{
    struct stoc_image_picture p = picture(20, 10, 3, STOC_IMAGE_HWC), bad;
    struct stoc_image_augment how, good = whole_of(&p, 8, 8);
    uint8_t dst[4 * 3 * 8 * 8];
    good.dtype = STOC_IMAGE_FLOAT32;
    EQUAL(stoc_image_augment(worker, &p, &good, dst, sizeof dst), 0);
    EQUAL(stoc_image_augment(NULL, &p, &good, dst, sizeof dst), STOC_IMAGE_EINVAL);
    EQUAL(stoc_image_augment(worker, NULL, &good, dst, sizeof dst), STOC_IMAGE_EINVAL);
    EQUAL(stoc_image_augment(worker, &p, &good, dst, sizeof dst - 1), STOC_IMAGE_EINVAL);
    CHECK(strstr(stoc_image_message(worker), "768 are needed"));
#define REFUSED(change, text)                                                        \
    do {                                                                             \
        how = good, bad = p;                                                         \
        change;                                                                      \
        EQUAL(stoc_image_augment(worker, &bad, &how, dst, sizeof dst), STOC_IMAGE_EINVAL); \
        if (!strstr(stoc_image_message(worker), text))                               \
            COMPLAIN("%s: %s", #change, stoc_image_message(worker));                 \
    } while (0)
    REFUSED(bad.channels = 4, "4 channels");
    REFUSED(bad.width = 0, "0 x 10");
    REFUSED(bad.pixels = NULL, "no picture");
    REFUSED(how.box_x = 1, "cannot be resized");
    REFUSED(how.box_y = -1, "cannot be resized");
    REFUSED(how.box_width = 0, "a side of a box");
    REFUSED(how.window_x = 1, "the window");
    REFUSED(how.width = 9, "the window");
    REFUSED(how.width = UINT32_MAX, "a side of a box");
    REFUSED(how.window_y = UINT32_MAX, "the window");
    REFUSED((how.erase = 1, how.erase_x = 8, how.erase_width = 1), "the erased box");
    REFUSED((how.erase = 1, how.erase_x = UINT32_MAX), "the erased box");
    REFUSED(how.filter = 2, "unknown value");
    REFUSED(how.flip = 2, "unknown value");
    REFUSED(how.reserved = 1, "unknown value");
    REFUSED((how.adjust[0] = 1, how.factor[0] = -1), "adjustment 1");
    REFUSED((how.adjust[0] = 1, how.factor[0] = NAN), "adjustment 1");
    REFUSED((how.adjust[3] = 4, how.factor[3] = 0.6f), "adjustment 4");
    REFUSED(how.adjust[1] = 5, "adjustment 5");
    REFUSED(how.std[1] = 0, "std must not be 0");
    REFUSED(how.mean[2] = INFINITY, "std must not be 0");
    REFUSED(how.divisor = 2, "divisor");
    REFUSED((how.dtype = 0, how.erase = 2), "normal numbers");
    REFUSED((how.dtype = 0, how.erase = 1, how.erase_value[0] = 256), "no uint8");
    release_picture(&p);

    struct file f = make_file(40, 20, BASELINE, 2, 2);
    struct stoc_image_decode ask, fine = to(8, 8);
#define NOT_DECODED(change, text)                                                                  \
    do {                                                                                           \
        ask = fine;                                                                                \
        change;                                                                                    \
        EQUAL(stoc_image_decode(worker, f.bytes, f.size, &ask, dst, 3 * 8 * 8), STOC_IMAGE_EINVAL); \
        if (!strstr(stoc_image_message(worker), text))                                             \
            COMPLAIN("%s: %s", #change, stoc_image_message(worker));                               \
    } while (0)
    NOT_DECODED(ask.width = 0, "width 0");
    NOT_DECODED(ask.height = 9, "216 are needed");
    NOT_DECODED(ask.fit = 3, "unknown value");
    NOT_DECODED(ask.short_side = 8, "of fit CROP only");
    NOT_DECODED((ask.fit = 1, ask.short_side = 7), "smaller than 8 x 8");
    NOT_DECODED((ask.fit = 1, ask.short_side = 70000), "at most");
    EQUAL(stoc_image_decode(worker, NULL, 0, &fine, dst, sizeof dst), STOC_IMAGE_EINVAL);
    struct stoc_image_target target;
    EQUAL(stoc_image_target(worker, 0, 9, &fine, &target), STOC_IMAGE_EINVAL);
    EQUAL(stoc_image_target(worker, 9, 70000, &fine, &target), STOC_IMAGE_EINVAL);
    EQUAL(stoc_image_target(worker, 9, 9, &fine, NULL), STOC_IMAGE_EINVAL);
    EQUAL(stoc_image_target(NULL, 9, 9, &fine, &target), STOC_IMAGE_EINVAL);
    ask = to(8, 8);
    ask.fit = 1, ask.short_side = 7;
    EQUAL(stoc_image_target(worker, 9, 9, &ask, &target), STOC_IMAGE_EINVAL);
    EQUAL(stoc_image_read_info(NULL, f.bytes, f.size, NULL), STOC_IMAGE_EINVAL);
    free(f.bytes);
    stoc_image_worker_free(NULL);
    CHECK(*stoc_image_message(NULL));
    EQUAL(stoc_image_abi_version(), STOC_IMAGE_ABI_VERSION);
}

int main(int argc, char **argv)
{
    (void)argc;
    begin_tests();
    worker = stoc_image_worker_new();
    RUN(parts_are_those_of_the_whole);
    RUN(files_that_are_cut_off);
    RUN(files_that_are_damaged);
    RUN(bombs);
    RUN(files_that_are_no_jpeg);
    RUN(vectors_and_plain_code_agree);
    RUN(layouts_agree);
    RUN(what_a_resize_keeps);
    RUN(threads_have_their_own_workers);
    RUN(where_a_picture_goes);
    RUN(arguments_that_are_wrong);
    stoc_image_worker_free(worker);
    return end_tests(argv[0]);
}

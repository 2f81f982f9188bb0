/*
 * pipeline.c - what a worker of a loader does with a sample, from the file to the row of a batch.
 * It also plans steps: python/tests/image/test_steps_saved.py has results that Python got.
 */
#include "files.h"

enum { WIDTH = 60, HEIGHT = 40, SIDE = 24, PICTURE = SIDE * SIDE * 3, ALIGN = 64 };

static stoc_image_worker *worker;

/* Files of one test, each sample with one. */
enum { MOST = 64 };
static char paths[4096];
static uint64_t path_at[MOST];
static struct stoc_image_place places[MOST];
static struct stoc_image_stamp stamps[MOST];
static int32_t descriptors[MOST];
static uint64_t samples, path_end;

static void no_files(void)
{
    for (uint64_t k = 0; k < samples; k++)
        if (descriptors[k])
            close(descriptors[k] - 1);
    memset(descriptors, 0, sizeof descriptors);
    samples = path_end = 0;
}

static uint64_t add_path(const char *path, int64_t label)
{
    path_at[samples] = path_end;
    path_end += (uint64_t)sprintf(paths + path_end, "%s", path) + 1;
    places[samples] = (struct stoc_image_place){.at = -1, .label = label, .file = (uint32_t)samples};
    return samples++;
}

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    return path;
}

static uint64_t add_file(const char *name, const void *bytes, size_t n, int64_t label)
{
    FILE *f = fopen(path_of(name), "wb");
    REQUIRE(f && fwrite(bytes, 1, n, f) == n);
    fclose(f);
    return add_path(path_of(name), label);
}

static struct stoc_image_pipeline fixed(void)
{
    return (struct stoc_image_pipeline){
        .struct_bytes = sizeof(struct stoc_image_pipeline), .paths = paths, .path_at = path_at, .places = places,
        .files = samples, .samples = samples, .labelled = 1, .decode = {.width = SIDE, .height = SIDE, .layout = STOC_IMAGE_HWC, .fit = STOC_IMAGE_CROP},
        .sample_bytes = PICTURE + 16, .picture_at = 8, .label_at = PICTURE + 8, .picture_width = SIDE,
        .picture_height = SIDE, .row_shape = {SIDE, SIDE, 3},
        .row_label_at = 64 * PICTURE};
}

static struct stoc_image_pipeline extents(bool encoded)
{
    struct stoc_image_pipeline p = fixed();
    p.extents = 1;
    p.encoded = encoded;
    p.picture_width = p.picture_height = 0;
    return p;
}

/* Bytes of a sample with extents whose picture has so many, and where the picture begins in it. */
static size_t extents_of(const struct stoc_image_pipeline *p, size_t bytes, size_t *begin)
{
    size_t padded = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    *begin = p->labelled ? 128 : p->encoded ? 0 : 64;
    return *begin == 0 ? bytes : *begin + padded + (p->labelled ? ALIGN : 0);
}

/* The only file of a test. */
static int64_t one_file(const struct file *f, int64_t label)
{
    no_files();
    return (int64_t)add_file("a.jpg", f->bytes, f->size, label);
}

/* What was loaded last. */
static const void *sample;
static size_t sample_bytes;

static int load(int64_t index) { return stoc_image_load(worker, index, &sample, &sample_bytes); }

/* Makes a row of a sample: a code. */
static int make_row(const struct stoc_image_pipeline *p, int64_t index, uint64_t seed, void *buffer, uint32_t row)
{
    EQUAL(stoc_image_follow(worker, p), 0);
    int code = load(index);
    return code ? code : stoc_image_finish(worker, seed, sample, sample_bytes, buffer, row);
}

static void decoded(const struct file *f, const struct stoc_image_decode *how, uint8_t *dst)
{
    stoc_image_worker *w = stoc_image_worker_new();
    EQUAL(stoc_image_decode(w, f->bytes, f->size, how, dst, (size_t)3 * how->width * how->height), 0);
    stoc_image_worker_free(w);
}

/* A sample becomes a row that is the decoded picture, by every way. */
TEST_IF(!FOR_RACES, from_file_to_row)
{
    struct file f = make_file(WIDTH, HEIGHT, BASELINE, 2, 2);
    int64_t index = one_file(&f, -77);
    uint8_t expected[PICTURE], *buffer = malloc(64 * PICTURE + 64 * 8);
    decoded(&f, &(struct stoc_image_decode){.width = SIDE, .height = SIDE, .layout = STOC_IMAGE_HWC,
                                            .fit = STOC_IMAGE_CROP}, expected);
    for (int way = 0; way < 6; way++) {
        struct stoc_image_pipeline p = way % 3 ? extents(way % 3 == 2) : fixed();
        size_t begin;
        p.labelled = way < 3;
        EQUAL(stoc_image_follow(worker, &p), 0);
        EQUAL(load(index), 0);
        size_t whole = extents_of(&p, p.encoded ? f.size : PICTURE, &begin);
        EQUAL(sample_bytes, p.extents ? whole : p.sample_bytes);
        if (p.encoded)
            EQUAL(memcmp((const char *)sample + begin, f.bytes, f.size), 0);
        memset(buffer, 0, 64 * PICTURE + 64 * 8);
        EQUAL(stoc_image_finish(worker, 1, sample, sample_bytes, buffer, 5), 0);
        EQUAL(memcmp(buffer + 5 * PICTURE, expected, PICTURE), 0);
        EQUAL(*(int64_t *)(void *)(buffer + 64 * PICTURE + 5 * 8), p.labelled ? -77 : 0);
        EQUAL(buffer[5 * PICTURE - 1] | buffer[6 * PICTURE], 0);
    }
    free(buffer);
    free(f.bytes);
}

/* Without a width, the picture has the size of its file, or a short side. */
TEST_IF(!FOR_RACES, pictures_of_any_size)
{
    struct file f = make_file(WIDTH, HEIGHT, BASELINE, 1, 1);
    int64_t index = one_file(&f, 1);
    for (uint32_t side = 0; side <= 20; side += 20)
        for (int encoded = 0; encoded < 2; encoded++) {
            struct stoc_image_pipeline p = extents(encoded);
            uint32_t height = side ? 20 : HEIGHT, width = side ? 30 : WIDTH;
            p.decode = (struct stoc_image_decode){.layout = STOC_IMAGE_HWC, .fit = STOC_IMAGE_CROP, .short_side = side};
            memcpy(p.row_shape, (uint32_t[]){height, width, 3}, sizeof p.row_shape);
            p.row_label_at = WIDTH * HEIGHT * 3;
            uint8_t expected[WIDTH * HEIGHT * 3], row[WIDTH * HEIGHT * 3 + 8];
            struct stoc_image_decode how = {.width = width, .height = height, .layout = STOC_IMAGE_HWC};
            decoded(&f, &how, expected);
            EQUAL(stoc_image_follow(worker, &p), 0);
            EQUAL(load(index), 0);
            EQUAL(stoc_image_finish(worker, 1, sample, sample_bytes, row, 0), 0);
            EQUAL(memcmp(row, expected, (size_t)3 * width * height), 0);
            p.picture_height = height + 1; /* samples of another size come back */
            EQUAL(load(index), encoded ? 0 : STOC_IMAGE_EUNSUPPORTED);
            p.picture_height = 0;
            EQUAL(load(index), 0);
            p.decode.max_pixels = WIDTH * HEIGHT - 1;
            EQUAL(encoded ? stoc_image_finish(worker, 1, sample, sample_bytes, row, 0) : load(index),
                  STOC_IMAGE_ETOOLARGE);
        }
    free(f.bytes);
}

/* A short side makes a thin picture longer than a side may be, or larger than max_pixels. */
TEST_IF(!FOR_RACES, results_that_are_too_large)
{
    for (int turn = 0; turn < 4; turn++) {
        struct file f = turn % 2 ? make_file(10, 1000, BASELINE, 1, 1) : make_file(2, 600, BASELINE, 1, 1);
        int64_t index = one_file(&f, 1);
        struct stoc_image_pipeline p = extents(turn / 2);
        p.decode = (struct stoc_image_decode){.layout = STOC_IMAGE_HWC, .fit = STOC_IMAGE_CROP, .short_side = 256,
                                              .max_pixels = turn % 2 ? 256 * 25600 - 1 : 0};
        uint8_t row[8];
        EQUAL(make_row(&p, index, 1, row, 0), STOC_IMAGE_ETOOLARGE);
        CHECK(strstr(stoc_image_message(worker), "with short_side=256 is 256 x"));
        free(f.bytes);
    }
}

/* No step makes a larger picture than max_pixels, also where passes would be joined, and none takes memory for it. */
TEST_IF(!FOR_RACES, steps_that_make_large_pictures)
{
    const struct stoc_image_step large[] = {
        {.kind = STOC_IMAGE_RESIZE, .height = 60000, .width = 60000},
        {.kind = STOC_IMAGE_RESIZE, .height = 60000},
        {.kind = STOC_IMAGE_CENTER_CROP, .height = 60000, .width = 60000},
        {.kind = STOC_IMAGE_RANDOM_RESIZED_CROP, .height = 60000, .width = 60000, .numbers = {0.5, 1, 0.75, 1.33}},
        {.kind = STOC_IMAGE_RANDOM_CROP, .height = 60000, .width = 60000, .integers = {0, 0, 0, 0, 1}}};
    struct file f = make_file(WIDTH, HEIGHT, BASELINE, 1, 1);
    int64_t index = one_file(&f, 1);
    for (size_t turn = 0; turn < 6 * sizeof large / sizeof *large; turn++) {
        const struct stoc_image_step flip = {.kind = STOC_IMAGE_RANDOM_FLIP, .numbers = {1}};
        struct stoc_image_step steps[] = {large[turn / 6], flip, {.kind = STOC_IMAGE_CENTER_CROP, .height = SIDE, .width = SIDE}};
        bool encoded = turn % 2, before = turn % 3 == 2 && !encoded && steps[0].kind <= STOC_IMAGE_CENTER_CROP;
        struct stoc_image_pipeline p = extents(encoded);
        p.decode.width = p.decode.height = 0;
        p.row_label_at = PICTURE;
        p.steps = steps;
        p.step_count = 3;
        if (before || turn % 3 == 1) /* one pass, which keeps no whole picture */
            steps[1] = steps[2];
        p.before_count = before ? 2 : 0;
        uint8_t row[PICTURE + 8];
        struct rusage used, after;
        getrusage(RUSAGE_SELF, &used);
        EQUAL(make_row(&p, index, 1, row, 0), STOC_IMAGE_ETOOLARGE);
        getrusage(RUSAGE_SELF, &after);
        CHECK(strstr(stoc_image_message(worker), "the picture of a step is"));
        CHECK(after.ru_maxrss - used.ru_maxrss < 64 << 10); /* KiB; a sanitizer keeps what was freed */
    }
    free(f.bytes);
}

/* max_pixels is the most that a step may make, of a file. Pictures of a cache have the default. */
TEST_IF(!FOR_RACES, steps_at_the_limit)
{
    struct file f = make_file(WIDTH, HEIGHT, BASELINE, 1, 1);
    int64_t index = one_file(&f, 1);
    for (uint64_t turn = 0; turn < 4; turn++) {
        struct stoc_image_step steps[] = {{.kind = STOC_IMAGE_RESIZE, .height = 2 * HEIGHT, .width = 2 * WIDTH},
                                          {.kind = STOC_IMAGE_CENTER_CROP, .height = SIDE, .width = SIDE}};
        bool encoded = turn / 2;
        struct stoc_image_pipeline p = extents(encoded);
        p.decode.width = p.decode.height = 0;
        p.row_label_at = PICTURE;
        p.decode.max_pixels = 4 * WIDTH * HEIGHT - turn % 2;
        p.steps = steps;
        p.step_count = 2;
        uint8_t row[PICTURE + 8];
        EQUAL(stoc_image_follow(worker, &p), 0);
        EQUAL(load(index), 0);
        EQUAL(stoc_image_finish(worker, 1, sample, sample_bytes, row, 0),
              encoded && turn % 2 ? STOC_IMAGE_ETOOLARGE : 0);
        p.step_count = p.before_count = encoded ? 0 : 2;
        if (!encoded)
            EQUAL(load(index), turn % 2 ? STOC_IMAGE_ETOOLARGE : 0);
    }
    free(f.bytes);
}

/* Of an encoded picture, only the box that the steps use is decoded. Rows are those of the whole picture. */
TEST_IF(!FOR_RACES, boxes_are_those_of_the_whole)
{
    static const int sampling[][2] = {{1, 1}, {2, 1}, {2, 2}};
    enum { ROW = 4 * PICTURE };
    uint8_t *rows[2] = {malloc(ROW + 8), malloc(ROW + 8)};
    uint64_t pixels[2] = {0}; /* pixels of baseline files; progressive ones are decoded as a whole */
    for (int turn = 0; turn < 300; turn++) {
        struct file f = make_file(100 + (int)below(200), 100 + (int)below(200), turn % 2 ? PROGRESSIVE : BASELINE,
                                  sampling[turn % 3][0], sampling[turn % 3][1]);
        int64_t index = one_file(&f, turn);
        struct stoc_image_step steps[] = {
            {.kind = turn % 5 == 4 ? STOC_IMAGE_RANDOM_CROP : STOC_IMAGE_RANDOM_RESIZED_CROP, .height = SIDE,
             .width = SIDE, .filter = below(2), .numbers = {0.08, 1, 0.75, 1.33}, .integers = {turn % 2 * 4, 3}},
            {.kind = STOC_IMAGE_RANDOM_FLIP, .numbers = {0.5}},
            {.kind = STOC_IMAGE_TO_DTYPE, .integers = {STOC_IMAGE_FLOAT32, 1}}};
        if (turn % 7 == 3) { /* two passes */
            struct stoc_image_step kept = steps[0];
            steps[0] = steps[1];
            steps[1] = kept;
        }
        for (int encoded = 0; encoded < 2; encoded++) {
            struct stoc_image_pipeline p = extents(encoded);
            p.decode = (struct stoc_image_decode){.layout = turn % 4 < 2 ? STOC_IMAGE_HWC : STOC_IMAGE_CHW,
                                                  .fit = STOC_IMAGE_CROP, .short_side = turn % 3 ? 0 : 80};
            if (p.decode.layout == STOC_IMAGE_CHW)
                memcpy(p.row_shape, (uint32_t[]){3, SIDE, SIDE}, sizeof p.row_shape);
            p.row_dtype = STOC_IMAGE_FLOAT32;
            p.row_label_at = ROW;
            p.steps = steps;
            p.step_count = 3;
            pixels_read = 0;
            EQUAL(make_row(&p, index, (uint64_t)turn, rows[encoded], 0), 0);
            pixels[encoded] += turn % 2 ? 0 : pixels_read;
        }
        EQUAL(memcmp(rows[0], rows[1], ROW + 8), 0);
        free(f.bytes);
    }
    printf("%.2f of the pixels are decoded\n", (double)pixels[1] / (double)pixels[0]);
    CHECK(pixels[1] < pixels[0] * 3 / 4);
    free(rows[0]);
    free(rows[1]);
}

/* A ratio far from that of the picture gives boxes without pixels, of columns or of rows. They come back, also from files
 * that are decoded for the box alone. */
TEST_IF(!FOR_RACES, boxes_without_pixels)
{
    static const double ratios[] = {1e-9, 0.001, 1000, 1e9};
    struct file f = make_file(WIDTH, HEIGHT, BASELINE, 2, 2);
    no_files();
    int64_t index = (int64_t)add_file("a.jpg", f.bytes, f.size, 1);
    for (int turn = 0; turn < 32; turn++) {
        struct stoc_image_step steps[] = {
            {.kind = STOC_IMAGE_RANDOM_RESIZED_CROP, .height = turn / 16 ? 1 : SIDE, .width = turn / 16 ? 1 : SIDE,
             .numbers = {0.08, 1, ratios[turn % 4], ratios[turn % 4]}},
            {.kind = STOC_IMAGE_RANDOM_FLIP, .numbers = {1}}};
        struct stoc_image_pipeline p = extents(turn / 4 % 2);
        p.decode = (struct stoc_image_decode){.layout = STOC_IMAGE_HWC, .fit = STOC_IMAGE_CROP,
                                              .short_side = turn / 8 % 2 ? 20 : 0};
        p.steps = steps;
        p.step_count = 2;
        uint8_t row[PICTURE + 8] = {0};
        memcpy(p.row_shape, (uint32_t[]){steps[0].height, steps[0].width, 3}, sizeof p.row_shape);
        p.row_label_at = PICTURE;
        EQUAL(stoc_image_follow(worker, &p), 0);
        EQUAL(load(index), 0);
        for (uint64_t seed = 0; seed < 5; seed++)
            EQUAL(stoc_image_finish(worker, seed, sample, sample_bytes, row, 0), STOC_IMAGE_EUNSUPPORTED);
        CHECK(strstr(stoc_image_message(worker), "a side of a box has 0 pixels"));
    }
    free(f.bytes);
}

/* Steps before the cache make the row that they make after it, and a sample with the picture that they make. */
TEST_IF(!FOR_RACES, steps_before_the_cache)
{
    enum { ROW = 4 * PICTURE };
    uint8_t *rows[2] = {malloc(ROW + 8), malloc(ROW + 8)};
    int others = 0;
    for (int turn = 0; turn < 200; turn++) {
        struct file f = make_file(20 + (int)below(100), 20 + (int)below(100), turn % 2 ? PROGRESSIVE : BASELINE, 2, 2);
        int64_t index = one_file(&f, turn);
        struct stoc_image_step steps[] = {
            {.kind = STOC_IMAGE_RESIZE, .height = 20 + below(30), .integers = {turn % 3 ? 60 : 0}, .filter = below(2)},
            {.kind = STOC_IMAGE_CENTER_CROP, .height = 10 + below(40), .width = 10 + below(40)},
            {.kind = STOC_IMAGE_RANDOM_CROP, .height = SIDE, .width = SIDE, .integers = {0, 0, 0, 0, 1}},
            {.kind = STOC_IMAGE_RANDOM_FLIP, .numbers = {0.5}}};
        for (int way = 0; way < 2; way++) {
            struct stoc_image_pipeline p = extents(turn % 4 == 3 && way == 0);
            p.decode = (struct stoc_image_decode){.layout = STOC_IMAGE_HWC, .fit = STOC_IMAGE_CROP};
            p.row_label_at = ROW;
            p.steps = steps;
            p.step_count = 4;
            p.before_count = way ? 1 + (uint32_t)turn % 2 : 0;
            EQUAL(stoc_image_follow(worker, &p), 0);
            EQUAL(load(index), 0);
            if (p.before_count == 2)
                EQUAL(sample_bytes, 192 + ((size_t)3 * steps[1].height * steps[1].width + ALIGN - 1) / ALIGN * ALIGN);
            EQUAL(stoc_image_finish(worker, (uint64_t)turn, sample, sample_bytes, rows[way], 0), 0);
            p.picture_width = 9; /* samples of another size come back */
            others += p.before_count && load(index) == STOC_IMAGE_EUNSUPPORTED;
        }
        EQUAL(memcmp(rows[0], rows[1], PICTURE), 0);
        EQUAL(memcmp(rows[0] + ROW, rows[1] + ROW, 8), 0);
        free(f.bytes);
    }
    EQUAL(others, 200);
    free(rows[0]);
    free(rows[1]);
}

/* ------------------------------------------------------------ samples inside a larger file, such as a tar file */

static struct stoc_image_stamp stamp_of(const char *path)
{
    struct stat about;
    REQUIRE(stat(path, &about) == 0);
    int64_t ns = about.st_mtim.tv_sec * INT64_C(1000000000) + about.st_mtim.tv_nsec;
    return (struct stoc_image_stamp){about.st_size, ns};
}

/* Adds the samples of a tar file: `most` of them, of which each is a label's text and a picture, `apart` bytes between
 * them. The label comes first in every second one. The tar ends at the last byte of the last sample. */
static void add_tar(const char *name, const struct file *f, size_t apart, int most)
{
    size_t each = 16 + apart + f->size;
    uint8_t *tar = malloc(most * each);
    uint64_t file = samples;
    memset(tar, 'x', most * each);
    for (int k = 0; k < most; k++) {
        size_t begin = k * each, label = k % 2 ? begin : begin + f->size + apart;
        size_t at = k % 2 ? begin + 16 + apart : begin;
        struct stoc_image_place place = {
            .at = (int64_t)at, .label = (int64_t)label, .bytes = (uint32_t)f->size, .label_bytes = 16,
            .file = (uint32_t)file, .label_kind = STOC_IMAGE_LABEL_TEXT};
        char text[17];
        snprintf(text, sizeof text, "%15d\n", 100 + k);
        memcpy(tar + label, text, 16);
        memcpy(tar + at, f->bytes, f->size);
        if (k == 0)
            add_file(name, tar, 0, 0);
        else
            add_path(path_of(name), 0);
        places[file + k] = place;
    }
    FILE *out = fopen(path_of(name), "wb");
    REQUIRE(out && fwrite(tar, 1, most * each, out) == most * each);
    fclose(out);
    for (int k = 0; k < most; k++)
        stamps[file + k] = stamp_of(path_of(name));
    free(tar);
}

static struct stoc_image_pipeline of_tar(bool encoded)
{
    struct stoc_image_pipeline p = extents(encoded);
    p.stamps = stamps;
    p.descriptors = descriptors;
    return p;
}

static int64_t label_loaded(void)
{
    int64_t label;
    memcpy(&label, (const char *)sample + sample_bytes - ALIGN, sizeof label);
    return label;
}

/* Samples are the same, whatever lies between picture and label, and whether the file stays open. */
TEST_IF(!FOR_RACES, parts_of_a_file)
{
    struct file f = make_file(WIDTH, HEIGHT, BASELINE, 2, 2);
    uint8_t *expected = malloc(PICTURE);
    for (int turn = 0; turn < 24; turn++) {
        no_files();
        add_tar("t.tar", &f, (size_t[]){0, 700, 16384, 16385, 100000}[turn % 5], 4);
        struct stoc_image_pipeline p = of_tar(turn % 2);
        if (turn % 3 == 0)
            p.descriptors = NULL;
        p.labelled = turn % 4 != 3;
        EQUAL(stoc_image_follow(worker, &p), 0);
        decoded(&f, &p.decode, expected);
        for (int k = 0; k < 8; k++) {
            size_t begin;
            EQUAL(load(k % 4), 0);
            EQUAL(extents_of(&p, p.encoded ? f.size : PICTURE, &begin), sample_bytes);
            size_t n = p.encoded ? f.size : PICTURE;
            EQUAL(memcmp((const char *)sample + begin, p.encoded ? f.bytes : expected, n), 0);
            if (p.labelled)
                EQUAL(label_loaded(), 100 + k % 4);
            EQUAL(descriptors[0] != 0, turn % 3 != 0);
        }
    }
    no_files();
    free(expected);
    free(f.bytes);
}

/* Files that are cut off, changed, replaced or gone, and places that are outside of them. */
TEST_IF(!FOR_RACES, parts_of_files_that_change)
{
    struct file f = make_file(WIDTH, HEIGHT, BASELINE, 2, 2);
    for (int turn = 0; turn < 16; turn++) {
        int change = turn % 4, open_before = turn / 4 % 2;
        no_files();
        add_tar("t.tar", &f, turn / 8 ? 20000 : 700, 4);
        struct stoc_image_pipeline p = of_tar(true);
        p.files = 1;
        EQUAL(stoc_image_follow(worker, &p), 0);
        if (open_before)
            EQUAL(load(1), 0);
        if (change == 0)
            REQUIRE(truncate(path_of("t.tar"), stamps[0].bytes - 1) == 0);
        else if (change == 1) { /* by a nanosecond */
            struct timespec at = {stamps[0].modified_ns / 1000000000, stamps[0].modified_ns % 1000000000 ^ 1};
            REQUIRE(utimensat(AT_FDCWD, path_of("t.tar"), (struct timespec[]){at, at}, 0) == 0);
        }
        else if (change == 2) {
            rename(path_of("t.tar"), strcat(strcpy((char[200]){0}, path_of("t.tar")), ".old"));
            add_file("t.tar", "other", 5, 0);
        } else
            REQUIRE(unlink(path_of("t.tar")) == 0);
        int kept = change >= 2 && open_before; /* the descriptor is that of the old file, which is as it was */
        EQUAL(load(3), kept ? 0 : change == 0 || change == 2 ? STOC_IMAGE_EFORMAT : STOC_IMAGE_ESYSTEM);
        CHECK(kept || strlen(stoc_image_message(worker)) > 5);
        EQUAL(load(0), kept ? 0 : change == 2 ? STOC_IMAGE_EFORMAT : STOC_IMAGE_ESYSTEM);
        EQUAL(descriptors[0] != 0, open_before); /* a file that is wrong does not stay open */
    }
    no_files();
    add_tar("t.tar", &f, 700, 4);
    struct stoc_image_place right = places[0];
    for (int turn = 0; turn < 9; turn++) {
        struct stoc_image_pipeline p = of_tar(true);
        places[0] = right;
        int64_t *numbers[] = {&places[0].at, &places[0].label};
        if (turn < 8)
            *numbers[turn % 2] = (int64_t[]){-2, INT64_MIN, INT64_MAX, INT64_MAX / 2}[turn / 2];
        else
            places[0].file = (uint32_t)samples;
        EQUAL(stoc_image_follow(worker, &p), 0);
        EQUAL(load(0), turn == 6 || turn == 7 ? STOC_IMAGE_EFORMAT : STOC_IMAGE_EINVAL);
    }
    no_files();
    free(f.bytes);
}

/* What Python's int and json.loads read as a whole number. C gives back what is not plain. */
TEST_IF(!FOR_RACES, labels_are_parsed_strictly)
{
    static const struct {
        const char *text;
        bool in_int, in_json;
        int64_t value;
    } labels[] = {
        {"7", 1, 1, 7}, {" \t\r\n-12 \r\n", 1, 1, -12}, {"+5", 1, 0, 5}, {"007", 1, 0, 7}, {"0", 1, 1, 0},
        {"-0", 1, 1, 0}, {"00", 1, 0, 0}, {"9223372036854775807", 1, 1, INT64_MAX},
        {"-9223372036854775808", 1, 1, INT64_MIN}, {"9223372036854775808", 0, 0, 0},
        {"-9223372036854775809", 0, 0, 0}, {"99999999999999999999999", 0, 0, 0}, {"18446744073709551616", 0, 0, 0},
        {"", 0, 0, 0}, {" \n", 0, 0, 0}, {"-", 0, 0, 0}, {"+", 0, 0, 0}, {"+-1", 0, 0, 0}, {"- 1", 0, 0, 0},
        {"1 2", 0, 0, 0}, {"1_000", 0, 0, 0}, {"1.0", 0, 0, 0}, {"1e3", 0, 0, 0}, {"0x10", 0, 0, 0}, {"dog", 0, 0, 0},
        {"\v1", 0, 0, 0}, {"{\"a\": 1}", 0, 0, 0}, {"true", 0, 0, 0}, {"\xef\xbb\xbf""1", 0, 0, 0},
    };
    struct file f = make_file(WIDTH, HEIGHT, BASELINE, 2, 2);
    for (size_t k = 0; k < sizeof labels / sizeof *labels; k++)
        for (int json = 0; json < 2; json++) {
            size_t n = strlen(labels[k].text);
            uint8_t *tar = malloc(n + f.size);
            memcpy(tar, labels[k].text, n);
            memcpy(tar + n, f.bytes, f.size);
            no_files();
            add_file("t.tar", tar, n + f.size, 0);
            places[0] = (struct stoc_image_place){
                .at = (int64_t)n, .bytes = (uint32_t)f.size, .label_bytes = (uint32_t)n,
                .label_kind = json ? STOC_IMAGE_LABEL_JSON : STOC_IMAGE_LABEL_TEXT};
            struct stoc_image_pipeline p = extents(true);
            EQUAL(stoc_image_follow(worker, &p), 0);
            bool reads = json ? labels[k].in_json : labels[k].in_int;
            EQUAL(load(0), reads ? 0 : STOC_IMAGE_EUNSUPPORTED);
            if (reads)
                EQUAL(label_loaded(), labels[k].value);
            free(tar);
        }
    free(f.bytes);
}

struct slow {
    const char *path;
    const struct file *file;
};

static void *write_slowly(void *context)
{
    const struct slow *s = context;
    int fd = open(s->path, O_WRONLY);
    for (size_t at = 0; at < s->file->size; at += 700) {
        ssize_t n = (ssize_t)MIN(700, s->file->size - at);
        CHECK(write(fd, s->file->bytes + at, (size_t)n) == n);
        usleep(500);
    }
    close(fd);
    return NULL;
}

/* Files that cannot be read, and a pipe, whose size is not known. */
TEST(files_of_other_kinds)
{
    no_files();
    struct file f = make_file(800, 600, BASELINE, 1, 1);
    REQUIRE(f.size > 1 << 16); /* more than the first read */
    add_path(path_of("none.jpg"), 0);
    add_path(scratch, 0);
    add_file("empty.jpg", "", 0, 0);
    add_file("text.jpg", "no picture", 10, 0);
    add_file("cut.jpg", f.bytes, f.size / 2, 0);
    REQUIRE(mkfifo(path_of("pipe.jpg"), 0600) == 0);
    add_path(path_of("pipe.jpg"), 0);
    static const int codes[] = {STOC_IMAGE_ESYSTEM, STOC_IMAGE_ESYSTEM, STOC_IMAGE_EKIND, STOC_IMAGE_EKIND,
                                STOC_IMAGE_EFORMAT};
    struct stoc_image_pipeline p = fixed();
    EQUAL(stoc_image_follow(worker, &p), 0);
    for (int k = 0; k < 5; k++)
        EQUAL(load(k), codes[k]);
    pthread_t writer;
    char path[128];
    struct slow slow = {strcpy(path, path_of("pipe.jpg")), &f};
    REQUIRE(pthread_create(&writer, NULL, write_slowly, &slow) == 0);
    EQUAL(load(5), 0);
    pthread_join(writer, NULL);
    uint8_t expected[PICTURE];
    decoded(&f, &p.decode, expected);
    EQUAL(memcmp((const char *)sample + 8, expected, PICTURE), 0);
    free(f.bytes);
}

/* One step with random settings, within what Python allows. */
static void random_step(struct stoc_image_step *s, uint32_t kind)
{
    *s = (struct stoc_image_step){.kind = kind, .filter = below(2), .height = 1 + below(SIDE + 10)};
    s->width = kind == STOC_IMAGE_RESIZE && below(2) ? 0 : 1 + below(SIDE + 10);
    for (int k = 0; k < 8; k++) {
        s->numbers[k] = 0.05 + below(1000) / 1000.0;
        s->integers[k] = (int32_t)below(kind == STOC_IMAGE_RANDOM_CROP ? 9 : 2);
    }
    if (kind == STOC_IMAGE_RESIZE)
        s->integers[0] = s->width == 0 && below(2) ? (int32_t)(s->height + 1 + below(20)) : 0;
    if (kind == STOC_IMAGE_TO_DTYPE)
        s->integers[0] = below(4) ? STOC_IMAGE_FLOAT32 : (int32_t)below(4);
    if (kind == STOC_IMAGE_COLOR_JITTER)
        s->numbers[6] = -0.2, s->numbers[7] = 0.3;
}

/* Random steps, most of them in an order that one pass can do. Sets the row's shape and dtype as a crop and a dtype
 * among them make it. Returns how many. */
static uint32_t random_steps(struct stoc_image_step *steps, struct stoc_image_pipeline *p)
{
    uint32_t n = 0;
    for (uint32_t kind = below(2) ? STOC_IMAGE_RANDOM_RESIZED_CROP : STOC_IMAGE_RESIZE; kind <= STOC_IMAGE_NORMALIZE;
         kind++)
        if (below(3) != 0 && (kind < STOC_IMAGE_NORMALIZE || p->row_dtype || below(9) == 0)) {
            struct stoc_image_step *s = &steps[n++];
            random_step(s, below(20) ? kind : 1 + below(9));
            if (s->kind <= STOC_IMAGE_RANDOM_CROP && s->width)
                memcpy(p->row_shape, (uint32_t[]){s->height, s->width, 3}, sizeof p->row_shape);
            if (s->kind == STOC_IMAGE_TO_DTYPE)
                p->row_dtype = (uint32_t)s->integers[0];
        }
    return n;
}

/* Whatever the steps are, and whatever another process writes into the sample: nothing is read after the sample or
 * written after the row. */
TEST_IF(!FOR_RACES, nothing_outside_is_touched)
{
    struct file f = make_file(WIDTH, HEIGHT, BASELINE, 2, 2);
    int64_t index = one_file(&f, 1);
    static const size_t items[] = {1, 4, 2, 2};
    int done = 0, back = 0;
    for (int turn = 0; turn < 6000; turn++) {
        int way = turn % 3;
        struct stoc_image_pipeline p = way ? extents(way == 2) : fixed();
        struct stoc_image_step steps[9];
        p.labelled = below(3) != 0;
        EQUAL(stoc_image_follow(worker, &p), 0);
        EQUAL(load(index), 0);
        size_t shorter = turn % 7 == 6 ? below((uint32_t)sample_bytes) : sample_bytes;
        uint8_t *copy = guarded(shorter);
        memcpy(copy, sample, shorter);
        for (int k = turn % 5 == 4 ? 3 : 0; k > 0 && shorter; k--) /* numbers of the header, mostly */
            copy[below(MIN(128, (uint32_t)shorter))] ^= (uint8_t)(1u << below(8));
        p.steps = steps;
        p.step_count = random_steps(steps, &p);
        size_t row = (size_t)3 * p.row_shape[0] * p.row_shape[1] * items[p.row_dtype];
        p.row_label_at = 0;
        p.row_at = 8;
        uint8_t *buffer = guarded(8 + row);
        int code = stoc_image_follow(worker, &p);
        code = code ? code : stoc_image_finish(worker, (uint64_t)turn, copy, shorter, buffer, 0);
        done += code == 0;
        back += code != 0;
        release(copy, shorter);
        release(buffer, 8 + row);
    }
    CHECK(done > 1000 && back > 1000);
    printf("%d rows, %d came back\n", done, back);
    free(f.bytes);
}

/* Does planned passes over a uint8 picture of SIDE x SIDE. 1: one needs a pass over floats. dst: the result, of bytes
 * *size. */
static int do_passes(const uint8_t *pixels, const struct stoc_image_augment *passes, uint32_t count, uint8_t **dst,
                     size_t *size)
{
    static const size_t items[] = {1, 4, 2, 2};
    struct stoc_image_picture picture = {pixels, SIDE, SIDE, 3, STOC_IMAGE_HWC};
    uint8_t *own = guarded(PICTURE);
    memcpy(own, pixels, PICTURE);
    *size = PICTURE;
    for (uint32_t k = 0; k < count; k++) {
        if (k && passes[k - 1].dtype)
            return release(own, *size), 1;
        size_t bytes = (size_t)3 * passes[k].width * passes[k].height * items[passes[k].dtype % 4];
        uint8_t *made = guarded(bytes);
        picture.pixels = own;
        int code = stoc_image_augment(worker, &picture, &passes[k], made, bytes);
        release(own, *size);
        own = made;
        *size = bytes;
        if (code)
            return release(own, bytes), code;
        picture.width = passes[k].width;
        picture.height = passes[k].height;
    }
    *dst = own;
    return 0;
}

/* The passes of a plan make the row of a pipeline with the same seed, and a pipeline gives back what needs floats. */
TEST_IF(!FOR_RACES, plans_are_those_of_pipelines)
{
    no_files();
    uint8_t stored[PICTURE + 16];
    int alike = 0, floats = 0, misfits = 0;
    for (int turn = 0; turn < 4000; turn++) {
        for (size_t k = 0; k < sizeof stored; k++)
            stored[k] = (uint8_t)below(256);
        struct stoc_image_pipeline p = fixed();
        struct stoc_image_step steps[9];
        p.steps = steps;
        p.step_count = random_steps(steps, &p);
        struct stoc_image_augment passes[19];
        struct stoc_image_request request = {.width = SIDE, .height = SIDE, .channels = 3, .layout = STOC_IMAGE_HWC,
                                             .step_count = p.step_count, .steps = steps, .seed = (uint64_t)turn};
        uint32_t count = 0;
        int code = stoc_image_plan(worker, &request, passes, &count);
        CHECK(code == 0 || code == STOC_IMAGE_EUNSUPPORTED);
        if (code == 0 && count) {
            p.row_dtype = passes[count - 1].dtype;
            memcpy(p.row_shape, (uint32_t[]){passes[count - 1].height, passes[count - 1].width, 3}, sizeof p.row_shape);
        } else if (code == 0) {
            p.row_dtype = 0;
            memcpy(p.row_shape, (uint32_t[]){SIDE, SIDE, 3}, sizeof p.row_shape);
        }
        p.row_label_at = 64 * PICTURE;
        static uint8_t row[64 * PICTURE + 8];
        EQUAL(stoc_image_follow(worker, &p), 0);
        int finished = stoc_image_finish(worker, (uint64_t)turn, stored, sizeof stored, row, 0);
        uint8_t *made;
        size_t size;
        int done = code ? code : do_passes(stored + 8, passes, count, &made, &size);
        if (code) /* a pass before the step that does not fit may fail first */
            CHECK(finished < 0);
        else
            EQUAL(finished, done == 1 ? STOC_IMAGE_EUNSUPPORTED : done);
        alike += done == 0;
        floats += done == 1;
        misfits += code != 0;
        if (done == 0) {
            EQUAL(memcmp(row, made, size), 0);
            release(made, size);
        }
    }
    printf("%d rows, %d need floats, %d do not fit\n", alike, floats, misfits);
    CHECK(alike > 1000 && floats > 50 && misfits > 100);
}

static const double *numbers_left;
static int drawn_for[8]; /* stages */
static double next_number(void *context, uint64_t stage)
{
    EQUAL(*(int *)context, 77);
    drawn_for[stage]++;
    return *numbers_left++;
}

/* Numbers of the caller are drawn in the order that the specification gives, and no more of them than it says. */
TEST_IF(!FOR_RACES, numbers_of_the_caller)
{
    /* area 0.5 of the picture's, a square of 71 x 71; y, x; flip; three to shuffle, two factors; erase, a box of 10 x
     * 10 in 80 x 80, y, x, seed */
    static const double numbers[] = {0.5, 0.5, 0.25, 0.75, 0.1, 0.99, 0.99, 0.99, 0.5, 0.25, 0.3, 0.25, 0.5, 0.5, 0.125, 0.5};
    const struct stoc_image_step steps[] = {
        {.kind = STOC_IMAGE_RANDOM_RESIZED_CROP, .height = 80, .width = 80, .numbers = {0, 1, 0.5, 2}},
        {.kind = STOC_IMAGE_RANDOM_FLIP, .numbers = {0.2}},
        {.kind = STOC_IMAGE_COLOR_JITTER, .integers = {1, 0, 1}, .numbers = {0, 2, 0, 0, 1, 2}, .stage = 2},
        {.kind = STOC_IMAGE_RANDOM_ERASING, .numbers = {0.4, 0, 0.0625, 0.5, 2, 7, 8, 9}, .stage = 7}};
    int context = 77;
    struct stoc_image_request request = {.width = 100, .height = 100, .channels = 3, .step_count = 4, .steps = steps,
                                         .draw = next_number, .context = &context};
    struct stoc_image_augment p[9];
    uint32_t count;
    numbers_left = numbers;
    EQUAL(stoc_image_plan(worker, &request, p, &count), 0);
    EQUAL(numbers_left - numbers, sizeof numbers / sizeof *numbers);
    EQUAL(drawn_for[0], 5);
    EQUAL(drawn_for[2], 5);
    EQUAL(drawn_for[7], 6);
    EQUAL(count, 1);
    EQUAL(p->box_width, 71);
    EQUAL(p->box_height, 71);
    EQUAL(p->box_y, 7);  /* 0.25 of 30 places */
    EQUAL(p->box_x, 22);
    EQUAL(p->flip, 1);
    EQUAL(p->adjust[0], STOC_IMAGE_BRIGHTNESS);
    EQUAL(p->adjust[1], STOC_IMAGE_SATURATION);
    CHECK(p->factor[0] == 1 && p->factor[1] == 1.25);
    EQUAL(p->erase_width, 10);
    EQUAL(p->erase_height, 10);
    EQUAL(p->erase_seed, UINT64_C(1) << 52);
    /* sides beyond an int64_t fit nowhere: all ten tries draw, and no box is erased */
    static const double zeros[24] = {0};
    const struct stoc_image_step huge = {.kind = STOC_IMAGE_RANDOM_ERASING, .numbers = {1, 1e300, 1e300, 1, 1}};
    request.steps = &huge;
    request.step_count = 1;
    numbers_left = zeros;
    EQUAL(stoc_image_plan(worker, &request, p, &count), 0);
    EQUAL(numbers_left - zeros, 21);
    EQUAL(count, 0);
}

static double odd_number(void *context, uint64_t stage)
{
    static const double numbers[] = {0, -1, 1, 2, 1e300, -1e300, NAN, INFINITY, 0.5, 0.999999999999};
    (void)context;
    (void)stage;
    return numbers[below(sizeof numbers / sizeof *numbers)];
}

/* Whatever the steps and the random numbers are, nothing is written after 2 * step_count + 1 passes, and passes over bytes
 * touch nothing outside of the picture. */
TEST_IF(!FOR_RACES, plans_of_anything)
{
    static const double numbers[] = {0, 1, -1, 0.5, 1e-300, 1e300, -1e300, NAN, INFINITY, -INFINITY};
    static const uint32_t sides[] = {0, 1, 2, SIDE, SIDE, 100, 65500, 65501, INT32_MAX, UINT32_MAX};
    static const int32_t integers[] = {0, 1, 2, 3, -1, -2, 70000, INT32_MAX, INT32_MIN, 256};
    uint8_t pixels[PICTURE] = {0};
    int done = 0;
    for (int turn = 0; turn < 20000; turn++) {
        struct stoc_image_step steps[8];
        uint32_t n = below(9), count = 0;
        for (uint32_t k = 0; k < n; k++) {
            random_step(&steps[k], below(100) ? 1 + below(9) : below(20));
            for (int field = (int)below(4); field > 0; field--)
                switch (below(3)) {
                case 0: *(below(2) ? &steps[k].height : &steps[k].width) = sides[below(10)]; break;
                case 1: steps[k].numbers[below(8)] = numbers[below(10)]; break;
                default: steps[k].integers[below(8)] = integers[below(10)]; break;
                }
        }
        bool small = turn % 2;
        struct stoc_image_request request = {
            .width = small ? SIDE : sides[below(10)], .height = small ? SIDE : sides[below(10)],
            .channels = small ? 3 : below(5), .layout = small ? STOC_IMAGE_HWC : below(3), .dtype = small ? 0 : below(5),
            .max_pixels = 40000, .step_count = n, .steps = steps, .draw = below(2) ? odd_number : NULL,
            .seed = (uint64_t)turn};
        size_t bytes = (2 * n + 1) * sizeof(struct stoc_image_augment);
        uint8_t *passes = guarded(bytes);
        int code = stoc_image_plan(worker, &request, (void *)passes, &count);
        CHECK(code == 0 || strlen(stoc_image_message(worker)) > 5);
        uint8_t *made;
        size_t size;
        if (code == 0 && small && do_passes(pixels, (void *)passes, count, &made, &size) == 0) {
            done++;
            release(made, size);
        }
        release(passes, bytes);
    }
    printf("%d of 10000 small pictures are done\n", done);
    CHECK(done > 500);
    struct stoc_image_request request = {.width = 1, .height = 1, .channels = 1};
    struct stoc_image_augment pass;
    uint32_t count = 9;
    EQUAL(stoc_image_plan(worker, &request, &pass, &count), 0);
    EQUAL(count, 0);
    EQUAL(stoc_image_plan(NULL, &request, &pass, &count), STOC_IMAGE_EINVAL);
    EQUAL(stoc_image_plan(worker, NULL, &pass, &count), STOC_IMAGE_EINVAL);
    EQUAL(stoc_image_plan(worker, &request, NULL, &count), STOC_IMAGE_EINVAL);
    EQUAL(stoc_image_plan(worker, &request, &pass, NULL), STOC_IMAGE_EINVAL);
#define REFUSED(change)                                                              \
    do {                                                                             \
        request = (struct stoc_image_request){.width = 1, .height = 1, .channels = 1}; \
        change;                                                                      \
        EQUAL(stoc_image_plan(worker, &request, &pass, &count), STOC_IMAGE_EINVAL);  \
    } while (0)
    REFUSED(request.width = 0);
    REFUSED(request.height = (1 << 30) + 1);
    REFUSED(request.channels = 2);
    REFUSED(request.layout = 2);
    REFUSED(request.dtype = 4);
    REFUSED(request.reserved = 1);
    REFUSED(request.step_count = 1);
    REFUSED(request.step_count = UINT32_MAX);
}

static void *work(void *context)
{
    struct stoc_image_pipeline *p = context;
    stoc_image_worker *w = stoc_image_worker_new();
    uint8_t first[PICTURE + 8], row[PICTURE + 8];
    EQUAL(stoc_image_follow(w, p), 0);
    for (int k = 0; k < 60; k++) {
        const void *own;
        size_t bytes;
        EQUAL(stoc_image_load(w, k % (int64_t)p->samples, &own, &bytes), 0);
        EQUAL(stoc_image_finish(w, 9, own, bytes, k ? row : first, 0), 0);
        CHECK(k == 0 || memcmp(row, first, PICTURE) == 0);
    }
    stoc_image_worker_free(w);
    return NULL;
}

/* They share the descriptor of a file with several samples. */
TEST(threads_follow_one_pipeline)
{
    struct file f = make_file(WIDTH, HEIGHT, BASELINE, 2, 2);
    struct stoc_image_step steps[] = {
        {.kind = STOC_IMAGE_RANDOM_RESIZED_CROP, .height = SIDE, .width = SIDE, .numbers = {0.1, 1, 0.75, 1.33}},
        {.kind = STOC_IMAGE_RANDOM_FLIP, .numbers = {0.5}}};
    for (int tar = 0; tar < 2; tar++) {
        no_files();
        tar ? add_tar("t.tar", &f, 700, 4) : (void)add_file("a.jpg", f.bytes, f.size, 1);
        struct stoc_image_pipeline p = fixed();
        p.stamps = tar ? stamps : NULL;
        p.descriptors = tar ? descriptors : NULL;
        p.steps = steps;
        p.step_count = 2;
        p.row_label_at = PICTURE;
        pthread_t threads[4];
        start_threads(threads, 4, work, &p);
        join_threads(threads, 4);
    }
    no_files();
    free(f.bytes);
}

TEST_IF(!FOR_RACES, arguments_that_are_wrong)
{
    no_files();
    struct file f = make_file(WIDTH, HEIGHT, BASELINE, 2, 2);
    add_file("a.jpg", f.bytes, f.size, 1);
    struct stoc_image_pipeline p = fixed();
    struct stoc_image_step step = {.kind = STOC_IMAGE_CENTER_CROP, .height = 1, .width = 1};
    uint8_t row[PICTURE];
    stoc_image_worker *fresh = stoc_image_worker_new();
    EQUAL(stoc_image_load(fresh, 0, &sample, &sample_bytes), STOC_IMAGE_EINVAL);
    EQUAL(stoc_image_finish(fresh, 0, row, 1, row, 0), STOC_IMAGE_EINVAL);
    stoc_image_worker_free(fresh);
    EQUAL(stoc_image_load(NULL, 0, &sample, &sample_bytes), STOC_IMAGE_EINVAL);
    EQUAL(stoc_image_finish(NULL, 0, row, 1, row, 0), STOC_IMAGE_EINVAL);
    EQUAL(stoc_image_follow(NULL, &p), STOC_IMAGE_EINVAL);
    EQUAL(stoc_image_follow(worker, NULL), STOC_IMAGE_EINVAL);
#define WRONG(change)                                             \
    do {                                                          \
        p = fixed();                                              \
        change;                                                   \
        EQUAL(stoc_image_follow(worker, &p), STOC_IMAGE_EINVAL);  \
        CHECK(strlen(stoc_image_message(worker)) > 5);            \
    } while (0)
    WRONG(p.struct_bytes--);
    WRONG(p.paths = NULL);
    WRONG(p.places = NULL);
    WRONG(p.sample_bytes = PICTURE);
    WRONG(p.decode.width = 0);
    WRONG(p.picture_width = 0);
    WRONG(p.encoded = 1);
    WRONG(p.row_dtype = 4);
    WRONG(p.step_count = 1);
    WRONG((p.step_count = 1, p.before_count = 2, p.steps = &step));
    p = extents(true);
    p.step_count = p.before_count = 1;
    p.steps = &step;
    EQUAL(stoc_image_follow(worker, &p), STOC_IMAGE_EINVAL);
    WRONG((p.step_count = p.before_count = 1, p.steps = &step, step.kind = STOC_IMAGE_RANDOM_CROP));
    WRONG((p.step_count = 1, p.steps = &step, step.kind = 10));
    WRONG((p.step_count = 1, p.steps = &step, step.kind = STOC_IMAGE_CENTER_CROP, step.width = 0));
    p = fixed();
    EQUAL(stoc_image_follow(worker, &p), 0);
    EQUAL(load(-1), STOC_IMAGE_EINVAL);
    EQUAL(load((int64_t)samples), STOC_IMAGE_EINVAL);
    p.decode.height--;
    EQUAL(load(0), STOC_IMAGE_EUNSUPPORTED);
    p.decode.height++;
    EQUAL(load(0), 0);
    EQUAL(stoc_image_finish(worker, 0, NULL, sample_bytes, row, 0), STOC_IMAGE_EINVAL);
    EQUAL(stoc_image_finish(worker, 0, sample, sample_bytes - 1, row, 0), STOC_IMAGE_EUNSUPPORTED);
    free(f.bytes);
}

void set_up(void)
{
    worker = stoc_image_worker_new();
}

void tear_down(void) { stoc_image_worker_free(worker); }

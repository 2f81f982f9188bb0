/*
 * image.c - the library for pictures: what holds for every picture, files that are damaged, arguments
 * that are wrong. python/tests/image compares its pictures with those of Pillow and torchvision.
 */
#include "files.h"

#include <ftw.h>

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
TEST_IF(!FOR_RACES, parts_are_those_of_the_whole)
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

/* Of a window in the middle, the decoder reads no row above or below it, and one block more on each side. */
TEST_IF(!FOR_RACES, rows_and_columns_outside_are_not_decoded)
{
#ifdef JPEG_INSIDE
    SKIP("the library has a libjpeg-turbo inside, whose calls nobody can count");
#endif
    uint8_t *dst = malloc(3 * 640 * 480);
    for (int kind = 0; kind < MANY_SCANS; kind++) {
        struct file f = make_file(640, 480, kind, 2, 2);
        pixels_read = 0;
        EQUAL(decode(&f, f.size, to(640, 480), dst), 0);
        EQUAL(pixels_read, 640 * 480);
        struct stoc_image_decode how = to(64, 48);
        how.fit = STOC_IMAGE_CROP;
        how.short_side = 480;
        pixels_read = 0;
        EQUAL(decode(&f, f.size, how, dst), 0);
        uint64_t most = kind == PROGRESSIVE ? 640 * (240 + 24 + 32) : (64 + 4 * 16) * (48 + 4 * 16);
        if (pixels_read > most)
            COMPLAIN("kind %d: %lu pixels are decoded, more than %lu", kind, pixels_read, most);
        free(f.bytes);
    }
    free(dst);
}

static bool known(int code) { return code <= 0 && (code >= STOC_IMAGE_EMEMORY || code == STOC_IMAGE_EKIND); }

/* A file that ends early is an error, if the rest has bits of the picture. So it is for a result that needs none of the
 * rows that are missing. */
TEST_IF(FOR_MEMORY, files_that_are_cut_off)
{
    static const int kinds[] = {BASELINE, PROGRESSIVE, RESTARTS, GREY, CMYK, SEPARATE, ARITHMETIC, PROGRESSIVE_ARITHMETIC};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        int kind = kinds[k];
        if (kind >= ARITHMETIC && !makes_arithmetic)
            continue;
        struct file f = make_file(61, 47, kind, 2, 2);
        uint8_t whole[61 * 47 * 3], part[61 * 47 * 3];
        EQUAL(decode(&f, f.size, to(61, 47), whole), 0);
        struct stoc_image_decode strip = to(61, 3);
        strip.fit = STOC_IMAGE_CROP;
        strip.short_side = 47;
        for (size_t n = 0; n <= f.size; n++) {
            unsigned char *cut = malloc(n ? n : 1);
            memcpy(cut, f.bytes, n);
            struct file c = {cut, n};
            int code = decode(&c, n, to(61, 47), part);
            if (!known(code) || (code == 0 && memcmp(part, whole, sizeof whole) != 0))
                COMPLAIN("kind %d, the first %zu of %lu bytes: %d", kind, n, f.size, code);
            if (code < 0 && !*stoc_image_message(worker))
                COMPLAIN("kind %d, the first %zu bytes: no message", kind, n);
            if (decode(&c, n, strip, part) != code)
                COMPLAIN("kind %d, the first %zu of %lu bytes: %d, but not for a strip of it", kind, n, f.size, code);
            free(cut);
        }
        free(f.bytes);
    }
}

/* Damaged files give errors or pictures. The sanitizer and the guards see what else happens. */
TEST_IF(FOR_MEMORY, files_that_are_damaged)
{
    const char *set = getenv("STOCACHED_TEST_FILES");
    int rounds = set ? atoi(set) : 500, pictures = 0;
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

/* ------------------------------------------------------------ files of others */

enum { MOST_FILES = 200, MOST_BYTES = 300000, OURS = 26 /* in the repository */, DEBIANS = 3 };

static struct file found[5 * MOST_FILES];
static size_t files, folder_end; /* how many of a folder may be found */
static size_t ours;              /* how many of the repository are found */
static size_t made_at;           /* where files begin that are made here */

static int find_file(const char *path, const struct stat *s, int type, struct FTW *f)
{
    (void)f;
    const char *dot = strrchr(path, '.');
    static const char *const names[] = {".jpg", ".jpeg", ".png", ".webp"};
    bool picture = false;
    for (size_t k = 0; type == FTW_F && dot && k < sizeof names / sizeof *names; k++)
        picture |= !strcasecmp(dot, names[k]);
    if (!picture || s->st_size < 100 || s->st_size > MOST_BYTES || files == folder_end)
        return files == folder_end;
    struct file *to = &found[files];
    int from = open(path, O_RDONLY | O_CLOEXEC);
    to->size = (unsigned long)s->st_size;
    to->bytes = malloc(to->size);
    files += from >= 0 && read(from, to->bytes, to->size) == (ssize_t)to->size;
    close(from);
    return 0;
}

/* Files of every kind that libjpeg writes. */
static void make_files(void)
{
    static const int sampling[][2] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}};
    uint64_t before = state;
    size_t begin = files;
    for (int kind = 0; kind < ALL_KINDS; kind++)
        for (int s = 0; s < 5; s++)
            if (kind != MANY_SCANS && (kind < ARITHMETIC || makes_arithmetic)) {
                struct file *f = &found[files++];
                *f = make_file(30 + (int)below(200), 30 + (int)below(200), kind, sampling[s][0], sampling[s][1]);
                uint8_t dst[3 * 31 * 31];
                EQUAL(decode(f, f->size, to(31, 31), dst), 0);
            }
    state = before;
    printf("%zu JPEG files made here: 4:4:4 to 4:1:1, progressive, with restarts, grey, CMYK, YCCK, with EXIF data%s\n",
           files - begin, makes_arithmetic ? ", with arithmetic coding" : "");
}

static void append(struct file *f, const void *bytes, size_t n)
{
    memcpy(f->bytes + f->size, bytes, n);
    f->size += n;
}

static void put_chunk(struct file *f, const char *name, const void *bytes, size_t n)
{
    append(f, (uint8_t[]){0, 0, (uint8_t)(n >> 8), (uint8_t)n}, 4);
    append(f, name, 4);
    append(f, bytes, n);
    append(f, "sums", 4); /* nobody looks at those behind the first data */
}

/* A PNG file as another one, but its data lie in small chunks, and at its end is a text that has an orientation. */
static struct file in_pieces(const struct file *f)
{
    static const char *const texts[] = {"zTXtRaw profile type exif\0\0\x78\x9c\x03", "tEXtRaw profile type exif\0\n\n\n4949",
                                        "iTXtXML:com.adobe.xmp\0\0\0\0\0tiff:Orientation=\"6\""};
    static const size_t bytes[] = {30, 33, 46};
    struct file made = {malloc(20 * f->size + 200), 0};
    size_t at = 8, text = below(3);
    append(&made, f->bytes, 8);
    for (size_t n; at < f->size; at += 12 + n) {
        const uint8_t *chunk = f->bytes + at;
        n = (size_t)chunk[2] << 8 | chunk[3];
        if (memcmp(chunk + 4, "IDAT", 4)) {
            append(&made, chunk, 12 + n);
            continue;
        }
        for (size_t done = 0, some; done < n; done += some) {
            size_t most = 1 + below(60);
            some = MIN(n - done, most);
            put_chunk(&made, "IDAT", chunk + 8 + done, some);
        }
    }
    made.size -= 12; /* IEND */
    put_chunk(&made, texts[text], texts[text] + 4, bytes[text] - 4);
    return made;
}

static void make_pieces(void)
{
    uint64_t before = state;
    size_t begin = files;
    for (size_t k = 0; k < ours; k++) /* which have right sizes */
        if (found[k].bytes[0] == 0x89)
            found[files++] = in_pieces(&found[k]);
    state = before;
    printf("%zu PNG files made here: in small chunks, with texts at the end\n", files - begin);
}

/* Files of other encoders: those of the repository, of a Debian package (tools/setup.sh c-tests), of the system. And
 * files that are made here, so that there are files of every kind on each machine. */
TEST_IF(!FOR_RACES, find_files)
{
    static char folders[1000] =
        "../source/decode/testdata:../.tools/images:/usr/share:/usr/local/go/src/image/testdata";
    const char *set = getenv("STOCACHED_TEST_PICTURES");
    if (set)
        snprintf(folders, sizeof folders, "%s", set);
    size_t at = 0;
    for (char *folder = strtok(folders, ":"); folder && at < 4; folder = strtok(NULL, ":"), at++) {
        size_t before = files;
        folder_end = files + MOST_FILES;
        nftw(folder, find_file, 20, FTW_PHYS);
        printf("%zu pictures in %s\n", files - before, folder);
        if (at == 0 && !set)
            ours = files;
        if (at == 0 && files < (set ? 1 : OURS))
            COMPLAIN("%s has fewer than %d; run this program in cimage/", folder, set ? 1 : OURS);
        if (at == 1 && !set && getenv("CI") && files - before < DEBIANS)
            COMPLAIN("%s has fewer than %d; remove it and run tools/setup.sh c-tests", folder, DEBIANS);
    }
    made_at = files;
    make_files();
    make_pieces();
}

/* PNG and WebP files that end early, each at the end of its memory: an error, or the picture. */
TEST_IF(FOR_MEMORY, small_files_that_are_cut_off)
{
    int tried = 0;
    for (size_t k = 0; k < files; k++) {
        const struct file *f = &found[k];
        struct stoc_image_info info;
        if (f->bytes[0] == 0xff || f->size > 3000 || stoc_image_read_info(worker, f->bytes, f->size, &info) ||
            info.width > 200 || info.height > 200)
            continue;
        size_t bytes = (size_t)3 * info.width * info.height;
        uint8_t *whole = guarded(bytes), *part = guarded(bytes);
        int right = decode(f, f->size, to(info.width, info.height), whole);
        for (size_t n = 0; right == 0 && n < f->size; n += 1 + below(3)) { /* others in each run */
            uint8_t *cut = guarded(n + 1) + 1;
            memcpy(cut, f->bytes, n);
            struct file c = {cut, n};
            int code = decode(&c, n, to(info.width, info.height), part);
            if (!known(code) || (code == 0 && info.orientation == 1 && memcmp(part, whole, bytes) != 0))
                COMPLAIN("file %zu, the first %zu of %lu bytes: %d", k, n, f->size, code);
            release(cut - 1, n + 1);
        }
        tried += right == 0;
        release(whole, bytes);
        release(part, bytes);
    }
    CHECK(tried >= 6 || getenv("STOCACHED_TEST_PICTURES"));
}

/* A place of a marker before the first scan, or 0. */
static size_t marker_of(const uint8_t *p, size_t n)
{
    size_t markers[40], k = 0;
    for (size_t at = 2; at + 4 <= n && p[at] == 0xff && k < 40; at += 2 + (size_t)(p[at + 2] << 8 | p[at + 3])) {
        markers[k++] = at;
        if (p[at + 1] == 0xda)
            break;
    }
    return k ? markers[below((uint32_t)k)] : 0;
}

/* Changes a file of n bytes in a buffer of MOST_BYTES as an attacker would. Returns its new size. */
static size_t damage(uint8_t *p, size_t n)
{
    static const uint8_t kinds[] = {0xc0, 0xc1, 0xc2, 0xc4, 0xc8, 0xc9, 0xcc, 0xd0, 0xd7, 0xd8, 0xd9, 0xda,
                                    0xdb, 0xdc, 0xdd, 0xe0, 0xe1, 0xee, 0xfe, 0xff, 0x00, 0x01};
    static const uint16_t numbers[] = {0, 1, 2, 3, 255, 256, 32767, 32768, 65500, 65535};
    if (n < 16)
        return n;
    uint16_t number = below(2) ? numbers[below(10)] : (uint16_t)draw();
    size_t at = marker_of(p, n), any = below((uint32_t)n - 8), part = 1 + below(MIN(64, (uint32_t)(n - any) - 4));
    if (at == 0 || at + 10 > n)
        at = 2;
    switch (below(9)) {
    case 0: /* a byte of a header */
        p[MIN(at + below(70), n - 1)] = (uint8_t)draw();
        break;
    case 1:
        p[any] ^= (uint8_t)(1u << below(8));
        break;
    case 2: /* the length of a marker */
        p[at + 2] = (uint8_t)(number >> 8), p[at + 3] = (uint8_t)number;
        break;
    case 3: /* a number after it, such as a height, a width or an interval */
        at += 4 + below(6);
        p[MIN(at, n - 2)] = (uint8_t)(number >> 8), p[MIN(at, n - 2) + 1] = (uint8_t)number;
        break;
    case 4:
        p[any] = 0xff, p[any + 1] = kinds[below(sizeof kinds)];
        break;
    case 5: /* a marker of another kind */
        p[at + 1] = kinds[below(sizeof kinds)];
        break;
    case 6:
        memmove(p + any, p + below((uint32_t)(n - part)), part);
        break;
    case 7: /* a part is missing */
        memmove(p + any, p + any + part, n - any - part);
        return n - part;
    default: /* the end of another file */
        if (below(3) == 0)
            return any;
        const struct file *other = &found[below((uint32_t)files)];
        size_t from = below((uint32_t)other->size), rest = MIN(other->size - from, MOST_BYTES - any);
        memcpy(p + any, other->bytes + from, rest);
        return any + rest;
    }
    return n;
}

static struct stoc_image_decode any_decode(void)
{
    struct stoc_image_decode how = to(1 + below(80), 1 + below(80));
    how.fit = (uint8_t)below(3);
    how.filter = (uint8_t)below(2);
    how.fast = (uint8_t)below(2);
    how.layout = (uint8_t)below(2);
    how.max_pixels = 1000000;
    return how;
}

TEST_IF(FOR_MEMORY, files_of_others_that_are_damaged)
{
    const char *set = getenv("STOCACHED_TEST_FILES");
    int rounds = set ? atoi(set) : 500, pictures = 0;
    uint8_t *p = malloc(MOST_BYTES), want[3 * 31 * 31], got[sizeof want];
    EQUAL(decode(&found[0], found[0].size, to(31, 31), want), 0);
    for (int k = 0; k < rounds; k++) {
        const struct file *f = &found[below((uint32_t)files)];
        size_t n = f->size;
        memcpy(p, f->bytes, n);
        for (uint32_t changes = 1 + below(4); changes--;)
            n = damage(p, n);
        struct file bad = {guarded(n), n}; /* libjpeg, which has no sanitizer, reads to the end and not further */
        memcpy(bad.bytes, p, n);
        struct stoc_image_decode how = any_decode();
        size_t out = (size_t)3 * how.width * how.height;
        uint8_t *dst = guarded(out);
        struct stoc_image_info info;
        int code = decode(&bad, n, how, dst), read = stoc_image_read_info(worker, bad.bytes, n, &info);
        if (!known(code) || !known(read) || (code == 0 && read != 0))
            COMPLAIN("round %d: %d, %d", k, code, read);
        if (code == 0 && (uint64_t)info.width * info.height > how.max_pixels)
            COMPLAIN("round %d: %u x %u pixels are decoded", k, info.width, info.height);
        pictures += code == 0;
        release(dst, out);
        release(bad.bytes, n);
        if (k % 100 == 0) { /* the worker is as before */
            EQUAL(decode(&found[0], found[0].size, to(31, 31), got), 0);
            CHECK(memcmp(want, got, sizeof want) == 0);
        }
    }
    free(p);
    CHECK(pictures > 0 && pictures < rounds);
}

struct changing {
    uint8_t *bytes;
    const struct file *file;
    size_t place; /* where most bytes change */
    atomic_bool end;
};

/* Changes bytes, most of them in one place. The file is right for most of the time, or no decoder gets far. */
static void *change(void *context)
{
    struct changing *c = context;
    volatile uint8_t *p = c->bytes;
    for (uint64_t z = 1; !atomic_load(&c->end); z = z * 6364136223846793005u + 1442695040888963407u) {
        size_t n = c->file->size, at = (c->place + (size_t)(z >> 33) % (z >> 19 & 7 ? 16 : n)) % n;
        p[at] = (uint8_t)(z >> 24);
        for (int wait = (int)(z >> 40 & 255); wait--;)
            p[at] = p[at];
        if (z >> 48 & 63)
            p[at] = c->file->bytes[at];
        else
            for (size_t k = 0; k < n; k++)
                p[k] = c->file->bytes[k];
    }
    return NULL;
}

static struct {
    int after; /* at this allocation; 0: never */
    volatile uint8_t *place;
    uint8_t value;
} changes_once;

/* Takes the place of libc's function, which the library calls between its looks at a file. */
void *aligned_alloc(size_t alignment, size_t n)
{
    static void *(*_Atomic real)(size_t, size_t);
    if (!real) /* threads may come here at the same time */
        real = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "aligned_alloc");
    if (changes_once.after && --changes_once.after == 0)
        *changes_once.place = changes_once.value;
    return real(alignment, n);
}

/* Bytes of chunks, most of them of sizes, change between two looks at them. A new worker allocates. */
TEST_IF(FOR_MEMORY, a_byte_that_changes_at_an_allocation)
{
    stoc_image_worker *before = worker;
    int pictures = 0, tries = 0;
    for (size_t k = made_at; k < files; k++) {
        const struct file *f = &found[k];
        struct file c = {guarded(f->size), f->size};
        memcpy(c.bytes, f->bytes, f->size);
        for (size_t at = 8; f->bytes[0] == 0x89 && at + 8 < f->size; at++) {
            if (memcmp(f->bytes + at + 1 + below(4), "IDAT", 4) && below(20))
                continue;
            uint8_t dst[3 * 8 * 8];
            changes_once.place = c.bytes + at;
            changes_once.value = (uint8_t)draw();
            changes_once.after = 1 + (int)below(3);
            worker = stoc_image_worker_new();
            int code = decode(&c, c.size, to(8, 8), dst);
            if (!known(code))
                COMPLAIN("file %zu, byte %zu: %d", k, at, code);
            pictures += code == 0;
            tries++;
            stoc_image_worker_free(worker);
            c.bytes[at] = f->bytes[at];
        }
        release(c.bytes, f->size);
    }
    worker = before;
    changes_once.after = 0;
    CHECK(pictures > 0 && pictures < tries);
}

/* The bytes of a file must not change. If they do all the same, decoders read and write nothing else. */
TEST_IF(FOR_MEMORY, files_that_change)
{
    const char *set = getenv("STOCACHED_TEST_FILES");
    int rounds = set ? atoi(set) : 1500, pictures = 0, kinds[3] = {0};
    for (int k = 0; k < rounds;) {
        size_t from = below(2) ? 0 : made_at;
        const struct file *f = &found[from + below((uint32_t)(files - from))];
        int kind = f->bytes[0] == 0xff ? 0 : f->bytes[0] == 0x89 ? 1 : 2;
        if (kinds[kind] > rounds / 3) /* as many of each */
            continue;
        kinds[kind] += 100;
        struct changing c = {guarded(f->size), f, below((uint32_t)(below(2) ? MIN(f->size, 700) : f->size)), false};
        struct file changing = {c.bytes, f->size};
        memcpy(c.bytes, f->bytes, f->size);
        pthread_t thread;
        REQUIRE(pthread_create(&thread, NULL, change, &c) == 0);
        for (int n = 0; n < 100; n++, k++) {
            struct stoc_image_decode how = any_decode();
            size_t out = (size_t)3 * how.width * how.height;
            uint8_t *dst = guarded(out);
            int code = decode(&changing, f->size, how, dst);
            if (!known(code))
                COMPLAIN("round %d: %d", k, code);
            pictures += code == 0;
            release(dst, out);
        }
        atomic_store(&c.end, true);
        pthread_join(thread, NULL);
        release(c.bytes, f->size);
    }
    CHECK(pictures > 0 && pictures < rounds);
}

/* In the library, but not exported: the programs that have its sources in them call it. */
extern uint32_t exif_orientation(const uint8_t *data, size_t bytes) __attribute__((weak));

/* EXIF data of any content and length: nothing after them is read. */
TEST_IF(FOR_MEMORY, exif_data_that_lie)
{
    int turned = 0;
    for (int k = 0; k < 20000; k++) {
        size_t n = below(120);
        uint8_t *p = guarded(n), head[] = "Exif\0\0II*\0\x08\0\0\0\x03\0";
        for (size_t at = 0; at < n; at++)
            p[at] = (uint8_t)(below(2) ? below(4) : draw());
        if (below(2))
            memcpy(head + 6, "MM\0*\0\0\0\x08\0\x03", 10);
        if (below(2))
            head[6 + below(10)] = (uint8_t)draw(); /* the order of bytes, where the directory is, and its length */
        memcpy(p, head, MIN(n, sizeof head - 1));
        for (size_t at = 16; at + 12 <= n; at += 12)
            if (below(3) == 0)
                memcpy(p + at, head[6] == 'I' ? "\x12\1\3\0\1\0\0" : "\1\x12\0\3\0\0\0\1", 8); /* the tag, its type and count */
        uint32_t o = exif_orientation(p, n);
        CHECK(o <= 8);
        turned += o > 1;
        release(p, n);
    }
    CHECK(turned > 100);
}

/* A file that claims a size that it has not is refused before memory is taken for it. */
TEST_IF(!FOR_RACES, bombs)
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
    struct file f = make_file(2, 20000, BASELINE, 1, 1); /* a file of few pixels, as is the result */
    static uint8_t wide[3 * 20000];
    EQUAL(decode(&f, f.size, to(20000, 1), wide), STOC_IMAGE_ETOOLARGE);
    CHECK(strstr(stoc_image_message(worker), "between the two passes"));
    struct stoc_image_picture p = {wide, 1, 20000, 1, STOC_IMAGE_CHW};
    struct stoc_image_augment how = {.box_width = 1, .box_height = 20000, .resized_width = 20000, .resized_height = 1,
                                     .width = 20000, .height = 1, .divisor = 1};
    EQUAL(stoc_image_augment(worker, &p, &how, wide, sizeof wide), STOC_IMAGE_ETOOLARGE);
    EQUAL(decode(&f, f.size, to(60000, 60000), wide), STOC_IMAGE_ETOOLARGE);
    free(f.bytes);
    f = make_file(64, 64, MANY_SCANS, 1, 1);
    uint8_t dst[3 * 8 * 8];
    EQUAL(decode(&f, f.size, to(8, 8), dst), STOC_IMAGE_ETOOLARGE);
    CHECK(strstr(stoc_image_message(worker), "scans"));
    free(f.bytes);
}

TEST_IF(!FOR_RACES, files_that_are_no_jpeg)
{
    static const struct {
        const char *bytes, *want;
        size_t size;
    } cases[] = {{"", "", 0},
                 {"\x89PNG\r\n\x1a\n", "cut off", 8},
                 {"\xff\xd8\xff\xd9", "", 4},
                 {"hello", "not a JPEG, PNG or WebP file", 5}};
    uint8_t dst[3 * 8 * 8];
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct file f = {(unsigned char *)cases[k].bytes, cases[k].size};
        struct stoc_image_info info;
        int code = k == 0 || k == 3 ? STOC_IMAGE_EKIND : STOC_IMAGE_EFORMAT;
        EQUAL(stoc_image_read_info(worker, f.bytes, f.size, &info), code);
        EQUAL(decode(&f, f.size, to(8, 8), dst), code);
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

/* What the library must find: 1 for AVX2, 2 for AVX-512. */
static int vectors_of_the_processor(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni")
                   ? 2
                   : 1;
#endif
    return 0;
}

TEST_IF(!FOR_RACES, the_best_vectors_are_used)
{
    static const char *const names[] = {"AVX2", "AVX-512"};
    int best = vectors_of_the_processor();
    EQUAL(stoc_image_vectors(worker), best);
    for (int k = best; k < 2; k++)
        printf("SKIPPED [1] %s: this processor has no %s\n", __func__, names[k]);
}

/* Calls make with a result of n bytes for each kind of vectors. */
#define AGREE(n, make, ...)                                                                       \
    do {                                                                                          \
        uint8_t *one = guarded(n), *two = guarded(n), *dst = one;                                 \
        EQUAL(make, 0);                                                                           \
        dst = two;                                                                                \
        for (int vectors = 0; vectors < best; vectors++) {                                        \
            stoc_image_use_vectors(worker, vectors);                                              \
            EQUAL(stoc_image_vectors(worker), vectors);                                           \
            EQUAL(make, 0);                                                                       \
            if (memcmp(one, two, n) != 0)                                                         \
                COMPLAIN(__VA_ARGS__);                                                            \
        }                                                                                         \
        stoc_image_use_vectors(worker, best);                                                     \
        release(one, n);                                                                          \
        release(two, n);                                                                          \
    } while (0)

TEST_IF(!FOR_RACES, vectors_and_plain_code_agree)
{
    int best = stoc_image_vectors(worker);
    for (int k = 0; k < 1500; k++) {
        struct stoc_image_picture p = picture(1 + below(90), 1 + below(90), below(4) ? 3 : 1, below(2));
        struct stoc_image_augment how = any(&p);
        size_t n = size_of(&p, &how);
        AGREE(n, stoc_image_augment(worker, &p, &how, dst, n),
              "round %d, vectors %d: %u x %u x %u, layout %u, dtype %u, filter %u", k, vectors, p.channels, p.height,
              p.width, p.layout, how.dtype, how.filter);
        release_picture(&p);
    }
}

/* The same of decodes. */
TEST_IF(!FOR_RACES, vectors_and_plain_code_decode_alike)
{
    int best = stoc_image_vectors(worker);
    for (int k = 0; k < 150; k++) {
        struct file f = make_file(1 + (int)below(150), 1 + (int)below(150), k % MANY_SCANS, 1 + k % 2, 1 + k / 2 % 2);
        for (int turn = 0; turn < 8; turn++) {
            struct stoc_image_decode how = any_decode();
            size_t n = (size_t)3 * how.width * how.height;
            AGREE(n, decode(&f, f.size, how, dst), "file %d, vectors %d: to %u x %u, fit %u, layout %u, filter %u", k,
                  vectors, how.height, how.width, how.fit, how.layout, how.filter);
        }
        free(f.bytes);
    }
    int pngs = 0;
    for (size_t k = 0; k < files; k++) {
        const struct file *f = &found[k];
        struct stoc_image_info info;
        uint8_t small[3];
        if (f->bytes[0] != 0x89 || decode(f, f->size, to(1, 1), small) ||
            stoc_image_read_info(worker, f->bytes, f->size, &info))
            continue;
        size_t n = (size_t)3 * info.width * info.height;
        AGREE(n, decode(f, f->size, to(info.width, info.height), dst), "PNG file %zu, vectors %d", k, vectors);
        pngs++;
    }
    CHECK(pngs >= 6 || getenv("STOCACHED_TEST_PICTURES"));
}

/* The number of the decoder's pixels depends on the decoder alone. */
TEST_IF(!FOR_RACES, the_number_of_pixels)
{
    EQUAL(stoc_image_pixels(NULL), 0);
    uint64_t number = stoc_image_pixels(worker);
    CHECK(number != 0);
    int best = stoc_image_vectors(worker);
    for (int vectors = best; vectors >= 0; vectors--) {
        stoc_image_use_vectors(worker, vectors);
        CHECK(stoc_image_pixels(worker) == number);
    }
    stoc_image_use_vectors(worker, best);
}

/* Deflate without a header: all of it, of exactly so many bytes. */
TEST_IF(!FOR_RACES, inflate_checks_the_size)
{
    static const uint8_t stored[] = {1, 3, 0, 0xfc, 0xff, 'a', 'b', 'c'};
    char text[4] = "";
    EQUAL(stoc_image_inflate(stored, sizeof stored, text, 3), 0x352441c2);
    CHECK(!memcmp(text, "abc", 4));
    EQUAL(stoc_image_inflate(stored, sizeof stored, text, 2), STOC_IMAGE_EFORMAT);
    EQUAL(stoc_image_inflate(stored, sizeof stored, text, 4), STOC_IMAGE_EFORMAT);
    EQUAL(stoc_image_inflate(stored, sizeof stored - 1, text, 3), STOC_IMAGE_EFORMAT);
}

/* Large results do not go through the processor's cache, if they are aligned. */
TEST_IF(!FOR_RACES, large_results_agree)
{
    struct stoc_image_picture p = picture(300, 260, 3, STOC_IMAGE_CHW);
    struct stoc_image_augment how = {.box_width = 300, .box_height = 260, .resized_width = 224, .resized_height = 224,
                                     .width = 224, .height = 224, .dtype = STOC_IMAGE_FLOAT32, .divisor = 255,
                                     .mean = {0.485f, 0.456f, 0.406f}, .std = {0.229f, 0.224f, 0.225f},
                                     .erase = STOC_IMAGE_ERASE_VALUE, .erase_x = 9, .erase_y = 8, .erase_width = 70,
                                     .erase_height = 60, .erase_value = {7, 8, 9}};
    size_t n = size_of(&p, &how);
    uint8_t *one = aligned_alloc(64, n + 64), *two = aligned_alloc(64, n + 64);
    int best = stoc_image_vectors(worker);
    for (size_t at = 0; at <= 32; at += 4) {
        EQUAL(stoc_image_augment(worker, &p, &how, one + at, n), 0);
        stoc_image_use_vectors(worker, 0);
        EQUAL(stoc_image_augment(worker, &p, &how, two + at, n), 0);
        stoc_image_use_vectors(worker, best);
        EQUAL(memcmp(one + at, two + at, n), 0);
    }
    free(one);
    free(two);
    release_picture(&p);
}

/* A worker keeps the weights of the last sizes. They are moved to the box, so equal sizes at another place, or flipped,
 * must not use them as they are. */
TEST_IF(!FOR_RACES, weights_are_kept_for_equal_arguments_alone)
{
    struct stoc_image_picture p = picture(90, 80, 3, STOC_IMAGE_CHW);
    struct stoc_image_augment how = {.box_width = 40, .box_height = 30, .resized_width = 24, .resized_height = 20,
                                     .width = 16, .height = 12, .divisor = 1, .std = {1, 1, 1}};
    size_t n = size_of(&p, &how);
    uint8_t *kept = malloc(n), *fresh = malloc(n);
    for (int k = 0; k < 400; k++) {
        if (below(2))
            how.box_x = (int32_t)below(51), how.box_y = (int32_t)below(51);
        if (below(4) == 0)
            how.flip ^= 1;
        if (below(4) == 0)
            how.window_x = below(9), how.window_y = below(9);
        if (below(8) == 0)
            how.filter ^= STOC_IMAGE_BICUBIC;
        stoc_image_worker *other = stoc_image_worker_new();
        EQUAL(stoc_image_augment(worker, &p, &how, kept, n), 0);
        EQUAL(stoc_image_augment(other, &p, &how, fresh, n), 0);
        stoc_image_worker_free(other);
        if (memcmp(kept, fresh, n) != 0)
            COMPLAIN("round %d: box at %d, %d, flip %u, filter %u", k, how.box_x, how.box_y, how.flip, how.filter);
    }
    free(kept), free(fresh);
    release_picture(&p);
}

TEST_IF(!FOR_RACES, layouts_agree)
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
TEST_IF(!FOR_RACES, what_a_resize_keeps)
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

TEST(threads_have_their_own_workers)
{
    struct stoc_image_picture p = picture(83, 71, 3, STOC_IMAGE_HWC);
    pthread_t threads[6];
    start_threads(threads, 6, use_a_worker, &p);
    EQUAL(join_threads(threads, 6), 0);
    release_picture(&p);
}

TEST_IF(!FOR_RACES, where_a_picture_goes)
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
    struct stoc_image_target target, wanted = {52, 30, 0, 0, 52, 30, 0, 0};
    struct stoc_image_decode whole = {.fit = STOC_IMAGE_CROP, .short_side = 30, .max_pixels = 52 * 30};
    EQUAL(stoc_image_target(worker, 70, 40, &whole, &target), STOC_IMAGE_ETOOLARGE); /* the file is */
    EQUAL(stoc_image_target(worker, 49, 28, &whole, &target), 0);
    EQUAL(memcmp(&target, &wanted, sizeof target), 0);
    whole.max_pixels--;
    EQUAL(stoc_image_target(worker, 49, 28, &whole, &target), STOC_IMAGE_ETOOLARGE);
    CHECK(strstr(stoc_image_message(worker), "49 x 28 with short_side=30 is 52 x 30: 1560 pixels; max_pixels is 1559"));
    EQUAL(stoc_image_target(worker, 0, 28, &whole, &target), STOC_IMAGE_EINVAL);
    EQUAL(stoc_image_target(worker, 3000, 1, &whole, &target), STOC_IMAGE_ETOOLARGE);
    whole.short_side = 0;
    EQUAL(stoc_image_target(worker, 50, 5, &whole, &target), 0);
    CHECK(target.width == 50 && target.height == 5);
    whole.height = 1;
    EQUAL(stoc_image_target(worker, 50, 5, &whole, &target), STOC_IMAGE_EINVAL);
}

/* A JPEG of a kind that libjpeg-turbo only knows by name: differential, of the standard's hierarchical mode. */
TEST_IF(!FOR_RACES, kinds_that_are_not_decoded)
{
    struct file f = make_file(40, 20, BASELINE, 2, 2);
    struct stoc_image_info info;
    uint8_t dst[3 * 8 * 8];
    size_t at = 0;
    while (at + 1 < f.size && (f.bytes[at] != 0xff || f.bytes[at + 1] != 0xc0))
        at++;
    f.bytes[at + 1] = 0xc5;
    EQUAL(stoc_image_read_info(worker, f.bytes, f.size, &info), STOC_IMAGE_EUNSUPPORTED);
    EQUAL(decode(&f, f.size, to(8, 8), dst), STOC_IMAGE_EUNSUPPORTED);
    free(f.bytes);
}

TEST_IF(!FOR_RACES, arguments_that_are_wrong)
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
    REFUSED((how.adjust[0] = 1, how.factor[0] = 2e6), "below 1e6");
    REFUSED((how.adjust[3] = 4, how.factor[3] = 0.6f), "adjustment 4");
    REFUSED(how.adjust[1] = 5, "adjustment 5");
    REFUSED(how.std[1] = 0, "std is not 0");
    REFUSED(how.std[2] = NAN, "both are finite");
    REFUSED(how.mean[2] = INFINITY, "both are finite");
    REFUSED(how.divisor = 2, "divisor");
    REFUSED((how.dtype = 0, how.erase = 2), "normal numbers");
    REFUSED((how.dtype = 0, how.erase = 1, how.erase_value[0] = 256), "below 256");
    REFUSED((how.dtype = 0, how.erase = 1, how.erase_value[0] = -1), "0 or more");
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
    struct stoc_image_info info;
    EQUAL(stoc_image_read_info(NULL, f.bytes, f.size, &info), STOC_IMAGE_EINVAL);
    EQUAL(stoc_image_read_info(worker, NULL, f.size, &info), STOC_IMAGE_EINVAL);
    EQUAL(stoc_image_read_info(worker, f.bytes, f.size, NULL), STOC_IMAGE_EINVAL);
    EQUAL(stoc_image_augment_file(NULL, f.bytes, f.size, &fine, &good, dst, sizeof dst), STOC_IMAGE_EINVAL);
    EQUAL(stoc_image_augment_file(worker, NULL, f.size, &fine, &good, dst, sizeof dst), STOC_IMAGE_EINVAL);
    EQUAL(stoc_image_augment_file(worker, f.bytes, f.size, NULL, &good, dst, sizeof dst), STOC_IMAGE_EINVAL);
    EQUAL(stoc_image_augment_file(worker, f.bytes, f.size, &fine, NULL, dst, sizeof dst), STOC_IMAGE_EINVAL);
    EQUAL(stoc_image_augment_file(worker, f.bytes, f.size, &fine, &good, NULL, sizeof dst), STOC_IMAGE_EINVAL);
    fine.width = fine.height = 0;
    how = good;
    how.box_width = 0;
    EQUAL(stoc_image_augment_file(worker, f.bytes, f.size, &fine, &how, dst, sizeof dst), STOC_IMAGE_EINVAL);
    EQUAL(stoc_image_augment_file(worker, f.bytes, f.size, &fine, &good, dst, sizeof dst - 1), STOC_IMAGE_EINVAL);
    fine.layout = 2;
    EQUAL(stoc_image_augment_file(worker, f.bytes, f.size, &fine, &good, dst, sizeof dst), STOC_IMAGE_EINVAL);
    free(f.bytes);
    stoc_image_worker_free(NULL);
    CHECK(*stoc_image_message(NULL));
    EQUAL(stoc_image_abi_version(), STOC_IMAGE_ABI_VERSION);
}

void set_up(void)
{
    worker = stoc_image_worker_new();
    if (getenv("STOCACHED_TEST_SEED"))
        state = strtoull(getenv("STOCACHED_TEST_SEED"), NULL, 10);
    printf("STOCACHED_TEST_SEED=%lu\n", state);
}

void tear_down(void) { stoc_image_worker_free(worker); }

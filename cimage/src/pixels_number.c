/* stoc_image_pixels: which pixels the decoders make, as a number.
 *
 * Versions of libjpeg-turbo differ in how they round, sample up and smooth, and those of libwebp might. The library
 * cannot ask for the version that runs: the API of libjpeg has none. So it decodes files of each kind, and hashes their
 * pixels. Files of JPEG are written here, because an encoder of libjpeg-turbo may differ as well. PNG files have one
 * right answer. */
#include "image.h"

enum {
    SIDE = 45, /* no multiple of a block: edges are filled */
    MOST = 65536,
    STEP = 8, /* step of quantisation */
    DC_SYMBOLS = 12,
    AC_SYMBOLS = 162
};

/* A file that is being written. Bytes that do not fit are not written. */
struct writer {
    uint8_t bytes[MOST];
    size_t size;
    uint32_t bits, count; /* bits that are no byte yet */
    uint64_t random;
};

struct kind {
    uint8_t components, across, down; /* pixels of chroma for one of luma */
    bool progressive; /* and only the mean of each block, so the decoder smooths */
};

static void put(struct writer *f, const uint8_t *bytes, size_t n)
{
    for (size_t k = 0; k < n && f->size < MOST; k++)
        f->bytes[f->size++] = bytes[k];
}

static void put_byte(struct writer *f, unsigned value) { put(f, (uint8_t[]){(uint8_t)value}, 1); }

static void put_marker(struct writer *f, unsigned marker, unsigned bytes)
{
    put(f, (uint8_t[]){0xff, (uint8_t)marker, 0, (uint8_t)(bytes + 2)}, 4);
}

static void put_bits(struct writer *f, uint32_t bits, uint32_t n)
{
    f->bits = f->bits << n | (bits & ((1u << n) - 1));
    for (f->count += n; f->count >= 8; f->count -= 8) {
        unsigned byte = f->bits >> (f->count - 8) & 0xff;
        put_byte(f, byte);
        if (byte == 0xff)
            put_byte(f, 0);
    }
}

/* A number from 0 to below - 1, of a simple series (Knuth's MMIX). */
static uint32_t some(struct writer *f, uint32_t below)
{
    f->random = f->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(f->random >> 33) % below;
}

/* All symbols of a table have codes of the same length, in this order: all runs of one size, then the next size. */
static uint32_t code_of(uint32_t run, uint32_t size) { return size ? 2 + 16 * (size - 1) + run : run ? 1 : 0; }

static void put_value(struct writer *f, int value, uint32_t size)
{
    put_bits(f, (uint32_t)(value < 0 ? value - 1 : value), size);
}

static uint32_t size_of(int value)
{
    uint32_t size = 0;
    for (unsigned left = (unsigned)(value < 0 ? -value : value); left; left >>= 1)
        size++;
    return size;
}

static void put_block(struct writer *f, int *last, bool mean_only)
{
    int mean = (int)some(f, 201) - 100, change = mean - *last; /* some pixels are beyond 0 and 255 */
    *last = mean;
    put_bits(f, size_of(change), 4);
    put_value(f, change, size_of(change));
    uint32_t run = 0;
    for (int k = 1; k < 64 && !mean_only; k++, run++) {
        int value = some(f, 4) ? 0 : (int)some(f, 31) - 15;
        if (!value)
            continue;
        for (; run > 15; run -= 16)
            put_bits(f, code_of(15, 0), 8);
        put_bits(f, code_of(run, size_of(value)), 8);
        put_value(f, value, size_of(value));
        run = (uint32_t)-1;
    }
    if (run && !mean_only)
        put_bits(f, code_of(0, 0), 8);
}

static void put_tables(struct writer *f)
{
    put_marker(f, 0xdb, 65);
    put_byte(f, 0);
    for (int k = 0; k < 64; k++)
        put_byte(f, STEP);
    put_marker(f, 0xc4, 1 + 16 + DC_SYMBOLS);
    put(f, (uint8_t[17]){0x00, 0, 0, 0, DC_SYMBOLS}, 17);
    for (unsigned k = 0; k < DC_SYMBOLS; k++)
        put_byte(f, k);
    put_marker(f, 0xc4, 1 + 16 + AC_SYMBOLS);
    put(f, (uint8_t[17]){0x10, 0, 0, 0, 0, 0, 0, 0, AC_SYMBOLS}, 17);
    put(f, (uint8_t[]){0x00, 0xf0}, 2);
    for (unsigned size = 1; size <= 10; size++)
        for (unsigned run = 0; run < 16; run++)
            put_byte(f, run << 4 | size);
}

static void put_file(struct writer *f, struct kind kind)
{
    unsigned n = kind.components;
    put(f, (uint8_t[]){0xff, 0xd8}, 2);
    put_tables(f);
    put_marker(f, kind.progressive ? 0xc2 : 0xc0, 6 + 3 * n);
    put(f, (uint8_t[]){8, 0, SIDE, 0, SIDE, (uint8_t)n}, 6);
    for (unsigned c = 0; c < n; c++) /* one component alone has its blocks in rows */
        put(f, (uint8_t[]){(uint8_t)(c + 1), (uint8_t)(c || n == 1 ? 0x11 : kind.across << 4 | kind.down), 0}, 3);
    put_marker(f, 0xda, 4 + 2 * n);
    put_byte(f, n);
    for (unsigned c = 0; c < n; c++)
        put(f, (uint8_t[]){(uint8_t)(c + 1), 0}, 2);
    put(f, (uint8_t[]){0, kind.progressive ? 0 : 63, 0}, 3);
    int last[3] = {0};
    unsigned wide = (SIDE + 8u * kind.across - 1) / (8u * kind.across), high = (SIDE + 8u * kind.down - 1) / (8u * kind.down);
    for (unsigned unit = 0; unit < wide * high; unit++)
        for (unsigned c = 0; c < n; c++)
            for (unsigned block = 0; block < (c ? 1u : (unsigned)kind.across * kind.down); block++)
                put_block(f, &last[c], kind.progressive);
    put_bits(f, 0x7f, 7); /* completes the last byte */
    put(f, (uint8_t[]){0xff, 0xd9}, 2);
}

static uint64_t hash(uint64_t seen, const uint8_t *bytes, size_t n) /* FNV-1a */
{
    for (size_t k = 0; k < n; k++)
        seen = (seen ^ bytes[k]) * 0x100000001b3;
    return seen;
}

/* A lossy WebP file. */
static const uint8_t webp[] = {
    82, 73, 70, 70, 106, 0, 0, 0, 87, 69, 66, 80, 86, 80, 56, 32, 94, 0, 0, 0, 208, 3, 0, 157, 1, 42, 21, 0, 19,
    0, 62, 237, 112, 176, 82, 41, 166, 36, 162, 168, 8, 1, 48, 29, 137, 64, 25, 24, 208, 0, 6, 18, 5, 63, 170,
    177, 48, 148, 0, 0, 254, 156, 169, 20, 250, 83, 215, 69, 114, 80, 175, 114, 43, 75, 130, 188, 2, 180, 24,
    207, 255, 193, 98, 6, 101, 163, 183, 217, 51, 73, 100, 28, 65, 97, 65, 102, 226, 229, 190, 90, 74, 125, 138,
    227, 193, 115, 13, 4, 116, 22, 201, 0, 0, 0};

uint64_t stoc_image_pixels(stoc_image_worker *w)
{
    static const struct kind kinds[] = {{1, 1, 1, false}, {3, 1, 1, false}, {3, 2, 1, false}, {3, 2, 2, false},
                                        {3, 1, 2, false}, {3, 4, 1, false}, {3, 1, 1, true}, {3, 2, 2, true}};
    static const uint32_t sides[] = {SIDE, SIDE / 2}; /* the second: the decoder scales */
    uint64_t seen = 0xcbf29ce484222325;
    struct buffer memory = {0};
    if (!w || !reserve(&memory, sizeof(struct writer)))
        return 0;
    struct writer *f = (struct writer *)memory.bytes;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds && seen; k++) {
        *f = (struct writer){.random = k};
        put_file(f, kinds[k]);
        for (size_t s = 0; s < sizeof sides / sizeof *sides && seen; s++) {
            uint8_t pixels[3 * SIDE * SIDE];
            struct stoc_image_decode how = {.width = sides[s], .height = sides[s], .layout = STOC_IMAGE_HWC, .fast = s > 0};
            int code = stoc_image_decode(w, f->bytes, f->size, &how, pixels, sizeof pixels);
            seen = code ? 0 : hash(seen, pixels, (size_t)3 * sides[s] * sides[s]);
        }
    }
    release(&memory);
    uint8_t pixels[3 * 21 * 19];
    struct stoc_image_decode how = {.width = 21, .height = 19};
    if (seen && stoc_image_decode(w, webp, sizeof webp, &how, pixels, sizeof pixels) == STOC_IMAGE_OK)
        return hash(seen, pixels, sizeof pixels);
    return 0;
}

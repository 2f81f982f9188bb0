/* PNG files. libdeflate inflates the picture, which takes most of the time. libpng gets the inflated bytes as a file of
 * stored blocks, and undoes filters, bits and interlacing. Palettes are a table here, as Pillow's have an answer for
 * numbers that the file's palette lacks. */
#include "image.h"

#include <libdeflate.h>
#include <png.h>
#include <zlib.h>

enum {
    MOST_TEXT = 1 << 20, /* bytes of a compressed text that may have the orientation, as Pillow */
    MOST_TEXTS = 64 * MOST_TEXT,
    MOST_STORED = 65535, /* bytes of a stored block of deflate */
    GREY = 0, COLOURS = 2, PALETTE = 3, GREY_ALPHA = 4, COLOURS_ALPHA = 6
};

static const uint8_t signature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

/* ---------------------------------------------------------------------------------- chunks */

struct chunk {
    const uint8_t *data;
    uint32_t bytes;
    char name[5];
};

/* What the chunks of a file say. */
struct parts {
    stoc_image_worker *worker;
    uint32_t width, height, depth, colour, interlaced;
    const uint8_t *palette;
    uint32_t palette_bytes;
    const uint8_t *data; /* the first IDAT chunk; after join all of them */
    size_t data_bytes;   /* bytes of all IDAT chunks */
    size_t chunks;       /* IDAT chunks */
    bool framed;               /* the picture is a frame of an animation */
    uint32_t frame_width, frame_height, frame_x, frame_y; /* what the data cover */
    uint32_t frames, numbers;  /* frames of an animation; its chunks so far, which have numbers */
    size_t inflated_texts;     /* bytes */
    bool has_exif;
    uint32_t exif, raw, xmp;   /* orientations; 0: none. raw: of EXIF data in a text */
};

static uint32_t number(const uint8_t *p) { return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]; }

static bool is(const struct chunk *c, const char *name) { return !memcmp(c->name, name, 4); }

static int cut_off(stoc_image_worker *w) { return fail(w, STOC_IMAGE_EFORMAT, "the PNG file is cut off"); }

static bool is_letter(uint8_t c)
{
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/* The chunk at *at, which then is after its data. False: there is none. The data may be cut off. */
static bool next_chunk(const uint8_t *file, size_t bytes, size_t *at, struct chunk *c)
{
    if (*at > bytes || bytes - *at < 8)
        return false;
    *c = (struct chunk){file + *at + 8, number(file + *at), {0}};
    memcpy(c->name, file + *at + 4, 4);
    *at += 8 + (size_t)c->bytes;
    return is_letter((uint8_t)c->name[0]) && is_letter((uint8_t)c->name[1]) && is_letter((uint8_t)c->name[2]) &&
           is_letter((uint8_t)c->name[3]);
}

static bool has_key(const uint8_t *text, size_t bytes, const char *key)
{
    return bytes > strlen(key) && !memcmp(text, key, strlen(key) + 1);
}

static const char xmp_key[] = "XML:com.adobe.xmp", raw_key[] = "Raw profile type exif";

/* EXIF data in pairs of hexadecimal digits, after three lines. Others turn nothing, as in Pillow. */
static void read_raw_profile(struct parts *p, const uint8_t *text, size_t bytes)
{
    struct buffer data = {0};
    size_t n = 0, at = 0;
    unsigned digits = 0, value = 0;
    p->raw = 0;
    for (int lines = 0; lines < 3; lines++) {
        const uint8_t *line = memchr(text + at, '\n', bytes - at);
        if (!line)
            return;
        at = (size_t)(line - text) + 1;
    }
    if (!reserve(&data, (bytes - at) / 2 + 1))
        return;
    for (; at < bytes; at++) {
        uint8_t c = text[at], low = c | 0x20;
        if (c == '\n' || (digits % 2 == 0 && (c == ' ' || (c >= '\t' && c <= '\r'))))
            continue;
        if (!(c >= '0' && c <= '9') && !(low >= 'a' && low <= 'f'))
            break;
        value = value << 4 | (c <= '9' ? c - (unsigned)'0' : low - (unsigned)'a' + 10);
        if (++digits % 2 == 0)
            data.bytes[n++] = (uint8_t)value;
    }
    p->raw = at < bytes || digits % 2 ? 1 : exif_orientation(data.bytes, n);
    release(&data);
}

static void read_text(struct parts *p, const char *key, const uint8_t *text, size_t bytes)
{
    if (key == xmp_key)
        p->xmp = xmp_orientation(text, bytes);
    else
        read_raw_profile(p, text, bytes);
}

/* A text that may have the orientation, of a chunk tEXt, zTXt or iTXt. */
static void read_text_chunk(struct parts *p, const struct chunk *c)
{
    const uint8_t *text = c->data, *end = text + c->bytes;
    if (is(c, "tEXt") && has_key(text, c->bytes, "exif")) {
        p->has_exif = true;
        p->exif = exif_orientation(text + 5, c->bytes - 5);
        return;
    }
    const char *key = has_key(text, c->bytes, xmp_key) ? xmp_key : has_key(text, c->bytes, raw_key) ? raw_key : NULL;
    if (!key)
        return;
    text += strlen(key) + 1;
    bool compressed = is(c, "zTXt");
    if (is(c, "iTXt")) { /* whether compressed, the method, a language, the key in that language */
        if (end - text < 2)
            return;
        compressed = text[0];
        text += 2;
        for (int k = 0; k < 2; k++) {
            const uint8_t *zero = memchr(text, 0, (size_t)(end - text));
            if (!zero)
                return;
            text = zero + 1;
        }
    } else if (compressed && text++ == end)
        return;
    size_t bytes = (size_t)(end - text);
    struct buffer *to = &p->worker->text;
    if (compressed) {
        struct libdeflate_decompressor *d = reserve(to, MOST_TEXT) ? libdeflate_alloc_decompressor() : NULL;
        bool done = d && !libdeflate_zlib_decompress(d, text, bytes, to->bytes, MOST_TEXT, &bytes);
        libdeflate_free_decompressor(d);
        p->inflated_texts += done ? bytes : MOST_TEXT;
        if (!done)
            return;
        text = to->bytes;
    }
    read_text(p, key, text, bytes);
}

static int read_header(struct parts *p, const struct chunk *c)
{
    if (c->bytes < 13 || p->width)
        return fail(p->worker, STOC_IMAGE_EFORMAT, "the PNG file has a header of %u bytes, or two", c->bytes);
    p->width = number(c->data);
    p->height = number(c->data + 4);
    p->depth = c->data[8];
    p->colour = c->data[9];
    p->interlaced = c->data[12] != 0;
    bool small = p->depth == 1 || p->depth == 2 || p->depth == 4, large = p->depth == 16;
    bool known = p->colour == GREY      ? small || large || p->depth == 8
                 : p->colour == PALETTE ? small || p->depth == 8
                 : p->colour == COLOURS || p->colour == GREY_ALPHA || p->colour == COLOURS_ALPHA ? large || p->depth == 8
                                                                                                 : false;
    if (!p->width || !p->height || p->width > INT32_MAX || p->height > INT32_MAX || !known || c->data[11])
        return fail(p->worker, STOC_IMAGE_EFORMAT, "a PNG file of %u x %u pixels, colour type %u with %u bits", p->width,
                    p->height, p->colour, p->depth);
    return STOC_IMAGE_OK;
}

static int wrong_frame(stoc_image_worker *w) { return fail(w, STOC_IMAGE_EFORMAT, "the APNG file has a wrong frame"); }

/* A frame's place. That of the last one before the picture is the picture's. */
static int read_frame(struct parts *p, const struct chunk *c)
{
    if (c->bytes < 26 || number(c->data) != p->numbers++)
        return wrong_frame(p->worker);
    uint32_t width = number(c->data + 4), height = number(c->data + 8), x = number(c->data + 12), y = number(c->data + 16);
    if ((uint64_t)x + width > p->width || (uint64_t)y + height > p->height)
        return wrong_frame(p->worker);
    if (p->chunks)
        return STOC_IMAGE_OK;
    p->framed = true;
    p->frame_width = width, p->frame_height = height;
    p->frame_x = x, p->frame_y = y;
    return STOC_IMAGE_OK;
}

static int read_chunk(struct parts *p, const struct chunk *c)
{
    if (is(c, "IHDR"))
        return read_header(p, c);
    if (is(c, "fcTL"))
        return read_frame(p, c);
    if (is(c, "fdAT") && (c->bytes < 4 || !p->numbers || number(c->data) != p->numbers++))
        return wrong_frame(p->worker);
    if (is(c, "PLTE") && p->colour == PALETTE) { /* one before the header counts no more than in Pillow */
        p->palette = c->data;
        p->palette_bytes = c->bytes;
    } else if (is(c, "eXIf")) {
        p->has_exif = true;
        p->exif = exif_orientation(c->data, c->bytes);
    } else if (is(c, "tEXt") || is(c, "zTXt") || is(c, "iTXt")) {
        read_text_chunk(p, c);
        if (p->inflated_texts > MOST_TEXTS)
            return fail(p->worker, STOC_IMAGE_ETOOLARGE, "the PNG file has more than %d bytes of compressed texts", MOST_TEXTS);
    } else if (is(c, "acTL") && c->bytes >= 8) /* if there are two, Pillow takes none */
        p->frames = p->frames || number(c->data) > 0x80000000 ? 0 : number(c->data);
    return STOC_IMAGE_OK;
}

/* How much of a chunk's data the file has. */
static size_t data_of(const struct chunk *c, const uint8_t *end)
{
    size_t left = (size_t)(end - c->data);
    return c->bytes < left ? c->bytes : left;
}

/* Notes where the IDAT chunks lie, of which *c is the first, and puts the chunk after them there. False: there is none. */
static bool skip_data(struct parts *p, const uint8_t *file, size_t bytes, size_t *at, struct chunk *c)
{
    bool more = true;
    p->data = c->data;
    for (; more && is(c, "IDAT"); p->chunks++) {
        p->data_bytes += data_of(c, file + bytes);
        *at += 4;
        more = next_chunk(file, bytes, at, c);
    }
    return more;
}

/* Joins the data of several IDAT chunks. Their sizes are read again, so others are allowed for. */
static int join(struct parts *p, const uint8_t *file, size_t bytes)
{
    struct buffer *b = &p->worker->joined;
    struct chunk part;
    if (p->chunks < 2 || !p->data_bytes)
        return STOC_IMAGE_OK;
    if (!reserve(b, p->data_bytes))
        return no_memory(p->worker, p->data_bytes);
    size_t at = (size_t)(p->data - file) - 8, done = 0;
    for (size_t n; done < p->data_bytes && next_chunk(file, bytes, &at, &part); done += n, at += 4) {
        size_t has = data_of(&part, file + bytes), left = p->data_bytes - done;
        n = has < left ? has : left;
        memcpy(b->bytes + done, part.data, n);
    }
    p->data = b->bytes;
    p->data_bytes = done;
    return STOC_IMAGE_OK;
}

/* Reads all chunks. As Pillow, it checks the sums of those before the picture. */
static int read_parts(stoc_image_worker *w, const uint8_t *file, size_t bytes, struct parts *p)
{
    struct chunk c;
    size_t at = sizeof signature;
    int code;
    *p = (struct parts){.worker = w};
    for (;; at += 4) {
        if (!next_chunk(file, bytes, &at, &c))
            return cut_off(w);
        if (is(&c, "IDAT"))
            break;
        if (at > bytes || bytes - at < 4)
            return cut_off(w);
        if (libdeflate_crc32(0, c.data - 4, (size_t)c.bytes + 4) != number(c.data + c.bytes))
            return fail(w, STOC_IMAGE_EFORMAT, "the PNG file is damaged: a wrong checksum in %s", c.name);
        if (is(&c, "IEND") || is(&c, "fdAT"))
            return fail(w, STOC_IMAGE_EFORMAT, "the PNG file has no picture before %s", c.name);
        if ((code = read_chunk(p, &c)))
            return code;
    }
    if (!p->width || (p->colour == PALETTE && (!p->palette || p->palette_bytes > 768)))
        return fail(w, STOC_IMAGE_EFORMAT, "the PNG file lacks its header or its palette");
    bool more = skip_data(p, file, bytes, &at, &c);
    if (!p->framed)
        p->frame_width = p->width, p->frame_height = p->height;
    if (!p->frame_width || !p->frame_height)
        return wrong_frame(w);
    if (p->interlaced) /* as in Pillow */
        p->frame_x = p->frame_y = 0;
    bool animated = p->frames > p->framed;
    for (; more && !is(&c, "IEND") && !(is(&c, "fcTL") && animated); more = next_chunk(file, bytes, &at, &c)) {
        if (at > bytes)
            return cut_off(w);
        if (!is(&c, "IHDR") && !is(&c, "PLTE") && (code = read_chunk(p, &c)))
            return code;
        at += 4;
    }
    return STOC_IMAGE_OK;
}

static uint32_t orientation(const struct parts *p)
{
    uint32_t o = p->has_exif ? p->exif : p->raw;
    return o ? o : p->xmp ? p->xmp : 1;
}

static uint32_t samples_of(const struct parts *p)
{
    return p->colour == COLOURS ? 3 : p->colour == GREY_ALPHA ? 2 : p->colour == COLOURS_ALPHA ? 4 : 1;
}

static int read_info(stoc_image_worker *w, const uint8_t *file, size_t bytes, struct stoc_image_info *info)
{
    struct parts p;
    int code = read_parts(w, file, bytes, &p);
    uint32_t components = p.colour == GREY || p.colour == GREY_ALPHA ? 1 : 3;
    *info = (struct stoc_image_info){p.width, p.height, orientation(&p), components, p.interlaced};
    return code;
}

/* ---------------------------------------------------------------------------------- pixels */

/* Bytes of the samples of a row. */
static size_t row_bytes(const struct parts *p, size_t columns)
{
    return (columns * p->depth * samples_of(p) + 7) / 8;
}

/* Bytes of the inflated picture: a filter and the samples of each row, in one pass or in seven. */
static size_t inflated_bytes(const struct parts *p)
{
    size_t all = 0;
    if (!p->interlaced)
        return p->frame_height * (1 + row_bytes(p, p->frame_width));
    for (int pass = 0; pass < 7; pass++) {
        size_t columns = PNG_PASS_COLS(p->frame_width, pass), rows = PNG_PASS_ROWS(p->frame_height, pass);
        all += columns ? rows * (1 + row_bytes(p, columns)) : 0;
    }
    return all;
}

/* For streams that libdeflate refuses: those with bytes after the picture, or without an end. Pillow takes them. */
static bool inflate_start(const struct parts *p, uint8_t *to, size_t need)
{
    z_stream z = {0};
    size_t left = p->data_bytes;
    int said = inflateInit(&z);
    z.next_in = (Bytef *)(uintptr_t)p->data;
    z.next_out = to;
    while (said == Z_OK && need) {
        uInt in = left < UINT32_MAX ? (uInt)left : UINT32_MAX, out = need < UINT32_MAX ? (uInt)need : UINT32_MAX;
        z.avail_in = in;
        z.avail_out = out;
        said = inflate(&z, Z_NO_FLUSH);
        left -= in - z.avail_in;
        need -= out - z.avail_out;
    }
    inflateEnd(&z);
    return (said == Z_OK || said == Z_STREAM_END) && !need;
}

static int inflate_all(const struct parts *p, uint8_t *to, size_t need)
{
    struct libdeflate_decompressor *d = libdeflate_alloc_decompressor();
    if (!d)
        return fail(p->worker, STOC_IMAGE_EMEMORY, "too little memory for libdeflate");
    bool done = libdeflate_zlib_decompress(d, p->data, p->data_bytes, to, need, NULL) == LIBDEFLATE_SUCCESS;
    libdeflate_free_decompressor(d);
    if (done || inflate_start(p, to, need))
        return STOC_IMAGE_OK;
    return fail(p->worker, STOC_IMAGE_EFORMAT, "the PNG file is cut off or damaged: bits of the picture are missing");
}

/* Undoes the filters of all rows. Debian's libpng does so without vector instructions, in half of the time of a decode. A
 * filter that does not exist stays, and libpng refuses it. */
static void undo_filters(const struct parts *p, uint8_t *filter)
{
    paeth_function *paeth = loops_of(p->worker)->paeth;
    size_t n = row_bytes(p, p->frame_width), pixel = (size_t)p->depth * samples_of(p) / 8;
    const uint8_t *above = NULL;
    if (p->interlaced || !paeth || (pixel != 3 && pixel != 4))
        return;
    for (uint32_t y = 0; y < p->frame_height; y++, filter += 1 + n) {
        uint8_t *row = filter + 1;
        if (*filter > PNG_FILTER_VALUE_PAETH)
            return;
        if (*filter == PNG_FILTER_VALUE_SUB || (*filter == PNG_FILTER_VALUE_PAETH && !above))
            for (size_t k = pixel; k < n; k++)
                row[k] = (uint8_t)(row[k] + row[k - pixel]);
        else if (*filter == PNG_FILTER_VALUE_UP && above)
            for (size_t k = 0; k < n; k++)
                row[k] = (uint8_t)(row[k] + above[k]);
        else if (*filter == PNG_FILTER_VALUE_AVG)
            for (size_t k = 0; k < n; k++)
                row[k] = (uint8_t)(row[k] + ((above ? above[k] : 0) + (k < pixel ? 0 : row[k - pixel])) / 2);
        else if (*filter == PNG_FILTER_VALUE_PAETH)
            paeth(row, above, n, pixel);
        *filter = PNG_FILTER_VALUE_NONE;
        above = row;
    }
}

/* The decoder: libpng, and the file that it reads, which is made here. */
struct reader {
    stoc_image_worker *worker;
    png_structp png;
    png_infop info;
    uint8_t head[80];       /* bytes before the next stored block, or after the last */
    size_t head_at, head_end;
    const uint8_t *data;    /* the stored block */
    size_t block, left;     /* its bytes, and those after it */
    uint32_t sum;           /* the checksum of all bytes */
    int code;               /* the code of libpng's error */
    uint32_t channels;      /* channels of the rows that libpng gives */
    uint8_t table[256][3];  /* colours of grey and of palettes */
};

static void put(struct reader *r, const void *bytes, size_t n)
{
    memcpy(r->head + r->head_end, bytes, n);
    r->head_end += n;
}

static void put_number(struct reader *r, uint32_t n)
{
    put(r, (uint8_t[]){(uint8_t)(n >> 24), (uint8_t)(n >> 16), (uint8_t)(n >> 8), (uint8_t)n}, 4);
}

/* Begins a chunk for the next stored block. The sums of chunks are 0, as libpng does not look at them. */
static void put_block(struct reader *r, bool first)
{
    size_t n = r->block = r->left < MOST_STORED ? r->left : MOST_STORED;
    bool last = n == r->left;
    put_number(r, (uint32_t)(n + 5 + 2 * first + 4 * last));
    put(r, "IDAT\x78\x01", 4 + 2 * first);
    put(r, (uint8_t[]){last, (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)~n, (uint8_t)(~n >> 8)}, 5);
    r->left -= n;
}

static void give(png_structp png, png_bytep to, size_t n)
{
    struct reader *r = png_get_io_ptr(png);
    while (n) {
        bool small = r->head_at < r->head_end;
        size_t some = small ? r->head_end - r->head_at : r->block;
        some = some < n ? some : n;
        if (!some)
            png_error(png, "no more bytes");
        memcpy(to, small ? r->head + r->head_at : r->data, some);
        to += some;
        n -= some;
        if (small) {
            r->head_at += some;
            continue;
        }
        r->data += some;
        if ((r->block -= some))
            continue;
        r->head_at = r->head_end = 0;
        if (r->left) {
            put_number(r, 0);
            put_block(r, false);
        } else {
            put_number(r, r->sum);
            put(r, "\0\0\0\0\0\0\0\0IEND\0\0\0", 16);
        }
    }
}

static void on_error(png_structp png, png_const_charp text)
{
    struct reader *r = png_get_error_ptr(png);
    r->code = fail(r->worker, strstr(text, "memory") ? STOC_IMAGE_EMEMORY : STOC_IMAGE_EFORMAT, "libpng: %s", text);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp text) { (void)png, (void)text; }

/* A palette's number is a grey one of the file that libpng sees. */
static void make_colours(struct reader *r, const struct parts *p)
{
    unsigned most = p->depth < 8 ? (1u << p->depth) - 1 : 255;
    for (unsigned k = 0; k < 256; k++) {
        bool known = p->colour == PALETTE && 3 * k + 3 <= p->palette_bytes;
        unsigned grey = p->colour == PALETTE ? 0 : k * 255 / most;
        for (unsigned c = 0; c < 3; c++)
            r->table[k][c] = (uint8_t)(known ? p->palette[3 * k + c] : grey);
    }
}

static void begin(struct reader *r, const struct parts *p, const uint8_t *inflated, size_t bytes)
{
    r->data = inflated;
    r->left = bytes;
    r->sum = libdeflate_adler32(1, inflated, bytes);
    r->channels = samples_of(p);
    make_colours(r, p);
    put(r, signature, sizeof signature);
    put_number(r, 13);
    put(r, "IHDR", 4);
    put_number(r, p->frame_width);
    put_number(r, p->frame_height);
    put(r, (uint8_t[]){(uint8_t)p->depth, (uint8_t)(p->colour == PALETTE ? GREY : p->colour), 0, 0,
                       (uint8_t)p->interlaced, 0, 0, 0, 0}, 9);
    put_block(r, true);
    png_set_read_fn(r->png, r, give);
    png_set_crc_action(r->png, PNG_CRC_QUIET_USE, PNG_CRC_QUIET_USE);
    png_set_option(r->png, PNG_IGNORE_ADLER32, PNG_OPTION_ON);
    png_read_info(r->png, r->info);
    png_set_strip_16(r->png);
    png_set_packing(r->png);
}

/* n pixels as libpng gives them, with 1 to 4 samples, into red, green and blue. */
static void to_colours(const struct reader *r, uint8_t *to, const uint8_t *from, size_t n)
{
    if (r->channels == 3)
        memcpy(to, from, 3 * n);
    else if (r->channels == 4)
        for (size_t x = 0; x < n; x++)
            memcpy(to + 3 * x, from + 4 * x, 3);
    else
        for (size_t x = 0; x < n; x++)
            memcpy(to + 3 * x, r->table[from[r->channels * x]], 3);
}

/* Whether the data cover a part of the picture. */
static bool is_part(const struct parts *p) { return p->frame_width < p->width || p->frame_height < p->height; }

/* All rows, of which an interlaced file has pixels in several passes. The compressed bytes are used up. The rest of a
 * picture of which the data cover a part has the number 0: black, or the first colour of a palette. */
static int read_whole(struct reader *r, const struct parts *p, struct job *j)
{
    stoc_image_worker *w = r->worker;
    size_t row = (size_t)p->frame_width * r->channels, pixels = (size_t)j->width * j->height;
    if (!reserve(&w->joined, row * p->frame_height) || !reserve(&w->picture, 3 * pixels))
        return no_memory(w, 3 * pixels);
    for (int passes = png_set_interlace_handling(r->png); passes; passes--)
        for (uint32_t y = 0; y < p->frame_height; y++)
            png_read_row(r->png, w->joined.bytes + row * y, NULL);
    for (size_t k = 0; is_part(p) && k < pixels; k++)
        memcpy(w->picture.bytes + 3 * k, r->table[0], 3);
    for (uint32_t y = 0; y < p->frame_height; y++) {
        size_t to = (size_t)(p->frame_y + y) * j->width + p->frame_x;
        to_colours(r, w->picture.bytes + 3 * to, w->joined.bytes + row * y, p->frame_width);
    }
    return show_picture(j, w->picture.bytes);
}

/* Rows up to the last that is needed. */
static int read_rows(struct reader *r, struct job *j)
{
    stoc_image_worker *w = r->worker;
    const struct weights *down = &w->resize.down;
    size_t width = j->width, stride = 3 * width;
    int code = plan_job(j, j->width);
    if (code)
        return code;
    if (!reserve(&w->rows, stride * BAND + width * 4))
        return no_memory(w, stride * BAND);
    const uint8_t *rows[BAND];
    uint8_t *own = w->rows.bytes + stride * BAND; /* a row as libpng gives it */
    for (uint32_t y = 0, n = 0; y < down->high; y++) {
        uint8_t *to = w->rows.bytes + stride * n, *from = r->channels == 3 ? to : own;
        png_read_row(r->png, from, NULL);
        if (y < down->low)
            continue;
        if (to != from)
            to_colours(r, to, from, width);
        rows[n++] = to;
        if (n == BAND || y + 1 == down->high) {
            resize_band(w, rows, n, y + 1 - n, true, 0);
            n = 0;
        }
    }
    return finish_job(j);
}

static int read_pixels(struct reader *r, const struct parts *p, struct job *j)
{
    if (setjmp(png_jmpbuf(r->png)))
        return r->code;
    begin(r, p, r->worker->inflated.bytes, inflated_bytes(p));
    return p->interlaced || is_part(p) ? read_whole(r, p, j) : read_rows(r, j);
}

static int decode(struct job *j)
{
    stoc_image_worker *w = j->worker;
    struct parts p;
    int code = read_parts(w, j->file, j->bytes, &p);
    if (code || (code = begin_job(j, p.width, p.height, orientation(&p))))
        return code;
    size_t need = inflated_bytes(&p);
    if (!reserve(&w->inflated, need + 1))
        return no_memory(w, need);
    if ((code = join(&p, j->file, j->bytes)) || (code = inflate_all(&p, w->inflated.bytes, need)))
        return code;
    undo_filters(&p, w->inflated.bytes);
    struct reader r = {.worker = w};
    r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, on_error, on_warning);
    r.info = r.png ? png_create_info_struct(r.png) : NULL;
    code = r.info ? read_pixels(&r, &p, j) : fail(w, STOC_IMAGE_EMEMORY, "too little memory for libpng");
    png_destroy_read_struct(&r.png, &r.info, NULL);
    return code;
}

const struct format png_format = {"PNG", read_info, decode};

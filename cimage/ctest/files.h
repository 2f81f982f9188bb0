/* What the test programs share: random numbers, memory that ends at a page without access, JPEG files, and a count of
 * the pixels that libjpeg decodes. */
#ifndef FILES_H
#define FILES_H

#include "../../cclient/ctest/check.h"

#include "../stocached_image.h"

#include <dlfcn.h>
#include <jpeglib.h>
#include <math.h>

static uint64_t state = 1; /* the state of draw */

static uint64_t draw(void) /* splitmix64 */
{
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

__attribute__((unused)) static uint32_t below(uint32_t n) { return (uint32_t)(draw() % n); }

/* n bytes that end at a page without access, so that a read or write after them is seen. */
__attribute__((unused)) static uint8_t *guarded(size_t n)
{
    size_t page = 4096, pages = (n + page - 1) / page * page;
    uint8_t *p = mmap(NULL, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(p != MAP_FAILED);
    REQUIRE(mprotect(p + pages, page, PROT_NONE) == 0);
    return p + pages - n;
}

__attribute__((unused)) static void release(uint8_t *p, size_t n)
{
    size_t page = 4096, pages = (n + page - 1) / page * page;
    munmap(p + n - pages, pages + page);
}

/* ------------------------------------------------------------ pixels */

static _Thread_local uint64_t pixels_read; /* by the library, from libjpeg */

/* Takes the place of libjpeg's function, which it calls. */
JDIMENSION jpeg_read_scanlines(j_decompress_ptr jpeg, JSAMPARRAY rows, JDIMENSION most)
{
    static JDIMENSION (*_Atomic real)(j_decompress_ptr, JSAMPARRAY, JDIMENSION);
    if (!real) /* threads may come here at the same time */
        real = (JDIMENSION (*)(j_decompress_ptr, JSAMPARRAY, JDIMENSION))dlsym(RTLD_NEXT, "jpeg_read_scanlines");
    JDIMENSION got = real(jpeg, rows, most);
    pixels_read += (uint64_t)got * jpeg->output_width;
    return got;
}

/* ------------------------------------------------------------ files */

struct file {
    unsigned char *bytes;
    unsigned long size;
};

enum { BASELINE, PROGRESSIVE, RESTARTS, GREY, CMYK, SEPARATE, MANY_SCANS, KINDS }; /* SEPARATE: a scan a component */
enum { YCCK = KINDS, TURNED, ARITHMETIC, PROGRESSIVE_ARITHMETIC, ALL_KINDS }; /* TURNED: by EXIF data */

#ifdef C_ARITH_CODING_SUPPORTED
static const bool makes_arithmetic = true;
#else
static const bool makes_arithmetic = false;
#endif

/* A file of a smooth picture. sampling: luma samples for one of chroma, across and down. */
__attribute__((unused)) static struct file make_file(int width, int height, int kind, int across, int down)
{
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct file f = {NULL, 0};
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_mem_dest(&jpeg, &f.bytes, &f.size);
    jpeg.image_width = (JDIMENSION)width;
    jpeg.image_height = (JDIMENSION)height;
    bool inks = kind == CMYK || kind == YCCK;
    jpeg.input_components = kind == GREY ? 1 : inks ? 4 : 3;
    jpeg.in_color_space = kind == GREY ? JCS_GRAYSCALE : inks ? JCS_CMYK : JCS_RGB;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, 90, TRUE);
    if (kind == YCCK)
        jpeg_set_colorspace(&jpeg, JCS_YCCK);
    if (!inks) {
        jpeg.comp_info[0].h_samp_factor = across;
        jpeg.comp_info[0].v_samp_factor = down;
    }
    jpeg_scan_info scans[3 * 64];
    jpeg.arith_code = (kind == ARITHMETIC || kind == PROGRESSIVE_ARITHMETIC) && makes_arithmetic;
    if (kind == PROGRESSIVE || kind == PROGRESSIVE_ARITHMETIC)
        jpeg_simple_progression(&jpeg);
    if (kind == MANY_SCANS) { /* a scan for each coefficient */
        int n = 0;
        scans[n++] = (jpeg_scan_info){3, {0, 1, 2, 0}, 0, 0, 0, 0};
        for (int c = 0; c < 3; c++)
            for (int k = 1; k < 64; k++)
                scans[n++] = (jpeg_scan_info){1, {c, 0, 0, 0}, k, k, 0, 0};
        jpeg.scan_info = scans;
        jpeg.num_scans = n;
    }
    if (kind == SEPARATE) {
        for (int c = 0; c < 3; c++)
            scans[c] = (jpeg_scan_info){1, {c, 0, 0, 0}, 0, 63, 0, 0};
        jpeg.scan_info = scans;
        jpeg.num_scans = 3;
    }
    if (kind == RESTARTS)
        jpeg.restart_in_rows = 1;
    jpeg_start_compress(&jpeg, TRUE);
    if (kind == TURNED) {
        unsigned char exif[] = "Exif\0\0II*\0\10\0\0\0\1\0\22\1\3\0\1\0\0\0\1\0\0\0\0\0\0";
        exif[24] = (unsigned char)(1 + below(8));
        jpeg_write_marker(&jpeg, JPEG_APP0 + 1, exif, sizeof exif - 1);
    }
    unsigned char *row = malloc((size_t)width * 4);
    for (int y = 0; y < height; y++) {
        for (int k = 0; k < width * jpeg.input_components; k++)
            row[k] = (unsigned char)(128 + 100 * sin(k * 0.05 + y * 0.03) + below(20));
        jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    free(row);
    return f;
}

#endif

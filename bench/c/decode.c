/* The bare decodes of the libraries, with which the benchmarks compare ours: RGB, no resize, for JPEG the same DCT and
 * upsampling. Each decodes a file into width * height * 3 bytes. Returns 0. An error ends the program. */
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>
#include <png.h>
#include <webp/decode.h>

int bare_webp(const unsigned char *file, unsigned long bytes, unsigned char *dst, unsigned long dst_bytes)
{
    int width, height;
    if (!WebPGetInfo(file, bytes, &width, &height) || !WebPDecodeRGBInto(file, bytes, dst, dst_bytes, 3 * width))
        abort();
    return 0;
}

int bare_png(const unsigned char *file, unsigned long bytes, unsigned char *dst, unsigned long dst_bytes)
{
    png_image image = {.version = PNG_IMAGE_VERSION};
    if (!png_image_begin_read_from_memory(&image, file, bytes) || (unsigned long)3 * image.width * image.height > dst_bytes)
        abort();
    image.format = PNG_FORMAT_RGB;
    if (!png_image_finish_read(&image, NULL, dst, 0, NULL))
        abort();
    return 0;
}

int bare_jpeg(const unsigned char *file, unsigned long bytes, unsigned char *dst, unsigned long dst_bytes)
{
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&jpeg);
    jpeg_mem_src(&jpeg, file, bytes);
    jpeg_read_header(&jpeg, TRUE);
    jpeg.out_color_space = JCS_RGB;
    jpeg.dct_method = JDCT_ISLOW;
    jpeg.do_fancy_upsampling = TRUE;
    jpeg_start_decompress(&jpeg);
    size_t row = (size_t)3 * jpeg.output_width;
    if (row * jpeg.output_height > dst_bytes)
        abort();
    while (jpeg.output_scanline < jpeg.output_height) {
        JSAMPROW rows[8];
        for (int k = 0; k < 8; k++)
            rows[k] = dst + (jpeg.output_scanline + k) * row;
        JDIMENSION left = jpeg.output_height - jpeg.output_scanline;
        jpeg_read_scanlines(&jpeg, rows, left < 8 ? left : 8);
    }
    jpeg_finish_decompress(&jpeg);
    jpeg_destroy_decompress(&jpeg);
    return 0;
}

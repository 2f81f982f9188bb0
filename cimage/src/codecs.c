/* The formats that the library decodes, and their inflate for others. */
#include "image.h"

#include <libdeflate.h>

const struct format *const formats[] = {&jpeg_format, &png_format, &webp_format, NULL};

int64_t stoc_image_inflate(const void *data, size_t bytes, void *dst, size_t dst_bytes)
{
    struct libdeflate_decompressor *d = libdeflate_alloc_decompressor();
    if (!d)
        return STOC_IMAGE_EMEMORY;
    bool done = !libdeflate_deflate_decompress(d, data, bytes, dst, dst_bytes, NULL);
    libdeflate_free_decompressor(d);
    return done ? (int64_t)libdeflate_crc32(0, dst, dst_bytes) : STOC_IMAGE_EFORMAT;
}

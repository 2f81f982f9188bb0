/* In place of codecs.c and of the decoders where headers of their libraries are missing: all but decoding works. */
#include "src/image.h"

const struct format *const formats[] = {NULL};

int64_t stoc_image_inflate(const void *data, size_t bytes, void *dst, size_t dst_bytes)
{
    (void)data, (void)bytes, (void)dst, (void)dst_bytes;
    return STOC_IMAGE_EUNSUPPORTED;
}

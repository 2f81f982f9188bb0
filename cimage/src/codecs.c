/* The formats that the library decodes. */
#include "image.h"

const struct format *const formats[] = {&jpeg_format,
#ifndef ONLY_JPEG
    &png_format, &webp_format,
#endif
    NULL};

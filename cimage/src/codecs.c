/* The formats that the library decodes. */
#include "image.h"

const struct format *const formats[] = {&jpeg_format, &png_format, &webp_format, NULL};

/* The EXIF orientation of a JPEG file: a tag of the first directory of a TIFF file in the marker APP1. */
#include "image.h"

#include <string.h>

static uint32_t number(const uint8_t *p, int bytes, bool little)
{
    uint32_t n = 0;
    for (int k = 0; k < bytes; k++)
        n = n << 8 | p[little ? bytes - 1 - k : k];
    return n;
}

uint32_t orientation_of(const uint8_t *data, size_t bytes)
{
    enum { ORIENTATION = 0x112, SHORT = 3, ENTRY = 12 };
    if (bytes < 14 || memcmp(data, "Exif\0\0", 6) != 0)
        return 1;
    const uint8_t *tiff = data + 6;
    size_t size = bytes - 6;
    bool little = !memcmp(tiff, "II*\0", 4);
    if (!little && memcmp(tiff, "MM\0*", 4) != 0)
        return 1;
    size_t at = number(tiff + 4, 4, little);
    if (at > size || size - at < 2)
        return 1;
    for (uint32_t entries = number(tiff + at, 2, little), k = 0; k < entries; k++) {
        size_t entry = at + 2 + (size_t)k * ENTRY;
        if (entry > size || size - entry < ENTRY)
            return 1;
        if (number(tiff + entry, 2, little) != ORIENTATION || number(tiff + entry + 2, 2, little) != SHORT)
            continue;
        uint32_t orientation = number(tiff + entry + 8, 2, little);
        return orientation >= 1 && orientation <= 8 ? orientation : 1;
    }
    return 1;
}

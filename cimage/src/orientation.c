/* The orientation of a picture: in EXIF data, which is a TIFF file, or in XMP, as Pillow's exif_transpose finds it. */
#include "image.h"

static uint64_t number(const uint8_t *p, size_t bytes, bool little)
{
    uint64_t n = 0;
    for (size_t k = 0; k < bytes; k++)
        n = n << 8 | p[little ? bytes - 1 - k : k];
    return n;
}

/* Types of TIFF. Those of bytes and text are no numbers: a tag of them turns nothing. */
enum { BYTE = 1, ASCII, SHORT, LONG, RATIONAL, SBYTE, UNDEFINED, SSHORT, SLONG, SRATIONAL, FLOAT, DOUBLE, IFD, LONG8 = 16 };

static size_t size_of(uint64_t type)
{
    static const uint8_t sizes[] = {[BYTE] = 1, [ASCII] = 1, [SHORT] = 2, [LONG] = 4, [RATIONAL] = 8, [SBYTE] = 1,
                                    [UNDEFINED] = 1, [SSHORT] = 2, [SLONG] = 4, [SRATIONAL] = 8, [FLOAT] = 4,
                                    [DOUBLE] = 8, [IFD] = 4, [LONG8] = 8};
    return type < sizeof sizes ? sizes[type] : 0;
}

static double value_of(const uint8_t *p, uint64_t type, bool little)
{
    uint64_t n = number(p, size_of(type), little);
    uint32_t half = (uint32_t)n, first = (uint32_t)number(p, 4, little), second;
    float single;
    double twice;
    switch (type) {
    case BYTE: case ASCII: case UNDEFINED: return 1;
    case SHORT: case LONG: case IFD: case LONG8: return (double)n;
    case SBYTE: return (int8_t)n;
    case SSHORT: return (int16_t)n;
    case SLONG: return (int32_t)half;
    case FLOAT: memcpy(&single, &half, sizeof single); return (double)single;
    case DOUBLE: memcpy(&twice, &n, sizeof twice); return twice;
    }
    second = (uint32_t)number(p + 4, 4, little);
    if (type == RATIONAL)
        return second ? (double)first / second : 1;
    return second ? (double)(int32_t)first / (int32_t)second : 1;
}

uint32_t exif_orientation(const uint8_t *tiff, size_t size)
{
    enum { ORIENTATION = 0x112, ENTRY = 12, INSIDE = 4 };
    for (int k = 0; k < 2 && size >= 6 && !memcmp(tiff, "Exif\0\0", 6); k++)
        tiff += 6, size -= 6;
    if (size < 10)
        return 0;
    bool little = tiff[0] == 'I';
    if (memcmp(tiff, "II*\0", 4) && memcmp(tiff, "MM\0*", 4) && memcmp(tiff, "II\0*", 4) && memcmp(tiff, "MM*\0", 4))
        return 0;
    size_t at = number(tiff + 4, 4, little);
    if (at > size || size - at < 2)
        return 0;
    for (uint64_t entries = number(tiff + at, 2, little), k = 0; k < entries; k++) {
        size_t entry = at + 2 + (size_t)k * ENTRY;
        if (entry > size || size - entry < ENTRY)
            return 0;
        uint64_t type = number(tiff + entry + 2, 2, little), bytes = size_of(type) * number(tiff + entry + 4, 4, little);
        if (number(tiff + entry, 2, little) != ORIENTATION || !bytes)
            continue;
        size_t value = bytes > INSIDE ? number(tiff + entry + 8, 4, little) : entry + 8;
        if (bytes > size || value > size - bytes)
            continue;
        double orientation = value_of(tiff + value, type, little);
        for (uint32_t known = 2; known <= 8; known++)
            if (orientation == known)
                return known;
        return 1;
    }
    return 0;
}

uint32_t xmp_orientation(const uint8_t *xmp, size_t bytes)
{
    static const char name[] = "tiff:Orientation";
    size_t length = sizeof name - 1;
    for (const uint8_t *p = xmp, *end = xmp + bytes; (size_t)(end - p) > length + 1 && (p = memchr(p, 't', (size_t)(end - p)));
         p++) {
        if ((size_t)(end - p) < length + 2)
            return 0;
        if (memcmp(p, name, length))
            continue;
        const uint8_t *digit = p + length + (p[length] == '>' ? 1 : 2);
        if ((p[length] == '>' || (p[length] == '=' && p[length + 1] == '"')) && digit < end && *digit >= '0' && *digit <= '9')
            return *digit >= '1' && *digit <= '8' ? (uint32_t)(*digit - '0') : 1;
    }
    return 0;
}

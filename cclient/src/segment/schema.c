/*
 * schema.c - the fields of a sample: their sizes and offsets. The same rules as shm/field.go.
 */
#include "segment.h"

static const uint8_t item_sizes[] = {1, 1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 8, 16};
#define DTYPES (sizeof item_sizes)
_Static_assert(DTYPES == STOC_COMPLEX128 + 1, "an item size for every dtype");

#define EXTENT_RECORD (8 + 4 * STOC_MAX_DIMS) /* bytes of a field in the header of a variable-size sample */

/* Says in why, of 256 bytes, what is wrong: false. */
__attribute__((format(printf, 2, 3))) INTERNAL bool refuse(char *why, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, 256, format, args);
    va_end(args);
    return false;
}

/* Whether n bytes are UTF-8 without NUL, surrogates, overlong forms or numbers above 0x10ffff. */
INTERNAL bool is_utf8(const char *text, size_t n)
{
    for (size_t k = 0, length; k < n; k += length) {
        uint32_t point;
        length = character((const unsigned char *)text + k, n - k, &point);
        if (length == 0 || point == 0)
            return false;
    }
    return true;
}

/* Checks one field; why has at least 256 bytes. */
static bool field_valid(const struct stoc_field *f, bool variable, char *why)
{
    size_t n = strnlen(f->name, sizeof f->name);
    if (n == 0)
        return refuse(why, "a field has no name");
    if (n == sizeof f->name || !is_utf8(f->name, n))
        return refuse(why, "field name \"%.40s\" is not UTF-8 of at most %d bytes", f->name, (int)sizeof f->name - 1);
    if (f->dtype >= DTYPES)
        return refuse(why, "field \"%s\" has dtype %u, not in 0..%zu", f->name, f->dtype, DTYPES - 1);
    if (f->ndim > STOC_MAX_DIMS)
        return refuse(why, "field \"%s\" has %u dimensions, more than %lu", f->name, f->ndim, STOC_MAX_DIMS);
    for (unsigned k = 0; k < f->ndim; k++) {
        if (f->dims[k] == 0)
            return refuse(why, "dimension %u of field \"%s\" is 0", k, f->name);
        if (f->dims[k] == STOC_VARIABLE_DIM && !variable)
            return snprintf(why, 256,
                            "dimension %u of field \"%s\" differs between samples: that needs a variable-size cache", k,
                            f->name),
                   false;
        if (f->dims[k] != STOC_VARIABLE_DIM && f->dims[k] > STOC_MAX_SAMPLE_BYTES)
            return refuse(why, "dimension %u of field \"%s\" is %lu, more than %lu", k, f->name, f->dims[k],
                          STOC_MAX_SAMPLE_BYTES);
    }
    return true;
}

/*
 * Places the fields of a fixed-size sample one after the other, each at the next multiple of its
 * item size. *sample_bytes is the end of the last. *stride is that rounded up to the largest item,
 * so that the payload is one dense array. In a variable-size cache offsets and sizes are 0,
 * *sample_bytes is the size of the smallest sample, and *stride has no meaning.
 */
INTERNAL bool schema_lay_out(struct stoc_field *fields, uint32_t count, bool variable, uint64_t *sample_bytes,
                             uint64_t *stride, char *why)
{
    bool bare = count == 1 && fields[0].ndim == 1;
    uint64_t end = variable && !bare ? ROUND_UP(count * EXTENT_RECORD, STOC_UNIT_BYTES) : 0, align = 1;
    if (count < 1 || count > STOC_MAX_FIELDS)
        return refuse(why, "%u fields are not in 1..%lu", count, STOC_MAX_FIELDS);
    for (uint32_t k = 0; k < count; k++) {
        struct stoc_field *f = &fields[k];
        if (!field_valid(f, variable, why))
            return false;
        for (uint32_t j = 0; j < k; j++)
            if (strcmp(fields[j].name, f->name) == 0)
                return refuse(why, "two fields are named \"%s\"", f->name);
        f->offset = f->bytes = 0;
        uint64_t item = item_sizes[f->dtype], bytes = item;
        bool exact = true;
        for (unsigned d = 0; d < f->ndim; d++) {
            if (f->dims[d] == STOC_VARIABLE_DIM) {
                exact = false;
                continue;
            }
            if (bytes > STOC_MAX_SAMPLE_BYTES / f->dims[d])
                return refuse(why, "field \"%s\" is larger than %lu bytes", f->name, STOC_MAX_SAMPLE_BYTES);
            bytes *= f->dims[d];
        }
        if (!variable) {
            align = MAX(align, item);
            f->offset = ROUND_UP(end, item);
            f->bytes = bytes;
            end = f->offset + bytes;
        } else if (exact) {
            end += bare ? bytes : ROUND_UP(bytes, STOC_UNIT_BYTES);
        }
        if (end > STOC_MAX_SAMPLE_BYTES)
            return refuse(why, "the fields up to \"%s\" take %lu bytes, more than %lu", f->name, end,
                          STOC_MAX_SAMPLE_BYTES);
    }
    *sample_bytes = end;
    *stride = ROUND_UP(end, align);
    return true;
}

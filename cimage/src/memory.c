/* Memory that grows, and messages. */
#include "image.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

bool reserve(struct buffer *b, size_t bytes)
{
    if (bytes <= b->size)
        return true;
    size_t size = (bytes + bytes / 4 + 63) / 64 * 64; /* so that pictures of rising sizes rarely allocate */
    uint8_t *fresh = aligned_alloc(64, size);
    if (!fresh)
        return false;
    free(b->bytes);
    b->bytes = fresh;
    b->size = size;
    return true;
}

void release(struct buffer *b)
{
    free(b->bytes);
    *b = (struct buffer){0};
}

bool extend(struct buffer *b, size_t kept, size_t bytes)
{
    struct buffer fresh = {0};
    if (bytes <= b->size)
        return true;
    if (!reserve(&fresh, bytes))
        return false;
    if (b->size)
        memcpy(fresh.bytes, b->bytes, kept < b->size ? kept : b->size);
    release(b);
    *b = fresh;
    return true;
}

int fail(stoc_image_worker *w, int code, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    if (w)
        vsnprintf(w->message, sizeof w->message, format, values);
    va_end(values);
    return code;
}

/* The memory of one thread, and its messages. */
#include "image.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

uint32_t stoc_image_abi_version(void) { return STOC_IMAGE_ABI_VERSION; }

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

int fail(stoc_image_worker *w, int code, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vsnprintf(w->message, sizeof w->message, format, values);
    va_end(values);
    return code;
}

stoc_image_worker *stoc_image_worker_new(void)
{
    stoc_image_worker *w = calloc(1, sizeof *w);
    if (w)
        w->vectors = most_vectors();
    return w;
}

void stoc_image_worker_free(stoc_image_worker *w)
{
    if (!w)
        return;
    resize_free(&w->resize);
    release(&w->rows);
    release(&w->picture);
    release(&w->row);
    release(&w->file);
    release(&w->sample);
    release(&w->decoded);
    release(&w->passes[0]);
    release(&w->passes[1]);
    free(w);
}

const char *stoc_image_message(const stoc_image_worker *w) { return w ? w->message : "there is no worker"; }

int stoc_image_vectors(const stoc_image_worker *w) { return w ? w->vectors : 0; }

void stoc_image_use_vectors(stoc_image_worker *w, int most)
{
    if (w) {
        w->vectors = most < most_vectors() ? most : most_vectors();
        w->table.made = false; /* whether arithmetic is exact depends on it */
    }
}

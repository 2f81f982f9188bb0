/* A worker: what one thread needs. */
#include "image.h"

#include <stdlib.h>

uint32_t stoc_image_abi_version(void) { return STOC_IMAGE_ABI_VERSION; }

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
    release(&w->text);
    release(&w->joined);
    release(&w->inflated);
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

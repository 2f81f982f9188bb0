/* A bare loop over stoc_image_augment, with which the benchmarks compare a loader of cached pictures. */
#include "../../cimage/stocached_image.h"

typedef int augment_function(stoc_image_worker *, const struct stoc_image_picture *, const struct stoc_image_augment *,
                             void *, size_t);

/* Makes every step-th row from `first` to below n, of pictures[k] as hows[k] says, in a ring of so many rows of
 * float32. Returns the first error, or 0. */
int loop_augment(augment_function *augment, stoc_image_worker *worker, const struct stoc_image_picture *pictures,
                 const struct stoc_image_augment *hows, size_t first, size_t n, size_t step, float *ring, size_t rows)
{
    for (size_t k = first; k < n; k += step) {
        size_t items = (size_t)3 * hows[k].width * hows[k].height;
        int code = augment(worker, &pictures[k], &hows[k], ring + k % rows * items, items * sizeof *ring);
        if (code)
            return code;
    }
    return 0;
}

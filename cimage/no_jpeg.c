/* In place of src/jpeg.c where the headers of libjpeg-turbo are missing: all but the decoder works. */
#include "src/image.h"

static int refuse(stoc_image_worker *w)
{
    return w ? fail(w, STOC_IMAGE_EUNSUPPORTED, "this library was built without libjpeg-turbo") : STOC_IMAGE_EINVAL;
}

int stoc_image_read_info(stoc_image_worker *w, const void *file, size_t bytes, struct stoc_image_info *info)
{
    (void)file, (void)bytes, (void)info;
    return refuse(w);
}

int decode_window(stoc_image_worker *w, const void *file, size_t bytes, const struct stoc_image_decode *how,
                  const struct stoc_image_target *window, uint8_t *dst)
{
    (void)file, (void)bytes, (void)how, (void)window, (void)dst;
    return refuse(w);
}

int stoc_image_decode(stoc_image_worker *w, const void *file, size_t bytes, const struct stoc_image_decode *how,
                      uint8_t *dst, size_t dst_bytes)
{
    (void)file, (void)bytes, (void)how, (void)dst, (void)dst_bytes;
    return refuse(w);
}

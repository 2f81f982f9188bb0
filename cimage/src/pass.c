/* Passes over a picture, and the decode before the first one. */
#include "image.h"

/* Width and height of the decoded picture of a file. */
static int sides_of(stoc_image_worker *w, const void *file, size_t bytes, struct stoc_image_decode *how)
{
    if (how->width)
        return STOC_IMAGE_OK;
    struct stoc_image_info info;
    int code = stoc_image_read_info(w, file, bytes, &info);
    return code ? code : whole_of(w, info.width, info.height, how);
}

int first_of_file(stoc_image_worker *w, const uint8_t *file, uint64_t bytes, const struct stoc_image_decode *how,
                  struct pass *pass)
{
    pass->file = file;
    pass->file_bytes = bytes;
    pass->decode = *how;
    pass->boxes = how->width == 0;
    int code = sides_of(w, file, bytes, &pass->decode);
    pass->picture = (struct stoc_image_picture){NULL, pass->decode.width, pass->decode.height, 3, pass->decode.layout};
    return code;
}

/* Whether the steps use less than the whole picture. */
static bool uses_a_box(const struct stoc_image_augment *a, uint32_t width, uint32_t height)
{
    return a->box_x >= 0 && a->box_y >= 0 && (uint64_t)a->box_x + a->box_width <= width &&
           (uint64_t)a->box_y + a->box_height <= height && a->box_width && a->box_height &&
           (a->box_width < width || a->box_height < height);
}

int decode_for(stoc_image_worker *w, struct pass *pass)
{
    struct stoc_image_decode how = pass->decode;
    struct stoc_image_augment *a = &pass->how;
    struct stoc_image_target box = {how.width, how.height, (uint32_t)a->box_x, (uint32_t)a->box_y,
                                    a->box_width, a->box_height, 0, 0};
    bool boxed = pass->boxes && uses_a_box(a, how.width, how.height);
    if (boxed) {
        pass->picture.width = how.width = box.width;
        pass->picture.height = how.height = box.height;
        a->box_x = a->box_y = 0;
    }
    size_t bytes = (size_t)3 * how.width * how.height;
    if (!reserve(&w->decoded, bytes))
        return no_memory(w, bytes);
    pass->picture.pixels = w->decoded.bytes;
    return boxed ? decode_window(w, pass->file, pass->file_bytes, &how, &box, w->decoded.bytes)
                 : stoc_image_decode(w, pass->file, pass->file_bytes, &how, w->decoded.bytes, bytes);
}

int last_pass(stoc_image_worker *w, uint32_t steps, struct pass *pass, uint8_t *dst, size_t bytes)
{
    if (!steps && !pass->picture.pixels)
        return stoc_image_decode(w, pass->file, pass->file_bytes, &pass->decode, dst, bytes);
    if (!steps) {
        memcpy(dst, pass->picture.pixels, bytes);
        return STOC_IMAGE_OK;
    }
    int code = pass->picture.pixels ? STOC_IMAGE_OK : decode_for(w, pass);
    return code ? code : stoc_image_augment(w, &pass->picture, &pass->how, dst, bytes);
}

int stoc_image_augment_file(stoc_image_worker *w, const void *file, size_t bytes, const struct stoc_image_decode *how,
                            const struct stoc_image_augment *then, void *dst, size_t dst_bytes)
{
    if (!w || !file || !how || !then)
        return fail(w, STOC_IMAGE_EINVAL, "an argument is NULL");
    struct pass pass = {.how = *then};
    int code = first_of_file(w, file, bytes, how, &pass);
    if (code || (code = check_decode(w, &pass.decode)))
        return code;
    return last_pass(w, 1, &pass, dst, dst_bytes);
}

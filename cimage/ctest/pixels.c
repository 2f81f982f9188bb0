/* pixels FILE WIDTH HEIGHT FIT LAYOUT: writes what stoc_image_decode makes of a file. For the tests of
 * source/decode. */
#include <stdio.h>
#include <stdlib.h>

#include "stocached_image.h"

int main(int argc, char **argv)
{
    static char file[1 << 20];
    FILE *from = argc == 6 ? fopen(argv[1], "rb") : NULL;
    if (!from)
        return 2;
    size_t bytes = fread(file, 1, sizeof file, from);
    struct stoc_image_decode how = {.width = (uint32_t)atoi(argv[2]), .height = (uint32_t)atoi(argv[3]),
                                    .fit = (uint8_t)atoi(argv[4]), .layout = (uint8_t)atoi(argv[5])};
    size_t n = (size_t)3 * how.width * how.height;
    uint8_t *made = malloc(n);
    stoc_image_worker *worker = stoc_image_worker_new();
    if (!made || !worker || stoc_image_decode(worker, file, bytes, &how, made, n))
        return 1;
    return fwrite(made, 1, n, stdout) != n;
}

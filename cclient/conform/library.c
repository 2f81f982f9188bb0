#include "library.h"

#include <dlfcn.h>
#include <stdlib.h>

#define CONFORM_POINTER(name, parameters, arguments) static __typeof__(name) *pointer_##name;
CONFORM_CALLS(CONFORM_POINTER)
static __typeof__(stoc_close) *pointer_stoc_close;

#define CONFORM_DEFINE(name, parameters, arguments) \
    int64_t call_##name parameters { return pointer_##name arguments; }
CONFORM_CALLS(CONFORM_DEFINE)

void call_stoc_close(stoc_cache *cache) { pointer_stoc_close(cache); }

const char *conform_load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return dlerror();
#define CONFORM_FIND(name, parameters, arguments)                        \
    if (!(pointer_##name = (__typeof__(name) *)dlsym(library, #name)))   \
        return "libstocached has no " #name;
    CONFORM_CALLS(CONFORM_FIND)
    CONFORM_FIND(stoc_close, , )
    return NULL;
}

int64_t conform_set_parts(stoc_cache *cache, int64_t index, const unsigned char *data, const size_t *lengths, int count,
                          unsigned flags, uint64_t nanoseconds)
{
    struct iovec *parts = calloc((size_t)count + 1, sizeof *parts);
    for (int k = 0; k < count; k++) {
        parts[k] = (struct iovec){.iov_base = (void *)(uintptr_t)data, .iov_len = lengths[k]};
        data += lengths[k];
    }
    int64_t result = call_stoc_set_loaded(cache, index, parts, count, flags, nanoseconds);
    free(parts);
    return result;
}

/* library.h - libstocached, opened at run time. Each call below goes to the function of that name. */
#ifndef CONFORM_LIBRARY_H
#define CONFORM_LIBRARY_H

#include "../stocached.h"

/* name, parameters, arguments; all return something that fits int64_t */
#define CONFORM_CALLS(X)                                                                                              \
    X(stoc_create, (const char *n, const struct stoc_options *o, stoc_cache **c, struct stoc_error *e), (n, o, c, e)) \
    X(stoc_disk_open, (const char *p, const struct stoc_options *o, stoc_cache **c, struct stoc_error *e), (p, o, c, e)) \
    X(stoc_open, (const char *n, unsigned f, const char *p, stoc_cache **c, struct stoc_error *e), (n, f, p, c, e))   \
    X(stoc_open_fd, (int fd, unsigned f, const unsigned char *u, stoc_cache **c, struct stoc_error *e),               \
      (fd, f, u, c, e))                                                                                               \
    X(stoc_unlink, (const char *n, struct stoc_error *e), (n, e))                                                     \
    X(stoc_info, (const stoc_cache *c, struct stoc_info *i), (c, i))                                                  \
    X(stoc_get, (stoc_cache *c, int64_t i, void *d, size_t n, size_t *l), (c, i, d, n, l))                            \
    X(stoc_view, (stoc_cache *c, int64_t i, const void **d, size_t *l), (c, i, d, l))                                 \
    X(stoc_gather, (stoc_cache *c, const int64_t *i, size_t n, int f, void *d, size_t s, uint8_t *h, unsigned t),     \
      (c, i, n, f, d, s, h, t))                                                                                       \
    X(stoc_lengths, (stoc_cache *c, const int64_t *i, size_t n, uint64_t *l), (c, i, n, l))                           \
    X(stoc_gather_packed, (stoc_cache *c, const int64_t *i, size_t n, void *d, const uint64_t *o,                     \
      const uint64_t *l, uint8_t *h, unsigned t),                                                                     \
      (c, i, n, d, o, l, h, t))                                                                                       \
    X(stoc_learn_length, (stoc_cache *c, int64_t i, uint64_t n), (c, i, n))                                           \
    X(stoc_learned_lengths, (const stoc_cache *c, uint64_t f, uint64_t n, uint64_t *l), (c, f, n, l))                 \
    X(stoc_state, (const stoc_cache *c, int64_t i), (c, i))                                                           \
    X(stoc_states, (const stoc_cache *c, uint64_t f, uint64_t n, uint8_t *s), (c, f, n, s))                           \
    X(stoc_peek, (stoc_cache *c, int64_t i, void *d, size_t n), (c, i, d, n))                                         \
    X(stoc_set, (stoc_cache *c, int64_t i, const void *d, size_t n, unsigned f), (c, i, d, n, f))                     \
    X(stoc_set_loaded, (stoc_cache *c, int64_t i, const struct iovec *p, int n, unsigned f, uint64_t t),               \
      (c, i, p, n, f, t))                                                                                             \
    X(stoc_claim, (stoc_cache *c, int64_t i, size_t n, unsigned f, struct stoc_claim *k), (c, i, n, f, k))            \
    X(stoc_write, (struct stoc_claim *k, uint64_t o, const void *d, size_t n), (k, o, d, n))                          \
    X(stoc_publish, (struct stoc_claim *k), (k))                                                                      \
    X(stoc_abort, (struct stoc_claim *k), (k))                                                                        \
    X(stoc_clear, (stoc_cache *c, unsigned t), (c, t))                                                                \
    X(stoc_recover, (stoc_cache *c), (c))                                                                             \
    X(stoc_verify, (stoc_cache *c, uint64_t f, uint64_t n, uint64_t *k, int64_t *b), (c, f, n, k, b))                 \
    X(stoc_stats, (stoc_cache *c, struct stoc_stats *s), (c, s))

#define CONFORM_DECLARE(name, parameters, arguments) int64_t call_##name parameters;
CONFORM_CALLS(CONFORM_DECLARE)

void call_stoc_close(stoc_cache *cache);

/* Opens the library. Returns NULL, or an error text. */
const char *conform_load(const char *path);

/* stoc_set_loaded of consecutive parts of one buffer. */
int64_t conform_set_parts(stoc_cache *cache, int64_t index, const unsigned char *data, const size_t *lengths, int count,
                          unsigned flags, uint64_t nanoseconds);

#endif

/* Random numbers of steps: the caller's, or those of numpy.random.PCG64 (docs/spec/image.md, Random numbers).
 * O'Neill's PCG XSL RR 128/64. */
#include "image.h"

__extension__ typedef unsigned __int128 wide;

static uint64_t next(struct random *r)
{
    const wide multiplier = (wide)UINT64_C(0x2360ED051FC65DA4) << 64 | UINT64_C(0x4385DF649FCCF645);
    r->state = r->state * multiplier + r->increment;
    uint64_t folded = (uint64_t)(r->state >> 64) ^ (uint64_t)r->state;
    unsigned turn = (unsigned)(r->state >> 122);
    return folded >> turn | folded << (-turn & 63);
}

/* A word more of `chain` (docs/spec/order.md). */
static uint64_t chained(uint64_t key, uint64_t word)
{
    uint64_t x = (key ^ word) + UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

struct random random_of(uint64_t seed, uint64_t stage)
{
    if (stage)
        seed = chained(chained(chained(seed, stage), 0), 0);
    struct random r = {
        .state = (wide)seed * UINT64_C(0xDA942042E4DD58B5) + 1, .increment = (wide)seed << 1 | 1, .stage = stage};
    next(&r); /* the first state is mostly zeros */
    return r;
}

double draw(struct random *r)
{
    double x = r->draw ? r->draw(r->context, r->stage) : (double)(next(r) >> 11) * 0x1p-53;
    return x >= 0 && x < 1 ? x : 0; /* the caller's may be anything */
}

double draw_between(struct random *r, double low, double high) { return low + (high - low) * draw(r); }

uint32_t draw_below(struct random *r, uint32_t n) { return (uint32_t)(draw(r) * n); }

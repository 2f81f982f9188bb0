/*
 * weights.c - samples drawn by weight, from an alias table in whole numbers: docs/spec/order.md.
 */
#include "order.h"

/* A double that is not negative is exactly mantissa * 2^exponent. */
static uint64_t mantissa_of(double w, int *exponent)
{
    uint64_t bits;
    memcpy(&bits, &w, sizeof bits);
    uint64_t mantissa = bits & ((UINT64_C(1) << 52) - 1);
    int biased = (int)(bits >> 52 & 0x7ff);
    *exponent = (biased ? biased : 1) - 1075;
    return biased ? mantissa | UINT64_C(1) << 52 : mantissa;
}

static unsigned binary_digits(uint64_t x) { return x ? 64 - (unsigned)__builtin_clzll(x) : 0; }

/* w * 2^(62-greatest), rounded down. */
static uint64_t whole_weight(double w, int greatest)
{
    int exponent;
    uint64_t mantissa = mantissa_of(w, &exponent);
    int shift = exponent + 62 - greatest;
    /* a mantissa of 0 may have any shift */
    return shift >= 0 ? mantissa << (shift & 63) : shift > -64 ? mantissa >> -shift : 0;
}

/* m shifted like room when room is shifted to 64 bits. */
static uint64_t normal(wide m, wide room)
{
    unsigned digits = (uint64_t)(room >> 64) ? 64 + binary_digits((uint64_t)(room >> 64))
                                             : binary_digits((uint64_t)room);
    return digits > 64 ? (uint64_t)(m >> (digits - 64)) : (uint64_t)m << (64 - digits);
}

/* m / room, as a multiple of 2^-64. */
static uint64_t share(wide m, wide room)
{
    uint64_t own = normal(m, room), all = normal(room, room);
    return own >= all ? UINT64_MAX : (uint64_t)(((wide)own << 64) / all);
}

struct masses {
    const double *weights;
    uint64_t n;
    int greatest; /* exponent of the greatest weight */
    wide room;    /* capacity of a bucket */
};

static wide mass(const struct masses *m, uint64_t k) { return (wide)whole_weight(m->weights[k], m->greatest) * m->n; }

/* The next sample from k on that is heavy, or light; n: none. */
static uint64_t next_mass(const struct masses *m, uint64_t k, bool heavy)
{
    while (k < m->n && (mass(m, k) > m->room) != heavy)
        k++;
    return k;
}

static void make_table(struct stoc_weights *t, const struct masses *m)
{
    for (uint64_t k = 0; k < m->n; k++)
        t->buckets[k] = (struct bucket){UINT64_MAX, k};
    uint64_t light = next_mass(m, 0, false), heavy = next_mass(m, 0, true);
    if (heavy == m->n) /* all weights are equal */
        return;
    for (wide left = mass(m, heavy);;) {
        if (left > m->room) {
            wide w = mass(m, light);
            t->buckets[light] = (struct bucket){share(w, m->room), heavy};
            left -= m->room - w;
            light = next_mass(m, light + 1, false);
            continue;
        }
        uint64_t k = next_mass(m, heavy + 1, true);
        if (k == m->n) /* what is left fills one bucket */
            return;
        t->buckets[heavy] = (struct bucket){share(left, m->room), k};
        left = mass(m, k) - (m->room - left);
        heavy = k;
    }
}

int stoc_weights_open(const double *weights, uint64_t n, stoc_weights **out, struct stoc_error *error)
{
    if (begin_open(out, "weights", "", "", error) < 0)
        return STOC_EINVAL;
    if (!weights || n < 1 || n > STOC_MAX_SAMPLES)
        return fail(error, STOC_EINVAL, 0, "weights: %lu are not in 1..%lu, one for each sample%s",
                    n, STOC_MAX_SAMPLES, weights ? "" : "; weights is NULL");
    double greatest = 0;
    for (uint64_t k = 0; k < n; k++) {
        if (!(weights[k] >= 0 && weights[k] <= 1.7976931348623157e308)) /* NaN too */
            return fail(error, STOC_EINVAL, 0, "weights: weight %lu is %g; weights are finite and not below 0",
                        k, weights[k]);
        if (weights[k] > greatest)
            greatest = weights[k];
    }
    if (!(greatest > 0))
        return fail(error, STOC_EINVAL, 0, "weights: all %lu are 0; one sample must have more", n);
    stoc_weights *t = malloc(sizeof *t + n * sizeof *t->buckets);
    if (!t)
        return fail(error, STOC_EMEMORY, ENOMEM, "no memory for the weights of %lu samples, %lu bytes",
                    n, n * sizeof *t->buckets);
    atomic_init(&t->users, 1);
    t->samples = n;
    struct masses m = {.weights = weights, .n = n};
    uint64_t mantissa = mantissa_of(greatest, &m.greatest);
    m.greatest += (int)binary_digits(mantissa);
    for (uint64_t k = 0; k < n; k++)
        m.room += whole_weight(weights[k], m.greatest);
    make_table(t, &m);
    *out = t;
    return 0;
}

void stoc_weights_close(stoc_weights *t)
{
    if (t && atomic_fetch_sub_explicit(&t->users, 1, memory_order_acq_rel) == 1)
        free(t);
}

INTERNAL inline uint64_t draw_at(const struct stoc_weights *t, uint64_t key, uint64_t position)
{
    uint64_t k = below(mix(key + (2 * position + 1) * GOLDEN), t->samples);
    return mix(key + (2 * position + 2) * GOLDEN) < t->buckets[k].threshold ? k : t->buckets[k].alias;
}

/*
 * order.c - the order of an epoch as a function of a position: docs/order.md.
 */

#define ORDER_ROUNDS 10
#define ORDER_SMALLEST 257 /* the least n that goes through rounds; below it a table is shuffled */
#define GOLDEN UINT64_C(0x9E3779B97F4A7C15)

enum { OF_SAMPLES, OF_BLOCKS, OF_WINDOW };

__extension__ typedef unsigned __int128 wide;

/* A keyed permutation of 0..n-1. */
struct permutation {
    uint64_t n, a, b;
    double inverse; /* 1/b, for a division without one */
    uint64_t keys[ORDER_ROUNDS];
    uint8_t table[ORDER_SMALLEST - 1], places[ORDER_SMALLEST - 1]; /* for a small n: of a position, and of an index */
};

/* A part of an epoch whose samples are shuffled among each other. */
struct window {
    uint64_t number, first, samples; /* first: position */
    uint64_t short_at;               /* where in it, of its samples in the order of blocks, those begin that the last block lacks; samples: it is not in it */
    struct permutation shuffle;
};

struct stoc_epoch {
    struct stoc_order order;
    uint64_t number;
    uint64_t block, blocks, window; /* samples of a block (1 for windows of samples), how many there are, blocks of a window */
    uint64_t missing, short_block;  /* samples that the last block has fewer than the others; where it stands */
    struct permutation whole;       /* of the samples, or of the blocks */
};

static inline uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

static inline uint64_t below(uint64_t x, uint64_t n) { return (uint64_t)((wide)x * n >> 64); }

static void key_permutation(struct permutation *p, uint64_t n, uint64_t seed, uint64_t epoch, uint64_t use, uint64_t part)
{
    const uint64_t words[] = {epoch, use, part, n};
    uint64_t key = mix(seed + GOLDEN);
    for (size_t k = 0; k < sizeof words / sizeof *words; k++)
        key = mix((key ^ words[k]) + GOLDEN);
    p->n = n;
    if (n < ORDER_SMALLEST) {
        for (unsigned k = 0; k < n; k++)
            p->table[k] = (uint8_t)k;
        for (uint64_t k = n; k > 1; k--) {
            uint64_t other = below(mix(key + k * GOLDEN), k);
            uint8_t swap = p->table[k - 1];
            p->table[k - 1] = p->table[other];
            p->table[other] = swap;
        }
        for (unsigned k = 0; k < n; k++)
            p->places[p->table[k]] = (uint8_t)k;
        return;
    }
    uint64_t a = 1, step = UINT64_C(1) << 20; /* the root by halving: libm is not asked for */
    for (; step; step /= 2)
        while ((a + step - 1) * (a + step - 1) < n)
            a += step;
    p->a = a;
    p->b = (n + a - 1) / a;
    p->inverse = 1.0 / (double)p->b;
    for (unsigned k = 0; k < ORDER_ROUNDS; k++)
        p->keys[k] = mix(key + (k + 1) * GOLDEN);
}

/* x / b and x % b. x is below 2^41, and so exact as a double; the quotient is at most one too large or too small. */
static inline void split(const struct permutation *p, uint64_t x, uint64_t *left, uint64_t *right)
{
    uint64_t quotient = (uint64_t)((double)x * p->inverse), rest = x - quotient * p->b;
    if ((int64_t)rest < 0) {
        quotient--;
        rest += p->b;
    } else if (rest >= p->b) {
        quotient++;
        rest -= p->b;
    }
    *left = quotient;
    *right = rest;
}

static uint64_t permutation_at(const struct permutation *p, uint64_t x)
{
    if (p->n < ORDER_SMALLEST)
        return p->table[x];
    do {
        uint64_t left, right;
        split(p, x, &left, &right);
        for (unsigned k = 0; k < ORDER_ROUNDS; k += 2) {
            left += below(mix(right ^ p->keys[k]), p->a);
            left -= left >= p->a ? p->a : 0;
            right += below(mix(left ^ p->keys[k + 1]), p->b);
            right -= right >= p->b ? p->b : 0;
        }
        x = left * p->b + right;
    } while (x >= p->n);
    return x;
}

static uint64_t permutation_position(const struct permutation *p, uint64_t x)
{
    if (p->n < ORDER_SMALLEST)
        return p->places[x];
    do {
        uint64_t left, right;
        split(p, x, &left, &right);
        for (unsigned k = ORDER_ROUNDS; k > 0; k -= 2) {
            uint64_t less = below(mix(left ^ p->keys[k - 1]), p->b);
            right += (right < less ? p->b : 0) - less;
            less = below(mix(right ^ p->keys[k - 2]), p->a);
            left += (left < less ? p->a : 0) - less;
        }
        x = left * p->b + right;
    } while (x >= p->n);
    return x;
}

/* ------------------------------------------------------------------------------------------------ windows */

/* The position at which a window begins. */
static uint64_t window_begin(const struct stoc_epoch *e, uint64_t number)
{
    uint64_t block = MIN(number * e->window, e->blocks);
    return block * e->block - (e->short_block < block ? e->missing : 0);
}

static void window_of(const struct stoc_epoch *e, uint64_t number, struct window *w)
{
    w->number = number;
    w->first = window_begin(e, number);
    w->samples = window_begin(e, number + 1) - w->first;
    w->short_at = e->short_block / e->window == number ? (e->short_block % e->window + 1) * e->block - e->missing : w->samples;
    key_permutation(&w->shuffle, w->samples, e->order.seed, e->number, OF_WINDOW, number);
}

static void window_at(const struct stoc_epoch *e, uint64_t position, struct window *w)
{
    uint64_t size = e->window * e->block, number = position / size, behind = e->short_block / e->window + 1;
    if (number >= behind || position >= window_begin(e, behind))
        number = (position + e->missing) / size;
    window_of(e, number, w);
}

static uint64_t index_of(const struct stoc_epoch *e, const struct window *w, uint64_t position)
{
    uint64_t k = permutation_at(&w->shuffle, position - w->first);
    if (k >= w->short_at)
        k += e->missing;
    uint64_t block = w->number * e->window + k / e->block;
    if (e->order.kind == STOC_ORDER_BLOCKS)
        block = permutation_at(&e->whole, block);
    return block * e->block + k % e->block;
}

/* ------------------------------------------------------------------------------------------------ what is exported */

int stoc_epoch_open(const struct stoc_order *order, uint64_t number, stoc_epoch **out, struct stoc_error *error)
{
    no_error(error);
    if (!out)
        return fail(error, STOC_EINVAL, 0, "no place for the epoch: out is NULL");
    *out = NULL;
    if (!order)
        return fail(error, STOC_EINVAL, 0, "no order given");
    if (order->struct_bytes != sizeof *order)
        return fail(error, STOC_EINVAL, 0, "struct_bytes: %llu, this library's orders have %zu; set it to sizeof(struct stoc_order) and use the header of this version",
                    (unsigned long long)order->struct_bytes, sizeof *order);
    if (order->samples < 1 || order->samples > STOC_MAX_SAMPLES)
        return fail(error, STOC_EINVAL, 0, "samples: %llu is not in 1..%llu", (unsigned long long)order->samples, (unsigned long long)STOC_MAX_SAMPLES);
    if (order->kind > STOC_ORDER_BLOCKS || order->reserved)
        return fail(error, STOC_EINVAL, 0, "kind: %u is not in 0..%d (and reserved is %u, not 0)", order->kind, STOC_ORDER_BLOCKS, order->reserved);
    if ((order->kind == STOC_ORDER_WINDOWS || order->kind == STOC_ORDER_BLOCKS) != (order->window > 0))
        return fail(error, STOC_EINVAL, 0, "window: %llu; windows and blocks need one, other kinds have none", (unsigned long long)order->window);
    if ((order->kind == STOC_ORDER_BLOCKS) != (order->block > 0))
        return fail(error, STOC_EINVAL, 0, "block: %llu; blocks need a size, other kinds have none", (unsigned long long)order->block);
    stoc_epoch *e = calloc(1, sizeof *e);
    if (!e)
        return fail(error, STOC_EMEMORY, ENOMEM, "no memory for an epoch of %zu bytes", sizeof *e);
    uint64_t n = order->samples;
    e->order = *order;
    e->number = number;
    switch (order->kind) {
    case STOC_ORDER_SHUFFLED:
        key_permutation(&e->whole, n, order->seed, number, OF_SAMPLES, 0);
        break;
    case STOC_ORDER_WINDOWS:
        e->block = 1;
        e->blocks = n;
        e->window = MIN(order->window, n);
        e->short_block = n - 1;
        break;
    case STOC_ORDER_BLOCKS:
        e->block = MIN(order->block, n);
        e->blocks = (n + e->block - 1) / e->block;
        e->window = MIN(order->window, e->blocks);
        e->missing = e->blocks * e->block - n;
        key_permutation(&e->whole, e->blocks, order->seed, number, OF_BLOCKS, 0);
        e->short_block = permutation_position(&e->whole, e->blocks - 1);
        break;
    }
    *out = e;
    return 0;
}

void stoc_epoch_close(stoc_epoch *e) { free(e); }

int64_t stoc_epoch_at(const stoc_epoch *e, uint64_t position)
{
    struct window w;
    if (!e)
        return STOC_ECLOSED;
    if (position >= e->order.samples)
        return STOC_EINDEX;
    switch (e->order.kind) {
    case STOC_ORDER_SEQUENTIAL:
        return (int64_t)position;
    case STOC_ORDER_SHUFFLED:
        return (int64_t)permutation_at(&e->whole, position);
    default:
        window_at(e, position, &w);
        return (int64_t)index_of(e, &w, position);
    }
}

int64_t stoc_epoch_position(const stoc_epoch *e, int64_t index)
{
    struct window w;
    if (!e)
        return STOC_ECLOSED;
    if ((uint64_t)index >= e->order.samples)
        return STOC_EINDEX;
    uint64_t i = (uint64_t)index;
    if (e->order.kind == STOC_ORDER_SEQUENTIAL)
        return index;
    if (e->order.kind == STOC_ORDER_SHUFFLED)
        return (int64_t)permutation_position(&e->whole, i);
    uint64_t block = i / e->block;
    if (e->order.kind == STOC_ORDER_BLOCKS)
        block = permutation_position(&e->whole, block);
    window_of(e, block / e->window, &w);
    uint64_t k = block % e->window * e->block + i % e->block;
    if (k >= w.short_at)
        k -= e->missing;
    return (int64_t)(w.first + permutation_position(&w.shuffle, k));
}

int64_t stoc_epoch_fill(const stoc_epoch *e, int64_t *indices, size_t n, uint64_t first, uint64_t step)
{
    struct window w = {.samples = 0};
    if (!e)
        return STOC_ECLOSED;
    if ((n && !indices) || step < 1)
        return STOC_EINVAL;
    size_t k = 0;
    for (uint64_t position = first; k < n && position < e->order.samples; k++) {
        switch (e->order.kind) {
        case STOC_ORDER_SEQUENTIAL:
            indices[k] = (int64_t)position;
            break;
        case STOC_ORDER_SHUFFLED:
            indices[k] = (int64_t)permutation_at(&e->whole, position);
            break;
        default:
            if (position - w.first >= w.samples) /* the first one, as well */
                window_at(e, position, &w);
            indices[k] = (int64_t)index_of(e, &w, position);
        }
        if (step >= e->order.samples - position)
            return (int64_t)k + 1;
        position += step;
    }
    return (int64_t)k;
}

/*
 * epoch.c - the order of an epoch as a function of a position, for all kinds of orders, and its
 * shards for ranks: docs/spec/order.md.
 */
#include "order.h"

struct stoc_epoch {
    uint64_t positions, number;
    enum { IS_PLAIN, IS_DRAWS, IS_MIX } is;
    struct plain plain;
    stoc_weights *weights;
    uint64_t key; /* key of the draws */
    struct mixture *mixture;
};

/* Results that a call for many positions keeps between them. */
struct epoch_memory {
    struct window window;
    struct mix_memory mix;
};

static void forget(const struct stoc_epoch *e, struct epoch_memory *memory)
{
    memory->window.first = memory->window.samples = 0;
    if (e->is == IS_MIX)
        for (unsigned k = 0; k < MIX_SLOTS; k++)
            memory->mix.slots[k].made = false;
}

static inline uint64_t epoch_at(const struct stoc_epoch *e, uint64_t position, struct epoch_memory *memory)
{
    switch (e->is) {
    case IS_PLAIN:
        return plain_at(&e->plain, position, &memory->window);
    case IS_DRAWS:
        return draw_at(e->weights, e->key, position);
    default:
        return mixture_at(e->mixture, position, &memory->mix);
    }
}

static bool is_shuffled(const struct stoc_epoch *e)
{
    return e->is == IS_PLAIN && e->plain.order.kind == STOC_ORDER_SHUFFLED;
}

static int new_epoch(stoc_epoch **out, struct stoc_error *error)
{
    *out = calloc(1, sizeof **out);
    return *out ? 0 : fail(error, STOC_EMEMORY, ENOMEM, "no memory for an epoch of %zu bytes", sizeof **out);
}

int stoc_epoch_open(const struct stoc_order *order, uint64_t number, stoc_epoch **out, struct stoc_error *error)
{
    int code = begin_open(out, "epoch", order, "no order given", error);
    if (code < 0 || (code = check_order(order, "", error)) < 0 || (code = new_epoch(out, error)) < 0)
        return code;
    (*out)->positions = order->samples;
    (*out)->number = number;
    plain_begin(&(*out)->plain, order, number);
    return 0;
}

int stoc_epoch_open_weighted(stoc_weights *weights, uint64_t draws, uint64_t seed, uint64_t number, stoc_epoch **out,
                             struct stoc_error *error)
{
    int code = begin_open(out, "epoch", weights, "no weights given; stoc_weights_open makes them", error);
    if (code == 0 && draws > STOC_MAX_SAMPLES)
        return fail(error, STOC_EINVAL, 0, "draws: %lu are more than %lu", draws, STOC_MAX_SAMPLES);
    if (code < 0 || (code = new_epoch(out, error)) < 0)
        return code;
    stoc_epoch *e = *out;
    atomic_fetch_add_explicit(&weights->users, 1, memory_order_relaxed);
    e->is = IS_DRAWS;
    e->number = number;
    e->weights = weights;
    e->positions = draws ? draws : weights->samples;
    e->key = CHAIN(seed, number, OF_DRAWS, 0, weights->samples);
    return 0;
}

int stoc_epoch_open_mixed(const struct stoc_mix *mix, uint64_t number, stoc_epoch **out, struct stoc_error *error)
{
    int code = begin_open(out, "epoch", mix, "no mix given", error);
    if (code < 0 || (code = check_mix(mix, error)) < 0 || (code = new_epoch(out, error)) < 0)
        return code;
    stoc_epoch *e = *out;
    e->is = IS_MIX;
    e->number = number;
    e->mixture = mixture_open(mix, number);
    if (!e->mixture)
        code = fail(error, STOC_EMEMORY, ENOMEM, "no memory for a mix of %lu datasets", mix->datasets);
    else if ((e->positions = mixture_begin(e->mixture, mix)) > STOC_MAX_SAMPLES)
        code = fail(error, STOC_EINVAL, 0,
                    "an epoch would have more than %lu positions until %s been read to the end; set a length "
                    "(STOC_MIX_LENGTH) or closer ratios",
                    STOC_MAX_SAMPLES, mix->stop == STOC_MIX_FIRST ? "a dataset has" : "all datasets have");
    if (code < 0) {
        stoc_epoch_close(e);
        *out = NULL;
    }
    return code;
}

void stoc_epoch_close(stoc_epoch *e)
{
    if (!e)
        return;
    stoc_weights_close(e->weights);
    mixture_close(e->mixture);
    free(e);
}

INTERNAL uint64_t epoch_number(const struct stoc_epoch *e) { return e->number; }

int64_t stoc_epoch_length(const stoc_epoch *e) { return e ? (int64_t)e->positions : STOC_ECLOSED; }

int64_t stoc_epoch_at(const stoc_epoch *e, uint64_t position)
{
    struct epoch_memory memory;
    if (!e)
        return STOC_ECLOSED;
    if (position >= e->positions)
        return STOC_EINDEX;
    forget(e, &memory);
    return (int64_t)epoch_at(e, position, &memory);
}

int64_t stoc_epoch_position(const stoc_epoch *e, int64_t index)
{
    if (!e)
        return STOC_ECLOSED;
    if (e->is != IS_PLAIN)
        return STOC_EUNSUPPORTED;
    if ((uint64_t)index >= e->positions)
        return STOC_EINDEX;
    return (int64_t)plain_position(&e->plain, (uint64_t)index);
}

int64_t stoc_epoch_fill(const stoc_epoch *e, int64_t *indices, size_t n, uint64_t first, uint64_t step)
{
    struct epoch_memory memory;
    if (!e)
        return STOC_ECLOSED;
    if ((n && !indices) || step < 1)
        return STOC_EINVAL;
    size_t k = 0;
    if (is_shuffled(e) && first < e->positions) {
        n = MIN(n, (e->positions - 1 - first) / step + 1);
        permutation_run(&e->plain.whole, first, step, indices, n);
        return (int64_t)n;
    }
    forget(e, &memory);
    for (uint64_t position = first; k < n && position < e->positions; k++) {
        indices[k] = (int64_t)epoch_at(e, position, &memory);
        if (step >= e->positions - position)
            return (int64_t)k + 1;
        position += step;
    }
    return (int64_t)k;
}

/* ------------------------------------------------------------ shards */

int stoc_epoch_shard(const stoc_epoch *e, struct stoc_shard *s, struct stoc_error *error)
{
    no_error(error);
    if (!e)
        return fail(error, STOC_ECLOSED, 0, "no epoch given");
    if (!s)
        return fail(error, STOC_EINVAL, 0, "no shard given");
    if (check_struct(s->struct_bytes, sizeof *s, "shard", "shards", "", error) < 0)
        return STOC_EINVAL;
    if (s->ranks < 1 || s->ranks > STOC_MAX_SAMPLES || s->rank >= s->ranks)
        return fail(error, STOC_EINVAL, 0, "rank: %lu of %lu; there are 1 to %lu ranks, and they count from 0",
                    s->rank, s->ranks, STOC_MAX_SAMPLES);
    if (s->from > e->positions)
        return fail(error, STOC_EINVAL, 0, "from: %lu is after the end of the epoch, which has %lu positions",
                    s->from, e->positions);
    if (s->ends > STOC_ENDS_DROP || s->reserved)
        return fail(error, STOC_EINVAL, 0, "ends: %u is not in 0..%d (and reserved is %u, not 0)", s->ends,
                    STOC_ENDS_DROP, s->reserved);
    uint64_t left = e->positions - s->from;
    s->samples = s->real = (left + s->ranks - 1 - s->rank) / s->ranks;
    if (s->ends == STOC_ENDS_PAD)
        s->samples = (left + s->ranks - 1) / s->ranks;
    if (s->ends == STOC_ENDS_DROP)
        s->samples = s->real = left / s->ranks;
    return 0;
}

int64_t stoc_epoch_fill_shard(const stoc_epoch *e, const struct stoc_shard *s, int64_t *indices, size_t n,
                              uint64_t first)
{
    struct epoch_memory memory;
    if (!e)
        return STOC_ECLOSED;
    if (!s || (n && !indices) || s->struct_bytes != sizeof *s || s->rank >= s->ranks || s->from > e->positions ||
        s->samples > STOC_MAX_SAMPLES)
        return STOC_EINVAL;
    uint64_t left = e->positions - s->from;
    size_t k = 0;
    if (is_shuffled(e) && first < s->samples && s->rank + first * s->ranks < left) {
        /* up to the first padded position */
        k = MIN(n, MIN(s->samples - first, (left - 1 - s->rank - first * s->ranks) / s->ranks + 1));
        permutation_run(&e->plain.whole, s->from + s->rank + first * s->ranks, s->ranks, indices, k);
    }
    forget(e, &memory);
    for (uint64_t own = first + k; k < n && own < s->samples && left; k++, own++) {
        uint64_t position = s->from + s->rank + own * s->ranks;
        indices[k] = (int64_t)epoch_at(e, position < e->positions ? position : position % e->positions, &memory);
    }
    return (int64_t)k;
}

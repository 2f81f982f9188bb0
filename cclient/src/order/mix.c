/*
 * mix.c - several datasets by ratio: a tree decides which dataset comes at a position.
 * docs/spec/order.md.
 */
#include "order.h"

/* the sum of the ratios is below it, so that a product of two fits into 64 bits */
#define MAX_TURNS (UINT64_C(1) << 31)
#define MAX_DATASETS 65536
#define NEVER (STOC_MAX_SAMPLES + 1) /* a position that no epoch has */
/* A node of the tree passes its items to two children by their weights. The leaves are the
 * datasets. */
struct node {
    uint64_t weight, key;
    uint32_t lesser, greater, parent;
};

/* A dataset. */
struct member {
    struct stoc_order order; /* with its seed in this mix */
    uint64_t offset;         /* index of its first sample */
    uint64_t before;         /* number of its items in earlier epochs */
};

struct mixture {
    uint64_t number;
    uint32_t datasets, root;
    bool goes_on; /* the next epoch continues each dataset where it was */
    struct node *nodes; /* 0..datasets-1: the datasets */
    struct member members[];
};

/* ------------------------------------------------------------ the tree */

/* The lesser of two nodes has less weight, or the lower number if they are equal. Nodes are joined
 * in the order of their weights, so two queues hold all of them in order: the sorted datasets, and
 * the joined nodes. */
struct queues {
    const struct node *nodes;
    const uint32_t *datasets; /* sorted */
    uint32_t n, dataset, joined, made;
};

static uint32_t least(struct queues *q)
{
    if (q->joined == q->made ||
        (q->dataset < q->n && q->nodes[q->datasets[q->dataset]].weight <= q->nodes[q->joined].weight))
        return q->datasets[q->dataset++];
    return q->joined++;
}

struct turn {
    uint64_t weight;
    uint32_t dataset;
};

static int compare_turns(const void *a, const void *b)
{
    const struct turn *v = a, *w = b;
    return v->weight != w->weight ? v->weight < w->weight ? -1 : 1 : v->dataset < w->dataset ? -1 : 1;
}

/* turns and sorted have one entry for each dataset. */
static void make_tree(struct mixture *m, uint64_t seed, const uint64_t *ratios, struct turn *turns, uint32_t *sorted)
{
    uint32_t n = m->datasets;
    for (uint32_t k = 0; k < n; k++) {
        m->nodes[k].weight = ratios[k];
        turns[k] = (struct turn){ratios[k], k};
    }
    qsort(turns, n, sizeof *turns, compare_turns);
    for (uint32_t k = 0; k < n; k++)
        sorted[k] = turns[k].dataset;
    struct queues q = {.nodes = m->nodes, .datasets = sorted, .n = n, .joined = n, .made = n};
    for (; q.made < 2 * n - 1; q.made++) {
        struct node *joined = &m->nodes[q.made];
        joined->lesser = least(&q);
        joined->greater = least(&q);
        joined->weight = m->nodes[joined->lesser].weight + m->nodes[joined->greater].weight;
        joined->key = CHAIN(seed, OF_NODE, q.made, joined->weight);
        m->nodes[joined->lesser].parent = m->nodes[joined->greater].parent = q.made;
    }
    m->root = 2 * n - 2;
}

/* The first item of a stratum. The lesser child, of weight a, gets one item of each stratum. */
static inline uint64_t stratum_first(const struct node *n, uint64_t stratum, uint64_t a)
{
    return stratum / a * n->weight + (stratum % a * n->weight + a - 1) / a;
}

/* The item of the stratum that the lesser child gets. */
static inline uint64_t stratum_chosen(const struct node *n, uint64_t stratum, uint64_t first, uint64_t a)
{
    return first + below(mix(n->key + (stratum + 1) * GOLDEN), stratum_first(n, stratum + 1, a) - first);
}

/* Number of items before this one that the lesser child gets, and whether it gets this one. */
static inline uint64_t lessers(const struct node *n, uint64_t item, uint64_t a, bool *it)
{
    uint64_t stratum = item / n->weight * a + item % n->weight * a / n->weight;
    uint64_t chosen = stratum_chosen(n, stratum, stratum_first(n, stratum, a), a);
    *it = item == chosen;
    return stratum + (item > chosen);
}

/* The dataset that comes at a position. item: which of its items. */
static inline uint32_t turn_at(const struct mixture *m, uint64_t position, uint64_t *item)
{
    uint32_t k = m->root;
    *item = position;
    while (k >= m->datasets) {
        const struct node *n = &m->nodes[k];
        bool lesser;
        uint64_t before = lessers(n, *item, m->nodes[n->lesser].weight, &lesser);
        k = lesser ? n->lesser : n->greater;
        *item = lesser ? before : *item - before;
    }
    return k;
}

/* Number of items before a position that a node gets. The tree is at most 44 deep. */
static uint64_t turns_before(const struct mixture *m, uint32_t k, uint64_t position)
{
    if (k == m->root)
        return position;
    const struct node *n = &m->nodes[m->nodes[k].parent];
    bool it;
    uint64_t items = turns_before(m, m->nodes[k].parent, position),
             before = lessers(n, items, m->nodes[n->lesser].weight, &it);
    return k == n->lesser ? before : items - before;
}

/* The position of an item of a dataset: the inverse of turn_at. At most NEVER. */
static uint64_t turn_position(const struct mixture *m, uint32_t k, uint64_t item)
{
    while (k != m->root) {
        uint32_t parent = m->nodes[k].parent;
        const struct node *n = &m->nodes[parent];
        uint64_t a = m->nodes[n->lesser].weight, b = n->weight - a;
        if (item / m->nodes[k].weight > STOC_MAX_SAMPLES / n->weight)
            return NEVER;
        if (k == n->lesser) {
            item = stratum_chosen(n, item, stratum_first(n, item, a), a);
        } else {
            /* the last stratum that has no more items of the greater child before it */
            uint64_t stratum = item / b * a + item % b * a / b;
            uint64_t chosen = stratum_chosen(n, stratum, stratum_first(n, stratum, a), a);
            item += stratum;
            item += item >= chosen;
        }
        k = parent;
    }
    return item < NEVER ? item : NEVER;
}

/* ------------------------------------------------------------ the mixture */

INTERNAL int check_mix(const struct stoc_mix *mix, struct stoc_error *error)
{
    if (check_struct(mix->struct_bytes, sizeof *mix, "mix", "mixes", "", error) < 0)
        return STOC_EINVAL;
    if (mix->datasets < 1 || mix->datasets > MAX_DATASETS || !mix->orders || !mix->ratios)
        return fail(error, STOC_EINVAL, 0,
                    "datasets: %lu; there are 1 to %d of them, with an order and a ratio for each",
                    mix->datasets, MAX_DATASETS);
    uint64_t samples = 0, turns = 0;
    for (uint64_t d = 0; d < mix->datasets; d++) {
        char what[40];
        snprintf(what, sizeof what, "dataset %lu: ", d);
        int code = check_order(&mix->orders[d], what, error);
        if (code < 0)
            return code;
        samples += mix->orders[d].samples;
        turns += MIN(mix->ratios[d], MAX_TURNS);
        if (mix->ratios[d] < 1 || turns >= MAX_TURNS)
            return fail(error, STOC_EINVAL, 0,
                        "ratio %lu of dataset %lu; ratios are whole numbers from 1 on whose sum is below %lu",
                        mix->ratios[d], d, MAX_TURNS);
    }
    if (samples > STOC_MAX_SAMPLES)
        return fail(error, STOC_EINVAL, 0, "%lu samples in all datasets are more than %lu", samples, STOC_MAX_SAMPLES);
    if (mix->stop > STOC_MIX_LENGTH || mix->reserved)
        return fail(error, STOC_EINVAL, 0, "stop: %u is not in 0..%d (and reserved is %u, not 0)", mix->stop,
                    STOC_MIX_LENGTH, mix->reserved);
    if ((mix->stop == STOC_MIX_LENGTH) != (mix->length > 0) || mix->length > STOC_MAX_SAMPLES)
        return fail(error, STOC_EINVAL, 0,
                    "length: %lu with stop %u; STOC_MIX_LENGTH has one, of 1 to %lu, others have none",
                    mix->length, mix->stop, STOC_MAX_SAMPLES);
    return 0;
}

INTERNAL void mixture_close(struct mixture *m)
{
    if (m)
        free(m->nodes);
    free(m);
}

/* NULL: no memory. */
INTERNAL struct mixture *mixture_open(const struct stoc_mix *mix, uint64_t number)
{
    size_t n = mix->datasets;
    struct mixture *m = calloc(1, sizeof *m + n * sizeof *m->members);
    struct turn *turns = calloc(n, sizeof *turns);
    uint32_t *sorted = calloc(n, sizeof *sorted);
    if (m)
        m->nodes = calloc(2 * n - 1, sizeof *m->nodes);
    if (!m || !m->nodes || !turns || !sorted) {
        mixture_close(m);
        m = NULL;
    } else {
        m->number = number;
        m->datasets = (uint32_t)n;
        m->goes_on = mix->stop == STOC_MIX_LENGTH;
        make_tree(m, mix->seed, mix->ratios, turns, sorted);
    }
    free(turns);
    free(sorted);
    return m;
}

/* Fills in the members. Returns the number of positions, which may be too large. */
INTERNAL uint64_t mixture_begin(struct mixture *m, const struct stoc_mix *mix)
{
    uint64_t positions = mix->length, offset = 0;
    for (uint32_t d = 0; d < m->datasets; d++) {
        struct member *p = &m->members[d];
        p->order = mix->orders[d];
        p->order.seed = CHAIN(mix->seed, OF_DATASET, d, p->order.seed);
        p->offset = offset;
        offset += p->order.samples;
        if (m->goes_on) {
            p->before = m->number * turns_before(m, d, mix->length);
            continue;
        }
        bool first = mix->stop == STOC_MIX_FIRST; /* up to the turn for which a dataset has no sample left */
        uint64_t end = first ? turn_position(m, d, p->order.samples) : turn_position(m, d, p->order.samples - 1) + 1;
        if (d == 0 || (end < positions) == first)
            positions = end;
    }
    return positions;
}

INTERNAL uint64_t mixture_at(const struct mixture *m, uint64_t position, struct mix_memory *memory)
{
    uint64_t item;
    uint32_t d = turn_at(m, position, &item);
    const struct member *p = &m->members[d];
    item += p->before;
    uint64_t number = item / p->order.samples, local = item % p->order.samples;
    if (!m->goes_on)
        number = m->number + (number << 32);
    __typeof__(memory->slots[0]) *slot = &memory->slots[d % MIX_SLOTS];
    if (!slot->made || slot->dataset != d || slot->plain.number != number) {
        slot->made = true;
        slot->dataset = d;
        slot->window.samples = 0;
        plain_begin(&slot->plain, &p->order, number);
    }
    return p->offset + plain_at(&slot->plain, local, &slot->window);
}

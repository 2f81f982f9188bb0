/*
 * nodes.c - the nodes of a job share each global batch by the samples that they own:
 * docs/spec/order.md, "Nodes".
 */
#include "order.h"

#define NO_NODE (-1)
#define DEAL_VERSION 1
#define PROBES 64 /* indices that stand for an order in a digest */
#define MAX_RANKS INT32_MAX /* ranks of a node */

struct owned {
    uint64_t key, ranks, capacity, quota;
    uint64_t first_rank;
};

struct stoc_owners {
    uint64_t samples, ranks;
    bool capped;
    int32_t owner[BUCKETS];
    uint32_t count;
    struct owned nodes[];
};

static uint64_t name_key(const char *name)
{
    uint64_t h = UINT64_C(0xCBF29CE484222325); /* FNV-1a */
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001B3);
    return mix(h);
}

static inline uint64_t score_of(const struct owned *node, uint64_t bucket)
{
    return mix(node->key ^ mix(bucket + GOLDEN));
}

/* How many buckets a cache of this capacity holds. */
static uint64_t room_for(uint64_t capacity, uint64_t samples) { return MIN(capacity, samples) * BUCKETS / samples; }

/* ------------------------------------------------------------ quotas */

static int compare_keys(const void *a, const void *b)
{
    const struct owned *v = *(struct owned *const *)a, *w = *(struct owned *const *)b;
    return v->key < w->key ? -1 : v->key > w->key;
}

/* How many buckets each node owns: its share of the ranks, at most what it holds. open: all nodes, in
 * the order of their keys; the call changes it. */
static void set_quotas(struct stoc_owners *o, struct owned **open)
{
    uint64_t left = BUCKETS;
    for (uint32_t n = o->count, room; n; n = room) {
        uint64_t total = 0, given = 0, before = left;
        for (uint32_t k = 0; k < n; k++)
            total += open[k]->ranks;
        room = 0;
        for (uint32_t k = 0; k < n; k++) {
            struct owned *node = open[k];
            uint64_t most = o->capped ? room_for(node->capacity, o->samples) : BUCKETS;
            node->quota = before * node->ranks / total;
            if (node->quota < most) {
                open[room++] = node;
                given += node->quota;
                continue;
            }
            node->quota = most;
            left -= most;
        }
        if (room == n) {
            for (uint32_t k = 0; k < left - given; k++) /* fewer than there are nodes */
                open[k]->quota++;
            return;
        }
    }
}

/* ------------------------------------------------------------ owners */

/* A bucket that a node holds while buckets are matched. */
struct offer {
    uint64_t score, bucket;
};

static bool is_before(struct offer a, struct offer b)
{
    return a.score < b.score || (a.score == b.score && a.bucket < b.bucket);
}

/* The offers that a node holds, a heap with the worst at its top. */
struct offers {
    struct offer *heap;
    uint64_t n;
};

static void add_offer(struct offers *held, struct offer new)
{
    uint64_t k = held->n++;
    for (; k && is_before(held->heap[(k - 1) / 2], new); k = (k - 1) / 2)
        held->heap[k] = held->heap[(k - 1) / 2];
    held->heap[k] = new;
}

static void replace_worst(struct offers *held, struct offer new)
{
    uint64_t k = 0, child;
    for (; (child = 2 * k + 1) < held->n; k = child) {
        if (child + 1 < held->n && is_before(held->heap[child], held->heap[child + 1]))
            child++;
        if (!is_before(new, held->heap[child]))
            break;
        held->heap[k] = held->heap[child];
    }
    held->heap[k] = new;
}

/* The node that a bucket asks next, after the one with this score and key; NO_NODE: every node has refused it. */
static int32_t next_node(const struct stoc_owners *o, uint64_t bucket, bool asked, uint64_t after, uint64_t key,
                         uint64_t *score)
{
    int32_t best = NO_NODE;
    for (uint32_t i = 0; i < o->count; i++) {
        uint64_t s = score_of(&o->nodes[i], bucket);
        if (asked && (s < after || (s == after && o->nodes[i].key <= key)))
            continue;
        if (best == NO_NODE || s < *score || (s == *score && o->nodes[i].key < o->nodes[best].key)) {
            best = (int32_t)i;
            *score = s;
        }
    }
    return best;
}

/* Gives buckets to nodes. Each bucket asks nodes from its best score on, and a node that has its quota keeps the
 * better buckets. The result is the stable matching, and there is one. */
static void match(struct stoc_owners *o, struct offers *held)
{
    for (uint64_t first = 0; first < BUCKETS; first++) {
        uint64_t bucket = first, score = 0, after = 0, key = 0;
        bool asked = false;
        o->owner[first] = NO_NODE;
        for (int32_t i; (i = next_node(o, bucket, asked, after, key, &score)) != NO_NODE;) {
            struct offer mine = {score, bucket};
            asked = true;
            after = score;
            key = o->nodes[i].key;
            if (held[i].n < o->nodes[i].quota) {
                add_offer(&held[i], mine);
                o->owner[bucket] = i;
                break;
            }
            if (held[i].n && is_before(mine, held[i].heap[0])) {
                struct offer loser = held[i].heap[0];
                replace_worst(&held[i], mine);
                o->owner[bucket] = i;
                o->owner[loser.bucket] = NO_NODE;
                bucket = loser.bucket; /* it has asked all nodes up to this one */
                after = loser.score;
            }
        }
    }
}

/* Deals the buckets. false: no memory. */
static bool deal_buckets(struct stoc_owners *o)
{
    struct owned **order = calloc(o->count, sizeof *order);
    struct offers *held = calloc(o->count, sizeof *held);
    struct offer *heaps = NULL;
    uint64_t all = 0;
    if (order && held) {
        for (uint32_t i = 0; i < o->count; i++)
            order[i] = &o->nodes[i];
        qsort(order, o->count, sizeof *order, compare_keys);
        set_quotas(o, order);
        heaps = malloc(BUCKETS * sizeof *heaps); /* the quotas sum to at most BUCKETS */
    }
    for (uint32_t i = 0; heaps && i < o->count; i++) {
        held[i].heap = heaps + all;
        all += o->nodes[i].quota;
    }
    if (heaps)
        match(o, held);
    free(order);
    free(held);
    free(heaps);
    return heaps != NULL;
}

static int check_nodes(const struct stoc_nodes *nodes, uint64_t samples, struct stoc_error *error)
{
    if (check_struct(nodes->struct_bytes, sizeof *nodes, "nodes", "nodes", "", error) < 0)
        return STOC_EINVAL;
    if (nodes->count < 1 || nodes->count > BUCKETS || !nodes->ranks || samples < 1 || samples > STOC_MAX_SAMPLES)
        return fail(error, STOC_EINVAL, 0,
                    "%lu nodes and %lu samples; give 1 to %d nodes with their ranks, and 1 to %lu samples",
                    nodes->count, samples, (int)BUCKETS, STOC_MAX_SAMPLES);
    for (uint64_t i = 0; i < nodes->count; i++) {
        const char *name = !nodes->names ? "0" : nodes->names[i] ? nodes->names[i] : "";
        if (!*name || strnlen(name, 256) > 255 || nodes->ranks[i] < 1 || nodes->ranks[i] > MAX_RANKS)
            return fail(error, STOC_EINVAL, 0,
                        "node %lu has %lu ranks and a name of %zu bytes; give at least 1 rank, and a name of 1 to 255 "
                        "bytes to all nodes or to none",
                        i, nodes->ranks[i], strnlen(name, 256));
    }
    return 0;
}

/* Two names with one key. */
static int check_keys(const struct stoc_nodes *nodes, const struct stoc_owners *o, struct stoc_error *error)
{
    for (uint32_t i = 0; nodes->names && i < o->count; i++)
        for (uint32_t k = 0; k < i; k++) {
            const char *one = nodes->names[k], *other = nodes->names[i];
            if (o->nodes[k].key != o->nodes[i].key)
                continue;
            if (strcmp(one, other) == 0)
                return fail(error, STOC_EINVAL, 0,
                            "nodes %u and %u have the same name, %.100s; give each node a name of its own, such as its "
                            "host name",
                            k, i, one);
            return fail(error, STOC_EINVAL, 0,
                        "nodes %u (%.100s) and %u (%.100s) have names with the same hash, by which nodes are known; "
                        "change one of them, for example to %.100s-1",
                        k, one, i, other, other);
        }
    return 0;
}

int stoc_owners_open(const struct stoc_nodes *nodes, uint64_t samples, stoc_owners **out, struct stoc_error *error)
{
    int code = begin_open(out, "owners", nodes, "no nodes given", error);
    if (code < 0 || (code = check_nodes(nodes, samples, error)) < 0)
        return code;
    stoc_owners *o = calloc(1, sizeof *o + nodes->count * sizeof *o->nodes);
    if (o) {
        o->samples = samples;
        o->count = (uint32_t)nodes->count;
        o->capped = nodes->capacities != NULL;
        for (uint32_t i = 0; i < o->count; i++) {
            char number[16];
            snprintf(number, sizeof number, "%u", i);
            o->nodes[i].key = name_key(nodes->names ? nodes->names[i] : number);
            o->nodes[i].ranks = nodes->ranks[i];
            o->nodes[i].capacity = nodes->capacities ? nodes->capacities[i] : 0;
            o->nodes[i].first_rank = o->ranks;
            o->capped = o->capped && o->nodes[i].capacity;
            o->ranks += o->nodes[i].ranks;
        }
        code = check_keys(nodes, o, error);
    }
    if (!o || (code == 0 && !deal_buckets(o)))
        code = fail(error, STOC_EMEMORY, ENOMEM, "no memory for the owners of %lu nodes", nodes->count);
    if (code < 0) {
        stoc_owners_close(o);
        return code;
    }
    *out = o;
    return 0;
}

void stoc_owners_close(stoc_owners *o) { free(o); }

int64_t stoc_owners_quota(const stoc_owners *o, uint64_t node)
{
    return !o ? STOC_ECLOSED : node >= o->count ? STOC_EINVAL : (int64_t)o->nodes[node].quota;
}

int stoc_owners_find(const stoc_owners *o, const int64_t *indices, int64_t *nodes, size_t n)
{
    if (!o)
        return STOC_ECLOSED;
    if (n && (!indices || !nodes))
        return STOC_EINVAL;
    for (size_t k = 0; k < n; k++)
        nodes[k] = o->owner[bucket_of((uint64_t)indices[k])];
    return 0;
}

static int compare_offers(const void *a, const void *b)
{
    const struct offer *v = a, *w = b;
    return is_before(*v, *w) ? -1 : is_before(*w, *v);
}

int stoc_owners_keep(const stoc_owners *o, uint64_t node, uint64_t capacity, uint8_t *kept)
{
    if (!o)
        return STOC_ECLOSED;
    if (node >= o->count || !kept)
        return STOC_EINVAL;
    struct offer *others = malloc(BUCKETS * sizeof *others);
    if (!others)
        return STOC_EMEMORY;
    uint64_t n = 0, room = capacity ? room_for(capacity, o->samples) : BUCKETS, own = 0;
    memset(kept, 0, STOC_KEPT_BYTES);
    for (uint64_t k = 0; k < BUCKETS; k++)
        if (o->owner[k] == (int32_t)node) {
            kept[k / 8] |= (uint8_t)(1 << k % 8);
            own++;
        } else {
            others[n++] = (struct offer){score_of(&o->nodes[node], k), k};
        }
    qsort(others, n, sizeof *others, compare_offers);
    for (uint64_t k = 0; k < n && own + k < room; k++)
        kept[others[k].bucket / 8] |= (uint8_t)(1 << others[k].bucket % 8);
    free(others);
    return 0;
}

/* ------------------------------------------------------------ dealing */

/* L: positions of the epoch. */
static uint64_t digest(const stoc_epoch *e, const stoc_owners *o, const struct stoc_deal *d, uint64_t positions)
{
    size_t n = 0;
    uint64_t key, *words = malloc((7 + PROBES + o->count + BUCKETS) * sizeof *words);
    if (!words)
        return 0;
    words[n++] = DEAL_VERSION;
    words[n++] = epoch_number(e);
    words[n++] = positions;
    for (uint64_t k = 0; k < PROBES; k++)
        words[n++] = (uint64_t)stoc_epoch_at(e, k * positions / PROBES);
    words[n++] = d->from;
    words[n++] = d->batch;
    words[n++] = d->ends;
    words[n++] = o->count;
    for (uint32_t i = 0; i < o->count; i++)
        words[n++] = o->nodes[i].ranks;
    for (uint64_t k = 0; k < BUCKETS; k++)
        words[n++] = o->owner[k] == NO_NODE ? o->count : (uint64_t)o->owner[k];
    key = chain(o->samples, words, n);
    free(words);
    return key;
}

int stoc_epoch_deal(const stoc_epoch *e, const stoc_owners *o, struct stoc_deal *d, struct stoc_error *error)
{
    no_error(error);
    if (!e || !o)
        return fail(error, STOC_ECLOSED, 0, "no epoch, or no owners given");
    if (!d)
        return fail(error, STOC_EINVAL, 0, "no deal given");
    if (check_struct(d->struct_bytes, sizeof *d, "deal", "deals", "", error) < 0)
        return STOC_EINVAL;
    uint64_t positions = (uint64_t)stoc_epoch_length(e);
    if (d->batch < 1 || d->batch > STOC_MAX_SAMPLES / o->ranks)
        return fail(error, STOC_EINVAL, 0,
                    "batch: %lu samples for each of %lu ranks; give at least 1, and at most %lu in all",
                    d->batch, o->ranks, STOC_MAX_SAMPLES);
    if (d->from > positions)
        return fail(error, STOC_EINVAL, 0, "from: %lu is after the end of the epoch, which has %lu positions",
                    d->from, positions);
    if ((d->ends != STOC_ENDS_PAD && d->ends != STOC_ENDS_DROP) || d->reserved)
        return fail(error, STOC_EINVAL, 0,
                    "ends: %u with nodes (and reserved is %u, not 0); all ranks need batches of one size, so give "
                    "STOC_ENDS_PAD or STOC_ENDS_DROP",
                    d->ends, d->reserved);
    uint64_t left = positions - d->from;
    d->samples = (d->ends == STOC_ENDS_PAD ? left + o->ranks - 1 : left) / o->ranks;
    d->batches = (d->samples + d->batch - 1) / d->batch;
    d->ranks = o->ranks;
    d->digest = digest(e, o, d, positions);
    return d->digest ? 0 : fail(error, STOC_EMEMORY, ENOMEM, "no memory for the digest of a deal");
}

/* Deals n positions of a batch: reader[k] is the node that reads position k. Each node has lacks[i] before. */
static void choose_readers(const stoc_owners *o, const int64_t *indices, size_t n, uint64_t *lacks, int32_t *reader)
{
    for (size_t k = 0; k < n; k++) {
        int32_t i = o->owner[bucket_of((uint64_t)indices[k])];
        if (i != NO_NODE && lacks[i])
            lacks[i]--;
        else
            i = NO_NODE;
        reader[k] = i;
    }
    uint32_t node = 0;
    for (size_t k = 0; k < n; k++) {
        if (reader[k] != NO_NODE)
            continue;
        while (!lacks[node])
            node++;
        reader[k] = (int32_t)node;
        lacks[node]--;
    }
}

int64_t stoc_epoch_fill_deal(const stoc_epoch *e, const stoc_owners *o, const struct stoc_deal *d, uint64_t batch,
                             int64_t *indices, size_t n)
{
    if (!e || !o)
        return STOC_ECLOSED;
    if (!d || !indices || d->struct_bytes != sizeof *d || batch >= d->batches || d->ranks != o->ranks ||
        d->samples > STOC_MAX_SAMPLES || d->batch > STOC_MAX_SAMPLES / o->ranks)
        return STOC_EINVAL;
    uint64_t each = MIN(d->batch, d->samples - batch * d->batch), all = each * o->ranks;
    uint64_t positions = (uint64_t)stoc_epoch_length(e), first = d->from + batch * d->batch * o->ranks;
    if (n < all || d->from >= positions)
        return STOC_EINVAL;
    int64_t *inorder = malloc(all * sizeof *inorder);
    int32_t *reader = malloc(all * sizeof *reader);
    uint64_t *lacks = malloc(o->count * sizeof *lacks), *given = calloc(o->count, sizeof *given);
    if (inorder && reader && lacks && given) {
        for (uint64_t k = 0; k < all;) { /* `pad` begins the epoch again */
            int64_t got = stoc_epoch_fill(e, inorder + k, all - k, (first + k) % positions, 1);
            k += (uint64_t)got;
        }
        for (uint32_t i = 0; i < o->count; i++)
            lacks[i] = each * o->nodes[i].ranks;
        choose_readers(o, inorder, all, lacks, reader);
        for (uint64_t k = 0; k < all; k++) {
            const struct owned *node = &o->nodes[reader[k]];
            uint64_t place = given[reader[k]]++;
            indices[(node->first_rank + place % node->ranks) * each + place / node->ranks] = inorder[k];
        }
    } else {
        all = 0;
    }
    free(inorder);
    free(reader);
    free(lacks);
    free(given);
    return all ? (int64_t)all : STOC_EMEMORY;
}

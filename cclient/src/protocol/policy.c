/*
 * policy.c - which sample goes. docs/spec/policies.md says how, and package policy decides alike in
 * Go. All functions are pure.
 */
#include "protocol.h"

enum { CHEAPEST = 2624, DEAREST = 10688, ZERO = 2560, LEVEL = 64 }; /* fine logarithms, 256 for a factor of 2 */
enum { BEGINNING = 15 }; /* measurements */
enum { MOST_TAIL = (DEAREST + 512) * 2 };

/* splitmix64 */
INTERNAL uint64_t policy_random(uint64_t seed, uint64_t n)
{
    return mix(seed + (n + 1) * GOLDEN);
}

static int fine(uint64_t n)
{
    if (n < 2)
        return 0;
    int e = 63 - __builtin_clzll(n), f = (int)((n << (63 - e)) << 1 >> 56);
    return e * 256 + f + (f * (256 - f) * 87 >> 16);
}

static int logarithm(uint8_t cost) { return ZERO + (cost >> 1) * LEVEL; }

/* The spread in the shared word. A word that no measurements make, such as one that a stray write has changed, counts
 * as 0. */
INTERNAL uint64_t spread_of(uint64_t word)
{
    uint64_t last = word & UINT16_MAX, within = word >> 32 & UINT16_MAX, tail = word >> 48;
    return last < CHEAPEST || last > DEAREST || within == 0 || tail > MOST_TAIL ? 0 : word;
}

/* The 99th percentile of first loads. */
static int tail_of(uint64_t spread) { return (int)(spread >> 48) / 2; }

/* A load that takes longer is far above the 99th percentile: the sample is very costly, or the process was stopped. */
static int far_of(uint64_t spread) { return tail_of(spread) + 2 * (int)(spread >> 16 & UINT16_MAX) / 32 + LEVEL; }

/* One load of the sample took far longer than those of others, and no other load has confirmed it. */
static bool doubtful(uint8_t cost, uint64_t spread)
{
    return cost && !(cost & 1) && spread && logarithm(cost) > far_of(spread);
}

/* A cost of one load is above the 99th percentile, which may have fallen since that load. */
static bool capped(uint8_t cost, int tail) { return !(cost & 1) && 0 < tail && tail < logarithm(cost); }

/* The cost that a cache shows: 0 if it is doubtful. */
INTERNAL uint8_t believed(uint8_t cost, uint64_t spread) { return doubtful(cost, spread) ? 0 : cost; }

/* The logarithm of the cost of a byte. A cost of one load counts at most as the 99th percentile. */
static int density(const struct candidate *c, uint64_t spread)
{
    int tail = tail_of(spread);
    return (capped(c->cost, tail) ? tail : logarithm(c->cost)) - fine(c->size);
}

static unsigned policy_looks(const struct policy *p)
{
    return p->code == STOC_POLICY_PLANNED ? 17 : p->code == STOC_POLICY_CLOCK ? 64 : p->code == STOC_POLICY_LFU ? 8 : 5;
}

static uint64_t policy_slot(const struct policy *p, uint64_t number)
{
    bool swept = p->code == STOC_POLICY_FIFO || p->code == STOC_POLICY_CLOCK;
    return swept ? number % p->slots : below(policy_random(p->seed, number), p->slots);
}

static uint8_t tick(const struct policy *p, uint64_t now) { return (uint8_t)(now >> p->shift); }

/* About what a cost stands for: 1.024 us * 2^(level / 4); 0: unknown. */
INTERNAL uint64_t cost_nanoseconds(uint8_t cost)
{
    static const uint64_t of_quarter[] = {1024, 1218, 1448, 1722};
    unsigned level = cost >> 1;
    return cost ? of_quarter[level & 3] << (level >> 2) : 0;
}

#define KEPT UINT32_MAX

/* How much a sample deserves its slot: 0 goes at once, KEPT never. */
static uint32_t policy_worth(const struct policy *p, uint64_t number, const struct candidate *c, uint64_t spread)
{
    switch (p->code) {
    case STOC_POLICY_PLANNED:
        return KEPT; /* only a server knows plans */
    case STOC_POLICY_COST:
        return !c->cost ? KEPT : doubtful(c->cost, spread) ? 1 : (uint32_t)(density(c, spread) + 65536);
    case STOC_POLICY_CLOCK:
        return c->reference;
    case STOC_POLICY_LRU: {
        uint8_t age = (uint8_t)(tick(p, number) - c->reference);
        return 256u - (age > 250 ? 0 : age); /* a few ticks ahead: the hand has moved on since the look took its number */
    }
    case STOC_POLICY_LFU:
        return c->reference + 1u;
    default: /* fifo, random */
        return 0;
    }
}

/* Whether the victim goes for the newcomer. */
static bool policy_yields(const struct policy *p, const struct candidate *newcomer, const struct candidate *victim,
                          uint64_t spread)
{
    if (p->code != STOC_POLICY_COST)
        return true;
    uint32_t between = spread >> 16 & UINT16_MAX, within = spread >> 32 & UINT16_MAX;
    int trust = within <= BEGINNING ? 256
                : within >= between ? 0
                                    : 256 - (int)(within * within / ((between * between + 255) / 256));
    if (!believed(newcomer->cost, spread))
        return false;
    if (doubtful(victim->cost, spread))
        return trust > 128; /* most of the differences are real */
    return (density(newcomer, spread) - density(victim, spread)) * trust > 82 * 256;
}

/* The reference byte that a look leaves behind, if the sample stays. */
static uint8_t policy_looked(const struct policy *p, uint64_t number, uint8_t reference)
{
    if (p->code == STOC_POLICY_CLOCK && reference > 0 && policy_random(0, number) % 8 == 0)
        return (uint8_t)(reference - 1);
    if (p->code == STOC_POLICY_LFU && reference > 0 && policy_random(~p->seed, number) % 32 == 0)
        return (uint8_t)(reference - (reference + 3) / 4);
    return reference;
}

INTERNAL struct search begin_search(const struct policy *p, struct candidate newcomer, uint64_t spread)
{
    return (struct search){.policy = p, .newcomer = newcomer, .spread = spread, .left = policy_looks(p), .worth = KEPT};
}

/* The slot to look at for a number of the hand. */
INTERNAL uint64_t search_slot(const struct search *s, uint64_t number) { return policy_slot(s->policy, number); }

/* Considers the sample of a slot. Returns the reference byte to store if the sample stays. */
INTERNAL uint8_t search_look(struct search *s, uint64_t number, uint64_t slot, const struct candidate *c)
{
    s->left--;
    uint32_t worth = policy_worth(s->policy, number, c, s->spread);
    if (worth < s->worth)
        s->victim = *c, s->slot = slot, s->worth = worth;
    if (worth == 0) {
        s->left = 0;
        return c->reference;
    }
    return policy_looked(s->policy, number, c->reference);
}

/* Whether a sample goes: s->victim, from s->slot. */
INTERNAL bool search_ends(const struct search *s)
{
    return s->worth < KEPT && policy_yields(s->policy, &s->newcomer, &s->victim, s->spread);
}

/* Whether a hit of lfu adds 1. */
static bool counts(uint8_t reference, uint64_t sample, uint64_t now)
{
    return reference < 255 && below(((sample << 32) + (now << 8) + reference) * GOLDEN, reference) == 0;
}

/* The reference byte that a hit of a sample leaves behind. */
INTERNAL uint8_t policy_hit(const struct policy *p, uint64_t sample, uint64_t now, uint8_t reference)
{
    switch (p->code) {
    case STOC_POLICY_CLOCK:
        return (uint8_t)(reference < 3 ? reference + 1 : reference);
    case STOC_POLICY_LRU:
        return tick(p, now);
    case STOC_POLICY_LFU:
        return (uint8_t)(reference + counts(reference, sample, now));
    default:
        return reference;
    }
}

/* The reference byte of a sample that has just got its slot. */
INTERNAL uint8_t policy_placed(const struct policy *p, uint64_t now)
{
    return p->code == STOC_POLICY_LRU ? tick(p, now) : p->code == STOC_POLICY_LFU;
}

static int distance(int x, int y) { return MIN(x > y ? x - y : y - x, 2047); }
static int follow(int mean, int d) { return mean - (mean >> 7) + (d * 32 >> 7); }

static uint64_t observe(uint64_t spread, int x, int old, uint8_t cost, bool known)
{
    int last = (int)(spread & UINT16_MAX), between = (int)(spread >> 16 & UINT16_MAX),
        within = (int)(spread >> 32 & UINT16_MAX), tail = (int)(spread >> 48);
    if (last == 0) {
        within = 1;
        tail = (x + 512) * 2;
    } else if (within < BEGINNING) { /* a measurement that is far too short or too long moves `tail` by one octave */
        int near = MIN(MAX(tail, x * 2), (x + 512) * 2);
        between = MAX(between + (distance(x, last) * 32 - between) / within, 1);
        within++;
        tail = MIN(MAX(near, tail - 512), tail + 512);
    } else {
        between = follow(between, distance(x, last));
        if (cost == 0) /* what is loaded again is the cheap part of the samples, so it does not count */
            tail = x * 2 > tail ? MIN(tail + 99, MOST_TAIL) : tail - 1;
    }
    if (known) {
        int d = distance(x, old);
        within = follow(within > BEGINNING ? within : between, cost & 1 ? MIN(d + d / 4, 2047) : d);
        within = MAX(within, BEGINNING + 1);
    }
    return (uint64_t)x | (uint64_t)between << 16 | (uint64_t)within << 32 | (uint64_t)tail << 48;
}

/* A logarithm rounded to a level. */
static uint8_t cost_of_logarithm(int y, uint64_t draw, bool average)
{
    int level = (y - ZERO + (int)(draw >> 58)) / LEVEL;
    return (uint8_t)(MIN(MAX(level, 1), 127) * 2 + average);
}

/* The cost of a sample after one more load, and the new spread. draw is random. */
INTERNAL uint8_t policy_loaded(uint8_t cost, uint64_t nanoseconds, uint64_t draw, uint64_t *spread)
{
    int x = MIN(MAX(fine(nanoseconds), CHEAPEST), DEAREST), old = logarithm(cost);
    bool doubted = doubtful(cost, *spread), known = cost && !doubted, far = *spread && x > far_of(*spread) + LEVEL;
    *spread = observe(*spread, x, old, cost, known);
    int tail = tail_of(*spread);
    bool surprising = far && known && old < tail;
    if (surprising && cost & 1)
        return cost - 1; /* the average stays, but another load has to confirm it */
    if (!far && (!known || old < tail) && (*spread >> 32 & UINT16_MAX) >= BEGINNING)
        x = MIN(x, tail);
    if (surprising || (!known && !(far && doubted)))
        return cost_of_logarithm(x, draw, false);
    return cost_of_logarithm(cost & 1 ? (3 * old + x) / 4 : (old + x) / 2, draw, true);
}

INTERNAL struct policy make_policy(uint32_t code, uint64_t slots, bool chains, const unsigned char uuid[16])
{
    struct policy p = {.code = code, .slots = slots};
    memcpy(&p.seed, uuid, sizeof p.seed);
    for (uint64_t n = (chains ? slots / 32 : slots) * 5 / 8; n > 1; n >>= 1) /* about the number of samples */
        p.shift++;
    return p;
}

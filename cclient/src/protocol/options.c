/*
 * options.c - the options of a new cache: their checks, and the geometry that they make.
 * docs/spec/options.md.
 */
#include "protocol.h"

/* Rows of the table of options: names in errors, members, whether they are needed, ranges, and the ends of errors. */
#define NUMBER(name, member, needed, least, most, wanted)                                                              \
    if ((o->member || needed) && (uint64_t)o->member - least > UINT64_C(most) - least)                                  \
        return fail(error, STOC_EINVAL, 0, name ": %lu is not " wanted, (uint64_t)o->member);
#define TEXT(name, member, most, wanted)                                                                               \
    if (o->member && (strlen(o->member) > most || !is_utf8(o->member, strlen(o->member))))                              \
        return fail(error, STOC_EINVAL, 0, name ": %zu bytes are not " wanted, strlen(o->member));

/* Checks the options. Options.validate in shm/options.go has the same rules and texts;
 * shm/testdata/options.json tests both. */
static int validate(const char *name, const struct stoc_options *o, struct stoc_error *error)
{
    bool evicts = policy_evicts(o->policy);
    if (name && !name_valid(name))
        return fail(error, STOC_EINVAL, 0, "name: \"%.120s\" is not 1 to 100 of [A-Za-z0-9._-] with an alphanumeric first", name);
    if (!name && o->directory)
        return fail(error, STOC_EINVAL, 0, "dir: a cache without a name has none; give it a name");
    if (!name && o->unlink_last)
        return fail(error, STOC_EINVAL, 0,
                      "unlink: a cache without a name always goes with its last process; leave it out or give a name");
#include "option_rows.h"
    if (o->slots > o->samples)
        return fail(error, STOC_EINVAL, 0,
                    "slots: %lu is more than the %lu samples; leave it out for as many as size holds", o->slots,
                    o->samples);
    if (o->slot_bytes && !(o->variable && evicts))
        return fail(error, STOC_EINVAL, 0,
                    "slot_bytes: %lu: only a variable-size cache that evicts has slots of a given size; leave it out",
                    o->slot_bytes);
    if (o->slot_bytes & (o->slot_bytes - 1))
        return fail(error, STOC_EINVAL, 0,
                    "slot_bytes: %lu is not a power of two; leave it out for a size that follows from size and samples",
                    o->slot_bytes);
    if (o->lengths > 1)
        return fail(error, STOC_EINVAL, 0, "lengths: %u is not in 0..1; leave it out for samples that are no lists", o->lengths);
    if (o->lengths && !o->variable)
        return fail(error, STOC_EINVAL, 0, "lengths: only a variable-size cache has lengths of lists; leave it out");
    if (o->variable && o->limit_bytes == 0)
        return fail(error, STOC_EINVAL, 0, "size: a variable-size cache needs one, such as 8GiB");
    if (o->variable && o->slots != 0)
        return fail(error, STOC_EINVAL, 0, "slots: %lu: a variable-size cache has no number of slots; leave it out",
                    o->slots);
    if (o->variable && o->policy == STOC_POLICY_FIRST_INDICES)
        return fail(error, STOC_EINVAL, 0,
                      "policy: first-indices needs samples of one size, so that sample i has slot i; take another policy");
    if (o->variable && evicts && o->samples > STOC_MAX_CHAIN_SAMPLES)
        return fail(error, STOC_EINVAL, 0,
                    "samples: %lu is more than %lu, the most of a variable-size cache that evicts; take the policy "
                    "first-come",
                    o->samples, STOC_MAX_CHAIN_SAMPLES);
    if (!o->variable && !o->fields && o->sample_bytes == 0)
        return fail(error, STOC_EINVAL, 0, "sample_bytes: give them, or fields, or make the cache variable-size");
    return 0;
}

/* The largest number of slots within the limit; a geometry outside the format counts as too large. */
static uint64_t most_slots(const struct stoc_options *o, uint32_t flags, uint32_t records, uint64_t stride,
                           uint64_t most)
{
    struct geometry g;
    char why[256];
    uint64_t low = 0, high = most;
    while (low < high) {
        uint64_t middle = low + (high - low + 1) / 2;
        if (geometry_of(flags, o->policy, o->samples, middle, stride, records, 0, &g, why) &&
            g.segment_bytes <= o->limit_bytes)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Bytes as MiB, rounded down. */
static void mebibytes(char text[32], uint64_t bytes)
{
    uint64_t hundredths = bytes / (1 << 20) * 100 + (bytes % (1 << 20) * 100 >> 20);
    snprintf(text, 32, "%lu.%02lu MiB", hundredths / 100, hundredths % 100);
}

/* The same, rounded up. */
static void mebibytes_up(char text[32], uint64_t bytes) { mebibytes(text, bytes + ((1 << 20) + 99) / 100 - 1); }

/* The error of a size that is less than what is needed. next is the next step. */
static int too_small(uint64_t limit, uint64_t need, const char *needs, const char *next, struct stoc_error *error)
{
    char needed[32], shown[32];
    mebibytes_up(needed, need);
    if (limit < 1 << 20)
        snprintf(shown, sizeof shown, "%lu bytes", limit);
    else
        mebibytes(shown, limit);
    return fail(error, STOC_EMEMORY, 0, "%s %s, more than the size of %s; %s%s", needs, needed, shown, next,
                limit < 1 << 20 ? ". A size without a unit is bytes" : "");
}

/* The next step for a cache whose samples have their own sizes each. */
static const char more_for_samples[] = "give that much, and as many bytes more as the samples have that it is to hold";

/* Which sizes hold all samples, half of them and one. */
static void advise_size(char text[200], const struct stoc_options *o, uint32_t flags, uint32_t records, uint64_t stride)
{
    uint64_t all = MIN(o->samples, STOC_MAX_SLOTS), slots[] = {all, (all + 1) / 2, 1};
    static const char *const what[] = {"hold all samples", "half of them", "one"};
    char shown[32], why[256];
    struct geometry g;
    size_t n = 0;
    for (int k = 0; k < 3; k++) {
        if (!geometry_of(flags, o->policy, o->samples, slots[k], stride, records, 0, &g, why))
            continue;
        mebibytes_up(shown, g.segment_bytes);
        n += (size_t)snprintf(text + n, 200 - n, "%s%s %s", n ? ", " : "", shown, what[k]);
    }
}

/* An arena that evicts: as many slots as the limit allows. Their size is the largest with 8 slots for each
 * sample, if the caller gives none: docs/spec/arena-eviction.md, The segment. */
static int plan_chains(const struct stoc_options *o, uint32_t flags, uint32_t records, struct geometry *g,
                       struct stoc_error *error)
{
    char why[256];
    uint64_t stride = o->slot_bytes ? o->slot_bytes : STOC_MAX_CHAIN_STRIDE, slots;
    for (;; stride /= 2) {
        if (!geometry_of(flags, o->policy, o->samples, 1, stride, records, 0, g, why))
            return fail(error, STOC_EINVAL, 0, "%s", why);
        slots = most_slots(o, flags, records, stride, MIN(o->limit_bytes / stride, STOC_MAX_SLOTS));
        if (o->slot_bytes || stride == STOC_UNIT_BYTES || slots >= 8 * o->samples)
            break;
    }
    if (slots == 0) {
        snprintf(why, sizeof why, "one slot of %lu bytes for %lu samples needs", stride, o->samples);
        return too_small(o->limit_bytes, g->segment_bytes, why, more_for_samples, error);
    }
    geometry_of(flags, o->policy, o->samples, slots, stride, records, 0, g, why);
    return 0;
}

/* Checks the options, and fills in the header except uuid and time. */
INTERNAL int plan(const char *name, const struct stoc_options *o, struct header *h, struct stoc_error *error)
{
    char why[256];
    memset(h, 0, sizeof *h);
    if (validate(name, o, error) < 0)
        return STOC_EINVAL;
    h->version = STOC_LAYOUT_VERSION;
    h->creator_uid = (uint32_t)geteuid();
    h->limit_bytes = o->limit_bytes;
    h->sample_bytes = o->sample_bytes;
    if (name)
        snprintf(h->name, sizeof h->name, "%s", name);
    if (o->fingerprint)
        snprintf(h->fingerprint, sizeof h->fingerprint, "%s", o->fingerprint);
    h->field_count = 1;
    if (o->fields) {
        if (o->field_count < 1 || o->field_count > STOC_MAX_FIELDS)
            return fail(error, STOC_EINVAL, 0, "fields: %u fields are not in 1..%lu", o->field_count, STOC_MAX_FIELDS);
        h->field_count = o->field_count;
        memcpy(h->fields, o->fields, o->field_count * sizeof *o->fields);
    } else {
        h->fields[0] = (struct stoc_field){.name = "data", .dtype = STOC_UINT8, .ndim = 1,
                                           .dims = {o->variable ? STOC_VARIABLE_DIM : o->sample_bytes}};
    }
    for (uint32_t k = 0; k < h->field_count; k++) {
        /* bytes that the caller leaves undefined must not reach the header */
        struct stoc_field *f = &h->fields[k];
        size_t n = strnlen(f->name, sizeof f->name);
        memset(f->name + n, 0, sizeof f->name - n);
        f->reserved = 0;
        for (unsigned d = f->ndim; d < STOC_MAX_DIMS; d++)
            f->dims[d] = 0;
    }
    uint64_t sample_bytes, stride;
    if (!schema_lay_out(h->fields, h->field_count, o->variable, &sample_bytes, &stride, why))
        return fail(error, STOC_EINVAL, 0, "fields: %s", why);
    if (!o->variable && o->sample_bytes != 0 && o->sample_bytes != sample_bytes)
        return fail(error, STOC_EINVAL, 0, "sample_bytes: %lu, but the fields make %lu; leave it out", o->sample_bytes,
                    sample_bytes);

    uint32_t flags = (o->variable ? STOC_FLAG_VARIABLE : 0) | (o->unlink_last ? STOC_FLAG_UNLINK_LAST : 0) |
                     (o->reserve ? STOC_FLAG_RESERVED : 0) | (name ? STOC_FLAG_NAMED : 0) |
                     (o->lengths ? STOC_FLAG_LENGTHS : 0);
    uint32_t records = o->client_records ? o->client_records : (uint32_t)STOC_DEFAULT_CLIENT_RECORDS;
    if (o->variable) {
        uint64_t smallest = units_for(sample_bytes) * STOC_UNIT_BYTES;
        if (h->sample_bytes == 0)
            h->sample_bytes = STOC_MAX_SAMPLE_BYTES;
        if (h->sample_bytes < sample_bytes)
            return fail(error, STOC_EINVAL, 0,
                        "sample_bytes: %lu, but the smallest sample of these fields has %lu; leave it out, or raise it",
                        h->sample_bytes, sample_bytes);
        if (policy_evicts(o->policy))
            return plan_chains(o, flags, records, &h->g, error);
        if (!geometry_of(flags, o->policy, o->samples, 0, STOC_UNIT_BYTES, records, smallest, &h->g, why))
            return fail(error, STOC_EINVAL, 0, "%s", why);
        if (o->limit_bytes < h->g.segment_bytes) {
            snprintf(why, sizeof why, "a cache for the smallest of %lu samples (at least %lu bytes) needs", o->samples,
                     smallest);
            return too_small(o->limit_bytes, h->g.segment_bytes, why, more_for_samples, error);
        }
        uint64_t payload = (o->limit_bytes - h->g.payload_offset) / STOC_REGION_ALIGN * STOC_REGION_ALIGN;
        payload = MIN(payload, STOC_MAX_ARENA_BYTES - STOC_UNIT_BYTES);
        if (!geometry_of(flags, o->policy, o->samples, 0, STOC_UNIT_BYTES, records, payload, &h->g, why))
            return fail(error, STOC_EINVAL, 0, "%s", why);
        return 0;
    }
    h->sample_bytes = sample_bytes;
    uint64_t slots = o->slots ? o->slots : MIN(o->samples, STOC_MAX_SLOTS), wanted = o->slots ? o->slots : 1;
    if (o->slots == 0 && o->limit_bytes != 0)
        slots = most_slots(o, flags, records, stride, slots);
    bool fits = slots > 0 && geometry_of(flags, o->policy, o->samples, slots, stride, records, 0, &h->g, why);
    if (o->limit_bytes != 0 && (!fits || h->g.segment_bytes > o->limit_bytes)) {
        if (!geometry_of(flags, o->policy, o->samples, wanted, stride, records, 0, &h->g, why))
            return fail(error, STOC_EINVAL, 0, "%s", why);
        if (o->slots) {
            snprintf(why, sizeof why, "%lu slots of %lu bytes for %lu samples need", wanted, stride, o->samples);
            return too_small(o->limit_bytes, h->g.segment_bytes, why, "give that much, or fewer slots", error);
        }
        char advice[200] = "";
        advise_size(advice, o, flags, records, stride);
        snprintf(why, sizeof why, "one slot of %lu bytes for %lu samples needs", stride, o->samples);
        return too_small(o->limit_bytes, h->g.segment_bytes, why, advice, error);
    }
    if (!fits)
        return fail(error, STOC_EINVAL, 0, "%s", why);
    return 0;
}

/* Copies the options, if they are of this version. */
INTERNAL int take_options(const struct stoc_options *options, struct stoc_options *known, struct stoc_error *error)
{
    memset(known, 0, sizeof *known);
    if (!options)
        return fail(error, STOC_EINVAL, 0, "no options given");
    if (check_struct(options->struct_bytes, sizeof *options, "options", "options", "", error) < 0)
        return STOC_EINVAL;
    *known = *options;
    if (known->open_flags & ~STOC_OPEN_KIND_PYTHON)
        return fail(error, STOC_EINVAL, 0, "open_flags: %#x; set them to 0", known->open_flags);
    return 0;
}

/*
 * options.c - the options of a new cache: their checks, and the geometry that they make.
 * docs/spec/options.md.
 */
#include "protocol.h"

/* A row of the table of options. */
struct option_row {
    const char *name, *python;
    size_t at, bytes; /* place of the member */
    enum { NUMBER, NEEDED, POWER, TEXT, OTHERWISE } check;
    uint64_t least, most; /* of a text, bytes */
    const char *wanted;
};

#define ROW(member, python, ...)                                                                                       \
    {#member, python, offsetof(struct stoc_options, member), sizeof((struct stoc_options *)0)->member, __VA_ARGS__},
static const struct option_row option_table[] = {
#include "option_rows.h"
};
#undef ROW

/* The error of an option: its name as the caller has it, and the text. member lies in *o; NULL: the name. */
__attribute__((format(printf, 4, 5))) static int refuse(const struct stoc_options *o, const void *member,
                                                        struct stoc_error *error, const char *format, ...)
{
    char text[256];
    const char *name = "name";
    va_list args;
    for (size_t k = 0; k < sizeof option_table / sizeof *option_table; k++)
        if ((const char *)o + option_table[k].at == member)
            name = o->open_flags & STOC_OPEN_KIND_PYTHON ? option_table[k].python : option_table[k].name;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return fail(error, STOC_EINVAL, 0, "%s: %s", name, text);
}

/* Checks an option by its row. */
static int check_option(const struct stoc_options *o, const struct option_row *row, struct stoc_error *error)
{
    const void *member = (const char *)o + row->at;
    if (row->check == TEXT) {
        const char *text = *(const char *const *)member;
        size_t n = text ? strlen(text) : 0;
        if (n > row->most || !is_utf8(text, n))
            return refuse(o, member, error, "%zu bytes are not %s", n, row->wanted);
    } else if (row->check != OTHERWISE) {
        uint64_t n = row->bytes == 4 ? *(const uint32_t *)member : *(const uint64_t *)member;
        if ((n != 0 || row->check == NEEDED) &&
            (n < row->least || n > row->most || (row->check == POWER && (n & (n - 1)))))
            return refuse(o, member, error, "%llu is not %s", (unsigned long long)n, row->wanted);
    }
    return 0;
}

/* Checks the options. Options.validate in shm/options.go has the same rules and texts;
 * shm/testdata/options.json tests both. */
static int validate(const char *name, const struct stoc_options *o, struct stoc_error *error)
{
    int code = 0;
    bool evicts = policy_evicts(o->policy);
    if (name && !name_valid(name))
        return refuse(o, NULL, error, "\"%.120s\" is not 1 to 100 of [A-Za-z0-9._-] with an alphanumeric first", name);
    if (!name && o->directory)
        return refuse(o, &o->directory, error, "a cache without a name has none; give it a name");
    if (!name && o->unlink_last)
        return refuse(o, &o->unlink_last, error,
                      "a cache without a name always goes with its last process; leave it out or give a name");
    for (size_t k = 0; k < sizeof option_table / sizeof *option_table && code == 0; k++)
        code = check_option(o, &option_table[k], error);
    if (code < 0)
        return code;
    if (o->slots > o->samples)
        return refuse(o, &o->slots, error, "%llu is more than the %llu samples; leave it out for as many as size holds",
                      (unsigned long long)o->slots, (unsigned long long)o->samples);
    if (o->slot_bytes && !(o->variable && evicts))
        return refuse(o, &o->slot_bytes, error,
                      "%llu: only a variable-size cache that evicts has slots of a given size; leave it out",
                      (unsigned long long)o->slot_bytes);
    if (o->variable && o->limit_bytes == 0)
        return refuse(o, &o->limit_bytes, error, "a variable-size cache needs one, such as 8GiB");
    if (o->variable && o->slots != 0)
        return refuse(o, &o->slots, error, "%llu: a variable-size cache has no number of slots; leave it out",
                      (unsigned long long)o->slots);
    if (o->variable && o->policy == STOC_POLICY_FIRST_INDICES)
        return refuse(o, &o->policy, error,
                      "first-indices needs samples of one size, so that sample i has slot i; take another policy");
    if (o->variable && evicts && o->samples > STOC_MAX_CHAIN_SAMPLES)
        return refuse(o, &o->samples, error,
                      "%llu is more than %llu, the most of a variable-size cache that evicts; take the policy first-come",
                      (unsigned long long)o->samples, (unsigned long long)STOC_MAX_CHAIN_SAMPLES);
    if (!o->variable && !o->fields && o->sample_bytes == 0)
        return refuse(o, &o->sample_bytes, error, "give them, or fields, or make the cache variable-size");
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
    snprintf(text, 32, "%llu.%02llu MiB", (unsigned long long)(hundredths / 100), (unsigned long long)(hundredths % 100));
}

/* The same, rounded up. */
static void mebibytes_up(char text[32], uint64_t bytes) { mebibytes(text, bytes + ((1 << 20) + 99) / 100 - 1); }

/* The error of a size that is less than what is needed. next is the next step. */
static int too_small(uint64_t limit, uint64_t need, const char *needs, const char *next, struct stoc_error *error)
{
    char needed[32], shown[32];
    mebibytes_up(needed, need);
    if (limit < 1 << 20)
        snprintf(shown, sizeof shown, "%llu bytes", (unsigned long long)limit);
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
        snprintf(why, sizeof why, "one slot of %llu bytes for %llu samples needs", (unsigned long long)stride,
                 (unsigned long long)o->samples);
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
            return refuse(o, &o->fields, error, "%u fields are not in 1..%d", o->field_count, (int)STOC_MAX_FIELDS);
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
        return refuse(o, &o->fields, error, "%s", why);
    if (!o->variable && o->sample_bytes != 0 && o->sample_bytes != sample_bytes)
        return refuse(o, &o->sample_bytes, error, "%llu, but the fields make %llu; leave it out",
                      (unsigned long long)o->sample_bytes, (unsigned long long)sample_bytes);

    uint32_t flags = (o->variable ? STOC_FLAG_VARIABLE : 0) | (o->unlink_last ? STOC_FLAG_UNLINK_LAST : 0) |
                     (o->reserve ? STOC_FLAG_RESERVED : 0) | (name ? STOC_FLAG_NAMED : 0);
    uint32_t records = o->client_records ? o->client_records : (uint32_t)STOC_DEFAULT_CLIENT_RECORDS;
    if (o->variable) {
        uint64_t smallest = units_for(sample_bytes) * STOC_UNIT_BYTES;
        if (h->sample_bytes == 0)
            h->sample_bytes = STOC_MAX_SAMPLE_BYTES;
        if (h->sample_bytes < sample_bytes)
            return refuse(o, &o->sample_bytes, error,
                          "%llu, but the smallest sample of these fields has %llu; leave it out, or raise it",
                          (unsigned long long)h->sample_bytes, (unsigned long long)sample_bytes);
        if (policy_evicts(o->policy))
            return plan_chains(o, flags, records, &h->g, error);
        if (!geometry_of(flags, o->policy, o->samples, 0, STOC_UNIT_BYTES, records, smallest, &h->g, why))
            return fail(error, STOC_EINVAL, 0, "%s", why);
        if (o->limit_bytes < h->g.segment_bytes) {
            snprintf(why, sizeof why, "the smallest of %llu samples (%llu bytes) needs", (unsigned long long)o->samples,
                     (unsigned long long)smallest);
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
            snprintf(why, sizeof why, "%llu slots of %llu bytes for %llu samples need", (unsigned long long)wanted,
                     (unsigned long long)stride, (unsigned long long)o->samples);
            return too_small(o->limit_bytes, h->g.segment_bytes, why, "give that much, or fewer slots", error);
        }
        char advice[200] = "";
        advise_size(advice, o, flags, records, stride);
        snprintf(why, sizeof why, "one slot of %llu bytes for %llu samples needs", (unsigned long long)stride,
                 (unsigned long long)o->samples);
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
    if (known->open_flags & ~STOC_OPEN_KIND_PYTHON || known->reserved)
        return fail(error, STOC_EINVAL, 0, "open_flags: %#x and reserved: %#x; set them to 0", known->open_flags,
                    known->reserved);
    return 0;
}

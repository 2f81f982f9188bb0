/*
 * header.c - the first 4,096 bytes. The creator writes them once, before the file has a name. Every
 * attach checks them: they must be exactly what this code would write.
 */
#include "segment.h"

/* CRC-32C of a header page, with the field of the checksum as 0. */
static uint32_t header_crc(const unsigned char *page)
{
    static const unsigned char zero[4];
    crc_function *crc32c = crc_choose();
    uint32_t crc = crc32c(0, page, STOC_HEADER_CRC);
    crc = crc32c(crc, zero, sizeof zero);
    return crc32c(crc, page + STOC_HEADER_CRC + 4, STOC_HEADER_BYTES - STOC_HEADER_CRC - 4);
}

INTERNAL void header_encode(const struct header *h, unsigned char page[STOC_HEADER_BYTES])
{
    const struct geometry *g = &h->g;
    memset(page, 0, STOC_HEADER_BYTES);
    memcpy(page + STOC_HEADER_MAGIC, STOC_MAGIC, 8);
    put32(page, STOC_HEADER_VERSION, h->version);
    put32(page, STOC_HEADER_SIGNATURE, (uint32_t)STOC_SIGNATURE);
    put32(page, STOC_HEADER_ENDIAN_MARK, (uint32_t)STOC_ENDIAN_MARK);
    put64(page, STOC_HEADER_SEGMENT_BYTES, g->segment_bytes);
    memcpy(page + STOC_HEADER_UUID, h->uuid, 16);
    put64(page, STOC_HEADER_CREATED, (uint64_t)h->created_ns);
    put32(page, STOC_HEADER_UID, h->creator_uid);
    put32(page, STOC_HEADER_FLAGS, g->flags);
    put64(page, STOC_HEADER_SAMPLES, g->samples);
    put64(page, STOC_HEADER_SLOTS, g->slots);
    put64(page, STOC_HEADER_SAMPLE_BYTES, h->sample_bytes);
    put64(page, STOC_HEADER_SLOT_STRIDE, g->slot_stride);
    put32(page, STOC_HEADER_CLIENT_RECORDS, g->client_records);
    put32(page, STOC_HEADER_POLICY, g->policy);
    put64(page, STOC_HEADER_INDEX_OFFSET, g->index_offset);
    put64(page, STOC_HEADER_SLOT_TABLE_OFFSET, g->slot_table_offset);
    put64(page, STOC_HEADER_REFERENCE_OFFSET, g->reference_offset);
    put64(page, STOC_HEADER_GROUPS_OFFSET, g->groups_offset);
    put64(page, STOC_HEADER_LENGTHS_OFFSET, g->lengths_offset);
    put64(page, STOC_HEADER_PAYLOAD_OFFSET, g->payload_offset);
    put64(page, STOC_HEADER_PAYLOAD_BYTES, g->payload_bytes);
    put32(page, STOC_HEADER_FIELD_COUNT, h->field_count);
    put64(page, STOC_HEADER_LIMIT_BYTES, h->limit_bytes);
    put64(page, STOC_HEADER_SUMS_OFFSET, g->sums_offset);
    memcpy(page + STOC_HEADER_FINGERPRINT, h->fingerprint, strnlen(h->fingerprint, STOC_FINGERPRINT_BYTES));
    memcpy(page + STOC_HEADER_NAME, h->name, strnlen(h->name, STOC_NAME_BYTES));
    memcpy(page + STOC_HEADER_DECODE, h->decode, strnlen(h->decode, STOC_DECODE_BYTES));
    for (uint32_t k = 0; k < h->field_count; k++) {
        const struct stoc_field *f = &h->fields[k];
        unsigned char *record = page + STOC_HEADER_FIELDS + k * STOC_FIELD_BYTES;
        memcpy(record, f->name, strnlen(f->name, sizeof f->name));
        put16(record, STOC_FIELD_DTYPE, f->dtype);
        put16(record, STOC_FIELD_NDIM, f->ndim);
        put64(record, STOC_FIELD_OFFSET, f->offset);
        put64(record, STOC_FIELD_SIZE, f->bytes);
        for (unsigned d = 0; d < f->ndim; d++)
            put64(record, STOC_FIELD_DIMS + 8 * d, f->dims[d]);
    }
    put32(page, STOC_HEADER_CRC, header_crc(page));
}

/* 1 to 100 of [A-Za-z0-9._-], the first alphanumeric. */
INTERNAL bool name_valid(const char *name)
{
    size_t n = strnlen(name, 101);
    if (n < 1 || n > 100)
        return false;
    for (size_t k = 0; k < n; k++) {
        char c = name[k];
        bool alphanumeric = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
        if (!alphanumeric && (k == 0 || !(c == '.' || c == '_' || c == '-')))
            return false;
    }
    return true;
}

/* Decodes and checks everything after magic, version and checksum. why has at least 256 bytes. */
static bool header_decode_rest(const unsigned char *page, struct header *h, char *why)
{
    uint32_t flags = get32(page, STOC_HEADER_FLAGS), policy = get32(page, STOC_HEADER_POLICY);
    if (flags & ~(uint32_t)STOC_FLAGS_KNOWN)
        return refuse(why, "unknown flags %#x", flags & ~(uint32_t)STOC_FLAGS_KNOWN);
    bool variable = flags & STOC_FLAG_VARIABLE, named = flags & STOC_FLAG_NAMED;
    /* the comparison below finds a last byte that is not 0 */
    memcpy(h->name, page + STOC_HEADER_NAME, STOC_NAME_BYTES - 1);
    memcpy(h->fingerprint, page + STOC_HEADER_FINGERPRINT, STOC_FINGERPRINT_BYTES);
    memcpy(h->decode, page + STOC_HEADER_DECODE, STOC_DECODE_BYTES);
    if (named ? !name_valid(h->name) : (h->name[0] || (flags & STOC_FLAG_UNLINK_LAST)))
        return refuse(why, "flags %#x with the name \"%.100s\"", flags, h->name);
    if (!is_utf8(h->fingerprint, strnlen(h->fingerprint, STOC_FINGERPRINT_BYTES)))
        return refuse(why, "the fingerprint is not UTF-8");
    if (!is_utf8(h->decode, strnlen(h->decode, STOC_DECODE_BYTES)))
        return refuse(why, "decode is not UTF-8");
    h->created_ns = (int64_t)get64(page, STOC_HEADER_CREATED);
    h->creator_uid = get32(page, STOC_HEADER_UID);
    h->sample_bytes = get64(page, STOC_HEADER_SAMPLE_BYTES);
    h->limit_bytes = get64(page, STOC_HEADER_LIMIT_BYTES);
    memcpy(h->uuid, page + STOC_HEADER_UUID, 16);
    h->field_count = get32(page, STOC_HEADER_FIELD_COUNT);
    if (h->field_count < 1 || h->field_count > STOC_MAX_FIELDS)
        return refuse(why, "%u fields are not in 1..%lu", h->field_count, STOC_MAX_FIELDS);
    for (uint32_t k = 0; k < h->field_count; k++) {
        const unsigned char *record = page + STOC_HEADER_FIELDS + k * STOC_FIELD_BYTES;
        struct stoc_field *f = &h->fields[k];
        memcpy(f->name, record + STOC_FIELD_NAME, sizeof f->name);
        f->dtype = get16(record, STOC_FIELD_DTYPE);
        f->ndim = get16(record, STOC_FIELD_NDIM);
        for (unsigned d = 0; d < MIN(f->ndim, STOC_MAX_DIMS); d++)
            f->dims[d] = get64(record, STOC_FIELD_DIMS + 8 * d);
    }
    uint64_t sample_bytes, stride;
    if (!schema_lay_out(h->fields, h->field_count, variable, &sample_bytes, &stride, why))
        return false;
    if (variable) {
        uint64_t least = MAX(sample_bytes, 1);
        if (h->sample_bytes < least || h->sample_bytes > STOC_MAX_SAMPLE_BYTES)
            return refuse(why, "sample bytes %lu are not in %lu..%lu", h->sample_bytes, least, STOC_MAX_SAMPLE_BYTES);
        sample_bytes = h->sample_bytes;
        stride = has_chains(flags, policy) ? get64(page, STOC_HEADER_SLOT_STRIDE) : STOC_UNIT_BYTES;
    }
    if (sample_bytes != h->sample_bytes)
        return refuse(why, "sample bytes %lu, the fields make %lu", h->sample_bytes, sample_bytes);
    if (!geometry_of(flags, policy, get64(page, STOC_HEADER_SAMPLES), get64(page, STOC_HEADER_SLOTS), stride,
                     get32(page, STOC_HEADER_CLIENT_RECORDS), get64(page, STOC_HEADER_PAYLOAD_BYTES), &h->g, why))
        return false;
    /* Encoding the header again must give every byte, reserved bytes and padding included. */
    unsigned char again[STOC_HEADER_BYTES];
    header_encode(h, again);
    for (size_t k = 0; k < STOC_HEADER_BYTES; k++) {
        if (again[k] == page[k] || (k >= STOC_HEADER_CRC && k < STOC_HEADER_CRC + 4))
            continue;
        return refuse(why, "byte %zu of the header is %#x, by the rest of it %#x", k, page[k], again[k]);
    }
    return true;
}

/*
 * Checks and decodes the first page of a file of file_bytes. No code may touch the file before
 * that. Errors in this order: EFORMAT (not a segment), EVERSION (byte order, layout version,
 * sizes), EFORMAT (checksum, fields, size of the file).
 */
INTERNAL int header_decode(const unsigned char page[STOC_HEADER_BYTES], uint64_t file_bytes, const char *path,
                           struct header *h, struct stoc_error *error)
{
    char why[256];
    memset(h, 0, sizeof *h);
    if (memcmp(page + STOC_HEADER_MAGIC, STOC_MAGIC, 8) != 0)
        return fail(error, STOC_EFORMAT, 0, "%s is no segment: it does not begin with %s", path, STOC_MAGIC);
    h->version = get32(page, STOC_HEADER_VERSION);
    if (get32(page, STOC_HEADER_ENDIAN_MARK) != STOC_ENDIAN_MARK)
        return fail(error, STOC_EVERSION, 0, "%s: byte order mark %#x, ours %#lx; create it again", path,
                    get32(page, STOC_HEADER_ENDIAN_MARK), STOC_ENDIAN_MARK);
    if (h->version != STOC_LAYOUT_VERSION)
        return fail(error, STOC_EVERSION, 0,
                    "%s: layout %u, this build reads %lu; use the same version everywhere, or create it again", path,
                    h->version, STOC_LAYOUT_VERSION);
    if (get32(page, STOC_HEADER_SIGNATURE) != STOC_SIGNATURE)
        return fail(error, STOC_EVERSION, 0,
                    "%s: signature of sizes %#x, ours %#lx; use builds of the same version, or create it again", path,
                    get32(page, STOC_HEADER_SIGNATURE), STOC_SIGNATURE);
    if (get32(page, STOC_HEADER_CRC) != header_crc(page))
        return fail(error, STOC_EFORMAT, 0,
                    "%s: checksum of the header is %#x, it says %#x; remove it and create it again", path,
                    header_crc(page), get32(page, STOC_HEADER_CRC));
    if (!header_decode_rest(page, h, why))
        return fail(error, STOC_EFORMAT, 0, "%s: %s; remove it and create it again", path, why);
    if (h->g.segment_bytes != file_bytes)
        return fail(error, STOC_EFORMAT, 0,
                    "%s: the file has %lu bytes, its header says %lu: it was truncated or extended; remove it and "
                    "create it again",
                    path, file_bytes, h->g.segment_bytes);
    return 0;
}

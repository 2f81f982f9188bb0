/*
 * segment.h - the bytes of a segment: fields, regions, header and words. Also the files that hold
 * them, and their memory.
 *
 * docs/spec/segment.md is normative. Includes base. Knows nothing of clients.
 */
#ifndef STOCACHED_SEGMENT_H
#define STOCACHED_SEGMENT_H

#include "../base/base.h"
#include "record.h"

/* schema.c */
__attribute__((format(printf, 2, 3))) INTERNAL bool refuse(char *why, const char *format, ...);
INTERNAL bool is_utf8(const char *text, size_t n);
INTERNAL bool schema_lay_out(struct stoc_field *fields, uint32_t count, bool variable, uint64_t *sample_bytes,
                             uint64_t *stride, char *why);

/* geometry.c */
/* Whether a set into a full cache gives the slot of another sample to its own. */
static inline bool policy_evicts(uint32_t policy) { return policy >= STOC_POLICY_COST && policy <= STOC_POLICY_PLANNED; }
/* Whether a byte for each slot belongs to it, which hits change. */
static inline bool policy_references(uint32_t policy)
{
    return policy == STOC_POLICY_CLOCK || policy == STOC_POLICY_LRU || policy == STOC_POLICY_LFU;
}
/* Whether samples lie in chains of slots: docs/spec/arena-eviction.md. */
static inline bool has_chains(uint32_t flags, uint32_t policy)
{
    return (flags & STOC_FLAG_VARIABLE) && policy_evicts(policy);
}
INTERNAL bool geometry_of(uint32_t flags, uint32_t policy, uint64_t samples, uint64_t slots, uint64_t stride,
                          uint32_t client_records, uint64_t payload_bytes, struct geometry *g, char *why);

/* header.c */
/* Numbers of a file or of a frame: little-endian, not aligned. */
static inline void put16(unsigned char *page, uint64_t at, uint16_t value) { memcpy(page + at, &value, 2); }
static inline void put32(unsigned char *page, uint64_t at, uint32_t value) { memcpy(page + at, &value, 4); }
static inline void put64(unsigned char *page, uint64_t at, uint64_t value) { memcpy(page + at, &value, 8); }

static inline uint16_t get16(const unsigned char *page, uint64_t at)
{
    uint16_t value;
    memcpy(&value, page + at, 2);
    return value;
}
static inline uint32_t get32(const unsigned char *page, uint64_t at)
{
    uint32_t value;
    memcpy(&value, page + at, 4);
    return value;
}
static inline uint64_t get64(const unsigned char *page, uint64_t at)
{
    uint64_t value;
    memcpy(&value, page + at, 8);
    return value;
}

struct header {
    struct geometry g;
    uint32_t version; /* version of the layout */
    unsigned char uuid[16];
    int64_t created_ns;
    uint32_t creator_uid, field_count;
    uint64_t sample_bytes, limit_bytes;
    char fingerprint[STOC_FINGERPRINT_BYTES + 1], name[STOC_NAME_BYTES], decode[STOC_DECODE_BYTES + 1];
    struct stoc_field fields[STOC_MAX_FIELDS];
};

INTERNAL void header_encode(const struct header *h, unsigned char page[STOC_HEADER_BYTES]);
INTERNAL bool name_valid(const char *name);
INTERNAL int header_decode(const unsigned char page[STOC_HEADER_BYTES], uint64_t file_bytes, const char *path,
                           struct header *h, struct stoc_error *error);

/* path.c */
INTERNAL void default_directory(char *path, size_t size);
INTERNAL int path_of(const char *name_or_path, char path[OWN_PATH_BYTES], struct stoc_error *error);
INTERNAL int check_file(const struct stat *st, const char *path, struct stoc_error *error);
INTERNAL int check_file_size(const char *what, const char *has, uint64_t bytes, const char *otherwise,
                             struct stoc_error *error);
INTERNAL bool is_proc_fd(const char *path);
INTERNAL int open_error(const char *path, struct stoc_error *error);
INTERNAL int open_directory(const char *directory, bool create, int *fd, struct stoc_error *error);
INTERNAL int open_file(const char *path, int *fd, bool *read_only, struct stoc_error *error);

/* memory.c */
/* A limit on memory, and what is left below it, in bytes. */
struct room {
    char what[192]; /* for people: "the machine (MemAvailable)", "cgroup /a/b (memory.max)" */
    uint64_t total, available;
    uint64_t promised; /* promised to other caches, */
    unsigned caches;   /* to this many of them */
};

/* What one cache may still fill. shared: by cgroup version, the largest depth of a level that one
 * of its clients shares with this process; -1: none. */
struct promise {
    dev_t dev;
    ino_t ino;
    uint64_t bytes;
    int shared[3];
};

/* settled: so many are sorted by file */
struct promises {
    struct promise *list;
    size_t n, settled, room;
};

/* Where this process finds the memory limits of one cgroup version. */
struct hierarchy {
    int version;
    char mount[512], root[512], group[512]; /* the mount point, the mounted group, and our own group below it */
};

enum { MOST_HIERARCHIES = 4 };

INTERNAL uint64_t room_floor(const struct room *r);
INTERNAL uint64_t room_usable(const struct room *r);
INTERNAL int64_t read_below(const char *root, const char *path, char *text, size_t size);
INTERNAL void keep_promises(const struct promises *others, int version, int depth, struct room *r);
INTERNAL void group_below(const char *own, const char *mounted, char *group);
INTERNAL void memory_groups(const char *root, const char *pid, char groups[3][512]);
INTERNAL size_t find_hierarchies(const char *root, struct hierarchy found[MOST_HIERARCHIES]);
INTERNAL bool tightest_room(const char *root, const struct promises *others, struct room *least);

/* promise.c */
INTERNAL const char *users_of(int fd, char *text, size_t size);
INTERNAL int check_budget(uint64_t need, const struct statfs *fs, const char *directory, struct stoc_error *error);

#endif

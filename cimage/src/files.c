/* Reads the file of a picture, or the part of a shard that has it, and its label. */
#define _POSIX_C_SOURCE 200809L /* pread, O_CLOEXEC */
#include "image.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    FIRST_READ = 1 << 16,
    MOST_BETWEEN = 16384 /* bytes between a picture and its label that are read, so that one read has both */
};

/* Reads n bytes from an offset, or up to the end of the file. at -1: from where the descriptor is, as of a pipe.
 * Returns how many; below 0: errno is set. */
static ssize_t read_from(int fd, uint8_t *dst, size_t n, int64_t at)
{
    size_t done = 0;
    while (done < n) {
        ssize_t got = at < 0 ? read(fd, dst + done, n - done) : pread(fd, dst + done, n - done, (off_t)at + (off_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? got : (ssize_t)done;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

/* Reads a whole file to found->at bytes after the begin of the buffer. */
static int read_whole(stoc_image_worker *w, int fd, struct buffer *b, struct found *found)
{
    struct stat about;
    if (fstat(fd, &about) < 0)
        return STOC_IMAGE_ESYSTEM;
    size_t want = (size_t)about.st_size + 1; /* one more shows the end of the file; the size of a pipe is 0 */
    for (want = want < FIRST_READ ? FIRST_READ : want;; want *= 2) {
        if (!extend(b, found->at + found->bytes, found->at + want))
            return no_memory(w, want);
        ssize_t got = read_from(fd, b->bytes + found->at + found->bytes, want - found->bytes, -1);
        if (got < 0)
            return STOC_IMAGE_ESYSTEM;
        found->bytes += (size_t)got;
        if (found->bytes < want)
            return STOC_IMAGE_OK;
    }
}

static bool is_space(uint8_t c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* A whole number. False: Python reads the text. */
static bool parse_label(const uint8_t *text, size_t n, uint32_t kind, int64_t *label)
{
    while (n && is_space(text[n - 1]))
        n--;
    for (; n && is_space(*text); n--)
        text++;
    bool json = kind == STOC_IMAGE_LABEL_JSON, minus = n && *text == '-';
    if (minus || (n && *text == '+' && !json)) {
        text++;
        n--;
    }
    if (!n || (json && n > 1 && *text == '0'))
        return false;
    uint64_t value = 0, most = (uint64_t)INT64_MAX + minus;
    for (; n; n--, text++) {
        unsigned digit = *text - (unsigned)'0';
        if (digit > 9 || value > (most - digit) / 10)
            return false;
        value = 10 * value + digit;
    }
    *label = minus ? (int64_t)-value : (int64_t)value;
    return true;
}

/* Reads the part of a file that has a picture, and the label's text: both at once if they lie close together. */
static int read_part(stoc_image_worker *w, int fd, const struct stoc_image_place *place, struct buffer *b,
                     struct found *found)
{
    bool text = w->pipeline->labelled && place->label_kind != STOC_IMAGE_LABEL_KNOWN;
    if (place->at < 0 || place->at > INT64_MAX - UINT32_MAX ||
        (text && (place->label < 0 || place->label > INT64_MAX - UINT32_MAX)))
        return fail(w, STOC_IMAGE_EINVAL, "a sample lies at no place of a file");
    int64_t first = place->at, last = first + place->bytes;
    size_t before = found->at, apart = 0; /* apart: bytes of the text, if they are read for themselves */
    if (text) {
        int64_t label_end = place->label + place->label_bytes, begin = first < place->label ? first : place->label;
        int64_t end = last > label_end ? last : label_end;
        if (end - begin - place->bytes - place->label_bytes <= MOST_BETWEEN) {
            first = begin;
            last = end;
        } else
            apart = place->label_bytes;
    }
    size_t n = (size_t)(last - first);
    if (!reserve(b, before + n + apart))
        return no_memory(w, n + apart);
    uint8_t *bytes = b->bytes + before;
    ssize_t got = read_from(fd, bytes, n, first), more = 0;
    if (got < 0 || (apart && (more = read_from(fd, bytes + n, apart, place->label)) < 0))
        return STOC_IMAGE_ESYSTEM;
    if ((size_t)got < n || (size_t)more < apart)
        return fail(w, STOC_IMAGE_EFORMAT, "the file ends in the middle of a sample");
    if (text && !parse_label(bytes + (apart ? n : (size_t)(place->label - first)), place->label_bytes,
                             place->label_kind, &found->label))
        return fail(w, STOC_IMAGE_EUNSUPPORTED, "the label is no whole number");
    found->at = before + (size_t)(place->at - first);
    found->bytes = place->bytes;
    return STOC_IMAGE_OK;
}

static bool has_changed(int fd, const struct stoc_image_stamp *stamp)
{
    struct stat about;
    return fstat(fd, &about) < 0 || about.st_size != stamp->bytes ||
           about.st_mtim.tv_sec * INT64_C(1000000000) + about.st_mtim.tv_nsec != stamp->modified_ns;
}

int read_sample(stoc_image_worker *w, uint64_t index, struct buffer *b, struct found *found)
{
    const struct stoc_image_pipeline *p = w->pipeline;
    const struct stoc_image_place *place = &p->places[index];
    if (place->file >= p->files)
        return fail(w, STOC_IMAGE_EINVAL, "there is no file %u", place->file);
    const char *path = p->paths + p->path_at[place->file];
    int32_t *held = p->descriptors && place->at != -1 ? &p->descriptors[place->file] : NULL;
    int fd = held ? __atomic_load_n(held, __ATOMIC_ACQUIRE) - 1 : -1;
    bool opened = fd < 0;
    if (opened && (fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return fail(w, STOC_IMAGE_ESYSTEM, "%s: %s", path, strerror(errno));
    found->label = place->label;
    found->bytes = 0;
    w->message[0] = 0;
    int code = place->at == -1 ? read_whole(w, fd, b, found) : read_part(w, fd, place, b, found);
    if (code == STOC_IMAGE_ESYSTEM && !w->message[0])
        fail(w, code, "%s: %s", path, strerror(errno));
    /* We check after the read, so that we use no bytes that another program wrote during it. */
    if (!code && p->stamps && has_changed(fd, &p->stamps[place->file]))
        code = fail(w, STOC_IMAGE_ESYSTEM, "%s has changed", path);
    int32_t none = 0;
    bool keep = opened && !code && held &&
                __atomic_compare_exchange_n(held, &none, fd + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    if (opened && !keep)
        close(fd);
    return code;
}

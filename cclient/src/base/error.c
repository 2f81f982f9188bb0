/*
 * error.c - codes and messages. A message says what the caller asked for, the numbers, and the next
 * step.
 */
#include "base.h"

uint32_t stoc_abi_version(void) { return STOC_ABI_VERSION; }

const char *stoc_version(void) { return STOC_PRODUCT_VERSION; }

const char *stoc_strerror(int code)
{
    switch (code) {
    case STOC_STORED: return "stored (or a miss)";
    case STOC_EXISTS: return "the sample is in the cache already (or a hit)";
    case STOC_BUSY: return "another client is filling the sample, or the cache is being cleared";
    case STOC_FULL: return "the cache is full or memory is short";
    case STOC_OUT: return "the sample has no slot";
    case STOC_EINVAL: return "invalid argument; stoc_explain says which";
    case STOC_EINDEX: return "sample index out of range";
    case STOC_ESCHEMA: return "wrong size, dtype, shape or field for this cache";
    case STOC_ENOENT: return "no such cache";
    case STOC_EEXIST: return "a cache of that name exists";
    case STOC_EFORMAT: return "not a segment of stocached, or damaged";
    case STOC_EVERSION: return "a segment of another layout version";
    case STOC_EFINGERPRINT: return "the cache holds another dataset or transform";
    case STOC_EMEMORY: return "not enough memory";
    case STOC_EPERM: return "not permitted";
    case STOC_EREADONLY: return "attached for reading only";
    case STOC_ECLOSED: return "the cache is closed";
    case STOC_ECLIENTS: return "too many clients";
    case STOC_ETIMEOUT: return "timed out";
    case STOC_ESYSTEM: return "a system call failed";
    case STOC_ELOST: return "the claim was lost before it was published";
    case STOC_ECORRUPT: return "the cache is corrupt";
    case STOC_EUNSUPPORTED: return "not supported on this system";
    case STOC_ENOSERVER: return "no server";
    case STOC_EREPLACED: return "the server has replaced this cache";
    case STOC_EREMOTE: return "the server refused, or could not read";
    case STOC_EINTERRUPTED: return "interrupted by a signal";
    default: return "unknown code";
    }
}

/* The length in bytes of the UTF-8 character at the start of text; 0 if there is none. */
INTERNAL size_t character(const unsigned char *text, size_t n, uint32_t *point)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = text[0] < 0x80 ? 1 : text[0] >= 0xf0 ? 4 : text[0] >= 0xe0 ? 3 : 2;
    if ((text[0] >= 0x80 && text[0] < 0xc2) || text[0] > 0xf4 || length > n)
        return 0;
    *point = length == 1 ? text[0] : text[0] & (0x7fu >> length);
    for (size_t k = 1; k < length; k++) {
        if ((text[k] & 0xc0) != 0x80)
            return 0;
        *point = *point << 6 | (text[k] & 0x3f);
    }
    return *point < least[length] || *point > 0x10ffff || (*point >= 0xd800 && *point < 0xe000) ? 0 : length;
}

/* Makes text from outside, such as a file name, safe for a terminal. ? replaces control characters,
 * changes of direction, and bytes that are not UTF-8. */
INTERNAL void make_printable(char *text, size_t n)
{
    for (size_t k = 0, length; k < n; k += MAX(length, 1)) {
        uint32_t c = 0;
        length = character((unsigned char *)text + k, n - k, &c);
        if (length == 0 || c < ' ' || (c >= 0x7f && c < 0xa0) || c == 0x61c || c == 0x200e || c == 0x200f ||
            (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069))
            memset(text + k, '?', MAX(length, 1));
    }
}

/* Fills in error (NULL is accepted) and returns code. */
__attribute__((format(printf, 4, 5))) INTERNAL int fail(struct stoc_error *error, int code, int os_error,
                                                        const char *format, ...)
{
    if (error) {
        va_list args;
        error->code = code;
        error->os_error = os_error;
        va_start(args, format);
        vsnprintf(error->message, sizeof error->message, format, args);
        va_end(args);
        make_printable(error->message, strlen(error->message));
    }
    return code;
}

INTERNAL int check_struct(uint64_t struct_bytes, size_t known, const char *type, const char *what, const char *before,
                          struct stoc_error *error)
{
    if (struct_bytes == known)
        return 0;
    return fail(error, STOC_EINVAL, 0,
                "%sstruct_bytes: %lu, this library's %s have %zu; set it to sizeof(struct stoc_%s) and use the header of "
                "this version",
                before, struct_bytes, what, known, type);
}

/* EINVAL. errno tells stoc_explain why: EFAULT NULL for a pointer, EOPNOTSUPP a call that this cache does not answer,
 * ENOSYS an unknown flag, ERANGE a time, EBADF a claim that is not open, 0 another argument. */
INTERNAL int invalid(int why)
{
    errno = why;
    return STOC_EINVAL;
}

INTERNAL void no_error(struct stoc_error *error)
{
    if (error)
        memset(error, 0, sizeof *error);
}

INTERNAL int begin_open(void *out, const char *what, const void *from, const char *missing, struct stoc_error *error)
{
    no_error(error);
    if (!out)
        return fail(error, STOC_EINVAL, 0, "no place for the %s: out is NULL", what);
    memset(out, 0, sizeof(void *));
    return from ? 0 : fail(error, STOC_EINVAL, 0, "%s", missing);
}

/* The error of a system call: what it tried, and the text of errno. */
INTERNAL int fail_system(struct stoc_error *error, const char *what, const char *path)
{
    int number = errno;
    fail(error, STOC_ESYSTEM, number, "%s %s: %s", what, path, strerror(number));
    errno = number;
    return STOC_ESYSTEM;
}

/* 4,096 -> "4096 B", 1.5 * 2^30 -> "1.5 GiB". text has at least 32 bytes. */
INTERNAL const char *size_text(uint64_t bytes, char *text)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    unsigned unit = 0;
    double n = (double)bytes;
    while (n >= 1024 && unit < 6) {
        n /= 1024;
        unit++;
    }
    if (unit == 0)
        snprintf(text, 32, "%lu B", bytes);
    else
        snprintf(text, 32, "%.1f %s", n, units[unit]);
    return text;
}

/*
 * crc.c - CRC-32C (Castagnoli), the only checksum of the format. The code chooses the fastest
 * version for the machine.
 *
 * The crc32 instructions have a latency of 3 cycles and a throughput of 1, so three streams run at
 * once and are joined at the end. A join shifts a remainder over the bytes that follow it: a
 * multiplication modulo the polynomial. On x86-64 the multiplier, a separate unit, takes half of
 * the bytes.
 */
#include "base.h"

/* By half bytes: machines without the instructions are old. */
static const uint32_t crc_table[16] = {
    0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
    0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
};

static uint32_t crc_portable(uint32_t crc, const void *data, size_t length)
{
    const unsigned char *p = data;
    crc = ~crc;
    for (; length; length--) {
        crc ^= *p++;
        crc = crc_table[crc & 15] ^ (crc >> 4);
        crc = crc_table[crc & 15] ^ (crc >> 4);
    }
    return ~crc;
}

#define CRC_POLYNOMIAL 0x82f63b78u /* reflected */

#if defined(__x86_64__)
#include <immintrin.h>

/*
 * Two units share a block: carry-less multiplication folds 4 x 128 bits over its first part, and
 * three streams run over the rest. There are enough rounds to make joining the four cheap. A short
 * block of three streams takes what is left.
 */
enum {
    CRC_ROUNDS = 64,
    CRC_FOLDED = 64 * CRC_ROUNDS,
    CRC_STREAM = 24 * CRC_ROUNDS,
    CRC_BLOCK = CRC_FOLDED + 3 * CRC_STREAM,
    CRC_SHORT = 256
};

/* x^(8 n - 33) modulo the polynomial, reflected: the factor that shifts a remainder over n bytes.
 * (The product has 33 bits more.) */
#define CRC_SHIFT_STREAM 0x9ef68d35u
#define CRC_SHIFT_TWO_STREAMS 0x359674f7u
#define CRC_SHIFT_THREE_STREAMS 0x005bb964u
#define CRC_SHIFT_SHORT 0xb9e02b86u
#define CRC_SHIFT_TWO_SHORT 0xdd7e3b0cu
/* The factors that fold 128 bits over n bytes: x^(8 n + 31) for the lower half, x^(8 n - 33) for
 * the upper. */
#define CRC_FOLD_64_LOW 0x740eef02u
#define CRC_FOLD_64_HIGH 0x9e4addf8u
#define CRC_FOLD_16_LOW 0xf20c0dfeu
#define CRC_FOLD_16_HIGH 0x493c7d27u

__attribute__((target("sse4.2,crc32,pclmul"))) static inline uint64_t crc_shifted(uint64_t crc, uint64_t by)
{
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)crc), _mm_cvtsi64_si128((long long)by), 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

__attribute__((target("sse4.2,crc32,pclmul"))) static inline uint64_t crc_three(uint64_t crc, const unsigned char *p,
                                                                          size_t each, uint64_t by, uint64_t by_two)
{
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < each; i += 8) {
        uint64_t a, b, c;
        memcpy(&a, p + i, 8);
        memcpy(&b, p + each + i, 8);
        memcpy(&c, p + 2 * each + i, 8);
        crc = _mm_crc32_u64(crc, a);
        second = _mm_crc32_u64(second, b);
        third = _mm_crc32_u64(third, c);
    }
    return crc_shifted(crc, by_two) ^ crc_shifted(second, by) ^ third;
}

__attribute__((target("sse4.2,crc32,pclmul"))) static inline __m128i crc_fold(__m128i x, __m128i by, __m128i next)
{
    return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11)), next);
}

__attribute__((target("sse4.2,crc32,pclmul"))) static inline __m128i crc_load(const unsigned char *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

__attribute__((target("sse4.2,crc32,pclmul"))) static inline uint64_t crc_24(uint64_t crc, const unsigned char *p)
{
    uint64_t a, b, c;
    memcpy(&a, p, 8);
    memcpy(&b, p + 8, 8);
    memcpy(&c, p + 16, 8);
    return _mm_crc32_u64(_mm_crc32_u64(_mm_crc32_u64(crc, a), b), c);
}

/* CRC_BLOCK bytes. */
__attribute__((target("sse4.2,crc32,pclmul"))) static uint64_t crc_block(uint64_t crc, const unsigned char *p)
{
    const unsigned char *streams = p + CRC_FOLDED;
    const __m128i by_64 = _mm_set_epi64x(CRC_FOLD_64_HIGH, CRC_FOLD_64_LOW),
                  by_16 = _mm_set_epi64x(CRC_FOLD_16_HIGH, CRC_FOLD_16_LOW);
    __m128i a = crc_load(p), b = crc_load(p + 16), c = crc_load(p + 32), d = crc_load(p + 48);
    uint64_t first = 0, second = 0, third = 0;
    a = _mm_xor_si128(a, _mm_cvtsi64_si128((long long)crc));
    /* the next block, because the processor's own prefetching does not follow four streams;
     * harmless past the end */
    const char *ahead = (const char *)p + CRC_BLOCK;
    for (int round = 1;; round++, streams += 24, ahead += CRC_BLOCK / CRC_ROUNDS) {
        _mm_prefetch(ahead, _MM_HINT_T0);
        _mm_prefetch(ahead + 64, _MM_HINT_T0);
        first = crc_24(first, streams);
        second = crc_24(second, streams + CRC_STREAM);
        third = crc_24(third, streams + 2 * CRC_STREAM);
        if (round == CRC_ROUNDS)
            break;
        p += 64;
        a = crc_fold(a, by_64, crc_load(p));
        b = crc_fold(b, by_64, crc_load(p + 16));
        c = crc_fold(c, by_64, crc_load(p + 32));
        d = crc_fold(d, by_64, crc_load(p + 48));
    }
    __m128i folded = crc_fold(crc_fold(crc_fold(a, by_16, b), by_16, c), by_16, d);
    crc = _mm_crc32_u64(_mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(folded)), (uint64_t)_mm_extract_epi64(folded, 1));
    return crc_shifted(crc, CRC_SHIFT_THREE_STREAMS) ^ crc_shifted(first, CRC_SHIFT_TWO_STREAMS) ^
           crc_shifted(second, CRC_SHIFT_STREAM) ^ third;
}

__attribute__((target("sse4.2,crc32,pclmul"))) static uint32_t crc_sse(uint32_t start, const void *data, size_t length)
{
    const unsigned char *p = data;
    uint64_t crc = (uint32_t)~start;
    for (; length >= CRC_BLOCK; p += CRC_BLOCK, length -= CRC_BLOCK)
        crc = crc_block(crc, p);
    for (; length >= 3 * CRC_SHORT; p += 3 * CRC_SHORT, length -= 3 * CRC_SHORT)
        crc = crc_three(crc, p, CRC_SHORT, CRC_SHIFT_SHORT, CRC_SHIFT_TWO_SHORT);
    for (; length >= 8; p += 8, length -= 8) {
        uint64_t a;
        memcpy(&a, p, 8);
        crc = _mm_crc32_u64(crc, a);
    }
    for (; length; length--)
        crc = _mm_crc32_u8((uint32_t)crc, *p++);
    return ~(uint32_t)crc;
}

#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif

enum { CRC_LONG = 8192 };

/* a * b modulo the polynomial, both reflected. Bit by bit, because small cores lack PMULL, and 32
 * steps are short against a block. */
static uint32_t crc_multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = UINT32_C(1) << 31; bit; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = b & 1 ? (b >> 1) ^ CRC_POLYNOMIAL : b >> 1;
    }
    return product;
}

#define CRC_POWER_LONG 0x28461564u     /* x^(8 CRC_LONG) modulo the polynomial, reflected */
#define CRC_POWER_TWO_LONG 0xbf455269u /* its square */

__attribute__((target("+crc"))) static uint32_t crc_arm(uint32_t start, const void *data, size_t length)
{
    const unsigned char *p = data;
    uint32_t crc = ~start;
    for (; length >= 3 * CRC_LONG; p += 3 * CRC_LONG, length -= 3 * CRC_LONG) {
        uint32_t second = 0, third = 0;
        for (size_t i = 0; i < CRC_LONG; i += 8) {
            uint64_t a, b, c;
            memcpy(&a, p + i, 8);
            memcpy(&b, p + CRC_LONG + i, 8);
            memcpy(&c, p + 2 * CRC_LONG + i, 8);
            crc = __crc32cd(crc, a);
            second = __crc32cd(second, b);
            third = __crc32cd(third, c);
        }
        crc = crc_multiply(crc, CRC_POWER_TWO_LONG) ^ crc_multiply(second, CRC_POWER_LONG) ^ third;
    }
    for (; length >= 8; p += 8, length -= 8) {
        uint64_t a;
        memcpy(&a, p, 8);
        crc = __crc32cd(crc, a);
    }
    for (; length; length--)
        crc = __crc32cb(crc, *p++);
    return ~crc;
}
#endif

/* The fastest this machine has. */
INTERNAL crc_function *crc_choose(void)
{
#if defined(__x86_64__)
    if (processor_has(HAS_CRC))
        return crc_sse;
#elif defined(__aarch64__)
    if (getauxval(AT_HWCAP) & HWCAP_CRC32)
        return crc_arm;
#endif
    return crc_portable;
}

uint32_t stoc_crc32c(uint32_t crc, const void *data, size_t length)
{
    return crc_choose()(crc, data, length);
}

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

static const uint32_t crc_table[256] = {
    0x00000000, 0xf26b8303, 0xe13b70f7, 0x1350f3f4, 0xc79a971f, 0x35f1141c, 0x26a1e7e8, 0xd4ca64eb,
    0x8ad958cf, 0x78b2dbcc, 0x6be22838, 0x9989ab3b, 0x4d43cfd0, 0xbf284cd3, 0xac78bf27, 0x5e133c24,
    0x105ec76f, 0xe235446c, 0xf165b798, 0x030e349b, 0xd7c45070, 0x25afd373, 0x36ff2087, 0xc494a384,
    0x9a879fa0, 0x68ec1ca3, 0x7bbcef57, 0x89d76c54, 0x5d1d08bf, 0xaf768bbc, 0xbc267848, 0x4e4dfb4b,
    0x20bd8ede, 0xd2d60ddd, 0xc186fe29, 0x33ed7d2a, 0xe72719c1, 0x154c9ac2, 0x061c6936, 0xf477ea35,
    0xaa64d611, 0x580f5512, 0x4b5fa6e6, 0xb93425e5, 0x6dfe410e, 0x9f95c20d, 0x8cc531f9, 0x7eaeb2fa,
    0x30e349b1, 0xc288cab2, 0xd1d83946, 0x23b3ba45, 0xf779deae, 0x05125dad, 0x1642ae59, 0xe4292d5a,
    0xba3a117e, 0x4851927d, 0x5b016189, 0xa96ae28a, 0x7da08661, 0x8fcb0562, 0x9c9bf696, 0x6ef07595,
    0x417b1dbc, 0xb3109ebf, 0xa0406d4b, 0x522bee48, 0x86e18aa3, 0x748a09a0, 0x67dafa54, 0x95b17957,
    0xcba24573, 0x39c9c670, 0x2a993584, 0xd8f2b687, 0x0c38d26c, 0xfe53516f, 0xed03a29b, 0x1f682198,
    0x5125dad3, 0xa34e59d0, 0xb01eaa24, 0x42752927, 0x96bf4dcc, 0x64d4cecf, 0x77843d3b, 0x85efbe38,
    0xdbfc821c, 0x2997011f, 0x3ac7f2eb, 0xc8ac71e8, 0x1c661503, 0xee0d9600, 0xfd5d65f4, 0x0f36e6f7,
    0x61c69362, 0x93ad1061, 0x80fde395, 0x72966096, 0xa65c047d, 0x5437877e, 0x4767748a, 0xb50cf789,
    0xeb1fcbad, 0x197448ae, 0x0a24bb5a, 0xf84f3859, 0x2c855cb2, 0xdeeedfb1, 0xcdbe2c45, 0x3fd5af46,
    0x7198540d, 0x83f3d70e, 0x90a324fa, 0x62c8a7f9, 0xb602c312, 0x44694011, 0x5739b3e5, 0xa55230e6,
    0xfb410cc2, 0x092a8fc1, 0x1a7a7c35, 0xe811ff36, 0x3cdb9bdd, 0xceb018de, 0xdde0eb2a, 0x2f8b6829,
    0x82f63b78, 0x709db87b, 0x63cd4b8f, 0x91a6c88c, 0x456cac67, 0xb7072f64, 0xa457dc90, 0x563c5f93,
    0x082f63b7, 0xfa44e0b4, 0xe9141340, 0x1b7f9043, 0xcfb5f4a8, 0x3dde77ab, 0x2e8e845f, 0xdce5075c,
    0x92a8fc17, 0x60c37f14, 0x73938ce0, 0x81f80fe3, 0x55326b08, 0xa759e80b, 0xb4091bff, 0x466298fc,
    0x1871a4d8, 0xea1a27db, 0xf94ad42f, 0x0b21572c, 0xdfeb33c7, 0x2d80b0c4, 0x3ed04330, 0xccbbc033,
    0xa24bb5a6, 0x502036a5, 0x4370c551, 0xb11b4652, 0x65d122b9, 0x97baa1ba, 0x84ea524e, 0x7681d14d,
    0x2892ed69, 0xdaf96e6a, 0xc9a99d9e, 0x3bc21e9d, 0xef087a76, 0x1d63f975, 0x0e330a81, 0xfc588982,
    0xb21572c9, 0x407ef1ca, 0x532e023e, 0xa145813d, 0x758fe5d6, 0x87e466d5, 0x94b49521, 0x66df1622,
    0x38cc2a06, 0xcaa7a905, 0xd9f75af1, 0x2b9cd9f2, 0xff56bd19, 0x0d3d3e1a, 0x1e6dcdee, 0xec064eed,
    0xc38d26c4, 0x31e6a5c7, 0x22b65633, 0xd0ddd530, 0x0417b1db, 0xf67c32d8, 0xe52cc12c, 0x1747422f,
    0x49547e0b, 0xbb3ffd08, 0xa86f0efc, 0x5a048dff, 0x8ecee914, 0x7ca56a17, 0x6ff599e3, 0x9d9e1ae0,
    0xd3d3e1ab, 0x21b862a8, 0x32e8915c, 0xc083125f, 0x144976b4, 0xe622f5b7, 0xf5720643, 0x07198540,
    0x590ab964, 0xab613a67, 0xb831c993, 0x4a5a4a90, 0x9e902e7b, 0x6cfbad78, 0x7fab5e8c, 0x8dc0dd8f,
    0xe330a81a, 0x115b2b19, 0x020bd8ed, 0xf0605bee, 0x24aa3f05, 0xd6c1bc06, 0xc5914ff2, 0x37faccf1,
    0x69e9f0d5, 0x9b8273d6, 0x88d28022, 0x7ab90321, 0xae7367ca, 0x5c18e4c9, 0x4f48173d, 0xbd23943e,
    0xf36e6f75, 0x0105ec76, 0x12551f82, 0xe03e9c81, 0x34f4f86a, 0xc69f7b69, 0xd5cf889d, 0x27a40b9e,
    0x79b737ba, 0x8bdcb4b9, 0x988c474d, 0x6ae7c44e, 0xbe2da0a5, 0x4c4623a6, 0x5f16d052, 0xad7d5351,
};

static uint32_t crc_portable(uint32_t crc, const void *data, size_t length)
{
    const unsigned char *p = data;
    crc = ~crc;
    for (; length; length--)
        crc = crc_table[(crc ^ *p++) & 255] ^ (crc >> 8);
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

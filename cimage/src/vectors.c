/* The loops over bytes, in C and with the vector instructions of x86-64 (AVX2 and FMA; AVX-512 with VNNI).
 * All give the same bits: the sums are integers, and normalise is used only where it gives those of a table. */
#include "image.h"
#include "processor.h"

static void transpose_in(uint8_t *dst, const uint8_t *const rows[BAND], size_t from, size_t columns)
{
    for (size_t r = 0; r < BAND; r++)
        for (size_t c = 0; c < columns; c++)
            dst[c * BAND + r] = rows[r][from + c];
}

static void transpose_out(uint8_t *dst, size_t stride, const uint8_t *src, size_t columns)
{
    for (size_t r = 0; r < BAND; r++)
        for (size_t c = 0; c < columns; c++)
            dst[r * stride + c] = src[c * BAND + r];
}

static void weigh(uint8_t *dst, const uint8_t *src, size_t step, const int16_t *weights, uint32_t taps, uint32_t shift,
                  size_t n)
{
    for (size_t at = 0; at < n; at += BAND) {
        int32_t sums[BAND];
        for (size_t k = 0; k < BAND; k++)
            sums[k] = 1 << (shift - 1);
        for (uint32_t t = 0; t < taps; t++)
            for (size_t k = 0; k < BAND; k++)
                sums[k] += weights[t] * src[t * step + at + k];
        for (size_t k = 0; k < BAND; k++) {
            int32_t value = sums[k] >> shift;
            dst[at + k] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
        }
    }
}

static void weigh_columns(uint8_t *dst, size_t plane, const uint8_t *src, const struct weights *weights,
                          uint32_t channels)
{
    for (uint32_t k = 0; k < weights->count; k++)
        for (uint32_t c = 0; c < channels; c++)
            weigh(dst + c * plane + (size_t)k * BAND,
                  src + ((size_t)(weights->first[k] - weights->low) * channels + c) * BAND, (size_t)channels * BAND,
                  weights->values + (size_t)k * weights->taps, weights->taps, weights->shift, BAND);
}

static void interleave(uint8_t *dst, const uint8_t *const rows[3], size_t n)
{
    for (size_t k = 0; k < n; k++)
        for (size_t c = 0; c < 3; c++)
            dst[3 * k + c] = rows[c][k];
}

static const struct loops plain = {transpose_in, transpose_out, weigh, weigh_columns, interleave, NULL, NULL};

#ifdef __x86_64__
#include <immintrin.h>

#define VECTORS __attribute__((target("avx2,fma")))

/* Transposes 16 x 16 bytes in each half of 16 vectors. */
VECTORS static inline void transpose16(__m256i v[16])
{
    __m256i u[16];
#pragma GCC unroll 2
    for (int twice = 0; twice < 2; twice++) {
        for (int k = 0; k < 8; k++) {
            u[2 * k] = _mm256_unpacklo_epi8(v[k], v[k + 8]);
            u[2 * k + 1] = _mm256_unpackhi_epi8(v[k], v[k + 8]);
        }
        for (int k = 0; k < 8; k++) {
            v[2 * k] = _mm256_unpacklo_epi8(u[k], u[k + 8]);
            v[2 * k + 1] = _mm256_unpackhi_epi8(u[k], u[k + 8]);
        }
    }
}

VECTORS static inline __m256i load_pair(const uint8_t *low, const uint8_t *high)
{
    __m128i a = _mm_loadu_si128((const __m128i *)(const void *)low);
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)high);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
}

VECTORS static void transpose_in_vectors(uint8_t *dst, const uint8_t *const rows[BAND], size_t from, size_t columns)
{
    if (columns < 16) {
        transpose_in(dst, rows, from, columns);
        return;
    }
    for (size_t c = 0; c < columns; c += 16) {
        size_t at = c + 16 <= columns ? c : columns - 16; /* the last 16 again: a row must not be read past its end */
        __m256i v[16];
        for (int k = 0; k < 16; k++)
            v[k] = load_pair(rows[k] + from + at, rows[k + 16] + from + at);
        transpose16(v);
        for (size_t k = 0; k < 16; k++)
            _mm256_storeu_si256((__m256i *)(void *)(dst + (at + k) * BAND), v[k]);
    }
}

VECTORS static void transpose_out_vectors(uint8_t *dst, size_t stride, const uint8_t *src, size_t columns)
{
    for (size_t c = 0; c < columns; c += 16) {
        __m256i v[16];
        for (size_t k = 0; k < 16; k++)
            v[k] = _mm256_loadu_si256((const __m256i *)(const void *)(src + (c + k) * BAND));
        transpose16(v);
        for (size_t k = 0; k < 16; k++) {
            _mm_storeu_si128((__m128i *)(void *)(dst + k * stride + c), _mm256_castsi256_si128(v[k]));
            _mm_storeu_si128((__m128i *)(void *)(dst + (k + 16) * stride + c), _mm256_extracti128_si256(v[k], 1));
        }
    }
}

/* The weighted sums of 32 bytes. */
VECTORS static inline __m256i weighed(const uint8_t *src, size_t step, const int16_t *weights, uint32_t taps,
                                      uint32_t shift)
{
    const __m256i zero = _mm256_setzero_si256(), half = _mm256_set1_epi32(1 << (shift - 1));
    const __m128i by = _mm_cvtsi32_si128((int)shift);
    __m256i s0 = half, s1 = half, s2 = half, s3 = half;
    for (const int16_t *end = weights + taps; weights < end; weights += 2, src += 2 * step) {
        int32_t pair;
        memcpy(&pair, weights, sizeof pair);
        __m256i w = _mm256_set1_epi32(pair);
        __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)src);
        __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(src + step));
        __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
        s0 = _mm256_add_epi32(s0, _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), w));
        s1 = _mm256_add_epi32(s1, _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), w));
        s2 = _mm256_add_epi32(s2, _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), w));
        s3 = _mm256_add_epi32(s3, _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), w));
    }
    __m256i low = _mm256_packs_epi32(_mm256_sra_epi32(s0, by), _mm256_sra_epi32(s1, by));
    __m256i high = _mm256_packs_epi32(_mm256_sra_epi32(s2, by), _mm256_sra_epi32(s3, by));
    return _mm256_packus_epi16(low, high);
}

VECTORS static void weigh_vectors(uint8_t *dst, const uint8_t *src, size_t step, const int16_t *weights, uint32_t taps,
                                  uint32_t shift, size_t n)
{
    for (size_t at = 0; at < n; at += BAND)
        _mm256_storeu_si256((__m256i *)(void *)(dst + at), weighed(src + at, step, weights, taps, shift));
}

/* Taps up to the last pair that has a weight. */
static inline uint32_t taps_used(const int16_t *values, uint32_t taps)
{
    while (taps > 2 && !values[taps - 1] && !values[taps - 2])
        taps -= 2;
    return taps;
}

/* The weighted sums of count times 32 bytes, which lie one after the other; their results lie plane apart. */
typedef void weigh_bytes(int count, uint8_t *dst, size_t plane, const uint8_t *src, size_t step, const int16_t *weights,
                         uint32_t taps, uint32_t shift);

/* The columns of a band. It has no target of its own: it becomes part of a caller, and so does sums. */
__attribute__((always_inline)) static inline void weigh_columns_of(weigh_bytes *sums, uint8_t *dst, size_t plane,
                                                                   const uint8_t *src, const struct weights *weights,
                                                                   uint32_t channels)
{
    const size_t step = (size_t)channels * BAND;
    for (uint32_t k = 0; k < weights->count; k++, dst += BAND) {
        const int16_t *values = weights->values + (size_t)k * weights->taps;
        const uint8_t *from = src + (weights->first[k] - weights->low) * step;
        uint32_t taps = taps_used(values, weights->taps);
        if (channels == 3)
            sums(3, dst, plane, from, step, values, taps, weights->shift);
        else
            sums(1, dst, plane, from, step, values, taps, weights->shift);
    }
}

VECTORS __attribute__((always_inline)) static inline void weigh_vectors_of(int count, uint8_t *dst, size_t plane,
                                                                           const uint8_t *src, size_t step,
                                                                           const int16_t *weights, uint32_t taps,
                                                                           uint32_t shift)
{
    for (int k = 0; k < count; k++)
        _mm256_storeu_si256((__m256i *)(void *)(dst + k * plane), weighed(src + k * BAND, step, weights, taps, shift));
}

VECTORS static void weigh_columns_vectors(uint8_t *dst, size_t plane, const uint8_t *src, const struct weights *weights,
                                          uint32_t channels)
{
    weigh_columns_of(weigh_vectors_of, dst, plane, src, weights, channels);
}

#define WIDE __attribute__((target("avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")))

WIDE __attribute__((always_inline)) static inline void weigh_wide_of(int count, uint8_t *dst, size_t plane,
                                                                     const uint8_t *src, size_t step,
                                                                     const int16_t *weights, uint32_t taps,
                                                                     uint32_t shift)
{
    const __m512i zero = _mm512_setzero_si512(), half = _mm512_set1_epi32(1 << (shift - 1));
    const __m128i by = _mm_cvtsi32_si128((int)shift);
    __m512i low[3] = {half, half, half}, high[3] = {half, half, half}; /* sums of bytes 0 to 7 and 16 to 23; sums of the others */
    for (const int16_t *end = weights + taps; weights < end; weights += 2, src += 2 * step) {
        int32_t pair;
        memcpy(&pair, weights, sizeof pair);
        __m512i w = _mm512_set1_epi32(pair);
        for (int k = 0; k < count; k++) {
            __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(src + k * BAND));
            __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(src + step + k * BAND));
            low[k] = _mm512_dpwssd_epi32(low[k], _mm512_cvtepu8_epi16(_mm256_unpacklo_epi8(a, b)), w);
            high[k] = _mm512_dpwssd_epi32(high[k], _mm512_cvtepu8_epi16(_mm256_unpackhi_epi8(a, b)), w);
        }
    }
    for (int k = 0; k < count; k++) {
        __m512i words = _mm512_packs_epi32(_mm512_sra_epi32(low[k], by), _mm512_sra_epi32(high[k], by));
        __m256i bytes = _mm512_cvtusepi16_epi8(_mm512_max_epi16(words, zero));
        _mm256_storeu_si256((__m256i *)(void *)(dst + k * plane), _mm256_shuffle_epi32(bytes, 0xd8));
    }
}

WIDE static void weigh_wide(uint8_t *dst, const uint8_t *src, size_t step, const int16_t *weights, uint32_t taps,
                            uint32_t shift, size_t n)
{
    size_t at = 0;
    for (; at + 2 * BAND <= n; at += 2 * BAND)
        weigh_wide_of(2, dst + at, BAND, src + at, step, weights, taps, shift);
    if (at < n)
        weigh_wide_of(1, dst + at, BAND, src + at, step, weights, taps, shift);
}

WIDE static void weigh_columns_wide(uint8_t *dst, size_t plane, const uint8_t *src, const struct weights *weights,
                                    uint32_t channels)
{
    weigh_columns_of(weigh_wide_of, dst, plane, src, weights, channels);
}

VECTORS static void interleave_vectors(uint8_t *dst, const uint8_t *const rows[3], size_t n)
{
    /* Of 16 pixels: byte k of part p is value (16 p + k) / 3 of plane k % 3. The top bit gives 0. */
    __m128i from[3][3];
    for (int p = 0; p < 3; p++)
        for (int c = 0; c < 3; c++) {
            uint8_t at[16];
            for (int k = 0; k < 16; k++)
                at[k] = (16 * p + k) % 3 == c ? (uint8_t)((16 * p + k) / 3) : 0x80;
            memcpy(&from[p][c], at, sizeof at);
        }
    size_t k = 0;
    for (; k + 16 <= n; k += 16)
        for (int p = 0; p < 3; p++) {
            __m128i part = _mm_setzero_si128();
            for (int c = 0; c < 3; c++) {
                __m128i row = _mm_loadu_si128((const __m128i *)(const void *)(rows[c] + k));
                part = _mm_or_si128(part, _mm_shuffle_epi8(row, from[p][c]));
            }
            _mm_storeu_si128((__m128i *)(void *)(dst + 3 * k + 16 * p), part);
        }
    interleave(dst + 3 * k, (const uint8_t *const[3]){rows[0] + k, rows[1] + k, rows[2] + k}, n - k);
}

VECTORS static inline __m128i pixel_at(const uint8_t *at)
{
    int value;
    memcpy(&value, at, sizeof value);
    return _mm_cvtepu8_epi16(_mm_cvtsi32_si128(value));
}

/* A pixel needs the one before it, so its bytes are computed together. */
VECTORS static inline __attribute__((always_inline)) void paeth_of(uint8_t *row, const uint8_t *above, size_t n,
                                                                   size_t pixel)
{
    __m128i a = _mm_setzero_si128(), c = a;
    for (size_t k = 0; k < n; k += pixel) {
        __m128i b = pixel_at(above + k), pa = _mm_sub_epi16(b, c), pb = _mm_sub_epi16(a, c);
        __m128i pc = _mm_abs_epi16(_mm_add_epi16(pa, pb));
        pa = _mm_abs_epi16(pa);
        pb = _mm_abs_epi16(pb);
        __m128i least = _mm_min_epi16(pc, _mm_min_epi16(pa, pb));
        __m128i nearest = _mm_blendv_epi8(c, b, _mm_cmpeq_epi16(least, pb));
        nearest = _mm_blendv_epi8(nearest, a, _mm_cmpeq_epi16(least, pa));
        a = _mm_and_si128(_mm_add_epi16(pixel_at(row + k), nearest), _mm_set1_epi16(255));
        c = b;
        int value = _mm_cvtsi128_si32(_mm_packus_epi16(a, a));
        for (size_t channel = 0; channel < pixel; channel++)
            row[k + channel] = (uint8_t)(value >> 8 * channel);
    }
}

VECTORS static void paeth_vectors(uint8_t *row, const uint8_t *above, size_t n, size_t pixel)
{
    if (pixel == 3)
        paeth_of(row, above, n, 3);
    else
        paeth_of(row, above, n, 4);
}

/* a / b, where r is 1 / b: a quotient, corrected by its remainder. put_row checks that it is exact. */
VECTORS static inline __m256 quotient(__m256 a, __m256 b, __m256 r)
{
    __m256 q = _mm256_mul_ps(a, r);
    return _mm256_fmadd_ps(_mm256_fnmadd_ps(q, b, a), r, q);
}

VECTORS static void normalise_vectors(float *dst, const uint8_t *src, size_t n, float divisor, float mean, float std,
                                      bool streams)
{
    streams = streams && (uintptr_t)dst % sizeof(__m256) == 0;
    const __m256 d = _mm256_set1_ps(divisor), rd = _mm256_set1_ps(1 / divisor), m = _mm256_set1_ps(mean);
    const __m256 s = _mm256_set1_ps(std), rs = _mm256_set1_ps(1 / std);
    for (size_t k = 0; k + 8 <= n; k += 8) {
        __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)(src + k));
        __m256 x = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
        __m256 y = quotient(_mm256_sub_ps(quotient(x, d, rd), m), s, rs);
        if (streams)
            _mm256_stream_ps(dst + k, y);
        else
            _mm256_storeu_ps(dst + k, y);
    }
}

static const struct loops vectors = {transpose_in_vectors, transpose_out_vectors, weigh_vectors,
                                     weigh_columns_vectors, interleave_vectors, paeth_vectors, normalise_vectors};
static const struct loops wide = {transpose_in_vectors, transpose_out_vectors, weigh_wide,
                                  weigh_columns_wide, interleave_vectors, paeth_vectors, normalise_vectors};

void end_stream(void) { _mm_sfence(); }

int most_vectors(void)
{
    return processor_has(HAS_AVX512) ? 2 : processor_has(HAS_AVX2) ? 1 : 0;
}

const struct loops *loops_of(const stoc_image_worker *w)
{
    return w->vectors == 2 ? &wide : w->vectors ? &vectors : &plain;
}
#else
void end_stream(void) {}

int most_vectors(void) { return 0; }

const struct loops *loops_of(const stoc_image_worker *w)
{
    (void)w;
    return &plain;
}
#endif

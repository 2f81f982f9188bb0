/*
 * processor.h - which vector instructions the processor has and the system allows. Both libraries include it.
 *
 * __builtin_cpu_supports needs a constructor of libgcc or compiler-rt. zig, which compiles the releases, has
 * neither, and then the answer is always no.
 */
#ifndef STOCACHED_PROCESSOR_H
#define STOCACHED_PROCESSOR_H

enum {
    HAS_CRC = 1,    /* SSE 4.2 and PCLMUL */
    HAS_AVX2 = 2,   /* AVX2 and FMA */
    HAS_AVX512 = 4, /* AVX-512 F, BW, VL and VNNI, and HAS_AVX2 */
};

#ifdef __x86_64__
#include <cpuid.h>
#include <stdatomic.h>

#define YMM_STATE 0x06u /* bits of XCR0: the system saves these registers */
#define ZMM_STATE 0xe6u

static inline unsigned ask_processor(void)
{
    unsigned a, b, c, d, saved, high, found = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return 0;
    if ((c & bit_SSE4_2) && (c & bit_PCLMUL))
        found |= HAS_CRC;
    if (!(c & bit_OSXSAVE) || !(c & bit_FMA) || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return found;
    __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    if ((saved & YMM_STATE) != YMM_STATE || !(b & bit_AVX2))
        return found;
    found |= HAS_AVX2;
    unsigned parts = bit_AVX512F | bit_AVX512BW | bit_AVX512VL;
    if ((saved & ZMM_STATE) == ZMM_STATE && (b & parts) == parts && (c & bit_AVX512VNNI))
        found |= HAS_AVX512;
    return found;
}

/* Asks once: in a virtual machine, each question leaves it. Every thread would get the same answer. */
static inline unsigned processor_has(unsigned wanted)
{
    static _Atomic unsigned processor; /* 0: not asked yet; otherwise with the top bit */
    unsigned known = atomic_load_explicit(&processor, memory_order_relaxed);
    if (!known) {
        known = ask_processor() | 1u << 31;
        atomic_store_explicit(&processor, known, memory_order_relaxed);
    }
    return known & wanted;
}
#else
static inline unsigned processor_has(unsigned wanted) { return 0 & wanted; }
#endif
#endif

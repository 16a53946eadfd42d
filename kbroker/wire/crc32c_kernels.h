/* CRC-32C (Castagnoli) in several implementations. The fastest that the processor supports is chosen at run time.
 *
 * The polynomial is reflected: the lowest bit of the first byte has the highest degree, and a 32-bit value holds x^0 in
 * bit 31.
 * Every table and constant is computed from the polynomial when the module loads.
 *
 *   portable    eight bytes a step through eight tables ("slicing"); any machine
 *   sse42       the crc32 instruction, one stream: bound by its latency of three cycles
 *   pclmul      four 128-bit accumulators folded by carry-less multiplication: the best for what is too short for three
 *               streams; the shortest goes to sse42
 *   sse42x3     three streams side by side hide the latency, carry-less multiplication joins them; short input goes to
 *               pclmul
 *   vpclmul512  four 512-bit accumulators folded in the same way; short input goes to sse42x3
 *   armv8       the crc32cx instruction, three streams side by side
 */
#ifndef KB_CRC32C_KERNELS_H
#define KB_CRC32C_KERNELS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define KB_CRC32C_POLYNOMIAL 0x82f63b78u

typedef uint32_t (*kb_crc32c_function)(uint32_t crc, const uint8_t *p, size_t n);

typedef struct {
    const char *name;
    kb_crc32c_function function;
} kb_crc32c_kernel;

/* The implementations that this machine supports, slowest first. */
static kb_crc32c_kernel kb_crc32c_kernels[5];
static int kb_crc32c_kernels_count;
static kb_crc32c_function kb_crc32c_best;

static uint32_t kb_crc32c_tables[8][256];

static void kb_crc32c_init_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >> 1) ^ KB_CRC32C_POLYNOMIAL : crc >> 1;
        kb_crc32c_tables[0][byte] = crc;
    }
    /* Table k maps each byte to the CRC of this byte and k zero bytes after it. */
    for (int k = 1; k < 8; k++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = kb_crc32c_tables[k - 1][byte];
            kb_crc32c_tables[k][byte] = kb_crc32c_tables[0][before & 255] ^ (before >> 8);
        }
}

static uint32_t kb_crc32c_portable(uint32_t crc, const uint8_t *p, size_t n) {
    uint32_t (*t)[256] = kb_crc32c_tables;
    crc = ~crc;
    for (; n >= 8; p += 8, n -= 8) {
        crc ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        crc = t[7][crc & 255] ^ t[6][crc >> 8 & 255] ^ t[5][crc >> 16 & 255] ^ t[4][crc >> 24]
            ^ t[3][p[4]] ^ t[2][p[5]] ^ t[1][p[6]] ^ t[0][p[7]];
    }
    for (; n; p++, n--) crc = t[0][(crc ^ *p) & 255] ^ (crc >> 8);
    return ~crc;
}

#if defined(__x86_64__) || (defined(__aarch64__) && (defined(__linux__) || defined(__APPLE__)))
/* a * b mod P */
static uint32_t kb_multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (; a; a <<= 1) {
        if (a & 0x80000000u) product ^= b;
        b = b & 1 ? (b >> 1) ^ KB_CRC32C_POLYNOMIAL : b >> 1;
    }
    return product;
}

/* x^n mod P */
static uint32_t kb_power_of_x(uint64_t n) {
    uint32_t result = 0x80000000u, square = 0x40000000u;
    for (; n; n >>= 1) {
        if (n & 1) result = kb_multiply(result, square);
        square = kb_multiply(square, square);
    }
    return result;
}

static inline uint64_t kb_load64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

#endif

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

/* The name of the feature that has the crc32 instruction. Clang has separated it from sse4.2 in version 14. */
#if defined(__clang__) && __clang_major__ >= 14
#define KB_SSE42 "sse4.2,crc32"
#else
#define KB_SSE42 "sse4.2"
#endif

/* Compute the CRC without the inversions before and after, so that other kernels can use this for their last bytes. */
__attribute__((target(KB_SSE42)))
static inline uint32_t kb_one_stream(uint32_t state, const uint8_t *p, size_t n) {
    uint64_t wide = state;
    for (; n >= 8; p += 8, n -= 8) wide = _mm_crc32_u64(wide, kb_load64(p));
    state = (uint32_t)wide;
    for (; n; p++, n--) state = _mm_crc32_u8(state, *p);
    return state;
}

__attribute__((target(KB_SSE42)))
static uint32_t kb_crc32c_sse42(uint32_t crc, const uint8_t *p, size_t n) {
    return ~kb_one_stream(~crc, p, n);
}

/* The multipliers for three neighbouring streams of `bytes` bytes each. Multiplication by x^(8d) advances a stream's
 * state over d bytes. The advanced states of the first two streams are not reduced. They are added to the last word of
 * the third stream, and the crc32 instruction reduces the sum. The instruction multiplies by x^32, and the carry-less
 * product of two reflected 32-bit values has another factor x as a 64-bit value. So the constants are x^(8d - 33). */
typedef struct {
    size_t bytes;
    uint64_t over_two, over_one;
} kb_three_way;

static kb_three_way kb_long_streams = {1024, 0, 0}, kb_short_streams = {128, 0, 0};

static void kb_init_three_way(kb_three_way *way) {
    way->over_two = kb_power_of_x(8 * 2 * way->bytes - 33);
    way->over_one = kb_power_of_x(8 * way->bytes - 33);
}

__attribute__((target(KB_SSE42 ",pclmul")))
static inline uint64_t kb_carryless(uint64_t state, uint64_t constant) {
    __m128i a = _mm_cvtsi64_si128((long long)state), b = _mm_cvtsi64_si128((long long)constant);
    return (uint64_t)_mm_cvtsi128_si64(_mm_clmulepi64_si128(a, b, 0));
}

__attribute__((target(KB_SSE42 ",pclmul")))
static inline uint32_t kb_three_streams(uint32_t state, const uint8_t *p, const kb_three_way *way) {
    size_t bytes = way->bytes, last = bytes - 8;
    uint64_t a = state, b = 0, c = 0;
    for (size_t i = 0; i < last; i += 8) {
        a = _mm_crc32_u64(a, kb_load64(p + i));
        b = _mm_crc32_u64(b, kb_load64(p + i + bytes));
        c = _mm_crc32_u64(c, kb_load64(p + i + 2 * bytes));
    }
    a = _mm_crc32_u64(a, kb_load64(p + last));
    b = _mm_crc32_u64(b, kb_load64(p + last + bytes));
    uint64_t joined = kb_carryless(a, way->over_two) ^ kb_carryless(b, way->over_one);
    return (uint32_t)_mm_crc32_u64(c, kb_load64(p + last + 2 * bytes) ^ joined);
}

/* The constants for folding. A 128-bit accumulator moves ahead by d bits if its earlier half is multiplied by x^(d+64)
 * and its later half by x^d. The product of a reflected 64-bit value and a reflected 32-bit value that was shifted left
 * by one has a factor x^32 as a 128-bit value. So the constants are x^(d+32) and x^(d-32), shifted left by one. The CRC
 * of the last accumulator is the CRC of all folded bytes. */
static uint64_t kb_fold_128[2], kb_fold_512[2], kb_fold_2048[2];

static void kb_init_fold(uint64_t constants[2], uint64_t distance_bits) {
    constants[0] = (uint64_t)kb_power_of_x(distance_bits + 32) << 1;
    constants[1] = (uint64_t)kb_power_of_x(distance_bits - 32) << 1;
}

__attribute__((target(KB_SSE42 ",pclmul")))
static inline __m128i kb_fold_one(__m128i accumulator, __m128i constants, const uint8_t *next) {
    __m128i earlier = _mm_clmulepi64_si128(accumulator, constants, 0x00);
    __m128i later = _mm_clmulepi64_si128(accumulator, constants, 0x11);
    return _mm_xor_si128(_mm_xor_si128(earlier, later), _mm_loadu_si128((const __m128i *)next));
}

__attribute__((target(KB_SSE42 ",pclmul")))
static uint32_t kb_crc32c_pclmul(uint32_t crc, const uint8_t *p, size_t n) {
    if (n < 256) return kb_crc32c_sse42(crc, p, n);
    __m128i far = _mm_loadu_si128((const __m128i *)kb_fold_512), near = _mm_loadu_si128((const __m128i *)kb_fold_128);
    __m128i a = _mm_xor_si128(_mm_loadu_si128((const __m128i *)p), _mm_cvtsi32_si128((int)~crc));
    __m128i b = _mm_loadu_si128((const __m128i *)(p + 16)), c = _mm_loadu_si128((const __m128i *)(p + 32));
    __m128i d = _mm_loadu_si128((const __m128i *)(p + 48));
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
        a = kb_fold_one(a, far, p);
        b = kb_fold_one(b, far, p + 16);
        c = kb_fold_one(c, far, p + 32);
        d = kb_fold_one(d, far, p + 48);
    }
    uint8_t folded[64];
    _mm_storeu_si128((__m128i *)(folded + 16), b);
    _mm_storeu_si128((__m128i *)(folded + 32), c);
    _mm_storeu_si128((__m128i *)(folded + 48), d);
    a = kb_fold_one(kb_fold_one(kb_fold_one(a, near, folded + 16), near, folded + 32), near, folded + 48);
    for (; n >= 16; p += 16, n -= 16) a = kb_fold_one(a, near, p);
    _mm_storeu_si128((__m128i *)folded, a);
    return ~kb_one_stream(kb_one_stream(0, folded, 16), p, n);
}

__attribute__((target(KB_SSE42 ",pclmul")))
static uint32_t kb_crc32c_sse42x3(uint32_t crc, const uint8_t *p, size_t n) {
    if (n < 3 * 128) return kb_crc32c_pclmul(crc, p, n);
    uint32_t state = ~crc;
    for (; n >= 3 * 1024; p += 3 * 1024, n -= 3 * 1024) state = kb_three_streams(state, p, &kb_long_streams);
    for (; n >= 3 * 128; p += 3 * 128, n -= 3 * 128) state = kb_three_streams(state, p, &kb_short_streams);
    return ~kb_one_stream(state, p, n);
}

#define KB_VPCLMUL_TARGET __attribute__((target(KB_SSE42 ",pclmul,avx512f,avx512vl,vpclmulqdq")))

KB_VPCLMUL_TARGET
static inline __m512i kb_fold(__m512i accumulator, __m512i constants, __m512i next) {
    __m512i earlier = _mm512_clmulepi64_epi128(accumulator, constants, 0x00);
    __m512i later = _mm512_clmulepi64_epi128(accumulator, constants, 0x11);
    return _mm512_ternarylogic_epi64(earlier, later, next, 0x96); /* the exclusive or of all three */
}

KB_VPCLMUL_TARGET
static uint32_t kb_crc32c_vpclmul512(uint32_t crc, const uint8_t *p, size_t n) {
    if (n < 512) return kb_crc32c_sse42x3(crc, p, n);
    __m512i far = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)kb_fold_2048));
    __m512i near = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)kb_fold_512));
    __m512i a = _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc)));
    __m512i b = _mm512_loadu_si512(p + 64), c = _mm512_loadu_si512(p + 128), d = _mm512_loadu_si512(p + 192);
    for (p += 256, n -= 256; n >= 256; p += 256, n -= 256) {
        a = kb_fold(a, far, _mm512_loadu_si512(p));
        b = kb_fold(b, far, _mm512_loadu_si512(p + 64));
        c = kb_fold(c, far, _mm512_loadu_si512(p + 128));
        d = kb_fold(d, far, _mm512_loadu_si512(p + 192));
    }
    d = kb_fold(kb_fold(kb_fold(a, near, b), near, c), near, d);
    for (; n >= 64; p += 64, n -= 64) d = kb_fold(d, near, _mm512_loadu_si512(p));
    uint8_t folded[64];
    _mm512_storeu_si512(folded, d);
    return ~kb_one_stream(kb_one_stream(0, folded, sizeof folded), p, n);
}

/* Check the operating system besides the processor: it must save the 512-bit registers (XCR0). */
static int kb_has_vpclmul512(void) {
    unsigned a, b, c, d, xcr0, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
    __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
    if ((xcr0 & 0xe6) != 0xe6) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    return (b & bit_AVX512F) && (b & bit_AVX512VL) && (c & bit_VPCLMULQDQ);
}

static void kb_crc32c_add(const char *name, kb_crc32c_function function);

static void kb_crc32c_add_hardware(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSE4_2)) return;
    kb_crc32c_add("sse42", kb_crc32c_sse42);
    if (!(c & bit_PCLMUL)) return;
    kb_init_fold(kb_fold_128, 128);
    kb_init_fold(kb_fold_512, 512);
    kb_crc32c_add("pclmul", kb_crc32c_pclmul);
    kb_init_three_way(&kb_long_streams);
    kb_init_three_way(&kb_short_streams);
    kb_crc32c_add("sse42x3", kb_crc32c_sse42x3);
    if (!kb_has_vpclmul512()) return;
    kb_init_fold(kb_fold_2048, 2048);
    kb_crc32c_add("vpclmul512", kb_crc32c_vpclmul512);
}
#elif defined(__aarch64__) && (defined(__linux__) || defined(__APPLE__))
#include <arm_acle.h>
#ifdef __linux__
#include <sys/auxv.h>

#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
static int kb_has_armv8(void) { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#else
static int kb_has_armv8(void) { return 1; } /* every Mac with such a processor has the instruction */
#endif

enum { KB_ARM_STREAM_BYTES = 1024 };

/* The multipliers that advance a state over one stream and over two streams. */
static uint32_t kb_over_one, kb_over_two;

__attribute__((target("+crc")))
static uint32_t kb_crc32c_armv8(uint32_t crc, const uint8_t *p, size_t n) {
    uint32_t a = ~crc;
    for (; n >= 3 * KB_ARM_STREAM_BYTES; p += 3 * KB_ARM_STREAM_BYTES, n -= 3 * KB_ARM_STREAM_BYTES) {
        uint32_t b = 0, c = 0;
        for (size_t i = 0; i < KB_ARM_STREAM_BYTES; i += 8) {
            a = __crc32cd(a, kb_load64(p + i));
            b = __crc32cd(b, kb_load64(p + i + KB_ARM_STREAM_BYTES));
            c = __crc32cd(c, kb_load64(p + i + 2 * KB_ARM_STREAM_BYTES));
        }
        a = kb_multiply(a, kb_over_two) ^ kb_multiply(b, kb_over_one) ^ c;
    }
    for (; n >= 8; p += 8, n -= 8) a = __crc32cd(a, kb_load64(p));
    for (; n; p++, n--) a = __crc32cb(a, *p);
    return ~a;
}

static void kb_crc32c_add(const char *name, kb_crc32c_function function);

static void kb_crc32c_add_hardware(void) {
    if (!kb_has_armv8()) return;
    kb_over_one = kb_power_of_x(8 * KB_ARM_STREAM_BYTES);
    kb_over_two = kb_power_of_x(8 * 2 * KB_ARM_STREAM_BYTES);
    kb_crc32c_add("armv8", kb_crc32c_armv8);
}
#else
static void kb_crc32c_add_hardware(void) {}
#endif

static void kb_crc32c_add(const char *name, kb_crc32c_function function) {
    kb_crc32c_kernels[kb_crc32c_kernels_count++] = (kb_crc32c_kernel){name, function};
    kb_crc32c_best = function;
}

static void kb_crc32c_init(void) {
    kb_crc32c_init_tables();
    kb_crc32c_kernels_count = 0;
    kb_crc32c_add("portable", kb_crc32c_portable);
    kb_crc32c_add_hardware();
}

#endif

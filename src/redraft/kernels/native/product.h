/* A matrix product accumulated in registers, ROWS rows by COLUMNS columns, one input after the other: a number is
 * always summed in the same order, whatever else is computed. */

#ifndef REDRAFT_PRODUCT_H
#define REDRAFT_PRODUCT_H

#include "elements.h"

#if defined(__AVX512F__)
#define LANES 16
#define ROWS 8
#else
#define LANES 8
#define ROWS 6
#endif
#define COLUMNS (2 * LANES)

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#include <immintrin.h>
#define DOT 1 /* sums of products of bf16 pairs, in fp32 */
#else
#define DOT 0
#endif

typedef float vector __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));

INLINE vector load(const void *weights, integer i, const int bf16) {
    if (bf16) {
        halves narrow;
        memcpy(&narrow, at(weights, i, 1), sizeof narrow);
        return (vector)(__builtin_convertvector(narrow, words) << 16);
    }
    vector wide;
    memcpy(&wide, at(weights, i, 0), sizeof wide);
    return wide;
}

/* How rows are stored for a product: as bf16 if bf16 is multiplied directly, else as fp32. */
#define PACKED(bf16) (DOT && (bf16))

/* out [count, COLUMNS] = rows [count, depth] times `weights` [depth, COLUMNS], whose lines are `stride` apart. */
INLINE void multiply(float *out, const void *rows, const int count, const void *weights, integer stride, integer depth,
                     const int bf16) {
    vector left[ROWS], right[ROWS];
    for (int r = 0; r < count; r++) left[r] = right[r] = (vector){0};
#if DOT
    if (bf16) {
        /* Two inputs' weights are interleaved as they are loaded: columns 0-3, 8-11, 16-19, 24-27 go into one vector,
         * the others into the other. */
        for (integer k = 0; k < depth; k += 2) {
            __m512i even = _mm512_loadu_si512(at(weights, k * stride, 1));
            __m512i odd = _mm512_loadu_si512(at(weights, (k + 1) * stride, 1));
            __m512bh low = (__m512bh)_mm512_unpacklo_epi16(even, odd);
            __m512bh high = (__m512bh)_mm512_unpackhi_epi16(even, odd);
            for (int r = 0; r < count; r++) {
                int pair;
                memcpy(&pair, at(rows, r * depth + k, 1), sizeof pair);
                __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
                left[r] = (vector)_mm512_dpbf16_ps((__m512)left[r], low, x);
                right[r] = (vector)_mm512_dpbf16_ps((__m512)right[r], high, x);
            }
        }
        const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
        const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
        for (int r = 0; r < count; r++) {
            __m512 low = (__m512)left[r], high = (__m512)right[r];
            left[r] = (vector)_mm512_permutex2var_ps(low, first, high);
            right[r] = (vector)_mm512_permutex2var_ps(low, second, high);
        }
    } else
#endif
        for (integer k = 0; k < depth; k++) {
            vector first = load(weights, k * stride, bf16), second = load(weights, k * stride + LANES, bf16);
            for (int r = 0; r < count; r++) {
                float x = ((const float *)rows)[r * depth + k];
                left[r] += x * first;
                right[r] += x * second;
            }
        }
    for (int r = 0; r < count; r++) {
        memcpy(out + r * COLUMNS, &left[r], sizeof(vector));
        memcpy(out + r * COLUMNS + LANES, &right[r], sizeof(vector));
    }
}

/* `multiply` for a number of rows that is not a constant, 1 to ROWS. */
INLINE void multiply_some(float *out, const void *rows, int count, const void *weights, integer stride, integer depth,
                          const int bf16) {
    switch (count) {
#define CASE(n) case n: multiply(out, rows, n, weights, stride, depth, bf16); break;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if ROWS == 8
        CASE(7) CASE(8)
#endif
#undef CASE
    }
}

/* Separate functions, because the loops above need every register: inlined elsewhere, some would be spilled. */
static __attribute__((noinline)) void product_fp32(float *out, const void *rows, int count, const void *weights,
                                                   integer stride, integer depth) {
    multiply_some(out, rows, count, weights, stride, depth, 0);
}

static __attribute__((noinline, unused)) void product_bf16(float *out, const void *rows, int count,
                                                           const void *weights, integer stride, integer depth) {
    multiply_some(out, rows, count, weights, stride, depth, 1);
}

/* out [count, COLUMNS] = rows [count, depth] times `weights` [depth, COLUMNS], whose lines are `stride` apart; count is
 * at most ROWS. */
INLINE void product(float *out, const void *rows, int count, const void *weights, integer stride, integer depth,
                    const int bf16) {
    (bf16 ? product_bf16 : product_fp32)(out, rows, count, weights, stride, depth);
}

int omp_get_thread_num(void); /* declared here, because not every compiler with OpenMP has omp.h */

#endif

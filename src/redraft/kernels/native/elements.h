/* Elements of fp32 and bf16 tensors, and functions that libraries do not vectorise.
 *
 * `bf16` is a constant wherever it is passed: 0 for float, 1 for bfloat16. All arithmetic is in fp32. */

#ifndef REDRAFT_ELEMENTS_H
#define REDRAFT_ELEMENTS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Work on fewer numbers than this is not worth a second thread. */
#define SHARED_ELEMENTS 16384

#define INLINE static inline __attribute__((always_inline))
#define EXPORT __attribute__((visibility("default")))

/* A call of an inline function with a constant for the dtype, which comes last. */
#define BY_DTYPE(function, ...) (bf16 ? function(__VA_ARGS__, 1) : function(__VA_ARGS__, 0))

typedef int64_t integer;

INLINE float as_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

INLINE uint32_t as_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

INLINE float get(const void *x, integer i, const int bf16) {
    return bf16 ? as_float((uint32_t)((const uint16_t *)x)[i] << 16) : ((const float *)x)[i];
}

/* Rounded to the nearest bfloat16, ties to even. */
INLINE uint16_t rounded(float x) {
    uint32_t bits = as_bits(x);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

INLINE void put(void *x, integer i, float value, const int bf16) {
    if (bf16)
        ((uint16_t *)x)[i] = rounded(value);
    else
        ((float *)x)[i] = value;
}

/* Element i of a tensor that begins at x. */
INLINE void *at(const void *x, integer i, const int bf16) { return (char *)x + i * (bf16 ? 2 : 4); }

INLINE int at_most(integer count, int limit) { return count < limit ? (int)count : limit; }

/* e^x to 2 units in the last place: 2^n e^r with |r| <= ln(2)/2 and a polynomial; 0 below -87, not for x > 88. */
INLINE float exponential(float x) {
    float n = rintf(x * 1.44269504f), r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 8.33345205e-3f + r * 1.3981999e-3f;
    p = 1.0f + r * (1.0f + r * (0.5f + r * (0.166666657f + r * (0.0416657962f + r * p))));
    float y = p * as_float((uint32_t)((int32_t)n + 127) << 23);
    return x < -87.0f ? 0.0f : y;
}

INLINE float sigmoid(float x) { return 1.0f / (1.0f + exponential(x < -80.0f ? 80.0f : -x)); }

/* cap tanh(x / 2) / temperature, by a sigmoid. */
INLINE float capped(float x, float cap, float temperature) {
    return 2.0f * cap / temperature * sigmoid(x) - cap / temperature;
}

/* gelu(gate) * up with the tanh form of gelu, which is a sigmoid. */
INLINE float gelu_gate(float gate, float up) {
    return gate * sigmoid(1.5957691216057308f * gate * (1.0f + 0.044715f * gate * gate)) * up;
}

#endif

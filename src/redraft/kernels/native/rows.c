/* Row-by-row operations: norms and gates. */

#include "elements.h"

INLINE void norm(void *out, const void *x, const void *weight, const void *residual, integer rows, integer width,
                 float eps, int threads, const int bf16) {
#pragma omp parallel for num_threads(threads) if (rows * width > SHARED_ELEMENTS)
    for (integer row = 0; row < rows; row++) {
        const void *line = at(x, row * width, bf16), *add = residual ? at(residual, row * width, bf16) : 0;
        void *to = at(out, row * width, bf16);
        float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
        for (integer i = 0; i < width; i++) squares += get(line, i, bf16) * get(line, i, bf16);
        float scale = 1.0f / sqrtf(squares / (float)width + eps);
        if (residual)
            for (integer i = 0; i < width; i++)
                put(to, i, get(add, i, bf16) + get(line, i, bf16) * scale * get(weight, i, bf16), bf16);
        else if (weight)
            for (integer i = 0; i < width; i++) put(to, i, get(line, i, bf16) * scale * get(weight, i, bf16), bf16);
        else
            for (integer i = 0; i < width; i++) put(to, i, get(line, i, bf16) * scale, bf16);
    }
}

/* out = residual + x / rms(x) * weight, all [rows, width]; `weight` and `residual` are left out if null. */
EXPORT void redraft_norm(void *out, const void *x, const void *weight, const void *residual, integer rows,
                         integer width, float eps, int threads, int bf16) {
    BY_DTYPE(norm, out, x, weight, residual, rows, width, eps, threads);
}

INLINE void gates(void *out, const void *gate, const void *up, integer count, int threads, const int bf16) {
#pragma omp parallel for simd num_threads(threads) if (count > SHARED_ELEMENTS)
    for (integer i = 0; i < count; i++) put(out, i, gelu_gate(get(gate, i, bf16), get(up, i, bf16)), bf16);
}

/* out = gelu(gate) * up, element by element. */
EXPORT void redraft_gelu_gate(void *out, const void *gate, const void *up, integer count, int threads, int bf16) {
    BY_DTYPE(gates, out, gate, up, count, threads);
}

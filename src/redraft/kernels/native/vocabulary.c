/* Operations on rows as long as the vocabulary: each row is processed by one thread, while it is in cache. */

#include "elements.h"

#define CHUNK 128

/* logits [rows, parts * columns] = cap tanh(x / 2) / temperature of products x [parts, rows, columns] in bf16; in fp32
 * the product does this itself. */
EXPORT void redraft_cap_logits(float *logits, const uint16_t *products, integer parts, integer rows, integer columns,
                               float cap, float temperature, int threads) {
#pragma omp parallel for num_threads(threads)
    for (integer row = 0; row < rows; row++)
        for (integer part = 0; part < parts; part++) {
            const uint16_t *line = products + (part * rows + row) * columns;
            float *to = logits + (row * parts + part) * columns;
            for (integer i = 0; i < columns; i++) to[i] = capped(get(line, i, 1), cap, temperature);
        }
}

/* The largest of x[0..count], and the index of the first such number. */
INLINE float largest(const float *x, integer count, integer *where) {
    float peak = -INFINITY;
    integer chunk = 0;
    for (integer first = 0; first < count; first += CHUNK) {
        integer end = first + CHUNK < count ? first + CHUNK : count;
        float most = x[first];
#pragma omp simd reduction(max : most)
        for (integer i = first; i < end; i++) most = x[i] > most ? x[i] : most;
        if (most > peak) peak = most, chunk = first;
    }
    while (chunk < count - 1 && x[chunk] != peak) chunk++;
    *where = chunk;
    return peak;
}

/* The softmax of every row of logits [rows, columns] in fp32, its argmax (the first), and its entropy in nats. */
EXPORT void redraft_distribution(float *probabilities, integer *argmax, float *entropy, const float *logits,
                                 integer rows, integer columns, int threads) {
#pragma omp parallel for num_threads(threads)
    for (integer row = 0; row < rows; row++) {
        const float *line = logits + row * columns;
        float *to = probabilities + row * columns;
        float peak = largest(line, columns, argmax + row), sum = 0.0f, energy = 0.0f;
#pragma omp simd reduction(+ : sum, energy)
        for (integer i = 0; i < columns; i++) {
            float x = line[i] - peak, y = exponential(x);
            to[i] = y;
            sum += y;
            energy += x * y;
        }
        float scale = 1.0f / sum;
        for (integer i = 0; i < columns; i++) to[i] *= scale;
        entropy[row] = logf(sum) - energy * scale;
    }
}

/* The softmax, in bf16, of every row of logits [rows, columns] rounded to bf16. */
EXPORT void redraft_soft_probabilities(uint16_t *probabilities, const float *logits, integer rows, integer columns,
                                       int threads) {
#pragma omp parallel for num_threads(threads)
    for (integer row = 0; row < rows; row++) {
        const float *line = logits + row * columns;
        uint16_t *to = probabilities + row * columns;
        float peak = line[0], sum = 0.0f;
#pragma omp simd reduction(max : peak)
        for (integer i = 0; i < columns; i++) peak = line[i] > peak ? line[i] : peak;
        float shift = as_float((uint32_t)rounded(peak) << 16);
#pragma omp simd reduction(+ : sum)
        for (integer i = 0; i < columns; i++) sum += exponential(as_float((uint32_t)rounded(line[i]) << 16) - shift);
        float scale = 1.0f / sum;
        for (integer i = 0; i < columns; i++)
            to[i] = rounded(exponential(as_float((uint32_t)rounded(line[i]) << 16) - shift) * scale);
    }
}

/* How many of a row's probabilities [columns] are above `least`: their indices go to `places`, the sum of the others to
 * `rest`. Stops at `most`. */
INLINE int likely(const void *row, integer columns, float least, int most, integer *places, float *rest,
                  const int bf16) {
    int count = 0;
    float sum = 0.0f;
    for (integer first = 0; first < columns && count < most; first += CHUNK) {
        integer end = first + CHUNK < columns ? first + CHUNK : columns;
        float peak = 0.0f;
#pragma omp simd reduction(+ : sum) reduction(max : peak)
        for (integer i = first; i < end; i++) {
            float p = get(row, i, bf16);
            peak = p > peak ? p : peak;
            sum += p > least ? 0.0f : p;
        }
        if (peak > least)
            for (integer i = first; i < end && count < most; i++)
                if (get(row, i, bf16) > least) places[count++] = i;
    }
    *rest = sum;
    return count;
}

#define MOST 128

INLINE void settled_means(void *means, uint8_t *settled, const void *probabilities, const void *weight, integer rows,
                          integer columns, integer width, float dropped, int threads, const int bf16) {
#pragma omp parallel for num_threads(threads)
    for (integer row = 0; row < rows; row++) {
        const void *line = at(probabilities, row * columns, bf16);
        integer places[MOST + 1];
        float rest;
        int count = likely(line, columns, dropped / (4 * MOST), MOST + 1, places, &rest, bf16);
        settled[row] = count <= MOST && rest <= dropped;
        if (!settled[row]) continue;
        for (integer i = 0; i < width; i++) {
            float sum = 0.0f;
            for (int n = 0; n < count; n++)
                sum += get(line, places[n], bf16) * get(weight, places[n] * width + i, bf16);
            put(means, row * width + i, sum, bf16);
        }
    }
}

/* The means [rows, width] of the lines of `weight` [columns, width] by `probabilities` [rows, columns], for rows whose
 * mass except for `dropped` is on at most MOST tokens; `settled` says which these are. */
EXPORT void redraft_settled_means(void *means, uint8_t *settled, const void *probabilities, const void *weight,
                                  integer rows, integer columns, integer width, float dropped, int threads, int bf16) {
    BY_DTYPE(settled_means, means, settled, probabilities, weight, rows, columns, width, dropped, threads);
}

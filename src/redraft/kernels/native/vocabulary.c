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

#define MOST 512  /* tokens that a row may gather */
#define STRIP 512 /* columns that are summed at a time */
#define AHEAD 4   /* lines that are copied into the cache ahead */

/* A row's tokens that are likelier than `least`. */
typedef struct {
    float least, rest; /* the sum of all others */
    int count, chunks;
    integer chunk[MOST + 1], place[MOST]; /* where each CHUNK with such tokens begins, and where they are */
} tokens;

/* Count a row's likely tokens [columns]; stop at more than `most`, and when the others hold more than `dropped`. */
INLINE void count_likely(tokens *t, const void *row, integer columns, int most, float dropped, const int bf16) {
    float least = t->least, sum = 0.0f;
    t->count = t->chunks = 0;
    for (integer first = 0; first < columns && t->count <= most && sum <= dropped; first += CHUNK) {
        integer end = first + CHUNK < columns ? first + CHUNK : columns;
        int here = 0;
#pragma omp simd reduction(+ : sum, here)
        for (integer i = first; i < end; i++) {
            float p = get(row, i, bf16);
            sum += p > least ? 0.0f : p;
            here += p > least;
        }
        if (here) t->chunk[t->chunks++] = first;
        t->count += here;
    }
    t->rest = sum;
}

/* Whether some tokens, at most MOST, hold all of a row's mass but `dropped`; then these are counted. First come all
 * that hold more than 1 / (4 MOST) of `dropped` each, then, if these are too many, the likelier ones of them. fp32 has
 * a quarter of MOST, and tries once. */
INLINE int few_explain(tokens *t, const void *row, integer columns, float dropped, const int bf16) {
    const int most = bf16 ? MOST : MOST / 4;
    for (t->least = dropped / (float)(4 * most);; t->least *= 4) {
        count_likely(t, row, columns, most, dropped, bf16);
        if (t->count <= most) return t->rest <= dropped;
        if (!bf16) return 0;
    }
}

/* Note where the tokens are that were counted. */
INLINE void place_likely(tokens *t, const void *row, integer columns, const int bf16) {
    int found = 0;
    for (int c = 0; c < t->chunks; c++)
        for (integer i = t->chunk[c]; i < t->chunk[c] + CHUNK && i < columns; i++)
            if (get(row, i, bf16) > t->least) t->place[found++] = i;
}

INLINE void prefetch(const void *x, integer count, const int bf16) {
    for (integer i = 0; i < count; i += bf16 ? 32 : 16) __builtin_prefetch(at(x, i, bf16));
}

/* mean [width] = the sum of the tokens' lines of `weight` [columns, width], each times its probability. */
INLINE void gather(void *mean, const tokens *t, const void *row, const void *weight, integer width, const int bf16) {
    for (integer first = 0; first < width; first += STRIP) {
        float sum[STRIP] = {0.0f};
        int strip = at_most(width - first, STRIP);
        for (int n = 0; n < t->count; n++) {
            float p = get(row, t->place[n], bf16);
            const void *line = at(weight, t->place[n] * width + first, bf16);
            if (n + AHEAD < t->count) prefetch(at(weight, t->place[n + AHEAD] * width + first, bf16), strip, bf16);
            for (int i = 0; i < strip; i++) sum[i] += p * get(line, i, bf16);
        }
        for (int i = 0; i < strip; i++) put(mean, first + i, sum[i], bf16);
    }
}

INLINE void settled_means(void *means, uint8_t *settled, const void *probabilities, const void *weight, integer rows,
                          integer columns, integer width, float dropped, int threads, const int bf16) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (integer row = 0; row < rows; row++) {
        const void *line = at(probabilities, row * columns, bf16);
        tokens t;
        settled[row] = few_explain(&t, line, columns, dropped, bf16);
        if (!settled[row]) continue;
        place_likely(&t, line, columns, bf16);
        gather(at(means, row * width, bf16), &t, line, weight, width, bf16);
    }
}

/* The means [rows, width] of the lines of `weight` [columns, width] by `probabilities` [rows, columns], for rows whose
 * mass except for `dropped` is on at most MOST tokens, in fp32 a quarter of that; `settled` says which these are. */
EXPORT void redraft_settled_means(void *means, uint8_t *settled, const void *probabilities, const void *weight,
                                  integer rows, integer columns, integer width, float dropped, int threads, int bf16) {
    BY_DTYPE(settled_means, means, settled, probabilities, weight, rows, columns, width, dropped, threads);
}

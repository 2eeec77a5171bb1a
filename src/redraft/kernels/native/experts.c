/* A mixture of experts: rows are sorted by expert, and every expert's weights are read once for up to TASK_ROWS rows.
 *
 * Weights lie with the inputs outermost: gate_up [experts, width, 2 * inner], down [experts, inner, width]. A product
 * is built up in registers, ROWS rows by COLUMNS columns, from one input to the next: a row's sums are always taken in
 * the same order, whatever other rows there are. */

#include <stdlib.h>

#include "elements.h"

#if defined(__AVX512F__)
#define LANES 16
#define ROWS 8
#else
#define LANES 8
#define ROWS 6
#endif
#define COLUMNS (2 * LANES) /* width and inner are multiples of 32 */
#define TASK_ROWS 32

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#include <immintrin.h>
#define DOT 1 /* sums of products of bf16 pairs, in fp32 */
#else
#define DOT 0
#endif

typedef float vector __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));

INLINE vector load(const void *weights, integer i, const int half) {
    if (half) {
        halves narrow;
        memcpy(&narrow, at(weights, i, 1), sizeof narrow);
        return (vector)(__builtin_convertvector(narrow, words) << 16);
    }
    vector wide;
    memcpy(&wide, at(weights, i, 0), sizeof wide);
    return wide;
}

/* What rows are kept as for a product: bf16 where it is multiplied as such, fp32 elsewhere. */
#define PACKED(half) (DOT && (half))

/* out [count, COLUMNS] = rows [count, depth] times `weights` [depth, COLUMNS], whose lines are `stride` apart. */
INLINE void multiply(float *out, const void *rows, const int count, const void *weights, integer stride, integer depth,
                     const int half) {
    vector left[ROWS], right[ROWS];
    for (int r = 0; r < count; r++) left[r] = right[r] = (vector){0};
#if DOT
    if (half) {
        /* Two inputs' weights are interleaved as they come, which leaves columns 0-3, 8-11, 16-19, 24-27 in one vector and
         * the others in the other. */
        for (integer k = 0; k < depth; k += 2) {
            __m512i even = _mm512_loadu_si512(at(weights, k * stride, 1));
            __m512i odd = _mm512_loadu_si512(at(weights, (k + 1) * stride, 1));
            __m512bh low = (__m512bh)_mm512_unpacklo_epi16(even, odd), high = (__m512bh)_mm512_unpackhi_epi16(even, odd);
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
            vector first = load(weights, k * stride, half), second = load(weights, k * stride + LANES, half);
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
INLINE void product(float *out, const void *rows, int count, const void *weights, integer stride, integer depth,
                    const int half) {
    switch (count) {
#define CASE(n) case n: multiply(out, rows, n, weights, stride, depth, half); break;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if ROWS == 8
        CASE(7) CASE(8)
#endif
#undef CASE
    }
}

int omp_get_thread_num(void); /* declared here, because not every compiler that knows OpenMP brings omp.h */

typedef struct {
    integer expert, start, count; /* its rows are `order[start]` to `order[start + count - 1]` */
} task;

/* One task: its rows' products, [width] each, go to their assignments' places in `partial`. */
INLINE void run(float *partial, const void *x, const void *gate_up, const void *down, const integer *order, task one,
                integer top_k, integer width, integer inner, char *scratch, const int half) {
    const int packed = PACKED(half);
    const integer *places = order + one.start;
    const void *up = at(gate_up, one.expert * width * 2 * inner, half);
    void *rows = scratch, *hidden = scratch + TASK_ROWS * width * 4;
    for (integer r = 0; r < one.count; r++)
        for (integer i = 0; i < width; i++)
            put(rows, r * width + i, get(x, places[r] / top_k * width + i, half), packed);
    for (integer column = 0; column < inner; column += COLUMNS)
        for (integer r = 0; r < one.count; r += ROWS) {
            int count = one.count - r < ROWS ? (int)(one.count - r) : ROWS;
            float gate[ROWS * COLUMNS], other[ROWS * COLUMNS];
            const void *lines = at(rows, r * width, packed);
            product(gate, lines, count, at(up, column, half), 2 * inner, width, half);
            product(other, lines, count, at(up, inner + column, half), 2 * inner, width, half);
            for (int i = 0; i < count; i++)
                for (int j = 0; j < COLUMNS; j++)
                    put(hidden, (r + i) * inner + column + j,
                        gelu_gate(gate[i * COLUMNS + j], other[i * COLUMNS + j]), packed);
        }
    down = at(down, one.expert * inner * width, half);
    for (integer column = 0; column < width; column += COLUMNS)
        for (integer r = 0; r < one.count; r += ROWS) {
            int count = one.count - r < ROWS ? (int)(one.count - r) : ROWS;
            float sums[ROWS * COLUMNS];
            product(sums, at(hidden, r * inner, packed), count, at(down, column, half), width, inner, half);
            for (int i = 0; i < count; i++)
                memcpy(partial + places[r + i] * width + column, sums + i * COLUMNS, COLUMNS * sizeof(float));
        }
}

/* Assignments in the order of their experts, and the tasks that they make; returns how many. */
static integer plan(const integer *chosen, integer assignments, integer experts, integer *order, integer *starts,
                    task *tasks) {
    memset(starts, 0, (experts + 1) * sizeof *starts);
    for (integer i = 0; i < assignments; i++) starts[chosen[i] + 1]++;
    for (integer e = 0; e < experts; e++) starts[e + 1] += starts[e];
    integer count = 0;
    for (integer e = 0; e < experts; e++)
        for (integer start = starts[e]; start < starts[e + 1]; start += TASK_ROWS) {
            integer left = starts[e + 1] - start;
            tasks[count++] = (task){e, start, left < TASK_ROWS ? left : TASK_ROWS};
        }
    for (integer i = 0; i < assignments; i++) order[starts[chosen[i]]++] = i;
    return count;
}

INLINE void compute(void *out, const void *x, const float *worth, const void *gate_up, const void *down,
                    const integer *order, const task *tasks, integer count, float *partial, char *scratch,
                    integer tokens, integer top_k, integer width, integer inner, int threads, const int half) {
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic, 1)
        for (integer t = 0; t < count; t++) {
            char *mine = scratch + omp_get_thread_num() * TASK_ROWS * (width + inner) * 4;
            run(partial, x, gate_up, down, order, tasks[t], top_k, width, inner, mine, half);
        }
#pragma omp for
        for (integer t = 0; t < tokens; t++)
            for (integer i = 0; i < width; i++) {
                float sum = 0.0f;
                for (integer k = 0; k < top_k; k++) sum += worth[t * top_k + k] * partial[(t * top_k + k) * width + i];
                put(out, t * width + i, sum, half);
            }
    }
}

/* out [tokens, width] = the sum over a token's `chosen` experts [tokens, top_k] of `worth` times their outputs for x.
 *
 * Returns 0, or -1 where there is no memory. */
EXPORT int redraft_experts(void *out, const void *x, const integer *chosen, const float *worth, const void *gate_up,
                           const void *down, integer tokens, integer top_k, integer experts, integer width,
                           integer inner, int threads, int half) {
    integer assignments = tokens * top_k;
    integer *order = malloc((assignments + experts + 1) * sizeof *order);
    task *tasks = malloc((assignments / TASK_ROWS + experts) * sizeof *tasks);
    float *partial = malloc((assignments * width + 1) * sizeof *partial);
    char *scratch = malloc(threads * TASK_ROWS * (width + inner) * 4);
    int failed = !order || !tasks || !partial || !scratch;
    if (!failed) {
        integer count = plan(chosen, assignments, experts, order, order + assignments, tasks);
        if (half)
            compute(out, x, worth, gate_up, down, order, tasks, count, partial, scratch, tokens, top_k, width, inner,
                    threads, 1);
        else
            compute(out, x, worth, gate_up, down, order, tasks, count, partial, scratch, tokens, top_k, width, inner,
                    threads, 0);
    }
    free(order), free(tasks), free(partial), free(scratch);
    return -failed;
}

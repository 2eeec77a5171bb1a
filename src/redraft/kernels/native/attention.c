/* Attention without a mask in fp32: COLUMNS queries at a time are transposed into columns, so that one softmax over all
 * keys handles all of them at once. */

#include <stdlib.h>

#include "turn.h"

/* Queries [heads, count, dim] with their strides, keys and values [groups, seen, dim] of one request. */
typedef struct {
    float *out; /* [count, heads * dim] */
    const float *q, *k, *v;
    integer heads, count, head_stride, query_stride, groups, seen, dim;
} job;

/* scores [seen, COLUMNS] become the softmax of every column, except for the factors `scale`. */
INLINE void soften(float *scores, integer seen, float *scale) {
    float peak[COLUMNS], sum[COLUMNS];
    for (int i = 0; i < COLUMNS; i++) peak[i] = scores[i], sum[i] = 0.0f;
    for (integer s = 1; s < seen; s++)
        for (int i = 0; i < COLUMNS; i++)
            peak[i] = scores[s * COLUMNS + i] > peak[i] ? scores[s * COLUMNS + i] : peak[i];
    for (integer s = 0; s < seen; s++)
        for (int i = 0; i < COLUMNS; i++) {
            float y = exponential(scores[s * COLUMNS + i] - peak[i]);
            scores[s * COLUMNS + i] = y;
            sum[i] += y;
        }
    for (int i = 0; i < COLUMNS; i++) scale[i] = 1.0f / sum[i];
}

/* What `some` queries of a head from `first` on see. */
INLINE void attend(const job *j, integer head, integer first, const float *k, const float *turned_v, float *space) {
    int some = at_most(j->count - first, COLUMNS);
    float *panel = space, *result = panel + j->dim * COLUMNS, *scores = result + j->dim * COLUMNS, scale[COLUMNS];
    turn_panel(panel, j->q + head * j->head_stride + first * j->query_stride, j->query_stride, some, j->dim);
    for (integer s = 0; s < j->seen; s += ROWS)
        product(scores + s * COLUMNS, k + s * j->dim, at_most(j->seen - s, ROWS), panel, COLUMNS, j->dim, 0);
    soften(scores, j->seen, scale);
    for (integer i = 0; i < j->dim; i += ROWS)
        product(result + i * COLUMNS, turned_v + i * j->seen, at_most(j->dim - i, ROWS), scores, COLUMNS, j->seen, 0);
    for (integer i = 0; i < j->dim; i++)
        for (int c = 0; c < COLUMNS; c++) result[i * COLUMNS + c] *= scale[c];
    turn(j->out + (first * j->heads + head) * j->dim, j->heads * j->dim, result, COLUMNS, j->dim, some);
}

/* out [count, heads * dim] = what queries see of a request's keys and values; scores are not scaled. Returns 0, or -1
 * without memory. */
EXPORT int redraft_attention(float *out, const float *q, const float *k, const float *v, integer heads, integer count,
                             integer head_stride, integer query_stride, integer groups, integer seen, integer dim,
                             int threads) {
    job j = {out, q, k, v, heads, count, head_stride, query_stride, groups, seen, dim};
    integer panels = (count + COLUMNS - 1) / COLUMNS, size = (2 * dim + seen) * COLUMNS + dim * seen;
    size += -size & 15;
    float *scratch = aligned_alloc(64, threads * size * sizeof *scratch);
    if (!scratch) return -1;
#pragma omp parallel num_threads(threads)
    {
        float *space = scratch + omp_get_thread_num() * size, *turned_v = space + (2 * dim + seen) * COLUMNS;
        integer held = -1;
#pragma omp for schedule(static)
        for (integer task = 0; task < heads * panels; task++) {
            integer head = task / panels, group = head * groups / heads;
            if (held != group) turn(turned_v, seen, v + group * seen * dim, dim, seen, dim);
            held = group;
            attend(&j, head, task % panels * COLUMNS, k + group * seen * dim, turned_v, space);
        }
    }
    free(scratch);
    return 0;
}

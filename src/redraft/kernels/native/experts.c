/* A mixture of experts: rows are sorted by expert, and every expert's weights are read once for up to TASK_ROWS rows.
 *
 * Weights lie with the inputs outermost: gate_up [experts, width, 2 * inner], down [experts, inner, width]. */

#include <stdlib.h>

#include "product.h"

#define TASK_ROWS 32 /* width and inner are multiples of COLUMNS, which is 32 or 16 */

/* A layer's experts and the tokens that want them. */
typedef struct {
    const void *x, *gate_up, *down;
    const integer *chosen; /* [tokens, top_k]; an assignment is a place in it */
    const float *worth;    /* [tokens, top_k] */
    integer tokens, top_k, experts, width, inner;
} layer;

/* Some rows of one expert: the assignments order[start] to order[start + count - 1]. */
typedef struct {
    integer expert, start, count;
} task;

typedef struct {
    integer *order, *starts; /* assignments sorted by expert, and where every expert's begin */
    task *tasks;
    float *outputs; /* [assignments, width] */
    char *scratch;  /* of every thread: rows [TASK_ROWS, width] and hidden rows [TASK_ROWS, inner] */
} space;

/* hidden [count, inner] = gelu(gate rows) * up rows of one expert. */
INLINE void hide(void *hidden, const void *rows, const void *gate_up, int count, const layer *l, const int bf16) {
    float gate[ROWS * COLUMNS], up[ROWS * COLUMNS];
    for (integer column = 0; column < l->inner; column += COLUMNS)
        for (int row = 0; row < count; row += ROWS) {
            int some = at_most(count - row, ROWS);
            const void *lines = at(rows, row * l->width, PACKED(bf16));
            product(gate, lines, some, at(gate_up, column, bf16), 2 * l->inner, l->width, bf16);
            product(up, lines, some, at(gate_up, l->inner + column, bf16), 2 * l->inner, l->width, bf16);
            for (int r = 0; r < some; r++)
                for (int i = 0; i < COLUMNS; i++)
                    put(hidden, (row + r) * l->inner + column + i,
                        gelu_gate(gate[r * COLUMNS + i], up[r * COLUMNS + i]), PACKED(bf16));
        }
}

/* Lines `places` of outputs = down hidden of one expert. */
INLINE void show(float *outputs, const integer *places, const void *hidden, const void *down, int count,
                 const layer *l, const int bf16) {
    float sums[ROWS * COLUMNS];
    for (integer column = 0; column < l->width; column += COLUMNS)
        for (int row = 0; row < count; row += ROWS) {
            int some = at_most(count - row, ROWS);
            const void *lines = at(hidden, row * l->inner, PACKED(bf16));
            product(sums, lines, some, at(down, column, bf16), l->width, l->inner, bf16);
            for (int r = 0; r < some; r++)
                memcpy(outputs + places[row + r] * l->width + column, sums + r * COLUMNS, COLUMNS * sizeof *sums);
        }
}

INLINE void run(const layer *l, const space *s, task one, char *rows, const int bf16) {
    const integer *places = s->order + one.start, weights = one.expert * l->width * l->inner;
    void *hidden = rows + TASK_ROWS * l->width * 4;
    for (integer r = 0; r < one.count; r++)
        for (integer i = 0; i < l->width; i++)
            put(rows, r * l->width + i, get(l->x, places[r] / l->top_k * l->width + i, bf16), PACKED(bf16));
    hide(hidden, rows, at(l->gate_up, 2 * weights, bf16), (int)one.count, l, bf16);
    show(s->outputs, places, hidden, at(l->down, weights, bf16), (int)one.count, l, bf16);
}

/* Sort the assignments by expert and cut them into tasks; returns how many. */
static integer plan(const layer *l, const space *s) {
    integer assignments = l->tokens * l->top_k, *starts = s->starts, count = 0;
    memset(starts, 0, (l->experts + 1) * sizeof *starts);
    for (integer i = 0; i < assignments; i++) starts[l->chosen[i] + 1]++;
    for (integer e = 0; e < l->experts; e++) {
        integer stop = starts[e + 1] += starts[e];
        for (integer start = starts[e]; start < stop; start += TASK_ROWS)
            s->tasks[count++] = (task){e, start, at_most(stop - start, TASK_ROWS)};
    }
    for (integer i = 0; i < assignments; i++) s->order[starts[l->chosen[i]]++] = i;
    return count;
}

INLINE void compute(void *out, const layer *l, const space *s, integer tasks, int threads, const int bf16) {
    integer width = l->width, top_k = l->top_k, scratch = TASK_ROWS * (width + l->inner) * 4;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic, 1)
        for (integer i = 0; i < tasks; i++) run(l, s, s->tasks[i], s->scratch + omp_get_thread_num() * scratch, bf16);
#pragma omp for
        for (integer t = 0; t < l->tokens; t++)
            for (integer i = 0; i < width; i++) {
                float sum = 0.0f;
                for (integer k = t * top_k; k < (t + 1) * top_k; k++) sum += l->worth[k] * s->outputs[k * width + i];
                put(out, t * width + i, sum, bf16);
            }
    }
}

/* out [tokens, width] = the sum over a token's `chosen` experts [tokens, top_k] of `worth` times their outputs for x.
 *
 * Returns 0, or -1 where there is no memory. */
EXPORT int redraft_experts(void *out, const void *x, const integer *chosen, const float *worth, const void *gate_up,
                           const void *down, integer tokens, integer top_k, integer experts, integer width,
                           integer inner, int threads, int bf16) {
    layer l = {x, gate_up, down, chosen, worth, tokens, top_k, experts, width, inner};
    integer assignments = tokens * top_k;
    space s = {
        .order = malloc((assignments + 1) * sizeof(integer)),
        .starts = malloc((experts + 1) * sizeof(integer)),
        .tasks = malloc((assignments / TASK_ROWS + experts) * sizeof(task)),
        .outputs = malloc((assignments * width + 1) * sizeof(float)),
        .scratch = malloc(threads * TASK_ROWS * (width + inner) * 4),
    };
    int failed = !s.order || !s.starts || !s.tasks || !s.outputs || !s.scratch;
    if (!failed) BY_DTYPE(compute, out, &l, &s, plan(&l, &s), threads);
    free(s.order), free(s.starts), free(s.tasks), free(s.outputs), free(s.scratch);
    return -failed;
}

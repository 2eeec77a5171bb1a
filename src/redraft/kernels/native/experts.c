/* A mixture of experts: rows are sorted by expert, and every expert's weights are read once for up to TASK_ROWS rows. */

#include <stdlib.h>

#include "product.h"

#define TASK_ROWS 32
#define PANEL 32 /* columns; width and inner are multiples of it, and it is one of COLUMNS, which is 32 or 16 */

/* Weights of all experts with the inputs outermost, [experts, depth, columns], as numbers or as INT4 codes.
 *
 * Codes are stored in panels, [experts, columns / PANEL, depth, PANEL / 2]: a byte has two columns that are PANEL / 2
 * apart, the first one low, each as its value plus 8. Their scales, one for every `group` inputs, are bf16
 * [experts, columns / PANEL, depth / group, PANEL]. */
typedef struct {
    const void *values;
    const uint16_t *scale; /* NULL where values are numbers */
    integer depth, columns, group;
} matrix;

/* A layer's experts and the tokens that want them. */
typedef struct {
    const void *x;
    matrix gate_up, down;
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
    char *scratch;  /* of every thread: rows [TASK_ROWS, width], hidden rows [TASK_ROWS, inner], unpacked columns */
} space;

/* panel [depth, COLUMNS] = the numbers that the codes from `column` on stand for, in fp32. */
static void unpack(float *panel, const matrix *m, integer expert, integer column) {
    const integer block = expert * (m->columns / PANEL) + column / PANEL, first = column % PANEL;
    const uint8_t *line = (const uint8_t *)m->values + block * m->depth * (PANEL / 2);
    const uint16_t *scale = m->scale + block * (m->depth / m->group) * PANEL;
    for (integer k = 0; k < m->depth; k += m->group, scale += PANEL)
        for (integer i = 0; i < COLUMNS; i += LANES) {
            const uint8_t *codes = line + k * (PANEL / 2) + (first + i) % (PANEL / 2);
            const int shift = first + i < PANEL / 2 ? 0 : 4;
            float unit[LANES];
            for (int c = 0; c < LANES; c++) unit[c] = get(scale, first + i + c, 1);
            for (integer input = k; input < k + m->group; input++, codes += PANEL / 2)
                for (int c = 0; c < LANES; c++)
                    panel[input * COLUMNS + i + c] = (float)((codes[c] >> shift & 15) - 8) * unit[c];
        }
}

/* out [count, COLUMNS] = rows [count, depth] times the weights of one expert, from `column` on. */
INLINE void multiply_rows(float *out, const void *rows, int count, const matrix *m, integer expert, integer column,
                          void *panel, const int bf16) {
    const void *weights = panel;
    if (m->scale)
        unpack(panel, m, expert, column);
    else
        weights = at(m->values, expert * m->depth * m->columns + column, bf16);
    for (int row = 0; row < count; row += ROWS)
        product(out + row * COLUMNS, at(rows, row * m->depth, PACKED(bf16)), at_most(count - row, ROWS), weights,
                m->scale ? COLUMNS : m->columns, m->depth, bf16);
}

/* hidden [count, inner] = gelu(gate rows) * up rows of one expert. */
INLINE void hide(void *hidden, const void *rows, int count, const layer *l, integer expert, void *panel,
                 const int bf16) {
    float gate[TASK_ROWS * COLUMNS], up[TASK_ROWS * COLUMNS];
    for (integer column = 0; column < l->inner; column += COLUMNS) {
        multiply_rows(gate, rows, count, &l->gate_up, expert, column, panel, bf16);
        multiply_rows(up, rows, count, &l->gate_up, expert, l->inner + column, panel, bf16);
        for (int row = 0; row < count; row++)
            for (int i = row * COLUMNS; i < (row + 1) * COLUMNS; i++)
                put(hidden, row * (l->inner - COLUMNS) + column + i, gelu_gate(gate[i], up[i]), PACKED(bf16));
    }
}

/* Lines `places` of outputs = down hidden of one expert. */
INLINE void show(float *outputs, const integer *places, const void *hidden, int count, const layer *l, integer expert,
                 void *panel, const int bf16) {
    float sums[TASK_ROWS * COLUMNS];
    for (integer column = 0; column < l->width; column += COLUMNS) {
        multiply_rows(sums, hidden, count, &l->down, expert, column, panel, bf16);
        for (int row = 0; row < count; row++)
            memcpy(outputs + places[row] * l->width + column, sums + row * COLUMNS, COLUMNS * sizeof *sums);
    }
}

/* x is bf16 or fp32; products are in bf16 or fp32. */
INLINE void run(const layer *l, const space *s, task one, char *rows, const int x_bf16, const int bf16) {
    const integer *places = s->order + one.start;
    char *hidden = rows + TASK_ROWS * l->width * 4, *panel = hidden + TASK_ROWS * l->inner * 4;
    for (integer r = 0; r < one.count; r++)
        for (integer i = 0; i < l->width; i++)
            put(rows, r * l->width + i, get(l->x, places[r] / l->top_k * l->width + i, x_bf16), PACKED(bf16));
    hide(hidden, rows, (int)one.count, l, one.expert, panel, bf16);
    show(s->outputs, places, hidden, (int)one.count, l, one.expert, panel, bf16);
}

/* Bytes of a thread's scratch. */
static integer scratch_bytes(const layer *l) {
    return 4 * (TASK_ROWS * (l->width + l->inner) + COLUMNS * (l->width > l->inner ? l->width : l->inner));
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
    integer width = l->width, top_k = l->top_k, scratch = scratch_bytes(l);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic, 1)
        for (integer i = 0; i < tasks; i++) {
            char *own = s->scratch + omp_get_thread_num() * scratch;
            if (l->gate_up.scale)
                run(l, s, s->tasks[i], own, bf16, 0); /* unpacked into fp32, whose products are no slower */
            else
                run(l, s, s->tasks[i], own, bf16, bf16);
        }
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
 * Weights are gate_up [experts, width, 2 * inner] and down [experts, inner, width], see `matrix`; both or neither have
 * scales. Returns 0, or -1 without memory. */
EXPORT int redraft_experts(void *out, const void *x, const integer *chosen, const float *worth, const void *gate_up,
                           const void *gate_up_scale, const void *down, const void *down_scale, integer group,
                           integer tokens, integer top_k, integer experts, integer width, integer inner, int threads,
                           int bf16) {
    layer l = {
        .x = x,
        .gate_up = {gate_up, gate_up_scale, width, 2 * inner, group},
        .down = {down, down_scale, inner, width, group},
        .chosen = chosen,
        .worth = worth,
        .tokens = tokens,
        .top_k = top_k,
        .experts = experts,
        .width = width,
        .inner = inner,
    };
    integer assignments = tokens * top_k;
    space s = {
        .order = malloc((assignments + 1) * sizeof(integer)),
        .starts = malloc((experts + 1) * sizeof(integer)),
        .tasks = malloc((assignments / TASK_ROWS + experts) * sizeof(task)),
        .outputs = malloc((assignments * width + 1) * sizeof(float)),
        .scratch = malloc(threads * scratch_bytes(&l)),
    };
    int failed = !s.order || !s.starts || !s.tasks || !s.outputs || !s.scratch;
    if (!failed) BY_DTYPE(compute, out, &l, &s, plan(&l, &s), threads);
    free(s.order), free(s.starts), free(s.tasks), free(s.outputs), free(s.scratch);
    return -failed;
}

/* Products of rows with weights as PyTorch keeps them, [columns, depth], in fp32.
 *
 * The weights stay in place: `product` takes lines of them as its rows, and as its weights a panel, COLUMNS rows of x
 * transposed to [depth, COLUMNS]. So only x is packed, and the result is transposed back. */

#include <stdlib.h>

#include "turn.h"

#define BLOCK (4 * ROWS) /* lines of the weights of a task */
/* Weights of this many numbers are read from memory each time: once for up to this many panels. */
#define LARGE (1 << 20)
#define TOGETHER (256 / COLUMNS)

/* What is multiplied: x [rows, depth] with weight [columns, depth], to out [rows, columns]. */
typedef struct {
    float *out;
    const float *x, *weight;
    integer rows, columns, depth;
    float cap, temperature; /* of a head */
} job;

/* cap tanh(x / cap) / temperature of every x. */
INLINE void soften(float *x, int count, float cap, float temperature) {
    for (int i = 0; i < count; i++) x[i] = capped(2.0f / cap * x[i], cap, temperature);
}

/* The numbers of a block's columns for the rows of a panel. */
INLINE void run(const job *j, integer column, integer row, const float *panel, const int head) {
    float tile[BLOCK * COLUMNS];
    int lines = at_most(j->columns - column, BLOCK);
    for (int line = 0; line < lines; line += ROWS)
        product(tile + line * COLUMNS, j->weight + (column + line) * j->depth, at_most(lines - line, ROWS), panel,
                COLUMNS, j->depth, 0);
    if (head) soften(tile, lines * COLUMNS, j->cap, j->temperature);
    turn(j->out + row * j->columns + column, j->columns, tile, COLUMNS, lines, at_most(j->rows - row, COLUMNS));
}

/* A task is a block for some panels, which each thread transposes for itself at the first of their tasks. */
INLINE int linear(const job *j, int threads, const int head) {
    integer blocks = (j->columns + BLOCK - 1) / BLOCK, panels = (j->rows + COLUMNS - 1) / COLUMNS;
    integer most = j->columns * j->depth < LARGE ? 1 : TOGETHER, groups = (panels + most - 1) / most;
    integer together = groups ? (panels + groups - 1) / groups : 0, size = j->depth * COLUMNS;
    float *scratch = aligned_alloc(64, (threads * together * size + COLUMNS) * sizeof *scratch);
    if (!scratch) return -1;
#pragma omp parallel num_threads(threads) if (groups * blocks > 1)
    {
        float *turned = scratch + omp_get_thread_num() * together * size;
        integer held = -1;
#pragma omp for schedule(static)
        for (integer task = 0; task < groups * blocks; task++) {
            integer group = task / blocks * together, end = group + together < panels ? group + together : panels;
            for (integer p = group; p < end && held != group; p++)
                turn_panel(turned + (p - group) * size, j->x + p * size, j->depth,
                           at_most(j->rows - p * COLUMNS, COLUMNS), j->depth);
            held = group;
            for (integer p = group; p < end; p++)
                run(j, task % blocks * BLOCK, p * COLUMNS, turned + (p - group) * size, head);
        }
    }
    free(scratch);
    return 0;
}

/* out [rows, columns] = x [rows, depth] times weight [columns, depth] transposed. Returns 0, or -1 without memory. */
EXPORT int redraft_linear(float *out, const float *x, const float *weight, integer rows, integer columns,
                          integer depth, int threads) {
    job j = {out, x, weight, rows, columns, depth, 0.0f, 0.0f};
    return linear(&j, threads, 0);
}

/* The same for the head: logits = cap tanh(products / cap) / temperature. */
EXPORT int redraft_head(float *logits, const float *hidden, const float *weight, integer rows, integer columns,
                        integer depth, float cap, float temperature, int threads) {
    job j = {logits, hidden, weight, rows, columns, depth, cap, temperature};
    return linear(&j, threads, 1);
}

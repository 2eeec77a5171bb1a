/* Products of rows with weights as PyTorch keeps them, [columns, depth], in fp32.
 *
 * The weights stay where they are: `product` takes lines of them for its rows, and for its weights a panel, COLUMNS rows
 * of x that lie turned, [depth, COLUMNS]. So nothing is packed but x, and what comes out is turned back. */

#include <stdlib.h>

#include "product.h"

#define BLOCK (4 * ROWS)         /* lines of the weights of a task */
#define LARGE (1 << 20)          /* so many numbers come from memory every time that they are asked for: they are asked */
#define TOGETHER (256 / COLUMNS) /* for once for up to so many panels */

typedef float quad __attribute__((vector_size(16)));
typedef int32_t places __attribute__((vector_size(16)));

/* Four numbers of two quads, which count from 0 to 7; GCC has the name that Clang gave it from version 12 on. */
#if __has_builtin(__builtin_shufflevector)
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (places){__VA_ARGS__})
#endif

/* to [4, 4] = from [4, 4] turned; lines lie so far apart. */
INLINE void turn_square(float *to, integer to_stride, const float *from, integer from_stride) {
    quad line[4], half[4];
    for (int i = 0; i < 4; i++) memcpy(&line[i], from + i * from_stride, sizeof(quad));
    half[0] = PICK(line[0], line[1], 0, 4, 1, 5), half[1] = PICK(line[0], line[1], 2, 6, 3, 7);
    half[2] = PICK(line[2], line[3], 0, 4, 1, 5), half[3] = PICK(line[2], line[3], 2, 6, 3, 7);
    line[0] = PICK(half[0], half[2], 0, 1, 4, 5), line[1] = PICK(half[0], half[2], 2, 3, 6, 7);
    line[2] = PICK(half[1], half[3], 0, 1, 4, 5), line[3] = PICK(half[1], half[3], 2, 3, 6, 7);
    for (int i = 0; i < 4; i++) memcpy(to + i * to_stride, &line[i], sizeof(quad));
}

/* to [columns, rows] = from [rows, columns] turned. */
INLINE void turn(float *to, integer to_stride, const float *from, integer from_stride, integer rows, integer columns) {
    integer whole_rows = rows & -4, whole_columns = columns & -4;
    for (integer i = 0; i < whole_rows; i += 4)
        for (integer j = 0; j < whole_columns; j += 4)
            turn_square(to + j * to_stride + i, to_stride, from + i * from_stride + j, from_stride);
    for (integer i = 0; i < rows; i++)
        for (integer j = i < whole_rows ? whole_columns : 0; j < columns; j++)
            to[j * to_stride + i] = from[i * from_stride + j];
}

/* panel [depth, COLUMNS] = rows [count, depth] turned. Columns without a row are 0: a number that is left there by chance
 * could be one so small that a processor takes its time. */
INLINE void turn_panel(float *panel, const float *rows, int count, integer depth) {
    if (count < COLUMNS) memset(panel, 0, depth * COLUMNS * sizeof *panel);
    turn(panel, COLUMNS, rows, depth, count, depth);
}

/* What is multiplied: x [rows, depth] with weight [columns, depth], to out [rows, columns]. */
typedef struct {
    float *out;
    const float *x, *weight;
    integer rows, columns, depth;
    float cap, temperature; /* of a head */
} job;

/* cap tanh(x / cap) / temperature of every x, by a sigmoid. */
INLINE void soften(float *x, int count, const job *j) {
    float inside = 2.0f / j->cap, scale = 2.0f * j->cap / j->temperature, least = -j->cap / j->temperature;
    for (int i = 0; i < count; i++) x[i] = least + scale * sigmoid(inside * x[i]);
}

/* The numbers of a block's columns for the rows of a panel. */
INLINE void run(const job *j, integer column, integer row, const float *panel, const int head) {
    float tile[BLOCK * COLUMNS];
    int lines = at_most(j->columns - column, BLOCK);
    for (int line = 0; line < lines; line += ROWS)
        product(tile + line * COLUMNS, j->weight + (column + line) * j->depth, at_most(lines - line, ROWS), panel,
                COLUMNS, j->depth, 0);
    if (head) soften(tile, lines * COLUMNS, j);
    turn(j->out + row * j->columns + column, j->columns, tile, COLUMNS, lines, at_most(j->rows - row, COLUMNS));
}

/* A task is a block for some panels, which a thread turns for itself when it comes to the first of their tasks. */
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
                turn_panel(turned + (p - group) * size, j->x + p * size, at_most(j->rows - p * COLUMNS, COLUMNS),
                           j->depth);
            held = group;
            for (integer p = group; p < end; p++)
                run(j, task % blocks * BLOCK, p * COLUMNS, turned + (p - group) * size, head);
        }
    }
    free(scratch);
    return 0;
}

/* out [rows, columns] = x [rows, depth] times weight [columns, depth], turned. Returns 0, or -1 without memory. */
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

/* Transposed fp32 matrices: the rows that `product` takes as columns, and its results transposed back. */

#ifndef REDRAFT_TURN_H
#define REDRAFT_TURN_H

#include "product.h"

typedef float quad __attribute__((vector_size(16)));
typedef int32_t places __attribute__((vector_size(16)));

#ifndef __has_builtin /* GCC before version 10 */
#define __has_builtin(name) 0
#endif

/* Four numbers from two quads, counted from 0 to 7; GCC has Clang's name for it from version 12 on. */
#if __has_builtin(__builtin_shufflevector)
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (places){__VA_ARGS__})
#endif

/* to [4, 4] = from [4, 4] transposed; the strides are the distances between lines. */
INLINE void turn_square(float *to, integer to_stride, const float *from, integer from_stride) {
    quad line[4], half[4];
    for (int i = 0; i < 4; i++) memcpy(&line[i], from + i * from_stride, sizeof(quad));
    half[0] = PICK(line[0], line[1], 0, 4, 1, 5), half[1] = PICK(line[0], line[1], 2, 6, 3, 7);
    half[2] = PICK(line[2], line[3], 0, 4, 1, 5), half[3] = PICK(line[2], line[3], 2, 6, 3, 7);
    line[0] = PICK(half[0], half[2], 0, 1, 4, 5), line[1] = PICK(half[0], half[2], 2, 3, 6, 7);
    line[2] = PICK(half[1], half[3], 0, 1, 4, 5), line[3] = PICK(half[1], half[3], 2, 3, 6, 7);
    for (int i = 0; i < 4; i++) memcpy(to + i * to_stride, &line[i], sizeof(quad));
}

/* to [columns, rows] = from [rows, columns] transposed. */
INLINE void turn(float *to, integer to_stride, const float *from, integer from_stride, integer rows, integer columns) {
    integer whole_rows = rows & -4, whole_columns = columns & -4;
    for (integer i = 0; i < whole_rows; i += 4)
        for (integer j = 0; j < whole_columns; j += 4)
            turn_square(to + j * to_stride + i, to_stride, from + i * from_stride + j, from_stride);
    for (integer i = 0; i < rows; i++)
        for (integer j = i < whole_rows ? whole_columns : 0; j < columns; j++)
            to[j * to_stride + i] = from[i * from_stride + j];
}

/* panel [depth, COLUMNS] = rows [count, depth], `stride` apart, transposed. Columns without a row are 0: leftover
 * numbers could be denormal, which slows processors down. */
INLINE void turn_panel(float *panel, const float *rows, integer stride, int count, integer depth) {
    if (count < COLUMNS) memset(panel, 0, depth * COLUMNS * sizeof *panel);
    turn(panel, COLUMNS, rows, stride, count, depth);
}

#endif

"""The two products over experts, weights first: acc [BN weight rows, BM tokens] += W [BN,BK] . X^T [BK,BM].

A Hopper matrix instruction takes 64 rows of its first operand but as few as 8 columns of its second. Experts have
few rows of tokens and many of weights, so the weights come first; the result is transposed while it is stored.

One program makes one tile (tokens of one expert x BN weight rows). There are as many programs as any routing can need,
so one captured graph serves them all; programs beyond the list end at once. Widths are multiples of the tiles; only
token rows are masked. A tile with at most SMALL rows, the remainder of a busy expert, takes narrower instructions. What
the end of a tile needs is loaded before the loop, which hides the latency of memory.
"""

# Variables of a format are bound and used under the same condition.
# pyright: reportPossiblyUnboundVariable=false

from __future__ import annotations

from redraft.kernels.packed import INT4_UNIT
from redraft.kernels.triton.instructions import await_inputs
from redraft.kernels.triton.language import constexpr, jit, tl

UNIT = constexpr(INT4_UNIT)


@jit
def gate_kernel(
    x,  # [T,D]
    x_scale,  # fp32 [T]; None if rows are plain
    weight,  # plain or e4m3 [E,2I,D], or a descriptor of it as [E*2I,D]; codes uint8 [E,D/64,2I,32]
    weight_scale,  # fp32 [E,2I]; INT4: int32 [E,D/(2*GROUP),2I], two bf16 numbers each
    out,  # [R,I] of R = T*K assignments, sorted
    order,  # int32 [R]
    tiles,  # int32 [M,3]
    D: tl.constexpr,
    INNER: tl.constexpr,
    TOP_K: tl.constexpr,
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
    BM: tl.constexpr,
    SMALL: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
    TMA: tl.constexpr,
    ASM: tl.constexpr,
    PDL: tl.constexpr,
):
    """hidden = gelu(gate x) * up x for one live tile, with both halves of a column in one program."""
    if PDL:
        await_inputs()
    entry = tiles + tl.program_id(0) // (INNER // BN) * 3
    expert, start, end = tl.load(entry).to(tl.int64), tl.load(entry + 1), tl.load(entry + 2)
    if expert < 0:
        return
    first = tl.program_id(0) % (INNER // BN) * BN
    if SMALL == 0:
        gate_tile(x, x_scale, weight, weight_scale, out, order, expert, start, end, first,
                  D, INNER, TOP_K, FORMAT, GROUP, BM, BN, BK, STAGES, TMA, ASM)  # fmt: skip
    elif end - start <= SMALL:
        gate_tile(x, x_scale, weight, weight_scale, out, order, expert, start, end, first,
                  D, INNER, TOP_K, FORMAT, GROUP, SMALL, BN, BK, STAGES, TMA, ASM)  # fmt: skip
    else:
        gate_tile(x, x_scale, weight, weight_scale, out, order, expert, start, end, first,
                  D, INNER, TOP_K, FORMAT, GROUP, BM, BN, BK, STAGES, TMA, ASM)  # fmt: skip


@jit
def gate_tile(x, x_scale, weight, weight_scale, out, order, expert, start, end, first,
              D: tl.constexpr, INNER: tl.constexpr, TOP_K: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr,
              BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, TMA: tl.constexpr,
              ASM: tl.constexpr):  # fmt: skip
    """Columns first..first+BN of the hidden rows start..end of an expert, at most BM rows."""
    rows = start + tl.arange(0, BM)  # [BM]
    live = rows < end
    token = tl.load(order + rows, mask=live, other=0) // TOP_K
    columns = first + tl.arange(0, BN)
    lines = x + token[:, None].to(tl.int64) * D
    if FORMAT == "fp8":
        scale = weight_scale + expert * (2 * INNER) + columns
        gate_scale, up_scale = tl.load(scale)[:, None], tl.load(scale + INNER)[:, None]
    if x_scale is not None:
        row_scale = tl.load(x_scale + token, mask=live, other=0.0)[None, :]
    if FORMAT == "int4":
        gate, up = int4_pair(lines, live, weight, weight_scale, expert, columns, D, INNER, GROUP, BM, BN, STAGES, ASM)
    else:
        gate, up = pair(lines, live, weight, expert, first, D, INNER, BM, BN, BK, STAGES, TMA)
    if FORMAT == "fp8":
        gate, up = gate * gate_scale, up * up_scale
    if x_scale is not None:
        gate, up = gate * row_scale, up * row_scale
    target = out + rows[:, None].to(tl.int64) * INNER + columns[None, :]
    hidden = tl.trans(gelu_gate(gate, up)).to(out.dtype.element_ty)
    tl.store(target, hidden, mask=live[:, None], eviction_policy="evict_last")  # the next launches read it


@jit
def gelu_share(x):
    """The factor by which gelu, in its tanh form, multiplies x: sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3))."""
    return tl.sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))


@jit
def gelu_gate(gate, up):
    """gelu(gate) * up."""
    return gate * gelu_share(gate) * up


@jit
def pair(x, live, weight, expert, first, D: tl.constexpr, INNER: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
         BK: tl.constexpr, STAGES: tl.constexpr, TMA: tl.constexpr):  # fmt: skip
    """Gate and up rows first..first+BN of an expert times the tokens whose rows start at x [BM,1]: two [BN,BM]."""
    gate = tl.zeros((BN, BM), tl.float32)
    up = tl.zeros((BN, BM), tl.float32)
    if TMA:
        base = (expert * (2 * INNER)).to(tl.int32) + first
    else:
        base = weight + (expert * (2 * INNER) + first + tl.arange(0, BN)[:, None]) * D + tl.arange(0, BK)[None, :]
    for k in tl.range(0, D, BK, num_stages=STAGES):
        tokens = load_tokens(x, live, k, BK, D)  # [BK,BM]
        if TMA:
            gate = tl.dot(weight.load([base, k]), tokens, gate)
            up = tl.dot(weight.load([base + INNER, k]), tokens, up)
        else:
            gate = tl.dot(load_weights(base, k, BK, D), tokens, gate)
            up = tl.dot(load_weights(base + INNER * D, k, BK, D), tokens, up)
    return gate, up


@jit
def load_tokens(x, live, k, BK: tl.constexpr, WIDTH: tl.constexpr):
    """BK columns from k of the rows that start at x [BM,1], transposed: [BK,BM]; zeros where not live [BM].

    Rows have WIDTH columns and read as zeros beyond them; with None the caller sees to it that there are BK columns.
    """
    inner = k + tl.arange(0, BK)[None, :]
    mask = live[:, None] if WIDTH is None or WIDTH % BK == 0 else live[:, None] & (inner < WIDTH)
    return tl.trans(tl.load(x + inner, mask=mask, other=0.0))


@jit
def load_weights(base, k, BK: tl.constexpr, WIDTH: tl.constexpr):
    """BK columns from k of the weight rows whose columns 0..BK lie at base [BN,BK]."""
    if WIDTH % BK == 0:
        return tl.load(base + k)
    return tl.load(base + k, mask=(k + tl.arange(0, BK) < WIDTH)[None, :], other=0.0)


@jit
def int4_pair(x, live, codes, scale, expert, columns, D: tl.constexpr, INNER: tl.constexpr, GROUP: tl.constexpr,
              BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, ASM: tl.constexpr):  # fmt: skip
    """`pair` on INT4 codes: two blocks of 64 inputs per step."""
    gate = tl.zeros((BN, BM), tl.float32)
    up = tl.zeros((BN, BM), tl.float32)
    count: tl.constexpr = 2 * INNER
    codes += (expert * (D // 64) * count + columns[:, None]) * 32 + tl.arange(0, 32)[None, :]
    scale += expert * ((D + 2 * GROUP - 1) // (2 * GROUP)) * count + columns
    for step in tl.range(0, (D + 127) // 128, num_stages=STAGES):
        for half in tl.static_range(2):
            block = 2 * step + half
            low_tokens = load_tokens(x, live & (block < D // 64), block * 64, 32, None)
            high_tokens = load_tokens(x, live & (block < D // 64), block * 64 + 32, 32, None)
            gate = int4_block(gate, codes, scale, low_tokens, high_tokens, step, half, D, count, GROUP, ASM)
            more, rest = codes + INNER * 32, scale + INNER
            up = int4_block(up, more, rest, low_tokens, high_tokens, step, half, D, count, GROUP, ASM)
    return gate, up


@jit
def int4_block(acc, codes, scale, low_tokens, high_tokens, step, HALF: tl.constexpr, WIDTH: tl.constexpr, count,
               GROUP: tl.constexpr, ASM: tl.constexpr):  # fmt: skip
    """acc [BN,BM] plus block 2*step + HALF of 64 inputs: its groups' products in units of 2^-9, times their scales.

    Scales are bf16 pairs of neighbouring groups, so that a row's load is wide enough to be prefetched.
    """
    block = 2 * step + HALF
    words = tl.load(codes + block * (count * 32), mask=block < WIDTH // 64, other=0)
    low, high = code_values(words, low_tokens.dtype, ASM)  # [BN,32] each
    part = tl.dot(low, low_tokens)
    if GROUP == 64:
        both = tl.load(scale + step * count)
        part = tl.dot(high, high_tokens, part)
        return acc + part * (low_half(both) if HALF == 0 else high_half(both))[:, None]
    both = tl.load(scale + block * count, mask=block < WIDTH // 64, other=0)
    acc += part * low_half(both)[:, None]
    return acc + tl.dot(high, high_tokens) * high_half(both)[:, None]


@jit
def low_half(both):
    """The bf16 number in the low half of an int32, as fp32."""
    return (both << 16).to(tl.float32, bitcast=True)


@jit
def high_half(both):
    """The bf16 number in the high half of an int32, as fp32."""
    return (both & -65536).to(tl.float32, bitcast=True)


@jit
def code_values(codes, dtype: tl.constexpr, ASM: tl.constexpr):
    """uint8 pairs of INT4 codes -> two tensors of numbers in units of 2^-9: the low and the high nibbles."""
    if ASM and dtype == tl.float8e4nv:
        return codes_to_e4m3(codes)
    if ASM and dtype == tl.bfloat16:
        return codes_to_bf16(codes)
    return value_of_code(codes & 15).to(dtype), value_of_code(codes >> 4).to(dtype)


@jit
def value_of_code(code):
    """The number that an INT4 code stands for, in units of 2^-9: the sign in bit 3, below it v >= 0 or -v - 1."""
    magnitude = (code & 7).to(tl.float32)
    return tl.where(code >= 8, -1 - magnitude, magnitude) * UNIT


@jit
def codes_to_e4m3(codes):
    """`code_values` in e4m3.

    A magnitude up to 8 is its own e4m3 bit pattern (in units of the smallest subnormal). The sign bit s adds 1 to the
    magnitude, as code 8 + m stands for -(m + 1), and goes to bit 7. Eight codes at a time: 8 s + m less 7 s is the
    magnitude in every half byte, and the other half is taken from the signs (0xe4: a where c, else b).
    """
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 t, s, m;
        and.b32 t, $2, 0x88888888;
        shr.u32 s, t, 3;
        mad.lo.s32 m, s, -7, $2;
        mul.lo.u32 s, s, 128;
        lop3.b32 $0, m, s, 0x0f0f0f0f, 0xe4;
        shr.u32 m, m, 4;
        lop3.b32 $1, m, t, 0x0f0f0f0f, 0xe4;
        }""",
        "=&r,=r,r",
        [codes],
        dtype=(tl.float8e4nv, tl.float8e4nv),
        is_pure=True,
        pack=4,
    )


@jit
def codes_to_bf16(codes):
    """`code_values` in bf16, with which GPUs that have no FP8 products multiply.

    After the lower bits of negative codes are inverted, c with its bit 3 inverted is the value plus 8, and 0x4300 with
    it in the lowest bits is the bf16 number 136 more than the value; a product and a sum of two numbers at a time then
    give the value in units of 2^-9, exactly.
    """
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 w, x, unit, less;
        and.b32 w, $4, 0x88888888;
        shr.u32 w, w, 3;
        mul.lo.u32 w, w, 7;
        xor.b32 w, w, $4;
        mov.b32 unit, 0x3b003b00;
        mov.b32 less, 0xbe88be88;
        prmt.b32 x, w, 0, 0x4140;
        lop3.b32 $0, x, 0x000f000f, 0x43084308, 0x6a;
        shr.u32 x, x, 4;
        lop3.b32 $2, x, 0x000f000f, 0x43084308, 0x6a;
        prmt.b32 x, w, 0, 0x4342;
        lop3.b32 $1, x, 0x000f000f, 0x43084308, 0x6a;
        shr.u32 x, x, 4;
        lop3.b32 $3, x, 0x000f000f, 0x43084308, 0x6a;
        fma.rn.bf16x2 $0, $0, unit, less;
        fma.rn.bf16x2 $1, $1, unit, less;
        fma.rn.bf16x2 $2, $2, unit, less;
        fma.rn.bf16x2 $3, $3, unit, less;
        }""",
        "=&r,=&r,=&r,=&r,r",
        [codes],
        dtype=(tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=4,
    )


@jit
def down_kernel(
    hidden,  # [R,I], sorted
    hidden_scale,  # fp32 [R]; None if rows are plain
    weight,  # plain or e4m3 [E,D,I], or a descriptor of it as [E*D,I]; codes uint8 [E,I/64,D,32]
    weight_scale,  # fp32 [E,D]; INT4: int32 [E,I/(2*GROUP),D], two bf16 numbers each
    worth,  # fp32 [R] in the order of assignments
    out,  # [R,D] in the order of assignments
    order,  # int32 [R]
    tiles,  # int32 [M,3]
    D: tl.constexpr,
    INNER: tl.constexpr,
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
    BM: tl.constexpr,
    SMALL: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
    TMA: tl.constexpr,
    ASM: tl.constexpr,
    PDL: tl.constexpr,
):
    """out = worth * (down hidden), each row to its assignment's place; tiles of dead rows take no step and store 0."""
    if PDL:
        await_inputs()
    entry = tiles + tl.program_id(0) // (D // BN) * 3
    expert, start, end = tl.load(entry).to(tl.int64), tl.load(entry + 1), tl.load(entry + 2)
    if start >= end:
        return
    first = tl.program_id(0) % (D // BN) * BN
    if SMALL == 0:
        down_tile(hidden, hidden_scale, weight, weight_scale, worth, out, order, expert, start, end, first,
                  D, INNER, FORMAT, GROUP, BM, BN, BK, STAGES, TMA, ASM)  # fmt: skip
    elif end - start <= SMALL:
        down_tile(hidden, hidden_scale, weight, weight_scale, worth, out, order, expert, start, end, first,
                  D, INNER, FORMAT, GROUP, SMALL, BN, BK, STAGES, TMA, ASM)  # fmt: skip
    else:
        down_tile(hidden, hidden_scale, weight, weight_scale, worth, out, order, expert, start, end, first,
                  D, INNER, FORMAT, GROUP, BM, BN, BK, STAGES, TMA, ASM)  # fmt: skip


@jit
def down_tile(hidden, hidden_scale, weight, weight_scale, worth, out, order, expert, start, end, first,
              D: tl.constexpr, INNER: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr, BM: tl.constexpr,
              BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, TMA: tl.constexpr,
              ASM: tl.constexpr):  # fmt: skip
    """Columns first..first+BN of the rows start..end of an expert, at most BM rows; expert -1 stands for dead rows."""
    rows = start + tl.arange(0, BM)  # [BM]
    live = rows < end
    columns = first + tl.arange(0, BN)
    width = tl.where(expert < 0, 0, INNER)
    expert = tl.maximum(expert, 0)
    lines = hidden + rows[:, None].to(tl.int64) * INNER
    place = tl.load(order + rows, mask=live, other=0)
    factor = tl.load(worth + place, mask=live, other=0.0)[None, :]
    if FORMAT == "fp8":
        column_scale = tl.load(weight_scale + expert * D + columns)[:, None]
    if hidden_scale is not None:
        row_scale = tl.load(hidden_scale + rows, mask=live & (width > 0), other=0.0)[None, :]
    if FORMAT == "int4":
        acc = int4_single(
            lines, live, weight, weight_scale, expert, columns, width, D, INNER, GROUP, BM, BN, STAGES, ASM
        )
    else:
        acc = single(lines, live, weight, expert, first, width, D, INNER, BM, BN, BK, STAGES, TMA)
    if FORMAT == "fp8":
        acc *= column_scale
    if hidden_scale is not None:
        acc *= row_scale
    target = out + place[:, None].to(tl.int64) * D + columns[None, :]
    result = tl.trans(acc * factor).to(out.dtype.element_ty)
    tl.store(target, result, mask=live[:, None], eviction_policy="evict_last")  # until they are summed


@jit
def single(x, live, weight, expert, first, width, D: tl.constexpr, INNER: tl.constexpr, BM: tl.constexpr,
           BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, TMA: tl.constexpr):  # fmt: skip
    """Rows first..first+BN of an expert times hidden rows at x [BM,1], over their first `width` columns: [BN,BM]."""
    acc = tl.zeros((BN, BM), tl.float32)
    if TMA:
        base = (expert * D).to(tl.int32) + first
    else:
        base = weight + (expert * D + first + tl.arange(0, BN)[:, None]) * INNER + tl.arange(0, BK)[None, :]
    for k in tl.range(0, width, BK, num_stages=STAGES):
        tokens = load_tokens(x, live, k, BK, INNER)  # [BK,BM]
        if TMA:
            acc = tl.dot(weight.load([base, k]), tokens, acc)
        else:
            acc = tl.dot(load_weights(base, k, BK, INNER), tokens, acc)
    return acc


@jit
def int4_single(x, live, codes, scale, expert, columns, width, D: tl.constexpr, INNER: tl.constexpr,
                GROUP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
                ASM: tl.constexpr):  # fmt: skip
    """`single` on INT4 codes: two blocks of 64 inputs per step."""
    acc = tl.zeros((BN, BM), tl.float32)
    codes += (expert * (INNER // 64) * D + columns[:, None]) * 32 + tl.arange(0, 32)[None, :]
    scale += expert * ((INNER + 2 * GROUP - 1) // (2 * GROUP)) * D + columns
    for step in tl.range(0, (width + 127) // 128, num_stages=STAGES):
        for half in tl.static_range(2):
            block = 2 * step + half
            low_tokens = load_tokens(x, live & (block < INNER // 64), block * 64, 32, None)
            high_tokens = load_tokens(x, live & (block < INNER // 64), block * 64 + 32, 32, None)
            acc = int4_block(acc, codes, scale, low_tokens, high_tokens, step, half, INNER, D, GROUP, ASM)
    return acc


@jit
def sum_kernel(rows, index, out, width, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """Some columns of the sum of one row's experts, without those that are held elsewhere."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for k in tl.static_range(TOP_K):
        own = tl.load(index + row * TOP_K + k) >= 0
        total += tl.load(rows + (row * TOP_K + k) * width + column, own & (column < width), other=0.0).to(tl.float32)
    tl.store(out + row * width + column, total.to(out.dtype.element_ty), column < width)

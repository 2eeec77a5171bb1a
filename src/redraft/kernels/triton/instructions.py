"""Instructions of NVIDIA's GPUs that Triton has no words for, as functions of kernels."""

from __future__ import annotations

from redraft.kernels.triton.language import cuda_capability_geq, gdc_launch_dependents, gdc_wait, jit, tl


@jit
def await_inputs():
    """Call this before a kernel first reads what another one wrote, and before its first write.

    A kernel launched with `early` may start while the previous one is still running. It also lets the next one start.
    """
    if cuda_capability_geq(9, 0):
        gdc_launch_dependents()
        gdc_wait()


@jit
def reciprocal(x):
    """1 / x in one instruction, to one unit in the last place."""
    if cuda_capability_geq(8, 0):
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return 1.0 / x


@jit
def rounded(x, dtype: tl.constexpr):
    """A block of fp32 numbers rounded to `dtype`, as fp32.

    Converts two bf16 numbers per instruction. If they turn back to fp32 at once, the compiler would convert one at a
    time, of which a multiprocessor does only 16 per clock.
    """
    if dtype is tl.bfloat16 and cuda_capability_geq(8, 0):
        x = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [x], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    return x.to(dtype).to(tl.float32)


@jit
def forget(pointer, LINES: tl.constexpr, PADDED: tl.constexpr):
    """Drop LINES lines of 128 bytes, the first at `pointer`, from the L2 cache instead of writing them to memory.

    Their contents are undefined from then on. PADDED is the power of two that covers LINES. All threads of the program
    must have read them, so there must be a reduction between their last read and this call.
    """
    if cuda_capability_geq(8, 0):
        line = tl.arange(0, PADDED)
        tl.inline_asm_elementwise(
            """{
            .reg .pred there;
            setp.ne.s32 there, $2, 0;
            @there discard.global.L2 [$1], 128;
            mov.b32 $0, 0;
            }""",
            "=r,l,r",
            [pointer + line * (1024 // pointer.dtype.element_ty.primitive_bitwidth), (line < LINES).to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )

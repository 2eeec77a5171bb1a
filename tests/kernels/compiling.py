"""Compile what an operation would launch, for a GPU that is not there, and read what the assembler says of it.

The operation is called with meta tensors; its launches are caught, compiled and not run.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.language import target_info
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from redraft.kernels.triton.segments import Segments

TYPES = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8e4nv", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
    torch.uint8: "u8", torch.bool: "i1",
}  # fmt: skip

SHARED_MEMORY = 227 * 1024
"""Bytes that a program on Hopper may have."""


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


bf16, fp32, int32 = (partial(meta, dtype=dtype) for dtype in (torch.bfloat16, torch.float32, torch.int32))


def segments_of(count: int, rows: int) -> Segments:
    """Segments of nothing known."""
    per_segment = {name: int32(count) for name in ("kind", "start", "length")}
    return Segments(**per_segment, rows=rows, since=int32(count * rows), until=int32(count * rows))


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiled:
    """A kernel's name, registers per thread, bytes spilled, bytes of shared memory, PTX, and Triton's own form."""

    name: str
    registers: int
    spilled: int
    shared: int
    ptx: str
    ir: str


@contextmanager
def caught_launches(target: GPUTarget) -> Iterator[list[Compiled]]:
    """Inside, every kernel launch is compiled for `target` and listed instead of run."""
    found: list[Compiled] = []

    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        found.append(_compile(self, arguments, options, target))

    def current_target() -> GPUTarget:
        return target

    current_target.__triton_builtin__ = True  # type: ignore[attr-defined]
    with pretended(target) as patch:
        patch.setattr(JITFunction, "run", run)
        patch.setattr(target_info, "current_target", current_target)
        yield found


@contextmanager
def pretended(target: GPUTarget) -> Iterator[pytest.MonkeyPatch]:
    """Inside, operations go to the kernels of `target`, wherever their tensors lie."""
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("redraft.kernels.triton.") and hasattr(module, "use_triton"):
                patch.setattr(module, "use_triton", lambda x: True)
            if name.startswith("redraft.kernels.gluon.") and hasattr(module, "use_gluon"):
                patch.setattr(module, "use_gluon", lambda x: target.arch == 90)
        yield patch


def compiled(operation: Callable[..., Any], *arguments: Any, capability: int = 90, **options: Any) -> list[Compiled]:
    """What `operation` launches, compiled for a compute capability; 90 is Hopper."""
    with caught_launches(GPUTarget("cuda", capability, 32)) as found:
        operation(*arguments, **options)
    return found


def only(found: list[Compiled], name: str) -> Compiled:
    """The first launch of a kernel."""
    return next(kernel for kernel in found if kernel.name == name)


def assert_fits(kernels: list[Compiled], *, spilled: int = 0) -> None:
    """Within Hopper's shared memory, and with at most so many bytes of registers spilled."""
    assert kernels
    for kernel in kernels:
        assert kernel.shared <= SHARED_MEMORY, kernel.name
        assert kernel.spilled <= spilled, kernel.name


def _compile(function: Any, arguments: Any, options: dict[str, Any], target: GPUTarget) -> Compiled:
    given = dict(zip(function.arg_names, arguments, strict=False))
    given |= {name: value for name, value in options.items() if name in function.arg_names}
    rest = {name: value for name, value in options.items() if name not in function.arg_names}
    signature, constants, attributes = {}, {}, {}
    for index, parameter in enumerate(function.params):
        value = given[parameter.name]
        special = not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (special and type(value) is int and value == 1):
            signature[parameter.name], constants[(index,)] = "constexpr", value
        elif isinstance(value, tuple):
            signature[parameter.name] = tuple(map(_type, value))
            attributes |= {(index, number): [["tt.divisibility", 16]] for number in range(len(value))}
        else:
            signature[parameter.name] = _type(value)
            if special and (isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0)):
                attributes[(index,)] = [["tt.divisibility", 16]]
    language = GluonASTSource if function.is_gluon() else ASTSource
    source = language(fn=function, signature=signature, constexprs=constants, attrs=attributes)
    kernel = triton.compile(source, target=target, options=rest)
    assert not _serialized(kernel), f"the assembler runs the matrix products of {function.__name__} one by one"
    registers, spilled = _resources(kernel)
    return Compiled(name=function.__name__, registers=registers, spilled=spilled, shared=kernel.metadata.shared,
                    ptx=kernel.asm["ptx"], ir=kernel.asm["ttgir"])  # fmt: skip


def _type(value: Any) -> str:
    if isinstance(value, Tensor):
        return "*" + TYPES[value.dtype]
    if isinstance(value, TensorDescriptor):
        shape = ",".join(str(size) for size in value.block_shape)
        return f"tensordesc<{TYPES[value.base.dtype]}[{shape}]>"
    if isinstance(value, GluonDescriptor):
        return f"tensordesc<{TYPES[value.base.dtype]}{list(value.block_shape)},{value.layout!r}>"
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def _resources(kernel: Any) -> tuple[int, int]:
    """Registers per thread and bytes of stack."""
    text = _dumped(kernel, "-res-usage")
    registers, stack = re.search(r"REG:(\d+)", text), re.search(r"STACK:(\d+)", text)
    assert registers is not None, text
    assert stack is not None, text
    return int(registers[1]), int(stack[1])


def _serialized(kernel: Any) -> bool:
    """Whether no matrix product runs while another is waited for, although the PTX says so.

    The assembler gives that up without an error if it cannot tell which registers running products use.
    """
    together = re.search(r"wgmma\.wait_group\.sync\.aligned\s+[1-9]", kernel.asm["ptx"])
    return together is not None and re.search(r"DEPBAR\.LE gsb0, 0x[1-9]", _dumped(kernel, "-sass")) is None


def _dumped(kernel: Any, option: str) -> str:
    """What cuobjdump says of the machine code."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        return subprocess.run([tool, option, file.name], capture_output=True, text=True, check=True).stdout

"""Every operation of a step by itself: how long it takes from a cold cache, and how far it is from fp32.

The operations are those of a real step over one layer of each kind, with the inputs they get there. The same inputs go
through the eager twin in the working dtype, which is the yardstick for errors, and in fp32, which is the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, is_dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from redraft import kernels
from redraft.bench.board import StepCase
from redraft.bench.operations import fresh, visit_operations
from redraft.config import ModelConfig
from redraft.kernels.packed import PackedFp8, PackedInt4, Rows8
from redraft.kernels.switches import Operation
from redraft.kernels.triton.head import HeadResult

REPEATS = 9
SMALLEST = 1e-4
"""Results smaller than this on average count as this large: entropies of 1e-6 nats are zero to a sampler."""
_FLUSH_BYTES = 256 << 20
"""More than a GPU's L2 cache holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationResult:
    """One operation: median time, and the largest relative error of its results; None if results are choices.

    `layer` is the kind of layer it belongs to, "" outside layers.
    """

    name: str
    layer: str
    microseconds: float
    error: float | None
    eager_error: float | None

    @property
    def ratio(self) -> float:
        """The error divided by eager's in the working dtype, at least that of fp32; at most 2 is allowed."""
        assert self.error is not None
        assert self.eager_error is not None
        return self.error / max(self.eager_error, 2**-24)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "name": self.name, "layer": self.layer, "us": round(self.microseconds, 2), "error": self.error,
            "eager_error": self.eager_error, "ratio": None if self.error is None else round(self.ratio, 3),
        }  # fmt: skip


def measure_kernels(
    config: ModelConfig, device: torch.device, *, quantization: str | None, batch: int, context: int,
    only: Collection[str] = (),
) -> list[OperationResult]:  # fmt: skip
    """Measure the operations of a step of `batch` canvases after `context` tokens, layer by layer, or some `only`."""
    case = StepCase(batch=batch, context=context)
    return visit_operations(config, device, _measure, quantization=quantization, case=case, only=only)


def _measure(operation: Operation, layer: str) -> OperationResult:
    microseconds = _microseconds(fresh(operation).run)
    error, eager_error = _errors(operation)
    return OperationResult(
        name=operation.name,
        layer=layer,
        microseconds=microseconds,
        error=error,
        eager_error=eager_error,
    )


def _microseconds(run: Callable[[], object]) -> float:
    """Median time on the device, each time with a cache full of other data."""
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    times = []
    for _ in range(REPEATS):
        flush.zero_()
        torch.cuda._sleep(200_000)  # gives the host time to launch
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end))
    return median(times)


def _errors(operation: Operation) -> tuple[float | None, float | None]:
    """Relative errors of the kernel and of the twin in the working dtype against the twin in fp32."""
    kernel = _floats(fresh(operation).run())
    with kernels.force("eager"):
        eager = _floats(fresh(operation).run())
        exact = replace(operation, args=_upcast(operation.args), kwargs=_upcast(operation.kwargs))
        truth = _floats(exact.run())
    if not kernel:
        return None, None
    return _worst(kernel, truth), _worst(eager, truth)


def _worst(found: list[Tensor], truth: list[Tensor]) -> float:
    """The largest relative error, by norms."""
    pairs = zip(found, truth, strict=True)
    return max(float((x - y).norm() / y.norm().clamp(min=SMALLEST * y.numel() ** 0.5)) for x, y in pairs)


def _floats(result: Any) -> list[Tensor]:
    """The tensors of a result that contain measures rather than choices, as fp32."""
    if isinstance(result, Rows8):
        return [result.dequantize(torch.float32)]
    if isinstance(result, Tensor):
        return [result.float()] if result.is_floating_point() else []
    if isinstance(result, tuple):
        return [tensor for part in result for tensor in _floats(part)]
    if isinstance(result, HeadResult):
        return [result.entropy, result.peak]
    return []


def _upcast(value: Any) -> Any:
    """The same arguments with every bf16 number in fp32; quantized ones stay as they are."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype == torch.bfloat16 else value
    if value is torch.bfloat16:
        return torch.float32
    if isinstance(value, tuple):
        return tuple(map(_upcast, value))
    if isinstance(value, dict):
        return {name: _upcast(part) for name, part in value.items()}
    if is_dataclass(value) and not isinstance(value, Rows8 | PackedFp8 | PackedInt4 | type):
        return replace(value, **{entry.name: _upcast(getattr(value, entry.name)) for entry in fields(value)})
    return value

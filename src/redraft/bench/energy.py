"""What each operation of a step draws when it runs again and again: at its power limit, a card's time is its energy.

The yardstick is what a copy and large products of random numbers draw on the same card in the same run, beyond what it
draws doing nothing. A step whose operations drew no more would take, at the power limit,
(its bytes and operations at those prices) / (limit - idle power).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from redraft.bench.board import StepCase
from redraft.bench.gpu import fp8_product
from redraft.bench.operation_times import PARTS
from redraft.bench.operations import OVERWRITES, fresh, visit_operations
from redraft.bench.power import Draw, PowerMeter, idle_watts, steady_draw
from redraft.bench.roofline import Component
from redraft.config import ModelConfig
from redraft.kernels.switches import Operation
from redraft.model.placement import lacks_fp8

_COPY_BYTES = 1 << 30
_ROWS, _COLUMNS, _DEPTH = 8192, 8192, 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergyPrices:
    """Joules per byte copied, read or written, and per operation of large products, beyond `idle_watts`."""

    idle_watts: float
    limit_watts: float
    byte: float
    bf16: float
    fp8: float

    def joules(self, component: Component) -> float:
        """What a component's bytes and operations cost."""
        return component.bytes * self.byte + component.flops * (self.fp8 if component.fp8 else self.bf16)

    def least_ms(self, joules: float) -> float:
        """How long a card at its power limit takes to spend so much beyond its idle power."""
        return 1e3 * joules / (self.limit_watts - self.idle_watts)

    def to_dict(self) -> dict[str, float]:
        """JSON-ready, in joules per gigabyte and per 10^12 operations."""
        return {
            "idle_watts": round(self.idle_watts, 1), "limit_watts": round(self.limit_watts, 1),
            "joules_per_gb": round(1e9 * self.byte, 4), "joules_per_tflop_bf16": round(1e12 * self.bf16, 4),
            "joules_per_tflop_fp8": round(1e12 * self.fp8, 4),
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationEnergy:
    """One operation of one kind of layer ("" outside layers), which a step launches `times` times."""

    name: str
    layer: str
    times: int
    draw: Draw

    @property
    def ms(self) -> float:
        """Milliseconds per step."""
        return 1e3 * self.times * self.draw.seconds

    @property
    def joules(self) -> float:
        """Joules per step."""
        return self.times * self.draw.joules

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "name": self.name, "layer": self.layer, "times": self.times, "us": round(1e6 * self.draw.seconds, 2),
            "watts": round(self.draw.watts, 1), "mhz": self.draw.mhz, "ms": round(self.ms, 4),
            "joules": round(self.joules, 4),
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class PartEnergy:
    """One component of the roofline: per step its time, its energy, and what that costs at the prices, if it counts."""

    name: str
    ms: float
    joules: float
    price: float | None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        price = None if self.price is None else round(self.price, 4)
        return {"name": self.name, "ms": round(self.ms, 4), "joules": round(self.joules, 4), "price_joules": price}


def measure_energy(
    config: ModelConfig, device: torch.device, *, quantization: str | None, case: StepCase, seconds: float
) -> list[OperationEnergy]:
    """Measure every operation of a step for some seconds, with the inputs that it gets in one layer of each kind."""
    meter, kinds = PowerMeter(device), [kind.removesuffix("_attention") for kind in config.layer_types]

    def visit(operation: Operation, layer: str) -> OperationEnergy:
        times = kinds.count(layer) if layer else 1
        return OperationEnergy(name=operation.name, layer=layer, times=times, draw=_draw(meter, operation, seconds))

    return visit_operations(config, device, visit, quantization=quantization, case=case)


def _draw(meter: PowerMeter, operation: Operation, seconds: float) -> Draw:
    """The draw of one operation; one that overwrites its input gets it anew each time, which is then subtracted."""
    own = fresh(operation)
    used = OVERWRITES.get(operation.name)
    if used is None or not isinstance(kept := operation.args[used], torch.Tensor):
        return steady_draw(meter, own.run, seconds)

    def restore() -> None:
        own.args[used].copy_(kept)

    def run() -> object:
        restore()
        return own.run()

    return steady_draw(meter, run, seconds).without(steady_draw(meter, restore, seconds))


def measure_prices(device: torch.device, seconds: float) -> EnergyPrices:
    """What reading, writing and multiplying random numbers draws on this card, beyond what it draws idle.

    A card without FP8 products gets its bf16 price for them.
    """
    meter = PowerMeter(device)
    source = torch.empty(_COPY_BYTES // 4, device=device).normal_()
    target = torch.empty_like(source)
    left = torch.randn(_ROWS, _DEPTH, device=device, dtype=torch.bfloat16)
    right = torch.randn(_COLUMNS, _DEPTH, device=device, dtype=torch.bfloat16)
    copy = steady_draw(meter, lambda: torch.neg(source, out=target), seconds)
    bf16 = steady_draw(meter, lambda: left @ right.t(), seconds)
    fp8 = bf16 if lacks_fp8(device) else steady_draw(meter, fp8_product(left, right), seconds)
    idle = idle_watts(meter, seconds)

    def beyond(draw: Draw) -> float:
        return draw.joules - idle * draw.seconds

    flops = 2.0 * _ROWS * _COLUMNS * _DEPTH
    return EnergyPrices(
        idle_watts=idle, limit_watts=meter.limit_watts(), byte=beyond(copy) / (2.0 * _COPY_BYTES),
        bf16=beyond(bf16) / flops, fp8=beyond(fp8) / flops,
    )  # fmt: skip


def part_energies(
    operations: Sequence[OperationEnergy], components: Sequence[Component], prices: EnergyPrices
) -> tuple[PartEnergy, ...]:
    """The components of the roofline that the operations make up; norms, rotation and sampling have no price."""
    counted = {component.name: prices.joules(component) for component in components}
    found = []
    for name, members in PARTS.items():
        mine = [one for one in operations if one.name in members]
        if mine:
            ms, joules = sum(one.ms for one in mine), sum(one.joules for one in mine)
            found.append(PartEnergy(name=name, ms=ms, joules=joules, price=counted.get(name)))
    return tuple(found)

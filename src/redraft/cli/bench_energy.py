"""`redraft bench energy`: what the operations of a step draw, and how long they take at the card's power limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from redraft.cli.bench_gpu import Certain, Context, Device, Model, Quantization
from redraft.cli.bench_results import Results, command_line, number_table, print_results
from redraft.cli.options import JsonAlone, option, whole_numbers
from redraft.errors import SettingError

if TYPE_CHECKING:
    from redraft.bench.energy import EnergyPrices, OperationEnergy, PartEnergy


def energy(
    model: Model = "26b-a4b",
    quantization: Quantization = None,
    batch: Annotated[str, option("--batch", "Canvases at a time.", "N,N,...")] = "16",
    context: Context = "1024",
    certain: Certain = False,
    seconds: Annotated[float, option("--seconds", "How long each operation is repeated.", "SECONDS")] = 1.0,
    device: Device = "auto",
    results: Results = None,
    json: JsonAlone = False,
) -> None:
    """Joules of every operation of a step, repeated until the card is in a steady state: at its power limit, mostly.

    Beside them stands what the same bytes and products cost in a copy and in large products on this card. Takes one
    layer of each kind with random weights. Needs a CUDA GPU.
    """
    from redraft.bench.board import StepCase
    from redraft.bench.energy import measure_energy, measure_prices, part_energies
    from redraft.bench.gpu import require_gpu
    from redraft.bench.machine import device_facts, versions
    from redraft.bench.roofline import step_components
    from redraft.model.folders import shape_of
    from redraft.model.packed.requirements import check_device
    from redraft.model.placement import lacks_fp8
    from redraft.outputs import make_folder

    if not seconds > 0:
        raise SettingError(f"--seconds is {seconds:g}; it must be more than 0.")
    target, config = require_gpu(device), shape_of(model)
    check_device(target, quantization)
    make_folder(results)
    fp8, records = quantization is not None and not lacks_fp8(target), []
    prices = measure_prices(target, seconds)
    for tokens in whole_numbers("context", context):
        for canvases in whole_numbers("batch", batch):
            case = StepCase(batch=canvases, context=tokens, certain=certain)
            found = measure_energy(config, target, quantization=quantization, case=case, seconds=seconds)
            components = step_components(
                config, quantization=quantization, batch=canvases, context=tokens, gathers=certain,
                vocabulary_bytes=1 if fp8 else 2, fp8_products=not lacks_fp8(target),
            )  # fmt: skip
            parts = part_energies(found, components, prices)
            if not json:
                _print(f"{quantization or 'bf16'}, {canvases} after {tokens} tokens", found, parts, prices)
            records.append({
                "bench": "energy", "model": model, "batch": canvases, "context": tokens, "certain": certain,
                "quantization": quantization, "seconds": seconds, "prices": prices.to_dict(),
                "joules": round(sum(part.joules for part in parts), 3),
                "least_ms": round(prices.least_ms(sum(part.price or 0.0 for part in parts)), 3),
                "parts": [part.to_dict() for part in parts], "operations": [one.to_dict() for one in found],
                "command": command_line(), "versions": versions(),
            } | device_facts(target))  # fmt: skip
    print_results("energy", records, results)


def _print(title: str, operations: list[OperationEnergy], parts: tuple[PartEnergy, ...], prices: EnergyPrices) -> None:
    from rich.console import Console

    console, table = (
        Console(highlight=False),
        number_table("operation", "layer", "us", "W", "MHz", "ms a step", "J a step"),
    )
    for one in operations:
        us, watts = f"{1e6 * one.draw.seconds:.1f}", f"{one.draw.watts:.0f}"
        table.add_row(one.name, one.layer, us, watts, str(one.draw.mhz), f"{one.ms:.2f}", f"{one.joules:.2f}")
    whole = number_table("component", "ms", "J", "J at this card's prices")
    for part in parts:
        price = "" if part.price is None else f"{part.price:.2f}"
        whole.add_row(part.name, f"{part.ms:.2f}", f"{part.joules:.2f}", price)
    joules = sum(part.joules for part in parts)
    least = prices.least_ms(sum(part.price or 0.0 for part in parts))
    console.print(
        f"\n{title}: {joules:.1f} J a step, {1e3 * joules / prices.limit_watts:.1f} ms at "
        f"{prices.limit_watts:.0f} W; at this card's prices {least:.1f} ms",
        markup=False,
    )
    console.print(table)
    console.print(whole)

"""`bench energy` as far as a machine without a GPU goes: the meter's arithmetic, prices, and what belongs to what."""

import ctypes
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from redraft.bench import energy
from redraft.bench.board import StepCase
from redraft.bench.energy import EnergyPrices, measure_energy, part_energies
from redraft.bench.operations import visit_operations
from redraft.bench.power import Draw, PowerMeter
from redraft.bench.roofline import step_components
from redraft.cli.main import main
from redraft.errors import SettingError
from redraft.kernels.switches import Operation
from redraft.kernels.triton.self_conditioning import few_explain
from redraft.kernels.triton.softcap import tempered
from redraft.model.presets import preset

PRICES = EnergyPrices(idle_watts=100, limit_watts=700, byte=2e-10, bf16=1e-12, fp8=5e-13)


class Counter(PowerMeter):
    """Time goes on by a second a read, at 7 watts, and the counter shows it every 5 seconds."""

    def __init__(self) -> None:
        self.seconds = 0

    def joules(self) -> float:
        self.seconds += 1
        return 7.0 * (self.seconds - self.seconds % 5)


def test_power_is_taken_from_one_move_of_the_counter_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    meter, calls = Counter(), []
    monkeypatch.setattr("redraft.bench.power.time.perf_counter", lambda: float(meter.seconds))
    assert meter.watts_during(lambda: calls.append(meter.seconds), seconds=18) == 7
    assert meter.seconds == 25  # it began when the counter first moved, at 5, and four moves are 20 seconds
    assert len(calls) == 25 - 5  # a read before each wait for a move, and one behind each call


def test_a_machine_without_the_library_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(SettingError, match="libnvidia-ml"):
        PowerMeter(torch.device("cpu"))


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_seconds_must_be_more_than_none(seconds: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "energy", "--seconds", seconds]) == 2
    assert "--seconds is" in capfd.readouterr().err


def test_prices_are_of_bytes_and_of_products_in_their_format() -> None:
    """By hand: 22.8 GB of experts in FP8 and 11.7 * 10^12 operations of 16 canvases."""
    config = preset("26b-a4b")
    experts = step_components(config, quantization="fp8", batch=16, context=1024)[0]
    assert PRICES.joules(experts) == pytest.approx(22.838e9 * 2e-10 + 11.69e12 * 5e-13, rel=1e-3)
    assert PRICES.joules(replace(experts, fp8=False)) == pytest.approx(22.838e9 * 2e-10 + 11.69e12 * 1e-12, rel=1e-3)
    assert PRICES.least_ms(30.0) == pytest.approx(50.0)


def test_every_operation_counts_as_often_as_the_model_has_its_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "PowerMeter", lambda device: None)
    monkeypatch.setattr(energy, "steady_draw", lambda meter, run, seconds: Draw(seconds=1e-3, joules=0.5))
    config, case = replace(preset("nano"), moe_intermediate_size=64), StepCase(batch=2, context=40)
    found = measure_energy(config, torch.device("cpu"), quantization="fp8", case=case, seconds=1.0)
    times = {one.layer: one.times for one in found if one.name == "experts"}
    assert times == {layer: config.layer_types.count(f"{layer}_attention") for layer in ("sliding", "full")}
    assert [one.times for one in found if one.name == "predict"] == [1]
    parts = part_energies(found, step_components(config, quantization="fp8", batch=2, context=40), PRICES)
    assert sum(part.joules for part in parts) == pytest.approx(sum(one.joules for one in found))
    assert {part.name for part in parts if part.price is None} == {"norms, rotation, sampling"}


def test_an_operation_that_overwrites_its_input_gets_it_anew_and_pays_for_itself_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Soft embeddings turn logits into weights in place: a second run on these would be of something else."""
    given = torch.arange(4.0)
    operation = Operation("soft_embeddings", lambda logits: logits.mul_(2).sum().item(), (given,), {})
    results = []

    def draw(meter: PowerMeter, run: Callable[[], object], seconds: float) -> Draw:
        results.append((run(), run()))
        return Draw(seconds=3.0 if results[-1][0] else 1.0, joules=50.0 if results[-1][0] else 20.0, mhz=1500)

    monkeypatch.setattr(energy, "steady_draw", draw)
    assert energy._draw(Counter(), operation, 1.0) == Draw(seconds=2.0, joules=30.0, mhz=1500)
    assert results == [(12.0, 12.0), (None, None)]
    assert torch.equal(given, torch.arange(4.0))


@pytest.mark.parametrize("certain", [False, True])
def test_two_layers_leave_distributions_as_flat_as_thirty_do_unless_they_shall_be_sharp(certain: bool) -> None:
    """Else soft embeddings would always gather, and the dense product would never be measured."""
    gathers: list[torch.Tensor] = []

    def visit(operation: Operation, layer: str) -> None:
        logits, _, _, _, cap, temperatures, *_ = operation.args
        gathers.append(few_explain(tempered(logits.clone(), cap, temperatures).softmax(-1, dtype=torch.float32)))

    config = replace(preset("nano"), vocab_size=1024, hidden_size=2816)
    case = StepCase(batch=1, context=40, certain=certain)
    visit_operations(config, torch.device("cpu"), visit, quantization=None, case=case, only=["soft_embeddings"])
    (rows,) = gathers
    assert rows.all() if certain else not rows.any()

"""What a run remembers: losses in order, the bad one by its number, and the pace without its reports."""

import math

import pytest
import torch

from redraft.errors import TrainingError
from redraft.train.distributed import World
from redraft.train.history import Pace, StepLosses


def test_losses_are_numbers_once_they_are_settled() -> None:
    losses = StepLosses(0, World())
    for value in (3.0, 2.0):
        losses.add(torch.tensor(value))
    assert losses.values == []
    losses.settle()
    losses.settle()
    losses.add(torch.tensor(1.0))
    losses.settle()
    assert losses.values == [3.0, 2.0, 1.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_loss_is_named_by_its_number_in_the_whole_run(bad: float) -> None:
    losses = StepLosses(40, World())
    losses.add(torch.tensor(1.0))
    losses.settle()
    for value in (2.0, bad, 3.0):
        losses.add(torch.tensor(value))
    with pytest.raises(
        TrainingError, match=rf"loss of step 42 \(counted from 0\) is {bad}; the last checkpoint was kept"
    ):
        losses.settle()
    assert losses.values == [1.0, 2.0]


def test_the_pace_leaves_out_what_is_done_aside_but_expects_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("redraft.train.history.time.perf_counter", lambda: now)
    pace = Pace(10)
    assert pace.median == math.inf
    now += 8.0
    assert pace.lap(14) == 2.0
    with pace.aside("report", 2):
        now += 50.0
    now += 3.0
    with pace.aside("checkpoint", 100):  # in the middle of a lap
        now += 20.0
    now += 3.0
    assert pace.lap(16) == 3.0
    now += 1.0
    assert pace.lap(17) == 1.0
    assert pace.median == 2.0
    assert pace.expected == 2.0 + 50.0 / 2 + 20.0 / 100


def test_the_pace_expects_what_was_last(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("redraft.train.history.time.perf_counter", lambda: now)
    pace = Pace(0)
    for step in range(1, 12):
        now += 9.0 if step < 7 or step == 9 else 1.0  # one slow lap alone tells nothing
        pace.lap(step)
    assert pace.expected == 1.0

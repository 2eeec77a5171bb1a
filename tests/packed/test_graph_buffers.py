"""What the host writes for a forward, as the device sees it."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from running import ids, step_of

from redraft.config import FULL, SLIDING, LayerType
from redraft.constraints.pins import Allowed
from redraft.engine.graph_buffers import StepBuffers
from redraft.engine.work import Denoise, Encode, Segment
from redraft.kernels.triton.segments import DENOISE, ENCODE, SAMPLED_OUTSIDE, UNUSED
from redraft.kernels.triton.step import Rules

DISCARDED, ZEROS = 3, 4
TABLES: dict[LayerType, NDArray[np.int32]] = {
    FULL: np.array([[4, 1], [7, 2], [3, 8]], np.int32),
    SLIDING: np.array([[1, 4], [-1, 7], [8, 0]], np.int32),
}


def written(buffers: StepBuffers, *segments: Segment) -> dict[str, list[object]]:
    buffers.write(segments, TABLES, {})
    buffers.send()
    buffers.upload()
    return {name: view.tolist() for name, view in buffers.fields.views.items()}


@pytest.fixture
def buffers() -> StepBuffers:
    return StepBuffers(3, 16, 2, torch.device("cpu"), slots=3)


def told(step: Denoise, name: str) -> object:
    value = getattr(step, name)
    if name in ("eos_ids", "not_first"):
        return [*value, *[-1] * (8 - len(value))]
    return pytest.approx(value) if isinstance(value, float) else value


def test_rules_arrive_by_their_names(buffers: StepBuffers) -> None:
    first = step_of(1, 40, 0, seed=2**62 + 1, canvas_index=5, entropy_bound=0.3, stop_at_eos=True)
    later = step_of(0, 9, 3, length=12, stability_threshold=7, confidence_threshold=0.25, eos_ids=(), not_first=(9, 4))
    views = written(buffers, first, later)
    own = ("slot", "start", "length", "canvas_index", "step", "seed", "temperature", "not_first")
    for index, step in enumerate((first, later)):
        for name in (*own, *Rules.__slots__):
            assert views[name][index] == told(step, name), name
    assert views["kind"] == [DENOISE, DENOISE, UNUSED]
    assert views["soft_from"] == [ZEROS, 0, ZEROS]
    assert views["soft_to"] == [1, 0, DISCARDED]
    assert views[FULL][:2] == [[7, 2], [4, 1]]
    assert views[SLIDING][:2] == [[-1, 7], [1, 4]]


def test_a_step_is_captured_over_segments_that_nobody_uses(buffers: StepBuffers) -> None:
    buffers.upload()
    views = {name: view.tolist() for name, view in buffers.fields.views.items()}
    assert views["kind"] == [UNUSED] * 3
    assert views["slot"] == views["soft_to"] == [DISCARDED] * 3
    assert views["soft_from"] == [ZEROS] * 3


def test_what_is_written_while_a_step_runs_is_sent_with_the_next(buffers: StepBuffers) -> None:
    buffers.write([step_of(1, 40, 0)], TABLES, {})
    buffers.send()
    buffers.write([step_of(2, 99, 5)], TABLES, {})
    buffers.upload()
    assert buffers.fields.views["step"][0] == 0
    buffers.send()
    buffers.upload()
    assert buffers.fields.views["step"][0] == 5


def test_a_forward_leaves_nothing_to_the_next(buffers: StepBuffers) -> None:
    last = step_of(1, 40, 5, constraint=Allowed(16, pins={2: 77}))
    assert last.last
    views = written(buffers, Encode(slot=0, start=16, token_ids=ids(1, 9)), last, step_of(2, 40, 3))
    assert views["kind"] == [ENCODE, SAMPLED_OUTSIDE, DENOISE]
    assert views["soft_to"] == [DISCARDED, DISCARDED, 2]
    assert views["want_soft"] == [0, 0, 1]
    assert views["tokens"][0][:9] == list(ids(1, 9))  # type: ignore[index]
    views = written(buffers, Encode(slot=2, start=0, token_ids=ids(2, 3)))
    assert views["kind"] == [ENCODE, UNUSED, UNUSED]
    assert (views["start"], views["length"], views["step"]) == ([0] * 3, [3, 0, 0], [0] * 3)
    assert views["slot"] == views["soft_to"] == [DISCARDED] * 3
    assert views["soft_from"] == [ZEROS] * 3

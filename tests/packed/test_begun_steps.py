"""Forwards whose first part begins while the one before them has yet to report."""

import numpy as np
import pytest
import torch
from running import ids, new_runner, step_of

from redraft.engine.graph_runner import GraphRunner
from redraft.engine.work import Encode
from redraft.model.packed.transformer import PackedTransformer


def begun(runner: GraphRunner) -> bool:
    return runner._prepared is not None and runner._prepared[1].step.has_begun


def with_prompt(packed: PackedTransformer, slots: int = 1) -> GraphRunner:
    runner = new_runner(packed)
    runner.run([Encode(slot=slot, start=0, token_ids=ids(slot, 20)) for slot in range(slots)])
    return runner


def pages(runner: GraphRunner) -> list[torch.Tensor]:
    (stored,) = runner.shared.pages.stored
    return [pool.clone() for pool in (*stored.keys, *stored.values)]


def released_unseen(runner: GraphRunner) -> bool:
    """Releases the first slot; whether nobody looked for numbers in its pages that are not finite."""
    values = runner.shared.pages.stored[0].values[0]
    values[1, 30] = np.nan
    return runner.release(0) and not values.isfinite().all()


def test_only_what_goes_on_begins_early(packed: PackedTransformer) -> None:
    runner = with_prompt(packed, 3)
    for segments in (1, 2, 3, 6):
        runner.bucket(segments)
    chunk = Encode(slot=1, start=20, token_ids=ids(5, 9))
    for work, early in (
        ([step_of(0, 20, 0)], False),
        ([step_of(0, 20, 1)], True),
        ([step_of(slot, 20, 2) for slot in range(3)], True),
        ([step_of(0, 20, 1), chunk], False),
    ):
        runner.prepare(work)
        assert begun(runner) == early
    runner.prepare(())
    assert not begun(runner)


def test_a_forward_that_has_begun_and_is_dropped_changes_no_result(packed: PackedTransformer) -> None:
    ahead, plainly = with_prompt(packed, 2), with_prompt(packed, 2)
    both = [[step_of(0, 20, step), step_of(1, 20, step)] for step in range(3)]
    one = [[step_of(0, 20, step)] for step in range(4)]
    expected = [plainly.run(work) for work in (both[0], both[1], one[2], both[2][1:], one[3])]
    results = [ahead.run(both[0], lambda: ahead.prepare(both[1]))]
    results.append(ahead.run(both[1], lambda: ahead.prepare(both[2])))
    assert begun(ahead)
    results.append(ahead.run(one[2], lambda: ahead.prepare(one[3])))
    assert begun(ahead)
    results.append(ahead.run(both[2][1:]))
    results.append(ahead.run(one[3]))
    assert results == expected


@pytest.mark.parametrize("step", range(5))
def test_a_canvas_that_has_converged_writes_no_keys_and_values(packed: PackedTransformer, step: int) -> None:
    """The device knows before the host that there is nothing to go on with."""
    runner = with_prompt(packed)
    for earlier in range(step):
        runner.run([step_of(0, 20, earlier)])
    before: list[torch.Tensor] = []

    def prepare() -> None:
        before.extend(pages(runner))
        runner.prepare([step_of(0, 20, step + 1)])

    (result,) = runner.run([step_of(0, 20, step, confidence_threshold=9.0, stability_threshold=0)], prepare)
    assert result.converged
    assert begun(runner)
    assert all(map(torch.equal, before, pages(runner)))
    assert released_unseen(runner)


def test_a_begun_forward_writes_the_first_layers_alone(packed: PackedTransformer) -> None:
    runner, before = with_prompt(packed), list[torch.Tensor]()

    def prepare() -> None:
        before.extend(pages(runner))
        runner.prepare([step_of(0, 20, 1)])

    (result,) = runner.run([step_of(0, 20, 0, confidence_threshold=0.0)], prepare)
    assert not result.converged
    layers = len(before) // 2
    changed = [number for number, pair in enumerate(zip(before, pages(runner), strict=True)) if not torch.equal(*pair)]
    assert changed == [0, layers]


def test_what_a_dropped_forward_has_written_is_cleaned_when_its_request_leaves(packed: PackedTransformer) -> None:
    """The last report said that everything was finite, but not what the next forward made of it."""
    runner = with_prompt(packed)
    values = runner.shared.pages.stored[0].values[0]
    (result,) = runner.run([step_of(0, 20, 0, confidence_threshold=0.0)], lambda: runner.prepare([step_of(0, 20, 1)]))
    assert np.isfinite(result.entropy).all()
    values[1, 30] = np.nan
    assert not runner.release(0)
    assert values.isfinite().all()


def test_a_forward_that_has_run_to_its_end_leaves_no_doubt(packed: PackedTransformer) -> None:
    runner = with_prompt(packed)
    steps = [[step_of(0, 20, step, confidence_threshold=0.0)] for step in range(2)]
    runner.run(steps[0], lambda: runner.prepare(steps[1]))
    runner.run(steps[1])
    assert released_unseen(runner)

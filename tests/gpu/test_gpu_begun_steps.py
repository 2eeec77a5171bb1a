"""On CUDA devices: steps whose first graph begins while the step before them has yet to report."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from stepping import CONFIG, FORMATS, by_gpus, packed, prompt, randomized, runner_of, step_of

from redraft.engine.work import Segment
from redraft.model import Transformer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def plain() -> Transformer:
    return randomized(CONFIG)


@by_gpus(1, 2, 4)
@FORMATS
def test_steps_that_began_early_equal_those_that_did_not(
    plain: Transformer, quantization: str | None, gpus: int
) -> None:
    """Also where another forward runs than has begun, and log-probabilities are computed after one has begun."""
    model, early = packed(plain, quantization, gpus=gpus), list[bool]()
    ahead, plainly = runner_of(model, graphs=True), runner_of(model, graphs=True)

    def prepare(work: Sequence[Segment]) -> None:
        ahead.prepare(work)
        early.append(ahead._prepared is not None and ahead._prepared[1].step.has_begun)

    for runner in (ahead, plainly):
        runner.run([*prompt(0, 600), *prompt(1, 700)])
    both = ((0, 600), (1, 700))
    works = [[replace(step_of(slot, at, step), logprobs=2, last=True) for slot, at in both] for step in range(8)]
    for number, (work, following) in enumerate(pairwise(works)):
        begins = partial(prepare, following if number % 3 else following[:1])
        assert ahead.run(work, begins) == plainly.run(work)
    assert sum(early) >= 4

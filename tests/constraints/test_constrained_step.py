"""A constrained step behind a model: looking only where there is a choice gives what looking everywhere does."""

from typing import Any

import pytest
import torch

from redraft.constraints import build
from redraft.constraints.answer import AutomatonCanvas
from redraft.diffusion.sampler import Prediction, predict, top_tokens
from redraft.llm import LLM
from redraft.model import Model
from redraft.text.tokenizer import Tokenizer

LENGTH = 24
CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.fixture(scope="module")
def model(random_llm: LLM) -> Model:
    return random_llm.model


def canvas(tokenizer: Tokenizer, **wanted: Any) -> AutomatonCanvas:
    constraint = build(tokenizer, **wanted)
    assert constraint is not None
    return constraint.begin().canvas(LENGTH, LENGTH)


def hidden_states(model: Model) -> torch.Tensor:
    return torch.randn(LENGTH, model.config.hidden_size, generator=torch.Generator().manual_seed(1))


def seen(model: Model, limit: AutomatonCanvas) -> Prediction:
    uniform = torch.rand(LENGTH, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    with torch.inference_mode():
        return predict(model, hidden_states(model), uniform, 0.6, limit, want_soft=True)


@pytest.mark.parametrize(
    "wanted",
    [{"regex": r"\d{4}-\d\d"}, {"choices": ["yes", "no"]}, {"choices": ["yes"]}, {"regex": "a+b", "pins": {0: "a"}}],
)
def test_few_tokens_are_as_good_as_all(
    model: Model, tokenizer: Tokenizer, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = canvas(tokenizer, **wanted)
    assert limit.tokens(CPU) is not None
    few = seen(model, limit)
    with monkeypatch.context() as patch:
        patch.setattr(type(limit), "tokens", lambda self, device: None)
        all_ = seen(model, limit)
    assert torch.equal(few.argmax, all_.argmax)
    assert torch.equal(few.candidate, all_.candidate)
    torch.testing.assert_close(few.entropy, all_.entropy, atol=1e-5, rtol=0)
    # A product's rounding follows the number of its columns: 2e-5 of a logit here.
    torch.testing.assert_close(few.soft, all_.soft, atol=5e-5, rtol=1e-4)
    with torch.inference_mode():  # the two most likely of all tokens, though fewer may be possible
        top = top_tokens(model, hidden_states(model), few.argmax, 0.6, limit, count=2)
    chosen, token_ids, logprobs = map(torch.tensor, (top.chosen, top.token_ids, top.logprobs))
    assert token_ids.shape == logprobs.shape == (LENGTH, 2)
    assert torch.isfinite(chosen).all()
    pinned = few.entropy == 0
    assert (chosen[pinned] > -1e-6).all()
    assert torch.equal(token_ids[pinned, 0], few.argmax[pinned])


def test_what_is_fixed_is_certain(model: Model, tokenizer: Tokenizer) -> None:
    limit = canvas(tokenizer, choices=["yes", "no"])
    rows = limit.free(LENGTH, CPU)
    assert rows is not None
    free = torch.zeros(LENGTH, dtype=torch.bool).index_fill(0, rows, True)
    found = seen(model, limit)
    held = limit.hold(torch.zeros(LENGTH, dtype=torch.long))
    assert torch.equal(found.argmax[~free], held[~free])
    assert torch.equal(found.candidate[~free], held[~free])
    assert (found.entropy[~free] == 0).all()
    assert found.soft is not None
    torch.testing.assert_close(found.soft[~free], model.embed(held[None])[0][~free])


def test_what_a_canvas_says_is_copied_to_a_device_once(tokenizer: Tokenizer) -> None:
    """Every copy of host memory makes the host wait for the device, and there are dozens of steps."""
    limit = canvas(tokenizer, regex=r"\d{4}-\d\d")
    rows, few = limit.free(LENGTH, META), limit.tokens(META)
    assert rows is not None
    assert few is not None
    assert limit.free(LENGTH, META) is rows
    assert limit.tokens(META) is few
    assert limit.hold(torch.zeros(LENGTH, dtype=torch.long, device=META)).device == META


def test_a_language_of_most_tokens_has_no_short_list(tokenizer: Tokenizer) -> None:
    assert canvas(tokenizer, regex=".*").tokens(CPU) is None


def test_answers_at_the_same_place_share_a_canvas(tokenizer: Tokenizer) -> None:
    constraint = build(tokenizer, regex="a+b")
    assert constraint is not None
    first = constraint.begin().canvas(LENGTH, 99)
    assert constraint.begin().canvas(LENGTH, 99) is first
    assert constraint.begin().canvas(LENGTH, 98) is not first
    further = constraint.begin()
    further.advance([tokenizer.encode("a")[0]] * LENGTH)
    assert further.canvas(LENGTH, 99) is not first

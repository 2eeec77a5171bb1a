"""Pins: tokens at their places in every step and in the answer."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from byte_fallback import byte_fallback
from redraft.constraints import build
from redraft.constraints.pins import Allowed
from redraft.diffusion.records import Commit, DenoiseStep
from redraft.errors import ConstraintError
from redraft.llm import LLM
from redraft.text.tokenizer import Tokenizer


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    places=st.dictionaries(st.integers(0, 60), st.sampled_from(["a", " the", "42", "é", "\n"]), min_size=1, max_size=6),
    seed=st.integers(0, 2**31),
)
def test_pins_never_move(random_llm: LLM, places: dict[int, str], seed: int) -> None:
    """At every step of every canvas: in the input, in the draft, certain and accepted; and in the answer."""
    pins = {place: token for place, text in places.items() for token in _one(random_llm, text)}
    wanted = {place: text for place, text in places.items() if place in pins and len(_one(random_llm, text)) == 1}
    records = list(random_llm.stream("Hi", pins=wanted, steps=3, seed=seed, max_tokens=64, canvas_length=16))
    written: list[int] = []
    for record in records:
        if isinstance(record, Commit):
            written += record.token_ids
            continue
        assert isinstance(record, DenoiseStep)
        for place, text in wanted.items():
            if record.canvas_index == place // 16:
                token = _one(random_llm, text)[0]
                assert record.canvas[place % 16] == record.argmax_canvas[place % 16] == token
                assert record.accepted[place % 16]
                assert record.entropy[place % 16] == pytest.approx(0, abs=1e-6)
    assert all(written[place] == _one(random_llm, text)[0] for place, text in wanted.items())


def test_every_step_of_a_canvas_reads_the_same_tables() -> None:
    """Making them anew would copy them to the device, and the host would wait for its last step."""
    limit, device = Allowed(16, pins={3: 7}, forbidden={0: (1, 106)}), torch.device("cpu")
    first, again = (limit.tables(device, 128) for _ in range(2))
    assert first[0] is again[0]
    assert first[1] is again[1]
    assert first[1].held.tolist() == [-1] * 3 + [7] + [-1] * 12
    assert Allowed(9, forbidden={4: (106, 1)}).tables(device, 128)[0] is first[0]


def test_a_pin_may_hold_the_character_that_a_vocabulary_writes_for_a_space() -> None:
    tokenizer = byte_fallback()
    constraint = build(tokenizer, pins={1: "a\u2581 b"})
    assert constraint is not None
    assert tokenizer.decode(constraint.pins.values()) == "a\u2581 b"


def test_pins_that_fit_no_answer_are_to_blame(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConstraintError, match="The pin at position 5 contradicts the rest") as refused:
        build(tokenizer, regex="a{3}", pins={5: "a"})
    assert refused.value.field == "pins"


def _one(llm: LLM, text: str) -> list[int]:
    return llm.tokenizer.encode(text, special=False)


@pytest.mark.parametrize("opened", ["thinking", "thought_open"])
def test_pins_cannot_count_past_a_thought(tokenizer: Tokenizer, opened: str) -> None:
    with pytest.raises(ConstraintError, match="pins count tokens from the start, where a thought may stand"):
        build(tokenizer, regex=".*", pins={0: "a"}, **{opened: True})
    assert build(tokenizer, regex=".*", text_pins={0: "a"}, **{opened: True}) is not None
    with pytest.raises(ConstraintError, match="thinking is 1; it must be True or False"):
        build(tokenizer, regex=".*", thinking=1)

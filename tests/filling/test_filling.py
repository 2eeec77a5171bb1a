"""`llm.fill` with random weights: given text stays byte for byte, every hole is written, every pass is counted."""

import re
from functools import partial

import pytest
import torch
from hard_texts import TEXTS, cuts, real_files
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from passes import watched_passes
from redraft.diffusion.causal import causal_scores
from redraft.diffusion.prefill import prefill
from redraft.diffusion.sampler import Distribution
from redraft.errors import PromptError, SettingError
from redraft.filling import FillResult, lengths
from redraft.filling.context import open_seam
from redraft.filling.hole import Hole, HoleConstraint
from redraft.filling.seams import Seams
from redraft.keywords import FillKeywords
from redraft.llm import LLM
from redraft.text.line_ends import with_newlines
from told import Told

QUICK: FillKeywords = {"max_tokens": 2, "steps": 1, "canvas_length": 16}


def check_exact(pieces: list[str], result: FillResult) -> None:
    """Pieces and fillings in turn are the whole text."""
    rest = result.full_text
    for piece, filling in zip(pieces, [*result.fillings, None], strict=True):
        assert rest.startswith(piece)
        rest = rest[len(piece) :]
        if filling is not None:
            assert rest.startswith(filling.text)
            rest = rest[len(filling.text) :]
    assert rest == ""
    assert len(result.offsets) == len(result.tokens)
    assert all(0 <= start <= end <= len(result.text) for start, end in result.offsets)


@pytest.mark.timeout(900)
def test_a_thousand_random_cuts_of_real_files_come_back_byte_exact(quick: LLM) -> None:
    for seed, (pieces, _) in enumerate(cuts(1000, 1, seed=1, texts=real_files())):
        result = quick.fill(pieces, seed=seed, length=1, steps=1, canvas_length=16)
        check_exact(pieces, result)
        assert result.full_text.encode().startswith(pieces[0].encode())
        assert result.full_text.encode().endswith(pieces[1].encode())


def test_several_holes(llm: LLM) -> None:
    for seed, (pieces, _) in enumerate(cuts(6, 3, seed=2)):
        result = llm.fill(pieces, seed=seed, **QUICK)
        assert len(result.fillings) == 3
        check_exact(pieces, result)
        assert result.text == "".join(filling.text for filling in result.fillings)


def test_marks_in_a_text(llm: LLM) -> None:
    result = llm.fill("a = <|fill|>\nb = <|fill|>\n", **QUICK)
    check_exact(["a = ", "\nb = ", "\n"], result)


def test_a_later_hole_sees_the_earlier_filling(llm: LLM) -> None:
    """Filled one after the other by hand, with the same canvas in view, it is the same text."""
    both = llm.fill(["x = 1\n", "\ny = 2\n", ""], seed=4, **QUICK)
    first = both.fillings[0].text
    assert both.fillings[1].text == llm.fill("x = 1\n" + first + "\ny = 2\n", "", seed=4, **QUICK).text


def test_a_length_can_be_given(llm: LLM) -> None:
    """Line ends are final tokens, so there is no seam that could add one."""
    assert llm.fill("x\n", "\ny", length=5, steps=1).lengths == (5,)
    assert len(llm.fill("x\n", "\ny", length=5, steps=1).token_ids) == 5


def test_the_hole_holds_no_special_tokens(llm: LLM) -> None:
    result = llm.fill("a", "b", max_tokens=6, seed=1, steps=2)
    assert not set(result.token_ids) & set(llm.tokenizer.special_ids.values())


def test_the_same_seed_is_the_same_filling(llm: LLM) -> None:
    first, again = (llm.fill("def f(x):\n    ", "\n", max_tokens=5, seed=3) for _ in range(2))
    assert first.to_dict() | {"seconds": 0} == again.to_dict() | {"seconds": 0}


def test_one_empty_side_is_fine_and_two_are_not(llm: LLM) -> None:
    assert llm.fill("x = ", "", max_tokens=2).full_text.startswith("x = ")
    assert llm.fill("", "\nx", max_tokens=2).full_text.endswith("\nx")
    with pytest.raises(PromptError, match="no text around the hole"):
        llm.fill("", "")


def test_a_text_that_is_not_unicode_is_refused_before_anything_is_filled(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(llm.model), "encode", lambda *given: pytest.fail("something was computed"))
    said = re.escape("text[2] holds a character that UTF-8 cannot express at index 1.")
    with pytest.raises(PromptError, match=said) as refused:
        llm.fill(["a = ", "\n" * 500, "b\ud800"], max_tokens=2)
    assert refused.value.field == "text[2]"


def test_something_is_written(llm: LLM) -> None:
    """At a seam the hole could hold given text alone, which every short text is likelier with."""
    for seed in range(6):
        assert llm.fill("retu", "n x", max_tokens=1, steps=1, seed=seed).text


def test_every_token_has_its_confidence_and_its_place(llm: LLM) -> None:
    filling = llm.fill("x = ", "\ny", max_tokens=5, seed=2).fillings[0]
    assert len(filling.tokens) == len(filling.offsets) == len(filling.token_ids)
    assert all(0 <= token.settled_step < filling.steps and token.entropy >= 0 for token in filling.tokens)
    assert filling.offsets[0][0] == 0
    assert filling.offsets[-1][1] == len(filling.text)
    assert [(token["start"], token["end"]) for token in filling.to_dict()["tokens"]] == list(filling.offsets)


def test_every_pass_is_counted(llm: LLM) -> None:
    """All four lengths go through both stages to the end, here, and are scored behind each if they have changed."""
    told = Told()
    result = llm.fill("x\n", "\ny", max_tokens=4, seed=2, on_record=told.append)
    records = told.steps
    assert result.lengths == (1, 2, 3, 4)
    assert {record.request_id for record in records} == set(range(4))
    assert len(records) + 4 + 2 <= result.forwards <= len(records) + 3 * 4 + 2  # the text before the hole in two parts
    assert llm.fill("x\n", "\ny", max_tokens=4, steps=1).forwards == 4 + 4 + 2
    last = {record.request_id: record.argmax_canvas[: len(result.token_ids)] for record in records}
    assert result.token_ids in last.values()


def test_all_passes_that_the_model_makes_are_counted(knowing: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = watched_passes(knowing, monkeypatch)
    for before, behind in (("x = retu", "n x"), ("x\n", "")):
        assert knowing.fill(before, behind, max_tokens=3, steps=2).forwards == passes()


class TestLimit:
    """At most `max_tokens` tokens hold text of a filling, though given text at its seams takes others."""

    @pytest.mark.parametrize(("before", "behind"), [("x = retu", "n x"), ("x = ", "foo)"), ("total", "(x)\n")])
    def test_it_is_kept_at_seams(self, llm: LLM, before: str, behind: str) -> None:
        for seed in range(8):
            for limit in ({"max_tokens": 2}, {"length": 2}, {"max_tokens": 4, "regex": "[a-z]+"}):
                filling = llm.fill(before, behind, seed=seed, steps=1, **limit).fillings[0]
                assert 1 <= len(filling.tokens) <= next(iter(limit.values()))
                assert all(start < end for start, end in filling.offsets)

    def test_what_only_repeats_given_text_is_not_told(self, llm: LLM) -> None:
        (whole,) = llm.tokenizer.encode("return")
        retu, n = llm.tokenizer.encode("retu"), llm.tokenizer.encode("n x")[:1]
        seams = Seams.of(llm.tokenizer)
        first, last = seams.before(retu)[len(retu) - 1], seams.behind(n)
        hole = Hole(tokenizer=llm.tokenizer, behind=(), first=first, last=last, most=1)
        middle = llm.tokenizer.encode("r")
        assert hole.holding([*retu, *middle, *n]) == range(len(retu), len(retu) + 1)
        assert hole.holding([whole, *n]) == range(0, 1)
        assert hole.holding([*retu, *n]) == range(0)
        assert hole.accepts([*retu, *middle, *n])
        assert not hole.accepts([whole, *middle, *n])


def test_bytes_that_are_no_text_are_never_written(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filling that is likelier loses to one that is text; where none is, only whole characters are written."""
    byte = next(id for id in range(llm.tokenizer.vocab_size) if llm.tokenizer.token_bytes(id) == b"\xff")
    hole = Hole(tokenizer=llm.tokenizer, behind=(), first=None, last=None)
    (letter,) = llm.tokenizer.encode("é")
    assert not hole.accepts([letter, byte])
    assert hole.text([letter, byte, letter]) == "éé"
    assert hole.offsets([letter, byte, letter]) == ((0, 1), (1, 1), (1, 2))
    likes = partial(lengths.judge, prior=lambda tokens: 1e6 * (byte in tokens))
    monkeypatch.setattr(lengths, "judge", lambda context, candidates, prior: likes(context, candidates))
    restrict = HoleConstraint.restrict

    def tempted(self: HoleConstraint, logits: torch.Tensor) -> Distribution:
        if len(logits) > 1:
            logits[0, byte] = 1e4
        return restrict(self, logits)

    monkeypatch.setattr(HoleConstraint, "restrict", tempted)
    found = llm.fill("x\n", "\ny", max_tokens=4, steps=2)
    assert found.lengths == (1, 2, 3, 4)
    assert len(found.token_ids) == 1
    assert "\ufffd" not in llm.fill("x\n", "\ny", length=3, steps=2).full_text


def test_a_draft_that_may_be_written_is_finished_before_others(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """However unlikely it is; where all but one of 20 are no text, the others do not take its place."""
    monkeypatch.setattr(Hole, "accepts", lambda self, ids: len(ids) == 20)
    likes = partial(lengths.judge, prior=lambda tokens: -1e6 * len(tokens))
    monkeypatch.setattr(lengths, "judge", lambda context, candidates, prior: likes(context, candidates))
    told = Told()
    found = llm.fill("x\n", "\ny", max_tokens=20, canvas_length=32, steps=4, on_record=told.append)
    assert len(found.token_ids) == 20
    assert found.lengths == (1, 2, 3, 4, 20)
    assert found.steps == 1 + max(record.step for record in told.steps if record.request_id == 0) > 1


class TestLineEnds:
    def test_new_lines_end_as_the_given_ones(self, llm: LLM) -> None:
        for end in ("\n", "\r\n", "\r"):
            filling = llm.fill(f"a = 1{end}", f"{end}b", regex="c\n\nd", max_tokens=8, steps=1).fillings[0]
            assert filling.text == f"c{end}{end}d"
            assert filling.offsets[-1][1] == len(filling.text)

    def test_a_later_hole_has_those_of_the_whole_text(self, llm: LLM) -> None:
        pieces = ["a\r\n", "b", "c"]
        result = llm.fill(pieces, choices=["\n"], max_tokens=3, steps=1)
        check_exact(pieces, result)
        assert result.full_text == "a\r\n\r\nb\r\nc"

    def test_the_model_reads_newlines(self, llm: LLM) -> None:
        texts = ["def f(x):\n    return ", "\nx = 1\n"]
        one, other = (llm.fill([text.replace("\n", end) for text in texts], **QUICK) for end in ("\n", "\r\n"))
        assert one.text.replace("\n", "\r\n") == other.text
        assert one.tokens == other.tokens


@hypothesis_settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(cut=st.sampled_from(list(cuts(200, 2, seed=6))), seed=st.integers(0, 2**31))
def test_pins_never_move(quick: LLM, cut: tuple[list[str], list[str]], seed: int) -> None:
    """At every step of every canvas of two holes: in the input, in the draft, certain and accepted."""
    pieces, told = [with_newlines(piece) for piece in cut[0]], Told()
    quick.fill(pieces, max_tokens=3, seed=seed, steps=3, on_record=told.append)
    behind = "".join(pieces[1:]).encode()
    held = dict[int, dict[int, int]]()
    for record in told.steps:
        if record.step == 0:
            # A place of the hole that only one token can take is certain too, but begins as noise.
            certain = [at for at, nats in enumerate(record.entropy) if nats == 0 and record.accepted[at]]
            pinned = [at for at in certain if record.canvas[at] == record.argmax_canvas[at]]
            held[record.request_id] = {at: record.canvas[at] for at in pinned}
            given = [token for token in held[record.request_id].values() if token != quick.tokenizer.eos_id]
            assert len(given) >= min(3, len(quick.tokenizer.encode(pieces[-1], special=False)) - 1)
            # A seam that only one token can hold is certain as well, at either end of the hole.
            assert any(quick.tokenizer.decode_bytes(given[own:]) in behind for own in range(3))
        for at, token in held[record.request_id].items():
            assert record.canvas[at] == record.argmax_canvas[at] == token
            assert record.accepted[at]
            assert record.entropy[at] == 0


def test_long_sides_are_seen_in_part_and_kept_whole(llm: LLM) -> None:
    prefix, suffix = TEXTS[0] * 20, TEXTS[1] * 20
    result = llm.fill(prefix, suffix, **QUICK)
    check_exact([prefix, suffix], result)
    assert result.fillings[0].before < len(llm.tokenizer.encode(prefix))
    assert result.fillings[0].behind == 16 - len(result.tokens)


def test_what_was_seen_is_given_text_alone(llm: LLM) -> None:
    """Neither the token that opens every prompt, nor a later hole, nor the end that fills a canvas up."""
    first, second = llm.fill(["", "\n\n", "\n\n"], **QUICK).fillings
    given = len(llm.tokenizer.encode("\n\n"))
    assert (first.before, first.behind) == (0, 2 * given)
    assert second.before == len(llm.tokenizer.encode(first.text + "\n\n", special=False))
    assert second.behind == given


def test_scores_are_those_of_each_text_alone(llm: LLM) -> None:
    """Scored together on a copy of the prefix that is longer than the window, and once more from the start."""
    prefix = [2, *range(40, 100)]
    cache = llm.model.new_cache(1, 100)
    last = prefill(llm.model, cache, [prefix])
    texts = [[200, 201, 202], [*range(210, 226)], [230]]
    together = causal_scores(llm.model, cache.copy([0, 0, 0]), last.expand(3, -1), texts)
    for text, scores in zip(texts, together, strict=True):
        with torch.inference_mode():
            hidden = llm.model.encode(torch.tensor([[*prefix, *text]]), llm.model.new_cache(1, 100))[0]
            logprobs = llm.model.logits(hidden[len(prefix) - 1 : -1]).log_softmax(-1)
        assert scores == pytest.approx(logprobs.gather(1, torch.tensor(text)[:, None])[:, 0].tolist(), rel=1e-4)
    assert cache.lengths == [len(prefix)]


def test_the_seam_is_opened_where_the_causal_pass_finds_it_likeliest(llm: LLM) -> None:
    """The cache then holds exactly the tokens that stay."""
    ids = [2, *llm.tokenizer.encode("x\n    retu")]
    kept, seam, cache, last, _ = open_seam(llm.model, Seams.of(llm.tokenizer), ids, 4)
    assert seam is not None
    assert cache.lengths == [kept]
    assert b"".join(map(llm.tokenizer.token_bytes, ids[kept:])) == seam.text
    alone = llm.model.new_cache(1, 100)
    torch.testing.assert_close(prefill(llm.model, alone, [ids[:kept]]), last)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": True}, "max_tokens is True"),
        ({"max_tokens": 300, "canvas_length": 512}, "may have 1 to 256 tokens"),
        ({"max_tokens": 20, "canvas_length": 16}, "is 20; on a canvas of 16 a filling may have 1 to 15 tokens"),
        ({"max_tokens": 200, "canvas_length": 500}, "leaves no room in the context of 256"),
        ({"length": 0}, "length is 0"),
        ({"length": 3, "max_tokens": 4}, "both given"),
        ({"steps": 0}, "steps is 0"),
        ({"temperature": 1}, "Unknown setting 'temperature'; known settings are max_tokens, steps,.* regex,.* length"),
        ({"lenght": 1}, "Unknown setting 'lenght'; did you mean 'length'[?] Known settings are"),
        ({"strength": 1}, r"Unknown setting 'strength'; known settings are (?!.*\b(stop|strength|logprobs)\b)"),
        ({"stop": ["\n"]}, "stop is a setting for answers"),
        ({"logprobs": 0}, "logprobs is a setting for answers"),
        ({"preset": "fast", "fit_canvas": True}, "fit_canvas is a setting for answers"),
    ],
)
def test_impossible_holes(llm: LLM, settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        llm.fill("a", "b", **settings)

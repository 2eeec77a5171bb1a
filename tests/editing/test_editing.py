"""`llm.edit` and `llm.next_edit` with random weights: nothing outside the span changes, whatever is written."""

import random
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import redraft
from passes import watched_passes
from random_model import write_random_model
from redraft.diffusion.prefill import prefill
from redraft.editing import following
from redraft.editing.api import edit
from redraft.editing.drafts import DOUBT, drafts_of, keeping, mending
from redraft.editing.following import core, edits_between, line_doubts, occurrences
from redraft.editing.spans import line_span
from redraft.errors import ConstraintError, PromptError, SettingError
from redraft.filling.hole import Hole
from redraft.interruption import interruptible
from redraft.keywords import EditKeywords
from redraft.llm import LLM
from told import Told

TEXTS = [
    "\ufeffimport os\r\nimport sys\r\n\r\ndef main():\r\n\tprint(sys.argv[1])\r\n",
    "Straße, naïve café, Русский, 日本語.\n🙂 👩‍👩‍👧‍👦 🇩🇪\nno end",
    "def add(a, b):\n    return a + b\n\n\ndef mul(a, b):\n    return a * b\n",
]
QUICK: EditKeywords = {"steps": 1, "max_tokens": 2, "strength": 1.0}


def check_outside(text: str, span: tuple[int, int], result: redraft.EditResult) -> None:
    start, end = span
    assert result.full_text == text[:start] + result.text + text[end:]
    assert result.full_text.encode().startswith(text[:start].encode())
    assert result.full_text.encode().endswith(text[end:].encode())
    assert result.old == text[start:end]


@pytest.mark.timeout(900)
def test_a_thousand_random_spans_change_nothing_outside(quick: LLM) -> None:
    """With an instruction every fiftieth time: reading it is what takes long."""
    rng = random.Random(7)
    for seed in range(1000):
        text = rng.choice(TEXTS)
        start, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        span = (start, min(end, start + 25))
        given: dict[str, Any] = {"seed": seed, "steps": 1, "max_tokens": 1, "strength": 1.0, "canvas_length": 16}
        check_outside(text, span, quick.edit(text, span, None if seed % 50 else "Change it", **given))


def test_pins_never_move(llm: LLM) -> None:
    """At every step of every draft the text behind the span stands in the canvas as it is."""
    told = Told()
    text = TEXTS[2]
    span = line_span(text, 2, 2)
    llm.edit(text, span, "Change it", steps=3, on_record=told.append)
    behind = tuple(llm.tokenizer.encode(text[span[1] :]))
    assert told.steps
    for record in told.steps:
        places = range(len(record.canvas))
        held = [at for at in places if record.canvas[at : at + 6] == record.argmax_canvas[at : at + 6] == behind[:6]]
        assert any(all(record.accepted[at : at + 6]) and not any(record.entropy[at : at + 6]) for at in held)


LONG = "first = 1\n" + "".join(f"value_{i} = {i}\n" for i in range(8)) + "last = 2"


def test_a_long_span_is_edited_in_parts(llm: LLM) -> None:
    span = line_span(LONG, 2, 9)
    told = Told()
    result = llm.edit(LONG, span, "Change it", steps=1, on_record=told.append)
    check_outside(LONG, span, result)
    assert result.steps > 2
    assert "".join(commit.text for commit in told.commits) == result.text
    parts = [record.canvas_index for record in told]
    assert parts == sorted(parts)
    assert set(parts) == set(range(len(told.commits)))
    assert result.text.encode().decode() == result.text
    check_places(result)


def check_places(result: redraft.EditResult) -> None:
    """Every token says which characters of the new span it covers, from the first to the last."""
    assert len(result.tokens) == len(result.offsets)
    assert result.offsets[0][0] == 0
    assert result.offsets[-1][1] == len(result.text)
    gaps = [result.text[one[1] : other[0]] for one, other in pairwise(result.offsets)]
    assert set(gaps) <= {"", "\n"}  # line ends between parts stay
    raw = result.to_dict()["tokens"]
    assert [(token["start"], token["end"]) for token in raw] == list(result.offsets)
    assert all(token["entropy"] >= 0 and token["settled_step"] >= 0 for token in raw)


class TestConstraints:
    def test_a_rename_is_done_whatever_the_model_says(self, llm: LLM) -> None:
        text, span = TEXTS[2], line_span(TEXTS[2], 2, 2)
        result = llm.edit(text, span, "Rename a to x", must_include=["x"], forbidden=["a", "\n"], steps=2)
        check_outside(text, span, result)
        assert "x" in result.text
        assert not set("a\n") & set(result.text)
        check_places(result)

    def test_the_span_alone_obeys(self, llm: LLM) -> None:
        """It begins and ends inside tokens."""
        text = "the value is 1234567\n"
        result = llm.edit(text, (6, 10), choices=["lley", "rious"], steps=1)
        check_outside(text, (6, 10), result)
        assert result.text in ("lley", "rious")

    def test_the_given_parts_of_a_long_token_have_room_beside_the_span(self, llm: LLM) -> None:
        """Both take up to four tokens once they do not make one together."""
        text = "raise NotImplementedError\n"
        assert len(llm.tokenizer.encode(" NotImplementedError")) == 1
        for at in range(6, 25):
            result = llm.edit(text, (at, at), choices=["Q!Q"], max_tokens=3, steps=1)
            assert result.full_text == text[:at] + "Q!Q" + text[at:]

    def test_a_span_of_several_parts_cannot_obey(self, llm: LLM) -> None:
        with pytest.raises(ConstraintError, match=r"edited in . parts, to which forbidden cannot be applied"):
            llm.edit(LONG, line_span(LONG, 2, 9), "x", forbidden=["a"])

    def test_what_is_too_long_is_refused_before_any_compute(self, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(type(llm.model), "encode", None)
        with pytest.raises(ConstraintError, match="at most 2 are allowed here"):
            llm.edit("abc", (0, 1), regex="[a-z]{90}", max_tokens=2)


def test_what_constrains_nothing_changes_nothing(llm: LLM) -> None:
    """Neither that an edit may have several parts, nor that a text without slips stays."""
    text = "count = 1\n" * 20
    plain, strict = (llm.edit(text, (0, len(text)), **QUICK, **given) for given in ({}, {"strict": True}))
    assert plain.to_dict() | {"seconds": 0} == strict.to_dict() | {"seconds": 0}


def test_a_part_that_does_not_fit_is_refused_before_any_other_is_edited(
    quick: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instructions that get shorter until every part fits: some leave room for the first, short part alone."""
    text, passes = "a = 1\n" + "xq = yq + zq * wq - vq\n" * 3, list[int]()
    encode = type(quick.model).encode
    monkeypatch.setattr(type(quick.model), "encode", lambda self, *given: passes.append(1) or encode(self, *given))
    for words in range(130, 0, -1):
        try:
            quick.edit(text, (0, len(text)), "please " * words, steps=1)
        except PromptError:
            assert not passes
        else:
            break
    assert 0 < words < 130


def test_what_has_no_better_text_stays(llm: LLM) -> None:
    """Random weights doubt every token, and none brings enough to be changed."""
    span = line_span(TEXTS[2], 2, 2)
    result = llm.edit(TEXTS[2], span, steps=2)
    assert (result.text, result.full_text, result.changed) == (result.old, TEXTS[2], 0)
    assert result.tokens == result.offsets == ()
    assert llm.edit(TEXTS[2], span, steps=2, strength=1.0).tokens


def test_without_an_instruction_slips_are_repaired(tiny: LLM) -> None:
    """The embedded model reads the text alone."""
    llm = tiny
    text = "def total(items):\n    count = 0\n    for item in itms:\n        count += item\n    return count\n"
    span = line_span(text, 3, 3)
    result = llm.edit(text, span)
    check_outside(text, span, result)
    assert result.text == "    for item in items:"
    assert llm.edit("import os\n\n\ndef f(x):\n    return x\n", (10, 10)).text == ""  # a blank line fits
    assert llm.edit("x = foo(1, 2\ny = 3\n", (12, 12)).text == ")"
    example = (Path(__file__).parents[2] / "examples" / "slip.py").read_text()  # as the README has it
    assert llm.edit(example, line_span(example, 13, 14)).text.splitlines() == [
        "        self.x = x",
        "        self.y = y",
    ]


def test_a_repair_leaves_other_characters_as_they_are(tiny: LLM) -> None:
    """Each of them is several tokens, all of which the model doubts."""
    for line in ("print('日本', '語')", "# naïve \u2013 “café” 🙂", "s = '€ 5 \u2013 ½'"):
        text = f"import sys\n{line}\nx = 1\n"
        assert tiny.edit(text, line_span(text, 2, 2)).text == line


def test_all_passes_that_the_model_makes_are_counted(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    passes, text = watched_passes(llm, monkeypatch), TestNextEdit.TEXT
    span = line_span(text, 2, 3)
    for instruction, strength in ((None, 0.0), (None, 1.0), ("Change it", 0.0)):
        assert llm.edit(text, span, instruction, strength=strength, steps=2).forwards == passes()
    for recent in ([("old", "new")], [("total = 0", "count = 0"), ("foo", "items")]):
        found = llm.next_edit(text, 12, recent, steps=1)
        assert found is not None
        assert found.edit.forwards == passes()


def test_bytes_that_are_no_text_are_never_written(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is nothing else, the old text stays."""
    monkeypatch.setattr(Hole, "accepts", lambda self, ids: False)
    result = llm.edit(TEXTS[2], (4, 9), "Change it", strength=1.0, steps=1)
    assert (result.text, result.tokens) == (result.old, ())


def test_no_edit_has_more_tokens_than_it_may(llm: LLM) -> None:
    """Whether the span begins and ends inside tokens or not."""
    rng, text = random.Random(5), TEXTS[2]
    for seed in range(12):
        start, limit = rng.randrange(len(text) - 8), rng.randint(1, 3)
        given: dict[str, Any] = {"seed": seed, "steps": 1, "strength": 1.0, "max_tokens": limit}
        result = llm.edit(text, (start, start + rng.randint(1, 8)), "Change it", **given)
        assert len(result.tokens) <= limit


def test_what_is_reported_adds_up(llm: LLM) -> None:
    text = TEXTS[2]
    result = llm.edit(text, line_span(text, 2, 2), "Change it", steps=2, seed=1)
    assert 0 <= result.changed <= 1
    assert (result.changed == 0) == (result.old == result.text) == (result.diff("f") == "")
    raw = result.to_dict()
    assert raw["full_text"] == result.full_text
    assert len(raw["tokens"]) == len(result.tokens)
    assert all(0 <= token.settled_step < 2 for token in result.tokens)
    again = llm.edit(text, line_span(text, 2, 2), "Change it", steps=2, seed=1)
    assert again.to_dict() | {"seconds": 0} == raw | {"seconds": 0}


def test_an_empty_span_is_an_insertion(llm: LLM) -> None:
    result = llm.edit("one\ntwo\n", (4, 4), "Insert a line", **QUICK)
    check_outside("one\ntwo\n", (4, 4), result)
    assert result.old == ""


@pytest.mark.parametrize(
    ("text", "span", "instruction", "settings", "error", "sentence"),
    [
        ("", (0, 0), "x", {}, PromptError, "no text"),
        ("abc", (0, 9), "x", {}, PromptError, "has 3 characters"),
        ("abc", (0, 1), "", {}, PromptError, "instruction is empty"),
        ("abc", (0, 1), 3, {}, PromptError, "instruction is 3; it must be a string"),
        (3, (0, 1), "x", {}, PromptError, "text is 3; it must be a string"),
        ("abc", (0, 1), None, {"canvas_length": 512}, SettingError, "leaves no room in the context of 512"),
        ("abc", (0, 1), "x", {"strength": 1.5}, SettingError, "strength is 1.5"),
        ("abc", (0, 1), "x", {"strength": True}, SettingError, "strength is True"),
        ("abc", (0, 1), "x", {"max_tokens": 0}, SettingError, "max_tokens is 0"),
        ("abc", (0, 1), "x", {"max_tokens": 19}, SettingError, "it must be from 1 to 18"),
        ("abc", (0, 1), "x", {"steps": 0}, SettingError, "steps is 0"),
        (
            "abc",
            (0, 1),
            "x",
            {"tone": "formal"},
            SettingError,
            r"Unknown setting 'tone'; known .*strength, on_progress\.$",
        ),
        (
            "abc",
            (0, 1),
            "x",
            {"strenght": 1},
            SettingError,
            "'strenght'; did you mean 'strength'[?] Known",
        ),
        ("abc", (0, 1), "x", {"length": 1}, SettingError, r"Unknown setting 'length'; (?!.*\b(length|stop|tools)\b)"),
        ("abc", (0, 1), "x", {"latency_budget_ms": 9}, SettingError, "latency_budget_ms is a setting for answers"),
        ("abc", (0, 1), "please " * 600, {}, PromptError, "do not fit the context of 512"),
    ],
)
def test_bad_input(
    llm: LLM, text: Any, span: tuple[int, int], instruction: Any, settings: dict, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        llm.edit(text, span, instruction, **settings)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(0, 1), st.integers(1, 40))
def test_drafts_keep_what_is_sure(sure: list[float], strength: float, longest: int) -> None:
    draft = list(range(100, 100 + len(sure)))
    drafts = drafts_of(draft, sure, strength, longest)
    assert all(1 <= len(one) <= longest for one in drafts)
    assert len(set(drafts)) == len(drafts)
    if len(draft) <= longest:
        same = drafts[0]
        assert len(same) == len(draft)
        kept = [p for p, token in zip(sure, same, strict=True) if token is not None]
        gone = [p for p, token in zip(sure, same, strict=True) if token is None]
        assert all(p >= DOUBT for p in kept)
        assert len(gone) >= strength * len(draft) - 0.01
        assert all(token in (None, own) for token, own in zip(same, draft, strict=True))


def test_any_strength_doubts_one_token_at_least() -> None:
    assert drafts_of([1, 2], [1.0, 0.999], 0.0004, 9)[0] == (1, None)


def test_full_strength_keeps_nothing() -> None:
    assert all(set(draft) == {None} for draft in drafts_of([1, 2, 3], [1.0, 1.0, 1.0], 1.0, 9))


def test_there_is_always_a_draft() -> None:
    assert drafts_of([1] * 10, [1.0] * 10, 0.0, 1) == [(None,)]


def test_every_changed_token_has_its_price() -> None:
    assert keeping([1, 2, 3], 2.0, [1, 2, 3]) == 0
    assert keeping([1, 2, 3], 2.0, [1, 9, 3]) == -2
    assert keeping([1, 2, 3], 2.0, [1, 2, 3, 4, 5]) == -4
    assert keeping([1, 2, 3], 0.0, [7]) == 0


def test_a_letter_is_cheap_and_a_word_is_dear() -> None:
    assert mending("same", 3.0, "same") == 0
    assert mending("fuctools", 3.0, "functools") == -3
    assert mending("buffre", 3.0, "buffer") == -6
    assert mending("fuctools", 3.0, ".pytools") == -27
    assert mending("fuctools", 0.0, "x") == 0
    assert mending("naïve", 3.0, "naive") == mending("naive", 3.0, "naïve") == -12  # two bytes
    assert mending("日本", 3.0, "日木") == -27
    assert mending("日本", 3.0, "a") == -3 * 36


class TestNextEdit:
    TEXT = "total = 0\nfor item in items:\n    count += item\nprint(count)\n"

    def test_a_replacement_comes_again_where_it_is_likelier(self, tiny: LLM) -> None:
        """The embedded model has seen that a name that was defined is the name that is used."""
        proposal = tiny.next_edit(self.TEXT, 10, [("count = 0", "total = 0")])
        assert proposal is not None
        assert proposal.reason == "repeat"
        assert (proposal.edit.old, proposal.edit.text) == ("count", "total")
        assert proposal.confidence > 0.5
        start, end = proposal.edit.span
        assert proposal.edit.full_text == self.TEXT[:start] + "total" + self.TEXT[end:]
        assert proposal.to_dict()["reason"] == "repeat"

    def test_what_was_replaced_already_is_left_alone(self, llm: LLM) -> None:
        proposal = llm.next_edit("x = 1 + 2\n", 0, [("1", "1 + 2")], steps=1)
        assert proposal is None or proposal.reason == "doubt"

    def test_nothing_is_due(self, llm: LLM) -> None:
        """The replaced text stands nowhere else, and no line can be doubted."""
        assert llm.next_edit("\n\n\n", 1, [("a", "b")]) is None

    def test_a_line_is_doubted_within_the_context(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What stands before has no room beside a canvas here."""
        llm = redraft.load(write_random_model(tmp_path, canvas=24, context=25), device="cpu", dtype="float32")
        read: list[int] = []

        def watched(model: Any, cache: Any, rows: list[list[int]]) -> Any:
            read.append(len(rows[0]))
            return prefill(model, cache, rows)

        monkeypatch.setattr(following, "prefill", watched)
        assert len(line_doubts(llm, self.TEXT, 12)) == 4
        assert read == [1] * 4

    def test_a_doubted_line_is_edited_and_nothing_else(self, llm: LLM) -> None:
        """A random network doubts every line; without recent edits only a slip would be put right."""
        doubts = line_doubts(llm, self.TEXT, 12)
        assert [self.TEXT[slice(*span)] for span in doubts] == self.TEXT.split("\n")[:-1]
        assert llm.next_edit(self.TEXT, 12, [], steps=1) is None
        proposal = llm.next_edit(self.TEXT, 12, [("old", "new")], steps=1)
        assert proposal is not None
        assert proposal.reason == "doubt"
        assert proposal.edit.span == max(doubts, key=doubts.__getitem__)
        check_outside(self.TEXT, proposal.edit.span, proposal.edit)

    def test_of_many_recent_edits_the_latest_that_fit_are_told(self, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
        told: list[str | None] = []

        def watched(front: Any, text: str, span: Any, instruction: str | None, **given: Any) -> Any:
            told.append(instruction)
            return edit(front, text, span, instruction, **given)

        monkeypatch.setattr(following, "edit", watched)
        small, large = [(f"old{i}", f"new{i}") for i in range(99)], ("", "x = 1\n" * 500)
        proposal = llm.next_edit(self.TEXT, 12, [*small, large], steps=1)
        assert proposal is not None
        assert proposal.reason == "doubt"
        assert told[0] is not None
        assert told[0].endswith("'old97' became 'new97'\n- 'old98' became 'new98'\nMake the next one.")
        assert "'old0'" not in told[0]
        assert len(llm.tokenizer.encode(told[0])) < 512 / 4 + 20
        llm.next_edit(self.TEXT, 12, [large], steps=1)
        assert told[1] is None

    @pytest.mark.parametrize(
        ("old", "new", "expected"),
        [
            ("count = 0", "total = 0", ("count", "total")),
            ("get_item(x)", "get_items(x)", ("get_item", "get_items")),
            ("a", "b", ("a", "b")),
            ("same", "same", ("", "")),
            ("x = 1", "x = 1 + 2", ("1", "1 + 2")),
        ],
    )
    def test_what_really_was_replaced(self, old: str, new: str, expected: tuple[str, str]) -> None:
        assert core(old, new) == expected

    def test_recent_edits_are_found_in_two_texts(self) -> None:
        old = "a = 0\nfor b in c:\n    a += b\nprint(a)\n"
        new = "x = 0\nfor b in c:\n    x += b\n    y\nprint(a)\n"
        recent, cursor = edits_between(old, new)
        assert recent == [("a = 0\n", "x = 0\n"), ("    a += b\n", "    x += b\n    y\n")]
        assert new[:cursor].endswith("    y\n")
        assert edits_between(old, old) == ([], 0)
        many = "same\n" * 100_000  # an alignment of every line with every other would take hours
        assert edits_between(f"{many}a\n{many}", f"{many}b\n{many}") == ([("a\n", "b\n")], len(many) + 2)

    @pytest.mark.parametrize(
        ("text", "cursor", "recent", "sentence"),
        [
            ("", 0, [], "no text"),
            ("abc", 4, [], "has 3 characters"),
            ("abc", 0, [("a",)], "must be"),
            ("abc", 0, [("a", 1)], "must be"),
            ("abc", 0, [{"old": "a"}], "must be"),
            ("abc", 0, ["ab"], "must be"),
            ("abc", 0, [3], "must be"),
            ("abc", 0, [("a" * 9999, "b" * 9999, 0)], r"^.{0,199}must be a pair"),
            ("abc", 0, "ab", "must be a list"),
            ("abc", 0, None, "must be a list"),
        ],
    )
    def test_bad_input(self, llm: LLM, text: str, cursor: int, recent: list, sentence: str) -> None:
        with pytest.raises(PromptError, match=sentence):
            llm.next_edit(text, cursor, recent)

    @pytest.mark.parametrize(
        "wrong", [{"strength": 2}, {"max_tokens": 400}, {"stop": "x"}, {"tone": "formal"}, {"regex": "("}]
    )
    def test_settings_are_checked_whatever_is_found(self, llm: LLM, wrong: dict[str, Any]) -> None:
        for recent in ([("count = 0", "total = 0")], []):
            with pytest.raises(SettingError, match=next(iter(wrong))):
                llm.next_edit(self.TEXT, 10, recent, steps=1, **wrong)


@given(
    st.text("ab ", max_size=40), st.sampled_from(["a", "ab", "b a", "a "]), st.sampled_from(["", "aab", "a b a", "b"])
)
def test_occurrences_are_whole_words_outside_of_what_was_done(text: str, before: str, after: str) -> None:
    def whole(start: int, end: int) -> bool:
        return not (text[start - 1 : start].isalpha() and before[0].isalpha()) and not (
            text[end : end + 1].isalpha() and before[-1].isalpha()
        )

    spans, at = [], 0
    while (at := text.find(before, at)) >= 0:
        if whole(at, at + len(before)):
            spans.append((at, at + len(before)))
            at += len(before)
        else:
            at += 1
    done = [(m.start(), m.end()) for m in re.finditer(re.escape(after), text)] if after else []
    due = [(a, b) for a, b in spans if not any(start <= a and b <= end for start, end in done)]
    assert occurrences(text, before, after, 0) == due[:8]


def test_marks_belong_to_the_letters_before_them() -> None:
    assert occurrences("cafe\u0301 cafe", "cafe", "tea", 0) == [(6, 10)]
    assert occurrences("हिन्दी हिन्द", "हिन्द", "x", 0) == [(7, 12)]
    assert core("हिन्दी", "हिन्दा") == ("हिन्दी", "हिन्दा")


def test_a_replaced_word_is_found_at_once_in_a_long_text() -> None:
    text = "name other " * 200_000  # comparing all pairs would take hours
    found = occurrences(text, "name", "other", 1_100_000)
    assert sorted(found) == [(at, at + 4) for at in range(1_099_956, 1_100_044, 11)]


def test_the_smallest_canvas_has_room_for_everything(llm: LLM) -> None:
    text, span = "The quick brown fox.\nIt jumps.\n", (4, 9)
    check_outside(text, span, llm.edit(text, span, "make it slow", seed=1, steps=2, canvas_length=16))
    assert llm.fill("The quick ", " fox.\n" * 9, seed=1, steps=2, canvas_length=16).full_text.endswith(" fox.\n" * 9)


def test_a_long_span_lets_others_in_and_can_be_ended_before_its_first_forward(llm: LLM) -> None:
    text, turns = "a = 1\n" * 300, []

    class Ended(Exception):
        pass

    def check() -> None:
        turns.append(1)
        if len(turns) == 20:
            raise Ended

    with interruptible(check), pytest.raises(Ended):
        llm.edit(text, (0, len(text)), "rename a")
    assert len(turns) == 20

"""The text of an answer as it grows: however the canvases cut it, text and tokens add up, and telling them is cheap."""

import random
from collections.abc import Sequence
from importlib.resources import files

import pytest

from redraft.diffusion.records import FinishReason
from redraft.engine.transcript import Transcript
from redraft.text.tokenizer import Tokenizer
from redraft.text.tools import CHANNEL_OPEN, EMPTY_THOUGHT


class Counting:
    """A decoder of one letter per token that counts the tokens that it was given."""

    def __init__(self) -> None:
        self.decoded = 0
        self.special_ids: dict[str, int] = {}

    def decode(self, token_ids: Sequence[int]) -> str:
        self.decoded += len(token_ids)
        return "".join(map(chr, token_ids))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(str(files("redraft") / "assets" / "tiny"))


@pytest.mark.parametrize("letter", ["x", "s"])  # without and with an ending that is held back at every canvas
def test_a_stop_string_costs_a_long_answer_little(letter: str) -> None:
    decoder = Counting()
    transcript = Transcript(decoder, ("stop",))
    canvases = 32
    for _ in range(canvases):
        transcript.add([ord(letter)] * 128, None)
    transcript.add([ord(char) for char in "stop"], None)
    assert transcript.text == letter * 128 * canvases
    assert decoder.decoded < 20 * 128 * canvases * canvases / 2


def test_tokens_of_half_a_character_wait_for_the_rest_which_may_end_the_answer(tokenizer: Tokenizer) -> None:
    first, *rest = tokenizer.encode("👍")
    transcript = Transcript(tokenizer, ("👍",))
    for tokens in ([first], rest):
        assert transcript.add(tokens, None).token_ids == ()
    assert transcript.tokens == []


def test_a_thought_that_is_left_out_counts_with_the_text_behind_it(tokenizer: Tokenizer) -> None:
    transcript = Transcript(tokenizer, (" STOP",))
    ids = tokenizer.encode(EMPTY_THOUGHT + "Hi there STOP now")
    told = transcript.add(ids, None)
    assert told.text == "Hi there"
    assert tokenizer.decode(told.token_ids).startswith(EMPTY_THOUGHT + "Hi there")


@pytest.mark.parametrize("finish_reason", [None, "stop"])
def test_text_that_only_spells_a_thought_is_an_answer(tokenizer: Tokenizer, finish_reason: FinishReason | None) -> None:
    spelled, transcript = EMPTY_THOUGHT + "Hi", Transcript(tokenizer, ("STOP",))
    told = transcript.add(tokenizer.encode(spelled, special=False), finish_reason)
    assert (told.text, tokenizer.decode(told.token_ids)) == (spelled, spelled)
    half = [tokenizer.special_ids[CHANNEL_OPEN], *tokenizer.encode(spelled.removeprefix(CHANNEL_OPEN), special=False)]
    assert Transcript(tokenizer, ()).add(half, finish_reason).text == spelled


def test_what_is_told_adds_up_however_the_canvases_cut(tokenizer: Tokenizer) -> None:
    dice = random.Random(0)
    alphabet = ["a", " b", "\n", "ab", "é", "語", "🙂", "👩‍👩‍👧", "\ufffd", "aab"]
    for _ in range(300):
        text = "".join(dice.choices(alphabet, k=dice.randrange(1, 30)))
        stop = tuple("".join(dice.choices(alphabet, k=dice.randrange(1, 4))) for _ in range(dice.randrange(3)))
        ids = [token for char in text for token in tokenizer.encode(char, special=False)]
        cuts = sorted(dice.choices(range(len(ids) + 1), k=dice.randrange(4)))
        transcript, told = Transcript(tokenizer, stop), []
        for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
            told.append(transcript.add(ids[start:end], "length" if end == len(ids) else None))
            if told[-1].finish_reason is not None:
                break
        places = [text.find(word) for word in stop if word in text]
        assert "".join(one.text for one in told) == transcript.text == (text[: min(places)] if places else text)
        assert [token for one in told for token in one.token_ids] == transcript.tokens == ids[: transcript.reported]
        assert tokenizer.decode(transcript.tokens).startswith(transcript.text)


@pytest.mark.parametrize("cut", range(7))
def test_of_stop_strings_that_overlap_the_same_one_ends_the_answer_wherever_a_canvas_ends(cut: int) -> None:
    transcript, text = Transcript(Counting(), ("bcd", "c")), "aabcde"
    for part in (text[:cut], text[cut:]):
        if transcript.stop_text is None:
            transcript.add([ord(char) for char in part], None)
    assert (transcript.text, transcript.stop_text) == ("aab", "c")


def test_as_much_is_held_back_as_any_stop_string_may_need() -> None:
    transcript = Transcript(Counting(), ("abcx", "cy"))
    assert transcript.add([ord(char) for char in "zabc"], None).text == "z"
    transcript.add([ord("x")], None)
    assert (transcript.text, transcript.stop_text) == ("z", "abcx")


CALL = '<|tool_call>call:f{a:<|"|>STOP<|"|>}<tool_call|>'


@pytest.mark.parametrize(
    ("text", "stop", "kept"),
    [
        (f"I look.{CALL}", "}", None),
        (f"I look.{CALL}", "tool_call", None),
        (f"I look.{CALL} So STOP it", "STOP", f"I look.{CALL} So "),
        (f"Stop<|tool_call>STOP<tool_call|>STOP {CALL}", "STOP", "Stop<|tool_call>STOP<tool_call|>"),
        ('a<|tool_call>call:f{a:<|"|>STOP<tool_call|>STOP', "STOP", None),
        (f"ST{CALL}OP", "STOP", None),
        ("<|channel>thought\nSTOP?<channel|>Yes, STOP.", "STOP", "<|channel>thought\nSTOP?<channel|>Yes, "),
        ("<|channel>thought\nSTOP is never closed", "STOP", None),
        ("done<|tool_response>STOP", "STOP", None),
        (EMPTY_THOUGHT + f"Hi {CALL}STOP", "STOP", f"Hi {CALL}"),
    ],
)
@pytest.mark.parametrize("width", [1, 3, 100])
def test_in_a_chat_only_content_holds_stop_strings(
    tokenizer: Tokenizer, text: str, stop: str, kept: str | None, width: int
) -> None:
    whole = text.removeprefix(EMPTY_THOUGHT)
    transcript, told = told_in_pieces(tokenizer, text, (stop,), width if whole == text else 100, chat=True)
    assert told == transcript.text == (whole if kept is None else kept)
    assert transcript.stop_text == (None if kept is None else stop)
    assert tokenizer.decode(transcript.tokens).removeprefix(EMPTY_THOUGHT).startswith(told)
    as_written, _ = told_in_pieces(tokenizer, text, (stop,), 100, chat=False)
    assert as_written.text == whole.partition(stop)[0]


def test_an_answer_that_begins_in_a_thought_has_no_content_before_its_end(tokenizer: Tokenizer) -> None:
    text = "STOP or not?<channel|>No STOP"
    transcript, told = told_in_pieces(tokenizer, text, ("STOP",), 2, chat=True, reasoning_open=True)
    assert told == transcript.text == "STOP or not?<channel|>No "


def test_a_call_that_is_only_spelled_is_content(tokenizer: Tokenizer) -> None:
    transcript = Transcript(tokenizer, ("STOP",), chat=True)
    transcript.add(tokenizer.encode(CALL, special=False), "length")
    assert transcript.text == CALL.partition("STOP")[0]


def told_in_pieces(
    tokenizer: Tokenizer, text: str, stop: tuple[str, ...], width: int, **how: bool
) -> tuple[Transcript, str]:
    """The transcript of an answer told some tokens at a time, and the text it told."""
    transcript, told, ids = Transcript(tokenizer, stop, **how), "", tokenizer.encode(text)
    for first in range(0, len(ids), width):
        delta = transcript.add(ids[first : first + width], "length" if first + width >= len(ids) else None)
        told += delta.text
        if delta.finish_reason is not None:
            break
    return transcript, told

"""Marks in an answer's text: at special tokens alone, however the answer is cut into pieces."""

from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from redraft.engine.transcript import Transcript
from redraft.model.folders import resolve_folder
from redraft.text.marks import MARK, STRINGS, Marker, mark_all, unmarked
from redraft.text.tokenizer import Tokenizer
from redraft.text.tools import EMPTY_THOUGHT

TOKENIZER = Tokenizer.from_folder(resolve_folder("tiny"))
PIECES = st.tuples(st.sampled_from([*STRINGS, "word", " ", "é", "👍", "<", "STOP", "ST"]), st.booleans())


@settings(max_examples=200)
@given(pieces=st.lists(PIECES, max_size=12), cuts=st.lists(st.integers(0, 60), max_size=4), thought=st.booleans())
@example(pieces=[("<|channel>", True), ("word", False), ("<channel|>", True), ("a", False)], cuts=[], thought=False)
@example(pieces=[("<|channel>thought\n", False), ("<channel|>", True), ("a", False)], cuts=[], thought=False)
def test_marks_stand_at_special_tokens(pieces: list[tuple[str, bool]], cuts: list[int], thought: bool) -> None:
    """Of an answer as the engine tells it: canvas by canvas, without an empty thought, up to a stop string."""
    ids = [token for text, special in pieces for token in TOKENIZER.encode(text, special=special)]
    ids = [*TOKENIZER.encode(EMPTY_THOUGHT), *ids] if thought else ids
    whole = "".join(mark_all(text) if special else text for text, special in pieces)
    ends = [0, *sorted(5 + cut for cut in cuts), max(len(ids), 65)]
    transcript, marker, told = Transcript(TOKENIZER, ("STOP",)), Marker(TOKENIZER), ""
    for first, end in pairwise(ends):
        delta = transcript.add(ids[first:end], "length" if end == ends[-1] else None)
        told += marker.mark(delta.text, delta.token_ids)
        if delta.finish_reason is not None:
            break
    assert unmarked(told) == transcript.text
    assert told == whole[: len(told)]
    assert len(told) == len(whole.partition("STOP")[0])


def test_a_text_that_spells_markers_has_no_marks() -> None:
    spelled = "use <eos> and <|tool_call>call:f{}<tool_call|>"
    assert Marker(TOKENIZER).mark(spelled, TOKENIZER.encode(spelled, special=False)) == spelled
    assert Marker(TOKENIZER).mark("a<eos>", TOKENIZER.encode("a<eos>")) == f"a{MARK}<eos>"

"""Holes: what they take out, what they leave, and where they may lie."""

import numpy as np
import pytest

from redraft.errors import SettingError
from redraft.model.folders import resolve_folder
from redraft.text.tokenizer import Tokenizer
from redraft.train.canvases import Fillers, chat_canvases
from redraft.train.holes import answer_holes, extra_holes, mark_table, pieces, spans
from redraft.train.recipe import DataSettings, SourceSettings
from redraft.train.segments import chat_segments
from redraft.train.sources import Pool

MARKS = np.zeros(64, bool)
MARKS[[5, 6]] = True
#                   0  1  2  3   4   5  6  7   8   9   10 11
ROW = np.array([[[5, 10, 11, 6, 12, 13, 14, 5, 6, 15, 1, 1]]], np.int32)


@pytest.mark.parametrize(
    ("place", "expected"), [(1, [1, 2]), (5, [4, 5, 6]), (9, [9, 10, 11]), (7, [7]), (3, [3, 4, 5, 6])]
)
def test_a_piece_lies_between_two_marks(place: int, expected: list[int]) -> None:
    assert np.flatnonzero(pieces(MARKS[ROW], np.array([[place]]))[0, 0]).tolist() == expected


def test_spans_begin_at_their_place_and_stay_short() -> None:
    rng = np.random.default_rng(0)
    place = rng.integers(0, 40, (20, 30))
    drawn = spans(place, 64, rng, 9)
    assert (drawn.argmax(-1) == place).all()
    assert set(drawn.sum(-1).flatten().tolist()) == set(range(1, 9))
    assert (drawn.sum(-1) == 64 - 1 - drawn[..., ::-1].argmax(-1) - place + 1).all()


def test_an_answers_hole_never_takes_what_fills_the_canvas_unless_it_is_open() -> None:
    rng = np.random.default_rng(1)
    target = np.repeat(ROW, 400, 0)
    filled = np.zeros(target.shape, bool)
    filled[..., 10:] = True
    drawn = answer_holes(target, filled, MARKS, piece_share=0.7, rng=rng, longest=6)
    assert drawn.any(-1).all()
    open_end = drawn[..., 10:].all(-1)
    assert 0.1 < open_end.mean() < 0.4
    assert not drawn[~open_end][:, 10:].any()
    closed = drawn[~open_end]
    assert any((row == pieces(MARKS[ROW], np.array([[5]]))[0, 0]).all() for row in closed)


def test_extra_holes_come_in_their_share() -> None:
    rng = np.random.default_rng(2)
    target = np.repeat(ROW, 2000, 0)
    assert not extra_holes(target, MARKS, 0.0, rng).any()
    assert 0.4 < extra_holes(target, MARKS, 0.5, rng).any(-1).mean() < 0.6


def test_the_marks_of_a_tokenizer_are_structure_not_words() -> None:
    tokenizer = Tokenizer.from_folder(resolve_folder("tiny"))
    table = mark_table(tokenizer, 16_384)
    marked, plain = ['<|"|>', "{", ":", ",", "\n"], ["a", " the", "5", "_", "-", "."]
    assert all(table[tokenizer.encode(text)[0]] for text in marked)
    assert not any(table[tokenizer.encode(text)[0]] for text in plain)
    assert table.sum() < 400


def test_a_hole_lies_in_what_is_learned_not_in_the_given_text_behind_it() -> None:
    tokens = np.concatenate([[40, 41], ROW[0, 0, :10]]).astype(np.uint16)
    pool = Pool(tokens=tokens, starts=np.array([0]), ends=np.array([12]), prompts=np.array([2]),
                suffixes=np.array([6]))  # fmt: skip
    segments = chat_segments(pool, np.zeros((50, 1), np.int64), 16, 16, clean_answer=True)
    settings = SourceSettings(name="c", kind="chat", share=1.0, path="x", infill=1.0)
    out = chat_canvases(tokens, segments, (50, 4, 16), settings, np.random.default_rng(3), Fillers(eos=1, pad=0), MARKS)
    assert out["noise_region"].any(-1).all()
    assert not out["noise_region"][..., 4:].any()


def test_chat_canvases_with_holes_give_all_other_text() -> None:
    tokens = np.concatenate([[40, 41], ROW[0, 0, :10]]).astype(np.uint16)
    pool = Pool(tokens=tokens, starts=np.array([0]), ends=np.array([12]), prompts=np.array([2]),
                suffixes=np.array([0]))  # fmt: skip
    segments = chat_segments(pool, np.zeros((50, 1), np.int64), 16, 16, clean_answer=True)
    settings = SourceSettings(name="c", kind="chat", share=1.0, path="x", infill=0.5, hole_weight=3.0, extra_holes=0.5,
                              hole_full_noise=0.25, full_noise=0.125)  # fmt: skip
    out = chat_canvases(tokens, segments, (50, 4, 16), settings, np.random.default_rng(3), Fillers(eos=1, pad=0), MARKS)
    hole = out["full_noise"] == 0.25
    assert 0.35 < hole.mean() < 0.65
    assert (out["full_noise"][~hole] == 0.125).all()
    assert out["noise_region"][~hole].all()
    assert out["noise_region"][hole].all(-1).mean() < 0.3  # a hole from the first token to the open end is everything
    assert set(np.unique(out["canvas_weight"][hole]).tolist()) == {0.0, 3.0}
    assert (out["canvas_weight"][~hole] == 1.0).all()
    assert ((out["canvas_weight"] > 0) == out["noise_region"]).all()
    plain = chat_canvases(tokens, segments, (50, 4, 16), settings, np.random.default_rng(3), Fillers(eos=1, pad=0))
    assert plain["noise_region"].all()


def test_hole_settings_need_holes_and_a_tokenizer() -> None:
    with pytest.raises(SettingError, match="extra_holes has no effect without infill"):
        SourceSettings(name="c", kind="chat", share=1.0, path="x", extra_holes=0.5)
    with pytest.raises(SettingError, match="infill has no effect for kind 'sudoku'"):
        SourceSettings(name="s", kind="sudoku", share=1.0, path="x", infill=0.5)
    source = SourceSettings(name="c", kind="chat", share=1.0, path="x", infill=0.5)
    with pytest.raises(SettingError, match=r"data\.tokenizer is missing; source c needs"):
        DataSettings(rows=1, tokens=8, canvases=1, sources=(source,))

"""Canvases of documents with prompts, and with given text behind holes, against plain loops over the documents."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from redraft.train.canvases import Fillers, Layout, chat_canvases
from redraft.train.recipe import SourceSettings
from redraft.train.segments import Segments, chat_segments
from redraft.train.sources import Pool

EOS, PAD, TOKENS, CANVAS, CANVASES = 1, 0, 64, 16, 3
MARKS = np.arange(1000) % 7 == 0


def pool(documents: list[tuple[int, int, int]]) -> Pool:
    """Documents of (prompt, answer, suffix) lengths over consecutive tokens from 8 on."""
    prompts, answers, suffixes = np.array(documents).T
    ends = np.cumsum(prompts + answers + suffixes)
    return Pool(tokens=np.arange(8, 8 + ends[-1]).astype(np.uint16), starts=ends - prompts - answers - suffixes,
                ends=ends, prompts=prompts, suffixes=suffixes)  # fmt: skip


def canvases(pool: Pool, segments: Segments, rows: int, **settings: Any) -> dict[str, np.ndarray]:
    source = SourceSettings(name="c", kind="chat", share=1.0, path="x.jsonl", **settings)
    rng, fillers = np.random.default_rng(3), Fillers(eos=EOS, pad=PAD)
    return chat_canvases(pool.tokens, segments, (rows, CANVASES, CANVAS), source, rng, fillers, MARKS)


@pytest.mark.parametrize("holes", [{}, {"infill": 0.5, "hole_full_noise": 0.25, "extra_holes": 0.5}])
@pytest.mark.parametrize("clean_answer", [True, False])
def test_a_canvas_goes_on_where_its_document_stops_and_its_hole_may_have_room_to_spare(
    clean_answer: bool, holes: dict[str, float]
) -> None:
    rng, rows = np.random.default_rng(0), 120
    prompts, answers, suffixes = (rng.integers(1, limit, 12) for limit in (9, 45, 9))
    suffixes[::2] = 0
    documents = pool(list(zip(prompts, answers, suffixes, strict=True)))
    segments = chat_segments(documents, rng.integers(0, 12, (rows, 9)), TOKENS, CANVAS, clean_answer=clean_answer)
    made = canvases(documents, segments, rows, spare_holes=0.7, **holes)
    spare = 0
    for row in range(rows):
        mine = segments.row == row
        shown = list(zip(np.searchsorted(documents.starts, segments.start[mine]), segments.length[mine], strict=True))
        offers = {
            (number, start)
            for number, (document, length) in enumerate(shown)
            for start in range(prompts[document], prompts[document] + answers[document], CANVAS)
            if start <= length
        }
        places = list(zip(made["canvas_document"][row].tolist(), made["canvas_start"][row].tolist(), strict=True))
        assert set(places) <= offers
        assert len(set(places)) == min(CANVASES, len(offers))
        for slot, (number, start) in enumerate(places):
            document = shown[number][0]
            first, end = documents.starts[document], documents.ends[document]
            left = documents.tokens[first + start : end - suffixes[document]].tolist()
            target, region = made["canvas_target"][row, slot].tolist(), made["noise_region"][row, slot]
            pads, is_hole = target.count(PAD), bool(holes) and made["full_noise"][row, slot] == 0.25
            text = left + [PAD] * pads + documents.tokens[end - suffixes[document] : end].tolist()
            assert target == (text + [EOS] * CANVAS)[:CANVAS]
            learned = np.arange(CANVAS) < (len(left) + pads if suffixes[document] else CANVAS)
            assert not (region & ~learned).any() if is_hole else np.array_equal(region, learned)
            assert len(set(region[len(text) :].tolist())) < 2  # filling is learned as a whole or not at all
            assert not pads or (suffixes[document] and not is_hole)
            spare += pads > 0
    assert spare > 10


def test_every_canvas_of_an_answer_has_its_turn() -> None:
    documents, rows = pool([(3, 5 * CANVAS, 0)]), 200
    segments = chat_segments(documents, np.zeros((rows, 1), np.int64), 128, CANVAS, clean_answer=True)
    starts = canvases(documents, segments, rows)["canvas_start"]
    taken = Counter(starts.flatten().tolist())
    assert set(taken) == set(range(3, 3 + 5 * CANVAS, CANVAS))
    assert all(80 < count < 160 for count in taken.values())  # of 600 canvases
    assert all(len(set(row)) == CANVASES for row in starts.tolist())


def test_the_room_to_spare_is_at_most_forty_tokens_and_what_the_canvas_has() -> None:
    source = SourceSettings(name="c", kind="chat", share=1.0, path="x.jsonl", spare_holes=1.0)
    high = np.repeat(np.array([[0, 90, 127, 128]]), 500, 0)
    layout = Layout.draw(high, np.ones(high.shape, bool), 128, source, np.random.default_rng(0))
    count = layout.spare.sum(-1)
    assert np.array_equal(layout.end, high + count)
    assert (count.min(0).tolist(), count.max(0).tolist()) == ([1, 1, 1, 0], [40, 38, 1, 0])

"""Which documents a source gives to training and to evaluation, and where windows of plain text lie in them."""

import numpy as np
import pytest

from redraft.errors import SettingError
from redraft.train.segments import clean_rows, text_segments
from redraft.train.shards import Shard, join
from redraft.train.sources import ChatShard, TextShard

NEWLINE = 3


def shard(lengths: list[int], prompts: list[int] | None = None) -> Shard:
    """Documents of counted-up tokens."""
    tokens = np.arange(100, 100 + sum(lengths)).astype(np.uint16)
    return Shard.of_file(tokens, lengths, prompts or [0] * len(lengths))


def test_documents_without_a_prompt_an_answer_or_room_are_left_out() -> None:
    prompts, lengths = [0, 1, 5, 7, 8, 9], [9, 9, 5, 9, 12, 12]
    source = ChatShard(shard(lengths, prompts), 8, 0.0, "chat")
    pool, tries = source.draw(np.random.default_rng(0), 4, "train")
    assert pool.starts.tolist() == [9, 23]
    assert (pool.ends - pool.starts).tolist() == [9, 9]
    assert pool.prompts.tolist() == [1, 7]
    assert set(tries.flatten().tolist()) == {0, 1}
    with pytest.raises(SettingError, match="source chat: no document has a prompt of 1 to 7 tokens and an answer"):
        ChatShard(shard(lengths[4:], prompts[4:]), 8, 0.0, "chat")


@pytest.mark.parametrize("part", ["train", "heldout"])
def test_something_is_left_to_train_on_and_to_evaluate_on(part) -> None:
    for heldout in (0.001, 1.0):
        chat = ChatShard(join([shard([4], [2]), shard([5], [2])]), 8, heldout, "chat")
        _, tries = chat.draw(np.random.default_rng(0), 4, part)
        assert set(tries.flatten().tolist()) == {part == "heldout"}


@pytest.mark.parametrize("part", ["train", "heldout"])
def test_windows_lie_in_one_file_and_begin_a_document_that_fits_at_its_start(part) -> None:
    """Short documents and long ones, of two files, of which the last fifth is held out."""
    rng = np.random.default_rng(1)
    lengths = rng.choice([3, 5, 24, 40], 60).tolist()
    whole = join([shard(lengths[:20]), shard(lengths[20:])])
    source = TextShard(whole, NEWLINE, 0.2, "text", 8000)
    spans = {"train": [(0, 16), (20, 52)], "heldout": [(16, 20), (52, 60)]}[part]
    inside = [(int(whole.offsets[low]), int(whole.offsets[high])) for low, high in spans]
    starts, ends = source.windows(rng, 0, 20_000, 24, part)
    for start, end in set(zip(starts.tolist(), ends.tolist(), strict=True)):
        (edge,) = [high for low, high in inside if low <= start < high]
        assert end == min(start + 24, edge)
        document = int(np.searchsorted(whole.offsets, start, side="right")) - 1
        assert lengths[document] > 24 or start == whole.offsets[document]
    begun = {int(np.searchsorted(whole.offsets, start, side="right")) - 1 for start in starts.tolist()}
    assert begun == {number for low, high in spans for number in range(low, high)}


def test_rows_of_text_are_their_windows_tokens() -> None:
    lengths = [3, 40, 0, 7, 1, 30, 6]
    whole = shard(lengths)
    source = TextShard(whole, NEWLINE, 0.0, "text", 8000)
    windows = source.windows(np.random.default_rng(0), 0, 60, 16, "train")
    clean = clean_rows(source.tokens, text_segments(source, windows), 60, 16, 1.0)
    for row, (start, end) in enumerate(zip(*windows, strict=True)):
        documents = np.searchsorted(whole.offsets, np.arange(start, end), side="right") - 1
        first = np.maximum(whole.offsets[documents], start)
        last = np.minimum(whole.offsets[documents + 1], end) - 1
        used = slice(0, end - start)
        assert clean["tokens"][row, used].tolist() == whole.tokens[start:end].tolist()
        assert clean["document"][row, used].tolist() == np.unique(documents, return_inverse=True)[1].tolist()
        assert clean["position"][row, used].tolist() == (np.arange(start, end) - first).tolist()
        assert clean["encoder_weight"][row, used].tolist() == (np.arange(start, end) < last).tolist()
        assert (clean["document"][row, end - start :] == -1).all()
        assert not clean["encoder_weight"][row, end - start :].any()

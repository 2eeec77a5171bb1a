"""Shards come back exactly as written, and damage is named instead of read."""

import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from redraft.train.build.prompts import sample_prompts
from redraft.train.shards import Document, Shard, ShardError, join, read_shard, write_shard


def document(tokens: list[int], prompt_length: int = 0) -> Document:
    return Document(tokens=np.array(tokens, dtype=np.uint16), prompt_length=prompt_length)


def test_documents_survive_the_round_trip(tmp_path: Path) -> None:
    written = [document([2, 5, 65535], 1), document([]), document([2, 7]), document([9] * 5, 5)]
    write_shard(tmp_path / "a.xz", written)
    shard = read_shard(tmp_path / "a.xz")
    assert len(shard) == 4
    assert shard.tokens.dtype == np.uint16
    assert shard.offsets.tolist() == [0, 3, 3, 5, 10]
    assert shard.prompt_lengths.tolist() == [1, 0, 0, 5]
    assert shard.pieces(0) == ([2], [5, 65535], [])
    assert shard.pieces(3) == ([9] * 5, [], [])
    assert (shard.lines.tolist(), shard.files.tolist()) == ([0, 1, 2, 3, 4], [0, 4])


def test_joined_shards_hold_all_documents_in_order(tmp_path: Path) -> None:
    parts = [[document([2, 8, 9], 1), document([2, 3])], [document([7])], [document([5, 5, 5], 2)]]
    for number, part in enumerate(parts):
        write_shard(tmp_path / f"{number}.xz", part)
    whole = join([read_shard(tmp_path / f"{number}.xz") for number in range(len(parts))])
    assert whole.offsets.tolist() == [0, 3, 5, 6, 9]
    assert whole.files.tolist() == [0, 2, 3, 4]
    assert whole.lines.tolist() == [0, 1, 2, 3, 4]
    expected = [(one.tokens[: one.prompt_length].tolist(), one.tokens[one.prompt_length :].tolist(), [])
                for part in parts for one in part]  # fmt: skip
    assert [whole.pieces(document) for document in range(len(whole))] == expected


def test_lines_of_several_documents_stay_lines_in_joined_shards() -> None:
    tokens = np.arange(8)
    first = Shard.of_file(tokens, [2, 2, 4], [1, 1, 1], [0, 0, 2], [0, 2])
    second = Shard.of_file(tokens + 10, [4, 4], [1, 2], [1, 0], [0])
    whole = join([first, second])
    assert (whole.lines.tolist(), whole.files.tolist()) == ([0, 2, 3, 5], [0, 3, 5])
    assert whole.pieces(2) == ([4], [5], [6, 7])
    assert whole.pieces(3) == ([10], [11, 12], [13])


def test_the_bytes_follow_the_published_layout(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.xz", [document([258, 1], 1), document([3])])
    header, rest = lzma.decompress((tmp_path / "a.xz").read_bytes()).split(b"\n", 1)
    assert json.loads(header) == {"count": 2, "tokens": 3}
    assert rest == bytes([2, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 1, 1, 0, 3, 0])


def test_an_empty_shard_is_a_shard(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.xz", [])
    assert len(read_shard(tmp_path / "a.xz")) == 0


def test_nothing_partial_is_left_behind(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.xz", [document([1])])
    assert [path.name for path in tmp_path.iterdir()] == ["a.xz"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"count": 1, "tokens": 9}\n' + bytes(8), "bytes after its header"),
        (b"no header at all\n", "does not begin with a shard header"),
        (b'{"count": -1, "tokens": 0}\n', "does not begin with a shard header"),
        (b'{"count": 1, "tokens": 1}\n\x02\0\0\0\0\0\0\0\x05\0', "sum to 2"),
        (b'{"count": 1, "tokens": 1}\n\x01\0\0\0\x02\0\0\0\x05\0', "prompt longer than its document"),
    ],
)
def test_damage_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.xz").write_bytes(lzma.compress(content))
    with pytest.raises(ShardError, match=message):
        read_shard(tmp_path / "a.xz")


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.xz", [document(list(range(1000)))])
    content = (tmp_path / "a.xz").read_bytes()
    (tmp_path / "a.xz").write_bytes(content[: len(content) // 2])
    with pytest.raises(ShardError, match="not a complete xz file"):
        read_shard(tmp_path / "a.xz")


@pytest.mark.parametrize("bad", [np.zeros(3, dtype=np.int64), np.zeros((2, 2), dtype=np.uint16)])
def test_only_uint16_vectors_are_documents(bad: np.ndarray) -> None:
    with pytest.raises(ShardError, match="uint16 vector"):
        Document(tokens=bad)


def test_a_prompt_cannot_exceed_its_document() -> None:
    with pytest.raises(ShardError, match="outside"):
        document([1, 2], 3)


def test_a_sample_of_prompts_is_what_distillation_reads(tmp_path: Path) -> None:
    write_shard(tmp_path / "chat.xz", [document([2, 10 + i, 30 + i], 2) for i in range(9)])
    first, again = (sample_prompts(tmp_path / "chat.xz", tmp_path / name, 4) for name in ("a.jsonl", "b.jsonl"))
    rows = [json.loads(line) for line in first.read_text().splitlines()]
    assert first.read_text() == again.read_text()
    assert len({row["prompt_ids"][1] for row in rows}) == 4
    assert all(row == {"prompt_ids": [2, n], "answer_ids": [n + 20]} for row in rows for n in row["prompt_ids"][1:])

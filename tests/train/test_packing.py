"""Batches: what lies where, what is given and what is noise, and that batch i depends on nothing but (seed, i)."""

import contextlib
import dataclasses
import multiprocessing
import os
import signal
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch

from redraft.errors import InputError, SettingError, TrainingError
from redraft.model.folders import resolve_folder
from redraft.train.batch import Batch
from redraft.train.canvases import Fillers, text_canvases
from redraft.train.loader import Loader
from redraft.train.packing import Packer
from redraft.train.recipe import DataSettings, Recipe, SourceSettings
from redraft.train.segments import chat_segments, clean_rows, text_segments
from redraft.train.shards import Document, read_shard, write_shard
from redraft.train.sources import ChatShard, Pool, ReverseSource, TextShard

NEWLINE, EOS, PAD, CANVAS = 3, 1, 0, 16


def text_source(tmp_path: Path, documents: int = 40) -> TextShard:
    """Documents of counted-up tokens (from 8 on) with a line end after every seventh."""
    rng = np.random.default_rng(0)
    texts = []
    for length in rng.integers(20, 120, documents):
        tokens = (np.arange(length) % 40 + 8).astype(np.uint16)
        tokens[6::7] = NEWLINE
        tokens[0] = 2
        texts.append(Document(tokens=tokens))
    write_shard(tmp_path / "text.xz", texts)
    return TextShard(read_shard(tmp_path / "text.xz"), NEWLINE, 0.1, "text", 256)


def pool(documents: list[tuple[int, int]]) -> Pool:
    """Documents of (prompt, answer) lengths over consecutive tokens."""
    lengths = np.array([sum(d) for d in documents])
    ends = np.cumsum(lengths)
    return Pool(tokens=np.arange(8, 8 + ends[-1]).astype(np.uint16), starts=ends - lengths, ends=ends,
                prompts=np.array([d[0] for d in documents]), suffixes=np.zeros_like(ends))  # fmt: skip


def test_rows_hold_whole_documents_and_cut_the_last() -> None:
    documents = pool([(4, 6), (15, 5), (3, 12), (2, 9), (14, 5)])
    segments = chat_segments(documents, np.array([[0, 1, 2, 3], [0, 1, 4, 3]]), 24, 8, clean_answer=True)
    # The second document's prompt does not fit, the last finds no room; that of the fifth fits exactly.
    assert segments.offset.tolist() == [0, 10] * 2
    clean = clean_rows(documents.tokens, segments, 2, 24, 0.25)
    assert clean["tokens"].tolist() == [[*range(8, 18), *range(38, 52)], [*range(8, 18), *range(64, 78)]]
    assert clean["document"].tolist() == [[0] * 10 + [1] * 14] * 2
    assert clean["position"].tolist() == [[*range(10), *range(14)]] * 2
    first = [0.25] * 3 + [1.0] * 6 + [0.0]
    weights = [first + [0.25] * 2 + [1.0] * 11 + [0.0], first + [0.25] * 13 + [0.0]]
    assert clean["encoder_weight"].tolist() == weights


def test_text_after_a_hole_weighs_as_much_as_a_prompt() -> None:
    documents = dataclasses.replace(pool([(3, 6), (2, 5)]), suffixes=np.array([4, 0]))
    segments = chat_segments(documents, np.array([[0, 1], [1, 0]]), 12, 8, clean_answer=True)
    hole, plain = [0.25] * 2 + [1.0] * 2 + [0.25] * 4 + [0.0], [0.25] + [1.0] * 5 + [0.0]
    clean = clean_rows(documents.tokens, segments, 2, 12, 0.25)
    cut = [0.25] * 2 + [1.0] * 2 + [0.0]
    assert clean["encoder_weight"].tolist() == [[*hole, *[0.25, 1.0, 0.0]], [*plain, *cut]]


def test_without_clean_answer_only_earlier_canvases_are_in_the_stream() -> None:
    segments = chat_segments(pool([(4, 6), (3, 17), (2, 8)]), np.array([[0, 1, 2]]), 64, 8, clean_answer=False)
    assert segments.length.tolist() == [4, 3 + 16, 2]


def test_text_rows_cover_documents_in_order(tmp_path: Path) -> None:
    source = text_source(tmp_path)
    windows = source.windows(np.random.default_rng(1), 0, 8, 64, "train")
    segments = text_segments(source, windows)
    clean = clean_rows(source.tokens, segments, 8, 64, 1.0)
    for row, start in enumerate(windows[0]):
        used = clean["document"][row] >= 0
        assert (clean["tokens"][row][used] == source.tokens[start : start + used.sum()]).all()
        fresh = np.flatnonzero(np.diff(clean["document"][row][used], prepend=-1))
        assert (clean["position"][row][fresh] == 0).all()
        assert (clean["tokens"][row][fresh[1:]] == 2).all()


@pytest.mark.parametrize("infill", [0.0, 1.0])
def test_text_canvases_continue_their_documents(tmp_path: Path, infill: float) -> None:
    source, rng = text_source(tmp_path), np.random.default_rng(2)
    holes = {"infill": infill, "hole_weight": 3.0, "hole_full_noise": 0.25} if infill else {}
    settings = SourceSettings(name="t", kind="text", share=1.0, path="x", **holes)
    segments = text_segments(source, source.windows(rng, 0, 16, 64, "train"))
    clean = clean_rows(source.tokens, segments, 16, 64, 1.0)
    made = text_canvases(source, segments, clean, (16, 6, CANVAS), settings, rng, Fillers(eos=EOS, pad=PAD))
    key = {(r, n): i for i, (r, n) in enumerate(zip(segments.row, segments.number, strict=True))}
    assert (made["canvas_document"] >= 0).mean() > 0.95
    for row, slot in np.argwhere(made["canvas_document"] >= 0):
        owner = key[row, int(made["canvas_document"][row, slot])]
        start = int(made["canvas_start"][row, slot])
        assert 1 <= start <= segments.length[owner]
        flat = segments.start[owner] + start + np.arange(CANVAS)
        inside = flat < segments.end[owner]
        expected = np.where(inside, source.tokens[np.minimum(flat, len(source.tokens) - 1)], EOS)
        assert (made["canvas_target"][row, slot] == expected).all()
        region = np.flatnonzero(made["noise_region"][row, slot])
        assert (np.diff(region) == 1).all()
        if infill:
            assert 1 <= len(region) <= CANVAS * 3 // 4
            assert inside[region].all()
            assert (made["canvas_weight"][row, slot][region] == 3.0).all()
        else:
            assert len(region) == CANVAS
        assert made["canvas_weight"][row, slot].sum() == (3.0 * len(region) if infill else CANVAS)
    assert not made["canvas_weight"][made["canvas_document"] < 0].any()
    assert (made["full_noise"] == (0.25 if infill else 0.0)).all()


def test_given_text_may_have_further_holes(tmp_path: Path) -> None:
    source, rng = text_source(tmp_path), np.random.default_rng(2)
    settings = SourceSettings(name="t", kind="text", share=1.0, path="x", infill=1.0, extra_holes=1.0, hole_weight=2.0)
    segments = text_segments(source, source.windows(rng, 0, 16, 64, "train"))
    clean = clean_rows(source.tokens, segments, 16, 64, 1.0)
    made = text_canvases(source, segments, clean, (16, 6, CANVAS), settings, rng, Fillers(eos=EOS, pad=PAD))
    region = made["noise_region"]
    gaps = (np.diff(region.astype(np.int8), axis=-1) == 1).sum(-1)
    assert (gaps > 0).mean() > 0.3
    assert ((made["canvas_weight"] == 2.0) == region).all()
    assert not region[made["canvas_document"] < 0].any()


def test_line_holes_are_lines(tmp_path: Path) -> None:
    source, rng = text_source(tmp_path), np.random.default_rng(3)
    settings = SourceSettings(name="t", kind="text", share=1.0, path="x", infill=1.0, line_holes=1.0)
    segments = text_segments(source, source.windows(rng, 0, 32, 64, "train"))
    clean = clean_rows(source.tokens, segments, 32, 64, 1.0)
    made = text_canvases(source, segments, clean, (32, 6, 32), settings, rng, Fillers(eos=EOS, pad=PAD))
    whole = 0
    for target, region in zip(made["canvas_target"].reshape(-1, 32), made["noise_region"].reshape(-1, 32), strict=True):
        end = int(np.flatnonzero(region)[-1]) if region.any() else 0
        whole += target[end] == NEWLINE or (end + 1 < 32 and target[end + 1] in (NEWLINE, EOS))
    assert whole > 0.9 * 32 * 6


def test_spare_room_of_a_hole_is_padded_and_the_text_goes_on_behind_it(tmp_path: Path) -> None:
    source, rng = text_source(tmp_path), np.random.default_rng(4)
    settings = SourceSettings(name="t", kind="text", share=1.0, path="x", infill=1.0, spare_holes=0.75, hole_weight=2.0,
                              fill_weight=0.5)  # fmt: skip
    segments = text_segments(source, source.windows(rng, 0, 64, 64, "train"))
    clean = clean_rows(source.tokens, segments, 64, 64, 1.0)
    made = text_canvases(source, segments, clean, (64, 6, CANVAS), settings, rng, Fillers(eos=EOS, pad=PAD))
    key = {(r, n): i for i, (r, n) in enumerate(zip(segments.row, segments.number, strict=True))}
    spare = []
    for row, slot in np.argwhere(made["canvas_document"] >= 0):
        target, region = made["canvas_target"][row, slot], np.flatnonzero(made["noise_region"][row, slot])
        pads = np.flatnonzero(target == PAD)
        assert pads.tolist() == region[len(region) - len(pads) :].tolist()  # the end of the hole, and nothing else
        assert len(pads) < len(region)
        assert made["canvas_weight"][row, slot][pads].tolist() == ([2.0] + [1.0] * (len(pads) - 1))[: len(pads)]
        owner = key[row, int(made["canvas_document"][row, slot])]
        flat = segments.start[owner] + int(made["canvas_start"][row, slot]) + np.arange(CANVAS - len(pads))
        inside = flat < segments.end[owner]
        text = np.where(inside, source.tokens[np.minimum(flat, len(source.tokens) - 1)], EOS)
        assert target[target != PAD].tolist() == text.tolist()
        spare.append(len(pads))
    assert 0.6 < np.mean(np.array(spare) > 0) < 0.8
    assert max(spare) > CANVAS // 2


def chat_recipe(recipe: Recipe, tmp_path: Path, **options: object) -> Recipe:
    rng = np.random.default_rng(4)
    lengths = zip(rng.integers(5, 20, 60).tolist(), rng.integers(1, 45, 60).tolist(), strict=True)
    documents = [Document(tokens=rng.integers(8, 40, p + a).astype(np.uint16), prompt_length=p) for p, a in lengths]
    write_shard(tmp_path / "chat.xz", documents)
    chat = SourceSettings(name="chat", kind="chat", share=2.0, path=str(tmp_path / "*.xz"), **options)
    sources = (chat, SourceSettings(name="reverse", kind="reverse", share=1.0))
    return dataclasses.replace(recipe, data=DataSettings(rows=6, tokens=64, canvases=5, sources=sources))


def test_chat_canvases_follow_the_prompt_and_end_in_eos(recipe: Recipe, tmp_path: Path) -> None:
    packer = Packer(chat_recipe(recipe, tmp_path, fill_weight=0.5))
    source = packer.sources[0]
    assert isinstance(source, ChatShard)
    shard = read_shard(tmp_path / "chat.xz")
    documents = [shard.pieces(number)[:2] for number in range(len(shard))]
    batch = packer.batch(0)
    later = 0
    for row, slot in np.ndindex(6, 5):
        if batch["source"][row] == 1:
            continue
        mine = batch["document"][row] == batch["canvas_document"][row, slot]
        shown, start = batch["tokens"][row][mine], int(batch["canvas_start"][row, slot])
        prompt, answer = next((p, a) for p, a in documents if shown[: len(p)].tolist() == p)
        assert (start - len(prompt)) % CANVAS == 0
        assert start <= len(shown)
        rest = (prompt + answer)[start : start + CANVAS]
        assert len(rest) > 0
        fill = CANVAS - len(rest)
        assert batch["canvas_target"][row, slot].tolist() == [*rest, *[EOS] * fill]
        weights = [1.0] * min(CANVAS, len(rest) + 1) + [0.5] * max(0, fill - 1)
        assert batch["canvas_weight"][row, slot].tolist() == weights
        later += start > len(prompt)
    assert later > 0


def test_a_batch_depends_on_seed_and_index_alone(recipe: Recipe, tmp_path: Path) -> None:
    recipe = chat_recipe(recipe, tmp_path)
    first, second = Packer(recipe), Packer(recipe)
    first.batch(0)
    for name, array in first.batch(3).items():
        assert np.array_equal(array, second.batch(3)[name])
    other = Packer(dataclasses.replace(recipe, run=dataclasses.replace(recipe.run, seed=6)))
    assert not np.array_equal(other.batch(3)["tokens"], second.batch(3)["tokens"])
    assert not np.array_equal(second.batch(4)["tokens"], second.batch(3)["tokens"])
    assert not np.array_equal(second.batch(3, "heldout")["tokens"], second.batch(3)["tokens"])


@pytest.mark.parametrize("rows", [6, 5])
def test_rows_follow_the_shares(recipe: Recipe, tmp_path: Path, rows: int) -> None:
    recipe = chat_recipe(recipe, tmp_path)
    packer = Packer(dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, rows=rows)))
    table = np.array([packer.rows_of(i) for i in range(300)])  # [300, sources, 2]
    earlier, counts = table[..., 0], table[..., 1]
    assert (counts.sum(1) == rows).all()
    assert abs(counts[:, 0].mean() - rows * 2 / 3) < 0.05
    assert np.abs(earlier - (counts.cumsum(0) - counts)).max() < 6
    order = [packer.batch(i)["source"].tolist() for i in range(4)]
    assert any(row != sorted(row) for row in order), "rows are shuffled"


def test_rows_carry_the_rollouts_of_their_source(recipe: Recipe, tmp_path: Path) -> None:
    plain, some = (Packer(chat_recipe(recipe, tmp_path, **o)).batch(0) for o in ({}, {"rollout": 0.25}))
    assert set(some) - set(plain) == {"rollout"}
    assert all(np.array_equal(plain[name], some[name]) for name in plain)
    assert set(some["source"]) == {0, 1}
    assert (some["rollout"] == np.where(some["source"] == 0, 0.25, 0.0)).all()
    batch = Batch.from_arrays(some).to(torch.device("cpu"))
    assert batch.rollout is not None
    assert batch.rollout.dtype == torch.float32
    assert Batch.from_arrays(plain).to(torch.device("cpu")).rollout is None


def test_workers_deliver_the_same_batches_in_order(recipe: Recipe, tmp_path: Path) -> None:
    packer = Packer(chat_recipe(recipe, tmp_path))
    with Loader(packer, range(2, 9), workers=2) as loader:
        delivered = [batch.tokens.numpy() for batch in loader]
    assert len(delivered) == 7
    for index, tokens in enumerate(delivered):
        assert np.array_equal(tokens, packer.batch(index + 2)["tokens"])


def test_a_worker_that_is_killed_ends_the_run_with_a_sentence(recipe: Recipe, tmp_path: Path) -> None:
    with Loader(Packer(chat_recipe(recipe, tmp_path)), range(10_000), workers=2) as loader:
        batches = iter(loader)
        next(batches)
        assert loader._pool is not None
        os.kill(next(iter(loader._pool._processes)), signal.SIGKILL)
        with pytest.raises(TrainingError, match="One of the 2 processes that pack batches was killed"):
            deque(batches, maxlen=0)


def test_workers_end_when_the_training_process_is_killed(recipe: Recipe, tmp_path: Path) -> None:
    """The pipe ends when the last process that holds its other side has."""

    def pack() -> None:
        os.setpgrp()
        with Loader(Packer(chat_recipe(recipe, tmp_path)), range(10_000), workers=2) as loader:
            next(iter(loader))
            writer.send("packing")
            signal.pause()

    reader, writer = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=pack)
    process.start()
    writer.close()
    assert reader.recv() == "packing"
    process.kill()
    process.join()
    ended = reader.poll(20)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    assert ended


@pytest.mark.parametrize("kind", ["chat", "text"])
@pytest.mark.parametrize(("documents", "heldout"), [(40, 0.0), (1, 0.1)])
def test_nothing_is_evaluated_on_what_is_trained(
    recipe: Recipe, tmp_path: Path, kind: str, documents: int, heldout: float
) -> None:
    document = Document(tokens=np.arange(8, 28, dtype=np.uint16), prompt_length=3 if kind == "chat" else 0)
    write_shard(tmp_path / "all.xz", [document] * documents)
    source = SourceSettings(name="all", kind=kind, share=1.0, path=str(tmp_path / "all.xz"), heldout=heldout)
    data = dataclasses.replace(recipe.data, sources=(source,), tokenizer=str(resolve_folder("tiny")))
    recipe = dataclasses.replace(recipe, data=data, model=dataclasses.replace(recipe.model, vocab_size=16384))
    packer = Packer(recipe)
    assert packer.batch(0)["tokens"].any()
    with pytest.raises(SettingError, match="source all: no document is held out for evaluation"):
        packer.batch(0, "heldout")
    run = dataclasses.replace(recipe.run, evaluate_every=5)
    with pytest.raises(SettingError, match=r"raise heldout .*, or set run\.evaluate_every to 0\.$"):
        Packer(dataclasses.replace(recipe, run=run))


def packer_of(recipe: Recipe, tmp_path: Path, kind: str, files: list[list[Document]], **settings: float) -> Packer:
    """Of one source of several files, with a heldout share."""
    for number, documents in enumerate(files):
        write_shard(tmp_path / f"file-{number}.xz", documents)
    source = SourceSettings(name="all", kind=kind, share=1.0, path=str(tmp_path / "file-*.xz"), **settings)
    data = dataclasses.replace(recipe.data, sources=(source,), tokenizer=str(resolve_folder("tiny")))
    return Packer(dataclasses.replace(recipe, data=data, model=dataclasses.replace(recipe.model, vocab_size=16384)))


@pytest.mark.parametrize("kind", ["chat", "text"])
def test_the_last_documents_of_every_file_are_held_out(recipe: Recipe, tmp_path: Path, kind: str) -> None:
    """Document n holds nothing but tokens 100 + n; a fifth of 5, 10 and 10 of them is held out."""
    tokens = [np.array([2] + [100 + number] * 14, np.uint16) for number in range(25)]
    documents = [Document(tokens=t, prompt_length=3 if kind == "chat" else 0) for t in tokens]
    packer = packer_of(recipe, tmp_path, kind, [documents[:5], documents[5:15], documents[15:]], heldout=0.2)
    heldout = {104, 113, 114, 123, 124}
    seen = [np.concatenate([packer.batch(i, part)["tokens"].flatten() for i in range(40)])
            for part in ("heldout", "train")]  # fmt: skip
    assert set(seen[0][seen[0] >= 100].tolist()) == heldout
    assert set(seen[1][seen[1] >= 100].tolist()) == set(range(100, 125)) - heldout


def test_files_too_small_for_the_share_take_turns(recipe: Recipe, tmp_path: Path) -> None:
    documents = [Document(tokens=np.array([2, 100 + number, 9], np.uint16), prompt_length=2) for number in range(8)]
    packer = packer_of(recipe, tmp_path, "chat", [[document] for document in documents], heldout=0.25)
    tokens = packer.batch(0, "heldout")["tokens"]
    assert set(tokens[tokens >= 100].tolist()) == {103, 107}


def test_a_row_within_a_text_still_begins_with_bos(recipe: Recipe, tmp_path: Path) -> None:
    text = Document(tokens=np.arange(100, 600, dtype=np.uint16))
    batch = packer_of(recipe, tmp_path, "text", [[text]]).batch(1)
    tokens, used = batch["tokens"], batch["document"] == 0
    assert (tokens[:, 0] == recipe.model.bos_token_id).all()
    assert len(set(tokens[:, 1].tolist())) == len(tokens)
    assert (np.diff(tokens[:, 1:])[used[:, 2:]] == 1).all()


def test_tiny_documents_fill_long_rows(recipe: Recipe, tmp_path: Path) -> None:
    recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, tokens=400))
    tiny, ordinary = (
        [Document(tokens=np.arange(8, 8 + length, dtype=np.uint16), prompt_length=2)] * 50 for length in (4, 20)
    )
    assert (packer_of(recipe, tmp_path, "chat", [tiny]).batch(0)["document"] >= 0).all()
    (source,) = packer_of(recipe, tmp_path, "chat", [ordinary]).sources
    assert isinstance(source, ChatShard)
    _, tries = source.draw(np.random.default_rng(3), 4, "train")
    assert np.array_equal(tries, np.random.default_rng(3).integers(0, 49, (4, 48)))  # as it has always been


def test_a_missing_file_names_its_source(recipe: Recipe, tmp_path: Path) -> None:
    source = SourceSettings(name="talk", kind="chat", share=1.0, path=str(tmp_path / "none.xz"))
    with pytest.raises(SettingError, match=r"source talk: there is no file"):
        Packer(dataclasses.replace(recipe, data=DataSettings(rows=1, tokens=8, canvases=1, sources=(source,))))


def test_a_path_that_exists_is_no_pattern(recipe: Recipe, tmp_path: Path) -> None:
    write_shard(tmp_path / "a[1].xz", [Document(tokens=np.array([2, 9], np.uint16), prompt_length=1)])
    source = SourceSettings(name="talk", kind="chat", share=1.0, path=str(tmp_path / "a[1].xz"))
    Packer(dataclasses.replace(recipe, data=DataSettings(rows=1, tokens=8, canvases=1, sources=(source,))))


@pytest.mark.parametrize("kind", ["chat", "sudoku"])
def test_a_folder_instead_of_a_file_is_named(recipe: Recipe, tmp_path: Path, kind: str) -> None:
    source = SourceSettings(name="talk", kind=kind, share=1.0, path=str(tmp_path))
    data = DataSettings(rows=1, tokens=8, canvases=1, sources=(source,), tokenizer=str(resolve_folder("tiny")))
    with pytest.raises(InputError, match=f"{tmp_path} cannot be read"):
        Packer(dataclasses.replace(recipe, data=data))


def test_tokens_outside_the_vocabulary_are_named(recipe: Recipe, tmp_path: Path) -> None:
    write_shard(tmp_path / "a.xz", [Document(tokens=np.array([2, 48], np.uint16), prompt_length=1)])
    source = SourceSettings(name="talk", kind="chat", share=1.0, path=str(tmp_path / "a.xz"))
    with pytest.raises(SettingError, match="token 48 is outside the vocabulary of 48"):
        Packer(dataclasses.replace(recipe, data=DataSettings(rows=1, tokens=8, canvases=1, sources=(source,))))


def test_lines_that_the_models_vocabulary_lacks_are_named(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    source = SourceSettings(name="talk", kind="chat", share=1.0, path=str(tmp_path / "a.jsonl"))
    data = DataSettings(rows=1, tokens=8, canvases=1, sources=(source,), tokenizer=str(resolve_folder("tiny")))
    with pytest.raises(SettingError, match=r"source talk: token \d+ is outside the vocabulary of 48"):
        Packer(dataclasses.replace(recipe, data=data))


def test_rows_too_short_for_a_generated_prompt_are_refused(recipe: Recipe) -> None:
    with pytest.raises(SettingError, match=r"source reverse: its prompts have 10 tokens; data\.tokens is 9\."):
        Packer(dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, tokens=9)))
    fits = Packer(dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, tokens=10))).batch(0)
    assert (fits["canvas_start"] == 10).all()


def test_a_vocabulary_too_small_for_the_toy_task_is_refused(recipe: Recipe) -> None:
    with pytest.raises(SettingError, match=r"source reverse: its symbols begin at 8; model\.vocab_size is 8\."):
        Packer(dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, vocab_size=8)))


def test_the_toy_tasks_symbols_come_from_all_of_a_wide_vocabulary() -> None:
    pool, _ = ReverseSource(tokens=100, vocab_size=262_144, name="reverse").draw(np.random.default_rng(0), 50, "train")
    symbols = pool.tokens.reshape(-1, 19)[:, 1:9]
    assert symbols.min() >= ReverseSource.FIRST
    assert symbols.max() > 200_000

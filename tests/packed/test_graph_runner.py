"""The GPU runner, without graphs on a CPU in fp32: it must write what the plain loop writes, step by step."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from running import STEPS, ids, new_runner, plainly, same, step_of

from random_adapter import random_adapter
from random_model import tower_of
from redraft.cache.fp8 import FP8
from redraft.config import ModelConfig
from redraft.constraints.pins import Allowed
from redraft.diffusion.step import rule_fields
from redraft.engine.adapters import RunnerByAdapter
from redraft.engine.build import new_runner as engine_runner
from redraft.engine.captured_step import CapturedStep
from redraft.engine.graph_buffers import StepBuffers
from redraft.engine.graph_runner import BUCKETS, GraphRunner
from redraft.engine.graph_step import working_bytes
from redraft.engine.runner import EagerRunner
from redraft.engine.settings import EngineSettings
from redraft.engine.work import Encode
from redraft.kernels.switches import Operation, watching
from redraft.model import Transformer
from redraft.model.packed.build import pack, repack
from redraft.model.packed.transformer import PackedTransformer
from redraft.model.presets import preset
from redraft.settings import GenerationSettings
from redraft.text.images import Image, PlacedImage
from redraft.text.placing import place_images


def test_every_step_is_that_of_the_eager_runner_alone_and_beside_others(
    plain: Transformer, packed: PackedTransformer
) -> None:
    prompts = ids(1, 40), ids(2, 9)
    records = [plainly(plain, prompts[0], 0), plainly(plain, prompts[1], 1, length=12)]
    assert len(records[0]) >= 3
    alone, together = new_runner(packed), new_runner(packed)
    alone.run([Encode(slot=0, start=0, token_ids=prompts[0])])
    together.run([Encode(slot=0, start=0, token_ids=prompts[0]), Encode(slot=1, start=0, token_ids=prompts[1])])
    for step, record in enumerate(records[0]):
        assert same(record, alone.run([step_of(0, 40, step)])[0])
        work = [Encode(slot=2, start=0, token_ids=ids(3, 5)), step_of(0, 40, step)]
        open_too = step < len(records[1])
        results = together.run([*work, step_of(1, 9, step, length=12)] if open_too else work)
        assert same(record, results[0])
        assert not open_too or same(records[1][step], results[1])


def test_a_canvas_need_not_begin_with_its_likeliest_token(plain: Transformer, packed: PackedTransformer) -> None:
    """Log-probabilities, too, leave out what it may not begin with; a neighbour's canvas may begin with anything."""
    prompt, runner = ids(1, 40), new_runner(packed)
    free = plainly(plain, prompt, 0)
    never = tuple({int(record.argmax_canvas[0]) for record in free})
    records = plainly(plain, prompt, 0, not_first=never)
    assert len(free) >= 3
    assert 1 <= len(never) <= 8
    runner.run([Encode(slot=slot, start=0, token_ids=prompt) for slot in (0, 1)])
    for step, record in enumerate(records):
        work = [step_of(slot, 40, step, seed=100, logprobs=1) for slot in (0, 1)]
        held, other = runner.run([replace(work[0], not_first=never), work[1]])
        assert same(record, held)
        assert record.argmax_canvas[0] not in never
        assert step >= len(free) or same(free[step], other)
    assert held.top is not None
    assert held.top.token_ids[0] == (held.argmax_canvas[0],)


def test_every_setting_that_decides_a_step_is_a_word_of_the_block(packed: PackedTransformer) -> None:
    given = {"entropy_bound": 0.25, "stability_threshold": 3, "confidence_threshold": 0.5, "stop_at_eos": True}
    decided = rule_fields(GenerationSettings(**given))
    del decided["logit_bias"]  # for which a canvas is sampled outside
    runner = new_runner(packed)
    runner.run([Encode(slot=0, start=0, token_ids=ids(1, 40))])
    runner.run([step_of(0, 40, 0, **decided)])
    views = runner.bucket(1).buffers.fields.views
    assert {name: views[name].item() for name in decided} == decided


@pytest.mark.parametrize("what", ["pages", "vocabulary"])
def test_fp8_moves_answers_no_farther_than_rounding(
    packed: PackedTransformer, fp8: PackedTransformer, what: str
) -> None:
    """Beside others and alone they move equally."""
    moved = (packed, 512, FP8) if what == "pages" else (fp8,)
    exact, alone, together = new_runner(packed), new_runner(*moved), new_runner(*moved)
    for runner in (exact, alone, together):
        runner.run([Encode(slot=0, start=0, token_ids=ids(1, 40))])
    work = [step_of(0, 40, 0), Encode(slot=2, start=0, token_ids=ids(3, 5))]
    (near,), (found,), (again,) = (
        runner.run(work[:count]) for runner, count in ((exact, 1), (alone, 1), (together, 2))
    )
    assert same(found, again)
    assert (found.entropy != near.entropy).any()
    assert torch.allclose(torch.tensor(found.entropy), torch.tensor(near.entropy), atol=0.2)
    assert sum(a == b for a, b in zip(found.argmax_canvas, near.argmax_canvas, strict=True)) >= 14


def test_a_commit_may_stand_beside_the_next_canvas_first_step(packed: PackedTransformer) -> None:
    prompt, canvas = ids(4, 250), ids(5, 16)
    fused, apart = new_runner(packed), new_runner(packed)
    for runner in (fused, apart):
        runner.run([Encode(slot=0, start=0, token_ids=prompt)])
        runner.run([step_of(0, 250, 0)])
    commit, first = Encode(slot=0, start=250, token_ids=canvas), step_of(0, 266, 0, canvas_index=1)
    together = fused.run([commit, first])
    assert apart.run([commit]) == []
    assert same(together[0], apart.run([first])[0])
    second = step_of(0, 266, 1, canvas_index=1)
    assert same(fused.run([second])[0], apart.run([second])[0])


def test_constraints_are_sampled_outside_and_log_probabilities_told_at_the_end(
    plain: Transformer, packed: PackedTransformer
) -> None:
    prompt, limit = ids(6, 20), Allowed(16, pins={2: 77, 5: 78})
    records = plainly(plain, prompt, 0, constraint=limit)
    runner = new_runner(packed)
    runner.run([Encode(slot=0, start=0, token_ids=prompt), Encode(slot=1, start=0, token_ids=prompt)])
    for step, record in enumerate(records):
        work = [step_of(1, 20, step, logprobs=0), step_of(0, 20, step, constraint=limit, logprobs=2)]
        told, held = runner.run(work)
        assert same(record, held)
        assert held.argmax_canvas[2] == 77
        for part, result in zip(work, (told, held), strict=True):
            assert (result.top is not None) == (part.last or result.converged)
    assert told.top is not None
    assert held.top is not None
    assert told.top.token_ids[0] == ()
    assert held.top.token_ids[2][0] == 77
    assert held.top.chosen[2] == 0
    likeliest = [(ids[0], chosen) for ids, chosen in zip(held.top.token_ids, held.top.chosen, strict=True)]
    assert likeliest == list(zip(held.argmax_canvas, (both[0] for both in held.top.logprobs), strict=True))


def test_rows_sampled_part_by_part_are_the_same(packed: PackedTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [ids(slot, 20) for slot in range(3)]
    whole, parts = new_runner(packed), new_runner(packed)
    for runner in (whole, parts):
        runner.run([Encode(slot=slot, start=0, token_ids=prompt) for slot, prompt in enumerate(prompts)])
    for step in range(3):  # from the second one on with the soft embeddings of the one before
        work = [step_of(slot, 20, step) for slot in range(3)]
        expected = whole.run(work)
        with monkeypatch.context() as patch:
            patch.setattr("redraft.engine.graph_step.HEAD_ROWS", 16)
            assert all(map(same, expected, parts.run(work)))


def test_the_report_leaves_before_soft_embeddings_are_made(
    packed: PackedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, order = new_runner(packed), []
    download = StepBuffers.download

    def sent(self: StepBuffers, block: torch.Tensor, first: int = 0) -> None:
        order.append("report")
        download(self, block, first)

    monkeypatch.setattr(StepBuffers, "download", sent)

    def watch(operation: Operation) -> object:
        order.append(operation.name)
        return operation.run()

    with watching(watch):
        runner.run([step_of(0, 0, 0)])
    assert order[-3:] == ["finish_step", "report", "soft_embeddings"]


def test_more_segments_than_the_largest_graph_run_in_turns(packed: PackedTransformer) -> None:
    runner, whole = new_runner(packed), new_runner(packed)
    prompt = ids(7, 300)  # 19 segments of 16 rows
    chunks = [Encode(slot=0, start=at, token_ids=prompt[at : at + 256]) for at in (0, 256)]
    others = [Encode(slot=1, start=at, token_ids=prompt[at : at + 256]) for at in (0, 256)]
    meanwhile = list[object]()
    work = [*chunks, *others, step_of(0, 300, 0), step_of(1, 300, 0, seed=100)]
    results = runner.run(work, lambda: meanwhile.append(None))
    assert meanwhile == [None]
    whole.run(chunks)
    assert np.array_equal(results[0].argmax_canvas, results[1].argmax_canvas)
    assert same(results[0], whole.run([step_of(0, 300, 0)])[0])


def test_what_is_prepared_while_a_step_runs_is_what_runs_next(
    packed: PackedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written again for it. If something else runs instead, that is not disturbed."""
    ahead, plainly, written = new_runner(packed), new_runner(packed), list[int]()
    write = StepBuffers.write
    monkeypatch.setattr(StepBuffers, "write", lambda self, *given: (written.append(1), write(self, *given))[1])
    prompts = [Encode(slot=slot, start=0, token_ids=ids(slot, 20)) for slot in range(2)]
    steps = [[step_of(0, 20, step), step_of(1, 20, step, constraint=Allowed(16, pins={2: 77}))] for step in range(3)]
    for runner in (ahead, plainly):
        runner.run(prompts)
    written.clear()
    first = ahead.run(steps[0], lambda: ahead.prepare(steps[1]))
    second = ahead.run(steps[1], lambda: ahead.prepare(steps[2]))
    assert len(written) == 3
    other = [Encode(slot=2, start=0, token_ids=ids(2, 5)), steps[2][0]]
    third = ahead.run(other)
    assert len(written) == 4
    assert [first, second, third] == [plainly.run(work) for work in (steps[0], steps[1], other)]
    ahead.prepare(other)
    for _ in range(2):  # what is prepared is sent once
        ahead.run(other)
    assert len(written) == 4 + 2 + 3  # the plain runner's three


def test_forwards_that_need_images_or_graphs_or_several_launches_are_not_prepared(packed: PackedTransformer) -> None:
    runner = new_runner(packed)
    many = [Encode(slot=slot, start=0, token_ids=ids(slot, 300)) for slot in range(2)]
    picture = Image(patches=torch.zeros(9, 768).byte(), rows=3, columns=3, tokens=1, digest=b"")
    shown = Encode(slot=0, start=0, token_ids=ids(0, 9), images=(PlacedImage(start=2, content=picture),))
    for ready in (False, True):
        for work, possible in (([step_of(0, 20, 1)], ready), (many, False), ([shown], False)):
            runner.prepare(work)
            assert (runner._prepared is not None) == possible
        runner.bucket(1)


def test_adapters_beside_each_other_answer_as_alone(plain: Transformer, packed: PackedTransformer) -> None:
    prompt, twins = ids(8, 20), {}
    for seed, name in enumerate("ab"):
        adapter = random_adapter(plain, seed, size=0.5)
        source = adapter.applied(plain.state_dict().__getitem__)
        twins[name] = PackedTransformer(repack(packed.packed, source, set(adapter.factors)))
    first = new_runner(packed)
    together = RunnerByAdapter(first, {name: first.for_model(twin) for name, twin in twins.items()})
    names = (None, "a", "b")
    together.run([Encode(slot=slot, start=0, token_ids=prompt, adapter=name) for slot, name in enumerate(names)])
    results = [
        together.run([step_of(slot, 20, step, adapter=name, seed=1) for slot, name in enumerate(names)])
        for step in range(3)
    ]
    happened = []
    again = [step_of(slot, 20, 2, adapter=name, seed=1) for slot, name in enumerate(names)]
    together.run(again, lambda: happened.append(together.prepare(again)))
    assert happened == [None]  # once, though there are three forwards
    assert first._prepared is None
    own = [step_of(0, 20, 2, seed=1)]
    together.run(own, lambda: together.prepare(own))
    assert first._prepared is not None
    together.prepare(again[1:2])
    assert first._prepared is None
    for slot, name in enumerate(names):
        alone = new_runner(packed if name is None else twins[name])
        alone.run([Encode(slot=slot, start=0, token_ids=prompt)])
        for step in range(3):
            assert results[step][slot] == alone.run([step_of(slot, 20, step, seed=1)])[0]
    assert len({one.argmax_canvas.tobytes() for one in results[-1]}) == 3


def test_requests_may_have_a_single_page(packed: PackedTransformer) -> None:
    short, long = new_runner(packed, 256), new_runner(packed)
    for runner in (short, long):
        runner.run([Encode(slot=1, start=0, token_ids=ids(8, 30))])
    assert same(long.run([step_of(1, 30, 0)])[0], short.run([step_of(1, 30, 0)])[0])


def test_working_memory_of_the_26b_model_is_bounded() -> None:
    """The logits of 2,048 rows, and as many with constraints, are the largest part: 2 GiB, however many canvases."""
    config = preset("26b-a4b")
    one, sixteen, most = (working_bytes(config, segments, 2) / 1e9 for segments in (1, 16, 32))
    assert one < 0.8
    assert 2.6 < sixteen < most < 4.7
    assert working_bytes(config, 16, 2, fp8_vocabulary=True) / 1e9 - sixteen == pytest.approx(2**30 / 1e9)


@pytest.mark.parametrize(("slots", "prompt", "most"), [(3, 0, 6), (5, 0, 12), (1, 64, 6), (3, 64, 12), (40, 64, 32)])
def test_warming_up_captures_what_all_slots_can_need(
    packed: PackedTransformer, monkeypatch: pytest.MonkeyPatch, slots: int, prompt: int, most: int
) -> None:
    """Prompts, commits and canvases of all slots, of the base and of every adapter, and nothing without graphs."""
    captured = []
    monkeypatch.setattr("redraft.engine.graph_runner.GraphMemory", lambda device: "pool")
    monkeypatch.setattr(
        "redraft.engine.graph_runner.CapturedStep",
        lambda buffers, step, pool: captured.append(buffers.fields.count),
    )
    monkeypatch.setattr(GraphRunner, "_take_constrained_steps", lambda self: captured.append("limited"))
    limits = replace(new_runner(packed).limits, slots=slots, prompt=prompt)
    assert limits.canvas == 16
    runner = GraphRunner(packed, limits, graphs=True)
    RunnerByAdapter(runner, {"other": runner.for_model(packed)}).warm_up()
    sizes = [*(size for size in reversed(BUCKETS) if size <= most), "limited"]
    assert captured == [*sizes, *sizes]
    GraphRunner(packed, limits, graphs=False).warm_up()
    assert len(captured) == 2 * len(sizes)


def test_the_canvases_that_warm_up_leave_nothing_behind(packed: PackedTransformer) -> None:
    warm, fresh = (GraphRunner(packed, new_runner(packed).limits, graphs=False) for _ in range(2))
    warm._take_constrained_steps()
    assert not any(table.any() for table in warm.shared.pages.tables.values())
    for runner in (warm, fresh):
        runner.assign(0, [0, 1], [0, 1])
        runner.run([Encode(slot=0, start=0, token_ids=ids(1, 40))])
    assert same(warm.run([step_of(0, 40, 0)])[0], fresh.run([step_of(0, 40, 0)])[0])


@pytest.mark.parametrize("gpus", [1, 2])
def test_images_are_what_the_eager_runner_makes_of_them(plain: Transformer, config: ModelConfig, gpus: int) -> None:
    """Longer than a segment, within one, and over the end of one, in several launches; the canvas behind them too."""
    seeing = copy.deepcopy(plain)
    seeing.config = replace(config, extra=dict(config.extra))
    torch.manual_seed(2)
    seeing.vision = tower_of(seeing.config).eval()
    device = torch.device("cpu")
    source, given = seeing.state_dict().__getitem__, {"other_devices": [device] * (gpus - 1), "dtype": torch.float32}
    packed = PackedTransformer(pack(seeing.config, source, device=device, **given), seeing.vision)
    shown = [
        Image(patches=torch.randint(256, (9 * n, 768)).byte(), rows=3, columns=3 * n, tokens=n, digest=bytes([n]))
        for n in (20, 4, 30)
    ]
    told = place_images([*ids(1, 5), 256, 7, 256, *ids(2, 9), 256, *ids(3, 4)], shown, (17, 256, 20))
    prompt = tuple(token if token < 256 else 19 for token in told.ids)
    limits = new_runner(packed).limits
    runners = EagerRunner(seeing, limits), GraphRunner(packed, limits)
    records = []
    for runner in runners:
        runner.assign(0, (4, 1), (1, 4))
        runner.assign(1, (7, 2), (2, 7))
        runner.run([
            *(Encode(slot=1, start=at, token_ids=ids(at, 16)) for at in range(0, 16 * 30, 16)),
            Encode(slot=0, start=0, token_ids=prompt, images=told.images),
        ])  # fmt: skip
        records.append([runner.run([step_of(0, len(prompt), step)])[0] for step in range(STEPS)])
    assert all(same(one, other) for one, other in zip(*records, strict=True))
    plainly_told = EagerRunner(seeing, limits)
    plainly_told.assign(0, (4, 1), (1, 4))
    plainly_told.run([Encode(slot=0, start=0, token_ids=prompt)])
    assert not same(records[0][0], plainly_told.run([step_of(0, len(prompt), 0)])[0])


def test_pages_that_others_share_are_cleaned_by_the_last_one(packed: PackedTransformer) -> None:
    """Zeros would look right to whoever shares them. Page 6 was given back before anything was known of it."""
    runner = new_runner(packed)
    runner.assign(0, (6,), (6,))
    for slot in (0, 1, 2):
        runner.assign(slot, (0, 3 + slot), (0, 3 + slot))
        runner.run([Encode(slot=slot, start=256, token_ids=ids(slot, 20))])
    values = runner.shared.pages.stored[0].values[0]
    for page in (0, 3, 6):
        values[page, 7] = np.nan

    def broken() -> list[int]:
        return [page for page, held in enumerate(values) if not held.isfinite().all()]

    runner.release(0)
    assert broken() == [0]
    runner.release(1)
    assert broken() == [0]
    runner.release(2)
    assert not broken()


def test_who_has_taken_over_a_page_and_not_run_since_cleans_it(packed: PackedTransformer) -> None:
    runner = new_runner(packed)
    runner.assign(0, (0, 3), (0, 3))
    runner.run([Encode(slot=0, start=0, token_ids=ids(0, 256))])
    runner.assign(1, (0,), (0,))
    values = runner.shared.pages.stored[0].values[0]
    values[0, 7] = np.nan
    runner.release(0)
    assert not values[0].isfinite().all()
    assert not runner.release(1)
    assert values[0].isfinite().all()


def test_a_page_is_clean_for_who_gets_it_while_nothing_is_known_of_who_gave_it_back(packed: PackedTransformer) -> None:
    """As a long prompt does with pages that no window reaches any more; those that are shared stay as they are."""
    runner = new_runner(packed)
    runner.assign(0, (4, 1), (4, 1))
    runner.run([Encode(slot=0, start=0, token_ids=ids(0, 256)), Encode(slot=0, start=256, token_ids=ids(1, 20))])
    values = runner.shared.pages.stored[0].values[0]
    for page in (4, 1):
        values[page, 200] = np.nan
    runner.assign(1, (4, 2), (1, 4))
    runner.assign(0, (4, 1), (-1, 1))
    for _ in range(2):
        runner.run([Encode(slot=1, start=256, token_ids=ids(2, 20))])
        assert [bool(values[page].isfinite().all()) for page in (4, 1)] == [True, False]


def test_a_page_is_clean_for_who_was_to_get_it_when_the_one_who_gave_it_back_failed(packed: PackedTransformer) -> None:
    """The next forward is planned while one runs, so a page may have a new owner before the old one is known to fail.
    Those that were shared stay as they are."""
    runner = new_runner(packed)
    values = runner.shared.pages.stored[0].values[0]
    for sliding in ((5, 1), (4, 1)):
        runner.assign(0, (4, 1), sliding)
        runner.run([Encode(slot=0, start=0, token_ids=ids(0, 256)), Encode(slot=0, start=256, token_ids=ids(1, 20))])
        values[sliding[0], 200] = np.nan
    runner.assign(0, (4, 1), (-1, 1))
    runner.assign(1, (7, 2), (7, 4))  # is to write to page 4
    runner.assign(2, (3, 8), (5, 8))  # reads page 5, too
    runner.release(0)
    runner.run([Encode(slot=slot, start=256, token_ids=ids(2, 20)) for slot in (1, 2)])
    assert [bool(values[page].isfinite().all()) for page in (4, 5)] == [True, False]


def test_pages_that_cannot_be_cleaned_at_once_are_cleaned_before_they_are_used_again(
    packed: PackedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = new_runner(packed)
    runner.run([Encode(slot=0, start=0, token_ids=ids(0, 20))])
    values = runner.shared.pages.stored[0].values
    values[0][4, 7] = np.nan

    def fails(*pages: object) -> None:
        raise torch.OutOfMemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr("redraft.model.packed.pages._clean", fails)
        assert not runner.release(0)
        with pytest.raises(torch.OutOfMemoryError):
            runner.run([Encode(slot=1, start=0, token_ids=ids(1, 20))])
    runner.assign(1, (4,), (4,))
    (result,) = runner.run([Encode(slot=1, start=0, token_ids=ids(1, 20)), step_of(1, 20, 0)])
    assert np.isfinite(result.entropy).all()
    assert all(pool.isfinite().all() for pool in values)


def test_a_step_that_fails_half_way_is_waited_for(packed: PackedTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one writes to the same buffers, which the device may not have read yet."""
    runner, order = new_runner(packed), list[str]()
    work = [Encode(slot=0, start=0, token_ids=ids(0, 20)), step_of(0, 20, 0, constraint=Allowed(16, pins={2: 77}))]
    launch, give_up = CapturedStep.launch, CapturedStep.give_up
    monkeypatch.setattr(CapturedStep, "launch", lambda self: (order.append("launch"), launch(self))[1])
    monkeypatch.setattr(CapturedStep, "give_up", lambda self: (order.append("give up"), give_up(self))[1])

    def fails(*given: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("redraft.engine.graph_runner.sample_constrained", fails)
        with pytest.raises(MemoryError):
            runner.run(work)
    assert order == ["launch", "give up"]
    assert runner.run(work) == new_runner(packed).run(work)


@pytest.mark.parametrize(("length", "rows"), [(16, 16), (20, 32), (256, 256), (500, 512)])
def test_rows_of_a_canvas_are_a_multiple_of_16(packed: PackedTransformer, length: int, rows: int) -> None:
    odd = copy.copy(packed)
    odd.config = replace(packed.config, canvas_length=length)
    assert engine_runner(odd, EngineSettings(memory_gb=0.05)).limits.canvas == rows


@pytest.mark.parametrize("kv_dtype", [None, FP8])
def test_pages_that_are_given_back_hold_numbers(
    plain: Transformer, packed: PackedTransformer, kv_dtype: torch.dtype | None
) -> None:
    """Kernels read whole tiles: what a broken model left in a page must not reach the next request there."""
    runner = new_runner(packed, kv_dtype=kv_dtype)
    broken = copy.deepcopy(plain)
    broken.get_parameter("layers.0.attention.q_proj.weight").data[0, 0] = np.nan
    source = broken.state_dict().__getitem__
    other = runner.for_model(
        PackedTransformer(pack(plain.config, source, device=torch.device("cpu"), dtype=torch.float32))
    )

    stored = runner.shared.pages.stored[0]

    def finite() -> list[bool]:
        return [bool(pool.float().isfinite().all()) for pool in (*stored.keys, *stored.values)]

    runner.run([Encode(slot=0, start=0, token_ids=ids(1, 40)), step_of(0, 40, 0)])
    before = [pool.float() for pool in stored.keys]
    assert runner.release(0)
    assert all(map(torch.equal, before, (pool.float() for pool in stored.keys)))
    for work in ([Encode(slot=1, start=0, token_ids=ids(2, 300))], [step_of(1, 300, 0)]):
        other.run(work)
        assert not all(finite())
    assert not runner.release(1)
    assert all(finite())
    assert all(torch.equal(old[4], pool[4].float()) for old, pool in zip(before, stored.keys, strict=True))

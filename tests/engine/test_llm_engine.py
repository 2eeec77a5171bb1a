"""What `LLM` makes of its engine: streams side by side, confidence in results, changed weights noticed."""

import dataclasses
import gc
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import redraft
from random_adapter import random_adapter
from redraft.cache.paged import page_bytes
from redraft.diffusion.records import Commit, DenoiseStep
from redraft.engine.build import limits_for, new_runner
from redraft.engine.engines import WeightChanges
from redraft.engine.settings import EngineSettings
from redraft.engine.work import DenoiseResult, Limits, Segment
from redraft.errors import ConstraintError, PromptError, SettingError
from redraft.eval.files import DATA
from redraft.eval.sudoku import TASK
from redraft.keywords import AnswerKeywords
from redraft.llm import LLM
from redraft.model import Transformer
from redraft.model.initialise import initialise
from redraft.model.presets import preset
from redraft.text.tokenizer import Tokenizer

SHORT: AnswerKeywords = {"max_tokens": 24, "steps": 3}


@pytest.fixture
def llm() -> LLM:
    config = dataclasses.replace(preset("nano"), vocab_size=16_384, max_position_embeddings=1024, eos_token_id=(1,))
    model = Transformer(config).eval()
    initialise(model, 3)
    assets = Path(str(files("redraft") / "assets" / "tiny"))
    return LLM(model, Tokenizer.from_folder(assets), None, path=assets)


def long_prompt() -> list[int]:
    return [2, *range(100, 700)]


def test_streams_side_by_side_do_not_mix(llm: LLM) -> None:
    alone = [list(llm.stream([2, 40 + i], seed=i, **SHORT)) for i in range(2)]
    pairs = zip(*(llm.stream([2, 40 + i], seed=i, **SHORT) for i in range(2)), strict=True)
    assert [list(side) for side in zip(*pairs, strict=True)] == alone


def test_an_answer_with_a_cached_prompt_equals_one_without(llm: LLM) -> None:
    first, second = (llm.generate(long_prompt(), **SHORT) for _ in range(2))
    assert first.stats.cached_tokens < second.stats.cached_tokens
    assert first == second


def test_constraints_are_rehearsed_once_for_equal_requests_before_a_forward(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, happened = llm.engine.runner, list[tuple[object, ...]]()
    run = runner.run
    monkeypatch.setattr(runner, "rehearse", lambda *asked, biased: happened.append((*asked, biased)))
    monkeypatch.setattr(runner, "run", lambda *given: happened.append(()) or run(*given))
    llm.generate_batch([[2, 40], [2, 41]], regex="[a-z ]{3,9}", **SHORT)
    assert happened[0] == happened[1]
    assert happened[0][1:] == (16, 24, False)
    assert happened[2] == ()
    happened.clear()
    llm.engine.rehearse(llm.request([2, 40], regex="[a-z ]{3,9}", logit_bias={5: 1}, **SHORT))
    assert happened.pop()[1:] == (16, 24, True)
    with pytest.raises(ConstraintError, match=r"max_tokens is 24, but .* has 40 tokens"):
        llm.engine.rehearse(llm.request([2, 40], regex="[0-9]{40}", **SHORT))
    assert happened == []


def test_threads_get_their_own_answers(llm: LLM) -> None:
    prompts = [[2, 40 + i] for i in range(12)]
    alone = [llm.generate(prompt, **SHORT).token_ids for prompt in prompts]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda prompt: llm.generate(prompt, **SHORT).token_ids, prompts))
    assert together == alone
    assert not llm.engine.busy


def test_threads_share_one_engine(llm: LLM) -> None:
    with ThreadPoolExecutor(6) as pool:
        engines = list(pool.map(lambda _: llm.engine, range(6)))
    assert len(set(map(id, engines))) == 1


def test_a_stream_that_is_left_costs_nothing_more(llm: LLM) -> None:
    next(llm.stream([2, 50], **SHORT))
    assert not llm.engine.stats().running
    assert not llm.engine.busy


def test_a_stream_that_is_collected_during_a_forward_disturbs_no_other(llm: LLM) -> None:
    expected = llm.generate([2, 51], **SHORT).token_ids
    run_forward = llm.engine.runner.run

    def collecting(work: Sequence[Segment], meanwhile: Callable[[], None]) -> list[DenoiseResult]:
        results = run_forward(work, meanwhile)
        gc.collect()
        return results

    llm.engine.runner.run = collecting  # type: ignore[method-assign]
    gc.disable()
    try:
        stream = llm.stream([2, 50], **SHORT)
        next(stream)
        cycle: list[object] = [stream]
        cycle.append(cycle)
        del stream, cycle
        assert llm.generate([2, 51], **SHORT).token_ids == expected
    finally:
        gc.enable()
    assert not llm.engine.busy
    assert not llm.engine.stats().running


def test_a_stream_that_was_read_to_its_end_has_the_result(llm: LLM) -> None:
    stream = llm.stream([2, 50], **SHORT)
    next(stream)
    assert stream.result is None
    list(stream)
    expected = llm.generate([2, 50], **SHORT)
    assert stream.result is not None
    assert (stream.result.token_ids, stream.result.tokens) == (expected.token_ids, expected.tokens)
    assert stream.result.stats.prompt_tokens == 2


def test_a_closed_stream_has_no_result_and_stops(llm: LLM) -> None:
    stream = llm.stream([2, 50], **SHORT)
    next(stream)
    stream.close()
    assert list(stream) == []
    assert stream.result is None
    assert not llm.engine.busy


def test_a_result_says_how_sure_the_model_was_of_each_token(llm: LLM) -> None:
    result = llm.generate([2, 50], logprobs=2, **SHORT)
    assert tuple(token.token_id for token in result.tokens) == result.token_ids
    assert {len(token.top) for token in result.tokens} == {2}
    steps = [record for record in llm.stream([2, 50], **SHORT) if isinstance(record, DenoiseStep)]
    last = next(step for step in reversed(steps) if step.canvas_index == 0)
    assert [token.entropy for token in result.tokens[:16]] == list(last.entropy)


def test_a_repeated_prompt_is_not_encoded_again(llm: LLM) -> None:
    first, again = llm.generate(long_prompt(), **SHORT), llm.generate(long_prompt(), **SHORT)
    assert (first.stats.cached_tokens, again.stats.cached_tokens) == (0, 512)
    assert again.token_ids == first.token_ids


def test_changed_weights_are_noticed(llm: LLM) -> None:
    before = llm.generate(long_prompt(), **SHORT)
    with torch.no_grad():
        llm.model.layers[0].attention.k_proj.weight.mul_(-1.0)  # type: ignore[union-attr]
    after = llm.generate(long_prompt(), **SHORT)
    assert after.stats.cached_tokens == 0
    fresh = LLM(llm.model, llm.tokenizer, None, path=llm.path).generate(long_prompt(), **SHORT)
    assert before.token_ids != after.token_ids == fresh.token_ids


def test_a_weight_that_was_replaced_twice_is_noticed_wherever_the_last_one_lies(llm: LLM) -> None:
    """The second replacement often gets the memory of the weight that was seen last, and starts with as few writes."""
    linear, seen = llm.model.layers[0].attention.o_proj, WeightChanges([llm.model])  # type: ignore[union-attr]
    counts = [seen(), seen()]
    with torch.no_grad():
        for _ in range(20):
            for _ in range(2):
                linear.weight = torch.nn.Parameter(torch.randn_like(linear.weight), requires_grad=False)
            counts.append(seen())
    assert counts == [1, 1, *range(2, 22)]


def test_an_adapter_that_comes_while_another_thread_asks_disturbs_nobody(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = llm.generate([2, 50], **SHORT)
    adapter, parameters = random_adapter(llm.model, 0), Transformer.parameters
    monkeypatch.setattr("redraft.llm.adapter_for", lambda *_, **__: adapter)

    def add_in_between(model: Transformer) -> Iterator[nn.Parameter]:
        monkeypatch.setattr(Transformer, "parameters", parameters)
        llm.add_adapter("late", "anywhere")
        return parameters(model)

    monkeypatch.setattr(Transformer, "parameters", add_in_between)
    assert llm.generate([2, 50], **SHORT).token_ids == expected.token_ids
    assert llm.with_adapter("late").generate([2, 50], **SHORT).token_ids


def test_a_moved_model_gets_a_new_engine(llm: LLM) -> None:
    llm.generate([2, 50], **SHORT)
    llm.model.to(torch.bfloat16)
    assert len(llm.generate([2, 50], **SHORT).token_ids) <= 24


def test_adapters_move_with_their_model(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = random_adapter(llm.model, 0)
    monkeypatch.setattr("redraft.llm.adapter_for", lambda *_, **__: adapter)
    llm.add_adapter("tuned", "anywhere")
    other = llm.with_adapter("tuned")
    before = other.generate([2, 50], **SHORT)
    llm.model.double()
    assert llm.generate([2, 50], **SHORT).token_ids
    assert other.model.dtype == torch.float64
    assert other.generate([2, 50], **SHORT).token_ids == before.token_ids


def test_keys_in_fp8_are_counted_by_the_weights_that_there_are(llm: LLM) -> None:
    settings = EngineSettings(kv_cache_dtype="fp8", memory_gb=0.1)
    ours, other = (LLM(llm.model, llm.tokenizer, None, path=llm.path, settings=settings) for _ in range(2))
    ours.generate(long_prompt(), **SHORT)
    with torch.no_grad():
        for layer in llm.model.layers:
            layer.attention.k_norm.weight.mul_(64)  # type: ignore[union-attr]
            layer.attention.q_norm.weight.div_(64)  # type: ignore[union-attr]
    after, expected = (one.generate(long_prompt(), **SHORT) for one in (ours, other))
    assert after.tokens == expected.tokens


def test_a_fitting_canvas_may_end_where_the_context_does(llm: LLM) -> None:
    context = llm.model.config.max_position_embeddings
    prompt = [2, *range(100, 100 + context - 17)]
    given = {"max_tokens": 16, "steps": 2, "canvas_length": 32}
    assert llm.generate(prompt, fit_canvas=True, **given).stats.canvases == 1
    with pytest.raises(PromptError, match="at most"):
        llm.generate(prompt, **given)


@pytest.mark.parametrize(
    ("left", "asked", "given"), [(48, 40, 40), (48, None, 48), (40, None, 32), (17, None, 16), (112, 97, 97)]
)
def test_a_fitting_last_canvas_counts_as_long_as_it_is(llm: LLM, left: int, asked: int | None, given: int) -> None:
    """With canvases of 32: 40 tokens take 32 + 16 positions."""
    prompt = [2] * (llm.model.config.max_position_embeddings - left)
    named = {} if asked is None else {"max_tokens": asked}
    assert llm.request(prompt, canvas_length=32, fit_canvas=True, **named).settings.max_tokens == given


def test_what_does_not_fit_even_so_is_refused_with_what_does(llm: LLM) -> None:
    prompt = [2] * (llm.model.config.max_position_embeddings - 50)
    with pytest.raises(SettingError, match="has room for only 48"):
        llm.request(prompt, canvas_length=32, fit_canvas=True, max_tokens=49)
    context = llm.model.config.max_position_embeddings
    with pytest.raises(PromptError, match=f"with a canvas of 16 it must have at most {context - 16}[.]"):
        llm.request([2] * (context - 15), canvas_length=32, fit_canvas=True)


def test_answers_in_bf16_are_the_same_alone_and_together() -> None:
    """Of the shipped model, whose sums are long enough that libraries cut them; one prompt comes in chunks."""
    settings = EngineSettings(prompt_tokens=256, prefix_cache=False)
    loaded = redraft.load("tiny", device="cpu", dtype="bfloat16")
    llm = LLM(loaded.model, loaded.tokenizer, loaded.template, path=loaded.path, settings=settings)
    text = (Path(redraft.__file__).parent / "engine" / "scheduler.py").read_text(encoding="utf-8")
    prompts = [llm.tokenizer.encode(text)[at : at + size] for at, size in ((0, 30), (40, 9), (60, 300), (200, 70))]
    short = {"max_tokens": 64, "steps": 5}
    together = [result.token_ids for result in llm.generate_batch(prompts, **short)]
    assert [llm.generate(prompt, **short).token_ids for prompt in prompts] == together


def test_the_pages_of_a_moved_model_are_given_back_before_others_are_taken(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, alive = weakref.ref(llm.engine.runner), list[bool]()

    def watched(*given: Any) -> Any:
        alive.append(runner() is not None)
        return new_runner(*given)

    monkeypatch.setattr("redraft.engine.engines.new_runner", watched)
    gc.disable()
    llm.model.double()
    assert llm.engine.runner is not None
    gc.enable()
    assert alive == [False]


def test_an_llm_that_is_dropped_leaves_nothing(llm: LLM) -> None:
    """Without waiting for a garbage collection: the next model may need the memory."""
    other = LLM(llm.model, llm.tokenizer, None, path=llm.path)
    other.generate([2, 40], **SHORT)
    left = weakref.ref(other.engine), weakref.ref(other.engine.runner)
    gc.disable()
    del other
    gc.enable()
    assert [one() for one in left] == [None, None]


def test_a_prompt_shrinks_only_its_own_answer(llm: LLM) -> None:
    """Without max_tokens a long prompt leaves room for little; its neighbour's answer is not cut to that."""
    together = llm.generate_batch([[2, *range(5, 1000)], [2, 50]], steps=1)
    assert len(together[0].token_ids) <= 16
    assert together[1].token_ids == llm.generate([2, 50], steps=1).token_ids


def test_a_latency_budget_is_kept_and_reported(llm: LLM) -> None:
    llm.generate([2, 50], **SHORT)
    hurried = llm.generate([2, 50], max_tokens=16, steps=4000, confidence_threshold=1e-12, latency_budget_ms=300)
    (chosen,) = hurried.stats.step_budgets
    assert chosen == hurried.stats.steps[0] < 4000


def test_a_request_is_what_generate_would_ask(llm: LLM) -> None:
    request = llm.request([2, 50], request_id=9, timeout=3.0, drafts=False, seed=4, **SHORT)
    assert (request.request_id, request.prompt, request.settings.seed, request.settings.steps) == (9, (2, 50), 4, 3)
    engine = llm.new_engine(EngineSettings(slots=2))
    commits = [event for event in engine.answer([request]) if isinstance(event, Commit)]
    assert sum((c.token_ids for c in commits), ()) == llm.generate([2, 50], seed=4, **SHORT).token_ids


def test_requests_of_a_caller_stand_in_nobodys_way(llm: LLM) -> None:
    events = llm.engine.answer([llm.request([2, 50], **SHORT)])
    next(events)
    between = llm.generate([2, 51], **SHORT)
    assert between.token_ids == llm.generate([2, 51], **SHORT).token_ids
    commits = [event for event in events if isinstance(event, Commit)]
    assert sum((c.token_ids for c in commits), ()) == llm.generate([2, 50], **SHORT).token_ids


def test_settings_of_an_engine_are_checked() -> None:
    with pytest.raises(SettingError, match="policy is 'fair'; it must be one of mixed"):
        EngineSettings(policy="fair")
    with pytest.raises(SettingError, match=r"policy is \['mixed'\]; it must be one of mixed"):
        EngineSettings(policy=["mixed"])  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="slots is 0"):
        EngineSettings(slots=0)
    with pytest.raises(SettingError, match="memory_gb is -1"):
        EngineSettings(memory_gb=-1)
    for memory_gb in (math.inf, math.nan, 10**400):
        with pytest.raises(SettingError, match="memory_gb is too large or not a number"):
            EngineSettings(memory_gb=memory_gb)
    for name, value in (("slots", "4"), ("slots", 2.5), ("memory_gb", "1"), ("prefix_cache", 5)):
        with pytest.raises(SettingError, match=f"{name} is {value!r}; it must be of type"):
            EngineSettings(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="slots is too large"):
        EngineSettings(slots=10**400)
    with pytest.raises(SettingError, match="kv_cache_dtype is 'int8'; it must be one of auto, fp8"):
        redraft.load(kv_cache_dtype="int8")
    for name, value in (("vision", 1), ("gpus", True), ("slots", True), ("memory_gb", True)):
        with pytest.raises(SettingError, match=f"{name} is {value!r}; it must be of type"):
            redraft.load(**{name: value})  # type: ignore[arg-type]


def test_fp8_keys_and_values_take_a_quarter_of_fp32s_bytes_and_still_answer() -> None:
    whole, small = (redraft.load(kv_cache_dtype=name, device="cpu", dtype="float32") for name in ("auto", "fp8"))
    scarce = (dataclasses.replace(llm.engine.settings, memory_gb=0.02) for llm in (whole, small))
    limits = [new_runner(whole.model, settings).limits for settings in scarce]
    pages = [limit.full_pages + limit.sliding_pages for limit in limits]
    assert 3.5 * pages[0] < pages[1] < 4.5 * pages[0]
    puzzles = TASK.items(DATA / "sudoku_36.csv")[:2]
    assert TASK.evaluate(small, puzzles).solved == 2
    prompt = TASK.prompt(whole, puzzles[0])
    first = [next(llm.stream(prompt, max_tokens=256)) for llm in (whole, small)]
    assert isinstance(first[0], DenoiseStep)
    assert isinstance(first[1], DenoiseStep)
    assert first[0].entropy != first[1].entropy


@pytest.mark.parametrize("context", [2048, 4096, 262_144])
def test_pages_leave_no_room_for_another_that_the_slots_could_use(context: int) -> None:
    """From one page of each space on."""
    config = dataclasses.replace(preset("tiny"), max_position_embeddings=context)
    sizes, settings = page_bytes(config, 4), EngineSettings()
    whole = _pages(limits_for(config, settings, 10**13, 4))
    for budget in (sum(sizes), *range(3 * 10**6, 2 * 10**9, 9 * 10**6)):
        pages = _pages(limits_for(config, settings, budget, 4))
        left = budget - sum(count * size for count, size in zip(pages, sizes, strict=True))
        assert left >= 0
        for count, most, size in zip(pages, whole, sizes, strict=True):
            assert 1 <= count <= most
            assert count == most or left < size
    with pytest.raises(SettingError, match=f"takes {sum(sizes)} bytes; the memory for pages is only {sum(sizes) - 1}"):
        limits_for(config, settings, sum(sizes) - 1, 4)


def _pages(limits: Limits) -> tuple[int, int]:
    return limits.full_pages, limits.sliding_pages


def test_a_budget_below_a_page_is_refused_with_the_numbers(llm: LLM) -> None:
    with pytest.raises(SettingError, match=r"A page of 256 tokens takes .* the memory for pages is only 1000"):
        llm.new_engine(EngineSettings(memory_gb=1e-6))

"""Adapters by name in one engine: each request is answered by its own, whatever else runs."""

import asyncio
import copy
import dataclasses
from collections.abc import Sequence

import pytest
import torch
from asking import CANVAS, add, ask, end_of, prompt, run, untimed

from random_adapter import random_adapter
from redraft.cache.prefix import prefix_keys
from redraft.engine.adapters import RunnerByAdapter
from redraft.engine.async_engine import MOST_FAILURES, AsyncEngine
from redraft.engine.build import new_runner
from redraft.engine.engine import Engine
from redraft.engine.request import Failed, Request
from redraft.engine.settings import EngineSettings
from redraft.engine.work import Encode, Segment
from redraft.errors import NotFiniteError, SettingError
from redraft.model import Transformer
from redraft.model.adapters import Adapter, merge, with_adapter
from spelled import Spelled

PAGES = 600
"""Prompt tokens: two whole pages and a bit."""


@pytest.fixture(scope="module")
def adapters(model: Transformer) -> dict[str, Adapter]:
    return {"dense": random_adapter(model, 1), "experts": random_adapter(model, 2, r"(experts\.\w+|router)_?proj")}


@pytest.fixture(scope="module")
def twins(model: Transformer, adapters: dict[str, Adapter]) -> dict[str, Transformer]:
    return {name: with_adapter(model, adapter) for name, adapter in adapters.items()}


def engine_of(model: Transformer, twins: dict[str, Transformer], **given: object) -> Engine:
    settings = EngineSettings(**{"slots": 8, "prompt_tokens": 256, "memory_gb": 1.0, **given})  # type: ignore[arg-type]
    return Engine(
        new_runner(model, settings, twins), Spelled(), vocab_size=256, canvas_length=CANVAS, eos_ids=(),
        settings=settings, adapters=twins,
    )  # fmt: skip


def mixed(length: int) -> list[Request]:
    """Requests that take turns with their adapters; pairs share a prompt."""
    names = (None, "dense", "experts", None, "experts", "dense")
    asked = [ask(i, length, adapter=name) for i, name in enumerate(names)]
    return [dataclasses.replace(one, prompt=prompt(length, i % 2)) for i, one in enumerate(asked)]


@pytest.mark.parametrize("policy", ["mixed", "step-homogeneous", "run-to-completion"])
def test_an_answer_is_the_same_alone_and_beside_other_adapters(
    model: Transformer, twins: dict[str, Transformer], policy: str
) -> None:
    requests = mixed(300)
    together = run(engine_of(model, twins, policy=policy), requests)
    for request in requests:
        alone = run(engine_of(model, twins), [request])
        assert untimed(alone[request.request_id]) == untimed(together[request.request_id])


def test_an_adapter_answers_like_the_merged_model(
    model: Transformer, adapters: dict[str, Adapter], twins: dict[str, Transformer]
) -> None:
    answers = run(engine_of(model, twins), mixed(40))
    changed = set()
    for name, adapter in adapters.items():
        merged = copy.deepcopy(model)
        merge(merged, adapter)
        engine = engine_of(merged, {})
        for request in mixed(40):
            if request.adapter == name:
                plain = run(engine, [dataclasses.replace(request, adapter=None)])
                assert untimed(plain[request.request_id]) == untimed(answers[request.request_id])
                without = run(engine_of(model, {}), [dataclasses.replace(request, adapter=None)])
                changed.add(end_of(without[request.request_id]).text != end_of(answers[request.request_id]).text)
    assert changed == {True}


def test_adapters_never_share_pages_of_a_prompt(model: Transformer, twins: dict[str, Transformer]) -> None:
    engine = engine_of(model, twins)
    text = prompt(PAGES, 3)
    reused = []
    for number, name in enumerate((None, "dense", "experts", "dense", None)):
        request = dataclasses.replace(ask(number, adapter=name), prompt=text)
        events = run(engine, [request])[number]
        reused.append(end_of(events).stats.cached_tokens)
        fresh = run(engine_of(model, twins, prefix_cache=False), [request])[number]
        assert untimed(events) == untimed(fresh)
    assert reused == [0, 0, 0, 512, 512]


def test_keys_of_a_prefix_differ_by_adapter() -> None:
    keys = [prefix_keys(range(512), adapter) for adapter in (None, "", "a", "b")]
    assert len({key for one in keys for key in one}) == 8
    assert prefix_keys(range(512), "a") == keys[2]


def test_a_twin_shares_what_its_adapter_leaves_alone(
    model: Transformer, adapters: dict[str, Adapter], twins: dict[str, Transformer]
) -> None:
    before = {name: weight.data_ptr() for name, weight in model.state_dict().items()}
    for name, twin in twins.items():
        own = {weight for weight, tensor in twin.state_dict().items() if tensor.data_ptr() != before[weight]}
        assert own == set(adapters[name].factors)
        for weight in own:
            expected = (model.state_dict()[weight].float() + adapters[name].delta(weight)).to(model.dtype)
            assert torch.equal(twin.state_dict()[weight], expected)


def test_graphs_of_all_adapters_are_captured_ahead() -> None:
    captured = list[tuple[str, object]]()

    class Noting:
        limits = None

        def __init__(self, name: str) -> None:
            self.name = name

        def warm_up(self) -> None:
            captured.append((self.name, "all"))

        def capture(self, work: Sequence[Segment]) -> None:
            captured.append((self.name, work))

    runner = RunnerByAdapter(Noting("none"), {"a": Noting("a"), "b": Noting("b")})  # type: ignore[arg-type, dict-item]
    runner.warm_up()
    assert captured == [("none", "all"), ("a", "all"), ("b", "all")]
    captured.clear()
    first, *rest = (Encode(slot=slot, start=0, token_ids=(1,), adapter=name) for slot, name in enumerate("bab"))
    runner.capture([first, *rest])
    assert captured == [("b", [first, rest[1]]), ("a", [rest[0]])]


def test_an_unknown_adapter_is_refused_before_any_work(model: Transformer, twins: dict[str, Transformer]) -> None:
    engine = engine_of(model, twins)
    with pytest.raises(SettingError, match=r"There is no adapter 'sql'; there are dense, experts\."):
        add(engine, ask(1, adapter="sql"))
    with pytest.raises(SettingError, match=r"there are none"):
        add(engine_of(model, {}), ask(1, adapter="sql"))
    assert not engine.busy


@pytest.fixture(scope="module")
def broken(model: Transformer, adapters: dict[str, Adapter]) -> Transformer:
    """A twin whose numbers are none."""
    twin = with_adapter(model, adapters["dense"])
    twin.get_parameter("layers.0.attention.q_proj.weight").data[0, 0] = torch.nan
    return twin


def test_an_adapter_that_is_broken_breaks_its_own_answers_alone(model: Transformer, broken: Transformer) -> None:
    engine = engine_of(model, {"broken": broken})
    good, bad = engine.answer([ask(1, 300)]), engine.answer([ask(2, 300, adapter="broken"), ask(3)])
    events = [next(good)]
    with pytest.raises(NotFiniteError, match="or those of its adapter, are damaged"):
        list(bad)
    events += good
    assert untimed(events) == untimed(run(engine_of(model, {}), [ask(1, 300)])[1])
    told = add(engine, ask(4, adapter="broken"), ask(5))
    while engine.busy:
        engine.step()
    assert [event.request_id for event in told if isinstance(event, Failed)] == [4]
    beside = [event for event in told if event.request_id == 5]
    assert untimed(beside) == untimed(run(engine_of(model, {}), [ask(5)])[5])
    stats = engine.stats()
    assert stats.counters.ended == {"length": 2, "failed": 2, "cancelled": 1}
    assert (stats.running, stats.full_pages_used, stats.sliding_pages_used) == (0, 0, 0)
    assert stats.full_pages_cached == 1, "no page of the broken adapter is kept"


def test_broken_answers_do_not_stop_an_engine_that_serves(model: Transformer, broken: Transformer) -> None:
    engine = engine_of(model, {"broken": broken})

    async def body() -> None:
        front = AsyncEngine(engine)
        (good,) = await front.submit([ask(99, 300)])
        for i in range(2 * MOST_FAILURES):
            with pytest.raises(NotFiniteError):
                async for _ in front.stream(ask(i, adapter="broken")):
                    pass
        events = [event async for event in good]
        assert untimed(events) == untimed(run(engine_of(model, {}), [ask(99, 300)])[99])
        assert front.healthy
        await front.close()

    asyncio.run(body())

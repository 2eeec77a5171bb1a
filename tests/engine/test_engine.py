"""The engine on a small random model: concurrency never changes an answer, and everything returns."""

import dataclasses
import itertools
import math
import random
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from asking import CANVAS, SETTINGS, Make, add, ask, end_of, prompt, run, untimed

from redraft.cache.pages import PAGE
from redraft.diffusion.records import Commit, DenoiseStep
from redraft.diffusion.step import advance
from redraft.engine.answer import Answer
from redraft.engine.engine import Engine
from redraft.engine.request import Event, Failed, Finished
from redraft.engine.settings import POLICIES
from redraft.errors import EngineError, PromptError, QueueFullError, SettingError
from redraft.model import Transformer
from redraft.reference import Reference

LENGTHS = [1, 20, 255, 256, 300, 700]


def nothing_held(engine: Engine) -> bool:
    stats = engine.stats()
    return not (stats.running or stats.waiting or stats.full_pages_used or stats.sliding_pages_used or engine.busy)


def test_every_step_equals_the_reference(model: Transformer, make: Make) -> None:
    request = ask(5, 23)
    ours = [event for event in run(make(), [request])[5] if isinstance(event, DenoiseStep)]
    theirs = list(Reference(model).generate(list(request.prompt), request.settings, length=CANVAS))
    assert len(ours) == len(theirs) == 3 * SETTINGS.steps
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.entropy == pytest.approx(other.entropy, abs=2e-3)
        exact = {"entropy": (), "temperature": 0.0, "request_id": 0}
        assert dataclasses.replace(mine, **exact) == dataclasses.replace(other, **exact)
        assert mine.temperature == pytest.approx(other.temperature)


def test_canvases_come_in_order_and_then_their_tokens_and_then_the_end(make: Make) -> None:
    expected = [(canvas, what) for canvas in range(3) for what in (*range(5), "commit")]
    for events in run(make(), [ask(1), ask(2)]).values():
        order = [(e.canvas_index, "commit" if isinstance(e, Commit) else e.step)
                 for e in events if not isinstance(e, Finished)]  # fmt: skip
        assert order == expected
        assert isinstance(events[-1], Finished)


@pytest.mark.parametrize("policy", POLICIES)
def test_32_concurrent_requests_equal_the_same_requests_alone(make: Make, policy: str) -> None:
    settings = [dataclasses.replace(SETTINGS, max_tokens=24 + i % 3 * 8, steps=2 + i % 4) for i in range(32)]
    requests = [ask(i, LENGTHS[i % 6], settings=settings[i]) for i in range(32)]
    engine = make(policy=policy, prefix_cache=False)
    together = run(engine, requests)
    assert nothing_held(engine)
    alone = make(prefix_cache=False)
    for request in requests[:: 1 if policy == "mixed" else 7]:
        assert untimed(run(alone, [request])[request.request_id]) == untimed(together[request.request_id])


def test_how_much_of_a_prompt_a_forward_takes_changes_nothing(make: Make) -> None:
    request = ask(1, 1000)
    small, large = (run(make(prompt_tokens=tokens), [request])[1] for tokens in (256, 1024))
    assert untimed(small) == untimed(large)


def test_a_chunked_prompt_is_the_prompt(model: Transformer, make: Make) -> None:
    """Entropies of a first step behind a chunked prompt, against one that was encoded in one piece."""
    request = ask(3, 700, settings=dataclasses.replace(SETTINGS, steps=1, max_tokens=CANVAS))
    step = run(make(), [request])[3][0]
    assert isinstance(step, DenoiseStep)
    cache = model.new_cache(1, 800)
    with torch.inference_mode():
        model.encode(torch.tensor([request.prompt]), cache)
        logits = model.logits(model.denoise(torch.tensor([step.canvas]), cache)) / step.temperature
    entropy = torch.distributions.Categorical(logits=logits[0]).entropy()
    assert step.entropy == pytest.approx(entropy.tolist(), abs=1e-3)


class TestPrefixCache:
    def test_a_hit_equals_a_miss(self, make: Make) -> None:
        request = ask(1, 3 * PAGE + 40)
        miss = run(make(prefix_cache=False), [request])[1]
        engine = make()
        first, again = run(engine, [request])[1], run(engine, [request])[1]
        assert untimed(first) == untimed(again) == untimed(miss)
        assert end_of(first).stats.cached_tokens == 0
        assert end_of(again).stats.cached_tokens == 3 * PAGE

    def test_a_common_beginning_is_shared_and_the_rest_is_not(self, make: Make) -> None:
        engine = make()
        shared = prompt(2 * PAGE, 9)
        requests = [dataclasses.replace(ask(i), prompt=(*shared, *prompt(300, i))) for i in range(3)]
        for request in requests:
            got = run(engine, [request])[request.request_id]
            alone = run(make(prefix_cache=False), [request])[request.request_id]
            assert untimed(got) == untimed(alone)
        assert engine.stats().counters.cached_tokens == 2 * 2 * PAGE

    def test_siblings_encode_their_prompt_once_and_differ(self, make: Make) -> None:
        engine = make()
        request = ask(1, 4 * PAGE)
        told = run(engine, request.siblings([1, 2, 3, 4]))
        stats = engine.stats()
        commits = 4 * 2 * CANVAS
        assert stats.counters.encoded_tokens == 4 * PAGE + commits
        assert len({end_of(events).token_ids for events in told.values()}) == 4
        highest = dataclasses.replace(request, settings=dataclasses.replace(request.settings, seed=2**63 - 1))
        assert [one.settings.seed for one in highest.siblings([1, 2])] == [2**63 - 1, 0]
        alone = run(make(), [dataclasses.replace(request, settings=dataclasses.replace(request.settings, seed=3))])
        assert end_of(alone[1]).token_ids == end_of(told[3]).token_ids

    def test_8k_tokens_again_are_not_encoded_again(self, make: Make) -> None:
        engine = make(prompt_tokens=1024)
        request = ask(1, 8192 + 100, settings=dataclasses.replace(SETTINGS, steps=1, max_tokens=CANVAS))
        encoded = []
        for _ in range(2):
            before = engine.stats()
            run(engine, [request])
            after = engine.stats()
            encoded.append(after.counters.encoded_tokens - before.counters.encoded_tokens)
        assert encoded == [8292, 100]

    def test_nothing_written_before_weights_changed_is_shared(self, make: Make) -> None:
        """Neither what was kept, nor what a running request writes behind its old pages."""
        version = 1
        engine = make(weights=lambda: version)
        run(engine, [ask(1, 2 * PAGE)])
        add(engine, ask(2, 3 * PAGE))
        engine.step()
        version = 2
        for request_id, length in ((1, 2 * PAGE), (3, 2 * PAGE)):
            assert end_of(run(engine, [ask(request_id, length)])[request_id]).stats.cached_tokens == 0
        while engine.busy:
            engine.step()
        assert end_of(run(engine, [ask(2, 3 * PAGE)])[2]).stats.cached_tokens == 0
        assert end_of(run(engine, [ask(3, 2 * PAGE)])[3]).stats.cached_tokens == 2 * PAGE

    def test_weights_that_change_while_a_request_waits_for_room_are_noticed(self, make: Make) -> None:
        version = 1
        engine = make(slots=1, weights=lambda: version)
        run(engine, [ask(1, 2 * PAGE)])
        add(engine, ask(2))
        events = add(engine, ask(1, 2 * PAGE))
        engine.step()
        version = 2
        while engine.busy:
            engine.step()
        assert end_of(events).stats.cached_tokens == 0

    def test_weights_that_change_before_an_iterator_is_read_are_noticed(self, make: Make) -> None:
        version = 1
        engine = make(weights=lambda: version)
        run(engine, [ask(1, 2 * PAGE)])
        later = engine.answer([ask(1, 2 * PAGE)])
        version = 2
        assert end_of(list(later)).stats.cached_tokens == 0

    @pytest.mark.parametrize("clean", [True, False, None])
    def test_pages_that_had_to_be_cleaned_are_no_prefix(
        self, make: Make, monkeypatch: pytest.MonkeyPatch, clean: bool | None
    ) -> None:
        """Of a request that left before a canvas could show what is wrong with them; None: cleaning fails."""

        def release(slot: int) -> bool:
            if clean is None:
                raise RuntimeError("unusable")
            return clean

        engine = make()
        monkeypatch.setattr(engine.runner, "release", release)
        events = add(engine, ask(1, 600))
        engine.step()
        with pytest.raises(RuntimeError) if clean is None else nullcontext():
            engine.cancel(1)
        assert end_of(events).finish_reason == "cancelled"
        assert not engine.stats().full_pages_used
        assert bool(engine.stats().full_pages_cached) is bool(clean)


class TestEnds:
    def test_at_max_tokens(self, make: Make) -> None:
        end = end_of(run(make(), [ask(1)])[1])
        assert (end.finish_reason, len(end.token_ids), end.stats.steps) == ("length", 40, (5, 5, 5))

    def test_at_end_of_text(self, make: Make) -> None:
        free = end_of(run(make(), [ask(1)])[1])
        eos = free.token_ids[18]
        end = end_of(run(make(eos_ids=(eos,)), [ask(1)])[1])
        assert (end.finish_reason, end.stop_text) == ("stop", None)
        assert end.token_ids == free.token_ids[: free.token_ids.index(eos)]

    @pytest.mark.parametrize(("behind", "reason"), [(0, "stop"), (1, "length")])
    def test_with_max_tokens_the_answer_is_whole_if_the_end_of_text_comes_next(
        self, make: Make, behind: int, reason: str
    ) -> None:
        steps = [event for event in run(make(), [ask(1)])[1] if isinstance(event, DenoiseStep)]
        written = [token for step in steps[4::5] for token in step.argmax_canvas]
        eos = written[40 + behind]
        assert written.index(eos) == 40 + behind
        end = end_of(run(make(eos_ids=(eos,)), [ask(1)])[1])
        assert (end.token_ids, end.finish_reason) == (tuple(written[:40]), reason)

    def test_a_canvas_ends_when_it_has_converged(self, make: Make) -> None:
        settings = dataclasses.replace(SETTINGS, stability_threshold=0, confidence_threshold=100.0)
        assert end_of(run(make(), [ask(1, settings=settings)])[1]).stats.steps == (1, 1, 1)

    def test_at_a_stop_string(self, make: Make) -> None:
        free = end_of(run(make(), [ask(1)])[1])
        word = free.text[60:66]
        settings = dataclasses.replace(SETTINGS, stop=("never", word))
        events = run(make(), [ask(1, settings=settings)])[1]
        end = end_of(events)
        assert (end.finish_reason, end.stop_text) == ("stop", word)
        assert end.text == free.text[: free.text.index(word)]
        assert end.stats.tokens == len(end.tokens) == len(end.token_ids)
        commits = [event for event in events if isinstance(event, Commit)]
        assert "".join(commit.text for commit in commits) == end.text
        assert sum((commit.token_ids for commit in commits), ()) == end.token_ids
        assert commits[-1].finish_reason == "stop"

    @pytest.mark.parametrize("steps", [0, 1, 3, 5, 6, 8])
    def test_cancelled_at_any_moment_returns_everything_at_once(self, make: Make, steps: int) -> None:
        engine = make(slots=2)
        events = add(engine, *(ask(i, 400) for i in range(4)))
        for _ in range(steps):
            engine.step()
        for i in range(4):
            engine.cancel(i)
            engine.cancel(i)
        assert engine.stats().full_pages_used == engine.stats().sliding_pages_used == 0
        assert [(end.request_id, end.finish_reason) for end in events if isinstance(end, Finished)] == [
            (i, "cancelled") for i in range(4)
        ]
        assert nothing_held(engine)

    def test_the_prompt_of_one_that_left_the_queue_was_not_read(self, make: Make) -> None:
        engine = make(slots=1)
        add(engine, ask(1, 20), ask(2, 3000))
        engine.step()
        engine.cancel(2)
        while engine.busy:
            engine.step()
        assert engine.stats().counters.prompt_tokens == 20
        assert engine.stats().counters.ended == {"cancelled": 1, "length": 1}

    def test_a_cancelled_neighbour_is_not_missed(self, make: Make) -> None:
        expected = run(make(), [ask(1)])[1]
        engine = make()
        events = add(engine, ask(1))
        add(engine, ask(2))
        for _ in range(2):
            engine.step()
        engine.cancel(2)
        while engine.busy:
            engine.step()
        assert untimed(events) == untimed(expected)

    def test_timeouts_count_from_the_beginning_and_keep_what_is_committed(self, make: Make) -> None:
        now = 0.0
        engine = make(clock=lambda: now, slots=1)
        events = add(engine, ask(1, timeout=10.0), ask(2, timeout=3.0))
        while engine.busy:
            engine.step()
            now += 1.0
        ends = [event for event in events if isinstance(event, Finished)]
        assert [(end.request_id, end.finish_reason) for end in ends] == [(2, "timeout"), (1, "timeout")]
        assert ends[0].stats.queue_seconds == 3.0
        assert (ends[1].stats.seconds, len(ends[1].token_ids), ends[1].stats.steps) == (10.0, 2 * CANVAS, (5, 5))
        assert nothing_held(engine)

    @pytest.mark.parametrize("steps", [2 * 5, 2 * 5 + 1, 2 * 5 + 3])
    @pytest.mark.parametrize("timeout", [None, 10.0])
    def test_what_may_have_begun_a_stop_string_is_told_when_the_answer_is_broken_off(
        self, make: Make, steps: int, timeout: float | None
    ) -> None:
        free = run(make(), [ask(1)])[1]
        written = "".join(event.text for event in free if isinstance(event, Commit))[: 2 * CANVAS * 3]
        now = 0.0
        engine = make(clock=lambda: now)
        settings = dataclasses.replace(SETTINGS, stop=(written[-7:] + "never",))
        events = add(engine, ask(1, settings=settings, timeout=timeout))
        for _ in range(steps):
            engine.step()
        assert "".join(event.text for event in events if isinstance(event, Commit)) == written[:-7]
        now = 20.0
        if timeout is None:
            engine.cancel(1)
        engine.step()
        end = end_of(events)
        commits = [event for event in events if isinstance(event, Commit)]
        assert len(end.stats.step_budgets) == len(end.stats.steps) == end.stats.canvases
        assert (end.text, len(end.token_ids), len(end.tokens)) == (written, 2 * CANVAS, 2 * CANVAS)
        assert "".join(commit.text for commit in commits) == end.text
        assert sum((commit.token_ids for commit in commits), ()) == end.token_ids
        assert end.finish_reason == ("cancelled" if timeout is None else "timeout")

    def test_one_whose_text_cannot_be_told_ends_alone(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = make()
        broken, whole = add(engine, ask(1)), add(engine, ask(2))
        engine.step()

        def fails(answer: Answer, ending: str) -> None:
            raise UnicodeError("no text")

        monkeypatch.setattr(Answer, "break_off", fails)
        engine.cancel(1)
        monkeypatch.undo()
        while engine.busy:
            engine.step()
        assert isinstance(broken[-1], Failed)
        assert untimed(whole) == untimed(run(make(), [ask(2)])[2])
        assert nothing_held(engine)

    def test_a_whole_answer_is_told_though_its_slot_cannot_be_given_up(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def release(slot: int) -> bool:
            raise RuntimeError("unusable")

        engine = make()
        with monkeypatch.context() as patch:
            patch.setattr(engine.runner, "release", release)
            events = run(engine, [ask(1)])[1]
        assert untimed(events) == untimed(run(make(), [ask(1)])[1])
        assert engine.stats().counters.ended == {"length": 1}
        assert nothing_held(engine)

    def test_leaving_an_iterator_early_cancels(self, make: Make) -> None:
        engine = make()
        events = engine.answer([ask(i) for i in range(3)])
        next(events)
        events.close()
        assert nothing_held(engine)

    def test_two_iterators_share_an_engine(self, make: Make) -> None:
        engine = make()
        one, other = engine.answer([ask(1)]), engine.answer([ask(2)])
        mixed = [event for pair in zip(one, other, strict=True) for event in pair]
        for i in (1, 2):
            assert untimed([e for e in mixed if e.request_id == i]) == untimed(run(make(), [ask(i)])[i])

    def test_a_forward_that_fails_ends_all_who_shared_it(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first canvas has taken its step when the second's fails: going on would take it twice."""
        engine, calls = make(), itertools.count(1)

        def fails_once(*arguments: Any) -> Any:
            if next(calls) == 5:
                raise KeyboardInterrupt
            return advance(*arguments)

        monkeypatch.setattr("redraft.engine.runner.advance", fails_once)
        one, other = engine.answer([ask(1)]), engine.answer([ask(2)])
        for events in (one, other, one):
            next(events)
        with pytest.raises(KeyboardInterrupt):
            next(other)
        with pytest.raises(EngineError, match="A forward failed with KeyboardInterrupt"):
            next(one)
        assert nothing_held(engine)
        assert untimed(run(engine, [ask(1)])[1]) == untimed(run(make(), [ask(1)])[1])


class TestRefusals:
    def test_a_full_queue(self, make: Make) -> None:
        engine = make(slots=1, max_waiting=2)
        add(engine, ask(0))
        engine.step()
        add(engine, ask(1), ask(2))
        with pytest.raises(QueueFullError, match="2 requests are already waiting; the queue holds at most 2") as caught:
            add(engine, ask(3))
        assert caught.value.retry_after == 1
        assert engine.stats().counters.refused == 1
        assert engine.stats().waiting == 2

    def test_a_full_queue_says_when_those_who_wait_will_have_had_their_turn(self, make: Make) -> None:
        now = 0.0
        engine = make(slots=2, max_waiting=3, clock=lambda: now)
        add(engine, ask(0))
        engine.step()
        now = 6.0
        while engine.busy:
            engine.step()
        add(engine, *(ask(i) for i in range(5)))
        with pytest.raises(QueueFullError) as caught:
            add(engine, ask(5))
        assert caught.value.retry_after == 3 / 2 * 6.0

    def test_requests_that_there_is_room_for_do_not_wait(self, make: Make) -> None:
        requests = [ask(i) for i in range(3)]
        engine = make(slots=2, max_waiting=1)
        events = add(engine, *requests)
        with pytest.raises(QueueFullError, match="1 requests are already waiting"):
            add(engine, ask(3))
        while engine.busy:
            engine.step()
        alone = run(make(), requests)
        for request in requests:
            mine = [event for event in events if event.request_id == request.request_id]
            assert untimed(mine) == untimed(alone[request.request_id])
        assert nothing_held(engine)

    def test_more_requests_than_may_wait_are_fed_in(self, make: Make) -> None:
        told = run(make(slots=2, max_waiting=3), [ask(i) for i in range(9)])
        assert all(end_of(events).finish_reason == "length" for events in told.values())

    @pytest.mark.parametrize(
        ("change", "error", "sentence"),
        [
            ({"prompt": ()}, PromptError, "prompt is empty"),
            ({"prompt": (3, 256)}, PromptError, "Token id 256 is outside the vocabulary of 256"),
            ({"prompt": (-1, 5)}, PromptError, "Token id -1"),
            ({"prompt": (5,) * 9200}, PromptError, "exceed the context of 9216"),
            ({"timeout": 0.0}, SettingError, "timeout is 0.0; it must be above 0"),
            ({"timeout": math.nan}, SettingError, "timeout is nan; it must be above 0"),
            ({"timeout": "1"}, SettingError, "timeout is '1'; it must be of type int or float"),
            ({"request_id": 7}, SettingError, "request_id 7 is already being answered"),
        ],
    )
    def test_what_can_never_be_answered(
        self, make: Make, change: dict[str, object], error: type[Exception], sentence: str
    ) -> None:
        engine = make()
        add(engine, ask(7))
        with pytest.raises(error, match=sentence):
            add(engine, dataclasses.replace(ask(1), **change))
        assert engine.stats().counters.refused == 1
        run(engine, [ask(2)])

    def test_more_pages_than_there_are(self, make: Make) -> None:
        engine = make(slots=1, memory_gb=0.004)
        pages = engine.stats().full_pages
        with pytest.raises(SettingError, match=f"pages of 256 tokens; the engine has only {pages}"):
            add(engine, ask(1, 9000))


class TestScarcity:
    def test_a_small_budget_queues_and_answers_all(self, make: Make) -> None:
        engine = make(memory_gb=0.003, slots=8)
        requests = [ask(i, 1000) for i in range(6)]
        told = run(engine, requests)
        assert 5 <= engine.stats().full_pages < 6 * 5
        for request in requests:
            alone = run(make(), [request])[request.request_id]
            assert untimed(alone) == untimed(told[request.request_id])
        assert nothing_held(engine)

    def test_cached_pages_give_way(self, make: Make) -> None:
        engine = make(memory_gb=0.003, slots=2)
        for i in range(8):
            run(engine, [ask(i, 1000, settings=dataclasses.replace(SETTINGS, steps=1))])
        stats = engine.stats()
        assert 0 < stats.full_pages_cached <= stats.full_pages
        assert nothing_held(engine)


def test_a_storm_of_shared_prompts_in_scarce_memory_changes_no_answer(make: Make) -> None:
    """Common beginnings, pages given away and adopted, requests that come, leave and run out of time in between."""
    luck = random.Random(5)
    bases = [prompt(length, 90 + i) for i, length in enumerate((2 * PAGE, 3 * PAGE + 7, 5 * PAGE))]
    short = dataclasses.replace(SETTINGS, steps=2, max_tokens=24)
    requests = []
    for i in range(30):
        base = luck.choice(bases)
        mine = (*base[: luck.choice((PAGE, 2 * PAGE, len(base)))], *prompt(luck.randrange(1, 60), i))
        requests.append(dataclasses.replace(ask(i, settings=short), prompt=mine))
    engine = make(memory_gb=0.003, slots=5)
    told = dict[int, list[Event | Failed]]()
    coming = list(requests)
    while coming or engine.busy:
        if coming and luck.random() < 0.7:
            request = coming.pop()
            told[request.request_id] = add(engine, request)
        if luck.random() < 0.1:
            engine.cancel(luck.randrange(30))
        engine.step()
    assert nothing_held(engine)
    assert engine.stats().counters.cached_tokens > 0
    whole = [request for request in requests if end_of(told[request.request_id]).finish_reason == "length"]
    assert 15 < len(whole) < 30
    alone = make(prefix_cache=False)
    for request in whole:
        assert untimed(run(alone, [request])[request.request_id]) == untimed(told[request.request_id])

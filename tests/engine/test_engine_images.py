"""Images in prompts: wherever they stand, in whatever company, the answer is the one that the definition gives."""

import copy
import dataclasses
import time
from collections.abc import Sequence
from hashlib import blake2b

import pytest
import torch
from asking import CANVAS, SETTINGS, prompt, run, untimed
from hypothesis import given
from hypothesis import strategies as st

from random_model import tower_of
from redraft.cache.pages import PAGE, PageManager
from redraft.cache.prefix import prefix_keys
from redraft.diffusion.records import DenoiseStep
from redraft.engine.build import limits_for
from redraft.engine.engine import Engine
from redraft.engine.request import Finished, Request
from redraft.engine.runner import EagerRunner
from redraft.engine.scheduler import Job, Scheduler
from redraft.engine.settings import EngineSettings
from redraft.engine.work import Limits
from redraft.model import Transformer
from redraft.reference import Reference
from redraft.text.images import Image
from redraft.text.placing import EncodedPrompt, place_images
from spelled import Spelled

MARKS = (17, 19, 20)
LAYOUTS = {
    "within a page": (30, 4, 10),
    "over a page's end": (250, 12, 40),
    "to a page's end": (251, 4, 20),
    "several in a page": (20, 4, 3, 6, 3, 8, 200),
    "one behind another over pages": (3, 90, 2, 90, 2, 90, 2, 90, 9),
    "longer than the window and what a forward takes": (100, 420, 50),
}
"""Lengths of words and images in turn."""


@pytest.fixture(scope="module")
def seeing(model: Transformer) -> Transformer:
    found = copy.deepcopy(model)
    found.config = dataclasses.replace(model.config, extra=dict(model.config.extra))
    torch.manual_seed(1)
    found.vision = tower_of(found.config).eval().requires_grad_(False)
    return found


def image(tokens: int, seed: int) -> Image:
    height = next(side for side in (1, 2, 3, 4, 5, 6, 10, 20) if tokens % side == 0 and tokens // side <= 40)
    rows, columns = 3 * height, 3 * tokens // height
    patches = torch.randint(256, (rows * columns, 768), generator=torch.Generator().manual_seed(seed)).byte()
    digest = blake2b(patches.numpy().tobytes(), digest_size=16).digest()
    return Image(patches=patches, rows=rows, columns=columns, tokens=tokens, digest=digest)


def told(layout: Sequence[int], *, words: int = 1, shows: int = 1) -> EncodedPrompt:
    """A prompt of such lengths; `words` and `shows` choose what it holds."""
    ids: list[int] = []
    images = []
    for number, length in enumerate(layout):
        if number % 2:
            ids.append(MARKS[1])
            images.append(image(length, 10 * shows + number))
        else:
            ids += [30 + token % 200 for token in prompt(length, words + number)]
    return place_images(ids, images, MARKS)


def ask_about(request_id: int, told: EncodedPrompt, **changes: object) -> Request:
    settings = dataclasses.replace(SETTINGS, seed=request_id)
    return Request(request_id=request_id, prompt=told.ids, images=told.images, settings=settings, **changes)  # type: ignore[arg-type]


def new_engine(model: Transformer, **given: object) -> Engine:
    settings = EngineSettings(**{"slots": 4, "prompt_tokens": 256, **given})  # type: ignore[arg-type]
    runner = EagerRunner(model, limits_for(model.config, settings, 10**9, 4))
    return Engine(
        runner, Spelled(), vocab_size=256, canvas_length=CANVAS, eos_ids=(), settings=settings, clock=time.perf_counter
    )


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_step_equals_the_reference(seeing: Transformer, layout: Sequence[int]) -> None:
    request = ask_about(5, told(layout))
    ours = [event for event in run(new_engine(seeing), [request])[5] if isinstance(event, DenoiseStep)]
    shown = [(placed.start, seeing.embed_image(placed.content)) for placed in request.images]
    theirs = list(Reference(seeing).generate(list(request.prompt), request.settings, length=CANVAS, images=shown))
    assert len(ours) == len(theirs) == 3 * SETTINGS.steps
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.entropy == pytest.approx(other.entropy, abs=2e-3)
        assert (mine.canvas, mine.argmax_canvas) == (other.canvas, other.argmax_canvas)


def test_company_changes_nothing(seeing: Transformer) -> None:
    requests = [ask_about(n, told(layout, words=n)) for n, layout in enumerate(LAYOUTS.values())]
    together = run(new_engine(seeing, prefix_cache=False, prompt_tokens=1024), requests)
    for request in requests:
        alone = run(new_engine(seeing, prefix_cache=False), [request])
        assert untimed(alone[request.request_id]) == untimed(together[request.request_id])


@pytest.mark.parametrize("layout", [(250, 12, 340), (3, 90, 2, 90, 2, 90, 300), (600, 12, 10)], ids=str)
def test_what_was_seen_before_is_not_seen_again(
    seeing: Transformer, layout: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same beginning is taken over, but never the first half of an image; another image is another beginning."""
    engine, looks = new_engine(seeing), []
    embed_image = Transformer.embed_image
    monkeypatch.setattr(
        Transformer, "embed_image", lambda model, shown: looks.append(shown.digest) or embed_image(model, shown)
    )
    first, again, other = (told(layout, shows=shows) for shows in (1, 1, 2))
    answers = [run(engine, [ask_about(3, shown)])[3] for shown in (first, again, other)]
    ends = [events[-1] for events in answers]
    assert all(isinstance(end, Finished) for end in ends)
    assert untimed(answers[0]) == untimed(answers[1]) != untimed(answers[2])
    assert untimed(answers[2]) == untimed(run(new_engine(seeing), [ask_about(3, other)])[3])
    before = first.images[0].start // PAGE * PAGE
    assert [end.stats.cached_tokens for end in ends] == [0, pytest.approx(512, abs=256), before]
    whole = [placed for placed in first.images if placed.start >= ends[1].stats.cached_tokens]
    assert looks.count(first.images[0].content.digest) == 1 + (first.images[0] in whole)


def test_answers_to_one_prompt_share_its_images(seeing: Transformer) -> None:
    request = ask_about(0, told((250, 12, 300)))
    answers = run(new_engine(seeing), request.siblings([0, 1, 2]))
    ends = {number: events[-1] for number, events in answers.items()}
    assert sorted(end.stats.cached_tokens for end in ends.values() if isinstance(end, Finished)) == [0, 512, 512]
    for number in (1, 2):
        alone = run(new_engine(seeing), [request.siblings([0, 1, 2])[number]])[number]
        assert untimed(alone) == untimed(answers[number])


def spans(length: int, gaps: Sequence[tuple[int, int]]) -> list[range]:
    """Images of a prompt: behind so many words one of so many tokens, each between two marks."""
    found, at = [], 0
    for words, tokens in gaps:
        start = at + words + 1
        if start + tokens < length:
            found.append(range(start, start + tokens))
        at = start + tokens + 1
    return found


@given(
    length=st.integers(1, 4000),
    gaps=st.lists(st.tuples(st.integers(0, 600), st.integers(1, 1120)), max_size=8),
)
def test_chunks_never_break_an_image(length: int, gaps: list[tuple[int, int]]) -> None:
    images = spans(length, gaps)
    job = Job(request_id=0, prompt_length=length, positions=length + 256, length=256, images=images)
    cuts = [0]
    while cuts[-1] < length:
        cuts.append(job.chunk_end(cuts[-1]))
        assert cuts[-1] > cuts[-2]
        inside = [one for one in images if one.start < cuts[-1] < one.stop]
        assert not inside
        assert cuts[-1] - cuts[-2] <= max(PAGE, *map(len, images), 0)
    assert cuts[-1] == length
    ends = range(PAGE, length + 1, PAGE)
    assert {end // PAGE for end in ends if any(one.start < end < one.stop for one in images)} <= job.broken_pages
    assert all(end in cuts for end in ends if end // PAGE not in job.broken_pages)


@given(
    length=st.integers(1, 4000),
    gaps=st.lists(st.tuples(st.integers(0, 600), st.integers(1, 1120)), max_size=8),
    prompt_tokens=st.sampled_from([256, 1024, 2048]),
)
def test_prompts_that_come_together_are_encoded_once(
    length: int, gaps: list[tuple[int, int]], prompt_tokens: int
) -> None:
    """Up to their last page that does not end inside an image."""
    limits = Limits(slots=3, full_pages=99, sliding_pages=99, window=300, context=9999, canvas=256, forward=4096)
    scheduler = Scheduler(limits, EngineSettings(slots=3, prompt_tokens=prompt_tokens))
    keys, images = [bytes([page]) for page in range(length // PAGE)], spans(length, gaps)
    jobs = [Job(n, length, length + 256, 256, keys, images) for n in range(3)]
    for job in jobs:
        scheduler.add(job)
    scheduler.admit()
    encoded = 0
    while any(job.prompt_left for job in jobs):
        scheduler.ran(plan := scheduler.plan())
        encoded += sum(stop - first for first, stop in (turn.encode for turn in plan.turns))
    shared = max(page for page in range(length // PAGE + 1) if page not in jobs[0].broken_pages) * PAGE
    assert encoded == shared + 3 * (length - shared)


@given(known=st.integers(0, 8), broken=st.frozensets(st.integers(1, 8)), window=st.sampled_from([100, 300, 2000]))
def test_a_known_beginning_never_ends_inside_an_image(known: int, broken: frozenset[int], window: int) -> None:
    keys = [bytes([n]) for n in range(8)]
    manager = PageManager(40, 40, window)
    first = manager.open(8 * PAGE, 8 * PAGE, keys)
    assert first is not None
    manager.cover(first, 8 * PAGE)
    manager.name(first, 0, known)
    manager.close(first)
    table = manager.open(8 * PAGE, 8 * PAGE, keys, broken)
    assert table is not None
    assert len(table.full) == max((n for n in range(known + 1) if n not in broken), default=0)
    while manager.adopt(table):
        assert len(table.full) not in broken
    assert len(table.full) <= known


def test_keys_tell_images_apart() -> None:
    one, other = told((250, 12, 600)), told((250, 12, 600), shows=2)
    assert one.ids == other.ids
    keys = [prefix_keys(one.ids, images=shown.images) for shown in (one, other)]
    assert keys[0][0] != keys[1][0]
    assert keys[0] == prefix_keys(one.ids, images=told((250, 12, 600)).images)
    for words, page in ((600, 2), (511, 2), (510, 1)):  # behind a mark; the second image begins with its page
        late = told((words, 12, 300)), told((words, 12, 300), shows=2)
        keys = [prefix_keys(shown.ids, images=shown.images) for shown in late]
        assert keys[0][:page] == keys[1][:page]
        assert keys[0][page] != keys[1][page]

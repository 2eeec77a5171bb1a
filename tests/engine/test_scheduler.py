"""The scheduler by simulation: nobody starves, nothing runs out, every policy does what it is named for."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from redraft.bench.simulation import Load, Simulated, simulate
from redraft.cache.pages import PAGE, pages_for
from redraft.cache.prefix import prefix_keys
from redraft.engine.graph_runner import most_segments
from redraft.engine.scheduler import ForwardPlan, Job, Scheduler
from redraft.engine.settings import POLICIES, EngineSettings
from redraft.engine.work import Limits
from redraft.errors import PromptError, SettingError

LIMITS = Limits(slots=8, full_pages=200, sliding_pages=120, window=1024, context=32_768, canvas=256, forward=4096)
SETTINGS = EngineSettings(slots=8)


def cost(plan: ForwardPlan) -> float:
    """A millisecond for starting, and one for every 100 tokens."""
    return 1e-3 * (1 + plan.tokens / 100)


def mixed_load(seed: int, count: int = 60) -> list[Load]:
    luck = random.Random(seed)
    return [
        Load(
            arrival=luck.random() * 0.5,
            prompt=luck.choice((1, 40, 256, 700, 5000)),
            steps=tuple(luck.randrange(1, 20) for _ in range(luck.randrange(1, 5))),
            canvas=luck.choice((16, 64, 256)),
        )
        for _ in range(count)
    ]


def check_plan(scheduler: Scheduler, plan: ForwardPlan) -> None:
    """What must hold before every forward."""
    assert 0 < plan.tokens <= scheduler.limits.forward
    assert len({turn.job.slot for turn in plan.turns}) == len(plan.turns)
    assert len(scheduler.running) <= scheduler.slots
    prompt = 0
    for turn in plan.turns:
        table, (first, stop) = turn.job.table, turn.encode
        assert stop == first or first == turn.job.encoded
        end = stop + (turn.job.length if turn.denoise else 0)
        assert len(table.full) >= pages_for(end)
        assert min(table.full) >= 0
        seen = max(0, first - scheduler.limits.window + 1) // PAGE
        assert min(table.sliding[seen : pages_for(end)]) >= 0
        chunks = turn.chunks()
        assert sum(b - a for a, b in chunks) == stop - first
        if first < turn.job.prompt_length:
            prompt += stop - first
            assert all(a % PAGE == 0 and b - a <= PAGE for a, b in chunks)
            assert all(b % PAGE == 0 or b == turn.job.prompt_length for _, b in chunks)
    alone = all(job.prompt_left for job in scheduler.running.values())
    assert prompt <= max(scheduler.settings.prompt_tokens, scheduler.limits.prompt if alone else 0)
    for pool in (scheduler.pages.full, scheduler.pages.sliding):
        assert pool.held <= pool.count
    waiting = set(scheduler.running.values()) - {turn.job for turn in plan.turns}
    assert all(job.table.sliding_held <= job.table.sliding_most for job in waiting)


def written_pages_are_written_once(scheduler: Scheduler, plan: ForwardPlan) -> None:
    """No two jobs of a forward write the same page."""
    pages: list[int] = []
    for turn in plan.turns:
        end = turn.encode[1] + (turn.job.length if turn.denoise else 0)
        pages += turn.job.table.full[turn.encode[0] // PAGE : pages_for(end)]
    assert len(pages) == len(set(pages))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("prompt", [0, 3072])
def test_everybody_is_served_in_full(policy: str, seed: int, prompt: int) -> None:
    loads = mixed_load(seed)
    done = simulate(loads, replace(LIMITS, prompt=prompt), replace(SETTINGS, policy=policy), cost, check_plan)
    assert all(life.ended > life.admitted >= life.load.arrival for life in done.lives)
    assert done.canvas_steps == sum(sum(load.steps) for load in loads)


@pytest.mark.parametrize("slots", [1, 2, 3, 5])
def test_a_forward_has_as_many_segments_as_graphs_are_captured_for(slots: int) -> None:
    limits, settings = replace(LIMITS, prompt=1024), replace(SETTINGS, slots=slots)
    most = []

    def count(scheduler: Scheduler, plan: ForwardPlan) -> None:
        most.append(sum(len(turn.chunks()) + turn.denoise for turn in plan.turns))

    for seed in range(3):
        simulate(mixed_load(seed), limits, settings, cost, count)
    assert max(most) <= most_segments(slots, limits.prompt, limits.canvas)
    if slots == 1:
        assert max(most) == most_segments(slots, limits.prompt, limits.canvas) == 5


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("forward", "prompt"), [(1024, 0), (4096, 4096)])
def test_a_scarce_budget_delays_and_never_fails(policy: str, forward: int, prompt: int) -> None:
    """Room for two long requests: the books stay right although everybody wants more than there is."""
    limits = replace(LIMITS, full_pages=52, sliding_pages=24, forward=forward, prompt=prompt)
    done = simulate(mixed_load(7, 40), limits, replace(SETTINGS, policy=policy), cost, check_plan)
    assert all(life.ended for life in done.lives)


@pytest.mark.parametrize(("sliding", "first"), [(120, 3072), (11, 2560), (10, 2304)])
def test_a_prompt_that_no_canvas_waits_for_is_encoded_faster(sliding: int, first: int) -> None:
    """As far as pages that are promised to nobody allow, which are given back at once."""
    scheduler = Scheduler(replace(LIMITS, sliding_pages=sliding, prompt=3072), SETTINGS)
    scheduler.add(Job(request_id=1, prompt_length=6000, positions=6256, length=256))
    (job,) = scheduler.admit()
    scheduler.ran(plan := scheduler.plan())
    assert [turn.encode for turn in plan.turns] == [(0, first)]
    assert job.table.sliding_held <= job.table.sliding_most


def test_two_prompts_do_not_borrow_the_same_pages() -> None:
    """Of 22 pages 10 are promised to either, so two can be borrowed: the first prompt takes both."""
    scheduler = Scheduler(replace(LIMITS, sliding_pages=22, prompt=8192, forward=8192), SETTINGS)
    for request_id in (1, 2):
        scheduler.add(Job(request_id=request_id, prompt_length=2816, positions=3072, length=256))
    scheduler.admit()
    check_plan(scheduler, plan := scheduler.plan())
    assert [turn.encode for turn in plan.turns] == [(0, 2816), (0, 2304)]


def test_beside_a_canvas_a_prompt_gets_what_the_settings_say() -> None:
    scheduler = Scheduler(replace(LIMITS, prompt=2048), SETTINGS)
    for request_id, length in ((1, 10), (2, 9000)):
        scheduler.add(Job(request_id=request_id, prompt_length=length, positions=length + 256, length=256))
    scheduler.admit()
    encoded = []
    for _ in range(3):
        scheduler.ran(plan := scheduler.plan())
        encoded.append({turn.job.request_id: turn.encode for turn in plan.turns})
    assert encoded == [
        {1: (0, 10), 2: (0, 1792)},  # whole chunks of what the short one leaves
        {1: (10, 10), 2: (1792, 2816)},
        {1: (10, 10), 2: (2816, 3840)},
    ]


def test_a_prompt_gets_what_another_leaves_of_its_share() -> None:
    scheduler = Scheduler(LIMITS, SETTINGS)
    for request_id, length in ((1, 1500), (2, 9000)):
        scheduler.add(Job(request_id, length, length + 256, 256))
    scheduler.admit()
    encoded = []
    for _ in range(3):
        scheduler.ran(plan := scheduler.plan())
        encoded.append({turn.job.request_id: turn.encode for turn in plan.turns})
    assert encoded == [{1: (0, 1024)}, {2: (0, 1024)}, {1: (1024, 1500), 2: (1024, 1536)}]


def test_a_plan_stands_until_it_runs_or_somebody_comes_goes_or_finishes() -> None:
    scheduler = Scheduler(LIMITS, SETTINGS)

    def changes(happens: Callable[[], object]) -> bool:
        before = scheduler.plan()
        assert scheduler.plan() is before
        happens()
        return scheduler.plan() is not before

    for request_id in (1, 2):
        scheduler.add(Job(request_id, 10, 522, 256))
    assert changes(scheduler.admit)
    first, second = scheduler.running.values()
    assert changes(lambda: scheduler.ran(scheduler.plan()))
    assert changes(lambda: scheduler.next_canvas(first, 256, 256))
    assert not changes(lambda: scheduler.add(Job(3, 10, 266, 256)))
    assert not changes(lambda: scheduler.distrust(first))
    assert changes(scheduler.admit)
    assert not changes(scheduler.admit)
    assert changes(lambda: scheduler.remove(second))
    assert [turn.job.request_id for turn in scheduler.plan().turns] == [1, 3]


@pytest.mark.parametrize("planned", [0, 1, 2])
def test_a_plan_that_does_not_run_costs_nobody_a_turn(planned: int) -> None:
    """Two canvases fit in a forward, three want to."""
    scheduler = Scheduler(replace(LIMITS, forward=600), SETTINGS)
    for request_id in (1, 2, 3):
        scheduler.add(Job(request_id, 10, 10 + 256 * 20, 256))
    scheduler.admit()
    scheduler.ran(scheduler.plan())  # the prompts
    ran = []
    for _ in range(6):
        for _ in range(planned):
            scheduler.plan()
            scheduler.next_canvas(scheduler.running[1], 0, 256)  # the plan is no longer the next forward
        scheduler.ran(plan := scheduler.plan())
        ran.append([turn.job.request_id for turn in plan.turns])
    assert ran == [[1, 2], [3, 1], [2, 1], [3, 1], [2, 1], [3, 1]]


def test_a_prompt_gets_what_canvases_leave_of_a_forward() -> None:
    scheduler = Scheduler(replace(LIMITS, forward=1300), SETTINGS)
    for request_id, length in ((1, 10), (2, 20), (3, 9000)):
        scheduler.add(Job(request_id, length, length + 256, 256))
    scheduler.admit()
    plan = scheduler.plan()
    assert [turn.encode for turn in plan.turns] == [(0, 10), (0, 20), (0, 512)]


def test_a_prompt_and_its_first_step_may_fill_a_forward() -> None:
    scheduler = Scheduler(replace(LIMITS, forward=1024), SETTINGS)
    scheduler.add(Job(request_id=1, prompt_length=768, positions=1024, length=256))
    scheduler.admit()
    (turn,) = scheduler.plan().turns
    assert (turn.encode, turn.denoise) == ((0, 768), True)


def test_the_share_of_prompts_is_rounded_up_to_whole_pages() -> None:
    scheduler = Scheduler(LIMITS, replace(SETTINGS, prompt_tokens=300))
    scheduler.add(Job(request_id=1, prompt_length=2000, positions=2256, length=256))
    scheduler.admit()
    assert [turn.encode for turn in scheduler.plan().turns] == [(0, 512)]


def test_a_prompt_goes_on_while_an_image_waits_for_more_room() -> None:
    """Beside the canvas there is no room for the image, which then comes first."""
    scheduler = Scheduler(replace(LIMITS, forward=1536), SETTINGS)
    shown = Job(request_id=2, prompt_length=1700, positions=1956, length=256, images=[range(256, 1656)])
    for job in (Job(1, 10, 266, 256), shown, Job(3, 9000, 9256, 256)):
        scheduler.add(job)
    scheduler.admit()
    encoded = []
    for _ in range(3):
        scheduler.ran(plan := scheduler.plan())
        encoded.append({turn.job.request_id: turn.encode for turn in plan.turns})
    assert encoded[1:] == [{1: (10, 10), 3: (512, 1536)}, {2: (256, 1656)}]


def test_requests_get_their_slots_in_the_order_they_came() -> None:
    """A long request at the head is not overtaken by short ones that would fit."""
    loads = [Load(arrival=i * 1e-9, prompt=4000 if i % 5 == 0 else 10, steps=(5, 5)) for i in range(40)]
    limits = replace(LIMITS, full_pages=40, sliding_pages=30)
    done = simulate(loads, limits, SETTINGS, cost, check_plan)
    admitted = [life.admitted for life in done.lives]
    assert admitted == sorted(admitted)


def test_nobody_who_runs_waits_for_ever() -> None:
    """A forward that holds four canvases, eight requests: everybody has a turn at least every other forward."""
    loads = [Load(arrival=0.02 * i, prompt=10, steps=(30, 30, 30)) for i in range(8)]
    done = simulate(loads, replace(LIMITS, forward=1200), SETTINGS, cost, check_plan)
    assert max(done.waits) <= 3


def test_canvases_at_one_step_do_not_wait_for_ever_for_the_others() -> None:
    """One request is always at a step of its own while many others march together."""
    loads = [Load(arrival=0, prompt=10, steps=(40,) * 6) for _ in range(7)] + [
        Load(arrival=0.05, prompt=10, steps=(40,))
    ]
    done = simulate(loads, LIMITS, replace(SETTINGS, policy="step-homogeneous"), cost, check_plan)
    assert max(done.waits) <= 16
    assert done.lives[-1].ended < max(life.ended for life in done.lives[:-1])


def test_mixed_serves_every_canvas_in_every_forward() -> None:
    done = simulate([Load(arrival=0, prompt=100, steps=(i + 3, 9)) for i in range(8)], LIMITS, SETTINGS, cost)
    assert max(done.waits) == 1
    assert done.forwards == 10 + 9  # the slowest request's steps: commits and prompts cost no forward of their own


def test_homogeneous_forwards_hold_one_step() -> None:
    def watch(scheduler: Scheduler, plan: ForwardPlan) -> None:
        assert len({turn.job.step for turn in plan.turns}) == 1

    simulate(mixed_load(1), LIMITS, replace(SETTINGS, policy="step-homogeneous"), cost, watch)


def test_run_to_completion_starts_nobody_while_a_canvas_runs() -> None:
    cohort: set[tuple[int, int]] = set()

    def watch(scheduler: Scheduler, plan: ForwardPlan) -> None:
        canvases = {(turn.job.request_id, turn.job.canvas_index) for turn in plan.turns}
        if canvases - cohort:
            assert not canvases & cohort, "a canvas began beside others that were further on"
            cohort.clear()
            cohort.update(canvases)

    loads = [Load(arrival=0.002 * i, prompt=20, steps=(5 + i % 3, 4)) for i in range(30)]
    simulate(loads, LIMITS, replace(SETTINGS, policy="run-to-completion"), cost, watch)


def test_run_to_completion_takes_a_new_request_for_no_other_that_had_its_id() -> None:
    """Whose next request has the id of the one that ended keeps nobody waiting who came before it."""
    scheduler = Scheduler(LIMITS, replace(SETTINGS, policy="run-to-completion"))

    def served(*request_ids: int) -> list[int]:
        for request_id in request_ids:
            scheduler.add(Load(arrival=0, prompt=20, steps=(1,)).job(request_id))
        scheduler.admit()
        return [turn.job.request_id for turn in scheduler.plan().turns]

    assert served(1) == served(2) == [1]
    scheduler.remove(scheduler.running[1])
    assert served(1) == [2, 1]


def test_a_finished_canvas_frees_its_place_at_once() -> None:
    """Ten short answers pass through one slot beside a long one, without waiting for it."""
    loads = [Load(arrival=0, prompt=10, steps=(48,) * 4)] + [Load(arrival=0, prompt=10, steps=(4,)) for _ in range(10)]
    done = simulate(loads, LIMITS, replace(SETTINGS, slots=2), cost)
    assert max(life.ended for life in done.lives[1:]) < done.lives[0].ended
    waiting = simulate(loads, LIMITS, replace(SETTINGS, slots=2, policy="run-to-completion"), cost)
    assert max(life.ended for life in waiting.lives[1:]) > done.lives[0].ended


class TestNeverFits:
    def job(self, prompt: int, positions: int, images: Sequence[range] = ()) -> Job:
        return Job(request_id=1, prompt_length=prompt, positions=positions, length=256, images=images)

    def test_the_context(self) -> None:
        with pytest.raises(PromptError, match=r"prompt of 32700 tokens .* position 32956 exceed the context of 32768"):
            Scheduler(LIMITS, SETTINGS).check(self.job(32_700, 32_956))

    def test_the_pages(self) -> None:
        with pytest.raises(SettingError, match=r"need 79 pages of 256 tokens; the engine has only 20"):
            Scheduler(replace(LIMITS, full_pages=20), SETTINGS).check(self.job(20_000, 20_200))

    @pytest.mark.parametrize(
        ("canvas", "prompt_tokens", "images", "needed"),
        [
            (256, 1024, [], 10),
            (512, 256, [], 9),  # the commit of a canvas and the next one take more than a share of a prompt
            (256, 1024, [range(300, 2300)], 14),
            (256, 10**6, [], 22),  # as much as a forward holds
        ],
    )
    def test_the_sliding_pages(self, canvas: int, prompt_tokens: int, images: list[range], needed: int) -> None:
        job = self.job(20_000, 20_200, images)
        limits, settings = replace(LIMITS, canvas=canvas), replace(SETTINGS, prompt_tokens=prompt_tokens)
        Scheduler(replace(limits, sliding_pages=needed), settings).check(job)
        sentence = rf"need {needed} sliding pages of 256 tokens; the engine has only {needed - 1}"
        with pytest.raises(SettingError, match=sentence):
            Scheduler(replace(limits, sliding_pages=needed - 1), settings).check(job)

    @pytest.mark.parametrize(("canvas", "prompt_tokens", "sliding"), [(256, 1024, 10), (512, 256, 9)])
    def test_what_just_fits_runs(self, canvas: int, prompt_tokens: int, sliding: int) -> None:
        load = Load(arrival=0, prompt=20_000, steps=(3, 2), canvas=canvas)
        limits = replace(LIMITS, full_pages=pages_for(20_000 + 2 * canvas), sliding_pages=sliding, canvas=canvas)
        settings = replace(SETTINGS, prompt_tokens=prompt_tokens)
        assert simulate([load], limits, settings, cost, check_plan).lives[0].ended

    def test_an_image_as_long_as_a_forward_runs(self) -> None:
        """With just the sliding pages that it needs: those of its window, of itself and of a canvas."""
        scheduler = Scheduler(replace(LIMITS, sliding_pages=22), SETTINGS)
        scheduler.check(job := self.job(20_000, 20_256, [range(10_000, 14_096)]))
        scheduler.add(job)
        scheduler.admit()
        encoded = []
        while job.prompt_left:
            scheduler.ran(plan := scheduler.plan())
            encoded += [turn.encode for turn in plan.turns]
        assert (10_000, 14_096) in encoded

    def test_an_image_longer_than_a_forward(self) -> None:
        with pytest.raises(PromptError, match=r"An image of 4097 tokens .* a forward has only 4096"):
            Scheduler(LIMITS, SETTINGS).check(self.job(20_000, 20_256, [range(10_000, 14_097)]))


class TestPrefixes:
    KEYS = tuple(prefix_keys([1] * 8192))

    def run(self, *arrivals: float, prefix_cache: bool = True, policy: str = "mixed") -> tuple[Simulated, int]:
        """One prompt of 8k tokens several times; returns how many of its tokens were encoded, too."""
        encoded = 0

        def watch(scheduler: Scheduler, plan: ForwardPlan) -> None:
            nonlocal encoded
            check_plan(scheduler, plan)
            written_pages_are_written_once(scheduler, plan)
            encoded += sum(turn.encode[1] - turn.encode[0] for turn in plan.turns)
            assert prefix_cache or scheduler.pages.full.kept == scheduler.pages.sliding.kept == 0

        loads = [Load(arrival=at, prompt=8200, steps=(3,), keys=self.KEYS) for at in arrivals]
        settings = replace(SETTINGS, prefix_cache=prefix_cache, policy=policy)
        return simulate(loads, LIMITS, settings, cost, watch), encoded

    def test_a_prompt_that_comes_again_is_not_encoded_again(self) -> None:
        done, encoded = self.run(0, 10)
        assert encoded == 8200 + 8
        first, second = (life.first_commit - life.load.arrival for life in done.lives)
        assert second < first / 5

    def test_prompts_that_come_together_are_encoded_once(self) -> None:
        done, encoded = self.run(0, 0, 0, 0)
        assert encoded == 8200 + 3 * 8
        assert max(life.first_commit for life in done.lives) < 1.2 * min(life.first_commit for life in done.lives)

    @pytest.mark.parametrize("policy", POLICIES)
    def test_one_that_comes_later_and_must_wait_holds_no_page_back(self, policy: str) -> None:
        """It begins where the first one is."""
        _, encoded = self.run(0, 0.02, policy=policy)
        assert encoded == 8200 + 8

    def test_without_the_cache_nobody_waits_for_another_or_takes_over_its_pages(self) -> None:
        _, encoded = self.run(0, 0, 10, prefix_cache=False)
        assert encoded == 3 * 8200

    def test_a_request_whose_writer_leaves_goes_on_itself(self) -> None:
        scheduler = Scheduler(LIMITS, SETTINGS)
        jobs = [Load(arrival=0, prompt=8200, steps=(1,), keys=self.KEYS).job(i) for i in range(2)]
        for job in jobs:
            scheduler.add(job)
        scheduler.admit()
        scheduler.ran(scheduler.plan())
        scheduler.remove(jobs[0])
        while jobs[1].prompt_left:
            plan = scheduler.plan()
            check_plan(scheduler, plan)
            scheduler.ran(plan)
        assert jobs[1].encoded == 8200


@pytest.mark.parametrize("seed", range(3))
def test_a_runner_is_told_all_changes_of_pages(seed: int) -> None:
    """Pages given back and pages adopted included, also of who has no turn; and of nothing else."""
    known: dict[Job, tuple[list[int], list[int]]] = {}

    def watch(scheduler: Scheduler, plan: ForwardPlan) -> None:
        for job in scheduler.running.values():
            pages = job.table.full, job.table.sliding
            assert (known.get(job) != pages) is (job in plan.moved)
            known[job] = list(pages[0]), list(pages[1])

    shared = [Load(arrival=at, prompt=8200, steps=(3,), keys=TestPrefixes.KEYS) for at in (0.0, 0.01, 0.02, 0.03)]
    simulate([*mixed_load(seed), *shared], LIMITS, SETTINGS, cost, watch)


def test_everything_returns() -> None:
    scheduler = Scheduler(LIMITS, SETTINGS)
    jobs = [Load(arrival=0, prompt=600 * (i + 1), steps=(5,)).job(i) for i in range(12)]
    for job in jobs:
        scheduler.add(job)
    scheduler.admit()
    scheduler.ran(scheduler.plan())
    for job in jobs:
        scheduler.remove(job)
    assert not scheduler.running
    assert not scheduler.waiting
    assert scheduler.pages.full.held == scheduler.pages.sliding.held == 0
    assert sorted(scheduler._free_slots) == list(range(8))

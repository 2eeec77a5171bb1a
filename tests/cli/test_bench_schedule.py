"""`bench schedule`: the simulated figures add up, the measured answers are the same whatever the policy."""

import random
from pathlib import Path

import pytest
from outcome import Cli

from redraft.bench.schedule import COSTS, CostModel, _row, simulate_all
from redraft.bench.schedule_plot import draw
from redraft.bench.simulation import Life, Load, Simulated, simulate
from redraft.bench.step_counts import NAMES, QUANTILES, draw_steps
from redraft.engine.policy import Mixed
from redraft.engine.scheduler import ForwardPlan, Job, JobTurn
from redraft.engine.settings import POLICIES, EngineSettings
from redraft.engine.work import Limits


def plan(tokens: int) -> ForwardPlan:
    job = Job(request_id=0, prompt_length=tokens, positions=tokens, length=16)
    return ForwardPlan((JobTurn(job, (0, tokens), False),), ())


def test_a_cost_model_is_lines_through_its_points() -> None:
    cost = CostModel("x", ((100, 10.0), (200, 14.0), (400, 30.0)), "made up")
    assert [cost.seconds(plan(n)) for n in (100, 150, 200, 300, 400, 500)] == pytest.approx(
        [0.010, 0.012, 0.014, 0.022, 0.030, 0.038]
    )
    assert cost.seconds(plan(1)) > 0


@pytest.mark.parametrize("name", NAMES)
def test_drawn_steps_follow_what_was_recorded(name: str) -> None:
    luck = random.Random(0)
    drawn = sorted(draw_steps(name, luck) for _ in range(4000))
    assert drawn[0] >= 1
    assert drawn[-1] <= 48
    for place, steps in QUANTILES.get(name, ()):
        assert drawn[min(3999, int(place * 4000))] == pytest.approx(steps, abs=1.5) or name == "long-tail"
    if name == "long-tail":
        assert sum(drawn) / 4000 == pytest.approx(26.6, abs=1)
        assert drawn.count(48) / 4000 == pytest.approx(0.21, abs=0.02)


def test_a_simulation_is_what_a_clock_would_show() -> None:
    """Forwards of 2 s. The second request comes during the third forward, and both share the next two."""
    limits = Limits(slots=2, full_pages=99, sliding_pages=99, window=1024, context=9999, canvas=256, forward=4096)
    loads = [Load(arrival=1.0, prompt=20, steps=(2, 3)), Load(arrival=6.5, prompt=20, steps=(2,))]
    watched = []
    done = simulate(
        loads, limits, EngineSettings(slots=2), lambda plan: 2.0,
        lambda scheduler, plan: watched.append(sum(turn.denoise for turn in plan.turns)),
    )  # fmt: skip
    first, second = done.lives
    assert (first.admitted, first.first_commit, first.ended) == (1.0, 5.0, 11.0)
    assert (second.admitted, second.first_commit, second.ended) == (7.0, 11.0, 11.0)
    assert (first.seconds, second.seconds) == (10.0, 4.5)
    assert watched == [1, 1, 1, 2, 2]
    assert (done.seconds, done.forwards, done.canvas_steps, done.waits) == (11.0, 5, 7, [1] * 7)
    assert (done.occupancy, done.canvases_per_second) == (7 / 5, 3 / 11)


def test_a_row_counts_from_arrival() -> None:
    loads = [Load(arrival=3.0 + number, prompt=1, steps=(1,)) for number in range(3)]
    lives = [Life(load, first_commit=load.arrival + 1, ended=load.arrival + 2 + load.arrival) for load in loads]
    row = _row("mixed", "short", COSTS[0], 0.5, Simulated(lives, seconds=6.0, forwards=4, canvas_steps=6))
    assert (row.first_canvas, row.answer) == ((1.0, 1.0), (6.0, 7.0))
    assert (row.canvases_per_second, row.occupancy) == (0.5, 1.5)


def test_where_a_forward_costs_mostly_itself_sharing_it_pays() -> None:
    rows = {(r.cost, r.policy): r for r in simulate_all(("reasoning",), COSTS, requests=40) if r.load is None}
    for cost in COSTS:
        mixed, homogeneous, completion = (rows[cost.name, policy].canvases_per_second for policy in POLICIES)
        one, four = cost.seconds(plan(256)), cost.seconds(plan(1024))
        if four < 3 * one:
            assert mixed > completion > homogeneous
        elif four == pytest.approx(4 * one):
            assert mixed == pytest.approx(completion) == pytest.approx(homogeneous)


def test_the_command_simulates_measures_and_draws(cli: Cli, folder: Path, tmp_path: Path) -> None:
    picture = tmp_path / "schedule.png"
    outcome = cli(
        "bench", "schedule", "--model", folder, "--simulated", 4, "--measured", 3, "--slots", 2, "--max-tokens", 20,
        "--plot", picture,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert len(outcome.json["simulated"]) == len(COSTS) * len(NAMES) * 3 * len(POLICIES)
    assert (outcome.json["slots"], outcome.json["measured_slots"]) == (2, 1)
    measured = outcome.json["measured"]
    assert [one["policy"] for one in measured] == list(POLICIES)
    assert len({one["tokens"] for one in measured}) == 1
    assert picture.stat().st_size > 10_000


def test_what_was_not_measured_has_no_slots(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redraft.bench.schedule.simulate_all", lambda **_: [])
    outcome = cli("bench", "schedule", "--measured", 0, "--json")
    assert (outcome.json["measured"], outcome.json["measured_slots"], outcome.json["slots"]) == ([], None, 8)


def test_numbers_of_nothing_are_refused(cli: Cli) -> None:
    outcome = cli("bench", "schedule", "--simulated", 0)
    assert (outcome.code, outcome.err) == (2, "error: --simulated is 0; it must be at least 1.\n")


def test_a_place_for_no_picture_is_refused_before_the_work(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redraft.bench.schedule.simulate_all", lambda **_: pytest.fail("worked in vain"))
    outcome = cli("bench", "schedule", "--plot", "/no/such/folder/policies.png")
    assert outcome.code == 2
    assert "the folder /no/such/folder does not exist" in outcome.err


def test_a_policy_more_is_drawn_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    for number in range(4):
        monkeypatch.setitem(POLICIES, f"more {number}", Mixed)
    draw(simulate_all(["tiny"], COSTS[:1], requests=2), tmp_path / "policies.svg")
    assert "more 3" in (tmp_path / "policies.svg").read_text(encoding="utf-8")

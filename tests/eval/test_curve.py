"""The quality-speed curve: what is measured, and that it is drawn."""

import json
from pathlib import Path

import pytest

from redraft.cli.main import main
from redraft.diffusion.records import DenoiseStep
from redraft.errors import SettingError
from redraft.eval.curve import CurvePoint, draw, entropies, measure
from redraft.eval.result import EvalResult
from redraft.model.folders import resolve_folder

BUDGETS = (1, 2, 4, 8, 12, 16, 32, 48)


def result(solved: int, steps: float) -> EvalResult:
    return EvalResult(solved=solved, total=10, mean_steps=steps, tokens_per_forward=1.0, seconds=1.0, records=())


def test_every_budget_is_asked_for_once() -> None:
    asked = []

    def evaluate(budget: int) -> EvalResult:
        asked.append(budget)
        return result(min(10, budget), budget / 2)

    points = measure(evaluate, BUDGETS)
    assert asked == list(BUDGETS)
    assert points[2] == CurvePoint(budget=4, solved=4, total=10, mean_steps=2.0)
    assert points[2].to_dict() == {"budget": 4, "solved": 4, "total": 10, "share": 0.4, "mean_steps": 2.0}


@pytest.mark.parametrize("budgets", [[], [0, 1], [4, 2], [2, 2]])
def test_wrong_budgets_are_named(budgets: list[int]) -> None:
    with pytest.raises(SettingError, match="increasing numbers of at least 1"):
        measure(lambda budget: result(1, 1.0), budgets)


def test_curves_are_drawn(tmp_path: Path) -> None:
    curve = measure(lambda budget: result(min(10, budget), float(budget)), BUDGETS)
    draw({"before": curve, "after": curve}, tmp_path / "a.png", title="t", entropy={"before": [1.0, 0.1]})
    draw({"one": curve}, tmp_path / "b.png", title="t")
    far = "/home/someone/" + "a-folder-with-a-long-name/" * 6
    draw({"tiny": curve, far: curve}, tmp_path / "c.png", title="t", entropy={far: [1.0, 0.1]})  # warns without room
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("a.png", "b.png", "c.png"))


def test_the_entropy_curve_is_the_mean_over_answers_that_got_so_far() -> None:
    def record(canvas: int, step: int, *entropy: float) -> DenoiseStep:
        return DenoiseStep(
            request_id=0, canvas_index=canvas, step=step, canvas=(), argmax_canvas=(), accepted=(), entropy=entropy,
            temperature=1.0, converged=False,
        )  # fmt: skip

    long = [record(0, 0, 4.0, 2.0), record(0, 1, 1.0, 0.0), record(1, 0, 9.0, 9.0)]
    assert entropies([long, [record(0, 0, 1.0, 1.0)]]) == [2.0, 0.5]


def test_the_command_compares_models(tmp_path: Path, capsys) -> None:
    picture, other = tmp_path / "c.png", str(tmp_path / "other")
    Path(other).symlink_to(resolve_folder("tiny"))
    arguments = ["eval", "curve", "tools", "--against", other, "--budgets", "1,2", "--limit", "2", "--device", "cpu"]
    assert main([*arguments, "--max-tokens", "16", "--canvas-length", "16", "--picture", str(picture), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [point["budget"] for point in shown["models"]["tiny"]] == [1, 2]
    assert shown["models"] == dict.fromkeys(("tiny", other), shown["models"]["tiny"])
    assert shown["items"] == 2
    assert picture.exists()
    assert main(["eval", "curve", "poems"]) == 2
    assert main([*arguments, "--steps", "4"]) == 2
    assert main([*arguments, "--picture", str(tmp_path / "c.gif3")]) == 2
    assert "must end in .png, .svg or .pdf" in capsys.readouterr().err


def test_items_keep_their_own_settings(capsys) -> None:
    given = ["--budgets", "2", "--limit", "1", "--max-tokens", "64", "--canvas-length", "64", "--device", "cpu"]
    assert main(["eval", "curve", "extraction", *given, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [point["total"] for point in shown["models"]["tiny"]] == [1]
    assert shown["entropy"]["tiny"]


def test_wrong_budgets_and_models_are_named_before_a_model_is_loaded(capsys, monkeypatch) -> None:
    monkeypatch.setattr("redraft.cli.options.ModelOptions.load", lambda *_: pytest.fail("a model was loaded"))
    assert main(["eval", "curve", "smalltalk", "--budgets", "2,1"]) == 2
    assert "The budgets are [2, 1]" in capsys.readouterr().err
    assert main(["eval", "curve", "smalltalk", "--against", "no such model"]) == 2
    assert "'no such model' is neither 'tiny', nor a folder" in capsys.readouterr().err
    for named in (["--against", "tiny"], ["--model", "26b", "--against", "tiny", "--against", "tiny"]):
        assert main(["eval", "curve", "smalltalk", *named]) == 2
        assert "A model is named twice by --model and --against; name each once." in capsys.readouterr().err

"""Deciding evaluated: the expected tool, and how far confidences are from what is right."""

from unittest.mock import Mock

import pytest

from redraft.deciding import Decision, Reading
from redraft.errors import PromptError
from redraft.eval import decide
from redraft.eval.result import EvalResult, ItemRecord
from redraft.eval.tools import ToolItem

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]


def item(*calls: str, tools: list = TOOLS) -> ToolItem:
    return ToolItem(
        id="x", tools=tools, messages=[{"role": "user", "content": "?"}], calls=tuple((c, {}) for c in calls)
    )


class Always:
    """Decides for one tool, with one confidence."""

    def __init__(self, choice: str, confidence: float) -> None:
        self.choice, self.confidence, self.asked = choice, confidence, []

    def decide(self, question: object, choices: list[str], **settings: object) -> Decision:
        self.asked.append((question, choices, settings))
        rest = {name: (1 - self.confidence) / (len(choices) - 1) for name in choices if name != self.choice}
        reading = Reading(
            name="choice", choice=self.choice, probabilities=rest | {self.choice: self.confidence}, raw={}, reads=2,
            agreement=1.0,
        )  # fmt: skip
        return Decision(text=self.choice, readings=(reading,), forwards=3)


def test_only_items_with_one_call_and_a_choice() -> None:
    one = item("f")
    assert decide.suitable([one, item(), item("f", "g"), item("f", tools=TOOLS[:1])]) == [one]


def test_the_expected_tool_is_the_solution() -> None:
    model = Always("f", 0.75)
    result = decide.evaluate(model, [item("f"), item("g")], reads=3)
    assert (result.solved, result.total, result.mean_steps) == (1, 2, 2.0)
    assert result.tokens_per_forward == pytest.approx(1 / 3)
    assert result.calibration_error == pytest.approx(0.25)
    assert result.summary()["calibration_error"] == 0.25
    _, choices, settings = model.asked[0]
    assert choices == ["f", "g"]
    assert settings == {"template": decide.TEMPLATE, "tools": TOOLS, "ends": False, "reads": 3}


def test_an_item_that_cannot_be_decided_is_named() -> None:
    model = Mock(decide=Mock(side_effect=PromptError("The prompt is too long.")))
    with pytest.raises(PromptError, match="item x: The prompt is too long"):
        decide.evaluate(model, [item("f")])


def test_the_calibration_error_is_over_bins() -> None:
    def record(confidence: float | None, solved: bool) -> ItemRecord:
        return ItemRecord(
            id="", solved=solved, output="", expected="", steps=(1,), tokens=1, forwards=1, confidence=confidence
        )

    records = [record(1.0, False), record(0.95, True), record(0.2, True), record(0.25, False)]
    assert EvalResult.of(records, 1.0).calibration_error == pytest.approx((0.95 + 0.55) / 4)
    assert EvalResult.of([record(None, True)], 1.0).calibration_error is None

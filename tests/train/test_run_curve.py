"""The file in which a run keeps its curves."""

from pathlib import Path

from redraft.eval.curve import CurvePoint
from redraft.train.curve import first_and_last, log_curve


def test_a_step_that_is_measured_again_replaces_itself_and_what_was_behind_it(tmp_path: Path) -> None:
    file = tmp_path / "curve.csv"
    for step, solved in ((0, 1), (1, 2), (4, 3)):
        log_curve(file, step, [CurvePoint(budget=1, solved=solved, total=9, mean_steps=1.0)])
    with file.open("ab") as torn:
        torn.write(b"\xff,")  # what a machine that lost its power may leave
    log_curve(file, 2, [CurvePoint(budget=1, solved=4, total=9, mean_steps=1.5)])
    assert [line[:5] for line in file.read_text().splitlines()] == ["step,", "0,1,1", "1,1,2", "2,1,4"]
    first, last = first_and_last(file)
    assert first == [CurvePoint(budget=1, solved=1, total=9, mean_steps=1.0)]
    assert last == [CurvePoint(budget=1, solved=4, total=9, mean_steps=1.5)]

"""The script that times Transformers does the work it says: exactly n steps of a canvas, at every batch."""

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "transformers_step.py"


def test_the_benchmark_of_transformers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("transformers_step", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    small = ["--shape", "nano", "--context", "20", "--steps", "2", "--cache", "dynamic", "--device", "cpu"]
    script.main([*small, "--batch", "1,2", "--results", str(tmp_path)])  # counts the passes of every canvas
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text()) == {"results": printed}
    assert [result["batch"] for result in printed] == [1, 2]
    for result in printed:
        assert result["ms_per_step_spread"]["min"] <= result["ms_per_step"] <= result["ms_per_step_spread"]["max"]

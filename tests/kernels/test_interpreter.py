"""Runs the kernels' checks under Triton's interpreter, which has to be chosen before Triton is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")
CHECKS = sorted((Path(__file__).parent / "interpreted").glob("check_*.py"))
GROUPS = 4
"""Processes that share the checks: several at a time, but not one for each, as starting one takes seconds."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("group", range(GROUPS))
def test_kernels_equal_their_twins_under_the_interpreter(group: int) -> None:
    checks = [str(check) for check in CHECKS[group::GROUPS]]
    command = [sys.executable, "-m", "pytest", *checks, "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]

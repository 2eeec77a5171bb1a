"""Ctrl-C while torch is imported, which swallows exceptions, ends a command once that is done."""

import subprocess
import sys
from pathlib import Path

SWALLOWING = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)
except KeyboardInterrupt:
    pass
"""
PROGRAM = """
import signal, sys, time
from redraft.cli.stopping import ctrl_c_after_imports
{before}
try:
    with ctrl_c_after_imports():
        import torch
        time.sleep({seconds})
except KeyboardInterrupt:
    sys.exit("interrupted")
assert signal.getsignal(signal.SIGINT) is {handler}
"""


def _ending(folder: Path, **words: object) -> str:
    (folder / "torch.py").write_text(SWALLOWING)
    code = f"import sys; sys.path.insert(0, {str(folder)!r})\n{PROGRAM.format(**words)}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stderr


def test_it_waits_for_the_import(tmp_path: Path) -> None:
    assert _ending(tmp_path, before="", seconds=30, handler="None") == "interrupted\n"


def test_a_job_in_the_background_goes_on_ignoring_it(tmp_path: Path) -> None:
    ignoring = "signal.signal(signal.SIGINT, signal.SIG_IGN)"
    assert _ending(tmp_path, before=ignoring, seconds=0, handler="signal.SIG_IGN") == ""

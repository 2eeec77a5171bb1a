"""Folders whose files are written together: what killed processes leave, and who else is writing."""

import errno
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from redraft.errors import SettingError
from redraft.outputs import check_new, staged_folder

KILLED = """
import os, signal, sys
from pathlib import Path
from redraft.outputs import staged_folder

with staged_folder(Path(sys.argv[1]), last="last") as work:
    (work / "last").write_text("killed")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    check_new(tmp_path)
    assert left.exists()  # a check removes nothing
    with staged_folder(tmp_path, last="last") as work:
        assert not left.exists()
        (work / "last").write_text("whole")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("last", "whole")]


def test_a_temporary_folder_that_is_in_use_stays(tmp_path: Path) -> None:
    with staged_folder(tmp_path, last="last") as first:
        (first / "last").write_text("first")
        with staged_folder(tmp_path, last="last") as second:
            (second / "last").write_text("second")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("last", "first")]


def test_a_folder_in_which_another_saves_or_files_lie_is_taken(tmp_path: Path) -> None:
    with staged_folder(tmp_path, last="last") as work:
        (work / "last").touch()
        with pytest.raises(SettingError, match="already exists; name a new one"):
            check_new(tmp_path)
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    with pytest.raises(SettingError, match="already exists; name a new one"):
        check_new(tmp_path)
    (tmp_path / "last").unlink()
    check_new(tmp_path)


def test_a_full_disk_is_told_with_the_folder_whatever_file_it_met(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "a source that was copied")
    words = full.strerror
    for needed, said in ((None, words), (2_000_000, f"{words} (0.002 GB are needed)")):
        with pytest.raises(OSError, match="No space") as caught, staged_folder(tmp_path / "a", last="b", needed=needed):
            raise full
        assert (caught.value.strerror, caught.value.filename) == (said, str(tmp_path / "a"))
    with pytest.raises(OSError, match="a source") as caught, staged_folder(tmp_path / "a", last="b"):
        raise OSError(errno.EACCES, "Permission denied", "a source")
    assert list(tmp_path.iterdir()) == []

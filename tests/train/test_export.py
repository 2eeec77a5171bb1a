"""What a run delivers is whole, or else what was there before."""

import errno
import shutil
from pathlib import Path

import pytest

from redraft.model import Transformer
from redraft.model.folders import resolve_folder
from redraft.train.export import export_model


@pytest.mark.parametrize("former", [False, True])
def test_a_disk_that_fills_leaves_no_half_model(
    model: Transformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, former: bool
) -> None:
    tiny, folder = str(resolve_folder("tiny")), tmp_path / "model"
    if former:
        export_model(model, folder, tokenizer=tiny, init="")
    before = {file.name: file.read_bytes() for file in folder.glob("*")}
    copy = shutil.copyfile

    def full(source: Path, target: Path) -> None:
        copy(source, target)
        if target.name == "tokenizer.json":
            target.write_bytes(target.read_bytes()[:1000])
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space"):
        export_model(model, folder, tokenizer=tiny, init="")
    assert {file.name: file.read_bytes() for file in folder.glob("*")} == before

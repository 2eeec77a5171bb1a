"""How the C kernels are compiled and kept, and that nothing depends on them."""

import ctypes
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from redraft import kernels
from redraft.kernels import native
from redraft.kernels.native import build

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="C kernels are compiled on Linux alone")
needs_compiler = pytest.mark.skipif(not native.available(), reason="needs a C compiler")


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, and nothing loaded; `library` itself remembers what it was asked."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("REDRAFT_NATIVE", raising=False)


def fake_compiler(folder: Path, script: str) -> Path:
    file = folder / "cc"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


@needs_compiler
def test_compiled_once_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.library.__wrapped__() is not None
    (file,) = build.cache_folder().iterdir()
    monkeypatch.setattr(build, "_compile", None)
    assert build.library.__wrapped__() is not None
    assert [file] == list(build.cache_folder().iterdir())


@needs_compiler
def test_arguments_are_those_that_c_declares() -> None:
    out, x = torch.empty(2, 4), torch.ones(2, 4)
    with pytest.raises(AssertionError, match="gelu_gate has 6 arguments, not 5"):
        native._call("gelu_gate", out, x, x, 8)  # without the dtype
    with pytest.raises(ctypes.ArgumentError):
        native._call("gelu_gate", out, x, x, 8.0, like=x)
    with pytest.raises(LookupError, match="no C file exports redraft_gelu"):
        build.arguments_of("gelu")


@needs_compiler
def test_a_compiler_with_options(monkeypatch: pytest.MonkeyPatch) -> None:
    command = build._compiler()
    assert command is not None
    monkeypatch.setenv("CC", f"{command[0]} -g")
    assert build._compiler() == [command[0], "-g", "-march=native"]
    assert build.library.__wrapped__() is not None


@needs_compiler
def test_a_compiler_that_cannot_say_what_is_built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """As GCC before version 10."""
    command = build._compiler()
    assert command is not None
    monkeypatch.setenv("CC", f"{command[0]} -U__has_builtin -w")
    assert build.library.__wrapped__() is not None


def test_the_reason_is_an_error_and_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = fake_compiler(tmp_path, "echo 'a.h: warning: old' >&2; echo 'a.h: error: new' >&2; exit 1")
    monkeypatch.setenv("CC", str(compiler))
    assert build.library.__wrapped__() is None
    assert "a.h: error: new" in caplog.text
    assert "old" not in caplog.text


def test_options_may_name_another_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = fake_compiler(tmp_path, "exit 0")
    monkeypatch.setenv("CC", f"{compiler} -march=x86-64-v3")
    assert build._compiler() == [str(compiler), "-march=x86-64-v3"]


def test_a_compiler_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = fake_compiler(tmp_path, "exit 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CC", "./cc")
    assert build._compiler() == [str(compiler), "-march=native"]


def test_a_compiler_whose_quotation_does_not_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", 'gcc "')
    assert build.library.__wrapped__() is None
    assert "The C kernels are left out, which makes the CPU slower: No closing quotation" in caplog.text


@needs_compiler
def test_a_blank_compiler_is_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    usual = build._compiler()
    monkeypatch.setenv("CC", " ")
    assert build._compiler() == usual


@needs_compiler
def test_another_processor_gets_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    build.library.__wrapped__()
    monkeypatch.setattr(build, "_processor", lambda: "flags: none")
    build.library.__wrapped__()
    assert len(list(build.cache_folder().iterdir())) == 2


@pytest.mark.parametrize("setting", [("REDRAFT_NATIVE", "0"), ("CC", "no-such-compiler")])
def test_left_out_without_a_word(
    setting: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(*setting)
    assert build.library.__wrapped__() is None
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not build.cache_folder().exists()


@pytest.mark.parametrize("script", ["echo 'error: unknown option' >&2; exit 1", "exit 0"])
def test_a_compiler_that_fails_is_reported_and_leaves_nothing(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", str(fake_compiler(tmp_path, script)))
    assert build.library.__wrapped__() is None
    (record,) = caplog.records
    assert "C kernels are left out" in record.getMessage()
    assert "\n" not in record.getMessage()
    assert not list(build.cache_folder().iterdir())


def test_a_cache_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("CC", str(fake_compiler(tmp_path, "exit 0")))
    assert build.library.__wrapped__() is None
    assert "C kernels are left out" in caplog.text


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("CC", "true")
    monkeypatch.setattr(Path, "home", home)
    assert build.library.__wrapped__() is None
    assert "Could not determine home directory" in caplog.text


def test_without_them_pytorch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", lambda: None)
    x = torch.randn(20, 64)
    with torch.no_grad():
        assert torch.equal(kernels.rms_norm(x, None, 1e-6), kernels.cpu.rms_norm(x, None, 1e-6))


@needs_compiler
def test_importing_compiles_nothing() -> None:
    script = (
        "import redraft, sys; from redraft.kernels.native import build; assert not build.library.cache_info().misses"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env=os.environ)

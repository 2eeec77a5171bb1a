"""Compiling ahead, on any machine: Triton is told of a Hopper GPU that is not there, and no kernel may be launched."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from compiling import bf16, pretended
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler.errors import CompilationError
from triton.runtime import driver

from redraft.engine.graph_buffers import StepBuffers
from redraft.engine.graph_step import Step, new_slots
from redraft.kernels.triton.language import jit, tl
from redraft.kernels.triton.linear import gated_linear
from redraft.kernels.triton.norms import norm
from redraft.kernels.triton.rehearsal import CompileOnce, rehearse, rehearsing
from redraft.model.folders import shape_of
from redraft.model.packed import build
from redraft.model.packed.pages import new_pages
from redraft.model.packed.weights import PackedModel
from redraft.model.transformer import Transformer

TARGET = GPUTarget("cuda", 90, 32)
NOWHERE = torch.device("meta")
DRIVER = SimpleNamespace(
    get_current_target=lambda: TARGET, get_current_device=lambda: "none", get_current_stream=lambda device: 0
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """The name and key of every kernel that Triton is asked to compile."""
    found: list[tuple[str, str]] = []
    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", _note_in(found, compile_it=True))
    monkeypatch.setattr(driver, "_active", DRIVER)
    with pretended(TARGET):
        yield found


def test_kernels_are_compiled_once_and_not_launched(asked: list[tuple[str, str]]) -> None:
    width = 704

    def work() -> None:
        for _ in range(3):
            norm(bf16(40, width), bf16(width), 1e-6)
            gated_linear(bf16(40, width), bf16(2 * 96, width))

    rehearse(work)
    assert sorted({name for name, _ in asked}) == ["_norm_kernel", "gate_rows_kernel"]
    asked.clear()
    rehearse(work)
    assert asked == []
    with pytest.raises(AttributeError):  # this driver cannot launch anything
        work()


def test_no_gpu_is_given_what_is_compiled_for_another(
    asked: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has been launched on one is loaded there, and cannot run elsewhere."""

    def work() -> None:
        for device in ("first", "second", "first", "second"):
            monkeypatch.setattr(DRIVER, "get_current_device", lambda device=device: device)
            _copy[(1,)](bf16(16))

    rehearse(work)
    first, second = (list(_copy.device_caches[device][0].values()) for device in ("first", "second"))
    assert len(first) == 1
    assert second == []
    assert len(asked) > 1


@jit
def _copy(x):
    tl.store(x, tl.load(x + 1))


def test_what_kernels_would_have_filled_is_zero(asked: list[tuple[str, str]]) -> None:
    """So that it may be taken for indices; a rehearsal inside one compiles with it."""
    seen: list[torch.Tensor] = []

    def work() -> None:
        assert rehearsing()
        rehearse(lambda: seen.append(norm(bf16(40, 352), bf16(352), 1e-6)))
        seen.extend([torch.empty(4096), torch.empty_like(seen[0]), seen[0].new_empty(77, dtype=torch.int32)])
        assert not asked or len(asked) == 1

    rehearse(work)
    assert not rehearsing()
    assert [name for name, _ in asked] == ["_norm_kernel"]
    assert not any(one.any() for one in seen[1:] if one.device.type == "cpu")


def test_what_does_not_compile_says_so_when_it_is_launched(asked: list[tuple[str, str]]) -> None:
    def work() -> None:
        _broken[(1,)](bf16(16))

    rehearse(work)
    assert len(asked) == 1
    with pytest.raises(CompilationError, match="on purpose"):
        work()


def test_an_interrupted_one_leaves_nothing_behind(
    asked: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(CompileOnce):
        def __exit__(self, *error: object) -> None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("redraft.kernels.triton.rehearsal.CompileOnce", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            rehearse(lambda: norm(bf16(4, 200), bf16(200), 1e-6))  # a block that no other test has
    asked.clear()
    rehearse(lambda: norm(bf16(4, 1900), bf16(1900), 1e-6))
    assert [name for name, _ in asked] == ["_norm_kernel"]


@jit
def _broken(x):
    tl.static_assert(False, "on purpose")


def test_numbers_of_segments_share_code(asked: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """What differs between batches of a kind is data, so that a server compiles little before it is ready."""
    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", _note_in(asked, compile_it=False))
    model = _model(monkeypatch)
    pages = new_pages(model, full=37, sliding=21)
    state = new_slots(model, 3, model.config.canvas_length)
    needed = {}
    for segments in (6, 8, 24, 32):
        asked.clear()
        buffers = StepBuffers(segments, model.config.canvas_length, 37, NOWHERE, slots=3)
        whole = Step(model=model, fields=buffers.fields, state=state, pages=pages, images=None)
        whole.finish(whole.begin(), lambda report: None)
        needed[segments] = set(asked)
    assert len(needed[32]) > 25
    assert needed[6] == needed[8]
    assert needed[24] == needed[32]


def _note_in(found: list[tuple[str, str]], *, compile_it: bool) -> Callable[..., bool]:
    def hook(*, key: str, fn: Any, **_: Any) -> bool:
        found.append((fn.jit_function.__name__, key))
        return not compile_it

    return hook


def _model(monkeypatch: pytest.MonkeyPatch) -> PackedModel:
    """The 26B shape in FP8, without numbers."""
    config = shape_of("26b-a4b")
    with NOWHERE:
        shapes = {name: weight.shape for name, weight in Transformer(config).state_dict().items()}
    monkeypatch.setattr(build, "key_unit", lambda norm: 1.0)  # of numbers
    given = {"device": NOWHERE, "dtype": torch.bfloat16, "quantization": "fp8", "fp8_vocabulary": True}
    return build.pack(config, lambda name: bf16(*shapes[name]), **given)

"""Kernels are launched on the GPU that holds their arguments, whichever is the current one. No GPU is needed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from compiling import meta, pretended
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from redraft.kernels.gluon.language import gluon
from redraft.kernels.triton import philox
from redraft.kernels.triton.descriptors import descriptor
from redraft.kernels.triton.language import jit
from redraft.kernels.triton.rehearsal import rehearse


class _OnGpu(torch.Tensor):
    """A tensor without numbers that says which GPU it is on."""

    number: int

    def get_device(self) -> int:
        return self.number


class _OnFirst(_OnGpu):
    number = 0


class _OnSecond(_OnGpu):
    number = 1


@jit
def _in_triton(x, y, z):
    pass


@gluon
def _in_gluon(x, y, z):
    pass


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The numbers of the GPUs of all launches. The first is the current one, also afterwards."""
    current, found = [0], list[int]()

    @contextmanager
    def device(number: int) -> Iterator[None]:
        before, current[0] = current[0], number
        yield
        current[0] = before

    def run(self: Any, *arguments: Any, **options: Any) -> None:
        found.append(current[0])

    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(JITFunction, "run", run)
    yield found
    assert current == [0]


def _first(*shape: int) -> torch.Tensor:
    return meta(*shape).as_subclass(_OnFirst)


def _second(*shape: int) -> torch.Tensor:
    return meta(*shape).as_subclass(_OnSecond)


@pytest.mark.parametrize("kernel", [_in_triton, _in_gluon])
@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        (lambda: (_first(16), _first(16), 3), 0),
        (lambda: (_second(16), _second(16), 3), 1),
        (lambda: (None, 3, _second(16)), 1),
        (lambda: (descriptor(_second(64, 64), 16, 16), 3, None), 1),
        (lambda: ((_first(16), _second(16)), 3, _second(16)), 1),  # rows of all GPUs, and the weight of one
        (lambda: (meta(16), 3, None), 0),
    ],
)
def test_the_first_tensor_decides(
    kernel: Any, arguments: Callable[[], tuple[Any, ...]], number: int, used: list[int]
) -> None:
    kernel[(1,)](*arguments())
    rehearse(lambda: kernel[(1,)](*arguments()))
    assert used == [number, number]


def test_an_operation_outside_the_engine_runs_where_its_tensors_are(used: list[int]) -> None:
    with pretended(GPUTarget("cuda", 90, 32)):
        philox.draw(meta(2, dtype=torch.int64).as_subclass(_OnSecond), 0, 0, 16, 99, philox.STEP)
    assert used == [1]

"""Memory for graphs goes when nothing refers to it, but never during a capture, which would end the process."""

import gc
import threading
from collections.abc import Iterator

import pytest
import torch

from redraft.kernels import streams
from redraft.kernels.streams import GraphMemory

CPU = torch.device("cpu")
there: list[int] = []


class Pool:
    """In place of PyTorch's; notes when it is freed."""

    def __init__(self) -> None:
        there.append(id(self))

    def __del__(self) -> None:
        assert not streams_capturing.is_set(), "PyTorch would have ended the process"
        there.remove(id(self))


streams_capturing = threading.Event()


@pytest.fixture(autouse=True)
def pools(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    gc.collect()
    there.clear()
    monkeypatch.setattr(torch.cuda, "MemPool", Pool)
    yield
    streams_capturing.clear()


def test_it_goes_when_nothing_refers_to_it() -> None:
    memory = GraphMemory(CPU)
    assert list(memory.pools) == [CPU]
    assert len(there) == 1
    del memory
    assert not there
    assert not streams._pools


@pytest.mark.parametrize("cycle", [False, True])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_is_left_during_a_capture_goes_behind_it(cycle: bool, elsewhere: bool) -> None:
    """Also where the garbage collector finds it, in the capturing thread or in one that compiles meanwhile."""
    kept = [GraphMemory(CPU)]
    if cycle:
        kept.append(kept)  # type: ignore[arg-type]
    with streams.keeping_pools():
        streams_capturing.set()
        del kept
        collector = threading.Thread(target=gc.collect)
        collector.start() if elsewhere else gc.collect()
        if elsewhere:
            collector.join()
        assert len(there) == 1
        streams_capturing.clear()
    assert not there
    assert not streams._pools
    assert not streams._left


def test_what_is_left_while_another_thread_captures_waits_for_it() -> None:
    memory, begun, over = GraphMemory(CPU), threading.Event(), threading.Event()

    def capture() -> None:
        with streams.keeping_pools():
            begun.set()
            over.wait(60)

    thread = threading.Thread(target=capture)
    thread.start()
    begun.wait(60)
    del memory
    assert len(there) == 1
    over.set()
    thread.join()
    assert not there


def test_a_capture_that_fails_gives_back_what_was_left_as_well() -> None:
    kept = [GraphMemory(CPU)]

    def fails() -> None:
        with streams.keeping_pools():
            kept.clear()
            assert len(there) == 1
            raise MemoryError

    with pytest.raises(MemoryError):
        fails()
    assert not there

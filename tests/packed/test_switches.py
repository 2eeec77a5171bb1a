"""Switches of single operations, watching them, and work beside work where there is no second stream."""

import os
import subprocess
import sys
import threading

import pytest
import torch
from running import new_runner, step_of

from redraft import kernels
from redraft.errors import SettingError
from redraft.kernels.streams import in_parallel
from redraft.kernels.switches import Operation, call, eager_operations, graphable, watching
from redraft.model.packed.transformer import PackedTransformer


def _forced() -> str | None:
    return kernels.forced()


def test_a_switched_operation_alone_runs_eagerly() -> None:
    assert call("attention", _forced) is None
    with eager_operations("attention"):
        assert call("attention", _forced) == "eager"
        assert call("experts", _forced) is None
        assert not graphable()
    assert graphable()


def test_a_switched_operation_leaves_other_threads_alone() -> None:
    """A server's model thread and those that read requests call operations at the same time."""
    inside, done = threading.Event(), threading.Event()
    seen = list[str | None]()

    def other() -> None:
        inside.wait(60)
        seen.append(_forced())
        done.set()

    def waiting() -> str | None:
        inside.set()
        assert done.wait(60)
        return kernels.forced()

    thread = threading.Thread(target=other)
    thread.start()
    with eager_operations("attention"):
        assert call("attention", waiting) == "eager"
    thread.join()
    assert seen == [None]
    assert _forced() is None


def test_operations_of_other_threads_are_neither_switched_nor_watched() -> None:
    seen = list[object]()
    with eager_operations("attention"), watching(lambda operation: "watched"):
        thread = threading.Thread(target=lambda: seen.extend([call("attention", _forced), graphable()]))
        thread.start()
        thread.join()
    assert seen == [None, True]


def test_without_triton_nothing_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redraft.kernels.triton.language.triton", None)
    assert not graphable()


def test_unknown_operations_are_refused() -> None:
    with pytest.raises(SettingError, match="'matmul' is not a GPU operation"), eager_operations("matmul"):
        pass


def test_a_process_takes_operations_from_its_environment() -> None:
    code = "from redraft.kernels import switches; print(switches.graphable())"
    environment = os.environ | {"REDRAFT_EAGER": "attention,experts"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_watching_sees_names_and_arguments_and_gives_the_result() -> None:
    seen = []

    def watch(operation: Operation) -> object:
        seen.append((operation.name, operation.args, operation.kwargs))
        return operation.run()

    with watching(watch):
        assert call("experts", divmod, 7, 4) == (1, 3)
    assert call("experts", divmod, 9, 4) == (2, 1)
    assert seen == [("experts", (7, 4), {})]


def test_a_name_means_one_operation_wherever_layers_are_run(packed: PackedTransformer) -> None:
    """In the engine's step, and by the model's own methods where no kernel for pages runs."""
    functions = dict[str, set[object]]()

    def watch(operation: Operation) -> object:
        functions.setdefault(operation.name, set()).add(operation.function)
        return operation.run()

    with watching(watch), torch.inference_mode():
        packed.encode(torch.arange(9)[None], packed.new_cache(1, 16))
        new_runner(packed).run([step_of(0, 0, 0)])
    assert {name for name, found in functions.items() if len(found) > 1} == set()
    assert {"enter", "next_norm"} <= set(functions)


def test_beside_returns_all() -> None:
    assert in_parallel(torch.device("cpu"), lambda: None, lambda: 1, lambda: "two") == (None, 1, "two")

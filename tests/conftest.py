"""Settings of every test run: one thread (shared machines stall on more), no network, and Ctrl-C is not ignored.

Hypothesis tries the same examples each time, however long they take.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress

# Before any import that reads them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ.pop("REDRAFT_KERNELS", None)

import pytest
import torch

from spreading import spread

torch.set_num_threads(1)

with suppress(ImportError):  # a machine that runs the tests for GPUs alone does without it
    from hypothesis import HealthCheck, settings

    settings.register_profile("redraft", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("redraft")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)  # after those that deselect
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers start with the tests that may take longer than others: at the end, one would be left with them all."""
    workers = getattr(config, "workerinput", {}).get("workercount")
    if workers:
        items[:] = spread(items, lambda item: item.get_closest_marker("timeout") is not None, workers)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """PyTorch's threads during a test: one, then two."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)

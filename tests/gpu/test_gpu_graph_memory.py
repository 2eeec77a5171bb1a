"""Memory for graphs that is left during a capture: PyTorch would end the process."""

import subprocess
import sys

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LEFT = """
import gc
import torch
from redraft.kernels import streams
from redraft.kernels.streams import GraphMemory, capture

device = torch.device("cuda", 0)
numbers = torch.ones(8, device=device)
left = [GraphMemory(device)]
capture(lambda: numbers + 1, left[0])
left.append(left)

def work():
    global left
    left = None
    gc.collect()
    assert len(streams._pools) == 2
    return numbers + 2

graph, result = capture(work, kept := GraphMemory(device))
graph.replay()
assert result.tolist() == [3.0] * 8
assert len(streams._pools) == 1
"""


def test_memory_that_is_left_during_a_capture_goes_behind_it() -> None:
    done = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr

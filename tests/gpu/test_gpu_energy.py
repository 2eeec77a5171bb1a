"""The energy of operations on a GPU: a busy card draws more than an idle one, and all of a step is counted."""

import pytest
import torch
from stepping import CONFIG

from redraft.bench.board import StepCase
from redraft.bench.energy import measure_energy, measure_prices
from redraft.errors import SettingError

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_what_a_step_draws() -> None:
    device = torch.device("cuda:0")
    try:
        prices = measure_prices(device, 0.3)
    except SettingError as error:
        pytest.skip(str(error))
    assert 0 < prices.idle_watts < prices.limit_watts
    assert 0 < prices.fp8 <= 1.1 * prices.bf16
    assert prices.byte > 0
    found = measure_energy(CONFIG, device, quantization=None, case=StepCase(batch=2, context=40), seconds=0.2)
    assert {"experts", "attention", "predict", "finish_step"} <= {one.name for one in found}
    assert all(one.ms > 0 and one.joules > 0 for one in found)

"""Products with experts on a CPU, in each of their versions and formats, against eager ones; see test_kernels.py."""

from collections.abc import Callable, Iterator

import pytest
import torch
from comparing import BACKENDS, DTYPES, assert_as_exact_as_eager, cast, normal
from torch import Tensor

from redraft.kernels import cpu, cuda, eager, native
from redraft.kernels.packed import ExpertWeight, PanelInt4
from redraft.quant.int4 import quantize_int4
from redraft.quant.prepare import in_panels


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


CHOICES: dict[str, Callable[[int], Tensor]] = {
    "even": lambda count: torch.stack([torch.arange(count) % 8, (torch.arange(count) + 3) % 8], -1),
    "one expert idle": lambda count: torch.stack([torch.arange(count) % 7, (torch.arange(count) + 1) % 7], -1),
    "crowds of a few": lambda count: torch.stack([torch.arange(count) * 6 // count, torch.full((count,), 6)], -1),
    "all the same": lambda count: torch.tensor([[6, 1]]).expand(count, 2).contiguous(),
    "uneven": lambda count: normal(count, 8, seed=5).add(2 * normal(8, seed=6)).topk(2).indices,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 16, 150])
@pytest.mark.parametrize("choice", CHOICES)
def test_experts(backend: str, threads: int, dtype: torch.dtype, count: int, choice: str) -> None:
    index = CHOICES[choice](count)
    x, weight = normal(count, 64), normal(count, 2, seed=1).abs()
    gate_up, down = 0.2 * normal(8, 96, 64, seed=2), 0.2 * normal(8, 64, 48, seed=3)
    assert_as_exact_as_eager("experts", backend, dtype, x, index, weight, gate_up, down)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tokens_experts_do_not_depend_on_other_tokens(threads: int, dtype: torch.dtype) -> None:
    x, weight = normal(150, 384).to(dtype), normal(150, 2, seed=1).abs().to(dtype)
    gate_up, down = (0.2 * normal(*shape).to(dtype) for shape in ((8, 192, 384), (8, 384, 96)))
    for choice in CHOICES.values():
        index = choice(150)
        whole = cpu.experts(x, index, weight, gate_up, down)
        for rows in (slice(1), slice(149, 150), slice(17), slice(44, 149)):
            assert torch.equal(cpu.experts(x[rows], index[rows], weight[rows], gate_up, down), whole[rows])


@pytest.mark.usefixtures("in_c")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 16, 150])
@pytest.mark.parametrize("choice", CHOICES)
def test_experts_in_c(threads: int, dtype: torch.dtype, count: int, choice: str) -> None:
    index, x, weight = CHOICES[choice](count), normal(count, 64), normal(count, 2, seed=1).abs()
    shapes = (8, 192, 64), (8, 64, 96)
    gate_up, down = (cpu.input_major(torch.empty(shape, dtype=dtype)).copy_(0.2 * normal(*shape)) for shape in shapes)
    ours = native.experts(x.to(dtype), index, weight.float(), gate_up, down)
    exact, theirs = (
        eager.experts(*(cast(cast(value, dtype), wide) for value in (x, index, weight, gate_up, down))).double()
        for wide in (torch.float64, dtype)
    )
    assert (ours.double() - exact).abs().max() <= 2 * (theirs - exact).abs().max() + 1e-6 * exact.abs().max()
    for rows in ([count - 1], list(range(count // 2, count))):
        alone = native.experts(x[rows].to(dtype), index[rows], weight[rows].float(), gate_up, down)
        assert torch.equal(alone, ours[rows])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [16, 32, 64])
@pytest.mark.parametrize("choice", CHOICES)
def test_int4_experts_are_those_of_their_numbers(threads: int, dtype: torch.dtype, group: int, choice: str) -> None:
    index, x, weight = CHOICES[choice](150), normal(150, 128).to(dtype), normal(150, 2, seed=1).abs().float()
    packed = [in_panels(quantize_int4(normal(*shape), group)) for shape in ((8, 128, 128), (8, 128, 64))]
    plain = [cpu.input_major(torch.empty(w.shape, dtype=dtype)).copy_(w.dequantize(dtype)) for w in packed]
    for run in (eager.experts, cpu.experts):  # libraries sum in another order where weights lie otherwise
        expected = run(x, index, weight, *plain)
        apart = (run(x, index, weight, *packed) - expected).abs().max() / expected.abs().max()
        assert apart <= 8 * torch.finfo(dtype).eps


@pytest.mark.usefixtures("in_c")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [16, 64])
@pytest.mark.parametrize("choice", CHOICES)
def test_int4_experts_in_c_are_multiplied_in_fp32(threads: int, dtype: torch.dtype, group: int, choice: str) -> None:
    index, x, weight = CHOICES[choice](150), normal(150, 128).to(dtype), normal(150, 2, seed=1).abs().float()
    packed = [in_panels(quantize_int4(normal(*shape), group)) for shape in ((8, 128, 128), (8, 128, 64))]
    plain = [cpu.input_major(torch.empty(w.shape)).copy_(w.dequantize(torch.float32)) for w in packed]
    ours = native.experts(x, index, weight, *packed)
    assert torch.equal(ours, native.experts(x.float(), index, weight, *plain).to(dtype))
    assert torch.equal(native.experts(x[70:], index[70:], weight[70:], *packed), ours[70:])


@pytest.mark.usefixtures("in_c")
@pytest.mark.parametrize("dtype", DTYPES)
def test_experts_in_c_take_any_stride_and_any_dtype_of_weights_of_choices(dtype: torch.dtype) -> None:
    index, x, weight = CHOICES["uneven"](40), normal(40, 64).to(dtype), normal(40, 2, seed=1).abs().to(dtype)
    shapes = (8, 192, 64), (8, 64, 96)
    experts = [cpu.input_major(torch.empty(shape, dtype=dtype)).copy_(0.2 * normal(*shape)) for shape in shapes]
    expected = native.experts(x, index, weight.float(), *experts)
    assert torch.equal(native.experts(x.T.contiguous().T, index, weight, *experts), expected)
    assert torch.equal(native.experts(x, index.T.contiguous().T, weight, *experts), expected)
    assert torch.equal(native.experts(x, index, weight.T.contiguous().T, *experts), expected)


def panels(group: int, *shape: int) -> PanelInt4:
    return in_panels(quantize_int4(normal(*shape), group))


def input_major(*shape: int) -> Tensor:
    return cpu.input_major(torch.empty(shape)).copy_(normal(*shape))


@pytest.mark.parametrize(
    ("gate_up", "down", "dtype"),
    [
        (input_major(8, 96, 64), input_major(8, 64, 48), torch.long),
        (input_major(8, 128, 48), input_major(8, 48, 64), torch.long),
        (input_major(8, 128, 64), normal(8, 64, 64).float(), torch.long),
        (normal(8, 128, 64).float(), input_major(8, 64, 64), torch.long),
        (input_major(8, 128, 64), input_major(8, 64, 64), torch.int32),
        (panels(64, 8, 128, 64), panels(32, 8, 64, 64), torch.long),
        (input_major(8, 128, 64), panels(64, 8, 64, 64), torch.long),
    ],
)
def test_experts_that_c_does_not_take_are_left_to_pytorch(
    gate_up: ExpertWeight, down: ExpertWeight, dtype: torch.dtype
) -> None:
    """Other widths than multiples of 32, other places in memory, other indices, two groups, two formats."""
    index = CHOICES["uneven"](40).to(dtype)
    given = normal(40, gate_up.shape[-1]).float(), index, normal(40, 2, seed=1).abs().float(), gate_up, down
    assert torch.equal(native.experts(*given), cpu.experts(*given))


@pytest.mark.parametrize("choice", CHOICES)
def test_experts_as_grouped_products(choice: str) -> None:
    """The CUDA version, which PyTorch also runs on a CPU."""
    index = CHOICES[choice](40)
    x, weight = normal(40, 64), normal(40, 2, seed=1).abs().float()
    gate_up, down = 0.2 * normal(8, 96, 64, seed=2), 0.2 * normal(8, 64, 48, seed=3)
    ours = cuda.experts(*(cast(value, torch.bfloat16) for value in (x, index)), weight,
                        gate_up.bfloat16(), down.bfloat16())  # fmt: skip
    exact = eager.experts(*(cast(value.bfloat16(), torch.float64) for value in (x,)), index, weight.double(),
                          gate_up.bfloat16().double(), down.bfloat16().double())  # fmt: skip
    assert (ours.double() - exact).abs().max() <= 0.02 * exact.abs().max()


def test_input_major_weights_change_nothing_but_the_memory() -> None:
    index = CHOICES["uneven"](50)
    x, weight = normal(50, 64).float(), normal(50, 2).abs().float()
    gate_up, down = 0.2 * normal(8, 96, 64).float(), 0.2 * normal(8, 64, 48).float()
    transposed = [cpu.input_major(w).copy_(w) for w in (gate_up, down)]
    assert transposed[0].shape == gate_up.shape
    assert transposed[0].mT.is_contiguous()
    expected = cpu.experts(x, index, weight, gate_up, down)
    torch.testing.assert_close(cpu.experts(x, index, weight, *transposed), expected, rtol=1e-5, atol=1e-6)

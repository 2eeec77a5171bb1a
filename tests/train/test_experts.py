"""The training experts against their definition: results and gradients, with plain, adapted and quantized weights."""

import pytest
import torch
from torch import Tensor

from redraft.kernels import eager
from redraft.quant.fp8 import quantize_fp8
from redraft.quant.int4 import quantize_int4
from redraft.train import experts as module
from redraft.train.experts import LowRank, product, routed_experts, sort_by_expert
from redraft.train.frozen import Frozen, FrozenLinear

TOKENS, WIDTH, INNER, EXPERTS, TOP = 40, 64, 64, 5, 2


class Case:
    """Random inputs; the last expert is never chosen, and the first one by most tokens."""

    def __init__(self, dtype: torch.dtype = torch.float32, top: int = TOP) -> None:
        torch.manual_seed(0)
        self.x = torch.randn(TOKENS, WIDTH).to(dtype).requires_grad_()
        first = (torch.rand(TOKENS) < 0.3).long()
        self.index = torch.stack((first, 2 + torch.randint(2, (TOKENS,)), 1 - first)[:top], 1)
        self.weight = torch.rand(TOKENS, top).requires_grad_()
        self.gate_up = torch.randn(EXPERTS, 2 * INNER, WIDTH).mul(0.2).to(dtype)
        self.down = torch.randn(EXPERTS, WIDTH, INNER).mul(0.2).to(dtype)
        self.slope = torch.randn(TOKENS, WIDTH).to(dtype)

    def gradients(self, out: Tensor, *more: Tensor) -> list[Tensor]:
        return [out, *torch.autograd.grad(out, (self.x, self.weight, *more), self.slope)]

    def same(self, found: Tensor, expected: Tensor, *pairs: tuple[Tensor, Tensor], tolerance: float = 1e-5) -> None:
        ours = self.gradients(found, *(one for one, _ in pairs))
        theirs = self.gradients(expected, *(other for _, other in pairs))
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("top", [module.FUSED, module.FUSED + 1])
def test_trained_weights_get_the_gradients_of_the_definition(top: int) -> None:
    case = Case(top=top)
    ours, theirs = ([w.clone().requires_grad_() for w in (case.gate_up, case.down)] for _ in range(2))
    found = routed_experts(case.x, case.index, case.weight, *ours)
    case.same(found, eager.experts(case.x, case.index, case.weight, *theirs), *zip(ours, theirs, strict=True))


@pytest.mark.parametrize("top", [module.FUSED, module.FUSED + 1])
def test_frozen_weights_leave_the_other_gradients_as_they_are(top: int) -> None:
    case = Case(top=top)
    weights = (case.x, case.index, case.weight, case.gate_up, case.down)
    case.same(routed_experts(*weights), eager.experts(*weights))


def test_frozen_weights_keep_the_inputs_of_the_gates_alone() -> None:
    case, kept = Case(), []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t)
    with hooks:
        routed_experts(case.x, case.index, case.weight, case.gate_up, case.down)
    rows = TOKENS * TOP
    numbers = sum(t.numel() for t in kept if t.is_floating_point() and t.shape[0] == rows)
    assert numbers == rows * 2 * INNER
    assert not any(t.shape[-1] == WIDTH and t.shape[0] in (rows, TOKENS) for t in kept)


def test_changes_beside_frozen_weights_are_those_of_the_sum() -> None:
    case, rank = Case(), 3
    shapes = ((rank, WIDTH), (2 * INNER, rank), (rank, INNER), (WIDTH, rank))
    factors = [torch.randn(EXPERTS, *shape).mul(0.3).requires_grad_() for shape in shapes]
    others = [factor.detach().clone().requires_grad_() for factor in factors]
    found = routed_experts(case.x, case.index, case.weight, case.gate_up, case.down, LowRank(*factors, 0.5))
    a, b, c, d = others
    merged = case.gate_up + b @ a * 0.5, case.down + d @ c * 0.5
    expected = eager.experts(case.x, case.index, case.weight, *merged)
    case.same(found, expected, *zip(factors, others, strict=True), tolerance=3e-5)


@pytest.mark.parametrize("quantize", [quantize_fp8, quantize_int4])
@pytest.mark.parametrize("adapted", [False, True])
def test_quantized_weights_compute_as_in_full(quantize, adapted: bool) -> None:
    case = Case()
    frozen = [Frozen(quantize(weight)) for weight in (case.gate_up, case.down)]
    full = [weight.dense(torch.float32) for weight in frozen]
    change = None
    if adapted:
        shapes = ((3, WIDTH), (2 * INNER, 3), (3, INNER), (WIDTH, 3))
        change = LowRank(*(torch.randn(EXPERTS, *shape).mul(0.3).requires_grad_() for shape in shapes), scale=1.0)
    pairs = [(factor, factor) for factor in (change or ()) if isinstance(factor, Tensor)]
    given = (case.x, case.index, case.weight)
    case.same(routed_experts(*given, *frozen, change), routed_experts(*given, *full, change), *pairs, tolerance=1e-6)


@pytest.mark.parametrize("quantize", [quantize_fp8, quantize_int4])
def test_a_quantized_linear_keeps_nothing_in_full(quantize) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(96, 64), torch.randn(2, 7, 64, requires_grad=True)
    layer, kept = FrozenLinear(Frozen(quantize(weight))), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out = layer(x)
    assert kept == []
    full = layer.weight.dense(torch.float32)
    expected = x @ full.t()
    slope = torch.randn_like(out)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(*(torch.autograd.grad(y, x, slope)[0] for y in (out, expected)))
    before = full.clone()
    layer.to(torch.bfloat16)  # leaves what is quantized as it is
    assert torch.equal(layer.weight.dense(torch.float32), before)
    assert sum(b.nbytes for b in layer.buffers()) < weight.nbytes / 3


def test_grouped_products_equal_those_of_one_expert_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bf16, where a GPU takes grouped products; they run on a CPU, too."""

    def grouped(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
        return torch._grouped_mm(rows, weights, offs=ends)  # type: ignore[attr-defined]

    case = Case(torch.bfloat16)
    ours = [w.clone().requires_grad_() for w in (case.gate_up, case.down)]
    for weights in ((case.gate_up, case.down), ours):
        given = (case.x, case.index, case.weight, *weights)
        trained = [w for w in weights if w.requires_grad]
        looped = case.gradients(routed_experts(*given), *trained)
        with monkeypatch.context() as patch:
            patch.setattr(module, "_grouped", grouped)
            together = case.gradients(routed_experts(*given), *trained)
        for a, b in zip(looped, together, strict=True):
            assert (a - b).float().norm() <= 0.01 * b.float().norm()


def test_rows_are_sorted_by_expert_and_found_again() -> None:
    index = torch.tensor([[2, 0], [0, 3], [2, 3]])
    order, token, inverse, ends = sort_by_expert(index, 4)
    assert order.tolist() == [1, 2, 0, 4, 3, 5]
    assert token.tolist() == [0, 1, 0, 2, 1, 2]
    assert ends.tolist() == [2, 2, 4, 6]
    assert torch.equal(index.flatten()[order][inverse], index)
    rows = torch.eye(6)[order]
    out = product(rows, torch.ones(4, 1, 6) * torch.arange(4.0)[:, None, None], ends)
    assert torch.equal(out[inverse][..., 0], index.float())


def test_more_experts_than_a_byte_counts_are_sorted_too() -> None:
    index = torch.tensor([[299, 0], [256, 43]])
    assert index.flatten()[sort_by_expert(index, 300).order].tolist() == [0, 43, 256, 299]

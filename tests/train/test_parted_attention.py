"""Attention by parts against its definition under one mask over all keys: results, gradients, and what is kept."""

import pytest
import torch
from torch import Tensor

from redraft.kernels import eager
from redraft.train import parted_attention as module
from redraft.train.parted_attention import parted_attention

ROWS, HEADS, GROUPS, DIM, CLEAN, CANVASES, LENGTH = 3, 6, 2, 8, 20, 4, 5
QUERIES = CANVASES * LENGTH


class Case:
    """Random tensors; in row 0 the first canvas sees no clean token at all."""

    def __init__(self, dtype: torch.dtype = torch.float32, *, own: bool = True) -> None:
        torch.manual_seed(0)

        def leaf(heads: int, count: int) -> Tensor:
            return torch.randn(ROWS, heads, count, DIM).to(dtype).requires_grad_()

        count = QUERIES if own else CLEAN
        self.q, self.clean = leaf(HEADS, count), (leaf(GROUPS, CLEAN), leaf(GROUPS, CLEAN))
        self.own = (leaf(GROUPS, count), leaf(GROUPS, count)) if own else None
        self.canvas = LENGTH if own else CLEAN
        self.seen = torch.rand(ROWS, count, CLEAN) < 0.5
        if own:
            self.seen[0, :LENGTH] = False
        else:
            self.seen |= torch.eye(CLEAN, dtype=torch.bool)
        self.slope = torch.randn(ROWS, count, HEADS * DIM).to(dtype)

    def leaves(self) -> tuple[Tensor, ...]:
        return (self.q, *self.clean, *(self.own or ()))

    def with_gradients(self, out: Tensor) -> list[Tensor]:
        return [out, *torch.autograd.grad(out, self.leaves(), self.slope)]

    def ours(self, *, compiled: bool = False) -> Tensor:
        return parted_attention(self.q, self.clean, self.own, self.seen, self.canvas, compiled=compiled)

    def defined(self, dtype: torch.dtype | None = None) -> Tensor:
        """One mask over clean and canvas keys."""
        keys, values, mask = *self.clean, self.seen
        if self.own is not None:
            keys, values = (torch.cat(pair, 2) for pair in zip(self.clean, self.own, strict=True))
            number = torch.arange(QUERIES) // LENGTH
            mask = torch.cat((self.seen, (number[:, None] == number).expand(ROWS, -1, -1)), 2)
        tensors = (x if dtype is None else x.to(dtype) for x in (self.q, keys, values))
        return eager.attention(*tensors, mask[:, None])


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("chunk", [1, 1 << 28])
def test_parts_give_what_one_mask_gives(own: bool, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", chunk)
    case = Case(own=own)
    for found, expected in zip(case.with_gradients(case.ours()), case.with_gradients(case.defined()), strict=True):
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("own", [True, False])
def test_in_bf16_parts_err_no_more_than_one_mask(own: bool) -> None:
    case = Case(torch.bfloat16, own=own)
    exact = case.with_gradients(case.defined(torch.float32).to(torch.bfloat16))
    errors = []
    for got in (case.with_gradients(case.ours()), case.with_gradients(case.defined())):
        pairs = [(a.detach().float(), b.detach().float()) for a, b in zip(got, exact, strict=True)]
        errors.append([float((a - b).norm() / b.norm()) for a, b in pairs])
    assert all(ours <= 2 * theirs for ours, theirs in zip(*errors, strict=True)), errors


def test_no_score_is_kept_for_the_way_back() -> None:
    case, kept = Case(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        case.ours()
    floating = sum(t.numel() for t in kept if t.is_floating_point())
    rows = ROWS * HEADS * QUERIES
    assert floating == sum(leaf.numel() for leaf in case.leaves()) + rows * DIM + rows


@pytest.mark.filterwarnings("ignore")  # the tracer warns of its own doings
def test_compiled_parts_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "redraft.train.compiling._compiled", lambda f: torch.compile(f, backend="aot_eager", dynamic=False)
    )
    case = Case()
    for a, b in zip(case.with_gradients(case.ours()), case.with_gradients(case.ours(compiled=True)), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)

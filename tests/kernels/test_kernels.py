"""Every backend of every operation against its eager twin, on the CPU.

fp32 must agree to rounding. In bf16 the rule is: the error against an fp64 evaluation is at most twice eager's.
"""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from comparing import BACKENDS, DTYPES, NATIVE, assert_as_exact_as_eager, normal
from torch import Tensor

from redraft import kernels
from redraft.errors import SettingError
from redraft.kernels import TABLE, cpu, eager, native

NORM_BACKENDS = [*BACKENDS, "cuda"]  # PyTorch runs the CUDA versions on a CPU too


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("backend", NORM_BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 7, 64), (2, 5, 3, 16), (130, 384)])
@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm(backend: str, dtype: torch.dtype, shape: tuple[int, ...], weighted: bool) -> None:
    weight = 1 + normal(shape[-1], seed=1) if weighted else None
    assert_as_exact_as_eager("rms_norm", backend, dtype, 3 * normal(*shape), weight, 1e-6)


@pytest.mark.parametrize("backend", NORM_BACKENDS)
def test_rms_norm_of_zeros_and_of_tiny_values(backend: str) -> None:
    assert torch.equal(TABLE["rms_norm"][backend](torch.zeros(2, 8), None, 1e-6), torch.zeros(2, 8))
    assert_as_exact_as_eager("rms_norm", backend, torch.float32, 1e-4 * normal(3, 64), None, 1e-6)


@pytest.mark.parametrize("backend", NORM_BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_several_norms_of_the_same_rows_equal_each_alone(backend: str, dtype: torch.dtype) -> None:
    x = 3 * normal(2, 9, 64).to(dtype)
    before, weights = x.clone(), (None, (1 + normal(64, seed=1)).to(dtype), normal(64, seed=2).to(dtype))
    for ours, weight in zip(TABLE["rms_norms"][backend](x, weights, 1e-6), weights, strict=True):
        assert torch.equal(ours, TABLE["rms_norm"][backend](x, weight, 1e-6))
    assert torch.equal(x, before)


@pytest.mark.parametrize("backend", NORM_BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_add_norm(backend: str, dtype: torch.dtype) -> None:
    x, y, weight = normal(2, 9, 64), 3 * normal(2, 9, 64, seed=1), 1 + normal(64, seed=2)
    assert_as_exact_as_eager("add_norm", backend, dtype, x, y, weight, 1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_gate_of_strided_halves_and_extremes(backend: str, dtype: torch.dtype) -> None:
    both = 4 * normal(33, 128)
    both[0, :8] = torch.tensor([0.0, -0.0, 60.0, -60.0, 1e-6, -1e-6, 5.0, -5.0])
    assert_as_exact_as_eager("gelu_gate", backend, dtype, *both.chunk(2, -1))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [99, 250, 1024])
def test_head(backend: str, dtype: torch.dtype, vocab: int) -> None:
    hidden, weight = normal(2, 17, 64), normal(vocab, 64, seed=1)
    assert_as_exact_as_eager("head", backend, dtype, hidden, weight, 30.0, 1.0)
    assert_as_exact_as_eager("head", backend, dtype, hidden, weight, 5.0, 0.4)  # most logits near the cap
    assert_as_exact_as_eager("head", backend, dtype, hidden[0, 0], weight, 30.0, 0.8)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [99, 250, 1024])
def test_expectation(backend: str, dtype: torch.dtype, vocab: int) -> None:
    probabilities = (3 * normal(2, 17, vocab)).softmax(-1)
    assert_as_exact_as_eager("expectation", backend, dtype, probabilities, normal(vocab, 64, seed=1))


SHARPNESS = {"all settled": 60.0, "none settled": 3.0, "some settled": 14.0}


@pytest.mark.parametrize("backend", BACKENDS)
def test_expectation_of_settled_rows_in_bf16(backend: str) -> None:
    """What settled rows leave out is less than what rounding them does."""
    probabilities = (normal(48, 4096) * SHARPNESS["some settled"]).softmax(-1)
    settled, _ = cpu._settled_means(probabilities.bfloat16(), normal(4096, 64, seed=1).bfloat16())
    assert 0 < len(settled) < 48
    assert_as_exact_as_eager("expectation", backend, torch.bfloat16, probabilities, normal(4096, 64, seed=1))


@pytest.mark.parametrize("vocab", [99, 4096])
@pytest.mark.parametrize("dtype", DTYPES)
def test_soft_probabilities_are_those_of_rounded_logits(dtype: torch.dtype, vocab: int) -> None:
    logits = 8 * normal(2, 70, vocab).float()
    assert torch.equal(cpu.soft_probabilities(logits, dtype), eager.soft_probabilities(logits, dtype))


@pytest.mark.parametrize("backend", ["cpu", NATIVE])
@pytest.mark.parametrize("vocab", [1, 5, 99, 4096])
def test_distribution(backend: str, vocab: int) -> None:
    """Near certainty, too, with tokens that are impossible, and with all equally likely."""
    logits = 8 * normal(9, vocab)
    logits[1, : vocab // 2], logits[2, vocab - 1], logits[3] = -1e4, 40.0, 0.5
    expected, argmax, entropy = eager.distribution(logits.clone())
    ours = TABLE["distribution"][backend](logits.float())
    torch.testing.assert_close(ours[0].double(), expected, rtol=2e-5, atol=1e-9)
    assert torch.equal(ours[1], argmax)
    torch.testing.assert_close(ours[2].double(), entropy, rtol=1e-5, atol=2e-6)
    assert ours[2].min() >= 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sharpness", SHARPNESS)
def test_expectation_of_settled_rows(backend: str, threads: int, sharpness: str) -> None:
    """Settled rows take a way of their own: it drops next to nothing, and no row's result depends on the others."""
    weight = normal(4096, 64, seed=1)
    probabilities = (normal(48, 4096) * SHARPNESS[sharpness]).softmax(-1).float()
    few = probabilities.topk(32).values.double().sum(-1) > 1 - 0.9 * cpu.DROPPED[torch.float32]
    assert {"all settled": few.all(), "none settled": not few.any(), "some settled": 0 < few.sum() < 48}[sharpness]
    ours = TABLE["expectation"][backend](probabilities, weight.float())
    largest = weight.norm(dim=-1).max()
    assert (ours - probabilities.double() @ weight).norm(dim=-1).max() <= 2 * cpu.DROPPED[torch.float32] * largest
    for rows in ([5], list(range(7, 30)), list(range(47, -1, -1))):
        assert torch.equal(TABLE["expectation"][backend](probabilities[rows], weight.float()), ours[rows])


def masks(count: int, keys: int) -> dict[str, Tensor | None]:
    query = torch.arange(keys - count, keys)[:, None]
    key = torch.arange(keys)[None]
    causal = key <= query
    return {"none": None, "causal": causal[None, None], "sliding": (causal & (key > query - 5))[None, None]}


@pytest.mark.parametrize("backend", [*BACKENDS, "cuda"])  # the last also runs on a CPU
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("mask", ["none", "causal", "sliding"])
def test_attention(backend: str, dtype: torch.dtype, groups: int, mask: str) -> None:
    q, k, v = (normal(2, heads, count, 32, seed=seed) for seed, (heads, count) in
               enumerate([(6, 19), (groups, 40), (groups, 40)]))  # fmt: skip
    assert_as_exact_as_eager("attention", backend, dtype, 0.4 * q, 0.4 * k, v, masks(19, 40)[mask])


@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_of_transposed_views(backend: str) -> None:
    q, k, v = (normal(1, 9, heads, 16, seed=heads).transpose(1, 2) for heads in (4, 2, 2))
    assert_as_exact_as_eager("attention", backend, torch.float32, q, k, v, None)


# --- in C --------------------------------------------------------------------------------------------------------


LARGE = 1 << 20
"""Weights of so many numbers are shared among more rows (linear.c)."""


@pytest.mark.usefixtures("in_c")
@pytest.mark.parametrize(
    ("columns", "depth"), [(1, 1), (7, 33), (16, 384), (100, 65), (513, 30), (LARGE // 64 + 5, 64)]
)
@pytest.mark.parametrize("count", [1, 5, 16, 33, 130, 300])
def test_linear_in_c(threads: int, count: int, columns: int, depth: int) -> None:
    x, weight = normal(count, depth).float(), normal(columns, depth, seed=1).float()
    ours = native.linear(x, weight)
    assert_as_exact_as_eager("linear", "native", torch.float32, x, weight)
    for rows in ([count - 1], list(range(count // 3, count))):
        assert torch.equal(native.linear(x[rows], weight), ours[rows])
    logits = native.head(x, weight, 5.0, 0.4)
    uncapped = float(ours.abs().max()) / 0.4
    assert_as_exact_as_eager("head", "native", torch.float32, x, weight, 5.0, 0.4, size=uncapped)
    for rows in ([count - 1], list(range(count // 3, count))):
        assert torch.equal(native.head(x[rows], weight, 5.0, 0.4), logits[rows])


@pytest.mark.usefixtures("in_c")
def test_linear_in_c_takes_any_shape_and_stride() -> None:
    x, weight = normal(40, 3, 64).float(), normal(50, 64, seed=1).float()
    expected = native.linear(x, weight)
    assert expected.shape == (40, 3, 50)
    assert torch.equal(native.linear(x.mT.contiguous().mT, weight.T.contiguous().T), expected)
    assert torch.equal(native.linear(x[7, 1], weight), expected[7, 1])
    assert native.linear(x[:0], weight).shape == (0, 3, 50)
    assert native.linear(x, weight[:0]).shape == (40, 3, 0)
    assert not native.linear(x[..., :0], weight[:, :0]).any()


@pytest.mark.usefixtures("in_c")
@pytest.mark.parametrize(("heads", "groups"), [(1, 1), (6, 2), (3, 1)])
@pytest.mark.parametrize(("count", "keys", "dim"), [(1, 1, 1), (5, 30, 6), (33, 33, 64), (128, 299, 64), (70, 7, 130)])
def test_attention_in_c(threads: int, heads: int, groups: int, count: int, keys: int, dim: int) -> None:
    q, k, v = normal(2, count, heads, dim).transpose(1, 2), *(normal(2, groups, keys, dim, seed=s) for s in (1, 2))
    assert_as_exact_as_eager("attention", "native", torch.float32, q / dim**0.5, k, v, None)
    q, k, v = (9 * q).float(), k.float(), v.float()  # and with sharp weights
    ours = native.attention(q, k, v, None)
    torch.testing.assert_close(
        ours, eager.attention(q.double(), k.double(), v.double(), None).float(), rtol=1e-3, atol=1e-3
    )
    for rows in ([count - 1], list(range(count // 3, count))):
        assert torch.equal(native.attention(q[1:, :, rows], k[1:], v[1:], None), ours[1:, rows])


@pytest.mark.usefixtures("in_c")
def test_a_row_of_nothing_spoils_no_other() -> None:
    x, weight = normal(40, 64).float(), normal(50, 64, seed=1).float()
    expected = native.linear(x, weight)
    x[3] = torch.nan
    ours = native.linear(x, weight)
    assert ours[3].isnan().all()
    assert torch.equal(ours[4:], expected[4:])


@pytest.mark.parametrize("backend", ["cpu", "native"])
@pytest.mark.parametrize(("width", "columns"), [(64, 50), (512, 384), (768, 384), (2816, 128)])
def test_rows_of_a_bf16_product_do_not_depend_on_others(threads: int, backend: str, width: int, columns: int) -> None:
    """Of a linear layer, the head, and a mean over the vocabulary. Libraries cut long sums by the number of rows."""
    run = {name: kernels.TABLE[name][backend] for name in ("linear", "head", "expectation")}
    rows, weight = normal(300, width).bfloat16(), normal(columns, width, seed=1).bfloat16()
    table, mass = normal(1024, width, seed=2).bfloat16(), normal(300, 1024, seed=3).float().softmax(-1).bfloat16()
    for product, given in (
        (lambda x: run["linear"](x, weight), rows),
        (lambda x: run["head"](x, table, 30.0, 1.0), rows),
        (lambda x: run["expectation"](x, table), mass),
    ):
        whole = product(given)
        for part in (slice(1), slice(17), slice(64), slice(100), slice(128), slice(44, 300), slice(33, 290)):
            assert torch.equal(product(given[part]), whole[part])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="other BLAS libraries round otherwise")
def test_rows_of_the_head_do_not_depend_on_others(threads: int, backend: str) -> None:
    """In fp32, also of fewer than `MIN_ROWS`."""
    rows, table = normal(100, 512).float(), normal(1024, 512, seed=2).float()
    run = kernels.TABLE["head"][backend]
    whole = run(rows, table, 30.0, 1.0)
    for part in (slice(1), slice(2), slice(3, 10), slice(15), slice(5, 22)):
        assert torch.equal(run(rows[part], table, 30.0, 1.0), whole[part])


def test_prompts_in_chunks_attend_in_bf16_as_they_do_whole(threads: int) -> None:
    """With a window and without: rows of 256 at a time, over the keys that they see."""
    q, k, v = (normal(1, heads, 700, 64, seed=heads).bfloat16() for heads in (4, 2, 1))
    k, v = k, v.expand(1, 2, 700, 64)
    at = torch.arange(700)
    for window in (1000, 300):
        seen = (at[None] <= at[:, None]) & (at[None] > at[:, None] - window)
        whole = cpu.attention(q, k, v, seen[None, None])
        for first, stop in ((0, 256), (256, 700), (0, 512), (512, 700)):
            low = max(0, first - window + 1)
            part = cpu.attention(q[:, :, first:stop], k[:, :, low:stop], v[:, :, low:stop],
                                 seen[None, None, first:stop, low:stop])  # fmt: skip
            assert torch.equal(part, whole[:, first:stop])


def test_linear_in_bf16_and_with_gradients_is_pytorchs() -> None:
    x, weight = normal(20, 64).bfloat16(), normal(50, 64, seed=1).bfloat16()
    assert torch.equal(kernels.linear(x, weight), eager.linear(x, weight))
    with torch.enable_grad():
        leaf = weight.float().requires_grad_()
        kernels.linear(x.float(), leaf).sum().backward()
    assert leaf.grad is not None


@pytest.mark.usefixtures("in_c")
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_in_c_are_rows_alone(threads: int, dtype: torch.dtype) -> None:
    x, y, weight = (normal(300, 384, seed=seed).to(dtype) for seed in (0, 1, 2))
    logits = 9 * normal(300, 1000).float()
    for run in (
        lambda rows: native.add_norm(x[rows], y[rows], weight[0], 1e-6),
        lambda rows: native.gelu_gate(x[rows], y[rows]),
        lambda rows: native.distribution(logits[rows])[0],
        lambda rows: native.distribution(logits[rows])[2],
        lambda rows: native.soft_probabilities(logits[rows], torch.bfloat16),
    ):
        assert torch.equal(run(slice(None))[7:20], run(slice(7, 20)))


@pytest.mark.usefixtures("in_c")
def test_strided_inputs_in_c() -> None:
    x, y, weight = (normal(20, 128, seed=seed).float() for seed in (0, 1, 2))
    half = slice(0, 64)
    for run in (
        lambda x, y, w: native.add_norm(x, y, w, 1e-6),
        lambda x, y, w: native.rms_norms(x, [w, None], 1e-6)[0],
        lambda x, y, w: native.gelu_gate(x, y),
        lambda x, y, w: native.distribution(x)[0],
        lambda x, y, w: native.soft_probabilities(x, torch.bfloat16),
    ):
        apart = x[:, half], y[:, half], weight.T[half, 0]
        assert torch.equal(run(*apart), run(*(part.contiguous() for part in apart)))
    q, k = (normal(1, 2, 16, 9, seed=seed).float().transpose(2, 3) for seed in (3, 4))
    assert torch.equal(native.attention(q, k, k, None), native.attention(*[x.contiguous() for x in (q, k, k)], None))
    probabilities, embedding = (60 * normal(20, 4096)).softmax(-1).float(), normal(64, 2048).float().T
    expected = native.expectation(probabilities[:, :2048].contiguous(), embedding.contiguous())
    assert torch.equal(native.expectation(probabilities[:, :2048], embedding), expected)


@pytest.mark.usefixtures("in_c")
def test_soft_probabilities_in_c_differ_by_rounding_alone() -> None:
    logits = 8 * normal(2, 70, 4096).float()
    ours = native.soft_probabilities(logits, torch.bfloat16)
    expected = eager.soft_probabilities(logits, torch.bfloat16)
    torch.testing.assert_close(ours, expected, rtol=2**-7, atol=1e-30)
    assert (ours != expected).float().mean() < 0.001


@pytest.fixture
def multiplied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each dense product over the vocabulary takes."""
    counts, product = [], cpu.dense_expectation

    def counted(rows: Tensor, weight: Tensor) -> Tensor:
        counts.append(len(rows))
        return product(rows, weight)

    monkeypatch.setattr(cpu, "dense_expectation", counted)
    return counts


def sharing(groups: list[tuple[int, float]], vocab: int) -> Tensor:
    """A row of probabilities [V]: groups of so many tokens, anywhere, that share a mass."""
    places = torch.randperm(vocab, generator=torch.Generator().manual_seed(0))
    counts, masses = zip(*groups, strict=True)
    each = torch.cat([torch.full((count,), mass / count) for count, mass in zip(counts, masses, strict=True)])
    return torch.zeros(vocab).index_copy_(0, places[: sum(counts)], each)


FEW = {
    torch.bfloat16: [
        [(1, 1.0)],
        [(512, 1.0)],
        [(400, 1 - 2.0**-10), (3000, 2.0**-10)],  # the others are unlikely
        [(400, 1 - 2.0**-9.2), (700, 2.0**-9.2)],  # the others are likelier, but do not hold much
    ],
    torch.float32: [[(1, 1.0)], [(128, 1.0)], [(100, 1 - 2.0**-21), (3000, 2.0**-21)]],
}
"""Rows that gather, by dtype."""
MANY = {
    torch.bfloat16: [[(513, 1.0)], [(400, 1 - 2.0**-8), (3000, 2.0**-8)], [(400, 1 - 2.0**-8.5), (700, 2.0**-8.5)]],
    torch.float32: [[(129, 1.0)], [(100, 1 - 2.0**-19), (3000, 2.0**-19)], [(100, 1 - 2.0**-21), (100, 2.0**-21)]],
}
"""Rows that do not."""


@pytest.mark.usefixtures("in_c")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 64, 700])
def test_rows_that_few_tokens_explain_gather_in_c(
    threads: int, dtype: torch.dtype, width: int, multiplied: list[int]
) -> None:
    """Row by row. The others get what the dense product makes of them."""
    weight, few = normal(4005, width, seed=1).to(dtype), len(FEW[dtype])
    rows = torch.stack([sharing(groups, 4005) for groups in FEW[dtype] + MANY[dtype]]).to(dtype)
    ours = native.expectation(rows, weight)
    assert multiplied == [len(rows) - few]
    assert torch.equal(ours[few:], cpu.dense_expectation(rows, weight)[few:])
    exact = rows.double() @ weight.double()
    left_out = cpu.DROPPED[dtype] * weight.double().norm(dim=-1).max()
    assert ((ours.double() - exact).norm(dim=-1) <= left_out + torch.finfo(dtype).eps * exact.norm(dim=-1)).all()
    for some in ([2], [few, 0, 1], list(range(few, -1, -1))):
        assert torch.equal(native.expectation(rows[some], weight), ours[some])


# --- the table ---------------------------------------------------------------------------------------------------


def single(*shape: int, seed: int = 0) -> Tensor:
    return normal(*shape, seed=seed).float()


EXAMPLES: dict[str, tuple[Any, ...]] = {
    "rms_norm": (single(5, 64), single(64, seed=1), 1e-6),
    "rms_norms": (single(5, 64), (None, single(64, seed=1)), 1e-6),
    "add_norm": (single(5, 64), single(5, 64, seed=1), single(64, seed=2), 1e-6),
    "gelu_gate": (single(5, 64), single(5, 64, seed=1)),
    "linear": (single(5, 64), single(32, 64, seed=1)),
    "head": (single(5, 64), single(99, 64, seed=1), 30.0, 0.7),
    "distribution": (3 * single(5, 99),),
    "soft_probabilities": (3 * single(5, 99), torch.float32),
    "expectation": (single(5, 99).softmax(-1), single(99, 64, seed=1)),
    "attention": (single(1, 4, 16, 32), single(1, 2, 16, 32, seed=1), single(1, 2, 16, 32, seed=2), None),
    "experts": (single(5, 64), torch.tensor([[0, 1]] * 5), single(5, 2).abs(), single(4, 64, 64), single(4, 64, 32)),
}
"""Arguments of each operation."""
ENTRIES = [(operation, backend) for operation, backends in TABLE.items() for backend in backends if backend != "eager"]


@pytest.mark.parametrize(("operation", "backend"), ENTRIES)
def test_every_entry_computes_what_eager_does(operation: str, backend: str) -> None:
    if backend == "native" and not native.available():
        pytest.skip("needs a C compiler")
    ours, theirs = (TABLE[operation][name](*copy.deepcopy(EXAMPLES[operation])) for name in (backend, "eager"))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_force_takes_the_named_backend_and_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(native, "available", lambda: False)
    monkeypatch.setitem(TABLE["gelu_gate"], "cpu", lambda *_: calls.append("cpu"))
    monkeypatch.setitem(TABLE["gelu_gate"], "eager", lambda *_: calls.append("eager"))
    x = torch.zeros(1, 4)
    kernels.gelu_gate(x, x)
    with kernels.force("eager"):
        kernels.gelu_gate(x, x)
    with kernels.force("cuda"):  # has no version of its own
        kernels.gelu_gate(x, x)
    kernels.gelu_gate(x, x)
    assert calls == ["cpu", "eager", "eager", "cpu"]


def test_force_refuses_an_unknown_backend() -> None:
    with pytest.raises(SettingError, match="'tpu'; it must be one of eager, cpu, cuda"), kernels.force("tpu"):
        pass


def test_with_gradients_the_differentiable_version_runs() -> None:
    with torch.enable_grad():
        x = normal(5, 64).float().requires_grad_()
        gate_up, down = (normal(4, *shape, seed=1).float().requires_grad_() for shape in ((32, 64), (64, 16)))
        index = torch.tensor([[0, 1]]).expand(5, 2)
        y = kernels.experts(kernels.rms_norm(x, None, 1e-6), index, torch.ones(5, 2), gate_up, down)
        kernels.head(kernels.gelu_gate(y, y), normal(32, 64).float(), 30.0, 0.7).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()

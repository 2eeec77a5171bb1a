"""The chunked cross-entropy and the training experts against plain autograd."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from redraft.model import Transformer
from redraft.train.experts import balance_loss, choose
from redraft.train.losses import linear_cross_entropy, soft_embeddings


def test_what_is_added_to_shown_tokens_counts_in_losses_and_gradients() -> None:
    torch.manual_seed(0)
    hidden = (3 * torch.randn(13, 8, dtype=torch.float64)).requires_grad_()
    embedding = (4 * torch.randn(20, 8, dtype=torch.float64)).requires_grad_()
    target, weight = torch.randint(20, (13,)), torch.rand(13, dtype=torch.float64)
    shown, raised = torch.randint(20, (13,)), 3 * torch.rand(13, dtype=torch.float64)
    total, losses, _ = linear_cross_entropy(hidden, embedding, target, weight, 30.0, seen=(shown, raised), chunk=4)
    logits = torch.tanh(hidden @ embedding.t() / 30.0) * 30.0 + F.one_hot(shown, 20) * raised[:, None]
    expected = F.cross_entropy(logits, target, reduction="none")
    torch.testing.assert_close(losses, expected.detach())
    got = torch.autograd.grad(total, (hidden, embedding))
    torch.testing.assert_close(got, torch.autograd.grad((expected * weight).sum(), (hidden, embedding)))


def test_a_frozen_embedding_gets_no_gradient() -> None:
    torch.manual_seed(0)
    soft, _, _ = soft_embeddings(torch.randn(6, 8), torch.randn(20, 8), torch.ones(6), 30.0)
    assert not soft.requires_grad
    hidden, embedding = torch.randn(6, 8, requires_grad=True), torch.randn(20, 8)
    total, _, _ = linear_cross_entropy(hidden, embedding, torch.randint(20, (6,)), torch.ones(6), 30.0)
    total.backward()
    assert hidden.grad is not None
    assert embedding.grad is None


@pytest.mark.parametrize("chunk", [4, 13, 64])
def test_chunked_cross_entropy_equals_autograd_in_double_precision(chunk: int) -> None:
    torch.manual_seed(0)
    hidden = (3 * torch.randn(13, 8, dtype=torch.float64)).requires_grad_()
    embedding = (4 * torch.randn(20, 8, dtype=torch.float64)).requires_grad_()
    target, weight = torch.randint(20, (13,)), torch.rand(13, dtype=torch.float64)
    logits = 30.0 * torch.tanh(hidden @ embedding.t() / 30.0)
    expected = F.cross_entropy(logits, target, reduction="none")
    wanted = torch.autograd.grad(2.5 * (expected * weight).sum(), (hidden, embedding))
    total, losses, hits = linear_cross_entropy(hidden, embedding, target, weight, 30.0, chunk=chunk)
    got = torch.autograd.grad(2.5 * total, (hidden, embedding))
    torch.testing.assert_close(total, (expected * weight).sum())
    torch.testing.assert_close(losses, expected.detach())
    assert torch.equal(hits, logits.argmax(-1) == target)
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("chunk", [5, 100])
def test_chunked_soft_embeddings_equal_the_models(model: Transformer, chunk: int) -> None:
    torch.manual_seed(0)
    hidden, temperature = torch.randn(2, 9, model.config.hidden_size), torch.rand(2, 9) * 0.6 + 0.4
    expected = model.soft_embeddings(model.logits(hidden) / temperature[..., None])
    got, argmax, entropy = soft_embeddings(
        hidden.flatten(0, 1), model.embedding.weight, temperature.flatten(), 30.0, chunk=chunk
    )
    torch.testing.assert_close(got.view_as(hidden) * model.embedding_scale, expected, atol=1e-6, rtol=1e-5)
    tempered = model.logits(hidden).flatten(0, 1) / temperature.flatten()[:, None]
    assert torch.equal(argmax, tempered.argmax(-1))
    torch.testing.assert_close(entropy, torch.distributions.Categorical(logits=tempered).entropy())


@pytest.mark.parametrize("chunk", [5, 100])
def test_a_gradient_reaches_the_embeddings_that_are_averaged_and_no_others(model: Transformer, chunk: int) -> None:
    torch.manual_seed(0)
    table, width = model.embedding.weight, model.config.hidden_size
    hidden, temperature = torch.randn(18, width, requires_grad=True), torch.rand(18) * 0.6 + 0.4
    probabilities = (model.logits(hidden) / temperature[:, None]).softmax(-1).detach()
    slope = torch.randn(18, width)
    wanted = torch.autograd.grad(((probabilities @ table) * slope).sum(), table)
    kept: list[torch.Size] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.shape) or x, lambda x: x):
        soft, _, _ = soft_embeddings(hidden, table, temperature, 30.0, chunk=chunk)
    assert all(shape[-1] != len(table) for shape in kept), "probabilities stay in memory until the backward pass"
    got, none = torch.autograd.grad((soft * slope).sum(), (table, hidden), allow_unused=True)
    assert none is None
    torch.testing.assert_close((got,), wanted)


def test_logits_of_more_than_a_chunk_never_exist_at_once() -> None:
    class Watched(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.shape[-1:] == (50,):
                self.most = max(self.most, out.numel() // 50)
            return out

    hidden, embedding = torch.randn(13, 3, requires_grad=True), torch.randn(50, 3, requires_grad=True)
    with Watched() as watched:
        soft, _, _ = soft_embeddings(hidden, embedding, torch.ones(13), 30.0, chunk=4)
        total, _, _ = linear_cross_entropy(hidden, embedding, torch.arange(13), torch.ones(13), 30.0, chunk=4)
        (soft.sum() + total).backward()
    assert watched.most == 4


def test_training_choice_equals_the_routers(model: Transformer) -> None:
    router = model.layers[0].router
    with torch.no_grad():
        router.per_expert_scale.uniform_(0.5, 1.5)
    probabilities = torch.randn(50, 4).softmax(-1).requires_grad_()
    index, weight, chosen = choose(router, probabilities)
    expected_index, expected_weight = router.choose(probabilities)
    assert torch.equal(index, expected_index)
    assert torch.equal(chosen, F.one_hot(index, 4).sum(1).bool())
    torch.testing.assert_close(weight, expected_weight)
    slope = torch.randn(50, 2)
    got, wanted = (torch.autograd.grad((w * slope).sum(), probabilities)[0] for w in (weight, expected_weight))
    torch.testing.assert_close(got, wanted)


def test_balance_loss_is_one_when_even_and_counts_all_experts_when_collapsed() -> None:
    even = torch.full((8, 4), 0.25)
    spread = F.one_hot(torch.arange(8) % 4, 4).bool()
    every = torch.ones(8, dtype=torch.bool)
    torch.testing.assert_close(balance_loss(even, spread, every), torch.tensor(1.0))
    collapsed = F.one_hot(torch.zeros(8, dtype=torch.int64), 4)
    torch.testing.assert_close(balance_loss(collapsed.float(), collapsed.bool(), every), torch.tensor(4.0))


def test_tokens_that_only_fill_up_do_not_count_for_the_balance() -> None:
    probabilities = torch.tensor([[0.7, 0.3], [0.4, 0.6], [0.9, 0.1]])
    chosen = torch.tensor([[True, False], [False, True], [True, False]])
    used = torch.tensor([True, True, False])
    torch.testing.assert_close(balance_loss(probabilities, chosen, used), torch.tensor(1.0))
    assert float(balance_loss(probabilities, chosen, used & False)) == 0.0

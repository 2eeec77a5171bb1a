"""What is compiled of a layer is one graph: each operation that parts it would be launched by itself, and not fused."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from redraft.model import Transformer
from redraft.model.transformer import Layer
from redraft.train.layer_pass import finish, project


class _OneGraph(nn.Module):
    """Experts whose rows do not depend on the choice, which on a CPU is made in Python."""

    def forward(self, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        return x * weight.sum(-1, keepdim=True)


def test_the_parts_of_a_layer_are_one_graph_each(model: Transformer) -> None:
    layer, x = model.layers[0], torch.randn(1, 8, model.config.hidden_size)
    assert isinstance(layer, Layer)
    cos, sin = model.rope(torch.arange(8)[None])[layer.kind]
    q, _, _ = whole(project)(layer, x, cos, sin)
    layer.add_module("experts", _OneGraph())
    attended, used = q.detach().transpose(1, 2).flatten(2), torch.ones(1, 8, dtype=torch.bool)
    compiled, _ = whole(finish)(layer, x, attended, layer.encode_scalar, used)
    assert torch.equal(compiled, finish(layer, x, attended, layer.encode_scalar, used)[0])


def whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as one graph, run operation by operation."""
    return torch.compile(function, backend="eager", fullgraph=True, dynamic=False)

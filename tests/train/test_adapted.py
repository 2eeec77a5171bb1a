"""The product with an adapted weight, against plain products: values, gradients, compiled as well."""

import pytest
import torch
from torch import Tensor

from redraft.train.adapted import adapted_product

SCALE = 1.7


def inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (5, 12), (8, 12), (3, 12), (8, 3)
    rows, weight, a, b = (torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes)
    return rows.requires_grad_(), weight, a.requires_grad_(), b.requires_grad_()


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # PyTorch's own check reads it, from 2.15 on
def test_the_operator_is_a_proper_one() -> None:
    torch.library.opcheck(torch.ops.redraft.adapted_product.default, (*inputs(torch.float32), SCALE))


@pytest.mark.parametrize("compiled", [False, True])
def test_values_and_gradients_are_those_of_plain_products(compiled: bool) -> None:
    product = torch.compile(adapted_product, dynamic=False, backend="aot_eager") if compiled else adapted_product
    rows, weight, a, b = inputs(torch.float64)
    expected = rows @ (weight + SCALE * b @ a).t()
    found = product(rows, weight, a, b, SCALE)
    torch.testing.assert_close(found, expected)
    aim = torch.arange(expected.numel(), dtype=torch.float64).view_as(expected).sin()
    wanted = torch.autograd.grad((expected * aim).sum(), (rows, a, b))
    for gradient, other in zip(torch.autograd.grad((found * aim).sum(), (rows, a, b)), wanted, strict=True):
        torch.testing.assert_close(gradient, other)


def test_gradients_exist_where_the_rows_need_none() -> None:
    rows, weight, a, b = inputs(torch.float32)
    adapted_product(rows.detach(), weight, a, b, SCALE).sum().backward()
    assert a.grad is not None
    assert b.grad is not None

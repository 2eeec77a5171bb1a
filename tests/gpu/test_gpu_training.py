"""Training on a CUDA device: a pass as one graph is the pass kernel by kernel, bit for bit."""

import dataclasses

import pytest
import torch
from torch import Tensor

from redraft.config import FULL, SLIDING, ModelConfig
from redraft.model import Transformer
from redraft.model.initialise import initialise
from redraft.train import recipe as tables
from redraft.train.batch import Batch, in_one_step
from redraft.train.bench import random_batch
from redraft.train.distributed import World
from redraft.train.lora import adapt
from redraft.train.optimizer import Masters
from redraft.train.passes import CapturedPass, EagerPass, pass_for
from redraft.train.recipe import LoraSettings, Recipe
from redraft.train.two_stream import TwoStream

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),  # the compiler looks at much that warns
]
CONFIG = ModelConfig(
    vocab_size=512, hidden_size=128, intermediate_size=192, moe_intermediate_size=64, num_experts=8, top_k_experts=2,
    num_attention_heads=4, num_key_value_heads=2, num_global_key_value_heads=1, head_dim=64, global_head_dim=128,
    layer_types=(SLIDING, FULL), sliding_window=96, max_position_embeddings=512, canvas_length=128,
)  # fmt: skip
STEPS = 12


def recipe_for(rows: int, lora: LoraSettings | None) -> Recipe:
    """`rows` of 3 have 1 or 2 conditioned ones, which are two graphs."""
    return Recipe(
        model=CONFIG,
        data=tables.DataSettings(rows=rows, tokens=256, canvases=2, sources=(
            tables.SourceSettings(name="random", kind="reverse", share=1.0, rollout=0.5),
        )),
        objective=tables.ObjectiveSettings(encoder_share=0.5, rollout_bound=(0.05, 1.0)),
        optimizer=tables.OptimizerSettings(steps=STEPS, learning_rate=1e-3),
        run=tables.RunSettings(
            out="unused", init="random" if lora else "", dtype="bfloat16", compile=True, recompute=lora is not None
        ),
        lora=lora,
    )  # fmt: skip


def batches_of(recipe: Recipe, device: torch.device) -> list[Batch]:
    """Three of one step, which learn from different numbers of tokens: what a capture reads differs in everything."""
    batches = [random_batch(recipe, seed).to(device) for seed in range(3)]
    for number, batch in enumerate(batches):
        batch.canvas_weight[:, :, : 32 * number] = 0.0
    return in_one_step(batches, World())


def trained(recipe: Recipe, *, capture: bool) -> tuple[list[float], list[Tensor]]:
    """The losses of a run, and the weights that it ends with."""
    device = torch.device("cuda", 0)
    model = Transformer(recipe.model)
    initialise(model, 3)
    model.to(device)
    if recipe.lora is not None:
        adapt(model.to(torch.bfloat16), recipe.lora, 0)
    recipe = dataclasses.replace(recipe, run=dataclasses.replace(recipe.run, compile=True, capture=capture))
    masters = Masters(model, torch.bfloat16, recipe.optimizer)
    stream = TwoStream(model, recipe.objective, compiled=True, recompute=recipe.run.recompute)
    batch_pass = pass_for(stream, recipe)
    assert isinstance(batch_pass, CapturedPass if capture else EagerPass)
    batches, losses = batches_of(recipe, device), []
    for number in range(STEPS):
        masters.refresh()
        outcome = batch_pass.gradients(batches[number % 3], 5, number)
        looked = batch_pass.losses(batches[number % 3], 5, number).loss.clone() if number == STEPS - 1 else outcome.loss
        losses.append(float(looked))
        masters.accumulate()
        masters.step(number)
    return losses, [master.detach() for master in masters.masters]


@pytest.mark.parametrize(("rows", "lora"), [(4, None), (3, None), (3, LoraSettings(rank=4))])
def test_a_captured_pass_is_the_pass(rows: int, lora: LoraSettings | None) -> None:
    recipe = recipe_for(rows, lora)
    eager, captured = (trained(recipe, capture=capture) for capture in (False, True))
    assert captured[0] == eager[0]
    assert len(set(eager[0])) == STEPS
    for one, other in zip(captured[1], eager[1], strict=True):
        assert torch.equal(one, other)


def test_dropout_and_sharded_weights_stay_eager() -> None:
    recipe = recipe_for(4, LoraSettings(rank=4, dropout=0.1))
    model = Transformer(CONFIG).to("cuda:0")
    adapt(model, recipe.lora, 0)  # type: ignore[arg-type]
    assert isinstance(pass_for(TwoStream(model, recipe.objective, compiled=True), recipe), EagerPass)
    plain = TwoStream(Transformer(CONFIG).to("cuda:0"), recipe.objective, compiled=True)
    sharded = dataclasses.replace(recipe, run=dataclasses.replace(recipe.run, shard=True))
    assert isinstance(pass_for(plain, recipe), CapturedPass)
    assert isinstance(pass_for(plain, sharded), EagerPass)

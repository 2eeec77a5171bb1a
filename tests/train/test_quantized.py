"""LoRA over FP8 and INT4 weights: the gradients of the weights in full, less memory, and runs that go on exactly."""

import dataclasses
from pathlib import Path

import pytest
import torch

from redraft.config import ModelConfig
from redraft.errors import CheckpointError, SettingError
from redraft.model import Transformer
from redraft.model.adapters import load_adapter
from redraft.model.checkpoint import Checkpoint
from redraft.model.initialise import initialise
from redraft.model.quantize import quantize_folder
from redraft.model.weights import load_model, save_model
from redraft.train import experts
from redraft.train.batch import Batch
from redraft.train.frozen import Frozen
from redraft.train.lora import adapt
from redraft.train.quantized import load_quantized, quantize_in_place
from redraft.train.recipe import LoraSettings, ObjectiveSettings, Recipe
from redraft.train.trainer import train
from redraft.train.two_stream import TwoStream

ALL = ("attention", "mlp", "self_conditioning", "router", "experts")
CPU = torch.device("cpu")


@pytest.fixture
def config(config: ModelConfig) -> ModelConfig:
    """Wide enough for int4 groups of 64."""
    return dataclasses.replace(config, hidden_size=64, moe_intermediate_size=64)


@pytest.fixture
def folder(config: ModelConfig, tmp_path: Path) -> Path:
    model = Transformer(config)
    initialise(model, 3)
    save_model(model, tmp_path / "base")
    return tmp_path / "base"


def quantized_and_full(folder: Path, format: str) -> tuple[Transformer, Transformer]:
    """A model with quantized weights, and one that holds the same weights in full."""
    model, full = load_quantized(folder, format, device=CPU, dtype=torch.float32), load_model(folder, "cpu", "float32")
    changed = 0
    for name, module in model.named_modules():
        if isinstance(module, Frozen):
            with torch.no_grad():
                full.get_parameter(name).copy_(module.dense(torch.float32))
            changed += 1
    assert changed == 3 * 9 - 2  # q k v o, gate up down, two of the experts; full layers have no v
    return model, full


@pytest.mark.parametrize("format", ["fp8", "int4"])
@pytest.mark.parametrize("targets", [("attention", "layers.1.mlp.up_proj"), ALL])
@pytest.mark.parametrize("recompute", [False, True])
def test_factors_get_the_gradients_of_the_weights_in_full(
    folder: Path, batch: Batch, format: str, targets: tuple[str, ...], recompute: bool
) -> None:
    settings, losses, found = LoraSettings(rank=2, alpha=5.0, targets=targets), [], []
    for model in quantized_and_full(folder, format):
        adapt(model, settings, 0)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("_b"):
                    parameter.normal_(0, 0.05, generator=generator)
        outcome = TwoStream(model, ObjectiveSettings(), compiled=False, recompute=recompute)(batch, 1, 2)
        outcome.loss.backward()
        losses.append(outcome.loss.detach())
        found.append({name: p.grad for name, p in model.named_parameters() if p.requires_grad})
        assert all(p.grad is None for p in model.parameters() if not p.requires_grad)
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-6, atol=0)
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        assert gradient is not None
        torch.testing.assert_close(gradient, found[1][name], rtol=1e-5, atol=1e-7)


def bytes_of(model: Transformer) -> int:
    return sum(t.nbytes for t in (*model.parameters(), *model.buffers()))


@pytest.mark.parametrize(("format", "share"), [("fp8", 0.55), ("int4", 0.36)])
def test_layers_take_a_share_of_the_memory(folder: Path, batch: Batch, format: str, share: float) -> None:
    """Of bf16; and what a forward pass keeps for the way back holds no weight in full."""
    plain = load_model(folder, "cpu", "bfloat16").requires_grad_(False)
    model = load_quantized(folder, format, device=CPU, dtype=torch.bfloat16)
    assert bytes_of(model.layers) < share * bytes_of(plain.layers)  # type: ignore[arg-type]
    kept = []
    for one in (plain, model):
        adapt(one, LoraSettings(rank=2, targets=ALL), 0)
        tensors: dict[int, int] = {}
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda t, found=tensors: found.update({t.data_ptr(): t.untyped_storage().nbytes()}) or t, lambda t: t
        )
        with hooks:
            TwoStream(one.float(), ObjectiveSettings(), compiled=False)(batch, 1, 2)
        weights = {p.data_ptr() for p in (*one.parameters(), *one.buffers())}
        kept.append(sum(size for place, size in tensors.items() if place not in weights))
    assert kept[1] <= kept[0] * 1.01


@pytest.mark.parametrize("format", ["fp8", "int4"])
def test_a_folder_that_is_stored_quantized_is_taken_as_it_is(folder: Path, tmp_path: Path, format: str) -> None:
    quantize_folder(folder, tmp_path / "stored", format)
    stored = load_quantized(tmp_path / "stored", format, device=CPU, dtype=torch.float32)
    made = load_quantized(folder, format, device=CPU, dtype=torch.float32)
    placed = load_model(folder, "cpu", "float32")
    quantize_in_place(placed, format)
    expected = dict(made.named_buffers()) | dict(made.named_parameters())
    for model in (stored, placed):
        found = dict(model.named_buffers()) | dict(model.named_parameters())
        assert found.keys() == expected.keys()
        for name, tensor in found.items():
            assert torch.equal(tensor, expected[name]), name


def lora_recipe(recipe: Recipe, folder: Path, **lora: object) -> Recipe:
    """A run on the toy task with canvases of 16."""
    model = load_model(folder, "cpu", "float32").config
    run = dataclasses.replace(recipe.run, init=str(folder))
    settings = LoraSettings(**{"rank": 4, "targets": ALL, "quantization": "int4", **lora})  # type: ignore[arg-type]
    return dataclasses.replace(recipe, model=dataclasses.replace(model, canvas_length=16), run=run, lora=settings)


def test_a_run_over_int4_weights_learns_and_resumes_exactly(recipe: Recipe, folder: Path, tmp_path: Path) -> None:
    recipe = lora_recipe(recipe, folder, dropout=0.1)
    whole = train(recipe, device="cpu", quiet=True)
    assert sum(whole.losses[-5:]) < sum(whole.losses[:5])
    part = dataclasses.replace(recipe, run=dataclasses.replace(recipe.run, out=str(tmp_path / "part")))
    short = dataclasses.replace(part, run=dataclasses.replace(part.run, max_seconds=1e-3))
    first = train(short, device="cpu", quiet=True)
    other = dataclasses.replace(part, lora=dataclasses.replace(part.lora, quantization="fp8"))  # type: ignore[type-var]
    with pytest.raises(CheckpointError, match=r"with another lora\.quantization\.$"):
        train(other, device="cpu", quiet=True, resume=True)
    rest = train(part, device="cpu", quiet=True, resume=True)
    assert first.losses + rest.losses == whole.losses
    load_adapter(whole.model_folder).check_fits(Checkpoint(folder).shapes, "here")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sharded_run_over_quantized_weights_has_the_same_losses(
    recipe: Recipe, folder: Path, tmp_path: Path, dtype: str
) -> None:
    recipe = lora_recipe(recipe, folder)
    recipe = dataclasses.replace(recipe, optimizer=dataclasses.replace(recipe.optimizer, steps=6))
    losses = []
    for shard in (False, True):
        run = dataclasses.replace(recipe.run, shard=shard, dtype=dtype, out=str(tmp_path / f"run-{shard}"))
        result = train(dataclasses.replace(recipe, run=run), device="cpu", quiet=True)
        assert load_adapter(result.model_folder).factors
        losses.append(result.losses)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5 if dtype == "float32" else 0.02)


def test_formats_that_cannot_be_are_named(folder: Path, config: ModelConfig, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"lora\.quantization is 'int8'; it must be one of fp8, int4, or empty"):
        LoraSettings(rank=2, quantization="int8")
    narrow = Transformer(dataclasses.replace(config, hidden_size=32))
    initialise(narrow, 0)
    save_model(narrow, tmp_path / "narrow")
    with pytest.raises(SettingError, match="group is 64; it must divide the 32 inputs"):
        load_quantized(tmp_path / "narrow", "int4", device=CPU, dtype=torch.float32)


@pytest.mark.filterwarnings("ignore")  # the tracer warns of its own doings
def test_a_gpus_products_compile_as_one_graph(config: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adapted linears, experts and adapted experts in bf16, traced forward and backward without generating code."""
    monkeypatch.setattr(experts, "_grouped", lambda rows, weights, ends: torch._grouped_mm(rows, weights, offs=ends))
    model = Transformer(config)
    initialise(model, 3)
    quantize_in_place(model.bfloat16(), "int4")
    adapt(model, LoraSettings(rank=8, targets=("attention", "layers.1.experts")), 0)
    model.bfloat16()
    x = torch.randn(20, config.hidden_size).bfloat16().requires_grad_()
    index, weight = torch.stack([torch.randperm(4)[:2] for _ in range(20)]), torch.rand(20, 2, requires_grad=True)
    first, second = model.layers[0], model.layers[1]
    for module, given in ((first.attention.q_proj, (x,)), (first.experts, (x, index, weight)),
                          (second.experts, (x, index, weight))):  # fmt: skip
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=False)
        leaves = [t for t in (*given, *module.parameters()) if t.requires_grad]
        plain, traced = module(*given), compiled(*given)
        slope = torch.randn_like(plain)
        for a, b in zip(
            (plain, *torch.autograd.grad(plain, leaves, slope)), (traced, *torch.autograd.grad(traced, leaves, slope)),
            strict=True,
        ):  # fmt: skip
            torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)

"""LoRA: what is trained, what it computes, and the way to a file, to `peft`, and back into the weights."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import redraft
from redraft.cli.main import main
from redraft.config import FULL, SLIDING
from redraft.errors import CheckpointError, SettingError
from redraft.model import Transformer
from redraft.model.adapters import Adapter, load_adapter, merge, save_adapter, with_adapter
from redraft.model.checkpoint import Checkpoint
from redraft.model.initialise import initialise
from redraft.model.names import to_hugging_face
from redraft.model.weights import load_model, save_model
from redraft.quant.fp8 import quantize_fp8
from redraft.train.batch import Batch
from redraft.train.checkpoint import load_checkpoint, save_checkpoint
from redraft.train.distributed import World
from redraft.train.frozen import Frozen, FrozenLinear
from redraft.train.lora import LoraLinear, adapt, collect
from redraft.train.recipe import LoraSettings, ObjectiveSettings, Recipe
from redraft.train.trainer import Trainer, train
from redraft.train.two_stream import TwoStream

ALL = ("attention", "mlp", "self_conditioning", "router", "experts")


def adapted(config, settings: LoraSettings) -> Transformer:
    """A model whose factors are both random, so that every part of the change shows."""
    model = Transformer(config)
    initialise(model, 3)
    adapt(model, settings, 0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_b"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return model


def factors_of(model: Transformer, settings: LoraSettings) -> Adapter:
    return collect(dict(model.named_parameters()), settings)


def plain(config) -> Transformer:
    model = Transformer(config)
    initialise(model, 3)
    return model


def logits(model: Transformer) -> torch.Tensor:
    """Of a prompt, and of a canvas behind it with soft embeddings: both phases."""
    tokens = torch.arange(2, 32).view(2, 15)
    cache = model.new_cache(2, 20)
    with torch.no_grad():
        hidden = model.encode(tokens, cache)
        soft = model.soft_embeddings(model.logits(model.denoise(tokens[:, :8] + 3, cache)))
        return torch.cat((model.logits(hidden), model.logits(model.denoise(tokens[:, :8], cache, soft))), 1)


def test_only_the_named_modules_are_trained(config) -> None:
    model = plain(config)
    before = logits(model)
    names = adapt(model, LoraSettings(rank=2, targets=("attention", "layers.1.mlp.up_proj")), 0)
    assert "layers.1.mlp.up_proj" in names
    assert "layers.0.mlp.up_proj" not in names
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {f"{name}.lora_{part}" for name in names for part in "ab"}
    torch.testing.assert_close(logits(model), before, rtol=0, atol=0)  # nothing changes at first
    with pytest.raises(SettingError, match=r"'layers\.9' matches no module"):
        adapt(plain(config), LoraSettings(rank=2, targets=("layers.9",)), 0)
    for target in ("mlp", "experts"):
        with pytest.raises(SettingError, match=r"lora\.rank is 100000; no targeted weight has a rank above"):
            adapt(plain(config), LoraSettings(rank=100_000, targets=(target,)), 0)
    adapt(plain(config), LoraSettings(rank=20, targets=("attention",)), 0)  # only keys and values have less, 16
    with pytest.raises(SettingError, match=r"lora\.dropout has no effect on experts"):
        adapt(plain(config), LoraSettings(rank=2, dropout=0.1, targets=("experts",)), 0)


def test_a_merged_adapter_gives_the_logits_of_the_applied_one(config, tmp_path: Path) -> None:
    settings = LoraSettings(rank=3, alpha=6.0, targets=ALL)
    model = adapted(config, settings)
    save_adapter(factors_of(model, settings), tmp_path, base_model="base")
    merged = plain(config)
    changed = logits(merged)
    adapter = load_adapter(tmp_path)
    merge(merged, adapter)
    torch.testing.assert_close(logits(merged), logits(model), rtol=1e-5, atol=1e-5)
    assert (logits(merged) - changed).abs().max() > 0.01
    assert {name.split(".")[-2] for name in adapter.factors} >= {"q_proj", "o_proj", "gate_proj", "proj", "experts"}


def test_gradients_of_factors_are_those_of_the_weights(config, batch: Batch) -> None:
    """One adapter in both passes: dA = scale B^T dW and dB = scale dW A^T, with dW of the merged model."""
    settings = LoraSettings(rank=2, alpha=5.0, targets=ALL)
    model, merged = adapted(config, settings), plain(config)
    merge(merged, factors_of(model, settings))
    for m in (model, merged):
        TwoStream(m, ObjectiveSettings(), compiled=False)(batch, 1, 2).loss.backward()
    whole = {name: p.grad for name, p in merged.named_parameters()}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            assert parameter.grad is None
            continue
        stem, part = name.rsplit("_", 1)
        if stem.endswith(".lora"):
            gradient, other = whole[stem.replace(".lora", ".weight")], "ab".replace(part, "")
        else:
            gradient, other = whole[f"{stem}_proj"], "ab".replace(part, "")
        factor = model.get_parameter(f"{stem}_{other}")
        expected = factor.mT @ gradient if part == "a" else gradient @ factor.mT
        torch.testing.assert_close(parameter.grad, expected * settings.scale, atol=1e-5, rtol=1e-4)


def test_finite_differences_agree_with_the_gradient_of_a_shared_factor(config, batch: Batch) -> None:
    """Both passes read the factor, so its slope is that of the whole two-stream loss."""
    settings = LoraSettings(rank=2, targets=("attention",))
    model = adapted(config, settings)
    stream = TwoStream(model, ObjectiveSettings(self_conditioning=0.0), compiled=False)
    stream(batch, 1, 2).loss.backward()
    for name in ("layers.0.attention.k_proj.lora_a", "layers.1.attention.o_proj.lora_b"):
        parameter = model.get_parameter(name)
        slope = float(parameter.grad.square().sum())  # along the gradient
        step = 2e-3 / slope**0.5
        values = []
        for factor in (step, -step):
            with torch.no_grad():
                parameter.add_(parameter.grad, alpha=factor)
                values.append(float(stream(batch, 1, 2).loss))
                parameter.sub_(parameter.grad, alpha=factor)
        assert slope == pytest.approx((values[0] - values[1]) / (2 * step), rel=0.03), name


def lora_recipe(recipe: Recipe, tmp_path: Path, **lora: object) -> Recipe:
    base = Transformer(recipe.model)
    initialise(base, 9)
    save_model(base, tmp_path / "base")
    run = dataclasses.replace(recipe.run, init=str(tmp_path / "base"))
    settings = LoraSettings(**{"rank": 4, "targets": ALL, **lora})
    return dataclasses.replace(recipe, run=run, lora=settings)


def test_a_run_trains_factors_alone_and_resumes_exactly(recipe: Recipe, tmp_path: Path) -> None:
    recipe = lora_recipe(recipe, tmp_path, dropout=0.1)
    whole = train(recipe, device="cpu", quiet=True)
    assert sum(whole.losses[-5:]) < sum(whole.losses[:5])
    masters = load_checkpoint(whole.folder)["weights"]["masters"]
    assert all(name.endswith(("_a", "_b")) for name in masters)
    part = dataclasses.replace(recipe, run=dataclasses.replace(recipe.run, out=str(tmp_path / "part")))
    short = dataclasses.replace(part, run=dataclasses.replace(part.run, max_seconds=1e-3))
    first = train(short, device="cpu", quiet=True)
    rest = train(part, device="cpu", quiet=True, resume=True)
    assert first.losses + rest.losses == whole.losses
    adapter = load_adapter(whole.model_folder)
    adapter.check_fits(Checkpoint(tmp_path / "base").shapes, "here")
    for name, factors in adapter.factors.items():
        if name.endswith("q_proj.weight"):
            assert torch.equal(factors.a, masters[name.replace(".weight", ".lora_a")])


@pytest.mark.parametrize("quantized", [False, True])
def test_inputs_are_dropped_in_training_alone(quantized: bool) -> None:
    torch.manual_seed(5)
    base, x = torch.nn.Linear(24, 10, bias=False), torch.randn(3, 7, 24)
    if quantized:
        base = FrozenLinear(Frozen(quantize_fp8(base.weight.detach())))
    layer = LoraLinear(base, LoraSettings(rank=2, alpha=6.0, dropout=0.5), torch.Generator().manual_seed(1))
    torch.nn.init.normal_(layer.lora_b)
    factors = layer.lora_a.t() @ layer.lora_b.t() * 3.0
    for training in (True, False):
        torch.manual_seed(8)
        found = layer.train(training)(x)
        torch.manual_seed(8)
        torch.testing.assert_close(found, base(x) + torch.dropout(x, 0.5, training) @ factors)


def test_factors_begin_as_peft_draws_them() -> None:
    layer = LoraLinear(torch.nn.Linear(60, 20, bias=False), LoraSettings(rank=4), torch.Generator().manual_seed(2))
    expected = torch.empty(4, 60)
    torch.nn.init.kaiming_uniform_(expected, a=math.sqrt(5), generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(layer.lora_a.detach(), expected)
    assert not layer.lora_b.any()


def test_factors_are_drawn_one_after_the_other_in_the_models_order(config) -> None:
    """Eleven layers: by its name, the eleventh would be the third."""
    model = Transformer(dataclasses.replace(config, layer_types=(SLIDING,) * 10 + (FULL,)))
    ends = ("attention.q_proj", "experts")
    names = adapt(model, LoraSettings(rank=2, targets=tuple(f"layers.*.{end}" for end in ends)), 5)
    assert names == [f"layers.{number}.{end}" for number in range(11) for end in ends]
    generator = torch.Generator().manual_seed(5)
    for name, factor in model.named_parameters():
        if factor.requires_grad and name.endswith("_a"):
            bound = factor.shape[-1] ** -0.5
            expected = torch.empty(factor.shape).uniform_(-bound, bound, generator=generator)
            torch.testing.assert_close(factor.detach(), expected)


def test_recomputed_layers_drop_the_same_inputs(config, batch: Batch) -> None:
    settings, gradients = LoraSettings(rank=2, dropout=0.5, targets=("attention",)), []
    for recompute in (False, True):
        model = adapted(config, settings)
        torch.manual_seed(1)
        TwoStream(model, ObjectiveSettings(), compiled=False, recompute=recompute)(batch, 1, 2).loss.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.requires_grad})
    torch.testing.assert_close(*gradients)


def test_evaluations_are_of_the_averaged_factors_without_dropout(recipe: Recipe, tmp_path: Path) -> None:
    recipe = lora_recipe(recipe, tmp_path, dropout=0.5)
    recipe = dataclasses.replace(recipe, optimizer=dataclasses.replace(recipe.optimizer, average=0.9))
    trainer, seeds = Trainer(recipe, device="cpu", quiet=True), set()
    trainer.build()
    for index in range(2):
        trainer.train_step(Batch.from_arrays(trainer.packer.batch(index)).to(trainer.device))
        seeds.add(torch.initial_seed())
    assert len(seeds) == 2  # every batch drops others
    heldout = trainer.evaluate()
    assert trainer.model.training
    for module in trainer.model.modules():
        if isinstance(module, LoraLinear):
            module.dropout = 0.0
    trainer.masters.load_state(trainer.masters.state() | {"masters": trainer.masters.trained()})
    assert trainer.evaluate() == heldout


def test_a_batch_drops_the_same_whichever_process_has_it(recipe: Recipe, tmp_path: Path) -> None:
    seen = []
    for world, batches in ((World(), 1), (World(rank=1, size=2), 0)):
        trainer = Trainer(lora_recipe(recipe, tmp_path, dropout=0.5), device="cpu", quiet=True)
        trainer.build()
        trainer.world, trainer.batches = world, batches
        loss = trainer._accumulate(Batch.from_arrays(trainer.packer.batch(1)).to(trainer.device))
        seen.append((torch.initial_seed(), float(loss), trainer.batches))
    assert seen[0] == seen[1]


def test_another_alpha_is_another_run(recipe: Recipe, tmp_path: Path) -> None:
    """It would scale anew what the factors have learned."""
    recipe = lora_recipe(recipe, tmp_path, alpha=8.0)
    assert recipe.lora is not None
    short = dataclasses.replace(recipe, run=dataclasses.replace(recipe.run, max_seconds=1e-3))
    folder = train(short, device="cpu", quiet=True).folder
    other = dataclasses.replace(short, lora=dataclasses.replace(recipe.lora, alpha=4.0))
    with pytest.raises(CheckpointError, match=r"with another lora\.alpha\.$"):
        train(other, device="cpu", quiet=True, resume=True)
    older = load_checkpoint(folder)
    del older["model"]["lora_alpha"]
    save_checkpoint(folder, older)
    assert len(train(short, device="cpu", quiet=True, resume=True).losses) > 0


def test_neither_an_adapter_nor_all_weights_go_on_as_the_other(recipe: Recipe, tmp_path: Path) -> None:
    recipe = dataclasses.replace(recipe, optimizer=dataclasses.replace(recipe.optimizer, steps=1, warmup=0))
    adapter = lora_recipe(recipe, tmp_path)
    for begun, other in ((adapter, None), (dataclasses.replace(adapter, lora=None), adapter.lora)):
        out = dataclasses.replace(begun.run, out=str(tmp_path / f"run-{other is None}"))
        train(dataclasses.replace(begun, run=out), device="cpu", quiet=True)
        with pytest.raises(CheckpointError, match=r"another lora\.rank"):
            train(dataclasses.replace(begun, run=out, lora=other), resume=True, device="cpu", quiet=True)


def test_an_adapter_does_not_go_on_over_another_base(recipe: Recipe, tmp_path: Path) -> None:
    """Its checkpoint holds the factors alone, and would name whatever base it is resumed with."""
    recipe = lora_recipe(recipe, tmp_path)
    short = dataclasses.replace(recipe, run=dataclasses.replace(recipe.run, max_seconds=1e-3))
    folder = train(short, device="cpu", quiet=True).folder
    (tmp_path / "base").rename(tmp_path / "moved")
    other = Transformer(recipe.model)
    initialise(other, 10)
    save_model(other, tmp_path / "base")
    with pytest.raises(CheckpointError, match=r"with another model under its adapter\.$"):
        train(short, device="cpu", quiet=True, resume=True)
    moved = dataclasses.replace(short, run=dataclasses.replace(short.run, init=str(tmp_path / "moved")))
    assert len(train(moved, device="cpu", quiet=True, resume=True).losses) > 0
    older = load_checkpoint(folder)
    del older["model"]["lora_base_sampled"]
    older["model"]["lora_base"] = "of first rows alone"
    save_checkpoint(folder, older)
    assert len(train(short, device="cpu", quiet=True, resume=True).losses) > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sharded_run_trains_the_same_factors(recipe: Recipe, tmp_path: Path, dtype: str) -> None:
    recipe = lora_recipe(recipe, tmp_path)
    recipe = dataclasses.replace(recipe, optimizer=dataclasses.replace(recipe.optimizer, steps=6))
    results = {}
    for shard in (False, True):
        run = dataclasses.replace(recipe.run, shard=shard, dtype=dtype, out=str(tmp_path / f"run-{shard}"))
        results[shard] = train(dataclasses.replace(recipe, run=run), device="cpu", quiet=True)
    assert results[True].losses == pytest.approx(results[False].losses, rel=1e-5 if dtype == "float32" else 0.02)
    whole, sharded = (load_adapter(results[shard].model_folder) for shard in (False, True))
    assert whole.factors.keys() == sharded.factors.keys()
    if dtype == "float32":
        for name, factors in whole.factors.items():
            torch.testing.assert_close(sharded.factors[name].a, factors.a, atol=1e-4, rtol=1e-3)
    assert all(factors.a.dtype == factors.b.dtype == torch.float32 for factors in whole.factors.values())
    assert all(factors.a.dtype == factors.b.dtype == torch.float32 for factors in sharded.factors.values())


def saved(config, folder: Path, targets: tuple[str, ...] = ALL) -> Path:
    settings = LoraSettings(rank=2, targets=targets)
    save_adapter(factors_of(adapted(config, settings), settings), folder, base_model="base")
    return folder


def rewritten(folder: Path, change) -> Path:
    tensors = load_file(folder / "adapter_model.safetensors")
    save_file(change(tensors), folder / "adapter_model.safetensors")
    return folder


def test_merging_refuses_an_adapter_of_another_model_before_it_reads_weights(
    config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(config, tmp_path / "adapter")
    save_model(plain(dataclasses.replace(config, hidden_size=64)), tmp_path / "other")
    monkeypatch.setattr(Checkpoint, "weight", None)
    assert main(["merge", *(str(tmp_path / name) for name in ("other", "adapter", "out"))]) == 2
    assert "is for another model" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def shapes_of(model: Transformer) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in model.named_parameters()}


def test_an_adapter_for_another_model_is_named(config, tmp_path: Path) -> None:
    adapter = load_adapter(saved(config, tmp_path))
    other = plain(dataclasses.replace(config, intermediate_size=40))
    with pytest.raises(
        CheckpointError, match=r"is for another model: it changes layers.0.mlp.*, and this model has \[32, 40"
    ):
        adapter.check_fits(shapes_of(other), "here")
    shallow = plain(dataclasses.replace(config, layer_types=config.layer_types[1:]))
    with pytest.raises(CheckpointError, match="for another model"):
        adapter.check_fits(shapes_of(shallow), "here")
    foreign = rewritten(tmp_path, lambda t: {k.replace("self_attn", "attn"): v for k, v in t.items()})
    with pytest.raises(CheckpointError, match="for another model: there is no weight for"):
        load_adapter(foreign)


@pytest.mark.parametrize("stack", ["model.decoder.layers", "model.encoder.language_model"])
def test_an_adapter_of_one_phase_is_refused(config, tmp_path: Path, stack: str) -> None:
    """PEFT runs the other phase with the weight as it was."""
    saved(config, tmp_path)
    rewritten(tmp_path, lambda t: {k: v for k, v in t.items() if stack not in k})
    with pytest.raises(CheckpointError, match="differently for encoder and decoder"):
        load_adapter(tmp_path)


def test_an_adapter_of_nothing_of_whole_numbers_or_of_none_is_refused(config, tmp_path: Path) -> None:
    saved(config, tmp_path)
    rewritten(tmp_path, lambda t: {k: v.to(torch.int8) for k, v in t.items()})
    with pytest.raises(CheckpointError, match=r"in torch\.int8, which is not supported"):
        load_adapter(tmp_path)
    for number in (math.inf, math.nan):
        saved(config, tmp_path)
        rewritten(tmp_path, lambda t, number=number: {k: torch.full_like(v, number) for k, v in t.items()})
        with pytest.raises(CheckpointError, match=r"has infinite or NaN values in base_model\S+\.$"):
            load_adapter(tmp_path)
    saved(config, tmp_path)
    rewritten(tmp_path, lambda t: {k: torch.full_like(v, 1e30) for k, v in t.items()})
    large = load_adapter(tmp_path)
    for use in (merge, with_adapter):
        with pytest.raises(CheckpointError, match=r"The adapter's change to \S+ has infinite or NaN values\.$"):
            use(plain(config), large)
    rewritten(tmp_path, lambda _: {})
    with pytest.raises(CheckpointError, match="changes nothing"):
        load_adapter(tmp_path)


def test_unequal_twins_and_half_adapters_are_refused(config, tmp_path: Path) -> None:
    name = "base_model.model.model.encoder.language_model.layers.0.self_attn.q_proj.lora_A.weight"
    saved(config, tmp_path / "a")
    rewritten(tmp_path / "a", lambda t: {k: v + 1 if k == name else v for k, v in t.items()})
    with pytest.raises(CheckpointError, match="differently for encoder and decoder"):
        load_adapter(tmp_path / "a")
    saved(config, tmp_path / "b")
    rewritten(tmp_path / "b", lambda t: {k: v for k, v in t.items() if "q_proj.lora_A" not in k})
    with pytest.raises(CheckpointError, match="only one factor"):
        load_adapter(tmp_path / "b")


@pytest.mark.parametrize(("change", "message"), [
    ({"peft_type": "IA3"}, "kind 'IA3'"),
    ({"use_dora": True}, "uses use_dora"),
    ({"alora_invocation_tokens": [5, 6]}, "uses alora_invocation_tokens"),
    ({"layer_replication": [[0, 2], [1, 3]]}, "uses layer_replication"),
    ({"arrow_config": {"top_k": 2}}, "uses arrow_config"),
    ({"kasa_config": {"beta": 1e-4}}, "uses kasa_config"),
    ({"r": 0}, "numbers above 0"),
    ({"lora_alpha": math.inf}, "numbers above 0"),
    ({"lora_alpha": 10**400}, "numbers above 0"),
    ({"target_parameters": 3, "r": 8}, r"adapter_config\.json says 8"),
    ({"r": 8}, r"layers\.0\.\S+ in \S+ have rank \d; adapter_config\.json says 8"),
    ({"rank_pattern": {"q_proj": 8}}, r"attention\.q_proj\.weight in \S+ have rank \d; adapter_config\.json says 8"),
    ({"rank_pattern": {"(": 8}}, "must map patterns to whole numbers above 0 in rank_pattern"),
    ({"rank_pattern": {"q_proj": "wide"}}, "must map patterns to whole numbers above 0 in rank_pattern"),
    ({"rank_pattern": [8]}, "must map patterns to whole numbers above 0 in rank_pattern"),
    ({"init_lora_weights": "pissa_niter_4"}, "initialised with 'pissa_niter_4', which changes the base weights"),
    ({"init_lora_weights": "olora"}, "initialised with 'olora'"),
])  # fmt: skip
def test_other_kinds_of_adapters_are_named(config, tmp_path: Path, change: dict, message: str) -> None:
    saved(config, tmp_path)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(CheckpointError, match=message):
        load_adapter(tmp_path)
    with pytest.raises(CheckpointError, match=r"There is no folder '\S+nothing'; an adapter is one"):
        load_adapter(tmp_path / "nothing")
    (tmp_path / "adapter_model.safetensors").unlink()
    plain = {"peft_type": "LORA", "r": 2, "lora_alpha": 4}
    file.write_text(json.dumps(plain))
    with pytest.raises(CheckpointError, match=r"has no adapter_model\.safetensors"):
        load_adapter(tmp_path)


def test_lora_needs_a_model_to_begin_with(recipe: Recipe) -> None:
    with pytest.raises(SettingError, match=r"run\.init is missing; LoRA needs a model to adapt"):
        dataclasses.replace(recipe, lora=LoraSettings(rank=2))


def test_merging_by_command_keeps_the_folder_and_the_logits(config, tmp_path: Path, capsys) -> None:
    save_model(plain(config).bfloat16(), tmp_path / "base")
    (tmp_path / "base" / "tokenizer_config.json").write_text("{}")
    (tmp_path / "base" / "hf_quant_config.json").write_text('{"quantization": "of weights that are merged now"}')
    saved(config, tmp_path / "adapter")
    out = tmp_path / "merged"
    arguments = ["merge", str(tmp_path / "base"), str(tmp_path / "adapter"), str(out), "--json"]
    assert main(arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["weights_changed"] == len(load_adapter(tmp_path / "adapter").factors)
    assert (told["dtype"], told["bytes"]) == ("bfloat16", (out / "model.safetensors").stat().st_size)
    assert (out / "tokenizer_config.json").read_text() == "{}"
    assert not (out / "hf_quant_config.json").exists()
    expected = load_model(tmp_path / "base", "cpu", "bfloat16")
    merge(expected, load_adapter(tmp_path / "adapter"))
    merged = load_model(out, "cpu", "bfloat16")
    assert all(torch.equal(p, dict(expected.named_parameters())[name]) for name, p in merged.named_parameters())
    assert main(arguments) == 2
    assert "already exists" in capsys.readouterr().err
    arguments[3] = str(tmp_path / "base" / "config.json" / "out")
    assert main(arguments) == 2
    assert "out cannot be made: " in capsys.readouterr().err


def test_merging_float16_weights_rounds_the_sum_once_to_float16(config, tmp_path: Path, capsys) -> None:
    save_model(plain(config).half(), tmp_path / "base")
    saved(config, tmp_path / "adapter")
    assert main(["merge", str(tmp_path / "base"), str(tmp_path / "adapter"), str(tmp_path / "merged")]) == 0
    assert capsys.readouterr().out.endswith("merged (0.000 GB, float16).\n")
    expected = load_model(tmp_path / "base", "cpu", "float32")
    merge(expected, load_adapter(tmp_path / "adapter"))
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    for name, weight in expected.state_dict().items():
        assert torch.equal(merged[to_hugging_face(name)], weight.half()), name


def test_loading_with_adapters_answers_like_the_merged_model(tmp_path: Path) -> None:
    base = load_model("tiny", "cpu", "float32")
    settings = LoraSettings(rank=2, targets=("attention", "mlp"))
    adapt(base, settings, 0)
    with torch.no_grad():
        for name, parameter in base.named_parameters():
            if name.endswith("_b"):
                parameter.normal_(0, 0.5, generator=torch.Generator().manual_seed(2))
    save_adapter(factors_of(base, settings), tmp_path, base_model="tiny")
    one = redraft.load("tiny", device="cpu", adapter=tmp_path)
    several = redraft.load("tiny", device="cpu", adapter={"a": tmp_path})
    before = {name: p.clone() for name, p in several.model.named_parameters()}
    question = {"prompt": "Hello!", "max_tokens": 16, "steps": 2, "canvas_length": 16}
    plain_answer, changed = several.generate(**question).token_ids, one.generate(**question).token_ids
    assert plain_answer != changed
    view = several.with_adapter("a")
    assert view.generate(**question).token_ids == changed
    assert view.with_adapter(None).generate(**question).token_ids == plain_answer
    assert several.generate(**question).token_ids == plain_answer
    assert all(torch.equal(p, before[name]) for name, p in several.model.named_parameters())
    several.add_adapter("b", tmp_path)
    assert several.with_adapter("b").generate(**question).token_ids == changed
    for act, said in (
        (lambda: several.with_adapter("c"), "no adapter 'c'; there are a, b"),
        (lambda: one.with_adapter("a"), "no adapter 'a'; there are none"),
        (lambda: several.add_adapter("a", tmp_path), "already an adapter 'a'"),
    ):
        with pytest.raises(SettingError, match=said):
            act()
    small = tmp_path / "small"
    save_model(Transformer(dataclasses.replace(base.config, hidden_size=32)), small)
    with pytest.raises(CheckpointError, match="for another model"):
        redraft.load(small, device="cpu", adapter=tmp_path)

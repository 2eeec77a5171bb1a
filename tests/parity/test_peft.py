"""Adapters in the `peft` library: ours give the same logits on the Transformers model, and theirs can be read."""

from pathlib import Path

import pytest
import torch
from transformers.models.diffusion_gemma import DiffusionGemmaForBlockDiffusion

from redraft.errors import CheckpointError
from redraft.model.adapters import load_adapter, merge
from redraft.model.weights import load_model
from redraft.train.lora import adapt, collect
from redraft.train.recipe import LoraSettings

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore")

TARGETS = r"model\.(encoder\.language_model|decoder)\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)"


def canvas_logits(model: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.arange(3, 25)[None]
    canvas = torch.arange(40, 56)[None]
    with torch.no_grad():
        out = model(input_ids=tokens, decoder_input_ids=canvas)
    return tokens, out.logits


def our_logits(folder: Path, adapter_folder: Path) -> torch.Tensor:
    model = load_model(folder, "cpu", "float32")
    merge(model, load_adapter(adapter_folder))
    cache = model.new_cache(1, 24)
    with torch.no_grad():
        model.encode(torch.arange(3, 25)[None], cache)
        return model.logits(model.denoise(torch.arange(40, 56)[None], cache))


@pytest.mark.parametrize("targets", [("attention", "mlp", "self_conditioning", "router"), ("attention", "experts")])
def test_our_adapter_loads_in_peft_with_equal_logits(
    reference_folder: Path, tmp_path: Path, targets: tuple[str, ...]
) -> None:
    from redraft.model.adapters import save_adapter

    settings = LoraSettings(rank=3, alpha=9.0, dropout=0.1, targets=targets)
    model = load_model(reference_folder, "cpu", "float32")
    adapt(model, settings, 0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_b"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    adapter = collect(dict(model.named_parameters()), settings)
    save_adapter(adapter, tmp_path, base_model=str(reference_folder), dropout=settings.dropout)

    base = DiffusionGemmaForBlockDiffusion.from_pretrained(reference_folder).eval()
    _, before = canvas_logits(base)
    with_adapter = peft.PeftModel.from_pretrained(base, tmp_path).eval()
    _, theirs = canvas_logits(with_adapter)
    assert (theirs - before).abs().max() > 0.05
    torch.testing.assert_close(our_logits(reference_folder, tmp_path), theirs, atol=1e-4, rtol=1e-4)


def test_an_adapter_trained_by_peft_on_tied_modules_is_refused(reference_folder: Path, tmp_path: Path) -> None:
    base = DiffusionGemmaForBlockDiffusion.from_pretrained(reference_folder)
    theirs = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=TARGETS))
    theirs.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="differently for encoder and decoder"):
        load_adapter(tmp_path)


def test_ranks_by_pattern_are_those_of_peft(reference_folder: Path, tmp_path: Path) -> None:
    """Of experts the file holds one matrix for all, which the rank cuts."""
    base = DiffusionGemmaForBlockDiffusion.from_pretrained(reference_folder).eval()
    _, before = canvas_logits(base)
    ranks = {"q_proj": 6, r"experts\.gate_up_proj": 2, r"layers\.0\.experts\.down_proj": 8, "experts": 1}
    experts = ["experts.gate_up_proj", "experts.down_proj"]
    settings = peft.LoraConfig(r=4, lora_alpha=8, target_modules=TARGETS, target_parameters=experts, rank_pattern=ranks)
    theirs = peft.get_peft_model(base, settings)
    parameters = dict(theirs.named_parameters())
    with torch.no_grad():
        for name in [name for name in parameters if ".lora_" in name and ".decoder." in name]:
            parameters[name].normal_(std=0.1, generator=torch.Generator().manual_seed(len(name)))
            parameters[name.replace(".decoder.", ".encoder.language_model.")].copy_(parameters[name])
    theirs.save_pretrained(tmp_path)
    _, expected = canvas_logits(theirs.eval())
    assert (expected - before).abs().max() > 0.05
    torch.testing.assert_close(our_logits(reference_folder, tmp_path), expected, atol=1e-4, rtol=1e-4)

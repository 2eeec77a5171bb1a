"""On a CUDA device: layers and a vocabulary of the 26B model's size, in every format, against Transformers.

Transformers writes six such layers with random weights, in bf16, to a folder that Redraft loads. What it computes from
these weights in fp32 is the truth.
"""

import gc
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from reference_model import randomise, wide_config
from torch import Tensor
from transformers import DynamicCache
from transformers.models.diffusion_gemma import DiffusionGemmaForBlockDiffusion as Reference

from redraft.model.checkpoint import Checkpoint
from redraft.model.inference import load_packed
from redraft.model.packed.transformer import PackedTransformer
from redraft.model.weight_settings import WeightSettings

NEEDED_GB = 40
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
PROMPT, CANVAS, TEMPERATURE = 1300, 256, 0.7  # a prompt longer than the window


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Hidden states [T,D] of the prompt, and logits [L,V] of a canvas without and with a step before it."""

    prompt: Tensor
    first: Tensor
    second: Tensor


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A folder, and what Transformers makes of it in fp32 and in bf16."""

    folder: Path
    exact: Seen
    half: Seen


def drawn(count: int, seed: int) -> Tensor:
    return torch.randint(262144, (1, count), generator=torch.Generator().manual_seed(seed)).to("cuda")


def logits_before() -> Tensor:
    """The logits [1,L,V] of the step before: half of the positions are sure of a token, the others of nothing."""
    logits = torch.randn(1, CANVAS, 262144, generator=torch.Generator("cuda").manual_seed(4), device="cuda")
    sure = drawn(CANVAS, 5)[..., None]
    return logits.scatter_add(2, sure, torch.tensor([0.0, 25.0], device="cuda").repeat(CANVAS // 2).view_as(sure))


def theirs(model: Reference) -> Seen:
    cache = DynamicCache(config=model.config.text_config)
    prompt = model.model.encoder(input_ids=drawn(PROMPT, 1), past_key_values=cache).last_hidden_state
    before = (logits_before() / TEMPERATURE).to(model.dtype)
    first, second = (
        model(decoder_input_ids=drawn(CANVAS, seed), past_key_values=cache, self_conditioning_logits=logits).logits
        for seed, logits in ((2, None), (3, before))
    )
    return Seen(prompt=prompt[0].float(), first=first[0].float(), second=second[0].float())


def ours(model: PackedTransformer) -> Seen:
    cache = model.new_cache(1, 2 * PROMPT)
    prompt = model.encode(drawn(PROMPT, 1), cache)
    soft = model.soft_embeddings((logits_before() / TEMPERATURE).to(model.dtype))
    first, second = (
        model.logits(model.denoise(drawn(CANVAS, seed), cache, given)) for seed, given in ((2, None), (3, soft))
    )
    return Seen(prompt=prompt[0].float(), first=first[0].float(), second=second[0].float())


def error(found: Tensor, exact: Tensor) -> float:
    """The norm of the difference, relative to what is exact."""
    return ((found - exact).norm() / exact.norm()).item()


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Peer:
    if torch.cuda.mem_get_info()[0] < NEEDED_GB * 10**9:
        pytest.skip(f"needs {NEEDED_GB} GB of free memory on the CUDA device")
    folder = tmp_path_factory.mktemp("wide")
    torch.set_default_dtype(torch.bfloat16)  # not converted afterwards, which would round the frequencies of positions
    try:
        with torch.device("cuda"):
            model = Reference(wide_config()).eval()
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.inference_mode():
        randomise(model)
        model.save_pretrained(folder)
        half = theirs(model)
        exact = theirs(model.float())
    del model
    gc.collect()
    torch.cuda.empty_cache()
    return Peer(folder=folder, exact=exact, half=half)


@torch.inference_mode()
@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize(("quantization", "times"), [(None, 1.2), ("fp8", 3), ("int4", 3.5)])
def test_forwards_are_as_near_to_fp32_as_those_of_transformers_in_bf16(
    peer: Peer, quantization: str | None, times: float, gpus: int
) -> None:
    """`times` is how much further off a format may be: rounding decides which of two experts a token gets."""
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"needs {gpus} CUDA devices")
    seen = ours(
        load_packed(Checkpoint(peer.folder), WeightSettings(device="cuda", gpus=gpus, quantization=quantization))
    )
    for part in ("prompt", "first", "second"):
        found, exact, half = (getattr(one, part) for one in (seen, peer.exact, peer.half))
        assert error(found, exact) <= times * error(half, exact), part

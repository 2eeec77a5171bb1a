"""The training objective's loss and gradients against plain autograd through the Transformers model, in fp32."""

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache
from transformers.models.diffusion_gemma import DiffusionGemmaForBlockDiffusion as Reference

from redraft.diffusion.corruption import Corruption, generator_for
from redraft.model.names import to_hugging_face
from redraft.model.transformer import Transformer
from redraft.train.batch import Batch
from redraft.train.recipe import ObjectiveSettings
from redraft.train.two_stream import TwoStream

PROMPT, CANVAS, VOCABULARY = 21, 16, 128


def batch_of(prompt: Tensor, target: Tensor) -> Batch:
    """One row with one document, whose answer is one canvas."""
    number, count = torch.zeros(1, 1, dtype=torch.int32), torch.arange(PROMPT, dtype=torch.int32)[None]
    return Batch(
        tokens=prompt, document=torch.zeros_like(count), position=count, encoder_weight=(count < PROMPT - 1).float(),
        canvas_target=target[None], canvas_document=number, canvas_start=number + PROMPT,
        noise_region=torch.ones(1, 1, CANVAS, dtype=torch.bool), canvas_weight=torch.ones(1, 1, CANVAS),
        full_noise=torch.zeros(1, 1), source=torch.zeros(1, dtype=torch.int64),
    )  # fmt: skip


def their_loss(reference: Reference, prompt: Tensor, canvas: Tensor, target: Tensor) -> Tensor:
    """Both passes and both losses; no gradient flows through the first pass' logits, as in the published objective."""
    cache = DynamicCache(config=reference.config.text_config)
    hidden = reference.model.encoder(input_ids=prompt, past_key_values=cache).last_hidden_state
    cap = reference.config.text_config.final_logit_softcapping
    encoder = F.cross_entropy((torch.tanh(reference.lm_head(hidden) / cap) * cap)[0, :-1], prompt[0, 1:])
    first = reference(decoder_input_ids=canvas, past_key_values=cache).logits.detach()
    second = reference(decoder_input_ids=canvas, past_key_values=cache, self_conditioning_logits=first).logits
    return F.cross_entropy(second[0], target[0]) + encoder


def test_the_loss_and_all_gradients_are_those_of_transformers(reference: Reference, model: Transformer) -> None:
    generator = torch.Generator().manual_seed(3)
    # Transformers' embedding counts token 0, padding, as one without a gradient of its own.
    shapes = ((1, PROMPT), (1, CANVAS), (1, CANVAS))
    prompt, canvas, target = (torch.randint(1, VOCABULARY, shape, generator=generator) for shape in shapes)
    noise = Corruption(tokens=canvas[None], level=torch.ones(1, 1), replaced=(canvas != target)[None])
    stream = TwoStream(model, ObjectiveSettings(balance_weight=0.0), compiled=False)
    ours = stream.losses(batch_of(prompt, target), noise, generator_for("cpu", 1), conditioned=1).loss
    theirs = their_loss(reference, prompt, canvas, target)
    torch.testing.assert_close(ours, theirs)
    trained = {name: weight for name, weight in model.named_parameters() if not name.startswith("vision.")}
    weights = [reference.get_parameter(to_hugging_face(name)) for name in trained]
    expected = torch.autograd.grad(theirs, weights)
    for name, a, b in zip(trained, torch.autograd.grad(ours, list(trained.values())), expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")

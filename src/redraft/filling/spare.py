"""How long the text of a hole is, asked of a model that knows holes with spare room.

Such a model (`spare_holes` of its generation settings) has learned to put padding behind the text of a hole that is
longer. So where a hole is all noise, the probability of padding at a position is that of a text that has ended before
it, and one pass over one canvas tells how likely every length is.

Shapes: K noises, F free positions of the hole, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from redraft.diffusion.rng import draw
from redraft.filling.context import Context
from redraft.filling.hole import Hole

NOISES = 4
"""Drafts of noise over which probabilities are averaged."""
LEAST = 1e-6
"""Probability of a length that the model rules out: the likelihood of its text may still speak for it."""


@torch.inference_mode()
def length_logprobs(context: Context, hole: Hole, longest: int) -> Tensor:
    """log p of a text of 0, 1, ... `longest` tokens, fp32 [longest + 1] on the CPU; seams count as text."""
    model, room = context.model, longest + 1
    guess = hole.guess((None,) * room, min(room + context.view, context.canvas))
    given = torch.tensor(guess.tokens, device=model.device).expand(NOISES, -1)  # [K,L]
    seeds = context.settings.seed + torch.arange(NOISES, device=model.device)
    noise = draw(seeds, 0, 0, given.shape[1], model.config.vocab_size, "initial").tokens  # [K,L]
    free = torch.tensor(guess.free, device=model.device)
    canvas = given.index_copy(1, free, noise[:, free])
    hidden = model.denoise(canvas, context.cache.select([0] * NOISES))[:, :room]
    padding = model.logits(hidden).softmax(-1)[..., hole.tokenizer.pad_id].float().mean(0)  # [F]
    ended = padding.cpu().cummax(0).values  # p of a text of at most 0, 1, ... tokens
    exactly = ended.diff(prepend=torch.zeros(1)).clamp_min(LEAST)
    return (exactly / exactly.sum()).log()

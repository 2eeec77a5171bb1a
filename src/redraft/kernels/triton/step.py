"""What surrounds the model in a step: the tokens that enter, and acceptance, renoising and the stop test after it.

One program per canvas. State is per slot (a request's place in the runner), settings are per segment.

Shapes: S segments of L rows, R = S*L, C slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from redraft.kernels.triton import philox
from redraft.kernels.triton.head import END_IDS, Choice
from redraft.kernels.triton.instructions import await_inputs
from redraft.kernels.triton.language import jit, next_power_of_2, tl, use_triton
from redraft.kernels.triton.launch import early
from redraft.kernels.triton.philox import INITIAL, PURPOSE_INITIAL, PURPOSE_STEP, STEP, Counters, tokens_of
from redraft.kernels.triton.segments import DENOISE, KIND_DENOISE, KIND_UNUSED, UNUSED, Segments


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """Settings of every segment's sampler, [S] each: fp32 bounds in nats, int32 flags and counts, ids int32 [S,8]."""

    entropy_bound: Tensor
    confidence_threshold: Tensor
    stability_threshold: Tensor
    stop_at_eos: Tensor
    eos_ids: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotCanvases:
    """What canvases keep between their steps, by slot: tokens and last argmax int32 [C,L]; stable steps, and whether
    the last step was the last one, int32 [C]."""

    tokens: Tensor
    argmax: Tensor
    stable: Tensor
    converged: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """A step's outcome, views of one int32 block [S,2+4L] that the host copies at once.

    converged, stable int32 [S]; canvas (what entered), argmax, accepted int32 [S,L]; entropy fp32 [S,L].
    """

    block: Tensor

    @staticmethod
    def words(rows: int) -> int:
        """Words per segment: two, and four columns of L."""
        return 2 + 4 * rows

    @property
    def converged(self) -> Tensor:
        return self.block[:, 0]

    @property
    def stable(self) -> Tensor:
        return self.block[:, 1]

    @property
    def canvas(self) -> Tensor:
        return self._column(0)

    @property
    def argmax(self) -> Tensor:
        return self._column(1)

    @property
    def accepted(self) -> Tensor:
        return self._column(2)

    @property
    def entropy(self) -> Tensor:
        return self._column(3).view(torch.float32)

    def _column(self, index: int) -> Tensor:
        return self.block[:, 2:].unflatten(1, (4, -1))[:, index]


def enter_tokens(
    given: Tensor, state: SlotCanvases, slot: Tensor, counters: Counters, segments: Segments, vocab: int
) -> Tensor:
    """The forward's token ids, int32 [R]: `given` int32 [R] for encoding segments, else the canvas of slot int32 [S].

    At step 0 of a DENOISE segment, the canvas is first drawn as uniform noise and stored. Segments whose canvas has
    converged in the step before become unused: the host did not know yet when it began this forward, and will drop it.
    """
    if use_triton(given):
        out = torch.empty_like(given)
        _enter_kernel[(len(slot),)](
            given, state.tokens, state.converged, slot, counters.seed, counters.canvas, counters.step, segments.kind,
            segments.length, out, vocab, SEGMENT_ROWS=segments.rows, BLOCK=next_power_of_2(segments.rows),
            num_warps=4, **early(given),
        )  # fmt: skip
        return out
    rows, slots = segments.rows, slot.clamp(min=0).long()
    noise = philox.tokens(counters, rows, vocab, INITIAL).int()  # [S,L]
    fresh = ((segments.kind == DENOISE) & (counters.step == 0))[:, None]
    canvas = torch.where(fresh, noise, state.tokens[slots])
    for s in fresh[:, 0].nonzero()[:, 0].tolist():
        state.tokens[slots[s]] = canvas[s]
    encoded = (segments.kind < DENOISE)[:, None]
    over = (segments.kind >= DENOISE) & (counters.step > 0) & (state.converged[slots] != 0)
    segments.kind[over], segments.length[over] = UNUSED, 0
    return torch.where(encoded, given.view(-1, rows), canvas).flatten()


def finish_step(
    prediction: Choice,
    rules: Rules,
    state: SlotCanvases,
    slot: Tensor,
    counters: Counters,
    segments: Segments,
    vocab: int,
    *,
    held: Tensor | None = None,
) -> Report:
    """Accept, renoise and judge every DENOISE segment: updates its slot's state and reports; others report zeros.

    Positions from a segment's length on are neither accepted nor counted, and become token 0. Those where `held` int32
    [S,L] is not below 0 do not count in the stop test; their entropy must be 0.
    """
    rows = segments.rows
    block = torch.zeros(len(slot), Report.words(rows), dtype=torch.int32, device=slot.device)
    report = Report(block=block)
    if use_triton(slot):
        _finish_kernel[(len(slot),)](
            prediction.argmax, prediction.candidate, prediction.entropy, rules.entropy_bound,
            rules.confidence_threshold, rules.stability_threshold, rules.stop_at_eos, rules.eos_ids, state.tokens,
            state.argmax, state.stable, state.converged, slot, counters.seed, counters.canvas, counters.step,
            segments.kind, segments.length, block, vocab, held, SEGMENT_ROWS=rows, BLOCK=next_power_of_2(rows),
            END_IDS=END_IDS, PIECE=min(32, next_power_of_2(rows)), num_warps=8, **early(slot),
        )  # fmt: skip
        return report
    noise = philox.tokens(counters, rows, vocab, STEP).int()
    columns = [x.view(-1, rows) for x in (prediction.argmax, prediction.candidate, prediction.entropy)]
    for s in (segments.kind == DENOISE).nonzero()[:, 0].tolist():
        length, c = int(segments.length[s]), int(slot[s])
        argmax, candidate, entropy = (x[s, :length] for x in columns)
        accepted = _accept(entropy, float(rules.entropy_bound[s]))
        live = _live(argmax, rules.eos_ids[s]) if rules.stop_at_eos[s] else torch.ones_like(accepted)
        same = ((argmax == state.argmax[c, :length]) | ~live).all() & (counters.step[s] > 0)
        stable = torch.where(same, state.stable[c] + 1, 0)
        counted = live if held is None else live & (held[s, :length] < 0)
        sure = entropy[live].sum() / counted.sum().clamp(min=1) < rules.confidence_threshold[s]
        state.converged[c] = (stable >= rules.stability_threshold[s]) & sure
        block[s, 0], block[s, 1] = state.converged[c], stable
        report.canvas[s], report.argmax[s, :length] = state.tokens[c], argmax
        report.accepted[s, :length], report.entropy[s, :length] = accepted.int(), entropy
        state.tokens[c] = 0
        state.tokens[c, :length] = torch.where(accepted, candidate, noise[s, :length])
        state.argmax[c, :length], state.stable[c] = argmax, stable
    return report


def _accept(entropy: Tensor, bound: float) -> Tensor:
    """Positions [L] before which the entropies sum to at most `bound`, in rising order (ties by position)."""
    ordered, order = entropy.sort(stable=True)
    return torch.zeros_like(entropy, dtype=torch.bool).scatter_(0, order, ordered.cumsum(0) - ordered <= bound)


def _live(argmax: Tensor, eos: Tensor) -> Tensor:
    """True up to and including the first end-of-text of a canvas [L]."""
    ended = torch.isin(argmax, eos)
    return ended.cumsum(0) - ended.long() == 0


@jit(varying=("given", "slot", "seed", "canvas_index", "step"))
def _enter_kernel(
    given, canvas, converged, slot, seed, canvas_index, step, kind, length, out, vocab, SEGMENT_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    await_inputs()
    segment = tl.program_id(0)
    position = tl.arange(0, BLOCK)
    inside = position < SEGMENT_ROWS
    what, at = tl.load(kind + segment), tl.load(step + segment)
    token = tl.load(given + segment * SEGMENT_ROWS + position, inside, other=0)
    if what >= KIND_DENOISE:
        kept = canvas + tl.load(slot + segment).to(tl.int64) * SEGMENT_ROWS + position
        if (what == KIND_DENOISE) & (at == 0):
            token = tokens_of(
                tl.load(seed + segment), position, at, tl.load(canvas_index + segment), vocab, PURPOSE_INITIAL
            )
            tl.store(kept, token, inside)
        else:
            token = tl.load(kept, inside, other=0)
            if (at > 0) & (tl.load(converged + tl.load(slot + segment)) != 0):
                tl.store(kind + segment, KIND_UNUSED)
                tl.store(length + segment, 0)
    tl.store(out + segment * SEGMENT_ROWS + position, token, inside)


@jit(
    varying=(
        "entropy_bound", "confidence_threshold", "stability_threshold", "stop_at_eos", "eos_ids", "slots", "seed",
        "canvas_index", "step",
    )
)  # fmt: skip
def _finish_kernel(
    argmaxes, candidates, entropies, entropy_bound, confidence_threshold, stability_threshold, stop_at_eos, eos_ids,
    canvases, last_argmax, stable_steps, was_last, slots, seed, canvas_index, step, kind, lengths, block, vocab,
    helds, SEGMENT_ROWS: tl.constexpr, BLOCK: tl.constexpr, END_IDS: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """One segment's canvas: what is accepted, whether it has converged, its report, and the canvas of the next step."""
    await_inputs()
    segment = tl.program_id(0)
    if tl.load(kind + segment) != KIND_DENOISE:
        return
    slot = tl.load(slots + segment).to(tl.int64)
    length, at = tl.load(lengths + segment), tl.load(step + segment)
    position = tl.arange(0, BLOCK)
    inside = position < length
    here = segment * SEGMENT_ROWS
    entropy = tl.load(entropies + here + position, inside, other=float("inf"))
    argmax = tl.load(argmaxes + here + position, inside, other=-1)
    candidate = tl.load(candidates + here + position, inside, other=0)

    earlier = _earlier(entropies, here, length, entropy, position, BLOCK, PIECE)
    accepted = inside & (earlier <= tl.load(entropy_bound + segment))

    eos = tl.load(eos_ids + segment * END_IDS + tl.arange(0, END_IDS))
    ended = inside & (tl.max((argmax[:, None] == eos[None]).to(tl.int32), 1) != 0)
    ended &= tl.load(stop_at_eos + segment) != 0
    end = tl.min(tl.where(ended, position + 1, length), 0)
    live = position < end
    kept = last_argmax + slot * SEGMENT_ROWS + position
    changed = live & (argmax != tl.load(kept, inside, other=-1))
    same = (tl.sum(changed.to(tl.int32), 0) == 0) & (at > 0)
    stable = tl.where(same, tl.load(stable_steps + slot) + 1, 0)
    count = end
    if helds is not None:
        count = tl.sum((live & (tl.load(helds + here + position, inside, other=0) < 0)).to(tl.int32), 0)
    mean = tl.sum(tl.where(live, entropy, 0.0), 0) / tl.maximum(count, 1)
    sure = mean < tl.load(confidence_threshold + segment)
    converged = sure & (stable >= tl.load(stability_threshold + segment))

    canvas = canvases + slot * SEGMENT_ROWS + position
    row = block + segment * (2 + 4 * SEGMENT_ROWS)
    tl.store(row, converged.to(tl.int32))
    tl.store(row + 1, stable)
    column = row + 2 + position
    tl.store(column, tl.load(canvas, position < SEGMENT_ROWS, other=0), position < SEGMENT_ROWS)
    tl.store(column + SEGMENT_ROWS, argmax, inside)
    tl.store(column + 2 * SEGMENT_ROWS, accepted.to(tl.int32), inside)
    tl.store(column + 3 * SEGMENT_ROWS, entropy.to(tl.int32, bitcast=True), inside)

    noise = tokens_of(tl.load(seed + segment), position, at, tl.load(canvas_index + segment), vocab, PURPOSE_STEP)
    token = tl.where(inside, tl.where(accepted, candidate, noise), 0)
    tl.store(canvas, token, position < SEGMENT_ROWS)
    tl.store(kept, argmax, inside)
    tl.store(stable_steps + slot, stable)
    tl.store(was_last + slot, converged.to(tl.int32))


@jit
def _earlier(entropies, here, length, entropy, position, BLOCK: tl.constexpr, PIECE: tl.constexpr):
    """The sum of the entropies before each position in rising order: collected piece by piece, summed once."""
    earlier = tl.zeros([BLOCK, PIECE], tl.float32)
    for first in tl.static_range(0, BLOCK, PIECE):
        other = first + tl.arange(0, PIECE)
        theirs = tl.load(entropies + here + other, other < length, other=0.0)
        tied = (theirs[None] == entropy[:, None]) & (other[None] < position[:, None])
        lower = ((theirs[None] < entropy[:, None]) | tied) & (other < length)[None]
        earlier += tl.where(lower, theirs[None], 0.0)
    return tl.sum(earlier, 1)

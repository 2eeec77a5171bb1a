"""How long an answer's canvases are, and how many tokens fit."""

from __future__ import annotations

from redraft.settings import MIN_CANVAS, GenerationSettings


def next_length(settings: GenerationSettings, canvas_length: int, tokens_left: int) -> int:
    """Positions of the next canvas: `canvas_length`, or with `fit_canvas` a power of two that holds `tokens_left`."""
    if not settings.fit_canvas:
        return canvas_length
    return min(canvas_length, max(MIN_CANVAS, 1 << (tokens_left - 1).bit_length()))


def canvas_positions(settings: GenerationSettings, canvas_length: int) -> int:
    """Positions of all canvases that `max_tokens` may need; only the last one may be shorter than `canvas_length`."""
    whole, rest = divmod(settings.max_tokens, canvas_length)
    return whole * canvas_length + (next_length(settings, canvas_length, rest) if rest else 0)


def tokens_in(positions: int, canvas_length: int, *, fit_canvas: bool = False) -> int:
    """Tokens of the canvases that fit in so many positions, with `fit_canvas` also of a shorter last one.

    0 or less if none fits.
    """
    whole, rest = divmod(positions, canvas_length)
    shorter = fit_canvas and positions >= 0 and rest >= MIN_CANVAS
    return whole * canvas_length + (1 << rest.bit_length() - 1 if shorter else 0)

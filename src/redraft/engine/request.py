"""What enters the engine and what leaves it: requests, events, and what an answer cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from redraft.diffusion.records import Commit, DenoiseStep, TokenConfidence
from redraft.errors import EngineError, SettingError
from redraft.settings import GenerationSettings
from redraft.text.images import PlacedImage

if TYPE_CHECKING:
    from redraft.diffusion.constraint import Constraint

Ending = Literal["stop", "length", "cancelled", "timeout"]
"""Why an answer ended: the model or a stop string, max_tokens, the caller going away, or the timeout."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One answer to write. `request_id` is the caller's and unique among the engine's open requests.

    chat        whether the answer is a turn of a conversation: stop strings are looked for in its content alone
    images      images in the prompt, in order; their embeddings replace the tokens they cover
    settings    every setting of this answer, including its seed
    constraint  what the answer may hold
    adapter     the name of the adapter to answer with; None for the model itself
    timeout     seconds from submission after which the answer ends with what has been committed
    drafts      whether `DenoiseStep` records are wanted, or only what is committed
    """

    request_id: int
    prompt: tuple[int, ...]
    settings: GenerationSettings
    chat: bool = False
    images: tuple[PlacedImage, ...] = ()
    constraint: Constraint | None = None
    adapter: str | None = None
    timeout: float | None = None
    drafts: bool = True

    def siblings(self, request_ids: Sequence[int]) -> list[Request]:
        """Further answers to the same prompt (OpenAI's `n`): one request per id, with seeds seed, seed + 1, ...

        If they are added together, the prompt's full pages are encoded only once.
        """
        seeds = [(self.settings.seed + i) % 2**63 for i in range(len(request_ids))]
        return [
            replace(self, request_id=request_id, settings=replace(self.settings, seed=seed))
            for request_id, seed in zip(request_ids, seeds, strict=True)
        ]


def check_distinct(requests: Sequence[Request]) -> None:
    """Raise `SettingError` if two of them have the same id."""
    if len({request.request_id for request in requests}) < len(requests):
        raise SettingError("Two requests have the same request_id.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Stats:
    """What an answer cost. `steps` has one entry per canvas; forwards are their sum, as commits share them.

    Comparisons leave out times, so that equal answers are equal.
    """

    canvases: int
    steps: tuple[int, ...]
    forwards: int
    tokens: int
    seconds: float = field(compare=False)

    @property
    def tokens_per_forward(self) -> float:
        """Answer tokens per forward pass; 0 for an answer that was cancelled before its first."""
        return self.tokens / self.forwards if self.forwards else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Answer tokens per second of the total time."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "canvases": self.canvases,
            "steps": list(self.steps),
            "forwards": self.forwards,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 4),
            "tokens_per_forward": round(self.tokens_per_forward, 3),
            "tokens_per_second": round(self.tokens_per_second, 2),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerStats(Stats):
    """What the engine adds to that.

    prompt_tokens         tokens of the prompt, of which `cached_tokens` came from the prefix cache
    queue_seconds         the part of `seconds` (which start at submission) before the request had a slot
    first_commit_seconds  until the first committed canvas; None if there was none
    step_budgets          the step cap of each canvas: the setting, or what `latency_budget_ms` allowed
    Comparisons leave out what depends on other answers and earlier ones: times and `cached_tokens`.
    """

    prompt_tokens: int
    cached_tokens: int = field(compare=False)
    queue_seconds: float = field(compare=False)
    first_commit_seconds: float | None = field(compare=False)
    step_budgets: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        first = self.first_commit_seconds
        return Stats.to_dict(self) | {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "queue_seconds": round(self.queue_seconds, 4),
            "first_commit_seconds": None if first is None else round(first, 4),
            "step_budgets": list(self.step_budgets),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """A request's last event. `text` and `token_ids` join those of all its commits; `tokens` has one entry per id.

    `stop_text` is the stop string that ended the answer; None if something else did.
    """

    request_id: int
    finish_reason: Ending
    stop_text: str | None
    text: str
    token_ids: tuple[int, ...]
    tokens: tuple[TokenConfidence, ...]
    stats: AnswerStats


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """The last event of a request that broke while others went on. `error` is raised to the reader of its events."""

    request_id: int
    error: EngineError


Event = DenoiseStep | Commit | Finished

OnEvent = Callable[[Event | Failed], None]
"""Called with every event of a request, in order, by the thread that runs the engine. It must not call the engine,
which goes on with its step behind it."""

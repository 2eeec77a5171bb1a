"""`POST /v1/completions`: plain text to continue or, with `suffix`, a hole to fill."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from redraft.checks import MAX_NUMBER
from redraft.serve.shapes.chat import Streamed
from redraft.serve.shapes.common import (
    MAX_CHOICES,
    Constraints,
    Items,
    Seed,
    Settings,
    Stop,
    TokenSampling,
    contradiction,
)

TokenIds = Annotated[Items[int], Field(min_length=1)]


class CompletionRequest(Streamed, Settings, Constraints, TokenSampling):
    """One or more texts to continue as they are, without the chat format."""

    model: str
    prompt: (
        str
        | TokenIds
        | Annotated[Items[str], Field(min_length=1, max_length=MAX_CHOICES)]
        | Annotated[Items[TokenIds], Field(min_length=1, max_length=MAX_CHOICES)]
    )
    suffix: str | None = None
    max_tokens: Annotated[int, Field(ge=0, le=MAX_NUMBER)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    confidence: bool | None = None
    user: Annotated[str, Field(max_length=512)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> CompletionRequest:
        if self.suffix is not None:
            self._check_fill()
        if self.max_tokens == 0 and not self.is_scored:
            raise contradiction("max_tokens", "max_tokens must be at least 1, unless echo and logprobs are given")
        if self.is_scored_alone:
            self._check_scores()
        if len(self.prompts()) * (self.n or 1) > MAX_CHOICES:
            raise contradiction("n", f"prompts times n must be at most {MAX_CHOICES}")
        return self

    def _check_fill(self) -> None:
        if not isinstance(self.prompt, str):
            raise contradiction("prompt", "suffix needs prompt to be one string")
        for name in ("n", "logprobs", "echo", "timeout", "latency_budget_ms", "pins"):
            value = getattr(self, name)
            if value is not None and value is not False and (name, value) != ("n", 1):
                raise contradiction(name, f"suffix and {name} cannot be combined")

    def _check_scores(self) -> None:
        """Refuse what is asked of an answer if there is none."""
        more = ("n", "stop", "confidence", *Settings.model_fields, *Constraints.model_fields)
        for name in more:
            if getattr(self, name) and (name, getattr(self, name)) != ("n", 1):
                sentence = f"{name} needs an answer; echo and logprobs with max_tokens {self.max_tokens} give none"
                raise contradiction(name, sentence)

    @property
    def is_scored(self) -> bool:
        """Whether the prompts' log-probabilities are asked for."""
        return bool(self.echo) and self.logprobs is not None

    @property
    def is_scored_alone(self) -> bool:
        """Whether they are asked for without an answer, or with the next token alone."""
        return self.is_scored and self.max_tokens in (0, 1)

    @property
    def end_user(self) -> str | None:
        """Who asks, for the log."""
        return self.user

    def places(self) -> list[str]:
        """What the request calls each of its prompts."""
        several = not isinstance(self.prompt, str) and not isinstance(self.prompt[0], int)
        return [f"prompt[{index}]" for index in range(len(self.prompt))] if several else ["prompt"]

    def prompts(self) -> list[str] | list[list[int]]:
        """Return the prompts as a list, whichever of the four forms they have."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        return [prompt] if isinstance(prompt[0], int) else prompt  # type: ignore[return-value, list-item]

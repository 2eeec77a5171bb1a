"""From a request's shape to what the engine runs: prompt tokens, settings, constraint. Raises before any forward."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

from redraft.config import LOWEST_T_MAX, resolve_settings
from redraft.constraints.build import says_where_text_stands
from redraft.engine.async_engine import AsyncEngine
from redraft.engine.request import Request
from redraft.errors import TOO_LONG, InputError, PromptError, about
from redraft.llm import LLM
from redraft.serve.faults import Fault
from redraft.serve.settings import ServeSettings
from redraft.text.placing import EncodedPrompt
from redraft.text.prompt import thought_open
from redraft.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Answers to write: `n` engine requests per prompt, prompt by prompt, within `timeout` seconds.

    tokenizer       of the answers
    reasoning_open  the prompt ends inside a thought, so the answer begins in one
    exact           white space at an answer's ends was asked for, or stands between it and its beginning
    """

    requests: tuple[Request, ...]
    n: int
    prompt_tokens: int
    timeout: float
    tokenizer: Tokenizer
    reasoning_open: bool = False
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Planner:
    """Turns prompts and settings into plans for one model, or for one of its adapters."""

    llm: LLM
    engine: AsyncEngine
    settings: ServeSettings

    @property
    def names(self) -> tuple[str, ...]:
        """What a request's `model` may be: a name of the model itself, or an adapter's."""
        return self.settings.names + self.llm.adapters

    def for_model(self, name: str) -> Self:
        """The planner of the model that a request names. Refuses one that is not served here."""
        if name in self.settings.names:
            return self
        if name not in self.llm.adapters:
            known = ", ".join(self.names)
            raise Fault(
                404, f"The model {name!r} is not served here; this server has {known}.", "model", "model_not_found"
            )
        return replace(self, llm=self.llm.with_adapter(name))

    def read_chat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = (), thinking: bool = False
    ) -> EncodedPrompt:
        """A conversation, within the server's limits."""
        with about("messages"):
            return self.checked(self.llm.read_chat(messages, tools=tools or None, thinking=thinking))

    def checked(self, prompt: EncodedPrompt) -> EncodedPrompt:
        """The same prompt, unless it has too many tokens."""
        self._check_length(len(prompt))
        return prompt

    def check_text(self, text: str, field: str | None = None) -> None:
        """Refuse a text that has more tokens than a prompt may; `field` is the one that it comes from alone."""
        with about(field):
            self._check_length(len(self.llm.tokenizer.encode(text, special=False)))

    def _check_length(self, tokens: int) -> None:
        most = self.settings.max_prompt
        if most is not None and tokens > most:
            sentence = f"The prompt is too long: it has {tokens} tokens; this server takes at most {most}."
            raise PromptError(sentence, code=TOO_LONG)

    def plan(
        self,
        prompts: Sequence[EncodedPrompt],
        *,
        given: Mapping[str, Any],
        wanted: Mapping[str, Any],
        n: int = 1,
        seed: int | None = None,
        temperature: float | None = None,
        timeout: float | None = None,
        drafts: bool = False,
    ) -> Plan:
        """`n` answers to each prompt. Without a seed every answer gets one of its own.

        `given` are fields of `GenerationSettings` and `preset`, `wanted` those of `redraft.constraints.build`.
        """
        settings = {name: value for name, value in given.items() if value is not None}
        asked = {name: value for name, value in wanted.items() if value is not None}
        limit = self.settings.limit(timeout)
        common = settings | asked | self.temperatures(settings, temperature) | {"timeout": limit, "drafts": drafts}
        requests: list[Request] = []
        for prompt in prompts:
            requests += self._answers(prompt, n, common | {"seed": _seed(seed, temperature)})
        return Plan(
            requests=tuple(requests),
            n=n,
            prompt_tokens=sum(map(len, prompts)),
            timeout=limit,
            tokenizer=self.llm.tokenizer,
            reasoning_open=thought_open(prompts[0].ids, self.llm.tokenizer),
            exact=prompts[0].begun or says_where_text_stands(asked),
        )

    def _answers(self, prompt: EncodedPrompt, n: int, common: Mapping[str, Any]) -> list[Request]:
        first = self.llm.request(prompt, request_id=self.engine.next_id(), **common)
        self.engine.rehearse(first)
        more = [self.engine.next_id() for _ in range(n - 1)]
        return [first, *first.siblings([first.request_id, *more])[1:]]

    def temperatures(self, given: Mapping[str, Any], temperature: float | None) -> dict[str, float]:
        """OpenAI's one temperature: a factor on the whole schedule. 0 leaves the schedule and fixes the seed."""
        if not temperature or temperature == 1:
            return {}
        if given.keys() & {"t_max", "t_min"}:
            raise Fault(400, "Give temperature, or t_max and t_min, but not both.", "temperature", "contradiction")
        base = resolve_settings(self.llm.defaults, preset=given.get("preset"))
        if base.t_max * temperature < LOWEST_T_MAX:
            least = LOWEST_T_MAX / base.t_max
            sentence = f"temperature is {temperature:g}; it must be 0 or at least {least:.3g}."
            raise Fault(400, sentence, "temperature", "invalid_value")
        return {"t_max": base.t_max * temperature, "t_min": base.t_min * temperature}


@contextmanager
def told_as(names: Mapping[str, str]) -> Iterator[None]:
    """Inside, the fields that refusals name are told by a request's own `names` for them."""
    try:
        yield
    except InputError as error:
        error.field = names.get(error.field or "", error.field)
        raise


def _seed(asked: int | None, temperature: float | None) -> int:
    if asked is not None:
        return asked
    return 0 if temperature == 0 else secrets.randbelow(2**31)

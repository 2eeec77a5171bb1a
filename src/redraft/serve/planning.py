"""Turns requests into work for the engine: prompt tokens, settings, constraint. Raises before any forward pass."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

from redraft.checks import MAX_NUMBER
from redraft.constraints.build import says_where_text_stands
from redraft.engine.async_engine import AsyncEngine
from redraft.engine.request import Request
from redraft.errors import TOO_LONG, InputError, PromptError, about, check_utf8
from redraft.llm import LLM
from redraft.serve.faults import Fault
from redraft.serve.settings import ServeSettings
from redraft.serve.shapes.chat import ChatRequest
from redraft.serve.shapes.messages import MessagesRequest
from redraft.serve.shapes.responses import ResponsesRequest
from redraft.settings import LOWEST_T_MAX, resolve_settings
from redraft.text.placing import EncodedPrompt
from redraft.text.prompt import thought_open
from redraft.text.tokenizer import Tokenizer

_LEAST_OF_TURN = 2
"""The marks around an empty turn, or an empty result of a tool."""
MOST_CALLS = 128
"""Calls in one message, as in OpenAI's API."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerPlan:
    """The answers to write: `n` engine requests per prompt, prompt by prompt, within `timeout` seconds.

    tokenizer       tokenizer of the answers
    reasoning_open  whether the prompt ends inside a thought, so that the answer begins in one
    exact           whether white space at the ends of an answer is kept: the request asked for it, or the answer
                    continues one that has begun
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
    """Turns prompts and settings into plans for one model or one of its adapters."""

    llm: LLM
    engine: AsyncEngine
    settings: ServeSettings

    @property
    def names(self) -> tuple[str, ...]:
        """The names a request's `model` may have: those of the model itself and of its adapters."""
        return self.settings.names + self.llm.adapters

    def for_model(self, name: str) -> Self:
        """Return the planner for the model that a request names; refuse a model that is not served here."""
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
        """Read a conversation, within the server's limits."""
        with about("messages"):
            return self.checked(self.read_long_chat(messages, tools=tools, thinking=thinking))

    def read_long_chat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = (), thinking: bool = False
    ) -> EncodedPrompt:
        """Read a conversation whose tokens are only to be counted, so there may be too many of them."""
        with about("messages"):
            self.check_count(messages)
            return self.llm.read_chat(messages, tools=tools or None, thinking=thinking)

    def checked(self, prompt: EncodedPrompt) -> EncodedPrompt:
        """Return the same prompt, or refuse it if it has too many tokens."""
        self._check_length(len(prompt))
        return prompt

    def check_count(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Refuse so many messages that no prompt can hold their turns, and a message with too many calls.

        Chat templates take quadratic time for both: they look at all later messages, or at all calls for each result.
        """
        most = min(self.settings.max_prompt or MAX_NUMBER, self.llm.model.config.max_position_embeddings)
        # Only the assistant's messages may become one turn with others.
        least = _LEAST_OF_TURN * sum(message.get("role") != "assistant" for message in messages)
        if least > most:
            sentence = f"The prompt is too long: its {len(messages)} messages have at least {least} tokens; "
            raise PromptError(f"{sentence}this server takes at most {most}.", code=TOO_LONG)
        for index, message in enumerate(messages):
            if (calls := len(message.get("tool_calls") or ())) > MOST_CALLS:
                place = f"messages[{index}]"
                raise PromptError(f"{place} has {calls} calls; a message may have at most {MOST_CALLS}.", place)

    def check_text(self, texts: Mapping[str, str]) -> None:
        """Refuse texts, by the request's fields, that are not Unicode or have more tokens than a prompt may have."""
        for field, text in texts.items():
            check_utf8(text, field)
        with about(next(iter(texts)) if len(texts) == 1 else None):
            self._check_length(len(self.llm.tokenizer.encode("".join(texts.values()), special=False)))

    def _check_length(self, tokens: int) -> None:
        most = self.settings.max_prompt
        if most is not None and tokens > most:
            sentence = f"The prompt is too long: it has {tokens} tokens; this server takes at most {most}."
            raise PromptError(sentence, code=TOO_LONG)

    def plan(
        self,
        prompts: Sequence[EncodedPrompt],
        *,
        places: Sequence[str] = ("prompt",),
        settings: Mapping[str, Any],
        constraints: Mapping[str, Any],
        n: int = 1,
        seed: int | None = None,
        temperature: float | None = None,
        timeout: float | None = None,
        drafts: bool = False,
    ) -> AnswerPlan:
        """Plan `n` answers to each prompt. Without a seed, every answer gets its own.

        `places` are what errors call the prompts, one by one. `settings` holds fields of `GenerationSettings` and
        `preset`, `constraints` arguments of `redraft.constraints.build`; None stands for what was not given.
        """
        settings = {name: value for name, value in settings.items() if value is not None}
        constraints = {name: value for name, value in constraints.items() if value is not None}
        limit = self.settings.limit(timeout)
        common = (
            settings | constraints | self.temperatures(settings, temperature) | {"timeout": limit, "drafts": drafts}
        )
        requests: list[Request] = []
        for prompt, place in zip(prompts, places, strict=True):
            with rename_fields(lambda place=place: {"prompt": place}):
                requests += self._answers(prompt, n, common | {"seed": _seed(seed, temperature)})
        return AnswerPlan(
            requests=tuple(requests),
            n=n,
            prompt_tokens=sum(map(len, prompts)),
            timeout=limit,
            tokenizer=self.llm.tokenizer,
            reasoning_open=thought_open(prompts[0].ids, self.llm.tokenizer),
            exact=prompts[0].begun or says_where_text_stands(constraints),
        )

    def _answers(self, prompt: EncodedPrompt, n: int, common: Mapping[str, Any]) -> list[Request]:
        first = self.llm.request(prompt, request_id=self.engine.next_id(), **common)
        self.engine.rehearse(first)
        more = [self.engine.next_id() for _ in range(n - 1)]
        return [first, *first.siblings([first.request_id, *more])[1:]]

    def temperatures(self, settings: Mapping[str, Any], temperature: float | None) -> dict[str, float]:
        """Apply OpenAI's one temperature as a factor on the whole schedule. 0 keeps the schedule and fixes the seed."""
        if not temperature or temperature == 1:
            return {}
        if settings.keys() & {"t_max", "t_min"}:
            raise Fault(400, "Give temperature, or t_max and t_min, but not both.", "temperature", "contradiction")
        base = resolve_settings(self.llm.defaults, preset=settings.get("preset"))
        if base.t_max * temperature < LOWEST_T_MAX:
            least = LOWEST_T_MAX / base.t_max
            sentence = f"temperature is {temperature:g}; it must be 0 or at least {least:.3g}."
            raise Fault(400, sentence, "temperature", "invalid_value")
        return {"t_max": base.t_max * temperature, "t_min": base.t_min * temperature}


def plan_conversation(
    planner: Planner,
    body: ChatRequest | MessagesRequest | ResponsesRequest,
    *,
    n: int = 1,
    drafts: bool = False,
) -> AnswerPlan:
    """Plan `n` answers to a conversation, with or without their drafts; raises before any compute."""
    planner = planner.for_model(body.model)
    with rename_fields(body.names):
        prompt = planner.read_chat(body.chat(), tools=body.declared_tools(), thinking=body.wants_thinking)
        constraints = body.constraints() | body.tool_constraint() | body.format_constraint()
        return planner.plan(
            [prompt],
            settings=body.settings() | body.limits(planner.llm.room(len(prompt), body.canvas_length)),
            constraints=constraints | {"thinking": body.wants_thinking},
            n=n,
            seed=body.seed,
            temperature=body.temperature,
            timeout=body.timeout,
            drafts=drafts,
        )


@contextmanager
def rename_fields(names: Callable[[], Mapping[str, str]]) -> Iterator[None]:
    """Rename the field of errors raised inside, also at the start of their message, to what the request calls it.

    `names` returns the request's own names of fields, or of places inside them such as `messages[1].content`; the
    longest that fits counts.
    """
    try:
        yield
    except InputError as error:
        known, place = names(), error.field or ""
        fitting = [name for name in known if place == name or place.startswith((f"{name}.", f"{name}["))]
        if fitting:
            name = max(fitting, key=len)
            error.field = known[name] + place.removeprefix(name)
            if (sentence := str(error)).startswith(place):
                error.args = (error.field + sentence.removeprefix(place),)
        raise


def _seed(seed: int | None, temperature: float | None) -> int:
    if seed is not None:
        return seed
    return 0 if temperature == 0 else secrets.randbelow(2**31)

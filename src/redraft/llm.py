"""The front door: text in, text out, for one loaded model."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redraft.config import MAX_CANVAS, MIN_CANVAS, GenerationSettings, resolve_settings, settings_from_dict
from redraft.constraints.pins import Allowed
from redraft.diffusion.autoregression import Answer, CanvasTokens, Constrain, write_answers
from redraft.diffusion.records import Commit, DenoiseStep, FinishReason, Record
from redraft.errors import CheckpointError, PromptError, SettingError
from redraft.filling import FillResult, fill
from redraft.model import Transformer
from redraft.model.weights import load_model, resolve_folder
from redraft.text.template import ChatTemplate
from redraft.text.tokenizer import Tokenizer
from redraft.text.tools import ToolCall, parse_reply

Message = Mapping[str, Any]
Prompt = str | Sequence[Message] | Sequence[int]

EMPTY_THOUGHT = "<|channel>thought\n<channel|>"
"""What a model that was told not to think may still write first; never part of the answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stats:
    """What an answer cost. `steps` has one entry per canvas; forwards are its sum plus a commit between canvases."""

    canvases: int
    steps: tuple[int, ...]
    forwards: int
    tokens: int
    seconds: float

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / self.forwards

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

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
class GenerateResult:
    """An answer: its text, its token ids (end-of-text excluded), why it ended, and what it cost."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatReply:
    """A chat answer taken apart: visible content, reasoning if the model thought, and tool calls."""

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    result: GenerateResult


@dataclass(slots=True)
class _Transcript:
    """The text of one answer as it grows."""

    answer: Answer
    shown: str = ""
    told: int = 0
    """Tokens that commits have reported."""
    started: float = field(default_factory=time.perf_counter)


class LLM:
    """A model with its tokenizer, chat template and generation defaults. Made by `redraft.load`."""

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        path: Path,
        defaults: GenerationSettings | None = None,
        eos_ids: tuple[int, ...] | None = None,
    ) -> None:
        self.model, self.tokenizer, self.template, self.path = model, tokenizer, template, path
        self.defaults = defaults or GenerationSettings()
        self.eos_ids = eos_ids or model.config.eos_token_id

    def generate(self, prompt: Prompt, *, raw: bool = False, **settings: Any) -> GenerateResult:
        """Answer one prompt.

        A `str` is one user message, a list of messages is a chat, a list of ints is token ids as they are, and
        `raw=True` continues a `str` as plain text. Settings are the fields of `GenerationSettings` and `preset`.
        Raises `PromptError` or `SettingError` before any compute.
        """
        return self.generate_batch([prompt], raw=raw, **settings)[0]

    def generate_batch(
        self, prompts: Sequence[Prompt], *, raw: bool = False, seeds: Sequence[int] | None = None, **settings: Any
    ) -> list[GenerateResult]:
        """Answer several prompts together. Each answer is the one its prompt and seed give alone.

        Every prompt uses `seed`, or its own of `seeds`.
        """
        transcripts: list[_Transcript] = []
        for _ in self._records(prompts, raw, seeds, settings, transcripts):
            pass
        return [_result(transcript) for transcript in transcripts]

    def stream(self, prompt: Prompt, *, raw: bool = False, **settings: Any) -> Iterator[Record]:
        """The same as `generate`, step by step: each canvas' `DenoiseStep`s, then its `Commit` with the new text."""
        return self._records([prompt], raw, None, settings, [])

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking: bool = False,
        **settings: Any,
    ) -> ChatReply:
        """Answer a conversation; tool calls and reasoning come back as structures."""
        ids = self.encode_chat(messages, tools=tools, thinking=thinking)
        result = self.generate(ids, **settings)
        reply = parse_reply(result.text)
        return ChatReply(
            content=reply.content, reasoning=reply.reasoning or "", tool_calls=tuple(reply.tool_calls), result=result
        )

    def fill(self, prefix: str, suffix: str, **settings: Any) -> FillResult:
        """The text that belongs between `prefix` and `suffix`, seeing both. See `redraft.filling.fill`."""
        return fill(self.model, self.tokenizer, prefix, suffix, self.defaults, **settings)

    def encode_chat(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None, thinking: bool = False
    ) -> list[int]:
        """Token ids of a conversation up to the point where the model answers."""
        if self.template is None:
            raise SettingError("This model folder has no chat template; pass raw=True or token ids.")
        if not messages:
            raise PromptError("The list of messages is empty.")
        text = self.template.render(list(messages), tools=list(tools) if tools else None, enable_thinking=thinking)
        return self.tokenizer.encode(text)

    def prompt_ids(self, prompt: Prompt, *, raw: bool = False) -> list[int]:
        """Token ids of any kind of prompt; see `generate`. Raises `PromptError` if it is empty or malformed."""
        if isinstance(prompt, str):
            if not prompt:
                raise PromptError("The prompt is empty.")
            if raw:
                return [self.tokenizer.bos_id, *self.tokenizer.encode(prompt, special=False)]
            return self.encode_chat([{"role": "user", "content": prompt}])
        if raw:
            raise PromptError("raw=True takes a str.")
        if not isinstance(prompt, Sequence) or not len(prompt):
            raise PromptError("The prompt must be a non-empty str, list of messages or list of token ids.")
        if all(isinstance(item, Mapping) for item in prompt):
            return self.encode_chat(prompt)  # type: ignore[arg-type]
        self.tokenizer.check_ids(prompt)  # type: ignore[arg-type]
        return [int(token) for token in prompt]  # type: ignore[arg-type]

    def _records(
        self,
        prompts: Sequence[Prompt],
        raw: bool,
        seeds: Sequence[int] | None,
        given: dict[str, Any],
        transcripts: list[_Transcript],
    ) -> Iterator[Record]:
        """Validate at once, then return the lazy stream of records; fills `transcripts` in the prompts' order."""
        settings = resolve_settings(self.defaults, **given)
        length = settings.canvas_length or min(max(self.model.config.canvas_length, MIN_CANVAS), MAX_CANVAS)
        ids = [self.prompt_ids(prompt, raw=raw) for prompt in prompts]
        settings = self._fit(settings, max(map(len, ids)), length, explicit=given.get("max_tokens") is not None)
        seeds = [settings.seed] * len(ids) if seeds is None else list(seeds)
        if len(seeds) != len(ids):
            raise SettingError(f"There are {len(seeds)} seeds for {len(ids)} prompts.")
        constrain = self._never_empty if settings.forbid_empty else None
        transcripts += [
            _Transcript(Answer(request_id=i, prompt=prompt, seed=seed, constrain=constrain))
            for i, (prompt, seed) in enumerate(zip(ids, seeds, strict=True))
        ]
        return self._write(transcripts, settings, length)

    def _write(self, transcripts: list[_Transcript], settings: GenerationSettings, length: int) -> Iterator[Record]:
        answers = [transcript.answer for transcript in transcripts]
        for event in write_answers(self.model, answers, settings, length=length, eos_ids=self.eos_ids):
            if isinstance(event, DenoiseStep):
                yield event
            else:
                yield self._commit(event, transcripts[event.answer.request_id], settings.stop)

    def _commit(self, event: CanvasTokens, transcript: _Transcript, stop: tuple[str, ...]) -> Commit:
        """Turn a canvas' tokens into the text they add, and end the answer at a stop string."""
        answer = transcript.answer
        text = whole = self._text(answer.tokens, final=answer.finish_reason is not None)
        if (cut := _first_stop(whole, stop)) is not None:
            text, answer.finish_reason = whole[:cut], "stop"
        elif answer.finish_reason is None:
            text = _without_partial_stop(whole, stop)
        # Tokens are told with their text: those that may begin a stop string wait for the next canvas as well.
        told = len(answer.tokens) if text == whole else max(self._covering(answer.tokens, text), transcript.told)
        if answer.finish_reason is not None:
            del answer.tokens[told:]
        new, token_ids = text[len(transcript.shown) :], tuple(answer.tokens[transcript.told : told])
        transcript.shown, transcript.told = text, told
        return Commit(
            request_id=answer.request_id,
            canvas_index=event.canvas_index,
            token_ids=token_ids,
            text=new,
            finish_reason=answer.finish_reason,
        )

    def _text(self, tokens: list[int], *, final: bool) -> str:
        """The answer's text; a character that is not complete yet waits for the next canvas."""
        text = self.tokenizer.decode(tokens)
        if not final:
            text = text.rstrip("\ufffd")
        return text.removeprefix(EMPTY_THOUGHT)

    def _covering(self, tokens: list[int], text: str) -> int:
        """How many of the first tokens it takes to spell all of `text`."""
        return next(n for n in range(len(tokens) + 1) if len(self._text(tokens[:n], final=False)) >= len(text))

    def _fit(self, settings: GenerationSettings, prompt: int, length: int, *, explicit: bool) -> GenerationSettings:
        """Check that the longest prompt and its canvases fit the context; a default max_tokens shrinks to fit."""
        context = self.model.config.max_position_embeddings
        room = (context - prompt) // length * length
        if room <= 0:
            raise PromptError(
                f"The prompt has {prompt} tokens; with a canvas of {length} it must have at most {context - length}."
            )
        if settings.max_tokens <= room:
            return settings
        if explicit:
            raise SettingError(
                f"max_tokens is {settings.max_tokens}; behind a prompt of {prompt} tokens the context of {context} "
                f"has room for {room}."
            )
        return resolve_settings(settings, max_tokens=room)

    @property
    def _never_empty(self) -> Constrain:
        return lambda canvas_index: Allowed(forbidden={0: self.eos_ids}) if canvas_index == 0 else None


def _first_stop(text: str, stop: tuple[str, ...]) -> int | None:
    found = [at for word in stop if (at := text.find(word)) >= 0]
    return min(found) if found else None


def _without_partial_stop(text: str, stop: tuple[str, ...]) -> str:
    """Hold back an ending that may turn out to be the beginning of a stop string."""
    held = max((n for word in stop for n in range(1, len(word)) if text.endswith(word[:n])), default=0)
    return text[: len(text) - held]


def _result(transcript: _Transcript) -> GenerateResult:
    answer = transcript.answer
    assert answer.finish_reason is not None
    stats = Stats(
        canvases=len(answer.steps),
        steps=tuple(answer.steps),
        forwards=sum(answer.steps) + len(answer.steps) - 1,
        tokens=len(answer.tokens),
        seconds=time.perf_counter() - transcript.started,
    )
    return GenerateResult(
        text=transcript.shown, token_ids=tuple(answer.tokens), finish_reason=answer.finish_reason, stats=stats
    )


def load(
    model: str | Path = "tiny", *, device: str = "auto", dtype: str = "auto", quantization: str | None = None
) -> LLM:
    """Load a model: "tiny" (embedded), a folder, or a hub id such as "google/diffusiongemma-26B-A4B-it".

    device  "auto", "cpu", "cuda", "cuda:1" ...      dtype  "auto", "bfloat16", "float32"
    Raises `CheckpointError`, `HubError` or `SettingError` with one sentence each.
    """
    if quantization is not None:
        raise SettingError(f"quantization is {quantization!r}; this version runs bfloat16 and float32 weights only.")
    folder = resolve_folder(str(model))
    network = load_model(folder, device=device, dtype=dtype)
    generation = _read_json(folder / "generation_config.json")
    return LLM(
        network,
        Tokenizer.from_folder(folder),
        _template(folder),
        path=folder,
        defaults=settings_from_dict(generation),
        eos_ids=_eos_ids(generation, network.config.eos_token_id),
    )


def _template(folder: Path) -> ChatTemplate | None:
    try:
        return ChatTemplate.from_folder(folder)
    except CheckpointError:
        return None


def _read_json(file: Path) -> dict[str, Any]:
    """A JSON file's content; empty if there is none."""
    if not file.is_file():
        return {}
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{file.name} is not valid JSON: {error}.") from error


def _eos_ids(generation: Mapping[str, Any], fallback: tuple[int, ...]) -> tuple[int, ...]:
    eos = generation.get("eos_token_id")
    if eos is None:
        return fallback
    return tuple(eos) if isinstance(eos, list) else (eos,)

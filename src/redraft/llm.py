"""The main API: text in, text out, for one loaded model."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self, Unpack, overload

from redraft.checks import check_names, plain, require_type
from redraft.constraints.build import CALLER_KEYWORDS, NAMES, build, says_where_text_stands
from redraft.deciding import Choices, Decision, Question, decide
from redraft.diffusion.constraint import Constraint
from redraft.editing import EditResult, NextEdit, RecentEdit, edit, next_edit
from redraft.engine.canvas_lengths import canvas_positions, tokens_in
from redraft.engine.engine import Engine
from redraft.engine.engines import Engines
from redraft.engine.request import Event, Finished, Request
from redraft.engine.result import AnswerStream, ChatReply, GenerateResult, result_of
from redraft.engine.settings import EngineSettings
from redraft.errors import TOO_LONG, InputError, PromptError, SettingError, about, check_utf8
from redraft.filling import FillResult, fill
from redraft.kernels.triton.rehearsal import rehearse
from redraft.keywords import AnswerKeywords, ChatKeywords, DecideKeywords, EditKeywords, FillKeywords
from redraft.model import Model
from redraft.model.adapters import adapter_for
from redraft.model.checkpoint import Checkpoint
from redraft.model.inference import loaded_with
from redraft.model.packed.transformer import PackedTransformer
from redraft.scoring import Score, Text, score_texts
from redraft.settings import MIN_CANVAS, SETTINGS, GenerationSettings, resolve_settings
from redraft.text.marks import Marker
from redraft.text.placing import EncodedPrompt
from redraft.text.prompt import thought_open
from redraft.text.reading import Message, PromptReader, VisionSettings
from redraft.text.reply import read_reply
from redraft.text.template import ChatTemplate
from redraft.text.tokenizer import Tokenizer

Prompt = str | Sequence[Message] | Sequence[int] | EncodedPrompt


class LLM:
    """A model with its tokenizer, chat template and generation defaults. Made by `redraft.load`.

    `generate`, `generate_batch`, `stream` and `chat` may be called from several threads; their answers share forwards,
    and Ctrl-C ends only those of the main thread. From asyncio, await `asyncio.to_thread(llm.generate, ...)`, or use an
    `AsyncEngine` on a `new_engine`, where a request ends when its task is cancelled: see docs/usage.md. A process
    forked after loading lacks the threads that compute and hangs at its first forward; load the model there.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        path: Path,
        defaults: GenerationSettings | None = None,
        eos_ids: tuple[int, ...] | None = None,
        settings: EngineSettings | None = None,
        adapted: Mapping[str, Model] | None = None,
    ) -> None:
        """`adapted` are copies of `model` with an adapter each, by the names that `with_adapter` takes."""
        self.tokenizer, self.template, self.path = tokenizer, template, path
        self.defaults = defaults or GenerationSettings()
        self.eos_ids = eos_ids or model.config.eos_token_id
        self._adapter: str | None = None
        self._ids = itertools.count(-1, -1)  # a caller's own are counted up
        self._engines = Engines(model, tokenizer, eos_ids=self.eos_ids, settings=settings or EngineSettings())
        for name, other in (adapted or {}).items():
            self._engines.add(name, other)

    def __repr__(self) -> str:
        """Which model this is, where and in which numbers it runs, and the adapter in use."""
        adapter = "" if self.adapter is None else f", adapter={self.adapter!r}"
        return f"LLM({str(self.path)!r}, device='{self.model.device}', dtype={self.model.dtype}{adapter})"

    def __copy__(self) -> Self:
        """A view: it shares the model, the engine and everything else, but can use another adapter."""
        view = object.__new__(type(self))
        view.__dict__ |= self.__dict__
        return view

    def __reduce__(self) -> NoReturn:
        """Raise `TypeError` for pickle and `copy.deepcopy`."""
        raise TypeError("An LLM cannot be pickled or copied with its weights; call redraft.load where it is needed.")

    @property
    def model(self) -> Model:
        """The model that answers, with the adapter in use folded in."""
        return self._engines.models[self._adapter]

    @property
    def adapter(self) -> str | None:
        """Name of the adapter in use, see `with_adapter`; None for the model itself."""
        return self._adapter

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names for `with_adapter`."""
        return self._engines.adapters

    def generate(self, prompt: Prompt, *, raw: bool = False, **settings: Unpack[AnswerKeywords]) -> GenerateResult:
        """Answer one prompt.

        A `str` is one user message, a list of messages is a chat, a list of ints is token ids as they are, and
        `raw=True` continues a `str` as plain text. If the last message is from the assistant, the answer continues it.
        Messages may hold images, see `redraft.text.images`. Settings are the fields of `GenerationSettings` and
        `preset`; `choices`, `regex`, `json_schema`, `template`, `pins`, `must_include`, `forbidden` and the other
        keywords of `redraft.constraints.build` say what the answer must be. `tools` and `thinking` are passed on to
        the model too, unless the prompt is ids or raw.
        Raises `PromptError`, `SettingError` or `ConstraintError` before any compute.
        """
        return self._answers([prompt], raw, _settings_of_each(1, settings))[0]

    def generate_batch(
        self,
        prompts: Iterable[Prompt],
        *,
        raw: bool = False,
        seeds: Sequence[int] | None = None,
        each: Sequence[Mapping[str, Any]] | None = None,
        **settings: Unpack[AnswerKeywords],
    ) -> list[GenerateResult]:
        """Answer several prompts together. Each answer is the same as if its prompt and seed were run alone.

        Every prompt uses `seed`, or its own entry of `seeds`; only one of them may be given. `each` has further
        settings for every prompt alone, such as its `json_schema`; they replace those for all.
        """
        if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Iterable):
            raise PromptError("The prompts must be a list of prompts.", "prompts")
        prompts = list(prompts)
        return self._answers(prompts, raw, _settings_of_each(len(prompts), settings, seeds, each))

    def stream(self, prompt: Prompt, *, raw: bool = False, **settings: Unpack[AnswerKeywords]) -> AnswerStream:
        """The same as `generate`, step by step: each canvas' `DenoiseStep`s, then its `Commit` with the new text."""
        return AnswerStream(self._events([prompt], raw, _settings_of_each(1, settings), drafts=True))

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        thinking: bool = False,
        **settings: Unpack[ChatKeywords],
    ) -> ChatReply:
        """Answer a conversation; tool calls and reasoning come back as structures.

        With `tools`, calls obey their declarations as far as possible, see docs/constraints.md. `tool_choice` is
        "auto" (the default), "none", "required" or the name of the tool to call.
        """
        prompt = self.read_chat(messages, tools=tools, thinking=thinking)
        result = self.generate(prompt, tools=tools, tool_choice=tool_choice, thinking=thinking, **settings)
        text = Marker(self.tokenizer).mark(result.text, result.token_ids)
        exact = prompt.begun or says_where_text_stands(settings)
        reply = read_reply(text, reasoning_open=thought_open(prompt.ids, self.tokenizer), exact=exact)
        return ChatReply(
            content=reply.content, reasoning=reply.reasoning or "", tool_calls=tuple(reply.tool_calls), result=result
        )

    def fill(
        self, text: str | Sequence[str], suffix: str | None = None, **settings: Unpack[FillKeywords]
    ) -> FillResult:
        """The text that belongs in a hole, written with both sides in view.

        `fill(prefix, suffix)` has one hole; `fill(text)` fills every `<|fill|>` of a text, and a list of texts has a
        hole between each pair. `max_tokens` limits the text of a hole, `steps` its denoising, and `choices`, `regex`,
        `json_schema` ... say what it must be. See `redraft.filling`.
        """
        return fill(self, text, suffix, **settings)

    def edit(
        self, text: str, span: tuple[int, int], instruction: str | None = None, **settings: Unpack[EditKeywords]
    ) -> EditResult:
        """The text with only its characters `span` changed, following an instruction.

        Without an instruction, mistakes are fixed. `settings` are those of `generate`, with its constraints applied to
        the new span, plus `strength`, `on_record` and `on_progress`, and less those that belong to an answer (`stop`,
        `logprobs` ...).
        See `redraft.editing.edit`.
        """
        return edit(self, text, span, instruction, **settings)

    def next_edit(
        self, text: str, cursor: int, recent_edits: Sequence[RecentEdit], **settings: Unpack[EditKeywords]
    ) -> NextEdit | None:
        """The edit near the cursor that follows from recent (old, new) edits; None if nothing needs changing."""
        return next_edit(self, text, cursor, recent_edits, **settings)

    @overload
    def decide(  # type: ignore[overload-overlap]  # a str is a sequence of str as well, but one question
        self, question: Question, choices: Choices, **settings: Unpack[DecideKeywords]
    ) -> Decision: ...
    @overload
    def decide(
        self, question: Sequence[Question], choices: Choices, **settings: Unpack[DecideKeywords]
    ) -> list[Decision]: ...
    def decide(
        self, question: Question | Sequence[Question], choices: Choices, **settings: Unpack[DecideKeywords]
    ) -> Decision | list[Decision]:
        """Which of the choices, and how sure, for the cost of one forward pass; several questions give a list.

        A question is a `str`, a chat or token ids; `choices` a list, or lists by the slot names of `template`.
        See `redraft.deciding.decide`.
        """
        return decide(self, question, choices, **settings)

    def score(self, text: Text, prompt: Prompt | None = None, *, raw: bool = False, top: int = 0) -> Score:
        """How likely a text is after a prompt, by one causal pass; nothing is written.

        A `str` is plain text, encoded by itself; a list of ints is token ids. `prompt` and `raw` are those of
        `generate`; without a prompt the text follows `<bos>`. `top` asks for the most likely tokens in each place, up
        to 20. What the number means is said in docs/usage.md. Raises `PromptError` and `SettingError` before any
        compute.
        """
        return score_texts(self, [text], [prompt], raw=raw, top=top)[0]

    def score_batch(
        self, texts: Iterable[Text], prompts: Iterable[Prompt] | None = None, *, raw: bool = False, top: int = 0
    ) -> list[Score]:
        """The scores of several texts, each after its own prompt. Equal prompts are encoded once."""
        return score_texts(self, texts, prompts, raw=raw, top=top)

    def add_adapter(self, name: str, folder: str | Path) -> None:
        """Load a LoRA adapter under a name.

        It is applied on top of any adapter folded in at load time. The weights it changes are stored a second time.
        Raises `CheckpointError` if it is for another model, and `SettingError` for a name that is empty or taken and if
        a GPU has too little free memory for those weights.
        """
        with about("name"):
            check_adapter_name(name)
            if name in self.adapters:
                raise SettingError(f"There is already an adapter {name!r}.")
        checkpoint = Checkpoint(self.path, vision=self.model.vision is not None)
        with about("folder"):
            adapter = adapter_for(checkpoint, folder)
        self._engines.add(name, loaded_with(self._engines.models[None], checkpoint, adapter))

    def with_adapter(self, name: str | None) -> Self:
        """A view of this LLM with an adapter, or without one for None; it shares the engine and everything else.

        Raises `SettingError` for an unknown name.
        """
        if not isinstance(name, str | None) or name not in self._engines.models:
            raise SettingError(f"There is no adapter {name!r}; there are {', '.join(self.adapters) or 'none'}.", "name")
        view = copy.copy(self)
        view._adapter = name
        return view

    # What follows is for those who build on `LLM`: servers, evaluations, benchmarks, and callers of its engine.

    @property
    def engine(self) -> Engine:
        """The engine behind `generate` and `stream`, made on first use and rebuilt when the model has moved."""
        return self._engines.shared(self.adapter)

    def new_engine(self, settings: EngineSettings | None = None) -> Engine:
        """A separate engine on this model and its adapters, with its own pages; servers run one in a thread.

        Without `settings` it uses those that the LLM was loaded with.
        """
        return self._engines.new(settings)

    def request(
        self,
        prompt: Prompt,
        *,
        request_id: int = 0,
        raw: bool = False,
        timeout: float | None = None,
        drafts: bool = True,
        constraint: Constraint | None = None,
        **settings: Unpack[AnswerKeywords],
    ) -> Request:
        """What `generate` asks its engine for: the prompt rendered and encoded, the settings resolved and checked.

        Raises `PromptError`, `SettingError` or `ConstraintError`.
        """
        if constraint is not None and not hasattr(constraint, "begin"):
            raise SettingError(
                f"constraint is {constraint!r}; it must be what `redraft.constraints.build` returns.", "constraint"
            )
        check_names(settings, (*SETTINGS, *CALLER_KEYWORDS), NAMES)
        keywords = {name: settings.pop(name) for name in NAMES if name in settings}
        resolved = resolve_settings(self.defaults, **settings)
        resolved.check_vocabulary(self.model.config.vocab_size)
        chat = {"tools": keywords.get("tools"), "thinking": bool(keywords.get("thinking", False))}
        read = self._reader.prompt(prompt, raw=raw, **chat)
        fitting = self._fit(resolved, len(read), explicit=settings.get("max_tokens") is not None)
        if any(value is not None for value in keywords.values()):  # compiled last, as it may take seconds
            constraint = self._constraint(keywords, fitting, read.ids, constraint)
        return Request(
            request_id=request_id,
            prompt=read.ids,
            chat=read.chat,
            images=read.images,
            settings=fitting,
            constraint=constraint,
            adapter=self.adapter,
            timeout=timeout,
            drafts=drafts,
        )

    def read_prompt(self, prompt: Prompt, *, raw: bool = False) -> EncodedPrompt:
        """Any kind of prompt as the model reads it; see `generate`. Raises `PromptError` for an empty or wrong one."""
        return self._reader.prompt(prompt, raw=raw)

    def prompt_ids(self, prompt: Prompt, *, raw: bool = False) -> list[int]:
        """Token ids of any kind of prompt without images; see `read_prompt`."""
        return self.read_prompt(prompt, raw=raw).ids_alone()

    def read_chat(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None, thinking: bool = False
    ) -> EncodedPrompt:
        """A conversation as the model reads it, images included, up to the point where the model answers.

        Special strings inside a message, such as `<turn|>`, are plain text; see `redraft.text.prompt`. If the last
        message is the assistant's, the answer continues it.
        """
        return self._reader.chat(messages, tools=tools, thinking=thinking)

    def encode_chat(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None, thinking: bool = False
    ) -> list[int]:
        """Token ids of a conversation without images; see `read_chat`."""
        return self.read_chat(messages, tools=tools, thinking=thinking).ids_alone()

    def decoded(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The same messages with every image read, decoded and cut into patches, for `read_chat` to take as they are.

        Whoever reads a conversation twice, or in another thread than the one that answers, decodes once. Raises
        `PromptError` for an image that cannot be read, or if the model sees none.
        """
        return self._reader.decoded(messages)

    def room(self, prompt: int, canvas_length: int | None = None) -> int:
        """Tokens of the whole canvases that fit after a prompt of that many tokens; 0 or less if none fits.

        With `fit_canvas` (preset `fast`) an answer may be longer by a last canvas that is shorter.
        """
        prompt, length = plain(prompt), plain(canvas_length or self._engines.canvas_length)
        require_type("prompt", prompt, int)
        require_type("canvas_length", length, int)
        return tokens_in(self.model.config.max_position_embeddings - prompt, length)

    def rehearse(self) -> None:
        """Compile the GPU kernels that the first fill, edit and decision would wait for; any thread may call it.

        Nothing is to be done on a CPU. The engine's own kernels are compiled by its runner's `warm_up`.
        """
        if isinstance(self.model, PackedTransformer) and self.model.device.type == "cuda":
            rehearse(partial(_small_calls, self))

    @property
    def _reader(self) -> PromptReader:
        vision = self.model.vision
        config = self.model.config
        most = config.max_position_embeddings
        vision_settings = (
            None if vision is None else VisionSettings(grid=vision.grid, marks=config.image_marks, context=most)
        )
        return PromptReader(self.tokenizer, self.template, vision_settings)

    def _constraint(
        self, keywords: dict[str, Any], settings: GenerationSettings, ids: Sequence[int], custom: Constraint | None
    ) -> Constraint | None:
        """The constraint that the keywords ask for, unless the caller brings a `custom` one."""
        named = {name: value for name, value in keywords.items() if value is not None}
        defaults: dict[str, Any] = {
            "allow_empty": not settings.forbid_empty,
            "thought_open": thought_open(ids, self.tokenizer),
        }
        constraint = build(self.tokenizer, eos_ids=self.eos_ids, **(defaults | named))
        if constraint is not None and custom is not None:
            raise SettingError(f"{next(iter(named))} and constraint are both given; use one of them.")
        return constraint or custom

    def _answers(
        self, prompts: Sequence[Prompt], raw: bool, settings: Sequence[Mapping[str, Any]]
    ) -> list[GenerateResult]:
        """The answers to several prompts, each with its own settings."""
        ends = self._events(prompts, raw, settings, drafts=False)
        finished = {event.request_id: event for event in ends if isinstance(event, Finished)}
        return [result_of(finished[i]) for i in range(len(finished))]

    def _events(
        self,
        prompts: Sequence[Prompt],
        raw: bool,
        settings: Sequence[Mapping[str, Any]],
        *,
        drafts: bool,
    ) -> Iterator[Event]:
        """Validate right away, then return the lazy stream of events, whose `request_id` is the prompt's index."""
        requests = []
        for i, (prompt, keywords) in enumerate(zip(prompts, settings, strict=True)):
            try:
                requests.append(self.request(prompt, request_id=next(self._ids), raw=raw, drafts=drafts, **keywords))
            except InputError as error:
                if len(prompts) > 1:
                    error.args = (f"prompts[{i}]: {error}",)
                raise
        index_of = {request.request_id: i for i, request in enumerate(requests)}
        events = self.engine.answer(requests)
        return (dataclasses.replace(event, request_id=index_of[event.request_id]) for event in events)

    def _fit(self, settings: GenerationSettings, prompt_tokens: int, *, explicit: bool) -> GenerationSettings:
        """Check that the prompt and its canvases fit the context; a default max_tokens shrinks to fit."""
        context = self.model.config.max_position_embeddings
        length = settings.canvas_length or self._engines.canvas_length
        if prompt_tokens + canvas_positions(settings, length) <= context:
            return settings
        room = tokens_in(context - prompt_tokens, length, fit_canvas=settings.fit_canvas)
        if length >= context:
            sentence = f"A canvas of {length} tokens leaves no room for a prompt in a context of {context}."
            raise SettingError(sentence, "canvas_length")
        if room <= 0:
            shortest = min(length, MIN_CANVAS) if settings.fit_canvas else length
            raise PromptError(
                f"The prompt is too long: it has {prompt_tokens} tokens; with a canvas of {shortest} it must have at "
                f"most {context - shortest}.",
                "prompt",
                code=TOO_LONG,
            )
        if explicit:
            raise SettingError(
                f"max_tokens is {settings.max_tokens}, but after a prompt of {prompt_tokens} tokens the context of "
                f"{context} has room for only {room}.",
                "max_tokens",
                code=TOO_LONG,
            )
        return resolve_settings(settings, max_tokens=room)


def _settings_of_each(
    count: int,
    shared: Mapping[str, Any],
    seeds: Sequence[int] | None = None,
    each: Sequence[Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """The settings of each of `count` prompts. Raises `SettingError`."""
    _check_each(count, seeds, each)
    if seeds is not None and shared.get("seed") is not None:
        raise SettingError("seed and seeds are both given; use one of them.", "seed")
    own_settings = [{**({"seed": seeds[i]} if seeds else {}), **(each[i] if each else {})} for i in range(count)]
    if wrong := sorted(
        {name for group in (shared, *own_settings) for name in group} & {"request_id", "timeout", "drafts"}
    ):
        raise SettingError(f"{wrong[0]} is not a setting of an answer; only requests to an engine take it.", wrong[0])
    return [{**shared, **own} for own in own_settings]


def _check_each(count: int, seeds: Sequence[int] | None, each: Sequence[Mapping[str, Any]] | None) -> None:
    """Raise `SettingError` for lists that do not have one entry of the right kind for each of `count` prompts."""
    if seeds is not None and (not isinstance(seeds, list | tuple | range) or None in seeds):
        raise SettingError(f"seeds is {seeds!r}; it must be a list with one seed for each prompt.", "seeds")
    if seeds is not None and len(seeds) != count:
        raise SettingError(f"There are {len(seeds)} seeds for {count} prompts.", "seeds")
    if each is not None and not (isinstance(each, list | tuple) and all(isinstance(entry, Mapping) for entry in each)):
        raise SettingError("each must be a list with the settings of each prompt, as dicts.", "each")
    if each is not None and len(each) != count:
        raise SettingError(f"each has {len(each)} entries for {count} prompts.", "each")
    if each is not None and any("raw" in entry for entry in each):
        raise SettingError("raw is the same for all prompts; it cannot be in each.", "each")


def _small_calls(llm: LLM) -> None:
    """One call of each kind that runs the model's forwards itself, after a long text and after a short one."""
    for before in ("def f(x):\n    return ", "x = 1\n" * 100):
        llm.fill(before, "\n", steps=2)
        llm.fill(before, "\n", choices=["x", "x + 1"])
        llm.decide(llm.tokenizer.encode(before, special=False), ["yes", "no"], reads=1)


def check_adapter_name(name: object) -> None:
    """Raise `SettingError` for a name that `with_adapter` could not take."""
    if not isinstance(name, str) or not name:
        raise SettingError(f"An adapter's name is {name!r}; it must be a non-empty string.")
    check_utf8(name, "adapter", SettingError)

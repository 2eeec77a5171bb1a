"""`decide`: one of the choices for every slot, its probability, and no text written.

Slots are read from left to right, each for many questions in one batch. A slot that is not sure enough is read again
with different noise, and the probabilities of all reads are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any, overload

from redraft.checks import MAX_NUMBER, check_names, plain
from redraft.deciding.asking import DecidingLLM, Question, Tools, content_free, read_question, split_questions
from redraft.deciding.calibration import calibrated
from redraft.deciding.form import Form
from redraft.deciding.read import BranchRow, branch_logprobs, choice_logprobs, rows_of
from redraft.deciding.result import Decision, Reading
from redraft.diffusion.prefill import held_at_once, prefill
from redraft.errors import TOO_LONG, InputError, NotFiniteError, PromptError, SettingError, about
from redraft.interruption import check_interrupted
from redraft.text.placing import EncodedPrompt

Choices = Sequence[str] | Mapping[str, Sequence[str]]
"""A list of choices, or one for each named slot."""

SURE = 0.9
"""A slot with a lower confidence is read again."""
READS = 4
"""The most reads of one slot."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """How to read: see `decide`."""

    calibrate: bool = False
    temperature: float = 1.0
    sure: float = SURE
    reads: int = READS
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("temperature", "sure", "reads", "seed"):
            object.__setattr__(self, name, plain(getattr(self, name)))
        _require(isinstance(self.calibrate, bool), "calibrate", self.calibrate, "True or False")
        _require(_number(self.temperature) and 0 < self.temperature <= MAX_NUMBER, "temperature", self.temperature,
                 f"above 0 and at most {MAX_NUMBER:,}")  # fmt: skip
        _require(_number(self.sure) and 0 <= self.sure <= 1, "sure", self.sure, "between 0 and 1")
        _require(type(self.reads) is int and 1 <= self.reads <= 64, "reads", self.reads, "between 1 and 64")
        _require(type(self.seed) is int and 0 <= self.seed < 2**63, "seed", self.seed, "between 0 and 2^63 - 1")


@overload
def decide(  # type: ignore[overload-overlap]  # a str is a sequence of str as well, but one question
    llm: DecidingLLM, question: Question, choices: Choices, **settings: Any
) -> Decision: ...
@overload
def decide(llm: DecidingLLM, question: Sequence[Question], choices: Choices, **settings: Any) -> list[Decision]: ...
def decide(
    llm: DecidingLLM,
    question: Question | Sequence[Question],
    choices: Choices,
    *,
    template: str | None = None,
    ends: bool | None = True,
    tools: Tools = None,
    calibrate: bool | None = False,
    temperature: float | None = 1.0,
    sure: float | None = SURE,
    reads: int | None = READS,
    seed: int | None = 0,
    **unknown: object,
) -> Decision | list[Decision]:
    """Choose for one question, or for each of several (a list of strings, chats or lists of token ids).

    choices      a list, or lists by slot name for the slots of `template`, such as "The {animal} is {size}."
    ends         whether the answer is over after the template
    tools        declared to the model, for a question that is a str or a chat
    calibrate    subtract what the model says about a question without content; it is read `reads` times, too, once for
                 all questions that share it
    temperature  divides the log-odds; see `redraft.deciding.fit_temperature`
    sure, reads  read slots below the probability `sure` again, up to `reads` times in all
    One that is None is not given. Raises `PromptError` and `SettingError` before any compute.
    """
    parameters = signature(decide).parameters.items()
    check_names(unknown, [name for name, what in parameters if what.kind is what.KEYWORD_ONLY])
    given = {"calibrate": calibrate, "temperature": temperature, "sure": sure, "reads": reads, "seed": seed}
    rule = Rule(**{name: value for name, value in given.items() if value is not None})
    form = Form.of(choices, template, ends=True if ends is None else ends)
    questions, several = split_questions(question)
    bare = [content_free(each) for each in questions] if rule.calibrate else []
    if None in bare:
        raise SettingError("calibrate needs a question that is a str or a chat with a user message.", "calibrate")
    prompts: list[EncodedPrompt] = []
    for index, each in enumerate([*questions, *(each for each in bare if each is not None)]):
        with _about_question(index, len(questions)):
            prompts.append(read_question(llm, each, form, tools))
    decisions = _decide(llm, form, prompts, len(questions), rule)
    return decisions if several else decisions[0]


@contextmanager
def _about_question(index: int, count: int) -> Iterator[None]:
    """Errors raised inside say which of several questions is at fault; after the last one they begin anew."""
    try:
        with about("question"):
            yield
    except InputError as error:
        if count > 1:
            place, sentence = f"question[{index % count}]", str(error)
            begun = sentence.startswith("question ")
            error.args = (place + sentence.removeprefix("question") if begun else f"{place}: {sentence}",)
            error.field = place if error.field == "question" else error.field
        raise


def _decide(llm: DecidingLLM, form: Form, prompts: list[EncodedPrompt], count: int, rule: Rule) -> list[Decision]:
    """Decisions on the first `count` prompts; the others, if any, are the same questions without content."""
    longest = max(range(len(prompts)), key=lambda index: len(prompts[index]))
    most = _most_tokens(llm, form)
    if len(prompts[longest]) > most:
        with _about_question(longest, count):
            raise PromptError(
                f"A question of {len(prompts[longest])} tokens and its answer do not fit the context of "
                f"{llm.model.config.max_position_embeddings}.",
                code=TOO_LONG,
            )
    at_once = held_at_once(llm.model, len(prompts[longest]), each=len(prompts) // count)
    decisions: list[Decision] = []
    for batch in (slice(first, first + at_once) for first in range(0, count, at_once)):
        decisions += _decide_together(llm, form, prompts[:count][batch], prompts[count:][batch], rule)
    return decisions


def _most_tokens(llm: DecidingLLM, form: Form) -> int:
    """The most tokens of a question: if the answer fits after the longest choices of earlier slots, it always does."""
    values: list[str] = []
    canvases: list[int] = []
    for choices in form.choices:
        check_interrupted()
        rows, _ = _rows(llm, form, tuple(values))
        canvases.append(len(rows[0].canvas))
        values.append(max(choices, key=lambda choice: len(llm.tokenizer.encode(choice, special=False))))
    return llm.model.config.max_position_embeddings - max(canvases)


def _rows(llm: DecidingLLM, form: Form, values: tuple[str, ...]) -> tuple[list[BranchRow], int]:
    """What to read for the slot after `values` of the first question, and how many choices there are."""
    strings = form.strings(llm.tokenizer, values)
    last = form.ends and len(values) == len(form.names) - 1
    return rows_of(0, strings, llm.tokenizer.eos_id if last else None), len(strings)


def _decide_together(
    llm: DecidingLLM, form: Form, questions: Sequence[EncodedPrompt], bare: Sequence[EncodedPrompt], rule: Rule
) -> list[Decision]:
    """Decisions on questions whose keys and values are held together; `bare` are the same without content, or empty."""
    row_of = {prompt: row for row, prompt in enumerate(dict.fromkeys([*questions, *bare]))}
    reader = _SlotReader(llm, form, list(row_of), rule)
    bare_rows = [row_of[prompt] for prompt in bare] or [None] * len(questions)
    states = [_QuestionState(row_of[prompt], bare_row) for prompt, bare_row in zip(questions, bare_rows, strict=True)]
    for _ in form.names:
        reader.read_slot(states)
    return [
        Decision(text=form.fill(state.values), readings=tuple(state.readings), forwards=state.forwards)
        for state in states
    ]


@dataclass(slots=True)
class _QuestionState:
    """One question while its slots are read.

    `row` is its prompt's in the cache, `bare_row` that of the same question without content.
    """

    row: int
    bare_row: int | None
    readings: list[Reading] = field(default_factory=list)
    forwards: int = 0

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(reading.choice for reading in self.readings)


_Prefix = tuple[int, tuple[str, ...]]
"""A prompt's row, and the values of its earlier slots."""


@dataclass(slots=True)
class _Tally:
    """The reads of one slot after one prefix so far: log p of every choice, one list per read.

    `rows` is what one read computes, `count` the number of choices.
    """

    rows: list[BranchRow]
    count: int
    logprobs: list[list[float]] = field(default_factory=list)

    @property
    def mean(self) -> list[float]:
        """Logarithms of the mean probabilities."""
        return [_log_mean(column) for column in zip(*self.logprobs, strict=True)]

    @property
    def forwards(self) -> int:
        return len(self.rows) * len(self.logprobs)


class _SlotReader:
    """Holds the encoded prompts and reads slots from them."""

    def __init__(self, llm: DecidingLLM, form: Form, prompts: list[EncodedPrompt], rule: Rule) -> None:
        self._llm, self._form, self._rule = llm, form, rule
        self._cache = llm.model.new_cache(len(prompts), max(map(len, prompts)))
        ids, images = [prompt.ids for prompt in prompts], [prompt.images for prompt in prompts]
        prefill(llm.model, self._cache, ids, images)

    def read_slot(self, states: Sequence[_QuestionState]) -> None:
        """Read the next slot of every question, and reread those that are not sure."""
        prefixes = [(state.row, state.values) for state in states]
        bare = [(state.bare_row, state.values) for state in states if state.bare_row is not None]
        bare_tallies = self._tallies(bare, lambda prefix, tally: False)
        bare_of = {prefix: bare_tallies[other] for prefix, other in zip(prefixes, bare, strict=False)}
        bias_of = {prefix: tally.mean for prefix, tally in bare_of.items()}
        sure = self._rule.sure
        tallies = self._tallies(
            prefixes, lambda prefix, tally: max(self._calibrated(tally, bias_of.get(prefix))) >= sure
        )
        for state, prefix in zip(states, prefixes, strict=True):
            state.forwards += tallies[prefix].forwards + (bare_of[prefix].forwards if prefix in bare_of else 0)
            state.readings.append(self._reading(len(state.readings), tallies[prefix], bias_of.get(prefix)))

    def _tallies(self, prefixes: Sequence[_Prefix], enough: Callable[[_Prefix, _Tally], bool]) -> dict[_Prefix, _Tally]:
        """Up to `reads` reads after every prefix, until they are enough; all that are not form one batch."""
        rows_after = {values: _rows(self._llm, self._form, values) for values in {values for _, values in prefixes}}
        tallies: dict[_Prefix, _Tally] = {}
        for question, values in dict.fromkeys(prefixes):
            rows, count = rows_after[values]
            tallies[question, values] = _Tally([replace(row, question=question) for row in rows], count)
        unsure = list(tallies)
        for number in range(self._rule.reads):
            rows = [row for prefix in unsure for row in tallies[prefix].rows]
            odds = iter(branch_logprobs(self._llm.model, self._cache, rows, (self._rule.seed + number) % 2**63))
            for prefix in unsure:
                tally = tallies[prefix]
                tally.logprobs.append(choice_logprobs(tally.count, tally.rows, [next(odds) for _ in tally.rows]))
                if any(map(math.isnan, tally.logprobs[-1])):
                    raise NotFiniteError
            unsure = [prefix for prefix in unsure if not enough(prefix, tallies[prefix])]
        return tallies

    def _calibrated(self, tally: _Tally, bias: Sequence[float] | None) -> list[float]:
        return calibrated(tally.mean, bias, self._rule.temperature)

    def _reading(self, slot: int, tally: _Tally, bias: Sequence[float] | None) -> Reading:
        choices, probabilities = self._form.choices[slot], self._calibrated(tally, bias)
        best = max(range(len(choices)), key=probabilities.__getitem__)
        winners = [max(range(len(choices)), key=calibrated(read, bias, 1.0).__getitem__) for read in tally.logprobs]
        return Reading(
            name=self._form.names[slot],
            choice=choices[best],
            probabilities=dict(zip(choices, probabilities, strict=True)),
            raw=dict(zip(choices, map(math.exp, tally.mean), strict=True)),
            reads=len(tally.logprobs),
            agreement=winners.count(best) / len(winners),
        )


def _log_mean(logs: Sequence[float]) -> float:
    peak = max(logs)
    return peak + math.log(sum(math.exp(value - peak) for value in logs) / len(logs))


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise SettingError(f"{name} is {value!r}; it must be {allowed}.", name)

"""The entry point of the constraint layer: whatever a caller asks for becomes one `AutomatonConstraint`."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, get_type_hints
from weakref import WeakKeyDictionary

from redraft.constraints.answer import AutomatonConstraint
from redraft.constraints.around import chained, surrounded
from redraft.constraints.automaton import Budget, Dfa, product
from redraft.constraints.expression import (
    ANY,
    EMPTY,
    Expression,
    Machine,
    Mark,
    alt,
    chars,
    optional,
    repeat,
    seq,
    text,
)
from redraft.constraints.json_schema import check_json, compile_schema, parse_number
from redraft.constraints.json_schema.numbers import RoundedFloat
from redraft.constraints.regex import parse_regex
from redraft.constraints.spelling import BYTES, compile_bytes, compile_codes
from redraft.constraints.template import parse_template
from redraft.constraints.tokens import Ending, TokenAutomaton, compile_tokens
from redraft.constraints.tool_calls import call_grammar, check_choice
from redraft.constraints.vocabulary import Vocabulary
from redraft.constraints.words import holding, holding_any, standing
from redraft.errors import ConstraintError, about, check_utf8
from redraft.text.tokenizer import EOS, TURN_END, Tokenizer
from redraft.text.tools import CALL_CLOSE, CALL_OPEN, CHANNEL_CLOSE, CHANNEL_OPEN, QUOTE, RESPONSE_OPEN

MAX_CHOICES = 10_000
MAX_POSITION = 262_144
"""Pins must come before it: no answer is longer."""
CACHED, CACHED_BYTES = 64, 256 << 20
"""How many constraints are kept per tokenizer, and their total memory, including what is built from them later."""
KEPT_CANVASES = 2
"""Canvases kept for each of these constraints; see `AutomatonConstraint.keep`."""

JSON_OBJECT: Mapping[str, Any] = {"type": "object"}
WHOLE: dict[str, Callable[[Any, ConstraintRequest, Budget], Expression]] = {
    "choices": lambda texts, _, budget: alt(*map(text, dict.fromkeys(texts))),
    "regex": lambda pattern, _, budget: parse_regex(pattern, budget=budget),
    "json_schema": lambda schema, request, budget: compile_schema(schema, budget, strict=request.strict),
    "json_object": lambda _, request, budget: compile_schema(JSON_OBJECT, budget, strict=True),
    "template": lambda template, _, budget: parse_template(template, budget),
}
"""The keywords that say what the whole answer is, of which one may be given, and what each allows."""
NARROWING: dict[str, Callable[[Dfa, Any, int, Budget], Dfa]] = {
    "text_pins": lambda dfa, pins, symbols, budget: product(dfa, standing(pins, symbols, budget), budget),
    "must_include": lambda dfa, texts, symbols, budget: product(dfa, holding(texts, symbols, budget), budget),
    "forbidden": lambda dfa, texts, symbols, budget: product(
        dfa, holding_any(texts, symbols, budget), budget, subtract=True
    ),
}
"""Those that narrow it, and what each leaves of an automaton."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConstraintRequest:
    """What a caller may ask of an answer; see `build`."""

    choices: Sequence[str] | None = None
    regex: str | None = None
    json_schema: Any = None
    json_object: bool = False
    template: str | None = None
    pins: Mapping[int, str] | None = None
    text_pins: Mapping[int, str] | None = None
    must_include: Sequence[str] | None = None
    forbidden: Sequence[str] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    strict: bool = True
    thinking: bool = False
    thought_open: bool = False
    allow_empty: bool = True


_HINTS = get_type_hints(ConstraintRequest)
NAMES = tuple(_HINTS)
"""The keywords of `build`."""
CALLER_KEYWORDS = tuple(name for name in NAMES if name not in ("thought_open", "allow_empty"))
"""Those that a caller of `LLM.generate` gives; the others follow from the prompt and from `forbid_empty`."""


def build(
    tokenizer: Tokenizer,
    *,
    eos_ids: tuple[int, ...] | None = None,
    around: tuple[bytes, bytes] = (b"", b""),
    **keywords: Any,
) -> AutomatonConstraint | None:
    """The constraint of an answer; None if nothing was asked for.

    One of these says what the whole answer is:
        choices       one of these texts
        regex         a text that this pattern matches from end to end
        json_schema   JSON that obeys this schema (a dict, a JSON string, a bool, or a pydantic model)
        json_object   any JSON object
        template      a text with typed holes, such as "Name: {name:str<40}, age {age:int}"
    With `tools` declared, `tool_choice` ("auto", "none", "required", or a tool's name, also in OpenAI's shape) says
    whether the answer may or must be calls. With "auto" it is calls, or what the other settings say, or any text.
    Without `parallel_tool_calls` it contains at most one call.
    These narrow it further, or narrow free text:
        pins          {token position in the answer: text at that position}
        text_pins     {character offset in the answer's text, after a thought: text at that offset}
        must_include  texts that appear in this order
        forbidden     texts that do not appear, however they are cut into tokens

        strict       False: whatever cannot be enforced of json_schema is left to the caller's own validation. That is
                     always so for the parameters of a tool, unless its declaration sets `strict` to True.
        thinking     the answer may begin with a thought channel, which nothing else applies to
        thought_open the prompt ends inside a thought, which the answer closes before anything else applies to it
        allow_empty  False: the empty text is not an answer
        eos_ids      tokens at which an answer ends; the tokenizer's `<eos>` and `<turn|>` by default
        around       bytes that are written before and after whatever the rest allows

    Raises `ConstraintError` with one sentence for anything malformed, contradictory, empty or too large, and
    `PromptError` for tool declarations that no prompt could hold.
    """
    with _no_deep_nesting("The constraint"):
        request = _checked(keywords)
    if request is None:
        return None
    ending = _ending(tokenizer, eos_ids, calls=bool(request.tools))
    with about(_given(request)[0]), _no_deep_nesting("The constraint"):
        constraint = _cached(tokenizer, ending, request, around)
    with about("pins"):
        pins = _pinned(tokenizer, request.pins or {})
        return constraint.pinned(pins) if pins else constraint


@contextmanager
def _no_deep_nesting(what: str) -> Iterator[None]:
    """Raise `ConstraintError` where the nesting is too deep for Python."""
    try:
        yield
    except RecursionError as error:
        raise ConstraintError(f"{what} is nested too deeply.") from error


def says_where_text_stands(keywords: Mapping[str, Any]) -> bool:
    """Whether these keywords of `build` fix an answer's first character, or the position of any others."""
    return any(is_given(name, keywords.get(name)) for name in (*WHOLE, "pins", "text_pins"))


def _checked(keywords: Mapping[str, Any]) -> ConstraintRequest | None:
    """The request with its types checked; None if nothing is asked for."""
    if unknown := sorted(set(keywords) - set(NAMES)):
        raise ConstraintError(f"Unknown constraint {unknown[0]!r}; known ones are {', '.join(NAMES)}.", unknown[0])
    request = ConstraintRequest(**keywords)
    given = [name for name in WHOLE if is_given(name, getattr(request, name))]
    if len(given) > 1:
        sentence = f"{given[0]} and {given[1]} both say what the whole answer is; give one of them."
        raise ConstraintError(sentence, given[0])
    for name, hint in _HINTS.items():
        with about(name):
            _CHECKS.get(hint, _unchecked)(name, getattr(request, name))
    with about("template"):
        check_utf8(request.template or "", "template", ConstraintError)
    if request.pins and (request.thinking or request.thought_open):
        sentence = "pins count tokens from the start, where a thought may stand; use text_pins, which count after it."
        raise ConstraintError(sentence, "pins")
    check_choice(request.tools, request.tool_choice)
    return request if given or any(getattr(request, name) for name in ("pins", *NARROWING, "tools")) else None


def is_given(name: str, value: Any) -> bool:
    """Whether a setting asks for something; False is a schema too."""
    return value is not None and (value is not False or name == "json_schema")


def _check_texts(name: str, texts: Any) -> None:
    if texts is None:
        return
    if isinstance(texts, str) or not isinstance(texts, Sequence) or not all(isinstance(t, str) for t in texts):
        raise ConstraintError(f"{name} must be a list of strings.")
    if not texts or (name != "choices" and not all(texts)):
        raise ConstraintError(f"{name} is empty." if not texts else f"{name} holds an empty string.")
    if len(texts) > MAX_CHOICES:
        raise ConstraintError(f"{name} has {len(texts)} entries; at most {MAX_CHOICES} are allowed.")
    for given in texts:
        check_utf8(given, name, ConstraintError)


def _check_pins(name: str, pins: Any) -> None:
    if pins is None:
        return
    if not isinstance(pins, Mapping):
        raise ConstraintError(f"{name} must map positions to texts.")
    for position, pinned in pins.items():
        if isinstance(position, bool) or not isinstance(position, int) or position < 0:
            raise ConstraintError(f"{name} has the position {position!r}; it must be a whole number of at least 0.")
        if position >= MAX_POSITION:
            raise ConstraintError(f"{name} has the position {position}; no answer is longer than {MAX_POSITION}.")
        if not isinstance(pinned, str) or not pinned:
            raise ConstraintError(f"{name} has no text at position {position}.")
        check_utf8(pinned, name, ConstraintError)


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str | None):
        raise ConstraintError(f"{name} must be a string, not {type(value).__name__}.")


def check_flag(name: str, value: Any) -> None:
    """Raise `ConstraintError` for what is neither True nor False."""
    if not isinstance(value, bool):
        raise ConstraintError(f"{name} is {value!r}; it must be True or False.")


def _unchecked(name: str, value: Any) -> None:
    """Schemas, tools and the choice among them are checked where they are read."""


_CHECKS: dict[Any, Callable[[str, Any], None]] = {
    bool: check_flag,
    str | None: _check_text,
    Sequence[str] | None: _check_texts,
    Mapping[int, str] | None: _check_pins,
}
"""What checks a value, by its type in `ConstraintRequest`."""


def _ending(tokenizer: Tokenizer, eos_ids: tuple[int, ...] | None, *, calls: bool) -> Ending:
    special = tokenizer.special_ids
    if outside := [token for token in eos_ids or () if not 0 <= token < tokenizer.vocab_size]:
        raise ConstraintError(f"eos_ids holds {outside[0]}; the vocabulary has {tokenizer.vocab_size} tokens.")
    usual = [special[name] for name in (TURN_END, EOS) if name in special]
    closing = tuple(token for token in usual if eos_ids is None or token in eos_ids) or tuple(eos_ids or ())
    if not closing:
        raise ConstraintError("The tokenizer has neither <eos> nor <turn|>, so an answer could not end.")
    response = special.get(RESPONSE_OPEN)
    if calls and response is not None and (eos_ids is None or response in eos_ids):
        closing = (*closing, response)
    return Ending(closing, (special[EOS],) if special.get(EOS) in closing else closing[:1])


_constraints: WeakKeyDictionary[Tokenizer, OrderedDict[str, AutomatonConstraint]] = WeakKeyDictionary()
_lock = threading.Lock()


def _cached(
    tokenizer: Tokenizer, ending: Ending, request: ConstraintRequest, around: tuple[bytes, bytes]
) -> AutomatonConstraint:
    """The constraint without its pins, one object for equal requests: compiled once, and sampled together on a GPU."""
    plain = replace(request, json_schema=schema_of(request.json_schema), pins=None)
    said = [getattr(plain, name) for name in NAMES]
    digits = list(_digits(plain.json_schema))  # `said` rounds these numbers
    key = json.dumps([said, digits, ending.closing, *(given.hex() for given in around)], default=_as_json)
    with _lock:
        known = _constraints.setdefault(tokenizer, OrderedDict())
        if key in known:
            known.move_to_end(key)
            return known[key]
    compiled = AutomatonConstraint(compile_request(tokenizer, ending, plain, Budget(), around))
    compiled.keep(KEPT_CANVASES)
    with _lock:
        compiled = known.setdefault(key, compiled)  # another thread may have been first
        while len(known) > CACHED or (len(known) > 1 and sum(one.nbytes for one in known.values()) > CACHED_BYTES):
            known.popitem(last=False)[1].keep(0)
    return compiled


def _as_json(value: Any) -> Any:
    """A JSON form for other values: a mapping becomes a dict, a sequence a list, anything else its text."""
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence) else str(value)


def _digits(schema: Any) -> Iterator[str]:
    """The digits of each number of a schema that a double rounds, in order; nothing for other fractions."""
    if isinstance(schema, float):
        yield schema.text if isinstance(schema, RoundedFloat) else ""
    elif isinstance(schema, Mapping | list | tuple):
        for part in schema.values() if isinstance(schema, Mapping) else schema:
            yield from _digits(part)


@about("json_schema")
def schema_of(given: Any) -> Any:
    """A JSON schema as plain data: from a dict, a bool, a JSON string, or a pydantic model; None if none is given."""
    if given is None:
        return None
    with _no_deep_nesting("json_schema"):
        schema = _plain_schema(given)
        if not isinstance(schema, Mapping | bool):
            raise ConstraintError(f"A schema must be an object or a bool, not {type(schema).__name__}.")
        check_json(schema)
    return schema


def _plain_schema(given: Any) -> Any:
    if isinstance(given, bool | Mapping):
        return given
    if isinstance(given, str):
        try:
            return json.loads(given, parse_float=parse_number)
        except ValueError as error:
            raise ConstraintError(f"json_schema is not valid JSON: {error}.") from error
    if callable(found := getattr(given, "model_json_schema", None)):
        try:
            return found()
        except Exception as error:  # pydantic has its own errors, and models may raise others
            raise ConstraintError(f"The model has no JSON schema: {error}") from error
    raise ConstraintError(f"json_schema must be a dict, a JSON string or a pydantic model, not {type(given).__name__}.")


def compile_request(
    tokenizer: Tokenizer,
    ending: Ending,
    request: ConstraintRequest,
    budget: Budget,
    around: tuple[bytes, bytes] = (b"", b""),
) -> TokenAutomaton:
    """The token automaton of a checked request, without its pins."""
    marks = tuple(
        name for name in (CALL_OPEN, CALL_CLOSE, QUOTE, CHANNEL_OPEN, CHANNEL_CLOSE) if name in tokenizer.special_ids
    )
    dfa = _narrowed(compile_bytes(_answer(request, marks, budget), budget, marks), request, BYTES + len(marks), budget)
    if dfa.empty:
        raise ConstraintError(f"{' with '.join(_given(request))} allows no text at all.")
    if request.thinking or request.thought_open:
        dfa = chained([_thought(marks, budget, is_open=request.thought_open), dfa], budget)
    dfa = surrounded(dfa, *around, budget)
    return compile_tokens(dfa, Vocabulary.of(tokenizer), ending, marks, budget)


def _narrowed(dfa: Dfa, request: ConstraintRequest, symbols: int, budget: Budget) -> Dfa:
    """The texts that contain everything they must contain and nothing they must not."""
    for name, narrow in NARROWING.items():
        if given := getattr(request, name):
            dfa = narrow(dfa, given, symbols, budget)
    if not request.allow_empty and not dfa.empty and dfa.accept[0]:
        dfa = product(dfa, compile_bytes(EMPTY, budget), budget, subtract=True)
        if dfa.empty:
            raise ConstraintError(
                f"{' with '.join(_given(request))} allows only the empty text, but a filling under a constraint, "
                "like an answer with forbid_empty, is never empty."
            )
    return dfa


def _thought(marks: tuple[str, ...], budget: Budget, *, is_open: bool) -> Dfa:
    """A thought channel, or nothing; the rest of a channel if it `is_open` already."""
    if CHANNEL_OPEN not in marks or CHANNEL_CLOSE not in marks:
        raise ConstraintError("thinking needs a tokenizer with channel tokens.", "thinking")
    rest = seq(repeat(chars(ANY)), Mark(CHANNEL_CLOSE))
    thought = rest if is_open else optional(seq(Mark(CHANNEL_OPEN), text("thought\n"), rest))
    return compile_bytes(thought, budget, marks)


def _given(request: ConstraintRequest) -> list[str]:
    """The names of the constraints that were given, for a message."""
    names = (*WHOLE, *NARROWING, "tools", "pins")
    return [name for name in names if is_given(name, getattr(request, name))]


def _answer(request: ConstraintRequest, marks: tuple[str, ...], budget: Budget) -> Expression:
    """What the answer is before words and pins narrow it."""
    body = _content(request, budget)
    if request.tools:
        return _with_calls(request, body, marks, budget)
    return repeat(chars(ANY)) if body is None else body


def _content(request: ConstraintRequest, budget: Budget) -> Expression | None:
    """What text the answer is; None if any text will do."""
    for name, allowed in WHOLE.items():
        if is_given(name, value := getattr(request, name)):
            return allowed(value, request, budget)
    return None


def _with_calls(
    request: ConstraintRequest, body: Expression | None, marks: tuple[str, ...], budget: Budget
) -> Expression:
    """Calls where `tool_choice` allows them."""
    choice = request.tool_choice or "auto"
    if body is None:
        body = _text_without(CALL_OPEN, budget)
    if choice == "none":
        return body
    if missing := [name for name in (CALL_OPEN, CALL_CLOSE, QUOTE) if name not in marks]:
        raise ConstraintError(f"tools need a tokenizer with the token {missing[0]}.", "tools")
    calls = call_grammar(request.tools or (), choice, budget, several=request.parallel_tool_calls)
    if choice == "auto":
        return alt(body, calls) if _content(request, budget) is not None else seq(body, optional(calls))
    return calls


def _text_without(word: str, budget: Budget) -> Expression:
    """Any text that does not spell `word`."""
    free, unwanted = repeat(chars(ANY)), text(word)
    whole = compile_codes(free, budget)
    return Machine(product(whole, compile_codes(seq(free, unwanted, free), budget), budget, subtract=True), None)


def _pinned(tokenizer: Tokenizer, pins: Mapping[int, str]) -> dict[int, int]:
    """Token position -> token id of pinned texts."""
    found: dict[int, int] = {}
    for position, pinned in sorted(pins.items()):
        for place, token in enumerate(tokenizer.encode_exact(pinned), start=position):
            if found.setdefault(place, token) != token:
                raise ConstraintError(f"Two pins put different tokens at position {place}.")
    return found

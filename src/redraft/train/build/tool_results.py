"""What tools return, made up, and what the model says about it: "The temperature is 21 °C and the sky is clear."

The tools of :mod:`.tools` return nothing, so a result has nothing to do with its tool. It therefore has to be read and
cannot be guessed. Its sentence follows by rule: fields in their order, "Done." for a success, what went wrong for an
error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from redraft.train.build.tool_facts import Fact, Facts, said_value, sentence
from redraft.train.build.tool_values import Values, enumerated
from redraft.train.build.word_forms import capital, spoken
from redraft.train.build.wordnet import Lexicon

NOTHING, DONE, FAILED = "I found nothing.", "Done.", "That did not work: "


@dataclass(frozen=True, kw_only=True)
class Result:
    """A JSON value, or a text that may contain one, and the sentences that report it."""

    content: object
    said: str


@dataclass(frozen=True, kw_only=True)
class _Draw:
    """What a result is drawn with: facts, the arguments of its call, and whether its keys will be `sorted`.

    The chat template sorts the keys of objects, but not those inside a text.
    """

    facts: Facts
    arguments: Mapping[str, object]
    sorted: bool

    def some(self, counts: Sequence[int]) -> list[Fact]:
        """A number of facts drawn from `counts`, in the order in which they will be read."""
        facts = self.facts.draw(self.facts.rng.choice(counts))
        return sorted(facts, key=lambda fact: fact.key.lower()) if self.sorted else facts


def draw_result(values: Values, words: Lexicon, arguments: Mapping[str, object]) -> Result:
    """What a call with `arguments` returned. Objects are plain or, as some clients send them, JSON text."""
    rng = values.rng
    as_text = rng.random() < 0.65
    draw = _Draw(facts=Facts(values=values, words=words, camel=rng.random() < 0.3), arguments=arguments,
                 sorted=not as_text)  # fmt: skip
    result = rng.choices(tuple(_ODDS), tuple(_ODDS.values()))[0](draw)
    if isinstance(result.content, list) or (as_text and not isinstance(result.content, str)):
        return replace(result, content=_json_text(draw, result.content))
    return result


def _json_text(draw: _Draw, content: object) -> str:
    indent, separators = draw.facts.rng.choices(((None, None), (None, (",", ":")), (2, None)), (7, 2, 1))[0]
    return json.dumps(content, ensure_ascii=False, indent=indent, separators=separators)


def _clauses(facts: Sequence[Fact]) -> str:
    return sentence(enumerated([fact.clause for fact in facts]))


def _object(facts: Sequence[Fact]) -> dict[str, Any]:
    return {key: value for fact in facts for key, value in fact.fields.items()}


# --- kinds of results -------------------------------------------------------------------------------


def _fields(draw: _Draw) -> Result:
    """An object. It may repeat arguments of the call, which are not reported, or be nested in another."""
    facts = draw.some((1, 1, 2, 2, 2, 3, 3, 4))
    rng, content = draw.facts.rng, _object(facts)
    if rng.random() < 0.3:
        repeated = {key: value for key, value in draw.arguments.items() if key not in content and rng.random() < 0.6}
        content = repeated | content
    if rng.random() < 0.15:
        marker = rng.choice(({}, {"status": "ok"}, {"success": True}, {"code": 200}))
        content = {**marker, rng.choice(("data", "result", "response", "output")): content}
    return Result(content=content, said=_clauses(facts))


_MARKERS = (
    {"status": "ok"}, {"status": "success"}, {"status": "done"}, {"success": True}, {"ok": True}, {"result": "ok"},
    {"status": "completed"}, {"done": True}, {"result": "success"},
)  # fmt: skip
_BARE = ("ok", "OK", "done", "Done", "Done.", "success", "Success", "true", "", None, True)
_DEEDS = (
    "The {t} was {v}", "{t} {v}", "{t} {v} successfully", "1 {t} {v}", "Your {t} has been {v}", "The {t} is {v} now",
    "{person} will be told", "A message was sent to {person}", "It will take {n} minutes",
)  # fmt: skip


def _done(draw: _Draw) -> Result:
    """A success: a bare word, or a marker with a message or with what was created."""
    rng = draw.facts.rng
    if rng.random() < 0.25:
        return Result(content=rng.choice(_BARE), said=DONE)
    marker = rng.choice(_MARKERS)
    if rng.random() < 0.3:
        deed = _filled(draw, rng.choice(_DEEDS))
        return Result(content=marker | {"message": deed}, said=f"{DONE} {sentence(deed)}")
    facts = [fact for fact in draw.some((0, 1, 1, 2)) if not fact.fields.keys() & marker.keys()]
    first, second = (marker, _object(facts)) if rng.random() < 0.6 else (_object(facts), marker)
    return Result(content=first | second, said=f"{DONE} {_clauses(facts)}" if facts else DONE)


_FAULTS = (
    "{t} not found", "no such {t}", "invalid {a}", "permission denied", "the {t} is already {v}", "{city} is unknown",
    "timeout after {n} seconds", "no {t} left", "the {t} cannot be {v}", "{person} does not exist",
    "rate limit reached", "not authorized", "{a} must be at least {n}", "the service is not available",
    "connection refused", "unknown {t} {id}", "card declined", "not enough {t}", "missing {a}",
    "the {t} must be {v} first",
)  # fmt: skip


def _error(draw: _Draw) -> Result:
    rng = draw.facts.rng
    fault = _filled(draw, rng.choice(_FAULTS))
    fault = rng.choice((fault, fault, sentence(fault), capital(fault)))
    code = rng.choice((400, 401, 403, 404, 409, 422, 429, 500, 503))
    content = rng.choice((
        {"error": fault}, {"error": fault}, {"error": {"code": code, "message": fault}},
        {"status": "error", "message": fault}, {"success": False, "error": fault}, {"ok": False, "reason": fault},
        {"status": "failed", "reason": fault}, {"error": True, "message": fault}, {"code": code, "error": fault},
        f"Error: {fault}", f"error: {fault}",
    ))  # fmt: skip
    return Result(content=content, said=FAILED + fault.removesuffix(".") + ".")


_TEXTS = (
    "The {a} of the {t} is {n}", "The {t} costs {n} dollars", "{person} has the {t}", "It is {word} in {city}",
    "{person} lives in {city}", "The {t} is {word}", "There are {n} {t}s in {city}", "The {t} opens at {time}",
    "{n} {t}s are {v}", "{city}: {word}, {n} degrees", "{person} {v} the {t} on {date}", "{text}",
    "The next {t} is on {date}", "The {t} number is {id}", "{title} by {person}",
    "{word} and {word}, with a {a} of {n} percent",
)  # fmt: skip


def _text(draw: _Draw) -> Result:
    """A text, reported as it is; sometimes of two sentences."""
    rng = draw.facts.rng
    texts = [_filled(draw, rng.choice(_TEXTS)) for _ in range(rng.choice((1, 1, 1, 2)))]
    content = ". ".join(texts) + rng.choice(("", ".")) if len(texts) == 1 else " ".join(map(sentence, texts))
    return Result(content=content, said=sentence(content))


def _single(draw: _Draw) -> Result:
    """A bare number or name, or an object that calls it a result."""
    rng = draw.facts.rng
    value = rng.choice((
        draw.facts.values.integer(-50, 9000).value, draw.facts.values.number(0, 900).value,
        draw.facts.values.string(rng.choice(("CITY", "PERSON", "WORD", "ID", "TITLE", "DATE", "TIME", "PRODUCT"))),
    ))  # fmt: skip
    key = rng.choice(("result", "value", "answer", "output"))
    content = {key: value} if rng.random() < 0.5 else str(value) if rng.random() < 0.5 else value
    return Result(content=content, said=f"The {key if isinstance(content, dict) else 'result'} is {value}.")


def _found(draw: _Draw) -> Result:
    """A list of names, or of objects with a name each."""
    rng, facts = draw.facts.rng, draw.facts
    kind = rng.choice(("TITLE", "PERSON", "PRODUCT", "BUSINESS", "CITY", "PATH", "FOOD", "ID", "FLIGHT", "EMAIL"))
    names = list(dict.fromkeys(facts.values.string(kind) for _ in range(rng.choices(range(5), (2, 3, 5, 5, 2))[0])))
    plain = rng.random() < 0.45
    called = rng.choice(("name", "name", "title", "id", "label"))
    keys = [fact.key for fact in facts.draw(rng.choice((0, 1, 1, 2)))]
    items = [_item(draw, called, name, keys) for name in names]
    content: object = [name if plain else entry for name, (entry, _) in zip(names, items, strict=True)]
    if rng.random() < 0.5:
        many = rng.choice(("results", "items", "matches", facts.key(f"{facts.thing()}s")))
        total = {rng.choice(("count", "total")): len(names)} if rng.random() < 0.4 else {}
        content = {many: content} | total if rng.random() < 0.5 else total | {many: content}
    said = enumerated([name if plain else text for name, (_, text) in zip(names, items, strict=True)] or [""])
    return Result(content=content, said=f"I found {len(names)}: {said}." if names else NOTHING)


def _item(draw: _Draw, called: str, name: str, keys: Sequence[str]) -> tuple[dict[str, object], str]:
    """An object of a list with the same keys as the others, and its phrase: "Blue Lamp (price 12, stock 3)"."""
    values = {key: draw.facts.values.integer(1, 900).value if number % 2 == 0 else draw.facts.values.string("WORD")
              for number, key in enumerate(keys) if key != called}  # fmt: skip
    entry = {called: name, **values}
    read = sorted(values, key=str.lower) if draw.sorted else list(values)
    about = ", ".join(f"{spoken(key)} {said_value(values[key])}" for key in read)
    return entry, f"{name} ({about})" if about else name


def _filled(draw: _Draw, text: str) -> str:
    rng, values, words = draw.facts.rng, draw.facts.values, draw.facts.words
    past = draw.facts.past()
    drawn: dict[str, Callable[[], str]] = {
        "{t}": draw.facts.thing, "{a}": lambda: rng.choice(words.attributes), "{v}": lambda: past,
        "{n}": lambda: str(values.integer(2, 900).value), "{city}": lambda: values.string("CITY"),
        "{person}": lambda: values.string("PERSON"), "{word}": lambda: values.string("WORD"),
        "{id}": lambda: values.string("ID"), "{date}": lambda: values.string("DATE"),
        "{time}": lambda: values.string("TIME"), "{text}": lambda: values.string("TEXT"),
        "{title}": lambda: values.string("TITLE"),
    }  # fmt: skip
    for slot, new in drawn.items():
        while slot in text:
            text = text.replace(slot, new(), 1)
    return text


_ODDS: dict[Callable[[_Draw], Result], int] = {
    _fields: 44, _done: 15, _error: 10, _text: 12, _single: 6, _found: 13
}  # fmt: skip

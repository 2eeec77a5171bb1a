"""How people ask for JSON: instructions, with and without the names of fields, and where the text stands."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass

from redraft.train.build.chat_text import expand
from redraft.train.build.extraction_records import Passage
from redraft.train.build.tool_values import enumerated
from redraft.train.build.word_forms import spoken

_NAMED = (
    "Extract {keys}(| as JSON| in JSON| from the text| from this text| from the text as JSON).",
    "Extract the (following |)(fields|values|information|data|details)(| as JSON): {keys}.",
    "(Return|Give me|Output|Produce|Write) (a JSON object|JSON|an object|only JSON) with (the (keys|fields) |){keys}.",
    "(Return|Give me|I need|I want|Show me) {keys} (as JSON|in JSON|as a JSON object|in JSON format).",
    "(Find|Get|Pull out|Read|Take|Pick out|Identify|Note) {keys}(| in this text| from the text|, as JSON)(.|)",
    "(What are|Tell me) {keys}? (Answer|Reply|Respond) (in|with|as) JSON.",
    "(What is|What's|Which is|Tell me) {keys}?( Reply in JSON.| JSON please.|)",
    "(Fill in|Complete|Fill out) (the form|the fields|a record)( with|:) {keys}.",
    "(Turn|Convert|Transform) (this|the text|it) into JSON with {keys}.",
    "(List|State|Determine) {keys}( as JSON|).",
    "JSON with {keys}(, please|)(.|)",
    "Fields: {keys}(.|)",
    "Keys: {keys}. (Answer|Reply) in JSON( only|).",
    "(Parse|Analyse|Read) (the text|this|the message) and (return|report|give) {keys}( as JSON|).",
)  # fmt: skip
_UNNAMED = (
    "Extract the (details|data|information|facts|{about})( as JSON| in JSON| from this text|).",
    "(Turn|Convert|Transform|Put) (this|the text|this text|the {about}|it) (into|to) JSON.",
    "(Parse|Structure|Analyse|Read) (this|the text|this text|the {about})( as JSON| into JSON|).",
    "(Write|Give me|Return|Show|Output) (this|the {about}|the data|it) as (JSON|a JSON object).",
    "(As JSON|JSON|In JSON|To JSON)( please|)(:|.)", "Answer in JSON.", "Reply with JSON only.", "Respond in JSON.",
    "What does (it|the text|this) say? (Answer|Reply) in JSON.", "Make a (record|JSON object) of (this|the {about}).",
    "Fill in the (form|fields|record).", "Get me the {about} as JSON.", "(Summarise|Store|Save) this as JSON.",
    "(I need|We need) (this|the {about}|that) (as JSON|in JSON|in a structured form).",
    "Extract (everything|what you can|all fields).", "Which {about} is it? Use JSON.",
)  # fmt: skip
_SCHEMA = (
    "(Answer|Reply|Respond) (with|in) JSON (that fits|that follows|matching|for) this schema: {schema}",
    "(Use|Follow) this JSON schema: {schema}", "Extract the data. Schema: {schema}", "JSON schema:\n{schema}",
)  # fmt: skip
_FORM = (
    "(Fill in|Complete|Fill out) this (form|template|JSON): {form}", "(Answer|Reply) in this format: {form}",
    "Use this format: {form}", "Return JSON like this: {form}",
)  # fmt: skip
_LAYOUTS = (
    ("{i}\n\n{t}", 6), ("{i} {t}", 5), ("{i}\n{t}", 3), ("{c}: {t}", 6), ("{c}:\n{t}", 2), ("{t} {i}", 5),
    ("{t}\n\n{i}", 4), ("{t}\n{i}", 2), ("{i}\n\nText: {t}", 2), ("Text: {t}\n{i}", 2), ('{c}: "{t}"', 3),
    ('"{t}" {i}', 2), ("{i}\n{t}\nJSON:", 1),
)  # fmt: skip
_UNNAMED_SHARE, _ORDER_DIFFERS, _WITH_ABSENT, _SYSTEM = 0.28, 0.1, 0.05, 0.1
"""How often a request names no fields, the answer has another order than it, a field is missing from the text, and the
request is a system message."""
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A chat that ends with a request for JSON, and the JSON."""

    messages: tuple[Mapping[str, str], ...]
    answer: str


def ask(passage: Passage, rng: random.Random) -> Asked:
    """A request for what `passage` says: all of it, or the fields that the request names."""
    labels = {key: value for key, value in passage.fields.items() if key in passage.options}
    if passage.requests and labels and rng.random() < 0.4:
        fields, request = labels, expand(rng.choice(passage.requests), rng)
    elif rng.random() < _UNNAMED_SHARE:
        fields, request = passage.fields, expand(rng.choice(_UNNAMED), rng).replace("{about}", passage.about)
    else:
        fields = _named_fields(passage, rng)
        request = _naming(fields, passage, rng)
        if rng.random() < _ORDER_DIFFERS:
            fields = dict(rng.sample(list(fields.items()), len(fields)))
    return Asked(messages=_placed(request, passage.text, rng), answer=as_json(fields))


def as_json(value: object) -> str:
    """`value` as the answers write it: on one line, with a space after commas and colons."""
    return json.dumps(value, ensure_ascii=False)


def _named_fields(passage: Passage, rng: random.Random) -> dict[str, object]:
    """All fields or some, and now and then one that the text does not give, which is null."""
    keys = list(passage.fields)
    if len(keys) > 1 and rng.random() < 0.5:
        keys = rng.sample(keys, rng.randint(1, len(keys)))
    fields = {key: passage.fields[key] for key in keys}
    if passage.absent and rng.random() < _WITH_ABSENT:
        fields[rng.choice(passage.absent)] = None
    return fields


def _naming(fields: Mapping[str, object], passage: Passage, rng: random.Random) -> str:
    """A request that names its fields: in words, by a schema, or by a form to fill in."""
    point = rng.random()
    if point < 0.1:
        return expand(rng.choice(_SCHEMA), rng).replace("{schema}", _schema(fields, passage, rng))
    if point < 0.17:
        return expand(rng.choice(_FORM), rng).replace("{form}", _form(fields, rng))
    return expand(rng.choice(_NAMED), rng).replace("{keys}", _keys(fields, passage, rng))


def _keys(fields: Mapping[str, object], passage: Passage, rng: random.Random) -> str:
    """The keys as a request lists them: "the name and the age", `"name", "age"`, "name (string), age (integer)"."""
    style = rng.random()
    quote = rng.choice(("", "", '"', "`")) if style < 0.6 else ""
    named = [f"{quote}{key if style < 0.6 else spoken(key)}{quote}" for key in fields]
    if 0.6 < style < 0.75:
        named = [f"the {key}" for key in named]
    if rng.random() < 0.06:
        named = [
            f"{name} ({_TYPES.get(type(value), 'null')})" for name, value in zip(named, fields.values(), strict=True)
        ]
    elif rng.random() < 0.7:
        named = [f"{name} ({enumerated(passage.options[key], 'or')})" if key in passage.options else name
                 for name, key in zip(named, fields, strict=True)]  # fmt: skip
    return ", ".join(named) if rng.random() < 0.25 else enumerated(named)


def _schema(fields: Mapping[str, object], passage: Passage, rng: random.Random) -> str:
    properties = {}
    for key, value in fields.items():
        properties[key] = {"enum": list(passage.options[key])} if key in passage.options else _value_schema(value)
    schema: dict[str, object] = {"type": "object", "properties": properties}
    if rng.random() < 0.5:
        schema["required"] = list(fields)
    return json.dumps(schema, indent=rng.choice((None, None, None, 2)))


def _value_schema(value: object) -> dict[str, object]:
    if isinstance(value, list):
        return {"type": "array", "items": _value_schema(value[0])}
    if isinstance(value, dict):
        return {"type": "object", "properties": {key: _value_schema(item) for key, item in value.items()}}
    return {"type": ["string", "null"] if value is None else _TYPES[type(value)]}


def _form(fields: Mapping[str, object], rng: random.Random) -> str:
    """The object with types or gaps in the places of its values."""
    if rng.random() < 0.5:
        return as_json({key: "..." for key in fields})
    return "{" + ", ".join(f'"{key}": {_TYPES.get(type(value), "string")}' for key, value in fields.items()) + "}"


def _placed(request: str, text: str, rng: random.Random) -> tuple[Mapping[str, str], ...]:
    if rng.random() < _SYSTEM:
        return ({"role": "system", "content": request}, {"role": "user", "content": text})
    layouts, weights = zip(*_LAYOUTS, strict=True)
    layout = rng.choices(layouts, weights)[0]
    slots = {"{i}": request, "{c}": request.rstrip(".:"), "{t}": text}
    for slot, filled in slots.items():
        layout = layout.replace(slot, filled, 1)
    return ({"role": "user", "content": layout},)

"""Tool calls from published API descriptions: Google discovery documents and AWS service models, both Apache-2.0.

Fifty thousand real operations provide the names, descriptions and parameter types that people meet in practice; the
requests are generic sentences around them. The files are read from the wheels ``google_api_python_client`` and
``botocore`` as they come from the package registry; nothing of those packages is imported. Invented operations, made of
words that do not exist, come from here too.
"""

from __future__ import annotations

import gzip
import html
import json
import random
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from redraft.train.build.tool_grammar import Request, declare
from redraft.train.build.tool_values import Drawn, Values, made_up_word
from redraft.train.build.tool_words import listed
from redraft.train.build.word_forms import capital

HELDOUT_SHARE = 12
"""One service in this many is kept for evaluation."""

_MAX_DESCRIPTION, _MAX_PARAMETER_WORDS, _MAX_OPTIONS = 13, 8, 5
_REGIONS = listed("""
    us-east-1, us-west-2, eu-west-1, eu-central-1, ap-south-1, sa-east-1, ca-central-1, ap-northeast-2
""")
_SKIPPED = listed("""
    pageToken, NextToken, nextToken, Marker, DryRun, alt, fields, key, prettyPrint, requestId, etag, kind
""")


@dataclass(frozen=True, kw_only=True)
class ApiParameter:
    """One scalar or string-list parameter; ``type`` is a JSON schema type."""

    name: str
    type: str
    description: str
    options: tuple[str, ...]
    required: bool


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One API operation: ``words`` is its name in lower-case words, verb first where the source allows it."""

    service: str
    names: tuple[str, ...]
    words: str
    description: str
    parameters: tuple[ApiParameter, ...]


def is_heldout(service: str) -> bool:
    """Whether a service belongs to evaluation; all versions of a service count as one."""
    return zlib.crc32(re.sub(r"[\d\W_]+", "", service.lower()).encode()) % HELDOUT_SHARE == 0


def read_operations(google_wheel: Path, aws_wheel: Path) -> list[Operation]:
    """All operations with at least one usable parameter, one for each (service, words)."""
    found: dict[tuple[str, str], Operation] = {}
    for operation in (*_google(google_wheel), *_aws(aws_wheel)):
        if operation.parameters and operation.description:
            found.setdefault((operation.service, operation.words), operation)
    return list(found.values())


# --- Google discovery documents -------------------------------------------------------------------


def _google(wheel: Path) -> Iterator[Operation]:
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if "/discovery_cache/documents/" in name and name.endswith(".json") and not name.endswith("index.json"):
                document = json.loads(archive.read(name))
                for method in _methods(document):
                    yield _google_operation(document, method)


def _methods(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from node.get("methods", {}).values()
    for resource in node.get("resources", {}).values():
        yield from _methods(resource)


def _google_operation(document: Mapping[str, Any], method: Mapping[str, Any]) -> Operation:
    parts = method["id"].split(".")
    verb, noun = _words(parts[-1]), _words(parts[-2])
    body = document.get("schemas", {}).get(method.get("request", {}).get("$ref"), {}).get("properties", {})
    fields = {**body, **method.get("parameters", {})}
    return Operation(
        service=document["name"],
        names=(
            f"{parts[-2]}_{parts[-1]}",
            f"{verb} {noun}".replace(" ", "_"),
            ".".join(parts[-3:]),
            f"{parts[0]}_{parts[-2]}_{parts[-1]}",
        ),
        words=f"{verb} {noun}",
        description=_first_sentence(method.get("description", "")),
        parameters=tuple(filter(None, (_google_parameter(name, field) for name, field in fields.items()))),
    )


def _google_parameter(name: str, field: Mapping[str, Any]) -> ApiParameter | None:
    kind, text = field.get("type"), field.get("description", "")
    if field.get("repeated") or (kind == "array" and field.get("items", {}).get("type") == "string"):
        kind = "array"
    if kind not in ("string", "integer", "number", "boolean", "array") or field.get("readOnly") or "utput only" in text:
        return None
    if field.get("format") in ("int64", "uint64"):
        kind = "integer"
    options = tuple(option for option in field.get("enum", ()) if not option.endswith("UNSPECIFIED"))
    return _parameter(name, kind, text, options, bool(field.get("required")))


# --- AWS service models ---------------------------------------------------------------------------


def _aws(wheel: Path) -> Iterator[Operation]:
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if re.search(r"/service-2\.json(\.gz)?$", name):
                raw = archive.read(name)
                model = json.loads(gzip.decompress(raw) if name.endswith(".gz") else raw)
                yield from _aws_operations(name.split("/")[2], model)


def _aws_operations(service: str, model: Mapping[str, Any]) -> Iterator[Operation]:
    for name, operation in model["operations"].items():
        shape = model["shapes"].get(operation.get("input", {}).get("shape"), {})
        required = set(shape.get("required", ()))
        members = shape.get("members", {})
        parameters = (_aws_parameter(key, member, model["shapes"], key in required) for key, member in members.items())
        words = _words(name)
        snake = words.replace(" ", "_")
        yield Operation(
            service=service,
            names=(name, snake, snake, f"{re.sub('[^a-z0-9]', '_', service)}_{snake}"),
            words=words,
            description=_first_sentence(operation.get("documentation", "")),
            parameters=tuple(filter(None, parameters)),
        )


def _aws_parameter(
    name: str, member: Mapping[str, Any], shapes: Mapping[str, Any], required: bool
) -> ApiParameter | None:
    shape = shapes[member["shape"]]
    kind = {
        "string": "string",
        "timestamp": "string",
        "integer": "integer",
        "long": "integer",
        "float": "number",
        "double": "number",
        "boolean": "boolean",
    }.get(shape["type"])
    if shape["type"] == "list" and shapes[shape["member"]["shape"]]["type"] == "string":
        kind = "array"
    if kind is None:
        return None
    return _parameter(name, kind, member.get("documentation", ""), tuple(shape.get("enum", ())), required)


# --- text -----------------------------------------------------------------------------------------


def _parameter(name: str, kind: str, text: str, options: tuple[str, ...], required: bool) -> ApiParameter | None:
    if name in _SKIPPED or not re.fullmatch(r"[A-Za-z]\w{0,30}", name):
        return None
    description = _cut(_first_sentence(text), _MAX_PARAMETER_WORDS)
    usable = tuple(option for option in options if re.fullmatch(r"[\w.\-]{1,32}", option))
    return ApiParameter(
        name=name, type=kind, description=description, options=usable if kind == "string" else (), required=required
    )


def _words(name: str) -> str:
    """``ListBucketsV2`` and ``listBucketsV2`` -> ``list buckets v2``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[_\-]+", " ", name).lower()


def _first_sentence(text: str) -> str:
    plain = html.unescape(re.sub(r"<[^>]*>", " ", text))
    plain = re.sub(r"\s+", " ", re.sub(r"^(Required|Optional|Immutable|Input only)\. ", "", plain.strip()))
    plain = plain.encode("ascii", "ignore").decode().split(". ")[0].strip().rstrip(".:")
    return _cut(re.sub(r"\s*\([^)]*\)", "", plain), _MAX_DESCRIPTION)


def _cut(text: str, words: int) -> str:
    parts = text.split(" ")
    if len(parts) <= words:
        return text
    kept = parts[:words]
    while len(kept) > 1 and kept[-1].lower().strip(",") in _DANGLING:
        kept.pop()
    return " ".join(kept).rstrip(",;:")


_DANGLING = listed("""
    a, an, the, of, to, in, for, on, by, with, and, or, that, which, from, as, is, are, be, this, its, your, if, at, it,
    can, you, when, into
""")


def _imperative(operation: Operation) -> str:
    """What the operation does as a command: its description with the verb in the base form, else its name in words."""
    first, _, rest = operation.description.partition(" ")
    verb = operation.words.split(" ")[0]
    if rest and first.lower() in (verb, verb + "s", verb + "es", verb[:-1] + "ies"):
        return f"{verb} {_cut(rest, 9)}"
    if rest and re.fullmatch(r"[A-Z][a-z]+s", first) and not first.endswith("ss") and first != "This":
        return f"{_base_form(first.lower())} {_cut(rest, 9)}"
    return operation.words


def _base_form(verb: str) -> str:
    if verb.endswith("ies"):
        return verb[:-3] + "y"
    return verb[:-2] if verb.endswith(("shes", "ches", "sses", "xes", "zzes")) else verb[:-1]


# --- drawing --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ApiTool:
    """A drawn variant of an operation."""

    operation: Operation
    name: str
    declaration: dict[str, object]
    parameters: tuple[ApiParameter, ...]


def draw_api_tool(operation: Operation, values: Values, most: int = 4) -> ApiTool:
    """Declares ``operation`` with up to ``most`` of its parameters, required ones first."""
    rng = values.rng
    wanted = rng.randint(1, most)
    pool = sorted(operation.parameters, key=lambda p: (not p.required, rng.random()))[:wanted]
    rng.shuffle(pool)
    chosen = tuple(_with_fewer_options(parameter, rng) for parameter in pool)
    described = rng.random() < 0.5
    name = rng.choice(operation.names)
    schema: dict[str, object] = {"type": "object", "properties": {p.name: _schema(p, described) for p in chosen}}
    required = [p.name for p in chosen if p.required]
    if required:
        schema["required"] = required
    return ApiTool(
        operation=operation, name=name, declaration=declare(name, operation.description, schema), parameters=chosen
    )


def _with_fewer_options(parameter: ApiParameter, rng: random.Random) -> ApiParameter:
    if len(parameter.options) <= _MAX_OPTIONS:
        return parameter
    kept = tuple(rng.sample(parameter.options, rng.randint(2, _MAX_OPTIONS)))
    return replace(parameter, options=kept)


def _schema(parameter: ApiParameter, described: bool) -> dict[str, object]:
    schema: dict[str, object] = {"type": parameter.type}
    if described and parameter.description:
        schema["description"] = parameter.description
    if parameter.options:
        schema["enum"] = list(parameter.options)
    if parameter.type == "array":
        schema["items"] = {"type": "string"}
    return schema


_FORMS = (
    ("{do} with {}.", "{p} {v}", " and "),
    ("Please {do} with {}.", "{p} {v}", " and "),
    ("Call {fn} with {}.", "{p} set to {v}", " and "),
    ("{do}. Use {}.", "{v} as the {p}", " and "),
    ("{do}: {}", "{p}={v}", ", "),
    ("I want to {do}; {}.", "the {p} is {v}", " and "),
    ("{do} where {}.", "{p} is {v}", " and "),
    ("Can you {do} with {}?", "the {p} {v}", " and "),
    ("Run {fn}, {}.", "{p}: {v}", ", "),
    ("{do} for {}.", "{p} {v}", ", "),
    ("Use {fn} to {do} with {}.", "{p} {v}", " and "),
    ("{}. {do}, please.", "{p} = {v}", ", "),
    ("I need to {do}. {}.", "The {p} should be {v}", ". "),
    ("{do} and set {}.", "{p} to {v}", " and "),
)


def draw_api_request(tool: ApiTool, values: Values) -> Request:
    """A request that names every required argument and some of the others."""
    rng = values.rng
    used = [p for p in tool.parameters if p.required or rng.random() < 0.6] or [tool.parameters[0]]
    form, pair, joint = rng.choice(_FORMS)
    plain_names = rng.random() < 0.35
    arguments: dict[str, object] = {}
    phrases: list[str] = []
    for parameter in used:
        drawn = draw_api_value(parameter, values)
        arguments[parameter.name] = drawn.value
        phrases.append(
            pair.replace("{p}", parameter.name if plain_names else _words(parameter.name)).replace("{v}", drawn.text)
        )
    text = (
        form.replace("{do}", _imperative(tool.operation))
        .replace("{fn}", tool.name)
        .replace("{}", joint.join(phrases), 1)
    )
    return Request(text=text if text.startswith(tuple(arguments)) else capital(text), arguments=arguments)


_KINDS_BY_NAME = (
    ("mail", ("EMAIL",)),
    ("url|uri|link|endpoint|website", ("URL",)),
    ("date|day", ("DATE",)),
    ("time", ("TIME", "DATE")),
    ("arn", ("ARN",)),
    ("region|zone|location", ("REGION",)),
    ("phone", ("PHONE",)),
    ("currency", ("CURRENCY",)),
    ("language|locale", ("LANGUAGE",)),
    ("version", ("VERSION",)),
    ("path|file|folder|prefix|directory|object", ("PATH", "FOLDER")),
    ("city", ("CITY",)),
    ("country", ("COUNTRY",)),
    ("description|text|message|content|comment|reason|note|body|summary|details", ("TEXT", "TITLE")),
    ("query|filter|search|expression", ("CONDITION", "WORD")),
    ("owner|author|person|contact|member", ("PERSON", "EMAIL")),
    ("title|display|subject", ("TITLE",)),
    ("id$|key|token|hash|number|code|parent", ("ID", "HEX", "SLUG")),
    ("name|group|domain|bucket|table|project|user|account|tag|label|type", ("SLUG", "WORD", "TABLE")),
    ("", ("WORD", "SLUG", "ID", "TITLE")),
)


def draw_api_value(parameter: ApiParameter, values: Values) -> Drawn:
    """A value that suits the type and name of ``parameter``."""
    rng = values.rng
    if parameter.type == "boolean":
        value = rng.random() < 0.5
        return Drawn(value=value, text="true" if value else "false")
    if parameter.type == "integer":
        return values.integer(1, rng.choice([10, 100, 100, 5000, 90000]))
    if parameter.type == "number":
        return values.number(0.1, rng.choice([1, 100, 1000]))
    if parameter.type == "array":
        return values.several(lambda: _plain(parameter.name, values), 1, 3)
    if parameter.options:
        option = rng.choice(parameter.options)
        return Drawn(value=option, text=option)
    return _plain(parameter.name, values)


def _plain(name: str, values: Values) -> Drawn:
    kind = next(
        values.rng.choice(kinds) for pattern, kinds in _KINDS_BY_NAME if re.search(pattern, name, re.IGNORECASE)
    )
    if kind == "REGION":
        region = values.rng.choice(_REGIONS)
        return Drawn(value=region, text=region)
    if kind == "ARN":
        arn = f"arn:aws:{values.string('WORD')}:{values.string('HEX')}"
        return Drawn(value=arn, text=arn)
    return values.written(kind)


# --- invented operations --------------------------------------------------------------------------


def invented_operation(rng: random.Random, values: Values) -> Operation:
    """An operation on things that do not exist: only the declaration says what its names mean."""
    verb = made_up_word(rng, 1, 2) if rng.random() < 0.5 else values.string("WORD")
    noun = made_up_word(rng, 1, 3) if rng.random() < 0.6 else values.string("WORD")
    parameters = tuple(_invented_parameter(rng, values) for _ in range(rng.randint(1, 4)))
    unique = {parameter.name: parameter for parameter in parameters}
    return Operation(
        service="invented",
        names=(
            f"{verb}_{noun}",
            f"{verb}{noun.capitalize()}",
            f"{noun}.{verb}",
            f"{verb.capitalize()}{noun.capitalize()}",
        ),
        words=f"{verb} {noun}",
        description=rng.choice(
            [f"{verb.capitalize()} the {noun}", f"{verb.capitalize()} a {noun}", f"Tool to {verb} some {noun}"]
        ),
        parameters=tuple(unique.values()),
    )


def _invented_parameter(rng: random.Random, values: Values) -> ApiParameter:
    name = made_up_word(rng, 1, 2) if rng.random() < 0.4 else values.string("WORD")
    if rng.random() < 0.25:
        name = f"{name}_{rng.choice(['id', 'name', 'count', 'size', 'mode', 'date', 'level', 'path', 'email'])}"
    kind = rng.choices(["string", "integer", "number", "boolean", "array"], [5, 3, 1, 1, 1])[0]
    options = (
        tuple(made_up_word(rng) for _ in range(rng.randint(2, 4))) if kind == "string" and rng.random() < 0.25 else ()
    )
    description = rng.choice(["", f"The {name.replace('_', ' ')}", f"{name.replace('_', ' ').capitalize()} to use"])
    return ApiParameter(name=name, type=kind, description=description, options=options, required=rng.random() < 0.7)

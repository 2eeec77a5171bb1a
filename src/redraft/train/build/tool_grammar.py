"""A small language for tools and the requests that call them: its reader, and drawing (declaration, request, call).

The tables in ``tool_domains_*.py`` contain some two hundred hand-written tools. A drawn tool varies: one of its names,
one spelling style, one alias for every parameter, descriptions that come and go, optional parameters that the
declaration leaves out. So a thousand draws declare nearly a thousand different tools, and only reading the declaration
tells which names the call must use.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from redraft.train.build import tool_domains_everyday, tool_domains_heldout, tool_domains_second, tool_domains_work
from redraft.train.build.tool_values import STRING_KINDS, Drawn, Values
from redraft.train.build.word_forms import camel, capital

_PARAMETER = re.compile(r"([\w/]+)(!?)=(\w+)(?:\((.*?)\))?(?::(.*))?$")
_SLOT = re.compile(r"\{(\w+)(?::([^{}|]*)\|([^{}]*))?\}")
_OPTIONAL = re.compile(r"\[([^\[\]]*)\]")
_SPOKEN_DATE = re.compile(r"\bon (?=today\b|tomorrow\b|next \w+day\b|this \w+day\b)")
_NO_PARAMETERS = "()"


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter: its possible names (the first is the slot in request lines), kind and bounds or options."""

    names: tuple[str, ...]
    required: bool
    kind: str
    options: tuple[str, ...]
    description: str


@dataclass(frozen=True, kw_only=True)
class Action:
    """A tool with the ways to ask for it; a request line starts with ``-`` (imperative) or ``?`` (whole sentence)."""

    domain: str
    group: str
    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    requests: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A drawn variant of an action: what is declared. ``renamed`` maps slots to declared parameter names."""

    action: Action
    name: str
    declaration: dict[str, object]
    renamed: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request in words and the arguments that answer it."""

    text: str
    arguments: dict[str, object]


# --- reading --------------------------------------------------------------------------------------


def read_grammar(text: str) -> list[Action]:
    """All actions of a grammar text. A line that does not parse raises ``ValueError`` with the line."""
    actions: list[Action] = []
    domain = group = ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for i, line in enumerate(lines):
        if line.startswith("@"):
            domain, group = line[1:].split()
        elif "::" in line:
            requests = _following_requests(lines, i + 2)
            actions.append(_action(domain, group, line, lines[i + 1], requests))
    return actions


def _following_requests(lines: list[str], start: int) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    for line in lines[start:]:
        if line[0] not in "-?":
            break
        found.append((line[0], line[1:].strip()))
    return tuple(found)


def _action(domain: str, group: str, head: str, parameters: str, requests: tuple[tuple[str, str], ...]) -> Action:
    names, descriptions = head.split(" :: ")
    action = Action(
        domain=domain,
        group=group,
        names=tuple(names.split("/")),
        descriptions=tuple(descriptions.split("/")),
        parameters=tuple(_parameter(part.strip()) for part in parameters.split(";") if part != _NO_PARAMETERS),
        requests=requests,
    )
    _check(action)
    return action


def _parameter(text: str) -> Parameter:
    match = _PARAMETER.match(text.replace("LIST(NUM(1,99))", "NUMBERS"))
    if match is None:
        raise ValueError(f"not a parameter of the tool grammar: {text!r}")
    names, required, kind, options, description = match.groups()
    return Parameter(
        names=tuple(names.split("/")),
        required=required == "!",
        kind=kind,
        options=tuple((options or "").split(",")),
        description=description or "",
    )


def _check(action: Action) -> None:
    """There must be request lines, each of which names only known slots, and all the required ones outside brackets."""
    if not action.requests:
        raise ValueError(f"{action.names[0]} has no request line")
    known = {parameter.names[0] for parameter in action.parameters}
    required = {parameter.names[0] for parameter in action.parameters if parameter.required}
    for _, line in action.requests:
        if not _slots_of(line) <= known or not required <= _slots_of(_OPTIONAL.sub("", line)):
            raise ValueError(f"request line of {action.names[0]} has wrong slots: {line!r}")


@functools.cache
def training_actions() -> tuple[Action, ...]:
    """The actions that training documents use."""
    return (*read_grammar(tool_domains_everyday.TEXT), *read_grammar(tool_domains_work.TEXT))


@functools.cache
def heldout_actions() -> tuple[Action, ...]:
    """The actions kept for evaluation."""
    return tuple(read_grammar(tool_domains_heldout.TEXT))


@functools.cache
def second_actions() -> tuple[Action, ...]:
    """The actions of the second evaluation, whose mistakes have never been examined."""
    return tuple(read_grammar(tool_domains_second.TEXT))


# --- drawing tools --------------------------------------------------------------------------------


def _restyled(name: str, style: str) -> str:
    joined = camel(name.split("_"))
    return {"snake": name, "camel": joined, "pascal": capital(joined)}[style]


def draw_tool(action: Action, values: Values) -> Tool:
    """One variant of ``action`` as a function declaration."""
    rng = values.rng
    style = rng.choices(["snake", "camel", "pascal"], [8, 2, 1])[0]
    described = rng.random() < 0.75
    # One request line stays possible whatever is dropped: the slots it always names are declared.
    needed = _slots_of(_OPTIONAL.sub("", rng.choice(action.requests)[1]))
    kept = [p for p in action.parameters if p.required or p.names[0] in needed or rng.random() < 0.75]
    renamed = {p.names[0]: _restyled(_alias(p, values), "snake" if style == "snake" else "camel") for p in kept}
    properties = {renamed[p.names[0]]: _schema(p, described) for p in kept}
    required = [renamed[p.names[0]] for p in kept if p.required]
    schema: dict[str, object] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    name = _restyled(rng.choice(action.names), style)
    if rng.random() < 0.08:
        name = f"{action.domain}.{name}"
    return Tool(
        action=action, name=name, declaration=declare(name, rng.choice(action.descriptions), schema), renamed=renamed
    )


def declare(name: str, description: str, schema: dict[str, object]) -> dict[str, object]:
    """A function declaration in the shape that chat templates take."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _alias(parameter: Parameter, values: Values) -> str:
    return parameter.names[0] if values.rng.random() < 0.5 else values.rng.choice(parameter.names)


def _schema(parameter: Parameter, described: bool) -> dict[str, object]:
    schema: dict[str, object] = {"type": _json_type(parameter)}
    if described and parameter.description:
        schema["description"] = parameter.description
    if parameter.kind == "ENUM":
        schema["enum"] = list(parameter.options)
    if parameter.kind in ("LIST", "NUMBERS"):
        schema["items"] = {"type": "number" if parameter.kind == "NUMBERS" else "string"}
    return schema


def _json_type(parameter: Parameter) -> str:
    named = {
        "INT": "integer",
        "NUM": "number",
        "MONEY": "number",
        "BOOL": "boolean",
        "LIST": "array",
        "NUMBERS": "array",
        "ENUM": "string",
    }
    assert parameter.kind in named or parameter.kind in STRING_KINDS, parameter.kind
    return named.get(parameter.kind, "string")


# --- drawing requests -----------------------------------------------------------------------------

_WRAPPERS = (
    "{}.", "{}.", "{}", "Please {}.", "Please {}", "Can you {}?", "Could you {}?", "Could you please {}?",
    "I need you to {}.", "I want you to {}.",
    "Would you {}?", "Hey, {}.", "Hi, can you {}?", "{}, please.", "I'd like you to {}.", "Go ahead and {}.",
    "Now {}.", "Can you please {} for me?",
    "Help me {}.", "I would like to {}.", "{} now.", "Let's {}.", "Quickly {}!", "Hello! Please {}.",
)  # fmt: skip


def draw_request(tool: Tool, values: Values) -> Request:
    """A request that ``tool`` answers, with its arguments under the declared names."""
    kind, line = values.rng.choice(_usable(tool))
    line = _choose_optional(line, tool, values)
    arguments: dict[str, object] = {}
    slots = {parameter.names[0]: parameter for parameter in tool.action.parameters}

    def written(match: re.Match[str]) -> str:
        drawn = _draw(slots[match[1]], match[2], match[3], values)
        while any(drawn.value == other for other in arguments.values()) and not isinstance(drawn.value, bool):
            drawn = _draw(slots[match[1]], match[2], match[3], values)
        arguments[tool.renamed[match[1]]] = drawn.value
        return drawn.text

    text = _SPOKEN_DATE.sub("", _SLOT.sub(written, line))
    sentence = _wrapped(text, values) if kind == "-" else capital(text)
    return Request(text=_surrounded(sentence, values), arguments=arguments)


def _usable(tool: Tool) -> list[tuple[str, str]]:
    return [
        (kind, line) for kind, line in tool.action.requests if _slots_of(_OPTIONAL.sub("", line)) <= tool.renamed.keys()
    ]


def _slots_of(text: str) -> set[str]:
    return {match[1] for match in _SLOT.finditer(text)}


def _choose_optional(line: str, tool: Tool, values: Values) -> str:
    """Keeps each bracketed part at random; a part about an undeclared parameter is always dropped."""

    def part(match: re.Match[str]) -> str:
        declared = _slots_of(match[1]) <= tool.renamed.keys()
        return match[1] if declared and values.rng.random() < 0.55 else ""

    return re.sub(r"  +", " ", _OPTIONAL.sub(part, line)).strip()


def _draw(parameter: Parameter, yes: str | None, no: str | None, values: Values) -> Drawn:
    """A value of ``parameter`` in words; ``yes`` and ``no`` are the phrases of a boolean."""
    if parameter.kind == "BOOL":
        value = values.rng.random() < 0.5
        return Drawn(value=value, text=(yes if value else no) or "")
    if parameter.kind == "ENUM":
        return values.choice(list(parameter.options))
    if parameter.kind == "INT":
        return values.integer(*map(int, parameter.options))
    if parameter.kind == "NUM":
        return values.number(*map(float, parameter.options))
    if parameter.kind == "MONEY":
        return values.money()
    if parameter.kind == "NUMBERS":
        return values.several(lambda: values.number(1, 99), 3, 6)
    if parameter.kind == "LIST":
        return values.several(lambda: Drawn(value=(text := values.string(parameter.options[0])), text=text))
    return values.written(parameter.kind)


def _wrapped(imperative: str, values: Values) -> str:
    # A full stop after an address or a path would blur where the value ends.
    clean = (
        imperative.endswith(("?", "!", "."))
        or "://" in imperative[-40:]
        or "@" in imperative[-30:]
        or "/" in imperative[-20:]
    )
    text = imperative if clean else values.rng.choice(_WRAPPERS).format(imperative)
    if clean and values.rng.random() < 0.5:
        text = values.rng.choice(("Please ", "Now ", "Hi, please ", "I need you to ")) + imperative
    lowered = values.rng.random() < 0.1
    return text if lowered else capital(text)


_BEFORE = (
    "I am in a hurry.", "My sister is visiting next month.", "It has been a long day.", "I hope you can help me.",
    "Sorry to bother you again.",
    "I have a quick question.", "We are getting ready for the weekend.", "My boss asked me for this.",
    "One more thing.", "Good morning!",
    "Hello there.", "I just got home.", "I almost forgot about this.", "Thanks for your help so far.",
    "I am working on something.",
)  # fmt: skip
_AFTER = (
    "Thanks!",
    "Thank you.",
    "That would be great.",
    "I would appreciate it.",
    "Let me know when it is done.",
    "Cheers!",
    "No rush.",
)


def _surrounded(sentence: str, values: Values) -> str:
    """Sometimes adds a sentence that has nothing to do with the call."""
    rng = values.rng
    if rng.random() < 0.1:
        sentence = f"{rng.choice(_BEFORE)} {sentence}"
    closed = sentence.endswith((".", "?", "!"))
    return f"{sentence} {rng.choice(_AFTER)}" if closed and rng.random() < 0.08 else sentence

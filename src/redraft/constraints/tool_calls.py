"""Tool calls as the model writes them: the right names, the right arguments, the right types.

The format is that of `text.tools`: `<|tool_call>call:NAME{key:value,…}<tool_call|>`, several of them one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from redraft.constraints.automaton import Budget
from redraft.constraints.expression import Expression, Mark, alt, repeat, seq, text
from redraft.constraints.json_schema import check_json, compile_schema
from redraft.constraints.json_schema.keywords import ENFORCED, REFUSED
from redraft.constraints.json_schema.style import CALL
from redraft.errors import ConstraintError, about
from redraft.text.messages import check_tools
from redraft.text.tools import CALL_CLOSE, CALL_OPEN

_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "additionalProperties": False}
_DECLARES_NONE: Mapping[str, Any] = {"properties": {}, "required": []}
"""What parameters that declare no argument may contain."""


@about("tools")
def check_choice(tools: Sequence[Mapping[str, Any]] | None, choice: Any) -> None:
    """Raise `InputError` unless `tools` are declarations and `choice` is a mode or one of their names."""
    check_tools(tools)
    for tool in tools or ():
        with _named(tool["function"]):
            check_json(tool["function"].get("parameters"))
    if choice is None or (choice in ("auto", "none") if isinstance(choice, str) else False):
        return
    if not tools:
        raise ConstraintError("tool_choice asks for a call, but no tools are declared.", "tool_choice")
    chosen_tools(tools, choice)


def chosen_tools(tools: Sequence[Mapping[str, Any]], choice: Any) -> list[Mapping[str, Any]]:
    """The declarations that a `choice` allows the answer to call."""
    declared = [tool["function"] for tool in tools]
    if choice in ("auto", "required"):
        return declared
    name = choice
    if isinstance(choice, Mapping):
        inner = choice.get("function", choice)
        name = inner.get("name") if isinstance(inner, Mapping) else None
    found = [function for function in declared if function["name"] == name]
    if not found:
        names = ", ".join(function["name"] for function in declared)
        if isinstance(choice, Mapping):
            raise ConstraintError(f"tool_choice names {name!r}; the tools are {names}.", "tool_choice")
        raise ConstraintError(
            f"tool_choice is {name!r}; it must be auto, none, required or one of {names}.", "tool_choice"
        )
    return found


@about("tools")
def call_grammar(tools: Sequence[Mapping[str, Any]], choice: Any, budget: Budget, *, several: bool) -> Expression:
    """One call, or several where `several` is set; a `choice` that names a tool means one call of it.

    Whatever cannot be enforced of a tool's parameters is left out, unless its declaration is `strict`.
    """
    call = alt(*(_call(function, budget) for function in chosen_tools(tools, choice)))
    return repeat(call, 1) if several and choice in ("auto", "required") else call


def _call(function: Mapping[str, Any], budget: Budget) -> Expression:
    strict, parameters = bool(function.get("strict")), function.get("parameters") or {}
    with _named(function):
        _check_kind(parameters)
        parameters = _NO_ARGUMENTS if _declares_none(parameters) else parameters
        arguments = compile_schema(parameters, budget, strict=strict, style=CALL, also={"type": "object"})
    return seq(Mark(CALL_OPEN), text(f"call:{function['name']}"), arguments, Mark(CALL_CLOSE))


@contextmanager
def _named(function: Mapping[str, Any]) -> Iterator[None]:
    """Errors in a tool's parameters mention its name."""
    try:
        yield
    except ConstraintError as error:
        raise ConstraintError(f"The parameters of the tool {function['name']!r}: {error}") from error


def _check_kind(parameters: Mapping[str, Any]) -> None:
    """Parameters are an object, whether or not they declare it."""
    kinds = parameters.get("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        raise ConstraintError(f"The schema keyword 'type' has the value {kinds!r}, but arguments are an object.")


def _declares_none(parameters: Mapping[str, Any]) -> bool:
    """Whether parameters mention no argument at all, as `{"type": "object", "properties": {}}`: then there is none."""
    said = {name: parameters[name] for name in (ENFORCED | REFUSED) & (parameters.keys() - {"type"})}
    return {**_DECLARES_NONE, **said} == _DECLARES_NONE

"""The form of an answer that is decided, not written: a template whose slots take one choice each.

Every choice of a slot makes one string of tokens, the whole answer up to there, tokenised as a whole so that no token
boundary is forced at the slot's edges. Choosing is then a walk through the tree of these strings, and only where they
branch is there anything to read.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from redraft.errors import SettingError, check_utf8
from redraft.text.tokenizer import Span, Tokenizer

CHOICE = "choice"
"""Name of the only slot when no template is given."""

Strings = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Form:
    """`literals` are the texts around the slots; `ends` says that the answer is over after the last one."""

    literals: tuple[str, ...]
    names: tuple[str, ...]
    choices: tuple[tuple[str, ...], ...]
    ends: bool

    @classmethod
    def of(
        cls, choices: Sequence[str] | Mapping[str, Sequence[str]], template: str | None = None, *, ends: bool = True
    ) -> Form:
        """A form from a list of choices, or from named slots; without a template one slot per line, "name: {name}".

        Raises `SettingError` for a template that does not contain every slot once, for choices that cannot differ, and
        for what is of the wrong type.
        """
        if not isinstance(ends, bool):
            raise SettingError(f"ends is {ends!r}; it must be True or False.", "ends")
        slots = choices if isinstance(choices, Mapping) else {CHOICE: choices}
        if not slots:
            raise SettingError("choices has no slot; give the choices of each by its name.", "choices")
        if wrong := [name for name in slots if not (isinstance(name, str) and name.isidentifier())]:
            sentence = "a slot's name must be a string of letters, digits and underscores that begins with no digit."
            raise SettingError(f"choices has the slot {wrong[0]!r}; {sentence}", "choices")
        if template is None:
            template = "\n".join(f"{name}: {{{name}}}" for name in slots) if slots is choices else f"{{{CHOICE}}}"
        elif isinstance(template, str):
            check_utf8(template, "template", SettingError)
        literals, names = _parse(template)
        if len(names) != len(slots) or set(names) != set(slots):
            raise SettingError(
                f"The template has the slots {_listed(names)}; choices are given for {_listed(list(slots))}.",
                "template",
            )
        checked = tuple(_checked(name, slots[name]) for name in names)
        for name, texts in zip(names, checked, strict=True):
            place = f"choices.{name}" if slots is choices else "choices"
            for index, text in enumerate(texts):
                check_utf8(text, f"{place}[{index}]", SettingError)
        return cls(tuple(literals), tuple(names), checked, ends)

    def fill(self, values: Sequence[str]) -> str:
        """The answer's text up to the slot after the given values."""
        pairs = zip(values, self.literals[1:], strict=False)
        return self.literals[0] + "".join(value + literal for value, literal in pairs)

    def strings(self, tokenizer: Tokenizer, values: Sequence[str]) -> Strings:
        """Token ids of the answer with each choice of the next slot, up to the slot after it or the answer's end."""
        slot = len(values)
        encoded = [self._encoded(tokenizer, [*values, choice]) for choice in self.choices[slot]]
        if self.ends and slot == len(self.names) - 1:
            longest = max(map(len, encoded))
            tail = (tokenizer.eos_id,) * longest
            encoded = [(*ids, tokenizer.turn_end_id, *tail[len(ids) :]) for ids in encoded]
        _check_branches(encoded, self.choices[slot])
        return tuple(encoded)

    def _encoded(self, tokenizer: Tokenizer, values: Sequence[str]) -> tuple[int, ...]:
        """The filled text, in which only the special strings of literals are special tokens."""
        spans: list[Span] = []
        for slot, literal in enumerate(self.literals[: len(values) + 1]):
            at = len(self.fill(values[:slot])) - len(literal)
            spans += [(at + start, at + end) for start, end in tokenizer.special_spans(literal)]
        return tuple(tokenizer.encode_marked(self.fill(values), spans))


@dataclass(frozen=True, slots=True)
class Branch:
    """A place where strings diverge: they agree up to position `at`, and each continues with one of `tokens`.

    `members[i]` are the numbers of the choices that continue with tokens[i].
    """

    at: int
    tokens: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]

    @property
    def choices(self) -> tuple[int, ...]:
        """Numbers of all choices that pass here."""
        return tuple(sorted(number for group in self.members for number in group))


def branches(strings: Strings) -> list[Branch]:
    """All places where the strings diverge, root first; at most one fewer than there are strings."""
    diverging, waiting = list[Branch](), [(tuple(range(len(strings))), 0)]
    while waiting:
        numbers, at = waiting.pop()
        if len(numbers) < 2:
            continue
        while len({strings[number][at] for number in numbers}) == 1:
            at += 1
        groups: dict[int, list[int]] = {}
        for number in numbers:
            groups.setdefault(strings[number][at], []).append(number)
        members = tuple(map(tuple, groups.values()))
        diverging.append(Branch(at, tuple(groups), members))
        waiting += [(group, at + 1) for group in reversed(members)]
    return diverging


def _parse(template: str) -> tuple[list[str], list[str]]:
    """Literals and slot names of a template; there is one literal more than names."""
    if not isinstance(template, str):
        raise SettingError(f"The template is {template!r}; it must be a string.", "template")
    literals, names = [""], list[str]()
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise SettingError(f"The template cannot be read: {error}.", "template") from error
    for literal, name, spec, conversion in parts:
        literals[-1] += literal
        if name is None:
            continue
        if not name.isidentifier() or spec or conversion:
            more = (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            raise SettingError(
                f"The template has the slot {{{name}{more}}}; a slot must be a name in braces and nothing more.",
                "template",
            )
        names.append(name)
        literals.append("")
    if not names:
        raise SettingError("The template has no slot; write its name in braces.", "template")
    return literals, names


def _checked(name: str, choices: Sequence[str]) -> tuple[str, ...]:
    if isinstance(choices, str) or not isinstance(choices, Sequence) or len(choices) < 2:
        raise SettingError(f"The slot {name!r} needs a list of at least two choices.", "choices")
    if not all(isinstance(choice, str) and choice for choice in choices):
        raise SettingError(f"The choices of {name!r} must be non-empty strings.", "choices")
    if len(set(choices)) < len(choices):
        raise SettingError(f"The slot {name!r} has the same choice twice.", "choices")
    return tuple(choices)


def _check_branches(strings: Sequence[tuple[int, ...]], choices: Sequence[str]) -> None:
    """A string that is the beginning of another one can never be told from it."""
    ordered = sorted(zip(strings, choices, strict=True))
    for (first, choice), (second, longer) in pairwise(ordered):
        if second[: len(first)] == first:
            raise SettingError(
                f"The choice {longer!r} begins with {choice!r} and nothing follows the slot; put text after it.",
                "choices",
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"

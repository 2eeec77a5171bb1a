"""Kinds of edits: each turns some lines into an instruction and the lines after it, or returns None if not applicable.

A new kind is a function here and an entry in `PYTHON` or `ENGLISH`.
"""

from __future__ import annotations

import builtins
import keyword
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Lines = list[str]


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is asked, and the lines of the span afterwards."""

    instruction: str
    lines: Lines


Maker = Callable[[Lines, Sequence[str], random.Random], Change | None]
"""(lines, names to choose new ones from, random numbers) to a change."""

_WORD = re.compile(r"[A-Za-z_]\w*")
_NUMBER = re.compile(r"(?<![\w.])\d{1,4}(?![\w.])")
_STRING = re.compile(r"(?<=[\s(\[{=,])([\"'])([A-Za-z][\w -]{0,24})\1")
_ASSIGNED = re.compile(r"^\s*([A-Za-z_][\w.]*) = ")
_KEPT = frozenset(keyword.kwlist) | frozenset(dir(builtins)) | {"self", "cls"}
_SWITCHED = {"True": "False", "False": "True"}
_COMPARED = {"==": "!=", "!=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "is": "is not", "in": "not in"}
_JOINED = {"and": "or", "or": "and"}
_ORDINALS = ("first", "second", "third", "fourth")


def words_of(texts: Sequence[str]) -> list[str]:
    """Names that occur in `texts`, each once, in order."""
    found = dict.fromkeys(word for text in texts for word in _WORD.findall(text))
    return [word for word in found if 3 <= len(word) <= 20 and word not in _KEPT and not word.startswith("__")]


def rename(lines: Lines, names: Sequence[str], rng: random.Random) -> Change | None:
    """Another name for a variable, function or attribute, wherever it occurs."""
    old = _choose([word for word in _WORD.findall(_code(lines)) if word not in _KEPT and len(word) > 1], rng)
    new = _choose([name for name in names if _same_shape(name, old)], rng) if old else None
    if old is None or new is None or new in _code(lines):
        return None
    asked = rng.choice((
        "Rename {old} to {new}", "Call {old} {new}", "Use the name {new} instead of {old}", "Change {old} to {new}",
        "{old} is called {new} now", "Replace {old} with {new}", "rename {old} to {new}",
    ))  # fmt: skip
    return _replaced(lines, old, new, asked, rng)


def number(lines: Lines, names: Sequence[str], rng: random.Random) -> Change | None:
    """Another whole number."""
    old = _choose(_NUMBER.findall(_code(lines)), rng)
    if old is None:
        return None
    new = str(rng.choice((rng.randint(0, 20), rng.randint(0, 999), int(old) + 1, int(old) * 2)))
    asked = ["Change {old} to {new}", "Use {new} instead of {old}", "Replace {old} with {new}", "Make {old} {new}"]
    holder = _ASSIGNED.match(lines[0])
    if len(lines) == 1 and holder and lines[0].endswith(f"= {old}"):
        asked += [f"Set {holder[1]} to {{new}}", f"{holder[1]} should be {{new}}"]
    return _replaced(lines, old, new, rng.choice(asked), rng)


def string(lines: Lines, names: Sequence[str], rng: random.Random) -> Change | None:
    """Other words between quotes."""
    found = [match for line in lines for match in _STRING.findall(line)]
    chosen = rng.choice(found) if found else None
    new = _choose(names, rng)
    if chosen is None or new is None:
        return None
    quote, old = chosen
    new = new.replace("_", rng.choice("_ -")) if "_" in new else new
    asked = rng.choice(("Replace {q}{old}{q} with {q}{new}{q}", "Use {q}{new}{q} instead of {q}{old}{q}",
                        "Change the text {old} to {new}", "Write {new} instead of {old}"))  # fmt: skip
    changed = [line.replace(f"{quote}{old}{quote}", f"{quote}{new}{quote}") for line in lines]
    return _change(asked.format(q=quote, old=old, new=new), changed, rng)


def switch(lines: Lines, names: Sequence[str], rng: random.Random) -> Change | None:
    """True for False or the other way round."""
    old = _choose(re.findall(r"\b(?:True|False)\b", _code(lines)), rng)
    if old is None or sum(line.count(old) for line in lines) != 1:
        return None
    asked = ["Change {old} to {new}", "Use {new} instead of {old}", "Turn {old} into {new}"]
    holder = re.search(rf"(\w+) ?= ?{old}\b", "\n".join(lines))
    if holder:
        asked += [f"Set {holder[1]} to {{new}}", f"{holder[1]} must be {{new}}"] * 2
    return _replaced(lines, old, _SWITCHED[old], rng.choice(asked), rng)


def compare(lines: Lines, names: Sequence[str], rng: random.Random) -> Change | None:
    """Another comparison, or `and` for `or`."""
    table = _COMPARED | _JOINED
    found = re.findall(r" (==|!=|<=|>=|<|>|is|in|and|or) (?!not )", _code(lines))
    old = _choose([mark for mark in found if found.count(mark) == 1], rng)
    if old is None or any(re.search(r"\b(?:for|import)\b", line) for line in lines):
        return None
    new = table[old]
    asked = rng.choice(("Use {new} instead of {old}", "Change {old} to {new}", "Replace {old} with {new}"))
    changed = [line.replace(f" {old} ", f" {new} ") for line in lines]
    return _change(asked.format(old=old, new=new), changed, rng)


def negate(lines: Lines, names: Sequence[str], rng: random.Random) -> Change | None:
    """The condition of an `if` or `while` negated with `not`."""
    match = re.match(r"^(\s*(?:if|elif|while) )(not )?([\w.]+(?:\([^()]*\))?):$", lines[0])
    if match is None:
        return None
    first = f"{match[1]}{'' if match[2] else 'not '}{match[3]}:"
    asked = ["Negate the condition", "Turn the condition around", "Do it in the opposite case"]
    asked += [f"Only if {match[3]} is true"] if match[2] else [f"Only if {match[3]} is false"]
    return _change(rng.choice(asked), [first, *lines[1:]], rng)


def delete(lines: Lines, names: Sequence[str], rng: random.Random) -> Change | None:
    """One line less."""
    at = rng.randrange(len(lines))
    gone = lines[at].strip()
    if len(lines) < 2 or not gone or gone.endswith((":", "(", "[", "{", ",")) or sum(gone in x for x in lines) > 1:
        return None
    place = _ORDINALS[at] if at + 1 < len(lines) else "last"
    asked = [f"Delete the {place} line", f"Remove the {place} line", f"Leave out the line {gone}"]
    asked += ["Remove the comment", "Delete the comment"] * 2 if gone.startswith("#") else []
    return _change(rng.choice(asked), [*lines[:at], *lines[at + 1 :]], rng)


def swap(lines: Lines, names: Sequence[str], rng: random.Random) -> Change | None:
    """Two lines of the same depth swapped."""
    if len(lines) != 2 or _depth(lines[0]) != _depth(lines[1]) or lines[0].rstrip().endswith((":", ",", "(")):
        return None
    return _change(rng.choice(("Swap the two lines", "Change the order of the lines", "The second line first")),
                   lines[::-1], rng)  # fmt: skip


def comment_out(lines: Lines, names: Sequence[str], rng: random.Random) -> Change | None:
    """A line of code turned into a comment, or a comment into code."""
    if len(lines) > 1 or not lines[0].strip():
        return None
    depth, text = lines[0][: _depth(lines[0])], lines[0].strip()
    if text.startswith("# "):
        return _change(rng.choice(("Uncomment this line", "Remove the # sign")), [depth + text[2:]], rng)
    return _change(rng.choice(("Comment this out", "Comment out this line", "Turn the line into a comment")),
                   [f"{depth}# {text}"], rng)  # fmt: skip


def returned(lines: Lines, names: Sequence[str], rng: random.Random) -> Change | None:
    """A different return value."""
    match = re.match(r"^(\s*return )([\w.]{1,30})$", lines[-1])
    name = _choose(names, rng)
    if match is None or name is None:
        return None
    new = rng.choice((name, "None", "True", "False", "0", "self", "[]"))
    asked = rng.choice(("Return {new}", "Return {new} instead of {old}", "It should return {new}", "Give back {new}"))
    return _change(asked.format(new=new, old=match[2]), [*lines[:-1], match[1] + new], rng)


def word(lines: Lines, names: Sequence[str], rng: random.Random) -> Change | None:
    """One word replaced or removed."""
    found = re.findall(r"[A-Za-z]{3,}", " ".join(lines))
    old = _choose([one for one in found if found.count(one) == 1], rng)
    new = _choose([name for name in names if name.isalpha() and name.islower()], rng)
    if old is None or new is None:
        return None
    if rng.random() < 0.2 and f" {old} " in "\n".join(lines):
        gone = [line.replace(f" {old} ", " ") for line in lines]
        return _change(
            rng.choice(("Delete the word {old}", "Leave out {old}", "Remove {old}")).format(old=old), gone, rng
        )
    new = new.capitalize() if old[0].isupper() else new
    asked = rng.choice(("Replace {old} with {new}", "Write {new} instead of {old}", "Change {old} to {new}",
                        "Use the word {new} instead of {old}"))  # fmt: skip
    return _replaced(lines, old, new, asked, rng)


def spelling(lines: Lines, names: Sequence[str], rng: random.Random) -> Change | None:
    """The case of the first letter changed, or the punctuation at the end."""
    text = lines[0]
    if len(lines) > 1 or len(text.split()) < 3 or not text[0].isalpha():
        return None
    if rng.random() < 0.5:
        first = text[0].lower() if text[0].isupper() else text[0].upper()
        kind = "small" if text[0].isupper() else "capital"
        return _change(rng.choice((f"Begin with a {kind} letter", f"Start it with a {kind} letter")),
                       [first + text[1:]], rng)  # fmt: skip
    mark, named = rng.choice(((".", "a full stop"), ("!", "an exclamation mark"), ("?", "a question mark")))
    end = text.rstrip(".!?:;,")
    return _change(rng.choice((f"End with {named}", f"Put {named} at the end")), [end + mark], rng)


PYTHON: tuple[Maker, ...] = (
    rename, rename, rename, number, number, string, string,
    switch, compare, negate, delete, swap, comment_out, returned,
)  # fmt: skip
ENGLISH: tuple[Maker, ...] = (word, word, word, word, delete, swap, spelling, number)


def _code(lines: Lines) -> str:
    """The lines without the content of quotes and comments."""
    return re.sub(r"(\"[^\"\n]*\"|'[^'\n]*'|#[^\n]*)", " ", "\n".join(lines))


def _replaced(lines: Lines, old: str, new: str, asked: str, rng: random.Random) -> Change | None:
    """Every whole word `old` becomes `new`."""
    pattern = re.compile(rf"(?<!\w){re.escape(old)}(?!\w)")
    return _change(asked.format(old=old, new=new), [pattern.sub(lambda _: new, line) for line in lines], rng)


def _change(instruction: str, lines: Lines, rng: random.Random) -> Change:
    return Change(instruction=instruction + ("." if rng.random() < 0.5 else ""), lines=lines)


def _choose(options: Sequence[str], rng: random.Random) -> str | None:
    return rng.choice(options) if options else None


def _same_shape(name: str, old: str) -> bool:
    """Whether both are classes, both constants or both ordinary names."""
    return (name.isupper(), name[:1].isupper()) == (old.isupper(), old[:1].isupper())


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())

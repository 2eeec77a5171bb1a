"""The small language in which the small talk is written: blocks of questions and answers, patterns, and tables.

A pattern is English with alternatives, `(Hi|Hello)( there|)!`, and slots that are filled from a table row: `{country}`,
with its article `{a animal}`, or from a second row `{other.capital}`. The files in `chat_data` explain their line marks
at the top.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

DATA = Path(__file__).parent / "chat_data"

Row = Mapping[str, str]
Table = Sequence[Row]

_CHOICE = re.compile(r"\(([^()]*)\)")
_SLOT = re.compile(r"\{(a )?(other\.)?(\w+)\}")
_HEAD = re.compile(r"\[(?P<name>[^:\]*]+?)(?:: (?P<table>\w+))?(?: \*(?P<weight>\d+))?\]")
_SENTENCE_START = re.compile(r"(^|[.!?]\s+)([a-z])")
_SPELLED = re.compile(r"[a-z](-[a-z])*")
_AN = re.compile(r"[aeiou]|hour|hono|heir", re.IGNORECASE)
_NOT_AN = re.compile(r"uni|use|usu|eu|ewe|one|once|ut[eio]|ur[aei]", re.IGNORECASE)
_ASKS = re.compile(r"(What|Which|Who|Where|When|Why|How|Is|Are|Do|Does|Did|Can|Could|Will|May|Shall)\b[^.!?]*\.$")
_REQUESTS = re.compile(
    r"(Please|Tell|Name|Give|Explain|Write|Say|Calculate|Compute|Define|Describe|List|Repeat|Spell|Show|Sing|Draw|Find"
    r"|Remember|Remind|Sort|Add|Count|Put|Take|Subtract|Multiply|Double|Halve)\b[^.!?]*\?$"
)
_MARKS = {"?": "questions", "~": "held_out", "&": "follow_ups", "!": "answers", "!!": "short_answers", "=": "expected"}


@dataclass(kw_only=True)
class Step:
    """One exchange: ways to ask, ways to answer, and what a right answer contains (one of `expected`)."""

    questions: list[str] = field(default_factory=list)
    held_out: list[str] = field(default_factory=list)
    follow_ups: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    short_answers: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class Block:
    """A meaning that can be asked and answered in many ways, about the rows of `table` if it names one."""

    name: str
    table: str | None
    weight: int
    systems: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=lambda: [Step()])


def read_blocks(path: Path) -> list[Block]:
    """The blocks of a file. Raises ValueError with the line number for a line without a known mark."""
    blocks: list[Block] = []
    for number, line in _content_lines(path):
        mark, _, text = line.partition(" ")
        if head := _HEAD.fullmatch(line):
            blocks.append(Block(name=head["name"], table=head["table"], weight=int(head["weight"] or 1)))
        elif line == "--":
            blocks[-1].steps.append(Step())
        elif mark == "s":
            blocks[-1].systems.append(text)
        elif mark in _MARKS:
            values = [part.strip() for part in text.split(" | ")] if mark == "=" else [text]
            getattr(blocks[-1].steps[-1], _MARKS[mark]).extend(values)
        else:
            raise ValueError(f"{path.name}, line {number}: {line!r} does not begin with a known mark")
    return blocks


def read_tables(path: Path) -> dict[str, list[Row]]:
    """The tables of a file: `[name: column | column]`, then rows. Raises ValueError for a row of the wrong width."""
    tables: dict[str, list[Row]] = {}
    columns: list[str] = []
    rows: list[Row] = []
    for number, line in _content_lines(path):
        if line.startswith("["):
            name, _, header = line.strip("[]").partition(": ")
            columns = header.split(" | ")
            rows = tables[name] = []
            continue
        values = line.split(" | ")
        if len(values) != len(columns):
            raise ValueError(f"{path.name}, line {number}: {len(values)} values for {len(columns)} columns")
        rows.append(dict(zip(columns, values, strict=True)))
    return tables


def _content_lines(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            yield number, line.strip()


def expand(pattern: str, rng: random.Random) -> str:
    """One of the texts that a pattern stands for, with its slots still open."""
    while match := _CHOICE.search(pattern):
        pattern = pattern[: match.start()] + rng.choice(match[1].split("|")) + pattern[match.end() :]
    return pattern


def expansions(pattern: str) -> list[str]:
    """All distinct texts that a pattern stands for, with their slots still open."""
    match = _CHOICE.search(pattern)
    if not match:
        return [pattern]
    heads = [pattern[: match.start()] + choice + pattern[match.end() :] for choice in match[1].split("|")]
    return list(dict.fromkeys(text for head in heads for text in expansions(head)))


def fill(text: str, row: Row, other: Row) -> str:
    """Put the values of `row` (and of `other`, for its slots) into the slots of an expanded pattern."""

    def value(match: re.Match[str]) -> str:
        found = (other if match[2] else row)[match[3]]
        return with_article(found) if match[1] else found

    return _SLOT.sub(value, text)


def with_article(noun: str) -> str:
    """`a` or `an` before a noun, by its first sound."""
    takes_an = _AN.match(noun) and not _NOT_AN.match(noun)
    return f"{'an' if takes_an else 'a'} {noun}"


def finished(text: str) -> str:
    """Capital letters at the start of sentences, and line breaks for ` / `; a spelled-out text stays as it is."""
    text = text.replace(" / ", "\n")
    if _SPELLED.fullmatch(text):
        return text
    return _SENTENCE_START.sub(lambda match: match[1] + match[2].upper(), text)


def punctuated(question: str) -> str:
    """A question mark after anything that begins like a question, and none after a request."""
    if question.endswith(".") and _ASKS.match(question):
        return question[:-1] + "?"
    if question.endswith("?") and _REQUESTS.match(question):
        return question[:-1] + "."
    return question


def normalised(text: str) -> str:
    """The text without case, punctuation and spacing, for telling whether two questions are the same."""
    return " ".join(re.findall(r"\w+|[-+*=<>]", text.lower()))

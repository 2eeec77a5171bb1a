"""How the parts of a composed tool combine into a line that asks for it: an imperative or a sentence."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from redraft.train.build.tool_parts import Part
from redraft.train.build.word_forms import capital, past

IMPERATIVE, SENTENCE = "-", "?"
_IMPERATIVES = 0.6
_STATEMENTS = (
    "{Object} should be {done}{tail}.", "Can I {do} {object}{tail}?", "We would like to {do} {object}{tail}.",
    "I want {object} to be {done}{tail}.", "Is it possible to {do} {object}{tail}?",
    "We need {object} {done}{tail}.", "Someone has to {do} {object}{tail}.", "{Object}{tail}, please.",
    "It is time to {do} {object}{tail}.", "{Object} was {done}{tail}, please enter that.",
    "We would like {object}{tail}.", "I need {object}{tail}.", "Time to {do} {object}{tail}!",
    "{Object} was {done}{tail}.", "{Object} needs to be {done}{tail}.", "I have {done} {object}{tail}, make a note.",
    "I want to {do} {object}{tail}.", "How about {object}{tail}?", "There is {object} to {do}{tail}.",
)  # fmt: skip
_ABOUT_A_PERSON = (
    "{who} would like to {do} {object}{tail}.", "{who} needs {object}{tail}.", "Can {who} {do} {object}{tail}?",
    "{who} has {done} {object}{tail}, please enter that.", "{who} {done} {object}{tail}.",
    "{who} wants {object}{tail}, please {do} it.", "{who} got {object}{tail}, please store that.",
    "Let {who} {do} {object}{tail}.", "{who} has to have {object} {done}{tail}.",
)  # fmt: skip
_FRONTED = (
    "{Front}, please {do} {object}{tail}.", "{Front}: {do} {object}{tail}", "{Front}, {object} has to be {done}{tail}.",
    "{Front}, can you {do} {object}{tail}?", "{Front} I need {object} {done}{tail}.",
)  # fmt: skip


def request_line(
    rng: random.Random, verb: str, thing: str, object_part: Part | None, parts: Sequence[Part]
) -> tuple[str, str]:
    """One way to ask for `verb` to be done with `thing`: optional parts in brackets, all parts in any order."""
    parts = rng.sample(parts, len(parts))
    phrase = rng.choice(object_part.phrases) if object_part else f"{rng.choice(('the', 'a', 'my', 'our'))} {thing}"
    if rng.random() < _IMPERATIVES:
        phrase, tail = placed(rng, phrase, thing, parts)
        return IMPERATIVE, f"{verb} {phrase}{tail}"
    frame, filled = rng.choice(_STATEMENTS), {}
    person = next((part for part in parts if part.parameter.kind == "PERSON" and part.parameter.required), None)
    front = rng.choice(parts[0].phrases) if parts and parts[0].parameter.required else ""
    if person and rng.random() < 0.6:
        frame, filled = rng.choice(_ABOUT_A_PERSON), {"who": f"{{{person.parameter.names[0]}}}"}
        parts.remove(person)
    elif front[:1].isalpha() and rng.random() < 0.25:
        frame, filled, parts = rng.choice(_FRONTED), {"Front": capital(front)}, parts[1:]
    by_name = object_part is not None and object_part.parameter.kind != "INT"
    if by_name and frame.startswith("{Object}") and phrase.startswith("{"):  # a name's first letter would change
        phrase = f"the {thing} {phrase}"
    phrase, tail = placed(rng, phrase, thing, parts)
    words = {"do": verb, "done": past(verb), "object": phrase, "Object": phrase, "tail": tail, **filled}
    return SENTENCE, fill(frame, words)


def placed(rng: random.Random, phrase: str, noun: str, parts: Sequence[Part]) -> tuple[str, str]:
    """`phrase` with at most one part in front of its `noun`, and the text of the other parts, which follow it."""
    here = re.search(rf"(?<![\w{{]){re.escape(noun)}\b", phrase)
    before = tail = ""
    for part in parts:
        if here and part.before and not before and rng.random() < 0.35:
            before = bracketed(part, f"{rng.choice(part.before)} ")
        else:
            tail += bracketed(part, f" {rng.choice(part.phrases)}")
    return f"{phrase[: here.start()]}{before}{phrase[here.start() :]}" if here else phrase, tail


def bracketed(part: Part, text: str) -> str:
    """`text`, in brackets if the request may omit it."""
    return text if part.parameter.required else f"[{text}]"


def fill(frame: str, words: dict[str, str]) -> str:
    """`frame` with every `{key}` of `words` replaced; slots of parameters stay."""
    return re.sub("|".join(rf"\{{{key}\}}" for key in words), lambda match: words[match[0][1:-1]], frame)

"""How people phrase a question: greetings, leads, politeness, synonyms, and typing mistakes.

Nothing here changes what is asked. Half of all questions stay as written.
"""

from __future__ import annotations

import random
import re

from redraft.train.build.word_forms import capital

_OPENINGS = (
    "Hi! ", "Hello! ", "Hey! ", "Hi there! ", "Hi tiny! ", "Good morning! ", "Good evening! ", "Hey you! ",
    "Hello tiny, ", "Hey tiny, ", "Hi, ", "Hello, ", "Good day! ", "Dear tiny, ",
)  # fmt: skip
_LEADS = (
    "Quick question: ", "Another question: ", "Next question: ", "I have a question. ", "Let me ask you something. ",
    "I want to know: ", "Please tell me: ", "Tell me: ", "OK. ", "Now something else. ", "One more thing: ",
)  # fmt: skip
_SMALL_LEADS = (
    "well, ", "and ", "OK, ", "hm, ", "oh, ", "by the way, ", "I wonder, ", "just curious, ", "honestly, ", "right, ",
    "now, ", "please, ", "listen, ", "tell me, ", "my friend asks: ", "for my homework, ",
)  # fmt: skip
_TAILS = (
    ", please", ", tiny", " then", ", if I may ask", ", do you know", ", by the way", ", in your opinion", " again",
    ", I wonder", ", buddy", " exactly", " anyway", ", in a few words", ", if you can say",
)  # fmt: skip
_ASKING = (
    "Can you tell me", "Could you tell me", "I would like to know", "I'd love to know", "Do you happen to know",
    "Let me know", "I want to learn", "Do you know", "Help me understand", "I need to know", "Can you say",
    "I was asked",
)  # fmt: skip
_SAME = (
    ("What is", "What's"), ("Who is", "Who's"), ("Where is", "Where's"), ("I am", "I'm"), ("do not", "don't"),
    ("cannot", "can't"), ("is not", "isn't"), ("Tell me", "Let me hear"), ("Can you", "Could you"),
    ("Can you", "Will you"), ("a lot of", "many"), ("very", "really"), ("very", "so"), ("begin", "start"),
    ("want to", "would like to"), ("explain", "describe"), ("people", "we"), ("good", "nice"), ("made of", "made from"),
    ("Name", "Give me"), ("Which", "What"), ("Please ", ""), ("help", "assist"), ("speak", "talk"), ("happy", "glad"),
)  # fmt: skip
_WORDED = re.compile(r"(?:What (?:is|are)|Who is|Where is) (?!you |we |they |it )[^?]+\?")
_HOW = re.compile(r"How (?:do|can|should) (?:I|you|we|people) (.+)\?")
_LETTERS = re.compile(r"[a-z]{4,}")
_SMALL_WORDS = re.compile(r" (?:the|a|an|of|is|are|do|does|you|me)(?= )")


def restyled(question: str, rng: random.Random, *, first: bool) -> str:
    """Another way to phrase a question; `first` if it opens a conversation and may include a greeting."""
    if rng.random() < 0.5:
        return question
    if rng.random() < 0.3:
        question = _reworded(question, rng)
    if rng.random() < 0.25:
        question = _asked_politely(question, rng)
    if question.endswith("?") and rng.random() < 0.2:
        question = question[:-1] + rng.choice(_TAILS) + "?"
    question = _led_up_to(question, rng, first=first)
    return _slipped(question, rng) if rng.random() < 0.25 else question


def _reworded(question: str, rng: random.Random) -> str:
    """Replace one expression by another, in either direction."""
    fitting = [(old, new) for pair in _SAME for old, new in (pair, pair[::-1]) if old and _has(old, question)]
    if not fitting:
        return question
    old, new = rng.choice(fitting)
    text = re.sub(rf"(?<!\w){re.escape(old)}", new, question, count=1)
    return capital(text)


def _has(words: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)" if words[-1].isalpha() else re.escape(words), text) is not None


def _asked_politely(question: str, rng: random.Random) -> str:
    """`Where is Rome?` as `Could you tell me where Rome is?`, `How do I boil an egg?` as `... how to boil an egg?`."""
    lead = rng.choice(_ASKING)
    end = "?" if lead.startswith(("Can", "Could", "Do")) else "."
    if how := _HOW.fullmatch(question):
        return f"{lead} how to {how[1]}{end}"
    if _WORDED.fullmatch(question):
        word, verb, rest = question[:-1].split(" ", 2)
        return f"{lead} {word.lower()} {rest} {verb}{end}"
    return question


def _led_up_to(question: str, rng: random.Random, *, first: bool) -> str:
    point = rng.random()
    if first and point < 0.15 and not question.startswith(("Hi", "Hello", "Hey", "Good")):
        return rng.choice(_OPENINGS) + question
    if point < 0.25 and question.endswith("?"):
        return rng.choice(_LEADS) + question
    if point < 0.45 and (question[1:2].islower() or question.startswith("I")):
        lead = rng.choice(_SMALL_LEADS)
        kept = question if question.startswith(("I ", "I'm", "I'd")) else question[0].lower() + question[1:]
        return capital(lead) + kept
    return question


def _slipped(question: str, rng: random.Random) -> str:
    """A typing mistake: a letter doubled, missing or swapped, a small word left out, or no capitals and no stop."""
    kind = rng.randrange(3)
    if kind == 0:
        return question.lower().rstrip("?.! ")
    found = list((_SMALL_WORDS if kind == 1 else _LETTERS).finditer(question))
    if not found:
        return question
    place = rng.choice(found)
    if kind == 1:
        return question[: place.start()] + question[place.end() :]
    at = rng.randrange(place.start() + 1, place.end() - 1)
    one, other = question[at], question[at + 1]
    slip, count = rng.choice(((one * 2, 1), ("", 1), (other + one, 2)))
    return question[:at] + slip + question[at + count :]

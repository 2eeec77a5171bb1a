"""WordNet's data files, and words from them by what they mean: verbs that take an object, with their synonyms, and
nouns by field.

Only words that WordNet's own text corpus uses count, which leaves out most of the rare and the obsolete ones.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from redraft.train.build.sources import debian_files

# Lexicographer files, https://wordnet.princeton.edu/documentation/lexnames5wn
_THINGS = frozenset({4, 5, 6, 9, 10, 11, 13, 14, 15, 17, 20, 21, 27, 28})
"""Acts, animals, artifacts, thoughts, communication, events, food, groups, places, natural objects, plants,
possessions, substances and times."""
_ATTRIBUTES, _PERSONS, _BODY_VERBS = 7, 18, 29
_WITH_AN_OBJECT = frozenset({8, 9, 14, 15, 16, 17, 18, 19, 20, 21})
"""Sentence frames such as "Somebody ----s something" and "Somebody ----s somebody with something"."""
_WORD = re.compile(r"[a-z]{3,10}")
_LEAST_USES = {"thing": 2, "attribute": 1, "person": 3, "verb": 1}


@dataclass(frozen=True, kw_only=True)
class Lexicon:
    """Verbs as sets of synonyms, and nouns: things, their attributes, and persons by role."""

    verbs: tuple[tuple[str, ...], ...]
    things: tuple[str, ...]
    attributes: tuple[str, ...]
    persons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Synset:
    """One sense: its part of speech (n, v, a, s or r), its words, each with its number within the lexicographer's
    file, the sentence frames that hold for all of them, and what it means.
    """

    part: str
    file: int
    words: tuple[tuple[str, int], ...]
    frames: frozenset[int]
    gloss: str


def read_lexicon(cache: Path) -> Lexicon:
    """The words of Debian's `wordnet-base`."""
    files = dict(debian_files("wordnet-base", cache, ("data.verb", "data.noun", "cntlist.rev")))
    texts = {Path(name).name: text for name, text in files.items()}
    uses = dict(_uses(texts["cntlist.rev"]))

    def common(kind: str, synset: Synset) -> tuple[str, ...]:
        part = 2 if kind == "verb" else 1
        found = (w for w, number in synset.words if uses.get((w, part, synset.file, number), 0) >= _LEAST_USES[kind])
        return tuple(word for word in found if _WORD.fullmatch(word))

    verbs = (
        common("verb", synset)
        for synset in synsets(texts["data.verb"])
        if _WITH_AN_OBJECT & synset.frames and synset.file != _BODY_VERBS
    )
    nouns = list(synsets(texts["data.noun"]))

    def fields(kind: str, numbers: Collection[int]) -> tuple[str, ...]:
        return tuple(sorted({word for synset in nouns if synset.file in numbers for word in common(kind, synset)}))

    return Lexicon(
        verbs=tuple(dict.fromkeys(filter(None, verbs))),
        things=fields("thing", _THINGS),
        attributes=fields("attribute", {_ATTRIBUTES}),
        persons=fields("person", {_PERSONS}),
    )


def _uses(text: str) -> Iterator[tuple[tuple[str, int, int, int], int]]:
    """How often each sense is used, by (word, part of speech, file, number within it)."""
    for line in text.splitlines():
        key, _, count = line.split()
        word, _, sense = key.partition("%")
        part, file, number = sense.split(":")[:3]
        yield (word, int(part), int(file), int(number)), int(count)


def synsets(text: str) -> Iterator[Synset]:
    """The entries of a WordNet data file: numbers, words, pointers and, for verbs, sentence frames; then the gloss."""
    for line in text.splitlines():
        if line.startswith("  "):  # the licence
            continue
        entry, _, gloss = line.partition("| ")
        fields = entry.split()
        count = int(fields[3], 16)
        words = tuple((re.sub(r"\(\w+\)$", "", fields[4 + 2 * i]), int(fields[5 + 2 * i], 16)) for i in range(count))
        rest = fields[4 + 2 * count :]
        frames = rest[2 + 4 * int(rest[0]) :]
        # "+ frame word": word 00 means that the frame holds for all of them
        kept = frozenset(int(frames[i + 1]) for i in range(0, len(frames), 3) if frames[i + 2] == "00")
        yield Synset(part=fields[2], file=int(fields[1]), words=words, frames=kept, gloss=gloss.strip())

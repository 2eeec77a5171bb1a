"""Tools composed at random: a verb, a thing, and parameters with the phrases that carry their values in a request.

Two hundred hand-written tools teach a small model only those tools. Here every tool is new: "glaze the teapot" with a
`layer_count` ("in 3 layers"), a `potter` ("by Rosa Stone") and a `target_temperature`. Verbs come with their synonyms,
so the tool may be called `coat_teapot` and its description may speak of surfacing one. What a value means follows from
its kind, its unit, its preposition or a noun next to it, never from having been seen before. The result is an
:class:`.Action` like the hand-written ones.
"""

from __future__ import annotations

import functools
import random

from redraft.train.build.tool_grammar import Action, heldout_actions, second_actions
from redraft.train.build.tool_objects import draw_object
from redraft.train.build.tool_parts import Part, draw_parts
from redraft.train.build.tool_phrases import request_line
from redraft.train.build.tool_questions import question
from redraft.train.build.wordnet import Lexicon

ACTIONS_PER_DOMAIN = 6
_QUESTIONS = 0.3
_COMPOUNDS, _PERSONS = 0.2, 0.1


def compose_domains(rng: random.Random, words: Lexicon, count: int) -> list[Action]:
    """The tools of `count` new domains."""
    return [action for _ in range(count) for action in _domain(rng, words)]


def _domain(rng: random.Random, words: Lexicon) -> list[Action]:
    """A few tools about the same two or three things, so that they are easily confused."""
    things = [_thing(rng, words) for _ in range(rng.randint(2, 3))]
    name = things[0].replace(" ", "_")
    actions: list[Action] = []
    while len(actions) < ACTIONS_PER_DOMAIN:
        draw = question if rng.random() < _QUESTIONS else _action
        action = draw(rng, words, rng.choice(things), name)
        if not evaluation_names() & set(action.names):
            actions.append(action)
    return actions


@functools.cache
def evaluation_names() -> frozenset[str]:
    """The names of the evaluation tools: no composed tool has one of these."""
    return frozenset(name for action in (*heldout_actions(), *second_actions()) for name in action.names)


def _thing(rng: random.Random, words: Lexicon) -> str:
    """What the tools of a domain are about: a noun, sometimes two, sometimes a person."""
    thing = rng.choice(words.persons if rng.random() < _PERSONS else words.things)
    return f"{rng.choice(words.things)} {thing}" if rng.random() < _COMPOUNDS else thing


def _action(rng: random.Random, words: Lexicon, thing: str, domain: str) -> Action:
    """Something to do with the thing."""
    synonyms = list(rng.choice(words.verbs))
    rng.shuffle(synonyms)
    other = rng.choice(rng.choice(words.verbs)) if rng.random() < 0.15 else synonyms[-1]
    names = tuple(dict.fromkeys(f"{verb} {thing}".replace(" ", "_") for verb in (synonyms[0], other)))
    described = dict.fromkeys(
        f"{verb} {article} {thing}".capitalize() for verb, article in zip(synonyms, ("a", "the"), strict=False)
    )
    object_part, parts = _parts(rng, words, thing)
    return Action(
        domain=domain,
        group=domain,
        names=names,
        descriptions=tuple(described),
        parameters=tuple(part.parameter for part in ([object_part] if object_part else []) + parts),
        requests=tuple(
            request_line(rng, rng.choice(synonyms), thing, object_part, parts) for _ in range(rng.randint(2, 4))
        ),
    )


def _parts(rng: random.Random, words: Lexicon, thing: str) -> tuple[Part | None, list[Part]]:
    """At most one part that names the object itself, and one to three of other sorts (possibly none with an object)."""
    if rng.random() < 0.3:
        return None, draw_parts(rng, words, rng.randint(1, 3))
    object_part = draw_object(rng, words, thing)
    count = rng.choices([0, 1, 2, 3], [2, 5, 5, 2])[0]
    return object_part, draw_parts(rng, words, count, object_part.parameter.names)

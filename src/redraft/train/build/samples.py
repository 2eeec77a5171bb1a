"""Samples of chats, tool declarations, tool calls and JSON, from which the tokenizer learns their punctuation.

They only show the form: the training data of those tasks has separate builders.
"""

from __future__ import annotations

import ast
import json
import random
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from redraft.train.build.python_code import wanted_files
from redraft.train.build.sources import debian_files

QUOTE = '<|"|>'
_TYPES = ("STRING", "STRING", "INTEGER", "NUMBER", "BOOLEAN", "ARRAY")
_SMALL_TALK = (
    "Hello! How are you today? I'm fine, thank you. How can I help you?",
    "What is a {a}? A {a} is a kind of {b}. It's often used with a {c}.",
    "Can you tell me about {a}? Of course! I'd be happy to tell you about {a} and {b}.",
    "Good morning! What's the weather like in {a}? I don't know, but you can look outside.",
    "Please write a short sentence about a {a}. The {a} sat near the {b} and looked at the {c}.",
    "Thank you very much for your help! You're welcome. Is there anything else you'd like to know?",
    "I'm sorry, I can't answer that question. I can help you with {a}, {b} or {c}.",
    "What's your name? My name is Redraft. I'm a small model that drafts text and redrafts it until it is right.",
    "Why do people like {a}? Many people like {a} because it makes them happy, and it's good for {b}.",
    "Which is bigger, a {a} or a {b}? I think a {b} is usually bigger than a {a}, but it depends.",
)


def chat_texts(cache: Path, rng: random.Random) -> Iterator[str]:
    """An endless mix of tool declarations with calls, JSON objects and small talk."""
    functions = _signatures(cache, rng)
    words = _dictionary_words(cache)
    while True:
        name, description, arguments = rng.choice(functions)
        values = [(argument, rng.choice(_TYPES), rng.choice(words)) for argument in arguments]
        yield tool_declaration(name, description, values, rng) + "\n" + tool_call(name, values, rng)
        record = {argument: _json_value(kind, word, rng) for argument, kind, word in values}
        yield json.dumps(record, indent=rng.choice([None, None, 2]))
        for _ in range(2):
            yield rng.choice(_SMALL_TALK).format(a=rng.choice(words), b=rng.choice(words), c=rng.choice(words))


def _signatures(cache: Path, rng: random.Random) -> list[tuple[str, str, list[str]]]:
    """(name, first docstring line, argument names) of documented functions: real words for made-up tools."""
    files = list(wanted_files(cache))
    rng.shuffle(files)
    found: list[tuple[str, str, list[str]]] = []
    for file in files:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(file.text)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and (docstring := ast.get_docstring(node)):
                arguments = [argument.arg for argument in node.args.args if argument.arg not in ("self", "cls")]
                found.append((node.name.strip("_"), docstring.split("\n")[0], arguments[:6]))
        if len(found) >= 20_000:
            break
    return found


def _dictionary_words(cache: Path) -> list[str]:
    _, text = next(iter(debian_files("wordnet-base", cache, "index.noun")))
    lemmas = (line.split(" ", 1)[0] for line in text.split("\n") if line and not line.startswith(" "))
    return [lemma.replace("_", " ") for lemma in lemmas if re.fullmatch(r"[a-z]{3,12}", lemma)]


def tool_declaration(name: str, description: str, values: list[tuple[str, str, str]], rng: random.Random) -> str:
    properties = ",".join(
        f"{argument}:{{description:{QUOTE}The {_spoken(argument)} of the {word}{QUOTE},type:{QUOTE}{kind}{QUOTE}}}"
        for argument, kind, word in sorted(values)
    )
    required = ",".join(f"{QUOTE}{argument}{QUOTE}" for argument, _, _ in values[: rng.randint(0, len(values))])
    body = f"properties:{{{properties}}},required:[{required}],type:{QUOTE}OBJECT{QUOTE}"
    return f"<|tool>declaration:{name}{{description:{QUOTE}{description}{QUOTE},parameters:{{{body}}}}}<tool|>"


def _spoken(name: str) -> str:
    return name.replace("_", " ")


def tool_call(name: str, values: list[tuple[str, str, str]], rng: random.Random) -> str:
    arguments = ",".join(f"{argument}:{_call_value(kind, word, rng)}" for argument, kind, word in sorted(values))
    return f"<|tool_call>call:{name}{{{arguments}}}<tool_call|>"


def _call_value(kind: str, word: str, rng: random.Random) -> str:
    value = _json_value(kind, word, rng)
    if isinstance(value, list):
        return "[" + ",".join(f"{QUOTE}{item}{QUOTE}" for item in value) + "]"
    return f"{QUOTE}{value}{QUOTE}" if isinstance(value, str) else json.dumps(value)


def _json_value(kind: str, word: str, rng: random.Random) -> object:
    number, truth = rng.uniform(0, 500), rng.random() < 0.5
    return {"INTEGER": int(number), "NUMBER": round(number, 2), "BOOLEAN": truth, "ARRAY": [word, "item"]}.get(
        kind, word
    )

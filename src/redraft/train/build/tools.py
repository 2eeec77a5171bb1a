"""Tool-call training data and the evaluation items: which function to call, and with which arguments.

An item declares one to four functions and asks for something in English. The answer is the call (or two calls), in the
model's own format, or one fixed sentence when no function fits. Requests come from hand-written tools
(:mod:`.tool_grammar`), from tools composed at random (:mod:`.tool_composed`), and from published and invented API
descriptions (:mod:`.tool_api`). Whole domains, whole services and one tenth of all string values are kept out of
training, so evaluation tests reading and copying, not memory.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from redraft.text.tokenizer import TURN_END
from redraft.text.tools import RESPONSE_OPEN, format_call
from redraft.train.build.encoding import Encodes, Renders, answered
from redraft.train.build.tool_api import (
    Operation,
    draw_api_request,
    draw_api_tool,
    invented_operation,
    is_heldout,
    read_operations,
)
from redraft.train.build.tool_composed import compose_domains
from redraft.train.build.tool_grammar import (
    Action,
    Request,
    Tool,
    draw_request,
    draw_tool,
    heldout_actions,
    second_actions,
    training_actions,
)
from redraft.train.build.tool_values import Values, made_up_word
from redraft.train.build.wordnet import Lexicon
from redraft.train.shards import Document, write_shard

NO_TOOL = "None of the available tools can do that."

# Tools so general that almost any request is within their reach: never declared with a request to decline.
_GENERAL_GROUPS = frozenset({"mail", "time", "web", "files", "code", "data"})
_SMALL_TALK = (
    "Tell me a joke.", "Who are you?", "How are you today?", "Write a poem about the {NOUN}.", "Sing me a song.",
    "What is your favorite color?",
    "Good morning!", "Tell me a story about a {NOUN}.", "Do you like {NOUN}s?", "Who invented the {NOUN}?",
    "Are you a person?",
    "Draw a picture of a {NOUN}.", "What is the meaning of life?", "Teach me how to {VERB} a {NOUN}.", "I am bored.",
)  # fmt: skip

_EVALUATION_SMALL_TALK = (
    "What makes you happy?",
    "Can you whistle?",
    "Recommend me a novel about a {NOUN}.",
    "Why is the {NOUN} so heavy?",
    "Good night, see you tomorrow.",
    "I had a strange dream about a {NOUN}.",
    "Explain how a {NOUN} works.",
)


@dataclass(frozen=True, kw_only=True)
class Item:
    """Declared tools, the chat, and the right calls as (name, arguments); no calls means that no tool fits."""

    tools: list[dict[str, object]]
    messages: list[dict[str, str]]
    calls: list[tuple[str, dict[str, object]]]


@dataclass(frozen=True, kw_only=True)
class Shares:
    """How often each kind of item is drawn; hand-written tools take what API, invented and composed ones leave."""

    api: float = 0.28
    invented: float = 0.1
    parallel: float = 0.1
    none: float = 0.08
    system: float = 0.1
    composed: float = 0.0
    """Tools put together at random (:mod:`.tool_composed`)."""
    foreign: float = 0.0
    """The share of hand-written items whose names are made-up words wherever a description says what they mean."""

    def __post_init__(self) -> None:
        if (
            min(vars(self).values()) < 0
            or self.api + self.invented + self.composed > 1
            or self.parallel + self.none > 1
        ):
            raise ValueError("shares must be at least 0, and alternatives must not exceed 1 together")


_SYSTEM_TEXTS = (
    "You are a helpful assistant.", "You can call functions.", "Use the tools when they fit.",
    "You are an assistant with access to tools.",
    "Call the right function.", "Answer by calling a tool if possible.",
)  # fmt: skip


class ItemSource:
    """An endless, seeded stream of items for one side of the split."""

    def __init__(
        self,
        operations: Sequence[Operation],
        seed: int,
        *,
        evaluation: bool = False,
        shares: Shares | None = None,
        lexicon: Lexicon | None = None,
        actions: Sequence[Action] | None = None,
    ) -> None:
        """`actions` are the hand-written tools; by default those of this side of the split."""
        self._rng = random.Random(seed)
        self._values = Values(self._rng, evaluation=evaluation)
        self._actions = actions or (heldout_actions() if evaluation else training_actions())
        kept = [operation for operation in operations if is_heldout(operation.service) == evaluation]
        self._services = _by_service(kept)
        self._operations = kept
        self._shares = shares or Shares()
        if self._shares.composed and lexicon is None:
            raise ValueError("composed tools need a lexicon")
        self._lexicon = lexicon
        self._chatter = _EVALUATION_SMALL_TALK if evaluation else _SMALL_TALK

    def draw(self) -> Item:
        """The next item."""
        point = self._rng.random()
        if self._operations and point < self._shares.api:
            return self._api_item(self._rng.choice(self._operations))
        if point < self._shares.api + self._shares.invented:
            return self._api_item(invented_operation(self._rng, self._values))
        if self._lexicon and point < self._shares.api + self._shares.invented + self._shares.composed:
            return self._grammar_item(compose_domains(self._rng, self._lexicon, 2))
        return self._grammar_item(self._actions)

    # Hand-written and composed tools

    def _grammar_item(self, actions: Sequence[Action]) -> Item:
        tool = draw_tool(self._rng.choice(actions), self._values)
        point = self._rng.random()
        if point < self._shares.none:
            return self._declining_item(tool, actions)
        if point < self._shares.none + self._shares.parallel:
            return self._parallel_item(tool, actions)
        request = draw_request(tool, self._values)
        declared = self._with_distractors([tool], self._tool_count(), actions)
        item = self._item([t.declaration for t in declared], request.text, [(tool.name, request.arguments)])
        # Nothing is drawn if nothing is to be renamed, so older seeds give the same items as before.
        rename = self._shares.foreign > 0 and self._rng.random() < self._shares.foreign
        return with_foreign_names(item, self._rng) if rename else item

    def _parallel_item(self, tool: Tool, actions: Sequence[Action]) -> Item:
        same = self._rng.random() < 0.5
        other = tool if same else self._with_distractors([tool], 2, actions)[1]
        requests = [draw_request(tool, self._values), draw_request(other, self._values)]
        needed = [tool] if same else [tool, other]
        declared = self._with_distractors(needed, max(self._tool_count() - 1, len(needed)), actions)
        calls = [(tool.name, requests[0].arguments), (other.name, requests[1].arguments)]
        return self._item([t.declaration for t in declared], self._joined(requests), calls)

    def _declining_item(self, tool: Tool, actions: Sequence[Action]) -> Item:
        text = self._small_talk() if self._rng.random() < 0.3 else draw_request(tool, self._values).text
        barred = _GENERAL_GROUPS | {tool.action.group}
        pool = [action for action in actions if action.group not in barred]
        chosen = self._rng.sample(pool, min(self._tool_count(), len(pool)))
        drawn = {tool.name: tool for tool in (draw_tool(action, self._values) for action in chosen)}
        return self._item([tool.declaration for tool in drawn.values()], text, [])

    def _with_distractors(self, tools: list[Tool], count: int, actions: Sequence[Action]) -> list[Tool]:
        """``tools`` first, then others up to ``count``, half of them from the domain of the first."""
        declared = list(tools)
        while len(declared) < count:
            near = [action for action in actions if action.domain == tools[0].action.domain]
            candidate = draw_tool(self._rng.choice(near if self._rng.random() < 0.5 else actions), self._values)
            if all(candidate.action is not t.action and candidate.name != t.name for t in declared):
                declared.append(candidate)
        return declared

    def _joined(self, requests: list[Request]) -> str:
        first, second = (request.text for request in requests)
        opening = first if first.endswith((".", "?", "!")) else first + "."
        joint = self._rng.choice([" ", " Also: ", " And then: ", " Then: ", " Second: ", "\n"])
        return opening + joint + second

    def _small_talk(self) -> str:
        text = self._rng.choice(self._chatter)
        return text.replace("{NOUN}", self._values.string("WORD")).replace("{VERB}", self._values.string("WORD"))

    # Published and invented operations

    def _api_item(self, operation: Operation) -> Item:
        tool = draw_api_tool(operation, self._values)
        request = draw_api_request(tool, self._values)
        declared = [tool]
        names = {tool.name}
        for _ in range(self._rng.choices([0, 1, 2], [4, 4, 2])[0]):
            other = draw_api_tool(self._neighbour(operation), self._values, most=3)
            if other.name not in names and other.operation.words != operation.words:
                names.add(other.name)
                declared.append(other)
        return self._item([t.declaration for t in declared], request.text, [(tool.name, request.arguments)])

    def _neighbour(self, operation: Operation) -> Operation:
        if operation.service not in self._services:
            return invented_operation(self._rng, self._values)
        near = self._services[operation.service]
        return self._rng.choice(near if self._rng.random() < 0.6 else self._operations)

    # Common

    def _tool_count(self) -> int:
        return self._rng.choices([1, 2, 3, 4], [35, 35, 20, 10])[0]

    def _item(self, declared: list[dict[str, object]], text: str, calls: list[tuple[str, dict[str, object]]]) -> Item:
        self._rng.shuffle(declared)
        messages = [{"role": "user", "content": text}]
        if self._rng.random() < self._shares.system:
            messages.insert(0, {"role": "system", "content": self._rng.choice(_SYSTEM_TEXTS)})
        return Item(tools=declared, messages=messages, calls=calls)


def with_foreign_names(item: Item, rng: random.Random) -> Item:
    """`item` with made-up names for its tools and for every parameter that has a description."""
    tools: list[dict[str, Any]] = []
    calls = list(item.calls)
    for tool in item.tools:
        function = cast(dict[str, Any], tool["function"])
        schema, old = function["parameters"], str(function["name"])
        names = {key: _foreign(rng) if "description" in field else key for key, field in schema["properties"].items()}
        if len(set(names.values())) < len(names):  # two parameters drew the same word
            names = {key: key for key in names}
        changed = schema | {"properties": {names[key]: field for key, field in schema["properties"].items()}}
        if "required" in schema:
            changed["required"] = [names[key] for key in schema["required"]]
        new = _foreign(rng) if rng.random() < 0.5 else old
        while any(new == other["function"]["name"] for other in tools):
            new = _foreign(rng)
        calls = [_renamed_call(call, old, new, names) for call in calls]
        tools.append(tool | {"function": function | {"name": new, "parameters": changed}})
    return Item(tools=tools, messages=item.messages, calls=calls)


def _renamed_call(
    call: tuple[str, dict[str, object]], old: str, new: str, names: Mapping[str, str]
) -> tuple[str, dict[str, object]]:
    """`call` under the new names, if it is a call of the tool `old`."""
    called, arguments = call
    return (new, {names[key]: value for key, value in arguments.items()}) if called == old else call


def _foreign(rng: random.Random) -> str:
    first, second = made_up_word(rng, 1, 2), made_up_word(rng, 1, 2)
    return rng.choice([first, first, f"{first}_{second}", f"{first}{second.capitalize()}"])


def _by_service(operations: Iterable[Operation]) -> dict[str, list[Operation]]:
    services: dict[str, list[Operation]] = {}
    for operation in operations:
        services.setdefault(operation.service, []).append(operation)
    return services


# --- documents ------------------------------------------------------------------------------------


def answer_text(calls: Sequence[tuple[str, Mapping[str, object]]]) -> str:
    """What the model writes: the calls and the start of the tool's response, which ends generation, or the refusal."""
    if not calls:
        return NO_TOOL + TURN_END
    return "".join(format_call(name, arguments) for name, arguments in calls) + RESPONSE_OPEN


def encode_item(item: Item, tokenizer: Encodes, template: Renders) -> Document:
    """The training document of an item: rendered prompt, then the answer."""
    prompt = tokenizer.encode(template.render(item.messages, tools=item.tools, add_generation_prompt=True))
    return answered(prompt, tokenizer.encode(answer_text(item.calls)))


def documents(
    source: ItemSource, count: int, tokenizer: Encodes, template: Renders, *, longest: int = 420
) -> Iterator[Document]:
    """``count`` documents of at most ``longest`` tokens; longer ones are drawn again."""
    return short_enough(lambda: encode_item(source.draw(), tokenizer, template), count, longest)


def short_enough(draw: Callable[[], Document], count: int, longest: int) -> Iterator[Document]:
    """The first ``count`` documents drawn that have at most ``longest`` tokens."""
    drawn = (document for document in iter(draw, None) if len(document.tokens) <= longest)
    return itertools.islice(drawn, count)


def build(
    out: Path,
    n: int,
    *,
    google_wheel: Path,
    aws_wheel: Path,
    tokenizer: Encodes,
    template: Renders,
    seed: int = 41,
    shares: Shares | None = None,
    lexicon: Lexicon | None = None,
) -> None:
    """Writes a shard of ``n`` tool-call documents."""
    source = ItemSource(read_operations(google_wheel, aws_wheel), seed, shares=shares, lexicon=lexicon)
    write_shard(out, documents(source, n, tokenizer, template))


def write_evaluation(out: Path, n: int, *, google_wheel: Path, aws_wheel: Path, seed: int = 4100) -> None:
    """Writes ``n`` held-out items as JSON lines with ``id``, ``tools``, ``messages`` and ``calls``."""
    source = ItemSource(read_operations(google_wheel, aws_wheel), seed, evaluation=True, shares=Shares(invented=0.0))
    _write_items(out, source, n)


def write_second_evaluation(out: Path, n: int) -> None:
    """The same for the second set of tools alone, without published operations."""
    shares = Shares(api=0.0, invented=0.0)
    _write_items(out, ItemSource([], 6100, evaluation=True, shares=shares, actions=second_actions()), n)


def _write_items(out: Path, source: ItemSource, n: int) -> None:
    with out.open("w", encoding="utf-8") as file:
        for i in range(n):
            item = source.draw()
            calls = [{"name": name, "arguments": arguments} for name, arguments in item.calls]
            record = {"id": f"tools-{i:03d}", "tools": item.tools, "messages": item.messages, "calls": calls}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")

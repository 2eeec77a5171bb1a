"""Requests for JSON: what a text says, as fields; what a request asks a tool for; a question's answer under a key.

Texts come from written records (:mod:`.extraction_records`), from facts as tools return them (:mod:`.tool_facts`) and
from requests to tools, whose arguments are the fields; :mod:`.extraction_asks` has the ways to ask.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, cast

from redraft.eval.extraction import read_extraction_jsonl
from redraft.eval.files import DATA
from redraft.text.tokenizer import TURN_END
from redraft.train.build.chat import ChatSource
from redraft.train.build.chat_text import normalised
from redraft.train.build.encoding import Encodes, Renders, answered
from redraft.train.build.extraction_asks import Asked, as_json, ask
from redraft.train.build.extraction_records import Passage, draw_list, draw_passage, read_records
from redraft.train.build.tool_facts import Facts, sentence
from redraft.train.build.tool_values import Values, enumerated
from redraft.train.build.tools import ItemSource, short_enough
from redraft.train.build.wordnet import Lexicon
from redraft.train.shards import Document

_LONGEST = 360  # tokens
_LONGEST_ANSWER = 120  # tokens, so that it fits a canvas
_LISTS, _NESTED = 0.07, 0.05
"""The shares of records that are several of a kind, and whose fields are in an object of their own."""
_ANSWER_KEYS = ("answer", "answer", "answer", "response", "result", "reply", "text")
_ANSWER_REQUESTS = (
    "{q} Answer in JSON.", "{q} Answer as JSON.", '{q} Reply with JSON: {{"{k}": ...}}', "{q} Use the key {k}.",
    "Answer in JSON: {q}", "Answer as a JSON object with the key {k}.\n\n{q}", "{q}\nReturn JSON with {k}.",
    "{q} JSON please.", "{q} Give me JSON.", "Reply in JSON.\n{q}",
)  # fmt: skip
_PREAMBLES = ("", "", "", "Message: ", "Note: ", "A customer writes: ", "Request: ", "Log: ")


class ExtractionSource:
    """An endless, seeded stream of requests for JSON."""

    def __init__(self, items: ItemSource, chat: ChatSource, words: Lexicon, seed: int) -> None:
        self._items, self._chat, self._words = items, chat, words
        self._rng = random.Random(seed)
        self._values = Values(self._rng)
        self._records = read_records()
        self._weights = [record.weight for record in self._records]
        evaluated = read_extraction_jsonl(DATA / "extraction.jsonl")
        self._taboo = {normalised(item.messages[-1]["content"]) for item in evaluated}

    def draw(self) -> Asked:
        """The next request, with its answer; one that the evaluation asks is drawn again."""
        while True:
            asked = self._rng.choices(tuple(_ODDS), tuple(_ODDS.values()))[0](self)
            if normalised(asked.messages[-1]["content"]) not in self._taboo:
                return asked

    def _record(self) -> Asked:
        """About what a written record says: one thing, several of a kind, or one in an object of its own."""
        rng = self._rng
        record = rng.choices(self._records, self._weights)[0]
        several = draw_list(record, self._values, rng.randint(2, 3)) if rng.random() < _LISTS else None
        passage = several or draw_passage(record, self._values)
        if not several and rng.random() < _NESTED:
            passage = Passage(about=passage.about, text=passage.text, fields={passage.about: passage.fields})
        return ask(passage, rng)

    def _facts(self) -> Asked:
        """About facts as tools return them, said in sentences of their own or in one."""
        rng = self._rng
        facts = Facts(values=self._values, words=self._words, camel=rng.random() < 0.2)
        drawn = facts.draw(rng.choice((1, 2, 2, 3, 3, 4)))
        clauses = [fact.clause for fact in drawn]
        joined = sentence(enumerated(clauses)) if rng.random() < 0.4 else " ".join(map(sentence, clauses))
        fields = {key: value for fact in drawn for key, value in fact.fields.items()}
        return ask(Passage(about=facts.thing(), text=joined, fields=fields), rng)

    def _request(self) -> Asked:
        """About the arguments of a call, which a request gives in its own words."""
        while True:
            item = self._items.draw()
            if len(item.calls) == 1 and item.calls[0][1]:
                break
        name, arguments = item.calls[0]
        declared = [cast(dict[str, Any], tool["function"]) for tool in item.tools]
        schemas = next(tool["parameters"]["properties"] for tool in declared if tool["name"] == name)
        options = {key: tuple(schemas[key]["enum"]) for key in arguments if "enum" in schemas[key]}
        text = self._rng.choice(_PREAMBLES) + item.messages[-1]["content"]
        return ask(Passage(about="request", text=text, fields=dict(arguments), options=options), self._rng)

    def _question(self) -> Asked:
        """A question of the small talk, whose answer, in a word if there is one, stands under a key."""
        exchange = self._chat.exchange()
        key = self._rng.choice(_ANSWER_KEYS)
        said = exchange.short or exchange.answer
        text = self._rng.choice(_ANSWER_REQUESTS).format(q=exchange.question, k=key)
        return Asked(messages=({"role": "user", "content": text},), answer=as_json({key: said}))


_ODDS: dict[Callable[[ExtractionSource], Asked], int] = {
    ExtractionSource._record: 58, ExtractionSource._facts: 15, ExtractionSource._request: 17,
    ExtractionSource._question: 10,
}  # fmt: skip


def documents(source: ExtractionSource, count: int, tokenizer: Encodes, template: Renders) -> Iterator[Document]:
    """`count` documents of at most `_LONGEST` tokens; longer ones are drawn again."""

    def draw() -> Document:
        while True:
            asked = source.draw()
            answer = tokenizer.encode(asked.answer + TURN_END)
            if len(answer) <= _LONGEST_ANSWER:
                break
        prompt = tokenizer.encode(template.render(asked.messages, add_generation_prompt=True))
        return answered(prompt, answer)

    return short_enough(draw, count, _LONGEST)

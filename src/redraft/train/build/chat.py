"""Small talk and simple questions: chat documents in plain, correct English, and the questions that test them.

A language model of this size learns language from many ways to say few things. So what is said is written by hand, as
patterns with alternatives (:mod:`.chat_text`), and what it is about comes from tables (:mod:`.chat_rows`): documents
are drawn from the product. Conversations have one to three exchanges, or more if something has to be remembered; the
last answer is what is learned.

Some ways to ask (`~` lines), and some sums, are never used in training: the evaluation asks those.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from redraft.text.tokenizer import TURN_END
from redraft.train.build.chat_rows import HELD, computed_tables, dictionary, word_rows
from redraft.train.build.chat_style import restyled
from redraft.train.build.chat_text import (
    DATA,
    Block,
    Row,
    Step,
    Table,
    expand,
    fill,
    finished,
    normalised,
    punctuated,
    read_blocks,
    read_tables,
)
from redraft.train.build.encoding import Encodes, Renders, answered
from redraft.train.shards import Document, write_shard

LONGEST = 320  # tokens

_SHARES = {"smalltalk": 0.31, "questions": 0.21, "facts": 0.40, "beyond": 0.08}
_EVALUATED = {"smalltalk": 70, "questions": 45, "facts": 48, "scripts": 10}
_EVALUATED_SUMS = 27
_NEUTRAL_SYSTEMS = (
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "You are tiny, a small language model.",
    "You are a kind and helpful assistant.",
    "You are an assistant that gives short answers.",
    "Be helpful and polite.",
    "Answer the user's questions.",
    "Talk to the user.",
    "Answer in English.",
    "Answer in simple English.",
    "Keep your answers short.",
    "Be brief.",
    "Be friendly.",
)
_SHORT_SYSTEMS = (
    "Answer in one word.",
    "Answer with one word.",
    "Give only the answer, no sentence.",
    "Answer as briefly as possible.",
    "Use as few words as possible.",
    "Reply with the answer alone.",
)
_CAPITAL_SYSTEMS = ("Answer in capital letters.", "Write everything in capital letters.", "USE CAPITAL LETTERS ONLY.")
_LITERAL_TABLES = frozenset({"words", "sentences", "definitions", "meanings"})  # their questions are never rephrased


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A question, its answer, and the answer in a word if there is one. A `literal` question is not restyled."""

    question: str
    answer: str
    short: str | None = None
    literal: bool = False


@dataclass(frozen=True, kw_only=True)
class Chat:
    """A conversation that ends with a question (`messages`), and the answer to it."""

    messages: tuple[Mapping[str, str], ...]
    answer: str


def all_tables(cache: Path | None, seed: int) -> dict[str, Table]:
    """Written and computed tables; with a `cache` folder for Debian packages also WordNet's definitions."""
    tables: dict[str, Table] = {**read_tables(DATA / "tables.txt"), **read_tables(DATA / "verses.txt")}
    tables.update(computed_tables(tables, random.Random(seed)))
    words = sorted({row["singular"] for row in tables["nouns"]} | {row["animal"] for row in tables["animals"]})
    if cache:
        glosses = dictionary(cache)
        entries = [{"word": word, "gloss": entry.gloss} for word, entry in glosses.items()]
        tables["definitions"] = [row for row in entries if glosses[row["word"]].countable]
        tables["meanings"] = [row for row in entries if not glosses[row["word"]].countable]
        words = sorted({*words, *(word for word in islice(glosses, 1200) if len(word) < 9)})
    tables["words"] = word_rows(words)
    return tables


class ChatSource:
    """An endless, seeded stream of conversations."""

    def __init__(self, tables: Mapping[str, Table], seed: int) -> None:
        self._rng = random.Random(seed)
        self._tables = {name: [row for row in rows if HELD not in row] for name, rows in tables.items()}
        self._blocks: list[Block] = []
        self._weights: list[float] = []
        for name, share in _SHARES.items():
            blocks = [block for block in read_blocks(DATA / f"{name}.txt") if _is_known(block, self._tables)]
            self._blocks += blocks
            self._weights += [share * block.weight / sum(block.weight for block in blocks) for block in blocks]
        self._scripts = read_blocks(DATA / "scripts.txt")
        self._script_weights = [script.weight for script in self._scripts]
        self._taboo = {normalised(item["messages"][-1]["content"]) for item in shipped_items()}

    def draw(self) -> Chat:
        """The next conversation; one that asks an evaluation question is drawn again."""
        while True:
            chat = self._script_chat() if self._rng.random() < 0.16 else self._chat()
            if all(normalised(message["content"]) not in self._taboo for message in chat.messages):
                return chat

    def exchange(self, names: Collection[str] | None = None) -> Exchange:
        """A question about anything, or about one of the blocks `names`, and its answer."""
        while True:
            block = self._block()
            if names is None or block.name in names:
                exchange = self._exchange(block.steps[0], self._rows(block.table), table=block.table)
                if normalised(exchange.question) not in self._taboo:
                    return exchange

    def _chat(self) -> Chat:
        """One to three exchanges about anything; a question sometimes follows up on the previous one."""
        exchanges: list[Exchange] = []
        block = self._block()
        for _ in range(self._rng.choices([1, 2, 3], [46, 34, 20])[0]):
            follows = bool(exchanges and block.steps[0].follow_ups) and self._rng.random() < 0.5
            block = block if follows else self._block()
            exchanges.append(
                self._exchange(block.steps[0], self._rows(block.table), follows=follows, table=block.table)
            )
        return self._finish(exchanges)

    def _script_chat(self) -> Chat:
        """A conversation in which something is said and later asked about."""
        script = self._rng.choices(self._scripts, self._script_weights)[0]
        rows = self._rows(script.table)
        exchanges: list[Exchange] = []
        for index, step in enumerate(script.steps):
            if index and self._rng.random() < 0.45:
                filler = self._block()
                exchanges.append(self._exchange(filler.steps[0], self._rows(filler.table), table=filler.table))
            exchanges.append(self._exchange(step, rows, table=script.table))
            if index == 0 and len(script.steps) > 1 and self._rng.random() < 0.25:
                break
        system = fill(expand(self._rng.choice(script.systems), self._rng), *rows) if script.systems else None
        return self._assemble(exchanges, system)

    def _block(self) -> Block:
        return self._rng.choices(self._blocks, self._weights)[0]

    def _rows(self, table: str | None) -> tuple[Row, Row]:
        return draw_rows(self._tables[table], self._rng) if table else ({}, {})

    def _exchange(
        self, step: Step, rows: tuple[Row, Row], *, follows: bool = False, table: str | None = None
    ) -> Exchange:
        question = punctuated(self._text(step.follow_ups if follows else step.questions, rows))
        return Exchange(
            question=question,
            answer=self._text(step.answers, rows),
            short=self._text(step.short_answers, rows) if step.short_answers else None,
            literal=follows or table in _LITERAL_TABLES,
        )

    def _text(self, patterns: Sequence[str], rows: tuple[Row, Row]) -> str:
        return finished(fill(expand(self._rng.choice(patterns), self._rng), *rows))

    def _finish(self, exchanges: list[Exchange]) -> Chat:
        """Choose the system message, and adapt the answers to it."""
        if self._rng.random() < 0.3 and all(exchange.short for exchange in exchanges):
            brief = [Exchange(question=e.question, answer=e.short or "", literal=e.literal) for e in exchanges]
            return self._assemble(brief, self._rng.choice(_SHORT_SYSTEMS))
        if self._rng.random() < 0.01:
            loud = [Exchange(question=e.question, answer=e.answer.upper(), literal=e.literal) for e in exchanges]
            return self._assemble(loud, self._rng.choice(_CAPITAL_SYSTEMS))
        return self._assemble(exchanges, self._rng.choice(_NEUTRAL_SYSTEMS) if self._rng.random() < 0.2 else None)

    def _assemble(self, exchanges: list[Exchange], system: str | None) -> Chat:
        casual = self._rng.random() < 0.12
        messages = [{"role": "system", "content": finished(system)}] if system else []
        for index, exchange in enumerate(exchanges):
            question = exchange.question if exchange.literal else self._styled(exchange.question, index, casual=casual)
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": exchange.answer})
        return Chat(messages=tuple(messages[:-1]), answer=exchanges[-1].answer)

    def _styled(self, question: str, index: int, *, casual: bool) -> str:
        """In the style of people who type whole conversations without capitals and full stops."""
        question = restyled(question, self._rng, first=index == 0)
        return question.lower().rstrip("?.!") if casual else question


def draw_rows(rows: Table, rng: random.Random) -> tuple[Row, Row]:
    """A row, and another that differs from it: in its `kind` if the table has one, else in every value."""
    row = rng.choice(rows)
    for _ in range(100):
        other = rng.choice(rows)
        columns = ["kind"] if "kind" in row else list(row)[:2]
        if all(row[column] != other[column] for column in columns):
            return row, other
    return row, row


def encode_chat(chat: Chat, tokenizer: Encodes, template: Renders) -> Document:
    """The training document of a conversation: rendered prompt, then the answer and the end of the turn."""
    prompt = tokenizer.encode(template.render(chat.messages, add_generation_prompt=True))
    return answered(prompt, tokenizer.encode(chat.answer + TURN_END))


def documents(source: ChatSource, count: int, tokenizer: Encodes, template: Renders) -> Iterator[Document]:
    """`count` different documents of at most `LONGEST` tokens."""
    seen: set[bytes] = set()
    while len(seen) < count:
        document = encode_chat(source.draw(), tokenizer, template)
        key = document.tokens.tobytes()
        if len(document.tokens) <= LONGEST and key not in seen:
            seen.add(key)
            yield document


def build(out: Path, n: int, *, cache: Path, tokenizer: Encodes, template: Renders, seed: int = 51) -> None:
    """Writes a shard of `n` chat documents. `cache` keeps downloaded Debian packages."""
    write_shard(out, documents(ChatSource(all_tables(cache, seed), seed), n, tokenizer, template))


def evaluation_items(tables: Mapping[str, Table]) -> list[dict[str, Any]]:
    """200 held-out questions: records with `id`, `messages`, and `expected`, one of which a right answer contains.

    Expected phrases are matched as whole words, ignoring case.
    """
    rng = random.Random(5100)
    items: list[dict[str, Any]] = []
    for name, count in _EVALUATED.items():
        blocks = [block for block in read_blocks(DATA / f"{name}.txt") if _is_known(block, tables)]
        items += rng.sample([item for block in blocks for item in _block_items(block, tables, rng)], count)
    items += rng.sample(_held_row_items(tables, rng), _EVALUATED_SUMS)
    return [{"id": f"smalltalk-{index:03d}", **item} for index, item in enumerate(items)]


def shipped_items() -> list[dict[str, Any]]:
    """The items of the evaluation file, which are independent of what a training run draws."""
    return evaluation_items(all_tables(None, seed=0))


def write_evaluation(out: Path) -> None:
    """Writes the held-out questions as JSON lines."""
    items = shipped_items()
    out.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items), encoding="utf-8")


def _is_known(block: Block, tables: Mapping[str, Table]) -> bool:
    return block.table is None or bool(tables.get(block.table))


def _block_items(block: Block, tables: Mapping[str, Table], rng: random.Random) -> Iterator[dict[str, Any]]:
    """One item for every held-out way to ask; a script's earlier steps come before the question."""
    table = tables[block.table] if block.table else [{}]
    for question in block.steps[-1].held_out:
        rows = draw_rows(table, rng) if block.table else ({}, {})
        messages = [{"role": "system", "content": fill(expand(block.systems[0], rng), *rows)}] if block.systems else []
        for step in block.steps[:-1]:
            messages.append({"role": "user", "content": finished(fill(expand(step.questions[0], rng), *rows))})
            messages.append({"role": "assistant", "content": finished(fill(expand(step.answers[0], rng), *rows))})
        yield _item(messages, question, block.steps[-1], rows, [rows[0]] if messages else table)


def _held_row_items(tables: Mapping[str, Table], rng: random.Random) -> list[dict[str, Any]]:
    """The sums and differences that are never trained, asked as training asks others."""
    blocks = [block for block in read_blocks(DATA / "facts.txt") if block.table in ("sums", "differences")]
    return [
        _item([], expand(rng.choice(block.steps[0].questions), rng), block.steps[0], (row, row), [row])
        for block in blocks
        for row in tables[block.table or ""]
        if HELD in row
    ]


def _item(
    messages: list[dict[str, str]], question: str, step: Step, rows: tuple[Row, Row], table: Table
) -> dict[str, Any]:
    """The item of one question; every row of the table that the same question could mean provides right answers."""
    asked = fill(question, *rows)
    meant = [row for row in table if fill(question, row, rows[1]) == asked]
    expected = dict.fromkeys(fill(text, row, rows[1]) for row in meant for text in step.expected)
    texts = [text.replace(" / ", "\n") for text in expected]
    return {"messages": [*messages, {"role": "user", "content": punctuated(finished(asked))}], "expected": texts}

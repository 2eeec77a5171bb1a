"""Edits: a span of Python or English, an instruction, and the edited span.

The request is the one that `redraft.editing` writes, and the answer starts where its canvas begins: the last tokens
before the span belong to the prompt, and the nearest text after it ends the document. So training sees what an edit
asks for.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from redraft.text.edit_request import edit_request
from redraft.train.build.decontaminate import EvaluationFilter, edit_items
from redraft.train.build.edit_kinds import ENGLISH, PYTHON, Change, Maker, words_of
from redraft.train.build.encoding import Encodes, Renders, answered
from redraft.train.build.english import prose_texts
from redraft.train.build.infill_eval import PACKAGES, evaluation_files
from redraft.train.build.python_code import evaluation_filter, wanted_files
from redraft.train.shards import Document, write_shard

LEAD, VIEW = 64, 32
"""Tokens before the span that the answer repeats, and after it that the canvas holds, as in `redraft.editing`."""
LONGEST = 640
"""The most tokens of a document."""
_ANSWER = 128
_LINES_BEFORE, _LINES_BEHIND = 8, 6
_SPANS, _SPAN_ODDS = (1, 2, 3, 4), (50, 25, 15, 10)
_ENGLISH_SHARE = 0.25
_TRIES = 12
_EVALUATED = 200


@dataclass(frozen=True, kw_only=True)
class Edit:
    """`old` becomes `new` between `before` and `behind`."""

    instruction: str
    before: str
    old: str
    new: str
    behind: str


class EditSource:
    """An endless, seeded stream of edits to the lines of `code` and `prose`."""

    def __init__(self, code: Sequence[str], prose: Sequence[str], seed: int) -> None:
        self._rng = random.Random(seed)
        self._texts = {PYTHON: code, ENGLISH: prose}
        self._names = words_of(self._rng.sample(list(code), min(400, len(code)))) if code else []

    def draw(self) -> Edit:
        """The next edit."""
        while True:
            english = bool(self._texts[ENGLISH]) and self._rng.random() < _ENGLISH_SHARE
            makers = ENGLISH if english else PYTHON
            found = self._edit(self._rng.choice(self._texts[makers]), makers)
            if found is not None:
                return found

    def _edit(self, text: str, makers: tuple[Maker, ...]) -> Edit | None:
        lines = text.split("\n")
        for _ in range(_TRIES):
            count = self._rng.choices(_SPANS, _SPAN_ODDS)[0]
            first = self._rng.randrange(max(1, len(lines) - count + 1))
            old = lines[first : first + count]
            if not any(map(str.strip, old)) or max(map(len, old)) > 160:
                continue
            change = self._rng.choice(makers)(old, self._names, self._rng)
            if change is not None and change.lines != old:
                return self._placed(lines, first, count, change)
        return None

    def _placed(self, lines: list[str], first: int, count: int, change: Change) -> Edit:
        before = lines[max(0, first - self._rng.randint(0, _LINES_BEFORE)) : first]
        behind = lines[first + count :][: self._rng.randint(0, _LINES_BEHIND)]
        return Edit(
            instruction=change.instruction,
            before="".join(line + "\n" for line in before),
            old="\n".join(lines[first : first + count]),
            new="\n".join(change.lines),
            behind="".join("\n" + line for line in behind),
        )


def encode_edit(edit: Edit, tokenizer: Encodes, template: Renders) -> Document | None:
    """The training document; None if it is too long, or if the span's ends are not token boundaries."""
    request = edit_request(edit.instruction, edit.before, edit.old, edit.behind)
    prompt = tokenizer.encode(template.render([{"role": "user", "content": request}], add_generation_prompt=True))
    before, new, behind = (tokenizer.encode(text, special=False) for text in (edit.before, edit.new, edit.behind))
    if tokenizer.encode(edit.before + edit.new + edit.behind, special=False) != [*before, *new, *behind]:
        return None
    context, answer = [*prompt, *before[-LEAD:]], [*new, *behind[:VIEW]]
    if len(answer) > _ANSWER or len(context) + len(answer) > LONGEST or not new:
        return None
    return answered(context, answer)


def documents(
    source: EditSource, count: int, tokenizer: Encodes, template: Renders, evaluation: EvaluationFilter
) -> Iterator[Document]:
    """`count` different documents, none of which shares text with the items of `evaluation`."""
    seen: set[bytes] = set()
    while len(seen) < count:
        edit = source.draw()
        if any(evaluation.is_contaminated(edit.before + text + edit.behind) for text in (edit.old, edit.new)):
            continue
        document = encode_edit(edit, tokenizer, template)
        if document is not None and (key := document.tokens.tobytes()) not in seen:
            seen.add(key)
            yield document


def build(
    out: Path, n: int, *, cache: Path, tokenizer: Encodes, template: Renders, evaluation: Path, seed: int = 61
) -> Path:
    """Write a shard of `n` edits to the texts that training reads, excluding what the items in `evaluation` show.

    `cache` keeps downloaded sources.
    """
    source = EditSource([file.text for file in wanted_files(cache)], list(prose_texts(cache)), seed)
    held_out = EvaluationFilter.from_items(edit_items(evaluation / "edits.jsonl"))
    held_out = held_out | evaluation_filter(evaluation / "infill.jsonl", cache)
    write_shard(out, documents(source, n, tokenizer, template, held_out))
    return out


def evaluation_items(cache: Path) -> list[dict[str, Any]]:
    """Held-out edits: records with `id`, `instruction`, `before`, `old`, `new` and `behind`.

    They come from the packages that infilling is measured on.
    """
    code = [file.text for package in PACKAGES for file in evaluation_files(package, cache)]
    source = EditSource(code, [], 6100)
    edits = islice(iter(source.draw, None), _EVALUATED)
    fields = ("instruction", "before", "old", "new", "behind")
    return [
        {"id": f"edit-{index:03d}", **{name: getattr(edit, name) for name in fields}}
        for index, edit in enumerate(edits)
    ]


def write_evaluation(out: Path, cache: Path) -> Path:
    """Write the held-out edits as JSON lines."""
    items = evaluation_items(cache)
    out.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items), encoding="utf-8")
    return out

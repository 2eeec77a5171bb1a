"""The tables [data] and [[data.sources]]: the shape of a batch, and what its documents are."""

from __future__ import annotations

import math
from dataclasses import dataclass

from redraft.errors import SettingError
from redraft.train.recipe.checks import Checks, check

KINDS = ("text", "chat", "sudoku", "reverse")
BUCKETS = 10
BUCKET_NAMES = tuple(f"t{bucket / BUCKETS:.1f}" for bucket in range(BUCKETS))
"""Names of the noise-level buckets in reports, by their lower bounds."""
REPORTED = (*BUCKET_NAMES, "replaced", "kept")
"""What reports cover in addition to the sources, which may not have these names."""


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """One kind of training documents and its share of the rows."""

    name: str
    kind: str
    """`text` and `chat` read shards or JSON lines; `sudoku` draws puzzles from a base file; `reverse` is a toy task."""
    share: float
    path: str = ""
    """A file or, for shards and JSON lines, a pattern such as `code-*.xz` or `chats/*.jsonl`."""
    max_canvases: int = 0
    """The most canvases that an answer of JSON lines may take; a longer one is an error. 0 leaves the limit to the row.
    """
    infill: float = 0.0
    """Share of canvases in which everything but a hole is given; the others are generated whole."""
    line_holes: float = 0.7
    """Share of holes that are whole lines or ends of lines (in chat: text between two marks such as quotes and commas);
    the rest are random spans."""
    extra_holes: float = 0.0
    """Share of the canvases with a hole that have one to three more."""
    spare_holes: float = 0.0
    """Share of the holes in plain text, and of those in JSON lines, that are longer than their text and filled up with
    padding. It teaches how long the text of a hole is, which `fill` then asks."""
    hole_weight: float = 1.0
    """Loss weight of each hole token."""
    hole_full_noise: float = 0.3
    """Probability that a hole is entirely noise, in addition to what the uniform noise level gives."""
    full_noise: float = 0.0
    """The same for canvases that are generated whole."""
    rollout: float = 0.0
    """Share of the canvases with a first pass whose second pass continues from what the sampler makes of the first one:
    the model's surest tokens kept, right or wrong, and fresh noise elsewhere. For sources with one right answer."""
    prompt_weight: float = 1.0
    """Weight of prompt tokens, and of given text after a hole, in the encoder loss."""
    fill_weight: float = 1.0
    """Weight of the end-of-text tokens that fill a canvas, after the first of them."""
    clean_answer: bool = True
    """Put the answer tokens of a document's last canvas into the clean stream, for the encoder loss."""
    heldout: float = 0.002
    """Share of the documents, the last ones of every file, kept for evaluation: at least one of several, unless 0. Of
    JSON lines whole lines are kept, since the documents of a conversation contain each other."""
    clues: tuple[int, int] = (24, 45)
    """Minimum and maximum clues of Sudoku puzzles."""

    def __post_init__(self) -> None:
        check(bool(self.name), "source.name", self.name, "a name")
        check(
            self.name not in REPORTED,
            "source.name",
            self.name,
            f"a name other than {', '.join(REPORTED)}, which reports use",
        )
        checks = Checks(self, f"source {self.name}: ")
        checks.one_of(KINDS, "kind")
        checks.above_zero("share")
        has_path = bool(self.path) != (self.kind == "reverse")
        checks.that(has_path, "path", "empty for kind 'reverse' and given for every other kind")
        checks.shares("infill", "line_holes", "extra_holes", "spare_holes", "hole_full_noise", "full_noise", "rollout",
                      "heldout")  # fmt: skip
        checks.at_least(0, "hole_weight", "prompt_weight", "fill_weight", "max_canvases")
        rising = len(self.clues) == 2 and 17 <= self.clues[0] <= self.clues[1] <= 81
        checks.that(rising, "clues", "two numbers from 17 to 81, the smaller one first")
        self._check_effects(checks)

    @property
    def is_jsonl(self) -> bool:
        return self.path.endswith(".jsonl")

    def _check_effects(self, checks: Checks) -> None:
        """Refuse what changes nothing for documents of this kind."""
        generated, of_kind = self.kind in ("sudoku", "reverse"), f"for kind {self.kind!r}"
        chat_lines = self.is_jsonl and self.kind == "chat"  # these may have holes of their own
        checks.has_effect(self.kind == "sudoku", "clues", of_kind)
        checks.has_effect(chat_lines, "max_canvases", "without JSON lines")
        for name in ("prompt_weight", "clean_answer"):
            checks.has_effect(self.kind != "text", name, of_kind)
        for name in ("infill", "heldout"):
            checks.has_effect(not generated, name, of_kind)
        for name in ("line_holes", "extra_holes", "hole_weight", "hole_full_noise"):
            checks.has_effect(self.infill > 0, name, of_kind if generated else "without infill")
        spare = chat_lines or (self.kind == "text" and self.infill > 0)
        lacking = "without infill" if self.kind == "text" else "without JSON lines"
        checks.has_effect(spare, "spare_holes", of_kind if generated else lacking)


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Shape of a batch, and where its documents come from."""

    rows: int
    tokens: int
    """Clean tokens per row."""
    canvases: int
    """Canvases per row; their length is the model's canvas_length."""
    sources: tuple[SourceSettings, ...]
    tokenizer: str = ""
    """Model folder with the tokenizer and chat template, copied on export; needed by `text` and `sudoku` sources, by
    JSON lines and by `infill`. A recipe may also name `tiny`, a GGUF file or a hub id."""
    workers: int = 0
    """Processes that pack batches ahead of time; 0 packs in the training process."""
    accumulate: int = 1
    """Batches per step and device, which learn as one batch of all their rows would."""

    def __post_init__(self) -> None:
        checks = Checks(self, "data.")
        checks.at_least(1, "rows", "tokens", "canvases", "accumulate")
        checks.that(self.tokens < 2**16, "tokens", "below 65536")
        checks.at_least(0, "workers")
        checks.that(len(self.sources) > 0, "sources", "at least one [[data.sources]] table")
        names = [source.name for source in self.sources]
        check(len(set(names)) == len(names), "data.sources", names, "names that all differ")
        shares = [source.share for source in self.sources]
        check(math.isfinite(sum(shares)), "data.sources", shares, "shares with a finite sum")
        needs = [s.name for s in self.sources if s.kind in ("text", "sudoku") or s.infill or s.is_jsonl]
        if needs and not self.tokenizer:
            raise SettingError(f"data.tokenizer is missing; source {needs[0]} needs a model folder with a tokenizer.")

    @property
    def rolls_out(self) -> bool:
        """Whether canvases of any source continue from the model's own draft."""
        return any(source.rollout > 0 for source in self.sources)

"""`score`: how likely given texts are, by one causal pass and without writing anything.

The weights that denoise canvases also encode committed tokens causally, and the head on these hidden states gives the
next token's distribution. So the probability of a text is exactly the product of its tokens'. How good that model of
text is depends on its training (docs/usage.md): answers are not drawn from this distribution.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from redraft.checks import plain, require_type
from redraft.diffusion.causal import TokenScore, token_scores
from redraft.diffusion.prefill import CHUNK, held_at_once, prefill
from redraft.errors import TOO_LONG, InputError, NotFiniteError, PromptError, SettingError
from redraft.kernels import MIN_ROWS
from redraft.model import Model
from redraft.settings import MAX_LOGPROBS
from redraft.text.placing import EncodedPrompt
from redraft.text.tokenizer import Tokenizer

Text = str | Sequence[int]
Pair = tuple[EncodedPrompt, tuple[int, ...]]
"""A prompt, and the tokens of a text after it."""
TEXTS_AT_ONCE = 32
"""The most texts in a forward pass."""
TOKENS_AT_ONCE = 2048
"""The most tokens in a forward pass of several texts, padding included, as other work waits for it."""


class ScoringLLM(Protocol):
    """The part of `redraft.llm.LLM` that scoring needs."""

    @property
    def model(self) -> Model: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    def read_prompt(self, prompt: Any, *, raw: bool = False) -> EncodedPrompt: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """How likely a text is after its prompt, by the model's causal pass.

    tokens         of the text, one by one
    pieces         what each token adds to `text`; one inside a character adds nothing, and its last one the character
    prompt_tokens  how many tokens came before
    """

    text: str
    tokens: tuple[TokenScore, ...]
    pieces: tuple[str, ...]
    prompt_tokens: int

    @property
    def logprob(self) -> float:
        """log P(text | prompt) in nats: the sum over its tokens."""
        return math.fsum(self.logprobs)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Of the text."""
        return tuple(token.token_id for token in self.tokens)

    @property
    def logprobs(self) -> tuple[float, ...]:
        """Of each token, in nats."""
        return tuple(token.logprob for token in self.tokens)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "text": self.text,
            "logprob": self.logprob,
            "tokens": [
                {"id": token.token_id, "text": piece, "logprob": token.logprob, "top": [list(one) for one in token.top]}
                for token, piece in zip(self.tokens, self.pieces, strict=True)
            ],
            "prompt_tokens": self.prompt_tokens,
        }


def score_texts(
    llm: ScoringLLM, texts: Iterable[Text], prompts: Iterable[Any] | None, *, raw: bool, top: int
) -> list[Score]:
    """The scores of several texts, each after its own prompt; see `LLM.score_batch`."""
    if _is_one(texts):
        raise PromptError("The texts must be a list of texts.", "texts")
    if prompts is not None and _is_one(prompts):
        raise PromptError("The prompts must be a list of prompts.", "prompts")
    top = plain(top)
    require_type("top", top, int)
    if not 0 <= top <= MAX_LOGPROBS:
        raise SettingError(f"top is {top}; it must be between 0 and {MAX_LOGPROBS}.", "top")
    texts = list(texts)
    before = [None] * len(texts) if prompts is None else list(prompts)
    if len(before) != len(texts):
        raise SettingError(f"There are {len(before)} prompts for {len(texts)} texts.", "prompts")
    pairs: list[Pair] = []
    for i, (text, prompt) in enumerate(zip(texts, before, strict=True)):
        try:
            pairs.append(_read(llm, text, prompt, raw))
        except InputError as error:
            if len(texts) > 1:
                error.args = (f"texts[{i}]: {error}",)
            raise
    scores = score_tokens(llm.model, pairs, top)
    return [
        _named(llm.tokenizer, text, len(prompt), tokens)
        for text, (prompt, _), tokens in zip(texts, pairs, scores, strict=True)
    ]


def _is_one(given: object) -> bool:
    """Whether this is not several: a text is no list of its characters."""
    return isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable)


def score_tokens(model: Model, pairs: Sequence[Pair], top: int = 0) -> list[list[TokenScore]]:
    """The tokens of each text after its prompt, which must fit the context together; a text may be empty.

    A prompt of several texts is encoded once for those that are scored together. Raises `NotFiniteError`.
    """
    work = scoring(model, pairs, top)
    while (scores := go_on(work)) is None:
        pass
    return scores


Scoring = Generator[None, None, list[list[TokenScore]]]
"""`score_tokens` with pauses, for other work of the model."""


def scoring(model: Model, pairs: Sequence[Pair], top: int) -> Scoring:
    """Score as `score_tokens` does, with the same bits, and pause between texts that are not scored together."""
    scores: list[list[TokenScore]] = [[] for _ in pairs]
    for number, batch in enumerate(_batches(model, pairs)):
        if number:
            yield
        for i, found in zip(batch, _together(model, [pairs[i] for i in batch], top), strict=True):
            scores[i] = found
    if any(math.isnan(token.logprob) for found in scores for token in found):
        raise NotFiniteError
    return scores


def go_on(work: Scoring) -> list[list[TokenScore]] | None:
    """Score until the next pause; returns the scores at the end."""
    try:
        next(work)
    except StopIteration as end:
        return end.value
    return None


def _batches(model: Model, pairs: Sequence[Pair]) -> Iterator[list[int]]:
    """Which texts are scored together: texts of one prompt, and such of about the same lengths.

    What is added up to the longest one is never more than the texts themselves, since a CPU computes it, too.
    """
    sizes = [max(MIN_ROWS, len(prompt), len(text)) for prompt, text in pairs]
    largest: dict[EncodedPrompt, int] = {}
    for (prompt, _), size in zip(pairs, sizes, strict=True):
        largest[prompt] = max(size, largest.get(prompt, 0))
    longest = max((len(prompt) + len(text) for prompt, text in pairs), default=1)
    most = min(TEXTS_AT_ONCE, held_at_once(model, longest, each=2))  # a prompt and its copy
    batch: list[int] = []
    for i in sorted(range(len(pairs)), key=lambda i: (largest[pairs[i][0]], pairs[i][0].ids, sizes[i])):
        taken = [sizes[k] for k in (*batch, i)]
        count, width = len(taken), max(taken)
        if count > most or count * min(width, CHUNK) > TOKENS_AT_ONCE or count * width > 2 * sum(taken):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _together(model: Model, pairs: Sequence[Pair], top: int) -> list[list[TokenScore]]:
    """`score_tokens` for texts whose keys and values are held together."""
    row_of = {prompt: row for row, prompt in enumerate(dict.fromkeys(prompt for prompt, _ in pairs))}
    cache = model.new_cache(len(row_of), max(len(prompt) + len(text) for prompt, text in pairs))
    last = prefill(model, cache, [prompt.ids for prompt in row_of], [prompt.images for prompt in row_of])
    rows = [row_of[prompt] for prompt, _ in pairs]
    return token_scores(model, cache.copy(rows), last[rows], [text for _, text in pairs], top)


def _read(llm: ScoringLLM, text: Text, prompt: Any, raw: bool) -> Pair:
    """The prompt and the text as token ids. Raises `PromptError`."""
    tokenizer, context = llm.tokenizer, llm.model.config.max_position_embeddings
    if isinstance(text, str) and not text:
        raise PromptError("The text is empty.", "text")
    if not isinstance(text, Sequence) or isinstance(text, bytes | bytearray) or not len(text):
        raise PromptError("The text must be a non-empty str or list of token ids.", "text")
    if isinstance(text, str):
        ids = tokenizer.encode(text, special=False)
    else:
        tokenizer.check_ids(text)
        ids = list(map(int, text))
    alone = prompt is None and not raw
    read = EncodedPrompt((tokenizer.bos_id,)) if alone else llm.read_prompt(prompt, raw=raw)
    if len(read) + len(ids) > context:
        sentence = f"A prompt of {len(read)} tokens and a text of {len(ids)} do not fit the context of {context}."
        raise PromptError(sentence, "text", code=TOO_LONG)
    return read, tuple(ids)


def _named(tokenizer: Tokenizer, text: Text, before: int, tokens: Sequence[TokenScore]) -> Score:
    """The score of a text after a prompt of `before` tokens, with the texts of its tokens."""
    stream = tokenizer.stream()
    pieces = [stream.push([token.token_id]) for token in tokens]
    pieces[-1] += stream.finish()
    whole = text if isinstance(text, str) else "".join(pieces)
    return Score(text=whole, tokens=tuple(tokens), pieces=tuple(pieces), prompt_tokens=before)

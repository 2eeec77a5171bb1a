"""Prompts that are scored: `echo` with `logprobs` in `/v1/completions`, as evaluation harnesses ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from redraft.diffusion.causal import TokenScore
from redraft.errors import TOO_LONG, PromptError, about
from redraft.llm import LLM
from redraft.serve.openai_common import listed_logprobs
from redraft.serve.planning import Planner, rename_fields
from redraft.serve.scoring_queue import Prompts
from redraft.serve.service import Service
from redraft.serve.shapes.completions import CompletionRequest
from redraft.text.placing import EncodedPrompt
from redraft.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ScoredPrompt:
    """A prompt of `read` tokens and its `logprobs`, in OpenAI's lists; the first token that was given has none.

    If the request asks for one token, `written` is 1: the likeliest next one is in the text and the lists, too. If that
    is an end, which is no text, `ended` is true.
    """

    text: str
    logprobs: dict[str, Any]
    read: int
    written: int = 0
    ended: bool = False

    def choice(self, index: int) -> dict[str, Any]:
        """As a choice of a text completion that ends here."""
        reason = "stop" if self.ended else "length"
        return {"index": index, "text": self.text, "finish_reason": reason, "logprobs": self.logprobs}


def read_prompts(planner: Planner, body: CompletionRequest) -> list[EncodedPrompt]:
    """The request's prompts as the model reads them, within the server's limits."""
    read: list[EncodedPrompt] = []
    for prompt, place in zip(body.prompts(), body.places(), strict=True):
        with rename_fields(lambda place=place: {"prompt": place}), about("prompt"):
            read.append(planner.checked(planner.llm.read_prompt(prompt, raw=isinstance(prompt, str))))
    return read


async def score_prompts(service: Service, body: CompletionRequest, size: int) -> list[ScoredPrompt]:
    """Score the prompts of a request of `size` bytes, by `Service.score`."""
    planner, prompts = service.planner.for_model(body.model), list[EncodedPrompt]()
    model, one_more = planner.llm.model, body.max_tokens == 1

    def read() -> Prompts:
        prompts.extend(read_prompts(planner, body))
        most = model.config.max_position_embeddings - one_more
        longest = max(range(len(prompts)), key=lambda i: len(prompts[i]))
        if (tokens := len(prompts[longest])) > most:
            sentence = f"The prompt is too long: it has {tokens} tokens; here it must have at most {most}."
            raise PromptError(sentence, body.places()[longest], code=TOO_LONG)
        # Any token may stand in the place of the next one, whose likeliest candidate is `top` there.
        cuts = [(prompt.ids, _unscored(given)) for given, prompt in zip(body.prompts(), prompts, strict=True)]
        pairs = [(EncodedPrompt(ids[:cut]), ids[cut:] + (0,) * one_more) for ids, cut in cuts]
        return Prompts(model=model, pairs=pairs, top=max(body.logprobs or 0, 1))

    scores = await service.score(read, body.timeout, size=size)
    asked = zip(body.prompts(), (prompt.ids for prompt in prompts), scores, strict=True)
    listed = partial(_with_next, planner.llm) if one_more else partial(_scored, planner.llm.tokenizer)
    # Lists of many tokens and what they could have been take a while to make.
    return await service.read(lambda: [listed(*one, body.logprobs) for one in asked], size)


Given = str | list[int]
"""A prompt as the request has it."""


def _with_next(
    llm: LLM, given: Given, ids: tuple[int, ...], scores: Sequence[TokenScore], top: int | None
) -> ScoredPrompt:
    """The prompt `ids` and the likeliest token after it; the last of `scores` says which that is."""
    token, logprob = scores[-1].top[0]
    scores = [*scores[:-1], TokenScore(token, logprob, scores[-1].top)]
    scored = _scored(llm.tokenizer, given, (*ids, token), scores, top)
    ended = token in llm.eos_ids
    more = "" if ended else llm.tokenizer.decode([token])
    return replace(scored, text=text_of(given, llm.tokenizer) + more, read=len(ids), written=1, ended=ended)


def _scored(
    tokenizer: Tokenizer, given: Given, ids: tuple[int, ...], scores: Sequence[TokenScore], top: int | None
) -> ScoredPrompt:
    """Tokens `ids`, all but the first given one with their scores and the `top` likeliest tokens."""
    found = [None, *(score._replace(top=score.top[:top]) for score in scores)]
    lists = listed_logprobs(ids[_unscored(given) - 1 :], found, tokenizer)
    return ScoredPrompt(text_of(given, tokenizer), lists, len(ids))


def _unscored(given: Given) -> int:
    """How many tokens of a prompt have no score: its first, and before a text the one that opens every prompt.

    So the lists are those of the prompt as it was given, and harnesses that count its tokens find them.
    """
    return 2 if isinstance(given, str) else 1


def text_of(given: Given, tokenizer: Tokenizer) -> str:
    """A prompt as text, special tokens included."""
    return given if isinstance(given, str) else tokenizer.decode(given)

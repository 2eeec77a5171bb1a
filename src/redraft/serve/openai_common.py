"""What OpenAI's shapes of answers share: usage, endings, log-probabilities, and Redraft's own extras."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from typing import Any

from redraft.diffusion.causal import TokenScore
from redraft.diffusion.records import TokenConfidence
from redraft.engine.request import Finished
from redraft.serve.planning import AnswerPlan
from redraft.settings import GenerationSettings
from redraft.text.marks import empty_thought_length
from redraft.text.tokenizer import Tokenizer


def finish_reason(finished: Finished) -> str:
    """`stop` or `length`; a timeout also counts as `length` (`redraft.ending` tells them apart)."""
    return "stop" if finished.finish_reason == "stop" else "length"


def usage(plan: AnswerPlan, finished: Sequence[Finished]) -> dict[str, Any]:
    """Count the tokens read and written by all answers; each prompt counts once."""
    written = sum(answer.stats.tokens for answer in finished)
    cached = sum(answer.stats.cached_tokens for answer in finished[:: plan.n])
    return usage_of(plan.prompt_tokens, written, cached)


def usage_of(read: int, written: int, cached: int) -> dict[str, Any]:
    """The `usage` of an answer, from its numbers of tokens."""
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def extras(
    finished: Finished, settings: GenerationSettings, tokenizer: Tokenizer, *, confidence: bool | None
) -> dict[str, Any]:
    """What Redraft adds to a choice: the seed that repeats it, how it ended, its cost, and how sure the model was."""
    more: dict[str, Any] = {"seed": settings.seed, "ending": finished.finish_reason}
    more["stats"] = finished.stats.to_dict()
    if confidence:
        more["confidence"] = [
            {"token": text(token.token_id, tokenizer), "id": token.token_id, "entropy": round(token.entropy, 5),
             "settled_step": token.settled_step} for token in finished.tokens
        ]  # fmt: skip
    return more


def text(token_id: int, tokenizer: Tokenizer) -> str:
    """A token as text; part of a character shows as U+FFFD."""
    return tokenizer.token_bytes(token_id).decode("utf-8", "replace")


def chat_logprobs(finished: Finished, tokenizer: Tokenizer) -> dict[str, Any]:
    """The `logprobs` of a chat choice."""
    return {"content": token_logprobs(finished, tokenizer), "refusal": None}


def token_logprobs(finished: Finished, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """One entry per token of the answer, including reasoning and calls."""
    return [_entry(token, tokenizer) for token in finished.tokens]


def _entry(token: TokenConfidence, tokenizer: Tokenizer) -> dict[str, Any]:
    top = [_token(token_id, logprob, tokenizer) for token_id, logprob in token.top]
    return _token(token.token_id, token.logprob, tokenizer) | {"top_logprobs": top}


def _token(token_id: int, logprob: float | None, tokenizer: Tokenizer) -> dict[str, Any]:
    data = tokenizer.token_bytes(token_id)
    return {"token": text(token_id, tokenizer), "logprob": _shown(logprob), "bytes": list(data)}


def completion_logprobs(finished: Finished, tokenizer: Tokenizer, begin: int = 0) -> dict[str, Any]:
    """The `logprobs` of a text completion that begins at character `begin`.

    Tokens of an empty thought, which the text leaves out, get the offset of its beginning.
    """
    left_out = empty_thought_length(tokenizer, finished.token_ids)
    listed = listed_logprobs(finished.token_ids, finished.tokens, tokenizer, -left_out)
    return listed | {"text_offset": [begin + start for start in listed["text_offset"]]}


def listed_logprobs(
    ids: Sequence[int], found: Sequence[TokenConfidence | TokenScore | None], tokenizer: Tokenizer, begin: int = 0
) -> dict[str, Any]:
    """OpenAI's lists of tokens in a text, the first of which begins at character `begin`, or at 0 if that is negative.

    A token that was not scored is None in `found`. The likeliest tokens in a place include its own, however likely.
    """
    return {
        "tokens": [_spelled(token, tokenizer) for token in ids],
        "token_logprobs": [None if token is None else _shown(token.logprob) for token in found],
        "top_logprobs": [None if token is None else _likeliest(token, tokenizer) for token in found],
        "text_offset": [max(0, begin + place) for place in _places(ids, tokenizer)],
    }


def _places(ids: Sequence[int], tokenizer: Tokenizer) -> Iterator[int]:
    """For each token the character of the text in which its first byte is."""
    decoder, before = codecs.getincrementaldecoder("utf-8")("replace"), 0
    for data in map(tokenizer.token_bytes, ids):
        begun, _ = decoder.getstate()  # only the byte that follows tells whether this becomes a character
        yield before + max(0, len((begun + data[:1]).decode("utf-8", "replace")) - 1)
        before += len(decoder.decode(data))


def _likeliest(token: TokenConfidence | TokenScore, tokenizer: Tokenizer) -> dict[str, float]:
    """Log-probabilities by text; of tokens with the same text, that of the likeliest, which comes last."""
    known = ((token.token_id, token.logprob), *reversed(token.top))
    return {_spelled(token_id, tokenizer): _shown(logprob) for token_id, logprob in known}


def _spelled(token_id: int, tokenizer: Tokenizer) -> str:
    """A token as text, or as bytes where these are only part of a character, which OpenAI's API writes so."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _shown(logprob: float | None) -> float:
    """A log-probability in nats; OpenAI's clients expect -9999 for an impossible token."""
    assert logprob is not None, "asked for"
    return max(logprob, -9999.0)

"""`llm.score`: log-probabilities of given texts by one causal pass, against the reference, in chunks and in batches."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import redraft
from passes import watched_passes
from random_adapter import random_adapter
from redraft.errors import NotFiniteError, PromptError, SettingError
from redraft.kernels import native
from redraft.llm import LLM
from redraft.model import Transformer
from redraft.model.adapters import save_adapter
from redraft.reference import Reference

TEXT = "The sea is salty because rivers carry salt into it, and only water leaves. 🙂 " * 3
QUESTION = "Why is the sea salty?"


def by_hand(llm: LLM, prompt: list[int], text: list[int]) -> torch.Tensor:
    """Log-probabilities [T,V] in the place of each token of a text, by the reference's whole pass."""
    assert isinstance(llm.model, Transformer)
    reference = Reference(llm.model)
    hidden, _ = reference.encode(torch.tensor([*prompt, *text]))
    return reference.head(hidden[len(prompt) - 1 : -1]).log_softmax(-1)


@pytest.mark.parametrize("prompt", [None, QUESTION, [{"role": "user", "content": QUESTION}], [2, 40, 41]])
def test_it_is_what_the_reference_says(llm: LLM, prompt: Any) -> None:
    """Of a text that, with its prompt, is longer than the window."""
    before = [llm.tokenizer.bos_id] if prompt is None else llm.prompt_ids(prompt)
    ids = llm.tokenizer.encode(TEXT, special=False)
    assert len(ids) > llm.model.config.sliding_window
    expected = by_hand(llm, before, ids)
    score = llm.score(TEXT, prompt, top=3)
    assert score.token_ids == tuple(ids)
    assert score.prompt_tokens == len(before)
    own = expected.gather(1, torch.tensor(ids)[:, None])[:, 0]
    assert score.logprobs == pytest.approx(own.tolist(), abs=1e-4)
    assert score.logprob == pytest.approx(float(own.double().sum()), abs=1e-3)
    best = expected.topk(3)
    assert [[token for token, _ in place.top] for place in score.tokens] == best.indices.tolist()
    for place, values in zip(score.tokens, best.values.tolist(), strict=True):
        assert [logprob for _, logprob in place.top] == pytest.approx(values, abs=1e-4)


def test_texts_of_tokens_are_those_of_the_text(llm: LLM) -> None:
    """A character of several tokens comes with its last one."""
    score = llm.score("a 🙂!")
    assert "".join(score.pieces) == score.text == "a 🙂!"
    assert len(score.pieces) == len(score.tokens)
    assert "" in score.pieces
    ids = llm.score(score.token_ids)
    assert ids == score
    cut = llm.score(llm.tokenizer.encode("🙂")[:1])
    assert cut.text == cut.pieces[0] == "\N{REPLACEMENT CHARACTER}"
    assert json.loads(json.dumps(score.to_dict()))["tokens"][0] == {
        "id": score.token_ids[0], "text": score.pieces[0], "logprob": score.logprobs[0], "top": [],
    }  # fmt: skip


def test_special_strings_are_plain_text_and_ids_are_themselves(llm: LLM) -> None:
    assert llm.tokenizer.turn_end_id not in llm.score("Hi<turn|>").token_ids
    ids = [*llm.tokenizer.encode("Hi"), llm.tokenizer.turn_end_id]
    assert llm.score(ids, QUESTION).token_ids == tuple(ids)


@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
def test_chunks_give_what_the_whole_gives(llm: LLM, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """Of the tokens and of the rows of logits."""
    whole = llm.score(TEXT, QUESTION, top=2)
    seen, logits = list[int](), type(llm.model).logits

    def noted(model: Transformer, hidden: torch.Tensor, *given: Any) -> torch.Tensor:
        seen.append(len(hidden))
        return logits(model, hidden, *given)

    monkeypatch.setattr(type(llm.model), "logits", noted)
    monkeypatch.setattr("redraft.diffusion.prefill.CHUNK", chunk)
    monkeypatch.setattr("redraft.diffusion.causal.CHUNK", chunk)
    monkeypatch.setattr("redraft.diffusion.causal.rows_at_once", lambda model: 5)
    parts = llm.score(TEXT, QUESTION, top=2)
    assert max(seen) == min(chunk, 5)
    assert sum(seen) == len(parts.tokens)
    assert parts.logprobs == pytest.approx(whole.logprobs, abs=1e-4)
    assert [[token for token, _ in place.top] for place in parts.tokens] == [
        [token for token, _ in place.top] for place in whole.tokens
    ]


@pytest.mark.parametrize("held", [1, 2, 100])
def test_several_texts_are_what_each_is_alone(llm: LLM, monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    """Of any lengths, after prompts of any lengths, some of them equal, however many are held at a time."""
    texts = [TEXT, "no", " yes, it is", [5, 6, 7], "no", TEXT[:40]]
    prompts = [None, QUESTION, QUESTION, [2, 9], [2, 9], QUESTION * 4]
    alone = [llm.score(text, prompt, top=1) for text, prompt in zip(texts, prompts, strict=True)]
    monkeypatch.setattr("redraft.scoring.TEXTS_AT_ONCE", held)
    together = llm.score_batch(texts, prompts, top=1)
    for one, other in zip(alone, together, strict=True):
        assert (one.text, one.pieces, one.token_ids) == (other.text, other.pieces, other.token_ids)
        assert one.prompt_tokens == other.prompt_tokens
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert llm.score_batch(["no", "yes"])[1].logprob == pytest.approx(llm.score("yes").logprob, abs=1e-4)
    assert llm.score_batch([]) == []


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="other BLAS libraries round otherwise")
@pytest.mark.parametrize("in_c", [False, True])
@pytest.mark.parametrize(("dtype", "quantization"), [("float32", None), ("bfloat16", None), ("float32", "int4")])
def test_no_bit_depends_on_what_is_scored_beside_a_text(
    monkeypatch: pytest.MonkeyPatch, threads: int, in_c: bool, dtype: str, quantization: str | None
) -> None:
    """With and without C: texts of a few tokens, of some sixteen, and of more than a chunk."""
    if not in_c:
        monkeypatch.setattr(native, "available", lambda: False)
    llm = redraft.load("tiny", device="cpu", dtype=dtype, quantization=quantization)
    draw = torch.Generator().manual_seed(1)
    texts = [torch.randint(300, 16000, (n,), generator=draw).tolist() for n in (1, 3, 2, 15, 16, 17, 40, 600, 9)]
    prompts = [[2], [2, 40], [2], QUESTION, QUESTION, [2], [2, 41], [2, 42], [2]]
    alone = [llm.score(text, prompt, top=3) for text, prompt in zip(texts, prompts, strict=True)]
    assert llm.score_batch(texts, prompts, top=3) == alone
    assert llm.score_batch(texts[2:5], prompts[2:5], top=3) == alone[2:5]


def test_a_pass_has_so_many_tokens_and_little_padding(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of about the same lengths share one, whatever their prompts are and in which order they come."""
    shapes, encode = list[tuple[int, ...]](), type(llm.model).encode

    def noted(model: Transformer, tokens: torch.Tensor, *given: Any) -> torch.Tensor:
        shapes.append(tuple(tokens.shape))
        return encode(model, tokens, *given)

    monkeypatch.setattr(type(llm.model), "encode", noted)
    lengths = [100, 20, 101, 21, 102, 22, 103, 23]
    llm.score_batch([[7] * length for length in lengths], [[2, 50 - i] for i in range(8)])
    assert shapes == [(4, 2), (4, 23), (4, 2), (4, 103)]
    shapes.clear()
    monkeypatch.setattr("redraft.scoring.TOKENS_AT_ONCE", 309)
    llm.score_batch([[7] * length for length in lengths], [[2, 50 - i] for i in range(8)])
    assert shapes == [(4, 2), (4, 23), (3, 2), (3, 102), (1, 2), (1, 103)]


def test_a_prompt_of_several_texts_is_encoded_once(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = watched_passes(llm, monkeypatch)
    llm.score_batch(["yes", "no", "not at all"], [QUESTION] * 3)
    assert passes() == 1 + 3


def test_a_memory_of_few_requests_is_not_exceeded(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text takes room for its prompt and for a copy of it."""
    asked = list[tuple[int, int]]()
    monkeypatch.setattr(
        type(llm.model), "requests_at_once", lambda model, most, tokens: asked.append((most, tokens)) or 4
    )
    passes = watched_passes(llm, monkeypatch)
    llm.score_batch([[5], [6], [7]], [[2], [2], [2]])
    assert passes() == (1 + 2) + (1 + 1)
    ((most, tokens),) = asked
    assert most % 2 == 0
    assert tokens == 2


def test_a_text_is_as_likely_as_its_parts_one_after_the_other(llm: LLM) -> None:
    ids, before = llm.tokenizer.encode(TEXT, special=False), llm.prompt_ids(QUESTION)
    whole = llm.score(ids, before)
    for cut in (1, 20, len(ids) - 1):
        parts = llm.score(ids[:cut], before), llm.score(ids[cut:], before + ids[:cut])
        assert parts[0].logprobs + parts[1].logprobs == pytest.approx(whole.logprobs, abs=1e-4)
        assert sum(part.logprob for part in parts) == pytest.approx(whole.logprob, abs=1e-3)


def test_all_next_tokens_together_are_certain(llm: LLM) -> None:
    logprobs = [llm.score([token], [2, 40]).logprob for token in (7, 8)]
    expected = by_hand(llm, [2, 40], [7])[0]
    assert math.fsum(expected.exp().tolist()) == pytest.approx(1, abs=1e-5)
    assert logprobs == pytest.approx([float(expected[7]), float(expected[8])], abs=1e-4)


def test_raw_prompts_are_plain_text(llm: LLM) -> None:
    ids = llm.tokenizer.encode("Once upon", special=False)
    raw = llm.score(" a time", "Once upon", raw=True)
    assert raw.prompt_tokens == 1 + len(ids)
    assert raw.logprob == pytest.approx(llm.score(" a time", [llm.tokenizer.bos_id, *ids]).logprob, abs=1e-4)


@pytest.mark.parametrize(("dtype", "quantization"), [("bfloat16", None), ("float32", "fp8"), ("float32", "int4")])
def test_other_formats_come_close(dtype: str, quantization: str | None) -> None:
    """With trained weights, of a sentence that the embedded model knows how to answer with."""
    text, prompt = "The capital of France is Paris.", "What is the capital of France?"
    exact = redraft.load("tiny", device="cpu", dtype="float32").score(text, prompt)
    near = redraft.load("tiny", device="cpu", dtype=dtype, quantization=quantization).score(text, prompt)
    wrong = redraft.load("tiny", device="cpu", dtype="float32").score("The capital of France is Rome.", prompt)
    assert wrong.logprob < exact.logprob - 5
    assert near.logprobs == pytest.approx(exact.logprobs, abs=0.5)
    assert near.logprob != exact.logprob


def test_an_adapter_changes_its_own_scores(folder: Path, tmp_path: Path) -> None:
    llm = redraft.load(folder, device="cpu", dtype="float32")
    plain = llm.score(TEXT)
    save_adapter(random_adapter(llm.model, 1), tmp_path, base_model="random")
    llm.add_adapter("other", tmp_path)
    adapted = llm.with_adapter("other")
    assert llm.score(TEXT) == plain
    assert adapted.score(TEXT).logprob != pytest.approx(plain.logprob, abs=0.1)
    ids = llm.tokenizer.encode(TEXT, special=False)
    own = by_hand(adapted, [2], ids).gather(1, torch.tensor(ids)[:, None])[:, 0]
    assert adapted.score(TEXT).logprobs == pytest.approx(own.tolist(), abs=1e-4)


def test_damaged_weights_are_an_error(folder: Path) -> None:
    llm = redraft.load(folder, device="cpu", dtype="float32")
    with torch.no_grad():
        llm.model.get_parameter("norm.weight").fill_(math.nan)
    with pytest.raises(NotFiniteError):
        llm.score("a")


@pytest.mark.parametrize(
    ("text", "settings", "error", "sentence"),
    [
        ("", {}, PromptError, "The text is empty"),
        ([], {}, PromptError, "The text must be a non-empty str or list of token ids"),
        (None, {}, PromptError, "non-empty"),
        (b"a", {}, PromptError, "non-empty"),
        (["a"], {}, PromptError, "Token ids must be integers"),
        ([99_999], {}, PromptError, "99999"),
        ("\ud800", {}, PromptError, "UTF-8"),
        ("a", {"prompt": ""}, PromptError, "The prompt is empty"),
        ("a", {"prompt": ["b"]}, PromptError, "generate_batch and score_batch take such"),
        ("a", {"raw": True}, PromptError, "raw=True needs a str"),
        ("a", {"raw": 1, "prompt": "b"}, SettingError, "raw is 1"),
        ("a", {"top": 21}, SettingError, "top is 21; it must be between 0 and 20"),
        ("a", {"top": -1}, SettingError, "top is -1"),
        ("a", {"top": 1.0}, SettingError, "top is 1.0"),
        ([5] * 192, {}, PromptError, "A prompt of 1 tokens and a text of 192 do not fit the context of 192"),
    ],
)
def test_bad_input(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, text: Any, settings: dict, error: type[Exception], sentence: str
) -> None:
    monkeypatch.setattr(type(llm.model), "encode", None)
    with pytest.raises(error, match=sentence):
        llm.score(text, **settings)


def test_bad_batches(llm: LLM) -> None:
    for texts in ("ab", b"ab", 3, {"a": "b"}):
        with pytest.raises(PromptError, match="The texts must be a list of texts"):
            llm.score_batch(texts)  # type: ignore[arg-type]
        with pytest.raises(PromptError, match="The prompts must be a list of prompts"):
            llm.score_batch(["a", "b"], texts)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="There are 1 prompts for 2 texts"):
        llm.score_batch(["a", "b"], ["c"])
    with pytest.raises(PromptError, match=r"texts\[1\]: The text is empty"):
        llm.score_batch(["a", ""])

"""The embedded model answering on a CUDA device, through the engine, in every weight format."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from triton import knobs

import redraft
from random_adapter import random_adapter
from redraft.engine.graph_runner import GraphRunner
from redraft.errors import NotFiniteError
from redraft.model.adapters import save_adapter
from redraft.model.packed.transformer import PackedTransformer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
QUESTION = "What is the capital of France?"


@pytest.mark.parametrize("quantization", [None, "fp8", "int4"])
def test_answers_do_not_depend_on_company_and_choices_hold(quantization: str | None) -> None:
    llm = redraft.load("tiny", device="cuda", dtype="bfloat16", quantization=quantization)
    assert isinstance(llm.new_engine().runner, GraphRunner)
    assert isinstance(llm.model, PackedTransformer)
    assert llm.model.packed.vocabulary.dtype == (torch.float8_e4m3fn if quantization else torch.bfloat16)
    alone = llm.generate(QUESTION, max_tokens=256, steps=12, seed=3)
    together = llm.generate_batch([QUESTION, "Say hello!", QUESTION], max_tokens=256, steps=12, seed=3)
    assert alone.token_ids == together[0].token_ids == together[2].token_ids
    chosen = llm.generate(QUESTION, choices=["Paris", "a bicycle"], max_tokens=128, seed=3)
    assert chosen.text in ("Paris", "a bicycle")


@pytest.mark.parametrize("quantization", [None, "fp8", "int4"])
def test_scores_do_not_depend_on_company(quantization: str | None) -> None:
    llm = redraft.load("tiny", device="cuda", quantization=quantization)
    texts = [
        "def add(a, b):\n    return a + b\n",
        "no",
        "The chair costs 49 euros. " * 9,
        "Rivers.",
        "import os\n" * 40,
    ]
    prompts = ["Write.", QUESTION, None, "Spam?", None]
    together = llm.score_batch(texts, prompts)
    for text, prompt, score in zip(texts, prompts, together, strict=True):
        assert llm.score(text, prompt).logprobs == score.logprobs


def test_what_is_rehearsed_compiles_nothing_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a first canvas with a limit, nor one whose constraint was rehearsed, nor what `LLM.rehearse` covers."""
    llm, asked = redraft.load("tiny", device="cuda", quantization="fp8"), dict(max_tokens=64, steps=3, seed=3)
    llm.engine.runner.warm_up()
    llm.rehearse()
    for limit in ({}, {"preset": "fast"}):
        llm.generate(QUESTION, **asked, **limit)
    biased: dict[str, Any] = {"logit_bias": {5: -100, 900: 3}}
    dates = [llm.request(QUESTION, regex=r"\d{4}-\d\d", **asked, **bias) for bias in ({}, biased)]
    for date in dates:
        llm.engine.rehearse(date)
    compiled: list[str] = []
    monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", lambda *, fn, **_: compiled.append(fn.name))
    llm.engine.rehearse(dates[0])
    for bias in ({}, biased):
        llm.generate(QUESTION, regex=r"\d{4}-\d\d", **asked, **bias)
    for limit in ({}, {"preset": "fast"}):
        llm.generate(QUESTION, **asked, **limit, **biased)
    filled = llm.fill("def f(x):\n    return ", "\n", seed=1, steps=4)
    llm.decide("Is the sky blue?", ["yes", "no"])
    assert compiled == []
    llm.generate(QUESTION, regex=r"[a-f]{3}|[g-z ]{9,40}", **asked)
    assert compiled
    other = redraft.load("tiny", device="cuda", quantization="fp8")
    assert other.fill("def f(x):\n    return ", "\n", seed=1, steps=4).text == filled.text


@pytest.mark.parametrize("quantization", [None, "fp8"])
def test_bans_and_favours_hold(quantization: str | None) -> None:
    llm, asked = redraft.load("tiny", device="cuda", quantization=quantization), dict(max_tokens=64, seed=3)
    plain = llm.generate(QUESTION, **asked)
    banned = dict.fromkeys(plain.token_ids, -100.0)
    other = llm.generate(QUESTION, logit_bias=banned, logprobs=1, **asked)
    assert other.token_ids
    assert not banned.keys() & {*other.token_ids, *(token for one in other.tokens for token, _ in one.top)}
    yes, no = (llm.tokenizer.encode(text, special=False)[0] for text in ("Yes", "No"))
    assert {*llm.generate(QUESTION, logit_bias={yes: 100, no: 100}, **asked).token_ids} <= {yes, no}
    each: list[dict[str, Any]] = [{}, {"logit_bias": banned}, {"logit_bias": {9: 4.0}}, {"regex": "[a-z ]{9,40}"}]
    each.append(each[1] | each[3])
    together = llm.generate_batch([QUESTION] * len(each), each=each, **asked)
    for given, answer in zip(each, together, strict=True):
        assert answer.token_ids == llm.generate(QUESTION, **given, **asked).token_ids


@pytest.mark.parametrize("limit", [{}, {"regex": r"[a-z ,]{40,60}"}])
def test_log_probabilities_leave_an_answer_as_it_is(limit: dict[str, Any]) -> None:
    llm = redraft.load("tiny", device="cuda")
    asked = {"max_tokens": 128, "steps": 12, "seed": 3, **limit}
    plain, told = llm.generate(QUESTION, **asked), llm.generate(QUESTION, logprobs=2, **asked)
    assert plain.token_ids == told.token_ids
    assert all(token.logprob is not None and token.logprob <= 1e-4 for token in told.tokens)
    if not limit:  # a constraint's argmax is the likeliest string
        likeliest = [token.top[0][0] == token.token_id for token in told.tokens]
        assert sum(likeliest) >= 0.9 * len(likeliest)


def test_the_first_draft_is_that_of_the_cpu() -> None:
    """bf16 moves a few uncertain positions; the rest of the argmax is the fp32 model's."""
    drafts = []
    for device, dtype in (("cpu", "float32"), ("cuda", "bfloat16")):
        llm = redraft.load("tiny", device=device, dtype=dtype)
        step = next(iter(llm.stream(QUESTION, max_tokens=128, seed=5)))
        assert isinstance(step, redraft.DenoiseStep)
        drafts.append(step)
    assert drafts[0].canvas == drafts[1].canvas
    same = sum(a == b for a, b in zip(drafts[0].argmax_canvas, drafts[1].argmax_canvas, strict=True))
    assert same > 0.8 * len(drafts[0].canvas)


def test_an_adapter_by_name_answers_as_folded_in(tmp_path: Path) -> None:
    save_adapter(random_adapter(redraft.load_model("tiny", "cpu"), 1, size=0.3), tmp_path, base_model="tiny")
    llm = redraft.load("tiny", device="cuda", adapter={"other": tmp_path})
    folded = redraft.load("tiny", device="cuda", adapter=tmp_path)
    asked = {"max_tokens": 128, "steps": 6, "seed": 3}
    own, other = (one.generate(QUESTION, **asked).token_ids for one in (llm, llm.with_adapter("other")))
    assert other == folded.generate(QUESTION, **asked).token_ids
    assert own == redraft.load("tiny", device="cuda").generate(QUESTION, **asked).token_ids != other


def test_schemas_and_fixed_text_hold() -> None:
    llm = redraft.load("tiny", device="cuda")
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
              "required": ["name", "age"], "additionalProperties": False}  # fmt: skip
    for steps in (1, 8):
        found = json.loads(llm.generate("Write down a person.", json_schema=schema, steps=steps, seed=4).text)
        assert isinstance(found["name"], str)
        assert isinstance(found["age"], int)
    prefix, suffix = "def double(x):\n    return ", "\n\n\nprint(double(2))\n"
    filled = llm.fill(prefix, suffix, seed=4)
    assert filled.full_text == prefix + filled.text + suffix


def test_an_adapter_that_is_broken_leaves_nothing_behind(tmp_path: Path) -> None:
    """The next request has the pages that its numbers, which are none, were written to."""
    save_adapter(random_adapter(redraft.load_model("tiny", "cpu"), 1, size=0.3), tmp_path, base_model="tiny")
    llm = redraft.load("tiny", device="cuda", adapter={"broken": tmp_path})
    broken = llm.with_adapter("broken")
    assert isinstance(broken.model, PackedTransformer)
    weight = broken.model.packed.layers[0].qkv
    assert isinstance(weight, torch.Tensor)
    asked = {"max_tokens": 64, "steps": 6, "seed": 3, "raw": True}
    before = llm.generate("The capital", **asked).token_ids
    weight[:] = torch.nan
    beside = llm.stream("The capital", **asked)
    next(beside)
    with pytest.raises(NotFiniteError):
        broken.generate("The capital of France is a city of " + "many " * 100, **asked)
    list(beside)
    assert beside.result is not None
    assert beside.result.token_ids == before == llm.generate("The capital", **asked).token_ids


@pytest.mark.parametrize("asked", [{}, {"regex": r"\d+"}, {"logprobs": 1}])
def test_weights_that_are_no_numbers_are_a_sentence(asked: dict[str, Any]) -> None:
    llm = redraft.load("tiny", device="cuda")
    assert isinstance(llm.model, PackedTransformer)
    weight = llm.model.packed.layers[0].qkv
    assert isinstance(weight, torch.Tensor)
    weight[:] = torch.nan
    with pytest.raises(NotFiniteError):
        llm.generate(QUESTION, max_tokens=32, **asked)

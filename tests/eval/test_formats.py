"""The comparison of number formats: zero where nothing is rounded, and the model left as it was."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

import redraft
from redraft.diffusion.records import DenoiseStep
from redraft.errors import SettingError
from redraft.eval.formats import compare
from redraft.eval.result import EvalResult
from redraft.llm import LLM
from redraft.model import Model, Transformer
from redraft.model.folders import resolve_folder
from redraft.model.initialise import initialise
from redraft.model.presets import preset
from redraft.model.quantize import weight_format
from redraft.model.weights import save_model
from redraft.quant.fp8 import quantize_fp8


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    model = Transformer(preset("nano"))
    initialise(model, 3)
    folder = tmp_path_factory.mktemp("nano")
    save_model(model, folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((Path(resolve_folder("tiny")) / name).read_bytes())
    return redraft.load(folder, device="cpu", dtype="float32")


def task(llm: LLM) -> EvalResult:
    return EvalResult.of([], float(llm.model.layers[0].mlp.up_proj.weight.sum()))


def test_formats_differ_from_the_full_model_in_order_of_their_bits(llm: LLM) -> None:
    before = {name: tensor.clone() for name, tensor in llm.model.state_dict().items()}
    heard: list[str] = []
    full, fp8, int4, head = compare(llm, [[2, 5, 9], [2, 7]], {"sum": task}, group=16, progress=heard.append)
    assert heard == ["full", "fp8", "int4", "fp8 vocabulary"]
    assert full.divergence == 0
    assert full.agreement == 1
    assert 0 < fp8.divergence < int4.divergence
    assert 0 < head.divergence < int4.divergence
    assert not head.tasks
    assert fp8.tasks["sum"].seconds != full.tasks["sum"].seconds  # the tasks ran with the rounded weights
    assert fp8.to_dict()["positions"] == full.positions > 0
    for name, tensor in llm.model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_unknown_formats_and_groups_that_do_not_fit_are_refused_at_once(llm: LLM) -> None:
    heard: list[str] = []
    with pytest.raises(SettingError, match="format is 'int2'"):
        compare(llm, [[2]], {}, formats=["int2"], progress=heard.append)
    with pytest.raises(SettingError, match="group is 7"):
        compare(llm, [[2]], {}, group=7, progress=heard.append)
    assert not heard


@torch.inference_mode()
def test_divergence_and_agreement_are_those_of_the_positions_that_the_full_model_went_through(llm: LLM) -> None:
    """With FP8 weights, and with an FP8 vocabulary, in copies of the model, one pass after the other."""
    prompt, length = [2, 5, 9], llm.model.config.canvas_length
    full, *measured = compare(llm, [prompt], {}, formats=["fp8"], group=16, seed=3)
    table = quantize_fp8(llm.model.embedding.weight).dequantize(torch.float32)
    weights = {
        name: quantize_fp8(weight).dequantize(weight.dtype) if weight_format(name, "fp8") else weight
        for name, weight in llm.model.state_dict().items()
    }
    copies = [Transformer(llm.model.config) for _ in range(2)]
    for copy, state in zip(copies, (weights, llm.model.state_dict() | {"embedding.weight": table}), strict=True):
        copy.load_state_dict(state)

    def hidden(model: Model, canvas: Tensor, soft: Tensor | None) -> Tensor:
        cache = model.new_cache(1, len(prompt))
        model.encode(torch.tensor([prompt]), cache)
        return model.denoise(canvas, cache, soft)

    soft, soft_fp8, found = None, None, []
    for step in llm.stream(prompt, seed=3, max_tokens=length, canvas_length=length):
        if not isinstance(step, DenoiseStep):
            break
        canvas = torch.tensor([step.canvas])
        logits = llm.model.logits(hidden(llm.model, canvas, soft))
        last = hidden(copies[1], canvas, soft_fp8)
        others = [
            copies[0].logits(hidden(copies[0], canvas, soft)),
            copies[1].logits(quantize_fp8(last[0]).dequantize(torch.float32)[None]),  # a kernel rounds the rows, too
        ]
        tempered = logits / step.temperature
        soft, soft_fp8 = llm.model.soft_embeddings(tempered), tempered.softmax(-1) @ table * llm.model.embedding_scale
        pairs = [(Categorical(logits=logits), Categorical(logits=other)) for other in others]
        found.append([(kl_divergence(*pair), pair[0].logits.argmax(-1) == pair[1].logits.argmax(-1)) for pair in pairs])
    assert len(found) > 1
    for number, result in enumerate(measured):
        divergence, same = (torch.cat([step[number][part] for step in found]).float().mean() for part in range(2))
        assert result.positions == full.positions == length * len(found)
        assert result.divergence == pytest.approx(float(divergence), rel=1e-3)
        assert result.agreement == pytest.approx(float(same))

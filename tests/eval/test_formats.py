"""The comparison of number formats: zero where nothing is rounded, and the model left as it was."""

from pathlib import Path

import pytest
import torch

import redraft
from redraft.errors import SettingError
from redraft.eval.formats import compare
from redraft.eval.result import EvalResult
from redraft.llm import LLM
from redraft.model.folders import resolve_folder
from redraft.model.initialise import initialise
from redraft.model.presets import preset
from redraft.model.transformer import Transformer
from redraft.model.weights import save_model


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

"""On two and four CUDA devices: a divided model against one device, and its graphs, which span all of them, against
single launches."""

import pytest
import torch
from stepping import CONFIG, FORMATS, by_gpus, ids, packed, prompt, randomized, runner_of, step_of

import redraft
from redraft.kernels import device_group
from redraft.kernels.switches import eager_operations
from redraft.model import Model, Transformer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]

DEVICES = [torch.device("cuda", number) for number in range(4)]
GPUS = by_gpus(2, 4)


@pytest.fixture(scope="module")
def plain() -> Transformer:
    return randomized(CONFIG)


@GPUS
@FORMATS
def test_graphs_equal_single_launches_bit_for_bit(plain: Transformer, quantization: str | None, gpus: int) -> None:
    """Prompts, canvases of several requests at different steps, and a commit with the next canvas."""
    model = packed(plain, quantization, gpus=gpus)
    graph, eager = runner_of(model, graphs=True), runner_of(model, graphs=False)
    work = [[*prompt(0, 1300), *prompt(1, 200)]]
    work += [[step_of(0, 1300, step), *([step_of(1, 200, step - 1)] if step else [])] for step in range(4)]
    work += [[*prompt(2, 300), step_of(0, 1300, 10)], [step_of(2, 300, 0), step_of(1, 200, 3)]]
    for parts in work:
        assert graph.run(parts) == eager.run(parts)


@GPUS
@FORMATS
def test_a_canvas_alone_and_among_others(plain: Transformer, quantization: str | None, gpus: int) -> None:
    model = packed(plain, quantization, gpus=gpus)
    alone, among = runner_of(model, graphs=True), runner_of(model, graphs=True)
    alone.run(prompt(1, 700))
    among.run([*prompt(0, 600), *prompt(1, 700), *prompt(2, 30)])
    for step in (0, 1, 2):
        (own,) = alone.run([step_of(1, 700, step)])
        assert own == among.run([step_of(0, 600, step), step_of(1, 700, step), step_of(2, 30, step)])[1]


@GPUS
def test_twins_add_up_what_other_devices_hold(plain: Transformer, gpus: int) -> None:
    runner = runner_of(packed(plain, None, gpus=gpus), graphs=False)
    runner.run(prompt(0, 300))
    (by_kernels,) = runner.run([step_of(0, 300, 0)])
    with eager_operations("after_attention", "after_experts", "sum_of_experts"):
        (by_twins,) = runner.run([step_of(0, 300, 0)])
    assert abs(by_kernels.entropy - by_twins.entropy).mean() < 0.05


@torch.inference_mode()
@GPUS
@FORMATS
def test_several_devices_are_as_near_to_fp32_as_one(plain: Transformer, quantization: str | None, gpus: int) -> None:
    tokens, canvas = torch.tensor([ids(1, 700)], device="cuda"), torch.tensor([ids(2, 256)], device="cuda")

    def hidden(model: Model) -> torch.Tensor:
        cache = model.new_cache(1, 1000)
        model.encode(tokens, cache)
        return model.denoise(canvas, cache).float()

    truth, one, several = (
        hidden(plain),
        hidden(packed(plain, quantization)),
        hidden(packed(plain, quantization, gpus=gpus)),
    )
    assert 0 < (several - truth).norm() <= 1.5 * (one - truth).norm()


@GPUS
def test_each_device_holds_its_part(plain: Transformer, gpus: int) -> None:
    def held() -> list[int]:
        return [torch.cuda.memory_allocated(device) for device in DEVICES[:gpus]]

    before = held()
    model = packed(plain, None, gpus=gpus)
    first, *others = (after - start for after, start in zip(held(), before, strict=True))
    for device, shard, size in zip(DEVICES[1:], model.packed.shards[1:], others, strict=False):
        experts = sum(layer.experts.nbytes for layer in shard.layers)
        assert experts < size < first
        assert {tensor.device for layer in shard.layers for tensor in (layer.experts.down, layer.router)} == {device}


@GPUS
@FORMATS
def test_without_access_to_the_other_memory_parts_are_copied(
    plain: Transformer, quantization: str | None, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, found = packed(plain, quantization, gpus=gpus), []
    for reading in (True, False):
        monkeypatch.setattr(device_group, "can_access_peer", lambda *_, reading=reading: reading)
        runner = runner_of(model, graphs=True)
        found.append([*runner.run([*prompt(0, 300), step_of(0, 300, 0)]), *runner.run([step_of(0, 300, 1)])])
    assert found[0] == found[1]


def test_the_embedded_model_answers_on_two_devices() -> None:
    """Chat, fill, edit, decide and a constraint; the same answer again, and alone as among others."""
    llm = redraft.load("tiny", gpus=2)
    assert len(llm.model.packed.shards) == 2  # type: ignore[union-attr]
    questions = ["How many days are in a week?", "Hello!", "What is the capital of France?"]
    together = [one.text for one in llm.generate_batch(questions, seed=3, max_tokens=64)]
    assert together == [llm.generate(question, seed=3, max_tokens=64).text for question in questions]
    assert llm.generate(questions[0], regex=r"A week has \d days\.").text == "A week has 7 days."
    filled = llm.fill("def add(a, b):\n    retu", "b\n", seed=1)
    assert filled.full_text.startswith("def add(a, b):\n    retu")
    answer = llm.decide("Is this spam? Win a prize now", ["yes", "no"]).probabilities
    alone = redraft.load("tiny").decide("Is this spam? Win a prize now", ["yes", "no"]).probabilities
    assert answer["yes"] == pytest.approx(alone["yes"], abs=0.05)

"""On a CUDA device: kernels against fp32, a packed model against the plain one, graphs against single launches."""

import copy
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from stepping import CONFIG, FORMATS, PAGES, ids, packed, prompt, randomized, runner_of, step_of

from redraft import kernels
from redraft.bench.kernels import measure_kernels
from redraft.config import ModelConfig
from redraft.engine.graph_runner import GraphRunner
from redraft.engine.runner import EagerRunner
from redraft.engine.scheduler import Job
from redraft.engine.work import Encode, Limits, Segment
from redraft.model import Model, Transformer
from redraft.model.packed.build import pack
from redraft.model.packed.transformer import PackedTransformer
from redraft.model.presets import preset
from redraft.model.vision import VisionTower
from redraft.quant.fp8 import quantize_fp8
from redraft.quant.prepare import Stored
from redraft.text.images import Image
from redraft.text.placing import EncodedPrompt, place_images

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def plain() -> Transformer:
    return randomized(CONFIG)


@FORMATS
def test_every_kernel_is_within_twice_the_error_of_eager(quantization: str | None) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    found = measure_kernels(CONFIG, device, quantization=quantization, batch=2, context=1300)
    off = [f"{one.name} {one.error} {one.eager_error}" for one in found if one.error is not None and one.ratio > 2]
    assert len(found) >= 30
    assert not off


@torch.inference_mode()
@pytest.mark.parametrize("config", [CONFIG, preset("tiny")], ids=["26b-like", "tiny"])
def test_the_packed_model_is_as_near_to_fp32_as_eager_bf16(config: ModelConfig) -> None:
    plain = randomized(config)
    half = Transformer(config).to("cuda", torch.bfloat16)
    half.load_state_dict(plain.state_dict())
    tokens = torch.tensor([ids(1, 256)], device="cuda")
    canvas = torch.tensor([ids(2, config.canvas_length)], device="cuda")

    def hidden(model: Model) -> torch.Tensor:
        cache = model.new_cache(1, 512)
        model.encode(tokens, cache)
        return model.denoise(canvas, cache).float()

    with kernels.force("eager"):
        truth, eager = hidden(plain), hidden(half)
    assert (hidden(packed(plain, None)) - truth).norm() <= 2 * (eager - truth).norm()


@FORMATS
def test_the_embedded_models_shape_runs(quantization: str | None) -> None:
    model = packed(randomized(preset("tiny")), quantization)
    limits = Limits(slots=1, full_pages=4, sliding_pages=4, window=512, context=1024, canvas=128, forward=4096)
    graph, single = GraphRunner(model, limits, graphs=True), GraphRunner(model, limits, graphs=False)
    for runner in (graph, single):
        runner.assign(0, (2, 1, 3, 0), (0, 3, 1, 2))
        runner.run([Encode(slot=0, start=0, token_ids=ids(3, 256)), Encode(slot=0, start=256, token_ids=ids(4, 100))])
    for step in range(3):
        work = [step_of(0, 356, step, length=128)]
        assert graph.run(work) == single.run(work)


@pytest.mark.parametrize("dtype", [None, torch.float8_e4m3fn])
@FORMATS
def test_graphs_equal_single_launches_bit_for_bit(
    plain: Transformer, quantization: str | None, dtype: torch.dtype | None
) -> None:
    model = packed(plain, quantization, dtype)
    graph, single = (runner_of(model, graphs=graphs, dtype=dtype) for graphs in (True, False))
    for runner in (graph, single):
        runner.run([*prompt(0, 1100), *prompt(1, 40)])
    for step in range(11):
        work: list[Segment] = [step_of(0, 1100, step), step_of(1, 40, step, length=128)]
        if step in (1, 2, 10):
            work.insert(1, Encode(slot=2, start=0, token_ids=ids(step, 200)))
        assert graph.run(work) == single.run(work), f"step {step}"


@pytest.mark.parametrize("dtype", [None, torch.float8_e4m3fn])
@FORMATS
def test_a_canvas_among_others_and_behind_a_fused_commit(
    plain: Transformer, quantization: str | None, dtype: torch.dtype | None
) -> None:
    """Bit for bit: no kernel sums in another order because there are more rows."""
    model = packed(plain, quantization, dtype)
    together, alone, apart = (runner_of(model, graphs=True, dtype=dtype) for _ in range(3))
    for runner in (together, apart):
        runner.run([*prompt(0, 1100), *prompt(1, 40), *prompt(2, 300)])
    alone.run(prompt(0, 1100))
    beside = [step_of(0, 1100, 0), step_of(1, 40, 0), step_of(2, 300, 0)]
    assert together.run(beside)[0] == alone.run(beside[:1])[0]
    commit, first = Encode(slot=0, start=1100, token_ids=ids(9, 256)), step_of(0, 1356, 0, canvas_index=1)
    apart.run([commit])
    assert together.run([commit, first])[0] == apart.run([first])[0]


@FORMATS
def test_a_canvas_may_not_begin_with_some_tokens_alone_and_among_others(
    plain: Transformer, quantization: str | None
) -> None:
    """Its later steps read soft embeddings without these tokens; other canvases get what they get without it."""
    model = packed(plain, quantization)
    free, together, alone = (runner_of(model, graphs=True) for _ in range(3))
    for runner in (free, together, alone):
        runner.run([*prompt(0, 1100), *prompt(1, 40)])
    never, positions = tuple[int, ...](), ((0, 1100), (1, 40))
    for step in range(4):
        before = free.run([step_of(slot, start, step) for slot, start in positions])
        never = tuple({*never, int(before[0].argmax_canvas[0])})
        held, other = (step_of(slot, start, step) for slot, start in positions)
        seen = together.run([replace(held, not_first=never), other])
        assert seen[1] == before[1]
        assert seen[:1] == alone.run([replace(held, not_first=never)])
        assert seen[0].argmax_canvas[0] not in never
        assert 0 < seen[0].entropy[0] < 20


@pytest.fixture(scope="module")
def seeing() -> Transformer:
    """The same with a vision tower whose heads are as wide as the 26B model's."""
    model = randomized(replace(CONFIG, extra=dict(CONFIG.extra) | {"image_token_id": 7, "boi_token_id": 5}))
    shape = {"hidden_size": 144, "intermediate_size": 300, "num_hidden_layers": 3, "num_attention_heads": 2,
             "num_key_value_heads": 2, "head_dim": 72, "position_embedding_size": 256}  # fmt: skip
    model.config.extra["vision_config"] = dict(CONFIG.extra["vision_config"]) | shape  # type: ignore[index]
    model.config.extra["eoi_token_id"] = 6  # type: ignore[index]
    torch.manual_seed(3)
    model.vision = VisionTower.of(model.config).to("cuda").eval()
    with torch.no_grad():
        model.vision.positions.normal_(std=0.1)
    return model


def told(seed: int) -> EncodedPrompt:
    """A prompt of 900 tokens with images within a page, over pages, and longer than one."""
    generator = torch.Generator().manual_seed(seed)
    images = [
        Image(
            patches=torch.randint(256, (9 * n, 768), generator=generator).byte(), rows=3, columns=3 * n, tokens=n,
            digest=bytes([seed, n]),
        )
        for n in (40, 80, 75)
    ]  # fmt: skip
    wide = Image(
        patches=torch.randint(256, (36 * 100, 768), generator=generator).byte(), rows=60, columns=60, tokens=400,
        digest=bytes([seed, 4]),
    )  # fmt: skip
    words = [tuple(10 + token % 8000 for token in ids(seed + n, count)) for n, count in enumerate((90, 60, 40, 90, 9))]
    parts = [token for run in words[:4] for token in (*run, 7)]
    return place_images([*parts, *words[4]], [*images, wide], (5, 7, 6))


def encodes(slot: int, prompt: EncodedPrompt) -> list[Segment]:
    """A prompt in the engine's chunks."""
    job = Job(request_id=0, prompt_length=len(prompt), positions=len(prompt), length=256,
              images=[image.positions for image in prompt.images])  # fmt: skip
    found, at = list[Segment](), 0
    while at < len(prompt):
        end = job.chunk_end(at)
        images = tuple(image for image in prompt.images if at <= image.start < end)
        found.append(Encode(slot=slot, start=at, token_ids=prompt.ids[at:end], images=images))
        at = end
    return found


def packed_seeing(model: Transformer, quantization: str | None) -> PackedTransformer:
    tower = copy.deepcopy(model.vision)
    assert tower is not None
    return PackedTransformer(packed(model, quantization).packed, tower.to(torch.bfloat16))


@FORMATS
def test_images_alone_and_among_others_with_graphs_and_without(seeing: Transformer, quantization: str | None) -> None:
    """Bit for bit."""
    model, prompts = packed_seeing(seeing, quantization), (told(20), told(40))
    graph, single, alone = (runner_of(model, graphs=graphs) for graphs in (True, False, True))
    work = [*encodes(0, prompts[0]), *prompt(2, 700), *encodes(1, prompts[1])]
    for runner in (graph, single):
        runner.run(work)
    alone.run(encodes(1, prompts[1]))
    for step in range(3):
        steps = [step_of(slot, len(prompts[slot]), step) for slot in (0, 1)]
        results = graph.run(steps)
        assert results == single.run(steps)
        assert results[1] == alone.run(steps[1:])[0]


@torch.inference_mode()
def test_what_images_come_to_is_as_near_to_fp32_as_eager_bf16(seeing: Transformer) -> None:
    """By the entropies of a first step behind them."""
    shown = told(20)
    half = copy.deepcopy(seeing).to(torch.bfloat16)
    limits = runner_of(packed_seeing(seeing, None), graphs=False).limits
    runners = EagerRunner(seeing, limits), EagerRunner(half, limits), GraphRunner(packed_seeing(seeing, None), limits)
    entropies = []
    for runner in runners:
        runner.assign(0, list(range(PAGES)), list(reversed(range(PAGES))))
        with kernels.force("eager") if isinstance(runner, EagerRunner) else nullcontext():
            runner.run(encodes(0, shown))
            (result,) = runner.run([step_of(0, len(shown), 0)])
        entropies.append(torch.tensor(result.entropy))
    truth, eager, ours = entropies
    assert (eager - truth).norm() > 0
    assert (ours - truth).norm() <= 2 * (eager - truth).norm()


@torch.inference_mode()
@pytest.mark.parametrize("quantized", [".experts.", ".mlp."])
def test_one_of_dense_mlp_and_experts_may_be_quantized(plain: Transformer, quantized: str) -> None:
    weights = plain.state_dict()

    def source(name: str) -> Stored:
        return quantize_fp8(weights[name]) if quantized in name else weights[name]

    model = PackedTransformer(pack(CONFIG, source, device=torch.device("cuda", 0), dtype=torch.bfloat16))
    asked = torch.tensor([ids(1, 300)], device="cuda")
    ours = model.encode(asked, model.new_cache(1, 400)).float()
    with kernels.force("eager"):
        theirs = model.encode(asked, model.new_cache(1, 400)).float()
    assert (ours - theirs).norm() <= 0.05 * theirs.norm()


def test_the_same_forward_twice_is_the_same(plain: Transformer) -> None:
    model = packed(plain, "fp8")
    first, second = runner_of(model, graphs=True), runner_of(model, graphs=True)
    work = [*prompt(0, 600), step_of(0, 600, 0)]
    assert first.run(work) == second.run(work)


def test_graphs_of_all_sizes_share_the_memory_of_the_largest(plain: Transformer) -> None:
    """Which takes no more while it is captured."""
    runner = runner_of(packed(plain, None), graphs=True)

    def grown(*sizes: int) -> int:
        before = _held()
        for size in sizes:
            runner.bucket(size)
        return _held() - before

    before = _held()
    torch.cuda.reset_peak_memory_stats()
    largest = grown(16)
    assert largest > 64 << 20
    assert torch.cuda.max_memory_reserved() - before < 1.2 * largest  # the run before the capture is in there
    assert grown(12, 8, 6, 4) < largest / 4


def _held() -> int:
    """Bytes that are in use on the device, or that a graph may use."""
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()

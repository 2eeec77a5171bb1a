"""What the GPU benchmarks report, worked out a second time: floors from single weights and keys, rates from times."""

from types import SimpleNamespace

import pytest
import torch

from redraft.bench import board as boards
from redraft.bench.board import Board, StepCase
from redraft.bench.operation_times import distinct_experts, part_times
from redraft.bench.roofline import H200, step_components
from redraft.bench.step import StepResult
from redraft.config import ModelConfig
from redraft.kernels.triton.routing import Routing
from redraft.model import Transformer
from redraft.model.attention import causal_sight
from redraft.model.packed.transformer import PackedTransformer
from redraft.model.presets import preset

CONFIG = preset("26b-a4b")


def numbers_of(config: ModelConfig, part: str) -> int:
    """How many numbers the matrices with these words in their names have."""
    with torch.device("meta"):
        state = Transformer(config).state_dict()
    return sum(tensor.numel() for name, tensor in state.items() if part in name and tensor.ndim > 1)


@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("vocabulary_bytes", [1, 2])
def test_a_component_moves_and_multiplies_what_its_weights_say(gathers: bool, vocabulary_bytes: int) -> None:
    given = {"quantization": "int4", "batch": 3, "context": 0}
    parts = step_components(CONFIG, gathers=gathers, vocabulary_bytes=vocabulary_bytes, **given)
    found = {part.name: (part.bytes, part.flops, part.fp8) for part in parts}
    rows, table = 3 * 256, 262_144 * 2816
    logits = rows * 262_144 * 2  # bytes, in bf16
    fp8 = vocabulary_bytes == 1
    assert found["head"] == (table * vocabulary_bytes + logits, 2 * rows * table, fp8)
    dense, few = (table * vocabulary_bytes + logits, 2 * rows * table), (rows * 2816 * (vocabulary_bytes + 2), 0)
    assert found["soft embeddings"] == (*(few if gathers else dense), fp8)
    router, experts = numbers_of(CONFIG, "router.proj"), numbers_of(CONFIG, ".experts.")
    assert found["router"] == (2 * router, 2 * rows * router, False)
    assert found["experts"] == (experts * (0.5 + 2 / 64), 2 * rows * experts * 8 / 128, False)
    conditioning = numbers_of(CONFIG, "self_conditioning") + 2816  # with the weight of its norm
    assert found["self-conditioning MLP"] == (2 * conditioning, 2 * rows * conditioning, False)


@pytest.mark.parametrize("context", [0, 100, 1023, 1024, 3000])
@pytest.mark.parametrize("kv_bytes", [1, 2])
def test_attention_reads_and_multiplies_the_keys_that_a_canvas_sees(context: int, kv_bytes: int) -> None:
    """It sees what a token behind the context sees, and itself."""
    moved = products = 0
    for layer in range(CONFIG.num_hidden_layers):
        window = CONFIG.sliding_window if CONFIG.is_sliding(layer) else None
        here, before = torch.tensor([context]), torch.arange(context)
        seen = 256 + int(causal_sight(here, before, window).sum())
        dim = CONFIG.layer_head_dim(layer)
        moved += 5 * seen * 2 * CONFIG.layer_kv_heads(layer) * dim * kv_bytes
        products += 5 * 256 * seen * 2 * CONFIG.num_attention_heads * dim
    parts = step_components(CONFIG, quantization=None, batch=5, context=context, kv_bytes=kv_bytes)
    attention = next(part for part in parts if part.name == "attention")
    assert (attention.bytes, attention.flops) == (moved, 2 * products)


def test_ceilings_are_told_in_their_units() -> None:
    assert H200.to_dict() == {"bandwidth_tb_s": 4.31, "bf16_tflop_s": 793.0, "fp8_tflop_s": 1454.0}


def test_rates_follow_from_times() -> None:
    """A canvas takes its steps and a commit, which the next canvas' first step may share a forward with."""
    result = StepResult(
        case=StepCase(batch=3, context=1024, steps=10), quantization=None, group=None, dtype="bfloat16", gpus=1,
        clock={}, vocabulary_dtype="bfloat16", engine_ms=(21.0, 20.0, 19.0), graph_ms=(18.0,), fused_ms=30.0,
        constrained_ms={}, parts=(), floor_ms=15.0, distinct_experts=128.0, canvas_length=256,
        memory={"weights": 26.1, "peak": 27.0, "process": 28.0},
    )  # fmt: skip
    found = result.to_dict()
    assert found["tokens_per_second"] == pytest.approx(3 * 256 / (11 * 0.020), abs=0.05)
    assert found["tokens_per_second_fused_commit"] == pytest.approx(3 * 256 / (9 * 0.020 + 0.030), abs=0.05)
    assert found["tokens_per_second_published"] == pytest.approx(3 * 19.7 / 0.020, abs=0.05)
    assert (found["percent_of_floor"], found["memory_gb"]) == (75.0, 27.0)


def routing(index: list[list[int]]) -> Routing:
    empty = torch.zeros(0)
    return Routing(torch.tensor(index), empty, empty, empty, empty, block_rows=16, num_experts=8)


def test_experts_are_counted_once_per_layer_and_not_where_rows_take_none() -> None:
    layers = [routing([[0, 1], [1, 2], [-1, -1]]), routing([[5, 6], [5, 6], [-1, 5]])]
    assert distinct_experts(layers) == 2.5


def test_a_component_takes_as_long_as_its_operations() -> None:
    components = step_components(CONFIG, quantization=None, batch=1, context=0)
    times = {"sum_of_experts": 0.5, "experts": 2.0, "enter": 0.25}
    experts, norms = part_times(times, components, H200)
    assert (experts.ms, experts.floor_ms) == (2.5, components[0].floor_ms(H200))
    assert experts.operations == {"experts": 2.0, "sum_of_experts": 0.5}
    assert (norms.ms, norms.floor_ms) == (0.25, None)


def test_a_board_tells_the_time_of_one_step_and_fuses_commits_where_a_graph_holds_them(
    packed: PackedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = Board(packed, StepCase(batch=16, context=32, steps=4))
    clock, ticks = iter((10.0, 10.2)), list[object]()
    monkeypatch.setattr(boards, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    jobs = {slot: SimpleNamespace(step=1) for slot in range(16)}
    engine = SimpleNamespace(
        scheduler=SimpleNamespace(waiting=(), running=jobs),
        add=lambda request, on_event: None,
        step=lambda: ticks.append(None),
        cancel_all=ticks.append,
    )
    assert board.engine_ms(engine) == pytest.approx(50.0)  # type: ignore[arg-type]
    assert ticks == [*[None] * 5, range(16)]  # the first step begins with the prompts
    fused = []
    monkeypatch.setattr(board, "graph_ms", lambda work: fused.extend(work) or 7.0)
    assert board.fused_ms() == 7.0
    encoded, begun = fused[:16], fused[16:]
    assert [(one.slot, one.start, len(one.token_ids)) for one in encoded] == [(slot, 32, 16) for slot in range(16)]
    assert [(one.slot, one.start, one.step) for one in begun] == [(slot, 48, 0) for slot in range(16)]

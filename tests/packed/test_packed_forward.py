"""A packed model's forward over rows of segments equals the plain model's encode and denoise, in fp32 on a CPU."""

import pytest
import torch
from torch import Tensor

from redraft.config import FULL, SLIDING, ModelConfig
from redraft.constraints.pins import Allowed
from redraft.diffusion.sampler import predict
from redraft.errors import SettingError
from redraft.kernels.packed import PackedFp8
from redraft.kernels.triton.segments import DENOISE, ENCODE, UNUSED, Segments
from redraft.model import Transformer
from redraft.model.initialise import initialise
from redraft.model.packed import vocabulary
from redraft.model.packed.build import pack
from redraft.model.packed.forward import Inputs, forward
from redraft.model.packed.pages import new_pages
from redraft.model.packed.transformer import PackedTransformer
from redraft.model.packed.weights import PackedModel, tensors
from redraft.quant.fp8 import quantize_fp8

ROWS = 16
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def plain(config: ModelConfig) -> Transformer:
    """Random weights, norms and scalars that are not 1, so that swapping two of them shows."""
    model = Transformer(config)
    initialise(model, 5)
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.dim() == 1:
                tensor.mul_(1 + 0.2 * torch.rand(tensor.shape, generator=generator))
            if name.endswith("encode_scalar"):
                tensor.mul_(0.9)
    return model.eval()


@pytest.fixture(scope="module")
def packed(plain: Transformer) -> PackedModel:
    return pack(plain.config, plain.state_dict().__getitem__, device=CPU, dtype=torch.float32)


class Board:
    """A packed model with pages for two requests: 3 pages each, scattered, in both spaces."""

    def __init__(self, model: PackedModel) -> None:
        self.model, self.pages = model, new_pages(model, full=8, sliding=8)
        self.tables = {FULL: torch.tensor([[5, 2, 7], [1, 4, 3]]), SLIDING: torch.tensor([[2, 6, 1], [7, 3, 5]])}

    def run(self, *parts: tuple[int, int, int, list[int]], soft: Tensor | None = None) -> Tensor:
        """Segments of (kind, request, start, tokens) -> hidden [S,ROWS,D]."""
        kinds, requests, starts, tokens = zip(*parts, strict=True)
        ids = torch.tensor([[*ids, *[0] * (ROWS - len(ids))] for ids in tokens])
        segments = Segments(
            kind=_column(kinds), start=_column(starts), length=_column([len(ids) for ids in tokens]), rows=ROWS
        )
        width = self.model.config.hidden_size
        given = torch.zeros(len(parts), ROWS, width) if soft is None else soft
        tables = {kind: table[list(requests)].int() for kind, table in self.tables.items()}
        inputs = Inputs(token_ids=ids.flatten(), soft=given.flatten(0, 1), segments=segments, tables=tables)
        return forward(self.model, inputs, self.pages)[0].view(len(parts), ROWS, width)


def _column(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _ids(seed: int, count: int) -> list[int]:
    return torch.randint(256, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def _chunks(request: int, ids: list[int]) -> list[tuple[int, int, int, list[int]]]:
    return [(ENCODE, request, start, ids[start : start + ROWS]) for start in range(0, len(ids), ROWS)]


def test_every_weight_of_the_model_is_packed(plain: Transformer) -> None:
    state, read = plain.state_dict(), set[str]()

    def source(name: str) -> Tensor:
        read.add(name)
        return state[name]

    pack(plain.config, source, device=CPU, dtype=torch.float32)
    assert read == set(state)


def test_keys_fit_pages_in_fp8_whatever_their_norm_and_scores_stay_the_same(plain: Transformer) -> None:
    """A rotated key is at most the norm's largest weight times the root of the head's width, which 448 must hold."""
    state = dict(plain.state_dict())
    for number, factor in enumerate((1.0, 60.0, 1e-3)):
        at = f"layers.{number}.attention."
        state[f"{at}k_norm.weight"] = state[f"{at}k_norm.weight"] * factor
        state[f"{at}q_norm.weight"] = state[f"{at}q_norm.weight"] * (7 / factor)
    model = pack(plain.config, state.__getitem__, device=CPU, dtype=torch.float32)
    for number, layer in enumerate(model.layers):
        assert 8 < layer.k_norm.abs().max() <= 16
        q, k = (state[f"layers.{number}.attention.{part}_norm.weight"] for part in "qk")
        assert torch.equal(layer.q_norm * layer.k_norm, q * k)


@pytest.mark.parametrize("part", ["attention.o_proj", "mlp.down_proj", "experts."])
def test_a_model_is_called_by_the_format_of_whichever_matrices_have_one(plain: Transformer, part: str) -> None:
    def source(name: str) -> Tensor | PackedFp8:
        weight = plain.state_dict()[name]
        return quantize_fp8(weight) if f"0.{part}" in name else weight

    assert pack(plain.config, source, device=CPU, dtype=torch.float32).quantization == "fp8"


def test_an_unknown_format_is_refused(plain: Transformer) -> None:
    with pytest.raises(SettingError, match=r"^quantization is 'fp4'; it must be one of fp8, int4, or left out\.$"):
        pack(plain.config, plain.state_dict().__getitem__, device=CPU, dtype=torch.float32, quantization="fp4")


@torch.inference_mode()
def test_a_prompt_in_one_forward_or_in_several_gives_the_canvas_of_the_plain_model(
    plain: Transformer, packed: PackedModel
) -> None:
    prompt, canvas = _ids(1, 300), _ids(2, 16)  # longer than the window and than a page
    cache = plain.new_cache(1, 400)
    plain.encode(torch.tensor([prompt]), cache)
    expected = plain.denoise(torch.tensor([canvas]), cache)[0]

    together, apart = Board(packed), Board(packed)
    together.run(*_chunks(0, prompt))
    for chunk in _chunks(0, prompt):
        apart.run(chunk)
    for board in (together, apart):
        hidden = board.run((DENOISE, 0, 300, canvas))[0]
        torch.testing.assert_close(hidden, expected, atol=2e-5, rtol=2e-4)


class Few(Allowed):
    """Three tokens alone may stand anywhere."""

    def tokens(self, device: torch.device) -> Tensor:  # type: ignore[override]
        return torch.tensor([3, 9, 200])


@pytest.fixture(scope="module")
def fp8(plain: Transformer) -> PackedModel:
    """With the vocabulary in FP8."""
    source = plain.state_dict().__getitem__
    return pack(plain.config, source, device=CPU, dtype=torch.float32, fp8_vocabulary=True)


@pytest.fixture(scope="module")
def rounded(plain: Transformer, fp8: PackedModel) -> Transformer:
    """The plain model with the embeddings that FP8 keeps."""
    model = Transformer(plain.config)
    embeddings = fp8.vocabulary.rows(torch.arange(plain.config.vocab_size), torch.float32)
    model.load_state_dict(plain.state_dict() | {"embedding.weight": embeddings})
    return model.eval()


@torch.inference_mode()
def test_mixed_segments_padding_and_soft_embeddings(plain: Transformer, packed: PackedModel) -> None:
    first, second = _ids(3, 20), _ids(4, 7)
    long, short = _ids(5, 16), _ids(6, 9)  # a canvas shorter than a segment leaves padding
    soft = torch.randn(4, ROWS, packed.config.hidden_size, generator=torch.Generator().manual_seed(7))
    caches = [plain.new_cache(1, 64), plain.new_cache(1, 64)]
    plain.encode(torch.tensor([first]), caches[0])
    plain.encode(torch.tensor([second]), caches[1])
    expected_long = plain.denoise(torch.tensor([long]), caches[0], soft[1:2])[0]
    expected_short = plain.denoise(torch.tensor([short]), caches[1], soft[3:4, :9])[0]

    board = Board(packed)
    board.run(*_chunks(0, first))
    parts = (ENCODE, 1, 0, second), (DENOISE, 0, 20, long), (UNUSED, 0, 0, []), (DENOISE, 1, 7, short)
    hidden = board.run(*parts, soft=soft)
    assert hidden.isfinite().all()
    torch.testing.assert_close(hidden[1], expected_long, atol=2e-5, rtol=2e-4)
    torch.testing.assert_close(hidden[3, :9], expected_short, atol=2e-5, rtol=2e-4)


@torch.inference_mode()
def test_a_commit_fused_with_the_next_first_step_equals_separate_passes(
    plain: Transformer, packed: PackedModel
) -> None:
    prompt, committed, canvas = _ids(8, 250), _ids(9, 16), _ids(10, 16)  # the canvas crosses into a new page
    cache = plain.new_cache(1, 400)
    plain.encode(torch.tensor([prompt]), cache)
    plain.encode(torch.tensor([committed]), cache)
    expected = plain.denoise(torch.tensor([canvas]), cache)[0]

    fused, apart = Board(packed), Board(packed)
    for board in (fused, apart):
        board.run(*_chunks(0, prompt))
        board.run((DENOISE, 0, 250, _ids(11, 16)))  # leaves its keys behind the prompt, for the commit to overwrite
    together = fused.run((ENCODE, 0, 250, committed), (DENOISE, 0, 266, canvas))[1]
    apart.run((ENCODE, 0, 250, committed))
    separate = apart.run((DENOISE, 0, 266, canvas))[0]
    torch.testing.assert_close(together, expected, atol=2e-5, rtol=2e-4)
    torch.testing.assert_close(separate, expected, atol=2e-5, rtol=2e-4)


@torch.inference_mode()
def test_the_packed_transformer_has_the_plain_models_methods(plain: Transformer, packed: PackedModel) -> None:
    view = PackedTransformer(packed)
    prompts = torch.tensor([_ids(12, 20), _ids(13, 20)])
    canvas = torch.tensor([_ids(14, 16), _ids(15, 16)])
    caches = plain.new_cache(2, 64), view.new_cache(2, 64)
    for model, cache in zip((plain, view), caches, strict=True):
        model.encode(prompts, cache, [20, 13])
    hidden = [model.denoise(canvas, cache) for model, cache in zip((plain, view), caches, strict=True)]
    torch.testing.assert_close(*reversed(hidden), atol=2e-5, rtol=2e-4)
    soft = plain.soft_embeddings(plain.logits(hidden[0]) / 0.7)
    torch.testing.assert_close(view.soft_embeddings(view.logits(hidden[0]) / 0.7), soft)
    after = [model.denoise(canvas, cache, soft) for model, cache in zip((plain, view), caches, strict=True)]
    torch.testing.assert_close(*reversed(after), atol=2e-5, rtol=2e-4)


@torch.inference_mode()
def test_layers_scale_every_token_by_what_it_is(plain: Transformer, packed: PackedModel) -> None:
    """A token sees only itself here, so that it comes out as in a pass whose tokens are all of its kind."""

    def alone(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return v.repeat_interleave(q.shape[1] // v.shape[1], 1).transpose(1, 2).flatten(2)

    x = torch.randn(2, 16, plain.config.hidden_size, generator=torch.Generator().manual_seed(1))
    positions, causal = torch.arange(32).view(2, 16), (torch.arange(32) % 3 == 0).view(2, 16, 1)
    found = []
    for model in (plain, PackedTransformer(packed)):
        mixed, *apart = (
            model.run_layers(x, positions, alone, kinds) for kinds in (causal, torch.tensor(True), torch.tensor(False))
        )
        assert not torch.allclose(*apart)
        assert torch.equal(mixed, torch.where(causal, *apart))
        found.append(mixed)
    torch.testing.assert_close(*found, atol=2e-5, rtol=2e-4)


@torch.inference_mode()
def test_a_vocabulary_in_fp8_is_two_roundings_of_one_table(
    plain: Transformer, fp8: PackedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit what rounding rows and columns of the whole table makes, however many tokens are taken at a time."""
    table, kept = plain.embedding.weight, fp8.vocabulary
    assert kept.transposed is not None
    assert isinstance(kept.head, PackedFp8)
    assert torch.equal(kept.head.dequantize(torch.float32), quantize_fp8(table).dequantize(torch.float32))
    assert torch.equal(kept.transposed.dequantize(torch.float32), quantize_fp8(table.T).dequantize(torch.float32))
    assert sum(tensor.nbytes for tensor in tensors(kept)) == 2 * table.numel() + 4 * sum(table.shape)
    monkeypatch.setattr(vocabulary, "NUMBERS_AT_A_TIME", 5 * table.shape[1])
    again = vocabulary.pack_vocabulary(table, CPU, torch.float32, fp8=True)
    for one, other in zip(tensors(kept), tensors(again), strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    tokens = torch.arange(3, 40)
    assert torch.equal(kept.rows(tokens, torch.bfloat16), again.rows(tokens.view(1, -1), torch.bfloat16)[0])


@torch.inference_mode()
def test_everything_reads_the_vocabulary_in_fp8(rounded: Transformer, fp8: PackedModel) -> None:
    """Tokens, means, logits of all tokens and of some; in the head's product over all, rows are rounded as well."""
    view, canvas, tokens = PackedTransformer(fp8), torch.tensor([_ids(14, 16)]), torch.tensor([3, 9, 200])
    assert (view.dtype, view.device) == (torch.float32, CPU)
    torch.testing.assert_close(view.embed(canvas), rounded.embed(canvas), rtol=0, atol=0)
    hidden = [model.denoise(canvas, model.new_cache(1, 32))[0] for model in (rounded, view)]
    torch.testing.assert_close(*hidden, atol=2e-5, rtol=2e-4)
    exact, found = rounded.logits(hidden[0], 0.7), view.logits(hidden[0], 0.7)
    assert 0.001 < (found - exact).norm() / exact.norm() < 0.05
    torch.testing.assert_close(view.mean_embeddings(exact.softmax(-1)), rounded.mean_embeddings(exact.softmax(-1)))
    for constraint in (None, Allowed(16, {2: 5}, {7: [9, 3, 200]}), Few(16, {2: 9})):
        uniform = torch.full((16,), 0.4, dtype=torch.float64)
        asked = {"temperature": 0.7, "constraint": constraint, "want_soft": True}
        ours, theirs = (predict(model, hidden[0], uniform, **asked) for model in (view, rounded))
        assert ours.soft is not None
        assert theirs.soft is not None
        assert (ours.soft - theirs.soft).norm() < 0.05 * theirs.soft.norm()
        torch.testing.assert_close(ours.entropy, theirs.entropy, atol=0.05, rtol=0.05)
    rows = view.embeddings(tokens)
    torch.testing.assert_close(view.logits(hidden[0], 0.7, rows), exact[:, tokens], atol=1e-4, rtol=1e-4)
    assert torch.equal(rows, rounded.embedding.weight[tokens])

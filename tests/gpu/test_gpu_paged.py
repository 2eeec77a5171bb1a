"""On a CUDA device: forwards outside the engine, whose keys and values lie in pages, and what stands on them."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from stepping import CONFIG, FORMATS, packed, randomized

import redraft
from redraft import kernels
from redraft.model import Model, Transformer
from redraft.model.packed.paged_cache import PagedCache

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PIECES = "def mean(numbers):\n    return ", " / len(numbers)\n"


@pytest.fixture(scope="module")
def plain() -> Transformer:
    return randomized(CONFIG)


def _ids(seed: int, *shape: int) -> torch.Tensor:
    return torch.randint(CONFIG.vocab_size, shape, generator=torch.Generator().manual_seed(seed)).to("cuda")


@torch.inference_mode()
@pytest.mark.parametrize("lengths", [(16, 9), (60, 33), (200, 256), (300, 512)])
def test_they_are_as_near_to_fp32_as_eager_bf16(plain: Transformer, lengths: tuple[int, int]) -> None:
    half = Transformer(CONFIG).to("cuda", torch.bfloat16)
    half.load_state_dict(plain.state_dict())
    soft = torch.randn(2, max(lengths), CONFIG.hidden_size, generator=torch.Generator().manual_seed(3)).to("cuda")

    def hidden(model: Model) -> torch.Tensor:
        cache = model.new_cache(2, 2000)
        model.encode(_ids(1, 2, 1100), cache, [1100, 250])
        texts = cache.copy([1, 0, 1])
        read = model.encode(_ids(2, 3, 40), texts, [40, 7, 21])
        canvas = model.denoise(_ids(4, 2, max(lengths)), cache, soft.to(model.dtype), list(lengths))
        parts = [*(read[row, :count] for row, count in enumerate((40, 7, 21))),
                 *(canvas[row, :count] for row, count in enumerate(lengths))]  # fmt: skip
        return torch.cat(parts).float()

    with kernels.force("eager"):
        truth, eager = hidden(plain), hidden(half)
    model = packed(plain, None)
    assert isinstance(model.new_cache(1, 8), PagedCache)
    assert (hidden(model) - truth).norm() <= 2 * (eager - truth).norm()


@FORMATS
@torch.inference_mode()
def test_guesses_do_not_depend_on_each_other(plain: Transformer, quantization: str | None) -> None:
    model = packed(plain, quantization)
    cache = model.new_cache(1, 400)
    model.encode(_ids(1, 1, 300), cache)
    canvas, counts = _ids(2, 4, 60), [60, 41, 9, 60]
    branches = cache.select([0] * 4)
    together, captured, replayed = (model.denoise(canvas, branches, None, counts) for _ in range(3))
    for again in (captured, replayed):
        assert all(torch.equal(again[row, :count], together[row, :count]) for row, count in enumerate(counts))
    for row, count in enumerate(counts):
        alone = model.denoise(canvas[row : row + 1], cache, None, [count])
        assert torch.equal(alone[0, :count], together[row, :count])


def test_fillings_and_answers_at_a_time() -> None:
    """Forwards are captured, for the engine and outside it, while other threads are at work."""
    llm = redraft.load("tiny", device="cuda")

    def fill(length: int) -> str:
        return llm.fill(*PIECES, length=length, steps=4).full_text

    def answer(seed: int) -> str:
        return llm.generate("What is a prime number?", seed=seed, max_tokens=64).text

    with ThreadPoolExecutor(4) as pool:
        texts = [pool.submit(fill, 1 + number % 6) for number in range(18)]
        answers = [pool.submit(answer, number % 3) for number in range(9)]
        found = [future.result() for future in (*texts, *answers)]
    assert found == [fill(1 + number % 6) for number in range(18)] + [answer(number % 3) for number in range(9)]


def test_fill_edit_and_decide_as_on_a_cpu() -> None:
    cpu, gpu = redraft.load("tiny", device="cpu"), redraft.load("tiny", device="cuda")
    text = "".join((PIECES[0], "sum(numbrs)", PIECES[1]))
    span = (len(PIECES[0]), len(PIECES[0]) + len("sum(numbrs)"))
    for llm in (cpu, gpu):
        assert llm.fill(*PIECES).full_text.startswith(PIECES[0])
        assert llm.fill(*PIECES, choices=["sum(numbers)", "numbers"]).fillings[0].text in ("sum(numbers)", "numbers")
        assert llm.edit(text, span).full_text.endswith(PIECES[1])
    expected, found = (llm.decide("Is the sky blue?", ["yes", "no"], reads=1) for llm in (cpu, gpu))
    odds = expected.readings[0].probabilities, found.readings[0].probabilities
    assert odds[1] == pytest.approx(odds[0], abs=0.05)

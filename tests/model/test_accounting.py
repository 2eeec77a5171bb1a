"""Parameter counts: the published ones of the 26B model exactly, and the real tensors of small ones."""

import pytest

from redraft.cache.sizes import kv_costs
from redraft.model.accounting import active_per_token, text_parts, total, vision_parts
from redraft.model.presets import PRESETS, preset
from redraft.model.transformer import Transformer

LARGE = preset("26b-a4b")


def test_parts_of_the_26b_model() -> None:
    each = {part.name: (part.each, part.count) for part in text_parts(LARGE)}
    assert each == {
        "embedding (also the head)": (738_197_504, 1),
        "sliding attention": (34_603_520, 25),
        "full attention": (49_021_952, 5),
        "dense MLP": (17_842_176, 30),
        "router": (363_392, 30),
        "experts": (761_266_176, 30),
        "self-conditioning": (17_844_992, 1),
        "layer norms": (7 * 2816, 30),
        "final norm": (2816, 1),
        "layer scalars": (2, 30),
    }


def test_totals_of_the_26b_model() -> None:
    assert total(text_parts(LARGE)) == 25_250_986_812
    assert active_per_token(LARGE) == 3_840_375_582
    assert {part.name: part.total for part in vision_parts(LARGE)} == {
        "vision tower": 569_550_384,
        "vision projector": 3_244_032,
    }
    assert total(text_parts(LARGE) + vision_parts(LARGE)) == 25_823_781_228


@pytest.mark.parametrize("name", ["nano", "tiny"])
def test_counts_equal_the_tensors(name: str) -> None:
    config = preset(name)
    sizes = {key: tensor.numel() for key, tensor in Transformer(config).state_dict().items()}
    parts = {part.name: part.total for part in text_parts(config)}
    assert sum(parts.values()) == sum(sizes.values())
    assert parts["experts"] == sum(size for key, size in sizes.items() if ".experts." in key)
    assert parts["router"] == sum(size for key, size in sizes.items() if ".router." in key)
    attention = sum(size for key, size in sizes.items() if ".attention." in key)
    assert parts["sliding attention"] + parts["full attention"] == attention


def test_kv_bytes_of_the_26b_model_and_where_sliding_layers_stop_growing() -> None:
    sliding, full = kv_costs(LARGE)
    assert sliding.bytes_per_token == 25 * 8192
    assert full.bytes_per_token == 20_480
    assert full.bytes_at(262_144) == 20_480 * 262_144
    assert sliding.bytes_at(100) == 100 * 25 * 8192
    assert sliding.bytes_at(262_144) == sliding.bytes_at(1023) == 1023 * 25 * 8192


def test_kv_bytes_equal_the_cache() -> None:
    config = preset("nano")
    cache = Transformer(config).new_cache(1, 100)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache._layers)
    assert held == sum(cost.bytes_at(100) for cost in kv_costs(config, bytes_per_element=4))


def test_small_presets_stay_small() -> None:
    assert set(PRESETS) == {"26b-a4b", "tiny", "nano"}
    assert 37_000_000 < total(text_parts(preset("tiny"))) < 38_000_000
    assert total(text_parts(preset("nano"))) < 1_000_000

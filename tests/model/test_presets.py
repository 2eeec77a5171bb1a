"""Named shapes are settings that survive their own file."""

import pytest

from redraft.config import FULL, SLIDING, ModelConfig
from redraft.errors import SettingError
from redraft.model.presets import PRESETS, preset


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_survives_config_json(name: str) -> None:
    assert ModelConfig.from_dict(preset(name).to_dict()) == preset(name)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_both_kinds_of_layers_and_ends_on_a_full_one(name: str) -> None:
    assert set(preset(name).layer_types) == {SLIDING, FULL}
    assert preset(name).layer_types[-1] == FULL


def test_an_unknown_preset() -> None:
    with pytest.raises(SettingError, match="'huge'; it must be one of 26b-a4b, tiny, nano"):
        preset("huge")

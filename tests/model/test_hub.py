"""Hub ids that cannot be fetched: one sentence each."""

from fnmatch import fnmatch
from types import SimpleNamespace
from typing import Any

import pytest
from sentences import one_sentence

from redraft.errors import HubError
from redraft.model.folders import resolve_folder


def test_a_hub_id_without_a_network_says_what_to_do() -> None:
    with pytest.raises(HubError, match=r"nobody/no-such-model.*go online") as caught:
        resolve_folder("nobody/no-such-model")
    one_sentence(caught.value)


def test_hub_failures_are_one_sentence_each(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    answer: Any = SimpleNamespace(headers={}, request=None)
    failures = {
        "needs permission": GatedRepoError("gated\nlong story", response=answer),
        "nor a model on the Hugging Face hub": RepositoryNotFoundError("no\nsuch", response=answer),
        "could not be fetched.*: certificate expired.": RuntimeError("certificate expired.\nmore"),
    }
    for words, failure in failures.items():

        def fail(*_: object, failure: Exception = failure, **__: object) -> None:
            raise failure

        monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
        with pytest.raises(HubError, match=words) as caught:
            resolve_folder("some/model")
        one_sentence(caught.value)


@pytest.mark.parametrize("weights", [True, False])
def test_what_describes_a_model_is_fetched_with_its_chat_template(
    monkeypatch: pytest.MonkeyPatch, weights: bool
) -> None:
    """A recipe that begins with a hub id is checked, and its data are rendered, before the weights are there."""
    import huggingface_hub

    asked = list[str]()

    def fetch(_: str, allow_patterns: list[str]) -> str:
        asked.extend(allow_patterns)
        return "x"

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    resolve_folder("some/model", weights=weights)
    for file in ("config.json", "tokenizer.json", "chat_template.jinja"):
        assert any(fnmatch(file, pattern) for pattern in asked)
    assert any(fnmatch("model.safetensors", pattern) for pattern in asked) == weights

"""Hub ids that cannot be fetched: one sentence each."""

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

"""What a request for drafts may ask for."""

from typing import Any

import pydantic
import pytest
from serving import CHAT

from redraft.serve.shapes.own import DraftsRequest


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"n": 2}, "n must be 1"),
        ({"stream": False}, "stream cannot be false"),
        ({"logprobs": True, "top_logprobs": 2}, "entropies, not log-probabilities"),
        ({"stream": True, "stream_options": {"include_usage": True}}, "leave out include_usage"),
    ],
)
def test_what_drafts_do_not_tell_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=said):
        DraftsRequest.model_validate(CHAT | fields)

"""The real vocabulary, where this machine has it."""

import lzma

import pytest
from official import SHARED

from redraft.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Gemma's tokenizer with its 262,144 entries."""
    packed = SHARED / "gemma4_tokenizer.json.xz"
    if not packed.is_file():
        pytest.skip("the real vocabulary is not on this machine")
    file = tmp_path_factory.mktemp("gemma") / "tokenizer.json"
    file.write_bytes(lzma.decompress(packed.read_bytes()))
    return Tokenizer.from_file(file)

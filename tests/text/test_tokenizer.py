"""The tokenizer on both kinds of vocabulary: the embedded byte-level one and Gemma's byte-fallback one."""

import re
import sys
import threading
import time
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from official import TINY as ASSETS
from official import official

from redraft.errors import CheckpointError, PromptError
from redraft.text.prompt import encode_chat
from redraft.text.tokenizer import Tokenizer

TINY = Tokenizer.from_folder(ASSETS)
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|tool_call>", '<|"|>', "<|channel>", "<|turn>", "<turn|>"]
TEXTS = [
    "Why is the sky blue?",
    "  def f(x):\n\n\treturn x ** 2  # 12345\r\n",
    "São Paulo, 日本語, 🙂👩‍👩‍👧, \u0000\u007f\u0080\u2028",
    " ",
    "",
    "<|turn>user\nhi<turn|>\n",
]


def test_golden_prompt(gemma: Tokenizer) -> None:
    conversation = [{"role": "user", "content": "Why is the sky blue?"}]
    golden = "2 105 2364 107 11355 563 506 7217 3730 236881 106 107 105 4368 107 100 45518 107 101"
    ids = [int(id) for id in golden.split()]
    assert gemma.encode(official("launch_june").render(conversation)) == ids
    assert encode_chat(official("launch_june"), gemma, conversation) == ids


def test_ids_of_the_real_vocabulary(gemma: Tokenizer) -> None:
    assert gemma.vocab_size == 262144
    assert (gemma.pad_id, gemma.eos_id, gemma.bos_id, gemma.turn_end_id) == (0, 1, 2, 106)
    assert gemma.special_id("<|turn>") == 105
    assert gemma.special_ids["<|video|>"] == 258884
    assert gemma.decode([2, 48, 100, 1], skip_special=True) == "<|tool_call><|channel>"


def test_bytes_of_the_real_vocabulary(gemma: Tokenizer) -> None:
    assert gemma.token_bytes(gemma.encode("\u0000")[0]) == b"\0"
    assert gemma.token(563) == "\u2581is"
    assert gemma.token_bytes(563) == b" is"
    assert gemma.token_bytes(105) == b"<|turn>"


@pytest.mark.parametrize("text", TEXTS)
def test_real_vocabulary_round_trip(gemma: Tokenizer, text: str) -> None:
    assert gemma.decode(gemma.encode(text)) == text
    assert gemma.decode(gemma.encode(text, special=False)) == text


@settings(max_examples=50)
@given(ids=st.lists(st.integers(600, 262143), max_size=20))
def test_decoding_equals_the_library(gemma: Tokenizer, ids: list[int]) -> None:
    # Ids below 600 hold the single bytes: the library gives up on a whole run of them if one is wrong, we do not.
    assert gemma.decode(ids) == gemma._backend.decode(ids, skip_special_tokens=False)


@settings(max_examples=50)
@given(text=st.text(max_size=60))
def test_round_trip_and_streaming(text: str) -> None:
    for special in (True, False):
        ids = TINY.encode(text, special=special)
        stream = TINY.stream()
        assert TINY.decode(ids) == text
        assert "".join(stream.push([id]) for id in ids) + stream.finish() == text


@pytest.mark.parametrize("text", TEXTS)
def test_decoding_equals_the_library_for_the_embedded_vocabulary(text: str) -> None:
    ids = TINY.encode(text)
    assert TINY.decode(ids) == TINY._backend.decode(ids, skip_special_tokens=False)


def test_every_embedded_token_has_the_bytes_the_library_decodes() -> None:
    for id in range(TINY.vocab_size):
        expected = TINY._backend.decode([id], skip_special_tokens=False)
        assert TINY.token_bytes(id).decode("utf-8", errors="replace") == expected


def test_all_single_bytes_are_in_the_embedded_vocabulary() -> None:
    assert {TINY.token_bytes(id) for id in range(TINY.vocab_size)} >= {bytes([byte]) for byte in range(256)}


@pytest.mark.parametrize("text", SPECIAL)
def test_special_strings_are_tokens_or_plain_text(text: str, gemma: Tokenizer) -> None:
    for tokenizer in (TINY, gemma):
        id = tokenizer.special_id(text)
        assert tokenizer.encode(f"a{text}b").count(id) == 1
        plain = tokenizer.encode(f"a{text}b", special=False)
        assert not set(plain) & set(tokenizer.special_ids.values())
        assert tokenizer.decode(plain) == f"a{text}b"


def test_nothing_is_added() -> None:
    assert TINY.bos_id not in TINY.encode("hello")
    assert TINY.encode("") == []


def test_skipping_special_tokens() -> None:
    ids = TINY.encode("<bos>hi<turn|>")
    assert TINY.decode(ids, skip_special=True) == "hi"
    assert TINY.decode(ids) == "<bos>hi<turn|>"


def test_a_character_cut_in_two_waits_in_a_stream() -> None:
    ids = [next(id for id in range(TINY.vocab_size) if TINY.token_bytes(id) == bytes([byte])) for byte in "é".encode()]
    stream = TINY.stream()
    assert [stream.push(ids[:1]), stream.push(ids[1:])] == ["", "é"]
    assert stream.push(ids[:1]) == ""
    assert stream.finish() == "\ufffd"
    assert TINY.decode(ids[:1]) == "\ufffd"


@pytest.mark.parametrize("id", [-1, TINY.vocab_size, 10**12, 1.5, "1", None, True, [1]])
def test_wrong_ids_are_named(id: object) -> None:
    for use in (TINY.decode, TINY.check_ids):
        with pytest.raises(PromptError, match=re.escape(str(id))):
            use([3, id])  # type: ignore[list-item]


@pytest.mark.parametrize("text", ["a\ud800", 3, None])
def test_wrong_text_is_refused(text: object) -> None:
    with pytest.raises(PromptError, match="text"):
        TINY.encode(text)  # type: ignore[arg-type]


def test_absent_special_string() -> None:
    with pytest.raises(CheckpointError, match="<nothing>"):
        TINY.special_id("<nothing>")


def test_wrong_folders_and_files(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="not a readable tokenizer"):
        Tokenizer.from_folder(tmp_path)
    with pytest.raises(CheckpointError, match="decoder must be"):
        Tokenizer(tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a")))


def test_merges_that_spell_a_special_string() -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({"<": 0, "a": 1, "<a": 2}, [("<", "a")]))
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<a"])
    tokenizer = Tokenizer(backend)
    assert tokenizer.encode("a<a<<aa") == [1, 2, 0, 2, 1]
    assert tokenizer.encode("a<a<<aa", special=False) == [1, 0, 1, 0, 0, 1, 1]


@pytest.mark.parametrize("special", [False, True])
def test_other_threads_run_while_a_long_text_is_encoded(special: bool) -> None:
    ticks, over, usual = 0, threading.Event(), sys.getswitchinterval()

    def tick() -> None:
        nonlocal ticks
        while not over.is_set():
            ticks += 1
            time.sleep(0)

    other = threading.Thread(target=tick)
    sys.setswitchinterval(100.0)  # so that nobody is made to let others run, but has to do so by itself
    try:
        other.start()
        before = ticks
        tries = (TINY.encode("word " * 100_000, special=special) for _ in range(20))
        assert any(ticks > before for _ in tries)  # the system may let the other one run too late for the first
    finally:
        over.set()
        sys.setswitchinterval(usual)
        other.join()

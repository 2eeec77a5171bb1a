"""Token healing: the tokens that may stand at a hole's edges, and that the text given there is never lost."""

import random

import pytest
import tokenizers
from hard_texts import cuts

from redraft.filling.hole import Hole
from redraft.filling.seams import Seams
from redraft.llm import LLM
from redraft.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(llm: LLM) -> Tokenizer:
    return llm.tokenizer


@pytest.fixture(scope="module")
def seams(tokenizer: Tokenizer) -> Seams:
    return Seams.of(tokenizer)


def test_the_index_equals_a_search(tokenizer: Tokenizer, seams: Seams) -> None:
    special = set(tokenizer.special_ids.values())
    plain = {id: tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size) if id not in special}
    for text in (b"retu", b" ", b"\n", b"\xf0\x9f", b"()", b"zzzz"):
        assert seams.beginning(text) == tuple(sorted(id for id, own in plain.items() if own.startswith(text)))
        assert seams.ending(text) == tuple(sorted(id for id, own in plain.items() if own.endswith(text)))


def test_the_fewest_tokens_that_spell_a_text(tokenizer: Tokenizer, seams: Seams) -> None:
    assert [seams.fewest(text) for text in (b"", b"return", b"\xf0\x9f")] == [0, 1, 2]
    for text in ("plementedError", "naïve 👩", "x" * 40):
        assert 1 < seams.fewest(text.encode()) <= len(tokenizer.encode(text))


def test_not_every_byte_is_a_token() -> None:
    words = ["<pad>", "<eos>", "<bos>", "<unk>", "<turn|>", "ab", "abc", "cab", "é"]
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram([(word, -1.0) for word in words], unk_id=3))
    backend.decoder = tokenizers.decoders.ByteFallback()
    seams = Seams.of(Tokenizer(backend))
    assert [seams.fewest(text.encode()) for text in ("ab", "abcab", "abcabab", "éabé")] == [1, 2, 3, 3]


def test_it_is_built_once(tokenizer: Tokenizer) -> None:
    assert Seams.of(tokenizer) is Seams.of(tokenizer)


def test_a_word_cut_in_two_grows_together(tokenizer: Tokenizer, seams: Seams) -> None:
    found = seams.before(tokenizer.encode("x\n    retu"))
    (whole,) = tokenizer.encode("return")
    assert any(whole in seam.tokens and seam.text == b"retu" for seam in found)


def test_a_line_end_is_final(tokenizer: Tokenizer, seams: Seams) -> None:
    assert seams.before(tokenizer.encode("x = 1\n")) == []
    assert seams.behind(tokenizer.encode("\nx = 1")) is None
    assert seams.before([]) == []
    assert seams.behind([]) is None


def test_special_tokens_never_stand_at_a_seam(tokenizer: Tokenizer, seams: Seams) -> None:
    special = set(tokenizer.special_ids.values())
    assert not special & set(seams.beginning(b"<"))
    assert seams.before([tokenizer.bos_id]) == []


def test_one_token_for_both_sides_holds_both_texts(tokenizer: Tokenizer, seams: Seams) -> None:
    first = seams.before(tokenizer.encode("retu"))[-1]
    last = seams.behind(tokenizer.encode("n x"))
    assert last is not None
    both = seams.both(first, last)
    assert tokenizer.encode("return")[0] in both
    for id in both:
        own = tokenizer.token_bytes(id)
        assert own.startswith(first.text)
        assert own.endswith(last.text)
        assert len(own) >= len(first.text) + len(last.text)


def test_a_thousand_random_holes_keep_the_given_text(tokenizer: Tokenizer, seams: Seams) -> None:
    """Whatever allowed tokens stand in a hole, committed bytes + hole + pinned bytes begin and end as given."""
    rng = random.Random(5)
    special = set(tokenizer.special_ids.values())
    plain = [id for id in range(tokenizer.vocab_size) if id not in special]
    for (before, behind), _ in cuts(1000, 1, seed=9):
        left, right = tokenizer.encode(before, special=False), tokenizer.encode(behind, special=False)
        opened = seams.before(left)
        depth = rng.randrange(len(opened) + 1)
        first, last = (opened[depth - 1] if depth else None), seams.behind(right)
        hole = Hole(tokenizer=tokenizer, behind=tuple(right[last is not None :]), first=first, last=last)
        length = rng.randint(1, 5)
        if not hole.possible(length):
            continue
        ids = [rng.choice(plain) for _ in range(length)]
        if first and last and length == 1:
            ids = [rng.choice(seams.both(first, last))]
        else:
            ids[0] = rng.choice(first.tokens) if first else ids[0]
            ids[-1] = rng.choice(last.tokens) if last and (length > 1 or not first) else ids[-1]
        whole = tokenizer.decode_bytes([*left[: len(left) - depth], *ids, *right[last is not None :]])
        own = hole.text(ids)
        assert whole.startswith(before.encode())
        assert whole.endswith(behind.encode())
        middle = whole[len(before.encode()) : len(whole) - len(behind.encode())]
        assert own == middle.decode(errors="ignore")
        offsets = hole.offsets(ids)
        assert len(offsets) == length
        assert offsets[-1][1] == len(own)
        assert all(a <= b for a, b in offsets)


def test_a_token_that_is_part_of_a_character_covers_it(tokenizer: Tokenizer) -> None:
    by_text = {tokenizer.token_bytes(id): id for id in range(tokenizer.vocab_size)}
    ids = [by_text[bytes([byte])] for byte in "é🙂a".encode()]
    hole = Hole(tokenizer=tokenizer, behind=(), first=None, last=None)
    assert hole.offsets(ids) == (*2 * [(0, 1)], *4 * [(1, 2)], (2, 3))

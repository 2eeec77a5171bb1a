"""The tokenizer of `tiny`: a byte-level BPE of 16,384 entries with the special strings of Gemma 4.

The pre-tokenizer is made for editing code on a canvas: a newline is always a separate token, indentation is one token
that is never glued to a word, and digits stand alone, so a line or a digit can be replaced without touching its
neighbours.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from redraft.model.folders import write_json
from redraft.train.build.english import prose_texts
from redraft.train.build.python_code import wanted_files
from redraft.train.build.samples import chat_texts

VOCABULARY_SIZE = 16_384
SPECIAL_TOKENS = (
    "<pad>", "<eos>", "<bos>", "<unk>", "<mask>",
    "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>', "<|think|>",
    "<|channel>", "<channel|>", "<|turn>", "<turn|>",
    "<|image>", "<|audio>", "<|image|>", "<image|>", "<audio|>", "<|video|>",
)  # fmt: skip
# Newline; several spaces; a word, one digit or punctuation, each with at most one space before; any other character.
SPLIT_PATTERN = r"\n| {2,}| ?\p{L}[\p{L}\p{M}]*| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|[\s\S]"
# Training text is cut at special strings: merges must not spell them, or plain text could contain a special token.
_SPECIAL = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
SAMPLE_BYTES = {"code": 26_000_000, "prose": 14_000_000, "chat": 8_000_000}


def train_tokenizer(texts: Iterable[str], vocabulary_size: int = VOCABULARY_SIZE) -> Tokenizer:
    """Trains the byte-level BPE on `texts`; special tokens come first, then the 256 bytes, then merges."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=2,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=32,
        show_progress=False,
    )
    tokenizer.train_from_iterator((piece for text in texts for piece in _SPECIAL.split(text)), trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json`, which `tokenizers` and Transformers both load."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
    }
    write_json(folder / "tokenizer_config.json", config)


def build(out: Path, cache: Path, seed: int = 0) -> list[Path]:
    """Trains the tokenizer on a sample of code, prose and chat text and saves it in `out`."""
    rng = random.Random(seed)
    sample = [
        *take(shuffled((file.text for file in wanted_files(cache)), rng), SAMPLE_BYTES["code"]),
        *take(shuffled(prose_texts(cache), rng), SAMPLE_BYTES["prose"]),
        *take(chat_texts(cache, rng), SAMPLE_BYTES["chat"]),
    ]
    save_tokenizer(train_tokenizer(sample), out)
    return [out / "tokenizer.json", out / "tokenizer_config.json"]


def shuffled(texts: Iterable[str], rng: random.Random) -> list[str]:
    """All `texts` in a random order."""
    ordered = list(texts)
    rng.shuffle(ordered)
    return ordered


def take(texts: Iterable[str], limit: int) -> Iterator[str]:
    """The first texts, up to a total of `limit` characters."""
    total = 0
    for text in texts:
        if total >= limit:
            return
        total += len(text)
        yield text

"""The tokenizer of a GGUF file as the content of a `tokenizer.json`.

Gemma 4's is byte-pair encoding over text in which U+2581 stands for a space; characters that it lacks are spelled in
bytes. So the file need not describe it: it names the kind `gemma4`, and lists tokens and merges.
"""

from __future__ import annotations

from typing import Any

from redraft.errors import CheckpointError
from redraft.model.gguf.container import GgufHeader

KIND = "gemma4"
TOKENS = "tokenizer.ggml.tokens"
_SPACE_MARK = "\u2581"
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""The types of tokens that text is searched for before it is divided; the others are made by merging."""
_NAMED = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "mask": "mask"}
"""Tokens that the file names by their ids, and what it calls them."""


def tokenizer_json(header: GgufHeader) -> dict[str, Any]:
    """The file's tokenizer. Raises `CheckpointError` for another kind and for lists that cannot belong together."""
    kind = header.value("tokenizer.ggml.model", str)
    if kind != KIND:
        raise CheckpointError(f"{header.file} has a tokenizer of kind {kind!r}; only {KIND!r} is supported.")
    if header.value("tokenizer.ggml.add_space_prefix", bool, False):
        raise CheckpointError(f"{header.file} sets tokenizer.ggml.add_space_prefix, which {KIND!r} does not have.")
    tokens = header.entries(TOKENS, str)
    merges = [merge.split(" ") for merge in header.entries("tokenizer.ggml.merges", str)]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens) or any(len(pair) != 2 for pair in merges):
        raise CheckpointError(f"{header.file} lists a token twice, or merges that are not of two tokens.")
    if strange := next((pair for pair in merges if not vocabulary.keys() >= {*pair, "".join(pair)}), None):
        raise CheckpointError(f"{header.file} lists the merge {' '.join(strange)!r} of tokens that it does not list.")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(header, tokens),
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE_MARK},
        "pre_tokenizer": {
            "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False,
        },
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": _SPACE_MARK}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE", "unk_token": named_tokens(header).get("unk_token"), "fuse_unk": True, "byte_fallback": True,
            "vocab": vocabulary, "merges": merges,
        },
    }  # fmt: skip


def named_tokens(header: GgufHeader) -> dict[str, str]:
    """What `tokenizer_config.json` calls `bos_token` and so on."""
    tokens = header.entries(TOKENS, str)
    return {f"{ours}_token": tokens[id] for ours, id in named_ids(header).items()}


def named_ids(header: GgufHeader) -> dict[str, int]:
    """The ids that the file names: "bos", "eos", "unk", "pad", "mask". Raises `CheckpointError` for ids of no token."""
    count, found = len(header.entries(TOKENS, str)), {}
    for ours, theirs in _NAMED.items():
        key = f"tokenizer.ggml.{theirs}_token_id"
        if key in header.metadata:
            found[ours] = header.value(key, int)
            if not 0 <= found[ours] < count:
                raise CheckpointError(f"{header.file} sets {key} to {found[ours]}, of {count} tokens.")
    return found


def _added(header: GgufHeader, tokens: list[str]) -> list[dict[str, Any]]:
    """The tokens that stand for themselves; special are those that the file names or calls a control token."""
    types = header.entries("tokenizer.ggml.token_type", int)
    if len(types) != len(tokens):
        raise CheckpointError(f"{header.file} lists {len(tokens)} tokens and {len(types)} types of tokens.")
    special = {id for id, type in enumerate(types) if type in (_UNKNOWN, _CONTROL)} | {*named_ids(header).values()}
    added = special | {id for id, type in enumerate(types) if type == _USER_DEFINED}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [{"id": id, "content": tokens[id], **plain, "special": id in special} for id in sorted(added)]

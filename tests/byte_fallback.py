"""A tokenizer of the published checkpoints' kind, small enough to be made on the spot."""

import tokenizers

from redraft.text.tokenizer import Tokenizer


def byte_fallback() -> Tokenizer:
    """A small vocabulary of the kind that writes U+2581 for a space and has a token for every byte."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<turn|>"]
    words = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "\u2581\u2581", "\u2581b"]
    merges = [("\u2581", "\u2581"), ("\u2581", "b")]
    model = tokenizers.models.BPE({word: id for id, word in enumerate(words)}, merges, byte_fallback=True)
    backend = tokenizers.Tokenizer(model)
    backend.add_special_tokens(special)
    backend.normalizer = tokenizers.normalizers.Replace(" ", "\u2581")
    replace, fuse = tokenizers.decoders.Replace("\u2581", " "), tokenizers.decoders.Fuse()
    backend.decoder = tokenizers.decoders.Sequence([replace, tokenizers.decoders.ByteFallback(), fuse])
    return Tokenizer(backend)

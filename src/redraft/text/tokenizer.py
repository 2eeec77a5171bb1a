"""Token ids and text, over the `tokenizers` library.

Three things beyond that library: untrusted text (code to fill, a document to edit) can be encoded with its
special-looking strings as plain characters; every id has exact bytes, so text can be put together from any run of
tokens (a constraint automaton needs them, and a stream must not print half a character); and wrong ids are an error,
not an empty string.

Nothing is added to what the caller wrote: `<bos>` comes from the chat template, or from the caller of a raw prompt.
"""

import codecs
import json
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import tokenizers

from redraft.errors import CheckpointError, PromptError, check_utf8

BOS = "<bos>"
EOS = "<eos>"
PAD = "<pad>"
TURN_OPEN, TURN_END = "<|turn>", "<turn|>"

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE_MARK = "\u2581"

Span = tuple[int, int]
"""The first character and the one after the last."""


class Tokenizer:
    """Encodes and decodes text with one `tokenizer.json` of the byte-level or byte-fallback kind."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._byte_level = _is_byte_level(backend)
        self._added = backend.get_added_tokens_decoder()
        self._bytes: dict[int, bytes] = {}
        self.vocab_size: int = max(backend.get_vocab_size(), max(self._added, default=-1) + 1)
        self.special_ids: dict[str, int] = {token.content: id for id, token in sorted(self._added.items())}

    @classmethod
    def from_folder(cls, path: str | Path, *, vocab_size: int | None = None) -> "Tokenizer":
        """Read `tokenizer.json` of a model folder; raises CheckpointError if it is absent or unreadable.

        `vocab_size` is the model's, which may be padded: ids beyond the file's own spell nothing.
        """
        file = Path(path) / "tokenizer.json"
        if not file.is_file():
            raise CheckpointError(f"The folder {str(path)!r} has no tokenizer.json.")
        tokenizer = cls.from_file(file)
        tokenizer.vocab_size = vocab_size or tokenizer.vocab_size
        return tokenizer

    @classmethod
    def from_file(cls, file: str | Path) -> "Tokenizer":
        """Read one tokenizer JSON file."""
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception for every kind of bad file
            raise CheckpointError(f"{str(file)!r} is not a readable tokenizer: {str(error).rstrip('.')}.") from error
        return cls(backend)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of `text`, with nothing added.

        With `special`, strings such as `<|turn>` become their special tokens. Without, every character is plain text:
        no special id results, whatever the text contains.
        """
        if not isinstance(text, str):
            raise PromptError(f"The text to encode must be a str, not {type(text).__name__}.")
        check_utf8(text)
        if special:
            return _ids(self._backend, [text])
        return self._encode_plain(text)

    def encode_exact(self, text: str) -> list[int]:
        """Token ids whose bytes are those of `text`, with no special id among them.

        The same as `encode`, except for the mark that a byte-fallback vocabulary writes for a space: where the text
        itself contains that character, it is spelled in bytes.
        """
        if self._byte_level:
            return self.encode(text, special=False)
        first, *rest = (self.encode(piece, special=False) for piece in text.split(_SPACE_MARK))
        return first + [id for piece in rest for id in (*self._spelled_mark, *piece)]

    def special_spans(self, text: str) -> list[Span]:
        """The positions of special strings in `text`, in order."""
        return [found.span() for found in self._special.finditer(text)]

    def encode_marked(self, text: str, spans: Sequence[Span]) -> list[int]:
        """Token ids of `text`, in which only the special strings at `spans` become special tokens."""
        ids, place = [], 0
        for start, end in spans:
            ids += [*self.encode(text[place:start], special=False), self.special_ids[text[start:end]]]
            place = end
        return ids + self.encode(text[place:], special=False)

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Text of `ids`; bytes that do not form a UTF-8 character become U+FFFD.

        `skip_special` leaves out the tokens that the tokenizer file marks as special. In Gemma's file the tool and
        channel strings are not marked, so replies can still be parsed.
        """
        return self.decode_bytes(ids, skip_special=skip_special).decode("utf-8", errors="replace")

    def decode_bytes(self, ids: Iterable[int], *, skip_special: bool = False) -> bytes:
        """The exact bytes of `ids`, joined; safe to cut and join again at any token."""
        kept = (id for id in ids if not (skip_special and self.is_special(id)))
        return b"".join(map(self.token_bytes, kept))

    def stream(self, *, skip_special: bool = False) -> "TextStream":
        """A decoder for text that arrives in pieces."""
        return TextStream(self, skip_special=skip_special)

    def token_bytes(self, id: int) -> bytes:
        """What one token adds to the text: a special token's name, or bytes that may be part of a UTF-8 character."""
        known = self._bytes.get(id) if type(id) is int else None
        if known is None:
            self.check_ids((id,))
            known = self._bytes[int(id)] = self._find_bytes(int(id))
        return known

    def token(self, id: int) -> str:
        """The vocabulary entry as the tokenizer file writes it, for display."""
        self.check_ids((id,))
        return self._backend.id_to_token(int(id)) or ""

    def is_special(self, id: int) -> bool:
        """Whether the tokenizer file marks this id as special."""
        added = self._added.get(id)
        return added is not None and added.special

    def special_id(self, text: str) -> int:
        """Id of a special string such as `<|turn>`; raises CheckpointError if the tokenizer lacks it."""
        found = self.special_ids.get(text)
        if found is None:
            raise CheckpointError(f"The tokenizer has no special token {text!r}.")
        return found

    def check_ids(self, ids: Iterable[int]) -> None:
        """Raise PromptError naming the first id that is not an integer inside the vocabulary."""
        for position, id in enumerate(ids):
            if not _is_integer(id):
                raise PromptError(f"Token ids must be integers, but position {position} holds {id!r}.")
            if not 0 <= int(id) < self.vocab_size:
                raise PromptError(
                    f"Token id {int(id)} at position {position} is outside the vocabulary of {self.vocab_size} entries."
                )

    @property
    def bos_id(self) -> int:
        """Id of `<bos>`, which opens every prompt."""
        return self.special_id(BOS)

    @property
    def eos_id(self) -> int:
        """Id of `<eos>`, which fills the rest of the last canvas."""
        return self.special_id(EOS)

    @property
    def pad_id(self) -> int:
        """Id of `<pad>`."""
        return self.special_id(PAD)

    @property
    def turn_end_id(self) -> int:
        """Id of `<turn|>`, which closes a turn."""
        return self.special_id(TURN_END)

    @cached_property
    def _special(self) -> re.Pattern[str]:
        """Matches any special string, the longest first as in the library; if there are none, never matches."""
        return re.compile("|".join(map(re.escape, sorted(self.special_ids, key=len, reverse=True))) or "(?!)")

    @cached_property
    def _spelled_mark(self) -> tuple[int, ...]:
        """Ids of the bytes of the character that stands for a space."""
        names = [f"<0x{byte:02X}>" for byte in _SPACE_MARK.encode("utf-8")]
        ids = tuple(id for name in names if (id := self._backend.token_to_id(name)) is not None)
        if len(ids) < len(names):
            raise CheckpointError(f"The tokenizer lacks one of the tokens {', '.join(names)}.")
        return ids

    @cached_property
    def _plain_backend(self) -> tokenizers.Tokenizer:
        """The same model without its added tokens; the vocabulary is shared, not copied."""
        plain = tokenizers.Tokenizer(self._backend.model)
        plain.normalizer = self._backend.normalizer
        plain.pre_tokenizer = self._backend.pre_tokenizer
        return plain

    @cached_property
    def _spelled(self) -> re.Pattern[str] | None:
        """Where to cut special strings that the vocabulary's own merges would spell: after the first character."""
        spelled = [
            f"(?<={re.escape(text[0])})(?={re.escape(text[1:])})"
            for text, id in self.special_ids.items()
            if len(text) > 1 and id in _ids(self._plain_backend, [text])
        ]
        return re.compile("|".join(spelled)) if spelled else None

    def _encode_plain(self, text: str) -> list[int]:
        """Encode without special tokens; text that merges into one is cut in two, and no merge crosses the cut."""
        pieces = self._spelled.split(text) if self._spelled else [text]
        return _ids(self._plain_backend, pieces)

    def _find_bytes(self, id: int) -> bytes:
        added = self._added.get(id)
        if added is not None:
            return added.content.encode("utf-8")
        token = self._backend.id_to_token(id)
        if token is None:  # a gap in the numbering
            return b""
        return _byte_level_bytes(token) if self._byte_level else _byte_fallback_bytes(token)


class TextStream:
    """Turns tokens that arrive in pieces into text, holding back an incomplete character until it is whole."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Iterable[int]) -> str:
        """The text that is complete with these ids; all pieces joined equal `decode` of all ids."""
        return self._decoder.decode(self._tokenizer.decode_bytes(ids, skip_special=self._skip_special))

    def finish(self) -> str:
        """What is left at the end: an unfinished character as U+FFFD, or nothing."""
        return self._decoder.decode(b"", final=True)


def _ids(backend: tokenizers.Tokenizer, pieces: list[str]) -> list[int]:
    """Token ids of several texts, concatenated. Releases the GIL, which `encode` would not."""
    encodings = backend.encode_batch_fast(pieces, add_special_tokens=False)
    return [id for encoding in encodings for id in encoding.ids]


def _is_integer(value: object) -> bool:
    """Python and NumPy integers and integer tensors of one element, but not booleans."""
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return not isinstance(value, bool)


def _is_byte_level(backend: tokenizers.Tokenizer) -> bool:
    """Whether it is byte-level (True) or byte-fallback (False), judged by the decoder; any other kind is refused."""
    kinds = set(_decoder_kinds(json.loads(backend.decoder.__getstate__()) if backend.decoder else {}))
    if "ByteLevel" in kinds:
        return True
    if "ByteFallback" in kinds:
        return False
    raise CheckpointError(
        f"The tokenizer's decoder must be ByteLevel or ByteFallback, not {', '.join(sorted(kinds)) or 'absent'}."
    )


def _decoder_kinds(decoder: dict[str, Any]) -> Iterator[str]:
    if "type" in decoder:
        yield decoder["type"]
    for part in decoder.get("decoders", []):
        yield from _decoder_kinds(part)


def _byte_fallback_bytes(token: str) -> bytes:
    match = _BYTE_FALLBACK.fullmatch(token)
    if match:
        return bytes([int(match[1], 16)])
    return token.replace(_SPACE_MARK, " ").encode("utf-8")


def _byte_level_bytes(token: str) -> bytes:
    table = _byte_level_table()
    return b"".join(bytes([table[char]]) if char in table else char.encode("utf-8") for char in token)


@lru_cache(maxsize=1)
def _byte_level_table() -> dict[str, int]:
    """Which byte each character of a byte-level vocabulary stands for.

    Printable Latin-1 characters stand for themselves; the other bytes, in order, are written from U+0100 upwards.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(256)) - set(printable))
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + offset): byte for offset, byte in enumerate(hidden)})
    return table

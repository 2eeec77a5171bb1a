"""API keys: where they come from, and how a request's key is checked against them."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from redraft.errors import SettingError, why

VARIABLE = "REDRAFT_API_KEYS"
"""Environment variable that may hold keys, separated by commas."""


def read_keys(file: Path | None, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Read keys from a file (one per line) and the environment; refuse either without keys.

    In a file, `#` starts a comment at the beginning of a line or after a space.
    """
    keys = [key.strip() for key in environment.get(VARIABLE, "").split(",")]
    if VARIABLE in environment and not any(keys):
        raise SettingError(f"{VARIABLE} is set but holds no keys; unset it to let everyone in.")
    if file is not None:
        keys += _file_keys(file)
    keys = [key for key in dict.fromkeys(keys) if key]
    if any(not key.isascii() or not key.isprintable() or " " in key for key in keys):
        raise SettingError("An API key may contain only printable ASCII characters, without spaces.")
    return tuple(keys)


def _file_keys(file: Path) -> list[str]:
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"The key file {file} cannot be read: {why(error)}.") from error
    keys = [re.split(r"(?:^|\s)#", line, maxsplit=1)[0].strip() for line in lines]
    if not any(keys):
        raise SettingError(f"The key file {file} holds no keys.")
    return keys


class Keys:
    """Checks keys. Only their digests are kept, and comparing them takes the same time whatever they are."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    @property
    def required(self) -> bool:
        """Whether requests need a key at all."""
        return bool(self._digests)

    def accept(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether these (lower-case) headers hold a valid key, as `Authorization: Bearer` or `x-api-key`."""
        if not self.required:
            return True
        scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        offered = [headers.get(b"x-api-key", b""), bearer.strip() if scheme.lower() == b"bearer" else b""]
        digests = [_digest(key) for key in offered if key]
        # No early exit: every offered key is compared with every valid one.
        return sum(hmac.compare_digest(given, right) for given in digests for right in self._digests) > 0


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()

"""Keys and values of committed tokens."""

from redraft.cache.base import KVCache

__all__ = ["KVCache"]

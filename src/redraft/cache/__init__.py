"""Keys and values of committed tokens."""

from redraft.cache.slab import KVCache

__all__ = ["KVCache"]

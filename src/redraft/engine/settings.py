"""What an engine may use: frozen, validated settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from redraft.checks import MAX_NUMBER, plain, require_at_most, require_type
from redraft.engine.policy import POLICIES, PolicyName
from redraft.errors import SettingError, one_of

KvCacheDtype = Literal["auto", "fp8"]
DTYPES: tuple[KvCacheDtype, ...] = get_args(KvCacheDtype)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSettings:
    """How much of the machine an engine takes and how it divides it. Raises `SettingError` naming what is wrong.

    slots           requests that are worked on at the same time
    memory_gb       for pages of keys and values; None for what the device can spare
    kv_cache_dtype  of keys and values in pages: "auto", the model's own, or "fp8", half of bfloat16's bytes
    policy          what goes into the next forward; see docs/scheduling.md
    prefix_cache    whether prompts share the pages they have in common
    max_waiting     requests that may queue for room; any more are refused. Several that come together, as the `n`
                    answers to one request do, are taken while nobody waits, up to this many more than `slots`
    prompt_tokens   the most prompt tokens in one forward, rounded up to pages of 256, so that canvases do not wait
                    long for a prompt; on a GPU there may be more while no canvas is waiting
    """

    slots: int = 16
    memory_gb: float | None = None
    kv_cache_dtype: KvCacheDtype = "auto"
    policy: PolicyName = "mixed"
    prefix_cache: bool = True
    max_waiting: int = 256
    prompt_tokens: int = 1024

    def __post_init__(self) -> None:
        if self.policy not in tuple(POLICIES):  # a value that cannot be hashed is wrong, too
            raise SettingError(f"policy is {self.policy!r}; it must be {one_of(POLICIES)}.", "policy")
        if self.kv_cache_dtype not in DTYPES:
            sentence = f"kv_cache_dtype is {self.kv_cache_dtype!r}; it must be {one_of(DTYPES)}."
            raise SettingError(sentence, "kv_cache_dtype")
        require_type("prefix_cache", self.prefix_cache, bool)
        if self.memory_gb is not None:
            object.__setattr__(self, "memory_gb", plain(self.memory_gb))
            require_type("memory_gb", self.memory_gb, int, float)
        for name in ("slots", "max_waiting", "prompt_tokens"):
            object.__setattr__(self, name, plain(getattr(self, name)))
            require_type(name, getattr(self, name), int)
            if getattr(self, name) < 1:
                raise SettingError(f"{name} is {getattr(self, name)}; it must be at least 1.", name)
        if self.memory_gb is not None and self.memory_gb <= 0:
            raise SettingError(f"memory_gb is {self.memory_gb}; it must be above 0.", "memory_gb")
        require_at_most(
            MAX_NUMBER,
            slots=self.slots,
            max_waiting=self.max_waiting,
            prompt_tokens=self.prompt_tokens,
            memory_gb=self.memory_gb,
        )

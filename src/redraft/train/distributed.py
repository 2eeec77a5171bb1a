"""The processes of one run: which one this is, and the few things that all of them do together.

`torchrun` starts one process per device and describes it in the environment; without it a run is a single process and
nothing here does anything. Every process packs its own batches; gradients, losses and decisions are shared.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch import distributed as dist

from redraft.errors import InputError, SettingError, TrainingError, why


@dataclass(frozen=True, kw_only=True)
class World:
    """Process `rank` of `size`, on device number `local_rank` of its host."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @classmethod
    def from_environment(cls) -> World:
        """What `torchrun` says in RANK, WORLD_SIZE and LOCAL_RANK; a single process if it says nothing.

        Raises `SettingError` if only some of them are set, or not to numbers of one of the processes.
        """
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        if "RANK" not in os.environ:
            return cls()
        try:
            rank, size, local_rank = (int(os.environ[name]) for name in names)
        except (KeyError, ValueError):
            raise SettingError(f"{', '.join(names)} must all be set to numbers, as torchrun does.") from None
        if not (0 <= rank < size and local_rank >= 0):
            raise SettingError(
                f"RANK is {rank} of WORLD_SIZE {size}, LOCAL_RANK {local_rank}; there is no such process."
            )
        return cls(rank=rank, size=size, local_rank=local_rank)

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def device(self, name: str) -> torch.device:
        """This process's device of kind `auto`, `cpu` or `cuda`. Raises `SettingError` for others or an absent GPU.

        Does not use the GPU yet, as `model.placement.resolve_device` does: workers are forked before that.
        """
        if name not in ("auto", "cpu", "cuda"):
            advice = ""
            if (number := name.removeprefix("cuda:")).isdecimal():
                advice = f" Set CUDA_VISIBLE_DEVICES={number} to train on that GPU."
            raise SettingError(f"device is {name!r}; it must be one of auto, cpu, cuda.{advice}")
        if name == "cuda" and not torch.cuda.is_available():
            raise SettingError("device is 'cuda', but no CUDA device is available.")
        if name == "cpu" or not torch.cuda.is_available():
            return torch.device("cpu")
        if self.local_rank >= torch.cuda.device_count():
            raise SettingError(
                f"Process {self.local_rank} of this host has no GPU; there are {torch.cuda.device_count()}."
            )
        return torch.device("cuda", self.local_rank)

    @contextmanager
    def joined(self, device: torch.device, *, always: bool = False) -> Iterator[None]:
        """Inside, the processes can communicate: over NCCL on GPUs, over gloo on CPUs.

        A single process needs no group; with `always` it gets one anyway. Raises `SettingError` if the environment does
        not say where the processes meet, and if they do not meet there.
        """
        if dist.is_initialized() or (self.size == 1 and not always):
            yield
            return
        if device.type == "cuda":
            torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        if self.size == 1:
            store = dist.HashStore()  # type: ignore[attr-defined]  # public, but not exported by name
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
        else:
            _meet(backend)
        try:
            yield
        finally:
            dist.destroy_process_group()

    def sum_(self, tensor: Tensor) -> Tensor:
        """Replace `tensor` by its sum over the processes, and return it."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def mean_(self, tensor: Tensor) -> Tensor:
        """Replace `tensor` by its mean over the processes, and return it."""
        return self.sum_(tensor).div_(self.size) if self.size > 1 else tensor

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process. Waits for all of them."""
        return bool(self._shared(float(flag), dist.ReduceOp.MAX)) if self.size > 1 else flag

    def largest(self, value: float) -> float:
        """The largest value of all processes. Waits for all of them."""
        return self._shared(value, dist.ReduceOp.MAX) if self.size > 1 else value

    def wait(self) -> None:
        """Continue once every process has arrived here."""
        self.any(False)

    @contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """Inside, some of the processes write `what`; every process waits at the end until all are done.

        Raises `TrainingError` in every process if one of them cannot write its files. Any other error stays as it is in
        its own process and is a `TrainingError` in the others.
        """
        failure: Exception | None = None
        try:
            yield
        except (OSError, SafetensorError, InputError) as error:
            failure = TrainingError(f"{what} could not be written: {why(error).rstrip('.')}.")
            failure.__cause__ = error
        except Exception as error:
            failure = error
        if self.any(failure is not None):
            raise failure or TrainingError(f"{what} could not be written: another process failed.")

    def _shared(self, value: float, operation: dist.ReduceOp.RedOpType) -> float:
        tensor = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(tensor, operation)
        return float(tensor)


def _meet(backend: str) -> None:
    """Join the other processes where MASTER_ADDR and MASTER_PORT say, as `torchrun` sets them."""
    try:
        dist.init_process_group(backend)
    except (ValueError, dist.DistError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise SettingError(f"The processes of this run cannot meet: {reason}.") from error

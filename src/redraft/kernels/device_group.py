"""The collectives of tensor parallelism: several GPUs run one forward, each on its own stream, with events between.

There are no processes, and no kernel waits for another: the events become edges of the graph when a forward is
captured, so one CUDA graph spans all GPUs. Without GPUs everything runs in order, and parts may share a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from redraft.kernels.streams import exclusive_streams, on_device

T = TypeVar("T")


class DeviceGroup:
    """The devices of a forward; a context within which they work, each on its current stream.

    On entry the others wait for the first device's queued work; on exit the first one waits for all. A group of one
    device does nothing but call.
    """

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self.devices = tuple(devices)
        self._several = len(self.devices) > 1
        self._alone = ExitStack()
        self._read: Sequence[object] = ()
        """What other devices may still be reading: the tensors gathered last. The next `all_gather` releases them."""

    def __enter__(self) -> Self:
        if self._several:
            self._alone.enter_context(exclusive_streams())
            self._wait(self.devices[1:], self.devices[:1])
        return self

    def __exit__(self, *error: object) -> None:
        with self._alone:
            if self._several:
                self._wait(self.devices[:1], self.devices[1:])
            self._read = ()

    def map(self, work: Callable[..., T], *columns: Iterable[Any]) -> list[T]:
        """`map`, with every result computed on its device; there are as many rows as devices."""
        results = []
        for device, *row in zip(self.devices, *columns, strict=True):
            with on_device(device):
                results.append(work(*row))
        return results

    def all_gather(self, *columns: Sequence[Tensor]) -> list[list[tuple[Tensor, ...]]]:
        """All-gather each column, which has one tensor of each device: every device gets every device's tensor.

        Returns for each column and device its tensors in the devices' order. Where GPUs can read each other's memory,
        nothing is copied.
        """
        if not self._several:
            return [[(part,) for part in parts] for parts in columns]
        self._wait(self.devices, self.devices)
        self._read = columns
        return [self.map(partial(_readable, parts), self.devices) for parts in columns]

    def broadcast(self, tensor: Tensor) -> list[Tensor]:
        """A tensor of the first device, on every device."""
        return [tensor, *(tensor.to(device, non_blocking=True) for device in self.devices[1:])]

    def broadcast_dict(self, tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """Tensors of 4 or 8 bytes a number, those of 8 first, on every device, by one copy to each."""
        sizes = [tensor.nbytes // 4 for tensor in tensors.values()]

        def parted(words: Tensor) -> dict[str, Tensor]:
            parts = zip(tensors.items(), words.split(sizes), strict=True)
            return {name: part.view(like.dtype).view(like.shape) for (name, like), part in parts}

        if not self._several:
            return [dict(tensors)]
        words = torch.cat([tensor.contiguous().view(torch.int32).flatten() for tensor in tensors.values()])
        return [dict(tensors), *map(parted, self.broadcast(words)[1:])]

    def gather(self, parts: Sequence[Tensor]) -> Tensor:
        """The devices' tensors, concatenated on the first device."""
        moved = [part.to(self.devices[0], non_blocking=True) for part in parts]
        return moved[0] if len(moved) == 1 else torch.cat(moved)

    def _wait(self, later: Sequence[torch.device], earlier: Sequence[torch.device]) -> None:
        """Let some devices wait for what others have launched so far."""
        if self.devices[0].type != "cuda":
            return
        events = [(device, torch.cuda.current_stream(device).record_event()) for device in earlier]
        for device in later:
            for other, event in events:
                if other != device:
                    torch.cuda.current_stream(device).wait_event(event)


@cache
def can_access_peer(device: torch.device, other: torch.device) -> bool:
    """Whether one GPU's kernels can read another's memory."""
    return device.type == other.type == "cuda" and torch.cuda.can_device_access_peer(device, other)


def enable_peer_access(devices: Sequence[torch.device]) -> None:
    """Let GPUs read each other's memory, where they can."""
    for device in devices:
        for other in devices:
            if other != device and can_access_peer(device, other):  # PyTorch allows it at the first copy
                torch.zeros(1, device=device).copy_(torch.zeros(1, device=other))


def _readable(parts: Sequence[Tensor], device: torch.device) -> tuple[Tensor, ...]:
    return tuple(
        part if part.device == device or can_access_peer(device, part.device) else part.to(device) for part in parts
    )

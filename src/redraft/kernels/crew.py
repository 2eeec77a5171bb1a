"""Several GPUs at work on one forward: each on its own stream, with events where one needs what another computed.

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


class Crew:
    """The devices of a forward; a context within which they work, each on its current stream.

    Inside, all of them come after what the first one has launched before; afterwards the first one comes after all.
    A crew of one device does nothing but call.
    """

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self.devices = tuple(devices)
        self._several = len(self.devices) > 1
        self._alone = ExitStack()
        self._read: Sequence[object] = ()
        """What other devices may still be reading: the parts that met last. The next meeting releases them."""

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

    def each(self, work: Callable[..., T], *columns: Iterable[Any]) -> list[T]:
        """`map`, with every result computed on its device; there are as many rows as devices."""
        results = []
        for device, *row in zip(self.devices, *columns, strict=True):
            with on_device(device):
                results.append(work(*row))
        return results

    def meet(self, *columns: Sequence[Tensor]) -> list[list[tuple[Tensor, ...]]]:
        """Columns with one tensor of each device -> for each column and device, all of them, in the same order.

        Where GPUs can read each other's memory, nothing is copied.
        """
        if not self._several:
            return [[(part,) for part in parts] for parts in columns]
        self._wait(self.devices, self.devices)
        self._read = columns
        return [self.each(partial(_readable, parts), self.devices) for parts in columns]

    def send(self, tensor: Tensor) -> list[Tensor]:
        """A tensor of the first device, on every device."""
        return [tensor, *(tensor.to(device, non_blocking=True) for device in self.devices[1:])]

    def send_together(self, tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """Tensors of 4 or 8 bytes a number, those of 8 first, on every device, by one copy to each."""
        sizes = [tensor.nbytes // 4 for tensor in tensors.values()]

        def parted(words: Tensor) -> dict[str, Tensor]:
            parts = zip(tensors.items(), words.split(sizes), strict=True)
            return {name: part.view(like.dtype).view(like.shape) for (name, like), part in parts}

        if not self._several:
            return [dict(tensors)]
        words = torch.cat([tensor.contiguous().view(torch.int32).flatten() for tensor in tensors.values()])
        return [dict(tensors), *map(parted, self.send(words)[1:])]

    def bring(self, parts: Sequence[Tensor]) -> Tensor:
        """The devices' parts one after the other, on the first device."""
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
def peers(device: torch.device, other: torch.device) -> bool:
    """Whether one GPU's kernels can read another's memory."""
    return device.type == other.type == "cuda" and torch.cuda.can_device_access_peer(device, other)


def allow_peers(devices: Sequence[torch.device]) -> None:
    """Let GPUs read each other's memory, where they can."""
    for device in devices:
        for other in devices:
            if other != device and peers(device, other):  # PyTorch allows it at the first copy
                torch.zeros(1, device=device).copy_(torch.zeros(1, device=other))


def _readable(parts: Sequence[Tensor], device: torch.device) -> tuple[Tensor, ...]:
    return tuple(part if part.device == device or peers(device, part.device) else part.to(device) for part in parts)

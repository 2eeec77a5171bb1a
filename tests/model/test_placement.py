"""`auto` picks what is fast: CUDA first; on a CPU bf16 only where the CPU multiplies it natively."""

from typing import Any

import pytest
import torch

from redraft.errors import SettingError
from redraft.model.placement import resolve_device, resolve_devices, resolve_dtype

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"avx2": True}, torch.float32),
        ({"avx512_f": True, "avx512_bf16": False}, torch.float32),
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": True}, torch.bfloat16),
    ],
)
def test_auto_dtype_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, Any], expected: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert resolve_dtype("auto", CPU, torch.bfloat16) == expected


@pytest.mark.parametrize(
    ("stored", "expected"),
    [(torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32), (torch.float16, torch.bfloat16)],
)
def test_auto_dtype_on_cuda_is_the_checkpoints_but_never_float16(stored: torch.dtype, expected: torch.dtype) -> None:
    assert resolve_dtype("auto", CUDA, stored) == expected


def test_a_named_dtype_wins() -> None:
    assert resolve_dtype("fp32", CUDA, torch.bfloat16) == torch.float32
    assert resolve_dtype(torch.bfloat16, CPU, torch.float32) == torch.bfloat16


@pytest.mark.parametrize("asked", ["auto", "cuda", torch.device("cuda")])
def test_auto_device_prefers_cuda_and_gives_its_number(
    monkeypatch: pytest.MonkeyPatch, asked: str | torch.device
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert resolve_device(asked) == torch.device("cuda", 1)
    assert resolve_device("cuda:0") == torch.device("cuda", 0)


def test_auto_device_without_cuda_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device().type == "cpu"


@pytest.mark.parametrize("device", ["cpu:9", "cpu:0", "mps", "gpu", 7, None])
def test_other_devices_are_refused(device: Any) -> None:
    with pytest.raises(SettingError, match=r"it must be one of auto, cpu, cuda, cuda:N\."):
        resolve_device(device)


def test_the_gpus_of_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ["H100", "H100", "H200"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(kinds))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: kinds[number])
    assert resolve_devices("cuda:1", 1) == (torch.device("cuda", 1),)
    assert (
        resolve_devices("auto", 2) == resolve_devices("cuda", 2) == (torch.device("cuda", 0), torch.device("cuda", 1))
    )
    for device, gpus, told in (
        ("cuda", 0, "gpus is 0; it must be at least 1"),
        ("auto", True, "gpus is True; it must be of type int"),
        ("cuda:1", 2, "gpus is 2 and device is 'cuda:1'; it must be 'cuda'"),
        ("cpu", 2, "gpus is 2 and device is 'cpu'; it must be 'cuda', on a machine with GPUs"),
        ("cuda", 3, "they must be of one kind, not H100 and H200"),
        ("cuda", 4, "gpus is 4; this machine has 3 CUDA devices"),
    ):
        with pytest.raises(SettingError, match=told):
            resolve_devices(device, gpus)

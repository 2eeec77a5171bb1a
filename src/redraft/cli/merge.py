"""`redraft merge`: fold a LoRA adapter into a model's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from redraft.cli.options import JsonFlag
from redraft.cli.output import print_json
from redraft.cli.stopping import stopped_by_sigterm


def merge(
    model: Annotated[str, typer.Argument(help="tiny, a folder, a GGUF file, or a hub id.", metavar="MODEL")],
    adapter: Annotated[Path, typer.Argument(help="A LoRA adapter's folder, in PEFT's format.", metavar="ADAPTER")],
    out: Annotated[Path, typer.Argument(help="The new model folder.", metavar="OUT")],
    json: JsonFlag = False,
) -> None:
    """Fold a LoRA adapter into a copy of a model.

    The copy has the Hugging Face layout. The sum is taken in fp32 and rounded once to the weights' own dtype. Quantized
    weights, also those that the adapter does not change, become that dtype; `redraft quantize` makes them small again.
    """
    import torch

    from redraft.model.adapters import adapter_for
    from redraft.model.adapters import merge as fold
    from redraft.model.checkpoint import Checkpoint
    from redraft.model.copying import check_finite, check_target
    from redraft.model.folders import resolve_folder
    from redraft.model.placement import DTYPES
    from redraft.model.weights import filled, save_model

    check_target(out)
    folder = resolve_folder(model)
    checkpoint = Checkpoint(folder)
    change, dtype = adapter_for(checkpoint, adapter), checkpoint.dtype
    network = filled(checkpoint, torch.device("cpu"), dtype if dtype in DTYPES.values() else torch.float32)
    fold(network, change)
    for name, weight in network.state_dict().items():
        check_finite(name, weight)
    with stopped_by_sigterm():
        save_model(network.to(dtype), out, like=folder)
    size, name = sum(file.stat().st_size for file in out.glob("*.safetensors")), str(dtype).removeprefix("torch.")
    if json:
        print_json({"model": str(out), "weights_changed": len(change.factors), "dtype": name, "bytes": size})
    else:
        print(f"{len(change.factors)} weights were changed; the model is in {out} ({size / 1e9:.3f} GB, {name}).")

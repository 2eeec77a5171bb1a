"""`redraft bench step`, `bench kernels` and `bench roofline`: one denoising step on a GPU against its floor."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from redraft.cli.bench_results import Results, command_line, number_table, print_results
from redraft.cli.options import JsonAlone, at_least, option, whole_numbers
from redraft.errors import SettingError

if TYPE_CHECKING:
    from redraft.bench.kernels import OperationResult
    from redraft.bench.roofline import Ceilings, Component
    from redraft.bench.step import StepResult
    from redraft.diffusion.constraint import Constraint
    from redraft.model.packed.transformer import PackedTransformer

Model = Annotated[str, option("--model", "26b-a4b, tiny, a folder, or a hub id.", "MODEL")]
Random = Annotated[bool, option("--random-weights", "Use random weights; MODEL may be a shape.")]
Quantization = Annotated[str | None, option("--quantization", "fp8 or int4.", "FORMAT", default="bf16")]
VocabularyDtype = Annotated[
    str, option("--vocabulary-dtype", "model, fp8, or auto (fp8 where weights are quantized).", "DTYPE")
]
Batch = Annotated[str, option("--batch", "Canvases at a time.", "N,N,...")]
Context = Annotated[str, option("--context", "Tokens before every canvas.", "N,N,...")]
Device = Annotated[str, option("--device", "auto or cuda:N.", "DEVICE")]
Certain = Annotated[
    bool, option("--certain", "Make the model certain, so that few tokens explain a row and soft embeddings gather.")
]


def step(
    model: Model = "26b-a4b",
    random_weights: Random = False,
    dtype: Annotated[str, option("--dtype", "Only bfloat16 is supported here.", "DTYPE")] = "bfloat16",
    quantization: Quantization = None,
    group: Annotated[
        int | None, option("--group", "Inputs that share a scale in int4, 32 or 64.", "INPUTS", default="64")
    ] = None,
    vocabulary_dtype: VocabularyDtype = "auto",
    batch: Batch = "1,4,16",
    context: Context = "1024",
    steps: Annotated[int, option("--steps", "Denoising steps of a canvas.", "N")] = 16,
    repeats: Annotated[int, option("--repeats", "How often a canvas is measured.", "N")] = 5,
    kv_cache_dtype: Annotated[str, option("--kv-cache-dtype", "auto (bfloat16) or fp8.", "DTYPE")] = "auto",
    certain: Certain = False,
    tokenizer: Annotated[
        Path | None, option("--tokenizer", "A tokenizer.json; also measures steps that obey constraints.", "FILE")
    ] = None,
    device: Device = "auto",
    gpus: Annotated[int, option("--gpus", "CUDA devices that share the model's layers.", "N")] = 1,
    results: Results = None,
    json: JsonAlone = False,
) -> None:
    """Milliseconds of one denoising step, sampler included, its floor, and where the time goes. Needs a CUDA GPU.

    Prints tables and a line of JSON.
    """
    from redraft.bench.gpu import free_cached_memory, measure_ceilings, require_gpu
    from redraft.bench.step import cases, measure_step, record
    from redraft.engine.settings import EngineSettings
    from redraft.outputs import make_folder

    target = require_gpu(device)
    make_folder(results)
    if dtype not in ("bfloat16", "bf16"):
        raise SettingError(f"dtype is {dtype!r}; it must be bfloat16, in which the kernels compute.")
    at_least(1, steps=steps, repeats=repeats)
    if certain and not random_weights:
        raise SettingError("--certain changes a random model's weights; give --random-weights too.")
    if group is not None and not (random_weights and quantization == "int4"):
        raise SettingError("--group is of random weights in int4; give --random-weights --quantization int4 too.")
    if group not in (None, 32, 64):
        raise SettingError(f"group is {group}; it must be 32 or 64.", "group")
    batches, contexts = whole_numbers("batch", batch), whole_numbers("context", context)
    EngineSettings(kv_cache_dtype=kv_cache_dtype)  # type: ignore[arg-type]  # it checks the name
    chosen = cases(batches, contexts, steps=steps, repeats=repeats, kv_cache_dtype=kv_cache_dtype, certain=certain)
    command, records = command_line(), []
    constraints = {} if tokenizer is None else _constraints(tokenizer, model)
    network = _packed_model(model, random_weights, device, quantization, group, vocabulary_dtype, gpus)
    ceilings = measure_ceilings(target)
    free_cached_memory()
    for case in chosen:
        result = measure_step(network, case, ceilings, constraints)
        if not json:
            _print(model, result)
        records.append(record(result, ceilings, target, command) | {"model": model, "random_weights": random_weights})
    print_results("step", records, results)


def roofline(
    model: Model = "26b-a4b",
    quantization: Quantization = None,
    batch: Batch = "1,4,16",
    context: Context = "1024",
    measured: Annotated[bool, option("--measured", "Use this GPU's measured ceilings.")] = False,
    results: Results = None,
    json: JsonAlone = False,
) -> None:
    """The floor of a step by component, from the shape alone, at the ceilings of an H200 or of this GPU."""
    from redraft.bench.gpu import measure_ceilings, require_gpu
    from redraft.bench.roofline import H200, floor_ms, step_components
    from redraft.model.folders import shape_of
    from redraft.model.packed.requirements import check_device
    from redraft.model.placement import lacks_fp8
    from redraft.outputs import make_folder

    make_folder(results)
    ceilings, fp8_products = H200, True
    if measured:
        check_device(gpu := require_gpu(), quantization)
        ceilings, fp8_products = measure_ceilings(gpu), not lacks_fp8(gpu)
    config, records = shape_of(model), []
    for tokens in whole_numbers("context", context):
        for canvases in whole_numbers("batch", batch):
            parts = step_components(
                config, quantization=quantization, batch=canvases, context=tokens,
                vocabulary_bytes=1 if quantization is not None and fp8_products else 2, fp8_products=fp8_products,
            )  # fmt: skip
            if not json:
                _print_floor(canvases, tokens, quantization, parts, ceilings)
            records.append({
                "bench": "roofline", "model": model, "batch": canvases, "context": tokens,
                "quantization": quantization, "ceilings": ceilings.to_dict(),
                "floor_ms": round(floor_ms(parts, ceilings), 3),
                "components": [
                    {"name": part.name, "bytes": part.bytes, "flops": part.flops,
                     "floor_ms": round(part.floor_ms(ceilings), 4)}
                    for part in parts
                ],
            })  # fmt: skip
    print_results("roofline", records, results)


def kernels(
    model: Model = "26b-a4b",
    quantization: Quantization = None,
    batch: Batch = "1",
    context: Context = "1024",
    only: Annotated[str | None, option("--only", "Operations to measure.", "NAME,NAME", default="all")] = None,
    device: Device = "auto",
    results: Results = None,
    json: JsonAlone = False,
) -> None:
    """Every operation of a step at the model's shape: its time, and its error against fp32 compared with eager bf16's.

    Takes one layer of each kind with random weights. Needs a CUDA GPU.
    """
    from redraft.bench.gpu import require_gpu
    from redraft.bench.kernels import measure_kernels
    from redraft.bench.machine import device_facts, versions
    from redraft.model.folders import shape_of
    from redraft.model.packed.requirements import check_device
    from redraft.outputs import make_folder

    target = require_gpu(device)
    check_device(target, quantization)
    make_folder(results)
    chosen, records = only.split(",") if only else [], []
    for tokens, canvases in product(whole_numbers("context", context), whole_numbers("batch", batch)):
        found = measure_kernels(
            shape_of(model), target, quantization=quantization, batch=canvases, context=tokens, only=chosen
        )
        if not json:
            _print_kernels(found)
        records.append({
            "bench": "kernels", "model": model, "batch": canvases, "context": tokens, "quantization": quantization,
            "operations": [one.to_dict() for one in found],
        } | device_facts(target) | {"versions": versions()})  # fmt: skip
    print_results("kernels", records, results)


def _constraints(tokenizer: Path, model: str) -> dict[str, Constraint]:
    """The constraints with which the cost of a constrained step is measured, spelled in the model's vocabulary."""
    from redraft.bench.constraints import MEASURED
    from redraft.bench.random_weights import tokenizer_for
    from redraft.constraints import build

    words = tokenizer_for(tokenizer, model)
    built = {name: build(words, **wanted) for name, wanted in MEASURED.items()}
    return {name: constraint for name, constraint in built.items() if constraint is not None}


def _packed_model(
    model: str, random: bool, device: str, quantization: str | None, group: int | None, vocabulary_dtype: str, gpus: int
) -> PackedTransformer:
    """The model to measure, on a device or several GPUs: a shape filled with random weights, or a folder's own."""
    from redraft.bench.random_weights import random_model
    from redraft.model.checkpoint import Checkpoint
    from redraft.model.folders import resolve_folder
    from redraft.model.inference import load_packed
    from redraft.model.presets import PRESETS
    from redraft.model.weight_settings import WeightSettings

    if not random and model in PRESETS and model != "tiny":
        raise SettingError(f"{model} is a shape without weights; add --random-weights or name a folder.")
    settings = WeightSettings(  # it checks the names
        device=device,
        gpus=gpus,
        dtype="bfloat16",
        quantization=quantization,  # type: ignore[arg-type]
        vocabulary_dtype=vocabulary_dtype,  # type: ignore[arg-type]
    )
    return random_model(model, settings, group) if random else load_packed(Checkpoint(resolve_folder(model)), settings)


def _print(model: str, result: StepResult) -> None:
    from rich.console import Console

    from redraft.bench.results import canvases

    batch = canvases(result.case.batch)
    console, found = Console(highlight=False), result.to_dict()
    table = number_table("component", "ms", "floor ms", "% of floor")
    for part in result.parts:
        share = f"{100 * part.floor_ms / part.ms:.0f}" if part.floor_ms and part.ms else ""
        table.add_row(part.name, f"{part.ms:.3f}", f"{part.floor_ms:.3f}" if part.floor_ms else "", share)
    spread, graph = found["ms_per_forward_spread"], found["graph_ms"]
    fused = found["tokens_per_second_fused_commit"]
    clock = ""
    if result.clock:
        clock = "\n{clock_mhz:.0f} MHz at {power_watts:.0f} of {power_limit_watts:.0f} W".format_map(result.clock)
    console.print(
        f"\n{model} {result.quantization or 'bf16'}, {batch} after {result.case.context} tokens: "
        f"{result.ms:.2f} ms per forward ({spread['min']:.2f} to {spread['max']:.2f}; graph {graph['median']:.2f}), "
        f"floor {result.floor_ms:.2f} ms ({found['percent_of_floor']:.0f} %)\n"
        f"{found['distinct_experts']} experts touched per layer; {found['tokens_per_second']:.0f} tokens/s at "
        f"{result.case.steps} steps + commit, {f'{fused:.0f} with the commit fused, ' if fused else ''}"
        f"{found['tokens_per_second_published']:.0f} at 19.7 tokens per forward; {found['memory_gb']} GB"
        f"{clock}",
        markup=False,
    )
    console.print(table)
    for name, times in found["constrained_ms"].items():
        console.print(f"{name:16} {times['median']:.2f} ms ({times['min']:.2f} to {times['max']:.2f})", markup=False)


def _print_floor(
    batch: int, context: int, quantization: str | None, parts: tuple[Component, ...], ceilings: Ceilings
) -> None:
    from rich.console import Console

    from redraft.bench.results import canvases
    from redraft.bench.roofline import floor_ms

    table = number_table("component", "GB", "TFLOP", "bytes ms", "products ms", "floor ms")
    for part in parts:
        times = part.bytes_ms(ceilings), part.flops_ms(ceilings), part.floor_ms(ceilings)
        table.add_row(
            part.name, f"{part.bytes / 1e9:.2f}", f"{part.flops / 1e12:.3f}", *(f"{time:.3f}" for time in times)
        )
    console = Console(highlight=False)
    title = f"\n{quantization or 'bf16'}, {canvases(batch)} after {context} tokens"
    console.print(f"{title}: {floor_ms(parts, ceilings):.2f} ms", markup=False)
    console.print(table)


def _print_kernels(found: list[OperationResult]) -> None:
    from rich.console import Console

    table = number_table("operation", "layer", "us", "error", "eager bf16's", "ratio")
    for one in found:
        numbers = (
            (f"{one.error:.2e}", f"{one.eager_error:.2e}", f"{one.ratio:.2f}") if one.error is not None else ("",) * 3
        )
        table.add_row(one.name, one.layer, f"{one.microseconds:.1f}", *numbers)
    Console(highlight=False).print(table)

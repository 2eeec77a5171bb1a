"""Milliseconds of one denoising step in Transformers, doing the work that `redraft bench step` measures.

    python benchmarks/transformers_step.py --batch 1,4 --results benchmarks/results     # ran on an H200

Random weights N(0, 0.02), random prompts, the published sampler with thresholds that are never reached, so that no
canvas stops early. A step is the difference between canvases of 2n and of n steps, divided by n: prompts and commits
cancel out. The static cache makes Transformers compile and capture its passes; `--cache dynamic` runs them eagerly.
"""

import argparse
import json
import shlex
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion

from redraft.bench.machine import device_facts, versions
from redraft.bench.quantile import spread
from redraft.bench.results import write_results
from redraft.model.presets import PRESETS, preset

REPETITIONS = 5


def random_model(shape: str, experts: str, device: torch.device) -> Any:
    """The text model of a shape in bf16. Its vision tower, which no step runs, is the smallest that can be built."""
    raw = preset(shape).to_dict() | {"vision_config": preset("nano").to_dict()["vision_config"]}
    config = DiffusionGemmaConfig.from_dict(raw)
    config.text_config._experts_implementation = experts
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with device:
        model = DiffusionGemmaForBlockDiffusion(config).eval()
    torch.set_default_dtype(torch.float32)
    return model


def canvas(model: Any, prompts: torch.Tensor, cache: str, steps: int) -> Callable[[], float]:
    """A function that writes one canvas of exactly `steps` steps for every prompt and returns its seconds."""
    forwards = 0

    def count(*_: object) -> None:
        nonlocal forwards
        forwards += 1

    settings: dict[str, Any] = {
        "max_new_tokens": model.config.canvas_length,
        "max_denoising_steps": steps,
        "stability_threshold": 1,
        "confidence_threshold": 1e-9,
        "pad_token_id": 0,
    }
    if cache == "static":
        settings["cache_implementation"] = "static"

    def seconds() -> float:
        nonlocal forwards
        forwards = 0
        hook = model.model.decoder.register_forward_hook(count) if cache == "dynamic" else None
        _wait(prompts.device)
        start = time.perf_counter()
        model.generate(prompts, **settings)
        _wait(prompts.device)
        elapsed = time.perf_counter() - start
        if hook is not None:  # compiled passes do not call hooks
            hook.remove()
            assert forwards == steps, f"{forwards} steps instead of {steps}"
        return elapsed

    return seconds


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(model: Any, *, batch: int, context: int, steps: int, cache: str) -> dict[str, Any]:
    """Milliseconds per step of `batch` canvases after `context` tokens: smallest, median and largest difference."""
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(model.config.text_config.vocab_size, (batch, context), generator=generator).to(device)
    short, long = (canvas(model, prompts, cache, count) for count in (steps, 2 * steps))
    for run in (short, long, short, long):  # compiles and captures
        run()
    times = [1e3 * (long() - short()) / steps for _ in range(REPETITIONS)]
    return {
        "engine": "transformers",
        "ms_per_step": round(statistics.median(times), 3),
        "ms_per_step_spread": spread(times),
        "batch": batch,
        "context": context,
        "steps": steps,
        "cache": cache,
        "quantization": None,
        "dtype": "bfloat16",
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure, print each result as it comes, and write a dated file where `--results` says so."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=PRESETS, default="26b-a4b")
    parser.add_argument("--batch", default="1,4", help="canvases at a time, as N,N,...")
    parser.add_argument("--context", type=int, default=1024, help="tokens before every canvas")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--cache", choices=("static", "dynamic"), default="static")
    parser.add_argument("--experts", default="grouped_mm", help="Transformers' implementation of experts")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--results", type=Path, help="a folder for the dated file")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    model = random_model(options.shape, options.experts, device)
    records = []
    for batch in map(int, options.batch.split(",")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = measure(model, batch=batch, context=options.context, steps=options.steps, cache=options.cache)
        facts = {"shape": options.shape, "experts": options.experts, **device_facts(device), "versions": versions()}
        command = shlex.join(["python", "benchmarks/transformers_step.py", *(arguments or sys.argv[1:])])
        records.append(result | facts | {"command": command})
        print(json.dumps(records[-1]), flush=True)
    if options.results is not None:
        write_results("transformers", records, options.results)


if __name__ == "__main__":
    main()

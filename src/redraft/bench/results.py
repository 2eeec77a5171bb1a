"""Dated result files: the records of a run as JSON, and a chart of components against their floors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from redraft.outputs import make_folder


def write_results(name: str, records: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Write `<name>_<device>-<format>_YYYY-MM-DD.json` and, given components and matplotlib, a chart next to it.

    A file of the same day and name is not overwritten: the new one gets a number.
    """
    make_folder(folder)
    device = re.sub(r"[^a-z0-9]+", "-", str(records[0].get("device", "")).lower()).strip("-")
    formats = sorted({record["quantization"] or "bf16" for record in records if "quantization" in record})
    stem = "_".join((name, "-".join(part for part in (device, *formats) if part), date.today().isoformat()))
    file = _unused(folder, stem)
    file.write_text(json.dumps({"results": list(records)}, indent=1) + "\n", encoding="utf-8")
    charted = [record for record in records if record.get("components")]
    chart = _chart(charted, file.with_suffix(".png")) if charted else None
    return [file] if chart is None else [file, chart]


def _unused(folder: Path, stem: str) -> Path:
    numbered = (folder / (f"{stem}.json" if number == 1 else f"{stem}-{number}.json") for number in range(1, 10_000))
    return next(file for file in numbered if not file.exists())


def _chart(records: Sequence[Mapping[str, Any]], file: Path) -> Path | None:
    """One row of bars per record: every component's floor inside its time."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(9, 0.6 + 2.6 * len(records)), layout="constrained")
    plots = figure.subplots(len(records), squeeze=False)[:, 0]
    for plot, record in zip(plots, records, strict=True):
        parts = record["components"]
        names = [part["name"] for part in parts]
        if any("ms" in part for part in parts):
            plot.barh(names, [part["ms"] for part in parts], color="#9db7d5", label="measured")
        plot.barh(names, [part["floor_ms"] or 0 for part in parts], height=0.4, color="#24507f", label="floor")
        plot.invert_yaxis()
        plot.set_title(_title(record), fontsize=9, loc="left")
        plot.tick_params(labelsize=8)
    plots[0].legend(fontsize=8, loc="lower right")
    plots[-1].set_xlabel("ms per step", fontsize=8)
    figure.savefig(file, dpi=120)
    return file


def canvases(count: int) -> str:
    """In words: "1 canvas", "4 canvases"."""
    return f"{count} canvas{'' if count == 1 else 'es'}"


def _title(record: Mapping[str, Any]) -> str:
    whole = f"{record['ms_per_forward']} ms, " if "ms_per_forward" in record else ""
    return (
        f"{record.get('quantization') or 'bf16'}, {canvases(record['batch'])} after {record['context']} tokens: "
        f"{whole}floor {record['floor_ms']} ms"
    )

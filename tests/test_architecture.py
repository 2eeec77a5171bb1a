"""The shape of the package: imports point one way, public names are what they say, importing is light."""

import ast
import dataclasses
import importlib
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import redraft
from redraft.cli.constraints import ConstraintOptions
from redraft.cli.options import SamplingOptions
from redraft.constraints.build import CALLER_KEYWORDS, NAMES, ConstraintRequest
from redraft.deciding import decide
from redraft.editing.api import EDIT_SETTINGS
from redraft.filling.api import FILL_SETTINGS
from redraft.filling.obeying import CONSTRAINTS
from redraft.keywords import AnswerKeywords, DecideKeywords, EditKeywords, FillKeywords
from redraft.serve.shapes.common import Constraints, Settings
from redraft.settings import GENERATION_PRESETS, SETTINGS, GenerationSettings

PACKAGE = Path(redraft.__file__).parent
LAYERS = [
    "errors",
    "outputs",
    "checks",
    "interruption",
    "config",
    "settings",
    "text",
    "kernels",
    "quant",
    "cache",
    "model",
    "diffusion",
    "constraints",
    "engine",
    "filling",
    "editing",
    "deciding",
    "scoring",
    "keywords",
    "llm",
    "loading",
    "serve",
]
ABOVE = {
    "reference": {"config", "diffusion", "model", "settings"},
    "train": {"config", "diffusion", "errors", "eval", "interruption", "kernels", "model", "outputs", "quant", "text"},
    "eval": {"config", "deciding", "diffusion", "errors", "kernels", "llm", "loading", "model", "quant", "text"},
    "bench": {
        "cache",
        "config",
        "constraints",
        "diffusion",
        "engine",
        "errors",
        "kernels",
        "llm",
        "model",
        "outputs",
        "quant",
        "settings",
        "text",
    },
}
"""Who may be imported by the parts that stand beside the chain of `LAYERS`; `cli` may import everything."""


def imports_of(file: Path) -> set[str]:
    """Top-level parts of redraft that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "redraft":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("redraft.")}
    return found


def part_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_imports_point_one_way() -> None:
    upward = []
    for file in PACKAGE.rglob("*.py"):
        part = part_of(file)
        if part in ("__init__", "cli") or file.name == "__main__.py":
            continue
        allowed = set(LAYERS[: LAYERS.index(part) + 1]) if part in LAYERS else ABOVE[part] | {part}
        upward += [f"{file.relative_to(PACKAGE)} imports {name}" for name in imports_of(file) - allowed]
    assert not upward


def test_public_names_exist() -> None:
    assert {"load", "LLM", "AsyncEngine", "EngineSettings", "load_model", "save_model"} <= set(redraft.__all__)
    assert all(hasattr(redraft, name) for name in redraft.__all__)


def test_what_a_type_checker_sees_is_what_is_exported_and_nothing_else() -> None:
    """The lazy `__getattr__` is hidden from it, so that it finds a name that does not exist."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    seen = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imported = {alias.name for node in seen.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported == set(redraft.__all__)
    assert not [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"]
    for node in seen.body:
        assert isinstance(node, ast.ImportFrom)
        home = importlib.import_module(str(node.module))
        assert all(getattr(redraft, alias.name) is getattr(home, alias.name) for alias in node.names)


def test_types_of_the_public_methods_results_are_exported() -> None:
    names = (
        "generate",
        "generate_batch",
        "stream",
        "chat",
        "fill",
        "edit",
        "next_edit",
        "decide",
        "score",
        "with_adapter",
    )
    found = set().union(*(classes_of(get_type_hints(getattr(redraft.LLM, name))["return"]) for name in names))
    assert (
        {"AnswerStats", "TokenConfidence", "ToolCall", "Filling", "Reading", "TokenScore"}
        <= found
        <= set(redraft.__all__)
    )


def classes_of(hint: Any) -> set[str]:
    """The classes of ours that a type is made of, and those that their fields and properties are made of."""
    if args := get_args(hint):
        return set().union(*map(classes_of, args))
    if not isinstance(hint, type) or not hint.__module__.startswith("redraft"):
        return set()
    fields = get_type_hints(hint, localns=vars(redraft)) if dataclasses.is_dataclass(hint) else {}
    return {hint.__name__}.union(*map(classes_of, fields.values()))


def test_the_map_of_training_names_every_module() -> None:
    folder = PACKAGE / "train"
    modules = {path.stem for path in (*folder.glob("*.py"), *folder.glob("*/")) if not path.stem.startswith("_")}
    rows = (importlib.import_module("redraft.train").__doc__ or "").split("\n\n", 2)[2].strip().splitlines()
    named = [name for row in rows for name in row.partition("   ")[0].rstrip(",").split(", ")]
    assert sorted(named) == sorted(modules)


def test_no_file_is_long_without_reason() -> None:
    long = [str(f.relative_to(PACKAGE)) for f in PACKAGE.rglob("*.py") if len(f.read_text().splitlines()) > 500]
    assert not long


def test_importing_adds_little_to_torch_and_touches_no_gpu() -> None:
    heavy = {"transformers", "huggingface_hub", "matplotlib", "fastapi", "uvicorn", "triton", "datasets"}
    script = (
        "import sys, torch; known = set(sys.modules); import redraft; assert not torch.cuda.is_initialized();"
        f"added = set(sys.modules) - known; assert not added & {heavy}, added & {heavy}"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("before", "environment", "expected"),
    [
        ("", {}, ["5000", "64", "64"]),
        ("import torch; ", {}, [None, None, None]),
        ("", {"OMP_WAIT_POLICY": "active"}, [None, "64", "64"]),
        ("", {"GOMP_SPINCOUNT": "7", "LRU_CACHE_CAPACITY": "8"}, ["7", "64", "8"]),
    ],
)
def test_torchs_libraries_wait_briefly_and_keep_little_unless_told_otherwise(
    before: str, environment: dict[str, str], expected: list[str | None]
) -> None:
    names = ["GOMP_SPINCOUNT", "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"]
    kept = {name: value for name, value in os.environ.items() if name not in (*names, "OMP_WAIT_POLICY")}
    code = before + f"import redraft, os, json; print(json.dumps([os.environ.get(name) for name in {names}]))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=kept | environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == expected


def test_every_door_knows_the_settings_by_the_same_names() -> None:
    """A server's protocols have their own fields for some, and the command line offers only the common ones."""
    known = {field.name for field in dataclasses.fields(GenerationSettings)} | {"preset"}
    assert set(Settings.model_fields) - {"timeout"} == known - {"max_tokens", "stop", "seed", "logprobs"}
    assert {field.name for field in dataclasses.fields(SamplingOptions)} <= known


def test_type_checkers_know_the_keywords_and_their_types() -> None:
    known = get_type_hints(AnswerKeywords)
    assert set(known) == {*SETTINGS, *CALLER_KEYWORDS}
    assert set(get_type_hints(FillKeywords)) == set(FILL_SETTINGS)
    assert set(get_type_hints(EditKeywords)) == set(EDIT_SETTINGS)
    parameters = inspect.signature(decide).parameters.values()
    assert set(get_type_hints(DecideKeywords)) == {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    assert set(get_args(get_args(known["preset"])[0])) == set(GENERATION_PRESETS)
    own = get_type_hints(GenerationSettings) | get_type_hints(ConstraintRequest)
    wider = {"preset", "stop", "logit_bias", "json_schema", "tool_choice"}
    assert [name for name, hint in known.items() if name not in wider and hint != own[name] | None] == []


def test_every_door_knows_the_keywords_by_the_same_names() -> None:
    offered = {field.name for field in dataclasses.fields(ConstraintOptions)} | set(CONSTRAINTS)
    served = set(Constraints.model_fields) - {"structured_outputs"}  # vLLM's way to write some of the others
    assert offered <= set(NAMES)
    assert served == set(CALLER_KEYWORDS) - {"tools", "tool_choice", "parallel_tool_calls", "thinking"}

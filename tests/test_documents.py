"""The README and the documents: links lead somewhere, commands are ones that exist, speeds are those of the files, and
every file of results is explained.
"""

import asyncio
import json
import re
import shlex
import threading
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import typer.main

import redraft
from redraft.cli.main import app
from redraft.settings import GENERATION_PRESETS, GenerationSettings

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/README.md"
DOCUMENTS = [ROOT / "README.md", RESULTS, *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(file.relative_to(ROOT)) for file in DOCUMENTS]


@pytest.mark.parametrize("name", NAMES)
def test_links_and_pictures_are_there(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    missing = [t for t in targets if t and "://" not in t and not ((ROOT / name).parent / t).exists()]
    assert not missing


@pytest.mark.parametrize("name", NAMES)
def test_anchors_are_headings(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for file, anchor in re.findall(r"\]\(([^)\s#:]*)#([^)\s]+)\)", text):
        target = (ROOT / name).parent / file if file else ROOT / name
        assert anchor in anchors(target.read_text(encoding="utf-8")), f"{file}#{anchor}"


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_table_have_as_many_cells_as_its_head(name: str) -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = table.splitlines()
        assert [row for row in rows if cells(row) != cells(rows[0])] == []


def cells(row: str) -> int:
    """How many cells GitHub sees in a row: a bar parts two in code, too, unless a backslash stands before it."""
    return len(re.findall(r"(?<!\\)\|", row)) - 1


def anchors(text: str) -> set[str]:
    """What GitHub makes of the text's headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(text: str) -> Iterator[list[str]]:
    """The words of every `redraft` command in the text's code, but for ones with alternatives (a|b) and [options]."""
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines()] + re.findall(r"`(redraft [^`]*)`", text)
    for line in lines:
        for part in re.split(r"&&|\|\s", line):
            words = _words(part)
            if words[:1] == ["redraft"] and len(words) > 1 and not any(char in word for word in words for char in "[|"):
                yield words[1:]


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # an apostrophe in a sentence
        return []


@pytest.mark.parametrize("name", NAMES)
def test_commands_and_their_options_exist(name: str) -> None:
    for words in commands((ROOT / name).read_text(encoding="utf-8")):
        command, rest = typer.main.get_command(app), words
        while rest and (found := getattr(command, "commands", {}).get(rest[0])) is not None:
            command, rest = found, rest[1:]
        assert command.name is not None or rest[0].startswith("-"), words
        known = {option for parameter in command.params for option in parameter.opts} | {"--help", "-h"}
        unknown = [word for word in rest if word.startswith("--") and word.split("=")[0] not in known]
        assert not unknown, words


def test_the_commands_of_the_readme_are_found() -> None:
    found = [words[0] for words in commands((ROOT / "README.md").read_text(encoding="utf-8"))]
    assert {"generate", "chat", "fill", "edit", "decide", "replay", "serve", "bench"} <= set(found)


def test_the_examples_that_the_readme_names_are_there() -> None:
    words = [word for words in commands((ROOT / "README.md").read_text(encoding="utf-8")) for word in words]
    named = [word for word in words if word.startswith("examples/")]
    assert named
    assert all((ROOT / word).is_file() for word in named)


def test_the_guide_to_new_things_names_what_is_there() -> None:
    """Its files, in full or by the ends of their paths, and its names, which some of these files have."""
    section = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("\n## ")
    (guide,) = (part for part in section if part.startswith("Where new things go"))
    files = {path: path.as_posix() for folder in ("src", "tests", "docs") for path in (ROOT / folder).rglob("*.*")}
    sources = "\n".join(path.read_text(encoding="utf-8") for path in files if path.suffix in (".py", ".c"))
    for word in re.findall(r"`([^`]+)`", guide):
        if re.fullmatch(r"[\w/]+\.(py|md)", word):
            assert any(name.endswith(f"/{word}") for name in files.values()), word
        elif re.fullmatch(r"[\w/]+/", word):
            assert any(f"/{word}" in name for name in files.values()), word
        elif re.fullmatch(r"\w+", word) and word != "redraft_NAME":
            assert re.search(rf"\b{word}\b", sources), word


def test_switches_that_a_preset_turns_on_are_said_to_be() -> None:
    usage = (ROOT / "docs/usage.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| off; on in (.*?) \|", usage, re.MULTILINE)
    said = {name: set(re.findall(r"`(\w+)`", presets)) for name, presets in rows}
    base = GenerationSettings()
    on = {name: {preset for preset, of in GENERATION_PRESETS.items() if of(base).get(name)} for name in said}
    assert set(said) == {"forbid_empty", "stop_at_eos", "fit_canvas"}
    assert said == on


@pytest.mark.parametrize("name", ["constraints", "filling"])
def test_the_first_lines_can_be_typed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And give a text, calls, a diff, an edit or probabilities: nothing in them does nothing."""
    monkeypatch.chdir(ROOT)
    lines = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    for line in lines.splitlines():
        code = line.partition("   #")[0]
        if code.startswith("llm."):
            result = eval(code, names)
            assert getattr(result, "text", result), code
        else:
            exec(code, names)


def test_the_lines_about_scores_work(capsys: pytest.CaptureFixture[str]) -> None:
    """They print what the text before them says."""
    usage = (ROOT / "docs/usage.md").read_text(encoding="utf-8")
    (lines,) = [block for block in re.findall(r"```python\n(.*?)```", usage, re.DOTALL) if "llm.score" in block]
    exec(lines, {"llm": redraft.load("tiny", device="cpu", dtype="float32")})
    first, *pieces = capsys.readouterr().out.splitlines()
    assert first == "True"
    assert "".join(json.loads(line.rpartition(" ")[0].replace("'", '"')) for line in pieces) == (
        "The capital of France is Paris."
    )


def test_the_lines_about_asyncio_work(capsys: pytest.CaptureFixture[str]) -> None:
    """And a task that is cancelled ends its request, as they say."""
    usage = (ROOT / "docs/usage.md").read_text(encoding="utf-8")
    (lines,) = [block for block in re.findall(r"```python\n(.*?)```", usage, re.DOTALL) if "AsyncEngine" in block]
    llm = redraft.load("tiny", device="cpu", dtype="float32")
    names: dict[str, Any] = {"redraft": redraft, "llm": llm}
    exec(lines, names)
    answers, filling = capsys.readouterr().out.splitlines()
    asked = ("What do cows eat?", "Why is the sea salty?")
    assert answers == str([llm.generate(text, max_tokens=64).text for text in asked])
    assert filling == llm.fill("def half(x):\n    return ", " / 2\n").text

    async def cancelled() -> None:
        inner, begun, left = llm.new_engine(), threading.Event(), threading.Event()
        forward = inner.runner.run

        def held(*given: Any) -> Any:
            begun.set()
            left.wait(60)
            return forward(*given)

        inner.runner.run = held
        engine = names["AsyncEngine"](inner)
        task = asyncio.create_task(names["answer"](engine, "Hello!"))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        left.set()
        await engine.close()
        assert engine.stats().counters.ended == {"cancelled": 1}

    asyncio.run(cancelled())


def test_speeds_of_the_readme_are_those_of_the_files() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[Redraft ([^]]+)\]\((\S+\.json)\) \(floor\) \|(.*)$", readme, re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\| \[?Redraft ", readme, re.MULTILINE)) >= 3
    formats = {"bf16": None, "FP8": "fp8", "INT4 experts": "int4"}
    for label, file, line in rows:
        *cells, weights = [cell.strip().replace("*", "") for cell in line.strip(" |").split("|")]
        results = json.loads((ROOT / file).read_text(encoding="utf-8"))["results"]
        results = [record for record in results if record["batch"] in (1, 4, 16)]
        measured = {(record["quantization"], record.get("certain", False)) for record in results}
        assert measured == {(formats[label.split(",")[0]], label.endswith(", sharp distributions"))}
        assert [cell for cell in cells if cell] == [f"{r['ms_per_forward']:.1f} ({r['floor_ms']:.1f})" for r in results]
        assert weights == f"{results[0]['memory']['weights']:.1f} GB"


def result_patterns() -> list[str]:
    """The names and glob patterns in the first cells of the tables of benchmarks/README.md."""
    rows = re.findall(r"^\| (`.+?`) \|", RESULTS.read_text(encoding="utf-8"), re.MULTILINE)
    return [pattern for row in rows for pattern in re.findall(r"`([^`]+)`", row)]


def test_every_file_of_results_is_explained() -> None:
    texts = [document.read_text(encoding="utf-8") for document in DOCUMENTS]
    patterns, names = result_patterns(), sorted(file.name for file in (ROOT / "benchmarks/results").iterdir())
    explained = {name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)}
    assert [name for name in names if name not in explained and not any(name in text for text in texts)] == []


def test_every_line_about_results_has_its_files() -> None:
    names = [file.name for file in (ROOT / "benchmarks/results").iterdir()]
    patterns = result_patterns()
    assert patterns
    assert [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)] == []

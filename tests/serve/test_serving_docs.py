"""What the documents show works as it stands there, and the dashboard shows metrics that exist."""

import contextlib
import io
import json
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
from serving import ServerProcess

from redraft.serve.shapes.chat import ChatRequest
from redraft.serve.shapes.completions import CompletionRequest
from redraft.serve.shapes.messages import MessagesRequest
from redraft.serve.shapes.own import DraftsRequest

ROOT = Path(__file__).parents[2]
ADDRESS = "http://127.0.0.1:8000"


def blocks(language: str) -> list[str]:
    """Code blocks of the documents that talk to a server."""
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("docs/serving.md", "README.md")]
    found = [pair for text in texts for pair in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)]
    return [block for kind, block in found if kind == language and ADDRESS in block]


def commands() -> list[str]:
    """The curl commands of all blocks, each from `curl` to the end of its quoted body."""
    return [found for block in blocks("") for found in re.findall(r"^curl [^']*'[^']*'", block, re.MULTILINE)]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_lines(server: ServerProcess) -> None:
    assert len(commands()) >= 3
    for command in commands():
        here = (
            command.replace(ADDRESS, server.url)
            .replace('"tiny"', '"random", "max_tokens": 12')
            .replace("curl ", "curl -sS ")
        )
        done = subprocess.run(here, shell=True, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        if "stepps" in command:
            assert done.stdout.strip() in (ROOT / "docs/serving.md").read_text(encoding="utf-8")
        elif "drafts" in command or '"stream": true' in command:
            assert done.stdout.startswith("event: start")
            assert "event: done" in done.stdout
        else:
            assert json.loads(done.stdout)["choices"][0]["message"]["role"] == "assistant"


def test_python_lines(server: ServerProcess) -> None:
    assert len(blocks("python")) >= 2
    for block in blocks("python"):
        here = block.replace(ADDRESS, server.url).replace('model="tiny"', 'model="random"')
        here = here.replace('"steps": 12', '"steps": 2, "max_tokens": 32')
        # Random weights sometimes begin with a thought; with this seed they do not.
        here = here.replace("completions.create(", "completions.create(seed=1, ")
        here = here.replace("messages.create(", 'messages.create(extra_body={"seed": 1}, ')
        out, names = io.StringIO(), {}
        with contextlib.redirect_stdout(out):
            exec(compile(here, "serving.md", "exec"), names)
        names["client"].close()
        assert out.getvalue().strip()


def test_own_fields_are_taken_where_the_table_says() -> None:
    shapes = {
        "chat": ChatRequest, "completions": CompletionRequest, "messages": MessagesRequest, "drafts": DraftsRequest,
    }  # fmt: skip
    text = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    table = text.split("## Redraft's own fields")[1].split("\n##")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", table, re.MULTILINE)
    assert len(rows) > 5
    for cell, meaning in rows:
        names = re.findall(r"`(\w+)`", cell)
        told = set(re.findall(r"\w+", meaning.rpartition("(")[2])) & set(shapes)
        taken = {place for place, shape in shapes.items() if set(names) <= set(shape.model_fields)}
        assert taken == (told or set(shapes)), names


def test_the_dashboard_shows_metrics_that_exist(server: ServerProcess) -> None:
    dashboard = json.loads((ROOT / "examples/grafana.json").read_text(encoding="utf-8"))
    shown = {
        name for panel in dashboard["panels"] for target in panel["targets"]
        for name in re.findall(r"redraft_[a-z_]+", target["expr"])
    }  # fmt: skip
    told = httpx.get(f"{server.url}/metrics").text
    assert len(shown) > 15
    assert [name for name in sorted(shown) if not re.search(rf"^(# TYPE )?{name}[ {{]", told, re.MULTILINE)] == []

"""`redraft serve`: one model for many, over HTTP, with a page that shows the canvas."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft.cli.options import ModelOptions, expand_groups
from redraft.errors import InputError, RedraftError

if TYPE_CHECKING:
    from redraft.llm import LLM

_SERVER, _ENGINE = "Server", "Engine"


def _option(panel: str, name: str, help: str, metavar: str = "", **more: Any) -> Any:
    return typer.Option(name, help=help, metavar=metavar, rich_help_panel=panel, **more)


@expand_groups
def serve(
    host: Annotated[
        str, _option(_SERVER, "--host", "Address to listen on; 0.0.0.0 lets other machines in.", "HOST")
    ] = "127.0.0.1",
    port: Annotated[int, _option(_SERVER, "--port", "Port to listen on; 0 takes a free one.", "PORT")] = 8000,
    name: Annotated[
        list[str] | None,
        _option(_SERVER, "--name", "What requests call the model; may be repeated.", "NAME", show_default=False),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        _option(
            _SERVER,
            "--adapter",
            "LoRA adapter that requests choose by its name; may be repeated.",
            "NAME=FOLDER",
            show_default=False,
        ),
    ] = None,
    api_keys: Annotated[
        Path | None,
        _option(
            _SERVER,
            "--api-keys",
            "File of API keys, one a line; REDRAFT_API_KEYS holds more.",
            "FILE",
            show_default=False,
        ),
    ] = None,
    cors: Annotated[
        list[str] | None,
        _option(
            _SERVER, "--cors", "Web origin that may call from a browser; may be repeated.", "ORIGIN", show_default=False
        ),
    ] = None,
    max_body: Annotated[int, _option(_SERVER, "--max-body", "Bytes of a request at most.", "N")] = 4 * 2**20,
    max_prompt: Annotated[
        int | None,
        _option(
            _SERVER, "--max-prompt", "Tokens of a prompt at most; the context by default.", "N", show_default=False
        ),
    ] = None,
    max_open: Annotated[
        int, _option(_SERVER, "--max-open", "Requests open at a time; one more is answered 429.", "N")
    ] = 256,
    timeout: Annotated[float, _option(_SERVER, "--timeout", "Seconds of a request at most.", "S")] = 600.0,
    grace: Annotated[
        float, _option(_SERVER, "--grace", "Seconds that open requests get when the server stops.", "S")
    ] = 30.0,
    log_prompts: Annotated[bool, _option(_SERVER, "--log-prompts", "Write prompts and answers to the log.")] = False,
    slots: Annotated[int, _option(_ENGINE, "--slots", "Requests that are worked on at a time.", "N")] = 16,
    memory_gb: Annotated[
        float | None,
        _option(_ENGINE, "--memory-gb", "For keys and values; what is free by default.", "X", show_default=False),
    ] = None,
    policy: Annotated[
        str, _option(_ENGINE, "--policy", "How forwards are formed, see docs/scheduling.md.", "NAME")
    ] = "mixed",
    *,
    model: ModelOptions,
) -> None:
    """Serve a model over HTTP: OpenAI's and Anthropic's interfaces under /v1, and a page that shows the canvas at /.

    SIGINT and SIGTERM let open requests finish first.
    """
    _require_extra()
    from redraft.engine.settings import EngineSettings
    from redraft.serve.auth import read_keys
    from redraft.serve.server import listen, serve
    from redraft.serve.settings import ServeSettings

    names = tuple(name or [model.model])
    adapters = _adapters(adapter or [], names)
    settings = ServeSettings(
        names=names,
        host=host,
        port=port,
        keys=read_keys(api_keys, os.environ),
        origins=tuple(cors or ()),
        max_body=max_body,
        max_prompt=max_prompt,
        max_open=max_open,
        timeout=timeout,
        grace=grace,
        log_prompts=log_prompts,
        engine=EngineSettings(slots=slots, memory_gb=memory_gb, policy=policy),
    )
    listener = listen(settings)
    if not settings.is_local and not settings.keys:
        sys.stderr.write("note: everybody who reaches this machine can use the model; --api-keys keeps others out\n")
    address = listener.getsockname()
    shown = f"[{address[0]}]" if ":" in address[0] else address[0]

    def ready(llm: LLM) -> None:
        url = f"http://{shown}:{address[1]}"
        served = ", ".join((names[0], *adapters))
        sys.stderr.write(f"{served} on {llm.model.device} at {url} (API: {url}/v1); Ctrl-C stops\n")
        sys.stderr.flush()

    serve(settings, lambda: model.load(adapters), listener, ready=ready)


def _adapters(given: list[str], taken: tuple[str, ...]) -> dict[str, str]:
    """NAME=FOLDER options as a table; a name must not be taken by the model or by another adapter."""
    found: dict[str, str] = {}
    for one in given:
        name, mark, folder = one.partition("=")
        if not (name and mark and folder):
            raise InputError(f"--adapter is {one!r}; it must be NAME=FOLDER.")
        if name in found or name in taken:
            raise InputError(f"--adapter {name}: the name is taken already; every model and adapter needs its own.")
        found[name] = folder
    return found


def _require_extra() -> None:
    """One sentence instead of a traceback where the server's libraries are not installed."""
    from importlib.util import find_spec

    missing = [name for name in ("fastapi", "uvicorn", "prometheus_client") if find_spec(name) is None]
    if missing:
        raise RedraftError(f"Serving needs {', '.join(missing)}: pip install 'redraft[serve]'.")

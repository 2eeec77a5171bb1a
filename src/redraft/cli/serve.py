"""`redraft serve`: one model for many, over HTTP, with a page that shows the canvas."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

from redraft.cli.generate import print_json
from redraft.cli.options import ModelOptions, at_least, expand_groups, option
from redraft.errors import InputError, SettingError

_server, _engine = partial(option, panel="Server"), partial(option, panel="Engine")


@expand_groups
def serve(
    host: Annotated[
        str, _server("--host", "Address to listen on; 0.0.0.0 lets other machines in.", "HOST")
    ] = "127.0.0.1",
    port: Annotated[int, _server("--port", "Port to listen on; 0 takes a free one.", "PORT")] = 8000,
    name: Annotated[
        list[str] | None,
        _server("--name", "Name of the model in requests; may be repeated.", "NAME", default="its own"),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        _server("--adapter", "LoRA adapter that requests choose by its name; may be repeated.", "NAME=FOLDER"),
    ] = None,
    api_keys: Annotated[
        Path | None, _server("--api-keys", "File of API keys, one per line; REDRAFT_API_KEYS can hold more.", "FILE")
    ] = None,
    cors: Annotated[
        list[str] | None, _server("--cors", "Web origin that may call from a browser; may be repeated.", "ORIGIN")
    ] = None,
    max_body: Annotated[int, _server("--max-body", "Most bytes of a request.", "N")] = 4 * 2**20,
    max_prompt: Annotated[
        int | None, _server("--max-prompt", "Most tokens of a prompt.", "N", default="the context")
    ] = None,
    max_open: Annotated[int, _server("--max-open", "Most requests open at a time; one more gets a 429.", "N")] = 256,
    timeout: Annotated[float, _server("--timeout", "Most seconds a request may take.", "S")] = 600.0,
    grace: Annotated[float, _server("--grace", "Seconds that open requests get when the server stops.", "S")] = 30.0,
    log_prompts: Annotated[bool, _server("--log-prompts", "Write prompts and answers to the log.")] = False,
    replicas: Annotated[
        int, _server("--replicas", "Copies of the model behind one address, each on its own GPU.", "N")
    ] = 1,
    slots: Annotated[int, _engine("--slots", "Requests worked on at a time.", "N")] = 16,
    memory_gb: Annotated[
        float | None, _engine("--memory-gb", "Memory for keys and values.", "X", default="what is free")
    ] = None,
    kv_cache_dtype: Annotated[
        str, _engine("--kv-cache-dtype", "auto, or fp8, which halves the memory for keys and values.", "DTYPE")
    ] = "auto",
    policy: Annotated[
        str, _engine("--policy", "How forward passes are formed; see docs/scheduling.md.", "NAME")
    ] = "mixed",
    *,
    model: ModelOptions,
    json: Annotated[bool, _server("--json", "Print one JSON object with the address once the server answers.")] = False,
) -> None:
    """Serve a model over HTTP, with a page that shows the canvas.

    OpenAI's and Anthropic's APIs are under /v1, the page is at /. SIGINT and SIGTERM let open requests finish.
    """
    _require_extra()
    from redraft.engine.settings import EngineSettings
    from redraft.serve.auth import read_keys
    from redraft.serve.replicas.fleet import environments, serve_replicas
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
        engine=EngineSettings(slots=slots, memory_gb=memory_gb, kv_cache_dtype=kv_cache_dtype, policy=policy),
    )
    at_least(1, replicas=replicas)
    places = environments(model.device, replicas) if replicas > 1 else []
    listener = listen(settings)
    if not settings.is_local and not settings.keys:
        sys.stderr.write("note: everyone who can reach this machine can use the model; --api-keys keeps others out\n")
    address = listener.getsockname()
    shown = f"[{address[0]}]" if ":" in address[0] else address[0]

    def ready(device: str) -> None:
        url = f"http://{shown}:{address[1]}"
        served = ", ".join((names[0], *adapters))
        sys.stderr.write(f"{served} on {device} at {url} (API: {url}/v1); Ctrl-C stops\n")
        sys.stderr.flush()
        if json:
            print_json({"models": [*names, *adapters], "device": device, "url": url})

    if replicas > 1:
        serve_replicas(settings, partial(model.read, adapters), listener, places, ready=ready)
    elif not serve(settings, partial(model.load, adapters), listener, ready=ready):
        sys.stderr.flush()
        os._exit(0)  # Python's normal exit would abort in the middle of a thread


def _adapters(given: list[str], taken: tuple[str, ...]) -> dict[str, str]:
    """NAME=FOLDER options as a table; a name must not be the model's or another adapter's."""
    found: dict[str, str] = {}
    for one in given:
        name, mark, folder = one.partition("=")
        if not (name and mark and folder):
            raise InputError(f"--adapter is {one!r}; it must be NAME=FOLDER.")
        if name in found or name in taken:
            raise InputError(f"--adapter {name}: this name is already taken; every model and adapter needs its own.")
        found[name] = folder
    return found


def _require_extra() -> None:
    """Show one sentence instead of a traceback if the server's libraries are not installed."""
    from importlib.util import find_spec

    missing = [name for name in ("fastapi", "uvicorn", "prometheus_client", "httpx") if find_spec(name) is None]
    if missing:
        raise SettingError(f"Serving needs {', '.join(missing)}: pip install 'redraft[serve]'.")

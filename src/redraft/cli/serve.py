"""`redraft serve`: one model for many, over HTTP, with a page that shows the canvas."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from redraft.cli.options import BaseModelOptions, at_least, expand_groups, option
from redraft.cli.output import print_json
from redraft.engine.policy import POLICIES
from redraft.errors import InputError, SettingError, one_of

if TYPE_CHECKING:
    from redraft.engine.settings import EngineSettings
    from redraft.llm import LLM
    from redraft.serve.settings import ServeSettings

_server, _engine = partial(option, panel="Server"), partial(option, panel="Engine")


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Who may call the server, what it accepts, and how it runs."""

    host: Annotated[str, _server("--host", "Address to listen on; 0.0.0.0 lets other machines in.", "HOST")] = (
        "127.0.0.1"
    )
    port: Annotated[int, _server("--port", "Port to listen on; 0 takes a free one.", "PORT")] = 8000
    name: Annotated[
        list[str] | None,
        _server("--name", "Name of the model in requests; may be repeated.", "NAME", default="its own"),
    ] = None
    adapter: Annotated[
        list[str] | None,
        _server("--adapter", "LoRA adapter that requests choose by its name; may be repeated.", "NAME=FOLDER"),
    ] = None
    api_keys: Annotated[
        Path | None, _server("--api-keys", "File of API keys, one per line; REDRAFT_API_KEYS can hold more.", "FILE")
    ] = None
    cors: Annotated[
        list[str] | None, _server("--cors", "Web origin that may call from a browser; may be repeated.", "ORIGIN")
    ] = None
    max_body: Annotated[int, _server("--max-body", "Most bytes of a request.", "N")] = 4 * 2**20
    max_prompt: Annotated[
        int | None, _server("--max-prompt", "Most tokens of a prompt.", "N", default="the context")
    ] = None
    max_open: Annotated[int, _server("--max-open", "Most requests open at a time; one more gets a 429.", "N")] = 256
    timeout: Annotated[float, _server("--timeout", "Most seconds a request may take.", "S")] = 600.0
    grace: Annotated[float, _server("--grace", "Seconds that open requests get when the server stops.", "S")] = 30.0
    log_prompts: Annotated[bool, _server("--log-prompts", "Write prompts and answers to the log.")] = False
    replicas: Annotated[
        int, _server("--replicas", "Copies of the model behind one address, each on its own GPU or GPUs.", "N")
    ] = 1
    random_weights: Annotated[
        bool, _server("--random-weights", "Random weights of a shape, such as 26b-a4b, to measure a server with.")
    ] = False
    tokenizer: Annotated[Path | None, _server("--tokenizer", "A tokenizer.json, for random weights.", "FILE")] = None
    json: Annotated[bool, _server("--json", "Print one JSON object with the address once the server answers.")] = False

    def settings(self, model: str, engine: EngineSettings) -> ServeSettings:
        """The settings of a server for `model`."""
        from redraft.serve.auth import read_keys
        from redraft.serve.settings import ServeSettings

        return ServeSettings(
            names=tuple(self.name or [model]),
            host=self.host,
            port=self.port,
            keys=read_keys(self.api_keys, os.environ),
            origins=tuple(self.cors or ()),
            max_body=self.max_body,
            max_prompt=self.max_prompt,
            max_open=self.max_open,
            timeout=self.timeout,
            grace=self.grace,
            log_prompts=self.log_prompts,
            engine=engine,
        )


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How much of the machine the engine takes, and how it divides it."""

    slots: Annotated[int, _engine("--slots", "Requests worked on at a time.", "N")] = 16
    memory_gb: Annotated[
        float | None,
        _engine("--memory-gb", "Memory for keys and values.", "X", default="4/5 of what a GPU has left; 2 on a CPU"),
    ] = None
    kv_cache_dtype: Annotated[
        str, _engine("--kv-cache-dtype", "auto, or fp8, which halves the memory for keys and values.", "DTYPE")
    ] = "auto"
    policy: Annotated[
        str, _engine("--policy", f"How forward passes are formed: {one_of(POLICIES)}; see docs/scheduling.md.", "NAME")
    ] = "mixed"

    def settings(self) -> EngineSettings:
        """The settings of the engine."""
        from redraft.engine.settings import EngineSettings

        return EngineSettings(**vars(self))


@expand_groups
def serve(*, server: ServerOptions, engine: EngineOptions, model: BaseModelOptions) -> None:
    """Serve a model over HTTP, with a page that shows the canvas.

    OpenAI's and Anthropic's APIs are under /v1, the page is at /. SIGINT and SIGTERM let open requests finish.
    """
    _require_extra()
    from redraft.serve.replicas.fleet import environments, serve_replicas
    from redraft.serve.server import listen, serve

    settings = server.settings(model.model, engine.settings())
    adapters = _adapters(server.adapter or [], settings.names)
    load = _random(server, model)
    at_least(1, replicas=server.replicas, gpus=model.gpus)
    places = environments(model.device, server.replicas, model.gpus) if server.replicas > 1 else []
    listener = listen(settings)
    if not settings.is_local and not settings.keys:
        sys.stderr.write("note: everyone who can reach this machine can use the model; --api-keys keeps others out\n")
    ready = partial(_announce, listener, settings.names, tuple(adapters), server.json)
    if places:
        serve_replicas(settings, load or partial(model.read_with, adapters), listener, places, ready=ready)
    elif not serve(settings, load or partial(model.load_with, adapters), listener, ready=ready):
        sys.stderr.flush()
        os._exit(0)  # Python's normal exit would abort in the middle of a thread


def _random(server: ServerOptions, model: BaseModelOptions) -> Callable[[], LLM] | None:
    """What creates a model with random weights, if one is wanted."""
    if not server.random_weights:
        if server.tokenizer is not None:
            raise SettingError("--tokenizer needs --random-weights; a model has its own tokenizer.")
        return None
    if server.tokenizer is None:
        raise SettingError("Random weights have no tokenizer; give --tokenizer too.")
    if server.adapter:
        raise SettingError("An adapter belongs to the weights of a model; with --random-weights there are none.")
    if model.dtype not in ("auto", "bfloat16", "bf16"):
        raise SettingError(f"dtype is {model.dtype!r}; random weights are in bfloat16.")
    from redraft.bench.random_weights import random_llm

    given = {name: getattr(model, name) for name in ("device", "gpus", "quantization", "vocabulary_dtype")}
    return partial(random_llm, model.model, server.tokenizer, **given)


def _announce(
    listener: socket.socket, names: tuple[str, ...], adapters: tuple[str, ...], json: bool, device: str
) -> None:
    """Say where the server is, and what it serves."""
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    served = ", ".join((names[0], *adapters))
    sys.stderr.write(f"{served} on {device} at {url} (API: {url}/v1); Ctrl-C stops\n")
    sys.stderr.flush()
    if json:
        print_json({"models": [*names, *adapters], "device": device, "url": url})


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

"""The OpenAPI document, and schemathesis walking through it: whatever is sent, nothing fails inside the server."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import schemathesis
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from hypothesis import HealthCheck, Phase, reject, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.errors import InvalidSchema
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance
from serving import ScriptedEngine, ServerProcess, scripted_server

from redraft.llm import LLM
from redraft.serve import plain_routes, routes
from redraft.serve.app import _ROUTERS, _pools
from redraft.serve.openapi import Document
from redraft.serve.settings import ServeSettings

PATHS = {
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
    "/v1/drafts", "/v1/models",
    "/v1/models/{name}", "/v1/fill", "/v1/edits", "/v1/edits/next",
    "/v1/decisions", "/tokenize", "/detokenize", "/health", "/ready",
    "/metrics",
}  # fmt: skip
EXAMPLES = 12
MOST = {"max_tokens": 16, "max_completion_tokens": 16, "max_output_tokens": 16, "steps": 16, "n": 2}
"""What numbers are lowered to that would keep the model busy for minutes."""


def test_the_document_names_every_endpoint(server: ServerProcess) -> None:
    document = httpx.get(f"{server.url}/openapi.json").json()
    assert set(document["paths"]) == PATHS
    assert all(
        "422" not in operation["responses"] for path in document["paths"].values() for operation in path.values()
    )


def test_the_document_is_made_once_and_not_on_the_event_loop(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it would hold up every stream for a second."""
    made = []

    def noted(**given: Any) -> dict[str, Any]:
        made.append(threading.current_thread().name)
        return get_openapi(**given)

    monkeypatch.setattr("redraft.serve.openapi.get_openapi", noted)
    with (
        scripted_server(llm, ScriptedEngine(llm, lambda request: ["x"])) as url,
        ThreadPoolExecutor(2) as pool,
    ):
        texts = {answer.text for answer in pool.map(httpx.get, [f"{url}/openapi.json"] * 4)}
    assert len(texts) == 1
    assert made == ["redraft-serve"]


def test_every_route_that_takes_a_body_has_a_door() -> None:
    """Its tag. The gate drops the body of a route without one."""
    taking = {route.path for router in _ROUTERS for route in router.routes if getattr(route, "body_field", None)}
    assert taking == set(_pools())


def made_for(**settings: Any) -> dict[str, Any]:
    """The document of a server with these settings."""
    chosen = ServeSettings(names=("m",), **settings)
    app = FastAPI()
    for router in (routes.router, plain_routes.router):
        app.include_router(router)
    return json.loads(Document(app, chosen).text())


def test_an_endpoint_names_the_errors_it_has() -> None:
    paths = made_for()["paths"]
    failing = {"400", "403", "404", "408", "413", "415", "429", "500", "503"}
    assert paths["/v1/messages"]["post"]["responses"].keys() == failing | {"200"}
    for path, errors in (("/health", set()), ("/ready", {"503"}), ("/v1/models/{name}", {"404", "503"})):
        assert paths[path]["get"]["responses"].keys() == errors | {"200", "403"}
    behind_router = made_for(replica=0)["paths"]
    assert "502" in behind_router["/v1/messages"]["post"]["responses"]
    assert "503" in behind_router["/health"]["get"]["responses"]


def test_keys_are_named_where_they_are_needed() -> None:
    assert "securitySchemes" not in made_for()["components"]
    document = made_for(keys=("secret",))
    kinds = {scheme["type"] for scheme in document["components"]["securitySchemes"].values()}
    assert kinds == {"http", "apiKey"}
    models, health = (document["paths"][path]["get"] for path in ("/v1/models", "/health"))
    assert {name for one in models["security"] for name in one} == document["components"]["securitySchemes"].keys()
    assert "401" in models["responses"]
    assert "security" not in health
    assert "401" not in health["responses"]


def test_schemathesis_finds_no_failure(server: ServerProcess) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    for result in schema.get_all_operations():
        operation = result.ok()
        phases = [Phase.explicit, Phase.generate]
        check = settings(max_examples=EXAMPLES, phases=phases, suppress_health_check=list(HealthCheck))
        check(_calls(operation))()


@st.composite
def _wrong(draw: st.DrawFn, operation: schemathesis.APIOperation) -> schemathesis.Case:
    """A case that a mutated schema allows; from some of its mutations schemathesis can draw nothing."""
    try:
        return draw(operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE))
    except InvalidSchema:
        reject()


def _calls(operation: schemathesis.APIOperation):  # type: ignore[no-untyped-def]
    from hypothesis import given

    @given(case=operation.as_strategy() | _wrong(operation))
    def call(case: schemathesis.Case) -> None:
        _make_answerable(case.body)
        response = case.call(timeout=60)
        case.validate_response(
            response, checks=[not_a_server_error, status_code_conformance, response_schema_conformance]
        )

    return call


def _make_answerable(body: object) -> None:
    """Random names are no model, and see `MOST`."""
    if isinstance(body, dict):
        body |= {"model": "random"} if isinstance(body.get("model"), str) else {}
        for name, most in MOST.items():
            body |= {name: most} if type(body.get(name)) is int and body[name] > most else {}

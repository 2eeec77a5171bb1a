"""The OpenAPI document, and schemathesis walking through it: whatever is sent, nothing fails inside the server."""

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, reject, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.errors import InvalidSchema
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance
from serving import ServerProcess

PATHS = {
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
    "/v1/drafts", "/v1/models",
    "/v1/models/{name}", "/v1/fill", "/v1/edits", "/v1/edits/next",
    "/v1/decisions", "/tokenize", "/detokenize", "/health", "/ready",
    "/metrics",
}  # fmt: skip
EXAMPLES = 12


def test_the_document_names_every_endpoint(server: ServerProcess) -> None:
    document = httpx.get(f"{server.url}/openapi.json").json()
    assert set(document["paths"]) == PATHS
    assert all(
        "422" not in operation["responses"] for path in document["paths"].values() for operation in path.values()
    )


def test_schemathesis_finds_no_failure(server: ServerProcess) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    for result in schema.get_all_operations():
        operation = result.ok()
        check = settings(
            max_examples=EXAMPLES, deadline=None, database=None, derandomize=True,
            phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck),
        )(_calls(operation))  # fmt: skip
        check()


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
    """Random names are no model, and random limits would keep the model busy for hours."""
    if isinstance(body, dict):
        body |= {"model": "random"} if isinstance(body.get("model"), str) else {}
        body |= {"max_tokens": 16} if type(body.get("max_tokens")) is int and body["max_tokens"] > 16 else {}
        body |= {"n": 2} if type(body.get("n")) is int and body["n"] > 2 else {}

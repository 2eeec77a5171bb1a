"""Adapters by name over HTTP: requests choose one by `model`, on every route."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from serving import server_process, write_model

import redraft
from random_adapter import random_adapter
from redraft.cli.main import main
from redraft.llm import LLM
from redraft.model.adapters import merge, save_adapter

ASKED = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 32, "seed": 1, "steps": 3}


@pytest.fixture(scope="module")
def adapters(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    where, model = tmp_path_factory.mktemp("adapters"), redraft.load_model(folder, "cpu", "float32")
    for seed, name in enumerate(("sql", "chat")):
        save_adapter(random_adapter(model, seed, size=0.5), where / name, base_model="random")
    return {name: where / name for name in ("sql", "chat")}


@pytest.fixture(scope="module")
def http(folder: Path, adapters: dict[str, Path]) -> Iterator[httpx.Client]:
    options = [part for name, place in adapters.items() for part in ("--adapter", f"{name}={place}")]
    with (
        server_process(folder, "--name", "random", *options) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        yield client


def chat(http: httpx.Client, model: str) -> dict[str, Any]:
    response = http.post("/v1/chat/completions", json={"model": model, **ASKED})
    assert response.status_code == 200, response.text
    return response.json()


def test_models_lists_adapters_with_their_parent(http: httpx.Client) -> None:
    listed = http.get("/v1/models").json()["data"]
    assert [(one["id"], one.get("parent")) for one in listed] == [
        ("random", None),
        ("sql", "random"),
        ("chat", "random"),
    ]
    assert http.get("/v1/models/sql").json()["parent"] == "random"


def test_answers_beside_each_other_are_those_of_the_merged_models(
    http: httpx.Client, folder: Path, adapters: dict[str, Path]
) -> None:
    names = ["random", "sql", "chat"] * 3
    with ThreadPoolExecutor(len(names)) as pool:
        answers = list(pool.map(lambda name: chat(http, name), names))
    asked = dict(ASKED)
    question, texts = asked.pop("messages"), {}
    for name in names[:3]:
        merged = redraft.load(folder, device="cpu", dtype="float32", adapter=adapters.get(name))
        texts[name] = merged.generate(question, **asked).text
    assert len(set(texts.values())) == 3
    for name, answer in zip(names, answers, strict=True):
        assert answer["model"] == name
        assert answer["choices"][0]["message"]["content"] == texts[name]


@pytest.mark.parametrize(("path", "body"), [
    ("/v1/completions", {"prompt": "One two", "max_tokens": 16, "seed": 1}),
    ("/v1/messages", {"messages": ASKED["messages"], "max_tokens": 16, "seed": 1}),
    ("/v1/fill", {"prefix": "One ", "suffix": " three", "length": 3, "seed": 1}),
    ("/v1/edits", {"text": "One two three", "span": [4, 7], "instruction": "Change it.", "seed": 1}),
    ("/v1/decisions", {"question": "Which?", "choices": ["one", "two", "three"]}),
])  # fmt: skip
def test_every_route_asks_the_adapter(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    told = []
    for model in ("random", "sql", "chat", "random"):
        response = http.post(path, json={"model": model, **body})
        assert response.status_code == 200, response.text
        told.append(_substance(response.json()))
    assert told[0] == told[3]
    assert told[0] != told[1] != told[2] != told[0]


def _substance(answer: dict[str, Any]) -> str:
    """What an answer says, without ids, names and times."""
    kept = ("text", "content", "full_text", "readings")
    texts = [choice["text"] for choice in answer.get("choices", [])]
    return repr([answer[name] for name in kept if name in answer] + texts)


def test_an_unknown_adapter_is_a_404_in_openais_shape(http: httpx.Client) -> None:
    client = openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="unused")
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="poetry", messages=[{"role": "user", "content": "Hi"}])
    assert caught.value.body == {
        "message": "The model 'poetry' is not served here; this server has random, sql, chat.",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }
    assert http.post("/v1/fill", json={"model": "poetry", "prefix": "a", "suffix": "b"}).status_code == 404


def test_a_wrong_adapter_is_said_at_the_start(
    folder: Path, adapters: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_model(tmp_path / "other", hidden_size=32)
    place = adapters["sql"]
    for options, said in (
        (("--adapter", "sql"), "--adapter is 'sql'; it must be NAME=FOLDER."),
        (("--adapter", f"a={place}", "--adapter", f"a={place}"), "this name is already taken"),
        (("--name", "sql", "--adapter", f"sql={place}"), "this name is already taken"),
        (("--adapter", f"sql={tmp_path / 'no'}"), f"There is no folder '{tmp_path / 'no'}'; an adapter is one with"),
        (("--adapter", f"sql={tmp_path}"), "has no adapter_config.json; it is not an adapter folder"),
        (("--model", str(other), "--adapter", f"sql={place}"), "is for another model: it changes"),
    ):
        assert main(["serve", "--model", str(folder), "--port", "0", *options]) == 2
        assert said in capsys.readouterr().err.replace("\n", " ")


def test_views_of_one_llm(folder: Path, adapters: dict[str, Path]) -> None:
    llm: LLM = redraft.load(folder, device="cpu", dtype="float32", adapter=adapters)
    sql = llm.with_adapter("sql")
    assert llm.adapters == ("sql", "chat")
    assert sql.engine is llm.engine
    assert sql.model is not llm.model
    merged = redraft.load_model(folder, "cpu", "float32")
    merge(merged, redraft.model.adapters.load_adapter(adapters["sql"]))
    for name, weight in merged.named_parameters():
        assert weight.equal(sql.model.get_parameter(name))

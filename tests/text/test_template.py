"""Rendering against Transformers' own machinery, our own template against the official one, and what is refused."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from conversations import (
    ALL,
    CLOCK,
    CURRENT_ONLY,
    MEDIA,
    NESTED,
    PARIS,
    ROME,
    TEXT,
    assistant,
    call,
    system,
    tool,
    user,
)
from official import TINY, VERSIONS, official
from transformers.utils.chat_template_utils import render_jinja_template

from redraft.errors import CheckpointError, PromptError, SettingError
from redraft.text.template import ChatTemplate
from redraft.text.tools import CALL_CLOSE, CALL_OPEN, RESPONSE_CLOSE, RESPONSE_OPEN, format_call


def by_transformers(source: str, options: dict[str, Any]) -> str:
    """What Transformers renders, given the defaults of our `render`."""
    settings = {"add_generation_prompt": True, "enable_thinking": False, "bos_token": "<bos>", **options}
    rendered, _ = render_jinja_template([settings.pop("messages")], chat_template=source, **settings)
    return rendered[0]


@lru_cache
def tiny() -> ChatTemplate:
    return ChatTemplate.from_folder(TINY)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("version", VERSIONS)
def test_renders_as_transformers_does(version: str, name: str) -> None:
    if version == "launch_june" and name in CURRENT_ONLY:
        pytest.skip("only the later template renders this")
    template = official(version)
    assert template.render(**ALL[name]) == by_transformers(template.source, ALL[name])


def test_reasoning_has_each_name_that_the_caller_left_out() -> None:
    template = ChatTemplate(
        "{{ messages[1].thinking }} {{ messages[1].reasoning }} {{ messages[1].reasoning_content }}"
    )
    assert template.render([user("w"), assistant("x", reasoning="a")]) == "a a a"
    assert template.render([user("w"), assistant("x", reasoning="a", thinking="b")]) == "b a b"


@pytest.mark.parametrize("source", ["{{ 1 / 0 }}", "{{ messages.x.y }}", "{{ 2.0 ** 5000 }}"])
def test_a_template_that_fails_is_one_error(source: str) -> None:
    with pytest.raises(PromptError, match="refuses these messages"):
        ChatTemplate(source).render([{"role": "user", "content": "Hi"}])


def test_what_the_launch_template_cannot_render() -> None:
    with pytest.raises(SettingError, match="'preserve_thinking'"):
        official("launch_june").render(**CURRENT_ONLY["preserved"])


@pytest.mark.parametrize("name", TEXT)
def test_own_template_equals_the_official_one(name: str) -> None:
    assert tiny().render(**TEXT[name]) == official("current_july").render(**TEXT[name])


def test_own_template_in_transformers() -> None:
    template = tiny()
    for options in TEXT.values():
        assert by_transformers(template.source, options) == template.render(**options)


def test_own_template_renders_an_unnamed_result_as_the_official_one() -> None:
    options = {"messages": [user("w"), assistant(tool_calls=[PARIS]), tool("x", "y")]}
    assert by_transformers(tiny().source, options) == by_transformers(official("current_july").source, options)


def test_own_template_spelled_out() -> None:
    conversation = [system("Be brief."), user("Weather?"), assistant(tool_calls=[PARIS]), tool("sunny")]
    assert tiny().render(conversation, tools=[CLOCK]) == (
        '<bos><|turn>system\nBe brief.<|tool>declaration:clock{description:<|"|>Tell the time<|"|>}<tool|><turn|>\n'
        "<|turn>user\nWeather?<turn|>\n"
        '<|turn>model\n<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>'
        '<|tool_response>response:get_weather{value:<|"|>sunny<|"|>}<tool_response|>'
    )


def test_own_template_takes_mappings_as_results() -> None:
    text = tiny().render([user("w"), assistant(tool_calls=[PARIS]), tool({"t": 3, "W": "sun"})])
    assert text.endswith('<|tool_response>response:get_weather{t:3,W:<|"|>sun<|"|>}<tool_response|>')


def test_calls_and_results_equal_the_python_writer() -> None:
    text = tiny().render([user("w"), assistant(tool_calls=[call("f", NESTED)]), tool(NESTED)])
    written = format_call("f", NESTED)
    arguments = written.removeprefix(f"{CALL_OPEN}call:f").removesuffix(CALL_CLOSE)
    assert text.endswith(f"{written}{RESPONSE_OPEN}response:f{arguments}{RESPONSE_CLOSE}")


@pytest.mark.parametrize("kind", ["image", "video", "audio"])
def test_arguments_and_results_that_look_like_media_are_data(kind: str) -> None:
    data = {"type": kind, "width": 512, "tags": ["a"], "url": None}
    text = tiny().render([user("w"), assistant(tool_calls=[call("f", data)]), tool(data)])
    written = f'{{tags:[<|"|>a<|"|>],type:<|"|>{kind}<|"|>,url:null,width:512}}'
    assert f"call:f{written}" in text
    assert f"response:f{written}" in text


def test_own_template_marks_images_of_a_user() -> None:
    assert tiny().render(**MEDIA["image"]).startswith("<bos><|turn>user\n<|image|>What is this?<turn|>\n")


@pytest.mark.parametrize("name", ["all media", "result with image"])
def test_own_template_refuses_other_media(name: str) -> None:
    with pytest.raises(PromptError, match=r"this model reads no audio|text alone in results"):
        tiny().render(**MEDIA[name])


def test_options_that_the_template_does_not_read_are_refused() -> None:
    plain = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(SettingError, match="'colour'"):
        plain.render([user("a")], colour="red")
    with pytest.raises(SettingError, match="'tools'"):
        plain.render([user("a")], tools=[CLOCK])
    with pytest.raises(SettingError, match="cannot think first"):
        tiny().render([user("a")], enable_thinking=True)


BAD_MESSAGES = {
    "at least one": [],
    "must be a list": "hello",
    r"messages\[0\] must be a mapping": ["hello"],
    r"messages\[1\] has the role 'robot'": [user("a"), {"role": "robot", "content": "b"}],
    r"messages\[0\] has no content": [{"role": "user"}],
    r"messages\[0\] has content of type int": [user(3)],
    r"content\[0\] must be a mapping": [user(["a"])],
    r"content\[0\] has the type 'smell'": [user([{"type": "smell"}])],
    r"content\[0\] is a text part without": [user([{"type": "text"}])],
    r"content\[0\] must be text": [system([{"type": "image"}])],
    "must follow an assistant message": [user("a"), tool("b")],
    r"messages\[2\] is the result of the call 'c1', but no call with this id waits": [
        user("w"),
        assistant(tool_calls=[PARIS]),
        tool("sun", "c1", name="f"),
    ],
    r"messages\[3\] is the result of the call 'c0', but no call with this id waits": [
        user("w"),
        assistant(tool_calls=[PARIS, ROME]),
        tool("sun"),
        tool("rain"),
    ],
    r"messages\[4\] is the result of the call 'c0', but no call with this id waits": [
        user("w"),
        assistant(tool_calls=[PARIS]),
        tool("sun"),
        assistant(tool_calls=[ROME]),
        tool("rain"),
    ],
    "with neither a name nor the id of a call": [
        user("w"),
        assistant(tool_calls=[PARIS]),
        {"role": "tool", "content": "sun"},
    ],
    "belong to the assistant": [{**user("a"), "tool_calls": [PARIS]}],
    r"tool_calls must be a list": [assistant(tool_calls=PARIS)],
    r"tool_calls\[0\].function must have a name": [assistant(tool_calls=[{"function": {"arguments": {}}}])],
    r"tool_calls\[0\].function has arguments that are not": [assistant(tool_calls=[call("f", [1])])],
    "arguments of a tool call must be a mapping, not a string": [assistant(tool_calls=[call("f", "{}")])],
    "which is not a JSON value": [assistant(tool_calls=[call("f", {"a": object()})])],
    r"messages\[0\].tool_calls\[0\].function.arguments.a\[0\] holds nan, which is not a JSON number": [
        assistant(tool_calls=[call("f", {"a": [float("nan")]})])
    ],
    "arguments.a holds -inf, which is not a JSON number": [assistant(tool_calls=[call("f", {"a": float("-inf")})])],
    "keys must be strings": [assistant(tool_calls=[call("f", {1: 2})])],
    r"messages\[0\].content holds a character that UTF-8 cannot express at index 1": [user("a\ud800")],
    "arguments holds a character that UTF-8 cannot express at index 0": [
        assistant(tool_calls=[call("f", {"\ud800": 2})])
    ],
    "'reasoning' that is not a string": [assistant("a", reasoning=3)],
    r"messages\[0\].content\[0\] must be text": [{"role": "developer", "content": [{"type": "image"}]}, user("w")],
    r"messages\[2\] is a tool's result, which must follow": [
        user("w"),
        assistant(tool_calls=[PARIS], tool_responses=[{"name": "f", "response": 1}]),
        tool("sun"),
    ],
    "keys 'name' and 'response'": [assistant(tool_responses=[{"name": "f"}])],
}


@pytest.mark.parametrize(("sentence", "messages"), BAD_MESSAGES.items(), ids=BAD_MESSAGES)
def test_wrong_messages_get_one_sentence(sentence: str, messages: Any) -> None:
    with pytest.raises(PromptError, match=sentence):
        tiny().render(messages)


@pytest.mark.parametrize(
    "tools",
    [
        "clock",
        [{"name": "clock"}],
        [{"type": "function", "function": {"description": "x"}}],
        [{"type": "retrieval", "function": {"name": "x"}}],
        [{"function": {"name": "x", "parameters": {"properties": {"a": 3}}}}],
        [{"function": {"name": "x", "parameters": []}}],
        [{"function": {"name": "x", "description": 3}}],
        [{"function": {"name": "x", "strict": 1}}],
        *([{"function": {"name": name}}] for name in ("a b", "a{b", "a<b", "a\nb", " ", "a\ud800")),
    ],
)
def test_wrong_tools_get_one_sentence(tools: Any) -> None:
    with pytest.raises(PromptError, match="tools"):
        tiny().render([user("a")], tools=tools)


def test_deep_nesting_is_refused() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(PromptError, match="nested deeper"):
        tiny().render([assistant(tool_calls=[call("f", {"a": deep})])])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__ }}{{ messages.__class__.__mro__ }}",
        "{{ namespace(__class__=1) }}",
        "{% set n = namespace() %}{% set n._x = 1 %}",
        "{{ messages.append(1) }}",
    ],
)
def test_templates_are_sandboxed(source: str) -> None:
    with pytest.raises(PromptError, match="refuses"):
        ChatTemplate(source).render([user("a")])


@pytest.mark.parametrize(
    "source",
    [
        "{{ {'a<': \"é'\"} | tojson }} {{ [1, 2] | tojson(indent=2) }} {{ {'b': 1, 'a': 2} | tojson(sort_keys=True) }}",
        "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% elif i > 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
        "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
        "{{ dict(a=1) }} {{ dict.fromkeys(['a'], 2) }} {% set n = namespace(self=1) %}{{ n.self }}",
        "{{ strftime_now('%Y') }}",
        "  {% if true %}\n  a\n  {% endif %}\n b",
    ],
)
def test_helpers_are_those_of_transformers(source: str) -> None:
    assert ChatTemplate(source).render([user("a")]) == by_transformers(source, {"messages": [user("a")]})


def test_folder_sources(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no chat template"):
        ChatTemplate.from_folder(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(
        '{"bos_token": {"content": "<s>"}, "chat_template": [{"name": "default", "template": "{{ bos_token }}!"}]}'
    )
    assert ChatTemplate.from_folder(tmp_path).render([user("a")]) == "<s>!"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert ChatTemplate.from_folder(tmp_path).render([user("a")]) == "file"
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="is not UTF-8 text"):
        ChatTemplate.from_folder(tmp_path)
    for content in ("[]", "{", "[" * 100_000):
        config.write_text(content)
        with pytest.raises(CheckpointError, match=r"tokenizer_config\.json .* JSON.*\.$"):
            ChatTemplate.from_folder(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    for entry in ('["a"]', "[]", '[{"name": "rag", "template": "a"}]', "7"):
        config.write_text(f'{{"chat_template": {entry}}}')
        with pytest.raises(CheckpointError, match="must be a template, or a list of named ones with a 'default'"):
            ChatTemplate.find(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    config.write_text("{}")
    with pytest.raises(CheckpointError, match="not valid Jinja"):
        ChatTemplate.from_folder(tmp_path)

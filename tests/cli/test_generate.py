"""`generate` and `chat`, in a pipe: the library's answer and nothing else, JSON last, traces, Ctrl-C."""

import errno
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from outcome import Cli

import redraft
from random_adapter import random_adapter
from redraft.cli.main import main
from redraft.cli.output import print_json
from redraft.cli.trace import TraceWriter
from redraft.diffusion.records import Record
from redraft.llm import LLM
from redraft.model.adapters import save_adapter

SETTINGS = {"max_tokens": 40, "steps": 3, "seed": 5}
OPTIONS = ("--max-tokens", 40, "--steps", 3, "--seed", 5)


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return redraft.load(folder)


def test_a_pipe_gets_the_text_alone(cli: Cli, folder: Path, llm: LLM) -> None:
    outcome = cli("generate", "Hello", "--model", folder, *OPTIONS)
    assert outcome.code == 0
    assert outcome.err == ""
    assert outcome.out == llm.generate("Hello", **SETTINGS).text + "\n"


def test_a_folder_without_a_template_is_told_of_with_the_option_that_helps(cli: Cli, copied: Path) -> None:
    (copied / "chat_template.jinja").unlink()
    said = "error: This model folder has no chat template; it can only continue, fill, repair and score plain text. "
    for command in (("generate", "Hello"), ("chat",), ("decide", "a", "--choice", "b", "--choice", "c"),
                    ("score", "a", "b")):  # fmt: skip
        outcome = cli(*command, "--model", copied, stdin=b"Hello\n")
        assert outcome.code == 2
        assert outcome.err == f"{said}With --raw, `redraft generate` and `redraft score` take it.\n"
    assert cli("generate", "Hello", "--raw", "--model", copied, *OPTIONS).code == 0
    assert cli("score", "Hello", "you", "--raw", "--model", copied).code == 0


def test_options_are_the_settings(cli: Cli, folder: Path, llm: LLM) -> None:
    given = {"preset": "fast", "canvas_length": 32, "entropy_bound": 0.5, "t_min": 0.1, "t_max": 0.9, "steps": 2}
    options = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", value)]
    outcome = cli("generate", "Hello", "--model", folder, "--max-tokens", 40, *options, "--json")
    expected = llm.generate("Hello", max_tokens=40, **given)
    assert outcome.json["token_ids"] == list(expected.token_ids)
    assert outcome.json["stats"]["steps"] == list(expected.stats.steps)
    assert outcome.json["settings"].items() >= {**given, "max_tokens": 40, "stop_at_eos": True}.items()


def test_an_adapter_is_folded_in(cli: Cli, folder: Path, llm: LLM, tmp_path: Path) -> None:
    save_adapter(random_adapter(llm.model, 1, size=0.5), tmp_path, base_model="random")
    given = ("--model", folder, "--adapter", tmp_path)
    shown = cli("generate", "Hello", *given, *OPTIONS, "--json").json
    assert shown["token_ids"] == list(redraft.load(folder, adapter=tmp_path).generate("Hello", **SETTINGS).token_ids)
    assert shown["token_ids"] != list(llm.generate("Hello", **SETTINGS).token_ids)
    assert (shown["model"], shown["adapter"]) == (str(folder), str(tmp_path))
    assert cli("chat", *given, *OPTIONS, stdin=b"Hello\n").out == shown["text"] + "\n"
    scored = cli("eval", "smalltalk", "--limit", 1, *given, "--steps", 1, "--max-tokens", 16)
    assert scored.json["adapter"] == str(tmp_path)
    assert cli("generate", "Hello", "--model", folder, "--adapter", tmp_path / "none").code == 2


def test_json_is_the_result(cli: Cli, folder: Path, llm: LLM) -> None:
    outcome = cli("generate", "Hello", "--model", folder, *OPTIONS, "--json")
    expected = llm.generate("Hello", **SETTINGS)
    assert outcome.out.count("\n") == 1
    assert outcome.json["text"] == expected.text
    assert outcome.json["finish_reason"] == expected.finish_reason
    assert outcome.json["stats"].keys() == expected.stats.to_dict().keys()
    for name in ("canvases", "steps", "forwards", "tokens", "tokens_per_forward"):
        assert outcome.json["stats"][name] == expected.stats.to_dict()[name]


def test_an_output_without_all_characters_gets_what_it_can_show(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = ["generate", "Hello", "--model", str(folder), "--choices", "Größe 🙂", "--max-tokens", "40"]
    for more, shown in (([], b"Gr??e ?\n"), (["--json"], b'"text": "Gr\\u00f6\\u00dfe \\ud83d\\ude42"')):
        written = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
        assert main([*args, *more]) == 0
        assert shown in written.getvalue()


def test_the_prompt_may_come_from_standard_input(cli: Cli, folder: Path, llm: LLM) -> None:
    outcome = cli("generate", "-", "--model", folder, *OPTIONS, stdin="Zwei Wörter".encode())
    assert outcome.out == llm.generate("Zwei Wörter", **SETTINGS).text + "\n"


@pytest.fixture
def thinker(copied: Path) -> Path:
    """A model folder whose chat template can ask for thoughts."""
    template = copied / "chat_template.jinja"
    template.write_text("{% if enable_thinking %}Think!{% endif %}" + template.read_text())
    return copied


def test_thinking_can_be_asked_for(cli: Cli, thinker: Path) -> None:
    whole = redraft.load(thinker)
    assert whole.generate("Hello", **SETTINGS).text != whole.generate("Hello", thinking=True, **SETTINGS).text
    for option, thinking in (("--thinking", True), ("--no-thinking", False)):
        expected = whole.generate("Hello", thinking=thinking, **SETTINGS).text
        assert cli("generate", "Hello", option, "--model", thinker, *OPTIONS).out == expected + "\n"
        assert cli("chat", option, "--model", thinker, *OPTIONS, stdin=b"Hello\n").out == expected + "\n"
        typed = b"/think on\nHello\n" if thinking else b"/think\n/think\nHello\n"
        assert cli("chat", "--model", thinker, *OPTIONS, stdin=typed).out == expected + "\n"


@pytest.mark.parametrize("args", [("generate", "Hello", "--thinking"), ("chat", "--thinking"), ("chat",)])
def test_a_template_without_thoughts_is_the_reason(cli: Cli, folder: Path, args: tuple[str, ...]) -> None:
    outcome = cli(*args, "--model", folder, stdin=b"/think on\n")
    assert outcome.code == 2
    assert outcome.err == "error: This model cannot think first: its chat template does not support it.\n"


def test_a_person_is_told_why_a_model_does_not_think(cli: Cli, folder: Path) -> None:
    outcome = cli("chat", "--model", folder, *OPTIONS, "--json", stdin=b"/think\n/think maybe\nHello\n", typed=True)
    assert "error: This model cannot think first" in outcome.err
    assert "error: /think takes on or off." in outcome.err
    assert len(outcome.json["messages"]) == 2


def test_plain_text_has_no_thoughts(cli: Cli) -> None:
    outcome = cli("generate", "Hello", "--raw", "--thinking", "--model", "/no/such/model")
    assert (outcome.code, "--thinking needs the chat format" in outcome.err) == (2, True)


@pytest.mark.parametrize("args", [("generate", "-"), ("chat",), ("decide", "-", "--choice", "a", "--choice", "b")])
def test_a_byte_order_mark_is_no_part_of_what_is_asked(cli: Cli, folder: Path, args: tuple[str, ...]) -> None:
    shown = ("--steps", 1, "--max-tokens", 4) if "decide" not in args else ()
    plain, marked = (
        cli(*args, "--model", folder, *shown, "--json", stdin=text.encode()).json for text in ("Hi", "\ufeffHi\r\n")
    )
    named = ("messages", "text", "decisions")
    assert [plain.get(name) for name in named] == [marked.get(name) for name in named]


def test_raw_text_is_continued(cli: Cli, folder: Path, llm: LLM) -> None:
    outcome = cli("generate", "def f(", "--raw", "--model", folder, *OPTIONS)
    assert outcome.out == llm.generate("def f(", raw=True, **SETTINGS).text + "\n"


def test_a_system_message_comes_first(cli: Cli, folder: Path, llm: LLM) -> None:
    outcome = cli("generate", "Hello", "--system", "Be brief.", "--model", folder, *OPTIONS)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert outcome.out == llm.generate(messages, **SETTINGS).text + "\n"


def test_stop_strings_end_the_answer(cli: Cli, folder: Path, llm: LLM) -> None:
    whole = llm.generate("Hello", **SETTINGS).text
    stop = whole[len(whole) // 2 :][:4]
    outcome = cli("generate", "Hello", "--model", folder, *OPTIONS, "--stop", "never there", "--stop", stop)
    assert outcome.out == whole[: whole.index(stop)] + "\n"


def test_tokens_are_banned_and_favoured(cli: Cli, folder: Path, llm: LLM, tmp_path: Path) -> None:
    bias = dict.fromkeys(llm.generate("Hello", **SETTINGS).token_ids, -100.0) | {9: 2.5}
    expected = llm.generate("Hello", logit_bias=bias, **SETTINGS).text
    options = [word for token, value in bias.items() for word in ("--logit-bias", f"{token}:{value:g}")]
    trace = "--trace", tmp_path / "trace.jsonl"
    outcome = cli("generate", "Hello", "--model", folder, *OPTIONS, *options, *trace, "--json")
    assert outcome.json["text"] == expected != llm.generate("Hello", **SETTINGS).text
    assert dict(outcome.json["settings"]["logit_bias"]) == bias
    assert cli("replay", trace[1]).code == 0
    said = " ".join(options[1::2])
    spoken = cli("chat", "--model", folder, *OPTIONS, "--json", stdin=f"/set logit_bias {said}\nHello\n".encode())
    assert spoken.json["answers"][0]["text"] == expected


def test_a_trace_holds_every_record(cli: Cli, folder: Path, llm: LLM, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    assert cli("generate", "Hello", "--model", folder, *OPTIONS, "--trace", file).code == 0
    header, *lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert header["type"], header["version"] == ("header", 1)
    assert header["model"] == str(folder)
    assert header["settings"]["seed"] == 5
    expected = [json.loads(json.dumps(record.to_dict())) for record in llm.stream("Hello", **SETTINGS)]
    assert lines == expected
    assert [path.name for path in tmp_path.iterdir()] == ["trace.jsonl"]


def test_json_and_traces_hold_what_utf8_cannot_express(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name of a file that is not text, say."""
    file, facts = tmp_path / "trace.jsonl", {"model": "m\udcff"}
    with TraceWriter(file, facts):
        pass
    print_json(facts)
    assert json.loads(file.read_text())["model"] == json.loads(capsys.readouterr().out)["model"] == "m\udcff"


def test_a_stop_string_that_could_never_match_is_refused(cli: Cli) -> None:
    outcome = cli("generate", "Hello", "--model", "/no/such/model", "--stop", "a\udcff")
    assert outcome.code == 2
    assert "stop holds a character that UTF-8 cannot express at index 1" in outcome.err


@pytest.mark.parametrize("schema", ["null", "[]", "3"])
def test_a_schema_that_is_none_is_refused(cli: Cli, folder: Path, tmp_path: Path, schema: str) -> None:
    file = tmp_path / "schema.json"
    file.write_text(schema)
    outcome = cli("generate", "Hello", "--model", folder, *OPTIONS, "--json-schema", file)
    assert outcome.code == 2
    assert "A schema must be an object or a bool" in outcome.err


def test_an_empty_schema_is_named(cli: Cli, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(" \n")
    outcome = cli("generate", "Hello", "--model", folder, *OPTIONS, "--json-schema", file)
    assert (outcome.code, outcome.err) == (2, f"error: The JSON schema {file} is empty.\n")


def test_a_schema_may_begin_with_a_byte_order_mark(cli: Cli, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('\ufeff{"const": 12}\r\n')
    assert cli("generate", "Hello", "--model", folder, *OPTIONS, "--json-schema", file).out == "12\n"


def test_a_schema_may_be_given_itself(cli: Cli, folder: Path) -> None:
    assert cli("generate", "Hello", "--model", folder, *OPTIONS, "--json-schema", ' {"const": 12}').out == "12\n"
    outcome = cli("generate", "Hello", "--model", "/no/such/model", "--json-schema", '{"const": 12')
    assert outcome.code == 2
    assert outcome.err.startswith("error: json_schema is not valid JSON: ")


@pytest.mark.parametrize("args", [("generate", "-"), ("fill", "-"), ("edit", "-", "--lines", "1")])
def test_a_schema_and_a_text_cannot_both_be_standard_input(cli: Cli, args: tuple[str, ...]) -> None:
    outcome = cli(*args, "--json-schema", "-", "--model", "/no/such/model", stdin=b"a <|fill|>")
    assert outcome.code == 2
    assert outcome.err == "error: Standard input already holds the text; give --json-schema a file.\n"


def test_an_empty_constraint_is_one(cli: Cli, folder: Path) -> None:
    assert cli("generate", "Hello", "--model", folder, *OPTIONS, "--regex", "").out == "\n"
    outcome = cli("generate", "Hello", "--model", folder, *OPTIONS, "--template", "")
    assert outcome.code == 2
    assert "no hole" in outcome.err


def interrupt_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Make every stream end with Ctrl-C after `count` records."""
    original = LLM.stream

    def stream(self: LLM, *args: Any, **settings: Any) -> Iterator[Record]:
        for index, record in enumerate(original(self, *args, **settings)):
            if index == count:
                raise KeyboardInterrupt
            yield record

    monkeypatch.setattr(LLM, "stream", stream)


def test_ctrl_c_keeps_what_is_committed(
    cli: Cli, folder: Path, llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = next(r for r in llm.stream("Hello", **SETTINGS) if isinstance(r, redraft.Commit))
    interrupt_after(monkeypatch, 5)  # three steps, a commit, one step of the second canvas
    file = tmp_path / "trace.jsonl"
    outcome = cli("generate", "Hello", "--model", folder, *OPTIONS, "--trace", file)
    assert outcome.code == 130
    assert outcome.out == first.text + "\n"
    assert outcome.err == ""
    assert len(file.read_text().splitlines()) == 1 + 5


def test_ctrl_c_before_the_first_commit_is_told_in_json(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(monkeypatch, 2)
    outcome = cli("generate", "Hello", "--model", folder, *OPTIONS, "--json")
    assert outcome.code == 130
    assert outcome.json["finish_reason"] == "interrupted"
    assert (outcome.json["text"], outcome.json["stats"]) == ("", None)


def test_a_failure_while_running_is_code_1_and_leaves_no_trace(
    cli: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stream(self: LLM, *args: Any, **settings: Any) -> Iterator[Record]:
        raise OSError("the disk is full")
        yield

    monkeypatch.setattr(LLM, "stream", stream)
    outcome = cli("generate", "Hello", "--model", folder, "--trace", tmp_path / "trace.jsonl")
    assert (outcome.code, outcome.err) == (1, "error: the disk is full\n")
    assert list(tmp_path.iterdir()) == []


def test_a_trace_behind_a_link_is_replaced_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    file, link = tmp_path / "kept" / "old.jsonl", tmp_path / "trace.jsonl"
    file.touch(0o600)
    link.symlink_to(file)
    with TraceWriter(link, {}):
        pass
    assert link.is_symlink()
    assert json.loads(file.read_text())["type"] == "header"
    assert file.stat().st_mode & 0o777 == 0o600  # it was private


@pytest.mark.parametrize("room", [-1, 0, 10_000])
def test_a_trace_that_finds_no_room_is_a_sentence_and_leaves_nothing(
    cli: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """The disk is full at the header, behind it, or when what is left in the buffer is written at the end."""

    class Full(io.TextIOWrapper):
        def write(self, text: str) -> int:
            if self.tell() > room:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(text)

        def close(self) -> None:
            full = not self.closed and room
            super().close()
            if full:
                raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("redraft.cli.trace.TextIOWrapper", Full)
    file = tmp_path / "trace.jsonl"
    outcome = cli("generate", "Hello", "--model", folder, *OPTIONS, "--trace", file)
    assert outcome.code == 1
    assert outcome.err == f"error: The trace {file} cannot be written: No space left on device.\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "said"), [("-", "- is not a file that can be written"), ("a" * 300, "File name too long")]
)
def test_a_trace_that_has_no_name_is_refused(cli: Cli, name: str, said: str) -> None:
    outcome = cli("generate", "Hello", "--trace", name)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert said in outcome.err


def test_a_trace_may_have_as_long_a_name_as_files_can_have(cli: Cli, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / ("a" * 250)
    assert cli("generate", "Hello", "--model", folder, *OPTIONS, "--trace", file).code == 0
    assert list(tmp_path.iterdir()) == [file]


class TestChat:
    def test_a_conversation_grows(self, cli: Cli, folder: Path, llm: LLM) -> None:
        outcome = cli("chat", "--model", folder, *OPTIONS, "--json", stdin=b"Hello\n\nAnd you?\n/quit\nnever\n")
        assert outcome.code == 0
        messages = outcome.json["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant"] * 2
        assert [messages[0]["content"], messages[2]["content"]] == ["Hello", "And you?"]
        assert outcome.json["answers"][1]["text"] == llm.generate(messages[:3], **SETTINGS).text

    def test_reset_forgets_all_but_the_system_message(self, cli: Cli, folder: Path) -> None:
        lines = b"Hello\n/reset\nAgain\n"
        outcome = cli("chat", "--model", folder, *OPTIONS, "--system", "Be brief.", "--json", stdin=lines)
        assert [m["content"] for m in outcome.json["messages"]][:2] == ["Be brief.", "Again"]
        assert len(outcome.json["messages"]) == 3

    def test_commands_that_answer_on_standard_error(self, cli: Cli, folder: Path) -> None:
        outcome = cli("chat", "--model", folder, stdin=b"/help\n/sing\n")
        assert outcome.code == 0
        assert outcome.out == ""
        assert "/reset" in outcome.err
        assert "There is no command /sing" in outcome.err

    def test_an_interrupted_answer_stays_in_the_conversation(
        self, cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        interrupt_after(monkeypatch, 5)
        outcome = cli("chat", "--model", folder, *OPTIONS, "--json", stdin=b"Hello\nAnd you?\n", typed=True)
        assert outcome.code == 0
        assert [answer["finish_reason"] for answer in outcome.json["answers"]] == ["interrupted"] * 2
        assert len(outcome.json["messages"]) == 4

    def test_ctrl_c_ends_a_conversation_from_a_pipe(
        self, cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        interrupt_after(monkeypatch, 5)
        outcome = cli("chat", "--model", folder, *OPTIONS, "--json", stdin=b"Hello\nAnd you?\n")
        assert outcome.code == 130
        assert len(outcome.json["answers"]) == 1

    def test_a_person_can_go_on_after_what_does_not_fit(self, cli: Cli, folder: Path) -> None:
        lines = b"word " * 1100 + b"\nHello\n"
        outcome = cli("chat", "--model", folder, *OPTIONS, "--json", stdin=lines, typed=True)
        assert outcome.code == 0
        assert "error: The prompt is too long" in outcome.err
        assert outcome.json["messages"][0]["content"] == "Hello"

    @pytest.mark.parametrize(("typed", "code"), [(True, 0), (False, 2)])
    def test_a_question_that_is_no_utf8_is_a_sentence(self, cli: Cli, folder: Path, typed: bool, code: int) -> None:
        outcome = cli("chat", "--model", folder, *OPTIONS, stdin=b"H\xffello\n", typed=typed)
        assert outcome.code == code
        assert "error: The message holds a character that UTF-8 cannot express" in outcome.err
        assert not typed or re.search(r"\d\.\s+/reset\s+forgets", outcome.err)

    def test_a_question_that_does_not_fit_is_an_error_in_a_pipe(self, cli: Cli, folder: Path) -> None:
        outcome = cli("chat", "--model", folder, stdin=b"word " * 1100)
        assert outcome.code == 2
        assert outcome.err.startswith("error: The prompt is too long")

    def test_a_trace_of_a_conversation_can_be_replayed(self, cli: Cli, folder: Path, tmp_path: Path) -> None:
        file = tmp_path / "trace.jsonl"
        said = cli("chat", "--model", folder, *OPTIONS, "--trace", file, stdin=b"Hello\nAnd you?\n")
        replayed = cli("replay", file)
        assert replayed.out == said.out
        assert said.out.count("\n") >= 2

    def test_several_typed_lines_are_one_message_and_no_command(
        self, cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        typed = iter(["\n    /reset\n\n    x = 1\n", "/reset\n", None])
        monkeypatch.setattr("redraft.cli.prompt.TypedInput.read", lambda self: next(typed))
        outcome = cli("chat", "--model", folder, *OPTIONS, "--json", typed=True)
        assert [message["content"] for message in outcome.json["messages"][::2]] == [
            "    /reset\n\n    x = 1",
            "/reset",
        ]

    def test_lines_of_a_pipe_are_messages_whatever_they_hold(self, cli: Cli, folder: Path) -> None:
        outcome = cli("chat", "--model", folder, *OPTIONS, "--json", stdin=b'"""\na\\\n')
        assert [message["content"] for message in outcome.json["messages"][::2]] == ['"""', "a\\"]

    def test_settings_change_between_answers(self, cli: Cli, folder: Path, llm: LLM) -> None:
        lines = b"/set max-tokens 20\n/set steps 2\nHello\n/reset\n/set max_tokens\n/set\nHello\n"
        outcome = cli("chat", "--model", folder, *OPTIONS, "--json", stdin=lines)
        expected = [llm.generate("Hello", max_tokens=20, steps=2, seed=5), llm.generate("Hello", steps=2, seed=5)]
        assert [answer["text"] for answer in outcome.json["answers"]] == [answer.text for answer in expected]
        assert "max_tokens is 20." in outcome.err
        assert "Set: steps 2, seed 5" in outcome.err
        assert outcome.json["settings"]["steps"] == 2

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("/set steps 0", "steps is 0; it must be at least 1."),
            ("/set steps many", "steps is 'many'; it must be of type int."),
            ("/set preset slow", "preset is 'slow'; it must be"),
            ("/set stepz 3", "did you mean 'steps'?"),
            ("/set logprobs 3", "A conversation shows no logprobs"),
            ("/set logit_bias 5", "logit_bias has '5', which is not ID:BIAS, such as 9:-100."),
            ("/retry", "There is no message to answer again."),
            ("/save", "/save needs the name of a file."),
            ("/save no/such/file", "the folder no/such does not exist."),
        ],
    )
    def test_a_command_that_cannot_be_followed(self, cli: Cli, folder: Path, line: str, said: str) -> None:
        outcome = cli("chat", "--model", folder, *OPTIONS, "--json", stdin=f"{line}\nHello\n".encode(), typed=True)
        assert said in outcome.err.replace("\n", " ")
        assert len(outcome.json["messages"]) == 2
        assert cli("chat", "--model", folder, stdin=line.encode()).code == 2

    def test_the_last_message_is_answered_again_with_the_next_seed(self, cli: Cli, folder: Path, llm: LLM) -> None:
        lines = b"Hello\nAnd you?\n/retry\n/retry\nGood\n"
        outcome = cli("chat", "--model", folder, *OPTIONS, "--json", stdin=lines)
        *answers, last = outcome.json["answers"]
        history = outcome.json["messages"][:3]
        given = SETTINGS | {"seed": 7}
        assert answers[3]["text"] == llm.generate(history, **given).text
        assert len({answer["text"] for answer in answers[1:]}) == 3
        assert [message["content"] for message in outcome.json["messages"][::2]] == ["Hello", "And you?", "Good"]
        assert last["text"] == llm.generate(outcome.json["messages"][:5], **SETTINGS).text

    def test_a_conversation_is_saved_whole_or_not_at_all(
        self, cli: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "said.json"
        outcome = cli("chat", "--model", folder, *OPTIONS, "--json", stdin=f"Hello\n/save {file}\n".encode())
        assert json.loads(file.read_text(encoding="utf-8")) == outcome.json
        before = file.read_bytes()

        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        outcome = cli("chat", "--model", folder, *OPTIONS, stdin=f"And you?\n/save {file}\n".encode())
        assert outcome.err.endswith(f"error: {file} cannot be written: No space left on device.\n")
        assert (file.read_bytes(), list(tmp_path.iterdir())) == (before, [file])

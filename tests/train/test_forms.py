"""Rows in the forms of other trainers: each becomes the documents of the same conversation under `messages`."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from redraft.errors import InputError, SettingError
from redraft.model.folders import resolve_folder
from redraft.text.template import ChatTemplate
from redraft.text.tokenizer import Tokenizer
from redraft.train.jsonl import Limits, read_jsonl
from redraft.train.recipe import DataSettings, SourceSettings
from redraft.train.sources import open_sources

TINY = resolve_folder("tiny")
TOKENIZER, TEMPLATE = Tokenizer.from_folder(TINY), ChatTemplate.from_folder(TINY)
LIMITS = Limits(tokens=512, canvas=16, canvases=0)
SYSTEM = {"role": "system", "content": "Be brief."}
TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "And?"}, {"role": "assistant", "content": "Bye."}]  # fmt: skip
ADD = {"name": "add", "description": "Add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
TOOLS = [{"type": "function", "function": ADD}]
CALL = {"name": "add", "arguments": {"a": 1}}
CALLED = [{"role": "user", "content": "1?"},
          {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": CALL}]},
          {"role": "tool", "tool_call_id": "1", "content": '{"sum": 2}'},
          {"role": "assistant", "content": "It is 2."}]  # fmt: skip


def turns(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"from": speaker, "value": value} for speaker, value in pairs]


SAID = turns(("human", "Hi"), ("gpt", "Hello!"), ("human", "And?"), ("gpt", "Bye."))
CALLING = turns(("human", "1?"), ("function_call", json.dumps(CALL)), ("observation", '{"sum": 2}'),
                ("gpt", "It is 2."))  # fmt: skip


def learned(path: Path, *records: object) -> list[tuple[list[int], list[int]]]:
    """(prompt, answer) of every document, as token ids."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    shard = read_jsonl(path, text=False, tokenizer=TOKENIZER, template=TEMPLATE, limits=LIMITS)
    assert not shard.suffix_lengths.any()
    return [shard.pieces(document)[:2] for document in range(len(shard))]


SAME = [
    ({"conversations": SAID}, {"messages": TALK}),
    ({"conversations": SAID, "system": "Be brief."}, {"messages": [SYSTEM, *TALK]}),
    ({"conversations": turns(("system", "Be brief.")) + SAID, "system": ""}, {"messages": [SYSTEM, *TALK]}),
    (
        {"conversations": turns(("user", "Hi"), ("assistant", "Hello!"), ("user", "And?"), ("model", "Bye."))},
        {"messages": TALK},
    ),
    ({"conversations": TALK}, {"messages": TALK}),
    (
        {"conversations": [{"from": None, "value": None, **TALK[0]}, {"role": None, "content": None, **SAID[1]}]},
        {"messages": TALK[:2]},
    ),
    (
        {"conversations": [SAID[0], SAID[1] | {"weight": 0}, *SAID[2:]]},
        {"messages": [TALK[0], TALK[1] | {"weight": 0}, *TALK[2:]]},
    ),
    ({"conversations": CALLING, "tools": json.dumps([ADD])}, {"messages": CALLED, "tools": TOOLS}),
    ({"conversations": CALLING, "tools": TOOLS}, {"messages": CALLED, "tools": TOOLS}),
    (
        {"conversations": turns(("human", "1?"), ("function_call", json.dumps([CALL, CALL]))), "tools": [ADD]},
        {"messages": [CALLED[0], CALLED[1] | {"tool_calls": CALLED[1]["tool_calls"] * 2}], "tools": TOOLS},  # type: ignore[operator]
    ),
    ({"messages": CALLED, "tools": json.dumps(TOOLS)}, {"messages": CALLED, "tools": TOOLS}),
    ({"messages": TALK, "tools": ""}, {"messages": TALK}),
    ({"instruction": "Hi", "output": "Hello!"}, {"messages": TALK[:2]}),
    ({"instruction": "Hi", "output": "Hello!", "text": "Below is ...", "history": []}, {"messages": TALK[:2]}),
    ({"instruction": "Hi", "input": "", "output": "Hello!", "system": None}, {"messages": TALK[:2]}),
    (
        {"instruction": "Add.", "input": "1 1", "output": "2", "system": "Be brief.", "id": 1},
        {
            "messages": [
                SYSTEM,
                {"role": "user", "content": "Add.\n1 1"},
                {"role": "assistant", "content": "2"},
            ]
        },
    ),
    ({"instruction": "", "input": "Hi", "output": "Hello!"}, {"messages": TALK[:2]}),
    ({"prompt": TALK[:1], "completion": TALK[1:2]}, {"messages": TALK[:2]}),
    (
        {"prompt": TALK[:3], "completion": TALK[3:]},
        {"messages": [TALK[0], TALK[1] | {"weight": 0}, *TALK[2:]]},
    ),
    ({"prompt": TALK[:1], "completion": TALK[1:]}, {"messages": TALK}),
    (
        {"prompt": CALLED[:3], "completion": CALLED[3:], "tools": json.dumps(TOOLS)},
        {"messages": [CALLED[0], CALLED[1] | {"weight": 0}, *CALLED[2:]], "tools": TOOLS},
    ),
]


@pytest.mark.parametrize(("row", "meant"), SAME)
def test_a_row_is_the_conversation_that_it_means(tmp_path: Path, row: dict[str, Any], meant: dict[str, Any]) -> None:
    found = learned(tmp_path / "a.jsonl", copy.deepcopy(row))
    assert found == learned(tmp_path / "b.jsonl", meant)
    assert found


def test_of_a_prompt_nothing_is_learned(tmp_path: Path) -> None:
    ((prompt, answer),) = learned(tmp_path / "a.jsonl", {"prompt": TALK[:3], "completion": TALK[3:]})
    assert TOKENIZER.decode(prompt) == TEMPLATE.render(TALK[:3])
    assert TOKENIZER.decode(answer) == "Bye.<turn|>"


def test_of_turns_only_the_models_are_learned(tmp_path: Path) -> None:
    answers = [TOKENIZER.decode(answer) for _, answer in learned(tmp_path / "a.jsonl", {"conversations": SAID})]
    assert answers == ["Hello!<turn|>", "Bye.<turn|>"]
    rows = learned(tmp_path / "b.jsonl", {"conversations": CALLING, "tools": [ADD]})
    first, second = (TOKENIZER.decode(answer) for _, answer in rows)
    assert first.startswith("<|tool_call>call:add{a:1}<tool_call|>")
    assert second == "It is 2.<turn|>"


WRONG = [
    (
        {"messages": TALK, "conversations": SAID},
        "there is more than one document in the line: messages; conversations; keep",
    ),
    (
        {"instruction": "a", "output": "b", "prompt": "c", "completion": "d"},
        "there is more than one document in the line: instruction and output; completion and prompt; keep one of them",
    ),
    ({"instruction": "a", "output": "b", "history": [["c", "d"]]}, "history must be empty; give several turns as"),
    ({"conversations": SAID, "input": "a"}, "the keys are conversations, input; they must be messages"),
    ({"conversations": turns(("system", "a")) + SAID, "system": "b"}, "the system message is given twice, under sys"),
    ({"conversations": SAID, "system": 1}, "system must be a string"),
    ({"conversations": []}, "conversations must be a list with at least one message"),
    ({"conversations": SAID[:1]}, "messages must have an assistant message to learn"),
    ({"conversations": [1, *SAID]}, r"conversations\[0\] must be a mapping"),
    ({"conversations": turns(("bot", "a"))}, r"conversations\[0\] is from 'bot'; known are human, user, gpt"),
    ({"conversations": [SAID[0], {"from": "gpt"}]}, r"conversations\[1\] must have strings under both from and value"),
    ({"conversations": [SAID[0] | TALK[0], SAID[1]]}, r"conversations\[0\] has from and value, so it can have neither"),
    ({"conversations": [SAID[0], SAID[1] | {"mood": 1}]}, r"conversations\[1\] has the key 'mood'; known keys are"),
    ({"conversations": [SAID[0] | {"weight": 1}, SAID[1]]}, r"conversations\[0\] has a weight; only assistant"),
    ({"conversations": [*SAID[:3], SAID[3] | {"value": ""}], "system": "a"}, r"conversations\[3\] is empty"),
    (
        {"conversations": turns(("human", "a"), ("gpt", "b"), ("tool", "c"), ("gpt", "d"))},
        r"conversations\[2\] is a tool's result; it must follow a function_call with a single call",
    ),
    (
        {"conversations": turns(("human", "a"), ("function_call", json.dumps([CALL, CALL])), ("tool", "c"))},
        r"conversations\[2\] is a tool's result; it must follow a function_call with a single call",
    ),
    (
        {"conversations": turns(("human", "a"), ("function_call", "add(1)"))},
        r"conversations\[1\] is a function_call that is not JSON \(Expecting value",
    ),
    (
        {"conversations": turns(("human", "a"), ("function_call", '{"name": "add"}'))},
        r"conversations\[1\] is a function_call; it must be a JSON object of name and arguments, or a list of them",
    ),
    ({"messages": TALK, "tools": "[add]"}, r"tools is not JSON \(Expecting value"),
    ({"instruction": 1, "output": "b"}, "instruction must be a string"),
    ({"instruction": "", "input": "", "output": "b"}, "instruction is empty"),
    ({"instruction": "a", "output": "", "system": "c"}, "output is empty"),
    ({"prompt": TALK[:1], "completion": "a"}, "prompt and completion must both be strings, or both be lists of mess"),
    ({"prompt": "a", "completion": TALK[1:2]}, "prompt and completion must both be strings, or both be lists of mess"),
    ({"prompt": [], "completion": TALK[1:2]}, "prompt must be a list with at least one message"),
    ({"prompt": TALK[:1], "completion": TALK[2:3]}, "messages must have an assistant message to learn"),
    ({"prompt": TALK[:1], "completion": [TALK[1], {"role": "boss"}]}, r"completion\[1\] has the role 'boss'"),
    (
        {"prompt": [TALK[0], TALK[1] | {"weight": 1}, TALK[2]], "completion": TALK[3:]},
        r"prompt\[1\] has the weight 1; only the completion is learned",
    ),
    (
        {"prompt": TALK[:2], "completion": TALK[3:]},
        r"completion\[0\] follows another assistant message, which this chat template cannot continue",
    ),
    ({"prompt": "a", "completion": "b", "tools": TOOLS}, "tools can be given only if prompt and completion are lists"),
]


@pytest.mark.parametrize(("row", "message"), WRONG)
def test_a_wrong_row_is_named_in_its_own_words(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=rf"a\.jsonl, line 2: {message}"):
        learned(tmp_path / "a.jsonl", {"prompt": "a", "completion": "b"}, row)


def test_a_list_in_one_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "alpaca.json"
    path.write_text(json.dumps([{"instruction": "Hi", "output": "Hello!"}]))
    source = SourceSettings(name="chats", kind="chat", share=1.0, path=str(path))
    data = DataSettings(rows=1, tokens=64, canvases=1, sources=(source,), tokenizer=str(TINY))
    with pytest.raises(
        SettingError, match=r"source chats: .*alpaca\.json' is no shard; of a JSON list make JSON lines"
    ):
        open_sources(data, 16_384, 16)


def test_files_that_are_neither_json_lines_nor_shards_are_told_what_json_lines_are_called(tmp_path: Path) -> None:
    for name in ("chats.txt", "chats.csv", "chats.jsonl.gz"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
        settings = SourceSettings(name="chats", kind="chat", share=1.0, path=str(tmp_path / name))
        with pytest.raises(SettingError, match=rf"source chats: .*{name} is not .*; JSON lines are .* end in \.jsonl"):
            open_sources(DataSettings(rows=1, tokens=64, canvases=1, sources=(settings,)), 1000, 16)

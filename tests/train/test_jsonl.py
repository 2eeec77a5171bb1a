"""Fine-tuning data from JSON lines: what becomes of it, what is learned, and every kind of bad line."""

import copy
import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from redraft.cli.main import main
from redraft.errors import InputError, SettingError
from redraft.model.folders import resolve_folder
from redraft.text.prompt import encode_chat
from redraft.text.template import ChatTemplate
from redraft.text.tokenizer import Tokenizer
from redraft.train.batch import Batch
from redraft.train.check import samples
from redraft.train.checkpoint import FILE
from redraft.train.jsonl import Limits, read_jsonl
from redraft.train.packing import Packer
from redraft.train.recipe import DataSettings, ObjectiveSettings, Recipe, SourceSettings
from redraft.train.sources import ChatShard
from redraft.train.trainer import Trainer

TINY = resolve_folder("tiny")
TOKENIZER, TEMPLATE = Tokenizer.from_folder(TINY), ChatTemplate.from_folder(TINY)
LIMITS = Limits(tokens=512, canvas=16, canvases=0)
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}}}}]  # fmt: skip
CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]}  # fmt: skip


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def assistant(text: str, **more: object) -> dict:
    return {"role": "assistant", "content": text, **more}


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def documents(path: Path, *, text: bool = False) -> list[tuple[str, str, str]]:
    """(prompt, learned, given suffix) of every document."""
    shard = read_jsonl(path, text=text, tokenizer=TOKENIZER, template=TEMPLATE, limits=LIMITS)
    return [tuple(map(TOKENIZER.decode, shard.pieces(document))) for document in range(len(shard))]


def test_every_assistant_message_is_an_answer_to_its_own_prompt(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        user("Hi"),
        assistant("Hello!"),
        user("And?"),
        assistant("Bye."),
    ]
    first, second = documents(write(tmp_path / "a.jsonl", {"messages": messages, "id": 7, "metadata": {"x": 1}}))
    for number, (prompt, answer, suffix) in ((2, first), (4, second)):
        assert prompt == TEMPLATE.render(messages[:number])
        assert answer == messages[number]["content"] + "<turn|>"
        assert suffix == ""


def test_a_message_of_weight_0_is_context_alone(tmp_path: Path) -> None:
    given = [user("Hi"), assistant("Hello!"), user("And?"), assistant("Bye.")]
    for weights, learned in (((0, 1), [1]), ((1, 0), [0]), ((1, 1), [0, 1]), ((None, 1), [0, 1])):
        messages = copy.deepcopy(given)
        messages[1]["weight"], messages[3]["weight"] = weights
        found = documents(write(tmp_path / "a.jsonl", {"messages": messages}))
        every = documents(write(tmp_path / "b.jsonl", {"messages": given}))
        assert found == [every[number] for number in learned]
    opening = [{"role": "assistant", "content": "Ask me.", "weight": 0}, user("Hi"), assistant("Hello!")]
    assert [answer for _, answer, _ in documents(write(tmp_path / "c.jsonl", {"messages": opening}))] == [
        "Hello!<turn|>"
    ]


def test_what_an_api_leaves_empty_in_its_answers_may_be_there(tmp_path: Path) -> None:
    empty = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}
    plain, full = ([user("Hi"), {**assistant("Hello!"), **more}] for more in ({}, empty))
    first, second = ({"messages": messages} for messages in (plain, full))
    assert documents(write(tmp_path / "a.jsonl", first)) == documents(write(tmp_path / "b.jsonl", second))


def test_special_strings_in_messages_are_plain_text_as_when_the_model_is_asked(tmp_path: Path) -> None:
    messages = [user("End<turn|>\n<|turn>model\nHa"), assistant("A <turn|> is a mark.")]
    path = write(tmp_path / "a.jsonl", {"messages": messages})
    shard = read_jsonl(path, text=False, tokenizer=TOKENIZER, template=TEMPLATE, limits=LIMITS)
    prompt, answer, _ = shard.pieces(0)
    assert prompt == encode_chat(TEMPLATE, TOKENIZER, messages[:1])
    assert prompt != TOKENIZER.encode(TEMPLATE.render(messages[:1]))
    assert [place for place, token in enumerate(answer) if token == TOKENIZER.turn_end_id] == [len(answer) - 1]
    assert TOKENIZER.decode(answer) == "A <turn|> is a mark.<turn|>"


def test_calls_results_and_thoughts_are_written_as_the_template_has_them(tmp_path: Path) -> None:
    messages = [user("1?"), CALL, {"role": "tool", "tool_call_id": "1", "content": "2"}, assistant("It is 2.")]
    (prompt, call, _), (after, answer, _) = documents(
        write(tmp_path / "a.jsonl", {"messages": messages, "tools": TOOLS})
    )
    assert "<|tool>declaration:add" in prompt
    assert call.startswith("<|tool_call>call:add{a:1}<tool_call|>")
    assert after.endswith("<tool_response|>")
    assert answer == "It is 2.<turn|>"
    ((_, thought, _),) = documents(
        write(tmp_path / "b.jsonl", {"messages": [user("?"), assistant("4", reasoning="2+2")]})
    )
    assert thought == "<|channel>thought\n2+2\n<channel|>4<turn|>"


def test_arguments_may_be_strings_of_json_as_the_openai_api_writes_them(tmp_path: Path) -> None:
    def history(arguments: object) -> dict[str, object]:
        call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": arguments}}
        return {"messages": [user("1?"), {"role": "assistant", "content": None, "tool_calls": [call]}], "tools": TOOLS}

    for number, (string, mapping) in enumerate((('{"a": 1}', {"a": 1}), ("{}", {}), ("", {}))):
        first, second = write(tmp_path / f"s{number}.jsonl", history(string)), tmp_path / f"m{number}.jsonl"
        assert documents(first) == documents(write(second, history(mapping)))


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    line = json.dumps({"prompt": "a", "completion": "b"})
    (tmp_path / "a.jsonl").write_text(f"{line}\r\n{line}\r\n", encoding="utf-8-sig", newline="")
    assert documents(tmp_path / "a.jsonl") == [("<bos>a", "b", "")] * 2


def test_plain_kinds(tmp_path: Path) -> None:
    pair, hole = {"prompt": "Q: 1+1\nA:", "completion": " 2"}, {"prefix": "a = ", "middle": "1", "suffix": "\nb = 2\n"}
    assert documents(write(tmp_path / "a.jsonl", pair, hole)) == [
        ("<bos>Q: 1+1\nA:", " 2", ""), ("<bos>a = ", "1", "\nb = 2\n"),
    ]  # fmt: skip
    assert documents(write(tmp_path / "t.jsonl", {"text": "<bos> is text"}), text=True) == [
        ("", "<bos><bos> is text", "")
    ]
    tokens = read_jsonl(tmp_path / "t.jsonl", text=True, tokenizer=TOKENIZER, template=None, limits=LIMITS).tokens
    assert (tokens == TOKENIZER.bos_id).sum() == 1


def test_the_end_of_plain_text_is_always_learned(tmp_path: Path) -> None:
    """Text that fills its canvases has an end of its own; that of any other fills the last one."""
    full = "7" * 2 * LIMITS.canvas
    assert len(TOKENIZER.encode(full, special=False)) == 2 * LIMITS.canvas
    records = {"prompt": "a", "completion": full}, {"prefix": "a", "middle": full, "suffix": ""}
    assert documents(write(tmp_path / "a.jsonl", *records)) == [("<bos>a", full + "<eos>", "")] * 2
    hole = {"prefix": "a", "middle": full, "suffix": "b"}
    assert documents(write(tmp_path / "b.jsonl", hole)) == [("<bos>a", full, "b")]


def test_the_last_canvas_may_begin_where_its_row_ends(jsonl_recipe: Recipe, tmp_path: Path) -> None:
    tokens, canvas = jsonl_recipe.data.tokens, jsonl_recipe.model.canvas_length
    limits = Limits(tokens=tokens, canvas=canvas, canvases=0)
    for prompt, answer, fits in (
        (tokens - canvas, canvas + 1, True), (tokens - canvas + 1, canvas + 1, False), (tokens, 1, False),
        (tokens - 1, 1, True),
    ):  # fmt: skip
        path = write(tmp_path / "a.jsonl", {"prompt_ids": [50] * prompt, "answer_ids": [60] * answer})
        if not fits:
            with pytest.raises(InputError, match="the last canvas begins at token"):
                read_jsonl(path, text=False, tokenizer=TOKENIZER, template=None, limits=limits)
            continue
        source = dataclasses.replace(jsonl_recipe.data.sources[0], path=str(path))
        starts = Packer(with_sources(jsonl_recipe, source)).batch(0)["canvas_start"]
        assert set(starts.flatten().tolist()) == set(range(prompt, prompt + answer, canvas))


def calling(arguments: str) -> str:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    return json.dumps({"messages": [user("1?"), {"role": "assistant", "tool_calls": [call]}], "tools": TOOLS})


CONTINUED = [user("1?"), CALL | {"content": "Let me see."}, {"role": "tool", "tool_call_id": "1", "content": "2"},
             assistant("It is 2.")]  # fmt: skip


def chat(*messages: dict) -> str:
    return json.dumps({"messages": messages})


BAD = [
    (json.dumps({"messages": CONTINUED, "tools": TOOLS}), r"messages\[1\] has both content and calls, whose results"),
    ('{"prompt_ids": [1' + "0" * 5000 + '], "answer_ids": [1]}', r"not valid JSON \(a number with thousands of digits"),
    (calling('{"a": '), r"messages\[1\] has a call whose arguments are not JSON \(Expecting value at column 7"),
    (json.dumps({"messages": [user("a"), CALL | {"x": float("nan")}]}), r"not valid JSON \(NaN is not a JSON value\)"),
    ('{"prompt": "a", "completion": "b", "metadata": 1e999}', r"not valid JSON \(the number 1e999 is too large\)"),
    (calling('{"a": NaN}'), r"messages\[1\] has a call whose arguments are not JSON \(NaN is not a JSON value\)"),
    (calling("[1]"), r"messages\[1\] has a call whose arguments are not a JSON object"),
    ('{"prompt": "a", "completion"', "not valid JSON"),
    ("[1]", "not a JSON object"),
    ('{"prompt": "a"}', "the keys are prompt; they must be messages; prompt and completion"),
    ('{"prompt": "a", "completion": "b", "weight": 2}', "the keys are completion, prompt, weight"),
    ('{"prompt": "a", "completion": 3}', "completion must be a string"),
    ('{"prompt": "a", "completion": ""}', "completion is empty"),
    (chat(user("a"), assistant("b", foo=1)), r"messages\[1\] has the key 'foo'; known keys are role, content, name"),
    (chat(user("a"), CALL | {"tool_call": [1]}), r"messages\[1\] has the key 'tool_call'; known keys are"),
    (
        chat(user("a"), assistant("b", weight=0.5)),
        r"messages\[1\] has the weight 0.5; it must be 0 \(not learned\) or 1",
    ),
    (chat(user("a"), assistant("b", weight=True)), r"messages\[1\] has the weight True; it must be 0"),
    (
        chat(user("a") | {"weight": 0}, assistant("b")),
        r"messages\[0\] has a weight; only assistant messages are learned",
    ),
    (chat(user("a"), assistant("b", weight=0)), "must have an assistant message to learn, with what it answers before"),
    ('{"text": "a"}', "the keys are text"),
    ('{"messages": []}', "at least one message"),
    (
        json.dumps({"messages": [user([{"type": "image", "image": "a.png"}]), user("y") | {"role": "assistant"}]}),
        r"messages\[0\] holds image; training reads text alone",
    ),
    (
        '{"messages": [{"role": "user", "content": "x"}]}',
        "must have an assistant message to learn, with what it answers before it",
    ),
    (
        '{"messages": [{"role": "assistant", "content": "x"}]}',
        "must have an assistant message to learn, with what it answers before it",
    ),
    ('{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}]}', r"messages\[1\]"),
    ('{"messages": [{"role": "boss", "content": "x"}, {"role": "assistant", "content": "y"}]}', "boss"),
    (
        '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "thinking": 1}',
        "thinking",
    ),
    (json.dumps({"prompt": "a", "completion": "x " * 70}), "max_canvases is 2"),
    (json.dumps({"prompt": "a b " * 400, "completion": "x"}), "raise data.tokens or shorten"),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_a_bad_line_is_named_with_its_file_and_number(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "a", "completion": "b"}\n\n' + line + "\n", encoding="utf-8")
    limits = dataclasses.replace(LIMITS, canvases=2)
    with pytest.raises(InputError, match=rf"bad\.jsonl, line 3: .*{message}"):
        read_jsonl(path, text=False, tokenizer=TOKENIZER, template=TEMPLATE, limits=limits)


def test_empty_and_missing_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}\n')
    for name, message in (("empty", "holds no documents"), ("latin", "line 1: not UTF-8"), ("none", "cannot be read")):
        with pytest.raises(InputError, match=message):
            read_jsonl(tmp_path / f"{name}.jsonl", text=False, tokenizer=TOKENIZER, template=None, limits=LIMITS)


@pytest.fixture
def jsonl_recipe(recipe: Recipe, tmp_path: Path) -> Recipe:
    holes = [{"prefix": "x " * n, "middle": "m " * (n + 3), "suffix": " s" * 30} for n in range(1, 12)]
    write(tmp_path / "holes.jsonl", *holes)
    write(tmp_path / "pairs.jsonl", *({"prompt": "p " * n, "completion": "c " * 20} for n in range(1, 9)))
    sources = tuple(
        SourceSettings(name=name, kind="chat", share=1.0, path=str(tmp_path / f"{name}.jsonl"), heldout=0.0)
        for name in ("holes", "pairs")
    )
    data = DataSettings(rows=8, tokens=128, canvases=4, sources=sources, tokenizer=str(TINY))
    return dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, vocab_size=16_384), data=data)


def with_sources(recipe: Recipe, *sources: SourceSettings) -> Recipe:
    return dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, sources=sources))


def test_holes_are_learned_and_their_suffix_is_given(jsonl_recipe: Recipe) -> None:
    batch = Packer(jsonl_recipe).batch(0)
    (middle,), (suffix,) = (set(TOKENIZER.encode(text)[1:]) for text in ("m m m", " s s s"))
    mine = batch["source"] == 0
    target, region = batch["canvas_target"][mine], batch["noise_region"][mine]
    used = batch["canvas_document"][mine] >= 0
    assert used.any()
    assert not np.isin(target[region], [suffix]).any()
    assert np.isin(target[~region & used[..., None]], [suffix]).any()
    assert not region[~used].any()
    assert ((batch["canvas_weight"] > 0) == batch["noise_region"]).all()
    assert np.isin(target[region], [middle]).mean() > 0.5
    pairs = batch["noise_region"][~mine][batch["canvas_document"][~mine] >= 0]
    assert pairs.all()


def test_no_conversation_is_both_trained_and_held_out(jsonl_recipe: Recipe, tmp_path: Path) -> None:
    def talk(number: int) -> dict:
        turns = [(user(f"{number}{turn}?"), assistant(f"{turn}")) for turn in range(5)]
        return {"messages": [message for pair in turns for message in pair]}

    for name in "ab":
        write(tmp_path / f"{name}.jsonl", *(talk(number) for number in range(3)))
    source = dataclasses.replace(jsonl_recipe.data.sources[0], path=str(tmp_path / "?.jsonl"), heldout=0.25)
    packer = Packer(with_sources(jsonl_recipe, source))
    (chat,) = packer.sources
    assert isinstance(chat, ChatShard)
    drawn = {part: set(chat.draw(np.random.default_rng(0), 20, part)[1].flatten().tolist())
             for part in ("train", "heldout")}  # fmt: skip
    assert drawn == {"train": {*range(10), *range(15, 25)}, "heldout": {*range(10, 15), *range(25, 30)}}


def test_a_pattern_that_matches_json_lines_must_say_so(jsonl_recipe: Recipe, tmp_path: Path) -> None:
    source = dataclasses.replace(jsonl_recipe.data.sources[0], path=str(tmp_path / "hol*"))
    with pytest.raises(SettingError, match=r"source holes: path '.*hol\*' matches '.*holes\.jsonl'; for JSON lines"):
        Packer(with_sources(jsonl_recipe, source))


def test_spare_room_is_never_given_text(jsonl_recipe: Recipe) -> None:
    holes, _ = jsonl_recipe.data.sources
    holes = dataclasses.replace(holes, spare_holes=1.0, infill=0.5)
    batch = Packer(with_sources(jsonl_recipe, holes)).batch(0)
    padded = (batch["canvas_target"] == TOKENIZER.pad_id) & (batch["canvas_document"] >= 0)[..., None]
    assert padded.any()
    assert batch["noise_region"][padded].all()


def test_spare_room_needs_a_line_with_a_hole(jsonl_recipe: Recipe, tmp_path: Path) -> None:
    """Else the exported model would be said to know when a hole has room to spare."""
    holes, _ = jsonl_recipe.data.sources
    file = write(tmp_path / "talk.jsonl", {"messages": [user("a"), assistant("b")]}, {"prompt": "a", "completion": "b"})
    talk = dataclasses.replace(holes, path=str(file), spare_holes=0.5)
    with pytest.raises(SettingError, match="source holes: spare_holes has no effect without a line of prefix, middle"):
        Packer(with_sources(jsonl_recipe, talk))
    write(file, {"prefix": "a", "middle": "b", "suffix": "c"}, {"prompt": "a", "completion": "b"})
    Packer(with_sources(jsonl_recipe, talk))


def test_holes_of_json_lines_may_have_spare_room(jsonl_recipe: Recipe) -> None:
    holes, pairs = jsonl_recipe.data.sources
    batch = Packer(with_sources(jsonl_recipe, dataclasses.replace(holes, spare_holes=1.0), pairs)).batch(0)
    target, region = batch["canvas_target"], batch["noise_region"]
    padded = (target == TOKENIZER.pad_id) & (batch["canvas_document"] >= 0)[..., None]
    (suffix,) = set(TOKENIZER.encode(" s s s")[1:])
    assert (region | ~padded).all()
    assert padded[batch["source"] == 0].any()
    assert not padded[batch["source"] == 1].any()
    for row, slot in np.argwhere(padded.any(-1)):
        last = int(np.flatnonzero(padded[row, slot])[-1])
        assert (target[row, slot, last + 1 : last + 4] == suffix).all()


@pytest.mark.parametrize("objective", [{"levels": "high"}, {"corruption": "absorbing"}])
def test_the_check_shows_the_noise_of_the_first_batch(jsonl_recipe: Recipe, objective: dict[str, str]) -> None:
    """On a CPU, where the noise of training is drawn there too."""
    recipe = dataclasses.replace(jsonl_recipe, objective=ObjectiveSettings(**objective))
    seen = []
    trainer = Trainer(recipe, device="cpu", quiet=True)
    trainer.build()
    trainer.stream.losses = lambda batch, noise, *_: seen.append(noise)  # type: ignore[method-assign]
    batch = Batch.from_arrays(trainer.packer.batch(0)).to(torch.device("cpu"))
    trainer.stream(batch, recipe.run.seed, 0)
    shown = list(samples(recipe, trainer.packer, None, 2))
    levels = {
        float(level): canvas
        for level, canvas in zip(seen[0].level.flatten(), seen[0].tokens.flatten(0, 1), strict=True)
    }
    assert len(shown) == 4
    for sample in shown:
        assert sample.noisy == " ".join(map(str, levels[sample.level].tolist()))


RECIPE = """
[data]
rows = 2
tokens = 64
canvases = 2
[[data.sources]]
name = "pairs"
kind = "chat"
share = 1.0
path = "{path}"
heldout = 0.0
[optimizer]
steps = 1
learning_rate = 1e-3
[run]
init = "tiny"
out = "{out}"
"""


def test_the_check_shows_decoded_canvases_and_trains_nothing(tmp_path: Path, capsys) -> None:
    """A recipe that begins with a model needs neither its shape nor its tokenizer."""
    data = write(tmp_path / "pairs.jsonl", {"prompt": "Say blue:", "completion": " blue sky"})
    recipe = tmp_path / "r.toml"
    recipe.write_text(RECIPE.format(path=data.as_posix(), out=(tmp_path / "out").as_posix()))
    assert main(["train", "--check", str(recipe)]) == 0
    shown = capsys.readouterr().out
    assert "context  ...<bos>Say blue:" in shown
    padding, *_ = re.findall(r"\[\[ blue sky<eos> x (\d+)\]\]", shown)
    assert "<eos><eos><eos><eos>" not in shown
    assert not (tmp_path / "out").exists()
    assert main(["train", "--check", "--json", str(recipe)]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["sources"][0]["source"] == "pairs"
    assert summary["samples"][0]["spans"][0] == [" blue sky" + "<eos>" * int(padding), True]
    assert summary["adapted"] == []
    assert main(["train", "--check", "--resume", str(recipe)]) == 2
    data.write_text('{"prompt": 1, "completion": "x"}\n')
    assert main(["train", "--check", str(recipe)]) == 2
    assert "pairs.jsonl, line 1: prompt must be a string" in capsys.readouterr().err


def test_the_check_regards_the_adapter_and_the_folder(tmp_path: Path, capsys) -> None:
    data = write(tmp_path / "pairs.jsonl", {"prompt": "Say blue:", "completion": " blue sky"})
    recipe, out = tmp_path / "r.toml", tmp_path / "out"
    plain = RECIPE.format(path=data.as_posix(), out=out.as_posix())
    recipe.write_text(plain + '[lora]\nrank = 4\ntargets = ["layers.1.mlp.*_proj", "router"]\n')
    assert main(["train", "--check", str(recipe)]) == 0
    first = "LoRA of rank 4 in 12 modules, from layers.0.router.proj to layers.8.router.proj\n"
    assert capsys.readouterr().out.startswith(first)
    assert main(["train", "--check", "--json", str(recipe)]) == 0
    assert "layers.1.mlp.up_proj" in json.loads(capsys.readouterr().out)["adapted"]
    wrong = {'rank = 4\ntargets = ["atention"]': "'atention' matches no module", "rank = 9999": "lora.rank is 9999"}
    for lora, said in wrong.items():
        recipe.write_text(f"{plain}[lora]\n{lora}\n")
        assert main(["train", "--check", str(recipe)]) == 2
        assert said in capsys.readouterr().err
    recipe.write_text(plain)
    assert main(["train", "--check", "--out", str(tmp_path / "new"), str(recipe)]) == 0
    assert not (tmp_path / "new").exists()
    out.mkdir()
    (out / FILE).write_bytes(b"")
    assert main(["train", "--check", "--out", str(out), str(recipe)]) == 2
    assert "already holds a run" in capsys.readouterr().err


@pytest.mark.parametrize("adapter", [False, True])
def test_the_check_refuses_a_run_over_the_model_that_it_begins_with(tmp_path: Path, capsys, adapter: bool) -> None:
    data = write(tmp_path / "pairs.jsonl", {"prompt": "Say blue:", "completion": " blue sky"})
    recipe, out = tmp_path / "r.toml", tmp_path / "out"
    base = shutil.copytree(resolve_folder("tiny"), out / ("adapter" if adapter else "model"))
    plain = RECIPE.format(path=data.as_posix(), out=out.as_posix())
    plain = plain.replace('init = "tiny"', f'init = "{base.as_posix()}"')
    recipe.write_text(plain + "[lora]\nrank = 4\n" * adapter)
    assert main(["train", "--check", str(recipe)]) == 2
    assert "the folder that the run writes to; choose another run.out" in capsys.readouterr().err
    assert main(["train", "--check", "--out", str(tmp_path / "new"), str(recipe)]) == 0

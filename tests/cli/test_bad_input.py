"""Bad input: exit code 2, one sentence on standard error, nothing on standard output, nothing written."""

import errno
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from outcome import CONTEXT, Cli

import redraft
from redraft.errors import PromptError


def refused(cli: Cli, words: str, *args: object, stdin: bytes = b"") -> None:
    outcome = cli(*args, stdin=stdin)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert words in outcome.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "Missing argument 'PROMPT'"),
        (("",), "The prompt is empty."),
        (("  \n",), "The prompt is empty."),
        (("", "--raw"), "The prompt is empty."),
        (("caf\udce9",), "The prompt holds a character that UTF-8 cannot express at index 3."),
        (("-",), "The prompt is empty."),
        (("Hello", "--stepz", "4"), "No such option: --stepz"),
        (("Hello", "--steps", "many"), "--steps"),
        (("Hello", "--steps", "0"), "steps is 0; it must be at least 1."),
        (("Hello", "--canvas-length", "7"), "canvas_length is 7; it must be between 16 and 512."),
        (("Hello", "--canvas-length", "513"), "canvas_length is 513"),
        (("Hello", "--preset", "quick"), "preset is 'quick'; it must be one of fast, balanced, careful."),
        (("Hello", "--max-tokens", "0"), "max_tokens is 0"),
        (("Hello", "--entropy-bound", "0"), "entropy_bound is 0.0"),
        (("Hello", "--t-min", "0.9", "--t-max", "0.5"), "t_max is 0.5; it must be above t_min (0.9)."),
        (("Hello", "--t-min", "nan"), "t_min is nan; it must be at least 0"),
        (("Hello", "--t-min", "2e6"), "t_min is too large or not a number"),
        (("Hello", "--t-max", "-1"), "t_max is -1.0; it must be at least 1e-06."),
        (("Hello", "--seed", "-1"), "seed is -1"),
        (("Hello", "--stop", ""), "stop has an empty string; leave it out."),
        (("Hello", "--logit-bias", "x:1"), "logit_bias has 'x:1', which is not ID:BIAS, such as 9:-100."),
        (("Hello", "--logit-bias", "5:1", "--logit-bias", "5:2"), "logit_bias has two numbers for one token"),
        (("Hello", "--logit-bias", "5:nan"), "logit_bias has nan for token 5; it must be a number from -100 to 100."),
        (("Hello", "--raw", "--system", "Be brief."), "--system needs the chat format"),
        (("Hello", "--pin", "0:Dear", "--pin", "0:Hello"), "Two of --pin have the same offset"),
        (("Hello", "--pin", "0:"), "--pin '0:' is not OFFSET:TEXT, such as 0:Dear."),
        (("Hello", "--trace", "/no/such/trace"), "trace cannot be written: the folder /no/such does not exist."),
        (("Hello", "--trace", f"{__file__}/trace"), f"{__file__} is not a writable folder."),
        (("Hello", "--trace", "/dev/null"), "is not a regular file"),
    ],
)
def test_settings_are_judged_before_a_model_is_loaded(cli: Cli, args: tuple[str, ...], words: str) -> None:
    refused(cli, words, "generate", *args, "--model", "/no/such/model")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--dtype", "float16"), "dtype is 'float16'; it must be one of auto, bfloat16, float32."),
        (("--device", "tpu"), "device is 'tpu'"),
        (("--quantization", "fp4"), "quantization is 'fp4'; it must be one of fp8, int4, or left out."),
        (("--t-min", "0.9"), "t_min is 0.9; it must be below t_max (0.8)."),
        (("--t-max", "0.3"), "t_max is 0.3; it must be above t_min (0.4)."),
        (("--max-tokens", "100000"), "max_tokens is 100000"),
        (("--logit-bias", "99999999:1"), "logit_bias has the token id 99999999; the vocabulary has"),
    ],
)
def test_what_only_the_model_can_judge(cli: Cli, folder: Path, args: tuple[str, ...], words: str) -> None:
    refused(cli, words, "generate", "Hello", "--model", folder, *args)


def test_a_prompt_longer_than_the_context(cli: Cli, folder: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    refused(cli, "The prompt is too long", "generate", "word " * CONTEXT, "--model", folder, "--trace", trace)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("decide", "Is it?", "--choice", "a", "--choice", "b", "--reads", "0"), "reads is 0; it must be between 1"),
        (("decide", "Is it?", "--choice", "a"), "needs a list of at least two choices"),
        (("edit", "{file}", "--lines", "1", "--strength", "2"), "strength is 2.0; it must be between 0 and 1."),
        (("fill", "{file}", "--length", "0"), "--length is 0; it must be at least 1."),
    ],
)
def test_what_other_commands_take_is_judged_before_a_model_is_loaded(
    cli: Cli, tmp_path: Path, args: tuple[str, ...], words: str
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one<|fill|>line\n")
    refused(cli, words, *(arg.replace("{file}", str(file)) for arg in args), "--model", "/no/such/model")


@pytest.mark.parametrize(
    "args",
    [
        ("edit", "{file}", "--lines", "9" * 5000),
        ("edit", "{file}", "--lines", "1:" + "9" * 5000),
        ("next-edit", "{file}", "--at", "1:" + "9" * 5000),
        ("generate", "Hello", "--pin", "9" * 5000 + ":a"),
    ],
)
def test_numbers_of_thousands_of_digits(cli: Cli, tmp_path: Path, args: tuple[str, ...]) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one line\n")
    words = f"{args[-2]} has a number of 5000 digits, which is too long."
    refused(cli, words, *(arg.replace("{file}", str(file)) for arg in args), "--model", "/no/such/model")


def test_launching_kernel_by_kernel_is_not_a_choice_without_compiling(cli: Cli) -> None:
    refused(cli, "--no-capture has no effect with --eager", "bench", "train", "--eager", "--no-capture")


@pytest.mark.parametrize("args", [("generate",), ("fill",), ("decide", "--choice", "a")])
def test_standard_input_that_is_not_text(cli: Cli, args: tuple[str, ...]) -> None:
    refused(cli, "Standard input is not UTF-8 text: byte 1 cannot be decoded.", *args, "-", stdin=b"a\xff")


def test_standard_input_without_a_hole(cli: Cli) -> None:
    refused(cli, "Standard input has no hole", "fill", "-", stdin=b"a")


@pytest.mark.parametrize("command", ["generate", "inspect"])
def test_a_folder_without_config(cli: Cli, copied: Path, command: str) -> None:
    (copied / "config.json").unlink()
    args = ("Hello", "--model", copied) if command == "generate" else (copied,)
    refused(cli, "has no config.json", command, *args)


@pytest.mark.parametrize(
    ("option", "folder", "file", "kind"),
    [("--model", "model", "config.json", "a model"), ("--adapter", "adapter", "adapter_config.json", "an adapter")],
)
def test_the_folder_of_a_run_in_the_place_of_what_it_left(
    cli: Cli, tmp_path: Path, option: str, folder: str, file: str, kind: str
) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / file).write_text("{}")
    words = f"{tmp_path} has no {file}; it is not {kind} folder, but {tmp_path / folder} may be one."
    refused(cli, words, "generate", "Hello", option, tmp_path)


@pytest.mark.parametrize(
    "args", [("generate", "Hello", "--model"), ("serve", "--model"), ("inspect",), ("convert",), ("quantize",)]
)
def test_an_adapter_in_the_place_of_a_model(cli: Cli, tmp_path: Path, args: tuple[str, ...]) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    out = (tmp_path / "out",) if args[0] in ("convert", "quantize") else ()
    words = f"{tmp_path} holds an adapter, not a model; give the model that it changes, and this folder as `adapter`."
    refused(cli, words, *args, tmp_path, *out)


@pytest.mark.parametrize("out", ["tiny", "./tiny", "26b-a4b"])
@pytest.mark.parametrize("args", [("convert", "nowhere/at-all"), ("quantize", "nowhere/at-all"), ("merge", "a/b", "c")])
def test_a_copy_under_a_name_that_is_not_read_as_a_folder(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], out: str
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(cli, f"{Path(out)} is the name of a model or shape of Redraft's own", *args, out)
    assert not list(tmp_path.iterdir())


def test_a_truncated_shard(cli: Cli, copied: Path) -> None:
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    refused(cli, "model.safetensors is damaged or truncated", "generate", "Hello", "--model", copied)


@pytest.mark.parametrize("command", ["generate", "inspect"])
def test_a_config_of_another_model_type(cli: Cli, copied: Path, command: str) -> None:
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))
    args = ("Hello", "--model", copied) if command == "generate" else (copied,)
    refused(cli, "model_type 'llama'", command, *args)


def test_ids_outside_the_vocabulary(folder: Path) -> None:
    llm = redraft.load(folder, device="cpu")
    with pytest.raises(PromptError, match=r"^Token id 16384 at position 1 is outside .* 16384 entries\.$"):
        llm.generate([2, 16384])


def test_an_unreachable_hub(cli: Cli) -> None:
    refused(cli, "the hub cannot be reached", "generate", "Hello", "--model", "nobody/has-this-model")


@pytest.mark.parametrize("command", ["generate", "inspect"])
def test_a_model_that_is_nothing(cli: Cli, command: str) -> None:
    args = ("Hello", "--model", "no such thing") if command == "generate" else ("no such thing",)
    refused(cli, "is neither 'tiny', nor a folder, nor a hub id", command, *args)


def test_a_file_that_fails_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "runs/x/model.safetensors")

    monkeypatch.setattr("redraft.cli.train.run", full)
    outcome = cli("train", "a.toml")
    assert (outcome.code, outcome.err) == (1, "error: runs/x/model.safetensors: No space left on device.\n")


def test_a_failure_without_a_file_has_no_number(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("redraft.cli.train.run", full)
    outcome = cli("train", "a.toml")
    assert (outcome.code, outcome.err) == (1, "error: No space left on device.\n")


def test_weights_that_find_no_room(folder: Path, tmp_path: Path) -> None:
    command = f"ulimit -f 8; {sys.executable} -m redraft quantize {folder} {tmp_path / 'out'}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    said = rf"error: {re.escape(str(tmp_path / 'out'))}: File too large \([0-9.]+ GB are needed\)\.\n"
    assert done.returncode == 1
    assert re.fullmatch(said, done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_how_much_room_a_copy_needs(folder: Path, tmp_path: Path) -> None:
    command = f"ulimit -f 8; {sys.executable} -m redraft convert {folder} {tmp_path / 'out'} --dtype float32"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    needed = sum(tensor.nbytes for tensor in redraft.load_model(folder, dtype="float32").state_dict().values())
    said = f"error: {tmp_path / 'out'}: File too large ({math.ceil(needed / 1e6) / 1e3} GB are needed).\n"
    assert (done.returncode, done.stderr) == (1, said)
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_the_caller_has_closed(folder: Path) -> None:
    command = f"{sys.executable} -m redraft generate Hello --max-tokens 8 --json --model {folder} >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("args", "code", "err"), [("generate -", 2, "error: The prompt is empty.\n"), ("chat", 0, "")])
def test_an_input_that_the_caller_has_closed(folder: Path, args: str, code: int, err: str) -> None:
    command = f"{sys.executable} -m redraft {args} --model {folder} <&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, err)


def test_an_unknown_command(cli: Cli) -> None:
    refused(cli, "No such command 'draft'. See `redraft --help`.", "draft")
    refused(cli, "Missing option '--lines'. See `redraft edit --help`.", "edit", "FILE")


def test_one_temperature_is_not_an_option(cli: Cli) -> None:
    outcome = cli("generate", "hi", "--temperature", 0.5)
    assert outcome.code == 2
    assert "No such option: --temperature. A schedule has two temperatures: --t-max at its first step, and --t-min" in (
        outcome.err
    )
    outcome = cli("chat", stdin=b"/set temperature 1\n")
    assert outcome.code == 2
    assert "A schedule has two temperatures: t_max at its first step, and t_min" in outcome.err


def test_a_group_without_its_command_shows_its_help(cli: Cli) -> None:
    outcome = cli("eval")
    assert outcome.code == 2
    assert "sudoku" in outcome.out + outcome.err

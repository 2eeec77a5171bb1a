"""The data builders on tiny inputs: what is filtered, how text is cut, and what an evaluation item looks like."""

import json
import random
import zipfile
from email.message import Message
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

import redraft.train.build.__main__ as command
from redraft.train.build import english, infill_eval, python_code, samples
from redraft.train.build.chat import all_tables
from redraft.train.build.decontaminate import EvaluationFilter, human_eval_items, infill_items
from redraft.train.build.encoding import encode_plain
from redraft.train.build.filters import CopyDetector, is_good_code, is_wanted_path, whitespace_hash
from redraft.train.build.sources import (
    HELD_OUT,
    TOOL_WHEELS,
    SourceError,
    SourceFile,
    is_permissive,
    package_files,
    packages,
    wheel,
)
from redraft.train.build.sources import Package as ListedPackage
from redraft.train.build.tokenizer import SPECIAL_TOKENS, save_tokenizer, train_tokenizer
from redraft.train.build.tools import write_second_evaluation
from redraft.train.build.wordnet import Lexicon, synsets
from redraft.train.shards import read_shard

FUNCTION = '''def area_{n}(width, height):
    """The area of rectangle {n}."""
    if width < 0 or height < 0:
        raise ValueError("sides are positive")
    return width * height + {n}


'''
MODULE = "import math\n\n\n" + "".join(FUNCTION.format(n=n) for n in range(6))


def source(text: str, path: str = "shapes/area.py", package: str = "shapes") -> SourceFile:
    return SourceFile(package=package, path=path, text=text)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = [MODULE, "The quick brown fox jumps over the lazy dog. " * 5, "x = [1, 22, 333]\n        return x\n"] * 3
    trained = train_tokenizer(texts, vocabulary_size=500)
    trained.encode_special_tokens = True
    return trained


# --- sources ----------------------------------------------------------------------------------------------------------


def test_the_list_holds_no_held_out_package() -> None:
    listed = packages()
    assert len({package.name for package in listed}) == len(listed) > 60
    assert not {package.name for package in listed} & set(HELD_OUT)
    assert all(package.version and package.licence for package in listed)


def test_every_listed_package_stands_in_the_notice() -> None:
    notice = (Path(__file__).parents[2] / "NOTICE").read_text()
    for package in packages():
        assert f"  {package.name} {package.version}: {package.licence}\n" in notice
    for name, version in TOOL_WHEELS.items():
        assert f"  {name} {version}: Apache-2.0\n" in notice


@pytest.mark.parametrize(
    ("field", "value", "permissive"),
    [
        ("License-Expression", "MIT", True),
        ("Classifier", "License :: OSI Approved :: BSD License", True),
        ("License", "LGPL-2.1-or-later", False),
        ("License-Expression", "MIT OR GPL-3.0", False),
        ("Summary", "MIT", False),
    ],
)
def test_only_stated_permissive_licences_pass(field: str, value: str, permissive: bool) -> None:
    message = Message()
    message[field] = value
    assert is_permissive(message) is permissive


def make_wheel(cache: Path, licence: str) -> ListedPackage:
    (cache / "wheels").mkdir()
    with zipfile.ZipFile(cache / "wheels" / "My_Pack-1.2-py3-none-any.whl", "w") as file:
        file.writestr("my_pack/code.py", "x = 1\r\n")
        file.writestr("my_pack/table.csv", "1,2\n")
        file.writestr("my_pack/latin.py", b"x = '\xe9'\n")
        file.writestr("My_Pack-1.2.dist-info/METADATA", f"Name: my-pack\nLicense-Expression: {licence}\n\nRead me\n")
    return ListedPackage(name="my-pack", version="1.2", licence=licence)


def test_a_wheel_in_the_cache_is_read(tmp_path: Path) -> None:
    package = make_wheel(tmp_path, "MIT")
    assert list(package_files(package, tmp_path)) == [source("x = 1\n", "my_pack/code.py", "my-pack")]


def test_a_copyleft_wheel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="permissive"):
        list(package_files(make_wheel(tmp_path, "GPL-3.0-only"), tmp_path))


def test_a_wheel_that_cannot_be_had_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(SourceError, match="/nowhere/python is needed"):
        wheel("my-pack", "1.2", tmp_path)


# --- filters ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "a/tests/b.py",
        "a/test_b.py",
        "pip/_vendor/x.py",
        "pip/_vendor/rich/table.py",
        "typer/_click/core.py",
        "a/b_pb2.py",
    ],
)
def test_tests_and_vendored_files_are_unwanted(path: str) -> None:
    assert not is_wanted_path(path)


def test_ordinary_paths_are_wanted() -> None:
    assert is_wanted_path("networkx/algorithms/testimony.py")


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n",
        MODULE * 800,
        MODULE + "y = '" + "a" * 300 + "'\n",
        MODULE + "# " + "é" * 60 + "\n",
        "# Auto-generated by a tool, do not edit\n" + MODULE,
        "# GNU General Public License\n" + MODULE,
        "table = [\n" + "    123456, 987654,\n" * 60 + "]\n",
        "names = [\n" + '    "Adams", "Baker", "Clark",\n' * 60 + "]\n",
        MODULE + "def broken(:\n",
    ],
    ids=["small", "large", "long line", "not ascii", "generated", "copyleft", "numbers", "names", "syntax"],
)
def test_bad_code_is_refused(text: str) -> None:
    assert is_good_code(MODULE)
    assert not is_good_code(text)


def test_select_drops_duplicates_and_copies() -> None:
    other = MODULE.replace("area", "volume").replace("rectangle", "box").replace("sides", "edges")
    held = CopyDetector.from_files([source(MODULE)])
    renamed = source("# under another name\n" + MODULE)
    files = [source(other), source(other.replace("\n\n\n", "\n\n")), renamed]
    assert list(python_code.select(files, CopyDetector(lines=frozenset()), set())) == [files[0], renamed]
    assert list(python_code.select([renamed], held, set())) == []
    assert whitespace_hash("a b\n") == whitespace_hash("ab") != whitespace_hash("ac")


# --- decontamination --------------------------------------------------------------------------------------------------


def test_a_copied_answer_is_found_whatever_its_spacing() -> None:
    answer = "    total = sum(price * amount for price, amount in basket.items())\n"
    found = EvaluationFilter.from_items([("def bill(basket):\n", answer, "\n    return total\n")])
    assert found.is_contaminated("x = 1\ntotal=sum( price*amount for price,amount in basket . items() )")
    assert not found.is_contaminated("total = sum(cost * amount for cost, amount in basket.items())")


def test_the_context_of_an_item_is_no_secret() -> None:
    context = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda"
    found = EvaluationFilter.from_items([(context, "one two three four", context)])
    assert not found.is_contaminated(context)
    assert found.is_contaminated("theta iota kappa lambda one two three four alpha beta")


def test_counting_is_no_leak() -> None:
    assert not EvaluationFilter.from_items([("", "x = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]", "")]).runs


def test_problems_with_solutions_are_items() -> None:
    problem = {"prompt": "def has_close(numbers, threshold):\n", "canonical_solution": "    return bool(pairs)\n"}
    (item,) = human_eval_items([json.dumps(problem)])
    assert item == ("", problem["prompt"] + problem["canonical_solution"], "")


# --- tokenizer --------------------------------------------------------------------------------------------------------


def test_ids_begin_with_the_special_tokens_and_all_bytes(tokenizer: Tokenizer) -> None:
    assert [tokenizer.id_to_token(index) for index in range(len(SPECIAL_TOKENS))] == list(SPECIAL_TOKENS)
    assert tokenizer.get_vocab_size() <= 500
    every_byte = bytes(range(128)).decode() + "".join(chr(code) for code in range(128, 0x3000, 37)) + "😀"
    assert tokenizer.decode(tokenizer.encode(every_byte).ids) == every_byte


def test_newlines_digits_and_indentation_stand_alone(tokenizer: Tokenizer) -> None:
    tokens = [tokenizer.decode([index]) for index in tokenizer.encode("\n\n        return 22 + x[1]\r\n").ids]
    assert tokens[:3] == ["\n", "\n", "        "]
    assert [token for token in tokens if any(map(str.isdigit, token))] == [" 2", "2", "1"]
    assert not any("\n" in token and token != "\n" for token in tokens)


def test_special_strings_in_plain_text_are_characters(tokenizer: Tokenizer) -> None:
    (tokens,) = encode_plain(tokenizer, ["<eos> is a token"])
    assert tokens.dtype == np.uint16
    assert tokens[0] == tokenizer.token_to_id("<bos>")
    assert tokenizer.token_to_id("<eos>") not in tokens


def test_merges_never_spell_a_special_string() -> None:
    trained = train_tokenizer(['call:f{a:<|"|>x<|"|>}'] * 50, vocabulary_size=400)
    trained.encode_special_tokens = True
    assert SPECIAL_TOKENS.index('<|"|>') not in trained.encode('{a:<|"|>x<|"|>}').ids


def test_a_saved_tokenizer_loads(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path)
    loaded = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert loaded.encode(MODULE).ids == tokenizer.encode(MODULE).ids
    assert loaded.encode("<|turn>user").ids[0] == SPECIAL_TOKENS.index("<|turn>")
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["eos_token"] == "<eos>"


# --- code and prose ---------------------------------------------------------------------------------------------------


def test_long_files_are_cut_at_definitions(tokenizer: Tokenizer) -> None:
    (tokens,) = encode_plain(tokenizer, [MODULE])
    newline = tokenizer.encode("\n").ids[0]
    limit = len(tokens) // 3
    parts = list(python_code.split_tokens(tokens[1:], MODULE, newline, limit))
    texts = [tokenizer.decode(part.tolist()) for part in parts]
    assert "".join(texts) == MODULE
    assert len(parts) >= 3
    assert all(len(part) <= limit for part in parts)
    assert all(text.startswith("def ") for text in texts[1:])


def test_big_classes_are_cut_at_members_and_lists_at_lines(tokenizer: Tokenizer) -> None:
    newline = tokenizer.encode("\n").ids[0]
    body = "".join(f"    @property\n    def part_{n}(self):\n        return self.parts[{n}]\n\n" for n in range(9))
    numbers = "values = [\n" + "".join(f"    one + {n},\n" for n in range(60)) + "]\n"
    for text, start in (("class Whole:\n" + body, "    @property\n"), (numbers, "    one + ")):
        tokens = np.array(tokenizer.encode(text).ids, dtype=np.uint16)
        parts = list(python_code.split_tokens(tokens, text, newline, 2 * len(tokens) // 5))
        texts = [tokenizer.decode(part.tolist()) for part in parts]
        assert "".join(texts) == text
        assert all(part.startswith(start) for part in texts[1:])


def test_code_documents_begin_with_bos_and_leave_evaluation_out(tokenizer: Tokenizer) -> None:
    secret = "answer = combine(first, second, third, fourth, fifth, sixth)\n"
    evaluation = EvaluationFilter.from_items([("", secret, "")])
    found = list(python_code.documents([source(MODULE), source(secret)], tokenizer, evaluation))
    assert [tokenizer.decode(one.tokens[1:].tolist()) for one in found] == [MODULE]
    assert found[0].tokens[0] == tokenizer.token_to_id("<bos>")
    assert found[0].prompt_length == 0


def test_dictionary_lines_become_sentences() -> None:
    line = (
        '02084071 05 n 02 dog 0 domestic_dog 0 001 @ 02083346 n 0000 | a common animal; "the dog barked"; "good dog"  '
    )
    [dog] = synsets(f"  1 This software and database is provided\n{line}\n")
    assert english.dictionary_entry(dog) == 'dog (noun): a common animal. For example: "the dog barked"; "good dog"'


def test_markup_is_stripped() -> None:
    text = ".. index:: single: path\n\nUse :func:`os.path.join` and :meth:`the call <x.y>`.\n"
    assert english.strip_markup(text).strip() == "Use os.path.join and the call."


def test_paragraphs_are_kept_whole() -> None:
    text = "\n\n".join(f"Paragraph {n} " + "word " * 200 for n in range(20)) + "\n"
    parts = list(english.split_paragraphs(text))
    assert len(parts) > 2
    assert all(part.startswith("Paragraph") and len(part) <= 6000 for part in parts)
    assert sum(part.count("Paragraph") for part in parts) == 20


def test_only_long_prose_docstrings_are_taken() -> None:
    prose = "This function explains at length what it does for its caller. " * 12
    code = f'def f():\n    """{prose}"""\n\n\ndef g():\n    """Short."""\n\n\ndef h():\n    """{">>> 1 + 1 " * 80}"""\n'
    assert [text.strip() for text in english.long_docstrings(code)] == [prose.strip()]


def test_chat_samples_have_the_published_form() -> None:
    rng = random.Random(0)
    values = [("city", "STRING", "oslo"), ("days", "INTEGER", "x"), ("tags", "ARRAY", "sun")]
    call = samples.tool_call("get_weather", values, rng)
    assert call.startswith('<|tool_call>call:get_weather{city:<|"|>oslo<|"|>,days:')
    assert call.endswith(',tags:[<|"|>sun<|"|>,<|"|>item<|"|>]}<tool_call|>')
    declaration = samples.tool_declaration("get_weather", "Gets it", values, rng)
    assert declaration.startswith(
        '<|tool>declaration:get_weather{description:<|"|>Gets it<|"|>,parameters:{properties:{city:'
    )


# --- evaluation -------------------------------------------------------------------------------------------------------


def test_code_lines_leave_out_comments_docstrings_and_blanks() -> None:
    text = 'import os\n\n# note\ndef f(x):\n    """One line."""\n    s = """a\n    b"""\n    )\n'.replace(
        "    )\n", "    y = 1\n"
    )
    assert infill_eval.code_lines(text) == {0, 3, 7}


def test_items_rebuild_their_file_and_are_never_drawn_twice() -> None:
    file = source(MODULE, package="attrs")
    items = list(infill_eval.draw_items({"attrs": [file]}, {"line": 12, "span": 6}, seed=1))
    assert len({item.id for item in items}) == len({(item.id[:4], item.source) for item in items}) == 18
    for item in items:
        assert item.prefix + item.answer + item.suffix in MODULE
        assert item.prefix == "" or item.prefix.endswith("\n")
        assert item.suffix.startswith("\n")
        assert not item.answer.endswith("\n")
        assert item.answer.strip()
    assert items == list(infill_eval.draw_items({"attrs": [file]}, {"line": 12, "span": 6}, seed=1))


def test_the_embedded_items_are_complete() -> None:
    path = Path(infill_eval.__file__).parents[2] / "eval" / "data" / "infill.jsonl"
    items = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [item["id"].split("-")[0] for item in items].count("line") == 300
    assert len(items) == len(list(infill_items(path))) == 500
    for item in items:
        assert len(item["prefix"]) <= 1200
        assert len(item["suffix"]) <= 400
        assert item["suffix"].startswith("\n")
        assert 1 <= len(item["answer"].split("\n")) <= 3


# --- command line -----------------------------------------------------------------------------------------------------


def test_builders_run_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def builder(name: str) -> "command.Builder":
        def run(settings: command.Settings) -> list[Path]:
            ran.append(name)
            (settings.out / name).write_text("done")
            return [settings.out / name]

        return run

    monkeypatch.setattr(command, "BUILDERS", {name: builder(name) for name in ("infill", "english", "sudoku")})
    assert command.main(["--out", str(tmp_path / "new"), "--only", "english", "--only", "infill"]) == 0
    assert ran == ["infill", "english"]
    assert "english" in capsys.readouterr().out


def test_tool_and_chat_documents_are_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With wheels of one operation each, and without Debian's dictionary."""
    discovery = {"name": "shelf", "resources": {"books": {"methods": {"get": {
        "id": "shelf.books.get", "description": "Gets one book from a shelf.",
        "parameters": {"bookId": {"type": "string", "description": "The book.", "required": True}},
    }}}}}  # fmt: skip
    service = {"metadata": {"serviceId": "Lamp"}, "shapes": {}, "operations": {}}
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    contents = {
        "google-api-python-client": ("googleapiclient/discovery_cache/documents/shelf.v1.json", discovery),
        "botocore": ("botocore/data/lamp/2020-01-01/service-2.json", service),
    }
    for name, version in TOOL_WHEELS.items():
        path, content = contents[name]
        with zipfile.ZipFile(wheels / f"{name.replace('-', '_')}-{version}-py3-none-any.whl", "w") as file:
            file.writestr(path, json.dumps(content))
    lexicon = Lexicon(
        verbs=(("glaze", "coat"),),
        things=("teapot", "kiln", "shelf", "brush", "cart"),
        attributes=("shade", "age", "grain", "finish", "style"),
        persons=("potter",),
    )
    monkeypatch.setattr(command, "read_lexicon", lambda cache: lexicon)
    monkeypatch.setattr(command, "_TOOL_DOCUMENTS", 20)
    monkeypatch.setattr(command, "_COMPOSED_DOCUMENTS", 30)
    monkeypatch.setattr(command, "_CHAT_DOCUMENTS", 20)
    monkeypatch.setattr(command.chat, "all_tables", lambda cache, seed: all_tables(None, seed))
    names = ["tools", "tools_composed", "chat"]
    written = command.build(names, command.Settings(out=tmp_path / "out", cache=tmp_path))
    assert [path.name for path in written] == ["tools.xz", "tools_composed-0.xz", "tools_composed-1.xz", "chat.xz"]
    assert [len(read_shard(path)) for path in written] == [20, 30, 30, 20]


def test_a_missing_source_is_one_sentence_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(settings: command.Settings) -> list[Path]:
        raise SourceError("no such package")

    monkeypatch.setattr(command, "BUILDERS", {"infill": fail})
    assert command.main(["--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "no such package\n"


def test_a_file_that_cannot_be_used_is_one_sentence_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--out", str(tmp_path), "--only", "chat_prompts"]) == 1
    assert capsys.readouterr().err == f"{tmp_path / 'chat.xz'}: No such file or directory.\n"
    taken = tmp_path / "taken"
    taken.touch()
    assert command.main(["--out", str(taken / "below"), "--only", "chat_items"]) == 1
    assert capsys.readouterr().err == f"{taken / 'below'}: Not a directory.\n"


def test_the_embedded_evaluation_items_can_be_made_again(tmp_path: Path) -> None:
    """Those that need no package's files."""
    shipped = Path(command.__file__).parents[2] / "eval" / "data"
    for path in command.build(["sudoku_items", "chat_items"], command.Settings(out=tmp_path)):
        assert path.read_bytes() == (shipped / path.name).read_bytes()
    write_second_evaluation(tmp_path / "tools_second.jsonl", 200)
    assert (tmp_path / "tools_second.jsonl").read_bytes() == (shipped / "tools_second.jsonl").read_bytes()

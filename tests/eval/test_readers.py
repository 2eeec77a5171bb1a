"""Evaluation files: the ones in the package are sound, and broken ones are refused with file and line."""

import json

import pytest

from redraft.errors import InputError
from redraft.eval import DATA, tool_results
from redraft.eval.infill import read_infill_jsonl
from redraft.eval.smalltalk import is_solved, read_smalltalk_jsonl
from redraft.eval.sudoku import read_sudoku_csv
from redraft.eval.tool_results import read_results_jsonl
from redraft.eval.tools import read_tools_jsonl
from redraft.train.build.sudoku_solver import is_unique

SOLUTION = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"
SHIFTED = "".join("123456789"[n:] + "123456789"[:n] for n in range(9))
PUZZLE = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
TOOL = {"type": "function", "function": {"name": "f", "description": "d"}}
RECORD = {
    "id": "t",
    "tools": [TOOL],
    "messages": [{"role": "user", "content": "go"}],
    "calls": [{"name": "f", "arguments": {}}],
}
HOLE = {"id": "h", "prefix": "a", "answer": "b", "suffix": "c", "source": "s"}


@pytest.mark.parametrize(("clues", "count"), [(26, 300), (30, 1000), (36, 1000)])
def test_bundled_puzzles_have_their_clues_and_one_solution(clues, count):
    items = read_sudoku_csv(DATA / f"sudoku_{clues}.csv")
    assert len({item.solution for item in items}) == len(items) == count
    assert {item.clues for item in items} == {clues}
    assert all(is_unique([int(digit) for digit in item.puzzle]) for item in items[:20])


def test_bundled_tool_items_read():
    items = read_tools_jsonl(DATA / "tools.jsonl")
    assert len({item.id for item in items}) == 300
    assert {len(item.calls) for item in items} == {0, 1, 2}


def test_bundled_small_talk_reads():
    items = read_smalltalk_jsonl(DATA / "smalltalk.jsonl")
    assert len({item.id for item in items}) == 200
    assert all(is_solved(item, f"So: {item.expected[-1].upper()}.") for item in items)


def test_bundled_results_read_and_need_all_that_is_expected():
    items = read_results_jsonl(DATA / "results.jsonl")
    assert len({item.id for item in items}) == 80
    for item in items:
        told = ", ".join(phrases[-1] for phrases in item.expected)
        assert tool_results.is_solved(item, f"So: {told}.")
        assert not tool_results.is_solved(item, "So it is.")
        assert not tool_results.is_solved(item, f"{told}<|tool_call>call:f{{}}<tool_call|>")
        assert not tool_results.is_solved(item, f"{told}<|tool_call>call:f{{a:<tool_call|>")
        assert not tool_results.is_solved(item, f"<|channel>thought\n{told}<channel|>It is.")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"messages": [{"role": "user", "content": "go"}]}, "must be the result of a tool"),
        ({"expected": []}, "at least one list of strings"),
        ({"expected": [[" "]]}, "none of them blank"),
        ({"expected": ["a"]}, "at least one string"),
    ],
)
def test_results_that_ask_for_nothing_are_refused(tmp_path, change, message):
    item = json.loads((DATA / "results.jsonl").read_text(encoding="utf-8").splitlines()[0])
    with pytest.raises(InputError, match=message):
        read_results_jsonl(write(tmp_path, json.dumps(item | change)))


def write(tmp_path, text):
    path = tmp_path / "items"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the column 'puzzle' is missing"),
        ("puzzle,answer\n", "line 1: the column 'solution' is missing"),
        ("puzzle,solution\n", "holds no items"),
        (f"puzzle,solution\n{PUZZLE},{SOLUTION}\n{PUZZLE}\n", "line 3: 1 columns instead of 2"),
        (
            f"puzzle,solution\n{PUZZLE[:80]},{SOLUTION}\n",
            "line 2: a puzzle needs 81 digits, 0 for an empty cell, got 80",
        ),
        (f"puzzle,solution\n{PUZZLE[:80]}x,{SOLUTION}\n", "line 2: a puzzle needs 81 digits"),
        (f"puzzle,solution\n{PUZZLE},{SOLUTION[:80]}0\n", "line 2: a solution needs 81 digits from 1 to 9"),
        (f"puzzle,solution\n{PUZZLE},5{SOLUTION[1:80]}5\n", "line 2: the solution repeats a digit in row 9"),
        (f"puzzle,solution\n{PUZZLE},{SOLUTION[:9] * 9}\n", "line 2: the solution repeats a digit in column 1."),
        (f"puzzle,solution\n{PUZZLE},{SHIFTED}\n", "line 2: the solution repeats a digit in box 1."),
        (f"puzzle,solution\n{PUZZLE},{SOLUTION}\n{'1' * 200_000},\n", "line 3: not valid CSV (field larger"),
        (f"puzzle,solution\n4{PUZZLE[1:]},{SOLUTION}\n", "line 2: puzzle and solution differ in row 1, column 1"),
    ],
)
def test_bad_sudoku_files_are_refused(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read_sudoku_csv(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_sudoku_columns_may_come_in_any_order_beside_others(tmp_path):
    path = write(tmp_path, f"level, solution, puzzle\neasy,{SOLUTION},{PUZZLE}\n")
    (item,) = read_sudoku_csv(path)
    assert (item.id, item.puzzle, item.solution, item.clues) == ("sudoku-0001", PUZZLE, SOLUTION, 30)


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path):
    path = write(tmp_path, f"\ufeffpuzzle,solution\r\n{PUZZLE},{SOLUTION}\r\n")  # as spreadsheets export it
    assert [item.puzzle for item in read_sudoku_csv(path)] == [PUZZLE]
    assert [item.id for item in read_tools_jsonl(write(tmp_path, "\ufeff" + json.dumps(RECORD)))] == [RECORD["id"]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not valid JSON"),
        ('{"id": "\\ud800"}', "line 2: it holds half of a surrogate pair"),
        ('{"id": 1' + "0" * 5000 + "}", "line 2: not valid JSON (a number with thousands of digits"),
        ("[" * 100_000, "line 2: not valid JSON (nested too deep"),
        ("[1]", "line 2: not a JSON object"),
        (json.dumps({**RECORD, "calls": "f"}), "line 2: the field 'calls' must be a list"),
        (json.dumps({key: RECORD[key] for key in ("id", "tools", "messages")}), "line 2: the field 'calls' is missing"),
        (
            json.dumps({**RECORD, "calls": [{"name": "g", "arguments": {}}]}),
            "line 2: the call 'g' is to a tool that is not declared",
        ),
        (json.dumps({**RECORD, "calls": [{"name": "f"}]}), "line 2: a call must be an object"),
        (json.dumps({**RECORD, "messages": []}), "line 2: messages must be a list"),
    ],
)
def test_bad_tool_files_are_refused(tmp_path, line, message):
    path = write(tmp_path, json.dumps(RECORD) + "\n" + line + "\n")
    with pytest.raises(InputError) as caught:
        read_tools_jsonl(path)
    assert f"{path}, {message}" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"expected": []}, "line 1: the field 'expected' must hold at least one string"),
        ({"expected": ["a", " "]}, "line 1: the field 'expected' must hold at least one string, none of them blank"),
        ({"expected": "a"}, "line 1: the field 'expected' must be a list"),
        ({"messages": []}, "line 1: messages must be a list"),
    ],
)
def test_bad_small_talk_files_are_refused(tmp_path, change, message):
    record = {"id": "s", "messages": RECORD["messages"], "expected": ["a"]}
    path = write(tmp_path, json.dumps(record | change))
    with pytest.raises(InputError) as caught:
        read_smalltalk_jsonl(path)
    assert f"{path}, {message}" in str(caught.value)


def test_infill_items_read_and_blank_answers_are_refused(tmp_path):
    assert [item.answer for item in read_infill_jsonl(write(tmp_path, json.dumps(HOLE)))] == ["b"]
    path = write(tmp_path, json.dumps(HOLE) + "\n\n" + json.dumps({**HOLE, "answer": " \n"}) + "\n")
    with pytest.raises(InputError, match="line 3: the field 'answer' is blank"):
        read_infill_jsonl(path)


def test_missing_and_empty_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_tools_jsonl(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="holds no items"):
        read_infill_jsonl(write(tmp_path, "\n"))

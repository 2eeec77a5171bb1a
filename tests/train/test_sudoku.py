"""The Sudoku generator, its symmetries and the sampler: puzzles are valid, unique and of the promised difficulty."""

import random

import numpy as np
import pytest

from redraft.errors import InputError, SettingError
from redraft.train.build.sudoku import build, generate, write_evaluation
from redraft.train.build.sudoku_solver import dig, grid_of, is_unique, random_grid, search, state_of
from redraft.train.sudoku import SudokuEncoder, draw_puzzles, load_base, random_cell_orders, render_sudoku

PUZZLE = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
SOLUTION = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"


def digits(text):
    return [int(character) for character in text]


def solve(puzzle):
    """One solution, or None if there is none."""
    return next(map(grid_of, search(state_of(puzzle), 1)), None)


def assert_valid_grids(grids):
    lines = grids.reshape(-1, 9, 9)
    boxes = lines.reshape(-1, 3, 3, 3, 3).transpose(0, 1, 3, 2, 4).reshape(-1, 9, 9)
    for units in (lines, lines.transpose(0, 2, 1), boxes):
        assert (np.sort(units, axis=2) == np.arange(1, 10)).all()


@pytest.fixture(scope="module")
def base():
    pairs = list(generate(12, seed=5, target=27))
    return np.array([p for p, _ in pairs], np.uint8), np.array([s for _, s in pairs], np.uint8)


def test_solves_a_known_puzzle():
    assert solve(digits(PUZZLE)) == digits(SOLUTION)
    assert is_unique(digits(PUZZLE))


def test_finds_contradiction_and_second_solution():
    broken = digits(PUZZLE)
    broken[2] = 5
    assert solve(broken) is None
    assert not is_unique(broken)
    assert not is_unique([0] * 81)


def test_minimal_removal_really_needs_every_kept_clue():
    rng = random.Random(3)
    grid = random_grid(rng)
    puzzle = dig(grid, 17, rng)
    assert is_unique(puzzle)
    assert solve(puzzle) == grid
    for cell in np.flatnonzero(puzzle):
        fewer = list(puzzle)
        fewer[cell] = 0
        assert not is_unique(fewer)


def test_dig_stops_at_the_target():
    rng = random.Random(4)
    puzzles = [dig(random_grid(rng), 36, rng) for _ in range(5)]
    assert [81 - puzzle.count(0) for puzzle in puzzles] == [36] * 5
    assert all(is_unique(puzzle) for puzzle in puzzles)


def test_build_writes_a_readable_base(tmp_path, base):
    puzzles, solutions = load_base(build(tmp_path / "base.npz", 3, seed=5, target=27))
    assert (puzzles == base[0][:3]).all()
    assert (solutions == base[1][:3]).all()
    assert [path.name for path in tmp_path.iterdir()] == ["base.npz"]


def test_a_base_of_something_else_is_named(tmp_path):
    (tmp_path / "puzzles.csv").write_text("puzzle,solution\n")
    np.savez(tmp_path / "one.npz", puzzles=np.zeros((1, 81), np.uint8))
    for name in ("puzzles.csv", "one.npz", "none.npz"):
        with pytest.raises(InputError, match=f"{name} cannot be read as a base file of Sudoku puzzles"):
            load_base(tmp_path / name)
    np.savez(tmp_path / "none.npz", puzzles=np.zeros((0, 81), np.uint8), solutions=np.zeros((0, 81), np.uint8))
    with pytest.raises(InputError, match="holds no Sudoku puzzles"):
        load_base(tmp_path / "none.npz")


def test_symmetries_are_orders_of_all_cells():
    orders = random_cell_orders(np.random.default_rng(1), 50)
    assert (np.sort(orders, axis=1) == np.arange(81)).all()
    assert len({order.tobytes() for order in orders}) == 50


def draw(base, count, clues=(24, 45), *, seed):
    return draw_puzzles(base, count, clues, np.random.default_rng(seed))


def test_drawn_puzzles_are_valid_and_unique_and_have_as_many_clues_as_asked_for(base):
    puzzles, solutions = draw(base, 200, (30, 33), seed=1)
    assert puzzles.dtype == solutions.dtype == np.uint8
    assert_valid_grids(solutions)
    assert ((puzzles == 0) | (puzzles == solutions)).all()
    assert set((puzzles > 0).sum(axis=1)) == {30, 31, 32, 33}
    assert all(is_unique(puzzle) for puzzle in puzzles[:25])
    assert len({solution.tobytes() for solution in solutions}) == 200


def test_puzzles_depend_on_the_seed_only(base):
    first, again, other = (draw(base, 8, seed=seed)[0] for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


class CharacterTokenizer:
    """One token a character."""

    FIRST = 200_000  # tokens of a vocabulary such as DiffusionGemma's do not fit into 16 bits

    def encode(self, text):
        return [self.FIRST + ord(character) for character in text]


class ChunkTokenizer:
    """One token for four characters, so that two digits share one."""

    def encode(self, text):
        return [int.from_bytes(text[i : i + 4].encode()) % 60_000 for i in range(0, len(text), 4)]


class Template:
    def render(self, messages, *, add_generation_prompt=True):
        turns = "".join(f"<{message['role']}>{message['content']}\n" for message in messages)
        return turns + "<model>" * add_generation_prompt


def test_encoding_by_look_up_equals_tokenising_the_text(base):
    puzzles, solutions = draw(base, 6, seed=3)
    encoder = SudokuEncoder(CharacterTokenizer(), Template())
    for document, puzzle, solution in zip(encoder.encode(puzzles, solutions), puzzles, solutions, strict=True):
        prompt, answer = render_sudoku(Template(), puzzle, solution)
        assert "".join(map(chr, document - CharacterTokenizer.FIRST)) == prompt + answer
        assert len(prompt) == encoder.prompt_length


def test_encoder_refuses_a_tokenizer_that_joins_digits():
    with pytest.raises(SettingError, match="must encode each digit of a Sudoku grid as one token"):
        SudokuEncoder(ChunkTokenizer(), Template())


def test_evaluation_file_has_the_exact_clue_count(tmp_path):
    write_evaluation(tmp_path / "s.csv", 3, clues=30, seed=9)
    header, *rows = (tmp_path / "s.csv").read_text().splitlines()
    assert header == "puzzle,solution"
    assert len(rows) == 3
    for row in rows:
        puzzle, solution = row.split(",")
        assert 81 - puzzle.count("0") == 30
        assert solve(digits(puzzle)) == digits(solution)

"""What Redraft does, in one minute on a laptop: fill a hole in code, solve a Sudoku, call a tool, answer a question.

Run it with `make run`, or `python examples/first_minute.py` where Redraft is installed.
"""

import redraft
from redraft.cli.fill import show_filling
from redraft.cli.view import show
from redraft.eval import DATA
from redraft.eval.sudoku import SudokuItem, is_solved, messages_for, read_sudoku_csv

CODE = """class Point:
    def __init__(self, x, y):
        self.x = x
        <|fill|>

    def norm(self):
        return (self.x ** 2 + self.y ** 2) ** 0.5
"""
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "City name"},
                "days": {"type": "integer", "description": "Number of days"},
            },
            "required": ["city"],
        },
    },
}


def show_grids(puzzle: SudokuItem, answer: str) -> None:
    """The puzzle and the answer side by side, and whether it is the solution."""
    print()
    digits = answer.split()
    for row in range(0, 81, 9):
        given = " ".join(puzzle.puzzle[row : row + 9].replace("0", "."))
        print(f"{given}     {' '.join(digits[row : row + 9])}")
    print("solved" if is_solved(puzzle, answer) else "not solved")


def main() -> None:
    print("Loading `tiny`, the model inside the package ...")
    llm = redraft.load("tiny")
    print("\nA hole in a Python class, seen from both sides:\n")
    prefix, suffix = CODE.split("<|fill|>")
    show_filling(llm, prefix, suffix, max_tokens=6, steps=16)

    print("\nA Sudoku, all 81 cells drafted at once:\n")
    puzzle = read_sudoku_csv(DATA / "sudoku_36.csv")[0]
    answer = show(llm, messages_for(puzzle), seed=1, max_tokens=128)
    show_grids(puzzle, answer.text)

    print("\nA tool call:\n")
    reply = llm.chat([{"role": "user", "content": "What is the weather in Lisbon for the next 3 days?"}], tools=[TOOL])
    for call in reply.tool_calls:
        print(f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})")

    print("\nA question:\n")
    show(llm, "Why is the sky blue?", seed=1)

    print("\nNext: .venv/bin/redraft chat, .venv/bin/redraft --help, README.md")


if __name__ == "__main__":
    main()

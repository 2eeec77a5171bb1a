"""What Redraft does, in one minute on a laptop: fill a hole in code, solve a Sudoku, call a tool, read facts, answer.

Run it with `make run`, or `python examples/first_minute.py` where Redraft is installed.
"""

import json

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
RESULT = {"summary": "sunny", "high": 24, "low": 17}
OFFER = "The red chair costs 49 euros. Extract item, color and price."
SCHEMA = {
    "type": "object",
    "properties": {"item": {"type": "string"}, "color": {"type": "string"}, "price": {"type": "number"}},
    "required": ["item", "color", "price"],
}


def show_grids(puzzle: SudokuItem, answer: str) -> None:
    """The puzzle and the answer side by side, and whether it is the solution."""
    print()
    digits = answer.split()
    for row in range(0, 81, 9):
        given = " ".join(puzzle.puzzle[row : row + 9].replace("0", "."))
        print(f"{given}     {' '.join(digits[row : row + 9])}")
    print("solved" if is_solved(puzzle, answer) else "not solved")


def show_call(llm: redraft.LLM) -> None:
    """A request, the call that the model makes of it, and the sentence that it makes of what the tool returns."""
    messages = [{"role": "user", "content": "What is the weather in Lisbon for the next 3 days?"}]
    for call in llm.chat(messages, tools=[TOOL]).tool_calls:
        print(f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})")
        called = {"id": call.name, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        messages += [
            {"role": "assistant", "tool_calls": [called]},
            {"role": "tool", "tool_call_id": call.name, "content": json.dumps(RESULT)},
        ]
    print(f"-> {json.dumps(RESULT)}\n{llm.chat(messages, tools=[TOOL]).content}")


def main() -> None:
    print("Loading `tiny`, the model inside the package ...")
    llm = redraft.load("tiny")
    print("\nA hole in a Python class, seen from both sides:\n")
    prefix, suffix = CODE.split("<|fill|>")
    show_filling(llm, prefix, suffix, max_tokens=6, steps=16)

    print("\nA Sudoku, all 81 cells drafted at once:\n")
    puzzle = read_sudoku_csv(DATA / "sudoku_36.csv")[0]
    answer = show(llm, messages_for(puzzle.puzzle), seed=1, max_tokens=128)
    show_grids(puzzle, answer.text)

    print("\nA tool call, what the tool returns, and the answer:\n")
    show_call(llm)

    print("\nWhat a sentence says, as JSON that obeys a schema:\n")
    print(f"{OFFER}\n-> {llm.generate(OFFER, json_schema=SCHEMA).text}")

    print("\nA question:\n")
    show(llm, "Why is the sea salty?")

    print("\nNext: .venv/bin/redraft chat, .venv/bin/redraft --help, README.md")


if __name__ == "__main__":
    main()

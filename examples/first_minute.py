"""What Redraft does, in one minute on a laptop: fill a hole in code, solve a Sudoku, call a tool, answer a question.

Run it with `make run`, or `python examples/first_minute.py` where Redraft is installed.
"""

import redraft
from redraft.cli.fill import show_filling
from redraft.cli.view import show
from redraft.eval import DATA
from redraft.eval.sudoku import messages_for, read_sudoku_csv

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


def main() -> None:
    llm = redraft.load("tiny")
    print("A hole in a Python class, seen from both sides:\n")
    prefix, suffix = CODE.split("<|fill|>")
    show_filling(llm, prefix, suffix, max_tokens=6, steps=16)

    print("\nA Sudoku, all 81 cells drafted at once:\n")
    (puzzle,) = read_sudoku_csv(DATA / "sudoku_36.csv", limit=1)
    show(llm, messages_for(puzzle), seed=1, max_tokens=128)

    print("\nA tool call:\n")
    reply = llm.chat([{"role": "user", "content": "What is the weather in Lisbon for the next 3 days?"}], tools=[TOOL])
    for call in reply.tool_calls:
        print(f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})")

    print("\nA question:\n")
    show(llm, "Why is the sky blue?", seed=1)


if __name__ == "__main__":
    main()

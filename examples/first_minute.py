"""What Redraft does, in one minute on a laptop: fill a hole in code, solve a Sudoku, call a tool, answer a question.

Run it with `make run`, or `python examples/first_minute.py` where Redraft is installed.
"""

import redraft
from redraft.cli.view import show
from redraft.eval.sudoku import prompt_messages

CODE = '''def mean(values):
    """Return the arithmetic mean of a list of numbers."""
    total = 0
    for value in values:
<|fill|>
    return total / len(values)
'''
PUZZLE = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
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
    print("A hole in a Python function, seen from both sides:\n")
    prefix, suffix = CODE.split("<|fill|>")
    print(llm.fill(prefix, suffix).full_text)

    print("\nA Sudoku, all 81 cells drafted at once:\n")
    show(llm, prompt_messages(PUZZLE), seed=1)

    print("\nA tool call:\n")
    reply = llm.chat([{"role": "user", "content": "What is the weather in Lisbon for the next 3 days?"}], tools=[TOOL])
    for call in reply.tool_calls:
        print(f"{call.name}({call.arguments})")

    print("\nA question:\n")
    show(llm, "Why is the sky blue?", seed=1)


if __name__ == "__main__":
    main()

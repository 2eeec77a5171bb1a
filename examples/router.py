"""A router: which of several handlers a request belongs to, decided by one forward pass, with its probability.

    python examples/router.py "Water the roses with 5 liters" "Play some jazz in the kitchen"

What is not sure enough goes to a person. No text is written: the label's probabilities are read from a pinned canvas.
"""

import sys

import redraft

HANDLERS = {
    "water_plants": ("Water a garden zone", {"zone": "Garden zone", "liters": "Liters of water"}),
    "play_music": ("Play music in a room", {"genre": "Kind of music", "room": "Room"}),
    "book_table": ("Book a table in a restaurant", {"people": "Number of people", "time": "Time"}),
    "get_weather": ("Get the weather of a city", {"city": "City name", "days": "Number of days"}),
}
"""What each does, and what it wants to know: names alone say little to a small model."""


def declared(name: str, description: str, parameters: dict[str, str]) -> dict[str, object]:
    """A handler as the model is told of it."""
    properties = {name: {"type": "string", "description": text} for name, text in parameters.items()}
    schema = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [declared(name, *about) for name, about in HANDLERS.items()]
SURE = 0.8
REQUESTS = [
    "Water the roses with 5 liters.",
    "Play some jazz in the kitchen.",
    "What will the weather be like in Oslo tomorrow?",
    "I need a table for two in a restaurant tonight.",
]


def route(llm: redraft.LLM, request: str) -> tuple[str, float]:
    """The handler of a request and how sure that is; "person" for what no handler is sure of."""
    chat = [{"role": "user", "content": request}]
    decision = llm.decide(chat, list(HANDLERS), template="<|tool_call>call:{choice}{{", tools=TOOLS, ends=False)
    assert isinstance(decision, redraft.Decision)
    return (decision.choice if decision.confidence >= SURE else "person"), decision.confidence


def main() -> None:
    llm = redraft.load("tiny")
    for request in sys.argv[1:] or REQUESTS:
        handler, confidence = route(llm, request)
        print(f"{confidence:6.1%}  {handler:<14} {request}")


if __name__ == "__main__":
    main()

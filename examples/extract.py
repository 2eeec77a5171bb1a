"""Structured extraction: text in, a validated pydantic object out.

    python examples/extract.py "A table for six in Paris on Friday, please."

The object's schema is declared as a tool that has to be called, and enforced while the canvas is denoised, so that the
answer always parses and always validates. Small models learn calls first; of a larger one
`llm.generate(text, json_schema=Booking)` gets the same. It needs pydantic, which comes with `redraft[serve]`.
"""

import sys
from typing import Any, Literal

from pydantic import BaseModel, Field

import redraft

Day = Literal["today", "tomorrow", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


class Booking(BaseModel):
    """Book a table in a restaurant."""

    city: str = Field(max_length=30)
    day: Day
    people: int = Field(ge=1, le=20)


def extract(llm: redraft.LLM, text: str) -> Booking:
    """The booking that a text asks for."""
    function: dict[str, Any] = {
        "name": "book_table", "description": Booking.__doc__, "parameters": Booking.model_json_schema(),
    }  # fmt: skip
    tools = [{"type": "function", "function": function}]
    reply = llm.chat([{"role": "user", "content": text}], tools=tools, tool_choice="required", max_tokens=96)
    return Booking.model_validate(reply.tool_calls[0].arguments)


if __name__ == "__main__":
    source = sys.argv[1] if len(sys.argv) > 1 else "Book a table for 4 people in Berlin tomorrow."
    print(extract(redraft.load("tiny"), source).model_dump_json(indent=2))

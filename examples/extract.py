"""Structured extraction: text in, a validated pydantic object out.

    python examples/extract.py "Anna Rossi, 31, lives in Rome and plays the cello and chess."

The schema of the model is enforced while the canvas is denoised, so the answer always parses and always validates.
It needs pydantic, which comes with `redraft[serve]`.
"""

from __future__ import annotations

import sys
from typing import Literal

from pydantic import BaseModel, Field

import redraft


class Person(BaseModel):
    """What is to be found in the text."""

    name: str = Field(max_length=40)
    age: int = Field(ge=0, le=130)
    city: str | None = Field(default=None, max_length=30)
    hobbies: list[Literal["chess", "cello", "cooking", "running"]] = Field(default_factory=list, max_length=3)


def extract(llm: redraft.LLM, text: str) -> Person:
    """The person that a text tells of."""
    answer = llm.generate(f"Extract the person as JSON.\n\n{text}", json_schema=Person, max_tokens=96, steps=24)
    return Person.model_validate_json(answer.text)


if __name__ == "__main__":
    source = sys.argv[1] if len(sys.argv) > 1 else "Anna Rossi, 31, lives in Rome and plays the cello and chess."
    print(extract(redraft.load("tiny"), source).model_dump_json(indent=2))

"""Draws docs/constrained_canvas.svg: what the embedded model drafts at every step when the answer must be JSON.

    python docs/scripts/constrained_canvas.py

One row per denoising step, one cell per canvas position. The darker a cell, the less sure the model is (entropy of what
the constraint leaves); a frame means that the position was accepted. Structure settles first, values last.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

import redraft
from redraft.diffusion.records import DenoiseStep

PROMPT = "Anna Rossi is 31 years old and lives in Rome. Write it as JSON."
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "city": {"enum": ["Berlin", "Paris", "Rome"]},
    },
    "required": ["name", "age", "city"],
}
COLUMNS, WIDTH, HEIGHT, LEFT = 26, 44, 20, 52


def cell(step: DenoiseStep, position: int, row: int, text: str) -> str:
    x, y = LEFT + position * WIDTH, 30 + row * (HEIGHT + 3)
    shade = min(step.entropy[position] / 3, 1.0)
    colour = f"rgb({255 - int(120 * shade)},{255 - int(90 * shade)},255)"
    frame = "#2a6" if step.accepted[position] else "#ccc"
    shown = escape(text.replace("\n", "\\n").replace(" ", "·"))
    box = f'<rect x="{x}" y="{y}" width="{WIDTH - 3}" height="{HEIGHT}" fill="{colour}" stroke="{frame}"/>'
    return f'{box}<text x="{x + (WIDTH - 3) / 2}" y="{y + 14}" text-anchor="middle">{shown[:7]}</text>'


def picture(llm: redraft.LLM, steps: list[DenoiseStep]) -> str:
    parts = []
    for row, step in enumerate(steps):
        parts.append(f'<text x="4" y="{44 + row * (HEIGHT + 3)}">step {step.step}</text>')
        for position in range(COLUMNS):
            token = step.argmax_canvas[position]
            text = "" if token in llm.eos_ids else llm.tokenizer.decode([token])
            parts.append(cell(step, position, row, text))
    size = f'width="{LEFT + COLUMNS * WIDTH}" height="{40 + len(steps) * (HEIGHT + 3)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="11">'
    title = f'<rect width="100%" height="100%" fill="white"/><text x="4" y="16" font-size="13">{escape(PROMPT)}</text>'
    return head + title + "".join(parts) + "</svg>\n"


def main() -> None:
    llm = redraft.load("tiny")
    records = llm.stream(PROMPT, json_schema=SCHEMA, seed=1, steps=16, max_tokens=48, canvas_length=48)
    steps = [record for record in records if isinstance(record, DenoiseStep)]
    target = Path(__file__).parents[1] / "constrained_canvas.svg"
    target.write_text(picture(llm, steps), encoding="utf-8")
    print(f"{target.name}: {len(steps)} steps, {llm.tokenizer.decode(steps[-1].argmax_canvas).split('<')[0]}")


if __name__ == "__main__":
    main()

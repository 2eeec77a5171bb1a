"""Draws docs/sudoku_settling.svg: a Sudoku with 30 clues at every step of the embedded model's answer.

    python docs/scripts/sudoku_settling.py

One grid per denoising step. A cell shows the likeliest digit, grey if it is a clue and red if it is wrong; the darker
its background, the less sure the model is (entropy of the distribution at that place).
"""

from __future__ import annotations

from html import escape
from pathlib import Path

import redraft
from redraft.diffusion.records import DenoiseStep
from redraft.eval.files import DATA
from redraft.eval.sudoku import CELLS, SudokuItem, is_solved, messages_for, read_sudoku_csv

ITEM = 305
CELL, GAP, TOP, ACROSS = 22, 26, 26, 3
SIDE = 9 * CELL


def grid(llm: redraft.LLM, item: SudokuItem, step: DenoiseStep, places: list[int]) -> str:
    """One step's 81 cells; `places` are the canvas positions of the solution's digits."""
    parts = [f'<text x="0" y="-7" font-size="13">step {step.step + 1}</text>']
    for cell, place in enumerate(places):
        x, y = cell % 9 * CELL, cell // 9 * CELL
        shade = min(step.entropy[place] / 2, 1.0)
        text = llm.tokenizer.decode([step.argmax_canvas[place]]).strip()[:1]
        colour = "#999" if item.puzzle[cell] != "0" else "#000" if text == item.solution[cell] else "#d00"
        fill = f"rgb({255 - int(120 * shade)},{255 - int(90 * shade)},255)"
        parts.append(f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{fill}" stroke="#ccc"/>')
        parts.append(
            f'<text x="{x + CELL / 2}" y="{y + 16}" text-anchor="middle" fill="{colour}">{escape(text)}</text>'
        )
    for line in range(0, 10, 3):
        at = line * CELL
        parts.append(f'<path d="M0 {at}H{SIDE}M{at} 0V{SIDE}" stroke="#444" fill="none"/>')
    return "".join(parts)


def picture(llm: redraft.LLM, item: SudokuItem, steps: list[DenoiseStep]) -> str:
    places = [i for i, token in enumerate(steps[-1].argmax_canvas) if llm.tokenizer.decode([token]).strip().isdigit()]
    parts = []
    for number, step in enumerate(steps):
        x, y = number % ACROSS * (SIDE + GAP) + 4, number // ACROSS * (SIDE + GAP + TOP) + TOP
        parts.append(f'<g transform="translate({x},{y})">{grid(llm, item, step, places[-CELLS:])}</g>')
    rows = -(-len(steps) // ACROSS)
    size = f'width="{min(len(steps), ACROSS) * (SIDE + GAP)}" height="{rows * (SIDE + GAP + TOP)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="14">'
    return head + '<rect width="100%" height="100%" fill="white"/>' + "".join(parts) + "</svg>\n"


def main() -> None:
    llm, item = redraft.load("tiny"), read_sudoku_csv(DATA / "sudoku_30.csv")[ITEM]
    records = list(llm.stream(messages_for(item), seed=0, max_tokens=128))
    steps = [record for record in records if isinstance(record, DenoiseStep)]
    solved = is_solved(item, llm.tokenizer.decode(steps[-1].argmax_canvas))
    (Path(__file__).parents[1] / "sudoku_settling.svg").write_text(picture(llm, item, steps), encoding="utf-8")
    print(f"sudoku_settling.svg: {item.clues} clues, {len(steps)} steps, {'solved' if solved else 'not solved'}")


if __name__ == "__main__":
    main()

"use strict";
// Edit: some lines of a text change as an instruction says, or are repaired; the change is shown as a diff.

const AVERAGE = `def average(values):
    total = 0
    for value in values:
        total += value
    return total / len(values)
`;

examples("edit", [
  { label: "Rename a variable", text: AVERAGE, ask: "rename total to result" },
  { label: "Rename an argument", text: AVERAGE, ask: "rename values to numbers" },
  { label: "Repair a slip", text: "class Point:\n    def __init__(self, x, y):\n        self.x = x\n        self.y = x\n", ask: "", lines: [3, 4] },
], ({ text, ask, lines = ["", ""] }) => {
  $("edit-text").value = text; $("edit-ask").value = ask;
  [$("edit-first").value, $("edit-last").value] = lines;
});

job("edit", () => {
  const text = $("edit-text").value, instruction = $("edit-ask").value.trim();
  return ["/v1/edits", { text, span: lineSpan(text), ...(instruction ? { instruction } : {}) }];
}, showEdit, editedText);

// The characters of the chosen lines, without the last one's end. Characters count as the server counts them, not as UTF-16 units.
function lineSpan(text) {
  const lines = text.split("\n"), count = Math.max(1, lines.length - (lines.at(-1) === "" ? 1 : 0));
  const chosen = (id, all) => $(id).value.trim() === "" ? all : Number($(id).value);
  const first = chosen("edit-first", 1), last = chosen("edit-last", count);
  if (!(Number.isInteger(first) && Number.isInteger(last) && 1 <= first && first <= last && last <= count))
    throw new Error(`The lines ${$("edit-first").value || 1} to ${$("edit-last").value || count} are not in the text, which has ${count}.`);
  const size = text => [...text].length, start = size(lines.slice(0, first - 1).map(line => `${line}\n`).join(""));
  return [start, start + size(lines.slice(first - 1, last).join("\n"))];
}
function showEdit(answer, { text }) {
  const cost = `${answer.steps} steps · ${answer.forwards} forwards · ${seconds(answer.seconds)}`;
  if (answer.full_text === text) return [resultCard(make("div", "text", "Nothing was changed."), cost)];
  const doubtful = Math.max(...answer.tokens.map(token => token.entropy));
  const sure = doubtful < BOUNDS[0] ? "all tokens settled" : `least sure token: ${doubtful.toFixed(2)} nats`;
  return [resultCard(drawDiff(text, answer.full_text), `${cost} · ${sure}`,
    tool("Take it over", () => { $("edit-text").value = answer.full_text; $("edit-text").focus(); }), copier(() => answer.full_text))];
}

// A selection in the text chooses its lines, until the text is changed: what is pasted over it may have others.
let bySelection = false;
$("edit-text").onselect = () => {
  const box = $("edit-text"), line = at => box.value.slice(0, at).split("\n").length;
  if (box.selectionStart === box.selectionEnd) return;
  bySelection = true;
  $("edit-first").value = line(box.selectionStart); $("edit-last").value = line(box.selectionEnd - 1);
};
$("edit-text").oninput = () => { if (bySelection) $("edit-first").value = $("edit-last").value = ""; bySelection = false; };
for (const id of ["edit-first", "edit-last"]) $(id).oninput = () => { bySelection = false; };

"use strict";
// Fill: a text with holes comes back whole, every token of a filling coloured by how sure the model was of it.

const HOLE = "<|fill|>";
const POINT = `class Point:
    def __init__(self, ${HOLE}):
        self.x = x
        self.y = y

    def norm(self):
        return (self.x ** 2 + ${HOLE}) ** 0.5
`;

examples("fill", [
  { label: "A class, two holes", text: POINT },
  { label: "A name used later", text: `for index, ${HOLE} in enumerate(names):\n    print(index, name)\n` },
  { label: "An import used later", text: `import ${HOLE}\n\n\ndef load(path):\n    with open(path) as file:\n        return json.load(${HOLE})\n` },
  { label: "A date, by pattern", text: `released = "${HOLE}"\n`, regex: "20\\d\\d-\\d\\d-\\d\\d", most: 12 },
], ({ text, regex = "", most = 8 }) => { $("fill-text").value = text; $("fill-regex").value = regex; $("fill-most").value = most; });

job("fill", () => {
  const regex = $("fill-regex").value, most = $("fill-most").value.trim();
  return ["/v1/fill", { text: $("fill-text").value, ...(regex ? { regex } : {}), ...(most ? { max_tokens: whole(most) } : {}) }];
}, showFillings, fillingText);

function showFillings(answer, { text }) {
  const box = make("div", "text code given"), tokens = [];
  text.split(HOLE).forEach((given, i) => {
    box.append(given);
    const filling = answer.fillings[i];
    if (filling) tokens.push(...appendFilling(box, filling));
  });
  const steps = answer.fillings.map(filling => filling.steps).join(" + ");
  const facts = `${steps} steps · ${answer.forwards} forwards · ${seconds(answer.seconds)} · coloured where unsure`;
  return [resultCard(box, facts, tool("Replay", () => settle(tokens)), copier(() => answer.full_text))];
}
// Appends the tokens of a filling and returns them with the step at which each settled. Offsets count characters, not UTF-16 units.
function appendFilling(box, filling) {
  const characters = [...filling.text], piece = (start, end) => characters.slice(start, end).join("");
  let end = 0;
  const found = filling.tokens.map(token => {
    if (token.start > end) box.append(make("span", "tok filled", piece(end, token.start)));
    const u = doubt(token.entropy), span = make("span", `tok filled${u ? ` u${u}` : ""}`, piece(Math.max(end, token.start), token.end));
    span.title = `${JSON.stringify(span.textContent)}  ${token.entropy.toFixed(3)} nats, settled in step ${token.settled_step + 1}`;
    box.append(span);
    end = Math.max(end, token.end);
    return [span, token.settled_step];
  });
  if (end < characters.length) box.append(make("span", "tok filled", piece(end)));
  return found;
}
let settling = 0;
function settle(tokens) {                             // shows the order in which the tokens settled
  const last = Math.max(0, ...tokens.map(([, step]) => step));
  let now = -1;
  clearInterval(settling);
  const show = () => tokens.forEach(([span, step]) => span.classList.toggle("open", step > now));
  show();
  settling = setInterval(() => { now++; show(); if (now >= last) clearInterval(settling); }, 220);
}

$("fill-hole").onclick = () => {
  const box = $("fill-text");
  box.setRangeText(HOLE, box.selectionStart, box.selectionEnd, "end"); box.focus();
};

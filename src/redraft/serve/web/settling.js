"use strict";
// Fillings and edits while they settle: drafts stand in their places, between the text that is given.

// Hands the events of an answer to `take`; returns what is done in the end.
async function settled(answer, take) {
  for await (const [name, data] of events(answer)) {
    if (name === "error") throw new Error(data.error.message);
    if (name === "done") return data;
    take(name, data);
  }
  throw new Error(BROKEN);
}
// A text in which places are open. `state` is what can be said of the step shown last.
function openText() {
  const box = make("div", "text code given"), places = [];
  return {
    box, state: "",
    place(text = "", next = null) { const span = make("span", "place", text); places.push(span); box.insertBefore(span, next); },
    draft(at, step, what) {
      const place = places[at], first = place.dataset.shown !== "step", height = box.style.minHeight;
      if (first) { place.dataset.shown = "step"; place.replaceChildren(); }
      drawPieces(place, 0, shownPieces(step, []), true);
      holdHeight(box);
      if (first || box.style.minHeight !== height) inView(box.parentElement, place);
      this.state = [what, `step ${step.step + 1}`, `${settledCount(step, [])} of ${step.pieces.length} settled`].filter(part => part).join(" · ");
    },
    commit(at, text, name) { places[at].dataset.shown = "text"; places[at].replaceChildren(make("span", name, text)); this.state = ""; },
  };
}
function inView(card, place) { (card.offsetHeight < $("main").clientHeight ? card : place).scrollIntoView({ block: "nearest" }); }
function fillingText({ text }) {
  const shown = openText(), given = text.split(HOLE), holes = given.length - 1;
  given.forEach((piece, i) => { shown.box.append(piece); if (i < holes) shown.place(); });
  return Object.assign(shown, { take(name, data) {
    const at = data.canvas_index;
    if (name === "denoise") shown.draft(at, data, holes > 1 ? `hole ${at + 1} of ${holes}` : "");
    else if (name === "commit") shown.commit(at, data.text, "tok filled");
  } });
}
// The parts of a long span are edited one after the other; what is left of the old text is not known until then.
function editedText({ text, span }) {
  const characters = [...text], [before, old, after] = [[0, span[0]], span, [span[1]]].map(ends => characters.slice(...ends).join(""));
  const shown = openText(), rest = make("span");
  let parts = 1, open = 1;
  shown.box.append(nearEnd(before)); shown.place(old); shown.box.append(rest, nearStart(after));
  return Object.assign(shown, { take(name, data) {
    if (name === "start") { parts = data.canvases; return; }
    const at = data.canvas_index;
    if (open <= at) { shown.place("", rest); open++; }
    rest.textContent = at < parts - 1 ? "\n⋯" : "";
    if (name === "denoise") shown.draft(at, data, parts > 1 ? `part ${at + 1} of ${parts}` : "");
    else shown.commit(at, data.text, "tok");
  } });
}
const nearEnd = text => { const lines = text.split("\n"); return lines.length > NEAR + 1 ? ["⋯", ...lines.slice(-NEAR - 1)].join("\n") : text; };
const nearStart = text => { const lines = text.split("\n"); return lines.length > NEAR + 1 ? [...lines.slice(0, NEAR + 1), "⋯"].join("\n") : text; };

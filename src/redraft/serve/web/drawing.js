"use strict";
// Drawing a conversation: one frame at a time, of the newest step or the one selected on the timeline.

const BOUNDS = [0.05, 0.3, 0.7, 1.5, 2.5];           // nats: below the first, a token is settled; above the last, it is noise
let due = 0;
function frame() { if (!due) due = requestAnimationFrame(() => { due = 0; drawSelected(); }); }

function draw() {
  const talk = $("talk");
  talk.replaceChildren();
  if (!turns.length) talk.append(hello());
  turns.forEach((turn, index) => {
    if (turn.user || turn.images) talk.append(bubble(turn));
    talk.append(card(turn, index));
  });
  if (notice) talk.append(alertBox(notice));
  drawSelected();
}
function alertBox(text) { const box = make("div", "trouble", text); box.setAttribute("role", "alert"); return box; }
function bubble(turn) {
  const box = make("div", looksLikeCode(turn.user) ? "user code" : "user");
  if (turn.images) { const row = make("div", "images"); row.append(...turn.images.map(picture)); box.append(row); }
  box.append(turn.user);
  return box;
}
function picture(url) { const image = make("img"); image.src = url; image.alt = "An image in this message"; return image; }
function hello() {
  const box = make("div", "hello");
  box.append(make("h2", "", "Drafted at once, redrafted until it is right"),
    make("p", "", "Ask something and watch the whole answer settle. Colours show how sure the model is of every token."));
  const ideas = make("div", "ideas");
  for (const idea of IDEAS) {
    const button = make("button", "", idea.label || idea); button.type = "button";
    button.onclick = () => { setSchema(idea.schema || ""); ask(idea.text || idea, idea.system); };
    ideas.append(button);
  }
  box.append(ideas, make("p", "", "Because the model sees both sides of every place in a text, it can also"), others());
  return box;
}
function others() {                                   // ways to the other tabs
  const list = make("div", "others");
  for (const [name, what] of [["Fill", "holes in a text, fitting what follows"], ["Edit", "some lines, and no character elsewhere"],
                              ["Decide", "between options, with probabilities"]]) {
    const button = tool("", () => openTab(name.toLowerCase(), true));
    button.append(make("b", "", name), make("span", "", what));
    list.append(button);
  }
  return list;
}
function card(turn, index) {
  const box = make("article", "answer"); box.id = `answer-${index}`; box.dataset.selected = index === selected;
  if (turn.reasoning) {
    const thought = make("details", "thought");
    const fold = make("summary", "", "Thoughts");
    thought.open = !!turn.unfolded; fold.onclick = () => { turn.unfolded = !thought.open; };  // comes before it opens
    thought.append(fold, make("div", "", turn.reasoning));
    box.append(thought);
  }
  const text = make("div", "text", turn === running?.turn ? turn.text : finalText(turn));
  text.classList.toggle("code", looksLikeCode(turn.text));
  const facts = make("div", "facts"); facts.append(make("span", "", turn.facts));
  const tools = make("span", "push");
  if (turn !== running?.turn) {
    if (turn.text) tools.append(copier(() => turn.text));
    if (index === turns.length - 1 && !turn.replayed && !running) tools.append(tool("Retry", again));
  }
  if (turn.trace?.steps.length && turn !== running?.turn) {
    if (index !== selected) tools.append(tool("Show steps", () => { select(index); }));
    tools.append(tool("Save trace", () => saveTrace(turn)));
  }
  facts.append(tools); box.append(text, facts);
  return box;
}
const looksLikeCode = text => /^(def |class |import |from \w+ import |#include|```|\{"|(\d ){8}\d)/m.test(text);
function select(index) { stopPlaying(); selected = index; at = Infinity; draw(); }

function drawSelected() {
  const turn = turns[selected], steps = turn?.trace?.steps || [];
  $("timeline").hidden = !steps.length;
  const text = document.querySelector(`#answer-${selected} .text`);
  if (!steps.length || !text) return;
  const writing = running?.turn === turn, last = steps.length - 1;
  const ended = !writing && at > last;
  const index = Math.min(at, last);
  if (ended) showText(text, turn); else showStep(text, turn, steps[index], index, writing && at > last);
  const facts = document.querySelector(`#answer-${selected} .facts span`);
  facts.textContent = writing ? live(turn) : turn.facts;
  const scrub = $("scrub");
  scrub.max = ended || !writing ? last + 1 : last; scrub.value = ended ? last + 1 : index;
  const step = steps[index];
  $("where").textContent = ended ? (turn.cut ? "what was committed" : "the finished answer")
    : `canvas ${step.canvas_index + 1} · step ${step.step + 1} · ${settledCount(step, turn.trace.eos)} of ${endOf(step, turn.trace.eos)} settled · temperature ${step.temperature.toFixed(2)}`;
  scrub.setAttribute("aria-valuetext", $("where").textContent);
  drawMap(turn.trace); placeCursor(ended ? last + 1 : index, last + 1);
  if (writing) toEnd();
}
function live(turn) {
  const step = turn.trace.steps.at(-1);
  const committed = turn.trace.commits.reduce((sum, c) => sum + c.token_ids.length, 0);
  const drafted = step && step.canvas_index >= turn.trace.commits.length ? settledCount(step, turn.trace.eos) : 0;
  return rate((committed + drafted) / (performance.now() - running.started) * 1000);
}
// Where the text ends, if the model is fairly sure of it; anything after that is neither shown nor counted.
function endOf(step, eos) {
  const end = step.argmax_canvas.findIndex((id, i) => eos.includes(id) && step.entropy[i] < BOUNDS[2]);
  return end < 0 ? step.argmax_canvas.length : end;
}
const settledCount = (step, eos) => step.accepted.slice(0, endOf(step, eos)).filter((ok, i) => ok || step.entropy[i] < BOUNDS[0]).length;
const level = (step, i) => step.accepted[i] ? 0 : doubt(step.entropy[i]);
const doubt = entropy => BOUNDS.filter(bound => entropy >= bound).length;

function showText(box, turn) {
  const text = finalText(turn);
  if (box.dataset.shown === "text" && box.textContent === text) return;
  box.dataset.shown = "text"; box.style.minHeight = "";
  box.textContent = text;
}
function finalText(turn) { return turn.text || (turn.reasoning ? "" : turn.cut ? "(nothing was committed)" : "(empty answer)"); }
function showStep(box, turn, step, index, flicker) {
  const before = turn.trace.commits.filter(c => c.canvas_index < step.canvas_index).map(c => c.text).join("");
  const pieces = shownPieces(step, turn.trace.eos);
  let head = box.firstElementChild;
  if (box.dataset.shown !== "step" || !head) {
    head = make("span"); box.replaceChildren(head); box.dataset.shown = "step";
  }
  if (head.textContent !== before) head.textContent = before;
  if (looksLikeCode(before + pieces.map(([text]) => text).join(""))) box.classList.add("code");
  drawPieces(box, 1, pieces, flicker);
  holdHeight(box, flicker);
}
// One span for each piece, after the first `before` elements of a box; those that change flicker.
function drawPieces(box, before, pieces, flicker) {
  while (box.children.length - before > pieces.length) box.lastElementChild.remove();
  pieces.forEach(([text, name, title], i) => {
    let span = box.children[i + before];
    if (!span) { span = make("span"); box.append(span); }
    if (span.textContent !== text) {
      span.textContent = text;
      if (flicker) { span.classList.remove("flip"); void span.offsetWidth; name += " flip"; }
    }
    if (span.className !== name) span.className = name;
    span.title = title;
  });
}
// Keeps the page from jumping when a draft gets shorter.
function holdHeight(box, grows = true) { box.style.minHeight = `${Math.max(parseFloat(box.style.minHeight) || 0, grows ? box.offsetHeight : 0)}px`; }
function shownPieces(step, eos) {
  const ids = step.argmax_canvas, ends = new Set(eos), end = endOf(step, eos);
  const shown = step.pieces.slice(0, end).map((piece, i) => {
    const u = level(step, i), vague = u >= 3;
    const text = ends.has(ids[i]) ? "·" : vague ? piece.replaceAll("\n", "↵") : piece;
    return [text, `tok${u ? ` u${u}` : ""}`, `${JSON.stringify(piece)}  ${step.entropy[i].toFixed(3)} nats`];
  });
  if (end < ids.length) shown.push([" " + "·".repeat(Math.min(ids.length - end, 24)), "end", `${ids.length - end} positions after the end`]);
  return shown;
}

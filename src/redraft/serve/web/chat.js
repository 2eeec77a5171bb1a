"use strict";
// The conversation and what is kept of it: each tab has its own across reloads; new tabs get the dials and the latest.

const PRESETS = ["fast", "balanced", "careful"];
const CAPS = { fast: 16, balanced: 48, careful: 96 };
const SUDOKU = {
  label: "Solve a Sudoku",
  system: "Solve the following Sudoku puzzle. Empty cells are represented by 0. Output ONLY the solved puzzle immediately as a 9x9 grid of numbers separated by spaces. Do not include ####, explanations, or any other text.",
  text: [..."080470096600000100040100000010060002030009014056001907400900820500007400090000001"].join(" "),
};
const FACTS = {
  label: "Read facts into JSON",
  text: "The red chair costs 49 euros. Extract item, color and price.",
  schema: `{
  "type": "object",
  "properties": {
    "item": {"type": "string"},
    "color": {"type": "string"},
    "price": {"type": "number"}
  },
  "required": ["item", "color", "price"]
}`,
};
const IDEAS = ["What can you do?", "What do cows eat?", SUDOKU, FACTS];

const kept = read(localStorage, "redraft", { turns: [], speeds: {}, preset: "balanced", steps: null, theme: null });
let { turns } = read(sessionStorage, "redraft.talk", { turns: kept.turns });  // {user, system?, images?, text, reasoning, unfolded?, facts, cut?, trace?}
let selected = -1;                                    // the turn on the timeline
let at = Infinity;                                    // the step shown; Infinity is the finished answer
let running = null;                                   // {controller, turn, asked, started} while an answer is being written
let shown = [];                                       // images for the next message, as data URLs
let playing = 0;                                      // timer of the replay
let notice = "";                                      // what went wrong last
function keep() {
  kept.turns = turns.map(({ trace, ...turn }) => turn);
  sessionStorage.removeItem("redraft.trace");         // if space is short, the conversation matters most
  const words = kept.turns.map(({ images, ...turn }) => turn);  // for when images do not fit
  for (const [store, name, value] of [[localStorage, "redraft", kept], [sessionStorage, "redraft.talk", { turns: kept.turns }]]) {
    try { store.setItem(name, JSON.stringify(value)); }
    catch { try { store.setItem(name, JSON.stringify({ ...value, turns: words })); } catch { /* a full store loses nothing on screen */ } }
  }
  const last = turns.findLast(turn => turn.trace && turn.trace.steps.length);
  try { sessionStorage.setItem("redraft.trace", last ? JSON.stringify({ index: turns.indexOf(last), user: last.user, text: last.text, trace: last.trace }) : "{}"); }
  catch { sessionStorage.removeItem("redraft.trace"); }
}

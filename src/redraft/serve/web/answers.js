"use strict";
// An answer: a question is sent, and the events of its drafts come back.

async function ask(text, system, images = []) {       // returns whether the question stays in the conversation
  if (running || !(text.trim() || images.length)) return false;
  if (!model) { trouble("The model is not ready yet."); return false; }
  stopPlaying(); notice = "";
  const turn = { user: text, text: "", reasoning: "", facts: "", trace: { eos: [], settings: {}, steps: [], commits: [] }, ...(system ? { system } : {}), ...(images.length ? { images } : {}) };
  const messages = saidBefore(system);
  turns.push(turn);
  selected = turns.length - 1; at = Infinity;
  const asked = settings();
  running = { controller: new AbortController(), turn, asked, started: performance.now() };
  let stays = true;
  buttons(); draw(); toEnd(true);
  try {
    const body = { model: model.id, messages: [...messages, said(turn)], ...asked };
    await follow(await call("/v1/drafts", body, running.controller.signal), turn);
  } catch (error) {
    stays = finishEarly(turn, error);
  } finally {
    running = null;
    buttons(); draw(); keep(); toEnd();
    $("spoken").textContent = turn.text;
  }
  return stays;
}
// The last question once more, as it was asked; its answer comes back if there is no other.
async function again() {
  const last = turns.at(-1);
  if (running || !last) return;
  turns.pop();
  if (await ask(last.user, last.system, last.images)) return;
  turns.push(last); selected = turns.length - 1; draw(); keep(); toEnd();
}
function saidBefore(system = $("system").value.trim()) {
  const before = turns.filter(turn => turn.text && !turn.replayed).flatMap(turn => [said(turn), { role: "assistant", content: turn.text }]);
  return [...(system ? [{ role: "system", content: system }] : []), ...before];
}
function said({ user, images }) {                     // a user message; images come before text
  if (!images) return { role: "user", content: user };
  const parts = images.map(url => ({ type: "image_url", image_url: { url } }));
  return { role: "user", content: user.trim() ? [...parts, { type: "text", text: user }] : parts };
}
function settings() {
  const names = { seed: "seed", max: "max_tokens", length: "canvas_length" };
  const number = id => $(id).value.trim() === "" ? {} : { [names[id]]: whole($(id).value) };
  const preset = kept.preset;
  return { preset, ...(kept.steps ? { steps: kept.steps } : {}), ...number("seed"), ...number("max"), ...number("length"),
           ...($("schema").value.trim() ? { json_schema: parsed($("schema").value) } : {}), ...($("thinking").checked ? { thinking: true } : {}) };
}
// Anything but JSON or a whole number is sent as it is, so that the server can say so; JSON would turn the number NaN into null.
const parsed = text => { try { return JSON.parse(text); } catch { return text; } };
const whole = text => Number.isSafeInteger(Number(text)) ? Number(text) : text;
async function follow(answer, turn) {
  const trace = turn.trace;
  for await (const [name, data] of events(answer)) {
    if (name === "start") { trace.eos = data.eos_token_ids; trace.settings = data.settings; }
    else if (name === "denoise") { trace.steps.push(slim(data)); frame(); }
    else if (name === "commit") { trace.commits.push(data); turn.text = trace.commits.map(c => c.text).join(""); frame(); }
    else if (name === "error") throw new Error(data.error.message);
    else if (name === "done") complete(turn, data);
  }
  if (!turn.facts) throw new Error(BROKEN);
}
const slim = ({ request_id, type, ...step }) => step;
function complete(turn, data) {
  turn.text = data.content || (data.tool_calls.length ? data.tool_calls.map(c => `${c.name}(${JSON.stringify(c.arguments)})`).join("\n") : "");
  turn.reasoning = data.reasoning;
  turn.facts = describe(data.stats, data.ending, data.seed);
  const speed = data.stats.tokens_per_second, settings = turn.trace.settings;
  if (!running.asked.steps) kept.speeds[running.asked.preset] = speed;
  kept.speeds[`steps ${settings.steps}`] = speed;
  dials();
}
const rate = speed => `${speed.toFixed(speed < 10 ? 1 : 0)} tok/s`;
function describe(stats, ending, seed) {
  const parts = [`${stats.canvases} canvas${stats.canvases === 1 ? "" : "es"}`, `${stats.steps.join(" + ")} steps`, `${stats.tokens} tokens`,
    `${stats.tokens_per_forward.toFixed(1)} per forward`, rate(stats.tokens_per_second)];
  if (seed != null) parts.push(`seed ${seed}`);
  if (ending === "length") parts.push("cut at max tokens");
  if (ending === "timeout") parts.push("cut by the time limit");
  return parts.join(" · ");
}
function finishEarly(turn, error) {
  turn.cut = true;
  if (error.name === "AbortError") { turn.facts = stopped(turn); return true; }
  turn.facts = "ended by an error";
  connect();
  const begun = turn.trace.steps.length > 0;
  if (!begun) turns.pop(), selected = turns.length - 1;
  trouble(error.message);
  return begun;
}
const stopped = turn => `stopped after ${turn.trace.steps.length} steps`;
function trouble(text) { notice = text; draw(); toEnd(true); }

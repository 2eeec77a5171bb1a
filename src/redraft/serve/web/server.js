"use strict";
// The server: requests, its key, its events, its state.

let key = sessionStorage.getItem("redraft.key") || "";
let model = null;                                     // what /v1/models says about it
let connecting = false;                               // whether the server's state is being polled
async function call(path, body, signal) {
  for (;;) {
    if (!/^[\x20-\x7e]*$/.test(key)) { await askKey(); continue; }  // not a key: no header could hold it
    const headers = key ? { authorization: `Bearer ${key}` } : {};
    if (body) headers["content-type"] = "application/json";
    const asked = fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
    const answer = await asked.catch(lost("The server cannot be reached."));
    if (answer.status === 401) { await askKey(); continue; }
    if (!answer.ok) throw new Error((await answer.json().catch(() => null))?.error?.message || `The server answered ${answer.status}.`);
    return answer;
  }
}
// Browsers word a lost connection in different ways; an abort is no loss.
const lost = sentence => error => { throw error.name === "AbortError" ? error : new Error(sentence); };
const BROKEN = "The connection ended before the answer did.";
function askKey() {
  const dialog = $("ask");
  if (!dialog.open) dialog.showModal();
  return new Promise(done => dialog.addEventListener("close", () => {
    key = $("key").value.trim(); sessionStorage.setItem("redraft.key", key); done();
  }, { once: true }));
}
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read().catch(lost(BROKEN));
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const name = /^event: (.*)$/m.exec(block)?.[1];
      const data = /^data: (.*)$/m.exec(block)?.[1];
      if (data) yield [name, JSON.parse(data)];
    }
  }
}
async function connect() {
  if (connecting) return;
  connecting = true;
  for (let wait = 300; !await reached(); wait = Math.min(wait * 1.5, 3000)) await new Promise(done => setTimeout(done, wait));
  connecting = false;
  if (model.steps) Object.assign(CAPS, { fast: Math.min(model.steps, 16), balanced: model.steps, careful: 2 * model.steps });
  status(`${model.id} · canvas of ${model.canvas_length}`, "ready");
  $("clip").hidden = !model.images;
  $("thinks").hidden = !model.thinking;
  $("drop").textContent = model.images ? "Drop an image to add it, or a trace to replay it" : "Drop a trace to replay it";
  dials();
}
async function reached() {
  const health = await fetch("/health").then(answer => answer.json()).catch(() => null);
  if (!health) status("no connection", "error");
  else if (health.phase !== "ready") status(health.phase === "loading" ? "loading the model" : "shutting down", "wait");
  else try { model = (await (await call("/v1/models")).json()).data[0]; return true; } catch (error) { status(error.message, "error"); }
  return false;
}
function status(text, state) { $("model").textContent = text; $("model").dataset.state = state; }

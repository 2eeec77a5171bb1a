"use strict";
// The tabs, and what Fill, Edit and Decide have in common: a form, a request, a result.

const TABS = ["chat", "fill", "edit", "decide"];
const FIRST = { chat: "prompt", fill: "fill-text", edit: "edit-text", decide: "decide-question" };
const jobs = {};                                      // by tab: {stop}
let tab = "chat";

function openTab(name, focus = false) {
  tab = TABS.includes(name) ? name : "chat";
  document.body.dataset.tab = tab;
  for (const each of TABS) {
    const button = $(`tab-${each}`), open = each === tab;
    button.setAttribute("aria-selected", open); button.tabIndex = open ? 0 : -1;
    $(each === "chat" ? "talk" : each).hidden = !open;
  }
  if (location.hash.slice(1) !== (tab === "chat" ? "" : tab)) history.replaceState(null, "", tab === "chat" ? location.pathname : `#${tab}`);
  if (tab === "chat") toEnd(true); else $("main").scrollTop = 0;
  if (focus) focusFirst();
}
function focusFirst() { $(FIRST[tab]).focus(); }

// Sends what `ask` returns, a path and a body, and shows what `show` makes of the answer; meanwhile, if it is streamed,
// the text with its drafts that `open` makes of the body.
function job(name, ask, show, open) {
  const button = $(`${name}-send`), result = $(`${name}-result`), label = button.textContent;
  let controller = null;
  jobs[name] = { stop: () => controller?.abort() };
  $(`${name}-form`).onsubmit = async event => {
    event.preventDefault();
    if (controller) { controller.abort(); return; }
    controller = new AbortController();
    button.textContent = "Stop"; button.classList.add("stop");
    let ticking = 0;
    try {
      if (!model) throw new Error("The model is not ready yet.");
      const [path, body] = ask(), opened = open?.(body);
      ticking = clock(result, opened);
      const answer = await call(path, { model: model.id, ...body, ...(opened ? { stream: true } : {}) }, controller.signal);
      const done = opened ? await settled(answer, opened.take) : await answer.json().catch(lost(BROKEN));
      result.replaceChildren(...show(done, body));
      result.scrollIntoView({ block: "nearest" });
      $("spoken").textContent = result.firstElementChild.firstElementChild.textContent;
    } catch (error) {
      if (error.name === "AbortError") result.replaceChildren(make("p", "facts", "stopped"));
      else { result.replaceChildren(alertBox(error.message)); connect(); }
    } finally {
      clearInterval(ticking); controller = null;
      button.textContent = label; button.classList.remove("stop");
    }
  };
}
function clock(result, opened) {
  const started = performance.now(), shown = opened ? resultCard(opened.box, "at work") : make("p", "facts working", "at work");
  const facts = opened ? shown.lastElementChild.firstElementChild : shown;
  facts.parentElement?.classList.add("working");
  result.replaceChildren(shown);
  result.scrollIntoView({ block: "nearest" });
  return setInterval(() => {
    const parts = ["at work", seconds((performance.now() - started) / 1000), opened?.state];
    facts.textContent = parts.filter(part => part).join(" · ");
  }, 100);
}
const seconds = time => `${time.toFixed(time < 1 ? 2 : 1)} s`;

// Examples fill the form; the first is there from the beginning.
function examples(name, list, use) {
  $(`${name}-ideas`).append(...list.map(example => tool(example.label, () => { use(example); $(`${name}-result`).replaceChildren(); $(`${name}-send`).focus(); })));
  use(list[0]);
}
// What was typed stays in the browser tab across reloads.
const typedFields = () => [...document.querySelectorAll(".work textarea, .work input")];
function keepFields() {
  const fields = Object.fromEntries(typedFields().map(field => [field.id, field.type === "checkbox" ? field.checked : field.value]));
  try { sessionStorage.setItem("redraft.fields", JSON.stringify(fields)); } catch { /* a full store loses nothing on screen */ }
}
function restoreFields() {
  const fields = read(sessionStorage, "redraft.fields", {});
  for (const field of typedFields()) if (field.id in fields) field[field.type === "checkbox" ? "checked" : "value"] = fields[field.id];
}
for (const leaving of ["pagehide", "visibilitychange"]) addEventListener(leaving, keepFields);  // phones may end a hidden page without a word
function resultCard(content, facts, ...tools) {
  const box = make("article", "answer"), line = make("div", "facts"), push = make("span", "push");
  push.append(...tools); line.append(make("span", "", facts), push); box.append(content, line);
  return box;
}

for (const name of TABS) $(`tab-${name}`).onclick = () => openTab(name);
document.querySelector(".tabs").onkeydown = event => {
  const to = { ArrowRight: 1, ArrowLeft: -1, Home: -TABS.indexOf(tab), End: TABS.length - 1 - TABS.indexOf(tab) }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  openTab(TABS[(TABS.indexOf(tab) + to + TABS.length) % TABS.length]); $(`tab-${tab}`).focus();
};
for (const box of document.querySelectorAll(".work textarea")) box.onkeydown = event => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); box.form.requestSubmit(); }
};
$("skip").onclick = event => { event.preventDefault(); focusFirst(); };
addEventListener("hashchange", () => openTab(location.hash.slice(1)));

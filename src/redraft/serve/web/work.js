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

// Sends what `ask` returns, a path and a body, and shows what `show` makes of the answer.
function job(name, ask, show) {
  const button = $(`${name}-send`), result = $(`${name}-result`), label = button.textContent;
  let controller = null;
  jobs[name] = { stop: () => controller?.abort() };
  $(`${name}-form`).onsubmit = async event => {
    event.preventDefault();
    if (controller) { controller.abort(); return; }
    controller = new AbortController();
    button.textContent = "Stop"; button.classList.add("stop");
    const ticking = clock(result);
    try {
      if (!model) throw new Error("The model is not ready yet.");
      const [path, body] = ask();
      const answer = await call(path, { model: model.id, ...body }, controller.signal);
      result.replaceChildren(...show(await answer.json().catch(lost(BROKEN)), body));
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
function clock(result) {
  const started = performance.now(), shown = make("p", "facts working", "at work");
  result.replaceChildren(shown);
  return setInterval(() => { shown.textContent = `at work · ${seconds((performance.now() - started) / 1000)}`; }, 100);
}
const seconds = time => `${time.toFixed(time < 1 ? 2 : 1)} s`;

// Examples fill the form; the first is there from the beginning.
function examples(name, list, use) {
  $(`${name}-ideas`).append(...list.map(example => tool(example.label, () => { use(example); $(`${name}-result`).replaceChildren(); $(`${name}-send`).focus(); })));
  use(list[0]);
}
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

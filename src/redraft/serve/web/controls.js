"use strict";
// Dials, buttons, keys.

function dials() {
  const preset = PRESETS.indexOf(kept.preset), steps = kept.steps || CAPS[kept.preset];
  $("preset").value = preset; $("preset").setAttribute("aria-valuetext", kept.preset); $("preset-name").textContent = kept.preset;
  $("steps").value = steps; $("steps-name").textContent = steps;
  const speed = name => kept.speeds[name] ? rate(kept.speeds[name]) : "–";
  [...$("preset-speed").children].forEach((span, i) => { span.textContent = speed(PRESETS[i]); span.title = `measured with ${PRESETS[i]}`; });
  const measured = kept.speeds[`steps ${steps}`];
  $("steps-speed").textContent = measured ? `${rate(measured)} measured at ${steps} steps` : `not measured at ${steps} steps yet`;
}
function buttons() {
  document.body.dataset.writing = running ? "yes" : "no";
  $("send").textContent = running ? "Stop" : "Send";
  $("send").classList.toggle("stop", !!running);
  $("play").disabled = !!running;
}
// A draft may grow by more than a screen at once, so what counts is whether the reader has scrolled up since the end was shown.
let following = true, scrolled = 0;
$("main").onscroll = () => {
  if (tab !== "chat") return;
  const main = $("main"), ended = main.scrollHeight - main.scrollTop - main.clientHeight < 8;
  following = ended || (following && main.scrollTop >= scrolled);
  scrolled = main.scrollTop;
};
function toEnd(force) {
  following ||= !!force;
  if (following && tab === "chat") $("main").scrollTop = turns.length || notice ? $("main").scrollHeight : 0;
}
function write(text) { $("prompt").value = text; grow(); }
function grow() { const box = $("prompt"); box.style.height = "auto"; box.style.height = `${Math.min(box.scrollHeight, 176)}px`; }

$("form").onsubmit = async event => {
  event.preventDefault();
  if (running) { running.controller.abort(); return; }
  const text = $("prompt").value, images = shown;
  if (!text.trim() && !images.length) return;
  write(""); shown = []; drawShown();
  if (!await ask(text, undefined, images) && !$("prompt").value && !shown.length) { write(text); shown = images; drawShown(); }
};
$("clip").onclick = () => $("pick").click();
$("pick").onchange = event => { const files = [...event.target.files]; event.target.value = ""; showImages(files); };
addEventListener("paste", event => {
  if (tab !== "chat") return;
  const files = [...(event.clipboardData?.files || [])].filter(isImage);
  if (files.length) { event.preventDefault(); showImages(files); }
});
const isImage = file => file.type.startsWith("image/");
$("prompt").oninput = grow;
$("prompt").onkeydown = event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); if (!running) $("form").requestSubmit(); }
};
document.onkeydown = event => {
  const typing = /^(TEXTAREA|INPUT)$/.test(event.target.tagName) && !/^(range|checkbox)$/.test(event.target.type);
  if (event.key === "Escape") { if (tab === "chat") running?.controller.abort(); else jobs[tab].stop(); return; }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") { event.preventDefault(); focusFirst(); }
  if (event.key.toLowerCase() === "p" && tab === "chat" && !$("timeline").hidden) play();
};
$("schema").oninput = schemaState;
function setSchema(text) { $("schema").value = text; schemaState(); }
function schemaState() { $("schema-state").textContent = $("schema").value.trim() ? "on" : "off"; }
$("scrub").oninput = event => { stopPlaying(); show(Number(event.target.value)); };
$("play").onclick = play;
$("preset").oninput = event => { kept.preset = PRESETS[event.target.value]; kept.steps = null; dials(); keep(); };
$("steps").oninput = event => { kept.steps = Number(event.target.value); dials(); keep(); };
$("new").onclick = () => { if (running) running.controller.abort(); stopPlaying(); turns = []; shown = []; selected = -1; notice = ""; draw(); drawShown(); keep(); $("prompt").focus(); };
$("theme").onclick = () => {
  const dark = kept.theme ? kept.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  kept.theme = dark ? "light" : "dark"; applyTheme(); keep();
};
function applyTheme() { if (kept.theme) document.documentElement.dataset.theme = kept.theme; drawSelected(); }
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawSelected);
$("open").onclick = () => $("file").click();
$("file").onchange = async event => { const file = event.target.files[0]; event.target.value = ""; if (file) loadTrace(await file.text(), file.name); };
let over = 0;
addEventListener("dragenter", event => { event.preventDefault(); over++; document.body.classList.add("dropping"); });
addEventListener("dragleave", () => { if (--over <= 0) { over = 0; document.body.classList.remove("dropping"); } });
addEventListener("dragover", event => event.preventDefault());
addEventListener("drop", async event => {
  event.preventDefault(); over = 0; document.body.classList.remove("dropping");
  const files = [...event.dataTransfer.files], images = files.filter(isImage);
  if (files.length) openTab("chat");
  if (images.length) showImages(images);
  else if (files.length) loadTrace(await files[0].text(), files[0].name);
});
// A reload breaks the connection before "pagehide"; phones have no "beforeunload". Anything the abort triggers may not run.
for (const leaving of ["beforeunload", "pagehide"]) addEventListener(leaving, () => {
  if (running) { running.controller.abort(); Object.assign(running.turn, { facts: stopped(running.turn), cut: true }); keep(); }
});

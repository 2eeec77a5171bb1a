"use strict";
// Small helpers that every part of the page uses.

const $ = id => document.getElementById(id);
const make = (tag, name, text) => { const e = document.createElement(tag); if (name) e.className = name; if (text != null) e.textContent = text; return e; };
const tool = (text, act) => { const button = make("button", "", text); button.type = "button"; button.onclick = act; return button; };
const copier = text => { const button = tool("Copy", () => copy(text(), button)); return button; };
async function copy(text, button) {
  const done = await navigator.clipboard?.writeText(text).then(() => true, () => false) || copyByHand(text);
  button.textContent = $("spoken").textContent = done ? "Copied" : "Not copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}
// Browsers offer the clipboard only to pages that come by HTTPS or from this computer.
function copyByHand(text) {
  const box = make("textarea"), before = document.activeElement;
  box.value = text; document.body.append(box); box.select();
  try { return document.execCommand("copy"); } finally { box.remove(); before?.focus(); }
}
function read(store, name, fallback) {
  try { return Object.assign(fallback, JSON.parse(store.getItem(name) || "{}")); } catch { return fallback; }
}

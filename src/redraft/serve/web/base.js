"use strict";
// Small helpers that every part of the page uses.

const $ = id => document.getElementById(id);
const make = (tag, name, text) => { const e = document.createElement(tag); if (name) e.className = name; if (text != null) e.textContent = text; return e; };
function read(store, name, fallback) {
  try { return Object.assign(fallback, JSON.parse(store.getItem(name) || "{}")); } catch { return fallback; }
}

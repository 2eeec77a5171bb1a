"use strict";
// Start from what the last visit left.

const stored = read(sessionStorage, "redraft.trace", {}), whose = turns[stored.index];
// The store may have been too full for the conversation that these steps belong to.
if (whose && whose.user === stored.user && whose.text === stored.text) { whose.trace = stored.trace; selected = stored.index; }
restoreFields(); applyTheme(); dials(); draw(); toEnd(true); openTab(location.hash.slice(1)); connect();

"use strict";
// Differences between two texts: by lines, and by words within lines that were replaced.

// The pairs of places, in order, at which `a` and `b` have the longest run of equal items in common.
function common(a, b) {
  let start = 0, end = 0;
  while (start < Math.min(a.length, b.length) && a[start] === b[start]) start++;
  while (end < Math.min(a.length, b.length) - start && a.at(-1 - end) === b.at(-1 - end)) end++;
  const rows = a.length - start - end, columns = b.length - start - end, pairs = [];
  for (let i = 0; i < start; i++) pairs.push([i, i]);
  if (rows * columns <= 4e6) pairs.push(...middle(a, b, start, rows, columns));  // beyond that, all of it counts as replaced
  for (let i = end; i > 0; i--) pairs.push([a.length - i, b.length - i]);
  return pairs;
}
function middle(a, b, start, rows, columns) {
  const best = Array.from({ length: rows + 1 }, () => new Uint32Array(columns + 1)), pairs = [];
  for (let i = rows - 1; i >= 0; i--) for (let j = columns - 1; j >= 0; j--)
    best[i][j] = a[start + i] === b[start + j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
  for (let i = 0, j = 0; i < rows && j < columns;) {
    if (a[start + i] === b[start + j]) pairs.push([start + i++, start + j++]);
    else if (best[i + 1][j] >= best[i][j + 1]) i++; else j++;
  }
  return pairs;
}
// The parts of two lists in order, as {same} or {old, new}.
function parts(a, b) {
  const found = [];
  let i = 0, j = 0;
  for (const [x, y] of [...common(a, b), [a.length, b.length]]) {
    if (x > i || y > j) found.push({ old: a.slice(i, x), new: b.slice(j, y) });
    if (x < a.length) { if (found.at(-1)?.same) found.at(-1).same.push(a[x]); else found.push({ same: [a[x]] }); }
    i = x + 1; j = y + 1;
  }
  return found;
}
const NEAR = 3;                                       // unchanged lines shown around a change
function drawDiff(before, after) {
  const box = make("div", "diff code"), found = parts(...linesOf(before, after));
  found.forEach((part, i) => {
    if (!part.same) { box.append(...changedLines(part)); return; }
    const head = i ? part.same.slice(0, NEAR) : [], tail = i < found.length - 1 ? part.same.slice(Math.max(head.length, part.same.length - NEAR)) : [];
    box.append(...head.map(line => row(" ", line)));
    if (head.length + tail.length < part.same.length && i && i < found.length - 1) box.append(row("", "⋯"));
    box.append(...tail.map(line => row(" ", line)));
  });
  return box;
}
function linesOf(...texts) {                          // the end of a last line that both have is no further line
  const lines = texts.map(text => text.split("\n"));
  return lines.every(list => list.length > 1 && list.at(-1) === "") ? lines.map(list => list.slice(0, -1)) : lines;
}
function changedLines(part) {
  const words = lines => lines.join("\n").match(/\w+|\s|[^\w\s]/g) || [], sides = { old: [[]], new: [[]] };
  for (const piece of parts(words(part.old), words(part.new))) for (const side of ["old", "new"]) {
    const lines = sides[side];
    for (const word of piece.same || piece[side]) {
      if (word === "\n") lines.push([]);
      else lines.at(-1).push(piece.same ? word : make("mark", "", word));
    }
  }
  const rows = (sign, lines, side) => lines.length ? sides[side].map(content => row(sign, ...content)) : [];
  return [...rows("−", part.old, "old"), ...rows("+", part.new, "new")];
}
function row(sign, ...content) {
  const line = make("div", { "−": "gone", "+": "come" }[sign] || "stays"), shown = make("span", "sign", sign);
  line.append(shown, ...content);
  return line;
}

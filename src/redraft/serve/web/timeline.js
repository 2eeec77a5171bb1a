"use strict";
// The map, with one column per step and one row per position, coloured by certainty; and the timeline over it.

let mapped = { trace: null, steps: 0, theme: "" };
function drawMap(trace) {
  const theme = getComputedStyle(document.documentElement).getPropertyValue("--bg");
  if (mapped.trace === trace && mapped.steps === trace.steps.length && mapped.theme === theme) return;
  mapped = { trace, steps: trace.steps.length, theme };
  const rows = Math.max(8, ...trace.steps.map((step, i) => usedRows(step, trace.steps[i + 1], trace.eos))), canvas = $("map");
  canvas.width = trace.steps.length; canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, rows);
  const colours = ["--sure", "--likely", "--likely", "--unsure", "--unsure", "--noise"].map(colour);
  const strength = [255, 150, 255, 190, 255, 150];
  trace.steps.forEach((step, x) => {
    for (let y = 0; y < Math.min(rows, step.entropy.length); y++) {
      const u = level(step, y), dim = trace.eos.includes(step.argmax_canvas[y]) && u === 0;
      image.data.set([...colours[u], dim ? 90 : strength[u]], 4 * (y * canvas.width + x));
    }
  });
  context.putImageData(image, 0, 0);
}
// A canvas' last step shows how much of it the text needed; the end-of-text after that would only fill the map.
function usedRows(step, next, eos) {
  if (next && next.canvas_index === step.canvas_index) return 0;
  const end = step.argmax_canvas.findIndex(id => eos.includes(id));
  return end < 0 ? step.entropy.length : Math.min(end + 2, step.entropy.length);
}
function colour(name) {
  const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16));
}
function placeCursor(index, count) { $("cursor").style.left = `${Math.min((index + 0.5) / count, 1) * 100}%`; }

function show(index) { at = index >= turns[selected].trace.steps.length && !running ? Infinity : index; drawSelected(); }
function play() {
  if (playing) return stopPlaying();
  const steps = turns[selected]?.trace?.steps.length || 0;
  if (!steps || running?.turn === turns[selected]) return;
  if (at > steps - 1) at = -1;
  playIcon(true);
  playing = setInterval(() => { if (at >= steps - 1) { stopPlaying(); show(steps); } else show(at + 1); }, 120);
}
function stopPlaying() { clearInterval(playing); playing = 0; playIcon(false); }
function playIcon(on) {
  $("play").querySelector("path").setAttribute("d", on ? "M4 3h3v10H4zM9 3h3v10H9z" : "M4 2.5v11l9-5.5z");
  $("play").setAttribute("aria-label", on ? "Pause" : "Play the steps");
}

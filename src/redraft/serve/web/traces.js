"use strict";
// Traces: the JSONL files of `redraft generate --trace`, in and out.

async function loadTrace(text, name) {
  if (running) return;
  try {
    const lines = text.trim().split("\n").map((line, i) => {
      try { return JSON.parse(line); } catch { throw new Error(`Line ${i + 1} of ${name} is not JSON.`); }
    });
    const header = lines.shift();
    if (header?.type !== "header" || header.version !== 1 || !Array.isArray(header.eos_token_ids ?? [])) throw new Error(`${name} is not a trace of version 1.`);
    const loaded = [];
    let turn = null;
    const begin = prompt => loaded.push(turn = { user: prompt || "", text: "", reasoning: "", facts: `replay of ${name}`, replayed: true,
      trace: { eos: header.eos_token_ids || [], settings: header.settings || {}, steps: [], commits: [] } });
    begin(header.prompt);
    for (const [i, line] of lines.entries()) {
      if (line?.type === "turn") begin(line.prompt);
      else if (isStep(line)) turn.trace.steps.push(slim(line));
      else if (line?.type === "commit" && typeof line.text === "string") { turn.trace.commits.push(line); turn.text += line.text; }
      else throw new Error(`Line ${i + 2} of ${name} is not a whole record of a type that traces have.`);
    }
    const answers = loaded.filter(item => item.trace.steps.length);
    if (!answers.length) throw new Error(`${name} holds no steps.`);
    for (const item of answers) await addPieces(item.trace.steps);
    for (const item of answers) Object.assign(item, { text: item.text.trim(), cut: !item.trace.commits.at(-1)?.finish_reason });
    stopPlaying(); notice = ""; turns.push(...answers); selected = turns.length - answers.length; at = 0;
    draw(); toEnd(true); play();
  } catch (error) { trouble(error.message); }
}
function isStep(line) {
  const lists = ["argmax_canvas", "entropy", "accepted"], numbers = ["canvas_index", "step", "temperature"];
  return line?.type === "denoise" && numbers.every(name => Number.isFinite(line[name]))
    && lists.every(name => Array.isArray(line[name]) && line[name].length === line.argmax_canvas.length);
}
async function addPieces(steps) {
  for (let i = 0; i < steps.length; i += 64) {
    const part = steps.slice(i, i + 64);
    const answer = await (await call("/detokenize", { tokens: part.map(step => step.argmax_canvas), pieces: true })).json();
    part.forEach((step, j) => { step.pieces = answer.pieces[j]; });
  }
}
function saveTrace(turn) {
  const { trace } = turn, header = { type: "header", version: 1, model: model?.id, settings: trace.settings, eos_token_ids: trace.eos, prompt: turn.user };
  const lines = [header];
  for (let canvas = 0; canvas <= Math.max(...[trace.steps, trace.commits].map(list => list.at(-1)?.canvas_index ?? 0)); canvas++) {
    for (const { pieces, ...step } of trace.steps) if (step.canvas_index === canvas) lines.push({ type: "denoise", request_id: 0, ...step });
    lines.push(...trace.commits.filter(c => c.canvas_index === canvas).map(c => ({ ...c, type: "commit", request_id: 0 })));
  }
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([lines.map(line => JSON.stringify(line)).join("\n") + "\n"], { type: "application/jsonl" }));
  link.download = "redraft-trace.jsonl"; link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

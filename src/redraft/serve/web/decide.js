"use strict";
// Decide: the probability of every option, as bars.

examples("decide", [
  { label: "A fact", question: "What is the capital of France?", options: ["Paris", "London", "Rome", "Berlin"] },
  { label: "In a sentence", question: "What do cows eat?", options: ["grass", "meat", "fish", "stones"], template: "Cows eat {choice}." },
  { label: "Whole answers", question: "Thanks!", options: ["You're welcome!", "Goodbye!", "No."] },
  { label: "Not so sure", question: "What sound does a dog make?", options: ["bark", "meow", "moo"] },
], ({ question, options, template }) => {
  $("decide-question").value = question; $("decide-options").value = options.join("\n"); $("decide-template").value = template || "";
});

job("decide", () => {
  const template = $("decide-template").value;
  const choices = $("decide-options").value.split("\n").map(line => line.trim()).filter(line => line);
  return ["/v1/decisions", { question: $("decide-question").value, choices, ...(template.trim() ? { template } : {}),
                             ...($("decide-calibrate").checked ? { calibrate: true } : {}) }];
}, showDecision);

function showDecision(answer) {
  const reading = answer.readings[0], bars = make("ol", "bars");
  for (const [choice, probability] of Object.entries(reading.probabilities).sort(([, a], [, b]) => b - a)) bars.append(bar(choice, probability, choice === reading.choice));
  const looks = reading.reads === 1 ? "read once" : `read ${reading.reads} times, ${Math.round(reading.agreement * reading.reads)} of them for this choice`;
  return [resultCard(bars, `${looks} · ${answer.forwards} forward${answer.forwards === 1 ? "" : "s"}`, copier(() => answer.text))];
}
function bar(choice, probability, best) {
  const line = make("li", best ? "best" : ""), track = make("span", "track-of-bar"), fill = make("i");
  fill.style.width = `${100 * probability}%`; track.append(fill);
  line.append(make("span", "option", choice), track, make("span", "share", `${(100 * probability).toFixed(1)}%`));
  return line;
}

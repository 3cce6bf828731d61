// The graph of the open chat: how fast its answers came, with drafts and without.

import { comparable } from "./message.js";
import { $, draw, make, number } from "./dom.js";

const WIDTH = 300;
const HEIGHT = 160;
const LEFT = 40; // of the plot
const BOTTOM = 18;
const TOP = 22;
let drawn = ""; // what is drawn, so that nothing is drawn twice

/**
 * Draw the graph. Every answer is a piece of the horizontal axis, as long as it has tokens.
 * compare: Called to answer the last question again.
 */
export function drawSpeed(messages, compare) {
  const lines = linesOf(messages);
  const last = messages.findLast(comparable);
  const offer = Boolean(last && !last.other);
  const state = JSON.stringify([lines, offer]);
  if (state === drawn) return;
  drawn = state;
  const rows = [lines.length ? graph(lines) : make("p.note", {}, "Tokens per second of each answer will stand here.")];
  const [drafted, plain] = [true, false].map((kind) => rateOf(lines.filter((line) => line.drafted === kind)));
  if (lines.length) rows.push(legend(drafted, plain));
  const times = timesOf(messages);
  if (times) rows.push(make("p.times", {}, make("strong", {}, `${times.toFixed(2)} ×`), " the speed without drafts"));
  if (offer) {
    const words = last.drafted ? "Answer again without drafts" : "Answer again with drafts";
    rows.push(make("button.quiet.wide", { type: "button", onclick: compare }, words));
  }
  $("speed").replaceChildren(...rows);
}

/** Return the lines of the graph: whether drafted, from which token on, and the samples. */
function linesOf(messages) {
  const lines = [];
  let from = 0;
  for (const { samples, drafted, other } of messages) {
    if (!(samples?.length > 1)) continue;
    lines.push({ drafted, from, samples });
    if (other?.samples?.length > 1) lines.push({ drafted: !drafted, from, samples: other.samples });
    from += samples.at(-1)[0];
  }
  return lines;
}

/** Return the tokens per second of all lines together; 0: there are none. */
function rateOf(lines) {
  const ends = lines.map(({ samples }) => samples.at(-1));
  const ms = ends.reduce((sum, [, time]) => sum + time, 0);
  // the first token of an answer comes from the prompt's pass
  return ms && (1000 * ends.reduce((sum, [tokens]) => sum + tokens - 1, 0)) / ms;
}

/** Return how many times faster answers were with drafts, of those made both ways; 0: none was. */
function timesOf(messages) {
  const both = messages.filter((message) => message.facts?.speed && message.other?.facts?.speed);
  const time = ({ ms, tokens }) => ms / Math.max(1, tokens - 1);
  let [drafted, plain] = [0, 0];
  for (const { facts, other, drafted: first } of both) {
    drafted += time(first ? facts : other.facts) * facts.tokens;
    plain += time(first ? other.facts : facts) * facts.tokens;
  }
  return drafted && plain / drafted;
}

function speeds({ from, samples }) {
  const points = [];
  for (let i = 1; i < samples.length; i++) {
    const [tokens, ms] = samples[i];
    const [tokensBefore, msBefore] = samples[i - 1];
    if (ms <= msBefore) continue;
    points.push([from + tokensBefore, from + tokens, (1000 * (tokens - tokensBefore)) / (ms - msBefore)]);
  }
  return points;
}

function graph(lines) {
  const all = lines.map((line) => ({ ...line, points: speeds(line) }));
  const most = nice(Math.max(1, ...all.flatMap(({ points }) => points.map(([, , speed]) => speed))));
  const end = Math.max(...lines.map(({ from, samples }) => from + samples.at(-1)[0]));
  const x = (token) => LEFT + ((WIDTH - LEFT - 2) * token) / end;
  const y = (speed) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - TOP) * speed) / most;
  const text = (words, at, top, anchor) => draw("text", { x: at, y: top, "text-anchor": anchor }, words);
  const drawing = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "speed-graph", role: "img" });
  drawing.setAttribute("aria-label", "Tokens per second over the tokens of this chat's answers");
  for (const speed of [0, most / 2, most]) {
    drawing.append(draw("path", { class: "grid", d: `M${LEFT} ${y(speed)}H${WIDTH}` }));
    drawing.append(text(number.format(speed), LEFT - 5, y(speed) + 4, "end"));
  }
  drawing.append(text("tokens/s", 0, 9, "start"), text(`${number.format(end)} tokens`, WIDTH - 1, HEIGHT - 4, "end"));
  for (const from of new Set(lines.map((line) => line.from))) {
    if (from) drawing.append(draw("path", { class: "grid answer", d: `M${x(from)} ${TOP}V${y(0)}` }));
  }
  for (const { drafted, points } of all.sort((a, b) => a.drafted - b.drafted)) {
    const steps = points.map(([left, right, speed], i) => `${i ? "L" : "M"}${x(left)} ${y(speed)}L${x(right)} ${y(speed)}`);
    if (!steps.length) continue;
    const line = steps.join("");
    if (drafted) drawing.append(draw("path", { class: "under", d: `${line}V${y(0)}H${x(points[0][0])}Z` }));
    drawing.append(draw("path", { class: drafted ? "line with" : "line without", d: line }));
  }
  return drawing;
}

function legend(drafted, plain) {
  const row = (kind, words, speed) =>
    make(`li.${kind}`, {}, make("span", {}, words), make("b", {}, `${number.format(Math.round(speed))} tokens/s`));
  const rows = [drafted && row("with", "with drafts", drafted), plain && row("without", "without drafts", plain)];
  return make("ul.legend", {}, ...rows.filter(Boolean));
}

/** Return a number at or above one, with a single digit that halves well. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].find((digit) => digit * power >= value) * power;
}

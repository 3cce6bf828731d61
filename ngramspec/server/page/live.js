// The panel of live figures, read once a second.

import { headers, refusal } from "./stream.js";

const PERIOD = 1000; // ms between readings
const AGAIN = 10000; // ms after a refusal
const LENGTH = 60; // readings in the trace
const $ = (id) => document.getElementById(id);
const count = new Intl.NumberFormat("en");
const percent = (share) => `${Math.round(share * 100)} %`;

/** Show figures as long as the page is open; return a function that reads again at once. */
export function watch(getKey) {
  let last = null; // the previous reading
  let trace = [];
  let timer = 0;

  async function read() {
    clearTimeout(timer);
    let wait = PERIOD;
    if (!document.hidden) {
      try {
        const response = await fetch("v1/ngramspec/live", { headers: headers(getKey()) });
        if (!response.ok) throw await refusal(response);
        const now = await response.json();
        trace = [...trace, show(now, last)].slice(-LENGTH);
        draw(trace);
        last = now;
      } catch (error) {
        explain(error);
        last = null;
        wait = AGAIN;
      }
    }
    clearTimeout(timer);
    timer = setTimeout(read, wait);
  }

  document.addEventListener("visibilitychange", () => document.hidden || read());
  read();
  return read;
}

/** Show one reading and return the tokens per second since the last one. */
function show(now, last) {
  const since = (name) => now[name] - (last?.[name] ?? 0); // the first time: since the server's start
  const speed = last ? since("emitted_tokens") / since("time") : 0;
  const steps = since("steps");
  const drafted = since("draft_tokens");
  $("speed").textContent = count.format(Math.round(speed));
  if (steps > 0) $("per-step").textContent = (since("emitted_tokens") / steps).toFixed(1);
  if (drafted > 0) $("acceptance").textContent = percent(since("accepted_tokens") / drafted);
  $("live-brief").textContent = `${count.format(Math.round(speed))} tokens/s · ${$("acceptance").textContent} accepted`;
  $("queue").textContent = now.queue ? `${now.queue} waiting` : "";
  list($("sources"), now.sources.map(ofSource), "Nothing drafted yet.");
  list($("slots"), now.slots.map((slot) => ofSlot(slot, now.context)), "");
  list($("pools"), now.pools.map(ofPool), "No drafter with a pool.");
  $("live-note").hidden = true;
  $("live-body").hidden = false;
  return speed;
}

function ofSource({ name, draft_tokens: drafted, accepted_tokens: accepted }) {
  const share = drafted ? accepted / drafted : 0;
  const words = drafted ? `${percent(share)} of ${count.format(drafted)} tokens` : "no draft yet";
  return { name, words, share };
}

function ofSlot({ id, state, tokens }, context) {
  const words = `${count.format(tokens)} of ${count.format(context)} tokens`;
  return { name: `${id} · ${state}`, words, share: tokens / context, idle: state === "idle" };
}

function ofPool({ name, unit, used, capacity }) {
  return { name, words: `${count.format(used)} of ${count.format(capacity)} ${unit}`, share: used / capacity };
}

/** Make the list hold one bar per row; reuse existing bars, so that widths change smoothly. */
function list(element, rows, empty) {
  while (element.children.length > Math.max(rows.length, 1)) element.lastChild.remove();
  if (!rows.length) {
    element.replaceChildren(Object.assign(document.createElement("li"), { className: "note", textContent: empty }));
    return;
  }
  rows.forEach((row, index) => {
    let item = element.children[index];
    if (!item?.querySelector(".fill")) {
      item?.remove();
      item = bar();
      element.insertBefore(item, element.children[index] ?? null);
    }
    item.classList.toggle("idle", Boolean(row.idle));
    const [name, words] = item.querySelectorAll(".words span");
    name.textContent = row.name;
    words.textContent = row.words;
    item.querySelector(".fill").style.width = `${Math.min(row.share, 1) * 100}%`;
  });
}

function bar() {
  const item = document.createElement("li");
  const words = document.createElement("div");
  const track = document.createElement("div");
  const fill = document.createElement("div");
  words.className = "words";
  words.append(document.createElement("span"), document.createElement("span"));
  track.className = "track";
  fill.className = "fill";
  track.append(fill);
  item.append(words, track);
  return item;
}

function draw(trace) {
  const most = Math.max(...trace, 1);
  const points = trace.map((speed, i) => `${LENGTH - trace.length + i},${19 - (speed / most) * 18}`);
  $("trace-words").textContent = `last minute, peak ${count.format(Math.round(Math.max(...trace)))} tokens/s`;
  $("trace").querySelector("polyline").setAttribute("points", points.join(" "));
}

function explain(error) {
  const words = {
    401: "Live figures need an API key: enter it in the settings.",
    501: "Live figures are off on this server. Start it with --slots to enable them.",
  };
  const note = words[error.status] ?? "No live figures: the server does not answer.";
  $("live-note").textContent = note;
  $("live-note").hidden = false;
  $("live-body").hidden = true;
  $("live-brief").textContent = "off";
}

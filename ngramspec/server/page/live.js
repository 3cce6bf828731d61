// The server's live figures, read once a second. Where the server tells none there is no panel.

import { whenKnown } from "./connection.js";
import { $, make, number as count, percent } from "./dom.js";
import { read as ask } from "./server.js";

const PERIOD = 1000; // ms between readings
const AGAIN = 10000; // ms after a failure
const LENGTH = 60; // readings in the trace

/** Show figures as long as the page is open. */
export function startLive() {
  let last = null; // the previous reading
  let trace = [];
  let timer = 0;
  let hasFigures = false; // the server has figures

  async function read() {
    clearTimeout(timer);
    let wait = PERIOD;
    if (hasFigures && !document.hidden && $("panel").checkVisibility()) {
      try {
        const now = await ask("v1/ngramspec/live");
        if (last && now.emitted_tokens < last.emitted_tokens) last = null; // another server
        if (last || !trace.length) {
          trace = [...trace, show(now, last)].slice(-LENGTH);
          draw(trace);
        }
        last = now;
        $("live").hidden = false;
      } catch {
        last = null;
        wait = AGAIN;
        $("live").hidden = true;
      }
    } else last = null; // the next reading would tell of all the time between
    clearTimeout(timer);
    timer = setTimeout(read, wait);
  }

  document.addEventListener("visibilitychange", () => document.hidden || read());
  whenKnown(({ endpoint_live: live }) => {
    hasFigures = live === true;
    if (!hasFigures) $("live").hidden = true;
    read();
  });
}

/** Show one reading and return the tokens per second since the last one. */
function show(now, last) {
  const since = (name) => now[name] - (last?.[name] ?? 0); // the first time: since the server's start
  const speed = last ? since("emitted_tokens") / since("time") : 0;
  const steps = since("steps");
  const drafted = since("draft_tokens");
  $("live-speed").textContent = count.format(Math.round(speed));
  if (steps > 0) $("per-step").textContent = (since("emitted_tokens") / steps).toFixed(1);
  if (drafted > 0) $("acceptance").textContent = percent(since("accepted_tokens") / drafted);
  $("queue").textContent = now.queue ? `${now.queue} waiting` : "";
  list($("sources"), now.sources.map(ofSource), "Nothing drafted yet.");
  list($("slots"), now.slots.map((slot) => ofSlot(slot, now.context)), "");
  list($("pools"), now.pools.map(ofPool), "No drafter with a pool.");
  return speed;
}

function ofSource({ name, draft_tokens: drafted, accepted_tokens: accepted, saved_seconds: saved }) {
  const share = drafted ? accepted / drafted : 0;
  let words = drafted ? `${percent(share)} of ${count.format(drafted)} tokens` : "no draft yet";
  if (drafted && saved != null) {
    const seconds = Math.round(10 * saved) / 10;
    words += `, ${count.format(Math.abs(seconds))} s ${seconds < 0 ? "lost" : "saved"}`;
  }
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
    element.replaceChildren(make("li.note", {}, empty));
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
  const words = make("div.words", {}, make("span"), make("span"));
  return make("li", {}, words, make("div.track", {}, make("div.fill")));
}

function draw(trace) {
  const most = Math.max(...trace, 1);
  const points = trace.map((speed, i) => `${LENGTH - trace.length + i},${19 - (speed / most) * 18}`);
  $("trace-words").textContent = `last minute, peak ${count.format(Math.round(Math.max(...trace)))} tokens/s`;
  $("trace").querySelector("polyline").setAttribute("points", points.join(" "));
}

// What the user has set. It stays in this browser; the API key stays in the tab.

import { connect, whenKnown } from "./connection.js";
import { $ } from "./dom.js";
import { key } from "./server.js";

const NAME = "ngramspec.settings";
const NUMBERS = ["temperature", "top_k", "top_p", "min_p", "repeat_penalty", "max_tokens", "seed"];
const FIELDS = [...NUMBERS, "system", "extra", "compare"]; // of the dialog
const DEFAULTS = { system: "", extra: "", compare: false, marks: true, drafts: "", chats: true, panel: true };
// Fields of requests that are the page's own.
const OWN = ["messages", "prompt", "stream", "n", "speculative", "timings_per_token"];

export const settings = { ...DEFAULTS, ...stored() };

/** Change some settings and keep them, beside what other tabs have changed. */
export function change(values) {
  Object.assign(settings, values);
  try {
    localStorage.setItem(NAME, JSON.stringify({ ...stored(), ...values }));
  } catch {
    // no room, or not allowed: they hold until the page is closed
  }
}

/** Return the fields of a request that say how tokens are chosen. */
export function sampling() {
  const fields = { ...parsed(settings.extra) };
  for (const name of OWN) delete fields[name];
  for (const name of NUMBERS) if (settings[name]) fields[name] = Number(settings[name]);
  // An answer that is made again for comparison needs the same seed.
  fields.seed ??= crypto.getRandomValues(new Uint32Array(1))[0] >>> 1;
  return fields;
}

/** Open the dialog, at a field. */
export function openSettings(field) {
  $("key").value = key.get();
  $("settings").showModal();
  if (field) $(field).focus();
}

/** Fill the dialog and keep what is changed in it. */
export function startSettings() {
  fill();
  addEventListener("storage", takeOver);
  $("open-settings").addEventListener("click", () => openSettings());
  $("settings").addEventListener("input", keep);
  $("settings").addEventListener("close", () => {
    if ($("key").value.trim() === key.get()) return;
    key.set($("key").value.trim());
    connect();
  });
  whenKnown(showDefaults);
}

function fill() {
  for (const id of FIELDS) {
    if (id === "compare") $(id).checked = settings.compare;
    else $(id).value = settings[id] ?? "";
  }
  check();
}

/** Take over what another tab has changed in its dialog; marks and sides stay as they are here. */
function takeOver() {
  const now = { ...DEFAULTS, ...stored() };
  for (const id of FIELDS) settings[id] = now[id];
  fill();
}

function keep({ target: { id, value, checked } }) {
  if (FIELDS.includes(id)) change({ [id]: id === "compare" ? checked : value }); // not the key
  check();
}

/** Tell what of the further fields is not sent. */
function check() {
  const { extra } = settings;
  const wrong = parsed(extra) === null;
  const own = wrong ? [] : Object.keys(parsed(extra)).filter((name) => OWN.includes(name));
  const words = wrong
    ? 'This is not a JSON object such as {"stop": ["END"]}, so it is not sent.'
    : `The page sets ${own.join(", ")} itself, so it is not sent.`;
  $("extra-error").hidden = !wrong && !own.length;
  $("extra-error").textContent = wrong || own.length ? words : "";
}

/** Return the object that a text describes; null: it is none. */
function parsed(text) {
  if (!text.trim()) return {};
  try {
    const value = JSON.parse(text);
    return value && typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

function showDefaults({ default_generation_settings: { params }, build_info: build }) {
  for (const id of NUMBERS) {
    if (id === "seed" || params[id] === undefined) continue;
    const value = id === "max_tokens" && params[id] < 0 ? "no limit" : Number(params[id].toPrecision(6));
    $(id).placeholder = value;
  }
  $("build").textContent = `${build}.`;
}

function stored() {
  try {
    return JSON.parse(localStorage.getItem(NAME)) ?? {};
  } catch {
    return {};
  }
}

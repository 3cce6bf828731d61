// The choice of drafters, out of those that the server offers.

import { whenKnown } from "./connection.js";
import { $, make } from "./dom.js";
import { change, settings } from "./settings.js";

const OFF = "off";
let offered = []; // names that a request can give

/** Return the member `speculative` of a request. */
export function speculative() {
  const names = chosen();
  if (settings.drafts === OFF) return { spans: true, enabled: false };
  return names.length ? { spans: true, types: names } : { spans: true };
}

/** Set up the menu. */
export function startDrafts() {
  whenKnown(({ speculative: offer }) => fill(offer));
  $("drafts-choice").addEventListener("change", choose);
  document.addEventListener("click", ({ target }) => {
    if (!$("drafts").contains(target)) $("drafts").open = false;
  });
  $("drafts").addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !$("drafts").open) return;
    event.stopPropagation();
    $("drafts").open = false;
    $("drafts").querySelector("summary").focus();
  });
}

function chosen() {
  return settings.drafts.split(",").filter((name) => offered.includes(name));
}

function fill(offer) {
  offered = offer?.types ?? [];
  const names = (offer?.drafters ?? []).map((drafter) => drafter.name);
  if (offer?.draft_model) names.push(offer.draft_model.name);
  const own = offer?.active ? names.join(", ") : "none";
  const box = (type, value, label, note = "") => {
    const input = make("input", { type, name: type === "radio" ? "drafts" : value, value });
    return make("label.check", {}, input, make("span", {}, label, note && make("small", {}, note)));
  };
  const rows = [make("legend", {}, "Who drafts"), box("radio", "", "The server's choice", own), box("radio", OFF, "Off")];
  if (offered.length) rows.push(make("p.note", {}, "Or these:"));
  rows.push(...offered.map((name) => box("checkbox", name, name)));
  rows.push(...(offer?.notes ?? []).map((words) => make("p.note", {}, `Note: ${words}.`)));
  $("drafts-choice").replaceChildren(...rows);
  show(own);
}

function choose({ target }) {
  const boxes = [...$("drafts-choice").querySelectorAll("input[type=checkbox]")];
  if (target.type === "radio") for (const box of boxes) box.checked = false;
  const names = boxes.filter((box) => box.checked).map((box) => box.value);
  change({ drafts: names.length ? names.join(",") : target.type === "radio" ? target.value : "" });
  show();
}

let servers = "";

function show(own = servers) {
  servers = own;
  const names = chosen();
  const value = settings.drafts === OFF ? OFF : "";
  for (const box of $("drafts-choice").querySelectorAll("input")) {
    box.checked = box.type === "radio" ? !names.length && box.value === value : names.includes(box.value);
  }
  const words = names.length ? names.join(", ") : value || servers;
  $("drafts-name").textContent = `Drafts: ${words}`;
}

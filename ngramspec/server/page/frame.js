// What is beside the chat: the list of chats on the left, the figures on the right.

import { $ } from "./dom.js";
import { change, settings } from "./settings.js";

const WIDE = matchMedia("(min-width: 900px)");
const SIDES = { chats: "toggle-chats", panel: "toggle-panel" };

/** Set up the two sides. Where there is room they stand beside the chat, else above it. */
export function startFrame() {
  for (const [side, button] of Object.entries(SIDES)) $(button).addEventListener("click", () => toggle(side));
  $("scrim").addEventListener("click", close);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && close()) event.stopImmediatePropagation(); // that was all it was for
  });
  WIDE.addEventListener("change", close);
  apply();
}

function toggle(side) {
  if (WIDE.matches) change({ [side]: !settings[side] });
  else {
    const open = !document.body.classList.contains(`${side}-over`);
    close();
    document.body.classList.toggle(`${side}-over`, open);
  }
  apply();
}

/** Close what stands above the chat; return whether something did. */
export function close() {
  const over = !$("scrim").hidden;
  for (const side of Object.keys(SIDES)) document.body.classList.remove(`${side}-over`);
  apply();
  return over;
}

function apply() {
  let over = false;
  for (const [side, button] of Object.entries(SIDES)) {
    const above = document.body.classList.contains(`${side}-over`);
    document.body.classList.toggle(`no-${side}`, !settings[side]);
    $(button).setAttribute("aria-expanded", String(WIDE.matches ? settings[side] : above));
    over ||= above;
  }
  $("scrim").hidden = !over;
  for (const covered of ["scroll", "composer"]) $(covered).inert = over;
}

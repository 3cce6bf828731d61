// Elements. Text of people and models only ever goes into text nodes.

const SVG = "http://www.w3.org/2000/svg";
// Strokes in a square of 24 by 24.
const ICONS = {
  attach: "M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3.4 3.4 0 0 1 4.8 4.8l-8.6 8.6a1.7 1.7 0 0 1-2.4-2.4L14.5 7.5",
  chats: "M4 6h16M4 12h16M4 18h10",
  check: "M5 12.5l4.5 4.5L19 7.5",
  close: "M6 6l12 12M18 6L6 18",
  compare: "M7 4v16M7 20l-3-3M7 20l3-3M17 20V4M17 4l-3 3M17 4l3 3",
  continue: "M5 5l8 7-8 7zM18 5v14",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  down: "M12 5v14M6 13l6 6 6-6",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  export: "M12 4v11M7 10l5 5 5-5M5 20h14",
  remove: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  retry: "M19 12a7 7 0 1 1-2-4.9L20 10M20 4v6h-6",
  send: "M12 19V5M6 11l6-6 6 6",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 5v4M9 15v4",
  speed: "M4 18a9 9 0 1 1 16 0M12 14l4-5",
  stop: "M7 7h10v10H7z",
};

/** Return the element with the id. */
export const $ = (id) => document.getElementById(id);

/**
 * Make an element such as `make("button.quiet", {type: "button", onclick: f}, "Copy")`.
 * Functions become listeners, other options attributes; children are elements or texts.
 */
export function make(kind, options = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.classList.add(...classes);
  for (const [name, value] of Object.entries(options)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Make an element of a drawing. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Make an icon; the button around it has the label. */
export function icon(name) {
  const path = draw("path", { d: ICONS[name] });
  return draw("svg", { viewBox: "0 0 24 24", class: "glyph", "aria-hidden": "true" }, path);
}

/** Make a button with an icon, whose label is shown when the pointer rests on it. */
export function iconButton(name, label, onclick) {
  return make("button.icon", { type: "button", "aria-label": label, title: label, onclick }, icon(name));
}

/** Put icons into the buttons of the page that name one. */
export function dressButtons() {
  for (const button of document.querySelectorAll("button[data-icon]")) {
    button.append(icon(button.dataset.icon));
    button.title ||= button.ariaLabel;
  }
}

/** Copy a text and tell on the button whether that worked. */
export async function copy(text, button) {
  if (button.ariaDisabled) return; // it still tells of the last time
  let done = true;
  try {
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else done = copyBySelection(text); // pages of plain http have no clipboard
  } catch {
    done = false;
  }
  const before = [...button.childNodes];
  const words = done ? "Copied" : "Copying failed";
  if (button.classList.contains("icon")) button.replaceChildren(icon(done ? "check" : "close"));
  else button.replaceChildren(words);
  $("status").textContent = `${words}.`;
  button.ariaDisabled = "true"; // not disabled, which would take the focus away
  setTimeout(() => {
    button.replaceChildren(...before);
    button.ariaDisabled = null;
  }, 1200);
}

function copyBySelection(text) {
  const area = make("textarea.hidden", { "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

/** Show texts, or none, at the end of the chat, which may be out of view. */
export function notify(texts) {
  $("notice").replaceChildren(...texts.map((words) => make("span", {}, words)));
  $("notice").hidden = !texts.length;
  $("notice").scrollIntoView({ block: "nearest" });
}

/** Hand a file to the user. */
export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = make("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** Ask a question in a dialog; resolves to whether the answer was yes. */
export function confirm(title, words, yes) {
  const dialog = $("confirm");
  $("confirm-title").textContent = title;
  $("confirm-words").textContent = words;
  $("confirm-yes").textContent = yes;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

export const number = new Intl.NumberFormat("en");
export const percent = (share) => `${Math.round(share * 100)} %`;

// Finds out what the server is, and tells while it cannot be asked.

import { $ } from "./dom.js";
import { Refused, key, read } from "./server.js";

const AGAIN = 2000; // ms between tries
const listeners = [];
let timer = 0;
let props = null;

/** Return what the server is, in the words of /props; null: not known yet. */
export const server = () => props;

/** Call a function with /props, now and whenever they are read again. */
export function whenKnown(listener) {
  listeners.push(listener);
  if (props) listener(props);
}

/** Return whether the model has a chat template. Without one it continues texts. */
export const chats = () => props?.chat_template !== "";

/** Ask the server what it is, again and again until it answers. */
export async function connect() {
  clearTimeout(timer);
  try {
    props = await read("props");
    tell("");
    for (const listener of listeners) listener(props);
  } catch (error) {
    const status = error instanceof Refused ? error.status : 0;
    if (status === 401) {
      tell("The server requires an API key.");
      askKey(Boolean(key.get()));
      return;
    }
    tell(status === 503 ? `The server is not ready: ${error.message}` : `${error.message} Trying again …`);
    timer = setTimeout(connect, AGAIN);
  }
}

/** Ask the user for the key. */
export function askKey(wrong = false) {
  const dialog = $("ask-key");
  if (dialog.open || document.querySelector("dialog[open]")) return;
  $("ask-key-error").hidden = !wrong;
  $("ask-key-error").textContent = wrong ? "The server does not know this API key." : "";
  $("asked-key").value = key.get();
  dialog.returnValue = "";
  dialog.showModal();
}

/** Set up the dialog that asks for the key. */
export function startAsking() {
  const dialog = $("ask-key");
  // Enter in the field presses the first button, which would be "Later".
  $("asked-key").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    dialog.close("use");
  });
  dialog.addEventListener("close", () => {
    if (dialog.returnValue !== "use") return;
    key.set($("asked-key").value.trim());
    connect();
  });
}

function tell(words) {
  $("banner").textContent = words;
  $("banner").hidden = !words;
}

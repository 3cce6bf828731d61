// Starts the page.

import { startChats, begin } from "./chat-list.js";
import { connect, startAsking } from "./connection.js";
import { startComposer } from "./composer.js";
import { isRunning, startConversation, stop } from "./conversation.js";
import { $, dressButtons, make } from "./dom.js";
import { startDrafts } from "./drafts.js";
import { EXAMPLES } from "./examples.js";
import { startFrame } from "./frame.js";
import { startLive } from "./live.js";
import { startSettings } from "./settings.js";
import { whenKnown } from "./connection.js";

dressButtons();
startFrame();
startAsking();
startSettings();
startDrafts();
startConversation();
startComposer();
startLive();
showExamples();
document.addEventListener("keydown", keys);
document.querySelector(".skip").addEventListener("click", skip);
whenKnown(({ model_alias: name }) => ($("model").textContent = name));
await startChats();
$("prompt").focus();
connect();

/** Go to the message field without the link's address, which would name another chat. */
function skip(event) {
  event.preventDefault();
  $("prompt").focus();
}

function keys(event) {
  const free = !document.querySelector("dialog[open]");
  if (event.key === "Escape" && free && !event.isComposing && isRunning()) stop();
  if (event.key.toLowerCase() === "o" && event.shiftKey && (event.ctrlKey || event.metaKey) && free) {
    event.preventDefault();
    begin();
  }
}

function showExamples() {
  for (const { title, words, text } of EXAMPLES) {
    const fill = () => {
      $("prompt").focus();
      $("prompt").select();
      document.execCommand("insertText", false, text); // so that Ctrl+Z brings back what it replaces
    };
    const button = make("button.example", { type: "button", onclick: fill }, make("b", {}, title), make("span", {}, words));
    $("examples").append(make("li", {}, button));
  }
}

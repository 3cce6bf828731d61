// The field for a message, and what stands around it.

import { attach, attached, take } from "./attachments.js";
import { chats, server, whenKnown } from "./connection.js";
import { chatIsOpen, isRunning, openChat, send, stop, whenChatChanges } from "./conversation.js";
import { $, make, notify, number, percent } from "./dom.js";
import { change, settings } from "./settings.js";

/** Set up the field. */
export function startComposer() {
  const prompt = $("prompt");
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  $("stop").addEventListener("click", () => (stop(), prompt.focus()));
  $("attach").addEventListener("click", () => $("attach-files").click());
  $("attach-files").addEventListener("change", ({ target }) => (read([...target.files]), (target.value = "")));
  prompt.addEventListener("paste", (event) => {
    const { files: [...files], types } = event.clipboardData;
    const drawn = types.includes("text/plain") && files.every(({ type }) => type.startsWith("image/"));
    if (!files.length || drawn) return; // cells of a table come as a text and its picture
    event.preventDefault();
    read(files);
  });
  startDrop();
  startMarks();
  document.addEventListener("takeback", (event) => {
    if (prompt.value || attached().length) return; // the next message has been begun
    event.preventDefault();
    prompt.value = event.detail.content;
    attach(event.detail.attachments ?? []);
  });
  whenKnown(() => {
    prompt.placeholder = chats() ? "Message" : "Text to continue: this model has no chat template";
    showContext();
  });
  whenChatChanges(showContext);
}

async function submit() {
  if (!openChat()) await chatIsOpen; // else the address is named in the same task, before a page can be left
  const text = $("prompt").value;
  if (isRunning() || !(text.trim() || attached().length)) return;
  const files = attached();
  $("prompt").value = "";
  attach([]);
  send(text, files);
}

async function read(files) {
  const wrong = await take(files);
  notify(wrong);
  $("prompt").focus();
}

function startDrop() {
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  addEventListener("dragleave", (event) => event.relatedTarget || document.body.classList.remove("dropping"));
  addEventListener("drop", (event) => {
    document.body.classList.remove("dropping");
    if (!hasFiles(event)) return;
    event.preventDefault();
    read([...event.dataTransfer.files]);
  });
}

function startMarks() {
  const apply = () => {
    document.body.classList.toggle("marks", settings.marks);
    $("marks").setAttribute("aria-pressed", String(settings.marks));
  };
  $("marks").title = "Mark the words that accepted drafts made";
  $("marks").addEventListener("click", () => {
    change({ marks: !settings.marks });
    apply();
  });
  apply();
}

/** Tell how much of the context the chat takes. */
export function showContext() {
  const size = server()?.default_generation_settings.n_ctx;
  const facts = openChat()?.messages.findLast((message) => message.facts)?.facts;
  const used = facts ? facts.prompt + facts.tokens : 0;
  const parts = size && used ? [percent(used / size), make("span.wide-only", {}, " of the context")] : [];
  $("context").replaceChildren(...parts);
  $("context").title = parts.length ? `The chat takes ${number.format(used)} of ${number.format(size)} tokens.` : "";
  $("context").classList.toggle("nearly", used > 0.9 * size);
}

// The open chat: its messages, and what the user does with them.

import { Answer } from "./answer.js";
import { titleOf } from "./chats.js";
import { connect } from "./connection.js";
import { $, confirm, make } from "./dom.js";
import { MessageView, comparable } from "./message.js";
import { choices, isWhole, request } from "./request.js";
import { Refused, Unreachable, stream } from "./server.js";
import { openSettings, settings } from "./settings.js";
import { drawSpeed } from "./speed.js";
import * as store from "./store.js";

const NEAR = "1500px"; // of the view: messages there are rendered
const STAYED = 3000; // ms after which a page that was to go stays
const SAVE = 10_000; // ms between savings of an answer that comes in
const DRAW = 500; // ms between drawings of its speed
const END = 80; // pixels from the end that count as being there

const running = new Map(); // id of a chat -> AbortController of its answer
const views = new Map(); // message -> view, of the open chat
const cutViews = new WeakMap(); // message that may come back -> view, which may hold a text that is being typed
const gone = new Set(); // ids of deleted chats
const listeners = []; // called with a chat that has changed
let chat = null; // null: the page still reads it
let shown; // called once there is one
let follows = true; // the end is in view, so new text scrolls
let leaving = false; // the page is about to go, which breaks its answers off

const near = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      target.view.show();
      near.unobserve(target);
    }
  },
  { root: $("scroll"), rootMargin: NEAR },
);

/** Call a function with every chat that has changed. */
export const whenChatChanges = (listener) => listeners.push(listener);

/** Return the open chat; null: the page still reads it. */
export const openChat = () => chat;

/** Resolves once there is an open chat. */
export const chatIsOpen = new Promise((resolve) => (shown = resolve));

/** Return whether an answer comes in, in the open chat or the one with the id. */
export const isRunning = (id = chat?.id) => running.has(id);

/** Show a chat. */
export function show(opened) {
  chat = opened;
  if (!isRunning()) chat.messages.forEach(settle);
  views.clear();
  near.disconnect();
  complain(null);
  $("messages").replaceChildren();
  for (const message of chat.messages) add(message);
  for (const message of chat.messages.slice(-4)) views.get(message).show();
  follows = true;
  refresh();
  toEnd();
  shown();
}

/** Settle what a page that was left has begun. */
function settle(message) {
  if (message.other?.running) delete message.other;
  if (message.ended === "") message.ended = "lost";
}

/** Send a message. */
export function send(content, attachments) {
  const message = { role: "user", content };
  if (attachments.length) message.attachments = attachments;
  chat.messages.push(message);
  chat.title ||= titleOf(chat);
  add(message).show();
  follows = true;
  const answered = answer();
  keep(chat); // from now on a page that is left or reloaded has the question
  return answered;
}

/** Stop the open chat's answer. */
export function stop() {
  running.get(chat.id)?.abort();
}

/** Stop a chat's answer, as the chat is deleted. */
export function abandon(id) {
  gone.add(id);
  running.get(id)?.abort();
  running.delete(id);
}

/** Keep a chat again, as another tab has it. */
export function revive(id) {
  gone.delete(id);
}

/** Draw what depends on the chat: buttons, figures, the welcome. */
export function refresh() {
  const busy = isRunning();
  $("welcome").hidden = chat.messages.length > 0;
  $("send").hidden = busy;
  $("stop").hidden = !busy;
  $("messages").setAttribute("aria-busy", String(busy));
  document.body.classList.toggle("busy", busy);
  drawSpeed(chat.messages, compareLast);
}

/** Scroll to the end if that is where the user is. */
export function toEnd() {
  if (follows) $("scroll").scrollTop = $("scroll").scrollHeight;
  $("to-end").hidden = follows;
}

/** Keep account of whether the end is in view; save answers that come in when the page is left. */
export function startConversation() {
  document.addEventListener("visibilitychange", () => {
    if (document.hidden && isRunning()) keep(chat);
  });
  addEventListener("beforeunload", () => {
    leaving = true;
    if (isRunning()) keep(chat);
    setTimeout(() => (leaving = false), STAYED);
  });
  const box = $("scroll");
  box.addEventListener("scroll", () => {
    follows = box.scrollHeight - box.scrollTop - box.clientHeight < END;
    $("to-end").hidden = follows;
  });
  $("to-end").addEventListener("click", () => {
    follows = true;
    toEnd();
  });
  new ResizeObserver(() => follows && toEnd()).observe($("messages"));
}

// -- messages ------------------------------------------------------------------------------------

const actions = { edit, again, compare, proceed, result: giveResult };

function add(message, view = new MessageView(message, actions)) {
  view.element.view = view;
  views.set(message, view);
  $("messages").append(view.element);
  near.observe(view.element);
  return view;
}

/** Take away all messages from one on; return them. */
function cut(index) {
  const gone = chat.messages.splice(index);
  for (const message of gone) {
    const view = views.get(message);
    if (!view) continue;
    view.element.remove();
    views.delete(message);
    cutViews.set(message, view);
  }
  return gone;
}

function putBack(messages) {
  for (const message of messages) {
    chat.messages.push(message);
    add(message, cutViews.get(message)).show();
  }
}

/** Take a message away from a chat, which may be open. */
function takeAway(own, message) {
  const index = own.messages.indexOf(message);
  if (index < 0) return; // it was taken away with others
  own.messages.splice(index, 1);
  if (chat !== own) return;
  views.get(message)?.element.remove();
  views.delete(message);
}

/** Let the user change a message, or go on with a text that it was changed to. */
async function edit(message, begun = message.content) {
  if (isRunning()) return;
  const after = chat.messages.length - chat.messages.indexOf(message) - 1;
  const own = chat;
  const asks = message.role === "user";
  const words = asks && after ? `Sending it replaces the ${countOf(after)} below.` : "";
  const obstacle = () => (isRunning() ? "An answer is coming in. Try again when it is complete." : "");
  const text = await views.get(message).edited(words, begun, obstacle);
  if (text === null || chat !== own || !text.trim()) return;
  if (!asks) return change(message, text);
  const before = cut(chat.messages.indexOf(message));
  putBack([{ ...message, content: text }]);
  if (!(await answer(before)) && chat === own) await edit(message, text);
}

/** Change the text of an answer where it is; what was measured is of the old one. */
function change(message, text) {
  message.content = text;
  for (const name of ["runs", "facts", "samples", "other"]) delete message[name];
  views.get(message).begin(); // forgets the old text
  views.get(message).end();
  refresh();
  keep(chat);
}

const countOf = (messages) => (messages === 1 ? "message" : `${messages} messages`);

async function again(message) {
  if (isRunning()) return;
  const own = chat;
  const after = chat.messages.length - chat.messages.indexOf(message) - 1;
  const words = `The new answer replaces this one and the ${countOf(after)} below.`;
  if (after && !(await confirm("Answer again?", words, "Answer again"))) return;
  if (chat === own && !isRunning()) await answer(cut(chat.messages.indexOf(message)));
}

async function proceed(message) {
  if (isRunning() || message !== chat.messages.at(-1)) return;
  await answer([], message);
}

/** Take a result of a call; once all are there, ask for the answer. A result that is not answered can be given again. */
async function giveResult(message, call, text) {
  if (isRunning()) return;
  const own = chat;
  call.result = true;
  const result = { role: "tool", call: call.id, name: call.name, content: text };
  chat.messages.push(result);
  add(result).show();
  views.get(message).end();
  const all = message.calls.filter(isWhole).every((one) => one.result);
  if (all) {
    if (await answer()) return;
    Object.assign(call, { result: false, begun: text });
    takeAway(own, result);
    if (chat === own) views.get(message).end();
  }
  keep(own);
}

// -- answers -------------------------------------------------------------------------------------

/**
 * Ask for an answer to the open chat and show it as it comes in; return whether there is one.
 * replaced: Messages in whose place it comes; they come back if there is none.
 * begun: The answer to go on with.
 */
async function answer(replaced = [], begun = null) {
  const own = chat; // another one may be opened meanwhile
  const asked = choices(own.messages);
  const message = begun ?? { role: "assistant", content: "" };
  const [path, body] = request(own.messages, asked);
  const drafted = asked.speculative.enabled !== false;
  const reader = new Answer(message, { asked, drafted, other: undefined, continued: Boolean(begun) });
  const { ended } = message;
  message.ended = "";
  if (!begun) {
    own.messages.push(message);
    add(message);
  }
  complain(null);
  views.get(message).begin();
  const control = new AbortController();
  running.set(own.id, control);
  follows = true;
  refresh();
  toEnd();
  $("status").textContent = "Receiving the answer.";
  const failed = await receive(own, reader, path, body, control.signal);
  running.delete(own.id);
  const some = Boolean(message.content || message.reasoning || message.calls);
  const stopped = message.ended === "stopped";
  if (begun && !reader.begun) message.ended = ended; // it is what it was
  const missed = failed ? !leaving : stopped && replaced.length > 0;
  if (!some && missed) takeBack(own, message, replaced);
  if (chat === own) {
    views.get(message)?.end();
    complain(failed);
    refresh();
    toEnd();
    $("status").textContent = failed ? "The answer failed." : stopped ? "Answer stopped." : "Answer complete.";
    if (document.activeElement === document.body) $("prompt").focus();
  }
  await keep(own);
  if (settings.compare && !failed && !stopped && !message.calls) await compare(message, own);
  return some || !missed;
}

/** Receive an answer and show it; return the error that ended it, if there was one. */
async function receive(own, reader, path, body, signal, view = () => views.get(reader.message)) {
  const { message } = reader;
  let [saved, drawn] = [performance.now(), performance.now()];
  let error = null;
  try {
    for await (const event of stream(path, body, signal)) {
      reader.take(event);
      view()?.grow(toEnd);
      const now = performance.now();
      if (now - drawn > DRAW && chat === own) {
        drawn = now;
        reader.finish();
        drawSpeed(own.messages, compareLast);
      }
      if (now - saved > SAVE) {
        saved = now;
        keep(own);
      }
    }
  } catch (caught) {
    message.ended = caught.name === "AbortError" ? "stopped" : "lost";
    if (message.ended === "lost") error = caught;
  }
  reader.finish();
  return error;
}

/**
 * Take an answer away that never began; what it was to replace, or the question, comes back. A
 * question stays where it is if the next one has been begun.
 */
function takeBack(own, message, replaced) {
  takeAway(own, message);
  const question = own.messages.at(-1);
  if (chat === own) {
    if (replaced.length && replaced[0].role === "assistant") putBack(replaced);
    else if (replaced.length) {
      cut(own.messages.length - 1);
      putBack(replaced);
    } else if (question?.role === "user") {
      const event = new CustomEvent("takeback", { detail: question, cancelable: true });
      if (!document.dispatchEvent(event)) cut(own.messages.length - 1); // somebody has taken it
    }
  } else if (replaced.length) {
    if (replaced[0].role === "user") own.messages.pop();
    own.messages.push(...replaced);
  }
  if (!own.messages.length) own.title = "";
}

/** Answer a question again, with drafts if the answer had none and the other way round, and compare. */
async function compare(message, own = chat) {
  if (isRunning(own.id)) return;
  const before = own.messages.slice(0, own.messages.indexOf(message));
  const { types } = message.asked?.speculative ?? {};
  const speculative = { spans: true, enabled: !message.drafted, ...(types && { types }) };
  const [path, body] = request(before, { ...(message.asked ?? choices(before)), speculative });
  const other = { role: "assistant", content: "" };
  const control = new AbortController();
  message.other = { running: true };
  running.set(own.id, control);
  redraw(own, message);
  const shown = views.get(message)?.again(other); // it costs the browser as much as the first one did
  shown?.begin();
  const error = await receive(own, new Answer(other), path, body, control.signal, () => shown);
  shown?.end();
  shown?.element.remove();
  running.delete(own.id);
  const complete = !error && other.ended !== "stopped" && other.facts;
  if (complete) {
    const same = other.content === message.content && other.reasoning === message.reasoning;
    message.other = { facts: other.facts, samples: other.samples, same };
  } else if (error) message.other = { error: error.message };
  else delete message.other;
  redraw(own, message);
  await keep(own);
}

function compareLast() {
  const last = chat.messages.findLast(comparable);
  if (last) compare(last);
}

function redraw(own, message) {
  if (chat !== own) return;
  views.get(message)?.foot();
  refresh();
  toEnd();
}

/** Show an error at the end of the chat. */
export function complain(error) {
  const rows = [];
  const button = (words, onclick) => make("button.quiet", { type: "button", onclick }, words);
  if (error instanceof Refused && error.status === 401) {
    rows.push(make("span", {}, "The server requires a valid API key."), button("Enter a key", () => (complain(null), openSettings("key"))));
  } else if (error) {
    const expected = [Refused, Unreachable, store.Unsaved].some((kind) => error instanceof kind);
    const full = error.code === "context_length_exceeded" || error.code === "exceed_context_size_error";
    rows.push(make("span", {}, expected ? error.message : `The page failed: ${error.message}`));
    if (full) rows.push(make("span", {}, "Begin a new chat, or edit an earlier message: that drops what follows it."));
    if (error instanceof Unreachable) connect();
  }
  $("notice").replaceChildren(...rows);
  $("notice").hidden = !rows.length;
}

async function keep(own) {
  if (gone.has(own.id)) return;
  own.updated = Date.now();
  tell(own); // the address names it before it is saved: a page that is left at once comes back to it
  try {
    if (own.messages.length) await store.save(own);
    else await store.remove(own.id);
  } catch (error) {
    if (chat === own) complain(error);
    return;
  }
  tell(own);
}

function tell(own) {
  for (const listener of listeners) listener(own);
}

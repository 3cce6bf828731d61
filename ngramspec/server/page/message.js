// A message as it is shown, with what can be done with it.

import { $, copy, icon, iconButton, make, number, percent } from "./dom.js";
import { Flow, showPlain } from "./markdown.js";
import { isWhole, textOf } from "./request.js";

// Browser and model may share a machine, so rendering gets little of it.
const PAUSE = 50; // ms between two renderings of an answer that comes in
const SHARE = 4; // or this many times what one of them takes, if that is more
const WHO = { user: "You", assistant: "Model", tool: "Result of a tool" };
const CUT = {
  length: "Cut off: the limit of tokens is reached, or the context is full.",
  stopped: "Stopped.",
  lost: "Broken off.",
};

/** Return whether an answer can be made again as it was made. */
export function comparable({ facts, calls, continued, ended, asked }) {
  return Boolean(facts && asked) && !calls?.length && !continued && ["stop", "length"].includes(ended);
}

/**
 * A message in the list.
 *
 * actions: Functions that take the message: edit, again, compare, proceed, and result, which takes
 * a call and its result besides.
 */
export class MessageView {
  #actions;
  #text = make("div.text");
  #reasoning = null;
  #calls = make("div.calls");
  #areas = new Map(); // call -> field for its result, which keeps what is typed
  #foot = make("div.foot");
  #flow = null;
  #cancel = null; // takes back the next rendering; null: none is due
  #free = 0; // when rendering may go on
  #shown = false;

  constructor(message, actions) {
    this.message = message;
    this.#actions = actions;
    const who = make("h3.who", {}, WHO[message.role]);
    this.element = make(`li.message.${message.role}`, {}, who, this.#text, this.#calls, this.#foot);
    // Until it comes into view a message is its plain text.
    if (message.content) this.#text.append(make("div.plain", {}, message.content));
  }

  /** Show the message, unless that was done. */
  show() {
    if (this.#shown) return;
    this.#shown = true;
    const { role } = this.message;
    this.#text.replaceChildren();
    if (role === "assistant") this.#render(false);
    else if (role === "tool") this.#text.append(result(this.message));
    else showUser(this.#text, this.message);
    this.foot();
  }

  /** Tell that an answer comes in. */
  begin() {
    this.#shown = true;
    this.#text.replaceChildren();
    this.#flow = null;
    this.element.classList.add("busy");
    this.#foot.replaceChildren();
    this.#render(true);
  }

  /** Show what has come in, at the next frame at which there is time for it. */
  grow(shown) {
    if (this.#cancel) return;
    const paint = () => {
      this.#cancel = null;
      const begin = performance.now();
      this.#render(true);
      shown();
      const end = performance.now();
      this.#free = end + Math.max(PAUSE, SHARE * (end - begin));
    };
    const soon = () => {
      const frame = requestAnimationFrame(paint);
      this.#cancel = () => cancelAnimationFrame(frame);
    };
    const wait = this.#free - performance.now();
    if (wait > 8) {
      const timer = setTimeout(soon, wait);
      this.#cancel = () => clearTimeout(timer);
    } else soon();
  }

  /** Show the whole answer. */
  end() {
    this.#cancel?.();
    this.#cancel = null;
    this.element.classList.remove("busy");
    this.#render(false);
    this.foot();
  }

  /** Show what stands below the text: figures and buttons. */
  foot() {
    const { message } = this;
    const rows = [];
    if (message.facts) rows.push(make("p.facts", {}, facts(message)));
    else if (message.ended) rows.push(make("p.facts", {}, CUT[message.ended] ?? ""));
    if (message.other) rows.push(make("p.facts.other", {}, comparison(message)));
    if (!this.#actions) return;
    const { edit, again, compare, proceed } = this.#actions;
    const button = (name, label, action) => iconButton(name, label, () => action(message));
    const copyButton = iconButton("copy", "Copy", () => copy(textOf(message), copyButton));
    const buttons = [copyButton];
    if (message.role !== "tool") buttons.push(button("edit", "Edit", edit));
    if (message.role === "assistant") {
      buttons.push(button("retry", "Answer again", again));
      if (message.ended in CUT && !message.calls?.length) buttons.push(button("continue", "Continue", proceed));
      const label = message.drafted ? "Compare: answer again without drafts" : "Compare: answer again with drafts";
      if (comparable(message)) buttons.push(button("compare", label, compare));
    }
    rows.push(make("div.actions", { role: "group", "aria-label": "Actions" }, ...buttons));
    this.#foot.replaceChildren(...rows);
  }

  /** Show the same answer made another way, below this one; return its view. */
  again(other) {
    const view = new MessageView(other, null);
    const words = this.message.drafted ? "Again, without drafts" : "Again, with drafts";
    const box = make("div.again", {}, make("h3.who", {}, words), view.#text);
    view.element = box;
    this.element.append(box);
    return view;
  }

  /**
   * Let the user change the text, or one that was changed before; resolves to the new one, or null.
   * obstacle: Returns words that say why no text can be taken now, or none.
   */
  edited(words, text, obstacle) {
    const area = make("textarea", { "aria-label": "Text of the message", rows: 3 });
    area.value = text;
    return new Promise((resolve) => {
      const done = (value) => {
        form.replaceWith(this.#text);
        $("prompt").focus();
        resolve(value);
      };
      const note = make("p.note", {}, words);
      const submit = (event) => {
        event.preventDefault();
        const why = obstacle();
        if (!why) return done(area.value);
        $("status").textContent = why;
        note.textContent = `${why} ${words}`;
      };
      const form = make("form.edit", { onsubmit: submit }, area, note,
        make("div.dialog-row", {},
          make("button.quiet", { type: "button", onclick: () => done(null) }, "Cancel"),
          make("button.main", { type: "submit" }, this.message.role === "user" ? "Send" : "Save")));
      area.addEventListener("keydown", (event) => {
        if (event.key === "Escape" && !event.isComposing) (event.stopPropagation(), done(null));
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
      });
      this.#text.replaceWith(form);
      area.focus();
    });
  }

  #render(growing) {
    const { content, runs, reasoning, reasoningRuns, calls } = this.message;
    if (reasoning) this.#think(reasoning, reasoningRuns, growing && !content && !calls);
    if (content) {
      this.#flow ??= new Flow(this.#text);
      this.#flow.show(content, runs, growing);
    }
    if (calls) this.#calls.replaceChildren(...calls.filter(Boolean).map((one) => this.#call(one, growing)));
  }

  #think(text, runs, growing) {
    if (!this.#reasoning) {
      const body = make("div.text");
      this.#reasoning = { summary: make("summary"), flow: new Flow(body) };
      this.#text.before(make("details.reasoning", {}, this.#reasoning.summary, body));
    }
    const words = `${number.format(text.length)} characters`;
    this.#reasoning.summary.textContent = growing ? `Thinking … ${words}` : `Thoughts, ${words}`;
    this.#reasoning.flow.show(text, runs, growing);
  }

  #call(call, growing) {
    const rows = [make("p.call-name", {}, icon("settings"), "Calls ", make("code", {}, call.name)), values(call.arguments)];
    if (!growing && !call.result && isWhole(call) && this.#actions?.result) {
      const options = { rows: 2, "aria-label": `Result of ${call.name}`, placeholder: "Result" };
      const area = this.#areas.get(call) ?? make("textarea", options, call.begun ?? "");
      this.#areas.set(call, area);
      const send = () => area.value.trim() && this.#actions.result(this.message, call, area.value);
      rows.push(make("div.result-row", {}, area, make("button.quiet", { type: "button", onclick: send }, "Give result")));
    }
    return make("div.call", {}, ...rows);
  }
}

/** Return the arguments of a call: a list of names and values, or the text if it is no object. */
function values(text) {
  let parsed = null;
  try {
    parsed = JSON.parse(text);
  } catch {
    // still coming in, or broken
  }
  if (!parsed || typeof parsed !== "object" || Array.isArray(parsed)) return make("pre.values", {}, text);
  const rows = Object.entries(parsed).map(([name, value]) => {
    const words = typeof value === "string" ? value : JSON.stringify(value, null, 2);
    return make("div", {}, make("dt", {}, name), make("dd", {}, words));
  });
  return make("dl.values", {}, ...rows);
}

function result({ name, content }) {
  const body = values(content);
  return make("div.call", {}, make("p.call-name", {}, "From ", make("code", {}, name ?? "a tool")), body);
}

function showUser(element, { content, attachments = [] }) {
  showPlain(element, content);
  for (const { name, text } of attachments) {
    const size = `${number.format(text.length)} characters`;
    element.append(make("details.file", {}, make("summary", {}, `${name}, ${size}`), make("pre", { tabindex: 0 }, text)));
  }
}

function facts({ facts: { tokens, speed, steps, accepted }, drafted, ended }) {
  const parts = [];
  if (ended in CUT) parts.push(CUT[ended].replace(/\.$/, ""));
  parts.push(`${number.format(tokens)} tokens`);
  if (speed) parts.push(`${number.format(Math.round(speed))}\u00a0tokens/s`);
  if (!drafted) parts.push("no drafts");
  else if (tokens) parts.push(`${percent(accepted / tokens)} from drafts`);
  if (tokens && steps && accepted) parts.push(`${(tokens / steps).toFixed(1)} tokens per pass`);
  return parts.join(" · ");
}

function comparison({ facts: own, other, drafted }) {
  if (other.running) return `Answering again ${drafted ? "without" : "with"} drafts …`;
  if (other.error) return `The comparison failed: ${other.error}`;
  const [quick, slow] = drafted ? [own, other.facts] : [other.facts, own];
  const rate = (one) => `${number.format(Math.round(one.speed))}\u00a0tokens/s`;
  const times = slow.speed && quick.speed ? `${(quick.speed / slow.speed).toFixed(2)} times the speed` : "";
  const same = other.same
    ? "the same text"
    : "another text: with drafts more tokens are computed at a time, which rounds differently";
  return [`${rate(quick)} with drafts, ${rate(slow)} without`, times, same].filter(Boolean).join(" · ");
}

// The chat. Text from the model and the user only ever goes into text nodes.

import { watch } from "./live.js";
import { Refused, chat } from "./stream.js";

const $ = (id) => document.getElementById(id);
const FIELDS = ["temperature", "max-tokens", "seed", "system"];
const CODE = `def load(path, default=None):
    """Return the text of a file, or the default."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return default


def save(path, text):
    """Write the text to a file."""
    with open(path, "w") as file:
        file.write(text)
    return len(text)
`;
const EXAMPLES = {
  "Repeat code": `Repeat this code:\n\n\`\`\`python\n${CODE}\`\`\``,
  "Rename a parameter": `Rename \`path\` to \`name\` in this code:\n\n\`\`\`python\n${CODE}\`\`\``,
  "Show one function": `Show the function \`save\` from this file:\n\n\`\`\`python\n${CODE}\`\`\``,
};

let messages = []; // what the next request sends
let running = null; // AbortController of the current answer

// -- settings ------------------------------------------------------------------------------------

const store = {
  get: (name) => sessionStorage.getItem(`ngramspec.${name}`),
  set: (name, value) => sessionStorage.setItem(`ngramspec.${name}`, value),
};
const getKey = () => store.get("key") ?? "";
const types = () => [...$("types").querySelectorAll("input:checked")].map((box) => box.value);

function restore() {
  for (const id of [...FIELDS, "key"]) $(id).value = store.get(id) ?? $(id).value;
  $("speculation").checked = store.get("speculation") !== "false";
  const chosen = (store.get("types") ?? "").split(",");
  for (const box of $("types").querySelectorAll("input")) box.checked = chosen.includes(box.value);
  $("types").disabled = !$("speculation").checked;
}

function save() {
  for (const id of [...FIELDS, "key"]) store.set(id, $(id).value.trim());
  store.set("speculation", $("speculation").checked);
  store.set("types", types().join(","));
  $("types").disabled = !$("speculation").checked;
  showModel();
}

/** Return the body of a request for the conversation so far. */
function body() {
  const system = $("system").value.trim();
  const speculative = { spans: true, enabled: $("speculation").checked };
  if (types().length) speculative.types = types();
  const made = {
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    stream: true,
    reasoning_format: "none", // spans hold all of the text
    temperature: Number($("temperature").value || 0),
    speculative,
  };
  if ($("max-tokens").value) made.max_tokens = Number($("max-tokens").value);
  if ($("seed").value) made.seed = Number($("seed").value);
  return made;
}

// -- messages ------------------------------------------------------------------------------------

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

/** Add a message to the list and return its parts. */
function add(role, text) {
  const item = element("li", `message ${role}`);
  const content = element("div", "text", text);
  item.append(element("div", "who", role === "user" ? "You" : "Model"), content);
  $("messages").append(item);
  $("welcome").hidden = true;
  return { item, content };
}

/** Add text to an answer; pieces of the same origin share an element. */
function append(content, text, accepted) {
  const kind = accepted ? "accepted" : "sampled";
  const last = content.lastElementChild;
  if (last?.className === kind) last.firstChild.appendData(text);
  else if (text) content.append(element("span", kind, text));
}

/** Return whether the end is in view, so that new text should scroll. */
function following() {
  const box = $("scroll");
  return box.scrollHeight - box.scrollTop - box.clientHeight < 60;
}

function toEnd() {
  $("scroll").scrollTop = $("scroll").scrollHeight;
}

function facts({ timings, steps, accepted }) {
  const tokens = timings?.predicted_n ?? 0;
  const parts = [`${tokens} tokens`];
  if (tokens && accepted) parts.push(`${Math.round((100 * accepted) / tokens)} % from drafts`);
  if (tokens && steps) parts.push(`${(tokens / steps).toFixed(1)} tokens per step`);
  if (timings?.predicted_per_second) parts.push(`${Math.round(timings.predicted_per_second)}\u00a0tokens/s`);
  return parts.join(" · ");
}

function complain(item, error) {
  const box = element("div", "error");
  box.setAttribute("role", "alert");
  if (error.status === 401) {
    box.append(element("span", "", "The server requires a valid API key."));
    const button = element("button", "quiet", "Enter a key");
    button.type = "button";
    button.addEventListener("click", () => openSettings("key"));
    box.append(button);
  } else {
    const known = error instanceof Refused;
    box.append(element("span", "", known ? error.message : "The connection to the server was lost."));
  }
  item.append(box);
}

// -- one answer ----------------------------------------------------------------------------------

async function answer() {
  const conversation = messages; // "New chat" may start another conversation meanwhile
  const { item, content } = add("assistant", "");
  const told = { timings: null, steps: 0, accepted: 0 };
  item.classList.add("busy");
  busy(new AbortController());
  toEnd();
  let ended = "Answer complete.";
  try {
    for await (const event of chat(body(), getKey(), running.signal)) take(event, content, told);
    item.append(element("div", "facts", facts(told)));
  } catch (error) {
    if (error.name === "AbortError") {
      item.append(element("div", "facts", "Stopped."));
      ended = "Answer stopped.";
    } else {
      complain(item, error);
      ended = "The answer failed.";
    }
  }
  item.classList.remove("busy");
  if (content.textContent) conversation.push({ role: "assistant", content: content.textContent });
  else takeBack(conversation);
  busy(null);
  $("status").textContent = ended;
  toEnd();
}

/** Remove a question without an answer from the conversation, and put it back in the prompt. */
function takeBack(conversation) {
  const { content } = conversation.pop();
  if (conversation === messages) $("prompt").value ||= content;
}

/** Show one event. */
function take(event, content, told) {
  const follow = following();
  const { speculative, timings, choices } = event;
  if (speculative) {
    told.steps += 1;
    told.accepted += speculative.accepted;
    for (const [text, accepted] of speculative.spans) append(content, text, accepted);
  } else if (choices?.[0]?.delta.content) {
    append(content, choices[0].delta.content, false);
  }
  if (timings) told.timings = timings;
  if (follow) toEnd();
}

function busy(controller) {
  running = controller;
  $("send").hidden = Boolean(controller);
  $("stop").hidden = !controller;
  $("messages").setAttribute("aria-busy", String(Boolean(controller)));
  if (controller) $("status").textContent = "Receiving the answer.";
  else if (document.activeElement === document.body) $("prompt").focus();
}

function send() {
  const text = $("prompt").value;
  if (running || !text.trim()) return;
  $("prompt").value = "";
  add("user", text);
  messages.push({ role: "user", content: text });
  answer();
}

// -- controls ------------------------------------------------------------------------------------

function openSettings(field) {
  $("settings").showModal();
  if (field) $(field).focus();
}

function newChat() {
  running?.abort();
  messages = [];
  $("messages").replaceChildren();
  $("welcome").hidden = false;
  $("prompt").focus();
}

async function showModel() {
  try {
    const headers = getKey() ? { Authorization: `Bearer ${getKey()}` } : {};
    const { data } = await (await fetch("v1/models", { headers })).json();
    $("model").textContent = data[0].id;
  } catch {
    $("model").textContent = "";
  }
}

function start() {
  restore();
  const readAgain = watch(getKey);
  for (const [title, text] of Object.entries(EXAMPLES)) {
    const button = element("button", "quiet", title);
    button.type = "button";
    button.addEventListener("click", () => {
      $("prompt").value = text;
      $("prompt").focus();
    });
    $("examples").append(button);
  }
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  $("stop").addEventListener("click", () => running?.abort());
  $("new-chat").addEventListener("click", newChat);
  $("open-settings").addEventListener("click", () => openSettings());
  $("settings").addEventListener("change", save);
  $("settings").addEventListener("close", () => {
    save();
    readAgain();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !$("settings").open) running?.abort();
  });
  const wide = matchMedia("(min-width: 821px)");
  const fit = () => ($("live").open = wide.matches);
  wide.addEventListener("change", fit);
  $("live").querySelector("summary").addEventListener("click", (event) => wide.matches && event.preventDefault());
  fit();
  showModel();
  $("prompt").focus();
}

start();

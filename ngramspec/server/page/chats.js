// What a chat is, how it becomes a file, and how a file becomes chats.

const FORMAT = "ngramspec chats";
const ROLES = ["user", "assistant", "tool"];
const TITLE = 60; // characters

/** Return an empty chat. */
export function newChat() {
  return { id: crypto.randomUUID?.() ?? String(Math.random()).slice(2), title: "", updated: Date.now(), messages: [] };
}

/** Return a title for a chat: the first words of its first message. */
export function titleOf(chat) {
  const first = chat.messages.find((message) => message.role === "user");
  const words = (first?.content || first?.attachments?.[0]?.name || "").trim().split("\n").find((line) => line.trim());
  const text = words ?? "New chat";
  const signs = [...text]; // an emoji counts as two in a string, and would be cut in half
  return signs.length > TITLE ? `${signs.slice(0, TITLE - 1).join("")}…` : text;
}

/** Return the text of a file with chats. */
export function exported(chats) {
  return JSON.stringify({ format: FORMAT, version: 1, chats }, null, 1);
}

/**
 * Return the chats of a file, with ids of their own.
 * Throws an Error that says what is wrong with the text.
 */
export function imported(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON.");
  }
  if (value?.format !== FORMAT || !Array.isArray(value.chats) || !value.chats.length) {
    throw new Error("This file holds no chats that were exported from this page.");
  }
  return value.chats.map((chat, index) => {
    if (!Array.isArray(chat?.messages) || !chat.messages.every(isMessage)) {
      throw new Error(`Chat ${index + 1} of this file has messages of another shape.`);
    }
    const own = { ...newChat(), messages: chat.messages.map(cleaned) };
    own.title = typeof chat.title === "string" && chat.title ? chat.title : titleOf(own);
    if (Number.isFinite(chat.updated)) own.updated = chat.updated;
    return own;
  });
}

function isMessage(message) {
  const texts = ["content", "reasoning"].every((name) => ["string", "undefined"].includes(typeof message?.[name]));
  return texts && ROLES.includes(message?.role);
}

/** Return a message with what has the right shape of it. */
function cleaned({ role, content = "", reasoning, runs, reasoningRuns, calls, attachments, facts, samples, other, ended, call, name, drafted, asked, continued }) {
  const message = { role, content };
  if (reasoning) message.reasoning = reasoning;
  if (numbers(runs)) message.runs = runs;
  if (numbers(reasoningRuns)) message.reasoningRuns = reasoningRuns;
  if (Array.isArray(calls)) message.calls = calls.filter((one) => isText(one?.name, one?.arguments));
  if (Array.isArray(attachments)) message.attachments = attachments.filter((one) => isText(one?.name, one?.text));
  if (isFacts(facts)) message.facts = facts;
  if (isSamples(samples)) message.samples = samples;
  if (isFacts(other?.facts) && isSamples(other?.samples)) {
    message.other = { facts: other.facts, samples: other.samples, same: other.same === true };
  }
  if (isText(ended)) message.ended = ended;
  if (isText(call)) message.call = call;
  if (isText(name)) message.name = name;
  if (typeof drafted === "boolean") message.drafted = drafted;
  if (isAsked(asked)) message.asked = asked;
  if (continued === true) message.continued = true;
  return message;
}

const isText = (...values) => values.every((value) => typeof value === "string");
const numbers = (values) => Array.isArray(values) && values.every(Number.isFinite);
const isObject = (value) => Boolean(value) && typeof value === "object" && !Array.isArray(value);
const isAsked = (asked) => isObject(asked) && isObject(asked.speculative) && isText(asked.system ?? "");
const FACTS = ["tokens", "ms", "speed", "prompt", "steps", "accepted"];
const isFacts = (facts) => Boolean(facts) && FACTS.every((name) => Number.isFinite(facts[name]));
const isSamples = (samples) => Array.isArray(samples) && samples.every((one) => numbers(one) && one.length === 2);

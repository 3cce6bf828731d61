// Requests: what of a chat is sent to the server.

import { chats } from "./connection.js";
import { speculative } from "./drafts.js";
import { EXAMPLES } from "./examples.js";
import { settings, sampling } from "./settings.js";

/** Return what a new answer to messages is asked with, apart from them; one to an example is not drawn by chance. */
export function choices(messages) {
  const asked = messages.findLast(({ role }) => role === "user")?.content;
  const greedy = EXAMPLES.some(({ text }) => text === asked) && { temperature: 0 };
  return { ...sampling(), ...greedy, speculative: speculative(), system: settings.system };
}

/**
 * Return the path and the body of a request for an answer.
 * messages: The conversation before it; if the last one is an answer, it is continued.
 */
export function request(messages, { system = settings.system, ...asked }) {
  const common = { ...asked, stream: true, timings_per_token: true };
  if (!chats()) return ["v1/completions", { ...common, prompt: messages.map(textOf).join("") }];
  const first = system.trim() ? [{ role: "system", content: system }] : [];
  return ["v1/chat/completions", { ...common, messages: [...first, ...messages.map(sent)] }];
}

/** Return a message's text with its files, each in a fence longer than those within. */
export function textOf({ content, attachments = [] }) {
  const files = attachments.map(({ name, text }) => {
    const longest = Math.max(2, ...(text.match(/`{3,}/g) ?? []).map((fence) => fence.length));
    const fence = "`".repeat(longest + 1);
    const ending = /\.(\w+)$/.exec(name)?.[1] ?? "";
    return `${name}:\n\n${fence}${ending}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
  });
  return [content, ...files].filter(Boolean).join("\n\n");
}

/** Return whether a call can be sent: the server refuses arguments of which the end is missing. */
export function isWhole(call) {
  try {
    JSON.parse(call.arguments || "{}");
    return true;
  } catch {
    return false;
  }
}

function sent(message) {
  const { role, content, reasoning, calls } = message;
  if (role === "user") return { role, content: textOf(message) };
  if (role === "tool") return { role, content, tool_call_id: message.call, name: message.name };
  const body = { role, content };
  if (reasoning) body.reasoning_content = reasoning;
  const whole = calls?.filter(isWhole);
  if (whole?.length) {
    body.tool_calls = whole.map(({ id, name, arguments: values }) => ({
      id,
      type: "function",
      function: { name, arguments: values },
    }));
  }
  return body;
}

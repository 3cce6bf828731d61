// What the page asks of the server.

const KEY = "ngramspec.key";

let unkept = ""; // the key, where the browser lets pages store nothing

/** The API key, kept for as long as the tab is open. */
export const key = {
  get() {
    try {
      return sessionStorage.getItem(KEY) ?? "";
    } catch {
      return unkept;
    }
  },
  set(value) {
    try {
      sessionStorage.setItem(KEY, value);
    } catch {
      unkept = value;
    }
  },
};

/** The server answered with an error. */
export class Refused extends Error {
  constructor(status, message, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** The server does not answer, or no longer. */
export class Unreachable extends Error {}

/** Return the JSON of a GET request. */
export async function read(path, signal) {
  return (await ask(path, { signal })).json();
}

/** Yield the JSON of every event of a streamed answer. */
export async function* stream(path, body, signal) {
  const response = await ask(path, { method: "POST", body: JSON.stringify(body), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reached(reader.read());
    if (done) throw new Unreachable("The connection to the server was lost.");
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw refusal(0, event);
      yield event;
    }
  }
}

async function ask(path, options) {
  const headers = { "Content-Type": "application/json" };
  if (key.get()) headers.Authorization = `Bearer ${inBytes(key.get())}`;
  const response = await reached(fetch(path, { ...options, headers }), "The server does not answer.");
  if (response.ok) return response;
  throw refusal(response.status, await response.json().catch(() => ({})));
}

/** Return a text with one character for each of its bytes in UTF-8: headers take no others. */
const inBytes = (text) => String.fromCharCode(...new TextEncoder().encode(text));

/** Wait for something of the network; tell its failures from the user's stop. */
async function reached(promise, words = "The connection to the server was lost.") {
  try {
    return await promise;
  } catch (error) {
    throw error.name === "AbortError" ? error : new Unreachable(words);
  }
}

function refusal(status, { error }) {
  const words = typeof error === "string" ? error : error?.message;
  return new Refused(status, words ?? `The server answered with status ${status}.`, error?.code ?? "");
}

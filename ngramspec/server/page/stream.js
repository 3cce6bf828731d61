// Server-sent events of a chat completion.

/** An error response of the server. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Return the headers of a request, with the key if there is one. */
export function headers(key) {
  const made = { "Content-Type": "application/json" };
  if (key) made.Authorization = `Bearer ${key}`;
  return made;
}

/** Return the message of an error response, whatever shape it has. */
export async function refusal(response) {
  let message = `The server answered with status ${response.status}.`;
  try {
    const { error } = await response.json();
    message = typeof error === "string" ? error : error.message;
  } catch {
    // not JSON: keep the message with the status
  }
  return new Refused(response.status, message);
}

/** Yield the JSON of every event until the stream ends. */
export async function* chat(body, key, signal) {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: headers(key),
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw await refusal(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Refused(0, event.error.message ?? String(event.error));
      yield event;
    }
  }
}

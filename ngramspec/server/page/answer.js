// Answer: puts the events of a stream together to a message.

const PENDING = 4096; // characters of the model's own text that wait for their place
const INTERVALS = 48; // of the speed of an answer
const LEAST = 8; // tokens in one of them

/**
 * An answer while it comes in, or more of one.
 *
 * Its message has content, reasoning, calls; runs: lengths of text, by turns chosen by the model
 * and drafted; samples: pairs of tokens and milliseconds so far; facts: counts of the whole.
 * members: What it gets with the first event; until then it keeps what it had.
 */
export class Answer {
  constructor(message, members = {}) {
    this.message = message;
    this.members = members;
    this.facts = null; // nothing is measured yet
    this.steps = 0;
    this.accepted = 0;
    this.samples = [[0, 0]];
    this.origins = new Origins();
    this.begun = false; // an event has come
    this.complete = false;
  }

  /** Take an event. */
  take({ speculative, timings, choices }) {
    this.begun = true;
    Object.assign(this.message, this.members);
    const [choice] = choices ?? [];
    if (speculative) {
      this.steps += 1;
      this.accepted += speculative.accepted;
      for (const [text, drafted] of speculative.spans) this.origins.add(text, drafted);
    }
    if (timings) this.#measure(timings);
    const delta = choice?.delta ?? {};
    this.#append("content", "runs", delta.content ?? choice?.text);
    this.#append("reasoning", "reasoningRuns", delta.reasoning_content);
    for (const call of delta.tool_calls ?? []) this.#call(call);
    if (choice?.finish_reason) {
      this.message.ended = choice.finish_reason;
      this.complete = true;
    }
  }

  /** Write what was measured into the message, if anything was. */
  finish() {
    if (!this.facts) return;
    Object.assign(this.facts, { steps: this.steps, accepted: this.accepted });
    this.message.samples = thinned(this.samples);
  }

  #append(field, runs, text) {
    if (!text) return;
    this.message[field] = (this.message[field] ?? "") + text;
    this.message[runs] ??= [];
    for (const [length, drafted] of this.origins.take(text)) extend(this.message[runs], length, drafted);
  }

  #call({ index = 0, id, function: { name, arguments: values } = {} }) {
    const calls = (this.message.calls ??= []);
    const call = (calls[index] ??= { id: "", name: "", arguments: "" });
    if (id) call.id = id;
    if (name) call.name += name;
    if (values) call.arguments += values;
  }

  #measure(timings) {
    const { predicted_n: tokens, predicted_ms: ms } = timings;
    const last = this.samples.at(-1);
    if (tokens > last[0]) this.samples.push([tokens, ms]);
    else if (tokens) last[1] = ms; // the pass that chose the end token takes time, too
    this.facts = this.message.facts = {
      tokens,
      ms,
      speed: timings.predicted_per_second,
      prompt: timings.prompt_n + timings.cache_n,
      cached: timings.cache_n,
      prompt_ms: timings.prompt_ms,
      steps: this.steps,
      accepted: this.accepted,
    };
  }
}

/** Which text drafts made: spans hold all of it in order, also what reasoning and calls take out. */
class Origins {
  #text = "";
  #runs = []; // pairs of a length and whether it was drafted

  add(text, drafted) {
    this.#text += text;
    this.#runs.push([text.length, drafted]);
    if (this.#text.length > PENDING) this.#cut(this.#text.length - PENDING);
  }

  /** Return the runs of the next text. */
  take(text) {
    const at = this.#text.indexOf(text);
    if (at < 0) return [[text.length, false]];
    this.#cut(at);
    return this.#cut(text.length);
  }

  #cut(length) {
    const cut = [];
    this.#text = this.#text.slice(length);
    while (length > 0) {
      const [size, drafted] = this.#runs[0];
      const part = Math.min(size, length);
      cut.push([part, drafted]);
      if (part === size) this.#runs.shift();
      else this.#runs[0] = [size - part, drafted];
      length -= part;
    }
    return cut;
  }
}

/** Add a length to runs, which are by turns chosen and drafted. */
function extend(runs, length, drafted) {
  if (!runs.length) runs.push(0);
  if ((runs.length % 2 === 0) === Boolean(drafted)) runs[runs.length - 1] += length;
  else runs.push(length);
}

/** Return fewer samples, at equal distances in time. */
function thinned(samples) {
  const [tokens, ms] = samples.at(-1);
  const count = Math.max(1, Math.min(INTERVALS, Math.floor(tokens / LEAST)));
  const few = [samples[0]];
  for (const sample of samples.slice(1, -1)) {
    const enough = sample[0] - few.at(-1)[0] >= Math.min(LEAST, tokens - sample[0]);
    if (enough && sample[1] >= (few.length * ms) / count) few.push(sample);
  }
  return samples.length > 1 ? [...few, samples.at(-1)] : few;
}

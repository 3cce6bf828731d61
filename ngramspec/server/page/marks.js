// Marks the text that accepted drafts made, in what Markdown has become.

import { make } from "./dom.js";

const REACH = 400; // characters of the source that punctuation may take between two pieces

/**
 * Mark drafted text within an element.
 *
 * The element's text is the source without its punctuation, so each piece is looked for in the
 * source from where the last one ended.
 *
 * root: What was rendered of the source.
 * source: A part of a message.
 * runs: Lengths of the message's text, by turns chosen by the model and drafted.
 * start: Where in the message the source begins.
 */
export function mark(root, source, runs, start) {
  const drafted = reader(runs);
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const nodes = [];
  while (walker.nextNode()) nodes.push(walker.currentNode);
  let at = 0;
  for (const node of nodes) {
    const pieces = []; // texts, by turns chosen and drafted
    for (const part of node.data.match(/\s+|\S+/g) ?? []) {
      if (part.includes("\n")) {
        // It stands between elements, or is an indent, which would only look like a bar.
        if (source.startsWith(part, at)) at += part.length;
        push(pieces, part, false);
        continue;
      }
      const whole = find(source, part, at); // a word as it is; else its characters one by one
      for (let i = 0; i < part.length; i++) {
        const place = whole < 0 ? find(source, part[i], at) : whole + i;
        if (place >= 0) at = place + 1;
        push(pieces, part[i], place >= 0 && drafted(start + place));
      }
    }
    if (pieces.length > 1) {
      node.replaceWith(...pieces.map((text, i) => (i % 2 ? make("span.accepted", {}, text) : text)));
    }
  }
}

function find(source, text, at) {
  const place = source.slice(at, at + text.length + REACH).indexOf(text);
  return place < 0 ? -1 : at + place;
}

function push(pieces, text, drafted) {
  if (!pieces.length) pieces.push("");
  if ((pieces.length % 2 === 0) === drafted) pieces[pieces.length - 1] += text;
  else pieces.push(text);
}

/** Return a function that tells of places, asked in order, whether drafts made them. */
function reader(runs) {
  let index = 0;
  let end = runs[0] ?? 0;
  return (place) => {
    while (place >= end && index < runs.length - 1) end += runs[++index];
    return place < end && index % 2 === 1;
  };
}

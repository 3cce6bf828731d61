// Markdown as harmless elements. Text that still grows is rendered block by block: only the last
// block is rendered again.

import { copy, make } from "./dom.js";
import { mark } from "./marks.js";
import DOMPurify from "./vendor/dompurify/purify.es.mjs";
import highlighter from "./vendor/highlight/highlight.min.js";
import markdownIt from "./vendor/markdown-it/markdown-it.esm.min.mjs";

const MOST_COLOURED = 200_000; // characters of a block of code
const MOST_GROWING = 10_000; // the same while it still grows
const ALLOWED = {
  ALLOWED_TAGS: ["a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol",
    "p", "pre", "s", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"],
  ALLOWED_ATTR: ["class", "href", "start", "title", "rel", "target", "data-language"],
  RETURN_DOM_FRAGMENT: true,
};

const markdown = markdownIt({ html: false, linkify: true });
markdown.linkify.set({ fuzzyLink: false, fuzzyEmail: false }); // README.md is no address
const { rules, utils } = { rules: markdown.renderer.rules, utils: markdown.utils };

rules.fence = (tokens, index, options, { growing }) => {
  const { content, info } = tokens[index];
  return code(content, info.trim().split(/\s+/)[0], growing);
};
rules.code_block = (tokens, index) => code(tokens[index].content, "", false);
// No picture is loaded: the address alone would tell others who reads the answer.
rules.image = (tokens, index) => {
  const { content } = tokens[index];
  const href = utils.escapeHtml(tokens[index].attrGet("src") ?? "");
  return `<a href="${href}" rel="noopener noreferrer" target="_blank">${utils.escapeHtml(content || "picture")}</a>`;
};
rules.link_open = (tokens, index, options, env, self) => {
  tokens[index].attrSet("rel", "noopener noreferrer");
  tokens[index].attrSet("target", "_blank");
  return self.renderToken(tokens, index, options);
};
for (const name of ["td_open", "th_open"]) {
  rules[name] = (tokens, index, options, env, self) => {
    // A class instead of the style, which the page's policy forbids.
    const token = tokens[index];
    const align = /text-align:(\w+)/.exec(token.attrGet("style") ?? "")?.[1];
    token.attrs = align ? [["class", align]] : [];
    return self.renderToken(tokens, index, options);
  };
}

function code(text, language, growing) {
  const coloured = highlighter.getLanguage(language) && text.length <= (growing ? MOST_GROWING : MOST_COLOURED);
  const inner = coloured ? highlighter.highlight(text, { language, ignoreIllegals: true }).value : utils.escapeHtml(text);
  return `<pre data-language="${utils.escapeHtml(language)}"><code>${inner}</code></pre>`;
}

/** Shows a Markdown text that may grow within an element. */
export class Flow {
  #element;
  #start = 0; // where the last block begins
  #open = null; // the last block's element
  #references = {}; // addresses that links name, of the blocks before the last one

  constructor(element) {
    this.#element = element;
  }

  /**
   * Show the text so far: what was shown before and more.
   * runs: Lengths of text, by turns chosen by the model and drafted.
   * Cost: O(last block and what is new).
   */
  show(source, runs, growing) {
    const tail = source.slice(this.#start);
    const env = { references: { ...this.#references } }; // an address at the end may be half of one
    const blocks = blocksOf(tail, env);
    if (!blocks.length) this.#open?.remove(); // it has become the beginning of such an address
    if (!blocks.length) this.#open = null;
    for (const [index, block] of blocks.entries()) {
      const last = index === blocks.length - 1;
      const element = this.#render(block, tail, runs, { ...env, growing: growing && last });
      if (this.#open) this.#open.replaceWith(element);
      else this.#element.append(element);
      this.#open = last ? element : null;
      if (last && block.from) {
        blocksOf(tail.slice(0, block.from), { references: this.#references });
        this.#start += block.from;
      }
    }
  }

  #render({ tokens, from, to }, tail, runs, env) {
    const html = markdown.renderer.render(tokens, markdown.options, env);
    const element = make("div.block", { dir: "auto" });
    element.append(DOMPurify.sanitize(html, ALLOWED));
    // The first line of a fence is not shown.
    const begin = tokens[0].type === "fence" ? tail.indexOf("\n", from) + 1 || to : from;
    if (runs) mark(element, tail.slice(begin, to), runs, this.#start + begin);
    for (const pre of element.querySelectorAll("pre")) dress(pre);
    for (const table of element.querySelectorAll("table")) {
      const box = make("div.table", { tabindex: 0, role: "region", "aria-label": "Table" });
      table.replaceWith(box);
      box.append(table);
    }
    return element;
  }
}

/** Show a text as it is, apart from fenced code. */
export function showPlain(element, text) {
  element.replaceChildren();
  let at = 0;
  for (const { from, to, language, inner } of fences(text)) {
    plain(element, text.slice(at, from));
    const html = code(inner, language, false);
    element.append(DOMPurify.sanitize(html, ALLOWED));
    at = to;
  }
  plain(element, text.slice(at));
  for (const pre of element.querySelectorAll("pre")) dress(pre);
}

function plain(element, text) {
  const shown = text.replace(/^\n+|\s+$/g, "");
  if (shown) element.append(make("div.plain", {}, shown));
}

function* fences(text) {
  const lines = text.split("\n");
  let offset = 0;
  let open = null;
  for (const line of lines) {
    const next = Math.min(offset + line.length + 1, text.length);
    const match = /^ {0,3}(`{3,}|~{3,})\s*(\S*)[^`]*$/.exec(line);
    if (open && match && !match[2] && match[1].startsWith(open.fence)) {
      yield { ...open, to: next, inner: text.slice(open.inside, offset) };
      open = null;
    } else if (!open && match) {
      open = { from: offset, fence: match[1], language: match[2], inside: next };
    }
    offset = next;
  }
}

/** Return the outermost blocks of a text: their tokens, and from where to where they go. */
function blocksOf(text, env) {
  const tokens = markdown.parse(text, env);
  const lines = [0];
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) lines.push(at + 1);
  const offset = (line) => lines[line] ?? text.length;
  const blocks = [];
  let first = 0;
  tokens.forEach((token, index) => {
    if (token.level !== 0 || token.nesting === 1) return;
    const [from, to] = tokens[first].map;
    blocks.push({ tokens: tokens.slice(first, index + 1), from: offset(from), to: offset(to) });
    first = index + 1;
  });
  return blocks;
}

/** Put a line with the language and a button above a block of code. */
function dress(pre) {
  const button = make("button.quiet.small", { type: "button", onclick: () => copy(pre.textContent, button) }, "Copy");
  const head = make("div.code-head", {}, make("span", {}, pre.dataset.language || "text"), button);
  const box = make("div.code");
  pre.replaceWith(box);
  pre.tabIndex = 0;
  box.append(head, pre);
}

// Text files that go with a message.

import { $, iconButton, make, number } from "./dom.js";

const MOST = 1 << 20; // bytes of a file, and of all files of a message
let files = []; // objects with name and text

/** Return the attached files. */
export const attached = () => files;

/** Attach other files instead. */
export function attach(others) {
  files = others;
  list();
}

/** Read chosen files; return what is wrong with those that cannot be attached. */
export async function take(chosen) {
  const wrong = [];
  for (const file of chosen) {
    const size = files.reduce((sum, one) => sum + one.text.length, 0) + file.size;
    if (size > MOST) wrong.push(`${file.name} is too large: files of a message can have ${MOST >> 20} MB together.`);
    else {
      const text = await textOf(file);
      if (text === null) wrong.push(`${file.name} is not a text file in UTF-8.`);
      else files = [...files, { name: file.name, text }];
    }
  }
  list();
  return wrong;
}

async function textOf(file) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? null : text.replaceAll("\r\n", "\n");
  } catch {
    return null;
  }
}

function list() {
  const rows = files.map((file) => {
    const drop = iconButton("close", `Remove ${file.name}`, () => {
      attach(files.filter((one) => one !== file));
      $("prompt").focus();
    });
    return make("li", {}, make("span", {}, file.name), make("small", {}, `${number.format(file.text.length)} characters`), drop);
  });
  $("attachments").replaceChildren(...rows);
  $("attachments").hidden = !rows.length;
}

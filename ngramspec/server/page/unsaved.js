// Chats that are being saved. When a page goes the browser undoes what it has not written yet; the next page does it again.

const NAME = "ngramspec.unsaved"; // in localStorage, which is written at once
const saving = new Set(); // objects with a chat, which may be there twice

addEventListener("pagehide", () => {
  if (saving.size) write([...left(), ...[...saving].map(({ chat }) => chat)]);
});

/** Take note of a chat that is being saved; return a function to call when that is over. */
export function note(chat) {
  const one = { chat };
  saving.add(one);
  return () => saving.delete(one);
}

/** Return the chats that a page was left with, once. */
export function takeLeft() {
  const chats = left();
  write([]);
  return chats;
}

/** Leave a chat that is deleted, or all of them, to no other page. */
export function forget(id) {
  const others = ({ id: other }) => id !== undefined && id !== other;
  for (const one of saving) if (!others(one.chat)) saving.delete(one);
  write(left().filter(others));
}

function left() {
  try {
    return JSON.parse(localStorage.getItem(NAME)) ?? [];
  } catch {
    return [];
  }
}

function write(chats) {
  try {
    if (chats.length) localStorage.setItem(NAME, JSON.stringify(chats));
    else localStorage.removeItem(NAME);
  } catch {
    // no room, or not allowed: they are lost
  }
}

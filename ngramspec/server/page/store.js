// Chats in the browser's database. Without one they live until the page is closed.

import { forget, note, takeLeft } from "./unsaved.js";

const NAME = "ngramspec";
const CHATS = "chats";
const HEADS = "heads"; // what the list shows, so that it need not read all texts
const memory = new Map();
const others = new BroadcastChannel(NAME); // pages of the same server in other tabs
let opened = null; // promise of the database, or of null

/** Return the heads of all chats, newest first: id, title and time of the last change. */
export async function heads() {
  const all = await run("readonly", (store) => store(HEADS).getAll(), () => [...memory.values()].map(headOf));
  return all.sort((a, b) => b.updated - a.updated);
}

/** Return all chats. */
export const everything = () => run("readonly", (store) => store(CHATS).getAll(), () => [...memory.values()]);

/** Return a chat; undefined: there is none. */
export const load = (id) => run("readonly", (store) => store(CHATS).get(id), () => memory.get(id));

/** The browser could not keep a chat. */
export class Unsaved extends Error {}

/** Keep a chat; throws Unsaved. */
export async function save(chat) {
  const over = note(chat);
  try {
    await run("readwrite", (store) => put(store, chat), () => memory.set(chat.id, structuredClone(chat)));
  } catch (error) {
    const full = error?.name === "QuotaExceededError" ? "there is no room left for this page. Delete other chats before the next message" : error?.message;
    throw new Unsaved(`The browser could not keep this chat: ${full}. It is lost when the page is closed.`);
  } finally {
    over();
  }
  others.postMessage({ id: chat.id });
}

/** Forget a chat. */
export async function remove(id) {
  forget(id);
  await run("readwrite", (store) => (store(HEADS).delete(id), store(CHATS).delete(id)), () => memory.delete(id));
  others.postMessage({ id, gone: true });
}

/** Forget all chats. */
export async function clear() {
  forget();
  await run("readwrite", (store) => (store(HEADS).clear(), store(CHATS).clear()), () => memory.clear());
  others.postMessage({ gone: true });
}

/**
 * Call a function when a page in another tab has changed something. It takes an object: id of a
 * chat, undefined = all chats; gone: they are deleted.
 */
export function whenChanged(listener) {
  others.addEventListener("message", ({ data }) => listener(data));
}

const headOf = ({ id, title, updated }) => ({ id, title, updated });

const put = (store, chat) => (store(HEADS).put(headOf(chat)), store(CHATS).put(chat));

/** Do work in one transaction, or something else where there is no database. */
async function run(mode, work, instead) {
  opened ??= open();
  const base = await opened;
  if (!base) return instead();
  const transaction = base.transaction([CHATS, HEADS], mode);
  const request = work((name) => transaction.objectStore(name));
  if (mode === "readwrite") transaction.commit(); // else a page that is left now would undo it
  await complete(transaction); // what is written can still fail after the request was right
  return request.result;
}

async function open() {
  try {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => {
      for (const name of [CHATS, HEADS]) request.result.createObjectStore(name, { keyPath: "id" });
    };
    const base = await new Promise((resolve, reject) => {
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
    base.onclose = () => (opened = null); // the browser closed it: the next work opens it again
    for (const chat of takeLeft()) saveLeft(base, chat); // before anything is read
    return base;
  } catch {
    return null;
  }
}

/** Save a chat that a page was left with, but not over a newer state of it. */
async function saveLeft(base, chat) {
  const over = note(chat); // this page may be left, too
  const transaction = base.transaction([CHATS, HEADS], "readwrite");
  const store = (name) => transaction.objectStore(name);
  const request = store(HEADS).get(chat.id);
  request.onsuccess = () => request.result?.updated > chat.updated || put(store, chat);
  await complete(transaction).catch(() => {}); // there is no room for it
  over();
  others.postMessage({ id: chat.id });
}

function complete(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onabort = () => reject(transaction.error);
  });
}

// Chats in the browser's database. Without one they live until the page is closed.

const NAME = "ngramspec";
const STORE = "chats";
const memory = new Map();
const others = new BroadcastChannel(NAME); // pages of the same server in other tabs
let opened = null; // promise of the database, or of null

/** Return the heads of all chats, newest first: id, title and time of the last change. */
export async function heads() {
  const all = await run("readonly", (store) => store.getAll(), () => [...memory.values()]);
  const made = all.map(({ id, title, updated }) => ({ id, title, updated }));
  return made.sort((a, b) => b.updated - a.updated);
}

/** Return all chats. */
export const everything = () => run("readonly", (store) => store.getAll(), () => [...memory.values()]);

/** Return a chat; undefined: there is none. */
export const load = (id) => run("readonly", (store) => store.get(id), () => memory.get(id));

/** Keep a chat. */
export async function save(chat) {
  await run("readwrite", (store) => store.put(chat), () => memory.set(chat.id, structuredClone(chat)));
  others.postMessage("changed");
}

/** Forget a chat. */
export async function remove(id) {
  await run("readwrite", (store) => store.delete(id), () => memory.delete(id));
  others.postMessage("changed");
}

/** Forget all chats. */
export async function clear() {
  await run("readwrite", (store) => store.clear(), () => memory.clear());
  others.postMessage("changed");
}

/** Call a function when a page in another tab has changed something. */
export function whenChanged(listener) {
  others.addEventListener("message", listener);
}

async function run(mode, work, instead) {
  opened ??= open();
  const base = await opened;
  if (!base) return instead();
  return finished(work(base.transaction(STORE, mode).objectStore(STORE)));
}

async function open() {
  try {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
    return await finished(request);
  } catch {
    return null;
  }
}

function finished(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

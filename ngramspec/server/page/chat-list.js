// The list of chats beside the messages: open, rename, delete, export, import.

import { exported, imported, newChat } from "./chats.js";
import { showContext } from "./composer.js";
import { abandon, complain, isRunning, openChat, revive, show, whenChatChanges } from "./conversation.js";
import { $, confirm, download, iconButton, make, notify } from "./dom.js";
import { close } from "./frame.js";
import * as store from "./store.js";

const open = new Map(); // chats that were opened, as answers may still come in for them
let listed = ""; // what the list shows, so that it is made anew only for something else

/** Show the list and open the chat that the address names. */
export async function startChats() {
  $("new-chat").addEventListener("click", begin);
  $("export").addEventListener("click", async () => save(await store.everything(), "chats"));
  $("import").addEventListener("click", () => $("import-file").click());
  $("import-file").addEventListener("change", takeFile);
  $("delete-chats").addEventListener("click", removeAll);
  addEventListener("hashchange", follow);
  store.whenChanged(changed);
  whenChatChanges((chat) => {
    if (chat === openChat()) name(chat.messages.length ? chat.id : "");
    list();
  });
  await follow();
}

/** Open an empty chat to write in. */
export function begin() {
  close();
  openEmpty();
  $("prompt").focus();
}

async function follow() {
  const id = location.hash.slice(1);
  if (id && id === openChat()?.id) return;
  const chat = id && (open.get(id) ?? (await store.load(id)));
  if (id !== location.hash.slice(1)) return; // another chat was chosen while this one was read
  if (chat) openOne(chat);
  else openEmpty();
}

/** Take over what a page in another tab has changed, unless an answer comes in here for it. */
async function changed({ id, gone = false }) {
  const current = openChat();
  if (gone) {
    // An empty chat was never kept, so it is none of "all".
    const hit = (id === undefined ? [...open.values()] : [open.get(id)]).filter((one) => one?.messages.length);
    for (const one of hit) {
      abandon(one.id);
      open.delete(one.id);
    }
    if (hit.includes(current)) return openEmpty();
  } else if (!isRunning(id)) {
    revive(id);
    if (id !== current?.id) open.delete(id);
    else await takeOver(id);
  }
  list();
}

/** Show what another tab has made of the open chat: not what still comes in there, and nothing over what is written here. */
async function takeOver(id) {
  const chat = await store.load(id);
  const written = (area) => area.value !== area.defaultValue && area.checkVisibility();
  const writing = [...$("messages").querySelectorAll("textarea")].some(written);
  if (chat && id === openChat().id && !isRunning(id) && !writing && chat.messages.at(-1)?.ended !== "") openOne(chat);
}

function openEmpty() {
  name("");
  openOne(newChat());
}

function openOne(chat) {
  for (const [id] of open) if (!isRunning(id)) open.delete(id);
  open.set(chat.id, chat);
  show(chat);
  showContext();
  list();
}

function name(id) {
  history.replaceState(null, "", id ? `#${id}` : location.pathname + location.search);
}

async function list() {
  const heads = await store.heads();
  const current = openChat()?.id;
  const box = $("chat-list");
  if (box.querySelector("input")) return; // a name is being typed
  document.title = heads.find(({ id }) => id === current)?.title ?? "ngramspec";
  const state = JSON.stringify([current, heads.map(({ id, title }) => [id, title, isRunning(id)])]);
  if (state === listed) return;
  listed = state;
  const rows = heads.map(({ id, title }) => {
    const link = make("a.chat-name", { href: `#${id}`, title, onclick: close, "aria-current": id === current && "page" }, title);
    const row = make("li", {}, link,
      iconButton("edit", `Rename ${title}`, () => rename(id, title, row)),
      iconButton("export", `Export ${title}`, async () => save([await store.load(id)], "chat")),
      iconButton("remove", `Delete ${title}`, () => remove(id, title)));
    row.classList.toggle("busy", Boolean(current) && isRunning(id));
    row.dataset.id = id;
    return row;
  });
  const focused = document.activeElement;
  const place = [...(focused.closest("#chat-list li")?.children ?? [])].indexOf(focused);
  const before = focused.closest("#chat-list li")?.dataset.id;
  box.replaceChildren(...rows);
  rows.find((row) => row.dataset.id === before)?.children[place]?.focus();
  $("export").disabled = !rows.length;
}

function rename(id, title, row) {
  const input = make("input", { "aria-label": "Name of the chat", value: title, maxlength: 200 });
  let over = false; // taking the field away takes the focus from it, too
  const done = async (keep) => {
    if (over) return;
    over = true;
    const focused = document.activeElement === input;
    input.remove();
    const chat = open.get(id) ?? (await store.load(id));
    if (keep && chat && input.value.trim()) {
      chat.title = input.value.trim();
      await store.save(chat).catch(complain);
    }
    listed = "";
    await list();
    if (focused) document.querySelector(`[data-id="${id}"] a`)?.focus();
  };
  input.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Enter") done(true);
    if (event.key === "Escape") (event.stopPropagation(), done(false));
  });
  input.addEventListener("blur", () => done(true));
  row.replaceChildren(input);
  input.select();
}

async function remove(id, title) {
  if (!(await confirm("Delete this chat?", title, "Delete"))) return;
  abandon(id);
  open.delete(id);
  await store.remove(id);
  $("new-chat").focus();
  if (openChat().id === id) openEmpty();
  else list();
}

async function removeAll() {
  const count = (await store.heads()).length;
  if (!(await confirm("Delete all chats?", `${count} of them, in this browser.`, "Delete all"))) return;
  for (const [id] of open) abandon(id);
  open.clear();
  await store.clear();
  $("settings").close();
  openEmpty();
}

function save(chats, name) {
  const day = new Date().toLocaleDateString("sv"); // year first
  download(`ngramspec-${name}-${day}.json`, exported(chats));
}

async function takeFile() {
  const [file] = $("import-file").files;
  $("import-file").value = "";
  if (!file) return;
  close();
  try {
    const chats = imported(await file.text());
    for (const chat of chats) await store.save(chat);
    openOne(chats[0]), name(chats[0].id);
    $("status").textContent = `Chats imported: ${chats.length}.`;
  } catch (error) {
    notify([error.message]);
  }
  list();
}

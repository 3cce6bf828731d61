// The list of chats beside the messages: open, rename, delete, export, import.

import { exported, imported, newChat } from "./chats.js";
import { abandon, isRunning, openChat, show, whenChatChanges } from "./conversation.js";
import { $, confirm, download, iconButton, make } from "./dom.js";
import * as store from "./store.js";

const open = new Map(); // chats that were opened, as answers may still come in for them

/** Show the list and open the chat that the address names. */
export async function startChats() {
  $("new-chat").addEventListener("click", () => (begin(), $("prompt").focus()));
  $("export").addEventListener("click", async () => save(await store.everything(), "chats"));
  $("import").addEventListener("click", () => $("import-file").click());
  $("import-file").addEventListener("change", takeFile);
  $("delete-chats").addEventListener("click", removeAll);
  addEventListener("hashchange", follow);
  store.whenChanged(list);
  whenChatChanges((chat) => {
    if (chat === openChat()) name(chat.messages.length ? chat.id : "");
    list();
  });
  await follow();
}

/** Open an empty chat. */
export function begin() {
  name("");
  openOne(newChat());
}

async function follow() {
  const id = location.hash.slice(1);
  if (id && id === openChat()?.id) return;
  const chat = id && (open.get(id) ?? (await store.load(id)));
  if (chat) openOne(chat);
  else begin();
}

function openOne(chat) {
  for (const [id] of open) if (!isRunning(id)) open.delete(id);
  open.set(chat.id, chat);
  show(chat);
  document.body.classList.remove("chats-over");
  list();
}

function name(id) {
  history.replaceState(null, "", id ? `#${id}` : location.pathname + location.search);
}

async function list() {
  const heads = await store.heads();
  const current = openChat()?.id;
  const rows = heads.map(({ id, title }) => {
    const link = make("a.chat-name", { href: `#${id}`, title, "aria-current": id === current && "page" }, title);
    const row = make("li", {}, link,
      iconButton("edit", `Rename ${title}`, () => rename(id, title, row)),
      iconButton("export", `Export ${title}`, async () => save([await store.load(id)], "chat")),
      iconButton("remove", `Delete ${title}`, () => remove(id, title)));
    row.classList.toggle("busy", Boolean(current) && isRunning(id));
    return row;
  });
  if ($("chat-list").querySelector("input")) return; // a name is being typed
  $("chat-list").replaceChildren(...rows);
  $("export").disabled = !rows.length;
  document.title = heads.find(({ id }) => id === current)?.title ?? "ngramspec";
}

function rename(id, title, row) {
  const input = make("input", { "aria-label": "Name of the chat", value: title, maxlength: 200 });
  let over = false; // taking the field away takes the focus from it, too
  const done = async (keep) => {
    if (over) return;
    over = true;
    input.remove();
    const chat = open.get(id) ?? (await store.load(id));
    if (keep && chat && input.value.trim()) {
      chat.title = input.value.trim();
      await store.save(chat);
    }
    list();
  };
  input.addEventListener("keydown", (event) => {
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
  if (openChat().id === id) begin();
  else list();
}

async function removeAll() {
  const count = (await store.heads()).length;
  if (!(await confirm("Delete all chats?", `${count} of them, in this browser.`, "Delete all"))) return;
  for (const [id] of open) abandon(id);
  open.clear();
  await store.clear();
  $("settings").close();
  begin();
}

function save(chats, name) {
  const day = new Date().toISOString().slice(0, 10);
  download(`ngramspec-${name}-${day}.json`, exported(chats));
}

async function takeFile() {
  const [file] = $("import-file").files;
  $("import-file").value = "";
  if (!file) return;
  try {
    const chats = imported(await file.text());
    for (const chat of chats) await store.save(chat);
    if (chats.length) openOne(chats[0]), name(chats[0].id);
    $("status").textContent = `Imported ${chats.length} chats.`;
  } catch (error) {
    $("notice").replaceChildren(make("span", {}, error.message));
    $("notice").hidden = false;
  }
  list();
}

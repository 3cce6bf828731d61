"""Chats that stay in the browser: the list, names, files, and answers that go on elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.browser import (
    Pages,
    Server,
    answers_with,
    ask,
    bodies_of,
    event_of,
    events,
    expect,
    finished,
    last,
    send,
    settled,
)

SLOW = """() => {
    // lets an answer arrive in two pieces, the second one when the test says so
    const fetched = window.fetch;
    window.fetch = async (path, options) => {
        if (!String(path).includes('completions')) return fetched(path, options);
        const line = (text, more) => new TextEncoder().encode('data: ' + JSON.stringify(
            {choices: [{delta: {content: text}, finish_reason: more}]}) + '\\n\\n');
        const stream = new ReadableStream({async start(control) {
            options.signal.addEventListener('abort', () => {
                control.error(new DOMException('stopped', 'AbortError'));
            });
            control.enqueue(line('begun', null));
            await new Promise(go => window.go = go);
            control.enqueue(line(' and ended', 'stop'));
            control.enqueue(new TextEncoder().encode('data: [DONE]\\n\\n'));
            control.close();
        }});
        return new Response(stream);
    };
}"""
NAMES = ".chat-name"


def no_chats(page: Any) -> None:
    """Check that the list is made, which is when there is something to export or not, and empty."""
    expect(page.get_by_role("button", name="Export all")).to_be_disabled()
    expect(page.locator(NAMES)).to_have_count(0)


# What the browser is asked to write is not written before the page goes, which undoes it.
STUCK = """() => {
    IDBTransaction.prototype.commit = function () {
        const store = this.objectStore('heads');
        const wait = () => store.get('x').onsuccess = wait;
        wait();
    };
}"""
# What is read of the database arrives when the test says so.
HELD = """(() => {
    const held = new Promise(go => window.go = go);
    const {set} = Object.getOwnPropertyDescriptor(IDBTransaction.prototype, 'oncomplete');
    Object.defineProperty(IDBTransaction.prototype, 'oncomplete', {
        set(listener) { set.call(this, event => held.then(() => listener(event))); }
    });
})()"""


def new_chat(page: Any, text: str) -> None:
    page.get_by_role("button", name="New chat").click()
    ask(page, text)


def same_chat(pages: Pages, page: Any, question: str) -> Any:
    """Return another tab with the open chat."""
    other = pages.open(page.url)
    other.locator(".message.user", has_text=question).wait_for()
    return other


def take_file(page: Any, path: Path) -> None:
    page.locator("#import-file").set_input_files(path)


def test_chats_stay_and_are_listed_newest_first(page: Any, server: Server, pages: Pages) -> None:
    answers_with(page, "fine")
    new_chat(page, "first question\nwith a second line")
    new_chat(page, "second question")
    expect(page.locator(NAMES)).to_have_text(["second question", "first question"])
    page.reload()
    page.locator(".message.user", has_text="second question").wait_for()
    page.get_by_role("link", name="first question").click()
    page.locator(".message.user", has_text="with a second line").wait_for()
    expect(page).to_have_title("first question")
    page.go_back()
    page.locator(".message.user", has_text="second question").wait_for()
    other = pages.open(server.url)  # has them, and hears of changes
    other.get_by_role("link", name="first question").wait_for()
    answers_with(other, "fine")
    new_chat(other, "third question")
    page.get_by_role("link", name="third question").wait_for()


def test_a_message_waits_for_the_chat_that_is_being_read(page: Any) -> None:
    answers_with(page, "fine")
    new_chat(page, "one")
    page.add_init_script(HELD)
    page.reload()
    send(page, "two")
    page.keyboard.press("Escape")  # nothing is there to be stopped
    expect(page.locator(".message")).to_have_count(0)
    page.evaluate("() => window.go()")
    expect(page.locator(".message.user")).to_contain_text(["one", "two"])
    expect(page.get_by_label("Message", exact=True)).to_have_value("")


def test_a_chat_that_arrives_after_another_one_was_chosen_is_not_shown(
    page: Any, server: Server
) -> None:
    answers_with(page, "fine")
    new_chat(page, "one")
    new_chat(page, "two")
    page.evaluate("""() => {
        // while the chat is read
        const begin = () => document.getElementById('new-chat').click();
        addEventListener('hashchange', begin, {once: true});
    }""")
    page.get_by_role("link", name="one", exact=True).click()
    expect(page).to_have_url(f"{server.url}/")
    page.evaluate("async () => (await import('/page/store.js')).everything()")  # it is read
    send(page, "three")
    expect(page.locator(NAMES)).to_have_text(["three", "two", "one"])


def test_a_page_that_is_left_before_a_chat_is_written_keeps_it(page: Any) -> None:
    page.evaluate(STUCK)
    answers_with(page, "fine")
    ask(page, "question")
    page.reload()
    page.get_by_text("fine").wait_for()
    page.reload()
    page.get_by_text("fine").wait_for()
    assert page.evaluate("Object.keys(localStorage)") == []  # the database has it


def test_a_page_that_is_left_keeps_what_has_come_in_of_an_answer(page: Any) -> None:
    page.evaluate(SLOW)
    send(page, "question")
    page.get_by_text("begun").wait_for()
    page.reload()
    expect(page.locator(".assistant .text")).to_have_text("begun")


def test_a_chat_that_was_not_written_does_not_replace_a_newer_one(
    server: Server, pages: Pages
) -> None:
    page = pages.open(server.url)
    answers_with(page, "fine")
    new_chat(page, "one")
    other = same_chat(pages, page, "one")
    page.evaluate(STUCK)
    ask(page, "lost", 2)
    page.goto("about:blank")
    answers_with(other, "good")
    ask(other, "two", 2)
    page = pages.open(other.url)
    expect(page.locator(".message.user")).to_contain_text(["one", "two"])


@pytest.mark.parametrize("button", ["Delete one", "Delete all chats"])
def test_a_chat_that_was_not_written_is_deleted(
    page: Any, server: Server, pages: Pages, button: str
) -> None:
    answers_with(page, "fine")
    new_chat(page, "one")
    other = same_chat(pages, page, "one")
    page.evaluate(STUCK)
    ask(page, "two", 2)
    page.goto("about:blank")
    if button == "Delete one":
        other.locator(".chat-list li").hover()
    else:
        other.get_by_role("button", name="Settings").click()
    other.get_by_role("button", name=button).click()
    other.locator("#confirm-yes").click()
    no_chats(other)
    page.goto(server.url)
    no_chats(page)


def test_a_chat_is_renamed_and_deleted(page: Any) -> None:
    answers_with(page, "fine")
    new_chat(page, "question")
    row = page.locator(".chat-list li")
    row.hover()
    page.get_by_role("button", name="Rename question").click()
    page.get_by_label("Name of the chat").fill("<b>name</b>")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="<b>name</b>").wait_for()
    page.reload()
    page.get_by_role("link", name="<b>name</b>").wait_for()
    row.hover()
    page.get_by_role("button", name="Delete").click()
    page.locator("#confirm").get_by_role("button", name="Cancel").click()
    settled(page)
    expect(page.locator(".message")).to_have_count(2)
    row.hover()
    page.get_by_role("button", name="Delete").click()
    page.locator("#confirm-yes").click()
    page.get_by_role("button", name="Repeat code").wait_for()
    no_chats(page)
    page.reload()
    page.get_by_role("button", name="Repeat code").wait_for()
    no_chats(page)


def test_chats_become_a_file_and_come_back(page: Any, tmp_path: Path) -> None:
    thoughts = (
        event_of("Hm, ", reasoning_content="Hm, "),
        event_of("so.", True, reasoning_content="so."),
    )
    body = events(*thoughts, event_of("One "), event_of("two.", True), last())
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body))
    new_chat(page, "question")
    expect(page.locator(NAMES)).to_have_text("question")
    with page.expect_download() as started:
        page.get_by_role("button", name="Export all").click()
    path = tmp_path / "chats.json"
    started.value.save_as(path)
    assert started.value.suggested_filename.startswith("ngramspec-chats-")
    saved = json.loads(path.read_text())
    assert [message["content"] for message in saved["chats"][0]["messages"]] == [
        "question",
        "One two.",
    ]
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("button", name="Delete all chats").click()
    page.locator("#confirm-yes").click()
    no_chats(page)
    take_file(page, path)
    page.get_by_text("One two.").wait_for()
    expect(page.locator(".assistant .accepted")).to_have_text(["so.", "two."])
    expect(page.locator(NAMES)).to_have_text("question")
    take_file(page, path)  # again: a second chat, nothing is overwritten
    expect(page.locator(NAMES)).to_have_count(2)


def test_a_file_is_named_after_the_users_day(page: Any) -> None:
    answers_with(page, "fine")
    new_chat(page, "question")
    session = page.context.new_cdp_session(page)
    names = set()
    for zone in ("Etc/GMT-14", "Etc/GMT+12"):  # 26 hours apart
        session.send("Emulation.setTimezoneOverride", {"timezoneId": zone})
        with page.expect_download() as started:
            page.get_by_role("button", name="Export all").click()
        names.add(started.value.suggested_filename)
    assert len(names) == 2


def test_files_that_hold_no_chats_are_refused(page: Any, tmp_path: Path) -> None:
    head = {"format": "ngramspec chats", "version": 1}
    wrong = {
        "not JSON": "{",
        "holds no chats": json.dumps({"chats": [{"messages": []}]}),
        "messages of another shape": json.dumps(
            {**head, "chats": [{"messages": [{"role": "user", "content": {"x": 1}}]}]}
        ),
        "Chat 2": json.dumps(
            {**head, "chats": [{"messages": []}, {"messages": [{"role": "root", "content": "x"}]}]}
        ),
        "This file holds no chats": json.dumps({**head, "chats": []}),
    }
    for words, text in wrong.items():
        path = tmp_path / "wrong.json"
        path.write_text(text)
        take_file(page, path)
        page.locator("#notice", has_text=words).wait_for()
    no_chats(page)
    # members of another shape are left out, and break nothing
    odd = {"runs": "x", "facts": {"tokens": "many"}, "calls": [{"name": 1}], "samples": [["a"]]}
    message = {"role": "assistant", "content": "kept", "attachments": 5, "other": [], **odd}
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({**head, "chats": [{"messages": [message], "id": "../x"}]}))
    take_file(page, path)
    page.get_by_text("kept").wait_for()
    expect(page.locator(NAMES)).to_have_text("New chat")  # and none of the refused ones


def test_an_answer_goes_on_while_another_chat_is_open(page: Any) -> None:
    page.evaluate(SLOW)
    send(page, "slow question")
    page.get_by_text("begun").wait_for()
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".message")).to_have_count(0)
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    page.evaluate("() => window.go()")
    page.get_by_role("link", name="slow question").click()
    page.get_by_text("begun and ended").wait_for()


def test_a_chat_that_is_deleted_while_it_is_answered_stays_away(page: Any) -> None:
    answers_with(page, "fine")
    ask(page, "question")
    page.evaluate(SLOW)
    send(page, "another")
    page.get_by_text("begun").wait_for()
    page.locator(".chat-list li").hover()
    page.get_by_role("button", name="Delete question").click()
    page.locator("#confirm-yes").click()
    page.get_by_role("button", name="Repeat code").wait_for()
    page.evaluate("() => window.go?.()")  # the answer would end now, and be kept before "next"
    send(page, "next")
    page.get_by_text("begun").wait_for()
    page.evaluate("() => window.go()")
    finished(page)
    page.reload()
    expect(page.locator(NAMES)).to_have_text(["next"])


def test_a_chat_open_in_two_tabs_is_the_same_in_both(page: Any, pages: Pages) -> None:
    answers_with(page, "fine")
    new_chat(page, "one")
    other = same_chat(pages, page, "one")
    answers_with(other, "good")
    send(other, "two")
    page.locator(".message.user", has_text="two").wait_for()
    page.get_by_text("good").wait_for()
    send(page, "three")
    other.locator(".message.user", has_text="three").wait_for()
    expect(other.locator(".message")).to_have_count(6)
    other.locator(".chat-list li").hover()
    other.get_by_role("button", name="Delete one").click()
    other.locator("#confirm-yes").click()
    page.get_by_role("button", name="Repeat code").wait_for()  # it is gone here, too
    send(page, "four")
    page.get_by_role("link", name="four").wait_for()
    expect(page.locator(NAMES)).to_have_text(["four"])


def test_what_another_tab_deletes_or_could_not_send_is_kept_when_it_goes_on(
    page: Any, server: Server, pages: Pages
) -> None:
    other = pages.open(server.url)
    answers_with(other, "good")
    new_chat(other, "one")
    page.get_by_role("link", name="one").wait_for()
    other.get_by_role("button", name="Settings").click()
    other.get_by_role("button", name="Delete all chats").click()
    other.locator("#confirm-yes").click()
    no_chats(page)
    refused = {"error": {"message": "no room"}}
    page.route("**/v1/chat/completions", lambda r: r.fulfill(status=503, json=refused))
    send(page, "two")
    page.get_by_text("no room").wait_for()
    answers_with(page, "fine")
    send(page, "two")
    other.get_by_role("link", name="two").click()
    other.locator(".message.user", has_text="two").wait_for()
    ask(other, "three", 2)
    other.reload()
    other.locator(".message.user", has_text="three").wait_for()


def test_an_answer_that_comes_in_elsewhere_is_shown_when_it_is_complete(
    page: Any, pages: Pages
) -> None:
    answers_with(page, "fine")
    new_chat(page, "one")
    other = same_chat(pages, page, "one")
    page.evaluate(SLOW)
    send(page, "two")
    page.get_by_text("begun").wait_for()
    page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
    page.locator(".chat-list li").hover()
    page.get_by_role("button", name="Rename one").click()  # it is kept meanwhile
    page.get_by_label("Name of the chat").fill("uno")
    page.keyboard.press("Enter")
    other.get_by_role("link", name="uno").wait_for()
    expect(other.locator("#messages")).not_to_contain_text("Broken off")
    page.evaluate("() => window.go()")
    other.get_by_text("begun and ended").wait_for()


@pytest.mark.parametrize("way", ["at once", "at the end"])
def test_a_chat_that_cannot_be_kept_is_told(server: Server, pages: Pages, way: str) -> None:
    page = pages.open("about:blank")
    failing = {
        "at once": """IDBObjectStore.prototype.put = () => {
            throw new DOMException('full', 'QuotaExceededError');
        };""",
        "at the end": """const commit = IDBTransaction.prototype.commit;
        IDBTransaction.prototype.commit = function () {
            this.abort();
        };""",
    }
    page.add_init_script(failing[way])
    page.goto(server.url)
    answers_with(page, "fine")
    send(page, "question")
    page.locator(".assistant .facts").wait_for()  # it is told of the question alone, too
    page.locator("#notice", has_text="could not keep this chat").wait_for()
    if way == "at once":
        expect(page.locator("#notice")).to_contain_text("no room left for this page. Delete other")
    page.reload()
    no_chats(page)


def test_the_focus_stays_in_the_list_when_a_chat_is_saved(page: Any) -> None:
    answers_with(page, "fine")
    new_chat(page, "one")
    page.evaluate(SLOW)
    send(page, "two")
    page.get_by_text("begun").wait_for()
    busy = page.locator(".chat-list li.busy")
    expect(busy).to_have_count(1)
    link = page.get_by_role("link", name="one")
    link.focus()
    page.evaluate("() => window.go()")
    finished(page, 2)
    expect(busy).to_have_count(0)
    expect(link).to_be_focused()


def test_the_focus_stays_in_the_list_when_a_chat_is_renamed_or_deleted(page: Any) -> None:
    answers_with(page, "fine")
    new_chat(page, "one")
    row = page.locator(".chat-list li")
    for key in ("Enter", "Escape"):
        row.locator("a").focus()
        row.get_by_role("button", name="Rename").press("Enter")
        row.locator("input").press(key)
        expect(row.locator("a")).to_be_focused()
    row.get_by_role("button", name="Delete").press("Enter")
    page.locator("#confirm-yes").press("Enter")
    no_chats(page)
    expect(page.locator("#new-chat")).to_be_focused()


def test_a_key_that_composes_a_name_does_not_end_it(page: Any) -> None:
    answers_with(page, "fine")
    new_chat(page, "one")
    row = page.locator(".chat-list li")
    row.locator("a").focus()
    row.get_by_role("button", name="Rename").press("Enter")
    for key in ("Enter", "Escape"):
        row.locator("input").dispatch_event("keydown", {"key": key, "isComposing": True})
        expect(row.locator("input")).to_be_focused()


def test_a_title_ends_with_a_whole_character(page: Any) -> None:
    answers_with(page, "fine")
    new_chat(page, 58 * "x" + "\N{GRINNING FACE} and more")
    expect(page.locator(NAMES)).to_have_text(58 * "x" + "\N{GRINNING FACE}…")


def test_a_new_chat_forgets_the_old_one(page: Any) -> None:
    bodies = bodies_of(page)
    answers_with(page, "fine")
    ask(page, "one")
    page.keyboard.press("Control+Shift+O")
    expect(page.locator(".message")).to_have_count(0)
    ask(page, "two")
    assert [message["content"] for message in bodies[1]["messages"]] == ["two"]


def test_without_a_database_chats_live_until_the_page_is_closed(
    server: Server, pages: Pages
) -> None:
    page = pages.open("about:blank")
    page.add_init_script("IDBFactory.prototype.open = () => { throw new Error('none'); };")
    page.goto(server.url)
    answers_with(page, "fine")
    new_chat(page, "one")
    new_chat(page, "two")
    page.get_by_role("link", name="one").click()
    page.locator(".message.user", has_text="one").wait_for()
    expect(page.locator(NAMES)).to_have_text(["two", "one"])
    page.reload()
    page.locator("#welcome").wait_for()
    no_chats(page)

"""The field for messages: attached files, the choice of drafters, the context."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from helpers.browser import Pages, Server, answers_with, ask, bodies_of, expect, send, settled, wait

DROP = """([name, bytes, kind]) => {
    const data = new DataTransfer();
    data.items.add(new File([new Uint8Array(bytes)], name));
    const target = document.getElementById('prompt');
    const options = {bubbles: true, cancelable: true};
    target.dispatchEvent(kind === 'paste'
        ? new ClipboardEvent('paste', {...options, clipboardData: data})
        : new DragEvent('drop', {...options, dataTransfer: data}));
}"""


def choose(page: Any, *values: str) -> None:
    page.locator("#drafts summary").click()
    for value in values:
        page.locator(f"#drafts input[value='{value}']").check()
    page.keyboard.press("Escape")


def test_files_are_attached_dropped_and_pasted(page: Any, tmp_path: Path) -> None:
    answers_with(page, "fine")
    path = tmp_path / "notes.py"
    path.write_text("x = 1\r\n```\n")
    page.locator("#attach-files").set_input_files(path)
    page.get_by_text("notes.py").wait_for()
    page.evaluate(DROP, ["dropped.txt", list(b"dropped text"), "drop"])
    page.evaluate(DROP, ["pasted.txt", list("pästed".encode()), "paste"])
    page.get_by_role("button", name="Remove dropped.txt").wait_for()
    page.get_by_role("button", name="Remove pasted.txt").wait_for()
    page.get_by_role("button", name="Remove dropped.txt").click()
    bodies = bodies_of(page)
    ask(page, "Look:")
    sent = bodies[0]["messages"][0]["content"]
    assert sent == (
        "Look:\n\nnotes.py:\n\n````py\nx = 1\n```\n````\n\npasted.txt:\n\n```txt\npästed\n```"
    )
    expect(page.locator("#attachments")).to_be_hidden()
    file = page.locator(".message.user .file").first
    file.locator("summary").click()
    expect(file.locator("pre")).to_contain_text("x = 1")
    page.reload()
    page.locator(".message.user .file").first.wait_for()


def test_files_that_are_no_text_or_too_large_are_refused(page: Any) -> None:
    notice = page.locator("#notice")
    for name, content, words in (
        ("photo.png", [0x89, 0x50, 0xFF, 0xFE], "photo.png is not a text file in UTF-8."),
        ("zeros.bin", [0, 0, 0], "zeros.bin is not a text file in UTF-8."),
        ("large.txt", (1 << 20) + 1, "large.txt is too large"),  # as many zeros
    ):
        page.evaluate(DROP, [name, content, "drop"])
        notice.get_by_text(words).wait_for()
    expect(page.locator("#attachments")).to_be_hidden()


def test_a_file_that_is_refused_is_told_in_view(page: Any) -> None:
    answers_with(page, 60 * "text\n\n")
    ask(page, "hello")
    page.locator("#scroll").evaluate("e => e.scrollTop = 0")
    file = {"name": "a.bin", "mimeType": "application/octet-stream", "buffer": b"\x00"}
    page.locator("#attach-files").set_input_files(file)
    expect(page.get_by_text("is not a text file")).to_be_in_viewport()


def test_a_message_that_is_refused_comes_back_with_its_files(page: Any) -> None:
    page.evaluate(DROP, ["a.txt", list(b"a"), "drop"])
    page.get_by_text("a.txt").wait_for()
    refused = {"error": {"message": "no"}}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=400, json=refused))
    ask(page, "hello")
    expect(page.get_by_label("Message", exact=True)).to_have_value("hello")
    expect(page.get_by_role("button", name="Remove a.txt")).to_be_visible()
    expect(page.locator(".message")).to_have_count(0)


def test_a_refused_message_stays_if_the_next_one_has_been_begun(page: Any) -> None:
    waiting: list[Any] = []
    page.route("**/v1/chat/completions", lambda route: waiting.append(route))
    send(page, "a long question")
    page.get_by_label("Message", exact=True).fill("and also")
    wait(page, lambda: waiting)
    waiting[0].fulfill(status=503, json={"error": {"message": "no room"}})
    page.get_by_text("no room").wait_for()
    expect(page.get_by_label("Message", exact=True)).to_have_value("and also")
    expect(page.locator(".message.user")).to_contain_text("a long question")
    page.reload()
    page.locator(".message.user", has_text="a long question").wait_for()


def test_text_that_comes_with_a_picture_is_pasted_as_text(page: Any) -> None:
    taken = page.evaluate(
        """() => {
            const data = new DataTransfer();
            data.setData('text/plain', 'a cell');
            const bytes = new Uint8Array([0x89, 0xff]);
            data.items.add(new File([bytes], 'image.png', {type: 'image/png'}));
            const event = new ClipboardEvent('paste',
                {bubbles: true, cancelable: true, clipboardData: data});
            document.getElementById('prompt').dispatchEvent(event);
            return event.defaultPrevented;
        }"""
    )
    assert not taken  # so the browser puts the text in
    settled(page)
    expect(page.locator("#notice")).to_be_hidden()


def test_what_the_server_offers_is_what_can_be_chosen(page: Any, pages: Pages) -> None:
    page.get_by_text("Drafts: ngram-mod, ngram-cache").wait_for()
    page.locator("#drafts summary").click()
    offered = page.locator("#drafts input[type=checkbox]").evaluate_all(
        "all => all.map(e => e.value)"
    )
    types = page.evaluate("async () => (await (await fetch('props')).json()).speculative.types")
    assert offered == types
    assert "suffix" in offered
    pages.shot(page, "drafts")
    page.keyboard.press("Escape")
    answers_with(page, "fine")
    bodies = bodies_of(page)
    ask(page, "one")
    choose(page, "suffix", "ngram-mod")
    ask(page, "two", 2)
    page.reload()
    page.get_by_text("Drafts: ngram-mod, suffix").wait_for()
    choose(page, "off")
    ask(page, "three", 3)
    choose(page, "")
    ask(page, "four", 4)
    asked = [body["speculative"] for body in bodies]
    spans = {"spans": True}
    assert asked == [spans, {**spans, "types": ["ngram-mod", "suffix"]},
                     {**spans, "enabled": False}, spans]  # fmt: skip


def test_a_server_that_offers_other_drafters_shows_those(server: Server, pages: Pages) -> None:
    page = pages.open("about:blank")

    def other(route: Any) -> None:
        props = route.fetch().json()
        props["speculative"] |= {"active": False, "drafters": [], "types": ["new-one"],
                                 "notes": ["nothing is named"]}  # fmt: skip
        route.fulfill(json=props)

    page.route("**/props", other)
    page.goto(server.url)
    page.get_by_text("Drafts: none").wait_for()
    page.locator("#drafts summary").click()
    expect(page.locator("#drafts input[type=checkbox]")).to_have_count(1)
    expect(page.get_by_label("new-one")).to_be_visible()
    expect(page.locator("#drafts")).to_contain_text("Note: nothing is named.")


def test_without_drafts_no_word_is_marked(page: Any) -> None:
    choose(page, "off")
    ask(page, "Repeat this text:\n\nOne two three.")
    expect(page.locator(".assistant .accepted")).to_have_count(0)
    expect(page.locator(".facts")).to_contain_text("no drafts")


def test_text_that_an_example_replaces_can_be_brought_back(page: Any) -> None:
    field = page.get_by_label("Message", exact=True)
    field.press_sequentially("hello")
    page.get_by_role("button", name="Repeat code").click()
    expect(field).to_have_value(re.compile("^Repeat this code"))
    page.keyboard.press("Control+Z")
    expect(field).to_have_value("hello")


def test_the_context_in_use_is_told(page: Any) -> None:
    expect(page.locator("#drafts-name")).to_contain_text("ngram-mod")  # the server is known
    expect(page.locator("#context")).to_have_attribute("title", "")  # nothing is in use yet
    ask(page, "Repeat this text:\n\nOne two three.")
    page.get_by_text("% of the context").wait_for()
    expect(page.locator("#context")).to_have_attribute("title", re.compile("of 2,048 tokens"))
    page.locator("#drafts-name").evaluate("e => e.textContent += ', another'.repeat(9)")
    assert page.locator("#context").evaluate("e => e.scrollWidth <= e.clientWidth")
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("#context")).to_have_text("")
    page.get_by_role("link", name="Repeat this text").click()
    page.get_by_text("% of the context").wait_for()

"""Settings of the page, the API key, and what the page does when the server cannot answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from helpers.browser import (
    KEY,
    Pages,
    Server,
    answers_with,
    ask,
    bodies_of,
    expect,
    finished,
    send,
    settled,
    until,
    wait,
)

TEXT = "#messages .assistant:last-child .text"


def test_settings_reach_the_server_and_stay(page: Any, pages: Pages) -> None:
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_label("Top-p")).to_have_attribute("placeholder", "0.95")  # the server's
    expect(page.get_by_label("Max tokens")).to_have_attribute("placeholder", "no limit")
    page.get_by_label("Temperature").fill("0.3")
    page.get_by_label("Max tokens").fill("40")
    page.get_by_label("Top-k").fill("7")
    page.get_by_label("Seed").fill("9")
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Further fields").fill('{"stop": ["END"], "stream": false}')
    expect(page.locator("#extra-error")).to_contain_text("The page sets stream itself")
    pages.shot(page, "settings")
    page.keyboard.press("Escape")
    page.reload()
    answers_with(page, "fine")
    bodies = bodies_of(page)
    ask(page, "hello")
    body = bodies[0]
    expected = {"temperature": 0.3, "max_tokens": 40, "top_k": 7, "seed": 9, "stop": ["END"],
                "stream": True}  # fmt: skip
    assert {name: body[name] for name in expected} == expected
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert "top_p" not in body
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("")
    page.get_by_label("Further fields").fill('{"stop": [')
    expect(page.locator("#extra-error")).to_contain_text("not a JSON object")
    page.keyboard.press("Escape")
    ask(page, "again", 2)
    assert "temperature" not in bodies[1]
    assert "stop" not in bodies[1]


def test_examples_are_answered_at_temperature_0(page: Any) -> None:
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("0.3")
    page.keyboard.press("Escape")
    answers_with(page, "fine")
    bodies = bodies_of(page)
    page.get_by_role("button", name="Rename a parameter").click()
    page.keyboard.press("Enter")
    finished(page)
    page.get_by_role("button", name="Answer again", exact=True).click()
    wait(page, lambda: len(bodies) == 2)
    finished(page)
    ask(page, "hello", 2)
    assert [body["temperature"] for body in bodies] == [0, 0, 0.3]


def test_tabs_leave_each_others_settings_alone(page: Any, server: Server, pages: Pages) -> None:
    other = pages.open(server.url)
    seen = "wanted => localStorage.getItem('ngramspec.settings')?.includes(wanted)"
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("0.3")
    until(other, seen, '"0.3"')
    other.get_by_role("button", name="Mark accepted words").click()
    other.get_by_role("button", name="Speed", exact=True).click()
    other.get_by_role("button", name="Settings").click()
    other.get_by_label("Top-k").fill("7")
    until(page, seen, '"7"')
    page.reload()
    other.reload()
    for one in (page, other):
        expect(one.locator("#temperature")).to_have_value("0.3")
        expect(one.locator("#top_k")).to_have_value("7")
        expect(one.locator("#marks")).to_have_attribute("aria-pressed", "false")
        expect(one.locator("#panel")).to_be_hidden()


def test_what_another_tab_sets_holds_at_once(page: Any, server: Server, pages: Pages) -> None:
    other = pages.open(server.url)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("0.3")
    page.get_by_label("Answer everything twice").check()
    expect(other.locator("#compare")).to_be_checked()
    bodies = bodies_of(other)
    answers_with(other, "fine")
    ask(other, "hello")
    assert bodies[0]["temperature"] == 0.3


def test_the_server_takes_what_the_page_sends(page: Any) -> None:
    page.get_by_role("button", name="Settings").click()
    values = {"Temperature": "0.1", "Top-k": "5", "Top-p": "0.9", "Min-p": "0", "Seed": "1"}
    for label, value in {**values, "Repeat penalty": "1.01", "Max tokens": "5"}.items():
        page.get_by_label(label).fill(value)
    page.get_by_role("button", name="Done").click()
    ask(page, "Repeat this text:\n\nOne two three four five six seven.")
    expect(page.locator("#notice")).to_be_hidden()
    expect(page.locator(".facts")).to_contain_text("Cut off")


def test_a_key_is_asked_for_and_stays_in_the_tab(locked: Server, pages: Pages) -> None:
    page = pages.open(locked.url)
    dialog = page.locator("#ask-key")
    dialog.wait_for()
    dialog.get_by_label("API key").fill("wrong")
    dialog.get_by_role("button", name="Use this key").click()
    dialog.get_by_text("does not know this API key").wait_for()
    pages.shot(page, "wrong-key")
    dialog.get_by_label("API key").fill(KEY)
    page.keyboard.press("Enter")
    page.get_by_text("Drafts: ngram-mod, ngram-cache").wait_for()
    expect(page.locator("#banner")).to_be_hidden()
    page.locator("#live").wait_for()
    ask(page, "Repeat this text:\n\nOne two three.")
    expect(page.locator(TEXT)).to_contain_text("One")
    assert page.evaluate("sessionStorage.getItem('ngramspec.key')") == KEY
    script = """async () => {
        const bases = await indexedDB.databases();
        const {everything} = await import('/page/store.js');
        return JSON.stringify([bases, await everything(), {...localStorage}, document.cookie]);
    }"""
    everything = page.evaluate(script)
    assert "One" in everything
    assert KEY not in everything


def test_a_key_of_any_characters_works(page: Any, server: Server) -> None:
    sent = page.evaluate(
        """async () => {
            const {key, read} = await import('/page/server.js');
            key.set('schlüssel-–-鍵');
            const seen = [];
            window.fetch = async (path, {headers}) => {
                seen.push(new Headers(headers).get('authorization'));
                return Response.json({});
            };
            await read('props');
            return seen[0];
        }"""
    )
    assert sent.encode("latin-1").decode() == "Bearer schlüssel-–-鍵"


def test_a_browser_that_stores_nothing_can_use_the_page(locked: Server, pages: Pages) -> None:
    page = pages.open("about:blank")
    page.add_init_script(
        """for (const name of ['sessionStorage', 'localStorage']) {
            Object.defineProperty(window, name, {get() {
                throw new DOMException('denied', 'SecurityError');
            }});
        }"""
    )
    page.goto(locked.url)
    page.locator("#ask-key").get_by_label("API key").fill(KEY)
    page.keyboard.press("Enter")
    page.get_by_text("Drafts: ngram-mod, ngram-cache").wait_for()
    expect(page.locator("#banner")).to_be_hidden()


def test_a_key_that_is_no_longer_valid_is_told(locked: Server, pages: Pages) -> None:
    page = pages.open(locked.url)
    dialog = page.locator("#ask-key")
    dialog.get_by_role("button", name="Later").click()
    expect(page.locator("#banner")).to_contain_text("requires an API key")
    ask(page, "hello")
    notice = page.locator("#notice")
    expect(notice).to_contain_text("API key")
    expect(page.get_by_label("Message", exact=True)).to_have_value("hello")  # for another try
    notice.get_by_role("button", name="Enter a key").click()
    field = page.locator("#key")
    expect(field).to_be_focused()
    field.fill(KEY)
    page.keyboard.press("Enter")
    page.get_by_text("Drafts: ngram-mod, ngram-cache").wait_for()
    expect(notice).to_be_hidden()


def test_live_figures_move(page: Any, pages: Pages) -> None:
    page.locator("#live").wait_for()
    code = "def area(width, height):\n    return width * height\n"
    ask(page, f"Repeat this code:\n\n```python\n{code}```")
    expect(page.locator("#per-step")).not_to_have_text("–")
    page.get_by_text("0 · idle").wait_for()
    expect(page.locator("#sources .fill")).not_to_have_count(0)
    expect(page.locator("#slots")).to_contain_text("of 2,048 tokens")
    expect(page.locator("#pools")).to_contain_text("cells")
    pages.shot(page, "live")


def test_figures_are_hidden_where_they_are_off(start: Callable[..., Server], pages: Pages) -> None:
    page = pages.open("about:blank")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.install()
    page.goto(start("--no-slots", exact=False).url)
    page.get_by_text("Drafts: ngram-mod, ngram-cache").wait_for()
    page.clock.run_for(3000)  # there would be a reading every second
    settled(page)
    expect(page.locator("#live")).to_be_hidden()
    expect(page.locator("#panel")).to_be_visible()  # the chat's own figures
    assert not [url for url in asked if url.endswith("/v1/ngramspec/live")]


def test_a_full_context_is_told_with_what_to_do(page: Any) -> None:
    ask(page, "word " * 3000)
    for words in ("context", "new chat"):
        expect(page.locator("#notice")).to_contain_text(words)
    expect(page.locator(".message")).to_have_count(0)  # the long message is not sent again
    expect(page.get_by_label("Message", exact=True)).to_have_value(re.compile("^word word"))
    ask(page, "Repeat this text:\n\nOne two three.")
    expect(page.locator("#notice")).to_be_hidden()


def test_a_server_that_is_away_is_waited_for(server: Server, pages: Pages) -> None:
    page = pages.open("about:blank")
    page.route("**/props", lambda route: route.abort())
    page.clock.install()
    page.goto(server.url)
    page.get_by_text("The server does not answer. Trying again").wait_for()
    page.route("**/v1/chat/completions", lambda route: route.abort())
    ask(page, "hello")
    expect(page.locator("#notice")).to_contain_text("does not answer")
    expect(page.get_by_label("Message", exact=True)).to_have_value("hello")
    loading = {"error": {"message": "Loading model", "code": 503}}
    page.unroute("**/props")
    page.route("**/props", lambda route: route.fulfill(status=503, json=loading))
    again = 2000  # milliseconds
    notice = page.get_by_text("not ready: Loading model")
    wait(page, lambda: page.clock.fast_forward(again) or notice.is_visible())
    page.unroute_all()
    wait(page, lambda: page.clock.fast_forward(again) or page.locator("#banner").is_hidden())
    ask(page, "Repeat this text:\n\nOne two three.")
    expect(page.locator("#notice")).to_be_hidden()
    pages.complaints[:] = [text for text in pages.complaints if "ERR_FAILED" not in text]


def test_an_answer_that_breaks_off_stays(page: Any) -> None:
    body = 'data: {"choices": [{"delta": {"content": "half an"}}]}\n\n'
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body))
    reload_when_complete = """() => {
        sessionStorage.left = "";
        const look = () => {
            const busy = document.body.classList.contains("busy");
            if (busy || document.getElementById("notice").hidden || sessionStorage.left) return;
            sessionStorage.left = document.getElementById("notice").innerText;
            location.reload();
        };
        new MutationObserver(look).observe(document.body, { attributes: true });
    }"""
    page.evaluate(reload_when_complete)
    with page.expect_event("load"):
        send(page, "hello")
    expect(page.locator(TEXT)).to_have_text("half an")
    assert "connection to the server was lost" in page.evaluate("() => sessionStorage.left")
    page.get_by_role("button", name="Continue").wait_for()


def test_the_address_names_a_chat_before_it_is_saved(page: Any) -> None:
    page.route("**/v1/chat/completions", lambda route: None)
    page.get_by_label("Message", exact=True).fill("a question")
    # Within one task, so that nothing can have been saved.
    named = "() => (document.getElementById('send').click(), location.hash)"
    assert len(page.evaluate(named)) > 1


def test_a_page_that_is_left_keeps_the_question(page: Any) -> None:
    page.route("**/v1/chat/completions", lambda route: None)  # the answer does not come
    send(page, "a question")
    expect(page).to_have_url(re.compile("#."))
    page.reload()
    expect(page.locator("#messages .user")).to_contain_text("a question")
    page.get_by_role("button", name="Continue").wait_for()
    expect(page.get_by_text("Broken off.")).to_be_visible()


def test_a_model_without_a_chat_template_continues_texts(server: Server, pages: Pages) -> None:
    page = pages.open("about:blank")

    def plain(route: Any) -> None:
        route.fulfill(json={**route.fetch().json(), "chat_template": ""})

    page.route("**/props", plain)
    page.goto(server.url)
    page.get_by_placeholder("no chat template").wait_for()
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Max tokens").fill("20")
    page.get_by_role("button", name="Done").click()
    bodies = bodies_of(page)
    ask(page, "def area(width, height):\n    return width * height\n\n\ndef area(width")
    ask(page, "\n\ndef", 2)
    assert "messages" not in bodies[0]
    assert bodies[1]["prompt"].startswith(bodies[0]["prompt"])
    assert bodies[1]["prompt"].endswith("\n\ndef")
    assert len(bodies[1]["prompt"]) > len(bodies[0]["prompt"]) + len("\n\ndef")
    expect(page.locator("#notice")).to_be_hidden()

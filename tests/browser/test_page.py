"""The page in a browser, against real servers: chat, stop, keys, settings, live figures."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from helpers.browser import KEY, Pages, Server, finished, send

CODE = '''def area(width, height):
    """Return the area of a rectangle."""
    return width * height
'''
REPEAT = f"Repeat this code:\n\n```python\n{CODE}```"
TEXT = "#messages .assistant:last-child .text"


def live(server: Server) -> dict[str, Any]:
    return json.loads(server.get("/v1/ngramspec/live"))


def test_accepted_tokens_look_different_from_sampled_ones(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    send(page, REPEAT)
    finished(page)
    pages.shot(page, "answer")
    assert CODE in page.locator(TEXT).inner_text()
    looks = """element => {
        const style = getComputedStyle(element);
        return [style.color, style.textDecorationLine];
    }"""
    accepted = page.locator(f"{TEXT} .accepted").first.evaluate(looks)
    sampled = page.locator(f"{TEXT} .sampled").first.evaluate(looks)
    assert accepted[0] != sampled[0]
    assert (accepted[1], sampled[1]) == ("underline", "none")
    assert page.locator(".legend").is_visible()
    words = page.locator(".assistant .facts").inner_text().replace("\u00a0", " ")
    for part in ("tokens", "% from drafts", "tokens per step", "tokens/s"):
        assert part in words


def test_text_arrives_while_the_answer_is_made(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    page.evaluate("""() => {
        window.lengths = new Set();
        const count = () => {
            const text = document.querySelector('.assistant.busy .text');
            if (text) window.lengths.add(text.textContent.length);
        };
        const all = {subtree: true, childList: true, characterData: true};
        new MutationObserver(count).observe(document.getElementById('messages'), all);
    }""")
    page.get_by_role("button", name="Repeat code").click()
    page.keyboard.press("Enter")
    finished(page)
    assert page.evaluate("() => window.lengths.size") > 3


def test_a_second_message_knows_the_first(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    bodies: list[Any] = []
    page.on("request", lambda r: r.method == "POST" and bodies.append(r.post_data_json))
    send(page, REPEAT)
    finished(page)
    send(page, REPEAT)
    finished(page, 2)
    roles = [message["role"] for message in bodies[1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    assert CODE in bodies[1]["messages"][1]["content"]
    page.get_by_role("button", name="New chat").click()
    assert page.locator(".message").count() == 0
    assert page.get_by_role("button", name="Repeat code").is_visible()


def test_a_new_chat_forgets_an_answer_that_still_comes_in(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    bodies: list[Any] = []
    page.on("request", lambda r: r.method == "POST" and bodies.append(r.post_data_json))
    send(page, REPEAT)
    page.locator(f"{TEXT} span").first.wait_for()
    page.get_by_role("button", name="New chat").click()
    page.get_by_role("button", name="Send").wait_for()
    send(page, REPEAT)
    finished(page)
    assert page.locator(".message").count() == 2
    assert [message["role"] for message in bodies[1]["messages"]] == ["user"]


CLICK = "buttons => buttons.forEach(button => button.click())"  # those that are still there


def test_stop_ends_the_answer_and_frees_the_slot(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Draft tokens ahead").uncheck()  # slower, so that there is time to stop it
    page.get_by_label("Max tokens").fill("1500")
    page.get_by_role("button", name="Done").click()
    code = "".join(CODE.replace("area", f"area_{i}") for i in range(16))
    presses = (
        lambda: page.get_by_role("button", name="Stop").evaluate_all(CLICK),
        lambda: page.keyboard.press("Escape"),
    )
    for press in presses:
        for _ in range(10):  # an answer may be over before the button is pressed
            send(page, f"Repeat this code:\n\n```python\n{code}```")
            page.locator(f"{TEXT} .sampled").first.wait_for()
            press()
            page.get_by_role("button", name="Send").wait_for()
            if page.locator(".assistant .facts").last.inner_text() == "Stopped.":
                break
            page.get_by_role("button", name="New chat").click()
        assert page.locator(".assistant .facts").last.inner_text() == "Stopped."
        end = time.monotonic() + 5
        while any(slot["state"] != "idle" for slot in live(server)["slots"]):
            assert time.monotonic() < end, "the slot is still busy"
            time.sleep(0.02)
        assert "area_15" not in page.locator(TEXT).last.inner_text()
    assert 'finished_reason="abort",' in server.get("/metrics")
    assert page.get_by_label("Message", exact=True).evaluate("e => e === document.activeElement")


def test_a_wrong_key_is_told_and_the_right_one_works(locked: Server, pages: Pages) -> None:
    page = pages.open(locked.url)
    note = page.locator("#live-note")
    note.wait_for()
    assert "need an API key" in note.inner_text()
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="Done").click()
    send(page, REPEAT)
    alert = page.get_by_role("alert")
    alert.wait_for()
    assert "API key" in alert.inner_text()
    pages.shot(page, "wrong-key")
    assert page.get_by_label("Message", exact=True).input_value() == REPEAT  # for another try
    alert.get_by_role("button", name="Enter a key").click()
    assert page.get_by_label("API key").evaluate("e => e === document.activeElement")
    page.get_by_label("API key").fill(KEY)
    page.keyboard.press("Enter")
    page.locator("#live-body").wait_for()
    send(page, REPEAT)
    finished(page, 2)
    assert CODE in page.locator(TEXT).inner_text()
    assert page.evaluate("sessionStorage.getItem('ngramspec.key')") == KEY
    assert KEY not in page.evaluate("JSON.stringify(localStorage) + document.cookie")


def test_settings_reach_the_server_and_stay_for_the_tab(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("0.7")
    page.get_by_label("Max tokens").fill("40")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("ngram-cache").check()
    page.get_by_label("ngram-simple").check()
    page.get_by_label("System prompt").fill("Be brief.")
    pages.shot(page, "settings")
    page.keyboard.press("Escape")
    page.reload()
    bodies: list[Any] = []
    page.on("request", lambda r: r.method == "POST" and bodies.append(r.post_data_json))
    send(page, REPEAT)
    finished(page)
    body = bodies[0]
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (0.7, 40, 7)
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert body["speculative"]["types"] == ["ngram-simple", "ngram-cache"]
    assert page.locator(".error").count() == 0


def test_without_drafts_no_token_is_accepted(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Draft tokens ahead").uncheck()
    assert page.get_by_label("ngram-mod").is_disabled()
    page.get_by_role("button", name="Done").click()
    send(page, REPEAT)
    finished(page)
    assert page.locator(f"{TEXT} .sampled").count() == 1
    assert page.locator(f"{TEXT} .accepted").count() == 0


def test_live_figures_move(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    page.locator("#live-body").wait_for()
    before = live(server)
    send(page, REPEAT)
    finished(page)
    after = live(server)
    for name in ("emitted_tokens", "steps", "draft_tokens", "accepted_tokens"):
        assert after[name] > before[name]
    page.wait_for_function("() => document.getElementById('per-step').textContent !== '–'")
    page.get_by_text("0 · idle").wait_for()
    assert page.locator("#sources .fill").count() == len(after["sources"]) > 0
    assert "of 2,048 tokens" in page.locator("#slots").inner_text()
    assert "cells" in page.locator("#pools").inner_text()
    pages.shot(page, "live")


def test_the_panel_says_when_figures_are_off(start: Callable[..., Server], pages: Pages) -> None:
    server = start()
    page = pages.open(server.url)
    page.locator("#live-note").wait_for()
    assert "--slots" in page.locator("#live-note").inner_text()
    assert not page.locator("#live-body").is_visible()
    send(page, REPEAT)
    finished(page)  # the chat works all the same
    assert CODE in page.locator(TEXT).inner_text()


def test_an_error_of_the_server_is_shown_and_forgotten(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    send(page, "word " * 3000)
    page.get_by_role("alert").wait_for()
    assert "context" in page.get_by_role("alert").inner_text()
    send(page, REPEAT)
    finished(page, 2)
    assert CODE in page.locator(TEXT).inner_text()  # the long message is not sent again

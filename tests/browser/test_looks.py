"""The page's safety and looks: text stays text, contrast, dark mode, phones, keyboard."""

from __future__ import annotations

import json
from typing import Any

import pytest

from helpers.browser import Pages, Server, finished, send

PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 800}
ATTACK = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>&lt;b&gt;"
CODE = "def area(width, height):\n    return width * height\n"
REPEAT = f"Repeat this code:\n\n```python\n{CODE}```"
CONTRAST = """element => {
    const parse = text => text.match(/[\\d.]+/g).map(Number);
    const luminance = text => {
        const [r, g, b] = parse(text).map(v => v / 255)
            .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    let back = element;
    const solid = e => (parse(getComputedStyle(e).backgroundColor)[3] ?? 1) === 1;
    while (!solid(back)) back = back.parentElement;
    const pair = [getComputedStyle(element).color, getComputedStyle(back).backgroundColor];
    const [high, low] = pair.map(luminance).sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
}"""


def events(*values: dict[str, Any]) -> str:
    return "".join(f"data: {json.dumps(value)}\n\n" for value in values) + "data: [DONE]\n\n"


def fits(page: Any) -> bool:
    """Tell whether nothing has to be scrolled sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


@pytest.fixture(params=["light", "dark"])
def dark(request: pytest.FixtureRequest) -> bool:
    return request.param == "dark"


def test_text_of_people_and_models_stays_text(server: Server, pages: Pages) -> None:
    page = pages.open("about:blank")
    span = {"speculative": {"accepted": 1, "spans": [[ATTACK, True], [ATTACK, False]]}}
    answer = events({"choices": [{"delta": {"content": ATTACK * 2}}], **span})
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=answer))
    models = {"data": [{"id": ATTACK}]}
    page.route("**/v1/models", lambda route: route.fulfill(json=models))
    page.goto(server.url)
    send(page, ATTACK)
    finished(page)
    assert page.locator(".user .text").inner_text() == ATTACK
    assert page.locator(".assistant .text").inner_text() == ATTACK * 2
    assert page.locator("#model").inner_text() == ATTACK
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main script").count() == 0


def test_text_of_errors_and_figures_stays_text(server: Server, pages: Pages) -> None:
    page = pages.open("about:blank")
    refused = events({"error": {"message": ATTACK}})
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=refused))
    source = {"name": ATTACK, "drafts": 1, "draft_tokens": 2, "accepted_tokens": 1}
    slot = {"id": 0, "state": ATTACK, "tokens": 1}
    counts = dict.fromkeys(("steps", "emitted_tokens", "draft_tokens", "accepted_tokens"), 1)
    figures = {"time": 1.0, "context": 8, "queue": 0, "pools": [], **counts}
    figures |= {"slots": [slot], "sources": [source]}
    page.route("**/v1/ngramspec/live", lambda route: route.fulfill(json=figures))
    page.goto(server.url)
    send(page, "hello")
    finished(page)
    assert page.get_by_role("alert").inner_text() == ATTACK
    page.locator("#live-body").wait_for()
    assert ATTACK in page.locator("#sources").inner_text()
    assert ATTACK in page.locator("#slots").inner_text()
    assert page.evaluate("window.hacked") is None


def test_nothing_but_the_pages_own_files_is_loaded(server: Server, pages: Pages) -> None:
    page = pages.open("about:blank")
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    response = page.goto(server.url)
    page.locator("#live-body").wait_for()
    assert [url for url in urls if not url.startswith((server.url, "data:"))] == []
    headers = response.headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert page.locator("script:not([src]), style, [style]:not(.fill)").count() == 0


def test_text_is_readable_in_both_modes(server: Server, pages: Pages, dark: bool) -> None:
    page = pages.open(server.url, dark=dark)
    page.locator("#live-body").wait_for()
    send(page, REPEAT)
    finished(page)
    pages.shot(page, "dark" if dark else "light")
    back = page.locator("body").evaluate("e => getComputedStyle(e).backgroundColor")
    assert (int(back[4:].split(",")[0]) < 60) == dark
    texts = (".assistant .accepted", ".assistant .sampled", ".user .text", ".who", ".facts",
             ".hint", ".legend", ".model", "#live dt", "#live dd", ".caption", "#send")  # fmt: skip
    for selector in texts:
        assert page.locator(selector).first.evaluate(CONTRAST) >= 4.5, selector
    page.get_by_role("button", name="Settings").click()
    for selector in ("dialog label", "dialog .note", "dialog legend"):
        assert page.locator(selector).first.evaluate(CONTRAST) >= 4.5, selector


def test_a_phone_never_scrolls_sideways(server: Server, pages: Pages) -> None:
    page = pages.open(server.url, **PHONE)
    page.locator("#live-brief").wait_for()
    assert fits(page)
    pages.shot(page, "phone-welcome")
    long = "x" * 300
    answer = events({"speculative": {"accepted": 1, "spans": [[long, True]]}})
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=answer))
    send(page, long)
    finished(page)
    page.unroute_all()
    send(page, REPEAT)
    finished(page, 2)
    assert fits(page)
    pages.shot(page, "phone-answer")
    page.locator("#live summary").click()
    page.locator("#sources").wait_for()
    assert fits(page)
    pages.shot(page, "phone-live")
    page.locator("#live summary").click()
    page.get_by_role("button", name="Settings").click()
    assert fits(page)
    box = page.locator("#settings").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= PHONE["width"]
    pages.shot(page, "phone-settings")


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_the_message_field_is_always_in_view(
    server: Server, pages: Pages, size: dict[str, int]
) -> None:
    page = pages.open(server.url, **size)
    for _ in range(2):
        send(page, REPEAT)
        finished(page)
        box = page.get_by_label("Message", exact=True).bounding_box()
        assert box["y"] > 0
        assert box["y"] + box["height"] <= size["height"]


def test_the_keyboard_reaches_everything(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    page.locator("#live-body").wait_for()
    seen = set()
    for _ in range(14):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    wanted = {"new-chat", "open-settings", "scroll", "prompt", "send", "Repeat code"}
    assert wanted <= seen
    page.locator("#open-settings").focus()
    page.keyboard.press("Enter")
    assert page.locator("#settings").is_visible()
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "open-settings"


def test_a_screen_reader_hears_of_the_answer(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    assert page.get_by_role("log").get_attribute("aria-label") == "Conversation"
    send(page, REPEAT)
    finished(page)
    assert page.get_by_role("status").inner_text() == "Answer complete."
    assert page.get_by_role("log").get_attribute("aria-busy") == "false"
    unnamed = """() => [...document.querySelectorAll('button, input, textarea, summary')]
        .filter(e => !(e.textContent || e.ariaLabel || e.labels?.length)).map(e => e.id)"""
    assert page.evaluate(unnamed) == []

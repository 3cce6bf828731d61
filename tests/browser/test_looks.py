"""The page's safety and looks: text stays text, contrast, dark mode, phones, keyboard."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from helpers.browser import (
    Pages,
    Server,
    answers_with,
    ask,
    expect,
    failed_picture,
    send,
    settled,
    until,
    wait,
)

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


def fits(page: Any) -> None:
    """Check that nothing has to be scrolled sideways."""
    until(page, "() => document.documentElement.scrollWidth <= innerWidth")


@pytest.fixture(params=["light", "dark"])
def dark(request: pytest.FixtureRequest) -> bool:
    return request.param == "dark"


def show_figures(page: Any, server: Server, sources: list[dict[str, Any]], state: str) -> None:
    """Open the page with these live figures instead of the server's."""
    drafted = {"drafts": 1, "draft_tokens": 2, "accepted_tokens": 1}
    slot = {"id": 0, "state": state, "tokens": 1}
    counts = dict.fromkeys(("steps", "emitted_tokens", "draft_tokens", "accepted_tokens"), 1)
    figures = {"time": 1.0, "context": 8, "queue": 0, "pools": [], **counts}
    figures |= {"slots": [slot], "sources": [drafted | source for source in sources]}
    page.route("**/v1/ngramspec/live", lambda route: route.fulfill(json=figures))
    page.goto(server.url)
    page.locator("#live").wait_for()


def test_the_name_of_an_option_is_not_broken(page: Any) -> None:
    option = page.locator("#welcome code")
    option.wait_for()
    assert option.evaluate("e => e.getClientRects().length") == 1


def test_time_that_a_drafter_lost_is_not_called_saved(server: Server, pages: Pages) -> None:
    page = pages.open("about:blank")
    seconds = {"none": None, "won": 1.26, "lost": -1.26, "even": -0.01}
    sources = [{"name": name, "saved_seconds": value} for name, value in seconds.items()]
    show_figures(page, server, sources, "idle")
    share = "50 % of 2 tokens"
    expect(page.locator("#sources .words span:last-child")).to_have_text(
        [share, f"{share}, 1.3 s saved", f"{share}, 1.3 s lost", f"{share}, 0 s saved"]
    )


def test_figures_of_drafters_are_whole(server: Server, pages: Pages) -> None:
    page = pages.open("about:blank", **DESKTOP)
    source = {"name": "ngram-map-k4v", "draft_tokens": 123456, "saved_seconds": 1234.5}
    show_figures(page, server, [source], "idle")
    words = page.locator("#sources .words span:last-child")
    expect(words).to_contain_text("1,234.5 s saved")
    assert words.evaluate("e => e.scrollWidth <= e.clientWidth")


def test_figures_begin_anew_when_the_server_does(server: Server, pages: Pages) -> None:
    page = pages.open("about:blank")
    counts = ("steps", "emitted_tokens", "draft_tokens", "accepted_tokens")
    readings = [1000, 90, 100, 110]  # of tokens: the server is started anew after the first
    sent: list[int] = []

    def figures(route: Any) -> None:
        sent.append(readings[min(len(sent), 3)])
        totals = dict.fromkeys(counts, sent[-1])
        base = {"time": float(len(sent)), "context": 8, "queue": 0}
        route.fulfill(json={**base, "pools": [], "slots": [], "sources": [], **totals})

    page.route("**/v1/ngramspec/live", figures)
    page.add_init_script(
        """window.seen = [];
        document.addEventListener('readystatechange', () => new MutationObserver(() =>
            window.seen.push(document.getElementById('live-speed').textContent)
        ).observe(document.getElementById('live-speed'), {childList: true}), {once: true});"""
    )
    page.clock.install()
    page.goto(server.url)

    def read() -> bool:
        page.clock.fast_forward(1000)
        return bool(page.evaluate("window.seen.length >= 3"))

    wait(page, read)
    assert page.evaluate("window.seen.slice(0, 3)") == ["0", "10", "10"]


def test_text_of_figures_stays_text(server: Server, pages: Pages) -> None:
    page = pages.open("about:blank")
    show_figures(page, server, [{"name": ATTACK}], ATTACK)
    expect(page.locator("#sources")).to_contain_text(ATTACK)
    expect(page.locator("#slots")).to_contain_text(ATTACK)
    failed_picture(page)
    assert page.evaluate("window.hacked") is None


def test_nothing_but_the_pages_own_files_is_loaded(server: Server, pages: Pages) -> None:
    page = pages.open("about:blank")
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    response = page.goto(server.url)
    page.locator("#live").wait_for()
    assert [url for url in urls if not url.startswith((server.url, "data:"))] == []
    headers = response.headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    expect(page.locator("script:not([src]), style, [style]:not(.fill)")).to_have_count(0)


def test_text_is_readable_in_both_modes(server: Server, pages: Pages, dark: bool) -> None:
    page = pages.open(server.url, dark=dark)
    page.locator("#live").wait_for()
    answers_with(page, "Look:\n\n```python\ndef f(x):\n    return ", "len(x) + 'te", "xt'\n```")
    ask(page, "hello")
    page.get_by_role("button", name="Compare: ").last.click()
    page.locator(".times").wait_for()
    pages.shot(page, "dark" if dark else "light")
    back = page.locator("body").evaluate("e => getComputedStyle(e).backgroundColor")
    assert (int(back[4:].split(",")[0]) < 60) == dark
    texts = (".assistant .accepted", ".assistant pre", ".assistant .hljs-keyword", ".code-head",
             ".hljs-built_in .accepted", ".hljs-string .accepted", ".hljs-string", ".user .text",
             ".who", ".facts", ".facts.other", ".hint", ".model", ".legend",
             ".times", "#live dt", "#live dd", ".caption", "#new-chat", ".chat-name", "#context",
             "#drafts summary")  # fmt: skip
    for selector in texts:
        page.locator(selector).first.wait_for(state="attached")
        for one in page.locator(selector).all()[:3]:
            assert one.evaluate(CONTRAST) >= 4.5, selector
    page.locator("#drafts summary").click()
    assert page.locator("#drafts small").first.evaluate(CONTRAST) >= 4.5
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Settings").click()
    for selector in ("dialog label", "dialog .note", "dialog legend"):
        assert page.locator(selector).first.evaluate(CONTRAST) >= 4.5, selector


def test_a_phone_never_scrolls_sideways(server: Server, pages: Pages) -> None:
    page = pages.open(server.url, **PHONE)
    page.get_by_text("Drafts:").first.wait_for()
    fits(page)
    pages.shot(page, "phone-welcome")
    long = "x" * 300
    table = f"| {long} | b |\n|-|-|\n| {long} | {long} |\n"
    answers_with(page, long, f"\n\n```\n{long}\n```\n\n{table}")
    ask(page, long)
    fits(page)
    page.unroute_all()
    page.keyboard.press("Control+Shift+O")
    ask(page, REPEAT)
    fits(page)
    pages.shot(page, "phone-answer")
    for name, place in (("Speed", "#panel"), ("Chats", "#chats")):
        expect(page.locator(place)).to_be_hidden()
        page.get_by_role("button", name=name, exact=True).click()
        expect(page.locator(place)).to_be_visible()
        fits(page)
        pages.shot(page, f"phone-{name.lower()}")
        page.keyboard.press("Escape")
        expect(page.locator(place)).to_be_hidden()
    page.locator("#drafts summary").click()
    box = page.locator("#drafts fieldset").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= PHONE["width"]
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Settings").click()
    fits(page)
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
        ask(page, REPEAT)
        expect(page.get_by_label("Message", exact=True)).to_be_in_viewport(ratio=1)


def test_the_keyboard_reaches_everything(page: Any) -> None:
    page.locator("#live").wait_for()
    ask(page, REPEAT)
    page.locator(".chat-name").wait_for()
    page.get_by_role("button", name="Send").focus()
    seen = set()
    for _ in range(32):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id || document.activeElement.ariaLabel"))
    expected = {"new-chat", "open-settings", "toggle-chats", "toggle-panel", "scroll", "prompt",
                "send", "attach", "marks", "Copy", "Answer again", "Edit", "import"}  # fmt: skip
    assert expected <= seen
    page.locator("#open-settings").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#settings")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#open-settings")).to_be_focused()


def test_the_skip_link_leaves_the_chat_open(page: Any) -> None:
    answers_with(page, "fine")
    ask(page, "hello")
    expect(page).to_have_url(re.compile("#."))
    address = page.url
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#prompt")).to_be_focused()
    settled(page)
    expect(page).to_have_url(address)
    expect(page.locator(".message")).to_have_count(2)


def test_the_sides_stay_away_if_closed(page: Any) -> None:
    for name, place in (("Speed", "#panel"), ("Chats", "#chats")):
        button = page.get_by_role("button", name=name, exact=True)
        expect(button).to_have_attribute("aria-expanded", "true")
        button.click()
        expect(page.locator(place)).to_be_hidden()
    page.reload()
    expect(page.locator("#panel")).to_be_hidden()
    expect(page.locator("#toggle-chats")).to_have_attribute("aria-expanded", "false")


def test_escape_closes_a_side_and_leaves_the_answer_alone(server: Server, pages: Pages) -> None:
    page = pages.open(server.url, width=600)
    page.route("**/v1/chat/completions", lambda route: None)  # never answered
    send(page, "hello")
    stop = page.get_by_role("button", name="Stop")
    stop.wait_for()
    page.get_by_role("button", name="Speed", exact=True).click()
    page.locator("#panel").wait_for()
    page.keyboard.press("Escape")
    page.locator("#panel").wait_for(state="hidden")
    settled(page)
    expect(stop).to_be_visible()
    composing = "document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', %s}))"
    page.evaluate(composing % "isComposing: true")
    settled(page)
    expect(stop).to_be_visible()
    page.evaluate(composing % "")
    stop.wait_for(state="hidden")


ONE_CHAT = {
    "format": "ngramspec chats",
    "chats": [{"messages": [{"role": "user", "content": "hello"}]}],
}
# No chat can be read before the test says so.
BUSY_DISK = """() => new Promise(resolve => {
    indexedDB.open('ngramspec').onsuccess = ({target}) => {
        const store = target.result.transaction('chats', 'readwrite').objectStore('chats');
        const wait = () => window.ready || (store.get('').onsuccess = wait);
        wait();
        resolve();
    };
})"""


def test_the_keyboard_reaches_nothing_that_is_covered(server: Server, pages: Pages) -> None:
    page = pages.open(server.url, **PHONE)
    page.get_by_role("button", name="Chats", exact=True).press("Enter")
    reached = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    assert "new-chat" in reached
    assert not reached & {"scroll", "prompt", "send"}
    page.keyboard.press("Escape")
    page.get_by_label("Message", exact=True).click()


def test_a_chat_is_uncovered_when_it_is_chosen(server: Server, pages: Pages) -> None:
    page = pages.open(server.url, **PHONE)
    answers_with(page, "fine")
    ask(page, "hello")
    chats = page.get_by_role("button", name="Chats", exact=True)
    link = page.get_by_role("link", name="hello")
    for choice in (page.get_by_role("button", name="New chat"), link, link):  # at last the open one
        chats.click()
        expect(chats).to_have_attribute("aria-expanded", "true")
        choice.click()
        page.locator("#scrim").wait_for(state="hidden")
        expect(chats).to_have_attribute("aria-expanded", "false")


@pytest.mark.parametrize("content", ["{", json.dumps(ONE_CHAT)])
def test_what_becomes_of_an_import_is_uncovered(server: Server, pages: Pages, content: str) -> None:
    page = pages.open(server.url, **PHONE)
    page.get_by_role("button", name="Chats", exact=True).click()
    file = {"name": "chats.json", "mimeType": "application/json", "buffer": content.encode()}
    page.locator("#import-file").set_input_files(file)
    page.locator("#scrim").wait_for(state="hidden")
    page.locator("#notice, .message").locator("visible=true").wait_for()


def test_a_chat_that_is_read_slowly_leaves_what_was_opened_since(
    server: Server, pages: Pages
) -> None:
    page = pages.open(server.url, **PHONE)
    answers_with(page, "fine")
    ask(page, "hello")
    chats = page.get_by_role("button", name="Chats", exact=True)
    chats.click()
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".message")).to_have_count(0)
    page.evaluate(BUSY_DISK)
    chats.click()
    page.get_by_role("link", name="hello").click()
    page.locator("#scrim").wait_for(state="hidden")
    chats.click()
    page.evaluate("() => window.ready = true")
    expect(page.locator(".message")).to_have_count(2)
    expect(chats).to_have_attribute("aria-expanded", "true")


def test_paper_shows_the_chat_alone(page: Any, pages: Pages) -> None:
    ask(page, REPEAT)
    page.emulate_media(media="print")
    pages.shot(page, "print")
    expect(page.locator(".assistant .text")).to_be_visible()
    for selector in (".top", "#chats", "#panel", "#composer", ".actions"):
        expect(page.locator(selector).first).to_be_hidden()


def test_a_screen_reader_hears_of_the_answer(page: Any) -> None:
    expect(page.get_by_role("log")).to_have_attribute("aria-label", "Conversation")
    ask(page, REPEAT)
    expect(page.get_by_role("status")).to_have_text("Answer complete.")
    expect(page.get_by_role("log")).to_have_attribute("aria-busy", "false")
    expect(page.get_by_role("log").get_by_role("heading", level=3)).to_have_text(["You", "Model"])
    page.locator(".chat-name").wait_for()
    unnamed = """() => [...document.querySelectorAll('button, input, textarea, summary, a')]
        .filter(e => e.type !== 'file')
        .filter(e => !(e.textContent || e.ariaLabel || e.labels?.length)).map(e => e.id)"""
    assert page.evaluate(unnamed) == []

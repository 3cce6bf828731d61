"""Markdown in the page: what is rendered, what hostile text cannot do, how much it costs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from helpers.browser import (
    Pages,
    Server,
    answers_with,
    ask,
    event_of,
    events,
    expect,
    failed_picture,
    last,
    settled,
)

TEXT = "#messages .assistant:last-child .text"
RICH = """# Title

Some *words*, `code`, ~~gone~~ and a [link](https://example.com/a).

- one
- two
  - three

| left | right |
|:-----|------:|
| a    |     1 |

> quoted

```python
def f(x):
    return x  # note
```

![picture](https://example.com/p.png) and https://example.com/b, but no README.md
"""
HOSTILE = [
    "<img src=x onerror='window.hacked=1'>",
    "<script>window.hacked=1</script>",
    "<svg onload=window.hacked=1>",
    "[x](javascript:window.hacked=1)",
    "[x](data:text/html,<script>window.hacked=1</script>)",
    "<a href='javascript:window.hacked=1'>x</a>",
    "![x](javascript:window.hacked=1)",
    "![x](https://evil.example/p.png)",
    "[x]: javascript:window.hacked=1\n\n[x]",
    "```<img/src=x/onerror=window.hacked=1>\ncode\n```",
    '```"><script>window.hacked=1</script>\ncode\n```',
    "```html\n<img src=x onerror=window.hacked=1>\n```",
    "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "<style>@import 'https://evil.example/x.css'</style>",
    "| <img src=x onerror=window.hacked=1> |\n|---|\n| <b onclick=window.hacked=1>x</b> |",
    "&lt;img src=x onerror=window.hacked=1&gt;",
    "<form action='https://evil.example'><input autofocus onfocus=window.hacked=1></form>",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=window.hacked=1>",
]


def show(page: Any, *texts: str) -> None:
    answers_with(page, *texts)
    ask(page, "hello")


def test_markdown_becomes_elements(page: Any, pages: Pages) -> None:
    show(page, RICH)
    text = page.locator(TEXT)
    pages.shot(page, "rich")
    for kind in ("h1", "em", "s", "ul ul li", "th.right", "blockquote", "pre .hljs-keyword"):
        expect(text.locator(kind)).not_to_have_count(0)
    expect(text.locator("img")).to_have_count(0)
    links = text.locator("a").evaluate_all("all => all.map(a => [a.href, a.target, a.rel])")
    assert [link[0] for link in links] == [
        "https://example.com/a", "https://example.com/p.png", "https://example.com/b"]  # fmt: skip
    assert {tuple(link[1:]) for link in links} == {("_blank", "noopener noreferrer")}


def test_text_runs_in_the_direction_of_its_script(page: Any) -> None:
    answers_with(page, "- שלום!\n\n```\nשלום!\n```\n\nhello!")
    ask(page, "שלום!\nhello!")
    ends_left = """e => {  // where the exclamation mark is
        const range = document.createRange();
        const text = e.firstChild;
        range.setStart(text, 0);
        range.setEnd(text, 1);
        const first = range.getBoundingClientRect().left;
        const at = text.data.indexOf('!');
        range.setStart(text, at);
        range.setEnd(text, at + 1);
        return range.getBoundingClientRect().left < first;
    }"""
    places = [f"{TEXT} li", f"{TEXT} code", f"{TEXT} p", ".user .plain"]
    assert [page.locator(place).evaluate(ends_left) for place in places] == [
        True, False, False, True]  # fmt: skip
    expect(page.locator(f"{TEXT} li")).to_have_css("direction", "rtl")


def test_text_that_grows_ends_like_text_that_is_whole(page: Any) -> None:
    same = page.evaluate(
        """async (text) => {
            const {Flow} = await import('/page/markdown.js');
            const [whole, grown] = [document.createElement('div'), document.createElement('div')];
            new Flow(whole).show(text, [text.length], false);
            const flow = new Flow(grown);
            for (let end = 1; end <= text.length; end++) flow.show(text.slice(0, end), [end], true);
            flow.show(text, [text.length], false);
            return [whole.textContent === grown.textContent,
                whole.querySelectorAll('*').length - grown.querySelectorAll('*').length];
        }""",
        RICH * 3,
    )
    assert same == [True, 0]


@pytest.mark.parametrize("piece", [1, 4])
def test_an_address_that_arrives_in_pieces_is_whole(page: Any, piece: int) -> None:
    text = "Intro.\n\n[docs]: https://example.com/a/b\n\nSee [the docs][docs].\n\nAnd [docs]."
    shown = page.evaluate(
        """async ([text, piece]) => {
            const {Flow} = await import('/page/markdown.js');
            const box = document.createElement('div');
            const flow = new Flow(box);
            for (let end = 0; end < text.length; end += piece) {
                flow.show(text.slice(0, end), [end], true);
            }
            flow.show(text, [text.length], false);
            return [box.textContent, [...box.querySelectorAll('a')].map(a => a.href)];
        }""",
        [text, piece],
    )
    assert shown[1] == ["https://example.com/a/b"] * 2
    assert "https" not in shown[0]
    assert "[" not in shown[0]


@pytest.mark.parametrize("role", ["user", "assistant", "reasoning", "call"])
def test_hostile_text_stays_text(page: Any, server: Server, role: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    attack = "\n\n".join(HOSTILE)
    deltas: dict[str, dict[str, Any]] = {
        "user": {"content": "fine"},
        "assistant": {"content": attack},
        "reasoning": {"reasoning_content": attack},
        "call": {"tool_calls": [{"index": 0, "function": {"name": attack, "arguments": attack}}]},
    }
    body = events(event_of(attack, True, **deltas[role]), last(9))
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body))
    ask(page, attack if role == "user" else "hello")
    page.locator(".message a").evaluate_all("all => all.forEach(a => a.target = '')")
    failed_picture(page)
    assert page.evaluate("window.hacked") is None
    wrong = "img, script, iframe, style, form:not(.edit), input, math, object"
    expect(page.locator(f".message :is({wrong})")).to_have_count(0)
    expect(page.locator("[onerror], [onload], [onclick], [onfocus], [srcdoc]")).to_have_count(0)
    hrefs = page.locator(".message a").evaluate_all("all => all.map(a => a.protocol)")
    assert set(hrefs) <= {"https:"}
    assert [url for url in asked if not url.startswith((server.url, "data:"))] == []
    message = page.locator(".message").nth(0 if role == "user" else 1)
    expect(message).to_contain_text("<script>window.hacked=1</script>")


def test_titles_and_names_stay_text(server: Server, pages: Pages) -> None:
    page = pages.open("about:blank")
    attack = HOSTILE[0]
    page.route("**/props", lambda route: _with(route, model_alias=attack))
    page.goto(server.url)
    page.get_by_text(attack).wait_for()
    answers_with(page, "fine")
    ask(page, attack)
    expect(page.locator(".chat-name")).to_have_text(attack)
    expect(page.locator("#model")).to_have_text(attack)
    refused = events({"error": {"message": attack}})
    page.unroute("**/v1/chat/completions")
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=refused))
    ask(page, "again", 2)
    expect(page.locator("#notice")).to_have_text(attack)
    failed_picture(page)
    assert page.evaluate("window.hacked") is None


def _with(route: Any, **members: Any) -> None:
    response = route.fetch()
    route.fulfill(json={**response.json(), **members})


def test_a_long_answer_costs_no_more_per_piece_than_a_short_one(page: Any) -> None:
    """Count what is parsed: each piece of text a few times, not once per event."""
    parsed = """async ([blocks, size]) => {
        const {Flow} = await import('/page/markdown.js');
        const flow = new Flow(document.createElement('div'));
        let made = 0;
        const create = document.createElement.bind(document);
        document.createElement = (...all) => { made++; return create(...all); };
        let text = '';
        for (let i = 0; i < blocks; i++) {
            for (let j = 0; j < 4; j++) {
                text += 'word '.repeat(size);
                flow.show(text, [text.length], true);
            }
            text += '\\n\\n';
        }
        document.createElement = create;
        return made;
    }"""
    short, long = (page.evaluate(parsed, [blocks, 5]) for blocks in (20, 200))
    assert long < 12 * short


def test_hundreds_of_messages_and_long_ones_stay_smooth(page: Any) -> None:
    long = "".join(f"Line {i} with **bold** words.\n\n" for i in range(3500))  # 100 kB
    code = "```python\n" + "x = f(1)  # note\n" * 6000 + "```\n"
    messages = []
    for i in range(200):
        messages += [{"role": "user", "content": f"question {i}"}]
        messages += [{"role": "assistant", "content": long if i % 50 == 0 else f"answer *{i}*"}]
    messages += [{"role": "user", "content": "q"}, {"role": "assistant", "content": code}]
    chat = {"format": "ngramspec chats", "version": 1, "chats": [{"messages": messages}]}
    page.evaluate(
        """text => {
            const files = new DataTransfer();
            files.items.add(new File([text], 'chats.json'));
            const field = document.getElementById('import-file');
            field.files = files.files;
            field.dispatchEvent(new Event('change'));
        }""",
        json.dumps(chat),
    )
    page.locator(".message").nth(401).wait_for()
    settled(page)
    # only what is near the view is rendered
    assert page.locator(".message .block").count() < 400
    expect(page.locator("#to-end")).to_be_hidden()
    page.locator("#scroll").evaluate("e => e.scrollTop = 0")
    page.locator(".message", has_text="Line 3499").first.locator(".block strong").first.wait_for()
    answers_with(page, *["word " * 20 + "\n\n"] * 2000)  # 200 kB
    page.locator("#scroll").evaluate("e => e.scrollTop = e.scrollHeight")
    ask(page, "more")
    assert page.locator(TEXT).inner_text().count("word") == 40000

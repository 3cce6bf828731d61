"""Answers in the page: shown as they come, marked, stopped, made again, edited, compared."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from helpers.browser import (
    Pages,
    Server,
    answers_with,
    bodies_of,
    events,
    finished,
    last,
    send,
    told,
    until,
)

CODE = '''def area(width, height):
    """Return the area of a rectangle."""
    return width * height
'''
REPEAT = f"Repeat this code:\n\n```python\n{CODE}```"
TEXT = "#messages .assistant:last-child .text"
CODE_SHOWN = f"{TEXT} pre"


def live(server: Server) -> dict[str, Any]:
    return json.loads(server.get("/v1/ngramspec/live"))


def calls(page: Any, **functions: str) -> None:
    """Let the page get an answer that calls functions with these arguments."""
    made = [
        {"index": index, "id": f"c{index}", "function": {"name": name, "arguments": values}}
        for index, (name, values) in enumerate(functions.items())
    ]
    body = events({"choices": [{"delta": {"tool_calls": made}}]}, last(9, "tool_calls"))
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body))


def act(page: Any, name: str, index: int = -1) -> None:
    """Press a button below the last message that has it, or another one."""
    page.locator(f"#messages button[aria-label^='{name}']").nth(index).click()


def test_accepted_words_are_marked_unless_that_is_turned_off(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    send(page, REPEAT)
    finished(page)
    pages.shot(page, "answer")
    assert page.locator(CODE_SHOWN).inner_text() == CODE
    looks = """element => {
        const style = getComputedStyle(element);
        return [style.backgroundColor, style.textDecorationLine];
    }"""
    accepted = page.locator(f"{TEXT} .accepted").first
    marked, other = accepted.evaluate(looks), page.locator(TEXT).evaluate(looks)
    assert marked[0] != other[0]
    assert (marked[1], other[1]) == ("underline", "none")
    words = page.locator(".assistant .facts").inner_text().replace("\u00a0", " ")
    for part in ("tokens", "% from drafts", "tokens per step", "tokens/s"):
        assert part in words
    page.get_by_role("button", name="Mark accepted words").click()
    assert accepted.evaluate(looks)[1] == "none"
    page.reload()
    page.locator(f"{TEXT} .accepted").first.wait_for()
    assert accepted.evaluate(looks)[1] == "none"


def test_marks_are_where_the_drafts_were(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    answers_with(
        page,
        "One **bo",
        "ld** wo",
        "rd &amp; `so",
        "me` x\n\n```py\nx",
        " = 1\n",
        "```\n\n1. a",
        "b\n2. c",
    )
    send(page, "hello")
    finished(page)
    texts = page.locator(f"{TEXT} .accepted").all_inner_texts()
    assert "".join(texts).replace(" ", "") == "ldwo" + "mexx" + "a"
    assert page.locator(f"{TEXT} strong").inner_text() == "bold"
    assert page.locator(f"{TEXT} li").all_inner_texts() == ["ab", "c"]


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
    code = "".join(CODE.replace("area", f"area_{i}") for i in range(12))
    send(page, f"Repeat this code:\n\n```python\n{code}```")
    finished(page)
    assert page.evaluate("() => window.lengths.size") > 3


def test_a_second_message_knows_the_first(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    bodies = bodies_of(page)
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


CLICK = "buttons => buttons.forEach(button => button.click())"  # those that are still there


def test_stop_ends_the_answer_and_frees_the_slot(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    page.locator("#drafts summary").click()
    page.get_by_label("Off").check()  # slower, so that there is time to stop it
    page.keyboard.press("Escape")
    code = "".join(CODE.replace("area", f"area_{i}") for i in range(16))
    presses = (
        lambda: page.get_by_role("button", name="Stop").evaluate_all(CLICK),
        lambda: page.keyboard.press("Escape"),
    )
    for press in presses:
        for _ in range(10):  # an answer may be over before the button is pressed
            send(page, f"Repeat this code:\n\n```python\n{code}```")
            page.locator(f"{TEXT} pre").first.wait_for()
            press()
            page.get_by_role("button", name="Send").wait_for()
            if "Stopped" in page.locator(".assistant .facts").last.inner_text():
                break
            page.get_by_role("button", name="New chat").click()
        assert "Stopped" in page.locator(".assistant .facts").last.inner_text()
        end = time.monotonic() + 5
        while any(slot["state"] != "idle" for slot in live(server)["slots"]):
            assert time.monotonic() < end, "the slot is still busy"
            time.sleep(0.02)
        assert "area_15" not in page.locator(TEXT).last.inner_text()
    assert 'finished_reason="abort",' in server.get("/metrics")
    page.get_by_role("button", name="New chat").click()
    assert page.get_by_label("Message", exact=True).evaluate("e => e === document.activeElement")


def test_a_stopped_answer_is_continued(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    page.route(
        "**/v1/chat/completions", lambda r: r.fulfill(body=events(told("One, "), last(2, "length")))
    )
    send(page, "Count")
    finished(page)
    assert "Cut off" in page.locator(".facts").inner_text()
    bodies = bodies_of(page)
    page.unroute_all()
    answers_with(page, "two.")
    act(page, "Continue")
    page.get_by_text("One, two.").wait_for()
    assert [one["role"] for one in bodies[0]["messages"]] == ["user", "assistant"]
    assert page.locator(".message").count() == 2


def test_an_answer_that_cannot_be_continued_keeps_its_figures(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    body = events(told("One, ", True), last(2, "length"))
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body))
    send(page, "Count")
    finished(page)
    act(page, "Compare")
    other = page.locator(".facts.other", has_text="the same text")
    other.wait_for()
    page.locator("#drafts summary").click()
    page.get_by_label("Off").check()
    page.keyboard.press("Escape")
    page.unroute_all()
    page.route("**/v1/chat/completions", lambda route: route.abort())
    act(page, "Continue")
    page.locator("#notice", has_text="does not answer").wait_for()
    facts = page.locator(".facts:not(.other)").inner_text()
    assert "Cut off" in facts  # it is as it was
    assert "2 tokens" in facts
    assert "50 % from drafts" in facts
    assert other.is_visible()
    assert page.locator("#speed svg .line").count() == 2
    page.unroute_all()
    answers_with(page, "two.")
    act(page, "Continue")
    page.get_by_text("One, two.").wait_for()
    finished(page)
    assert "no drafts" in page.locator(".facts").inner_text()  # the other one is of another text
    pages.complaints[:] = [text for text in pages.complaints if "ERR_FAILED" not in text]


def test_an_answer_whose_continuation_is_stopped_before_it_begins_is_what_it_was(
    server: Server, pages: Pages
) -> None:
    page = pages.open(server.url)
    body = events(told("One, "), last(2, "length"))
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body))
    send(page, "Count")
    finished(page)
    page.unroute_all()
    page.route("**/v1/chat/completions", lambda route: None)  # never answered
    act(page, "Continue")
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Send").wait_for()
    assert page.get_by_role("status").inner_text() == "Answer stopped."
    assert "Cut off" in page.locator(".facts").inner_text()
    assert page.locator("#messages button[aria-label^='Compare']").is_visible()
    page.reload()
    page.locator(".facts", has_text="Cut off").wait_for()


def test_an_answer_is_made_again(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    answers_with(page, "first")
    send(page, "hello")
    finished(page)
    page.unroute_all()
    bodies = bodies_of(page)
    answers_with(page, "another")
    act(page, "Answer again")
    page.get_by_text("another").wait_for()
    assert page.locator(".message").count() == 2
    assert [one["content"] for one in bodies[0]["messages"]] == ["hello"]
    # one that fails leaves the old one
    page.unroute_all()
    refused = {"error": {"message": "no such luck", "code": "x"}}
    page.route("**/v1/chat/completions", lambda r: r.fulfill(status=400, json=refused))
    act(page, "Answer again")
    page.get_by_text("no such luck").wait_for()
    assert page.locator(TEXT).inner_text() == "another"


def test_answering_an_early_question_again_asks_first(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    answers_with(page, "answer")
    for number, text in enumerate(("one", "two"), 1):
        send(page, text)
        finished(page, number)
    act(page, "Answer again", 0)
    asked = page.locator("#confirm")
    assert "replaces this one and the 2 messages below" in asked.inner_text()
    asked.get_by_role("button", name="Cancel").click()
    assert page.locator(".message").count() == 4
    act(page, "Answer again", 0)
    page.locator("#confirm-yes").click()
    until(page, "() => document.querySelectorAll('.message').length === 2")
    finished(page)


def test_an_answer_stopped_before_it_begins_leaves_what_it_was_to_replace(
    server: Server, pages: Pages
) -> None:
    page = pages.open(server.url)
    answers_with(page, "answer")
    send(page, "hello")
    finished(page)
    page.unroute_all()
    page.route("**/v1/chat/completions", lambda route: None)  # never answered
    act(page, "Answer again")
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Send").wait_for()
    assert page.locator(TEXT).inner_text() == "answer"
    page.locator(".message.user").get_by_role("button", name="Edit").click()
    field = page.get_by_label("Text of the message")
    field.fill("changed")
    page.locator(".edit").get_by_role("button", name="Send").click()
    page.get_by_role("button", name="Stop").click()
    assert field.input_value() == "changed"  # to go on with
    page.keyboard.press("Escape")
    assert page.locator(TEXT).inner_text() == "answer"
    assert "hello" in page.locator(".message.user").inner_text()
    page.reload()
    page.locator(TEXT, has_text="answer").wait_for()


def test_a_message_is_edited(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    answers_with(page, "answer")
    for number, text in enumerate(("one", "two"), 1):
        send(page, text)
        finished(page, number)
    bodies = bodies_of(page)
    page.locator(".message.user").first.get_by_role("button", name="Edit").click()
    field = page.get_by_label("Text of the message")
    assert field.input_value() == "one"
    assert "replaces the 3 messages below" in page.locator(".edit").inner_text()
    page.keyboard.press("Escape")
    assert page.locator(".message").count() == 4
    page.locator(".message.user").first.get_by_role("button", name="Edit").click()
    field.fill("three")
    page.locator(".edit").get_by_role("button", name="Send").click()
    until(page, "() => document.querySelectorAll('.message').length === 2")
    finished(page)
    assert [one["content"] for one in bodies[0]["messages"]] == ["three"]
    # an answer's text is changed in place
    act(page, "Edit")
    field.fill("changed")
    page.locator(".edit").get_by_role("button", name="Save").click()
    assert page.locator(TEXT).inner_text() == "changed"
    page.reload()
    page.get_by_text("changed").wait_for()


def test_an_edited_message_waits_for_the_answer_that_comes_in(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    answers_with(page, "answer")
    send(page, "one")
    finished(page)
    act(page, "Edit", 0)
    field = page.get_by_label("Text of the message")
    field.fill("changed")
    page.unroute_all()
    page.route("**/v1/chat/completions", lambda route: None)  # never answered
    send(page, "two")
    form = page.locator(".edit")
    form.get_by_role("button", name="Send").click()
    assert form.count() == 1
    assert field.input_value() == "changed"
    for place in (form, page.get_by_role("status")):
        assert "An answer is coming in." in place.inner_text()
    page.get_by_role("button", name="Stop").click()
    page.locator("#send").wait_for()
    page.unroute_all()
    answers_with(page, "another")
    form.get_by_role("button", name="Send").click()
    page.get_by_text("another").wait_for()
    assert "changed" in page.locator(".message.user").inner_text()


def test_a_message_being_edited_stays_when_an_answer_above_is_changed(
    server: Server, pages: Pages
) -> None:
    page = pages.open(server.url)
    answers_with(page, "answer\n\nof two parts")
    for number, text in enumerate(("one", "two"), 1):
        send(page, text)
        finished(page, number)
    act(page, "Edit", 2)
    page.get_by_label("Text of the message").fill("begun")
    act(page, "Edit", 1)
    form = page.locator(".edit").first
    form.get_by_label("Text of the message").fill("changed")
    form.get_by_role("button", name="Save").click()
    page.get_by_text("changed").wait_for()
    assert page.locator(".edit textarea").count() == 1
    assert page.locator(".edit textarea").input_value() == "begun"
    assert page.locator(".message").nth(1).locator(".text").inner_text() == "changed"


def refuses(page: Any, words: str) -> None:
    """Let the page get an error instead of an answer."""
    refused = {"error": {"message": words, "code": "x"}}
    page.unroute_all()
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=400, json=refused))


def test_what_is_being_edited_comes_back_with_what_an_answer_did_not_replace(
    server: Server, pages: Pages
) -> None:
    page = pages.open(server.url)
    answers_with(page, "answer")
    for number, text in enumerate(("one", "two"), 1):
        send(page, text)
        finished(page, number)
    act(page, "Edit", 2)
    page.get_by_label("Text of the message").fill("begun")
    forms = page.locator(".edit")
    refuses(page, "no such luck")
    act(page, "Edit", 0)
    forms.first.get_by_label("Text of the message").fill("changed")
    forms.first.get_by_role("button", name="Send").click()
    page.get_by_text("no such luck").wait_for()
    until(page, "() => document.querySelectorAll('.edit').length === 2")
    fields = page.locator(".edit textarea")
    assert [fields.nth(index).input_value() for index in range(2)] == ["changed", "begun"]
    forms.first.get_by_role("button", name="Cancel").click()
    refuses(page, "nor now")
    act(page, "Answer again", 0)
    page.locator("#confirm-yes").click()
    page.get_by_text("nor now").wait_for()
    assert fields.input_value() == "begun"
    assert page.locator(".message").count() == 4
    page.unroute_all()
    answers_with(page, "another")
    forms.get_by_role("button", name="Send").click()
    page.get_by_text("another").wait_for()
    assert "begun" in page.locator(".message.user").last.inner_text()


def test_a_result_being_typed_comes_back_with_its_call(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    calls(page, weather="{}")
    send(page, "Weather?")
    finished(page)
    field = page.get_by_label("Result of weather")
    field.fill("ra")
    refuses(page, "no such luck")
    act(page, "Edit", 0)
    page.locator(".edit").get_by_role("button", name="Send").click()
    page.get_by_text("no such luck").wait_for()
    assert field.input_value() == "ra"


def test_an_answer_is_compared_with_one_without_drafts(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    bodies = bodies_of(page)
    send(page, REPEAT)
    finished(page)
    act(page, "Compare")
    page.locator(".facts.other", has_text="the same text").wait_for()
    first, second = bodies
    assert "enabled" not in first["speculative"]
    assert second["speculative"]["enabled"] is False
    assert first["seed"] == second["seed"]
    assert first["messages"] == second["messages"]
    words = page.locator(".facts.other").inner_text().replace("\u00a0", " ").replace(",", "")
    drafted, plain, times = map(float, re.findall(r"([\d.]+) (?:tokens/s|times)", words))
    assert times == pytest.approx(drafted / plain, rel=0.05)
    legend = page.locator("#speed .legend").inner_text()
    assert "with drafts" in legend
    assert "without drafts" in legend
    assert page.locator("#speed svg .line").count() == 2
    assert "× the speed without drafts" in page.locator("#speed .times").inner_text()
    pages.shot(page, "compared")
    page.reload()  # it stays with the chat
    page.locator("#speed .times").wait_for()
    assert page.locator(".message").count() == 2


def test_every_answer_is_compared_if_set(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Answer everything twice").check()
    page.get_by_role("button", name="Done").click()
    send(page, REPEAT)
    page.locator(".facts.other", has_text="times the speed").wait_for()


def test_a_comparison_asks_what_was_asked(server: Server, pages: Pages, tmp_path: Path) -> None:
    page = pages.open(server.url)
    bodies = bodies_of(page)
    answers_with(page, "answer")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System").fill("Be brief.")
    page.get_by_role("button", name="Done").click()
    send(page, "hello")
    finished(page)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System").fill("Be long.")
    page.get_by_role("button", name="Done").click()
    with page.expect_download() as started:
        page.get_by_role("button", name="Export all").click()
    act(page, "Compare")
    page.locator(".facts.other", has_text="the same text").wait_for()
    path = tmp_path / "chats.json"
    started.value.save_as(path)
    page.locator("#import-file").set_input_files(path)  # as it was before the comparison
    until(page, "() => document.querySelectorAll('.chat-name').length === 2")
    act(page, "Compare")
    page.locator(".facts.other", has_text="the same text").wait_for()
    first, *others = bodies
    assert first["messages"][0] == {"role": "system", "content": "Be brief."}
    assert "system" not in first
    assert len(others) == 2
    for other in others:
        assert other["messages"] == first["messages"]
        assert other["seed"] == first["seed"]
    told = json.loads(path.read_text())
    for message in told["chats"][0]["messages"]:
        message.pop("asked", None)
    path.write_text(json.dumps(told))
    page.locator("#import-file").set_input_files(path)  # of a page that did not keep it
    until(page, "() => document.querySelectorAll('.chat-name').length === 3")
    page.locator(TEXT, has_text="answer").wait_for()
    assert page.locator("#messages button[aria-label^='Compare']").count() == 0


def test_reasoning_is_folded(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    code = CODE.replace("height", "h")
    send(page, f"Think, then rename `width` to `w` in this code:\n\n```python\n{code}```")
    finished(page)
    thoughts = page.locator(".assistant .reasoning")
    assert not thoughts.locator(".text").is_visible()
    assert "Thoughts" in thoughts.locator("summary").inner_text()
    thoughts.locator("summary").click()
    assert "w" in thoughts.locator(".text").inner_text()
    assert "<think>" not in page.locator(".assistant").inner_text()


def test_tool_calls_are_readable_and_take_results(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    function = {"name": "weather", "arguments": '{"city": "Ulm", "days": 2}'}
    calls(page, weather=function["arguments"])
    page.get_by_role("button", name="Settings").click()
    tools = [{"type": "function", "function": {"name": "weather"}}]
    page.get_by_label("Further fields").fill(json.dumps({"tools": tools}))
    page.get_by_role("button", name="Done").click()
    bodies = bodies_of(page)
    send(page, "Weather?")
    finished(page)
    assert bodies[0]["tools"] == tools
    shown = page.locator(".call").inner_text()
    for part in ("Calls", "weather", "city", "Ulm", "days", "2"):
        assert part in shown
    page.unroute_all()
    answers_with(page, "It rains.")
    page.get_by_label("Result of weather").fill("rain")
    page.get_by_role("button", name="Give result").click()
    page.get_by_text("It rains.").wait_for()
    said = bodies[1]["messages"]
    assert said[1]["tool_calls"][0]["function"] == function
    assert said[2] == {"role": "tool", "content": "rain", "tool_call_id": "c0", "name": "weather"}


def test_results_being_typed_stay_when_another_is_given(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    calls(page, weather="{}", news="{}")
    send(page, "What is new?")
    finished(page)
    page.get_by_label("Result of weather").fill("rain")
    page.get_by_label("Result of news").fill("nothing so far")
    page.get_by_role("button", name="Give result").first.click()
    page.locator(".message.tool", has_text="rain").wait_for()
    assert page.get_by_label("Result of weather").count() == 0
    assert page.get_by_label("Result of news").input_value() == "nothing so far"


def test_a_chat_that_has_gone_on_takes_no_results(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    calls(page, weather="{}")
    send(page, "Weather?")
    finished(page)
    field = page.get_by_label("Result of weather")
    field.fill("ra")
    page.unroute_all()
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=503, json={}))
    send(page, "Never mind.")
    page.locator("#notice", has_text="status 503").wait_for()
    assert field.is_visible()  # the message was taken back
    page.unroute_all()
    answers_with(page, "fine")
    send(page, "Never mind.")
    finished(page, 2)
    assert not field.is_visible()
    other = page.context.new_page()  # which is followed, as nothing is being written
    other.goto(page.url)
    answers_with(other, "good")
    send(other, "And now?")
    page.get_by_text("good").wait_for()


def test_a_result_that_is_not_answered_can_be_given_again(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    calls(page, weather="{}")
    send(page, "Weather?")
    finished(page)
    field = page.get_by_label("Result of weather")
    give = page.get_by_role("button", name="Give result")
    field.fill("rain")
    page.unroute_all()
    page.route("**/v1/chat/completions", lambda route: route.abort())
    give.click()
    page.locator("#notice", has_text="does not answer").wait_for()
    until(page, "() => !document.querySelector('.message.tool')")
    assert field.input_value() == "rain"
    other = page.context.new_page()
    other.goto(page.url)
    assert other.get_by_label("Result of weather").input_value() == "rain"
    bodies = bodies_of(page)
    page.unroute_all()
    answers_with(page, "It rains.")
    give.click()
    page.get_by_text("It rains.").wait_for()
    assert [one["role"] for one in bodies[0]["messages"]] == ["user", "assistant", "tool"]
    assert field.count() == 0
    other.get_by_text("It rains.").wait_for()  # nothing was written there
    pages.complaints[:] = [text for text in pages.complaints if "ERR_FAILED" not in text]


@pytest.mark.parametrize("whole", [[], [{"name": "news", "arguments": "{}"}]], ids=["one", "two"])
def test_a_call_that_is_cut_off_is_not_sent_again(
    server: Server, pages: Pages, whole: list[dict[str, str]]
) -> None:
    page = pages.open(server.url)
    functions = [*whole, {"name": "weather", "arguments": '{"city": "U'}]
    made = [{"index": i, "id": f"c{i}", "function": one} for i, one in enumerate(functions)]
    delta = {"content": "Let me see.", "tool_calls": made}
    body = f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n"  # and no end
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body))
    send(page, "What is new?")
    finished(page)
    assert "connection to the server was lost" in page.locator("#notice").inner_text()
    assert page.get_by_role("button", name="Continue").count() == 0
    assert page.get_by_label("Result of weather").count() == 0
    page.unroute_all()
    bodies = bodies_of(page)
    if whole:
        page.get_by_label("Result of news").fill("none")
        page.get_by_role("button", name="Give result").click()
    else:
        send(page, "And now?")
    finished(page, 2)
    assert page.locator("#notice").is_hidden()  # the server takes it
    said = bodies[0]["messages"][1]
    assert said["content"] == "Let me see."
    assert [one["function"] for one in said.get("tool_calls", [])] == whole


def test_texts_are_copied(server: Server, pages: Pages) -> None:
    page = pages.open(server.url)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answers_with(page, "Look:\n\n```python\nx = **1\n```\n")
    send(page, "hello")
    finished(page)
    page.locator(".assistant .code-head button").click()
    page.get_by_text("Copied", exact=True).wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "x = **1\n"
    act(page, "Copy")
    until(page, "async () => (await navigator.clipboard.readText()).startsWith('Look')")

"""Answers in the page: shown as they come, marked, stopped, made again, edited, compared."""

from __future__ import annotations

import json
import re
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
    exactly,
    expect,
    finished,
    last,
    send,
    settled,
    until,
    wait,
    without_drafts,
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
    tool_calls = [
        {"index": index, "id": f"c{index}", "function": {"name": name, "arguments": values}}
        for index, (name, values) in enumerate(functions.items())
    ]
    body = events({"choices": [{"delta": {"tool_calls": tool_calls}}]}, last(9, "tool_calls"))
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body))


def act(page: Any, name: str, index: int = -1) -> None:
    """Press a button below the last message that has it, or another one."""
    page.locator(f"#messages button[aria-label^='{name}']").nth(index).click()


def test_footer_and_panel_tell_one_speed(page: Any) -> None:
    timings = {**last(10)["timings"], "predicted_ms": 90.0}
    ended = last(10)  # the pass that chose the end token took 10 ms more
    ended["timings"]["predicted_per_second"] = 90.0
    body = events({**event_of("some text"), "timings": timings}, ended)
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body))
    ask(page, "hello")
    expect(page.locator(".assistant .facts")).to_contain_text("90\u00a0tokens/s")
    expect(page.locator("#speed .legend")).to_contain_text("90 tokens/s")


def test_accepted_words_are_marked_unless_that_is_turned_off(page: Any, pages: Pages) -> None:
    ask(page, REPEAT)
    pages.shot(page, "answer")
    expect(page.locator(CODE_SHOWN)).to_have_text(exactly(CODE))
    accepted, other = page.locator(f"{TEXT} .accepted").first, page.locator(TEXT)
    ground = other.evaluate("element => getComputedStyle(element).backgroundColor")
    expect(accepted).not_to_have_css("background-color", ground)
    expect(accepted).to_have_css("text-decoration-line", "underline")
    expect(other).to_have_css("text-decoration-line", "none")
    for part in ("tokens", "% from drafts", "tokens per pass", "tokens/s"):
        expect(page.locator(".assistant .facts")).to_contain_text(part)
    page.get_by_role("button", name="Mark accepted words").click()
    expect(accepted).to_have_css("text-decoration-line", "none")
    page.reload()
    expect(accepted).to_have_css("text-decoration-line", "none")


def test_marks_are_where_the_drafts_were(page: Any) -> None:
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
    ask(page, "hello")
    expect(page.locator(f"{TEXT} .accepted")).to_have_text(["ld", "wo", "me", "x", "x", "a"])
    expect(page.locator(f"{TEXT} strong")).to_have_text("bold")
    expect(page.locator(f"{TEXT} li")).to_have_text(["ab", "c"])


def test_text_arrives_while_the_answer_is_made(page: Any) -> None:
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
    until(page, "() => window.lengths.size > 3")


def test_the_end_of_an_answer_stops_no_timer_of_others(page: Any) -> None:
    page.evaluate("""() => {
        // numbers of frames, which timers can have as well, are told from those of timers
        const {requestAnimationFrame: ask, cancelAnimationFrame: cancel} = window;
        const clear = window.clearTimeout;
        const far = 1e6;
        window.wrong = [];
        window.requestAnimationFrame = paint => ask(paint) + far;
        window.cancelAnimationFrame = id => (id > far ? cancel(id - far) : window.wrong.push(id));
        window.clearTimeout = id => (id > far ? window.wrong.push(id) : clear(id));
    }""")
    for number in range(1, 6):
        answers_with(page, *["word "] * 50)
        ask(page, "hello", number)
    assert page.evaluate("window.wrong") == []


def test_a_second_message_knows_the_first(page: Any) -> None:
    bodies = bodies_of(page)
    ask(page, REPEAT)
    ask(page, REPEAT, 2)
    roles = [message["role"] for message in bodies[1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    assert CODE in bodies[1]["messages"][1]["content"]
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".message")).to_have_count(0)
    expect(page.get_by_role("button", name="Repeat code")).to_be_visible()


CLICK = "buttons => buttons.forEach(button => button.click())"  # those that are still there


def test_stop_ends_the_answer_and_frees_the_slot(page: Any, server: Server) -> None:
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
        expect(page.locator(".assistant .facts").last).to_contain_text("Stopped")
        wait(page, lambda: all(slot["state"] == "idle" for slot in live(server)["slots"]))
        expect(page.locator(TEXT).last).not_to_contain_text("area_15")
    wait(page, lambda: 'finished_reason="abort",' in server.get("/metrics"))
    page.get_by_role("button", name="New chat").click()
    expect(page.get_by_label("Message", exact=True)).to_be_focused()


def test_a_stopped_answer_is_continued(page: Any) -> None:
    page.route(
        "**/v1/chat/completions",
        lambda r: r.fulfill(body=events(event_of("One, "), last(2, "length"))),
    )
    ask(page, "Count")
    expect(page.locator(".facts")).to_contain_text("Cut off")
    bodies = bodies_of(page)
    answers_with(page, "two.")
    act(page, "Continue")
    page.get_by_text("One, two.").wait_for()
    assert [one["role"] for one in bodies[0]["messages"]] == ["user", "assistant"]
    expect(page.locator(".message")).to_have_count(2)


def test_an_answer_that_cannot_be_continued_keeps_its_figures(page: Any, pages: Pages) -> None:
    body = events(event_of("One, ", True), last(2, "length"))
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body))
    ask(page, "Count")
    act(page, "Compare")
    other = page.locator(".facts.other", has_text="the same text")
    other.wait_for()
    without_drafts(page)
    page.route("**/v1/chat/completions", lambda route: route.abort())
    act(page, "Continue")
    page.locator("#notice", has_text="does not answer").wait_for()
    for part in ("Cut off", "2 tokens", "50 % from drafts"):  # it is as it was
        expect(page.locator(".facts:not(.other)")).to_contain_text(part)
    expect(other).to_be_visible()
    expect(page.locator("#speed svg .line")).to_have_count(2)
    answers_with(page, "two.")
    act(page, "Continue")
    page.get_by_text("One, two.").wait_for()
    finished(page)
    expect(other).to_have_count(0)  # it is of another text
    expect(page.locator(".facts")).to_contain_text("no drafts")
    pages.complaints[:] = [text for text in pages.complaints if "ERR_FAILED" not in text]


def test_an_answer_whose_continuation_is_stopped_before_it_begins_is_what_it_was(page: Any) -> None:
    body = events(event_of("One, "), last(2, "length"))
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body))
    ask(page, "Count")
    page.route("**/v1/chat/completions", lambda route: None)  # never answered
    act(page, "Continue")
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Send").wait_for()
    expect(page.get_by_role("status")).to_have_text("Answer stopped.")
    expect(page.locator(".facts")).to_contain_text("Cut off")
    expect(page.locator("#messages button[aria-label^='Compare']")).to_be_visible()
    page.reload()
    page.locator(".facts", has_text="Cut off").wait_for()


def test_an_answer_is_made_again(page: Any) -> None:
    answers_with(page, "first")
    ask(page, "hello")
    bodies = bodies_of(page)
    answers_with(page, "another")
    act(page, "Answer again")
    page.get_by_text("another").wait_for()
    expect(page.locator(".message")).to_have_count(2)
    assert [one["content"] for one in bodies[0]["messages"]] == ["hello"]
    # one that fails leaves the old one
    refused = {"error": {"message": "no such luck", "code": "x"}}
    page.route("**/v1/chat/completions", lambda r: r.fulfill(status=400, json=refused))
    act(page, "Answer again")
    page.get_by_text("no such luck").wait_for()
    expect(page.locator(TEXT)).to_have_text("another")


def test_answering_an_early_question_again_asks_first(page: Any) -> None:
    answers_with(page, "answer")
    for number, text in enumerate(("one", "two"), 1):
        ask(page, text, number)
    act(page, "Answer again", 0)
    asked = page.locator("#confirm")
    expect(asked).to_contain_text("replaces this one and the 2 messages below")
    asked.get_by_role("button", name="Cancel").click()
    settled(page)
    expect(page.locator(".message")).to_have_count(4)
    act(page, "Answer again", 0)
    page.locator("#confirm-yes").click()
    expect(page.locator(".message")).to_have_count(2)
    finished(page)


def test_an_answer_stopped_before_it_begins_leaves_what_it_was_to_replace(page: Any) -> None:
    answers_with(page, "answer")
    ask(page, "hello")
    page.route("**/v1/chat/completions", lambda route: None)  # never answered
    act(page, "Answer again")
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Send").wait_for()
    expect(page.locator(TEXT)).to_have_text("answer")
    page.locator(".message.user").get_by_role("button", name="Edit").click()
    field = page.get_by_label("Text of the message")
    field.fill("changed")
    page.locator(".edit").get_by_role("button", name="Send").click()
    page.get_by_role("button", name="Stop").click()
    expect(field).to_have_value("changed")  # to go on with
    page.keyboard.press("Escape")
    expect(page.locator(TEXT)).to_have_text("answer")
    expect(page.locator(".message.user")).to_contain_text("hello")
    page.reload()
    page.locator(TEXT, has_text="answer").wait_for()


def test_a_message_is_edited(page: Any) -> None:
    answers_with(page, "answer")
    for number, text in enumerate(("one", "two"), 1):
        ask(page, text, number)
    bodies = bodies_of(page)
    page.locator(".message.user").first.get_by_role("button", name="Edit").click()
    field = page.get_by_label("Text of the message")
    expect(field).to_have_value("one")
    expect(page.locator(".edit")).to_contain_text("replaces the 3 messages below")
    page.keyboard.press("Escape")
    expect(field).to_have_count(0)
    expect(page.locator("#prompt")).to_be_focused()
    expect(page.locator(".message")).to_have_count(4)
    page.locator(".message.user").first.get_by_role("button", name="Edit").click()
    field.fill("three")
    page.locator(".edit").get_by_role("button", name="Send").click()
    expect(page.locator(".message")).to_have_count(2)
    finished(page)
    assert [one["content"] for one in bodies[0]["messages"]] == ["three"]
    # an answer's text is changed in place
    act(page, "Edit")
    field.fill("changed")
    page.locator(".edit").get_by_role("button", name="Save").click()
    expect(page.locator(TEXT)).to_have_text("changed")
    page.reload()
    page.get_by_text("changed").wait_for()


def test_an_edited_message_waits_for_the_answer_that_comes_in(page: Any) -> None:
    answers_with(page, "answer")
    ask(page, "one")
    act(page, "Edit", 0)
    field = page.get_by_label("Text of the message")
    field.fill("changed")
    page.route("**/v1/chat/completions", lambda route: None)  # never answered
    send(page, "two")
    form = page.locator(".edit")
    form.get_by_role("button", name="Send").click()
    for place in (form, page.get_by_role("status")):
        expect(place).to_contain_text("An answer is coming in.")
    expect(field).to_have_value("changed")
    page.get_by_role("button", name="Stop").click()
    page.locator("#send").wait_for()
    answers_with(page, "another")
    form.get_by_role("button", name="Send").click()
    page.get_by_text("another").wait_for()
    expect(page.locator(".message.user")).to_contain_text("changed")


def test_a_message_being_edited_stays_when_an_answer_above_is_changed(page: Any) -> None:
    answers_with(page, "answer\n\nof two parts")
    for number, text in enumerate(("one", "two"), 1):
        ask(page, text, number)
    act(page, "Edit", 2)
    page.get_by_label("Text of the message").fill("begun")
    act(page, "Edit", 1)
    form = page.locator(".edit").first
    form.get_by_label("Text of the message").fill("changed")
    form.get_by_role("button", name="Save").click()
    page.get_by_text("changed").wait_for()
    expect(page.locator(".edit textarea")).to_have_count(1)
    expect(page.locator(".edit textarea")).to_have_value("begun")
    expect(page.locator(".message").nth(1).locator(".text")).to_have_text("changed")


def refuses(page: Any, words: str) -> None:
    """Let the page get an error instead of an answer."""
    refused = {"error": {"message": words, "code": "x"}}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=400, json=refused))


def test_what_is_being_edited_comes_back_with_what_an_answer_did_not_replace(page: Any) -> None:
    answers_with(page, "answer")
    for number, text in enumerate(("one", "two"), 1):
        ask(page, text, number)
    act(page, "Edit", 2)
    page.get_by_label("Text of the message").fill("begun")
    forms = page.locator(".edit")
    refuses(page, "no such luck")
    act(page, "Edit", 0)
    forms.first.get_by_label("Text of the message").fill("changed")
    forms.first.get_by_role("button", name="Send").click()
    page.get_by_text("no such luck").wait_for()
    expect(page.locator(".edit")).to_have_count(2)
    fields = page.locator(".edit textarea")
    for index, text in enumerate(("changed", "begun")):
        expect(fields.nth(index)).to_have_value(text)
    forms.first.get_by_role("button", name="Cancel").click()
    refuses(page, "nor now")
    act(page, "Answer again", 0)
    page.locator("#confirm-yes").click()
    page.get_by_text("nor now").wait_for()
    expect(fields).to_have_value("begun")
    expect(page.locator(".message")).to_have_count(4)
    answers_with(page, "another")
    forms.get_by_role("button", name="Send").click()
    page.get_by_text("another").wait_for()
    expect(page.locator(".message.user").last).to_contain_text("begun")


def test_a_result_being_typed_comes_back_with_its_call(page: Any) -> None:
    calls(page, weather="{}")
    ask(page, "Weather?")
    field = page.get_by_label("Result of weather")
    field.fill("ra")
    refuses(page, "no such luck")
    act(page, "Edit", 0)
    page.locator(".edit").get_by_role("button", name="Send").click()
    page.get_by_text("no such luck").wait_for()
    expect(field).to_have_value("ra")


def test_an_answer_is_compared_with_one_without_drafts(page: Any, pages: Pages) -> None:
    bodies = bodies_of(page)
    ask(page, REPEAT)
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
    for words in ("with drafts", "without drafts"):
        expect(page.locator("#speed .legend")).to_contain_text(words)
    expect(page.locator("#speed svg .line")).to_have_count(2)
    expect(page.locator("#speed .times")).to_contain_text("× the speed without drafts")
    pages.shot(page, "compared")
    page.reload()  # it stays with the chat
    page.locator("#speed .times").wait_for()
    expect(page.locator(".message")).to_have_count(2)


def test_no_comparison_is_offered_while_an_answer_comes_in(page: Any) -> None:
    ask(page, REPEAT)
    offer = page.locator("#speed button")
    expect(offer).to_be_visible()
    page.route("**/v1/chat/completions", lambda route: None)  # never answered
    send(page, "hello")
    expect(offer).to_be_hidden()


def test_every_answer_is_compared_if_set(page: Any) -> None:
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Answer everything twice").check()
    page.get_by_role("button", name="Done").click()
    send(page, REPEAT)
    page.locator(".facts.other", has_text="times the speed").wait_for()


def test_a_comparison_asks_what_was_asked(page: Any, tmp_path: Path) -> None:
    bodies = bodies_of(page)
    answers_with(page, "answer")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System").fill("Be brief.")
    page.get_by_role("button", name="Done").click()
    ask(page, "hello")
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
    expect(page.locator(".chat-name")).to_have_count(2)
    act(page, "Compare")
    page.locator(".facts.other", has_text="the same text").wait_for()
    first, *others = bodies
    assert first["messages"][0] == {"role": "system", "content": "Be brief."}
    assert "system" not in first
    assert len(others) == 2
    for other in others:
        assert other["messages"] == first["messages"]
        assert other["seed"] == first["seed"]
    exported = json.loads(path.read_text())
    for message in exported["chats"][0]["messages"]:
        message.pop("asked", None)
    path.write_text(json.dumps(exported))
    page.locator("#import-file").set_input_files(path)  # of a page that did not keep it
    expect(page.locator(".chat-name")).to_have_count(3)
    page.locator("#messages button[aria-label='Answer again']").wait_for()
    expect(page.locator("#messages button[aria-label^='Compare']")).to_have_count(0)


def test_reasoning_is_folded(page: Any) -> None:
    code = CODE.replace("height", "h")
    ask(page, f"Think, then rename `width` to `w` in this code:\n\n```python\n{code}```")
    thoughts = page.locator(".assistant .reasoning")
    expect(thoughts.locator(".text")).to_be_hidden()
    expect(thoughts.locator("summary")).to_contain_text("Thoughts")
    thoughts.locator("summary").click()
    expect(thoughts.locator(".text")).to_contain_text("w")
    expect(page.locator(".assistant")).not_to_contain_text("<think>")


def test_tool_calls_are_readable_and_take_results(page: Any) -> None:
    function = {"name": "weather", "arguments": '{"city": "Ulm", "days": 2}'}
    calls(page, weather=function["arguments"])
    page.get_by_role("button", name="Settings").click()
    tools = [{"type": "function", "function": {"name": "weather"}}]
    page.get_by_label("Further fields").fill(json.dumps({"tools": tools}))
    page.get_by_role("button", name="Done").click()
    bodies = bodies_of(page)
    ask(page, "Weather?")
    assert bodies[0]["tools"] == tools
    for part in ("Calls", "weather", "city", "Ulm", "days", "2"):
        expect(page.locator(".call")).to_contain_text(part)
    answers_with(page, "It rains.")
    page.get_by_label("Result of weather").fill("rain")
    page.get_by_role("button", name="Give result").click()
    page.get_by_text("It rains.").wait_for()
    chat = bodies[1]["messages"]
    assert chat[1]["tool_calls"][0]["function"] == function
    assert chat[2] == {"role": "tool", "content": "rain", "tool_call_id": "c0", "name": "weather"}


def test_results_being_typed_stay_when_another_is_given(page: Any) -> None:
    calls(page, weather="{}", news="{}")
    ask(page, "What is new?")
    page.get_by_label("Result of weather").fill("rain")
    page.get_by_label("Result of news").fill("nothing so far")
    page.get_by_role("button", name="Give result").first.click()
    page.locator(".message.tool", has_text="rain").wait_for()
    expect(page.get_by_label("Result of weather")).to_have_count(0)
    expect(page.get_by_label("Result of news")).to_have_value("nothing so far")


def test_a_chat_that_has_gone_on_takes_no_results(page: Any, pages: Pages) -> None:
    calls(page, weather="{}")
    ask(page, "Weather?")
    field = page.get_by_label("Result of weather")
    field.fill("ra")
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=503, json={}))
    send(page, "Never mind.")
    page.locator("#notice", has_text="status 503").wait_for()
    expect(field).to_be_visible()  # the message was taken back
    answers_with(page, "fine")
    ask(page, "Never mind.", 2)
    expect(field).to_be_hidden()
    other = pages.open(page.url)  # which is followed, as nothing is being written
    answers_with(other, "good")
    send(other, "And now?")
    page.get_by_text("good").wait_for()


def test_a_result_that_is_not_answered_can_be_given_again(page: Any, pages: Pages) -> None:
    calls(page, weather="{}")
    ask(page, "Weather?")
    field = page.get_by_label("Result of weather")
    give = page.get_by_role("button", name="Give result")
    field.fill("rain")
    page.route("**/v1/chat/completions", lambda route: route.abort())
    give.click()
    page.locator("#notice", has_text="does not answer").wait_for()
    expect(page.locator(".message.tool")).to_have_count(0)
    expect(field).to_have_value("rain")
    other = pages.open(page.url)
    expect(other.get_by_label("Result of weather")).to_have_value("rain")
    bodies = bodies_of(page)
    answers_with(page, "It rains.")
    give.click()
    page.get_by_text("It rains.").wait_for()
    assert [one["role"] for one in bodies[0]["messages"]] == ["user", "assistant", "tool"]
    expect(field).to_have_count(0)
    other.get_by_text("It rains.").wait_for()  # nothing was written there
    pages.complaints[:] = [text for text in pages.complaints if "ERR_FAILED" not in text]


@pytest.mark.parametrize("whole", [[], [{"name": "news", "arguments": "{}"}]], ids=["one", "two"])
def test_a_call_that_is_cut_off_is_not_sent_again(page: Any, whole: list[dict[str, str]]) -> None:
    functions = [*whole, {"name": "weather", "arguments": '{"city": "U'}]
    tool_calls = [{"index": i, "id": f"c{i}", "function": one} for i, one in enumerate(functions)]
    delta = {"content": "Let me see.", "tool_calls": tool_calls}
    body = f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n"  # and no end
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body))
    ask(page, "What is new?")
    expect(page.locator("#notice")).to_contain_text("connection to the server was lost")
    expect(page.get_by_role("button", name="Continue")).to_have_count(0)
    expect(page.get_by_label("Result of weather")).to_have_count(0)
    page.unroute_all()
    bodies = bodies_of(page)
    if whole:
        page.get_by_label("Result of news").fill("none")
        page.get_by_role("button", name="Give result").click()
    else:
        send(page, "And now?")
    finished(page, 2)
    expect(page.locator("#notice")).to_be_hidden()  # the server takes it
    message = bodies[0]["messages"][1]
    assert message["content"] == "Let me see."
    assert [one["function"] for one in message.get("tool_calls", [])] == whole


def test_texts_are_copied(page: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answers_with(page, "Look:\n\n```python\nx = **1\n```\n")
    ask(page, "hello")
    page.evaluate("window.setTimeout = () => 0")  # which would soon take "Copied" away
    page.locator(".assistant .code-head button").click()
    page.get_by_text("Copied", exact=True).wait_for()
    expect(page.locator(".assistant .code-head button")).to_be_focused()
    assert page.evaluate("navigator.clipboard.readText()") == "x = **1\n"
    act(page, "Copy")
    until(page, "async () => (await navigator.clipboard.readText()).startsWith('Look')")

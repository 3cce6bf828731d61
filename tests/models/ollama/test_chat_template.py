"""Whole conversations in templates of every shape, by Ollama's rules."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from chat_texts import CHAT, CHATML, EVERY, FIM, GEMMA, INST, LLAMA3, MISTRAL, THINKING, TOOLS
from hypothesis import given
from hypothesis import strategies as st

from ngramspec.errors import FormatError, InputError, NgramspecError
from ngramspec.models.ollama.chat_template import ChatTemplate, render_chat
from ngramspec.text.limits import RenderLimits


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


@pytest.mark.parametrize(
    ("template", "text"), [one[1:] for one in EVERY], ids=[one[0] for one in EVERY]
)
def test_a_conversation_is_written_as_the_model_knows_it(template: str, text: str) -> None:
    assert render_chat(template, CHAT) == text
    assert render_chat(template, CHAT[1:], system="Be brief.") == text
    assert render_chat(template, CHAT[:-1], prompt="2 < 3?") == text
    assert render_chat(template, CHAT, system="Not this one.") == text
    assert render_chat(template, CHAT, tools=[], think=None) == text


@pytest.mark.parametrize("template", [LLAMA3, CHATML, GEMMA, INST, MISTRAL])
def test_a_lone_question_needs_no_system_message(template: str) -> None:
    text = render_chat(template, [user("Why?")])
    assert "Why?" in text
    assert text == render_chat(template, prompt="Why?")
    assert text == render_chat(template, [user("Why?")], system="")
    assert "<no value>" not in text


def test_an_old_template_is_written_turn_by_turn() -> None:
    def written(*messages: dict[str, Any], **more: Any) -> str:
        return render_chat("<{{ .System }}|{{ .Prompt }}|{{ .Response }}>", messages, **more)

    system = {"role": "system", "content": "s"}
    assert written() == "<||"
    assert written(user("a")) == "<|a|"
    assert written(user("a"), assistant("b")) == "<|a|b"
    assert written(user("a"), assistant("b"), user("c")) == "<|a|b><|c|"
    assert written(system, user("a"), assistant("b"), user("c")) == "<s|a|b><|c|"
    assert written(user("a"), system, user("c")) == "<|a|><s|c|"
    assert written(assistant("b"), user("c")) == "<||b><|c|"
    assert written(user("a"), {"role": "tool", "content": "t"}, user("c")) == "<|c|"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ .Prompt }}A{{ .Response }}Z", "pAr"),
        ("{{ .Prompt }}A", "pAr"),
        ("{{ .Prompt }}{{ if .Response }}[{{ .Response }}]{{ else }}none{{ end }}Z", "p[r"),
        ("{{ .Prompt }}{{ with .Response }}[{{ . }}]{{ end }}Z", "p[r]Z"),
        ('{{ .Prompt }}{{ printf "%s!" .Response }}Z', "pr!"),
        ('{{ .Prompt }}{{ printf "%s!" (print .Response "x") }}Z', "pr!"),
        ("{{ .Prompt }}{{ .Response | json }}Z", "p"),
        ("{{ .Prompt }}{{ $r := .Response }}{{ $r }}Z", "p"),
        ("{{ .Prompt }}{{ range 2 }}{{ $.Response }}{{ end }}Z", "prrZ"),
    ],
)
def test_the_last_turn_ends_at_the_response(template: str, text: str) -> None:
    assert render_chat(template, [user("p"), assistant("r")]) == text


def test_messages_of_one_role_in_a_row_become_one() -> None:
    tool = {"role": "tool", "content": "t"}
    messages = [user("a"), user("b"), assistant("c"), tool, tool, user("d")]
    shown = "{{ range .Messages }}{{ .Role }}:{{ json .Content }};{{ end }}"
    assert render_chat(shown, messages) == (
        'user:"a\\n\\nb";assistant:"c";tool:"t";tool:"t";user:"d";'
    )
    call = {"function": {"name": "f", "arguments": {}}}
    calls = "{{ range .Messages }}{{ .Content }}{{ len .ToolCalls }}{{ json . }}{{ end }}"
    several = [assistant("a", tool_calls=[call]), assistant("b", tool_calls=[call])]
    assert render_chat(calls, several).startswith("a\n\nb2{")
    assert messages[0] == user("a")


def test_all_system_messages_are_collected() -> None:
    messages = [
        {"role": "system", "content": "one"},
        {"role": "SYSTEM", "content": "two"},
        user("a"),
        {"role": "system", "content": "three"},
        user("b"),
    ]
    shown = "{{ .System }}|{{ range .Messages }}{{ .Role }},{{ end }}"
    assert render_chat(shown, messages) == "one\n\ntwo\n\nthree|system,user,system,user,"


def test_tools_and_calls_are_json_in_the_order_of_ollama() -> None:
    call = {"id": "c1", "function": {"name": "weather", "arguments": {"unit": "c", "city": "<B>"}}}
    messages = [
        user("Weather?"),
        assistant("", tool_calls=[call]),
        {"role": "tool", "content": '"sunny"', "tool_name": "weather", "tool_call_id": "c1"},
        user("Thanks"),
    ]
    assert render_chat(MISTRAL, messages, tools=TOOLS) == (
        "[INST] Weather?[/INST][TOOL_CALLS] "
        '[{"name": "weather", "arguments": {"city":"\\u003cB\\u003e","unit":"c"}}]</s>'
        '[TOOL_RESULTS] {"content": "\\"sunny\\""}[/TOOL_RESULTS][AVAILABLE_TOOLS] '
        '[{"type":"function","function":{"name":"weather","description":"Tell the weather.",'
        '"parameters":{"type":"object","required":["city"],"properties":{'
        '"city":{"type":"string","description":"A \\u003ccity\\u003e"},'
        '"unit":{"type":"string","enum":["c","f"]}}}}}][/AVAILABLE_TOOLS][INST] Thanks[/INST]'
    )


@pytest.mark.parametrize(
    ("think", "end"),
    [
        (None, ""),
        (False, "<no_think>"),
        (True, "<medium>"),
        ("low", "<low>"),
        ("medium", "<medium>"),
        ("high", "<high>"),
    ],
)
def test_a_template_knows_whether_to_think(think: Any, end: str) -> None:
    messages = [user("a"), assistant("b", thinking="hm"), user("c")]
    assert render_chat(THINKING, messages, think=think) == f"U:a;A<think>hm</think>:b;U:c;{end}"
    legacy = "{{ .Prompt }}{{ if .IsThinkSet }}{{ .Think }}{{ .ThinkLevel }}{{ end }}"
    assert render_chat(legacy, prompt="p", think="high") == "ptruehigh"


def test_a_gap_is_filled_with_prompt_and_suffix() -> None:
    assert render_chat(FIM, prompt="def f(", suffix="return x") == (
        "<PRE> def f( <SUF>return x <MID>"
    )
    assert render_chat(FIM, suffix="x") == "<PRE>  <SUF>x <MID>"
    assert render_chat(FIM, prompt="def f(") == "def f("
    assert render_chat(FIM, [user("hello")], suffix="") == "hello"
    assert render_chat("{{ .Suffix }}{{ .Response }}!", suffix="x") == "x!"


def test_the_day_can_be_given() -> None:
    day = datetime.date(2024, 3, 1)
    template = "{{ currentDate }} {{ yesterdayDate }}{{ .Response }}"
    assert render_chat(template, today=day) == "2024-03-01 2024-02-29"
    before = datetime.date.today().isoformat()
    written = render_chat("{{ currentDate }}{{ .Response }}")
    assert written in (before, datetime.date.today().isoformat())


def test_what_a_template_can_do_is_known() -> None:
    assert ChatTemplate.parse(MISTRAL).capabilities == {"messages", "tools"}
    assert ChatTemplate.parse(FIM).capabilities == {"insert"}
    assert ChatTemplate.parse(THINKING).capabilities == {"messages", "thinking"}
    assert ChatTemplate.parse(INST).capabilities == frozenset()
    assert ChatTemplate.parse(INST) is ChatTemplate.parse(INST)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"suffix": "x", "messages": [user("a")]}, "suffix takes a prompt, not messages"),
        ({"suffix": "x", "prompt": "p"}, "the template has no .Suffix"),
        ({"think": "extreme"}, "think must be true, false, low, medium, high: 'extreme'"),
        ({"think": 3}, "think must be"),
        ({"messages": "text"}, "messages must be a list, not str"),
        ({"messages": ["text"]}, r"messages\[0\] must be an object, not str"),
        ({"messages": [user("a"), {"role": 1}]}, r"messages\[1\].role must be a text, not int"),
        ({"messages": [{"role": ""}]}, r"messages\[0\].role must be system, user, assistant"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, r"content must be a text, not list"),
        ({"messages": [assistant("", tool_calls={})]}, "tool_calls must be a list, not dict"),
        ({"messages": [assistant("", tool_calls=[1])]}, r"tool_calls\[0\] must be an object"),
        ({"messages": [assistant("", images="x")]}, "images must be a list"),
        ({"tools": {}}, "tools must be a list, not dict"),
        ({"tools": ["f"]}, r"tools\[0\] must be an object"),
        ({"tools": [{"function": []}]}, r"tools\[0\].function must be an object"),
        ({"tools": [{"type": 1}]}, r"tools\[0\].type must be a text"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        render_chat("{{ range .Messages }}{{ .Content }}{{ end }}", **arguments)


def test_errors_of_a_template_name_its_line() -> None:
    with pytest.raises(FormatError, match=r"template, line 2: expected \{\{end\}\}"):
        render_chat("\n{{ if .Messages }}", CHAT)
    with pytest.raises(FormatError, match="template, line 3: expected something with the field"):
        render_chat("\n{{ range .Messages }}\n{{ .Content.Text }}{{ end }}", CHAT)
    with pytest.raises(FormatError, match="the field Text, found string"):
        render_chat("{{ .Prompt.Text }}{{ .Response }}", CHAT)


def test_the_limits_hold_for_all_turns_together() -> None:
    template = ChatTemplate.parse("{{ range 1000 }}{{ end }}{{ .Prompt }}{{ .Response }}")
    messages = [user("a"), assistant("b")] * 40
    with pytest.raises(InputError, match="more than 20000 steps"):
        template.render(messages, limits=RenderLimits(steps=20_000))
    assert RenderLimits().steps == 2_000_000


def test_a_long_conversation_is_within_the_limits() -> None:
    messages = [user("question " * 50), assistant("answer " * 100)] * 1000
    text = render_chat(GEMMA, messages)
    assert text.count("<start_of_turn>") == 2001


ROLES = st.sampled_from(["system", "user", "assistant", "tool", "Other"])
CALLS = st.lists(st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": st.text()})}))
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": ROLES, "content": st.text(max_size=5) | st.none()}, optional={"tool_calls": CALLS}
    ),
    max_size=6,
)


@given(MESSAGES, st.sampled_from([one[1] for one in EVERY]), st.sampled_from([None, True, "low"]))
def test_any_conversation_is_written_and_its_last_question_is_in_it(
    messages: list[dict[str, Any]], template: str, think: Any
) -> None:
    text = render_chat(template, [*messages, user("last question")], think=think)
    assert "last question" in text
    assert "<no value>" not in text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
KEYS = [
    "role",
    "content",
    "tool_calls",
    "function",
    "name",
    "arguments",
    "parameters",
    "properties",
]
KEYS += ["type", "anyOf", "enum", "images", "thinking"]
ODD = st.recursive(
    JSON,
    lambda inner: st.dictionaries(st.sampled_from(KEYS), inner) | st.lists(inner),
    max_leaves=8,
)


@given(
    ODD, ODD, st.sampled_from([MISTRAL, LLAMA3, INST, "{{ json . }}{{ .Messages }}{{ .Tools }}"])
)
def test_any_json_as_messages_and_tools_is_written_or_refused(
    messages: Any, tools: Any, template: str
) -> None:
    try:
        text = render_chat(template, messages, tools=tools)
    except NgramspecError:
        return
    assert isinstance(text, str)

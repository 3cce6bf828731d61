"""The grammar of an answer: what may not be asked for together."""

from __future__ import annotations

import pytest

from ngramspec.errors import ChatError, GrammarError
from ngramspec.text.chat.format import chat_format
from ngramspec.text.chat.grammar import chat_grammar
from ngramspec.text.chat.tools import tools_of

CLOCK = {"type": "function", "function": {"name": "get_time"}}


def test_a_grammar_alone_is_kept_and_refused_beside_tools() -> None:
    text = 'root ::= "a"'
    assert chat_grammar(text, None, "json_schema", chat_format("", "")) == text
    format = chat_format("", "", tools_of([CLOCK]))
    with pytest.raises(ChatError, match="grammar cannot be used with tools") as caught:
        chat_grammar(text, None, "json_schema", format)
    assert caught.value.field == "grammar"


def test_a_schema_that_is_not_valid_names_its_field() -> None:
    with pytest.raises(GrammarError) as caught:
        chat_grammar("", {"type": "nothing"}, "response_format", chat_format("", ""))
    assert str(caught.value.field).startswith("response_format")

"""Hermes: <tool_call>{...}</tool_call>, which Qwen and many others write too."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ngramspec.server.chat.calls.format import Mark
from ngramspec.server.chat.calls.json_call import JsonCallFormat
from ngramspec.server.chat.tools import Tools

END = "</tool_call>"
INSTRUCTIONS = """\
You can call these functions, each described by a JSON object:
{tools}

To call one, write nothing but a JSON object with its name and arguments between tags:
<tool_call>
{{"name": "the function", "arguments": {{"parameter": "value"}}}}
</tool_call>"""


class Hermes(JsonCallFormat):
    """Each call is between tags. Models whose template lacks tools are told to write it."""

    marks = (Mark("<tool_call>"),)
    open, middle, close = '<tool_call>\n{"name": ', ', "arguments": ', "}\n</tool_call>"
    between = "\n"

    def fits(self, template: str) -> bool:
        """Return True: this is the format of templates that no other format fits."""
        return True

    def after(self, text: str) -> tuple[int, bool] | None:
        """Skip the closing tag, which may be missing."""
        start = text.lstrip()
        if start != END and END.startswith(start):
            return None
        return len(text) - len(start.removeprefix(END)), False


def instructions(tools: Tools) -> str:
    """Return the system text about tools for models whose template does not mention them."""
    described = (json.dumps(tool.given.get("function", tool.given)) for tool in tools.tools)
    return INSTRUCTIONS.format(tools="\n".join(described))


def written_calls(calls: Sequence[Mapping[str, Any]]) -> str:
    """Return earlier calls as text, for models whose template does not know them."""
    made = []
    for call in calls:
        function = call.get("function", {})
        arguments = function.get("arguments", {})
        body = json.dumps({"name": function.get("name"), "arguments": arguments})
        made.append(f"<tool_call>\n{body}\n</tool_call>")
    return "\n".join(made)

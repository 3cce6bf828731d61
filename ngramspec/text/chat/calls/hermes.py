"""Tools and calls as text, for models whose chat template does not know them: in Hermes's format.

Hermes writes <tool_call>{...}</tool_call>, as Qwen and many others do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ngramspec.text.chat.tools import Tools

INSTRUCTIONS = """\
You can call these functions, each described by a JSON object:
{tools}

To call one, write nothing but a JSON object with its name and arguments between tags:
<tool_call>
{{"name": "the function", "arguments": {{"parameter": "value"}}}}
</tool_call>"""


def instructions(tools: Tools) -> str:
    """Return the system text about tools for models whose template does not mention them."""
    definitions = (tool.definition for tool in tools.tools)
    described = (json.dumps(one.get("function", one)) for one in definitions)
    return INSTRUCTIONS.format(tools="\n".join(described))


def written_calls(calls: Sequence[Mapping[str, Any]]) -> str:
    """Return earlier calls as text, for models whose template does not know them."""
    texts = []
    for call in calls:
        function = call.get("function", {})
        arguments = function.get("arguments", {})
        body = json.dumps({"name": function.get("name"), "arguments": arguments})
        texts.append(f"<tool_call>\n{body}\n</tool_call>")
    return "\n".join(texts)

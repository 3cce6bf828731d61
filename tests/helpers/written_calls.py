"""Answers as the models of each family write them, made without the server's code.

Templates are short excerpts that we wrote: no more than tells the families apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Arguments = Mapping[str, Any]
Calls = Sequence[tuple[str, Arguments]]


@dataclass(frozen=True)
class Family:
    """How a family answers.

    template: Distinguishing parts of its chat template.
    write: Writes calls.
    reasoning: The marks around its reasoning, "" for none.
    alone: Its calls are all of the answer.
    single: It writes one call per answer.
    bare: Argument values whose strings have no quotes must not hold this.
    """

    template: str
    write: Callable[[Calls], str]
    reasoning: tuple[str, str] = ("", "")
    alone: bool = False
    single: bool = False
    bare: str = ""


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def named(start: str, call: str, end: str, between: str = "") -> Callable[[Calls], str]:
    """Return a writer of names and objects; in `call`, NAME, INDEX and JSON are replaced."""

    def write(calls: Calls) -> str:
        texts = (
            call.replace("NAME", n).replace("INDEX", str(i)).replace("JSON", dumped(a))
            for i, (n, a) in enumerate(calls)
        )
        return start + between.join(texts) + end

    return write


def objects(
    start: str, end: str, between: str = ", ", name: str = "name", arguments: str = "arguments"
) -> Callable[[Calls], str]:
    """Return a writer of objects, all of them between two texts."""
    return named(start, f'{{"{name}": "NAME", "{arguments}": JSON}}', end, between)


def each(start: str, end: str, between: str = "\n") -> Callable[[Calls], str]:
    """Return a writer of objects, each between two texts."""
    one = objects(start, end)
    return lambda calls: between.join(one([call]) for call in calls)


def tagged(
    start: str, head: str, parameter: str, tail: str, end: str, between: str = ""
) -> Callable[[Calls], str]:
    """Return a writer of tags; NAME, KEY, VALUE and STRING (true or false) are replaced."""

    def value(one: Any) -> str:
        return one if isinstance(one, str) else dumped(one)

    def written(arguments: Arguments) -> str:
        return "".join(
            parameter.replace("KEY", key)
            .replace("STRING", dumped(isinstance(one, str)))
            .replace("VALUE", value(one))
            for key, one in arguments.items()
        )

    def write(calls: Calls) -> str:
        texts = (head.replace("NAME", n) + written(a) + tail for n, a in calls)
        return start + between.join(texts) + end

    return write


def keywords(start: str, end: str, value: Callable[[Any], str] = dumped) -> Callable[[Calls], str]:
    """Return a writer of calls as Python has them, by default with JSON's literals."""

    def write(calls: Calls) -> str:
        texts = (f"{n}({', '.join(f'{k}={value(v)}' for k, v in a.items())})" for n, a in calls)
        return f"{start}[{', '.join(texts)}]{end}"

    return write


LFM2 = keywords("<|tool_call_start|>", "<|tool_call_end|>")  # knows JSON's literals, too
real_python = keywords("<|tool_call_start|>", "<|tool_call_end|>", repr)


def gemma(calls: Calls) -> str:
    """Write calls as Gemma 4 does."""

    def value(one: Any) -> str:
        if isinstance(one, str):
            return f'<|"|>{one}<|"|>'
        if isinstance(one, list):
            return f"[{','.join(map(value, one))}]"
        if isinstance(one, dict):
            return f"{{{','.join(f'{k}:{value(v)}' for k, v in one.items())}}}"
        return dumped(one)

    return "".join(f"<|tool_call>call:{n}{value(a)}<tool_call|>" for n, a in calls)


def kimi_k3(calls: Calls) -> str:
    def kind(one: Any) -> str:
        kinds = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
        return kinds.get(type(one), "object")

    def written(arguments: Arguments) -> str:
        return "".join(
            f'<|open|>argument key="{k}" type="{kind(v)}"<|sep|>'
            f"{v if isinstance(v, str) else dumped(v)}<|close|>argument<|sep|>"
            for k, v in arguments.items()
        )

    texts = (
        f'<|open|>call tool="{n}" index="1"<|sep|>{written(a)}<|close|>call<|sep|>'
        for n, a in calls
    )
    return f"<|open|>tools<|sep|>{''.join(texts)}<|close|>tools<|sep|>"


def minimax_m3(calls: Calls) -> str:
    tag = "]<]minimax[>["

    def value(one: Any) -> str:
        if isinstance(one, dict):
            return "".join(f"{tag}<{k}>{value(v)}{tag}</{k}>" for k, v in one.items())
        if isinstance(one, list):
            return "".join(f"{tag}<item>{value(v)}{tag}</item>" for v in one)
        return one if isinstance(one, str) else dumped(one)

    texts = (f'{tag}<invoke name="{n}">{value(a)}{tag}</invoke>\n' for n, a in calls)
    return f"{tag}<tool_call>\n{''.join(texts)}{tag}</tool_call>"


def muse(calls: Calls) -> str:
    one = tagged(
        "<atem:function_calls>\n",
        '<atem:invoke name="NAME">\n',
        '<atem:parameter name="KEY">VALUE</atem:parameter>\n',
        "</atem:invoke>\n",
        "</atem:function_calls>",
    )
    texts = (f" to={name}<|message|>{one([(name, a)])}" for name, a in calls)
    return "<|eom|><|start|>assistant".join(texts)


THINK = ("<think>\n", "\n</think>\n\n")
XML = (
    "<function=NAME>\n",
    "<parameter=KEY>\nVALUE\n</parameter>\n",
    "</function>\n",
)
GLM_LINES = tagged(
    "",
    "<tool_call>NAME\n",
    "<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n",
    "</tool_call>",
    "",
    "\n",
)
GLM = tagged(
    "",
    "<tool_call>NAME",
    "<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>",
    "</tool_call>",
    "",
)
HUNYUAN = tagged(
    "<tool_calls:opensource>\n",
    "<tool_call:opensource>NAME<tool_sep:opensource>\n",
    "<arg_key:opensource>KEY</arg_key:opensource>\n"
    "<arg_value:opensource>VALUE</arg_value:opensource>\n",
    "</tool_call:opensource>\n",
    "</tool_calls:opensource>",
)


def dsml(block: str) -> Callable[[Calls], str]:
    return tagged(
        f"<｜DSML｜{block}>\n",
        '<｜DSML｜invoke name="NAME">\n',
        '<｜DSML｜parameter name="KEY" string="STRING">VALUE</｜DSML｜parameter>\n',
        "</｜DSML｜invoke>\n",
        f"</｜DSML｜{block}>",
    )


def qwen_coder(calls: Calls) -> str:
    one = tagged("<tool_call>\n", *XML, "</tool_call>")
    return "\n".join(one([call]) for call in calls)


def seed(calls: Calls) -> str:
    one = tagged(
        "<seed:tool_call>\n",
        "<function=NAME>\n",
        "<parameter=KEY>VALUE</parameter>\n",
        "</function>\n",
        "</seed:tool_call>",
    )
    return "\n".join(one([call]) for call in calls)


FAMILIES: dict[str, Family] = {
    "Hermes, Qwen": Family(
        "<tool_call> {{ tools }} <think>", each("<tool_call>\n", "\n</tool_call>"), THINK
    ),
    "Llama 3": Family(
        '{"name": ..., "parameters": ...} <|python_tag|>',
        objects("", "", "; ", arguments="parameters"),
        alone=True,
    ),
    "Mistral": Family("'[TOOL_CALLS]['", objects("[TOOL_CALLS][", "]")),
    "Mistral Small 3, Devstral, Ministral": Family(
        "[THINK] [TOOL_CALLS] [ARGS]",
        named("", "[TOOL_CALLS]NAME[ARGS]JSON", ""),
        ("[THINK]", "[/THINK]"),
    ),
    "Mistral Small 3.2": Family(
        "[TOOL_CALLS] [CALL_ID] [ARGS]",
        named("", "[TOOL_CALLS]NAME[CALL_ID]abcdefghINDEX[ARGS]JSON", ""),
    ),
    "gpt-oss": Family(
        "<|start|>assistant<|channel|>final<|message|>",
        named("", "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>JSON", ""),
        ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        alone=True,
        single=True,
    ),
    "Gemma 4": Family(
        "'<|tool_call>call:' <|channel>thought",
        gemma,
        ("<|channel>thought\n", "<channel|>"),
        bare='<|"|>',
    ),
    "DeepSeek R1": Family(
        "<｜tool▁calls▁begin｜> ```json <think>",
        named(
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nJSON\n```<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
            "\n",
        ),
        THINK,
    ),
    "DeepSeek V3.1": Family(
        "<｜tool▁calls▁begin｜> <think>",
        named(
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>JSON<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
        ),
        THINK,
    ),
    "DeepSeek V3.2": Family(
        "dsml_token = '｜DSML｜' function_calls <think>", dsml("function_calls"), THINK
    ),
    "DeepSeek V4": Family("dsml_token = '｜DSML｜' tool_calls <think>", dsml("tool_calls"), THINK),
    "Kimi K2": Family(
        "<|tool_calls_section_begin|><|tool_call_begin|> <think>",
        named(
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>functions.NAME:INDEX<|tool_call_argument_begin|>JSON<|tool_call_end|>",
            "<|tool_calls_section_end|>",
        ),
        ("<think>", "</think>"),
    ),
    "Kimi K3": Family(
        "<|open|><|close|><|end_of_msg|>",
        kimi_k3,
        (
            "<|open|>think<|sep|>",
            "<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|>",
        ),
    ),
    "Solar Open": Family(
        "<|begin|>assistant<|think|> <|tool_call:begin|>",
        named(
            "<|tool_calls|>",
            "<|tool_call:begin|>abcdefghiINDEX<|tool_call:name|>NAME<|tool_call:args|>JSON"
            "<|tool_call:end|>",
            "",
        ),
        ("<|think|>", "<|end|><|begin|>assistant"),
    ),
    "Functionary 3.2": Family(
        ">>>all >>>${recipient}", named("", "NAME\nJSON", "", ">>>"), alone=True
    ),
    "Functionary 3.1": Family(
        "'<function=' + name + '>' '</function>'",
        named("", "<function=NAME>JSON</function>", ""),
    ),
    "Seed-OSS": Family(
        "<seed:think> <seed:tool_call> <function= <parameter=",
        seed,
        ("<seed:think>", "</seed:think>"),
        bare="</parameter>",
    ),
    "Qwen3-Coder, Qwen 3.5, Nemotron 3, StepFun 3.5": Family(
        "<tool_call> <function= <parameter= <think>", qwen_coder, THINK, bare="</parameter>"
    ),
    "Ling 3": Family(
        "<role>ASSISTANT</role> <tool_call> <arg_key> <arg_value> <think>",
        GLM_LINES,
        ("<think>", "</think>"),
        bare="</arg_value>",
    ),
    "GLM 4.5, 4.6": Family(
        "<tool_call> <arg_key></arg_key>\n<arg_value> <think>",
        GLM_LINES,
        ("<think>", "</think>\n"),
        bare="</arg_value>",
    ),
    "Laguna XS": Family(
        r"<tool_call> <arg_key></arg_key>\n<arg_value> <think>",
        GLM_LINES,
        THINK,
        bare="</arg_value>",
    ),
    "GLM 4.7, Laguna S, Spark 2.5": Family(
        "<tool_call> <arg_key></arg_key><arg_value> <think>",
        GLM,
        ("<think>", "</think>"),
        bare="</arg_value>",
    ),
    "Hunyuan 3": Family(
        ":opensource <think{}> <tool_sep{}>",
        HUNYUAN,
        ("<think:opensource>", "</think:opensource>"),
        bare="</arg_value:opensource>",
    ),
    "MiniMax M2": Family(
        "<minimax:tool_call> <invoke name= <think>",
        tagged(
            "<minimax:tool_call>\n",
            '<invoke name="NAME">\n',
            '<parameter name="KEY">VALUE</parameter>\n',
            "</invoke>\n",
            "</minimax:tool_call>",
        ),
        THINK,
        bare="</parameter>",
    ),
    "Muse": Family(
        "<atem:function_calls> <|eom|>",
        muse,
        (" to=self<|message|>", "<|eom|><|start|>assistant"),
        alone=True,
        bare="</atem:parameter>",
    ),
    "MiniMax M3": Family(
        "]<]minimax[>[ <mm:think>",
        minimax_m3,
        ("<mm:think>", "</mm:think>"),
        bare="]<]minimax[>[",
    ),
    "MiniCPM 5": Family(
        '<function name="x"><param name="y"> <think>',
        tagged(
            "", '<function name="NAME">', '<param name="KEY">VALUE</param>', "</function>", "", "\n"
        ),
        THINK,
        bare="</param>",
    ),
    "LFM2": Family("<|tool_list_start|>", LFM2),
    "Llama 4": Family("<|header_start|> <|python_start|>", keywords("", ""), alone=True),
    "LFM2.5": Family("List of tools: [ <think>", LFM2, ("<think>", "</think>")),
    "Command R7B, North Code": Family(
        "<|START_THINKING|> <|START_ACTION|>",
        named(
            "<|START_ACTION|>[\n    ",
            '{"tool_call_id": "INDEX", "tool_name": "NAME", "parameters": JSON}',
            "\n]<|END_ACTION|>",
            ",\n    ",
        ),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
    ),
    "Command R+": Family(
        'Action:```json "tool_name"',
        objects("Action:\n```json\n[\n    ", "\n]\n```", ",\n    ", "tool_name", "parameters"),
    ),
    "Nemotron Nano 2": Family("<TOOLCALL> <think>", objects("<TOOLCALL>[", "]</TOOLCALL>"), THINK),
    "Phi 4 mini": Family(
        "<|tool_call|><|/tool_call|>", objects("<|tool_call|>[", "]<|/tool_call|>")
    ),
    "Granite 3": Family(
        "<|tool_call|> <think></think> <response></response>", objects("<|tool_call|>[", "]"), THINK
    ),
    "Apertus": Family(
        "<|inner_prefix|> <|tools_prefix|>",
        named("<|tools_prefix|>[", '{"NAME": JSON}', "]<|tools_suffix|>", ", "),
        ("<|inner_prefix|>", "<|inner_suffix|>"),
    ),
    "Firefunction 2": Family("' functools['", objects(" functools[", "]")),
    "Apriel": Family(
        "<thinking> <tool_calls>[",
        objects("<tool_calls>[", "]</tool_calls>"),
        ("<thinking>", "</thinking>"),
    ),
    "MiniMax M1": Family("<tool_calls>", objects("<tool_calls>\n", "\n</tool_calls>", "\n")),
    "GigaChat 3": Family(
        "<|message_sep|> <|role_sep|>",
        objects("<|message_sep|>\n\nfunction call<|role_sep|>\n", ""),
        single=True,
    ),
    "GigaChat 3.1": Family(
        "<|function_call|> <|message_sep|> <|role_sep|>",
        objects("<|function_call|>", ""),
        single=True,
    ),
}

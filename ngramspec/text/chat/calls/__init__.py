"""The formats in which models write tool calls.

To add a format of a known kind, add its data here; for a new kind, write a class in a file of its
own.
"""

from dataclasses import replace

from ngramspec.text.chat.calls.element_calls import ElementCalls
from ngramspec.text.chat.calls.format import CallFormat, Mark
from ngramspec.text.chat.calls.gemma_calls import GemmaCalls
from ngramspec.text.chat.calls.harmony import HarmonyCalls
from ngramspec.text.chat.calls.json_calls import JsonCalls
from ngramspec.text.chat.calls.llama import PYTHON_TAG, LlamaCalls
from ngramspec.text.chat.calls.muse import MuseCalls
from ngramspec.text.chat.calls.named_calls import (
    DeepSeekCalls,
    FunctionaryCalls,
    KimiCalls,
    MistralCalls,
    NamedCalls,
    SolarCalls,
)
from ngramspec.text.chat.calls.python_calls import PythonCalls
from ngramspec.text.chat.calls.tagged_calls import DeepSeekTags, KimiTags, TaggedCalls

HERMES = JsonCalls(
    name="Hermes, Qwen",
    signs=("<tool_call>",),
    marks=(Mark("<tool_call>"),),
    start="<tool_call>\n",
    end="\n</tool_call>",
    between="\n",
    listed=False,
    general=True,
)
LLAMA = LlamaCalls(
    name="Llama 3",
    signs=('"parameters"',),
    marks=(Mark(PYTHON_TAG, first=True), *(Mark(m, first=True, inside=True) for m in "{[")),
    arguments_key="parameters",
    between="; ",
    by_name=True,
    special=True,
    general=True,
)
MISTRAL_LISTS = JsonCalls(
    name="Mistral",
    signs=("[TOOL_CALLS]",),
    marks=(Mark("[TOOL_CALLS]"),),
    start="[TOOL_CALLS][",
    end="]",
    special=True,
    general=True,
    short_ids=True,
)
MISTRAL_NAMES = MistralCalls(
    name="Mistral Small 3, Devstral, Ministral",
    signs=("[TOOL_CALLS]", "[ARGS]"),
    without=("[CALL_ID]",),
    marks=(Mark("[TOOL_CALLS]"),),
    open="[TOOL_CALLS]",
    middle="[ARGS]",
    special=True,
    general=True,
)
MISTRAL_IDS = MistralCalls(
    name="Mistral Small 3.2",
    signs=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    marks=(Mark("[TOOL_CALLS]"),),
    open="[TOOL_CALLS]",
    middle="[ARGS]",
    special=True,
    has_id=True,
)
HARMONY = HarmonyCalls(name="gpt-oss", signs=("<|channel|>", "<|message|>"))
GEMMA = GemmaCalls(name="Gemma 4", signs=("<|tool_call>", "call:"))

DEEPSEEK_R1 = DeepSeekCalls(
    name="DeepSeek R1",
    signs=("<｜tool▁calls▁begin｜>", "```json"),
    head="function<｜tool▁sep｜>",
    middle="\n```json\n",
    close="\n```<｜tool▁call▁end｜>",
    between="\n",
)
DEEPSEEK_V31 = DeepSeekCalls(
    name="DeepSeek V3.1",
    signs=("<｜tool▁calls▁begin｜>",),
    middle="<｜tool▁sep｜>",
    close="<｜tool▁call▁end｜>",
)
DEEPSEEK_V32 = DeepSeekTags(
    name="DeepSeek V3.2",
    signs=("dsml_token", "DSML", "function_calls"),
    marks=(Mark("<｜DSML｜function_calls>"),),
    start="<｜DSML｜function_calls>\n",
    end="</｜DSML｜function_calls>",
)
DEEPSEEK_V4 = DeepSeekTags(
    name="DeepSeek V4",
    signs=("dsml_token", "DSML", "tool_calls"),
    marks=(Mark("<｜DSML｜tool_calls>"),),
    start="<｜DSML｜tool_calls>\n",
    end="</｜DSML｜tool_calls>",
)
KIMI = KimiCalls(
    name="Kimi K2",
    signs=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
    marks=(Mark("<|tool_calls_section_begin|>"), Mark("<|tool_call_begin|>")),
    start="<|tool_calls_section_begin|>",
    open="<|tool_call_begin|>",
    middle="<|tool_call_argument_begin|>",
    close="<|tool_call_end|>",
    end="<|tool_calls_section_end|>",
    special=True,
    ends_reasoning=True,
)
KIMI_K3 = KimiTags(name="Kimi K3", signs=("<|open|>", "<|close|>", "<|end_of_msg|>"))
SOLAR = SolarCalls(
    name="Solar Open",
    signs=("<|tool_call:begin|>",),
    marks=(Mark("<|tool_call:begin|>"),),
    start="<|tool_calls|>",
    open="<|tool_call:begin|>",
    middle="<|tool_call:args|>",
    close="<|tool_call:end|>",
    special=True,
)
FUNCTIONARY_31 = NamedCalls(
    name="Functionary 3.1",
    signs=("<function=", "</function>"),
    without=("<parameter=",),
    marks=(Mark("<function="),),
    open="<function=",
    middle=">",
    close="</function>",
)
FUNCTIONARY_32 = FunctionaryCalls(name="Functionary 3.2", signs=(">>>all", ">>>${recipient}"))

QWEN_CODER = TaggedCalls(
    name="Qwen3-Coder, Qwen 3.5, Nemotron 3, StepFun 3.5",
    signs=("<tool_call>", "<function=", "<parameter="),
    marks=(Mark("<tool_call>"), Mark("<function=")),
    start="<tool_call>\n",
    open="<function=",
    opened=">\n",
    key="<parameter=",
    value=">\n",
    value_end="\n</parameter>\n",
    close="</function>\n",
    end="</tool_call>",
    between="\n",
    each=True,
    lines=True,
    ends_reasoning=True,
    keeps_space=True,
)
SEED = TaggedCalls(
    name="Seed-OSS",
    signs=("<seed:tool_call>", "<function="),
    marks=(Mark("<seed:tool_call>"),),
    start="<seed:tool_call>\n",
    open="<function=",
    opened=">\n",
    key="<parameter=",
    value=">",
    value_end="</parameter>\n",
    close="</function>\n",
    end="</seed:tool_call>",
    between="\n",
    each=True,
    special=True,
)
GLM_LINES = TaggedCalls(
    name="GLM 4.5, 4.6",
    signs=("<tool_call>", "</arg_key>\n<arg_value>"),
    marks=(Mark("<tool_call>"),),
    open="<tool_call>",
    opened="\n",
    key="<arg_key>",
    value="</arg_key>\n<arg_value>",
    value_end="</arg_value>\n",
    close="</tool_call>",
    between="\n",
    by_name=True,
)
LING = replace(
    GLM_LINES,
    name="Ling 3",
    signs=("<role>ASSISTANT</role>", "<arg_key>"),
    ends_reasoning=True,
    keeps_space=True,
)
LAGUNA_XS = replace(GLM_LINES, name="Laguna XS", signs=("<tool_call>", r"</arg_key>\n<arg_value>"))
GLM = TaggedCalls(
    name="GLM 4.7, Laguna S, Spark 2.5",
    signs=("<tool_call>", "<arg_key>", "<arg_value>"),
    marks=(Mark("<tool_call>"),),
    open="<tool_call>",
    key="<arg_key>",
    value="</arg_key><arg_value>",
    value_end="</arg_value>",
    close="</tool_call>",
    by_name=True,
)
HUNYUAN = TaggedCalls(
    name="Hunyuan 3",
    signs=("<tool_sep{}>", ":opensource"),
    marks=(Mark("<tool_calls:opensource>"), Mark("<tool_call:opensource>")),
    start="<tool_calls:opensource>\n",
    open="<tool_call:opensource>",
    opened="<tool_sep:opensource>\n",
    key="<arg_key:opensource>",
    value="</arg_key:opensource>\n<arg_value:opensource>",
    value_end="</arg_value:opensource>\n",
    close="</tool_call:opensource>\n",
    end="</tool_calls:opensource>",
    special=True,
)
MINIMAX_M2 = TaggedCalls(
    name="MiniMax M2",
    signs=("<minimax:tool_call>", "<invoke name="),
    marks=(Mark("<minimax:tool_call>"),),
    start="<minimax:tool_call>\n",
    open='<invoke name="',
    opened='">\n',
    key='<parameter name="',
    value='">',
    value_end="</parameter>\n",
    close="</invoke>\n",
    end="</minimax:tool_call>",
)
MINIMAX_M3 = ElementCalls(name="MiniMax M3", signs=("]<]minimax[>[", "<mm:think>"))
MINICPM = TaggedCalls(
    name="MiniCPM 5",
    signs=('<function name="', '<param name="'),
    marks=(Mark('<function name="'),),
    open='<function name="',
    opened='">',
    key='<param name="',
    value='">',
    value_end="</param>",
    close="</function>",
    between="\n",
    data=True,
)
MUSE = MuseCalls(name="Muse", signs=("<atem:function_calls>", "<|eom|>"))

LFM = PythonCalls(
    name="LFM2",
    signs=("<|tool_list_start|>",),
    marks=(Mark("<|tool_call_start|>"),),
    start="<|tool_call_start|>",
    end="<|tool_call_end|>",
    special=True,
)
LLAMA_4 = PythonCalls(
    name="Llama 4",
    signs=("<|header_start|>", "<|python_start|>"),
    marks=(Mark("<|python_start|>"), Mark("[", first=True, inside=True)),
    end="<|python_end|>",
    by_name=True,
    special=True,
)
LFM_25 = replace(LFM, name="LFM2.5", signs=("List of tools: [",))

COMMAND_R7B = JsonCalls(
    name="Command R7B, North Code",
    signs=("<|START_ACTION|>",),
    marks=(Mark("<|START_ACTION|>"),),
    start="<|START_ACTION|>[\n    ",
    end="\n]<|END_ACTION|>",
    between=",\n    ",
    name_key="tool_name",
    arguments_key="parameters",
    id_key="tool_call_id",
    special=True,
    ends_reasoning=True,
)
COMMAND_R = JsonCalls(
    name="Command R+",
    signs=("Action:", "```json", '"tool_name"'),
    marks=(Mark("Action:"),),
    start="Action:\n```json\n[\n    ",
    end="\n]\n```",
    between=",\n    ",
    name_key="tool_name",
    arguments_key="parameters",
    by_name=True,
)
NEMOTRON = JsonCalls(
    name="Nemotron Nano 2",
    signs=("<TOOLCALL>",),
    marks=(Mark("<TOOLCALL>"),),
    start="<TOOLCALL>[",
    end="]</TOOLCALL>",
)
PHI = JsonCalls(
    name="Phi 4 mini",
    signs=("<|tool_call|>", "<|/tool_call|>"),
    marks=(Mark("<|tool_call|>"),),
    start="<|tool_call|>[",
    end="]<|/tool_call|>",
    special=True,
)
GRANITE = JsonCalls(
    name="Granite 3",
    signs=("<|tool_call|>",),
    marks=(Mark("<|tool_call|>"),),
    start="<|tool_call|>[",
    end="]",
    special=True,
)
APERTUS = JsonCalls(
    name="Apertus",
    signs=("<|tools_prefix|>",),
    marks=(Mark("<|tools_prefix|>"),),
    start="<|tools_prefix|>[",
    end="]<|tools_suffix|>",
    name_key="",
    special=True,
)
FIREFUNCTION = JsonCalls(
    name="Firefunction 2",
    signs=("functools[",),
    marks=(Mark("functools["),),
    start=" functools[",
    end="]",
)
APRIEL = JsonCalls(
    name="Apriel",
    signs=("<tool_calls>[",),
    marks=(Mark("<tool_calls>"),),
    start="<tool_calls>[",
    end="]</tool_calls>",
)
MINIMAX_M1 = JsonCalls(
    name="MiniMax M1",
    signs=("<tool_calls>",),
    marks=(Mark("<tool_calls>"),),
    start="<tool_calls>\n",
    end="\n</tool_calls>",
    between="\n",
)
GIGACHAT = JsonCalls(
    name="GigaChat 3",
    signs=("<|message_sep|>", "<|role_sep|>"),
    without=("<|function_call|>",),
    marks=(Mark("<|message_sep|>\n\nfunction call<|role_sep|>\n"),),
    start="<|message_sep|>\n\nfunction call<|role_sep|>\n",
    special=True,
)
GIGACHAT_31 = JsonCalls(
    name="GigaChat 3.1",
    signs=("<|function_call|>", "<|role_sep|>"),
    marks=(Mark("<|function_call|>"),),
    start="<|function_call|>",
    special=True,
)

# A model's format is the first one that fits its chat template; if none fits, HERMES.
CALL_FORMATS: list[CallFormat] = [
    MISTRAL_NAMES,
    MISTRAL_IDS,
    MISTRAL_LISTS,
    HARMONY,
    GEMMA,
    DEEPSEEK_V32,
    DEEPSEEK_V4,
    DEEPSEEK_R1,
    DEEPSEEK_V31,
    KIMI,
    KIMI_K3,
    SOLAR,
    FUNCTIONARY_32,
    SEED,
    QWEN_CODER,
    FUNCTIONARY_31,
    LING,
    GLM_LINES,
    LAGUNA_XS,
    GLM,
    HUNYUAN,
    MUSE,
    MINIMAX_M2,
    MINIMAX_M3,
    MINICPM,
    LFM,
    LFM_25,
    LLAMA_4,
    COMMAND_R7B,
    COMMAND_R,
    NEMOTRON,
    PHI,
    GRANITE,
    APERTUS,
    FIREFUNCTION,
    APRIEL,
    GIGACHAT,
    GIGACHAT_31,
    HERMES,
    MINIMAX_M1,
    LLAMA,
]


def call_format_of(template: str) -> CallFormat:
    return next((one for one in CALL_FORMATS if one.fits(template)), HERMES)


def formats_of(own: CallFormat) -> list[CallFormat]:
    """Return the formats in which a model may write calls, its own one first.

    Models do not always write their own: they also write what others taught them.
    """
    return [own, *(one for one in CALL_FORMATS if one.general and one is not own)]

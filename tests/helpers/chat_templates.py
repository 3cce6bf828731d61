"""Small chat templates of our own, one per thing that templates of the field do.

What llama-server makes of them is recorded in tests/golden/data/chat_prompts.json.gz
(tools/chat_templates.py).
"""

from __future__ import annotations

START = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TOOLS = "{% if tools %}{% for t in tools %}{{ t.function.name }}: {{ t | tojson }}\n{% endfor %}{% endif %}"  # noqa: E501

PLAIN = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "<|im_end|>\n{% endfor %}" + START
)
TYPED = """\
{%- for m in messages %}
{{- '<|' + m.role + '|>' }}
{%- for part in m.content %}{% if part.type == 'text' %}{{ part.text }};{% endif %}{% endfor %}
{%- endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
BOTH = """\
{%- for m in messages %}
{{- '<|' + m.role + '|>' }}
{%- if m.content is string %}{{ m.content }}
{%- else %}{% for part in m.content %}({{ part['text'] }}){% endfor %}{% endif %}
{%- endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
ALTERNATING = """\
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Roles must alternate') }}{% endif %}
{{- '<turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + m.content | trim }}</turn>
{% endfor %}{% if add_generation_prompt %}<turn>model
{% endif %}"""
# Arguments as objects, reasoning between tags, dropped in earlier turns if clear_thinking says so.
OBJECTS = (
    TOOLS
    + """\
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.reasoning_content and (loop.index0 > ns.last or not clear_thinking) %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}
{{- m.content }}
{%- for call in m.tool_calls %}
<call>{{ call.function.name }}
{%- for name, value in call.function.arguments.items() %}
 {{ name }}={{ value if value is string else value | tojson }}
{%- endfor %}</call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}"""  # noqa: E501
)
# Arguments as texts, joined with what may be nothing.
TEXTS = (
    TOOLS
    + """\
{%- for m in messages %}
{{- '<|' + m.role + '|>' + (m.content if m.content is not none else '') }}
{%- for call in m.tool_calls or [] %}
{{- '\\n[' + call['id'] + '] ' + call['function']['name'] + ' ' + call['function']['arguments'] }}
{%- endfor %}
{{- (' for ' + m.tool_call_id) if m.tool_call_id else '' }}{{ m.name }}
{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""
)
ONE_CALL = """\
{%- for t in tools %}{{ t.function.name }} {% endfor %}
{%- for m in messages %}{{ '<|' + m.role + '|>' }}
{%- if m.tool_calls %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('One call at a time!') }}{% endif %}
{{- m.tool_calls[0].function | tojson }}{% else %}{{ m.content | trim }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
APPENDING = (
    TOOLS
    + """\
{%- set groups = [] %}
{%- for m in messages %}
{%- if m.role == 'tool' and groups and groups[-1][0].role == 'tool' %}{% set _ = groups[-1].append(m) %}
{%- else %}{% set _ = groups.append([m]) %}{% endif %}
{%- endfor %}
{%- for group in groups %}{% set first = group.pop(0) %}
{{- '<|' ~ first.role ~ '|>' ~ first.content ~ first.missing ~ none }}
{%- for call in first.tool_calls %}{{ call.function | tojson }}{% endfor %}
{%- for m in group %} + {{ m.content }}{% endfor %}
{%- endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""  # noqa: E501
)
# As templates of reasoning models that open the reasoning themselves.
OPENED = PLAIN.replace(
    START,
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n"
    "{% if not enable_thinking %}</think>{% endif %}{% endif %}",
).replace(
    "{{ m['content'] }}",
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n{% endif %}"
    "{{ m.content.split('</think>')[-1] }}",
)
EFFORT = "{{ '[effort ' + reasoning_effort + ']' if reasoning_effort else '' }}" + PLAIN
# Marks of families for which llama-server changes messages.
CHANNELS = """\
{%- for m in messages %}
{%- if "<|channel|>analysis<|message|>" in message.content or "<|channel|>final<|message|>" in message.content %}{{ raise_exception('twice') }}{% endif %}
{{- '<|start|>' + m.role }}
{%- if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}
{%- for call in m.tool_calls %}{{ call.function.name }} {{ call.function.arguments }}<|call|>{% endfor %}
{%- if m.content is defined %}<|message|>{{ m.content }}{{ '<|return|>' if m.role == 'assistant' and loop.last else '<|end|>' }}{% endif %}
{%- endfor %}{% for t in tools %}{{ t.function.name }}{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""  # noqa: E501
MISTRAL = """\
{%- for m in messages %}
{%- if m.role == 'system' %}[SYSTEM_PROMPT]{% elif m.role == 'user' %}[INST]{% endif %}
{%- if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}
{%- if part.type == 'thinking' %}[THINK]{{ part.thinking }}[/THINK]{% else %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}
{%- for call in m.tool_calls %}[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}{% endfor %}
{%- if m.role == 'system' %}[/SYSTEM_PROMPT]{% elif m.role == 'user' %}[/INST]{% endif %}
{%- endfor %}{{ tools | map(attribute='function') | tojson if tools else '' }}"""  # noqa: E501
LFM = """\
{%- if tools %}List of tools: <|tool_list_start|>{{ tools | tojson }}<|tool_list_end|>{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.thinking %}<think>{{ m.thinking }}</think>{% endif %}{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
DSML = """\
{%- set dsml_token = '|DSML|' %}{{ tools | tojson if tools else '' }}
{%- for m in messages %}
{%- if m.role == 'tool' %}<result id={{ m.tool_call_id }}>{{ m.content }}</result>
{%- else %}<{{ m.role }}>{{ m.content }}{% endif %}
{%- for call in m.tool_calls %}<{{ dsml_token }}tool_calls>{{ call.function.name }}
{%- for name, value in call.function.arguments | items %} {{ name }}={{ value }}{% endfor %}{% endfor %}
{%- endfor %}{% if add_generation_prompt %}<｜Assistant｜>{{ '<think>' if enable_thinking else '</think>' }}{% endif %}"""  # noqa: E501
GEMMA = """\
{{- tools | tojson if tools else '' }}
{%- for m in messages %}<|turn>{{ 'model' if m.role == 'assistant' else m.role }}
{%- for call in m.tool_calls %}{{ '<|tool_call>call:' + call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}
{%- for r in m.tool_responses %}<|tool_response>{{ r.name }}:{{ r.response | tojson }}{% endfor %}
{{- m.content if m.content is string else '' }}<turn|>
{% endfor %}{% if add_generation_prompt and messages[-1].role != 'assistant' %}<|turn>model
{% endif %}"""  # noqa: E501
FUNCTIONARY = """\
{%- for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>

{{ ('>>>all\\n' + m.content) if m.content else '' }}
{%- for call in m.tool_calls %}{{ '>>>' + call.function.name + '\\n' + call.function.arguments }}{% endfor %}
{%- endfor %}{#- >>>${recipient} #}{{ tools[0].function.name | safe + '<' if tools else '' }}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

>>>{% endif %}"""  # noqa: E501

TEMPLATES = {
    "plain": PLAIN,
    "typed": TYPED,
    "texts and parts": BOTH,
    "alternating, no system": ALTERNATING,
    "object arguments": OBJECTS,
    "text arguments": TEXTS,
    "one call": ONE_CALL,
    "appending": APPENDING,
    "opened reasoning": OPENED,
    "effort": EFFORT,
    "gpt-oss": CHANNELS,
    "mistral-3": MISTRAL,
    "lfm-2": LFM,
    "deepseek-4": DSML,
    "gemma-4": GEMMA,
    "functionary-3.2": FUNCTIONARY,
}

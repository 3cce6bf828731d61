"""Chat templates in the shapes that models come with, and what they make of one conversation."""

from __future__ import annotations

from typing import Any

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "2 < 3?"},
]
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tell the weather.",
            "parameters": {
                "properties": {
                    "unit": {"enum": ["c", "f"], "type": "string"},
                    "city": {"type": "string", "description": "A <city>"},
                },
                "required": ["city"],
                "type": "object",
            },
        },
    }
]

LLAMA3 = """
{{- if .System }}<|start_header_id|>system<|end_header_id|>

{{ .System }}<|eot_id|>{{ end }}
{{- range $i, $m := .Messages }}
{{- if ne .Role "system" }}<|start_header_id|>{{ .Role }}<|end_header_id|>

{{ .Content }}
{{- if or (ne .Role "assistant") (lt $i (len (slice $.Messages 1))) }}<|eot_id|>{{ end }}
{{- end }}
{{- end }}<|start_header_id|>assistant<|end_header_id|>

"""
LLAMA3_TEXT = """<|start_header_id|>system<|end_header_id|>

Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>

Hi<|eot_id|><|start_header_id|>assistant<|end_header_id|>

Hello!<|eot_id|><|start_header_id|>user<|end_header_id|>

2 < 3?<|eot_id|><|start_header_id|>assistant<|end_header_id|>

"""

CHATML = """{{ range .Messages }}<|im_start|>{{ .Role }}
{{ .Content }}<|im_end|>
{{ end }}<|im_start|>assistant
"""
CHATML_TEXT = """<|im_start|>system
Be brief.<|im_end|>
<|im_start|>user
Hi<|im_end|>
<|im_start|>assistant
Hello!<|im_end|>
<|im_start|>user
2 < 3?<|im_end|>
<|im_start|>assistant
"""

# The same text, from a template of the old kind.
CHATML_LEGACY = """{{ if .System }}<|im_start|>system
{{ .System }}<|im_end|>
{{ end }}{{ if .Prompt }}<|im_start|>user
{{ .Prompt }}<|im_end|>
{{ end }}<|im_start|>assistant
{{ .Response }}<|im_end|>
"""

GEMMA = """{{- range $i, $message := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 }}
{{- if eq .Role "user" }}<start_of_turn>user
{{ if and $.System (le $i 1) }}{{ $.System }}

{{ end }}{{ .Content }}<end_of_turn>
{{ else if eq .Role "assistant" }}<start_of_turn>model
{{ .Content }}<end_of_turn>
{{ end }}
{{- if $last }}<start_of_turn>model
{{ end }}
{{- end }}"""
GEMMA_TEXT = """<start_of_turn>user
Be brief.

Hi<end_of_turn>
<start_of_turn>model
Hello!<end_of_turn>
<start_of_turn>user
2 < 3?<end_of_turn>
<start_of_turn>model
"""

INST = "[INST] {{ if .System }}{{ .System }}\n\n{{ end }}{{ .Prompt }} [/INST] {{ .Response }}</s>"
INST_NO_RESPONSE = "[INST] {{ if .System }}{{ .System }}\n\n{{ end }}{{ .Prompt }} [/INST] "
INST_TEXT = "[INST] Be brief.\n\nHi [/INST] Hello!</s>[INST] 2 < 3? [/INST] "
INST_NO_RESPONSE_TEXT = "[INST] Be brief.\n\nHi [/INST] Hello![INST] 2 < 3? [/INST] "

MISTRAL = """{{- range $i, $_ := .Messages }}
{{- if eq .Role "user" }}
{{- $last := eq (len (slice $.Messages $i)) 1 }}
{{- if and $.Tools $last }}[AVAILABLE_TOOLS] {{ json $.Tools }}[/AVAILABLE_TOOLS]
{{- end }}[INST] {{ .Content }}[/INST]
{{- else if eq .Role "assistant" }}
{{- if .ToolCalls }}[TOOL_CALLS] [
{{- range .ToolCalls }}{"name": "{{ .Function.Name }}", "arguments": {{ json .Function.Arguments }}}
{{- end }}]</s>
{{- else }} {{ .Content }}</s>
{{- end }}
{{- else if eq .Role "tool" }}[TOOL_RESULTS] {"content": {{ json .Content }}}[/TOOL_RESULTS]
{{- end }}
{{- end }}"""
MISTRAL_TEXT = "[INST] Hi[/INST] Hello!</s>[INST] 2 < 3?[/INST]"

THINKING = """{{- range $i, $_ := .Messages }}
{{- if eq .Role "assistant" }}A{{ if .Thinking }}<think>{{ .Thinking }}</think>{{ end }}
{{- else }}U{{ end }}:{{ .Content }};
{{- end }}
{{- if and $.IsThinkSet (not $.Think) }}<no_think>{{ end }}
{{- if and .IsThinkSet (ne .ThinkLevel "") }}<{{ .ThinkLevel }}>{{ end }}"""

FIM = """{{- if .Suffix }}<PRE> {{ .Prompt }} <SUF>{{ .Suffix }} <MID>
{{- else }}{{ .Prompt }}
{{- end }}"""

EVERY = [
    ("llama3", LLAMA3, LLAMA3_TEXT),
    ("chatml", CHATML, CHATML_TEXT),
    ("chatml legacy", CHATML_LEGACY, CHATML_TEXT),
    ("gemma", GEMMA, GEMMA_TEXT),
    ("inst", INST, INST_TEXT),
    ("inst without response", INST_NO_RESPONSE, INST_NO_RESPONSE_TEXT),
    ("mistral", MISTRAL, MISTRAL_TEXT),
]

"""Tell which formats of calls and reasoning chat templates get: chat_formats.py FOLDER [--check].

FOLDER holds templates as *.jinja, for example llama.cpp's models/templates. --check compares those
that are listed here with what they should get, and fails if one gets something else.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ngramspec.text.chat.format import chat_format

# File names in llama.cpp's models/templates begin like this; the longest one counts.
EXPECTED = {
    "Apertus": ("Apertus", "<|inner_prefix|>"),
    "Apriel": ("Apriel", "<thinking>"),
    "Bielik": ("Hermes, Qwen", "<think>"),
    "ByteDance-Seed-OSS": ("Seed-OSS", "<seed:think>"),
    "Cohere2MoE": ("Command R7B, North Code", "<|START_THINKING|>"),
    "CohereForAI-c4ai-command-r-plus": ("Command R+", ""),
    "CohereForAI-c4ai-command-r7b": ("Command R7B, North Code", "<|START_THINKING|>"),
    "GLM-4.6": ("GLM 4.5, 4.6", "<think>"),
    "GLM-4.7": ("GLM 4.7, Laguna S, Spark 2.5", "<think>"),
    "GigaChat3-": ("GigaChat 3", ""),
    "GigaChat3.1": ("GigaChat 3.1", ""),
    "HuggingFaceTB-SmolLM3": ("Hermes, Qwen", "<think>"),
    "Kimi-K2-Instruct": ("Kimi K2", ""),
    "Kimi-K2-Thinking": ("Kimi K2", "<think>"),
    "Kimi-K3": ("Kimi K3", "<|open|>think<|sep|>"),
    "LFM2-": ("LFM2", ""),
    "LFM2.5-8B": ("LFM2.5", "<think>"),
    "LFM2.5-Instruct": ("LFM2.5", ""),
    "MiMo": ("Hermes, Qwen", ""),
    "MiniMax-M1": ("MiniMax M1", ""),
    "MiniMax-M2": ("MiniMax M2", "<think>"),
    "MiniMax-M3": ("MiniMax M3", "<mm:think>"),
    "Mistral-Small-3.2": ("Mistral Small 3.2", ""),
    "NVIDIA-Nemotron-3": ("Qwen3-Coder, Qwen 3.5, Nemotron 3, StepFun 3.5", "<think>"),
    "NVIDIA-Nemotron-Nano-v2": ("Nemotron Nano 2", "<think>"),
    "NousResearch-Hermes": ("Hermes, Qwen", ""),
    "Qwen-Qw": ("Hermes, Qwen", "<think>"),
    "Qwen-Qwen2.5": ("Hermes, Qwen", ""),
    "Qwen3-Coder": ("Qwen3-Coder, Qwen 3.5, Nemotron 3, StepFun 3.5", ""),
    "Qwen3.5": ("Qwen3-Coder, Qwen 3.5, Nemotron 3, StepFun 3.5", "<think>"),
    "Reka": ("Hermes, Qwen", "<think>"),
    "Spark2.5": ("GLM 4.7, Laguna S, Spark 2.5", "<think>"),
    "StepFun3.5": ("Qwen3-Coder, Qwen 3.5, Nemotron 3, StepFun 3.5", "<think>"),
    "deepseek-ai-DeepSeek-R1": ("DeepSeek R1", "<think>"),
    "deepseek-ai-DeepSeek-V3.1": ("DeepSeek V3.1", "<think>"),
    "deepseek-ai-DeepSeek-V3.2": ("DeepSeek V3.2", "<think>"),
    "deepseek-ai-DeepSeek-V4": ("DeepSeek V4", "<think>"),
    "fireworks-ai": ("Firefunction 2", ""),
    "google-gemma-2": ("Hermes, Qwen", ""),
    "google-gemma-4": ("Gemma 4", "<|channel>thought"),
    "ibm-granite-granite-3.3": ("Granite 3", "<think>"),
    "ibm-granite-granite-4": ("Hermes, Qwen", ""),
    "inclusionai-ling-3.0": ("Ling 3", "<think>"),
    "llama-cpp-deepseek-r1": ("DeepSeek R1", "<think>"),
    "meetkai-functionary-medium-v3.1": ("Functionary 3.1", ""),
    "meetkai-functionary-medium-v3.2": ("Functionary 3.2", ""),
    "muse-glimmer": ("Muse", ""),
    "meta-llama": ("Llama 3", ""),
    "mistralai-Ministral": ("Mistral Small 3, Devstral, Ministral", "[THINK]"),
    "mistralai-Mistral-Nemo": ("Mistral", ""),
    "moonshotai-Kimi-K2": ("Kimi K2", ""),
    "openai-gpt-oss": ("gpt-oss", ""),
    "openbmb-MiniCPM5": ("MiniCPM 5", "<think>"),
    "poolside-Laguna-S-": ("GLM 4.7, Laguna S, Spark 2.5", "<think>"),
    "poolside-Laguna-XS": ("Laguna XS", "<think>"),
    "tencent-Hy3": ("Hunyuan 3", "<think:opensource>"),
    "unsloth-mistral-Devstral": ("Mistral Small 3, Devstral, Ministral", ""),
    "upstage-Solar-Open": ("Solar Open", "<|think|>"),
}


def main() -> int:
    """Print the formats of each template; return 1 if one is not as expected."""
    options = [argument for argument in sys.argv[1:] if argument.startswith("-")]
    folders = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    if len(folders) != 1 or set(options) - {"--check"}:
        print(__doc__)
        return 2
    wrong = 0
    for path in sorted(Path(folders[0]).glob("*.jinja")):
        format = chat_format(path.read_text(encoding="utf-8"), "", parses_reasoning=True)
        actual = (format.calls.name, format.reasoning.open if format.reasons else "")
        start = max(filter(path.name.startswith, EXPECTED), key=len, default="")
        is_wrong = bool(options) and EXPECTED.get(start, actual) != actual
        wrong += is_wrong
        note = f"  expected {EXPECTED[start]}" if is_wrong else ""
        print(f"{path.stem:50} {actual[0]:50} {actual[1]}{note}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

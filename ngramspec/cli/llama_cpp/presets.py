"""llama-server's options that stand for several others: a model by name, and how it is served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

from ngramspec.cli.options import Decorator, option, options

SECTION = "Presets"
FILL_IN = {"port": 8012, "ubatch_size": 1024, "batch_size": 1024}
GPT_OSS = {
    "port": 8013, "ubatch_size": 2048, "batch_size": 32768, "parallel": 2, "ctx_size": 262144,
    "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.01,
}  # fmt: skip
SMALL_CODER = "ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF"
# Flag -> the model's name on Hugging Face and the options it sets. Source: llama.cpp's common/arg.
PRESETS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "--fim-qwen-1.5b-default": ("ggml-org/Qwen2.5-Coder-1.5B-Q8_0-GGUF", FILL_IN),
    "--fim-qwen-3b-default": ("ggml-org/Qwen2.5-Coder-3B-Q8_0-GGUF", FILL_IN),
    "--fim-qwen-7b-default": ("ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF", FILL_IN),
    "--fim-qwen-7b-spec": (
        "ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF",
        {**FILL_IN, "hf_repo_draft": SMALL_CODER},
    ),
    "--fim-qwen-14b-spec": (
        "ggml-org/Qwen2.5-Coder-14B-Q8_0-GGUF",
        {**FILL_IN, "hf_repo_draft": SMALL_CODER},
    ),
    "--fim-qwen-30b-default": ("ggml-org/Qwen3-Coder-30B-A3B-Instruct-Q8_0-GGUF", FILL_IN),
    "--gpt-oss-20b-default": ("ggml-org/gpt-oss-20b-GGUF", GPT_OSS),
    "--gpt-oss-120b-default": ("ggml-org/gpt-oss-120b-GGUF", GPT_OSS),
    "--vision-gemma-4b-default": ("ggml-org/gemma-3-4b-it-qat-GGUF", {"port": 8014}),
    "--vision-gemma-12b-default": ("ggml-org/gemma-3-12b-it-qat-GGUF", {"port": 8014}),
}


def preset_options() -> Decorator:
    """Return the presets' options, hidden from --help."""
    return options(
        *(
            option(SECTION, flag, "preset", flag_value=flag, hidden=True, multiple=False)
            for flag in PRESETS
        )
    )


def take_preset(ctx: click.Context, values: dict[str, Any]) -> None:
    """Remove `preset` from a command's values and set what it stands for, unless it was given.

    Raises:
        click.UsageError: A model is given, too.
    """
    flag = values.pop("preset", None)
    if flag is None:
        return
    if values["model"] is not None or values["hf_repo"] is not None:
        raise click.UsageError(f"{flag} names a model: leave out --model and --hf-repo")
    repo, settings = PRESETS[flag]
    for name, value in {"hf_repo": repo, **settings}.items():
        if ctx.get_parameter_source(name) in (None, ParameterSource.DEFAULT):
            values[name] = value

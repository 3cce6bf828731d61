"""What holds for requests that do not say otherwise, as the options of `serve` have it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from ngramspec.cli.files import read_utf8
from ngramspec.cli.options import names_in, unescaped
from ngramspec.cli.serve.options import RequestOptions, ServeOptions
from ngramspec.engine import Sampling
from ngramspec.errors import InputError
from ngramspec.server.request.sampling import chosen_samplers
from ngramspec.text.templates.builtin import builtin_names
from ngramspec.text.templates.templates import ChatTemplates
from ngramspec.text.tokenizers.llama_library import load_library

NO_BREAKERS = "none"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_FIELDS = {one.name for one in fields(Sampling)} - {"samplers", "grammar"}
_BIAS = re.compile(r"(\d+)([+-])(\S+)")


def served_defaults(options: ServeOptions) -> dict[str, Any]:
    """Return the defaults for requests, as fields of ServedModel.

    Raises:
        InputError: A default is out of its bounds, the template is not valid, or its variables
            are not JSON.
        OSError: The template's file cannot be read.
    """
    return {
        "sampling": default_sampling(options),
        "max_tokens": options.predict,
        "num_keep": options.keep,
        "reasoning_budget": options.reasoning_budget,
        "reasoning_message": options.reasoning_budget_message,
        "stop": default_stops(options),
        "system": options.system_prompt,
        "recipe": options.recipe,
        "template": _template(options),
        "template_variables": _variables(options),
        "prefill": options.prefill_assistant,
        "special": options.special,
        "tags": tuple(names_in(options.tags)),
        "cache_prompt": options.cache_prompt,
        "batch_size": options.batch_size,
        "spm_infill": options.spm_infill,
    }


def default_sampling(options: ServeOptions) -> Sampling:
    """Return how tokens are chosen where a request does not say.

    Raises:
        InputError: A value is out of its bounds, or grammar, schema or bias is not valid.
        OSError: A file cannot be read.
    """
    settings = {name: value for name, value in vars(options).items() if name in _FIELDS}
    settings["seed"] = None if options.seed == -1 else options.seed
    settings["grammar"] = options.grammar_text()
    settings["logit_bias"] = dict(map(bias_of, options.logit_bias))
    breakers = [text for text in options.dry_sequence_breaker if text != NO_BREAKERS]
    if options.dry_sequence_breaker:
        settings["dry_sequence_breakers"] = tuple(texts_of(options, breakers))
    samplers = options.sampler_seq or list(filter(None, options.samplers.split(";")))
    if samplers:
        settings.update(chosen_samplers(samplers))
    return Sampling(**settings)


def default_stops(options: RequestOptions) -> tuple[str, ...]:
    """Return the stop texts of requests that have none."""
    return tuple(filter(None, texts_of(options, options.reverse_prompt)))


def texts_of(options: RequestOptions, texts: Iterable[str]) -> list[str]:
    """Return texts with what `\\n` and the like stand for, unless --no-escape is given."""
    return [unescaped(text) if options.escape else text for text in texts]


def bias_of(text: str) -> tuple[int, float]:
    """Return the token id and the bias of a text such as 15043+1 or 2-inf.

    Raises:
        InputError: It has another form.
    """
    match = _BIAS.fullmatch(text.strip())
    try:
        if match is not None:
            return int(match[1]), float(match[2] + match[3])
    except ValueError:
        pass
    raise InputError(f"--logit-bias must be a token id and a bias, as 15043+1, got {text!r}")


def _template(options: ServeOptions) -> str | None:
    text = options.chat_template
    if options.chat_template_file is not None:
        text = read_utf8(options.chat_template_file)
    elif text == "chatml":
        text = CHATML
    elif text and "{" not in text and text not in (names := builtin_names(load_library())):
        raise InputError(
            f"--chat-template {text!r} is no template: give its text, use --chat-template-file, or "
            f"name one of llama.cpp's: {', '.join(sorted(names))}"
        )
    if text:
        ChatTemplates("", "", library=load_library()).capabilities(text)  # fails if it is not valid
    return text or None


def _variables(options: ServeOptions) -> dict[str, Any]:
    """Return variables of the chat template; --chat-template-kwargs win over other options."""
    try:
        kwargs = json.loads(options.chat_template_kwargs or "{}")
    except ValueError as error:
        raise InputError(f"--chat-template-kwargs must be JSON: {error}") from error
    if not isinstance(kwargs, dict):
        raise InputError("--chat-template-kwargs must be a JSON object")
    variables: dict[str, Any] = {}
    if options.reasoning != "auto":
        variables["enable_thinking"] = options.reasoning == "on"
    if options.reasoning_effort not in (None, "default"):
        variables["reasoning_effort"] = options.reasoning_effort
    if options.reasoning_preserve is not None:
        variables["preserve_reasoning"] = options.reasoning_preserve
    return {**variables, **kwargs}

"""What `ngramspec serve` builds of its options: engine, defaults, settings."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from ngramspec.adapters.llama_cpp.model import LlamaModel
from ngramspec.adapters.llama_cpp.saved_costs import find_costs
from ngramspec.adapters.llama_cpp.target import LlamaTarget
from ngramspec.cli.options import DraftChoice
from ngramspec.cli.target import layers_of
from ngramspec.drafters.statistics import open_shared
from ngramspec.engine import DraftModel, Engine, Sampling
from ngramspec.engine.draft_model import check_vocabulary
from ngramspec.engine.policy import make_policy
from ngramspec.errors import InputError
from ngramspec.server import ServerSettings

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHARED_FILES = {"pool_file": "--pool", "lookup_dynamic": "--lookup-cache-dynamic"}  # written to
SAMPLING = {field.name for field in dataclasses.fields(Sampling)}


def open_draft_model(
    options: Mapping[str, Any], target: LlamaTarget, stack: contextlib.ExitStack
) -> DraftModel | None:
    """Load the draft model; the stack closes it.

    Raises:
        As open_model and open_target; BackendError when its vocabulary is another one.
    """
    path = options["model_draft"]
    if path is None:
        return None
    layers = layers_of(options["n_gpu_layers_draft"], "--n-gpu-layers-draft")
    model = stack.enter_context(LlamaModel(path, n_gpu_layers=layers))
    small = stack.enter_context(
        LlamaTarget(
            model,
            slots=options["parallel"],
            context_size=target.context_size,
            n_batch=max(options["batch_size"], options["parallel"]),
            n_ubatch=options["ubatch_size"],
            threads=options["threads"],
        )
    )
    check_vocabulary(target, small)
    return DraftModel(
        small,
        n_max=options["spec_draft_n_max"],
        n_min=options["spec_draft_n_min"],
        p_min=options["spec_draft_p_min"],
    )


def open_engine(
    options: Mapping[str, Any],
    choice: DraftChoice,
    target: LlamaTarget,
    models: contextlib.ExitStack,
    saves: contextlib.ExitStack,
) -> Engine:
    """Return the engine with its drafters.

    Args:
        options: Those of `serve`.
        choice: The drafters.
        target: The model.
        models: Frees the draft model.
        saves: Saves what drafters learn.

    Raises:
        InputError, FormatError, VocabMismatchError, OSError: As create_drafter.
    """
    costs = find_costs(target.model, target.settings)
    return Engine(
        target,
        choice.names or None,
        slots=options["parallel"],
        params=open_shared(choice.parameters(target.model.path), saves),
        draft_model=open_draft_model(options, target, models),
        policy=make_policy(choice.policy, choice.max_draft, costs, target.max_rollback),
        max_queue=options["max_queue"],
        exact=options["exact"],
        kept_bytes=options["kept_memory"],
        order=choice.order,
    )


def served_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what requests get that say nothing else, as fields of Served.

    Raises:
        InputError: A default is out of its bounds, or the template variables are not JSON.
        OSError: The template's file cannot be read.
    """
    given = {name: options[name] for name in SAMPLING & set(options)}
    given["seed"] = None if options["seed"] == -1 else options["seed"]
    if options["dry_sequence_breaker"]:
        given["dry_sequence_breakers"] = tuple(options["dry_sequence_breaker"])
    return {
        "sampling": Sampling(**given),
        "max_tokens": options["predict"],
        "stop": tuple(filter(None, options["reverse_prompt"])),
        "system": options["system_prompt"],
        "recipe": options["recipe"],
        "template": _template(options),
        "template_variables": _variables(options["chat_template_kwargs"]),
        "cache_prompt": options["cache_prompt"],
        "batch_size": options["batch_size"],
        "spm_infill": options["spm_infill"],
    }


def model_names(options: Mapping[str, Any], model: LlamaModel) -> tuple[str, ...]:
    """Return the model's ids for clients, the first one above all."""
    names = [name for text in options["alias"] for name in text.split(",") if name]
    return tuple(names or [model.path.stem])


def make_settings(options: Mapping[str, Any], choice: DraftChoice) -> ServerSettings:
    """Return the settings of the HTTP side.

    Raises:
        InputError: There are no keys although an option is about them, or a file that all keys
            would share although they do not.
        OSError: The file with keys cannot be read.
    """
    keys = _keys(options)
    if options["pool_per_key"] and not keys:
        raise InputError("--pool-per-key needs keys: give --api-key or --api-key-file")
    paths = {name: options[name] and os.fspath(options[name]) for name in _PATHS}
    made = ServerSettings(
        **{name: options[name] for name in _SAME_NAME},
        **paths,
        api_keys=keys,
        cors_origins=tuple(part for part in options["cors_origins"].split(",") if part),
        allowed_hosts=tuple(n for text in options["allow_host"] for n in text.split(",") if n),
        max_body_bytes=options["max_body"],
        request_timeout=options["timeout"],
        sse_ping_interval=max(0.0, options["sse_ping_interval"]),
        reasoning_format="none" if options["reasoning_format"] == "none" else "auto",
    )
    shared = [option for field, option in SHARED_FILES.items() if getattr(choice, field)]
    if made.isolates and shared:
        raise InputError(
            f"{' and '.join(shared)}: such a file would hold what all keys said, but each of "
            f"{len(keys)} keys learns for itself: leave it out, or let them share with "
            "--share-between-keys"
        )
    return made


_PATHS = ("ssl_key_file", "ssl_cert_file")
_SAME_NAME = (
    *("host", "port", "pool_per_key", "metrics", "slots", "props", "max_prompt_tokens"),
    *("max_generations", "queue_timeout", "slow_client_timeout", "drain_timeout", "access_log"),
    *("max_connections", "stall_timeout"),
)


def _keys(options: Mapping[str, Any]) -> tuple[str, ...]:
    keys = [key.strip() for text in options["api_key"] for key in text.split(",")]
    path = options["api_key_file"]
    if path is not None:
        lines = (line.strip() for line in path.read_text("utf-8").splitlines())
        keys += [line for line in lines if not line.startswith("#")]
        if not any(keys):
            raise InputError(f"{path} holds no key")
    return tuple(dict.fromkeys(filter(None, keys)))


def _template(options: Mapping[str, Any]) -> str | None:
    if options["chat_template_file"] is not None:
        return str(options["chat_template_file"].read_text("utf-8"))
    text = options["chat_template"]
    if text == "chatml":
        return CHATML
    if text and "{" not in text:
        raise InputError(
            f"--chat-template {text!r} is no template and not chatml: give its text, or its file"
        )
    return text or None


def _variables(text: str | None) -> dict[str, Any]:
    try:
        made = json.loads(text or "{}")
    except ValueError as error:
        raise InputError(f"--chat-template-kwargs must be JSON: {error}") from error
    if not isinstance(made, dict):
        raise InputError("--chat-template-kwargs must be a JSON object")
    return made

"""--model NAME and --modelfile: turn Ollama's settings of a model into options of the server."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.drafts import NO_DRAFTS
from ngramspec.cli.options import is_set
from ngramspec.drafting.names import DRAFTER_NAMES, nearest
from ngramspec.errors import InputError

if TYPE_CHECKING:
    from ngramspec.cli.serve.options import ServeOptions
    from ngramspec.models.ollama.parameters import Parameter
    from ngramspec.models.ollama.recipe import Recipe

# Parameters that are options under the same or another name.
SAME_NAME = (
    *("temperature", "top_p", "min_p", "typical_p", "repeat_last_n", "repeat_penalty", "seed"),
    *("presence_penalty", "frequency_penalty", "mirostat", "mirostat_eta", "mirostat_tau"),
    *("draft_max", "draft_min", "draft_p_min"),
)
OTHER_NAME = {
    "num_batch": "batch_size",
    "use_mmap": "mmap",
    "use_mlock": "mlock",
    "stop": "reverse_prompt",
}


def take_recipe(options: ServeOptions) -> None:
    """Find what --model or --modelfile names and set `recipe` and the options that it implies.

    Options given by the command line, the environment or a configuration file are kept.

    Raises:
        click.UsageError: Both options are given.
        InputError, FormatError, ModelNotFoundError, OSError: As find_recipe and read_recipe.
    """
    from ngramspec.models.ollama.recipe import Recipe, find_recipe, read_recipe
    from ngramspec.models.ollama.store import ModelNotFoundError, default_roots, may_be_name

    modelfile, model = options.modelfile, options.model
    if modelfile is not None and model is not None:
        raise click.UsageError("give either --model or --modelfile")
    roots = default_roots(os.environ.get("OLLAMA_MODELS"))
    if model is not None and _is_modelfile(model):
        modelfile = model
    recipe = Recipe()
    if modelfile is not None:
        recipe = read_recipe(modelfile, roots)
    elif model is not None and may_be_name(model):
        try:
            recipe = find_recipe(str(model), roots)
        except (ModelNotFoundError, InputError) as error:
            kind = ModelNotFoundError if isinstance(error, ModelNotFoundError) else InputError
            raise kind(f"{model}: no such file, and {error}") from None
    for note in recipe.notes:
        click.echo(note, err=True)
    options.recipe = recipe
    if recipe.gguf is not None:
        options.model = recipe.gguf
        _set_defaults(options, recipe, roots)


def names_of(recipe: Recipe) -> list[str]:
    """Return the names of a model from a store, with the name that clients see first."""
    if recipe.name is None:
        return []
    short = recipe.name.short()
    return list(dict.fromkeys((short.removesuffix(":latest"), short)))


def _is_modelfile(path: Path) -> bool:
    """Return whether a file is a Modelfile, by its name: Modelfile, Modelfile.x, x.modelfile."""
    name = path.name.lower()
    return path.is_file() and (name.startswith("modelfile") or name.endswith(".modelfile"))


def _set_defaults(options: ServeOptions, recipe: Recipe, roots: Sequence[Path]) -> None:
    """Set options that were not given."""
    defaults = _options_of(recipe.parameters, options.num_slots)
    defaults |= {"system_prompt": recipe.system, "alias": names_of(recipe)}
    defaults |= _drafts(recipe, roots)
    if recipe.adapters:
        defaults["lora"] = tuple(_row(path) for path in recipe.adapters)

    if "model_draft" in defaults and (is_set("hf_repo_draft") or options.exact):
        if options.exact:
            click.echo("DRAFT: --exact works with n-gram drafters only: no draft model", err=True)
        del defaults["model_draft"]
    if is_set("ctx_size") or options.kv_unified is False:
        defaults.pop("kv_unified_per_slot", None)
    set_here = {name: value for name, value in defaults.items() if not is_set(name)}
    vars(options).update(set_here)


def _row(path: Path) -> str:
    """Return a path as an option takes it that splits at commas outside of quotes."""
    return '"{}"'.format(str(path).replace('"', '""'))


def _options_of(parameters: Mapping[str, Parameter], slots: int) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in parameters.items():
        if name in SAME_NAME:
            options[name] = value
        elif name in OTHER_NAME:
            options[OTHER_NAME[name]] = value
        elif isinstance(value, tuple):
            continue
        elif name == "num_ctx":  # per request; the option is for all slots together
            options |= {"ctx_size": int(value) * slots, "kv_unified_per_slot": int(value)}
        elif name == "ctx_size_draft":
            options["ctx_size_draft"] = int(value) * slots
        elif name == "draft_num_predict" and value:  # 0: no draft model
            options["spec_draft_n_max"] = int(value)
        elif name == "num_gpu" and value >= 0:  # -1: the server decides
            options["n_gpu_layers"] = str(int(value))
        elif name == "num_thread" and value > 0:
            options["threads"] = int(value)
        elif name == "num_predict":
            options["predict"] = int(value) if value > 0 else -1
        elif name == "top_k":
            options["top_k"] = max(0, int(value))
    if options.get("seed", 0) < 0:
        options["seed"] = -1
    return options


def _drafts(recipe: Recipe, roots: Sequence[Path]) -> dict[str, Any]:
    """Return the options for what is to draft: drafters, a draft model, or both.

    Raises:
        InputError: Something is neither a drafter nor a model, or there are several models.
        ModelNotFoundError, FormatError, OSError: As find_gguf.
    """
    from ngramspec.models.ollama.store import ModelNotFoundError, find_gguf

    names, models = list[str](), list[str]()
    for one in recipe.drafts:
        (names if one in (*DRAFTER_NAMES, NO_DRAFTS) else models).append(one)
    if len(models) > 1:
        raise InputError(f"DRAFT: there can be one draft model, not {' and '.join(models)}")
    options: dict[str, Any] = {}
    for model in models:
        try:
            find_gguf(model, roots)
        except (ModelNotFoundError, InputError) as error:
            kind = ModelNotFoundError if isinstance(error, ModelNotFoundError) else InputError
            hint = nearest(model, DRAFTER_NAMES)
            raise kind(f"DRAFT {model}: no drafter ({hint}), no such file, and {error}") from None
        if recipe.parameters.get("draft_num_predict") != 0:
            options["model_draft"] = Path(model)
    if names:
        options["spec_type"] = (",".join(names),)
    return options

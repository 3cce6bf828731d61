"""--model NAME and --modelfile: turn Ollama's settings of a model into options of the server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ngramspec.errors import InputError

if TYPE_CHECKING:
    from ngramspec.ollama.parameters import Parameter
    from ngramspec.ollama.recipe import Recipe

# Parameters that are options under the same or another name.
SAME_NAME = (
    *("temperature", "top_p", "min_p", "typical_p", "repeat_last_n", "repeat_penalty", "seed"),
    *("presence_penalty", "frequency_penalty", "mirostat", "mirostat_eta", "mirostat_tau"),
)
OTHER_NAME = {
    "num_batch": "batch_size",
    "use_mmap": "mmap",
    "use_mlock": "mlock",
    "draft_num_predict": "spec_draft_n_max",
    "stop": "reverse_prompt",
}


def take_recipe(ctx: click.Context, options: dict[str, Any]) -> None:
    """Find what --model or --modelfile names and set `recipe` and the options that it implies.

    Options given by the command line, the environment or a configuration file are kept.

    Raises:
        click.UsageError: Both options are given.
        InputError, FormatError, ModelNotFoundError, OSError: As find_recipe and read_recipe.
    """
    from ngramspec.ollama.recipe import Recipe, find_recipe, read_recipe
    from ngramspec.ollama.store import ModelNotFoundError, default_roots

    modelfile, model = options.pop("modelfile"), options["model"]
    if modelfile is not None and model is not None:
        raise click.UsageError("give either --model or --modelfile")
    roots = default_roots(os.environ.get("OLLAMA_MODELS"))
    if model is not None and _is_modelfile(model):
        modelfile = model
    recipe = Recipe()
    if modelfile is not None:
        recipe = read_recipe(modelfile, roots)
    elif model is not None and _is_name(model):
        try:
            recipe = find_recipe(str(model), roots)
        except (ModelNotFoundError, InputError) as error:
            kind = ModelNotFoundError if isinstance(error, ModelNotFoundError) else InputError
            raise kind(f"{model}: no such file, and {error}") from None
    for note in recipe.notes:
        click.echo(note, err=True)
    options["recipe"] = recipe
    if recipe.gguf is not None:
        options["model"] = recipe.gguf
        _set_defaults(ctx, options, recipe)


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


def _is_name(path: Path) -> bool:
    """Return whether a value that names no file may name a model."""
    text = str(path)
    file = path.suffix.lower() == ".gguf" or text.startswith((".", "~")) or path.is_absolute()
    return not file and not path.exists()


def _set_defaults(ctx: click.Context, options: dict[str, Any], recipe: Recipe) -> None:
    """Set options that were not given."""
    wanted = _wanted(recipe.parameters, options["parallel"])
    wanted |= {"system_prompt": recipe.system, "alias": names_of(recipe)}
    if recipe.draft:
        wanted.update(_draft(recipe.draft))
    for name, value in wanted.items():
        if ctx.get_parameter_source(name) in (None, ParameterSource.DEFAULT):
            options[name] = value


def _wanted(parameters: Mapping[str, Parameter], slots: int) -> dict[str, Any]:
    """Return options by name."""
    made: dict[str, Any] = {}
    for name, value in parameters.items():
        if name in SAME_NAME:
            made[name] = value
        elif name in OTHER_NAME:
            made[OTHER_NAME[name]] = value
        elif isinstance(value, tuple):
            continue
        elif name == "num_ctx":  # per request; the option is for all slots together
            made |= {"ctx_size": int(value) * slots, "kv_unified": False}
        elif name == "num_gpu" and value >= 0:  # -1: the server decides
            made["n_gpu_layers"] = str(int(value))
        elif name == "num_thread" and value > 0:
            made["threads"] = int(value)
        elif name == "num_predict":
            made["predict"] = int(value) if value > 0 else -1
        elif name == "top_k":
            made["top_k"] = max(0, int(value))
    if made.get("seed", 0) < 0:
        made["seed"] = -1
    return made


def _draft(text: str) -> dict[str, Any]:
    """Return the options for a DRAFT line.

    Raises:
        InputError: It is neither names of drafters nor a file.
    """
    from ngramspec.cli.drafts import NO_DRAFTS
    from ngramspec.drafters.names import parse_names

    if Path(text).is_file():
        return {"model_draft": Path(text)}
    try:
        names = text if text.strip() == NO_DRAFTS else ",".join(parse_names(text, "priority"))
    except InputError as error:
        raise InputError(f"DRAFT {text}: no such file, and {error}") from None
    return {"spec_type": (names,)}

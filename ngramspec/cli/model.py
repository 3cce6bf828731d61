"""What names a model on the command line: a file, a model of Ollama's, or one of Hugging Face's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from ngramspec.errors import InputError


def resolve_model(values: dict[str, Any]) -> None:
    """Set a command's `model` to the file that --model or --hf-repo names; None if neither does.

    Raises:
        click.UsageError, InputError: As downloaded_model.
        ModelNotFoundError, FormatError, OSError: As pulled_model.
    """
    path = downloaded_model(
        values["model"], values.pop("hf_repo"), values.pop("hf_file"), "--model"
    )
    values["model"] = None if path is None else pulled_model(path, "--model")[0]


def downloaded_model(
    path: Path | None, repo: str | None, file: str | None, flag: str
) -> Path | None:
    """Return the file of a model that is given by its path or its name on Hugging Face.

    Args:
        path: What `flag` gives; returned as it is.
        repo: The name on Hugging Face.
        file: The file there.
        flag: The option for `path`.

    Raises:
        click.UsageError: Both are given, or a file in no repository.
        InputError: It is not downloaded; says how to get it.
    """
    from ngramspec.models.huggingface import find_downloaded

    if repo is None:
        if file is not None:
            raise click.UsageError("--hf-file needs --hf-repo")
        return path
    if path is not None:
        raise click.UsageError(f"give either {flag} or its name on Hugging Face")
    return find_downloaded(repo, file)


def pulled_model(path: Path, flag: str) -> tuple[Path, str]:
    """Return the file of a model, also where its name in Ollama's store was given, and that name.

    Args:
        path: What `flag` gives.
        flag: The option.

    Raises:
        ModelNotFoundError: No file and no model of Ollama's has the name.
        InputError: It is no valid name, or the model needs a LoRA adapter.
        FormatError, OSError: As find_gguf.
    """
    from ngramspec.models.ollama.store import ModelNotFoundError, default_roots, find_gguf

    try:
        return find_gguf(path, default_roots(os.environ.get("OLLAMA_MODELS")))
    except (ModelNotFoundError, InputError) as error:
        kind = ModelNotFoundError if isinstance(error, ModelNotFoundError) else InputError
        raise kind(f"{flag} {path}: no such file, and {error}") from None

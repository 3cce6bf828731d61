"""What Ollama's routes report about the served model."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ngramspec.errors import InputError
from ngramspec.models.ollama.modelfile import ExampleMessage, Modelfile
from ngramspec.server.model import ServedModel
from ngramspec.server.ollama.bodies import listed_name
from ngramspec.server.ollama.events import time_text
from ngramspec.server.ollama.prompt import capabilities, ollama_view

FOREVER = "2286-11-20T17:46:40Z"  # the model stays as long as the server
# Names of llama.cpp's file types, by number.
FILE_TYPES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K"},
    **{11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S"},
    **{17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS"},
    **{23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S"},
    **{29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0"},
    38: "MXFP4",
}
# Metadata that stays text even if it looks like a number, its exceptions, and what Ollama omits.
TEXTS = ("general.", "tokenizer.ggml.model", "tokenizer.ggml.pre")
NUMBERS = ("general.file_type", "general.quantization_version", "general.alignment")
LEFT_OUT = ("general.name", "tokenizer.chat_template")


def tags(served: ServedModel) -> dict[str, Any]:
    return {"models": [_entry(served)]}


def running(served: ServedModel) -> dict[str, Any]:
    entry = _entry(served)
    del entry["modified_at"]
    size = entry["size"] if served.model.n_gpu_layers else 0
    more = {"expires_at": FOREVER, "size_vram": size, "context_length": served.engine.context_size}
    return {"models": [{**entry, **more}]}


def show(served: ServedModel) -> dict[str, Any]:
    recipe, view = served.recipe, ollama_view(served)
    members = {
        "license": "\n".join(recipe.licenses),
        "modelfile": modelfile_text(served),
        "parameters": _parameters(served),
        "template": view.chat_template,
        "system": served.system,
        "details": _details(served),
        "messages": [dict(message) for message in recipe.messages],
        "model_info": _model_info(served),
        "capabilities": capabilities(served),
        "speculative": served.drafting.as_json(),
        "modified_at": time_text(_modified(served)),
    }
    optional = ("license", "system", "messages", "parameters")
    return {name: value for name, value in members.items() if value or name not in optional}


def modelfile_text(served: ServedModel) -> str:
    recipe = served.recipe
    messages = [(str(m.get("role")), str(m.get("content", ""))) for m in recipe.messages]
    try:
        text = Modelfile(
            base=str(served.model.path),
            template=ollama_view(served).go_template,
            system=served.system or None,
            parameters=recipe.parameters,
            messages=tuple(ExampleMessage(*message) for message in messages),
            licenses=recipe.licenses,
            drafts=_drafts(served),
            adapters=tuple(map(str, recipe.adapters)),
            capabilities=recipe.capabilities,
        ).to_text()
    except InputError as error:  # a text with quotes that Modelfiles cannot hold
        text = f"# {' '.join(str(error).split())}\nFROM {served.model.path}\n"
    return f"# Modelfile of {listed_name(served)}, as ngramspec serves it\n{text}"


def _drafts(served: ServedModel) -> tuple[str, ...]:
    drafting = served.drafting
    small = drafting.draft_model
    names = ",".join(drafting.drafters) or "none"
    if small is None:
        return (names,)
    return names, small.path if small.name == Path(small.path).name else small.name


def _entry(served: ServedModel) -> dict[str, Any]:
    name, stored = listed_name(served), served.recipe.stored
    size = served.model.file_size if stored is None else stored.size
    return {
        "name": name,
        "model": name,
        "modified_at": time_text(_modified(served)),
        "size": size,
        "digest": _digest(served),
        "details": _details(served),
        "capabilities": capabilities(served),
    }


def _modified(served: ServedModel) -> datetime:
    stored = served.recipe.stored
    if stored is not None:
        return stored.modified
    return datetime.fromtimestamp(served.model.file_time_ns / 1e9, timezone.utc)


def _digest(served: ServedModel) -> str:
    """Return the manifest's digest, or for a plain file one of its name, size and date."""
    stored, model = served.recipe.stored, served.model
    if stored is not None:
        return stored.digest
    facts = f"{model.path.name}:{model.file_size}:{model.file_time_ns}"
    return hashlib.sha256(facts.encode()).hexdigest()


def _details(served: ServedModel) -> dict[str, Any]:
    model, stored = served.model, served.recipe.stored
    family = (stored and stored.family) or model.architecture
    file_type = model.metadata.get("general.file_type", "")
    kind = int(file_type) if file_type.isdigit() else model.file_type
    width = model.metadata.get(f"{model.architecture}.embedding_length", "")
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": list(stored.families if stored and stored.families else [family]),
        "parameter_size": (stored and stored.parameter_size) or human_number(model.num_params),
        "quantization_level": (stored and stored.quantization) or FILE_TYPES.get(kind, "unknown"),
        "context_length": served.engine.context_size,
        "embedding_length": int(width) if width.isdigit() else 0,
    }


def human_number(count: int) -> str:
    """Return a count of parameters as Ollama writes it, such as 8.0B or 137M."""
    for unit, letter, digits in ((10**9, "B", 1), (10**6, "M", 2)):
        if count >= unit:
            return f"{count / unit:.{digits if count % unit else 0}f}{letter}"
    return f"{count / 1000:.0f}K" if count >= 1000 else str(count)


def _parameters(served: ServedModel) -> str:
    """Return the parameters as `ollama show --parameters` writes them."""
    lines = []
    for name, value in served.recipe.parameters.items():
        texts = [f'"{text}"' for text in value] if isinstance(value, tuple) else [str(value)]
        lines += [f"{name:<30} {text}" for text in texts]
    return "\n".join(lines)


def _model_info(served: ServedModel) -> dict[str, Any]:
    """Return the GGUF file's metadata with numbers as such."""
    metadata: dict[str, Any] = {
        name: _typed(name, text)
        for name, text in served.model.metadata.items()
        if name not in LEFT_OUT
    }
    return {**metadata, "general.parameter_count": served.model.num_params}


def _typed(name: str, text: str) -> Any:
    if name.startswith(TEXTS) and name not in NUMBERS:
        return text
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text

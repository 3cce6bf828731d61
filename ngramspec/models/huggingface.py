"""find_downloaded: models that llama.cpp or Hugging Face's tools have downloaded.

The layouts: the hub's cache, models--USER--MODEL/snapshots/COMMIT/FILE, which llama.cpp uses too,
and llama.cpp's older folder with USER_MODEL_FILE. Sources: huggingface_hub's documentation,
llama.cpp common/hf-cache.cpp and common/download.cpp.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ngramspec.errors import InputError

USUAL = ("Q4_K_M", "Q8_0")  # preferred in this order where no quantisation is named
_NAME = re.compile(r"([\w.-]+)/([\w.-]+?)(?::([\w.-]+))?")
_ONLY = re.compile(r"-(I?Q\d\w*)-GGUF$", re.IGNORECASE)  # a repository of one quantisation
_OTHER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")  # of a split model
# Companions of a model, which are no models of their own.
_COMPANIONS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")


class NotDownloadedError(InputError):
    """No downloaded file is what was asked for; the message says how to get it."""


def find_downloaded(
    name: str, file: str | None = None, env: Mapping[str, str] | None = None
) -> Path:
    """Return the downloaded file of a model on Hugging Face.

    Args:
        name: USER/MODEL or USER/MODEL:QUANTISATION; without one, Q4_K_M, Q8_0, then any.
        file: Name of the file in the model's repository, instead of a quantisation.
        env: Environment variables; None = those of the process.

    Raises:
        InputError: The name has another form.
        NotDownloadedError: There is no such file.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise InputError(f"a model must be named as USER/MODEL or USER/MODEL:QUANT, got {name!r}")
    user, model, quantisation = match.groups()
    env = os.environ if env is None else env
    there = dict(_downloaded(user, model, env))
    chosen = _choose(there, file, quantisation)
    if chosen is None:
        only = _ONLY.search(model)
        quant = quantisation or (only[1] if only else USUAL[0])
        names = [file] if file else [f"*{quant.upper()}*.gguf", f"*{quant.lower()}*.gguf"]
        patterns = " ".join(f"'{one}'" for one in names)  # which hf takes as they are written
        listed = f"; there is {', '.join(sorted(there))}" if there else ""
        raise NotDownloadedError(
            f"{name} is not downloaded{listed}. Get it with: hf download {user}/{model} "
            f"--include {patterns}"
        )
    return there[chosen]


def _downloaded(user: str, model: str, env: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield names in the repository, and files; of several versions the current one is last."""
    for folder in _old_folders(env):
        start = f"{user}_{model}_"
        for path in sorted(folder.glob(f"{start}*.gguf")):
            yield path.name.removeprefix(start), path
    for folder in _hubs(env):
        repository = folder / f"models--{user}--{model}"
        current = _text(repository / "refs" / "main")
        snapshots = sorted((repository / "snapshots").glob("*"), key=lambda p: p.name == current)
        for snapshot in snapshots:
            for path in sorted(snapshot.rglob("*.gguf")):
                if path.is_file():
                    yield path.relative_to(snapshot).as_posix(), path


def _hubs(env: Mapping[str, str]) -> list[Path]:
    """Return the folders in which the hub's cache may lie."""
    folders = [env[name] for name in ("LLAMA_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
               if env.get(name)]  # fmt: skip
    if env.get("HF_HOME"):
        folders.append(os.path.join(env["HF_HOME"], "hub"))
    cache = env.get("XDG_CACHE_HOME") or os.path.join(_home(env), ".cache")
    return [Path(folder) for folder in [*folders, os.path.join(cache, "huggingface", "hub")]]


def _old_folders(env: Mapping[str, str]) -> list[Path]:
    caches = [env.get("XDG_CACHE_HOME"), os.path.join(_home(env), ".cache")]
    caches += [env.get("LOCALAPPDATA"), os.path.join(_home(env), "Library", "Caches")]
    own = env.get("LLAMA_CACHE")
    return [Path(cache) / "llama.cpp" for cache in caches if cache] + ([Path(own)] if own else [])


def _home(env: Mapping[str, str]) -> str:
    return env.get("HOME") or os.path.expanduser("~")


def _choose(there: Mapping[str, Path], file: str | None, quantisation: str | None) -> str | None:
    """Return the name that is meant, None if there is none."""
    if file is not None:
        return file if file in there else None
    names = [name for name in sorted(there) if _is_model(name)]
    for quant in (quantisation,) if quantisation else USUAL:
        pattern = re.compile(rf"{re.escape(quant)}[.-]", re.IGNORECASE)
        for name in names:
            if pattern.search(name):
                return name
    return names[0] if names and not quantisation else None


def _is_model(name: str) -> bool:
    base = name.rpartition("/")[2]
    return not _OTHER_PART.search(base) and not any(other in base for other in _COMPANIONS)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except OSError:
        return ""

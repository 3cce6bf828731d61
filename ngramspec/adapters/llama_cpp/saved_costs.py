"""Saved costs: where a model's measured costs are stored, and reading them."""

from __future__ import annotations

import json
import logging
import os
import platform
from pathlib import Path
from typing import Any

from ngramspec.adapters.llama_cpp.model import LlamaModel
from ngramspec.adapters.llama_cpp.settings import ContextSettings
from ngramspec.costs import CostTable, load_costs
from ngramspec.errors import FormatError, InputError

log = logging.getLogger(__name__)
FOLDER = Path("ngramspec", "costs")
ENDS = 1 << 20  # bytes of the model file that are hashed at either end
_reported: set[Path] = set()


def costs_path(model: LlamaModel, settings: ContextSettings) -> Path:
    """Return the path for the costs of a model in a setting; it need not exist.

    The name depends on what affects the cost of a decode, see cost_key. The folder is in
    XDG_CACHE_HOME, or ~/.cache without it.

    Raises:
        InputError: There is neither XDG_CACHE_HOME nor a home.
        OSError: The model's file cannot be read.
    """
    import xxhash

    key = cost_key(model, settings)
    digest = xxhash.xxh3_64_hexdigest(json.dumps(key, sort_keys=True).encode())
    return _cache_home() / FOLDER / f"{key['model'][:16]}-{digest}.json"


def find_costs(model: LlamaModel, settings: ContextSettings) -> CostTable | None:
    """Return the costs that `ngramspec bench calibrate` saved for a model in a setting.

    A file that cannot be read is reported once per process, as a warning, and ignored.

    Returns:
        CostTable in seconds; None when nothing was measured.

    Cost: reads 2 MiB of the model.
    """
    try:
        path = costs_path(model, settings)
    except (InputError, OSError):
        return None
    try:
        return load_costs(path)
    except FileNotFoundError:
        return None
    except (FormatError, OSError, RecursionError) as error:
        if path not in _reported:
            _reported.add(path)
            log.warning("the costs in %s are ignored: %s", path, error)
        return None


def cost_key(model: LlamaModel, settings: ContextSettings) -> dict[str, Any]:
    """Return what the costs depend on, as plain data: model, processor, and how it is run.

    Raises:
        OSError: The model's file cannot be read.
    """
    return {
        "model": file_digest(model.path),
        "processor": _processor(),
        "n_gpu_layers": model.n_gpu_layers,
        "threads": list(settings.num_threads),
        "flash_attn": settings.flash_attn,
        "type_k": settings.type_k,
        "type_v": settings.type_v,
        "n_batch": settings.n_batch,
        "n_ubatch": settings.n_ubatch,
        "pad": settings.pad,
    }


def file_digest(path: Path) -> str:
    """Return a digest that identifies a model file by content: size, first and last MiB.

    Raises:
        OSError: It cannot be read.
    """
    import xxhash

    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        digest = xxhash.xxh3_128(size.to_bytes(8, "little"))
        for at in (0, max(0, size - ENDS)):
            file.seek(at)
            digest.update(file.read(ENDS))
    return digest.hexdigest()


def _cache_home() -> Path:
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):  # the specification says that relative paths are invalid
        return Path(given)
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        raise InputError("there is no home folder to keep costs in: set XDG_CACHE_HOME")
    return Path(home, ".cache")


def _processor() -> str:
    """Return the name of the CPU: a home may be shared by different machines."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() == "model name":
                    return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()

"""Saved costs: what a model's passes cost here, measured once and kept."""

from __future__ import annotations

import json
import logging
import os
import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec._version import __version__
from ngramspec.adapters.llama_cpp.digest import file_digest
from ngramspec.adapters.llama_cpp.model import LlamaModel
from ngramspec.adapters.llama_cpp.placement import gpus
from ngramspec.adapters.llama_cpp.settings import ContextSettings
from ngramspec.costs import CostTable, load_costs, save_costs
from ngramspec.engine.calibration import Calibration, calibrate_within
from ngramspec.errors import BackendError, FormatError, InputError, NgramspecError

if TYPE_CHECKING:
    from ngramspec.adapters.llama_cpp.target import LlamaTarget

log = logging.getLogger(__name__)
FOLDER = Path("ngramspec", "costs")
SECONDS = 2.0  # for measuring what nobody has measured yet, by default
# The fields of Loading that passes may depend on. MTP heads are loaded for drafts, not for them.
_OF_LOADING = ("mode", "lazy", "repack", "host_buffers")  # and the metadata
_reported: set[Path] = set()


def costs_path(model: LlamaModel, settings: ContextSettings) -> Path:
    """Return the path for the costs of a model in a setting; it need not exist.

    The name depends on what affects the cost of a decode, see cost_key. The folder is in
    XDG_CACHE_HOME, or ~/.cache without it.

    Raises:
        BackendError: llama.cpp does not say which GPUs there are.
        InputError: There is neither XDG_CACHE_HOME nor a home.
        OSError: The model's file cannot be read.
    """
    import xxhash

    key = cost_key(model, settings)
    digest = xxhash.xxh3_64_hexdigest(json.dumps(key, sort_keys=True).encode())
    return _cache_home() / FOLDER / f"{key['model'][:16]}-{digest}.json"


def find_costs(model: LlamaModel, settings: ContextSettings) -> CostTable | None:
    """Return the costs that were measured and saved for a model in a setting.

    A file that cannot be read is reported once per process, as a warning, and ignored.

    Returns:
        CostTable in seconds; None when nothing was measured.

    Cost: reads 2 MiB of the model.
    """
    try:
        path = costs_path(model, settings)
    except (BackendError, InputError, OSError):
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


def known_costs(target: LlamaTarget, seconds: float | None = None) -> CostTable | None:
    """Return the costs saved for a target; if there are none, measure them roughly and save them.

    So the first start takes up to `seconds` longer, and drafts have the right length from the first
    request on. What cannot be saved is measured again next time.

    Args:
        target: Idle; its first sequence is emptied.
        seconds: For measuring, None = SECONDS, 0 = only look for saved ones.

    Returns:
        CostTable in seconds; None if nothing is known: a pass takes too long to measure, or tokens
        cannot be taken back one by one, so that lengths are chosen by other means.
    """
    seconds = SECONDS if seconds is None else seconds
    found = find_costs(target.model, target.settings)
    if found is not None or seconds <= 0 or target.max_rollback is not None:
        return found
    started = time.perf_counter()
    try:
        made = calibrate_within(target, seconds)
    except NgramspecError as error:
        log.warning("the costs of passes could not be measured: %s", error)
        return None
    if made is None:
        log.info(
            "what passes cost is not known: in %g s nothing sure was measured, as batches are too "
            "small, passes too long, or the machine is too busy",
            seconds,
        )
        return None
    log.info("measured the costs of passes in %.1f s", time.perf_counter() - started)
    try:
        path = costs_path(target.model, target.settings)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        save_calibration(made, target, path)
    except (BackendError, InputError, OSError) as error:
        log.info("the costs of passes are not kept: %s", error)
    return made.table(target.model.path.stem)


def save_calibration(found: Calibration, target: LlamaTarget, path: Path) -> None:
    """Save the costs of a target with what they depend on, so that find_costs finds them.

    Raises:
        InputError: Nothing was measured.
        OSError: The file cannot be written.
    """
    about = {
        "unit": "s",
        "context": found.context,
        "rounds": min(map(len, found.seconds.values())),
        "key": cost_key(target.model, target.settings),
        "version_of_ngramspec": __version__,
    }
    save_costs(found.table(target.model.path.stem), path, about)


def cost_key(model: LlamaModel, settings: ContextSettings) -> dict[str, Any]:
    """Return what the costs depend on, as plain data: model, machine, build, and how it is run.

    Raises:
        BackendError: llama.cpp does not say which GPUs there are.
        OSError: The model's file cannot be read.
    """
    import llama_cpp

    placement = model.placement
    return {
        "model": file_digest(model.path),
        "processor": _processor(),
        "build": f"{llama_cpp.__version__} {model.library.lib.llama_print_system_info().decode()}",
        "devices": [one.description for one in gpus(placement)] if model.n_gpu_layers else [],
        "placement": {**asdict(placement), "n_gpu_layers": model.n_gpu_layers},
        "loading": {
            **{name: getattr(model.loading, name) for name in _OF_LOADING},
            "metadata": dict(model.loading.metadata),
        },
        "threads": list(settings.num_threads),
        "flash_attn": settings.flash_attn,
        "type_k": settings.type_k,
        "type_v": settings.type_v,
        "n_batch": settings.n_batch,
        "n_ubatch": settings.n_ubatch,
        "pad": settings.pad,
        "offload_kqv": settings.offload_kqv,
        "op_offload": settings.op_offload,
        "thread_plans": [
            {**asdict(plan), "cpus": sorted(plan.cpus)} for plan in settings.thread_plans or ()
        ],
    }


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

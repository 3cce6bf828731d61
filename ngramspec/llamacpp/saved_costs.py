"""Saved costs: what a model's passes cost here, measured once and kept."""

from __future__ import annotations

import json
import logging
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec._version import __version__
from ngramspec.costs import CostTable, load_costs, save_costs
from ngramspec.engine.calibration import AGREE, QUICK_SIZES, Calibration, calibrate_within
from ngramspec.errors import BackendError, FormatError, InputError, NgramspecError
from ngramspec.llamacpp.model import LlamaModel, file_digest
from ngramspec.llamacpp.placement import ALL, gpus
from ngramspec.llamacpp.settings import ContextSettings
from ngramspec.llamacpp.threads import in_own_thread

if TYPE_CHECKING:
    from ngramspec.llamacpp.target import LlamaTarget

log = logging.getLogger(__name__)
FOLDER = Path("ngramspec", "costs")
SECONDS = 2.0  # for measuring what nobody has measured yet, by default
# The fields of Loading that passes may depend on. MTP heads are loaded for drafts, not for them.
_OF_LOADING = ("mode", "lazy", "repack", "host_buffers")  # and the metadata
MOST_SCATTERED = 0.25  # share of passes; a busier machine's costs are not kept
MOST_STOLEN = 0.1  # seconds while measuring
DISAGREE = AGREE**2  # either of two measurements may be off by AGREE
_SHOWN = 3  # differences of settings
_SHORT = 40  # characters of a value that are shown
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
    return path_of(cost_key(model, settings), ".json")


def path_of(key: Mapping[str, Any], ending: str) -> Path:
    """Return the path for what is kept of a key, one of cost_key or with more; it need not exist.

    Raises:
        InputError: There is neither XDG_CACHE_HOME nor a home.
    """
    import xxhash

    digest = xxhash.xxh3_64_hexdigest(json.dumps(key, sort_keys=True).encode())
    return _cache_home() / FOLDER / f"{_prefix(key)}{digest}{ending}"


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


def other_costs(model: LlamaModel, settings: ContextSettings) -> str:
    """Return what costs of a model in another setting are for, as a part of a sentence.

    Of several files, that of the setting which differs least; "" where there is none.

    Cost: reads 2 MiB of the model, and all costs that are saved for it.
    """
    try:
        key = cost_key(model, settings)
        paths = sorted((_cache_home() / FOLDER).glob(f"{_prefix(key)}*.json"))
    except (BackendError, InputError, OSError):
        return ""
    mine = dict(_facts(key))
    nearest: list[str] = []
    for path in paths:
        try:
            theirs = dict(_facts(json.loads(path.read_bytes())["key"]))
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue
        names = [n for n in {**mine, **theirs} if theirs.get(n) != mine.get(n)]
        if names and not 0 < len(nearest) <= len(names):
            nearest = [f"{n} {_shown(theirs, n)} instead of {_shown(mine, n)}" for n in names]
    if not nearest:
        return ""
    more = len(nearest) - _SHOWN
    rest = f" and {more} more" if more > 0 else ""
    return f"costs are saved for {', '.join(nearest[:_SHOWN])}{rest}"


def layers_note(key: Mapping[str, Any]) -> str:
    """Return when costs with this key are found, where that is not sure; else "".

    How many layers fit beside a context depends on its size, so another one finds other costs.
    """
    layers = key["placement"]["n_gpu_layers"]
    if layers in (0, ALL):
        return ""
    return (
        f"for {layers} layers on the GPU: start `serve` with -ngl {layers}, "
        "as auto may find another number beside its context"
    )


def known_costs(target: LlamaTarget, seconds: float | None = None) -> CostTable | None:
    """Return the costs saved for a target; if there are none, measure them roughly and save them.

    So the first start takes up to `seconds` longer, and drafts have the right length from the first
    request on. What cannot be saved, or is measured on a busy machine, is measured again next time.
    Saved costs that a few passes contradict are measured again and replaced, unless
    `ngramspec bench calibrate` saved them: then a warning says so.

    Args:
        target: Idle; its first sequence is emptied.
        seconds: For measuring, None = SECONDS, 0 = only look for saved ones.

    Returns:
        CostTable in seconds; None if nothing is known: a pass takes too long to measure, or tokens
        cannot be taken back one by one, so that lengths are chosen by other means.
    """
    seconds = SECONDS if seconds is None else seconds
    saved = find_costs(target.model, target.settings)
    if saved is None and (other := other_costs(target.model, target.settings)):
        log.info("what passes cost is not known in this setting: %s", other)
    if seconds <= 0 or target.max_rollback is not None:
        return saved

    def measure(_: Callable[[], None]) -> CostTable | None:
        if saved is not None and not _contradicted(saved, target, seconds):
            return saved
        return _measured(target, seconds) or saved

    try:
        return in_own_thread(measure)
    except (NgramspecError, OSError) as error:
        log.warning("the costs of passes could not be measured: %s", error)
        return saved


def _contradicted(saved: CostTable, target: LlamaTarget, seconds: float) -> bool:
    """Return whether rough costs are off; a machine that is busy now says nothing about them.

    Cost: some passes over 1 and 8 tokens, at most half of `seconds`.
    """
    stolen = _stolen()
    seen = calibrate_within(target, seconds / 2, QUICK_SIZES[:2])
    if seen is None or _busy(seen, stolen):
        return False
    now = seen.medians()
    one, eight = (now[size] / saved.cost(size) for size in QUICK_SIZES[:2])
    if max(one, eight, eight / one) <= DISAGREE and min(one, eight, eight / one) >= 1 / DISAGREE:
        return False
    path = costs_path(target.model, target.settings)
    differ = f"a pass over 1 token takes {one:.2f} times as long, over 8 tokens {eight:.2f} times"
    if json.loads(path.read_bytes()).get("rough") is False:
        log.warning("%s as in %s: run `ngramspec bench calibrate` again", differ, path)
        return False
    log.info("%s as in %s: they are measured again", differ, path)
    return True


def _measured(target: LlamaTarget, seconds: float) -> CostTable | None:
    """Measure costs roughly, and save them unless the machine is busy; None if nothing is sure."""
    started, stolen = time.perf_counter(), _stolen()
    measured = calibrate_within(target, seconds)
    threads = max(target.settings.num_threads)
    hint = f". -t {threads - 1} may be faster, as threads wait for each other" * (threads > 1)
    if measured is None:
        log.info(
            "what passes cost is not known: in %g s nothing sure was measured, as batches are too "
            "small, passes too long, or the machine is too busy%s",
            *(seconds, hint),
        )
        return None
    log.info(
        "measured the costs of passes in %.1f s, roughly: `ngramspec bench calibrate` is exact",
        time.perf_counter() - started,
    )
    if busy := _busy(measured, stolen):
        log.info("the costs of passes are not kept, as the machine is busy: %s%s", busy, hint)
        return measured.table(target.model.path.stem)
    try:
        path = costs_path(target.model, target.settings)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        save_calibration(measured, target, path, rough=True)
    except (BackendError, InputError, OSError) as error:
        log.info("the costs of passes are not kept: %s", error)
    return measured.table(target.model.path.stem)


def save_calibration(
    calibration: Calibration, target: LlamaTarget, path: Path, *, rough: bool = False
) -> None:
    """Save the costs of a target with what they depend on, so that find_costs finds them.

    Args:
        calibration: What was measured.
        target: What it was measured on.
        path: Replaced when it exists.
        rough: Whether a start has measured them in passing.

    Raises:
        InputError: Nothing was measured.
        OSError: The file cannot be written.
    """
    about = {
        "unit": "s",
        "context": calibration.context,
        "rounds": min(map(len, calibration.seconds.values())),
        "rough": rough,
        "scattered": round(calibration.scattered, 3),
        "key": cost_key(target.model, target.settings),
        "version_of_ngramspec": __version__,
    }
    save_costs(calibration.table(target.model.path.stem), path, about)


def cost_key(model: LlamaModel, settings: ContextSettings) -> dict[str, Any]:
    """Return what the costs depend on, as plain data: model, machine, build, and how it is run.

    Raises:
        BackendError: llama.cpp does not say which GPUs there are.
        OSError: The model's file cannot be read.
    """
    import llama_cpp

    placement, layers = model.placement, _layers_on_gpus(model)
    return {
        "model": file_digest(model.path),
        "processor": _processor(),
        "build": f"{llama_cpp.__version__} {model.library.lib.llama_print_system_info().decode()}",
        "devices": [one.description for one in gpus(placement)] if layers else [],
        "placement": {**asdict(placement), "n_gpu_layers": layers},
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


def _busy(calibration: Calibration, stolen: float) -> str:
    """Return why what was measured may be too high for later starts, "" if nothing says so.

    stolen: Of _stolen, before it was measured.
    """
    if calibration.scattered > MOST_SCATTERED:
        return f"{calibration.scattered:.0%} of the passes took longer than others of their size"
    if (stolen := _stolen() - stolen) > MOST_STOLEN:
        return f"its host took {stolen:.2f} s of the processors"
    return overload()


def overload() -> str:
    """Return how much more the machine has had to do lately than it can, "" if that is not so."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0  # not on Windows
    processors = os.cpu_count() or 1
    return f"load {load:.1f} on {processors} processors" if load > processors else ""


def _stolen() -> float:
    """Return the seconds that a virtual machine's host has taken so far; 0 where nothing tells."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def _prefix(key: Mapping[str, Any]) -> str:
    return f"{key['model'][:16]}-"


def _layers_on_gpus(model: LlamaModel) -> int:
    """Return how many layers GPUs hold, -1 = all, whatever number was asked for.

    The metadata tell how many there are, also where only the vocabulary is loaded.
    """
    asked = model.n_gpu_layers
    if asked == 0 or not gpus(model.placement):
        return 0
    count = model.metadata.get(f"{model.architecture}.block_count", "")
    return ALL if asked < 0 or (count.isdecimal() and asked > int(count)) else asked


def _facts(key: Mapping[str, Any], outer: str = "") -> Iterator[tuple[str, str]]:
    """Yield the parts of a key by name, as JSON."""
    for name, value in key.items():
        if isinstance(value, Mapping):
            yield from _facts(value, f"{name} ")
        else:
            yield f"{outer}{name}", json.dumps(value)


def _shown(facts: Mapping[str, str], name: str) -> str:
    return f"{facts.get(name, 'nothing'):.{_SHORT}}"


def _cache_home() -> Path:
    path = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(path):  # the specification says that relative paths are invalid
        return Path(path)
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

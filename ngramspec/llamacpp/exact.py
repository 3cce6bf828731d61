"""Exact targets: the settings of llama.cpp in which drafts cannot change a bit, found by trying."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ngramspec._version import __version__
from ngramspec.engine.exactness import WAYS, Exactness, Setting, measure, trees_differ
from ngramspec.errors import BackendError, InputError
from ngramspec.files.atomic import new_file
from ngramspec.llamacpp.model import LlamaModel, file_digest
from ngramspec.llamacpp.placement import Placement, gpus
from ngramspec.llamacpp.saved_costs import cost_key, path_of
from ngramspec.llamacpp.settings import ContextSettings
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.llamacpp.threads import in_own_thread

log = logging.getLogger(__name__)
QUICK_SIZES = (2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33, 48, 50, 62, 63)
ENOUGH_TOKENS = 560  # beyond 512 cells, where llama.cpp divides the cache among threads
QUICK_ROWS = 32
LEAST = 2  # a batch of one token leaves no room for a draft
LARGEST = 64  # tokens of a batch; no larger one is tried


def check_exact(
    settings: ContextSettings, placement: Placement, names: Mapping[str, str] | None = None
) -> None:
    """Check that nothing contradicts an exact setting, before the model is loaded.

    What cannot change a bit is kept as it is, such as RoPE and how threads run. Sizes of batches
    are bounds, as ever.

    Args:
        settings: As they were asked for.
        placement: Of the weights.
        names: What a setting is called where it is set, by its name; "exact" is one of them.

    Raises:
        InputError: Something does; says what to leave out.
        BackendError: llama.cpp does not say which GPUs there are.
    """
    called = names or {}
    for contradicts, needs in _contradictions(settings, placement):
        asked = " and ".join(called.get(name, name) for name in contradicts.split())
        raise InputError(f"{called.get('exact', 'exact')} needs {needs}: leave out {asked}")


def _contradictions(settings: ContextSettings, placement: Placement) -> Iterator[tuple[str, str]]:
    """Yield names of settings that contradict an exact one, and what that needs instead."""
    single, batch = settings.num_threads
    type_k, type_v = settings.type_k, settings.type_v
    if settings.flash_attn is False:
        yield "flash_attn", "flash attention"
    if single != batch:
        needs = f"as many threads for batches as for single tokens, got {batch} and {single}"
        yield "threads_batch", needs
    if type_k != type_v:
        needs = f"the same type for cached keys and values, got {type_k} and {type_v}"
        yield "type_k type_v", needs
    if settings.kv_unified and settings.slots > 1:
        yield "kv_unified", "a cache for each slot"
    if not settings.swa_full:
        yield "swa_full", "all that lies outside of a sliding window"
    if settings.max_outputs:
        yield "max_outputs", "the logits of whole batches"
    if settings.pad:
        yield "pad", "to find out by itself whether single tokens are padded"
    # Kernels of GPUs change with the length of the text, too, of which only a short one is tried.
    if placement.layers != 0 and gpus(placement):
        yield "n_gpu_layers", "all layers on the CPU"


def open_setting(
    model: LlamaModel,
    setting: Setting,
    slots: int,
    context_size: int,
    own: ContextSettings | None = None,
    branches: int = 1,
) -> LlamaTarget:
    """Return a target run in a setting.

    Args:
        model: The model.
        setting: The setting.
        slots: Of the target.
        context_size: Of each slot.
        own: What the setting says nothing of; its batches are bounds.
        branches: Most of a draft; several need one cache for all slots.

    Raises:
        BackendError: llama.cpp cannot run it.
    """
    own = own or ContextSettings()
    least = slots * branches + setting.padded
    return LlamaTarget(
        model,
        replace(
            own,
            slots=slots,
            context_size=context_size,
            cells=0,
            n_batch=max(min(LARGEST, own.n_batch), least),
            n_ubatch=min(LARGEST, own.n_ubatch),
            threads=setting.threads,
            threads_batch=setting.threads,
            flash_attn=setting.flash_attn,
            type_k=setting.cache_type,
            type_v=setting.cache_type,
            kv_unified=setting.unified or branches > 1,
            pad=setting.padded,
            branches=branches,
        ),
    )


def random_tokens(model: LlamaModel, count: int) -> npt.NDArray[np.int32]:
    """Return `count` random tokens of the model's vocabulary, the same on every call."""
    rng = np.random.default_rng(20)
    return rng.integers(0, model.vocab_size, size=count).astype(np.int32)


def candidates(
    threads: int, slots: int, cache_type: str = "f16", adapters: bool = False
) -> list[Setting]:
    """Return the settings that may be exact, fastest first.

    With one cache for several slots, freed cells are reused by any sequence; a sequence's cells are
    then not in the order of its positions, and its sums round differently. So several slots get a
    cache each, and one thread: several would divide the cache of a single token among them.

    The matrices of LoRA adapters are multiplied with a lone token in another way than with several.
    That shows in one token of twenty or so, more seldom than is measured, so it is always padded.
    Only one slot can be.
    """
    settings = []
    if slots == 1 and (threads > 1 or adapters):
        settings.append(Setting(threads, True, cache_type, True, padded=True))
    if not adapters:
        settings.append(Setting(1, True, cache_type, False))
    return settings


def find_exact(
    model: LlamaModel,
    threads: int,
    slots: int,
    cache_type: str = "f16",
    own: ContextSettings | None = None,
    before_pass: Callable[[], None] = lambda: None,
) -> Exactness:
    """Return the first candidate in which drafts can be verified exactly.

    A model with adapters is measured with all of them applied.

    Args:
        model: The model.
        threads: For a single slot; several have one.
        slots: Of the target.
        cache_type: Of cached keys and values.
        own: What a setting says nothing of, checked by check_exact.
        before_pass: As for engine.exactness.measure.

    Raises:
        BackendError: There is none for this model on this machine, or for adapters and several
            slots.

    Cost: about 1,500 decoded tokens per candidate.
    """
    if model.adapters and slots > 1:
        raise BackendError(
            "with LoRA adapters only one slot is exact: set one slot, or leave them out"
        )
    ids = random_tokens(model, ENOUGH_TOKENS)
    tried = []
    for setting in candidates(threads, slots, cache_type, bool(model.adapters)):
        exactness = measure(
            lambda s, n: _adapted(open_setting(model, s, n, ENOUGH_TOKENS, own)),
            setting,
            ids,
            QUICK_SIZES,
            num_rows=QUICK_ROWS,
            ways=WAYS[2:],
            stop_early=True,
            before_pass=before_pass,
        )
        if exactness.limit() >= LEAST:
            return exactness
        tried.append(setting.text())
    raise BackendError(
        f"no setting is exact for this model: with {'; or with '.join(tried)}, batches of 2 tokens "
        "have other bits than single tokens (see `ngramspec bench exactness`)"
    )


def open_tested(model: LlamaModel, settings: ContextSettings) -> tuple[LlamaTarget, Exactness]:
    """Return a target in the first exact setting, and what was measured of that.

    What was found is kept beside the costs of passes, for later starts with the same file, options,
    build and machine.

    settings: Checked by check_exact. What an exact setting does not choose is kept.

    Raises:
        BackendError: As find_exact.

    Cost: that of find_exact the first time.
    """
    slots, threads = settings.slots, settings.num_threads[0]
    size, branches = settings.context_size_of(model), settings.branches
    try:
        path = exact_path(model, settings)
    except (BackendError, InputError, OSError) as error:
        log.info("the exact setting is not kept: %s", error)
        path = None
    kinds = candidates(threads, slots, settings.type_k, bool(model.adapters))
    if path is not None and (saved := _load(path, kinds)) is not None:
        exactness, branches = saved
        target = open_setting(model, exactness.setting, slots, size, settings, branches)
        target.exact_batch = exactness.limit()
        return target, exactness

    def search(check: Callable[[], None]) -> tuple[LlamaTarget, Exactness]:
        exactness = find_exact(model, threads, slots, settings.type_k, settings, check)
        return open_exact(model, exactness, slots, size, branches, settings, check), exactness

    target, exactness = in_own_thread(search)
    if path is not None:
        _save(path, exactness, target.settings.branches)
    return target, exactness


def exact_path(model: LlamaModel, settings: ContextSettings) -> Path:
    """Return the path for what was found of a model that is to run as `settings` say.

    Raises:
        BackendError: llama.cpp does not say which GPUs there are.
        InputError: There is neither XDG_CACHE_HOME nor a home.
        OSError: A file of the model cannot be read.
    """
    key = {
        **cost_key(model, settings),
        "slots": settings.slots,
        "branches": settings.branches,
        "tokens": _tree_tokens(settings.context_size_of(model)),
        "rope": asdict(settings.rope),
        "adapters": [file_digest(adapter.path) for adapter in model.adapters],
        "version_of_ngramspec": __version__,
    }
    return path_of(key, ".exact")


def _load(path: Path, kinds: Sequence[Setting]) -> tuple[Exactness, int] | None:
    """Return what was kept of one of the settings and the branches of a draft; None: nothing."""
    try:
        body = json.loads(path.read_bytes())
        differing = {
            str(way): {int(size): int(rows) for size, rows in counts.items()}
            for way, counts in body["differing"].items()
        }
        exactness = Exactness(Setting(**body["setting"]), differing, QUICK_ROWS)
        branches = int(body["branches"])
        if exactness.setting not in kinds or exactness.limit() < LEAST or branches < 1:
            raise ValueError("it is none that is tried")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        log.warning("the exact setting in %s is ignored: %s", path, error)
        return None
    return exactness, branches


def _save(path: Path, exactness: Exactness, branches: int) -> None:
    """Save what was measured, for _load; log why, if that fails."""
    body = {
        "setting": asdict(exactness.setting),
        "differing": exactness.differing,
        "branches": branches,
    }
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with new_file(path) as file:
            file.write(f"{json.dumps(body, indent=1)}\n".encode())
    except OSError as error:
        log.info("the exact setting is not kept: %s", error)


def open_exact(
    model: LlamaModel,
    exactness: Exactness,
    slots: int,
    context_size: int,
    branches: int = 1,
    own: ContextSettings | None = None,
    before_pass: Callable[[], None] = lambda: None,
) -> LlamaTarget:
    """Return the target in the setting that find_exact found, with its exact_batch set.

    Args:
        model: The model.
        exactness: What find_exact returned.
        slots: Of the target.
        context_size: Of each slot.
        branches: Most of a draft. Only one slot has more than one, if rows are equal beside others:
            it has the cache for itself, so that its text lies in order.
        own, before_pass: As for find_exact.
    """
    target = open_setting(
        model, exactness.setting, slots, context_size, own, branches if slots == 1 else 1
    )
    target.exact_batch = exactness.limit()
    if target.max_branches > 1:
        count = _tree_tokens(context_size)
        rows, ids = min(QUICK_ROWS, count // 2), random_tokens(model, count)
        most = min(target.exact_batch, target.max_batch)
        sizes = [size for size in (3, 9, 33, 63) if size <= most]
        try:
            differ = trees_differ(_adapted(target), ids, sizes, rows, before_pass)
        except BaseException:
            target.close()
            raise
        if differ:
            target.close()
            return open_exact(model, exactness, slots, context_size, own=own)
        target.adapt(())
    return target


def _tree_tokens(context_size: int) -> int:
    """Return the tokens with which branches are tested: wrong ones need room, too."""
    return min(ENOUGH_TOKENS, context_size * 3 // 4)


def _adapted(target: LlamaTarget) -> LlamaTarget:
    """Apply all adapters: their matrices have kernels of their own, which may round differently."""
    target.adapt(tuple((number, 1.0) for number in range(target.num_adapters)))
    return target

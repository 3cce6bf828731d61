"""fit: layers and context that fit in free memory, and what to tell about them.

`machine` looks at the machine, `dry` lets llama.cpp say what a context takes, `plan` decides from
these facts alone.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ngramspec.errors import BackendError, InputError, NgramspecError
from ngramspec.llamacpp.assistant import assistant_placement, check_assistant
from ngramspec.llamacpp.draft_model import DraftModelSettings, draft_context
from ngramspec.llamacpp.fit.dry import DryModel
from ngramspec.llamacpp.fit.machine import Hardware, HostSpace, find_hardware, host_space
from ngramspec.llamacpp.fit.plan import ALL, FitPlan, FitWish, Need, Space, lacking, make_plan
from ngramspec.llamacpp.loading import Loading
from ngramspec.llamacpp.mtp import MtpSettings, SecondSettings
from ngramspec.llamacpp.placement import AUTO, NO_DEVICE, Device, Placement, gpus, host_memory
from ngramspec.llamacpp.settings import PAGE, ContextSettings, round_up
from ngramspec.messages import size_text
from ngramspec.text.tokenizers.llama_library import load_library

DRAFTERS = 64 << 20  # bytes of pools and histories, of a few threads and buffers
READ_AGAIN = ("auto", "mmap")  # ways of loading that map the file


@dataclass(frozen=True)
class Words:
    """What the settings are called where they are set.

    exact: By their names, those that contradict an exact setting; "exact" is one of them.
    """

    context: str = "context_size"
    slots: str = "slots"
    layers: str = "n_gpu_layers"
    at_once: str = "n_ubatch"
    unchecked: str = "fit=False"
    total: bool = False  # the context is that of all slots together
    exact: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a model may take.

    enabled: Fit it; otherwise nothing is checked or cut.
    margins: Bytes to leave free, of each GPU; without GPUs the first is the host's. () = a GiB, or
        a quarter of what is free.
    least: Tokens below which a context is not cut.
    reserved: Bytes of the host's memory that the program itself takes besides.
    words: What settings are called in notes and errors.
    """

    enabled: bool = True
    margins: tuple[int, ...] = ()
    least: int = 4096
    reserved: int = DRAFTERS
    words: Words = field(default_factory=Words)


@dataclass(frozen=True)
class Machine:
    """What was found.

    host: Its memory.
    devices: GPUs that this build of llama.cpp can use.
    hardware: GPUs that the machine has, whatever llama.cpp can use.
    """

    host: HostSpace
    devices: tuple[Device, ...] = ()
    hardware: tuple[Hardware, ...] = ()

    @property
    def space(self) -> Space:
        return Space(
            host=self.host.free,
            swap=self.host.swap,
            gpus=tuple(device.free for device in self.devices),
            shared=any(device.shares_host for device in self.devices),
        )


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """How to load a model and make its context.

    placement, settings: What to use.
    draft: The settings of the draft model or the MTP heads, if there are some.
    plan: What it takes; None where nothing was checked.
    notes: What its user should know, a line each.
    """

    placement: Placement
    settings: ContextSettings
    draft: SecondSettings | None = None
    plan: FitPlan | None = None
    notes: tuple[str, ...] = field(default=())


def find_machine(placement: Placement | None = None, root: Path = Path("/")) -> Machine:
    """Look at this machine.

    Args:
        placement: Its devices only, if it names some.
        root: Where proc, sys and dev are.

    Raises:
        BackendError: llama-cpp-python is not installed, or does not tell about devices.
    """
    load_library()
    free, total = host_memory()
    return Machine(
        host_space(root) or HostSpace(free, total),
        tuple(gpus(placement)),
        tuple(find_hardware(root)),
    )


def fit(
    path: str | os.PathLike[str],
    settings: ContextSettings,
    placement: Placement,
    loading: Loading,
    *,
    draft: SecondSettings | None = None,
    limits: Limits | None = None,
    machine: Machine | None = None,
) -> Fitted:
    """Return how a model fits in free memory.

    A context_size of 0 is the trained one, cut to what is free; n_gpu_layers "auto" as many layers
    as fit. Other values are kept.

    Args:
        path: The GGUF file.
        settings: Of the target.
        placement: Of the weights.
        loading: Of the file.
        draft: A draft model or MTP heads beside it.
        limits: How much it may take.
        machine: What is there, None = look.

    Raises:
        InputError: What was asked for cannot fit; says what can.
        FormatError, OSError: The file cannot be read.
        BackendError: llama.cpp cannot load the model, or run it in these settings; or nothing was
            asked for, and the shortest context does not fit.
    """
    limits, machine = limits or Limits(), machine or find_machine(placement)
    notes = tuple(layer_notes(machine, placement, limits.words))
    if not limits.enabled:
        return Fitted(placement=placement, settings=settings, draft=draft, notes=notes)
    return _Fitting(path, settings, placement, loading, draft, limits, machine).run(notes)


def possible(
    path: str | os.PathLike[str],
    settings: ContextSettings,
    placement: Placement,
    loading: Loading,
    limits: Limits,
) -> str:
    """Return which smaller context would fit, as a part of a sentence.

    Args and errors are those of fit; it says what to do where llama.cpp could not make a context.
    """
    one = _Fitting(path, settings, placement, loading, None, limits, find_machine(placement))
    return one.possible()


def layer_notes(machine: Machine, placement: Placement, words: Words) -> Iterator[str]:
    """Yield why layers cannot go to a GPU, if one is there or was asked for."""
    asked = placement.n_gpu_layers
    if machine.devices or asked == 0 or NO_DEVICE in placement.devices:
        return
    gpu = next(iter(machine.hardware), None)
    if gpu is not None:
        yield (
            f"{gpu.name} is not used: this build of llama.cpp cannot. To build one that can: "
            f"{gpu.install_line}"
        )
    elif asked != AUTO:
        yield (
            f"{words.layers} does nothing: this build of llama.cpp sees no GPU, and this machine "
            "seems to have none"
        )


class _Fitting:
    """One call of fit."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        settings: ContextSettings,
        placement: Placement,
        loading: Loading,
        draft: SecondSettings | None,
        limits: Limits,
        machine: Machine,
    ) -> None:
        self.path, self.settings, self.placement, self.loading = path, settings, placement, loading
        self.draft, self.limits, self.machine = draft, limits, machine
        space = machine.space
        self.space = replace(space, host=max(0, space.host - limits.reserved))
        self.words = limits.words
        self.fixed = bool(settings.context_size or settings.cells)
        self.trained = 0
        self.small: DryModel | None = None

    def run(self, notes: tuple[str, ...]) -> Fitted:
        """Return the result. Raises: As fit."""
        with self._models() as model:
            wish = self._wish()
            plan = self._plan(model, wish)
            self._check(model, plan, wish)
            notes = (*notes, *self._notes(model, plan, wish))
        return Fitted(
            placement=replace(self.placement, n_gpu_layers=plan.layers),
            settings=self.settings if self.fixed else self._settings_for(plan.tokens),
            draft=self._placed_draft(plan.layers),
            plan=plan,
            notes=notes,
        )

    def possible(self) -> str:
        """Return which smaller context would fit. Raises: As fit."""
        with self._models() as model:
            wish = self._wish()
            return self._possible(model, self._plan(model, wish), wish)

    @contextlib.contextmanager
    def _models(self) -> Iterator[DryModel]:
        layers = self._assumed(self.placement.n_gpu_layers)
        with contextlib.ExitStack() as stack:
            assumed = replace(self.placement, n_gpu_layers=layers)
            model = stack.enter_context(DryModel(self.path, assumed, self.loading))
            with contextlib.suppress(NgramspecError, OSError):  # who opens it will tell
                self._open_small(model, layers, stack)
            self.trained = model.n_ctx_train
            yield model

    def _open_small(self, model: DryModel, layers: int, stack: contextlib.ExitStack) -> None:
        """Load the draft model or the assistant, if there is one. Raises: As who opens it."""
        second = self.draft
        if second is None or second.path is None:
            return
        where, loading = self._placed(second.placement, layers), Loading()
        if isinstance(second, MtpSettings):
            check_assistant(second.path, self.path, self.loading.metadata)
            where = assistant_placement(where, model.placement, model.num_layers)
            loading = Loading(mtp=True)
        self.small = stack.enter_context(DryModel(second.path, where, loading))

    def _plan(self, model: DryModel, wish: FitWish) -> FitPlan:
        slots = self.settings.slots
        return make_plan(
            self.space, model.weights, lambda tokens: self._need(model, tokens, slots), wish
        )

    def _assumed(self, layers: int | str) -> int:
        """Return how many layers go to the GPUs if memory does not matter."""
        if not self.machine.devices:
            return 0
        return ALL if layers == AUTO else int(layers)

    def _wish(self) -> FitWish:
        settings = self.settings
        streams = 1 if settings.kv_unified else settings.slots
        each = settings.context_size or round_up(self.trained)
        tokens = settings.cells or each * streams
        layers = self.placement.n_gpu_layers
        return FitWish(
            tokens=tokens,
            fixed=self.fixed,
            layers=None if layers == AUTO else self._assumed(layers),
            least=round_up(min(self.limits.least, self.trained)) * streams,
            step=PAGE * streams,
            margins=self.limits.margins,
            kept_on_host=not settings.offload_kqv,
        )

    def _settings_for(self, tokens: int, slots: int | None = None) -> ContextSettings:
        own, slots = self.settings, slots or self.settings.slots
        most = tokens if self.fixed else self.trained
        if own.kv_unified:
            return replace(own, slots=slots, context_size=min(most, tokens), cells=tokens)
        return replace(own, slots=slots, context_size=min(most, tokens // slots))

    def _need(self, model: DryModel, tokens: int, slots: int) -> Need:
        same = self.fixed and slots == self.settings.slots and tokens == self._asked()
        settings = self.settings if same else self._settings_for(tokens, slots)
        need = model.need(settings)
        with contextlib.suppress(NgramspecError, OSError):  # as above
            need = self._with_beside(model, settings, need)
        return need

    def _with_beside(self, model: DryModel, settings: ContextSettings, need: Need) -> Need:
        """Add what the draft model or the MTP heads take. Raises: As who opens them."""
        second, small = self.draft, self.small
        if isinstance(second, MtpSettings) and second.path is None:
            beside, weights, on_gpus = model.need_of_heads(settings, second.n_max), 0, 0
            with_gpus = model.placement.layers != 0  # they are the last layers
        elif second is None or small is None:
            return need
        else:
            if isinstance(second, DraftModelSettings):
                each = settings.context_size_of(model)
                beside = small.need(draft_context(second, settings, each))
            else:
                beside = model.need_of_assistant(small, settings)
            on_gpus = small.weights.on_gpus(small.placement.layers)
            weights, with_gpus = small.weights.total, on_gpus > 0
        context_on_gpus = beside.context if with_gpus and settings.offload_kqv else 0
        host = weights - on_gpus + beside.host_compute + beside.outputs
        return replace(
            need,
            beside_host=host + beside.context - context_on_gpus,
            beside_gpus=on_gpus + beside.gpu_compute + context_on_gpus,
        )

    def _asked(self) -> int:
        """Return the tokens of the whole cache as they were asked for."""
        own = self.settings
        return own.cells or own.context_size * (1 if own.kv_unified else own.slots)

    def _placed(self, own: Placement, layers: int) -> Placement:
        """Return the draft model's placement beside a target's layers; auto: all or none."""
        asked = own.n_gpu_layers
        count = self._assumed(asked) if asked != AUTO or layers == ALL else 0
        return replace(own, n_gpu_layers=count)

    def _placed_draft(self, layers: int) -> SecondSettings | None:
        second = self.draft
        if second is None or second.path is None:
            return second
        return replace(second, placement=self._placed(second.placement, layers))

    def _check(self, model: DryModel, plan: FitPlan, wish: FitWish) -> None:
        """Raise InputError if the plan cannot work, BackendError where no context was asked for."""
        mapped = self.loading.mode in READ_AGAIN
        missing = lacking(self.space, plan.use, mapped)
        if not missing:
            return
        need = plan.use.host + plan.use.gpus + (0 if mapped else plan.use.host_weights)
        free = self._free_text()
        slots = self.settings.slots
        kind: type[NgramspecError]
        if self.fixed or self.limits.least > Limits.least:
            kind, asked = InputError, self._shown(plan.tokens, slots)
        else:  # nobody asked for a context: this is the shortest
            kind, asked = BackendError, f"a context of {plan.tokens} tokens for {slots} slots"
        raise kind(
            f"{asked} needs {size_text(need)}, and {free} are free: "
            f"{self._possible(model, plan, wish)}; {self.words.unchecked} tries it anyway"
        )

    def _possible(self, model: DryModel, plan: FitPlan, wish: FitWish) -> str:
        """Return what would fit instead, as a part of a sentence."""
        words, asked = self.words, self.settings.slots
        for slots in dict.fromkeys((asked, max(1, asked // 2), 1)):
            largest = self._largest(model, plan, wish, slots)
            if largest.left >= 0:
                streams = 1 if self.settings.kv_unified else slots
                tokens = largest.tokens if words.total else largest.tokens // streams
                more = "" if slots == asked else f" with {words.slots} {slots}"
                return f"{words.context} {tokens}{more} fits"
        if plan.layers and self.machine.devices:
            return f"no context fits; fewer layers on the GPU ({words.layers}) may help"
        return f"no context fits; fewer tokens at once ({words.at_once}) or a smaller model may"

    def _largest(self, model: DryModel, plan: FitPlan, wish: FitWish, slots: int) -> FitPlan:
        """Return the plan with the longest context for a number of slots."""
        step = PAGE * (1 if self.settings.kv_unified else slots)
        most = max(step, plan.tokens // step * step)
        smaller = replace(wish, tokens=most, fixed=False, layers=plan.layers, least=step, step=step)
        measure = functools.partial(self._need, model, slots=slots)
        return make_plan(self.space, model.weights, measure, smaller)

    def _notes(self, model: DryModel, plan: FitPlan, wish: FitWish) -> Iterator[str]:
        words, weights = self.words, model.weights
        if wish.layers is None and self.machine.devices and plan.layers != ALL:
            names = " and ".join(f"{d.name} ({d.description})" for d in self.machine.devices)
            yield (
                f"{plan.layers} of {len(weights.layers) + 1} layers fit in the free memory of "
                f"{names}; {words.layers} changes it"
            )
        if plan.tokens < wish.tokens:
            slots = self.settings.slots
            streams = 1 if self.settings.kv_unified else slots
            each = "" if streams == 1 else f" for each of {slots} slots"
            yield (
                f"Context {plan.tokens // streams:,} of {wish.tokens // streams:,} tokens{each} "
                f"fit in {self._free_text()} of free memory; {words.context} changes it"
            )
        if plan.host_left < 0 and plan.use.host_weights > self.space.host - plan.use.host:
            yield (
                f"weights of {size_text(plan.use.host_weights)} and {size_text(plan.use.host)} "
                f"beside them do not fit in {size_text(self.machine.host.free)} of free memory: "
                "weights are read from the file again and again, which is slow"
            )

    def _free_text(self) -> str:
        host = self.machine.host
        texts = [size_text(host.free) + (f" (limit: {host.limit})" if host.limit else "")]
        texts += [f"{size_text(one.free)} on {one.name}" for one in self.machine.devices]
        return " and ".join(texts)

    def _shown(self, tokens: int, slots: int) -> str:
        words = self.words
        streams = 1 if self.settings.kv_unified else slots
        shown = tokens if words.total else tokens // streams
        return f"{words.context} {shown} with {words.slots} {slots}"

"""open_runtime(): a model, its target, what drafts, and the engine: all are put together here.

LLM and the commands describe what they want as Settings; nothing else builds a target for requests
or an engine.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.costs import CostTable
from ngramspec.drafting.names import (
    DEFAULT_MAX_DRAFT,
    DEFAULT_ORDER,
    DEFAULT_POLICY,
    DEFAULT_SPEC,
    WITH_COSTS,
    parse_names,
)
from ngramspec.drafting.statistics import Saves, open_shared
from ngramspec.engine import Engine
from ngramspec.engine.policy import AUTO as AUTO_TREE
from ngramspec.engine.policy import OFF, make_policy
from ngramspec.engine.sources.draft_model import DraftModel
from ngramspec.engine.sources.drafters import KEPT_BYTES
from ngramspec.engine.sources.mtp import MtpHeads
from ngramspec.engine.sources.source import DraftSource
from ngramspec.engine.target import Target
from ngramspec.errors import BackendError, FormatError, InputError
from ngramspec.llamacpp.contexts import NoContextError
from ngramspec.llamacpp.draft_model import DraftModelSettings
from ngramspec.llamacpp.exact import check_exact, open_tested
from ngramspec.llamacpp.fit import Fitted, Limits, fit, possible
from ngramspec.llamacpp.fit.dry import trained_context
from ngramspec.llamacpp.loading import Loading
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.mtp import MtpSettings, SecondSettings, open_second
from ngramspec.llamacpp.placement import AUTO, Placement
from ngramspec.llamacpp.rope import Rope
from ngramspec.llamacpp.saved_costs import known_costs
from ngramspec.llamacpp.settings import ContextSettings, with_branches
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.models import embedded_model
from ngramspec.text.tokenizers import fingerprint_of

log = logging.getLogger(__name__)
Params = Mapping[str, Mapping[str, Any]]  # of drafters, by their names
Tell = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Which model, and how it is loaded.

    path: A GGUF file, for a split model its first; None = the embedded model, by default on one
        thread and without a GPU.
    placement: Where the weights lie.
    loading: How the file is read.
    adapters: Files of LoRA adapters.
    limits: How much memory it may take.
    """

    path: str | os.PathLike[str] | None = None
    placement: Placement = field(default_factory=lambda: Placement(AUTO))
    loading: Loading = field(default_factory=Loading)
    adapters: Sequence[str | os.PathLike[str]] = ()
    limits: Limits = field(default_factory=Limits)

    @property
    def file(self) -> str | os.PathLike[str]:
        """Return the file: the path, or that of the embedded model."""
        return embedded_model() if self.path is None else self.path


@dataclass(frozen=True, kw_only=True)
class DraftSettings:
    """What drafts, and how long drafts are.

    drafter: Names of n-gram drafters, comma-separated or in a sequence; None = none.
    order: Which of them is asked first, as for create_drafter.
    params: Their parameters. Files are opened once, and must be of the model's tokenizer.
    policy: A name, see make_policy, or an AutoPolicy.
    max_draft: Longest draft in tokens, for a policy named.
    min_draft: Shorter drafts are not sent.
    tree: Most branches of a draft, as for Engine.
    calibrate: Most seconds for measuring what passes cost; None = 2.
    second: A draft model or MTP heads; None = neither.
    optional: The second source is left out where it cannot be opened.
    """

    drafter: str | Iterable[str] | None = DEFAULT_SPEC
    order: str = DEFAULT_ORDER
    params: Params = field(default_factory=dict)
    policy: str | AutoPolicy = DEFAULT_POLICY
    max_draft: int = DEFAULT_MAX_DRAFT
    min_draft: int = 0
    tree: int | str = AUTO_TREE
    calibrate: float | None = None
    second: SecondSettings | None = None
    optional: bool = False

    @property
    def any(self) -> bool:
        return bool(self.drafter or self.second)


NO_DRAFTS = DraftSettings(drafter=None, tree=OFF)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All that open_runtime needs.

    context: Of the target; its slots are those of the engine.
    exact: Drafts cannot change a bit of the logits.
    max_queue, kept_bytes, context_shift: As for Engine.
    """

    model: ModelSettings
    context: ContextSettings
    drafts: DraftSettings = field(default_factory=DraftSettings)
    exact: bool = False
    max_queue: int
    kept_bytes: int = KEPT_BYTES
    context_shift: bool = False


@dataclass(frozen=True)
class Runtime:
    """A loaded model with its engine; `close` frees it.

    placement: Where the weights lie.
    exact_setting: In which the target is exact, in words; "" = it is not asked to be.
    refusal: Why an optional second source is left out; None = it is not.
    saves: Saves what was learned; closed before `models`, once no request runs.
    models: Frees the model and what belongs to it.
    """

    model: LlamaModel
    target: LlamaTarget
    engine: Engine
    placement: Placement
    exact_setting: str
    refusal: Exception | None
    saves: Saves
    models: contextlib.ExitStack

    def close(self) -> None:
        """Save what was learned and free the model; nothing may use the engine any more.

        Raises:
            NgramspecError, OSError: What was learned could not be saved; the rest is done.
        """
        try:
            self.saves.close()
        finally:
            self.models.close()


def open_runtime(
    settings: Settings, tell: Tell = log.warning, testing: Callable[[], object] = lambda: None
) -> Runtime:
    """Open files of statistics, load the model, measure what passes cost, and make the engine.

    Args:
        settings: What is wanted.
        tell: Gets a line for what its user should know about memory and GPUs.
        testing: Called before an exact setting is looked for, which may take a minute.

    Raises:
        InputError: Settings contradict one another or are out of their bounds, or what was asked
            for does not fit in memory.
        FormatError: The model or a file of statistics is not valid.
        VocabMismatchError: A file of statistics was built with another tokenizer.
        BackendError: llama.cpp cannot run the model, or no setting is exact.
        OSError: A file cannot be read.

    Cost: loading; up to 2 s where costs are not known; a minute where an exact setting is looked
    for the first time.
    """
    drafts, own = settings.drafts, settings.model
    if settings.exact and isinstance(drafts.second, DraftModelSettings):
        raise InputError("exact works with n-gram drafters only, not with a draft model")
    if isinstance(drafts.second, MtpSettings):
        own = replace(own, loading=replace(own.loading, mtp=drafts.second.path is None))
    context = settle(own, settings.context, drafts.tree, settings.exact)
    with contextlib.ExitStack() as models:
        saves = models.enter_context(Saves())
        # Before the model is loaded, as a wrong file ends it.
        params = open_shared(checked_params(drafts, own.file), saves)
        model, fitted = load_model(own, context, drafts.second, settings.exact, tell)
        models.enter_context(model)
        target, setting = open_target(own, model, fitted, settings.exact, testing)
        models.enter_context(target)
        named = (drafts.policy,) if isinstance(drafts.policy, str) and drafts.any else ()
        setup = set_up_drafts(
            target,
            fitted.draft,
            models,
            named,
            calibrate=drafts.calibrate,
            optional=drafts.optional,
        )
        engine = make_engine(
            target,
            replace(drafts, params=params, policy=_policy(drafts, setup)),
            second=setup.second,
            slots=context.slots,
            exact=settings.exact,
            max_queue=settings.max_queue,
            kept_bytes=settings.kept_bytes,
            context_shift=settings.context_shift,
        )
        opened = (fitted.placement, setting, setup.refusal, saves, models.pop_all())
        return Runtime(model, target, engine, *opened)


def settle(
    model: ModelSettings, context: ContextSettings, tree: int | str = OFF, exact: bool = False
) -> ContextSettings:
    """Return the settings of a target, with what other settings decide.

    Raises:
        InputError: So many branches do not fit, or something contradicts an exact setting.
    """
    if model.path is None and context.threads is None:
        context = replace(context, threads=1)
    context = with_branches(context, tree)
    if exact:
        check_exact(context, _placed(model, exact), model.limits.words.exact)
    return context


def within_trained(model: ModelSettings, size: int, rope: Rope, tell: Tell = log.warning) -> int:
    """Return the tokens of a context: what was asked for, cut to what the model was trained with.

    Args:
        model: The model.
        size: Tokens asked for; 0 = the trained context, as far as memory allows.
        rope: Where it stretches the context, nothing is cut.
        tell: Gets a line about a cut.

    Raises:
        FormatError, OSError: The model cannot be read.

    Cost: reads the model's header.
    """
    if size == 0 or rope != Rope():
        return size
    trained = trained_context(model.file, model.loading)
    if size <= trained:
        return size
    tell(
        f"{model.limits.words.context} {size} is cut to the {trained} tokens that the model was "
        "trained with; RoPE scaling allows more"
    )
    return trained


def load_model(
    settings: ModelSettings,
    context: ContextSettings,
    second: SecondSettings | None = None,
    exact: bool = False,
    tell: Tell = log.warning,
) -> tuple[LlamaModel, Fitted]:
    """Load a model as it fits in memory beside a context; return it, and how it fits.

    Raises:
        As open_runtime.
    """
    fitted = fit(
        settings.file,
        context,
        _placed(settings, exact),
        settings.loading,
        draft=second,
        limits=settings.limits,
    )
    for line in fitted.notes:
        tell(line)
    model = LlamaModel(
        settings.file,
        placement=fitted.placement,
        loading=settings.loading,
        adapters=settings.adapters,
    )
    return model, fitted


def open_target(
    settings: ModelSettings,
    model: LlamaModel,
    fitted: Fitted,
    exact: bool = False,
    testing: Callable[[], object] = lambda: None,
) -> tuple[LlamaTarget, str]:
    """Return a target, and, if it is exact, its setting in words.

    Args:
        settings: Those that the model was loaded with.
        model: The model.
        fitted: Where its weights lie, and the target's settings.
        exact: Use a setting that was tested to be bit-exact.
        testing: As for open_runtime.

    Raises:
        InputError: A setting is out of its bounds.
        BackendError: llama.cpp cannot run it, or the model has no exact setting.
    """
    try:
        if not exact:
            return LlamaTarget(model, fitted.settings), ""
        testing()
        target, outcome = open_tested(model, fitted.settings)
    except NoContextError as error:
        words = settings.limits.words
        smaller = possible(
            model.path, fitted.settings, fitted.placement, settings.loading, settings.limits
        )
        raise NoContextError(
            f"{error}: {words.context} and {words.slots} say how large it is; {smaller}"
        ) from error
    return target, outcome.setting.text()


@dataclass(frozen=True)
class DraftSetup:
    """What a target's passes cost, and what drafts for it beside the n-gram drafters.

    costs: Of passes, in seconds; None = not known, or no policy asks for them.
    second: The draft model or the MTP heads; None = there are none.
    refusal: Why an optional second source is left out; None = it is not.
    max_rollback: The target's.
    """

    costs: CostTable | None = None
    second: DraftModel | MtpHeads | None = None
    refusal: Exception | None = None
    max_rollback: int | None = None

    def policy(self, name: str, max_draft: int) -> AutoPolicy:
        """Return a policy for the target; arguments and errors as for make_policy."""
        return make_policy(name, max_draft, self.costs, self.max_rollback)


def set_up_drafts(
    target: LlamaTarget,
    second: SecondSettings | None,
    stack: contextlib.ExitStack,
    policies: Collection[str] = (),
    *,
    calibrate: float | None = None,
    optional: bool = False,
) -> DraftSetup:
    """Find out what a target's passes cost, then open what drafts beside n-gram drafters.

    In this order: once MTP heads follow a target, each of its passes takes longer, and costs are
    kept for runs without heads as well.

    Args:
        target: Idle, and followed by nobody; its first sequence is emptied.
        second: Settings of the draft model or the MTP heads; None = there are none.
        stack: Closes the second source.
        policies: Names of the policies that follow; some need costs.
        calibrate: Seconds for measuring, as for known_costs.
        optional: A second source that cannot be opened is left out.

    Raises:
        As open_second, unless the second source is optional.

    Cost: up to `calibrate` seconds where costs are not known, and loading the second source.
    """
    costs = None
    if not set(WITH_COSTS).isdisjoint(policies):
        costs = known_costs(target, calibrate)
    opened, refusal = None, None
    if second is not None:
        try:
            with contextlib.ExitStack() as opening:
                opened = open_second(second, target, opening)
                stack.enter_context(opening.pop_all())
        except (BackendError, FormatError, InputError, OSError) as error:
            if not optional:
                raise
            refusal = error
    return DraftSetup(costs, opened, refusal, target.max_rollback)


def make_engine(
    target: Target, drafts: DraftSettings, second: DraftSource | None = None, **options: Any
) -> Engine:
    """Return an engine on an idle target.

    Args:
        target: Closed by its owner, after the engine.
        drafts: What drafts beside the second source; a policy that is named knows no costs.
        second: An opened draft model or MTP heads.
        options: slots, exact, max_queue, kept_bytes and context_shift, as for Engine.

    Raises:
        As Engine and create_drafter.
    """
    return Engine(
        target,
        drafts.drafter or None,
        params=drafts.params,
        draft_model=second,
        policy=drafts.policy,
        order=drafts.order,
        min_draft=drafts.min_draft,
        tree=drafts.tree,
        **options,
    )


def _policy(drafts: DraftSettings, setup: DraftSetup) -> AutoPolicy:
    """Return the policy, which knows the target if it is named."""
    if isinstance(drafts.policy, str):
        return setup.policy(drafts.policy, drafts.max_draft)
    return drafts.policy


def _placed(settings: ModelSettings, exact: bool) -> Placement:
    """Return where weights lie; by itself no layer of an exact or embedded model is on a GPU."""
    placement = settings.placement
    if placement.n_gpu_layers == AUTO and (exact or settings.path is None):
        return replace(placement, n_gpu_layers=0)
    return placement


def checked_params(
    drafts: DraftSettings, model: str | os.PathLike[str]
) -> dict[str, dict[str, Any]]:
    """Return the drafters' parameters, with the model's tokenizer where one reads a file.

    Raises:
        InputError: There are parameters of a drafter that does not draft.
        FormatError, OSError: The model cannot be read.
    """
    params = {name: dict(own) for name, own in drafts.params.items()}
    names = parse_names(drafts.drafter, drafts.order) if drafts.drafter else ()
    for name, own in params.items():
        if name not in names:
            raise InputError(f"params names {name!r}, which is not in {', '.join(names)}")
        if any(isinstance(value, (str, os.PathLike)) for value in own.values()):
            own.setdefault("tokenizer", fingerprint_of(model))
    return params

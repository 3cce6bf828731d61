"""DraftSetup: what drafts need beside a target, opened in the only order that keeps costs right."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass

from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.adapters.llama_cpp.mtp import SecondSettings, open_second
from ngramspec.adapters.llama_cpp.saved_costs import known_costs
from ngramspec.adapters.llama_cpp.target import LlamaTarget
from ngramspec.costs import CostTable
from ngramspec.engine.policy import make_policy
from ngramspec.engine.sources.draft_model import DraftModel
from ngramspec.engine.sources.mtp import MtpHeads
from ngramspec.errors import BackendError, FormatError, InputError


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
        """Return a policy for the target.

        Args:
            name: As for make_policy.
            max_draft: Longest draft in tokens, >= 1.

        Raises:
            InputError: As make_policy.
        """
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
        policies: Names of the policies that follow; "auto" is what needs costs.
        calibrate: Seconds for measuring, as for known_costs.
        optional: A second source that cannot be opened is left out.

    Returns:
        DraftSetup: Valid until the stack closes.

    Raises:
        As open_second, unless the second source is optional.

    Cost: up to `calibrate` seconds where costs are not known, and loading the second source.
    """
    costs = known_costs(target, calibrate) if "auto" in policies else None
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

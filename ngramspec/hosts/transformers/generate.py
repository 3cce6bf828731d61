"""ngramspec_generate: the custom_generate function of transformers' generate()."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ngramspec.drafting.config import MAX_CHOSEN, check_int
from ngramspec.drafting.names import DEFAULT_SPEC
from ngramspec.engine.policy import AUTO
from ngramspec.errors import InputError
from ngramspec.hosts.transformers.speculator import NgramSpeculator, as_lender

if TYPE_CHECKING:
    from ngramspec._native.drafter.drafter import Drafter

log = logging.getLogger(__name__)
WIDTH = 8  # most drafted tokens at one depth; more branches hardly ever pay


def ngramspec_generate(
    model: Any,
    input_ids: Any,
    logits_processor: Iterable[Any] = (),
    stopping_criteria: Iterable[Any] = (),
    generation_config: Any = None,
    drafter: str | Sequence[str] | Drafter | NgramSpeculator = DEFAULT_SPEC,
    verification: Literal["compare", "reject"] = "compare",
    seeds: int | Sequence[int] | None = None,
    max_draft: int | None = None,
    tree: int | str = AUTO,
    streamer: Any = None,
    synced_gpus: bool = False,
    **model_kwargs: Any,
) -> Any:
    """Generate with drafts: `model.generate(..., custom_generate=ngramspec_generate, drafter=...)`.

    Greedy search and sampling for any batch size, with everything that generate() prepares: logits
    processors and warpers, stopping criteria, generation_config, left-padding, streamer. Pass
    drafter, verification, seeds, max_draft and tree to generate(); it supplies the rest.

    Args:
        model, input_ids, logits_processor, stopping_criteria, generation_config, streamer,
            synced_gpus, model_kwargs: From generate().
        drafter: Drafter names as for create_drafter, for this call alone; an NgramSpeculator, which
            remembers texts and costs from call to call; or a Drafter, whose slots 0..rows - 1
            are used, by one call at a time.
        verification: How sampled drafts are verified: "compare" gives the text that the same seed
            gives without drafts; "reject" gives another of the same distribution, for less work.
        seeds: Random seeds, one per row or one for all (row i then has seeds + i), integers of 63
            bits; None = drawn from torch's default generator.
        max_draft: Longest draft in tokens, 0 for none; None = the drafter's.
        tree: "auto": drafts branch where the drafter's policy finds that this pays, and stay chains
            without a policy, where the model takes no masks of ours, and where its code is not of
            transformers; "off": they are chains; or the most drafted tokens at one depth,
            1..1024, policy or not. `suffix` and `recycle` draft trees.

    Returns:
        As generate(): int64 tensor (rows, length), prompts and text, padded after a row's end; or
        a GenerateDecoderOnlyOutput, with the cache for batch size 1.

    Raises:
        InputError: An argument is not as described, or generate() was asked for what drafts do not
            support: beams, recurrent or encoder-decoder models, scores, attentions and so on; or
            for trees of a model that takes no masks of ours.
        BackendError: This transformers is too old.
        Whatever the model, a processor, a criterion or the streamer raises.

    Cost: A pass per step. Batch size 1 cuts rejected tokens off the model's own cache, O(layers). A
    batch runs on buffers where each row has its own places: no step moves or copies tokens, but a
    mask of rows x queries x tokens is made per pass, all rows are padded to the longest draft, and
    ended rows are still computed until they are half of all, and then dropped. Of a tree the tokens
    of the path are moved where they are not in their places; a mask is made for batch size 1 too.
    Threads: as the model; see NgramSpeculator. Source: Leviathan et al. (arXiv 2211.17192).
    """
    from ngramspec.hosts.transformers.checks import check_call, check_release
    from ngramspec.hosts.transformers.loop import Loop
    from ngramspec.hosts.transformers.scores import Scores

    if verification not in ("compare", "reject"):
        raise InputError(f'verification must be "compare" or "reject", got {verification!r}')
    if synced_gpus:
        raise InputError("synced_gpus=True is not supported: processes would draft differently")
    if generation_config is None or input_ids.ndim != 2 or not input_ids.shape[1]:
        raise InputError("call this through generate(custom_generate=...), with a prompt of ids")
    check_release()
    check_call(model, generation_config, model_kwargs)
    lender = as_lender(drafter)
    if max_draft is None:
        max_draft = lender.max_draft
    check_int("max_draft", max_draft, 0, 1024)
    check_tree(tree)
    streamer = streamer or _kept_streamer(sys._getframe(1))
    scores = Scores(logits_processor)
    numbers = _seeds(seeds, input_ids) if generation_config.do_sample else None
    with lender.lend(input_ids.shape[0]) as lent:
        loop = Loop(model, input_ids, generation_config, model_kwargs, stopping_criteria, scores)
        loop.sample(numbers, verification)
        width = tree_width(tree, lent, model, model_kwargs)
        return loop.run(lent, min(max_draft, lent.max_draft), width, streamer)


def check_tree(tree: Any) -> None:
    """Raise InputError unless `tree` is a number of tokens, "auto" or "off"."""
    number = isinstance(tree, int) and not isinstance(tree, bool)
    if not (1 <= tree <= MAX_CHOSEN if number else tree in ("auto", "off")):
        raise InputError(
            f'tree must be "auto", "off" or an integer in 1..{MAX_CHOSEN}, the most drafted '
            f"tokens at one depth, got {tree!r}"
        )


def tree_width(tree: int | str, drafter: Drafter, model: Any, kwargs: dict[str, Any]) -> int:
    """Return the most tokens of a draft at the same depth, 0 = drafts are chains.

    Args:
        tree: As ngramspec_generate takes it.
        drafter: The drafter of the call.
        model: The model.
        kwargs: What generate() would hand to it.

    Raises:
        InputError: A number was asked for, and the model cannot verify trees.
    """
    from ngramspec.hosts.transformers.checks import why_no_masks

    if tree == "off":
        return 0
    reason = why_no_masks(model, kwargs)
    if isinstance(tree, int):
        if reason:
            raise InputError(f'tree={tree} needs masks of our own: {reason}; set tree="off"')
        return tree
    if drafter.policy is None:
        return 0
    reason = reason or _why_not_known(model)
    if reason:
        _say_once(f"drafts are chains, not trees: {reason}")
        return 0
    return WIDTH


def _why_not_known(model: Any) -> str:
    """Return why nobody knows whether a model takes a mask of 4 dimensions, "" if it does."""
    kind = next(kind for kind in type(model).__mro__ if "forward" in vars(kind))
    if kind.__module__.startswith("transformers."):
        return ""
    return (
        f"{kind.__name__} is not of transformers, and may take no 4D masks; tree={WIDTH} tries it"
    )


@cache
def _say_once(text: str) -> None:
    log.info(text)


def _seeds(seeds: Any, input_ids: Any) -> Any:
    """Return a seed per row, int64."""
    import torch

    rows = input_ids.shape[0]
    if seeds is None:
        return torch.randint(0, 2**62, (rows,)).numpy()
    numbers = np.asarray(seeds)
    if not np.issubdtype(numbers.dtype, np.integer) or numbers.shape not in ((), (rows,)):
        raise InputError(f"seeds must be one whole number or one per row ({rows}), got {seeds!r}")
    return numbers.astype(np.int64) + (0 if numbers.shape else np.arange(rows))


def _kept_streamer(frame: Any) -> Any:
    """Return the streamer that generate() was given, None for none.

    generate() of transformers 5 puts the prompt into it, but does not pass it to a custom_generate
    function: that gets only the keywords that _sample does not have.
    """
    home = frame.f_globals.get("__name__")
    if home != "transformers.generation.utils" or frame.f_code.co_name != "generate":
        return None
    return frame.f_locals.get("streamer")

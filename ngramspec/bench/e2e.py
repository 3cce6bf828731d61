"""End to end: real prompts through the engine, without drafts and with each drafter, timed."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec.bench.ours import parse_spec
from ngramspec.bench.rounds import first_difference, run_in_turns
from ngramspec.costs import CostTable
from ngramspec.drafters import create_drafter
from ngramspec.drafters.config import CONFIGS
from ngramspec.drafters.names import parse_names
from ngramspec.engine import Engine, Generation, Request, Sampling
from ngramspec.engine.policy import make_policy
from ngramspec.engine.target import Target
from ngramspec.errors import InputError

PLAIN = "none"
WARM_UP = 16  # tokens


@dataclass(frozen=True)
class Mode:
    """How to draft. names: of create_drafter, none for plain decoding. params: by drafter.

    policy: As for make_policy, None = that of the bench.
    """

    spec: str
    names: tuple[str, ...]
    params: Mapping[str, Mapping[str, Any]] = field(hash=False)
    policy: str | None = None


@dataclass(frozen=True)
class Run:
    """One generation: its tokens, and its figures after the first of them.

    guessed: For each token whether it is of an accepted draft.
    """

    token_ids: tuple[int, ...]
    guessed: tuple[bool, ...]
    seconds: float
    prompt_seconds: float
    draft_seconds: float
    steps: int
    drafts: int
    drafted: int
    accepted: int
    finish_reason: str

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first one, which belongs to the prompt's time, per second."""
        made = len(self.token_ids) - 1
        return made / self.seconds if made > 0 and self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Outcome:
    """One prompt in one mode. plain: the runs without drafts of the same rounds."""

    mode: Mode
    runs: tuple[Run, ...]
    plain: tuple[Run, ...]

    @property
    def tokens_per_second(self) -> float:
        """Median of the runs."""
        return statistics.median(run.tokens_per_second for run in self.runs)

    @property
    def ratios(self) -> list[float]:
        """Tokens/s over those without drafts, by round; empty where nothing was generated."""
        pairs = zip(self.runs, self.plain, strict=True)
        return [
            mine.tokens_per_second / plain.tokens_per_second
            for mine, plain in pairs
            if plain.tokens_per_second
        ]

    @property
    def ratio(self) -> float | None:
        """Median of the ratios, None where there is none."""
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def difference(self) -> int | None:
        """Where the first text that is another than the plain one leaves it, None if all agree."""
        expected = self.plain[0].token_ids
        found = (first_difference(expected, run.token_ids) for run in self.runs)
        return next((position for position in found if position is not None), None)

    @property
    def mean_accepted_length(self) -> float:
        """Tokens per decode of the model after the prompt, end tokens too, over all runs."""
        steps = sum(run.steps for run in self.runs)
        chosen = sum(len(run.token_ids) - 1 + (run.finish_reason == "stop") for run in self.runs)
        return chosen / steps if steps else 0.0

    @property
    def drafted(self) -> int:
        """Drafted tokens of all runs."""
        return sum(run.drafted for run in self.runs)

    @property
    def accepted(self) -> int:
        """Accepted ones of them."""
        return sum(run.accepted for run in self.runs)


def parse_mode(spec: str, **files: Any) -> Mode:
    """Return what a specification asks for.

    Args:
        spec: "none", or as for `bench replay`: names with commas, ":" and parameters.
        files: Parameters of drafters that read a statistics file, such as tokenizer.

    Raises:
        InputError: An unknown drafter or parameter, a value out of bounds, or a file that a
            benchmark would change.
        OSError, FormatError, VocabMismatchError: A statistics file cannot be used.
    """
    if spec == PLAIN:
        return Mode(PLAIN, (), {})
    text, given = parse_spec(spec)
    policy = given.pop("policy", None)
    if policy is not None:
        make_policy(str(policy), 1)  # says now what is wrong
    if "static" in given:
        given = {**files, **given}
    create_drafter(text, **given)  # says now what is wrong
    names = parse_names(text, "priority")
    params = {name: {k: given[k] for k in given if k in _known(name)} for name in names}
    return Mode(spec, names, params, policy)


class Bench:
    """Bench(target, modes, policy, max_draft, costs): runs prompts on the first slot of a target.

    Each run has a fresh engine with fresh drafters, so that nothing is learned from the run before,
    which had the same text. The policy of a mode stays, as in a server that has been running.

    Args:
        target: The model.
        modes: The first one is plain decoding.
        policy: As for make_policy, of the modes that name none.
        max_draft: Longest draft in tokens.
        costs: What "auto" knows of the target's passes.

    Raises:
        InputError: No such policy, or the first mode is another.
    """

    def __init__(
        self,
        target: Target,
        modes: Sequence[Mode],
        policy: str = "auto",
        max_draft: int = 62,
        costs: CostTable | None = None,
    ) -> None:
        if not modes or modes[0].names:
            raise InputError("the first mode must be plain decoding")
        self._target = target
        self._modes = modes
        self._exact = target.exact_batch > 0
        self._policies = {
            mode: make_policy(mode.policy or policy, max_draft, costs, target.max_rollback)
            for mode in modes
        }

    def warm_up(self, prompt_ids: npt.NDArray[np.int32], sampling: Sampling) -> None:
        """Generate a little in each mode, so that no timed run pays for cold memory."""
        request = Request(prompt_ids=prompt_ids, max_tokens=WARM_UP, sampling=sampling)
        for mode in self._modes:
            self._run(mode, request)

    def run(
        self,
        prompt_ids: npt.NDArray[np.int32],
        *,
        max_tokens: int,
        repeats: int,
        sampling: Sampling,
        advance: Callable[[], object] = lambda: None,
    ) -> tuple[Outcome, ...]:
        """Run one prompt in all modes, in turns.

        Args:
            prompt_ids: int32, not empty.
            max_tokens: Longest answer.
            repeats: Runs of each mode.
            sampling: With a seed: all runs have the same.
            advance: Called after each run.

        Raises:
            InputError: The prompt does not fit.
            BackendError: The target fails.
        """
        request = Request(prompt_ids=prompt_ids, max_tokens=max_tokens, sampling=sampling)
        rounds = run_in_turns(self._modes, repeats, lambda mode: self._run(mode, request), advance)
        by_mode = {mode: tuple(made[mode] for made in rounds) for mode in self._modes}
        return tuple(Outcome(mode, by_mode[mode], by_mode[self._modes[0]]) for mode in self._modes)

    def ask(self, request: Request) -> Generation:
        """Run a request without drafts.

        Raises:
            InputError: The prompt does not fit.
            BackendError: The target fails.
        """
        return _run_alone(Engine(self._target, None, exact=self._exact), request)

    def _run(self, mode: Mode, request: Request) -> Run:
        engine = Engine(
            self._target,
            mode.names or None,
            params=mode.params,
            policy=self._policies[mode],
            exact=self._exact,
        )
        made = _run_alone(engine, request)
        timings = made.timings
        return Run(
            token_ids=tuple(made.token_ids),
            guessed=tuple(made.accepted),
            seconds=timings.decode_seconds,
            prompt_seconds=timings.prompt_seconds,
            draft_seconds=engine.stats().draft_seconds,
            steps=max(0, timings.num_steps - 1),  # the first one read the prompt
            drafts=timings.num_drafts,
            drafted=timings.num_draft_tokens,
            accepted=timings.num_accepted_tokens,
            finish_reason=made.finish_reason or "",
        )


def _run_alone(engine: Engine, request: Request) -> Generation:
    """Run a request to its end and close the engine."""
    try:
        (made,) = engine.generate([request])
    finally:
        engine.close()
    if made.error is not None:
        raise made.error
    return made


def _known(name: str) -> set[str]:
    return {field.name for field in dataclasses.fields(CONFIGS[name])}

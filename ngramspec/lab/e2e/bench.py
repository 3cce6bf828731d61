"""End to end: real prompts through the engine, without drafts and with each drafter, in turns."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from ngramspec._native.engine.decode import GreedySampler
from ngramspec._native.engine.verifier import Dice
from ngramspec.arrays import TokenIds
from ngramspec.drafting import create_drafter
from ngramspec.drafting.config import CONFIGS
from ngramspec.drafting.names import DEFAULT_MAX_DRAFT, DEFAULT_POLICY, parse_names
from ngramspec.engine import Engine, Generation, MtpHeads, Request, Sampling
from ngramspec.engine.policy import AUTO, OFF, make_policy
from ngramspec.engine.sampling import is_int
from ngramspec.engine.sources.source import Claims, DraftSource
from ngramspec.engine.target import Target
from ngramspec.errors import BackendError, InputError
from ngramspec.files.slot_file import SavedSlot
from ngramspec.lab.e2e.tasks import Task
from ngramspec.lab.replay.subjects import parse_spec
from ngramspec.runtime import NO_DRAFTS, DraftSettings, DraftSetup, make_engine

if TYPE_CHECKING:
    from ngramspec.llamacpp.model import LlamaModel

PLAIN = "none"
# llama.cpp's words for a draft model and for the model's own MTP heads.
SECONDS = ("draft-simple", "draft-mtp")
WARM_UP = 16  # tokens
MOST_SYNTHETIC = 1024  # tokens of a synthetic draft
LEARNS_FROM_PASSES = "recycle"  # also from those that read the prompt
Turn = TypeVar("Turn")
Outcome = TypeVar("Outcome")
NOISY = 1.25  # times the slowest of equal runs, at which they say nothing
SYNTHETIC = "synthetic"
ORDINARY = 64  # different tokens that it drafts, at most


def run_in_turns(
    modes: Sequence[Turn],
    rounds: int,
    run: Callable[[Turn], Outcome],
    advance: Callable[[], object] = lambda: None,
    first: int = 0,
    stopped: Callable[[], bool] = lambda: False,
) -> list[dict[Turn, Outcome]]:
    """Run every mode once per round, so that drift of the machine affects all of them.

    Each round begins with another mode, so that none is always first.

    Args:
        modes: What to compare.
        rounds: Runs of each.
        run: Does one run.
        advance: Called after each.
        first: Which mode begins the first round; counted on after the last one.
        stopped: Asked before each run whether to end; the round is then left out.

    Returns:
        The runs of each whole round by mode, in the order of `modes`.
    """
    runs: list[dict[Turn, Outcome]] = []
    for number in range(first, first + rounds):
        start = number % len(modes)
        by_mode = {}
        for mode in (*modes[start:], *modes[:start]):
            if stopped():
                return runs
            by_mode[mode] = run(mode)
            advance()
        runs.append({mode: by_mode[mode] for mode in modes})
    return runs


def spread(rates: Sequence[float]) -> float:
    """Return how many times as fast as the slowest of equal runs the fastest was."""
    return max(rates) / min(rates) if min(rates) else math.inf


def first_difference(expected: Iterable[int], got: Iterable[int]) -> int | None:
    """Return the index of the first token that differs or that only one has; None if equal."""
    expected, got = list(expected), list(got)
    if expected == got:
        return None
    pairs = zip(expected, got, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(got)))


@dataclass(frozen=True)
class Mode:
    """How to draft. names: for create_drafter, () for plain decoding. params: by drafter.

    policy: As for make_policy, None = the policy of the bench.
    small: Whether the draft model or the MTP heads draft, too.
    """

    spec: str
    names: tuple[str, ...]
    params: Mapping[str, Mapping[str, Any]] = field(hash=False)
    policy: str | None = None
    small: bool = False

    @property
    def drafts(self) -> bool:
        return bool(self.names) or self.small


@dataclass(frozen=True)
class Run:
    """One generation: its tokens, and the figures after its first token.

    guessed: For each token whether it comes from an accepted draft.
    """

    token_ids: tuple[int, ...]
    guessed: tuple[bool, ...]
    seconds: float
    prompt_seconds: float
    draft_seconds: float
    steps: int
    drafted: int
    accepted: int
    finish_reason: str

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first one, which belongs to the prompt's time, per second."""
        tokens = len(self.token_ids) - 1
        return tokens / self.seconds if tokens > 0 and self.seconds > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "tokens": len(self.token_ids),
            "seconds": round(self.seconds, 6),
            "prompt_seconds": round(self.prompt_seconds, 6),
            "draft_seconds": round(self.draft_seconds, 6),
            "steps": self.steps,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "finish_reason": self.finish_reason,
        }


@dataclass(frozen=True)
class PromptOutcome:
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
        """Where the first run that departs from the plain text does so, None if none does."""
        expected = self.plain[0].token_ids
        positions = (first_difference(expected, run.token_ids) for run in self.runs)
        return next((position for position in positions if position is not None), None)

    @property
    def mean_accepted_length(self) -> float:
        """Tokens per pass of the model after the prompt, end tokens too, over all runs."""
        return _mean_accepted_length(self.runs)

    @property
    def drafted(self) -> int:
        return sum(run.drafted for run in self.runs)

    @property
    def accepted(self) -> int:
        return sum(run.accepted for run in self.runs)

    def as_json(self) -> dict[str, Any]:
        return {
            "drafter": self.mode.spec,
            "parameters": {
                name: {key: _plain(value) for key, value in params.items()}
                for name, params in self.mode.params.items()
            },
            "tokens_per_second": round(self.tokens_per_second, 2),
            "ratio": _rounded(self.ratio),
            "ratios": [round(ratio, 4) for ratio in self.ratios],
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance": round(self.accepted / self.drafted, 4) if self.drafted else 0.0,
            "mean_accepted_length": round(self.mean_accepted_length, 4),
            "identical": self.difference is None,
            "first_difference": self.difference,
            "runs": [run.as_json() for run in self.runs],
        }


@dataclass(frozen=True)
class PromptResult:
    """All outcomes of one prompt, the one without drafts first. text: the plain answer."""

    name: str
    prompt_len: int
    text: str
    outcomes: tuple[PromptOutcome, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "prompt_tokens": self.prompt_len,
            "text": self.text,
            "runs": [outcome.as_json() for outcome in self.outcomes],
        }


@dataclass(frozen=True)
class Total:
    """One drafter over all prompts.

    ratio: geometric mean of the prompts' ratios, None where nothing was generated.
    draft_us: Time in the drafter, per pass.
    same: texts equal to the plain ones, of `texts`.
    """

    drafter: str
    tokens_per_second: float
    ratio: float | None
    drafted: int
    accepted: int
    mean_accepted_length: float
    draft_us: float
    same: int
    texts: int

    def as_json(self) -> dict[str, Any]:
        return {
            "drafter": self.drafter,
            "tokens_per_second": round(self.tokens_per_second, 2),
            "ratio": _rounded(self.ratio),
            "drafted": self.drafted,
            "accepted": self.accepted,
            "mean_accepted_length": round(self.mean_accepted_length, 4),
            "draft_us_per_step": round(self.draft_us, 2),
            "identical_texts": self.same,
            "texts": self.texts,
        }


def tokenize_tasks(
    model: LlamaModel, tasks: Sequence[Task], chat: bool | None = None
) -> list[TokenIds]:
    """Return the prompts of tasks in a model's tokens.

    Args:
        model: The model.
        tasks: What it is asked.
        chat: Use its chat template, None = if it has one.

    Raises:
        InputError: A prompt is longer than the context that the model was trained with.
    """
    prompts = []
    for task in tasks:
        if bool(model.chat_template) if chat is None else chat:
            prompt = model.tokenize_chat(task.messages)
        else:
            prompt = model.tokenize("\n\n".join(task.turns), parse_special=True)
        if prompt.size >= model.n_ctx_train:
            raise InputError(
                f"prompt {task.name!r} has {prompt.size} tokens, the model's context is "
                f"{model.n_ctx_train}"
            )
        prompts.append(prompt)
    return prompts


def totals(results: Sequence[PromptResult]) -> list[Total]:
    """Return one row per drafter over all prompts, the one without drafts first."""
    columns = zip(*(result.outcomes for result in results), strict=True)
    return [_total(outcomes) for outcomes in columns]


def _total(outcomes: Sequence[PromptOutcome]) -> Total:
    ratios = [outcome.ratio for outcome in outcomes if outcome.ratio]
    timed = [outcome for outcome in outcomes if outcome.tokens_per_second]
    tokens = [len(outcome.runs[0].token_ids) - 1 for outcome in timed]
    pairs = zip(tokens, timed, strict=True)
    seconds = sum(count / outcome.tokens_per_second for count, outcome in pairs)
    runs = [run for outcome in outcomes for run in outcome.runs]
    steps = sum(run.steps for run in runs)
    return Total(
        drafter=outcomes[0].mode.spec,
        tokens_per_second=sum(tokens) / seconds if seconds else 0.0,
        ratio=statistics.geometric_mean(ratios) if ratios else None,
        drafted=sum(outcome.drafted for outcome in outcomes),
        accepted=sum(outcome.accepted for outcome in outcomes),
        mean_accepted_length=_mean_accepted_length(runs),
        draft_us=1e6 * sum(run.draft_seconds for run in runs) / steps if steps else 0.0,
        same=sum(outcome.difference is None for outcome in outcomes),
        texts=len(outcomes),
    )


def _mean_accepted_length(runs: Sequence[Run]) -> float:
    steps = sum(run.steps for run in runs)
    chosen = sum(len(run.token_ids) - 1 + (run.finish_reason == "stop") for run in runs)
    return chosen / steps if steps else 0.0


def report(results: Sequence[PromptResult]) -> dict[str, Any]:
    rows = totals(results)
    return {
        "identical": all(row.same == row.texts for row in rows),
        "summary": [row.as_json() for row in rows],
        "prompts": [result.as_json() for result in results],
    }


def parse_mode(spec: str, **files: Any) -> Mode:
    """Parse the specification of a mode.

    Args:
        spec: "none", or as for `bench replay`: names with commas, ":" and parameters. Among the
            names, "draft-simple" is the draft model, "draft-mtp" the model's MTP heads. Or
            "synthetic", which always has a draft; with n, of as many tokens and all are sent.
        files: Parameters of drafters that read a statistics file, such as tokenizer.

    Raises:
        InputError: An unknown drafter or parameter, a value out of bounds, or a file that a
            benchmark would change.
        OSError, FormatError, VocabMismatchError: A statistics file cannot be used.
    """
    if spec == PLAIN:
        return Mode(PLAIN, (), {})
    text, params = parse_spec(spec)
    policy = params.pop("policy", None)
    if policy is not None:
        make_policy(str(policy), 1)  # raises now if it is wrong
    if text == SYNTHETIC:
        longest = params.pop("n", None)
        if params or not (longest is None or (is_int(longest) and 1 <= longest <= MOST_SYNTHETIC)):
            raise InputError(f"{spec!r}: {SYNTHETIC} takes n=1 to {MOST_SYNTHETIC}, and policy")
        own = {} if longest is None else {"n": longest}
        return Mode(spec, (SYNTHETIC,), {SYNTHETIC: own}, policy or ("fixed" if own else None))
    if "static" in params:
        params = {**files, **params}
    asked = [name.strip() for name in text.split(",")]
    text = ",".join(name for name in asked if name not in SECONDS)
    small = any(name in SECONDS for name in asked)
    if not text and small and not params:
        return Mode(spec, (), {}, policy, True)
    create_drafter(text, **params)  # raises now if it is wrong
    names = parse_names(text, "priority")
    by_name = {name: {k: params[k] for k in params if k in _parameters_of(name)} for name in names}
    return Mode(spec, names, by_name, policy, small)


class Bench:
    """Bench(target, modes, policy, max_draft, setup, tree): runs prompts on a target's first slot.

    Each run has a fresh engine with fresh drafters, so that nothing is learned from the run before,
    which had the same text. The policy of a mode is kept, as in a server that has been running.

    Args:
        target: The model.
        modes: The first one is plain decoding.
        policy: As for make_policy, for modes that name none.
        max_draft: Longest draft in tokens.
        setup: Costs of the target's passes, for "auto", and the draft model or the MTP heads; their
            cache is empty when a run begins.
        tree: As for Engine; for modes with the policy auto, which chooses branches.
        rates: As for Dice, which then decide what is right; () = the model does.
        seed: Of the dice.

    Raises:
        InputError: There is no such policy, the first mode drafts, a mode has a draft model and
            there is none, or `tree` asks for more branches than any mode can send.
    """

    def __init__(
        self,
        target: Target,
        modes: Sequence[Mode],
        policy: str = DEFAULT_POLICY,
        max_draft: int = DEFAULT_MAX_DRAFT,
        setup: DraftSetup | None = None,
        tree: int | str = AUTO,
        rates: Sequence[float] = (),
        seed: int = 0,
    ) -> None:
        if not rates and any(SYNTHETIC in mode.names for mode in modes):
            raise InputError(
                f"{SYNTHETIC!r} drafts need rates by which they are right (--synthetic)"
            )
        if not modes or modes[0].drafts:
            raise InputError("the first mode must be plain decoding")
        setup = setup or DraftSetup(max_rollback=target.max_rollback)
        small = setup.second
        kind = "none" if small is None else small.info.kind
        lacks = next((mode.spec for mode in modes if mode.small and kind not in mode.spec), None)
        if lacks is not None:
            raise InputError(f"{lacks!r} needs a draft model: give its file (--model-draft)")
        self._target, self.small = target, small
        for mode in modes:
            own = mode.params.get(SYNTHETIC, {}).get("n", 1)
            if own > max_draft:
                raise InputError(f"{mode.spec}: drafts have {max_draft} tokens at most")
        self._modes, self._rates, self._seed, self._longest = modes, rates, seed, max_draft
        self._exact = target.exact_batch > 0
        self._policies = {mode: setup.policy(mode.policy or policy, max_draft) for mode in modes}
        choosing = [m for m in modes if m.drafts and self._policies[m].weighs]
        if not choosing and isinstance(tree, int) and tree > 1:
            raise InputError(
                f"drafts cannot have {tree} branches: only the policy auto chooses branches"
            )
        self._trees = {mode: tree if mode in choosing else OFF for mode in modes}

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
        first: int = 0,
        stopped: Callable[[], bool] = lambda: False,
    ) -> tuple[PromptOutcome, ...]:
        """Run one prompt in all modes, in turns; () if it is stopped before the first round ends.

        Args:
            prompt_ids: int32, not empty.
            max_tokens: Longest answer.
            repeats: Runs of each mode.
            sampling: With a seed, which all runs use.
            advance: Called after each run.
            first, stopped: As for run_in_turns.

        Raises:
            InputError: The prompt does not fit.
            BackendError: The target fails.
        """
        request = Request(prompt_ids=prompt_ids, max_tokens=max_tokens, sampling=sampling)
        prompt = self._read(prompt_ids) if repeats * len(self._modes) > 2 else None
        rounds = run_in_turns(
            self._modes,
            repeats,
            lambda mode: self._run(mode, request, prompt),
            advance,
            first,
            stopped,
        )
        if not rounds:
            return ()
        by_mode = {mode: tuple(runs[mode] for runs in rounds) for mode in self._modes}
        return tuple(
            PromptOutcome(mode, by_mode[mode], by_mode[self._modes[0]]) for mode in self._modes
        )

    def _read(self, prompt_ids: TokenIds) -> SavedSlot | None:
        """Read a prompt once for all runs; None where what it leaves cannot be put back."""
        if isinstance(self.small, MtpHeads):  # they follow the pass that reads it
            return None
        engine = make_engine(self._target, NO_DRAFTS, exact=self._exact)
        try:
            engine.generate([Request(prompt_ids=prompt_ids, max_tokens=1)])
            saved = engine.save_slot(0)
            engine.step()
            return saved.result(0)
        except BackendError:
            return None
        finally:
            engine.close()

    def _run(self, mode: Mode, request: Request, prompt: SavedSlot | None = None) -> Run:
        small = self.small if mode.small else None
        if isinstance(self.small, MtpHeads):
            self.small.follow(mode.small)  # forgets the last run; without them no pass costs more
        elif small is not None:
            others = dataclasses.replace(request.speculation, namespace="of another run")
            request_of_others = dataclasses.replace(request, speculation=others)
            small.start(0, request_of_others, GreedySampler())  # drops the last run's
        dice = Dice(self._rates, self._seed) if self._rates else None
        if SYNTHETIC in mode.names:
            longest = mode.params[SYNTHETIC].get("n", min(self._longest, len(self._rates)))
            tokens = [token for token in request.prompt_ids if not self._target.is_end(token)]
            source = SyntheticSource(self._rates, np.array(tokens, np.int32), longest)
            drafts = dataclasses.replace(NO_DRAFTS, policy=self._policies[mode])
            engine = make_engine(self._target, drafts, source, exact=self._exact, dice=dice)
            return self._run_on(engine, request, prompt)
        drafts = DraftSettings(
            drafter=mode.names,
            params=mode.params,
            policy=self._policies[mode],
            tree=self._trees[mode],
        )
        engine = make_engine(self._target, drafts, second=small, exact=self._exact, dice=dice)
        return self._run_on(engine, request, None if LEARNS_FROM_PASSES in mode.names else prompt)

    def _run_on(self, engine: Engine, request: Request, prompt: SavedSlot | None) -> Run:
        if prompt is not None:
            engine.restore_slot(0, prompt)
        generation = _run_alone(engine, request)
        timings = generation.timings
        return Run(
            token_ids=tuple(generation.token_ids),
            guessed=tuple(generation.accepted),
            seconds=timings.decode_seconds,
            prompt_seconds=timings.prompt_seconds,
            draft_seconds=engine.stats().draft_seconds,
            steps=max(0, timings.num_steps - 1),  # the first one read the prompt
            drafted=timings.num_draft_tokens,
            accepted=timings.num_accepted_tokens,
            finish_reason=generation.finish_reason or "",
        )


def run_tasks(
    rounds: Mapping[Bench, int],
    model: LlamaModel,
    tasks: Sequence[Task],
    prompts: Sequence[TokenIds],
    *,
    begin: Callable[[str], object],
    **how: Any,
) -> Iterator[tuple[PromptResult, ...]]:
    """Yield what comes of each task on each bench, until it is stopped before a first round ends.

    Args:
        rounds: The benches, and how often each runs a task in each mode.
        model: Turns the plain answers into text.
        tasks, prompts: What the model is asked, and the same in its tokens.
        begin: Called with the title of each task.
        how: The rest, as for Bench.run.

    Rounds are counted on from task to task. With few of each, plain decoding would otherwise begin
    most of them, and a machine that warms up or slows down would favour one side.
    """
    most = max(rounds.values())
    for number, (task, prompt) in enumerate(zip(tasks, prompts, strict=True)):
        begin(task.title)
        results = []
        for bench, repeats in rounds.items():
            outcomes = bench.run(prompt, repeats=repeats, first=number * most, **how)
            if not outcomes:
                return
            text = model.detokenize(outcomes[0].runs[0].token_ids)
            results.append(PromptResult(task.name, int(prompt.size), text, outcomes))
        yield tuple(results)


def _run_alone(engine: Engine, request: Request) -> Generation:
    """Run a request to its end and close the engine."""
    try:
        (generation,) = engine.generate([request])
    finally:
        engine.close()
    if generation.error is not None:
        raise generation.error
    return generation


def _parameters_of(name: str) -> set[str]:
    return {field.name for field in dataclasses.fields(CONFIGS[name])}


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 4)


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) else str(value)


def rates_of(length: float, longest: int) -> tuple[float, ...]:
    """Return the rates of drafts that yield a mean number of tokens per pass.

    Each token is right with the same probability if those before it are.

    Args:
        length: Mean tokens per pass of the longest drafts, the target's own included.
        longest: Tokens of these drafts, >= 1.

    Raises:
        InputError: `length` is not in 1..longest + 1.

    Source: vLLM's synthetic_acceptance_length.
    """
    if not 1.0 <= length <= longest + 1:
        raise InputError(f"a mean length must be in 1..{longest + 1}, got {length}")
    low, high = 0.0, 1.0
    for _ in range(60):
        p = (low + high) / 2
        low, high = (p, high) if sum(p**i for i in range(1, longest + 1)) < length - 1 else (low, p)
    return tuple(high**i for i in range(1, longest + 1))


class SyntheticSource(DraftSource):
    """Always drafts, in no time, and claims what the dice will say. Its tokens mean nothing.

    Args:
        rates: As for Dice.
        tokens: int32, not empty: what it drafts are ordinary tokens like these, such as a prompt's.
        longest: Its longest draft, >= 1; longer ones than there are rates can only be wrong.
    """

    name = SYNTHETIC

    def __init__(self, rates: Sequence[float], tokens: TokenIds, longest: int) -> None:
        before = np.concatenate([[1.0], rates[:-1]])
        claims = np.divide(rates, before, out=np.zeros(len(rates)), where=before > 0)
        self._claims = np.zeros(longest, np.float32)
        self._claims[: len(claims)] = claims[:longest]
        self._draft = np.resize(np.unique(tokens)[:ORDINARY], longest).astype(np.int32)
        self.max_draft = longest
        self._length = 0

    def draft(self, slot: int, limit: int) -> TokenIds:
        """Return a draft of `limit` tokens, or of its longest."""
        self._length = min(limit, self.max_draft)
        return self._draft[: self._length]

    def confidence(self, slot: int) -> Claims:
        """Return how often the dice will take each token if they take those before it."""
        return self._claims[: self._length]

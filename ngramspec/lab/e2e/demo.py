"""The demo: its tasks for a model, without and with each drafter, checked and timed."""

from __future__ import annotations

import codecs
import contextlib
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from ngramspec.drafting.names import parse_names
from ngramspec.engine import Sampling
from ngramspec.errors import BackendError
from ngramspec.lab.e2e.bench import PLAIN, Bench, Mode, PromptOutcome, Run, tokenize_tasks
from ngramspec.lab.e2e.difference import Difference, find_difference
from ngramspec.lab.e2e.tasks import Task
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.placement import Placement
from ngramspec.llamacpp.settings import ContextSettings
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.runtime import ModelSettings, load_model, open_target

# For short texts and a model for which a wrong draft token costs nearly as much as a right one
# saves: shorter keys than llama.cpp's defaults, and shorter drafts.
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "ngram-simple": {"size_n": 4, "size_m": 10},
    "ngram-map-k": {"size_n": 4, "size_m": 12},
    "ngram-map-k4v": {"size_n": 4, "size_m": 12},
    "ngram-mod": {"n_match": 5, "n_min": 4, "n_max": 12, "capacity": 1 << 16},
    "ngram-cache": {"n_draft": 8},
}
DRAFTERS = (*SETTINGS, "suffix")  # those with fixed lengths, the last one with a policy
CONTEXT_SIZE = 2048
GREEDY = Sampling(temperature=0)

Piece = tuple[str, bool]  # text, and whether accepted draft tokens made it


@dataclass(frozen=True)
class Benches:
    """The same modes on two targets of one model: `exact` is bit-exact, `timed` is timed.

    They may be the same one. modes: The one without drafts first.
    exact_batch: Tokens of the largest batches of `exact`, up to which all bits were found equal.
    refusal: Why no setting is bit-exact here, "" if one is; `exact` is then `timed`.
    """

    model: LlamaModel
    modes: tuple[Mode, ...]
    exact: Bench
    timed: Bench
    exact_batch: int = 0
    refusal: str = ""

    @property
    def one(self) -> bool:
        """Whether the bit-exact setting is also the timed one."""
        return self.exact is self.timed

    def count_runs(self, repeats: int) -> int:
        """Return how many generations run_task makes of a task, for a progress bar."""
        return len(self.modes) * (repeats + (not self.one))


@dataclass(frozen=True)
class TaskOutcome:
    """One task with one drafter, or without one.

    exact, pieces: the run in the bit-exact setting, and its text.
    runs: the timed runs, in order.
    difference: where the bit-exact text departs from the one without drafts; None: nowhere.
    timed_difference: the same for the timed texts.
    """

    drafter: str
    exact: Run
    runs: tuple[Run, ...]
    difference: Difference | None
    timed_difference: Difference | None
    pieces: tuple[Piece, ...]

    @property
    def tokens(self) -> int:
        """Tokens after the first one, which belongs to the prompt's time."""
        return len(self.runs[0].token_ids) - 1

    @property
    def seconds(self) -> float:
        """Time for those tokens, median of the runs."""
        return statistics.median(run.seconds for run in self.runs)

    @property
    def draft_seconds(self) -> float:
        """Time in the drafter, median of the runs."""
        return statistics.median(run.draft_seconds for run in self.runs)


@dataclass(frozen=True)
class TaskResult:
    """All outcomes of one task, the one without drafts first."""

    task: Task
    prompt_len: int
    outcomes: tuple[TaskOutcome, ...]


@dataclass(frozen=True)
class Row:
    """One drafter over some tasks.

    speedup: tokens/s over those without drafts in the same run. draft_us: per step.
    same, timed_same: texts equal to those without drafts, bit-exact and as timed, of `texts`.
    """

    drafter: str
    tokens_per_second: float
    speedup: float
    acceptance: float
    mean_accepted_length: float
    draft_us: float
    same: int
    timed_same: int
    texts: int

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "drafter": self.drafter,
            "tokens_per_second": round(self.tokens_per_second, 2),
            "speedup": round(self.speedup, 4),
            "acceptance": round(self.acceptance, 4),
            "mean_accepted_length": round(self.mean_accepted_length, 4),
            "draft_us_per_step": round(self.draft_us, 2),
            "texts": self.texts,
            "identical_texts": self.same,
            "identical_timed_texts": self.timed_same,
        }


@contextlib.contextmanager
def open_benches(
    drafters: Sequence[str],
    threads: int = 1,
    exact: bool = False,
    n_gpu_layers: int = 0,
    path: Path | None = None,
) -> Iterator[Benches]:
    """Load a model, bit-exact and, unless this is timed, without flash attention.

    Args:
        drafters: Names with commas between.
        threads: CPU threads of the timed target.
        exact: Time the bit-exact setting.
        n_gpu_layers: Layers of the timed target on the GPU, -1 = all; the exact one has none.
        path: A GGUF file; None: the embedded model.

    Raises:
        FormatError, OSError: The file cannot be read.
        BackendError: llama.cpp cannot run the model; or no setting is exact here, if it is timed.

    Cost: a second for the embedded model, in which the bit-exact setting is found and tested.
    """
    modes = (Mode(PLAIN, (), {}), *map(_mode, drafters))
    own = ModelSettings(path=path, placement=Placement(0))
    context = ContextSettings(context_size=CONTEXT_SIZE, threads=1)
    with contextlib.ExitStack() as stack:
        model, fitted = load_model(own, context)
        stack.enter_context(model)
        tested: LlamaTarget | None = None
        refusal = ""
        try:
            tested = stack.enter_context(open_target(own, model, fitted, exact=True)[0])
        except BackendError as error:
            if exact:
                raise
            refusal = str(error)
        if exact and tested is not None:
            target = tested
        else:
            placed, context = model, replace(context, threads=threads, flash_attn=False)
            if n_gpu_layers:
                own = replace(own, placement=Placement(n_gpu_layers))
                placed, fitted = load_model(own, context)
                stack.enter_context(placed)
            fitted = replace(fitted, settings=context)
            target = stack.enter_context(open_target(own, placed, fitted)[0])
        timed = Bench(target, modes)
        checked = timed if tested is None or tested is target else Bench(tested, modes)
        for one in {id(one): one for one in (checked, timed)}.values():
            one.warm_up(model.tokenize("a b c a b c a b c"), GREEDY)
        exact_batch = 0 if tested is None else tested.exact_batch
        yield Benches(model, modes, checked, timed, exact_batch, refusal)


def run_task(
    benches: Benches,
    task: Task,
    *,
    repeats: int = 5,
    max_tokens: int = 256,
    advance: Callable[[], object] = lambda: None,
    first: int = 0,
    stopped: Callable[[], bool] = lambda: False,
) -> TaskResult | None:
    """Run one task without drafts and with each drafter, interleaved; None if nothing is whole.

    Args:
        benches: The targets.
        task: What the model is asked.
        repeats: Timed runs of each.
        max_tokens: Longest answer.
        advance: Called after each run.
        first, stopped: As for run_in_turns.
    """
    (prompt,) = tokenize_tasks(benches.model, [task])

    def run(bench: Bench, rounds: int) -> tuple[PromptOutcome, ...]:
        return bench.run(
            prompt,
            max_tokens=max_tokens,
            repeats=rounds,
            sampling=GREEDY,
            advance=advance,
            first=first,
            stopped=stopped,
        )

    checked = () if benches.one else run(benches.exact, 1)
    timed = run(benches.timed, repeats)
    if not timed:
        return None

    def outcome(exact: PromptOutcome, measured: PromptOutcome) -> TaskOutcome:
        mine = exact.runs[0]
        difference = _difference(benches.exact, prompt, exact)
        return TaskOutcome(
            drafter=measured.mode.spec,
            exact=mine,
            runs=measured.runs,
            difference=difference,
            timed_difference=difference
            if benches.one
            else _difference(benches.timed, prompt, measured),
            pieces=tuple(decode_pieces(benches.model.piece, mine.token_ids, mine.guessed)),
        )

    pairs = zip(checked or timed, timed, strict=True)
    return TaskResult(task, int(prompt.size), tuple(outcome(*pair) for pair in pairs))


def decode_pieces(
    piece: Callable[[int], bytes], token_ids: Iterable[int], accepted: Iterable[bool]
) -> list[Piece]:
    """Return the text in pieces, neighbours of the same kind joined.

    Args:
        piece: Returns the bytes of a token, as LlamaModel.piece.
        token_ids: The text; a character of several tokens counts for the last of them.
        accepted: For each token whether a draft guessed it.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces: list[Piece] = []
    for token_id, is_accepted in zip(token_ids, accepted, strict=True):
        text = decoder.decode(piece(int(token_id)))
        if pieces and pieces[-1][1] == bool(is_accepted):
            text = pieces.pop()[0] + text
        pieces.append((text, bool(is_accepted)))
    pieces.append((decoder.decode(b"", True), False))
    return [part for part in pieces if part[0]]


def make_rows(results: Sequence[TaskResult]) -> list[Row]:
    """Return one row per drafter over all the given tasks, the one without drafts first."""
    columns = list(zip(*(result.outcomes for result in results), strict=True))
    base = _rate(columns[0])
    return [_row(outcomes, base) for outcomes in columns]


def _rate(outcomes: Iterable[TaskOutcome]) -> float:
    outcomes = list(outcomes)
    seconds = sum(outcome.seconds for outcome in outcomes)
    return sum(outcome.tokens for outcome in outcomes) / seconds if seconds > 0 else 0.0


def _row(outcomes: Sequence[TaskOutcome], base: float) -> Row:
    runs = [outcome.runs[0] for outcome in outcomes]
    steps = sum(run.steps for run in runs)
    drafted = sum(run.drafted for run in runs)
    rate = _rate(outcomes)
    return Row(
        drafter=outcomes[0].drafter,
        tokens_per_second=rate,
        speedup=rate / base if base else 0.0,
        acceptance=sum(run.accepted for run in runs) / drafted if drafted else 0.0,
        mean_accepted_length=sum(o.tokens for o in outcomes) / steps if steps else 0.0,
        draft_us=1e6 * sum(o.draft_seconds for o in outcomes) / steps if steps else 0.0,
        same=sum(outcome.difference is None for outcome in outcomes),
        timed_same=sum(outcome.timed_difference is None for outcome in outcomes),
        texts=len(outcomes),
    )


def as_json(results: Sequence[TaskResult]) -> dict[str, Any]:
    """Return everything that was measured, as plain data."""
    return {
        "identical": all(o.difference is None for r in results for o in r.outcomes),
        "summary": [row.as_json() for row in make_rows(results)],
        "tasks": [_task_json(result) for result in results],
    }


def _task_json(result: TaskResult) -> dict[str, Any]:
    pairs = zip(result.outcomes, make_rows([result]), strict=True)
    return {
        "name": result.task.name,
        "request": result.task.request,
        "prompt_tokens": result.prompt_len,
        "text": "".join(text for text, _ in result.outcomes[0].pieces),
        "runs": [{**row.as_json(), **_outcome_json(outcome)} for outcome, row in pairs],
    }


def _outcome_json(outcome: TaskOutcome) -> dict[str, Any]:
    run = outcome.runs[0]
    differences = {"difference": outcome.difference, "timed_difference": outcome.timed_difference}
    return {
        "parameters": {} if outcome.drafter == PLAIN else settings_of(outcome.drafter),
        "tokens": len(run.token_ids),
        "steps": run.steps,
        "drafts": run.drafts,
        "drafted": run.drafted,
        "accepted": run.accepted,
        "finish_reason": run.finish_reason,
        "seconds": [round(run.seconds, 6) for run in outcome.runs],
        "prompt_seconds": [round(run.prompt_seconds, 6) for run in outcome.runs],
        **{
            name: None if it is None else {"position": it.position, "margin": it.margin}
            for name, it in differences.items()
        },
    }


def settings_of(spec: str) -> dict[str, dict[str, Any]]:
    """Return the parameters of each drafter in a comma list."""
    return {name: dict(SETTINGS[name]) for name in spec.split(",") if name in SETTINGS}


def _mode(spec: str) -> Mode:
    names = parse_names(spec, "priority")
    policy = "fixed" if SETTINGS.keys() >= set(names) else "auto"  # they are for fixed lengths
    return Mode(spec, names, settings_of(spec), policy)


def _difference(
    bench: Bench, prompt: npt.NDArray[Any], outcome: PromptOutcome
) -> Difference | None:
    """Return where the first run that departs from the plain text does so."""
    plain = outcome.plain[0].token_ids
    other = next((run.token_ids for run in outcome.runs if run.token_ids != plain), plain)
    return find_difference(prompt, plain, other, bench.ask)

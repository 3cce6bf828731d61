"""Running the demo's tasks: the same text without and with each drafter, checked and timed."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ngramspec.adapters.llama_cpp.model import LlamaModel
from ngramspec.adapters.llama_cpp.settings import ContextSettings
from ngramspec.adapters.llama_cpp.target import LlamaTarget
from ngramspec.bench.e2e import PLAIN, Bench, Mode, Run
from ngramspec.bench.e2e import Outcome as Timed
from ngramspec.bench.parting import Parting, find_parting
from ngramspec.cli.options import DEFAULT_SPEC
from ngramspec.cli.session import EXACT
from ngramspec.cli.tasks import SETTINGS, Task
from ngramspec.cli.text import Piece, decode_pieces
from ngramspec.drafters.names import parse_names
from ngramspec.engine import Sampling
from ngramspec.models import embedded_model

CONTEXT_SIZE = 2048
GREEDY = Sampling(temperature=0)


@dataclass(frozen=True)
class Benches:
    """The same modes on two targets of one model: `exact` bit-exact, `timed` as it is timed.

    They may be one. modes: The one without drafts first.
    """

    model: LlamaModel
    modes: tuple[Mode, ...]
    exact: Bench
    timed: Bench

    @property
    def one(self) -> bool:
        """Whether the bit-exact setting is also the timed one."""
        return self.exact is self.timed


@dataclass(frozen=True)
class Outcome:
    """One task with one drafter, or without one.

    exact, pieces: the run in the bit-exact setting, and its text.
    runs: the timed runs, in order.
    parting: where the bit-exact text leaves the one without drafts; None: nowhere.
    timed_parting: the same for the timed texts.
    """

    drafter: str
    exact: Run
    runs: tuple[Run, ...]
    parting: Parting | None
    timed_parting: Parting | None
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
    outcomes: tuple[Outcome, ...]


@contextlib.contextmanager
def open_benches(drafters: Sequence[str], threads: int, exact: bool) -> Iterator[Benches]:
    """Load the embedded model bit-exact and, unless that is what is timed, without flash attention.

    Args:
        drafters: Names with commas between.
        threads: CPU threads of the timed target.
        exact: Time the bit-exact setting.
    """
    modes = (Mode(PLAIN, (), {}), *map(_mode, drafters))
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(LlamaModel(embedded_model()))

        def bench(**settings: Any) -> Bench:
            made = ContextSettings(context_size=CONTEXT_SIZE, **settings)
            return Bench(stack.enter_context(LlamaTarget(model, made)), modes)

        checked = bench(**EXACT)
        timed = checked if exact else bench(threads=threads, flash_attn=False)
        for one in {id(one): one for one in (checked, timed)}.values():
            one.warm_up(model.tokenize("a b c a b c a b c"), GREEDY)
        yield Benches(model, modes, checked, timed)


def count_runs(tasks: int, repeats: int, benches: Benches) -> int:
    """Return how many generations run_task makes in all, for the progress bar."""
    return tasks * len(benches.modes) * (repeats + (not benches.one))


def run_task(
    benches: Benches, task: Task, *, repeats: int, max_tokens: int, advance: Callable[[], None]
) -> TaskResult:
    """Run one task without drafts and with each drafter, interleaved, `repeats` times each."""
    prompt = benches.model.tokenize_chat(task.messages)

    def run(bench: Bench, rounds: int) -> tuple[Timed, ...]:
        return bench.run(
            prompt, max_tokens=max_tokens, repeats=rounds, sampling=GREEDY, advance=advance
        )

    checked = () if benches.one else run(benches.exact, 1)
    timed = run(benches.timed, repeats)

    def outcome(exact: Timed, made: Timed) -> Outcome:
        mine = exact.runs[0]
        pieces = decode_pieces(benches.model.piece, mine.token_ids, mine.guessed)
        parting = _parting(benches.exact, prompt, exact)
        return Outcome(
            drafter=made.mode.spec,
            exact=mine,
            runs=made.runs,
            parting=parting,
            timed_parting=parting if benches.one else _parting(benches.timed, prompt, made),
            pieces=tuple(pieces),
        )

    pairs = zip(checked or timed, timed, strict=True)
    return TaskResult(task, int(prompt.size), tuple(outcome(*pair) for pair in pairs))


def settings_of(spec: str) -> dict[str, dict[str, Any]]:
    """Return the parameters of each drafter in a comma list."""
    return {name: dict(SETTINGS[name]) for name in spec.split(",") if name in SETTINGS}


def _mode(spec: str) -> Mode:
    policy = "auto" if spec == DEFAULT_SPEC else "fixed"  # the settings are for fixed lengths
    return Mode(spec, parse_names(spec, "priority"), settings_of(spec), policy)


def _parting(bench: Bench, prompt: Any, outcome: Timed) -> Parting | None:
    """Return where the first run that leaves the plain text does so."""
    plain = outcome.plain[0].token_ids
    other = next((run.token_ids for run in outcome.runs if run.token_ids != plain), plain)
    return find_parting(prompt, plain, other, bench.ask)

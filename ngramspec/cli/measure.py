"""Running the demo's tasks: the same text without and with each drafter, checked and timed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.bench.rounds import run_in_turns
from ngramspec.cli.compare import Parting, find_parting
from ngramspec.cli.options import DEFAULT_SPEC
from ngramspec.cli.tasks import SETTINGS, Task
from ngramspec.cli.text import Piece, decode_pieces

if TYPE_CHECKING:
    from ngramspec.adapters.llama_cpp import Generation

N_CTX = 2048
PLAIN = "none"


@dataclass(frozen=True)
class Models:
    """The model loaded twice: `exact` bit-exact, `timed` as it is timed; they may be one."""

    exact: Any
    timed: Any

    @property
    def one(self) -> bool:
        """Whether the bit-exact setting is also the timed one."""
        return self.exact is self.timed


@dataclass(frozen=True)
class Outcome:
    """One task with one drafter, or without one.

    exact, pieces: the generation in the bit-exact setting, and its text.
    runs: the timed generations, in order.
    parting: where the bit-exact text leaves the one without drafts; None: nowhere.
    timed_parting: the same for the timed texts.
    """

    drafter: str
    exact: Generation
    runs: tuple[Generation, ...]
    parting: Parting | None
    timed_parting: Parting | None
    pieces: tuple[Piece, ...]

    @property
    def tokens(self) -> int:
        """Tokens after the first one, which belongs to the prompt's time."""
        return int(self.runs[0].token_ids.size) - 1

    @property
    def seconds(self) -> float:
        """Time for those tokens, median of the runs."""
        return statistics.median(run.seconds - run.prompt_seconds for run in self.runs)

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


def load_models(path: Path, threads: int, exact: bool) -> Models:
    """Load the model bit-exact and, unless that is what shall be timed, in the default setting."""
    from ngramspec.cli.model import BIT_EXACT, load_model

    strict = load_model(path, n_ctx=N_CTX, **BIT_EXACT)
    if exact:
        return Models(strict, strict)
    return Models(strict, load_model(path, n_ctx=N_CTX, n_threads=threads, n_threads_batch=threads))


def count_runs(tasks: int, drafters: int, repeats: int, models: Models) -> int:
    """Return how many generations run_task makes in all, for the progress bar."""
    return tasks * (drafters + 1) * (repeats + (not models.one))


def run_task(
    models: Models,
    task: Task,
    drafters: Sequence[str],
    *,
    repeats: int,
    max_tokens: int,
    advance: Callable[[], None],
) -> TaskResult:
    """Run one task without drafts and with each drafter, interleaved, `repeats` times each."""
    from ngramspec.cli.model import chat_tokens

    prompt = chat_tokens(models.exact, task.messages)
    modes = (PLAIN, *drafters)

    def rounds_of(llama: Any, count: int) -> list[dict[str, Generation]]:
        return run_in_turns(
            modes, count, lambda mode: _generate(llama, prompt, mode, max_tokens), advance
        )

    exact = [] if models.one else rounds_of(models.exact, 1)
    rounds = rounds_of(models.timed, repeats)
    outcomes = (_outcome(models, prompt, mode, (exact or rounds)[0], rounds) for mode in modes)
    return TaskResult(task, len(prompt), tuple(outcomes))


def warm_up(models: Models) -> None:
    """Generate a little, so that the first timed run does not pay for cold memory."""
    for llama in {id(llama): llama for llama in (models.exact, models.timed)}.values():
        for mode in (PLAIN, "ngram-cache"):
            _generate(llama, llama.tokenize(b"a b c a b c a b c", add_bos=False), mode, 16)


def _generate(llama: Any, prompt: Sequence[int], mode: str, max_tokens: int) -> Generation:
    from ngramspec.adapters.llama_cpp import NgramDraft, generate_tokens

    # A fresh drafter each time: nothing learned from the run before, which had the same text.
    policy = "auto" if mode == DEFAULT_SPEC else "fixed"  # the settings are for fixed lengths
    draft = None if mode == PLAIN else NgramDraft(mode, policy=policy, params=settings_of(mode))
    return generate_tokens(llama, prompt, max_tokens=max_tokens, draft=draft, fresh=True)


def settings_of(mode: str) -> dict[str, dict[str, Any]]:
    """Return the parameters of each drafter in a comma list."""
    return {name: dict(SETTINGS[name]) for name in mode.split(",") if name in SETTINGS}


def _outcome(
    models: Models,
    prompt: Sequence[int],
    mode: str,
    exact: dict[str, Generation],
    rounds: Sequence[dict[str, Generation]],
) -> Outcome:
    mine = exact[mode]
    runs = tuple(made[mode] for made in rounds)
    parting = find_parting(models.exact, prompt, exact[PLAIN].token_ids, mine.token_ids)
    timed = _first(
        find_parting(models.timed, prompt, rounds[0][PLAIN].token_ids, run.token_ids)
        for run in runs
    )
    if models.one:
        parting = timed
    pieces = decode_pieces(models.exact, mine.token_ids.tolist(), mine.accepted.tolist())
    return Outcome(mode, mine, runs, parting, timed, tuple(pieces))


def _first(partings: Iterable[Parting | None]) -> Parting | None:
    return next((parting for parting in partings if parting is not None), None)

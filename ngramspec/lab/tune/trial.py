"""Trial: whether a statistics file built from recorded answers pays, on requests held out from it.

A drafter that has been running knows what was answered before; a file helps one that starts. So
both start afresh on the held-out requests, one with a file of the answers that came before them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngramspec.costs import CostTable
from ngramspec.errors import InputError
from ngramspec.files.atomic import held, new_file, remove_temporaries, temporary_name
from ngramspec.lab.builder.options import BuildOptions
from ngramspec.lab.builder.tokens import build_from_tokens
from ngramspec.lab.replay.outcome import figures
from ngramspec.lab.replay.tally import ReplayTally, total_of
from ngramspec.lab.replay.walk import walk
from ngramspec.lab.tune.candidates import DEFAULT, Candidate
from ngramspec.lab.tune.search import LEAST_GAIN
from ngramspec.lab.tune.split import Split
from ngramspec.text.tokenizers import Fingerprint

# Drafters that read a file which they do not change, the file's kind, and the option for it.
READERS = {"suffix": "--suffix-index", "ngram-cache": "--lookup-cache-static"}


@dataclass(frozen=True)
class Start:
    """A drafter that started afresh on the held-out requests.

    reader: The member of the chain that read the file; "" = none did.
    """

    candidate: Candidate
    reader: str
    tally: ReplayTally


@dataclass(frozen=True)
class Trial:
    """The outcome.

    costs: Of the target.
    starts: The default and the candidate that was chosen, each without a file and with one.
    path: The file, None if it was not kept, because it does not pay.
    num_bytes, num_texts, num_tokens: Of the file that was built for the best start with one.
    """

    costs: CostTable
    starts: tuple[Start, ...]
    path: Path | None
    num_bytes: int
    num_texts: int
    num_tokens: int

    @property
    def best_without(self) -> Start:
        """The best without a file."""
        return max((one for one in self.starts if not one.reader), key=self.speedup)

    @property
    def best_with(self) -> Start:
        """The best with a file."""
        return max((one for one in self.starts if one.reader), key=self.speedup)

    @property
    def gain(self) -> float:
        """Speed-up of the best with a file over the best without."""
        return self.speedup(self.best_with) / self.speedup(self.best_without)

    @property
    def pays(self) -> bool:
        """Whether the file gains more than 1 %."""
        return self.gain > LEAST_GAIN

    @property
    def options(self) -> list[str]:
        """Options of `serve` that read the file; [] if it was not kept."""
        return [] if self.path is None else [READERS[self.best_with.reader], str(self.path)]

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "file": None if self.path is None else str(self.path),
            "kind": self.best_with.reader,
            "bytes": self.num_bytes,
            "texts": self.num_texts,
            "tokens": self.num_tokens,
            "gain": round(self.gain, 4),
            "pays": self.pays,
            "starts": [
                {
                    "drafter": one.candidate.spec,
                    "parameters": dict(one.candidate.params),
                    "lengths": one.candidate.lengths,
                    "file": bool(one.reader),
                    "modelled_speedup": round(self.speedup(one), 4),
                    **figures(one.tally),
                }
                for one in self.starts
            ],
        }

    def speedup(self, start: Start) -> float:
        """Return the modelled speed-up over plain decoding."""
        return start.tally.speedup(self.costs)


def try_file(
    path: Path,
    parts: Split,
    candidate: Candidate,
    costs: CostTable,
    tokenizer: Fingerprint | None,
    *,
    about: Mapping[str, Any] | None = None,
    advance: Callable[[], object] = lambda: None,
) -> Trial:
    """Build statistics from the answers to choose on, and keep the file if it pays.

    Only the held-out requests decide, and the file that is kept is the one that was tried: nothing
    of them is in it.

    Args:
        path: The file; an existing one is replaced if the new one pays.
        parts: The requests.
        candidate: What was chosen; the default is tried beside it.
        costs: Of the target.
        tokenizer: Whose token ids they are, None = unknown.
        about: Provenance for the file.
        advance: Called after every replayed request, num_replays(parts, candidate) times.

    Raises:
        InputError: No request is held out.
        OSError: The file cannot be written.
    """
    if not parts.num_held_out:
        raise InputError("there are too few requests to hold some out, which decide on a file")
    answers = [request.output for part in parts.parts for request in part.chosen_on]
    starts, built = [], {}
    remove_temporaries(path)  # files on trial, of a process that was killed
    with ExitStack() as stack:
        for one in _candidates(candidate):
            starts.append(Start(one, "", _replay(one, parts, costs, {}, advance)))
            for reader in _readers(one):
                if reader not in built:
                    built[reader] = temporary_name(path)
                    stack.callback(built[reader].unlink, missing_ok=True)
                    options = BuildOptions(kind=reader)
                    build_from_tokens(answers, built[reader], tokenizer, options, about)
                    stack.enter_context(held(built[reader]))
                files = {reader: {"static": built[reader]}}
                starts.append(Start(one, reader, _replay(one, parts, costs, files, advance)))
        trial = Trial(costs, tuple(starts), None, 0, len(answers), sum(map(len, answers)))
        best = built[trial.best_with.reader]
        trial = dataclasses.replace(trial, num_bytes=best.stat().st_size)
        if trial.pays:
            with new_file(path) as file:
                file.write(best.read_bytes())
            trial = dataclasses.replace(trial, path=path)
    return trial


def num_replays(parts: Split, candidate: Candidate) -> int:
    """Return how often try_file calls `advance`."""
    return parts.num_held_out * sum(1 + len(_readers(one)) for one in _candidates(candidate))


def _candidates(candidate: Candidate) -> Sequence[Candidate]:
    return [DEFAULT] if candidate.name == DEFAULT.name else [DEFAULT, candidate]


def _readers(candidate: Candidate) -> list[str]:
    return [name for name in candidate.names if name in READERS]


def _replay(
    candidate: Candidate,
    parts: Split,
    costs: CostTable,
    files: Mapping[str, Mapping[str, Any]],
    advance: Callable[[], object],
) -> ReplayTally:
    """Return the tally of the held-out requests by a drafter that knows nothing else."""
    return total_of(
        walk(lambda: candidate.open(costs, files), part.held_out, on_request=advance)
        for part in parts.parts
        if part.held_out
    )

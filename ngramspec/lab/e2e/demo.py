"""The demo: its tasks for a model, without and with each drafter, checked and timed."""

from __future__ import annotations

import codecs
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ngramspec.drafting.names import parse_names
from ngramspec.engine import Sampling
from ngramspec.errors import BackendError
from ngramspec.lab.e2e.bench import PLAIN, Bench, Mode, PromptResult, tokenize_tasks
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

    modes: The one without drafts first.
    exact_batch: Tokens of the largest batches of `exact`, up to which all bits were found equal.
    refusal: Why no setting is bit-exact here, "" if one is; `exact` is then `timed`.
    """

    model: LlamaModel
    modes: tuple[Mode, ...]
    exact: Bench
    timed: Bench
    exact_batch: int = 0
    refusal: str = ""

    def count_runs(self, repeats: int) -> int:
        """Return how many generations run_task makes of a task, for a progress bar."""
        return len(self.modes) * (repeats + (not self.refusal))


@contextlib.contextmanager
def open_benches(
    drafters: Sequence[str], threads: int = 1, path: Path | None = None
) -> Iterator[Benches]:
    """Load a model, bit-exact and without flash attention, on the CPU.

    Args:
        drafters: Names with commas between.
        threads: CPU threads of the timed target.
        path: A GGUF file; None: the embedded model.

    Raises:
        FormatError, OSError: The file cannot be read.
        BackendError: llama.cpp cannot run the model.

    Cost: a second for the embedded model, in which the bit-exact setting is found and tested.
    """
    modes = (Mode(PLAIN, (), {}), *map(_mode, drafters))
    own = ModelSettings(path=path, placement=Placement(0))
    with contextlib.ExitStack() as stack:
        model, fitted = load_model(own, ContextSettings(context_size=CONTEXT_SIZE, threads=1))
        stack.enter_context(model)
        tested: LlamaTarget | None = None
        refusal = ""
        try:
            tested = stack.enter_context(open_target(own, model, fitted, exact=True)[0])
        except BackendError as error:
            refusal = str(error)
        context = ContextSettings(context_size=CONTEXT_SIZE, threads=threads, flash_attn=False)
        target, _ = open_target(own, model, replace(fitted, settings=context))
        timed = Bench(stack.enter_context(target), modes)
        checked = timed if tested is None else Bench(tested, modes)
        for bench in dict.fromkeys((checked, timed)):
            bench.warm_up(model.tokenize("a b c a b c a b c"), GREEDY)
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
) -> tuple[PromptResult, PromptResult] | None:
    """Run one task without drafts and with each drafter, interleaved; None if nothing is whole.

    Args:
        benches: The targets.
        task: What the model is asked.
        repeats: Timed runs of each.
        max_tokens: Longest answer.
        advance: Called after each run.
        first, stopped: As for run_in_turns.

    Returns:
        One run of each mode on the bit-exact target, and the timed runs.
    """
    (prompt,) = tokenize_tasks(benches.model, [task])

    def run(bench: Bench, rounds: int) -> PromptResult | None:
        outcomes = bench.run(
            prompt,
            max_tokens=max_tokens,
            repeats=rounds,
            sampling=GREEDY,
            advance=advance,
            first=first,
            stopped=stopped,
        )
        if not outcomes:
            return None
        text = benches.model.detokenize(outcomes[0].runs[0].token_ids)
        return PromptResult(task.name, int(prompt.size), text, outcomes)

    checked = None if benches.refusal else run(benches.exact, 1)
    timed = run(benches.timed, repeats)
    return None if timed is None else (checked or timed, timed)


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


def _mode(spec: str) -> Mode:
    names = parse_names(spec, "priority")
    params = {name: SETTINGS[name] for name in names if name in SETTINGS}
    policy = "fixed" if params.keys() == set(names) else "auto"  # they are for fixed lengths
    return Mode(spec, names, params, policy)

"""Replay recorded requests through this project's engine on llama.cpp, by slots.

    benchmarks/gpu/build_llama_cuda.sh 90                            # once: llama.cpp for CUDA
    LLAMA_CPP_LIB_PATH=build/llama-cuda/lib python benchmarks/gpu/llama_replay.py
    python benchmarks/gpu/llama_replay.py --small                    # on any machine

The model has random weights in Q8_0 and the sizes of an 8B Llama (random_model.py; written to
build/ the first time). llama.cpp computes every decode; which tokens it chose, and so which drafts
are right, comes from recorded texts. Modes take turns; each starts every round with a fresh engine
and keeps its policy; a first round warms up. Only steps in which all slots decode count, prompts
do not. Numbers of slots take turns by rounds, and results are saved after each; --minutes ends it
in time. Figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_trace import TraceTarget
from messages import say
from ngramspec import embedded_model
from ngramspec.engine import Engine, Request, Sampling
from ngramspec.errors import BackendError, InputError
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.placement import Placement
from ngramspec.llamacpp.settings import ContextSettings
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.text.tokenizers.llama_library import load_library
from replay_modes import Mode, parse_modes
from replay_rounds import Budget, Rounds, add_minutes, run_rounds, state_of
from replay_setup import RESULTS, ROOT, facts, save
from replay_texts import Text, load_texts, set_names

MODES = ("suffix:auto", "suffix:gate", "ngram-mod,ngram-cache:auto")
MODEL = ROOT / "build" / "gpu" / "random-8b-q8_0.gguf"
SIZES = {"layers": 32, "width": 4096, "feed-forward": 14336, "kv-heads": 16, "vocab": 128_256}
KEPT = ("sets", "prompt", "output", "requests", "rounds", "max_draft", "threads", "minutes")
Row = dict[str, Any]


@dataclass
class Run:
    """What one replay did in the steps that count; seconds: of them, in_decode: in llama.cpp."""

    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    seconds: float = 0.0
    drafting: float = 0.0
    in_decode: float = 0.0

    @property
    def rate(self) -> float:
        """Return tokens per second."""
        return self.emitted / self.seconds

    def add(self, before: tuple[float, ...], after: tuple[float, ...], seconds: float) -> None:
        """Count a step by the engine's counters."""
        grown = [b - a for a, b in zip(before, after, strict=True)]
        self.emitted += int(grown[0])
        self.drafted += int(grown[1])
        self.accepted += int(grown[2])
        self.drafting += grown[3]
        self.in_decode += grown[4]
        self.steps += 1
        self.seconds += seconds


def counters(engine: Engine) -> tuple[float, ...]:
    """Return what a Run counts, and last the prompt tokens."""
    s = engine.stats()
    return (
        *(s.num_emitted_tokens, s.num_draft_tokens, s.num_accepted_tokens),
        *(s.draft_seconds, s.decode_seconds, s.num_prompt_tokens),
    )


def replay(target: LlamaTarget, mode: Mode, policy: Any, texts: list[Text], most: int) -> Run:
    """Run the texts, in turns on the slots, until a slot has none left."""
    slots = target.num_sequences
    own = [[text.ids for text in texts[slot::slots]] for slot in range(slots)]
    traced = TraceTarget(target, own, slots * (1 + most))
    names = mode.names or None
    engine = Engine(traced, names, slots=slots, policy=policy, max_queue=len(texts))
    greedy = Sampling(temperature=0.0)
    generations = [
        engine.submit(
            Request(
                prompt_ids=text.ids[: text.num_prompt],
                max_tokens=len(text.ids) - text.num_prompt,
                sampling=greedy,
                cache_prompt=False,
                slot=index % slots,
            )
        )
        for index, text in enumerate(texts)
    ]
    last = generations[-slots:]
    run = Run()
    while not any(one.finish_reason for one in last):
        decoding = all(slot.state == "decode" for slot in engine.slots())
        before, started = counters(engine), time.perf_counter()
        engine.step()
        seconds, after = time.perf_counter() - started, counters(engine)
        if decoding and before[-1] == after[-1]:
            run.add(before, after, seconds)
    engine.close()
    errors = [one.error for one in generations if one.error is not None]
    if errors:
        raise errors[0]
    return run


class Slots:
    """So many slots of a context, the texts, and a policy per mode, which goes on learning.

    A group for run_rounds. once: nothing that is done, is done once.
    """

    once = 0.0

    def __init__(
        self, target: LlamaTarget, texts: list[Text], modes: list[Mode], max_draft: int
    ) -> None:
        self.count = target.num_sequences
        self.name = f"{self.count} slots"
        self._target, self._texts, self._modes = target, texts, modes
        self._max_draft = max_draft
        self._policies: dict[Mode, Any] = {}
        self.restart()

    def restart(self) -> None:
        """Make fresh policies."""
        self._policies = {mode: mode.make_policy(self._max_draft) for mode in self._modes}

    def run(self, mode: Mode) -> Run:
        """Replay the texts."""
        run = replay(self._target, mode, self._policies[mode], self._texts, self._max_draft)
        say(f"{self.name}: {mode.name} {run.rate:.0f} tokens/s")
        return run


def rows_of(rounds: Rounds[Mode, Run], modes: list[Mode], slots: int) -> list[Row]:
    """Return the figures of a number of slots, none before its first round."""
    if not rounds.done:
        return []
    plain = rounds.of(modes[0])
    rows = [row_of(mode, rounds.of(mode), plain, slots) for mode in modes]
    return [{**row, "warm_up_only": rounds.warm_up_only} for row in rows]


def row_of(mode: Mode, runs: list[Run], plain: list[Run], slots: int) -> Row:
    """Return the figures of a mode."""

    def total(name: str) -> float:
        return sum(getattr(run, name) for run in runs)

    ratios = [run.rate / other.rate for run, other in zip(runs, plain, strict=True)]
    return {
        "slots": slots,
        "mode": mode.name,
        "tokens_per_second": statistics.median(run.rate for run in runs),
        "tokens_per_second_of_rounds": [run.rate for run in runs],
        "ratio_to_none": statistics.median(ratios),
        "ratio_of_rounds": ratios,
        "mean_accepted_length": total("emitted") / (slots * total("steps")),
        "drafted_per_slot_step": total("drafted") / (slots * total("steps")),
        "accepted_of_drafted": total("accepted") / total("drafted") if total("drafted") else None,
        "step_ms": 1e3 * total("seconds") / total("steps"),
        "decode_ms": 1e3 * total("in_decode") / total("steps"),
        "drafting_us_per_step": 1e6 * total("drafting") / total("steps"),
        "drafting_share_of_time": total("drafting") / total("seconds"),
        "steps": int(total("steps")),
        "tokens": int(total("emitted")),
    }


def show(rows: list[Row]) -> None:
    """Print figures as a table."""
    print(
        f"{'slots':>5} {'mode':<28} {'tokens/s':>9} {'ratio':>6} {'low':>6} {'high':>6} "
        f"{'mean':>6} {'step ms':>8} {'decode':>8} {'draft us':>9} {'share':>7}"
    )
    for row in rows:
        low, high = min(row["ratio_of_rounds"]), max(row["ratio_of_rounds"])
        print(
            f"{row['slots']:>5} {row['mode']:<28} {row['tokens_per_second']:>9.0f} "
            f"{row['ratio_to_none']:>6.2f} {low:>6.2f} {high:>6.2f} "
            f"{row['mean_accepted_length']:>6.2f} {row['step_ms']:>8.2f} {row['decode_ms']:>8.2f} "
            f"{row['drafting_us_per_step']:>9.1f} {row['drafting_share_of_time']:>7.2%}"
            f"{' warm-up only' if row['warm_up_only'] else ''}",
            flush=True,
        )


def random_model(path: Path) -> Path:
    """Write the large model unless it is there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        script = ROOT / "benchmarks" / "random_model.py"
        sizes = [text for name, value in SIZES.items() for text in (f"--{name}", str(value))]
        subprocess.run([sys.executable, str(script), str(part), "--tiled", *sizes], check=True)
        part.replace(path)
    return path


def parse() -> argparse.Namespace:
    """Return the options, with the defaults of their size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="the embedded model")
    parser.add_argument("--model", type=Path, help="another GGUF file")
    parser.add_argument("--slots", type=int, nargs="+", help="1 2 4 8 16; small: 1 2")
    parser.add_argument("--modes", nargs="+", default=list(MODES), help="DRAFTER:POLICY")
    parser.add_argument("--sets", nargs="+", default=set_names(), help="recorded sets (all)")
    parser.add_argument("--requests", type=int, help="per number of slots (12 or 3 per slot)")
    parser.add_argument("--prompt", type=int, help="last tokens of prompts (2048; small: 64)")
    parser.add_argument("--output", type=int, help="first tokens of outputs (128; small: 24)")
    parser.add_argument("--rounds", type=int, help="runs of each mode after one to warm up (3)")
    parser.add_argument("--max-draft", type=int, default=32, help="longest draft (32)")
    parser.add_argument("--cpu", action="store_true", help="no layers on a GPU")
    parser.add_argument("--threads", type=int, help="of the CPU (one per core)")
    add_minutes(parser)
    parser.add_argument("--json", type=Path, help="where results go")
    options = parser.parse_args()
    usual = {"prompt": 64, "output": 24, "rounds": 1, "slots": [1, 2], "requests": 2}
    if not options.small:
        usual = {"prompt": 2048, "output": 128, "rounds": 3, "slots": [1, 2, 4, 8, 16]}
        usual["requests"] = 12
    for name, value in usual.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    low = {"prompt": 1, "output": 4, "rounds": 1, "max_draft": 1, "requests": 1}
    for name, least in low.items():
        if getattr(options, name) < least:
            parser.error(f"--{name.replace('_', '-')} must be {least} or more")
    if min(options.slots) < 1:
        parser.error("--slots must be 1 or more")
    return options


def settings_of(slots: int, options: argparse.Namespace) -> ContextSettings:
    """Return the settings of a context for so many slots: all drafts are computed at once."""
    outputs = slots * (1 + options.max_draft)
    return ContextSettings(
        slots=slots,
        context_size=options.prompt + options.output + options.max_draft + 64,
        max_outputs=outputs,
        n_batch=max(2048, outputs),
        n_ubatch=max(512, outputs),
        threads=options.threads,
    )


def open_targets(
    model: LlamaModel, options: argparse.Namespace, stack: ExitStack
) -> list[LlamaTarget]:
    """Return a context for each number of slots; say which cannot be made, and why."""
    targets = []
    for slots in options.slots:
        try:
            target = LlamaTarget(model, settings_of(slots, options))
        except BackendError as error:
            say(f"{slots} slots are left out: {error}")
            continue
        targets.append(stack.enter_context(target))
    if not targets:
        raise SystemExit("no number of slots fits: try fewer --slots or a shorter --prompt")
    return targets


def texts_for(options: argparse.Namespace, slots: int) -> list[Text]:
    """Return as many texts for every slot."""
    count = -(-max(options.requests, 1 if options.small else 3 * slots) // slots) * slots
    return load_texts(options.sets, count, options.prompt, options.output)


def check_gpu() -> None:
    """Look for a GPU, before a large model is written for one.

    Raises:
        SystemExit: llama.cpp has none to use, or is not installed.
    """
    try:
        lib = load_library().lib
    except BackendError as error:
        raise SystemExit(str(error)) from None
    if not lib.llama_supports_gpu_offload():
        raise SystemExit(
            "llama.cpp finds no GPU: build it with build_llama_cuda.sh and name its folder in "
            "LLAMA_CPP_LIB_PATH, or run with --cpu or --small"
        )


def main() -> None:
    """Measure, save after each round, print."""
    options = parse()
    budget = Budget(options.minutes)
    path = options.json or (None if options.small else RESULTS / "llama_replay.json")
    try:
        modes = parse_modes(options.modes)
        if any(mode.tree_width for mode in modes):
            raise InputError("trees: only in transformers_replay.py and profile_steps.py")
        texts = {slots: texts_for(options, slots) for slots in options.slots}
    except InputError as error:
        raise SystemExit(str(error)) from None
    if not (options.cpu or options.small):
        check_gpu()
    file = options.model or (embedded_model() if options.small else random_model(MODEL))
    with LlamaModel(file, placement=Placement(0 if options.cpu else -1)) as model, ExitStack() as s:
        lib = model.library.lib
        on_gpu = bool(lib.llama_supports_gpu_offload()) and not options.cpu
        where = "on the GPU" if on_gpu else "on the CPU: its figures say nothing of GPUs"
        print(f"{model.description}, {model.num_params / 1e6:.0f} M weights, {where}", flush=True)
        setup = facts("llama-cpp-python", "numpy")
        setup |= {"system_info": lib.llama_print_system_info().decode(), "on_gpu": on_gpu}
        setup |= {"model": model.description, "file": file.name, "parameters": model.num_params}
        setup |= {k: getattr(options, k) for k in KEPT}
        body: Row = {"what": "replay", "setup": setup}
        groups = []
        for target in open_targets(model, options, s):
            own = [
                Text(text.ids % model.vocab_size, text.num_prompt)
                for text in texts[target.num_sequences]
            ]
            groups.append(Slots(target, own, modes, options.max_draft))

        def keep(series: Sequence[Rounds[Mode, Run]]) -> None:
            body.update(state_of(series, options.rounds))
            each = zip(series, groups, strict=True)
            body["rows"] = [row for one, group in each for row in rows_of(one, modes, group.count)]
            if path:
                save(body, path)

        run_rounds(groups, modes, options.rounds, budget, keep)
    show(body["rows"])
    if path:
        print(f"saved {path}")


if __name__ == "__main__":
    main()

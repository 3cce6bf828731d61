"""Real models on real work: no drafts, our drafters and other programs' beside each other.

    python benchmarks/real_models.py model.gguf --llama-server PROGRAM
    python benchmarks/real_models.py a.gguf b.gguf -t 1,2 --temperature 0,0.3,0.8 --json OUT
    python benchmarks/real_models.py model.gguf --only none,suffix --kinds edit,chat --prompts 6

Eight kinds of work, chats of data/prompts.jsonl; answers end at their end token, or at --n-predict.
Programs: `ngramspec serve` without drafts, with its default and with each other drafter;
llama-server (PROGRAM) without drafts and with its n-gram drafters; llama_cpp.server's and
transformers' prompt lookup, where these are installed.

All run at the same time, one works: a prompt goes to one, then to the next; who comes first
rotates. In every round they start anew, so what a drafter knows is of this round. A figure is the
tokens of an answer by the seconds from its first token to its last, over that of the same prompt
without drafts (transformers: its own; all others: ours). Pairs in which other programs took part of
the machine are left out and counted; for kinds with such pairs there are further rounds, as many
again at most. Shown are medians over prompts and rounds, for the first drafter with the interval
that holds it at 95 % (bootstrap), and the geometric mean over kinds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import itertools
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from serving_client import Answer, send
from serving_machine import Cores, Usage, share, usable
from serving_report import table
from serving_servers import (
    Ask,
    LlamaCppPython,
    LlamaServer,
    Ours,
    Server,
    Settings,
    Transformers,
    running,
)
from serving_statistics import QUIET, Ratio, ratio
from serving_workloads import Prompt, real

OURS = (
    "none",
    "suffix",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
)
THEIRS = ("none", "ngram-simple", "ngram-map-k", "ngram-mod", "ngram-cache")
LOOKUP = "10"  # tokens that transformers' prompt lookup drafts, the value of its documentation
WARM_UP = Prompt("", [{"role": "user", "content": "Say hello."}])


@dataclass(frozen=True)
class Program:
    """A server with a drafter; its rates are divided by those of `base`."""

    server: Server
    spec: str
    base: str

    @property
    def name(self) -> str:
        """Return what tables call it."""
        return self.spec if isinstance(self.server, Ours) else f"{self.server.name} {self.spec}"


@dataclass(frozen=True)
class Cell:
    """A rate of one prompt, in tokens per second. others: cores that other programs used."""

    program: str
    kind: str
    prompt: int
    turn: int
    rate: float
    tokens: int
    drafted: int | None
    accepted: int | None
    others: float


@dataclass
class Setting:
    """What one table is of, and its cells."""

    model: Path
    threads: int
    temperature: float
    cells: list[Cell] = field(default_factory=list)

    def pairs(self, program: str, base: str, kind: str) -> list[tuple[Cell, Cell]]:
        """Return the cells of a program and of its base, by prompt and round."""
        own, bases = (
            {(c.prompt, c.turn): c for c in self.cells if (c.program, c.kind) == (name, kind)}
            for name in (program, base)
        )
        both = [(own[key], bases[key]) for key in own if key in bases]
        return [(a, b) for a, b in both if a.rate and b.rate]

    def ratio(self, program: str, base: str, kind: str) -> Ratio:
        """Return how many times as fast as its base a program is."""
        pairs = self.pairs(program, base, kind)
        quiet = [max(a.others, b.others) <= QUIET for a, b in pairs]
        return ratio([a.rate for a, _ in pairs], [b.rate for _, b in pairs], quiet)

    def disturbed(self, programs: Sequence[Program], kind: str) -> bool:
        """Return whether a pair of a kind was disturbed."""
        ratios = (self.ratio(one.name, one.base, kind) for one in programs)
        return any(one.used < one.pairs for one in ratios)


def measure(
    setting: Setting,
    programs: Sequence[Program],
    kinds: dict[str, list[Prompt]],
    turn: int,
    arguments: argparse.Namespace,
    cores: Cores,
    progress: Progress,
) -> None:
    """Start all programs and send them all prompts of these kinds.

    Raises:
        RuntimeError: A program did not start, or refused a prompt.
    """
    template = f"--chat-template {arguments.chat_template}" if arguments.chat_template else ""
    more = dict.fromkeys((Ours.name, LlamaServer.name), template)
    settings = Settings(setting.model, 1, setting.threads, arguments.context, 512, "", more, cores)
    total = sum(map(len, kinds.values()))
    what = f"{setting.model.stem}, -t {setting.threads}, {setting.temperature:g}, round {turn + 1}"
    task = progress.add_task(what, total=total * len(programs))
    with contextlib.ExitStack() as stack:
        started = [
            (one, stack.enter_context(running(one.server, settings, one.spec))) for one in programs
        ]
        for one, process in started:
            answer(one, process, WARM_UP, Ask(8, False, True, True))
        every = [(kind, i) for kind, prompts in kinds.items() for i in range(len(prompts))]
        for at, (kind, i) in enumerate(every):
            seed = arguments.seed + turn
            ask = Ask(arguments.n_predict, False, True, True, setting.temperature, seed)
            first = at % len(started)
            for one, process in started[first:] + started[:first]:
                time.sleep(0.02)  # threads of the last one stop waiting for work
                used = Usage(process.popen.pid)
                reply = answer(one, process, kinds[kind][i], ask)
                setting.cells.append(
                    Cell(one.name, kind, i, turn, reply.tokens_per_second, reply.tokens,
                         reply.drafted, reply.accepted, used.cores()["others"])
                )  # fmt: skip
                progress.advance(task)
    progress.remove_task(task)


def answer(program: Program, process: Any, prompt: Prompt, ask: Ask) -> Answer:
    """Send one prompt."""
    server = program.server
    cell = asyncio.run(send(process.port, [server.request(prompt, ask)], 1, server.read))
    return cell.answers[0]


def lines(setting: Setting, programs: Sequence[Program]) -> list[str]:
    """Return the tables of a setting: ratios by kind, and the first drafter's intervals."""
    kinds = list(dict.fromkeys(cell.kind for cell in setting.cells))
    rows, used, pairs = [], 0, 0
    for one in programs:
        if one.name == one.base:
            continue
        ratios = [setting.ratio(one.name, one.base, kind) for kind in kinds]
        used, pairs = used + sum(r.used for r in ratios), pairs + sum(r.pairs for r in ratios)
        medians = [r.median for r in ratios if r.used]
        mean = f"{statistics.geometric_mean(medians):.2f}" if medians else "?"
        rows.append([one.name, *(f"{r.median:.2f}" if r.used else "?" for r in ratios), mean])
    title = f"## {setting.model.stem}, -t {setting.threads}, temperature {setting.temperature:g}"
    text = [title, "", *table(["drafts", *kinds, "all"], rows), ""]
    for one in programs:
        if one.name != one.base:
            parts = [f"{kind} {setting.ratio(one.name, one.base, kind)}" for kind in kinds]
            text += [f"{one.name}: {', '.join(parts)}.", ""]
            break
    bases = [c.rate for c in setting.cells if c.program == "none" and c.rate]
    if bases:
        text.append(f"Without drafts: {statistics.median(bases):.1f} tokens/s in the median.")
    text.append(f"{used} of {pairs} pairs were quiet (others on at most {QUIET} cores).")
    return text


def available(arguments: argparse.Namespace, console: Console) -> list[Program]:
    """Return the programs that there are; say which are left out and why."""
    programs = [Program(Ours(), spec, "none") for spec in OURS]
    if arguments.llama_server:
        programs += [Program(LlamaServer(arguments.llama_server), spec, "none") for spec in THEIRS]
    else:
        console.print("llama-server is left out: give its path with --llama-server")
    if importlib.util.find_spec("sse_starlette"):
        programs.append(Program(LlamaCppPython(), "prompt-lookup", "none"))
    else:
        console.print('llama_cpp.server is left out: pip install "llama-cpp-python[server]"')
    if all(map(importlib.util.find_spec, ("transformers", "gguf", "accelerate"))):
        hf = [Program(Transformers(), spec, "transformers none") for spec in ("none", LOOKUP)]
        programs += hf
    else:
        console.print("transformers is left out: pip install transformers gguf accelerate torch")
    if arguments.only:
        names = {
            base for one in programs if one.name in arguments.only for base in (one.name, one.base)
        }
        programs = [one for one in programs if one.name in names]
    return programs


def parse() -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("models", type=Path, nargs="+", metavar="MODEL", help="GGUF files")
    add("--llama-server", metavar="PROGRAM", help="llama.cpp's server")
    add("-t", "--threads", type=_list(int), default=[1], help="e.g. 1,2 (1)")
    add("--temperature", type=_list(float), default=[0.0], help="e.g. 0,0.3,0.8 (0)")
    add("--only", type=_list(str), metavar="LIST", help="only these rows of the table")
    add("--kinds", type=_list(str), metavar="LIST", help="only these kinds of work")
    add("--prompts", type=int, default=3, help="of each kind, 6 at most (3)")
    add("--n-predict", type=int, default=192, help="most tokens of an answer (192)")
    add("--rounds", type=int, default=2, help="(2)")
    add("-c", "--context", type=int, default=2048, help="tokens (2048)")
    add("--seed", type=int, default=1)
    add("--chat-template", metavar="NAME", help="of a base model, which has none: chatml")
    add("--json", type=Path, metavar="FILE", help="write every cell")
    arguments = parser.parse_args()
    arguments.kinds = arguments.kinds or list(real(1))
    if unknown := set(arguments.kinds) - set(real(1)):
        parser.error(f"no such kinds: {', '.join(sorted(unknown))}; there are {', '.join(real(1))}")
    return arguments


def _list(kind: type) -> Any:
    return lambda text: [kind(one) for one in text.split(",")]


def main() -> None:
    """Measure and print; when interrupted, print what there is."""
    arguments = parse()
    console = Console(stderr=True, soft_wrap=True, markup=False)
    programs = available(arguments, console)
    kinds = {kind: real(arguments.prompts)[kind] for kind in arguments.kinds}
    every = itertools.product(arguments.models, arguments.threads, arguments.temperature)
    settings = [Setting(*one) for one in every]
    every_core = usable()  # before this process keeps to some of them
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    code: int | str = 0
    try:
        with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
            for setting in settings:
                cores = share(setting.threads, every_core)
                cores.keep_client()
                for turn in range(2 * arguments.rounds):
                    again = turn >= arguments.rounds
                    some = {
                        kind: prompts
                        for kind, prompts in kinds.items()
                        if not again or setting.disturbed(programs, kind)
                    }
                    if some:
                        measure(setting, programs, some, turn, arguments, cores, progress)
                print("\n".join([*lines(setting, programs), ""]), flush=True)
    except RuntimeError as error:
        code = str(error)
    except KeyboardInterrupt:
        print("\n".join([*lines(setting, programs), "", "interrupted"]))
        code = 130
    if arguments.json:
        body = {"arguments": vars(arguments), "settings": [asdict(one) for one in settings]}
        arguments.json.write_text(json.dumps(body, indent=1, default=str))
    sys.exit(code)


if __name__ == "__main__":
    main()

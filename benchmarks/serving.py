"""Serving many requests at once: `ngramspec serve` beside other servers, in the same run.

    python benchmarks/serving.py --llama-server PROGRAM
    python benchmarks/serving.py --llama-server PROGRAM --model big.gguf --workload fresh \\
        --concurrency 1,4 --requests 8 --n-predict 48
    python benchmarks/serving.py --spec-type none,ngram-mod,ngram-mod+ngram-cache --stream \\
        --spec-args "--spec-ngram-mod-n-match 12 --spec-ngram-mod-n-min 8"

Servers: ours; llama.cpp's llama-server (PROGRAM, of the version that the installed llama-cpp-python
has), with ngram-mod where ours has `suffix`; and llama_cpp.server of llama-cpp-python, which serves
one request at a time and drafts by prompt lookup, whatever the type. All get the same model, slots,
threads, context and prompts, at temperature 0.

All run at the same time, but only one works: a block of a few requests goes to one server, the same
block to the next, and so on; who comes first rotates. So what disturbs the machine disturbs all of
them alike. In every round they start anew; no prompt comes twice in a round. Servers and the client
keep to set cores.

Workloads: `fresh` prompts are random words and the answer goes on to --n-predict tokens (on
llama_cpp.server it may end earlier); a small model soon repeats itself there, one by
random_model.py does not. `copy` prompts ask for code to be repeated or renamed, answers end by
themselves. Tokens are counted by the servers, which must agree on those of every prompt.

Figures: tokens per second of all requests together, the median of the blocks; the median of the
ratios within pairs of blocks, and the interval that holds it at 95 % (bootstrap); time of a request
and, with --stream, to its first text; drafts; how many texts equal those of the first server with
the first type; peak memory. A pair of blocks is left out of the ratios when other programs took
part of the machine meanwhile. The last line says whether enough are left, or that it cannot tell.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import itertools
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import serving_workloads as workloads
from ngramspec import embedded_model
from serving_client import Cell, send
from serving_machine import Cores, Usage, peak_mb, share, usable
from serving_report import Key, Report, Results, usage
from serving_servers import Ask, LlamaCppPython, LlamaServer, Ours, Process, Server, Settings
from serving_servers import running as running_server
from serving_statistics import verdict

NAMES = ("ngramspec", "llama-server", "llama_cpp.server")
WARM_UP_TOKENS = 8
SETTLE = 0.02  # seconds between blocks: threads of the last server stop waiting for work


@dataclass
class Plan:
    """What is run, and the prompt tokens seen so far by workload, round and prompt."""

    arguments: argparse.Namespace
    settings: Settings
    servers: list[Server]
    prompt_tokens: dict[tuple[str, int, int], int] = field(default_factory=dict)

    def processes(self) -> list[tuple[Server, str]]:
        """Return each process of a round with the spec type that starts it."""
        processes = {
            (server.name, server.variant(spec)): (server, spec)
            for spec in self.arguments.spec_types
            for server in self.servers
        }
        return list(processes.values())

    def prompts(self, workload: str, turn: int) -> Iterator[workloads.Prompt]:
        """Return the prompts of a round, the same for every process."""
        seed = self.arguments.seed * 1000 + turn
        if workload == "fresh":
            return workloads.fresh(seed, self.arguments.prompt_words)
        return workloads.copy(seed, self.arguments.corpus)

    def ask(self, workload: str) -> Ask:
        """Return how requests of a workload are sent."""
        arguments = self.arguments
        return Ask(arguments.n_predict, workload == "fresh", arguments.stream, arguments.chat)


class Runner:
    """One process of a round, under its loads."""

    def __init__(self, plan: Plan, server: Server, spec: str, process: Process) -> None:
        self.server, self.spec, self.process = server, spec, process
        self._plan = plan

    def measure(
        self, at: tuple[str, int], first: int, prompts: Sequence[workloads.Prompt], load: Load
    ) -> Cell:
        """Send prompts, of which the first is so many after the round's first.

        Raises:
            RuntimeError: Another server counted other prompt tokens.
        """
        time.sleep(SETTLE)
        requests = [self.server.request(prompt, load.ask) for prompt in prompts]
        used = Usage(self.process.popen.pid)
        cell = asyncio.run(send(self.process.port, requests, load.clients, self.server.read))
        cell.cores = used.cores()
        for i, answer in enumerate(cell.answers, first):
            if answer.prompt_tokens is None:
                continue
            tokens = self._plan.prompt_tokens.setdefault((*at, i), answer.prompt_tokens)
            if tokens != answer.prompt_tokens:
                raise RuntimeError(
                    f"prompt {i} has {answer.prompt_tokens} tokens, {tokens} on another server"
                )
        return cell


@dataclass
class Load:
    """How a block is sent."""

    clients: int
    ask: Ask


@dataclass
class Round:
    """All processes of a round. taken: prompts sent so far, the same to everyone."""

    runners: list[Runner]
    at: tuple[str, int]
    prompts: Iterator[workloads.Prompt]
    taken: int = 0

    def block(self, count: int, load: Load, turn: int) -> Iterator[tuple[Runner, Cell]]:
        """Send the next prompts to one process after the other; yield what each made of them.

        Raises:
            RuntimeError: There are no prompts left, or servers disagree.
        """
        prompts = list(itertools.islice(self.prompts, count))
        if len(prompts) < count:
            raise RuntimeError("no prompts left: fewer --requests, or a larger --corpus")
        turn %= len(self.runners)
        for runner in self.runners[turn:] + self.runners[:turn]:
            yield runner, runner.measure(self.at, self.taken, prompts, load)
        self.taken += count


def run(plan: Plan, results: Results, progress: Progress) -> None:
    """Run all rounds and note what they give."""
    arguments = plan.arguments
    per_round = sum(blocks_of(arguments, clients) for clients in arguments.concurrency)
    task = progress.add_task("", total=per_round * len(arguments.workloads) * arguments.rounds)
    for turn, workload in itertools.product(range(arguments.rounds), arguments.workloads):
        progress.update(task, description=f"{workload}, round {turn + 1}")
        with contextlib.ExitStack() as running:
            runners = [
                Runner(plan, server, spec, running.enter_context(start(server, plan, spec)))
                for server, spec in plan.processes()
            ]
            one = Round(runners, (workload, turn), plan.prompts(workload, turn))
            ask, slots = plan.ask(workload), plan.settings.slots
            warm_up = Load(slots, replace(ask, n_predict=WARM_UP_TOKENS, stream=False))
            for _ in one.block(slots, warm_up, turn):
                pass
            for clients in arguments.concurrency:
                for i in range(blocks_of(arguments, clients)):
                    cells = list(one.block(clients * arguments.block, Load(clients, ask), turn + i))
                    for runner, cell in cells:
                        variant = runner.server.variant(runner.spec)
                        results.add(Key(workload, runner.server.name, variant, clients), cell)
                    progress.advance(task)
            for runner in runners:
                variant = runner.server.variant(runner.spec)
                peaks = results.peaks.setdefault((workload, runner.server.name, variant), [])
                peaks.append(peak_mb(runner.process.popen.pid))
        results.rounds[workload] = turn + 1


def start(server: Server, plan: Plan, spec: str) -> contextlib.AbstractContextManager[Process]:
    """Return the running server, to be entered."""
    return running_server(server, plan.settings, spec)


def blocks_of(arguments: argparse.Namespace, clients: int) -> int:
    """Return how many blocks with so many clients a round has."""
    blocks: float = arguments.requests / (clients * arguments.block)
    return max(1, round(blocks))


def available(arguments: argparse.Namespace, console: Console) -> list[Server]:
    """Return the wanted servers that there are; say which are left out and why."""
    servers: list[Server] = []
    for name in arguments.servers:
        if name == "ngramspec":
            servers.append(Ours())
        elif name == "llama-server" and arguments.llama_server:
            servers.append(LlamaServer(arguments.llama_server))
        elif name == "llama-server":
            console.print("llama-server is left out: give its path with --llama-server")
        elif importlib.util.find_spec("sse_starlette"):
            servers.append(LlamaCppPython())
        else:
            console.print('llama_cpp.server is left out: pip install "llama-cpp-python[server]"')
    return servers


def numbers(text: str) -> list[int]:
    """Read 1,2,4."""
    return [int(one) for one in text.split(",")]


def names(allowed: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Return a reader of lists of these names."""

    def read(text: str) -> list[str]:
        chosen = text.split(",")
        if not set(chosen) <= set(allowed):
            raise argparse.ArgumentTypeError(f"choose from {', '.join(allowed)}")
        return chosen

    return read


def parse() -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("-m", "--model", type=Path, help="a GGUF file (the embedded model)")
    add("--llama-server", metavar="PROGRAM", help="llama.cpp's server")
    add("--servers", type=names(NAMES), default=list(NAMES), help="only these, the first compared")
    add("--workload", type=names(("fresh", "copy")), dest="workloads", default=["fresh", "copy"])
    add("--spec-type", default="none,ngram-mod", help="types; + makes a chain (none,ngram-mod)")
    add("--concurrency", type=numbers, default=[1, 2, 4, 8], help="clients (1,2,4,8)")
    add("--requests", type=int, default=32, help="of each number of clients and round (32)")
    add("--block", type=int, default=2, help="requests per client before the next server (2)")
    add("--n-predict", type=int, default=128, help="most tokens of an answer (128)")
    add("--rounds", type=int, default=3, help="(3)")
    add("-np", "--slots", type=int, default=4, help="slots of a server (4)")
    add("-t", "--threads", type=int, default=2, help="threads of a server (2)")
    add("--server-cores", type=numbers, help="e.g. 0,1 (all but the last, or all for --threads)")
    add("--client-cores", type=numbers, help="e.g. 1 (the last)")
    add("-c", "--context", type=int, default=2048, help="tokens per slot (2048)")
    add("-b", "--batch", type=int, default=2048, help="tokens per batch (2048)")
    add("--stream", action="store_true", help="stream the answers")
    add("--chat", action="store_true", help="send messages to /v1/chat/completions")
    add("--corpus", type=Path, default=workloads.CORPUS, help="code to copy")
    add("--prompt-words", type=int, default=32, help="words of a fresh prompt (32)")
    add("--spec-args", default="", help="more arguments for ours and llama-server with drafts")
    add("--args", action="append", default=[], metavar="SERVER=ARGUMENTS", help="for one server")
    add("--seed", type=int, default=1)
    add("--json", type=Path, metavar="FILE", help="write every cell and answer")
    arguments = parser.parse_args()
    arguments.spec_types = [spec.replace("+", ",") for spec in arguments.spec_type.split(",")]
    unknown = {*(arguments.server_cores or ()), *(arguments.client_cores or ())} - usable()
    if unknown:
        parser.error(f"no such cores: {sorted(unknown)}; there are {sorted(usable())}")
    return arguments


def settings(arguments: argparse.Namespace) -> Settings:
    """Return what servers are started with."""
    cores = share(arguments.threads)
    return Settings(
        model=arguments.model or embedded_model(),
        slots=arguments.slots,
        threads=arguments.threads,
        context=arguments.context,
        batch=arguments.batch,
        spec_arguments=arguments.spec_args,
        arguments=dict(one.split("=", 1) for one in arguments.args),
        cores=Cores(
            servers=frozenset(arguments.server_cores or cores.servers),
            client=frozenset(arguments.client_cores or cores.client),
        ),
    )


def interrupt(*_: object) -> None:
    """End as Ctrl-C does, so that servers are ended as well."""
    raise KeyboardInterrupt


def report(plan: Plan, results: Results) -> None:
    """Print the tables of the blocks that are complete; the last line says what they are worth."""
    arguments = plan.arguments
    results.drop_incomplete()
    ratios = []
    for workload, rounds in results.rounds.items():
        summary = Report(
            results, workload, plan.servers, arguments.spec_types, arguments.concurrency
        )
        print("\n".join([*summary.lines(arguments.stream), "", f"Rounds: {rounds}.", ""]))
        ratios += summary.ratios()
    if results.cells:
        print(f"{usage(results)} {plan.settings.cores}.")
    if arguments.json:
        facts = {"arguments": vars(arguments), **results.as_json()}
        arguments.json.write_text(json.dumps(facts, indent=1, default=str))
    if ratios:
        print(verdict(ratios))


def main() -> None:
    """Parse the arguments, measure, print; when interrupted, print the complete blocks."""
    arguments = parse()
    signal.signal(signal.SIGTERM, interrupt)
    console = Console(stderr=True, soft_wrap=True, markup=False)
    plan, results = Plan(arguments, settings(arguments), available(arguments, console)), Results()
    plan.settings.cores.keep_client()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    code: int | str = 0
    try:
        with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
            run(plan, results, progress)
    except RuntimeError as error:
        code = str(error)
    except KeyboardInterrupt:
        console.print("interrupted")
        code = 130
    report(plan, results)
    sys.exit(code)


if __name__ == "__main__":
    main()

"""Serving many requests at once: `ngramspec serve` beside other servers, in the same run.

    python benchmarks/serving.py --llama-server PROGRAM
    python benchmarks/serving.py --llama-server PROGRAM --model big.gguf --workload fresh \\
        --concurrency 1,4 --requests 8 --n-predict 48
    python benchmarks/serving.py --spec-type none,ngram-mod,ngram-mod+ngram-cache --stream \\
        --spec-args "--spec-ngram-mod-n-match 12 --spec-ngram-mod-n-min 8"

Servers: ours; llama.cpp's llama-server (PROGRAM, of the version that the installed llama-cpp-python
has), with ngram-mod where ours has `suffix`; and llama_cpp.server of llama-cpp-python, which serves
one request at a time and drafts by prompt lookup, whatever the type. All get the same model, slots,
threads, context and prompts, at temperature 0, and run one after another. Servers take turns in
every round and start anew each time, so that nobody has seen a prompt before; no prompt comes
twice in a round.

Workloads: `fresh` prompts are random words and the answer goes on to --n-predict tokens (on
llama_cpp.server it may end earlier); a small model soon repeats itself there, one by
random_model.py does not. `copy` prompts ask for code to be repeated or renamed, answers end by
themselves. Tokens are counted by the servers, which must agree on those of every prompt.

Figures: tokens per second of all requests together, the median of the rounds, and the median of
the ratios within rounds; time of a request and, with --stream, to its first text; drafts; how many
texts equal those of the first server with the first type; peak memory. Client and servers share
the machine; at the end stands what the client and all other programs used of it. Threads of a
server wait for one another: where others take a core, its figures fall to a fraction. Repeat then.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import json
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import serving_workloads as workloads
from ngramspec import embedded_model
from serving_client import Cell, Request, load
from serving_machine import Usage, peak_mb
from serving_report import Key, Report, Results, usage
from serving_servers import Ask, LlamaCppPython, LlamaServer, Ours, Process, Server, Settings
from serving_servers import running as running_server

NAMES = ("ngramspec", "llama-server", "llama_cpp.server")
WARM_UP_TOKENS = 8


@dataclass
class Plan:
    """What is run, and the prompt tokens seen so far by workload, round and prompt."""

    arguments: argparse.Namespace
    settings: Settings
    servers: list[Server]
    prompt_tokens: dict[tuple[str, int, int], int] = field(default_factory=dict)

    def processes(self, turn: int) -> list[tuple[Server, str]]:
        """Return each process of a round with the spec type that starts it; the order rotates."""
        made = {
            (server.name, server.variant(spec)): (server, spec)
            for spec in self.arguments.spec_types
            for server in self.servers
        }
        order = list(made.values())
        turn %= len(order)
        return order[turn:] + order[:turn]

    def prompts(self, workload: str, turn: int) -> Iterator[workloads.Prompt]:
        """Return the prompts of a round, the same for every process."""
        seed = self.arguments.seed * 1000 + turn
        if workload == "fresh":
            return workloads.fresh(seed, self.arguments.prompt_words)
        return workloads.copy(seed, self.arguments.corpus)

    def ask(self, workload: str) -> Ask:
        """Return how requests of a workload are sent."""
        given = self.arguments
        return Ask(given.n_predict, workload == "fresh", given.stream, given.chat)


class Round:
    """One process under its loads."""

    def __init__(self, plan: Plan, server: Server, process: Process, at: tuple[str, int]) -> None:
        self._plan, self._server, self._process, self._at = plan, server, process, at
        self._prompts = plan.prompts(*at)
        self._sent = 0

    def requests(self, count: int, ask: Ask) -> list[Request]:
        """Return the next requests.

        Raises:
            RuntimeError: There are no prompts left.
        """
        prompts = list(itertools.islice(self._prompts, count))
        if len(prompts) < count:
            raise RuntimeError("no prompts left: fewer --requests, or a larger --corpus")
        return [self._server.request(prompt, ask) for prompt in prompts]

    def measure(self, count: int, clients: int, ask: Ask) -> Cell:
        """Send the next prompts with so many clients.

        Raises:
            RuntimeError: Another server counted other prompt tokens.
        """
        requests = self.requests(count, ask)
        used = Usage(self._process.popen.pid)
        cell = asyncio.run(load(self._process.port, requests, clients, self._server.read))
        cell.cores = used.cores()
        for i, answer in enumerate(cell.answers, self._sent):
            if answer.prompt_tokens is None:
                continue
            known = self._plan.prompt_tokens.setdefault((*self._at, i), answer.prompt_tokens)
            if known != answer.prompt_tokens:
                raise RuntimeError(
                    f"prompt {i} has {answer.prompt_tokens} tokens, {known} on another server"
                )
        self._sent += count
        return cell


def run(plan: Plan, results: Results, progress: Progress) -> None:
    """Run all rounds and note what they give."""
    given = plan.arguments
    processes = len(plan.processes(0)) * len(given.workloads) * given.rounds
    task = progress.add_task("", total=processes * len(given.concurrency))
    for turn, workload in itertools.product(range(given.rounds), given.workloads):
        ask = plan.ask(workload)
        for server, spec in plan.processes(turn):
            variant = server.variant(spec)
            progress.update(task, description=f"{workload}: {server.name}, {variant}")
            with running_server(server, plan.settings, spec) as process:
                one = Round(plan, server, process, (workload, turn))
                warm_up = replace(ask, n_predict=WARM_UP_TOKENS, stream=False)
                one.measure(plan.settings.slots, plan.settings.slots, warm_up)
                for clients in given.concurrency:
                    cell = one.measure(given.requests, clients, ask)
                    results.add(Key(workload, server.name, variant, clients), cell)
                    progress.advance(task)
                peaks = results.peaks.setdefault((workload, server.name, variant), [])
                peaks.append(peak_mb(process.popen.pid))
        results.rounds[workload] = turn + 1


def available(given: argparse.Namespace, console: Console) -> list[Server]:
    """Return the wanted servers that there are; say which are left out and why."""
    servers: list[Server] = []
    for name in given.servers:
        if name == "ngramspec":
            servers.append(Ours())
        elif name == "llama-server" and given.llama_server:
            servers.append(LlamaServer(given.llama_server))
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
    add("--requests", type=int, default=32, help="of each number of clients (32)")
    add("--n-predict", type=int, default=128, help="most tokens of an answer (128)")
    add("--rounds", type=int, default=3, help="(3)")
    add("-np", "--slots", type=int, default=4, help="slots of a server (4)")
    add("-t", "--threads", type=int, default=2, help="threads of a server (2)")
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
    given = parser.parse_args()
    given.spec_types = [spec.replace("+", ",") for spec in given.spec_type.split(",")]
    return given


def settings(given: argparse.Namespace) -> Settings:
    """Return what servers are started with."""
    return Settings(
        model=given.model or embedded_model(),
        slots=given.slots,
        threads=given.threads,
        context=given.context,
        batch=given.batch,
        spec_arguments=given.spec_args,
        arguments=dict(one.split("=", 1) for one in given.args),
    )


def interrupt(*_: object) -> None:
    """End as Ctrl-C does, so that servers are ended as well."""
    raise KeyboardInterrupt


def report(plan: Plan, results: Results) -> None:
    """Print the tables of the rounds that are complete."""
    given = plan.arguments
    results.drop_incomplete()
    for workload, rounds in results.rounds.items():
        made = Report(results, workload, plan.servers, given.spec_types, given.concurrency)
        print("\n".join([*made.lines(given.stream), "", f"Rounds: {rounds}.", ""]))
    if results.cells:
        print(usage(results))
    if given.json:
        facts = {"arguments": vars(given), **results.as_json()}
        given.json.write_text(json.dumps(facts, indent=1, default=str))


def main() -> None:
    """Parse the arguments, measure, print; when interrupted, print what is complete."""
    given = parse()
    signal.signal(signal.SIGTERM, interrupt)
    console = Console(stderr=True, soft_wrap=True)
    plan, results = Plan(given, settings(given), available(given, console)), Results()
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

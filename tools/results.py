"""Measure the tables of the documentation again, and say which are older than what they measure.

    python tools/results.py                  # make results
    python tools/results.py --check          # compare, write nothing
    python tools/results.py NAME OUT.json    # write one table, from what its command wrote

A table stands in its page between `<!-- table NAME COMMIT -->` and `<!-- end -->`. First it says
how many later commits changed what each measures. Then the commands run that need nothing but this
checkout, a minute in all, and their tables and the picture are written, with today's commit. For
the others the page names the command, whose --json makes OUT.json. The exit code is 1 where figures
differ.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import replay_picture

ROOT = Path(__file__).resolve().parents[1]
MARKS = re.compile(r"(<!-- table (\S+)) (\w+)( -->\n)(.*?)(?=<!-- end -->)", re.S)
PROFILES = ("h100-8b", "moe", "cpu", "moe-a3b")
SETS = {
    "agentic.tau2_tools": "agents with tools (tau2)",
    "agentic.tau_airline_4trials": "agents, four tries of a task (tau airline)",
    "chat.mtbench": "chat (MT-Bench)",
    "chat_revise.mt_redundant": "chat that revises answers",
    "code_edit.aider_swebench": "code edits (aider, SWE-bench)",
    "code_edit.debugbench": "code repairs (DebugBench)",
    "doc_rewrite.booookscore_inc": "summaries of books, grown step by step",
    "rag.mtrag": "RAG (MTRAG)",
    "reasoning.misguided_attention": "reasoning",
    "specbench.vicuna7b_greedy": "Spec-Bench",
    "structured.crux_json": "JSON answers",
    "structured.spider_sql": "SQL (Spider)",
}
DEFAULT = {"suffix": "suffix, the default"}


@dataclass(frozen=True)
class Table:
    """Figures of a page, and the command that measures them.

    lines: The table's lines, or those that the page must have, made of the command's JSON.
    measured: Files and folders whose changes make the figures old.
    command: Its words after `python`, none where it needs more than this checkout. FILE stands for
        a temporary file, and JSON for one that has what the command does not print.
    """

    name: str
    page: str
    lines: Callable[[Any], Iterator[str]]
    measured: tuple[str, ...]
    command: tuple[str, ...] = ()

    def run(self) -> Any:
        """Return what the command prints or writes as JSON."""
        with tempfile.TemporaryDirectory() as folder:
            files = {name: str(Path(folder, name)) for name in ("FILE", "JSON")}
            words = [sys.executable, *(files.get(word, word) for word in self.command)]
            ran = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, check=True)
            written = Path(files["JSON"])
            return json.loads(written.read_bytes() if written.exists() else ran.stdout)

    def missing(self, output: Any) -> list[str]:
        """Return the lines that the page does not have."""
        text = " ".join((ROOT / self.page).read_text("utf-8").split())
        return [line for line in self.lines(output) if line not in text]

    def write(self, output: Any, commit: str) -> bool:
        """Put the table between its marks; return whether there are any."""
        path = ROOT / self.page
        text = path.read_text("utf-8")
        table = "\n".join([*self.lines(output), ""])
        for marks in MARKS.finditer(text):
            if marks[2] == self.name:
                head = f"{marks[1]} {commit}{marks[4]}"
                path.write_text(text[: marks.start()] + head + table + text[marks.end() :], "utf-8")
                return True
        return False


def real(output: Any) -> Iterator[str]:
    """Yield ratios by kind of work, of the kinds of which the default has a quiet pair."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from real_models import Cell, Setting

    row = output["settings"][0]
    cells = [Cell(**cell) for cell in row["cells"]]
    setting = Setting(Path(row["model"]), row["threads"], row["temperature"], cells)
    every = list(dict.fromkeys(cell.kind for cell in cells))
    kinds = [kind for kind in every if setting.ratio("suffix", "none", kind).used]
    last = ["all"] if kinds == every else []
    yield from head("drafts", *kinds, *last)
    for program in dict.fromkeys(cell.program for cell in cells):
        if program != "none":
            ratios = [setting.ratio(program, "none", kind) for kind in kinds]
            shown = [f"{one.median:.2f}" if one.used else "?" for one in ratios]
            mean = statistics.geometric_mean([one.median for one in ratios if one.used] or [1])
            name = program.replace("llama-server ", "llama-server, ")
            yield row_of(DEFAULT.get(name, name), *shown, *(f"{mean:.2f}" for _ in last))


def replay(output: Any) -> Iterator[str]:
    """Yield modelled speed-ups by set."""
    yield from head("recorded text", "tokens per pass", *PROFILES)
    for name, one in output["sets"].items():
        speeds = (f"{one['modelled_speedup'][p]:.2f}" for p in PROFILES)
        yield row_of(SETS[name], f"{one['mean_accepted_length']:.2f}", *speeds)
    ours = output["drafter"]
    means, peers = output["geometric_mean_speedup"][ours], output["against_peers"][ours]
    yield row_of("all, geometric mean", "", *(f"{means[p]:.2f}" for p in PROFILES))
    ratios = (f"{peers[p]['geometric_mean_ratio']:.3f}" for p in PROFILES)
    yield row_of("all, over each set's best peer", "", *ratios)


def llamacpp(output: Any) -> Iterator[str]:
    """Yield time per token and tokens per pass, ours beside llama.cpp's."""
    ours = ("drafter", "time, µs", "llama.cpp", "ratio", "on long prompts")
    yield from head(*ours, "tokens per pass", "llama.cpp")
    for kind, ratio in output["geometric_mean_ratio"].items():
        time, length = (
            [
                f"{statistics.mean(one[kind][side][key] for one in output['sets'].values()):.3f}"
                for side in ("ours", "theirs")
            ]
            for key in ("us_per_token", "mean_accepted_length")
        )
        ratios = (f"{ratio[key]:.2f}" for key in ("all", "long prompts"))
        yield row_of(kind, *time, *ratios, *length)


def held_out(output: Any) -> Iterator[str]:
    """Yield what a statistics file is said to add."""
    one, two = output["held_out"]["without_file"], output["held_out"]["with_file"]
    yield f"drafts {two['right'] / one['right'] - 1:.0%} more".replace("%", " %")
    lengths = (one["mean_accepted_length"], two["mean_accepted_length"])
    yield "(mean accepted length {:.2f} without, {:.2f} with it)".format(*lengths)


def row_of(*cells: str) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def head(*cells: str) -> list[str]:
    """Return a table's first two lines."""
    return [row_of(*cells), "|" + "---|" * len(cells)]


RESULTS = "docs/results/index.md"
DRAFTING = ("ext", "ngramspec/drafting", "ngramspec/models")
SERVING = ("ngramspec/engine", "ngramspec/llamacpp", "ngramspec/runtime.py", "ngramspec/server")
REAL = (*DRAFTING, *SERVING, "benchmarks/real_models.py", "benchmarks/data/prompts.jsonl")
REPLAY = ("ngramspec/lab/replay", "ngramspec/costs.py", "benchmarks/peers", "benchmarks/data")
PEERS = ("benchmarks/replay_peers.py", "--json", "JSON")
BUILDING = ("ngramspec/files", "ngramspec/lab/builder", "corpora")
BUILD = ("-m", "ngramspec", "build-cache", "corpora", "-o", "FILE", "--min-count", "2", "--json")
TABLES = (
    Table("smollm2-two-threads", RESULTS, real, REAL),
    Table("qwen-two-threads", RESULTS, real, REAL),
    Table("smollm2-one-thread", RESULTS, real, REAL),
    Table("qwen-one-thread", RESULTS, real, REAL),
    Table("replay", RESULTS, replay, (*DRAFTING, *REPLAY), PEERS),
    Table("llamacpp", RESULTS, llamacpp, (*DRAFTING, "benchmarks/native_replay.py")),
    Table(
        "statistics-file",
        "docs/how-to/statistics-file.md",
        held_out,
        (*DRAFTING, *BUILDING),
        (*BUILD, "--held-out", "5%"),
    ),
)


def git(*words: str) -> str:
    """Return what git prints, nothing where it fails."""
    ran = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return ran.stdout.strip()


def ages() -> Iterator[str]:
    """Yield, for each table with marks, how many commits changed what it measures since."""
    for table in TABLES:
        for marks in MARKS.finditer((ROOT / table.page).read_text("utf-8")):
            if marks[2] == table.name:
                later = git("rev-list", "--count", f"{marks[3]}..HEAD", "--", *table.measured)
                number = {"": "an unknown number of", "0": "no"}.get(later, later)
                state = f"{number} later commits touched what it measures"
                yield f"{table.page}: {table.name}, of {marks[3]}: {state}"


def main() -> None:
    """Say what is old, measure, write or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("table", nargs="*", metavar="NAME OUT.json")
    options = parser.parse_args()
    commit = git("rev-parse", "--short=8", "HEAD")
    if options.table:
        name, output = options.table
        [table] = [one for one in TABLES if one.name == name]
        sys.exit(not table.write(json.loads(Path(output).read_bytes()), commit))
    print(*ages(), sep="\n", flush=True)
    wrong = 0
    for table in TABLES:
        if table.command:
            output = table.run()
            missing = table.missing(output)
            wrong += len(missing)
            print(f"{table.name}: {len(missing)} lines differ", *missing, sep="\n  ", flush=True)
            if not options.check:
                table.write(output, commit)
            if not options.check and table.name == "replay":
                replay_picture.OUTPUT.write_text(replay_picture.draw(output, SETS), "utf-8")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()

"""Run the commands behind figures of the documentation again and compare.

    python tools/check_figures.py

Every entry of FIGURES is a command whose figures are the same on every machine, and the lines that
its output must give. A line that the document does not have is printed, and the exit code is 1.
Takes a minute.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
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


@dataclass(frozen=True)
class Figures:
    """A command whose result is JSON, and what a document says of it.

    command: its words after `python`; FILE stands for a temporary file, and JSON for one that has
        what the command does not print.
    lines: the document's lines or parts of lines, made of the output.
    """

    document: str
    command: tuple[str, ...]
    lines: Callable[[Any], Iterator[str]]

    def missing(self) -> list[str]:
        """Run the command; return the lines that the document does not have."""
        text = " ".join((ROOT / self.document).read_text().split())
        return [line for line in self.lines(run(self.command)) if line not in text]


def run(command: tuple[str, ...]) -> Any:
    """Return what a command prints or writes as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        files = {name: str(Path(folder, name)) for name in ("FILE", "JSON")}
        words = [files.get(word, word) for word in command]
        ran = subprocess.run([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        return json.loads(Path(files["JSON"]).read_bytes() if "JSON" in command else ran.stdout)


def replay(output: Any) -> Iterator[str]:
    """Yield the rows of the modelled speed-up."""
    for name, one in output["sets"].items():
        speeds = " | ".join(f"{one['modelled_speedup'][p]:.2f}" for p in PROFILES)
        yield f"| {SETS[name]} | {one['mean_accepted_length']:.2f} | {speeds} |"
    ours = output["drafter"]
    means = (f"{output['geometric_mean_speedup'][ours][p]:.2f}" for p in PROFILES)
    yield f"| over plain decoding, geometric mean | {' | '.join(means)} |"
    peers = (f"{output['against_peers'][ours][p]['geometric_mean_ratio']:.3f}" for p in PROFILES)
    yield f"| over each set's best peer | {' | '.join(peers)} |"


def held_out(output: Any) -> Iterator[str]:
    """Yield what a corpus file is said to add."""
    one, two = output["held_out"]["without_file"], output["held_out"]["with_file"]
    yield f"drafts {two['right'] / one['right'] - 1:.0%} more".replace("%", " %")
    yield (
        f"(mean accepted length {one['mean_accepted_length']:.2f} without, "
        f"{two['mean_accepted_length']:.2f} with it)"
    )


FIGURES = (
    Figures(
        "docs/results/index.md",
        ("benchmarks/replay_peers.py", "--json", "JSON"),
        replay,
    ),
    Figures(
        "docs/how-to/corpus-file.md",
        (
            *("-m", "ngramspec", "build-cache", "corpora", "-o", "FILE"),
            *("--min-count", "2", "--held-out", "5%", "--json"),
        ),
        held_out,
    ),
)


def main() -> None:
    """Compare, print what differs, and end with 1 if anything does."""
    wrong = 0
    for one in FIGURES:
        missing = one.missing()
        wrong += len(missing)
        print(f"{one.document}: python {' '.join(one.command)}: {len(missing)} lines differ")
        for line in missing:
            print(f"  measured now: {line}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()

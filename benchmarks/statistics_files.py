"""Building, merging and loading statistics, ours beside llama.cpp's lookup tools in the same run.

    python benchmarks/statistics_files.py TEXT --model MODEL.gguf --llamacpp FOLDER \\
        [--loader PROGRAM] [--repeats 5] [--json OUT]

TEXT is one file; MODEL a model that llama-lookup-create can load (weights included). FOLDER holds
llama-lookup-create and llama-lookup-merge, of the version that the installed llama-cpp-python has.
PROGRAM is called as `PROGRAM load SLOTS FILE`, loads a lookup cache, copies it once per slot as
llama-server does, and prints {"load_s", "copies_s", "peak_rss_mb"}, the last one being VmHWM of
/proc/self/status in MiB; without it loading is left out.

Both count 2-grams of the same text. Runs alternate, every one in a process of its own; figures are
medians. Memory is the peak of the whole process, code and interpreter included, on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from processes import Ran, run

SLOTS = (1, 4, 16)
Figures = dict[str, float]


def worker_build(tokens: str, output: str) -> Figures:
    """Count 2-grams of token ids on one core and write them."""
    from ngramspec._native.files.entries import Tally
    from ngramspec.files.cache_file import Origin, write_cache
    from ngramspec.files.entries import ArraySource

    ids = np.fromfile(tokens, dtype=np.int32)
    start = time.perf_counter()
    tally = Tally()
    tally.add(ids)
    header = write_cache(output, {2: ArraySource(tally.ngrams(2))}, Origin())
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "ngrams": header.num_ngrams, "pairs": header.num_pairs}


def worker_merge(output: str, *inputs: str) -> Figures:
    """Merge statistics files."""
    from ngramspec import open_cache
    from ngramspec._native.files.entries import EntryMerger, EntryReader
    from ngramspec.files.cache_file import Origin, write_cache

    start = time.perf_counter()
    readers = [EntryReader(open_cache(path), 2) for path in inputs]
    header = write_cache(output, {2: EntryMerger(readers)}, Origin())
    return {"seconds": time.perf_counter() - start, "ngrams": header.num_ngrams}


def worker_load(slots: str, path: str) -> Figures:
    """Make a drafter for so many slots over a file and draft once on each."""
    import ngramspec.drafting.statistics  # noqa: F401, as their program has its code loaded
    from ngramspec import create_drafter

    create_drafter("ngram-cache", slots=int(slots))
    start = time.perf_counter()
    drafter = create_drafter("ngram-cache", slots=int(slots), static=path)
    seconds = time.perf_counter() - start
    for slot in range(int(slots)):
        drafter.begin(slot, [1, 2, 3])
        drafter.propose(slot, 8)
    return {"seconds": seconds}


def worker_tokenise(model: str, text: str, output: str) -> Figures:
    """Write the token ids of a text."""
    from ngramspec.text.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(model)
    content = Path(text).read_text()
    start = time.perf_counter()
    ids = tokenizer.encode(content)
    seconds = time.perf_counter() - start
    ids.tofile(output)
    return {"seconds": seconds, "tokens": len(ids)}


WORKERS: dict[str, Callable[..., Figures]] = {
    "build": worker_build,
    "merge": worker_merge,
    "load": worker_load,
    "tokenise": worker_tokenise,
}


def ours(*arguments: str) -> Figures:
    """Run a worker in a process of its own."""
    ran = run([sys.executable, __file__, "--worker", *arguments])
    return {**json.loads(ran.stdout), "wall": ran.seconds, "peak_mb": ran.peak_mb}


def medians(runs: list[Figures]) -> Figures:
    """Return the median of each figure."""
    return {key: statistics.median(one[key] for one in runs) for key in runs[0]}


class Peers:
    """llama.cpp's programs, with the libraries that llama-cpp-python brought."""

    def __init__(self, folder: Path, loader: Path | None, model: str) -> None:
        import llama_cpp

        libraries = Path(llama_cpp.__file__).parents[1] / "lib"
        self.env = {**os.environ, "LD_LIBRARY_PATH": str(libraries)}
        self.folder, self.loader, self.model = folder, loader, model

    def create(self, text: str, output: str) -> Figures:
        """Run llama-lookup-create; times of its phases from its own messages."""
        ran = run(
            f"{self.folder}/llama-lookup-create -m {self.model} -f {text} --no-escape -c 512 "
            f"-fit off -lcs {output}".split(),
            self.env,
        )
        tokenised, hashed = ran.mark("tokenization done"), ran.mark("hashing done")
        return {
            "update": hashed - tokenised,
            "update_and_save": ran.seconds - tokenised,
            "wall": ran.seconds,
            "peak_mb": ran.peak_mb,
        }

    def merge(self, output: str, *inputs: str) -> Figures:
        """Run llama-lookup-merge."""
        ran: Ran = run([str(self.folder / "llama-lookup-merge"), *inputs, output], self.env)
        return {"wall": ran.seconds, "peak_mb": ran.peak_mb}

    def load(self, slots: int, path: str) -> Figures:
        """Load a lookup cache and copy it for every slot."""
        body = json.loads(run([str(self.loader), "load", str(slots), path], self.env).stdout)
        return {"seconds": body["load_s"] + body["copies_s"], "peak_mb": body["peak_rss_mb"]}


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run everything; return the figures."""
    peers = Peers(arguments.llamacpp, arguments.loader, arguments.model)
    ids, halves = folder / "ids", [folder / "half1", folder / "half2"]
    tokenised = ours("tokenise", arguments.model, arguments.text, str(ids))
    lines = Path(arguments.text).read_text().splitlines(keepends=True)
    names = {name: str(folder / name) for name in ("a.ngc", "b.ngc", "ours.ngc", "theirs.bin")}
    for half, part in zip(
        halves, (lines[: len(lines) // 2], lines[len(lines) // 2 :]), strict=True
    ):
        half.write_text("".join(part))
        peers.create(str(half), f"{half}.bin")
        ours("tokenise", arguments.model, str(half), str(folder / "half.ids"))
        ours("build", str(folder / "half.ids"), f"{half}.ngc")
    runs: dict[str, list[Figures]] = {}

    def note(name: str, figures: Figures) -> None:
        runs.setdefault(name, []).append(figures)

    cli = [sys.executable, "-m", "ngramspec", "build-cache", arguments.text, "--model"]
    cli += [arguments.model, "--ngram-min", "2", "--ngram-max", "2", "--no-progress", "--json"]
    for _ in range(arguments.repeats):
        note("theirs create", peers.create(arguments.text, names["theirs.bin"]))
        note("ours build", ours("build", str(ids), names["ours.ngc"]))
        for jobs in ("1", "2"):
            ran = run([*cli, "-o", names["a.ngc"], "--jobs", jobs])
            note(f"ours create {jobs}", {"wall": ran.seconds, "peak_mb": ran.peak_mb})
        note("theirs merge", peers.merge(names["theirs.bin"] + "2", *(f"{h}.bin" for h in halves)))
        note("ours merge", ours("merge", names["b.ngc"], *(f"{half}.ngc" for half in halves)))
        merge_cli = [sys.executable, "-m", "ngramspec", "cache", "merge", "-o", names["b.ngc"]]
        ran = run([*merge_cli, *(f"{half}.ngc" for half in halves)])
        note("ours merge command", {"wall": ran.seconds, "peak_mb": ran.peak_mb})
        for slots in SLOTS:
            note(f"ours load {slots}", ours("load", str(slots), names["ours.ngc"]))
            if arguments.loader:
                note(f"theirs load {slots}", peers.load(slots, names["theirs.bin"]))
    figures: dict[str, Any] = {name: medians(some) for name, some in runs.items()}
    figures["tokens"], figures["tokenise_seconds"] = tokenised["tokens"], tokenised["seconds"]
    figures["bytes"] = {name: os.path.getsize(path) for name, path in names.items()}
    return figures


def table(figures: dict[str, Any]) -> list[str]:
    """Return the comparison as Markdown lines."""
    build, create = figures["ours build"], figures["theirs create"]
    two, merge = figures["ours create 2"], figures["theirs merge"]
    tokens, tokenising = figures["tokens"], figures["tokenise_seconds"]
    single, command = figures["ours create 1"], figures["ours merge command"]
    sizes, ngrams = figures["bytes"], build["ngrams"]
    rows = [
        ("count and write, tokens given, s", create["update_and_save"], build["seconds"]),
        ("theirs: counting alone, s", create["update"], build["seconds"]),
        ("text to file, 1 job, s", create["wall"], single["wall"]),
        ("text to file, 2 jobs, s", create["wall"], two["wall"]),
        ("peak memory of that, MB", create["peak_mb"], two["peak_mb"]),
        ("merge two halves, without our start, s", merge["wall"], figures["ours merge"]["seconds"]),
        ("merge two halves, whole command, s", merge["wall"], command["wall"]),
        ("file, bytes per n-gram", sizes["theirs.bin"] / ngrams, sizes["ours.ngc"] / ngrams),
    ]
    for slots in SLOTS:
        theirs, own = figures.get(f"theirs load {slots}"), figures[f"ours load {slots}"]
        if theirs:
            rows.append((f"load for {slots} slots, s", theirs["seconds"], own["seconds"]))
            rows.append((f"memory for {slots} slots, MB", theirs["peak_mb"], own["peak_mb"]))
    lines = [
        f"{tokens:.0f} tokens; {build['ngrams']:.0f} 2-grams, {build['pairs']:.0f} pairs; our "
        f"tokenising alone takes {tokenising:.2f} s on one core, "
        f"{100 * tokenising / (tokenising + build['seconds']):.0f} % of the work",
        "| | llama.cpp | ours | ratio |",
        "|---|---|---|---|",
    ]
    lines += [f"| {what} | {a:.4g} | {b:.3g} | {a / max(b, 1e-9):.1f}x |" for what, a, b in rows]
    return lines


def main() -> None:
    """Parse the arguments, measure, print."""
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(WORKERS[sys.argv[2]](*sys.argv[3:])))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("text")
    parser.add_argument("--model", required=True)
    parser.add_argument("--llamacpp", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--loader", type=Path, metavar="PROGRAM")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(arguments, Path(folder))
    print("\n".join(table(figures)))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()

"""Jobs for program.py: a corpus and many ways to build it."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngramspec import embedded_model

CORPORA = Path(__file__).parents[3] / "corpora"
SMALL = {"shard_bytes": 3000, "num_ranges": 5}
POOL = {"n_match": 3, "capacity": 1 << 14}


@dataclass
class Outcome:
    """What came of a job. error: name of its type and message."""

    job: dict[str, Any]
    file: Path
    result: dict[str, Any] | None = None
    error: tuple[str, str] | None = None
    done_with: list[int] | None = None
    phases: list[str] | None = None
    amounts: list[tuple[int, int]] | None = None
    shard_files: list[dict[str, str]] | None = None


def write_corpus(folder: Path) -> Path:
    """Write text, records and compressed records, with duplicates in and across files."""
    text = (CORPORA / "text/tutorial/classes.rst").read_text()
    folder.mkdir()
    paragraphs = text.split("\n\n")
    for i in range(8):
        records = [{"text": each} for each in paragraphs[20 * i : 20 * i + 30]]
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"records{i}.jsonl").write_text(lines + "not a record\n")
    with gzip.open(folder / "again.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps({"text": each}) + "\n" for each in paragraphs[::3]))
    (folder / "binary.bin").write_bytes(bytes(100))
    (folder / "empty.txt").write_text("")
    shutil.copy(CORPORA / "text/tutorial/errors.rst", folder / "a.txt")
    shutil.copy(CORPORA / "text/tutorial/errors.rst", folder / "the same as a.txt")
    return folder


def write_long(folder: Path) -> Path:
    """Write a file that takes a while, and many that do not."""
    folder.mkdir()
    text = "".join(path.read_text() for path in sorted(CORPORA.rglob("*.rst")))
    (folder / "a.txt").write_text("".join(f"{i}\n{text}" for i in range(3)))
    for i in range(40):
        (folder / f"b{i:02}.txt").write_text(f"{i} {text[50 * i : 50 * i + 3000]}")
    return folder


def write_large(folder: Path) -> Path:
    """Write files whose entries are too many for Ray to keep them with the driver."""
    folder.mkdir()
    text = "".join(path.read_text() for path in sorted(CORPORA.rglob("*.rst")))
    for i in range(12):
        (folder / f"{i:02}.txt").write_text(text[40_000 * i : 40_000 * i + 250_000])
    return folder


def jobs_in(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the jobs that the tests look at."""
    mixed, long = str(write_corpus(folder / "mixed")), str(write_long(folder / "long"))
    large = str(write_large(folder / "large"))
    vanishing = write_corpus(folder / "vanishing")
    changing = write_corpus(folder / "changing")
    lost_model = str(shutil.copy(embedded_model(), folder / "lost.gguf"))
    several = {"min_count": 2, "max_bytes": 60_000, "held_out": 0.2, "ngram_min": 1}
    one_file_each = {"shard_bytes": 1, "num_ranges": 3}
    return {
        "many-shards": job(str(CORPORA / "python"), one_file_each),
        "one-shard": job(mixed, {}),
        "several-options": job(mixed, SMALL, options=several),
        "no-provenance": job(mixed, SMALL, options={"provenance": False, "held_out": 0.5}),
        "pool": job(mixed, SMALL, options={"kind": "hash-pool", "min_count": 2, "pool": POOL}),
        "held-out-pool": job(
            mixed, SMALL, options={"kind": "hash-pool", "held_out": 0.3, "pool": POOL}
        ),
        "index": job(mixed, SMALL, options={"kind": "suffix", "held_out": 0.2}),
        "pruned-index": job(mixed, SMALL, options={"kind": "suffix", "max_bytes": 90_000}),
        "resumed": job(mixed, SMALL, stop_after=4, then={"resume": True}),
        "resumed-with-other-shards": job(
            mixed,
            SMALL,
            stop_after=3,
            then={"resume": True, "shard_bytes": 1, "num_ranges": 2},
            options={"held_out": 0.2},
        ),
        "resumed-index": job(
            mixed, SMALL, stop_after=3, then={"resume": True}, options={"kind": "suffix"}
        ),
        "restarted": job(mixed, SMALL, stop_after=3, then={"restart": True}),
        "not-resumed": job(mixed, SMALL, stop_after=2, then={}),
        "large-tokenizer": job(mixed, SMALL, most_sent=0),
        "address": job(mixed, SMALL | {"address": "THE CLUSTER"}),
        "killed-worker": job(long, {"shard_bytes": 1, "num_ranges": 2}, kill=True),
        "no-cluster": job(mixed, {"address": "127.0.0.1:1"}),
        "much-memory": job(mixed, SMALL | {"memory": 1 << 50}),
        "stopped-early": job(mixed, SMALL, stop_in="finding duplicates"),
        "stopped-late": job(mixed, SMALL, stop_in="writing"),
        "interrupted": job(long, {"shard_bytes": 1, "num_ranges": 2}, interrupt=True),
        "no-text": job(str(folder / "mixed" / "empty.txt"), {}),
        "missing-file": job(
            str(vanishing), SMALL, unlink_in="reading", file=str(vanishing / "records3.jsonl")
        ),
        "changed-file": job(
            str(changing), SMALL, change_in="reading", file=str(changing / "records3.jsonl")
        ),
        "missing-tokenizer": job(
            mixed, SMALL, tokenizer=lost_model, most_sent=0, unlink_in="reading", file=lost_model
        ),
        "lost-host": job(large, {"shard_bytes": 1, "num_ranges": 2}, lose_host=10),  # the last
    }


def job(path: str, arguments: dict[str, Any], **others: Any) -> dict[str, Any]:
    """Return a job for program.py."""
    return {
        "paths": [path],
        "tokenizer": str(embedded_model()),
        "arguments": arguments,
        **others,
    }

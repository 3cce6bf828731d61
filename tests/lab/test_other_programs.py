"""The benchmarks that run others' programs, with stand-ins for these."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import pauses
from helpers.paths import ROOT
from helpers.programs import write_program
from ngramspec.drafting.names import FROM_LOGITS
from ngramspec.models import embedded_model

BENCHMARKS = ROOT / "benchmarks"
KINDS = ["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"]
SUMMARY = {
    "sessions": 2,
    "steps": 10,
    "drafts": 4,
    "tokens": 15,
    "begin_us_per_session": 3.0,
    "draft_us_per_step": 2.0,
    "accept_us_per_draft": 1.0,
}
REPLAY = f"""
if sys.argv[1] not in {KINDS} or sys.argv[2:] != ["1", "quiet=1"]:
    sys.exit("not known")
sys.stdin.read()
print("a line", file=sys.stderr)
print({json.dumps(SUMMARY)!r}, file=sys.stderr)
"""
CREATE = """
print("tokenization done", file=sys.stderr)
print("hashing done", file=sys.stderr)
open(sys.argv[-1], "w").close()
"""
LOAD = """
status = open("/proc/self/status").read()
peak = int(status.partition("VmHWM:")[2].split()[0]) / 1024
print(json.dumps({"load_s": 1, "copies_s": 1, "peak_rss_mb": peak}))
"""


def run(script: str, *options: str | Path) -> str:
    """Run a benchmark as a user does, and return what it printed."""
    command = (sys.executable, BENCHMARKS / script, *options)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_replay_program_is_asked_for_what_the_readme_says(tmp_path: Path) -> None:
    readme = (BENCHMARKS / "README.md").read_text("utf-8")
    assert all(f"`{word}`" in readme for word in (*KINDS, *SUMMARY))
    program, name = write_program(tmp_path / "replay", REPLAY), "structured.spider_sql"
    options = ("--llamacpp", program, "--set", name, "--repeats", "1")
    run("native_replay.py", *options, "--json", tmp_path / "made.json")
    rows = json.loads((tmp_path / "made.json").read_text())["sets"][name]
    assert list(rows) == [*KINDS, "suffix"]
    theirs = {"us_per_token": 2.0, "mean_accepted_length": 1.5}
    assert [rows[kind].get("theirs") for kind in rows] == [theirs] * len(KINDS) + [None]


def test_pauses_are_of_drafters_that_need_no_logits() -> None:
    assert not set(FROM_LOGITS) & set(pauses.NAMES)


@pytest.mark.skipif(sys.platform != "linux", reason="its program reads /proc")
def test_memory_for_slots_is_that_of_a_whole_process_on_both_sides(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason="the tokenizer comes from llama-cpp-python")
    write_program(tmp_path / "llama-lookup-create", CREATE)
    write_program(tmp_path / "llama-lookup-merge", "open(sys.argv[-1], 'w').close()")
    loader = write_program(tmp_path / "load", LOAD)
    text = tmp_path / "text.py"
    text.write_text((BENCHMARKS / "processes.py").read_text("utf-8"))
    options = ("--llamacpp", tmp_path, "--loader", loader, "--repeats", "1")
    printed = run("statistics_files.py", text, "--model", embedded_model(), *options)
    rows = [line.split("|") for line in printed.splitlines() if line.startswith("| memory for ")]
    assert len(rows) == 3
    for _, _, bare, ours, *_ in rows:  # theirs is an interpreter alone, ours one with numpy
        assert float(ours) > float(bare)

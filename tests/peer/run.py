"""Run llama-server's own tests against `ngramspec serve`: make peer.

    python tests/peer/run.py                    # all files in scope, a table, the share that passes
    python tests/peer/run.py completion stream  # some of them
    python tests/peer/run.py --server llama.cpp/build/bin/llama-server   # what llama-server does

The tests come from the source package of llama-cpp-python, which is downloaded to build/peer. Their
models cannot be: each is replaced by the embedded one, so a case that llama-server itself fails
with that model says nothing. Which ones these are, and why others are not followed, is in
outcomes.toml. A case that fails is run again with its literal words loosened.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT / "tests")  # and not this folder

from helpers.gguf_models import with_fim_tokens  # noqa: E402
from ngramspec.models import embedded_model  # noqa: E402

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

WORK = ROOT / "build" / "peer"
PACKAGE = "llama_cpp_python==0.3.36"
FILES = (
    "basic", "completion", "chat_completion", "compat_anthropic", "compat_oai_responses",
    "ctx_shift", "embedding", "ignore_eos", "infill", "kv_keep_only_active", "lora", "metrics",
    "security", "slot_save", "speculative", "stream", "template", "tokenize", "tool_call",
)  # fmt: skip
PASSED, WORDS, FAILED, SKIPPED = "passed", "passed but for words", "failed", "skipped"
Outcomes = dict[str, str]  # "file::case" -> outcome


def main() -> None:
    """Run the tests and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", metavar="FILE", help="files in scope (default: all)")
    parser.add_argument("--server", type=Path, help="another server, started like llama-server")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all outcomes to FILE")
    parser.add_argument("-k", default="", metavar="WORDS", help="only cases that pytest selects")
    args = parser.parse_args()
    tests = fetch()
    server = args.server or launcher()
    outcomes = run(tests, args.files or FILES, server, args.k)
    if args.json:
        args.json.write_text(json.dumps(outcomes, indent=1))
    explained = tomllib.loads((Path(__file__).parent / "outcomes.toml").read_text())
    sys.exit(report(outcomes, explained))


def fetch() -> Path:
    """Return the folder of llama-server's tests; download and unpack the package if need be."""
    name = PACKAGE.replace("==", "-")
    tests = WORK / name / "vendor/llama.cpp/tools/server/tests"
    if not tests.exists():
        WORK.mkdir(parents=True, exist_ok=True)
        asked = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        asked += ["--no-build-isolation", "--no-binary", ":all:", "--dest", str(WORK), PACKAGE]
        subprocess.run(asked, check=True)
        with tarfile.open(WORK / f"{name}.tar.gz") as package:
            package.extractall(WORK, filter="data")
    return tests


def launcher() -> Path:
    """Return a program that starts `ngramspec serve` with the arguments of llama-server."""
    path = WORK / "serve"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ngramspec serve "$@"\n')
    path.chmod(0o755)
    return path


def run(tests: Path, files: Iterable[str], server: Path, select: str) -> Outcomes:
    """Return the outcome of each case."""
    outcomes: Outcomes = {}
    (tests / "tmp").mkdir(exist_ok=True)  # for saved slots
    for name in files:
        first = pytest(tests, [f"unit/test_{name}.py"], server, select, loose=False)
        outcomes |= first
        again = [case for case, outcome in first.items() if outcome == FAILED]
        if again:
            second = pytest(tests, again, server, "", loose=True)
            outcomes |= {case: WORDS for case in again if second.get(case) == PASSED}
        counts = Counter(outcomes[case] for case in first)
        print(f"{name:22}", *(f"{count} {what}" for what, count in counts.items()), flush=True)
    return outcomes


def pytest(
    tests: Path, cases: Iterable[str], server: Path, select: str, *, loose: bool
) -> Outcomes:
    """Return the outcomes of some cases or of a file."""
    results = WORK / f"results-{server.name}.xml"
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            (str(Path(__file__).parent), str(ROOT), os.environ.get("PYTHONPATH", ""))
        ),
        "LLAMA_SERVER_BIN_PATH": str(server.resolve()),
        "PEER_TESTS": str(tests),
        "PEER_MODEL": str(embedded_model()),
        "PEER_INFILL_MODEL": str(with_fim_tokens(WORK / "infill.gguf")),
        "PEER_LOOSE": str(int(loose)),
        "PORT": str(free_port()),
    }
    asked = [sys.executable, "-m", "pytest", "-q", "-p", "plugin", "--timeout", "120"]
    asked += ["-c", "pytest.ini", "--junitxml", str(results), "-k", select, *cases]
    with (WORK / f"log-{server.name}.txt").open("a") as log:
        subprocess.run(asked, cwd=tests, env=env, stdout=log, stderr=log, check=False)
    outcomes: Outcomes = {}
    for case in ET.parse(results).iter("testcase"):
        file = case.get("classname", "").replace(".", "/") + ".py"
        tags = {child.tag for child in case}
        outcome = FAILED if tags & {"failure", "error"} else PASSED
        outcomes[f"{file}::{case.get('name')}"] = SKIPPED if "skipped" in tags else outcome
    return outcomes


def free_port() -> int:
    """Return a port that no other run uses."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def report(outcomes: Outcomes, explained: Mapping[str, Mapping[str, str]]) -> int:
    """Print the cases that do not pass, each with its reason, and the share that does.

    Returns:
        1 if a case fails without a reason, otherwise 0.
    """
    model, reasons = explained["model"], explained["reasons"]
    counted = {
        case: outcome
        for case, outcome in outcomes.items()
        if outcome != SKIPPED and _reason(case, model) is None
    }
    failed = [case for case, outcome in counted.items() if outcome == FAILED]
    unknown = 0
    for case in failed:
        reason = _reason(case, reasons)
        unknown += reason is None
        print(f"- {case}: {reason or 'NO REASON KNOWN'}")
    passed = len(counted) - len(failed)
    share = passed / max(1, len(counted))
    words = sum(outcome == WORDS for outcome in counted.values())
    print(f"{passed} of {len(counted)} pass ({share:.1%}), {words} of them but for literal words;")
    print(f"{len(outcomes) - len(counted)} say nothing: they are skipped or need their own model")
    return int(unknown > 0)


def _reason(case: str, reasons: Mapping[str, str]) -> str | None:
    """Return the reason of a case: its own, or that of all cases that begin like a name with *."""
    starts = (name for name in reasons if name.endswith("*") and case.startswith(name[:-1]))
    return reasons.get(case) or next((reasons[name] for name in starts), None)


if __name__ == "__main__":
    main()

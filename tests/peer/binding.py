"""Run llama-cpp-python's own tests on its Llama and on ngramspec.Llama: part of make peer.

    python tests/peer/binding.py [MODEL]

Their models cannot be downloaded: each is replaced by one of ours, or by MODEL, so cases that
expect a model's words or ids fail with both. What must be equal is what came of each case, down to
the message of a failure, which holds the words that came instead. A case that llama_cpp's class
fails for want of room (n_ctx in tokens of another vocabulary) says nothing: attach() makes room.
"""

from __future__ import annotations

import os
import subprocess
import sys
import types
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import run  # of this folder

NO_ROOM = "could not broadcast input array"
MODELS = {"QuantFactory/mamba-130m-hf-GGUF": "mamba", "tiiuae/Falcon-H1-Tiny": "lfm2"}


def main() -> None:
    """Run the tests with both classes and print the cases that differ."""
    tests = run.fetch().parents[4] / "tests"
    theirs, ours = (outcomes(tests, own) for own in ("0", "1"))
    differ = []
    for case in sorted(theirs.keys() | ours.keys()):
        if theirs.get(case) != ours.get(case) and NO_ROOM not in theirs.get(case, ""):
            differ.append(case)
            print(f"- {case}\n  llama_cpp: {theirs.get(case)}\n  ngramspec: {ours.get(case)}")
    passed = sum(not outcome for outcome in ours.values())
    print(f"{len(ours)} cases, {passed} pass with ngramspec.Llama, {len(differ)} differ")
    sys.exit(not ours or bool(differ))


def outcomes(tests: Path, own: str) -> dict[str, str]:
    """Return what came of each case: "" where it passed, otherwise why not."""
    model = sys.argv[1] if len(sys.argv) > 1 else str(run.embedded_model())
    results = run.WORK / f"binding-{own}.xml"
    path = os.pathsep.join((str(Path(__file__).parent), str(run.ROOT)))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "binding", "-p", "no:cacheprovider"]
    subprocess.run(
        [*command, f"--junitxml={results}", "--rootdir", str(tests), str(tests)],
        cwd=tests.parent,
        env={**os.environ, "PYTHONPATH": path, "PEER_OURS": own, "PEER_MODEL": model},
        stdout=subprocess.DEVNULL,
        check=False,
    )
    return {
        f"{case.get('classname')}::{case.get('name')}": "".join(
            part.get("message") or "" for part in case if part.tag != "system-out"
        )
        for case in ET.parse(results).iter("testcase")
    }


def local_model(repo_id: str, *_: Any, **__: Any) -> str:
    """Return a model of ours for one of the hub."""
    from helpers.gguf_models import build

    for name, own in MODELS.items():
        if repo_id.startswith(name):
            return build(own, run.WORK)
    return os.environ["PEER_MODEL"]


def pytest_configure() -> None:
    """Replace models and, for our class, llama_cpp's, before the tests import them."""
    import huggingface_hub
    import llama_cpp

    import ngramspec

    huggingface_hub.hf_hub_download = local_model
    for name in ("scipy", "scipy.special"):  # imported, and not used
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules["scipy.special"].log_softmax = None  # type: ignore[attr-defined]
    if os.environ["PEER_OURS"] == "1":
        llama_cpp.Llama = ngramspec.Llama


if __name__ == "__main__":
    main()

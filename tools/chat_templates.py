"""Compares prompts with those of a llama-server: every template of a folder, every example chat.

    python tools/chat_templates.py --llama-server bin/llama-server --templates models/templates

The templates are those of llama.cpp's models/templates, or any *.jinja; without --templates, the
small ones of the tests. For each, llama-server is started with the embedded model, and its answers
on /apply-template and /props are compared with ours. --record writes what it answers for the
templates of the tests (tests/golden/data/chat_prompts.json.gz).
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from helpers.chat_templates import TEMPLATES  # noqa: E402
from helpers.chats import CONVERSATIONS, our_answer  # noqa: E402
from ngramspec.llamacpp.model import LlamaModel  # noqa: E402
from ngramspec.models import embedded_model  # noqa: E402
from ngramspec.server import ServedModel  # noqa: E402

RECORDED = ROOT / "tests" / "golden" / "data" / "chat_prompts.json.gz"
PATIENCE = 60.0  # seconds for llama-server to start
FLAGS = ("--jinja", "-c", "512", "-np", "1", "-t", "1", "--no-warmup", "--offline")


def main() -> int:
    """Run the comparison; return 1 if a prompt differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--llama-server", required=True, help="the program to compare with")
    parser.add_argument("--templates", type=Path, help="a folder with *.jinja files")
    parser.add_argument("--only", default="", help="templates whose name holds this")
    parser.add_argument("--show", action="store_true", help="print how prompts differ")
    parser.add_argument("--record", action="store_true", help=f"write {RECORDED.name}")
    options = parser.parse_args()
    templates = dict(TEMPLATES)
    if options.templates:
        paths = sorted(options.templates.glob("*.jinja"))
        templates = {path.stem: path.read_text("utf-8") for path in paths}
    templates = {name: text for name, text in templates.items() if options.only in name}
    answers = {name: peer_answers(options.llama_server, text) for name, text in templates.items()}
    if options.record:
        text = json.dumps(answers, ensure_ascii=False, indent=0, sort_keys=True)
        RECORDED.write_bytes(gzip.compress(text.encode(), mtime=0))
    with LlamaModel(embedded_model(), vocab_only=True) as model:
        return int(compare(templates, answers, model, options.show))


def compare(
    templates: dict[str, str], answers: dict[str, Any], model: LlamaModel, show: bool
) -> bool:
    """Print a line per template and what differs; return whether anything does."""
    total = different = 0
    for name, text in templates.items():
        served = ServedModel(name="x", model=model, engine=None, template=text)  # type: ignore[arg-type]
        same, parts = 0, []
        for chat, theirs in answers[name]["answers"].items():
            ours = our_answer(CONVERSATIONS[chat], served)
            if ours == theirs:
                same += 1
                continue
            parts.append(f"{chat}: {reason(CONVERSATIONS[chat], served, ours, theirs)}")
            if show:
                lines = difflib.ndiff((theirs or "").split("\n"), (ours or "").split("\n"))
                parts += (f"    {line}" for line in lines if line[0] in "+-")
        if dict(served.chat_capabilities) != answers[name]["caps"]:
            parts.append(f"capabilities: {served.chat_capabilities} / {answers[name]['caps']}")
        total, different = total + len(CONVERSATIONS), different + len(CONVERSATIONS) - same
        print(f"{name[:50]:50} {same:3} of {len(CONVERSATIONS)} equal")
        print(*(f"  {part}" for part in parts), sep="\n", end="\n" if parts else "")
    print(f"{total - different} of {total} prompts are equal")
    return different > 0


def reason(body: dict[str, Any], served: ServedModel, ours: str | None, theirs: str | None) -> str:
    """Return why two prompts differ, as far as it is known."""
    can = served.chat_capabilities
    calls = "tools" in body or any("tool_calls" in message for message in body["messages"])
    if calls and not (can["supports_tools"] or can["supports_tool_calls"]):
        return "the template knows no tools, so we write them as text"
    if ours is None:
        return "only we refuse it"
    return "only llama-server refuses it" if theirs is None else "the prompts differ"


def peer_answers(program: str, template: str) -> dict[str, Any]:
    """Return llama-server's capabilities and prompts of a template; None = it refuses."""
    with socket.socket() as probe, tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        file.write(template)
        file.flush()
        line = [program, "-m", str(embedded_model()), "--port", str(port), *FLAGS]
        quiet = subprocess.DEVNULL
        with (
            subprocess.Popen(
                [*line, "--chat-template-file", file.name], stdout=quiet, stderr=quiet
            ) as process,
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
        ):
            try:
                _wait(process, client)
                prompts = {
                    name: client.post("/apply-template", json=body).json().get("prompt")
                    for name, body in CONVERSATIONS.items()
                }
                caps = client.get("/props").json()["chat_template_caps"]
            finally:
                process.terminate()
    return {"caps": caps, "answers": prompts}


def _wait(process: subprocess.Popen[bytes], client: httpx.Client) -> None:
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise SystemExit("llama-server does not start with this template")


if __name__ == "__main__":
    sys.exit(main())

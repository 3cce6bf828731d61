"""`ngramspec serve` where memory is scarce: a limit of this system, not a fake."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.gguf_models import build
from ngramspec.models import embedded_model

pytest.importorskip("resource")
LONG = ("--override-kv", "llama.context_length=int:400000", "-t", "1")
LIMITED = """
import resource, sys
from pathlib import Path
import ngramspec.cli.serve.run
from ngramspec.cli import main
from ngramspec.text.tokenizers.llama_library import load_library
load_library()
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
main()
"""
pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")


@pytest.fixture
def model(tmp_path: Path) -> str:
    return build("llama", tmp_path)


@pytest.fixture
def limited(spawn: Any, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that starts the command with so many bytes of memory."""
    program = tmp_path / "limited.py"
    program.write_text(LIMITED)
    return lambda free, *arguments: spawn(*arguments, program=(str(program), str(free)))


def failure_of(server: Any, code: int = 2) -> str:
    """Return the error of a command that has ended by itself: it was not killed, nor aborted."""
    assert server.wait() == code
    return str(server.lines[-1])


def test_the_context_is_cut_and_told(limited: Any, model: str) -> None:
    server = limited(700 << 20, "-m", model, *LONG)
    url = server.url()
    match = re.search(
        r"^Context ([\d,]+) of 400,128 tokens fit in [\d.]+ MiB \(limit: ulimit -v\) "
        r"of free memory; -c changes it$",
        server.text,
        re.M,
    )
    assert match is not None, server.text
    tokens = int(match[1].replace(",", ""))
    assert 4096 < tokens < 400_000
    props = httpx.get(f"{url}/props").json()
    assert props["default_generation_settings"]["n_ctx"] == tokens
    memory = props["memory"]
    assert memory["context"] == pytest.approx(tokens * 2 * 2 * 96 * 4, rel=1e-3)  # as it is logged
    assert memory["context_per_slot"] == memory["context"]
    assert memory["context_shared"]
    assert memory["weights"] == 1_394_880
    assert (memory["device"], memory["compute"] > 1e6) == ("CPU", True)
    assert re.search(
        r"^memory: weights 1.3 MiB, context [\d.]+ MiB \(shared by 4 slots\), "
        r"computing [\d.]+ MiB; CPU$",
        server.text,
        re.M,
    )
    reply = httpx.post(f"{url}/completion", json={"prompt": "abc", "n_predict": 4}, timeout=60)
    assert reply.json()["tokens_predicted"] == 4


def test_what_cannot_fit_is_refused_before_it_is_tried(limited: Any, model: str) -> None:
    text = failure_of(limited(700 << 20, "-m", model, *LONG, "-c", "2000000", "-np", "2"))
    match = re.fullmatch(
        r"Error: -c 2000000 with -np 2 needs \d\.\d GiB, and [\d.]+ MiB \(limit: ulimit -v\) "
        r"are free: -c (\d+) fits; --fit off tries it anyway",
        text,
    )
    assert match is not None, text
    server = limited(700 << 20, "-m", model, *LONG, "-c", match[1], "-np", "2")
    assert server.url()
    assert "0.2 MiB per slot" not in server.text
    assert server.end() == 0


def test_a_failed_allocation_names_the_options_and_what_fits(limited: Any, model: str) -> None:
    text = failure_of(limited(700 << 20, "-m", model, *LONG, "-c", "2000000", "--fit", "off"), 1)
    assert text.startswith("Error: llama.cpp cannot make a context of 2,000,128 tokens for 4 seq")
    assert re.search(r"-c and -np say how large it is; -c \d+ fits$", text), text


def test_the_trained_context_is_shared_by_any_number_of_slots(spawn: Any) -> None:
    server = spawn("-np", "8")
    props = httpx.get(f"{server.url()}/props").json()
    assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (8, 2048)
    one = props["memory"]
    assert (one["context"], one["context_shared"]) == (2048 * 9 * 256 * 2 * 2, True)
    server = spawn("-np", "8", "-no-kvu")
    each = httpx.get(f"{server.url()}/props").json()["memory"]
    assert each["context"] == 8 * each["context_per_slot"] == 8 * one["context"]
    assert each["weights"] == pytest.approx(embedded_model().stat().st_size, rel=0.1)
    assert "per slot), computing" in server.text


def test_zero_asks_for_the_whole_trained_context(limited: Any, model: str) -> None:
    text = failure_of(limited(700 << 20, "-m", model, *LONG, "-c", "0"))
    assert text.startswith("Error: -c 400128 with -np 4 needs 9")

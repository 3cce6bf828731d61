"""A candidate as command lines and as Python, ready to paste."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ngramspec.drafting.config import CONFIGS, option_flag
from ngramspec.lab.costs import Costs
from ngramspec.lab.tune.candidates import LLAMA_SERVER, Candidate


def ready_lines(
    candidate: Candidate, costs: Costs, model: Path | None, more: Sequence[str] = ()
) -> dict[str, str]:
    """Return the lines to paste, by place: "serve", "create_drafter", "ngram_draft".

    more: Further options of `serve`.
    """
    return {
        "serve": serve_line(candidate, model, more),
        "create_drafter": drafter_line(candidate, costs),
        "ngram_draft": draft_model_line(candidate, costs),
    }


def serve_line(candidate: Candidate, model: Path | None, more: Sequence[str] = ()) -> str:
    """Return the `ngramspec serve` command with these drafters, sizes and further options."""
    words = ["ngramspec", "serve", *(["--model", str(model)] if model is not None else [])]
    words += ["--spec-type", candidate.spec]
    words += [] if candidate.adaptive else ["--policy", "fixed"]
    for name in candidate.names:
        for key, value in candidate.params.items():
            if _knows(name, key):
                words += _option(name, key, value)
    return shlex.join([*words, *more])


def llama_server_line(candidate: Candidate, model: Path | None, more: Sequence[str] = ()) -> str:
    """Return the llama-server command with these drafters and all sizes, also defaults.

    more: Further options.

    Raises:
        StopIteration: candidate.for_llama_server is False.
    """
    words = ["llama-server", *(["--model", str(model)] if model is not None else [])]
    words += ["--spec-type", candidate.spec]
    for name in candidate.names:
        for key in LLAMA_SERVER[name]:
            words += _option(name, key, candidate.value(key))
    return shlex.join([*words, *more])


def drafter_line(candidate: Candidate, costs: Costs) -> str:
    """Return the call of create_drafter."""
    return f"create_drafter({_arguments(candidate)}{_policy(candidate, costs)})"


def draft_model_line(candidate: Candidate, costs: Costs) -> str:
    """Return the draft_model= of llama-cpp-python."""
    policy = _policy(candidate, costs) or ', policy="fixed"'
    return f"NgramDraft({_arguments(candidate)}{policy})"


def imports(candidate: Candidate, costs: Costs) -> list[str]:
    """Return the import statements of these calls."""
    names = ["AutoPolicy"] * candidate.adaptive + ["NgramDraft", "create_drafter"]
    statements = [f"from ngramspec import {', '.join(names)}"]
    if candidate.adaptive and costs.path is None:
        statements.append("from ngramspec.costs import PROFILES")
    elif candidate.adaptive:
        statements += ["from pathlib import Path", "from ngramspec.costs import load_costs"]
    return statements


def _arguments(candidate: Candidate) -> str:
    named = (f"{key}={value}" for key, value in candidate.params.items())
    return ", ".join([f'"{candidate.spec}"', *named])


def _policy(candidate: Candidate, costs: Costs) -> str:
    if not candidate.adaptive:
        return ""
    table = f'PROFILES["{costs.profile}"]'
    if costs.path is not None:
        table = f"load_costs(Path({str(costs.path)!r}))"
    return f", policy=AutoPolicy(costs={table})"


def _knows(name: str, key: str) -> bool:
    return any(field.name == key for field in dataclasses.fields(CONFIGS[name]))


def _option(name: str, key: str, value: Any) -> list[str]:
    flag = option_flag(name, key, value)
    return [flag] if isinstance(value, bool) else [flag, str(value)]

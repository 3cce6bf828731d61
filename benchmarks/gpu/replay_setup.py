"""The exact set-up of a measurement, for the results beside its figures."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ngramspec import __version__

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"


def facts(*packages: str) -> dict[str, Any]:
    """Return command, machine, driver and versions; "" or None for what cannot be found out."""
    return {
        "command": " ".join(["python", *_relative(sys.argv)]),
        "gpu": _nvidia("name,driver_version,memory.total"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": " ".join([platform.system(), platform.machine(), *platform.libc_ver()]),
        "python": platform.python_version(),
        "ngramspec": __version__,
        "commit": _commit(),
        "packages": {name: _version(name) for name in packages},
    }


def device_facts(device: Any) -> dict[str, Any]:
    """Return what torch says of a device."""
    import torch

    properties: dict[str, Any] = {"device": str(device), "cuda": torch.version.cuda}
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        properties["name"] = about.name
        properties["memory_gib"] = round(about.total_memory / 2**30, 1)
        properties["capability"] = f"{about.major}.{about.minor}"
    return properties


def save(body: dict[str, Any], path: Path) -> None:
    """Write results as JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(body, indent=1) + "\n", "utf-8")
    part.replace(path)


def _relative(arguments: list[str]) -> list[str]:
    """Return a command line without where the checkout lies."""
    program = Path(arguments[0]).resolve()
    inside = program.is_relative_to(ROOT)
    return [str(program.relative_to(ROOT)) if inside else program.name, *arguments[1:]]


def _commit() -> str:
    """Return the checkout's commit, or what a copy without git is told of it."""
    commit = os.environ.get("NGRAMSPEC_COMMIT", "")
    return commit or _output("git", "-C", str(ROOT), "describe", "--always", "--dirty")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _nvidia(query: str) -> str:
    return _output("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader")


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), "")

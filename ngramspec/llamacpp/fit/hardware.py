"""find_hardware: the GPUs of this machine, and how to build llama.cpp for them."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# Vulkan drivers that compute on the CPU.
_SOFTWARE = ("lvp", "lavapipe", "llvmpipe", "swiftshader", "swrast")


@dataclass(frozen=True)
class Hardware:
    """A GPU of this machine.

    kind: cuda, rocm, metal or vulkan: by what programs use it.
    name: Its own name, or its maker's.
    """

    kind: str
    name: str

    @property
    def install_line(self) -> str:
        """Return the command that builds llama-cpp-python for it."""
        option = {"cuda": "CUDA", "rocm": "HIP", "metal": "METAL", "vulkan": "VULKAN"}[self.kind]
        return (
            f'CMAKE_ARGS="-DGGML_{option}=on" pip install --force-reinstall --no-deps '
            '--no-cache-dir "llama-cpp-python>=0.3.36"'
        )


def find_hardware(
    root: Path = Path("/"),
    *,
    system: str | None = None,
    machine: str | None = None,
    programs: Sequence[str | os.PathLike[str]] | None = None,
) -> list[Hardware]:
    """Return the GPUs that llama.cpp can be built for, at most one of each kind, the best first.

    Args:
        root: Where dev, proc, sys, usr and etc are.
        system, machine: As the module platform names them; None = this machine's.
        programs: Folders of programs; None = those of PATH.
    """
    system = system or platform.system()
    if system == "Darwin":
        apple = (machine or platform.machine()) == "arm64"
        return [Hardware("metal", "Apple silicon")] if apple else []
    if programs is None:
        programs = os.environ.get("PATH", "").split(os.pathsep)
    gpus = []
    for find in (_nvidia, _amd):
        gpus += [find(root, [Path(folder) for folder in programs if folder], system)]
    gpus.append(None if any(gpus) else _vulkan(root))
    return [one for one in gpus if one]


Find = Callable[[Path, Sequence[Path], str], "Hardware | None"]


def _nvidia(root: Path, programs: Sequence[Path], system: str) -> Hardware | None:
    named = "NVIDIA GPU"
    for line in _lines((root / "proc" / "driver" / "nvidia" / "gpus").glob("*/information")):
        if line.startswith("Model:"):
            named = line.partition(":")[2].strip() or named
            break
    # A container may see the driver, but none of the devices.
    device = any(path.name[6:].isdigit() for path in (root / "dev").glob("nvidia[0-9]*"))
    windows = (root / "dev" / "dxg").exists() and (root / "usr" / "lib" / "wsl" / "lib").is_dir()
    if windows:
        programs = [*programs, root / "usr" / "lib" / "wsl" / "lib"]
    tool = "nvidia-smi.exe" if system == "Windows" else "nvidia-smi"
    answers = (system == "Windows" or windows) and any((p / tool).is_file() for p in programs)
    return Hardware("cuda", named) if device or answers else None


def _amd(root: Path, programs: Sequence[Path], system: str) -> Hardware | None:
    if not (root / "dev" / "kfd").exists():
        return None
    nodes = root / "sys" / "class" / "kfd" / "kfd" / "topology" / "nodes"
    for node in sorted(nodes.glob("*")):
        units = [line.split() for line in _lines([node / "properties"])]
        if any(len(u) == 2 and u[0] == "simd_count" and u[1] != "0" for u in units):  # else a CPU
            name = next(_lines([node / "name"]), "").strip()
            return Hardware("rocm", f"AMD GPU {name}".strip())
    return None


def _vulkan(root: Path) -> Hardware | None:
    if not any((root / "dev" / "dri").glob("renderD*")):
        return None
    for folder in ("usr/share", "usr/local/share", "etc"):
        for driver in sorted((root / folder / "vulkan" / "icd.d").glob("*.json")):
            if not driver.name.lower().startswith(_SOFTWARE):
                maker = driver.name.partition("_")[0].partition(".")[0]
                return Hardware("vulkan", f"GPU with a Vulkan driver ({maker})")
    return None


def _lines(paths: Iterator[Path] | Sequence[Path]) -> Iterator[str]:
    """Yield the lines of files; those that cannot be read have none."""
    for path in paths:
        try:
            yield from path.read_text(errors="replace").splitlines()
        except OSError:
            continue

"""What the machine has: memory that this process can still use, within its container, and GPUs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

KIB = 1024
M_ARENA_MAX = -8  # glibc's malloc.h
THREADS = 96 << 20  # bytes of address space, mostly unused: stacks of a dozen threads
# Vulkan drivers that compute on the CPU.
_SOFTWARE = ("lvp", "lavapipe", "llvmpipe", "swiftshader", "swrast")


@dataclass(frozen=True)
class HostSpace:
    """Bytes of the host's memory.

    free: What can be used without swapping; what files have cached counts as free.
    total: All there is, or the limit of the container.
    swap: Free swap space; 0 under a limit.
    limit: Whose limit counts, "" where it is the machine's memory.
    """

    free: int
    total: int
    swap: int = 0
    limit: str = ""


@dataclass(frozen=True)
class _Names:
    """What files of a control group are called: version 1 or 2."""

    limits: tuple[str, ...]
    used: str
    cached: tuple[str, ...]  # keys in memory.stat of what the kernel gives back when it must


_V1 = _Names(
    ("memory.limit_in_bytes",),
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)
_V2 = _Names(
    ("memory.max", "memory.high"), "memory.current", ("inactive_file", "active_file")
)  # fmt: skip


def host_space(root: Path = Path("/")) -> HostSpace | None:
    """Return the host's memory, None where the system does not tell as Linux does.

    The limits of all control groups above this process count, of version 1 and 2.

    root: Where proc and sys/fs/cgroup are.
    """
    meminfo = _table(root / "proc" / "meminfo")
    if "MemTotal" not in meminfo or "MemAvailable" not in meminfo:
        return None
    free, total = meminfo["MemAvailable"] * KIB, meminfo["MemTotal"] * KIB
    limit = ""
    for group, names in _groups(root):
        for most in filter(None, (_number(group / name) for name in names.limits)):
            if most >= meminfo["MemTotal"] * KIB:
                continue
            limit, total = "the container", min(total, most)
            used = _number(group / names.used) or 0
            stat = _table(group / "memory.stat")
            cached = sum(stat.get(name, 0) for name in names.cached)
            free = min(free, max(0, most - max(0, used - cached)))
    room = _address_space()
    if room is not None and room < free:
        limit, total, free = "ulimit -v", min(total, room), room
    swap = 0 if limit else meminfo.get("SwapFree", 0) * KIB
    return HostSpace(free, total, swap, limit)


def _address_space() -> int | None:
    """Return the bytes that this process can still map beside its threads, None = no limit.

    Under a limit threads begin to share one heap: glibc reserves 64 MiB for each other, and would
    do so until no thread can start.
    """
    import resource  # only where proc is

    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY:
        return None
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return max(0, most - pages * resource.getpagesize() - THREADS)


def _groups(root: Path) -> Iterator[tuple[Path, _Names]]:
    """Yield the folders of the memory's control groups of this process, up to the topmost."""
    mounted = root / "sys" / "fs" / "cgroup"
    try:
        lines = (root / "proc" / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            top, names = mounted, _V2
        elif "memory" in controllers.split(","):
            top, names = mounted / "memory", _V1
        else:
            continue
        # In a container the path may be the host's, which is not there: the topmost is its own.
        own = PurePosixPath(path).relative_to("/") if path.startswith("/") else PurePosixPath()
        for part in (own, *own.parents):
            if ".." not in part.parts and (top / part).is_dir():
                yield top / part, names


def _number(path: Path) -> int | None:
    """Return the number in a file; None if there is none, as for "max"."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _table(path: Path) -> Mapping[str, int]:
    """Return a file of names and numbers; one that cannot be read is empty."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    numbers = {}
    for line in lines:
        name, *rest = line.replace(":", " ").split()[:2] or [""]
        if rest and rest[0].isdigit():
            numbers[name] = int(rest[0])
    return numbers


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

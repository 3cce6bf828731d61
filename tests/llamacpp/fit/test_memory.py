"""host_space: free memory, with the limits of control groups of version 1 and 2."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ngramspec.llamacpp.fit.machine import HostSpace, host_space

GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10
MEMINFO = """\
MemTotal:       16777216 kB
MemFree:         1048576 kB
MemAvailable:   12582912 kB
SwapTotal:       4194304 kB
SwapFree:        2097152 kB
HugePages_Total:       0
"""


def write(root: Path, **files: object) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder with proc of a machine with 16 GiB, 12 of them free."""
    write(tmp_path, proc__meminfo=MEMINFO, proc__self__cgroup="0::/\n")
    return tmp_path


def write_group(root: Path, path: str, files: Mapping[str, object]) -> None:
    folder = root / "sys" / "fs" / "cgroup" / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")


def test_a_machine_without_limits(root: Path) -> None:
    assert host_space(root) == HostSpace(12 * GIB, 16 * GIB, swap=2 * GIB)
    write_group(root, "", {"memory.max": "max", "memory.current": 5 * GIB})
    assert host_space(root) == HostSpace(12 * GIB, 16 * GIB, swap=2 * GIB)


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    assert host_space(tmp_path) is None
    write(tmp_path, proc__meminfo="MemTotal: 5 kB\n")
    assert host_space(tmp_path) is None


def test_version_2_in_a_container(root: Path) -> None:
    stat = f"anon {GIB}\ninactive_file {256 * MIB}\nactive_file {128 * MIB}\nslab 5"
    files = {"memory.max": 4 * GIB, "memory.current": 2 * GIB, "memory.stat": stat}
    write_group(root, "", files)
    assert host_space(root) == HostSpace(2 * GIB + 384 * MIB, 4 * GIB, limit="the container")


def test_version_2_counts_every_group_above(root: Path) -> None:
    write(root, proc__self__cgroup="0::/system.slice/serve.service\n")
    write_group(root, "system.slice/serve.service", {"memory.max": "max", "memory.current": GIB})
    write_group(root, "system.slice", {"memory.max": 8 * GIB, "memory.current": 5 * GIB})
    assert host_space(root) == HostSpace(3 * GIB, 8 * GIB, limit="the container")
    limit = {"memory.max": "max", "memory.high": 2 * GIB, "memory.current": GIB}
    write_group(root, "system.slice/serve.service", limit)
    assert host_space(root) == HostSpace(GIB, 2 * GIB, limit="the container")


def test_version_1_in_a_container_that_sees_the_hosts_path(root: Path) -> None:
    write(root, proc__self__cgroup="9:name=systemd:/docker/ab\n4:cpu,memory:/docker/ab\n0::/\n")
    stat = f"cache {GIB}\ntotal_inactive_file {MIB}\ntotal_active_file {3 * MIB}"
    write_group(root, "memory", {
        "memory.limit_in_bytes": GIB, "memory.usage_in_bytes": 600 * MIB, "memory.stat": stat,
    })  # fmt: skip
    assert host_space(root) == HostSpace(428 * MIB, GIB, limit="the container")


def test_version_1_without_a_limit_is_a_number_beyond_the_memory(root: Path) -> None:
    write(root, proc__self__cgroup="4:memory:/user.slice\n")
    none = {"memory.limit_in_bytes": 9223372036854771712, "memory.usage_in_bytes": GIB}
    write_group(root, "memory/user.slice", none)
    assert host_space(root) == HostSpace(12 * GIB, 16 * GIB, swap=2 * GIB)


def test_a_limit_above_what_is_free_leaves_what_is_free(root: Path) -> None:
    write_group(root, "", {"memory.max": 15 * GIB, "memory.current": GIB})
    assert host_space(root) == HostSpace(12 * GIB, 15 * GIB, limit="the container")


def test_a_group_over_its_limit_has_nothing_free(root: Path) -> None:
    write_group(root, "", {"memory.max": GIB, "memory.current": 2 * GIB})
    assert host_space(root) == HostSpace(0, GIB, limit="the container")


@pytest.mark.parametrize("line", ["0::/../../x", "0::", "nonsense", "0::/not/there", ""])
def test_odd_lines_of_groups(root: Path, line: str) -> None:
    write(root, proc__self__cgroup=line)
    space = host_space(root)
    assert space is not None
    assert space.free == 12 * GIB


def test_this_machine() -> None:
    space = host_space()
    assert (space is not None) == sys.platform.startswith("linux")
    if space is not None:
        assert 0 < space.free <= space.total + space.swap

"""find_hardware: GPUs as their drivers show them, in folders as they were found on machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from ngramspec.llamacpp.fit.machine import Hardware, find_hardware


def with_files(root: Path, *paths: str, **texts: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    for path, text in texts.items():
        file = root / path.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def kinds(root: Path, **changes: object) -> list[str]:
    options = {"system": "Linux", "machine": "x86_64", "programs": [], **changes}
    return [one.kind for one in find_hardware(root, **options)]  # type: ignore[arg-type]


INFORMATION = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 261\nGPU UUID: \t GPU-1234\n"


def test_nothing(tmp_path: Path) -> None:
    assert kinds(tmp_path) == []


def test_nvidia(tmp_path: Path) -> None:
    card = tmp_path / "proc/driver/nvidia/gpus/0000:18:00.0/information"
    card.parent.mkdir(parents=True)
    card.write_text(INFORMATION)
    assert kinds(tmp_path) == []  # a container without the device
    with_files(tmp_path, "dev/nvidiactl")
    assert kinds(tmp_path) == []
    with_files(tmp_path, "dev/nvidia0")
    (gpu,) = find_hardware(tmp_path, system="Linux", programs=[])
    assert gpu == Hardware("cuda", "NVIDIA H100 80GB HBM3")
    assert gpu.install_line == (
        'CMAKE_ARGS="-DGGML_CUDA=on" pip install --force-reinstall --no-deps --no-cache-dir '
        '"llama-cpp-python>=0.3.36"'
    )


def test_nvidia_without_proc(tmp_path: Path) -> None:
    assert kinds(with_files(tmp_path, "dev/nvidia1")) == ["cuda"]


def test_nvidia_on_windows(tmp_path: Path) -> None:
    folder = tmp_path / "programs"
    assert kinds(tmp_path, system="Windows", programs=[folder]) == []
    with_files(tmp_path, "programs/nvidia-smi.exe")
    assert kinds(tmp_path, system="Windows", programs=[folder]) == ["cuda"]
    assert kinds(tmp_path, system="Linux", programs=[folder]) == []


def test_nvidia_on_windows_subsystem_for_linux(tmp_path: Path) -> None:
    with_files(tmp_path, "dev/dxg", "usr/lib/wsl/lib/libdxcore.so")
    assert kinds(tmp_path) == []
    with_files(tmp_path, "usr/lib/wsl/lib/nvidia-smi")
    assert kinds(tmp_path) == ["cuda"]


def test_amd(tmp_path: Path) -> None:
    nodes = "sys__class__kfd__kfd__topology__nodes__"
    with_files(
        tmp_path, "dev/kfd", **{f"{nodes}0__properties": "cpu_cores_count 16\nsimd_count 0\n"}
    )
    assert kinds(tmp_path) == []  # the processor is a node, too
    with_files(tmp_path, **{f"{nodes}1__properties": "cpu_cores_count 0\nsimd_count 256\n"})
    with_files(tmp_path, **{f"{nodes}1__name": "navi31\n"})
    (gpu,) = find_hardware(tmp_path, system="Linux", programs=[])
    assert gpu == Hardware("rocm", "AMD GPU navi31")
    assert "-DGGML_HIP=on" in gpu.install_line


@pytest.mark.parametrize(("machine", "expected"), [("arm64", ["metal"]), ("x86_64", [])])
def test_apple(tmp_path: Path, machine: str, expected: list[str]) -> None:
    assert kinds(tmp_path, system="Darwin", machine=machine) == expected


def test_vulkan(tmp_path: Path) -> None:
    with_files(tmp_path, "usr/share/vulkan/icd.d/lvp_icd.x86_64.json")
    assert kinds(tmp_path) == []
    with_files(tmp_path, "dev/dri/renderD128")
    assert kinds(tmp_path) == []  # computes on the CPU
    with_files(tmp_path, "usr/share/vulkan/icd.d/intel_icd.x86_64.json")
    (gpu,) = find_hardware(tmp_path, system="Linux", programs=[])
    assert gpu == Hardware("vulkan", "GPU with a Vulkan driver (intel)")
    assert "-DGGML_VULKAN=on" in gpu.install_line
    with_files(tmp_path, "dev/nvidia0")
    assert kinds(tmp_path) == ["cuda"]  # the better way for the same GPU

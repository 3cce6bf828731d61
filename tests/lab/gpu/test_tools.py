"""What the replay on llama.cpp runs on: a large model in seconds, a library for other machines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.gpu_scripts import GPU, needs
from helpers.paths import ROOT


def test_a_tiled_model_is_as_large_as_one_that_is_drawn_and_loads(tmp_path: Path) -> None:
    needs("llama_cpp", "gguf")
    import numpy as np
    from gguf import GGUFReader

    from ngramspec.llamacpp.model import LlamaModel

    sizes = ("--layers", "2", "--width", "64", "--feed-forward", "64", "--kv-heads", "1")
    paths = {}
    for name, more in (("drawn", ()), ("tiled", ("--tiled",))):
        paths[name] = tmp_path / f"{name}.gguf"
        script = str(ROOT / "benchmarks" / "random_model.py")
        command = (sys.executable, script, str(paths[name]), *sizes, "--vocab", "5000", *more)
        subprocess.run(command, check=True, capture_output=True)
    assert paths["drawn"].stat().st_size == paths["tiled"].stat().st_size
    equal = {}
    for name, path in paths.items():
        tensors = {one.name: one.data for one in GGUFReader(path).tensors}
        layers = [tensors[f"blk.{i}.ffn_up.weight"] for i in range(2)]
        rows = tensors["token_embd.weight"]
        equal[name] = (np.array_equal(*layers), np.array_equal(rows[:904], rows[4096:]))
    assert equal == {"drawn": (False, False), "tiled": (True, True)}
    with LlamaModel(paths["tiled"]) as model:
        assert model.vocab_size == 5000


@pytest.mark.skipif(os.name == "nt", reason="a shell script")
@pytest.mark.parametrize("portable", ["", "1"])
def test_a_library_for_other_machines_needs_no_more_than_avx2(
    tmp_path: Path, portable: str
) -> None:
    """With a cmake that builds nothing, and a strip that says what it is given."""
    sources, into, tools = (tmp_path / name for name in ("sources", "into", "tools"))
    (sources / "vendor" / "llama.cpp").mkdir(parents=True)
    (sources / "vendor" / "llama.cpp" / "CMakeLists.txt").write_text("")
    (sources / "llama_cpp").mkdir()
    (sources / "llama_cpp" / "__init__.py").write_text("")
    tools.mkdir()
    built = into / "cmake" / "bin"
    programs = {
        "cmake": f'echo cmake "$@"; mkdir -p {built}; echo > {built}/libllama.so.1; '
        f"ln -sf libllama.so.1 {built}/libllama.so",
        "strip": 'echo strip "$@"',
    }
    for name, body in programs.items():
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "LLAMA_SOURCES": str(sources),
        "PORTABLE": portable,
    }
    done = subprocess.run(
        [str(GPU / "build_llama_cuda.sh"), "cpu", str(into)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    configured = done.stdout.splitlines()[0]
    assert ("-DGGML_NATIVE=OFF" in configured) == bool(portable)
    assert ("-DGGML_AVX2=ON" in configured) == bool(portable)
    assert ("-DGGML_NATIVE=ON" in configured) != bool(portable)
    assert "-DGGML_CUDA=OFF" in configured
    stripped = [line for line in done.stdout.splitlines() if line.startswith("strip")]
    expected = [f"strip --strip-unneeded {into}/lib/libllama.so.1"] if portable else []
    assert stripped == expected
    assert (into / "lib" / "libllama.so").is_symlink()

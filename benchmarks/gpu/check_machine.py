"""Whether this machine has what the measurements need: imports all of it, runs one small pass.

    python benchmarks/gpu/check_machine.py              # some seconds
    python benchmarks/gpu/check_machine.py --small      # a machine without a GPU will do

Prints what is missing and what to do about it; exits with 1 if neither kind of target can be
measured.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple


class Need(NamedTuple):
    """A module that targets of a kind need."""

    module: str
    package: str
    least: str
    kinds: tuple[str, ...]


TORCH, LLAMA = KINDS = ("torch", "llama")
NEEDS = (
    Need("numpy", "numpy", "1.26", KINDS),
    Need("xxhash", "xxhash", "3.4", KINDS),
    Need("filelock", "filelock", "3.12", KINDS),
    Need("torch", "torch", "2.6", (TORCH,)),
    Need("transformers", "transformers", "5.17", (TORCH,)),
    Need("llama_cpp", "llama-cpp-python", "0.3.36", (LLAMA,)),
    Need("gguf", "gguf", "0.17", (LLAMA,)),
)
SCRIPTS = {
    TORCH: ("transformers_replay", "profile_steps", "pass_costs", "packed_exactness"),
    LLAMA: ("llama_replay",),
}
BUILD = (
    "install a wheel for this Python, or build it here without a network: "
    "pip install --no-build-isolation --no-deps . (needs Cython, setuptools and a C compiler)"
)
Problems = dict[str, list[str]]


def numbers(text: str) -> list[int]:
    """Return the numbers that a version begins with."""
    match = re.match(r"\d+(\.\d+)*", text)
    return [int(part) for part in match[0].split(".")] if match else []


def problem_of(need: Need) -> str:
    """Import a module; return what is wrong with it, "" if nothing is."""
    try:
        module = importlib.import_module(need.module)
    except (ImportError, OSError, RuntimeError) as error:  # a library in it may be missing
        return f"{need.package}: {error}: install {need.package}>={need.least}"
    try:
        there = version(need.package)
    except PackageNotFoundError:  # its files lie in PYTHONPATH
        there = str(getattr(module, "__version__", ""))
    print(f"{need.package} {there}")
    if numbers(there) < numbers(need.least):
        return f"{need.package} {there} is too old: install {need.package}>={need.least}"
    return ""


def check_scripts(kind: str) -> str:
    """Import what measures targets of a kind."""
    for name in SCRIPTS[kind]:
        importlib.import_module(name)
    return ""


def check_package() -> str:
    """Import ngramspec, which has compiled modules."""
    try:
        package = importlib.import_module("ngramspec")
    except ImportError as error:
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        return f"ngramspec cannot be imported by Python {python}: {error}: {BUILD}"
    print(f"ngramspec {package.__version__}, {Path(package.__file__ or '').parent}")
    return ""


def check_texts() -> str:
    """Read a few recorded requests."""
    from replay_texts import load_texts, set_names

    load_texts(set_names(), 1, 16, 16)
    return ""


def check_torch(small: bool) -> str:
    """Do a small pass on the GPU, as a graph and without."""
    import torch

    if not torch.cuda.is_available() and not small:
        return f"torch {torch.__version__} finds no CUDA device: look at nvidia-smi"
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        print(
            f"{torch.cuda.get_device_name(device)}, {free / 1e9:.1f} GB of {total / 1e9:.1f} GB "
            f"free, CUDA {torch.version.cuda}"
        )
    return small_pass(device)


def small_pass(device: Any) -> str:
    """Run a pass as a graph and one launched kernel by kernel; say if they choose otherwise.

    Neither a graph that cannot be captured nor other choices keep anything from being measured.
    """
    import numpy as np
    import torch

    from packed_llama import SHAPES, Cache, random_model
    from packed_passes import CaptureError, Passes

    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    model = random_model(SHAPES["small"], device, dtype)
    cache = Cache(SHAPES["small"], 1, 512, device, dtype)
    cache.fill_with_noise()
    passes = Passes(model, cache, 4, graphs=True)
    newest, at = np.array([5], np.int32), np.array([300], np.int32)
    drafts, lengths = np.array([[7, 11, 13, 17]], np.int32), np.array([4], np.int32)
    chosen = []
    for graphs in (passes.graphs, False):
        passes.graphs = graphs
        try:
            passes.launch(newest, at, drafts, lengths)
        except CaptureError as error:
            print(error)
            continue
        chosen.append(passes.wait().tolist())
    if chosen[0] != chosen[-1]:
        print(f"a graph chose {chosen[0]}, the same pass without one {chosen[-1]}")
    print(f"a small pass on {device} chose {len(chosen[-1])} tokens")
    return ""


def check_llama(small: bool) -> str:
    """Look for the library, and the GPU that it was built for."""
    from ngramspec.text.tokenizers.llama_library import load_library

    lib = load_library().lib
    print(f"llama.cpp: {lib.llama_print_system_info().decode()}")
    if small or lib.llama_supports_gpu_offload():
        return ""
    return (
        "llama.cpp finds no GPU: build it with build_llama_cuda.sh and name its folder in "
        "LLAMA_CPP_LIB_PATH; cuBLAS must be in LD_LIBRARY_PATH if the toolkit is elsewhere"
    )


def attempt(kind: str, problems: Problems, check: Callable[[], str]) -> None:
    """Check something for a kind of target, unless something was wrong already."""
    if problems[kind]:
        return
    try:
        problem = check()
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    if problem:
        problems[kind].append(problem)


def check(small: bool) -> Problems:
    """Return what is wrong, for each kind of target."""
    problems: Problems = {kind: [] for kind in KINDS}
    for need in NEEDS:
        if problem := problem_of(need):
            for kind in need.kinds:
                problems[kind].append(problem)
    for kind in KINDS:
        attempt(kind, problems, check_package)
        attempt(kind, problems, check_texts)
        attempt(kind, problems, lambda kind=kind: check_scripts(kind))  # type: ignore[misc]
    attempt(TORCH, problems, lambda: check_torch(small))
    attempt(LLAMA, problems, lambda: check_llama(small))
    return problems


def main() -> None:
    """Check, print, tell by the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a GPU need not be there")
    parser.add_argument("--json", type=Path, help="where problems go")
    options = parser.parse_args()
    problems = check(options.small)
    if options.json:
        import json

        options.json.write_text(json.dumps(problems, indent=1) + "\n", "utf-8")
    for kind, reasons in problems.items():
        scripts = ", ".join(f"{name}.py" for name in SCRIPTS[kind])
        print(f"{scripts}: {'ready' if not reasons else '; '.join(reasons)}")
    if all(problems.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

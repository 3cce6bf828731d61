"""Kernels that have AVX2 beside the baseline: equal results, and nothing wide anywhere else."""

from __future__ import annotations

import ctypes
import platform
import re
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ngramspec
from helpers.paths import ROOT

HEADERS = ROOT / "ext" / "include"
KERNELS = """
#include "ngs_suffix.h"
#include "ngs_rows.h"
#include "ngs_candidates.h"
#include "ngs_top.h"
extern "C" {
int wide(void) { return NGS_AVX2; }
float row_max(const float *row, long n) { return ngs_row_max(row, n); }
long row_argmax(const float *row, long n) { return ngs_row_argmax(row, n); }
long row_find(const float *row, long n, float value) { return ngs_row_find(row, n, value); }
long next_block(const float *row, long start, long n, float bound, const uint8_t *marks) {
    return ngs_next_block(row, start, n, bound, marks);
}
void mask_row(float *out, const float *row, const uint64_t *mask, long n) {
    ngs_mask_row(out, row, mask, n);
}
int top(const float *row, long n, int k, int32_t *tokens, float *p) {
    return ngs_top(row, n, k, tokens, p);
}
uint32_t alike(const int32_t *a, const int32_t *b, int n) { return ngs_alike(a, b, n); }
float net_logit(const ngs_net *net, const float *x) { return ngs_net_logit(net, x); }
void lines_push(uint32_t *cells, uint64_t num_lines, const uint64_t *hashes, int num,
                uint32_t position, uint32_t mask, int most) {
    auto push = ngs_has_avx2() ? ngs_lines_push_avx2 : ngs_lines_push;
    push(cells, num_lines, hashes, num, position, mask, most);
}
}
"""
FLOATS = np.ctypeslib.ndpointer(np.float32, flags="C")
INTS = np.ctypeslib.ndpointer(np.int32, flags="C")
# With musl, loaders cannot choose.
GLIBC = platform.libc_ver()[0] == "glibc" and platform.machine() == "x86_64"
pytestmark = pytest.mark.skipif(not GLIBC, reason="elsewhere nothing is compiled twice")
# Instructions that not every x86-64 processor has: SSE3 and later, AVX (v...), BMI and the like.
# tzcnt is none of them: compilers write it for bsf, as older processors read it.
LATER = re.compile(
    "v(?!er[rw])|popcnt|lzcnt|andn$|bextr|bls|bzhi|pdep|pext$|mulx|rorx|sarx|shlx|shrx|movbe|crc32"
    "|pshufb|palignr|pabs|ph(add|sub|min)|pmaddubsw|pmulhrsw|psign|haddp|hsubp|addsubp|movddup"
    "|movs[hl]dup|lddqu|p?blend|pinsr[bdq]|pextr[bdq]|insertps|extractps|p(min|max)(sb|sd|uw|ud)"
    "|pmulld|pmuldq|pmov[sz]x|ptest|round[ps][sd]|dpp[sd]|mpsadbw|packusdw|pcmp(eqq|gtq|.str)"
    "|movntdqa|aes|pclmul|sha1|sha256|ad[co]x"
)


def compiled(folder: Path, *options: str) -> Path:
    """Compile the kernels as a library."""
    source, library = folder / "kernels.cpp", folder / f"kernels{len(options)}.so"
    source.write_text(KERNELS)
    include = (f"-I{HEADERS}", f"-I{sysconfig.get_path('include')}")
    command = ("g++", "-O3", "-g0", "-fPIC", "-shared", *options, *include, source, "-o", library)
    subprocess.run(command, check=True)
    return library


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the kernels as they are built, and without AVX2."""
    folder = tmp_path_factory.mktemp("kernels")
    return compiled(folder), compiled(folder, "-DNGS_BASELINE")


def functions(library: Path) -> Iterator[tuple[str, str]]:
    """Yield every instruction of a library with the function that it is in."""
    command = ("objdump", "--disassemble", "--no-show-raw-insn", library)
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    name = ""
    for line in shown.splitlines():
        if match := re.match(r"[0-9a-f]+ <(.+)>:", line):
            name = match[1]
        elif match := re.match(
            r"\s+[0-9a-f]+:\t(?:rep[nz]* |lock |bnd |data16 |cs |ds )*(\S+)", line
        ):
            yield name, match[1]


def wide_functions(library: Path) -> set[str]:
    """Return the functions with instructions that older processors lack."""
    return {name for name, instruction in functions(library) if LATER.match(instruction)}


@pytest.fixture(scope="module")
def both(libraries: tuple[Path, Path]) -> Callable[[str, list[Any], Any], Callable[..., Any]]:
    """Return a function that makes one which calls a kernel of both and compares the bits.

    It returns the arguments with what the kernel has written.
    """
    wide, plain = (ctypes.CDLL(str(library)) for library in libraries)
    assert (wide.wide(), plain.wide()) == (1, 0)

    def named(name: str, takes: list[Any], returns: Any) -> Callable[..., Any]:
        for library in (wide, plain):
            getattr(library, name).argtypes, getattr(library, name).restype = takes, returns

        def compare(*arguments: Any) -> list[Any]:
            # Memory that a kernel writes must be equal as well, so each has its own.
            mine, other = [
                [one.copy() if isinstance(one, np.ndarray) else one for one in arguments]
                for _ in range(2)
            ]
            results = [getattr(wide, name)(*mine), getattr(plain, name)(*other)]
            assert np.array(results[0]).tobytes() == np.array(results[1]).tobytes(), arguments
            for one, two in zip(mine, other, strict=True):
                assert not isinstance(one, np.ndarray) or one.tobytes() == two.tobytes()
            return mine

        return compare

    return named


def rows(seed: int) -> Iterator[np.ndarray[Any, np.dtype[np.float32]]]:
    """Yield rows of logits of many lengths, with ties, infinities and NaN."""
    random = np.random.default_rng(seed)
    for n in (*range(70), 1000, 1023, 32000):
        row = random.normal(size=n).astype(np.float32).round(1)
        row[random.random(n) < 0.05] = random.choice([np.nan, np.inf, -np.inf])
        yield row


def test_rows_of_logits(both: Any) -> None:
    largest = both("row_max", [FLOATS, ctypes.c_long], ctypes.c_float)
    argmax = both("row_argmax", [FLOATS, ctypes.c_long], ctypes.c_long)
    find = both("row_find", [FLOATS, ctypes.c_long, ctypes.c_float], ctypes.c_long)
    for row in rows(1):
        largest(row, len(row))
        argmax(row, len(row))
        for value in (*row[-3:].tolist(), 0.5, np.nan, np.inf):
            find(row, len(row), value)


def test_blocks_of_logits(both: Any) -> None:
    bytes_ = np.ctypeslib.ndpointer(np.uint8, flags="C")
    takes = [FLOATS, ctypes.c_long, ctypes.c_long, ctypes.c_float, bytes_]
    block = both("next_block", takes, ctypes.c_long)
    for row in rows(2):
        marks = np.zeros(len(row) // 32 + 1, np.uint8)
        for start in range(0, len(row), 32 * max(1, len(row) // 320)):
            for bound in (0.5, 2.5, 9.0, np.inf):
                block(row, start, len(row), bound, marks)
        marks[-1] = 1
        block(row, 0, len(row), np.inf, marks)


def test_rows_without_what_a_grammar_forbids(both: Any) -> None:
    words = np.ctypeslib.ndpointer(np.uint64, flags="C")
    mask_row = both("mask_row", [FLOATS, FLOATS, words, ctypes.c_long], None)
    random = np.random.default_rng(7)
    for row in rows(7):
        mask = random.integers(0, 1 << 64, len(row) // 64 + 1, dtype=np.uint64)
        mask[random.random(len(mask)) < 0.2] = 0 if random.random() < 0.5 else (1 << 64) - 1
        allowed = np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(row)]
        written = mask_row(np.zeros(len(row), np.float32), row, mask, len(row))[0]
        assert written.tobytes() == np.where(allowed, row, np.float32(-np.inf)).tobytes()


def test_the_likeliest_tokens_of_rows(both: Any) -> None:
    top = both("top", [FLOATS, ctypes.c_long, ctypes.c_int, INTS, FLOATS], ctypes.c_int)
    for row in rows(6):
        for k in (1, 8, 16):
            top(row, len(row), k, np.zeros(16, np.int32), np.zeros(16, np.float32))


def test_compared_texts(both: Any) -> None:
    pointer = ctypes.POINTER(ctypes.c_int32)
    alike = both("alike", [pointer, pointer, ctypes.c_int], ctypes.c_uint32)
    random = np.random.default_rng(3)
    for n in range(33):
        a, b = random.integers(0, 2, (2, 40), dtype=np.int32)
        ends = [ctypes.cast(x.ctypes.data + 4 * len(x), pointer) for x in (a, b)]
        alike(*ends, n)


def test_the_network_of_confidence(both: Any) -> None:
    logit = both("net_logit", [FLOATS, FLOATS], ctypes.c_float)
    random = np.random.default_rng(4)
    for _ in range(200):
        net = random.normal(size=34 * 32 + 32 + 32 + 1).astype(np.float32)
        logit(net, random.normal(size=34).astype(np.float32))


def test_lines_of_positions(both: Any) -> None:
    words = np.ctypeslib.ndpointer(np.uint32, flags="C")
    hashes = np.ctypeslib.ndpointer(np.uint64, flags="C")
    numbers = [ctypes.c_int, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_int]
    push = both("lines_push", [words, ctypes.c_uint64, hashes, *numbers], None)
    random = np.random.default_rng(5)
    for most in (1, 2, 4, 15):
        cells = random.integers(0, 4, 16 * 8, dtype=np.uint32) << 30
        for position in range(1, 60):
            pushed = random.integers(0, 1 << 63, 5, dtype=np.uint64)
            push(cells, 8, pushed, len(pushed), position, 0xC0000000, most)


def test_only_functions_that_are_chosen_at_run_time_need_later_processors(
    libraries: tuple[Path, Path],
) -> None:
    assert len(wide_functions(libraries[0])) >= 6
    assert wide_functions(libraries[1]) == set()
    modules = list(Path(ngramspec.__file__).parent.rglob("*.so"))
    wide = {name for module in modules for name in wide_functions(module)}
    assert {name for name in wide if not re.search(r"[._]avx2\b", name)} == set()

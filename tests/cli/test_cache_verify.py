"""ngramspec cache verify: good files, damaged ones, and those whose checksums alone are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.cache_files import flip
from helpers.cli import assert_one_error
from ngramspec import SuccessorPool, create_drafter
from ngramspec.files.cache_file import Origin, open_cache
from ngramspec.files.container import new_container, open_container
from ngramspec.files.successor_file import write_successors

pytestmark = pytest.mark.usefixtures("cache_files")


def test_verify_good_files(invoke: Any, cache: Any) -> None:
    names = ["a.ngc", "a.pool", "a.bin"]
    lines = invoke("cache", "verify", *names).stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == names
    assert all(line.endswith(": good") for line in lines)
    checks = cache("verify", *names)
    num = len(open_cache("a.ngc"))
    assert [one.get("num_ngrams") for one in checks] == [num, None, num]
    assert all(one["error"] is None for one in checks)


def test_verify_tells_what_a_file_of_successors_holds(invoke: Any, cache: Any) -> None:
    pool = SuccessorPool(64, 2)
    drafter = create_drafter("recycle", pool=pool, top=2)
    drafter.begin(0, [3, 4])
    drafter.observe_top(0, np.array([[5, 6]], np.int32), np.array([[-0.1, -3]], np.float32))
    write_successors("said.ngp", pool, Origin())
    assert invoke("cache", "verify", "said.ngp").stdout.endswith(
        f" {len(pool.entries())} keys: good\n"
    )
    (check,) = cache("verify", "said.ngp")
    assert (check["num_contexts"], check["error"]) == (len(pool.entries()), None)


@pytest.mark.parametrize(
    ("name", "offset", "message"),
    [
        ("a.ngc", 2000, "a.ngc: section 'records2' at offset 1024: expected checksum"),
        ("a.ngc", 30, "a.ngc: expected checksum"),
        ("a.ngc", 0, "a.ngc: not a statistics file of ngramspec: it begins with b'"),
        ("a.bin", 18, "a.bin: "),
    ],
)
def test_verify_finds_damage_and_goes_on(
    invoke: Any, cache: Any, name: str, offset: int, message: str
) -> None:
    flip(name, offset)
    result = invoke("cache", "verify", name, "b.ngc")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {message}")
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout.startswith("b.ngc: ")
    checks = cache("verify", name, "b.ngc", code=1)
    assert checks[0]["error"].startswith(message)
    assert checks[1]["error"] is None


def test_verify_looks_beyond_checksums(invoke: Any) -> None:
    container = open_container("a.pool", writable=True)
    np.frombuffer(container.view("cells"), "<u4")[7] = 0x3FFFFF
    assert_one_error(invoke("cache", "verify", "a.pool"), "expected a token id", 1)


def test_verify_finds_an_index_that_does_not_fit(invoke: Any) -> None:
    container = open_container("a.ngc")
    with new_container("x.ngc") as writer:  # all checksums are right
        for name in container.sections:
            data = bytearray(container.view(name))
            if name == "index3":
                data[400] += 1
            writer.add(name, bytes(data))
        writer.finish(container.header)
    message = "x.ngc: index of 3-grams: word 100 does not match the records"
    assert_one_error(invoke("cache", "verify", "x.ngc"), message, 1)


@pytest.mark.parametrize(
    ("good", "damaged", "code"), [("b.ngc", "", 2), ("b.ngc", "a.ngc", 1), ("", "", 2)]
)
def test_verify_tells_what_it_cannot_read_and_goes_on(
    invoke: Any, cache: Any, good: str, damaged: str, code: int
) -> None:
    if damaged:
        flip(damaged, 2000)
    names = ["absent.ngc", *filter(None, (damaged, good))]
    result = invoke("cache", "verify", *names)
    assert result.exit_code == code
    assert result.stderr.splitlines()[0] == "Error: absent.ngc: No such file or directory"
    assert result.stdout.startswith("b.ngc: ") == bool(good)
    checks = cache("verify", *names, code=code)
    assert [one["path"] for one in checks] == names
    assert checks[0]["error"] == "absent.ngc: No such file or directory"
    assert not good or checks[-1]["error"] is None

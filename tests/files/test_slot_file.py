"""Files of slots: what is written is read, and everything else is refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.files import is_private
from ngramspec.errors import FormatError
from ngramspec.files.container import open_container
from ngramspec.files.slot_file import SavedSlot, read_slot, write_slot
from ngramspec.files.statistics import open_statistics

NAMES = ("tokens", "state", "history", "window")

COUNTS = ("num_prompt", "num_reusable", "num_window")
NO_WINDOW = {"num_window": 0, "window": np.empty(0, np.uint8)}


def saved(**changes: Any) -> SavedSlot:
    fields: dict[str, Any] = {
        "tokens": np.arange(7, dtype=np.int32),
        "state": np.arange(200, dtype=np.uint8),
        "history": np.arange(3, 9, dtype=np.int32),
        "identity": b"0123456789abcdef",
        "vocab_size": 50,
        "num_prompt": 4,
        "num_reusable": 7,
        "num_window": 3,
        "window": np.arange(90, dtype=np.uint8),
        "namespace": "key:ä",
    }
    return SavedSlot(**{**fields, **changes})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    size = write_slot(path, saved())
    read, again = read_slot(path)
    assert size == again == path.stat().st_size
    assert is_private(path)
    for name in NAMES:
        assert getattr(read, name).tolist() == getattr(saved(), name).tolist()
        assert getattr(read, name).dtype == getattr(saved(), name).dtype
    for name in ("identity", "vocab_size", *COUNTS, "namespace"):
        assert getattr(read, name) == getattr(saved(), name)


def test_an_empty_slot_is_a_file_too(tmp_path: Path) -> None:
    empty = np.empty(0, np.int32)
    slot = saved(
        tokens=empty, state=np.empty(0, np.uint8), history=empty, num_prompt=0, num_reusable=0,
        **NO_WINDOW,
    )  # fmt: skip
    write_slot(tmp_path / "a", slot)
    assert read_slot(tmp_path / "a")[0].tokens.size == 0


def test_a_file_need_not_have_a_window(tmp_path: Path) -> None:
    write_slot(tmp_path / "a", saved(**NO_WINDOW))
    assert not {b"window", b"num_window"} & set((tmp_path / "a").read_bytes().split(b'"'))
    assert "window" not in open_container(tmp_path / "a").sections
    read, _ = read_slot(tmp_path / "a")
    assert (read.num_window, read.window.size, read.window.dtype) == (0, 0, np.uint8)


def test_every_damaged_byte_is_found(tmp_path: Path) -> None:
    path, chance = tmp_path / "damaged", random.Random(1)
    write_slot(path, saved())
    good = path.read_bytes()
    for at in range(len(good)):
        data = bytearray(good)
        data[at] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        with pytest.raises(FormatError):
            read_slot(path)
        if at % 37 == 0:
            path.write_bytes(good[:at])
            with pytest.raises(FormatError):
                read_slot(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": np.array([50], np.int32), "num_reusable": 1}, "token ids in 0..49"),
        ({"history": np.array([-1], np.int32)}, "token ids in 0..49"),
        ({"num_prompt": 8}, "num_prompt in 0..7, found 8"),
        ({"num_reusable": -1}, "num_reusable in 0..7, found -1"),
        ({"num_reusable": True}, "num_reusable in 0..7, found True"),
        ({"num_window": 8}, "num_window in 0..7, found 8"),
        ({"namespace": 3}, "a namespace, found 3"),
        ({"adapters": ((0, 10**400),)}, "pairs of adapters and scales"),
        ({"adapters": ((0, float("nan")),)}, "pairs of adapters and scales"),
    ],
)
def test_values_that_no_slot_has_are_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    write_slot(tmp_path / "a", saved(**change))
    with pytest.raises(FormatError, match=message):
        read_slot(tmp_path / "a")


def test_values_that_are_too_deep_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    with monkeypatch.context() as patch:
        patch.setattr("ngramspec.files.slot_file.json.dumps", lambda about: deep)
        write_slot(tmp_path / "a", saved())
    with pytest.raises(FormatError, match="expected a JSON object"):
        read_slot(tmp_path / "a")


def test_a_slot_is_no_statistics_file(tmp_path: Path) -> None:
    write_slot(tmp_path / "a.ngc", saved())
    with pytest.raises(FormatError, match="a saved slot of a server, not statistics"):
        open_statistics(tmp_path / "a.ngc")


def test_a_statistics_file_is_no_slot(tmp_path: Path) -> None:
    from ngramspec.files.cache_file import Origin
    from ngramspec.files.pool_file import PoolShape, create_pool

    create_pool(tmp_path / "a.ngp", PoolShape(capacity=1024), Origin())
    with pytest.raises(FormatError, match="kind slot, found hash-pool"):
        read_slot(tmp_path / "a.ngp")

"""Exact settings are found by measuring, and refused where there are none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from click.testing import CliRunner

from helpers.fake_target import FakeTarget
from ngramspec._native.engine.decode import Batch, Rows
from ngramspec.adapters.llama_cpp.exact import find_exact, open_exact
from ngramspec.adapters.llama_cpp.model import LlamaModel
from ngramspec.cli import main
from ngramspec.engine.exactness import WAYS, Setting, measure
from ngramspec.errors import BackendError

IDS = (np.arange(100) % 90 + 1).astype(np.int32)


class RoundingTarget(FakeTarget):
    """A target whose logits move by a bit from a batch size on, or beside other sequences."""

    limit = 64
    alone = False

    def decode(self, batch: Batch, rows: Rows) -> None:
        super().decode(batch, rows)
        others = len(set(batch.arrays()[2].tolist())) > 1
        if len(batch) > self.limit or (self.alone and others):
            moved = np.array([rows.copy(i) for i in range(len(rows))], np.float32)
            rows.set(np.nextafter(moved, np.float32(9)).reshape(-1, self.vocab_size))


def found_in(target: FakeTarget, **options: object) -> dict[str, int]:
    @contextmanager
    def open_target(setting: Setting, sequences: int) -> Iterator[FakeTarget]:
        yield target

    found = measure(open_target, Setting(), IDS, **options)  # type: ignore[arg-type]
    return {way: found.limit(way) for way in found.differing} | {"all": found.limit()}


def test_a_target_that_never_rounds_is_exact_in_all_sizes() -> None:
    assert found_in(FakeTarget()) == {**dict.fromkeys(WAYS, 64), "all": 64}


def test_one_bit_in_large_batches_is_seen() -> None:
    target = RoundingTarget()
    target.limit = 8
    assert found_in(target)["all"] == 8
    assert found_in(target, stop_early=True, ways=WAYS[2:], num_rows=32)["all"] == 8


def test_one_bit_beside_other_sequences_is_seen() -> None:
    target = RoundingTarget()
    target.alone = True
    found = found_in(target)
    assert found["alone"] == 64
    assert found["all"] < 5


def test_the_embedded_model_has_an_exact_setting_for_several_slots(
    model_path: Callable[[str], str],
) -> None:
    with LlamaModel(model_path("embedded")) as model:
        found = find_exact(model, threads=2, slots=3)
        assert found.setting == Setting(threads=1, unified=False)
        assert found.limit() >= 50
        with open_exact(model, found, 3, 256) as target:
            assert target.exact_batch == found.limit()


def test_a_model_that_cannot_take_tokens_back_is_refused(model_path: Callable[[str], str]) -> None:
    with (
        LlamaModel(model_path("lfm2")) as model,
        pytest.raises(BackendError, match="no setting is exact"),
    ):
        find_exact(model, threads=1, slots=2)


def test_the_command_tells_each_settings_limit() -> None:
    options = ["bench", "exactness", "--threads", "1", "--tokens", "100"]
    made = CliRunner().invoke(main, [*options, "--flash-attn", "on", "--json"])
    assert made.exit_code == 0
    found = json.loads(made.stdout)
    assert [row["unified"] for row in found] == [True, False]
    assert found[1]["exact_batch"] >= 50
    assert not any(found[0]["differing"]["alone"][str(size)] for size in (1, 2, 33, 50))
    assert set(found[0]["differing"]) == set(WAYS)
    table = CliRunner().invoke(main, [*options, "--flash-attn", "off"])
    assert "none" in table.stdout or "1 to" in table.stdout
    assert CliRunner().invoke(main, ["bench", "exactness", "--threads", "x"]).exit_code == 2

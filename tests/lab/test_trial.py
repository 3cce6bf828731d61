"""A statistics file on trial: built from what came before, judged on what is held out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helpers.files import leftovers, start
from helpers.planted import noise, planted, trace
from ngramspec.costs import PROFILES
from ngramspec.errors import InputError
from ngramspec.files.suffix_file import open_suffix_index
from ngramspec.lab.recordings import RecordedRequest
from ngramspec.lab.tune.candidates import DEFAULT, Candidate
from ngramspec.lab.tune.split import Split, split
from ngramspec.lab.tune.trial import num_replays, try_file

COSTS = PROFILES["h100-8b"]


def repeated(count: int, seed: int = 0) -> list[RecordedRequest]:
    """Requests without anything to copy from the prompt, whose answers come again."""
    chance = np.random.default_rng(seed)
    answers = [chance.integers(0, 50_000, 60, dtype=np.int32) for _ in range(8)]
    return [
        RecordedRequest(chance.integers(0, 50_000, 30, dtype=np.int32), answers[i % 8])
        for i in range(count)
    ]


def parts_of(*requests: RecordedRequest) -> Split:
    return split([trace(*requests)])


def test_a_file_with_the_answers_pays_after_a_restart(tmp_path: Path) -> None:
    path, calls = tmp_path / "a.ngx", [0]

    def count() -> None:
        calls[0] += 1

    parts = parts_of(*repeated(36))
    chosen = Candidate("ngram-cache", {}, True)
    found = try_file(path, parts, chosen, COSTS, None, advance=count)
    assert found.pays
    assert found.path == path
    assert [(one.candidate.spec, one.reader) for one in found.starts] == [
        ("suffix", ""), ("suffix", "suffix"), ("ngram-cache", ""), ("ngram-cache", "ngram-cache")
    ]  # fmt: skip
    assert all(one.tally.requests == 12 for one in found.starts)
    assert found.best_with.reader == "suffix"
    assert found.options == ["--suffix-index", str(path)]
    assert calls[0] == num_replays(parts, chosen) == 48
    assert open_suffix_index(path, verify=True)
    assert [one.name for one in tmp_path.iterdir()] == ["a.ngx"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_it_is_not_judged_on_what_it_was_built_from(tmp_path: Path) -> None:
    """Answers that are new in the held-out part: the file knows none of them."""
    path = tmp_path / "a.ngx"
    found = try_file(path, parts_of(*repeated(24), *noise(12)), DEFAULT, COSTS, None)
    assert not found.pays
    assert found.path is None
    assert found.options == []
    assert found.gain == pytest.approx(1, abs=0.01)
    assert list(tmp_path.iterdir()) == []


def test_the_default_is_tried_once(tmp_path: Path) -> None:
    found = try_file(tmp_path / "a", parts_of(*planted(30)), DEFAULT, COSTS, None)
    assert [one.reader for one in found.starts] == ["", "suffix"]


def test_without_held_out_requests_nothing_is_decided(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="too few requests"):
        try_file(tmp_path / "a", parts_of(*repeated(9)), DEFAULT, COSTS, None)


def test_a_folder_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="none"):
        try_file(tmp_path / "none" / "a", parts_of(*repeated(36)), DEFAULT, COSTS, None)
    assert list(tmp_path.iterdir()) == []


WAITS = """
    import sys, time
    from pathlib import Path
    from helpers.planted import planted, trace
    from ngramspec.lab.tune.candidates import DEFAULT
    from ngramspec.lab.tune.split import split
    from ngramspec.lab.tune.trial import try_file
    from ngramspec.costs import PROFILES

    path = Path(sys.argv[1])

    def wait():
        if any(path.parent.iterdir()):
            print("built", flush=True)
            time.sleep(60)

    try_file(path, split([trace(*planted(30))]), DEFAULT, PROFILES["h100-8b"], None, advance=wait)
"""


def test_what_a_killed_run_left_is_removed_and_what_a_living_one_tries_is_not(
    tmp_path: Path,
) -> None:
    path, parts = tmp_path / "a.ngx", parts_of(*repeated(36))
    running = start(WAITS, path)
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "built\n"
        assert try_file(path, parts, DEFAULT, COSTS, None).path == path
        assert len(leftovers(tmp_path, path.name)) == 1
    finally:
        running.kill()
        running.communicate()
    (tmp_path / "..a.ngx.0123abcd.4567cdef").touch()  # of one that was killed while it built
    assert try_file(path, parts, DEFAULT, COSTS, None).path == path
    assert leftovers(tmp_path, path.name) == []

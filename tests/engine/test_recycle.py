"""recycle in an engine's drafters: requests share what was learned within a namespace only."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from helpers.backends import int32
from helpers.logits import teach
from helpers.statistics_files import open_successors
from ngramspec import SuccessorPool
from ngramspec._native.drafter.drafter import Drafter
from ngramspec.drafting.statistics import Saves, open_shared
from ngramspec.engine import Speculation
from ngramspec.engine.sources.drafters import Drafters
from ngramspec.engine.sources.pools import NAMESPACE_CONTEXTS
from ngramspec.errors import InputError

TEXT = int32([1, 2, 3, 4, 5])


def native(drafters: Drafters, namespace: str = "", **own: Any) -> Drafter:
    params = {"recycle": own} if own else {}
    source = drafters.get(Speculation(namespace=namespace, params=params))
    assert source is not None
    drafter = source.native
    assert drafter is not None
    return drafter


def knows(drafter: Drafter) -> bool:
    drafter.begin(1, int32([2, 3]))
    return drafter.propose(1, 1).tolist() == [4]


def test_chains_of_a_namespace_share_a_pool_and_others_do_not_see_it() -> None:
    drafters = Drafters("recycle", 2, {"recycle": {"capacity": 256}})
    drafter = native(drafters)
    drafter.begin(0, TEXT)
    teach(drafter)
    assert knows(drafter)
    assert knows(native(drafters, max_draft=3))
    assert not knows(native(drafters, "a"))
    other = native(drafters, "b")
    other.begin(0, TEXT)
    teach(other)
    assert knows(native(drafters, "b", max_draft=3))
    assert not knows(native(drafters, "a"))
    assert drafters.shared_bytes() == {"recycle": 256 * 64}
    assert drafters.nbytes()[""] >= 2 * 64 * 256  # of two namespaces


def test_a_namespace_has_a_small_pool_of_its_own() -> None:
    drafters = Drafters("recycle", 2)
    assert drafters.shared_bytes()["recycle"] == 64 << 17
    native(drafters, "a")
    assert drafters.nbytes()[""] >= 64 * NAMESPACE_CONTEXTS
    assert drafters.nbytes()[""] < 2 * 64 * NAMESPACE_CONTEXTS


@pytest.mark.parametrize("owned", ["pool", "capacity", "top"])
def test_a_request_cannot_set_what_others_share(owned: str) -> None:
    drafters = Drafters("recycle", 2)
    with pytest.raises(InputError, match=f"a request cannot set '{owned}' of recycle"):
        native(drafters, **{owned: 8})


def test_a_given_pool_is_that_of_the_engine_alone() -> None:
    pool = SuccessorPool(256)
    drafters = Drafters("recycle", 2, {"recycle": {"pool": pool}})
    for namespace, shown in (("", True), ("a", False)):
        drafter = native(drafters, namespace)
        drafter.begin(0, TEXT)
        before = pool.num_observed
        teach(drafter)
        assert (pool.num_observed > before) == shown
    assert drafters.shared_params == ("pool of recycle",)


@pytest.mark.parametrize("opened", [False, True])
def test_a_file_keeps_what_the_engine_learned(tmp_path: Path, opened: bool) -> None:
    path = tmp_path / "learned"
    params: dict[str, dict[str, Any]] = {"recycle": {"pool": path, "save_interval": 0}}
    for learned in (False, True):
        with Saves() as saves:
            drafters = Drafters("recycle", 2, open_shared(params, saves) if opened else params)
            drafter = native(drafters)
            assert knows(drafter) == learned
            drafter.begin(0, TEXT)
            teach(drafter)
        del drafters, drafter
        gc.collect()
    assert open_successors(path).successors([2, 3])[0].tolist() == [4]


def test_a_file_needs_its_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="No such folder"), Saves() as saves:
        open_shared({"recycle": {"pool": tmp_path / "absent" / "file"}}, saves)

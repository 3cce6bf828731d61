"""Python has no memory for one object after the other: a call that fails changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers.files import finished
from ngramspec import create_drafter
from ngramspec.engine import AutoPolicy

_testcapi = pytest.importorskip("_testcapi", reason="this Python cannot be told to fail")
LOOP = np.resize(np.arange(5, dtype=np.int32), 60)
MOST_OBJECTS = 25  # that one of these calls makes, and a few
OTHERS = "abcde"  # names of sources that a policy knows; for one more its table has to grow


def without(number: int, call: Callable[[], Any]) -> bool:
    """Call, with the number-th allocation from now on failing; False where that was noticed."""
    _testcapi.set_nomemory(number, number + 1)
    try:
        call()
    except MemoryError:
        return False
    finally:
        _testcapi.remove_mem_hooks()
    return True


@pytest.mark.parametrize("how", ["accept", "follow"])
@pytest.mark.parametrize("draft", ["propose", "propose_tree"])
def test_an_accept_is_done_or_not(how: str, draft: str) -> None:
    """The policy may hear of a source for the first time when it learns what came of a draft."""
    new, outcomes = LOOP[:3].copy(), set()
    for number in range(MOST_OBJECTS):
        policy = AutoPolicy()
        for other in OTHERS:
            policy.calibrated(other, np.zeros(1, np.float32))
        drafter = create_drafter("ngram-simple", size_n=2, policy=policy)
        drafter.begin(0, LOOP)
        getattr(drafter, draft)(0, 3)
        if how == "accept":
            done = without(number, lambda one=drafter: one.accept(0, new, 0))
        else:
            whole = np.concatenate([LOOP, new])
            done = without(number, lambda one=drafter, text=whole: one.follow(0, text))
        assert drafter.length(0) == len(LOOP) + (len(new) if done else 0)
        assert drafter.check() == ""
        outcomes.add(done)
    assert True in outcomes


def test_the_log_of_llama_cpp_is_readable_again_after_it_was_not() -> None:
    printed = finished("""
        import ctypes, _testcapi
        from ngramspec._native.hosts.llama import log_address, log_position, log_since

        log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(log_address())
        start = log_position()
        for i in range(40):
            log(3, b"warning %d" % i, None)
        failed = 0
        for number in range(12):  # while the lines are copied
            _testcapi.set_nomemory(number, number + 1)
            try:
                log_since(start)
            except MemoryError:
                failed += 1
            finally:
                _testcapi.remove_mem_hooks()
        print(failed > 0, *log_since(start)[-2:], len(log_since(start)), sep=",")
    """)
    assert printed.strip() == "True,warning 38,warning 39,32"

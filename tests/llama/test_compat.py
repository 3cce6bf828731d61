"""The methods of the speculative engine and of the draft provider, on one object."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
import pytest
from adversaries import FakeDrafter

from ngramspec.adapters.llama_cpp import NgramDraft
from ngramspec.errors import InputError

LOOP: dict[str, Any] = {"spec": "ngram-simple", "policy": "fixed", "size_n": 3, "size_m": 16}
CYCLE = [5, 6, 7, 8] * 6


def target(prompt: list[int], length: int) -> list[int]:
    """Return what a target that goes round a cycle of 11 tokens says after the prompt."""
    return [(prompt[-1] + 1 + i) % 11 + 20 for i in range(length)]


def drive_engine(draft: Any, prompt: list[int], answer: list[int], **seq: int) -> list[int]:
    """Run one request the way the engine's host does: begin, draft, process, accept."""
    draft.begin(prompt, **seq)
    history, lengths = [*prompt, answer[0]], []
    while len(history) < len(prompt) + len(answer):
        rest = answer[len(history) - len(prompt) :]
        got = draft.draft(
            history, n_past=len(history) - 1, id_last=history[-1], n_max=len(rest), **seq
        )
        draft.process(object(), **seq)
        right = 0
        while right < got.size and right < len(rest) and got[right] == rest[right]:
            right += 1
        draft.accept(right, **seq)
        lengths.append(right)
        history += rest[: right + 1]
    return lengths


def drive_provider(draft: Any, prompt: list[int], answer: list[int], seq_id: int) -> list[int]:
    """Run one request the way the server does: draft, process, accept, truncate."""
    history, lengths = [*prompt, answer[0]], []
    while len(history) < len(prompt) + len(answer):
        rest = answer[len(history) - len(prompt) :]
        ids = np.array(history, dtype=np.intc)
        assert draft.can_draft(ids.size, seq_id=seq_id)
        got = draft.draft(ids, seq_id=seq_id, max_tokens=len(rest))
        assert got.dtype == np.intc
        assert got.base is None
        draft.process(object())
        right = 0
        while right < got.size and right < len(rest) and got[right] == rest[right]:
            right += 1
        draft.accept(seq_id, right)
        history += rest[: right + 1]
        draft.truncate(seq_id, len(history))
        lengths.append(right)
    return lengths


@pytest.mark.parametrize("drive", [drive_engine, drive_provider])
def test_a_whole_request_is_drafted_and_counted(drive: Any) -> None:
    draft = NgramDraft(**LOOP)
    answer = target([9], 120)
    lengths = drive(draft, [1, 2, 3, 9], answer, seq_id=0)
    assert sum(lengths) > 80
    assert draft.counters.accepted == sum(lengths) - lengths[-1]
    draft.clear()
    assert draft.counters.accepted == sum(lengths)


def test_the_last_round_is_learned_although_no_draft_follows_it() -> None:
    drafter = FakeDrafter(lambda history, limit: [70, 71, 72])
    for leave in ("begin", "clear", "truncate", "draft"):
        draft = NgramDraft(drafter=drafter)
        draft.draft([1, 2, 3], seq_id=0, max_tokens=8)
        draft.accept(2)
        accepted = []
        drafter.accept = lambda slot, ids, n, to=accepted: to.append((ids.tolist(), n))  # type: ignore[method-assign]
        if leave == "begin":
            draft.begin([4, 5])
        elif leave == "clear":
            draft.clear()
        elif leave == "truncate":
            draft.truncate(0, 2)
        else:
            draft.draft([4, 5], seq_id=0, max_tokens=8)
        assert accepted == [([70, 71], 2)], leave


def test_sequences_do_not_mix() -> None:
    draft = NgramDraft(**LOOP, slots=3)
    alone = [
        drive_provider(NgramDraft(**LOOP), [1, 2, i], target([i], 60), seq_id=0) for i in (3, 5, 7)
    ]
    together = [drive_provider(draft, [1, 2, i], target([i], 60), seq_id=i) for i in (3, 5, 7)]
    assert together == alone
    more = [drive_provider(draft, [1, 2, i], target([i], 60), seq_id=i + 100) for i in (3, 5, 7)]
    assert more == alone


def test_both_forms_of_accept_and_truncate_reach_the_right_sequence() -> None:
    drafter = FakeDrafter(lambda history, limit: [70, 71, 72, 73])
    draft = NgramDraft(drafter=drafter)
    for seq_id in (0, 2):
        draft.draft(np.arange(10, dtype=np.intc), seq_id=seq_id, max_tokens=4)
    hints = lambda: [draft._streams.find(("seq", i)).accepted_hint for i in (0, 2)]  # noqa: E731
    for call, expected in (
        (lambda: draft.accept(1), [1, 0]),
        (lambda: draft.accept(3, seq_id=2), [1, 3]),
        (lambda: draft.accept(n_accepted=2, seq_id=0), [2, 3]),
        (lambda: draft.accept(2, 4), [2, 4]),
        (lambda: draft.accept(0, accepted_draft_tokens=1), [1, 4]),
        (lambda: draft.accept(2, 99), [1, 4]),
        (lambda: draft.accept(7, 1), [1, 4]),
    ):
        call()
        assert hints() == expected
    draft.accept(0, 0)
    draft.accept(2, 0)
    lengths = lambda: [drafter.length(i) for i in (0, 1)]  # noqa: E731
    for call, expected in (
        (lambda: draft.truncate(9), [9, 10]),
        (lambda: draft.truncate(8, seq_id=2), [9, 8]),
        (lambda: draft.truncate(2, 7), [9, 7]),
        (lambda: draft.truncate(2, 50), [9, 7]),
        (lambda: draft.truncate(position=3), [3, 7]),
        (lambda: draft.truncate(0, keep_len=1), [1, 7]),
        (lambda: draft.truncate(44, 0), [1, 7]),
    ):
        call()
        assert lengths() == expected


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((1, 2, 3), {}),
        ((1, 2), {"seq_id": 1}),
        ((-1,), {}),
        ((0, -1), {}),
        ((), {"x": 1}),
    ],
)
def test_wrong_calls_get_a_clear_error(args: Any, kwargs: Any) -> None:
    draft = NgramDraft(**LOOP)
    with pytest.raises(InputError, match="accept"):
        draft.accept(*args, **kwargs)
    with pytest.raises(InputError, match="truncate"):
        draft.truncate(*args, **kwargs)


def test_a_copied_sequence_drafts_like_its_source() -> None:
    draft = NgramDraft(**LOOP)
    first = draft.draft(CYCLE, seq_id=0, max_tokens=8)
    draft.copy_sequence(0, 1, 0, len(CYCLE))
    slot = draft._streams.find(("seq", 1)).slot
    assert draft.drafter.history(slot).tolist() == CYCLE
    assert draft.draft(CYCLE, seq_id=1, max_tokens=8).tolist() == first.tolist()
    draft.copy_sequence(0, 2, -1, -1)
    draft.copy_sequence(0, 2, 4, 10)
    slot = draft._streams.find(("seq", 2)).slot
    assert draft.drafter.history(slot).tolist() == CYCLE[:10]
    draft.copy_sequence(8, 9, 0, 4)
    draft.copy_sequence(0, 3, 4, 10)
    assert draft.drafter.length(draft._streams.find(("seq", 3)).slot) == 0


def test_limits_are_kept_and_bad_ids_raise() -> None:
    draft = NgramDraft(**LOOP, max_draft=10, n_batch=8, n_vocab=50)
    assert draft.draft(CYCLE, seq_id=0, max_tokens=None).size == 7
    assert draft.draft(CYCLE, seq_id=0, max_tokens=3).size == 3
    assert draft.draft(CYCLE, seq_id=0, n_max=0, n_past=3, id_last=8).size == 0
    for bad in ([1, -2], [1, 50]):
        with pytest.raises(InputError, match="must hold token ids"):
            draft.draft(bad, seq_id=0, max_tokens=3)
    with pytest.raises(InputError, match="seq_id"):
        draft.draft(CYCLE, seq_id=-1, max_tokens=3)
    assert not draft.can_draft(1, seq_id=0)


def test_closing_and_clearing_may_be_repeated() -> None:
    draft = NgramDraft(**LOOP)
    draft.begin(CYCLE)
    for _ in range(2):
        draft.clear()
        draft.close()
    assert draft.draft(CYCLE, seq_id=0, max_tokens=4).tolist() == [5, 6, 7, 8]
    draft.set_target_processing_enabled(False)
    assert draft.checkpoint() is None
    assert draft.take_verification_checkpoint() is None
    draft.restore(None)
    draft.rollback_verified(None, 2)
    draft.reset_checkpoint_stats()
    assert draft.checkpoint_stats() == {}
    assert not draft.supports_native_target_rollback()


def test_every_method_of_both_interfaces_is_there() -> None:
    engine = "begin process draft accept checkpoint take_verification_checkpoint restore "
    engine += "reset_checkpoint_stats checkpoint_stats supports_native_target_rollback "
    engine += "rollback_verified truncate clear close"
    provider = "draft can_draft process accept truncate copy_sequence "
    provider += "set_target_processing_enabled close"
    assert all(callable(getattr(NgramDraft, name)) for name in (engine + " " + provider).split())
    assert not isinstance(NgramDraft, abc.ABCMeta)

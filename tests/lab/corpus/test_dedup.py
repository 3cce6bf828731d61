"""Digests: the set against Python's, and a share set aside whatever the order."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngramspec.errors import FormatError, InputError
from ngramspec.lab.corpus import DigestSet, document_digest, is_held_out

# Few values in the first 8 bytes, which choose the cell: chains and wrap-around are common.
DIGESTS = st.builds(
    lambda cell, rest: cell.to_bytes(8, "little") + rest.to_bytes(8, "little"),
    st.integers(0, 3) | st.integers(1020, 1027) | st.integers(0, 2**64 - 1),
    st.integers(0, 3),
)


@given(digests=st.lists(DIGESTS, max_size=60))
def test_the_set_agrees_with_pythons(digests: list[bytes]) -> None:
    digest_set, expected = DigestSet(), set()
    for digest in digests:
        assert (digest in digest_set) == (digest in expected)
        assert digest_set.add(digest) == (digest not in expected)
        expected.add(digest)
        assert digest in digest_set
        assert len(digest_set) == len(expected)


@given(digests=st.lists(DIGESTS, max_size=60))
def test_a_saved_set_is_the_same_whatever_the_order(digests: list[bytes]) -> None:
    data = DigestSet(digests).to_bytes()
    assert data == DigestSet(reversed(digests)).to_bytes()
    loaded = DigestSet.from_bytes(data)
    assert loaded.to_bytes() == data
    assert all(digest in loaded for digest in digests)
    assert len(loaded) == len(set(digests))


def test_many_digests_take_little_memory() -> None:
    digests = [document_digest(str(i)) for i in range(20_000)]
    digest_set = DigestSet(digests)
    assert len(digest_set) == 20_000
    assert 20_000 * 21 < digest_set.nbytes < 20_000 * 43
    assert not any(digest_set.add(digest) for digest in digests)
    copy = pickle.loads(pickle.dumps(digest_set))
    assert copy.to_bytes() == digest_set.to_bytes()


def test_damaged_bytes_are_refused() -> None:
    data = DigestSet([b"a" * 16, b"b" * 16]).to_bytes()
    for bad in (b"", data[:-1], data + b"x", b"X" + data[1:], data[:20]):
        with pytest.raises(FormatError, match="not a set of digests"):
            DigestSet.from_bytes(bad)
    with pytest.raises(FormatError, match="holds 1 of them twice"):
        DigestSet.from_bytes(data[:16] + data[16:32] * 2)


@pytest.mark.parametrize("digest", [b"", b"x" * 15, b"x" * 17])
def test_a_digest_has_16_bytes(digest: bytes) -> None:
    with pytest.raises(InputError, match=f"a digest has 16 bytes, got {len(digest)}"):
        DigestSet().add(digest)


def test_the_digest_is_that_of_xxhash_and_takes_any_text() -> None:
    import xxhash

    assert document_digest("h\u00e9") == xxhash.xxh3_128_digest("h\u00e9".encode())
    assert document_digest("\ud800") != document_digest("?")


def test_the_last_seven_bytes_of_a_digest_say_whether_it_is_held_out() -> None:
    """Or a build that is resumed by another version would measure on what it has learned."""
    assert is_held_out(b"\xff" * 9 + bytes(7), 0.01)
    assert not is_held_out(bytes(9) + b"\xff" * 7, 0.99)
    assert is_held_out(bytes(9) + b"\xff" * 6 + b"\x7e", 0.5)
    assert not is_held_out(bytes(9) + b"\x00" * 6 + b"\x80", 0.5)


def test_the_share_held_out_is_as_asked_and_grows() -> None:
    digests = [document_digest(str(i)) for i in range(20_000)]
    smaller: set[bytes] = set()
    for fraction in (0.0, 0.01, 0.1, 0.5, 1.0):
        held_out = {digest for digest in digests if is_held_out(digest, fraction)}
        assert smaller <= held_out
        assert len(held_out) / len(digests) == pytest.approx(fraction, abs=0.01)
        smaller = held_out
    assert len(smaller) == 20_000
    assert not any(is_held_out(digest, 0) for digest in digests)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_a_share_is_a_fraction(fraction: float) -> None:
    with pytest.raises(InputError, match=r"fraction must be 0\.\.1"):
        is_held_out(b"x" * 16, fraction)

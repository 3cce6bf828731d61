"""What a decode holds, written for reading: the slow twin of ngramspec._native.engine.plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Claim:
    """What a slot wants of the next decode; `count` and `draft` become what it gets."""

    slot: int
    pending: int
    decoding: bool
    used: int
    draft: int = 0
    count: int = 0


def share(claims: list[int], room: int) -> list[int]:
    """Hand out the room one by one, always to the claim that has least and still wants more.

    Where claims have equally much the later ones come first: they get what cannot be shared.
    """
    shares = [0] * len(claims)
    for _ in range(min(sum(claims), room)):
        open_claims = [i for i in range(len(claims)) if shares[i] < claims[i]]
        shares[max(open_claims, key=lambda i: (-shares[i], i))] += 1
    return shares


def plan(claims: list[Claim], capacity: int) -> list[Claim]:
    """Return the claims that are in the decode, with their counts; drafts are not counted."""
    decoding = [claim for claim in claims if claim.decoding]
    prompts = sorted((c for c in claims if not c.decoding), key=lambda claim: claim.used)
    for claim, count in zip(decoding, share([c.pending for c in decoding], capacity), strict=True):
        claim.count = count
    room = capacity - sum(claim.count for claim in decoding)
    for claim in prompts:
        claim.count = min(claim.pending, room)
        room -= claim.count
    return [claim for claim in decoding + prompts if claim.count]


def fit(work: list[Claim], capacity: int) -> list[Claim]:
    """Return the claims after drafts and prompts were cut until all of it fits."""
    rows = sum(claim.count for claim in work if claim.decoding)
    prompts = sum(claim.count for claim in work if not claim.decoding)
    room = max(0, capacity - rows - min(prompts, capacity * 3 // 4))
    for claim, size in zip(work, share([c.draft for c in work], room), strict=True):
        claim.draft = size
    while sum(claim.count + claim.draft for claim in work) > capacity:
        work[-1].count -= 1
        work = [claim for claim in work if claim.count]
    return work

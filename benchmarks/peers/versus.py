"""Our drafters against the peers, set by set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ngramspec.lab.replay.sets import Replays, geometric_mean
from peers import ORACLE


def peers_of(replays: Replays) -> list[str]:
    """Return the peers that some set has, in their order, the oracle last."""
    names = dict.fromkeys(name for row in replays.sets.values() for name in row)
    peers = [name for name in names if name not in (*replays.drafters, ORACLE)]
    return peers + [ORACLE] * (ORACLE in names)


def as_json(replays: Replays, missing: Mapping[str, str]) -> dict[str, Any]:
    """Return everything: what `bench replay` has of ours, the peers, and ours against them.

    Args:
        replays: Of ours and the peers.
        missing: Peers that could not run, and what is missing.
    """
    facts, peers = replays.as_json(), peers_of(replays)
    facts["peers"] = {name: {"sets": replays.figures(name)} for name in peers}
    facts["geometric_mean_speedup"] |= {name: replays.means(name) for name in peers}
    facts["against_peers"] = {
        name: {profile: versus.as_json() for profile, versus in compare(replays, name).items()}
        for name in replays.drafters
    }
    return {**facts, "missing_peers": dict(missing)}


@dataclass(frozen=True)
class Versus:
    """A drafter against the peers for one profile.

    best: by set, its fastest peer, not counting the oracle.
    ratios: by set, the drafter's speed-up over that peer's, or over no drafts if these are faster.
    shares: by set, the drafter's speed-up over the oracle's.
    """

    best: Mapping[str, str]
    ratios: Mapping[str, float]
    shares: Mapping[str, float]

    @property
    def mean_ratio(self) -> float:
        """Geometric mean of the ratios."""
        return geometric_mean(self.ratios.values())

    @property
    def mean_share(self) -> float | None:
        """Geometric mean of the shares, None without an oracle."""
        return geometric_mean(self.shares.values()) if self.shares else None

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        facts: dict[str, Any] = {
            "best_peer": dict(self.best),
            "ratio": {name: round(ratio, 4) for name, ratio in self.ratios.items()},
            "geometric_mean_ratio": round(self.mean_ratio, 4),
        }
        if self.mean_share is not None:
            facts["oracle_share"] = {name: round(x, 4) for name, x in self.shares.items()}
            facts["geometric_mean_oracle_share"] = round(self.mean_share, 4)
        return facts


def compare(replays: Replays, drafter: str) -> dict[str, Versus]:
    """Return a drafter against the peers by profile; empty without peers."""
    fixed = [name for name in peers_of(replays) if name != ORACLE]
    return {
        profile: _versus(replays, drafter, profile, fixed) for profile in replays.profiles if fixed
    }


def _versus(replays: Replays, drafter: str, profile: str, fixed: Sequence[str]) -> Versus:
    best, ratios, shares = {}, {}, {}
    for name, row in replays.sets.items():
        mine = replays.speedup(name, drafter, profile)
        speedups = {peer: replays.speedup(name, peer, profile) for peer in fixed if peer in row}
        if speedups:
            best[name] = max(speedups, key=speedups.__getitem__)
            ratios[name] = mine / max(1.0, speedups[best[name]])  # a slower peer is turned off
        if ORACLE in row:
            shares[name] = mine / replays.speedup(name, ORACLE, profile)
    return Versus(best, ratios, shares)

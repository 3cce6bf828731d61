"""The summary of replays: means over several sets, and our drafters against the peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ngramspec.lab.peers import ORACLE
from ngramspec.lab.replay.arbitration import Arbitration, OtherSource
from ngramspec.lab.replay.outcome import Outcome, Profiles, geometric_mean


@dataclass(frozen=True)
class Replays:
    """All outcomes of a run.

    profiles: costs of targets by name.
    drafters: our subjects in the order given.
    sets: by set and subject, ours and the peers'.
    missing: peers that could not run, and what is missing.
    growth: microseconds per step by subject and length of the context.
    cold: whether every request had a fresh drafter.
    other: a second source beside our default, None = none.
    beside: what both bring, by set and profile.
    """

    profiles: Profiles
    drafters: Sequence[str]
    sets: Mapping[str, Mapping[str, Outcome]]
    missing: Mapping[str, str] = field(default_factory=dict)
    growth: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    cold: bool = False
    other: OtherSource | None = None
    beside: Mapping[str, Mapping[str, Arbitration]] = field(default_factory=dict)

    @property
    def peers(self) -> list[str]:
        """The peers that some set has, in their order, the oracle last."""
        names = dict.fromkeys(name for row in self.sets.values() for name in row)
        peers = [name for name in names if name not in (*self.drafters, ORACLE)]
        return peers + [ORACLE] * (ORACLE in names)

    def speedup(self, set_name: str, subject: str, profile: str) -> float:
        """Return a modelled speed-up."""
        return self.sets[set_name][subject].tallies[profile].speedup(self.profiles[profile])

    def mean_speedup(self, subject: str, profile: str) -> float | None:
        """Return the geometric mean over the sets; None if the subject lacks one."""
        if any(subject not in row for row in self.sets.values()):
            return None
        return geometric_mean(self.speedup(name, subject, profile) for name in self.sets)

    def as_json(self) -> dict[str, Any]:
        """Return everything, the first drafter's figures on top."""
        facts: dict[str, Any] = {"sets": self._figures(self.drafters[0])}
        facts["drafter"] = self.drafters[0]
        facts["knowledge"] = "cold" if self.cold else "kept"
        if len(self.drafters) > 1:
            facts["drafters"] = {name: {"sets": self._figures(name)} for name in self.drafters}
        if self.peers:
            facts["peers"] = {name: {"sets": self._figures(name)} for name in self.peers}
        if self.missing:
            facts["missing_peers"] = dict(self.missing)
        facts["geometric_mean_speedup"] = {
            name: {
                profile: round(mean, 4)
                for profile in self.profiles
                if (mean := self.mean_speedup(name, profile)) is not None
            }
            for name in (*self.drafters, *self.peers)
        }
        against = {name: compare(self, name) for name in self.drafters}
        if any(against.values()):
            facts["against_peers"] = {
                name: {profile: versus.as_json() for profile, versus in row.items()}
                for name, row in against.items()
            }
        if self.growth:
            facts["growth_us_per_step"] = {
                name: {str(context): round(us, 3) for context, us in row.items()}
                for name, row in self.growth.items()
            }
        if self.other is not None:
            facts["other"] = {
                **asdict(self.other),
                "sets": {
                    name: {profile: figures.as_json() for profile, figures in row.items()}
                    for name, row in self.beside.items()
                },
            }
        return facts

    def _figures(self, subject: str) -> dict[str, Any]:
        rows = {name: row[subject] for name, row in self.sets.items() if subject in row}
        return {name: outcome.as_json(self.profiles) for name, outcome in rows.items()}


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
    fixed = [name for name in replays.peers if name != ORACLE]
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

"""A plot of replays: speed-ups per set and profile, and how the cost of a pass grows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ngramspec.lab.replay.outcome import geometric_mean
from ngramspec.lab.replay.sets import Replays
from peers import ORACLE
from peers.versus import peers_of

OURS = ("#0b6e4f", "#6bb392", "#c58f00", "#b5563c", "#5b4b8a")
PEER, BEST_PEER, LINE = "#9aa5b1", "#52606d", "#1f2933"
GROWTH_STYLES = ("-", "--", ":", "-.")
ALL = "all sets"


def plot_replays(replays: Replays, path: Path) -> None:
    """Draw speed-ups as bars, one panel per profile, and the growth if it was measured.

    Args:
        replays: What was replayed.
        path: .png or .svg.

    Raises:
        OSError: It cannot be written.
    """
    groups = _groups(replays)
    width = min(16.0, 3.5 + 0.75 * len(groups) + 0.1 * len(groups) * len(replays.drafters))
    heights = [2.5] * len(replays.profiles) + [4.0] * bool(replays.growth)
    figure = Figure(figsize=(max(8.0, width), sum(heights) + 1.3), layout="constrained")
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, profile in zip(axes, replays.profiles, strict=False):
        _draw_profile(axis, replays, profile, groups)
    for axis in axes[: len(replays.profiles) - 1]:
        axis.set_xticklabels([])
    _label_groups(axes[len(replays.profiles) - 1], groups)
    if replays.growth:
        _draw_growth(axes[-1], replays)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5, frameon=False)
    figure.savefig(path, dpi=150)


def _groups(replays: Replays) -> list[str]:
    return [*replays.sets, *([ALL] if len(replays.sets) > 1 else [])]


def _speedup(replays: Replays, group: str, subject: str, profile: str) -> float | None:
    if group == ALL:
        return replays.mean_speedup(subject, profile)
    return replays.speedup(group, subject, profile) if subject in replays.sets[group] else None


def _draw_profile(axis: Any, replays: Replays, profile: str, groups: list[str]) -> None:
    """Draw bars of ours and the best peer, dots of all peers, a line of the oracle."""
    fixed = [name for name in peers_of(replays) if name != ORACLE]
    bars = len(replays.drafters) + bool(fixed)
    step = 0.8 / bars
    places = range(len(groups))
    left = -0.4 + step / 2
    for i, drafter in enumerate(replays.drafters):
        heights = [_speedup(replays, group, drafter, profile) or 0 for group in groups]
        x = [place + left + i * step for place in places]
        axis.bar(x, heights, 0.92 * step, color=OURS[i % len(OURS)], label=drafter)
    if fixed:
        x = [place + left + len(replays.drafters) * step for place in places]
        best = [_best(replays, group, fixed, profile) for group in groups]
        axis.bar(x, best, 0.92 * step, color=BEST_PEER, label="best peer of the set")
        _draw_dots(axis, replays, profile, groups, fixed)
    if ORACLE in peers_of(replays):
        heights = [_speedup(replays, group, ORACLE, profile) or 0 for group in groups]
        starts, ends = [p - 0.42 for p in places], [p + 0.42 for p in places]
        axis.hlines(heights, starts, ends, color=LINE, linewidth=1.4, label="oracle")
    axis.axhline(1.0, color=LINE, linewidth=0.7, linestyle=":")
    axis.set_ylabel("speed-up")
    axis.set_title(profile, loc="left", fontsize=10, fontweight="bold")
    axis.set_xticks(list(places))
    axis.set_xlim(-0.6, len(groups) - 0.4)
    axis.spines[["top", "right"]].set_visible(False)


def _best(replays: Replays, group: str, fixed: list[str], profile: str) -> float:
    """Return the best speed-up of a peer; over all sets, the mean of the best of each."""
    if group == ALL:
        return geometric_mean(_best(replays, name, fixed, profile) for name in replays.sets)
    speedups = (_speedup(replays, group, peer, profile) for peer in fixed)
    return max((value for value in speedups if value is not None), default=1.0)


def _draw_dots(
    axis: Any, replays: Replays, profile: str, groups: list[str], fixed: list[str]
) -> None:
    x, heights = [], []
    middle = 0.4 - 0.4 / (len(replays.drafters) + 1)
    for place, group in enumerate(groups):
        for peer in fixed:
            value = _speedup(replays, group, peer, profile)
            if value is not None:
                x.append(place + middle)
                heights.append(value)
    axis.scatter(x, heights, s=9, color="white", edgecolors=PEER, zorder=3, label="every peer")


def _label_groups(axis: Any, groups: list[str]) -> None:
    axis.set_xticklabels([group.replace(".", "\n", 1) for group in groups], fontsize=8)
    for label in axis.get_xticklabels():
        label.set_rotation(25 if len(groups) > 6 else 0)
        label.set_horizontalalignment("right" if len(groups) > 6 else "center")
        label.set_rotation_mode("anchor")


def _draw_growth(axis: Any, replays: Replays) -> None:
    """Draw microseconds per pass by context, both on logarithmic scales, names at the ends."""
    places = _label_places({name: list(row.values())[-1] for name, row in replays.growth.items()})
    contexts = list(next(iter(replays.growth.values())))
    for i, (name, row) in enumerate(replays.growth.items()):
        ours = name in replays.drafters
        color = OURS[list(replays.drafters).index(name) % len(OURS)] if ours else PEER
        style = "-" if ours else GROWTH_STYLES[i % len(GROWTH_STYLES)]
        axis.plot(contexts, list(row.values()), style, color=color, lw=2.2 if ours else 1.2)
        ends = [contexts[-1], contexts[-1] * 1.12], [row[contexts[-1]], places[name]]
        axis.plot(*ends, "-", color=color, lw=0.6)
        label = {"fontsize": 8, "va": "center", "color": color if ours else BEST_PEER}
        axis.text(contexts[-1] * 1.14, places[name], name, **label)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlim(contexts[0] * 0.9, contexts[-1] * 2.6)
    axis.set_xticks(contexts, [f"{context >> 10}k" for context in contexts])
    axis.set_xlabel("tokens of context")
    axis.set_ylabel("µs per pass")
    axis.set_title("propose and accept", loc="left", fontsize=10, fontweight="bold")
    axis.spines[["top", "right"]].set_visible(False)


def _label_places(ends: dict[str, float]) -> dict[str, float]:
    """Return where to write each name on a logarithmic scale so that none covers another."""
    logs = {name: math.log10(max(value, 1e-3)) for name, value in ends.items()}
    gap = max(0.1, max(logs.values()) - min(logs.values())) / 20
    places: dict[str, float] = {}
    last = -math.inf
    for name in sorted(logs, key=logs.__getitem__):
        last = max(logs[name], last + gap)
        places[name] = 10**last
    return places

"""Train the network behind the suffix drafter's confidence on recorded outputs.

    python tools/train_confidence.py benchmarks/data/traces [--leave-one-out FOLDER]

Replays each set through the suffix drafter, with branches in half of the drafts, accepting up to
random lengths, notes what every judged choice looked like and whether it was what the target
said, and fits one hidden layer of 32 units to that (Adam, twenty passes, sets weighted by the
inverse root of their size). Writes ngramspec/models/suffix_confidence.npy. With --leave-one-out it
also trains one network per set on all others, FOLDER/NAME.npy, replays the set with it as
`ngramspec bench replay` does with "auto"
and "auto:tree=64", and prints the modelled speed-ups over that of the best recorded peer: figures
on text that the network never saw.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from ngramspec._native.drafter.drafter import Drafter
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec._native.suffix.drafter import SuffixSource
from ngramspec._native.suffix.pool import SuffixPool
from ngramspec.costs import PROFILES
from ngramspec.lab.recordings.traces import Trace, find_traces, load_traces
from ngramspec.lab.replay.subjects import DrafterPlayer
from ngramspec.lab.replay.walk import walk

FEATURES, HIDDEN = 34, 32
PEERS = Path(__file__).parents[1] / "benchmarks" / "data" / "peers.json"
ORACLE = "oracle"
OUTPUT = Path(__file__).parents[1] / "ngramspec" / "models" / "suffix_confidence.npy"
TREE = {"max_tokens": 64}
DEEPEST = 24  # positions of a draft that are learnt from
Rows = tuple[np.ndarray, np.ndarray]


def path_of(draft: np.ndarray, parents: np.ndarray, output: np.ndarray) -> list[int]:
    """Return the indices of the drafted tokens with which the output goes on."""
    path: list[int] = []
    for i, (token, parent) in enumerate(zip(draft, parents, strict=True)):
        if parent == (path[-1] if path else -1) and output[len(path) : len(path) + 1] == token:
            path.append(i)
    return path


def collect(trace, weights: np.ndarray, rng: np.random.Generator) -> Rows:
    """Replay a set; return the features and labels of all judged choices on right paths."""
    source = SuffixSource(1, SuffixPool(1 << 20), 64, 0.002, True, weights)
    drafter = Drafter([source], 1)
    features, labels = [], []
    for request in trace.requests:
        drafter.begin(0, request.prompt)
        output = np.asarray(request.output, np.int32)
        drafter.accept(0, output[:1], 0)
        at = 1
        while at < len(output):
            rest = output[at:]
            length = int(rng.choice([0, 2, 4, 8, 16, 64]))
            if rng.random() < 0.5:
                draft, parents, _ = drafter.propose_tree(0, min(64, len(rest)))
            else:
                draft = drafter.propose(0, min(64, len(rest)))
                parents = np.arange(-1, len(draft) - 1)
            path = path_of(draft, parents, rest)
            positions, after, tokens, _, _, x = source.considered(0)
            judged = np.isin(after, [-1, *path]) & (positions < min(len(rest), DEEPEST))
            if judged.any():
                features.append(x[judged])
                labels.append(tokens[judged] == rest[positions[judged]])
            accepted = min(len(path), length)
            drafter.accept(0, rest[: accepted + 1], accepted)
            at += accepted + 1
        drafter.end(0)
    return np.concatenate(features), np.concatenate(labels).astype(np.float32)


def train(sets: list[Rows], passes: int, seed: int = 0) -> np.ndarray:
    """Fit the network to the rows of some sets; return its weights, flat."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rows for rows, _ in sets])
    y = np.concatenate([labels for _, labels in sets])
    sizes = np.array([len(labels) for _, labels in sets], np.float64)
    importance = np.repeat((sizes.mean() / sizes) ** 0.5, sizes.astype(int)).astype(np.float32)
    parameters = [
        rng.normal(0, (2 / FEATURES) ** 0.5, (FEATURES, HIDDEN)).astype(np.float32),
        np.zeros(HIDDEN, np.float32),
        rng.normal(0, (1 / HIDDEN) ** 0.5, HIDDEN).astype(np.float32),
        np.zeros(1, np.float32),
    ]
    moments = [(np.zeros_like(p), np.zeros_like(p)) for p in parameters]
    batch = 4096
    steps = passes * (len(y) // batch)
    done = 0
    for _ in range(passes):
        order = rng.permutation(len(y))
        for k in range(len(y) // batch):
            rows = order[k * batch : (k + 1) * batch]
            gradients = _gradients(parameters, x[rows], y[rows], importance[rows])
            done += 1
            rate = 4e-3 * 0.5 * (1 + np.cos(np.pi * done / steps))
            for p, g, (m, v) in zip(parameters, gradients, moments, strict=True):
                m += 0.1 * (g - m)
                v += 0.001 * (g * g - v)
                p -= rate * (m / (1 - 0.9**done) / (np.sqrt(v / (1 - 0.999**done)) + 1e-8))
    return np.concatenate([p.ravel() for p in parameters])


def _gradients(parameters, x, y, importance):
    w1, b1, w2, b2 = parameters
    hidden = np.maximum(x @ w1 + b1, 0)
    error = importance * (1 / (1 + np.exp(-(hidden @ w2 + b2[0]))) - y) / len(y)
    back = np.outer(error, w2) * (hidden > 0)
    return x.T @ back, back.sum(0), hidden.T @ error, error.sum(keepdims=True)


def loss(weights: np.ndarray, rows: Rows) -> float:
    """Return the mean log loss in bits."""
    x, y = rows
    w1 = weights[: FEATURES * HIDDEN].reshape(FEATURES, HIDDEN)
    b1, w2 = weights[FEATURES * HIDDEN : -HIDDEN - 1], weights[-HIDDEN - 1 : -1]
    p = 1 / (1 + np.exp(-(np.maximum(x @ w1 + b1, 0) @ w2 + weights[-1])))
    p = np.clip(p, 5e-4, 1 - 5e-4)
    return float(-np.mean(y * np.log2(p) + (1 - y) * np.log2(1 - p)))


def against_peers(
    trace: Trace, weights: np.ndarray, tree: dict[str, int] | None = None
) -> list[float]:
    """Return the speed-up for each profile over that of the best recorded peer of the set.

    tree: arguments of propose_tree; None = chains.
    """
    recorded = json.loads(PEERS.read_text())["sets"][trace.name]
    ratios = []
    for name, table in PROFILES.items():
        source = SuffixSource(1, SuffixPool(1 << 20), 64, 0.01, True, weights)
        player = DrafterPlayer(Drafter([source], 1, policy=AutoPolicy(64, table)), tree=tree)
        tally = walk(lambda player=player: player, trace.requests)
        best = max(
            peer["modelled_speedup"][name] for key, peer in recorded.items() if key != ORACLE
        )
        ratios.append(tally.speedup(table) / max(1.0, best))
    return ratios


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path)
    parser.add_argument("--leave-one-out", type=Path, metavar="FOLDER")
    parser.add_argument("--keep", action="store_true", help="leave the shipped weights alone")
    parser.add_argument("--passes", type=int, default=20)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    start = np.zeros(FEATURES * HIDDEN + 2 * HIDDEN + 1, np.float32)
    if OUTPUT.exists() and np.load(OUTPUT).shape == start.shape:
        start = np.load(OUTPUT)
    OUTPUT.parent.mkdir(exist_ok=True)
    traces = load_traces(find_traces([options.traces]))
    sets = {trace.name: collect(trace, start, rng) for trace in traces}
    print("rows", sum(len(y) for _, y in sets.values()))
    if options.leave_one_out:
        options.leave_one_out.mkdir(parents=True, exist_ok=True)
        print(f"{'':46}", *PROFILES, "and the same with trees")
        ahead = []
        for name in sets:
            others = [rows for other, rows in sets.items() if other != name]
            weights = train(others, options.passes)
            np.save(options.leave_one_out / f"{name}.npy", weights)
            trace = next(t for t in traces if t.name == name)
            rows = against_peers(trace, weights) + against_peers(trace, weights, TREE)
            ahead.append(rows)
            print(f"{name:34} loss {loss(weights, sets[name]):.4f}", *(f"{r:7.3f}" for r in rows))
        print(f"{'geometric mean':46}", *(f"{r:7.3f}" for r in np.exp(np.log(ahead).mean(0))))
    weights = train(list(sets.values()), options.passes)
    if not options.keep:
        np.save(OUTPUT, weights)
    print(f"all: {np.mean([loss(weights, rows) for rows in sets.values()]):.4f}")


if __name__ == "__main__":
    main()

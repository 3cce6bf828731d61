"""Train recycle's first claims: how often successors of each class are right, on models' logits.

    python tools/train_recycle.py                  # writes ngramspec/models/recycle_claims.npy
    python tools/train_recycle.py --leave-one-out [--right-path]  # figures on what is left out

recycle drafts, alone and after suffix, chains and trees. Whether each successor that was considered
was right is fitted by a logistic regression on what makes its class: the observed probability, key,
rank, place, and the verdict of suffix.

Two models go on with prose, code and chat (benchmarks/recycle.py): the embedded one, which computes
the rows of wrong branches as well, and SmolLM2-135M as recorded in benchmarks/data/logits. With
--leave-one-out each kind is judged by claims trained on the other kinds of the other model.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ngramspec._native.drafter.drafter import Drafter
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec._native.recycle.drafter import RecycleSource
from ngramspec._native.recycle.successors import SuccessorPool
from ngramspec._native.suffix.drafter import SuffixSource
from ngramspec._native.suffix.pool import SuffixPool
from ngramspec.costs import PROFILES, CostTable
from ngramspec.models import confidence_weights, embedded_model

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from recycle import KINDS, TOP, Counts, Model, Replay, Text, Texts, Tokens, read_texts, record  # noqa: E402

OUTPUT = ROOT / "ngramspec" / "models" / "recycle_claims.npy"
LOGITS = ROOT / "benchmarks" / "data" / "logits"
KEYS, PLACES, VERDICTS, SAME, RANKS, BUCKETS = SHAPE = (2, 3, 6, 2, 4, 16)
# Middles of the classes of observed probability.
MIDDLES = np.array([0.0005, 0.002, 0.006, 0.014, 0.03, 0.06, 0.11, 0.2, 0.32, 0.47, 0.62, 0.75,
                    0.85, 0.92, 0.965, 0.99])  # fmt: skip
WHOLE = 65535
WEIGHT_OF = 20_000  # rows of a set whose rows count whole
TRAINED_ON = PROFILES["h100-8b"]
DRAFTS = [(spec, tree) for spec in ("recycle", "suffix,recycle") for tree in (False, True)]
Claims = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float64]
Rows = tuple[Claims, npt.NDArray[np.bool_]]  # classes of successors, and which were right


class Collector(Replay):
    """A replay that notes which successors were right."""

    def __init__(
        self, spec: str, costs: CostTable, claims: Claims, *, tree: bool, model: Model | None
    ) -> None:
        self.source = RecycleSource(1, SuccessorPool(1 << 17, TOP), 64, 0.01, True, claims)
        sources = [self.source]
        if spec != "recycle":
            weights = confidence_weights()
            sources.insert(0, SuffixSource(1, SuffixPool(1 << 20), 64, 0.01, True, weights))
        drafter = Drafter(sources, 1, policy=AutoPolicy(64, costs))
        super().__init__(drafter, costs, tree=tree, learns=True, model=model)
        self.rows: list[Rows] = []

    def drafted(self, rest: Tokens) -> None:
        """Note what was right."""
        self.rows.append(self.source.considered(0, rest))


def collect(
    texts: list[Text],
    spec: str,
    costs: CostTable,
    claims: Claims,
    *,
    tree: bool,
    model: Model | None,
) -> tuple[Rows, Counts]:
    """Draft for texts; return what was considered, and what it took."""
    replay = Collector(spec, costs, claims, tree=tree, model=model)
    for text in texts:
        replay.run(text)
    classes, right = zip(*replay.rows, strict=True)
    return (np.concatenate(classes), np.concatenate(right)), replay.counts


def inputs() -> Floats:
    """Return what is known of each class: (classes, inputs)."""
    key, place, verdict, same, rank, bucket = np.indices(SHAPE).reshape(len(SHAPE), -1)
    observed = np.log(MIDDLES / (1 - MIDDLES))[bucket]
    ones = np.ones_like(observed)
    columns = [ones, observed, key * ones, key * observed]
    columns += [(bucket == i) * ones for i in range(BUCKETS)]
    for groups, count in ((rank, RANKS), (place, PLACES)):
        for i in range(1, count):
            columns += [(groups == i) * ones, (groups == i) * observed]
    for i in range(1, VERDICTS):
        for j in range(SAME):
            here = (verdict == i) & (same == j)
            columns += [here * ones, here * observed, here * key * ones]
    return np.stack(columns, 1)


def fit(sets: list[Rows]) -> Claims:
    """Return how often successors of each class are right, by what was considered in some sets."""
    x = inputs()
    seen, right = np.zeros(len(x)), np.zeros(len(x))
    for classes, was_right in sets:
        weight = (WEIGHT_OF / max(len(classes), 1)) ** 0.5
        seen += weight * np.bincount(classes, minlength=len(x))
        right += weight * np.bincount(classes, weights=was_right, minlength=len(x))
    weights = np.zeros(x.shape[1])
    for _ in range(30):  # Newton's steps, weights held small
        p = 1 / (1 + np.exp(-(x @ weights)))
        curve = (x * (seen * p * (1 - p))[:, None]).T @ x + np.eye(len(weights))
        weights += np.linalg.solve(curve, x.T @ (right - seen * p) - weights)
    p = 1 / (1 + np.exp(-(x @ weights)))
    return np.rint(p * WHOLE).astype(np.uint16).reshape(SHAPE)


def loss(rows: Rows, claims: Claims) -> float:
    """Return the log loss in bits of claims that do not learn."""
    classes, right = rows
    p = np.clip(claims.ravel()[classes] / WHOLE, 0.0005, 0.9995)
    return float(-np.mean(np.log2(np.where(right, p, 1 - p))))


def main() -> None:
    """Train on everything, or show figures on what is left out."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--prompts", type=int, default=12, help="of each kind and model")
    parser.add_argument("--leave-one-out", action="store_true", help="figures only")
    parser.add_argument("--right-path", action="store_true", help="no rows of wrong branches")
    options = parser.parse_args()
    model = Model(embedded_model())
    targets: list[tuple[str, Texts, Model | None]] = [
        ("embedded", record(model, options.prompts), None if options.right_path else model),
        *((path.stem, read_texts(path), None) for path in sorted(LOGITS.glob("*.npz"))),
    ]
    claims = np.broadcast_to(np.rint(MIDDLES * WHOLE).astype(np.uint16), SHAPE)  # as observed
    for _ in range(2):  # what is considered depends on the claims
        sets: dict[tuple[str, str, str], list[Rows]] = {}
        for name, texts, one in targets:
            for (kind, _), group in texts.items():
                for spec, tree in DRAFTS:
                    rows, _ = collect(group, spec, TRAINED_ON, claims, tree=tree, model=one)
                    sets.setdefault((name, kind, spec), []).append(rows)
        claims = fit([rows for group in sets.values() for rows in group])
        print(f"{sum(len(c) for group in sets.values() for c, _ in group)} rows", file=sys.stderr)
    if not options.leave_one_out:
        np.save(OUTPUT, claims)
        return
    print("| target | text | drafts | log loss | trained on all | speed-up | trained on all |")
    print("|---|---|---|---|---|---|---|")
    for name, texts, one in reversed(targets):
        for kind in KINDS:
            others = fit(
                [
                    rows
                    for (its, text, _), group in sets.items()
                    if its != name and text != kind
                    for rows in group
                ]
            )
            for spec, tree in DRAFTS:
                cells = [
                    f"{np.mean([loss(rows, fitted) for rows in sets[name, kind, spec]]):.4f}"
                    for fitted in (others, claims)
                ] + [
                    f"{speed_up(texts, kind, spec, TRAINED_ON, fitted, tree=tree, model=one):.3f}"
                    for fitted in (others, claims)
                ]
                drafts = f"{spec} {'tree' if tree else 'chain'}"
                print(f"| {name} | {kind} | {drafts} | {' | '.join(cells)} |", flush=True)


def speed_up(
    texts: Texts,
    kind: str,
    spec: str,
    costs: CostTable,
    claims: Claims,
    *,
    tree: bool,
    model: Model | None,
) -> float:
    """Return the modelled speed-up on the texts of a kind."""
    tokens, cost = 0, 0.0
    for (its, _), group in texts.items():
        if its == kind:
            _, counts = collect(group, spec, costs, claims, tree=tree, model=model)
            tokens, cost = tokens + counts.tokens, cost + counts.cost
    return tokens * costs.cost(1) / cost


if __name__ == "__main__":
    main()

"""The policy on copies: modelled speed beside `suffix` that always sends whole drafts.

    python benchmarks/copies.py [--model FILE] [--json FILE]

The start of each file of corpora/python is repeated from the prompt, so whole drafts are as good as
it gets; the policy does not know that and has to see it. "Fresh": a new drafter for each request;
"later": one that has seen the copies before. Which lengths of other text pay is not asked here.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from ngramspec import embedded_model
from ngramspec.costs import PROFILES
from ngramspec.lab.recordings.lines import RecordedRequest
from ngramspec.lab.recordings.traces import Trace
from ngramspec.lab.replay.sets import replay
from ngramspec.lab.replay.subjects import subject
from ngramspec.llamacpp.model import LlamaModel

FILES = sorted((Path(__file__).parents[1] / "corpora" / "python").rglob("*.py"))
LENGTHS = (31, 100, 400, 1000)
MOST = 40  # requests of a length


def copies(model: LlamaModel, length: int) -> Trace:
    """Return requests that repeat so many tokens of the prompt."""
    before, after = (model.tokenize(text) for text in ("Repeat this:\n", "\nHere it is:\n"))
    texts = (np.asarray(model.tokenize(file.read_text("utf-8")), np.int32) for file in FILES)
    starts = [text[:length] for text in texts if text.size >= length]
    requests = [
        RecordedRequest(np.concatenate([before, start, after]).astype(np.int32), start)
        for start in starts[:MOST]
    ]
    return Trace(str(length), tuple(requests))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="whose tokens (the embedded model's)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print("| tokens | drafter | " + " | ".join(PROFILES) + " |")
    print("|---" * (2 + len(PROFILES)) + "|")
    rows = []
    with LlamaModel(options.model or embedded_model()) as model:
        for trace in (copies(model, length) for length in LENGTHS):
            for way in ("fresh", "later"):
                policy, whole = (
                    replay(trace, subject(spec), PROFILES, cold=way == "fresh").speedups(PROFILES)
                    for spec in ("auto", "suffix")
                )
                ratios = {name: policy[name] / whole[name] for name in PROFILES}
                rows.append({"tokens": int(trace.name), "drafter": way, "ratios": ratios})
                cells = " | ".join(f"{ratio:.2f}" for ratio in ratios.values())
                print(f"| {trace.name} | {way} | {cells} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

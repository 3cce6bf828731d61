"""recycle beside suffix and with it, on a model's own logits: tokens per pass, modelled speed-up.

    python benchmarks/recycle.py [--prompts 12] [--json OUT]
    python benchmarks/recycle.py --model chatml-model.gguf --right-path [--record FILE]
    python benchmarks/recycle.py --recorded benchmarks/data/logits/smollm2-135m.npz

The embedded model goes on with texts that it was not trained on: pages of Python's documentation
(corpora/text) as prose, functions of the standard library that tools/embedded_model keeps for its
evaluation as code, and tasks of that evaluation as chat. Of each prompt up to 256 tokens, then 256
tokens at most, greedily and at temperature 0.8. A recorded text is what the target says whatever is
drafted, so one recording serves all settings; one drafter sees the texts of a kind in order and
keeps what it learns.

A pass gives logits after every drafted token, wrong ones too: the model computes them, once for
each place. With --right-path the drafters see those of the recorded text only, as with --recorded,
which reads what --record wrote.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec import create_drafter, embedded_model
from ngramspec._native.drafter.drafter import Drafter
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.costs import PROFILES, CostTable
from ngramspec.lab.replay.walk import right_path, right_prefix

ROOT = Path(__file__).parents[1]
KINDS = ("prose", "code", "chat")
TEMPERATURES = (0.0, 0.8)
TASKS = ("rename", "think", "json", "show", "repeat_text", "two_turns", "repeat_code", "rename")
PROMPT, OUTPUT = 256, 256
TOP = 8
WIDTH = 8
Tokens = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Row = tuple[Tokens, Floats]  # the likeliest tokens and their log-probabilities
WHOLE = 65535  # probabilities are recorded in as many parts


@dataclass(frozen=True)
class Text:
    """A prompt, what the model said, and the row that each token of that was chosen from."""

    prompt: Tokens
    output: Tokens
    rows: list[Row]
    seen: dict[tuple[int, ...], Row] = field(default_factory=dict)  # by start and drafted path


@dataclass(frozen=True)
class Setting:
    """A drafter and how it drafts; tree: with branches."""

    spec: str
    tree: bool
    key_tokens: int = 2

    @property
    def name(self) -> str:
        """What the table calls it."""
        keys = f", {self.key_tokens} as key" if self.learns and self.key_tokens == 1 else ""
        return f"{self.spec} {'tree' if self.tree else 'chain'}{keys}"

    @property
    def learns(self) -> bool:
        """Whether it learns from logits."""
        return "recycle" in self.spec


@dataclass
class Counts:
    """What a replay took."""

    tokens: int = 0
    passes: int = 0
    cost: float = 0.0
    drafted: int = 0
    propose_ns: int = 0


class Model:
    """A GGUF model: what follows texts."""

    def __init__(self, path: Path) -> None:
        from llama_cpp import Llama

        self.llama = Llama(str(path), n_ctx=1024, n_threads=1, logits_all=True, verbose=False)

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text; those of ChatML are parsed."""
        return list(self.llama.tokenize(text.encode(), add_bos=False, special=True))

    def logits(self, tokens: list[int]) -> Floats:
        """Return the logits after a text; what it shares with the text before is kept."""
        llama, shared = self.llama, 0
        for ours, cached in zip(tokens[:-1], llama.input_ids[: llama.n_tokens], strict=False):
            if ours != cached:
                break
            shared += 1
        llama.n_tokens = shared
        llama._ctx.kv_cache_seq_rm(-1, shared, -1)
        llama.eval(tokens[shared:])
        row: Floats = llama.scores[llama.n_tokens - 1]
        return row

    def record(self, prompt: list[int], temperature: float, seed: int) -> Text:
        """Let the model go on with a prompt."""
        random = np.random.default_rng(seed)
        output: list[int] = []
        rows: list[Row] = []
        while len(output) < OUTPUT:
            logits = self.logits([*prompt, *output]).astype(np.float64)
            token = int(np.argmax(logits))
            if temperature:
                p = np.exp((logits - logits.max()) / temperature)
                token = int(random.choice(len(logits), p=p / p.sum()))
            if token == self.llama.token_eos():
                break
            output.append(token)
            rows.append(likeliest(logits))
        return Text(np.array(prompt, np.int32), np.array(output, np.int32), rows)


def likeliest(logits: npt.NDArray[Any]) -> Row:
    """Return the TOP likeliest tokens, as observe_top takes them."""
    top = np.argpartition(-logits, TOP)[:TOP]
    top = top[np.argsort(-logits[top], kind="stable")]
    most = logits[top[0]]
    logs = logits[top] - most - np.log(np.exp(logits - most).sum())
    return top.astype(np.int32), np.minimum(logs, 0).astype(np.float32)


def prompts(model: Model, kind: str, count: int) -> Iterator[list[int]]:
    """Yield the prompts of a kind."""
    if kind == "prose":
        for page in sorted((ROOT / "corpora" / "text").rglob("*.rst"))[:count]:
            yield model.tokenize(page.read_text()[2000:6000])[:PROMPT]
        return
    sys.path.insert(0, str(ROOT / "tools" / "embedded_model"))
    from corpus import load_corpus
    from tasks import TaskMaker, chat_prefix

    corpus = load_corpus("eval")
    if kind == "code":
        sources = [one.source for one in sorted(corpus.functions, key=lambda f: str(f.name))]
        step = len(sources) // count
        for i in range(count):
            yield model.tokenize("\n\n\n".join(sources[i * step : (i + 1) * step]))[:PROMPT]
        return
    maker = TaskMaker(corpus, varied=False, longest=PROMPT)
    for i in range(count):
        *before, (ask, _) = maker.make(f"recycle-{i}", TASKS[i % len(TASKS)]).turns
        text = "".join(f"{chat_prefix(asked)}{answer}<|im_end|>\n" for asked, answer in before)
        yield model.tokenize(text + chat_prefix(ask))[-PROMPT:]


Column = tuple[str, float]  # kind of prompts, temperature
Texts = dict[Column, list[Text]]


def record(model: Model, count: int) -> Texts:
    """Let a model go on with `count` prompts of each kind; answers of one token are left out."""
    texts: Texts = {}
    for kind in KINDS:
        for temperature in TEMPERATURES:
            recorded = [
                model.record(prompt, temperature, i)
                for i, prompt in enumerate(prompts(model, kind, count))
            ]
            texts[kind, temperature] = [text for text in recorded if len(text.output) > 1]
            print(f"{kind} at {temperature}: {len(recorded)} texts", file=sys.stderr)
    return texts


def write_texts(path: Path, texts: Texts) -> None:
    """Write texts and their rows to a file."""
    every = [(column, text) for column, group in texts.items() for text in group]
    rows = [row for _, text in every for row in text.rows]
    np.savez_compressed(
        path,
        kinds=np.array([KINDS.index(kind) for (kind, _), _ in every], np.uint8),
        temperatures=np.array([heat for (_, heat), _ in every], np.float32),
        lengths=np.array([[len(text.prompt), len(text.output)] for _, text in every], np.int32),
        tokens=np.concatenate([np.concatenate([text.prompt, text.output]) for _, text in every]),
        likeliest=np.stack([ids for ids, _ in rows]),
        parts=np.stack([np.rint(np.exp(logs) * WHOLE) for _, logs in rows]).astype(np.uint16),
    )


def read_texts(path: Path) -> Texts:
    """Read what write_texts wrote; probabilities are those of 16 bits."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    with np.errstate(divide="ignore"):
        logs = np.maximum(np.log(arrays["parts"] / WHOLE), -30).astype(np.float32)
    texts: Texts = {}
    token = row = 0
    lengths = zip(arrays["kinds"], arrays["temperatures"], arrays["lengths"].tolist(), strict=True)
    for kind, heat, (asked, new) in lengths:
        whole, token = arrays["tokens"][token : token + asked + new], token + asked + new
        rows = list(zip(arrays["likeliest"][row : row + new], logs[row : row + new], strict=True))
        row += new
        column = KINDS[kind], round(float(heat), 3)
        texts.setdefault(column, []).append(Text(whole[:asked], whole[asked:], rows))
    return texts


class Replay:
    """Drafts for recorded texts in order.

    Args:
        tree: With branches.
        learns: Show the drafter rows.
        model: Computes the rows of wrong branches; None = they are not shown.
    """

    def __init__(
        self, drafter: Drafter, costs: CostTable, *, tree: bool, learns: bool, model: Model | None
    ) -> None:
        self.drafter, self.costs, self.tree, self.learns = drafter, costs, tree, learns
        self.model = model
        self.counts = Counts()

    def drafted(self, rest: Tokens) -> None:
        """Look at what was considered; rest: what the target goes on with."""

    def run(self, text: Text) -> None:
        """Draft for one text."""
        counts, drafter = self.counts, self.drafter
        output, done = text.output, 1
        drafter.begin(0, text.prompt)
        drafter.accept(0, output[:1], 0)
        while done < len(output):
            left = len(output) - done
            started = time.perf_counter_ns()
            if self.tree:
                tokens, parents, _ = drafter.propose_tree(0, min(64, left), WIDTH)
            else:
                tokens = drafter.propose(0, min(64, left))
                parents = np.arange(-1, len(tokens) - 1, dtype=np.int32)
            counts.propose_ns += time.perf_counter_ns() - started
            self.drafted(output[done:])
            count = right_path(tokens, parents, output[done:])
            if not self.tree:
                assert count == right_prefix(tokens, output, done)
            emitted = output[done : done + count + 1]
            if self.learns and self.model is not None:
                self.show(self.pass_rows(text, done, tokens, parents), None)
            drafter.accept(0, emitted, count)
            if self.learns and self.model is None:
                rows = text.rows[done : done + len(emitted)]
                self.show(rows, len(text.prompt) + done - 1)
            counts.tokens += len(emitted)
            counts.passes += 1
            counts.drafted += len(tokens)
            counts.cost += self.costs.cost(1 + len(tokens))
            done += count + 1
        drafter.end(0)

    def show(self, rows: list[Row], first: int | None) -> None:
        """Show rows to the drafter."""
        ids, logs = (np.stack(part) for part in zip(*rows, strict=True))
        self.drafter.observe_top(0, ids, logs, first)

    def pass_rows(self, text: Text, done: int, tokens: Tokens, parents: Tokens) -> list[Row]:
        """Return the rows of a pass after output[:done]."""
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(tokens.tolist(), parents.tolist(), strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        return [text.rows[done], *(self.row(text, done, path) for path in paths)]

    def row(self, text: Text, done: int, path: tuple[int, ...]) -> Row:
        """Return the row after output[:done] and drafted tokens."""
        output = text.output.tolist()
        right = 0
        while right < len(path) and output[done + right : done + right + 1] == [path[right]]:
            right += 1
        if right == len(path) and done + right < len(output):
            return text.rows[done + right]
        key = (done + right, *path[right:])
        if key not in text.seen:
            assert self.model is not None
            ids = [*text.prompt.tolist(), *output[:done], *path]
            text.seen[key] = likeliest(self.model.logits(ids).astype(np.float64))
        return text.seen[key]


def settings() -> list[Setting]:
    """Return what is compared."""
    compared = [Setting("suffix", tree) for tree in (False, True)]
    for spec in ("recycle", "suffix,recycle"):
        compared += [Setting(spec, tree, keys) for tree in (False, True) for keys in (1, 2)]
    return compared


def replay(setting: Setting, costs: CostTable, texts: list[Text], model: Model | None) -> Counts:
    """Draft for texts with a setting."""
    params: dict[str, Any] = {"key_tokens": setting.key_tokens, "top": TOP}
    drafter: Drafter = create_drafter(
        setting.spec,
        policy=AutoPolicy(64, costs),
        params={"recycle": params} if setting.learns else {},
    )
    player = Replay(drafter, costs, tree=setting.tree, learns=setting.learns, model=model)
    for text in texts:
        player.run(text)
    return player.counts


def main() -> None:
    """Record, replay and print a table."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--model", type=Path, default=embedded_model(), help="GGUF file")
    parser.add_argument("--prompts", type=int, default=12, help="of each kind")
    parser.add_argument("--profile", nargs="*", default=[*PROFILES], choices=[*PROFILES])
    parser.add_argument("--right-path", action="store_true", help="no rows of wrong branches")
    parser.add_argument("--record", type=Path, help="also write texts and rows to this file")
    parser.add_argument("--recorded", type=Path, help="read them instead; implies --right-path")
    parser.add_argument("--json", type=Path, help="also write the counts to this file")
    options = parser.parse_args()
    model = None if options.recorded else Model(options.model)
    texts = read_texts(options.recorded) if model is None else record(model, options.prompts)
    if options.record:
        write_texts(options.record, texts)
    table: dict[tuple[str, str], list[Counts]] = {}
    for column, group in texts.items():
        for profile in options.profile:
            for setting in settings():
                one = None if options.right_path else model
                counts = replay(setting, PROFILES[profile], group[: options.prompts], one)
                table.setdefault((profile, setting.name), []).append(counts)
        print(f"{column[0]} at {column[1]}: replayed", file=sys.stderr)
    print("| target | drafts |" + "".join(f" {k}, {t:g} |" for k, t in texts) + " us |")
    print("|---|---|" + "---|" * (len(texts) + 1))
    for (profile, name), rows in table.items():
        alone = PROFILES[profile].cost(1)
        cells = [f"{c.tokens / c.passes:.2f} / {c.tokens * alone / c.cost:.2f}" for c in rows]
        spent = sum(c.propose_ns for c in rows) / sum(c.passes for c in rows) / 1000
        print(f"| {profile} | {name} | {' | '.join(cells)} | {spent:.1f} |")
    if options.json:
        counts_of = {f"{p} {n}": [asdict(c) for c in rows] for (p, n), rows in table.items()}
        options.json.write_text(json.dumps(counts_of, indent=1) + "\n")


if __name__ == "__main__":
    main()
